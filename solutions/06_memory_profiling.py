# %% [markdown] name="title"
# # Memory profiling
#
# **"How much memory does my program use?" has several right answers, and each of PyTorch's memory functions gives a different one. A snapshot goes further: it shows when each block was allocated, where in the
# code, and whether it was ever freed.**
#
# | | |
# |---|---|
# | After this you can | say what each of PyTorch's memory functions counts; record, save and read a snapshot, and find a leak in it; tell allocated, reserved and fragmented memory apart; say when `empty_cache` and expandable segments help; write a caching allocator |
# | Time | 100 to 110 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[where_memory_goes]] |
# | Syllabus | T14 |
#
# The next lab, [[oom_clinic]], uses these tools on six programs that run out of memory.

# %% name="setup" setup=true
import dataclasses
import itertools
import os
import pickle
import tempfile
from pathlib import Path

from helpers import (
    COLORS,
    CachingAllocator,
    Claims,
    MemoryMeter,
    OutOfMemory,
    Prediction,
    PretendGPU,
    SmallGPT,
    check,
    device_name,
    explore,
    explore_timelines,
    hint,
    human_bytes,
    peak_table,
    pick_device,
    segments_figure,
    show,
    show_table,
    sign_of_life,
    stage_table,
)

# %% name="setup_torch" setup=true
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu

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
# PyTorch does not call `cudaMalloc` for every tensor, because that is slow. Its **caching allocator** requests large **segments** from CUDA and splits them
# into **blocks**, one for each tensor that is not a view of another. So "memory" can mean several figures:
#
# | figure | function | what it counts |
# |---|---|---|
# | allocated | `torch.cuda.memory_allocated()` | blocks that tensors hold now |
# | peak allocated | `torch.cuda.max_memory_allocated()` | the highest value since `reset_peak_memory_stats()` |
# | reserved | `torch.cuda.memory_reserved()` | segments that PyTorch has requested from CUDA |
# | peak reserved | `torch.cuda.max_memory_reserved()` | the highest value since `reset_peak_memory_stats()` |
# | used on the device | `nvidia-smi`; total − free from `torch.cuda.mem_get_info()`, which returns (free, total) | reserved, the CUDA context, memory that libraries request from CUDA directly, and all other processes on that GPU |
#
# Run two training steps of a small GPT. The meter records when each block of memory was allocated and freed: a **lifetime**.


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
two_steps_log = meter.lifetimes
life = meter.lifetimes[-1]
print(f"{len(meter.lifetimes):,} lifetimes; the last: start {life.start}, end {life.end}, nbytes {life.nbytes}")

# %% [markdown] name="replay_task"
# ### Your turn: replay the log through the allocator
#
# On a GPU, PyTorch's caching allocator reports these figures. This lab also includes a **model of that allocator**, with the same segment sizes and the same rules, so that you do not need a GPU. The
# course's planner uses the model, too. Figures from it are labeled "simulated" or "model".
#
# **Contract.** `replay(lifetimes, allocator)` makes the allocation and release calls that the log implies, and returns a list of what the allocator
# held after each call.
#
# - Each of `lifetimes` has a `start` and an `end` (both in ns) and `nbytes`. They come in any order. An `end` of None means that the block was never freed.
# - At the start, call `allocator.allocate(nbytes)`, which returns a block. At the end, call `allocator.release(block)` with that same block.
# - Make the calls in chronological order. Where an allocation and a release have the same time, the allocation comes first.
# - After each call, append (time, `allocator.allocated`, `allocator.reserved`) to the list.
# - Do not change `lifetimes`.


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
replay = check("memory_profiling.replay", replay)

# %% name="replay_hint"
hint("memory_profiling.replay")

# %% [markdown] name="guess_after_text"
# **Predict.** After the second step all activations have been freed. What fraction of *peak reserved* is still reserved?

# %% name="guess_after"
my_guess = None  # reserved at the end / peak reserved
### BEGIN GUESS
my_guess = 0.3  # as if freed memory went back to the GPU
### END GUESS
reserved_guess = Prediction("Reserved after two steps / peak reserved", my_guess, "times")

# %% name="timeline"
allocator = CachingAllocator()
times, allocated, reserved = zip(*replay(meter.lifetimes, allocator), strict=True)
milliseconds = [max(0, when - meter.began) / 1e6 for when in times]  # weights are older than the log
figure = Figure(figsize=(8, 3.4), layout="constrained")
axes = figure.add_subplot()
for label, values, color in (
    ("reserved", reserved, COLORS[7]),
    ("peak allocated", list(itertools.accumulate(allocated, max)), COLORS[4]),
    ("allocated", allocated, COLORS[0]),
):
    axes.step(milliseconds, [v / MiB for v in values], where="post", color=color, label=label)
axes.set(
    title="Two training steps: three measures of memory (simulated)",
    xlabel="milliseconds",
    ylabel="MiB",
    ylim=(0, None),
)
axes.legend(frameon=False, loc="lower right")
show(figure, "Allocated rises and falls twice; peak allocated and reserved only rise.")
reserved_guess.reveal(reserved[-1] / allocator.peak_reserved, "simulated")
print(f"allocated at the end / peak allocated: {allocated[-1] / allocator.peak_allocated:.2f} (simulated)")
print(f"peak allocated {human_bytes(allocator.peak_allocated)}, peak reserved {human_bytes(allocator.peak_reserved)}")
if device.type == "cuda":
    print(torch.cuda.memory_summary(abbreviated=True))

# %% [markdown] name="timeline_explained"
# Only *allocated* falls. The allocator keeps freed blocks for later requests, so *reserved* stays at its peak. Most of what `nvidia-smi` shows is reserved
# memory, so `nvidia-smi` cannot tell you how much your program needs *now*. When you compare two programs, compare the same figure, say which
# peak you mean, and say when you reset it.
#
# ## 2 · Stage by stage, operation by operation
#
# The meter divides the step into stages. When you diagnose a program, print this table first. *peak* is the highest value within the stage. The columns from *held after* on show what is still
# held when the stage **ends**, by category. Below the table are the largest tensors at the peak.

# %% name="stages"
optimizer.zero_grad()
with MemoryMeter(model, optimizer) as meter:
    train_step(model, optimizer, ids)
show_table(stage_table(meter))
print(f"peak {human_bytes(meter.peak_bytes)} in {meter.peak_at}; the largest tensors alive then:")
show_table(peak_table(meter))

# %% [markdown] name="snapshot_text"
# ## 3 · Snapshots
#
# A **snapshot** shows every block over time. Here is the meter's version:

# %% name="snapshot"
show(
    meter.plot_blocks("Snapshot of one step"),
    "Stacked blocks: activations pile up in the forward pass and are freed in the backward pass.",
)

# %% [markdown] name="record_text"
# PyTorch writes such a snapshot to a file, and [pytorch.org/memory_viz](https://pytorch.org/memory_viz) draws it when you drag the file onto the page. On a GPU
# you need three functions from `torch.cuda.memory`:
#
# - `_record_memory_history(stacks="python", max_entries=100_000)` starts recording. Each entry carries the call stack that requested the memory. The
#   default, `stacks="all"`, puts C++ frames before the Python frames. The backward pass runs in a C++ thread, so with `"python"` its blocks have no frames at all:
#   use `"all"` to look into a backward pass. Without `max_entries` the history grows without limit.
# - `_dump_snapshot(path)` saves the history and the current blocks.
# - `_record_memory_history(enabled=None)` stops recording.
#
# The most useful snapshot is one taken *at* the out-of-memory error. Turn recording on at the start, and call `_dump_snapshot` in the
# `except torch.OutOfMemoryError` block, while the failed step's tensors are still alive.
#
# The meter writes a file of the same format on any device. Its frames hold the operation and the module instead of lines of Python. (You can also let
# PyTorch write an HTML page that contains the file. The page loads the viewer's script from the network.)
#
# Here is our training step with a small addition: it keeps the logits of each row's last token for a log.
#
# **Predict.** There are 16 rows, the vocabulary has 1,000 tokens, and the logits are in FP32. How many KiB does each step leave behind?

# %% name="guess_leak"
my_guess = None  # KiB per step
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


def trace_of(path):
    return pickle.loads(path.read_bytes())["device_traces"][device.index or 0]


folder = Path(tempfile.mkdtemp())
with MemoryMeter(model, optimizer) as meter_log:
    history = logging_steps(model, optimizer, lambda logits: logits.detach()[:, -1])
meter_log.save_snapshot(folder / "meter.pickle")
trace = trace_of(folder / "meter.pickle")
if device.type == "cuda":
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
    history = logging_steps(model, optimizer, lambda logits: logits.detach()[:, -1])
    torch.cuda.memory._dump_snapshot(str(folder / "pytorch.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    trace = trace_of(folder / "pytorch.pickle") or trace  # the meter's, if the driver recorded nothing
for path in sorted(folder.iterdir()):
    print(f"{path}: {human_bytes(path.stat().st_size)}, for pytorch.org/memory_viz")
(folder / "meter.html").write_text(trace_plot(pickle.loads((folder / "meter.pickle").read_bytes())))
print(f"{folder / 'meter.html'}: the same snapshot as an HTML page; open it in a browser")
print(f"{len(trace):,} events, such as {trace[-1]}")

# %% [markdown] name="snapshot_task"
# ### Your turn: what was never freed?
#
# The viewer shows a leak as a staircase of blocks that are never freed. `still_there` finds the same blocks in the file. Here is one event of a CUDA snapshot, recorded with `stacks="all"` and shortened:
#
# ```python
# {"action": "alloc", "addr": 139908053925888, "size": 2359296, "stream": 0, "time_us": 1795314105123456, "frames": [
#     {"name": "torch::CapturedTraceback::gather(bool, bool, bool)", "filename": "??", "line": 0},
#     {"name": "at::empty_cuda(...)", "filename": "/pytorch/aten/src/ATen/cuda/EmptyTensor.cpp", "line": 111},
#     {"name": "forward", "filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "line": 134},
#     {"name": "forward", "filename": "/home/me/model.py", "line": 57},
#     {"name": "train_step", "filename": "/home/me/train.py", "line": 21}]}
# ```
#
# **Contract.** `still_there(trace, since)` returns a dictionary: for each place in the code, the bytes that it allocated and that were never freed.
#
# - `trace` is a list of such events in chronological order. Do not change it.
# - `alloc` starts a block at an address, and `free_completed` ends it. Addresses are reused. A block that was allocated before the trace
#   began may be freed within it.
# - `free_requested` does not free a block yet. Ignore all other actions (`segment_alloc`, `oom`, `snapshot`, ...); some of their events have no `addr`.
# - A block counts if it was allocated at `since` (microseconds) or later and not freed by the end of the trace.
# - The place is `"filename:line"` of the first frame of the `alloc` that is Python outside of PyTorch: its filename ends in `.py` and does not contain `/torch/`.
#   Above, that is `"/home/me/model.py:57"`. If an `alloc` has no such frame, as in the meter's files, the place is the `name` of its first frame. If it has no
#   frames at all, the place is `"no frames"`.
# - Bytes from the same place are added up. A place with nothing left is not in the dictionary.


# %% name="still_there" answer=true reveal=true
def still_there(trace, since):
    ### BEGIN SOLUTION
    def place(frames):
        for frame in frames:
            if frame["filename"].endswith(".py") and "/torch/" not in frame["filename"]:
                return f"{frame['filename']}:{frame['line']}"
        return frames[0]["name"] if frames else "no frames"

    alive = {}  # address -> the event that allocated the block there
    for event in trace:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    left = {}
    for event in alive.values():
        if event["time_us"] >= since:
            where = place(event["frames"])
            left[where] = left.get(where, 0) + event["size"]
    return left
    ### END SOLUTION


# %% name="still_there_check"
still_there = check("memory_profiling.snapshot", still_there)

# %% name="still_there_hint"
hint("memory_profiling.snapshot")


# %% name="leak"
def left_behind(trace):
    """Return what leaked by place in the code, small entries omitted.

    Blocks older than the trace appear at the time of its first event.
    """
    left = still_there(trace, since=trace[0]["time_us"] + 1)
    return {place: size for place, size in left.items() if size > 16 * 1024}


for place, size in left_behind(trace).items():
    print(f"{place:24} left {human_bytes(size)} behind in three steps")
with MemoryMeter(model, optimizer) as meter_log:
    kept = logging_steps(model, optimizer, lambda logits: logits.detach()[:, -1].clone())
meter_log.save_snapshot(folder / "cured.pickle")
leaked, cured = (sum(left_behind(trace_of(folder / f"{name}.pickle")).values()) for name in ("meter", "cured"))
leak_guess.reveal(leaked / 3 / 1024)
storage = human_bytes(history[0].untyped_storage().nbytes())
print(f"what was kept has the shape {tuple(history[0].shape)}; its storage is {storage}")
print(f"with a clone: {human_bytes(kept[0].untyped_storage().nbytes())} each, {human_bytes(cured)} in three steps")
subject = "last token of 64, leak / with a clone"
claims.record("T14", "a view keeps the whole tensor", subject, leaked / cured, "times", 32, 128)

# %% [markdown] name="leak_explained"
# `[:, -1]` returns a **view**, which shares the storage of the full logits. `.detach()` drops the graph but not the storage. `.clone()` copies the part
# that you want to keep, so the rest can be freed. The leak raises no error and no warning.

# %% [markdown] name="cursor_text"
# ### Explore: which operation is running?
#
# The snapshot shows which blocks are alive, but not which operation is running at a given moment. In the next figure you move a cursor over two steps at once,
# and the titles name the operation and the module. Choose among three steps:
#
# - the plain step,
# - one with every block checkpointed ([[activation_checkpointing]]),
# - one with a quarter of the rows.
#
# **Predict.** What fraction of the plain step's peak is left with a quarter of the rows?

# %% name="cursor_guess"
my_guess = None  # peak, a quarter of the rows / plain
### BEGIN GUESS
my_guess = 0.25
### END GUESS
quarter_guess = Prediction("Peak with a quarter of the rows / plain", my_guess, "times")


# %% name="cursor"
class Recomputed(nn.Module):
    """A block that saves only its input."""

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
# Answer three questions from the figure before you unfold the answers.
#
# 1. The cursor starts at the peak of the plain step. Which operation is running, and which logits-sized tensors are alive?
# 2. With every block checkpointed, is the peak in the same operation?
# 3. With a quarter of the rows, which categories shrink, and which do not?
#
# <details><summary>Answers</summary>
#
# 1. The backward pass of the loss. Four such tensors are alive: the logits, their log-softmax, and the gradients of both. All activations of the blocks are alive, too.
# 2. Yes. Checkpointing removes the blocks' activations but not the logits, so the peak is lower and in the same operation.
# 3. Everything with a row dimension (activations, logits) shrinks to a quarter. Weights, gradients and optimizer state keep their size.
#
# </details>

# %% [markdown] name="cache_text"
# ## 4 · Does `empty_cache()` help?
#
# Forums often recommend `torch.cuda.empty_cache()`, which returns *unused* segments to the GPU.
#
# **Predict.** Suppose a program calls it after every step. What is the ratio of its peak reserved memory to the peak without these calls?

# %% name="cache_guess"
my_guess = None  # peak reserved, with empty_cache / without
### BEGIN GUESS
my_guess = 0.8
### END GUESS
peak_guess = Prediction("Peak reserved, with empty_cache / without", my_guess, "times")

# %% name="cache"
earlier = [life for life in meter.lifetimes if life.start < meter.began]  # parameters and Adam's state
during = [life for life in meter.lifetimes if life.start >= meter.began]
during = [dataclasses.replace(life, end=life.end or meter.ended) for life in during]  # the next step frees gradients


def three_steps(clear):
    """Replay three equal steps on the model of the allocator; return peak reserved and the segments requested."""
    allocator, requested = CachingAllocator(), 0
    replay(earlier, allocator)
    for _ in range(3):
        over_time = [allocator.reserved] + [reserved for _, _, reserved in replay(during, allocator)]
        requested += sum(more > less for less, more in itertools.pairwise(over_time))
        if clear:
            allocator.empty_cache()
    return allocator.peak_reserved, requested


peak, requested = three_steps(clear=False)
peak_cleared, requested_cleared = three_steps(clear=True)
peak_guess.reveal(peak_cleared / peak, "simulated")
print(f"with empty_cache, segments requested from CUDA: {requested_cleared / requested:.1f} x as many (simulated)")
subject = "three steps of a GPT, model of the allocator"
claims.record("T14", "empty_cache lowers the peak of equal steps", subject, peak_cleared / peak, "times", 0, 0.95)

# %% [markdown] name="cache_explained"
# When all steps are alike, the peak is the same, because the next step needs what the last one needed. But every segment must be requested from CUDA again, which is slow.
# `empty_cache` is useful when *another* process needs the memory, or before a phase of your own program that needs blocks of other sizes. The next section has such a program.
#
# ## 5 · Reserved, but not allocated
#
# > `CUDA out of memory. Tried to allocate 35.60 GiB. GPU 0 has a total capacity of 79.33 GiB of which 26.16 GiB is free. Process 76883 has 53.16 GiB memory in use. Of the allocated memory 11.97 GiB is allocated by PyTorch, and 40.69 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)`
#
# (A user's complete message, from [a bug report](https://github.com/Tianhao-Qi/Mask2DiT/issues/4) filed in 2026.) Read the last number first. 26 GiB is free and 41 GiB is *reserved but
# unallocated*, yet a request for 36 GiB fails. How can that be?
#
# **Predict** for two GPUs. (A request of 1 to 10 MiB gets its block from a segment of 20 MiB. A larger request gets a segment of its own.)
#
# 1. A GPU has 100 MiB. You allocate 5 MiB sixteen times, then free every other block, so 40 MiB is still allocated. Does a tensor of 24 MiB fit?
# 2. A GPU has 512 MiB. You allocate 64 MiB six times, then free all of them. Does a tensor of 400 MiB fit?

# %% name="fragmentation_guess"
my_guess = None  # 24 MiB beside 40 in 100: 1 or 0
### BEGIN GUESS
my_guess = 1  # 60 of 100 are not allocated
### END GUESS
holes_guess = Prediction("24 MiB fits beside 40 MiB in 100 MiB", my_guess, "(0 = no, 1 = yes)")
my_guess = None  # 400 MiB in 512, of which 384 are reserved: 1 or 0
### BEGIN GUESS
my_guess = 0  # the free segments have 64 MiB each, and only 128 MiB were never reserved
### END GUESS
cached_guess = Prediction("400 MiB fits where 384 of 512 MiB is reserved but free", my_guess, "(0 = no, 1 = yes)")


# %% name="fragmentation"
def fits(allocator, nbytes):
    held, unused = (human_bytes(n) for n in (allocator.allocated, allocator.reserved - allocator.allocated))
    request = f"{held} allocated, {unused} reserved but unallocated; {human_bytes(nbytes)} more"
    try:
        allocator.allocate(nbytes)
        print(f"{request}: fits (model)")
    except OutOfMemory as error:
        print(f"{request}: out of memory, {error} (model)")
        return 0.0
    return 1.0


def with_holes(expandable):
    """Return an allocator after sixteen allocations and eight releases, and the blocks in use."""
    allocator = CachingAllocator(100 * MiB, expandable)
    blocks = [allocator.allocate(5 * MiB) for _ in range(16)]
    for block in blocks[1::2]:
        allocator.release(block)
    return allocator, blocks[::2]


cached = CachingAllocator(512 * MiB)
for block in [cached.allocate(64 * MiB) for _ in range(6)]:
    cached.release(block)
holes_guess.reveal(fits(with_holes(expandable=False)[0], 24 * MiB), "simulated")
cached_guess.reveal(fits(cached, 400 * MiB), "simulated")
print(f"times the cache was emptied to try again: {cached.retries}; now reserved: {human_bytes(cached.reserved)}")
print("The first GPU again, with expandable segments:")
for size in (24, 30):
    fits(with_holes(expandable=True)[0], size * MiB)

# %% name="fragmentation_figure"
pools = {
    name: with_holes(expandable)[1]
    for name, expandable in {"segments of 20 MiB": False, "expandable segments": True}.items()
}
show(
    segments_figure(pools, capacity=100 * MiB, wanted=24 * MiB),
    "The first GPU, along its addresses: blocks of 5 MiB in use alternate with gaps of 5 MiB up to 80 MiB; the last "
    "20 MiB were never reserved. The 24 MiB request is larger than any gap and larger than the part that was never reserved. An "
    "expandable segment can join its last gap to that part: 25 MiB.",
)

# %% [markdown] name="fragmentation_explained"
# **The first GPU.** Each segment of 20 MiB still contains a block in use, so the allocator cannot return any of them. No gap is large enough, and there is
# no room for a new segment of 24 MiB. This is **fragmentation**. In the message above the allocator had already tried again, so the 40.69 GiB is in segments that
# each still contain a block in use, as on the first GPU. Fragmentation happens when sizes change from step to step (sequences of different lengths). It is
# worst when long-lived blocks sit between short-lived ones.
#
# **The second GPU.** Before the allocator gives up, it returns unused segments to the GPU and tries again. All six were unused. `num_alloc_retries` in
# `torch.cuda.memory_stats()` counts these retries. A program that is nearly out of memory may retry in every step: it does not fail, but it is
# slow. Check this counter when memory is nearly full.
#
# **Expandable segments** (`PYTORCH_ALLOC_CONF=expandable_segments:True`). There is *one* segment per pool and stream, which grows at its end as needed, in pages of 20 MiB (2 MiB in the small pool).
#
# - The last 5 MiB were free, so one more page is enough for 24 MiB.
# - The gaps in between are still gaps, so 30 MiB does not fit. (Before it refuses, the model returns those last 5 MiB, so it reports 75 MiB reserved. PyTorch returns
#   only complete pages. The last page still holds two blocks, so PyTorch would report 80.)
# - Neighboring free blocks merge, whatever requests they once served, because they all belong to one segment.
# - The variable is read when CUDA starts. `torch.cuda.memory._set_allocator_settings` changes the option later, but only for new segments.
#
# **`max_split_size_mb:N`** is the older remedy. Blocks larger than N MiB are never split, so small requests cannot break up a large cached block. Use
# it where expandable segments are not available.
#
# The variable's name has changed:
#
# - up to PyTorch 2.8 it was `PYTORCH_CUDA_ALLOC_CONF`;
# - since 2.9 the new name is `PYTORCH_ALLOC_CONF`; the old one still works;
# - 2.9.1 is [reported](https://github.com/pytorch/pytorch/issues/183387) to ignore the new name for this option, and 2.11 to respect it.
#
# So check the setting in the allocator itself:

# %% name="allocator_settings"
for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
    print(f"{name}: {os.environ.get(name, 'not set')}")
if device.type == "cuda":
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    print("expandable segments in the allocator:", settings["expandable_segments"])
else:
    print("expandable segments: not applicable: only CUDA has this allocator")

# %% [markdown] name="real_text"
# The next cell sets an artificial limit on a GPU. The first large request succeeds after a retry; the second fails. If this machine has no NVIDIA GPU, the cell runs on a **virtual** one: inside `virtual_gpu`,
# PyTorch behaves as if the GPU were there. A model of its allocator follows the same rules and raises the same errors. Tensors on it have no data.
#
# The cell also prints what the device holds **outside PyTorch's allocator**: total − free − reserved. That includes the CUDA context with its kernels, buffers of NCCL (each
# communicator has its own), and other processes. The allocator's counters do not see it, and no snapshot shows it. Published figures for the context alone range from about [300 MB](https://github.com/pytorch/pytorch/issues/107667) (CUDA 11.7 or later, which loads kernels only when they are needed) to [1,343 MB](https://github.com/huggingface/transformers/blob/249ef8164cfbd8e288c2f6d8395539b9e90e8300/docs/source/en/model_memory_anatomy.md) (CUDA 11.2). NCCL adds its buffers: [544 to 688 MB](https://github.com/NVIDIA/nccl/issues/964) for a process group on A100s, and [more than 3 GB](https://github.com/NVIDIA/nccl/issues/1685) for an all-to-all on eight H100s. The virtual GPU assumes 0.5 GiB.


# %% name="real_oom"
def two_large_requests():
    """Limit the GPU, then ask for more than any unused segment has, and for more than the limit."""
    free, total = torch.cuda.mem_get_info()
    print("outside PyTorch's allocator:", human_bytes(total - free - torch.cuda.memory_reserved()))
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + 512 * MiB) / total))
    freed = [torch.empty(64 * MiB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    del freed  # 384 MiB of unused segments
    before = torch.cuda.memory_stats()["num_alloc_retries"]
    try:
        torch.empty(400 * MiB, dtype=torch.uint8, device="cuda")  # fits once the segments are returned
        print("retries:", torch.cuda.memory_stats()["num_alloc_retries"] - before)
        torch.empty(2048 * MiB, dtype=torch.uint8, device="cuda")  # four times the limit
    except torch.OutOfMemoryError as error:
        print(error)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def on_virtual_gpu():
    with virtual_gpu("rtx-4090-24gb"):
        two_large_requests()


if device.type == "cuda":
    two_large_requests()
else:
    beside_real_gpu(on_virtual_gpu)

# %% [markdown] name="allocator_task"
# ### Your turn: a caching allocator
#
# You have seen some of the rules one at a time. Now write an allocator that follows all of them. The GPU is a `PretendGPU`, which has addresses but no memory:
#
# - `gpu.malloc(nbytes)` returns the address of a new segment, an integer, or raises `OutOfMemory`. A segment may begin exactly where another one ends.
# - `gpu.free(address)` takes back the whole segment that begins at that address.
#
# **Contract.** `SmallAllocator(gpu)` has two methods and two attributes. `allocate(nbytes)` takes an integer of at least 1 and returns the address of
# a block. `release(address)` takes such an address. `allocated` is the sum of the sizes of all blocks in use, and `reserved` the sum of all segments.
#
# - **Rounding.** A request is rounded up to a multiple of 512 bytes. The other rules refer to the rounded size.
# - **Pools.** Requests of up to 1 MiB belong to the small pool, larger ones to the large pool. A segment serves only the pool for which it was requested.
# - **Best fit.** The smallest free block of the pool that is large enough is used. Of several of the same size, the one with the lowest address is used.
# - **Segments.** If no free block is large enough, `gpu.malloc` is called: for 2 MiB in the small pool, for 20 MiB if the request is below 10 MiB, else for the
#   request, rounded up to a multiple of 2 MiB.
# - **Splitting.** The request gets the beginning of the block. The rest becomes a free block if it has at least 512 bytes (small pool) or more than
#   1 MiB (large pool). Otherwise it stays part of the block in use.
# - **Merging.** A released block merges with the free blocks directly before and after it in the same segment.
# - **Caching.** `release` does not call the GPU.
# - **Retry.** If `gpu.malloc` raises `OutOfMemory`, all segments of both pools without a block in use go back to the GPU, and `gpu.malloc` is called once more. If that
#   fails, too, `allocate` raises `OutOfMemory`; blocks in use are untouched, and later calls work.


# %% name="allocator" answer=true reveal=true
class SmallAllocator:
    def __init__(self, gpu):
        ### BEGIN SOLUTION
        self.gpu, self.allocated, self.reserved = gpu, 0, 0
        self.segments = {}  # address -> (size, whether it is of the small pool)
        self.free, self.used = {}, {}  # address of a block -> (size, address of its segment)
        ### END SOLUTION

    def allocate(self, nbytes):
        ### BEGIN SOLUTION
        size = -(-nbytes // 512) * 512
        small = size <= MiB
        fits = [(n, at) for at, (n, seg) in self.free.items() if n >= size and self.segments[seg][1] == small]
        at = min(fits)[1] if fits else self.grow(size, small)
        whole, seg = self.free.pop(at)
        rest = whole - size
        if rest >= 512 if small else rest > MiB:
            self.free[at + size] = rest, seg
            whole = size
        self.used[at] = whole, seg
        self.allocated += whole
        return at

    def grow(self, size, small):
        """Return the address of a new segment, which is one free block."""
        nbytes = 2 * MiB if small else 20 * MiB if size < 10 * MiB else -(-size // (2 * MiB)) * 2 * MiB
        try:
            at = self.gpu.malloc(nbytes)
        except OutOfMemory:
            for unused in [at for at, (n, seg) in self.free.items() if n == self.segments[seg][0]]:
                self.gpu.free(unused)
                self.reserved -= self.free.pop(unused)[0]
            at = self.gpu.malloc(nbytes)
        self.segments[at], self.free[at] = (nbytes, small), (nbytes, at)
        self.reserved += nbytes
        return at
        ### END SOLUTION

    def release(self, address):
        ### BEGIN SOLUTION
        size, seg = self.used.pop(address)
        self.allocated -= size
        for at, (n, segment) in list(self.free.items()):
            if segment == seg and at + n == address:
                del self.free[at]
                address, size = at, n + size
            elif segment == seg and address + size == at:
                del self.free[at]
                size += n
        self.free[address] = size, seg
        ### END SOLUTION


# %% name="allocator_check"
SmallAllocator = check("memory_profiling.allocator", SmallAllocator)

# %% name="allocator_hint"
hint("memory_profiling.allocator")

# %% [markdown] name="yours_text"
# Replay the two training steps of section 1 through `SmallAllocator`.
#
# **Predict.** For every 100 blocks that the program allocates, how many times is `gpu.malloc` called?

# %% name="yours_guess"
my_guess = None  # calls per 100 blocks
### BEGIN GUESS
my_guess = 20
### END GUESS
calls_guess = Prediction("Calls to gpu.malloc per 100 blocks, two steps", my_guess, "calls")


# %% name="yours"
class OnDevice:
    """PyTorch's own allocator, with the methods of `SmallAllocator`. Figures are increases since the start."""

    def __init__(self):
        torch.cuda.empty_cache()
        self.before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def allocate(self, nbytes):
        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    def release(self, block):
        block.untyped_storage().resize_(0)  # frees the memory even if the caller keeps the tensor

    allocated = property(lambda self: torch.cuda.memory_allocated() - self.before[0])
    reserved = property(lambda self: torch.cuda.memory_reserved() - self.before[1])


gpu = PretendGPU()
makers = {"SmallAllocator": lambda: SmallAllocator(gpu), "model of PyTorch's": CachingAllocator}
if device.type == "cuda":
    makers["PyTorch's on this GPU"] = OnDevice
logs = {name: replay(two_steps_log, make()) for name, make in makers.items()}
requests = len(two_steps_log)
calls_guess.reveal(100 * sum(verb == "malloc" for verb, _ in gpu.calls) / requests, "simulated")
print(f"{requests:,} blocks; {len(gpu.calls)} calls to the GPU (simulated)")
for name, log in logs.items():
    peaks = [human_bytes(max(entry[i] for entry in log)) for i in (1, 2)]
    print(f"{name:22} peak allocated {peaks[0]:>10}, peak reserved {peaks[1]:>10}")
for name in list(logs)[1:]:
    same = sum(a == b for a, b in zip(logs[name], logs["SmallAllocator"], strict=True)) / len(logs[name])
    print(f"{name}: both figures identical to SmallAllocator's after {same:.0%} of the calls")

# %% [markdown] name="yours_explained"
# That is what the cache is for: nearly every request is served from segments that PyTorch already has. The price is the difference between peak reserved and peak
# allocated. The course's model follows the same rules, so both figures agree after each call.
#
# PyTorch's `CUDACachingAllocator.cpp` has these rules, too, in about 4,000 lines. Most of the rest handles what this lab leaves out: a pool per
# **stream** (a block that another stream still uses must not be reused: `record_stream`), private pools for CUDA graphs, expandable segments, and the
# options above. On a GPU, the last line shows PyTorch's own figures. They may differ a little: other tensors already use parts of its segments.

# %% [markdown] name="varied_text"
# Now let the lengths change, without long-lived blocks in between: sixty steps, each with twelve activations whose sizes are proportional to the step's sequence length.
#
# **Predict.** Without expandable segments, what is the ratio of peak reserved to peak allocated?

# %% name="varied_guess"
my_guess = None  # peak reserved / peak allocated
### BEGIN GUESS
my_guess = 1.1
### END GUESS
varied_guess = Prediction("Lengths that change: peak reserved / peak allocated", my_guess, "times")

# %% name="varied"
generator = torch.Generator().manual_seed(0)
lengths = torch.randint(40, 400, (60,), generator=generator).tolist()


def varied(expandable=False, clear=False):
    allocator, saved = CachingAllocator(expandable=expandable), []
    for length in lengths:
        for layer in range(12):  # activations of one step, whose size depends on its length
            saved.append(allocator.allocate(length * (60_000 if layer % 3 else 15_000)))
        while saved:
            allocator.release(saved.pop())
        if clear:
            allocator.empty_cache()
    return allocator.peak_reserved / allocator.peak_allocated


fixed, grown, cleared = varied(), varied(expandable=True), varied(clear=True)
varied_guess.reveal(fixed, "simulated")
print(f"with expandable segments: {grown:.2f}; with empty_cache after each step: {cleared:.2f} (simulated)")
subject = "60 lengths, model of the allocator"
said = "expandable segments reduce what changing lengths reserve"
claims.record("T14", said, subject, grown / fixed, "x reserved", 0, 0.95)
said = "empty_cache reduces what changing lengths reserve"
claims.record("T14", said, subject, cleared / fixed, "x reserved", 0, 0.95)

# %% [markdown] name="varied_explained"
# A segment that fits one length is too small for a longer one, and wasteful for a shorter one, so the cache keeps growing. Here the common advice works: call
# `empty_cache`, which returns the segments that no longer fit. But then every step pays for its segments again. Expandable segments save as much and grow page by page.

# %% [markdown] name="play_text"
# ### Explore
#
# Choose the size of a GPU, and replay the step of section 2 on the model. The figure opens at a size where the step fails. What is the smallest size that is enough, and
# does the option change it?


# %% name="play"
def on_gpu(capacity_MiB, expandable_segments):
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    expandable = expandable_segments == "on"
    try:
        log = replay(meter.lifetimes, CachingAllocator(capacity_MiB * MiB, expandable))
        title = f"fits: peak reserved {max(reserved for *_, reserved in log) / MiB:.0f} MiB (simulated)"
    except OutOfMemory as error:
        log = replay(meter.lifetimes, CachingAllocator(expandable=expandable))
        title = f"out of memory: {error}\nThe curves show the same step without a limit."
    times, allocated, reserved = zip(*log, strict=True)
    milliseconds = [max(0, when - meter.began) / 1e6 for when in times]
    for label, values, color in (("reserved", reserved, "#DDDDDD"), ("allocated", allocated, COLORS[0])):
        axes.fill_between(milliseconds, [v / MiB for v in values], step="post", color=color, label=label)
    axes.legend(frameon=False, loc="lower right")
    axes.set_title(title, fontsize=9)
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
print(f"peak allocated: {meter.peak_bytes / MiB:.1f} MiB")
for expandable in (False, True):
    for capacity in range(meter.peak_bytes // MiB, 4 * meter.peak_bytes // MiB):
        try:
            replay(meter.lifetimes, CachingAllocator(capacity * MiB, expandable))
        except OutOfMemory:
            continue
        print(f"expandable segments {'on' if expandable else 'off'}: {capacity} MiB is just enough (simulated)")
        break

# %% [markdown] name="play_explained"
# Both settings need more than the peak. The allocator reserves complete segments, or complete pages (20 MiB each, or 2 MiB in the small pool), and the last one is rarely full.
#
# ## 6 · Claims and measurements
#
# The table shows this run alongside those of the machines whose figures are stored in `receipts/`.

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Allocated, reserved and used on the device are three figures for three questions. Reset peaks before you measure, and name the figure.
# - In an out-of-memory message, read *reserved but unallocated* first. If it is large, memory is fragmented. If it is small, you need less memory,
#   not another allocator setting.
# - A snapshot shows what was never freed, and the line of Python that allocated it. A view keeps the whole storage alive: clone what you keep.
# - A caching allocator requests a segment once and then reuses it, so it makes few requests to CUDA and reserves more than the tensors need.
# - `empty_cache` does not lower what equal steps need. Where lengths change, it does, and so do expandable segments.
#
# **What to reach for when.** Memory grows from step to step: take a snapshot, and look for what was never freed. Reserved memory is far above allocated memory: try expandable segments. A step
# needs too much memory at its peak: find the operation and the category, as in [[oom_clinic]].
#
# **Sources.** PyTorch documentation, *CUDA semantics: memory management* and *Understanding CUDA Memory Usage* (snapshots); PyTorch source,
# `c10/cuda/CUDACachingAllocator.cpp`.
