"""Files for an autopsy. A pickle from somewhere else may hold nothing but plain data: no class is ever looked up."""

import pickle
import sys
from pathlib import Path
from typing import Any

from ...planner import RecipeError


class _PlainData(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which no snapshot does")


def read(path: str) -> dict[str, Any] | str:
    """Return the snapshot or the text in a file; "-" is the standard input.

    Raises:
        RecipeError: it cannot be read, or is neither.
    """
    if path == "-":
        return sys.stdin.read()
    try:
        with Path(path).open("rb") as file:
            if file.read(1) != b"\x80":
                return Path(path).read_text(encoding="utf-8", errors="replace")
            file.seek(0)
            found = _PlainData(file).load()
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}.") from error
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError) as error:
        raise RecipeError(f"{path} is not a memory snapshot: {error}.") from error
    if isinstance(found, list):  # of PyTorch 2.0: the segments alone
        found = {"segments": found, "device_traces": []}
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise RecipeError(f"{path} is a pickle, but not a memory snapshot: it has no segments.")
    return found
