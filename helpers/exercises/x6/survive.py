"""X6, part 5: all that was written, together. One check of a point: the run is killed wherever it hurts."""

import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence
from .chains import Answers, Chain, Start, failed, run_chains, wrong_in_chain
from .job import Kill

Answer = Callable[..., Any]
WHOLE = "never killed"


class SurvivesWhereverItIsKilled(Check):
    """A run that is killed during saves, startup or a step ends with the same bits and a bounded use of the disk."""

    points = 1
    hint = (
        "Here `save`, `load`, `gradient` and `train` work together. When their own checks pass, look at what `train` "
        "gives to `save`."
    )

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer, gradient: Answer, train: Answer) -> Evidence:
        dice = random.Random(seed + 2)

        def early(save_number: int = 1) -> Kill:  # while the new checkpoint is being written
            return Kill(0, "inside", save_number, change=dice.randrange(2, 7))

        def late() -> Kill:  # about when it gets its name; `save` is over when it has made fewer changes
            return Kill(0, "inside", 1, change=dice.randrange(8, 24))

        chains = {
            WHOLE: Chain((Start(2),)),
            "killed in the first save, twice in a row": Chain((Start(2, early()), Start(2, late()), Start(1))),
            "killed in a later save": Chain(
                (
                    Start(2, Kill(0, "updated", 4)),
                    Start(2, Kill(dice.choice((0, 1)), "model")),
                    Start(2, early()),
                    Start(2, late()),
                    Start(2, Kill(1, "forward", dice.randrange(2, 4))),
                    Start(2),
                )
            ),
            "killed in a save on one rank": Chain((Start(1, early(2)), Start(1))),
        }
        return run_chains(Answers(train, save, load, gradient), seed, chains)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = failed(seen, WHOLE)
        if wrong:
            return wrong
        (whole,) = seen[WHOLE]["starts"]
        one = whole["bytes"] / max(1, whole["entries"])
        for name, right in expected.items():
            wrong = failed(seen, name)
            if wrong:
                return wrong
            wrong = wrong_in_chain(seen[name], right, seen[WHOLE])
            if wrong:
                return f"{name}: {wrong}"
            for number, (start, want) in enumerate(zip(seen[name]["starts"], right["starts"], strict=True), 1):
                if start["bytes"] > 3.2 * one + 2000:
                    return f"{name}: after start {number} the folder held {start['bytes'] / one:.1f} checkpoints."
                if not start["killed"] and start["entries"] != want["entries"]:
                    return f"{name}: {start['entries']} entries are left in the end; expected {want['entries']}."
        return None


SURVIVE = (SurvivesWhereverItIsKilled,)
