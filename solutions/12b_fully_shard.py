# %% [markdown] name="title"
# # FSDP: PyTorch's own sharding
#
# **One call shards a model over its ranks. The rest is up to you: units, meshes, starting without the whole model, accumulation, clipping, checkpoints. Most mistakes raise no error.**
#
# | | |
# |---|---|
# | After this you can | shard a model with `fully_shard` over an explicit mesh and choose the units; build, initialize and load a model that fits on no single rank; write a training step that accumulates and clips across ranks; apply checkpointing, compilation, sharding and the optimizer in the right order; save on 4 ranks and resume on 2; plan 70B on 8 GPUs |
# | Time | 90 to 120 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#activation_checkpointing]] and [[#sharding]] |
# | Syllabus | T21, T23, T35, C14 |
#
# The graded exercise X7 follows.

# %% name="setup" setup=true
import itertools
import tempfile
import warnings
from pathlib import Path

from helpers import (
    Claims,
    GiB,
    MemoryMeter,
    MiB,
    ParallelConfig,
    Prediction,
    Recipe,
    check,
    device_name,
    hint,
    human_bytes,
    pick_device,
    planned,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
)
from helpers.core.progress_line import progress_line
from helpers.exercises.sharding import drawings
from helpers.exercises.sharding.blocks import Blocks, rank_rows
from helpers.exercises.sharding.collective_log import CollectiveLog
from helpers.exercises.sharding.trained import joint, train, worst
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
from helpers.virtual_gpu.world import World

# %% name="setup_torch" setup=true
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm
from transformers import AutoModelForCausalLM, LlamaConfig

device = pick_device()
everywhere = ranks_device(4)  # the tables compare 1, 2 and 4 ranks, so all of them run where 4 can
claims = Claims(device=everywhere)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if everywhere.type == 'cuda' else 'the CPU, over gloo'}")

# %% name="tools"
FP32 = 4  # bytes
phi = sum(p.numel() for p in Blocks().parameters())  # the papers' name for the number of parameters


def run(fn, ranks, *args):
    """Return what `fn` returns on each of `ranks` ranks; it takes its own measurements."""
    return run_ranks(fn, ranks, *args, device=everywhere, measure=False).results


def run_cases(fn, ranks, cases):
    """Run `fn(case)` for each case, one after the other, on the same ranks; return each case's worst rank."""
    progress_line(f"{ranks} ranks: {', '.join(map(str, cases))}")
    results = run(lambda: [fn(case) for case in cases], ranks)
    progress_line("")
    return dict(zip(cases, map(worst, zip(*results, strict=True)), strict=True))


# %% [markdown] name="fully_shard_text"
# ## 1 · Shard a model
#
# This lab uses the same model as [[sharding]]: 8 equal blocks of 2 MiB, Φ parameters in all, trained in FP32 with AdamW. `fully_shard(module, mesh=mesh)` does what your functions and hooks did there, in place: the module's parameters become one unit that is gathered together and freed together. Each parameter is now a `DTensor`, split along its first dimension; this rank's part is `p.to_local()`.
#
# - **Units.** A call takes all parameters of its module that no earlier call has taken, and makes them one unit. Only one unit's parameters need to be complete at a time.
# - **The root**, the outermost sharded module, coordinates the units inside it, and keeps its own parameters gathered from the forward to the backward pass. A sharded block that is not inside a sharded model is its own root.
# - **The mesh** defines which ranks hold the shards, and on which kind of device. Always pass one. Without it, `fully_shard` uses all ranks and the machine's accelerator, even if the ranks run on the CPU.
#
# ### Your turn: shard it
#
# **Contract.** `make_sharded(model, mesh, **options)` is called on every rank, and returns the model to train with.
#
# - `mesh` is the `DeviceMesh` to shard over: all ranks in one dimension, or two dimensions as in section 6. `options` go to every call of `fully_shard`.
# - `model` is the same FP32 model on every rank, unsharded. `model.blocks` is an `nn.ModuleList` of equal blocks; the model may also have parameters outside them.
# - `F.mse_loss(result(x), y).backward()` and then a step of `torch.optim.AdamW(result.parameters())`, where `result` is the returned model, must train in FP32 as DDP would: each rank has its part of the rows, and gradients are averaged.
# - Each rank holds 1/N of the parameters, gradients and optimizer state, and keeps no full copies.
# - The **peak** of a training step on a rank is at most this 1/N share plus six times the parameters of a block.
#
# The check takes about ten seconds.


# %% name="sharded" answer=true reveal=true
def make_sharded(model, mesh, **options):
    ### BEGIN SOLUTION
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # the other parameters, and the root that coordinates all units
    ### END SOLUTION


# %% name="sharded_check"
make_sharded = check("fully_shard.sharded", make_sharded)

# %% name="sharded_hint"
hint("fully_shard.sharded")

# %% [markdown] name="units_text"
# Now train with DDP and with four variants of FSDP: the whole model as one unit (`one_unit`), every two blocks as one (`pairs`), each block as one (your `make_sharded`), and each block as one with parameters that stay gathered (`kept_gathered`).
#
# **Predict.** On 4 ranks, by how many MiB does the peak fall when each of the 8 blocks is a unit instead of the whole model? A block's parameters take 2.0 MiB.

# %% name="guess_units"
my_guess = None  # MiB that the peak falls from "whole model" to "each block"
### BEGIN GUESS
my_guess = 7 * 526_080 * 4 / 2**20  # seven blocks fewer are gathered at a time
### END GUESS
units_guess = Prediction("Whole model as a unit minus each block a unit, 4 ranks", my_guess, "MiB")


# %% name="units"
def all_ranks():
    return init_device_mesh(rank_device().type, (dist.get_world_size(),))


def with_ddp(model, mesh):
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def one_unit(model, mesh):
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def pairs(model, mesh):
    for i in range(0, len(model.blocks), 2):
        fully_shard([model.blocks[i], model.blocks[i + 1]], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def kept_gathered(model, mesh):
    return make_sharded(model, mesh, reshard_after_forward=False)


# %% name="units_trained"
def train_sharded(make):
    model, (x, y) = make(Blocks().to(rank_device()), all_ranks()), rank_rows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        loss = F.mse_loss(model(x).float(), y)  # under a BF16 policy the output is BF16
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train(step, model, optimizer)


fsdp = run_cases(train_sharded, 4, [with_ddp, one_unit, pairs, make_sharded, kept_gathered])
for make, got in fsdp.items():
    print(f"{make.__name__:13} loss {got.losses[-1]:.6f}, {got.static / phi:.2f} bytes per parameter, sent {got.sent}")
    print(f"{'':13} peak {human_bytes(got.peak)}")
units_guess.reveal((fsdp[one_unit].peak - fsdp[make_sharded].peak) / MiB)

# %% name="fsdp_claims"
got, subject = fsdp[make_sharded], "8 blocks, fully_shard, 4 ranks"
fewer = fsdp[with_ddp].static / got.static
claims.record("C14", "FSDP: 1/N of parameters, gradients, state", subject, fewer, "times less", 3.9, 4.1)
claims.record("C14", "FSDP sends 3 Φ", subject, got.sent.volume / (FP32 * phi), "x parameters", 2.99, 3.01)
lower = fsdp[with_ddp].peak / got.peak
claims.record("C14", "about N times less memory", "8 blocks, the peak, 4 ranks", lower, "times less", 3.5, 4.5)
lower = fsdp[one_unit].peak / got.peak
claims.record("T21", "smaller units, lower peak", "4 ranks, whole model / each block", lower, "times", 1.2, 10)

# %% [markdown] name="units_explained"
# The losses equal DDP's. The static part is the formula's 4 bytes per parameter; your stage 3 in [[sharding]] held more, by up to one block's gradients. FSDP sends as many bytes as your stage 3, in as many messages: three per block. The claim that FSDP needs "about N times less memory" holds for the static part but not for the peak: gathered units and flat copies of gradients are not divided by N. (Messages travel while the ranks compute, so the peak differs a little from rank to rank and from run to run. The tables show the rank with the highest peak.)
#
# Smaller units save more than the parameters of seven blocks. At the end of a unit's backward pass all its gradients exist, along with the buffer in which they are packed for the reduce-scatter. So a unit costs at least twice its size on top of the static part. Units of one block cost more than that here, partly because the next unit's parameters have already been gathered.
#
# The last variant, `kept_gathered`, uses `reshard_after_forward=False`: parameters stay gathered from the forward to the backward pass. That sends 2 Φ instead of 3 Φ, but at the peak all parameters are complete. It pays off if links are slow and the parameters take up only a small part of the memory. (It sends as much as ZeRO-2. Between steps the parameters are still sharded.)
#
# ### Policies: mixed precision, offload
#
# `MixedPrecisionPolicy` gathers and computes in 16 bits, while shards and optimizer stay FP32. `CPUOffloadPolicy` keeps the shards in the host's memory and moves a unit to the GPU when it is needed. Its gradients go back to the host, and the optimizer steps there, on the CPU. So in each step a rank moves 4 bytes per parameter of its shard over PCIe for each gather, and 4 more for the gradient. (Those bytes would be halved only if the shards themselves were BF16. With a BF16 policy the FP32 shard is copied first and then cast on the GPU.) Pinned host memory lets these copies overlap with computation. (On a CPU the policy moves nothing, so the table has a row for it only on GPUs.)
#
# In older code you will meet `FullyShardedDataParallel`, which packs a unit into one flat parameter, as you did. New code should use `fully_shard`.


# %% name="policies"
def in_bf16(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return make_sharded(model, mesh, mp_policy=policy)


def offloaded(model, mesh):
    return make_sharded(model, mesh, offload_policy=CPUOffloadPolicy(pin_memory=rank_device().type == "cuda"))


policies = run_cases(train_sharded, 4, [in_bf16, *([offloaded] if everywhere.type == "cuda" else [])])
table = [("", "loss", "bytes per parameter", "sent, x parameters", "peak")]
for make, got in {make_sharded: fsdp[make_sharded], **policies}.items():
    volume = got.sent.volume / (FP32 * phi)
    row = (f"{got.losses[-1]:.6f}", f"{got.static / phi:.2f}", f"{volume:.2f}", human_bytes(got.peak))
    table.append((make.__name__, *row))
show_table(table)
halved = policies[in_bf16].sent.volume / (FP32 * phi)
said = "BF16 policy: gathers halve, reduction stays FP32"
claims.record("T21", said, "4 ranks", halved, "x parameters in FP32", 1.99, 2.01)

# %% [markdown] name="policies_explained"
# With the BF16 policy both gathers send half the bytes, and the reduction stays FP32, so a step sends 2 Φ instead of 3 Φ. The gathered block is half as large, which is 1 MiB less for each gathered block. The peaks can differ by nearly as much from run to run, so one run does not show the saving reliably. The static part stays at 4 bytes, because shards and optimizer are FP32, which keeps small updates from being lost ([[number_formats]]). The loss differs in the fourth digit.
#
# ## 2 · A model that no rank can build
#
# So far each rank built the whole model and then sharded it. For 70B in FP32 that is 280 GB on every rank at once. On the *meta* device a parameter has a shape but no bytes, and `fully_shard` needs only the shapes:
#
# 1. Build on `meta`.
# 2. Shard.
# 3. `to_empty(device=...)` allocates each rank's shards, with arbitrary contents.
# 4. Load or initialize. To load, only rank 0 reads the weights into the host's memory. It broadcasts one parameter at a time, and each rank keeps its part. If the weights are in a `safetensors` file, each rank can read its own rows instead: `get_slice(name)[start:end]` reads only these bytes, and nothing is broadcast. To initialize, every rank generates the full model from the same seed, one layer at a time, and keeps its part of each.
#
# Tensors that the state dict lacks, such as non-persistent buffers, stay unfilled. Fill them yourself after `to_empty`.
#
# **Predict.** In the next cell, `load_by_hand` takes these four steps and loads by broadcast. On 4 ranks, what is its peak on a rank other than 0, as a share of the whole model?

# %% name="guess_meta"
my_guess = None  # of the whole model's parameters
### BEGIN GUESS
my_guess = 1 / 4 + 1 / 16  # its shards, and the largest parameter (1 MiB of 16 MiB) in transit
### END GUESS
meta_guess = Prediction("Peak while starting, ranks 1 to 3 / whole model", my_guess, "")


# %% name="meta"
def start_whole():
    return make_sharded(Blocks().to(rank_device()), all_ranks())


def on_meta():
    with torch.device("meta"):
        return Blocks()


def start_empty():
    return make_sharded(on_meta(), all_ranks()).to_empty(device=rank_device())


def keep_part(p, full):
    """Copy this rank's rows of a full tensor into a sharded parameter."""
    p.to_local().data.copy_(full.chunk(dist.get_world_size())[dist.get_rank()])


def load_by_hand():
    model, full = start_empty(), Blocks().state_dict() if dist.get_rank() == 0 else {}
    buffer = torch.empty(max(p.numel() for p in model.parameters()), device=rank_device())  # reused
    for name, p in model.named_parameters():
        received = buffer[: p.numel()].view(p.shape)
        if full:
            received.copy_(full[name])
        dist.broadcast(received, 0)
        keep_part(p, received)
    return model


# %% name="meta_filled"
def load_in_a_call():
    model, full = start_empty(), Blocks().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full, options=options)
    return model


WEIGHTS = Path(tempfile.mkdtemp()) / "blocks.safetensors"
safetensors.torch.save_file(Blocks().state_dict(), WEIGHTS)


def load_slices():
    model, rank, size = start_empty(), dist.get_rank(), dist.get_world_size()
    with safetensors.safe_open(WEIGHTS, "np") as file:  # "pt" also reads BF16
        for name, p in model.named_parameters():
            rows = -(-p.shape[0] // size)  # as `chunk` divides them; the last ranks may have fewer
            part = file.get_slice(name)[rank * rows : (rank + 1) * rows]
            p.to_local().data.copy_(torch.from_numpy(part))
    return model


def initialize():
    model, template = start_empty(), on_meta()
    torch.manual_seed(0)  # the same on all ranks, and as in one process
    for name, layer in template.named_modules():
        if hasattr(layer, "reset_parameters"):
            layer.to_empty(device="cpu").reset_parameters()  # this layer alone, in full
            for of_layer, p in model.get_submodule(name).named_parameters():
                keep_part(p, layer.get_parameter(of_layer))
            layer.to("meta")
    return model


# %% name="meta_measured"
def measured_start(start):
    with MemoryMeter(device=rank_device(), by_category=False) as profile:
        model = start()
    return profile.peak_bytes, [p.to_local().double().sum().item() for p in model.parameters()]


def reset_on_every_rank():
    warnings.filterwarnings("ignore", message="DTensor random")  # on the CPU PyTorch rightly warns
    model = start_empty()
    torch.manual_seed(0)
    for layer in model.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return model


starts = (start_whole, load_by_hand, load_in_a_call, load_slices, initialize, reset_on_every_rank)
variants = {start: run(measured_start, 4, start) for start in starts}
numbers = {start: [got for _, got in ranks] for start, ranks in variants.items()}
table = [("", "same weights as one process", "rank 1 repeats rank 0's shard", "peak, rank 0", "peak, ranks 1 to 3")]
for start, ranks in variants.items():
    right, copied = numbers[start] == numbers[start_whole], numbers[start][0] == numbers[start][1]
    peaks = human_bytes(ranks[0][0]), human_bytes(max(peak for peak, _ in ranks[1:]))
    table.append((start.__name__, *("yes" if answer else "no" for answer in (right, copied)), *peaks))
show_table(table)
others = max(peak for peak, _ in variants[load_by_hand][1:])
meta_guess.reveal(others / (FP32 * phi))
claims.record(
    "T21", "meta start: shards and a parameter", "4 ranks, 1 to 3", others / (FP32 * phi), "of the whole", 0.25, 0.4
)

# %% [markdown] name="meta_explained"
# The shards account for a quarter of the model; the rest of the peak is the largest parameter in transit. (On a CPU, rank 0 also shows the whole model, because the host's memory *is* what the meter reads.) `set_model_state_dict` with `broadcast_from_rank0` does step 4 in one call, for any sharding; its peak on ranks 1 to 3 is higher. `load_slices` needs no messages, and no rank has more than its shards and the rows that it is reading, not even rank 0. (The meter sees only PyTorch's memory, so NumPy's copies of those rows are not in the table. With `"pt"` on a CPU it would count the whole file.)
#
# `initialize` draws the same weights on any number of ranks as a single process would. The last line is a control: calling `reset_parameters` on the sharded layers draws each shard from the same seed, so on the CPU all ranks get the *same* shard, and the full model repeats one shard N times. On CUDA, `DTensor` gives each rank its own range of the random numbers. Check this once on your own setup: compare the shards of two ranks.

# %% [markdown] name="accumulate_text"
# ## 3 · Accumulating
#
# With DDP, accumulation saves messages: only the last micro-batch is reduced (`no_sync`, [[gradient_accumulation]]). With `fully_shard` the switch is `model.set_requires_gradient_sync(False)`. With four micro-batches and a reduction for each, ZeRO-3 sends 4 × 3 Φ = 12 Φ. With sync off for the first three, it sends 4 × 2 Φ for gathers and Φ for one reduction, 9 Φ in total. Section 4 measures both, with a step that you write.
#
# **Predict.** The parameters take 16 MiB. By how many MiB does a rank's peak rise when sync is off for the first three micro-batches?

# %% name="guess_accumulate"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 12  # all gradients, where a quarter was enough
### END GUESS
accumulate_guess = Prediction("Peak with sync off, minus peak with a reduction each time", my_guess, "MiB")


# %% [markdown] name="clip_text"
# ## 4 · Clipping across ranks
#
# Clipping scales the gradient down so that its norm is at most a limit ([[loss_scaling]]). But a rank has only part of the gradient. Suppose that each of 4 ranks takes the norm of its own part and scales that part to the limit.
#
# **Predict.** What is the norm of the joint gradient after that, in units of the limit?

# %% name="guess_clip"
my_guess = None  # norm after clipping / limit
### BEGIN GUESS
my_guess = 2  # four orthogonal parts of norm 1: the square root of 4
### END GUESS
clip_guess = Prediction("Norm of the gradient, each rank clipped by its own norm / limit", my_guess, "times")


# %% name="clip"
LIMIT = 0.01


def clipped_apart():
    """Clip each rank's part by its own norm; return that norm, and the joint one afterwards in units of the limit."""
    model, (x, y) = start_whole(), rank_rows()
    F.mse_loss(model(x), y).backward()
    local = [p.grad.to_local() for p in model.parameters()]
    norm = get_total_norm(local)
    for gradient in local:
        gradient *= LIMIT / norm
    squares = sum(gradient.square().sum() for gradient in local)
    dist.all_reduce(squares)
    return norm.item(), squares.sqrt().item() / LIMIT


apart = run(clipped_apart, 4)
print(f"norm on each rank: {', '.join(f'{norm:.4f}' for norm, _ in apart)}", end="")
print(f"; after clipping {apart[0][1]:.3f} x the limit")
clip_guess.reveal(apart[0][1])

# %% [markdown] name="clip_explained"
# Local norms are misleading: each is about half of the joint norm, because the squares of the 4 parts' norms add up to the square of the joint norm. So local clipping starts too late and clips too little. It also depends on the number of ranks: a limit tuned on 4 ranks means something else on 64. If the parts' norms differ, it even changes the gradient's direction.
#
# `torch.nn.utils.clip_grad_norm_` gives the right result if all `DTensor`s are **on one mesh**, because their norm includes the all-reduce of the squares. The norm that it returns is also a `DTensor`: `full_tensor()` converts it to a plain tensor.
#
# If the parameters are on two different meshes, `clip_grad_norm_` raises an error. If some parameters are plain tensors and others are `DTensor`s, fused and foreach optimizers fail, too. Both happen when tensor parallelism splits some layers and leaves others alone; [[tensor_parallel_in_practice]] shows the failure and the fix. With a pipeline, `clip_grad_norm_` sees only one stage, so the squares must be summed over the stages, too ([[pipelines_in_practice]]). On local tensors, such as the shards of [[sharding]], it computes the local norm: there, all-reduce the sum of squares yourself.
#
# ### Your turn: accumulate, clip, step
#
# **Contract.** `accumulated_step(model, optimizer, micro_batches, limit)` is called on every rank with a model that `fully_shard` has sharded over all ranks. It takes one training step.
#
# - `micro_batches` is a list of pairs (x, y). Micro-batches may differ in their number of rows, but the i-th has the same number on every rank. The model gets one micro-batch at a time, in order; its loss is `F.mse_loss(model(x), y)`.
# - The step equals that of a single process on all rows of all ranks. Every row counts the same, and the gradient is clipped to the norm `limit`.
# - Each unit's gradients are reduced once per step.
# - It returns two numbers (or tensors with one element): the mean loss over this rank's rows, and the norm of the joint gradient before clipping.
# - Afterwards no parameter has a gradient, and a plain backward pass is reduced as before.


# %% name="step" answer=true reveal=true
def accumulated_step(model, optimizer, micro_batches, limit):
    ### BEGIN SOLUTION
    rows, total = sum(len(x) for x, _ in micro_batches), 0.0
    for i, (x, y) in enumerate(micro_batches, 1):
        model.set_requires_gradient_sync(i == len(micro_batches))
        loss = F.mse_loss(model(x), y) * (len(x) / rows)
        loss.backward()
        total += loss.detach()
    norm = clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm.full_tensor()
    ### END SOLUTION


# %% name="step_check"
accumulated_step = check("fully_shard.step", accumulated_step)

# %% name="step_hint"
hint("fully_shard.step")

# %% [markdown] name="step_text"
# The next cell measures the bytes that section 3 calculated, and the rise of the peak that you predicted there. It takes a step of four micro-batches in three variants: a loop that reduces each time, your step, and your step with parameters that stay gathered from one micro-batch to the next. Then it measures your clipping: with SGD at a learning rate of 1, the weights move by exactly the clipped gradient.


# %% name="accumulate"
def reduced_each_time(model, optimizer, micro_batches, limit):
    total = 0.0
    for x, y in micro_batches:
        loss = F.mse_loss(model(x), y) / len(micro_batches)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total, None


def keep_gathered(model, micro_batches):
    """Free parameters only in the backward pass of each step's last micro-batch."""
    number = itertools.count(1)
    model.set_reshard_after_forward(False)
    model.register_forward_pre_hook(lambda *_: model.set_reshard_after_backward(next(number) % micro_batches == 0))


def accumulated(way):
    model, (x, y) = start_whole(), rank_rows(64)
    optimizer, pieces = torch.optim.AdamW(model.parameters(), lr=1e-3), list(zip(x.chunk(4), y.chunk(4), strict=True))
    if way == "kept gathered, too":
        keep_gathered(model, 4)
    one_step = reduced_each_time if way == "reduced each time" else accumulated_step
    return train(lambda: one_step(model, optimizer, pieces, 1e9)[0], model, optimizer, steps=2)


ways = run_cases(accumulated, 4, ["reduced each time", "your step", "kept gathered, too"])
sent = {way: got.sent.volume / (FP32 * phi) for way, got in ways.items()}
for way, got in ways.items():
    print(f"{way:18} loss {got.losses[-1]:.6f}, sent {sent[way]:5.2f} x parameters, peak {human_bytes(got.peak)}")
accumulate_guess.reveal((ways["your step"].peak - ways["reduced each time"].peak) / MiB)
grown = FP32 * phi * (1 - 1 / 4) / MiB
print(f"All gradients take {grown:.1f} MiB more than a rank's quarter of them.")
claims.record("T21", "sync off: 9 Φ, not 12 Φ", "4 micro-batches", sent["your step"], "x parameters", 8.99, 9.01)


# %% name="clipped_step"
def moved():
    """Take a step of two micro-batches; return the norm, and how far the weights moved in units of the limit."""
    model, (x, y) = start_whole(), rank_rows()
    before = [p.full_tensor().clone() for p in model.parameters()]
    pieces = list(zip(x.chunk(2), y.chunk(2), strict=True))
    _, norm = accumulated_step(model, torch.optim.SGD(model.parameters(), lr=1.0), pieces, LIMIT)
    after = [p.full_tensor() for p in model.parameters()]
    far = get_total_norm([a - b for a, b in zip(after, before, strict=True)])
    return float(norm), far.item() / LIMIT


together = run(moved, 4)
print(f"norm on each rank: {', '.join(f'{norm:.4f}' for norm, _ in together)}", end="")
print(f"; the weights moved by {together[0][1]:.3f} x the limit")
said = "clip_grad_norm_ clips the joint gradient"
claims.record("T21", said, "4 ranks", together[0][1], "x the limit", 0.999, 1.001)

# %% [markdown] name="accumulate_explained"
# Turning sync off saves reductions. The gathers remain, because parameters are freed after each pass, whether or not gradients are reduced. The cost is memory: a gradient that is not reduced stays unsharded, so each rank holds all gradients until the last micro-batch: 12 MiB more than its quarter. The peak rises by less. A likely reason, which the cell does not measure, is that with a reduction for each micro-batch the peak already includes one block's unsharded gradients.
#
# If there is room for all gradients, there may be room for all parameters, too. The last variant keeps both from one micro-batch to the next (`set_reshard_after_backward(False)`). Parameters are gathered once and gradients reduced once: 2 Φ for any number of micro-batches.
#
# ## 5 · Prefetch, and the order of wrappers
#
# While a block computes, the next one's parameters can travel. In the backward pass `fully_shard` requests the next block by itself. In the forward pass on a GPU the requests usually come in time, because Python runs ahead. If they do not, `block.set_modules_to_forward_prefetch([...])` names the blocks to request early. Each block requested early needs memory for one more block's parameters; whether it saves a wait depends on the link and on how long a block computes ([[sharding]]).
#
# ### Which wrapper comes first?
#
# Checkpointing, `fully_shard` and `torch.compile` all wrap a model, and the optimizer holds its parameters. We try checkpointing inside sharding, sharding inside checkpointing, and an optimizer that is built before or after sharding. None of them raises an error.
#
# **Predict.** What is the peak of the run whose optimizer was built before `fully_shard`, divided by the peak of the run that built it after?

# %% name="guess_order"
my_guess = None  # peak, optimizer first / optimizer last
### BEGIN GUESS
my_guess = 1.2  # the optimizer keeps the parameters that were not sharded
### END GUESS
order_guess = Prediction("Optimizer first / optimizer last: peak", my_guess, "times")


# %% name="order"
def ordered(order):
    model, (x, y) = Blocks().to(rank_device()), rank_rows(512)
    early = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for part in order:
        if part == "shard":
            make_sharded(model, all_ranks())
        elif part == "checkpoint":
            for i, block in enumerate(model.blocks):
                model.blocks[i] = checkpoint_wrapper(block)
    optimizer = early if order[0] == "optimizer" else torch.optim.AdamW(model.parameters(), lr=1e-3)
    del early

    def step():
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss

    return train(step, model, optimizer)


orders = ("checkpoint, shard", "shard, checkpoint", "shard, optimizer", "optimizer, shard")
ordering = run_cases(lambda order: ordered(order.split(", ")), 4, list(orders))
for name, got in ordering.items():
    falls, volume = " -> ".join(f"{loss:.4f}" for loss in got.losses), got.sent.volume / (FP32 * phi)
    print(f"{name:18} loss {falls}, sent {volume:.2f} x parameters, peak {human_bytes(got.peak)}")
losses = ordering["optimizer, shard"].losses
order_guess.reveal(ordering["optimizer, shard"].peak / ordering["shard, optimizer"].peak)
claims.record("T21", "optimizer before fully_shard: nothing trains", "3 steps", losses[-1] / losses[0], "", 1, 1)

# %% [markdown] name="order_explained"
# `fully_shard` replaces the parameters with new ones. An optimizer built earlier still holds the old ones, which no module uses anymore and which get no gradients. So every rank keeps a full copy of the old parameters, and the loss does not change. The optimizer also never creates its moments. That saves less memory than the copy costs, because the moments would have been sharded. There is no error and no warning, and nothing trains.
#
# Checkpointing and sharding in either order gave the same losses and the same messages here. When a checkpointed block is recomputed in the backward pass, `fully_shard` detects it, gathers the block once, and does not free it in between.
#
# **And the compiler?** Operations in different graphs cannot be fused ([[compilation_and_fusion]]), and the hooks of `fully_shard` cause graph breaks: when you compile a whole sharded model, the compiler still gets one block at a time. So compile each block, and put the checkpoint inside the compiled block, where the compiler sees what is recomputed. `block.compile()` works in place. `torch.compile(block)` wraps the block and puts the prefix `_orig_mod.` in front of its parameters' names: a plain `state_dict()` then does not load into a model that is not compiled (`get_state_dict` of section 8 strips the prefix).
#
# The usual order (torchtitan's, for example) is tensor parallelism ([[tensor_parallel]]), checkpointing, `torch.compile` of each block, `fully_shard`, optimizer. The optimizer must come last or nothing trains.
#
# ## 6 · Hybrid: a two-dimensional mesh
#
# Links within a machine are fast, and links between machines are slow. With *hybrid* sharding (HSDP) each machine shards the model over its own GPUs, and the machines are replicas. The mesh has two dimensions; `fully_shard` shards along the second and replicates along the first. Here is an example with two "machines" of two ranks each:

# %% name="mesh_drawn"
show(
    drawings.mesh_figure(2, 2, ("replicate", "shard")),
    "Four ranks in a square. Ranks 0 and 1, and ranks 2 and 3, hold the parts of one model; ranks 0 and 2, and ranks 1 and 3, hold the same part.",
)

# %% [markdown] name="mesh_text"
# Within a row everything is as before: 3 Φ times (N − 1)/N for a ring of N ranks, here with N = 2. After the reduce-scatter a rank has the gradient of its half, averaged over its row only. An all-reduce along the column then averages over the rows.


# %% name="mesh"
def by_dimension(shape):
    mesh = init_device_mesh(rank_device().type, shape, mesh_dim_names=("replicate", "shard"))
    model, (x, y) = make_sharded(Blocks().to(rank_device()), mesh), rank_rows()
    with CollectiveLog() as log:
        loss = F.mse_loss(model(x), y)
        loss.backward()
    here = sum(p.to_local().numel() for p in model.parameters()) / phi
    groups = [dist.get_process_group_ranks(mesh.get_group(name)) for name in mesh.mesh_dim_names]
    volumes = [log.volume_among(ranks) * (len(ranks) - 1) / len(ranks) for ranks in groups]
    return here, [volume / (FP32 * phi) for volume in volumes], joint(loss)


table = [("mesh", "share of the parameters", "sent along replicate", "along shard", "between machines", "loss")]
for shape in ((1, 4), (2, 2)):
    here, along, loss = run(by_dimension, 4, shape)[0]
    crossing = along[1] if shape == (1, 4) else 2 * along[0]  # in a ring of 4, one rank per machine sends out of it
    volumes = [f"{volume:.2f} Φ" for volume in (*along, crossing)]
    table.append((f"{shape[0]} x {shape[1]}", f"{here:.2f}", *volumes, f"{loss:.6f}"))
show_table(table)

claims.record("T21", "HSDP: between machines, the gradients of a shard", "2 x 2", along[0], "x parameters", 0.49, 0.51)

# %% [markdown] name="mesh_explained"
# In a flat mesh of four, the ring goes through both machines, and one of the two ranks of a machine sends to the other machine: 2.25 Φ per step. In the hybrid mesh both ranks send to the other machine, but each sends only the gradient of its half: 2 × 0.5 Φ. For two machines with eight GPUs each, the same arithmetic gives 2.8 Φ for the flat mesh and Φ for the hybrid one. Hybrid sharding has a second advantage: no forward or backward pass waits for parameters from another machine.
#
# The cost is memory: a rank holds 16 bytes per parameter divided by the number of ranks in a *row*. With two machines of eight GPUs each, that is 16 / 8, not 16 / 16.
#
# ## 7 · Large models, planned
#
# A rank runs the same program whether it is one of 4 or one of 1,024. The planner ([[where_memory_goes]]) runs PyTorch's own `fully_shard` on a fake process group, so it can count bytes for any number of ranks (`python -m helpers plan --model llama-2-70b --gpus 8 --engine pytorch ...`). Planning all 80 layers of Llama-2-70B takes a while, but a plan is the same on every machine. So this lab's plans were made beforehand: `planned` looks them up, and makes any that are missing.
#
# **Predict.** Llama-2-70B has 69 billion parameters. BF16 with AdamW in BF16 takes 8 bytes per parameter ([[number_formats]]). Each rank has one sequence of 2,048 tokens, and every layer is checkpointed. What is the allocated peak on each of 8 ranks, in GiB? (An "80 GB" GPU has 79.1 GiB.)

# %% name="guess_70b"
my_guess = None  # GiB per rank
### BEGIN GUESS
my_guess = 69e9 * 8 / 8 / 2**30 + 6  # the static part, plus something for activations and gathered layers
### END GUESS
seventy_guess = Prediction("Peak of 70B on 8 ranks", my_guess, "GiB")

# %% name="seventy"
recipe = {"precision": "bf16", "optimizer_impl": "fused", "checkpointing": "every", "seq": 2048}
RANKS = (8, 64, 1024)
plans = dict(
    zip(RANKS, planned([Recipe("llama-2-70b", parallel=ParallelConfig(shard=n), **recipe) for n in RANKS]), strict=True)
)
seventy = {n: plan.peak_allocated_bytes for n, plan in plans.items()}
lines = [["GiB per rank", *(f"{n:,} ranks" for n in RANKS)]]
for category in plans[8].at_peak:
    held = [plan.at_peak[category] / GiB for plan in plans.values()]
    if max(held) > 0.005:
        lines.append([category, *(f"{size:.2f}" for size in held)])
lines.append(["PEAK", *(f"{size / GiB:.2f}" for size in seventy.values())])
lines.append(["reserved, up to", *(f"{plan.reserved_bytes[1] / GiB:.2f}" for plan in plans.values())])
show_table(lines)
seventy_guess.reveal(seventy[8] / GiB, "planned")
said, subject = "70B trains on 8 x 80 GB (79.1 GiB)", "BF16, AdamW, 2,048 tokens, planned"
claims.figure(said, subject, plans[8].reserved_bytes[1] / GiB, "GiB reserved, up to")
fewer, subject = seventy[8] / seventy[1024], "70B, from 8 to 1,024 ranks, planned"
claims.record("C14", "about N times less memory", subject, fewer, "times less", 100, 140)

# %% [markdown] name="seventy_explained"
# In pure BF16 the allocated tensors fit, at the cost of lost small updates ([[number_formats]]). But the allocator reserves more than it allocates ([[memory_profiling]]), and reserved memory decides whether a run survives. The upper estimate of reserved memory is above 79.1 GiB, so this run is not certain to fit. A shorter sequence would not help, because activations take only about 0.1 GiB of this peak. More ranks help: 16 ranks halve the static 64 GiB. CPU offload also helps, and expandable segments ([[memory_profiling]]) narrow the gap between allocated and reserved.
#
# Beyond some number of ranks, 1/N stops helping. On 1,024 ranks the static part is about half a GiB. The rest is not sharded. In this plan, it consists of the checkpointed inputs of the layers (32 MiB each, counted as activations), the embedding and the output layer, the output layer's gradient, the gathered layer and its gradients, the next layer, which is already being gathered, and a flat copy of the previous layer's gradients, which is being reduced. More ranks do not reduce these. Tensor or sequence parallelism (labs [[#tensor_parallel]] and [[#tensor_parallel_in_practice]]) does.
#
# ### The program of one rank
#
# A plan starts from a recipe. You can also run your own program without its GPUs: inside `virtual_gpu` ([[where_memory_goes]]) this process becomes **one rank of many**. PyTorch's fake process group replaces the other ranks, so `fully_shard` shards, gathers and reduces exactly as on rank 0 of four. Operations compute nothing, and the run counts every collective.
#
# The program below trains Llama-3.1-8B in BF16 on four RTX 4090s in one machine. These GPUs have no NVLink, so messages travel over PCIe 4.0, at no more than 25 GB/s per GPU in each direction. Each GPU does at most 165 TFLOP/s in BF16. Each rank has one sequence of 2,048 tokens, and every layer is checkpointed, so a step takes about 8 FLOPs per parameter per token (2 for each of two forward passes, 4 for the backward pass).
#
# **Predict.** Add up the time of all messages in a step, as if none overlapped with computation. How many times the computing time is that?

# %% name="guess_program"
my_guess = None  # times the computing time
### BEGIN GUESS
my_guess = (3 * 16e9 * 3 / 4 / 25e9) / (8 * 8e9 * 2048 / 165e12)  # 3 Φ x (N - 1)/N, over FLOPs
### END GUESS
program_guess = Prediction("8B on four 4090s: messages / computing", my_guess, "times")


# %% name="program"
def train_8b(steps=2):
    """Shard and train Llama-3.1-8B, as each rank of a torchrun program would."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32}
    with torch.device("meta"):
        config = LlamaConfig(**sizes, intermediate_size=14336, vocab_size=128256, use_cache=False)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cuda")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(config.vocab_size, (1, 2048), device="cuda")
    for _ in range(steps):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def on_four_4090s():
    """Run the program as rank 0 of four; return the record of the run."""
    with virtual_gpu("rtx-4090-24gb", gpus=4, world=World(rank=0, size=4, node=4)) as run:  # 4 GPUs per node
        train_8b()
    return run


rank_0 = beside_real_gpu(on_four_4090s)
report = rank_0.to_json()
lines = [("collective", "calls", "GiB per step", "seconds")]
for row in report["collectives"]:
    lines.append((row["name"], f"{row['calls']}", f"{row['bytes'] / GiB:.1f}", f"{row['seconds']:.2f}"))
show_table(lines)
messages = sum(row["seconds"] for row in report["collectives"])
_, computing, _ = report["seconds"]  # low, expected, high
program_guess.reveal(messages / computing, how="forecast")
print(f"computing: {computing:.2f} s. Peak: {rank_0.peak_allocated / GiB:.1f} GiB allocated,", end=" ")
print(f"{rank_0.reserved.low / GiB:.1f} to {rank_0.reserved.high / GiB:.1f} reserved, of 23.1 GiB")

# %% [markdown] name="program_explained"
# The forward pass gathers 33 units: the 32 blocks, and the root, which holds the embedding and the output layer. The root stays gathered until its backward pass, so the backward pass gathers only the 32 blocks. All 33 units reduce their gradients.
#
# By this forecast the messages take longer than the computation, so even with perfect overlap the links set the pace. The remedy is more tokens per gathered layer ([[sharding]]), which means a larger micro-batch. Accumulation saves only reductions (section 3). But memory is nearly full: the upper estimate of reserved memory is above 23.1 GiB, so this run is not certain to fit.
#
# ## 8 · Saved on 4 ranks, resumed on 2
#
# No rank holds the whole model. To export it, gather it on one rank (`StateDictOptions(full_state_dict=True, cpu_offload=True)`), which takes host memory and time. For resuming, each rank writes its own part with `torch.distributed.checkpoint`. When loading, each rank reads what it needs, even if the number of ranks has changed.
#
# `dcp.load` fills existing tensors. So `state_of` first collects the state, which also creates the optimizer's moments, and `dcp.load` then fills it. The control loads the weights but not the moments. (A real run also saves the scheduler, the position in the data and the random state.)
#
# While `dcp.save` writes, training waits. `dcp.async_save` returns early and writes in the background while training continues. Meanwhile the ranks exchange messages to agree on what each of them writes. So pass a separate process group, over gloo: in the training group these messages would mix with those of training.


# %% name="checkpoint"
def state_of(model, optimizer):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def run_on(folder, steps, save_after=None, load=()):
    """Train; save after `save_after` steps, both ways, or `load` parts of a state first. Return the joint losses."""
    model, (x, y), group = start_whole(), rank_rows(), dist.new_group(backend="gloo")
    optimizer, losses, being_written = torch.optim.AdamW(model.parameters(), lr=1e-3), [], None
    if load:
        saved = state_of(model, optimizer)
        dcp.load({part: saved[part] for part in load}, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    for i in range(1, steps + 1):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(joint(loss))
        if i == save_after:
            state = state_of(model, optimizer)
            dcp.save(state, checkpoint_id=f"{folder}/waited")
            being_written = dcp.async_save(state, checkpoint_id=f"{folder}/async", process_group=group)
            early = not being_written.done()
    if being_written:
        being_written.result()  # before the ranks exit or save again
        return losses, early
    return losses


# %% [markdown] name="guess_checkpoint_text"
# After step 3 we save with both functions and continue training at once. Five more steps change the weights while the second checkpoint is being written.
#
# **Predict.** What is the difference, in percent, between the loss of step 4 and the first loss after resuming from that second checkpoint?

# %% name="guess_checkpoint"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 0  # it writes a copy that it made before it returned
### END GUESS
checkpoint_guess = Prediction("Resumed from the asynchronous checkpoint", my_guess, "% away", difference=True)

# %% name="resume"
with tempfile.TemporaryDirectory() as folder:
    uninterrupted, early = run(run_on, 4, folder, 8, 3)[0]
    files = sorted(path.name for path in Path(folder, "waited").iterdir())
    both = ("model", "optimizer")
    after = run(run_on, 2, f"{folder}/waited", 5, None, both)[0]
    late = run(run_on, 2, f"{folder}/async", 5, None, both)[0]
    forgetful = run(run_on, 2, f"{folder}/waited", 5, None, ("model",))[0]
print("files:", ", ".join(files))
print("async_save returned", "before" if early else "after", "its files were complete")
lines = {"4 ranks, steps 4 to 8": uninterrupted[3:], "2 ranks, resumed": after}
lines |= {"from the asynchronous one": late, "without the moments": forgetful}
for name, losses in lines.items():
    print(f"{name:26} {' '.join(f'{loss:.7f}' for loss in losses)}")
checkpoint_guess.reveal(round(100 * abs(late[0] - uninterrupted[3]) / uninterrupted[3], 3))
for way, losses in (("saved", after), ("saved asynchronously", late)):
    furthest = max(abs(a - b) / a for a, b in zip(uninterrupted[3:], losses, strict=True))
    said = "resumed on another number of ranks: same losses"
    claims.record("T23", said, f"{way}, 4 to 2 ranks, 5 steps", furthest, "relative", 0, 1e-5)

# %% [markdown] name="checkpoint_explained"
# Both checkpoints hold the state of step 3, and both load on 2 ranks: `async_save` first copies the state to the host's memory (*staging*), and writes that copy. The control starts at the same loss, because the weights are right, and then diverges without the moments. `async_save` costs host memory for the copy, and you must wait for one save to finish before you start the next.
#
# ## Appendix · More than one machine
#
# The programs do not change. You start one `torchrun` on every machine (*node*). The launchers meet at one address and number their ranks consecutively: `RANK` counts across all nodes, `LOCAL_RANK` within one node. For two machines with eight GPUs each:
#
# ```bash
# torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 --master-addr=FIRST --master-port=29500 train.py  # on the first
# torchrun --nnodes=2 --node-rank=1 --nproc-per-node=8 --master-addr=FIRST --master-port=29500 train.py  # on the second
# ```
#
# `FIRST` is the first machine's address, and both machines have the same code. The machines must be able to reach each other on **all** ports: the launchers use 29500, but NCCL and gloo open others. If NCCL picks the wrong network interface, set `NCCL_SOCKET_IFNAME` (gloo: `GLOO_SOCKET_IFNAME`). On a cluster a scheduler starts the launchers for you. For Slurm:
#
# ```bash
# #!/bin/bash
# #SBATCH --nodes=2
# #SBATCH --ntasks-per-node=1        # one torchrun per node; it starts the ranks
# #SBATCH --gpus-per-node=8
# #SBATCH --cpus-per-task=64
#
# export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"   # since Slurm 22.05 srun does not inherit it
# export OMP_NUM_THREADS=8                           # torchrun would set 1
# head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 \
#      --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$SLURM_JOB_ID" train.py
# ```
#
# With several nodes, shard inside a node and replicate between nodes if the GPUs of one node can hold the model (section 6). For two nodes of eight GPUs each, the mesh is `init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))`.

# %% [markdown] name="summary_text"
# ## 9 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Always pass the mesh. Smaller units mean a lower peak and more messages. With a two-dimensional mesh, parameters and their gathers stay within a row.
# - Build on meta, then load parameter by parameter or initialize layer by layer. Compare the shards of two ranks once.
# - Turning sync off saves reductions and costs the memory of all gradients. Keeping parameters gathered as well sends 2 Φ per step.
# - Clip by the norm of the whole gradient; all parameters must be on one mesh. Build the optimizer after sharding, or nothing trains.
# - Reserved memory, not allocated memory, decides whether a run fits. More ranks do not reduce tensors that are not sharded.
# - Sharded checkpoints can be loaded on any number of ranks, whether saved synchronously or not.
#
# **What to reach for when.** If the parameters do not fit on one GPU, use `fully_shard`, with each block a unit. If links between machines are slow, use a two-dimensional mesh. If one layer does not fit, see [[tensor_parallel]]; if the sequence does not, [[context_parallel]]. If you do not have enough GPUs, offload, which is slow.
#
# **Sources.** Zhao et al. 2023, *PyTorch FSDP*; PyTorch documentation, `fully_shard`, `torch.distributed.checkpoint`, `torchrun`; torchtitan, `parallelize.py`.
