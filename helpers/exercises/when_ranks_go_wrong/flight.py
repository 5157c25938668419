"""PyTorch's flight recorder: which collectives a rank has called, from which lines, and where the ranks differ.

Every process group writes its calls into a ring buffer of `TORCH_FR_BUFFER_SIZE` entries. On GPUs a watchdog dumps it
when a collective times out; over gloo a program dumps it itself. `torchfrtrace` compares the dumps of all ranks.
"""

import contextlib
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from ...core.files import PACKAGE

_FOREIGN = ("multiprocessing", "<string>")  # frames of the course's own start of ranks: not part of the program


def write_flight_record(folder: str) -> int:
    """Write what this rank's recorder holds into `folder`, for `torchfrtrace`; return how many calls it holds.

    Two things are changed. PyTorch 2.13 lists a gloo group without a name, so torchfrtrace finds no group. Here the
    group gets the name that its calls carry. And the stack of each call is cut where the program begins.

    Returns:
        0 where this version of PyTorch has no recorder for gloo; nothing is written then.
    """
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if dump is None or not (record := pickle.loads(dump()))["entries"]:
        return 0
    name, description = record["entries"][0]["process_group"]
    record["pg_config"] = {name: {"name": name, "desc": description, "ranks": str([*range(dist.get_world_size())])}}
    for entry in record["entries"]:
        entry["frames"] = [frame for frame in entry["frames"] if not _foreign(frame["filename"])]
    Path(folder, f"rank_{dist.get_rank()}").write_bytes(pickle.dumps(record))
    return len(record["entries"])


def flight_report(folder: str) -> str:
    """Return what `torchfrtrace FOLDER` prints about the records in `folder`, with file names instead of paths."""
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", folder]
    environment = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip() and "tabulate" not in line]
    if done.returncode:
        lines = ["torchfrtrace failed:", *lines[-1:]]
    return "\n".join(re.sub(r"\bat \S*/([^/\s]+:\d+)$", r"at \1", line) for line in lines)


def calls_in(folder: str) -> dict[int, list[tuple[str, tuple[int, ...], str]]]:
    """Return the calls in each rank's record: name, sizes of the message, and the program's own line."""
    found = {}
    for path in sorted(Path(folder).glob("rank_*")):
        with contextlib.suppress(pickle.UnpicklingError):
            entries = pickle.loads(path.read_bytes())["entries"]
            found[int(path.name.partition("_")[2])] = [
                (entry["profiling_name"].partition(":")[2], _sizes_of(entry), _line_of(entry)) for entry in entries
            ]
    return found


def _sizes_of(entry: dict) -> tuple[int, ...]:
    return tuple(entry["input_sizes"][0]) if entry["input_sizes"] else ()  # a barrier sends nothing


def _line_of(entry: dict) -> str:
    own = [frame for frame in entry["frames"] if f"{os.sep}torch{os.sep}" not in frame["filename"]]
    return f"{Path(own[0]['filename']).name}:{own[0]['line']}" if own else ""


def _foreign(filename: str) -> bool:
    return filename.startswith(str(PACKAGE)) or any(word in filename for word in _FOREIGN)
