"""Checks of part 3: ring attention. All look at one start of ranks, in four stages."""

from functools import partial
from itertools import chain
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
from .sequences import Case, cases, causal_case, traffic_cases

NEAR = 2e-2  # relative; rounded to BF16 in another way, single numbers are off by up to 0.8 %
# Of the numbers may differ from those that are rounded once, by more than TINY times their root mean square: FP32 sums
# in another order change 0.3 % at most (100 seeds), and what is rounded too early at least 12 %.
FINE, TINY = 0.02, 1e-4
# The same for the output where scores are large: with scores up to 180, 1.1 % at most, and 30 % where weights are off
# by less than NEAR shows.
FINE_FAR = 0.1
SLACK = 512  # bytes beside the blocks: counts, barriers
ROOM = 1.05  # times the products that are needed; a few of one row each, as in a merge, do no harm
PRODUCTS = {"forward": (2, 2), "backward": (4, 6)}  # of a pair of chunks: at least, at most (with the output again)
TOO_LARGE = 4.0  # times the reference's
# Some save their inputs in another order beside the output: twice as much. Keys and values in FP32 make 2.2 times.
TOO_LARGE_BETWEEN = 2.1
MORE = 1.25  # times the bytes of the output in FP32 may be saved in FP32
PYTHON = 8192  # bytes by which Python's own memory may grow: a list with a number for each token, and its copies

# Where keys and values are large, where scores are, and where a mask is not small beside these. With 4 ranks there is a
# step that has another one before it, and after it, as with any more: of 3 ranks, no step holds all that one may hold.
RANKS = 5
WIDE, LONG, NARROW = (
    [causal_case(ranks, *sizes) for ranks in (4, RANKS)] for sizes in ((8, 2, 2, 512), (32, 4, 1, 8), (32, 1, 1, 8))
)


def observe(seed: int, ring_attention: Ring) -> Evidence:
    """Return what the ranks saw, by stage and case."""
    stages = {
        "output": (ring_run.output, cases(seed)),
        "gradients": (ring_run.gradients, cases(seed)),
        "traffic": (ring_run.traffic, traffic_cases(seed)),
        # Masks that stay in a cache show in the narrow cases, before longer ones with the same masks.
        "memory": (ring_run.memory, NARROW + WIDE + LONG),
    }
    works = {name: partial(each_case, *what) for name, what in stages.items()}
    entries = stages_on_ranks(works, RANKS, ring_attention, seed, begin=ring_run.watched, timeout=LIMIT)
    return {name: by_case(entries[name], where) for name, (_, where) in stages.items()}


def _limit(case: str, key: str) -> float | None:
    """Return how many of a tensor's numbers may differ from those that are rounded once; None where any may."""
    if "rounding" in case:
        return FINE
    return FINE_FAR if key == "output" and "large scores" in case else None


def _rounded_early(got: Evidence, want: Evidence, limit: float) -> str | None:
    """Say in how many numbers a tensor differs from one that is rounded once; None if they are few."""
    a, b = (torch.tensor(list(chain.from_iterable(seen["chunks"]))) for seen in (got, want))
    share = ((a - b).abs() > TINY * b.square().mean().sqrt()).double().mean().item()
    if share <= limit:
        return None
    return (
        f"differs from the FP32 result, rounded once, in {share:.0%} of its numbers. Another order of sums explains "
        f"at most {FINE:.0%}, so something is rounded to BF16 before the end"
        + (", or earlier chunks keep too much weight when a larger score comes" if limit > FINE else "")
    )


def _off(got: Any, want: Evidence) -> list[int] | None:
    """Return which chunks are off, [] if the tensor is right; None if it is of another kind or shape.

    The tensor of a rank decides, not its chunk: the gradient of a few queries may be small and mostly rounding.
    """
    if (got["kind"], got.get("shape")) != (want["kind"], want["shape"]):
        return None
    a, b = (list(chain.from_iterable(seen["chunks"])) for seen in (got, want))
    if relative_distance(a, b) <= NEAR:
        return []
    pairs = zip(got["chunks"], want["chunks"], strict=True)
    return [i for i, (a, b) in enumerate(pairs) if not relative_distance(a, b) <= NEAR]


def _difference(got: Any, want: list[Evidence], rank: int, limit: float | None) -> str | None:
    """Say how the tensor `got` of a rank differs from that of the reference; None if it does not."""
    right = want[rank]
    off = _off(got, right)
    if off is None:
        shape = f" of shape {tuple(got['shape'])}" if "shape" in got else ""
        return f"is {got['kind']}{shape}; it should be a tensor of {right['kind']} of shape {tuple(right['shape'])}"
    if not off:
        return _rounded_early(got, right, limit) if limit else None
    others = [i for i, other in enumerate(want) if i != rank and _off(got, other) == []]
    if others:
        return f"is that of rank {others[0]}"
    a, b = (torch.tensor(seen["chunks"][off[0]]) for seen in (got, right))
    chunks = len(right["chunks"])
    which = "" if len(off) == chunks else f" in chunk {off[0] + 1} of its {chunks} ({chunks - len(off)} are right)"
    if not a.isfinite().all():
        return f"has NaN or infinite entries{which}"
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
                return f"{case}: rank {entry['rank']} replaced {entry['changed'][0]}, which the check relies on."
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
            for got, right in zip(seen[case], want, strict=True):
                for key, words in cls.names:
                    group = [entry[key] for entry in want if entry["group"] == right["group"]]
                    wrong = _difference(got[key], group, right["rank"], _limit(case, key))
                    if wrong:
                        how = "" if right.get("recorded", True) else " under torch.no_grad()"
                        return f"{case}: {words} of rank {right['rank']}{how} {wrong}."
                if not got["kept"]:
                    return (
                        f"{case}: rank {right['rank']} has changed q, k, v, order, lengths or the gradient of the "
                        "output, which belong to the caller."
                    )
        return None


class OutputOfOneProcess(_OnNumbers):
    """Each rank's output is its part of what one process computes, document by document, rounded to BF16 once."""

    hint = (
        "Try one rank and one document first. Then look at which chunk is off, and for which rank: which keys do its "
        "queries see?\n"
        "The partial outputs of two chunks of keys have different denominators. Which number per query merges them? "
        "In which dtype are you adding up?\n"
        "In a chunk that some queries see, another query may see no key: what are its maximum and its sum there? If "
        "the first keys that a query meets are those of its own chunk, it has always seen one: its own."
    )
    names, stage = (("output", "the output"),), "output"


class GradientOfQueries(_OnNumbers):
    """The gradient of a rank's queries is that of one process, however many calls come before the backward pass."""

    hint = (
        "Which number per query, saved in the forward pass, lets you recompute the softmax block by block?\n"
        "The softmax's gradient subtracts one number per query. Does that number belong to a block or to the complete "
        "output? To the output before it was rounded, or after?\n"
        "Other calls, of other documents, may come before a call's backward pass: keep what belongs to a call on ctx.\n"
        "Which messages does a rank owe the others in the backward pass, even if the gradient of its output is zero?"
    )
    names, stage = (("q", "the gradient of q"),), "gradients"


class GradientsOfKeysComeHome(_OnNumbers):
    """The gradients of a rank's keys and values include all ranks' queries, and end on the rank that owns the block."""

    hint = (
        "Every rank has a part of a block's gradients. Where is their sum, and on which rank is it needed?\n"
        "How many steps does the sum take to come home? In which dtype does it travel? And which query heads share "
        "a key head?"
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
    """With equal parts per rank, more ranks need no more memory each: no rank holds all keys or all scores."""

    points = 1
    hint = (
        "Which earlier blocks are still alive? A list, a cache of masks, or autograd may keep them.\n"
        "A torch.autograd.Function saves what you tell it: q, k and v as they came, the output and a number for each "
        "query. The blocks travel around the ring again in the backward pass."
    )

    probe, stage = staticmethod(observe), "memory"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        pairs = (_wrong_memory(pair, seen, expected) for pair in (WIDE, LONG, NARROW))
        return _touched(seen) or next((wrong for wrong in pairs if wrong), None)


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
                f"{words}, a rank holds {human_bytes(b)} beyond its inputs with {more} ranks and {human_bytes(a)} with "
                f"{fewer}, at equal parts per rank: {human_bytes(b - a)} more. {sizes}"
            )
        right = max(entry[key] for entry in expected[many])
        if not b <= (TOO_LARGE_BETWEEN if key == "between" else TOO_LARGE) * right:
            return f"{words}, a rank holds {human_bytes(b)} beyond its inputs; {human_bytes(right)} is enough. {sizes}"
    wide = max(entry["wide"] for entry in seen[many])
    right = max(entry["wide"] for entry in expected[many])
    if pair[0].kv_heads < pair[0].heads and wide > right:  # else keys and values in BF16 have this size as well
        return (
            f"Between the passes a rank holds {wide} tensors as large as q in FP32; {right} is enough, the output "
            "before it is rounded. Save q, k and v in the dtype that they arrived in."
        )
    upcast = max(entry["upcast"] for entry in seen[many])
    if upcast > 0:
        return (
            f"Between the passes the graph holds {upcast} tensor{'s' * (upcast > 1)} in FP32 with the numbers of q, k "
            "or v alone. Save q, k and v in the dtype that they arrived in."
        )
    saved, right = (max(entry["in fp32"] for entry in evidence[many]) for evidence in (seen, expected))
    if right and not saved <= MORE * right:  # else an output, too, takes no more than a few numbers for each token
        return (
            f"Between the passes the graph holds {human_bytes(saved)} in FP32; {human_bytes(right)} is enough, the "
            "output before it is rounded. Save q, k and v in the dtype that they arrived in, without a factor."
        )
    made = {case.ranks: {n for entry in seen[str(case)] for n in entry["sizes"]} for case in pair}
    if differing := made[fewer] ^ made[more]:
        with_it, without = (fewer, more) if max(differing) in made[fewer] else (more, fewer)
        return (
            f"With {with_it} ranks, one allocation takes {human_bytes(max(differing))}; with {without} ranks and equal "
            f"parts per rank, none has this size. Something grows with the sequence. {sizes}"
        )
    a, b = (max(entry["python"] for entry in seen[name]) for name in (few, many))
    if not b - a <= max(room, PYTHON):
        return f"Besides tensors, Python holds {human_bytes(b - a)} more with {more} ranks than with {fewer}. {sizes}"
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
    """A rank sends to the next one only: one BF16 block per step forward; the same and FP32 gradients backward."""

    hint = (
        "Is there a step whose message no rank uses? How many heads does the block that you send have?\n"
        "The block that travels has the dtype of the keys and values you got. When does a rank need them in FP32?\n"
        "The gradients of a block are sums over all ranks. In which dtype can they be added up?"
    )

    @classmethod
    def wrong(cls, seen: Evidence, rank: int, ranks: int, direction: str) -> str | None:
        for name, nbytes in seen["collectives"].items():
            if nbytes > SLACK:
                return f"took part in a collective ({name}) of {nbytes:,} bytes; at most {SLACK} are allowed."
        following = (rank + 1) % ranks
        for other, nbytes in seen["sent"].items():
            if int(other) != following and nbytes > SLACK:
                who = "a rank outside the group" if int(other) == OUTSIDE else f"rank {other} of the group"
                return f"sent {nbytes:,} bytes to {who}; the next one is rank {following}."
        nbytes, forward = seen["block"]["bytes"], direction == "forward"
        blocks, wide = seen["sent"].get(str(following), 0) / nbytes, seen["wide"] / nbytes
        most = ranks - 1 if forward else 3 * ranks - 1
        if not blocks <= most + SLACK / nbytes:
            gradients = "" if forward else f" ({ranks - 1} blocks, and {ranks} times the gradients of one in FP32)"
            return (
                f"sent {blocks:.2f} times the bytes of its keys and values in BF16; at most {most} times is needed"
                f"{gradients}. It sent {wide:.2f} times these bytes in FP32."
            )
        if not blocks >= (ranks - 1) / 4:
            return f"sent only {blocks:.2f} times its keys and values to the next rank: how do they reach all ranks?"
        if not forward and not wide >= (ranks - 1) / 2:
            return (
                f"sent {blocks:.2f} times the bytes of its keys and values in BF16, of which {wide:.2f} times in FP32: "
                "the gradients that travel are sums, and have to travel in FP32."
            )
        return None


class HiddenChunksAreSkipped(_OnTraffic):
    """A rank multiplies a chunk of queries with a chunk of keys only if one of the queries sees one of the keys."""

    hint = (
        "Before you multiply a block, ask for each of its chunks: which of your chunks come no earlier in the "
        "sequence and share a document with it?\n"
        "A mask hides keys after they have been multiplied. Which matmuls can you skip?"
    )

    @classmethod
    def wrong(cls, seen: Evidence, rank: int, ranks: int, direction: str) -> str | None:
        least, most = PRODUCTS[direction]
        block = seen["block"]
        pairs = 2 * seen["flops"] / block["flops"]["pair"]  # times the products
        if not pairs <= ROOM * most * block["pairs"]:
            return (
                f"multiplied as much as {pairs / most:.1f} pairs of chunks need; its queries see keys in only "
                f"{block['pairs']} pairs."
            )
        if not 2 * seen["flops"] >= 0.9 * least * block["flops"]["least"]:
            return (
                f"multiplied as much as {pairs / most:.1f} pairs of chunks need, which is too little. The check counts "
                "`@`, einsum and PyTorch's attention: does yours multiply in another way?"
            )
        return None


RING = (
    OutputOfOneProcess,
    GradientOfQueries,
    GradientsOfKeysComeHome,
    MemoryDoesNotGrowWithRanks,
    BlocksGoRoundTheRing,
    HiddenChunksAreSkipped,
)
