"""LoRA on the shape of Llama-2-7B, with random weights: peak, reserved memory and tokens per second."""

from dataclasses import replace

import torch

from ....claims.claims import Claims
from ....planner import plan
from ....planner.measure import measure_recipe
from ._subjects import free_bytes, lora_7b, skip_without

_SHAPES = ((1, 512), (1, 2048), (4, 512), (4, 2048), (8, 1024))
_ROOM = 20 * 2**30  # bytes of GPU memory that the smallest of them wants


def measure(claims: Claims, device: torch.device) -> None:
    """Record what each shape takes, beside what was predicted."""
    skip_without(device, _ROOM, "the shape of a 7B model")
    for batch, seq in _SHAPES:
        recipe = replace(lora_7b(), micro_batch_size=batch, seq=seq)
        predicted = plan(recipe)
        subject = f"Llama-2-7B, BF16, LoRA r=16, checkpointing, {batch} x {seq}"
        if predicted.reserved_bytes[1] > free_bytes(device):
            claims.not_measured("planner", "measured / predicted peak", f"{subject}: does not fit this GPU")
            continue
        measured = measure_recipe(recipe, device)
        ratio = measured.peak_bytes / predicted.peak_allocated_bytes
        claims.record("planner", "measured / predicted peak", subject, ratio, "", 0.97, 1.03)
        claims.figure("peak allocated", subject, measured.peak_bytes / 2**30, "GiB")
        claims.figure("peak reserved", subject, measured.reserved_bytes / 2**30, "GiB")
        claims.figure("speed", subject, batch * seq / measured.seconds, "tokens/s")
        if batch * seq <= 2048:
            claims.record("T25", "7B with LoRA fits 24 GB", subject, measured.reserved_bytes / 1e9, "GB", 0, 24)
