"""Which exercises are graded: those that were set, or those that somebody has submitted."""

import io
import sys

from helpers.__main__ import main
from helpers.course.grade import grading
from helpers.course.grade.options import GradeError, GradingOptions

import pytest
from rich.console import Console

from .intake.class_folder import EXERCISES, NAME, X2, put, text


def graded(folder, *exercise):
    settings = GradingOptions(exercise=exercise)
    return grading._hand_ins(folder, settings.set_exercises(EXERCISES), settings)


@pytest.fixture
def submissions(tmp_path):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada" / f"{X2.name}.ipynb", text(X2))
    put(tmp_path / "ben" / NAME, text())
    put(tmp_path / "eve" / "work.zip", b"no archive")  # could hold anything
    return tmp_path


def test_what_somebody_has_submitted_is_graded(submissions):
    assert [(h.student, h.source.exercise) for h in graded(submissions)] == [
        (student, exercise) for student in ("ada", "ben", "eve") for exercise in ("x1", "x2")
    ]


def test_what_was_set_is_graded_even_if_nobody_has_submitted_it(submissions):
    assert {h.source.exercise for h in graded(submissions, "X4", "x1")} == {"x1", "x4"}
    with pytest.raises(GradeError, match="no exercise 'x9': choose from x1, x2, x3, x4, x5, x6, x7"):
        graded(submissions, "x9")


def test_a_class_one_level_below_is_named(submissions, tmp_path_factory, capsys):
    graded(submissions)
    assert capsys.readouterr().out == ""
    parent = tmp_path_factory.mktemp("term")
    submissions.rename(parent / "week3")
    graded(parent)
    said = capsys.readouterr().out
    assert "Only one student was found, week3" in said
    assert f"grade {parent / 'week3'} instead" in said
    (parent / "week3" / "ben" / NAME).unlink()  # one student with two exercises in two folders
    graded(parent)
    assert capsys.readouterr().out == ""


def test_the_folder_of_one_student_is_recognized(tmp_path, capsys):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada" / "x2" / "work.ipynb", text(X2))
    graded(tmp_path)
    assert capsys.readouterr().out == ""
    assert {h.student for h in graded(tmp_path / "ada")} == {NAME, "x2"}
    said = capsys.readouterr().out
    assert f"Nothing in {tmp_path / 'ada'} has the name of a student" in said
    assert f"grade the folder above instead: {tmp_path}." in said
    put(tmp_path / "ada" / f"grace_{NAME}", text())  # as Canvas has it: now there is a student
    graded(tmp_path / "ada")
    assert capsys.readouterr().out == ""


def test_a_folder_without_a_graded_exercise_is_refused_and_nothing_is_written(tmp_path, capsys):
    folder, out = tmp_path / "docs", tmp_path / "out"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "step.svg").write_text("<svg/>", encoding="utf-8")
    assert main(["grade", str(folder), "--out", str(out)]) == 2
    said = f"No graded exercise was found in {folder}. Is it the folder that has one folder per student?\n"
    assert capsys.readouterr() == ("", said)
    assert not out.exists()
    assert [h.problem[0] for h in graded(folder, "x1")] == ["missing"]  # which exercise was set is known


def test_where_all_files_are_unreadable_every_exercise_is_graded(tmp_path):
    put(tmp_path / "eve" / "work.zip", b"no archive")
    assert [h.source.exercise for h in graded(tmp_path)] == ["x1", "x2", "x3", "x4", "x5", "x6", "x7"]


def test_the_first_line_says_what_will_be_graded(submissions):
    file = io.StringIO()
    grading._print_task(graded(submissions), Console(file=file))
    assert file.getvalue() == "3 students, 5 submissions for x1, x2; 1 not submitted.\n"


@pytest.mark.parametrize(
    ("folder", "options", "words"),
    [
        ("submisions", (), "is not a folder"),
        ("", ("--exercise", "x9"), "--exercise: there is no exercise 'x9': choose from x1, x2"),
        ("", ("--jobs", "0"), "--jobs must be at least 1"),
    ],
)
def test_mistyped_options_are_refused_before_anything_is_imported(
    tmp_path, monkeypatch, capsys, folder, options, words
):
    monkeypatch.setitem(sys.modules, "helpers.course.grade.grading", None)  # makes its import fail
    assert main(["grade", str(tmp_path / folder), "--out", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err
