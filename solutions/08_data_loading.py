# %% [markdown] name="title"
# # Feeding the device: data loading
#
# **A device that waits for data costs as much as one that works. Three timings tell you whether it waits, and one division tells you how many workers fix it.**
#
# | | |
# |---|---|
# | After this you can | tell a data-bound loop from a compute-bound one and compute its idle share; write a prefetcher; work out how many workers you need before trying; predict what `prefetch_factor` can and cannot hide, and what it costs |
# | Time | 75 to 100 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●○ |
# | Needs | a CPU (for worker processes); with a CUDA GPU, the training step is a real one |
# | Before this | [[start_here]] |
# | Syllabus | T11, C10 |

# %% name="setup" setup=true
import math
import os
import queue
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
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset

# %% name="machine"
script_as_notebook()  # run as a plain script, this lab starts processes as a notebook does
warnings.filterwarnings(
    "ignore", message="This DataLoader will create"
)  # it counts cores, and does not know about waiting

device = pick_device()
claims = Claims()
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
print(f"device: {device}, torch {torch.__version__}; {cores} cores")

# %% [markdown] name="files_text"
# ## 1 · Is this loop data-bound?
#
# A training loop has two largely independent halves.
#
# - The loader fetches samples, decodes them, augments them and stacks them into a batch: work for the CPU, the disk and the network.
# - The training step is work for the device.
#
# If the loader is slower than the step, a faster GPU helps little or not at all.
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
# Two timings of parts need not add up to the timing of the whole.
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
    """Return a DataLoader; its batches are pinned for a CUDA GPU if workers make them."""
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
# Two cells on, the loop is compared with the sum of the other two.


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
# On a quiet machine, the loop takes about as long as the other two together. Without workers, `DataLoader` makes a batch when the loop asks for one, in the same process. The device idles while the loader decodes, and the loader idles while the device works.
#
# Read the three figures like this:
#
# - *loop ≈ compute*: compute-bound. The loader is fast enough.
# - *loop ≈ data, and data > compute*: data-bound. The rest of this lab helps, and so does [[workers_in_practice]].
# - *loop ≈ data + compute*: nothing overlaps. This is the easiest case to fix.
#
# The **idle share** is 1 − compute / loop.
#
# - The loop's MFU (the fraction of the device's peak FLOP/s in use) equals the step's MFU × compute / loop.
# - Do not use `nvidia-smi` for this: its "utilization" is the fraction of time in which *any* kernel ran, and one small kernel counts in full.
# - The profiler of [[where_the_time_goes]] shows the wait as the *data* phase of a step.
#
# Divide *data* by the 64 samples of a batch. The result may be well above the time measured earlier for a full sample. That benchmark read one file 200 times: an epoch reads a different file each time, and stacks 64 samples per batch. Measure that cost in your own program, too.
#
# > **Note:** on a GPU, a loop that never waits for a result (no `loss.item()`, no logging) overlaps even without workers, because the GPU works through its queue while Python decodes.
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
# - **To the device.** For a CUDA device the thread pins each tensor (`pin_memory()`) and sends the pinned copy with `.to(device, non_blocking=True)`. For any other device it calls `.to(device)` and pins nothing. A CUDA device comes with its index, as in `cuda:1`, because CUDA's current device is per thread: in a new thread, plain `cuda` would mean GPU 0. The copy uses the thread's current stream. (That frees the loop from the copy. [[Workers_in_practice]] adds the side stream that lets a copy overlap kernels.)
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
# If the two halves run side by side, the slower one sets the pace: here, the data. The lines above show what the thread gains on this machine, with all three loops timed in alternation.
#
# - A thread can hide at most the quicker half. Without a GPU that is the 10 ms of the step, the smaller part of this loop.
# - It has a cost, too: batches pass from one thread to another, and the same small calls may be slower or faster in the new thread than in the main one. Where that costs as much as the step, or where other programs take the cores, the loop with the thread is no faster than the plain one.
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
# **Predict.** The next cell runs the loop from the picture in section 1 (12 batches) with two workers. How many ms per batch does it take?

# %% name="guess_two"
my_guess = None  # ms per batch
### BEGIN GUESS
my_guess = 1e3 * max(slow["compute"], slow["data"] / 2)  # each worker makes every second batch
### END GUESS
two_guess = Prediction("The loop with two workers", my_guess, "ms per batch")

# %% name="two_workers"
with sign_of_life("three epochs with two workers"):
    two = min((LoaderTimeline.of(files, BATCH, 2, train_step) for _ in range(3)), key=lambda run: run.seconds)
n = len(two.steps)
two_guess.reveal(1e3 * two.seconds / n)
print(f"without workers: {1e3 * slow['loop']:.1f} ms per batch")
show(
    two.plot(f"Two workers: the device idles {two.idle:.0%}"),
    "Three lanes: the device and two workers. The workers' bars overlap in time with each other and with the device's.",
)
expected = max(slow["data"] / n + slow["compute"], slow["data"] / 2)  # with a batch's cost in a process of its own
formula = max(
    two.making / n + slow["compute"], max(two.work()) / n
)  # with its cost in this run; the later worker counts
rest = two.seconds / n - formula
print(f"two workers: {1e3 * two.seconds / n:.1f} ms, of which the formula explains {1e3 * expected:.1f} ms;")
print(
    f"sharing the cores adds {1e3 * (formula - expected):+.1f} ms, and handing over, which is the rest, {1e3 * rest:+.1f} ms"
)
print(f"a batch takes a worker {1e3 * two.making:.1f} ms; it took the main process {1e3 * one.making:.1f} ms, alone")
print(f"an idle device gets it {1e3 * two.handover:.1f} ms after its last file was read")

# %% [markdown] name="workers_explained"
# Side by side, the slower half sets the pace:
#
# > **per batch: max(compute, data / workers)**; per epoch of *n* batches: **max(data + n × compute, n × data / workers)**, where the *data* that is not multiplied by *n* is the time to fill the queue. It matters only in short epochs.
#
# Two more costs are added to that, and the last lines show their sources.
#
# - *Sharing*: if two workers and the main process have few cores between them, a batch takes each worker longer than it would take one process alone. (Sharing can also be negative: the main process spreads even small calls over several threads, which may slow them; a worker computes with one. The figures come from runs at different moments, so on a busy machine they need not agree.)
# - *Handing over* is the rest: samples are stacked, the batch is put into shared memory, and the main process wakes up and maps it. This cost does not matter while the device has a batch, only while it waits.
#
# Do workers deliver the same batches?
#
# - *The order* does not depend on them: the main process draws it, and batches are delivered in turn even if a later one is ready first (`in_order=False` changes that). [[Tokens]] relies on it.
# - *The augmentation* may differ, as [[workers_in_practice]] shows.
#
# ## 4 · How many workers?
#
# It depends on what a worker does. `files` decodes and rotates. The second data set, `far`, waits 4 ms for each file, as if it came from object storage, and decodes it.
#
# **Predict.** Each data set is read alone, without training. (The numbers of workers take turns in three rounds, and the median of the three ratios counts. So a slow moment of the machine affects all of them.) How many times as fast is it with 8 workers as with none, for `far` (waiting) and for `files` (computing)?

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
data, speedup = {}, {}
with sign_of_life("three rounds of two data sets with 0 to 8 workers"):
    alone = {"files": slow, "far": diagnose(fast_lane(far, 16), train_step, epochs=1)}
    for name, (store, size) in stores.items():
        loaders = [DataLoader(store, size, num_workers=n, persistent_workers=n > 0) for n in counts]
        rounds = [[seconds_a_batch(loader, epochs=1) for loader in loaders] for _ in range(3)]
        data[name] = [min(times) for times in zip(*rounds, strict=True)]
        speedup[name] = [statistics.median(times[0] / times[k] for times in rounds) for k in range(len(counts))]
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
# - Other programs take their share, so the speedup for `files` may stay below the number of cores; it may also be above it, because of *sharing* (section 3) or because eight processes get more of a busy machine than one.
# - If many other programs run, both rows stay far too low, and a speedup may even fall below 1. Such a run says nothing about workers. Run the cell again on a quiet machine.
#
# So
#
# > **workers ≥ (seconds one worker needs per batch) / (seconds per step)**, and if the workers compute, no more than there are cores.
#
# If you run out of cores before you reach the quotient, more workers do not help: make the data cheaper, as [[workers_in_practice]] does.
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
# Now the loop itself, with as many workers as the quotient asks for, but at most 16: an epoch of `far` has 16 batches, so more workers would find nothing to do.

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
claims.figure("with workers: the slower half, and the fill", f"far, {workers} workers", loop / formula, "x the formula")

# %% [markdown] name="prefetch_text"
# The *rest* is what the formula leaves out: batches are handed over, processes wake up, and other programs take their turn on the cores. On a busy machine it can be as large as the fill. So the table at the end has the ratio of the two as a figure, without a verdict.
#
# ## 5 · `prefetch_factor` covers slow moments
#
# More batches in the queue do not raise the rate at which busy workers make batches. They change how long a slow moment (a slow read, a large file) may last before the device idles.
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
    """Item k is a complete batch, which takes some waiting. `PickledByValue` sends this class to any worker."""

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
# - **1 in flight.** While a slow batch is made (120 ms), the device has two steps left: batch 2, just taken, and batch 3, already finished. Then it waits. The other six steps of the eight take 6 × 15 = 90 ms. That makes 8 × 15 = 120 ms of work in 120 + 90 = 210 ms: the device is idle 43% of the time, plus a little while the queue first fills.
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
# Eight is a multiple of four, so one of four workers makes all the slow batches. It works longer than any worker would if there were only three. If every seventh batch is slow, four workers share the slow batches again, but with seven workers one of them makes them all.
#
# ### What it costs
#
# A batch that waits takes memory. With 2 workers and `prefetch_factor=4`, the next cell counts the batches that wait after the loop has taken one and paused.

# %% name="waiting"
files.reads.zero_()
batches = iter(DataLoader(files, 32, num_workers=2, prefetch_factor=4))
taken = next(batches)
before = -1
while before < (now := int(files.reads.sum())):
    before = now
    time.sleep(0.3)
waiting_batches = now / 32 - 1
a_batch = sum(t.nbytes for t in taken)
print(
    f"{waiting_batches:.0f} batches wait, {human_bytes(a_batch)} each: {human_bytes(waiting_batches * a_batch)} in flight"
)
del batches

# %% [markdown] name="waiting_explained"
# That is workers × `prefetch_factor`: the worker whose batch was taken has made another one since.
#
# - For real images, compute this before you choose. A batch of 64 × 3 × 224 × 224 × 4 bytes is 36.75 MiB, so 8 workers with 4 batches each hold 1.15 GiB.
# - On Linux they are in `/dev/shm`, which in a Docker container is 64 MiB unless `--shm-size` changes it. A worker that dies of a *bus error* has usually hit that limit.
#
# ## 6 · Before and after
#
# All loops of this lab, each with the share of its time in which the device had nothing to do:

# %% name="summary"
table = [("data, and how they are loaded", "ms per batch", "device idle")]
for name, seconds, compute in (
    ("digits, no workers", plain, slow["compute"]),
    ("digits, a prefetching thread", threaded, slow["compute"]),
    ("digits, two workers, 12 batches", two.seconds / len(two.steps), slow["compute"]),
    ("far, no workers", alone["far"]["loop"], alone["far"]["compute"]),
    (f"far, {workers} workers", loop, alone["far"]["compute"]),
):
    table.append((name, f"{1e3 * seconds:.1f}", f"{1 - compute / seconds:.0%}"))
show_table(table)

# %% [markdown] name="summary_explained"
# With `far`, workers hide the time spent waiting, except while the queue fills at the start of each epoch. That shows here because the epochs are short. Reading the digits takes computation, so workers help only up to the number of cores. If the quotient for `files` in section 4 is larger than that, the device idles no matter how many workers there are. [[Workers_in_practice]] makes such data cheaper.

# %% name="verdicts"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Time the data, the step and the loop. In sequence they add up; if they overlap, you pay the larger one, plus the time to fill the queue in each epoch.
# - A prefetcher needs a limit, error propagation and a clean shutdown. A thread is enough for reads that wait.
# - Workers ≥ seconds per batch / seconds per step. They hide waiting even with more workers than cores, but computation only up to the number of cores.
# - `prefetch_factor` covers slow moments. Batches are dealt in turn, so the slow ones may all go to the same worker. Batches that wait take memory: workers × factor × batch.
#
# **What to reach for when.** If the device is idle and the loader mostly waits, set `num_workers` to the quotient of section 4. If the device is idle and the loader computes, use as many workers as there are cores, then make the data cheaper. If there are only short stalls, raise `prefetch_factor`.
#
# **Next.** [[Workers_in_practice]]: what workers cost, what cannot be sent to them, why their random numbers may repeat, and how to need fewer of them.
#
# **Sources.** PyTorch documentation: `torch.utils.data` (multi-process loading), `torch.utils.data.DataLoader` (`prefetch_factor`, `in_order`); Python documentation: `threading`, `queue` and the glossary's entry on the global interpreter lock.
