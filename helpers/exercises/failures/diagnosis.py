"""Checks of the diagnosis: which rank broke a job, and how."""

import copy
import random
from typing import Any, ClassVar

from ..base import Check, Evidence
from .made_jobs import made_job

JOBS = 24  # of each kind


class OnMadeJobs(Check):
    """Gives the answer jobs that are broken in one way."""

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
                got = f'("{fault}", {rank})' if fault != "None" else "not a pair of a fault and a rank"
                return f"a job of {ranks} ranks: the answer is {got}; it should be {right}. {cls.look}"
        return "diagnose changed the logs; other code reads them, too." if seen["changed"] else None


class FindsTheKilled(OnMadeJobs):
    """The killed rank is found, although the other ranks failed, too."""

    kind = "killed"
    look = "When a rank is killed, the others lose their connection (1) or are stopped (-15). Only one has -9."
    hint = "Exit code -9 means SIGKILL. Which rank has this exit code?"


class FindsTheHung(OnMadeJobs):
    """The hung rank is found: the one that all others wait for."""

    kind = "hung"
    look = "All other ranks wait in a collective that this rank has not called, perhaps the first one."
    hint = (
        "No rank was killed. Which rank raised the error does not matter: the first to time out raises it.\n"
        "A waiting rank has a last call with answered=None. Which rank has no such call? It may have no calls at all."
    )


class FindsTheWrong(OnMadeJobs):
    """The rank whose weights differ from the others' is found."""

    kind = "wrong"
    look = "After each step all replicas must have the same checksum. From some step on, one rank's checksum differs."
    hint = "Step by step: which checksum do most ranks have, and which rank differs? collections.Counter counts."


class FindsTheSlow(OnMadeJobs):
    """The rank that is slow in most steps is found; long pauses in some steps do not count."""

    kind = "slow"
    look = "All ranks have the same step time, because they wait for the slow rank. It waits least and works longest."
    hint = (
        "Working time runs from one answer to the next call: calls[i].answered to calls[i + 1].asked.\n"
        "Take the median over the steps, which some long pauses do not move. "
        "A rank is slow if it works more than 1.5 times as long as the median rank."
    )


class LeavesTheHealthyAlone(OnMadeJobs):
    """A healthy job is reported as healthy, even if its ranks differ in speed."""

    kind = "healthy"
    look = "No rank failed, all weights agree, and in most steps no rank works 1.5 times as long as the median."
    hint = "One rank is always the slowest. Only more than 1.5 times the median working time counts as slow."


DIAGNOSIS = (FindsTheKilled, FindsTheHung, FindsTheWrong, FindsTheSlow, LeavesTheHealthyAlone)
