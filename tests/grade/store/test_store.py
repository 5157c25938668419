"""Finished results stand: only what is new or has changed is run again."""

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.__main__ import main
from helpers.course.grade import bench, grade, grading
from helpers.course.grade.run.execute import Run

import pytest

from ..results import X1, hand_in, result, rows_of


@pytest.fixture
def graders(tmp_path, monkeypatch):
    """A class of three with one exercise, a runner that runs nothing, and the list of those it was asked to run."""
    ran = []

    def run(hand_in, seed, *rest):
        ran.append(hand_in.student)
        return Run({}, True, seconds=1.0)

    monkeypatch.setattr(grading, "graded_sources", lambda: [X1])
    monkeypatch.setattr(bench, "expected_evidence", lambda *args: {})
    monkeypatch.setattr(bench, "run_hand_in", run)
    monkeypatch.setattr(bench, "grade_run", lambda hand_in, *rest: result(hand_in.student, answers=hand_in.answers))
    for name in ("ada", "ben", "cem"):
        hand_in(tmp_path, name)
    (tmp_path / "class" / "eve").mkdir()
    return ran


def again(tmp_path, ran, **settings):
    """Grade; return who was run and the seed."""
    ran.clear()
    grade(tmp_path / "class", tmp_path / "out", **settings)
    run = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))
    rows = rows_of((tmp_path / "out" / "gradebook.csv").read_text(encoding="utf-8"))
    assert [row["student"] for row in rows] == ["ada", "ben", "cem", "eve"]
    assert {row["seed"] for row in rows} == {str(run["seed"])}
    return sorted(ran), run["seed"]


def test_a_reference_runs_once_for_its_conditions(tmp_path, graders, monkeypatch, capsys):
    asked = []

    def expected(source, conditions, servers, seconds):
        asked.append(source.exercise)
        seconds[source.exercise] = 14.0
        return {"scaler_check": {"scale_grows": {"scales": [1.0, float("inf")]}}}

    seen = []
    monkeypatch.setattr(bench, "expected_evidence", expected)
    monkeypatch.setattr(
        bench, "grade_run", lambda hand_in, run, e: seen.append(e) or result(hand_in.student, answers=hand_in.answers)
    )
    again(tmp_path, graders, seed=5)
    assert asked == ["x1"]
    capsys.readouterr()
    hand_in(tmp_path, "ada", " changed")
    assert again(tmp_path, graders) == (["ada"], 5)
    assert asked == ["x1"]
    assert "reference answers" not in capsys.readouterr().out
    assert seen[-1] == seen[0]
    again(tmp_path, graders, seed=6)
    assert asked == ["x1"] * 2
    newest = max((tmp_path / "out" / "references").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    newest.write_text(newest.read_text().replace("14.0", "15.0"))  # damaged
    again(tmp_path, graders, regrade="ada")
    assert asked == ["x1"] * 3
    again(tmp_path, graders, seed=6, fresh=True)
    assert asked == ["x1"] * 4


def test_only_what_is_new_or_changed_is_run(tmp_path, graders, capsys):
    everybody, seed = again(tmp_path, graders)
    assert everybody == ["ada", "ben", "cem"]
    assert again(tmp_path, graders) == ([], seed)
    assert "Submissions that have not changed keep their results: 3." in capsys.readouterr().out
    hand_in(tmp_path, "ben", " changed")
    assert again(tmp_path, graders) == (["ben"], seed)
    assert again(tmp_path, graders, regrade="[ac]*") == (["ada", "cem"], seed)
    rows = rows_of((tmp_path / "out" / "history.csv").read_text(encoding="utf-8"))
    told = [(row["student"], row["why"]) for row in rows]
    assert told[0] == ("ben", "resubmitted")
    assert sorted(told[1:]) == [("ada", "graded again"), ("cem", "graded again")]
    assert again(tmp_path, graders, timeout=121) == (everybody, seed)
    assert (
        "Running everything again, because the conditions have changed: --timeout is 121, was 120."
        in capsys.readouterr().out
    )
    assert again(tmp_path, graders, seed=seed + 1, timeout=121) == (everybody, seed + 1)
    assert f"the seed is {seed + 1}, was {seed}" in capsys.readouterr().out
    assert again(tmp_path, graders, timeout=121) == ([], seed + 1)
    ran, drawn = again(tmp_path, graders, timeout=121, fresh=True)
    assert ran == everybody
    assert drawn != seed + 1


def test_another_version_of_the_course_grades_anew(tmp_path, graders, monkeypatch, capsys):
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
    with monkeypatch.context() as patch:
        patch.setattr(bench, "grade_run", lambda *args: 1 / 0)
        again(tmp_path, graders)
    assert len(again(tmp_path, graders)[0]) == 3


def test_output_folders_that_will_not_do_are_one_line(tmp_path, graders, capsys):
    (tmp_path / "file").touch()
    cases = [
        (tmp_path / "file", "cannot be written"),
        (tmp_path / "file" / "below", "cannot be written"),
        (tmp_path / "class", "is inside the folder of the submissions"),
        (tmp_path / "class" / "ada" / "out", "is inside the folder of the submissions"),
    ]
    if os.path.isdir("/proc/self"):
        cases.append((Path("/proc/grades"), "cannot be written"))
    for out, words in cases:
        assert main(["grade", str(tmp_path / "class"), "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
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
        assert f"Another grader (process {other.pid}) is working" in capsys.readouterr().err
        assert graders == []
    finally:
        other.kill()
        other.communicate()
    assert again(tmp_path, graders)[1] == 5, "the seed of the run that died stands"
