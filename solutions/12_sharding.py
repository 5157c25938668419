# %% [markdown] name="title"
# # Sharding: ZeRO by hand
#
# **N ranks need not keep N copies of everything. Each rank keeps one part of the optimizer state, the gradients and the parameters, and fetches other parameters only when it needs them.**
#
# | | |
# |---|---|
# | After this you can | write ZeRO's partition, reduction, gathering and hooks; predict bytes per rank and bytes sent at each stage, and measure both; calculate when communication hides behind computation; read a DeepSpeed configuration |
# | Time | 75 to 105 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet. DeepSpeed is optional |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#mixed_precision]] (BF16, master weights), [[#gradient_accumulation]] and [[#data_parallel]] |
# | Syllabus | T22, C14 |
#
# PyTorch's own sharding is in [[fully_shard]].

# %% name="setup" setup=true
import importlib.util
import json
import os

from helpers import (
    Claims,
    Prediction,
    check,
    deepspeed_config,
    device_name,
    explore,
    hint,
    human_bytes,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
)
from helpers.core.progress_line import progress_line
from helpers.exercises.sharding import drawings
from helpers.exercises.sharding.blocks import Blocks, rank_rows
from helpers.exercises.sharding.trained import joint, train, worst
from helpers.planner.catalog.clusters import CLUSTERS

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = pick_device()
everywhere = ranks_device(4)  # the tables compare 1, 2 and 4 ranks, so all of them run where 4 can
claims = Claims(device=everywhere)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if everywhere.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="idea_text"
# ## 1 · What is stored N times
#
# DDP keeps a full copy of everything on every rank. ZeRO divides one copy among the ranks. Where it shards the parameters, too, a rank fetches a layer's parameters from the other ranks when the layer runs, and frees them after use.
#
# In FP32 with Adam a parameter costs 16 bytes ([[where_memory_goes]]): 4 for itself, 4 for its gradient and 8 for the optimizer. Under DDP every rank stores all 16. ZeRO's **stages** shard more and more of them:

# %% name="stages_drawn"
show(
    drawings.shards_figure(),
    "Four ranks, four panels. DDP: every rank has everything. ZeRO-1: each rank has a quarter of the optimizer state. ZeRO-2: also of the gradients. ZeRO-3: also of the parameters.",
)

# %% [markdown] name="stages_table"
# | stage | sharded | bytes per parameter and rank, FP32 (this lab) | 16 bits with master weights (the ZeRO paper) |
# |---|---|---|---|
# | 0 (DDP) | nothing | 16 | 16 |
# | 1 | optimizer state | 8 + 8/N | 4 + 12/N |
# | 2 | also gradients | 4 + 12/N | 2 + 14/N |
# | 3 (FSDP) | also parameters | 16/N | 16/N |
#
# The ZeRO paper counts 16-bit training with FP32 master weights ([[mixed_precision]]): 2 + 2 bytes for the parameter and its gradient, and 12 in the optimizer for the master weight and the moments. The sum is 16 again.

# %% [markdown] name="partition_text"
# ## 2 · ZeRO, by hand
#
# You will write ZeRO's three operations and the hooks that call them; the training loop around them is given.
#
# ### Partition
#
# Parameters come in many shapes, and the number of ranks does not divide every size. So all parameters of a **unit** (here: a block) are laid end to end in one *flat* vector, which is cut into N slices of equal size. Each rank is responsible for one slice, its **shard**.

# %% name="flat_drawn"
show(
    drawings.flat_vector_figure({"up.weight (3, 4)": 12, "up.bias (4,)": 4, "down.weight (5,)": 5}, ranks=4),
    "Parameters of 12, 4 and 5 numbers end to end, then 3 numbers of padding; below, four shards of 6 numbers each. A shard may end in the middle of a parameter.",
)

# %% [markdown] name="partition_contract"
# Parameters become *views* of the flat vector: writing into the vector changes the parameter, without a copy.
#
# **Contract.** `partition(parameters, rank, world_size)` returns `flat` and `shard`.
#
# - `parameters` is a list of `nn.Parameter`s of one dtype on one device.
# - `flat` has one dimension, the parameters' dtype and device, and requires no gradient. It holds their values in the order of the list, followed by just enough zeros to make its length a multiple of `world_size`. Its storage holds nothing else.
# - Each parameter remains the same object with the same shape and values, but its memory is now that of `flat` (assign to `p.data`).
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
# The optimizer updates only the shard, so a rank needs only its slice of the joint gradient. `dist.reduce_scatter_tensor(output, input)` cuts every rank's input into N equal parts, sums the r-th parts of all ranks, and leaves that sum in `output` on rank r.
#
# **Contract.** `reduce_gradients(parameters, shard)` is called on every rank after a backward pass.
#
# - `shard` is an `nn.Parameter`. Afterwards `shard.grad` is the **mean** over all ranks of the gradients of its slice, with zeros for padding.
# - If a parameter's `.grad` is None on this rank, its gradient counts as zeros.
# - If `shard.grad` already exists, the mean is added to it.
# - Afterwards every `p.grad` is None, and `shard.grad` keeps only its own memory alive, not a full gradient. The weights, including those of `shard`, keep their values and their memory.
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
# After the optimizer's step each rank has new values only in its own slice. `dist.all_gather_into_tensor(output, input)` writes the inputs of all ranks, one after the other, into `output` on every rank.
#
# **Contract.** `gather_parameters(flat, shard)` is called on every rank.
#
# - Afterwards `flat` holds the shards of all ranks, in order, in the memory that it had before. The function returns nothing.
# - `shard` is either a view of `flat` or has its own memory. Its values, its gradient and its memory do not change, and `flat` requires no gradient.
# - The function sends one all-gather of the full vector and nothing else.


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
# (`reduce_scatter_tensor` and `all_gather_into_tensor` are the *tensor collectives*. `reduce_scatter` and `all_gather` take lists instead, for which NCCL needs one more flat copy. PyTorch 2.13 adds the names `reduce_scatter_single` and `all_gather_single`.)
#
# ### Hooks
#
# Which stage of ZeRO you get depends on when the three functions are called:
#
# - **Stage 1**: after the backward pass, reduce all blocks, update the shards, and gather.
# - **Stage 2**: the same, but each block is reduced *as soon as its gradients are ready*.
# - **Stage 3**: parameters are freed, too. Each block's vector is complete while the block computes, forward or backward, and holds no memory at other times.
#
# The model's code does not change, so the calls go into **hooks**: functions that PyTorch calls at certain points.
#
# | registered by | is called |
# |---|---|
# | `module.register_forward_pre_hook` | before the module's `forward` |
# | `module.register_forward_hook` | after it |
# | `module.register_full_backward_pre_hook` | when the gradient of the module's output is known |
# | `module.register_full_backward_hook` | when the gradients of its inputs are known; if no input requires a gradient, right after the pre-hook in the row above, that is, before the module's backward pass |
# | `parameter.register_post_accumulate_grad_hook` | after `parameter.grad` has been written |
#
# Autograd keeps the weights that it needs for the backward pass, so deleting a tensor would not free them. Resizing its storage does: `flat.untyped_storage().resize_(0)` frees the bytes of the vector and of all its views, including those that autograd keeps. Resize the storage back to `flat.nbytes` and fill it, and the vector and all its views are usable again.
#
# **Contract.** `add_hooks(block, flat, shard, stage)` is called once for each block, on every rank, before the first forward pass. `flat` is the vector that `partition` made from `block.parameters()`, and all parameters get a gradient in every backward pass. The blocks run one after the other, each once per forward pass. At stage 2 `shard` is a view of `flat`; at stage 3 it has its own memory.
#
# - At stages 2 and 3 the block's gradients are reduced as soon as the last one is ready, before the backward pass of the previous block begins. `shard.grad` accumulates over backward passes.
# - At stage 3 `flat` has no bytes when `add_hooks` returns, and none after each forward and each backward pass of the block. At stage 2 nothing is freed.
# - At stage 3, `flat` holds the current values of all ranks' shards before the block computes, forward or backward. (At stage 2 the training loop gathers after each step.) The parameters always stay views of `flat`.
# - The input of a block may or may not require a gradient. Under `torch.no_grad()` and in evaluation mode a forward pass gathers and frees in the same way.
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
# Here is a training loop that uses your four functions:


# %% name="unit"
class Unit:
    """A block's parameters: one flat vector, of which this rank keeps a shard."""

    def __init__(self, block, stage):
        self.parameters = list(block.parameters())
        self.flat, mine = partition(self.parameters, dist.get_rank(), dist.get_world_size())
        self.shard = nn.Parameter(mine.clone() if stage == 3 else mine)  # a step on a view changes flat at once
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
# First, correctness: at every stage, on 2 and 4 ranks, the loss must equal that of one process on the joint batch. Then we compare the bytes. (On one rank all stages are the same. DDP runs with `gradient_as_bucket_view=True`. Without that option it would hold its gradients twice ([[data_parallel]]).)


# %% name="stages"
def run(fn, ranks, *args):
    """Return what `fn` returns on each of `ranks` ranks; it takes its own measurements."""
    return run_ranks(fn, ranks, *args, device=everywhere, measure=False).results


def run_cases(fn, ranks, cases):
    """Run `fn(case)` for each case, one after the other, on the same ranks; return each case's worst rank."""
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
            said = f"ZeRO-{stage}: {right:.2f} bytes per parameter, plus at most one block's gradients"
            claims.record("C14", said, "8 blocks, by hand, 4 ranks", held, "bytes", right * 0.99, right + unit)
show_table(table)

# %% name="stages_figure"
held = {stage: {n: got[stage].static / phi for n, got in runs.items() if stage in got} for stage in formula}
show(
    drawings.static_bytes_figure(held),
    "DDP stays at 16 bytes per parameter; on 4 ranks ZeRO-1, 2 and 3 are at about 10, 7 and 4.",
)

# %% [markdown] name="stages_explained"
# The losses are the same everywhere. The formula holds, up to one block's gradients. Under DDP the excess of 0.25 bytes is one gradient that has not yet been copied into its bucket. At stages 2 and 3 a unit's gradients stay unsharded until the last of them is ready. A unit holds an eighth of the parameters, so its gradients take half a byte per parameter of the model. The formula already counts 1/N of that, so the excess is 0.25 bytes on 2 ranks and about 0.37 on 4. Smaller units add less.
#
# The peak falls by less than the static part. It also contains the activations, the unit that is being reduced (its gradients and the flat copy of them), and at stage 3 the gathered block.
#
# ## 3 · What sharding costs in messages
#
# Per step, DDP's all-reduce sends 2 Φ numbers per rank. (Φ is the number of parameters; multiply by (N − 1)/N for N ranks.)
#
# **Predict.** Stage 1 holds less than DDP. How many numbers does it send per step, as a multiple of Φ?

# %% name="guess_volume"
my_guess = None  # stage 1, in multiples of Φ
### BEGIN GUESS
my_guess = 3  # as much as DDP to add up the gradients, and a gather
### END GUESS
volume_guess = Prediction("ZeRO-1 sends", my_guess, "x parameters")

# %% name="volume"
FP32 = 4  # bytes
said = {stage: got.sent for stage, got in runs[4].items()}
sent = {stage: calls.volume / (FP32 * phi) for stage, calls in said.items()}

volume_guess.reveal(sent[1])
for stage, volume in sent.items():
    names = ", ".join(sorted({call.name for call in said[stage].calls}))
    print(f"stage {stage}: {volume:.2f} x parameters in {len(said[stage].calls)} calls ({names})")
most, subject = max(sent[s] for s in (0, 1, 2)), "8 blocks, by hand, 4 ranks"
claims.record("C14", "DDP, ZeRO-1 and ZeRO-2 send 2 Φ", f"{subject}, the most", most, "x parameters", 1.99, 2.01)
claims.record("C14", "ZeRO-3 sends 3 Φ", subject, sent[3], "x parameters", 2.99, 3.01)
swapped = "all-gather and reduce-scatter in place of all-reduce"
claims.record("C14", swapped, f"ZeRO-3, {subject}", said[3].count("all_reduce"), "all-reduces", 0, 0)

# %% [markdown] name="volume_explained"
# Stages 1 and 2 send the same bytes as DDP and hold less. An all-reduce is a reduce-scatter followed by an all-gather, and stages 1 and 2 do these two at different times. (In our loop the all-gather comes after the step, with nothing to hide it behind. Megatron's `--overlap-param-gather` postpones it to the next forward pass.)
#
# Stage 3 sends 50% more: each block is gathered in the forward pass, gathered again in the backward pass, and then reduced. That happens for every micro-batch. (Stage 2 reduces in every backward pass, too. So with accumulation it sends more than stage 1 and more than DDP with `no_sync`, both of which reduce once per step.)
#
# ### When do the messages hide?
#
# Stage 3 must wait for a gather before each block, unless the next block's parameters travel while the current block computes. Then the gather is hidden if it takes no longer than the computation, that is, if each GPU has enough tokens.
#
# Suppose that H100s compute at 40% of their BF16 peak, that is, at 396 TFLOP/s. Within a machine with eight of them, each GPU sends 450 GB/s over NVLink. There, a forward pass hides its gathers if each GPU has at least 880 tokens. For traffic to other machines, each GPU has a network port of 50 GB/s. NCCL runs several rings at once, which leave the machine through different ports ([[data_parallel]], section 8).
#
# **Predict.** Now two such machines share one copy of the parameters, so 16 GPUs take part in each gather. How many tokens per GPU hide the gathers now?

# %% name="guess_hidden"
my_guess = None  # tokens
### BEGIN GUESS
my_guess = 7900  # nine times slower, so nine times the tokens
### END GUESS
hidden_guess = Prediction("Tokens per GPU that hide a gather over two machines", my_guess, "tokens")


# %% name="hidden"
def tokens_that_hide(bytes_per_parameter, flops_per_parameter, rate, link):
    """Return the tokens for which computing takes as long as sending: FLOPs x tokens / rate = bytes / link."""
    return bytes_per_parameter / link * rate / flops_per_parameter


table = [("tokens per GPU needed to hide", "GB/s", "gather, forward", "gather + reduce, backward", "DDP's all-reduce")]
for name in ("dgx-a100", "dgx-h100"):
    cluster = CLUSTERS[name]
    rate = 0.4 * cluster.gpu.peaks["bfloat16"]
    ports = min(cluster.inside, cluster.node * cluster.outside)  # rings leave a machine through all of its ports
    rings = {"one machine": cluster.inside, "machines, all their GPUs": ports, "one GPU per machine": cluster.outside}
    for where, link in rings.items():
        forward = tokens_that_hide(2, 2, rate, link)
        backward = tokens_that_hide(2 + 4, 4, rate, link)  # parameters in BF16, gradients in FP32
        all_reduce = tokens_that_hide(2 * 4, 4, rate, link)  # 2 x gradients in FP32, behind the backward pass
        figures = (f"{tokens:,.0f}" for tokens in (forward, backward, all_reduce))
        table.append((f"{cluster.gpu.name}, {where}", f"{link / 1e9:.0f}", *figures))
show_table(table)
hidden_guess.reveal(tokens_that_hide(2, 2, rate, ports), "calculated")

# %% [markdown] name="hidden_explained"
# A forward pass needs 2 FLOPs per parameter and token, and a gather moves 2 bytes per parameter in BF16. Both are proportional to the number of parameters, so the size of the block cancels.
#
# A ring over two machines is not limited to one port. NCCL gives each of its rings a part of the bytes, and each ring leaves the machine through a different GPU's port. So the link between the machines carries 8 × 50 = 400 GB/s, nearly as much as each GPU's NVLink. A rank is limited to its own port only if all other ranks of its ring are on other machines. That happens when tensor parallelism fills each machine ([[tensor_parallel]]), or between the replicas of hybrid sharding ([[fully_shard]]). (The factor (N − 1)/N is taken as 1, as for many ranks.)
#
# But a flat ring over many machines suffers from latency: each gather of a block takes N − 1 rounds and waits for the slowest rank. More tokens per GPU help, because each message has more computation to hide behind. Fewer ranks per copy help too, as in hybrid sharding. Gradients in BF16 would halve the bytes of the reductions, at the cost of rounding in a sum over all ranks.

# %% [markdown] name="explore_text"
# ### Explore
#
# You want to train a 7B model in FP32, with 4 GiB of activations, on 24 GB GPUs. Which of the four methods can fit at all, and on how many ranks?

# %% name="play"
explore(
    drawings.gpus_figure,
    "Bytes of a 7B model on one rank, by category, compared with the size of common GPUs.",
    stage=("ZeRO-3", ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")),
    ranks=(8, (1, 2, 4, 8, 16, 64, 256)),
    activations_in_GiB=(4, range(0, 41)),
)

# %% [markdown] name="deepspeed_text"
# ## 4 · DeepSpeed (optional)
#
# DeepSpeed introduced ZeRO. A JSON file (or a dictionary) sets what is sharded; `deepspeed.initialize` returns an *engine* with the methods `backward` and `step`. The helper `deepspeed_config` builds the configuration from this course's terms:

# %% name="config"
print(
    json.dumps(
        deepspeed_config(stage=3, micro_batch=4, accumulate=8, precision="bf16", offload="all", clip=1.0), indent=2
    )
)

# %% [markdown] name="config_explained"
# - `zero_optimization.stage` is the stage of the table at the top of this lab.
# - `offload_optimizer` and `offload_param` keep optimizer state and parameters in the host's memory. The optimizer then steps on the CPU, for which DeepSpeed compiles its own Adam. The helper pins that memory if there is a GPU.
# - `train_micro_batch_size_per_gpu` × `gradient_accumulation_steps` × ranks is the effective batch ([[gradient_accumulation]]).
# - `gradient_clipping`: if you leave it out, current versions clip to norm 1. Versions before pull request 8068 (June 2026) did not clip. The helper always writes a value; 0 turns clipping off.
#
# DeepSpeed is optional here. `make install-deepspeed` in a terminal, or `DS_BUILD_OPS=0 pip install deepspeed ninja`, installs it (it needs g++, and compiles for a few minutes on first use). Once it is installed, the next cell runs it on two ranks.


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

# %% [markdown] name="summary_text"
# ## 5 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - DDP keeps 16 bytes per parameter on every rank. ZeRO-1 keeps 8 + 8/N, ZeRO-2 4 + 12/N, and ZeRO-3 (FSDP) 16/N.
# - Without accumulation, stages 1 and 2 send as much as DDP, 2 Φ. Stage 3 sends 3 Φ for every micro-batch.
# - Part of the peak does not shrink with N: the gathered unit, its gradients, and the activations of a given micro-batch.
# - Gathers hide behind computation if each GPU has enough tokens. Rings over several machines use all of each machine's ports.
#
# **What to reach for when.** If the model fits with room to spare, use DDP. If the optimizer state does not fit, use ZeRO-1 (`ZeroRedundancyOptimizer` with DDP) or ZeRO-2 (DeepSpeed; `fully_shard` with `reshard_after_forward=False` comes close). If the parameters do not fit, use `fully_shard` ([[fully_shard]]). If one layer does not fit, see [[tensor_parallel]]; if the sequence does not, [[context_parallel]]. If you do not have enough GPUs, offload, which is slow.
#
# **Sources.** Rajbhandari et al. 2020, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*; Austin et al. 2025, *How to Scale Your Model*, chapter 5 (when communication hides); DeepSpeed documentation, *Configuration JSON*; NVIDIA's DGX data sheets (link speeds).
