"""Run two training steps of a recipe on fake tensors, and keep every allocation they would make.

Fake tensors have shapes and dtypes and no memory, so a 70B model steps through forward, backward and optimizer on a
laptop in seconds. PyTorch's own autograd, optimizers, checkpointing and `fully_shard` run; nothing is estimated by
formula. Where the path of a CPU differs from a GPU's, `cuda_kernels.py` steps in.
"""

import contextlib
import gc
import itertools
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry

from ...meter.count import Block, Count
from ..catalog.models import ModelSpec, check_model, find_model
from ..recipe import Recipe, RecipeError
from .blocks import Contexts, checkpoint_blocks, find_blocks
from .cuda_kernels import CudaKernels, scratch_bytes
from .quantized import EightBitAdam, quantize_linears
from .sharding import bytes_sent, ddp_buckets, fake_process_group, fully_sharded, shard_fully, zero_partition

COUNTER = 8  # bytes of a step counter, at most
HOST = "host"  # tenant of what offloading keeps off the GPU
SIMULATED_STEPS = 2  # the optimizer's state is born in the first; the second meets all of it
SIMULATED_MICRO_BATCHES = 2  # from the second on, they are alike
_one_at_a_time = threading.Lock()  # process groups and patched functions belong to the whole process


@dataclass
class Simulation:
    """What two steps left behind.

    Attributes:
        blocks: every stretch of GPU memory, with the times (in events) of its first and last moment.
        flops: floating-point operations of one optimizer step, on one rank.
        recomputed_flops: those of them that activation checkpointing does a second time.
        sent: bytes that a rank sends in one optimizer step.
        host_bytes: what offloading keeps in the memory of the host.
    """

    recipe: Recipe
    blocks: list[Block]
    flops: int
    recomputed_flops: int
    sent: int
    host_bytes: int
    parameters: int
    trained: int
    parameter_bytes: int
    trained_bytes: int
    state_bytes: int
    seconds: float


class _Books(Count):
    """The count, with FLOPs and with the scratch memory that CUDA's kernels are known to take."""

    def __init__(self) -> None:
        ticks = itertools.count(1)
        super().__init__("cpu", lambda: next(ticks), lambda storage: storage._cdata)
        self.flops = self.recomputed_flops = 0
        self.offloads = False
        self.now = self._clock

    def observe(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count FLOPs; book scratch memory as a block that lives as long as the operation."""
        packet = func._overloadpacket
        if packet in flop_registry:
            flops = flop_registry[packet](*args, **kwargs, out_val=result)
            self.flops += flops
            self.recomputed_flops += flops if self._recomputing else 0
        nbytes = scratch_bytes(func, args)
        if self.offloads and self._op.name.startswith("fsdp.all_gather_copy_in"):
            nbytes = sum(t.numel() * t.element_size() for t in args[0])  # the shards, on their way from the host
        if nbytes:
            block = Block(0, nbytes, "kernel workspace", self._clock(), self._op)
            block.died = self._clock()
            self.blocks.append(block)


def simulate(recipe: Recipe, tell: Callable[[str], None] = lambda stage: None, repeat: bool = True) -> Simulation:
    """Run two steps of `recipe` on fake tensors.

    Args:
        recipe: what to run.
        tell: hears which stage begins.
        repeat: let the first step stand for the second where they are alike; False runs both, for comparison.

    Raises:
        RecipeError: the recipe asks for something its model does not have, or the model cannot run on fake tensors.
    """
    began = time.perf_counter()
    tell("building the model")
    subject = find_model(recipe.model)
    check_model(recipe, subject)
    with _one_at_a_time, warnings.catch_warnings(), _quiet_transformers(), _plain_surroundings():
        warnings.simplefilter("ignore")  # what libraries say about fake weights is of no use to anybody
        try:
            result = _simulate(recipe, subject, tell, repeat)
        except RecipeError:
            raise
        except Exception as error:  # a config may hold anything, and models do with it what they like
            words = " ".join(str(error).split())[:160]
            raise RecipeError(f"{recipe.model}: this cannot be simulated: {type(error).__name__}: {words}") from error
    result.seconds = time.perf_counter() - began
    return result


@contextlib.contextmanager
def _plain_surroundings() -> Any:
    """Leave aside what the caller has switched on or off: gradients, autocast, a default device."""
    device = contextlib.nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    autocast = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    try:
        with torch.inference_mode(False), torch.enable_grad(), device:
            yield
    finally:
        torch.set_autocast_enabled("cpu", autocast)


def _simulate(recipe: Recipe, subject: ModelSpec, tell: Callable[[str], None], repeat: bool) -> Simulation:
    # Inside `backward()` a function mode is off; what is recomputed there needs it again.
    contexts = lambda: (contextlib.nullcontext(), CudaKernels(_autocast_dtype(recipe)))  # noqa: E731
    model = build(recipe, subject, contexts)
    books = _Books()
    with fake_process_group(recipe):
        mesh = _mesh(recipe)
        kernels = CudaKernels(_autocast_dtype(recipe))
        saving = torch.autograd.graph.saved_tensors_hooks(books.keep, books.fetch)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with _no_compiler(), _no_collector(), fake, books, kernels, saving, _watch_resizing(books):
            return _run(recipe, subject, model, mesh, books, kernels, tell, repeat)


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """Switch the collection of cycles off: it looks at millions of living objects again and again, for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _autocast_dtype(recipe: Recipe) -> torch.dtype | None:
    """Return the dtype of autocast; `fully_shard` casts by itself."""
    return None if fully_sharded(recipe) else recipe.amp_dtype


def _mesh(recipe: Recipe) -> Any:
    if not fully_sharded(recipe):
        return None
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (recipe.ranks,))


@contextlib.contextmanager
def _quiet_transformers() -> Any:
    """Keep transformers from logging advice about models that are never used."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _no_compiler() -> Any:
    """Keep transformers from taking fake tensors for a compiler's.

    For a compiler, which must handle any batch, it makes an attention mask that a real run without padding leaves out.
    """
    masks = sys.modules.get("transformers.masking_utils")  # loaded with the model, if the model needs it
    return patch.object(masks, "is_tracing", lambda *_: False, create=True) if masks else contextlib.nullcontext()


@contextlib.contextmanager
def _watch_resizing(books: Count) -> Any:
    """Let the count see `storage.resize_`, with which `fully_shard` frees and fills its gathered parameters."""
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> None:
        plain(storage, size)
        books.see_storage(storage, storage._cdata, "weight copies")

    torch.UntypedStorage.resize_ = resize
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain


# -- the model


def build(recipe: Recipe, subject: ModelSpec, contexts: Contexts) -> nn.Module:
    """Build the model on the meta device, with quantized layers, adapters and checkpointing.

    `contexts` makes the two contexts in which checkpointed blocks run forward and are recomputed.
    """
    model = subject.build(recipe, recipe.weight_dtype)
    if recipe.quantize != "none" and not quantize_linears(model, recipe.quantize):
        raise RecipeError(f"{recipe.model} has no linear layers to quantize.")
    if recipe.lora_rank:
        model = _add_adapters(model, recipe)
    if recipe.checkpointing != "none":
        if not find_blocks(model):
            raise RecipeError(f"{recipe.model} has no repeated blocks to checkpoint: use checkpointing none.")
        checkpoint_blocks(model, recipe.checkpointing, contexts)
    return model.train()


def _add_adapters(model: nn.Module, recipe: Recipe) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha or 2 * recipe.lora_rank,
        lora_dropout=recipe.lora_dropout,
        target_modules=list(recipe.lora_targets) or None,  # None: PEFT's own choice for the architecture
    )
    try:
        return get_peft_model(model, config)
    except (ValueError, KeyError) as error:
        linear = {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        raise RecipeError(
            f"LoRA found no layer called {', '.join(recipe.lora_targets) or 'as usual'} in {recipe.model}; "
            f"its linear layers: {', '.join(sorted(linear))}."
        ) from error


def materialize(model: nn.Module, device: torch.device | str = "cpu") -> None:
    """Move `model` from the meta device to `device`, with values undefined; tied parameters stay tied."""
    homes: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                homes.setdefault(id(parameter), []).append((module, name))
    model.to_empty(device=device)
    for (first, name), *others in homes.values():
        for module, other in others:
            module._parameters[other] = first._parameters[name]


# -- the steps


def _run(
    recipe: Recipe,
    subject: ModelSpec,
    model: nn.Module,
    mesh: Any,
    books: _Books,
    kernels: CudaKernels,
    tell: Callable[[str], None],
    repeat: bool,
) -> Simulation:
    whole = fully_sharded(recipe)
    counted = _sizes(list(model.parameters()))
    if whole:
        shard_fully(model, recipe, mesh)
        model.to_empty(device="cpu")
    else:
        materialize(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    books.offloads = recipe.offload == "all"
    extra: list[Tensor] = []  # DDP's buckets
    if recipe.ranks > 1 and recipe.shard in ("none", "zero1"):
        extra = ddp_buckets(trained)
    mine = zero_partition(trained, recipe.ranks) if recipe.shard in ("zero1", "zero2") else trained
    if whole:
        # The optimizer works on this rank's shards. As plain tensors, for a DTensor works out its shapes on tensors
        # of full size, which the count would take for memory.
        mine = [p._local_tensor.detach().requires_grad_() for p in trained]
    optimizers = optimizers_of(recipe, mine)
    handles = books.watch(model, optimizers)
    for bucket in extra:
        books.see(bucket, "gradients")
    if recipe.shard == "zero2":
        _drop_gradients_of_others(trained, mine)
    if recipe.step_in_backward:
        step_in_backward(optimizers, lambda: CudaKernels(_autocast_dtype(recipe)))
    if recipe.offload == "all":
        _offload(books, trained)
    inputs = batch_of(recipe, subject)
    for tensor in inputs.values():
        books.see(tensor, "inputs and other")

    micro_batches = min(recipe.accumulate, SIMULATED_MICRO_BATCHES)
    # Where nothing but the optimizer's state is born in the first step, the second is a copy of it.
    steps = SIMULATED_STEPS if recipe.keep_grads or whole or not repeat else 1
    for step in range(steps):
        tell(f"step {step + 1} of {SIMULATED_STEPS}")
        step_began = books.now()
        for _ in range(micro_batches):
            with kernels.autocast():
                loss = loss_of(subject, model, inputs) / recipe.accumulate
            loss.backward()
            del loss
        if recipe.offload == "all":
            _offload(books, trained)
        for shard, p in zip(mine, trained, strict=True) if whole else ():
            shard.grad = p.grad._local_tensor
        for optimizer in [] if recipe.step_in_backward else optimizers:
            optimizer.step()
        for shard in mine if whole else ():
            shard.grad = None
        for p in trained:
            if recipe.keep_grads and p.grad is not None:
                p.grad.zero_()
            else:
                p.grad = None
    for handle in handles:
        handle.remove()
    books.settle()
    books.close()
    blocks = books.blocks if steps == SIMULATED_STEPS else _twice(books.blocks, step_began, books.now())
    kept = [b for b in books.blocks if b.tenant == "optimizer state" and b.died is None]
    state = sum(block.nbytes for block in kept if block.nbytes > COUNTER)
    host = 0
    if recipe.offload != "none":
        host, state = state, 0
    if recipe.offload == "all":
        host += (counted["parameter_bytes"] + counted["trained_bytes"]) // recipe.ranks
    scale = recipe.accumulate / micro_batches / steps
    return Simulation(
        recipe,
        _on_the_gpu(blocks, recipe),
        int(books.flops * scale),
        int(books.recomputed_flops * scale),
        bytes_sent(recipe, counted["parameter_bytes"], counted["trained_bytes"]),
        host,
        **counted,
        state_bytes=state,
        seconds=0.0,
    )


def _twice(blocks: list[Block], began: int, ended: int) -> list[Block]:
    """Append a second step: all that the first made between `began` and `ended` and did not keep."""
    again = [
        replace(block, seen=block.seen + ended - began, died=block.died + ended - began)
        for block in blocks
        if block.seen > began and block.died is not None
    ]
    return blocks + again


def _sizes(parameters: list[Tensor]) -> dict[str, int]:
    trained = [p for p in parameters if p.requires_grad]
    return {
        "parameters": sum(p.numel() for p in parameters),
        "trained": sum(p.numel() for p in trained),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "trained_bytes": sum(p.numel() * p.element_size() for p in trained),
    }


def _on_the_gpu(blocks: list[Block], recipe: Recipe) -> list[Block]:
    """Leave out what lies in the memory of the host."""
    steps_on_host = recipe.optimizer_impl != "fused"  # Adam's step counters: CPU scalars, unless the kernel is fused

    def on_host(block: Block) -> bool:
        counter = block.tenant == "optimizer state" and block.nbytes <= COUNTER
        updating = block.tenant == "optimizer state" or block.op.phase == "optimizer step"
        away = block.tenant == HOST or (updating and recipe.offload != "none")
        return away or not block.nbytes or (counter and steps_on_host)

    return [block for block in blocks if not on_host(block)]


def batch_of(recipe: Recipe, subject: ModelSpec) -> dict[str, Tensor]:
    """Return one micro-batch."""
    if not subject.images:
        ids = torch.zeros(recipe.batch, recipe.seq, dtype=torch.long)
        return {"input_ids": ids, "labels": torch.zeros_like(ids)}
    side = recipe.image_size or subject.side
    pixels = torch.zeros(recipe.batch, subject.channels, side, side, dtype=recipe.weight_dtype)
    return {"pixel_values": pixels, "labels": torch.zeros(recipe.batch, dtype=torch.long)}


def loss_of(subject: ModelSpec, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the loss of one micro-batch."""
    if subject.config is not None:
        return model(**inputs).loss
    x, labels = inputs.values()
    return F.cross_entropy(model(x).float().flatten(0, -2), labels.flatten())


def optimizers_of(recipe: Recipe, parameters: list[Tensor]) -> list[torch.optim.Optimizer]:
    """Return one optimizer for all parameters, or one for each when the step is taken in the backward pass."""
    how = {"foreach": recipe.optimizer_impl == "foreach"}
    if recipe.optimizer_impl == "fused":
        how = {"fused": True}
    make = {
        "adamw": lambda ps: torch.optim.AdamW(ps, **how),
        "adam": lambda ps: torch.optim.Adam(ps, **how),
        "sgd": lambda ps: torch.optim.SGD(ps, **how),
        "sgd-momentum": lambda ps: torch.optim.SGD(ps, momentum=0.9, **how),
        "adafactor": lambda ps: torch.optim.Adafactor(ps, **how),
        "adamw-8bit": EightBitAdam,
    }[recipe.optimizer]
    return [make([p]) for p in parameters] if recipe.step_in_backward else [make(parameters)]


def step_in_backward(
    optimizers: list[torch.optim.Optimizer],
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> None:
    """Update each parameter as soon as its gradient is whole, then free the gradient.

    Inside the backward pass a function mode is off; `context` makes the one that the step needs again.
    """

    def update(parameter: Tensor, optimizer: torch.optim.Optimizer) -> None:
        with context():
            optimizer.step()
        optimizer.zero_grad()

    for optimizer in optimizers:
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: update(p, optimizer))


def _drop_gradients_of_others(parameters: list[Tensor], mine: list[Tensor]) -> None:
    """Free each gradient that another rank keeps as soon as it would have been sent there."""
    kept = {id(p) for p in mine}

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    for parameter in parameters:
        if id(parameter) not in kept:
            parameter.register_post_accumulate_grad_hook(drop)


def _offload(books: Count, parameters: list[Tensor]) -> None:
    """Book the shards of parameters and gradients as the host's."""
    for parameter in parameters:
        books.see(parameter, HOST)
        books.see(parameter.grad, HOST)
