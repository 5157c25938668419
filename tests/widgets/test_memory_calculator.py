"""The calculator: its table holds every combination and is the planner's, and the picture shows what it holds."""

import json
import random

from helpers import plan_many
from helpers.core.units import human_bytes
from helpers.meter.categories import CATEGORIES
from helpers.widgets import memory_calculator as calculator

import pytest

from ..sampling import runs_whole, sample_seed


def test_every_combination_is_there_and_the_start_is_one():
    answers = calculator._answers()
    assert len(answers) == len(json.loads(calculator.TABLE.read_text()))
    assert calculator.START in answers
    for answer in answers.values():
        low, high = answer.reserved
        assert 0 < 0.9 * sum(answer.categories) < low < high
        assert len(answer.categories) == len(CATEGORIES)


@pytest.mark.slow
def test_answers_are_what_the_planner_says():
    """Six of the smallest model, others each day; forty of all under `make test-all`."""
    whole = runs_whole()
    answers = calculator._answers()
    smallest = calculator.KNOBS["model"][0]
    candidates = [knobs for knobs in answers if whole or knobs[0] == smallest]
    chosen = random.Random(sample_seed()).sample(candidates, 40 if whole else 6)
    for knobs, plan in zip(chosen, plan_many([calculator._recipe(knobs) for knobs in chosen]), strict=True):
        said = calculator.Answer([plan.at_peak[t] for t in CATEGORIES], plan.reserved_bytes, plan.peak_at)
        found = answers[knobs]._replace(reserved=tuple(answers[knobs].reserved))
        assert said == found, f"{knobs}: run python -m helpers plans"


def test_the_table_is_written_in_the_order_in_which_it_is_read(tmp_path, monkeypatch):
    knobs = {"model": ("small-gpt",), "batch": (1, 8), "tokens": (32, 128)}
    one = {"precision": ("fp32",), "optimizer": ("SGD",), "checkpointing": ("none",), "LoRA_rank": (0,)}
    monkeypatch.setattr(calculator, "KNOBS", knobs | one)
    monkeypatch.setattr(calculator, "TABLE", tmp_path / "table.json")
    calculator._answers.cache_clear()
    calculator.write_table()
    answers = calculator._answers()
    calculator._answers.cache_clear()
    assert [knobs[1:3] for knobs in answers] == [(1, 32), (1, 128), (8, 32), (8, 128)]
    sizes = [sum(answer.categories) for answer in answers.values()]
    assert sizes[0] < sizes[1] < sizes[3]


def test_the_picture_says_the_peak_and_draws_only_gpus_in_its_range():
    answer = calculator._answers()[calculator.START]
    (axes,) = calculator.calculator_figure(answer).axes
    assert axes.get_title().startswith(f"peak {human_bytes(sum(answer.categories))}")
    assert answer.peak_at in axes.get_title()
    assert [text.get_text() for text in axes.texts] == ["8 GiB", "16 GiB", "24 GiB"]
