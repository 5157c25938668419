# added up rank by rank


def all_gather(nbytes, ranks):
    return sum(nbytes / ranks for _ in range(1, ranks))


reduce_scatter = all_gather


def sent_per_update(kind, parameters, ranks, micro_batches):
    match kind:
        case "DDP":
            return reduce_scatter(4 * parameters, ranks) + all_gather(4 * parameters, ranks)
        case "FSDP":
            sent = 0
            for _ in range(micro_batches):
                sent += all_gather(2 * parameters, ranks)
                sent += all_gather(2 * parameters, ranks)
                sent += reduce_scatter(4 * parameters, ranks)
            return sent
        case _:
            out, back = 4 * parameters, 4 * parameters
            return out + back


def times_faster(alone, step, sent, rate, ranks):
    together = sum(1 / (step + sent / rate) for _ in range(ranks))
    return together * alone
