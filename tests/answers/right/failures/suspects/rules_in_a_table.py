# rules in a table

import itertools
import statistics
from collections import Counter


def dead(nodes):
    return next((index for index, node in enumerate(nodes) if not node), None)


def hung(nodes):
    order = sorted(range(len(nodes)), key=lambda index: nodes[index].calls)
    return order[0] if nodes[order[0]].calls < nodes[order[1]].calls else None


def link(nodes):
    index = max(range(len(nodes)), key=lambda index: nodes[index].errors_now - nodes[index].errors_before)
    return index if nodes[index].errors_now - nodes[index].errors_before > 100 else None


def by_stage(nodes):
    order = sorted(range(len(nodes)), key=lambda index: nodes[index].stage)
    return [list(group) for _, group in itertools.groupby(order, key=lambda index: nodes[index].stage)]


def corrupt(nodes):
    for members in by_stage(nodes):
        (usual, _), *others = Counter(nodes[index].checksum for index in members).most_common()
        if others:
            return next(index for index in members if nodes[index].checksum != usual)
    return None


def slow(nodes):
    for members in by_stage(nodes):
        limit = 1.2 * statistics.median(nodes[index].work for index in members)
        late = [index for index in members if nodes[index].work > limit]
        if late:
            return late[0]
    return None


def suspect(nodes):
    for rule in (dead, hung, link, corrupt, slow):
        index = rule(nodes)
        if index is not None:
            return rule.__name__, index
    return "healthy", None
