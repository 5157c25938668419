"""Check of a reader of traces: the time that each span spends itself, without what runs inside it."""

import copy
import random
from collections.abc import Callable, Iterable

from ..base import Check, Evidence
from .made_trace import MAIN, OTHER, Event, MadeTrace

SelfTimes = Callable[[list[Event]], dict[str, float]]
_NAMES = ("aten::linear", "aten::addmm", "aten::copy_", "aten::to")
_OTHERS, _EMPTY = "a trace of other events alone", "a trace without events"
_TOLERANCE = 0.1  # microseconds, for those who add up fractions; the shortest event takes five times as long


def _nest(made: MadeTrace, depth: int, gap: int, thread: int = MAIN) -> None:
    """Write an event with others inside it, of the same name perhaps; `gap` (ns) before, between and after them.

    Some of its own time lies before or after all of them, so that no two events take the same time.
    """
    rng, name, start = made.rng, made.rng.choice(_NAMES), made.now
    own, first = rng.randint(500, 50_000), rng.random() < 0.5
    made.gap(gap + first * own)
    for _ in range(rng.randint(1, 3) if depth else 0):
        _nest(made, depth - 1, gap, thread)
        made.gap(gap)
    made.gap((not first) * own)
    made.write(name, start, made.now, thread)


def _in_order(events: Iterable[Event]) -> list[Event]:
    """Return events in the order of time, those outside before those inside."""
    return sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def _times(events: list[Event], self_times: SelfTimes) -> Evidence:
    answer = self_times(events)
    if not isinstance(answer, dict):
        return {"returned": type(answer).__name__}
    return {"times": {str(name): float(own) for name, own in answer.items()}}


def _totals(events: list[Event]) -> dict[str, float]:
    """Return the microseconds of each name with all that ran inside."""
    totals: dict[str, float] = {}
    for event in events:
        totals[event["name"]] = totals.get(event["name"], 0.0) + event["dur"]
    return totals


def _wrong(case: str, got: Evidence, want: Evidence, says: str = "it should be") -> str | None:
    """Report a name whose time in `got` differs from that in `want`."""
    for answer in (got, want):
        if "returned" in answer:
            return f"{case}: return a dictionary, name -> microseconds; you return {answer['returned']}."
    mine, right = got["times"], want["times"]
    more = len([name for name in mine if name not in right])
    if more:
        return f"{case}: {more} of your names do not belong to a span that counts."
    for name, own in right.items():
        if name not in mine:
            return f"{case}: {name} is missing."
        if not abs(mine[name] - own) <= _TOLERANCE:
            whole = abs(mine[name] - want.get("all", {}).get(name, own)) <= _TOLERANCE
            about = " That is its duration, including the spans inside it." if whole else ""
            return f"{case}: your self time of {name} is {mine[name]:.3f} µs; {says} {own:.3f}.{about}"
    return None


class SumsWhatEachSpendsItself(Check):
    """A span's self time is its duration minus the spans directly inside it; spans of one name add up."""

    hint = "Go through the spans in order of time with a stack of those that are open: the last one is the parent."

    @staticmethod
    def probe(seed: int, self_times: SelfTimes) -> Evidence:
        seen: Evidence = {}
        sizes = {"one span": (0, 1, 0), "spans in a span": (1, 1, 700), "four levels": (3, 5, 900)}
        for case, (depth, roots, gap) in (sizes | {"one after the other, without a gap": (2, 6, 0)}).items():
            made = MadeTrace(random.Random(seed + roots))
            for _ in range(roots):
                _nest(made, depth, gap)
                made.gap(gap)
            events = _in_order(made.events if gap else _in_whole_microseconds(made.events))
            seen[case] = _times(events, self_times) | {"all": _totals(events)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return next((wrong for case, want in expected.items() if (wrong := _wrong(case, seen[case], want))), None)


class CountsCompleteEventsOnly(Check):
    """Only complete events ("ph": "X") are spans: marks, arrows, names and counters are not."""

    hint = 'event["ph"] is "X" for a complete event. Others may lack "ts" or "dur", or use them for something else.'

    @staticmethod
    def probe(seed: int, self_times: SelfTimes) -> Evidence:
        made = MadeTrace(random.Random(seed + 10))
        for _ in range(3):
            _nest(made, 2, gap=800)
        spans = _in_order(made.events)
        place = {"pid": spans[0]["pid"], "tid": spans[0]["tid"]}
        others = [
            {"ph": "M", "name": "thread_name", **place, "args": {"name": "thread 1000 (python)"}},
            {"ph": "i", "name": "Iteration", "s": "t", **place, "ts": spans[0]["ts"]},
            {"ph": "s", "name": "ac2g", "id": 3, "cat": "ac2g", **place, "ts": spans[0]["ts"]},
            {"ph": "b", "name": "aten::to", "id": 4, "cat": "async", **place, "ts": spans[0]["ts"], "dur": 7.5},
        ]
        seen = {"with": _times(others + spans, self_times), "without": _times(spans, self_times)}
        return seen | {name: _times(events, self_times) for name, events in ((_OTHERS, others), (_EMPTY, []))}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong("a trace with other events", seen["with"], seen["without"], "without them it is")
        return wrong or _wrong(_OTHERS, seen[_OTHERS], {"times": {}}) or _wrong(_EMPTY, seen[_EMPTY], {"times": {}})


class KeepsThreadsApart(Check):
    """A span is never inside one of another thread or process: the two only run at the same time."""

    hint = 'A thread is a pair: (event["pid"], event["tid"]). A stream of the GPU is a thread, too.'

    @staticmethod
    def probe(seed: int, self_times: SelfTimes) -> Evidence:
        seen: Evidence = {}
        for case in ("two threads", "a stream of the GPU with the number of a thread"):
            made = MadeTrace(random.Random(seed + 20))
            began = made.now
            for _ in range(3):
                _nest(made, 2, gap=900)
            first = list(made.events)
            if case == "two threads":
                made.now = began + 300
                for _ in range(3):
                    _nest(made, 1, gap=500, thread=OTHER)
            else:
                made.write("sgemm_128x64", began + 1_000, made.now - 1_000, MAIN, "kernel")
            second = made.events[len(first) :]
            together = _times(_in_order(made.events), self_times)
            apart = [_times(_in_order(events), self_times) for events in (first, second)]
            seen[case] = {"together": together, "apart": _added(*apart)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        says = "with a trace for each it is"
        found = (_wrong(case, seen[case]["together"], seen[case]["apart"], says) for case in expected)
        return next((wrong for wrong in found if wrong), None)


def _added(first: Evidence, second: Evidence) -> Evidence:
    """Return the times of both answers together."""
    if "returned" in first | second:
        return first | second
    names = first["times"] | second["times"]
    return {"times": {name: first["times"].get(name, 0.0) + second["times"].get(name, 0.0) for name in names}}


class TakesAnyOrder(Check):
    """Events come in any order, and a span may start together with the one around it."""

    hint = "Sort by the start, and where two start together put the longer one first."

    @staticmethod
    def probe(seed: int, self_times: SelfTimes) -> Evidence:
        seen: Evidence = {}
        for case in ("shuffled", "beginning together, the short ones first"):
            made = MadeTrace(random.Random(seed + 30))
            for _ in range(4):
                if case == "shuffled":
                    _nest(made, 2, gap=1_100)
                else:
                    made.run(*_NAMES, nanoseconds=made.rng.randint(900, 5_000), after=1_300)
                made.gap(2_000)
            events = made.shuffled() if case == "shuffled" else sorted(made.events, key=lambda e: e["dur"])
            in_order = _times(_in_order(made.events), self_times)
            seen[case] = {"now": _times(events, self_times), "in order": in_order}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        says = "with the same events in order it is"
        found = (_wrong(case, seen[case]["now"], seen[case]["in order"], says) for case in expected)
        return next((wrong for wrong in found if wrong), None)


class HandlesRounding(Check):
    """Spans that follow each other without a gap are side by side, although `ts + dur` is rounded.

    `ts` is large, and `ts + dur` is rounded: it may come out a little later than the `ts` of the next span.
    """

    hint = "Turn `ts` and `dur` into whole nanoseconds first: round(1000 * event['ts'])."

    @staticmethod
    def probe(seed: int, self_times: SelfTimes) -> Evidence:
        made = MadeTrace(random.Random(seed + 40))
        for _ in range(30):
            _nest(made, 2, gap=0)
        spans = _in_order(made.events)
        whole = _times(_in_whole_microseconds(spans), self_times)
        if "times" in whole:
            whole["times"] = {name: own / 1000 for name, own in whole["times"].items()}
        return {"fractions": _times(spans, self_times), "whole": whole}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        says = "with the same spans on a clock that never rounds, it is"
        return _wrong("spans that follow each other without a gap", seen["fractions"], seen["whole"], says)


def _in_whole_microseconds(events: list[Event]) -> list[Event]:
    """Return the events a thousand times as long, from 0 on: in whole numbers, which floats hold exactly."""
    first = min(round(1000 * event["ts"]) for event in events)
    return [
        event | {"ts": float(round(1000 * event["ts"]) - first), "dur": float(round(1000 * event["dur"]))}
        for event in events
    ]


class ChangesNothing(Check):
    """The function does not change the trace."""

    hint = (
        "sorted(events) makes a new list; events.sort() does not. An event is a dictionary, which you "
        "must not change either."
    )

    @staticmethod
    def probe(seed: int, self_times: SelfTimes) -> Evidence:
        made = MadeTrace(random.Random(seed + 50))
        for _ in range(4):
            _nest(made, 2, gap=600)
        events = made.shuffled()
        given = copy.deepcopy(events)
        self_times(given)
        return {"changed": given != events}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return "Your function changed the list of events, or an event in it." if seen["changed"] else None


SELF_TIMES = (
    SumsWhatEachSpendsItself,
    CountsCompleteEventsOnly,
    KeepsThreadsApart,
    TakesAnyOrder,
    HandlesRounding,
    ChangesNothing,
)
