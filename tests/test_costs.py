"""Costs of tests are measured and read from a report; they decide what is slow, and on which day it runs."""

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.core.files import ROOT

import pytest

from . import costs
from .costs import Cost
from .cpu_meter import CpuMeter

BUSY = """
import subprocess, sys, time

def test_asleep():
    time.sleep(0.6)

def test_in_a_process():
    busy = "import time\\nwhile time.process_time() < 0.6: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
"""

TESTS = {
    "tests/planner/test_fit.py::test_it[a]": 3.0,
    "tests/planner/test_fit.py::test_it[b-c[1]]": 1.0,
    "tests/grade/test_grade.py::TestOne::test_points": 0.9,
    "tests/grade/test_grade.py::test_nothing": 0.01,
}


def report(path, tests):
    lines = [json.dumps({"test": test, "seconds": took}) + "\n" for test, took in tests]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_of_two_runs_of_a_test_the_last_counts(tmp_path):
    first = ("tests/planner/test_fit.py::test_it[a]", 70.0)
    assert costs.read_report(report(tmp_path / "costs.jsonl", [first, *TESTS.items()])) == TESTS


def test_a_report_renews_what_it_measured_whole_and_keeps_the_rest():
    known = {"fit": Cost(9.0, 9.0), "old": Cost(5.0, 2.5), "cheap": Cost(3.0, 3.0), "part": Cost(8.0, 4.0)}
    known["gone"] = Cost(7.0, 7.0)
    whole = ["fit[1]", "fit[2]", "old[1]", "old[2]", "cheap", "part[1]", "part[2]", *(f"new[{n}]" for n in range(4))]
    day = ["fit[1]", "fit[2]", "old[1]", "cheap", "part[1]", "new[3]"]
    seconds = {"fit[1]": 3.0, "fit[2]": 1.0, "cheap": 0.1, "part[1]": 0.2, **{f"new[{n}]": 2.0 for n in range(4)}}
    assert costs.renewed(known, seconds, whole, day) == {
        "fit": Cost(4.0, 4.0),
        "new": Cost(8.0, 2.0),
        "old": Cost(5.0, 2.5),
        "part": Cost(8.0, 4.0),
    }


def test_what_is_collected_is_read():
    tests = ["tests/a/test_b.py::test_c[1]", "tests/a/test_b.py::test_c[x::y]", "tests/a/test_b.py::test_d"]
    assert costs.listed([*tests, "", "3 tests collected"]) == tests


def test_days_of_a_round_take_about_the_same():
    seconds = {f"test {n}": 60.0 / (7 + n) for n in range(200)}
    day_of = costs.spread(seconds)
    assert day_of.keys() == seconds.keys()
    load = [sum(took for name, took in seconds.items() if day_of[name] == day) for day in range(costs.ROUND)]
    assert max(load) - min(load) < 1.0
    assert costs.spread(dict(reversed(seconds.items()))) == day_of


@pytest.mark.skipif(not os.access("/sys/fs/cgroup", os.W_OK) or os.geteuid(), reason="needs control groups, and root")
def test_the_processes_of_a_test_are_on_its_account(tmp_path):
    (tmp_path / "test_it.py").write_text(BUSY, encoding="utf-8")
    written = tmp_path / "costs.jsonl"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        os.devnull,
        "-p",
        "no:nbval",
        "-p",
        "tests.test_costs",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "COSTS_TRIED": str(written)}, check=True)
    lines = written.read_text(encoding="utf-8").splitlines()
    took = {line["test"].partition("::")[2]: line["seconds"] for line in map(json.loads, lines)}
    assert took["test_in_a_process"] > 0.5 > 0.2 > took["test_asleep"]


def pytest_configure(config):
    """Of this file as a plugin."""
    if where := os.environ.get("COSTS_TRIED"):
        config.pluginmanager.register(CpuMeter(Path(where)))


@functools.cache
def parsed(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def test_every_slow_family_exists():
    for name in costs.slow_families():
        path, *inside = name.split("::")
        tree = parsed(path)
        for part in inside:
            tree = next((node for node in tree.body if getattr(node, "name", None) == part), None)
            assert tree is not None, f"{name}: run python -m tests.costs after a whole run, or take it out"
