# %% [markdown] name="title"
# # Tensor parallel
#
# **A layer that does not fit on one GPU can be cut through its matrices. The art is to send the right sums in the right places, in the backward pass too.**
#
# | | |
# |---|---|
# | After this you can | say what a sharded product has to send; write column-parallel and row-parallel layers whose gradients are right; split attention whose K/V heads do not divide; compute a loss whose logits are never whole; split the sequence and predict what that saves; lay tensor parallelism and sharding over one mesh |
# | Time | 120 to 165 minutes |
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
    text_table,
)
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.exercises.tensor_parallel.pictures import crossing_picture, heads_picture, mesh_picture, split_picture
from helpers.exercises.tensor_parallel.product_table import ProductTable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)  # all runs of this lab: on GPUs if there is one for each of four ranks
claims = Claims(device=where)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if where.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="products_text"
# ## 1 · Four sharded products
#
# Sharding ([[sharding]]) stores a layer in parts, but each rank still computes all of it. **Tensor parallelism** cuts the work as well: each rank keeps a part of every matrix and computes with it.
#
# A notation helps (it is that of the *JAX Scaling Book*). X[B, D] is a matrix of B rows and D columns that every rank has whole. An index *r* marks a dimension that is cut over the ranks: of W[D, F_r] each rank holds F/N columns, of W[D_r, F] it holds D/N rows.

# %% name="split_figure"
show(
    split_picture(),
    "Two ways to cut Y = X W over two ranks. By columns: each rank has whole X and half of W's columns, and computes "
    "half of Y's columns. By rows: each rank has half of X's columns and half of W's rows, and computes a partial sum "
    "of all of Y; the two must be added.",
)

# %% [markdown] name="products_rule"
# In a product X[B, D] · W[D, F] one dimension is summed over, D. Whether the ranks have to talk depends on where the cuts are, and on where you want them afterwards. Four cases cover nearly everything:
#
# - **a**: X[B, D] · W[D, F_r] → Y[B, F_r]
# - **b**: X[B, D_r] · W[D, F_r] → Y[B, F_r]
# - **c**: X[B, D_r] · W[D_r, F] → Y[B_r, F]
# - **d**: X[B, D_r] · W[D_r, F] → Y[B, F]
#
# **Predict** for each case which collective the ranks need, and how large its whole message is: everything that is reduced, or that all ranks together have gathered. Take B = 8, D = 16 and F = 32, in FP32. The collectives are "nothing", "all_gather", "reduce_scatter" and "all_reduce".

# %% name="products_guess"
my_guess = {"a": None, "b": None, "c": None, "d": None}  # such as ("all_gather", 4096): its name and bytes
### BEGIN GUESS
my_guess = {
    "a": ("nothing", 0),
    "b": ("all_gather", 8 * 16 * 4),  # D is summed over, so X must be whole
    "c": ("reduce_scatter", 8 * 32 * 4),  # partial sums of all of Y, added up and handed out in parts
    "d": ("all_reduce", 8 * 32 * 4),  # the same, and then everybody gets all parts
}
### END GUESS
products_guess = ProductTable(my_guess)

# %% [markdown] name="products_run_text"
# PyTorch's `DTensor` knows the same notation: `Shard(1)` cuts dimension 1, `Replicate()` cuts nothing. You say how a tensor is cut and how you want it; `redistribute` sends what that takes.

# %% name="products"
B, D, FF = 8, 16, 32
whole = Replicate()
cases = {  # how X is cut, how W is cut, how the product needs X, how Y is wanted
    "a": (whole, Shard(1), whole, Shard(1)),
    "b": (Shard(1), Shard(1), whole, Shard(1)),
    "c": (Shard(1), Shard(0), Shard(1), Shard(0)),
    "d": (Shard(1), Shard(0), Shard(1), whole),
}


def products():
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


found = run_ranks(products, RANKS, device=where, measure=False).results[0]
products_guess.reveal({case: calls for case, (calls, _) in found.items()})
print("Y is X W in all cases:", all(right for _, right in found.values()))

# %% [markdown] name="products_explained"
# The rule behind the table: **if the dimension that is summed over is cut in both, each rank has a partial sum, and somebody must add**. If it is cut in one only, gather that one. If it is cut in neither, nothing is sent.
#
# Cases c and d start alike. An all-reduce is a reduce-scatter followed by an all-gather: d takes both, so a rank sends twice as many bytes as in c (the table has the size of the message, which is the same). Section 5 makes use of that.
#
# ## 2 · Two layers, back and forth
#
# An MLP is `gelu(X · W₁) · W₂`. Cut W₁ by columns (case a): what comes out is cut exactly as case d wants its input, so cut W₂ by rows. One all-reduce for two layers, and the GELU in between works on parts.
#
# That is the forward pass. The backward pass is the harder half. Here are two obvious ways to write the sum at the end. We look at the output and at three gradients: that of whatever comes **before** the MLP, of the **column** weights and of the **row** weights. All in FP64, so that nothing hides in rounding.


# %% name="mlp"
T, C = 32, 64  # tokens, channels (width)


def relative(a, b):
    return None if a is None else ((a.cpu() - b.cpu()).norm() / b.cpu().norm()).item()


def mlp_on_ranks(enter, leave):
    """Return, of output and gradients, distances from one process and relative lengths; PyTorch's warnings; and the
    gradient of what comes before, this rank's and the right one."""
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


# %% [markdown] name="naive_guess_text"
# **Predict.** All outputs are right. With `plainly`, how many of the three gradients are right on every rank? And with `gathered`?

# %% name="naive_guess"
my_guess = None  # plainly: right gradients, of 3
### BEGIN GUESS
my_guess = 2  # it is an all-reduce without a backward pass: the gradient goes straight through
### END GUESS
plain_guess = Prediction("dist.all_reduce alone: right gradients", my_guess, "of 3", difference=True)
my_guess = None  # gathered: right gradients, of 3
### BEGIN GUESS
my_guess = 1  # the rank's own part keeps its graph, I suppose
### END GUESS
gathered_guess = Prediction("sum of gathered parts: right gradients", my_guess, "of 3", difference=True)

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


naive_ways = {"dist.all_reduce and nothing else": (same, plainly), "sum gathered by all_gather": (same, gathered)}
tried = {
    name: run_ranks(mlp_on_ranks, 2, *way, device=where, measure=False).results for name, way in naive_ways.items()
}
plain_guess.reveal(right_gradients(tried["dist.all_reduce and nothing else"]))
gathered_guess.reveal(right_gradients(tried["sum gathered by all_gather"]))
print(text_table([COLUMNS, *(table_row(name, results) for name, results in tried.items())]))
(mine, right), (other, _) = (of_before for *_, of_before in tried["dist.all_reduce and nothing else"])
print(f"dist.all_reduce, `before`: the ranks' gradients are {relative(other, mine):.2g} apart", end="")
print(f"; their sum is off by {relative(mine + other, right):.1g}")
for warning in {text.partition(". ")[0] for results in tried.values() for _, _, texts, _ in results for text in texts}:
    print("a warning:", warning)

# %% [markdown] name="naive_explained"
# (0 is right; the figures are relative distances from the gradient of one process.)
#
# - `dist.all_reduce` changes its tensor behind autograd's back: the gradient passes through as if nothing had happened. For the weights inside the MLP that is right, by luck. What comes *before* gets the gradient of this rank's half of the MLP only. The two ranks get different halves, and nobody adds them up. PyTorch warns.
# - `dist.all_gather` fills buffers that do not know where their contents came from: **no gradient at all**. Here `backward()` would raise an error. With a residual path around the MLP nothing raises, and the MLP never learns.
#
# So a collective needs a backward pass of its own, and you have to say which. Ask of each place: what does autograd hold there, on each rank, and what does one process hold?
#
# - Where the ranks' paths **part**, one tensor is used by all of them. Each rank's backward pass brings only what came back through its own part.
# - Where they **meet**, each rank has the whole output, and computes the same loss from it.
#
# ### Your turn: column and row
#
# **Contract.** Two functions for autograd, and two layers made of them. They are called on every rank, with any number of ranks.
#
# - `Enter.apply(x)` stands where the paths part, `Leave.apply(x)` where they meet. Each hands its tensor on in one direction and sums over all ranks in the other: one all-reduce of a tensor of x's shape and dtype.
# - `column(x, weight)`: x (..., D) is whole, `weight` (F/N, D) this rank's rows of an `nn.Linear`'s weight (its outputs, so the columns of W). Returns this rank's outputs (..., F/N).
# - `row(x, weight, bias)`: x (..., D/N) is this rank's part of the inputs, `weight` (F, D/N) the weights for them, `bias` (F,) whole and the same on each rank, or None. Returns the whole output (..., F), the same on each rank to the last bit.
# - Every rank computes the same loss and calls `backward()`. Then each gradient is that of one process: for a part, its part of it. x may have any number of dimensions, and may need no gradient.
# - Sent: by `column` one all-reduce in the backward pass, by `row` one in the forward pass; nothing else.
# - No tensor that comes in is changed, forward or backward, and no call changes what an earlier one has returned.


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
        return gradient  # whole on every rank already
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
# ### What else looks right
#
# Two popular mistakes can be built from your two functions: a sum in **both** directions at the end, as `Enter(Leave(x))`, and **nothing on the way back** at the beginning.
#
# **Predict.** With the sum in both directions, on two ranks: how many times as long is the gradient of the row weights?

# %% name="ways_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 2  # both ranks hold the same whole gradient, and it is added up
### END GUESS
both_guess = Prediction("All-reduce both ways: length of the row weights' gradient", my_guess, "times")

# %% name="ways"
ways = {
    "all-reduce both ways": (Enter.apply, lambda x: Enter.apply(Leave.apply(x))),
    "nothing on the way back": (same, Leave.apply),
    "your pair": (Enter.apply, Leave.apply),
}
tried |= {name: run_ranks(mlp_on_ranks, 2, *way, device=where, measure=False).results for name, way in ways.items()}
both_guess.reveal(tried["all-reduce both ways"][0][1][3])
print(text_table([COLUMNS, *(table_row(name, results) for name, results in tried.items())]))
farthest = max(distance for distances, *_ in tried["your pair"] for distance in distances)
claims.record("T20", "column and row layers equal one process", "MLP, 2 ranks, FP64", farthest, "relative", 0, 1e-12)

# %% name="crossing_figure"
show(
    crossing_picture(),
    "An MLP on two ranks, from left to right: Enter, column, gelu, row, Leave. Forward, Enter hands on and Leave sums; "
    "backward, from right to left, Leave hands on and Enter sums.",
)

# %% [markdown] name="ways_explained"
# Five programs, five right outputs, one right set of gradients. (The table says how far off a gradient is: twice the right length is off by 1.)
#
# - **Both ways**: the gradient of the output is whole on each rank already. Summing it again makes it N times too large. AdamW divides such a factor out ([[gradient_accumulation]]), so in this MLP alone nobody would notice. In a deep model right and wrong paths mix, and no optimizer can fix that.
# - **Nothing on the way back** is what the naive all-reduce did: layers below, which should be equal on both ranks, drift apart.
# - **The right pair** is called *f* and *g* in Megatron-LM. Each is the mirror image of the other: forward in one is backward in the other.
#
# ## 3 · A transformer block
#
# Attention splits just as well: each rank takes some of the **heads**. q, k and v are cut by columns, the output projection by rows. With *grouped queries*, several query heads share one K/V head. Then there may be fewer K/V heads than ranks, or a number that does not divide. A rank keeps **whichever K/V heads its query heads use**, and some K/V heads are on several ranks.
#
# Take 8 query heads, 2 K/V heads and 4 ranks: each K/V head is on two ranks. Each of them computes a gradient for its own copy, and the copies must stay equal.
#
# **Predict.** Take the **mean** of the two copies' gradients. How many times as long is the gradient of one process?

# %% name="heads_guess"
my_guess = None  # times the mean of the copies' gradients
### BEGIN GUESS
my_guess = 2  # each copy has the part of its own query heads: the parts add up
### END GUESS
heads_guess = Prediction("Right gradient of a K/V head / mean of its two copies' gradients", my_guess, "times")

# %% [markdown] name="heads_text"
# ### Your turn: heads
#
# **Contract.** There are H query heads (a multiple of the number of ranks) and K heads of keys and values (K divides H; consecutive query heads share one).
#
# - `kv_heads_of(rank, ranks, heads, kv_heads)` returns a list: for each query head of `rank`, in order, the number of its K/V head. Rank 0 has the first `heads / ranks` query heads, and so on.
# - `sum_shared(gradient, heads, kv_heads)` is called on every rank. `gradient` (h, ...) belongs to the h *different* K/V heads of this rank, in order. Returns a tensor of its shape: for each head what all ranks that hold it have, put together as you think right.
# - It sends one all-reduce of at most K heads, and nothing where no head is on two ranks. `gradient` is not changed.


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
        return gradient  # nobody shares a head
    everyone = gradient.new_zeros(kv_heads, *gradient.shape[1:])
    everyone[held[dist.get_rank()]] = gradient
    dist.all_reduce(everyone)
    return everyone[held[dist.get_rank()]]
    ### END SOLUTION


# %% name="heads_check"
kv_heads_of, sum_shared = check("tensor_parallel.heads", kv_heads_of, sum_shared)

# %% name="heads_hint"
hint("tensor_parallel.heads")

# %% [markdown] name="heads_play_text"
# Play with it: 12 query heads over several ranks. Which K/V heads have lines of more than one colour?

# %% name="heads_play"
explore(
    lambda ranks, kv_heads: heads_picture([kv_heads_of(r, ranks, 12, kv_heads) for r in range(ranks)], kv_heads),
    "12 query heads in a row, coloured by rank, each with a line to its K/V head below.",
    ranks=(4, (1, 2, 3, 4, 6)),
    kv_heads=(3, (1, 2, 3, 4, 6)),
)

# %% [markdown] name="block_text"
# Now the block. Its four groups of matrices come in the order split, merge, split, merge. `cut_block` keeps this rank's share of each, and puts a function of your choice before and after each half.


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


def cut_block(block, part, meet):
    """Keep this rank's share of a block; `part` comes before each half and `meet` after it."""
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
        layer.register_forward_hook(lambda _, inputs, y: meet(y))
    for layers in (block.attention_in, block.mlp_in):
        layers.register_forward_pre_hook(lambda _, inputs: part(*inputs))
    return block


# %% [markdown] name="block_guess_text"
# **Predict** for a batch of 2, 32 tokens and 64 channels in FP32 on four ranks. How many all-reduces does a rank need for the forward and the backward pass of a block? How many bytes is each? And to what share do the **activations** fall, those that are saved for the backward pass on each rank? (A quarter of each matrix is on a rank.)

# %% name="block_guess"
my_guess = None  # all-reduces
### BEGIN GUESS
my_guess = 4  # in each half: one forward, where the paths meet, and one backward, where they part
### END GUESS
calls_guess = Prediction("All-reduces of a block, forward and backward", my_guess, "")
my_guess = None  # bytes of each
### BEGIN GUESS
my_guess = 2 * 32 * 64 * 4  # the activations, whole: they are not split
### END GUESS
bytes_guess = Prediction("Bytes of each", my_guess, "bytes")
my_guess = None  # saved on each of 4 ranks / saved by one process
### BEGIN GUESS
my_guess = 0.4  # heads and the wide layer are quartered; inputs, norms and the residual stream are not
### END GUESS
saved_guess = Prediction("Activations on each of 4 ranks", my_guess, "of one process")


# %% name="block_run"
def block_input():
    torch.manual_seed(1)
    return torch.randn(2, T, C, device=rank_device())


def step(block, x):
    """Run a block forward and backward on x, the whole input or this rank's part of its tokens."""
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
    times = (right.norm() / (summed / 2).norm()).item()  # of the mean of two copies
    return far, times, saved_by(block, x) / saved_by(whole, x), mine["forward"], mine["backward"]


results = run_ranks(block_on_ranks, RANKS, device=where, measure=False).results
far, times, saved_share, forward, backward = results[0]
heads_guess.reveal(times)
calls_guess.reveal(len(forward) + len(backward))
bytes_guess.reveal(forward[0].nbytes)
saved_guess.reveal(saved_share)
for name, distance in far.items():
    print(f"{name:26} off by {distance:.1e}")
summed = max(result[0]["k, summed over its copies"] for result in results)
claims.record(
    "T20", "a shared K/V head's gradient is the sum of its copies'", "4 ranks, FP32", summed, "relative", 0, 1e-5
)
claims.record("T20", "four all-reduces a block", "by hand", len(forward) + len(backward), "calls", 4, 4)

# %% [markdown] name="block_explained"
# - Each copy of a K/V head sees only its own rank's query heads. Their gradients are different, and the right one is their **sum**: the copies are one parameter that is used in several places. Averaging, as data parallelism does, would halve it here.
# - The block needs four all-reduces: where paths meet, forward; where they part, backward. Each carries the whole activations.
# - Activations fall to more than a quarter. Whatever lies *between* parting and meeting is split: q, k, v, the heads, the wide layer. The inputs, both norms and the residual stream are whole on every rank, and every rank computes them: four times the same work. Section 5 gets rid of that.

# %% [markdown] name="vocabulary_text"
# ## 4 · A loss whose logits are never whole
#
# The largest activation of a language model is often its last: the logits, one number for each token and each word of the vocabulary. The output layer is cut by columns, so each rank has the logits of V/N words. The embedding table is cut by words, too. Looking up is easy: a rank returns zeros for words that it does not hold, and where the paths meet, `Leave` sums.


# %% name="embed"
def embed(ids, table):
    """Look up ids (...) in a table of which this rank holds `table` (V/N, C); return (..., C), whole."""
    local = ids - dist.get_rank() * len(table)
    mine = (local >= 0) & (local < len(table))
    return Leave.apply(F.embedding(local.clamp(0, len(table) - 1), table) * mine[..., None])


# %% [markdown] name="vocabulary_guess_text"
# The loss is harder: the softmax of a token runs over all words. Gathering the logits would mean sending and holding all of them on every rank.
#
# **Predict.** What is the least that the ranks must all-reduce for the cross-entropy, forward and backward together, in bytes for each token (FP32)? Whole logits of 4,096 words would be 16,384. And with four ranks, to what share does the peak memory of output layer and loss fall?

# %% name="vocabulary_guess"
my_guess = None  # bytes for each token
### BEGIN GUESS
my_guess = 12  # the largest logit, the sum of the exponentials, the target's logit
### END GUESS
loss_bytes_guess = Prediction("All-reduced for each token", my_guess, "bytes")
my_guess = None  # peak on each of 4 ranks / peak of one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
loss_peak_guess = Prediction("Peak of output layer and loss on each of 4 ranks", my_guess, "of one process")

# %% [markdown] name="vocabulary_contract"
# ### Your turn: the loss
#
# The cross-entropy of a token is the logarithm of a sum of exponentials, minus the target's logit: log Σ exp(zᵢ) − z_target. Subtract the same number from all logits and nothing changes; subtract the largest, and no exponential overflows.
#
# **Contract.** `cross_entropy(logits, targets)` is called on every rank and returns the mean loss, the same on each, as a tensor without dimensions.
#
# - `logits` (n, V/N) are this rank's, in rank order: rank 0 has words 0 to V/N − 1. `targets` (n,) are whole and the same on each rank: words from 0 to V − 1, or -100, which does not count. At least one counts; the mean is over those.
# - After `backward()` on every rank, from the loss or a multiple of it, the gradient of `logits` is this rank's part of that of one process.
# - Logits may be as large as ±10,000, and the target's may be the smallest: no overflow, no infinity, no NaN.
# - Sent: nothing but all-reduces in the forward pass, of 3 n numbers in all; nothing in the backward pass.
# - No tensor as large as the whole logits; `logits` and `targets` are not changed. `Leave` may be of use. Loss and gradient have the dtype of `logits` (FP32 or FP64).


# %% name="loss" answer=true reveal=true
def cross_entropy(logits, targets):
    ### BEGIN SOLUTION
    words = logits.shape[1]
    largest = logits.detach().amax(dim=1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)  # a constant: it cancels
    shifted = logits - largest[:, None]
    exponentials = Leave.apply(shifted.exp().sum(dim=1))  # (n,)
    local = targets - dist.get_rank() * words
    here = (local >= 0) & (local < words)
    picked = shifted.gather(1, local.clamp(0, words - 1)[:, None])[:, 0]
    picked = Leave.apply(picked.where(here, torch.zeros_like(picked)))  # one rank has it, the others 0
    counts = targets != -100
    return ((exponentials.log() - picked) * counts).sum() / counts.sum()
    ### END SOLUTION


# %% name="loss_check"
cross_entropy = check("tensor_parallel.loss", cross_entropy)

# %% name="loss_hint"
hint("tensor_parallel.loss")


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
loss_bytes_guess.reveal(sent / n)
loss_peak_guess.reveal(peaks[1] / peaks[0])
for name, peak, words in zip(("one process", "a rank"), peaks, (VOCABULARY, VOCABULARY // RANKS), strict=True):
    print(f"{name:11}: peak {human_bytes(peak)}, {peak / (n * words * 4):.1f} times its logits")
claims.record("T20", "a loss without whole logits equals one process", "4 ranks, FP32", max(far), "relative", 0, 1e-5)

# %% [markdown] name="loss_explained"
# Three numbers for each token, whatever the size of the vocabulary: the largest logit, the sum of the exponentials, and the target's logit, which one rank has and the others count as 0. The backward pass sends nothing: softmax minus one at the target needs only the rank's own logits and the sums, which every rank has.
#
# The peak is not a quarter. The last two lines say how many tensors of the size of its logits each of them holds: PyTorch's cross-entropy fuses steps that ours writes out. (PyTorch's own for cut logits is `loss_parallel()`; for embeddings, `RowwiseParallel`.)
#
# ## 5 · The sequence as well
#
# In section 3 norms, residual stream and the inputs of both halves were whole on every rank. All of these treat each token on its own. So outside the two halves, let each rank keep a part of the **tokens**: X[B, T_r, C]. This is *sequence parallelism*.
#
# Where the paths parted, the tokens are now *gathered*; where they met, the sum is *scattered*. An all-gather and a reduce-scatter take the place of the all-reduces.
#
# **Predict** for the same block on four ranks. How many bytes does a rank send compared with section 3 (an all-reduce counts twice its message, the others once)? And to what share of one process do the saved activations fall now?

# %% name="sequence_guess"
my_guess = None  # bytes sent / bytes sent in section 3
### BEGIN GUESS
my_guess = 1  # an all-reduce is a reduce-scatter and an all-gather
### END GUESS
sequence_bytes_guess = Prediction("Bytes sent, sequence parallel / tensor parallel", my_guess, "times")
my_guess = None  # saved on each of 4 ranks / saved by one process
### BEGIN GUESS
my_guess = 0.25  # now everything is cut
### END GUESS
sequence_saved_guess = Prediction("Activations on each of 4 ranks", my_guess, "of one process")

# %% [markdown] name="sequence_contract"
# ### Your turn: gather and scatter
#
# **Contract.** Two functions for autograd, which take the places of `Enter` and `Leave`. Dimension 1 is the sequence.
#
# - `Gather.apply(x)`: x (B, T/N, ...) holds this rank's tokens. Returns (B, T, ...): all tokens, in rank order, the same on each rank.
# - `Scatter.apply(x)`: x (B, T, ...) is this rank's partial sum of all tokens. Returns (B, T/N, ...): the sum over ranks of this rank's tokens.
# - The loss is now the sum of what the ranks compute, each from its own tokens. After `backward()` on every rank, each gradient is that of one process, or this rank's tokens of it.
# - Sent: by each one collective forward and one backward, and no more bytes than it takes. All with the dtype of x.
# - No tensor that comes in is changed, forward or backward; it need not be contiguous.
#
# `dist.all_gather(list, tensor)` and `dist.reduce_scatter(tensor, list)` take contiguous tensors.


# %% name="sequence" answer=true reveal=true
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        mine = x.contiguous()
        tokens = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(tokens, mine)
        return torch.cat(tokens, dim=1)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), dim=1)]
        added = torch.empty_like(parts[0])
        dist.reduce_scatter(added, parts)
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
# `cut_block` takes them as they are. The last line is a control: the norms' weights are on every rank, but now each rank's norm sees only its own tokens.


# %% name="sequence_run"
class Recomputed(nn.Module):
    """Keeps its input instead of what it makes of it, and makes that again in the backward pass."""

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
sequence_bytes_guess.reveal(sequence_sent)
sequence_saved_guess.reveal(sequence_share)
for name, distance in far.items():
    print(f"{name:26} off by {distance:.1e}")

# %% [markdown] name="sequence_explained"
# The same bytes travel: each all-reduce has come apart into its halves, and the norms are computed between them. The norms' gradients now have to be summed over the ranks, once a step: forget it, and the copies drift apart. (PyTorch's `SequenceParallel` keeps norm weights as DTensors, which know that.)
#
# Activations fall, but not to a quarter. Which tensors are still whole?
#
# **Predict** their share from a count. One unit is B × T × C numbers. A block saves: the inputs of both norms (2), what the norms return, which the matrices need (2), q, k, v for each head and the result (4), before and after the GELU (4 + 4). Which of them are cut in section 3, and which now?

# %% name="count_guess"
my_guess = None  # units that tensor parallelism leaves whole
### BEGIN GUESS
my_guess = 4  # inputs of the norms, and what they return
### END GUESS
tensor_whole_guess = Prediction("Whole units, tensor parallel", my_guess, "of 16")
my_guess = None  # units that sequence parallelism leaves whole
### BEGIN GUESS
my_guess = 2  # what the norms return, gathered: the matrices keep their whole input for the backward pass
### END GUESS
sequence_whole_guess = Prediction("Whole units, sequence parallel", my_guess, "of 16")

# %% name="count"
again = run_ranks(sequence_on_ranks, RANKS, True, device=where, measure=False).results[0]
shares = {"tensor": saved_share, "sequence": sequence_share, "sequence, gathered again": again[1]}
# a share s = (whole + (16 - whole) / N) / 16, solved for the units that are whole
whole_units = {name: 16 * (share - 1 / RANKS) / (1 - 1 / RANKS) for name, share in shares.items()}
tensor_whole_guess.reveal(whole_units["tensor"])
sequence_whole_guess.reveal(whole_units["sequence"])
sent = {"tensor": 1.0, "sequence": sequence_sent, "sequence, gathered again": again[2]}
table = [("4 ranks", "saved, of one process", "units still whole", "bytes sent")]
table += [(name, f"{share:.3f}", f"{whole_units[name]:.2f}", f"{sent[name]:.2f} x") for name, share in shares.items()]
print(text_table(table))
claims.record(
    "T20", "sequence parallelism cuts all activations", "sequence parallel", sequence_share, "of one process", 0, 0.27
)
claims.record("T20", "sequence parallelism cuts all activations", "gathered again", again[1], "of one process", 0, 0.27)

# %% [markdown] name="count_explained"
# What is left are the **gathered inputs**: a matrix needs its whole input for its weights' gradient. The last row throws them away after the forward pass and gathers them again in the backward pass, by checkpointing the gather together with the matrices after it ([[activation_checkpointing]]). Now everything is cut, for two more all-gathers. Megatron-LM does the same and hides them behind arithmetic.
#
# (A few small tensors are left out of the count: the norms' means, attention's sums.)
#
# ## 6 · PyTorch's own
#
# `parallelize_module` takes a plan: a style for each layer. The weights become DTensors, and inputs and outputs are redistributed as the styles say. Attention computes with the heads of this rank, so the list of K/V heads has to be cut by hand here, too.
#
# **Predict.** The plan names q, k and v one by one as `ColwiseParallel`. How many all-reduces does one forward and backward pass of the block take? (By hand it was the number of section 3.)

# %% name="torch_guess"
my_guess = None  # all-reduces
### BEGIN GUESS
my_guess = 4
### END GUESS
torch_guess = Prediction("All-reduces with a plan for each layer", my_guess, "")


# %% name="torch_plan"
def split_by_torch(block, mesh, at_the_input=False):
    """Cut a block with a plan; `at_the_input`: the paths part once for layers that share their input."""
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
    claims.record("T20", "four all-reduces a block", f"parallelize_module, {name}", len(calls), "calls", 4, 4)

# %% [markdown] name="torch_explained"
# The numbers are the same. The first plan sends more: each of q, k and v parts from its input alone, so three gradients are all-reduced, where the sum of the three would do. The second plan says where the paths part. (Two ranks here: two K/V heads do not divide by four, and a plan does not know `sum_shared`.)
#
# ### Two dimensions
#
# Tensor parallelism inside a machine and sharding between machines: ranks get two coordinates.

# %% name="mesh_figure"
show(
    mesh_picture(2, 2),
    "Four ranks on a grid: rows are the data dimension, columns the tensor dimension. Ranks of a row share one batch "
    "and each has half of every matrix; ranks of a column share that half, each stores half of it and gathers the rest.",
)

# %% [markdown] name="mesh_text"
# The order of the two steps matters: first cut the matrices along `tensor`, then shard what is left along `data`. Both get their part of one mesh.
#
# **Predict.** Sharding alone, on two ranks, gathers the whole block's parameters in each pass. How many bytes travel along `data` on the 2 × 2 mesh, compared with that?

# %% name="mesh_guess"
my_guess = None  # bytes along data on 2 x 2 / bytes of sharding alone on 2
### BEGIN GUESS
my_guess = 0.5  # each rank has half of each matrix to share
### END GUESS
mesh_guess = Prediction("Along data, on 2 x 2 / sharding alone on 2", my_guess, "times")


# %% name="mesh_run"
def on_a_mesh(data, tensor):
    """Return distances from one process, and the bytes sent along each dimension of a mesh of data x tensor ranks."""
    mesh = init_device_mesh(rank_device().type, (data, tensor), mesh_dim_names=("data", "tensor"))
    whole, block = make_block(), make_block()
    if tensor > 1:
        split_by_torch(block, mesh["tensor"], at_the_input=True)
    fully_shard(block, mesh=mesh["data"])
    x = block_input().chunk(data)[mesh.get_local_rank("data")]  # each data rank has its own rows
    with MeshTraffic(mesh) as traffic:
        y = block(x)
        y.square().mean().backward()
    right = whole(block_input())
    right.square().mean().backward()
    far = relative(y.detach(), right.detach().chunk(data)[mesh.get_local_rank("data")])
    gradient = block.mlp_in.layers[0].weight.grad.full_tensor()
    return far, relative(gradient, whole.mlp_in.layers[0].weight.grad), traffic.by_dimension()


runs = {
    shape: run_ranks(on_a_mesh, shape[0] * shape[1], *shape, device=where, measure=False).results[0]
    for shape in ((2, 1), (2, 2))
}
table = [("data x tensor", "output off by", "gradient off by", "sent along data", "sent along tensor")]
for shape, (far, gradient, sent) in runs.items():
    table.append(
        (f"{shape[0]} x {shape[1]}", f"{far:.1e}", f"{gradient:.1e}", *(f"{sent[d]:,} B" for d in ("data", "tensor")))
    )
mesh_guess.reveal(runs[2, 2][2]["data"] / runs[2, 1][2]["data"])
print(text_table(table))
claims.record(
    "T20", "tensor x sharded on a 2 x 2 mesh equals one process", "block, gradient", runs[2, 2][1], "relative", 0, 1e-5
)

# %% [markdown] name="mesh_explained"
# The two dimensions carry different things. Along `data` go parameters and gradients, once a pass, and they can be gathered ahead of time. Along `tensor` go activations, several times a layer, and everybody waits for them. That is why `tensor` is the dimension that gets the fastest links.
#
# ### How much, for a real model
#
# Take the shape of Llama-2-7B (32 layers of width 4,096) and a micro-batch of one sequence of 4,096 tokens in BF16. An all-reduce over N ranks sends 2 (N − 1) / N times its message ([[data_parallel]]); here we take that as 2. The last line is for a pipeline ([[pipeline]]), which sends only the activations between two layers and their gradients.
#
# **Predict.** From how many sequences a step does tensor parallelism send more than data parallelism, which all-reduces the gradients once a step?

# %% name="volume_guess"
my_guess = None  # sequences
### BEGIN GUESS
my_guess = 3
### END GUESS
volume_guess = Prediction("Sequences a step from which tensor parallel sends more", my_guess, "")

# %% name="volume"
layers, width, hidden, words, tokens = 32, 4096, 11_008, 32_000, 4096
parameters = layers * (4 * width**2 + 3 * width * hidden) + 2 * words * width  # attention, gated MLP, both tables
tensor_parallel = 2 * (4 * layers) * tokens * width * 2  # 4 all-reduces a layer, 2 bytes a number
data_parallel = 2 * parameters * 2
volume_guess.reveal(data_parallel / tensor_parallel)
print(f"{parameters / 1e9:.2f} billion parameters")
print(f"tensor parallel: {tensor_parallel / 1e9:.1f} GB a rank and sequence, in {4 * layers} blocking messages")
print(f"data parallel:   {data_parallel / 1e9:.1f} GB a rank and step, hidden behind the backward pass")
print(f"pipeline:        {2 * tokens * width * 2 / 1e9:.2f} GB a sequence between two stages")

# %% [markdown] name="volume_explained"
# Tensor parallelism sends fewer bytes than data parallelism for one sequence and more for many, and everybody waits for most of them. So use tensor parallel **inside** a machine, where fast links join the GPUs; pipeline **between** machines, because it sends least; and data parallel or sharding on top.

# %% [markdown] name="summary_text"
# ## 7 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - In a sharded product, only the dimension that is summed over decides what is sent: gather it if it is cut once, add partial sums if it is cut twice.
# - Columns, then rows: one all-reduce for the pair. Where paths part, sum the gradients; where they meet, sum the outputs.
# - Autograd does not know about collectives: some cut off the gradient, some are ignored. Give each its own backward pass; a wrong gradient need not show in the loss.
# - One parameter on several ranks, each of which sees only a part of its use (a shared K/V head, a norm over some of the tokens): sum its gradients.
# - A softmax over a cut dimension takes three numbers a row. Sequence parallelism sends the same bytes as tensor parallelism and stops keeping whole activations, except those that the matrices need.
#
# **What to reach for when.** One layer does not fit, or its activations do not: tensor parallel, inside a machine, with the sequence split too. Many layers, slow links: a pipeline ([[pipeline]]). Before either: sharding ([[sharding]]), which needs no change to the model.
#
# **Sources.** Shoeybi et al. 2019, *Megatron-LM*; Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models* (sequence parallelism); Austin et al. 2025, *How to Scale Your Model* (the JAX Scaling Book), chapter 3; PyTorch documentation, `torch.distributed.tensor.parallel`.
