# a table of collectives

from fractions import Fraction

SENT = {  # bytes per parameter of each ring, and whether it runs in every micro-batch
    "DDP": ([4, 4], False),
    "FSDP": ([2, 2, 4], True),
}


def sent_per_update(kind, parameters, ranks, micro_batches):
    if kind == "offload":
        return 4 * parameters + 4 * parameters
    rings, every = SENT[kind]
    times = micro_batches if every else 1
    return float(times * sum(Fraction(parameters * size * (ranks - 1), ranks) for size in rings))


def times_faster(alone, step, sent, rate, ranks):
    seconds = step
    seconds += sent / rate
    return ranks / seconds / (1 / alone)
