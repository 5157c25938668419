"""Logs of made-up jobs: broken in a chosen way, with the distractions of real ones."""

import math
import random
import statistics

from .rank_log import Call, RankLog

KINDS = ("killed", "hung", "slow", "wrong", "healthy")


def made_job(kind: str, chance: random.Random) -> tuple[list[RankLog], int | None]:
    """Return the logs of a job and the rank to blame, None for a healthy job."""
    two = kind in ("killed", "hung") and chance.random() < 0.4  # a majority of the ranks says nothing
    ranks, steps = 2 if two else chance.randint(3, 8), chance.randint(12, 30)
    blamed = chance.randrange(ranks) if kind != "healthy" else None
    pace = [chance.uniform(0.97, 1.03) for _ in range(ranks)]  # no rank is exactly as fast as the others
    if chance.random() < 0.5:  # one is clearly slower than most, and not slow: that begins at 1.5
        pace[chance.randrange(ranks)] = chance.uniform(1.3, 1.38)
    if kind == "slow":
        pace[blamed] = math.inf
        pace[blamed] = statistics.median_high(pace) * (
            chance.uniform(1.62, 1.7) if chance.random() < 0.5 else chance.uniform(1.7, 3)
        )
    # In a third of its steps, the slow rank of some jobs is fast, and a rank of some healthy jobs is slow.
    odd_rank, odd_pace, odd_steps = blamed, 1.0, set()
    if kind in ("slow", "healthy") and chance.random() < 0.6:
        first = chance.choice((1, 1, steps - steps // 3))
        odd_steps = set(range(first, first + steps // 3))
        if kind == "healthy":
            odd_rank, odd_pace = chance.randrange(ranks), chance.uniform(2, 3)
    stop = chance.randint(5, steps - 3)
    if kind in ("killed", "hung") and chance.random() < 0.25:
        stop = 0  # before or in the first collective
    pause_of, pause_at = chance.randrange(ranks), chance.randrange(1, 5)  # one long step: it writes a checkpoint
    logs = [RankLog(0) for _ in range(ranks)]
    free = [chance.uniform(0, 0.2) for _ in range(ranks)]
    weights = 0
    for step in range(steps):
        here = list(range(ranks))
        if kind in ("killed", "hung") and step == stop:
            early = kind == "hung" or chance.random() < 0.5  # killed before its call, or in it
            here = [rank for rank in here if rank != blamed or not early]
        now = [odd_pace if rank == odd_rank and step in odd_steps else pace[rank] for rank in range(ranks)]
        asked = [free[rank] + 0.1 * now[rank] * chance.uniform(0.97, 1.03) for rank in range(ranks)]
        if step == pause_at:
            asked[pause_of] += 3.0
        together = max(asked)
        broken = kind in ("killed", "hung") and step == stop
        for rank in here:
            free[rank] = together + chance.uniform(0.001, 0.004)
            logs[rank].calls.append(Call("all_reduce", asked[rank], None if broken else free[rank]))
        if broken:
            break
        weights = chance.getrandbits(32)
        for rank in range(ranks):
            odd = kind == "wrong" and rank == blamed and step >= stop
            logs[rank].checksums.append(chance.getrandbits(32) if odd else weights)
    _set_exits(logs, kind, blamed, chance)
    return logs, blamed


def _set_exits(logs: list[RankLog], kind: str, blamed: int | None, chance: random.Random) -> None:
    """Set the exit code of each rank."""
    if kind in ("killed", "hung"):
        for rank, log in enumerate(logs):
            log.exit_code = chance.choice((1, -15))  # its connection broke or timed out, or torchrun was quicker
            if rank == blamed:
                log.exit_code = -9 if kind == "killed" else -15
        others = [rank for rank in range(len(logs)) if rank != blamed]
        logs[chance.choice(others)].exit_code = 1
