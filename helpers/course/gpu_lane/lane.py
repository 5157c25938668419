"""Run the steps one after the other, each in a process of its own, and keep how each of them ended."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from ...core.files import ROOT
from ...core.limited_process import run_limited
from .state import DONE, FAILED, INTERRUPTED, SKIPPED, LaneState, Outcome
from .steps import LaneStep

_GRACE = 30.0  # seconds after the budget that a step still gets
_TAIL = 4096  # bytes of the log in which the last line of a step is looked for


class LaneError(ValueError):
    """What was asked for cannot be run here; the message says why."""


@dataclass
class Lane:
    """One call: the steps that are left, in order, until all have been tried or the budget is spent.

    Attributes:
        steps: what there is to run.
        state: what earlier calls have done.
        log: gets all that the steps print.
        device: "cuda", or "cpu" to try the lane itself.
        limit: seconds that a step may take.
        budget: seconds after which no step is started.
    """

    steps: Sequence[LaneStep]
    state: LaneState
    log: Path
    device: str = "cuda"
    limit: float = 540.0
    budget: float = inf

    def run(self) -> bool:
        """Run what is not done: first what has never been tried, then what failed. Returns whether all was tried."""
        began = time.monotonic()
        left = sorted((step for step in self.steps if self._wants(step)), key=self._tried)
        for place, step in enumerate(left):
            spent = time.monotonic() - began
            if spent >= self.budget:
                return all(map(self._tried, left[place:]))
            print(f"{step.name} ...", end=" ", flush=True)
            room = self.budget + _GRACE - spent
            outcome = self._outcome(step, room if place else inf)
            self.state.keep(step.name, outcome)
            print(f"{outcome.seconds:.0f} s, {outcome.status}: {outcome.words}", flush=True)
        return all(map(self._tried, left))

    def _wants(self, step: LaneStep) -> bool:
        return self.state.status(step.name, step.digest) != DONE

    def _tried(self, step: LaneStep) -> bool:
        return self.state.status(step.name, step.digest) in (DONE, FAILED, SKIPPED)

    def _outcome(self, step: LaneStep, room: float) -> Outcome:
        """Run one step for at most `limit` and `room` seconds and say how it ended."""
        if step.missing:
            return Outcome(SKIPPED, f"not installed here: {', '.join(step.missing)}", digest=step.digest)
        self.state.keep(step.name, Outcome(INTERRUPTED, "the GPU run itself was stopped", digest=step.digest))
        began = time.monotonic()
        with self.log.open("ab") as log:
            log.write(f"\n=== {step.name} · {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            log.flush()
            start = log.tell()
            code = run_limited(step.command, self._environment(), min(self.limit, room), log)
        seconds = round(time.monotonic() - began, 1)
        if code is None and room < self.limit:
            return Outcome(INTERRUPTED, "the budget ran out; the step will run again", seconds, step.digest)
        if code is None:
            return Outcome(FAILED, f"it took more than {self.limit:.0f} s", seconds, step.digest)
        words = self._last_line(start) or f"it printed nothing and ended with code {code}"
        return Outcome(FAILED if code else DONE, words, seconds, step.digest)

    def _environment(self) -> dict[str, str]:
        """Return the environment of a step: the checkout can be imported whether or not it is installed."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        quiet = {"TAS_PROGRESS": "off", "MPLBACKEND": "agg", "PYTHONIOENCODING": "utf-8"}
        return {**os.environ, **quiet, **hidden, "PYTHONPATH": path}

    def _last_line(self, start: int) -> str:
        """Return the last line of the log that is not empty, of what was written since byte `start`."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - _TAIL))
            lines = log.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:200]
