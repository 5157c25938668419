"""Hints come one at a time, on request, and for what failed."""

import re

from helpers import check, hint
from helpers.exercises import checking, hints
from helpers.exercises.base import Outcome, Verdict
from helpers.exercises.checking import find_part

import pytest

NAME = "x1.scaler"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    verdicts = {}
    monkeypatch.setattr(hints, "_given", {})
    for module in (checking, hints):
        monkeypatch.setattr(module, "last_verdicts", verdicts)


def found(**diagnoses):
    """What the last check found: a diagnosis, or None, of each check."""
    texts = {"first": "Look here.\nNearly there.", "second": "Look there."}
    hints.last_verdicts[NAME] = [
        Verdict(name, "rule", 0, 0, Outcome.PASSED if diagnosis is None else Outcome.MISSED, diagnosis, texts[name])
        for name, diagnosis in diagnoses.items()
    ]


def said(capsys):
    hint(NAME)
    return capsys.readouterr().out


def test_each_call_prints_one_more_and_the_last_one_stays(capsys):
    found(first="Wrong.", second="Wrong, too.")
    assert said(capsys) == f"{NAME}: hint 1 of 3: Look here.\n"
    assert said(capsys) == f"{NAME}: hint 2 of 3: Nearly there.\n"
    assert said(capsys) == said(capsys) == f"{NAME}: hint 3 of 3: Look there.\n"


def test_hints_are_for_what_failed_and_begin_anew_when_something_else_fails(capsys):
    found(first="Wrong.", second=None)
    assert "hint 1 of 2: Look here." in said(capsys)
    found(first=None, second="Wrong.")
    assert "hint 1 of 1: Look there." in said(capsys)


def test_before_the_first_check_there_are_all_and_after_the_last_none(capsys):
    texts = [check.hint for check in find_part(NAME).checks]
    assert hints.hints_of(NAME)[0] == texts[0].splitlines()[0]
    assert len(hints.hints_of(NAME)) >= len(set(texts))
    found(first=None, second=None)
    assert "all checks passed" in said(capsys)


def test_a_notebook_shows_them_folded_one_inside_the_other():
    page = hints.folded(["Use `a < b`.", "Then add."])
    assert re.sub(r"</?p>", "", page) == (
        "<details><summary>Hint 1 of 2</summary>Use <code>a &lt; b</code>."
        "<details><summary>Hint 2 of 2</summary>Then add.</details></details>"
    )


def test_a_part_that_does_not_exist_is_named():
    with pytest.raises(LookupError, match=r"no_such\.part"):
        hint("no_such.part")


def test_what_a_check_found_is_what_is_hinted_at(capsys):
    check("start_here.bytes", lambda model: 0)
    (failed,) = (verdict for verdict in hints.last_verdicts["start_here.bytes"] if not verdict.passed)
    capsys.readouterr()
    hint("start_here.bytes")
    assert failed.hint.splitlines()[0] in capsys.readouterr().out
