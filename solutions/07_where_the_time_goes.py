# %% [markdown] name="title"
# # Where the time goes
#
# **An operation takes as long as its arithmetic or as its bytes, whichever is slower, plus a launch. Add them up and you know a step before it runs; what is left over has a name.**
#
# | | |
# |---|---|
# | After this you can | predict the seconds of an operation, and of a training step, from FLOPs, bytes and launches; say what bounds a layer and at which batch that changes; count the FLOPs of a transformer by both conventions; read a profiler's trace; report MFU and HFU; time two programs without fooling yourself; diagnose a slow loop from its trace |
# | Time | 150 to 180 minutes |
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
    COLOURS,
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
    hfu,
    hint,
    kept_roofline,
    measure_roofline,
    mfu,
    model_flops,
    numbers_beyond_cache,
    pick_device,
    profile_step,
    roofline_figure,
    show,
    text_table,
    works_of,
)
from helpers.core.device import synchronize

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, threads: {torch.get_num_threads()}")

# %% [markdown] name="clocks_text"
# ## 1 · Two operations, two clocks
#
# A kitchen has cooks and a door to the cellar. A stew keeps the cooks busy for hours on one basket of vegetables; a salad is all walking to the cellar. Hire more cooks and the salad is not ready any sooner.
#
# A processor is such a kitchen. It does so many floating-point operations (FLOPs) in a second: its **peak**. It moves so many bytes to and from memory in a second: its **bandwidth**. A product of two n × n matrices does 2·n³ FLOPs on 12·n² bytes (FP32): a stew. Adding two tensors of n numbers does n FLOPs on 12·n bytes: a salad.
#
# Measure both limits, the peak with a large product and the bandwidth with a copy of tensors that no cache holds. And measure a third figure: what an operation costs that has nothing to do, its **launch**.

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
# **Predict**, from these figures alone, the milliseconds of two operations that were not measured: the product of a `side` × `side` matrix and one of `side` × `side` / 2, and the addition of two tensors as large as the one that was copied, into a third.

# %% name="clocks_guess"
my_guess = None  # milliseconds, product
### BEGIN GUESS
my_guess = 1e3 * 2 * side * (side // 2) * side / peak
### END GUESS
product_guess = Prediction("Product", my_guess, "ms")
my_guess = None  # milliseconds, addition
### BEGIN GUESS
my_guess = 1e3 * 3 * x.nbytes / bandwidth  # reads two, writes one
### END GUESS
addition_guess = Prediction("Addition", my_guess, "ms")

# %% name="clocks"
half = b[:, : side // 2].contiguous()
product, addition = benchmark(lambda: a @ half), benchmark(lambda: torch.add(x, y, out=out))
product_guess.reveal(1e3 * product.median)
addition_guess.reveal(1e3 * addition.median)
by_flops = product.median / (side**3 / peak)
by_bytes = addition.median / (3 * x.nbytes / bandwidth)
claims.record(
    "T29", "a product takes its FLOPs / peak", f"{side} x {side} x {side // 2}, FP32", by_flops, "x", 0.67, 1.5
)
claims.record("T29", "an addition takes its bytes / bandwidth", "x + y with out=", by_bytes, "x", 0.67, 1.5)
flops_alone = x.numel() / peak
print(f"by its FLOPs alone the addition would take {1e3 * flops_alone:.3f} ms")
print("spread of the runs:", f"product {product.spread:.0%}, addition {addition.spread:.0%}")

# %% [markdown] name="clocks_explained"
# Two figures describe the machine, and both predictions come out about right. With the wrong limit you are off by orders of magnitude, as the second-to-last line shows: there was almost nothing to compute.
#
# (If the spread is large, something else is running on this machine. All figures of this lab move with it; the laws do not.)
#
# ## 2 · The roofline
#
# Arithmetic and traffic go on at the same time, so an operation takes as long as the **slower** of the two. Before that it has to be launched: Python, PyTorch's dispatcher and, on a GPU, the driver. So
#
# $$\text{seconds} = \max\left(\frac{\text{FLOPs}}{\text{peak}},\ \frac{\text{bytes}}{\text{bandwidth}}\right) + \text{launch}$$
#
# ### Your turn
#
# **Contract.** `operation_seconds(flops, nbytes, peak, bandwidth, launch)` returns a pair: the seconds, and what bounds the operation.
#
# - Seconds as in the formula: `peak` in FLOP/s, `bandwidth` in bytes/s, `launch` in seconds.
# - The bound is the word for the longest of the three times, FLOPs / peak, bytes / bandwidth and launch: `"compute"`, `"memory"` or `"launch"`.
# - `flops` may be 0 (a copy), and `nbytes` as well (an empty operation).


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
# Peak and bandwidth are not one number each. A product with a side of 16 cannot keep a processor busy, and what fits the cache need not come from memory. `measure_roofline` measures rates over many shapes and sizes in less than a minute; `python -m helpers roofline` prints and keeps them, and the next cell takes what was kept. The law is the one that you have just written.

# %% name="measured"
roofline = kept_roofline(device) or measure_roofline(device)
by_roofline = roofline.peak("float32")
print(f"measured on {roofline.date}; the runs of one measurement lay {roofline.spread:.0%} apart")
print(f"fastest FP32 product {by_roofline / 1e9:,.0f} GFLOP/s; by hand {peak / 1e9:,.0f}")
for shape in ((1024, 1024, 1024), (16, 1024, 1024), (16, 16, 16)):
    rate = 2 * math.prod(shape) / roofline.product_seconds(shape, "float32")
    print(f"a product of m, n, k = {shape}: {rate / 1e9:,.1f} GFLOP/s")
if not 0.7 < peak / by_roofline < 1.4:
    print("The two lie far apart: the machine is busier or quieter than when its roofline was measured.")

# %% [markdown] name="dots_text"
# The picture of this law gave it its name. The horizontal axis is **arithmetic intensity**: how many FLOPs an operation does for each byte that it moves. The vertical axis is FLOPs per second. The slope is the memory's bandwidth, and there is a level for the peak of each number format. Left of the corner an operation is bound by memory, right of it by arithmetic, and nothing gets through the roof. The dashed slope is the cache's bandwidth, for operations whose bytes never leave it. Here are some operations with their measured speed.

# %% name="dots"
wide = 4096 if device.type == "cpu" else 2 * side  # weights that no cache holds
weights, row, rows = (torch.randn(n, wide, device=device) for n in (wide, 1, 64))
tiny = torch.randn(512, 16, 16, device=device)
operations = {  # what to run, FLOPs, bytes
    "x + y": (lambda: torch.add(x, y, out=out), x.numel(), 3 * x.nbytes),
    "sum of x": (lambda: x.sum(), x.numel(), x.nbytes),
    "1 row through a layer": (lambda: row @ weights, 2 * wide**2, weights.nbytes + 2 * row.nbytes),
    "64 rows through a layer": (lambda: rows @ weights, 2 * 64 * wide**2, weights.nbytes + 2 * rows.nbytes),
    f"product, {side}": (lambda: a @ b, 2 * side**3, 3 * a.nbytes),
    "512 products of 16 x 16": (lambda: tiny @ tiny, 512 * 2 * 16**3, 3 * tiny.nbytes),
}
timed = {name: (flops, nbytes, benchmark(fn, runs=7).median) for name, (fn, flops, nbytes) in operations.items()}
show(
    roofline_figure(roofline, timed),
    "Roofline on logarithmic axes: sums and a single row lie far left near the memory's slope, the large product far right near the level. Tiny products lie well below the roof: neither clock explains them.",
)
rows_of_table = [("operation", "FLOP/byte", "measured, ms", "predicted, ms", "bound by")]
try:
    for name, (flops, nbytes, seconds) in timed.items():
        predicted, bound = operation_seconds(flops, nbytes, peak, bandwidth, launch)
        figures = (f"{flops / nbytes:.2f}", f"{1e3 * seconds:.3f}", f"{1e3 * predicted:.3f}")
        rows_of_table.append((name, *figures, bound))
    print(text_table(rows_of_table))
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% [markdown] name="turn_text"
# ### Where a layer turns
#
# A linear layer of width W reads W² weights, whatever the batch. For B rows it does 2·B·W² FLOPs. As long as B is small against W, nearly all of its 4·W² bytes are weights. So each row does half a FLOP for each byte, and by the law one more row costs nothing, until the cooks are busy.
#
# One thing first. The layer reads its weights and writes next to nothing, while the copy of section 1 wrote as much as it read. On a CPU that makes a difference: before a line of memory is written, it is fetched. So measure reading by itself.

# %% name="reading"
reading = x.nbytes / benchmark(lambda: x.sum(), runs=7).median
print(f"reading {reading / 1e9:.1f} GB/s, copying {bandwidth / 1e9:.1f} GB/s; peak {peak / 1e9:,.0f} GFLOP/s")

# %% [markdown] name="turn_guess_text"
# So the time of a batch is flat at first, and later each row more adds the same time. The layer **turns** where these two lines meet: the time of a single row, divided by the time that each row takes in a large batch.
#
# **Predict** the batch at which the layer turns from memory-bound to compute-bound on this machine.

# %% name="turn_guess"
my_guess = None  # rows
### BEGIN GUESS
my_guess = 2 * peak / reading  # B / 2 FLOPs a byte, as many as there is time for while a byte is read
### END GUESS
turn_guess = Prediction("Batch at which the layer turns", my_guess, "rows")

# %% name="turn"
batches = [2**k for k in range(9 if device.type == "cpu" else 11)]
sweep = []
for batch in batches:
    rows = torch.randn(batch, wide, device=device)
    sweep.append(min(benchmark(lambda rows=rows: rows @ weights, runs=4, warmup=1).runs))
level, each = sweep[0], sweep[-1] / batches[-1]  # a single row; one more row of many
turn = level / each
turn_guess.reveal(turn)
print(f"a row alone takes {1e3 * level:.2f} ms, one of {batches[-1]:,} takes {1e3 * each:.2f} ms")
said, subject = "a layer turns at 2 x peak / bandwidth rows", f"{wide} x {wide}, FP32, reading"
claims.record("T29", said, subject, turn / (2 * peak / reading), "x", 1 / 3, 3)
figure = Figure(figsize=(7, 3.6), layout="constrained")
axes = figure.add_subplot()
axes.loglog(batches, [1e3 * s for s in sweep], "o", base=2, color=COLOURS[4], label="measured")
law = [1e3 * max(4 * wide**2 / reading, 2 * batch * wide**2 / peak) for batch in batches]
axes.loglog(batches, law, base=2, color=COLOURS[0], label="roofline, by hand")
axes.axvline(turn, color=COLOURS[7], ls=":", label="turning point, measured")
axes.set(title=f"A linear layer of width {wide}", xlabel="rows in the batch", ylabel="milliseconds")
axes.legend(frameon=False)
show(
    figure,
    "Milliseconds over batch size. The law: flat for few rows, then in proportion to the rows. Measured: above the law for a few rows, closer to it for one and for many.",
)

# %% [markdown] name="turn_explained"
# A row alone pays for reading all the weights; many rows share the bill. That is why servers collect requests, and why training with one row at a time wastes a machine. (The figures are the least of four runs: a law is about the machine at its quietest.)
#
# The model has a sharp corner; the machine does not. A product of a few rows is *skinny*. Libraries first copy the weights into an order that suits their kernels; they *pack* them (Goto and van de Geijn 2008), which pays off over many rows only, and which a single row does without. So on a CPU two rows may take several times as long as one. The measured roofline has skinny products in it and knows.
#
# A GPU has its corner further right: it has gained more FLOP/s over the years than bytes/s. The explorer at the end includes several GPUs.
#
# ## 3 · Small layers
#
# A stack of 8 linear layers, 16 rows: at width 32 it does 64 times the arithmetic of width 4.
#
# **Predict.** How many times as long does it take?

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
    for w, stack in stacks.items():
        rows = torch.randn(ROWS, w, device=device)
        calls = benchmark(lambda stack=stack, rows=rows: [stack(rows) for _ in range(CALLS)], runs=5)
        stack_seconds[w] = min(calls.runs) / CALLS
peak_here = 2 * 512**3 / benchmark(lambda: a[:512, :512] @ b[:512, :512]).median  # with as many threads
torch.set_num_threads(threads)
width_guess.reveal(stack_seconds[32] / stack_seconds[4])
said, subject = "small layers take the time of their launches", "64 x the FLOPs, time"
claims.record("T29", said, subject, stack_seconds[32] / stack_seconds[4], "times", 0.5, 2)
per_layer = stack_seconds[4] / LAYERS
print(f"a layer of width 4: {per_layer * 1e6:.1f} µs; an empty addition: {launch * 1e6:.1f} µs")
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
axes.loglog(widths, [1e6 * s for s in stack_seconds.values()], "o-", base=2, color=COLOURS[4], label="measured")
arithmetic = [1e6 * LAYERS * 2 * ROWS * w * w / peak_here for w in widths]
axes.loglog(widths, arithmetic, "--", base=2, color=COLOURS[0], label="FLOPs / peak")
axes.set(title=f"{LAYERS} linear layers, {ROWS} rows", xlabel="width", ylabel="microseconds", ylim=(1, None))
axes.legend(frameon=False)
show(figure, "Microseconds over width: flat for small widths, then rising; the arithmetic alone starts far below.")

# %% [markdown] name="launch_explained"
# Flat, then rising: a third bound. Where it is flat, the network is **launch-bound**: what you pay for is the number of operations, not their size. A layer costs more than an empty addition, since Python calls a module, the module calls a function, and the function has a result to allocate.
#
# A small model may become wider at no cost there. To make it faster, launch less: larger batches, fused operations ([[compilation_and_fusion]]), CUDA graphs. On a GPU the host launches while the GPU works; there the rule is that a step cannot be faster than all its launches, one after another.
#
# ## 4 · Counting FLOPs
#
# A product of (m, k) and (k, n) takes 2·m·n·k FLOPs, a multiplication and an addition each. A transformer is made of such products. For B sequences of T tokens and a width W:
#
# - **projections**: q, k, v and out are products of all B·T tokens with a matrix. In models with grouped queries, k and v are narrower (`kv_width`);
# - **attention**: scores q·kᵀ, then scores·v; every query of a sequence meets every key of the same sequence. How many heads there are does not matter: H heads of W / H numbers do the same products in H pieces;
# - **MLP**: up to `inner` and down again, and in Llama and its relatives a *gate*, a third matrix like `up`.
#
# A causal mask throws half of the scores away. Some count them all the same (nanoGPT, torchtitan, PyTorch's counter): the **full square**. Others count half (Megatron): the **causal half**. A figure without its convention cannot be compared with anybody's.
#
# ### Your turn
#
# **Contract.** `block_flops(batch, length, width, inner, kv_width, gated, convention)` returns the FLOPs of one block's forward pass: a dictionary of whole numbers (`int`) with the keys `q`, `k`, `v`, `scores`, `values`, `out` and `mlp`.
#
# - `kv_width` is the width of k and of v; q has `width`. `gated` says whether the MLP has a gate.
# - With `convention="full square"`, scores and values count all pairs of tokens. With `"causal half"` they count exactly half of that, and everything else stays.
# - Norms, softmax, activations and sums are left out, as is customary.


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
# `count_flops` does the same for any code: it watches PyTorch's dispatcher, and adds up the products that pass by. Here is the GPT of this lab, forward, by both.

# %% name="counter"
BATCH, LENGTH, WIDTH, BLOCKS, VOCABULARY = 8, 128, 128, 4, 256
text = english(device)
ids = text.train_x[: BATCH * LENGTH].view(BATCH, LENGTH).clone()
targets = text.train_y[: BATCH * LENGTH].view(BATCH, LENGTH).clone()
torch.manual_seed(0)
model = SmallGPT(VOCABULARY, LENGTH, BLOCKS, WIDTH).to(device)
forward_flops = count_flops(lambda: model(ids))
head = 2 * BATCH * LENGTH * WIDTH * VOCABULARY
try:
    for convention in ("full square", "causal half"):
        parts = block_flops(BATCH, LENGTH, WIDTH, 4 * WIDTH, WIDTH, False, convention)
        mine, counted = BLOCKS * sum(parts.values()) + head, count_flops(lambda: model(ids), convention)
        attention = BLOCKS * (parts["scores"] + parts["values"]) / mine
        print(f"{convention}: yours {mine:,}, counted {counted:,}; attention is {attention:.0%} of it")
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% [markdown] name="step_flops_text"
# A training step does more. For each product of the forward pass, the backward pass needs the gradient of its input and the gradient of its weight. Each of these is a product, too: write down the shapes.
#
# **Predict.** FLOPs of a whole training step, in forward passes?

# %% name="step_flops_guess"
my_guess = None  # forward passes
### BEGIN GUESS
my_guess = 3
### END GUESS
step_guess = Prediction("FLOPs of a step", my_guess, "forward passes")

# %% name="step_flops"
optimizer = torch.optim.AdamW(model.parameters())


def step():
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


step_flops = count_flops(step)
step_guess.reveal(step_flops / forward_flops)
tokens = BATCH * LENGTH
in_products = sum(p.numel() for p in model.parameters()) - model.positions.weight.numel()
print(f"6 x parameters x tokens is {model_flops(in_products, tokens) / step_flops:.0%} of what was counted")

# %% [markdown] name="step_flops_explained"
# Three. The little extra comes from fused attention: it does not keep the scores, so its backward pass computes them once more (five products where the forward pass had two).
#
# From "three" comes the best-known formula of the trade. Each parameter takes part in one multiplication and one addition for each token, forward; three times that is **6·N·D**, for N parameters and D tokens. (Positions are only looked up, so they do not count. The embedding counts here because the output layer shares it.) It leaves attention out.
#
# **When is it off?** Attention adds 4·T·W FLOPs a token to a block's 24·W². So the question is how T compares with 6·W. Tensors on the `meta` device have shapes and no numbers, so counting costs nothing, whatever the size:


# %% name="six"
def share_of_6nd(width, length, layers=2):
    """Return counted FLOPs of forward and backward pass over 6·N·D, at the full square."""
    with torch.device("meta"):
        gpt = SmallGPT(VOCABULARY, length, layers, width, heads=max(4, width // 128))
        tokens = torch.zeros(1, length, dtype=torch.long)
    counted = count_flops(lambda: gpt(tokens).sum().backward())
    in_products = sum(p.numel() for p in gpt.parameters()) - gpt.positions.weight.numel()
    return counted / model_flops(in_products, length)


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
# With T below about half of W, 6·N·D is right within 10 %. At 8,192 tokens it is off even for the width of an 8B model; count, or add 12·T·W a token and layer for the full square.
#
# One prediction to keep until section 6.
#
# **Predict** a whole step of this GPT by the simplest law, its FLOPs over the peak. How many milliseconds?

# %% name="predict_guess"
my_guess = None  # milliseconds
### BEGIN GUESS
my_guess = 1e3 * step_flops / peak  # leaves out everything that is no product: too low
### END GUESS
simple_guess = Prediction("A training step", my_guess, "ms")

# %% [markdown] name="traced_text"
# ## 5 · Reading a trace
#
# Now look at one. PyTorch's **profiler** notes when each operation begins and ends. Its trace is a list of events in Chrome's format, which the page [ui.perfetto.dev](https://ui.perfetto.dev) draws. We read it ourselves.


# %% name="traced"
def traced(fn):
    """Run `fn` twice, the second time in the profiler, as "step"; return the events of the trace."""
    fn()
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
# `ts` is when an event begins and `dur` how long it lasts, both in microseconds. `aten::linear` calls `aten::addmm`, so the same microseconds stand in the trace twice, and adding up durations gives more than there is. What you want is the time that each spends **itself**: its duration less that of the events directly inside it.
#
# **Contract.** `self_times(events)` returns a dictionary: name → microseconds that events of this name spent themselves, all of them together.
#
# - Only complete events are spans: those with `event["ph"] == "X"`. Others mark moments and name threads, and may lack `ts` or `dur`. A trace may have no spans, or no events at all: the dictionary is empty.
# - A span is inside another if both are on the same thread, the same `(pid, tid)`, and one lies within the other. Events of the same name may be inside each other.
# - Events come in any order. Of two that begin together, the longer one is outside. No two events of a thread begin and end together.
# - One span may begin in the very nanosecond in which the one before it ends; it is beside it. Careful: the profiler counts whole nanoseconds, `ts` is large, and so `ts + dur` is rounded; it may come out a little later than the `ts` of the next event.
# - The events stay as they are.


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
# Now the step of the GPT. **Predict**: what share of the step does its longest operation take, by its own time, summed over all calls?

# %% name="longest_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 33  # products, forward and backward
### END GUESS
longest_guess = Prediction("Share of the longest operation", my_guess, "%")

# %% name="longest"
whole = next(e for e in events if e["name"] == "step" and e["cat"] == "user_annotation")
try:
    own = self_times(events)
    longest = sorted((name for name in own if name.startswith("aten::")), key=own.get, reverse=True)
    longest_guess.reveal(100 * own[longest[0]] / whole["dur"])
    for name in longest[:3]:
        print(f"{name:24} {own[name] / 1e3:8.2f} ms, {own[name] / whole['dur']:.0%} of the step")
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% [markdown] name="profile_text"
# `profile_step` adds up the same own times, by the **phase** of the step in which an operation ran (columns) and by its **kind** (rows).
#
# - *gap* is time in which no operation runs: Python and the dispatcher.
# - Recording an event takes time. So the step is also timed without the profiler, and what recording costs is taken off the parts.
# - *unexplained* is the difference between that step and the sum of the parts. It may be negative: the steps with the profiler and those without it are different runs.
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
    "A bar for each phase of the step, made of kinds of operation: products fill most of forward and backward.",
)

# %% [markdown] name="line_text"
# And the same trace as a time line. Each row is a level of nesting: what stands below was called by what stands above.


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
    colours = dict(zip(("forward", *PHASES.values()), COLOURS, strict=False))
    for (phase, depth), pieces in bars.items():
        axes.broken_barh(pieces, (depth - 0.45, 0.9), color=colours[phase], edgecolor="white", lw=0.3)
    for phase in dict.fromkeys(phase for phase, _ in bars):
        axes.plot([], [], "s", color=colours[phase], label=phase)
    deepest = max(depth for _, depth in bars)
    axes.set(title=title, xlabel="milliseconds, under the profiler", ylabel="level of nesting")
    axes.set(ylim=(deepest + 0.6, -0.6), yticks=range(deepest + 1))
    axes.legend(frameon=False, loc="lower right")
    return figure


PHASES = {"autograd::engine": "backward", "Optimizer.step": "optimizer"}
show(
    time_line(events, "One training step"),
    "Time line of a step: forward pass, then the backward pass, the longest part, then many small operations of the optimizer.",
)

# %% [markdown] name="predict_text"
# ## 6 · Predict a whole step
#
# Everything is there now. A step is a list of operations; each has its FLOPs, bytes and shape; the roofline gives seconds for each. Sum them, and compare the sum with the simplest model, which you used in section 4.


# %% name="predict"
def predicted_seconds(fn):
    """Return what the roofline says of all operations of `fn`, by kind; launches by themselves."""
    works, kinds = works_of(fn), Counter()
    for work in works:
        kinds[work.kind] += roofline.seconds(work)[0] - roofline.launch
    launches = len(works) * roofline.launch
    return kinds, launches


kinds, launches = predicted_seconds(step)
# A GPU works while the host launches, so the longer of the two counts; a CPU does both itself.
in_step = max(kinds.total(), launches) if device.type == "cuda" else kinds.total() + launches
timing = benchmark(step, runs=9)
simple_guess.reveal(1e3 * timing.median)
off = 100 * (in_step / timing.median - 1)
print(f"roofline, operation by operation: {1e3 * in_step:.1f} ms, {off:+.0f} %; the step: {timing}")
if max(timing.spread, roofline.spread) > 0.25:
    print("The runs lie so far apart, here or when the roofline was measured, that this machine is too busy to tell.")
claims.record("T29", "the roofline predicts a step within 25 %", "GPT, 4 blocks of width 128", off, "%", -25, 25)

# %% [markdown] name="residue_text"
# FLOPs over peak explains only a part of the step. The rest is what that law leaves out: products slower than the peak, everything memory-bound, and launches. And what the roofline still misses? Hold prediction and profile against each other, kind by kind:

# %% name="residue"
measured_kinds = profiled.by_kind()
table = [("kind", "predicted, ms", "measured, ms", "difference, ms")]
for kind in sorted({*kinds, *measured_kinds} - {"gap"}, key=lambda kind: -measured_kinds.get(kind, 0.0)):
    expected, found = 1e3 * kinds[kind], 1e3 * measured_kinds.get(kind, 0.0)
    table.append((kind, f"{expected:.2f}", f"{found:.2f}", f"{found - expected:+.2f}"))
gap = 1e3 * measured_kinds.get("gap", 0.0)
table.append(("launches / gaps", f"{1e3 * launches:.2f}", f"{gap:.2f}", f"{gap - 1e3 * launches:+.2f}"))
print(text_table(table))
worst = max(table[1:], key=lambda row: abs(float(row[3])))
print(f"\nmost of the rest: {worst[0]}")

# %% [markdown] name="residue_explained"
# So the residual can be located. Usual suspects: the dispatcher's part of a small operation is a *gap* in the profile, and belongs to the operation in the roofline; products of shapes between those that the roofline has measured; data that was still in the cache, because the operation before had just written it; and other programs on this machine, which no law knows about.
#
# ## 7 · MFU and HFU
#
# How well is a machine used? **Model FLOPs utilization** (MFU; Chowdhery et al. 2022) takes the FLOPs that the model *needs*, one forward and one backward pass, and divides by what the machine could have done in that time. **Hardware FLOPs utilization** (HFU) takes all that were *executed*. The two differ by what activation checkpointing recomputes ([[activation_checkpointing]]).
#
# The peak is usually the data sheet's; ours is the fastest product that we measured.
#
# **Predict.** Every block is checkpointed: the backward pass recomputes it from its input. HFU / MFU?

# %% name="utilization_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 4 / 3  # forward, once more forward, and a backward pass of two
### END GUESS
utilization_guess = Prediction("HFU / MFU with every block checkpointed", my_guess, "times")


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
used = {}
for name, flops in {"plain": step_flops, "checkpointed": executed}.items():
    again = flops - step_flops
    used[name] = mfu(flops, seconds[name], by_roofline, again), hfu(flops, seconds[name], by_roofline)
utilization_guess.reveal(used["checkpointed"][1] / used["checkpointed"][0])
for name, (model_share, hardware_share) in used.items():
    print(f"{name:13} {1e3 * seconds[name]:6.1f} ms a step, MFU {model_share:.0%}, HFU {hardware_share:.0%}")
print("plain -> checkpointed:", pace)
more = {what: used["checkpointed"][i] / used["plain"][i] for i, what in enumerate(("MFU", "HFU"))}
subject = "GPT, every block, checkpointed / plain"
claims.record("T29", "recomputation does not raise MFU", subject, more["MFU"], "times", 0, 1.02)
claims.record("T29", "recomputation raises HFU above MFU", "GPT, HFU / MFU", executed / step_flops, "times", 1.2, 1.4)
claims.figure("HFU, checkpointed / plain", subject, more["HFU"], "times")

# %% [markdown] name="utilization_explained"
# One more forward pass would make it 4/3. It is less for two reasons: the output layer is not checkpointed, and PyTorch stops recomputing a block as soon as it has the last tensor that the backward pass needs. So the last product of each block, one of its two largest, is not done again.
#
# Recomputation is work that the machine does and the model does not need. It adds to the numerator of HFU and to the seconds of both. So MFU falls by as much as the step gets slower, and HFU holds: the machine is busy, with the same thing twice. A recipe that boasts of its HFU may only be recomputing a lot.
#
# Use MFU to compare recipes for the same model, and HFU to ask whether kernels are slow. Before you compare with others, ask which FLOPs they count: the full square or the causal half, embeddings or none, 6·N·D or a count; and which peak they divide by (data sheets also print one with sparsity, which is twice as high).
#
# ## 8 · Timing without fooling yourself
#
# All of this rests on a clock. Here are ways of reading it wrong that say the opposite of the truth.
#
# ### The first call
#
# Two versions of a layer that multiplies by a table of cosines. One computes the part of the table that it needs in every call. The other computes a long table once and keeps it, as real models do. Which is faster?

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
    start = time.perf_counter()
    fn()
    synchronize(device)
    return time.perf_counter() - start


computed()  # it is not the first operation on this device; only `kept` has something left to do
naive = once(computed) / once(kept)
honest = compare(computed, kept)
print(f"one call each: the kept table takes {1 / naive:.1f} times as long")
print(f"after a warm-up, alternately: {honest}")
claims.figure("a single cold call", "kept table, naive / honest speed", naive / honest.speedup, "times")

# %% [markdown] name="drift_text"
# The first call maps memory, chooses kernels, fills caches, compiles. It is true, and it is not what you want to know. So warm up.
#
# ### The order
#
# Laptops get hot and slow down; on a shared machine the neighbour wakes up. We simulate such a machine: after each call it sleeps, a little longer each time. On it we time two products, of which the second does half the work. First all runs of one and then all of the other, then alternately.


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
print(f"one after the other: the smaller product is {blocks[0] / blocks[1]:.2f} times as fast")
if blocks[0] > blocks[1]:
    print("Here other programs outweighed the simulated drift: this machine is too busy to tell.")
print(f"alternately: {paired.speedup:.2f} times; by its FLOPs it should be 2")
subject = "drift simulated, smaller product"
claims.figure("timed one after the other", subject, blocks[0] / blocks[1], "times as fast")
claims.record("T29", "timing in pairs finds the faster", subject, paired.speedup, "times as fast", 1, math.inf)

# %% [markdown] name="drift_explained"
# One after the other, the product with *less* work pays for its late turn, and loses. In pairs both meet nearly the same machine. That is what `compare` does, and why it prints the middle half of the pairs: if 1 lies inside, you cannot tell. It takes the median, since a single bad moment pulls the mean up; the minimum is the machine at its quietest, which is fine for a law and too good for a plan.
#
# ### The queue
#
# On a GPU there is a third way. An operation returns as soon as it is *queued*; a clock that stops there has timed the queueing. `benchmark` and `compare` synchronise before they look at the clock. This cell does not:

# %% name="queue"
honest_product = benchmark(lambda: a @ b, runs=5).median
synchronize(device)
start = time.perf_counter()
a @ b
queued = time.perf_counter() - start
synchronize(device)
print(f"without waiting {1e3 * queued:.3f} ms, with {1e3 * honest_product:.3f} ms")
if device.type == "cpu":
    print("A CPU has no queue: when the operation returns, it is done.")
    claims.not_measured("T29", "a clock that does not wait sees the queueing only", "a product, needs a GPU")
else:
    said = "a clock that does not wait sees the queueing only"
    claims.record("T29", said, "a product, queued / done", queued / honest_product, "times", 0, 0.5)

# %% [markdown] name="clinic_text"
# ## 9 · The trace clinic
#
# Three evaluation loops. Each is slow, and nothing about them looks wrong at first sight. We have 2,000 small images, and a classifier.

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
    print(f"patient {name}: {benchmark(patient, runs=3, warmup=0)}, share right {patient():.3f}")

# %% [markdown] name="clinic_task"
# **Predict**, from the code alone, and write it down: what is wrong with A, with B and with C? Which of them would gain most if it were mended?
#
# ### Your turn
#
# Three signs tell their illnesses apart:
#
# - **items**: how often Python asks for the value of a tensor. `if`, `float()`, `print` and `.item()` all end in `aten::item`. On a GPU each one waits until everything queued before it is done, and while Python waits nothing new is queued. On a CPU there is nothing to wait for: each read costs only Python's overhead.
# - **copying**: the share of the step spent in `aten::copy_`, where data is moved or converted.
# - **idle**: the share in which nothing works. On a GPU: no kernel runs. On a CPU: no operation runs, only Python does.
#
# **Contract.** `signs(events)` returns a dictionary with these three, for the step in the trace.
#
# - The step is the event named `step` of the category (`event["cat"]`) `user_annotation`; a GPU's trace has another of that name. Shares are of its `dur`. Events outside it do not count, and no event straddles its boundaries. As before, only complete events (`ph` is `X`) are spans.
# - `items`: the number of events named `aten::item` on the step's thread. `copying`: the time of those named `aten::copy_` on that thread; they do not lie inside each other.
# - `idle`: if there are events of the category `kernel` inside the step, the share in which none of them runs, on whatever stream. Otherwise, the share in which no event runs on the step's thread whose name begins with `aten::`. Where several run at once, or inside each other, the moment counts once. If nothing runs, `idle` is 1.
# - The events stay as they are.
#
# `diagnose(signs)` takes that dictionary and returns a word, the first that is true: `"synchronises"` (more than 10 items), `"copies"` (copying above 0.3), `"tiny"` (idle above 0.3), `"healthy"`.


# %% name="clinic" answer=true reveal=true
def signs(events):
    ### BEGIN SOLUTION
    spans = [event for event in events if event["ph"] == "X"]
    step = next(e for e in spans if e["name"] == "step" and e.get("cat") == "user_annotation")
    end = step["ts"] + step["dur"]
    inside = [e for e in spans if step["ts"] <= e["ts"] < end]
    mine = [e for e in inside if (e["pid"], e["tid"]) == (step["pid"], step["tid"])]
    kernels = [e for e in inside if e.get("cat") == "kernel"]
    working = kernels or [e for e in mine if e["name"].startswith("aten::")]
    busy, reached = 0, -math.inf
    for event in sorted(working, key=lambda e: e["ts"]):
        until = event["ts"] + event["dur"]
        busy += max(0, until - max(event["ts"], reached))
        reached = max(reached, until)
    return {
        "items": sum(e["name"] == "aten::item" for e in mine),
        "copying": sum(e["dur"] for e in mine if e["name"] == "aten::copy_") / step["dur"],
        "idle": 1 - busy / step["dur"],
    }
    ### END SOLUTION


def diagnose(signs):
    ### BEGIN SOLUTION
    if signs["items"] > 10:
        return "synchronises"
    if signs["copying"] > 0.3:
        return "copies"
    return "tiny" if signs["idle"] > 0.3 else "healthy"
    ### END SOLUTION


# %% name="clinic_check"
signs, diagnose = check("where_the_time_goes.clinic", signs, diagnose)

# %% name="clinic_hint"
hint("where_the_time_goes.clinic")

# %% [markdown] name="ward_text"
# Now the real patients. Beside them for comparison a loop with nothing wrong: the large product.

# %% name="ward"
planted = {"A": "synchronises", "B": "copies", "C": "tiny", "a product": "healthy"}
charts["a product"] = traced(lambda: a @ b)
try:
    found = {}
    for name, chart in charts.items():
        seen = signs(chart)
        found[name] = diagnose(seen)
        print(
            f"{name:10} items {seen['items']:5}, copying {seen['copying']:4.0%}, idle {seen['idle']:4.0%}: {found[name]}"
        )
    agreed = sum(found[name] == illness for name, illness in planted.items())
    claims.record("T30", "three signs tell slow programs apart", "four programs, right diagnoses", agreed, "of 4", 4, 4)
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% name="ward_line"
show(
    time_line(charts["C"], "Patient C: the first three milliseconds of the step", until=3),
    "Time line of patient C: first one longer operation, which cuts a batch into images, then an even carpet of thin operations with gaps between them.",
)

# %% [markdown] name="cure_task"
# ### Your turn: cure patient A
#
# **Contract.** `accuracy(model, batches)` returns the share of samples for which the model's largest logit is at the label, as a Python number.
#
# - `batches` is a list of pairs (inputs (B, ...), labels (B,)), which may differ in size; `model(inputs)` returns logits (B, classes).
# - Each batch goes through the model once, as a whole.
# - Python asks for **one** value at most, after the last batch: no `.item()`, `if`, `float()`, `.tolist()` or `.cpu()` before. `.nonzero()` and a mask as an index count, too: the size of their result is a value.
# - Autograd records nothing, and is afterwards as it was. The model comes in evaluation mode; leave its mode alone, and the batches.


# %% name="cure" answer=true reveal=true
def accuracy(model, batches):
    ### BEGIN SOLUTION
    right = samples = 0
    with torch.no_grad():
        for inputs, labels in batches:
            right = right + (model(inputs).argmax(1) == labels).sum()  # stays a tensor: nobody waits for it
            samples += len(labels)
    return right.item() / samples
    ### END SOLUTION


# %% name="cure_check"
accuracy = check("where_the_time_goes.cure", accuracy)

# %% name="cure_hint"
hint("where_the_time_goes.cure")

# %% [markdown] name="cures_text"
# The same function cures patient C, whose batches were there all the time. Patient B needs another cure: pick the rows first, and convert what was picked.
#
# **Predict.** You know what share of its time patient B spends copying. How many times as fast will it be without?

# %% name="cures_guess"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 2  # with half its time in copies: 1 / (1 - 0.5)
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


try:
    cures = {"A": lambda: accuracy(net, loaded), "B": cured_b, "C": lambda: accuracy(net, loaded)}
    for name, cured in cures.items():
        gain = compare(patients[name], cured, runs=5, warmup=1)
        print(f"patient {name}: {gain}; the same share right: {math.isclose(patients[name](), cured())}")
        claims.record("T30", "the cure makes it faster", f"patient {name}", gain.speedup, "times", 1.5, math.inf)
        if name == "B":
            cure_guess.reveal(gain.speedup)
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% [markdown] name="cures_explained"
# On a CPU, patient A suffers from a round through Python for every sample. On a GPU the same line also stops the queue: each `if` is a copy to the host and a wait (PyTorch's *Performance Tuning Guide*), and nothing new is queued until Python has made up its mind. So in a GPU's trace of patient A look for `cudaStreamSynchronize` inside `aten::item`, and for wide gaps between kernels. (`torch.cuda.set_sync_debug_mode("warn")` points at such lines.) With patient B look for `Memcpy HtoD`, with patient C for gaps longer than the kernels.
#
# ## 10 · Play
#
# A linear layer in 16 bits on GPUs of the catalog, by their data sheets. Choose width, batch and GPU. When does a layer of width 1,024 become compute-bound on an H100, and when on a T4? What happens to a layer of width 64?


# %% name="play"
def layer_on(gpu, width, batch):
    sheet = find_gpu(gpu)
    flops, nbytes = 2 * batch * width**2, 2 * (width**2 + 2 * batch * width)
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    along = [2.0**k for k in range(-2, 14)]
    roof = [min(sheet.flops16, sheet.bandwidth * i) for i in along]
    axes.loglog(along, [r / 1e12 for r in roof], color=COLOURS[0], label="data sheet")
    reached = min(sheet.flops16, sheet.bandwidth * flops / nbytes)
    axes.loglog(flops / nbytes, reached / 1e12, "o", color=COLOURS[4], markersize=9, label="the layer, at most")
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
    batch=(64, (1, 16, 64, 256, 1024, 4096)),
)

# %% [markdown] name="play_explained"
# A narrow layer never gets there: with W small, inputs and outputs are most of its bytes, and its intensity cannot exceed W / 2, whatever the batch. That is why LoRA's thin matrices cost more time than their FLOPs say ([[lora]]).
#
# ## 11 · What was said, what was measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Seconds = max(FLOPs / peak, bytes / bandwidth) + launch. With the three figures measured, the roofline model predicts operations, layers and whole steps, with errors that the tables above state; a profile shows where they come from.
# - A layer turns from memory-bound to compute-bound at a batch that depends on the machine, not on the model. Below it, the rows of a batch share the bill for the weights.
# - A training step costs three forward passes, 6·N·D FLOPs and attention. State the convention.
# - MFU counts what the model needs, HFU what was executed. Recomputing keeps HFU up and lets MFU fall.
# - Warm up, wait for the queue, time in pairs, look at the spread.
#
# **What to reach for when.** GPU idle and many `aten::item`: keep values in tensors. Long copies: move less, later, in the background ([[data_loading]]). Idle and thousands of operations: larger batches, compile ([[compilation_and_fusion]]). No gaps and MFU low: look at what is memory-bound, fuse it, or use fewer bits ([[mixed_precision]]). No gaps and MFU high: buy more machines ([[data_parallel]]).
#
# **Sources.** Williams, Waterman and Patterson 2009, *Roofline*; Kaplan et al. 2020, *Scaling Laws for Neural Language Models* (6ND); Goto and van de Geijn 2008, *Anatomy of High-Performance Matrix Multiplication* (packing); Chowdhery et al. 2022, *PaLM* (MFU); Korthikanti et al. 2022, *Reducing Activation Recomputation* (HFU); PyTorch documentation, `torch.profiler` and *Performance Tuning Guide*; Perfetto documentation, *Trace Event Format*.
