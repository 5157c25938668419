"""Processes end together with everything that they started."""

import contextlib
import subprocess
import sys

from helpers.core.descendants import end_descendants, end_process

import psutil
import pytest

FAMILY = """
import subprocess, sys, time
SLEEP = "import time; time.sleep(300)"
subprocess.Popen([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEP}'])"])
print("started", flush=True)
time.sleep(300)
"""


@pytest.fixture
def family():
    """A process with a child and a grandchild."""
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    root = psutil.Process(process.pid)
    while len(root.children(recursive=True)) < 2:
        assert process.poll() is None
    descendants = root.children(recursive=True)
    yield process, descendants
    for member in [*descendants, root]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.communicate()


def has_ended(process):
    """The root does not ask after its children, so what has ended may be a zombie."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_ends_with_its_children_and_grandchildren(family):
    process, descendants = family
    end_process(process.pid)
    assert process.wait(10) != 0
    assert all(map(has_ended, descendants))


def test_descendants_end_and_the_root_goes_on(family):
    process, descendants = family
    end_descendants(psutil.Process(process.pid))
    assert all(map(has_ended, descendants))
    assert process.poll() is None


def test_a_process_that_is_gone_is_no_error(family):
    process, _ = family
    process.kill()
    process.wait()
    end_process(process.pid)
    assert not psutil.pid_exists(process.pid)
