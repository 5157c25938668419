# %% [markdown] name="title"
# # Compilation and fusion
#
# **Most operations in a network do little arithmetic on a lot of memory. Fusing them saves memory traffic, and often the memory itself.**
#
# | | |
# |---|---|
# | After this you can | count what a chain of operations reads and writes; compile it and say when that pays off; find and fix graph breaks; write a backend that counts graphs and their runs; find out why something is recompiled; say what compiling does to the peak; export a graph |
# | Time | 80 to 110 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU, with a C++ compiler for some cells; the same cells use a GPU if there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#activation_checkpointing]]; [[#gradient_accumulation]], [[#where_the_time_goes]] and [[#lean_optimizers]] help |
# | Syllabus | T16, T17 |

# %% name="setup" setup=true
import io
import logging
import math
import os
import tempfile
import time
import warnings

from helpers import (
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
    planned,
    saved_tensor_bytes,
    sign_of_life,
    traffic,
    why_no_compiler,
    written_kernels,
)
from helpers.core.device import synchronize

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

device, claims, missing = pick_device(), Claims(), why_no_compiler()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")
print("torch.compile makes kernels here:", f"no, {missing}; cells that need them will say so" if missing else "yes")

# %% [markdown] name="traffic_text"
# ## 1 · What eager mode moves
#
# In *eager mode* each operation reads its inputs from memory, computes, and writes a new tensor to memory. The next operation reads that tensor back.
#
# A *kernel* is the function that does an operation's work on the device. To *fuse* operations is to replace them with one kernel, which keeps intermediate results in registers.
#
# Below is GELU as its paper defines it (with the tanh approximation). An operation on two tensors reads 2n numbers and writes n (x + x reads x once). An operation on a tensor and a constant reads n and writes n.
#
# In units of n, how many numbers do the operations in the `return` line of `gelu` read and write in total? Count them before you run the next cell. A fused kernel would read x once and write the result once: 2n.


# %% name="gelu"
def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


# %% name="gelu_traffic"
x = torch.randn(numbers_beyond_cache(device), device=device)
eager_traffic = traffic(gelu, x)
print(eager_traffic.table(x.nbytes))
fewer_bytes = eager_traffic.nbytes / (2 * x.nbytes)

# %% [markdown] name="machine_text"
# `traffic` gets the sizes of the tensors from PyTorch's dispatcher, through which every operation passes. It does not know about caches. (On a CPU our tensors are 32 MiB. That is more than the caches of most laptops hold, but a large server's last-level cache can hold hundreds of MiB. On such a server, part of the traffic below goes to the cache, not to memory. On a GPU the tensors are at least eight times as large as its L2 cache, which then keeps almost nothing from one operation to the next.)
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
# If an operation does less arithmetic per byte than that, it waits for memory: it is **memory-bound**. Adding two tensors does one operation per 12 bytes. Apart from matmuls, most operations in a network are similar.
#
# One more cost has to be separated out before you time anything. The copy wrote to `target`, which already existed. `x + x` moves as many bytes as `torch.add` with `out=`, but allocates a new tensor:

# %% name="new_memory"
addition = compare(lambda: x + x, lambda: torch.add(x, x, out=target), runs=7)
print("x + x -> with out=   ", addition)
print(f"a copy of as many bytes takes {2 * x.nbytes / bandwidth * 1e3:.2f} ms")

# %% [markdown] name="new_memory_explained"
# - With a preallocated result, the time of the addition is much closer to that of moving its bytes.
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
# **Predict.** How long does the first call take for one line of Python? The cache of compiled kernels is empty, so the start is cold. Nothing above lets you calculate this, so guess the order of magnitude: 0.1, 1, 10 or 100 seconds.

# %% name="guess_cold"
my_guess = None  # seconds: 0.1, 1, 10 or 100
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
# The very first compilation also prepares the compiler itself: it precompiles headers and tests what the processor can do. (No cell times these steps separately.) A later graph costs far less: compare the time for SiLU. (A new process that finds the kernel on disk also has to import the compiler first. The figure in the line "first call with the kernel on disk" does not include that.) The results agree up to rounding, not bit for bit.
#
# The next cell prints the generated kernel. Count its memory reads and writes; the cell after that checks your count. Everything in between stays in registers.

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
print("a copy -> in place", compare(lambda: target.copy_(x), lambda: spare.mul_(1.0), runs=7))

# %% name="compiled_speed"
if missing:
    print(f"Compiled GELU is not timed: {missing}.")
else:
    compiled = compare(lambda: gelu(x), lambda: fused_gelu(x), runs=5)
    print("as usually written: eight operations -> torch.compile", compiled)
    repaid = cold / (compiled.before.median - compiled.after.median)
    print(f"the cold start is recouped after {repaid:,.0f} calls" if repaid > 0 else "the cold start is never recouped")
    print("with out=: F.gelu -> torch.compile", compare(one_there, lambda: fused_into(x, target), runs=5))
    subject = f"GELU, {x.numel() / 1e6:.0f} million numbers"
    claims.record("T17", "torch.compile makes it faster", subject, compiled.speedup, "times", 1.05, math.inf)

# %% [markdown] name="speed_explained"
# So eager mode has three costs:
#
# - **Bytes.** Fusing divides them by nine.
# - **Arithmetic.** Fusing removes none of it. Once most of the memory traffic is gone, the arithmetic remains, so the speedup is smaller than the reduction in bytes. (Compare the time of tanh alone with that of F.gelu: it accounts for only part of F.gelu's time. PyTorch may use another routine for tanh inside F.gelu; no cell shows what the rest consists of.)
# - **New memory.** Eager mode makes eight new tensors, the fused kernel one. On a CPU this raises the speedup for code as it is usually written. That part of the speedup is not saved traffic.
#
# The line "a copy -> in place" compares multiplying a tensor in place with copying it. Both read n numbers and write n, but the copy touches two tensors, the multiplication one.
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
# These are predictions from the roofline model, not measurements: each operation takes as long as its FLOPs or its bytes, whichever takes longer, and a compiled chain reads and writes once. Matmuls do nearly all the FLOPs of a step, but in eager mode they do not take most of its time: more than half of it is memory-bound (in parentheses), and fusion shortens that part. A GPU's ratio of FLOP/s to bandwidth (last column) says little about the gain: the H100's ratio is nearly twice that of the 4090, and yet the gain is about the same.

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
# - One graph: no tensor's value is read into Python, and nothing is printed.
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
# A graph is valid for the shapes it was recorded with, but the texts that a language model reads differ in length. How many graphs are made, and which of them does a call run? A backend of your own can record both.
#
# A backend is a function `backend(graph, inputs)`. It takes a graph (a `torch.fx.GraphModule`) and sample inputs, and returns a callable. From then on PyTorch calls this callable in place of the recorded operations.
#
# ### Your turn: a backend that counts
#
# **Contract.** `counting_backend(made, ran)` returns a backend. `made` and `ran` are lists, to which it appends.
#
# - When PyTorch passes a graph to the backend, append the number of operations in the graph to `made`: the number of nodes of `graph.graph.nodes` whose `op` starts with `call_`. (The other nodes are inputs and the output.)
# - Each time a graph runs, append its index in `made` to `ran`. A graph does not run when it is made.
# - A compiled function returns the same numbers and gradients as it does in eager mode.
# - One backend may serve several functions, each with several graphs.


# %% name="backend" answer=true reveal=true
def counting_backend(made, ran):
    ### BEGIN SOLUTION
    def backend(graph, inputs):
        number = len(made)
        made.append(sum(node.op.startswith("call_") for node in graph.graph.nodes))

        def run(*given):
            ran.append(number)
            return graph(*given)

        return run

    return backend
    ### END SOLUTION


# %% name="backend_check"
counting_backend = check("compilation_and_fusion.backend", counting_backend)

# %% name="backend_hint"
hint("compilation_and_fusion.backend")

# %% [markdown] name="guess_shapes_text"
# With `dynamic=False` each new length needs a new graph, and PyTorch makes at most `recompile_limit` = 8 graphs per function. **Predict.** You call the function with 11 lengths, then with the same 11 again. How many of the second 11 calls run compiled?

# %% name="guess_shapes"
my_guess = None  # calls
### BEGIN GUESS
my_guess = 0  # after the limit, it would seem, PyTorch gives up on the function
### END GUESS
shapes_guess = Prediction("Compiled calls among the second 11, dynamic=False", my_guess, "calls", difference=True)

# %% name="shapes"
lengths = (100, 101, 102, 150, 200, 250, 300, 350, 400, 450, 500)


def two_rounds(dynamic=None, mark=False):
    """Return how many graphs a round of all lengths makes, and the graphs that the calls of a second round run."""
    made, ran = [], []
    torch._dynamo.reset()
    counted = torch.compile(gelu, backend=counting_backend(made, ran), dynamic=dynamic)
    for _ in range(2):
        ran.clear()
        for length in lengths:
            rows = x[:length].clone()
            if mark:
                torch._dynamo.mark_dynamic(rows, 0)
            counted(rows)
    return len(made), ran


settings = {"dynamic=False": {"dynamic": False}, "default": {}, "mark_dynamic": {"mark": True}}
for name, setting in settings.items():
    graphs, ran = two_rounds(**setting)
    print(f"{name:14} graphs: {graphs}; in the second round {len(ran)} of 11 calls run a graph: {ran}")
    if name == "dynamic=False":
        shapes_guess.reveal(len(ran), "counted")
print(f"PyTorch's limit: {torch._dynamo.config.recompile_limit} graphs per function; SiLU's took {another:.1f} s above")

# %% [markdown] name="shapes_explained"
# - **`dynamic=False`** makes a graph per length, up to the limit. After that, PyTorch compiles no new graphs, but keeps those that it has: known lengths still run compiled, and new lengths run eagerly. The only sign is a warning in the log (muted here).
# - **The default** makes the length a variable when it sees a second length. That graph serves all other lengths and, in the second round, the first one as well.
# - **`mark_dynamic(tensor, dim)`** makes it a variable from the start, for this dimension only. (`dynamic=True` does so for all dimensions.)
#
# ### Why was it recompiled?
#
# A graph comes with **guards**: conditions that its inputs have to meet. When no graph's guards hold, the function is compiled again. `TORCH_LOGS="recompiles"` prints which guards failed. The next cell turns this log on from within Python. It calls the function, with PyTorch's default settings, on 100 numbers, on 101, on 500, on a single one, and on 100 in FP64.

# %% name="reasons"
torch._dynamo.reset()
torch._logging.set_logs(recompiles=True)
log, recompiles = io.StringIO(), logging.getLogger("torch._dynamo.guards.__recompiles")
recompiles.handlers = [logging.StreamHandler(log)]  # what PyTorch logs goes into `log` ...
recompiles.propagate = False  # ... and not to the terminal
watched = torch.compile(silu, backend="eager")
for given in (x[:100], x[:101], x[:500], x[:1], x[:100].double()):
    watched(given.clone())
torch._logging.set_logs()
recompiles.propagate = True
for line in log.getvalue().splitlines():
    if "triggered by" not in line:
        print(line.partition("  # ")[0].partition(" in ")[0])

# %% [markdown] name="reasons_explained"
# Each line `- 0/k` names a guard of graph *k* that failed. The second length made a graph with a variable length, which then served 500 as well. A length of **one** needs a graph of its own all the same: the compiler treats the sizes 0 and 1 as constants. A last batch of one row therefore triggers a recompilation. A different dtype always does. `TORCH_LOGS="graph_breaks"` prints the reasons for breaks in the same way.
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


x = target = spare = square = None  # frees their memory; to go back, rerun all cells from `eager_traffic` on
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
# Inductor recomputes pointwise results. It saves each matmul's *input* (for the gradient of its weight) and GELU's input (for GELU's derivative): 2 + 8 + 8 MiB. It could even recompute the input of `down` from that of GELU, which would save another 8 MiB. No cell shows why it does not. A likely reason is that a matmul reads its input from memory. If only the backend `aot_eager` can run, the figure is higher.
#
# (The two figures come from different sources. Autograd reports what it saves. The meter, with `by_category=False`, reads the allocator, which includes what compiled graphs allocate. To tell all categories apart, the meter has to see individual operations, so it would run compiled code uncompiled.)

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
# Take eight linear layers with P bytes of parameters in total, small activations, and gradients from an earlier micro-batch already in `.grad` ([[gradient_accumulation]]). In eager mode the second micro-batch peaks at 2.1 P.
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
    """Return the memory of a second micro-batch, and the bytes of the parameters."""
    fresh_compiler()
    layers = nn.Sequential(*(Layer() for _ in range(8))).to(device)
    rows = torch.randn(8, 512, device=device)
    call = torch.compile(layers, backend="aot_eager") if how == "as a whole" else layers
    for layer in layers if how == "layer by layer" else ():
        layer.compile(backend="aot_eager")

    def micro_batch():
        call(rows).square().mean().backward()

    micro_batch()
    with MemoryMeter(layers, by_category=False) as meter:
        micro_batch()
    return meter, sum(p.nbytes for p in layers.parameters())


# %% name="rise_measure"
peaks, over_time = {}, {}
for how in ("eager", "as a whole", "layer by layer"):
    over_time[how], size = accumulate(how)
    peaks[how] = over_time[how].peak_bytes / size
    print(f"{how:15}{peaks[how]:.2f} P, graphs: {graphs_made()}")
rise_guess.reveal(peaks["as a whole"])
less = peaks["eager"] / peaks["as a whole"]
claims.record("T17", "compiling lowers the peak", "8 layers, accumulating, whole", less, "times", 1.1, math.inf)

# %% [markdown] name="rise_explained"
# Compare the memory over time. In which of the three runs do new gradients (which the plot counts as temporaries) pile up?

# %% name="rise_picture"
if over_time["eager"].timeline:
    explore(
        lambda how: over_time[how].plot(f"Second micro-batch, {how}: peak {peaks[how]:.2f} P"),
        "Memory over time: compiled as a whole, temporaries rise layer by layer; otherwise the temporaries of only one layer exist at a time.",
        how=("as a whole", tuple(over_time)),
    )
else:
    print("On this device the meter reads only the peak, so it has no curve to show.")

# %% [markdown] name="rise_cause"
# The peak is higher by nearly a full P. For a 7B model in BF16, P is 14 GB. Eager mode makes the new gradients one by one, adds each to `.grad`, and frees it before it makes the next. To autograd, a compiled backward pass is *one* operation, which returns all gradients at once. The same happens to an optimizer step in the backward pass ([[lean_optimizers]]): with one compiled graph, all gradients exist before the first step. (No cell here measures that.)
#
# The remedy is to compile **block by block** (`block.compile()`): the gradients of a block are returned when the block is done. For identical blocks the compiler runs twice, however many there are (the first block's input needs no gradient). This measurement uses a backend that makes no kernels, so the rise comes from the graph.
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
# Where no graph is made, nothing is compiled, and PyTorch does not report it. TorchDynamo does not start a graph in a function that PyTorch itself defines, and after `.compile()` the first function it meets is the module's `forward`. So a module whose `forward` PyTorch wrote, such as a subclass of `nn.Sequential` without a `forward` of its own, gets no graph itself. Submodules that you wrote still get theirs. `torch.compile` puts a wrapper around the module, in which a graph can start.
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

# %% [markdown] name="guess_autocast_text"
# Checkpointing goes into the same graph: nothing breaks, and the compiled module saves as little as in eager mode.
#
# Next, a compiled tower is called under autocast, then without autocast, then under autocast again. The shapes stay the same.
#
# **Predict.** How many graphs does the compiler make?

# %% name="guess_autocast"
my_guess = None  # graphs
### BEGIN GUESS
my_guess = 1  # the code and the shapes are the same
### END GUESS
autocast_guess = Prediction("Graphs for autocast on, off, on", my_guess, "graphs", difference=True)

# %% name="under_autocast"
fresh_compiler()
tower = Tower(checkpointed=False).to(device)
call = torch.compile(tower, backend="aot_eager")
for on in (True, False, True):
    with torch.autocast(device.type, torch.bfloat16, enabled=on), torch.no_grad():
        call(data)
        dtype = tower.parts[0](data).dtype
    print(f"autocast {on!s:6} a part returns {dtype}; graphs so far: {graphs_made()}")
autocast_guess.reveal(graphs_made(), "counted")

# %% [markdown] name="together_explained"
# A graph is specialized on the state of autocast. Called without autocast, the module gets a second graph, and both stay valid. So evaluate under the autocast that you train under, which also gives the same rounding. Whether gradients are recorded is another such condition: evaluating under `no_grad` compiles a graph of its own in any case.
#
# ## 5 · TorchScript is history; `torch.export` ships a graph
#
# Articles from before 2023 recommend `torch.jit.script` for fusion. It compiles a subset of Python into its own language, needed rewrites for most real models, and is deprecated. Its job is now split: `torch.compile` for **speed** in Python, and `torch.export` for a **graph to ship** without Python. The next cell shows PyTorch's deprecation warning and what TorchScript gains for GELU here. On a CPU, PyTorch's builds leave out TorchScript's fuser, so only a GPU gets a verdict:

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

# %% [markdown] name="summary_text"
# ## 6 · Claims and measurements
#
# The columns on the right show what other machines recorded earlier (receipts, [[where_memory_goes]]). A dash means that the machine has no record of the claim.

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Pointwise operations do little arithmetic per byte. Fusing leaves only the first read and the last write: 18n became 2n.
# - The speedup is smaller than that. The arithmetic remains, and on a CPU new memory for each result can cost more than moving the bytes.
# - `torch.compile`: slow first call, fused kernels, fewer saved activations. Check for graph breaks (`fullgraph=True`) and recompilations before you trust a timing.
# - Past the recompile limit, known shapes still run compiled and new ones run eagerly. The default and `mark_dynamic` avoid the limit: one graph serves all lengths.
# - One compiled backward pass returns all gradients at once, so with accumulation the peak rises. Compile block by block.
# - `.compile()` makes no graph for a module whose `forward` PyTorch wrote, and does not report it; submodules that you wrote still get graphs. Count graphs.
# - Use `torch.compile` for speed and `torch.export` to ship a graph.
#
# | You see | Reach for |
# |---|---|
# | many pointwise operations, the same shapes for thousands of steps | `torch.compile`, block by block |
# | a short run, or shapes that keep changing | measure whether the cost of the first call is ever recouped |
# | short kernels on a fast GPU | CUDA graphs |
# | attention's scores or the logits at the peak | [[fused_kernels]] |
#
# **Sources.**
#
# - PyTorch documentation: `torch.compile` (programming model, custom backends, graph breaks, dynamic shapes), `torch.export`, `torch.jit`
# - Ansel et al. 2024, *PyTorch 2* (TorchDynamo and Inductor); Williams et al. 2009, *Roofline*
