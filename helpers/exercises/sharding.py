"""Practice check of sharding: a model that is really sharded, not only in name."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from ..core.device import rank_device
from ..core.units import human_bytes
from ..meter.recorder import MemoryMeter
from .base import Check, Evidence, Part
from .probing.on_ranks import on_ranks

WIDTH, BLOCKS = 96, 16
ROOM = 6  # blocks beside the static part: a unit costs its size up to five times (parameters, gradients, packing)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(_Block() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def _work(make_sharded: Callable[..., Any], seed: int) -> Evidence:
    """One rank: shard, train three steps and measure the last one; then count what is still allocated."""
    with MemoryMeter(device=rank_device()) as whole:
        evidence, *_kept = _train(make_sharded, seed)
    left = sum(life.nbytes for life in whole.lifetimes if life.end is None)
    return evidence | {"left": left}


def _train(make_sharded: Callable[..., Any], seed: int) -> tuple[Evidence, nn.Module, torch.optim.Optimizer]:
    device, rank, n = rank_device(), dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = _Model().to(device)
    trained = sum(p.numel() for p in model.parameters())
    block = sum(p.nbytes for p in model.blocks[0].parameters())
    x, y = (torch.randn(4 * n, WIDTH)[rank::n].to(device) for _ in range(2))
    result = make_sharded(model, init_device_mesh(device.type, (n,)))
    if not isinstance(result, nn.Module):
        raise TypeError(f"make_sharded returned {type(result).__name__}; it must return the model to train with.")
    del model
    optimizer = torch.optim.AdamW(result.parameters(), lr=1e-3)
    losses = []
    meter = MemoryMeter(result, optimizer, device)
    for step in range(3):
        if step == 2:
            meter.__enter__()
        loss = F.mse_loss(result(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            meter.__exit__()
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item() / n)
    evidence = {
        "losses": losses,
        "static": sum(meter.profile.largest[tenant] for tenant in ("parameters", "gradients", "optimizer state")),
        "trained": trained,
        "block": block,
        "peak": meter.profile.peak_bytes,
    }
    return evidence, result, optimizer


class HoldsItsShareAndNoMore(Check):
    """Trains as DDP would, with 1/N of the static bytes on each rank and a peak within the budget."""

    hint = (
        "Which modules are gathered together, from when to when is each whole, and who looks after the parameters that "
        "are in no block? In section 3: what a unit is, and what the root does. Units first, the root last; all on the "
        "given mesh."
    )

    @staticmethod
    def probe(seed: int, make_sharded: Callable[..., Any]) -> Evidence:
        return {f"{n} ranks": on_ranks(_work, n, make_sharded, seed) for n in (2, 4)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            share = (
                16 * want[0]["trained"] / len(want)
            )  # bytes a rank of parameters, gradients and Adam's state in FP32
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for step, (a, b) in enumerate(zip(got["losses"], right["losses"], strict=True)):
                    if not abs(a - b) <= 1e-4 * b:
                        why = (
                            "Are the gradients of all parameters averaged, also of those outside the blocks?"
                            if step
                            else "No update has been made by then: the forward pass differs, in layers or precision."
                        )
                        return f"{case}: the joint loss of step {step} is {a:.6f}; {b:.6f} is right. {why}"
                if got["static"] > 1.1 * share:
                    times = got["static"] / share
                    return (
                        f"{case}: rank {rank} holds {human_bytes(got['static'])} of parameters, gradients and "
                        f"optimizer state, {times:.2f} times its share of {human_bytes(share)}."
                    )
                if got["left"] > share + 4 * right["block"]:
                    return (
                        f"{case}: after the step rank {rank} still holds {human_bytes(got['left'])}; its share "
                        f"is {human_bytes(share)}. Is there a copy of the whole somewhere?"
                    )
                beside = (got["peak"] - share) / right["block"]
                if beside > ROOM:
                    return (
                        f"{case}: the peak of rank {rank} is {human_bytes(got['peak'])}: its share of "
                        f"{human_bytes(share)} and {beside:.1f} times a block; at most {ROOM} are allowed."
                    )
        return None


PARTS = (Part("sharding.sharded", ("make_sharded",), (HoldsItsShareAndNoMore,)),)
