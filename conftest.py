"""Test processes that run beside each other share the cores: one thread each, or all of them crawl."""

import os
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # set before torch is imported, and inherited by kernels and scripts
    os.environ["OMP_NUM_THREADS"] = "1"


# Files that take minutes go first: one of them at the end would leave the other workers without work.
LONG = ("test_grade.py", "test_attacks.py", "test_labs.py", "test_planner.py", "test_cli.py", "test_receipts.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files in front."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="module", autouse=True)
def own_server() -> Iterator[None]:
    """Stop the server that processes are forked from: it has imported what the file before this one wanted."""
    yield
    forkserver._forkserver._stop()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Let nbval run the graded exercises and every third lab; all of them under WHOLE_LABS."""
    if collection_path.suffix != ".ipynb" or os.environ.get("WHOLE_LABS"):
        return None
    labs = [path for path in sorted(collection_path.parent.glob("*.ipynb")) if "_x" not in path.name]
    return True if collection_path in set(labs) - set(labs[1::3]) else None
