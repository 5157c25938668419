# %% [markdown] name="title"
# # Tensor parallelism
#
# **A layer that does not fit on one GPU can be split by cutting its matrices. The outputs are easy to get right; the gradients are not.**
#
# | | |
# |---|---|
# | After this you can | name the collective that a sharded matmul needs; write column-parallel and row-parallel layers with correct gradients; split attention whose K/V heads do not divide evenly; compute a loss without holding all logits; split the sequence and predict what that saves; train on a mesh of tensor parallelism and sharding, with clipping and a fused optimizer |
# | Time | 140 to 180 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#data_parallel]], [[#sharding]] and [[#fully_shard]] |
# | Syllabus | T20, T36 |

# %% name="setup" setup=true
import warnings

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
    saved_tensor_bytes,
    show,
    show_table,
)
from helpers.exercises.tensor_parallel.matmul_table import MatmulTable
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.exercises.tensor_parallel.pictures import crossing_picture, heads_picture, mesh_picture, split_picture
from helpers.planner.catalog.clusters import find_cluster

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_reduce as functional_all_reduce
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
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

# %% [markdown] name="matmuls_text"
# ## 1 · Four sharded matmuls
#
# Sharding ([[sharding]]) stores a layer in parts, but each rank still computes all of it. **Tensor parallelism** splits the work as well: each rank keeps a part of every matrix and computes with that part.
#
# We use the notation of the *JAX Scaling Book*. X[B, D] is a matrix of B rows and D columns, and every rank has all of it. A subscript *r* marks a dimension that is split over the N ranks: each rank holds F/N columns of W[D, F_r], and D/N rows of W[D_r, F].

# %% name="split_figure"
show(
    split_picture(),
    "Two ways to cut Y = X W over two ranks. By columns: each rank has all of X and half of W's columns, and computes "
    "half of Y's columns. By rows: each rank has half of X's columns and half of W's rows, and computes a partial sum "
    "of all of Y; the two must be added.",
)

# %% [markdown] name="matmuls_rule"
# The matmul X[B, D] · W[D, F] sums over the dimension D. Whether the ranks have to communicate depends on how the inputs are split and on how the output should be split. Four cases cover nearly everything:
#
# - **a**: X[B, D] · W[D, F_r] → Y[B, F_r]
# - **b**: X[B, D_r] · W[D, F_r] → Y[B, F_r]
# - **c**: X[B, D_r] · W[D_r, F] → Y[B_r, F]
# - **d**: X[B, D_r] · W[D_r, F] → Y[B, F]
#
# **Predict** for each case which collective the ranks need and how many bytes its full message has (the tensor that is reduced, or the tensor that each rank holds after the gather). Take B = 8, D = 16 and F = 32 in FP32. The choices are "nothing", "all_gather", "reduce_scatter" and "all_reduce".

# %% name="matmuls_guess"
my_guess = {"a": None, "b": None, "c": None, "d": None}  # e.g. ("all_gather", 4096), or ("nothing", 0)
### BEGIN GUESS
my_guess = {
    "a": ("nothing", 0),
    "b": ("all_gather", 8 * 16 * 4),  # D is summed over, so X must be complete
    "c": ("reduce_scatter", 8 * 32 * 4),  # partial sums of all of Y, added up; each rank gets a part
    "d": ("all_reduce", 8 * 32 * 4),  # the same, and then every rank gets all parts
}
### END GUESS
matmuls_guess = MatmulTable(my_guess)

# %% [markdown] name="matmuls_run_text"
# PyTorch's `DTensor` uses the same notation: `Shard(1)` splits dimension 1, and `Replicate()` splits nothing. You state how a tensor is split and how it should be split instead; `redistribute` calls the collective that converts it.

# %% name="matmuls"
B, D, FF = 8, 16, 32
whole = Replicate()
cases = {  # how X is cut, how W is cut, how the matmul needs X, how Y is wanted
    "a": (whole, Shard(1), whole, Shard(1)),
    "b": (Shard(1), Shard(1), whole, Shard(1)),
    "c": (Shard(1), Shard(0), Shard(1), Shard(0)),
    "d": (Shard(1), Shard(0), Shard(1), whole),
}


def matmuls():
    """Return, for each case, the collectives of this rank and whether Y is right."""
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    torch.manual_seed(0)
    X, W = torch.randn(B, D, device=rank_device()), torch.randn(D, FF, device=rank_device())
    found = {}
    for case, (x_cut, w_cut, x_needed, y_wanted) in cases.items():
        x, w = distribute_tensor(X, mesh, [x_cut]), distribute_tensor(W, mesh, [w_cut])
        with Collectives() as seen:
            y = x.redistribute(mesh, [x_needed]) @ w
            y = y.redistribute(mesh, [y_wanted])
            y.to_local().sum().item()  # wait for it
        found[case] = (seen.calls, torch.allclose(y.full_tensor(), X @ W, atol=1e-5))
    return found


found = run_ranks(matmuls, RANKS, device=where, measure=False).results[0]
matmuls_guess.reveal({case: calls for case, (calls, _) in found.items()})
print("Y is X W in all cases:", all(right for _, right in found.values()))

# %% [markdown] name="matmuls_explained"
# The rule behind the table: **if the summed dimension is split in both inputs, each rank has a partial sum, and the partial sums must be added**. If it is split in only one input, gather that input. If it is split in neither, send nothing.
#
# Cases c and d start out the same way. An all-reduce is a reduce-scatter followed by an all-gather. Case d needs both, so each rank sends twice as many bytes as in case c. (The table lists the size of the message, which is the same.) Section 5 makes use of this.
#
# ## 2 · Two layers, forward and backward
#
# An MLP is `gelu(X · W₁) · W₂`. Split W₁ by columns, as in case a. Its output is then split exactly as case d needs its input, so split W₂ by rows. The two layers need one all-reduce, and the GELU between them works on parts.
#
# That is the forward pass. The backward pass is harder. Here are three obvious ways to write the sum at the end. For each we compare the output and three gradients with the **reference**, the same model in one process: the gradients of a tensor **before** the MLP, of the **column** weights and of the **row** weights. Everything is in FP64, so that rounding does not hide a mistake.

# %% name="mlp"
T, C = 32, 64  # tokens, channels (width)


def relative(a, b):
    return None if a is None else ((a.cpu() - b.cpu()).norm() / b.cpu().norm()).item()


def mlp_on_ranks(enter, leave):
    """Compare a sharded MLP with one process.

    Returns: relative distances and lengths of the output and the gradients, PyTorch's warnings, and the gradient of
    the parameter before the MLP: this rank's and the correct one.
    """
    rank, n, here = dist.get_rank(), dist.get_world_size(), rank_device()
    torch.manual_seed(0)
    shapes = ((2, T, C), (4 * C, C), (C, 4 * C), (C,))
    x, up, down, before = (torch.randn(shape, dtype=torch.float64, device=here) for shape in shapes)

    def gradients(mlp, *weights):
        leaves = [t.clone().requires_grad_() for t in (before, *weights)]  # `before` stands for all layers below
        y = mlp(x * leaves[0], *leaves[1:])
        if y.requires_grad:  # else backward() would raise; with a residual path around the MLP it would not
            y.square().mean().backward()
        return [y.detach(), *(leaf.grad for leaf in leaves)]

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        right = gradients(lambda x, up, down: F.gelu(x @ up.T) @ down.T, up, down)
        parts = up.chunk(n)[rank], down.chunk(n, dim=1)[rank]
        mine = gradients(lambda x, up, down: leave(F.gelu(enter(x) @ up.T) @ down.T), *parts)
    right[2], right[3] = right[2].chunk(n)[rank], right[3].chunk(n, dim=1)[rank]
    pairs = list(zip(mine, right, strict=True))
    lengths = [0.0 if a is None else (a.norm() / b.norm()).item() for a, b in pairs]
    of_before = [None if t is None else t.cpu() for t in pairs[1]]
    return [relative(a, b) for a, b in pairs], lengths, [str(one.message) for one in warned], of_before


# %% name="naive"
def same(x):
    return x


def plainly(x):
    dist.all_reduce(x)
    return x


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return sum(parts)  # the sum again, from the parts


def with_autograd(x):
    return functional_all_reduce(x)  # PyTorch's own all-reduce with a backward pass


# %% [markdown] name="naive_guess_text"
# **Predict.** All outputs are right. With PyTorch's own function, `with_autograd`, how many of the three gradients are right on every rank?

# %% name="naive_guess"
my_guess = None  # right gradients, of 3
### BEGIN GUESS
my_guess = 3  # PyTorch wrote its backward pass
### END GUESS
autograd_guess = Prediction("functional.all_reduce: right gradients", my_guess, "of 3", difference=True)

# %% name="naive_run"
COLUMNS = ("rank 0 and 1", "output", "before", "column W", "row W")


def table_row(name, results):
    """Write the distances of ranks 0 and 1 side by side."""
    written = [["none" if d is None else f"{d:.2g}" for d in distances] for distances, *_ in results[:2]]
    return (name, *(" | ".join(pair) for pair in zip(*written, strict=True)))


def right_gradients(results):
    """Count the gradients that are right on every rank."""
    ranks = zip(*(distances[1:] for distances, *_ in results), strict=True)
    return sum(all(d is not None and d < 1e-12 for d in distances) for distances in ranks)


plain, by_gather, by_torch = "dist.all_reduce", "sum of gathered parts", "functional.all_reduce"
naive_ways = {plain: plainly, by_gather: gathered, by_torch: with_autograd}
tried = {
    name: run_ranks(mlp_on_ranks, 2, same, leave, device=where, measure=False).results
    for name, leave in naive_ways.items()
}
autograd_guess.reveal(right_gradients(tried[by_torch]))
show_table([COLUMNS, *(table_row(name, results) for name, results in tried.items())])
(mine, right), (other, _) = (of_before for *_, of_before in tried[plain])
print(f"{plain}, `before`: the ranks' gradients differ by {relative(other, mine):.2g}", end="")
print(f"; their sum is off by {relative(mine + other, right):.1g}")
print(f"{by_torch}: the row weights' gradient has {tried[by_torch][0][1][3]:.3g} times the right norm")
for warning in {text.partition(". ")[0] for results in tried.values() for _, _, texts, _ in results for text in texts}:
    print("a warning:", warning)

# %% [markdown] name="naive_explained"
# (The figures are relative distances from the reference; 0 is exact.)
#
# - **`dist.all_reduce`** changes its tensor without autograd's knowledge, so the gradient passes straight through. That happens to be right for the weights inside the MLP. But the tensor *before* the MLP gets the gradient from this rank's half only. The two ranks get different parts of the gradient, and the parts are never added. PyTorch warns about this (the warning that names `c10d::allreduce_`).
# - **`dist.all_gather`** fills buffers that have no graph, so there is **no gradient at all**. Here `backward()` would raise an error. With a residual path around the MLP it would not, and the MLP would never train. (This lab does not run that case.)
# - **`torch.distributed.nn.functional.all_reduce`** sums in the backward pass, too. That is the right derivative if the loss is the *sum of all ranks' losses*. Here every rank computes the *same* loss, so the sum makes the gradients inside the MLP too large by a factor of N. The tensor before the MLP again gets the gradient from this rank's half only, times N. (The warning about this function says only that PyTorch 2.13 deprecates it, not that the gradient is wrong.)
#
# Use none of the three here. Write the function yourself, as below, or let `DTensor` redistribute (section 6). A collective needs a backward pass that fits its place. At each collective, ask which gradient autograd has on each rank and which gradient a single process would have.
#
# - Where the ranks' paths **split**, all ranks use the same tensor. Each rank's backward pass returns only the gradient that came through its own part.
# - Where the paths **merge**, each rank has the full output and computes the same loss from it.
#
# ### Your turn: column and row
#
# **Contract.** Write two autograd functions and the two layers that use them. Every rank calls them; there may be any number of ranks.
#
# - `Enter.apply(x)` goes where the paths split, `Leave.apply(x)` where they merge. Each function passes its tensor through unchanged in one direction and sums it over all ranks in the other, with one all-reduce of a tensor of x's shape and dtype.
# - `column(x, weight)` gets the full x (..., D) and `weight` (F/N, D), this rank's rows of an `nn.Linear`'s weight. `nn.Linear` stores W transposed, so these rows are columns of W. It returns this rank's outputs (..., F/N).
# - `row(x, weight, bias)` gets this rank's part x (..., D/N) of the inputs, the weights (F, D/N) for them, and the full `bias` (F,), which is the same on each rank, or None. It returns the full output (..., F), which must be the same on each rank to the last bit.
# - Every rank computes the same loss and calls `backward()`. Afterwards each gradient equals that of one process; the gradient of a part equals the same part of one process's gradient. x may have any number of dimensions and may need no gradient.
# - `column` sends one all-reduce in the backward pass, and `row` sends one in the forward pass. They send nothing else.
# - Do not change any input or incoming gradient. A call must not change the result of an earlier call.


# %% name="layers" answer=true reveal=true
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        whole = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole)
        return whole
        ### END SOLUTION


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        return gradient  # already complete on every rank
        ### END SOLUTION


def column(x, weight):
    ### BEGIN SOLUTION
    return F.linear(Enter.apply(x), weight)
    ### END SOLUTION


def row(x, weight, bias):
    ### BEGIN SOLUTION
    y = Leave.apply(F.linear(x, weight))
    return y if bias is None else y + bias  # the bias once, after the sum
    ### END SOLUTION


# %% name="layers_check"
Enter, Leave, column, row = check("tensor_parallel.layers", Enter, Leave, column, row)

# %% name="layers_hint"
hint("tensor_parallel.layers")

# %% [markdown] name="ways_text"
# ### Other programs with the right output
#
# Now compare your pair with a program that uses only half of it: your `Leave` where the paths merge, but **no collective in the backward pass** where they split.

# %% name="ways"
ways = {"same, then Leave": (same, Leave.apply), "Enter, then Leave": (Enter.apply, Leave.apply)}
tried |= {name: run_ranks(mlp_on_ranks, 2, *way, device=where, measure=False).results for name, way in ways.items()}
show_table([COLUMNS, *(table_row(name, results) for name, results in tried.items())])
farthest = max(distance for distances, *_ in tried["Enter, then Leave"] for distance in distances)
claims.record("T20", "column and row layers equal one process", "MLP, 2 ranks, FP64", farthest, "relative", 0, 1e-12)

# %% name="crossing_figure"
show(
    crossing_picture(),
    "An MLP on two ranks, from left to right: Enter, column, gelu, row, Leave. In the forward pass Enter passes its "
    "tensor through and Leave sums; in the backward pass, from right to left, Leave passes through and Enter sums.",
)

# %% [markdown] name="ways_explained"
# Five programs give the right output, and only one of them gives the right gradients. (A gradient that is twice as large as it should be has a relative distance of 1.)
#
# - **A sum in both directions** makes the MLP's gradients N times too large. AdamW's step does not depend on such a common factor ([[gradient_accumulation]]), so an MLP alone would train normally. In a deep model, correct and wrong gradients are added, and no optimizer can undo that.
# - **No collective in the backward pass** where the paths split: this is the mistake of `dist.all_reduce`. The layers below should stay equal on all ranks, but they drift apart.
# - **The right pair** is called *f* and *g* in Megatron-LM. One is the transpose of the other: the forward pass of one is the backward pass of the other.
#
# ## 3 · A transformer block
#
# Attention splits by **heads**: each rank takes some of them. q, k and v are split by columns, the output projection by rows. In *grouped-query attention*, several query heads share one K/V head, so there may be fewer K/V heads than ranks, or a number that does not divide evenly. Each rank keeps **the K/V heads that its query heads use**, and some K/V heads are stored on several ranks.
#
# Take 8 query heads, 2 K/V heads and 4 ranks: each K/V head is stored on two ranks. Each of the two computes a gradient for its copy from its own query heads, and the copies must stay equal. DDP, which also has copies of a parameter, takes the mean of their gradients.
#
# **Predict.** What is the correct gradient of the K/V head, as a multiple of the mean of its two copies' gradients?

# %% name="heads_guess"
my_guess = None  # times the mean of the copies' gradients
### BEGIN GUESS
my_guess = 2  # each copy has the part of its own query heads: the parts add up
### END GUESS
heads_guess = Prediction("Right gradient of a K/V head / mean of its two copies' gradients", my_guess, "times")

# %% [markdown] name="heads_text"
# ### Your turn: heads
#
# **Contract.** There are H query heads, a multiple of the number of ranks, and K key/value heads. K divides H, and consecutive query heads share one K/V head.
#
# - `kv_heads_of(rank, ranks, heads, kv_heads)` returns a list with the index of the K/V head of each of this rank's query heads, in order. Rank 0 has the first `heads / ranks` query heads, and so on.
# - `sum_shared(gradient, heads, kv_heads)` is called on every rank. `gradient` (h, ...) belongs to the h *different* K/V heads of this rank, in order. For each head, the function combines the gradients of all ranks that hold it (you decide how) and returns the result for this rank's heads as a tensor of `gradient`'s shape.
# - If some head is stored on two ranks, it sends one all-reduce of at most K heads. Otherwise it sends nothing. It does not change `gradient`.


# %% name="heads" answer=true reveal=true
def kv_heads_of(rank, ranks, heads, kv_heads):
    ### BEGIN SOLUTION
    mine = range(rank * heads // ranks, (rank + 1) * heads // ranks)
    return [head * kv_heads // heads for head in mine]
    ### END SOLUTION


def sum_shared(gradient, heads, kv_heads):
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    held = [sorted(set(kv_heads_of(r, ranks, heads, kv_heads))) for r in range(ranks)]
    if sum(map(len, held)) == kv_heads:
        return gradient  # no head is stored twice
    total = gradient.new_zeros(kv_heads, *gradient.shape[1:])
    total[held[dist.get_rank()]] = gradient
    dist.all_reduce(total)
    return total[held[dist.get_rank()]]
    ### END SOLUTION


# %% name="heads_check"
kv_heads_of, sum_shared = check("tensor_parallel.heads", kv_heads_of, sum_shared)

# %% name="heads_hint"
hint("tensor_parallel.heads")

# %% [markdown] name="heads_play_text"
# Explore 12 query heads on several ranks. Which K/V heads have lines of several colors, that is, are stored on more than one rank?

# %% name="heads_play"
explore(
    lambda ranks, kv_heads: heads_picture([kv_heads_of(r, ranks, 12, kv_heads) for r in range(ranks)], kv_heads),
    "12 query heads in a row, colored by rank, each with a line to its K/V head below.",
    ranks=(4, (1, 2, 3, 4, 6)),
    kv_heads=(3, (1, 2, 3, 4, 6)),
)

# %% [markdown] name="block_text"
# Now the block. It has two halves, attention and MLP, and in each half the paths split and then merge. `cut_block` keeps this rank's part of each matrix and calls a function of your choice before and after each half.

# %% name="block"
HEADS, KV_HEADS = 8, 2
HEAD = C // HEADS  # channels of a head


class Into(nn.Module):
    """Linear layers that share their input."""

    def __init__(self, *widths):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(C, width, bias=False) for width in widths)

    def forward(self, x):
        return [layer(x) for layer in self.layers]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention_in = Into(C, KV_HEADS * HEAD, KV_HEADS * HEAD)
        self.attention_out = nn.Linear(C, C, bias=False)
        self.mlp_in, self.mlp_out = Into(4 * C), nn.Linear(4 * C, C, bias=False)
        self.serving = [head * KV_HEADS // HEADS for head in range(HEADS)]  # the K/V head of each query head

    def forward(self, x):  # (B, T, C)
        q, k, v = (y.unflatten(-1, (-1, HEAD)).transpose(1, 2) for y in self.attention_in(self.norm_1(x)))
        y = F.scaled_dot_product_attention(q, k[:, self.serving], v[:, self.serving], is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).flatten(2))
        (h,) = self.mlp_in(self.norm_2(x))
        return x + self.mlp_out(F.gelu(h))


def make_block():
    torch.manual_seed(0)
    return Block().to(rank_device())


# %% name="cut"
def keep(linear, weight):
    linear.weight = nn.Parameter(weight.detach().clone())


def cut_block(block, split, merge):
    """Keep this rank's part of a block; call `split` before each half and `merge` after it."""
    rank, n = dist.get_rank(), dist.get_world_size()
    serving = kv_heads_of(rank, n, HEADS, KV_HEADS)
    held = sorted(set(serving))
    block.serving = [held.index(head) for head in serving]
    q, k, v = block.attention_in.layers
    for layer in (k, v):
        keep(layer, layer.weight.unflatten(0, (KV_HEADS, HEAD))[held].flatten(0, 1))
    for layer in (q, *block.mlp_in.layers):
        keep(layer, layer.weight.chunk(n)[rank])
    for layer in (block.attention_out, block.mlp_out):
        keep(layer, layer.weight.chunk(n, dim=1)[rank])
        layer.register_forward_hook(lambda _, inputs, y: merge(y))
    for layers in (block.attention_in, block.mlp_in):
        layers.register_forward_pre_hook(lambda _, inputs: split(*inputs))
    return block


# %% [markdown] name="block_guess_text"
# Each rank holds half of the k and v matrices and a quarter of every other matrix. The batch has 2 sequences of 32 tokens and 64 channels.
#
# **Predict.** What fraction of one process's **activations** (the tensors that a rank saves for the backward pass) does each of the four ranks save?

# %% name="block_guess"
my_guess = None  # saved on each of 4 ranks / saved by one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
saved_guess = Prediction("Activations on each of 4 ranks", my_guess, "of one process")


# %% name="block_run"
def block_input():
    torch.manual_seed(1)
    return torch.randn(2, T, C, device=rank_device())


def step(block, x):
    """Run a block forward and backward on x, the full input or this rank's part of its tokens."""
    x = x.detach().clone().requires_grad_()
    with Collectives() as forward:
        y = block(x)
    with Collectives() as backward:
        (y.square().sum() / (2 * T * C)).backward()
    return {"y": y.detach(), "x": x.grad, "forward": forward.calls, "backward": backward.calls}


def saved_by(block, x):
    """Return the bytes that a block saves for its backward pass, parameters aside."""
    x = x.detach().clone().requires_grad_()
    return saved_tensor_bytes(lambda: block(x), besides=block.parameters())


# %% name="block_compared"
def block_on_ranks():
    x, whole, block = block_input(), make_block(), cut_block(make_block(), Enter.apply, Leave.apply)
    alone, mine = step(whole, x), step(block, x)
    k = block.attention_in.layers[1].weight.grad.unflatten(0, (-1, HEAD))  # (K/V heads of this rank, HEAD, C)
    own = sorted(set(kv_heads_of(dist.get_rank(), dist.get_world_size(), HEADS, KV_HEADS)))
    right = whole.attention_in.layers[1].weight.grad.unflatten(0, (KV_HEADS, HEAD))[own]
    summed = sum_shared(k, HEADS, KV_HEADS)
    far = {name: relative(mine[name], alone[name]) for name in ("y", "x")}
    far |= {"k of this rank": relative(k, right), "k, summed over its copies": relative(summed, right)}
    copies = torch.zeros(KV_HEADS, HEAD, C, device=k.device)
    copies[own] = k
    dist.all_reduce(copies)
    times = (right.norm() / (copies[own] / 2).norm()).item()  # of the mean of two copies
    return far, times, saved_by(block, x) / saved_by(whole, x), mine["forward"], mine["backward"]


results = run_ranks(block_on_ranks, RANKS, device=where, measure=False).results
far, times, saved_share, forward, backward = results[0]
heads_guess.reveal(times)
saved_guess.reveal(saved_share)
print(f"all-reduces: {len(forward)} forward, {len(backward)} backward, each of {forward[0].nbytes:,} B")
for name, distance in far.items():
    print(f"{name:26} off by {distance:.1e}")
summed = max(result[0]["k, summed over its copies"] for result in results)
claims.record(
    "T20", "a shared K/V head's gradient is the sum of its copies'", "4 ranks, FP32", summed, "relative", 0, 1e-5
)
claims.record("T20", "four all-reduces per block", "by hand", len(forward) + len(backward), "calls", 4, 4)

# %% [markdown] name="block_explained"
# - Each copy of a K/V head sees only the query heads of its own rank. The copies' gradients differ, and the right one is their **sum**: the copies are one parameter that is used in several places. Here a mean, as in data parallelism, would be half of that sum.
# - The block needs four all-reduces. Each half needs one in the forward pass, where the paths merge, and one in the backward pass, where they split. Each carries B × T × C numbers, the full activations.
# - Activations fall, but not to a quarter. Only the tensors *between* a split and a merge are divided among the ranks: q, k, v, the result of attention, the wide layer. The residual stream and the norms' outputs are complete on every rank, and every rank computes them. Section 5 splits them, too.
#
# ### Random numbers
#
# Some random numbers must differ between ranks, and some must not. The parts of a split matrix must be *different* on each rank, but a dropout mask on a tensor that all ranks share must be the *same*. One seed for all ranks fails in the first case, and one seed per rank fails in the second:


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


table = [("4 ranks", "rank 1's shard, distance from rank 0's", "its dropout mask, entries that differ")]
for name, seed_of_rank in {"one seed for all": lambda rank: 7, "a seed for each": lambda rank: 7 + rank}.items():
    far, differ = run_ranks(random_numbers, RANKS, seed_of_rank, device=where, measure=False).results[1]
    table.append((name, f"{far:.2g}", f"{differ:.2f}"))
show_table(table)

# %% [markdown] name="random_explained"
# With one seed for all ranks, the four shards of a matrix are equal. In an MLP all ranks then compute the same partial sums, get the same gradients and stay equal, so the wide layer is no better than one that is a quarter as wide. (This lab does not train that case.) With one seed per rank, the ranks apply different masks to the residual stream, and their copies of it are no longer equal. So Megatron-LM keeps two generators: one with the same state on all ranks of a tensor-parallel group, one with the rank added to the seed. Code between split and merge uses the second. On CUDA `DTensor` gives each shard its own range of one state, so shards differ; on the CPU it does not ([[fully_shard]]).

# %% [markdown] name="vocabulary_text"
# ## 4 · A loss without the full logits
#
# The largest activation of a language model is often its last: the logits, one number for each token and each vocabulary entry. The output layer is split by columns, so each rank has the logits of V/N entries. The embedding table is split by entries, too. A lookup is easy: a rank returns zeros for tokens that it does not hold, and `Leave` sums where the paths merge.


# %% name="embed"
def embed(ids, table):
    """Look up ids (...) in a table of which this rank holds `table` (V/N, C); return the full (..., C)."""
    local = ids - dist.get_rank() * len(table)
    mine = (local >= 0) & (local < len(table))
    return Leave.apply(F.embedding(local.clamp(0, len(table) - 1), table) * mine[..., None])


# %% [markdown] name="vocabulary_guess_text"
# The loss is harder, because the softmax of a token runs over the whole vocabulary. If the ranks gathered the logits, each would have to receive and hold all of them. The next exercise computes the loss without gathering them.
#
# ### Your turn: the loss
#
# The cross-entropy of a token is the logarithm of a sum of exponentials minus the target's logit: log Σ exp(zᵢ) − z_target. Subtracting the same number from all logits does not change it. Subtract the largest logit, and no exponential overflows.
#
# **Contract.** `cross_entropy(logits, targets)` is called on every rank and returns the mean loss, the same on each rank, as a tensor without dimensions.
#
# - `logits` (n, V/N) belong to this rank's tokens of the vocabulary, in rank order: rank 0 has tokens 0 to V/N − 1. `targets` (n,) is complete and the same on each rank. A target is a token from 0 to V − 1, or -100, which is ignored. At least one target is not -100, and the mean is over those that are not.
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
cross_entropy = check("tensor_parallel.loss", cross_entropy)

# %% name="loss_hint"
hint("tensor_parallel.loss")

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
VOCABULARY = 4096


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
    looked_up = relative(embed(targets.clamp(min=0), part), head[targets.clamp(min=0)])
    return far, looked_up, mine[3], (right[4], mine[4]), n


far, looked_up, calls, peaks, n = run_ranks(vocabulary_on_ranks, RANKS, device=where, measure=False).results[0]
print("off by: loss {:.1e}, gradient of the hidden states {:.1e}, of the weights {:.1e}".format(*far))
print(f"and the embedding by {looked_up:.1e}")
sent = sum(call.nbytes for call in calls if call.nbytes < n * C * 4)  # the one of n x C is column's, not the loss's
print(f"all-reduced by the loss: {sent / n:.3g} bytes per token; full logits have {VOCABULARY * 4:,}")
loss_peak_guess.reveal(peaks[1] / peaks[0])
for name, peak, held in zip(("one process", "each rank"), peaks, (VOCABULARY, VOCABULARY // RANKS), strict=True):
    print(f"{name:11}: peak {human_bytes(peak)}, {peak / (n * held * 4):.1f} times its logits")
claims.record(
    "T20", "a loss without the full logits equals one process", "4 ranks, FP32", max(far), "relative", 0, 1e-5
)

# %% [markdown] name="loss_explained"
# The loss sends three numbers per token, for any size of the vocabulary: the largest logit, the sum of the exponentials, and the target's logit, to which all ranks but one add 0. The backward pass sends nothing. It needs the softmax, minus 1 at the target. A rank computes its part of that from its own logits and from the sums, which every rank has.
#
# The peak does not fall to a quarter. The last two lines give the peak as a multiple of the logits that each process holds. The course's solution has the larger multiple of the two, because PyTorch's cross-entropy fuses steps that the solution writes out. Yours may differ, depending on how many tensors of this size it holds at a time. (PyTorch has `loss_parallel()` for split logits, and `RowwiseParallel` for embeddings.)
#
# ## 5 · The sequence as well
#
# In section 3 the norms, the residual stream and the inputs of both halves were complete on every rank. The norms and the residual additions treat each token separately. So outside the two halves, each rank can work on a part of the **tokens**: X[B, T_r, C]. This is *sequence parallelism*.
#
# Where the paths split, the tokens are now *gathered*. Where the paths merge, the sum is *scattered*. An all-gather and a reduce-scatter replace each all-reduce, and together they send the same number of bytes.
#
# **Predict.** For the same block on four ranks, what fraction of one process's activations does each rank save now?

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
# - The loss is now the sum of the ranks' losses, each computed from the rank's own tokens. After every rank has called `backward()`, each gradient equals that of one process, or this rank's tokens of it.
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
Gather, Scatter = check("tensor_parallel.sequence", Gather, Scatter)

# %% name="sequence_hint"
hint("tensor_parallel.sequence")

# %% [markdown] name="sequence_run_text"
# `cut_block` takes your two functions as they are. The line "weight of a norm" is a control: every rank has the norms' weights, but its norms see only its own tokens.


# %% name="sequence_run"
class Recomputed(nn.Module):
    """Saves its input instead of its intermediate results, and computes those again in the backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.layers = inner, inner.layers

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def sequence_on_ranks(recompute):
    rank, n = dist.get_rank(), dist.get_world_size()
    x, whole, block = block_input(), make_block(), cut_block(make_block(), Gather.apply, Scatter.apply)
    alone, tensor = step(whole, x), step(cut_block(make_block(), Enter.apply, Leave.apply), x)
    if recompute:
        block.attention_in, block.mlp_in = Recomputed(block.attention_in), Recomputed(block.mlp_in)
    part = x.chunk(n, dim=1)[rank]
    mine = step(block, part)
    far = {name: relative(mine[name], alone[name].chunk(n, dim=1)[rank]) for name in ("y", "x")}
    norm, right = block.norm_1.weight.grad.clone(), whole.norm_1.weight.grad
    far["weight of a norm"] = relative(norm, right)
    dist.all_reduce(norm)
    far["weight of a norm, summed"] = relative(norm, right)
    sent, before = (sum(c.volume for c in [*run["forward"], *run["backward"]]) for run in (mine, tensor))
    return far, saved_by(block, part) / saved_by(whole, x), sent / before


far, sequence_share, sequence_sent = run_ranks(sequence_on_ranks, RANKS, False, device=where, measure=False).results[0]
print(f"bytes sent: {sequence_sent:.2f} times those of section 3")
sequence_saved_guess.reveal(sequence_share)
for name, distance in far.items():
    print(f"{name:26} off by {distance:.1e}")

# %% [markdown] name="sequence_explained"
# The ranks send the same bytes as before: each all-reduce has been split into its two halves, and the norms are computed between them. Now the norms' gradients have to be summed over the ranks, once per step. Otherwise the ranks' copies of the norms drift apart. (PyTorch's `SequenceParallel` makes the norms' weights DTensors, whose gradients are then summed over the ranks.)
#
# Activations fall, but not to a quarter, so some tensors are still complete. Count them. One unit is B × T × C numbers, and one process saves 16 units for a block: the inputs of both norms (2), the norms' outputs, which the matmuls need (2), q, k, v for each head and the result of attention (4), and the input and the output of the GELU (4 + 4). The next cell calculates from the measured bytes how many of the 16 units are complete on each rank. The last row of its table is for a variant that discards the norms' gathered outputs and gathers them again in the backward pass.

# %% name="count"
again = run_ranks(sequence_on_ranks, RANKS, True, device=where, measure=False).results[0]
shares = {"tensor": saved_share, "sequence": sequence_share, "sequence, gathered again": again[1]}
# share = (complete + (16 - complete) / N) / 16, solved for the units that are complete
whole_units = {name: 16 * (share - 1 / RANKS) / (1 - 1 / RANKS) for name, share in shares.items()}
sent = {"tensor": 1.0, "sequence": sequence_sent, "sequence, gathered again": again[2]}
table = [("4 ranks", "saved, of one process", "complete units", "bytes sent")]
table += [(name, f"{share:.3f}", f"{whole_units[name]:.2f}", f"{sent[name]:.2f} x") for name, share in shares.items()]
show_table(table)
claims.record(
    "T20", "sequence parallelism cuts all activations", "sequence parallel", sequence_share, "of one process", 0, 0.27
)
claims.record("T20", "sequence parallelism cuts all activations", "gathered again", again[1], "of one process", 0, 0.27)

# %% [markdown] name="count_explained"
# Tensor parallelism leaves four units complete: the inputs of both norms, and their outputs. Sequence parallelism leaves two, the **gathered outputs of the norms**: a matmul needs its full input for the gradient of its weights. The last row checkpoints the gather together with the matmuls after it ([[activation_checkpointing]]). Now everything is split, at the cost of two more all-gathers. Megatron-LM does the same and overlaps these all-gathers with computation (section 6).
#
# (The count leaves out a few small tensors: the norms' statistics, and attention's sums.)
#
# ## 6 · PyTorch's own tensor parallelism
#
# `parallelize_module` takes a plan that names a style for each layer. The weights become DTensors, and inputs and outputs are redistributed as the styles require. Attention computes with the heads of this rank, so here, too, we shorten the list of K/V heads by hand.
#
# **Predict.** Your functions took four all-reduces for the block. How many does a plan need if it names q, k and v one by one as `ColwiseParallel`?

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
# The results are right with both plans, but the first plan sends more. There the paths split separately for q, k and v, so three gradients are all-reduced, where all-reducing their sum would be enough. The second plan splits the paths once, at the shared input. (This runs on two ranks, because two K/V heads do not divide over four, and a plan has no `sum_shared`.)
#
# ### Two dimensions
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
# The order matters: first split the matrices along `tensor`, then shard the parts along `data`. Pass each step its own dimension of one mesh.
#
# What about the norms? The plan above leaves them alone, so `fully_shard` puts them on the mesh `data`, while the matrices are on `data` × `tensor`. Clipping then fails, as the next cell shows. In the plan below, the norms are `SequenceParallel`, so they are on both dimensions, too, and the block works on this rank's tokens.


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


# %% name="mesh_run"
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


try:
    run_ranks(train_on_mesh, 4, 2, 2, False, device=where, measure=False, show=False)
except RankError as error:
    print("norms on `data` alone:", str(error).partition("RuntimeError: ")[2].partition(", but got")[0].splitlines()[0])

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
claims.record(
    "T20", "three clipped AdamW steps on a 2 x 2 mesh equal one process", "block", runs[2, 2][0], "relative", 0, 1e-4
)

# %% [markdown] name="mesh_explained"
# On 2 × 2 each rank shares only half of every matrix along `data`, so about half as many bytes travel there.
#
# The first run stopped in `clip_grad_norm_`: it stacks the norms of all gradients, and DTensors on two meshes cannot be stacked. An optimizer with `fused=True` or `foreach=True` combines the parameters in the same way and needs one mesh as well. (This lab does not run that case.) With the norms on both dimensions, clipping computes the joint norm over the whole mesh and every rank clips by the same factor.
#
# The two dimensions carry different tensors. Parameters and gradients travel along `data`, once per pass, and parameters can be gathered ahead of time. Activations travel along `tensor`, several times per layer, and every rank waits for them.
#
# ### How long, for a real model
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
waiting = next(iter(sent.values())) / cluster.outside
volume_guess.reveal(100 * waiting / (waiting + computing), "calculated")

# %% [markdown] name="volume_explained"
# The calculation counts bandwidth only; 128 latencies per sequence come on top of that. The GPUs would wait a quarter of the time within a machine and three quarters of it between machines, because the computation cannot continue without the activations. Data parallelism sends three times as many bytes, but only once per step for any number of sequences, and it overlaps with the backward pass. Pipelines send the least.
#
# So use tensor parallelism **within** an NVLink domain (a machine of 8 H100s, or a rack of 72 GPUs in an NVL72), a pipeline **between** domains, and data parallelism or sharding across the rest.
#
# The figures are for an implementation without overlap. Full checkpointing would repeat the first of the two forward all-reduces of each layer, or both, which makes five or six instead of four: with `use_reentrant=False`, PyTorch's `checkpoint` stops recomputing as soon as it has the last saved tensor, and the second all-reduce comes after that. (This lab does not run that case.)
#
# ### Asynchronous tensor parallelism
#
# Must a matmul wait until all of its input has arrived? In section 5 the all-reduces became all-gathers before a matmul and reduce-scatters after one, and both can be cut into chunks of rows. A rank multiplies the rows that it has while the next rows travel, and sends finished rows while it computes the next ones. The bytes stay the same, and so do the results, up to rounding.
#
# **Predict.** Between machines the GPUs wait for three quarters of the time. What percentage of the time do they wait if every matmul is cut into 8 chunks?

# %% name="async_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 9  # an eighth of it
### END GUESS
async_guess = Prediction("Time spent waiting between machines, 8 chunks", my_guess, "%")


# %% name="async_tp"
def step_seconds(computing, sending, chunks):
    return max(computing, sending) + min(computing, sending) / chunks


nbytes, waits = next(iter(sent.values())), {}
table = [("link", "sent per rank", "chunks", "one sequence", "waiting")]
for name, link in (("NVLink", cluster.inside), ("InfiniBand", cluster.outside)):
    for chunks in (1, 2, 8):
        took = step_seconds(computing, nbytes / link, chunks)
        waits[name, chunks] = 100 * (1 - computing / took)
        row = (f"{nbytes / 1e9:.2f} GB", str(chunks), f"{1000 * took:.0f} ms", f"{waits[name, chunks]:.0f}%")
        table.append((name, *row))
show_table(table)
async_guess.reveal(waits["InfiniBand", 8], "calculated")

# %% [markdown] name="async_explained"
# While one chunk is sent, another is computed. Only one chunk cannot be overlapped. So with c chunks a step takes about
#
# $$\max(t_\text{compute}, t_\text{send}) + \frac{\min(t_\text{compute}, t_\text{send})}{c}$$
#
# seconds. For c = 1 that is the sum of both times, as in the previous calculation. Within a machine nearly all of the waiting is hidden. Between machines the messages take longer than the computation, and no overlap can hide that. More chunks are not always better: each chunk's matmul has an eighth of the rows, here 512, and a matmul with few rows does not fill a GPU ([[where_the_time_goes]]). The norms and the softmax between the matmuls do not overlap with messages, either.
#
# In PyTorch the compiler makes this transformation for blocks that use sequence parallelism (`torch._inductor.config._micro_pipeline_tp`; torchtitan's `enable_async_tensor_parallel`). It needs GPUs that can write to each other's memory. Megatron-LM has it as `--tp-comm-overlap`. Neither was tried here: the cell only calculates.

# %% [markdown] name="summary_text"
# ## 7 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - In a sharded matmul, the summed dimension decides what is sent: gather if it is split in one input, add partial sums if it is split in both.
# - Split the first layer by columns and the second by rows: together they need one all-reduce. Sum the gradients where paths split, and the outputs where they merge.
# - Autograd does not know what a collective means in your program. Some collectives cut the gradient off, some pass it through, and some sum it once too often. Write the backward pass that fits, and compare gradients with one process, because a wrong gradient need not show in the loss.
# - If several ranks hold a copy of a parameter, and each copy sees only part of the parameter's use (a shared K/V head, a norm over some of the tokens), add up the copies' gradients.
# - A cross-entropy over a split vocabulary sends three numbers per token. Sequence parallelism sends the same bytes as tensor parallelism, and the inputs of the matmuls are the only complete activations that it saves. If the messages of sequence parallelism are cut into chunks, they can hide behind the matmuls.
# - Put all parameters on the same mesh, norms included. Then clipping works, and one mesh is also what fused optimizers need.
#
# **What to reach for when.** If one layer or its activations do not fit, use tensor parallelism within an NVLink domain, and split the sequence, too. With many layers and slow links, use a pipeline ([[pipeline]]). Try sharding ([[sharding]]) first: it needs no change to the model.
#
# **Sources.** Shoeybi et al. 2019, *Megatron-LM*; Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models* (sequence parallelism); Austin et al. 2025, *How to Scale Your Model* (the JAX Scaling Book), chapter 3; PyTorch documentation, `torch.distributed.tensor.parallel`; NVIDIA DGX H100 data sheet (links).
