"""How many activations an answer keeps at a time."""

TOO_MANY_ACTIVATIONS = 1.5  # times the reference's; all graphs at once keep three times as many


def too_many_activations(seen: int, enough: int) -> str | None:
    """Say that an answer keeps the graphs of several micro-batches; None when it does not."""
    if seen <= TOO_MANY_ACTIVATIONS * enough:
        return None
    return (
        f"{seen:,} bytes of activations are alive at once; a micro-batch needs {enough:,}. Call backward() for each "
        "micro-batch before the next forward pass."
    )
