# ruff: noqa: E501
"""Programs with a planted mistake, each beside the right one. `test_planted.py` runs them on pretended machines.

A program is a function; the wrong one must raise `error`, with `words` in its message, and the right one must return.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

DIFFERENT = "Expected all tensors to be on the same device"


@dataclass(frozen=True)
class Planted:
    """A pair of programs.

    Attributes:
        words: of the error that the wrong one must raise.
        wrong, right: the programs.
    """

    words: str
    wrong: Callable[[], object]
    right: Callable[[], object]


def _cuda(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def _generated(device: str) -> torch.Tensor:
    return torch.rand(4, device="cuda", generator=torch.Generator(device).manual_seed(0))


def _masked(device: str) -> torch.Tensor:
    scores = _cuda(4, 4)
    return scores.masked_fill(torch.ones(4, 4, dtype=torch.bool, device=device).triu(1), float("-inf"))


class _Positions(nn.Module):
    """Adds a table of positions, a buffer that is there from the beginning or comes late."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        if not late:
            self.register_buffer("table", torch.arange(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.table


def _late_buffer() -> torch.Tensor:
    model = _Positions(late=True).cuda()
    model.register_buffer("table", torch.arange(8.0))
    return model(_cuda(2, 8))


def _running_total(device: str) -> torch.Tensor:
    total = torch.zeros((), device=device)
    total += F.mse_loss(_cuda(4), _cuda(4))
    return total


def _adam_after_moving(move_state: bool) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    model.cuda()
    if move_state:
        optimizer.load_state_dict(optimizer.state_dict())
    model(_cuda(1, 4)).sum().backward()
    optimizer.step()


def _products_in_fp8() -> torch.Tensor:
    a = _cuda(16, 16).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    return torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _binary_loss(loss: Callable[..., torch.Tensor]) -> torch.Tensor:
    layer = nn.Linear(4, 1, device="cuda")
    with torch.autocast("cuda", torch.float16):
        y = layer(_cuda(8, 4))
        return loss(y.float().sigmoid() if loss is F.binary_cross_entropy else y, torch.ones(8, 1, device="cuda"))


def _child_uses(device: str) -> None:
    """Use `device` in a forked process."""
    _cuda(1)
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(1, device=device)
        except RuntimeError as error:
            os._exit(17 if "Cannot re-initialize CUDA in forked subprocess" in str(error) else 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise RuntimeError(f"the child ended with {code}")


def _native_bf16(asked: bool) -> None:
    """A program that takes BF16 where the GPU has it: asked properly, or told by emulation."""
    has = torch.cuda.is_bf16_supported(including_emulation=not asked)
    if has and torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("BF16 is emulated here")


def _loaded(path: str, **options: str) -> None:
    torch.load(path, **options)


PATH = os.environ.get("PLANTED_CHECKPOINT", "")
ONE = {
    "forgotten_to": Planted(DIFFERENT, lambda: nn.Linear(4, 4).cuda()(torch.ones(2, 4)), lambda: nn.Linear(4, 4).cuda()(_cuda(2, 4))),
    "numpy": Planted("can't convert cuda:0 device type tensor to numpy", lambda: _cuda(2).numpy(), lambda: _cuda(2).cpu().numpy()),
    "generator": Planted("Expected a 'cuda' device type for generator but found 'cpu'", lambda: _generated("cpu"), lambda: _generated("cuda")),
    "mask": Planted(DIFFERENT, lambda: _masked("cpu"), lambda: _masked("cuda")),
    "pinning": Planted("only dense CPU tensors can be pinned", lambda: _cuda(2).pin_memory(), lambda: torch.ones(2).pin_memory().to("cuda", non_blocking=True)),
    "labels": Planted(DIFFERENT, lambda: F.cross_entropy(_cuda(2, 3), torch.tensor([0, 1])), lambda: F.cross_entropy(_cuda(2, 3), torch.tensor([0, 1]).cuda())),
    "late_buffer": Planted(DIFFERENT, _late_buffer, lambda: _Positions(late=False).cuda()(_cuda(2, 8))),
    "running_total": Planted(DIFFERENT, lambda: _running_total("cpu"), lambda: _running_total("cuda")),
    "optimizer_state": Planted(DIFFERENT, lambda: _adam_after_moving(False), lambda: _adam_after_moving(True)),
    "index_on_gpu": Planted("indices should be either on cpu or on the same device", lambda: torch.ones(4)[torch.tensor([1], device="cuda")], lambda: _cuda(4)[torch.tensor([1])]),
    "binary_loss": Planted("unsafe to autocast", lambda: _binary_loss(F.binary_cross_entropy), lambda: _binary_loss(F.binary_cross_entropy_with_logits)),
    "forked": Planted("ended with 17", lambda: _child_uses("cuda"), lambda: _child_uses("cpu")),
    "second_gpu": Planted("invalid device ordinal", lambda: torch.zeros(1, device="cuda:1"), lambda: torch.zeros(1, device="cuda:0")),
    "meta": Planted("Cannot copy out of meta tensor", lambda: nn.Linear(2, 2, device="meta").cuda(), lambda: nn.Linear(2, 2, device="meta").to_empty(device="cuda")),
    "two_gpus_checkpoint": Planted("Attempting to deserialize object on CUDA device 1", lambda: _loaded(PATH), lambda: _loaded(PATH, map_location="cuda:0")),
}  # fmt: skip
T4 = {
    "bf16": Planted("BF16 is emulated here", lambda: _native_bf16(asked=False), lambda: _native_bf16(asked=True)),
    "memory": Planted("CUDA out of memory", lambda: torch.empty(20 * 2**30, dtype=torch.uint8, device="cuda"), lambda: torch.empty(2**30, dtype=torch.uint8, device="cuda")),
}  # fmt: skip
A100 = {
    "fp8": Planted("only supported on CUDA devices with compute capability >= 9.0 or 8.9", _products_in_fp8, lambda: _cuda(16, 16) @ _cuda(16, 16)),
}  # fmt: skip
TWO = {
    "two_gpus": Planted(f"{DIFFERENT}, but found at least two devices, cuda:0 and cuda:1!", lambda: _cuda(2) + torch.ones(2, device="cuda:1"), lambda: torch.ones(2, device="cuda:1").to("cuda:0") + _cuda(2)),
}  # fmt: skip
MACHINES = {"h100": ONE, "t4": T4, "a100": A100, "h100x2": TWO}


def _outcome(program: Callable[[], object]) -> str:
    try:
        program()
    except Exception:
        return traceback.format_exc()
    return ""


def main(machine: str) -> None:
    """Print the outcome of each program of `machine`: its error, or nothing."""
    if machine == "h100x2" and PATH:
        torch.save(torch.ones(2, device="cuda:1"), PATH)
    outcomes = {name: [_outcome(pair.wrong), _outcome(pair.right)] for name, pair in MACHINES[machine].items()}
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1])
