"""What a checkpoint holds in these checks, and a print of it in which a single bit shows."""

import hashlib
from typing import Any

import torch
from torch import Tensor


def make_state(seed: int, step: int) -> dict[str, Any]:
    """Return a state such as a training loop has after `step` steps: every kind of value, some 40 KiB."""
    generator = torch.Generator().manual_seed(1000 * seed + step)

    def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "model": {"a.weight": numbers(64, 48), "a.bias": numbers(48, dtype=torch.bfloat16), "b": numbers(3).double()},
        "optimizer": {
            "state": {
                0: {"step": torch.tensor(float(step)), "exp_avg": numbers(64, 48), "exp_avg_sq": numbers(64, 48)}
            },
            "param_groups": [{"lr": 0.1 / (step + 1), "betas": (0.9, 0.95), "foreach": None, "params": [0]}],
        },
        "streams": [{"epoch": step // 5, "position": step % 5}, {"epoch": step // 5, "position": step % 5 + 1}],
        "random": [torch.randint(256, (600,), generator=generator).to(torch.uint8) for _ in range(2)],
        "words": "as it was",
    }


def print_of(value: Any, at: str = "") -> dict[str, str]:
    """Return a hash for each leaf of `value`, by its place; lists and tuples are taken as the same."""
    if isinstance(value, dict):
        entries = {f"{at}/{key}": inner for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        entries = {f"{at}/{i}": inner for i, inner in enumerate(value)}
    else:
        return {at: hash_of(value)}
    leaves = {f"{at}/": str(len(entries))}
    for place, inner in entries.items():
        leaves |= print_of(inner, place)
    return leaves


def hash_of(*values: Any) -> str:
    """Return a hash of tensors and plain values, to the last bit."""
    text = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            text.update(f"{flat.dtype} {tuple(value.shape)}".encode())
            text.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
        else:
            text.update(f"{type(value).__name__} {value!r}".encode())
    return text.hexdigest()[:16]
