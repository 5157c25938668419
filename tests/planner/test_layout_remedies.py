"""What a layout that does not fit is told to change."""

import json
import shlex

from helpers.__main__ import main
from helpers.planner.cli import NOTHING
from helpers.planner.grades import DOES_NOT_FIT

import pytest

SIZES = {"model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 8, "tie_word_embeddings": False}
SIZES |= {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 8, "vocab_size": 512}
PLACE = ("--cluster", "dgx-h100", "--seq", "8192")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Write the sizes of a model of eight wide blocks: 7 billion parameters."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(SIZES))
    return str(path)


@pytest.fixture
def plan(model, capsys):
    def run(*options):
        assert main(["plan", "--model", model, *PLACE, *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def replaced(options, change):
    """Return options with those of a change in place of theirs."""
    flags = dict(zip(options[::2], options[1::2], strict=True))
    words = shlex.split(change)
    return [word for pair in (flags | dict(zip(words[::2], words[1::2], strict=True))).items() for word in pair]


@pytest.mark.parametrize(
    ("options", "several"),
    [
        (["--gpus", "2", "--micro-batch-size", "4"], False),
        (["--gpus", "4", "--zero-stage", "0"], False),
        (["--gpus", "4", "--zero-stage", "0", "--micro-batch-size", "8"], True),
        (["--gpus", "2", "--micro-batch-size", "4", "--activation-checkpointing", "every-2"], False),
    ],
)
def test_each_change_typed_as_it_is_printed_gives_the_plan_it_promises(plan, options, several):
    answer = plan(*options)
    assert list(answer["grades"].values()) == [DOES_NOT_FIT]
    assert answer["remedies"]
    for remedy in answer["remedies"]:
        change = remedy["change"].partition(": ")[0]
        again = plan(*replaced(options, change))
        assert again["peak_allocated_bytes"] == remedy["peak_allocated_bytes"]
        assert again["step_seconds"] == remedy["seconds"]
        assert again["tokens_per_step"] == answer["tokens_per_step"]
        assert remedy["fits"]
        assert list(again["grades"].values()) == ["tight" if remedy["tight"] else "fits"]
    assert [each["slower"] for each in answer["remedies"]] == sorted(each["slower"] for each in answer["remedies"])
    assert several == all(len(shlex.split(each["change"].partition(": ")[0])) > 4 for each in answer["remedies"])


def test_where_nothing_helps_it_says_so(model, capsys):
    assert main(["plan", "--model", model, *PLACE, "--gpus", "1", "--engine", "torchtitan"]) == 0
    assert NOTHING in capsys.readouterr().out


def test_a_layout_that_fits_is_not_told_to_change(plan):
    assert "remedies" not in plan("--gpus", "8", "--activation-checkpointing", "full")
