"""The rooflines of this machine, kept from one process to the next.

They lie in `roofline.json` in the user's folder (`core/files.py`), by machine: device, threads and version of PyTorch.
With another of these, another roofline holds, and must be measured.
"""

import contextlib
import json
from pathlib import Path

import torch

from ...core.device import device_name, pick_device
from ...core.files import atomic_write, user_folder
from .roofline import Roofline


def machine_name(device: torch.device) -> str:
    """Return what a roofline depends on: the device, the threads of a CPU, and the version of PyTorch."""
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return f"{device_name(device)}{threads}, PyTorch {torch.__version__}"


def roofline_file() -> Path | None:
    """Return where rooflines are kept; None where the user wants nothing kept."""
    folder = user_folder()
    return folder / "roofline.json" if folder else None


def keep_roofline(roofline: Roofline) -> Path | None:
    """Keep `roofline` in place of an earlier one of the same machine. Returns the file; None if nothing is kept.

    Raises:
        OSError: the file cannot be written.
    """
    path = roofline_file()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {**_read(path), roofline.machine: json.loads(roofline.to_json())}
        atomic_write(path, json.dumps(kept))
    return path


def kept_roofline(device: torch.device | None = None) -> Roofline | None:
    """Return the roofline that was kept for `device` (default: what `pick_device` picks); None if there is none."""
    path = roofline_file()
    kept = _read(path).get(machine_name(device or pick_device())) if path else None
    with contextlib.suppress(ValueError, TypeError):  # of an earlier version of the course
        return Roofline.from_json(json.dumps(kept)) if kept else None
    return None


def _read(path: Path) -> dict[str, object]:
    """Return what is in the file, by machine; nothing if there is no file, or it is not one of ours."""
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else {}
    return {}
