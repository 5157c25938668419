"""A pytest plugin that writes down what each cell of an nbval run did.

nbval runs the cells and tells right from wrong by their outputs; grading wants the outputs themselves. One line of
JSON a cell: its id, its error if it had one, whether it timed out, and the evidence it displayed.

nbval notices a dead kernel only when the cell's time is up. A thread watches the kernel's process and ends the run at
once.
"""

import json
import os
import threading
from collections.abc import Generator
from pathlib import Path
from queue import Empty
from typing import Any

import psutil
import pytest

from ...exercises.run import MIME


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says where to write."""
    parser.addoption("--evidence", type=Path, help="file to write the evidence of each cell to")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the kernel while a cell runs; when it dies, say so and end the whole run."""
    pid = item.parent.kernel.km.provisioner.pid
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            if not _alive(pid):
                record = {"error": "the kernel died", "timed_out": False, "evidence": _unread_evidence(item)}
                _write(item, record)
                os._exit(pytest.ExitCode.INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()
    try:
        return (yield)
    finally:
        done.set()


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _unread_evidence(item: pytest.Item) -> list[str]:
    """Return the evidence that a dead kernel has displayed and nbval, which waits for its reply, has not read."""
    found = []
    while True:
        try:
            message = item.parent.kernel.get_message("iopub", timeout=1)
        except Empty:
            return found
        data = message["content"].get("data", {})
        if MIME in data:
            found.append(data[MIME])


def _write(item: pytest.Item, record: dict[str, Any]) -> None:
    with item.config.getoption("evidence").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"cell": item.cell.id, **record}) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Generator[None, Any, Any]:
    """Append the record of a cell once it has run."""
    report = yield
    if call.when == "call":
        outputs = getattr(item, "test_outputs", None) or []  # None: nbval was told to skip the cell
        errors = [f"{o['ename']}: {o['evalue']}" for o in outputs if o["output_type"] == "error"]
        if call.excinfo is not None and not errors:
            errors = [str(call.excinfo.value)]
        record = {
            "error": errors[0][:500] if errors else None,
            "timed_out": bool(item.parent.timed_out),
            "evidence": [o["data"][MIME] for o in outputs if MIME in o.get("data", {})],
        }
        _write(item, record)
    return report
