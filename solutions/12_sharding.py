# %% [markdown] name="title"
# # Sharding: ZeRO, FSDP, DeepSpeed
#
# **N ranks need not keep N copies. Each keeps one part of the optimizer state, the gradients and the parameters, and borrows the rest for the moment it is needed.**
#
# | | |
# |---|---|
# | After this you can | write ZeRO 1, 2 and 3 in fifty lines; shard a model with `fully_shard` and choose the units; predict bytes a rank and bytes sent, and measure both; save on 4 ranks and resume on 2; plan 70B on 8 GPUs; start a job on several machines |
# | Time | 110 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the same cells use NCCL. DeepSpeed is optional |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#mixed_precision]] (BF16, master weights), [[#activation_checkpointing]] and [[#data_parallel]] |
# | Syllabus | T21, T22, T23, C14 |

# %% name="setup" setup=true
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers import (
    COLOURS,
    Claims,
    Collectives,
    GiB,
    MemoryMeter,
    Prediction,
    Recipe,
    check,
    deepspeed_config,
    device_name,
    explore,
    find_gpu,
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

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

device = pick_device()
everywhere = ranks_device(4)  # the tables compare 1, 2 and 4 ranks, so all of them run where 4 can
claims = Claims(device=everywhere)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if everywhere.type == 'cuda' else 'the CPU, over gloo'}")


def run(fn, ranks, *args):
    """Run `fn` on so many ranks, on the device of all the others; it measures itself."""
    return run_ranks(fn, ranks, *args, device=everywhere, measure=False)


# %% [markdown] name="idea_text"
# ## 1 · What exists N times
#
# Four people share an office and need an encyclopedia of four volumes. DDP buys four sets. ZeRO gives each person one volume; anyone who needs a page borrows it, reads it and gives it back.
#
# In FP32 with Adam a parameter costs 16 bytes ([[where_memory_goes]]): 4 for itself, 4 for its gradient, 8 for the optimizer. With DDP every rank pays all 16. The **stages** of ZeRO shard more and more of them. The paper counts in BF16 with FP32 master weights ([[mixed_precision]]): 2 + 2 for parameter and
# gradient, 12 for master weight and moments in the optimizer. The sum is 16 as well, but it is divided differently:
#
# | stage | sharded | bytes a parameter and rank, FP32 (this lab) | BF16 with master weights (the paper) |
# |---|---|---|---|
# | 0 (DDP) | nothing | 16 | 16 |
# | 1 | optimizer state | 8 + 8/N | 4 + 12/N |
# | 2 | and gradients | 4 + 12/N | 2 + 14/N |
# | 3 (FSDP) | and parameters | 16/N | 16/N |
#
# **Predict.** With 4 ranks, how many times as much does a rank hold with DDP as at stages 1 and 3?

# %% name="guess_stages"
my_guess = None  # stage 1
### BEGIN GUESS
my_guess = 16 / 10
### END GUESS
stage1_guess = Prediction("DDP / stage 1, 4 ranks", my_guess, "times")
my_guess = None  # stage 3
### BEGIN GUESS
my_guess = 4
### END GUESS
stage3_guess = Prediction("DDP / stage 3, 4 ranks", my_guess, "times")

# %% [markdown] name="zero_text"
# ## 2 · ZeRO in fifty lines
#
# Each parameter gets a **shard**: the part of it that this rank looks after. The optimizer knows only shards. Two collectives carry everything: `reduce_scatter` adds up gradients and gives each rank the
# part that it looks after; `all_gather` puts the whole back together.
#
# - **Stage 1**: after the backward pass, reduce-scatter; step on the shard; all-gather the new parameters.
# - **Stage 2**: the same, but each gradient is reduced and freed *as soon as it is ready*, in a hook.
# - **Stage 3**: parameters are freed too. Before a block runs, forward or backward, its parameters are gathered; afterwards they are freed again.
#
# To free a parameter without autograd noticing, we resize its storage to 0 bytes. The tensor that autograd has saved stays; only its bytes go, and they are filled again before they are read.


# %% name="zero"
WIDTH, BLOCKS, ROWS = 256, 8, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS))).to(rank_device())


class Zero:
    """ZeRO on a sequence of blocks whose parameter sizes are divisible by the number of ranks."""

    def __init__(self, model, stage):
        self.model, self.stage = model, stage
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        for p in model.parameters():
            mine = self.parts(p)[self.rank]  # a view: stages 1 and 2 step on the parameter itself
            p.shard = nn.Parameter(mine.clone() if stage == 3 else mine)
            if stage >= 2:
                p.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = torch.optim.AdamW([p.shard for p in model.parameters()], lr=1e-3)
        if stage == 3:
            for block in model:
                self.release(block)
                block.register_forward_pre_hook(lambda block, _: self.gather(block))
                block.register_forward_hook(lambda block, *_: self.release(block))
                block.register_full_backward_pre_hook(lambda block, _: self.gather(block))

    def parts(self, p):
        return p.data.view(-1).chunk(self.n)

    def reduce(self, p):
        """Turn this rank's gradient of `p` into the averaged gradient of its shard (no accumulation: it overwrites)."""
        p.shard.grad = torch.empty_like(p.shard)
        dist.reduce_scatter(p.shard.grad, list(p.grad.view(-1).chunk(self.n)))
        p.shard.grad /= self.n  # reduce_scatter adds up; DDP's gradient is the mean
        p.grad = None
        if self.stage == 3:  # its gradient is ready, so nobody reads the parameter again in this step
            p.data.untyped_storage().resize_(0)

    def gather(self, block):
        for p in block.parameters():
            p.data.untyped_storage().resize_(p.numel() * p.itemsize)
            dist.all_gather(list(self.parts(p)), p.shard.data)

    @staticmethod
    def release(block):
        for p in block.parameters():
            p.data.untyped_storage().resize_(0)

    def step(self):
        if self.stage == 1:
            for p in self.model.parameters():
                self.reduce(p)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.stage < 3:
            for p in self.model.parameters():
                dist.all_gather(list(self.parts(p)), p.shard.data.clone())  # the shard is part of the output


# %% [markdown] name="stages_text"
# First the numbers: the loss of every stage, on 2 and 4 ranks, must be that of one process on the joint batch. Then the bytes. (On one rank all stages are the same. DDP keeps its gradients as views of its buckets, otherwise it would hold them twice: [[data_parallel]].)


# %% name="stages"
def rows():
    """This rank's part of the joint batch of 16 rows."""
    torch.manual_seed(1)
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    x, y = (t.chunk(dist.get_world_size())[dist.get_rank()].to(rank_device()) for t in (x, y))
    return x.requires_grad_(), y  # so that the first block's hook is called in the backward pass too


def train(step, watch, optimizer, steps=3):
    """Take some steps; return joint losses and, for the last step, bytes by tenant, the peak and what was sent.

    We meter where the rank computes. The model itself would lead us astray: offloaded parameters are on the host.
    """
    x, y = rows()
    losses = []
    for i in range(steps):
        meter = MemoryMeter(watch, optimizer, rank_device()) if i == steps - 1 else contextlib.nullcontext()
        with meter, Collectives() as said:
            loss = step(x, y)
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses, dict(meter.profile.largest), meter.profile.peak_bytes, said


def by_hand(stage):
    model = make_model()
    if stage == 0:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        watch = model
    else:
        wrapped, zero = model, Zero(model, stage)
        optimizer = zero.optimizer
        watch = nn.ModuleList([model, nn.ParameterList([p.shard for p in model.parameters()])])

    def step(x, y):
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        if stage == 0:
            optimizer.step()
            optimizer.zero_grad()
        else:
            zero.step()
        return loss

    return train(step, watch, optimizer)


def worst(ranks):
    """The results of the rank with the highest peak: it runs out of memory first."""
    return max(ranks.results, key=lambda result: result[2])


def static(largest):
    return sum(largest[tenant] for tenant in ("parameters", "gradients", "optimizer state"))


phi = sum(p.numel() for p in make_model().parameters())
law = {0: lambda n: 16, 1: lambda n: 8 + 8 / n, 2: lambda n: 4 + 12 / n, 3: lambda n: 16 / n}
runs = {(stage, n): worst(run(by_hand, n, stage)) for n in (1, 2, 4) for stage in ((0, 1, 2, 3) if n > 1 else (0,))}
print(f"{phi:,} parameters; loss after 2 steps on one rank: {runs[0, 1][0][-1]:.6f}\n")
print(f"{'':8}{'ranks':>6}{'loss':>10}{'bytes a parameter':>19}{'law':>7}{'peak':>12}")
for (stage, n), (losses, largest, peak, _) in runs.items():
    name = "DDP" if stage == 0 else f"ZeRO-{stage}"
    print(
        f"{name:8}{n:>6}{losses[-1]:>10.6f}{static(largest) / phi:>19.2f}{law[stage](n):>7.2f}{human_bytes(peak):>12}"
    )
stage1_guess.reveal(static(runs[0, 4][1]) / static(runs[1, 4][1]))
stage3_guess.reveal(static(runs[0, 4][1]) / static(runs[3, 4][1]))
for stage in (1, 2, 3):
    measured = static(runs[stage, 4][1]) / phi
    claims.record(
        "C14",
        f"ZeRO-{stage}: {law[stage](4):.2f} bytes a parameter",
        "8 blocks, by hand, 4 ranks",
        measured,
        "bytes",
        law[stage](4) * 0.98,
        law[stage](4) * 1.03,
    )

# %% name="stages_figure"
figure = Figure(figsize=(7, 3.2), layout="constrained")
axes = figure.add_subplot()
for stage, colour in enumerate((COLOURS[7], COLOURS[1], COLOURS[2], COLOURS[0])):
    ranks = [n for one, n in runs if one == stage]
    axes.plot(
        ranks,
        [static(runs[stage, n][1]) / phi for n in ranks],
        "o-",
        color=colour,
        label="DDP" if stage == 0 else f"ZeRO-{stage}",
    )
axes.set(
    title="Parameters, gradients and optimizer state on one rank",
    xlabel="ranks",
    ylabel="bytes a parameter",
    ylim=(0, 18),
    xticks=(1, 2, 4),
)
axes.legend(frameon=False)
show(figure, "DDP stays at 16 bytes a parameter; on 4 ranks ZeRO-1, 2 and 3 are at 10, 7 and 4.")

# %% [markdown] name="stages_explained"
# The law holds to a percent or two. The excess is, at stage 1, the part of one gradient that has just arrived while all gradients are still there; with DDP, one gradient that is not yet copied into its bucket. At stages 2 and 3 a gradient is whole only for a moment, inside the backward pass, and counts as temporary.
#
# The peak falls by less than the static part. It also has the activations, that whole gradient, and at stage 3 the currently gathered block.
#
# What does a rank pay for it? **Predict.** DDP's all-reduce sends 2 Φ numbers a rank and step (Φ is the number of parameters; with N ranks take (N − 1)/N of it). Half of that is a reduce-scatter, the other half an all-gather; each of the two alone sends Φ. What do the stages send?

# %% name="guess_volume"
my_guess = None  # stage 2, in units of the parameters
### BEGIN GUESS
my_guess = 2  # an all-reduce is a reduce-scatter and an all-gather; here they are separate
### END GUESS
volume2_guess = Prediction("ZeRO-2 sends", my_guess, "x parameters")
my_guess = None  # stage 3
### BEGIN GUESS
my_guess = 3  # gathered forward, gathered backward, reduced
### END GUESS
volume3_guess = Prediction("ZeRO-3 sends", my_guess, "x parameters")

# %% name="volume"
FP32 = 4  # bytes
sent = {stage: runs[stage, 4][3].volume / (FP32 * phi) for stage in (0, 1, 2, 3)}
volume2_guess.reveal(sent[2])
volume3_guess.reveal(sent[3])
for stage, volume in sent.items():
    said = runs[stage, 4][3]
    print(
        f"stage {stage}: {volume:.2f} x parameters in {len(said.calls)} calls ({', '.join(sorted({c.name for c in said.calls}))})"
    )
claims.record(
    "C14",
    "DDP, ZeRO-1 and ZeRO-2 send 2 Φ",
    "8 blocks, 4 ranks, the largest of them",
    max(sent[s] for s in (0, 1, 2)),
    "x parameters",
    1.99,
    2.01,
)
claims.record("C14", "ZeRO-3 sends 3 Φ", "8 blocks, by hand, 4 ranks", sent[3], "x parameters", 2.99, 3.01)
calls = {call.name for call in runs[3, 4][3].calls}
claims.record(
    "C14",
    "all-gather and reduce-scatter in place of all-reduce",
    "ZeRO-3 by hand",
    float("all_reduce" in calls),
    "all-reduces",
    0,
    0,
)

# %% [markdown] name="volume_explained"
# Stages 1 and 2 send the same bytes as DDP and hold less. (They are not quite free: their all-gather comes after the step, when nothing is left to hide it behind. And with accumulation stage 2 must reduce every micro-batch, DDP and stage 1 only the last one: `no_sync` in [[data_parallel]].)
#
# Stage 3 sends half as much again, for every micro-batch. It must also wait for a gather before each block, unless the next block is gathered while this one computes. That prefetching, and packing a
# block's parameters into one message, is what PyTorch's implementation adds.
#
# ## 3 · `fully_shard`
#
# `fully_shard(module, mesh=mesh)` makes the module's parameters one unit: sharded along their first dimension, gathered together, released together. Apply it to each block, and then **always** to the whole model. That makes the *root*, which takes what is outside the blocks and coordinates the units. Without it each block is its own root, and a root keeps its parameters from the forward to the
# backward pass. The **mesh** says which ranks share, and on what device. Always give it: without one, `fully_shard` takes the accelerator that PyTorch was built for, even where ranks are on the CPU.


# %% name="fsdp"
def shard(model, units="blocks", **options):
    options["mesh"] = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    if units == "blocks":
        for block in model:
            fully_shard(block, **options)
    elif units == "pairs":
        for i in range(0, BLOCKS, 2):
            fully_shard([model[i], model[i + 1]], **options)
    fully_shard(model, **options)
    return model


def with_fsdp(make_sharded, *args, **options):
    model = make_sharded(make_model(), *args, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x, y):
        loss = F.mse_loss(model(x).float(), y)  # of the BF16 policy, the output is BF16
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train(step, model, optimizer)


fsdp = {n: worst(run(with_fsdp, n, shard)) for n in (1, 2, 4)}
print(f"{'ranks':>5}{'loss':>10}{'bytes a parameter':>19}{'peak':>12}   sent")
for n, (losses, largest, peak, said) in fsdp.items():
    print(f"{n:>5}{losses[-1]:>10.6f}{static(largest) / phi:>19.2f}{human_bytes(peak):>12}   {said}")
claims.record(
    "C14",
    "FSDP: 1/N of parameters, gradients, state",
    "8 blocks, fully_shard, 4 ranks",
    static(fsdp[1][1]) / static(fsdp[4][1]),
    "times less",
    3.9,
    4.1,
)
claims.record(
    "C14",
    "FSDP sends 3 Φ",
    "8 blocks, fully_shard, 4 ranks",
    fsdp[4][3].volume / (FP32 * phi),
    "x parameters",
    2.99,
    3.01,
)
claims.record(
    "C14",
    "about N times less memory",
    "8 blocks, the peak, 4 ranks",
    runs[0, 4][2] / fsdp[4][2],
    "times less",
    3.5,
    4.5,
)

# %% [markdown] name="fsdp_explained"
# The losses, the law and the bytes sent are the same as by hand, with fewer messages: three a block. "About N times less" is true of the static part but not of the peak: gathered units and packed messages are not divided by N. (Messages travel alongside the computation, so the peak differs by up to a MiB from rank to rank and from run to run; the tables show the rank with the most.)
#
# ### Units
#
# **Predict.** The whole model as one unit, every two blocks, or each block: which has the lowest peak? And how many MiB lower is the peak when each of the 8 blocks is a unit than when the whole model is one? A block's parameters take 2.0 MiB.

# %% name="guess_units"
my_guess = None  # MiB that the peak falls from "whole model" to "each block"
### BEGIN GUESS
my_guess = 7 * 526_080 * 4 / 2**20  # seven blocks fewer are whole at a time
### END GUESS
units_guess = Prediction("Whole model as a unit minus each block a unit, 4 ranks", my_guess, "MiB")

# %% name="units"
peaks = {}
for units in ("whole", "pairs", "blocks"):
    ranks = run(lambda: with_fsdp(shard, units, reshard_after_forward=True), 4)  # noqa: B023
    losses, largest, peaks[units], said = worst(ranks)
    print(f"{units:7} peak {human_bytes(peaks[units]):>10}, loss {losses[-1]:.6f}, sent {said}")
losses, _, kept_peak, said = worst(run(lambda: with_fsdp(shard, reshard_after_forward=False), 4))
print(f"{'keep':7} peak {human_bytes(kept_peak):>10}, loss {losses[-1]:.6f}, sent {said}")
units_guess.reveal((peaks["whole"] - peaks["blocks"]) / 2**20)
claims.record(
    "T21",
    "smaller units, lower peak",
    "4 ranks, whole model / each block",
    peaks["whole"] / peaks["blocks"],
    "times",
    1.2,
    10,
)

# %% [markdown] name="units_explained"
# It is more than the seven blocks' parameters. At the end of a unit's backward pass its gradients are whole, and next to them is the buffer in which they are packed for the reduce-scatter. A unit costs its size two or three times over.
#
# The last line is `reshard_after_forward=False`: parameters stay whole from the forward to the backward pass. That sends 2 Φ instead of 3 Φ, but all parameters are whole at the peak. It pays if the interconnect is slow and parameters are small compared with the rest.
# (It sends what ZeRO-2 sends. Between steps, the parameters are still sharded.)
#
# ### Policies: mixed precision, offload
#
# `MixedPrecisionPolicy` gathers and computes in 16 bits; shards and optimizer stay FP32. `CPUOffloadPolicy` keeps shards in the host's memory and moves a unit to the GPU when its turn comes. (On a CPU it runs but moves nothing: host and device are the same.)
#
# **Predict.** With the BF16 policy, and gradients still reduced in FP32, how much does a rank send, in units of the parameters in FP32? In FP32 it was 3.

# %% name="guess_policies"
my_guess = None
### BEGIN GUESS
my_guess = 2 * 0.5 + 1  # two gathers at half the bytes, one reduction at full size
### END GUESS
bf16_guess = Prediction("Sent with the BF16 policy", my_guess, "x parameters in FP32")

# %% name="policies"
bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
policies = {"FP32": {}, "BF16": {"mp_policy": bf16}, "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)}}
table = {}
for name, options in policies.items():
    losses, largest, peak, said = worst(run(lambda: with_fsdp(shard, **options), 4))  # noqa: B023
    table[name] = said.volume / (FP32 * phi)
    print(
        f"{name:8} loss {losses[-1]:.6f}, peak {human_bytes(peak):>10}, {static(largest) / phi:.2f} bytes a parameter, sent {table[name]:.2f} x parameters in FP32"
    )
bf16_guess.reveal(table["BF16"])
claims.record(
    "T21",
    "BF16 policy: gathers halve, reduction stays FP32",
    "4 ranks",
    table["BF16"],
    "x parameters in FP32",
    1.99,
    2.01,
)

# %% [markdown] name="old_text"
# With BF16 the gathered block is half as large, so the peak is lower. The static 4 bytes stay, because shards and optimizer are FP32, which keeps small updates alive ([[number_formats]]). The loss differs in the fourth digit.
#
# ### The older wrapper
#
# You will meet `FullyShardedDataParallel` in older code. It packs a unit into one flat parameter; `auto_wrap_policy` chooses the units. The idea and the bytes are the same; new code should use `fully_shard`.


# %% name="old"
def older(model):
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=rank_device()
    )


losses, largest, peak, said = worst(run(lambda: with_fsdp(older), 4))
print(
    f"loss {losses[-1]:.6f}, peak {human_bytes(peak)}, {static(largest) / phi:.2f} bytes a parameter, sent {said.volume / (FP32 * phi):.2f} x parameters"
)
claims.record(
    "T21", "the older wrapper: same law", "8 blocks, 4 ranks", static(largest) / phi, "bytes a parameter", 3.9, 4.2
)

# %% [markdown] name="planner_text"
# ## 4 · Large ones, planned
#
# One rank of 1,024 runs the same program as one of 4. The planner ([[where_memory_goes]]) runs PyTorch's own `fully_shard` on a fake process group, so it can count for any number of ranks. All 80 layers of Llama-2-70B take it about half a minute (`python -m helpers plan --model llama-2-70b --ranks 8 --shard zero3 ...`). A plan is the same on every machine, so those in this lab were made beforehand: `planned` looks them up, and plans any that are missing.
#
# **Predict.** 69 billion parameters in BF16 with AdamW in BF16: 8 bytes each ([[mixed_precision]]'s price for pure BF16). One sequence of 2,048 tokens a rank, every layer checkpointed. How many GiB is the peak on each of 8 ranks? An "80 GB" GPU shows 79.1 GiB.

# %% name="guess_70b"
my_guess = None  # GiB a rank
### BEGIN GUESS
my_guess = 69e9 * 8 / 8 / 2**30 + 6  # the static part, plus something for activations and gathered layers
### END GUESS
seventy_guess = Prediction("Peak of 70B on 8 ranks", my_guess, "GiB")

# %% name="seventy"
recipe = {"precision": "bf16", "optimizer_impl": "fused", "checkpointing": "every", "seq": 2048, "shard": "zero3"}
RANKS = (8, 64, 1024)
plans = dict(zip(RANKS, planned([Recipe("llama-2-70b", ranks=n, **recipe) for n in RANKS]), strict=True))
seventy = {n: plan.peak_allocated_bytes for n, plan in plans.items()}
lines = [["GiB a rank", *(f"{n:,} ranks" for n in RANKS)]]
for tenant in plans[8].at_peak:
    held = [plan.at_peak[tenant] / GiB for plan in plans.values()]
    if max(held) > 0.005:
        lines.append([tenant, *(f"{size:.2f}" for size in held)])
lines.append(["PEAK", *(f"{size / GiB:.2f}" for size in seventy.values())])
lines.append(["reserved, up to", *(f"{plan.reserved_bytes[1] / GiB:.2f}" for plan in plans.values())])
print(text_table(lines))
seventy_guess.reveal(seventy[8] / GiB)
claims.record(
    "C14",
    "70B trains on 8 x 80 GB (79.1 GiB)",
    "BF16, AdamW, 2,048 tokens, planned",
    seventy[8] / GiB,
    "GiB allocated",
    0,
    79.1,
)
claims.record(
    "C14",
    "about N times less memory",
    "70B, from 8 to 1,024 ranks, planned",
    seventy[8] / seventy[1024],
    "times less",
    100,
    140,
)

# %% [markdown] name="seventy_explained"
# With pure BF16 the allocated tensors fit (but remember [[number_formats]]: small updates are lost). The allocator reserves more ([[profiling_and_oom_clinic]]), and that decides: look at the upper end before you rent.
#
# Then the 1/N law ends. On 1,024 ranks the static part is half a GiB. The rest is not sharded: the checkpointed inputs of 80 layers (32 MiB each), the currently gathered layer, embedding and head, and the gradients of that layer, whole and packed for their message. From there
# on more ranks save nothing; tensor or sequence parallelism ([[tensor_parallel]]) does.
#
# ### Play
#
# For each stage, what is the smallest number of ranks that fits 7B in FP32, with 4 GiB of activations, onto 24 GB GPUs? Which stage never gets there?

# %% name="play"
PARTS = {"parameters": (4, 3), "gradients": (4, 2), "optimizer state": (8, 1)}  # bytes each, sharded from stage


def bars(stage, ranks, activations_in_GiB):
    number = 0 if stage == "DDP" else int(stage[-1])
    figure = Figure(figsize=(7, 1.9), layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for (tenant, (each, sharded_from)), colour in zip(PARTS.items(), COLOURS, strict=False):
        size = 6.74e9 * each / GiB / (ranks if number >= sharded_from else 1)
        axes.barh("one rank", size, left=left, color=colour, label=tenant)
        left += size
    axes.barh("one rank", activations_in_GiB, left=left, color=COLOURS[3], label="activations")
    for name, line in (("rtx-4090-24gb", ":"), ("h100-80gb", "--")):
        axes.axvline(find_gpu(name).total / GiB, color="black", ls=line, label=name)
    total = left + activations_in_GiB
    axes.set(title=f"7B, FP32, Adam; {stage}, {ranks} ranks: {total:.1f} GiB each", xlabel="GiB", xlim=(0, 150))
    figure.legend(loc="outside right upper", frameon=False)
    return figure


explore(
    bars,
    "Bytes of a 7B model on one rank, by tenant, compared with the size of common GPUs.",
    stage=("ZeRO-3", ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")),
    ranks=(8, (1, 2, 4, 8, 16, 64, 256)),
    activations_in_GiB=(4, range(0, 41)),
)

# %% [markdown] name="checkpoint_text"
# ## 5 · Saved on 4 ranks, resumed on 2
#
# No rank holds the whole model. To export it, gather it on one rank (`StateDictOptions(full_state_dict=True, cpu_offload=True)`), which takes host memory and time. To resume later, each rank writes its own part with `torch.distributed.checkpoint`. On loading, each reads what it needs, even if the number of ranks has changed.
#
# `dcp.load` fills existing tensors. So we first take the state, which also creates the optimizer's moments, and then fill it. The control loads the weights but not the moments. (A real run also saves scheduler, position in the data and random state.)


# %% name="checkpoint"
def run_on(path, steps, save_after=None, load=()):
    """Train; save after `save_after` steps, or `load` "model" and "optimizer" first. Return the joint losses."""
    model = shard(make_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    if load:
        saved = state()
        dcp.load({part: saved[part] for part in load}, checkpoint_id=path)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    x, y = rows()
    losses = []
    for i in range(1, steps + 1):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
        if i == save_after:
            dcp.save(state(), checkpoint_id=path)
    return losses


with tempfile.TemporaryDirectory() as folder:
    through = run(run_on, 4, folder, 8, 3).results[0]
    files = sorted(path.name for path in Path(folder).iterdir())
    after = run(run_on, 2, folder, 5, None, ("model", "optimizer")).results[0]
    forgetful = run(run_on, 2, folder, 5, None, ("model",)).results[0]
print("files:", ", ".join(files))
print("4 ranks, steps 4 to 8:", " ".join(f"{loss:.7f}" for loss in through[3:]))
print("2 ranks, resumed:     ", " ".join(f"{loss:.7f}" for loss in after))
print("without the moments:  ", " ".join(f"{loss:.7f}" for loss in forgetful))
furthest = max(abs(a - b) / a for a, b in zip(through[3:], after, strict=True))
claims.record(
    "T23", "resumed on another number of ranks: same losses", "4 to 2 ranks, 5 steps", furthest, "relative", 0, 1e-5
)

# %% [markdown] name="deepspeed_text"
# ## 6 · DeepSpeed
#
# DeepSpeed brought ZeRO to the world. A JSON file (or a dictionary) says what to shard; `deepspeed.initialize` returns an *engine* that has `backward` and `step`. The helper `deepspeed_config` builds the configuration from this course's terms:

# %% name="config"
print(
    json.dumps(
        deepspeed_config(stage=3, micro_batch=4, accumulate=8, precision="bf16", offload="all", clip=1.0), indent=2
    )
)

# %% [markdown] name="config_explained"
# - `zero_optimization.stage` is the table at the top of this lab.
# - `offload_optimizer` and `offload_param` keep optimizer state and parameters in the host's memory; the optimizer then steps on the CPU, for which DeepSpeed compiles its own Adam.
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
    model = make_model()
    config = deepspeed_config(stage, ROWS // dist.get_world_size(), offload=offload)
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config, dist_init_required=False
    )
    x, y = rows()
    losses = []
    for _ in range(3):
        loss = F.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    inner = getattr(optimizer, "optimizer", optimizer)
    state = sum(t.nbytes for slots in inner.state.values() for t in slots.values() if isinstance(t, torch.Tensor))
    return losses, state


if importlib.util.find_spec("deepspeed"):
    for stage, offload in ((0, "none"), (1, "none"), (2, "none"), (3, "none"), (2, "optimizer")):
        ranks = run_ranks(with_deepspeed, 2, stage, offload, device=everywhere, timeout=400, measure=False, show=False)
        losses, state = ranks.results[0]
        print(
            f"stage {stage}, offload {offload:9} loss {losses[-1]:.6f} (ours {runs[0, 2][0][-1]:.6f}), optimizer state {state / (8 * phi):.2f} of DDP's"
        )
        if stage:
            claims.record(
                "T22",
                "stages 1 to 3 halve the state on 2 ranks",
                f"DeepSpeed stage {stage}, offload {offload}",
                state / (8 * phi),
                "of DDP's",
                0.49,
                0.52,
            )
else:
    print("DeepSpeed is not installed, so this cell does nothing.")

# %% [markdown] name="nodes_text"
# ## 7 · More than one machine
#
# Nothing in the programs changes. You start one `torchrun` on every machine (*node*). They meet at one address and number their ranks consecutively: `RANK` counts across all nodes, `LOCAL_RANK` within one. Here are two "nodes" of two ranks each, on this one machine.

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
claims.record(
    "T23",
    "two nodes of two make one world of four",
    "two torchruns on this machine",
    sum("of 4, sum 1111" in line for line in lines),
    "ranks agree",
    4,
    4,
)

# %% [markdown] name="slurm_text"
# On two real machines, replace `127.0.0.1` with the address of the first, and give each machine its own `--node-rank` and the same code. They must reach each other on **all** ports: 29500 is only where they meet; NCCL and gloo open others. If they pick the wrong network card, set
# `NCCL_SOCKET_IFNAME` (gloo: `GLOO_SOCKET_IFNAME`). On a cluster a scheduler starts the launchers for you. For Slurm:
#
# ```bash
# #!/bin/bash
# #SBATCH --nodes=2
# #SBATCH --ntasks-per-node=1        # one torchrun a node; it starts the ranks
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
# With several nodes, shard inside a node and replicate between nodes, if the GPUs of one node can hold the model (*hybrid* sharding). Then only gradients cross the slow links, and the law is 16 / 8, not 16 / 16. For two nodes of eight:
#
# ```python
# mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
# fully_shard(block, mesh=mesh)
# ```
#
# ## 8 · Your turn: shard it, for real
#
# **Contract.** `make_sharded(model, mesh)` is called on every rank, with 2 and with 4 ranks, and returns the model to train with.
#
# - `mesh` is the `DeviceMesh` of all ranks.
# - `model` is the same on every rank: FP32, whole, on the rank's device. `model.blocks` is an `nn.ModuleList` of equal blocks; the model has some parameters outside them, too.
# - `F.mse_loss(result(x), y).backward()` followed by a step of `torch.optim.AdamW(result.parameters())` must train in FP32 as DDP would: each rank has its part of the rows, gradients are averaged.
# - Each rank holds its 1/N of parameters, gradients and optimizer state, and no copy of anything.
# - The **peak** of a training step on a rank is at most that static part plus six times the parameters of a block.
#
# The check takes about ten seconds.


# %% name="sharded" answer=true reveal=true
def make_sharded(model, mesh):
    ### BEGIN SOLUTION
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # what is outside the blocks, and the root that coordinates them
    return model
    ### END SOLUTION


# %% name="sharded_check"
make_sharded = check("sharding.sharded", make_sharded)

# %% name="sharded_hint"
hint("sharding.sharded")

# %% [markdown] name="summary_text"
# ## 9 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - DDP keeps 16 bytes a parameter on every rank. ZeRO-1: 8 + 8/N. ZeRO-2: 4 + 12/N. ZeRO-3 = FSDP: 16/N.
# - Stages 1 and 2 send what DDP sends, 2 Φ; stage 3 sends 3 Φ.
# - The peak has a floor that N does not divide: the gathered unit, its gradients, activations, logits. Smaller units mean a lower floor and more messages.
# - Sharded checkpoints do not care how many ranks wrote them.
#
# **What to reach for when.** The model fits with room to spare: DDP. The optimizer state does not: ZeRO-1 (`ZeroRedundancyOptimizer` with DDP) or 2 (DeepSpeed; `fully_shard` with `reshard_after_forward=False` comes close). The parameters do not: `fully_shard`. The layer or the sequence does not: [[tensor_parallel]]. Not enough GPUs: offload, and patience.
#
# **Sources.** Rajbhandari et al. 2020, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*; Zhao et al. 2023, *PyTorch FSDP*; PyTorch documentation, `fully_shard`, `torch.distributed.checkpoint`, `torchrun`; DeepSpeed documentation, *Configuration JSON*.
