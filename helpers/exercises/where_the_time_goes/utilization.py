"""Check of MFU and HFU: what a model needs, and what was executed, over what the machine could have done."""

import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence

Utilization = Callable[..., tuple[float, float]]
_PLAIN = "nothing recomputed"
KEYS = ("parameters", "layers", "width", "length", "tokens", "seconds", "peak", "recomputed")


def _run(rng: random.Random, **changes: float) -> dict[str, float]:
    """Return the arguments of a plausible run of training."""
    sizes = {
        "parameters": rng.randint(10**8, 10**10),
        "layers": rng.randint(12, 80),
        "width": 128 * rng.randint(8, 64),
        "length": 512 * rng.randint(1, 16),
    }
    step = {"tokens": 2 ** rng.randint(14, 20), "seconds": rng.uniform(2, 30), "peak": rng.uniform(1e15, 1e17)}
    return {**sizes, **step, "recomputed": 0, **changes}


class _Computes(Check):
    """Compares the answers for some runs."""

    cases: Callable[[random.Random], dict[str, dict[str, float]]]

    @classmethod
    def probe(cls, seed: int, utilization: Utilization) -> Evidence:
        seen: Evidence = {}
        for case, run in cls.cases(random.Random(seed)).items():
            answer: Any = utilization(*(run[key] for key in KEYS))
            pair = isinstance(answer, tuple | list) and len(answer) == 2
            seen[case] = [float(share) for share in answer] if pair else type(answer).__name__
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected.items():
            if isinstance(seen[case], str):
                return f"{case}: return the pair (MFU, HFU); you return {seen[case]}."
            for name, mine, share in zip(("MFU", "HFU"), seen[case], right, strict=True):
                if not abs(mine - share) <= 1e-9 + 1e-6 * share:
                    look = (
                        "Return a fraction, not percent."
                        if share and abs(mine / share - 100) < 1e-3
                        else "Check the FLOPs that the model needs per token, and the number of tokens."
                        if name == "MFU"
                        else "Check what only HFU counts."
                    )
                    return f"{case}: your {name} is {mine:.4g}; expected {share:.4g}. {look}"
        return None


class CountsWhatTheModelNeeds(_Computes):
    """Without recomputation both are the needed FLOPs over what the peak could have done in that time."""

    hint = (
        "FLOPs per token: 6 per parameter, and the attention of each layer. Multiply by the tokens of the step.\n"
        "Scores and values take 2·T·W each per token and layer, forward; the backward pass takes twice as much.\n"
        "The machine could have done seconds x peak FLOPs."
    )

    @staticmethod
    def cases(rng: random.Random) -> dict[str, dict[str, float]]:
        """Return runs without recomputation."""
        return {
            "short sequences": _run(rng, length=512),
            "long sequences": _run(rng, length=65_536, parameters=10**9),
            "no parameters, attention only": _run(rng, parameters=0),
        }


class AddsWhatWasRecomputed(_Computes):
    """Recomputed FLOPs count in HFU only."""

    hint = "The model does not need the recomputed FLOPs, but the machine executed them: add them for HFU."

    @staticmethod
    def cases(rng: random.Random) -> dict[str, dict[str, float]]:
        """Return runs with recomputation, and one without, on which all else depends."""
        runs = {f"recomputed {flops:.0e} FLOPs": _run(rng, recomputed=flops) for flops in (1e15, 1e17)}
        return {_PLAIN: _run(rng), **runs}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if _Computes.judge({_PLAIN: seen[_PLAIN]}, {_PLAIN: expected[_PLAIN]}):
            return "Not judged until MFU and HFU are correct without recomputation: see the first check."
        return _Computes.judge(seen, expected)


UTILIZATION = (CountsWhatTheModelNeeds, AddsWhatWasRecomputed)
