"""The largest micro-batch: found with few plans, by the rule of every other verdict."""

from dataclasses import replace
from types import SimpleNamespace

from helpers.planner import TrainingConfig, shallow
from helpers.planner.grades import grade
from helpers.planner.largest import MOST_PLANS, largest_micro_batch

import pytest

ROOM = 1000


def found(monkeypatch, nbytes, size=1):
    """Search with a plan that holds `nbytes(size)`; return the answer and the sizes that were planned."""
    planned = []

    def plan_one(recipe):
        held = nbytes(recipe.micro_batch_size)
        planned.append(recipe.micro_batch_size)
        said = grade(held, 1.1 * held, ROOM)
        return SimpleNamespace(
            recipe=recipe, peak_allocated_bytes=held, reserved_bytes=(held, 1.1 * held), grades={"a GPU": said}
        )

    monkeypatch.setattr(shallow, "estimate", lambda recipe: SimpleNamespace(allocated=nbytes(recipe.micro_batch_size)))
    first = plan_one(replace(TrainingConfig("gpt2"), micro_batch_size=size))
    return largest_micro_batch(first, plan_one, ROOM, lambda stage: None), planned[1:]


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize(("fixed", "each"), [(100, 50), (10, 3), (500, 101), (880, 20)])
def test_it_is_the_largest_and_the_next_is_not(monkeypatch, size, fixed, each):
    answer, planned = found(monkeypatch, lambda n: fixed + each * n, size)
    right = max(n for n in range(1000) if not n or 1.1 * (fixed + each * n) <= ROOM)
    assert (answer.size, answer.exact) == (right, True)
    assert answer.grade == grade(fixed + each * (right + 1), 1.1 * (fixed + each * (right + 1)), ROOM)
    assert len(planned) <= MOST_PLANS


def test_steps_cost_plans_and_the_answer_still_fits(monkeypatch):
    answer, planned = found(monkeypatch, lambda n: 100 + 40 * n + 60 * (n % 3))
    assert len(planned) <= MOST_PLANS
    assert 1.1 * (100 + 40 * answer.size + 60 * (answer.size % 3)) <= ROOM


def test_where_not_even_one_fits(monkeypatch):
    assert str(found(monkeypatch, lambda n: 2000 * n)[0]) == "largest micro-batch that fits: none; 1 does not fit"
    assert str(found(monkeypatch, lambda n: 950 + n)[0]) == "largest micro-batch that fits: none; 1 is tight"
    assert str(found(monkeypatch, lambda n: 100 + 50 * n)[0]) == "largest micro-batch that fits: 16; 17 is tight"
