# %% [markdown] name="title"
# # Feeding the device: data loading
#
# **A device that waits for data costs as much as one that works. Three timings tell you which one you have; one division tells you how many workers it takes to fix it.**
#
# | | |
# |---|---|
# | After this you can | tell a data-bound loop from a compute-bound one and give its idle share; work out how many workers you need before trying; say what workers cost in start-up and memory; recognise unpicklable lambdas, unguarded scripts and repeated random numbers; make the data cheaper instead of adding workers |
# | Time | 75 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU (for worker processes); copies from pinned memory are timed if there is a CUDA GPU |
# | Before this | [[start_here]] |
# | Syllabus | T11, C10, P6 |

# %% name="setup" setup=true
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings

from helpers import (
    COLOURS,
    Claims,
    DigitFiles,
    LoaderTimeline,
    PickledByValue,
    Prediction,
    SmallCNN,
    benchmark,
    check,
    compare,
    decode,
    device_name,
    explore,
    hint,
    human_bytes,
    pick_device,
    profile_step,
    rotate,
    script_as_notebook,
    show,
)

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

script_as_notebook()  # run as a plain script, this lab starts processes as a notebook does; see section 6
warnings.filterwarnings("ignore", message="This DataLoader will create")  # see section 3

device = pick_device()
claims = Claims()
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
start_method = torch.multiprocessing.get_start_method()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")
print(f"{cores} cores; worker processes start by {start_method!r}")

# %% [markdown] name="files_text"
# ## 1 · Is this loop data-bound?
#
# A training loop has two halves that know little about each other. One fetches samples, decodes them, augments them and stacks them into a batch: work for the CPU, the disk and the network. The other is the training step: work for the device. If the first is slower than the second, a faster GPU changes nothing.
#
# The data are handwritten digits, each in its own PNG file. Reading a sample means decoding the file and rotating the image by a random angle.

# %% name="files"
files = DigitFiles(1024)
figure = Figure(figsize=(8, 2.2), layout="constrained")
for i, axes in enumerate(figure.subplots(2, 8).flat):
    axes.imshow(files[i % 8][0][0], cmap="gray")
    axes.set_axis_off()
figure.suptitle("Eight files, read twice: decoded and rotated afresh each time")
show(figure, "Two rows of the same eight digits, each rotated by a different angle in the second row.")
image = decode(files.files[0])[None]
ten = torch.tensor([10.0])
costs = {
    "decode": benchmark(lambda: decode(files.files[0]), runs=200).median,
    "rotate": benchmark(lambda: rotate(image, ten), runs=200).median,
    "decode, then rotate": benchmark(lambda: rotate(decode(files.files[0])[None], ten), runs=200).median,
    "whole sample": benchmark(lambda: files[0], runs=200).median,
}
print({name: f"{1e6 * seconds:.0f} µs" for name, seconds in costs.items()}, f"a file: {len(files.files[0])} bytes")

# %% [markdown] name="step_text"
# Decoding and rotating together cost more than the sum of what each costs alone. Alone in a loop, each has the core's caches to itself; when they alternate, each finds them full of the other's data. The rest of a sample is drawing the angle and writing the log. So measure a cost in the company it will keep: here, that of the *whole sample*.
#
# With a CUDA GPU, the training step below is a real one. A real step on a CPU would run on the same cores as the decoding. The two halves would compete, which they don't when the device is a separate chip. So on a CPU the step is a **stand-in** that takes 10 ms and leaves the cores alone: it sleeps.

# %% name="step"
BATCH = 64
model = SmallCNN(128).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(batch):
    """A training step: a real one on a CUDA GPU, a 10 ms stand-in elsewhere."""
    if device.type != "cuda":
        time.sleep(0.010)
        return
    images, labels = (t.to(device, non_blocking=t.is_pinned()) for t in batch)  # section 9 says why
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # waits for the GPU, as logging a loss does


# %% [markdown] name="diagnose_text"
# ### Three timings
#
# The diagnosis needs no profiler. Time the loader alone, time the step alone on the same batch over and over, and time the loop. Everything is in seconds a batch. Of several epochs the best one counts, here and below, because other programs can only make an epoch longer. Epochs with and without the step take turns, so that both meet the same moments.
#
# **Predict.** A batch is 64 samples, each at the cost of a *whole sample*; a step is 10 ms (on a CPU). How long does the loop take for one batch?


# %% name="diagnose"
def seconds_a_batch(loader, step=lambda batch: None, epochs=2):
    """Return seconds a batch in the best epoch; a first epoch that starts workers does not count."""
    times = []
    for _ in range(epochs + (loader.num_workers > 0)):
        start = time.perf_counter()
        for batch in loader:
            step(batch)
        times.append((time.perf_counter() - start) / len(loader))
    return min(times[loader.num_workers > 0 :])


def diagnose(loader, step, epochs=3):
    """Return seconds a batch for the data alone, the step alone, and the loop. `loader` has no workers."""
    batch = next(iter(loader))
    step(batch)  # the first step is slower
    rounds = [(seconds_a_batch(loader, epochs=1), seconds_a_batch(loader, step, 1)) for _ in range(epochs)]
    data, loop = (min(times) for times in zip(*rounds, strict=True))
    return {"data": data, "compute": benchmark(lambda: step(batch), runs=len(loader)).median, "loop": loop}


def told(seconds):
    idle = 1 - seconds["compute"] / seconds["loop"]
    return ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in seconds.items()) + f"; the device idles {idle:.0%}"


# %% name="guess_loop"
my_guess = None  # ms a batch
### BEGIN GUESS
my_guess = 1e3 * 64 * costs["whole sample"] + 10  # one after the other
### END GUESS
loop_guess = Prediction("The loop, for one batch", my_guess, "ms")

# %% name="without_workers"
slow = diagnose(DataLoader(files, BATCH, shuffle=True), train_step, epochs=5)
loop_guess.reveal(1e3 * slow["loop"])
print(told(slow))
whole = slow["data"] + slow["compute"]
claims.record("T11", "without workers: data + compute", "PNG digits", slow["loop"] / whole, "x the sum", 0.8, 1.4)

# %% [markdown] name="diagnose_explained"
# The loop takes the sum of the other two. Without workers, `DataLoader` makes a batch when the loop asks for one, in the same process. While it decodes, the device has nothing to do; while the device works, nothing is decoded.
#
# Read the three figures like this:
#
# - *loop ≈ compute*: compute-bound. Leave the loader alone.
# - *loop ≈ data, and data > compute*: data-bound. Everything below is for you.
# - *loop ≈ data + compute*: nothing overlaps. No other case is so cheap to fix.
#
# The **idle share** is 1 − compute / loop. Do not read it off `nvidia-smi`: its "utilisation" is the share of time in which *any* kernel ran, and one small kernel counts in full.
#
# > **Note:** on a GPU, a loop that never waits for a result (no `loss.item()`, no logging) overlaps a little even without workers, because the GPU works through its queue while Python decodes.
#
# The profiler of [[where_the_time_goes]] sees the same from inside a step: it has a phase *data*, in which the loop waits for its `DataLoader`.


# %% name="data_phase"
def endless(loader):
    while True:
        yield from loader


fed = endless(DataLoader(files, BATCH, shuffle=True))
profiled = profile_step(lambda: train_step(next(fed)))
phases = profiled.by_phase()
in_data = 100 * phases["data"] / sum(phases.values())
by_timings = 100 * (1 - slow["compute"] / slow["loop"])
print(f"phase data: {in_data:.0f} % of a step; idle share by the three timings: {by_timings:.0f} %")
said = "the phase data of a profile is the idle share"
claims.record("T11", said, "PNG digits, no workers", in_data - by_timings, "points more", -10, 10)

# %% [markdown] name="picture_text"
# Whatever share of its peak the device reaches in the step alone (its MFU), the loop gets only 1 − idle of it.
#
# ### The same as a picture
#
# The data set logs when each sample was read, and by which process.

# %% name="watched"
one = LoaderTimeline.of(files, BATCH, 0, train_step)
show(
    one.plot(f"No workers: the device idles {one.idle:.0%}"),
    "One lane for the device, one for the main process. Their bars alternate; the two never work at once.",
)

# %% [markdown] name="workers_text"
# ## 2 · Workers
#
# `num_workers=2` starts two processes, each with its own copy of the data set. The main process deals out lists of indices. Each worker makes *whole* batches and keeps `prefetch_factor` of them (2 by default) finished or in progress.
#
# So data and steps run side by side, with one exception. Each epoch begins empty-handed, and its first batch takes as long as ever, because one worker makes it alone. That is the *fill*.
#
# **Predict.** Take the loop in the picture, 12 batches, with two workers. How many ms a batch is it now, with the fill spread over the 12?

# %% name="guess_workers"
my_guess = None  # ms a batch
### BEGIN GUESS
my_guess = 1e3 * max(
    slow["data"] / 12 + slow["compute"], slow["data"] / 2
)  # the fill, then the slower half sets the pace
### END GUESS
workers_guess = Prediction("The loop with two workers, for one batch", my_guess, "ms")

# %% name="two_workers"
two = min((LoaderTimeline.of(files, BATCH, 2, train_step) for _ in range(3)), key=lambda run: run.seconds)
n = len(two.steps)
workers_guess.reveal(1e3 * two.seconds / n)
show(
    two.plot(f"Two workers: the device idles {two.idle:.0%}"),
    "Three lanes: the device and two workers. The workers' bars overlap in time with each other and with the device's.",
)
expected = max(slow["data"] / n + slow["compute"], slow["data"] / 2)  # with a batch's cost in a process of its own
law = max(two.making / n + slow["compute"], max(two.work()) / n)  # with its cost in this run; the later worker counts
rest = two.seconds / n - law
print(f"the law {1e3 * expected:.1f}, sharing {1e3 * (law - expected):.1f}, rest {1e3 * rest:.1f} ms a batch")
print(f"a batch takes a worker {1e3 * two.making:.1f} ms; it took the main process {1e3 * one.making:.1f} ms, alone")
print(f"and a free device gets it {1e3 * two.handover:.1f} ms after its last file was read")
LAW = "with workers: the slower half, and the fill"
claims.record("T11", LAW, "PNG digits, 2 workers", two.seconds / n / law, "x the law", 0.8, 1.35)

# %% [markdown] name="workers_explained"
# Side by side, the slower half sets the pace:
#
# > **a batch: max(compute, data / workers)**; an epoch of *n* batches: **max(data + n × compute, n × data / workers)**, where the lone *data* is the fill. Short epochs feel it; long ones do not.
#
# Two things come on top, and the last two lines say where they come from. *Sharing*: if two workers and the main process have few cores between them, or other programs want these cores, a batch takes each worker longer than it would take one process alone. So the claim puts the cost of a batch *in this run* into the law. *Handing over* is the rest: the samples are stacked, the batch is put into shared memory, and the main process is woken up and maps it. That takes a few milliseconds. A device with a batch in hand does not notice; one that is waiting does. When the halves are about equal, nothing stays in hand for long. Section 3 repeats the test with workers that only wait, and with enough of them.
#
# ### Nothing else may change
#
# Equivalence before speed: do workers deliver the same batches?

# %% name="same_batches"
plain = DigitFiles(200, augmented=False)
orders = []
for workers in (0, 2):
    loader = DataLoader(plain, 32, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(0))
    orders.append(list(loader))
same = all(torch.equal(a, b) for one, two in zip(*orders, strict=True) for a, b in zip(one, two, strict=True))
print(f"batches of {[len(labels) for _, labels in orders[0]]} files; with workers the same, in the same order: {same}")

# %% [markdown] name="same_explained"
# The main process draws the order, so it does not depend on the workers. Batches are delivered in turn even if a later one is ready first (`in_order=False` lifts that). The last batch is smaller: 200 − 6 × 32 = 8 files. In training that can matter: `drop_last=True` leaves it out, for the sake of BatchNorm or a compiled model. For evaluation it must stay. [[Gradient_accumulation]] shows what a smaller batch does to a mean.
#
# (The *augmentation* need not be the same. Section 7 shows how it can even go wrong.)
#
# ## 3 · How many workers?
#
# It depends on what a worker does all day. Decoding **computes**: it needs a core. Reading from a network **waits**: it needs nobody. So here is a second data set, `far`: 4 ms of waiting for each file, as object storage may take, and a little decoding.
#
# **Predict.** Each data set alone, no training. How many times as fast is it with 8 workers as with none, for `far` (waiting) and for `files` (computing)?

# %% name="guess_scaling"
my_guess = None  # times as fast, far
### BEGIN GUESS
my_guess = 8  # waiting does not mind company
### END GUESS
far_guess = Prediction("8 workers that wait", my_guess, "times as fast")
my_guess = None  # times as fast, files
### BEGIN GUESS
my_guess = min(8, cores)
### END GUESS
files_guess = Prediction("8 workers that compute", my_guess, "times as fast")


# %% name="scaling"
far = DigitFiles(256, latency=0.004, augmented=False)
stores = {"far": (far, 16), "files": (files, BATCH)}
counts = (0, 1, 2, 4, 8)
alone = {"files": slow, "far": diagnose(DataLoader(far, 16), train_step, epochs=1)}
data = {}
for name, (store, size) in stores.items():
    loaders = (DataLoader(store, size, num_workers=n, persistent_workers=True) for n in counts[1:])
    times = [seconds_a_batch(loader, epochs=1 if name == "far" else 3) for loader in loaders]
    data[name] = [alone[name]["data"], *times]
speedup = {name: [times[0] / t for t in times] for name, times in data.items()}
far_guess.reveal(speedup["far"][-1])
files_guess.reveal(speedup["files"][-1])

# %% name="scaling_figure"
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
rules = {"far": ("one a worker", counts), "files": ("at most the cores", [min(n, cores) for n in counts])}
for (name, values), colour, marker in zip(speedup.items(), (COLOURS[4], COLOURS[0]), "os", strict=True):
    axes.plot(counts[1:], values[1:], marker + "-", color=colour, label=f"{name}, measured")
    axes.plot(counts[1:], rules[name][1][1:], ":", color=colour, label=f"{name}, {rules[name][0]}")
axes.set(title=f"Data alone, {cores} cores", xlabel="workers", ylabel="speed-up over no workers", xticks=counts[1:])
axes.set_ylim(0, None)
axes.legend(frameon=False)
show(figure, "Workers that wait speed up with their number; workers that compute stop at the number of cores.")
what = "workers that wait add up beyond the cores"
claims.record("T11", what, "8 workers, 4 ms a file", speedup["far"][-1], "times as fast", 4, math.inf)
if cores < 8:
    best = max(s for n, s in zip(counts, speedup["files"], strict=True) if n <= cores)
    what = "workers that compute gain nothing beyond the cores"
    claims.record("P6", what, "8 workers, PNG", speedup["files"][-1] / best, "x the best", 0, 1.25)
else:
    print(f"P6, workers beyond the cores: not shown here, with {cores} cores.")

# %% [markdown] name="scaling_explained"
# Workers hide waiting without limit. Computing has to be divided among the cores, and the main process needs one too. Whatever else runs on this machine takes its share, so the blue line may lie well below its rule. Combine this with section 2:
#
# > **workers ≥ (seconds one worker needs for a batch) / (seconds of a step)**, and if the workers compute, no more than there are cores.
#
# If the cores run out before you reach the quotient, no number of workers helps: make the data cheaper (section 8).
#
# PyTorch has its own advice, which this lab's set-up cell hid. Is it right?

# %% name="advice"
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    DataLoader(far, 16, num_workers=2 * cores)
print(textwrap.fill(str(said[0].message)[:200], 100) if said else "no advice")
step_seconds = slow["compute"]
needed = {name: times[0] / step_seconds for name, times in data.items()}
for name, quotient in needed.items():
    took = f"{1e3 * data[name][0]:.0f} ms a batch / {1e3 * step_seconds:.1f} ms a step"
    print(f"{name}: {took} = {quotient:.1f} -> {math.ceil(quotient)} workers")
    claims.record("C10", "4 to 8 workers a GPU", f"{name}, one GPU", math.ceil(quotient), "workers", 4, 8)
subject = "far, a GPU three times as fast"
claims.record("C10", "4 to 8 workers a GPU", subject, math.ceil(3 * needed["far"]), "workers", 4, 8)

# %% [markdown] name="advice_explained"
# The advice counts cores and knows nothing about waiting. The rule of thumb in articles, *4 to 8 workers a GPU*, knows nothing about your step. It holds when a worker happens to need 4 to 8 steps' time for a batch; with the same files and a faster GPU it does not. Divide instead.
#
# Now run the loop itself with as many workers as the quotient asks for, and compare it with the law of section 2:

# %% name="fed"
enough = math.ceil(needed["far"])
workers = min(enough, 16)
loader = DataLoader(far, 16, num_workers=workers, persistent_workers=True)
n, before, loop = len(loader), alone["far"], seconds_a_batch(loader, train_step, epochs=3)
fill = before["data"] / n  # seconds a batch
law = max(fill + before["compute"], before["data"] / workers)
print(f"without workers {1e3 * before['loop']:.0f} ms a batch, with {workers} {1e3 * loop:.1f}")
print(f"slower half {1e3 * (law - fill):.1f}, fill {1e3 * fill:.1f}, rest {1e3 * (loop - law):.1f} ms a batch")
claims.record("T11", LAW, f"far, {workers} workers", loop / law, "x the law", 0.8, 1.35)

# %% [markdown] name="prefetch_text"
# ## 4 · `prefetch_factor` is for bad moments
#
# Having more batches in hand does not change the average: a worker makes them no faster. What changes is how long a bad moment (a slow read, a large file) may last before the device notices. Below, every eighth batch takes 120 ms and all others 10 ms, with two workers. The step takes 15 ms (simulated, on every device).
#
# A model of `DataLoader` with three rules (deal in turn; at most `prefetch_factor` batches in hand for each worker; deliver in order) says what to expect. **Predict** first: with 1 batch in hand for each worker, what share of the time is the device idle? (On paper: batch *k* is requested when batch *k* − 2 is taken. Draw the lanes for batches 0 to 12; from 4 on they repeat.)

# %% name="guess_prefetch"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (1 - 8 * 15 / (120 + 6 * 15))  # each bad batch takes 120 ms, of which two steps are covered
### END GUESS
prefetch_guess = Prediction("Idle share with prefetch_factor=1", my_guess, "%")


# %% name="prefetch"
SECONDS = [0.120 if k % 8 == 4 else 0.010 for k in range(24)]


class Waits(Dataset):
    """Item k is a whole batch, which takes some waiting."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, k):
        time.sleep(self.seconds[k])
        return k


def idle_share(prefetch, seconds=SECONDS):
    loader = DataLoader(
        PickledByValue(Waits(seconds)), None, num_workers=2, prefetch_factor=prefetch, persistent_workers=True
    )
    return 1 - 0.015 / seconds_a_batch(loader, lambda batch: time.sleep(0.015), epochs=1)


# %% name="prefetch_measured"
factors = (1, 2, 4, 8)
by_model = {n: LoaderTimeline.simulate(SECONDS, 0.015, 2, n).idle for n in factors}
measured = {n: idle_share(n) for n in factors}
prefetch_guess.reveal(100 * measured[1])
for prefetch, idle in measured.items():
    print(f"prefetch_factor={prefetch}: the device idles {idle:.0%}; the model says {by_model[prefetch]:.0%}")
sevenths = [0.120 if k % 7 == 4 else 0.010 for k in range(24)]  # three slow batches, as before
by_timeline = LoaderTimeline.simulate(sevenths, 0.015, 2, 8).idle
print(f"8, every seventh batch slow: {idle_share(8, sevenths):.0%}; the model says {by_timeline:.0%}")
gap = max(abs(measured[n] - by_model[n]) for n in factors)
claims.record(
    "T11", "the three rules predict the idle share", "every eighth batch slow", 100 * gap, "points off", 0, 15
)
claims.record(
    "T11",
    "prefetch_factor evens out slow reads",
    "idle with 1 and with 8",
    100 * (measured[1] - measured[8]),
    "points less",
    10,
    100,
)

# %% [markdown] name="prefetch_explained"
# Here is the first line by hand. While a slow batch is made (120 ms), the device has two steps left: the batch in hand and the batch just taken. Then it waits. The other six steps of the eight take 6 × 15 = 90 ms. That makes 8 × 15 = 120 ms of work in 120 + 90 = 210 ms: idle for 43 %, and a little more for the first fill.
#
# From 1 to 4 the bad moments are covered better and better. Beyond that nothing is gained, and it is not the queue's fault. Batches are dealt **in turn**, so with two workers batches 4, 12 and 20 all fall to the same one. It is still at work long after the other has run out, however long the queue. The last line has the same work with every *seventh* batch slow: now the slow ones are shared, and the device idles less. Section 11 has a riddle about this.
#
# ## 5 · What workers cost
#
# ### Start, and too many
#
# Each worker has to be started, and each makes whole batches. With many workers on few cores, *all* of them work on *their* first batch, and all are late. Here are the time to the first batch and the time for the whole first epoch, data alone:

# %% name="too_many"
first, epoch = {}, {}
for n in (min(2, cores), 4, 16):
    runs = []
    for _ in range(2):
        start = time.perf_counter()
        for i, _ in enumerate(DataLoader(files, BATCH, num_workers=n)):
            if i == 0:
                got = time.perf_counter() - start
        runs.append((time.perf_counter() - start, got))
    epoch[n], first[n] = min(runs)
    print(f"{n:>2} workers: first batch after {1e3 * first[n]:4.0f} ms, the epoch takes {1e3 * epoch[n]:4.0f} ms")
fewest = min(2, cores)
if cores < 8:
    claims.record(
        "P6",
        "too many workers are slower",
        "16 workers, first epoch",
        epoch[16] / epoch[fewest],
        f"x that of {fewest}",
        1.1,
        math.inf,
    )
else:
    print(f"P6, too many workers: 16 are not too many for {cores} cores.")

# %% [markdown] name="too_many_explained"
# Sixteen workers for sixteen batches: each makes one, all at once, and the first is ready when all are nearly done. And if yours start by `'fork'`, these processes started in tens of milliseconds; section 6 has the slower kinds.
#
# ### Memory
#
# Waiting batches take memory. **Predict** how many finished batches are waiting, with 2 workers and `prefetch_factor=4`, once the loop has taken one and stopped.

# %% name="guess_waiting"
my_guess = None  # batches
### BEGIN GUESS
my_guess = 2 * 4  # the one that was taken is replaced at once
### END GUESS
waiting_guess = Prediction("Batches that wait", my_guess, "batches")

# %% name="waiting"
files.reads.zero_()
batches = iter(DataLoader(files, 32, num_workers=2, prefetch_factor=4))
taken = next(batches)
before = -1
while before < (now := int(files.reads.sum())):
    before = now
    time.sleep(0.3)
waiting = now / 32 - 1
waiting_guess.reveal(waiting)
a_batch = sum(t.nbytes for t in taken)
print(f"a batch takes {human_bytes(a_batch)}; in flight: {human_bytes(waiting * a_batch)}")
claims.record("T11", "in flight: workers x prefetch_factor batches", "2 x 4", waiting, "batches", 8, 8)
del batches

# %% [markdown] name="waiting_explained"
# Workers × `prefetch_factor`: as one is taken, the next is requested. For real images, count before you choose. A batch of 64 × 3 × 224 × 224 × 4 bytes is 36.75 MiB, so 8 workers with 4 batches each hold 1.15 GiB. On Linux they live in `/dev/shm`, which in a Docker container is 64 MiB unless `--shm-size` says otherwise. A worker that dies of a *bus error* has hit that limit.
#
# ### Copies of the data set
#
# A forked worker shares its parent's memory: pages are copied only when one of the two *writes* to them. So a data set that is only read should cost nothing.
#
# **Predict.** A data set keeps the names of 400,000 files in a list. A forked worker reads all of them. How many MiB does it copy? (`sys.getsizeof` tells you what one name takes.)

# %% name="guess_copies"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = (
    400_000 * sys.getsizeof("train/img_000000.png") / 2**20
)  # reading a string in Python writes its reference count
### END GUESS
copies_guess = Prediction("Copied by reading a list of strings", my_guess, "MiB")


# %% name="copies"
class Names(Dataset):
    """Reads all its names; a sample is the number of bytes by which the process's own memory grew."""

    def __init__(self, names, read):
        self.names, self.read = names, read

    def __len__(self):
        return 1

    def __getitem__(self, i):
        before = psutil.Process().memory_full_info().uss  # unique set size: pages that no other process shares
        self.read(self.names)
        return psutil.Process().memory_full_info().uss - before


# %% name="copies_measured"
names = [f"train/img_{i:06}.png" for i in range(400_000)]
packed = np.array(names, dtype=np.bytes_)  # one block of memory, 20 bytes a name
if start_method == "fork":
    grown = {
        "a list of strings": next(iter(DataLoader(Names(names, lambda n: sum(map(len, n))), None, num_workers=1))),
        "one NumPy array": next(iter(DataLoader(Names(packed, lambda n: (n != b"").sum()), None, num_workers=1))),
    }
    copies_guess.reveal(grown["a list of strings"] / 2**20)
    for name, nbytes in grown.items():
        print(f"reading {name}: {human_bytes(nbytes)} copied in each worker")
    claims.record(
        "P6",
        "reading a list of objects copies it",
        "400,000 names",
        grown["a list of strings"] / 2**20,
        "MiB a worker",
        15,
        60,
    )
    in_array = grown["one NumPy array"] / 2**20
    claims.record("P6", "reading an array copies next to nothing", "400,000 names", in_array, "MiB a worker", 0, 5)
else:
    print(f"Not measured here: workers start by {start_method!r}, which copies the whole data set in any case.")
del names

# %% [markdown] name="copies_explained"
# Python counts references *inside* each object. So looking at an object means writing to it, and the page it lies on is copied. A name of 20 characters takes 69 bytes, which Python's allocator rounds up to 80; times 400,000, that is 30.5 MiB. The list itself, 3 MiB of pointers, is only read and stays shared. With 8 workers a GPU and 8 GPUs, each with its own main process, such a list exists 8 × 9 times. It looks like a leak: memory grows as the epoch goes on. Keep large data in one array or tensor. (A tensor is better still: it travels to workers in shared memory, however they were started.)
#
# ## 6 · Spawned workers
#
# `fork` copies a running process, in milliseconds. It is the default on Linux up to Python 3.13, and it is unsafe once the process has threads that hold locks. macOS and Windows use `spawn`: a new Python starts from scratch, imports what it needs, and receives the data set by pickle. From Python 3.14, Linux uses `forkserver`, which pickles too. So what follows concerns everybody; `multiprocessing_context="spawn"` makes it happen on any system.
#
# ### Slow start
#
# **Predict.** A worker imports PyTorch and the course before it can read a file. How many seconds does an epoch of 8 small batches take, including the start of one worker?

# %% name="guess_spawn"
my_guess = None  # s
### BEGIN GUESS
my_guess = 3.0  # about what the set-up cell of this lab took
### END GUESS
spawn_guess = Prediction("Epoch with the start of a spawned worker", my_guess, "s")

# %% name="spawn"
some = DigitFiles(256)


def timed_epochs(count, **options):
    """Return the seconds of each epoch with one worker, and the loader."""
    loader, seconds = DataLoader(some, 32, num_workers=1, **options), []
    for _ in range(count):
        start = time.perf_counter()
        for _ in loader:
            pass
        seconds.append(time.perf_counter() - start)
    return seconds, loader


kept, spawned = timed_epochs(2, multiprocessing_context="spawn", persistent_workers=True)
usual, default = timed_epochs(2, persistent_workers=True)
spawn_guess.reveal(kept[0])
for name, (start, again) in (("spawn", kept), (start_method, usual)):
    print(f"{name}: the epoch that starts the worker {start:.2f} s, the next, which finds it running, {again:.2f} s")
claims.record("P6", "spawned workers start slowly", "first epoch, 1 worker", kept[0] - kept[1], "s", 0.5, math.inf)
said = "persistent_workers saves the start"
claims.record("T11", said, "second epoch, spawn", kept[0] / kept[1], "times as fast", 2, math.inf)

# %% [markdown] name="spawn_explained"
# Without `persistent_workers` every epoch is like the first: it starts all workers again. A validation loader does the same after each epoch. With it they stay, and so does their memory. How much memory is a worker's own, shared with nobody?

# %% name="worker_memory"
for name, loader in (("spawn", spawned), (start_method, default)):
    for _ in loader:
        pass
    try:
        own = human_bytes(psutil.Process(int(some.log[0, 2])).memory_full_info().uss)
    except psutil.AccessDenied:
        own = "hidden from us"
    print(f"worker started by {name}: its own memory is {own}")
del spawned, default, loader

# %% [markdown] name="lambda_text"
# A spawned worker has its own copy of PyTorch; a forked one begins with what it shares and adds what it writes.
#
# ### Lambdas, and classes defined in a cell
#
# Pickle writes down a function's *name* and module. A lambda has no name:


# %% name="lambda"
def pickling_fails(collate):
    """Try to send `collate` to a spawned worker; return the error message, "" if it works."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            next(iter(DataLoader(some, 32, num_workers=1, multiprocessing_context="spawn", collate_fn=collate)))
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition(" at 0x")[0]
    return ""


refused = pickling_fails(lambda samples: default_collate(samples))
print(refused)
claims.record("P6", "lambdas cannot go to spawned workers", "collate_fn", float(bool(refused)), "errors", 1, 1)

# %% [markdown] name="scripts_text"
# A class or function defined in a *cell* has a name, but its module is the notebook, which a new process cannot import: pickling succeeds, and the worker dies. A *script* can be imported, and that is the trouble: the new process runs it again from the top, reaches the line that starts workers, and tries to start workers itself. Here are both, as separate programs, so that we can see their last words:

# %% name="scripts"
LOAD = """
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return i * i
"""
USE = 'print(list(DataLoader(Squares(), 4, num_workers=1, multiprocessing_context="spawn")))\n'
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "train.py")
    with open(path, "w") as script:
        script.write(LOAD + USE)
    commands = {"class of a cell": [sys.executable, "-c", LOAD + USE], "script without a guard": [sys.executable, path]}
    processes = {
        name: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name, command in commands.items()
    }
    for name, process in processes.items():
        words = process.communicate(timeout=120)[1].splitlines()
        last = [w.strip() for w in words if w.strip().startswith(("AttributeError", "An attempt", "current process"))]
        print(f"{name}:", *dict.fromkeys(last), sep="\n    ")
        failed = float(process.returncode != 0)
        claims.record("P6", f"{name}: fails under spawn", "a program of its own", failed, "errors", 1, 1)

# %% [markdown] name="cures_text"
# The fixes:
#
# - Put data sets and functions into a **module**, a `.py` file that both notebook and workers import. `DigitFiles` lives in `helpers/loading/digit_files.py` for that reason. Instead of a lambda, use a function from a module, or `functools.partial` of one.
# - In a script, put everything that *does* something below `if __name__ == "__main__":`. The new process imports the script under another name and stops there.
# - In a notebook, send the code itself along: `cloudpickle` stores the code instead of the name. The course's `PickledByValue` wraps a data set or a function that way; section 4 used it for `Waits`.

# %% name="carried"
still_refused = pickling_fails(PickledByValue(lambda samples: default_collate(samples)))
print("carried lambda:", still_refused or "works under spawn")
claims.record("P6", "carried lambdas work under spawn", "collate_fn", float(bool(still_refused)), "errors", 0, 0)

# %% [markdown] name="random_text"
# ## 7 · The same random numbers twice
#
# Augmentation is random. But each worker begins with a *copy* of the data set, and a copied generator draws the same numbers. Which generators are safe? We try four sources with two workers for two epochs; `Draws` takes eight numbers an epoch from each.


# %% name="random"
class Draws(Dataset):
    """Sample i is a number from each of four sources."""

    def __init__(self):
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        numbers = torch.rand(()).item(), random.random(), np.random.random(), self.own.random()
        return torch.tensor(numbers, dtype=torch.float64)


loader = DataLoader(PickledByValue(Draws()), 4, num_workers=2)
epochs = torch.stack([torch.cat(list(loader)) for _ in range(2)])  # (epoch, sample, source)
for source, name in enumerate(("torch", "random", "numpy", "the data set's own")):
    workers = epochs[0, :4, source], epochs[0, 4:, source]
    twins = len(set(workers[0].tolist()) & set(workers[1].tolist()))
    again = torch.isin(epochs[1, :, source], epochs[0, :, source]).sum().item()
    print(f"{name:20} drawn by both workers: {twins} of 4, drawn again in the next epoch: {again} of 8")
    said, low, high = ("repeat", 1, 4) if source == 3 else ("do not repeat", 0, 0)
    claims.record("P6", f"workers {said} numbers of {name}", "2 workers", twins, "of 4", low, high)

# %% [markdown] name="random_explained"
# In every epoch `DataLoader` gives each worker its own new seed, for PyTorch, for Python's `random` and, since about PyTorch 1.9 (see what yours does), for NumPy's *global* generator. Many articles still warn about that one. But nobody seeds a generator that a data set has **made for itself**, which is what NumPy's documentation recommends. All workers draw the same angles, and with new workers in each epoch they draw the same ones again. The loss still goes down; there is just less augmentation than you think.
#
# `DigitFiles` is such a data set. The fix is `worker_init_fn`, which runs in each worker before its first sample:


# %% name="reseed"
def own_numbers(worker_id):
    """Give this worker's copy of the data set its own generator."""
    info = get_worker_info()
    info.dataset.reseed(info.seed)  # a seed that no other worker has, and no other epoch


for name, cure in (("as it is", None), ("reseeded", PickledByValue(own_numbers))):
    eight = DigitFiles(8)
    rows = []
    for _ in range(2):
        for _ in DataLoader(eight, 4, num_workers=2, worker_init_fn=cure):
            pass
        rows += eight.log[:, 3].view(2, 4).tolist()
    print(f"{name}: " + " | ".join(" ".join(f"{d:4.0f}" for d in row) for row in rows) + "  degrees")
    twins = 16 - len({d for row in rows for d in row})
    if cure is None:
        claims.record("P6", "own generator: angles are repeated", "2 workers, 2 epochs", twins, "of 16", 1, 16)
    else:
        claims.record("P6", "reseeded: no angle comes twice", "2 workers, 2 epochs", twins, "of 16", 0, 0)

# %% [markdown] name="cheaper_text"
# ## 8 · The best fix: less work
#
# More workers do the same work in more places. Look at the work first.
#
# - **Decode once.** Decoded, these digits are larger than the files, but not large. If they fit, keep them as one tensor.
# - **Augment in batches.** When you rotate one image at a time, you mostly pay for the calls. Rotate 64 at once; on a GPU, do it there.
# - **Collate nothing.** If a data set has `__getitems__`, `DataLoader` passes it all indices of a batch at once, and it can return a finished batch.
#
# **Predict.** With all three, and no workers, how many times as fast is a batch?

# %% name="guess_cheaper"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 6.0  # no decoding, rotation at a third of the cost, no stacking of 64 small tensors
### END GUESS
cheaper_guess = Prediction("Decoded once, turned in batches", my_guess, "times as fast")


# %% name="cheaper"
class Decoded(Dataset):
    """All images decoded beforehand; augmented one by one."""

    def __init__(self, files):
        self.images = torch.stack([decode(file) for file in files.files])
        self.labels = files.labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        degrees = 40 * torch.rand(1) - 20
        return rotate(self.images[i][None], degrees)[0], self.labels[i]


class InBatches(Decoded):
    def __getitems__(self, indices):
        degrees = 40 * torch.rand(len(indices)) - 20
        return rotate(self.images[indices], degrees), self.labels[indices]


# %% name="cheaper_measured"
threads = torch.get_num_threads()
torch.set_num_threads(1)  # one core each; otherwise we would be comparing cores
ways = {
    "decode and turn each": DataLoader(files, BATCH),
    "decoded once, turn each": DataLoader(Decoded(files), BATCH),
    "decoded once, turn in batches": DataLoader(InBatches(files), BATCH, collate_fn=lambda batch: batch),
}
pace = {name: seconds_a_batch(loader, epochs=3) for name, loader in ways.items()}
torch.set_num_threads(threads)
cheaper_guess.reveal(pace["decode and turn each"] / pace["decoded once, turn in batches"])
before = pace["decode and turn each"]
for name, now in pace.items():
    print(f"{name:31}{1e3 * now:6.1f} ms a batch, {1e3 * (before - now):.1f} saved by this step")
    before = now
print(f"files {human_bytes(sum(map(len, files.files)))}, decoded {human_bytes(len(files) * image.nbytes)}")

# %% name="cheaper_loop"
cached = DataLoader(InBatches(files), BATCH, shuffle=True, collate_fn=lambda batch: batch)
cheap = diagnose(cached, train_step)
print("no workers at all:", told(cheap))
claims.record(
    "T11",
    "cheaper data makes up for workers",
    "decoded once, in batches",
    slow["loop"] / cheap["loop"],
    "times as fast",
    1.5,
    math.inf,
)

# %% [markdown] name="cheaper_explained"
# Two savings, and together they are nearly all of a batch. Reading decoded images saves the decoding and what it does to the caches (section 1). What is left is mostly one small call after another for each image, and one large call for all 64 saves those. (The three ways were each timed on one core, so compare them only with each other.)
#
# You cannot avoid decoding if the data do not fit in memory; batching is always possible. In between are formats that pack many samples into one large file (tar shards as WebDataset reads them, LMDB): sequential reads, one round trip for many samples. And you can store images at the size you train on.
#
# ## 9 · To the device
#
# The last leg is from the host's memory to the GPU's. The copy engine of a GPU reads host memory directly, but only pages that the system has promised not to move: **pinned** pages. Ordinary (*pageable*) memory is first copied, piece by piece, to a pinned buffer in the driver. `pin_memory=True` makes `DataLoader` put each batch into pinned memory, in a thread. Only from there can `tensor.to(device, non_blocking=True)` return at once, while the copy runs alongside the computing.
#
# The law: a pageable copy is two copies. One after the other, they run at the rate 1 / (1/host + 1/bus). If the driver overlaps them piece by piece, they run at best at the slower of the two rates. We can measure the host's rate here; the bus's rate comes from its standard.

# %% name="copy_law"
block = torch.empty(64 * 2**20, dtype=torch.uint8)
target = torch.empty_like(block)
host = block.nbytes / benchmark(lambda: target.copy_(block), runs=10).median / 1e9
for generation, transfers in ((3, 8), (4, 16), (5, 32)):
    bus = transfers * 16 * 128 / 130 / 8  # GB/s: transfers/s in 10^9, 16 lanes, 128 of 130 bits carry data
    low, high = 1 / (1 / host + 1 / bus), min(host, bus)
    print(
        f"PCIe {generation}.0 x16: {bus:.1f} GB/s at best; host copy {host:.1f} GB/s; pageable {low:.1f} to {high:.1f} "
        f"GB/s; so pinned is {bus / high:.1f} to {bus / low:.1f} times as fast"
    )

# %% name="pinned"
if device.type == "cuda":
    pinned, at = block.pin_memory(), torch.empty_like(block, device=device)
    copies = compare(lambda: at.copy_(block), lambda: at.copy_(pinned, non_blocking=True), runs=20)

    def call(source):
        """Return how far into the copy a non_blocking call returns, in per cent."""
        runs = []
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            at.copy_(source, non_blocking=True)
            runs.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        return 100 * statistics.median(runs) / (copies.after if source is pinned else copies.before).median

    print(f"64 MiB, pageable -> pinned: {copies}; the call returns after {call(pinned):.0f} % of the copy")
    claims.record("C10", "pinned memory: copies 2 to 3x faster", "64 MiB to the GPU", copies.speedup, "x", 2, 3)
    claims.record("C10", "and asynchronous", "non_blocking call", call(pinned), "% of the copy", 0, 20)
else:
    claims.not_measured("C10", "pinned memory: copies 2 to 3x faster", "64 MiB to the GPU: needs a CUDA GPU")
    claims.not_measured("C10", "and asynchronous", "non_blocking call: needs a CUDA GPU")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        next(iter(DataLoader(plain, 32, pin_memory=True)))
    print("No copies to time here. pin_memory=True:", str(said[0].message) if said else "no warning")

# %% [markdown] name="pinned_explained"
# So "2 to 3 times" is the ratio of a bus to a host's memory, not a property of pinning. A fast bus in a host with slow memory gives more; an old bus gives less.
#
# ### Three traps
#
# 1. `non_blocking=True` from *pageable* memory does not overlap: the driver has to go through its buffer first, and the call returns when the copy is nearly done.
# 2. Pinning is itself a copy: `batch.pin_memory().to(device)` in the loop does one after the other what the loader's thread does alongside the step.
# 3. In the other direction, `gpu_tensor.to("cpu", non_blocking=True)` returns before the numbers have arrived.

# %% name="traps"
TRAPS = (
    "non_blocking from pageable memory waits",
    "pinning in the loop gains nothing",
    "a copy to the host can be read too early",
)
if device.type == "cuda":
    block.fill_(0)
    claims.record("C10", TRAPS[0], "64 MiB to the GPU", call(block), "% of the copy", 50, math.inf)

    both = compare(lambda: at.copy_(block), lambda: at.copy_(block.pin_memory()), runs=20)
    claims.record("C10", TRAPS[1], "64 MiB to the GPU", both.speedup, "times as fast", 0, 1.1)

    ones = torch.ones(4096, 4096, device=device)
    for _ in range(20):
        busy = ones @ ones  # keeps the GPU busy first
    back = at.fill_(7).to("cpu", non_blocking=True)
    early = (back[-1024:] == 7).float().mean().item()
    torch.cuda.synchronize()
    late = (back[-1024:] == 7).float().mean().item()
    print(f"right numbers: {early:.0%} when read at once, {late:.0%} after synchronize()")
    claims.record("C10", TRAPS[2], "64 MiB from the GPU", 100 * early, "% right at once", 0, 99)
else:
    for trap in TRAPS:
        claims.not_measured("C10", trap, "64 MiB: needs a CUDA GPU")
    print("Traps 1 to 3 need a CUDA GPU.")

# %% [markdown] name="traps_explained"
# For the third: synchronise before you read, or leave out `non_blocking` on the way back. And a fourth that no timing shows: pinned pages cannot be swapped out, so pin batches, not data sets.

# %% [markdown] name="task"
# ## 10 · Your turn: fix a slow loader
#
# A training job reads a `DigitFiles` with some latency through this loader:
#
# ```python
# def slow_loader(dataset, batch_size):
#     return DataLoader(dataset, batch_size, shuffle=True)
# ```
#
# **Contract.** `make_loader(dataset, batch_size, step_seconds)` returns a loader that can be iterated once for each epoch.
#
# - **Pace.** From its first batch on, an epoch takes at most 1.5 times as long as its steps alone, which take `step_seconds` each. The rule of section 3 is enough, on any machine and without a margin: these reads wait, and need no core. The first epoch does not count. The check has two data sets: in one a batch takes more than five steps to read, in the other less than one.
# - **Thrift.** Use at most 2 workers more than the rule of section 3 asks for, and the same ones in each epoch. At most 3 batches a worker wait (`prefetch_factor`). The files do not fit in memory: every epoch reads each file once and keeps nothing. You may read up to 8 files beforehand, to measure; the median of a few is a good estimate.
# - **The same samples.** Each file comes once an epoch, in batches of `batch_size` with one smaller batch at the end, in a new random order each epoch.
# - **Fresh augmentation.** Images are rotated as before; no two workers and no two epochs draw the same angles. (`DigitFiles` has its own generator, and `reseed`.)
#
# Wrap the functions that workers run in `PickledByValue`, and your loader works on any system. (The check runs a dozen epochs without a word: about twenty seconds, or more than a minute where workers are spawned.)


# %% name="loader" answer=true reveal=true
def make_loader(dataset, batch_size, step_seconds):
    ### BEGIN SOLUTION
    def own_numbers(worker_id):
        info = get_worker_info()
        info.dataset.reseed(info.seed)

    reads = []
    for i in range(5):
        start = time.perf_counter()
        dataset[i]
        reads.append(time.perf_counter() - start)
    workers = math.ceil(batch_size * statistics.median(reads) / step_seconds)
    return DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        worker_init_fn=PickledByValue(own_numbers),
    )
    ### END SOLUTION


# %% name="loader_check"
make_loader = check("data_loading.loader", make_loader)

# %% name="loader_hint"
hint("data_loading.loader")

# %% [markdown] name="play_text"
# ## 11 · Play
#
# This is the model of section 4, with every knob. Every eighth batch takes three times as long; the title says how long each worker works. Try three workers, then four: **why are four worse than three?** Then make every *seventh* batch slow. How few workers keep the idle share below 30 %, and what does the first batch cost?

# %% name="play"


def draw(batch_ms, step_ms, workers, prefetch, every):
    times = [batch_ms / 1e3 * (3 if k % every == 4 else 1) for k in range(24)]
    line = LoaderTimeline.simulate(times, step_ms / 1e3, workers, prefetch)
    work = ", ".join(f"{1e3 * seconds:.0f}" for seconds in line.work())
    title = f"{workers} workers, {prefetch} batches each: the device idles {line.idle:.0%}"
    return line.plot(f"{title}\nms of work a worker: {work}")


explore(
    draw,
    "Lanes of the device and the workers over time; gaps in the device's lane are idle time.",
    batch_ms=(40, (5, 10, 20, 40, 80, 160)),
    step_ms=(10, (5, 10, 20, 40)),
    workers=(3, range(0, 9)),
    prefetch=(2, range(1, 9)),
    every=(8, (7, 8)),
)

# %% [markdown] name="play_explained"
# Four divides eight, so batches 4, 12 and 20 are all dealt to the same worker, which then works longer than any of three would. With every seventh slow, they are spread out again, and four are better than three.

# %% [markdown] name="summary_text"
# ## 12 · Before and after

# %% name="summary"
rows = {
    "PNG digits, no workers": (slow, 0),
    "PNG digits, two workers (section 2)": (slow | {"loop": two.seconds / len(two.steps)}, len(two.steps)),
    "PNG digits, decoded once, in batches, no workers": (cheap, 0),
    "far, no workers": (alone["far"], 0),
}
try:
    repaired = make_loader(far, 16, alone["far"]["compute"])
    loop = {"loop": seconds_a_batch(repaired, train_step, epochs=2)}
    rows["far, your loader"] = alone["far"] | loop, len(repaired)
    del repaired
except NotImplementedError:
    print("Fill in the answer cell to see your loader here.")
for name, (seconds, n) in rows.items():
    idle, fill = 1 - seconds["compute"] / seconds["loop"], seconds["data"] / n / seconds["loop"] if n else 0
    told = f"the device idles {idle:.0%}" + (f", {fill:.0%} for the fill" if n else "")
    print(f"{name:50}{1e3 * seconds['loop']:7.1f} ms a batch, {told}")

# %% [markdown] name="summary_explained"
# If the device still idles with your loader although the check passed, look at the clocks. The check starts its clock at the first batch; this table times whole epochs, and these are short. The last figure in a line says how much of the time is the wait for the first batch, which no number of workers shortens.

# %% name="verdicts"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Time the data, the step and the loop. Run in sequence, they add up; overlapped, you pay the larger one plus the fill of each epoch.
# - Workers ≥ seconds of a batch / seconds of a step. Waiting is hidden without limit; computing only up to the number of cores.
# - `persistent_workers` saves the start-up; `prefetch_factor` covers bad moments and costs memory: workers × factor × batch.
# - What goes to workers has to be picklable: use modules, not lambdas or cells. Scripts need their guard.
# - If a data set has its own generator, reseed it in each worker.
# - Less work beats more workers: decode once, augment in batches.
#
# **What to reach for when.** Device idle: first `num_workers` from the quotient, with `persistent_workers`. Cores full: decode once, batch the augmentation, or do it on the GPU. Only short stalls: `prefetch_factor`. Copies show up in a GPU's timeline: `pin_memory` with `non_blocking`.
#
# **Sources.** PyTorch documentation: `torch.utils.data` (multi-process loading, memory pinning), *Reproducibility* and *CUDA semantics* (pinned memory buffers); Python documentation: `multiprocessing` (start methods, the spawn guidelines), `pickle`; PyTorch tutorial *A guide on good usage of non_blocking and pin_memory()*.
