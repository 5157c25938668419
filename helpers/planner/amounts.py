"""Numbers as people type them on a command line: with a unit or a mark where that can mean only one thing."""

import argparse
import re
from collections.abc import Callable

_POWERS = {"k": (1024, 1000), "m": (1024**2, 1000**2)}
_OF_MEMORY = {"": 1.0, "g": 1.0, "gb": 1.0, "gib": 1.0, "mib": 1 / 1024}  # a GPU of "24 GB" has 24 GiB


def whole(mark: str = "") -> Callable[[str], int]:
    """Return what reads a whole number: "4,096" is 4096; with a `mark` before or after it, too ("r16", "8x").

    It raises `argparse.ArgumentTypeError` for anything else; "8k" may be 8,192 or 8,000, and is refused with both.
    """

    def read(text: str) -> int:
        plain = text.strip().lower()
        if mark:
            plain = plain.removesuffix(mark).removeprefix(mark).strip(" =")
        if re.fullmatch(r"\d{1,3}(,\d{3})+", plain):
            plain = plain.replace(",", "")
        try:
            return int(re.sub(r"\.0+$", "", plain))
        except ValueError:
            pass
        thousands = re.fullmatch(r"(\d+(?:\.\d+)?)([km])", plain)
        if not thousands:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
        low, high = (int(float(thousands[1]) * each) for each in reversed(_POWERS[thousands[2]]))
        raise argparse.ArgumentTypeError(f"{text!r} may be {high} or {low}; write the number")

    return read


def gib(text: str) -> float:
    """Return an amount of memory in GiB: "24", "24GB" (as GPUs are sold) and "24GiB" are 24, "24576MiB", too.

    Raises:
        argparse.ArgumentTypeError: it is none, or in another unit.
    """
    found = re.fullmatch(r"(.*?)\s*([a-z]*)", text.strip().lower())
    number, unit = (found[1], found[2]) if found and found[1] else (text, "")
    try:
        return float(number) * _OF_MEMORY[unit]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory such as 24 or 24GB, in GiB") from None
