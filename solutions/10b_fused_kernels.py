# %% [markdown] name="title"
# # Fused kernels
#
# **A fused kernel reads its inputs from memory and writes only its result. Attention's scores and a language model's logits are only intermediate results, so they never have to be stored in full.**
#
# | | |
# |---|---|
# | After this you can | count the bytes that a fused kernel saves; read a Triton kernel, and write the core of one; write attention that never stores all its scores; compute a language model's loss without storing its logits |
# | Time | 95 to 115 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●○ |
# | Needs | a CPU, with a C++ compiler for one cell; the same cells use a GPU if there is one. Triton is optional; without a GPU its interpreter runs the kernels |
# | Before this | labs [[#where_memory_goes]] and [[#compilation_and_fusion]]; [[#oom_clinic]] helps |
# | Syllabus | T17, T31 |
#
# From [[compilation_and_fusion]] you need four things:
#
# - In eager mode each operation writes its result to memory, where the next one reads it.
# - Most operations other than matmuls do so little arithmetic per byte that they wait for memory. They are *memory-bound*.
# - One *kernel* for several operations keeps intermediate results in registers. It *fuses* the operations.
# - `torch.compile` writes such kernels for chains of pointwise operations.
#
# First you follow a norm down to a kernel's loads and stores. Then you write two fusions that need a new algorithm: attention and the loss.

# %% name="setup" setup=true
import importlib.util
import math
import os
import tempfile

from helpers import (
    COLORS,
    Claims,
    MemoryMeter,
    Prediction,
    Recipe,
    benchmark,
    check,
    compare,
    device_name,
    explore,
    hint,
    human_bytes,
    pick_device,
    plan_deep,
    show,
    sign_of_life,
    traffic,
    why_no_compiler,
    with_vocabulary,
)
from helpers.planner.catalog import find_model

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device, claims, missing = pick_device(), Claims(), why_no_compiler()
HAS_TRITON = importlib.util.find_spec("triton") is not None
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling processes for so few kernels
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")
print("torch.compile makes kernels here:", f"no, {missing}; cells that need them will say so" if missing else "yes")
print("Triton is installed:", "yes" if HAS_TRITON else "no; cells that need it will say so")

# %% [markdown] name="norm_text"
# ## 1 · A kernel by hand
#
# (Without Triton, count the norm's bytes, then skip to section 2. The cells in between will do nothing.)
#
# Each half of a transformer block ends with a sum (the residual), and the next one starts with a norm. Together: `total = x + residual`, `out = total * rsqrt(mean(total²) + eps) * weight`. With n numbers in x, a fused kernel reads 2n and writes 2n. Eager mode reads and writes more. `traffic` counts how much, from the sizes of the tensors (per-row scalars are negligible):


# %% name="norm"
def add_norm(x, residual, weight):
    """Residual and RMSNorm: x, residual (rows, width), weight (width,) -> the sum, and the normed sum."""
    total = x + residual
    return total, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight


# %% name="norm_traffic"
rows = [torch.randn(4096, 512, device=device) for _ in range(2)]
weight = torch.rand(512, device=device)
norm_traffic = traffic(add_norm, *rows, weight)
print(f"read and written: {norm_traffic.nbytes / rows[0].nbytes:.1f} times n")
print(norm_traffic.table(rows[0].nbytes))

# %% [markdown] name="triton_text"
# Going by bytes alone, the fused norm should be 10 / 4 = 2.5 times as fast. That holds if the traffic really goes to memory. (`traffic` counts bytes from the sizes of tensors, whether or not they are in a cache. [[Compilation_and_fusion]] compares bytes with time.)
#
# **Triton** is a language for GPU kernels inside Python. Here one *program* runs per row, as many at a time as the GPU has room for. A program loads its row into registers, computes, and stores:
# `tl.load` and `tl.store` are the only traffic. Count three loads (the weight is small, and stays in the cache) and two stores.
#
# NVIDIA's GPUs run the threads of a program in groups of 32, called **warps**. While one warp waits for memory, another one runs. A multiprocessor has a fixed number of slots for warps, and the share that is filled is its **occupancy**.
# If a program needs many registers, fewer warps fit, and less of the waiting is hidden.
#
# The width is padded to a power of two, and the mask excludes the padding from memory accesses. Sums are FP32 whatever the type of the inputs. Without a GPU, Triton's *interpreter* runs the same kernel with NumPy: it shows whether the kernel is correct, but not how fast it is.

# %% name="triton_kernel"
if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def add_norm_kernel(x, residual, weight, total, out, width, BLOCK: tl.constexpr):
        row = tl.program_id(0)
        column = tl.arange(0, BLOCK)
        inside = column < width
        at = row * width + column
        added = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        added += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(added * added) / width + 1e-6)
        normed = added * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + at, added.to(total.dtype.element_ty), mask=inside)
        tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)

    def triton_add_norm(x, residual, weight):
        total, out = torch.empty_like(x), torch.empty_like(x)
        programs = (x.shape[0],)
        block = triton.next_power_of_2(x.shape[1])
        add_norm_kernel[programs](x, residual, weight, total, out, x.shape[1], BLOCK=block)
        return total, out


# %% name="triton_run"
if HAS_TRITON:
    place = device if device.type == "cuda" else torch.device("cpu")
    for dtype in (torch.float32, torch.bfloat16):
        some = [torch.randn(16, 200, device=place).to(dtype) for _ in range(2)]
        gain = torch.rand(200, device=place).to(dtype)
        mine = triton_add_norm(*some, gain)
        exact = add_norm(*(t.double() for t in some), gain.double())
        off = max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(mine, exact, strict=True))
        print(f"{dtype}: relative error {off:.1e}; the format's step is {torch.finfo(dtype).eps:.1e}")
    if device.type == "cuda":
        compiled_norm = torch.compile(add_norm, dynamic=False)
        print("eager -> Triton", compare(lambda: add_norm(*rows, weight), lambda: triton_add_norm(*rows, weight)))
        pace = compare(lambda: compiled_norm(*rows, weight), lambda: triton_add_norm(*rows, weight))
        print("torch.compile -> Triton", pace)
else:
    print("Triton is not installed, so this cell does nothing: run make install-triton")

# %% [markdown] name="attention_text"
# ## 2 · Attention without its scores
#
# The scores of attention, T × T per head, are the largest tensor when sequences are long, and they are only an intermediate result: a softmax turns them into weights, and the result is the weighted mean of the values.
#
# To fuse the three steps (scores, softmax, weighted mean), a softmax has to be computed from **part** of a row at a time. But a softmax divides by a sum over the full row, and subtracts its maximum first, so that `exp` does not overflow.
#
# There is a way. For each row, keep three things about the columns seen so far:
#
# - `largest`, the largest score;
# - `total`, the sum of exp(score − largest);
# - `weighted`, the sum of exp(score − largest) · value.
#
# Then `weighted / total` is the result so far. When the next part of the row, a **tile**, contains a larger score, the old sums are wrong by a known factor.

# %% name="softmax_picture"
figure = Figure(figsize=(7.5, 2.2), layout="constrained")
axes = figure.add_subplot()
tiles = ("seen", "seen", "this tile", "later", "later")
for number, words in enumerate(tiles):
    axes.barh(0, 1, left=number, color=COLORS[{"seen": 0, "this tile": 4, "later": 7}[words]], edgecolor="white")
    axes.text(number + 0.5, 0, words, ha="center", va="center", color="white")
axes.text(1, -0.85, "largest, total, weighted", ha="center")
axes.annotate("", (3.6, -0.8), (1.75, -0.8), arrowprops={"arrowstyle": "->"})
axes.text(2.65, -0.7, "× exp(old largest − new largest)", ha="center", fontsize=8)
axes.text(2.65, -1.1, "+ the sums of this tile", ha="center", fontsize=8)
axes.text(4.3, -0.85, "largest, total, weighted", ha="center")
axes.set(title="One row of scores, tile by tile", xlim=(0, 5), ylim=(-1.3, 0.6))
axes.axis("off")
show(
    figure,
    "A row of five tiles: a maximum and two sums stand for the tiles seen so far; a new tile rescales the sums and adds its own.",
)

# %% [markdown] name="softmax_task"
# ### Your turn: the online softmax
#
# **Contract.** `online_softmax(state, scores, values)` takes one tile and returns the new state, `(largest, total, weighted)`.
#
# - `scores` (..., R, C) and `values` (..., C, d) are the tile, contiguous or not: R rows, C columns. `state` is what the last call returned, or None at first. Tiles may differ in C.
# - `largest` (..., R), `total` (..., R) and `weighted` (..., R, d) are defined as in the list above, over all columns so far.
# - Scores of several thousand must not produce an infinity or a NaN.
# - A score of -inf contributes nothing. If all scores of a row so far are -inf, its `total` and `weighted` are 0 and its `largest` is -inf.
# - The arguments are not changed.


# %% name="softmax" answer=true reveal=true
def online_softmax(state, scores, values):
    ### BEGIN SOLUTION
    largest = scores.amax(-1)
    if state is not None:
        largest = torch.maximum(largest, state[0])
    base = torch.where(largest.isinf(), 0.0, largest)  # where nothing was seen: exp(-inf - 0) is 0
    weights = (scores - base[..., None]).exp()
    total, weighted = weights.sum(-1), weights @ values
    if state is not None:
        rescale = (state[0] - base).exp()  # the old sums were relative to the old maximum
        total = total + rescale * state[1]
        weighted = weighted + rescale[..., None] * state[2]
    return largest, total, weighted
    ### END SOLUTION


# %% name="softmax_check"
online_softmax = check("fused_kernels.softmax", online_softmax)

# %% name="softmax_hint"
hint("fused_kernels.softmax")

# %% [markdown] name="attention_task"
# ### Your turn: attention, tile by tile
#
# **Contract.** `tiled_attention(q, k, v, tile)` returns causal attention, softmax(q kᵀ / √d) v, in which row i attends to columns 0 to i.
#
# - `q`, `k`, `v` (B, H, T, d), FP32; the result has their shape. T need not be a multiple of `tile`, and may be smaller. The inputs are not changed; they may be transposed views, as heads usually are. There is no backward pass here.
# - Scores may be of any size and sign, as in `online_softmax`.
# - Each matmul computes one full tile, `tile` × `tile` scores per head; only tiles at the edges are smaller.
# - Tiles above the diagonal, in which everything is masked, cost no matmul.
# - Besides inputs, result and sums of rows, at most six tiles of scores exist at a time.


# %% name="attention" answer=true reveal=true
def tiled_attention(q, k, v, tile):
    ### BEGIN SOLUTION
    length, scale = q.shape[-2], q.shape[-1] ** -0.5
    out = torch.empty_like(q)
    for top in range(0, length, tile):
        rows, state = q[..., top : top + tile, :] * scale, None
        for left in range(0, top + 1, tile):  # tiles to the right of the diagonal are masked
            scores = rows @ k[..., left : left + tile, :].mT
            if left == top:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            state = online_softmax(state, scores, v[..., left : left + tile, :])
        _, total, weighted = state
        out[..., top : top + tile, :] = weighted / total[..., None]
    return out
    ### END SOLUTION


# %% name="attention_check"
tiled_attention = check("fused_kernels.attention", tiled_attention)

# %% name="attention_hint"
hint("fused_kernels.attention")

# %% [markdown] name="guess_tiles_text"
# Now measure the peak (without inputs and result) and the traffic for four heads, 1,024 tokens and tiles of 128. Compare your function with the plain version and with PyTorch's own (`F.scaled_dot_product_attention`).
#
# **Predict.** What is the ratio of the bytes that the *operations* of the plain version move (read and write) to the bytes that the operations of the tiled loop move? (The loop skips nearly half of the scores.)

# %% name="guess_tiles"
my_guess = None  # bytes of the plain version / bytes of the tiled loop
### BEGIN GUESS
my_guess = 2
### END GUESS
tiles_guess = Prediction("Bytes moved, plain / tiled", my_guess, "times")


# %% name="attention_measure"
def plain_attention(q, k, v):
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v


torch.manual_seed(0)
q, k, v = (torch.randn(1, 4, 1024, 64, device=device) for _ in range(3))
METHODS = {
    "plain": plain_attention,
    "tiled, yours": lambda q, k, v: tiled_attention(q, k, v, 128),
    "PyTorch's own": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
}
exact, costs = plain_attention(q, k, v), {}
for name, way in METHODS.items():
    with MemoryMeter(device=device) as meter:
        out = way(q, k, v)
    costs[name] = meter.peak_bytes - 4 * q.nbytes, traffic(way, q, k, v).nbytes
    off = ((out - exact).norm() / exact.norm()).item()
    seconds_taken = benchmark(lambda way=way: way(q, k, v), runs=5).median
    held, moved = map(human_bytes, costs[name])
    print(f"{name:14} holds {held:>10}, operations move {moved:>11}, {seconds_taken * 1e3:6.2f} ms, off by {off:.0e}")
tiles_guess.reveal(costs["plain"][1] / costs["tiled, yours"][1])
for name in ("tiled, yours", "PyTorch's own"):
    fewer, subject = costs["plain"][1] / costs[name][1], f"{q.shape[-2]:,} tokens, plain / {name}"
    claims.figure("bytes between attention's operations", subject, fewer, "times")

# %% [markdown] name="attention_explained"
# - **The peak** falls to a few tiles.
# - **The traffic does not fall.** The loop skips nearly half of the scores and still moves more bytes than the plain version. Its matmul writes a tile, the next operations read it one after another, and each tile also rescales the two sums. In eager mode a tile goes to memory between two operations, as a full matrix does.
# - On a CPU this does not have to cost time: a tile fits into a cache, which `traffic` does not know about. Compare the milliseconds above.
# - PyTorch's own version moves q, k, v and the result, and nothing else that `traffic` could see. It is **one kernel**: a tile stays in registers (on a CPU, in the cache) until the maximum and the two sums of its rows are updated. That is the idea of FlashAttention: your loop, fused. Inside, it reads keys and values once per row of tiles; this count leaves those reads out, but the count at the end of this section includes them.
#
# The backward pass needs the weights again. FlashAttention does not save them. It saves one number per row, largest + log total, and recomputes each tile.
#
# ### Your turn: the same in Triton
#
# One program of the kernel below handles one row of tiles of one head. It loads the tiles; you write what it does with each. (Without Triton this cannot be
# checked: skip it, or run `make install-triton` in a terminal. On a CPU its interpreter runs the kernel.)
#
# **Contract.** `merge_tile(largest, total, weighted, scores, values)` merges one tile into the state and returns the new state, in this order.
#
# - `scores` (R, C) and `values` (C, d) are the tile; `largest` (R,), `total` (R,) and `weighted` (R, d) are defined as above, and start with -inf, 0 and 0.
# - All are FP32. Each row of scores has at least one finite score. Scores of several thousand must not produce an infinity or a NaN.
# - Use Triton's functions only: `tl.maximum`, `tl.max(x, axis)`, `tl.sum(x, axis)`, `tl.exp`, and `tl.dot(a, b, input_precision="ieee")`, which does not round to TF32.
# - R, C and d may differ. A factor per row needs `[:, None]`: Triton broadcasts from the right, as NumPy does, so where R = d, (R,) times (R, d) would multiply columns without an error.

# %% name="merge" answer=true reveal=true
if HAS_TRITON:
    import triton.language as tl


def merge_tile(largest, total, weighted, scores, values):
    ### BEGIN SOLUTION
    new = tl.maximum(largest, tl.max(scores, 1))
    weights, shrink = tl.exp(scores - new[:, None]), tl.exp(largest - new)
    total = shrink * total + tl.sum(weights, 1)
    weighted = shrink[:, None] * weighted + tl.dot(weights, values, input_precision="ieee")
    return new, total, weighted
    ### END SOLUTION


# %% name="merge_check"
merge_tile = check("fused_kernels.merge", merge_tile)

# %% name="merge_hint"
hint("fused_kernels.merge")

# %% [markdown] name="guess_kernel_text"
# The next cell has the kernel around it. Count `tl.load` and `tl.store`, and how often each runs. With eight rows of tiles, by what factor does this kernel reduce the bytes that the plain version moves?

# %% name="triton_attention"
if HAS_TRITON:
    merge = triton.jit(merge_tile)

    @triton.jit
    def attention_kernel(q, k, v, out, length, scale, WIDTH: tl.constexpr, TILE: tl.constexpr):
        top, head = tl.program_id(0) * TILE, tl.program_id(1) * length * WIDTH
        row, across = top + tl.arange(0, TILE), tl.arange(0, WIDTH)
        here = head + row[:, None] * WIDTH + across[None, :]
        rows = tl.load(q + here, mask=row[:, None] < length, other=0.0) * scale
        largest = tl.full((TILE,), float("-inf"), tl.float32)
        total, weighted = tl.zeros((TILE,), tl.float32), tl.zeros((TILE, WIDTH), tl.float32)
        left = 0
        while left <= top:  # to the diagonal
            column = left + tl.arange(0, TILE)
            there, inside = head + column[:, None] * WIDTH + across[None, :], column[:, None] < length
            keys = tl.load(k + there, mask=inside, other=0.0)
            scores = tl.dot(rows, tl.trans(keys), input_precision="ieee")
            scores = tl.where(row[:, None] >= column[None, :], scores, float("-inf"))
            values = tl.load(v + there, mask=inside, other=0.0)
            largest, total, weighted = merge(largest, total, weighted, scores, values)
            left += TILE
        tl.store(out + here, weighted / total[:, None], mask=row[:, None] < length)

    def triton_attention(q, k, v, tile):
        heads, length, width = q.shape[0] * q.shape[1], *q.shape[2:]
        out = torch.empty_like(q)
        grid = triton.cdiv(length, tile), heads
        attention_kernel[grid](q, k, v, out, length, width**-0.5, WIDTH=width, TILE=tile)
        return out


# %% name="triton_attention_run"
if HAS_TRITON:
    few = [t[:, :2, :200].contiguous().to(place) for t in (q, k, v)]
    mine, own = triton_attention(*few, 64), F.scaled_dot_product_attention(*few, is_causal=True)
    print(f"2 heads, 200 tokens, tiles of 64: off by {((mine - own).norm() / own.norm()).item():.0e}")
    if device.type == "cuda":
        print("plain -> Triton", compare(lambda: plain_attention(q, k, v), lambda: triton_attention(q, k, v, 64)))
else:
    print("Triton is not installed, so this cell only counts.")
length, tile = q.shape[-2], 128
moved = q.nbytes * (1 + (length // tile + 1) + 1)  # q; k and v for each row of tiles, to the diagonal; the result
print(f"by its loads and stores, {length:,} tokens, tiles of {tile}: {human_bytes(moved)}")
print(f"{costs['plain'][1] / moved:.1f} times fewer than the operations of the plain version")

# %% [markdown] name="logits_text"
# ## 3 · The fusion that saves the most
#
# The last layer of a language model turns `hidden` (N, D) into logits (N, V), and the loss turns each row into one number. V is 32,000 to 256,000 today, and logits, softmax and gradients are FP32. Here is the plain version, and what it holds at its peak:

# %% name="naive"
N, D, V = 2048, 64, 8192
torch.manual_seed(0)
hidden = torch.randn(N, D, device=device, requires_grad=True)
head = (torch.randn(V, D, device=device) / 8).requires_grad_()
labels = torch.randint(V, (N,), device=device)
labels[::5] = -100  # padding


def naive(hidden, weight, labels, chunk=None):
    return F.cross_entropy((hidden @ weight.t()).float(), labels)


def run(loss_function, chunk=None):
    """Run forward and backward pass under the meter; return the meter, the loss and the two gradients."""
    hidden.grad = head.grad = None
    with MemoryMeter(device=device) as meter:
        loss = loss_function(hidden, head, labels, chunk)
        loss.backward()
    return meter, loss.item(), hidden.grad, head.grad


plain_run = run(naive)
print(f"peak, in tensors of N x V: {plain_run[0].peak_bytes / (4 * N * V):.2f}")
print(plain_run[0])

# %% [markdown] name="chunked_text"
# The peak is in the backward pass of the log-softmax, with three tensors of N × V at once (patient B of [[oom_clinic]]).
#
# Rows are independent, so take `chunk` rows at a time. You could checkpoint each chunk, as you did for patient B, but then every chunk's logits are computed twice. This fusion computes them once, because the gradient of a row's loss is known **in the forward pass**:
#
# $$\frac{\partial\, \text{loss}}{\partial\, \text{logits}_{ij}} = \frac{\text{softmax}(\text{logits}_i)_j - [j = \text{label}_i]}{\text{number of rows that count}}$$
#
# While a chunk of logits exists, compute its loss, its gradient, and its contribution to the gradients of `hidden` and `weight`. Then free the chunk. The backward pass only multiplies by the gradient that it receives.
#
# ### Your turn: the loss
#
# **Contract.** `chunked_cross_entropy(hidden, weight, labels, chunk)` returns the mean loss, a tensor of shape () in FP32, ready for `backward()`.
#
# - `hidden` (N, D), `weight` (V, D), both FP32 or both in 16 bits, with logits of any size; `labels` (N,), integers; `chunk` need not divide N, and may be larger.
# - The mean is over rows whose label is not -100. If all labels are -100, the loss is 0 and gradients are zeros (`F.cross_entropy` returns NaN).
# - Loss and gradients are those of `F.cross_entropy(hidden @ weight.t(), labels)`, even when the loss is scaled or added to others. Under `no_grad` the loss is the same. A `weight` that requires no gradient gets none, and no matmul is done for it; under `no_grad`, none is done for `hidden` either.
# - At most `chunk` rows of logits exist at a time, in either pass, and each matmul is done once: the backward pass makes no logits.
# - At most three tensors of the size of a chunk's logits exist at a time (logits, softmax, one more). Free a chunk's tensors before you make the next chunk's logits. Take `chunk` rows at a time, not fewer (except in the last chunk).
# - For 16-bit inputs, compute softmax, loss and sums over chunks in FP32, and divide last (small numbers underflow in FP16). Matmuls may be in 16 bits. Each gradient has the type of its tensor.
#
# The frame is a `torch.autograd.Function`. It makes FP32 `sums` for the two gradients (None where none is wanted) and saves them; inside `forward`, gradients are always off. Write what happens to a chunk, and `backward(ctx, upstream)`,
# which returns a gradient for each of the five arguments of `forward`, or None.


# %% name="chunked" answer=true reveal=true
class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, grad_enabled):
        wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[:2]]
        inputs = zip((hidden, weight), wanted, strict=True)
        sums = [torch.zeros_like(t, dtype=torch.float32) if wants else None for t, wants in inputs]
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), chunk):
            rows, truth = hidden[start : start + chunk], labels[start : start + chunk]
            ### BEGIN SOLUTION
            logits = (rows @ weight.t()).float()
            total += F.cross_entropy(logits, truth, reduction="sum")  # leaves out -100
            if any(wanted):
                gradient = logits.softmax(-1)
                gradient[torch.arange(len(truth), device=truth.device), truth.clamp(min=0)] -= 1
                gradient[truth == -100] = 0
                gradient = gradient.to(rows.dtype)
                if wanted[0]:
                    sums[0][start : start + chunk] = gradient @ weight
                if wanted[1]:
                    sums[1] += gradient.t() @ rows
            logits = gradient = None  # before the next chunk's are made
            ### END SOLUTION
        counts = (labels != -100).sum().clamp(min=1)  # stays a tensor, so nothing waits for the GPU
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(*sums, counts)
        return total / counts

    @staticmethod
    def backward(ctx, upstream):
        ### BEGIN SOLUTION
        *sums, counts = ctx.saved_tensors
        return *(None if s is None else (s * (upstream / counts)).to(ctx.dtype) for s in sums), None, None, None
        ### END SOLUTION


def chunked_cross_entropy(hidden, weight, labels, chunk):
    return ChunkedLoss.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())


# %% name="chunked_check"
chunked_cross_entropy = check("fused_kernels.chunked", chunked_cross_entropy)

# %% name="chunked_hint"
hint("fused_kernels.chunked")


# %% name="chunked_measure"
def own(hidden, weight, labels, chunk=None):  # None: it chooses
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)
    return F.linear_cross_entropy(hidden, weight, labels, options=options)


runs = {"naive": plain_run, "chunked": run(chunked_cross_entropy, 128)}
if hasattr(F, "linear_cross_entropy"):  # new in PyTorch 2.13
    runs |= {"PyTorch's own": run(own), "the same, 128": run(own, 128)}
else:
    print("This PyTorch has no F.linear_cross_entropy yet.")
for name, (meter, loss, *gradients) in runs.items():
    off = max(((a - b).norm() / b.norm()).item() for a, b in zip(gradients, plain_run[2:], strict=True))
    print(f"{name:14} loss {loss:.6f}, gradients off by {off:.0e}, peak {human_bytes(meter.peak_bytes)}")

# %% [markdown] name="chunked_table_explained"
# PyTorch's own version uses the same idea. By default it chooses the size of its chunks, and may take far smaller ones. With chunks of 128 it still holds less than the reference solution (yours may differ): PyTorch works in place and holds one tensor of a chunk where the reference holds two (4 MiB each). The rest of the difference matches the size of the result of `gradient.t() @ rows`, a tensor of V × D (2 MiB) that exists until it is added.
#
# Variables keep tensors alive. If a variable still refers to the last chunk's gradient while the next logits are made, that costs one more chunk (4 MiB). The check tests for it.


# %% name="chunked_time"
def forward_and_backward(loss_function):
    hidden.grad = head.grad = None
    loss_function(hidden, head, labels, 128).backward()


for fn in (chunked_cross_entropy, own) if len(runs) > 2 else (chunked_cross_entropy,):
    with sign_of_life("timing the loss"):
        pace = compare(lambda: forward_and_backward(naive), lambda fn=fn: forward_and_backward(fn), runs=3, warmup=1)
    print(f"naive -> {'PyTorch' if fn is own else 'chunked'}, chunks of 128: {pace}")
    if fn is not own:
        said, subject = "computing the loss in chunks costs no extra time", f"chunks of 128, V = {V:,}"
        claims.record("T17", said, subject, pace.speedup, "times as fast", 0.9, math.inf)

# %% [markdown] name="play_text"
# ### Explore
#
# Smaller chunks lower the peak, but they also make each chunk's matmuls smaller, and a GPU needs large ones to stay busy.
#
# **Predict.** By what factor is the peak lower with chunks of 8 rows than with chunks of 128? (The logits of a chunk are smaller by a factor of 16.)

# %% name="guess_chunk"
my_guess = None  # times
### BEGIN GUESS
my_guess = 4  # logits of 4 MiB become small; the inputs and their gradients stay
### END GUESS
chunk_guess = Prediction("Peak with chunks of 128 rows / with chunks of 8", my_guess, "times")

# %% name="play"
by_chunk = {size: run(chunked_cross_entropy, size)[0] for size in (8, 32, 128, 512)}
for size, meter in by_chunk.items():
    print(f"chunks of {size:4}: peak {human_bytes(meter.peak_bytes)}, logits of a chunk {human_bytes(4 * size * V)}")
explore(
    lambda chunk: by_chunk[chunk].plot(f"chunks of {chunk}: peak {human_bytes(by_chunk[chunk].peak_bytes)}"),
    "Memory over time: one tooth per chunk; the teeth get smaller and more numerous as chunks shrink.",
    chunk=(512, tuple(by_chunk)),
)
chunk_guess.reveal(by_chunk[128].peak_bytes / by_chunk[8].peak_bytes)
print("chunks of 8,", by_chunk[8])

# %% [markdown] name="play_explained"
# The peak falls until the backward pass sets it. It then consists of the inputs, the sums that the forward pass saved, and those sums times the upstream gradient: three times `hidden` and `head`. No logits are among them, so smaller chunks gain nothing more.

# %% [markdown] name="llama_text"
# ### At the size of Llama 3
#
# The vocabulary of Llama 3 has 128,256 tokens. Suppose you fine-tune the 8B model with LoRA (small trained matrices added to a frozen model, [[lora]]) on one sequence of 8,192 tokens, with every block checkpointed.
#
# The planner computes how much memory the step needs with the full vocabulary, and with a vocabulary of 128 tokens. The cell adds the missing weights of the embedding and the head to the second figure.

# %% name="llama"
tokens, shape = 8192, find_model("llama-3.1-8b").config
with tempfile.TemporaryDirectory() as folder:
    names = "llama-3.1-8b", with_vocabulary("llama-3.1-8b", 128, folder)
    recipes = [Recipe(name, seq=tokens, lora_rank=16, checkpointing="every") for name in names]
    full, bare = plan_deep(recipes, progress=True)
whole, vocabulary = full.allocated_bytes, shape.vocab_size
without = bare.allocated_bytes + 2 * 2 * shape.hidden_size * (vocabulary - 128)  # embedding and head, BF16
three = 3 * 4 * tokens * vocabulary
print(f"planned peak {human_bytes(whole)}; three copies of the logits {human_bytes(three)}, {three / whole:.0%} of it")
chunks = human_bytes(2 * 4 * 512 * vocabulary)
print(f"planned without logits {human_bytes(without)}; two copies of a chunk of 512 rows: {chunks}")

# %% [markdown] name="llama_explained"
# Without the logits the planned peak falls by a third, and the step fits a smaller GPU. (The drop is less than the three copies, so without them the peak must occur at a different point in the step.) The logits also grow with the length of the sequences. That is why most fine-tuning libraries include or call such a kernel: `liger-kernel`, Unsloth, `cut-cross-entropy` (which does not store even a chunk of logits in memory), and, since 2.13, PyTorch itself.
#
# ## 4 · Claims and measurements

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Fusing residual and norm turns 10n into 4n.
# - In Triton a program works on a row or a tile, and its loads and stores are all of its traffic.
# - Attention does not need to store T × T scores, only a maximum and two sums per row, which are rescaled when the maximum changes. Tiles lower the peak. The traffic falls only when one kernel keeps a tile in registers.
# - With a large vocabulary, compute the loss in chunks, and its gradient while the logits exist.
#
# | You see | Reach for |
# |---|---|
# | logits at the peak | chunked cross-entropy, before anything else |
# | attention's scores at the peak | `F.scaled_dot_product_attention` |
# | a memory-bound chain of operations | `torch.compile` first; a kernel of your own where a new algorithm is needed |
#
# **Sources.**
#
# - Tillet et al. 2019, *Triton*; NVIDIA, *CUDA C++ Programming Guide* (warps, occupancy)
# - Milakov and Gimelshein 2018, *Online normalizer calculation for softmax*; Dao et al. 2022, *FlashAttention*
# - Hsu et al. 2024, *Liger Kernel*; Wijmans et al. 2024, *Cut Your Losses in Large-Vocabulary Language Models*
