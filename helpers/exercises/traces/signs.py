"""Checks of the trace clinic, first half: three signs read from the trace of a step."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from ..base import Check, Evidence
from .made_trace import GPU, HOST, OTHER, Event, MadeTrace
from .patients import converting_copy, copy, counters_read, kernels, operations, transfer, values_read

Signs = Callable[[list[Event]], dict[str, float]]
Diagnose = Callable[[dict[str, float]], str]
SIGNS = ("items", "copying", "idle")


def _read(events: list[Event], signs: Signs) -> Evidence:
    answer = signs(events)
    if not isinstance(answer, dict):
        return {"returned": type(answer).__name__}
    return {str(sign): float(value) for sign, value in answer.items()}


def wrong_sign(
    case: str, got: Evidence, want: Evidence, signs: tuple[str, ...], says: str = "it should be"
) -> str | None:
    """Say which of `signs` is not as in `want`."""
    for answer in (got, want):
        if "returned" in answer:
            return f"{case}: return a dictionary with items, copying and idle; you return {answer['returned']}."
    for sign in signs:
        if sign not in got:
            return f"{case}: {sign!r} is missing."
        if not abs(got[sign] - want[sign]) <= (0 if sign == "items" else 1e-3):
            return f"{case}: your {sign!r} is {got[sign]:.4g}; {says} {want[sign]:.4g}."
    return None


def _first_wrong(seen: Evidence, expected: Evidence, sign: str) -> str | None:
    return next(
        (wrong for case, want in expected.items() if (wrong := wrong_sign(case, seen[case], want, (sign,)))), None
    )


def _waits_elsewhere(made: MadeTrace, count: int) -> None:
    """Write reads of the host's memory during which another thread, such as a data loader's, waits for the GPU."""
    for _ in range(count):
        start = made.now
        counters_read(made, 1)
        made.write("cudaStreamSynchronize", start + 400, start + 700, OTHER, "cuda_runtime")


def _from_here(made: MadeTrace, count: int, length: int, gap: int) -> None:
    kernels(made, made.now + 3_000, count, length, gap)


def _memcpy(made: MadeTrace, length: int) -> None:
    transfer(made, made.now, made.now + length)
    made.gap(length)


def _behind(made: MadeTrace, count: int) -> None:
    """Write kernels from here on, and copies that they hide in part: a transfer, and a copy of the host."""
    start = made.now
    kernels(made, start + 3_000, count, 40_000, 2_000)
    end = made.now
    transfer(made, start + 20_000, end - 30_000)
    made.now = end - 25_000
    converting_copy(made, 60_000)


def _around(made: MadeTrace) -> None:
    """Write spans around all operations so far that are no operations, though they are on the step's thread."""
    start = round(1000 * made.events[0]["ts"]) - 500
    made.write("Optimizer.step#AdamW.step", start, made.now, category="user_annotation")
    made.write("torch/_ops.py(1123): aten::linear", start + 100, made.now, category="python_function")


_COPY = [(copy, 60_000), (MadeTrace.gap, 1_000)]
_STEPS: dict[str, dict[str, list[tuple[Any, ...]]]] = {
    # what a step consists of, by what is asked of it: (what writes a piece, its arguments)
    "items": {
        "no value read": [(operations, 5, 30_000, 2_000)],
        "a few values read": [(operations, 5, 30_000, 2_000), (values_read, 4, 3_000)],
        "a value for each sample": [(operations, 5, 30_000, 2_000), (values_read, 37, 3_000)],
        "values of a GPU, and of the host": [
            (values_read, 5, 9_000, True),
            (counters_read, 13),
            (_from_here, 6, 9_000, 2_000),
        ],
        "another thread waits for the GPU during reads of the host": [
            (values_read, 5, 9_000, True),
            (_waits_elsewhere, 4),
            (_from_here, 6, 9_000, 2_000),
        ],
    },
    "copying": {
        "nothing copied": [(operations, 6, 50_000, 2_000)],
        "one copy": [*_COPY, (operations, 6, 50_000, 2_000)],
        "nine copies": [*(9 * _COPY), (operations, 6, 50_000, 2_000)],
        "a copy inside a copy": [(converting_copy, 90_000), (operations, 6, 50_000, 2_000)],
        "copies in part behind kernels": [(operations, 6, 5_000, 2_000), (_behind, 9)],
        "a transfer, and nothing beside it": [(_from_here, 9, 9_000, 2_000), (_memcpy, 70_000)],
    },
    "idle on a CPU": {
        "long operations": [(MadeTrace.gap, 5_000), (operations, 25, 200_000, 3_000), (_around,)],
        "short operations": [(MadeTrace.gap, 5_000), (operations, 25, 3_000, 5_000), (_around,)],
        "copies": [(operations, 9, 30_000, 2_000), *(4 * _COPY), (converting_copy, 50_000)],
        "reads": [(operations, 9, 30_000, 2_000), (values_read, 20, 3_000)],
    },
    "idle on a GPU": {
        "a busy GPU": [(operations, 10, 5_000, 1_000), (_from_here, 20, 90_000, 2_000), (_memcpy, 35_000)],
        "a waiting GPU": [(operations, 10, 5_000, 1_000), (_from_here, 30, 4_000, 9_000), (_memcpy, 35_000)],
    },
}
_EVERYTHING: list[tuple[Any, ...]] = [(operations, 6, 20_000, 2_500), (copy, 50_000), (values_read, 5, 4_000)]


def _write(made: MadeTrace, pieces: list[tuple[Any, ...]]) -> list[Event]:
    """Write pieces one after the other; return their events."""
    before = len(made.events)
    for piece, *arguments in pieces:
        piece(made, *arguments)
    return made.events[before:]


def observe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
    """Read the signs of each step in `_STEPS`."""
    seen: Evidence = {"changed": False}
    for kind, cases in _STEPS.items():
        seen[kind] = {}
        for number, (case, pieces) in enumerate(cases.items()):
            made = MadeTrace(random.Random(seed + number))
            start = made.now
            _write(made, pieces)
            made.step_from(start)
            events = made.shuffled()
            given = deepcopy(events)
            seen[kind][case] = _read(given, signs)
            seen["changed"] |= given != events
    return seen


class CountsValuesRead(Check):
    """`items` is how often a value is read: events named aten::item; with kernels, those that wait for the GPU."""

    hint = (
        "One read produces several nested events. Count only those named exactly aten::item.\n"
        "With kernels in the step, look for cudaStreamSynchronize inside: copies have it, too, and reads of "
        "the host's memory do not. A wait counts only on the step's thread."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen["items"], expected["items"], "items")


class MeasuresCopies(Check):
    """`copying` is the fraction in which aten::copy_ or a transfer (gpu_memcpy) runs and no kernel does."""

    hint = (
        "aten::to calls aten::_to_copy, which calls aten::copy_, which may call itself: nested time counts once.\n"
        "Write a function that returns the time that some spans cover. The time of copies and kernels together, "
        "minus that of kernels, is the time in which only copies run."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen["copying"], expected["copying"], "copying")


class MeasuresIdleTimeOnCpu(Check):
    """Without kernels, `idle` is the fraction in which no operation runs, or only a copy or a read of a value."""

    hint = (
        "Only names that start with aten:: are operations. Nested ones must not count twice.\n"
        "The time covered by all operations, minus that covered by aten::copy_ and aten::item, is useful."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen["idle on a CPU"], expected["idle on a CPU"], "idle")


class MeasuresIdleTimeOnGpu(Check):
    """With kernels in the step, `idle` is the fraction in which no kernel runs, on any stream."""

    hint = 'Kernels have event["cat"] == "kernel". Kernels of two streams may overlap: that time counts once.'
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen["idle on a GPU"], expected["idle on a GPU"], "idle")


class ChangesNoTrace(Check):
    """The function does not change the trace."""

    hint = "sorted(events) makes a new list; events.sort() does not. A key that you add to an event stays there."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return "Your function changed the list of events, or an event in it." if seen["changed"] else None


class LooksOnlyAtTheStep(Check):
    """Events outside the step, or on another thread of the host, do not count."""

    hint = (
        "The step is the user_annotation of that name. Compare ts and ts + dur with its own, in whole "
        "nanoseconds: sums of floats are rounded.\n"
        "A thread is a pair, (pid, tid): another process may have a thread with the same number.\n"
        "Look for kernels inside the step: those of a warm-up do not belong to it."
    )

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        seen: Evidence = {}
        for gpu in (False, True):
            made = MadeTrace(random.Random(seed + gpu))
            before = _write(made, [*_EVERYTHING, (MadeTrace.gap, 50_000)])
            start = made.now
            step = _write(made, [*_EVERYTHING, *[(_from_here, 12, 5_000, 4_000)] * gpu, (MadeTrace.gap, 40_000)])
            made.step_from(start)
            step.append(made.events[-1])
            after = _write(made, [(MadeTrace.gap, 9_000), *_EVERYTHING])
            for case, events in _disturbances(before, step, after, gpu).items():
                seen[case] = {"alone": _read(step, signs), "disturbed": _read(events, signs)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrongly_disturbed(seen, expected)


def _wrongly_disturbed(seen: Evidence, expected: Evidence) -> str | None:
    says = "without the additional event it is"
    found = (wrong_sign(case, seen[case]["disturbed"], seen[case]["alone"], SIGNS, says) for case in expected)
    return next((wrong for wrong in found if wrong), None)


def _disturbances(before: list[Event], step: list[Event], after: list[Event], gpu: bool) -> dict[str, list[Event]]:
    """Return traces with a step, whose own event comes last in it, and with something that does not belong to it."""
    whole = step[-1]
    ends = whole["ts"] + whole["dur"]
    kernel = {"cat": "kernel", "name": "ampere_sgemm_128x64_tn", "pid": GPU, "tid": 7, "dur": 15.0}
    early, late = whole | kernel | {"ts": whole["ts"] - 20}, whole | kernel | {"ts": ends + 3}
    if gpu:
        mark = {"cat": "gpu_user_annotation", "pid": GPU, "tid": 7, "ts": whole["ts"] + 9, "dur": whole["dur"] - 60}
        return {
            "a kernel before the step": [early, *step],
            "a kernel after the step": [*step, late],
            "the GPU's mark of the step": [whole | mark, *step],
        }
    threads = {"a second thread": {"tid": OTHER}, "a thread of the same number in another process": {"pid": HOST + 1}}
    return {
        "a warm-up before": before + step,
        "another step's work after it": step + after,
        **{
            case: [event | place | {"ts": event["ts"] + 1.3} for event in step[:-1]] + step
            for case, place in threads.items()
        },
        "kernels of the warm-up alone": [early, *step, late],
    }


class ReadsOnlySpans(Check):
    """Only complete events ("ph": "X") are spans; marks, names, counters and arrows are not."""

    hint = 'event["ph"] is "X" for a complete event. Others may lack "ts", "dur" or "cat": check "ph" first.'

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        made = MadeTrace(random.Random(seed + 5))
        start = made.now
        step = _write(made, _EVERYTHING)
        made.step_from(start)
        place = {"pid": step[0]["pid"], "tid": step[0]["tid"]}
        now = {"ts": step[0]["ts"], **place}
        others = [
            {"ph": "M", "name": "thread_name", **place, "args": {"name": "thread 1000 (python)"}},
            {"ph": "i", "name": "aten::item", "s": "t", **now},
            {"ph": "b", "name": "aten::copy_", "id": 4, "cat": "async", **now, "dur": 90.0},
            {"ph": "s", "name": "ac2g", "id": 3, "cat": "kernel", **now},
            {"ph": "C", "name": "memory", **now, "args": {"bytes": 9}},
        ]
        alone = _read(made.events, signs)
        return {"marks, names and counters": {"alone": alone, "disturbed": _read([*others, *made.events], signs)}}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrongly_disturbed(seen, expected)


class HandlesAnEmptyStep(Check):
    """A step in which nothing runs has no reads and no copies, and is idle all the time."""

    hint = "Which of your expressions fails for an empty list? `max(times, default=0)` does not."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        made = MadeTrace(random.Random(seed + 6))
        before = _write(made, [*_EVERYTHING, (MadeTrace.gap, 5_000)])
        start = made.now
        made.gap(90_000)
        made.step_from(start)
        step = made.events[-1:]
        return {"the step alone": _read(step, signs), "with a warm-up before it": _read(before + step, signs)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        found = (wrong_sign(case, seen[case], want, SIGNS) for case, want in expected.items())
        return next((wrong for wrong in found if wrong), None)


SIGN_CHECKS = (
    CountsValuesRead,
    MeasuresCopies,
    MeasuresIdleTimeOnCpu,
    MeasuresIdleTimeOnGpu,
    LooksOnlyAtTheStep,
    HandlesAnEmptyStep,
    ReadsOnlySpans,
    ChangesNoTrace,
)
