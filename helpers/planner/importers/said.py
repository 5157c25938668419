"""What a file says, by name: values are asked for one by one, and what nobody asked for is named in the end."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatch
from typing import Any

from ..config import RecipeError

OFF = ("", "false", "no", "none", "null", "0", "off")
_NOT_GIVEN = ("", "auto", "none", "null")


@dataclass
class Imported:
    """A run as a file describes it.

    Attributes:
        form: what the file is, in words.
        row: a line of `plan --rows`, where an engine trains a decoder; else None.
        options: options of `plan` by name, where a Hugging Face model is trained; else None.
        unknown: what the file says and is not understood.
        assumed: what it does not say.
    """

    form: str
    row: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    unknown: list[str] = field(default_factory=list)
    assumed: dict[str, Any] = field(default_factory=dict)


class Said:
    """The values of a file by name; those of tables within tables are called `outer.inner`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(_flat(given))
        self._asked: set[str] = set()

    def __contains__(self, name: str) -> bool:
        self._asked.add(name)
        return self._given.get(name) is not None

    def first(self, *names: str, default: Any = None) -> Any:
        """Return the value that the first of these names has."""
        found = [self._given[name] for name in names if name in self]
        return found[0] if found else default

    def text(self, *names: str, default: str = "") -> str:
        """Return what the first of these names says."""
        return str(self.first(*names, default=default))

    def flag(self, *names: str) -> bool:
        """Return whether one of these names is given and not switched off."""
        return any(name in self and str(self._given[name]).lower() not in OFF for name in names)

    def number(self, *names: str, default: int = 0) -> int:
        """Return a whole number; "auto" and references to other values are not given.

        Raises:
            RecipeError: the value is none.
        """
        value = self.first(*names)
        if value is None or (isinstance(value, str) and ("$" in value or value.lower() in _NOT_GIVEN)):
            return default
        try:
            whole = float(str(value).replace("_", ""))
            if isinstance(value, bool) or whole != int(whole):
                raise ValueError
        except (ValueError, OverflowError):
            name = next(name for name in names if name in self)
            raise RecipeError(f"{name} is {value!r}; it must be a whole number.") from None
        return int(whole)

    def share(self, name: str, default: float = 0.0) -> float:
        """Return a fraction; a reference to another value is not given.

        Raises:
            RecipeError: the value is no number.
        """
        value = self.first(name)
        if value is None or (isinstance(value, str) and ("$" in value or value.lower() in _NOT_GIVEN)):
            return default
        try:
            return float(value)
        except (TypeError, ValueError):
            raise RecipeError(f"{name} is {value!r}; it must be a number.") from None

    def unknown(self, quiet: Iterable[str]) -> list[str]:
        """Return the names that were not asked for, except those that a pattern of `quiet` matches.

        A name that resembles one that was asked for in vain comes with the question whether that was meant.
        """
        patterns = tuple(quiet)
        left = (name for name, value in self._given.items() if value not in (None, False, [], {}, ""))
        names = sorted(n for n in left if n not in self._asked and not any(fnmatch(n, pattern) for pattern in patterns))
        return [name + self._meant(name) for name in names]

    def _meant(self, name: str) -> str:
        missing = [asked for asked in self._asked if asked not in self._given]
        close = get_close_matches(name, missing, n=1, cutoff=0.8)
        return f" (did you mean {close[0]}?)" if close else ""


def _flat(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
