"""Counters of the nodes of a made-up job, broken in a chosen way, with the distractions of real ones."""

import math
import random
import statistics
from dataclasses import dataclass, replace

FAULTS = ("dead", "hung", "link", "corrupt", "slow", "healthy")


@dataclass(frozen=True)
class NodeCounters:
    """What a node reports.

    Attributes:
        stage: of the pipeline, which it shares with other nodes.
        calls: how many collectives it has entered.
        work: seconds of a step that it computes, median over the last steps.
        errors_before, errors_now: of its links since the node was started, an hour ago and now.
        checksum: of its gradient of the last comparison, in which all nodes of a stage had the same rows.
    """

    stage: int
    calls: int
    work: float
    errors_before: int
    errors_now: int
    checksum: int


def made_counters(fault: str, chance: random.Random, nodes: int = 64) -> tuple[list[NodeCounters | None], int | None]:
    """Return the counters of `nodes` nodes, None for one that does not answer, and the node to blame."""
    stages, contiguous = chance.choice((2, 4, 8)), chance.random() < 0.5
    calls, pace = chance.randint(10_000, 900_000), [chance.uniform(2.0, 6.0) for _ in range(stages)]
    sums = [chance.getrandbits(32) for _ in range(stages)]
    found: list[NodeCounters | None] = []
    for node in range(nodes):
        stage = node * stages // nodes if contiguous else node % stages
        old = chance.randint(1_000, 900_000) if chance.random() < 0.1 else chance.randint(0, 50)  # long ago
        work = pace[stage] * chance.uniform(0.96, 1.04)
        found.append(NodeCounters(stage, calls, work, old, old + chance.randint(0, 60), sums[stage]))
    if chance.random() < 0.5:  # clearly slower than most, and not slow: that begins at 1.2
        node = chance.randrange(nodes)
        found[node] = replace(found[node], work=pace[found[node].stage] * chance.uniform(1.1, 1.13))
    if chance.random() < 0.5:  # faster than all others: that makes no other node slow
        node = chance.randrange(nodes)
        found[node] = replace(found[node], work=pace[found[node].stage] * chance.uniform(0.8, 0.85))
    blamed = chance.randrange(nodes) if fault != "healthy" else None
    if blamed is None:
        node = chance.randrange(nodes)  # its link has as many new errors as are allowed
        found[node] = replace(found[node], errors_now=found[node].errors_before + 100)
        return found, None
    if chance.random() < 0.25:
        blamed = next(
            node for node in range(nodes) if found[node].stage == found[blamed].stage
        )  # the first of its stage
    own, new_errors, errors_of_peer = found[blamed], chance.randint(5_000, 90_000), chance.randint(200, 4_000)
    if fault == "link" and chance.random() < 0.4:  # not many more than the limit of 100
        new_errors, errors_of_peer = chance.randint(140, 195), chance.randint(101, 130)
    if fault == "hung":
        found[blamed] = replace(own, calls=calls - chance.choice((1, 1, 3, 900, calls)))
    if fault == "link":
        found[blamed] = replace(own, errors_now=own.errors_before + new_errors)
    if fault == "corrupt":
        found[blamed] = replace(own, checksum=own.checksum ^ (1 << chance.randrange(32)))
    if fault == "slow":
        others = [node for node in range(nodes) if node != blamed and found[node].stage == own.stage]
        if chance.random() < 0.5:  # the next slowest is in the same stage
            found[others[0]] = replace(found[others[0]], work=pace[own.stage] * chance.uniform(1.1, 1.13))
        usual = statistics.median([math.inf, *(found[node].work for node in others)])
        found[blamed] = replace(own, work=usual * chance.choice((chance.uniform(1.22, 1.28), 1.5, 1.7)))
    if fault in ("dead", "link"):  # the node at the other end counts errors, too
        peer = (blamed + chance.randrange(1, nodes)) % nodes
        found[peer] = replace(found[peer], errors_now=found[peer].errors_before + errors_of_peer)
    if fault == "dead":
        found[blamed] = None
    return found, blamed
