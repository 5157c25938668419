"""X6, part 4: a run that is preempted. Two checks of a point each, which judge the same starts of two ranks."""

import random
import signal
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from .scheduler import EVERY, SAVE, SIGNALS, STEPS, Case, Notice, PreemptedJob

Answer = Callable[..., Any]


def _cases(seed: int) -> dict[str, Case]:
    """Return the cases by name.

    Inside the launch of step 2, 3, 7 or 8 a signal is noted in the next step, and the ranks stop after the one behind
    it, 8 seconds later; so a save, of 8.5 seconds, needs 16.5 seconds after the signal.
    """
    dice = random.Random(seed + 4)
    step, other, rank = dice.choice((2, 7)), dice.choice((1, 6)), dice.choice((0, 1))
    first, short = Notice(rank, "launch", step), "SIGTERM with too little time"
    again = Notice(rank, "launch", step + 1)
    later, usr1 = Notice(rank, "launch", STEPS - 1), Notice(rank, "launch", step, "SIGUSR1")
    return {
        "no signal": Case(starts=2),
        "SIGTERM on rank 0 alone": Case((Notice(0, "launch", step),), starts=2),
        "SIGTERM on rank 1 alone": Case((Notice(1, "wait", other),)),
        "SIGUSR1 on rank 0 alone": Case((Notice(0, "wait", other, "SIGUSR1"),)),
        "SIGUSR1 on rank 1 alone": Case((Notice(1, "launch", step, "SIGUSR1"),), term=15),
        "SIGTERM on both ranks, a step apart": Case((first, Notice(1 - rank, "launch", step + 1))),
        "SIGTERM and SIGUSR1 on one rank in one step": Case((first, Notice(rank, "launch", step, "SIGUSR1"))),
        "SIGTERM in job.resume": Case((Notice(rank, "resume"),)),
        "SIGUSR1 in job.resume": Case((Notice(1 - rank, "resume", name="SIGUSR1"),)),
        "SIGTERM in a periodic save": Case((Notice(rank, "save", EVERY),)),
        "SIGUSR1 in a periodic save": Case((Notice(1 - rank, "save", EVERY, "SIGUSR1"),)),
        "SIGTERM, and signals in the save that it causes": Case(
            (Notice(0, "launch", 6), Notice(0, "save", 8), Notice(1, "save", 8, "SIGUSR1"))
        ),
        "SIGTERM two steps before a periodic save": Case((Notice(rank, "launch", EVERY - 2),)),
        "SIGTERM right before a periodic save": Case((Notice(rank, "launch", EVERY - 1),)),
        "SIGTERM with the time for a save, to the half second": Case((first,), term=16.5),
        short: Case((first,), term=15, starts=2),
        f"{short}, by a quarter of a second": Case((first,), term=16.25),
        f"{short}, two steps before a periodic save": Case((Notice(rank, "launch", 2 * EVERY - 2),), term=15),
        f"{short}, and SIGUSR1 on the other rank": Case((first, Notice(1 - rank, "launch", step, "SIGUSR1")), term=15),
        f"{short}, after SIGUSR1": Case((Notice(rank, "launch", step, "SIGUSR1"), again), term=13),
        f"{short}, then again": Case((first, again), term=15),
        f"{short}, then SIGUSR1": Case((first, Notice(rank, "launch", step + 1, "SIGUSR1")), term=15),
        f"SIGUSR1, then {short} when the last step has ended": Case((usr1, Notice(rank, "wait", step + 2)), term=7),
        f"SIGUSR1, then {short} on the other rank when the last step has ended": Case(
            (usr1, Notice(1 - rank, "wait", step + 2)), term=7
        ),
        "SIGUSR1, then SIGTERM with enough time when the last step has ended": Case(
            (usr1, Notice(rank, "wait", step + 2)), term=10
        ),
        "SIGUSR1 with too little time": Case((usr1,), usr1=15),
        "SIGUSR1 with too little time, then SIGTERM": Case((usr1, again), usr1=15),
        "SIGUSR1, where SIGTERM's grace is shorter than a save": Case((usr1,), term=7),
        "SIGTERM, where SIGUSR1's grace is shorter than a save": Case((first,), usr1=7),
        "SIGTERM before the last step": Case((later,)),
        f"{short}, before the last step": Case((later,), term=11, starts=2),
        "SIGTERM in the last step": Case((Notice(rank, "launch", STEPS),)),
        "SIGTERM in the last save, and in the next job.resume": Case(
            (Notice(rank, "save", STEPS),), starts=2, later=(Notice(rank, "resume"),)
        ),
    }


def _starts(answer: Answer, seed: int) -> dict[str, list[Evidence]]:
    """One rank: each case, in one start or two."""
    group, code = dist.new_group(), random.Random(seed).randrange(64, 100)
    seen = {}
    for name, case in _cases(seed).items():
        disk: list[list[int]] = []
        notices = [case.notices, case.later][: case.starts]
        seen[name] = [_start(answer, PreemptedJob(case, coming, disk, group, code)) for coming in notices]
    return seen


def _start(answer: Answer, job: PreemptedJob) -> Evidence:
    def missed(number: int, _: Any) -> None:
        job.seen["missed"].append(signal.Signals(number).name)

    before = {number: signal.signal(number, missed) for number in SIGNALS.values()}
    called = dist.group.WORLD._get_sequence_number_for_group()
    try:
        seen = job.run(answer)
        installed = [name for name, handler in job.handlers.items() if callable(handler) and handler is not missed]
        at_end = {name: signal.getsignal(SIGNALS[name]) for name in installed}
        seen["removed"] = [name for name, handler in at_end.items() if not callable(handler) or handler is missed]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return seen | {"collectives": dist.group.WORLD._get_sequence_number_for_group() - called}


class OneObservation(Check):
    """Looks at what the same starts have shown."""

    points = 1

    @staticmethod
    def probe(seed: int, preemptible: Answer) -> Evidence:
        ranks = on_ranks(_starts, 2, preemptible, seed)
        return {name: [list(start) for start in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for name, starts in expected.items():
            for number, right in enumerate(starts):
                ranks = seen[name][number]
                where = name if not number else f"{name}; started again"
                wrong = cls.wrong_together(ranks)
                if wrong:
                    return f"{where}: {wrong}"
                for rank, (got, want) in enumerate(zip(ranks, right, strict=True)):
                    wrong = cls.wrong_alone(got, want)
                    if wrong:
                        return f"{where}: rank {rank} {wrong}"
        return None

    @staticmethod
    def wrong_together(ranks: list[Evidence]) -> str | None:
        """Say what is wrong with a start that no rank shows alone."""
        return None

    @staticmethod
    def wrong_alone(got: Evidence, want: Evidence) -> str | None:
        """Say what is wrong with one rank of a start."""
        raise NotImplementedError


class RanksStopAtOneStep(OneObservation):
    """The handler only notes the signal, and all ranks stop after the same step, without one more synchronization."""

    hint = (
        "Install the handlers before job.resume: a handler may call job.clock, and append to a list.\n"
        "A note of 1 from one rank makes the total 1 on all ranks. A rank must not act on what only it knows.\n"
        "Launch step n + 1, then read the total of step n. Where a save is due, also read the last step's total."
    )

    @staticmethod
    def wrong_together(ranks: list[Evidence]) -> str | None:
        return _wrong_reaction(ranks)

    @staticmethod
    def wrong_alone(got: Evidence, want: Evidence) -> str | None:
        return _wrong_steps(got, want)


def _wrong_reaction(ranks: list[Evidence]) -> str | None:
    """Say what a handler does wrong, or where the ranks diverge."""
    for rank, got in enumerate(ranks):
        if got["missed"]:
            return f"{got['missed'][0]} arrived on rank {rank} while none of your handlers was installed for it."
        if got["raised"]:
            return f"the handler raises {got['raised']} on rank {rank}, in the middle of the run. Only note the signal."
        if got["blocked"]:
            return (
                f"{got['blocked'][0]} arrived on rank {rank} while it was blocked, so the handler runs only later, and "
                "notes a time that is too late. The handler may run at any moment: block nothing."
            )
        if got["called_in_handler"]:
            return f"the handler calls job.{got['called_in_handler']} on rank {rank}. Only note the signal."
    if ranks[0]["apart"]:
        return f"the ranks diverge: {_places(ranks[0])}. Rely on what all ranks know: the total of a step's notes."
    for rank, got in enumerate(ranks):
        if got["removed"]:
            return (
                f"at the end, your handler for {got['removed'][0]} is not installed on rank {rank}. A signal that "
                "comes now would end the process with another exit code, so leave the handlers in place."
            )
    return None


def _places(got: Evidence) -> str:
    return "; ".join(f"rank {rank} {_words(*place)}" for rank, place in enumerate(got["apart"]))


def _words(doing: str, number: int) -> str:
    """Say what a rank does."""
    return {
        "resume": "calls job.resume",
        "step": f"waits for step {number}",
        "least": "calls job.least",
        "save": f"calls job.save({number})",
        "exit": f"exits with code {number}",
        "return": "returns",
        "stop": "was stopped by the check",
    }[doing]


def _wrong_steps(got: Evidence, want: Evidence) -> str | None:
    if got["collectives"] != want["collectives"]:
        return "calls collectives of torch.distributed. The notes travel with the step; job.least is for the stop."
    if len(got["least"]) > max(1, len(want["least"])):
        return (
            f"called job.least {len(got['least'])} times, first after step {got['least'][0]}. Each call waits for all "
            "launched steps on all ranks; call it once, when the ranks have agreed to stop."
        )
    excused = {got["launched"], *(done for _, done in got["saves"])}
    extra = [step for step in got["early"] if step not in excused]
    if extra:
        return f"waited for step {extra[0]} before it launched step {extra[0] + 1}, so the device had nothing to do."
    if got["silent"]:
        return f"launched step {got['silent'][0]} with a note of 0, though it had been signaled before."
    if got["resumes"] != want["resumes"]:
        return f"called job.resume {got['resumes']} times; expected once."
    if got["launched"] != want["launched"]:
        return f"stopped after step {got['launched']}; it should stop after step {want['launched']}."
    if got["least"] != want["least"]:
        calls = "once" if len(got["least"]) == 1 else f"{len(got['least'])} times"
        right = "once, when the ranks have agreed to stop" if want["least"] else "no call, since the ranks do not stop"
        return f"called job.least {calls}; expected {right}."
    return None


class SavesIfThereIsTime(OneObservation):
    """It saves if every rank has enough time left, otherwise keeps the last checkpoint, and then exits."""

    hint = (
        "Of several signals the earliest kill counts: keep the smallest job.clock() + job.grace[number].\n"
        "The clocks of two ranks cannot be compared, but the seconds that are left can. Pass those to job.least.\n"
        "Steps that were launched take time. Read the clock when the last one has ended."
    )

    @staticmethod
    def wrong_alone(got: Evidence, want: Evidence) -> str | None:
        return _wrong_end(got, want)


def _wrong_end(got: Evidence, want: Evidence) -> str | None:
    if got["apart"]:
        return f"calls a different function than the other rank: {_places(got)}."
    if got["missed"]:
        return f"had none of your handlers installed when {got['missed'][0]} arrived."
    if got["killed"]:
        return (
            f"is killed when it {_words(*got['killed'])}: a rank has run out of time. "
            "How many seconds are left on the rank that has the fewest, when the last step has ended?"
        )
    if got["begin"] != want["begin"]:
        return f"continues after step {got['begin']}; it should continue after step {want['begin']}."
    for step, done in got["saves"]:
        if step != done:
            return f"called job.save({step}) when {done} steps had been launched."
    if got["saves"] != want["saves"]:
        saves, right = ([step for step, _ in each["saves"]] for each in (got, want))
        seconds = "" if got["left"] is None else f"{got['left']:g} s were left for a save of {SAVE:g} s"
        left = f" (after the last step, {seconds})" if seconds else ""
        return f"saved after the steps {saves}; it should save after {right}{left if len(saves) != len(right) else ''}."
    if got["code"] != want["code"]:
        ends = "returned" if got["code"] is None else f"ended with exit code {got['code']}"
        right = "it should return" if want["code"] is None else f"exit code {want['code']}, job.requeue, is expected"
        return f"{ends}; {right}."
    if got["returned"] != want["returned"]:
        return f"returned {got['returned']}; it should return {want['returned']}."
    return None


PREEMPTION = (RanksStopAtOneStep, SavesIfThereIsTime)
