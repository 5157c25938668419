"""Finished results, kept in the output folder, so that a run can be interrupted and what has not changed stands.

Each result is a file of its own. Its name is a digest of everything it depends on: student, exercise, answers, flags
and the conditions of the run. So if there is a file of that name, the very same thing was graded before.
"""

import contextlib
import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ....core.files import atomic_write
from ..intake.hand_in import HandIn
from ..judge.result import Result
from .conditions import Conditions, machine


class StoreError(Exception):
    """Results cannot be kept there. The message says what to change."""


@contextlib.contextmanager
def open_store(out: Path, submissions: Path) -> Iterator["Store"]:
    """Make the folder `out` and keep every other grader out of it.

    The lock is the operating system's: it goes with the process that holds it, however that ends.

    Raises:
        StoreError: `out` cannot be written, lies among the submissions, or another grader is at work there.
    """
    if out.resolve().is_relative_to(submissions.resolve()):
        raise StoreError(f"{out} is inside the folder of the submissions. Choose another folder for --out.")
    lock = FileLock(out / "grader.lock")
    try:
        (out / "results").mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        who = _read(out / "run.json").get("process", "unknown")
        raise StoreError(
            f"Another grader (process {who}) is working in {out}. Wait for it, or give another --out."
        ) from None
    except (OSError, NotImplementedError) as error:  # the second: a file system without locks
        why = getattr(error, "strerror", None) or error
        raise StoreError(f"Results cannot be written to {out}: {why}.") from None
    try:
        yield Store(out)
    finally:
        lock.release()


class Store:
    """The results in one output folder."""

    def __init__(self, out: Path) -> None:
        self._run = out / "run.json"
        self._results = out / "results"
        self._references = out / "references"
        self._newest: dict[tuple[str, str], Result] | None = None  # by student and exercise; read when first asked for

    def seed(self, requested: int | None, fresh: bool) -> int:
        """Return the seed of this run: the requested one, else that of the last run in this folder, else a new one.

        `fresh` forgets the last run and its results.
        """
        if fresh:
            self._run.unlink(missing_ok=True)
            for folder in (self._results, self._references):
                for path in folder.glob("*-" + "?" * 32 + ".json"):
                    path.unlink()
        if requested is not None:
            return requested
        last = _read(self._run).get("seed")
        return last if type(last) is int else random.SystemRandom().randrange(2**31)

    def begin(self, conditions: Conditions) -> list[str]:
        """Write down the conditions of the run that begins; say what changed since the last one here."""
        before = _read(self._run)
        atomic_write(self._run, json.dumps({**asdict(conditions), "process": os.getpid()}, indent=1))
        return conditions.changes_since(before) if before.keys() >= asdict(conditions).keys() else []

    def get(self, hand_in: HandIn, conditions: Conditions) -> Result | None:
        """Return the result of this very submission under these conditions; None if there is none, or it is damaged."""
        entry = _read(self._path(hand_in, conditions))
        if entry.get("digest") != _digest(entry.get("result")):
            return None
        return Result.from_json(entry["result"])

    def last(self, hand_in: HandIn) -> Result | None:
        """Return the newest result of this student for this exercise, whatever was handed in and in whatever run."""
        if self._newest is None:
            self._newest = {}
            for path in sorted(self._results.glob("*-" + "?" * 32 + ".json"), key=lambda path: path.stat().st_mtime):
                entry = _read(path)
                if entry.get("digest") == _digest(entry.get("result")):
                    result = Result.from_json(entry["result"])
                    self._newest[result.student, result.exercise] = result
        return self._newest.get((hand_in.student, hand_in.source.exercise))

    def put(self, hand_in: HandIn, conditions: Conditions, result: Result) -> None:
        """Store a result."""
        if self._newest is not None:
            self._newest[result.student, result.exercise] = result
        content = asdict(result)
        entry = {"result": content, "digest": _digest(content)}
        atomic_write(self._path(hand_in, conditions), json.dumps(entry, indent=1))

    def reference(self, exercise: str, conditions: Conditions) -> tuple[dict[str, Any], float] | None:
        """Return what the reference of an exercise showed on such a machine, and its seconds; None if not kept."""
        entry = _read(self._reference_path(exercise, conditions))
        if entry.get("digest") != _digest(entry.get("reference")):
            return None
        return entry["reference"]["expected"], entry["reference"]["seconds"]

    def keep_reference(
        self, exercise: str, conditions: Conditions, expected: Mapping[str, Any], seconds: float
    ) -> None:
        """Store what the reference of an exercise showed: evidence, which came as JSON."""
        self._references.mkdir(exist_ok=True)
        content = {"expected": expected, "seconds": seconds}
        entry = {"reference": content, "digest": _digest(content)}
        atomic_write(self._reference_path(exercise, conditions), json.dumps(entry))

    def _reference_path(self, exercise: str, conditions: Conditions) -> Path:
        return self._references / f"{exercise}-{_digest([exercise, asdict(conditions), machine()])}.json"

    def _path(self, hand_in: HandIn, conditions: Conditions) -> Path:
        exercise = hand_in.source.exercise
        origin = [hand_in.student, exercise, hand_in.answers, hand_in.flags, asdict(conditions)]
        return self._results / f"{exercise}-{_digest(origin)}.json"


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file, or it holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
