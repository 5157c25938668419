# %% [markdown] name="title"
# # Tensor parallel
#
# **A layer that does not fit on one GPU can be cut through its matrices. The art is to send the right sums in the right places, in the backward pass too.**
#
# | | |
# |---|---|
# | After this you can | split a linear layer by columns or rows and get the gradients right; say which sums a transformer block needs and where; count what tensor parallelism saves and sends |
# | Time | 60 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the same cells use NCCL |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#data_parallel]] and [[#sharding]] |
# | Syllabus | T20 |

# %% name="setup" setup=true
import warnings

from helpers import (
    Claims,
    Collectives,
    MemoryMeter,
    Prediction,
    check,
    count_parameters,
    device_name,
    hint,
    human_bytes,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

device = pick_device()
pair = ranks_device(2)  # comparisons of one rank with two run both there
claims = Claims(device=pair)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"one or two ranks: on {'GPUs, over NCCL' if pair.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="tensor_text"
# ## 1 · Through the matrices
#
# Sharding ([[sharding]]) stores a layer in parts, but each rank still computes it whole. **Tensor parallelism** cuts the work as well: each rank keeps a part of every matrix, and all ranks work on every layer at the same time. (Cutting *between* layers comes in [[pipeline]].) There are two ways to split `y = x Wᵀ`.
#
# - **By columns** (of Wᵀ): each rank computes some of the outputs. It needs all of x, and has a part of y.
# - **By rows**: each rank has some of the inputs and the weights for them, and computes a *partial sum* of every output. The partial sums have to be added: an all-reduce.
#
# One after the other, they fit together: the column layer's outputs are exactly the parts that the row layer needs. An MLP needs **one** all-reduce, at the end, and the GELU in between works on parts.
#
# That is all for the forward pass, but not for the backward pass. Here are five ways to leave such an MLP, beginning with the obvious `dist.all_reduce`. All give the right output. The table says how far they are from one process, for the
# output and three gradients: that of whatever comes **before** the MLP, of the **column** weights and of the **row** weights. 0 is right, 1 may mean twice as long, *none* is no gradient at all. We use FP64, so that nothing hides in rounding.


# %% name="tensor_naive"
B, T, C, HEADS = 2, 32, 64, 4  # batch, tokens, channels (width), attention heads


def make_mlp():
    torch.manual_seed(0)
    return nn.Linear(C, 4 * C, bias=False).double(), nn.Linear(4 * C, C, bias=False).double()


def mlp_input():
    torch.manual_seed(1)
    return torch.randn(B, T, C, dtype=torch.float64)


class AllReduceForward(torch.autograd.Function):
    """Sum over ranks in the forward pass; the gradient passes through unchanged. Megatron-LM's g."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class AllReduceBackward(torch.autograd.Function):
    """Identity in the forward pass; the gradient is summed over ranks. Megatron-LM's f."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class AllReduceBoth(torch.autograd.Function):
    """Sum over ranks in the forward pass, and again in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return AllReduceForward.forward(ctx, x)

    @staticmethod
    def backward(ctx, gradient):
        return AllReduceBackward.backward(ctx, gradient)


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return sum(parts)  # the sum again, from the parts


def plainly(x):
    dist.all_reduce(x)
    return x


def tensor_mlp(enter, leave):
    """Return how far the output and three gradients are from those of one process, and PyTorch's warnings."""
    rank, n, here = dist.get_rank(), dist.get_world_size(), rank_device()
    up, down = make_mlp()
    x = mlp_input().requires_grad_()
    before = nn.Parameter(torch.ones(C, dtype=torch.float64))  # stands for all layers below
    right = down(F.gelu(up(x * before)))
    right.square().mean().backward()
    want = [right.detach(), before.grad, up.weight.grad.chunk(n)[rank], down.weight.grad.chunk(n, dim=1)[rank]]

    mine = nn.Parameter(torch.ones(C, dtype=torch.float64, device=here))
    up_part = nn.Parameter(up.weight.detach().chunk(n)[rank].to(here))  # (4C / n, C)
    down_part = nn.Parameter(down.weight.detach().chunk(n, dim=1)[rank].to(here))  # (C, 4C / n)
    h = F.gelu(F.linear(enter(mlp_input().to(here) * mine), up_part))
    y = leave(F.linear(h, down_part))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if y.requires_grad:  # else backward() would raise; with a residual path around the MLP it would not
            y.square().mean().backward()
    got = [y.detach(), mine.grad, up_part.grad, down_part.grad]
    far = [None if a is None else ((a.cpu() - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True)]
    return far, [str(one.message) for one in warned]


def same(x):
    return x


ways = {
    "dist.all_reduce and nothing else": (same, plainly),
    "sum gathered by all_gather": (same, gathered),
    "all-reduce both ways": (AllReduceBackward.apply, AllReduceBoth.apply),
    "nothing on the way back": (same, AllReduceForward.apply),
    "the right pair": (AllReduceBackward.apply, AllReduceForward.apply),
}
print(f"{'relative distance, rank 0 | rank 1':34}{'output':>10}{'before':>20}{'column W':>20}{'row W':>20}")
for name, (enter, leave) in ways.items():
    (distances, warned), (others, _) = run_ranks(tensor_mlp, 2, enter, leave).results
    texts = [["none" if d is None else f"{d:.2g}" for d in ranks] for ranks in zip(distances, others, strict=True)]
    print(f"{name:34}{texts[0][0]:>10}" + "".join(f"{' | '.join(pair):>20}" for pair in texts[1:]))
    if warned:
        print(f"    a warning: {warned[0].partition('. ')[0][:150]}")
    if name == "the right pair":
        claims.record(
            "T20",
            "column + row with the right pair equal one process",
            "MLP, 2 ranks, FP64",
            max(distances),
            "relative",
            0,
            1e-12,
        )

# %% [markdown] name="tensor_explained"
# All five programs give the right output, but only one gives the right gradients.
#
# - `dist.all_reduce` changes its tensor in place, behind autograd's back: the gradient passes through as if nothing had happened. By luck that is right where the ranks meet, but it is wrong before the MLP. PyTorch warns that this behaviour will change.
# - `dist.all_gather` fills buffers that do not know where their contents came from: **no gradient at all**. Here `backward()` would raise an error. In a block with a residual path around the MLP nothing raises, and the MLP never learns.
# - Summing in both directions: every rank computes the same loss from the same sum, so the gradient of y is already whole on each rank. Summing again makes it N times too large: a relative distance of 1 is **twice** the gradient. AdamW divides such a factor out ([[gradient_accumulation]]), so in this MLP alone nobody
#   would notice. In a deep model right and wrong paths mix, and no optimizer can fix that.
# - Nothing on the way back: weights inside the MLP get the right gradient, but everything **before** it gets only that of this rank's part. The two ranks get *different* ones, so layers that should be equal on both drift apart.
# - The right pair, *f* and *g* in Megatron-LM: where the ranks' paths **part**, do nothing forward and sum backward; where they **meet**, sum forward and do nothing backward. Each is the mirror image of the other.
#
# ## 2 · A transformer block
#
# Attention splits just as well: each rank takes some of the **heads**. q, k and v are split by columns, the output projection by rows.
#
# **Predict.** Take a block of attention and MLP, where q, k and v share one input. How many all-reduces does a rank need for one forward and one backward pass? And how many bytes is each, with a batch of 2, 32 tokens and 64 channels in FP32?

# %% name="guess_block"
my_guess = None  # all-reduces
### BEGIN GUESS
my_guess = 4  # in each half of the block: one forward, where the paths meet, and one backward, where they part
### END GUESS
calls_guess = Prediction("All-reduces of a block, forward and backward", my_guess, "")
my_guess = None  # bytes of each
### BEGIN GUESS
my_guess = 2 * 32 * 64 * 4  # the activations, whole: they are not split
### END GUESS
bytes_guess = Prediction("Bytes of each", my_guess, "bytes")


# %% name="block"
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(C, C, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, _ = x.shape
        # all heads, or only this rank's  (B, T, heads * D) -> (B, heads, T, D)
        q, k, v = (layer(x).view(B, T, -1, C // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C, bias=False), nn.GELU(), nn.Linear(4 * C, C, bias=False))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


def make_block():
    torch.manual_seed(0)
    return TransformerBlock()


class Column(nn.Module):
    def __init__(self, linear, enters):
        super().__init__()
        part = linear.weight.detach().chunk(dist.get_world_size())[dist.get_rank()]
        self.weight, self.enters = nn.Parameter(part.clone()), enters

    def forward(self, x):
        return F.linear(self.enters(x), self.weight)


class Row(nn.Module):
    def __init__(self, linear):
        super().__init__()
        part = linear.weight.detach().chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        self.weight = nn.Parameter(part.clone())

    def forward(self, x):
        return AllReduceForward.apply(F.linear(x, self.weight))


def split_by_hand(block):
    attention, mlp = block.attention, block.mlp
    attention.q, attention.k, attention.v = (Column(layer, same) for layer in (attention.q, attention.k, attention.v))
    attention.out = Row(attention.out)
    mlp[0], mlp[2] = Column(mlp[0], same), Row(mlp[2])
    # the paths part once, before q, k and v together
    attention.register_forward_pre_hook(lambda _, args: AllReduceBackward.apply(*args))
    mlp.register_forward_pre_hook(lambda _, args: AllReduceBackward.apply(*args))
    return block


def split_by_torch(block):
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"attention.out": RowwiseParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
    return parallelize_module(block, mesh, plan)


def split_by_torch_at_the_input(block):
    """The same plan, but the paths part at the input of the attention, once for q, k and v."""
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    part = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    return split_by_torch(parallelize_module(block, mesh, {"attention": part}))


def block_step(split):
    here = rank_device()
    block = make_block().to(here)
    block = split(block) if split else block
    x = mlp_input().float().to(here).requires_grad_()
    with Collectives() as forward:
        y = block(x)
    with Collectives() as backward:
        y.square().mean().backward()
    with MemoryMeter(block) as meter:
        block(x).square().mean().backward()
    held = {tenant: meter.largest[tenant] for tenant in ("parameters", "gradients", "activations")}
    return y.detach().cpu(), x.grad.cpu(), forward, backward, held


y_right, x_right, _, _, held_alone = run_ranks(block_step, 1, None, device=pair, measure=False).results[0]
for name, split in {
    "by hand": split_by_hand,
    "parallelize_module, q, k and v one by one": split_by_torch,
    "parallelize_module, at their input": split_by_torch_at_the_input,
}.items():
    y, gradient, forward, backward, held = run_ranks(block_step, 2, split, device=pair, measure=False).results[0]
    print(
        f"{name}: output off by {(y - y_right).norm() / y_right.norm():.1e}, gradient of x by {(gradient - x_right).norm() / x_right.norm():.1e}"
    )
    print(f"  forward: {forward}\n  backward: {backward}")
    calls = forward.count("all_reduce") + backward.count("all_reduce")
    claims.record("T20", "two all-reduces a block forward, two backward", name, calls, "calls", 4, 4)
    if name == "by hand":
        calls_guess.reveal(calls)
        bytes_guess.reveal(forward.calls[0].nbytes)

# %% [markdown] name="block_explained"
# The results agree with one process up to rounding. Compare the number of messages in the backward pass. By hand, x is marked once, where the paths part. A plan that names q, k and v one by one makes three all-reduces of one gradient each, instead of one all-reduce of their sum.
# The gradient is the same and the traffic is three times as much: that is the row "did not hold" in section 4. The fix is to say in the plan that the paths part at the attention's input.
#
# ### What it saves
#
# **Predict.** Each of two ranks holds half of each matrix. To what share do the **activations** of the block fall, on each rank?

# %% name="guess_activations"
my_guess = None  # a share, such as 0.5
### BEGIN GUESS
my_guess = 0.6  # heads and the wide layer are halved; inputs, norms and the residual stream are not
### END GUESS
activations_guess = Prediction("Activations of a block on each of 2 ranks", my_guess, "of one process")

# %% name="tensor_memory"
_, _, _, _, held = run_ranks(block_step, 2, split_by_hand, device=pair, measure=False).results[0]
for tenant, nbytes in held_alone.items():
    print(
        f"{tenant:12} {human_bytes(nbytes):>11} -> {human_bytes(held[tenant]):>11} on each of 2 ranks ({held[tenant] / nbytes:.2f})"
    )
    claims.record(
        "T20",
        f"two ranks halve the {tenant}",
        "block, 2 ranks",
        held[tenant] / held_alone[tenant],
        "x one process",
        0.48,
        0.55,
    )
activations_guess.reveal(held["activations"] / held_alone["activations"])

# %% [markdown] name="tensor_memory_explained"
# Matrices are halved; the two norms are on both ranks. Activations are not halved. Whatever lies between the points where paths part and meet is split (heads, the wide layer of the MLP). The inputs, norms and residual stream are whole on every rank.
#
# **Sequence parallelism** splits those as well: outside attention and MLP each rank keeps a part of the *sequence*. An all-reduce is a reduce-scatter followed by an all-gather. Put norm, dropout and residual between the two: the same bytes travel, and those activations are no longer kept by every rank. (The gathered input of each column layer is either kept whole or gathered again in the backward pass; Megatron-LM does the latter, hidden behind arithmetic. And each rank's norm weights then see only a part of the tokens, so their gradients must be summed.)
#
# ### What it sends
#
# Tensor parallelism sends activations, several times a layer, and in the forward pass nobody can compute meanwhile. Data parallelism sends gradients once a step. An all-reduce over N ranks sends 2 (N − 1) / N times its message ([[data_parallel]]); here we take that as 2. Compare, for a model of 32 layers of width 4,096 (the shape of Llama-2-7B) and a
# micro-batch of one sequence of 4,096 tokens, in BF16. The last line is for a pipeline ([[pipeline]]), which sends only the activations between two layers and their gradients:

# %% name="volume"
message = B * T * C * 4
print(f"our block: {forward.calls[0].nbytes:,} bytes counted in each message, {message:,} predicted (B x T x C x 4)")
claims.record(
    "T20", "each message is B x T x C numbers", "block, FP32", forward.calls[0].nbytes / message, "x predicted", 1, 1
)
layers, width, tokens = 32, 4096, 4096
tensor_parallel = 2 * (4 * layers) * tokens * width * 2  # 4 all-reduces a layer, 2 bytes a number
data_parallel = 2 * count_parameters("llama-2-7b") * 2
print(f"tensor parallel: {tensor_parallel / 1e9:.1f} GB a rank and step, in {4 * layers} blocking messages")
print(f"data parallel:   {data_parallel / 1e9:.1f} GB a rank and step, hidden behind the backward pass")
print(f"equal at {data_parallel / tensor_parallel:.1f} sequences a step")
print(f"pipeline:        {2 * tokens * width * 2 / 1e9:.2f} GB between two stages")

# %% [markdown] name="volume_explained"
# Tensor parallelism sends fewer bytes than data parallelism for one sequence and more for many, and everybody waits for most of them. So use tensor parallel **inside** a machine, where fast links join the GPUs; pipeline **between** machines, because it sends least; and data parallel on top.

# %% [markdown] name="row_text"
# ## 3 · Your turn: a row-parallel linear layer
#
# **Contract.** `row_parallel(x, weight, bias)` is called on every rank and returns the whole of `x_whole @ weight_whole.T + bias` on every rank.
#
# - `x` (..., in / N) is this rank's part of the input features, and `weight` (out, in / N) the weights for them; ranks hold them in rank order. `bias` (out,) is whole, and the same on every rank.
# - Every rank will compute the same loss from the result and call `backward()`. Then the gradients of `x`, `weight` and `bias` must be those of one process: for `x` and `weight` the rank's part, for `bias` the whole.
# - There is one all-reduce of the output in the forward pass, and nothing is sent in the backward pass. `x`, `weight` and `bias` must not be changed.
# - Write the autograd function yourself, without `torch.distributed.nn` and DTensor. A bare `dist.all_reduce` of a tensor that needs a gradient is what PyTorch warned about in section 1; it does not count.


# %% name="row" answer=true reveal=true
def row_parallel(x, weight, bias):
    ### BEGIN SOLUTION
    class SumOverRanks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            total = partial.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return gradient  # whole on every rank already

    return SumOverRanks.apply(F.linear(x, weight)) + bias  # the bias once, after the sum
    ### END SOLUTION


# %% name="row_check"
row_parallel = check("tensor_parallel.row", row_parallel)

# %% name="row_hint"
hint("tensor_parallel.row")

# %% [markdown] name="summary_text"
# ## 4 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A rank keeps a part of every matrix. Split by columns, then by rows: one all-reduce for the pair. Where paths part, sum the gradients; where they meet, sum the outputs.
# - Autograd does not know about collectives: some cut off the gradient, some are ignored. Give each its own backward; a wrong gradient need not show in the loss.
#
# **What to reach for when.** One layer does not fit, or its activations do not: tensor parallel, inside a machine. Many layers, slow links: a pipeline ([[pipeline]]). Before either: sharding ([[sharding]]), which needs no change to the model.
#
# **Sources.** Shoeybi et al. 2019, *Megatron-LM*; Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models* (sequence parallelism); PyTorch documentation, `torch.distributed.tensor.parallel`.
