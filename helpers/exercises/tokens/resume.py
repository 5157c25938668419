"""Check of a loader that is taken up again in the middle of an epoch, at the very batch that would have come next.

Two observations serve all checks: whole epochs, and epochs that are broken off and taken up again.
"""

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from ..base import Check, Evidence
from .numbers import Named, Numbers

ResumableLoader = Callable[..., Any]  # (dataset, batch_size, seed, workers=0)
COUNT, BATCH = 23, 4  # five batches of 4 and one of 3
PER_EPOCH = -(-COUNT // BATCH)
LONG, FEW = 1001, 16  # epochs of one seed, and samples in each
CHARACTERS = 200  # of a state as JSON


def _epochs(loader: Any) -> Iterator[list[int]]:
    """Yield the batches of one epoch after the other, as lists; an end after three epochs without a batch."""
    empty = 0
    while empty < 3:
        empty += 1
        for batch in loader:
            empty = 0
            yield [int(number) for number in batch]


def _next(loader: Any, count: int) -> list[list[int]]:
    return list(itertools.islice(_epochs(loader), count))


# ---- whole epochs


def _whole(seed: int, make: ResumableLoader) -> Evidence:
    """Run whole epochs: of several sizes, with workers, of several seeds, with random numbers drawn elsewhere."""
    epochs = {}
    for count, workers in ((COUNT, 0), (COUNT, 2), (2 * BATCH, 0), (BATCH - 1, 0)):
        dataset = Numbers(count)
        loader = make(dataset, BATCH, seed, workers)
        batches = [[[int(n) for n in batch] for batch in loader] for _ in range(2)]
        epochs[f"{count} samples, {workers} workers"] = {"batches": batches, "readers": dataset.readers.tolist()}
    orders, drawn = {}, []
    for name, number in (("first", seed), ("again", seed), ("other", seed + 1)):
        _seed_globals(len(orders))  # the notebook's own random numbers may be anywhere
        batches = _next(make(Numbers(COUNT), BATCH, number), 3 * PER_EPOCH)
        orders[name] = [batches[k : k + PER_EPOCH] for k in range(0, 3 * PER_EPOCH, PER_EPOCH)]
        drawn.append([torch.rand(()).item(), np.random.random(), random.random()])
    return {"epochs": epochs, "orders": orders, "drawn": drawn} | _collated(seed, make) | _many(seed, make)


def _seed_globals(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _collated(seed: int, make: ResumableLoader) -> Evidence:
    """Return a batch of pairs, and what DataLoader makes of the same pairs."""
    dataset = Named(COUNT)
    try:
        numbers, names = next(iter(make(dataset, BATCH, seed)))
        due = default_collate([dataset[int(i)] for i in numbers])
        return {"collated": [repr(numbers), list(names)], "due": [repr(due[0]), list(due[1])]}
    except (TypeError, ValueError, AttributeError) as error:  # collated by something that takes no pairs
        return {"collated": type(error).__name__, "due": ""}


def _many(seed: int, make: ResumableLoader) -> Evidence:
    """Look for orders that come again: in many epochs of one seed, and in the first epochs of the next seeds."""

    def order(loader: Any) -> tuple[int, ...]:
        return tuple(int(number) for batch in loader for number in batch)

    loader, seen = make(Numbers(FEW), FEW, seed), {}
    for epoch in range(LONG):
        first = seen.setdefault(order(loader), epoch)
        if first != epoch:
            return {"twice": [first, epoch], "shared": []}
    shared = []
    for other in (*range(1, 12), 100, 1000):
        loader = make(Numbers(FEW), FEW, seed + other)
        shared += [[other, epoch, seen.get(order(loader))] for epoch in range(2)]
    return {"twice": [], "shared": [entry for entry in shared if entry[2] is not None]}


class RunsThroughEpochs(Check):
    """Each epoch has every sample once, in batches of `batch_size`; the last is smaller. Workers change nothing."""

    hint = (
        "Cut an order of all indices into chunks of batch_size; the last chunk may be smaller.\n"
        "DataLoader(dataset, batch_sampler=list of lists of indices, num_workers=workers) does the rest."
    )
    probe = staticmethod(_whole)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["epochs"].items():
            sizes, count = [len(batch) for batch in want["batches"][0]], len(want["readers"])
            for number, batches in enumerate(seen["epochs"][case]["batches"], 1):
                if [len(batch) for batch in batches] != sizes:
                    return f"{case}, epoch {number}: batches of {[len(b) for b in batches]}; expected {sizes}."
                if sorted(n for batch in batches for n in batch) != list(range(count)):
                    return (
                        f"{case}, epoch {number}: some samples come twice, and others are missing. Cut one permutation."
                    )
            used, due = (sorted(set(of["readers"])) for of in (seen["epochs"][case], want))
            if used != due:
                by = "the main process" if used == [0] else f"{len(used)} worker{'s' * (len(used) > 1)}"
                return f"{case}: {by} read the samples. Is `workers` passed on to DataLoader?"
        alone, crew = (seen["epochs"][f"{COUNT} samples, {workers} workers"]["batches"] for workers in (0, 2))
        if alone != crew:
            return "With two workers the batches differ, or come in another order. Draw the order in the main process."
        if isinstance(seen["collated"], str):
            return f"Samples that are pairs of a number and a text: {seen['collated']}. Let DataLoader collate them."
        if seen["collated"] != seen["due"]:
            return "A batch is not what DataLoader makes of its samples by default: a tensor for each of their parts."
        return None


class OrderFromSeedAndEpoch(Check):
    """The order follows from `seed` and the number of the epoch alone: different for each, the same in every run."""

    hint = (
        "A generator of your own, seeded from the loader's seed and the epoch's number.\n"
        "seed + epoch would give seed 1 in epoch 0 the order of seed 0 in epoch 1; 10 * seed + epoch only "
        "postpones the collision.\n"
        "np.random.default_rng([seed, epoch]) takes both; its permutation(n) is an order."
    )
    probe = staticmethod(_whole)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        orders, other = seen["orders"]["first"], seen["orders"]["other"]
        if orders != seen["orders"]["again"]:
            return "Two loaders of the same seed have different orders: another source of random numbers is used."
        first = [number for batch in orders[0] for number in batch]
        if first == sorted(first):
            return "The first epoch is in the order of the data set: nothing is shuffled. Draw a permutation."
        if orders[0] == orders[1] or orders[1] == orders[2]:
            return (
                "Two successive epochs have the same order. Does the epoch's number go into the generator, and does it "
                "grow?"
            )
        if orders[0] == other[0]:
            return "Another seed has the same order. Does the seed go into the generator?"
        if seen["twice"]:
            return "Epochs {} and {} of one seed have the same order. Do seed and epoch both go in whole?".format(
                *seen["twice"]
            )
        if seen["shared"]:
            later, there, here = seen["shared"][0]
            same = f"Epoch {here} of seed s has the order of epoch {there} of seed s + {later}"
            return f"{same}: two runs that are meant to differ see the same orders."
        for name, *draws in zip(("torch", "NumPy", "random"), *seen["drawn"], strict=True):
            if draws[0] == draws[1]:
                return f"The loader seeds the global generator of {name}: its numbers would repeat in each epoch."
        return None


# ---- epochs that are broken off

_NOT_YET = "Not judged until a loader without workers continues correctly: see goes_on_with_the_next_batch."


def _json(state: Any) -> Any:
    """Return `state` as it is after a trip through a file, or a copy of what JSON cannot write."""
    try:
        return json.loads(json.dumps(state))
    except TypeError:
        return copy.deepcopy(state)


def _taken_up(
    make: ResumableLoader, seed: int, breaks: tuple[int, ...], workers: tuple[int, int] = (0, 0), count: int = COUNT
) -> Evidence:
    """Take batches, breaking off after each number of `breaks`; return what comes after the last break.

    Args:
        workers: before the first break, and after it.
    """
    had, a_epoch = sum(breaks), -(-count // BATCH)
    left = a_epoch - had % a_epoch  # batches of the broken epoch
    due = _next(make(Numbers(count), BATCH, seed, 0), had + left + 2)[had:]
    loader, changed = make(Numbers(count), BATCH, seed, workers[0]), {}
    for taken in breaks:
        batches = _epochs(loader)
        for _ in itertools.islice(batches, taken):  # fewer where the loader runs dry: other checks see to that
            pass
        state = loader.state_dict()
        saved = _json(state)
        next(batches, None)
        changed["saved"] = _json(state) != saved
        batches.close()
        loaded = copy.deepcopy(saved)
        dataset = Numbers(count)
        loader = make(dataset, BATCH, seed + 1, workers[1])  # another seed: the state has the right one
        loader.load_state_dict(loaded)
    batches = _epochs(loader)
    got = list(itertools.islice(batches, left))
    reads = int(dataset.reads.sum())
    changed["loaded"] = loaded != saved
    return {"due": due, "got": got + list(itertools.islice(batches, 2)), "reads": reads, "left": left} | changed


def _broken(seed: int, make: ResumableLoader) -> Evidence:
    """Break epochs off in many places and take them up again; save the state of a small and of a large data set."""
    rng = random.Random(seed)
    middle, early = rng.randint(2, PER_EPOCH - 2), rng.randint(1, 2)
    alone = {
        "interrupted in the first epoch": (middle,),
        "in the third epoch": (2 * PER_EPOCH + middle,),
        "before the first batch": (0,),
        "with the last batch of an epoch": (PER_EPOCH,),
        "twice in one epoch": (middle, 1),
        "twice, the second time before a batch came": (middle, 0),
    }
    runs = {case: _taken_up(make, seed, breaks) for case, breaks in alone.items()}
    runs["with a last batch that is a full one"] = _taken_up(make, seed, (2,), count=2 * BATCH)
    crew = {"two workers before and after": (2, 2), "two workers, then none": (2, 0)}
    states = {}
    for count in (COUNT, 100 * COUNT):
        loader = make(Numbers(count), BATCH, seed)
        batches = iter(loader)
        for _ in itertools.islice(batches, count // BATCH // 2):
            pass
        state = loader.state_dict()
        try:
            states[f"{count} samples"] = len(json.dumps(state)) if isinstance(state, dict) else None
        except TypeError:
            states[f"{count} samples"] = None
    return {
        "alone": runs,
        "crew": {case: _taken_up(make, seed, (early,), workers) for case, workers in crew.items()},
        "states": states,
    }


def _not_the_next(case: str, due: list[list[int]], got: list[list[int]]) -> str | None:
    """Say where the batches after a break leave those that were due."""
    if got == due:
        return None
    k = next((k for k, (a, b) in enumerate(zip(got, due, strict=False)) if a != b), min(len(got), len(due)))
    if k >= len(got):
        return f"{case}: only {k} batches come; expected {len(due)}."
    if k:
        where = ", with the next epoch" if len(due[k - 1]) < BATCH else ""
        return f"{case}: {k} batches are correct; then{where} {got[k]} comes instead of {due[k]}."
    if got[0] in due:
        return f"{case}: {got[0]} comes first. Skipped, though the loop never received it: {due[: due.index(got[0])]}."
    return f"{case}: {got[0]} comes first; expected {due[0]}."


class GoesOnWithTheNextBatch(Check):
    """A new loader with the saved state continues with the next batch, and then with the next epochs."""

    hint = (
        "The state: seed, epoch, and how many batches of this epoch the loop has received.\n"
        "Count a batch before you yield it: the loop may save while it has the batch.\n"
        "The order can be drawn again from seed and epoch; then skip what the loop has received. In the next epoch "
        "skip nothing.\n"
        "After a second interruption, the batches from before the first one still count."
    )
    probe = staticmethod(_broken)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        runs = seen["alone"]
        if any(runs[case]["saved"] for case in expected["alone"]):
            return "A state changes after it was saved, with the next batch. Return a copy."
        if any(runs[case]["loaded"] for case in expected["alone"]):
            return "The loader changes the dictionary that it loads. Copy what is in it."
        wrong = (_not_the_next(case, runs[case]["due"], runs[case]["got"]) for case in expected["alone"])
        return next(filter(None, wrong), None)


class CountsWhatTheLoopHad(Check):
    """Undelivered batches of workers do not count, and the number of workers may change afterwards."""

    hint = (
        "Workers fetch ahead: a sampler that counts what it hands out counts batches that the loop never received.\n"
        "Count in the loop over the DataLoader, where batches are delivered."
    )
    probe = staticmethod(_broken)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if GoesOnWithTheNextBatch.judge(seen, expected):
            return _NOT_YET
        runs = seen["crew"]
        wrong = (_not_the_next(case, runs[case]["due"], runs[case]["got"]) for case in expected["crew"])
        return next(filter(None, wrong), None)


class ReadsNothingAgain(Check):
    """Resuming an epoch reads none of the samples that the loop received before the interruption."""

    hint = "Skip indices, not batches: skip in the order, before the DataLoader reads anything."
    probe = staticmethod(_broken)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if GoesOnWithTheNextBatch.judge(seen, expected):
            return _NOT_YET
        for group in ("alone", "crew"):
            for case, want in expected[group].items():
                reads, due = seen[group][case]["reads"], sum(map(len, want["due"][: want["left"]]))
                if reads > due:
                    return f"{case}: {due} samples of the epoch are left, and the loader read {reads}."
        return None


class StateIsSmall(Check):
    """The state is a dictionary of a few numbers, which JSON can store, however large the data set."""

    hint = "The order can be drawn again from seed and epoch, so the order itself need not be saved."
    probe = staticmethod(_broken)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected["states"]:
            size = seen["states"][case]
            if size is None:
                return f"{case}: json.dumps cannot write the state. Return a dictionary of plain numbers."
            if size > CHARACTERS:
                return (
                    f"{case}: in the middle of an epoch the state takes {size:,} characters as JSON; "
                    f"{CHARACTERS} are enough."
                )
        return None


RESUME = (
    RunsThroughEpochs,
    OrderFromSeedAndEpoch,
    GoesOnWithTheNextBatch,
    CountsWhatTheLoopHad,
    ReadsNothingAgain,
    StateIsSmall,
)
