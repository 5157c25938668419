"""What is searched for: a model, GPUs, the tokens of a step, and what counts."""

import re
from dataclasses import dataclass

from ..catalog.clusters import Cluster
from ..config import MOST_GPUS, PRECISIONS, RecipeError
from ..layout.arch import Arch

SEQ = 8192  # tokens in a sequence, unless one says otherwise
OBJECTIVES = ("time", "memory", "cost")
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Question:
    """Which layout of a model is the best.

    Attributes:
        arch: the model's sizes.
        cluster: whose GPUs and links.
        gpus: how many; "cost" may leave some of them idle.
        tokens: of one optimizer step, over all GPUs.
        seq: tokens in a sequence.
        objective: what counts: "time" of a step, "memory" of the fullest GPU, or "cost" in GPU-hours.
        precision: as in `Layout`.

    Raises:
        RecipeError: values that are unknown, or do not go together.
    """

    arch: Arch
    cluster: Cluster
    gpus: int
    tokens: int
    seq: int = SEQ
    objective: str = "time"
    precision: str = "bf16-amp"

    def __post_init__(self) -> None:
        if not 1 <= self.gpus <= MOST_GPUS:
            raise RecipeError(f"gpus is {self.gpus}; it must be at least 1 and at most {MOST_GPUS:,}.")
        for name in ("seq", "tokens"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.objective not in OBJECTIVES:
            raise RecipeError(f"objective is {self.objective!r}; choose one of {', '.join(OBJECTIVES)}.")
        if self.precision not in PRECISIONS:
            raise RecipeError(f"precision is {self.precision!r}; choose one of {', '.join(PRECISIONS)}.")
        if self.tokens % self.seq:
            near = max(1, self.tokens // self.seq) * self.seq
            raise RecipeError(
                f"{self.tokens:,} tokens are not a whole number of sequences of {self.seq:,}: use {near:,}, "
                f"or {near + self.seq:,}."
            )

    @property
    def sequences(self) -> int:
        """Sequences in one optimizer step."""
        return self.tokens // self.seq

    @property
    def gpu_counts(self) -> list[int]:
        """How many GPUs a layout may use: all of them; where cost counts, halves of them as well."""
        counts = [self.gpus]
        while self.objective == "cost" and counts[-1] % 2 == 0:
            counts.append(counts[-1] // 2)
        return counts

    def value(self, seconds: float, nbytes: float, gpus: int) -> float:
        """Return what the objective makes of a layout: the less, the better."""
        return {"time": seconds, "memory": nbytes, "cost": seconds * gpus}[self.objective]


def parse_count(text: str) -> int:
    """Return the number that `text` stands for; k, M and G are 2^10, 2^20 and 2^30, as in sizes of batches.

    >>> parse_count("4M")
    4194304

    Raises:
        RecipeError: it is none.
    """
    match = re.fullmatch(r"(\d[\d_,]*(?:\.\d+)?(?:e\d+)?)\s*([kmg]?)", text.strip().lower())
    number = float(match[1].replace("_", "").replace(",", "")) * _UNITS[match[2]] if match else 0.0
    if not 1 <= number < 2**62 or number % 1:
        raise RecipeError(f"{text!r} is not a number of tokens: write 4194304, 512k or 4M.")
    return int(number)
