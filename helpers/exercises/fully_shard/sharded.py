"""Check of `make_sharded`: the model is actually sharded, over the ranks of the given mesh."""

from collections.abc import Callable
from traceback import walk_tb
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard

from ...core.device import rank_device
from ...core.units import human_bytes
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from ..sharding.blocks import Blocks

MakeSharded = Callable[..., Any]
WIDTH, BLOCKS = 96, 12
PATIENCE = 120.0  # seconds: three steps of which every operation is counted, on a busy machine
ROOM = 6  # blocks on top of the static part: a unit costs up to five times its size (parameters, gradients, packing)


def _model(seed: int) -> Blocks:
    return Blocks(BLOCKS, WIDTH, ends=True, seed=seed).to(rank_device())


def _made(make_sharded: MakeSharded, model: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    try:
        result = make_sharded(model, mesh, **options)
    except (RuntimeError, TypeError) as error:
        if _is_sharded(model) and any(
            frame.f_code.co_name == "fully_shard" for frame, _ in walk_tb(error.__traceback__)
        ):
            raise RuntimeError(
                "fully_shard(model) came before the call for a block and took its parameters. Which call must be last?"
            ) from error
        raise
    if not isinstance(result, nn.Module):
        raise TypeError(f"make_sharded returned {type(result).__name__}; it must return the model to train with.")
    return result


def _is_sharded(model: nn.Module) -> bool:
    return all(isinstance(p, DTensor) for p in model.parameters())


def _rows(n: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.randn(4 * n, WIDTH)[dist.get_rank() :: n].to(rank_device()) for _ in range(2))
    return x, y


def _work(make_sharded: MakeSharded, seed: int) -> Evidence:
    """One rank: shard, train three steps, measure the last one, and count the bytes that are still allocated."""
    with MemoryMeter(device=rank_device()) as whole:
        evidence, *_kept = _train(make_sharded, seed)
    left = sum(life.nbytes for life in whole.lifetimes if life.end is None)
    return evidence | {"left": left}


def _train(make_sharded: MakeSharded, seed: int) -> tuple[Evidence, nn.Module, torch.optim.Optimizer]:
    device, n = rank_device(), dist.get_world_size()
    model = _model(seed)
    trained = sum(p.numel() for p in model.parameters())
    block = sum(p.nbytes for p in model.blocks[0].parameters())
    x, y = _rows(n)
    result = _made(make_sharded, model, init_device_mesh(device.type, (n,)))
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
        "static": sum(meter.profile.largest[category] for category in ("parameters", "gradients", "optimizer state")),
        "trained": trained,
        "block": block,
        "peak": meter.profile.peak_bytes,
    }
    return evidence, result, optimizer


class HoldsItsShareAndNoMore(Check):
    """Trains as DDP would, with 1/N of the static bytes on each rank and a peak within the budget."""

    hint = (
        "Which modules are gathered together, when is each gathered and freed, and which call shards the parameters "
        "outside the blocks?\n"
        "A call takes the parameters that no earlier call has taken. So which call must come last?"
    )

    @staticmethod
    def probe(seed: int, make_sharded: MakeSharded) -> Evidence:
        return {"4 ranks": on_ranks(_work, 4, make_sharded, seed, timeout=PATIENCE)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if wrong := _wrong_losses(got, right) or _too_much(got, right, len(want)):
                    return f"{case}, rank {rank}: {wrong}"
        return None


def _wrong_losses(got: Evidence, right: Evidence) -> str | None:
    for step, (a, b) in enumerate(zip(got["losses"], right["losses"], strict=True)):
        if not abs(a - b) <= 1e-4 * b:
            why = (
                "Are all gradients averaged, including those of parameters outside the blocks?"
                if step
                else "No update has happened by then, so the forward pass differs, in its layers or precision."
            )
            return f"the joint loss of step {step} is {a:.6f}; it should be {b:.6f}. {why}"
    return None


def _too_much(got: Evidence, right: Evidence, ranks: int) -> str | None:
    """Describe which bytes exceed a rank's share of 16 bytes per parameter: static, still allocated, or at the peak."""
    share = 16 * right["trained"] / ranks
    if got["static"] > 1.1 * share:
        return (
            f"it holds {human_bytes(got['static'])} of parameters, gradients and optimizer state, "
            f"{got['static'] / share:.2f} times its share of {human_bytes(share)}. Which parameters are not sharded?"
        )
    if got["left"] > share + 4 * right["block"]:
        return (
            f"after the step {human_bytes(got['left'])} is still held; the share is {human_bytes(share)}. "
            "Does something keep a copy of the whole model?"
        )
    beside = (got["peak"] - share) / right["block"]
    if beside > ROOM:
        return (
            f"the peak is {human_bytes(got['peak'])}: the share of {human_bytes(share)} and {beside:.1f} times a "
            f"block's parameters; at most {ROOM} times are allowed. Which blocks are gathered at the same time?"
        )
    return None


def _local_shares(make_sharded: MakeSharded, seed: int) -> Evidence:
    """One rank of a 2 x 2 mesh: the share of each parameter that is on it, and the norm of this rank's gradients."""
    mesh = init_device_mesh(rank_device().type, (2, 2), mesh_dim_names=("replicate", "shard"))
    result = _made(make_sharded, _model(seed), mesh)
    shares = {
        name: p.to_local().numel() / p.numel() if isinstance(p, DTensor) else 1.0
        for name, p in result.named_parameters()
    }
    x, y = _rows(dist.get_world_size())
    F.mse_loss(result(x), y).backward()
    gradients = [p.grad for p in result.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([g.to_local() if isinstance(g, DTensor) else g for g in gradients])
    return {"shares": shares, "norm": norm.item()}


class ShardsOverTheGivenMesh(Check):
    """The model is sharded over the given mesh; of two dimensions, the second shards and the first replicates."""

    hint = "Pass mesh=mesh to every call of fully_shard: without it, fully_shard makes a mesh of all ranks."

    @staticmethod
    def probe(seed: int, make_sharded: MakeSharded) -> Evidence:
        return {"ranks": on_ranks(_local_shares, 4, make_sharded, seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, right) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            for name, share in right["shares"].items():
                if got["shares"][name] != share:
                    return (
                        f"2 x 2 mesh, rank {rank}: it has {got['shares'][name]:.3g} of {name}; it should have "
                        f"{share:.3g}. Which call of fully_shard shards it, and over which mesh?"
                    )
            if not abs(got["norm"] - right["norm"]) <= 1e-3 * right["norm"]:
                return (
                    f"2 x 2 mesh, rank {rank}: the norm of its gradients is {got['norm']:.4g}; it should be "
                    f"{right['norm']:.4g}. Are gradients averaged over the replicas, too?"
                )
        return None


def _options(make_sharded: MakeSharded, seed: int) -> Evidence:
    """One rank, with options: the dtype that linear layers compute in, and which stay gathered or are split by rows."""
    device, n = rank_device(), dist.get_world_size()
    model, seen = _model(seed), {}
    layers = {f"blocks.{i}.{part}": getattr(b, part) for i, b in enumerate(model.blocks) for part in ("up", "down")}
    for name, layer in (layers | {"enter": model.enter, "leave": model.leave}).items():
        layer.register_forward_hook(lambda layer, args, out, name=name: seen.update({name: str(layer.weight.dtype)}))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=True)
    options = {"mp_policy": policy, "reshard_after_forward": False, "shard_placement_fn": _by_columns}
    result = _made(make_sharded, model, init_device_mesh(device.type, (n,)), **options)
    rows = [name for name, layer in layers.items() if layer.weight.placements != (Shard(1),)]
    with torch.autocast(device.type, torch.bfloat16):  # layers left in FP32 run, too, and are recorded
        result(_rows(n)[0])
    kept = [name for name in layers if not isinstance(layers[name].weight, DTensor)]
    return {"dtypes": seen, "kept": kept, "rows": rows}


def _by_columns(p: Tensor) -> Shard:
    """Return how a parameter is split: matrices by columns."""
    return Shard(p.ndim - 1)


class PassesOptionsOn(Check):
    """Options such as `mp_policy`, `reshard_after_forward` and `shard_placement_fn` reach every unit and the root."""

    hint = "Pass **options to each call of fully_shard."

    @staticmethod
    def probe(seed: int, make_sharded: MakeSharded) -> Evidence:
        return {"ranks": on_ranks(_options, 2, make_sharded, seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, right) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            for layer, dtype in right["dtypes"].items():
                if got["dtypes"][layer] != dtype:
                    return (
                        f"rank {rank}: under a BF16 policy the weight of {layer} is {got['dtypes'][layer]} in the "
                        "forward pass. Which call of fully_shard shards it, and does it get the options?"
                    )
            for layer in right["kept"]:
                if layer not in got["kept"]:
                    return (
                        f"rank {rank}: with reshard_after_forward=False, {layer} is sharded again after the forward "
                        "pass. Does the call of fully_shard that shards it get all options?"
                    )
            if got["rows"]:
                return (
                    f"rank {rank}: {got['rows'][0]} is not split as shard_placement_fn says. Does each call of "
                    "fully_shard get all options?"
                )
        return None


SHARDED = (HoldsItsShareAndNoMore, ShardsOverTheGivenMesh, PassesOptionsOn)
