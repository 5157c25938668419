# the slices in a table


def meets(source, rank, half):
    whole, late, early = slice(None), slice(half, None), slice(0, half)
    table = {-1: (whole, early), 0: (whole, whole), 1: (late, whole)}
    return table[(source > rank) - (source < rank)]
