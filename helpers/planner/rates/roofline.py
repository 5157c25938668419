"""The output of `python -m helpers roofline --json`, measured on a GPU, as tables."""

import math
from collections.abc import Mapping
from typing import Any

from ...meter.roofline.interpolation import on_curve
from ..config import RecipeError
from .measured import FORWARD, OF_INPUT, OF_WEIGHT, Attention, Matmul, Measured

_PASSES = {"nt": FORWARD, "nn": OF_INPUT, "tn": OF_WEIGHT, "": ""}
_FLASH = "aten._scaled_dot_product_flash_attention"
_LARGE = 1 << 28  # bytes: more than any cache holds
_FEW = 1e9  # FLOPs: below, a matmul is too short to be timed apart from its launch


def is_roofline(value: Any) -> bool:
    """Return whether a value is a roofline."""
    return isinstance(value, Mapping) and {"machine", "device", "products", "bandwidth"} <= set(value)


def read_roofline(value: Mapping[str, Any]) -> Measured:
    """Return a roofline's tables.

    Raises:
        RecipeError: it is that of a CPU, or is not whole.
    """
    if value["device"] == "cpu":
        raise RecipeError("The roofline is that of a CPU: run `roofline --json` on the machine with the GPU.")
    try:
        plain = {key.partition(" ")[::2]: rows for key, rows in value["products"].items()}
        matmuls = [
            Matmul(int(m), int(n), int(k), rate, dtype, _PASSES[layout] if _has_layouts(plain, dtype) else "")
            for (dtype, layout), rows in plain.items()
            for m, n, k, rate in rows
            if 2 * m * n * k > _FEW
        ]
        kernels = (value.get("kernels") or {}).items()
        attention = [
            Attention(max(1, round(m)), int(n), int(k), rate, "backward" if name.endswith("_backward") else "forward")
            for name, by_dtype in kernels
            if name.startswith(_FLASH)
            for m, n, k, rate in next(iter(by_dtype.values()))
        ]
        memory = on_curve(sorted(tuple(point) for point in value["bandwidth"]), _LARGE)
        launch = float(value.get("launch") or 0.0)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise RecipeError(f"The roofline is incomplete: {error!r}.") from None
    if not math.isfinite(memory) or memory <= 0:
        raise RecipeError("The roofline lacks a bandwidth.")
    return Measured(matmuls, attention, memory=memory, launch=launch)


def _has_layouts(plain: Mapping[tuple[str, str], Any], dtype: str) -> bool:
    return any(known == dtype and layout for known, layout in plain)
