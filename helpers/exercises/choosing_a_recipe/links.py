"""Checks of a bound on speed that includes the links: what a rank sends in an update, and what it costs."""

import math
import random
from collections.abc import Callable
from numbers import Real
from typing import Any

from ..base import Check, Evidence

NEAR = 1e-9  # relative: sums and quotients of numbers without rounding to speak of
Sent = Callable[[str, int, int, int], float]
Faster = Callable[[float, float, float, float, int], float]


class _Sends(Check):
    """Compares the bytes of one kind with the reference's, over sizes drawn from the seed."""

    kind: str
    look: str

    @classmethod
    def probe(cls, seed: int, sent_per_update: Sent, times_faster: Faster) -> Evidence:
        chance = random.Random(seed)
        cases = [(840 * chance.randint(1, 10**6), ranks, m) for ranks in (2, 5, 8) for m in (1, chance.randint(2, 9))]
        cases += [(840 * chance.randint(1, 10**6), 1, m) for m in (1, 3)]
        return {"cases": cases, "sent": [_number(sent_per_update(cls.kind, *case)) for case in cases]}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for (parameters, ranks, m), mine, right in zip(expected["cases"], seen["sent"], expected["sent"], strict=True):
            where = f'"{cls.kind}", {parameters:,} parameters, {_several(ranks, "rank")}, {_several(m, "micro-batch")}'
            if mine is None:
                return f"{where}: return a number of bytes."
            if not math.isclose(mine, right, rel_tol=NEAR):
                apart = f", {mine / right:.4g} times the right number" if right else ""
                return f"{where}: you return {mine:,.0f} bytes{apart}; expected {right:,.0f}. {cls.look}"
        return None


def _number(answer: Any) -> float | None:
    return float(answer) if isinstance(answer, Real) else None


def _several(number: int, what: str) -> str:
    """Say "1 rank" or "3 ranks"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('ch') else 's'}"


class DdpSendsOncePerUpdate(_Sends):
    """With DDP, a rank all-reduces FP32 gradients in a ring, once per update."""

    kind = "DDP"
    look = "How often are gradients all-reduced, in how many bytes each, and what does a ring send?"
    hint = (
        "Gradients in FP32 take 4 bytes per parameter.\n"
        "An all-reduce is a reduce-scatter and an all-gather. Each of them sends (ranks - 1) / ranks of the bytes.\n"
        "2 * (ranks - 1) / ranks * 4 * parameters, for any number of micro-batches."
    )


class FsdpSendsForEveryMicroBatch(_Sends):
    """With FSDP, a rank gathers BF16 weights twice and reduce-scatters FP32 gradients, in every micro-batch."""

    kind = "FSDP"
    look = "Which collectives run in a micro-batch, with how many bytes per parameter each?"
    hint = (
        "Add up the bytes per parameter of the three collectives of a micro-batch.\n"
        "2 + 2 + 4 bytes per parameter, of which a ring sends (ranks - 1) / ranks.\n"
        "All of this is sent again for each micro-batch."
    )


class OffloadCrossesTheLinkTwice(_Sends):
    """With an offloaded optimizer, FP32 gradients go to the host and FP32 weights return, once per update."""

    kind = "offload"
    look = "What crosses the link to the host in each direction, and how often?"
    hint = "4 bytes per parameter in each direction, whatever the number of ranks or micro-batches."


class NothingIsOverlapped(Check):
    """times_faster adds the time on the link to the rank's step, and counts the samples of all ranks."""

    hint = (
        "How long does an update take a rank if it sends only after it has computed?\n"
        "step + sent / rate seconds. In this time, all ranks together process `ranks` times the samples that one GPU "
        "processes in `alone` seconds."
    )

    @staticmethod
    def probe(seed: int, sent_per_update: Sent, times_faster: Faster) -> Evidence:
        chance, cases = random.Random(seed), []
        for ranks in (1, 2, 8, 64):
            step = chance.uniform(0.01, 0.05)
            alone, sent = step * chance.uniform(0.8, 1.2), chance.uniform(1e8, 1e9)
            cases += [(alone, step, sent, rate, ranks) for rate in (32e9, 300e9)]
        cases.append((0.024, 0.02, 0.0, 32e9, 4))  # a rank does less than the single GPU, and sends nothing
        return {"cases": cases, "faster": [_number(times_faster(*case)) for case in cases]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for (alone, step, sent, rate, n), mine, right in zip(
            expected["cases"], seen["faster"], expected["faster"], strict=True
        ):
            where = (
                f"alone {1e3 * alone:.1f} ms, step {1e3 * step:.1f} ms, {sent / 1e6:.0f} MB at {rate / 1e9:.0f} GB/s, "
                f"{_several(n, 'rank')}"
            )
            if mine is None:
                return f"{where}: return a number."
            if not math.isclose(mine, right, rel_tol=NEAR):
                return (
                    f"{where}: you return {mine:.4g}; expected {right:.4g}. How many samples do all ranks process, "
                    f"and how many seconds does that take, link included?"
                )
        return None


LINKS = (DdpSendsOncePerUpdate, FsdpSendsForEveryMicroBatch, OffloadCrossesTheLinkTwice, NothingIsOverlapped)
