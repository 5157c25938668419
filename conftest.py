"""How tests share a machine: one thread for each process, long files first, and a sample of what takes long."""

import os
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.costs import family, slow_families
from tests.sampling import has_its_day, sample, sample_seed, share_seed

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files in front, mark the slow ones and those of today; cuda wants a GPU."""
    items.sort(key=lambda item: item.path.name not in LONG)
    decided = {family(item.nodeid) for item in items if item.get_closest_marker("slow")}  # by whoever wrote them
    for item in items:
        if family(item.nodeid) in slow_families() - decided:
            item.add_marker("slow")
        if item.get_closest_marker("slow") and has_its_day(_sharing(item)):
            item.add_marker("today")
    wanting = [item for item in items if item.get_closest_marker("cuda")]
    if wanting:
        import torch

        for item in wanting if not torch.cuda.is_available() else []:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def _sharing(item: pytest.Item) -> str:
    """Return the name of the class whose tests share a set-up, or of the test."""
    shared = item.getparent(pytest.Class)
    return shared.nodeid if shared else item.nodeid


_server_of: list[Path] = []  # the folder whose tests the fork server serves


@pytest.fixture(scope="module", autouse=True)
def own_server(request: pytest.FixtureRequest) -> None:
    """Give each folder of tests one fork server: it has imported what this folder's ranks or graders need."""
    if _server_of != [request.path.parent]:
        forkserver._forkserver._stop()  # the grader's has no PyTorch: each rank would import it by itself
        _server_of[:] = [request.path.parent]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Let nbval run the graded exercises and one in eight labs; all of them under WHOLE_LABS."""
    if collection_path.suffix != ".ipynb":
        return None
    labs = [path for path in sorted(collection_path.parent.glob("*.ipynb")) if "_x" not in path.name]
    return True if collection_path in set(labs) - set(sample(labs, one_in=8)) else None
