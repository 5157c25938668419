"""Check of the roofline: how long an operation takes, and which of three times binds it."""

import math
import random
from collections.abc import Callable

from ..base import Check, Evidence

Seconds = Callable[[float, float, float, float, float], tuple[float, str]]


def _operation(rng: random.Random, arithmetic: float, memory: float, launch: float) -> tuple[float, ...]:
    """Return the arguments of an operation whose arithmetic, bytes and launch take so many microseconds."""
    peak, bandwidth = 10 ** rng.uniform(10, 15), 10 ** rng.uniform(9.5, 12.5)
    return 1e-6 * arithmetic * peak, 1e-6 * memory * bandwidth, peak, bandwidth, 1e-6 * launch


def _timed(cases: dict[str, tuple[float, ...]], operation_seconds: Seconds) -> Evidence:
    seen: Evidence = {}
    for case, given in cases.items():
        answer = operation_seconds(*given)
        flops, nbytes, peak, bandwidth, launch = given
        parts = [1e6 * part for part in (flops / peak, nbytes / bandwidth, launch)]
        if not (isinstance(answer, tuple | list) and len(answer) == 2 and not isinstance(answer[0], str)):
            seen[case] = {"returned": type(answer).__name__}
            continue
        seen[case] = {"microseconds": 1e6 * float(answer[0]), "bound": str(answer[1]), "parts": parts}
    return seen


def _no_pair(case: str, got: Evidence) -> str:
    return f"{case}: return a pair, (seconds, what bounds it); you return {got['returned']}."


def _wrong_time(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        got = seen[case]
        if "returned" in got:
            return _no_pair(case, got)
        right, mine = want["microseconds"], got["microseconds"]
        if not math.isclose(mine, right, rel_tol=1e-6):
            parts = "FLOPs / peak {:.4g}, bytes / bandwidth {:.4g}, launch {:.4g}".format(*want["parts"])
            return f"{case}: you return {mine:.4g} µs; expected {right:.4g}. ({parts} µs.)"
    return None


class TakesTheSlowerOfTheTwo(Check):
    """Arithmetic and traffic overlap: an operation takes as long as the slower of the two."""

    hint = "FLOPs over the peak rate, bytes over the bandwidth: which of the two takes longer?"

    @staticmethod
    def probe(seed: int, operation_seconds: Seconds) -> Evidence:
        rng = random.Random(seed)
        slow, quick = rng.uniform(50, 500), rng.uniform(5, 40)
        cases = {
            "much arithmetic, few bytes": _operation(rng, slow, quick, 0),
            "little arithmetic, many bytes": _operation(rng, quick, slow, 0),
            "nearly the same time for both": _operation(rng, slow, 0.9 * slow, 0),
        }
        return _timed(cases, operation_seconds)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_time(seen, expected)


class AddsTheLaunch(Check):
    """The launch is added, whatever bounds the operation."""

    hint = "The launch ends before the work starts, so it is added and does not overlap."

    @staticmethod
    def probe(seed: int, operation_seconds: Seconds) -> Evidence:
        rng = random.Random(seed + 1)
        launch = rng.uniform(5, 10)
        cases = {
            "bound by arithmetic": _operation(rng, 8 * launch, 2 * launch, launch),
            "bound by memory": _operation(rng, 2 * launch, 6 * launch, launch),
            "hardly any work": _operation(rng, 0.6 * launch, 0.3 * launch, launch),
        }
        free = {case: (*given[:-1], 0) for case, given in cases.items()}
        return {"with": _timed(cases, operation_seconds), "without": _timed(free, operation_seconds)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["with"].items():
            with_launch, without = seen["with"][case], seen["without"][case]
            if "returned" in with_launch:
                return _no_pair(case, with_launch)
            launch = want["parts"][2]
            more = with_launch["microseconds"] - without["microseconds"]
            if not math.isclose(more, launch, rel_tol=1e-6):
                return f"{case}: a launch of {launch:.4g} µs should add {launch:.4g} µs; yours adds {more:.4g} µs."
        return None


class NamesWhatBoundsIt(Check):
    """The word names the longest of the three times: "compute", "memory" or "launch"."""

    hint = "Put the three times into a dictionary under their names: max(times, key=times.get)."

    @staticmethod
    def probe(seed: int, operation_seconds: Seconds) -> Evidence:
        rng = random.Random(seed + 2)
        launch = rng.uniform(5, 10)
        cases = {
            "far more arithmetic": _operation(rng, 9 * launch, 3 * launch, launch),
            "a little more arithmetic": _operation(rng, 1.3 * launch, 1.1 * launch, launch),
            "far more traffic": _operation(rng, 3 * launch, 9 * launch, launch),
            "a little more traffic": _operation(rng, 1.1 * launch, 1.3 * launch, launch),
            "hardly any work": _operation(rng, 0.2 * launch, 0.1 * launch, launch),
            "a launch longer than either": _operation(rng, 0.7 * launch, 0.9 * launch, launch),
        }
        return _timed(cases, operation_seconds)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if "returned" in got:
                return _no_pair(case, got)
            if got["bound"] != want["bound"]:
                parts = "arithmetic {:.3g}, traffic {:.3g} and launch {:.3g} µs".format(*want["parts"])
                words = got["bound"] if got["bound"] in ("compute", "memory", "launch") else "another word"
                return f"{case}: {parts}. That is bound by {want['bound']}; you return {words}."
        return None


class WorksWithoutArithmetic(Check):
    """A copy does no arithmetic, and an empty operation does nothing: both still take time."""

    hint = "FLOPs and bytes may be 0: divide by the rates, not by the work."

    @staticmethod
    def probe(seed: int, operation_seconds: Seconds) -> Evidence:
        rng = random.Random(seed + 3)
        cases = {"a copy": _operation(rng, 0, 60, 0), "an empty operation": _operation(rng, 0, 0, 5)}
        return _timed(cases, operation_seconds)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_time(seen, expected) or NamesWhatBoundsIt.judge(seen, expected)


ROOFLINE = (TakesTheSlowerOfTheTwo, AddsTheLaunch, NamesWhatBoundsIt, WorksWithoutArithmetic)
