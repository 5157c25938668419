"""A run that is killed or interrupted leaves whole files, and the next one goes on from there."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

from helpers.course.grade.options import GradeError, GradingOptions

import pytest

from .results import hand_in, rows_of

# A grader whose submissions run nothing, or a child that would sleep for long; points come from name and seed.
FAKE = """
import signal, subprocess, sys, time, zlib
from helpers.course.grade import bench, grading
from helpers.__main__ import main
from helpers.course.grade.judge.result import Result, parts_of
from helpers.course.grade.run.execute import Run
from helpers.exercises.base import Outcome, Verdict

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
            outcome, why = (Outcome.PASSED, None) if points else (Outcome.MISSED, "Missed.")
            verdicts.append(Verdict(check.name(), check.rule(), points, 1, outcome, why, check.hint))
    return Result(hand_in.student, "x1", "graded", "", verdicts, hand_in.answers, hand_in.flags, run.seconds)

x1 = [s for s in grading.graded_sources() if s.exercise == "x1"]
grading.graded_sources = lambda: x1
bench.expected_evidence = lambda *args: {}
bench.run_hand_in = run
bench.grade_run = graded
def start():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on "ignore"
    print("ready", flush=True)
    sys.exit(main(["grade", *sys.argv[1:]]))
"""

# Imports once, then forks a grader for each line it reads: seconds until it is killed, or 0, and its words.
FORKS = (
    FAKE
    + """
import json, os
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


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_slices_put_together_give_the_gradebook_of_one_machine(tmp_path):
    for n in range(7):
        hand_in(tmp_path, f"student {n}")
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:

        def run(where, *options):
            words = [str(tmp_path / "class"), "--out", str(tmp_path / where), "--seed", "99", *options]
            forks.stdin.write(json.dumps([0, words]) + "\n")
            forks.stdin.flush()
            assert json.loads(forks.stdout.readline())[0] == 0
            return rows_of((tmp_path / where / "gradebook.csv").read_text(encoding="utf-8"))

        whole = run("whole")
        parts = [run(f"part{n}", "--slice", f"{n}/3") for n in (1, 2, 3)]
        assert sorted(row["student"] for part in parts for row in part) == [row["student"] for row in whole]
        for n in (1, 2, 3):
            shutil.copytree(tmp_path / f"part{n}" / "results", tmp_path / "all" / "results", dirs_exist_ok=True)
        stored = set((tmp_path / "all" / "results").iterdir())
        assert run("all") == whole
        assert set((tmp_path / "all" / "results").iterdir()) == stored
        forks.stdin.close()


@pytest.mark.parametrize(
    ("options", "words"), [({"slice": (5, 4), "seed": 1}, "5/4"), ({"slice": (1, 4)}, "needs --seed")]
)
def test_a_slice_that_is_none_is_refused_in_one_line(options, words):
    with pytest.raises(GradeError, match=words):
        GradingOptions(**options)


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
    (tmp_path / "class" / "student 99").mkdir()  # nothing was submitted, so it is counted nowhere
    out = tmp_path / "out"
    process = start(tmp_path / "class", "--out", out, "--jobs", "2", "--seed", "4")
    begin = time.perf_counter()
    while len(list(out.glob("results/x1-*.json"))) < 2 and time.perf_counter() - begin < 60:
        time.sleep(0.1)
    import psutil

    children = psutil.Process(process.pid).children(recursive=True)
    children = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]  # Python's own
    assert len(children) == 1
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == (
        "Interrupted; 2 of 3 submissions are graded and written. "
        "The same command (without --fresh) continues from there.\n"
    )
    assert psutil.wait_procs(children, timeout=5)[1] == []
    rows = rows_of((out / "gradebook.csv").read_text(encoding="utf-8"))
    assert [row["student"] for row in rows] == ["student 00", "student 02", "student 99"]
    assert "the run was interrupted, and 1 of 4 results are still missing" in (out / "class.html").read_text(
        encoding="utf-8"
    )
    hand_in(tmp_path, "student 01")
    process = start(tmp_path / "class", "--out", out)
    text, _ = process.communicate()
    assert process.returncode == 0
    assert "Submissions that have not changed keep their results: 2. Submissions to run: 1." in text
    assert "[3/3] student 01 x1" in text
    rows = rows_of((out / "gradebook.csv").read_text(encoding="utf-8"))
    assert [(row["student"], row["seed"]) for row in rows] == [(f"student {n:02}", "4") for n in (0, 1, 2, 99)]
