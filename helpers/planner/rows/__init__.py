"""Many layouts from a file, with one line of JSON per layout: runs as other people publish them."""

from .answers import answer_rows

__all__ = ["answer_rows"]
