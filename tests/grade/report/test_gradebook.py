"""The gradebook: every point, and nothing that a spreadsheet would run."""

import csv
from dataclasses import replace
from io import StringIO

from helpers.course.grade.report.gradebook import gradebook
from helpers.course.grade.report.sheet import sheet
from helpers.exercises.base import Outcome
from helpers.exercises.checking import NOT_ATTEMPTED_YET

import pytest

from ..results import CONDITIONS, TOO_LARGE, missing, result, rows_of


def test_the_gradebook_has_every_point_and_where_it_came_from():
    flags = ["touches sys.modules", "answers in two cells"]
    first, second = rows_of(
        gradebook([result(missed={"scale_grows": TOO_LARGE}, flags=flags), missing("ben")], CONDITIONS)
    )
    assert (first["student"], first["exercise"], first["status"]) == ("ada", "x1", "graded")
    assert (first["total"], first["max"], first["x1.scale_grows"], first["x1.steps_in_a_row"]) == ("9", "10", "0", "1")
    assert first["flags"] == "touches sys.modules; answers in two cells"
    assert (first["seed"], first["seconds"], first["course version"]) == ("11", "12.3", "1.2+abc")
    assert first["sandbox"] == "yes"
    (alone,) = rows_of(gradebook([result()], replace(CONDITIONS, sandbox=False)))
    assert "untrusted" in alone["sandbox"]
    assert (second["status"], second["reason"]) == ("missing", "03b_x1_amp_cnn.ipynb was not submitted; no notebook.")
    assert second["total"] == second["x1.scale_grows"] == ""  # no grade, as in the files for learning platforms


def test_a_part_that_was_not_attempted_has_no_points_and_is_named():
    blank = {"scale_grows": (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET), "memory_falls": TOO_LARGE}
    (row,) = rows_of(gradebook([result(missed=blank)], CONDITIONS))
    assert (row["x1.scale_grows"], row["x1.memory_falls"], row["not attempted"]) == ("0", "0", "scale_grows")


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\r=1", "\n-2", "\tx", "\ufeff=1", "＝1"]
)
def test_spreadsheets_get_no_formulas(text):
    assert next(csv.reader(StringIO(sheet([[text, -1]]), newline=""))) == [f"'{text}", "-1"]
    (row,) = rows_of(gradebook([result(student=text, reason=text, flags=[text])], CONDITIONS))
    assert row["student"][0] == row["reason"][0] == row["flags"][0] == "'"


def test_other_words_stay_as_they_are():
    words = ["Ada", "O'Brien", "a, b", 'say "x"', "x=1", "3-2", "李雷", "two\nlines", ""]
    assert next(csv.reader(StringIO(sheet([words]), newline=""))) == words
    assert sheet([["a\0b\x1b[31m"]]) == "a\\x00b\\x1b[31m\r\n"
