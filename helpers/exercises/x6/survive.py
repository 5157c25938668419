"""X6, part 4: all that was written, together. One check of a point: the run is killed wherever it hurts."""

import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence
from .chains import Answers, Start, run_chain, whole_run, wrong_in_chain
from .folder_watch import CAN_STOP_WRITES
from .job import Kill

Answer = Callable[..., Any]


class SurvivesWhereverItIsKilled(Check):
    """Killed in a write, before a rename, at a start, twice in a row, on one rank: the same bits, a bounded disk."""

    points = 1
    hint = "Here your four functions work together. When the other checks pass, look at what `train` gives to `save`."

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer, gradient: Answer, train: Answer) -> Evidence:
        dice = random.Random(seed + 2)
        answers = Answers(train, save, load, gradient)
        in_a_write = Kill(0, "write", 1, byte=dice.randrange(1500, 6000)) if CAN_STOP_WRITES else Kill(0, "save", 1)
        ends = (Start(1), Start(2))
        chains = {
            "killed in the first save, twice in a row": (
                Start(2, in_a_write),
                Start(2, Kill(0, "call", 1, call=dice.randrange(2, 5))),
            ),
            "killed in a later save": (
                Start(2, Kill(0, "updated", 4)),
                Start(2, Kill(dice.choice((0, 1)), "model")),
                Start(2, in_a_write),
                Start(2, Kill(0, "call", 1, call=3)),
                Start(2, Kill(1, "forward", dice.randrange(2, 6))),
            ),
            "killed in a save on one rank": (
                Start(1, Kill(0, "write", 2, byte=3000) if CAN_STOP_WRITES else in_a_write),
            ),
        }
        return {
            "whole": whole_run(answers, seed),
            "chains": {
                name: run_chain(answers, seed, (*starts, ends[n % 2]))
                for n, (name, starts) in enumerate(chains.items())
            },
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        one = seen["whole"]["starts"][0]["bytes"] / max(1, seen["whole"]["starts"][0]["entries"])
        for name, right in expected["chains"].items():
            got = seen["chains"][name]
            wrong = wrong_in_chain(got, right, seen["whole"])
            if wrong:
                return f"{name}: {wrong}"
            for number, (start, want) in enumerate(zip(got["starts"], right["starts"], strict=True), 1):
                if start["bytes"] > 3.2 * one + 2000:
                    return f"{name}: after start {number} the folder held {start['bytes'] / one:.1f} checkpoints."
                if not start["killed"] and start["entries"] != want["entries"]:
                    return f"{name}: {start['entries']} entries are left in the end; {want['entries']} is right."
        return None


SURVIVE = (SurvivesWhereverItIsKilled,)
