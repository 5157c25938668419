"""Seconds of the processor that each test takes, its processes included: COSTS=build/costs.jsonl has pytest write them.

On Linux, as root, a control group counts for all processes that descend from one, and goes on when they have ended. So
a fork server or a kernel that a test starts is on that test's account, and time that other programs take is not.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


class CpuMeter:
    """Appends a line to a file for each test that has run."""

    def __init__(self, report: Path) -> None:
        self._report = report
        version1 = GROUPS / "cpuacct"
        self._group = (version1 if version1.exists() else GROUPS) / f"tests-{os.getpid()}"
        self._group.mkdir(exist_ok=True)
        (self._group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")

    def seconds(self) -> float:
        """Return what the processes of this group have taken."""
        if (usage := self._group / "cpuacct.usage").exists():
            return int(usage.read_text(encoding="utf-8")) / 1e9
        stat = (self._group / "cpu.stat").read_text(encoding="utf-8").split()
        return int(stat[stat.index("usage_usec") + 1]) / 1e6

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Take the time before and after a test, set-up included."""
        before = self.seconds()
        result = yield
        line = json.dumps({"test": item.nodeid, "seconds": round(self.seconds() - before, 3)})
        with self._report.open("a", encoding="utf-8") as file:  # short lines of several workers do not mix
            file.write(line + "\n")
        return result
