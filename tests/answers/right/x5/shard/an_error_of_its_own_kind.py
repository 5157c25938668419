# an error of its own kind


class UnevenError(ValueError):
    """Raised where chunks and ranks do not come out even."""


def works(lengths, chunk):
    """Yield the work of one chunk after another."""
    held, filled = 0, 0
    for length in lengths:
        for seen in range(1, length + 1):
            held, filled = held + seen, filled + 1
            if filled == chunk:
                yield held
                held, filled = 0, 0
    if filled:
        raise UnevenError(f"{filled} tokens are left over after the last chunk of {chunk}")


def deal(lengths, ranks, chunk):
    work = dict(enumerate(works(lengths, chunk)))
    share, left = divmod(len(work), ranks)
    if left:
        raise UnevenError(f"{len(work)} chunks for {ranks} ranks")
    done, hands = [0] * ranks, [[] for _ in range(ranks)]
    for number in sorted(work, key=lambda number: (-work[number], number)):
        rank = min((r for r in range(ranks) if len(hands[r]) < share), key=lambda r: (done[r], r))
        hands[rank].append(number)
        done[rank] += work[number]
    return [sorted(hand) for hand in hands]
