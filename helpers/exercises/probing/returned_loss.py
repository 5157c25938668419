"""The loss that an answer returns: what it is, and what is wrong with it."""

from typing import Any

from ..base import Evidence

EXACT = 1e-6  # relative; room for a weight that was rounded to FP32, and for no wrong divisor


def number(loss: Any) -> Evidence:
    """Describe a returned loss: its value, its dimensions, and whether it still requires a gradient."""
    if loss is None:
        return {"returned": "nothing"}
    attached = bool(getattr(loss, "requires_grad", False))
    value = float(loss.detach() if attached else loss)
    return {"value": value, "attached": attached, "shape": list(getattr(loss, "shape", ()))}


def wrong_loss(seen: Evidence, right: float) -> str | None:
    """Say what is wrong with a returned loss."""
    if "returned" in seen:
        return "nothing was returned; return the mean loss."
    if not abs(seen["value"] - right) <= EXACT * abs(right):  # NaN is caught, too
        return f"you return {seen['value']:.6g}; the mean loss is {right:.6g}."
    if seen["attached"]:
        return "the returned loss still carries its graph, which holds memory: return loss.detach()."
    if seen["shape"]:
        return f"you return a tensor of shape {seen['shape']}; return a number or a scalar tensor."
    return None


# -- the judges that the two parts have in common: `runs` are by kind and case what `accumulated` returned
