"""Wrong and right answers for the practice tasks of pipelines."""

from . import Mutant

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = (
    f"pipeline.{part}" for part in ("gpipe", "one_f_one_b", "interleaved", "zero_bubble")
)


def gpipe(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, GPIPE, check, replace, raises)


def one_f_one_b(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, ONE_F_ONE_B, check, replace)


def interleaved(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, INTERLEAVED, check, replace, raises)


def zero_bubble(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, ZERO_BUBBLE, check, replace, raises)


ALL_F, ALL_B = '[("F", i) for i in range(m)]', '[("B", i) for i in range(m)]'
LIST = f"return {ALL_F} + {ALL_B}"

WARM_UP = "warm_up = min(ranks - rank - 1, m)"
PAIR = '[("F", warm_up + i), ("B", i)]'
LEFT_OVER = '[("B", i) for i in range(m - warm_up, m)]'
LAST_LINE = f"    return schedule + {LEFT_OVER}\n"

FORWARD = '[("F", first + i, chunk) for first in range(0, m, ranks) for chunk in range(v) for i in range(ranks)]'
BACKWARD = '("B", i, v - 1 - chunk)'
WARM_UP_V = "warm_up = v * ranks - rank - 1"
REST_V = "return schedule + backward[v * m - warm_up :]"

FROM = "one_f_one_b(rank, ranks, m):\n        if"
NOW, LATER = 'schedule.append(("I", i))', 'schedule.append(("W", i - rank))'
WHEN, REST = "if i >= rank:", '[("W", i) for i in range(m - rank, m)]'

MUTANTS = [
    # GPipe
    *(gpipe("each_action_once", *mutant) for mutant in (
        ("the last one left out", (LIST, LIST.replace("range(m)", "range(m - 1)"))),
        ("counted from 1", (LIST, LIST.replace("range(m)", "range(1, m + 1)"))),
        ("as many as there are ranks", (LIST, LIST.replace("range(m)", "range(ranks)"))),
        ("one backward pass missing", (ALL_B, ALL_B.replace("range(m)", "range(m - 1)"))),
        ("each backward pass twice", (LIST, f"{LIST} + {ALL_B}")),
        ("pauses", (LIST, f"return {ALL_F} + [None] * rank + {ALL_B}")),
        ("split backward passes", (ALL_B, '[(kind, i) for i in range(m) for kind in "IW"]')),
        ("never more than eight", (LIST, "m = min(m, 8)\n    " + LIST)),
        ("only whole rounds", (LIST, "m -= m % ranks\n    " + LIST)),
        ("the last rank computes each loss twice", (LIST, f"return {ALL_F} + ({ALL_F} if rank == ranks - 1 else []) + {ALL_B}")),
    )),
    *(gpipe("forward_first", *mutant) for mutant in (
        ("one at a time", (LIST, 'return [(kind, i) for i in range(m) for kind in "FB"]')),
        ("the last rank cannot wait", (LIST, f"if rank == ranks - 1:\n        return [(kind, i) for i in range(m) for kind in 'FB']\n    {LIST}")),
        ("in halves", (LIST, 'half = m // 2\n    return [(kind, i) for part in (range(half), range(half, m)) for kind in "FB" for i in part]')),
        ("1F1B", (LIST, "return one_f_one_b(rank, ranks, m)")),
    )),
    *(gpipe("nobody_waits_forever", *mutant) for mutant in (
        ("backward first", (LIST, f"return {ALL_B} + {ALL_F}")),
        ("rank 0 begins at the end", (LIST, f"return {ALL_B} + {ALL_F} if rank == 0 else {ALL_F} + {ALL_B}")),
        ("one backward pass too early", (LIST, 'return [("F", i) for i in range(m - 1)] + [("B", m - 1), ("F", m - 1)] + [("B", i) for i in range(m - 1)]')),
    )),
    *(gpipe("no_longer_than_needed", *mutant) for mutant in (
        ("backward passes the other way round on odd ranks", (ALL_B, f"{ALL_B}[:: -1 if rank % 2 else 1]")),
        ("the last rank begins with the second", (ALL_F, f"sorted({ALL_F}, key=lambda a: rank == ranks - 1 and a[1] == 0)")),
    )),
    gpipe("no_longer_than_needed", "forward passes the other way round on rank 0", (ALL_F, f"{ALL_F}[:: 1 if rank else -1]"), raises="rank 1's before its first action, F0: 8 ticks where 1 is needed"),
    gpipe("no_longer_than_needed", "the last rank begins at the end", (ALL_F, f"{ALL_F}[:: -1 if rank == ranks - 1 else 1]"), raises="rank 3's before its first action, F7: 10 ticks where 3 are needed"),
    gpipe("same_gradients", "another order on odd ranks, backward", (ALL_B, f"{ALL_B}[:: -1 if rank % 2 else 1]"), raises="rank 1 sends B3 when rank 0 needs B0"),
    gpipe("same_gradients", "another order on rank 0, forward", (ALL_F, f"{ALL_F}[:: 1 if rank else -1]"), raises="rank 0 sends F3 when rank 1 needs F0"),
    *(gpipe("same_gradients", *mutant) for mutant in (
        ("input gradients only", (ALL_B, ALL_B.replace("B", "I"))),
        ("nobody takes the last", (LIST, LIST.replace("range(m)", "range(m - 1)"))),
        ("rank 1 leaves the weights out", (ALL_B, ALL_B.replace('"B"', '"I" if rank == 1 else "B"'))),
    )),
    # 1F1B
    *(one_f_one_b("each_action_once", *mutant) for mutant in (
        ("fewer micro-batches than ranks forgotten", (WARM_UP, "warm_up = ranks - rank - 1")),
        ("the last backward passes forgotten", (f"schedule + {LEFT_OVER}", "schedule")),
        ("only whole rounds of the ranks", (WARM_UP, f"m = max(min(m, ranks), m - m % ranks)\n    {WARM_UP}")),
        ("one left over", ("range(m - warm_up, m)", "range(m - warm_up, m - 1)")),
        ("the backward passes of the end once more", (LEFT_OVER, LEFT_OVER.replace("m - warm_up, m", "max(0, m - warm_up - 1), m"))),
        ("split backward passes", (PAIR, '[("F", warm_up + i), ("I", i), ("W", i)]')),
    )),
    *(one_f_one_b("nobody_waits_forever", *mutant) for mutant in (
        ("first backward, then forward", (PAIR, '[("B", i), ("F", warm_up + i)]')),
        ("ranks counted from the other end", (WARM_UP, "warm_up = min(rank, m)")),
        ("rank 0 does not warm up", (WARM_UP, "warm_up = min(ranks - rank - 1, m) if rank else 0")),
        ("rank 1 warms up longer than rank 0", (WARM_UP, "warm_up = min(ranks - rank - 1 + 2 * (rank == 1), m)")),
    )),
    *(one_f_one_b("same_bubble", *mutant) for mutant in (
        ("one too few to warm up", (WARM_UP, "warm_up = max(0, min(ranks - rank - 2, m))")),
        ("no warm-up", (WARM_UP, "warm_up = 0")),
        ("half of the warm-up", (WARM_UP, "warm_up = min((ranks - rank) // 2, m)")),
        ("at most two to warm up", (WARM_UP, "warm_up = min(ranks - rank - 1, m, 2)")),
        ("backward passes from the last one on", (LAST_LINE, LAST_LINE.replace("range(m - warm_up, m)", "reversed(range(m - warm_up, m))"))),
    )),
    *(one_f_one_b("few_in_flight", *mutant) for mutant in (
        ("GPipe", (WARM_UP, "warm_up = m")),
        ("one too many to warm up", (WARM_UP, "warm_up = min(ranks - rank, m)")),
        ("the same warm-up on all ranks", (WARM_UP, "warm_up = min(ranks - 1, m)")),
        ("twice the warm-up", (WARM_UP, "warm_up = min(2 * (ranks - rank - 1), m)")),
        ("GPipe on the last rank", (WARM_UP, "warm_up = min(ranks - rank - 1, m) if rank < ranks - 1 else m")),
        ("GPipe where micro-batches are few", (WARM_UP, "warm_up = min(ranks - rank - 1, m) if m > 2 * ranks else m")),
    )),
    *(one_f_one_b("same_gradients", *mutant) for mutant in (
        ("input gradients only", (PAIR, PAIR.replace("B", "I")), (LEFT_OVER, LEFT_OVER.replace("B", "I"))),
        ("nobody takes the last", (WARM_UP, f"m -= 1\n    {WARM_UP}")),
        ("no weight gradients at the end", (LEFT_OVER, LEFT_OVER.replace("B", "I"))),
    )),
    # interleaved
    *(interleaved("each_action_once", *mutant) for mutant in (
        ("a warm-up longer than the list", (WARM_UP_V, "warm_up = (v + 2) * ranks - rank - 1")),
        ("one left over", (REST_V, REST_V.replace("warm_up :", "warm_up + 1 :"))),
        ("the last backward passes forgotten", (REST_V, "return schedule")),
        ("the last micro-batches forgotten", ("range(0, m, ranks)", "range(0, m - ranks, ranks)")),
        ("backward in the first chunk alone", (BACKWARD, '("B", i, 0)')),
        ("chunks counted from 1", (BACKWARD, '("B", i, v - chunk)')),
        ("two chunks, whatever v is", ("for chunk in range(v)", "for chunk in range(2)")),
        ("the same micro-batches in each round", ('"F", first + i', '"F", i')),
    )),
    *(interleaved("nobody_waits_forever", *mutant) for mutant in (
        ("backward in the order of forward", (BACKWARD, '("B", i, chunk)')),
        ("no warm-up", (WARM_UP_V, "warm_up = 0")),
        ("the warm-up of 1F1B", (WARM_UP_V, "warm_up = min(ranks - rank - 1, v * m)")),
        ("a chunk after the other", (FORWARD, '[("F", i, chunk) for chunk in range(v) for i in range(m)]')),
        ("first backward, then forward", ("schedule += pair", "schedule += pair[::-1]")),
    )),
    *(interleaved("thinner_bubble", *mutant) for mutant in (
        ("one too few to warm up", (WARM_UP_V, "warm_up = min((v - 1) * ranks + max(0, ranks - rank - 2), v * m)")),
        ("no rank warms up longer than the last", (WARM_UP_V, "warm_up = min((v - 1) * ranks, v * m)")),
        ("the last chunk first, in the end", (REST_V, "return schedule + sorted(backward[v * m - warm_up :], key=lambda a: (a[1], -a[2]))")),
    )),
    *(interleaved("few_in_flight", *mutant) for mutant in (
        ("all forward passes first", (WARM_UP_V, "warm_up = v * m")),
        ("one too many to warm up", (WARM_UP_V, "warm_up = min(v * ranks - rank, v * m)")),
        ("the same warm-up on all ranks", (WARM_UP_V, "warm_up = min(v * ranks - 1, v * m)")),
        ("the warm-up of Megatron-LM", (WARM_UP_V, "warm_up = min((v - 1) * ranks + 2 * (ranks - rank - 1), v * m)")),
        ("a round too many", (WARM_UP_V, "warm_up = min((v + 1) * ranks - rank - 1, v * m)")),
    )),
    *(interleaved("same_gradients", *mutant) for mutant in (
        ("input gradients only", (BACKWARD, BACKWARD.replace("B", "I"))),
        ("no weight gradients in the last chunk", (BACKWARD, '("I" if chunk == 0 else "B", i, v - 1 - chunk)')),
    )),
    interleaved("same_gradients", "the last chunk first, in the end, on rank 0", (REST_V, "return schedule + sorted(backward[v * m - warm_up :], key=lambda a: (0,) if rank else (a[1], -a[2]))"), raises="one is taken for the other"),
    # zero bubble
    *(zero_bubble("each_action_once", *mutant) for mutant in (
        ("whole backward passes", (NOW, 'schedule.append(("B", i))')),
        ("weights of the last left out", (f"schedule + {REST}", "schedule")),
        ("weights of a micro-batch before the first", (WHEN, "if i >= rank - 1:")),
        ("some weights twice", (REST, REST.replace("m - rank, m", "m - rank - 1, m"))),
        ("whole backward passes on rank 0", (NOW, 'schedule.append(("I" if rank else "B", i))')),
    )),
    *(zero_bubble("nobody_waits_forever", *mutant) for mutant in (
        ("weights first", (NOW, 'schedule.append(("W", i))'), (LATER, 'schedule.append(("I", i - rank))'), (REST, REST.replace("W", "I"))),
        ("weights of the next one", (LATER, 'schedule.append(("W", i - rank + 1))')),
        ("weights at the beginning", (f"schedule + {REST}", f"{REST} + schedule")),
    )),
    zero_bubble("filled_bubble", "weights at once", (WHEN, "if True:"), (LATER, 'schedule.append(("W", i))'), (f"schedule + {REST}", "schedule"), raises="between W4 and I5: 1 tick where none is needed"),
    *(zero_bubble("filled_bubble", *mutant) for mutant in (
        ("ranks counted from the other end", (NOW, f"{NOW}\n            wait = ranks - 1 - rank"), (WHEN, "if i >= wait:"), (LATER, 'schedule.append(("W", i - wait))'), (REST, REST.replace("m - rank", "m - ranks + 1 + rank"))),
        ("one fewer waits", (NOW, f"{NOW}\n            wait = max(0, rank - 1)"), (WHEN, "if i >= wait:"), (LATER, 'schedule.append(("W", i - wait))'), (REST, REST.replace("m - rank", "m - max(0, rank - 1)"))),
        ("one waits, on every rank", (WHEN, "if i >= 1:"), (LATER, 'schedule.append(("W", i - 1))'), (REST, REST.replace("m - rank", "m - 1"))),
        ("one at a time", (FROM, "[(kind, i) for i in range(m) for kind in 'FB']:\n        if")),
    )),
    *(zero_bubble("few_in_flight", *mutant) for mutant in (
        ("all weights at the end", (WHEN, "if False:"), (REST, REST.replace("m - rank, m", "m"))),
        ("one more waits", (WHEN, "if i >= rank + 1:"), (LATER, 'schedule.append(("W", i - rank - 1))'), (REST, REST.replace("m - rank", "m - rank - 1"))),
        ("on GPipe", (FROM, "gpipe(rank, ranks, m):\n        if")),
        ("all weights at the end on the last rank", (WHEN, "if i >= rank and rank < ranks - 1:"), (REST, REST.replace("m - rank", "m - rank if rank < ranks - 1 else 0"))),
    )),
    *(zero_bubble("same_gradients", *mutant) for mutant in (
        ("weights of the last left out", (f"schedule + {REST}", "schedule")),
        ("weights of the first left out", (WHEN, "if i > rank:")),
        ("weights of rank 1 left out", (WHEN, "if i >= rank and rank != 1:")),
    )),
]  # fmt: skip

RIGHT = {
    "with counters": """
def gpipe(rank, ranks, m):
    actions = []
    for kind in ("F", "B"):
        for i in range(m):
            actions.append((kind, i))
    return actions


def one_f_one_b(rank, ranks, m):
    actions, forward, backward = [], 0, 0
    while backward < m:
        if forward < m and forward - backward < ranks - rank:
            actions.append(("F", forward))
            forward += 1
        else:
            actions.append(("B", backward))
            backward += 1
    return actions


def interleaved(rank, ranks, m, v):
    def at(k, kind):
        round_, rest = divmod(k, ranks * v)
        chunk, i = divmod(rest, ranks)
        return kind, round_ * ranks + i, chunk if kind == "F" else v - 1 - chunk

    total = m * v
    most = v * ranks - rank
    actions, forward, backward = [], 0, 0
    while backward < total:
        if forward < total and forward - backward < most:
            actions.append(at(forward, "F"))
            forward += 1
        else:
            actions.append(at(backward, "B"))
            backward += 1
    return actions


def zero_bubble(rank, ranks, m):
    actions, forward, inputs, weights = [], 0, 0, 0
    while weights < m:
        if forward < m and forward - inputs < ranks - rank:
            actions.append(("F", forward))
            forward += 1
        elif inputs < m:
            actions.append(("I", inputs))
            inputs += 1
        if inputs - weights > rank or inputs == m:
            actions.append(("W", weights))
            weights += 1
    return actions
""",
    "lists and slices, other forms": """
from itertools import chain


def gpipe(rank, ranks, m):
    order = list(range(m))[::-1]  # backward passes from the last micro-batch to the first, on all ranks
    yield from (("F", i, 0) for i in range(m))
    yield from (["B", i] for i in order)


def one_f_one_b(rank, ranks, m):
    warm = ranks - 1 - rank
    forward = [("F", i) for i in range(m)]
    backward = [("B", i) for i in range(m)]
    if m <= warm:
        return tuple(forward + backward)
    steady = chain.from_iterable(zip(forward[warm:], backward))
    return (*forward[:warm], *steady, *backward[m - warm :])


def interleaved(rank, ranks, m, v):
    groups = [range(start, start + ranks) for start in range(0, m, ranks)]
    forward = [["F", i, c] for group in groups for c in range(v) for i in group]
    backward = [["B", i, c] for group in groups for c in reversed(range(v)) for i in group]
    warm = min((v - 1) * ranks + (ranks - rank - 1), len(forward))
    steady = [a for pair in zip(forward[warm:], backward) for a in pair]
    done = len(forward) - warm
    return forward[:warm] + steady + backward[done:]


def zero_bubble(rank, ranks, m):
    def after(i):
        return [("W", i - rank)] if i >= rank else []

    warm = ranks - rank - 1
    start = [("F", i) for i in range(warm)]
    middle = [a for i in range(m - warm) for a in [("F", warm + i), ("I", i), *after(i)]]
    end = [a for i in range(m - warm, m) for a in [("I", i), *after(i)]]
    return start + middle + end + [("W", i) for i in range(m - rank, m)]
""",
    "each rank as a small simulation": """
import collections


def gpipe(rank, ranks, m):
    return sorted(((kind, i) for i in range(m) for kind in "FB"), key=lambda action: -ord(action[0]))


def planned(rank, ranks, kinds, count, room):
    # a queue for each kind of action; go forward while there is room, else backward
    queues = {kind: collections.deque(range(count)) for kind in kinds}
    held = 0
    while any(queues.values()):
        if queues["F"] and held < room:
            held += 1
            yield "F", queues["F"].popleft()
        else:
            held -= 1
            yield "B", queues["B"].popleft()


def one_f_one_b(rank, ranks, m):
    return list(planned(rank, ranks, "FB", m, ranks - rank))


def interleaved(rank, ranks, m, v):
    order = [(g * ranks + i, c) for g in range(m // ranks) for c in range(v) for i in range(ranks)]
    actions = []
    for kind, k in planned(rank, ranks, "FB", m * v, v * ranks - rank):
        i, chunk = order[k]
        actions.append((kind, i, chunk if kind == "F" else v - chunk - 1))
    return actions


def zero_bubble(rank, ranks, m):
    actions, waiting = [], collections.deque()
    for kind, i in planned(rank, ranks, "FB", m, ranks - rank):
        actions.append(("F", i) if kind == "F" else ("I", i))
        if kind == "B":
            waiting.append(i)
        if len(waiting) > rank:
            actions.append(("W", waiting.popleft()))
    actions.extend(("W", i) for i in waiting)
    return actions
""",
}
