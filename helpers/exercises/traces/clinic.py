"""Checks of the trace clinic, second half: the problem that three signs mean, and both halves together."""

import random
from typing import Any

from ..base import Check, Evidence
from .patients import BUSY_GPU, ILLNESSES, busy_gpu, sick
from .signs import SIGN_CHECKS, SIGNS, Diagnose, Signs, wrong_sign

_ORDER = "Ask in order: idle at most 0.3, more than 10 items, copying above 0.3."


class NamesTheIllness(Check):
    """Idle up to 0.3: "healthy". Else over 10 reads: "synchronizes"; else copying over 0.3: "copies"; else "tiny"."""

    hint = "First ask whether the processor is idle. If it is, ask for the reason: reads, then copies, then launches."

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        rng = random.Random(seed)
        low, high = (lambda: rng.uniform(0.01, 0.25)), (lambda: rng.uniform(0.4, 0.6))
        cases: dict[str, tuple[float, float, float]] = {
            "many reads, and idle": (rng.randint(12, 500), low(), high()),
            "many reads, and copies": (rng.randint(12, 500), 0.35, 0.62),
            "many reads, and busy": (rng.randint(12, 500), low(), low()),
            "11 reads": (11, low(), high()),
            "10 reads": (10, low(), high()),
            "copies, and idle": (rng.randint(0, 8), 0.35, 0.62),
            "copying 0.3": (2, 0.3, high()),
            "idle": (rng.randint(0, 8), low(), high()),
            "idle 0.3": (2, 0.1, 0.3),
            "idle 0.31": (2, 0.1, 0.31),
            "many reads, idle 0.3": (40, 0.3, 0.3),
            "busy": (rng.randint(0, 8), low(), low()),
        }
        return {case: str(diagnose(dict(zip(SIGNS, values, strict=True)))) for case, values in cases.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if seen[case] != want:
                return f"{_misnamed(case, seen[case], want)} {_ORDER}"
        return None


def _misnamed(case: str, said: str, want: str) -> str:
    return f"{case}: the diagnosis should be {want!r}; you return {said if said in ILLNESSES else 'something else'!r}."


class DiagnosesPatients(Check):
    """Together, the two functions find the problem in traces of slow and healthy steps, on a CPU and on a GPU."""

    hint = "Print the signs of the trace that you got wrong. Which of the three is not what you expect?"

    @staticmethod
    def probe(seed: int, signs: Signs, diagnose: Diagnose) -> Evidence:
        rng = random.Random(seed + 9)
        traces = {
            f"{illness}, on a {'GPU' if gpu else 'CPU'}": sick(rng, illness, gpu)
            for illness in ILLNESSES
            for gpu in (False, True)
        }
        traces |= {case: busy_gpu(rng, case) for case in BUSY_GPU}
        seen: Evidence = {}
        for case, events in traces.items():
            found: dict[str, Any] = signs(events)
            named = str(diagnose(found))
            seen[case] = {"named": named, "signs": {sign: float(found[sign]) for sign in SIGNS if sign in found}}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["named"] != want["named"]:
                said = _misnamed(case, got["named"], want["named"])
                wrong = wrong_sign("Look at your signs", got["signs"], want["signs"], SIGNS)
                return f"{said} {wrong or 'Your signs are right. ' + _ORDER}"
        return None


CLINIC = (*SIGN_CHECKS, NamesTheIllness, DiagnosesPatients)
