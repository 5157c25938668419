"""Print which lines that depend on CUDA were executed on pretended machines, and why the others were not.

    python -m tests.pretence.coverage [solutions/19_fp8.py ...]

Without names: all of helpers/ and solutions/. A run that build/ still has is not run again. The exit code is 1 if a
script failed, if a line was not executed and `coverage_reasons.py` has no reason, or if a reason no longer holds.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from helpers.core.files import ROOT

from .coverage_lines import WITH, CudaLine, cuda_lines
from .coverage_reasons import REASONS
from .coverage_run import CountedRun, counted_run
from .settings import SETTINGS, settings_of
from .smaller import SMALLER


class Coverage:
    """Which CUDA lines of some files were executed by some runs.

    Attributes:
        executed: lines that ran.
        excused: lines that did not, and why.
        missed: lines that did not, without a reason.
        stale: reasons for which there is no such line any more.
    """

    def __init__(self, paths: Iterable[Path], runs: Iterable[CountedRun], reasons: dict = REASONS) -> None:
        ran: dict[str, set[int]] = {}
        for run in runs:
            for path, numbers in run.lines.items():
                ran.setdefault(path, set()).update(numbers)
        self.executed: list[CudaLine] = []
        self.excused: dict[CudaLine, str] = {}
        self.missed: list[CudaLine] = []
        files, used = set(), set()
        for path in paths:
            files.add(path.relative_to(ROOT).as_posix())
            for line in cuda_lines(path):
                if line.arm != WITH:
                    continue  # every notebook runs it on a CPU
                keys = [(line.path, text) for text in (line.text, *line.within) if (line.path, text) in reasons]
                if line.ran(ran.get(line.path, set())):
                    self.executed.append(line)
                elif keys:
                    self.excused[line] = reasons[keys[0]]
                    used.update(keys[:1])
                else:
                    self.missed.append(line)
        self.stale = [key for key in reasons if key[0] in files and key not in used]

    def __str__(self) -> str:
        total = len(self.executed) + len(self.excused) + len(self.missed)
        text = [f"{len(self.executed)} of {total} lines that depend on CUDA were executed."]
        for line, reason in self.excused.items():
            text.append(f"not executed  {line.path}:{line.first}  {line.text}\n              {reason}")
        text += [f"NOT EXECUTED  {line.path}:{line.first}  {line.text}" for line in self.missed]
        text += [f"STALE REASON  {path}: {line}" for path, line in self.stale]
        return "\n".join(text)


def labs() -> list[Path]:
    """Return the sources of all labs."""
    return sorted((ROOT / "solutions").glob("[0-9]*.py"))


def depends_on_cuda(path: Path) -> bool:
    """Say whether the source at `path` has lines that a machine with CUDA runs otherwise."""
    return any(line.arm == WITH for line in cuda_lines(path))


def helper_files() -> list[Path]:
    """Return the files of helpers/ but for the virtual GPU; the reference answers are copies of cells of the labs."""
    files = sorted((ROOT / "helpers").rglob("*.py"))
    return [path for path in files if not {"reference", "virtual_gpu"} & set(path.parts)]


def run_on(setting: str, script: Path) -> CountedRun:
    """Return what `script` does on the machine of a setting."""
    path = script.relative_to(ROOT).as_posix()
    by = ["tests/pretence/smaller.py"] if script.stem in SMALLER else []
    return counted_run(f"{script.stem}.{setting}", ["-m", "tests.pretence", *SETTINGS[setting], *by, path])


def run_helper_tests() -> list[CountedRun]:
    """Return what the tests in inside/ do on one small GPU and on several large ones."""
    return [run_on(setting, ROOT / "tests/pretence/inside/run.py") for setting in ("t4", "h100x4")]


def main(names: list[str]) -> int:
    """Run what has changed, print the report, and return the exit code."""
    chosen = [ROOT / name for name in names] or list(filter(depends_on_cuda, labs()))
    runs = [] if names else run_helper_tests()
    for path in chosen:
        for setting in settings_of(path):
            runs.append(run_on(setting, path))
            print(f"{path.stem} on {setting}: {runs[-1].returncode or 'ran'}", file=sys.stderr, flush=True)
    coverage = Coverage(chosen + ([] if names else helper_files()), runs)
    print(coverage)
    return 1 if coverage.missed or coverage.stale or any(run.returncode for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
