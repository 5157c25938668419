# %% [markdown] name="title"
# # Where the time goes
#
# **An operation takes as long as its arithmetic or its memory traffic, whichever takes longer, plus the launch overhead. Add these up and you can explain a training step to within a factor of about 1.5. A profile shows where the rest goes.**
#
# | | |
# |---|---|
# | After this you can | estimate how long an operation, and a training step, takes from FLOPs, bytes and launches; say what bounds a layer and at what batch size that changes; count the FLOPs of a transformer by both conventions; read a profiler's trace, also one of a real GPU; compute MFU and HFU; compare the speed of two programs correctly; diagnose a slow loop from its trace |
# | Time | 150 to 200 minutes; a good place to stop is after section 6 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#activation_checkpointing]] |
# | Syllabus | T29, T30, C24 |

# %% name="setup" setup=true
import functools
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from helpers import (
    COLORS,
    Claims,
    Prediction,
    SmallGPT,
    benchmark,
    check,
    compare,
    count_flops,
    device_name,
    english,
    explore,
    find_gpu,
    gpu_trace,
    gpu_trace_source,
    hint,
    kept_roofline,
    measure_roofline,
    model_flops,
    numbers_beyond_cache,
    pick_device,
    profile_step,
    roofline_figure,
    show,
    show_table,
    works_of,
)
from helpers.core.device import synchronize

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, threads: {torch.get_num_threads()}")

# %% [markdown] name="clocks_text"
# ## 1 · Two operations, two limits
#
# A processor has two limits. Its **peak** is the number of floating-point operations (FLOPs) that it can execute per second. Its **bandwidth** is the number of bytes per second that it can move to and from memory. A matmul of two n × n matrices does 2·n³ FLOPs on 12·n² bytes (FP32), so for large n arithmetic dominates. Adding two tensors of n numbers does n FLOPs on 12·n bytes, so memory traffic dominates.
#
# Measure both limits: the peak with a large matmul, and the bandwidth with a copy of tensors that do not fit in any cache. Then measure a third figure, the **launch overhead**: the cost of an operation that does almost no work.

# %% name="by_hand"
x = torch.randn(numbers_beyond_cache(device), device=device)
side = 1024 if device.type == "cpu" else 2 ** (int(math.log2(x.numel())) // 2)  # a GPU needs more to be busy
a, b = (torch.randn(side, side, device=device) for _ in range(2))
y, out = torch.randn_like(x), torch.empty_like(x)
number = torch.ones((), device=device)

peak = 2 * side**3 / benchmark(lambda: a @ b, runs=7).median
bandwidth = 2 * x.nbytes / benchmark(lambda: out.copy_(x), runs=7).median
launch = benchmark(lambda: [number.add(number) for _ in range(200)]).median / 200
balance = peak / bandwidth
print(f"peak {peak / 1e9:,.0f} GFLOP/s, bandwidth {bandwidth / 1e9:.1f} GB/s, launch {launch * 1e6:.1f} µs")
print(f"while one byte moves, there is time for {balance:.1f} FLOPs")

# %% [markdown] name="clocks_guess_text"
# The next cell checks these figures on two other operations. It predicts the time of a matmul from its FLOPs: a `side` × `side` matrix times a `side` × `side` / 2 matrix. It predicts the time of an addition from its bytes: two tensors as large as the one that was copied, with the sum written to a third. Then it adds a square matrix S to another one, T, and to the *transpose* of T. Both sums read two matrices and write one.
#
# **Predict.** What is the ratio of the time of S + Tᵀ to that of S + T?

# %% name="clocks_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1  # the same FLOPs, the same bytes
### END GUESS
transpose_guess = Prediction("S + Tᵀ / S + T, time", my_guess, "times")

# %% name="clocks"
half = b[:, : side // 2].contiguous()
product, addition = benchmark(lambda: a @ half), benchmark(lambda: torch.add(x, y, out=out))
for name, run, formula in (
    ("matmul", product, side**3 / peak),
    ("addition", addition, 3 * x.nbytes / bandwidth),  # reads two, writes one
):
    print(f"{name}: {1e3 * run.median:.2f} ms measured, {1e3 * formula:.2f} ms by formula")
edge = math.isqrt(x.numel())
square, other, target = (t[: edge * edge].view(edge, edge) for t in (x, y, out))
turned = compare(lambda: torch.add(square, other.mT, out=target), lambda: torch.add(square, other, out=target), runs=7)
transpose_guess.reveal(turned.speedup)
by_flops = product.median / (side**3 / peak)
by_bytes = addition.median / (3 * x.nbytes / bandwidth)
claims.record(
    "T29", "a matmul takes its FLOPs / peak", f"{side} x {side} x {side // 2}, FP32", by_flops, "x", 0.67, 1.5
)
claims.record("T29", "an addition takes its bytes / bandwidth", "x + y with out=", by_bytes, "x", 0.67, 1.5)
flops_alone = x.numel() / peak
print(f"by its FLOPs alone the addition would take {1e3 * flops_alone:.3f} ms")
print("spread of the runs:", f"matmul {product.spread:.0%}, addition {addition.spread:.0%}")

# %% [markdown] name="clocks_explained"
# Two figures describe the machine, and each operation needs the right one. The second-to-last line applies the wrong limit to the addition and is off by a large factor, because an addition does almost no arithmetic.
#
# The transposed sum needs the same number of bytes but moves more. Memory delivers blocks of contiguous bytes (64 on most CPUs, 32 on NVIDIA's GPUs), and reading down a column uses one number of each. So the formula holds only for an operation that reads its tensors in the order in which they are stored.
#
# (If the spread is large, another program is running on this machine, and all figures in this lab vary with it.)
#
# ## 2 · The roofline
#
# Arithmetic and memory traffic overlap, so an operation takes as long as the **slower** of the two. Before that it has to be launched by Python, PyTorch's dispatcher and, on a GPU, the driver. So
#
# $$\text{seconds} = \max\left(\frac{\text{FLOPs}}{\text{peak}},\ \frac{\text{bytes}}{\text{bandwidth}}\right) + \text{launch}$$
#
# ### Your turn
#
# **Contract.** `operation_seconds(flops, nbytes, peak, bandwidth, launch)` returns a pair: the seconds, and what bounds the operation.
#
# - The seconds follow the formula: `peak` is in FLOP/s, `bandwidth` in bytes/s, `launch` in seconds.
# - The bound names the longest of the three times FLOPs / peak, bytes / bandwidth and launch: `"compute"`, `"memory"` or `"launch"`.
# - `flops` may be 0 (a copy), and so may `nbytes` (an empty operation).


# %% name="operation" answer=true reveal=true
def operation_seconds(flops, nbytes, peak, bandwidth, launch):
    ### BEGIN SOLUTION
    times = {"compute": flops / peak, "memory": nbytes / bandwidth, "launch": launch}
    return max(times["compute"], times["memory"]) + launch, max(times, key=times.get)
    ### END SOLUTION


# %% name="operation_check"
operation_seconds = check("where_the_time_goes.roofline", operation_seconds)

# %% name="operation_hint"
hint("where_the_time_goes.roofline")

# %% [markdown] name="measured_text"
# Peak and bandwidth are not single numbers. A matmul with a side of 16 cannot keep a processor busy, and data in the cache does not come from memory. `measure_roofline` measures rates over many shapes and sizes. `python -m helpers roofline` prints and saves them, and the next cell uses saved figures if there are any; otherwise it measures them now. The formula is the one that you have just written.

# %% name="measured"
roofline = kept_roofline(device) or measure_roofline(device)
by_roofline = roofline.peak("float32")
print(f"measured on {roofline.date}; spread of its runs {roofline.spread:.0%}")
print(f"fastest FP32 matmul {by_roofline / 1e9:,.0f} GFLOP/s; by hand {peak / 1e9:,.0f}")
for shape in ((1024, 1024, 1024), (16, 1024, 1024), (16, 16, 16)):
    rate = 2 * math.prod(shape) / roofline.product_seconds(shape, "float32")
    print(f"a matmul of m, n, k = {shape}: {rate / 1e9:,.1f} GFLOP/s")
if not 0.7 < peak / by_roofline < 1.4:
    print("The two differ a lot: the machine is busier or quieter than when its roofline was measured.")

# %% [markdown] name="dots_text"
# The plot of this formula gave the model its name. The horizontal axis is **arithmetic intensity**: FLOPs per byte moved. The vertical axis is FLOPs per second. The slope is the memory bandwidth, and there is one horizontal level for the peak of each number format. To the left of the corner, the **ridge point**, an operation is memory-bound; to the right of it, compute-bound. No operation gets above the roof unless its data stays in the cache: the dashed slope is the cache's bandwidth. Here are some operations with their measured speed.

# %% name="dots"
wide = 4096 if device.type == "cpu" else 2 * side  # weights that no cache holds
weights, row, rows = (torch.randn(n, wide, device=device) for n in (wide, 1, 64))
tiny = torch.randn(512, 16, 16, device=device)
operations = {  # what to run, FLOPs, bytes
    "x + y": (lambda: torch.add(x, y, out=out), x.numel(), 3 * x.nbytes),
    "sum of x": (lambda: x.sum(), x.numel(), x.nbytes),
    "1 row through a layer": (lambda: row @ weights, 2 * wide**2, weights.nbytes + 2 * row.nbytes),
    "64 rows through a layer": (lambda: rows @ weights, 2 * 64 * wide**2, weights.nbytes + 2 * rows.nbytes),
    f"matmul, {side}": (lambda: a @ b, 2 * side**3, 3 * a.nbytes),
    "512 matmuls of 16 x 16": (lambda: tiny @ tiny, 512 * 2 * 16**3, 3 * tiny.nbytes),
}
timed = {name: (flops, nbytes, benchmark(fn, runs=7).median) for name, (fn, flops, nbytes) in operations.items()}
show(
    roofline_figure(roofline, timed),
    "Roofline on logarithmic axes: the addition, the sum, and the single row lie far left, near the slope of the memory; the large matmul lies far right, near the level of FP32. The tiny matmuls and the 64 rows lie below the roof.",
)
rows_of_table = [("operation", "FLOP/byte", "measured, ms", "predicted, ms", "bound by")]
for name, (flops, nbytes, seconds) in timed.items():
    predicted, bound = operation_seconds(flops, nbytes, peak, bandwidth, launch)
    figures = (f"{flops / nbytes:.2f}", f"{1e3 * seconds:.3f}", f"{1e3 * predicted:.3f}")
    rows_of_table.append((name, *figures, bound))
show_table(rows_of_table)

# %% [markdown] name="turn_text"
# ### Where a layer turns compute-bound
#
# A linear layer of width W reads W² weights, whatever the batch. For B rows it does 2·B·W² FLOPs. As long as B is small compared with W, nearly all of the bytes that it moves are the 4·W² bytes of the weights. Then each row adds half a FLOP per byte. By the formula, an additional row costs nothing until the arithmetic takes longer than reading the weights.
#
# The layer reads its weights and writes almost nothing, while the copy of section 1 wrote as much as it read. The two rates can differ in either direction: a CPU may have to read a cache line before it writes to it, and one reading thread may not reach the full bandwidth. So measure reading by itself.

# %% name="reading"
reading = x.nbytes / benchmark(lambda: x.sum(), runs=7).median
print(f"reading {reading / 1e9:.1f} GB/s, copying {bandwidth / 1e9:.1f} GB/s; peak {peak / 1e9:,.0f} GFLOP/s")

# %% [markdown] name="turn_guess_text"
# By the formula, the time of a batch is flat at first. Later each additional row adds the same time. The layer **turns** from memory-bound to compute-bound where the two lines meet: at as many rows as the time of a single row, divided by the time that each row takes in a large batch.
#
# **Predict.** How many times as long as one row do two rows take on this machine?

# %% name="turn_guess"
my_guess = None  # time of two rows / time of one
### BEGIN GUESS
my_guess = 1  # the weights are read once for both
### END GUESS
turn_guess = Prediction("Two rows / one row, time", my_guess, "times")

# %% name="turn"
batches = [2**k for k in range(9 if device.type == "cpu" else 11)]
sweep = []
for batch in batches:
    rows = torch.randn(batch, wide, device=device)
    sweep.append(min(benchmark(lambda rows=rows: rows @ weights, runs=4, warmup=1).runs))
level, each = sweep[0], sweep[-1] / batches[-1]  # a single row; one more row of many
turn = level / each
turn_guess.reveal(sweep[1] / sweep[0])
print(f"a row alone takes {1e3 * level:.2f} ms, one of {batches[-1]:,} takes {1e3 * each:.2f} ms")
print(f"the layer turns at {turn:.1f} rows; by the formula, 2 x peak / bandwidth, at {2 * peak / reading:.1f}")
said, subject = "turning point / (2 x peak / bandwidth)", f"{wide} x {wide}, FP32, reading"
claims.figure(said, subject, turn / (2 * peak / reading), "x")
figure = Figure(figsize=(7, 3.6), layout="constrained")
axes = figure.add_subplot()
axes.loglog(batches, [1e3 * s for s in sweep], "o", base=2, color=COLORS[4], label="measured")
predicted = [1e3 * max(4 * wide**2 / reading, 2 * batch * wide**2 / peak) for batch in batches]
axes.loglog(batches, predicted, base=2, color=COLORS[0], label="roofline, by hand")
axes.axvline(turn, color=COLORS[7], ls=":", label="turning point, measured")
axes.set(title=f"A linear layer of width {wide}", xlabel="rows in the batch", ylabel="milliseconds")
axes.legend(frameon=False)
show(
    figure,
    "Milliseconds over batch size. The roofline: flat for few rows, then proportional to the rows. Measured: above it for a few rows, closer to it for one and for many.",
)

# %% [markdown] name="turn_explained"
# A single row pays for reading all the weights; many rows share that cost. That is why inference servers batch requests, and why training with one row at a time wastes a machine. (The plot uses the fastest of four runs, because the formula describes an idle machine.)
#
# The model has a sharp corner; the machine does not. A matmul of a few rows is *skinny*. Libraries first copy the weights into an order that suits their kernels. This *packing* (Goto and van de Geijn 2008) pays off only over many rows, and libraries skip it for a single row. The first line above the plot shows what the second row costs here. Packing also makes the turning point hard to predict: compare the measured one with the formula's in the last line above the plot.
#
# A GPU's corner for 16-bit formats lies farther right, because its tensor cores multiply much faster than its memory delivers. The explorer in section 10 includes several GPUs.
#
# ## 3 · Small layers
#
# Take a stack of 8 linear layers and 16 rows. At width 32 it does 64 times the arithmetic that it does at width 4.
#
# **Predict.** What is the ratio of the time at width 32 to the time at width 4?

# %% name="launch_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1  # neither is more than launches
### END GUESS
width_guess = Prediction("Width 32 / width 4, time", my_guess, "times")

# %% name="launch"
LAYERS, ROWS, CALLS = 8, 16, 20
widths = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
stacks = {w: nn.Sequential(*(nn.Linear(w, w) for _ in range(LAYERS))).to(device) for w in widths}
stack_seconds, threads = {}, torch.get_num_threads()
torch.set_num_threads(1)  # waking a second one for so little would take longer than the work
with torch.no_grad():
    for w, stack in [*stacks.items()] * 2:  # each width twice, but not back to back; the fastest run counts
        rows = torch.randn(ROWS, w, device=device)
        calls = benchmark(lambda stack=stack, rows=rows: [stack(rows) for _ in range(CALLS)], runs=5)
        stack_seconds[w] = min(stack_seconds.get(w, math.inf), min(calls.runs) / CALLS)
    rows, layer = torch.randn(ROWS, 4, device=device), stacks[4][0]
    by_module, by_function = (lambda: layer(rows)), (lambda: F.linear(rows, layer.weight, layer.bias))
    split = compare(lambda: [by_module() for _ in range(200)], lambda: [by_function() for _ in range(200)], runs=9)
peak_here = 2 * 512**3 / benchmark(lambda: a[:512, :512] @ b[:512, :512]).median  # with as many threads
torch.set_num_threads(threads)
width_guess.reveal(stack_seconds[32] / stack_seconds[4])
claims.figure("small layers: 64 x the FLOPs, time", "width 32 / width 4", stack_seconds[32] / stack_seconds[4], "times")
per_layer, per_function = (min(runs.runs) / 200 for runs in (split.before, split.after))
print(f"a layer of width 4: {per_layer * 1e6:.1f} µs, of which F.linear {per_function * 1e6:.1f} µs")
print(f"an addition of two numbers: {launch * 1e6:.1f} µs")
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
axes.loglog(widths, [1e6 * s for s in stack_seconds.values()], "o-", base=2, color=COLORS[4], label="measured")
arithmetic = [1e6 * LAYERS * 2 * ROWS * w * w / peak_here for w in widths]
axes.loglog(widths, arithmetic, "--", base=2, color=COLORS[0], label="FLOPs / peak")
axes.set(title=f"{LAYERS} linear layers, {ROWS} rows", xlabel="width", ylabel="microseconds", ylim=(1, None))
axes.legend(frameon=False)
show(figure, "Microseconds over width: flat for small widths, then rising; the arithmetic alone starts far below.")

# %% [markdown] name="launch_explained"
# Nearly flat, then rising: launches are a third bound. In the flat part the network is **launch-bound**. Its time depends on the number of operations far more than on their size. The launch overhead also depends on the operation. A matmul with a bias costs more than an addition (compare the two lines above the figure), because it checks more shapes and sets up a library call. Python's call of the module adds the rest.
#
# In that range, making a model wider costs almost nothing. To make it faster, launch fewer operations: larger batches, fused operations ([[compilation_and_fusion]]), CUDA graphs. On a GPU the host launches while the GPU works, so a step cannot be faster than the sum of its launches.
#
# ## 4 · Counting FLOPs
#
# A matmul of (m, k) and (k, n) takes 2·m·n·k FLOPs: m·n·k multiplications and as many additions. A transformer consists of such matmuls. For B sequences of T tokens and a width W:
#
# - **projections**: q, k, v and out multiply all B·T tokens by a matrix. In models with grouped queries, k and v are narrower (`kv_width`);
# - **attention**: scores q·kᵀ, then scores·v. Every query of a sequence is paired with every key of the same sequence. The number of heads does not matter: H heads of width W / H do the same FLOPs;
# - **MLP**: up to `inner` and down again. Llama and its relatives have a *gate*, a third matrix of the same size as `up`.
#
# A causal mask discards half of the scores. Some count them anyway (nanoGPT, torchtitan, PyTorch's counter): the **full square**. Others count half (Megatron): the **causal half**. Two figures can be compared only if they use the same convention.
#
# ### Your turn
#
# **Contract.** `block_flops(batch, length, width, inner, kv_width, gated, convention)` returns the FLOPs of one block's forward pass: a dictionary of integers (`int`) with the keys `q`, `k`, `v`, `scores`, `values`, `out` and `mlp`.
#
# - `kv_width` is the width of k and of v; q has `width`. `gated` is True if the MLP has a gate.
# - With `convention="full square"`, scores and values count all pairs of tokens. With `"causal half"` they count exactly half of that, and the other parts are the same.
# - Norms, softmax, activation functions and sums are not counted, by convention.


# %% name="block" answer=true reveal=true
def block_flops(batch, length, width, inner, kv_width, gated, convention):
    ### BEGIN SOLUTION
    tokens = batch * length
    pairs = 2 * batch * length**2 * width  # each query with each key; as much again for the values
    if convention == "causal half":
        pairs //= 2
    matrices = 3 if gated else 2
    return {
        "q": 2 * tokens * width * width,
        "k": 2 * tokens * width * kv_width,
        "v": 2 * tokens * width * kv_width,
        "scores": pairs,
        "values": pairs,
        "out": 2 * tokens * width * width,
        "mlp": 2 * tokens * width * inner * matrices,
    }
    ### END SOLUTION


# %% name="block_check"
block_flops = check("where_the_time_goes.block", block_flops)

# %% name="block_hint"
hint("where_the_time_goes.block")

# %% [markdown] name="counter_text"
# `count_flops` does the same for any code: it intercepts the operations in PyTorch's dispatcher and adds up the matmuls. Here is the forward pass of this lab's GPT, counted both ways.

# %% name="counter"
BATCH, LENGTH, WIDTH, BLOCKS, VOCABULARY = 8, 128, 128, 4, 256
text = english(device)
ids = text.train_x[: BATCH * LENGTH].view(BATCH, LENGTH).clone()
targets = text.train_y[: BATCH * LENGTH].view(BATCH, LENGTH).clone()
torch.manual_seed(0)
model = SmallGPT(VOCABULARY, LENGTH, BLOCKS, WIDTH).to(device)
forward_flops = count_flops(lambda: model(ids))
head = 2 * BATCH * LENGTH * WIDTH * VOCABULARY
for convention in ("full square", "causal half"):
    parts = block_flops(BATCH, LENGTH, WIDTH, 4 * WIDTH, WIDTH, False, convention)
    mine, counted = BLOCKS * sum(parts.values()) + head, count_flops(lambda: model(ids), convention)
    attention = BLOCKS * (parts["scores"] + parts["values"]) / mine
    print(f"{convention}: block_flops {mine:,}, counted {counted:,}; attention is {attention:.0%} of it")

# %% [markdown] name="step_flops_text"
# A training step does more. For each matmul of the forward pass, the backward pass computes the gradient of its input and the gradient of its weight. Count a whole step:

# %% name="step_flops"
optimizer = torch.optim.AdamW(model.parameters())


def step():
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


step_flops = count_flops(step)
print(f"FLOPs of a step: {step_flops / forward_flops:.3f} forward passes")
tokens = BATCH * LENGTH
in_matmuls = sum(p.numel() for p in model.parameters()) - model.positions.weight.numel()
print(f"6 x parameters x tokens is {model_flops(in_matmuls, tokens) / step_flops:.0%} of what was counted")

# %% [markdown] name="step_flops_explained"
# Three times the forward pass, and a little more. Fused attention does not save the scores, so its backward pass computes them again (five matmuls, where the forward pass has two).
#
# This gives the best-known formula in the field. In the forward pass each parameter takes part in one multiplication and one addition per token. Three times that is **6·N·D**, for N parameters and D tokens. (Position embeddings are only looked up, so they do not count. The token embedding counts here because the output layer shares it.) The formula leaves out attention.
#
# **When is it off?** Attention adds 4·T·W FLOPs per token to a block's 24·W², so the error depends on the ratio of T to 6·W. Tensors on the `meta` device have shapes and no data, so counting costs nothing at any size:


# %% name="six"
def share_of_6nd(width, length, layers=2):
    """Return counted FLOPs of forward and backward pass over 6·N·D, at the full square."""
    with torch.device("meta"):
        gpt = SmallGPT(VOCABULARY, length, layers, width, heads=max(4, width // 128))
        tokens = torch.zeros(1, length, dtype=torch.long)
    counted = count_flops(lambda: gpt(tokens).sum().backward())
    in_matmuls = sum(p.numel() for p in gpt.parameters()) - gpt.positions.weight.numel()
    return counted / model_flops(in_matmuls, length)


lengths = (128, 512, 2048, 8192)
print("counted / 6ND, by length " + "".join(f"{length:>8,}" for length in lengths))
for width in (128, 1024, 4096):
    shares = [share_of_6nd(width, length) for length in lengths]
    print(f"width {width:<18,} " + "".join(f"{share:>8.2f}" for share in shares))
    for length, share in zip(lengths, shares, strict=True):
        if (width, length) in ((128, 128), (1024, 512), (4096, 2048), (4096, 8192)):
            said, subject = "6 FLOPs per parameter and token, within 10 %", f"GPT, width {width:,}, {length:,} tokens"
            claims.record("C24", said, subject, 100 * (share - 1), "%", -10, 10)

# %% [markdown] name="six_explained"
# With T below about half of W, 6·N·D is within 10%. At 8,192 tokens it is off by a third even at the width of an 8B model. In such cases count, or add 12·T·W per token and layer for the full square.
#
# Make one prediction now. Section 6 will check it.
#
# **Predict** how many milliseconds a full step of this GPT takes. The simplest model is FLOPs over peak. (Run `print(1e3 * step_flops / peak)` in a new cell to see its figure.)

# %% name="predict_guess"
my_guess = None  # milliseconds
### BEGIN GUESS
my_guess = 1e3 * step_flops / peak  # leaves out everything but matmuls: too low
### END GUESS
simple_guess = Prediction("A training step", my_guess, "ms")

# %% [markdown] name="traced_text"
# ## 5 · Reading a trace
#
# PyTorch's **profiler** records when each operation starts and ends. Its trace is a list of events in Chrome's format, which [ui.perfetto.dev](https://ui.perfetto.dev) draws. Here you read the list yourself.


# %% name="traced"
def traced(fn):
    """Run `fn` twice, the second time in the profiler, as "step"; return the events of the trace."""
    fn()
    synchronize(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as recorded, record_function("step"):
        fn()
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


events = traced(step)
print(len(events), "events:", dict(Counter(event["ph"] for event in events)))
for event in [e for e in events if e["ph"] == "X" and e["name"] in ("step", "aten::linear", "aten::addmm")][:3]:
    print({key: event.get(key) for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")})

# %% [markdown] name="trace_task"
# ### Your turn
#
# `ts` is when an event starts and `dur` how long it lasts, both in microseconds. `aten::linear` calls `aten::addmm`, so the same microseconds are in the trace twice, and the sum of all durations is too large. What you need is each operation's **self time**: its duration minus that of the events directly inside it.
#
# **Contract.** `self_times(events)` returns a dictionary: name → self time in microseconds, summed over all events of this name.
#
# - Only complete events are spans: those with `event["ph"] == "X"`. Other events mark moments or name threads, and may lack `ts` or `dur`. A trace may have no spans, or no events at all: then the dictionary is empty.
# - A span is inside another if both are on the same thread, the same `(pid, tid)`, and its interval is within the other's. Events of the same name may be nested.
# - Events come in any order. Of two that start together, the longer one is outside. No two events of a thread have both the same start and the same end.
# - A span may start in the very nanosecond in which the one before it ends. Then the two are side by side, not nested. Careful: the profiler counts whole nanoseconds and `ts` is large, so `ts + dur` is rounded and may be slightly later than the `ts` of the next event.
# - Do not change the events.


# %% name="trace" answer=true reveal=true
def self_times(events):
    ### BEGIN SOLUTION
    threads = defaultdict(list)  # (pid, tid) -> (start, -duration, name) in nanoseconds
    for event in events:
        if event["ph"] == "X":
            start, duration = round(1000 * event["ts"]), round(1000 * event["dur"])
            threads[event["pid"], event["tid"]].append((start, -duration, event["name"]))
    own = Counter()
    for spans in threads.values():
        around = []  # (end, name) of the spans that are open, the innermost last
        for start, minus, name in sorted(spans):
            while around and around[-1][0] <= start:
                around.pop()
            if around:
                own[around[-1][1]] += minus
            own[name] -= minus
            around.append((start - minus, name))
    return {name: nanoseconds / 1000 for name, nanoseconds in own.items()}
    ### END SOLUTION


# %% name="trace_check"
self_times = check("where_the_time_goes.trace", self_times)

# %% name="trace_hint"
hint("where_the_time_goes.trace")

# %% [markdown] name="longest_text"
# Now apply it to the step of the GPT. Which operations have the largest self time, summed over all calls?

# %% name="longest"
whole = next(e for e in events if e["name"] == "step" and e["cat"] == "user_annotation")
own = self_times(events)
for name in sorted((name for name in own if name.startswith("aten::")), key=own.get, reverse=True)[:3]:
    print(f"{name:24} {own[name] / 1e3:8.2f} ms, {own[name] / whole['dur']:.0%} of the step")

# %% [markdown] name="schedule_text"
# ### The profiler in a real loop
#
# A trace of every step would fill the disk, and the first steps are not typical. `torch.profiler.schedule` skips some steps, warms up, and records a few. `key_averages()` adds up self times by operation, as you just did. On a GPU, sort it by `self_device_time_total`.
#
# `record_function("name")` marks a range of your own. For NVIDIA's Nsight Systems, mark ranges with `torch.cuda.nvtx.range("name")` and run `nsys profile python train.py`: its timeline also shows CUDA calls, NCCL and other processes.

# %% name="schedule"
activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
with profile(activities=activities, schedule=schedule(wait=2, warmup=1, active=2)) as profiler:
    for _ in range(5):
        step()
        profiler.step()  # tells the schedule that a step has ended
sort_by = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
for row in profiler.key_averages().table(sort_by=sort_by, row_limit=4).splitlines()[:8]:
    print(row[:120])

# %% [markdown] name="profile_text"
# `profile_step` adds up self times by the **phase** of the step in which an operation ran (columns) and by its **kind** (rows).
#
# - *gap* is time in which no operation runs: Python and the dispatcher.
# - Recording an event takes time. So the step is also timed without the profiler, and the cost of recording is subtracted from the parts.
# - *unexplained* is the difference between that step and the sum of the parts. It may be negative, because the steps with and without the profiler are different runs.
#
# The trace is saved for Perfetto.

# %% name="profile"
trace_file = Path(tempfile.gettempdir(), "where_the_time_goes.json.gz")
profiled = profile_step(step, trace=trace_file)
print(profiled)
for part in profiled.largest(3):
    print(part)
print(f"saved as {trace_file.name} in the folder for temporary files; ui.perfetto.dev opens it")

# %% name="profile_figure"
show(
    profiled.figure(),
    "A bar for each phase of the step, made of kinds of operation: matmuls fill most of forward and backward.",
)

# %% [markdown] name="line_text"
# Here is the same trace as a timeline. Each row is a level of nesting: an operation was called by the one above it.


# %% name="line"
def time_line(events, title, until=math.inf):
    """Draw the spans of the step's thread, nested, as far as they begin before `until` (ms)."""
    step = next(e for e in events if e["name"] == "step" and e["cat"] == "user_annotation")
    mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (step["pid"], step["tid"])]
    end = min(step["dur"], 1e3 * until)
    around, bars = [], defaultdict(list)
    for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
        start = event["ts"] - step["ts"]
        if not 0 <= start < end or event is step:
            continue
        while around and around[-1][0] <= start + 1e-2:
            around.pop()
        phase = next((p for word, p in PHASES.items() if word in event["name"]), around[-1][1] if around else "forward")
        bars[phase, len(around)].append((start / 1e3, event["dur"] / 1e3))
        around.append((start + event["dur"], phase))
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.add_subplot()
    colors = dict(zip(("forward", *PHASES.values()), COLORS, strict=False))
    for (phase, depth), pieces in bars.items():
        axes.broken_barh(pieces, (depth - 0.45, 0.9), color=colors[phase], edgecolor="white", lw=0.3)
    for phase in dict.fromkeys(phase for phase, _ in bars):
        axes.plot([], [], "s", color=colors[phase], label=phase)
    deepest = max(depth for _, depth in bars)
    axes.set(title=title, xlabel="milliseconds, under the profiler", ylabel="level of nesting")
    axes.set(ylim=(deepest + 0.6, -0.6), yticks=range(deepest + 1))
    axes.legend(frameon=False, loc="lower right")
    return figure


PHASES = {"autograd::engine": "backward", "Optimizer.step": "optimizer"}
show(
    time_line(events, "One training step"),
    "Timeline of a step: forward pass, then the backward pass, the longest part, then many small operations of the optimizer.",
)

# %% [markdown] name="predict_text"
# ## 6 · Predict a whole step
#
# A step is a list of operations. Each has its FLOPs, bytes and shape, and the roofline gives the seconds of each. How long they take together depends on who waits for what:
#
# - **A CPU** that calls an operation also does its work. It launches the operation, works on it, and then calls the next one.
# - **A GPU** has a queue. The host only launches, one operation after another, without waiting for their work. The GPU works through the queue in order, one operation at a time. It can start an operation once that operation has been launched and the one before it is done.
# - **A value** stops the host. If Python needs the result of an operation (`.item()`), the host launches nothing more until that operation is done.
#
# ### Your turn
#
# **Contract.** `step_time(operations, launch, queued)` returns a pair: the seconds from the beginning of the first launch until the last operation is done, and the fraction of that time in which the processor works on no operation.
#
# - `operations` is a list of pairs (seconds, waits), in the order in which Python calls them: the seconds of work, without the launch, and whether Python needs the value. If the list is empty, both results are 0.
# - `launch` is the number of seconds that the host needs to launch one operation.
# - `queued` is True for a GPU and False for a CPU. On a CPU, the time of a launch counts as idle, and a value costs no more than any other operation.


# %% name="step_time" answer=true reveal=true
def step_time(operations, launch, queued):
    ### BEGIN SOLUTION
    host = done = busy = 0.0  # when the host can launch again; when the processor has done all of its work so far
    for seconds, waits in operations:
        host += launch
        done = max(done, host) + seconds
        busy += seconds
        if waits or not queued:
            host = done
    return done, 1 - busy / done if done else 0.0
    ### END SOLUTION


# %% name="step_time_check"
step_time = check("where_the_time_goes.step", step_time)

# %% name="step_time_hint"
hint("where_the_time_goes.step")

# %% [markdown] name="step_time_text"
# `works_of` lists the operations of a step, and `roofline.seconds` gives the time of each. Compare your sum with the measured step, and with the simplest model, which you used in section 4.


# %% name="predict"
def worked(fn):
    """Return the kind of each operation of `fn`, and the roofline's seconds for it without the launch."""
    return [(work.kind, roofline.seconds(work)[0] - roofline.launch) for work in works_of(fn)]


works, kinds = worked(step), Counter()
for kind, seconds in works:
    kinds[kind] += seconds
in_step, _ = step_time([(seconds, False) for _, seconds in works], roofline.launch, device.type == "cuda")
launches = len(works) * roofline.launch
timing = benchmark(step, runs=9)
simple_guess.reveal(1e3 * timing.median)
off = 100 * (in_step / timing.median - 1)
print(f"roofline, operation by operation: {1e3 * in_step:.1f} ms, {off:+.0f}%; the step: {timing}")
said, subject = "the roofline predicts a step within 25 %", "GPT, 4 blocks of width 128"
if max(timing.spread, roofline.spread) > 0.25:
    print("The runs differ too much, here or when the roofline was measured: no verdict.")
    print("When the machine is quiet, run `python -m helpers roofline`, and then this lab again.")
    claims.figure("error of the roofline, machine too busy for a verdict", subject, off, "%")
else:
    claims.record("T29", said, subject, off, "%", -25, 25)

# %% [markdown] name="residue_text"
# On a quiet machine, FLOPs over peak explains only a part of the step. That model leaves out three things: matmuls slower than the peak, memory-bound operations, and launches. What does the roofline itself miss? Compare prediction and profile, kind by kind:

# %% name="residue"
measured_kinds = profiled.by_kind()
table = [("kind", "predicted, ms", "measured, ms", "difference, ms")]
for kind in sorted({*kinds, *measured_kinds} - {"gap"}, key=lambda kind: -measured_kinds.get(kind, 0.0)):
    expected, found = 1e3 * kinds[kind], 1e3 * measured_kinds.get(kind, 0.0)
    table.append((kind, f"{expected:.2f}", f"{found:.2f}", f"{found - expected:+.2f}"))
gap = 1e3 * measured_kinds.get("gap", 0.0)
table.append(("launches / gaps", f"{1e3 * launches:.2f}", f"{gap:.2f}", f"{gap - 1e3 * launches:+.2f}"))
show_table(table)
worst = max(table[1:], key=lambda row: abs(float(row[3])))
print(f"\nmost of the rest: {worst[0]}")
a_row, a_layer = torch.randn(BATCH * LENGTH, WIDTH, device=device), model.blocks[0].mlp[0]
with torch.no_grad():
    alone = benchmark(lambda: F.linear(a_row, a_layer.weight), runs=9).median
    alone_by_roofline = sum(seconds + roofline.launch for _, seconds in worked(lambda: F.linear(a_row, a_layer.weight)))
of_step = measured_kinds["matmul"] / kinds["matmul"]
print(f"one matmul of an MLP, alone and repeated: {alone / alone_by_roofline:.2f} x the roofline's time")
print(f"all matmuls, within the step: {of_step:.2f} x the roofline's time")

# %% [markdown] name="residue_explained"
# The table shows where the prediction falls short. The last two lines separate two causes. If a matmul *alone* takes longer than the roofline says, the machine is slower now than when its roofline was measured, or the shape lies between the measured shapes. If matmuls take longer *within the step* than alone, the step is the cause: the roofline repeats one matmul on the same inputs, which stay in the cache, and a step reads other tensors in between.
#
# The roofline includes transposed operands, as in the backward pass, so they should not be a cause. The dispatcher's share of a small operation is a cause, however: it is a *gap* in the profile, but part of the operation in the roofline.
#
# ### The same step on an H100
#
# With the figures of a data sheet, `step_time` predicts a step on a GPU that you do not have. The H100's data sheet promises 989 TFLOP/s for BF16 matmuls. Compare that with the peak of this machine (section 1). Assume a fast host, which takes 10 µs per operation, Python and autograd included.
#
# **Predict.** By what factor is the step of this GPT (width 128) faster on the H100?

# %% name="sheet_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = find_gpu("h100-80gb").flops16 / peak  # the ratio of the peaks
### END GUESS
sheet_guess = Prediction("The step on an H100, times as fast", my_guess, "times")


# %% name="sheet_step"
def on_sheet(width, every=0):
    """Predict a GPT's step on an H100, in seconds and idle; Python needs the value of one operation in `every`."""
    sheet, length = find_gpu("h100-80gb"), LENGTH * max(1, width // 256)
    with torch.device("meta"):
        gpt = SmallGPT(VOCABULARY, length, BLOCKS, width, heads=max(4, width // 128))
        adamw, rows = torch.optim.AdamW(gpt.parameters(), foreach=True), torch.zeros(BATCH, length, dtype=torch.long)

    def its_step():
        F.cross_entropy(gpt(rows).flatten(0, 1), rows.flatten()).backward()
        adamw.step()

    times = [max(w.flops / sheet.flops16, w.bytes / 2 / sheet.bandwidth) for w in works_of(its_step)]  # BF16
    return step_time([(t, bool(every) and i % every == 0) for i, t in enumerate(times)], launch=10e-6, queued=True)


sheet_guess.reveal(in_step / on_sheet(WIDTH)[0], "planned")
table = [("width, planned", "ms per step", "GPU idle", "every 20th value read", "GPU idle")]
for width in (WIDTH, 512, 1024, 2048, 4096):
    figures = (f"{1e3 * took:.1f} ms, {idle:.0%}".split(", ") for took, idle in (on_sheet(width), on_sheet(width, 20)))
    table.append((f"{width:,}", *(figure for pair in figures for figure in pair)))
show_table(table)

# %% [markdown] name="sheet_explained"
# The H100 finishes each operation of the small model long before the host has launched the next one, so the step takes as long as its launches. A faster GPU changes nothing there: make the model or the batch larger, or launch less.
#
# The last two columns show what it costs to read values. A narrow model hides the reads, because the GPU is idle anyway. In a wide model the host is far ahead of the GPU, and each read takes that lead away: the GPU is idle until the next launch. The wider the model, the less such a launch matters.
#
# ## 7 · MFU and HFU
#
# **Model FLOPs utilization** (MFU; Chowdhery et al. 2022) measures how well a machine is used. It is the number of FLOPs that the model *needs*, one forward and one backward pass, divided by what the machine could have done in that time. **Hardware FLOPs utilization** (HFU) counts all FLOPs that were *executed*. The two differ by what activation checkpointing recomputes ([[activation_checkpointing]]).
#
# ### Your turn
#
# **Contract.** `utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed)` returns the pair (MFU, HFU), each a fraction: 0.4 for 40%.
#
# - `parameters` is the number of parameters in matmuls. `tokens` is the number of tokens in a step of `seconds`, in sequences of `length`. `peak` is in FLOP/s.
# - The model needs 6 FLOPs per parameter and token, plus the attention of each layer at the full square, forward and backward (section 4).
# - `recomputed` is the number of FLOPs per step that were executed again.


# %% name="utilization_answer" answer=true reveal=true
def utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed):
    ### BEGIN SOLUTION
    needed = (6 * parameters + 12 * layers * width * length) * tokens
    return needed / (seconds * peak), (needed + recomputed) / (seconds * peak)
    ### END SOLUTION


# %% name="utilization_check"
utilization = check("where_the_time_goes.utilization", utilization)

# %% name="utilization_hint"
hint("where_the_time_goes.utilization")

# %% [markdown] name="utilization_text"
# The peak is usually the data sheet's. Here it is the fastest FP32 matmul that was measured.
#
# **Predict.** Every block is checkpointed, so the backward pass recomputes it from its input. What is the MFU of this step, relative to the plain step's?

# %% name="utilization_guess"
my_guess = None  # MFU, checkpointed / plain
### BEGIN GUESS
my_guess = 3 / 4  # four passes where three were needed
### END GUESS
utilization_guess = Prediction("MFU, every block checkpointed / plain", my_guess, "times")


# %% name="utilization"
def checkpointed_step():
    h = model.tokens(ids) + model.positions(torch.arange(LENGTH, device=device))
    for block in model.blocks:
        h = checkpoint(block, h, use_reentrant=False)
    loss = F.cross_entropy(model.head(model.norm(h)).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


pace = compare(step, checkpointed_step, runs=7)
executed = count_flops(checkpointed_step)
seconds = {"plain": pace.before.median, "checkpointed": pace.after.median}
shape = (in_matmuls, BLOCKS, WIDTH, LENGTH, tokens)
used = {
    "plain": utilization(*shape, seconds["plain"], by_roofline, 0),
    "checkpointed": utilization(*shape, seconds["checkpointed"], by_roofline, executed - step_flops),
}
more = {what: used["checkpointed"][i] / used["plain"][i] for i, what in enumerate(("MFU", "HFU"))}
utilization_guess.reveal(more["MFU"])
for name, (model_share, hardware_share) in used.items():
    print(f"{name:13} {1e3 * seconds[name]:6.1f} ms per step, MFU {model_share:.0%}, HFU {hardware_share:.0%}")
print("plain -> checkpointed:", pace)
subject = "GPT, every block, checkpointed / plain"
claims.record("T29", "recomputation does not raise MFU", subject, more["MFU"], "times", 0, 1.02)
hardware = used["checkpointed"][1] / used["checkpointed"][0]
print(f"HFU / MFU with every block checkpointed: {hardware:.2f}")
claims.record("T29", "recomputation raises HFU above MFU", "GPT, HFU / MFU", hardware, "times", 1.2, 1.4)
claims.figure("HFU, checkpointed / plain", subject, more["HFU"], "times")

# %% [markdown] name="utilization_explained"
# One more forward pass would make HFU 4/3 of MFU. The last line shows less, for two reasons. The output layer is not checkpointed, and PyTorch stops recomputing a block as soon as it has the last tensor that the backward pass needs. So the last matmul of each block, one of its two largest, is not executed again.
#
# The model does not need the recomputed FLOPs. They add to the numerator of HFU and to the seconds of both. So MFU falls as the step gets slower. HFU falls less, and stays the same if the recomputed operations are as efficient as the rest. A recipe with a high HFU may only be recomputing a lot.
#
# Use MFU to compare recipes for the same model, and HFU to see whether kernels are slow. Before you compare with others, ask which FLOPs they count (full square or causal half, with or without embeddings, 6·N·D or a count) and which peak they divide by (data sheets also list one with sparsity, which is twice as high).
#
# Published MFUs are for BF16 training, divided by the data sheet's dense BF16 peak. On a GPU, the next cell computes that figure for a model large enough to keep the GPU busy:


# %% name="bf16_mfu"
def data_sheet():
    """Return the catalog's entry for this GPU, found by the words of its name, or None."""
    words = device_name(device).lower().replace("-", " ").split()
    model_names = [w for w in words if any(c.isdigit() for c in w) and not w.endswith("gb")]
    for name in model_names:
        for candidate in (name, *(f"{name}-{w}" for w in words if w.endswith("gb"))):
            try:
                return find_gpu(candidate)
            except ValueError:
                continue
    return None


sheet = data_sheet() if device.type == "cuda" else None
if sheet is None:
    print("Not applicable: no GPU here whose data sheet is in the catalog.")
else:
    big = {"layers": 8, "width": 2048, "length": 1024, "tokens": 8 * 1024}
    large = SmallGPT(VOCABULARY, big["length"], big["layers"], big["width"], heads=16).to(device)
    sgd = torch.optim.SGD(large.parameters(), lr=1e-3)
    rows = torch.randint(VOCABULARY, (8, big["length"]), device=device)

    def bf16_step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(large(rows).flatten(0, 1), rows.flatten())
        loss.backward()
        sgd.step()
        sgd.zero_grad()

    took = benchmark(bf16_step, runs=5)
    weights_used = sum(p.numel() for p in large.parameters()) - large.positions.weight.numel()
    share, _ = utilization(weights_used, *big.values(), took.median, sheet.flops16, 0)
    print(f"{took}; MFU {share:.0%} of {sheet.flops16 / 1e12:.0f} TFLOP/s, the data sheet of {sheet.name}")

# %% [markdown] name="clock_text"
# ## 8 · Comparing times correctly
#
# All of this depends on correct timing. Here are three mistakes, two of which reverse the result.
#
# ### The first call
#
# Two versions of a layer multiply by a table of cosines. One computes, in every call, the part of the table that it needs. The other computes a long table once and keeps it, as real models do. Which is faster?

# %% name="first_call"
POSITIONS, NEEDED, FREQUENCIES = 2**15, 256, 256
signal = torch.randn(NEEDED, FREQUENCIES, device=device)


def cosines(positions):
    angles = torch.outer(torch.arange(positions, device=device), torch.logspace(0, -4, FREQUENCIES, device=device))
    return torch.cos(angles)


@functools.cache
def long_table():
    return cosines(POSITIONS)


def computed(x=signal):
    return x * cosines(NEEDED)


def kept(x=signal):
    return x * long_table()[:NEEDED]


def once(fn):
    synchronize(device)  # nothing from before is timed
    start = time.perf_counter()
    fn()
    synchronize(device)
    return time.perf_counter() - start


computed()  # it is not the first operation on this device; only `kept` has something left to do
naive = once(computed) / once(kept)
honest = compare(computed, kept)
print(f"one call each: the stored table takes {1 / naive:.1f} times as long")
print(f"after a warm-up, alternately: {honest}")
claims.figure("a single cold call", "kept table, naive / honest speed", naive / honest.speedup, "times")

# %% [markdown] name="drift_text"
# Here the first call computed the long table. In general, a first call maps memory, chooses kernels, fills caches and compiles. Its time is real, but it is not the time of the other calls. So warm up first.
#
# ### The order
#
# Laptops get hot and slow down, and on a shared machine other jobs start. The next cell simulates such a machine: after each call it sleeps, a little longer each time. Two matmuls are timed on it. The second does half the work of the first. First, all runs of one are timed and then all runs of the other; after that, the two alternate.


# %% name="drift"
class Warming:
    """A machine that gets slower: call number i takes 1 + i times as long."""

    def __init__(self):
        self.calls = 0

    def run(self, fn):
        seconds = once(fn)
        time.sleep(self.calls * seconds)
        self.calls += 1


left, narrow = a[: side // 2], half[:, : side // 4].contiguous()
more_work, less_work = (lambda: left @ half), (lambda: left @ narrow)

machine = Warming()
blocks = [benchmark(lambda fn=fn: machine.run(fn), runs=8, warmup=0).median for fn in (more_work, less_work)]
machine = Warming()
paired = compare(lambda: machine.run(more_work), lambda: machine.run(less_work), runs=8, warmup=1)
print(f"one after the other: the smaller matmul is {blocks[0] / blocks[1]:.2f} times as fast")
print(f"alternately: {paired.speedup:.2f} times; by its FLOPs it should be 2")
subject = "drift simulated, smaller product"
claims.figure("timed one after the other", subject, blocks[0] / blocks[1], "times as fast")
if blocks[0] > blocks[1]:
    print("Other programs outweighed the simulated drift: no verdict.")
else:
    claims.record("T29", "timing in pairs finds the faster", subject, paired.speedup, "times as fast", 1, math.inf)

# %% [markdown] name="drift_explained"
# One after the other, the matmul with *less* work appears slower, because it runs later. In pairs, both see nearly the same machine. `compare` works this way, and prints the middle half of the pairs: if it contains 1, do not claim a difference. `compare` takes the median, because a single slow run would distort the mean. The minimum describes the machine when it is idle. That suits a cost model but is too optimistic for a plan.
#
# ### The queue
#
# On a GPU there is a third mistake. An operation returns as soon as it is *queued*, so a clock that stops then has timed only the queueing. `benchmark` and `compare` synchronize before they read the clock. The first figure below is taken without that wait. With an NVIDIA GPU, a third figure comes from **CUDA events**: the GPU itself records two time stamps in its queue, and the host waits only once, at the end.

# %% name="queue"
honest_matmul = benchmark(lambda: a @ b, runs=5).median
synchronize(device)
start = time.perf_counter()
a @ b
queued = time.perf_counter() - start
synchronize(device)
print(f"without waiting {1e3 * queued:.3f} ms, with {1e3 * honest_matmul:.3f} ms")
said = "a clock that does not wait measures only the queueing"
if device.type == "cpu":
    print("On a CPU an operation returns when it is done: there is no queue, and there are no CUDA events.")
    claims.not_measured("T29", said, "a matmul, needs a GPU")
else:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        end.synchronize()
        print(f"by CUDA events {begin.elapsed_time(end):.3f} ms")
    claims.record("T29", said, "a matmul, queued / done", queued / honest_matmul, "times", 0, 0.5)

# %% [markdown] name="clinic_text"
# ## 9 · The trace clinic
#
# Here are three slow evaluation loops. They evaluate a classifier on 2,000 small images.

# %% name="ward_data"
SAMPLES, PIXELS = 2_000, 1_024
generator = torch.Generator().manual_seed(0)
images = torch.randint(256, (SAMPLES, PIXELS), generator=generator, dtype=torch.uint8)  # in the host's memory
labels = torch.randint(10, (SAMPLES,), generator=generator)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(PIXELS, 16), nn.ReLU(), nn.Linear(16, 10)).to(device).eval()
pairs = zip(images.split(250), labels.split(250), strict=True)
loaded = [(x.to(device, torch.float32), y.to(device)) for x, y in pairs]

# %% name="patients"


@torch.no_grad()
def patient_a():
    right = 0
    for x, y in loaded:
        for guess, label in zip(net(x).argmax(1), y, strict=True):
            if guess == label:
                right += 1
    return right / SAMPLES


@torch.no_grad()
def patient_b():
    right = torch.zeros((), device=device)
    for rows in torch.arange(SAMPLES).split(50):
        everything = images.to(device, torch.float32)
        right += (net(everything[rows]).argmax(1) == labels[rows].to(device)).sum()
    return right.item() / SAMPLES


@torch.no_grad()
def patient_c():
    right = torch.zeros((), device=device)
    for x, y in loaded:
        guesses = torch.stack([net(image).argmax() for image in x])
        right += (guesses == y).sum()
    return right.item() / SAMPLES


patients = {"A": patient_a, "B": patient_b, "C": patient_c}
charts = {name: traced(patient) for name, patient in patients.items()}
for name, patient in patients.items():
    print(f"patient {name}: {benchmark(patient, runs=3, warmup=0)}, accuracy {patient():.3f}")

# %% [markdown] name="clinic_task"
# Before you go on, look at the code alone and write down what is wrong with A, with B and with C.
#
# ### Your turn
#
# Three signs tell these problems apart. The first question is always whether the processor is idle. If it is busy with useful work, there is nothing to fix in the loop: a few reads or copies that hide behind running kernels cost nothing.
#
# - **idle**: the fraction of the step in which the processor does no useful work. On a GPU: no kernel runs. On a CPU: no operation runs other than copies and reads of values.
# - **items**: how often Python waits to read the value of a tensor. `if`, `float()`, `print` and `.item()` all end in `aten::item`. On a GPU, reading a value there waits until everything queued before it is done, and in the meantime nothing new is queued; the trace then shows `cudaStreamSynchronize` inside `aten::item`. A value in host memory is read without waiting: AdamW keeps its step counters there and reads one per parameter. On a CPU each read costs only Python overhead.
# - **copying**: the fraction of the step in which a copy runs and no kernel does.
#
# **Contract.** `signs(events)` returns a dictionary with these three, for the step in the trace. Do not change the events.
#
# - The step is the event named `step` of the category (`event["cat"]`) `user_annotation`; a GPU's trace has another event of that name. Fractions are of its `dur`. Events outside it do not count, and no event straddles its boundaries. Only complete events (`ph` is `X`) are spans.
# - *Operations* are the events on the step's thread whose name starts with `aten::`. *Kernels* are the events of the category `kernel` inside the step, on any stream. Wherever several events run at once, or inside each other, that time counts once.
# - `items`: the number of operations named `aten::item`. If there are kernels, only those count during which an event named `cudaStreamSynchronize` starts on the step's thread.
# - `copying`: the time in which an operation named `aten::copy_` or an event of the category `gpu_memcpy` runs and no kernel does.
# - `idle`: if there are kernels, the time in which none of them runs. Otherwise, the time in which no operation runs or an `aten::copy_` or `aten::item` does. If nothing runs, `idle` is 1.
#
# `diagnose(signs)` takes that dictionary and returns a word. If `idle` is at most 0.3, there is nothing to fix: `"healthy"`. Otherwise it is the first that is true: `"synchronizes"` (more than 10 items), `"copies"` (copying above 0.3), `"tiny"` (many small operations).


# %% name="clinic" answer=true reveal=true
def signs(events):
    ### BEGIN SOLUTION
    spans = [event for event in events if event["ph"] == "X"]
    step = next(e for e in spans if e["name"] == "step" and e.get("cat") == "user_annotation")
    end = step["ts"] + step["dur"]
    inside = [e for e in spans if step["ts"] <= e["ts"] < end]
    mine = [e for e in inside if (e["pid"], e["tid"]) == (step["pid"], step["tid"])]
    operations = [e for e in mine if e["name"].startswith("aten::")]
    kernels = [e for e in inside if e.get("cat") == "kernel"]
    copies = [e for e in operations if e["name"] == "aten::copy_"]
    reads = [e for e in operations if e["name"] == "aten::item"]
    transfers = [e for e in inside if e.get("cat") == "gpu_memcpy"]
    waits = [e["ts"] for e in mine if e["name"] == "cudaStreamSynchronize"]
    if kernels:  # a value in host memory is read without waiting
        reads = [e for e in reads if any(e["ts"] <= at < e["ts"] + e["dur"] for at in waits)]

    def covered(some):  # microseconds in which at least one of them runs
        total, reached = 0, -math.inf
        for event in sorted(some, key=lambda e: e["ts"]):
            until = event["ts"] + event["dur"]
            total += max(0, until - max(event["ts"], reached))
            reached = max(reached, until)
        return total

    useful = covered(kernels) if kernels else covered(operations) - covered(copies + reads)
    return {
        "items": len(reads),
        "copying": (covered(copies + transfers + kernels) - covered(kernels)) / step["dur"],
        "idle": 1 - useful / step["dur"],
    }
    ### END SOLUTION


def diagnose(signs):
    ### BEGIN SOLUTION
    if signs["idle"] <= 0.3:
        return "healthy"
    if signs["items"] > 10:
        return "synchronizes"
    return "copies" if signs["copying"] > 0.3 else "tiny"
    ### END SOLUTION


# %% name="clinic_check"
signs, diagnose = check("where_the_time_goes.clinic", signs, diagnose)

# %% name="clinic_hint"
hint("where_the_time_goes.clinic")

# %% [markdown] name="ward_text"
# Now the real programs, and a healthy one: the large matmul.

# %% name="ward"
planted = {"A": "synchronizes", "B": "copies", "C": "tiny", "a matmul": "healthy"}
charts["a matmul"] = traced(lambda: a @ b)
found = {}
for name, chart in charts.items():
    seen = signs(chart)
    found[name] = diagnose(seen)
    print(f"{name:10} items {seen['items']:5}, copying {seen['copying']:4.0%}, idle {seen['idle']:4.0%}: {found[name]}")
agreed = sum(found[name] == illness for name, illness in planted.items())
if device.type == "cuda":
    claims.record("T30", "three signs tell slow programs apart", "four programs, right diagnoses", agreed, "of 4", 4, 4)
else:
    claims.figure("three signs tell slow programs apart", "four programs on a CPU, right diagnoses", agreed, "of 4")

# %% name="ward_line"
show(
    time_line(charts["C"], "Patient C: the first three milliseconds of the step", until=3),
    "Timeline of patient C: first one longer operation, which cuts a batch into images, then a steady run of very short operations with gaps between them.",
)

# %% [markdown] name="gpu_traces_text"
# ### Two traces from real GPUs
#
# A GPU's trace has more lanes: the host's threads (the backward pass has its own) and the GPU's streams. The course includes one training step each of two [published traces](https://github.com/facebookresearch/HolisticTraceAnalysis). Both train a convolutional network. Here is the first, through your functions:


# %% name="gpu_traces"
def read_trace(gpu):
    """Print what your functions find in a trace of a real GPU; return its events and the milliseconds of its step."""
    events = gpu_trace(gpu)
    took = next(e["dur"] for e in events if e["name"] == "step" and e["cat"] == "user_annotation") / 1e3
    seen = signs(events)
    found = f"items {seen['items']}, copying {seen['copying']:.0%}, idle {seen['idle']:.0%}: {diagnose(seen)}"
    print(f"{gpu_trace_source(gpu)}\nstep {took:.1f} ms; {found}")
    return events, took


of_v100, v100_ms = read_trace("v100")
on_host = self_times([e for e in of_v100 if e["cat"] == "cuda_runtime"])
for name in sorted(on_host, key=on_host.get, reverse=True)[:2]:
    print(f"   the host spends {on_host[name] / 1e3:.1f} ms in {name}")
waits = sorted(e["dur"] for e in of_v100 if e["name"] == "cudaLaunchKernel")
print(f"   half of its launches take at most {waits[len(waits) // 2]:.1f} µs, the longest {waits[-1]:,.0f} µs")
kernels_of = {gpu: [e["dur"] / 1e3 for e in gpu_trace(gpu) if e["cat"] == "kernel"] for gpu in ("v100", "a100")}
for gpu, durations in kernels_of.items():
    print(f"{gpu}: {len(durations)} kernels, together {sum(durations):.1f} ms")

# %% [markdown] name="gpu_traces_guess_text"
# The V100 is busy nearly all the time. Most of the host's time in `cudaLaunchKernel` is *not* launch overhead. A few launches take more than a hundred times as long as the others: the queue is full, and they wait for a free place in it.
#
# The second trace is from a faster GPU, an A100. Its step runs about as many kernels in much less time (last line).
#
# **Predict.** How long is the A100's step, relative to the V100's?

# %% name="gpu_traces_guess"
my_guess = None  # step on the A100 / step on the V100
### BEGIN GUESS
my_guess = sum(kernels_of["a100"]) / v100_ms  # as long as its kernels
### END GUESS
a100_guess = Prediction("Step on the A100 / step on the V100", my_guess, "times")

# %% name="gpu_traces_lanes"
of_a100, a100_ms = read_trace("a100")
a100_guess.reveal(a100_ms / v100_ms, "published")
figure = Figure(figsize=(9, 3.6), layout="constrained")
both = figure.subplots(2, 1, sharex=True)
for axes, gpu, chart in zip(both, ("V100", "A100"), (of_v100, of_a100), strict=True):
    for lane, category in enumerate(("cpu_op", "kernel")):
        shown = (e for e in chart if e["cat"] == category and e["ts"] < 45e3 and e["ts"] + e["dur"] > 40e3)
        spans = [(e["ts"] / 1e3, e["dur"] / 1e3) for e in shown]
        axes.broken_barh(spans, (lane - 0.4, 0.8), color=COLORS[4 * lane])
    axes.set(title=gpu, yticks=(0, 1), yticklabels=("host", "kernels"), xlim=(40, 45))
both[1].set(xlabel="milliseconds of the step")
show(
    figure,
    "Five milliseconds of both steps. On the V100 the lane of kernels is full; on the A100 short kernels alternate with gaps.",
)

# %% [markdown] name="gpu_traces_explained"
# The faster GPU has the slower step. Its kernels are done before the host has launched the next ones, so the host sets the pace, as for the narrow GPT in section 6. The trace does not say why this host is slow: its profiler may record more, or other processes may share the CPU. It does say that a faster GPU would not help.

# %% [markdown] name="cure_task"
# (On a CPU, patient A's idle share is close to the limit of 0.3. On a busy machine it may fall below it, and A then counts as healthy.)
#
# ### Your turn: fix patient A
#
# **Contract.** `accuracy(model, batches)` returns the fraction of samples for which the model's largest logit is at the label, as a Python number.
#
# - `batches` is a list of pairs (inputs (B, ...), labels (B,)), which may differ in size; `model(inputs)` returns logits (B, classes).
# - Each batch goes through the model once, as a whole.
# - Python reads **one** value at most, after the last batch: no `.item()`, `if`, `float()`, `.tolist()` or `.cpu()` before. `.nonzero()` and a mask as an index count, too, because the size of their result is a value.
# - Autograd records nothing, and its state is the same afterwards as before. The model arrives in evaluation mode. Do not change its mode or the batches.


# %% name="cure" answer=true reveal=true
def accuracy(model, batches):
    ### BEGIN SOLUTION
    right = samples = 0
    with torch.no_grad():
        for inputs, labels in batches:
            right = right + (model(inputs).argmax(1) == labels).sum()  # stays a tensor: nothing waits for it
            samples += len(labels)
    return right.item() / samples
    ### END SOLUTION


# %% name="cure_check"
accuracy = check("where_the_time_goes.cure", accuracy)

# %% name="cure_hint"
hint("where_the_time_goes.cure")

# %% [markdown] name="cures_text"
# The same function fixes patient C, whose batches are already complete. Patient B needs a different fix: select the rows first, then convert only those.
#
# **Predict.** By what factor is patient B faster after the fix?

# %% name="cures_guess"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 1 / (1 - signs(charts["B"])["copying"])  # all of its copying saved
### END GUESS
cure_guess = Prediction("Patient B, cured", my_guess, "times as fast")


# %% name="cures"
@torch.no_grad()
def cured_b():
    right = torch.zeros((), device=device)
    for rows in torch.arange(SAMPLES).split(50):
        picked = images[rows].to(device, torch.float32)
        right += (net(picked).argmax(1) == labels[rows].to(device)).sum()
    return right.item() / SAMPLES


cures = {"A": lambda: accuracy(net, loaded), "B": cured_b, "C": lambda: accuracy(net, loaded)}
for name, cured in cures.items():
    gain = compare(patients[name], cured, runs=5, warmup=1)
    print(f"patient {name}: {gain}; the same accuracy: {math.isclose(patients[name](), cured())}")
    claims.record("T30", "the cure makes it faster", f"patient {name}", gain.speedup, "times", 1.2, math.inf)
    if name == "B":
        cure_guess.reveal(gain.speedup)
for when, chart in (("before", charts["B"]), ("after", traced(cured_b))):
    seen = signs(chart)
    took = next(e for e in chart if e["name"] == "step" and e["cat"] == "user_annotation")["dur"] / 1e3
    rest = seen["idle"] - seen["copying"]
    print(f"B {when}: {took:.1f} ms, copying {took * seen['copying']:.1f}, other idle time {took * rest:.1f}")

# %% [markdown] name="cures_explained"
# The last two lines show where patient B's time went. It had copied all 2,000 images for every batch of 50, so the fix removes most of the copying. The gain can exceed 1 / (1 − copying): each round also allocated and freed the converted images of the whole set, and read them from memory instead of the cache. (Each trace is a single run, so on a busy machine it need not agree with the timed gain.)
#
# On a CPU, patient A goes through Python for every sample. On a GPU the same line also stops the queue: each `if` copies a value to the host and waits (PyTorch's *Performance Tuning Guide*), and nothing new is queued in the meantime. In a GPU's trace of patient A, look for `cudaStreamSynchronize` inside `aten::item`, and for wide gaps between kernels. (`torch.cuda.set_sync_debug_mode("warn")` warns at such lines.) For patient B look for `Memcpy HtoD`, for patient C for gaps longer than the kernels.
#
# ## 10 · Explore
#
# This figure shows a linear layer in 16 bits on several GPUs, according to their data sheets. Choose width, batch and GPU. At what batch size does a layer of width 1,024 become compute-bound on an H100, and at what batch on a T4? What happens to a layer of width 64?


# %% name="play"
def layer_on(gpu, width, batch):
    sheet = find_gpu(gpu)
    flops, nbytes = 2 * batch * width**2, 2 * (width**2 + 2 * batch * width)
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    along = sorted([*(2.0**k for k in range(-2, 14)), sheet.flops16 / sheet.bandwidth])
    roof = [min(sheet.flops16, sheet.bandwidth * i) for i in along]
    axes.loglog(along, [r / 1e12 for r in roof], color=COLORS[0], label="data sheet")
    reached = min(sheet.flops16, sheet.bandwidth * flops / nbytes)
    axes.loglog(flops / nbytes, reached / 1e12, "o", color=COLORS[4], markersize=9, label="the layer, at most")
    bound = "arithmetic" if reached == sheet.flops16 else "memory"
    seconds = max(flops / sheet.flops16, nbytes / sheet.bandwidth)
    axes.set(title=f"{gpu}, width {width:,}, {batch:,} rows: bound by {bound}, {1e6 * seconds:.2f} µs plus a launch")
    axes.set(xlabel="FLOPs per byte", ylabel="TFLOP/s", ylim=(0.01, 5_000))
    axes.legend(frameon=False, loc="lower right")
    return figure


explore(
    layer_on,
    "Roofline of a GPU with a dot for a linear layer: more rows move it to the right and up the slope, until it reaches the level.",
    gpu=("h100-80gb", ("t4-16gb", "rtx-4090-24gb", "a100-80gb", "h100-80gb")),
    width=(1024, (64, 256, 1024, 4096)),
    batch=(64, (1, 16, 64, 256, 512, 1024, 4096)),
)

# %% [markdown] name="play_explained"
# A narrow layer never becomes compute-bound. With W small, inputs and outputs are most of its bytes, and its intensity cannot exceed W / 2, whatever the batch. That is why LoRA's thin matrices take more time than their FLOPs suggest ([[lora]]).
#
# ## 11 · Claims and measurements
#
# The table shows this run alongside those of the machines whose figures are stored in `receipts/`. A run on a busy machine records no verdict for the whole step.

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Seconds = max(FLOPs / peak, bytes / bandwidth) + launch. With the three figures measured, this predicts a large matmul and a large addition. The batch at which a layer becomes compute-bound is harder to predict, because of packing. A profile shows where an error comes from.
# - A layer turns from memory-bound to compute-bound at a batch that depends on the machine more than on the model. Below it, the rows of a batch share the cost of reading the weights.
# - A training step costs three forward passes: 6·N·D FLOPs plus attention. State the convention.
# - MFU counts what the model needs, HFU what was executed. Recomputation lowers MFU more than HFU.
# - Warm up, wait for the queue, time in pairs, and check the spread.
#
# **What to reach for when.** First ask whether the GPU is idle. If it is not and MFU is high, you need more machines ([[data_parallel]]). If it is not and MFU is low, find what is memory-bound, and fuse it or use fewer bits ([[mixed_precision]]). If it is idle with many calls to `aten::item`, keep values in tensors. Idle with long copies: move less data, or move it in the background ([[data_loading]]). Idle with thousands of operations: larger batches, or compile ([[compilation_and_fusion]]).
#
# **Sources.** Williams, Waterman and Patterson 2009, *Roofline*; Kaplan et al. 2020, *Scaling Laws for Neural Language Models* (6ND); Goto and van de Geijn 2008, *Anatomy of High-Performance Matrix Multiplication* (packing); Chowdhery et al. 2022, *PaLM* (MFU); Korthikanti et al. 2022, *Reducing Activation Recomputation* (HFU); PyTorch documentation, `torch.profiler` and *Performance Tuning Guide*; Perfetto documentation, *Trace Event Format*.
