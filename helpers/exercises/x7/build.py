"""Checks of part 1: a model is built on no device, sharded and initialized. All judge one start of four ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ...meter.recorder import MemoryMeter
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.lowest import lowest
from ..probing.on_ranks import on_ranks
from .subject import LENGTH, VOCABULARY, Block, Model, in_one_process, local_of, mesh_of

CASES = {
    "4 ranks": ((4,), torch.float32),
    "2 x 2 ranks": ((2, 2), torch.float32),
    "1 x 4 ranks, bfloat16": ((1, 4), torch.bfloat16),
    "2 of the 4 ranks, float16": ((2,), torch.float16),
}
WIDE, MANY = 64, 8  # where memory is measured: many layers, of which none is large
FAR = 1_000_003  # between the seeds of two cases: 16 bits do not hold them
EXACT = 1e-4  # relative: the same model, in training and in evaluation mode
NEAR = 0.02  # relative: norms of gradients, some of them computed in 16 bits
BLOCKS = 3  # one more than the one that runs and the next, which may be gathered before its turn
PASSES = (
    "the forward pass",
    "the backward pass",
    "a forward pass in evaluation mode without gradients",
    "a forward pass in evaluation mode",
)
SLACK = 2 * sum(p.nbytes for p in Block(WIDE).parameters())  # two blocks in full
UNITS = ["", *(f"blocks.{i}" for i in range(BLOCKS))]


class _Twice(Model):
    """A layer stands in it by two names: it draws once.

    A matrix could also be split evenly along its second dimension; a block's parameter and another one are frozen.
    """

    def __init__(self) -> None:
        super().__init__(blocks=BLOCKS)
        self.again = self.places
        self.blocks[0].spare = nn.Linear(8, 3)  # which no forward pass uses
        self.scale.gain.requires_grad_(False)
        self.blocks[1].offset.requires_grad_(False)


def _numbers(model: nn.Module, seed: int) -> Evidence:
    """Return which parameters and buffers are not this rank's part of those of one process."""
    right = in_one_process(seed, _Twice())
    parts = {name: p.full_tensor() if isinstance(p, DTensor) else p for name, p in model.named_parameters()}
    wanted = dict(right.named_parameters())
    wrong = [n for n, full in wanted.items() if n not in parts or not torch.equal(parts[n].detach(), full)]
    local = [
        n
        for n, p in model.named_parameters()
        if isinstance(p, DTensor) and n in wanted and not torch.equal(p.to_local(), local_of(wanted[n].detach(), p))
    ]
    buffers = dict(model.named_buffers())
    other = [n for n, full in right.named_buffers() if n not in buffers or not torch.equal(buffers[n], full)]
    return {"wrong": wrong, "local": local, "buffers": other}


def _shards(model: nn.Module, mesh: DeviceMesh) -> Evidence:
    """Return how the parameters lie on the ranks."""
    parameters = dict(model.named_parameters())
    dtensors = {n: p for n, p in parameters.items() if isinstance(p, DTensor)}
    return {
        "whole": [n for n in parameters if n not in dtensors],
        "elsewhere": [n for n, p in dtensors.items() if p.device_mesh != mesh],
        "placements": sorted({str(p.placements) for p in dtensors.values()}),
        "bytes": sum(p.to_local().nbytes for p in dtensors.values()),
        "meta": [n for n, p in parameters.items() if p.is_meta],
        "dtypes": sorted({str(p.dtype) for p in parameters.values()}),
        "frozen": [n for n, p in parameters.items() if not p.requires_grad],
        "units": [n for n, m in model.named_modules() if isinstance(m, FSDPModule)],
        "training": all(m.training for m in model.modules()),
    }


def _pass(model: nn.Module) -> Evidence:
    """Return the messages of a forward and a backward pass, and the dtypes that layers compute in."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(VOCABULARY, (2, LENGTH), generator=generator)
    seen: dict[str, str] = {}
    hooks = [
        layer.register_forward_hook(lambda _, __, output, name=name: seen.update({name: str(output.dtype)}))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    with Collectives() as forward:
        gathers: list[int] = []  # of the root's unit and of blocks, until each block has run
        counters = [
            block.register_forward_hook(lambda *_: gathers.append(forward.count("all_gather")))
            for block in model.blocks
        ]
        logits = model(tokens)
    kept = [_held(model)]
    with Collectives() as backward:
        F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten()).backward()
    for hook in hooks + counters:
        hook.remove()
    kept.append(_held(model))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([g.to_local() if isinstance(g, DTensor) else g for g in gradients])
    model.eval()
    evaluated = []
    for recorded in (False, True):
        with torch.set_grad_enabled(recorded):
            evaluated.append(model(tokens).detach())
        kept.append(_held(model))
    names = ("all_gather", "reduce_scatter", "all_reduce")
    return {
        "layers": sorted(set(seen.values())),
        "logits": str(logits.dtype),
        "evaluated": [str(output.dtype) for output in evaluated],
        "apart": max(relative_distance(output.tolist(), logits.tolist()) for output in evaluated),
        "ahead": max(count - 2 - place for place, count in enumerate(gathers)) if gathers else 0,
        "kept": kept,
        "gradients": sorted({str(g.dtype) for g in gradients}),
        "norm": norm.item(),
        "forward": {name: forward.count(name) for name in names},
        "backward": {name: backward.count(name) for name in names},
        "reduced": sum(call.nbytes for call in backward.calls if call.name == "reduce_scatter"),
        "gathered": sum(call.nbytes for call in forward.calls if call.name == "all_gather"),
    }


def _held(model: nn.Module) -> int:
    """Return how many bytes this rank holds of the parameters of blocks."""
    blocks = [p.to_local() if isinstance(p, DTensor) else p for n, p in model.named_parameters() if "blocks." in n]
    return sum(p.nbytes for p in blocks)


def _peak(build: Callable[..., nn.Module], seed: int) -> int:
    """Return the peak of a start with many layers."""
    mesh = mesh_of((4,))

    def measure() -> int:
        with MemoryMeter(device=torch.device("cpu"), by_category=False) as meter:
            build(lambda: Model(WIDE, MANY), mesh, torch.float32, seed)
        return meter.peak_bytes

    return lowest(measure, sum(p.nbytes for p in Model(WIDE, MANY).parameters()) // 4 + SLACK)


def _on_rank(build: Callable[..., nn.Module], seed: int) -> Evidence:
    seen: Evidence = {}
    for place, (name, (shape, dtype)) in enumerate(CASES.items()):
        # two ranks of four: each pair has a model of its own, and a seed
        mesh = mesh_of((2, 2))["shards"] if shape == (2,) else mesh_of(shape)
        number = seed + FAR * place + int(mesh.mesh.min())
        model = build(_Twice, mesh, dtype, number)
        seen[name] = {"shards": _shards(model, mesh), "numbers": _numbers(model, number), "pass": _pass(model)}
    return seen | {"peak": _peak(build, seed)}


class _OnBuild(Check):
    points = 1

    @staticmethod
    def probe(seed: int, build: Any) -> Evidence:
        return {"ranks": on_ranks(_on_rank, 4, build, seed)}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for rank, (got, want) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            for case in CASES:
                wrong = cls.wrong(got[case], want[case])
                if wrong:
                    return f"{case}, rank {rank}: {wrong}"
            wrong = cls.of_all(got, want)
            if wrong:
                return f"rank {rank}: {wrong}"
        return None

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence) -> str | None:
        """Say what is wrong with one model."""
        raise NotImplementedError

    @classmethod
    def of_all(cls, seen: Evidence, right: Evidence) -> str | None:
        """Say what is wrong with what was measured beside the models."""
        return None


class NoRankHoldsTheModel(_OnBuild):
    """Every parameter is sharded over the given mesh; starting needs room for the shards and two blocks at most."""

    hint = (
        "Where are the parameters allocated when make_model() runs, and how large is the largest tensor you hold?\n"
        "torch.device('meta'), fully_shard, to_empty, and then one layer after another."
    )

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence) -> str | None:
        got, want = seen["shards"], right["shards"]
        for key, what in (
            ("whole", "is not sharded"),
            ("meta", "is still on meta"),
            ("elsewhere", "is on a different mesh"),
        ):
            if got[key]:
                return f"{got[key][0]} {what} ({len(got[key])} in all)."
        if got["placements"] != want["placements"]:
            placed, right_ones = ", ".join(got["placements"]), ", ".join(want["placements"])
            return f"the parameters are placed as {placed}; they should be placed as {right_ones}."
        if got["bytes"] != want["bytes"]:
            return f"this rank's shards have {got['bytes']:,} bytes; they should have {want['bytes']:,}."
        if got["frozen"] != want["frozen"]:
            frozen, right_ones = (", ".join(names) or "no parameter" for names in (got["frozen"], want["frozen"]))
            return f"frozen: {frozen}; make_model() freezes {right_ones}. Does each keep its requires_grad?"
        return None if got["training"] else "the model, or a part of it, is in evaluation mode."

    @classmethod
    def of_all(cls, seen: Evidence, right: Evidence) -> str | None:
        if seen["peak"] > right["peak"] + SLACK:
            return (
                f"while a model of {MANY} blocks is built, the peak is {seen['peak']:,} bytes; this check allows "
                f"{right['peak'] + SLACK:,}: {right['peak']:,} for the shards and the largest layer, and two unsharded "
                "blocks. Which layer is unsharded when it need not be? (`to_empty()` also allocates a layer's children "
                "unless recurse is False.)"
            )
        return None


class InitializesLikeOneProcess(_OnBuild):
    """Parameters and buffers are those of one process with this seed, on every mesh."""

    hint = (
        "On the CPU, reset_parameters on a sharded layer draws the same shard on every rank. Draw the whole layer, "
        "and keep a part.\ncopy_part keeps the part. Which layers have to go through it, and in which order?\n"
        "What fills the buffers? The model and its blocks may have parameters and buffers of their own, and a layer "
        "that has only buffers may draw random numbers, too. A layer that appears under two names draws once."
    )

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence) -> str | None:
        got = seen["numbers"]
        if got["wrong"]:
            which, more = f"the parameter `{got['wrong'][0]}`", len(got["wrong"]) - 1
            others = f", and so do {more} others" if more > 1 else ", and so does one other" if more else ""
            return f"{which} differs from that of one process{others}."
        if got["local"]:
            return f"this rank holds a different part of {got['local'][0]} than its placement says."
        return f"the buffer {got['buffers'][0]} differs from that of one process." if got["buffers"] else None


class EachBlockIsAUnit(_OnBuild):
    """Each block is gathered when it runs and freed after it; what is outside the blocks is one more unit."""

    hint = (
        "fully_shard on each block first, then on the model. Two blocks in one call are one unit.\n"
        "reshard_after_forward sets whether a unit is sharded again after its forward pass, and among how many ranks."
    )

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence) -> str | None:
        if sorted(seen["shards"]["units"]) != sorted(UNITS):
            units = ", ".join(name or "the model" for name in seen["shards"]["units"]) or "none"
            return f"the units are {units}; they should be the model and each of its {BLOCKS} blocks."
        got, want = seen["pass"]["forward"]["all_gather"], right["pass"]["forward"]["all_gather"]
        if got != want:
            return (
                f"the forward pass gathers {got} times; it should gather {want} times, for {BLOCKS} blocks and the "
                "rest."
            )
        ahead = seen["pass"]["ahead"]
        if ahead > 1:  # the next block may be on its way while one runs
            return (
                f"in the forward pass, up to {ahead} blocks are gathered before their turn; a block should be "
                "gathered when it runs. Which call prefetches them?"
            )
        for when, got, want in zip(PASSES, seen["pass"]["kept"], right["pass"]["kept"], strict=True):
            if got != want:
                return f"after {when} this rank holds {got:,} bytes of the blocks; its shards are {want:,} bytes."
        got, want = seen["pass"]["backward"]["all_gather"], right["pass"]["backward"]["all_gather"]
        if got not in (want, want + 1):  # what is outside the blocks may be freed after its forward pass, or stay
            return (
                f"the backward pass gathers {got} times; it should gather {want} times, each of the {BLOCKS} blocks "
                "once."
            )
        return None


class ComputesByThePolicy(_OnBuild):
    """Matmuls run in the given dtype; weights, gradients, their reduction and the output are FP32."""

    hint = (
        "MixedPrecisionPolicy has a dtype to compute in, one to reduce in, and one for the output of a unit.\n"
        "The blocks pass on what they compute; only the model's own output is FP32."
    )

    @classmethod
    def wrong(cls, seen: Evidence, right: Evidence) -> str | None:
        got, want = seen["pass"], right["pass"]
        if seen["shards"]["dtypes"] != right["shards"]["dtypes"]:
            return f"the weights are {', '.join(seen['shards']['dtypes'])}; they should be torch.float32."
        if got["layers"] != want["layers"]:
            return f"linear layers run in {', '.join(got['layers'])}; they should run in {', '.join(want['layers'])}."
        if got["logits"] != want["logits"]:
            return f"the model returns {got['logits']}; it should return {want['logits']}."
        for when, mine, theirs in zip(PASSES[2:], got["evaluated"], want["evaluated"], strict=True):
            if mine != theirs:
                return (
                    f"in {when}, the model returns {mine}; it should return {theirs} there, too. Is the output "
                    "converted only in training?"
                )
        if not got["apart"] <= EXACT:
            return (
                f"in evaluation mode, the outputs are {got['apart']:.1g} (relative) away from those in training, "
                "although no layer drops anything. Does the policy apply only in training?"
            )
        if got["gradients"] != want["gradients"]:
            found = ", ".join(got["gradients"]) or "missing"
            return f"after the backward pass the gradients are {found}; they should be {', '.join(want['gradients'])}."
        if got["gathered"] != want["gathered"]:
            return f"{got['gathered']:,} bytes are gathered in the forward pass; it should be {want['gathered']:,}."
        if got["reduced"] != want["reduced"]:
            return f"{got['reduced']:,} bytes of gradients are reduced; it should be {want['reduced']:,}, in FP32."
        if not abs(got["norm"] - want["norm"]) <= NEAR * want["norm"]:
            return (
                f"the norm of this rank's gradients is {got['norm']:.4g}; it should be {want['norm']:.4g}. Are they "
                "averaged over all ranks of the mesh?"
            )
        return None


BUILD = (NoRankHoldsTheModel, InitializesLikeOneProcess, EachBlockIsAUnit, ComputesByThePolicy)
