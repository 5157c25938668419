"""A Dask scheduler and workers on this machine, each a process of its own, for tests of a class on a cluster.

Most hand-ins run nothing: their points come from the student's name and the seed. Those of students called "real ..."
run in the sandbox, as they do outside of tests.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

# What a worker, or the command itself, imports before it starts. Each run of a hand-in is a line in the file RAN when
# it begins and one when it ends.
PRELOAD = """
import os, time, zlib
from helpers.course.grade import bench, cluster
from helpers.course.grade.judge.result import Result, parts_of
from helpers.course.grade.run import warm
from helpers.exercises.base import Outcome, Verdict

def note(word, student):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{word} {student}\\n")

def stubbed(hand_in, seed):
    time.sleep(float(os.environ.get("LASTS", "0.02")))
    verdicts = []
    for part in parts_of(hand_in).values():
        for check in part.checks:
            points = zlib.crc32(f"{hand_in.student} {check.name()} {seed}".encode()) % 2
            outcome, why = (Outcome.PASSED, None) if points else (Outcome.MISSED, "Missed.")
            verdicts.append(Verdict(check.name(), check.rule(), points, 1, outcome, why, check.hint))
    return Result(hand_in.student, "x1", "graded", "", verdicts, hand_in.answers, hand_in.flags, 1.0)

def grade(self, hand_in):
    note("began", hand_in.student)
    real = hand_in.student.startswith("real ")
    result = really_grade(self, hand_in) if real else stubbed(hand_in, self._conditions.seed)
    note("ended", hand_in.student)
    return result

really_grade, bench.Bench.grade = bench.Bench.grade, grade
if "REAL" not in os.environ:
    bench.Bench.lacks = lambda self, exercises: []
    warm.find_bubblewrap = lambda: "bwrap"
    KINDS = {"old": {"course": "0.1+old"}, "open": {"sandbox": False}, "": {"sandbox": True}}
    really_about_worker = cluster.about_worker
    cluster.about_worker = lambda: really_about_worker() | KINDS[os.environ.get("KIND", "")]
"""
# Dask runs the file of a preload twice, so what it runs is a module.
_IMPORT = "import preload_of_tests"
_DASK = "import sys; from distributed.cli.dask_{0} import main; sys.argv[0] = 'dask'; main()"
_COMMAND = f"""
import sys
{_IMPORT}
from helpers.course.grade import grading
from helpers.__main__ import main
x1 = [source for source in grading.sources() if source.exercise == "x1"]
grading.sources = lambda: x1
sys.exit(main(["grade", *sys.argv[1:]]))
"""


class LocalCluster:
    """A scheduler and workers, each a process of its own.

    Args:
        folder: where they keep what they keep.
        real: some hand-ins run in the sandbox.
    """

    def __init__(self, folder: Path, real: bool = False) -> None:
        self.folder, self.ran, self._real = folder, folder / "ran", real
        self.processes: list[subprocess.Popen] = []
        (folder / "preload_of_tests.py").write_text(PRELOAD)
        (folder / "preload.py").write_text(_IMPORT)
        self.ran.touch()
        self._file = folder / "scheduler.json"
        self.scheduler = self.start_scheduler(0)

    def start_scheduler(self, port: int) -> subprocess.Popen:
        """Start a scheduler and wait until it answers."""
        self._file.unlink(missing_ok=True)
        options = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--scheduler-file", str(self._file)]
        scheduler = self._start("scheduler", options, {})
        while not self._file.exists():
            assert scheduler.poll() is None
            time.sleep(0.1)
        self.address = json.loads(self._file.read_text())["address"]
        return scheduler

    def worker(self, **environment: str) -> subprocess.Popen:
        """Start a worker with one thread."""
        options = [self.address, "--host", "127.0.0.1", "--no-nanny", "--no-dashboard", "--nthreads", "1"]
        options += ["--local-directory", str(self.folder), "--preload", str(self.folder / "preload.py")]
        return self._start("worker", options, environment)

    def command(self, hand_ins: Path, out: Path, *more: object, here: bool = False) -> subprocess.Popen:
        """Start the command itself, which grades X1 alone; `here` without the cluster."""
        words = [hand_ins, "--out", out, "--seed", "5", *([] if here else ["--cluster", self.address]), *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command = [sys.executable, "-c", _COMMAND, *map(str, words)]
        return subprocess.Popen(command, **pipes, env=self._environment())

    def runs(self, word: str = "ended") -> Counter[str]:
        """Return how often each student's hand-in has begun or ended."""
        lines = [line.partition(" ") for line in self.ran.read_text().splitlines()]
        return Counter(student for what, _, student in lines if what == word)

    def end(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(self, kind: str, options: list[str], environment: dict[str, str]) -> subprocess.Popen:
        log = (self.folder / f"{kind}{len(self.processes)}.log").open("w")
        command = [sys.executable, "-c", _DASK.format(kind), *options]
        environment = self._environment() | environment
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        return self.processes[-1]

    def _environment(self) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": paths, "RAN": str(self.ran)} | ({"REAL": "1"} if self._real else {})


def wait_for(condition: Callable[[], bool], seconds: float = 900) -> None:
    """Wait until `condition` holds."""
    begin = time.perf_counter()
    while not condition():
        assert time.perf_counter() - begin < seconds
        time.sleep(0.1)


def gradebook(out: Path) -> str:
    """Return the gradebook in the folder `out`."""
    return (out / "gradebook.csv").read_text(encoding="utf-8")
