"""A job that a scheduler preempts: its ranks and their signals are real, its seconds are counted.

What takes time in a real job takes simulated seconds here, and a signal comes at a named point, such as "inside the
launch of step 3", so that every machine gives the same verdict. SIGKILL is simulated, too: when the seconds of a rank
are over, all ranks stop where they are. Before they exchange anything, the ranks compare what they are doing, so a
deadlock is found at once.
"""

import contextlib
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from ..base import Evidence

SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGUSR1": getattr(signal, "SIGUSR1", signal.SIGTERM)}
STEP, SAVE = 2.0, 8.5  # simulated seconds of a step, and of a save
LEAST = 0.25  # seconds that job.least takes, for which SIGKILL comes late
CLOCKS = (1000.0, 73_000.0)  # what the ranks' clocks show when a case begins
STEPS, EVERY = 12, 5
DOING = ("resume", "step", "least", "save", "exit", "return", "stop")  # what a rank may be doing, beside a number


class Ended(BaseException):
    """This start is over: the scheduler has killed the ranks, or they are no longer at the same place."""


@dataclass(frozen=True)
class Notice:
    """A signal, and where a rank gets it.

    Points: "resume"; "launch", inside the launch of a step; "wait", when a step has ended; "save", inside a save.
    """

    rank: int
    point: str
    step: int = 0
    name: str = "SIGTERM"


@dataclass(frozen=True)
class Case:
    """Which signals come in the first start, and how many seconds after one of them SIGKILL comes.

    Attributes:
        starts: how often the job is started.
        later: signals that come in the second start.
    """

    notices: tuple[Notice, ...] = ()
    term: float = 40.0
    usr1: float = 120.0
    starts: int = 1
    later: tuple[Notice, ...] = ()

    def seconds(self, name: str) -> float:
        """Return the seconds from a signal to SIGKILL."""
        return self.term if name == "SIGTERM" else self.usr1


class Running:
    """A step that was launched."""

    def __init__(self, job: "PreemptedJob", step: int) -> None:
        self._job, self._step = job, step

    def total(self) -> float:
        """Wait until the step has ended on all ranks; return the sum of their notes."""
        return self._job.total(self._step)


class PreemptedJob:
    """One start of a job, as seen by one rank.

    Args:
        disk: (steps of its name, steps that its state has had) of each checkpoint; a copy on each rank.
        group: over which the ranks compare what they do.

    Attributes:
        handlers: of the signals, by name, when `resume` was called.
    """

    def __init__(self, case: Case, notices: tuple[Notice, ...], disk: list[list[int]], group: Any, code: int) -> None:
        self.rank, self._case, self._notices, self._disk, self._group = dist.get_rank(), case, notices, disk, group
        self._code, self._now, self._kill, self._kills = code, 0.0, math.inf, [math.inf]
        self._launched = self._ended = 0
        self._free = 0.0  # when the device has ended all steps so far
        self._sent: dict[int, tuple[float, float]] = {}  # by step, its note and when it was launched
        self._totals: dict[int, float] = {}
        self._dead = self._in_handler = False
        self.handlers: dict[str, Any] = {}
        self.seen: Evidence = {
            "missed": [],
            "blocked": [],
            "raised": "",
            "called_in_handler": "",
            "apart": [],
            "killed": [],
        }
        self.seen |= {"resumes": 0, "begin": 0, "early": [], "least": [], "saves": [], "left": None, "silent": []}

    def for_answer(self) -> SimpleNamespace:
        """Return the job as the contract describes it."""
        given = {name: getattr(self, name) for name in ("resume", "launch", "clock", "least", "save")}
        grace = {number: self._case.seconds(name) for name, number in SIGNALS.items()}
        return SimpleNamespace(steps=STEPS, every=EVERY, save_seconds=SAVE, grace=grace, requeue=self._code, **given)

    # -- what the answer calls ------------------------------------------------------------------------------

    def resume(self) -> int:
        self._enter("resume")
        self._exchange("resume")
        self.seen["resumes"] += 1
        self.handlers = {name: signal.getsignal(number) for name, number in SIGNALS.items()}
        named, done = max(self._disk, default=[0, 0])
        self._launched = self._ended = self.seen["begin"] = done
        self._deliver("resume")
        return named

    def launch(self, note: float) -> Running:
        self._enter("launch")
        if self._launched > STEPS + 2:
            raise Ended
        self._launched += 1
        if self._kill < math.inf and not note:
            self.seen["silent"].append(self._launched)
        self._sent[self._launched] = float(note), self._now
        self._deliver("launch", self._launched)
        return Running(self, self._launched)

    def clock(self) -> float:
        return CLOCKS[self.rank] + self._now

    def total(self, step: int) -> float:
        self._enter("total")
        self._finish(step)
        return self._totals[step]

    def least(self, number: float) -> float:
        self._enter("least")
        self._finish(self._launched)
        self.seen["least"].append(self._launched)
        least = min(value for value, _ in self._exchange("least", 0, float(number)))
        self.seen["left"] = min(self._kills) - self._now if any(map(math.isfinite, self._kills)) else None
        self._now += LEAST
        return least

    def save(self, step: int) -> None:
        self._enter("save")
        self._finish(self._launched)
        self._exchange("save", step)
        self.seen["saves"].append([int(step), self._launched])
        self._now += SAVE / 2
        self._deliver("save", self._launched)
        self._now += SAVE / 2
        self._exchange("save", step)
        self._check_time("save", step)
        self._disk.append([int(step), self._launched])

    # -- what happens meanwhile -----------------------------------------------------------------------------

    def run(self, answer: Callable[..., Any]) -> Evidence:
        """Call the answer, and return what it did until it ended, on this rank."""
        code = returned = None
        ending = "stop"
        try:
            returned = answer(self.for_answer())
            ending = "return"
        except SystemExit as end:
            code, ending = _number(end.code), "exit"
        except Ended:
            pass
        except BaseException:
            if not self.seen["raised"]:  # else the handler's own
                raise
        if not self._dead:
            with contextlib.suppress(Ended):
                self._exchange(ending, code if isinstance(code, int) else 0)
                self._check_time(ending, self._launched)
        return self.seen | {"launched": self._launched, "code": code, "returned": _number(returned)}

    def _finish(self, step: int) -> None:
        """Wait until this step has ended, and those before it."""
        while self._ended < step:
            number = self._ended + 1
            if self._launched == number:
                self.seen["early"].append(number)
            sent = self._exchange("step", number, *self._sent[number])
            self._totals[number] = sum(note for note, _ in sent)
            self._free = max(self._free, *(launched for _, launched in sent)) + STEP  # one step after the other
            self._now, self._ended = max(self._now, self._free), number
            self._deliver("wait", number)
            self.seen["left"] = min(self._kills) - self._now if any(map(math.isfinite, self._kills)) else None
            self._check_time("step", number)

    def _enter(self, call: str) -> None:
        if self._in_handler:
            self.seen["called_in_handler"] = self.seen["called_in_handler"] or call
            raise Ended
        if self._dead:
            raise Ended

    def _exchange(self, doing: str, number: int = 0, *values: float) -> list[list[float]]:
        """Return the values of all ranks, which must be doing the same."""
        what = DOING.index(doing), number
        mine = torch.tensor([*what, self._kill, *(*values, 0.0, 0.0)[:2]], dtype=torch.float64)
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mine, group=self._group)
        every = [theirs.tolist() for theirs in gathered]
        self._kills = [kill for _, _, kill, *_ in every]
        if any(theirs[:2] != every[0][:2] for theirs in every):
            self.seen["apart"], self._dead = [[DOING[int(what)], int(number)] for what, number, *_ in every], True
            raise Ended
        return [theirs[3:] for theirs in every]

    def _check_time(self, doing: str, number: int) -> None:
        """End where the seconds of a rank are over."""
        if min(self._kills) + LEAST < self._now:
            self.seen["killed"], self._dead = [doing, number], True
            raise Ended

    def _deliver(self, point: str, step: int = 0) -> None:
        """Send this rank the signals that come here."""
        for notice in self._notices:
            if (notice.rank, notice.point, notice.step) != (self.rank, point, step):
                continue
            self._kill = min(self._kill, self._now + self._case.seconds(notice.name))
            if not callable(signal.getsignal(SIGNALS[notice.name])):  # it would be ignored, or end the process
                self.seen["missed"].append(notice.name)
                continue
            if SIGNALS[notice.name] in _blocked():
                self.seen["blocked"].append(notice.name)
            self._in_handler = True
            try:
                signal.raise_signal(SIGNALS[notice.name])
                dist.get_rank()  # a handler runs before this call, at the latest
            except Ended:
                raise
            except BaseException as error:
                self.seen["raised"] = type(error).__name__
                raise
            finally:
                self._in_handler = False


def _blocked() -> set[int]:
    """Return the signals that this thread has blocked."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ())) if hasattr(signal, "pthread_sigmask") else set()


def _number(value: Any) -> int | str | None:
    """Return a number as it is, and the type of anything else."""
    return value if value is None or type(value) is int else type(value).__name__
