# %% [markdown] name="title"
# # Checkpoints: runs that survive
#
# **On 16,384 GPUs something fails every three hours. A run survives if each failure costs minutes, not days. This takes checkpoints that are complete, intact on disk at every moment, and written often, but not too often.**
#
# | | |
# |---|---|
# | After this you can | compute how often to save, and the resulting goodput; list what a checkpoint must hold, and explain what happens if a part is missing; write a data order that can be resumed on a different number of ranks; write checkpoints that survive a kill or a power failure at any moment; save sharded states without stopping the training |
# | Time | 100 to 120 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU (2 processes) |
# | Before this | labs [[#start_here]], [[#data_parallel]] and [[#sharding]]; [[#tokens]] helps |
# | Syllabus | T41, C22 |

# %% name="setup" setup=true
import hashlib
import inspect
import io
import math
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

# %% name="setup_helpers" setup=true
from helpers import (
    PUBLISHED_RUNS,
    Claims,
    Prediction,
    Training,
    check,
    device_name,
    explore,
    goodput_figure,
    hint,
    human_bytes,
    killed_runs,
    losses_figure,
    parts_figure,
    pick_device,
    run_ranks,
    show,
    show_table,
    torn_files,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks talk over gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="failures_text"
# ## 1 · Something always fails
#
# In data-parallel training all ranks wait for each other in every step ([[data_parallel]]), so one failing GPU stops the whole job. If one GPU fails λ times per day, a job on n GPUs fails nλ times per day. Its **mean time between failures** is M = 1 / (nλ).
#
# The table compares three published failure counts. The last column shows how many days a job on 64 GPUs would run between failures, on average, at the same failure rate per GPU.

# %% name="failures"
table = [
    ("published", "GPUs", "days", "failures", "per 1,000 GPU-days", "hours between failures", "days between, 64 GPUs")
]
for run in PUBLISHED_RUNS:
    each, small = f"{1000 * run.per_gpu_day:.2f}", f"{1 / (64 * run.per_gpu_day):.0f}"
    hours = f"{run.hours_between:.1f}"
    table.append((run.name, f"{run.gpus:,}", f"{run.days:g}", str(run.failures), each, hours, small))
show_table(table)
for run in PUBLISHED_RUNS:
    print(f"{run.name}: {run.counted} ({run.source})")

# %% [markdown] name="cost_text"
# The three reports count different things on different hardware, yet their rates agree within a factor of five.
#
# ## 2 · What a failure costs, and how often to save
#
# A **checkpoint** is everything that a run needs to continue. Time is lost in three ways:
#
# - Each checkpoint takes `save` seconds.
# - Each failure discards the work since the last finished checkpoint.
# - After each failure, the job takes `restart` seconds before it trains again.
#
# **Goodput** is the share of the time that is spent on training whose result is kept. If you save more often, you lose less work but spend more time on saving.
#
# First write an exact replay, then a formula.
#
# ### Your turn: replay a run, and choose its interval
#
# **Contract.** `wall_clock(work, interval, save, restart, failures)` returns how many seconds a run takes in total.
#
# - The run has `work` seconds of training to do. After each `interval` seconds of training it writes a checkpoint, which takes `save` seconds. The last segment may be shorter. The run ends after it, without a checkpoint.
# - `failures` is a list of times on the clock, in ascending order; do not change it. At a failure the run loses everything since its last finished checkpoint, takes `restart` seconds to restart, and continues from that checkpoint (or from the start if there is none).
# - A failure during a save makes that checkpoint worthless. If a failure comes at the exact moment a save ends, the checkpoint counts. A failure during a restart starts the restart over.
# - Failures at or after the end of the run change nothing.
#
# `best_interval(save, mtbf)` returns how many seconds to train between checkpoints. The goodput with this interval must be at least 99% of the best possible. Failures come at random, on average one every `mtbf` seconds, and `save` is at most a tenth of `mtbf`. (The best interval does not depend on the restart time.)


# %% name="interval" answer=true reveal=true
def wall_clock(work, interval, save, restart, failures):
    ### BEGIN SOLUTION
    now, safe, ahead = 0, 0, [*failures, math.inf]  # seconds on the clock, seconds of work in a checkpoint
    while True:
        piece = min(interval, work - safe)
        last = interval >= work - safe
        end = now + piece + (0 if last else save)
        if end <= ahead[0]:
            now, safe = end, safe + piece
            if last:
                return now
        else:
            now = ahead.pop(0) + restart  # the next iteration handles a failure during the restart
    ### END SOLUTION


def best_interval(save, mtbf):
    ### BEGIN SOLUTION
    return math.sqrt(2 * save * mtbf)  # where save / interval + interval / (2 mtbf) is smallest
    ### END SOLUTION


# %% name="interval_check"
wall_clock, best_interval = check("runs_that_survive.interval", wall_clock, best_interval)

# %% name="interval_hint"
hint("runs_that_survive.interval")

# %% [markdown] name="young_text"
# John Young derived √(2 · save · M) in 1974. Saving costs `save / interval` of the time, and lost work `interval / (2 M)`. At the best interval the two are equal. John Daly (2006) corrected the formula for failures so frequent that they also strike during saves and restarts.
#
# How good is the formula? Simulate a run like Llama 3's with your replay: failures every 3.1 hours on average, at random times, one minute per checkpoint, and ten minutes per restart. The next cell tries many intervals, each in twenty simulated runs with a week of training. The longest is sixteen times Young's, longer than the mean time between failures.
#
# **Predict.** What is the goodput, in percent, with that longest interval?

# %% name="young_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 12  # 16 times the best interval's lost work, and the restarts
### END GUESS
rare_guess = Prediction("Goodput with sixteen times Young's interval", my_guess, "%")

# %% name="young"
MTBF, SAVE, RESTART, WEEK = 3600 * PUBLISHED_RUNS[0].hours_between, 60, 600, 7 * 86_400


def random_failures(mtbf, until, seed):
    chance, moments = random.Random(seed), [0.0]
    while moments[-1] < until:
        moments.append(moments[-1] + chance.expovariate(1 / mtbf))
    return moments[1:]


histories = [random_failures(MTBF, 20 * WEEK, seed) for seed in range(20)]
young = best_interval(SAVE, MTBF)
goodputs = {
    factor: [100 * WEEK / wall_clock(WEEK, factor * young, SAVE, RESTART, failures) for failures in histories]
    for factor in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 0.85, 1, 1.2, 1.4, 2, 4, 8, 16)
}
means = {factor: statistics.mean(shares) for factor, shares in goodputs.items()}
best = max(means.values())
rare_guess.reveal(means[16], how="simulated")
linear = 100 * (1 - SAVE / (16 * young) - (16 * young / 2 + RESTART) / MTBF)
print(f"1 - save / interval - (interval / 2 + restart) / M would be {linear:.0f}%")
print(f"Young's interval is {young / 60:.0f} minutes: {means[1]:.1f}%; the best of all is {best:.1f}%")
print(f"√(save · M), without the 2, is 0.7 of Young's: {means[0.7]:.1f}%")
show(goodput_figure(young, goodputs), "Goodput by interval: mean and range of twenty runs, Young's interval marked.")
claims.record("C22", "Young's interval is close to the best", "simulated week", best - means[1], "points lost", 0, 1)

# %% [markdown] name="young_explained"
# When failures are more frequent than checkpoints, a failure discards less than half an interval of work, so `interval / (2 M)` overstates the loss. Near its maximum the curve is flat, so you need not know M exactly. Even without the 2 under the root you lose very little, and the check accepts that answer. If saving becomes four times faster, you save twice as often, and the time lost to saving and repeated work is halved. That is why section 5 makes saving faster.
#
# (For Llama 3, Meta reports an effective training time of more than 90%. The lower goodput here follows from our assumptions of one minute per save and ten minutes per restart.)
#
# ### Real kills
#
# Does the replay match a real run? The next cell starts a real process. A step takes 10 ms, and a checkpoint takes 30 ms. SIGKILL arrives at a random moment, on average 0.6 seconds after each start. A process cannot catch SIGKILL and has no time to clean up. The cell makes three such runs of 300 steps, each with a different interval. They are short, so their goodput depends on chance.

# %% name="killed"
steps_between = {"too often": 3, "Young": round(best_interval(0.03, 0.6) / 0.01), "too rarely": 120}
runs = killed_runs(steps_between, steps=300, tick=0.01, save=0.03, mtbf=0.6)
show(parts_figure(runs), "Three bars, one per interval, of useful, repeated, saving and restarting seconds.")
table = [("interval", "steps", "kills", "s per restart", "seconds", "replayed", "goodput")]
for name, run in runs.items():
    replayed = wall_clock(300 * run.step, steps_between[name] * run.step, run.save, run.restart, run.kills)
    row = (
        name,
        str(steps_between[name]),
        str(len(run.kills)),
        f"{run.restart:.2f}",
        f"{run.seconds:.1f}",
        f"{replayed:.1f}",
    )
    table.append((*row, f"{run.goodput:.0%}"))
    if run.busy:
        claims.not_measured("T41", "the replay predicts a run", f"{name}; this machine was too busy")
    else:
        claims.record("T41", "the replay predicts a run", f"killed {name}", run.seconds / replayed, "x", 0.8, 1.3)
show_table(table)

# %% [markdown] name="killed_explained"
# Young's formula leaves out the restarts. The bars show how much of the time the restarts take here. The column *replayed* comes from your `wall_clock`, applied to the times from each start to its kill and the average durations of the run's steps, saves and restarts. Where processes cannot be forked (macOS), a restart takes seconds.
#
# ## 3 · What must a checkpoint hold?
#
# The helper `Training` is a small training run on handwritten digits. It has every kind of state that a real run has, in six parts:

# %% name="parts"
print(inspect.getsource(Training.step))
print("parts:", ", ".join(Training.PARTS))

# %% [markdown] name="parts_guess_text"
# An uninterrupted run trains for 70 steps. Then six runs resume after step 35. Each of them loads all but one part of the saved state; the missing part keeps its initial value.
#
# **Predict.** How many of the six mistakes would you notice? (You notice a mistake if it makes the mean loss of the next 35 steps more than 10% higher than it should be.)

# %% name="parts_guess"
my_guess = None  # of 6
### BEGIN GUESS
my_guess = 4
### END GUESS
notice_guess = Prediction("Mean loss more than 10% higher", my_guess, "of 6", difference=True)

# %% name="parts_left_out"
through = Training(70)
for step in range(70):
    if step == 35:
        saved = through.state()
    through.step()


def resumed(without):
    run = Training(70)
    run.load(saved, without)
    for _ in range(35):
        run.step()
    return run.losses


right = through.losses[35:]
left_out = {part: resumed({part}) for part in Training.PARTS}
worse = {part: statistics.mean(losses) / statistics.mean(right) - 1 for part, losses in left_out.items()}
notice_guess.reveal(sum(share > 0.1 for share in worse.values()))
table = [("left out", "first loss off by", "mean loss", "largest difference")]
for part, losses in left_out.items():
    apart = [abs(a - b) for a, b in zip(losses, right, strict=True)]
    table.append((part, f"{apart[0]:.2g}", f"{worse[part]:+.0%}", f"{max(apart):.2g}"))
show_table(table)
print("with all six, the losses are the same to the last bit:", resumed(()) == right)
show(
    losses_figure(through.losses, left_out, 35),
    "Six panels, one per missing part: the losses of the resumed run over those of the uninterrupted one.",
)
same = float(resumed(()) == right)
claims.record("T41", "all six parts: the same bits", "35 steps after resuming", same, "(1: yes)", 1, 1)

# %% [markdown] name="parts_explained"
# The mean loss is more than 10% higher only if the weights or the optimizer state are missing. The other four mistakes are dangerous because they look like noise in the loss curve, although each of them leads to a different run.
#
# - **Optimizer**: without its moments, Adam's first steps are far too large. The loss has a hump, then recovers.
# - **Schedule**: the learning rate warms up again, and decays too late.
# - **Scaler**: steps are skipped until the scale has adjusted again.
# - **Data position**: the run starts again at the first row, so it repeats some rows and misses others. The loss may even be *lower*.
# - **Random state**: the dropout masks differ. The run becomes neither better nor worse, but you cannot debug a run that you cannot repeat.
#
# ### Per rank, and per worker
#
# N ranks have N random states. A common shortcut is to save only rank 0's state and load it on all ranks. The cell below applies dropout with p = 0.5 on two ranks, before and after such a resume.


# %% name="masks"
def two_masks():
    torch.manual_seed(100 + dist.get_rank())  # its own state on each rank
    before = F.dropout(torch.ones(10_000), 0.5)
    state = torch.get_rng_state()
    dist.broadcast(state, src=0)  # what rank 0 saved
    torch.set_rng_state(state)
    return before, F.dropout(torch.ones(10_000), 0.5)


(before_0, after_0), (before_1, after_1) = run_ranks(two_masks, 2, device="cpu").results
for when, one, other in (("before", before_0, before_1), ("after", after_0, after_1)):
    print(f"{when:6} the resume, {(one == other).float().mean().item():.0%} of the two masks agree")

# %% [markdown] name="masks_explained"
# After the resume both ranks drop the same units. So each rank has to save the states of its own generators: `torch.get_rng_state()`, on GPUs also `torch.cuda.get_rng_state()`, and the states of `numpy` and `random`.
#
# `DataLoader` workers are harder. They prefetch, so when you save, their generators are ahead of the loop. (torchdata's `StatefulDataLoader` saves the workers' states, too.) And if the number of ranks or workers changes, the saved states no longer fit. The solution is to need no state. For example, draw the random crop of sample 1,234 in epoch 3 from a generator that is seeded with `(seed, 3, 1234)`. Then it does not matter which worker loads the sample.
#
# The same applies to the order of the data. The loader of [[tokens]] remembers its position, and assumes that the same ranks come back. At scale, a broken machine is removed and the job continues with fewer ranks, and the **global batch** should stay the same.
#
# ### Your turn: a data order that can be resumed
#
# **Contract.** `DataOrder(samples, batch_size, seed)` determines which samples each rank trains on. Write `rows`; the other methods are given.
#
# - `rows(step, rank, ranks)` returns the samples (numbers from 0 to `samples` − 1) of this rank in this step. Steps may be requested in any order. (Drawing an epoch's whole permutation in each call is fine here. A long run keeps the current one.)
# - The parts of all ranks, concatenated in rank order, are the global batch of the step: `batch_size` samples, **the same list for any number of ranks**. The sizes of the parts differ by at most one.
# - An epoch has `samples // batch_size` steps. No sample occurs twice in it. Each epoch and each seed shuffles all samples anew. `DataOrder` neither uses nor changes the program's random generators (`torch`, `numpy`, `random`).
# - After `skip(step, count)`, `step` and every later step have the batch that previously came `count` steps later. Earlier steps keep theirs. `position(step)` counts the batches, skipped ones included, that come before the batch of this step. ([[Failures]] skips batches after a loss spike.)
# - After `load_state_dict(state)`, `rows` gives the saved order, whatever seed this object was created with. The step is not part of the state; the checkpoint has it anyway.


# %% name="order" answer=true reveal=true
class DataOrder:
    def __init__(self, samples, batch_size, seed):
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.skipped = []  # positions of the skipped batches in the stream, ascending

    def rows(self, step, rank, ranks):
        ### BEGIN SOLUTION
        epoch, index = divmod(self.position(step), self.samples // self.batch_size)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        batch = order[index * self.batch_size : (index + 1) * self.batch_size]
        return np.array_split(batch, ranks)[rank].tolist()
        ### END SOLUTION

    def skip(self, step, count):
        left_out = [self.position(step + i) for i in range(count)]
        self.skipped = sorted(self.skipped + left_out)

    def state_dict(self):
        return {"seed": self.seed, "skipped": self.skipped}

    def load_state_dict(self, state):
        self.seed, self.skipped = state["seed"], state["skipped"]

    def position(self, step):
        for gap in self.skipped:
            step += gap <= step
        return step


# %% name="order_check"
DataOrder = check("runs_that_survive.order", DataOrder)

# %% name="order_hint"
hint("runs_that_survive.order")

# %% name="order_shown"
order = DataOrder(12, 6, seed=0)
for ranks in (1, 2, 3):
    print(f"step 1 on {ranks} rank{'s' * (ranks > 1)}:", *(order.rows(1, rank, ranks) for rank in range(ranks)))

# %% [markdown] name="torn_text"
# ## 4 · A checkpoint that survives a kill at any moment
#
# `torch.save(state, "checkpoint.pt")` empties the old file and then writes the new one. The next cell starts a process that saves a 4 MiB state over and over without pausing, and kills it at a random moment. It does this forty times.
#
# **Predict.** After how many of the forty kills does the file fail to load?

# %% name="torn_guess"
my_guess = None  # of 40
### BEGIN GUESS
my_guess = 30  # it does nothing but write
### END GUESS
torn_guess = Prediction("Files torn by a kill", my_guess, "of 40", difference=True)

# %% name="torn"
torn_guess.reveal(torn_files(kills=40))
buffer = io.BytesIO()
torch.save({"weights": torch.ones(4096)}, buffer)
content = bytearray(buffer.getvalue())
content[len(content) // 2] ^= 64  # one bit
print("a bit changed, and torch.load reads:", torch.load(io.BytesIO(content))["weights"].unique().tolist())

# %% [markdown] name="torn_explained"
# Each torn file has also replaced a good checkpoint. If a program spends 1% of its time on saving, one kill in a hundred hits it during a save. That is rare enough for tests to miss.
#
# **Rename.** `os.replace(draft, name)` is **atomic**: a reader sees the old file or the new one, never a mixture. So write under another name and *publish* with a rename. This holds on a local or network file system. Most object stores, ordinary S3 buckets among them, have no rename: there a "rename" is a copy and a deletion. With such a store, upload all parts first, and a small manifest last.
#
# **Sync.** After a power failure the file may have its name but not its data, unless `os.fsync` has waited for the data. The rename itself is a change of the *directory*, and needs an `fsync` of the directory. POSIX promises no order here: without that `fsync`, a power failure may undo the rename and still keep a later deletion of the old checkpoint. So: sync the file, rename, sync the directory, and only then delete.
#
# **Verify.** Disks flip bits. In the last line of the output above, all weights should be 1. One of them is not, and `torch.load` reports no error. A reader needs a **checksum** to know that a file is intact. (`torch.save` writes a ZIP archive with a checksum per entry, but `torch.load` does not check them; `zipfile.ZipFile(path).testzip()` does.)
#
# ### Your turn: a checkpoint manager
#
# **Contract.** `Checkpoints(folder, keep=2)` manages the checkpoints in a folder. Its constructor is given. It creates the folder, and syncs the parent of each new folder, because a folder's name is an entry of its parent.
#
# - `save(step, state)` writes a dictionary of tensors, numbers and nested dictionaries with string or integer keys, and does not change it. `step` is an integer from 0 to 9,999,999. When `save` returns, a new `Checkpoints(folder)` in another process finds the checkpoint, unless there are already `keep` whole ones with higher steps. Saving a step again replaces its state.
# - If the process is killed at **any** point during `save`, a reader finds a whole checkpoint: either the new one, or the one that was the newest (had the highest step) before the call.
# - The same holds for a power failure at any moment. Once `save` has returned, a reader finds the new checkpoint even after a power failure. So all data is on the disk before the checkpoint is published (flush every file and call `os.fsync` on it), and the directory is synced before an older checkpoint is deleted.
# - `latest()` returns `(step, state)` of the whole checkpoint with the highest step, regardless of the names and dates of the files, or None if there is none. It skips a damaged checkpoint (with a file that is truncated, emptied, zeroed or missing, or has a flipped bit or two pieces swapped) without an error. `latest()` only reads: it does not delete a damaged checkpoint, and it does not rely on what this object has saved.
# - After `save`, at most `keep` checkpoints are left, those with the highest steps, and no leftovers of killed saves. (So a run that goes back to an earlier step and discards the later ones saves into a new folder.) `keep` counts **whole** checkpoints: the last whole one is never deleted in favor of a damaged one.
#
# You choose how many files a checkpoint has, and their names.


# %% name="manager" answer=true reveal=true
class Checkpoints:
    def __init__(self, folder, keep=2):
        self.folder, self.keep = Path(folder), keep
        new = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in new:  # a power failure must not remove the new folders, either
            above = os.open(path.parent, os.O_RDONLY)
            os.fsync(above)
            os.close(above)

    def save(self, step, state):
        ### BEGIN SOLUTION
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
        draft = self.folder / "draft"
        with draft.open("wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.folder / f"step-{step:012}")  # published
        directory = os.open(self.folder, os.O_RDONLY)
        os.fsync(directory)  # the rename is on the disk before anything is deleted
        os.close(directory)
        kept = [path for path in self.newest_first() if self.whole(path)][: self.keep]
        for path in self.folder.iterdir():
            if path not in kept:
                path.unlink()
        ### END SOLUTION

    def latest(self):
        ### BEGIN SOLUTION
        for path in self.newest_first():
            data = self.whole(path)
            if data:
                return int(path.name.partition("-")[2]), torch.load(io.BytesIO(data))
        return None

    def newest_first(self):
        return sorted(self.folder.glob("step-*"), reverse=True)

    def whole(self, path):
        content = path.read_bytes()
        proof, data = content[:32], content[32:]
        return data if hashlib.sha256(data).digest() == proof else None
        ### END SOLUTION


# %% name="manager_check"
Checkpoints = check("runs_that_survive.manager", Checkpoints)

# %% name="manager_hint"
hint("runs_that_survive.manager")

# %% [markdown] name="manager_explained"
# The check does not kill any process. While your `save` runs, the check copies the folder after each change, and opens each copy with a new manager. A copy shows what a kill at that moment would leave. For power failures, the check also removes every name that was not yet synced.
#
# The course's solution is short, but slow: each save reads and hashes every kept checkpoint again, and holds several copies of a checkpoint in memory. For large states, write and hash in pieces.
#
# ## 5 · Sharded, and without waiting
#
# The training state of a model with 175 billion parameters does not fit into one process. With `torch.distributed.checkpoint` (DCP) each rank writes its own part ([[fully_shard]]). DCP writes the file `.metadata` last and renames it into place. So its presence shows that all parts were written, but not that their bytes are still correct. Only a checksum can show that. Give each step a folder of its own: saving *over* an old checkpoint destroys it before the new one is complete. If several ranks hold copies of the same parameter, only one of them writes it (*deduplication*).
#
# Training need not wait for the disk. `dcp.async_save` copies the state into host memory (**staging**) and returns, and a thread writes it while training goes on. `DefaultStager` does the copy. On a GPU, `StagingOptions` gives it pinned memory and an asynchronous copy on its own stream, so that even the staging overlaps with the next step. Both are off below, because they need a GPU. `async_checkpointer_type=AsyncCheckpointerType.PROCESS` writes from a separate process. Unlike a thread, a process does not compete with training for Python's interpreter lock.
#
# Below, two ranks train a sharded model with AdamW for 12 steps, and save after every fourth step.


# %% name="async"
class CountingStager(DefaultStager):
    nbytes = 0

    def stage(self, state, **options):
        staged = super().stage(state, **options)
        tensors = [t for part in staged.values() for t in torch.utils._pytree.tree_leaves(part)]
        self.nbytes = sum(getattr(t, "_local_tensor", t).nbytes for t in tensors if isinstance(t, torch.Tensor))
        return staged


def train_and_save(folder, ways):
    mesh, group = init_device_mesh("cpu", (2,)), dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(*(nn.Linear(768, 768) for _ in range(6))), mesh=mesh)
    optimizer, x, seen = torch.optim.AdamW(model.parameters()), torch.randn(64, 768), {}
    stager = CountingStager(StagingOptions(False, False, False, False))  # pinned, shared, asynchronous, non-blocking
    for turn, way in enumerate(("warm up", *ways, *ways)):
        begin, waited, writing = time.perf_counter(), 0.0, None
        for step in range(12):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 4 == 3 and way in ("save", "async_save"):
                start = time.perf_counter()
                weights, moments = get_state_dict(model, optimizer)
                state, place = {"model": weights, "optimizer": moments}, f"{folder}/{turn}-{step}"
                if writing:
                    writing.result()  # one at a time
                if way == "save":
                    dcp.save(state, checkpoint_id=place)
                else:
                    writing = dcp.async_save(state, checkpoint_id=place, process_group=group, async_stager=stager)
                waited += time.perf_counter() - start
        if writing:
            writing.result()
        seen.setdefault(way, []).append((waited, time.perf_counter() - begin))
    own = sum(p.to_local().nbytes for p in model.parameters())
    stager.close()
    return {way: tuple(map(min, zip(*runs, strict=True))) for way, runs in seen.items()}, stager.nbytes, own


# %% name="async_measured"
with tempfile.TemporaryDirectory() as folder:
    times, staged, own = run_ranks(
        train_and_save, 2, folder, ("none", "save", "async_save"), device="cpu", measure=False, timeout=180
    ).results[0]
table = [("12 steps, 3 checkpoints", "the loop waits, s", "total, s")]
table += [(way, f"{waited:.2f}", f"{seconds:.2f}") for way, (waited, seconds) in times.items() if way != "warm up"]
show_table(table)
print(f"staged on each rank: {human_bytes(staged)}; its own parameters: {human_bytes(own)}")
slower = {way: times[way][1] - times["none"][1] for way in ("save", "async_save")}
said, subject = "async checkpoints cost (almost) no time", "2 ranks on the CPU, sharded, AdamW"
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
if slower["save"] <= 0.1 * times["none"][1]:
    claims.not_measured("C22", said, f"{subject}; too busy to tell")
elif cores >= 4:  # one per rank that trains, and one per thread that writes
    claims.record("C22", said, subject, slower["async_save"] / slower["save"], "of a synchronous one", -1, 0.2)
else:
    what = "time of async checkpoints without free cores"
    claims.figure(what, subject, slower["async_save"] / slower["save"], "of a synchronous one")
    claims.not_measured("C22", said, f"{subject}; no free core for the writing")

# %% [markdown] name="async_explained"
# The loop waits only for the staging copy, which holds the parameters and both of Adam's moments. But the thread that writes needs a core. On a machine with as many ranks as cores, training and writing share the cores, and the last column shows what remains of the gain. The claim that asynchronous checkpoints cost almost no time is about GPU nodes, where cores are free. So the claim is tested only if this machine has at least two cores per rank and its synchronous saves take a measurable amount of time.
#
# In the formula of section 2, `save` becomes the time that the loop waits. But a checkpoint that is still being written is not safe yet, and if writing takes longer than an interval, the next save waits for it.
#
# Two ideas avoid the disk for most failures. **In-memory replicas**: each rank copies its state into the host memory of a rank on another node, every few steps. That costs network bandwidth, and each node holds two states in host memory. The disk is needed only if both nodes fail. **Per-step fault tolerance** (torchft): replica groups train with a fault-tolerant all-reduce. When a group fails, the others continue with the next step, and the group later rejoins and copies a peer's weights. That costs some speed in every step, and the batch is smaller while a group is missing.
#
# ## 6 · Explore: goodput
#
# The figure uses the exact formula for random failures (Daly's model, with restarts). At 100,000 GPUs, which helps more: saving four times faster, or restarting four times faster? And at 1,024 GPUs?


# %% name="play"
def goodput_at(gpus, save_in_seconds, restart_in_minutes, failures_per_1000_GPU_days):
    mtbf = 86_400 / (gpus * failures_per_1000_GPU_days / 1000)
    every = best_interval(save_in_seconds, mtbf)
    return goodput_figure(every, exact={"save": save_in_seconds, "restart": 60 * restart_in_minutes, "mtbf": mtbf})


explore(
    goodput_at,
    "Goodput by interval, with Young's interval marked.",
    gpus=(16_384, (64, 1_024, 4_096, 16_384, 32_768, 100_000)),
    save_in_seconds=(60, (1, 4, 15, 60, 240)),
    restart_in_minutes=(10, (1, 2.5, 5, 10, 20, 40)),
    failures_per_1000_GPU_days=(0.5, (0.25, 0.5, 1, 2)),
)

# %% [markdown] name="summary_text"
# ## 7 · What this run measured

# %% name="summary"
show_table([("under real kills", "goodput"), *((name, f"{run.goodput:.0%}") for name, run in runs.items())])
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A job on n GPUs fails n times as often as one GPU. Goodput is the share of the time that remains after saving, lost work and restarts.
# - Save every √(2 · save · M) seconds. The optimum is flat. Faster saves and faster restarts help more than a better interval.
# - A checkpoint holds weights, optimizer, schedule, scaler, data position, and the random state of every rank. Most omissions do not show in the loss. Test the resume: the resumed run must match the uninterrupted one bit for bit.
# - Write a draft, `fsync` it, rename it, `fsync` the directory, and only then delete. Store a checksum, and keep two checkpoints.
# - `async_save` waits only for the staging copy, which is as large as the state.
# - Let the data order depend on the seed, the skips and the step, not on ranks or workers.
#
# **What to reach for when.** For a run of a few hours on one GPU, save all six parts every half hour, and test once that the run resumes correctly. On many GPUs, use DCP with `async_save`, and a folder per step. On thousands, keep replicas in memory, and once saving is cheap, make restarts faster. [[Failures]] is about the failures themselves.
#
# **Sources.** Young 1974, *A First Order Approximation to the Optimum Checkpoint Interval*; Daly 2006, *A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps*; Llama team 2024, *The Llama 3 Herd of Models*, section 3.3.4; Zhang et al. 2022, *OPT: Open Pre-trained Transformer Language Models*, and its logbook (facebookresearch/metaseq, `projects/OPT/chronicles`); Lablup 2026, *From Detection to Recovery* (arXiv 2605.09370); POSIX and Linux documentation: `rename(2)`, `fsync(2)`; PyTorch documentation, `torch.distributed.checkpoint`; the torchft repository.
