"""Check of the prefetcher: a thread that draws batches ahead of the loop and sends them to the device."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..base import Check, Evidence
from .parcel import Parcel
from .patience import close, ended, patiently, value_of
from .watched_source import BEGINNING, WatchedSource, numbered

Prefetched = Callable[[Any, int, torch.device], Iterator[Any]]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HANGS = "the loop waits for ever: has the thread ended without telling it?"


class DeliversAllInOrder(Check):
    """All batches come, once each and in order, as tuples."""

    hint = (
        "The thread puts batches into a queue, the loop takes them out: a queue keeps the order.\n"
        "How does the loop learn that there are no more? The thread has to put something into the queue that says so."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        rng = random.Random(seed)
        seen = {}
        for count, depth in ((rng.randint(5, 9), 1), (rng.randint(5, 9), 3), (2, 5), (1, 1), (0, 2)):
            run = value_of(lambda count=count, depth=depth: list(prefetched(numbered(count), depth, CPU)))
            if "value" in run:
                got = run["value"]
                kinds = sorted({type(batch).__name__ for batch in got})
                run = {"tensors": [[tensor.tolist() for tensor in batch] for batch in got], "kinds": kinds}
            seen[f"{count} batches, depth {depth}"] = run
            if "hangs" in run:
                break
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if "hangs" in got:
                return f"{case}: {HANGS}"
            numbers, due = ([int(batch[-1][0]) for batch in of["tensors"]] for of in (got, want))
            if numbers != due:
                return f"{case}: batches {numbers} came; {due} are due."
            if repr(got["tensors"]) != repr(want["tensors"]):  # 1.0 is not 1 here
                return f"{case}: a batch has not the tensors that it had, or has them in another order."
            if got["kinds"] != want["kinds"]:
                return f"{case}: a batch comes as a {got['kinds'][0]}; a tuple of tensors is due."
        return None


class DrawsInOneThread(Check):
    """One thread draws all batches, and it is not the loop's."""

    hint = "threading.Thread(target=..., daemon=True).start(): the function that it runs calls next() on the batches."

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        source = WatchedSource(numbered(6))

        def loop() -> int:
            for _ in prefetched(source, 2, CPU):
                pass
            return sum(thread is threading.current_thread() for thread in source.threads)

        run = value_of(loop)
        return {"hangs": "hangs" in run, "by_loop": run.get("value"), "threads": len(set(source.threads))}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["hangs"]:
            return f"Six batches: {HANGS}"
        if seen["by_loop"]:
            return f"The loop's own thread drew {seen['by_loop']} of 6 batches: while it draws, nobody trains."
        if seen["threads"] != expected["threads"]:
            return f"{seen['threads']} threads drew the batches; one is wanted."
        return None


class KeepsDepthWaiting(Check):
    """While the loop is busy, `depth` batches wait for it; no more are drawn."""

    hint = (
        "Count the batches in the queue, and the one in the hands of the thread.\n"
        "queue.Queue(depth) holds `depth`, and stops the thread when it has drawn one more. Stop it before it draws.\n"
        "threading.Semaphore(depth): acquire() before each draw, release() for each batch that the loop takes."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        seen = {}
        for depth in (1, 2, random.Random(seed).randint(3, 5)):
            source = WatchedSource(numbered(20))

            ahead: list[int] = []

            def loop(depth: int = depth, source: WatchedSource = source, ahead: list[int] = ahead) -> None:
                batches = prefetched(source, depth, CPU)
                for taken in range(1, 4):
                    next(batches)
                    ahead.append(source.settled(taken + depth) - taken)
                close(batches)

            hangs = "hangs" in value_of(loop)  # if it hangs in close(), the figures are there all the same
            seen[f"depth {depth}"] = {"ahead": ahead if len(ahead) == 3 else None}
            if hangs:
                break
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got, due = seen[case]["ahead"], want["ahead"]
            if got is None:
                return f"{case}: {HANGS}"
            if got != due:
                wrong = next(k for k, (a, b) in enumerate(zip(got, due, strict=True)) if a != b)
                says = f"{case}: after the loop took {wrong + 1} and stopped, {got[wrong]} more had been drawn"
                if got[wrong] == 0:
                    return f"{says}: nothing is drawn while the loop works."
                if got[wrong] == due[wrong] + 1:
                    return f"{says}, which is one too many. Where is it: in the thread's hands?"
                return f"{says}; it should be {due[wrong]}."
        return None


class SendsFromPinnedMemory(Check):
    """For a CUDA device, the thread pins each tensor and sends it with non_blocking; elsewhere nothing is pinned."""

    hint = (
        "tensor.pin_memory() returns a pinned copy; send that one, with .to(device, non_blocking=True).\n"
        "Both calls belong into the thread, right after a batch was drawn. device.type says whether to pin."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        seen = {}
        for device in (CUDA, CPU):
            log: list[dict[str, Any]] = []
            batches = [(Parcel.of(2 * k, log), Parcel.of(2 * k + 1, log)) for k in range(4)]

            def loop(batches: list = batches, device: torch.device = device) -> tuple[int, list[Any]]:
                return threading.get_ident(), list(prefetched(batches, 2, device))

            run = value_of(loop)
            own, got = run.get("value", (0, []))
            parcels = [parcel for batch in got for parcel in batch]
            sent = [entry for entry in log if entry["step"] == "send"]
            seen[device.type] = {
                "hangs": "hangs" in run,
                "places": sorted({parcel.place for parcel in parcels}),
                "arrived": [parcel.number for parcel in parcels],
                "pinned": sorted(entry["number"] for entry in log if entry["step"] == "pin"),
                "from_pinned": sum(entry["pinned"] for entry in sent),
                "non_blocking": sum(entry["non_blocking"] for entry in sent),
                "by_loop": sum(entry["thread"] == own for entry in log),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for device, want in expected.items():
            got = seen[device]
            count = len(want["arrived"])
            if got["hangs"]:
                return f"{device}: {HANGS}"
            if got["arrived"] != want["arrived"]:
                return f"{device}: tensors {got['arrived']} came; {want['arrived']} are due."
            if got["places"] != want["places"]:
                return f"{device}: tensors were left on {', '.join(got['places'])}."
            if got["pinned"] != want["pinned"]:
                pinned, due = len(got["pinned"]), len(want["pinned"])
                return f"{device}: {pinned} of {count} tensors were pinned; {due} should be."
            if device == "cuda" and got["from_pinned"] < count:
                return f"cuda: {got['from_pinned']} of {count} tensors came from pinned memory. Send the pinned copy."
            if device == "cuda" and got["non_blocking"] < count:
                return f"cuda: {got['non_blocking']} of {count} were sent with non_blocking=True; the others wait."
            if got["by_loop"] and device == "cuda":
                return f"cuda: the loop's own thread took {got['by_loop']} steps of pinning and sending; leave it none."
        return None


class PassesErrorsOn(Check):
    """An error in drawing reaches the loop as itself, after the batches that were drawn before it."""

    hint = (
        "An error in a thread ends the thread, and nobody else hears of it. Catch it there and put it into the queue.\n"
        "iter(batches) may fail as well as next(): both belong into the try."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        seen = {}
        at = random.Random(seed).randint(2, 5)
        cases = {"iter(batches) fails": BEGINNING, "batch 0 cannot be read": 0, f"batch {at} cannot be read": at}
        for case, fails_at in cases.items():
            source, got = WatchedSource(numbered(8), fails_at), []

            def loop(source: WatchedSource = source, got: list = got) -> None:
                for _, numbers in prefetched(source, 2, CPU):
                    got.append(int(numbers[0]))
                    time.sleep(0.03)  # the thread meets the error while batches wait

            _, error = patiently(loop)
            if isinstance(error, NotImplementedError):
                raise error
            seen[case] = {
                "got": got,
                "raised": "" if error is None else type(error).__name__,
                "itself": error is source.error,
            }
            if isinstance(error, TimeoutError):
                break
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["raised"] == "TimeoutError":
                return f"{case}: {HANGS}"
            if not got["raised"]:
                return f"{case}: the loop ends after {len(got['got'])} batches as if they were all. The error is lost."
            if not got["itself"]:
                return f"{case}: the loop gets a {got['raised']}; the error itself is due."
            if got["got"] != want["got"]:
                return f"{case}: batches {got['got']} came before the error; {want['got']} had been drawn."
        return None


class EndsItsThread(Check):
    """The thread ends with the last batch, with an error, and soon after `close()`, which stops the drawing."""

    hint = (
        "A generator that is closed raises GeneratorExit at its yield: `finally` runs.\n"
        "The thread may be waiting for room just then. Say that it is over (threading.Event), then wake it up.\n"
        "It has to look whether it is over after it was woken, and before it draws."
    )

    @staticmethod
    def probe(seed: int, prefetched: Prefetched) -> Evidence:
        seen = {}
        cases = {"the last batch": (5, None, 99), "an error": (5, 3, 99), "close()": (50, None, 2)}
        for case, (count, fails_at, takes) in cases.items():
            source = WatchedSource(numbered(count), fails_at)

            def loop(source: WatchedSource = source, takes: int = takes) -> Evidence:
                before, drawn = set(threading.enumerate()), 0
                batches = prefetched(source, 3, CPU)
                try:
                    for taken, _ in enumerate(batches, 1):
                        if taken == takes:
                            drawn = source.settled(taken + 3)
                            close(batches)
                            break
                except NotImplementedError:
                    raise
                except Exception:  # the source's, or what the answer made of it: another check's business
                    pass
                return {"gone": ended(before), "late": len(source.threads) - drawn if drawn else 0}

            seen[case] = value_of(loop).get("value")
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            got = seen[case]
            if got is None:
                return f"After {case}: {HANGS}"
            if got["late"]:
                return f"Batches drawn after {case}: {got['late']}. Nobody will take them."
            if not got["gone"]:
                return f"A second after {case}, a thread of yours is still there."
        return None


PREFETCH = (
    DeliversAllInOrder,
    DrawsInOneThread,
    KeepsDepthWaiting,
    SendsFromPinnedMemory,
    PassesErrorsOn,
    EndsItsThread,
)
