"""Exercises and their checks: one file or folder per topic, all built from the `Check` and `Part` of `base.py`."""

from .checking import check
from .hints import hint

__all__ = ["check", "hint"]
