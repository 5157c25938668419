"""A class on the workers of a Dask scheduler: nothing is lost, nothing is graded twice, whatever ends in between.

Workers are processes of this machine in which a hand-in runs nothing: points come from its name and the seed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

from helpers.course.grade import GradeError, grade, grading

import pytest

from .results import X1, hand_in, rows_of

pytest.importorskip("distributed", reason="needs Dask: pip install training-at-scale[cluster]")

# What a worker imports before it starts. Each run of a hand-in is a line in the file RAN, when it begins and ends.
PRELOAD = """
import json, os, time, zlib
from dataclasses import asdict
from helpers.course.grade import bench, cluster
from helpers.course.grade.judge.result import Result, parts_of
from helpers.course.grade.run.execute import Run
from helpers.exercises.base import Verdict

def note(word, student):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{word} {student}\\n")

def run(hand_in, seed, *rest):
    note("began", hand_in.student)
    time.sleep(float(os.environ.get("LASTS", "0.02")))
    return Run({"seed": seed}, True, seconds=1.0)

def graded(hand_in, run, expected):
    verdicts = []
    for part in parts_of(hand_in).values():
        for check in part.checks:
            points = zlib.crc32(f"{hand_in.student} {check.name()} {run.records['seed']}".encode()) % 2
            verdicts.append(Verdict(check.name(), check.rule(), points, 1, None if points else "Missed.", check.hint))
    note("ended", hand_in.student)
    return Result(hand_in.student, "x1", "graded", "", verdicts, hand_in.answers, hand_in.flags, run.seconds)

bench.expected_evidence = lambda *args: {}
bench.run_hand_in, bench.grade_run = run, graded
cluster._servers = lambda: None
KINDS = {"old": {"course": "0.1+old"}, "open": {"sandbox": False}, "": {"sandbox": True}}
if not hasattr(cluster, "really_about_worker"):  # Dask runs this file twice
    cluster.really_about_worker = cluster.about_worker
    cluster.about_worker = lambda: cluster.really_about_worker() | KINDS[os.environ.get("KIND", "")]
"""
START = "import sys; from distributed.cli.dask_{0} import main; sys.argv[0] = 'dask'; main()"


class LocalCluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder):
        self.folder, self.processes, self.ran = folder, [], folder / "ran"
        (folder / "preload.py").write_text(PRELOAD)
        self.ran.touch()
        self.file = folder / "scheduler.json"
        self.scheduler = self.start_scheduler(0)

    def start_scheduler(self, port):
        self.file.unlink(missing_ok=True)
        options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--scheduler-file", str(self.file)]
        scheduler = self._start("scheduler", options, {})
        while not self.file.exists():
            assert scheduler.poll() is None
            time.sleep(0.1)
        self.address = json.loads(self.file.read_text())["address"]
        return scheduler

    def worker(self, **environment):
        options = [self.address, "--host", "127.0.0.1", "--no-nanny", "--no-dashboard", "--nthreads", "1"]
        options += ["--local-directory", str(self.folder), "--preload", str(self.folder / "preload.py")]
        return self._start("worker", options, environment)

    def _start(self, kind, options, environment):
        log = (self.folder / f"{kind}{len(self.processes)}.log").open("w")
        environment = {**os.environ, "RAN": str(self.ran), **environment}
        command = [sys.executable, "-c", START.format(kind), *options]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        return self.processes[-1]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def runs(self, word="ended"):
        lines = [line.partition(" ") for line in self.ran.read_text().splitlines()]
        return Counter(student for what, _, student in lines if what == word)


@pytest.fixture
def cluster(tmp_path):
    made = LocalCluster(tmp_path)
    yield made
    made.end()


def a_class(tmp_path, count):
    for n in range(count):
        hand_in(tmp_path, f"student {n:04}")


def command(tmp_path, cluster, out, *more):
    """Start the command itself, which grades X1 alone."""
    code = "import sys; from helpers.course.grade import grading; from helpers.__main__ import main\n"
    code += "x1 = [s for s in grading.sources() if s.exercise == 'x1']; grading.sources = lambda: x1\n"
    code += "sys.exit(main(['grade', *sys.argv[1:]]))"
    words = [tmp_path / "class", "--out", out, "--seed", "5", "--cluster", cluster.address, *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **pipes)


def wait_for(condition, seconds=900):
    begin = time.perf_counter()
    while not condition():
        assert time.perf_counter() - begin < seconds
        time.sleep(0.1)


def gradebook(out):
    return (out / "gradebook.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_worker_and_the_command_are_killed_and_the_gradebook_is_the_same(tmp_path, cluster):
    a_class(tmp_path, 16)
    workers = [cluster.worker(LASTS="0.3") for _ in range(3)]
    whole = command(tmp_path, cluster, tmp_path / "whole")
    said, _ = whole.communicate(timeout=1500)
    assert whole.returncode == 0, said
    assert set(cluster.runs().values()) == {1}  # nothing was graded twice
    assert len(cluster.runs()) == 16
    cluster.ran.write_text("")
    killed = command(tmp_path, cluster, tmp_path / "out")
    wait_for(lambda: len(cluster.runs()) > 3)
    workers[0].kill()
    wait_for(lambda: len(cluster.runs()) > 8)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    stored = len(list((tmp_path / "out" / "results").glob("x1-*.json")))
    assert 0 < stored < 16
    again = command(tmp_path, cluster, tmp_path / "out")
    said, _ = again.communicate(timeout=1500)
    assert again.returncode == 0, said
    assert f"{stored} hand-ins have not changed and keep their results; {16 - stored} are to be run." in said
    assert gradebook(tmp_path / "out") == gradebook(tmp_path / "whole")
    # Only what was under way when something was killed may have run again: two a thread.
    assert sum(count - 1 for count in cluster.runs("began").values()) <= 2 * 3 + 1


@pytest.mark.slow
def test_unfit_workers_get_nothing_and_a_restarted_scheduler_goes_on(tmp_path, cluster):
    a_class(tmp_path, 10)
    for kind in ("old", "open"):
        cluster.worker(KIND=kind)
    run = command(tmp_path, cluster, tmp_path / "out")
    heard = ""
    while not all(words in heard for words in ("its course is 0.1+old", "it has no sandbox", "Waiting for a worker")):
        line = run.stdout.readline()
        assert line, heard
        heard += line
    assert not cluster.runs("began")
    cluster.worker(LASTS="0.5")
    wait_for(lambda: len(cluster.runs()) > 2)
    port = int(cluster.address.rpartition(":")[2])
    cluster.scheduler.kill()
    cluster.scheduler.wait()
    cluster.start_scheduler(port)
    cluster.worker(LASTS="0.1")
    said = heard + run.communicate(timeout=1500)[0]
    assert run.returncode == 0, said
    assert said.count("gets no hand-ins: its course is 0.1+old, here it is") == 1
    assert said.count("gets no hand-ins: it has no sandbox") == 1
    assert "Waiting for a worker that can grade; 10 hand-ins are left." in said
    assert "Waiting for the scheduler at" in said
    rows = rows_of(gradebook(tmp_path / "out"))
    assert [row["status"] for row in rows] == ["graded"] * 10


def test_no_scheduler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "sources", lambda: [X1])
    a_class(tmp_path, 1)
    with pytest.raises(GradeError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        grade(tmp_path / "class", tmp_path / "out", cluster="tcp://127.0.0.1:1")
