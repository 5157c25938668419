"""Check of the prefetcher: a thread that draws batches ahead of the loop and sends them to the device.

Each check watches a few short loops, each over a source of its own.
"""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import torch

from ..base import Check, Evidence
from .parcel import Parcel
from .patience import ended, until, watch
from .watched_source import BEGINNING, Refuses, WatchedSource, numbered

Prefetched = Callable[[Any, int, torch.device], Iterator[Any]]
Loop = Callable[[Evidence], None]  # fills in the evidence
Say = Callable[[Evidence, Evidence], str | None]  # of a case, what was seen and what is right
CPU = torch.device("cpu")
HANGS = "the loop waits forever: has the thread ended without telling it, or does the loop wait for it to end?"
CLOSE_HANGS = "`close()` does not return: does it wait for a thread that has not been told to stop?"


def _to_the_end(prefetched: Prefetched, given: list[Any], depth: int) -> Loop:
    """Take all batches, then ask once more."""

    def loop(seen: Evidence) -> None:
        source = WatchedSource(given)
        batches = prefetched(iter(source), depth, CPU)  # an iterator: it has no length, and can be read only once
        seen |= _described(batches)
        own = sum(thread is threading.current_thread() for thread in source.threads)
        seen |= {"threads": len(set(source.threads)), "by_loop": own, "finished": True}
        seen["after"] = len(list(batches))

    return loop


def _side_by_side(prefetched: Prefetched) -> Loop:
    """Take batches of two prefetchers in turns."""

    def loop(seen: Evidence) -> None:
        pairs = zip(prefetched(numbered(4), 2, CPU), prefetched(numbered(4, first=50), 2, CPU), strict=False)
        seen |= _described(itertools.chain.from_iterable(pairs))

    return loop


def _described(batches: Iterable[Any]) -> Evidence:
    got = list(batches)
    return {
        "tensors": [[tensor.tolist() for tensor in batch] for batch in got],
        "kinds": sorted({type(batch).__name__ for batch in got}),
    }


def _to_the_error(prefetched: Prefetched, unreadable: int | None, unsent: int | None) -> Loop:
    """Take batches until an error comes, then ask once more."""

    def loop(seen: Evidence) -> None:
        source, batches = WatchedSource(numbered(8), unreadable), iter(())
        if unsent is not None:
            source.batches[unsent] = (Refuses(source.error), *source.batches[unsent])
        seen |= {"got": [], "raised": "", "itself": False}
        try:
            batches = prefetched(source, 2, CPU)
            for *_, numbers in batches:
                seen["got"].append(int(numbers[0]))
                time.sleep(0.03)  # the thread meets the error while batches wait
        except NotImplementedError:
            raise  # nothing is filled in yet
        except Exception as error:
            seen |= {"raised": type(error).__name__, "itself": error is source.error}
        seen["finished"] = True
        with contextlib.suppress(Exception):  # an iterator may raise the error again
            next(batches, None)

    return loop


def _busy(prefetched: Prefetched, depth: int) -> Loop:
    """Count the batches drawn before the first is taken, and while the loop has one of the first three."""

    def loop(seen: Evidence) -> None:
        source = WatchedSource(numbered(depth + 6))
        batches = prefetched(source, depth, CPU)
        seen |= {"early": source.settled(0), "ahead": []}
        for taken in range(1, 4):
            next(batches)
            seen["ahead"].append(source.settled(taken + depth) - taken)
            if seen["ahead"][-1] < depth:
                break  # the verdict is clear, and each wait for the next one takes a second
        list(batches)  # so that the thread ends

    return loop


@contextlib.contextmanager
def _no_current_device() -> Iterator[None]:
    """Let a thread choose its current CUDA device: a parcel needs no device, and this machine may have none."""
    one, all_inside = patch.object(torch.cuda, "set_device"), patch.object(torch.cuda, "device", contextlib.nullcontext)
    with one, all_inside:
        yield


def _sending(prefetched: Prefetched, device: torch.device) -> Loop:
    """Send parcels that log their journey."""

    def loop(seen: Evidence) -> None:
        log: list[dict[str, Any]] = []
        given = [(Parcel.of(2 * k, log), Parcel.of(2 * k + 1, log)) for k in range(4)]
        with _no_current_device():
            parcels = [parcel for batch in prefetched(given, 2, device) for parcel in batch]
        sent = [entry for entry in log if entry["step"] == "send"]
        seen |= {
            "places": sorted({parcel.place for parcel in parcels}),
            "arrived": [parcel.number for parcel in parcels],
            "pinned": sorted(entry["number"] for entry in log if entry["step"] == "pin"),
            "sent": len(sent),
            "from_pinned": sum(entry["pinned"] for entry in sent),
            "non_blocking": sum(entry["non_blocking"] for entry in sent),
            "by_loop": sum(entry["thread"] == threading.get_ident() for entry in log),
        }

    return loop


def _to_its_end(prefetched: Prefetched, fails_at: int | None, taken: int | None, pause: float) -> Loop:
    """Take `taken` batches and close the iterator, or take all; look for threads that stay and for late draws."""

    def loop(seen: Evidence) -> None:
        before = set(threading.enumerate())
        source = WatchedSource(numbered(5 if taken is None else 50), fails_at, pause)
        batches = prefetched(source, 3, CPU)
        try:
            for _ in itertools.islice(batches, taken):
                pass
        except NotImplementedError:
            raise  # nothing is filled in yet
        except Exception:
            pass  # what becomes of the source's error is another check's business
        if taken is not None:
            if pause:
                until(lambda: source.begun > len(source.threads))  # the thread is in the middle of a draw
            else:
                source.settled(taken + 3 if taken else 0)
            begun, seen["closes"] = source.begun, hasattr(batches, "close")
            if seen["closes"]:
                seen["closing"] = True
                batches.close()
                batches.close()
                seen["closing"] = False
        seen["gone"] = ended(before)
        seen["late"] = source.begun - begun if taken is not None else 0

    return loop


def _run(loops: dict[str, Loop]) -> Evidence:
    """Run `loops`; after one that hangs no other is run, for each would take as long."""
    seen: Evidence = {}
    for case, loop in loops.items():
        seen[case] = watch(loop)
        if seen[case]["hangs"]:
            break
    return seen


def _deliver(seed: int, prefetched: Prefetched) -> Evidence:
    """Take all batches of different kinds, with different depths."""
    rng = random.Random(seed)
    many, more = rng.randint(5, 9), rng.randint(5, 9)
    cases = {
        f"{many} batches, depth 1": (numbered(many), 1),
        f"{more} batches, depth 3": (numbered(more), 3),
        "2 batches, depth 5": (numbered(2), 5),
        "1 batch, depth 1": (numbered(1), 1),
        "no batches, depth 2": ([], 2),
        "batches that are lists, as from a DataLoader": ([list(batch) for batch in numbered(3)], 2),
        "batches of one tensor": (numbered(3, width=1), 2),
        "batches of three tensors": (numbered(3, width=3), 2),
    }
    loops = {case: _to_the_end(prefetched, *given) for case, given in cases.items()}
    return _run(loops | {"two prefetchers side by side": _side_by_side(prefetched)})


def _first(seen: Evidence, expected: Evidence, say: Say) -> str | None:
    """Return what `say(got, want)` has to say about the first wrong case."""
    for case, want in expected.items():
        got = seen[case]
        if got["hangs"] and "finished" in got:
            return f"{case}: after its end, a further next() waits forever. It should end again."
        if got["hangs"]:
            return f"{case}: {CLOSE_HANGS if got.get('closing') else HANGS}"
        if says := say(got, want):
            return f"{case}: {says}"
    return None


class DeliversAllInOrder(Check):
    """All batches come, once each and in order, as tuples of their tensors."""

    hint = (
        "The thread puts batches into a queue, and the loop takes them out: a queue keeps the order.\n"
        "How does the loop learn that there are no more? The thread has to put something into the queue that says so.\n"
        "A batch may be a list or a tuple, of any number of tensors: tuple(... for tensor in batch)."
    )

    probe = staticmethod(_deliver)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def say(got: Evidence, want: Evidence) -> str | None:
            numbers, due = ([int(batch[-1][0]) for batch in of["tensors"]] for of in (got, want))
            if numbers != due:
                return f"batches {numbers} came; expected {due}."
            if repr(got["tensors"]) != repr(want["tensors"]):  # 1.0 is not 1 here
                return "a batch lacks some of its tensors, or has them in another order."
            if got["kinds"] != want["kinds"]:
                return f"a batch comes as a {got['kinds'][0]}; expected a tuple of tensors."
            if got.get("after"):
                return f"{got['after']} batches come after the end. Keep the iterator finished once it has ended."
            return None

        return _first(seen, expected, say)


class DrawsInOneThread(Check):
    """One thread draws all batches, and it is not the loop's."""

    hint = "threading.Thread(target=..., daemon=True).start(): the function that it runs calls next() on the batches."

    probe = staticmethod(_deliver)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def say(got: Evidence, want: Evidence) -> str | None:
            if got.get("by_loop"):
                count = len(want["tensors"])
                return (
                    f"the loop's own thread drew {got['by_loop']} of {count} batches. It cannot train in the meantime."
                )
            if got.get("threads") != want.get("threads"):
                return f"{got['threads']} threads drew the batches; use one."
            return None

        return _first(seen, expected, say)


class KeepsDepthWaiting(Check):
    """While the loop is busy, `depth` batches wait for it; no more are drawn, not even before the first is taken."""

    hint = (
        "Count the batches in the queue, and the one that the thread holds.\n"
        "queue.Queue(depth) holds `depth`, and stops the thread when it has drawn one more. Stop it before it draws.\n"
        "threading.Semaphore(depth): acquire() before each draw, release() for each batch that the loop takes."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        depths = (1, 2, random.Random(seed).randint(3, 5))
        return _run({f"depth {depth}": _busy(prefetched, depth) for depth in depths})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def say(got: Evidence, want: Evidence) -> str | None:
            if got["early"] > want["ahead"][0]:
                return (
                    f"before the loop took its first batch, {got['early']} had been drawn. Does the "
                    "thread hold one too many?"
                )
            for taken, (ahead, due) in enumerate(zip(got["ahead"], want["ahead"], strict=False), 1):
                says = f"after the loop took {taken} and paused, {ahead} more had been drawn"
                if ahead == due + 1:
                    return f"{says}, which is one too many. Does the thread hold it?"
                if ahead != due:
                    late = " Is room made only when the loop comes back for the next batch?" if ahead == due - 1 else ""
                    return f"{says}; it should be {due}.{late}"
            return None

        return _first(seen, expected, say)


class SendsFromPinnedMemory(Check):
    """For a CUDA device, the thread pins each tensor and sends it with non_blocking; elsewhere nothing is pinned."""

    hint = (
        "tensor.pin_memory() returns a pinned copy; send that one, with .to(device, non_blocking=True).\n"
        "Both calls belong in the thread, right after a batch is drawn. device.type says whether to pin."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        return _run({name: _sending(prefetched, torch.device(name)) for name in ("cuda:1", "mps", "cpu")})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def say(got: Evidence, want: Evidence) -> str | None:
            count, pins = len(want["arrived"]), len(want["pinned"])
            if got["arrived"] != want["arrived"]:
                return f"tensors {got['arrived']} came; expected {want['arrived']}."
            if got["places"] != want["places"]:
                return f"tensors are on {', '.join(got['places'])}; send them to the device that was given."
            if got["pinned"] != want["pinned"]:
                return f"{len(got['pinned'])} of {count} tensors were pinned; {pins} should be."
            if pins and got["from_pinned"] < got["sent"]:
                return f"{got['from_pinned']} of {got['sent']} sent came from pinned memory. Send the pinned copy."
            if pins and got["non_blocking"] < got["sent"]:
                return f"{got['non_blocking']} of {got['sent']} were sent with non_blocking=True; the others wait."
            if pins and got["by_loop"]:
                return f"the loop's own thread pinned or sent {got['by_loop']} times; the prefetcher's thread should."
            return None

        return _first(seen, expected, say)


class PassesErrorsOn(Check):
    """An error in drawing or sending reaches the loop unchanged, after the batches that were drawn before it."""

    hint = (
        "An error in a thread ends the thread; the loop does not notice. Catch it and put it into the queue.\n"
        "iter(batches) may fail as well as next(), and a batch may hold something that cannot be sent: all three "
        "belong in the try."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        at = random.Random(seed).randint(2, 5)
        cases = {
            "iter(batches) fails": (BEGINNING, None),
            "batch 0 cannot be read": (0, None),
            f"batch {at} cannot be read": (at, None),
            f"batch {at} cannot be sent": (None, at),
        }
        return _run({case: _to_the_error(prefetched, *places) for case, places in cases.items()})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def say(got: Evidence, want: Evidence) -> str | None:
            if not got["raised"]:
                return f"the loop ends after {len(got['got'])} batches without an error. The error is lost."
            if not got["itself"]:
                return (
                    f"the loop gets a {got['raised']}; expected the original error. Raise the very object that was "
                    "caught."
                )
            if got["got"] != want["got"]:
                return f"batches {got['got']} came before the error; {want['got']} had been drawn."
            return None

        return _first(seen, expected, say)


class EndsItsThread(Check):
    """The thread ends with the last batch, with an error, and soon after `close()`, which stops the drawing."""

    hint = (
        "A generator that is closed raises GeneratorExit at its yield: `finally` runs.\n"
        "The thread may be waiting for room at that moment. Set a threading.Event, then wake it up.\n"
        "It has to check the event after it wakes up and before it draws."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        cases = {  # where the source fails, how many batches are taken, seconds of a draw
            "the last batch": (None, None, 0.0),
            "an error": (3, None, 0.0),
            "close(), while the thread waits for room": (None, 2, 0.0),
            "close(), while the thread draws a batch": (None, 2, 0.2),
            "close() before the first batch": (None, 0, 0.0),
        }
        return _run({case: _to_its_end(prefetched, *how) for case, how in cases.items()})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def say(got: Evidence, want: Evidence) -> str | None:
            if not got.get("closes", True):
                return "the iterator does not have a method close()."
            if got["late"]:
                return (
                    f"{got['late']} draws began after that. The loop will never take their batches: stop the thread "
                    "first."
                )
            return (
                None if got["gone"] else "a second later, one of your threads is still running. What does it wait for?"
            )

        return _first(seen, expected, say)


PREFETCH = (
    DeliversAllInOrder,
    DrawsInOneThread,
    KeepsDepthWaiting,
    SendsFromPinnedMemory,
    PassesErrorsOn,
    EndsItsThread,
)
