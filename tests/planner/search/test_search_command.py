"""`python -m helpers layout`: an answer, kept for the second time; or one line that says what to change."""

import argparse
import json
import random
import shlex
from types import SimpleNamespace

from helpers.__main__ import main
from helpers.planner.catalog.archs import arch_of
from helpers.planner.described import described
from helpers.planner.layout.layout import Layout, layout_of
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.options import add_arguments
from helpers.planner.search import cli, kept
from helpers.planner.search.best import BEST, Search
from helpers.planner.search.commands import Asked, plan_command, plan_options
from helpers.planner.search.found import Found
from helpers.planner.search.kept import Answer, answer
from helpers.planner.search.losers import Loser, losers
from helpers.planner.search.space import layouts
from helpers.planner.search.steady import Steady
from helpers.planner.search.words import forks, others, ties, tight, words

import pytest

from .test_search import CLUSTER, DENSE, question

TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}


def test_rows_that_need_a_fork_of_their_engine_are_named():
    class Found:
        def __init__(self, **layout):
            self.layout = SimpleNamespace(**layout)

    plain = Found(engine="megatron", schedule="1f1b"), Found(engine="torchtitan", schedule="zero-bubble")
    assert forks(plain) == ""
    only = Found(engine="megatron", schedule="zero-bubble")
    assert "no zero-bubble schedule. Row 3: use" in forks([*plain, only])
    assert "Rows 1, 2: use" in forks([only, only, *plain])
    assert forks([only]).startswith("* ")


def test_rows_that_need_a_fork_are_marked_and_are_not_offered_for_export():
    def found(schedule):
        layout = Layout(DENSE, pipeline=2, micro_batches=2, seq=256, engine="megatron", zero="zero1", schedule=schedule)
        return Found(layout, 1.0, 0.9, 1.2, 2**30, (2**30, 2**30), 0.4, 9.0, {"compute": 1.0}, True)

    asked = question(arch=DENSE)
    both = words(asked, Answer([found("zero-bubble"), found("1f1b")], [], 2, 2, 0), Asked("m", "h100"), "tas")
    row = {line[:2].strip(): line for line in both.splitlines() if line[:2].strip().isdigit() and "plan" not in line}
    assert "(Megatron) *" in row["1"]
    assert "*" not in row["2"]
    assert "settings (not of rows marked *):" in both
    alone = words(asked, Answer([found("1f1b")], [], 2, 2, 0), Asked("m", "h100"), "tas")
    assert "*" not in alone


def test_tight_is_explained_and_the_first_row_that_fits_is_named():
    def graded(grade):
        return SimpleNamespace(grade=lambda room: grade)

    rows = [graded("tight"), graded("tight"), graded("fits")]
    assert tight(rows, 1).endswith("so the run may fail. Row 3 is the first that fits.")
    assert tight(rows[:2], 1).endswith("No row fits with certainty.")
    assert tight(rows[2:], 1) == ""


def test_links_are_those_of_the_options(command, monkeypatch):
    heard = []

    def hear(question, processes, tell):
        heard.append(question.cluster)
        return Answer([], [], 1, 0, 0)

    monkeypatch.setattr(kept, "answer", hear)
    options = ["--gpus", "8", "--tokens-per-batch", "2k", "--link-outside", "12.5", "--link-inside", "100"]
    assert command(*options)[0] == 0
    assert (heard[0].outside, heard[0].inside) == (12.5e9, 100e9)
    assert command(*options[:-1], "0")[2].startswith("--link-inside is 0 GB/s")
    layout = Layout(DENSE, seq=256)
    repeated = " ".join(plan_options(layout, Asked("m", "h100", None, 100.0, 12.5)))
    assert "--link-inside 100 --link-outside 12.5 " in repeated


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the command, in this process; return its status, what it printed, and what it said on the side."""
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path / "mine"))
    monkeypatch.setattr(cli, "MOST_PROCESSES", 0)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))

    def run(*options, model=str(path)):
        try:
            status = main(["layout", "--model", model, *options])
        except SystemExit as stop:  # by the parser
            status = stop.code
        printed = capsys.readouterr()
        said = "".join(line for line in printed.err.splitlines(True) if not line.startswith("running for "))
        return status, printed.out, said  # without the signs of life of a busy machine

    return run


def test_the_best_are_printed_and_kept(command, monkeypatch):
    asked = ("--gpus", "1", "--gpu", "h100", "--tokens-per-batch", "256")
    status, out, err = command(*asked)
    assert (status, err) == (0, "")
    assert "256 tokens per step in sequences of 256" in out  # the model's longest
    table = out[out.index("    layout") : out.index("These commands")].splitlines()
    assert table[0].split()[:3] == ["layout", "GiB", "s"]
    rows = [row for row in table[1:] if row[:2].strip().isdigit()]
    assert 3 <= len(rows) <= 10
    assert len({row.split("  ")[1] for row in rows}) == len(rows)  # no two are called alike
    monkeypatch.setattr(kept, "search", None)  # is not called again
    assert command(*asked) == (0, out, "")


@pytest.mark.slow
def test_each_row_has_a_command_that_plans_it(command, tmp_path, capsys):
    config = tmp_path / "a folder" / "config.json"  # whose name a shell must not split
    config.parent.mkdir()
    config.write_text(json.dumps(TINY))
    asked = ("--gpus", "2", "--gpu", "h100", "--gpus-per-node", "1", "--tokens-per-batch", "512")
    status, out, _ = command(*asked, model=str(config))
    head, _, lines = out.partition("These commands plan the rows in detail.")
    rows = [row for row in head[head.index("    layout") :].splitlines() if row[:2].strip().isdigit()]
    commands = [line[4:] for line in lines.splitlines()[1:]]
    assert status == 0
    assert 3 <= len(rows) == len(commands) <= BEST
    for row, line in list(zip(rows, commands, strict=True))[:2]:
        program, arguments = line.split(" plan ")
        assert program == "python -m helpers"
        assert main(["plan", *shlex.split(arguments), "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert f" {plan['step_seconds']:.4g} " in row
        assert f" {plan['peak_allocated_bytes'] / 2**30:.1f} " in row
        assert (plan["layout"]["engine"] == "megatron") == ("(Megatron)" in row)


@pytest.mark.parametrize(("model", "gpus"), [("llama-3.1-8b", 16), ("mixtral-8x7b", 8)])
def test_the_options_of_a_row_describe_its_layout(model, gpus):
    parser, arch = argparse.ArgumentParser(), arch_of(model)
    add_arguments(parser)
    space = list(layouts(question(arch=arch, gpus=gpus, tokens=64 * 1024, precision="fp8")))
    for layout in random.Random(0).sample(space, 300):
        options = plan_options(layout, Asked(model, "dgx-h100"))
        assert layout_of(described(vars(parser.parse_args(options))).config, arch) == layout
        assert options[:4] == ["--model", model, "--cluster", "dgx-h100"]
    assert " --gpu h100 --gpus-per-node 4 " in plan_command(layout, Asked(model, "h100", 4), "training-at-scale")


def test_layouts_that_tie_with_the_best_are_not_called_losers():
    near, far = Loser("pure FSDP", "7% worse", ties=True), Loser("GPipe", "90% worse")
    both = others(Answer([], [far, near], 2, 2, 0))
    assert [line.strip() for line in both if line][1::2] == ["pure FSDP: 7% worse", "GPipe: 90% worse"]
    assert "may be as good as row 1" in both[1]
    assert both[4] == "Common layouts that lose:"
    assert others(Answer([], [far], 2, 2, 0))[1:] == both[4:]
    assert others(Answer([], [], 2, 2, 0)) == []


def test_what_ties_depends_on_the_objective():
    def found(seconds, ranks):
        return SimpleNamespace(
            seconds=seconds, low=0.8 * seconds, high=1.3 * seconds, layout=SimpleNamespace(ranks=ranks)
        )

    few = [found(1.0, 8), found(1.1, 8), found(1.2, 16)]
    assert ties(few, "time").startswith(
        "All 3 tie: they lie within 20.0%, and each forecast may be off by -20% to +30%"
    )
    assert ties(few, "cost").startswith(
        "The first 2 of 3 tie: they lie within 10.0%"
    )  # the third costs 2.4 times as much
    assert ties(few, "memory") == ""


def test_the_bar_never_goes_back():
    heard = []
    steady = Steady(lambda what, done, of: heard.append((what, done, of)))
    for said in (
        ("listing layouts", 2000, 0),
        ("ruling out by bounds", 2000, 4000),
        ("0 planned", 0.0, 1.0),
        ("9 planned", 0.8, 1.0),
        ("12 planned", 0.4, 1.0),
        ("trying common layouts", 0, 6),
        ("trying common layouts", 6, 6),
    ):
        steady(*said)
    done = [done for _, done, of in heard if of]
    assert heard[0] == ("listing layouts", 2000, 0)
    assert done == pytest.approx([0.05, 0.1, 0.5, 0.5, 0.6, 1.0])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--gpus 8 --tokens-per-batch 4M --gpu a100", "could be a100-40gb or a100-80gb."),
        ("--gpus 8 --tokens-per-batch 4M --gpu tpu", "not in the catalog. `plan --list` shows all GPUs and clusters."),
        ("--gpus 8 --tokens-per-batch 4T", "not a number of tokens"),
        ("", "--gpus and --tokens-per-batch are missing."),
        ("--gpus 8", "--tokens-per-batch is missing."),
        ("--tokens-per-batch 4M", "--gpus is missing"),
        ("--gpus 0 --tokens-per-batch 4M", "--gpus is 0; it must be at least 1"),
        ("--gpus eight --tokens-per-batch 4M", "invalid int"),
        ("--gpus 37 --tokens-per-batch 4M", "No layout divides"),
        ("--gpus 8 --tokens-per-batch 4M --gpus-per-node 0", "--gpus-per-node"),
        ("--gpus 8 --tokens-per-batch 4M --seq 3000", "not a whole number of sequences"),
        ("--gpus 8 --tokens-per-batch 4M --seq 0", "--seq is 0; it must be at least 1"),
        ("--gpus 8 --tokens-per-batch 4M --seq 262144", "takes at most 131,072 tokens"),
        ("--gpus 8 --tokens-per-batch 4M --objective fun", "choose from"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options, word, command):
    status, out, err = command(*options.split(), model="llama-3.1-8b")
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert word in err


def test_all_missing_options_are_named_at_once(capsys):
    assert main(["layout"]) == 2
    assert capsys.readouterr().err == "--model, --gpus and --tokens-per-batch are missing.\n"


@pytest.mark.parametrize("model", ["gpt-5", "bert-base", "none.json"])
def test_a_model_that_cannot_be_laid_out_is_one_line_too(model, command):
    status, out, err = command("--gpus", "8", "--tokens-per-batch", "4M", model=model)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


def test_names_of_gpus_mean_what_they_mean_for_plan():
    assert cli.cluster_of("h100", None).name == "dgx-h100"
    assert cli.cluster_of("h100-96gb", None).name == "h100-96gb"
    assert cli.cluster_of("dgx-h100", 4).node == 4


def test_the_reasons_of_those_that_lose(monkeypatch):
    """Where little fits, plain data parallelism is named, with the bytes by which it is too large."""
    asked = question(gpus=4, tokens=4 * 1024, room=0.2)
    few = [
        Layout(DENSE, seq=1024, shard=4, recompute="full"),
        Layout(DENSE, seq=1024, shard=4, zero="none", engine="megatron"),
        Layout(DENSE, seq=1024, tensor=2, shard=2, micro_batches=2, recompute="full"),
    ]
    state = Search(asked, few)
    state.bound(lambda what, done, of: None)
    state.submit(0, workers := kept.Workers(0))
    for tag, found in workers.done():
        state.enter(tag, found)
    assert state.planned[0].fits
    said = {loser.name: loser.reason for loser in losers(state)}
    assert "does not fit: at least" in said["pure DDP"]
    assert " per GPU, " in said["pure DDP"]
    assert "too much" in said["pure DDP"]
    assert "worse" in said["FSDP with TP in the node"] or "does not fit" in said["FSDP with TP in the node"]
    assert set(said) == {"pure DDP", "FSDP with TP in the node"}


def test_an_answer_says_how_much_was_planned(tmp_path, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", "off")
    heard = []
    found = answer(question(tokens=1024, gpus=1), 0, lambda what, done, of: heard.append((what, done, of)))
    assert isinstance(found, Answer)
    assert 0 < found.planned <= found.layouts
    assert heard[0][0] == "listing layouts"
    assert all(0 <= done <= of or not of for _, done, of in heard)
    shares = [done for _, done, of in heard if of]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    best = found.best[0]
    plan = plan_layout(best.layout, CLUSTER)
    assert (plan.seconds, plan.worst.nbytes) == (best.seconds, best.nbytes)
