"""Checks of the data order: the same global batches on any number of ranks, from any step on, with skips."""

import json
import random
from typing import Any

import numpy as np
import torch

from ..base import Check, Evidence

SIZES = ((40, 8), (50, 12), (23, 5), (64, 16))  # samples, batch size


def joined(order: Any, step: int, ranks: int = 1) -> list[int]:
    """Return the global batch of `step`: the parts of all ranks, in their order."""
    return [sample for rank in range(ranks) for sample in part(order, step, rank, ranks)]


def part(order: Any, step: int, rank: int, ranks: int) -> list[int]:
    """Return what one rank gets, as plain numbers."""
    return [int(sample) for sample in order.rows(step, rank, ranks)]


class EachSampleOnceAnEpoch(Check):
    """An epoch has samples // batch_size steps of `batch_size` samples each, and no sample occurs twice."""

    compared = False
    hint = (
        "For each epoch, draw a permutation of all samples and cut it into slices of batch_size.\n"
        "epoch, index = divmod(position, samples // batch_size); drop the rest at the end of an epoch."
    )

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        epochs = []
        for samples, size in SIZES:
            order = DataOrder(samples, size, seed)
            steps = samples // size
            epochs.append([[joined(order, e * steps + i) for i in range(steps)] for e in range(3)])
        return {"epochs": epochs}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for (samples, size), epochs in zip(SIZES, seen["epochs"], strict=True):
            for number, epoch in enumerate(epochs):
                where = f"{samples} samples in batches of {size}, epoch {number}"
                wrong = [len(batch) for batch in epoch if len(batch) != size]
                if wrong:
                    return f"{where}: a global batch has {wrong[0]} samples; it should have {size}."
                had = [sample for batch in epoch for sample in batch]
                if not set(had) <= set(range(samples)):
                    unknown = min(set(had) - set(range(samples)))
                    return f"{where}: sample {unknown} occurs, but samples are numbered from 0 to {samples - 1}."
                if len(set(had)) < len(had):
                    twice = next(sample for sample in had if had.count(sample) > 1)
                    return f"{where}: sample {twice} occurs {had.count(twice)} times; it should occur at most once."
        return None


class NewOrderEachEpoch(Check):
    """Each epoch and each seed shuffles all samples anew."""

    compared = False
    hint = (
        "np.random.default_rng([seed, epoch]) is a different generator for each epoch and each seed.\n"
        "Let it permute all samples, even those that do not fill a batch."
    )

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        orders = {}
        for one in (seed, seed + 1, seed + 100, seed + 256):
            order = DataOrder(60, 10, one)
            for epoch in (0, 1, 2, 3, 10, 100, 256, 1000):
                orders[f"{one - seed}:{epoch}"] = [sample for i in range(6) for sample in joined(order, 6 * epoch + i)]
        order = DataOrder(23, 5, seed)  # three samples are left over in each epoch
        return {"orders": orders, "had": sorted({sample for step in range(4 * 30) for sample in joined(order, step)})}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        orders = {tuple(map(int, key.split(":"))): tuple(order) for key, order in seen["orders"].items()}
        for (seed, epoch), order in orders.items():
            if list(order) == sorted(order):
                return "an epoch goes through the samples in the order 0, 1, 2, …; it should be shuffled."
            for (other_seed, other_epoch), other in orders.items():
                if (seed, epoch) < (other_seed, other_epoch) and order == other:
                    if seed == other_seed:
                        return (
                            f"epochs {epoch} and {other_epoch} go through the samples in the same order; the order "
                            "should depend on the epoch."
                        )
                    return (
                        f"two seeds give the same order, in epoch {epoch} of one and epoch {other_epoch} of the other; "
                        "each pair of seed and epoch should have its own order."
                    )
        first, second = ({frozenset(orders[0, e][i : i + 10]) for i in range(0, 60, 10)} for e in (0, 1))
        if first == second:
            return "two epochs have the same batches in a different order; shuffle the samples, not the batches."
        missing = sorted(set(range(23)) - set(seen["had"]))
        if missing:
            return (
                f"23 samples in batches of 5: sample {missing[0]} does not occur in 30 epochs. Each epoch leaves out "
                "three samples, but not always the same ones."
            )
        return None


class FairParts(Check):
    """The sizes of the ranks' parts of a batch differ by at most one."""

    compared = False
    hint = "np.array_split(batch, ranks)[rank] splits as evenly as possible."

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        order = DataOrder(40, 8, seed)
        return {"sizes": [[len(part(order, 3, rank, n)) for rank in range(n)] for n in (1, 2, 3, 5, 8, 11)]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, sizes in zip((1, 2, 3, 5, 8, 11), seen["sizes"], strict=True):
            if not max(sizes) - min(sizes) <= 1:
                return (
                    f"8 samples on {ranks} ranks: the parts have {', '.join(map(str, sizes))} samples; their sizes "
                    "should differ by at most one."
                )
        return None


class SameOnAnyRanks(Check):
    """The ranks' parts, concatenated in rank order, are the same batch for any number of ranks."""

    compared = False
    hint = "Compute the global batch first, independent of the ranks; then take this rank's contiguous slice of it."

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        order = DataOrder(50, 12, seed)
        return {"batches": [[joined(order, step, n) for step in (0, 5, 11)] for n in (1, 2, 3, 4, 5, 12, 15)]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        batches = dict(zip((1, 2, 3, 4, 5, 12, 15), seen["batches"], strict=True))
        for ranks, found in batches.items():
            for step, batch, alone in zip((0, 5, 11), found, batches[1], strict=True):
                if sorted(batch) != sorted(alone):
                    extra, missing = sorted(set(batch) - set(alone)), sorted(set(alone) - set(batch))
                    lacks = f"sample {missing[0]} is missing" if missing else "samples occur more than once"
                    what = f"sample {extra[0]} should not be in it" if extra else lacks
                    return f"step {step}: {ranks} ranks together do not have the batch of one rank: {what}."
                if batch != alone:
                    return (
                        f"step {step}: {ranks} ranks have the same samples as one rank, but their concatenated "
                        "parts are in another order."
                    )
        return None


class AnyStepFirst(Check):
    """Steps can be requested in any order and repeatedly; the program's random generators do not change."""

    compared = False
    hint = (
        "`rows` computes its answer from the step; it must not count calls.\n"
        "Use a generator of your own, made from seed and epoch, not the program's: torch.manual_seed is for dropout."
    )

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        steps = list(range(20))
        torch.manual_seed(seed)
        straight = [joined(order, step) for order in [DataOrder(40, 8, seed)] for step in steps]
        mixed = steps[:]
        random.Random(seed + 1).shuffle(mixed)
        torch.manual_seed(seed + 1)
        np.random.seed((seed + 1) % 2**32)
        random.seed(seed + 1)
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
        order = DataOrder(40, 8, seed)
        jumped = dict(sorted((step, joined(order, step, 2)) for step in mixed))
        again = joined(order, mixed[0], 2)
        after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
        same = torch.equal(before[0], after[0]), bool((before[1] == after[1]).all()), before[2] == after[2]
        return {
            "straight": straight,
            "jumped": [jumped[step] for step in steps],
            "again": again == jumped[mixed[0]],
            "left_alone": list(same),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for step, (one, other) in enumerate(zip(seen["straight"], seen["jumped"], strict=True)):
            if one != other:
                return (
                    f"the batch of step {step} depends on which steps were requested before it, or on the program's "
                    "random numbers; it should depend only on the seed, the skips and the step."
                )
        if not seen["again"]:
            return "two calls of `rows` for the same step give different batches."
        for name, alone in zip(("torch", "numpy", "random"), seen["left_alone"], strict=True):
            if not alone:
                return f"the program's random generator ({name}) has changed: `rows` should use a generator of its own."
        return None


SKIPS = (  # skips of one order, one after the other: (step, count)
    [(10, 4)],
    [(10, 5), (20, 1)],
    [(10, 5), (4, 2)],
    [(6, 3), (6, 2)],
    [(3, 1), (1, 4), (0, 1)],
    [(2, 20), (5, 3), (4, 0), (9, 2)],
)


class SkipsBatches(Check):
    """After `skip(step, count)`, `step` has the batch that came `count` steps later; earlier steps keep theirs."""

    compared = False
    hint = (
        "Without skips, the batches of steps 0, 1, 2, … have positions 0, 1, 2, …. Skips remove positions.\n"
        "`rows` should take the batch at `self.position(step)`, not the one at `step`."
    )

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        straight = [joined(order, step) for order in [DataOrder(40, 8, seed)] for step in range(60)]
        runs = []
        for skips in SKIPS:
            order = DataOrder(40, 8, seed)
            for step, count in skips:
                order.skip(step, count)
            runs.append([joined(order, step, 2) for step in range(30)])
        return {"straight": straight, "runs": runs}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for skips, run in zip(SKIPS, seen["runs"], strict=True):
            wanted = list(range(60))
            for step, count in skips:
                del wanted[step : step + count]
            called = ", then ".join(f"skip({step}, {count})" for step, count in skips)
            for step, batch in enumerate(run):
                right = seen["straight"][wanted[step]]
                if batch != right:
                    was = [n for n, other in enumerate(seen["straight"]) if other == batch]
                    got = f"that of step {was[0]}" if was else "one that no step had"
                    return (
                        f"after {called}: step {step} should have the batch that step {wanted[step]} had at first, "
                        f"but has {got}."
                    )
        return None


STEPS = (0, 3, 4, 8, 15, 100, 1000)  # that are asked for before and after loading a state


class StateTravels(Check):
    """The state is small and fits in JSON; an order with another seed continues from it, skips included."""

    compared = False
    hint = "`load_state_dict` changes self.seed: `rows` should compute its permutation from the seed in use now."

    @staticmethod
    def probe(seed: int, DataOrder: Any) -> Evidence:
        order = DataOrder(4000, 8, seed)
        order.skip(10, 5)
        order.skip(4, 2)
        order.skip(30, 9)
        state = order.state_dict()
        text = json.dumps(state)
        later = DataOrder(4000, 8, seed + 77)
        later.skip(6, 3)
        for step in STEPS:  # it has given batches before, with a seed and a gap of its own
            joined(later, step)
        later.load_state_dict(json.loads(text))
        here, there = ([joined(each, step, 3) for step in STEPS] for each in (order, later))
        other = DataOrder(4000, 8, seed + 78)
        other.load_state_dict(state)
        order.skip(2, 5)
        other.skip(1, 1)
        return {"characters": len(text), "here": here, "there": there, "same": json.dumps(state) == text}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["characters"] <= 2000:
            return (
                f"with 4,000 samples, the state takes {seen['characters']:,} characters as JSON; the seed and the "
                "skipped batches are enough."
            )
        for step, here, there in zip(STEPS, seen["here"], seen["there"], strict=True):
            if here != there:
                return f"after load_state_dict, step {step} has a different batch than in the saved order."
        if not seen["same"]:
            return "a later skip has changed the state that was returned or loaded: return and keep copies."
        return None


ORDER = (
    EachSampleOnceAnEpoch,
    NewOrderEachEpoch,
    FairParts,
    SameOnAnyRanks,
    AnyStepFirst,
    SkipsBatches,
    StateTravels,
)
