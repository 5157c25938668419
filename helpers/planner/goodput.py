"""The share of a long run's time that is of use, when failures come at random, and how often to save for the most.

The sums are those of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006), which corrects Young's square root of 2 x save x mtbf (1974) for failures so
frequent that they hit saves and each other.
"""

import math

_HOPELESS = 500.0  # mean times between failures in a piece: no piece is ever finished


def goodput(interval: float, save: float, mtbf: float, restart: float = 0.0) -> float:
    """Return the share of the time that trains and is not lost again, between 0 and 1.

    A piece with its checkpoint takes mtbf x exp(restart / mtbf) x (exp((interval + save) / mtbf) - 1) on average.

    Args:
        interval: seconds of training between two checkpoints.
        save: seconds that training stands still for a checkpoint.
        mtbf: mean seconds between two failures of the job; infinity where nothing fails.
        restart: seconds from a failure until the job trains again.
    """
    if mtbf == math.inf:
        return interval / (interval + save)
    pieces = (interval + save) / mtbf
    if pieces > _HOPELESS or restart / mtbf > _HOPELESS:
        return 0.0
    return interval / (mtbf * math.exp(restart / mtbf) * math.expm1(pieces))


def best_interval(save: float, mtbf: float) -> float:
    """Return the seconds of training between two checkpoints that lose least (Daly 2006, equation 37)."""
    if save >= 2 * mtbf:
        return mtbf
    share = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(share) / 3 + share / 9) - save
