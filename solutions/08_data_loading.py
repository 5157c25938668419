# %% [markdown] name="title"
# # Feeding the device: data loading
#
# **A device that waits for data costs as much as one that works. Three timings tell you whether it waits, and one division tells you how many workers fix it.**
#
# | | |
# |---|---|
# | After this you can | tell a data-bound loop from a compute-bound one and compute its idle share; write a prefetcher; work out how many workers you need before trying, and what they cost; recognize repeated random numbers and objects that cannot be sent to a worker; overlap copies with kernels |
# | Time | 120 to 150 minutes (a good place to stop is after section 6) |
# | Difficulty | ●●○ |
# | Needs | a CPU (for worker processes); copies from pinned memory are timed if there is a CUDA GPU |
# | Before this | [[start_here]] |
# | Syllabus | T11, C10, P6 |

# %% name="setup" setup=true
import contextlib
import math
import os
import queue
import random
import statistics
import threading
import time
import warnings

from helpers import (
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
    explore,
    hint,
    human_bytes,
    loader_path,
    pick_device,
    rotate,
    script_as_notebook,
    show,
    show_table,
    sign_of_life,
)

# %% name="setup_torch" setup=true
import numpy as np
import psutil
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

# %% name="machine"
script_as_notebook()  # run as a plain script, this lab starts processes as a notebook does
warnings.filterwarnings(
    "ignore", message="This DataLoader will create"
)  # it counts cores, and does not know about waiting
warnings.filterwarnings("ignore", message="Got pickle error")  # section 7 looks at the error itself

device = pick_device()
claims = Claims()
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
start_method = torch.multiprocessing.get_start_method()
print(f"device: {device}, torch {torch.__version__}; {cores} cores; workers start by {start_method!r}")

# %% [markdown] name="files_text"
# ## 1 · Is this loop data-bound?
#
# A training loop has two largely independent halves.
#
# - The loader fetches samples, decodes them, augments them and stacks them into a batch: work for the CPU, the disk and the network.
# - The training step is work for the device.
#
# If the loader is slower than the step, a faster GPU does not help.
#
# The data set consists of handwritten digits, each in its own PNG file. Reading a sample decodes the file and rotates the image by a random angle.

# %% name="files"
with sign_of_life("writing the files"):
    files = DigitFiles(1024)
figure = Figure(figsize=(8, 2.2), layout="constrained")
for i, axes in enumerate(figure.subplots(2, 8).flat):
    axes.imshow(files[i % 8][0][0], cmap="gray")
    axes.set_axis_off()
figure.suptitle("Eight files, read twice: decoded and rotated again each time")
show(figure, "Two rows of the same eight digits, each rotated by a different angle in the second row.")

# %% name="parts"
image = decode(files.files[0])[None]
ten = torch.tensor([10.0])
costs = {
    "decode": benchmark(lambda: decode(files.files[0]), runs=200).median,
    "rotate": benchmark(lambda: rotate(image, ten), runs=200).median,
}
print({name: f"{1e6 * seconds:.0f} µs" for name, seconds in costs.items()}, f"a file: {len(files.files[0])} bytes")

# %% [markdown] name="costs_text"
# **Predict.** Decoding and rotating were each timed alone, in a loop. Reading a full sample decodes it, then rotates it. How many µs does it take?

# %% name="guess_sample"
my_guess = None  # µs
### BEGIN GUESS
my_guess = 1e6 * (costs["decode"] + costs["rotate"])  # one after the other
### END GUESS
sample_guess = Prediction("A full sample", my_guess, "µs")

# %% name="costs"
both = benchmark(lambda: rotate(decode(files.files[0])[None], ten), runs=200).median
costs["full sample"] = benchmark(lambda: files[0], runs=200).median
sample_guess.reveal(1e6 * costs["full sample"])
print(f"decoding, then rotating, without the rest of a sample: {1e6 * both:.0f} µs")

# %% [markdown] name="step_text"
# Two timings of parts do not add up to the timing of the whole.
#
# - A full sample also draws an angle and writes the log.
# - The two parts may take longer together than apart. Alone in a loop, each has the core's caches to itself; when they alternate, each finds them full of the other's data. Compare the last line with the sum of the two costs.
# - Other programs may have slowed down one of the timings. If the last line is *below* that sum, they probably did.
#
# So measure each cost in its context. Here, that means as part of a full sample.
#
# ### The step
#
# - With a CUDA GPU, the training step below is a real one.
# - A real step on a CPU would compete with the decoding for the same cores, unlike a step on a GPU. So on a CPU the step is a **stand-in**: it sleeps for 10 ms and uses no core.

# %% name="step"
BATCH = 64
if device.type == "cuda":
    model = SmallCNN(128).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def fast_lane(data, batch_size=BATCH, num_workers=0, **options):
    """Return a DataLoader; its batches are pinned for a CUDA GPU if workers make them (section 11 says why)."""
    pin = device.type == "cuda" and num_workers > 0
    return DataLoader(data, batch_size, num_workers=num_workers, pin_memory=pin, **options)


def train_step(batch):
    """A training step on a batch: a real one on a CUDA GPU, a 10 ms stand-in elsewhere."""
    if device.type != "cuda":
        time.sleep(0.010)
        return
    images, labels = (t.to(device, non_blocking=True) for t in batch)
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()  # waits for the GPU, as logging a loss does


# %% [markdown] name="diagnose_text"
# ### Three timings
#
# The diagnosis needs no profiler. Time the loader alone, time the step alone on one batch, and time the loop, all in seconds per batch. The fastest of several epochs counts, because other programs can only make an epoch slower.
#
# The next cell compares the loop with the sum of the other two.


# %% name="diagnose"
def seconds_a_batch(loader, step=lambda batch: None, epochs=2, through=iter):
    """Return seconds per batch in the best epoch; a first epoch that starts workers does not count."""
    times = []
    if loader.num_workers:
        for _ in loader:
            pass
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in through(loader):
            step(batch)
        times.append((time.perf_counter() - start) / len(loader))
    return min(times)


def diagnose(loader, step, epochs=3):
    """Return seconds per batch for the data alone, the step alone, and the loop. `loader` has no workers."""
    batch = next(iter(loader))
    step(batch)  # the first step is slower
    rounds = [(seconds_a_batch(loader, epochs=1), seconds_a_batch(loader, step, 1)) for _ in range(epochs)]
    data, loop = (min(times) for times in zip(*rounds, strict=True))
    return {"data": data, "compute": benchmark(lambda: step(batch), runs=len(loader)).median, "loop": loop}


# %% name="without_workers"
with sign_of_life("three epochs of data, three of the loop"):
    slow = diagnose(fast_lane(files, shuffle=True), train_step)
print(*(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in slow.items()), sep=", ")
print(f"the device idles {1 - slow['compute'] / slow['loop']:.0%}")
whole = slow["data"] + slow["compute"]
print(f"data + compute: {1e3 * whole:.1f} ms; the loop takes {slow['loop'] / whole:.2f} times that")

# %% [markdown] name="diagnose_explained"
# The loop takes about as long as the other two together, or longer if the machine is busy. Without workers, `DataLoader` makes a batch when the loop asks for one, in the same process. The device idles while the loader decodes, and the loader idles while the device works.
#
# Read the three figures like this:
#
# - *loop ≈ compute*: compute-bound. The loader is fast enough.
# - *loop ≈ data, and data > compute*: data-bound. The rest of this lab helps.
# - *loop ≈ data + compute*: nothing overlaps. This is the easiest case to fix.
#
# The **idle share** is 1 − compute / loop.
#
# - The loop's MFU (the fraction of the device's peak FLOP/s in use) equals the step's MFU × compute / loop.
# - Do not use `nvidia-smi` for this: its "utilization" is the fraction of time in which *any* kernel ran, and one small kernel counts in full.
# - The profiler of [[where_the_time_goes]] shows the wait as the *data* phase of a step.
#
# Divide *data* by the 64 samples of a batch. The result may be well above the full sample of section 1, which read one file 200 times: an epoch reads a different file each time, and stacks 64 samples per batch. That is one more cost to measure in its context.
#
# > **Note:** on a GPU, a loop that never waits for a result (no `loss.item()`, no logging) overlaps a little even without workers, because the GPU works through its queue while Python decodes.
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

# %% [markdown] name="prefetch_task"
# ## 2 · Your turn: one batch ahead
#
# While the device works, a helper could draw the next batch. The simplest helper is a **thread**: it draws batches ahead of the loop and puts them into a queue, from which the loop takes them.
#
# The idea fits in five lines of code, which leave four problems:
#
# - the queue grows without limit;
# - an error in the thread is lost, and the loop waits forever;
# - if the loop ends early, the thread goes on drawing;
# - the loop itself still copies each batch to the device.
#
# **Contract.** `prefetched(batches, depth, device)` is a generator, or another iterator with a method `close()`.
#
# - **All, in order.** It yields each batch of the iterable `batches` once, in order, as a tuple of its tensors. A batch may be a list or a tuple, of any number of tensors. After the last batch, every further `next()` raises `StopIteration` at once.
# - **One thread** draws all batches, and it is not the thread that runs the loop. Two prefetchers may run side by side.
# - **Depth.** While the loop is busy, `depth` batches are drawn beyond those it has received, including the one that the thread holds. There are never more, not even before the loop takes its first batch. For example, with depth 2, while the loop works on batch 0, batches 1 and 2 have been drawn and batch 3 has not.
# - **To the device.** For a CUDA device the thread pins each tensor (`pin_memory()`) and sends the pinned copy with `.to(device, non_blocking=True)`. For any other device it calls `.to(device)` and pins nothing. A CUDA device comes with its index, as in `cuda:1`, because CUDA's current device is per thread: plain `cuda` would mean GPU 0 in a new one. The copy uses the thread's current stream. (That frees the loop from the copy. Section 11 adds the side stream that lets a copy overlap kernels.)
# - **Errors.** An error in drawing or sending a batch is raised in the loop, unchanged, after the batches that were drawn before it.
# - **The end.** The thread ends with the last batch, with an error, and after `close()`, even if no batch has been taken. After `close()` no further draw starts.


# %% name="prefetch" answer=true reveal=true
def prefetched(batches, depth, device):
    ### BEGIN SOLUTION
    ready, room, over = queue.SimpleQueue(), threading.Semaphore(depth), threading.Event()

    def send(tensor):
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def draw():
        try:
            source = iter(batches)
            while room.acquire() and not over.is_set():  # room for one batch more
                ready.put((tuple(send(tensor) for tensor in next(source)), None))
        except Exception as error:  # StopIteration, too: it says that these were all
            ready.put((None, error))

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                break
            room.release()  # the loop takes this one
            yield batch
        if not isinstance(error, StopIteration):
            raise error
    finally:  # when the generator is closed as well
        over.set()
        room.release()
        thread.join()
    ### END SOLUTION


# %% name="prefetch_check"
prefetched = check("data_loading.prefetch", prefetched)

# %% name="prefetch_hint"
hint("data_loading.prefetch")

# %% [markdown] name="thread_text"
# **Predict.** How many ms per batch does the loop of section 1 take with `prefetched` around its loader?

# %% name="guess_thread"
my_guess = None  # ms per batch
### BEGIN GUESS
my_guess = 1e3 * max(slow["data"], slow["compute"])  # the slower half sets the pace
### END GUESS
thread_guess = Prediction("The loop with a prefetching thread", my_guess, "ms per batch")


# %% name="threaded"
def ahead(loader):
    here = torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device
    return prefetched(loader, 2, here)


plain_loader = DataLoader(files, BATCH, shuffle=True)  # not pinned: the thread pins
rounds = [  # the data alone, the plain loop and the new one alternate, so that a slow moment affects all
    (
        seconds_a_batch(plain_loader, epochs=1),
        seconds_a_batch(plain_loader, train_step, 1),
        seconds_a_batch(plain_loader, train_step, 1, through=ahead),
    )
    for _ in range(3)
]
data_alone, plain, threaded = (min(times) for times in zip(*rounds, strict=True))
thread_guess.reveal(1e3 * threaded)
print(
    f"in the same rounds: data alone {1e3 * data_alone:.1f} ms, the plain loop {1e3 * plain:.1f}, with the thread {1e3 * threaded:.1f}"
)
quicker, slower = sorted((data_alone, slow["compute"]))
formula = slower + quicker / len(plain_loader)  # once per epoch, one half does not overlap
print(f"the slower half, and the fill: {1e3 * formula:.1f} ms; the loop takes {threaded / formula:.2f} times that")

# %% [markdown] name="threads_text"
# If the two halves run side by side, the slower one sets the pace: with a 10 ms step, the data. The lines above show what the thread gains on this machine, with all three loops timed in alternation.
#
# - A thread can hide at most the quicker half. Without a GPU that is the 10 ms of the step, a small part of this loop.
# - It costs something, too: batches change threads, and the same small calls may take more time in the new thread than in the main one, or less. Where that costs as much as the step, or where other programs take the cores, the loop with the thread is no faster than the plain one.
#
# Would more threads help?
#
# **Predict.** Read some digits with one thread, then with two. By what factor are two threads faster than one if the reads *compute* (decode, rotate)?

# %% name="guess_threads"
my_guess = None  # times as fast, computing
### BEGIN GUESS
my_guess = 1.0  # one Python, one lock
### END GUESS
computing_guess = Prediction("Two threads that compute", my_guess, "times as fast")


# %% name="threads"
def read_all(store, threads):
    """Read every sample with this many threads."""
    shares = [range(k, len(store), threads) for k in range(threads)]
    crew = [threading.Thread(target=lambda share=share: [store[i] for i in share]) for share in shares]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


digits, slow_digits = DigitFiles(128), DigitFiles(32, latency=0.004, augmented=False)
computing_guess.reveal(compare(lambda: read_all(digits, 1), lambda: read_all(digits, 2), runs=3).speedup)
waiting = compare(lambda: read_all(slow_digits, 1), lambda: read_all(slow_digits, 2), runs=3).speedup
print(f"two threads whose reads wait 4 ms each, as for a network: {waiting:.2f} times as fast")

# %% [markdown] name="workers_text"
# In the standard build of Python, the threads of a process share a lock, the GIL: only one of them runs Python at a time. (Free-threaded builds do not have it.) Waiting and large kernels release it; small calls hold it most of the time. So a thread is right for waiting and for copying, and `DataLoader` uses one for *that* (`pin_memory=True`). For decoding it starts processes.
#
# ## 3 · Workers
#
# `num_workers=2` starts two processes, each with its own copy of the data set.

# %% name="path"
show(
    loader_path(),
    "The path of a batch. The main process deals lists of indices to two workers, in turn. Each worker makes complete "
    "batches and puts them into shared memory. The loop takes them in order, through a thread that pins them for a GPU.",
)

# %% [markdown] name="fill_text"
# - The main process deals out lists of indices.
# - Each worker makes *complete* batches and keeps `prefetch_factor` of them (2 by default) finished or in progress. It is the `depth` of section 2, but per worker.
# - Each epoch starts with an empty queue, and its first batch takes the full time, because one worker makes it alone. That is the *fill*.
#
# The next cell runs the loop from the picture in section 1 (12 batches) with two workers.

# %% name="two_workers"
with sign_of_life("three epochs with two workers"):
    two = min((LoaderTimeline.of(files, BATCH, 2, train_step) for _ in range(3)), key=lambda run: run.seconds)
n = len(two.steps)
print(f"two workers: {1e3 * two.seconds / n:.1f} ms per batch; none: {1e3 * slow['loop']:.1f}")
show(
    two.plot(f"Two workers: the device idles {two.idle:.0%}"),
    "Three lanes: the device and two workers. The workers' bars overlap in time with each other and with the device's.",
)
expected = max(slow["data"] / n + slow["compute"], slow["data"] / 2)  # with a batch's cost in a process of its own
formula = max(
    two.making / n + slow["compute"], max(two.work()) / n
)  # with its cost in this run; the later worker counts
rest = two.seconds / n - formula
print(
    f"of these, the formula explains {1e3 * expected:.1f} ms; sharing the cores adds {1e3 * (formula - expected):+.1f}"
)
print(f"ms, and handing over, which is the rest, {1e3 * rest:+.1f} ms")
print(f"a batch takes a worker {1e3 * two.making:.1f} ms; it took the main process {1e3 * one.making:.1f} ms, alone")
print(f"an idle device gets it {1e3 * two.handover:.1f} ms after its last file was read")

# %% [markdown] name="workers_explained"
# Side by side, the slower half sets the pace:
#
# > **per batch: max(compute, data / workers)**; per epoch of *n* batches: **max(data + n × compute, n × data / workers)**, where the single *data* is the fill. It matters only in short epochs.
#
# Two more costs are added to that, and the last lines show their sources.
#
# - *Sharing*: if two workers and the main process have few cores between them, a batch takes each worker longer than it would take one process alone. (Sharing can also be negative: the main process spreads even small calls over several threads, which may slow them; a worker computes with one. The figures come from runs at different moments, so on a busy machine they need not agree.)
# - *Handing over* is the rest: samples are stacked, the batch is put into shared memory, and the main process wakes up and maps it. This cost does not matter while the device has a batch, only while it waits.
#
# Do workers deliver the same batches?
#
# - *The order* does not depend on them: the main process draws it, and batches are delivered in turn even if a later one is ready first (`in_order=False` changes that). [[Tokens]] relies on it.
# - *The augmentation* may differ, as section 8 shows.
#
# ## 4 · How many workers?
#
# It depends on what a worker does. `files` decodes and rotates. The second data set, `far`, waits 4 ms for each file, as if it came from object storage, and decodes it.
#
# **Predict.** Each data set is read alone, without training. How many times as fast is it with 8 workers as with none, for `far` (waiting) and for `files` (computing)?

# %% name="guess_scaling"
my_guess = None  # times as fast, far
### BEGIN GUESS
my_guess = 8  # waiting needs no core
### END GUESS
far_guess = Prediction("8 workers that wait", my_guess, "times as fast")

# %% name="guess_scaling_files"
my_guess = None  # times as fast, files
### BEGIN GUESS
my_guess = min(8, cores)
### END GUESS
files_guess = Prediction("8 workers that compute", my_guess, "times as fast")

# %% name="scaling"
far = DigitFiles(256, latency=0.004, augmented=False)
stores = {"far": (far, 16), "files": (files, BATCH)}
counts = (0, 2, 4, 8)
data = {}
with sign_of_life("two data sets with 0 to 8 workers"):
    alone = {"files": slow, "far": diagnose(fast_lane(far, 16), train_step, epochs=1)}
    for name, (store, size) in stores.items():
        loaders = (DataLoader(store, size, num_workers=n, persistent_workers=True) for n in counts[1:])
        times = [seconds_a_batch(loader, epochs=1) for loader in loaders]
        data[name] = [alone[name]["data"], *times]
speedup = {name: [times[0] / t for t in times] for name, times in data.items()}
far_guess.reveal(speedup["far"][-1])
files_guess.reveal(speedup["files"][-1])

# %% name="scaling_table"
table = [("speedup over no workers", *(f"{n} workers" for n in counts[1:]))]
table += [(name, *(f"{each:.1f}" for each in values[1:])) for name, values in speedup.items()]
table.append((f"the cores, at most {cores}", *(str(min(n, cores)) for n in counts[1:])))
show_table(table)

# %% [markdown] name="scaling_explained"
# - Workers hide **waiting** beyond the number of cores, because a worker that waits needs no core.
# - **Computing** has to be divided among the cores, and the main process needs one too.
# - Other programs take their share, so `files` may stay below the number of cores; it may also exceed it a little (see *sharing* in section 3).
#
# So
#
# > **workers ≥ (seconds one worker needs per batch) / (seconds per step)**, and if the workers compute, no more than there are cores.
#
# If you run out of cores before you reach the quotient, more workers do not help: make the data cheaper (section 10).
#
# A common rule of thumb is *4 to 8 workers per GPU*. Compare it with the quotient for `far`, and for a GPU three times as fast:

# %% name="advice"
needed = {name: times[0] / slow["compute"] for name, times in data.items()}
for name, quotient in needed.items():
    took = f"{1e3 * data[name][0]:.0f} ms per batch / {1e3 * slow['compute']:.1f} ms per step"
    print(f"{name}: {took} = {quotient:.1f} -> {math.ceil(quotient)} workers")
for gpu, speed in (("one GPU", 1), ("a GPU three times as fast", 3)):
    count = math.ceil(speed * needed["far"])
    claims.record("C10", "4 to 8 workers per GPU", f"far, {gpu}", count, "workers", 4, 8)

# %% [markdown] name="advice_explained"
# The rule of thumb does not know how long your step takes: a GPU three times as fast asks for three times the workers. (Without a GPU the step is a stand-in, so the table of claims records the number of workers without a verdict.) Nor does it know that a worker may only wait: PyTorch warns as soon as there are more workers than cores. So compute the quotient.
#
# Now the loop itself, with as many workers as the quotient asks for:

# %% name="fed"
workers = min(math.ceil(needed["far"]), 16)
loader = fast_lane(far, 16, num_workers=workers, persistent_workers=True)
with sign_of_life(f"four epochs with {workers} workers"):
    n, before, loop = len(loader), alone["far"], seconds_a_batch(loader, train_step, epochs=3)
fill = before["data"] / n  # seconds per batch
formula = max(fill + before["compute"], before["data"] / workers)
print(f"without workers {1e3 * before['loop']:.0f} ms per batch, with {workers} {1e3 * loop:.1f}")
print(
    f"slower half {1e3 * (formula - fill):.1f}, fill {1e3 * fill:.1f}, rest {1e3 * (loop - formula):.1f} ms per batch"
)
said = "with workers: the slower half, and the fill"
claims.record("T11", said, f"far, {workers} workers", loop / formula, "x the formula", 0.8, 1.35)

# %% [markdown] name="prefetch_text"
# The *rest* is what the formula leaves out: batches are handed over, processes wake up, and other programs take their turn on the cores. On a busy machine it can be as large as the fill. Then the table of claims in section 12 may say "did not hold", although the workers did overlap with the steps.
#
# ## 5 · `prefetch_factor` covers slow moments
#
# More batches in the queue do not change the average, because workers do not make batches any faster. They change how long a slow moment (a slow read, a large file) may last before the device idles.
#
# - Below, every eighth batch takes 120 ms and all others 10 ms, with two workers.
# - The step takes 15 ms (simulated, on every device).
# - A model of `DataLoader` with three rules predicts the result: deal in turn; at most `prefetch_factor` batches per worker in flight; deliver in order.
#
# **Predict.** With 1 batch per worker in flight, what share of the time is the device idle? (On paper: with 2 workers and 1 batch in flight per worker, batch *k* is requested when batch *k* − 2 is taken. Draw the lanes for batches 0 to 12; from 4 on they repeat.)

# %% name="guess_prefetch"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (1 - 8 * 15 / (120 + 6 * 15))  # each bad batch takes 120 ms, of which two steps are covered
### END GUESS
prefetch_guess = Prediction("Idle share with prefetch_factor=1", my_guess, "%")


# %% name="prefetch_measured"
class Waits(Dataset):
    """Item k is a complete batch, which takes some waiting."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, k):
        time.sleep(self.seconds[k])
        return k


def idle_shares(prefetch, every):
    """Return the idle share with two workers when one batch in `every` is slow: measured, and by the model."""
    seconds = [0.120 if k % every == 4 else 0.010 for k in range(24)]
    data, how = PickledByValue(Waits(seconds)), {"num_workers": 2, "prefetch_factor": prefetch}
    loader = DataLoader(data, None, persistent_workers=True, **how)
    measured = 1 - 0.015 / seconds_a_batch(loader, lambda batch: time.sleep(0.015), epochs=1)
    return measured, LoaderTimeline.simulate(seconds, 0.015, 2, prefetch).idle


with sign_of_life("four loaders with slow batches"):
    shares = {(n, 8): idle_shares(n, 8) for n in (1, 4, 8)} | {(8, 7): idle_shares(8, 7)}
prefetch_guess.reveal(100 * shares[1, 8][0])
for (prefetch, every), (idle, model_idle) in shares.items():
    print(f"{prefetch} in flight, every {every}th slow: the device idles {idle:.0%}; the model says {model_idle:.0%}")

# %% [markdown] name="prefetch_explained"
# - **1 in flight.** While a slow batch is made (120 ms), the device has two steps left: batch 2, just taken, and batch 3, already finished. Then it waits. The other six steps of the eight take 6 × 15 = 90 ms. That makes 8 × 15 = 120 ms of work in 120 + 90 = 210 ms: idle for 43%, and a little more for the first fill.
# - **4, then 8 in flight.** The idle share falls and then stops falling, for a reason other than the length of the queue: batches are dealt **in turn**, so with two workers batches 4, 12 and 20 all go to the same one.
# - **Every seventh slow**: the same work, but now both workers share the slow batches, and the device idles less.
#
# ### Explore
#
# This is the model, with all its parameters. Every eighth batch takes three times as long; the title says how long each worker works. Try three workers, then four: **why are four worse than three?** What changes when every *seventh* batch is slow?


# %% name="play"
def draw(batch_ms, step_ms, workers, prefetch, every):
    times = [batch_ms / 1e3 * (3 if k % every == 4 else 1) for k in range(24)]
    line = LoaderTimeline.simulate(times, step_ms / 1e3, workers, prefetch)
    work = ", ".join(f"{1e3 * seconds:.0f}" for seconds in line.work())
    title = f"{workers} workers, {prefetch} batches each: the device idles {line.idle:.0%}"
    return line.plot(f"{title}\nms of work per worker: {work}")


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
# Four divides eight, so one of four workers makes all the slow batches and works longer than any worker of three would. Every seventh batch spreads them out again, and now seven workers have that problem.

# %% [markdown] name="cost_text"
# ## 6 · What workers cost
#
# ### As many workers as batches
#
# The next cell loads the 16 batches of `files` without training, once with 2 workers and once with 16. The start of the workers is included in the times.

# %% name="too_many"
for n in (2, 16):
    start = time.perf_counter()
    got = [time.perf_counter() - start for _ in DataLoader(files, BATCH, num_workers=n)]
    print(f"{n} workers: first batch after {1e3 * got[0]:.0f} ms, all after {1e3 * got[-1]:.0f} ms")

# %% [markdown] name="memory_text"
# With many workers on few cores, *all* of them work on *their* first batch at once, and all are late: compare the first batches.
#
# ### Memory
#
# Finished batches take memory. With 2 workers and `prefetch_factor=4`, the next cell counts the batches that wait after the loop has taken one and paused.

# %% name="waiting"
files.reads.zero_()
batches = iter(DataLoader(files, 32, num_workers=2, prefetch_factor=4))
taken = next(batches)
before = -1
while before < (now := int(files.reads.sum())):
    before = now
    time.sleep(0.3)
waiting = now / 32 - 1
a_batch = sum(t.nbytes for t in taken)
print(f"{waiting:.0f} batches wait, {human_bytes(a_batch)} each: {human_bytes(waiting * a_batch)} in flight")
del batches

# %% [markdown] name="waiting_explained"
# That is workers × `prefetch_factor`.
#
# - For real images, compute this before you choose. A batch of 64 × 3 × 224 × 224 × 4 bytes is 36.75 MiB, so 8 workers with 4 batches each hold 1.15 GiB.
# - On Linux they are in `/dev/shm`, which in a Docker container is 64 MiB unless `--shm-size` changes it. A worker that dies of a *bus error* has usually hit that limit.
#
# ### The data set in each worker
#
# A forked worker shares its parent's memory: a page is copied only when either process *writes* to it. So a data set that is only read should cost nothing.
#
# **Predict.** A data set keeps the names of 400,000 files in a list. A forked worker reads all of them. How many MiB does it copy?

# %% name="guess_copies"
my_guess = None  # MiB, list
### BEGIN GUESS
my_guess = 0  # it only reads
### END GUESS
copies_guess = Prediction("Copied by reading a list of strings", my_guess, "MiB")


# %% name="copies_measured"
class Names(Dataset):
    """Reads all its names; a sample is the number of MiB by which the process's own memory grew."""

    def __init__(self, names, read):
        self.names, self.read = names, read

    def __len__(self):
        return 1

    def __getitem__(self, i):
        before = psutil.Process().memory_full_info().uss  # unique set size: pages that no other process shares
        self.read(self.names)
        return (psutil.Process().memory_full_info().uss - before) / 2**20


names = [f"train/img_{i:06}.png" for i in range(400_000)]
packed = np.array(names, dtype=np.bytes_)  # one block of memory, 20 bytes per name
if start_method == "fork":
    copies_guess.reveal(next(iter(DataLoader(Names(names, lambda n: sum(map(len, n))), None, num_workers=1))))
    array = next(iter(DataLoader(Names(packed, lambda n: (n != b"").sum()), None, num_workers=1)))
    print(f"copied by reading a NumPy array of the same names: {array:.1f} MiB")
else:
    print(f"Not measured here: workers start by {start_method!r}, which copies the data set in any case.")
del names, packed

# %% [markdown] name="copies_explained"
# Python counts references *inside* each object. So reading an object writes to it, and the page that it is on is copied.
#
# - A name of 20 characters takes 69 bytes, which Python's allocator rounds up to 80; times 400,000, that is 30.5 MiB. (From Python 3.12 on, it takes 61 bytes, rounded up to 64: 24.4 MiB.) The list itself, 3 MiB of pointers, stays shared.
# - With 8 workers per GPU and 8 GPUs, each with its own main process, there are 8 × 9 copies of that list: for each GPU, one in each worker and one in the main process. This looks like a leak: memory grows during the epoch.
#
# Keep large data in one array or tensor. (A tensor is better still: it travels to workers in shared memory, however they were started.)
#
# ## 7 · Spawned workers
#
# So far workers may have been *forked*, as copies of a running process. That is the default on Linux up to Python 3.13, and it is unsafe once the process has threads that hold locks. `spawn` (macOS, Windows) starts a new Python that receives the data set by pickle, and `forkserver` (Linux, from Python 3.14) pickles too. With `multiprocessing_context="spawn"` you can try this on any system.
#
# ### What can be sent
#
# Pickle stores a function's *name* and module. A lambda has no name:

# %% name="lambda"
some = DigitFiles(256)


def two_epochs(**options):
    """Return the seconds of an epoch that starts one worker, and of the next, which finds it running."""
    loader = DataLoader(some, 32, num_workers=1, persistent_workers=True, **options)
    return [benchmark(lambda: list(loader), runs=1, warmup=0).median for _ in range(2)]


try:
    two_epochs(multiprocessing_context="spawn", collate_fn=lambda samples: default_collate(samples))
except Exception as error:
    print(f"{type(error).__name__}: {error}".partition(" at 0x")[0])

# %% [markdown] name="cures_text"
# - Put data sets and functions into a **module**, a `.py` file that both notebook and workers import. `DigitFiles` is in `helpers/loading/digit_files.py` for that reason. A class defined in a *cell* has a name, but its module is the notebook, which a new process cannot import.
# - In a notebook, send the code itself: `cloudpickle` stores the code instead of the name. The course's `PickledByValue` does it for a data set or a function, as for `Waits` in section 5.
# - In a script, put everything that *runs* something under `if __name__ == "__main__":`. A spawned process imports the script again, and without that guard it would start workers itself, which Python refuses.
#
# ### What the start costs
#
# Here is the same lambda again, with its code sent along. A worker has to import PyTorch and the course before it can read a file:

# %% name="spawn"
carried = PickledByValue(lambda samples: default_collate(samples))
with sign_of_life("starting workers"):
    starts = {
        "spawn": two_epochs(multiprocessing_context="spawn", collate_fn=carried),
        start_method: two_epochs(),
    }
for name, (start, again) in starts.items():
    print(f"{name}: the epoch that starts the worker {start:.2f} s, the next, which finds it running, {again:.2f} s")

# %% [markdown] name="spawn_explained"
# Without `persistent_workers=True`, every epoch starts all workers again, and so does every pass over a validation loader. With it, the workers stay alive and keep their memory.
#
# ## 8 · Random numbers in workers
#
# Augmentation is random, and each worker starts with a *copy* of all state. Many articles warn that NumPy's random numbers repeat.
#
# The next cell draws from four sources, with two workers for two epochs, four numbers per worker and epoch:
#
# - PyTorch's global generator,
# - Python's `random`,
# - NumPy's global generator,
# - a generator that the data set made for itself (`np.random.default_rng(0)`).
#
# **Predict** how many of the four sources give both workers the same numbers.

# %% name="guess_random"
my_guess = None  # of 4 sources
### BEGIN GUESS
my_guess = 1  # nothing seeds the data set's own
### END GUESS
random_guess = Prediction("Sources that repeat", my_guess, "of 4")


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
twins = torch.stack([torch.isin(epochs[0, :4, s], epochs[0, 4:, s]).sum() for s in range(4)])
again = torch.stack([torch.isin(epochs[1, :, s], epochs[0, :, s]).sum() for s in range(4)])
random_guess.reveal((twins > 0).sum().item())
for name, by_both, twice in zip(("torch", "random", "numpy", "the data set's own"), twins, again, strict=True):
    print(f"{name:20} drawn by both workers: {by_both} of 4, drawn again in the next epoch: {twice} of 8")
claims.record("P6", "workers repeat NumPy's numbers", "its global generator", twins[2].item(), "of 4", 1, 4)

# %% [markdown] name="random_explained"
# - **Seeded for you**: each time workers start, `DataLoader` gives each of them its own new seed, for PyTorch, for Python's `random` and, since PyTorch 1.9 (2021), for NumPy's *global* generator. Workers that stay (`persistent_workers=True`) keep the seed and continue their sequence.
# - **Not seeded**: a generator that a data set has *made for itself*, which NumPy's documentation recommends. A copied generator draws the same numbers. All workers draw the same angles, and with new workers in each epoch they draw the same ones again. No error is raised; there is just less augmentation than you think.
# - **The fix** is `worker_init_fn`, which runs in each worker before its first sample. There, `get_worker_info()` gives you the worker's copy of the data set (`.dataset`), and a seed that differs for each worker and each start of the workers (`.seed`). `DigitFiles` is a data set that needs it.
#
# ## 9 · Your turn: fix a slow loader
#
# A training job reads a `DigitFiles` with some latency through this loader:
#
# ```python
# def slow_loader(dataset, batch_size):
#     return DataLoader(dataset, batch_size, shuffle=True)
# ```
#
# **Contract.** `make_loader(dataset, batch_size, step_seconds)` returns a loader that can be iterated once per epoch.
#
# - **Pace.** From its first batch on, an epoch takes at most 1.5 times as long as its steps alone, which take `step_seconds` each. The rule of section 4 is enough, on any machine and without a margin, because these reads wait and need no core. The first epoch does not count. The check has two data sets: in one, reading one batch takes more than five step times, in the other less than two.
# - **Thrift.** Use at most 2 workers more than the rule of section 4 asks for, and the same ones in each epoch. At most 3 batches per worker wait (`prefetch_factor`). The files do not fit in memory: every epoch reads each file once and keeps nothing. You may read up to 8 files beforehand, to measure; the median of a few is a good estimate.
# - **The same samples.** Each file comes once per epoch, in batches of `batch_size` with one smaller batch at the end, in a new random order each epoch.
# - **Fresh augmentation.** Images are rotated as before; no two workers and no two epochs draw the same angles, and a second loader, as after a restart of the job, draws new ones (`DigitFiles` has a method `reseed(seed)`).
#
# Wrap the functions that workers run in `PickledByValue`, and your loader works on any system. (The check runs a dozen epochs and takes a while, longer still where workers are spawned.)


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

# %% [markdown] name="cheaper_text"
# ## 10 · The best fix: less work
#
# More workers do the same work in more places. Look at the work first.
#
# - **Decode once.** Decoded, these digits are larger than the files, but not large. If they fit, keep them as one tensor.
# - **Augment in batches.** Rotating one image at a time mostly costs call overhead. Rotate 64 at once; on a GPU, do it there.
# - **Collate nothing.** If a data set has `__getitems__`, `DataLoader` passes it all indices of a batch at once, and it can return a finished batch.
#
# The next cells time the data on one core; otherwise we would be comparing cores.

# %% name="rotations"
threads = torch.get_num_threads()
torch.set_num_threads(1)
quiet = DigitFiles(1024, logged=False)  # the log of sections 1 to 9 costs time, too
batch = torch.stack([decode(file) for file in quiet.files[:BATCH]])
angles = torch.linspace(-20, 20, BATCH)
alone_sample = benchmark(lambda: quiet[0], runs=200).median
call = {n: benchmark(lambda n=n: rotate(batch[:n], angles[:n]), runs=200).median for n in (1, BATCH)}
print(f"a full sample without the log: {1e6 * alone_sample:.0f} µs")
print(f"rotating 1 image: {1e6 * call[1]:.0f} µs, {BATCH} images in one call: {1e6 * call[BATCH]:.0f} µs")

# %% [markdown] name="factor_text"
# **Predict.** With all three, and no workers, by what factor is a batch faster?

# %% name="guess_cheaper"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = BATCH * alone_sample / call[BATCH]  # 64 full samples against one call
### END GUESS
cheaper_guess = Prediction("Decoded once, rotated in batches", my_guess, "times as fast")


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
variants = {
    "decode and rotate each": DataLoader(quiet, BATCH),
    "decoded once, rotate each": DataLoader(Decoded(files), BATCH),
    "decoded once, rotate in batches": DataLoader(InBatches(files), BATCH, collate_fn=lambda batch: batch),
}
with sign_of_life("two epochs of each"):
    pace = {name: seconds_a_batch(loader) for name, loader in variants.items()}
torch.set_num_threads(threads)
cheaper_guess.reveal(pace["decode and rotate each"] / pace["decoded once, rotate in batches"])
for name, now in pace.items():
    print(f"{name:31}{1e3 * now:6.1f} ms per batch")
print(f"files {human_bytes(sum(map(len, files.files)))}, decoded {human_bytes(len(files) * image.nbytes)}")
cheap = diagnose(fast_lane(InBatches(files), shuffle=True, collate_fn=lambda batch: batch), train_step)
print(
    f"and the loop: {1e3 * cheap['loop']:.1f} ms per batch without workers; in section 1 it was {1e3 * slow['loop']:.1f}"
)

# %% [markdown] name="cheaper_explained"
# Together, the changes remove nearly all of a batch's cost. (The three variants were each timed on one core and without the course's log of reads, so compare them only with each other. The loop of section 1 wrote that log and used all cores.)
#
# - Reading decoded images saves the decoding and its effect on the caches (section 1).
# - Most of the rest is one small call after another for each image, and one large call for all 64 saves those.
#
# You cannot avoid decoding if the data do not fit in memory; batching is always possible. In between are formats that pack many samples into one large file (tar shards as WebDataset reads them, LMDB): sequential reads, one round trip for many samples. [[Tokens]] reads such a file. You can also store images at the size you train on.
#
# ## 11 · To the device
#
# The last copy is from the host's memory to the GPU's.
#
# - The copy engine of a GPU reads host memory directly, but only pages that the system has promised not to move: **pinned** pages. That is why, for a CUDA GPU, the prefetching thread pins each batch, and `fast_lane` does so with workers.
# - Ordinary (*pageable*) memory is first copied, chunk by chunk, to a pinned buffer in the driver.
# - Only from pinned memory can `tensor.to(device, non_blocking=True)` return at once. That frees the **host**. The copy itself is queued in the current CUDA stream, behind the kernels that are already there, so it does not overlap them. To overlap, it needs a **side stream**.
#
# With a side stream, two calls keep the result correct:
#
# - `current.wait_stream(side)` before the batch is used: the step's kernels wait for the copy.
# - `tensor.record_stream(current)`: the allocator must not reuse the tensor's memory until the kernels that read it have finished.


# %% name="side_stream"
def on_side_stream(batches, device):
    """Yield batches on `device`; on CUDA the next one, if pinned, is copied while the kernels of this one run."""
    side = torch.cuda.Stream() if device.type == "cuda" else None

    def send(batch):
        if batch is None:
            return None
        with torch.cuda.stream(side) if side else contextlib.nullcontext():
            return tuple(tensor.to(device, non_blocking=side is not None) for tensor in batch)

    source = iter(batches)
    following = send(next(source, None))
    while following is not None:
        batch = following
        if side:
            current = torch.cuda.current_stream()
            current.wait_stream(side)  # before the next copy is queued: only this batch's is waited for
            for tensor in batch:
                tensor.record_stream(current)
        following = send(next(source, None))
        yield batch


if device.type == "cuda":
    ones = torch.ones(4096, 4096, device=device)
    pinned_batches = [(torch.empty(64 * 2**20, dtype=torch.uint8).pin_memory(),) for _ in range(8)]

    def train_on(batches):
        for (batch,) in batches:
            for _ in range(4):
                ones @ ones  # stands for the step's kernels
            batch.to(device, non_blocking=True)[:1].add_(1)

    overlap = compare(lambda: train_on(pinned_batches), lambda: train_on(on_side_stream(pinned_batches, device)))
    print("copies in the step's stream -> in a side stream:", overlap)
else:
    print(
        "Nothing overlaps here: streams need a CUDA GPU.", len(list(on_side_stream([(ten,)], device))), "batch copied."
    )

# %% [markdown] name="copy_text"
# How much faster is pinned memory? A pageable copy is two copies. One after the other, they run at the rate 1 / (1/host + 1/bus). If the driver overlaps them chunk by chunk, they run at best at the slower of the two rates. The next cell measures the host's rate; the bus's rate comes from its standard.

# %% name="copy_formula"
block = torch.empty(64 * 2**20, dtype=torch.uint8)
target = torch.empty_like(block)
host = block.nbytes / benchmark(lambda: target.copy_(block), runs=10).median / 1e9
buses = {f"PCIe {n}.0 x16": transfers * 16 * 128 / 130 / 8 for n, transfers in ((3, 8), (4, 16), (5, 32))}  # GB/s
for name, bus in buses.items():
    ratio = bus / host  # if the driver overlaps the two copies; one more if it does not
    print(
        f"{name}: {bus:.1f} GB/s, host {host:.1f}; by formula, pinned is {max(1, ratio):.1f} to {ratio + 1:.1f}x as fast"
    )

# %% name="pinned"
COPIES = ("C10", "pinned memory: copies 2 to 3x faster", "64 MiB to the GPU")


def call_share(source, target, copy_seconds):
    """Return how far into the copy a non_blocking call returns, in percent."""
    runs = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        runs.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return 100 * statistics.median(runs) / copy_seconds


if device.type == "cuda":
    pinned, at = block.pin_memory(), torch.empty_like(block, device=device)
    copies = compare(lambda: at.copy_(block), lambda: at.copy_(pinned, non_blocking=True), runs=20)
    claims.record(*COPIES, copies.speedup, "x", 2, 3)
    pageable, at_once = (call_share(block, at, copies.before.median), call_share(pinned, at, copies.after.median))
    print(f"64 MiB, pageable -> pinned: {copies}")
    print(f"a non_blocking call returns after {at_once:.0f}% of its copy; trap 1: from pageable memory {pageable:.0f}%")
else:
    claims.not_measured(*COPIES)
    print("No copies to time here: they need a CUDA GPU.")

# %% [markdown] name="pinned_explained"
# The usual advice is that copies from pinned memory are "2 to 3 times as fast". By the formula, the factor depends on the ratio of the bus's rate to the host memory's, not on pinning alone. A fast bus in a host with slow memory gives more; an old bus gives less.
#
# ### Four traps
#
# 1. `non_blocking=True` from *pageable* memory frees neither the host nor the stream: the driver has to go through its buffer first, and the call returns when the copy is nearly done.
# 2. Pinning is itself a copy: `batch.pin_memory().to(device)` in the loop does in sequence what a thread would do alongside the step. `DataLoader(pin_memory=True)` *without workers* does the same.
# 3. In the other direction, `gpu_tensor.to("cpu", non_blocking=True)` returns before the numbers have arrived. Synchronize before you read them, or leave out `non_blocking`.
# 4. Pinned pages cannot be swapped out. Pin batches, not data sets.

# %% name="traps"
if device.type == "cuda":
    both = compare(lambda: at.copy_(block), lambda: at.copy_(block.pin_memory()), runs=20)
    print(f"trap 2, pinning in the loop: {both.speedup:.2f} times as fast")
    ones = torch.ones(4096, 4096, device=device)
    for _ in range(20):
        busy = ones @ ones  # keeps the GPU busy first
    back = at.fill_(7).to("cpu", non_blocking=True)
    early = (back[-1024:] == 7).float().mean().item()
    torch.cuda.synchronize()
    late = (back[-1024:] == 7).float().mean().item()
    print(f"trap 3, right numbers: {early:.0%} when read at once, {late:.0%} after synchronize()")

# %% [markdown] name="summary_text"
# ## 12 · Before and after
#
# Here are full epochs with `make_loader` and `prefetched`. (On a fast GPU the quotient would call for dozens of workers, so the cell passes a step time that 16 can keep up with.)

# %% name="summary"
step_seconds = max(alone["far"]["compute"], alone["far"]["data"] / 16)
repaired = make_loader(far, 16, step_seconds)
with sign_of_life("three epochs with make_loader"):
    fed = seconds_a_batch(repaired, train_step, epochs=2, through=ahead)
for name, seconds, compute in (
    ("PNG digits, no workers", plain, slow["compute"]),
    ("PNG digits, prefetched", threaded, slow["compute"]),
    ("PNG digits, two workers", two.seconds / len(two.steps), slow["compute"]),
    ("PNG digits, decoded once, in batches, no workers", cheap["loop"], cheap["compute"]),
    ("far, no workers", alone["far"]["loop"], alone["far"]["compute"]),
    ("far, make_loader and prefetched", fed, alone["far"]["compute"]),
):
    print(f"{name:50}{1e3 * seconds:7.1f} ms per batch, the device idles {1 - compute / seconds:.0%}")
fill = alone["far"]["data"] / len(repaired) / fed
print(f"far, make_loader: {fill:.0%} of the time is the wait for an epoch's first batch")
del repaired

# %% [markdown] name="summary_explained"
# The device may still idle with `make_loader` even though the check passed. The check starts its clock at the first batch; this table times full epochs, and these are short. No number of workers shortens the wait for the first batch.

# %% name="verdicts"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Time the data, the step and the loop. In sequence they add up; overlapped, you pay the larger one plus the fill of each epoch.
# - A prefetcher needs a limit, error propagation and a clean shutdown. A thread is enough for waiting and copying.
# - Workers ≥ seconds per batch / seconds per step. They hide waiting beyond the number of cores, computing only up to it.
# - `persistent_workers` saves the start-up. `prefetch_factor` covers slow moments and costs memory: workers × factor × batch.
# - Whatever goes to workers has to be picklable: use modules, not lambdas or cells. Scripts need the `__main__` guard.
# - If a data set has its own generator, reseed it in each worker.
# - Less work beats more workers: decode once, augment in batches.
# - `non_blocking` from pinned memory frees the host. Only a side stream, with `wait_stream` and `record_stream`, overlaps copy and kernels.
#
# **What to reach for when.** Device idle: first `num_workers` from the quotient, with `persistent_workers`. Cores full: decode once, batch the augmentation, or do it on the GPU. Only short stalls: `prefetch_factor`. Copies show up in a GPU's timeline: `pin_memory`, `non_blocking` and a side stream. Tokens instead of images: [[tokens]].
#
# **Sources.** PyTorch documentation: `torch.utils.data` (multi-process loading, memory pinning), *Reproducibility*, *CUDA semantics* (streams, pinned memory buffers), `torch.Tensor.record_stream`; Python documentation: `multiprocessing` (start methods, the spawn guidelines), `pickle`; PyTorch tutorial *A guide on good usage of non_blocking and pin_memory()*.
