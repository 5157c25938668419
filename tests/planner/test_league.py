"""The league's formulas against what their authors' own code and pages state, and its table against the page."""

from dataclasses import replace

from helpers.core.units import GiB
from helpers.planner.catalog.archs import arch_of
from helpers.planner.layout.arch import Arch

import pytest
from accelerate.commands.estimate import estimate_training_usage

from tests.planner import league, league_calculon, league_formulas
from tests.planner.league_formulas import Job
from tests.planner.league_tracker import MemTracker, figures, name_of, peak
from tests.planner.published import TABLE_PAGE, shown

LLAMA = Job("", arch_of("llama-2-7b"), 1, 1, 1, 1, 0, 1, 4096, False, "bf16")


@pytest.mark.parametrize(("precision", "name"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_accelerate_states_as_much(precision, name):
    theirs = estimate_training_usage(4 * LLAMA.arch.count(), name)
    assert league_formulas.accelerate(replace(LLAMA, precision=precision)) == max(theirs.values())
    assert league_formulas.accelerate(replace(LLAMA, gpus=2, tensor=2)) is None


def test_deepspeed_states_as_much():
    """Its page (docs/code-docs/source/memory.rst) has t5-3b on eight GPUs: 2,851 million parameters, 32 in a layer."""
    t5 = Arch(layers=1, hidden=1000, heads=1, kv_heads=1, head_dim=1, ffn=939_665, vocab=32_000, tied=True)
    job = replace(LLAMA, arch=t5, gpus=8, stage=3)
    assert t5.count() == pytest.approx(2851e6, rel=1e-4)
    assert league_formulas.deepspeed(job) / GiB == pytest.approx(6.10, abs=0.01)
    assert league_formulas.deepspeed(replace(job, stage=2)) / GiB == pytest.approx(15.93, abs=0.01)
    assert league_formulas.deepspeed(replace(job, stage=1)) is None


def test_eleuther_states_as_much():
    """What calc_transformer_mem.py prints for Llama 2 7B on eight GPUs."""
    assert league_formulas.eleuther(replace(LLAMA, gpus=8, tensor=2, stage=1)) / GiB == pytest.approx(90.33, abs=0.005)
    recomputed = replace(LLAMA, gpus=8, stage=3, recomputes=True)
    assert league_formulas.eleuther(recomputed) / GiB == pytest.approx(33.95, abs=0.005)


MEGATRON = replace(LLAMA, gpus=8, tensor=2, precision="bf16-amp")


@pytest.mark.parametrize(
    ("changes", "mib"),
    [
        ({}, 69847.453125),
        ({"scattered": True}, 65488.5859375),
        ({"pipeline": 4, "tensor": 1, "stage": 1, "micro_batches": 2}, 29201.626953125),
        ({"pipeline": 2, "stage": 1, "virtual_stages": 4, "micro_batches": 8, "scattered": True}, 27577.55859375),
        ({"arch": arch_of("llama-3.1-8b"), "pipeline": 2, "micro_batches": 8}, 46324.150390625),
    ],
)
def test_megatron_states_as_much(changes, mib):
    """What theoretical_memory_usage.py of Megatron-LM's commit d98e8a64dd prints."""
    assert league_formulas.megatron(replace(MEGATRON, **changes)) / 2**20 == pytest.approx(mib, rel=1e-6)


def test_megatron_refuses_what_its_ranks_do_not_do():
    for changes in ({"context": 2}, {"stage": 2}, {"precision": "bf16"}, {"arch": arch_of("mixtral-8x7b")}):
        assert league_formulas.megatron(replace(MEGATRON, **changes)) is None


GPT = Arch(96, 12288, 96, 96, 128, 4 * 12288, 51200, gated=False)


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({"keeps_scores": True}, 66.84375),
        ({"scattered": True}, 12.3515625),
    ],
)
def test_activations_are_those_of_korthikanti(changes, gib):
    """GPT-3's activations in figure 1 of arXiv 2205.05198, as calculon's validation.py reads them.

    One of eight stages has twelve blocks, and three virtual stages; the figure leaves out embedding and head.
    """
    layout = {"gpus": 64, "tensor": 8, "pipeline": 8, "virtual_stages": 3, "micro_batches": 64, "precision": "fp16-amp"}
    job = replace(LLAMA, arch=GPT, seq=2048, **layout, **changes)
    states = 16 * GPT.count() / 64
    assert (league_formulas.papers(job) - states) / GiB == pytest.approx(gib, rel=0.02)


def test_states_of_the_zero_paper():
    """Figure 1 of arXiv 1910.02054: 7.5 billion parameters on 64 ranks; the activations are those of one token."""
    arch = Arch(
        layers=1, hidden=1000, heads=1, kv_heads=1, head_dim=1, ffn=3_700_000, vocab=100, tied=True, gated=False
    )
    job = replace(LLAMA, arch=arch, gpus=64, seq=1, precision="bf16-amp")
    states = [league_formulas.papers(replace(job, stage=stage)) / 1e9 for stage in range(4)]
    assert [each * 7.5e9 / arch.count() for each in states] == pytest.approx([120, 31.4, 16.6, 1.88], rel=0.01)


def test_calculon_gets_what_a_run_says():
    (line,) = [row for row in league_calculon.rows() if row["id"] == "calculon-006"]
    question = league.read_line(line)
    asked = league_calculon.execution(question.layout, question.cluster.node)
    assert (asked["num_procs"], asked["tensor_par"], asked["pipeline_par"], asked["batch_size"]) == (280, 8, 35, 280)
    assert (asked["activation_recompute"], asked["tensor_par_comm_type"]) == ("attn_only", "rs_ag")
    assert league_calculon.application(question.layout)["attn_size"] == 160
    assert set(league.CALCULON) <= {row["id"] for row in league_calculon.rows()}


def test_calculon_states_what_its_validation_prints():
    """`calculon llm-validation`: 49.89 s and 34.47 s for turing-530B, with full and with selective recomputation."""
    assert league.CALCULON["calculon-005"]["seconds"] == pytest.approx(49.89, abs=0.005)
    assert league.CALCULON["calculon-006"]["seconds"] == pytest.approx(34.47, abs=0.005)


def test_the_tracker_s_peaks_are_kept_for_each_run():
    assert set(league.TRACKER) == {name_of(figure.recipe) for figure in figures()}


def test_the_tracker_keeps_tied_weights_tied():
    """What it states is what the planner does, whose weights are tied where the model's are."""
    for job, _, ours, _ in league.on_one_gpu():
        assert league.TRACKER[job.name]["bytes"] == pytest.approx(ours, rel=0.01)


@pytest.mark.slow
def test_the_tracker_finds_the_peak_of_pytorch_s_own(monkeypatch):
    recipe = replace(figures()[-1].recipe, seq=64, micro_batch_size=1)
    found = peak(recipe, layers=1)
    monkeypatch.setattr("tests.planner.league_tracker._Peaks", MemTracker)
    assert peak(recipe, layers=1) == found > 0


def test_the_page_has_the_bytes_of_its_other_tables():
    page = shown(TABLE_PAGE, league.BYTES).splitlines()
    again = league.bytes_table([*league.of_megatron(), *league.on_one_gpu()]).splitlines()
    assert len(again) == 9
    assert set(again[:-1]) <= set(page), "run python -m tests.planner.league"


def test_one_mfu_is_that_of_other_sources():
    assert {name for name, *_ in league.reached()} >= {"simumax", "mlperf", "dgxc", "torchtitan"}
    (row, *_) = [league.as_simumax(row) for row in league._simumax_rows()]
    question = league.read_line(row)
    mine = league.mfu(question, 1.0)
    alone = league.one_mfu("simumax", question, 1.0)
    assert league.one_mfu("simumax", question, 2.0) == pytest.approx(alone)  # knows nothing of what was measured
    assert 0.2 < mine / alone < 0.7


def test_the_page_has_the_seconds_of_older_sources():
    page = shown(TABLE_PAGE, league.SECONDS).splitlines()
    groups = league.of_older_sources()
    assert [group.source for group in groups] == [
        "calculon",
        "internevo",
        "megatron-lm",
        "vtrain, many nodes",
        "vtrain, one node",
    ]
    columns = [league.OURS, league.RATED, "SimuMax's forecast", "calculon", league.BASE]
    lines = league._table(groups, columns).splitlines()[:-1]
    assert set(lines) <= set(page), "run python -m tests.planner.league"


def test_a_forecast_is_closer_on_the_runs_that_it_takes():
    group = league.Group("there", [1.0, 1.0, 1.0], {"ours": [1.1, 1.3, 1.0], "theirs": [1.05, 1.2, None]})
    assert league.closer(group) == ["theirs on there (12.5%; ours 20.0%)"]
    assert league.closer(replace(group, forecasts={"ours": [1.0] * 3, "theirs": [1.0001] * 3})) == []
