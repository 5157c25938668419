# %% [markdown] name="title"
# # Compilation and fusion
#
# **Most operations in a network do little arithmetic on a lot of memory. Fusing them saves memory traffic, and often the memory itself.**
#
# | | |
# |---|---|
# | After this you can | count what a chain of operations reads and writes; compile it and say when that pays; find and fix graph breaks and recompilations; say what compiling does to the peak; read a Triton kernel, and write the core of one; write attention that never stores all its scores; compute a language model's loss without storing its logits |
# | Time | 150 to 215 minutes; a good place to stop is after section 5 |
# | Difficulty | ●●○ |
# | Needs | a CPU, with a C++ compiler for some cells; the same cells use a GPU if there is one. Triton is optional |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#activation_checkpointing]]; [[#gradient_accumulation]], [[#profiling_and_oom_clinic]] and [[#lean_optimizers]] help |
# | Syllabus | T16, T17, T31 |

# %% name="setup" setup=true
import importlib.util
import io
import logging
import math
import os
import tempfile
import time
import warnings

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
    find_gpu,
    hint,
    human_bytes,
    numbers_beyond_cache,
    pick_device,
    plan_deep,
    planned,
    saved_tensor_bytes,
    show,
    sign_of_life,
    traffic,
    why_no_compiler,
    with_vocabulary,
    written_kernels,
)
from helpers.core.device import synchronize
from helpers.planner.catalog import find_model

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint

device, claims, missing = pick_device(), Claims(), why_no_compiler()
HAS_TRITON = importlib.util.find_spec("triton") is not None
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")
print("torch.compile makes kernels here:", f"no, {missing}; cells that need them will say so" if missing else "yes")

# %% [markdown] name="traffic_text"
# ## 1 · What eager mode moves
#
# In *eager mode* each operation reads its inputs from memory, computes, and writes a new tensor to memory. The next operation reads that tensor back.
#
# A *kernel* is the function that does an operation's work on the device. To *fuse* operations is to replace them with one kernel, which keeps intermediate results in registers.
#
# Below is GELU as its paper writes it (with the tanh approximation). An operation on two tensors reads 2n numbers and writes n. An operation on a tensor and a constant reads n and writes n.
#
# In units of n, how many numbers do the operations of its `return` line read and write in total? Count them before you run the next cell. A fused kernel would read x once and write the result once: 2n.


# %% name="gelu"
def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


# %% name="gelu_traffic"
x = torch.randn(numbers_beyond_cache(device), device=device)
eager_traffic = traffic(gelu, x)
print(eager_traffic.table(x.nbytes))
fewer_bytes = eager_traffic.nbytes / (2 * x.nbytes)

# %% [markdown] name="machine_text"
# `traffic` gets the sizes of the tensors from PyTorch's dispatcher, through which every operation passes. It does not know about caches. (Our tensors are 32 MiB on a CPU. On a GPU they are at least eight times as large as its L2 cache, which then keeps almost nothing from one operation to the next.)
#
# How long should the traffic take? A machine has two limits: the bytes it moves per second, and the floating-point operations it does per second. Measure the first with a copy, the second with a matmul.

# %% name="machine"
side = 1024 if device.type == "cpu" else 2 ** (int(math.log2(x.numel())) // 2)  # a GPU needs more to be busy
target, square = torch.empty_like(x), torch.randn(side, side, device=device)
bandwidth = 2 * x.nbytes / benchmark(lambda: target.copy_(x)).median
flop_rate = 2 * side**3 / benchmark(lambda: square @ square).median
balance = flop_rate / bandwidth
print(f"a copy moves {bandwidth / 1e9:.1f} GB/s, a matmul does {flop_rate / 1e9:,.0f} GFLOP/s")
print(f"so while one byte moves, there is time for {balance:.1f} operations; for an FP32 number, {4 * balance:.0f}")

# %% [markdown] name="machine_explained"
# If an operation does less arithmetic per byte than there is time for, it waits for memory: it is **memory-bound**. Adding two tensors does one operation per 12 bytes. Most operations in a network other than matmuls are similar.
#
# One more cost has to be separated out before you time anything. The copy wrote to `target`, which already existed. `x + x` moves as many bytes as `torch.add` with `out=`, but allocates a new tensor:

# %% name="new_memory"
addition = compare(lambda: x + x, lambda: torch.add(x, x, out=target), runs=7)
print("x + x -> with out=   ", addition)
print(f"a copy of as many bytes takes {2 * x.nbytes / bandwidth * 1e3:.2f} ms")

# %% [markdown] name="new_memory_explained"
# - With a preallocated result, the addition takes about as long as moving its bytes.
# - On a CPU, a new tensor of this size is fresh memory from the operating system: its pages are mapped and cleared before the addition writes a number. (Small tensors reuse memory.)
# - PyTorch's GPU allocator caches memory ([[where_memory_goes]]), so there the two times should be close.
#
# A CPU timing may therefore mostly measure fresh pages. To measure traffic, we preallocate outputs.
#
# **Predict.** By what factor will a fused GELU be faster than the eight operations, if all outputs are preallocated?

# %% name="guess_speed"
my_guess = None  # times
### BEGIN GUESS
my_guess = 18 / 2  # if time follows bytes
### END GUESS
speed_guess = Prediction("Eight operations / F.gelu, time, with out=", my_guess, "times")

# %% [markdown] name="compile_text"
# ## 2 · torch.compile
#
# `torch.compile` has two halves. *TorchDynamo* follows the Python code as it runs and records its tensor operations as a **graph**. A *backend*, by default *Inductor*, turns the graph into
# kernels: C++ on a CPU, Triton on a GPU. This happens at the **first call**, and again for inputs that the graph does not fit.
#
# **Predict.** How long does the first call take for one line of Python? (The cache of compiled kernels is empty, so the start is cold.)

# %% name="guess_cold"
my_guess = None  # seconds
### BEGIN GUESS
my_guess = 10
### END GUESS
cold_guess = Prediction("First call, nothing compiled before", my_guess, "s")


# %% name="compile"
def seconds(fn):
    with sign_of_life("compiling"):
        synchronize(device)
        start = time.perf_counter()
        fn()
        synchronize(device)  # a GPU's kernels are only queued when the call returns
        return time.perf_counter() - start


def gelu_into(x, out):
    out.copy_(gelu(x))


def silu(x):
    return x * torch.sigmoid(x)


cache = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache.name  # an empty folder for compiled kernels
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compiling processes for so few kernels
backend = "aot_eager" if missing else "inductor"
fused_gelu = torch.compile(gelu, backend=backend)
cold = seconds(lambda: fused_gelu(x))
cold_guess.reveal(cold)
print(f"first call {cold:.2f} s, second call {seconds(lambda: fused_gelu(x)):.3f} s")
torch._dynamo.reset()  # drops what this process has compiled; the cache on disk stays
print(f"first call with the kernel on disk {seconds(lambda: fused_gelu(x)):.2f} s")
another = seconds(lambda: torch.compile(silu, backend=backend)(x))
print(f"first call of another function, SiLU: {another:.2f} s")
fused_into = torch.compile(gelu_into, backend=backend)  # for later
seconds(lambda: fused_into(x, target))
print(f"largest difference from eager: {(fused_gelu(x) - gelu(x)).abs().max().item():.1e}")
if missing:
    print(f"These times are for the backend 'aot_eager', which records graphs and makes no kernels: {missing}.")

# %% [markdown] name="kernel_text"
# The very first compilation also prepares the compiler itself: it precompiles headers and tests what the processor can do. A later graph costs far less: compare the time for SiLU. (A new process that finds the kernel on disk also has to import the compiler first. The figure in the line "first call with the kernel on disk" does not include that.) The results agree up to rounding, not bit for bit.
#
# The next cell prints the generated kernel. Count its reads and writes of memory; the cell after it does the same. Everything in between stays in registers.

# %% name="kernel"
if missing:
    print(f"No kernel to show: {missing}.")
else:
    (kernel,) = written_kernels(gelu, x)
    print(kernel)

# %% name="kernel_count"
if not missing:
    reads, writes = ((kernel.count(a), kernel.count(b)) for a, b in (("loadu(", "tl.load("), (".store(", "tl.store(")))
    print("reads:", sum(reads), "writes:", sum(writes))

# %% name="speed"
spare = torch.empty_like(x)


def eight_there():
    """The eight operations of `gelu(x)`, with two tensors for all results."""
    torch.mul(x, 0.5, out=target)
    torch.pow(x, 3, out=spare).mul_(0.044715)
    torch.add(x, spare, out=spare).mul_(0.7978845608).tanh_().add_(1)
    return torch.mul(target, spare, out=target)


def one_there():  # fused by hand in PyTorch
    return torch.ops.aten.gelu.out(x, approximate="tanh", out=target)


print("the same numbers:", torch.equal(eight_there(), gelu(x)))
there = compare(eight_there, one_there, runs=7)
speed_guess.reveal(there.speedup)
print(f"{fewer_bytes:.0f} times fewer bytes, {there.speedup:.1f} times as fast")

# %% name="three_costs"
new = compare(lambda: gelu(x), lambda: F.gelu(x, approximate="tanh"), runs=5)
tanh = benchmark(lambda: torch.tanh(x, out=spare)).median
print("with out=:      eight operations -> F.gelu", there)
print("as usually written: eight operations -> F.gelu", new)
for_new = new.before.median - there.before.median
print(f"of the {new.before.median * 1e3:.1f} ms of eager mode, new memory is {for_new * 1e3:.1f} ms")
print(f"of the {there.before.median * 1e3:.1f} ms without it, tanh alone is {tanh * 1e3:.1f} ms")
print(f"{eager_traffic.nbytes / 1e6:.0f} MB at the speed of the copy: {eager_traffic.nbytes / bandwidth * 1e3:.1f} ms")

# %% name="compiled_speed"
if missing:
    print(f"Compiled GELU is not timed: {missing}.")
else:
    compiled = compare(lambda: gelu(x), lambda: fused_gelu(x), runs=5)
    print("as usually written: eight operations -> torch.compile", compiled)
    repaid = cold / (compiled.before.median - compiled.after.median)
    print(f"the cold start pays off after {repaid:,.0f} calls" if repaid > 0 else "the cold start never pays off")
    print("with out=: F.gelu -> torch.compile", compare(one_there, lambda: fused_into(x, target), runs=5))
    subject = f"GELU, {x.numel() / 1e6:.0f} million numbers"
    claims.record("T17", "torch.compile makes it faster", subject, compiled.speedup, "times", 1.05, math.inf)

# %% [markdown] name="speed_explained"
# So eager mode has three costs:
#
# - **Bytes.** Fusing divides them by nine.
# - **Arithmetic.** tanh takes many instructions, and fusing removes none of them. Once the memory traffic is gone, the arithmetic remains, so the speedup is smaller than the reduction in bytes.
# - **New memory.** Eager mode makes eight new tensors, the fused kernel one. On a CPU this raises the speedup for code as it is usually written. It is not a saving in traffic.
#
# On the **roofline** ([[where_the_time_goes]]) fusion moves a kernel to the *right*: same operations, fewer bytes.

# %% [markdown] name="fusion_text"
# ### What fusion gains in a full step
#
# A training step is more than a chain of pointwise operations: nearly all of its FLOPs are in matmuls, which fusion does not change. The planner knows the roofline of several GPUs and can predict both steps, eager and compiled, for GPT-2 with 8 sequences of 1,024 tokens.
#
# **Predict.** By what factor is the compiled step faster on an H100?

# %% name="guess_fusion"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.3  # nearly all FLOPs are in matmuls
### END GUESS
fusion_guess = Prediction("GPT-2 on an H100, eager / compiled", my_guess, "times")

# %% name="fusion"
same_step = {"seq": 1024, "micro_batch_size": 8, "precision": "bf16-amp"}
plans = planned([Recipe("gpt2", **same_step), Recipe("gpt2", **same_step, compile=True)])
print(
    f"{'planned ms per step (bound by memory)':38}{'eager':>12}{'compiled':>14}{'times as fast':>16}{'FLOPs/byte':>12}"
)
for gpu in ("rtx-4090-24gb", "a100-80gb", "h100-80gb"):
    eager, after = (plan.forecasts[gpu] for plan in plans)
    shown = "".join(f"{1e3 * f.seconds:>8.0f} ({f.bounds['memory']:.0%})" for f in (eager, after))
    ratio = find_gpu(gpu).flops16 / find_gpu(gpu).bandwidth
    print(f"{gpu:37}{shown}{eager.seconds / after.seconds:>13.2f}{ratio:>13.0f}")
fusion_guess.reveal(eager.seconds / after.seconds, "planned")

# %% [markdown] name="fusion_explained"
# These are predictions by the roofline, not measurements: each operation takes as long as its FLOPs or its bytes, whichever takes longer, and a compiled chain reads and writes once. Matmuls do nearly all the FLOPs of a step, but in eager mode they do not take most of its time: more than half of it is memory-bound (in parentheses), and fusion shortens that part. A GPU's ratio of FLOP/s to bandwidth (last column) says little about the gain: the H100's ratio is nearly twice that of the 4090, and yet the gain is about the same.

# %% [markdown] name="breaks_text"
# ## 3 · Where a graph breaks
#
# TorchDynamo records operations on tensors. Where Python needs a *value* from a tensor, or does something that cannot be recorded, the graph ends, Python runs, and a new graph starts. Nothing fuses across such a **graph break**, and most breaks are silent.
#
# Into how many graphs does this function break?


# %% name="broken"
def normalize(x):
    y = x * 2
    if y.mean() > 0:
        y = y - 1
    print("shape", tuple(y.shape))
    return y / y.abs().max().item()


# %% name="explain"
torch._dynamo.reset()
sample = torch.linspace(-1, 2, 8, device=device)
explained = torch._dynamo.explain(normalize)(sample)
print(f"{explained.graph_count} graphs, because of")
for reason in explained.break_reasons:
    print(f"  {reason.user_stack[-1].line.strip()!r:45} {reason.reason.splitlines()[0]}")

# %% [markdown] name="fullgraph_text"
# The reasons are in the compiler's words: a jump (an `if`) that depends on a tensor; a call to a builtin function (`print`) that cannot be recorded; a Python number read from a tensor.
#
# `fullgraph=True` turns a silent break into an error. Use it on everything that you intend to compile. For a large program, set `TORCH_TRACE=FOLDER` and run the tool `tlparse` on that folder: it writes a page with every graph, break, guard and recompilation.

# %% name="fullgraph"
torch._dynamo.reset()
try:
    torch.compile(normalize, fullgraph=True, backend="eager")(sample)
except torch._dynamo.exc.Unsupported as error:
    print("\n".join(line.strip() for line in str(error).splitlines()[:2]))

# %% [markdown] name="repair_text"
# ### Your turn: one graph
#
# **Contract.** `repaired(x)` returns the same numbers as `normalize(x)` in one graph, for a tensor of any shape, contiguous or not.
#
# - The numbers are 2x, minus 1 if the mean of 2x is above 0, divided by the largest magnitude of the result.
# - One graph: no value leaves the tensors on the way, and nothing is printed.
# - `x` is not changed.


# %% name="repair" answer=true reveal=true
def repaired(x):
    ### BEGIN SOLUTION
    y = x * 2
    y = torch.where(y.mean() > 0, y - 1, y)
    return y / y.abs().max()
    ### END SOLUTION


# %% name="repair_check"
repaired = check("compilation_and_fusion.repair", repaired)

# %% name="repair_hint"
hint("compilation_and_fusion.repair")

# %% [markdown] name="shapes_text"
# The usual fix is to compute both branches and select. That costs a little arithmetic in a kernel that waits for memory anyway.
#
# ### Recompilations
#
# A graph is valid for the shapes it was recorded with, but texts differ in length. A backend is a function that takes a graph and returns a callable, so a backend of our own can count graphs and compiled calls.
#
# With `dynamic=False` each new length needs a new graph, and PyTorch stops after `recompile_limit` = 8 graphs per function. **Predict.** You call the function with 11 lengths, then with the same 11 again. How many of the second 11 calls run compiled?

# %% name="guess_shapes"
my_guess = None  # calls
### BEGIN GUESS
my_guess = 0  # after the limit, it would seem, PyTorch gives up on the function
### END GUESS
shapes_guess = Prediction("Compiled calls among the second 11, dynamic=False", my_guess, "calls", difference=True)

# %% name="shapes"
lengths = (100, 101, 102, 150, 200, 250, 300, 350, 400, 450, 500)


def two_rounds(dynamic=None, mark=False):
    """Return the graphs made in a round of all lengths, and how many calls of a second round run one of them."""
    made, ran = [], []

    def counting(graph, inputs):
        made.append(graph)
        return lambda *given: ran.append(1) or graph.forward(*given)

    torch._dynamo.reset()
    counted = torch.compile(gelu, backend=counting, dynamic=dynamic)
    for _ in range(2):
        ran.clear()
        for length in lengths:
            rows = x[:length].clone()
            if mark:
                torch._dynamo.mark_dynamic(rows, 0)
            counted(rows)
    return len(made), len(ran)


settings = {"dynamic=False": {"dynamic": False}, "default": {}, "mark_dynamic": {"mark": True}}
for name, setting in settings.items():
    graphs, compiled_calls = two_rounds(**setting)
    print(f"{name:14} graphs for 11 lengths: {graphs}; in the second round {compiled_calls} of 11 calls run compiled")
    if name == "dynamic=False":
        shapes_guess.reveal(compiled_calls, "counted")
print(f"PyTorch's limit: {torch._dynamo.config.recompile_limit} graphs per function; SiLU's took {another:.1f} s above")

# %% [markdown] name="shapes_explained"
# - **`dynamic=False`** makes a graph per length, up to the limit. After that, PyTorch compiles no new graphs, but keeps those that it has: known lengths still run compiled, and new lengths run eagerly. The only sign is a warning in the log (muted here).
# - **The default** makes the length a variable when it sees a second length, and that graph serves all others.
# - **`mark_dynamic(tensor, dim)`** makes it a variable from the start, for this dimension only. (`dynamic=True` does so for all dimensions.)
#
# ### Why was it recompiled?
#
# A graph comes with **guards**: conditions that its inputs have to meet. When no graph's guards hold, the function is compiled again. `TORCH_LOGS="recompiles"` prints which guards failed. The next cell turns this log on from within Python. It calls the function, with PyTorch's default settings, on 100 numbers, on 101, on 500, on a single one, and on 100 in FP64.

# %% name="reasons"
torch._dynamo.reset()
torch._logging.set_logs(recompiles=True)
log, recompiles = io.StringIO(), logging.getLogger("torch._dynamo.guards.__recompiles")
recompiles.handlers, recompiles.propagate = [logging.StreamHandler(log)], False  # into `log` instead of the terminal
watched = torch.compile(silu, backend="eager")
for given in (x[:100], x[:101], x[:500], x[:1], x[:100].double()):
    watched(given.clone())
torch._logging.set_logs()
recompiles.propagate = True
for line in log.getvalue().splitlines():
    if "triggered by" not in line:
        print(line.partition("  # ")[0].partition(" in ")[0])

# %% [markdown] name="reasons_explained"
# Each line `- 0/k` names a guard of graph *k* that failed. The second length made a graph with a variable length, which then served 500 as well. A length of **one** needs a graph of its own all the same: the compiler treats the sizes 0 and 1 as constants. A last batch of one row therefore recompiles. Another dtype always does. `TORCH_LOGS="graph_breaks"` prints the reasons for breaks in the same way.
#
# ## 4 · What compiling does to the peak
#
# Fused operations keep their intermediate results in registers. They do not write them to memory, and *do not save them for the backward pass*. The compiler sees the forward and the backward pass together and chooses what to save. It can recompute a pointwise result from a saved tensor inside a kernel that waits for memory anyway, so that costs almost nothing. This is checkpointing at the level of operations ([[selective_checkpointing]]).


# %% name="block"
class Block(nn.Module):
    """RMSNorm, two linear layers with GELU between them, and the residual; pointwise parts written out."""

    def __init__(self, width=128):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):  # (rows, width) -> (rows, width)
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + self.down(gelu(self.up(normed)))


x = target = spare = square = None  # frees their memory (to go back, run again from `eager_traffic` on)
torch._dynamo.reset()
torch.manual_seed(0)
block = Block().to(device)
data = torch.randn(4096, 128, device=device)  # 2 MiB
compiled_block = torch.compile(block, backend=backend)
at_hand = [data, *block.parameters()]
eager_kept = saved_tensor_bytes(lambda: block(data), besides=at_hand)
print(f"eager mode saves {human_bytes(eager_kept)} for the backward pass, {eager_kept / data.nbytes:.0f} times `data`")

# %% [markdown] name="kept_text"
# `data` is 2 MiB, so the output of `up` is 8 MiB. The next cell compares what eager mode and the compiled block save. (`data` and the weights are not counted: they exist anyway.)


# %% name="kept"
def step(model):
    model.zero_grad()
    model(data).square().mean().backward()


def peak_of(fn, model):
    with MemoryMeter(model, by_category=False) as meter:
        fn()
    return meter.peak_bytes


seen = {}
for name, model in {"eager": block, "compiled": compiled_block}.items():
    seconds(lambda model=model: step(model))  # compiles
    step(model)
    kept = saved_tensor_bytes(lambda model=model: model(data), besides=at_hand)
    seen[name] = {"kept": kept, "peak": peak_of(lambda model=model: step(model), block)}
for name, row in seen.items():
    print(f"{name:9} saved {human_bytes(row['kept'])}, peak of a step {human_bytes(row['peak'])}")

# %% [markdown] name="kept_explained"
# Inductor recomputes pointwise results. It saves each matmul's *input* (for the gradient of its weight) and GELU's input (for GELU's derivative): 2 + 8 + 8 MiB. It could even recompute the input of `down` from that of GELU, which would save another 8 MiB. It does not, because a matmul reads its input from memory. If only the backend `aot_eager` can run, the figure is higher.
#
# (The two figures come from different sources. Autograd reports what it saves. The meter, with `by_category=False`, reads the allocator's log, which includes what compiled graphs allocate. To count by category, the meter has to see single operations, so it would run compiled code uncompiled.)

# %% name="kept_claims"
less = seen["eager"]["peak"] / seen["compiled"]["peak"]
claims.record("T17", "compiling lowers the peak", f"norm and MLP, {backend}", less, "times", 1.1, math.inf)
if missing:
    print(f"The compiled step is not timed: {missing}.")
else:
    with sign_of_life("timing a step"):
        pace = compare(lambda: step(block), lambda: step(compiled_block), runs=7)
    print("a training step, eager -> compiled", pace)
    subject = f"step of norm and MLP, {len(data):,} rows"
    claims.record("T17", "torch.compile makes it faster", subject, pace.speedup, "times", 1.05, math.inf)

# %% [markdown] name="rise_text"
# ### The second micro-batch
#
# Take eight linear layers with P bytes of parameters in all, small activations, and gradients of an earlier micro-batch in `.grad` ([[gradient_accumulation]]). In eager mode the second micro-batch peaks at 2.1 P.
#
# **Predict** the peak when the eight layers are compiled together.

# %% name="guess_rise"
my_guess = None  # times P
### BEGIN GUESS
my_guess = 2.1  # as in eager mode
### END GUESS
rise_guess = Prediction("Peak of the second micro-batch, compiled as a whole", my_guess, "times P")


# %% name="rise"
class Layer(nn.Module):
    """A module of our own with one linear layer inside."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512, bias=False)

    def forward(self, x):
        return self.linear(x)


def fresh_compiler():
    """Drop what was compiled, and count from zero."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def graphs_made():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def accumulate(how):
    """Return the peak of a second micro-batch, in units of the parameters."""
    fresh_compiler()
    layers = nn.Sequential(*(Layer() for _ in range(8))).to(device)
    rows = torch.randn(8, 512, device=device)
    call = torch.compile(layers, backend="aot_eager") if how == "as a whole" else layers
    for layer in layers if how == "layer by layer" else ():
        layer.compile(backend="aot_eager")

    def micro_batch():
        call(rows).square().mean().backward()

    micro_batch()
    return peak_of(micro_batch, layers) / sum(p.nbytes for p in layers.parameters())


# %% name="rise_measure"
peaks = {}
for how in ("eager", "as a whole", "layer by layer"):
    peaks[how] = accumulate(how)
    print(f"{how:15}{peaks[how]:.2f} P, graphs: {graphs_made()}")
rise_guess.reveal(peaks["as a whole"])
less = peaks["eager"] / peaks["as a whole"]
claims.record("T17", "compiling lowers the peak", "8 layers, accumulating, whole", less, "times", 1.1, math.inf)

# %% [markdown] name="rise_explained"
# The peak is higher by nearly a full P. For a 7B model in BF16, P is 14 GB. Eager mode makes the new gradients one by one, adds each to `.grad`, and frees it before it makes the next. To autograd, a compiled backward pass is *one* operation, which returns all gradients at once. The same happens to an optimizer step in the backward pass ([[lean_optimizers]]): with one compiled graph, all gradients exist before the first step.
#
# The remedy is to compile **block by block** (`block.compile()`): the gradients of a block are returned when the block is done. For equal blocks the compiler runs twice, however many there are (the first block's input needs no gradient). This measurement uses a backend that makes no kernels, so the rise comes from the graph.
#
# Two more increases occur only on a GPU:
#
# - **CUDA graphs** (`mode="reduce-overhead"`) record a sequence of kernel launches and replay it with one call, always at the same addresses. Inputs are copied to fixed addresses, and memory that was allocated during recording stays reserved, for every recorded shape.
# - `mode="max-autotune"` tries several kernels at compile time, each with its own scratch memory.
#
# ### Two ways to ask for compilation
#
# `torch.compile(module)` returns a compiled wrapper, and `module.compile()` changes the module in place. **Predict.** For how many of these five does the compiler make a graph?
#
# 1. `torch.compile(nn.Linear(512, 8))`
# 2. `nn.Linear(512, 8).compile()`
# 3. `nn.Sequential(nn.Linear(512, 8), nn.GELU()).compile()`
# 4. `nn.TransformerEncoderLayer(512, 8).compile()`
# 5. `Layer().compile()`, the class above

# %% name="guess_modules"
my_guess = None  # of 5
### BEGIN GUESS
my_guess = 5
### END GUESS
modules_guess = Prediction("Modules that get a graph", my_guess, "of 5")


# %% name="modules"
def own_graphs(module):
    """Call `module`; return the number of graphs made for it."""
    fresh_compiler()
    module(torch.randn(4, 512, device=device))
    return graphs_made()


def in_place(module):
    module.to(device).compile(backend="eager")
    return module


made = {
    "torch.compile(nn.Linear)": own_graphs(torch.compile(nn.Linear(512, 8).to(device), backend="eager")),
    "nn.Linear.compile()": own_graphs(in_place(nn.Linear(512, 8))),
    "nn.Sequential.compile()": own_graphs(in_place(nn.Sequential(nn.Linear(512, 8), nn.GELU()))),
    "nn.TransformerEncoderLayer.compile()": own_graphs(in_place(nn.TransformerEncoderLayer(512, 8, batch_first=True))),
    "Layer.compile(), a class of our own": own_graphs(in_place(Layer())),
}
for name, count in made.items():
    print(f"{name:38}graphs: {count}")
modules_guess.reveal(sum(count > 0 for count in made.values()))

# %% [markdown] name="modules_explained"
# Where no graph is made, nothing is compiled, and PyTorch does not report it. TorchDynamo does not start a graph in a function that PyTorch itself defines, and after `.compile()` the first function it meets is the module's `forward`. A class of yours has its own `forward`. `torch.compile` puts a wrapper around the module, in which a graph can start.
#
# So compile **blocks that you wrote**, and count graphs before you trust a timing.
#
# ### Together with autocast and checkpointing
#
# Both change how a block runs without changing its code. Does the compiler handle them?


# %% name="together"
class Tower(nn.Module):
    """Four residual MLPs, each checkpointed or not."""

    def __init__(self, checkpointed):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4))
        self.checkpointed = checkpointed

    def forward(self, x):
        for part in self.parts:
            x = x + (checkpoint(part, x, use_reentrant=False) if self.checkpointed else part(x))
        return x


for checkpointed in (False, True):
    for compiled in (False, True):
        fresh_compiler()
        tower = Tower(checkpointed).to(device)
        call = torch.compile(tower, backend="aot_eager", fullgraph=True) if compiled else tower
        seconds(lambda call=call: call(data))  # compiles
        kept = saved_tensor_bytes(lambda call=call: call(data), besides=[data, *tower.parameters()])
        how = f"{'checkpointed' if checkpointed else 'plain':13}{'compiled' if compiled else 'eager':9}"
        print(f"{how} saved {human_bytes(kept):>10}, graphs: {graphs_made()}")

# %% name="under_autocast"
fresh_compiler()
tower = Tower(checkpointed=False).to(device)
call = torch.compile(tower, backend="aot_eager")
for on in (True, False, True):
    with torch.autocast(device.type, torch.bfloat16, enabled=on), torch.no_grad():
        call(data)
        dtype = tower.parts[0](data).dtype
    print(f"autocast {on!s:6} a part returns {dtype}; graphs so far: {graphs_made()}")

# %% [markdown] name="together_explained"
# - **Checkpointing** goes into the same graph: nothing breaks, and the compiled module saves as little as in eager mode.
# - The graph is specialized on the state of **autocast**. Called without autocast, the module gets a second graph, and both stay valid. So evaluate under the same autocast that you train under, or pay for one more compilation.
#
# ## 5 · TorchScript is history; `torch.export` ships a graph
#
# Articles from before 2023 recommend `torch.jit.script` for fusion. It compiles a subset of Python into its own language, needed rewrites for most real models, and is deprecated. Its job is now split: `torch.compile` for **speed** in Python, and `torch.export` for a **graph to ship** without Python. The next cell shows PyTorch's deprecation warning and what TorchScript gains for GELU here. On a CPU, PyTorch's builds leave its fuser out, so only a GPU gets a verdict:

# %% name="torchscript"
sample = torch.randn(2**21, device=device)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    scripted = torch.jit.script(gelu)
deprecations = [w for w in caught if issubclass(w.category, (DeprecationWarning, FutureWarning))]
for warning in deprecations:
    print(f"{warning.category.__name__}: {warning.message}")
pace = compare(lambda: gelu(sample), lambda: scripted(sample), runs=7, warmup=4)
print("eager -> TorchScript", pace)
said, subject = "TorchScript fuses, and is faster", f"GELU, {sample.numel() / 1e6:.0f} million numbers"
if device.type == "cuda":
    claims.record("T16", said, subject, pace.speedup, "times", 1.2, math.inf)
else:
    print("This build fuses TorchScript on a CPU:", torch._C._jit_can_fuse_on_cpu())
    claims.not_measured("T16", said, "GELU, needs a GPU")

# %% [markdown] name="export_text"
# `torch.export` refuses code that branches on a value, because the trace follows only one branch, and the graph has to be right for all inputs. Your `repaired` has no branch left. Here it is exported, saved, loaded, and run on a different length, which works because the length is declared a variable:


# %% name="export"
class Repaired(nn.Module):
    def forward(self, x):
        return repaired(x)


program = torch.export.export(Repaired(), (torch.randn(64),), dynamic_shapes=({0: torch.export.Dim("length")},))
file = io.BytesIO()
torch.export.save(program, file)
file.seek(0)
loaded, longer = torch.export.load(file).module(), torch.randn(1000)
print(f"{file.getbuffer().nbytes / 1024:.0f} KiB:", [n.name for n in program.graph.nodes if n.op == "call_function"])
for x_long in (longer, -longer):
    print("the same numbers on another length:", torch.equal(loaded(x_long), repaired(x_long)))

# %% [markdown] name="norm_text"
# ## 6 · A kernel by hand
#
# (Without Triton, do the norm and its timing, then go on to section 7.)
#
# Each half of a transformer block ends with a sum (the residual), and the next one starts with a norm. Together: `total = x + residual`, `out = total * rsqrt(mean(total²) + eps) * weight`. With n numbers in x, a fused kernel reads 2n and writes 2n. Eager mode reads and writes more (per-row scalars are negligible):


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

# %% [markdown] name="norm_speed_text"
# By bytes, the fused norm should be 10 / 4 = 2.5 times as fast, and here there is no tanh. The next cell times it on tensors of two sizes, 8 MiB and more, with preallocated results. (It takes the fastest of 15 runs, because other programs on the machine also use cache and memory bandwidth.)
#
# **Predict.** By what factor is the fused norm faster on tensors of 8 MiB?

# %% name="guess_norm"
my_guess = None  # times
### BEGIN GUESS
my_guess = 2.5  # by bytes
### END GUESS
norm_guess = Prediction("Residual and RMSNorm, 8 MiB per tensor, eager / compiled", my_guess, "times")


# %% name="norm_speed"
def norm_steps(x, residual, weight, total, out):
    torch.add(x, residual, out=total)
    torch.square(total, out=out)
    scale = out.mean(-1, keepdim=True).add_(1e-6).rsqrt_()
    torch.mul(total, scale, out=out)
    torch.mul(out, weight, out=out)


def norm_into(x, residual, weight, total, out):
    for place, result in zip((total, out), add_norm(x, residual, weight), strict=True):
        place.copy_(result)


if missing:
    print(f"The compiled norm is not timed: {missing}.")
else:
    fused_norm = torch.compile(norm_into, dynamic=True)
    for count in (4096, 2 * numbers_beyond_cache(device) // 512):
        given = [torch.randn(count, 512, device=device) for _ in range(4)]
        given.insert(2, weight)
        with sign_of_life("compiling and timing the norm"):
            pace = compare(lambda given=given: norm_steps(*given), lambda given=given: fused_norm(*given), runs=15)
        quickest = min(pace.before.runs), min(pace.after.runs)
        faster = quickest[0] / quickest[1]
        if count == 4096:
            norm_guess.reveal(faster)
        subject = f"residual and RMSNorm, {human_bytes(given[0].nbytes)} per tensor"
        print(f"{subject}: eager {quickest[0] * 1e3:.2f} ms -> compiled {quickest[1] * 1e3:.2f} ms: {faster:.2f}x")
    del given

# %% [markdown] name="norm_speed_explained"
# `traffic` counts bytes from the sizes of tensors, whether or not they are in a cache.
#
# - **Small tensors** stay in the processor's last-level cache (some tens of MiB). The next operation reads from the cache what the last one wrote. Fusion then saves traffic to the cache, which is faster than memory, so it gains less than the count of bytes promises.
# - **Tensors several times as large as the cache** do go to memory, so there the factor can come closer to 2.5. Compare the two factors above. If the second factor is also far below 2.5, traffic is not the only cost. (On a busy machine the factors say little: other programs use the cache and the memory, too.)
#
# So ask two questions before you expect a gain from fusion: is the chain memory-bound, and is the traffic really to memory, not to a cache?

# %% [markdown] name="triton_text"
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
    print("Triton is not installed, so this cell does nothing: pip install triton")

# %% [markdown] name="attention_text"
# ## 7 · Attention without its scores
#
# The scores of attention, T × T per head, are the largest tensor of a long sequence, and they are only an intermediate result: a softmax turns them into weights, and the result is the weighted mean of the values.
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
# - A score of -inf contributes nothing. In a row that has seen only such scores, `total` and `weighted` are 0 (and `largest` is -inf).
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
online_softmax = check("compilation_and_fusion.softmax", online_softmax)

# %% name="softmax_hint"
hint("compilation_and_fusion.softmax")

# %% [markdown] name="attention_task"
# ### Your turn: attention, tile by tile
#
# **Contract.** `tiled_attention(q, k, v, tile)` returns causal attention, softmax(q kᵀ / √d) v, in which row i attends to columns 0 to i.
#
# - `q`, `k`, `v` (B, H, T, d), FP32; the result has their shape. T need not be a multiple of `tile`, and may be smaller. The inputs are not changed; they may be transposed views, as heads usually are. There is no backward pass here.
# - Scores may be of any size and sign, as in `online_softmax`.
# - Each matmul makes at most `tile` × `tile` scores per head, and full tiles except at the edges.
# - Tiles above the diagonal, in which everything is masked, cost no matmul.
# - Besides inputs and result, at most six tiles of scores exist at a time.


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
tiled_attention = check("compilation_and_fusion.attention", tiled_attention)

# %% name="attention_hint"
hint("compilation_and_fusion.attention")

# %% [markdown] name="guess_tiles_text"
# Now measure the peak (without inputs and result) and the traffic for four heads, 1,024 tokens and tiles of 128. Compare your function with the plain version and with PyTorch's own (`F.scaled_dot_product_attention`).
#
# **Predict.** By what factor do the *operations* of the tiled loop read and write fewer bytes than those of the plain version? (The loop skips nearly half of the scores.)

# %% name="guess_tiles"
my_guess = None  # times fewer bytes
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
# - **The traffic does not fall.** The loop skips nearly half of the scores and still moves more bytes than the plain version. Its matmul writes a tile, the next operations read it one after the other, and each tile also rescales the two sums. In eager mode a tile goes to memory between two operations, as a full matrix does.
# - On a CPU this does not have to cost time: a tile fits into a cache, which `traffic` does not know about. Compare the milliseconds above.
# - PyTorch's own version moves q, k, v and the result, and nothing else that the dispatcher could see. It is **one kernel**: a tile stays in registers (on a CPU, in the cache) until the maximum and the two sums of its rows are updated. That is the idea of FlashAttention: your loop, fused. Inside, it reads keys and values once per row of tiles, which this count leaves out and the one below includes.
#
# The backward pass needs the weights again. FlashAttention does not save them. It saves one number per row, largest + log total, and recomputes each tile.
#
# ### Your turn: the same in Triton
#
# One program of the kernel below handles one row of tiles of one head. It loads the tiles; you write what it does with each. (Without Triton this cannot be
# checked: skip it, or `pip install triton`. On a CPU its interpreter runs the kernel.)
#
# **Contract.** `merge_tile(largest, total, weighted, scores, values)` merges one tile into the state and returns the new state, in this order.
#
# - `scores` (R, C) and `values` (C, d) are the tile; `largest` (R,), `total` (R,) and `weighted` (R, d) are defined as above, and start with -inf, 0 and 0.
# - All are FP32. Each row of scores has at least one finite score. Scores of several thousand must not produce an infinity or a NaN.
# - Use Triton's functions only: `tl.maximum`, `tl.max(x, axis)`, `tl.sum(x, axis)`, `tl.exp`, and `tl.dot(a, b, input_precision="ieee")`, which does not round to TF32.
# - R, C and d may differ. A factor per row needs `[:, None]`: Triton broadcasts from the right, as NumPy does, so in a square tile (R,) times (R, d) would multiply columns without an error.

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
merge_tile = check("compilation_and_fusion.merge", merge_tile)

# %% name="merge_hint"
hint("compilation_and_fusion.merge")

# %% [markdown] name="guess_kernel_text"
# The next cell has the kernel around it. Count `tl.load` and `tl.store`, and how often each runs. By what factor does this kernel read and write fewer bytes than the plain version, with eight rows of tiles?

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
print(f"counted from its loads and stores, {length:,} tokens, tiles of {tile}: {human_bytes(moved)}")
print(f"{costs['plain'][1] / moved:.1f} times fewer than the operations of the plain version")

# %% [markdown] name="logits_text"
# ## 8 · The fusion that saves the most
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
print(f"peak / a tensor of N x V: {plain_run[0].peak_bytes / (4 * N * V):.2f}")
print(plain_run[0])

# %% [markdown] name="chunked_text"
# The peak is in the backward pass of the log-softmax, with the three tensors of N × V that you know from patient B of [[profiling_and_oom_clinic]].
#
# Rows are independent, so take `chunk` rows at a time. That lab checkpointed each chunk, which is correct but computes every chunk's logits twice. This fusion computes them once, because the gradient of a row's loss is known **in the forward pass**:
#
# $$\frac{\partial\, \text{loss}}{\partial\, \text{logits}_{ij}} = \frac{\text{softmax}(\text{logits}_i)_j - [j = \text{label}_i]}{\text{rows that count}}$$
#
# While a chunk of logits exists, compute its loss, its gradient, and its contribution to the gradients of `hidden` and `weight`. Then free the chunk. The backward pass only multiplies by the gradient that it receives.
#
# ### Your turn: the loss
#
# **Contract.** `chunked_cross_entropy(hidden, weight, labels, chunk)` returns the mean loss, a tensor of shape () in FP32, ready for `backward()`.
#
# - `hidden` (N, D), `weight` (V, D), both FP32 or both in 16 bits, with logits of any size; `labels` (N,), integers; `chunk` need not divide N, and may be larger.
# - The mean is over rows whose label is not -100. If all labels are -100, the loss is 0 and gradients are zeros (`F.cross_entropy` returns NaN).
# - Loss and gradients are those of `F.cross_entropy(hidden @ weight.t(), labels)`, also when the loss is scaled, added to others, or computed under `no_grad`. A `weight` that requires no gradient gets none, and no matmul is done for it; under `no_grad`, none is done for `hidden` either.
# - At most `chunk` rows of logits exist at a time, in either pass, and each matmul is done once: the backward pass makes no logits.
# - At most three tensors of the size of a chunk's logits exist at a time (logits, softmax, one more). Free a chunk's tensors before you make the next chunk's logits. Take `chunk` rows at once, not fewer (except in the last chunk).
# - For 16-bit inputs, compute softmax, loss and sums over chunks in FP32, and divide last (small numbers underflow in FP16). Matmuls may be in 16 bits. Each gradient has the type of its tensor.
#
# Use `torch.autograd.Function`: `forward(ctx, ...)` computes and saves with `ctx.save_for_backward`; `backward(ctx, upstream)` returns a gradient for each argument of `apply`, or None. `ctx.needs_input_grad` says which inputs require one,
# even under `no_grad`, and inside `forward` gradients are always off. So call `torch.is_grad_enabled()` before `apply`, and pass the result in.


# %% name="chunked" answer=true reveal=true
class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, grad_enabled):
        ### BEGIN SOLUTION
        wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[:2]]
        inputs = zip((hidden, weight), wanted, strict=True)
        sums = [torch.zeros_like(t, dtype=torch.float32) if wants else None for t, wants in inputs]
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), chunk):
            rows, truth = hidden[start : start + chunk], labels[start : start + chunk]
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
        counts = (labels != -100).sum().clamp(min=1)  # stays a tensor, so nothing waits for the GPU
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(*sums, counts)
        return total / counts
        ### END SOLUTION

    @staticmethod
    def backward(ctx, upstream):
        ### BEGIN SOLUTION
        *sums, counts = ctx.saved_tensors
        return *(None if s is None else (s * (upstream / counts)).to(ctx.dtype) for s in sums), None, None, None
        ### END SOLUTION


def chunked_cross_entropy(hidden, weight, labels, chunk):
    ### BEGIN SOLUTION
    return ChunkedLoss.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())
    ### END SOLUTION


# %% name="chunked_check"
chunked_cross_entropy = check("compilation_and_fusion.chunked", chunked_cross_entropy)

# %% name="chunked_hint"
hint("compilation_and_fusion.chunked")


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
# PyTorch's own version uses the same idea. By default it may take far smaller chunks. With chunks of 128 it still holds less, because it works in place: one tensor of a chunk where the reference solution holds two (4 MiB). The rest of the difference to that solution matches the result of `gradient.t() @ rows`, a tensor of V × D (2 MiB) that exists until it is added.
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
# Smaller chunks lower the peak, but they also make each chunk's matmuls smaller, and a GPU needs large ones to be busy. Where does the peak stop falling, and which tensors hold it there?

# %% name="play"
by_chunk = {size: run(chunked_cross_entropy, size)[0] for size in (8, 32, 128, 512)}
for size, meter in by_chunk.items():
    print(f"chunks of {size:4}: peak {human_bytes(meter.peak_bytes)}, logits of a chunk {human_bytes(4 * size * V)}")
explore(
    lambda chunk: by_chunk[chunk].plot(f"chunks of {chunk}: peak {human_bytes(by_chunk[chunk].peak_bytes)}"),
    "Memory over time: one tooth per chunk; the teeth get smaller and more numerous as chunks shrink.",
    chunk=(512, tuple(by_chunk)),
)
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
# Without the logits the planned peak falls by a third, and the step fits a smaller GPU. (That is less than the three copies, so without them the peak must be at another moment of the step.) The logits also grow with the length of the sequences. That is why most fine-tuning libraries have or use such a kernel: `liger-kernel`, Unsloth, `cut-cross-entropy` (which does not store even a chunk of logits in memory), and, since 2.13, PyTorch itself.
#
# ## 9 · Claims and measurements

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Pointwise operations and norms do little arithmetic per byte. Fusing leaves only the first read and the last write: 18n became 2n, 10n became 4n.
# - The speedup is a different figure. The tanh remains, a cache may already have saved the traffic, and on a CPU new memory for each result can cost more than moving the bytes.
# - `torch.compile`: slow first call, fused kernels, fewer saved activations. Check for graph breaks (`fullgraph=True`) and recompilations before you trust a timing.
# - Past the recompile limit, known shapes still run compiled and new ones run eagerly. `mark_dynamic` avoids the limit.
# - One compiled backward pass returns all gradients at once, so with accumulation or a step in the backward pass the peak rises. Compile block by block.
# - `.compile()` on PyTorch's own modules does nothing, silently. Count graphs.
# - Use `torch.compile` for speed and `torch.export` to ship a graph.
# - Attention does not need to store T × T scores, only a maximum and two sums per row, which are rescaled when the maximum changes. Tiles lower the peak. The traffic falls only when one kernel keeps a tile in registers.
# - With a large vocabulary, compute the loss in chunks, and its gradient while the logits exist.
#
# | You see | Reach for |
# |---|---|
# | logits at the peak | chunked cross-entropy, before anything else |
# | many pointwise operations, the same shapes for thousands of steps | `torch.compile`, block by block |
# | a short run, or shapes that keep changing | measure whether the first call ever pays off |
# | short kernels on a fast GPU | CUDA graphs |
#
# **Sources.**
#
# - PyTorch documentation: `torch.compile` (programming model, graph breaks, dynamic shapes), `torch.export`, `torch.jit`
# - Ansel et al. 2024, *PyTorch 2* (TorchDynamo and Inductor); Tillet et al. 2019, *Triton*; Williams et al. 2009, *Roofline*
# - NVIDIA, *CUDA C++ Programming Guide* (warps, occupancy)
# - Milakov and Gimelshein 2018, *Online normalizer calculation for softmax*; Dao et al. 2022, *FlashAttention*
# - Hsu et al. 2024, *Liger Kernel*; Wijmans et al. 2024, *Cut Your Losses in Large-Vocabulary Language Models*
