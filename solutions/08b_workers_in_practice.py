# %% [markdown] name="title"
# # Workers in practice
#
# **Workers hide a slow loader. They also take time to start and memory to run, some objects cannot be sent to them, and they may all draw the same random numbers. A cheaper loader needs fewer workers.**
#
# | | |
# |---|---|
# | After this you can | predict what workers cost in time and memory; send data sets and functions to spawned workers; give each worker random numbers of its own; size and repair a slow loader; make its work cheaper before adding workers; overlap copies to a GPU with kernels |
# | Time | 60 to 90 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●○ |
# | Needs | a CPU (for worker processes); copies from pinned memory are timed if there is a CUDA GPU |
# | Before this | [[data_loading]] |
# | Syllabus | T11, C10, P6 |

# %% name="setup" setup=true
import contextlib
import math
import random
import statistics
import time
import warnings

from helpers import (
    Claims,
    DigitFiles,
    PickledByValue,
    Prediction,
    benchmark,
    check,
    compare,
    decode,
    hint,
    human_bytes,
    pick_device,
    rotate,
    script_as_notebook,
    show_table,
    sign_of_life,
)

# %% name="setup_torch" setup=true
import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

# %% name="machine"
script_as_notebook()  # run as a plain script, this lab starts processes as a notebook does
warnings.filterwarnings(
    "ignore", message="This DataLoader will create"
)  # it counts cores, and does not know about waiting
warnings.filterwarnings("ignore", message="Got pickle error")  # section 2 looks at the error itself

device = pick_device()
claims = Claims()
start_method = torch.multiprocessing.get_start_method()
print(f"device: {device}, torch {torch.__version__}; workers start by {start_method!r}")

# %% [markdown] name="again_text"
# This lab continues [[data_loading]], from which you need two formulas:
#
# - Without workers, a loop takes data + compute per batch. With workers it takes max(compute, data / workers), and each epoch begins with the *fill*, in which one worker makes the first batch.
# - **workers ≥ (seconds one worker needs per batch) / (seconds per step)**, rounded up. If the workers compute, the number of cores is the limit.
#
# The data sets are the same, too: `files` decodes and rotates PNG digits, and `far` waits 4 ms for each file and decodes it. Here the training step is simulated on every device. It takes 10 ms and uses no core, because only the data matter.

# %% name="loops"
BATCH, BATCHES, STEP = 64, 16, 0.010  # samples per batch; batches per epoch, of every loader here; seconds per step
files = DigitFiles(1024)
files[0]  # imports what decoding needs, so that no forked worker has to


def epoch(loader, step_seconds=0.0):
    """Run through `loader` once, with a simulated training step."""
    for _ in loader:
        time.sleep(step_seconds)


def per_batch(loader, step_seconds=0.0):
    """Return seconds per batch in the faster of two epochs, after one that does not count (it starts workers)."""
    return min(benchmark(lambda: epoch(loader, step_seconds), runs=2, warmup=1).runs) / BATCHES


# %% [markdown] name="cost_text"
# ## 1 · What workers cost
#
# ### As many workers as batches
#
# One epoch of `files` has 16 batches. The next cell loads it without training, with 2 workers and with 16. The times include starting the workers.
#
# **Predict.** Divide the time until the first batch arrives with 16 workers by the time with 2 workers. What do you get?

# %% name="guess_first"
my_guess = None  # times as late
### BEGIN GUESS
my_guess = 2  # more processes to start, but the first worker can begin at once
### END GUESS
first_guess = Prediction("The first batch, 16 workers instead of 2", my_guess, "times as late")

# %% name="too_many"
arrivals = {2: [], 16: []}
for n in (2, 16, 2, 16):
    start = time.perf_counter()
    arrivals[n].append([time.perf_counter() - start for _ in DataLoader(files, BATCH, num_workers=n)])
arrived = {n: min(runs, key=lambda run: run[-1]) for n, runs in arrivals.items()}  # the faster of two runs
first_guess.reveal(arrived[16][0] / arrived[2][0])
for n, run in arrived.items():
    print(f"{n} workers: first batch after {1e3 * run[0]:.0f} ms, all after {1e3 * run[-1]:.0f} ms")

# %% [markdown] name="first_text"
# The main process starts the workers one after the other before it waits for a batch. Then *all* of them work on *their* first batch at once. If there are more workers than cores, all are late. Compare the times of the full epoch, too: workers beyond the number of cores do not finish it earlier.
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
# So keep large data in one array or tensor. (A tensor is better still: it travels to workers in shared memory, however they were started.)
#
# ## 2 · Spawned workers
#
# So far workers may have been *forked*, as copies of a running process. That is the default on Linux up to Python 3.13, and it is unsafe once the process has threads that hold locks. `spawn` (macOS, Windows) starts a new Python process, which receives the data set pickled, and `forkserver` (Linux, from Python 3.14) pickles too. With `multiprocessing_context="spawn"` you can try this on any system.
#
# ### What can be sent
#
# Pickle stores a function's *name* and module. A lambda has no name by which its module could find it:

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
# - Put data sets and functions into a **module**, a `.py` file that both the notebook and the workers import. `DigitFiles` is in `helpers/loading/digit_files.py` for that reason. A class defined in a *cell* has a name, but its module is the notebook, which a new process cannot import.
# - In a notebook, send the code itself: `cloudpickle` stores the code instead of the name. The course's `PickledByValue` does it for a data set or a function.
# - In a script, put everything that *runs* something under `if __name__ == "__main__":`. A spawned process imports the script again, and without that guard it would start workers itself, which Python refuses.
#
# ### What the start costs
#
# Here is the same lambda again, with its code sent along. The next cell starts one worker with `spawn` and one with this system's default method. Each reads 256 files.
#
# **Predict.** With `spawn`, how many seconds does the first epoch take, including the start of the worker?

# %% name="guess_spawn"
my_guess = None  # seconds
### BEGIN GUESS
my_guess = 3  # a new Python imports PyTorch and the course before it reads a file
### END GUESS
spawn_guess = Prediction("An epoch that starts a spawned worker", my_guess, "s")

# %% name="spawn"
carried = PickledByValue(lambda samples: default_collate(samples))
with sign_of_life("starting workers"):
    starts = {
        "spawn": two_epochs(multiprocessing_context="spawn", collate_fn=carried),
        start_method: two_epochs(),
    }
spawn_guess.reveal(starts["spawn"][0])
for name, (start, again) in starts.items():
    print(f"{name}: the epoch that starts the worker {start:.2f} s, the next, which finds it running, {again:.2f} s")

# %% [markdown] name="spawn_explained"
# A spawned worker has to import PyTorch and the course's helpers before it can read a file. Without `persistent_workers=True`, every epoch starts all workers again, and so does every pass over a validation loader. With it, the workers stay alive and keep their memory.
#
# ## 3 · Random numbers in workers
#
# Augmentation is random, and each worker starts with a *copy* of all state. Many articles warn that NumPy's random numbers repeat.
#
# The next cell runs two workers for two epochs. In each epoch, each worker draws four numbers from each of four sources:
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
# ## 4 · Your turn: fix a slow loader
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
# - **Pace.** From its first batch on, an epoch takes at most 1.5 times as long as its steps alone, which take `step_seconds` each. The rule of [[data_loading]] is enough, on any machine and without a margin, because these reads wait and need no core. The first epoch does not count. The check has two data sets: in one, reading one batch takes more than five step times, in the other less than two.
# - **Thrift.** Use at most 2 workers more than that rule asks for, and the same ones in each epoch. At most 3 batches per worker wait (`prefetch_factor`). The files do not fit in memory: every epoch reads each file once and keeps nothing. You may read up to 8 files beforehand, to measure; the median of a few is a good estimate.
# - **The same samples.** Each epoch delivers every file once, in a new random order, in batches of `batch_size` with one smaller batch at the end.
# - **Fresh augmentation.** Images are rotated as before; no two workers and no two epochs draw the same angles, and a second loader, such as one that is created after the job restarts, draws new ones (`DigitFiles` has a method `reseed(seed)`).
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
make_loader = check("workers_in_practice.loader", make_loader)

# %% name="loader_hint"
hint("workers_in_practice.loader")

# %% [markdown] name="cheaper_text"
# ## 5 · The best fix: less work
#
# More workers do the same work in more places. Look at the work first.
#
# - **Decode once.** Decoded, these digits are larger than the files, but not large. If they fit, keep them as one tensor.
# - **Augment in batches.** Rotating one image at a time mostly costs call overhead. Rotate 64 at once; on a GPU, do it there.
# - **Collate nothing.** If a data set has `__getitems__`, `DataLoader` passes it all indices of a batch at once, and it can return a finished batch.
#
# ### Your turn: a batch in one call
#
# **Contract.** `finished_batch(images, labels, indices, rotate)` returns a batch as a tuple (images, labels).
#
# - **In order.** `images` (N, 1, H, W) and `labels` (N,) hold the whole data set, and `indices` is a list of B numbers. Return B images and B labels, in the order of `indices`.
# - **Angles.** Each image of the batch is rotated by an angle of its own, drawn uniformly and independently from −20 to 20 degrees, and every call draws new ones.
# - **One call.** `rotate(images, degrees)` rotates B images (B, 1, H, W), each by its own angle from `degrees` (B,). Call it once.
# - **Source.** The angles come from PyTorch's global generator. `torch.manual_seed` makes them repeatable, and no two workers draw the same ones (section 3).
# - **Originals.** `images` and `labels` are not changed, because the next epoch needs them.


# %% name="batches" answer=true reveal=true
def finished_batch(images, labels, indices, rotate):
    ### BEGIN SOLUTION
    degrees = 40 * torch.rand(len(indices)) - 20
    return rotate(images[indices], degrees), labels[indices]
    ### END SOLUTION


# %% name="batches_check"
finished_batch = check("workers_in_practice.batches", finished_batch)

# %% name="batches_hint"
hint("workers_in_practice.batches")

# %% [markdown] name="rotations_text"
# The next cells time the data on one core; otherwise we would be comparing cores.

# %% name="rotations"
threads = torch.get_num_threads()
torch.set_num_threads(1)
quiet = DigitFiles(1024, logged=False)  # the log of reads costs time, too
batch = torch.stack([decode(file) for file in quiet.files[:BATCH]])
angles = torch.linspace(-20, 20, BATCH)
alone_sample = benchmark(lambda: quiet[0], runs=200).median
call = {n: benchmark(lambda n=n: rotate(batch[:n], angles[:n]), runs=200).median for n in (1, BATCH)}
print(f"a full sample without the log: {1e6 * alone_sample:.0f} µs")
print(f"rotating 1 image: {1e6 * call[1]:.0f} µs, {BATCH} images in one call: {1e6 * call[BATCH]:.0f} µs")

# %% [markdown] name="factor_text"
# **Predict.** With all three changes, and no workers, by what factor is a batch faster?

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
        return rotate(self.images[i][None], 40 * torch.rand(1) - 20)[0], self.labels[i]


class InBatches(Decoded):
    """The same, with your function: a batch in one call."""

    def __getitems__(self, indices):
        return finished_batch(self.images, self.labels, indices, rotate)


# %% name="cheaper_measured"
in_batches = DataLoader(InBatches(files), BATCH, shuffle=True, collate_fn=lambda batch: batch)
variants = {
    "decode and rotate each": DataLoader(quiet, BATCH),
    "decoded once, rotate each": DataLoader(Decoded(files), BATCH),
    "decoded once, rotate in batches": in_batches,
}
with sign_of_life("three epochs of each"):
    pace = {name: per_batch(loader) for name, loader in variants.items()}
torch.set_num_threads(threads)
cheaper_guess.reveal(pace["decode and rotate each"] / pace["decoded once, rotate in batches"])
for name, now in pace.items():
    print(f"{name:31}{1e3 * now:6.1f} ms per batch")
decoded = len(files) * decode(files.files[0]).nbytes
print(f"files {human_bytes(sum(map(len, files.files)))}, decoded {human_bytes(decoded)}")

# %% [markdown] name="cheaper_explained"
# - Reading decoded images saves the time for decoding, and avoids its effect on the caches ([[data_loading]]).
# - Most of the rest is one small call after another for each image. One large call for all 64 saves those.
#
# You cannot avoid decoding if the data do not fit in memory; batching is always possible. In between are formats that pack many samples into one large file (tar shards as WebDataset reads them, LMDB): sequential reads, one round trip for many samples. [[Tokens]] reads such a file. You can also store images at the size you train on.
#
# ## 6 · To the device
#
# The last copy is from the host's memory to the GPU's.
#
# - The copy engine of a GPU reads host memory directly, but only pages that the system has promised not to move: **pinned** pages. So `DataLoader(pin_memory=True)` copies each batch to pinned pages in a thread, as your prefetcher in [[data_loading]] did.
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
        "Nothing overlaps here: streams need a CUDA GPU.",
        len(list(on_side_stream([(batch,)], device))),
        "batch copied.",
    )

# %% [markdown] name="copy_text"
# ### How much faster is pinned memory?
#
# A pageable copy is two copies: from memory to memory, then over the bus. One after the other, they run at the rate 1 / (1/host + 1/bus). If the driver overlaps them chunk by chunk, they run at best at the slower of the two rates. The bus's rate comes from its standard, and the next cell measures the host's.
#
# **Predict.** At how many GB/s does this machine copy 64 MiB from one place in its memory to another?

# %% name="guess_host"
my_guess = None  # GB/s
### BEGIN GUESS
my_guess = 20  # a data sheet's bandwidth, halved: each byte is read and written
### END GUESS
host_guess = Prediction("A copy from memory to memory", my_guess, "GB/s")

# %% name="copy_formula"
block = torch.zeros(64 * 2**20, dtype=torch.uint8)
target = torch.empty_like(block)
host = block.nbytes / benchmark(lambda: target.copy_(block), runs=10).median / 1e9
host_guess.reveal(host)
buses = {f"PCIe {n}.0 x16": transfers * 16 * 128 / 130 / 8 for n, transfers in ((3, 8), (4, 16), (5, 32))}  # GB/s
for name, bus in buses.items():
    ratio = bus / host  # if the driver overlaps the two copies; one more if it does not
    print(f"{name}: {bus:.1f} GB/s; by formula, pinned is {max(1, ratio):.1f} to {ratio + 1:.1f} times as fast")

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
# ## 7 · Before and after
#
# Here are full epochs with the simulated step of 10 ms, before and after your two functions.

# %% name="summary"
far = DigitFiles(256, latency=0.004, augmented=False)
repaired = make_loader(far, 16, STEP)
with sign_of_life("three epochs of each loop"):
    loops = {
        "files, no workers": per_batch(DataLoader(files, BATCH, shuffle=True), STEP),
        "files, decoded once, in batches, no workers": per_batch(in_batches, STEP),
        "far, no workers": per_batch(DataLoader(far, 16, shuffle=True), STEP),
        "far, make_loader": per_batch(repaired, STEP),
    }
table = [("data, and how they are loaded", "ms per batch", "device idle")]
table += [(name, f"{1e3 * now:.1f}", f"{1 - STEP / now:.0%}") for name, now in loops.items()]
show_table(table)
*_, waits, repaired_loop = loops.values()
print(
    f"with make_loader, {(waits - STEP) / BATCHES / repaired_loop:.0%} of the time is spent waiting for an epoch's first batch (by the formula)"
)
del repaired

# %% [markdown] name="summary_explained"
# The device may still idle with `make_loader` even though the check passed. The check starts its clock at the first batch; this table times full epochs, and these are short. No number of workers shortens the wait for the first batch.

# %% name="verdicts"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - The first batch waits until all workers have been started, and workers beyond the number of cores slow it down further. `persistent_workers` starts them once.
# - A forked worker copies the pages of Python objects that it only reads. Keep large data in one array or tensor.
# - Whatever goes to spawned workers has to be picklable: use modules, not lambdas or cells. Scripts need the `__main__` guard.
# - `DataLoader` seeds PyTorch's, Python's and NumPy's global generators in each worker. If a data set has its own generator, reseed it in `worker_init_fn`.
# - The cheapest fix is less work, which needs no workers: decode once, augment in batches.
# - On a GPU (without one, this lab measures none of it): `non_blocking` from pinned memory frees the host, and a side stream, with `wait_stream` and `record_stream`, overlaps copies and kernels.
#
# **What to reach for when.** Device idle: first `num_workers` from the quotient, with `persistent_workers`. Cores full: decode once, batch the augmentation, or do it on the GPU. Copies show up in a GPU's timeline: `pin_memory`, `non_blocking` and a side stream.
#
# **Next.** [[Tokens]] loads text instead of images: one mapped file, shared by ranks and workers, and resumed in the middle of an epoch.
#
# **Sources.** PyTorch documentation: `torch.utils.data` (multi-process loading, memory pinning), *Reproducibility*, *CUDA semantics* (streams, pinned memory buffers), `torch.Tensor.record_stream`; Python documentation: `multiprocessing` (start methods, the spawn guidelines), `pickle`; PyTorch tutorial *A guide on good usage of non_blocking and pin_memory()*.
