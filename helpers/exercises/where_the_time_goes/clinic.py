"""Checks of the trace clinic, second half: the illness that three signs mean, and both halves together."""

import random
from typing import Any

from ..base import Check, Evidence
from .patients import ILLNESSES, sick
from .signs import SIGN_CHECKS, SIGNS, Diagnose, Signs


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


CLINIC = (*SIGN_CHECKS, NamesTheIllness, DiagnosesPatients)
