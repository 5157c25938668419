"""Threads for submissions: an interrupt ends what runs and drops what has not begun."""

import subprocess
import sys
import time

from helpers.course.grade.workers import Workers

import pytest


def sleeper(seconds):
    return subprocess.run([sys.executable, "-c", f"import time; time.sleep({seconds})"]).returncode


def test_the_block_ends_when_all_jobs_are_done():
    with Workers(2) as workers:
        futures = [workers.submit(sleeper, 0.05) for _ in range(5)]
    assert [future.result() for future in futures] == [0] * 5


def test_an_interrupt_ends_what_runs_and_drops_what_has_not_begun():
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
        futures = [workers.submit(sleeper, 300) for _ in range(5)]
        time.sleep(1)
        raise KeyboardInterrupt
    assert time.perf_counter() - began < 60
    assert [future.cancelled() for future in futures] == [False, False, True, True, True]
    assert all(future.done() for future in futures)


SCRIPT = """
import subprocess, sys, time
from multiprocessing import resource_tracker
from helpers.course.grade.workers import Workers
try:
    with Workers(1) as workers:
        workers.submit(subprocess.run, [sys.executable, "-c", "import time; time.sleep(300)"])
        resource_tracker.ensure_running()  # as the fork server of the first submission does
        time.sleep(1)
        raise KeyboardInterrupt
except KeyboardInterrupt:
    resource_tracker.ensure_running()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such process")
def test_an_interrupt_spares_pythons_resource_tracker():
    done = subprocess.run([sys.executable, "-W", "always", "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_spares_what_others_have_started():
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        with pytest.raises(KeyboardInterrupt), Workers(1) as workers:
            workers.submit(sleeper, 300)
            time.sleep(1)
            raise KeyboardInterrupt
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
