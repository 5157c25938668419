"""Which of several notebooks is taken for an exercise, and what is said of the others."""

import json
import os

from helpers.course.build.source import sources

import pytest

from .class_folder import (
    EXERCISES,
    NAME,
    X1,
    X2,
    assert_problem,
    assert_whole,
    cell_of,
    first,
    notebook,
    put,
    text,
    zipped,
)


@pytest.mark.parametrize(
    "name", ["Untitled.ipynb", "homework 1.IPYNB", f"{X1.name} (1).ipynb", f"{NAME}.txt", "ü.ipynb"]
)
def test_a_renamed_notebook_is_taken_without_a_flag(tmp_path, name):
    put(tmp_path / "ada" / name, text())
    assert_whole(first(tmp_path))
    assert_problem(first(tmp_path, X2), "missing", name, X1.name)


def test_names_in_messages_are_on_one_line(tmp_path):
    put(tmp_path / "ada" / "new\nline\x1b[2J\udcff.ipynb", text())
    put(tmp_path / "ada" / "z.ipynb", changed())
    assert "new\\nline\\x1b[2J\\udcff.ipynb" in first(tmp_path).flags[0]
    assert "new\\nline" in first(tmp_path, X2).problem[1]


def changed(source=X1, to="# another\n"):
    raw = notebook(source)
    for cell in raw["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = [to, *cell["source"]]
    return json.dumps(raw)


def test_of_several_notebooks_the_exactly_named_is_taken(tmp_path):
    put(tmp_path / "ada" / "deep" / NAME, text())
    put(tmp_path / "ada" / "Untitled.ipynb", changed())
    assert_whole(first(tmp_path), ["these notebooks have other answers: Untitled.ipynb"])


def test_then_the_shallowest_then_the_newest(tmp_path):
    put(tmp_path / "ada" / "a" / "b" / NAME, changed())
    put(tmp_path / "ada" / "z" / NAME, text())
    assert_whole(first(tmp_path), ["these notebooks have other answers: a/b/"])
    old = put(tmp_path / "ada" / "a" / NAME, changed(to="# old\n"))
    os.utime(old, (1, 1))
    assert_whole(first(tmp_path), [f"Taken from z/{NAME}; these notebooks have other answers: a/{NAME}, a/b/{NAME}."])


def test_copies_with_the_same_answers_are_no_matter(tmp_path):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada" / f"{X1.name}-Copy1.ipynb", text())
    assert_whole(first(tmp_path))


def test_a_worked_notebook_goes_before_an_untouched_one(tmp_path):
    put(tmp_path / "ada" / NAME, text(solved=False))
    put(tmp_path / "ada" / f"{X1.name} (1).ipynb", text())
    assert_whole(first(tmp_path), ["have other answers"])


def test_an_unreadable_one_gives_way_to_one_that_can_be_read(tmp_path):
    put(tmp_path / "ada" / NAME, text()[:5000])
    put(tmp_path / "ada" / f"old_{NAME}", text())
    assert_whole(first(tmp_path), ["breaks off"])


def test_an_unreadable_notebook_of_any_name_may_be_each_exercise(tmp_path):
    """As with an archive that cannot be opened: nobody knows what is in it, so nothing counts as missing."""
    put(tmp_path / "ada" / "final.ipynb", text()[:5000])
    assert_problem(first(tmp_path), "unreadable", "final.ipynb is not a notebook: it breaks off")
    assert_problem(first(tmp_path, X2), "unreadable", "final.ipynb")
    put(tmp_path / "ben" / "final.zip", zipped({NAME: text()})[:900])
    assert_problem(first(tmp_path, X1, "ben"), "unreadable", "final.zip")
    put(tmp_path / "ada" / NAME, text())
    assert_whole(first(tmp_path), ["unreadable notebooks: final.ipynb"])
    assert_problem(first(tmp_path, X2), "unreadable", "final.ipynb")


def test_an_unreadable_notebook_that_names_its_exercise_is_no_other(tmp_path):
    put(tmp_path / "ada" / f"{X2.name}.ipynb", text(X2)[:5000])
    assert_problem(first(tmp_path), "missing", f"{X2.name}.ipynb")
    assert_problem(first(tmp_path, X2), "unreadable", "breaks off")


def test_checkpoints_and_files_of_macos_are_left_out(tmp_path):
    put(tmp_path / "ada" / ".ipynb_checkpoints" / f"{X1.name}-checkpoint.ipynb", text())
    put(tmp_path / "ada" / f"._{NAME}", b"\0\5\x16\7")
    members = {f"__MACOSX/._{NAME}": b"\0", ".ipynb_checkpoints/a.ipynb": text()}
    put(tmp_path / "ada" / "a.zip", zipped(members))
    assert_problem(first(tmp_path), "missing", "no notebook in the folder")


def test_another_exercise_under_the_name_counts_for_the_other(tmp_path):
    put(tmp_path / "ada" / NAME, text(X2))
    assert_whole(first(tmp_path, X2), [f"{NAME}, which contains {X2.name} under the name of another notebook"])
    assert_problem(first(tmp_path), "missing", f"{NAME} contains {X2.name}")


@pytest.mark.parametrize("source", EXERCISES, ids=lambda source: source.exercise)
@pytest.mark.parametrize("other", EXERCISES, ids=lambda source: source.exercise)
def test_content_tells_the_exercises_apart_whatever_the_name(tmp_path, source, other):
    put(tmp_path / "ada" / f"{other.name}.ipynb", text(source))
    put(tmp_path / "ben" / "x.ipynb", text(source, solved=False))
    for each in EXERCISES:
        assert (first(tmp_path, each).problem is None) == (each == source)
        assert (first(tmp_path, each, "ben").problem is None) == (each == source)


def test_shared_names_do_not_confuse(tmp_path):
    raw = notebook(X2)
    raw["cells"] = [cell_of(raw, "step")]  # x1 has a cell of this name, too
    put(tmp_path / "ada" / "a.ipynb", json.dumps(raw))
    hand_in = first(tmp_path, X2)
    assert list(hand_in.answers) == ["step"]
    assert hand_in.flags == [f"{n}: the answer cell is missing." for n in ("scaled", "epoch")]
    assert_problem(first(tmp_path), "missing")


def test_a_notebook_of_a_lab_is_no_hand_in(tmp_path):
    for lab in [source for source in sources() if not source.graded]:
        put(tmp_path / "ada" / "work" / f"{lab.name}.ipynb", text(lab))
    put(tmp_path / "ada" / "mine.ipynb", json.dumps({"cells": [], "nbformat": 4}))
    for source in EXERCISES:
        assert_problem(first(tmp_path, source), "missing", "mine.ipynb (no notebook of the course)", "00_start_here")


def test_other_files_are_named_in_the_reason(tmp_path):
    put(tmp_path / "ada" / "answers.py", "x")
    put(tmp_path / "ada" / "work.rar", "x")
    assert_problem(first(tmp_path), "missing", "answers.py, work.rar")
