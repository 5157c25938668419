# %% [markdown] name="title"
# # Tensor parallelism in practice
#
# **A split block is not yet a model that trains: the softmax runs over the whole vocabulary, the norms see every token on every rank, and clipping needs one norm of all gradients. You split the loss and the sequence, train on a mesh of four ranks, and calculate which links are fast enough.**
#
# | | |
# |---|---|
# | After this you can | compute a loss without holding all logits; split the sequence, and predict what that saves and sends; choose random seeds for ranks; write a plan for `parallelize_module` and count its messages; train on a mesh of tensor parallelism and sharding, with clipping and a fused optimizer; calculate how long GPUs wait for messages |
# | Time | 85 to 110 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#tensor_parallel]], [[#activation_checkpointing]] and [[#fully_shard]] |
# | Syllabus | T20, T36 |

# %% name="setup" setup=true
from helpers import (
    Claims,
    Collectives,
    MemoryMeter,
    Prediction,
    RankError,
    check,
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
from helpers.exercises.tensor_parallel.block import HEADS, KV_HEADS, C, T, block_input, make_block
from helpers.exercises.tensor_parallel.block_step import relative, saved_by, step
from helpers.exercises.tensor_parallel.built import Enter, Leave, column, kv_heads_of
from helpers.exercises.tensor_parallel.cut_block import cut_block
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.exercises.tensor_parallel.pictures import mesh_picture
from helpers.exercises.tensor_parallel_in_practice.overlap_picture import overlap_picture
from helpers.planner.catalog.clusters import find_cluster

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)  # all runs of this lab: on GPUs if there is one for each of four ranks
claims = Claims(device=where)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if where.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="again_text"
# This lab continues [[tensor_parallel]], from which you need four things. The course's versions are imported above.
#
# - **`Enter` and `Leave`** are the autograd functions for the points where the ranks' paths split and merge. `Enter` passes its tensor through and sums the gradient over the ranks. `Leave` sums its tensor and passes the gradient through. Each sum is an all-reduce.
# - **`column(x, weight)`** is a linear layer whose outputs are split across the ranks. It calls `Enter`.
# - **The block** has two halves, attention and an MLP. In each half the paths split once and merge once, so a step takes four all-reduces. `cut_block` keeps this rank's part of each matrix, and calls one function before each half and another one after it. The 8 query heads share 2 K/V heads.
# - Between a split and a merge, each rank has a part of the activations. The residual stream and the norms' outputs are **complete** on every rank.
#
# The next cell runs that block on four ranks.


# %% name="again"
def part_of_block(split, merge):
    """Return this rank's part of the block, which calls `split` before each half and `merge` after it."""
    serving = kv_heads_of(dist.get_rank(), dist.get_world_size(), HEADS, KV_HEADS)
    return cut_block(make_block(), serving, split, merge)


def block_on_ranks():
    x, whole, block = block_input(), make_block(), part_of_block(Enter.apply, Leave.apply)
    return relative(step(block, x)["y"], step(whole, x)["y"]), saved_by(block, x) / saved_by(whole, x)


far, tensor_share = run_ranks(block_on_ranks, RANKS, device=where, measure=False).results[0]
print(f"output off by {far:.1e}; each rank saves {tensor_share:.2f} of one process's activations")

# %% [markdown] name="vocabulary_text"
# ## 1 · A loss without the full logits
#
# The largest activation of a language model is often its last: the logits, one number for each token and each vocabulary entry. The output layer is split by columns, so each rank has the logits of V/N entries.
#
# The embedding table is split by entries, too. A lookup is easy: a rank returns zeros for tokens that it does not hold, and `Leave` sums where the paths merge.


# %% name="embed"
VOCABULARY = 4096


def embed(ids, table):
    """Look up ids (...) in a table of which this rank holds `table` (V/N, C); return the full (..., C)."""
    local = ids - dist.get_rank() * len(table)
    mine = (local >= 0) & (local < len(table))
    return Leave.apply(F.embedding(local.clamp(0, len(table) - 1), table) * mine[..., None])


def embedding_on_ranks():
    torch.manual_seed(0)
    table = torch.randn(VOCABULARY, C, device=rank_device())
    ids = torch.randint(VOCABULARY, (2, T), device=rank_device())
    return relative(embed(ids, table.chunk(dist.get_world_size())[dist.get_rank()]), table[ids])


print(f"embedding off by {run_ranks(embedding_on_ranks, RANKS, device=where, measure=False).results[0]:.1e}")

# %% [markdown] name="vocabulary_guess_text"
# The loss is harder, because the softmax of a token runs over the whole vocabulary. If the ranks gathered the logits, each would have to receive and hold all of them. The next exercise computes the loss without gathering them.
#
# ### Your turn: the loss
#
# The cross-entropy of a token is the logarithm of a sum of exponentials minus the target's logit: log Σ exp(zᵢ) − z_target. Subtracting the same number from all logits does not change it. Subtract the largest logit, and no exponential overflows.
#
# **Contract.** `cross_entropy(logits, targets)` is called on every rank and returns the mean loss, the same on each rank, as a tensor without dimensions.
#
# - `logits` (n, V/N) are those for this rank's part of the vocabulary, in rank order: rank 0 has tokens 0 to V/N − 1. `targets` (n,) is complete and the same on each rank. A target is a token from 0 to V − 1, or -100, which is ignored. At least one target is not -100, and the mean is over those that are not.
# - After every rank has called `backward()` on the loss or on a multiple of it, the gradient of `logits` is this rank's part of one process's gradient.
# - Logits may be as large as ±10,000, and the target's logit may be the smallest. Loss and gradient must stay finite and correct.
# - The forward pass sends only all-reduces, of 3 n numbers in total. The backward pass sends nothing.
# - It makes no tensor as large as the full logits, and does not change `logits` or `targets`. The loss and the gradient have the dtype of `logits` (FP32 or FP64). `Leave` may help.


# %% name="loss" answer=true reveal=true
def cross_entropy(logits, targets):
    ### BEGIN SOLUTION
    held = logits.shape[1]  # tokens of the vocabulary on this rank
    largest = logits.detach().amax(dim=1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)  # a constant: it cancels
    shifted = logits - largest[:, None]
    exponentials = Leave.apply(shifted.exp().sum(dim=1))  # (n,)
    local = targets - dist.get_rank() * held
    here = (local >= 0) & (local < held)
    picked = shifted.gather(1, local.clamp(0, held - 1)[:, None])[:, 0]
    picked = Leave.apply(picked.where(here, torch.zeros_like(picked)))  # one rank has it, the others add 0
    counts = targets != -100
    return ((exponentials.log() - picked) * counts).sum() / counts.sum()
    ### END SOLUTION


# %% name="loss_check"
cross_entropy = check("tensor_parallel_in_practice.loss", cross_entropy)

# %% name="loss_hint"
hint("tensor_parallel_in_practice.loss")

# %% [markdown] name="vocabulary_peak_text"
# The next cell measures the peak of the output layer and the loss, forward and backward. One process, with PyTorch's `F.cross_entropy`, holds three tensors of the size of its logits at its peak: the logits, their log-softmax, and a gradient. On each of four ranks, the logits are a quarter as large. How many tensors of that size does your function hold?
#
# **Predict.** On each of four ranks, what fraction of one process's peak do the output layer and the loss need?

# %% name="vocabulary_guess"
my_guess = None  # peak on each of 4 ranks / peak of one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
loss_peak_guess = Prediction("Peak of output layer and loss on each of 4 ranks", my_guess, "of one process")


# %% name="loss_run"
def head_and_loss(h, head, loss):
    """Return the loss, the gradients, the collectives and the peak of an output layer with its loss."""
    h, head = (t.detach().clone().requires_grad_() for t in (h, head))
    with Collectives() as seen, MemoryMeter(device=h.device) as profile:
        value = loss(h, head)
        value.backward()
    return value.detach(), h.grad, head.grad, seen.calls, profile.peak_bytes


def vocabulary_on_ranks():
    torch.manual_seed(0)
    n, here = 512, rank_device()
    h, head = torch.randn(n, C, device=here), torch.randn(VOCABULARY, C, device=here) / 4
    targets = torch.randint(VOCABULARY, (n,), device=here)
    targets[::5] = -100
    part = head.chunk(dist.get_world_size())[dist.get_rank()]
    right = head_and_loss(h, head, lambda h, head: F.cross_entropy(F.linear(h, head), targets))
    mine = head_and_loss(h, part, lambda h, part: cross_entropy(column(h, part), targets))
    far = [relative(a, b) for a, b in zip(mine[:2], right[:2], strict=True)]
    far.append(relative(mine[2], right[2].chunk(dist.get_world_size())[dist.get_rank()]))
    return far, mine[3], (right[4], mine[4]), n


far, calls, peaks, n = run_ranks(vocabulary_on_ranks, RANKS, device=where, measure=False).results[0]
print("off by: loss {:.1e}, gradient of the hidden states {:.1e}, of the weights {:.1e}".format(*far))
sent = sum(call.nbytes for call in calls if call.nbytes < n * C * 4)  # the one of n x C is column's, not the loss's
print(f"all-reduced by the loss: {sent / n:.3g} bytes per token; full logits have {VOCABULARY * 4:,}")
loss_peak_guess.reveal(peaks[1] / peaks[0])
for name, peak, held in zip(("one process", "each rank"), peaks, (VOCABULARY, VOCABULARY // RANKS), strict=True):
    print(f"{name:11}: peak {human_bytes(peak)}, {peak / (n * held * 4):.1f} times its logits")
claims.record(
    "T36", "a loss without the full logits equals one process", "4 ranks, FP32", max(far), "relative", 0, 1e-5
)

# %% [markdown] name="loss_explained"
# The loss sends three numbers per token, whatever the size of the vocabulary: the largest logit, the sum of the exponentials, and the target's logit, to which all ranks but one add 0. The backward pass sends nothing. It needs the softmax, minus 1 at the target. A rank computes its part of that from its own logits and from the sums, which every rank has.
#
# The peak does not fall to a quarter. The last two lines give the peak as a multiple of the logits that each process holds. The course's solution has the larger multiple of the two, because PyTorch's cross-entropy fuses steps that the solution writes out. Yours may differ, depending on how many tensors of this size it holds at a time. (PyTorch has `loss_parallel()` for split logits, and `RowwiseParallel` for embeddings.)
#
# ## 2 · The sequence as well
#
# In the block, the norms, the residual stream and the inputs of both halves are complete on every rank. But the norms and the residual additions treat each token separately. So outside the two halves, each rank can work on a part of the **tokens**: X[B, T_r, C]. This is *sequence parallelism*.
#
# Where the paths split, the tokens are now *gathered*. Where the paths merge, the sum is *scattered*. An all-gather and a reduce-scatter replace each all-reduce, and together they send the same number of bytes.
#
# **Predict.** With tensor parallelism alone, each rank saves the share of the activations that the first cell of this lab printed. What fraction of one process's activations does each of the four ranks save now?

# %% name="sequence_guess"
my_guess = None  # saved on each of 4 ranks / saved by one process
### BEGIN GUESS
my_guess = 0.25  # now everything is split
### END GUESS
sequence_saved_guess = Prediction("Activations on each of 4 ranks", my_guess, "of one process")

# %% [markdown] name="sequence_contract"
# ### Your turn: gather and scatter
#
# **Contract.** Write two autograd functions that replace `Enter` and `Leave`. Dimension 1 is the sequence.
#
# - `Gather.apply(x)` gets this rank's tokens x (B, T/N, ...) and returns all tokens (B, T, ...) in rank order, the same on each rank.
# - `Scatter.apply(x)` gets this rank's partial sums x (B, T, ...) of all tokens and returns the sum over ranks for this rank's tokens (B, T/N, ...).
# - The loss is now the sum of the ranks' losses, each computed from the rank's own tokens. After every rank has called `backward()`, each gradient equals that of one process, or the part of it that belongs to this rank's tokens.
# - Each function calls one collective in the forward pass and one in the backward pass, and sends no more bytes than necessary. Results and gradients have the dtype of x.
# - Do not change any input or incoming gradient. They need not be contiguous.
#
# `dist.all_gather_into_tensor(full, mine)` and `dist.reduce_scatter_tensor(mine, full)` need contiguous tensors. `full` holds the ranks' tensors one after the other along dimension 0.


# %% name="sequence" answer=true reveal=true
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        n, mine = dist.get_world_size(), x.contiguous()
        full = mine.new_empty(n * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(full, mine)
        tokens = full.chunk(n)
        return torch.cat(tokens, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        parts = torch.cat(gradient.chunk(dist.get_world_size(), dim=1))  # a contiguous copy, rank after rank
        added = parts.new_empty(len(gradient), *parts.shape[1:])
        dist.reduce_scatter_tensor(added, parts)
        return added
        ### END SOLUTION


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        return Gather.backward(ctx, x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        return Gather.forward(ctx, gradient)
        ### END SOLUTION


# %% name="sequence_check"
Gather, Scatter = check("tensor_parallel_in_practice.sequence", Gather, Scatter)

# %% name="sequence_hint"
hint("tensor_parallel_in_practice.sequence")

# %% [markdown] name="sequence_run_text"
# `cut_block` takes your two functions as they are. The line "weight of a norm" is a control: every rank has the norms' weights, but its norms see only its own tokens.


# %% name="sequence_run"
def sequence_on_ranks(change=None):
    """Compare a block with a split sequence with one process; `change` may modify the block first.

    Returns: relative distances, the share of one process's saved bytes, and the bytes sent, as a multiple of those of
    tensor parallelism alone.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    x, whole, block = block_input(), make_block(), part_of_block(Gather.apply, Scatter.apply)
    alone, tensor = step(whole, x), step(part_of_block(Enter.apply, Leave.apply), x)
    if change:
        change(block)
    part = x.chunk(n, dim=1)[rank]
    mine = step(block, part)
    far = {name: relative(mine[name], alone[name].chunk(n, dim=1)[rank]) for name in ("y", "x")}
    norm, right = block.norm_1.weight.grad.clone(), whole.norm_1.weight.grad
    far["weight of a norm"] = relative(norm, right)
    dist.all_reduce(norm)
    far["weight of a norm, summed"] = relative(norm, right)
    sent, before = (sum(c.volume for c in [*run["forward"], *run["backward"]]) for run in (mine, tensor))
    return far, saved_by(block, part) / saved_by(whole, x), sent / before


far, sequence_share, sequence_sent = run_ranks(sequence_on_ranks, RANKS, device=where, measure=False).results[0]
sequence_saved_guess.reveal(sequence_share)
print(f"bytes sent: {sequence_sent:.2f} times those of tensor parallelism alone")
for name, distance in far.items():
    print(f"{name:26} off by {distance:.1e}")
claims.record(
    "T36", "sequence parallelism cuts all activations", "sequence parallel", sequence_share, "of one process", 0, 0.27
)

# %% [markdown] name="sequence_explained"
# The ranks send the same bytes as before: each all-reduce has been split into its two halves, and the norms are computed between them. Now the norms' gradients have to be summed over the ranks, once per step. Otherwise the ranks' copies of the norms drift apart. (PyTorch's `SequenceParallel` makes the norms' weights DTensors, whose gradients are then summed over the ranks.)
#
# Activations fall, but not to a quarter, so some tensors are still complete. Count them. One unit is B × T × C numbers, and one process saves 16 units for a block: the inputs of both norms (2), the norms' outputs, which the matmuls need (2), q, k, v for each head and the result of attention (4), and the input and the output of the GELU (4 + 4). The next cell calculates from the measured shares how many of the 16 units are complete on each rank.


# %% name="count"
def complete_units(share):
    """Solve share = (complete + (16 - complete) / RANKS) / 16 for the units that are complete on each rank."""
    return 16 * (share - 1 / RANKS) / (1 - 1 / RANKS)


for name, share in (("tensor parallel", tensor_share), ("sequence parallel", sequence_share)):
    print(f"{name:17}: {share:.3f} of one process, so {complete_units(share):.2f} of 16 units are complete")

# %% [markdown] name="count_explained"
# Tensor parallelism leaves four units complete: the inputs of both norms, and their outputs. Sequence parallelism leaves two, the **gathered outputs of the norms**: a matmul needs its full input for the gradient of its weights. (The count leaves out a few small tensors: the norms' statistics, and attention's sums.)
#
# These two can be split as well. Checkpoint the gather together with the matmuls after it ([[activation_checkpointing]]): each rank saves its own tokens, and gathers all of them again in the backward pass.
#
# **Predict.** How many bytes does each rank send then, as a multiple of those of tensor parallelism?

# %% name="recomputed_guess"
my_guess = None  # times the bytes of tensor parallelism
### BEGIN GUESS
my_guess = 1.5  # half as many collectives again
### END GUESS
recomputed_guess = Prediction("Bytes sent when the tokens are gathered again", my_guess, "times")


# %% name="recomputed"
class Recomputed(nn.Module):
    """Saves its input instead of its intermediate results, and computes those again in the backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.layers = inner, inner.layers

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def gather_again(block):
    block.attention_in, block.mlp_in = Recomputed(block.attention_in), Recomputed(block.mlp_in)


far, again_share, again_sent = run_ranks(sequence_on_ranks, RANKS, gather_again, device=where, measure=False).results[0]
recomputed_guess.reveal(again_sent)
print(f"off by: output {far['y']:.1e}, gradient of x {far['x']:.1e}")
print(f"each rank saves {again_share:.3f} of one process; {complete_units(again_share):.2f} of 16 units are complete")
claims.record(
    "T36", "sequence parallelism cuts all activations", "gathered again", again_share, "of one process", 0, 0.27
)

# %% [markdown] name="recomputed_explained"
# Now everything is split. The price is one more all-gather for each half, on top of the four all-gathers and four reduce-scatters that replaced the all-reduces. Megatron-LM does the same, and overlaps these all-gathers with computation.
#
# ## 3 · Random numbers
#
# Some random numbers must differ between ranks, and some must not. The parts of a split matrix must be *different* on each rank. A dropout mask on a tensor that every rank has in full must be the *same*. One seed for all ranks fails in the first case, and one seed per rank fails in the second.
#
# **Predict.** Each rank has its own seed and applies dropout with p = 0.1 to the residual stream. What fraction of the entries of rank 1's mask differ from rank 0's?

# %% name="random_guess"
my_guess = None  # of the mask's entries
### BEGIN GUESS
my_guess = 0.1
### END GUESS
random_guess = Prediction("Entries of two dropout masks that differ", my_guess, "of all")


# %% name="random"
def random_numbers(seed_of_rank):
    """Return how far this rank's new shard is from rank 0's, and the share of a dropout mask that differs from it."""
    rank, here = dist.get_rank(), rank_device()
    torch.manual_seed(seed_of_rank(rank))
    shard, mask = nn.init.normal_(torch.empty(C, C, device=here)), F.dropout(torch.ones(2, T, C, device=here), 0.1)
    first = shard.clone(), mask.clone()
    for tensor in first:
        dist.broadcast(tensor, src=0)
    return relative(shard, first[0]), (mask != first[1]).float().mean().item()


differing, table = {}, [("4 ranks", "rank 1's shard, distance from rank 0's", "its dropout mask, entries that differ")]
for name, seed_of_rank in {"one seed for all": lambda rank: 7, "a seed for each": lambda rank: 7 + rank}.items():
    far, differing[name] = run_ranks(random_numbers, RANKS, seed_of_rank, device=where, measure=False).results[1]
    table.append((name, f"{far:.2g}", f"{differing[name]:.2f}"))
show_table(table)
random_guess.reveal(differing["a seed for each"])

# %% [markdown] name="random_explained"
# An entry differs if exactly one of the two ranks drops it, which has the probability 2 p (1 − p). With one seed per rank, the ranks apply different masks to the residual stream, and their copies of it are no longer equal.
#
# With one seed for all ranks, the four shards of a matrix are equal. In an MLP all ranks then compute the same partial sums, get the same gradients and stay equal, so the wide layer is no better than one that is a quarter as wide. (This lab does not train that case.)
#
# So Megatron-LM keeps two generators: one with the same state on all ranks of a tensor-parallel group, one with the rank added to the seed. Code between split and merge uses the second. With sequence parallelism, dropout on the residual stream uses the second as well, because each rank then has different tokens. On CUDA `DTensor` gives each shard its own range of one state, so shards differ; on the CPU it does not ([[fully_shard]]).
#
# ## 4 · PyTorch's own tensor parallelism
#
# `parallelize_module` takes a plan that names a style for each layer. The weights become DTensors, and inputs and outputs are redistributed as the styles require. Attention computes with the heads of this rank, so here, too, we shorten the list of K/V heads by hand.
#
# **Predict.** By hand, the block took four all-reduces. How many does a plan need if it names q, k and v one by one as `ColwiseParallel`?

# %% name="torch_guess"
my_guess = None  # all-reduces
### BEGIN GUESS
my_guess = 4
### END GUESS
torch_guess = Prediction("All-reduces with a plan for each layer", my_guess, "")


# %% name="torch_plan"
def split_by_torch(block, mesh, at_the_input=False):
    """Split a block with a plan; `at_the_input`: split the paths once for all layers that share an input."""
    plan = {f"attention_in.layers.{i}": ColwiseParallel() for i in range(3)}
    plan |= {"mlp_in.layers.0": ColwiseParallel(), "attention_out": RowwiseParallel(), "mlp_out": RowwiseParallel()}
    if at_the_input:
        once = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
        parallelize_module(block, mesh, {"attention_in": once})
    parallelize_module(block, mesh, plan)
    block.serving = block.serving[: HEADS // mesh.size()]  # consecutive heads, and K/V heads that divide
    return block


def torch_on_ranks(at_the_input):
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    alone = step(make_block(), block_input())
    mine = step(split_by_torch(make_block(), mesh, at_the_input), block_input())
    far = {name: relative(mine[name], alone[name]) for name in ("y", "x")}
    return far, [*mine["forward"], *mine["backward"]]


# %% name="torch_run"
for name, at_the_input in (("q, k and v one by one", False), ("at their input", True)):
    far, calls = run_ranks(torch_on_ranks, 2, at_the_input, device=where, measure=False).results[0]
    print(f"plan, {name}: output off by {far['y']:.1e}, gradient of x by {far['x']:.1e}; {len(calls)} collectives")
    if not at_the_input:
        torch_guess.reveal(len(calls))
    claims.record("T20", "four all-reduces per block", f"parallelize_module, {name}", len(calls), "calls", 4, 4)

# %% [markdown] name="torch_explained"
# The results are right with both plans, but the first plan sends more. There the paths split separately for q, k and v, so three gradients are all-reduced, where all-reducing their sum would be enough. The second plan splits the paths once, at the shared input. (This runs on two ranks, because two K/V heads cannot be divided among four, and a plan does not add up the gradients of shared heads.)
#
# ## 5 · Two dimensions
#
# Large models combine tensor parallelism within a machine with sharding between machines. Each rank then has two coordinates.

# %% name="mesh_figure"
show(
    mesh_picture(2, 2),
    "Four ranks on a grid: rows are the data dimension, columns the tensor dimension. The ranks of a row share one "
    "batch, and each has half of every matrix. The ranks of a column share that half: each stores half of it and "
    "gathers the rest.",
)

# %% [markdown] name="mesh_text"
# The order matters: first split the matrices along `tensor`, then shard the parts along `data`. Each of the two gets its own dimension of the same mesh.
#
# We train for three steps and clip the gradients in each.
#
# What about the norms? The plan above leaves them alone, so `fully_shard` puts them on the mesh `data`, while the matrices are on `data` × `tensor`. Clipping then fails, as the control below shows. In the next plan, the norms are `SequenceParallel`, so they are on both dimensions, too, and the block works on this rank's tokens.


# %% name="sequence_plan"
def split_with_sequence(block, mesh):
    """Split a block and its sequence with a plan: its input and output are this rank's tokens."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    scatter = RowwiseParallel(output_layouts=Shard(1))
    plan = {"norm_1": SequenceParallel(), "norm_2": SequenceParallel(), "attention_in": gather, "mlp_in": gather}
    plan |= {f"attention_in.layers.{i}": ColwiseParallel() for i in range(3)}
    plan |= {"mlp_in.layers.0": ColwiseParallel(), "attention_out": scatter, "mlp_out": scatter}
    parallelize_module(block, mesh, plan)
    block.serving = block.serving[: HEADS // mesh.size()]
    return block


def block_on_mesh(mesh, sequence):
    """Return a block on a mesh of data x tensor, and the rows and tokens of its input that belong to this rank."""
    block, x = make_block(), block_input().chunk(mesh["data"].size())[mesh.get_local_rank("data")]
    if mesh["tensor"].size() > 1 and sequence:
        split_with_sequence(block, mesh["tensor"])
        x = x.chunk(mesh["tensor"].size(), dim=1)[mesh.get_local_rank("tensor")]
    elif mesh["tensor"].size() > 1:
        split_by_torch(block, mesh["tensor"], at_the_input=True)
    return fully_shard(block, mesh=mesh["data"]), x


# %% name="mesh_train"
LIMIT = 0.05  # of the gradient's norm


def train_alone(steps=3):
    block = make_block()
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    for _ in range(steps):
        block(block_input()).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(block.parameters(), LIMIT)
        optimizer.step()
        optimizer.zero_grad()
    return dict(block.named_parameters()), norm.item()


def train_on_mesh(data, tensor, sequence=True, how="fused", steps=3):
    """Return the largest distance of a weight from one process, both norms, and the bytes sent in the last step."""
    mesh = init_device_mesh(rank_device().type, (data, tensor), mesh_dim_names=("data", "tensor"))
    block, x = block_on_mesh(mesh, sequence)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3, **{how: True})
    for _ in range(steps):
        with MeshTraffic(mesh) as traffic:
            # the mean over this data rank's rows; fully_shard takes the mean over data ranks
            (block(x).square().sum() / (2 // data * T * C)).backward()
        norm = nn.utils.clip_grad_norm_(block.parameters(), LIMIT)
        optimizer.step()
        optimizer.zero_grad()
    alone, right_norm = train_alone(steps)
    far = max(relative(p.full_tensor().detach(), alone[name].detach()) for name, p in block.named_parameters())
    return far, norm.full_tensor().item(), right_norm, traffic.by_dimension()


# %% name="mesh_control"
try:
    run_ranks(train_on_mesh, 4, 2, 2, False, device=where, measure=False, show=False)
except RankError as error:
    print("norms on `data` alone:", str(error).partition("RuntimeError: ")[2].partition(", but got")[0].splitlines()[0])

# %% [markdown] name="mesh_guess_text"
# That was the control: `clip_grad_norm_` stacks the norms of all gradients, and DTensors on two meshes cannot be stacked. Now put the norms on both dimensions.
#
# The two dimensions carry different tensors: parameters and their gradients along `data`, activations along `tensor`. The matrices of the block have 10.5 C² numbers in total, with C = 64. Each data rank has one sequence of 32 tokens, and everything is in FP32. (An all-gather or a reduce-scatter counts as its full message, an all-reduce as twice that.)
#
# **Predict.** On the 2 × 2 mesh, how many bytes does a rank send along `data` for each byte that it sends along `tensor`?

# %% name="mesh_guess"
my_guess = None  # bytes along data / bytes along tensor
### BEGIN GUESS
my_guess = 0.5  # activations travel several times per block
### END GUESS
mesh_guess = Prediction("Bytes along data / bytes along tensor, 2 x 2", my_guess, "")

# %% name="mesh_table"
runs = {
    shape: run_ranks(train_on_mesh, shape[0] * shape[1], *shape, device=where, measure=False).results[0]
    for shape in ((2, 1), (2, 2))
}
table = [("data x tensor", "weights off by", "gradient's norm", "one process", "sent along data", "along tensor")]
for (data, tensor), (far, norm, right, sent) in runs.items():
    traffic = (f"{sent[d]:,} B" for d in ("data", "tensor"))
    table.append((f"{data} x {tensor}", f"{far:.1e}", f"{norm:.5f}", f"{right:.5f}", *traffic))
show_table(table)
mesh_guess.reveal(runs[2, 2][3]["data"] / runs[2, 2][3]["tensor"])
claims.record(
    "T20", "three clipped AdamW steps on a 2 x 2 mesh equal one process", "block", runs[2, 2][0], "relative", 0, 1e-4
)

# %% [markdown] name="mesh_explained"
# With the norms on both dimensions, clipping computes the joint norm over the whole mesh, and every rank clips by the same factor. A fused or foreach AdamW accepts DTensors on two meshes, but not plain tensors among DTensors. (This lab runs neither case.)
#
# On 2 × 2 each rank shares only half of every matrix along `data`, so about half as many bytes travel there as on 2 × 1. They still outweigh the activations. Here the parameters and the gradients travel once per step, whatever the number of tokens (the block is its own root, so it stays gathered for the backward pass). Activations travel several times per layer, but only for 32 tokens.
#
# Bytes are not all that counts. Parameters can be gathered ahead of time. Activations cannot: every rank waits for them.
#
# ## 6 · How long, for a real model
#
# Take the shape of Llama-2-7B (32 layers of width 4,096) and a micro-batch of one sequence of 4,096 tokens in BF16 on 8 H100s. We assume that NVLink carries 450 GB/s per GPU in each direction within a machine, that each GPU has 50 GB/s of InfiniBand to other machines, and that the matmuls reach 40% of an H100's BF16 peak of 989 TFLOP/s. A forward and a backward pass take 6 FLOPs per parameter and token, and the model has 6.74 billion parameters. Each layer sends four all-reduces of its activations, and in an all-reduce over N ranks each rank sends 2 (N − 1) / N times the message ([[data_parallel]]).
#
# **Predict.** Split this model over 8 GPUs in 8 machines. What percentage of the time do the GPUs wait for tensor parallelism's all-reduces?

# %% name="volume_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 40
### END GUESS
volume_guess = Prediction("Time spent waiting, tensor parallel between machines", my_guess, "%")

# %% name="volume"
layers, width, hidden, vocabulary, tokens, ranks = 32, 4096, 11_008, 32_000, 4096, 8
parameters = layers * (4 * width**2 + 3 * width * hidden) + 2 * vocabulary * width  # attention, gated MLP, both tables
cluster = find_cluster("dgx-h100")
computing = 6 * parameters * tokens / (ranks * 0.4 * cluster.gpu.peaks["bfloat16"])  # 6 FLOPs per parameter and token
share = 2 * (ranks - 1) / ranks  # of an all-reduce's message that each rank sends
sent = {  # bytes per rank
    f"tensor parallel, {4 * layers} all-reduces per sequence": share * 4 * layers * tokens * width * 2,
    "data parallel, gradients once per step": share * parameters * 2,
    "pipeline, per sequence and boundary": 2 * tokens * width * 2,
}
table = [("bytes per rank", "", "NVLink", "InfiniBand")]
for name, nbytes in sent.items():
    seconds = (nbytes / link for link in (cluster.inside, cluster.outside))
    table.append((name, f"{nbytes / 1e9:.2f} GB", *(f"{1000 * s:.1f} ms" for s in seconds)))
show_table(table)
print(f"{parameters / 1e9:.2f} billion parameters; computing one sequence on {ranks} GPUs: {1000 * computing:.0f} ms")
sending = {
    name: next(iter(sent.values())) / link
    for name, link in (("NVLink", cluster.inside), ("InfiniBand", cluster.outside))
}
waiting = {name: 100 * seconds / (seconds + computing) for name, seconds in sending.items()}
volume_guess.reveal(waiting["InfiniBand"], "calculated")
print(f"within a machine, over NVLink: {waiting['NVLink']:.0f}%")

# %% [markdown] name="volume_explained"
# The calculation counts bandwidth only; 128 latencies per sequence come on top of that. Between machines the GPUs would wait most of the time, because the computation cannot continue without the activations. Data parallelism sends about three times as many bytes, but only once per step for any number of sequences, and it overlaps with the backward pass. Pipelines send the least.
#
# So use tensor parallelism **within** an NVLink domain (a machine of 8 H100s, or a rack of 72 GPUs in an NVL72), a pipeline **between** domains, and data parallelism or sharding across the rest.
#
# The figures are for an implementation without overlap. Full checkpointing would repeat the first of the two forward all-reduces of each layer, or both, which makes five or six instead of four: with `use_reentrant=False`, PyTorch's `checkpoint` stops recomputing as soon as it has the last saved tensor, and the second all-reduce comes after that. (This lab does not run that case.)
#
# ### Asynchronous tensor parallelism
#
# Must a matmul wait until all of its input has arrived? In section 2 the all-reduces became all-gathers before a matmul and reduce-scatters after one, and both can be cut into chunks of rows. A rank multiplies the rows that it has while the next rows travel, and sends finished rows while it computes the next ones. The bytes stay the same, and so do the results, up to rounding.
#
# **Predict.** You have just seen what percentage of the time GPUs in different machines wait. What is that percentage if every matmul is cut into 8 chunks?

# %% name="async_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 9  # an eighth of it
### END GUESS
async_guess = Prediction("Time spent waiting between machines, 8 chunks", my_guess, "%")


# %% name="async_tp"
def step_seconds(computing, sending, chunks):
    return max(computing, sending) + min(computing, sending) / chunks


table = [("link", "chunks", "one sequence", "waiting")]
for name, seconds in sending.items():
    for chunks in (1, 2, 8):
        took = step_seconds(computing, seconds, chunks)
        table.append((name, str(chunks), f"{1000 * took:.0f} ms", f"{1 - computing / took:.0%}"))
async_guess.reveal(100 * (1 - computing / step_seconds(computing, sending["InfiniBand"], 8)), "calculated")
show_table(table)

# %% [markdown] name="async_explained"
# While one chunk is sent, another is computed. Only one chunk cannot be overlapped. So with c chunks a step takes about
#
# $$\max(t_\text{compute}, t_\text{send}) + \frac{\min(t_\text{compute}, t_\text{send})}{c}$$
#
# seconds. For c = 1 that is the sum of both times, as in the previous calculation. Within a machine nearly all of the waiting is hidden. Between machines the messages take longer than the computation, and no overlap can hide that. Explore both:

# %% name="async_play"
explore(
    lambda link, chunks: overlap_picture(computing, sending[link], chunks),
    "Two rows of bars over time: the messages of a step, and its matmuls. Each matmul begins when its chunk has arrived "
    "and the previous matmul is done.",
    link=("InfiniBand", ("NVLink", "InfiniBand")),
    chunks=(2, (1, 2, 4, 8, 16)),
)

# %% [markdown] name="async_limits"
# More chunks are not always better: with 8 chunks each matmul has an eighth of the rows, here 512, and a matmul with few rows does not fill a GPU ([[where_the_time_goes]]). The norms and the softmax between the matmuls do not overlap with messages, either.
#
# In PyTorch the compiler makes this transformation for blocks that use sequence parallelism (`torch._inductor.config._micro_pipeline_tp`; torchtitan's `enable_async_tensor_parallel`). It needs GPUs that can write to each other's memory. Megatron-LM has it as `--tp-comm-overlap`. This lab runs neither: its cells only calculate times.
#
# ## 7 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A cross-entropy over a split vocabulary sends three numbers per token, and no rank holds all logits.
# - Sequence parallelism sends the same bytes as tensor parallelism. It leaves only the inputs of a block's matmuls complete, and those can be gathered again.
# - If a norm sees only some of the tokens, add up the gradients of its copies. Shards need different random numbers on each rank, and tensors that all ranks hold need the same ones.
# - A plan for `parallelize_module` should split the paths once per half, at the shared input.
# - Put all parameters on the same mesh, norms included: `clip_grad_norm_` needs that.
# - Every rank waits for activations. If matmuls are cut into chunks, messages can hide behind them, but only if the messages take less time.
#
# **What to reach for when.** If one layer or its activations do not fit, use tensor parallelism within an NVLink domain, and split the sequence, too. Shard along the other dimension of the mesh ([[fully_shard]]). With slow links between machines, use a pipeline there.
#
# **Next.** [[Pipeline]] splits the layers among ranks, with the smallest messages of all. [[Choosing_a_layout]] combines all of these.
#
# **Sources.** Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models* (sequence parallelism); Austin et al. 2025, *How to Scale Your Model* (the JAX Scaling Book), chapter 3; PyTorch documentation, `torch.distributed.tensor.parallel`; NVIDIA DGX H100 data sheet (links).
