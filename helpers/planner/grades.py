"""Does it fit? One rule for one GPU and for many."""

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


def grade(allocated: float, reserved: float, room: float) -> str:
    """Return "fits", "tight" or "does not fit".

    Tensors alone decide here what cannot run; `plan.py` also replays what is tight. What may run is tight where the
    allocator may want more than there is: it then returns its cache and asks again, which takes time, and a fragmented
    cache may not be enough.

    Args:
        allocated: bytes at the peak.
        reserved: bytes that the allocator may reserve for them where nothing limits it, at the upper end.
        room: bytes that the GPU has for the allocator.
    """
    if allocated > room:
        return DOES_NOT_FIT
    return FITS if reserved <= room else TIGHT
