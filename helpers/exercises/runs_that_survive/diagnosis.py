"""Checks of the diagnosis: which rank broke a job, and how."""

import copy
import random
from typing import Any, ClassVar

from ..base import Check, Evidence
from .made_jobs import made_job

JOBS = 12  # of each kind


class OnMadeJobs(Check):
    """Shows the answer jobs that are broken in one way."""

    kind: ClassVar[str]
    look: ClassVar[str]

    @classmethod
    def probe(cls, seed: int, diagnose: Any) -> Evidence:
        chance = random.Random(f"{seed} {cls.kind}")
        rows, jobs, changed = [], [], False
        for _ in range(JOBS):
            logs, blamed = made_job(cls.kind, chance)
            before = copy.deepcopy(logs)
            found = diagnose(logs)
            changed |= logs != before
            fault, rank = found if isinstance(found, tuple | list) and len(found) == 2 else (None, None)
            rows.append([str(fault).partition(" ")[0], rank if rank is None else int(rank)])
            jobs.append([len(logs), blamed])
        return {"rows": rows, "jobs": jobs, "changed": changed}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for (ranks, blamed), (fault, rank) in zip(expected["jobs"], seen["rows"], strict=True):
            if [fault, rank] != [cls.kind, blamed]:
                right = f'("{cls.kind}", {blamed})'
                got = f'("{fault}", {rank})'
                return f"a job of {ranks} ranks: {got}, and it is {right}. {cls.look}"
        return "diagnose changed the logs, which others read as well." if seen["changed"] else None


class FindsTheKilled(OnMadeJobs):
    """A rank that was killed is found, though the others ended badly, too."""

    kind = "killed"
    look = "When a rank is killed, the others lose their connection (1) or are told to stop (-15). Only one has -9."
    hint = "Exit code -9 is SIGKILL: nobody sends that to a healthy rank."


class FindsTheHung(OnMadeJobs):
    """A rank that hangs is found: it is the one that the others wait for."""

    kind = "hung"
    look = "All the others stand in a collective that this rank has not called."
    hint = (
        "The job broke, and nobody was killed. Who raised the error does not matter: the first to time out raises it.\n"
        "A rank that waits has a last call with answered=None. Who has none?"
    )


class FindsTheWrong(OnMadeJobs):
    """A rank whose weights differ from those of the others is found."""

    kind = "wrong"
    look = "After each step all replicas must have the same checksum. From some step on, one rank's are different."
    hint = "Step by step: which checksum do most ranks have, and who has another one? collections.Counter counts."


class FindsTheSlow(OnMadeJobs):
    """A rank that is slow in every step is found, and one long pause of another rank is not taken for it."""

    kind = "slow"
    look = "Everybody's steps take the same time, because all wait for the slow rank. It waits least and works longest."
    hint = (
        "Working is the time from one answer to the next question: calls[i].answered to calls[i + 1].asked.\n"
        "Take the median over the steps, which one long pause does not move. "
        "Slow is who works more than 1.5 times as long as the median rank."
    )


class LeavesTheHealthyAlone(OnMadeJobs):
    """A healthy job is called healthy, though its ranks are not all equally fast."""

    kind = "healthy"
    look = "Nobody has failed, all weights agree, and nobody is more than a few percent slower than the others."
    hint = "Somebody is always the slowest. Slow begins at 1.5 times the working time of the median rank."


DIAGNOSIS = (FindsTheKilled, FindsTheHung, FindsTheWrong, FindsTheSlow, LeavesTheHealthyAlone)
