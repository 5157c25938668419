"""Check of a loader that is taken up again in the middle of an epoch, at the very batch that would have come next."""

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset

from ..base import Check, Evidence

ResumableLoader = Callable[..., Any]  # (dataset, batch_size, seed, workers=0)
COUNT, BATCH = 23, 4  # five batches of 4 and one of 3
PER_EPOCH = -(-COUNT // BATCH)


class Numbers(Dataset):
    """Sample i is i. `reads`, shared with workers, counts how often each was read."""

    def __init__(self, count: int) -> None:
        self.reads = torch.zeros(count, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.reads)

    def __getitem__(self, i: int) -> int:
        self.reads[i] += 1
        return int(i)


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


def _broken_off(make: ResumableLoader, taken: int, seed: int, workers: int = 0) -> Any:
    """Take `taken` batches, and return the state that the loop would save after the last of them."""
    loader = make(Numbers(COUNT), BATCH, seed, workers)
    batches = _epochs(loader)
    for _ in itertools.islice(batches, taken):  # fewer where the loader runs dry; other checks tell
        pass
    state = loader.state_dict()
    batches.close()
    return state


def _taken_up(make: ResumableLoader, taken: int, seed: int, workers: tuple[int, int] = (0, 0)) -> Evidence:
    """Return what comes after `taken` batches, in one go, and with a break; `workers` before and after the break."""
    due = _next(make(Numbers(COUNT), BATCH, seed, 0), taken + PER_EPOCH + 2)[taken:]
    state = copy.deepcopy(_broken_off(make, taken, seed, workers[0]))
    loader = make(Numbers(COUNT), BATCH, seed + 1, workers[1])  # another seed: the state has the right one
    loader.load_state_dict(state)
    return {"due": due, "got": _next(loader, len(due))}


def _not_the_next(case: str, due: list[list[int]], got: list[list[int]]) -> str | None:
    """Say where the batches after a break leave those that were due."""
    if got == due:
        return None
    k = next((k for k, (a, b) in enumerate(zip(got, due, strict=False)) if a != b), min(len(got), len(due)))
    if k >= len(got):
        return f"{case}: only {k} batches come; {len(due)} are due."
    if k:
        where = ", with the next epoch" if len(due[k - 1]) < BATCH else ""
        return f"{case}: {k} batches are right; then{where} {got[k]} comes where {due[k]} is due."
    if got[0] in due:
        return f"{case}: {got[0]} comes first. Left out, though the loop never had it: {due[: due.index(got[0])]}."
    return f"{case}: {got[0]} comes first; {due[0]} is due."


class RunsThroughEpochs(Check):
    """Each epoch has every sample once, in batches of `batch_size`; the last is smaller. Workers change nothing."""

    hint = (
        "Cut an order of all indices into pieces of batch_size; the last piece is what is left.\n"
        "DataLoader(dataset, batch_sampler=list of lists of indices, num_workers=workers) does the rest."
    )

    @staticmethod
    def probe(seed: int, make: ResumableLoader) -> Evidence:
        seen = {}
        for workers in (0, 2):
            loader = make(Numbers(COUNT), BATCH, seed, workers)
            seen[f"{workers} workers"] = [[[int(n) for n in batch] for batch in loader] for _ in range(2)]
        seen["is a tensor"] = isinstance(next(iter(make(Numbers(COUNT), BATCH, seed))), torch.Tensor)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        sizes = [BATCH] * (COUNT // BATCH) + [COUNT % BATCH]
        for case in ("0 workers", "2 workers"):
            for number, batches in enumerate(seen[case], 1):
                if [len(batch) for batch in batches] != sizes:
                    return f"{case}, epoch {number}: batches of {[len(b) for b in batches]}; {sizes} are due."
                if sorted(n for batch in batches for n in batch) != list(range(COUNT)):
                    return f"{case}, epoch {number}: some samples come twice, others never."
        if seen["0 workers"] != seen["2 workers"]:
            return "With two workers the batches are others, or come in another order."
        if not seen["is a tensor"]:
            return "A batch is no tensor: let DataLoader collate the samples, as it does by default."
        return None


class OrderFromSeedAndEpoch(Check):
    """The order follows from `seed` and the number of the epoch alone: another for each, the same in each run."""

    hint = (
        "A generator of your own, seeded from the loader's seed and the epoch's number.\n"
        "seed + epoch would give seed 1 in epoch 0 the order of seed 0 in epoch 1.\n"
        "np.random.default_rng([seed, epoch]) takes both; its permutation(n) is an order."
    )

    @staticmethod
    def probe(seed: int, make: ResumableLoader) -> Evidence:
        elsewhere = itertools.count(seed)

        def orders(number: int) -> list[list[list[int]]]:
            torch.manual_seed(next(elsewhere))  # the notebook's own random numbers may be anywhere
            batches = _next(make(Numbers(COUNT), BATCH, number), 3 * PER_EPOCH)
            return [batches[k : k + PER_EPOCH] for k in range(0, 3 * PER_EPOCH, PER_EPOCH)]

        return {"orders": orders(seed), "again": orders(seed), "other": orders(seed + 1)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        orders, other = seen["orders"], seen["other"]
        if orders != seen["again"]:
            return "Two loaders of the same seed have different orders: something else is drawn from."
        first = [number for batch in orders[0] for number in batch]
        if first == sorted(first):
            return "The first epoch is in the order of the data set: nothing is shuffled."
        if orders[0] == orders[1] or orders[1] == orders[2]:
            return "Two epochs have the same order."
        if orders[0] == other[0]:
            return "Another seed has the same order."
        if orders[1] == other[0]:
            return "Epoch 1 of one seed is epoch 0 of the next seed: two runs meant to differ see the same orders."
        return None


class GoesOnWithTheNextBatch(Check):
    """A new loader with the saved state goes on with the next batch, and then with the next epochs."""

    hint = (
        "The state: seed, epoch, and how many batches of this epoch the loop has had.\n"
        "Count a batch before you yield it: the loop saves while it has it.\n"
        "The order can be drawn again from seed and epoch; then leave out what the loop has had. In the next epoch "
        "leave out nothing."
    )

    @staticmethod
    def probe(seed: int, make: ResumableLoader) -> Evidence:
        middle = random.Random(seed).randint(2, PER_EPOCH - 2)
        taken = {
            "broken off in the first epoch": middle,
            "in the third epoch": 2 * PER_EPOCH + middle,
            "before the first batch": 0,
            "with the last batch of an epoch": PER_EPOCH,
        }
        return {case: _taken_up(make, number, seed) for case, number in taken.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = (_not_the_next(case, seen[case]["due"], seen[case]["got"]) for case in expected)
        return next(filter(None, wrong), None)


class CountsWhatTheLoopHad(Check):
    """With workers as well, whose batches in hand do not count; and with another number of workers afterwards."""

    hint = (
        "Workers fetch ahead: a sampler that counts what it has handed out counts batches that the loop never had.\n"
        "Count in the loop over the DataLoader, where batches come out."
    )

    @staticmethod
    def probe(seed: int, make: ResumableLoader) -> Evidence:
        taken = random.Random(seed).randint(1, 2)
        return {
            "two workers before and after": _taken_up(make, taken, seed, (2, 2)),
            "two workers, then none": _taken_up(make, taken, seed, (2, 0)),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = (_not_the_next(case, seen[case]["due"], seen[case]["got"]) for case in expected)
        return next(filter(None, wrong), None)


class ReadsNothingAgain(Check):
    """Taking up an epoch reads none of the samples that the loop had before the break."""

    hint = "Leave out indices, not batches: skip in the order, before the DataLoader reads anything."

    @staticmethod
    def probe(seed: int, make: ResumableLoader) -> Evidence:
        rest = Numbers(COUNT)
        loader = make(rest, BATCH, seed)
        loader.load_state_dict(_broken_off(make, 3, seed))
        left = len(list(loader))
        return {"reads": int(rest.reads.sum()), "batches": left}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["reads"] > expected["reads"]:
            return f"After 3 of {PER_EPOCH} batches, the rest took {seen['reads']} reads; {expected['reads']} are left."
        return None


class StateIsSmall(Check):
    """The state is a dictionary of a few numbers, which survives JSON, however large the data set."""

    hint = "Whole numbers from seed and epoch draw the order again; the order itself need not be saved."

    @staticmethod
    def probe(seed: int, make: ResumableLoader) -> Evidence:
        seen = {}
        for count in (COUNT, 100 * COUNT):
            loader = make(Numbers(count), BATCH, seed)
            batches = iter(loader)
            next(batches)
            state = loader.state_dict()
            try:
                seen[f"{count} samples"] = len(json.dumps(state)) if isinstance(state, dict) else None
            except TypeError:
                seen[f"{count} samples"] = None
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            if seen[case] is None:
                return f"{case}: json.dumps cannot write the state. A dictionary of plain numbers is wanted."
            if seen[case] > 200:
                return f"{case}: the state takes {seen[case]:,} characters as JSON. Three whole numbers are enough."
        return None


RESUME = (
    RunsThroughEpochs,
    OrderFromSeedAndEpoch,
    GoesOnWithTheNextBatch,
    CountsWhatTheLoopHad,
    ReadsNothingAgain,
    StateIsSmall,
)
