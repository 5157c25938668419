# %% [markdown] name="title"
# # Sharding: ZeRO, FSDP, DeepSpeed
#
# **N ranks need not keep N copies of everything. Each rank keeps one part of the optimizer state, the gradients and the parameters, and gets the rest only while it is needed.**
#
# | | |
# |---|---|
# | After this you can | write ZeRO's partition, reduction, gathering and hooks; shard a model with `fully_shard` over an explicit mesh and choose the units; predict bytes per rank and bytes sent, and measure both; calculate when the messages hide behind computing; build, initialize and load a model that fits on no single rank; write a training step that accumulates and clips across ranks; save on 4 ranks and resume on 2; plan 70B on 8 GPUs |
# | Time | 175 to 250 minutes; good places to stop are after sections 2, 4 and 8 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; with one GPU per rank the cells choose NCCL, which has not been tried yet. DeepSpeed is optional |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#mixed_precision]] (BF16, master weights), [[#gradient_accumulation]], [[#activation_checkpointing]] and [[#data_parallel]] |
# | Syllabus | T21, T22, T23, T35, C14 |

# %% name="setup" setup=true
import importlib.util
import itertools
import json
import os
import subprocess
import sys
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
    deepspeed_config,
    device_name,
    explore,
    hint,
    human_bytes,
    pick_device,
    planned,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    text_table,
)
from helpers.core.progress_line import progress_line
from helpers.exercises.sharding import drawings
from helpers.exercises.sharding.blocks import Blocks, MLPBlock, rank_rows
from helpers.exercises.sharding.diary import Diary
from helpers.exercises.sharding.noted_graphs import NotedGraphs
from helpers.exercises.sharding.trained import joint, train, worst
from helpers.planner.catalog.clusters import CLUSTERS

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm

device = pick_device()
everywhere = ranks_device(4)  # the tables compare 1, 2 and 4 ranks, so all of them run where 4 can
claims = Claims(device=everywhere)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if everywhere.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="idea_text"
# ## 1 · What exists N times
#
# DDP keeps a full copy of everything on every rank. ZeRO keeps one copy in total: each rank stores a part, and gets other parts from the ranks that have them, uses them and frees them again.
#
# In FP32 with Adam a parameter costs 16 bytes ([[where_memory_goes]]): 4 for itself, 4 for its gradient and 8 for the optimizer. Under DDP every rank pays all 16. ZeRO's **stages** shard more and more of them:

# %% name="stages_drawn"
show(
    drawings.shards_figure(),
    "Four ranks, four panels. DDP: every rank has everything. ZeRO-1: each rank has a quarter of the optimizer state. ZeRO-2: also of the gradients. ZeRO-3: also of the parameters.",
)

# %% [markdown] name="law_text"
# | stage | sharded | bytes per parameter and rank, FP32 (this lab) | BF16 with master weights (the paper) |
# |---|---|---|---|
# | 0 (DDP) | nothing | 16 | 16 |
# | 1 | optimizer state | 8 + 8/N | 4 + 12/N |
# | 2 | and gradients | 4 + 12/N | 2 + 14/N |
# | 3 (FSDP) | and parameters | 16/N | 16/N |
#
# The paper counts in BF16 with FP32 master weights ([[mixed_precision]]): 2 + 2 bytes for parameter and gradient, and 12 in the optimizer for the master weight and the moments. The sum is 16 as well, but it is divided differently.

# %% [markdown] name="partition_text"
# ## 2 · ZeRO, by hand
#
# You will write ZeRO's three operations and the hooks that call them; the training loop around them is given.
#
# ### Partition
#
# Parameters come in many shapes, and few of them divide evenly by the number of ranks. So all parameters of a **unit** (here: a block) are laid end to end in one *flat* vector, which is cut into N slices of equal size. Each rank is responsible for one slice, its **shard**.

# %% name="flat_drawn"
show(
    drawings.flat_vector_figure({"up.weight (3, 4)": 12, "up.bias (4,)": 4, "down.weight (5,)": 5}, ranks=4),
    "Parameters of 12, 4 and 5 numbers end to end, then 3 numbers of padding; below, four shards of 6 numbers each. A shard may end in the middle of a parameter.",
)

# %% [markdown] name="partition_contract"
# Parameters become *views* of the flat vector: a number written into the vector is at once the parameter's number, without a copy.
#
# **Contract.** `partition(parameters, rank, world_size)` returns `flat` and `shard`.
#
# - `parameters` is a list of `nn.Parameter`s of one dtype on one device.
# - `flat` has one dimension, the parameters' dtype and device, and requires no gradient. It holds their numbers in the order of the list, and then as few zeros as make its length a multiple of `world_size`.
# - Each parameter keeps its identity, shape and numbers, but its memory is now that of `flat` (assign to `p.data`).
# - `shard` is the `rank`-th of `world_size` equal slices, and a view of `flat`.


# %% name="partition" answer=true reveal=true
def partition(parameters, rank, world_size):
    ### BEGIN SOLUTION
    size = -(-sum(p.numel() for p in parameters) // world_size)  # of a shard, rounded up
    flat = parameters[0].data.new_zeros(world_size * size)
    start = 0
    for p in parameters:
        place = flat[start : start + p.numel()].view_as(p)
        place.copy_(p.data)
        p.data = place
        start += p.numel()
    return flat, flat[rank * size : (rank + 1) * size]
    ### END SOLUTION


# %% name="partition_check"
partition = check("sharding.partition", partition)

# %% name="partition_hint"
hint("sharding.partition")

# %% [markdown] name="reduce_contract"
# ### Reduce
#
# The optimizer updates only the shard, so a rank needs only its slice of the joint gradient. `dist.reduce_scatter_tensor(output, input)` cuts the input of every rank into N equal parts, adds the parts of all ranks, and leaves the r-th sum in `output` on rank r.
#
# **Contract.** `reduce_gradients(parameters, shard)` is called on every rank after a backward pass.
#
# - `shard` is an `nn.Parameter`. Afterwards `shard.grad` is the **mean** over all ranks of the gradients of its slice, with zeros for padding.
# - A parameter whose `.grad` is None on this rank counts as zeros.
# - If `shard.grad` exists already, the mean is added to it.
# - Afterwards every `p.grad` is None, and `shard.grad` keeps only its own memory alive. The weights, including those of `shard`, do not change.
# - The function sends one reduce-scatter of the padded vector and nothing else.


# %% name="reduce" answer=true reveal=true
def reduce_gradients(parameters, shard):
    ### BEGIN SOLUTION
    n, start = dist.get_world_size(), 0
    whole = shard.data.new_zeros(n * shard.numel())
    for p in parameters:
        if p.grad is not None:
            whole[start : start + p.numel()] = p.grad.flatten()
            p.grad = None
        start += p.numel()
    mine = torch.empty_like(shard.data)
    dist.reduce_scatter_tensor(mine, whole)
    mine /= n  # reduce_scatter adds up; the gradient of the joint batch is the mean
    shard.grad = mine if shard.grad is None else shard.grad + mine
    ### END SOLUTION


# %% name="reduce_check"
reduce_gradients = check("sharding.reduce", reduce_gradients)

# %% name="reduce_hint"
hint("sharding.reduce")

# %% [markdown] name="gather_contract"
# ### Gather
#
# After the optimizer's step each rank has new numbers in its own slice only. `dist.all_gather_into_tensor(output, input)` writes the inputs of all ranks, one after the other, into `output` on every rank. (These are the *tensor collectives*. `all_gather` and `reduce_scatter` take lists instead, for which NCCL needs one more flat copy. PyTorch 2.13 calls the two `all_gather_single` and `reduce_scatter_single`; the older names work in every version.)
#
# **Contract.** `gather_parameters(flat, shard)` is called on every rank.
#
# - Afterwards `flat` holds the shards of all ranks, in order, in the memory that it had before. The function returns nothing.
# - `shard` is either a view of `flat` or has its own memory. Its numbers and its gradient do not change, and `flat` requires no gradient.
# - The function sends one all-gather of the whole vector and nothing else.


# %% name="gather" answer=true reveal=true
def gather_parameters(flat, shard):
    ### BEGIN SOLUTION
    dist.all_gather_into_tensor(flat, shard.detach())
    ### END SOLUTION


# %% name="gather_check"
gather_parameters = check("sharding.gather", gather_parameters)

# %% name="gather_hint"
hint("sharding.gather")

# %% [markdown] name="zero_text"
# ### Hooks
#
# The three functions become ZeRO's stages by the time at which they are called:
#
# - **Stage 1**: after the backward pass, reduce all blocks; step on the shards; gather.
# - **Stage 2**: the same, but each block is reduced *as soon as its gradients are ready*.
# - **Stage 3**: parameters are freed, too. Each block's vector is complete while the block computes, forward or backward, and has no bytes at other times.
#
# The model's code does not change, so the calls go into **hooks**: functions that PyTorch calls at certain points.
#
# | registered by | is called |
# |---|---|
# | `module.register_forward_pre_hook` | before the module's `forward` |
# | `module.register_forward_hook` | after it |
# | `module.register_full_backward_pre_hook` | when the gradient of the module's output is known |
# | `module.register_full_backward_hook` | when the gradients of its inputs are known; if no input requires one, right after the hook above |
# | `parameter.register_post_accumulate_grad_hook` | after `parameter.grad` was written |
#
# Autograd keeps the weights that it needs for the backward pass, so deleting a tensor would not free them. Resizing its memory does: `flat.untyped_storage().resize_(0)` takes the bytes away from the vector and from all of its views, including those that autograd keeps. Given as many bytes as before (`flat.nbytes`), and filled, all of them are usable again.
#
# **Contract.** `add_hooks(block, flat, shard, stage)` is called once for each block, on every rank, before the first forward pass. `flat` is the vector that `partition` made of `block.parameters()`, and all parameters get a gradient in every backward pass. At stage 2 `shard` is a view of `flat`; at stage 3 it has its own memory.
#
# - At stages 2 and 3 the block's gradients are reduced as soon as the last of them is there, before the backward pass of the previous block begins. `shard.grad` adds up over backward passes.
# - At stage 3 `flat` has no bytes when the function returns, and none after each forward and each backward pass of the block. At stage 2 nothing is freed.
# - Before the block computes, forward or backward, `flat` holds the numbers that all ranks' shards have at that time. The parameters stay views of `flat`.
# - The input of a block may or may not require a gradient. Under `torch.no_grad()` a forward pass gathers and frees in the same way.
# - A block sends one reduction per backward pass; at stage 3 also one gather before each forward and each backward pass. It sends nothing else.


# %% name="hooks" answer=true reveal=true
def add_hooks(block, flat, shard, stage):
    ### BEGIN SOLUTION
    parameters, storage = list(block.parameters()), flat.untyped_storage()

    def gather(*_):
        storage.resize_(flat.nbytes)
        gather_parameters(flat, shard)

    def free(*_):
        storage.resize_(0)

    def reduce_if_last(_):
        if all(p.grad is not None for p in parameters):
            reduce_gradients(parameters, shard)
            if stage == 3:
                free()

    for p in parameters:
        p.register_post_accumulate_grad_hook(reduce_if_last)
    if stage == 3:
        block.register_forward_pre_hook(gather)
        block.register_forward_hook(free)
        block.register_full_backward_pre_hook(gather)
        free()
    ### END SOLUTION


# %% name="hooks_check"
add_hooks = check("sharding.hooks", add_hooks)

# %% name="hooks_hint"
hint("sharding.hooks")

# %% [markdown] name="loop_text"
# ### The loop around them
#
# A training loop on top of your four functions:


# %% name="unit"
class Unit:
    """A block's parameters: one flat vector, of which this rank keeps a shard."""

    def __init__(self, block, stage):
        self.parameters = list(block.parameters())
        self.flat, mine = partition(self.parameters, dist.get_rank(), dist.get_world_size())
        self.shard = nn.Parameter(mine.clone() if stage == 3 else mine)  # a view shows a step in flat at once
        if stage >= 2:
            add_hooks(block, self.flat, self.shard, stage)


# %% name="zero"
def train_by_hand(stage):
    """Train a fresh model at this stage, 0 for DDP; each rank has its rows of the joint batch."""
    model, (x, y) = Blocks().to(rank_device()), rank_rows()
    if stage == 0:
        units, wrapped = [], DistributedDataParallel(model, gradient_as_bucket_view=True)
        watch, owned = model, model.parameters()
    else:
        units, wrapped = [Unit(block, stage) for block in model.blocks], model
        owned = [unit.shard for unit in units]
        watch = nn.ModuleList([model, nn.ParameterList(owned)])  # what the meter should recognize
    optimizer = torch.optim.AdamW(owned, lr=1e-3)

    def step():
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        for unit in units if stage == 1 else ():
            reduce_gradients(unit.parameters, unit.shard)
        optimizer.step()
        optimizer.zero_grad()
        for unit in units if stage < 3 else ():
            gather_parameters(unit.flat, unit.shard)
        return loss

    return train(step, watch, optimizer)


# %% [markdown] name="stages_text"
# First the numbers: at every stage, on 2 and 4 ranks, the loss must be that of one process on the joint batch. Then the bytes. (On one rank all stages are the same. DDP keeps its gradients as views of its buckets; otherwise it would hold them twice: [[data_parallel]].)


# %% name="stages"
def run(fn, ranks, *args):
    """Run `fn` on so many ranks, on the device of all the others; it measures itself."""
    return run_ranks(fn, ranks, *args, device=everywhere, measure=False).results


def run_cases(fn, ranks, cases):
    """Run `fn(case)` for each case, one after the other, on the same ranks; of each, return the worst rank's result."""
    progress_line(f"{ranks} ranks: {', '.join(map(str, cases))}")
    results = run(lambda: [fn(case) for case in cases], ranks)
    progress_line("")
    return dict(zip(cases, map(worst, zip(*results, strict=True)), strict=True))


phi = sum(p.numel() for p in Blocks().parameters())  # the papers' name for the number of parameters
formula = {0: lambda n: 16, 1: lambda n: 8 + 8 / n, 2: lambda n: 4 + 12 / n, 3: lambda n: 16 / n}
runs = {n: run_cases(train_by_hand, n, [0, 1, 2, 3] if n > 1 else [0]) for n in (1, 2, 4)}
print(f"{phi:,} parameters; loss after 2 steps on one rank: {runs[1][0].losses[-1]:.6f}\n")
table = [("", "ranks", "loss", "bytes per parameter", "formula", "peak")]
for n, by_stage in runs.items():
    for stage, got in by_stage.items():
        name, held = f"ZeRO-{stage}" if stage else "DDP", got.static / phi
        row = (f"{got.losses[-1]:.6f}", f"{held:.2f}", f"{formula[stage](n):.2f}", f"{human_bytes(got.peak)}")
        table.append((name, str(n), *row))
        if n == 4 and stage:
            right, unit = formula[stage](n), 4 / 8  # bytes per parameter of one block's gradients, unsharded
            said = f"ZeRO-{stage}: {right:.2f} bytes per parameter, or up to a block's gradients more"
            claims.record("C14", said, "8 blocks, by hand, 4 ranks", held, "bytes", right * 0.99, right + unit)
print(text_table(table))

# %% name="stages_figure"
held = {stage: {n: got[stage].static / phi for n, got in runs.items() if stage in got} for stage in formula}
show(
    drawings.law_figure(held),
    "DDP stays at 16 bytes per parameter; on 4 ranks ZeRO-1, 2 and 3 are at about 10, 7 and 4.",
)

# %% [markdown] name="stages_explained"
# The losses are the same everywhere. The formula holds, apart from one block's gradients. Under DDP one gradient has not yet been copied into its bucket. At stages 2 and 3 a unit's gradients are complete until the last of them is ready: 4 bytes for one parameter in 8, or half a byte per parameter. Smaller units add less.
#
# The peak falls by less than the static part. It also contains the activations, the unit that is being reduced (its gradients and the flat copy of them), and at stage 3 the gathered block.
#
# ### What does sharding cost in messages?
#
# Per step, DDP's all-reduce sends 2 Φ numbers per rank. (Φ is the number of parameters; multiply by (N − 1)/N for N ranks.)
#
# **Predict.** How many Φ does stage 3 send per step?

# %% name="guess_volume"
my_guess = None  # stage 3, in units of the parameters
### BEGIN GUESS
my_guess = 3  # gathered forward, gathered backward, reduced
### END GUESS
volume3_guess = Prediction("ZeRO-3 sends", my_guess, "x parameters")

# %% name="volume"
FP32 = 4  # bytes
said = {stage: got.sent for stage, got in runs[4].items()}
sent = {stage: calls.volume / (FP32 * phi) for stage, calls in said.items()}

volume3_guess.reveal(sent[3])
for stage, volume in sent.items():
    names = ", ".join(sorted({call.name for call in said[stage].calls}))
    print(f"stage {stage}: {volume:.2f} x parameters in {len(said[stage].calls)} calls ({names})")
most, subject = max(sent[s] for s in (0, 1, 2)), "8 blocks, by hand, 4 ranks"
claims.record("C14", "DDP, ZeRO-1 and ZeRO-2 send 2 Φ", f"{subject}, the most", most, "x parameters", 1.99, 2.01)
claims.record("C14", "ZeRO-3 sends 3 Φ", subject, sent[3], "x parameters", 2.99, 3.01)
swapped = "all-gather and reduce-scatter in place of all-reduce"
claims.record("C14", swapped, f"ZeRO-3, {subject}", said[3].count("all_reduce"), "all-reduces", 0, 0)

# %% [markdown] name="volume_explained"
# Stages 1 and 2 send the same bytes as DDP and hold less, because an all-reduce is a reduce-scatter followed by an all-gather, and they do these two at different times. (They are not quite free: the all-gather comes after the step, when there is no computing left to hide it.)
#
# Stage 3 sends half as much again: each block is gathered in the forward pass, gathered again in the backward pass, and reduced. It does so for every micro-batch.
#
# ### When do the messages hide?
#
# Stage 3 must also wait for a gather before each block, unless the next block's parameters travel while the current block computes. Then the gather hides if it takes no longer than computing. A forward pass needs 2 FLOPs per parameter and token, and a gather brings 2 bytes per parameter in BF16. Both are proportional to the number of parameters, so the size of the block cancels.
#
# **Predict.** H100s compute at 40 % of their BF16 peak, 396 TFLOP/s, and each has 50 GB/s of InfiniBand to other machines. From how many tokens per GPU and micro-batch on does a forward pass hide its gathers?

# %% name="guess_hidden"
my_guess = None  # tokens
### BEGIN GUESS
my_guess = 2000
### END GUESS
hidden_guess = Prediction("Tokens per GPU that hide a gather between machines", my_guess, "tokens")


# %% name="hidden"
def tokens_that_hide(bytes_per_parameter, flops_per_parameter, rate, link):
    """Return the tokens from which computing takes as long as sending: FLOPs x tokens / rate = bytes / link."""
    return bytes_per_parameter / link * rate / flops_per_parameter


table = [
    ("tokens per GPU from which it hides", "GB/s", "gather, forward", "gather + reduce, backward", "DDP's all-reduce")
]
for name in ("dgx-a100", "dgx-h100"):
    cluster = CLUSTERS[name]
    rate = 0.4 * cluster.gpu.peaks["bfloat16"]
    for where, link in (("inside a machine", cluster.inside), ("between machines", cluster.outside)):
        forward = tokens_that_hide(2, 2, rate, link)
        backward = tokens_that_hide(2 + 4, 4, rate, link)  # parameters in BF16, gradients in FP32
        all_reduce = tokens_that_hide(2 * 4, 4, rate, link)  # 2 x gradients in FP32, behind the backward pass
        figures = (f"{tokens:,.0f}" for tokens in (forward, backward, all_reduce))
        table.append((f"{cluster.gpu.name}, {where}", f"{link / 1e9:.0f}", *figures))
print(text_table(table))
hidden_guess.reveal(tokens_that_hide(2, 2, rate, link), "calculated")

# %% [markdown] name="hidden_explained"
# The factor (N − 1)/N is taken as 1, as for many ranks. Inside a machine, one sequence of 2,048 tokens is enough; between machines it takes several. Two things help: more tokens per GPU, which give each message more computing to hide behind, and fewer ranks that share a copy, so that messages stay inside a machine (section 8). Gradients in BF16 would halve the bytes of the reductions.

# %% [markdown] name="fully_shard_text"
# ## 3 · `fully_shard`
#
# `fully_shard(module, mesh=mesh)` does in place what your functions and hooks did: the module's parameters become one unit that is gathered together and freed together. Each parameter is now a `DTensor`, of which this rank has a part (`p.to_local()`), split along the first dimension.
#
# - **Units.** Apply it to each block: then only the parameters of one unit need to be complete at a time.
# - **The root.** Apply it to the whole model as well, last. The *root* takes the parameters outside the blocks and coordinates the units. Without it each block is its own root, and a root keeps its parameters from the forward to the backward pass.
# - **The mesh** says which ranks share the shards, and on which device. Always pass one. Without it, `fully_shard` takes all ranks and the machine's accelerator, even where the ranks are on the CPU.
#
# ### Your turn: shard it
#
# **Contract.** `make_sharded(model, mesh, **options)` is called on every rank, and returns the model to train with.
#
# - `mesh` is the `DeviceMesh` to shard over: all ranks in one dimension, or two dimensions as in section 8. `options` are for every call of `fully_shard`.
# - `model` is the same FP32 model on every rank, unsharded. `model.blocks` is an `nn.ModuleList` of equal blocks; the model may also have parameters outside them.
# - `F.mse_loss(result(x), y).backward()` followed by a step of `torch.optim.AdamW(result.parameters())` must train in FP32 as DDP would: each rank has its part of the rows, and gradients are averaged.
# - Each rank holds 1/N of the parameters, gradients and optimizer state, and no copy of anything.
# - The **peak** of a training step on a rank is at most that static part plus six times the parameters of a block.
#
# The check takes about ten seconds.


# %% name="sharded" answer=true reveal=true
def make_sharded(model, mesh, **options):
    ### BEGIN SOLUTION
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # what is outside the blocks, and the root that coordinates them
    ### END SOLUTION


# %% name="sharded_check"
make_sharded = check("sharding.sharded", make_sharded)

# %% name="sharded_hint"
hint("sharding.sharded")

# %% [markdown] name="units_text"
# Now the same training with your `make_sharded`, and with other units: the whole model as one unit, every two blocks as one, and each block as one.
#
# **Predict.** On 4 ranks, how many MiB lower is the peak when each of the 8 blocks is a unit than when the whole model is one? A block's parameters take 2.0 MiB.

# %% name="guess_units"
my_guess = None  # MiB that the peak falls from "whole model" to "each block"
### BEGIN GUESS
my_guess = 7 * 526_080 * 4 / 2**20  # seven blocks fewer are gathered at a time
### END GUESS
units_guess = Prediction("Whole model as a unit minus each block a unit, 4 ranks", my_guess, "MiB")


# %% name="units"
def all_ranks():
    return init_device_mesh(rank_device().type, (dist.get_world_size(),))


def one_unit(model, mesh):
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def pairs(model, mesh):
    for i in range(0, len(model.blocks), 2):
        fully_shard([model.blocks[i], model.blocks[i + 1]], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def kept_whole(model, mesh):
    return make_sharded(model, mesh, reshard_after_forward=False)


def train_sharded(make):
    model, (x, y) = make(Blocks().to(rank_device()), all_ranks()), rank_rows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        loss = F.mse_loss(model(x).float(), y)  # with a policy of BF16, so is the output
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train(step, model, optimizer)


fsdp = run_cases(train_sharded, 4, [one_unit, pairs, make_sharded, kept_whole])
for make, got in fsdp.items():
    print(f"{make.__name__:12} loss {got.losses[-1]:.6f}, {got.static / phi:.2f} bytes per parameter, sent {got.sent}")
    print(f"{'':12} peak {human_bytes(got.peak)}")
units_guess.reveal((fsdp[one_unit].peak - fsdp[make_sharded].peak) / MiB)

# %% name="fsdp_claims"
got, subject = fsdp[make_sharded], "8 blocks, fully_shard, 4 ranks"
fewer = runs[4][0].static / got.static
claims.record("C14", "FSDP: 1/N of parameters, gradients, state", subject, fewer, "times less", 3.9, 4.1)
claims.record("C14", "FSDP sends 3 Φ", subject, got.sent.volume / (FP32 * phi), "x parameters", 2.99, 3.01)
lower = runs[4][0].peak / got.peak
claims.record("C14", "about N times less memory", "8 blocks, the peak, 4 ranks", lower, "times less", 3.5, 4.5)
lower = fsdp[one_unit].peak / got.peak
claims.record("T21", "smaller units, lower peak", "4 ranks, whole model / each block", lower, "times", 1.2, 10)

# %% [markdown] name="units_explained"
# The losses, the static bytes and the bytes sent are the same as by hand, in as many messages: three per block. "About N times less" is true of the static part but not of the peak: gathered units and flat copies of gradients are not divided by N. (Messages travel while the ranks compute, so the peak differs by up to a MiB from rank to rank and from run to run. The tables show the rank with the highest peak.)
#
# Smaller units save more than the seven blocks' parameters. At the end of a unit's backward pass all its gradients are there, and next to them the buffer in which they are packed for the reduce-scatter. So a unit costs two to three times its size.
#
# The last line is `reshard_after_forward=False`: parameters stay gathered from the forward to the backward pass. That sends 2 Φ instead of 3 Φ, but at the peak all parameters are complete. It pays if links are slow and parameters are small compared with the rest. (It sends as much as ZeRO-2. Between steps the parameters are still sharded.)
#
# ### Policies: mixed precision, offload
#
# `MixedPrecisionPolicy` gathers and computes in 16 bits, while shards and optimizer stay FP32. `CPUOffloadPolicy` keeps the shards in the host's memory and moves a unit to the GPU when it is needed; the table shows what is left where the rank computes. Pinned host memory lets these copies overlap with computing, so pin it where there is a GPU. (On a CPU the policy runs but moves nothing, because host and device are the same.)
#
# You will also meet the older wrapper, `FullyShardedDataParallel`. It packs a unit into one flat parameter, as you did, and its `auto_wrap_policy` chooses the units. New code should use `fully_shard`.


# %% name="policies"
def in_bf16(model, mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return make_sharded(model, mesh, mp_policy=policy)


def offloaded(model, mesh):
    return make_sharded(model, mesh, offload_policy=CPUOffloadPolicy(pin_memory=rank_device().type == "cuda"))


def older(model, mesh):
    units = ModuleWrapPolicy({MLPBlock})
    return FullyShardedDataParallel(model, auto_wrap_policy=units, use_orig_params=True, device_id=rank_device())


policies = run_cases(train_sharded, 4, [in_bf16, offloaded, older])
table = [("", "loss", "bytes per parameter", "sent, x parameters", "peak")]
for make, got in {make_sharded: fsdp[make_sharded], **policies}.items():
    volume = got.sent.volume / (FP32 * phi)
    row = (f"{got.losses[-1]:.6f}", f"{got.static / phi:.2f}", f"{volume:.2f}", human_bytes(got.peak))
    table.append((make.__name__, *row))
print(text_table(table))
halved, old = policies[in_bf16].sent.volume / (FP32 * phi), policies[older].static / phi

said = "BF16 policy: gathers halve, reduction stays FP32"
claims.record("T21", said, "4 ranks", halved, "x parameters in FP32", 1.99, 2.01)
claims.record("T21", "the older wrapper: 16/N bytes", "8 blocks, 4 ranks", old, "bytes per parameter", 3.9, 4.2)

# %% [markdown] name="policies_explained"
# With the BF16 policy both gathers send half the bytes, and the reduction stays FP32: 2 Φ instead of 3 Φ. The gathered block is half as large, so the peak is lower. The static 4 bytes stay, because shards and optimizer are FP32, which keeps small updates from being lost ([[number_formats]]). The loss differs in the fourth digit.
#
# ## 4 · A model that no rank can build
#
# So far each rank built the whole model and then sharded it. For 70B in FP32 that is 280 GB on every rank at once. On the *meta* device a parameter has a shape and no bytes, and `fully_shard` needs no more than that:
#
# 1. Build on `meta`.
# 2. Shard.
# 3. `to_empty(device=...)` allocates each rank's shards, with arbitrary contents.
# 4. Load or initialize. To load, rank 0 alone reads the numbers into the host's memory. It broadcasts one parameter after the other, and each rank keeps its part. (A `safetensors` file can be read in slices, so that each rank reads its own part and no broadcast is needed: `safe_open(path, "pt").get_slice(name)[start:end]`.) To initialize, every rank draws one layer after the other from the same seed and keeps its part.
#
# Nothing fills what the state dict lacks, such as non-persistent buffers. Fill them yourself after `to_empty`.
#
# **Predict.** On 4 ranks, what is the peak of `load_by_hand` on a rank other than 0, as a share of the whole model?

# %% name="guess_meta"
my_guess = None  # of the whole model's parameters
### BEGIN GUESS
my_guess = 1 / 4 + 1 / 16  # its shards, and the largest parameter (1 MiB of 16 MiB) as it arrives
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
    through = torch.empty(max(p.numel() for p in model.parameters()), device=rank_device())  # reused
    for name, p in model.named_parameters():
        received = through[: p.numel()].view(p.shape)
        if full:
            received.copy_(full[name])
        dist.broadcast(received, 0)
        keep_part(p, received)
    return model


def load_in_a_call():
    model, full = start_empty(), Blocks().state_dict() if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full, options=options)
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
    with MemoryMeter(device=rank_device(), by_tenant=False) as profile:
        model = start()
    return profile.peak_bytes, [p.to_local().double().sum().item() for p in model.parameters()]


def reset_on_every_rank():
    warnings.filterwarnings("ignore", message="DTensor random")  # on the CPU PyTorch warns, and rightly
    model = start_empty()
    torch.manual_seed(0)
    for layer in model.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return model


starts = (start_whole, load_by_hand, load_in_a_call, initialize, reset_on_every_rank)
ways = {start: run(measured_start, 4, start) for start in starts}
numbers = {way: [got for _, got in ranks] for way, ranks in ways.items()}
table = [("", "as in one process", "rank 1 has rank 0's numbers", "peak, rank 0", "the highest of ranks 1 to 3")]
for way, ranks in ways.items():
    right, copied = numbers[way] == numbers[start_whole], numbers[way][0] == numbers[way][1]
    peaks = human_bytes(ranks[0][0]), human_bytes(max(peak for peak, _ in ranks[1:]))
    table.append((way.__name__, *("yes" if answer else "no" for answer in (right, copied)), *peaks))
print(text_table(table))
others = max(peak for peak, _ in ways[load_by_hand][1:])
meta_guess.reveal(others / (FP32 * phi))
claims.record(
    "T21", "meta start: shards and a parameter", "4 ranks, 1 to 3", others / (FP32 * phi), "of the whole", 0.25, 0.4
)

# %% [markdown] name="meta_explained"
# The shards are a quarter; the rest is the largest parameter in transit. (On a CPU, rank 0 also shows the whole model, because the host's memory *is* what the meter reads.) `set_model_state_dict` with `broadcast_from_rank0` does step 4 in one call, for any way of sharding.
#
# `initialize` gives the numbers of one process on any number of ranks. The last line is a control: calling `reset_parameters` on the sharded layers draws each shard from the same seed, so on the CPU all ranks get the *same* shard, and the model repeats itself N times. On CUDA, `DTensor` gives each rank its own range of the random numbers. Check this once on your own setup: compare the shards of two ranks.

# %% [markdown] name="accumulate_text"
# ## 5 · Accumulating
#
# With DDP, accumulation saves messages: only the last micro-batch is reduced (`no_sync`, [[gradient_accumulation]]). With `fully_shard` the switch is `model.set_requires_gradient_sync(False)`. With four micro-batches and a reduction for each, ZeRO-3 sends 4 × 3 Φ = 12 Φ. Section 6 measures it, with a step that you write.
#
# **Predict.** How many Φ does it send with gradient sync off for the first three micro-batches?

# %% name="guess_accumulate"
my_guess = None
### BEGIN GUESS
my_guess = 4 * 2 + 1  # parameters are still gathered for each micro-batch, twice; reduced once
### END GUESS
accumulate_guess = Prediction("Sent with sync off for three of four micro-batches", my_guess, "x parameters")


# %% [markdown] name="clip_text"
# ## 6 · Clipping across ranks
#
# Clipping divides the gradient by its norm if that is above a limit ([[mixed_precision]]). But a rank has only part of the gradient. Suppose that each of 4 ranks takes the norm of its own part and scales that part to the limit.
#
# **Predict.** What is the norm of the joint gradient then, in units of the limit?

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
print(f"norms as ranks see them {', '.join(f'{norm:.4f}' for norm, _ in apart)}", end="")
print(f"; after clipping {apart[0][1]:.3f} x the limit")
clip_guess.reveal(apart[0][1])

# %% [markdown] name="clip_explained"
# Local norms mislead: each is about half of the joint norm, because the squares of the 4 parts' norms add up to its square. So local clipping starts too late and clips too little, and it depends on the number of ranks: a limit tuned on 4 ranks means something else on 64. Where the parts' norms differ, it also changes the gradient's direction.
#
# `torch.nn.utils.clip_grad_norm_` is right on `DTensor`s **of one mesh**, because their norm includes the all-reduce of the squares. The norm that it returns is a `DTensor`, too: `full_tensor()` makes a plain tensor of it.
#
# On parameters of two meshes it raises an error, as do fused and foreach optimizers. That happens when tensor parallelism splits some layers and leaves others alone; [[tensor_parallel]] shows it, and the cure. With a pipeline it sees one stage only, so the squares must be added over the stages, too ([[pipeline]]). And it is wrong on local tensors, such as the shards of section 2: there, all-reduce the sum of squares yourself.
#
# ### Your turn: accumulate, clip, step
#
# **Contract.** `accumulated_step(model, optimizer, micro_batches, limit)` is called on every rank with a model that `fully_shard` has sharded over all ranks. It trains one step.
#
# - `micro_batches` is a list of pairs (x, y). They have different numbers of rows, and the i-th has as many on every rank. The model gets one of them at a time, in order; its loss is `F.mse_loss(model(x), y)`.
# - The step is that of one process on all rows of all ranks, each of which counts the same, with the gradient clipped to the norm `limit`.
# - Gradients are reduced once per unit and step.
# - It returns two numbers or tensors of one element: the mean loss over this rank's rows, and the norm of the joint gradient before clipping.
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
accumulated_step = check("sharding.step", accumulated_step)

# %% name="step_hint"
hint("sharding.step")

# %% [markdown] name="step_text"
# First the bytes of section 5, with three ways to take a step of four micro-batches: a loop that reduces each time, your step, and your step with parameters that stay gathered from one micro-batch to the next. Then your clipping: with SGD at a learning rate of 1 the weights move by exactly the clipped gradient.


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
accumulate_guess.reveal(sent["your step"])
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
print(f"norms as ranks see them {', '.join(f'{norm:.4f}' for norm, _ in together)}", end="")
print(f"; the weights moved by {together[0][1]:.3f} x the limit")
said = "clip_grad_norm_ clips the joint gradient"
claims.record("T21", said, "4 ranks", together[0][1], "x the limit", 0.999, 1.001)

# %% [markdown] name="accumulate_explained"
# Turning sync off saves the reductions. The gathers remain, because parameters are freed after each pass, whether or not gradients are reduced. And there is a price. A gradient that is not reduced stays complete, so each rank holds the gradients of the whole model until the last micro-batch, and the memory that stage 2 had saved is lost. The peaks show it: they are higher by most of those MiB.
#
# If there is room for all gradients, there may be room for all parameters, too. The last line keeps both from one micro-batch to the next (`set_reshard_after_backward(False)`). Parameters are gathered once and gradients reduced once: 2 Φ for any number of micro-batches.
#
# ## 7 · Prefetch, and the order of wrappers
#
# While a block computes, the next one's parameters can travel. In the backward pass `fully_shard` requests the next block by itself. In the forward pass on a GPU this usually happens in time because Python runs ahead. Where it does not, `block.set_modules_to_forward_prefetch([...])` names the blocks to request early. The next cell counts blocks that are gathered or on their way when the third of 8 blocks begins.


# %% name="prefetch"
def forward_diary(ahead):
    model, (x, _) = start_whole(), rank_rows()
    blocks, diary = list(model.blocks), Diary()
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + ahead])
        block.register_forward_pre_hook(lambda *_, i=i: diary.note(f"block {i}"))
    with diary, torch.no_grad():
        model(x)
    return diary.events


diaries = {f"{ahead} ahead": run(forward_diary, 4, ahead)[0] for ahead in (0, 1, 2)}
flying = {name: drawings.in_flight(events, "block 2") for name, events in diaries.items()}

block = FP32 * phi / 8 / MiB
for name, blocks in flying.items():
    print(f"{name}: {blocks} in flight when the third block begins, {blocks * block:.1f} MiB")
show(
    drawings.flight_figure(diaries),
    "Three forward passes of 8 blocks. Without prefetch each block is requested right before it runs; with one or two ahead, one or two blocks earlier.",
)

# %% [markdown] name="order_text"
# Each block in flight takes up one more block's worth of parameters. Whether it saves a wait depends on the link and on how long a block computes (section 2): measure it where you train.
#
# ### Which wrapper comes first?
#
# Several things want to wrap a model: checkpointing, `fully_shard` and `torch.compile`; and the optimizer holds its parameters. Does the order matter? We first try three orders without the compiler: checkpointing inside sharding, sharding inside checkpointing, and an optimizer that was built before sharding.
#
# **Predict.** If the optimizer was built before `fully_shard`, what is the loss at the third step divided by the loss at the first? (In the right order it falls with each step.)

# %% name="guess_order"
my_guess = None  # loss at step 3 / loss at step 1
### BEGIN GUESS
my_guess = 1  # it steps on parameters that the model no longer has
### END GUESS
order_guess = Prediction("Optimizer first: loss at step 3 / at step 1", my_guess, "")


# %% name="order"
def ordered(order):
    model, (x, y) = Blocks().to(rank_device()), rank_rows(512)
    early = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for part in order:
        if part == "shard":
            make_sharded(model, all_ranks())
        else:
            for i, block in enumerate(model.blocks):
                model.blocks[i] = checkpoint_wrapper(block)
    optimizer = early if order == ("shard",) else torch.optim.AdamW(model.parameters(), lr=1e-3)
    del early

    def step():
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss

    return train(step, model, optimizer)


orders = {"checkpoint, shard": ("checkpoint", "shard"), "shard, checkpoint": ("shard", "checkpoint")}
orders |= {"optimizer, shard": ("shard",)}
ordering = dict(zip(orders, run_cases(ordered, 4, list(orders.values())).values(), strict=True))
for name, got in ordering.items():
    falls, volume = " -> ".join(f"{loss:.4f}" for loss in got.losses), got.sent.volume / (FP32 * phi)
    print(f"{name:18} loss {falls}, sent {volume:.2f} x parameters, peak {human_bytes(got.peak)}")
losses = ordering["optimizer, shard"].losses
order_guess.reveal(losses[-1] / losses[0])
claims.record("T21", "optimizer before fully_shard: nothing trains", "3 steps", losses[-1] / losses[0], "", 1, 1)

# %% [markdown] name="order_explained"
# `fully_shard` replaces the parameters with new ones. An optimizer that was built before it updates the old ones, which no module uses anymore and which get no gradients. There is no error and no warning, and nothing trains.
#
# Checkpointing and sharding in either order gave the same losses and the same messages here. While a checkpointed block is recomputed in the backward pass, `fully_shard` notices, gathers it once and does not free it in between.
#
# ### And the compiler?
#
# `torch.compile` collects a module's operations in a *graph* and hands it to a *backend* that generates kernels ([[compilation_and_fusion]]). Operations in different graphs cannot be fused. `NotedGraphs` is a backend that compiles nothing and needs no C++ compiler: it records the operations that it gets, and runs them unchanged.
#
# A block has five operations: norm, up, gelu, down and the sum. Two blocks that are compiled together, and not sharded, give one graph of ten.
#
# **Predict.** How many operations does the largest graph have if the two blocks are sharded first and then the *whole model* is compiled?

# %% name="guess_compiled"
my_guess = None  # operations
### BEGIN GUESS
my_guess = 5  # between two blocks parameters are gathered, and that is not part of a graph
### END GUESS
compiled_guess = Prediction("Largest graph: sharded, then compiled as a whole", my_guess, "operations")


# %% name="compiled"
def compiled(order):
    """Train in this order; return what the backend noted, how often a step ran a graph, the last loss, and a name."""
    torch.compiler.reset()  # forget what the order before has compiled
    model, (x, y), backend = Blocks(2).to(rank_device()), rank_rows(), NotedGraphs()
    for part in order.split(", "):
        if part == "compile all":
            model.compile(backend=backend)
        elif part == "shard":
            make_sharded(model, all_ranks())
        for i, block in enumerate(model.blocks):
            if part == "compile":
                block.compile(backend=backend)
            elif part == "torch.compile(block)":
                model.blocks[i] = torch.compile(block, backend=backend)
            elif part == "checkpoint":
                model.blocks[i] = checkpoint_wrapper(block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        before = backend.runs
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return backend.largest, backend.runs - before, joint(loss), next(iter(model.state_dict()))


orders = ["compile all", "shard, compile all", "shard, compile", "compile, shard", "torch.compile(block), shard"]
orders += ["checkpoint, compile, shard", "compile, checkpoint, shard"]
noted = dict(zip(orders, run(lambda: [compiled(order) for order in orders], 2)[0], strict=True))
compiled_guess.reveal(len(noted["shard, compile all"][0]))

# %% name="compiled_table"
table = [("order", "largest graph", "graphs run in a step", "loss", "a name in the state dict")]
for order, (graph, runs_of_graphs, loss, name) in noted.items():
    seen = "a checkpoint" if any("checkpoint" in operation for operation in graph) else f"{len(graph)} operations"
    table.append((order, seen, str(runs_of_graphs), f"{loss:.6f}", name))
print(text_table(table))

# %% [markdown] name="compiled_explained"
# - **Compiled before or after sharding**: the graphs and the losses are the same. (The first line is not sharded. Its two ranks train independently, so its loss differs.) `fully_shard` gathers in hooks, which stay outside every graph and end it: compiled as a whole, a sharded model gives the compiler one block at a time. So compile the blocks explicitly.
# - **Checkpoint inside or outside the compiled block** makes a difference. Inside, the graph contains the checkpoint: the compiler sees what is saved and what is recomputed, and each block's graph runs once per step. Outside, the checkpoint runs the finished graph a second time in the backward pass, and the compiler cannot optimize that.
# - `torch.compile(block)` wraps the block, and its parameters get new **names**. A checkpoint saved this way does not load into a model that is not compiled. `block.compile()` compiles in place and keeps the names.
#
# The usual order (torchtitan's, for example) is tensor parallelism ([[tensor_parallel]]), checkpointing, `torch.compile` of each block, `fully_shard`, optimizer. The optimizer must come last or nothing trains. Checkpointing must come before the compiler if the compiler is to see it. Compiling before sharding is a convention: here either order gave the same result.
#
# ## 8 · Hybrid: a mesh of two dimensions
#
# Links inside a machine are fast; links between machines are slow. With *hybrid* sharding (HSDP) each machine shards the model over its own GPUs, and the machines are replicas. The mesh has two dimensions; `fully_shard` shards along the second and replicates along the first. Here it is with 2 "machines" of 2 ranks:

# %% name="mesh_drawn"
show(
    drawings.mesh_figure(2, 2, ("replicate", "shard")),
    "Four ranks in a square. Ranks 0 and 1, and ranks 2 and 3, hold the parts of one model; ranks 0 and 2, and ranks 1 and 3, hold the same part.",
)

# %% [markdown] name="mesh_text"
# Within a row everything is as before: 3 Φ, of which a ring of N ranks sends (N − 1)/N, with N = 2. After its reduce-scatter a rank has the gradient of its half, averaged over its row only. An all-reduce along the column averages over the rows.


# %% name="mesh"
def by_dimension(shape):
    mesh = init_device_mesh(rank_device().type, shape, mesh_dim_names=("replicate", "shard"))
    model, (x, y) = make_sharded(Blocks().to(rank_device()), mesh), rank_rows()
    with Diary() as diary:
        loss = F.mse_loss(model(x), y)
        loss.backward()
    here = sum(p.to_local().numel() for p in model.parameters()) / phi
    groups = [dist.get_process_group_ranks(mesh.get_group(name)) for name in mesh.mesh_dim_names]
    volumes = [diary.volume_among(ranks) * (len(ranks) - 1) / len(ranks) for ranks in groups]
    return here, [volume / (FP32 * phi) for volume in volumes], joint(loss)


table = [("mesh", "of the parameters", "sent along replicate", "along shard", "loss")]
for shape in ((1, 4), (2, 2)):
    here, along, loss = run(by_dimension, 4, shape)[0]
    volumes = [f"{volume:.2f} Φ" for volume in along]
    table.append((f"{shape[0]} x {shape[1]}", f"{here:.2f}", *volumes, f"{loss:.6f}"))
print(text_table(table))

claims.record("T21", "HSDP: between machines, the gradients of a shard", "2 x 2", along[0], "x parameters", 0.49, 0.51)

# %% [markdown] name="mesh_explained"
# In a flat mesh of four, the ring goes through both machines, and everything in it crosses the slow link. Here only the gradient of a shard does, Φ/2 numbers in an all-reduce of two ranks, and the forward pass waits for none of it. The price is memory: a rank holds 16 bytes per parameter divided by the ranks of a *row*. With two machines of eight GPUs that is 16 / 8, not 16 / 16.
#
# ## 9 · Large models, planned
#
# One rank of 1,024 runs the same program as one of 4. The planner ([[where_memory_goes]]) runs PyTorch's own `fully_shard` on a fake process group, so it can count for any number of ranks. All 80 layers of Llama-2-70B take it about half a minute (`python -m helpers plan --model llama-2-70b --gpus 8 --engine pytorch ...`). A plan is the same on every machine, so those in this lab were made beforehand: `planned` looks them up, and plans any that are missing.
#
# **Predict.** Llama-2-70B has 69 billion parameters. BF16 with AdamW in BF16 takes 8 bytes per parameter ([[mixed_precision]]). Each rank has one sequence of 2,048 tokens, and every layer is checkpointed. What is the allocated peak on each of 8 ranks, in GiB? An "80 GB" GPU shows 79.1 GiB.

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
for tenant in plans[8].at_peak:
    held = [plan.at_peak[tenant] / GiB for plan in plans.values()]
    if max(held) > 0.005:
        lines.append([tenant, *(f"{size:.2f}" for size in held)])
lines.append(["PEAK", *(f"{size / GiB:.2f}" for size in seventy.values())])
lines.append(["reserved, up to", *(f"{plan.reserved_bytes[1] / GiB:.2f}" for plan in plans.values())])
print(text_table(lines))
seventy_guess.reveal(seventy[8] / GiB, "planned")
said, subject = "70B trains on 8 x 80 GB (79.1 GiB)", "BF16, AdamW, 2,048 tokens, planned"
claims.record("C14", said, subject, plans[8].reserved_bytes[1] / GiB, "GiB reserved, up to", 0, 79.1)
fewer, subject = seventy[8] / seventy[1024], "70B, from 8 to 1,024 ranks, planned"
claims.record("C14", "about N times less memory", subject, fewer, "times less", 100, 140)

# %% [markdown] name="seventy_explained"
# With pure BF16 the allocated tensors fit, although small updates are lost ([[number_formats]]). But the allocator reserves more than it allocates ([[profiling_and_oom_clinic]]), and reserved memory decides whether a run survives. Its upper end is above 79.1 GiB, so this plan does not safely fit: shorten the micro-batch or use more ranks.
#
# On more ranks 1/N stops helping. On 1,024 ranks the static part is less than half a GiB. The rest is not sharded: the checkpointed inputs of 80 layers (32 MiB each, counted as activations while they are alive at the peak), the currently gathered layer, the embedding and the output layer, and the gradients of that layer with their flat copy. More ranks do not reduce these; tensor or sequence parallelism ([[tensor_parallel]]) does.
#
# ### Explore
#
# 7B in FP32 with 4 GiB of activations should fit on 24 GB GPUs. What is the smallest number of ranks for each stage, and which stage never fits?

# %% name="play"
explore(
    drawings.gpus_figure,
    "Bytes of a 7B model on one rank, by category, compared with the size of common GPUs.",
    stage=("ZeRO-3", ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")),
    ranks=(8, (1, 2, 4, 8, 16, 64, 256)),
    activations_in_GiB=(4, range(0, 41)),
)

# %% [markdown] name="checkpoint_text"
# ## 10 · Saved on 4 ranks, resumed on 2
#
# No rank holds the whole model. To export it, gather it on one rank (`StateDictOptions(full_state_dict=True, cpu_offload=True)`), which takes host memory and time. To resume later, each rank writes its own part with `torch.distributed.checkpoint`. When loading, each rank reads what it needs, even if the number of ranks has changed.
#
# `dcp.load` fills existing tensors. So we first take the state, which also creates the optimizer's moments, and then fill it. The control loads the weights but not the moments. (A real run also saves the scheduler, the position in the data and the random state.)
#
# While `dcp.save` writes, training waits. `dcp.async_save` returns early and writes in the background while training goes on. The ranks use messages of their own to agree on what each of them writes. So pass a separate process group, over gloo: in the training's group these messages would mix with the training's.


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
        being_written.result()  # before the ranks leave, or save again
        return losses, early
    return losses


# %% [markdown] name="guess_checkpoint_text"
# After step 3 we save in both ways and go on training at once. Five more steps change the weights while the second checkpoint is being written.
#
# **Predict.** Resumed from that second checkpoint, by how many percent does the first loss differ from the loss of step 4?

# %% name="guess_checkpoint"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 0  # it writes a copy that it made before it returned
### END GUESS
checkpoint_guess = Prediction("Resumed from the asynchronous checkpoint", my_guess, "% away", difference=True)

# %% name="resume"
with tempfile.TemporaryDirectory() as folder:
    through, early = run(run_on, 4, folder, 8, 3)[0]
    files = sorted(path.name for path in Path(folder, "waited").iterdir())
    both = ("model", "optimizer")
    after = run(run_on, 2, f"{folder}/waited", 5, None, both)[0]
    late = run(run_on, 2, f"{folder}/async", 5, None, both)[0]
    forgetful = run(run_on, 2, f"{folder}/waited", 5, None, ("model",))[0]
print("files:", ", ".join(files))
print("async_save returned before its files were complete:", early)
lines = {"4 ranks, steps 4 to 8": through[3:], "2 ranks, resumed": after}
lines |= {"from the asynchronous one": late, "without the moments": forgetful}
for name, losses in lines.items():
    print(f"{name:26} {' '.join(f'{loss:.7f}' for loss in losses)}")
checkpoint_guess.reveal(round(100 * abs(late[0] - through[3]) / through[3], 3))
for way, losses in (("saved", after), ("saved asynchronously", late)):
    furthest = max(abs(a - b) / a for a, b in zip(through[3:], losses, strict=True))
    said = "resumed on another number of ranks: same losses"
    claims.record("T23", said, f"{way}, 4 to 2 ranks, 5 steps", furthest, "relative", 0, 1e-5)

# %% [markdown] name="checkpoint_explained"
# Both checkpoints are those of step 3, for any number of ranks: `async_save` first copies the state to the host's memory (*staging*), and writes that copy. The control starts at the same loss, because the weights are right, and then diverges without the moments. `async_save` costs host memory for the copy, and you must wait for one save to finish before you start the next.
#
# ## Appendix A · DeepSpeed
#
# DeepSpeed introduced ZeRO. A JSON file (or a dictionary) sets what is sharded; `deepspeed.initialize` returns an *engine* that has `backward` and `step`. The helper `deepspeed_config` builds the configuration from this course's terms:

# %% name="config"
print(
    json.dumps(
        deepspeed_config(stage=3, micro_batch=4, accumulate=8, precision="bf16", offload="all", clip=1.0), indent=2
    )
)

# %% [markdown] name="config_explained"
# - `zero_optimization.stage` is the stage of the table at the top of this lab.
# - `offload_optimizer` and `offload_param` keep optimizer state and parameters in the host's memory. The optimizer then steps on the CPU, for which DeepSpeed compiles its own Adam. The helper pins that memory where there is a GPU.
# - `train_micro_batch_size_per_gpu` × `gradient_accumulation_steps` × ranks is the effective batch ([[gradient_accumulation]]).
# - `gradient_clipping`: if you leave it out, recent versions (0.19) clip to norm 1 and older ones not at all. The helper always writes it, 0 for none.
#
# DeepSpeed is optional here. `make deepspeed` in a terminal, or `DS_BUILD_OPS=0 pip install deepspeed ninja`, installs it (it needs g++, and compiles for some minutes on first use); then this cell runs it on two ranks.


# %% name="deepspeed"
def with_deepspeed(stage, offload):
    import logging

    os.environ["DS_ACCELERATOR"] = rank_device().type  # DeepSpeed would take the machine's; ranks may be on the CPU
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    model, (x, y) = Blocks().to(rank_device()), rank_rows()
    config = deepspeed_config(stage, len(x), offload=offload)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config, dist_init_required=False
    )
    losses = []
    for _ in range(3):
        loss = F.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(joint(loss))
    inner = getattr(optimizer, "optimizer", optimizer)
    state = sum(t.nbytes for slots in inner.state.values() for t in slots.values() if isinstance(t, torch.Tensor))
    return losses, state / (8 * phi)


if importlib.util.find_spec("deepspeed"):
    for stage, offload in ((0, "none"), (1, "none"), (2, "none"), (3, "none"), (2, "optimizer")):
        options = {"device": everywhere, "timeout": 400, "measure": False, "show": False}
        losses, share = run_ranks(with_deepspeed, 2, stage, offload, **options).results[0]
        print(f"stage {stage}, offload {offload:9} loss {losses[-1]:.6f} (ours {runs[2][0].losses[-1]:.6f})", end="")
        print(f", optimizer state {share:.2f} of DDP's")
        said, subject = "stages 1 to 3 halve the state on 2 ranks", f"DeepSpeed stage {stage}, offload {offload}"
        if stage:
            claims.record("T22", said, subject, share, "of DDP's", 0.49, 0.52)
else:
    print("DeepSpeed is not installed, so this cell does nothing.")

# %% [markdown] name="nodes_text"
# ## Appendix B · More than one machine
#
# The programs do not change. You start one `torchrun` on every machine (*node*). They meet at one address and number their ranks consecutively: `RANK` counts across all nodes, `LOCAL_RANK` within one node. Here are two "nodes" of two ranks each on this machine.

# %% name="nodes"
SCRIPT = """
import os, sys
import torch, torch.distributed as dist
if torch.cuda.device_count() >= 4:  # one machine plays both nodes; on real ones a rank's GPU is LOCAL_RANK
    device = torch.device("cuda", int(os.environ["RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")
x = torch.tensor([10.0 ** dist.get_rank()], device=device)
dist.all_reduce(x)
node, local = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"]
line = f"node {node}, local rank {local}: rank {dist.get_rank()} of {dist.get_world_size()}, sum {x.item():.0f}"
sys.stdout.write(line + "\\n")  # in one piece: the ranks of a node share a pipe
sys.stdout.flush()
dist.barrier()
dist.destroy_process_group()
if device.type == "cpu":
    os._exit(0)  # over gloo an ordinary exit can hang (PyTorch 2.13)
"""

# %% name="nodes_launched"
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # finds a free port
port = store.port
del store
with tempfile.TemporaryDirectory() as folder:
    script = Path(folder) / "hello.py"
    script.write_text(SCRIPT)
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "RES_OPTIONS": "timeout:1 attempts:1"}
    launch = "torch.distributed.run --nnodes=2 --nproc-per-node=2 --master-addr=127.0.0.1"
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", *launch.split(), f"--master-port={port}", f"--node-rank={node}", str(script)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | quiet,
        )
        for node in (0, 1)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=120) for process in nodes]
    finally:
        for process in nodes:
            process.kill()
lines = sorted(line for out, _ in said for line in out.splitlines())
print("\n".join(lines) or said[0][1][-1500:])
agree = sum("of 4, sum 1111" in line for line in lines)
claims.record("T23", "two nodes make one world", "two torchruns of two ranks, here", agree, "ranks agree", 4, 4)

# %% [markdown] name="slurm_text"
# On two real machines, replace `127.0.0.1` with the address of the first, and give each machine its own `--node-rank` and the same code. They must reach each other on **all** ports: they meet at 29500, but NCCL and gloo open others. If they pick the wrong network card, set `NCCL_SOCKET_IFNAME` (gloo: `GLOO_SOCKET_IFNAME`). On a cluster a scheduler starts the launchers for you. For Slurm:
#
# ```bash
# #!/bin/bash
# #SBATCH --nodes=2
# #SBATCH --ntasks-per-node=1        # one torchrun per node; it starts the ranks
# #SBATCH --gpus-per-node=8
# #SBATCH --cpus-per-task=64
#
# export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"   # srun no longer inherits it by itself
# export OMP_NUM_THREADS=8                           # torchrun would set 1
# head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun torchrun --nnodes="$SLURM_NNODES" --nproc-per-node=8 \
#      --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$SLURM_JOB_ID" train.py
# ```
#
# With several nodes, shard inside a node and replicate between nodes if the GPUs of one node can hold the model (section 8). For two nodes of eight the mesh is `init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))`.

# %% [markdown] name="summary_text"
# ## 11 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - DDP keeps 16 bytes per parameter on every rank. ZeRO-1 keeps 8 + 8/N, ZeRO-2 4 + 12/N, ZeRO-3 = FSDP 16/N. Three operations do it: partition, reduce-scatter, all-gather.
# - Stages 1 and 2 send what DDP sends, 2 Φ; stage 3 sends 3 Φ for every micro-batch. Gathers hide behind computing if each GPU has enough tokens. Turning sync off saves reductions and costs the memory of all gradients.
# - The peak has a floor that N does not divide: the gathered unit, its gradients, activations, logits. Smaller units mean a lower floor and more messages.
# - Always pass the mesh. With two dimensions, parameters and their messages stay inside a row.
# - Build on meta, then load in parts or initialize layer by layer; build the optimizer after sharding; clip by the joint norm, on one mesh.
# - Sharded checkpoints can be loaded on any number of ranks, saved synchronously or not.
#
# **What to reach for when.** The model fits with room to spare: DDP. The optimizer state does not fit: ZeRO-1 (`ZeroRedundancyOptimizer` with DDP) or ZeRO-2 (DeepSpeed; `fully_shard` with `reshard_after_forward=False` comes close). The parameters do not fit: `fully_shard`. One layer or the sequence does not fit: [[tensor_parallel]]. Not enough GPUs: offload, which is slow.
#
# **Sources.** Rajbhandari et al. 2020, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*; Zhao et al. 2023, *PyTorch FSDP*; Austin et al. 2025, *How to Scale Your Model*, chapter 5 (when communication hides); PyTorch documentation, `fully_shard`, `torch.distributed.checkpoint`, `torchrun`; DeepSpeed documentation, *Configuration JSON*; NVIDIA's DGX data sheets (links).
