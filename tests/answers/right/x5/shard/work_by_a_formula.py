# work by a formula


def deal(lengths, ranks, chunk):
    """A chunk's part of a document, from its token a to its token b, sees a + 1, a + 2, ... b keys."""
    total = sum(lengths)
    if total % (ranks * chunk):
        raise ValueError(f"{total} tokens cannot be dealt")
    work = [0] * (total // chunk)
    first = 0
    for length in lengths:
        for number in range(first // chunk, (first + length - 1) // chunk + 1):
            a, b = max(0, number * chunk - first), min(length, (number + 1) * chunk - first)
            work[number] += (b * (b + 1) - a * (a + 1)) // 2
        first += length
    each, order = len(work) // ranks, [[] for _ in range(ranks)]
    for number in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        loads = [(sum(work[i] for i in held), rank) for rank, held in enumerate(order) if len(held) < each]
        order[min(loads)[1]].append(number)
    return [sorted(held) for held in order]
