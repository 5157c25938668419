"""Run two training steps of a recipe on fake tensors, and record every allocation they would make.

Fake tensors have shapes and dtypes and no memory, so a 70B model steps through forward, backward and optimizer on a
laptop in seconds. PyTorch's own autograd, optimizers, checkpointing and `fully_shard` run; nothing is estimated by
formula. Where the path of a CPU differs from a GPU's, `cuda_kernels.py` steps in.
"""

import contextlib
import itertools
import math
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...meter.count import Block
from ..catalog.models import ModelSpec, spec_of
from ..config import RecipeError, TrainingConfig
from .contexts import default_modes, no_collector, no_compiler, quiet_transformers, resizing_counted
from .cuda_kernels import CudaKernels
from .flop_count import HOST, FlopCount
from .model import build, make_micro_batch
from .objective import Objective
from .optimizers import make_optimizers, matrices_of, step_in_backward
from .quick_fake import QuickFakeMode
from .repeat import deepened, depths
from .strategies import strategy_of
from .strategy import Strategy
from .work_count import RepeatedWork

COUNTER = 8  # bytes of a step counter, at most
SIMULATED_STEPS = 2  # the optimizer's state appears in the first; the second meets all of it
SIMULATED_MICRO_BATCHES = 2  # from the second on, they are alike
_one_at_a_time = threading.Lock()  # process groups and patched functions belong to the whole process


@dataclass
class Simulation:
    """The record of two steps.

    Attributes:
        blocks: every stretch of GPU memory, with the times (in events) of its first and last moment.
        flops: floating-point operations of one optimizer step, on one rank.
        recomputed_flops: those of them that activation checkpointing does a second time.
        works: what one optimizer step has to do, operation by operation.
        sent: bytes that a rank sends in one optimizer step.
        host_bytes: bytes that offloading keeps in host memory, or paging may move there.
        parameters, trained: how many there are.
        parameter_bytes, trained_bytes: the bytes of both, before sharding.
        state_bytes: the optimizer's state on the GPU.
        batch_norm: whether the model normalizes over the batch, so that its gradient depends on the micro-batch.
        seconds: how long the simulation took.
    """

    recipe: TrainingConfig
    blocks: list[Block]
    flops: int
    recomputed_flops: int
    works: list[RepeatedWork]
    sent: int
    host_bytes: int
    parameters: int
    trained: int
    parameter_bytes: int
    trained_bytes: int
    state_bytes: int
    batch_norm: bool
    seconds: float

    @property
    def floor_bytes(self) -> int:
        """What stays in memory through a whole step, however small the micro-batch is."""
        lasting = strategy_of(self.recipe).static_bytes(self.parameter_bytes, self.trained_bytes)
        return lasting + self.state_bytes


def simulate(
    recipe: TrainingConfig,
    tell: Callable[[str], None] = lambda stage: None,
    repeat: bool = True,
    spec: ModelSpec | None = None,
) -> Simulation:
    """Run two steps of `recipe` on fake tensors.

    Args:
        recipe: what to run.
        tell: called with the name of each stage as it begins.
        repeat: let the first step stand for the second, and a few blocks for all, where they are alike; False runs
            everything, for comparison.
        spec: the model to run in place of the one that the recipe names: one of another depth.

    Raises:
        RecipeError: the recipe asks for something its model does not have, or the model cannot run on fake tensors.
    """
    began = time.perf_counter()
    if recipe.by_blocks:
        raise RecipeError(_only_by_blocks(recipe))
    if recipe.shard != "none" and recipe.parallel.replicate > 1:
        raise RecipeError("Groups of ranks that shard are not planned with plain PyTorch: use engine torchtitan.")
    tell("building the model")
    spec = spec or spec_of(recipe)
    with _one_at_a_time, warnings.catch_warnings(), quiet_transformers(), default_modes():
        warnings.simplefilter("ignore")  # warnings of libraries about fake weights help nobody
        try:
            result = _from_shallow(recipe, spec, tell) if repeat else None
            result = result or _simulate(recipe, spec, tell, repeat)
        except RecipeError:
            raise
        except Exception as error:  # a config may hold anything, and models may do anything with it
            words = " ".join(str(error).split())[:160]
            raise RecipeError(f"{recipe.model}: this cannot be simulated: {type(error).__name__}: {words}") from error
    result.seconds = time.perf_counter() - began
    return result


def _only_by_blocks(recipe: TrainingConfig) -> str:
    """Say why a recipe cannot be simulated as one whole model on one rank, and what can be chosen instead."""
    if recipe.engine == "pytorch" and not recipe.parallel.splits_the_model:
        if recipe.checkpointing == "selective":
            return "Selective checkpointing cannot be planned for a whole model: choose none, every, every-N or sqrt."
        odd = "cuda_graphs" if recipe.cuda_graphs else "precision" if recipe.precision == "fp8" else "attention"
        return f"{odd} {getattr(recipe, odd)!r} cannot be planned for a whole model, only by blocks: see plan_layout."
    return f"{recipe.engine} and ranks that split a model train a decoder by blocks: see plan_layout."


def _from_shallow(recipe: TrainingConfig, spec: ModelSpec, tell: Callable[[str], None]) -> Simulation | None:
    """Return the step of a deep model, made from those of two shallow copies of it; None where it has to be run."""
    layers = depths(recipe, spec)
    if layers is None:
        return None
    few, more = (_simulate(recipe, spec.with_layers(each), tell, repeat=True) for each in layers)
    return deepened(few, more, (spec.layers - layers[0]) // (layers[1] - layers[0]))


def _simulate(recipe: TrainingConfig, spec: ModelSpec, tell: Callable[[str], None], repeat: bool) -> Simulation:
    strategy = strategy_of(recipe)
    make_kernels = partial(CudaKernels, strategy.autocast_dtype, recipe.packed)
    # Inside `backward()` a function mode is off; what is recomputed there needs it again.
    model = build(recipe, spec, lambda: (contextlib.nullcontext(), make_kernels()))
    objective = Objective(recipe, spec, model)
    count = FlopCount(offloads=recipe.offload == "all", compiled=recipe.compile)
    kernels = make_kernels()
    saving = torch.autograd.graph.saved_tensors_hooks(count.pack, count.unpack)
    with strategy.process_group():
        fake = QuickFakeMode(allow_non_fake_inputs=True)
        with no_compiler(), no_collector(), fake, count, kernels, saving, resizing_counted(count):
            sizes = _sizes(list(model.parameters()))
            training = _Training(strategy, objective, model, count, kernels)
            # Where only the optimizer's state is new in the first step, the second is a copy of it.
            alike = strategy.repeats and recipe.set_to_none and not recipe.lengths
            steps = 1 if repeat and alike else simulated_steps(recipe)
            for step in range(steps):
                tell(f"step {step + 1} of {max(steps, SIMULATED_STEPS)}")
                began = count.now()
                training.step()
            training.close()
            count.work.keep_for_backward()
            fused_away = count.work.never_written
            blocks = [block for block in count.blocks if block not in fused_away]
            blocks = blocks if steps > 1 else _twice(blocks, began, count.now())
            sizes["batch_norm"] = any(isinstance(module, _BatchNorm) for module in model.modules())
            return _read(strategy, count, blocks, sizes, steps)


class _Training:
    """A recipe in training: its model with memory, its optimizers, its micro-batch."""

    def __init__(
        self, strategy: Strategy, objective: Objective, model: nn.Module, count: FlopCount, kernels: CudaKernels
    ) -> None:
        self.recipe, self.strategy = strategy.recipe, strategy
        self.model, self.count, self.kernels = model, count, kernels
        self.objective = objective
        for placed in (model, *self.objective.others):
            strategy.place(placed)
        self.trained = [p for p in model.parameters() if p.requires_grad]
        buckets = strategy.buckets(self.trained)
        self.own = strategy.own(self.trained)
        self.optimizers = make_optimizers(self.recipe, self.own, matrices_of(model))
        self.handles = count.watch(model, self.optimizers)
        for other in self.objective.others:
            self.handles += count.watch(other, [])
        for bucket in buckets:
            count.track(bucket, "gradients")
        self.buckets = buckets  # alive as long as the training
        strategy.hook_gradients(self.trained, self.own)
        if self.recipe.step_in_backward:
            self.handles += step_in_backward(self.optimizers, lambda: CudaKernels(strategy.autocast_dtype))
        self._offload()
        batches = [
            make_micro_batch(self.recipe, objective.spec, seq) for seq in self.recipe.lengths or (self.recipe.seq,)
        ]
        for tensor in (tensor for batch in batches for tensor in batch.values()):
            count.track(tensor, "inputs and other")
        self.batches = itertools.cycle(batches)

    def step(self) -> None:
        """Take one optimizer step; micro-batches beyond the second are left out, since they are alike."""
        for _ in range(simulated_micro_batches(self.recipe)):
            self._micro_batch()
        self._offload()
        self.strategy.before_optimizer_step(self.trained, self.own)
        for optimizer in [] if self.recipe.step_in_backward else self.optimizers:
            optimizer.step()
        self.strategy.after_optimizer_step(self.own)
        self._zero_gradients()

    def close(self) -> None:
        """End the count: what is alive now stays so."""
        for handle in self.handles:
            handle.remove()
        self.count.label_recomputed()
        self.count.close()

    def _micro_batch(self) -> None:
        with self.kernels.autocast():
            loss = self.objective.loss(self.model, next(self.batches)) / self.recipe.gradient_accumulation_steps
        with self.strategy.backward_pass():
            loss.backward()

    def _zero_gradients(self) -> None:
        for p in self.trained:
            if p.grad is not None and not self.recipe.set_to_none:
                p.grad.zero_()
            else:
                p.grad = None

    def _offload(self) -> None:
        if self.recipe.offload == "all":
            self.count.move_to_host(self.trained)


def simulated_micro_batches(recipe: TrainingConfig) -> int:
    """Return how many of a step's micro-batches are run."""
    return min(recipe.gradient_accumulation_steps, SIMULATED_MICRO_BATCHES)


def simulated_steps(recipe: TrainingConfig) -> int:
    """Return how many steps are run: with sequences of several lengths so many that all come as often."""
    lengths = len(recipe.lengths)
    by_step = simulated_micro_batches(recipe)
    return max(SIMULATED_STEPS, lengths // math.gcd(lengths, by_step))


def _read(strategy: Strategy, count: FlopCount, blocks: list[Block], sizes: dict[str, Any], steps: int) -> Simulation:
    """Return the result of a count over so many `steps`; `blocks` are those of two."""
    recipe = strategy.recipe
    lasting = [b for b in count.blocks if b.category == "optimizer state" and b.end is None]
    state = sum(block.nbytes for block in lasting if block.nbytes > COUNTER)
    host = 0
    if recipe.offload != "none" or recipe.paged:
        host, state = state, 0
    if recipe.offload == "all":
        host += (sizes["parameter_bytes"] + sizes["trained_bytes"]) // recipe.ranks
    scale = recipe.gradient_accumulation_steps / simulated_micro_batches(recipe) / steps
    works = count.work.steps(lambda phase: 1 / steps if phase == "optimizer step" else scale)
    return Simulation(
        recipe,
        _on_the_gpu(blocks, recipe),
        int(count.flops * scale),
        int(count.recomputed_flops * scale),
        works,
        strategy.bytes_sent(sizes["parameter_bytes"], sizes["trained_bytes"]),
        host,
        **sizes,
        state_bytes=state,
        seconds=0.0,
    )


def _twice(blocks: list[Block], began: int, ended: int) -> list[Block]:
    """Append a second step: all that the first made between `began` and `ended` and did not keep."""
    again = [
        replace(block, start=block.start + ended - began, end=block.end + ended - began)
        for block in blocks
        if block.start > began and block.end is not None
    ]
    return blocks + again


def _sizes(parameters: list[Tensor]) -> dict[str, Any]:
    trained = [p for p in parameters if p.requires_grad]
    return {
        "parameters": sum(getattr(p, "numbers", p.numel()) for p in parameters),
        "trained": sum(p.numel() for p in trained),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "trained_bytes": sum(p.numel() * p.element_size() for p in trained),
    }


def _on_the_gpu(blocks: list[Block], recipe: TrainingConfig) -> list[Block]:
    """Leave out what lies in host memory."""
    counters_on_host = recipe.optimizer_impl != "fused"  # Adam's step counters are CPU scalars unless it is fused

    def on_host(block: Block) -> bool:
        counter = block.category == "optimizer state" and block.nbytes <= COUNTER
        state = block.category == "optimizer state"
        updating = state or block.op.phase == "optimizer step"
        offloaded = block.category == HOST or (updating and recipe.offload != "none") or (state and recipe.paged)
        return offloaded or not block.nbytes or (counter and counters_on_host)

    return [block for block in blocks if not on_host(block)]
