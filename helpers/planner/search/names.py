"""What layouts are called in tables."""

from ..layout.layout import Layout


def name(layout: Layout) -> str:
    """Return a layout in one line that no other layout of the space shares."""
    kept = layout.zero == "zero3" and not layout.reshard_after_forward
    engine = f" (Megatron{', TP overlap' * layout.tensor_overlap})" if layout.engine == "megatron" else ""
    return layout.summary + (", not resharded" if kept else "") + engine
