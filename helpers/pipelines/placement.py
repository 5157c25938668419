"""Which rank keeps which stage: `placement[rank][chunk]` is the number of that stage."""

Placement = list[list[int]]


def in_a_row(ranks: int, chunks: int = 1) -> Placement:
    """Return a placement in which stage follows stage from rank to rank, and from the last rank to the first."""
    return [[chunk * ranks + rank for chunk in range(chunks)] for rank in range(ranks)]


def in_a_vee(ranks: int) -> Placement:
    """Return the placement of ZBV and DualPipeV: down the ranks and up again, so that rank 0 has first and last."""
    return [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]


def stage_count(placement: Placement) -> int:
    """Return how many stages there are."""
    return sum(map(len, placement))


def rank_of(placement: Placement, stage: int) -> int:
    """Return which rank keeps `stage`."""
    return next(rank for rank, stages in enumerate(placement) if stage in stages)
