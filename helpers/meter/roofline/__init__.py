"""The roofline of a machine: what it can do, measured in seconds on the spot, and what that predicts.

`roofline.py` is plain data and the law; `measured.py` makes one, from `subjects.py`, which is what it runs, and
`stopwatch.py`; `kept.py` keeps it for this machine; `figure.py` draws it.
"""

from .kept import keep_roofline, kept_roofline
from .link import Link
from .measured import measure_roofline
from .roofline import Roofline

__all__ = ["Link", "Roofline", "keep_roofline", "kept_roofline", "measure_roofline"]
