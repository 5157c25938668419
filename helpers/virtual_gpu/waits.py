"""Where the program waits for the GPU, or copies from pageable memory: counted by line, and free of charge here."""

from collections import Counter
from dataclasses import dataclass, field

from .user_line import place

_WORDS = {"_local_scalar_dense": "value of one element", "index": "selection by a mask", "_unique2": "unique"}


class ValueWithoutDataError(RuntimeError):
    """A program asks for a value that a dry run does not have, and `--strict` forbids to assume one."""


@dataclass
class Waits:
    """What the host did that a GPU's queue has to be empty for.

    Attributes:
        synchronizations: (line, what) -> times.
        pageable_copies: (line,) -> times; pageable_bytes: line -> bytes in all.
        assumed: (line, what, stand-in) -> times: values that do not exist.
        left_out: those of `assumed` that are not values of tensors.
        strict: raise where a value does not exist.
    """

    synchronizations: Counter[tuple[str, str]] = field(default_factory=Counter)
    pageable_copies: Counter[tuple[str]] = field(default_factory=Counter)
    pageable_bytes: Counter[str] = field(default_factory=Counter)
    assumed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    left_out: set[tuple[str, str, str]] = field(default_factory=set)
    strict: bool = False

    def synchronize(self, what: str) -> None:
        """Count a wait of the host for the GPU."""
        self.synchronizations[place().line, _WORDS.get(what, what)] += 1

    def copy_pageable(self, nbytes: int) -> None:
        """Count a copy from memory that is not pinned."""
        line = place().line
        self.pageable_copies[(line,)] += 1
        self.pageable_bytes[line] += nbytes

    def assume(self, what: str, value: str) -> None:
        """Note that a stand-in was used.

        Raises:
            ValueWithoutDataError: nothing may be assumed.
        """
        line = place().line
        if self.strict:
            raise ValueWithoutDataError(f"{line}: {_WORDS.get(what, what)} needs a value that a dry run does not have.")
        self.assumed[line, _WORDS.get(what, what), value] += 1

    def leave_out(self, what: str, instead: str) -> None:
        """Note what was left out or made up, other than the value of a tensor; `strict` allows it."""
        row = place().line, what, instead
        self.assumed[row] += 1
        self.left_out.add(row)


waits = Waits()
