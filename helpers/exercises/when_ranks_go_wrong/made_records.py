"""Made-up flight records of all ranks: equal, or different in a chosen way."""

import random

Call = tuple[str, tuple[int, ...], str]
Records = dict[int, list[Call]]
KINDS = ("call", "size", "missing", "tie", "equal")
_NAMES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")


def made_records(kind: str, chance: random.Random) -> tuple[Records, int | None, list[int]]:
    """Return records by rank, the number of the first call that differs (or None), and the ranks to name."""
    count = chance.choice((2, 4, 6, 8)) if kind == "tie" else chance.randint(3, 9)
    common = [_call(chance) for _ in range(chance.randint(4, 12))]
    logs = {rank: list(common) for rank in chance.sample(range(count), count)}  # not in the order of ranks
    if chance.random() < 0.5 or kind == "equal":  # the same calls, from other lines
        for rank in chance.sample(range(count), count // 2):
            logs[rank] = [(name, sizes, f"other.py:{chance.randint(1, 99)}") for name, sizes, _ in common]
    if kind == "equal":
        return logs, None, []
    where = chance.randint(1, len(common))
    if kind == "tie":
        return _tied(logs, where, chance), where, list(range(count))
    odd = sorted(chance.sample(range(count), chance.randint(1, (count - 1) // 2)))
    if kind == "missing":
        stops = odd if chance.random() < 0.5 else [rank for rank in logs if rank not in odd]
        for rank in stops:
            del logs[rank][where - 1 :]
        return logs, where, odd
    usual = common[where - 1]
    for rank in odd:  # each differs in its own way
        call = _other(usual, kind, chance)
        if kind == "call" and chance.random() < 0.5:
            logs[rank].insert(where - 1, call)  # one call more: all later ones are shifted
        else:
            logs[rank][where - 1] = call
    return logs, where, odd


def _tied(logs: Records, where: int, chance: random.Random) -> Records:
    """Let exactly half of the ranks differ at `where`, alike or each in its own way; or end there."""
    usual = logs[0][where - 1]
    others = chance.sample(sorted(logs), len(logs) // 2)
    alike = _other(usual, "call", chance)
    ends, together = chance.random() < 0.3, chance.random() < 0.5
    for i, rank in enumerate(others):
        if ends:
            del logs[rank][where - 1 :]
        else:
            logs[rank][where - 1] = alike if together else ("broadcast", (7 + i,), alike[2])
    return logs


def _call(chance: random.Random) -> Call:
    sizes = (chance.randint(10, 5000),) if chance.random() < 0.7 else (chance.randint(2, 64), chance.randint(2, 64))
    return chance.choice(_NAMES), sizes, f"train.py:{chance.randint(1, 99)}"


def _other(call: Call, kind: str, chance: random.Random) -> Call:
    name, sizes, line = call
    if kind == "size":
        if chance.random() < 0.5:  # as many elements, in another shape
            return name, sizes[::-1] if sizes[0] != sizes[-1] else (*sizes, 1), line
        return name, (*sizes[:-1], sizes[-1] + chance.randint(1, 9)), line
    return chance.choice([other for other in _NAMES if other != name]), sizes, line
