"""Checks of a diagnosis from the counters of many nodes."""

import copy
import random
from typing import Any, ClassVar

from ..base import Check, Evidence
from .made_counters import made_counters

JOBS = 24  # of each fault


class OnMadeCounters(Check):
    """Gives the answer jobs with one fault."""

    fault: ClassVar[str]
    look: ClassVar[str]

    @classmethod
    def probe(cls, seed: int, suspect: Any) -> Evidence:
        chance = random.Random(f"{seed} {cls.fault}")
        rows, jobs, changed = [], [], False
        for _ in range(JOBS):
            nodes, blamed = made_counters(cls.fault, chance, chance.choice((32, 48, 64)))
            before = copy.copy(nodes)
            answer = suspect(nodes)
            changed |= nodes != before
            fault, node = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (None, None)
            rows.append([str(fault).partition(" ")[0], node if node is None else int(node)])
            jobs.append([len(nodes), blamed])
        return {"rows": rows, "jobs": jobs, "changed": changed}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for (count, blamed), (fault, node) in zip(expected["jobs"], seen["rows"], strict=True):
            if [fault, node] != [cls.fault, blamed]:
                right = f'("{cls.fault}", {blamed})'
                got = f'("{fault}", {node})' if fault != "None" else "not a pair of a fault and a node"
                return f"a job of {count} nodes: the answer is {got}; it should be {right}. {cls.look}"
        return "suspect changed the list; other code reads it, too." if seen["changed"] else None


class FindsTheDead(OnMadeCounters):
    """The node that does not answer is found, although a node linked to it counts errors."""

    fault = "dead"
    look = "A node that does not answer is None. Its peers' errors are a consequence."
    hint = "Look for None before you look at any counter."


class FindsTheHungNode(OnMadeCounters):
    """The node that has entered fewer collectives than all others is found."""

    fault = "hung"
    look = "All other nodes wait in the same collective. This one has not entered it."
    hint = "min() and max() of `calls` differ only if a node hangs. Which node has the minimum?"


class FindsTheLink(OnMadeCounters):
    """The node whose link errors grew most is found; old errors and those at the other end do not count."""

    fault = "link"
    look = "The counters start with the node. What counts is the largest increase in the last hour, if it is above 100."
    hint = "Subtract the reading of an hour ago. Two nodes may have large increases: both ends of one link."


class FindsTheCorrupt(OnMadeCounters):
    """The node whose checksum differs from the rest of its stage is found."""

    fault = "corrupt"
    look = "Nodes of one stage had the same rows and hold the same weights. Other stages have other checksums."
    hint = "Count the checksums stage by stage. A checksum that occurs only once in its stage is the faulty node's."


class FindsTheSlowNode(OnMadeCounters):
    """The node that works more than 1.2 times as long as the median of its stage is found."""

    fault = "slow"
    look = "Stages do different amounts of work: compare a node with the median of its own stage."
    hint = "Group `work` by stage, take each group's median, and divide."


class LeavesAHealthyFleetAlone(OnMadeCounters):
    """A healthy fleet is reported as healthy, however many old errors its counters show."""

    fault = "healthy"
    look = "No increase above 100, one checksum in each stage, and no node at 1.2 times its stage's median."
    hint = "One node is always the slowest, and one always has the most errors. Only the limits of the contract count."


SUSPECTS = (FindsTheDead, FindsTheHungNode, FindsTheLink, FindsTheCorrupt, FindsTheSlowNode, LeavesAHealthyFleetAlone)
