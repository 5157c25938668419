"""How tests share a machine: one thread for each process, long files first, and a sample of what takes long."""

import gc
import os
import signal
import zlib
from collections import defaultdict
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.costs import SLOW, costs, family, pieces, slow_families, spread
from tests.cpu_meter import CpuMeter
from tests.sampling import days_turn, runs_whole, sample, sample_seed, share_seed, time_is_up

if "PYTEST_XDIST_WORKER" in os.environ:  # set before torch is imported, and inherited by kernels and scripts
    os.environ["OMP_NUM_THREADS"] = "1"  # or the processes that run beside each other would all crawl
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as helpers sets it, which some tests import after torch
share_seed()


# Files that take minutes go first: one of them at the end would leave the other workers without work.
LONG = (
    "test_grade.py",
    "test_attacks.py",
    "test_interrupted.py",
    "test_labs.py",
    "test_cuda_lines.py",
    "test_practice.py",
    "test_graded.py",
    "test_kills.py",
    "test_script.py",
    "test_search.py",
    "test_published.py",
    "test_arithmetic.py",
    "test_fit.py",
    "test_cli.py",
    "test_receipts.py",
)


def pytest_report_header() -> str:
    """Print the seed of the sample, so that a run can be repeated."""
    return f"sample: seed {sample_seed()} (set SAMPLE_SEED to repeat; WHOLE_LABS=1 runs everything)"


def pytest_configure(config: pytest.Config) -> None:
    """Measure what tests take where COSTS names a file."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", 0)
    if (report := os.environ.get("COSTS")) and runs_tests:
        config.pluginmanager.register(CpuMeter(Path(report)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files in front, mark the slow ones and those of today; cuda wants a GPU."""
    items.sort(key=lambda item: item.path.name not in LONG)
    decided = {family(item.nodeid) for item in items if item.get_closest_marker("slow")}  # by whoever wrote them
    undecided = slow_families() - decided
    for item in items:
        if family(item.nodeid) in undecided:
            item.add_marker("slow")
    slow = [item for item in items if item.get_closest_marker("slow")]
    for item in slow if runs_whole() else _of_today([item for item in slow if not item.get_closest_marker("today")]):
        item.add_marker("today")
    wanting = [item for item in items if item.get_closest_marker("cuda")]
    if wanting:
        import torch

        for item in wanting if not torch.cuda.is_available() else []:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what is left of the sample when its time is up."""
    if time_is_up() and item.get_closest_marker("slow"):
        pytest.skip("a slow test, and SAMPLE_UNTIL is over: this machine is slow, or busy")


def _of_today(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests whose day it is. All days of a round take about the same, by what families cost."""
    groups, seconds = defaultdict(list), {}
    for item in items:
        groups[_together(item)].append(item)
    for name, group in groups.items():
        parts = {family(item.nodeid): pieces(family(item.nodeid)) if "#" in name else 1 for item in group}
        known = {each: costs()[each].daily if each in costs() else SLOW / 2 for each in parts}
        seconds[name] = sum(known[each] / number for each, number in parts.items())
    day_of = spread(seconds)
    return [item for name, group in groups.items() if days_turn(day_of[name]) for item in group]


def _together(item: pytest.Item) -> str:
    """Return the name of what runs on one day: a class, tests that share a set-up, or a part of a family."""
    if shared := item.getparent(pytest.Class):
        return shared.nodeid
    if "[" in item.nodeid:
        return f"{family(item.nodeid)}#{zlib.crc32(item.nodeid.encode()) % pieces(family(item.nodeid))}"
    known = item._fixtureinfo.name2fixturedefs
    own = [name for name in item._fixtureinfo.argnames for each in known.get(name, ()) if each.scope == "module"]
    return f"{item.path}::{own[0]}" if own else item.nodeid


_server_of: list[Path] = []  # the folder whose tests the fork server serves


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """Let the collector skip what earlier files left: a dry run collects, and a worker has millions of objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def own_server(request: pytest.FixtureRequest) -> None:
    """Give each folder of tests one fork server: it has imported what this folder's ranks or graders need."""
    if _server_of != [request.path.parent]:  # the grader's has no PyTorch: each rank would import it by itself
        server = forkserver._forkserver
        if server._forkserver_pid is not None:  # it would wait for whoever holds its pipe
            os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()
        _server_of[:] = [request.path.parent]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Let nbval run one in thirteen solved notebooks, and one alone if time is up; all of them under WHOLE_LABS."""
    if collection_path.suffix != ".ipynb":
        return None
    notebooks = sorted(collection_path.parent.glob("*.ipynb"))
    chosen = sample(notebooks, one_in=13)
    return True if collection_path in set(notebooks) - set(chosen[:1] if time_is_up() else chosen) else None
