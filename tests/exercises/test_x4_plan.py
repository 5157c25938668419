"""The plan that X4 compares with: it fits, and none with twice its tokens does. So the check need not plan it again."""

from dataclasses import replace

from helpers import plan
from helpers.exercises.checking import find_part, judge, reference_answers
from helpers.exercises.x4 import plan as checks

import pytest


def recipe():
    return reference_answers(find_part("x4.plan"))[0]()


def verdict(answer):
    evidence, wanted = ({"plan_fits": {"seen": {"recipe": each.changed()}}} for each in (answer, recipe()))
    return judge(find_part("x4.plan"), evidence, wanted)[0]


@pytest.mark.slow
def test_the_plan_of_the_reference_fits_and_no_larger_one_does():
    best = recipe()
    assert best.checkpointing == "every"
    assert plan(best).fits[checks.GPU]
    tokens = 2 * best.micro_batch_size * best.seq
    for seq in (512, 1024, 2048, 4096):
        sequences = tokens // seq
        steps = checks.EFFECTIVE // sequences
        larger = replace(best, seq=seq, micro_batch_size=sequences, gradient_accumulation_steps=steps)
        assert not plan(larger).fits[checks.GPU], seq


def test_only_a_recipe_other_than_that_of_the_reference_is_planned(monkeypatch):
    planned = []
    monkeypatch.setattr(checks, "_planned", lambda it: planned.append(it) or (True, 0, (0, 0)))
    assert verdict(recipe()).passed
    assert planned == []
    less = replace(recipe(), micro_batch_size=2, gradient_accumulation_steps=16)
    assert verdict(less).diagnosis == "A micro-batch has 4,096 tokens; 8,192 would fit."
    assert planned == [less, recipe()]
    assert not verdict(replace(recipe(), quantize="nf4")).passed
