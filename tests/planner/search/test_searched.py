"""Answers that the labs keep: they are the planner's, and a question that is not there is searched for."""

from dataclasses import replace

from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.planned import KEEP
from helpers.planner.search import kept
from helpers.planner.search import searched as module
from helpers.planner.search.found import found_of
from helpers.planner.search.kept import Answer
from helpers.planner.search.losers import Loser
from helpers.planner.search.searched import Asked, kept_answers, search_anew, searched

import pytest

from ...sampling import sample

ANSWERED = [(asked, answer) for asked, answer in kept_answers().items() if answer.best]
SMALL = Asked("gpt2", "8x-4090", 2, 2048, 1024)


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TABLE", tmp_path / "searched.json")
    monkeypatch.delenv(KEEP, raising=False)
    kept_answers.cache_clear()
    yield tmp_path / "searched.json"
    kept_answers.cache_clear()


@pytest.fixture
def found_at_once(monkeypatch):
    """Stand in for the search, which takes minutes: the best of another question, and the questions it was asked."""
    asked_for, (_, other) = [], ANSWERED[0]
    made = Answer([other.best[0]], [Loser("GPipe", "is slow")], 7, 3, 1)

    def answer(question, processes, tell):
        asked_for.append(question)
        layout = Layout(question.arch, shard=question.gpus, seq=question.seq)
        return replace(made, best=[replace(other.best[0], layout=layout)])

    monkeypatch.setattr(module, "answer", answer)
    return asked_for


@pytest.mark.parametrize("asked", sorted({a.model for a in kept_answers()}))
def test_kept_sizes_are_those_of_the_catalog(asked):
    layouts = [found.layout for key, answer in ANSWERED if key.model == asked for found in answer.best]
    assert all(layout.arch == arch_of(asked) for layout in layouts)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "answer"), sample(ANSWERED, one_in=9), ids=lambda value: getattr(value, "model", ""))
def test_kept_answers_are_what_the_planner_says(asked, answer):
    """The best and the last of the best are planned again; `python -m helpers searches` renews what has changed."""
    for found in (answer.best[0], answer.best[-1]):
        assert found_of(plan_layout(found.layout, find_cluster(asked.cluster))) == found
        assert found.fits
    assert [found.seconds for found in answer.best] == sorted(found.seconds for found in answer.best)


def test_a_kept_layout_answers_its_question():
    assert ANSWERED
    for asked, answer in ANSWERED:
        for found in answer.best:
            assert (found.layout.ranks, found.layout.tokens, found.layout.seq) == (asked.gpus, asked.tokens, asked.seq)


def test_what_is_not_there_is_searched_for_once_and_not_kept(table, found_at_once):
    first = searched(SMALL)
    assert searched(SMALL) == first
    assert [question.gpus for question in found_at_once] == [2]
    assert not table.exists()


def test_the_build_keeps_answers_and_reads_them_back(table, found_at_once, monkeypatch):
    monkeypatch.setenv(KEEP, "1")
    first = searched(SMALL)
    kept_answers.cache_clear()
    assert kept_answers() == {SMALL: first}
    assert len(found_at_once) == 1


def test_answers_are_found_anew(table, found_at_once, monkeypatch):
    monkeypatch.setenv(KEEP, "1")
    searched(SMALL)
    table.write_text(table.read_text().replace('"layouts": 7', '"layouts": 8'))
    kept_answers.cache_clear()
    said = []
    search_anew(said.append)
    kept_answers.cache_clear()
    assert kept_answers()[SMALL].layouts == 7
    assert said == ["gpt2 on 2 x rtx-4090-24gb"]


def test_answers_of_other_sources_or_other_gpus_are_not_kept(tmp_path, monkeypatch):
    (tmp_path / "planner" / "hardware").mkdir(parents=True)
    monkeypatch.setattr(kept, "PACKAGE", tmp_path)
    versions = set()
    for name in ("plan.py", "rates.json", "hardware/h100-80gb.toml"):
        (tmp_path / "planner" / name).write_text("changed")
        kept.version.cache_clear()
        versions.add(kept.version())
    kept.version.cache_clear()
    assert len(versions) == 3
