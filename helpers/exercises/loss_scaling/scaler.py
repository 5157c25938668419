"""Checks of a loss scaler for one optimizer."""

from ..probing import loss_scaler


class GradientIsUnscaled(loss_scaler.GradientIsUnscaled):
    """The loss is multiplied by the scale, and the optimizer sees the gradient divided by it, once."""

    optimizers = 1
    hint = "scale() multiplies; unscale_() divides every gradient in place; step() calls it only if you have not."


class OverflowSkipsAndBacksOff(loss_scaler.OverflowSkipsAndBacksOff):
    """After an inf or NaN gradient nothing moves, step() returns False, and update() multiplies by `backoff_factor`."""

    optimizers = 1
    hint = "Look at every gradient with torch.isfinite before optimizer.step(); let update() reset what you found."


class ScaleGrows(loss_scaler.ScaleGrows):
    """After growth_interval good steps in a row the scale grows; a bad step restarts the count."""

    optimizers = 1


SCALER = (GradientIsUnscaled, OverflowSkipsAndBacksOff, ScaleGrows)
