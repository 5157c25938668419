"""Checks of part 1: a loss scaler for two optimizers."""

from ..probing import loss_scaler


class GradientIsUnscaled(loss_scaler.GradientIsUnscaled):
    """The loss is multiplied by the scale, and the optimizer sees the gradient divided by it, once."""

    optimizers = 2
    points = 1
    hint = (
        "scale() multiplies; unscale_() divides every gradient in place.\n"
        "step(optimizer) calls unscale_ unless it was called for this optimizer: remember which ones it was called for."
    )


class OverflowSkipsAndBacksOff(loss_scaler.OverflowSkipsAndBacksOff):
    """If any optimizer meets an inf or NaN, no optimizer steps, step() returns False, and the scale backs off."""

    optimizers = 2
    points = 1
    hint = (
        "Look at every gradient with torch.isfinite before optimizer.step(); let update() reset what you found.\n"
        "Overflow in one optimizer's gradients also stops the others: do not overwrite what an earlier unscale_ found."
    )


class ScaleGrows(loss_scaler.ScaleGrows):
    """After growth_interval good steps in a row the scale grows; a bad step restarts the count."""

    optimizers = 2
    points = 1


SCALER = (GradientIsUnscaled, OverflowSkipsAndBacksOff, ScaleGrows)
