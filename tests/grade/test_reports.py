"""What a grading run leaves behind: gradebook, pages and exports, and the results that the next run takes up."""

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

from helpers.__main__ import main
from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.grade import grade
from helpers.course.grade.intake.hand_in import HandIn, reference_hand_in
from helpers.course.grade.judge.result import Result, not_run, parts_of
from helpers.course.grade.report.class_page import class_page
from helpers.course.grade.report.exports import junit, results_json
from helpers.course.grade.report.feedback import feedback, page_name
from helpers.course.grade.report.gradebook import gradebook
from helpers.course.grade.report.live import Live
from helpers.course.grade.report.lms import canvas, moodle
from helpers.course.grade.report.report import Report
from helpers.course.grade.report.resemblance import ALIKE, Pair, resembling_pairs, words
from helpers.course.grade.report.roster import Person
from helpers.course.grade.report.sheet import sheet
from helpers.course.grade.run.run import Run
from helpers.course.grade.store.conditions import Conditions, course_version
from helpers.exercises.base import Verdict
from helpers.exercises.checking import NOT_ATTEMPTED_YET

import pytest
from rich.console import Console

from ..mutants import x1, x2, x3, x4

GRADED = [source for source in sources() if source.graded]
X1 = GRADED[0]
CONDITIONS = Conditions(seed=11, course="1.2+abc", timeout=60.0, sandbox=True)
TOO_LARGE = "The gradient is 4.0x too large, expected 1.0: was the loss divided?"


def stubs(source):
    cells = make_notebook(source, solved=False).cells
    return {c.id: c.source for c in cells if c.metadata.get("nbgrader", {}).get("solution")}


def result(student="ada", source=X1, missed=(), status="graded", reason="As an example.", flags=(), answers=None):
    """A result with all points but those of `missed`, a map from check to diagnosis."""
    missed = dict(missed)
    checks = [check for part in parts_of(HandIn(student, source)).values() for check in part.checks]
    verdicts = [
        Verdict(c.name(), c.rule(), 0 if c.name() in missed else c.points, c.points, missed.get(c.name()), c.hint)
        for c in checks
    ]
    answers = stubs(source) if answers is None else answers
    return Result(student, source.exercise, status, reason, verdicts, answers, list(flags), 12.3)


def missing(student="ada", source=X1, status="missing", reason="03_x1_amp_cnn.ipynb was not handed in; no notebook."):
    return not_run(HandIn(student, source, {}, (status, reason)))


def rows_of(text):
    return list(csv.DictReader(StringIO(text)))


# -- gradebook --------------------------------------------------------------------------------------------------


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
    assert (second["status"], second["reason"]) == ("missing", "03_x1_amp_cnn.ipynb was not handed in; no notebook.")


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


def test_the_course_version_tells_sources_apart(tmp_path):
    for folder in ("solutions", "helpers"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_bytes(b"x = 1\n")
    before = course_version(tmp_path)
    course_version.cache_clear()
    (tmp_path / "solutions" / "a.py").write_bytes(b"x = 1\r\n")
    assert course_version(tmp_path) == before
    course_version.cache_clear()
    (tmp_path / "solutions" / "a.py").write_bytes(b"x = 2\n")
    assert course_version(tmp_path) != before
    assert re.fullmatch(r"[\d.]+\+[0-9a-f]{8}", course_version())


# -- learning platforms -----------------------------------------------------------------------------------------

CLASS = [
    result("ada"),
    result("ben", missed={"scale_grows": TOO_LARGE}, status="crashed"),
    result("cem", missed={"scale_grows": TOO_LARGE}, status="partly (timeout)"),
    result("dan", status="needs review"),
    missing("eve"),
    missing("fay", status="unreadable"),
    missing("gus", status="needs review"),
    result("ada", source=GRADED[1], missed={"one_step_of_micro_batches": TOO_LARGE}),
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
        (b"folder,name,id,email\n,A,1,a\n", "names no folder in line 2"),
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


# -- for programs -----------------------------------------------------------------------------------------------

ODD = "caf\udce9 \x00\x0b\x1b[31m\ufffe <b>&\"' 李 \U0001f600"


def test_json_holds_everything_but_the_answers():
    found = json.loads(results_json([result(ODD, missed={"scale_grows": ODD}, flags=["f"])], CONDITIONS))
    (entry,) = found["results"]
    assert (found["seed"], found["course"], entry["student"], entry["flags"]) == (11, "1.2+abc", ODD, ["f"])
    assert (entry["total"], entry["maximum"], "answers" in entry) == (9, 10, False)
    assert [v["diagnosis"] for v in entry["verdicts"] if not v["points"]] == [ODD]


def test_junit_tells_failures_errors_and_skips_apart():
    wrong = {"scale_grows": TOO_LARGE}
    results = [result(ODD, missed={"scale_grows": ODD}), result("ben", missed=wrong, status="crashed"), missing("eve")]
    suites = ElementTree.fromstring(junit(results, CONDITIONS).encode())
    counts = [tuple(int(s.get(k)) for k in ("tests", "failures", "errors", "skipped")) for s in suites]
    assert counts == [(10, 1, 0, 0), (10, 0, 1, 0), (10, 0, 0, 10)]
    assert suites[1].find(".//error").get("message") == TOO_LARGE
    assert "not handed in" in suites[2].find(".//skipped").get("message")
    assert suites[0].find(".//failure").get("message").startswith(r"caf\udce9 \x00\x0b\x1b[31m\ufffe <b>&")
    assert {p.get("name"): p.get("value") for p in suites[1].find("properties")}["course version"] == "1.2+abc"


# -- pages ------------------------------------------------------------------------------------------------------


def page(*results):
    return feedback(results[0].student, list(results), CONDITIONS)


def test_a_page_says_what_was_expected_what_came_and_shows_the_code_beside():
    code = {**stubs(X1), "scaler": "class Mine:\n    '''my own scaler'''"}
    text = page(result(missed={"scale_grows": TOO_LARGE}, answers=code))
    assert "9 of 10 points" in text
    assert text.index(TOO_LARGE) < text.index("After growth_interval good steps in a row") < text.index("my own scaler")
    assert "X1 · Train a CNN in mixed precision" in text
    assert "Part 1 · A dynamic loss scaler" in text
    assert "Ask your instructor for a review" in text
    assert "ran for 12 s" in text


def test_one_reason_for_many_checks_is_said_once():
    checks = [v.check for v in result().verdicts]
    assert page(missing()).count("was not handed in; no notebook") == 1
    assert "Must hold" not in page(missing())
    died = page(result(missed=dict.fromkeys(checks, "Did not run: the kernel died"), status="crashed"))
    assert died.count("Did not run: the kernel died") == 3  # once a part
    assert died.count("Must hold") == 10
    untouched = page(result(missed=dict.fromkeys(checks, NOT_ATTEMPTED_YET)))
    assert untouched.count(NOT_ATTEMPTED_YET) == 3
    assert "Hint" not in untouched


def test_pages_take_nothing_for_markup_and_load_nothing():
    evil = "<script>alert(1)</script>\"'><img src=x>{{ 7*7 }}"
    code = dict.fromkeys(stubs(X1), evil)
    results = [result(evil, missed={"scale_grows": evil}, reason=evil, flags=[evil], answers=code, status="crashed")]
    pairs = [Pair("x1", evil, evil, 1.0)]
    for text in (feedback(evil, results, CONDITIONS), class_page(results, pairs, CONDITIONS, 1)):
        assert "<script" not in text
        assert "<img" not in text
        assert "&lt;script&gt;" in text
        assert "49" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
        assert "default-src 'none'" in text


def test_a_page_shows_no_solution_no_flags_and_no_endless_code():
    solution = make_notebook(X1, solved=True)
    lines = {line.strip() for cell in solution.cells if cell.cell_type == "code" for line in cell.source.splitlines()}
    given = {line.strip() for cell in make_notebook(X1, solved=False).cells for line in cell.source.splitlines()}
    checks = [v.check for v in result().verdicts]
    text = page(result(missed=dict.fromkeys(checks, TOO_LARGE), flags=["touches sys.modules"]))
    shown = "\n".join([*given, *(v.hint for v in result().verdicts)])  # what the notebook shows anyway
    assert [line for line in lines if len(line) > 15 and line in text and line not in shown] == []
    assert "sys.modules" not in text
    assert len(page(result(answers={"scaler": "x" * 1_000_000}))) < 100_000


def test_page_names_are_safe_and_different():
    names = [
        "x" * 250,
        "李" * 84,
        "caf\udce9",
        "Ada Lovelace",
        "ada lovelace",
        "../../etc",
        "a/b",
        "a:b",
        "李雷",
        "O'Brien",
    ]
    names += ["", "CON?", "con", "nul", "Ada", "ada", "ADA", ".html", "-", "__"]
    names += [page_name(name).removesuffix(".html") for name in names]  # somebody may be called like another's page
    pages = [page_name(name) for name in dict.fromkeys(names)]
    assert len({page.lower() for page in pages}) == len(pages), "also where Ada.html and ada.html are one file"
    assert all(len(page.encode()) < 120 for page in pages)
    assert all(re.fullmatch(r"[\w-]+\.html", page, flags=re.ASCII) for page in pages)
    assert not {"con.html", "nul.html"} & set(pages)
    assert page_name("ada") == "ada.html"


def test_the_class_page_sums_up(tmp_path):
    wrong = [
        result(f"s{n}", missed={"scale_grows": f"The gradient is {n}.5x too large", "memory_falls": "Too much."})
        for n in range(3)
    ]
    wrong[0].verdicts[2] = Verdict("scale_grows", "rule", 0, 1, "Something else.", "hint")
    results = [*wrong, result("zoe", flags=["touches sys.modules"]), missing("eve")]
    Report(tmp_path, CONDITIONS, planned=9).write(results)
    text = (tmp_path / "class.html").read_text(encoding="utf-8")
    assert "5 students, 5 hand-ins of 9: the run was interrupted" in text
    assert "graded: 4" in text
    assert "missing: 1" in text
    assert "The gradient is 1.5x too large" in text
    assert "Something else." not in text
    assert "touches sys.modules" in text
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', text)
    assert labels == [
        "Histogram of the points reached in X1, of 10: 3 with 8, 1 with 10.",
        "Bar chart of the checks missed in X1, of 4 hand-ins: scale_grows by 3, memory_falls by 3.",
    ]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "two figures on one page must not share names"
    links = re.findall(r'href="([^"#]+)', text)
    assert all((tmp_path / link).exists() for link in links if not link.startswith("#"))
    assert len([link for link in links if link.startswith("feedback/")]) == 5


# -- hand-ins that resemble each other --------------------------------------------------------------------------


def solved(source):
    return reference_hand_in(source).answers


def disguised(code):
    """The same code with other names, other layout, comments and type hints in strings."""
    own = set(re.findall(r"\b(?:def|class) (\w+)|(?:^|[^.\w])(\w+) = ", code)[0]) | {
        "loss", "model", "optimizer", "images", "labels", "gradient", "gradients", "parameters", "group", "x", "y", "p",
        "step", "batch", "order", "data", "total", "loader", "seen", "rows", "totals", "inner", "mine", "logits",
    }  # fmt: skip
    for n, name in enumerate(sorted(own - {""})):
        code = re.sub(rf"(?<![.\w]){name}\b(?!=)", f"v{n}", code)
    lines = [f"{line}  # {n}" if line.strip() and not line.rstrip().endswith("\\") else line
             for n, line in enumerate(code.splitlines())]  # fmt: skip
    return '"""My very own."""\n' + "\n\n".join(lines).replace("    ", "   ")


def pairs_of(source, hand_ins):
    return resembling_pairs(source.exercise, hand_ins, stubs(source).values(), solved(source).values())


@pytest.mark.parametrize(
    ("source", "answers"), list(zip(GRADED, (x1, x2, x3, x4), strict=True)), ids=lambda v: getattr(v, "name", "")
)
def test_right_answers_written_differently_are_no_pair_and_copies_are(source, answers):
    written = [(name, {"all": code}) for name, code in answers.RIGHT.items()]
    assert pairs_of(source, written) == []
    for name, code in answers.RIGHT.items():
        copy = disguised(code)
        assert words(copy)[:40] != []
        (pair,) = pairs_of(source, [*written, ("copy", {"all": copy})])
        assert {pair.first, pair.second} == {name, "copy"}
        padded = copy + "\n\ndef unused(a, b):\n    return [a + i * b for i in range(9) if a]\n" * 10
        (pair,) = pairs_of(source, [*written, ("padded", {"all": padded})])
        assert {pair.first, pair.second} == {name, "padded"}


@pytest.mark.parametrize("source", GRADED, ids=lambda s: s.exercise)
def test_the_published_solution_is_known_again(source):
    copy = {name: disguised(code) for name, code in solved(source).items()}
    found = pairs_of(source, [("ada", copy), ("ben", solved(source)), ("eve", stubs(source))])
    assert {(pair.first, pair.second) for pair in found} == {("ada", None), ("ben", None)}
    assert all(pair.share >= ALIKE for pair in found)


def test_stubs_and_short_answers_are_not_compared():
    short = {"scaler": "def f(x):\n    return x + 1\n"}
    assert pairs_of(X1, [("a", stubs(X1)), ("b", stubs(X1)), ("c", short), ("d", short), ("e", {})]) == []


def test_thirty_students_are_compared_within_seconds_whatever_they_wrote():
    nasty = ['"\\' * 40_000, "'''" + 'a\\"' * 40_000, '"""' * 40_000, "(" * 90_000, "rb'" * 30_000, "1." * 50_000]
    hand_ins = [(f"s{n}", {"all": list(x2.RIGHT.values())[n % 2]}) for n in range(24)]
    hand_ins += [(f"n{n}", {"all": text}) for n, text in enumerate(nasty)]
    begin = time.perf_counter()
    assert len(pairs_of(GRADED[1], hand_ins)) == 2 * 12 * 11 // 2
    assert time.perf_counter() - begin < 10


def test_pairs_become_flags_in_the_final_gradebook(tmp_path):
    code = next(iter(x1.RIGHT.values()))
    results = [result(name, answers={"scaler": code}) for name in ("ada", "ben", "cem", "dan", "eve")]
    results.append(result("zoe", answers=solved(X1), flags=["f"]))
    Report(tmp_path, CONDITIONS, planned=6).write(results)
    rows = {row["student"]: row["flags"] for row in rows_of((tmp_path / "gradebook.csv").read_text(encoding="utf-8"))}
    assert rows["ada"] == "resembles ben (100%), cem (100%), dan (100%) and 1 more"
    assert rows["zoe"] == "f; resembles the published solution (100%)"
    assert results[0].flags == []


# -- results that stand -----------------------------------------------------------------------------------------


@pytest.fixture
def graders(tmp_path, monkeypatch):
    """A class of three with one exercise, a runner that runs nothing, and the list of those it was asked to run."""
    import helpers.course.grade as grading

    ran = []

    def run(hand_in, seed, *rest):
        ran.append(hand_in.student)
        return Run({}, True, seconds=1.0)

    monkeypatch.setattr(grading, "sources", lambda: [X1])
    monkeypatch.setattr(grading, "_expected", lambda *args: {})
    monkeypatch.setattr(grading, "run_hand_in", run)
    monkeypatch.setattr(grading, "grade_run", lambda hand_in, *rest: result(hand_in.student, answers=hand_in.answers))
    for name in ("ada", "ben", "cem"):
        hand_in(tmp_path, name)
    (tmp_path / "class" / "eve").mkdir()
    return ran


def hand_in(root, student, more="", source=X1):
    notebook = make_notebook(source, solved=True)
    cell = next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution"))
    cell.source += f"\n# {student}{more}"
    folder = root / "class" / student
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{source.name}.ipynb").write_text(write(notebook), encoding="utf-8")


def again(tmp_path, ran, **settings):
    """Grade; return who was run and the seed."""
    ran.clear()
    grade(tmp_path / "class", tmp_path / "out", **settings)
    kept = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    rows = rows_of((tmp_path / "out" / "gradebook.csv").read_text(encoding="utf-8"))
    assert [row["student"] for row in rows] == ["ada", "ben", "cem", "eve"]
    assert {row["seed"] for row in rows} == {str(kept["seed"])}
    return sorted(ran), kept["seed"]


def test_only_what_is_new_or_changed_is_run(tmp_path, graders, capsys):
    everybody, seed = again(tmp_path, graders)
    assert everybody == ["ada", "ben", "cem"]
    assert again(tmp_path, graders) == ([], seed)
    assert "3 hand-ins have not changed" in capsys.readouterr().out
    hand_in(tmp_path, "ben", " changed")
    assert again(tmp_path, graders) == (["ben"], seed)
    assert again(tmp_path, graders, regrade="[ac]*") == (["ada", "cem"], seed)
    assert again(tmp_path, graders, timeout=121) == (everybody, seed)
    assert "Everything is run again: --timeout is 121, was 120." in capsys.readouterr().out
    assert again(tmp_path, graders, seed=seed + 1, timeout=121) == (everybody, seed + 1)
    assert f"the seed is {seed + 1}, was {seed}" in capsys.readouterr().out
    assert again(tmp_path, graders, timeout=121) == ([], seed + 1)
    ran, drawn = again(tmp_path, graders, timeout=121, fresh=True)
    assert ran == everybody
    assert drawn != seed + 1


def test_another_version_of_the_course_grades_anew(tmp_path, graders, monkeypatch, capsys):
    import helpers.course.grade as grading

    again(tmp_path, graders)
    monkeypatch.setattr(grading, "course_version", lambda: "2+new")
    assert len(again(tmp_path, graders)[0]) == 3
    assert "the course's version is 2+new, was" in " ".join(capsys.readouterr().out.split())


def test_what_is_no_whole_result_is_passed_over(tmp_path, graders):
    _, seed = again(tmp_path, graders)
    results = sorted((tmp_path / "out" / "results").glob("*.json"))
    assert len(results) == 3
    text = results[0].read_text(encoding="utf-8")
    results[0].write_text(text[: len(text) // 2], encoding="utf-8")
    results[1].write_text("[" * 100_000, encoding="utf-8")
    results[2].write_text(text.replace('"points": 1', '"points": 9'), encoding="utf-8")
    (results[0].parent / "notes.txt").write_bytes(b"\xff")
    (results[0].parent / "x1-mine.json").write_text("{}")
    ran, now = again(tmp_path, graders)
    assert (len(ran), now) == (3, seed)
    (tmp_path / "out" / "run.json").write_text('{"seed": "x"')
    assert len(again(tmp_path, graders, seed=seed)[0]) == 0
    again(tmp_path, graders, fresh=True)
    assert (results[0].parent / "x1-mine.json").exists(), "only what the grader wrote is forgotten"


def test_a_hand_in_that_broke_the_grader_is_tried_again(tmp_path, graders, monkeypatch):
    import helpers.course.grade as grading

    with monkeypatch.context() as patch:
        patch.setattr(grading, "grade_run", lambda *args: 1 / 0)
        again(tmp_path, graders)
    assert len(again(tmp_path, graders)[0]) == 3


def test_output_folders_that_will_not_do_are_one_line(tmp_path, graders, capsys):
    (tmp_path / "file").touch()
    cases = [
        (tmp_path / "file", "cannot be written"),
        (tmp_path / "file" / "below", "cannot be written"),
        (tmp_path / "class", "lies in the folder of the hand-ins"),
        (tmp_path / "class" / "ada" / "out", "lies in the folder of the hand-ins"),
    ]
    if os.path.isdir("/proc/self"):
        cases.append((Path("/proc/grades"), "cannot be written"))
    for out, said in cases:
        assert main(["grade", str(tmp_path / "class"), "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert sorted(p.name for p in (tmp_path / "class").iterdir()) == ["ada", "ben", "cem", "eve"]
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "o"), "--regrade", "zoe"]) == 2
    assert "No student's name matches" in capsys.readouterr().err


HOLD = """
import sys, time
from pathlib import Path
from helpers.course.grade.store.conditions import Conditions
from helpers.course.grade.store.store import open_store
with open_store(Path(sys.argv[1]), Path(sys.argv[2])) as store:
    store.begin(Conditions(5, "x", 1.0, False))
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_graders_do_not_share_a_folder_and_a_dead_one_does_not_hold_it(tmp_path, graders, capsys):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out"), str(tmp_path / "class")]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]) == 2
        assert f"Another grader (process {other.pid}) is at work" in capsys.readouterr().err
        assert graders == []
    finally:
        other.kill()
        other.communicate()
    assert again(tmp_path, graders)[1] == 5, "the seed of the run that died stands"


def test_a_bar_on_a_terminal_and_lines_elsewhere():
    for terminal in (True, False):
        text = StringIO()
        with Live(Console(file=text, force_terminal=terminal, width=100), done=1, total=2) as live:
            live.begin("[red]ada", "x1")
            if terminal:
                live._bar.refresh()
            live.end(result("[red]ada"))
        assert "[red]ada x1" in text.getvalue()
        assert ("2/2" in text.getvalue()) == terminal or text.getvalue() == "[2/2] [red]ada x1: 10 of 10, graded\n"


# -- interrupted ------------------------------------------------------------------------------------------------

# A grader whose hand-ins run nothing, or a child that would sleep for long; points come from name and seed.
FAKE = """
import subprocess, sys, time, zlib
import helpers.course.grade as grading
from helpers.__main__ import main
from helpers.course.grade.judge.result import Result, parts_of
from helpers.course.grade.run.run import Run
from helpers.exercises.base import Verdict

def run(hand_in, seed, *rest):
    if "SLEEP" in hand_in.answers["scaler"]:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(300)"])
    time.sleep(0.05)
    return Run({"seed": seed}, True, seconds=1.0)

def graded(hand_in, run, expected):
    verdicts = []
    for part in parts_of(hand_in).values():
        for check in part.checks:
            points = zlib.crc32(f"{hand_in.student} {check.name()} {run.records['seed']}".encode()) % 2
            verdicts.append(Verdict(check.name(), check.rule(), points, 1, None if points else "Missed.", check.hint))
    return Result(hand_in.student, "x1", "graded", "", verdicts, hand_in.answers, hand_in.flags, run.seconds)

x1 = [s for s in grading.sources() if s.exercise == "x1"]
grading.sources = lambda: x1
grading._expected = lambda *args: {}
grading.run_hand_in = run
grading.grade_run = graded
def start():
    print("ready", flush=True)
    sys.exit(main(["grade", *sys.argv[1:]]))
"""

# Imports once, then forks a grader for each line it reads: seconds until it is killed, or 0, and its words.
FORKS = (
    FAKE
    + """
import json, os, signal
for line in sys.stdin:
    moment, words = json.loads(line)
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(["grade", *words]))
    if moment:
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
    begin = time.perf_counter()
    status = os.waitpid(pid, 0)[1]
    print(json.dumps([os.waitstatus_to_exitcode(status), time.perf_counter() - begin]), flush=True)
"""
)


def start(*args):
    command = [sys.executable, "-c", f"{FAKE}start()", *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_at_any_moment_the_files_are_whole_and_a_rerun_finishes_them(tmp_path):
    for n in range(12):
        hand_in(tmp_path, f"student {n:02}")
    out, whole = tmp_path / "out", tmp_path / "whole"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORKS], **pipes) as forks:

        def run(moment, where, *options):
            forks.stdin.write(json.dumps([moment, [str(tmp_path / "class"), "--out", str(where), *options]]) + "\n")
            forks.stdin.flush()
            return json.loads(forks.stdout.readline())

        code, lasts = run(0, whole, "--seed", "99")
        assert code == 0
        rows = []
        for i in range(10):
            moment = random.uniform(0.01, lasts)
            stands = (out / "run.json").exists()  # then it goes on with the seed that stands
            options = ["--fresh", "--seed", "99"] if i == 5 else [] if stands else ["--seed", "99"]
            assert run(moment, out, *options)[0] in (-signal.SIGKILL, 0)
            rows.append(_all_whole(out))
        code, _ = run(0, out, *([] if (out / "run.json").exists() else ["--seed", "99"]))
        forks.stdin.close()
    assert code == 0, rows
    for name in ("gradebook.csv", "canvas.csv", "junit.xml"):
        text = [(folder / name).read_text(encoding="utf-8") for folder in (out, whole)]
        assert text[0] == text[1], (name, rows)


def _all_whole(out):
    """Assert that whatever stands in `out` is whole; return how many rows the gradebook has."""
    for path in [*out.glob("*.json"), *out.glob("results/*.json")]:
        json.loads(path.read_text(encoding="utf-8"))
    for path in [*out.glob("*.html"), *out.glob("feedback/*.html")]:
        assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    if not (out / "gradebook.csv").exists():
        return 0
    text = (out / "gradebook.csv").read_text(encoding="utf-8")
    assert text.endswith("\n")
    rows = rows_of(text)
    for row in rows:
        assert None not in row
        assert None not in row.values()
        points = [int(value) for check, value in row.items() if check.startswith("x1.")]
        assert (sum(points), len(points)) == (int(row["total"]), 10)
    return len(rows)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGINT to one process")
def test_interrupted_it_writes_what_is_done_says_how_to_go_on_and_leaves_nothing_running(tmp_path):
    for n in range(3):
        hand_in(tmp_path, f"student {n:02}", " SLEEP" if n == 1 else "")
    out = tmp_path / "out"
    process = start(tmp_path / "class", "--out", out, "--jobs", "2", "--seed", "4")
    begin = time.perf_counter()
    while len(list(out.glob("results/x1-*.json"))) < 2 and time.perf_counter() - begin < 60:
        time.sleep(0.1)
    import psutil

    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 1
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == (
        "Interrupted; 2 of 3 hand-ins are graded and written. The same command (without --fresh) goes on from there.\n"
    )
    assert psutil.wait_procs(children, timeout=5)[1] == []
    rows = rows_of((out / "gradebook.csv").read_text(encoding="utf-8"))
    assert [row["student"] for row in rows] == ["student 00", "student 02"]
    assert "2 hand-ins of 3: the run was interrupted" in (out / "class.html").read_text(encoding="utf-8")
    hand_in(tmp_path, "student 01")
    process = start(tmp_path / "class", "--out", out)
    text, _ = process.communicate()
    assert process.returncode == 0
    assert "2 hand-ins have not changed and keep their results; 1 are to be run" in text
    rows = rows_of((out / "gradebook.csv").read_text(encoding="utf-8"))
    assert [(row["student"], row["seed"]) for row in rows] == [(f"student {n:02}", "4") for n in range(3)]
