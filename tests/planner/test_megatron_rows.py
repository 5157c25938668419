"""Peaks that Megatron-LM with Transformer Engine allocated, to the byte, beside what `plan --rows` says of them.

The rows are functional tests of Megatron-LM (the last rank's peak) and the runs by which SimuMax was validated. Facts
alone are kept here: arguments and bytes.
"""

import json
from pathlib import Path

from helpers.planner.rows.answers import answer

import pytest

from ..sampling import sample

ROWS = json.loads(Path(__file__).with_name("megatron_rows.json").read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("each", sample(ROWS, one_in=4), ids=lambda each: each["row"]["id"])
def test_a_peak_is_met_within_a_percent(each):
    found = answer(each["row"])
    assert found["error"] is None
    assert found["peak_allocated_bytes"] == pytest.approx(each["peak_bytes"], rel=0.01)


def test_what_dropout_masks_and_dummies_take():
    small = {
        "framework": "megatron-lm",
        "arch": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 1024, "positions": 512},
        **{"gpus": 1, "seq": 512, "gradient_accumulation_steps": 2, "checkpointing": "none", "compile": False},
    }

    def peak(**changes):
        found = answer(small | changes)
        assert found["error"] is None
        return found["peak_allocated_bytes"]

    tokens = 512 * 256
    assert peak() - peak(dropout=0) == 5 * tokens  # after the embedding, and twice in each block
    assert peak() - peak(attention_mask=False) == 512 * 512
    weights = 3 * 256 * 256 + 256 * 256 + 2 * 4 * 256 * 256  # of the four distinct shapes
    assert peak() - peak(wgrad_fusion=False) == 2 * weights
    assert peak(stage="first", deterministic=True) - peak(stage="first") == 0  # an H100 has as much anyway


@pytest.mark.parametrize(
    ("field", "value", "words"), [("stage", "middle", "fullest, first or last"), ("dropout", 1.5, "less than 1")]
)
def test_nonsense_is_refused(field, value, words):
    row = {"framework": "megatron-lm", "model": "llama-3.2-1b", "gpus": 1, field: value}
    assert words in answer(row)["error"]
