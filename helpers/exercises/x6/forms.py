"""Whether a checkpoint has the form that the contract asks for: a directory with a file KEY.pt for each entry."""

from pathlib import Path
from typing import Any

import torch

from .entries import entries_of, steps_of
from .states import digest_of

FILE, LINK = "file", "link"
Form = dict[str, list[str]] | str | None


def form_of(folder: Path, step: int, state: dict[str, Any]) -> Form:
    """Return which files KEY.pt are missing, are too many, or hold something else; `FILE`, `LINK`; None without one."""
    entry = next((entry for entry in entries_of(folder) if steps_of(entry) == step), None)
    if entry is None:
        return None
    if entry.is_symlink():
        return LINK
    if not entry.is_dir():
        return FILE
    both = [key for key in state if (entry / f"{key}.pt").is_file()]
    want, got = {f"{key}.pt" for key in state}, {path.name for path in entry.glob("*.pt")}
    return {
        "files_missing": sorted(want - got),
        "files_beside": sorted(got - want),
        "files_differ": [f"{key}.pt" for key in both if not _holds(entry / f"{key}.pt", state[key])],
    }


def _holds(path: Path, value: Any) -> bool:
    try:
        return digest_of(torch.load(path, map_location="cpu")) == digest_of(value)
    except Exception:
        return False
