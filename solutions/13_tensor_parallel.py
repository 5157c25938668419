# %% [markdown] name="title"
# # Tensor parallelism
#
# **A layer that does not fit on one GPU can be split by cutting its matrices. The outputs are easy to get right; the gradients are not.**
#
# | | |
# |---|---|
# | After this you can | name the collective that a sharded matmul needs; write column-parallel and row-parallel layers with correct gradients; recognize a collective whose backward pass is wrong; split attention whose K/V heads do not divide evenly; predict what each rank of a split block saves for the backward pass |
# | Time | 75 to 100 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#data_parallel]] and [[#sharding]] |
# | Syllabus | T20 |
#
# [[Tensor_parallel_in_practice]] continues this lab.

# %% name="setup" setup=true
import inspect
import warnings

from helpers import (
    Claims,
    Collectives,
    Prediction,
    check,
    device_name,
    explore,
    hint,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
)
from helpers.exercises.tensor_parallel.block import HEAD, HEADS, KV_HEADS, Block, C, T, block_input, make_block
from helpers.exercises.tensor_parallel.block_step import relative, saved_by, step
from helpers.exercises.tensor_parallel.cut_block import cut_block
from helpers.exercises.tensor_parallel.matmul_table import MatmulTable
from helpers.exercises.tensor_parallel.pictures import crossing_picture, heads_picture, split_picture

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.nn.functional import all_reduce as functional_all_reduce
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

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
# Cases c and d start out the same way. An all-reduce is a reduce-scatter followed by an all-gather. Case d needs both, so each rank sends twice as many bytes as in case c. (The table lists the size of the message, which is the same.) [[Tensor_parallel_in_practice]] makes use of this.
#
# ## 2 · Two layers, forward and backward
#
# An MLP is `gelu(X · W₁) · W₂`. Split W₁ by columns, as in case a. Its output is then split exactly as case d needs its input, so split W₂ by rows. The two layers need one all-reduce, and the GELU between them works on parts.
#
# That is the forward pass. The backward pass is harder. Here are three obvious ways to write the sum at the end. For each we compare the output and three gradients with the **reference**, the same model in one process: the gradients of a tensor **before** the MLP, of the **column** weights and of the **row** weights. Everything is in FP64, so that rounding does not hide a mistake.


# %% name="mlp"
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
# Use none of the three here. Write the function yourself, as below, or let `DTensor` redistribute, as `parallelize_module` does ([[tensor_parallel_in_practice]]). At each collective, ask which gradient autograd has on each rank and which gradient a single process would have.
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
# **Contract.** There are H query heads and K key/value heads. H is divisible by K and by the number of ranks. Consecutive query heads share one K/V head.
#
# - `kv_heads_of(rank, ranks, heads, kv_heads)` returns a list with the index of the K/V head of each of this rank's query heads, in order. Rank 0 has the first `heads / ranks` query heads, and so on.
# - `sum_shared(gradient, heads, kv_heads)` is called on every rank. `gradient` (h, ...) belongs to the h *different* K/V heads of this rank, in order. For each head, the function combines the gradients of all ranks that hold it (you decide how) and returns the result for this rank's heads as a tensor of `gradient`'s shape.
# - If any head is stored on more than one rank, the function sends one all-reduce of at most K heads. Otherwise it sends nothing. It does not change `gradient`.


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
# Now the block. It has two halves, attention and MLP, and in each half the paths split and then merge. Layers that share their input are in one module, `Into`. The list `serving` gives the K/V head for each query head.

# %% name="block"
print(inspect.getsource(Block))

# %% [markdown] name="cut_text"
# `cut_block` keeps this rank's part of each matrix. It calls a function of your choice, `split`, before each half, and another one, `merge`, after it:

# %% name="cut"
print(inspect.getsource(cut_block))

# %% [markdown] name="shared_text"
# The next cell builds each rank's block with your `kv_heads_of`, `Enter` and `Leave`. It runs the block forward and backward (`step`) and compares the gradient of the k matrix with that of one process, before and after your `sum_shared`.


# %% name="shared"
def part_of_block():
    """Return this rank's part of the block."""
    serving = kv_heads_of(dist.get_rank(), dist.get_world_size(), HEADS, KV_HEADS)
    return cut_block(make_block(), serving, Enter.apply, Leave.apply)


def shared_heads():
    """Compare the gradient of this rank's K/V heads, as it is and summed over its copies, with one process.

    Returns: both relative distances, and the right gradient as a multiple of the mean of its two copies.
    """
    whole, block = make_block(), part_of_block()
    for model in (whole, block):
        step(model, block_input())
    own = sorted(set(kv_heads_of(dist.get_rank(), dist.get_world_size(), HEADS, KV_HEADS)))
    k = block.attention_in.layers[1].weight.grad.unflatten(0, (-1, HEAD))  # (K/V heads of this rank, HEAD, C)
    right = whole.attention_in.layers[1].weight.grad.unflatten(0, (KV_HEADS, HEAD))[own]
    copies = torch.zeros(KV_HEADS, HEAD, C, device=k.device)
    copies[own] = k
    dist.all_reduce(copies)
    times = (right.norm() / (copies[own] / 2).norm()).item()  # of the mean of two copies
    return relative(k, right), relative(sum_shared(k, HEADS, KV_HEADS), right), times


results = run_ranks(shared_heads, RANKS, device=where, measure=False).results
heads_guess.reveal(results[0][2])
for rank, (alone, summed, _) in enumerate(results):
    print(f"rank {rank}: gradient of k off by {alone:.1e}, summed over its copies by {summed:.1e}")
summed = max(summed for _, summed, _ in results)
claims.record(
    "T20", "a shared K/V head's gradient is the sum of its copies'", "4 ranks, FP32", summed, "relative", 0, 1e-5
)

# %% [markdown] name="shared_explained"
# Each copy of a K/V head sees only the query heads of its own rank. The copies' gradients differ, and the right one is their **sum**: the copies are one parameter that is used in several places. A mean, as in data parallelism, would be half of that sum.
#
# ### What a rank saves
#
# Each rank holds half of the k and v matrices and a quarter of every other matrix. The batch has 2 sequences of 32 tokens and 64 channels.
#
# **Predict.** What fraction of one process's **activations** (the tensors that a rank saves for the backward pass) does each of the four ranks save?

# %% name="block_guess"
my_guess = None  # saved on each of 4 ranks / saved by one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
saved_guess = Prediction("Activations on each of 4 ranks", my_guess, "of one process")


# %% name="block_saved"
def block_on_ranks():
    """Return distances from one process, this rank's share of the saved bytes, and its collectives."""
    x, whole, block = block_input(), make_block(), part_of_block()
    alone, mine = step(whole, x), step(block, x)
    far = {name: relative(mine[name], alone[name]) for name in ("y", "x")}
    return far, saved_by(block, x) / saved_by(whole, x), mine["forward"], mine["backward"]


far, saved_share, forward, backward = run_ranks(block_on_ranks, RANKS, device=where, measure=False).results[0]
saved_guess.reveal(saved_share)
print(f"off by: output {far['y']:.1e}, gradient of x {far['x']:.1e}")
print(f"all-reduces: {len(forward)} forward, {len(backward)} backward, each of {forward[0].nbytes:,} B")
claims.record("T20", "four all-reduces per block", "by hand", len(forward) + len(backward), "calls", 4, 4)

# %% [markdown] name="block_explained"
# - The block needs four all-reduces. Each half needs one in the forward pass, where the paths merge, and one in the backward pass, where they split. Each carries B × T × C numbers, the full activations.
# - Activations fall, but not to a quarter. Only the tensors *between* a split and a merge are divided among the ranks: q, k, v, the result of attention, the wide layer. The residual stream and the norms' outputs are complete on every rank, and every rank computes them. [[Tensor_parallel_in_practice]] splits them, too.
#
# ## 4 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - In a sharded matmul, the summed dimension decides what is sent: gather if it is split in one input, add partial sums if it is split in both.
# - Split the first layer by columns and the second by rows: together they need one all-reduce. Sum the gradients where paths split, and the outputs where they merge.
# - Autograd does not know what a collective means in your program. Some collectives cut the gradient off, some pass it through, and some sum it once too often. Write the backward pass that fits, and compare gradients with one process, because a wrong gradient need not show in the loss.
# - If several ranks hold a copy of a parameter, and each copy sees only part of the parameter's use, as with a shared K/V head, add up the copies' gradients.
# - Between a split and a merge, each rank has a part of the activations. Everywhere else it has all of them.
#
# **What to reach for when.** If one layer or its activations do not fit, use tensor parallelism on GPUs with fast links. Try sharding ([[sharding]]) first: it needs no change to the model. With many layers and slow links, use a pipeline ([[pipeline]]).
#
# **Next.** [[Tensor_parallel_in_practice]] splits what is still complete here (the loss, the norms, the residual stream), trains on a mesh, and calculates which links are fast enough.
#
# **Sources.** Shoeybi et al. 2019, *Megatron-LM* (its *f* and *g* are your `Enter` and `Leave`); Austin et al. 2025, *How to Scale Your Model* (the JAX Scaling Book), chapter 3; Ainslie et al. 2023, *GQA* (grouped-query attention).
