# lists and slices, other forms

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
