# documents by their starts

import torch


def meets(row, column, chunk, lengths):
    """Chunks meet if the later one's first document has begun before the earlier one ends."""
    starts = [sum(lengths[:number]) for number, length in enumerate(lengths) for _ in range(length)]
    if column > row or starts[row * chunk] >= (column + 1) * chunk:
        return None
    mine = torch.tensor(starts[row * chunk : (row + 1) * chunk])
    keys = torch.arange(column * chunk, (column + 1) * chunk)
    sees = keys >= mine[:, None]
    return sees.tril() if row == column else sees
