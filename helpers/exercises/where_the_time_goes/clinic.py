"""Check of the trace clinic: three signs read from the trace of a step, and the illness that they mean."""

import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence
from .made_trace import GPU, OTHER, Event, MadeTrace
from .patients import ILLNESSES, copy, kernels, operations, sick, values_read

Signs = Callable[[list[Event]], dict[str, float]]
Diagnose = Callable[[dict[str, float]], str]
SIGNS = ("items", "copying", "idle")


# -- signs


def _read(events: list[Event], signs: Signs) -> Evidence:
    answer = signs(events)
    if not isinstance(answer, dict):
        return {"returned": type(answer).__name__}
    return {str(sign): float(value) for sign, value in answer.items()}


def _wrong(case: str, got: Evidence, want: Evidence, signs: tuple[str, ...], says: str = "it is") -> str | None:
    """Say which of `signs` is not as in `want`."""
    for answer in (got, want):
        if "returned" in answer:
            return f"{case}: return a dictionary with items, copying and idle; you return {answer['returned']}."
    for sign in signs:
        if sign not in got:
            return f"{case}: {sign!r} is missing."
        if not abs(got[sign] - want[sign]) <= (0 if sign == "items" else 1e-3):
            return f"{case}: you say that {sign!r} is {got[sign]:.4g}; {says} {want[sign]:.4g}."
    return None


def _first_wrong(seen: Evidence, expected: Evidence, sign: str) -> str | None:
    return next((wrong for case, want in expected.items() if (wrong := _wrong(case, seen[case], want, (sign,)))), None)


class CountsValuesRead(Check):
    """`items` is how often a value is read: the events named aten::item."""

    hint = "One read makes several events, one inside the other. Count those named aten::item, exactly."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        seen: Evidence = {}
        for case, count in (("no value read", 0), ("a few values read", 4), ("a value for each sample", 37)):
            made = MadeTrace(random.Random(seed + count))
            start = made.now
            operations(made, 5, 30_000, 2_000)
            values_read(made, count, 3_000)
            made.step_from(start)
            seen[case] = _read(made.shuffled(), signs)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen, expected, "items")


class MeasuresCopies(Check):
    """`copying` is the share of the step spent inside aten::copy_."""

    hint = "aten::to calls aten::_to_copy, which calls aten::copy_: add up the last alone, and divide by the step."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        seen: Evidence = {}
        for case, count in (("nothing copied", 0), ("one copy", 1), ("nine copies", 9)):
            made = MadeTrace(random.Random(seed + count))
            start = made.now
            for _ in range(count):
                copy(made, 60_000)
                made.gap(1_000)
            operations(made, 6, 50_000, 2_000)
            made.step_from(start)
            seen[case] = _read(made.shuffled(), signs)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen, expected, "copying")


class MeasuresIdleTimeOnCpu(Check):
    """Without kernels in the trace, `idle` is the share of the step in which no operation (aten::...) runs."""

    hint = "Wrappers are Python's: only names that begin with aten:: work. One inside another must not count twice."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        seen: Evidence = {}
        for case, length, gap in (("long operations", 200_000, 3_000), ("short operations", 3_000, 5_000)):
            made = MadeTrace(random.Random(seed + length))
            start = made.now
            made.gap(5_000)
            operations(made, 25, length, gap)
            made.write("Optimizer.step#AdamW.step", start + 1_000, made.now, category="user_annotation")
            made.step_from(start)
            seen[case] = _read(made.shuffled(), signs)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen, expected, "idle")


class MeasuresIdleTimeOnGpu(Check):
    """With kernels in the trace, `idle` is the share of the step in which no kernel runs, on any stream."""

    hint = 'Kernels have event["cat"] == "kernel". Those of two streams may run at once: a moment counts once.'

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        seen: Evidence = {}
        for case, count, length, gap in (("a busy GPU", 20, 90_000, 2_000), ("a waiting GPU", 30, 4_000, 9_000)):
            made = MadeTrace(random.Random(seed + count))
            start = made.now
            operations(made, 10, 5_000, 1_000)
            kernels(made, start + 3_000, count, length, gap)
            made.write("Memcpy HtoD (Pageable -> Device)", made.now, made.now + 30_000, 7, "gpu_memcpy")
            made.gap(35_000)
            made.step_from(start)
            seen[case] = _read(made.shuffled(), signs)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen, expected, "idle")


class LooksAtTheStepAlone(Check):
    """What lies outside of the step, or on another thread of the host, is not the step's."""

    hint = "The step is the user_annotation of that name. Compare ts and ts + dur with its own, and the thread, too."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        seen: Evidence = {}
        for gpu in (False, True):
            made = MadeTrace(random.Random(seed + gpu))
            _everything(made)
            made.gap(50_000)
            before, start = made.events, made.now
            made.events = []
            _everything(made)
            if gpu:
                kernels(made, start + 2_000, 12, 5_000, 4_000)
            made.gap(40_000)
            made.step_from(start)
            for case, events in _disturbances(before, made, gpu).items():
                seen[case] = {"alone": _read(made.events, signs), "disturbed": _read(events, signs)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        says = "without it you say"
        found = (_wrong(case, seen[case]["disturbed"], seen[case]["alone"], SIGNS, says) for case in expected)
        return next((wrong for wrong in found if wrong), None)


def _disturbances(before: list[Event], made: MadeTrace, gpu: bool) -> dict[str, list[Event]]:
    """Return traces with the step of `made`, and something that is none of its business."""
    step = made.events[-1]
    if not gpu:
        other = [event | {"tid": OTHER, "ts": event["ts"] + 1.3} for event in made.events[:-1]]
        return {"a warm-up before": before + made.events, "a second thread": other + made.events}
    early = {
        "cat": "kernel",
        "name": "ampere_sgemm_128x64_tn",
        "pid": GPU,
        "tid": 7,
        "ts": step["ts"] - 20,
        "dur": 15.0,
    }
    mark = {"cat": "gpu_user_annotation", "pid": GPU, "tid": 7, "ts": step["ts"] + 9, "dur": step["dur"] - 60}
    return {
        "a kernel before the step": [step | early, *made.events],
        "the GPU's mark of the step": [step | mark, *made.events],
    }


def _everything(made: MadeTrace) -> None:
    """Write some operations, a copy and a few reads."""
    operations(made, 6, 20_000, 2_500)
    copy(made, 50_000)
    values_read(made, 5, 4_000)


# -- diagnoses


class NamesTheIllness(Check):
    """The first that is true: over 10 reads "synchronises", copying > 0.3 "copies", idle > 0.3 "tiny"; or "healthy"."""

    hint = "Ask in this order: reads leave the GPU idle, and so do copies, so the last question needs the first two."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        rng = random.Random(seed)
        low, high = (lambda: rng.uniform(0.01, 0.25)), (lambda: rng.uniform(0.4, 0.6))
        cases: dict[str, tuple[float, float, float]] = {
            "many reads": (rng.randint(12, 500), low(), low()),
            "many reads, and idle": (rng.randint(12, 500), low(), high()),
            "many reads, and copies": (rng.randint(12, 500), high(), low()),
            "11 reads": (11, low(), low()),
            "10 reads": (10, low(), low()),
            "copies": (rng.randint(0, 8), high(), low()),
            "copies, and idle": (rng.randint(0, 8), 0.35, 0.62),
            "copying 0.3": (2, 0.3, low()),
            "idle": (rng.randint(0, 8), low(), high()),
            "idle 0.3": (2, low(), 0.3),
            "nothing to be seen": (rng.randint(0, 8), low(), low()),
        }
        return {case: str(diagnose(dict(zip(SIGNS, values, strict=True)))) for case, values in cases.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if seen[case] != want:
                said = seen[case] if seen[case] in ILLNESSES else "something else"
                return f"{case}: that is {want!r}; you say {said!r}."
        return None


class DiagnosesPatients(Check):
    """Together, on traces of sick and healthy steps of a CPU and of a GPU, the two functions find what is there."""

    hint = "Print the signs of the patient that you got wrong, and look for the one that surprises you."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        rng = random.Random(seed + 9)
        seen: Evidence = {}
        for illness in ILLNESSES:
            for gpu in (False, True):
                found: dict[str, Any] = signs(sick(rng, illness, gpu))
                seen[f"{illness}, on a {'GPU' if gpu else 'CPU'}"] = str(diagnose(found))
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return NamesTheIllness.judge(seen, expected)


CLINIC = (
    CountsValuesRead,
    MeasuresCopies,
    MeasuresIdleTimeOnCpu,
    MeasuresIdleTimeOnGpu,
    LooksAtTheStepAlone,
    NamesTheIllness,
    DiagnosesPatients,
)
