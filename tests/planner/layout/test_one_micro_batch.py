"""Megatron's micro-batches are alike: one of them is run, and stands for all."""

from collections import Counter

from helpers.planner.layout.parallelize import StageKind
from helpers.planner.layout.stage_run import BACKWARD, FIRST, FORWARD, LAST, NEXT, run_stage
from helpers.planner.rows.line import read_line

import pytest

ARCH = {"layers": 4, "hidden": 128, "heads": 4, "ffn": 512, "vocab": 1024}
LINE = {"arch": ARCH, "gpus": 8, "tensor": 2, "seq": 128, "gradient_accumulation_steps": 8}


def changes(places):
    """What each place adds at its fullest moment and at its end, and what it does."""
    return [
        (place.name, place.events, *(Counter(after) - Counter(place.start) for after in (place.peak, place.end)))
        for place in places
    ]


@pytest.mark.parametrize(
    ("more", "ends"),
    [
        ({"framework": "megatron-lm", "pipeline": 2}, (True, False)),
        ({"framework": "megatron-lm", "wgrad_fusion": False}, (True, True)),
        ({"framework": "bigscience", "pipeline": 2, "precision": "bf16"}, (False, True)),
        ({"framework": "nemo", "lora_rank": 8}, (True, True)),
    ],
)
def test_one_micro_batch_stands_for_all(more, ends):
    layout = read_line(LINE | more).layout
    kind = StageKind(2, 0, *ends)
    one, all_three = run_stage(layout, kind), run_stage(layout, kind, every=True)
    assert set(one.actions) == set(all_three.actions)
    for action in (FORWARD, BACKWARD):
        for which in (FIRST, NEXT, LAST):
            assert changes(one.actions[action, which]) == changes(all_three.actions[action, which])
    own, whole = (
        Counter((life.nbytes, life.born and life.born.action) for life in run.lives) for run in (one, all_three)
    )
    assert own == whole  # as many tensors of the same sizes, born in the same passes


def test_gradients_that_appear_make_the_first_unlike():
    layout = read_line(LINE | {"framework": "torchtitan", "tensor": 1}).layout
    run = run_stage(layout, StageKind(2, 0, True, True))
    first, following = (changes(run.actions[BACKWARD, which]) for which in (FIRST, NEXT))
    assert first != following
