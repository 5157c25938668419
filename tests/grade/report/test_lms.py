"""Grades for Canvas and Moodle, and the roster that says who is who."""

import csv
from io import StringIO

from helpers.__main__ import main
from helpers.course.grade.report.lms import canvas, moodle
from helpers.course.grade.report.roster import Person

import pytest

from ..results import GRADED, TOO_LARGE, missing, result

CLASS = [
    result("ada"),
    result("ben", missed={"scale_grows": TOO_LARGE}, status="crashed"),
    result("cem", missed={"scale_grows": TOO_LARGE}, status="partly (timeout)"),
    result("dan", status="needs review"),
    missing("eve"),
    missing("fay", status="unreadable"),
    missing("gus", status="needs review"),
    result("ada", source=GRADED[1], missed={"one_micro_batch_at_a_time": TOO_LARGE}),
]
ROSTER = {"ada": Person("ada", "Lovelace, Ada", "0042", "ada@example.org"), "eve": Person("eve", "Eve", "7", "")}


def test_canvas_finds_its_columns_and_only_what_was_graded_has_a_grade():
    header, possible, *students = csv.reader(StringIO(canvas(CLASS, {})))
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "X1", "X2"]
    assert "Points Possible" in possible[0]
    assert possible[1:] == ["", "", "", "", "10", "10"]
    assert [(row[0], *row[5:]) for row in students] == [
        ("ada", "10", "9"),
        ("ben", "9", ""),
        ("cem", "9", ""),
        ("dan", "10", ""),
        ("eve", "", ""),
        ("fay", "", ""),
        ("gus", "", ""),
    ]
    assert all(row[:5] == [row[0], "", "", row[0], ""] for row in students)


def test_canvas_takes_names_and_numbers_from_the_roster():
    rows = list(csv.reader(StringIO(canvas(CLASS, ROSTER))))
    assert rows[2][:5] == ["Lovelace, Ada", "", "0042", "ada@example.org", ""]
    assert rows[3][:5] == ["ben", "", "", "ben", ""]


def test_canvas_gets_its_own_number_back():
    rows = list(csv.reader(StringIO(canvas([result("ada", canvas="lovelaceada_LATE_12_345"), result("ben")], ROSTER))))
    assert [row[:3] for row in rows[2:]] == [["Lovelace, Ada", "12", "0042"], ["ben", "", ""]]


def test_no_student_sets_what_canvas_thinks_an_exercise_is_worth():
    rows = list(csv.reader(StringIO(canvas([result("Points Possible")], {}))))
    assert ["Points Possible" in row[0] for row in rows] == [False, True, False]


def test_moodle_gets_only_students_it_can_find():
    rows = list(csv.reader(StringIO(moodle(CLASS, {}))))
    assert rows[0] == ["Full name", "Username", "ID number", "Email address", "X1", "X2"]
    assert rows[1] == ["ada", "ada", "", "", "10", "9"]
    assert rows[5] == ["eve", "eve", "", "", "", ""]
    assert list(csv.reader(StringIO(moodle(CLASS, ROSTER))))[1:] == [
        ["Lovelace, Ada", "", "0042", "ada@example.org", "10", "9"],
        ["Eve", "", "7", "", "", ""],
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"folder,name\nada,Ada\n", "lacks id, email"),
        (b"", "lacks folder, name, id, email"),
        (b"folder,name,id,email\nada,A,1,a\nada,B,2,b\n", "'ada' twice, again in line 3"),
        (b"folder,name,id,email\n,A,1,a\n", "has no folder name in line 2"),
        (b"folder,name,id,email\nad\xe9,A,1,a\n", "is not CSV in UTF-8"),
        (b'folder,name,id,email\n"ada,A,1,a\n', "is not CSV in UTF-8"),
    ],
)
def test_a_bad_roster_is_one_line(tmp_path, capsys, content, words):
    (tmp_path / "class" / "ada").mkdir(parents=True)
    path = tmp_path / "roster.csv"
    if content is not None:
        path.write_bytes(content)
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--roster", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
