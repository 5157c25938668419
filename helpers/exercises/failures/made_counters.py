"""Counters of the nodes of a made-up job, broken in a chosen way, with the distractions of real ones."""

import random
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
    stages = chance.choice((2, 4, 8))
    calls, pace = chance.randint(10_000, 900_000), [chance.uniform(2.0, 6.0) for _ in range(stages)]
    sums = [chance.getrandbits(32) for _ in range(stages)]
    found: list[NodeCounters | None] = []
    for node in range(nodes):
        stage = node * stages // nodes
        old = chance.randint(1_000, 900_000) if chance.random() < 0.1 else chance.randint(0, 50)  # long ago
        work = pace[stage] * chance.uniform(0.96, 1.04)
        found.append(NodeCounters(stage, calls, work, old, old + chance.randint(0, 60), sums[stage]))
    if chance.random() < 0.5:  # clearly slower than most, and not slow: that begins at 1.2
        node = chance.randrange(nodes)
        found[node] = replace(found[node], work=pace[found[node].stage] * chance.uniform(1.1, 1.13))
    blamed = chance.randrange(nodes) if fault != "healthy" else None
    if blamed is None:
        return found, None
    if chance.random() < 0.25:
        blamed -= blamed % (nodes // stages)  # the first of its stage
    own = found[blamed]
    if fault == "hung":
        found[blamed] = replace(own, calls=calls - chance.choice((1, 1, 3, 900, calls)))
    if fault == "link":
        found[blamed] = replace(own, errors_now=own.errors_before + chance.randint(5_000, 90_000))
    if fault == "corrupt":
        found[blamed] = replace(own, checksum=own.checksum ^ (1 << chance.randrange(32)))
    if fault == "slow":
        found[blamed] = replace(own, work=pace[own.stage] * chance.uniform(1.35, 1.7))
    if fault in ("dead", "link"):  # the node at the other end counts errors, too
        peer = (blamed + chance.randrange(1, nodes)) % nodes
        found[peer] = replace(found[peer], errors_now=found[peer].errors_before + chance.randint(200, 4_000))
    if fault == "dead":
        found[blamed] = None
    return found, blamed
