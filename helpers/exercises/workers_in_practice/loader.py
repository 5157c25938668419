"""Check of a loader that keeps a device fed, with the same samples as the slow one.

Too few workers are counted, not timed: the data set's log shows how many reads run at the same time. What else makes
an epoch slow is timed, and of several epochs the best one counts: a right answer has its chances on a busy machine.
"""

import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...loading.digit_files import DigitFiles
from ...meter.timing import benchmark
from ..base import Check, Evidence

TARGET = 1.5  # from its first batch on, an epoch may take so many times as long as its steps alone
SPARE = 2  # workers beyond those that the rule asks for
AHEAD = 3  # batches a worker that may wait
MEASURED = 8  # files that may be read to measure, before the first epoch
# store: files, batch size, seconds a read, seconds a step. A batch waits 225 ms against steps of 30 ms, and 248 ms
# against 160 ms: rounded down, that is one worker, unless a busy machine's reads take 18 ms more than their wait. With
# the batch size forgotten the slow store gets 3 workers, a number of cores that is rare, or 4 where reads are measured
# a third too long; either is too slow.
CASES = {"slow": (38, 3, 0.075, 0.030), "quick": (43, 4, 0.062, 0.160)}
BATCH, FILES = 4, 30


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _loader(make_loader: Callable[..., Any], files: DigitFiles, step: float, batch: int = BATCH) -> Iterable[Any]:
    """Return the loader of the answer; PyTorch's advice on worker counts looks only at cores, and is not shown."""
    files.labels = torch.arange(len(files))  # each file is known by its label
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = make_loader(files, batch, step)
    if hasattr(loader, "__next__"):
        raise TypeError("The loader can be iterated over only once. Return one that starts anew in each epoch.")
    return loader


def _epoch(loader: Iterable[Any], files: DigitFiles, step: float = 0.0) -> Evidence:
    """Run one epoch with a stand-in for the device; return what was delivered, by whom, and how long it took.

    The clock starts when the first batch is there, which every epoch has to wait for.
    """
    files.reads.zero_()
    batches, start = [], 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for images, labels in loader:
            start = start or time.perf_counter()
            batches.append((images, labels.tolist()))
            time.sleep(step)
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "batches": [names for _, names in batches],
        "sums": {name: float(x.sum()) for images, names in batches for name, x in zip(names, images, strict=True)},
        "reads": files.reads.tolist(),
        "quickest": float((files.log[:, 1] - files.log[:, 0]).min()),
        "processes": sorted({int(process) for process in files.log[:, 2]} - {os.getpid()}),
        "degrees": files.log[:, 3].tolist(),
        "at_once": _at_once(files.log),
    }


def _at_once(log: torch.Tensor) -> int:
    """Return how many reads of a log (reads, start and end and more) run at the same time, at most."""
    return max(int(((log[:, 0] <= start) & (log[:, 1] > start)).sum()) for start in log[:, 0])


def _too_few(at_once: int, store: str) -> bool:
    """Say whether so many reads at the same time cannot deliver batches at the pace that is asked for."""
    _, batch, latency, step = CASES[store]
    return TARGET * step * at_once < batch * latency


def _waiting(loader: Iterable[Any], files: DigitFiles, batch: int) -> float:
    """Take one batch, then no more; return how many batches' worth of files is read all the same."""
    files.reads.zero_()
    batches = iter(loader)
    next(batches)
    before, now = -1, 0
    while now > before:
        before = now
        time.sleep(0.15)
        now = int(files.reads.sum())
    return now / batch - 1


class KeepsPace(Check):
    """From its first batch on, an epoch takes at most 1.5 times as long as its steps, with no needless workers."""

    compared = False
    hint = (
        "Time a few reads of the data set first: how long does one worker need per batch?\n"
        "num_workers: seconds per batch / seconds per step, rounded up.\n"
        "persistent_workers keeps the same workers in each epoch; prefetch_factor limits what waits."
    )

    @staticmethod
    def probe(seed: int, make_loader: Callable[..., Any]) -> Evidence:
        seen = {}
        for store, (count, batch, latency, step) in CASES.items():
            alone = benchmark(lambda step=step: time.sleep(step), runs=8, warmup=0).median * -(-count // batch)
            files = DigitFiles(count, latency)
            loader = _loader(make_loader, files, step, batch)
            early, epochs = int(files.reads.sum()), []
            read = files.log[files.reads > 0]  # on a busy machine a read takes longer than it waits
            took = float((read[:, 1] - read[:, 0]).median()) if early else 0.0
            for number in range(6):
                epochs.append(_epoch(loader, files, step))
                at_once = max(epoch["at_once"] for epoch in epochs)
                if number and (epochs[-1]["seconds"] <= TARGET * alone or _too_few(at_once, store)):
                    break  # another chance is not needed, or would not help
            seen[store] = {
                "ratio": min(epoch["seconds"] for epoch in epochs[1:]) / alone,
                "at_once": at_once,
                "early": early,
                "took": took,
                "reads": epochs[1]["reads"],
                "quickest": epochs[1]["quickest"] / latency,
                "ahead": _waiting(loader, files, batch) if store == "quick" else 0,
                "steps": len(epochs[1]["batches"]),
                "workers": max(len(epoch["processes"]) for epoch in epochs),
                "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
                "restarted": epochs[0]["processes"] != epochs[1]["processes"],
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for store, (count, batch, latency, step) in CASES.items():
            got, case = seen[store], f"a {store} store"
            needed = int(-(-batch * latency // step))  # rounded up
            if got["early"] > MEASURED:
                return (
                    f"{case}: {got['early']} files were read before the first epoch; {MEASURED} are enough to measure."
                )
            if got["steps"] != -(-count // batch):
                return (
                    f"{case}: an epoch has {got['steps']} batches; expected {-(-count // batch)}. Look at batch_size "
                    "and drop_last."
                )
            if got["reads"] != [1] * count:
                return f"{case}: an epoch made {sum(got['reads'])} reads; expected one of each of the {count} files."
            if not got["quickest"] >= 0.95:
                return f"{case}: reads are faster than the store. Its latency is part of the data set: leave it there."
            if got["restarted"]:
                return f"{case}: the second epoch ran in other worker processes than the first. Keep the same ones."
            rule = (
                f"one needs {1e3 * batch * latency:.0f} ms per batch, a step takes {1e3 * step:.0f} ms, so {needed} "
                f"{'keeps' if needed == 1 else 'keep'} the device fed"
            )
            allowed = max(needed + SPARE, int(-(-batch * got["took"] // step)) + 1)
            if got["workers"] > allowed:
                least = "at least " if got["workers"] == got["steps"] else ""  # one batch for each that was seen
                return f"{case}: {least}{_workers(got['workers'])}; {rule}, and {allowed} are allowed."
            few = _too_few(got["at_once"], store)
            if few or not got["ratio"] <= TARGET:
                slow = f"{case}: from its first batch on, an epoch takes {got['ratio']:.2f} x its steps, not {TARGET}."
                if few and got["ratio"] <= TARGET:  # the steps were slow, too
                    slow = f"{case}: {got['at_once']} at most of its files are read at the same time."
                if not got["workers"]:
                    return f"{slow} No workers: the main process reads between the steps, and nothing overlaps."
                if got["workers"] >= needed:
                    return f"{slow} {_workers(got['workers'])} should do ({rule}): what else takes time?"
                why = ""
                if got["workers"] == int(batch * latency // step):
                    why += " Rounded down, the workers fall a little behind with each batch: round up."
                elif got["workers"] == int(-(-latency // step)):
                    why += " That many would be enough if a batch were one file: is batch_size in your count?"
                if got["workers"] == got["cores"]:
                    why += " That is this machine's number of cores; these reads wait, and need no core."
                return f"{slow} {_workers(got['workers'])}; {rule}.{why}"
            if got["ahead"] > AHEAD * max(1, got["workers"]):
                return (
                    f"{case}: {got['ahead']:.0f} finished batches wait in memory, with {_workers(got['workers'])}. "
                    f"At most {AHEAD} per worker may wait: set prefetch_factor."
                )
        return None


def _degrees(epoch: Evidence) -> list[float | None]:
    """Return the angles of the files that were delivered; None for an image that was not rotated."""
    angles = [epoch["degrees"][name] for name in sorted(epoch["sums"])]
    return [round(d, 9) if d == d else None for d in angles]


def _three_epochs(seed: int, make_loader: Callable[..., Any]) -> Evidence:
    """Run three epochs with as many workers as the rule asks for, six, and one of a second loader."""
    files, later = DigitFiles(FILES, latency=0.006), DigitFiles(FILES, latency=0.006)
    loader = _loader(make_loader, files, 0.004)
    epochs = [_epoch(loader, files) for _ in range(3)]
    return {
        "batches": [epoch["batches"] for epoch in epochs],
        "degrees": [_degrees(epoch) for epoch in epochs],
        "later": _degrees(_epoch(_loader(make_loader, later, 0.004), later)),
        "sums": [[epoch["sums"].get(i) for i in range(FILES)] for epoch in epochs],
    }


class SameSamples(Check):
    """Each file comes once per epoch, in a new order, in full batches and one smaller last batch."""

    compared = False
    hint = "What does slow_loader pass to DataLoader? Keep its shuffle and batch_size, and its default for drop_last."
    probe = staticmethod(_three_epochs)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        sizes = [BATCH] * (FILES // BATCH) + [FILES % BATCH]
        orders = []
        for number, batches in enumerate(seen["batches"], 1):
            if [len(batch) for batch in batches] != sizes:
                return f"Epoch {number} has batches of {[len(b) for b in batches]} files; expected {sizes}."
            order = [name for batch in batches for name in batch]
            if sorted(order) != list(range(FILES)):
                missing = sorted(set(range(FILES)) - set(order))
                return f"Epoch {number}: files {missing[:5]} are missing and others come more than once."
            orders.append(order)
        if orders[0] == sorted(orders[0]):
            return (
                "The files come in the order of the store: nothing is shuffled. What did slow_loader pass to "
                "DataLoader?"
            )
        if any(a == b for a, b in itertools.combinations(orders, 2)):
            return "Two epochs have the same order: draw a new order for each epoch."
        return None


class FreshNumbers(Check):
    """Each read draws an angle of its own: no two workers, epochs or loaders draw the same ones."""

    compared = False
    hint = (
        "Each worker has a copy of the data set, and with it a copy of its generator.\n"
        "worker_init_fn runs in each worker before the first read. There, get_worker_info() has a seed that no "
        "other worker has, and the worker's copy of the data set: reseed that copy."
    )
    probe = staticmethod(_three_epochs)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for number, degrees in enumerate(seen["degrees"], 1):
            if None in degrees:
                return f"Epoch {number}: images are not rotated at all; the augmentation has to stay."
            twins = len(degrees) - len(set(degrees))
            if twins:
                return (
                    f"Epoch {number}: {twins} of {len(degrees)} angles were drawn by more than one file. Is each "
                    "worker's copy of the data set reseeded?"
                )
        for (old, before), (new, after) in itertools.combinations(enumerate(seen["degrees"], 1), 2):
            again = len(set(before) & set(after))
            if again:
                return (
                    f"{again} of {len(after)} angles of epoch {old} come again in epoch {new}. Does every epoch start "
                    "from the same seed?"
                )
        again = len(set(seen["later"]) & {angle for degrees in seen["degrees"] for angle in degrees})
        if again:
            return (
                f"A second loader, as after a restart of the job, draws {again} of the first one's angles again. Does "
                "the seed depend on the worker's number alone?"
            )
        for before, after in itertools.combinations(seen["sums"], 2):
            if sum(a == b for a, b in zip(before, after, strict=True)) > len(before) // 2:
                return "Images are the same as in an earlier epoch: something keeps them."
        return None


LOADER = (KeepsPace, SameSamples, FreshNumbers)
