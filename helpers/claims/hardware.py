"""On which hardware a claim can be tested: a speed belongs to the machine that it was claimed for.

Bytes are the same on any machine, so a claim about bytes gets a verdict on every machine. A claim about the speed of
GPUs gets one on a GPU only; on a CPU its figure stands without a verdict.
"""

import re
from dataclasses import dataclass

from .measurement import Measurement

NO_VERDICT = "no verdict here"
_ANYWHERE = re.compile(r"\b(planned|planner|arithmetic|simulated|published)\b")


@dataclass(frozen=True)
class Needs:
    """What a claim speaks of.

    Attributes:
        said: matches the claims about speed, in the words of the labs.
        words: the hardware.
    """

    said: str
    words: str


NEEDS = {
    "C7": Needs(r"faster|speed", "a GPU with 16-bit matrix units"),
    "C9": Needs(r"slower|for 10 to 15 ?%", "a GPU"),
    "C10": Needs(r"pinned|asynchronous|workers", "a GPU and the processor that feeds it"),
    "C12": Needs(r"time", "a GPU"),
    "C13": Needs(r"speed|overlap", "two GPUs or more"),
    "C15": Needs(r"speed", "a GPU with FP8 units"),
    "C17": Needs(r"hide", "GPUs and the link between them"),
    "C20": Needs(r"slow", "two nodes of GPUs"),
    "C22": Needs(r"time", "GPUs"),
}


def needs(row: Measurement) -> str:
    """Return in words the hardware without which nothing can be said of a row's claim; "" where any will do."""
    needed = NEEDS.get(row.claim)
    if needed is None or not re.search(needed.said, row.said) or _ANYWHERE.search(row.subject):
        return ""
    return needed.words


def verdict(row: Measurement, kind: str) -> str:
    """Return the verdict of a measurement on a device of this `kind`: "cpu", "cuda" or "mps"."""
    if row.measured is not None and kind != "cuda" and needs(row):
        return NO_VERDICT
    return row.verdict
