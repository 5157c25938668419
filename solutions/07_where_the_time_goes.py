# %% [markdown] name="title"
# # Where the time goes
#
# **An operation takes as long as its arithmetic or its memory traffic, whichever takes longer, plus the launch overhead. Add these up and you can predict a training step. A profile shows where the rest goes.**
#
# | | |
# |---|---|
# | After this you can | estimate how long an operation, and a training step, takes from FLOPs, bytes and launches; say what bounds a layer and at what batch size that changes; count the FLOPs of a transformer by both conventions; compute MFU and HFU, and say what each leaves out |
# | Time | 80 to 105 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#activation_checkpointing]] |
# | Syllabus | T29, C24 |

# %% name="setup" setup=true
import math
from collections import Counter

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

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
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
side = 1024 if device.type == "cpu" else 2 ** (int(math.log2(x.numel())) // 2)  # a GPU needs more work to stay busy
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
checked = {
    "a matmul takes its FLOPs / peak": (f"{side} x {side} x {side // 2}, FP32", by_flops, product),
    "an addition takes its bytes / bandwidth": ("x + y with out=", by_bytes, addition),
}
for said, (subject, ratio, run) in checked.items():
    if run.spread > 0.25:
        claims.figure(f"{said}, machine too busy for a verdict", subject, ratio, "x")
    else:
        claims.record("T29", said, subject, ratio, "x", 0.67, 1.5)
flops_alone = x.numel() / peak
print(f"by its FLOPs alone the addition would take {1e3 * flops_alone:.3f} ms")
print("spread of the runs:", f"matmul {product.spread:.0%}, addition {addition.spread:.0%}")

# %% [markdown] name="clocks_explained"
# Two figures describe the machine, and each operation needs the right one. The second-to-last line applies the wrong limit to the addition and is off by a large factor, because an addition does almost no arithmetic.
#
# The transposed sum needs the same number of bytes but moves more. Memory delivers lines of contiguous bytes (64 on most CPUs; NVIDIA's GPUs read sectors of 32), and reading down a column uses one number from each line. By the time the next column needs the line, the cache has dropped it. (The cell measures only the time, not the bytes moved.) So the formula holds only for an operation that reads its tensors in the order in which they are stored.
#
# (If the spread of a run is above 25%, another program is probably running on this machine, and all figures in this lab vary with it. Then the cell records no verdict on that run. The spread covers only the runs of this cell. If something slowed down the machine while the cell before it measured peak and bandwidth, this check does not see it: run both cells again before you trust a verdict.)
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
# Peak and bandwidth are not single numbers. A 16 × 16 matmul cannot keep a processor busy, and data in the cache does not come from memory. `measure_roofline` measures rates over many shapes and sizes. `python -m helpers roofline` prints and saves them, and the next cell uses saved figures if there are any; otherwise it measures them now. The formula is the one that you have just written.

# %% name="measured"
roofline = kept_roofline(device) or measure_roofline(device)
by_roofline = roofline.peak("float32")
print(f"measured on {roofline.date}; spread of its runs {roofline.spread:.0%}")
if roofline.spread > 0.25:
    print("That is a large spread: on a quieter machine, run `python -m helpers roofline` and this cell again.")
print(f"fastest FP32 matmul {by_roofline / 1e9:,.0f} GFLOP/s; by hand {peak / 1e9:,.0f}")
for shape in ((1024, 1024, 1024), (16, 1024, 1024), (16, 16, 16)):
    rate = 2 * math.prod(shape) / roofline.product_seconds(shape, "float32")
    print(f"a matmul of m, n, k = {shape}: {rate / 1e9:,.1f} GFLOP/s")
if not 0.7 < peak / by_roofline < 1.4:
    print("The two differ a lot: the machine is busier or quieter than when its roofline was measured.")

# %% [markdown] name="dots_text"
# The plot of this formula gave the model its name. The horizontal axis is **arithmetic intensity**: FLOPs per byte moved. The vertical axis is FLOPs per second. The sloped line is the memory bandwidth, and each number format's peak is a horizontal line. To the left of the corner, the **ridge point**, an operation is memory-bound; to the right of it, compute-bound. No operation gets above the roof unless its data stays in the cache: the dashed slope is the cache's bandwidth. Here are some operations with their measured speed.

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
    "Roofline on logarithmic axes: the addition, the sum, and the single row lie far left, near the memory-bandwidth slope; the large matmul lies far right, near the FP32 peak. The point for 64 rows lies below the roof; what fits in the cache, such as the tiny matmuls, can lie above the memory slope.",
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
# According to the formula, the time per batch is constant at first. Beyond some batch size, each additional row adds the same time. The layer **turns** from memory-bound to compute-bound where the two lines meet: the number of rows there is the time of a single row divided by the time per row in a large batch.
#
# **Predict.** On this machine, how many times as long do two rows take as one row?

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
print(f"a row alone takes {1e3 * level:.2f} ms, one row in a batch of {batches[-1]:,} takes {1e3 * each:.2f} ms")
print(f"the layer turns at {turn:.1f} rows; by the formula, 2 x peak / bandwidth, at {2 * peak / reading:.1f}")
said, subject = "turning point / (2 x peak / bandwidth)", f"{wide} x {wide}, FP32, reading"
claims.figure(said, subject, turn / (2 * peak / reading), "x")
figure = Figure(figsize=(7, 3.6), layout="constrained")
axes = figure.add_subplot()
axes.loglog(batches, [1e3 * s for s in sweep], "o", base=2, color=COLORS[4], label="measured")
along = sorted([*batches, 2 * peak / reading])  # with the corner
predicted = [1e3 * max(4 * wide**2 / reading, 2 * batch * wide**2 / peak) for batch in along]
axes.loglog(along, predicted, base=2, color=COLORS[0], label="roofline, by hand")
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
# A GPU's corner for 16-bit formats lies farther right, because its tensor cores multiply numbers much faster than its memory can deliver them. The explorer in section 7 includes several GPUs.
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
claims.figure(
    "small layers: time at 64x the FLOPs", "width 32 / width 4", stack_seconds[32] / stack_seconds[4], "times"
)
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
# Nearly flat, then rising: launches are a third bound. In the flat part the network is **launch-bound**. Its time depends on the number of operations far more than on their size. The launch overhead also depends on the operation. A matmul with a bias costs more than an addition (compare the two lines above the figure), because it checks more shapes and sets up a library call. Calling the module from Python accounts for the rest.
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
# With T below about half of W, 6·N·D is within 10%. At 8,192 tokens it is off by a third even at the width of an 8B model. In such cases, count the FLOPs, or add 12·T·W per token and layer for the full square.
#
# Make one prediction now. Section 5 will check it.
#
# **Predict** how many milliseconds a full step of this GPT takes. The simplest model is FLOPs over peak. (Run `print(1e3 * step_flops / peak)` in a new cell to see what it predicts.)

# %% name="predict_guess"
my_guess = None  # milliseconds
### BEGIN GUESS
my_guess = 1e3 * step_flops / peak  # leaves out everything but matmuls: too low
### END GUESS
simple_guess = Prediction("A training step", my_guess, "ms")

# %% [markdown] name="predict_text"
# ## 5 · Predict a whole step
#
# A step is a list of operations. Each has its FLOPs, bytes and shape, and the roofline gives the seconds of each. How long they take together depends on who waits for what:
#
# - **A CPU** that launches an operation also executes it. It launches the operation, works on it, and then calls the next one.
# - **A GPU** has a queue. The host only launches, one operation after another, without waiting for their work. The GPU works through the queue in order, one operation at a time. It can start an operation once that operation has been launched and the one before it is done.
# - **Reading a value** stops the host. If Python needs the result of an operation (`.item()`), the host launches nothing more until that operation is done.
#
# ### Your turn
#
# **Contract.** `step_time(operations, launch, queued)` returns a pair: the seconds from the beginning of the first launch until the last operation is done, and the fraction of that time in which the processor is idle.
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
print(f"roofline, {len(works)} operations: {1e3 * in_step:.1f} ms, {off:+.0f}%; the step: {timing}")
said, subject = "the roofline predicts a step within 25 %", "GPT, 4 blocks of width 128"
if max(timing.spread, roofline.spread) > 0.25:
    print("The runs differ too much, here or when the roofline was measured: no verdict.")
    print("When the machine is quiet, run `python -m helpers roofline`, and then this lab again.")
    claims.figure("error of the roofline, machine too busy for a verdict", subject, off, "%")
else:
    claims.record("T29", said, subject, off, "%", -25, 25)

# %% [markdown] name="residue_text"
# On a quiet machine, FLOPs over peak explains only a part of the step. That model leaves out three things: matmuls slower than the peak, memory-bound operations, and launches.
#
# What does the roofline itself miss? PyTorch's **profiler** records when each operation starts and ends ([[traces]]). `profile_step` adds up these times by the **phase** of the step (columns) and by the **kind** of operation (rows).
#
# - *gap* is time in which no operation runs: Python and the dispatcher.
# - Recording an event takes time. So the step is also timed without the profiler, and the cost of recording is subtracted from the parts.
# - *unexplained* is the difference between the time of the step without the profiler and the sum of the parts. Even if it is small, the parts may be off in opposite directions. It may be negative, because the steps with and without the profiler are different runs.

# %% name="profile"
profiled = profile_step(step)
print(profiled)
for part in profiled.largest(3):
    print(part)

# %% name="profile_figure"
show(
    profiled.figure(),
    "A bar for each phase of the step, split by kind of operation; the forward and backward bars are the longest.",
)

# %% [markdown] name="kinds_text"
# Now compare prediction and profile, kind by kind:

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
print(f"\nlargest difference: {worst[0]}")
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
# With figures from a data sheet, `step_time` predicts a step on a GPU that you do not have. The H100's data sheet promises 989 TFLOP/s for BF16 matmuls. Compare that with the peak of this machine (section 1). Assume a fast host, which takes 10 µs per operation, Python and autograd included. On the H100, AdamW updates all parameters together (`foreach`), so the step has about two thirds as many operations as the one measured above on a CPU. The cell that predicted the step (`roofline, ...`) printed the number of operations and the measured milliseconds.
#
# **Predict.** By what factor is the step of this GPT (width 128) faster on the H100 than the step measured here?

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


sheet_guess.reveal(timing.median / on_sheet(WIDTH)[0], "planned")
table = [("width, planned", "tokens", "ms per step", "GPU idle", "every 20th value read", "GPU idle")]
for width in (WIDTH, 512, 1024, 2048, 4096):
    figures = (f"{1e3 * took:.1f} ms, {idle:.0%}".split(", ") for took, idle in (on_sheet(width), on_sheet(width, 20)))
    tokens_per_row = f"{LENGTH * max(1, width // 256):,}"
    table.append((f"{width:,}", tokens_per_row, *(figure for pair in figures for figure in pair)))
show_table(table)

# %% [markdown] name="sheet_explained"
# The H100 finishes each operation of the small model long before the host has launched the next one, so the step takes as long as its launches. A faster GPU changes nothing there: make the model or the batch larger, or launch fewer operations.
#
# The last two columns show what it costs to read values. (From width 512 on, the sequences also get longer, as the second column shows: width and length both make the operations larger.) A small model hides the reads, because the GPU is idle anyway. In a large model the host is far ahead of the GPU, and each read takes that lead away: the GPU is idle until the next launch. The longer the operations, the less such a launch matters.
#
# ## 6 · MFU and HFU
#
# **Model FLOPs utilization** (MFU; Chowdhery et al. 2022) measures how well a machine is used. It is the number of FLOPs that the model *needs*, one forward and one backward pass, divided by the number that the machine could have executed in the time the step took. **Hardware FLOPs utilization** (HFU) counts the FLOPs that were *executed*. Here the two differ by what activation checkpointing recomputes ([[activation_checkpointing]]).
#
# ### Your turn
#
# **Contract.** `utilization(parameters, layers, width, length, tokens, seconds, peak, recomputed)` returns the pair (MFU, HFU), each a fraction: 0.4 for 40%.
#
# - `parameters` is the number of parameters in matmuls. `tokens` is the number of tokens in a step of `seconds`, in sequences of `length`. `peak` is in FLOP/s.
# - The model needs 6 FLOPs for each parameter and token. To these, add each layer's attention over the full square, forward and backward (section 4).
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
# The model does not need the recomputed FLOPs. They increase the numerator of HFU, and they lengthen the step, which lowers both MFU and HFU. So MFU falls. HFU falls less, and stays the same if the recomputed operations are as efficient as the rest. A recipe with a high HFU may only be recomputing a lot.
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

# %% [markdown] name="play_text"
# ## 7 · Explore
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
# On an H100, the smallest batch size in the menu at which a layer of width 1,024 is compute-bound is 1,024 (by the formula: about 700); on a T4 it is 512 (by the formula: about 340).
#
# A narrow layer never becomes compute-bound. With W small, inputs and outputs are most of its bytes, and its intensity cannot exceed W / 2, whatever the batch. That is why LoRA's thin matrices take more time than their FLOPs suggest ([[lora]]).
#
# ## 8 · Claims and measurements
#
# The table shows this run alongside those of the machines whose figures are stored in `receipts/`. A run on a busy machine records no verdict for the step as a whole.

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Seconds = max(FLOPs / peak, bytes / bandwidth) + launch. With the three figures measured, this predicts a large matmul and, less exactly, a large addition (see the claims). The batch at which a layer becomes compute-bound is harder to predict, because of packing. A profile shows where an error comes from.
# - A layer turns from memory-bound to compute-bound at a batch that depends on the machine more than on the model. Below it, the rows of a batch share the cost of reading the weights.
# - A training step costs three forward passes: 6·N·D FLOPs plus attention. State the convention.
# - MFU counts what the model needs, HFU what was executed. Recomputation lowers MFU more than HFU.
#
# **What to reach for when.** Compute the MFU first. If it is high, a faster run needs more machines ([[data_parallel]]). If it is low, predict the step and see which term is largest. Memory traffic: fuse operations or use fewer bits ([[compilation_and_fusion]], [[mixed_precision]]). Launches: larger batches, or compile. If the step takes much longer than predicted, read its trace: that is the subject of [[traces]].
#
# **Sources.** Williams, Waterman and Patterson 2009, *Roofline*; Kaplan et al. 2020, *Scaling Laws for Neural Language Models* (6ND); Goto and van de Geijn 2008, *Anatomy of High-Performance Matrix Multiplication* (packing); Chowdhery et al. 2022, *PaLM* (MFU); Korthikanti et al. 2022, *Reducing Activation Recomputation* (HFU); NVIDIA, *H100 Tensor Core GPU* data sheet; PyTorch documentation, `torch.profiler`.
