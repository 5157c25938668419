"""What a checkpoint holds in these checks, and a print of it in which a single bit shows."""

import hashlib
import math
import re
from typing import Any

import torch
from torch import Tensor

MIXED = "every kind of value"  # a key that the state of this kind has


def make_state(kind: str, seed: int, step: int) -> dict[str, Any]:
    """Return the state of a training loop after `step` steps.

    Kinds: "usual", some 40 KiB; "small" and "again", which fit into the buffer of a file; "large", 1.6 MiB; "mixed",
    with every kind of value that a contract may speak of.
    """
    generator = torch.Generator().manual_seed(1000 * seed + step)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    if kind == "again":  # what another run has after the same step
        return {"step": step, "weights": numbers(9)}
    if kind == "small":
        return {"step": step, "weights": numbers(8)}
    if kind == "large":
        return {"step": step, "weights": numbers(200_000), "words": "the end"}
    return _mixed(numbers) if kind == "mixed" else _usual(numbers, step, generator)


def _usual(numbers: Any, step: int, generator: torch.Generator) -> dict[str, Any]:
    moments = {"step": torch.tensor(float(step)), "exp_avg": numbers(64, 48).float(), "exp_avg_sq": numbers(64, 48)}
    return {
        "model": {"a.weight": numbers(64, 48).float(), "a.bias": numbers(48).bfloat16(), "b": numbers(3)},
        "optimizer": {
            "state": {0: moments},
            "param_groups": [{"lr": 0.1 / (step + 1), "betas": (0.9, 0.95), "foreach": None, "params": [0]}],
        },
        "streams": [{"epoch": step // 5, "position": step % 5}, {"epoch": step // 5, "position": step % 5 + 1}],
        "random": [torch.randint(256, (600,), generator=generator).to(torch.uint8) for _ in range(2)],
        "words": "as it was",
    }


def _mixed(numbers: Any) -> dict[str, Any]:
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
    whole = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    tensors = {str(dtype): numbers(5).to(dtype) for dtype in dtypes}
    tensors |= {str(dtype): (100 * numbers(5)).abs().to(dtype) for dtype in whole}
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45, 0.1])
    shapes = {"number": numbers(), "empty": numbers(0, 3), "one": numbers(1, 1), "turned": numbers(4, 6).t()}
    return {
        "tensors": tensors,
        "special": {"32": special, "64": special.double(), "large": torch.tensor([2**62 + 1])},
        "shapes": shapes,
        "keys": {0: "key 0", 1: {1: "key 1"}, -7: "key -7", "0": "a string"},
        "numbers": [0, 1, True, False, None, 2**70, -0.0, 0.1, 1e300, math.inf, math.nan, 1.0],
        "nested": [{"a": [1, (2, 3.5, [numbers(2)])], "b": {}}, [], (), {}, ""],
        MIXED: "Grüße\n\0 'quoted'",
        "Adam_2 State": {},
        " spaces  everywhere ": 3,
        "pair": (1, (2.5, "two")),
        "nothing": None,
        "flag": True,
    }


def continued(old: Any, new: Any) -> Any:
    """Return `new`, but in the tensors, dictionaries and lists of `old`, which training changes in place."""
    if isinstance(old, Tensor) and isinstance(new, Tensor) and (old.dtype, old.shape) == (new.dtype, new.shape):
        return old.copy_(new)
    if isinstance(old, dict) and isinstance(new, dict):
        entries = {key: continued(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(entries)
        return old
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old[:] = [continued(*pair) for pair in zip(old, new, strict=True)]
        return old
    return new


def unfit(state: Any) -> int:
    """Say what part 1 does not promise to store: 1 for a key of `state`, 2 for a nested key, 3 for a value; else 0."""
    if not isinstance(state, dict):
        return 3
    if not all(isinstance(key, str) and re.fullmatch(r"[A-Za-z0-9_ ]+", key) for key in state):
        return 1
    return _unfit_value(state)


def _unfit_value(value: Any) -> int:
    if isinstance(value, dict) and not all(isinstance(key, str | int) for key in value):
        return 2
    if isinstance(value, dict | list | tuple):
        return next(filter(None, map(_unfit_value, value.values() if isinstance(value, dict) else value)), 0)
    return 0 if value is None or isinstance(value, Tensor | int | float | str) else 3


def print_of(value: Any, at: str = "") -> dict[str, str]:
    """Return a hash for each leaf of `value`, by its place."""
    if isinstance(value, dict):
        kind, entries = (
            "dict",
            {f"{at}/{key}" if isinstance(key, str) else f"{at}[{key!r}]": v for key, v in value.items()},
        )
    elif isinstance(value, list | tuple):
        kind, entries = type(value).__name__, {f"{at}[{i}]": inner for i, inner in enumerate(value)}
    else:
        return {at: hash_of(value)}
    leaves = {f"{at}/": f"{kind} of {len(entries)}"}
    for place, inner in entries.items():
        leaves |= print_of(inner, place)
    return leaves


def digest_of(state: Any) -> str:
    """Return one hash of a whole state."""
    return hash_of(*sorted(print_of(state).items()))


def hash_of(*values: Any) -> str:
    """Return a hash of tensors and plain values, to the last bit."""
    text = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            text.update(f"{flat.dtype} {tuple(value.shape)} {value.requires_grad}".encode())
            text.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        else:
            text.update(f"{type(value).__name__} {value!r}".encode())
    return text.hexdigest()[:16]
