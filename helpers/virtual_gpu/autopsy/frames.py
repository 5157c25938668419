"""Stacks of a memory snapshot, Python's and C++'s: the line of the user's program, and what its memory is for."""

import re
from typing import Any

Frame = dict[str, Any]
PARAMETERS, GRADIENTS, STATE, ACTIVATIONS = "parameters", "gradients", "optimizer state", "activations"
RECOMPUTED, TEMPORARIES, COMMUNICATION, OTHER = (
    *("recomputed activations", "temporaries"),
    *("communication buffers", "inputs and other"),
)
UNKNOWN = "(no stack recorded)"
_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python|^<|[/\\]torch[/\\](nn|optim|utils|_|autograd|cuda|distributed)"
)
_BUILDS = re.compile(
    r"_apply|convert|^cuda$|^to$|from_pretrained|__init__|reset_parameters|load_state_dict|_load_|to_empty"
)


def user_line(frames: list[Frame]) -> str:
    """Return "file:line" of the innermost frame of the program; of a library where there is none; else `UNKNOWN`."""
    python = [frame for frame in frames if str(frame.get("filename", "")).endswith(".py") or _is_cell(frame)]
    own = [frame for frame in python if not _LIBRARY.search(str(frame["filename"]))]
    chosen = (own or python or [None])[0]
    return UNKNOWN if chosen is None else f"{chosen['filename']}:{chosen.get('line', 0)}"


def _is_cell(frame: Frame) -> bool:
    return "ipykernel" in str(frame.get("filename", "")) or str(frame.get("filename", "")).startswith("<ipython")


def category(frames: list[Frame], survives: bool) -> str:
    """Return what a block is for.

    Args:
        frames: of its allocation, innermost first.
        survives: whether it outlives the step in which it was made.
    """
    if len(frames) == 1 and str(frames[0].get("name", "")) in _OWN:
        return str(frames[0]["name"])  # a dry run's own snapshot says it
    names = [str(frame.get("name", "")) for frame in frames]
    files = [str(frame.get("filename", "")).replace("\\", "/") for frame in frames]
    if any("nccl" in name.lower() or "c10d" in name for name in names):
        return COMMUNICATION
    optimizing = any("torch/optim/" in file for file in files)
    if optimizing:
        made_once = any(name in ("_init_group", "_init_state", "init_group") for name in names)
        return STATE if made_once or survives else TEMPORARIES
    if any("AccumulateGrad" in name for name in names):
        return GRADIENTS
    backward = any(
        "torch::autograd::Engine" in name or name in ("_engine_run_backward", "backward") for name in names
    ) or any("torch/autograd/" in file for file in files)
    if backward:
        recomputes = uses_checkpointing(frames) and "_call_impl" in names
        return RECOMPUTED if recomputes else GRADIENTS if survives else TEMPORARIES
    if "_call_impl" in names or "forward" in names:
        return ACTIVATIONS
    return PARAMETERS if survives and any(map(_BUILDS.search, names)) else OTHER


_OWN = {PARAMETERS, GRADIENTS, STATE, ACTIVATIONS, RECOMPUTED, TEMPORARIES, OTHER, "weight copies"}


def steps_optimizer(frames: list[Frame]) -> bool:
    """Say whether a stack is inside an optimizer's step."""
    return any(
        "torch/optim/" in str(frame.get("filename", "")).replace("\\", "/")
        and "zero_grad" not in str(frame.get("name"))
        for frame in frames
    )


def uses_checkpointing(frames: list[Frame]) -> bool:
    """Say whether a stack is inside activation checkpointing."""
    return any("torch/utils/checkpoint.py" in str(frame.get("filename", "")).replace("\\", "/") for frame in frames)
