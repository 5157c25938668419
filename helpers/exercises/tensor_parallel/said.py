"""Diagnoses of tensors and collectives that several ranks have reported, rank by rank."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base import Evidence
from ..probing.distance import relative_distance

EXACT = 1e-6  # relative; in FP64 with room for a count that was rounded to FP32, but not for a mistake
Calls = Sequence[Sequence[Any]]  # [name, bytes] each


def noted(tensor: Tensor | None) -> Evidence | None:
    """Return what evidence keeps of a tensor: its shape and its numbers."""
    if tensor is None:
        return None
    return {"shape": list(tensor.shape), "numbers": tensor.detach().double().flatten().tolist()}


def wrong_tensor(
    seen: Evidence | None, right: Evidence, mistakes: Mapping[str, Evidence], tolerance: float = EXACT
) -> str | None:
    """Describe how a noted tensor differs from the right one: by a known mistake, in norm, or in direction.

    Args:
        mistakes: the tensor that each well-known mistake gives, by its description.
    """
    if seen is None:
        return "is missing (None)"
    if seen["shape"] != right["shape"]:
        return f"has the shape {tuple(seen['shape'])}; it should have {tuple(right['shape'])}"
    if relative_distance(seen["numbers"], right["numbers"]) <= tolerance:
        return None
    for name, tensor in mistakes.items():
        if relative_distance(seen["numbers"], tensor["numbers"]) <= tolerance:
            return name
    mine, want = torch.tensor(seen["numbers"]), torch.tensor(right["numbers"])
    if len(mine) == 1:
        return f"is {mine.item():.6g}; it should be {want.item():.6g}"
    if not mine.isfinite().all():
        return "has NaN or infinite entries"
    if not mine.any():
        return "is all zeros"
    times, cosine = (mine.norm() / want.norm()).item(), torch.cosine_similarity(mine, want, dim=0).item()
    if cosine > 0.999999 and abs(times - 1) >= 0.005:  # less would be printed as 1
        return f"has the right direction and {times:.3g} times the right norm"
    off = relative_distance(seen["numbers"], right["numbers"])
    return f"differs from the right tensor by {off:.2g} of its norm"


def wrong_calls(seen: Calls, right: Calls) -> str | None:
    """Describe which collectives were called instead of the right ones."""
    if [list(call) for call in seen] == [list(call) for call in right]:
        return None
    return f"sends {in_words(seen)}; it should send {in_words(right)}"


def in_words(calls: Calls) -> str:
    """Write collectives as "1 x all_reduce of 96 B"; "nothing" when there are none."""
    times = Counter((name, n) for name, n in calls)  # in the order in which they were first called
    return ", ".join(f"{k} x {name}" + (f" of {n:,} B" if n else "") for (name, n), k in times.items()) or "nothing"


def by_rank(what: str, texts: Sequence[str | None]) -> str | None:
    """List what is wrong, a line per rank; None if nothing is wrong on any."""
    if not any(texts):
        return None
    ranks = f"{len(texts)} ranks"
    head = f"{what}:" if what.startswith(ranks) else f"{what}, on {ranks}:"
    if len(set(texts)) == 1:
        return f"{head}\nall ranks: {texts[0]}"
    lines = (f"rank {i}: {text or 'right'}" for i, text in enumerate(texts))
    return "\n".join([head, *lines])


def wrong_passes(case: str, ranks: Sequence[Evidence], right: Evidence) -> str | None:
    """Say in which pass of a case, forward or backward, ranks call other collectives than the right ones."""
    for way in ("forward", "backward"):
        if said := by_rank(f"{case}, {way} pass", [wrong_calls(got[way], right[way]) for got in ranks]):
            return said
    return None
