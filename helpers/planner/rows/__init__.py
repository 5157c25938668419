"""Many layouts from a file: a line of JSON each, as others publish their runs."""

from .answers import answer_rows

__all__ = ["answer_rows"]
