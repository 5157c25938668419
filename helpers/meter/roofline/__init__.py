"""The roofline of a machine: its rates, measured in a few seconds, and what they predict.

`roofline.py` holds plain data and the formula. `measured.py` measures a roofline: `subjects.py` holds the operations
that it runs, and `stopwatch.py` times them. `kept.py` stores it for this machine, and `figure.py` draws it.
"""

from .kept import keep_roofline, kept_roofline
from .link import Link
from .measured import measure_roofline
from .roofline import Roofline

__all__ = ["Link", "Roofline", "keep_roofline", "kept_roofline", "measure_roofline"]
