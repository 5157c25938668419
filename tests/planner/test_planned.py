"""Plans that the labs keep: they are the planner's, what is missing is planned, and only the build adds to them."""

from dataclasses import replace

from helpers import Recipe, plan_many, planned
from helpers.planner.planned import KEEP, _kept, plan_anew

import pytest

from ..sampling import runs_whole, sample

SMALL = Recipe("small-gpt", precision="fp32", micro_batch_size=2, seq=32)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.planner.planned.TABLE", tmp_path / "planned.json")
    monkeypatch.delenv(KEEP, raising=False)
    _kept.cache_clear()
    yield tmp_path / "planned.json"
    _kept.cache_clear()


def known(plan):
    """A plan without the seconds that it took."""
    return replace(plan, seconds=0)


@pytest.mark.slow
def test_kept_plans_are_what_the_planner_says():
    """A sample of the quick ones here, others each day; all of them under `make test-all`."""
    kept = _kept()
    assert len(kept) > 30
    quick = sorted(kept, key=lambda recipe: kept[recipe].seconds)[: len(kept) // 2]
    chosen = list(kept) if runs_whole() else sample(quick, one_in=6)
    assert len(chosen) > 3
    for recipe, plan in zip(chosen, plan_many(chosen), strict=True):
        assert known(plan) == known(kept[recipe]), f"{recipe.summary}: run python -m helpers plans"


def test_what_is_not_there_is_planned_and_not_kept(table):
    (plan,) = planned([SMALL])
    assert known(plan) == known(plan_many([SMALL])[0])
    assert not table.exists()


def test_the_build_keeps_what_it_planned_and_nothing_is_planned_twice(table, monkeypatch):
    monkeypatch.setenv(KEEP, "1")
    fused = replace(SMALL, optimizer_impl="fused", micro_batch_size=3)
    first = planned([SMALL, fused, SMALL])
    assert [plan.recipe for plan in first] == [SMALL, fused, SMALL]
    monkeypatch.setattr("helpers.planner.planned.plan_many", None)
    assert [known(p) for p in planned([fused, SMALL])] == [known(first[1]), known(first[0])]
    assert table.read_text().count("\n") == 4  # a line a plan, so that a change can be read


def test_plans_are_made_anew(table, monkeypatch):
    monkeypatch.setenv(KEEP, "1")
    (plan,) = planned([SMALL])
    table.write_text(table.read_text().replace(str(plan.peak_allocated_bytes), "1"))
    _kept.cache_clear()
    assert planned([SMALL])[0].peak_allocated_bytes == 1
    plan_anew()
    assert known(planned([SMALL])[0]) == known(plan)


def test_recipes_with_targets_are_found_again(table, monkeypatch):
    monkeypatch.setenv(KEEP, "1")
    recipe = Recipe("gpt2", seq=16, lora_rank=4, lora_targets=["c_attn"])
    planned([recipe])
    monkeypatch.setattr("helpers.planner.planned.plan_many", None)
    assert planned([recipe])[0].recipe == recipe
