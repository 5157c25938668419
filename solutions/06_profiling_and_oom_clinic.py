# %% [markdown] name="title"
# # Memory profiling and the OOM clinic
#
# **"CUDA out of memory" names a size but no culprit; four questions find one: at which moment, in which operation, whose bytes, and what to do about
# it.**
#
# | | |
# |---|---|
# | After this you can | say what each of PyTorch's memory functions counts; record, save and read a snapshot, and find a leak in it; tell allocated, reserved and fragmented memory apart; diagnose and cure five common illnesses |
# | Time | 120 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[where_memory_goes]] |
# | Syllabus | T14, T15 |

# %% name="setup" setup=true
import dataclasses
import itertools
import math
import os
import pickle
import tempfile
from pathlib import Path

from helpers import (
    COLOURS,
    CachingAllocator,
    Claims,
    MemoryMeter,
    OutOfMemory,
    Prediction,
    SmallGPT,
    check,
    compare,
    device_name,
    explore,
    explore_timelines,
    hint,
    human_bytes,
    peak_table,
    pick_device,
    segments_figure,
    show,
    sign_of_life,
    stage_table,
)

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.cuda._memory_viz import trace_plot
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="functions_text"
# ## 1 · What the functions count
#
# CUDA's allocator is a wholesaler.
#
# - It buys **segments** from the GPU, which is slow.
# - It cuts **blocks** from them for its customers, the tensors.
# - It keeps what is returned for the next customer.
#
# So there are several figures, and people quote all of them as "memory":
#
# | figure | function | what it counts |
# |---|---|---|
# | allocated | `torch.cuda.memory_allocated()` | blocks that tensors hold now |
# | peak allocated | `torch.cuda.max_memory_allocated()` | the most since `reset_peak_memory_stats()` |
# | reserved | `torch.cuda.memory_reserved()` | segments bought, in use or not |
# | peak reserved | `torch.cuda.max_memory_reserved()` | the most since then |
# | used | `nvidia-smi`, `torch.cuda.mem_get_info()` | reserved + CUDA context + everybody else on that GPU |
#
# Take two training steps of a small GPT, and measure them. The meter notes when each stretch of memory came and went.


# %% name="step"
def make_gpt(vocabulary=1000, layers=4, width=128):
    torch.manual_seed(0)
    return SmallGPT(vocabulary, 64, layers, width).to(device)


def train_step(model, optimizer, ids):
    optimizer.zero_grad()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()


model = make_gpt()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
ids = torch.randint(1000, (16, 65), device=device)
with sign_of_life("two training steps"), MemoryMeter(model, optimizer) as meter:
    for _ in range(2):
        train_step(model, optimizer, ids)
life = meter.lifetimes[-1]
print(f"{len(meter.lifetimes):,} lifetimes; the last: start {life.start}, end {life.end}, nbytes {life.nbytes}")

# %% [markdown] name="replay_task"
# ### Your turn: send the wholesaler its orders
#
# On a GPU you could ask the real one. To work anywhere, this lab has a **model of CUDA's allocator**, which the course's planner uses too: the same
# segment sizes, the same rules. Figures from it are labelled "model".
#
# **Contract.** `replay(lifetimes, allocator)` gives the allocator the orders that the log implies, and returns a list of what became of them.
#
# - Each of `lifetimes`, which come in any order, has a `start`, an `end` (both in ns) and `nbytes`. An `end` of None means that it was never freed.
# - `allocator.allocate(nbytes)` at the start returns a block, and `allocator.release(block)` at the end takes this very block back.
# - Orders are given in order of time. At the same moment, allocations come before releases.
# - After each order the list gets an entry: (time, `allocator.allocated`, `allocator.reserved`).
# - `lifetimes` stays as it is.


# %% name="replay" answer=true reveal=true
def replay(lifetimes, allocator):
    ### BEGIN SOLUTION
    orders = [(life.start, 0, i) for i, life in enumerate(lifetimes)]
    orders += [(life.end, 1, i) for i, life in enumerate(lifetimes) if life.end is not None]
    blocks, log = {}, []
    for when, ends, i in sorted(orders):
        if ends:
            allocator.release(blocks.pop(i))
        else:
            blocks[i] = allocator.allocate(lifetimes[i].nbytes)
        log.append((when, allocator.allocated, allocator.reserved))
    return log
    ### END SOLUTION


# %% name="replay_check"
replay = check("profiling_and_oom_clinic.replay", replay)

# %% name="replay_hint"
hint("profiling_and_oom_clinic.replay")

# %% [markdown] name="guess_after_text"
# **Predict.** After the second step all activations are gone. What is left of each figure, as a share of its own peak: of *allocated*, and of
# *reserved*?

# %% name="guess_after"
my_guess = None  # allocated at the end / peak allocated
### BEGIN GUESS
my_guess = 0.3  # weights, gradients and Adam's state stay
### END GUESS
allocated_guess = Prediction("Allocated after two steps / peak allocated", my_guess, "times")
my_guess = None  # reserved at the end / peak reserved
### BEGIN GUESS
my_guess = 0.3  # as if stock were returned
### END GUESS
reserved_guess = Prediction("Reserved after two steps / peak reserved", my_guess, "times")

# %% name="timeline"
allocator = CachingAllocator()
times, allocated, reserved = zip(*replay(meter.lifetimes, allocator), strict=True)
milliseconds = [max(0, when - meter.began) / 1e6 for when in times]  # weights are older than the log
figure = Figure(figsize=(8, 3.4), layout="constrained")
axes = figure.add_subplot()
for label, values, colour in (
    ("reserved", reserved, COLOURS[7]),
    ("peak allocated", list(itertools.accumulate(allocated, max)), COLOURS[4]),
    ("allocated", allocated, COLOURS[0]),
):
    axes.step(milliseconds, [v / MiB for v in values], where="post", color=colour, label=label)
axes.set(title="Two training steps: three figures (model)", xlabel="milliseconds", ylabel="MiB", ylim=(0, None))
axes.legend(frameon=False, loc="lower right")
show(figure, "Allocated rises and falls twice; peak allocated and reserved only rise.")
allocated_guess.reveal(allocated[-1] / allocator.peak_allocated)
reserved_guess.reveal(reserved[-1] / allocator.peak_reserved)
print(f"peak allocated {human_bytes(allocator.peak_allocated)}, peak reserved {human_bytes(allocator.peak_reserved)}")
if device.type == "cuda":
    print(torch.cuda.memory_summary(abbreviated=True))

# %% [markdown] name="timeline_explained"
# Only *allocated* falls. Reserved stays where the wholesaler's stock was at its largest. That is most of what `nvidia-smi` shows, and why it says
# nothing about how much your program needs *now*. Compare allocated with allocated, and say which peak you mean, and when you reset it.
#
# ## 2 · Stage by stage, operation by operation
#
# The meter divides the step into stages. This is the profile to print first, before any theory. *peak* is the highest moment of the stage; the other
# columns are what the stage **leaves** behind, by tenant. Below the table are the largest tensors at the peak:

# %% name="stages"
optimizer.zero_grad()
with MemoryMeter(model, optimizer) as meter:
    train_step(model, optimizer, ids)
print(stage_table(meter))
print(
    f"\npeak {human_bytes(meter.peak_bytes)} in {meter.peak_at}; the largest tensors alive then:\n{peak_table(meter)}"
)

# %% [markdown] name="snapshot_text"
# ## 3 · Snapshots
#
# A **snapshot** shows the same, block by block over time. Here is how the meter draws it:

# %% name="snapshot"
show(
    meter.plot_blocks("Snapshot of one step"),
    "Stacked blocks: activations pile up in the forward pass and are taken down in the backward pass.",
)

# %% [markdown] name="record_text"
# PyTorch's own tool writes a file, and the page [pytorch.org/memory_viz](https://pytorch.org/memory_viz) draws it: drag the file onto it. On a GPU
# three calls of `torch.cuda.memory` do it:
#
# - `_record_memory_history()` starts recording, with the lines of Python that ask for memory;
# - `_dump_snapshot(path)` saves what happened so far;
# - `_record_memory_history(enabled=None)` stops.
#
# The meter writes such a file on any device, with the operation and the module where CUDA's has lines of Python. (Instead of dragging a file, you can
# let PyTorch write the page with the file in it; it needs the network for the viewer's script.)
#
# The patient here is our training step with a small addition: somebody logs the logits of each row's last token.
#
# **Predict.** 16 rows, 1,000 words in the vocabulary, FP32. How many KiB stay behind with each step?

# %% name="guess_leak"
my_guess = None  # KiB a step
### BEGIN GUESS
my_guess = 16 * 1000 * 4 / 1024
### END GUESS
leak_guess = Prediction("Left behind by each step", my_guess, "KiB")


# %% name="record"
def logging_steps(model, optimizer, keep, steps=3):
    """Train as before, and log the logits of the last token."""
    history = []
    for _ in range(steps):
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(keep(logits))
        del logits
    return history


folder = Path(tempfile.mkdtemp())
with MemoryMeter(model, optimizer) as meter_log:
    history = logging_steps(model, optimizer, lambda logits: logits.detach()[:, -1])
meter_log.save_snapshot(folder / "meter.pickle")
if device.type == "cuda":
    torch.cuda.memory._record_memory_history()
    logging_steps(model, optimizer, lambda logits: logits.detach()[:, -1])
    torch.cuda.memory._dump_snapshot(str(folder / "pytorch.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
for path in sorted(folder.iterdir()):
    print(f"{path}: {human_bytes(path.stat().st_size)}, for pytorch.org/memory_viz")
snapshot = pickle.loads((folder / "meter.pickle").read_bytes())
(folder / "meter.html").write_text(trace_plot(snapshot))
print(f"{folder / 'meter.html'}: the same as a page, to open in a browser")
trace = snapshot["device_traces"][0]
print(f"{len(trace):,} events, such as {trace[-1]}")

# %% [markdown] name="snapshot_task"
# ### Your turn: who was never freed?
#
# The viewer shows a leak as a staircase of blocks that never come down. A file can be asked, too.
#
# **Contract.** `still_there(trace, since)` returns a dictionary: for each line that leaked, how many bytes.
#
# - `trace` is a list of events in order of time, dictionaries with `action`, `addr`, `size` (bytes), `time_us` and `frames`. It stays as it is.
# - `alloc` begins a block at an address, and `free_completed` ends it. Addresses are used again and again. A block that was allocated before the trace
#   began may end in it.
# - `free_requested` ends nothing yet, and other actions are about segments.
# - A block counts if it was allocated at `since` (microseconds) or later, and not freed by the end of the trace.
# - The line is the `name` of the first frame of the `alloc`. Blocks of the same line add up; lines with nothing left are not in the dictionary.


# %% name="still_there" answer=true reveal=true
def still_there(trace, since):
    ### BEGIN SOLUTION
    alive = {}  # address -> the event that allocated the block there
    for event in trace:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    left = {}
    for event in alive.values():
        if event["time_us"] >= since:
            name = event["frames"][0]["name"]
            left[name] = left.get(name, 0) + event["size"]
    return left
    ### END SOLUTION


# %% name="still_there_check"
still_there = check("profiling_and_oom_clinic.snapshot", still_there)

# %% name="still_there_hint"
hint("profiling_and_oom_clinic.snapshot")


# %% name="leak"
def left_behind(trace):
    """Return what leaked, line by line, crumbs left out. What is older than the trace appears to begin with it."""
    left = still_there(trace, since=trace[0]["time_us"] + 1)
    return {line: size for line, size in left.items() if size > 16 * 1024}


for name, size in left_behind(trace).items():
    print(f"{name:24} left {human_bytes(size)} behind in three steps")
leak_guess.reveal(max(left_behind(trace).values()) / 3 / 1024)
storage = human_bytes(history[0].untyped_storage().nbytes())
print(f"what was kept has the shape {tuple(history[0].shape)}; its storage has {storage}")

with MemoryMeter(model, optimizer) as meter_log:
    history = logging_steps(model, optimizer, lambda logits: logits.detach()[:, -1].clone())
meter_log.save_snapshot(folder / "cured.pickle")
cured = pickle.loads((folder / "cured.pickle").read_bytes())["device_traces"][0]
print("with a clone:", {name: human_bytes(size) for name, size in left_behind(cured).items()})
shrunk = max(left_behind(trace).values()) / max(left_behind(cured).values())
claims.record("T14", "a view keeps the whole tensor", "last token of 64, leak / with a clone", shrunk, "times", 32, 128)

# %% [markdown] name="leak_explained"
# `[:, -1]` makes a **view**: a small window on the logits, whose memory it keeps whole. `.detach()` lets go of the graph, not of the storage;
# `.clone()` copies what you want to keep. No error, no warning, and in the viewer one more step of the staircase with each batch.

# %% [markdown] name="cursor_text"
# ### Play: put the cursor on it
#
# The picture shows who is there, but not which operation is running at a given moment. In the next figure you move a cursor over two steps at once,
# and the titles name the operation and the module. There are three steps to choose from:
#
# - the plain one,
# - one with every block checkpointed ([[activation_checkpointing]]),
# - one with a quarter of the rows.
#
# **Predict.** With a quarter of the rows, what share of the plain step's peak is left?

# %% name="cursor_guess"
my_guess = None  # peak, a quarter of the rows / plain
### BEGIN GUESS
my_guess = 0.25
### END GUESS
quarter_guess = Prediction("Peak with a quarter of the rows / plain", my_guess, "times")


# %% name="cursor"
class Recomputed(nn.Module):
    """A block that keeps only its input."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def metered_step(rows, checkpointed=False):
    model = make_gpt()
    if checkpointed:
        model.blocks = nn.Sequential(*map(Recomputed, model.blocks))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    train_step(model, optimizer, rows)
    optimizer.zero_grad()
    with MemoryMeter(model, optimizer) as meter:
        train_step(model, optimizer, rows)
    return meter


with sign_of_life("six training steps"):
    steps = {
        "plain": metered_step(ids),
        "checkpointed": metered_step(ids, checkpointed=True),
        "a quarter of the rows": metered_step(ids[:4]),
    }
explore_timelines(steps)
for name, step in steps.items():
    print(f"{name:22} peak {human_bytes(step.peak_bytes):>9} in {step.peak_at}")
quarter_guess.reveal(steps["a quarter of the rows"].peak_bytes / steps["plain"].peak_bytes)

# %% [markdown] name="cursor_explained"
# Three questions to ask the figure; look before you unfold.
#
# 1. The cursor starts at the peak of the plain step. Which operation is it, and which tensors of the size of the logits does it need at once?
# 2. With every block checkpointed: is it still the same operation?
# 3. With a quarter of the rows: which tenants are smaller, and which are not?
#
# <details><summary>Answers</summary>
#
# 1. The backward pass of the loss. It needs four: the logits, their log-softmax, and the gradients of both, on top of all activations of the blocks.
# 2. Yes. Checkpointing removes the blocks' activations and leaves the logits: the same operation, on a lower mountain.
# 3. Everything that has rows (activations, logits) shrinks to a quarter. Weights, gradients and optimizer state stay as they were.
#
# </details>

# %% [markdown] name="cache_text"
# ## 4 · Does `empty_cache()` help?
#
# It is the first advice in every forum: `torch.cuda.empty_cache()` returns *unused* segments to the GPU.
#
# **Predict.** If you call it after every step, how much of the peak is left? And how many times as many segments are bought in three steps?

# %% name="cache_guess"
my_guess = None  # peak reserved, with empty_cache / without
### BEGIN GUESS
my_guess = 0.8
### END GUESS
peak_guess = Prediction("Peak reserved, with empty_cache / without", my_guess, "times")
my_guess = None  # segments bought, with empty_cache / without
### BEGIN GUESS
my_guess = 3  # all of them anew in each of three steps
### END GUESS
bought_guess = Prediction("Segments bought in three steps, with empty_cache / without", my_guess, "times")


# %% name="cache"
earlier = [life for life in meter.lifetimes if life.start < meter.began]  # parameters and Adam's state
during = [life for life in meter.lifetimes if life.start >= meter.began]
during = [dataclasses.replace(life, end=life.end or meter.ended) for life in during]  # the next step frees gradients


def three_steps(clear):
    """Replay three equal steps on the model of the allocator; return peak reserved and the segments bought."""
    allocator, bought = CachingAllocator(), 0
    replay(earlier, allocator)
    for _ in range(3):
        stock = [allocator.reserved] + [reserved for _, _, reserved in replay(during, allocator)]
        bought += sum(more > less for less, more in itertools.pairwise(stock))
        if clear:
            allocator.empty_cache()
    return allocator.peak_reserved, bought


peak, bought = three_steps(clear=False)
peak_cleared, bought_cleared = three_steps(clear=True)
peak_guess.reveal(peak_cleared / peak)
bought_guess.reveal(bought_cleared / bought)
subject = "three steps of a GPT, model of the allocator"
claims.record("T14", "empty_cache lowers the peak", subject, peak_cleared / peak, "times", 0, 0.95)

# %% [markdown] name="cache_explained"
# The peak is the same: the next step needs what the last one needed. But every segment must be requested from CUDA again, and that is slow.
# `empty_cache` is useful when *another* program needs the memory, or when another phase of your own program needs it in blocks of another size.
#
# ## 5 · Reserved, but not allocated
#
# > `CUDA out of memory. Tried to allocate 35.60 GiB. GPU 0 has a total capacity of 79.33 GiB of which 26.16 GiB is free. Process 76883 has 53.16 GiB memory in use. Of the allocated memory 11.97 GiB is allocated by PyTorch, and 40.69 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)`
#
# (A user's message, whole, from [a bug report](https://github.com/Tianhao-Qi/Mask2DiT/issues/4) of 2026.) Read the last number first. *Reserved but
# unallocated* is stock: 26 GiB free and 41 GiB in stock cannot serve 36. How can that be?
#
# **Predict** for two GPUs. (An order of 1 to 10 MiB buys a segment of 20 MiB; a larger order buys a segment of its own.)
#
# 1. It has 100 MiB. Allocate 5 MiB sixteen times, then free every second block. Now 40 MiB are held. Does a tensor of 24 MiB fit?
# 2. It has 512 MiB. Allocate 64 MiB six times, then free all of them. Nothing is held; 384 MiB are in stock, in six pieces. Do 400 MiB fit?

# %% name="fragmentation_guess"
my_guess = None  # 24 MiB beside 40 in 100: 1 or 0
### BEGIN GUESS
my_guess = 1  # 60 of 100 are not held
### END GUESS
holes_guess = Prediction("24 MiB fit beside 40 MiB in 100", my_guess, "(1: yes)")
my_guess = None  # 400 MiB in 512, of which 384 are in stock: 1 or 0
### BEGIN GUESS
my_guess = 0  # the stock has pieces of 64, and only 128 were never bought
### END GUESS
stock_guess = Prediction("400 MiB fit where 384 of 512 are in stock", my_guess, "(1: yes)")


# %% name="fragmentation"
def fits(allocator, nbytes):
    held, unused = (human_bytes(n) for n in (allocator.allocated, allocator.reserved - allocator.allocated))
    said = f"{held} allocated, {unused} reserved but unallocated; {human_bytes(nbytes)} more"
    try:
        allocator.allocate(nbytes)
        print(f"{said} fit (model)")
    except OutOfMemory as error:
        print(f"{said}: out of memory, {error} (model)")
        return 0.0
    return 1.0


def with_holes(expandable):
    """Return an allocator after sixteen orders and eight releases, and the blocks in use."""
    allocator = CachingAllocator(100 * MiB, expandable)
    blocks = [allocator.allocate(5 * MiB) for _ in range(16)]
    for block in blocks[1::2]:
        allocator.release(block)
    return allocator, blocks[::2]


in_stock = CachingAllocator(512 * MiB)
for block in [in_stock.allocate(64 * MiB) for _ in range(6)]:
    in_stock.release(block)
holes_guess.reveal(fits(with_holes(expandable=False)[0], 24 * MiB))
stock_guess.reveal(fits(in_stock, 400 * MiB))
print(f"emptied its cache and tried again: {in_stock.retries} time; now reserved: {human_bytes(in_stock.reserved)}")
print("The first one again, with expandable segments:")
for size in (24, 30):
    fits(with_holes(expandable=True)[0], size * MiB)

# %% name="fragmentation_figure"
ways = {"segments of 20 MiB": False, "expandable segments": True}
pools = {name: with_holes(expandable)[1] for name, expandable in ways.items()}
show(
    segments_figure(pools, capacity=100 * MiB, wanted=24 * MiB),
    "The first GPU, along its addresses: blocks of 5 MiB in use and gaps of 5 MiB take turns up to 80 MiB; the last "
    "20 MiB were never bought. The 24 MiB wanted are longer than any gap, and than what was never bought. An expandable "
    "segment may join its last gap to what was never bought: 25 MiB.",
)

# %% [markdown] name="fragmentation_explained"
# **The first GPU.** Each segment of 20 MiB still has a tenant, so none can be returned. No hole is large enough, and there is no room for a new segment
# of 24 MiB. This is **fragmentation**. It happens when sizes change from step to step (sequences of different lengths) and long-lived blocks sit between
# short-lived ones.
#
# **The second GPU.** Before the allocator gives up, it returns the segments that nobody uses to the GPU and tries again. The six were unused.
# `num_alloc_retries` in `torch.cuda.memory_stats()` counts that. A program that lives on the edge retries in every step: it does not fail, it is just
# slow. Look at this number when memory is nearly full.
#
# **Expandable segments** (`PYTORCH_ALLOC_CONF=expandable_segments:True`): there is *one* segment, which grows at its end by as much as is missing.
#
# - The last 5 MiB were free, so one more page of 20 MiB is enough for 24.
# - The holes in between are still holes, so 30 MiB do not fit. (Before it refuses, the model returns the free end, those 5 MiB: hence 75 reserved. CUDA
#   would return whole pages.)
# - But segments of one size are no longer useless for orders of another.
# - It costs one environment variable, which must be set before CUDA starts.
#
# The variable's name has changed:
#
# - up to PyTorch 2.8 it was `PYTORCH_CUDA_ALLOC_CONF`;
# - since 2.9 that name draws a warning, and the new one is `PYTORCH_ALLOC_CONF`;
# - 2.9.1 is [reported](https://github.com/pytorch/pytorch/issues/183387) to ignore the new name for this very option, and 2.11 to heed it.
#
# So do not trust a name: ask the allocator.

# %% name="allocator_settings"
for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
    print(f"{name}: {os.environ.get(name, 'not set')}")
if device.type == "cuda":
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    print("expandable segments, says the allocator:", settings["expandable_segments"])
else:
    print("expandable segments: nobody to ask, for only a CUDA GPU has this allocator")

# %% [markdown] name="real_text"
# Now the real thing. A GPU with an artificial limit retries, and then gives up:

# %% name="real_oom"
if device.type == "cuda":
    there = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 512 * MiB) / there))
    stock = [torch.empty(64 * MiB, dtype=torch.uint8, device=device) for _ in range(6)]
    del stock  # 384 MiB of segments, unused
    before = torch.cuda.memory_stats()["num_alloc_retries"]
    try:
        torch.empty(400 * MiB, dtype=torch.uint8, device=device)  # fits once the segments are returned
        print("retries:", torch.cuda.memory_stats()["num_alloc_retries"] - before)
        torch.empty(2048 * MiB, dtype=torch.uint8, device=device)  # four times the limit
    except torch.OutOfMemoryError as error:
        print(error)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
else:
    print("Only a CUDA GPU has this limit and counts its retries; the model above follows the same rules.")

# %% [markdown] name="varied_text"
# And lengths that change, with nothing long-lived in between: sixty steps, each with twelve activations in proportion to its length.
#
# **Predict.** Without the option, how many times as much is reserved as allocated, peak against peak?

# %% name="varied_guess"
my_guess = None  # peak reserved / peak allocated
### BEGIN GUESS
my_guess = 1.1
### END GUESS
varied_guess = Prediction("Lengths that change: peak reserved / peak allocated", my_guess, "times")


# %% name="varied"
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(40, 400, (60,), generator=generator).tolist()


def varied(expandable):
    allocator, saved = CachingAllocator(expandable=expandable), []
    for length in lengths:
        for layer in range(12):  # activations of one step, whose size depends on its length
            saved.append(allocator.allocate(length * (60_000 if layer % 3 else 15_000)))
        while saved:
            allocator.release(saved.pop())
    return allocator.peak_reserved / allocator.peak_allocated


fixed, grown = varied(expandable=False), varied(expandable=True)
varied_guess.reveal(fixed)
print(f"with expandable segments: {grown:.2f} (model)")
subject = "60 lengths, model of the allocator"
claims.record("T14", "expandable segments cure fragmentation", subject, grown / fixed, "x reserved", 0, 0.95)

# %% [markdown] name="play_text"
# ### Play
#
# Choose the size of a GPU, and replay the step of section 2 on the model. It opens where the step fails. Which size is just enough, and does the
# option change that?


# %% name="play"
def on_gpu(capacity_MiB, expandable_segments):
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    expandable = expandable_segments == "on"
    try:
        log = replay(meter.lifetimes, CachingAllocator(capacity_MiB * MiB, expandable))
        said = f"fits: peak reserved {max(reserved for *_, reserved in log) / MiB:.0f} MiB (model)"
    except OutOfMemory as error:
        log = replay(meter.lifetimes, CachingAllocator(expandable=expandable))
        said = f"out of memory: {error}\nWith more room it would look like this."
    times, allocated, reserved = zip(*log, strict=True)
    milliseconds = [max(0, when - meter.began) / 1e6 for when in times]
    for label, values, colour in (("reserved", reserved, "#DDDDDD"), ("allocated", allocated, COLOURS[0])):
        axes.fill_between(milliseconds, [v / MiB for v in values], step="post", color=colour, label=label)
    axes.legend(frameon=False, loc="lower right")
    axes.set_title(said, fontsize=9)
    axes.axhline(capacity_MiB, color="black", lw=1)
    axes.set(xlabel="milliseconds", ylabel="MiB", ylim=(0, 1.1 * max(capacity_MiB, *(v / MiB for v in reserved))))
    return figure


explore(
    on_gpu,
    "Allocated and reserved memory of one step, and the capacity of a GPU: a line, which reserved memory must not cross.",
    capacity_MiB=(60, (40, 56, 60, 62, 64, 72, 100)),
    expandable_segments=("off", ("off", "on")),
)

# %% name="play_answer"
print(f"the peak of what tensors hold: {meter.peak_bytes / MiB:.1f} MiB")
for expandable in (False, True):
    for capacity in range(meter.peak_bytes // MiB, 4 * meter.peak_bytes // MiB):
        try:
            replay(meter.lifetimes, CachingAllocator(capacity * MiB, expandable))
        except OutOfMemory:
            continue
        print(f"expandable segments {'on' if expandable else 'off'}: {capacity} MiB are just enough (model)")
        break

# %% [markdown] name="play_explained"
# More than the peak, either way. A segment comes whole, and a page of an expandable segment has 20 MiB: the last one is rarely full.

# %% [markdown] name="clinic_text"
# ## 6 · The clinic
#
# There are five patients. Run each one, **find the peak, find the operation, name the tenant**, then write the cure. The check runs your code under
# the meter: it must hold no more than healthy code, and **compute the same numbers**.
#
# ### Patient A: the list
#
# "It runs for an hour, then dies. Somebody added `retain_graph=True` because of an error message, and we log the losses."
#
# **Predict.** The patient trains on four batches. How many times as high is the peak as with one batch?

# %% name="patient_a_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 4  # four graphs instead of one
### END GUESS
steps_guess = Prediction("Peak of four steps / of one", my_guess, "times")


# %% name="patient_a"
def sick_train_and_log(model, optimizer, batches):
    history = []
    for ids in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)
    return history


batches = [torch.randint(256, (8, 65), device=device) for _ in range(4)]
patient = SmallGPT(context=64, layers=2, width=64).to(device)
optimizer = torch.optim.SGD(patient.parameters(), lr=0.1)
with MemoryMeter(patient, optimizer) as meter_first:
    sick_train_and_log(patient, optimizer, batches[:1])
with MemoryMeter(patient, optimizer) as meter_a:
    sick_train_and_log(patient, optimizer, batches)
steps_guess.reveal(meter_a.peak_bytes / meter_first.peak_bytes)
print(stage_table(meter_a))
show(
    meter_a.plot("Patient A"),
    "Activations rise in four steps like a staircase: nothing is freed until the function returns.",
)

# %% [markdown] name="task_a"
# A staircase: each step's activations stay. (Parameters and gradients do not multiply.) That takes two mistakes:
#
# - the list keeps every loss and, with it, the graph;
# - `retain_graph` keeps what the graph has saved.
#
# **Contract.** `train_and_log(model, optimizer, batches)` trains as above and returns the list of losses (as numbers or tensors). No graph outlives
# its step.


# %% name="history" answer=true reveal=true
def train_and_log(model, optimizer, batches):
    ### BEGIN SOLUTION
    history = []
    for ids in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        history.append(loss.detach())  # the number, not the graph behind it
        del loss
    return history
    ### END SOLUTION


# %% name="history_check"
train_and_log = check("profiling_and_oom_clinic.history", train_and_log)

# %% name="history_hint"
hint("profiling_and_oom_clinic.history")

# %% [markdown] name="patient_b_text"
# ### Patient B: the head
#
# "A small model, and it dies right after the loss. The vocabulary is rather large."
#
# **Predict.** How many tensors of rows × vocabulary are alive at the peak?


# %% name="patient_b_guess"
my_guess = None  # tensors of rows x vocabulary at the peak
### BEGIN GUESS
my_guess = 3  # the log-softmax, its gradient, and the gradient of the logits
### END GUESS
logits_guess = Prediction("Tensors of rows x vocabulary at the peak", my_guess, "tensors")


# %% name="patient_b"
def sick_head_loss(head, hidden, targets):
    logits = head(hidden).float()  # (rows, vocabulary)
    return F.cross_entropy(logits, targets)


torch.manual_seed(0)
head = nn.Linear(64, 4000, bias=False).to(device)
hidden = torch.randn(1024, 64, device=device, requires_grad=True)
targets = torch.randint(4000, (1024,), device=device)
with MemoryMeter(head) as meter_b:
    sick_head_loss(head, hidden, targets).backward()
alive = [life for life in meter_b.lifetimes if life.start <= meter_b.peak_time < (life.end or math.inf)]
as_large = sum(life.nbytes >= 1024 * 4000 * 4 for life in alive)  # CUDA's blocks may be a little larger
logits_guess.reveal(as_large)
print(peak_table(meter_b, rows=4))

# %% [markdown] name="task_b"
# (The logits themselves are not among them: by now no name refers to them, and the backward pass needs only their softmax.) Checkpointing the whole
# head would not lower the peak: its logits come back at this very moment ([[activation_checkpointing]]). Here is what does help: rows are
# independent, so go through them in chunks, and checkpoint each chunk.
#
# **Contract.** `head_loss(head, hidden, targets)` returns the mean cross-entropy over all rows, ready for `backward()`, which may start from a multiple of it.
#
# - `hidden` is (rows, width), `targets` (rows,); every row counts. Their number need not be a multiple of 128.
# - At most 128 rows of logits exist at a time, in the backward pass too.


# %% name="head" answer=true reveal=true
def head_loss(head, hidden, targets):
    ### BEGIN SOLUTION
    def chunk_loss(rows, labels):
        return F.cross_entropy(head(rows).float(), labels, reduction="sum")

    total = 0
    for rows, labels in zip(hidden.split(128), targets.split(128), strict=True):
        total = total + checkpoint(chunk_loss, rows, labels, use_reentrant=False)
    return total / len(targets)
    ### END SOLUTION


# %% name="head_check"
head_loss = check("profiling_and_oom_clinic.head", head_loss)

# %% name="head_hint"
hint("profiling_and_oom_clinic.head")

# %% [markdown] name="patient_c_text"
# ### Patient C: the evaluation
#
# "Training fits. It dies in the evaluation, which does not even have a backward pass!"
#
# **Predict.** Four batches are evaluated, one after the other. The activations of how many are held at the peak?


# %% name="patient_c_guess"
my_guess = None  # batches
### BEGIN GUESS
my_guess = 1  # the next batch replaces the last one
### END GUESS
held_guess = Prediction("Batches whose activations are held at the peak", my_guess, "batches")


# %% name="patient_c"
def sick_evaluate(model, batches):
    total = 0
    for ids in batches:
        total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return total / len(batches)


with MemoryMeter(patient) as meter_one:
    sick_evaluate(patient, batches[:1])
with MemoryMeter(patient) as meter_c:
    sick_evaluate(patient, batches)
held = meter_c.at_peak["activations"] / meter_one.at_peak["activations"]
held_guess.reveal(held)
print(f"peak {human_bytes(meter_c.peak_bytes)} in {meter_c.peak_at}")

# %% [markdown] name="task_c"
# Autograd records each forward pass in case somebody calls `backward()`, and `total` holds on to all the graphs.
#
# **Contract.** `evaluate(model, batches)` returns the mean of the batches' losses (a number or a tensor), with the same weight for each batch, and
# leaves the model, its gradients, its mode and autograd as it found them; whether you switch to `eval()` meanwhile is up to you.


# %% name="evaluation" answer=true reveal=true
def evaluate(model, batches):
    ### BEGIN SOLUTION
    total = 0.0
    with torch.no_grad():
        for ids in batches:
            total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
    return total / len(batches)
    ### END SOLUTION


# %% name="evaluation_check"
evaluate = check("profiling_and_oom_clinic.evaluation", evaluate)

# %% name="evaluation_hint"
hint("profiling_and_oom_clinic.evaluation")

# %% [markdown] name="inference_text"
# ### `no_grad` or `inference_mode`?
#
# The documentation calls `torch.inference_mode()` the "extreme" of the two. Tensors made under it are *never* part of a graph, so PyTorch skips two more kinds of bookkeeping: the **version counter**, which notices changes in place, and the list of **views**.
#
# **Predict.** The sick evaluation above, under each of them: which share of `no_grad`'s peak does `inference_mode` have? And how many times as fast is it
# at a thousand sums of *four numbers*, with two views each?

# %% name="inference_guess"
my_guess = None  # peak, inference_mode / no_grad
### BEGIN GUESS
my_guess = 0.9  # the accounts take memory, too
### END GUESS
inference_guess = Prediction("Peak, inference_mode / no_grad", my_guess, "times")
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 1.1  # two accounts fewer for each operation
### END GUESS
faster_guess = Prediction("Tiny operations, inference_mode against no_grad", my_guess, "times as fast")


# %% name="inference"
def evaluation(mode):
    with mode():
        return sick_evaluate(patient, batches)


def tiny(mode):
    with mode():
        x = torch.ones(4, device=device)
        for _ in range(1000):
            x = x.view(2, 2).view(4) + 1


def pace(work):
    return compare(lambda: work(torch.no_grad), lambda: work(torch.inference_mode), runs=20).speedup


peaks = {}
for mode in (torch.no_grad, torch.inference_mode):
    with MemoryMeter(patient) as meter_mode:
        evaluation(mode)
    peaks[mode] = meter_mode.peak_bytes
left = peaks[torch.inference_mode] / peaks[torch.no_grad]
inference_guess.reveal(left)
faster_guess.reveal(pace(tiny))
print(f"the evaluation: {pace(evaluation):.2f} times as fast")
claims.record("T15", "inference_mode takes less memory than no_grad", "an evaluation", left, "times", 0, 0.98)

# %% name="inference_price"
with torch.inference_mode():
    features = torch.ones(1, 64, device=device)
for use in (lambda: features._version, lambda: nn.Linear(64, 1).to(device)(features).sum().backward()):
    try:
        use()
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown] name="inference_explained"
# - **Memory**: the same. This bookkeeping holds no tensor data. Activations dominate, and `no_grad` has dropped them.
# - **Time**: it saves a moment for each operation and each view. That is a good part of operations as small as these, and next to nothing of
#   the evaluation.
# - **The price** is in the two messages. Without a version counter autograd cannot vouch for a tensor, so it refuses to save one, and features that were
#   computed under `inference_mode` cannot be fed to a layer that trains.
#
# In a training loop's evaluation, use either. If the results feed training, use `no_grad`.

# %% [markdown] name="patient_d_text"
# ### Patient D: dead on the first optimizer step
#
# "Forward and backward fit, I checked. Then `optimizer.step()` dies." Adam creates its state in the first step: two numbers for each parameter. And
# there is one more thing.
#
# **Predict.** How large are the temporaries at the peak, counted in copies of all the parameters?

# %% name="patient_d"
my_guess = None  # copies of the parameters
### BEGIN GUESS
my_guess = 0  # each parameter is updated in place
### END GUESS
torch.manual_seed(0)
tower = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
optimizer = torch.optim.Adam(tower.parameters(), foreach=True)
rows = torch.randn(4, 256, device=device)
with MemoryMeter(tower, optimizer) as meter_d:
    for _ in range(2):
        optimizer.zero_grad()
        tower(rows).square().mean().backward()
        optimizer.step()
copies = meter_d.at_peak["temporaries"] / sum(p.nbytes for p in tower.parameters())
Prediction("Temporaries at the peak", my_guess, "copies of the parameters").reveal(copies)
print(f"{stage_table(meter_d)}\n\npeak {human_bytes(meter_d.peak_bytes)} in {meter_d.peak_at}")

# %% [markdown] name="task_d"
# The state itself is needed. The temporaries are not: `foreach` runs each operation of Adam over *all* parameters before it goes on to the next, so
# what lies between two operations exists for all of them at once. It is the default on a GPU.
#
# **Contract.** `make_optimizer(parameters)` returns an optimizer with the same updates (up to rounding) as `torch.optim.Adam(parameters)`, whose step
# never holds temporaries for all parameters at once, on a GPU or a CPU.


# %% name="optimizer" answer=true reveal=true
def make_optimizer(parameters):
    ### BEGIN SOLUTION
    return torch.optim.Adam(parameters, fused=True)  # one kernel; the for-loop would do as well
    ### END SOLUTION


# %% name="optimizer_check"
make_optimizer = check("profiling_and_oom_clinic.optimizer", make_optimizer)

# %% name="optimizer_hint"
hint("profiling_and_oom_clinic.optimizer")

# %% [markdown] name="patient_e_text"
# ### Patient E: the hook
#
# "We only log the mean of every layer's output. No parameter needs a gradient, and nothing is trained."
#
# **Predict.** How many times as large as without the hooks are the temporaries at the peak?

# %% name="patient_e_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1  # a mean is a single number
### END GUESS
hook_guess = Prediction("Temporaries at the peak, with hooks / without", my_guess, "times")


# %% name="patient_e"
def sick_log_means(model, means):
    """After each forward pass `means[name]` holds the mean of the output of that leaf module."""
    outputs = {}

    def hook(name):
        def remember(module, inputs, output):
            outputs[name] = output
            means[name] = outputs[name].mean()

        return remember

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))


watched = SmallGPT(context=64, layers=2, width=64).to(device).requires_grad_(False)
with MemoryMeter(watched) as meter_bare:
    for batch in batches:
        watched(batch[:, :-1])
sick_log_means(watched, {})
with MemoryMeter(watched) as meter_e:
    for batch in batches:
        watched(batch[:, :-1])
temporaries = meter_e.at_peak["temporaries"]
hook_guess.reveal(temporaries / meter_bare.at_peak["temporaries"])
print(f"peak {human_bytes(meter_e.peak_bytes)} in {meter_e.peak_at}, of which temporaries {human_bytes(temporaries)}")

# %% [markdown] name="task_e"
# `outputs` keeps every layer's output until the next batch replaces it, one after the other. So all of them are there at once, as in training.
#
# **Contract.** `log_means(model, means)` puts hooks on all leaf modules of `model`. After a forward pass `means[name]` is the mean of that module's
# output (a number, or a tensor without a graph). No output may outlive its use, in training either.


# %% name="hook" answer=true reveal=true
def log_means(model, means):
    ### BEGIN SOLUTION
    def hook(name):
        def remember(module, inputs, output):
            means[name] = output.mean().item()  # a number holds on to nothing

        return remember

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))
    ### END SOLUTION


# %% name="hook_check"
log_means = check("profiling_and_oom_clinic.hook", log_means)

# %% name="hook_hint"
hint("profiling_and_oom_clinic.hook")

# %% [markdown] name="summary_text"
# ## 7 · The ward book
#
# | patient | where the peak was | tenant | what was wrong | remedy |
# |---|---|---|---|---|
# | A | last forward/backward, a staircase | activations | graphs kept by a list | `.detach()`, no `retain_graph` |
# | B | start of the backward pass | activations, temporaries | all logits at once | chunks, each checkpointed |
# | C | forward, without backward | activations | autograd recorded for nobody | `torch.no_grad()`, or `torch.inference_mode()` |
# | D | optimizer step | temporaries | `foreach` works on all parameters at once | `fused=True` or `foreach=False` |
# | E | forward | temporaries | a hook keeps outputs | keep the mean, not the output |
#
# Sick and cured, measured:


# %% name="summary"
def peak_of(model, optimizer, run):
    with MemoryMeter(model, optimizer) as meter:
        run()
    return meter.peak_bytes


sgd = torch.optim.SGD(patient.parameters(), lr=0.1)
adam = make_optimizer(tower.parameters())
observed = SmallGPT(context=64, layers=2, width=64).to(device).requires_grad_(False)
log_means(observed, {})


def two_steps():
    for _ in range(2):
        adam.zero_grad()
        tower(rows).square().mean().backward()
        adam.step()


def watch_all():
    for batch in batches:
        observed(batch[:, :-1])


cured = {
    "A": (meter_a, peak_of(patient, sgd, lambda: train_and_log(patient, sgd, batches))),
    "B": (meter_b, peak_of(head, None, lambda: head_loss(head, hidden, targets).backward())),
    "C": (meter_c, peak_of(patient, None, lambda: evaluate(patient, batches))),
    "D": (meter_d, peak_of(tower, adam, two_steps)),
    "E": (meter_e, peak_of(observed, None, watch_all)),
}
for name, (sick, healthy) in cured.items():
    print(f"patient {name}: {human_bytes(sick.peak_bytes):>10} -> {human_bytes(healthy):>10}")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Allocated, reserved, used: three figures for three questions. Reset peaks before you measure, and name the figure.
# - In an out-of-memory message, look at *reserved but unallocated* first. If it is large, memory is fragmented. If it is small, you need less memory,
#   not another allocator.
# - Moment, operation, tenant, remedy: the stage table gives the moment, `peak_at` the operation, `peak_table` the tenant.
# - A snapshot names what was never freed. A view keeps the whole tensor: clone what you keep.
# - `empty_cache` does not lower what the same step needs.
#
# **What to reach for when**
#
# - A staircase: something holds on to graphs, or to views.
# - A spike in the loss: the logits. A spike in the optimizer's step: its temporaries.
# - A mountain: labs [[#mixed_precision]], [[#gradient_accumulation]], [[#activation_checkpointing]].
#
# **Sources.** PyTorch documentation, *CUDA semantics: memory management* and *Understanding CUDA Memory Usage* (snapshots); PyTorch source,
# `c10/cuda/CUDACachingAllocator.cpp`; PyTorch FAQ, *My model reports "cuda runtime error(2): out of memory"*.
