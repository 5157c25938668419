"""Checks of part 3: ring attention. All look at one start of ranks, in four stages."""

import random
from functools import partial
from typing import Any

import torch

from ...core.units import human_bytes
from ..base import Check, Evidence
from ..probing.distance import relative_distance, too_large
from ..probing.stages import stages_on_ranks
from . import ring_run
from .groups import LIMIT
from .ring_run import Ring, by_case, each_case
from .ring_spy import OUTSIDE
from .sequences import Case, cases

EXACT, LARGE_SCORES = 1e-5, 1e-3  # relative, in FP32; the exponential of a score of 200 has fewer digits
SLACK = 512  # bytes beside the blocks: counts, barriers
ROOM = 1.05  # times the products that are needed; a few of one row each, as in a merge, do no harm
PRODUCTS = {"forward": 2, "backward": 5}  # of a block; six where scores are not kept and the output is made again
TOO_LARGE = 4.0  # times the reference's: some save queries, keys and values in another order beside the output
CHUNKS = ("earlier", "later")

# Where keys and values are large, and where scores are. With 4 ranks there is a step that has another one before it,
# and after it, as with any more: of 3 ranks, no step holds all that a step may hold.
RANKS = 5
WIDE, LONG = ([Case(ranks, *sizes) for ranks in (4, RANKS)] for sizes in ((8, 2, 2, 256), (32, 4, 1, 8)))


def _traffic_cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    chunk, width = rng.randint(24, 28), rng.choice((16, 24))
    return [Case(ranks, chunk, 4, 2, width) for ranks in (4, 2)]


def observe(seed: int, ring_attention: Ring) -> Evidence:
    """Return what the ranks saw, by stage and case."""
    stages = {
        "output": (ring_run.output, cases(seed)),
        "gradients": (ring_run.gradients, cases(seed)),
        "traffic": (ring_run.traffic, _traffic_cases(seed)),
        "memory": (ring_run.memory, WIDE + LONG),
    }
    works = {name: partial(each_case, *what) for name, what in stages.items()}
    entries = stages_on_ranks(works, RANKS, ring_attention, seed, begin=ring_run.watched, timeout=LIMIT)
    return {name: by_case(entries[name], where) for name, (_, where) in stages.items()}


def _off(got: Any, want: Evidence, exact: float) -> list[int] | None:
    """Return which of the two chunks are off, [] if the tensor is right; None if it is of another kind or shape.

    The tensor of a rank decides, not its chunk: the gradient of a few queries may be small and mostly rounding.
    """
    if (got["kind"], got.get("shape")) != (want["kind"], want["shape"]):
        return None
    a, b = ([*seen["chunks"][0], *seen["chunks"][1]] for seen in (got, want))
    if relative_distance(a, b) <= exact:
        return []
    pairs = zip(got["chunks"], want["chunks"], strict=True)
    return [i for i, (a, b) in enumerate(pairs) if not relative_distance(a, b) <= exact]


def _difference(got: Any, want: list[Evidence], rank: int, exact: float) -> str | None:
    """Say how the tensor `got` of a rank differs from that of the reference; None if it does not."""
    right = want[rank]
    off = _off(got, right, exact)
    if off is None:
        shape = f" of shape {tuple(got['shape'])}" if "shape" in got else ""
        return f"is {got['kind']}{shape}; it should be a tensor of {right['kind']} of shape {tuple(right['shape'])}"
    if not off:
        return None
    others = [i for i, other in enumerate(want) if i != rank and _off(got, other, exact) == []]
    if others:
        return f"is that of rank {others[0]}"
    a, b = (torch.tensor(seen["chunks"][off[0]]) for seen in (got, right))
    which = "" if len(off) == 2 else f" in its {CHUNKS[off[0]]} chunk, and right in the {CHUNKS[1 - off[0]]} one"
    if not a.isfinite().all():
        return f"has entries that are no numbers (NaN or infinity){which}"
    if not a.any():
        return f"is zero{which}"
    ratio, cosine = (a.norm() / b.norm()).item(), torch.cosine_similarity(a, b, dim=0).item()
    if cosine > 0.9999:
        return f"has the right direction and is {too_large(ratio)}{which}"
    return f"is off by {relative_distance(a.tolist(), b.tolist()):.2g} (relative){which}"


def _touched(seen: dict[str, list[Evidence]]) -> str | None:
    """Say which names an answer has replaced that a check rests on."""
    for case, ranks in seen.items():
        for entry in ranks:
            if entry["changed"]:
                return f"{case}: rank {entry['rank']} put something else in the place of {entry['changed'][0]}."
    return None


class _OnNumbers(Check):
    """A check that compares tensors of all ranks with the reference's."""

    points = 1
    names: tuple[tuple[str, str], ...] = ()  # key in the evidence, words
    probe = staticmethod(observe)

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        if touched := _touched(seen):
            return touched
        for case, want in expected.items():
            exact = LARGE_SCORES if "large" in case else EXACT
            for got, right in zip(seen[case], want, strict=True):
                for key, words in cls.names:
                    group = [entry[key] for entry in want if entry["group"] == right["group"]]
                    wrong = _difference(got[key], group, right["rank"], exact)
                    if wrong:
                        return f"{case}: {words} of rank {right['rank']} {wrong}."
                if not got["kept"]:
                    return f"{case}: rank {right['rank']} has changed its inputs. q, k and v belong to the caller."
        return None


class OutputOfOneProcess(_OnNumbers):
    """Each rank's output is its part of causal attention over the whole sequence, whatever the size of the scores."""

    hint = (
        "Try one rank first, where there is only your own block. Then look at which chunk is off, and for which rank: "
        "which blocks does it see?\n"
        "The partial outputs of two blocks have different denominators. Which number per query joins them?\n"
        "Whose block do you hold in step s, and which of its chunks lie before which of yours?"
    )
    names, stage = (("output", "the output"),), "output"


class GradientOfQueries(_OnNumbers):
    """The gradient of a rank's queries is that of one process, however many calls come before the backward pass."""

    hint = (
        "Which number per query, saved in the forward pass, lets you recompute the softmax block by block?\n"
        "The softmax's gradient subtracts one number per query: of the block, or of the complete output?"
    )
    names, stage = (("q", "the gradient of q"),), "gradients"


class GradientsOfKeysComeHome(_OnNumbers):
    """The gradients of a rank's keys and values include all ranks' queries, and end on the rank that owns the block."""

    hint = (
        "Every rank has a part of a block's gradients. Where is their sum, and on which rank is it needed?\n"
        "How many steps does the sum make until it is home? And which query heads share a key head?"
    )
    names, stage = (("k", "the gradient of k"), ("v", "the gradient of v")), "gradients"


# -- memory, messages, work ---------------------------------------------------------------------------------

MOMENTS = {
    "forward": "At the peak of the forward pass",
    "forward, late": "After the last message of the forward pass",
    "between": "Between the passes",
    "both": "At the peak of both passes",
    "both, late": "After the last message of both passes",
}


class MemoryDoesNotGrowWithRanks(Check):
    """With parts of one size, more ranks take no more memory: no rank holds all keys or all scores."""

    points = 1
    hint = (
        "What is still alive of the block before the last one? A list, or autograd, may keep it.\n"
        "A torch.autograd.Function saves what you tell it: your own q, k, v, the output and a number for each query. "
        "The blocks travel around the ring again in the backward pass."
    )

    probe, stage = staticmethod(observe), "memory"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _touched(seen) or _wrong_memory(WIDE, seen, expected) or _wrong_memory(LONG, seen, expected)


def _wrong_memory(pair: list[Case], seen: Evidence, expected: Evidence) -> str | None:
    """Say what grows from 4 ranks to 5, with parts of one size."""
    few, many = map(str, pair)
    fewer, more = (case.ranks for case in pair)
    room = max(pair[0].block_bytes // 4, pair[0].scores_bytes // 16)
    sizes = (
        f"(The keys and values of a rank take {human_bytes(pair[0].block_bytes)} here, and its scores with a block "
        f"{human_bytes(pair[0].scores_bytes)}.)"
    )
    for key, words in MOMENTS.items():
        a, b = (max(entry[key] for entry in seen[name]) for name in (few, many))
        if not b - a <= room:
            return (
                f"{words} a rank has {human_bytes(b)} beyond its inputs where {more} share the sequence, and "
                f"{human_bytes(a)} where {fewer} do, with parts of one size: {human_bytes(b - a)} more. {sizes}"
            )
        right = max(entry[key] for entry in expected[many])
        if not b <= TOO_LARGE * right:
            return f"{words} a rank has {human_bytes(b)} beyond its inputs; {human_bytes(right)} do. {sizes}"
    made = {case.ranks: {n for entry in seen[str(case)] for n in entry["sizes"]} for case in pair}
    if differing := made[fewer] ^ made[more]:
        with_it, without = (fewer, more) if max(differing) in made[fewer] else (more, fewer)
        return (
            f"Where {with_it} share the sequence, {human_bytes(max(differing))} are allocated at once, and never where "
            f"{without} do, with parts of one size: something grows with the sequence. {sizes}"
        )
    a, b = (max(entry["python"] for entry in seen[name]) for name in (few, many))
    if not b - a <= room:
        return f"Outside of tensors, Python holds {human_bytes(b - a)} more on {more} ranks than on {fewer}. {sizes}"
    return None


class _OnTraffic(Check):
    points = 1
    probe, stage = staticmethod(observe), "traffic"

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        if touched := _touched(seen):
            return touched
        for name, want in expected.items():
            ranks = int(name.split()[0])
            for got, right in zip(seen[name], want, strict=True):
                for direction in PRODUCTS:
                    wrong = cls.wrong(got[direction] | {"block": right["block"]}, right["rank"], ranks, direction)
                    if wrong:
                        return f"{name}, {direction}: rank {right['rank']} {wrong}"
        return None

    @classmethod
    def wrong(cls, seen: Evidence, rank: int, ranks: int, direction: str) -> str | None:
        """Say what is wrong with one pass of one rank."""
        raise NotImplementedError


class BlocksGoRoundTheRing(_OnTraffic):
    """A rank sends to the next one only: one block per step forward, and the same backward, with its gradients."""

    hint = "Is there a step whose message no rank uses?\nHow many heads does the block that you send have?"

    @classmethod
    def wrong(cls, seen: Evidence, rank: int, ranks: int, direction: str) -> str | None:
        for name, nbytes in seen["collectives"].items():
            if nbytes > SLACK:
                return f"took part in a collective ({name}) of {nbytes:,} bytes; at most {SLACK} are allowed."
        following = (rank + 1) % ranks
        for other, nbytes in seen["sent"].items():
            if int(other) != following and nbytes > SLACK:
                who = "a rank outside of the group" if int(other) == OUTSIDE else f"rank {other} of the group"
                return f"sent {nbytes:,} bytes to {who}; the next one is rank {following}."
        nbytes = seen["block"]["bytes"]
        blocks = seen["sent"].get(str(following), 0) / nbytes
        most = ranks - 1 if direction == "forward" else 2 * ranks - 1
        if not blocks <= most + SLACK / nbytes:
            return f"sent {blocks:.2f} times its keys and values; {most} times are enough."
        if not blocks >= (ranks - 1) / 2:
            return f"sent only {blocks:.2f} times its keys and values to the next one: how do they reach all ranks?"
        return None


class HiddenBlocksAreSkipped(_OnTraffic):
    """No rank multiplies what the causal order hides: its own block and half of every other are enough."""

    hint = (
        "Before a block meets your queries, ask which chunks of it lie before which of yours.\n"
        "A mask hides pairs after they were multiplied. What can you leave out before?"
    )

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        return super().judge(seen, expected) or _wrong_halves(seen, expected)

    @classmethod
    def wrong(cls, seen: Evidence, rank: int, ranks: int, direction: str) -> str | None:
        products = 2 if direction == "forward" else 6
        blocks = 2 * seen["flops"] / seen["block"]["flops"] / products
        enough = 1 + (ranks - 1) / 2
        if not blocks <= ROOM * enough:
            return (
                f"multiplied as much as {blocks:.2f} blocks of queries and keys need; {enough:g} are enough: its own, "
                "and half of every other."
            )
        if not blocks >= 0.9 * ranks / 2 * (1 if direction == "forward" else 4 / 6):
            return f"multiplied as much as {blocks:.2f} blocks need, as far as PyTorch can count: that is too little."
        return None


def _wrong_halves(seen: Evidence, expected: Evidence) -> str | None:
    """Say which rank multiplies more than a half of the blocks that come, by what more of them take.

    An answer that makes the output again has six products of each block, and of its own one, too, which may be done
    whole, or in 2 or more pieces for 3/4 of that or less. Six products of the others and five of the own one: one of
    the five runs over the hidden half.
    """
    many, few = expected  # 4 ranks, 2 ranks
    for got, less in zip(seen[many], seen[few], strict=True):
        for direction, products in PRODUCTS.items():
            more, fewer = (
                2 * at[direction]["flops"] / expected[case][0]["block"]["flops"]
                for at, case in ((got, many), (less, few))
            )
            each = more - fewer  # two halves
            own = fewer - each / 2
            again = direction == "backward" and each <= ROOM * 6 and not 0.77 * each < own < 0.97 * each
            if not each <= ROOM * products and not again:
                return (
                    f"{many}, {direction}: rank {got['rank']} makes {own:.1f} products of its own block, and as "
                    f"many as {each:.1f} of a half of each other block. Does one of them run over the hidden half?"
                )
    return None


RING = (
    OutputOfOneProcess,
    GradientOfQueries,
    GradientsOfKeysComeHome,
    MemoryDoesNotGrowWithRanks,
    BlocksGoRoundTheRing,
    HiddenBlocksAreSkipped,
)
