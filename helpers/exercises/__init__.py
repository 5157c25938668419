"""Exercises and their checks: one file each, all built from the `Check` and `Part` of `base.py`."""

from .checking import check

__all__ = ["check"]
