"""Every clause of every graded contract, and who judges it: `python -m tests.mutants.clauses` writes docs/checks.md.

`--measure x2.step ...` first lets all checks of these parts judge each of their mutants, and keeps in alone.json which
ones a single check rejects. That takes minutes a part, on a quiet machine.
"""

import argparse
import importlib
import json
from collections import Counter
from pathlib import Path

from helpers.core.files import ROOT, atomic_write
from helpers.course.build.source import sources
from helpers.exercises.checking import find_part

from . import Mutant, topics
from .contracts import contracts
from .table import killers

PAGE = ROOT / "docs" / "checks.md"
KEPT = Path(__file__).with_name("alone.json")
GIVEN = "given"  # it says what the answer gets, and promises nothing
UNCHECKED = "unchecked"  # it requires something that no check looks at

# By part, for each clause in order: the checks that judge it.
JUDGED: dict[str, tuple[str, ...]] = {
    "x1.scaler": (
        "gradient_is_unscaled overflow_skips_and_backs_off scale_grows",
        "scale_grows",
        "gradient_is_unscaled",
        "gradient_is_unscaled overflow_skips_and_backs_off",
        "overflow_skips_and_backs_off gradient_is_unscaled",
        "scale_grows overflow_skips_and_backs_off",
    ),
    "x1.step": (
        "steps_in_a_row forward_in_low_precision",
        GIVEN,
        "forward_in_low_precision",
        "steps_in_a_row sixteen_bits_without_scaler",
        "loss_in_fp32",
        "clips_true_gradient sixteen_bits_without_scaler",
        "steps_in_a_row sixteen_bits_without_scaler",
        "steps_in_a_row sixteen_bits_without_scaler",
        "loss_in_fp32",
    ),
    "x1.compare": (
        "accuracy_holds memory_falls",
        "accuracy_holds",
        "accuracy_holds memory_falls",
        "accuracy_holds",
        "accuracy_holds memory_falls",
    ),
    "x2.step": (
        "one_micro_batch_at_a_time update_is_of_both_ranks",
        "one_micro_batch_at_a_time update_is_of_both_ranks",
        "update_is_of_both_ranks ranks_stay_in_step",
        "ranks_stay_in_step",
        "update_is_of_both_ranks ranks_stay_in_step",
        "ranks_stay_in_step",
        "ranks_stay_in_step",
        "update_is_of_both_ranks",
        "one_micro_batch_at_a_time",
        "update_is_of_both_ranks",
    ),
    "x2.scaled": (
        "clips_the_joint_gradient_once",
        "clips_the_joint_gradient_once both_step_or_neither",
        "clips_the_joint_gradient_once",
        "clips_the_joint_gradient_once",
        "clips_the_joint_gradient_once",
        "clips_the_joint_gradient_once",
        "both_step_or_neither",
        "clips_the_joint_gradient_once",
        "clips_the_joint_gradient_once both_step_or_neither",
        "clips_the_joint_gradient_once",
    ),
    "x2.epoch": (
        "each_group_counts goes_on_in_mid_group",
        "goes_on_in_mid_group",
        "each_group_counts last_group_counts",
        "each_group_counts",
        "each_group_counts goes_on_in_mid_group",
        "scheduler_steps_with_the_optimizer",
        "goes_on_in_mid_group",
        "goes_on_in_mid_group",
        "state_is_a_snapshot",
        "each_group_counts",
        "each_group_counts last_group_counts",
    ),
    "x3.epoch": (
        "every_epoch_in_a_new_order",
        "update_equals_joint_batch",
        "every_epoch_in_a_new_order update_equals_joint_batch",
        "update_equals_joint_batch ragged_groups_weigh_by_rows",
        "update_equals_joint_batch ragged_groups_weigh_by_rows",
        "one_synchronization_per_update",
        "update_equals_joint_batch",
        "loss_is_of_all_ranks",
    ),
    "x3.evaluate": (
        "every_test_row_counts_once",
        "evaluation_shares_the_work",
        "every_test_row_counts_once",
        "evaluation_shares_the_work",
        "evaluation_shares_the_work",
        "every_test_row_counts_once",
    ),
    "x3.worker": (
        "closes_and_reports",
        "closes_and_reports",
        "replicas_share_the_work_and_agree closes_and_reports",
        "replicas_share_the_work_and_agree",
        "replicas_share_the_work_and_agree",
        "closes_and_reports",
        "rank0_saves_for_all",
        "closes_and_reports replicas_share_the_work_and_agree",
    ),
    "x4.layer": ("corrects_by_alpha_over_rank", "starts_as_the_base", "corrects_by_alpha_over_rank", "merges_once"),
    "x4.adapter": ("adapter_sits_where_it_should", "count_is_predicted"),
    "x4.plan": ("plan_fits",) * 4,
    "x4.finetune": (
        "base_is_frozen",
        "learns_the_new_text",
        "base_is_frozen",
        "merged_is_equal",
        "merged_is_equal",
    ),
    "x4.chats": ("only_answers_count",) * 5,
    "x5.shard": ("chunks_are_dealt_by_work",) * 5,
    "x5.pass_on": ("passes_on_without_waiting",) * 5,
    "x5.ring": (
        "output_of_one_process",
        "output_of_one_process gradients_of_keys_come_home",
        "output_of_one_process",
        "gradient_of_queries gradients_of_keys_come_home",
        "output_of_one_process gradient_of_queries gradients_of_keys_come_home",
        "memory_does_not_grow_with_ranks",
        "blocks_go_round_the_ring",
        "hidden_chunks_are_skipped",
    ),
    "x5.train": (
        "loss_is_of_the_whole_sequence gradients_are_of_the_whole_sequence",
        "loss_is_of_the_whole_sequence",
        "loss_is_of_the_whole_sequence",
        "gradients_are_of_the_whole_sequence",
        "gradients_are_of_the_whole_sequence loss_is_of_the_whole_sequence",
        "loss_is_of_the_whole_sequence",
    ),
    "x6.files": (
        "newest_comes_back",
        "newest_comes_back",
        "newest_comes_back survives_kill_and_power_cut",
        "newest_comes_back",
        "survives_kill_and_power_cut",
        "survives_kill_and_power_cut",
        "newest_comes_back",
        "disk_stays_bounded",
    ),
    "x6.gradient": ("same_bits_on_one_rank_and_two", GIVEN, *("same_bits_on_one_rank_and_two",) * 4),
    "x6.train": (
        "uninterrupted_run_is_right resumes_bit_for_bit",
        GIVEN,
        "uninterrupted_run_is_right",
        "uninterrupted_run_is_right resumes_bit_for_bit",
        "uninterrupted_run_is_right",
        "resumes_bit_for_bit uninterrupted_run_is_right",
    ),
    "x6.preempt": (
        "ranks_stop_at_one_step saves_if_there_is_time",
        "ranks_stop_at_one_step saves_if_there_is_time",
        "ranks_stop_at_one_step",
        "ranks_stop_at_one_step",
        "ranks_stop_at_one_step",
        "ranks_stop_at_one_step saves_if_there_is_time",
        "saves_if_there_is_time",
        "saves_if_there_is_time",
    ),
    "x7.build": (
        "no_rank_holds_the_model initializes_like_one_process",
        "no_rank_holds_the_model",
        "no_rank_holds_the_model",
        "each_block_is_a_unit",
        "initializes_like_one_process",
        "no_rank_holds_the_model",
        "computes_by_the_policy each_block_is_a_unit no_rank_holds_the_model",
    ),
    "x7.step": (
        "update_of_one_process",
        "targets_of_all_ranks_weigh_the_same",
        "update_of_one_process targets_of_all_ranks_weigh_the_same clips_by_the_joint_norm",
        "reduces_once_per_unit",
        "update_of_one_process reduces_once_per_unit",
        "update_of_one_process clips_by_the_joint_norm",
    ),
    "x7.resume": (
        "goes_on_with_equal_losses",
        "goes_on_with_equal_losses each_rank_writes_its_shards",
        "each_rank_writes_its_shards",
        "goes_on_with_equal_losses",
        "goes_on_with_equal_losses",
    ),
}
HEAD = """# What the checks judge

This page is for people who change the checks. It lists every clause of each graded exercise's contract, which is what its text requires of an answer, and the checks that judge the clause. In the tables, "given" marks a clause that describes an answer's inputs and requires nothing; "unchecked" marks a requirement that no check covers.
`python -m tests.mutants.clauses` writes this page.

A mutant is the reference with one mistake. Each is meant for one check, which must reject it. "Alone" counts the mutants that no other check of the part rejects: without this check they would get full points. If a part has
one check, that is all of its mutants. "not run" means that this has not been measured; `python -m tests.mutants.clauses --measure PART` measures it.
"""


def measure(part: str) -> list[str]:
    """Return the names of those mutants of a part that only the check meant for them rejects."""
    mutants = [mutant for mutant in topics()[part.partition(".")[0]].mutants if mutant.part == part]
    found = killers(mutants)
    return [mutant.name for mutant in mutants if found[mutant] == [mutant.rejected_by]]


def page() -> str:
    """Return the page as it should be."""
    lines = [HEAD]
    kept = read_kept()
    for source in sources():
        if not source.graded:
            continue
        lines += [f"## {source.cells()[0].source.partition(chr(10))[0].removeprefix('# ')}", ""]
        mutants = topics()[source.exercise].mutants
        clauses = contracts(source.exercise)
        for part in parts_of(source.exercise):
            lines += [f"### {part}", ""]
            if part in clauses:
                lines += ["| Clause | Judged by |", "|---|---|"]
                pairs = zip(clauses[part], JUDGED[part], strict=True)
                lines += [f"| {_cell(clause)} | {judged.replace(' ', ', ')} |" for clause, judged in pairs]
                lines.append("")
            lines += [*_counts(part, [mutant for mutant in mutants if mutant.part == part], kept), ""]
    return "\n".join(lines)


def parts_of(exercise: str) -> list[str]:
    """Return the names of the parts of an exercise, in its order."""
    return [part.name for part in importlib.import_module(f"helpers.exercises.{exercise}").PARTS]


def read_kept() -> dict[str, list[str]]:
    """Return, by part, the mutants that one check alone rejects, as they were measured."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def _counts(part: str, mutants: list[Mutant], kept: dict[str, list[str]]) -> list[str]:
    checks = [check.name() for check in find_part(part).checks]
    meant = Counter(mutant.rejected_by for mutant in mutants)
    alone = Counter(mutant.rejected_by for mutant in mutants if len(checks) == 1 or mutant.name in kept.get(part, ()))
    known = len(checks) == 1 or part in kept
    rows = [f"| {check} | {meant[check]} | {alone[check] if known else 'not run'} |" for check in checks]
    return ["| Check | Mutants | Alone |", "|---|--:|--:|", *rows]


def _cell(clause: str) -> str:
    return clause.replace("|", "\\|").replace("[[", "").replace("]]", "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.clauses", description=__doc__)
    parser.add_argument("--measure", nargs="+", metavar="PART", default=[])
    for part in parser.parse_args().measure:
        kept = read_kept() | {part: measure(part)}
        atomic_write(KEPT, json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    atomic_write(PAGE, page())


if __name__ == "__main__":
    main()
