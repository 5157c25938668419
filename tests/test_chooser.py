"""The recipe chooser: its table is whole and is the planner's; answers are ranked and quick."""

import itertools
import json
import time

from helpers import choose, plan_deep, plan_many
from helpers.chooser import LENGTHS, MODELS, TABLE, WAYS, _recipes
from helpers.planner import Recipe, RecipeError

import pytest


def test_the_table_holds_every_case():
    rows = json.loads(TABLE.read_text())
    assert {(r["model"], r["seq"], r["way"]) for r in rows} == set(_recipes())
    assert len(rows) == len(MODELS) * len(LENGTHS) * len(WAYS)


@pytest.mark.parametrize("gpu", ["rtx-3060-12gb", "rtx-4090-24gb", "h200-141gb"])
@pytest.mark.parametrize("model", MODELS)
def test_what_fits_comes_first_and_fastest_first(gpu, model):
    choices = choose(gpu, model, 512, 16)
    fits = [c.fits for c in choices]
    assert fits == sorted(fits, reverse=True)
    seconds = [c.seconds for c in choices if c.fits]
    assert all(a <= 1.01 * b for a, b in itertools.pairwise(seconds))
    assert all(c.fits == (c.reserved_bytes <= c.room_bytes) for c in choices)
    assert all(c.recipe.accumulate == 16 and c.recipe.batch == 1 for c in choices)


def test_answers_come_at_once_and_time_grows_with_the_batch():
    began = time.perf_counter()
    few, many = (choose("h100-80gb", "llama-2-7b", 2048, batch) for batch in (4, 64))
    assert time.perf_counter() - began < 0.6
    assert many[0].seconds == pytest.approx(16 * few[0].seconds)
    assert many[0].peak_bytes == few[0].peak_bytes


def test_what_the_table_does_not_hold_is_said():
    with pytest.raises(LookupError):
        choose("h100-80gb", "llama-2-7b", 700, 4)
    with pytest.raises(RecipeError):
        choose("abacus", "llama-2-7b", 512, 4)


@pytest.mark.slow
def test_the_table_is_what_the_planner_says():
    (key, recipe), *_ = (
        (k, r) for k, r in _recipes().items() if k == ("llama-3.2-1b", 512, "LoRA r=16, checkpointing")
    )
    row = next(r for r in json.loads(TABLE.read_text()) if (r["model"], r["seq"], r["way"]) == key)
    assert plan_deep([recipe])[0].allocated_bytes == pytest.approx(row["allocated_bytes"], rel=0.01)


@pytest.mark.slow
def test_two_shallow_plans_make_a_deep_one():
    recipe = Recipe("llama-3.2-1b", lora_rank=16, checkpointing="every")
    (line,), (whole,) = plan_deep([recipe]), plan_many([recipe])
    assert line.allocated_bytes == pytest.approx(whole.peak_allocated_bytes, rel=0.03)


def test_a_model_without_layers_is_refused():
    with pytest.raises(RecipeError):
        plan_deep([Recipe("vit-l-16")])
