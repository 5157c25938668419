# %% [markdown] name="title"
# # Runs that survive
#
# **At 16,384 GPUs something fails every three hours. A run survives if it loses minutes then, not days: it saves often enough, but not too often, all that it needs, and finds its way back by itself.**
#
# | | |
# |---|---|
# | After this you can | compute how often to save, and what share of the time is of use; say what a checkpoint must hold, and what happens without each part; write checkpoints that survive a kill at any moment; restart under `torchrun`, also on fewer ranks; tell from logs which rank was killed, hangs, is slow or is wrong; roll back a loss spike |
# | Time | 150 to 215 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes, and get killed |
# | Before this | labs [[#start_here]], [[#data_loading]], [[#data_parallel]] and [[#sharding]] |
# | Syllabus | T41, C22 |

# %% name="setup" setup=true
import copy
import hashlib
import inspect
import io
import math
import os
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

# %% name="setup_helpers" setup=true
from helpers import (
    PUBLISHED_RUNS,
    Claims,
    Prediction,
    RankDiary,
    Training,
    check,
    checksum,
    device_name,
    digits,
    explore,
    goodput_figure,
    hint,
    human_bytes,
    killed_runs,
    losses_figure,
    parts_figure,
    pick_device,
    read_logs,
    run_ranks,
    show,
    spike_figure,
    text_table,
    torchrun_job,
    torn_files,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks talk over gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="failures_text"
# ## 1 · Something always fails
#
# One light bulb lasts for years. A hall with ten thousand of them needs somebody with a ladder every few hours, though no bulb has become worse.
#
# Training is a hall in which all lamps go out when one does: ranks wait for each other in every step ([[data_parallel]]). If one GPU fails λ times a day, a job on n GPUs fails nλ times a day. Its **mean time between failures** is M = 1 / (nλ).
#
# Meta counted for Llama 3: 16,384 GPUs, 54 days, 419 unexpected interruptions.
#
# **Predict.** At this rate, after how many days would *your* job on 64 such GPUs fail, on average?

# %% name="failures_guess"
my_guess = None  # days between failures, 64 GPUs
### BEGIN GUESS
my_guess = 54 / 419 * 16_384 / 64
### END GUESS
failures_guess = Prediction("Days between failures on 64 GPUs", my_guess, "days")

# %% name="failures"
failures_guess.reveal(1 / (64 * PUBLISHED_RUNS[0].per_gpu_day))
table = [("published", "GPUs", "days", "failures", "per 1,000 GPU-days", "hours between two")]
for run in PUBLISHED_RUNS:
    each = f"{1000 * run.per_gpu_day:.2f}"
    table.append((run.name, f"{run.gpus:,}", f"{run.days:g}", str(run.failures), each, f"{run.hours_between:.1f}"))
print(text_table(table))
for run in PUBLISHED_RUNS:
    print(f"{run.name}: {run.counted} ({run.source})")

# %% [markdown] name="cost_text"
# They count different things, on different hardware, and still lie within a factor of five. Rates fall as bad machines are sorted out, and rise with new hardware.
#
# ## 2 · What a failure costs, and how often to save
#
# A **checkpoint** is all that a run needs to go on. Time is lost in three ways:
#
# - each checkpoint takes `save` seconds;
# - each failure throws away the work since the last finished checkpoint;
# - after each failure, the job takes `restart` seconds to train again.
#
# **Goodput** is the share of the time that is left for training that counts. Save more often, and you lose less work and more saving time.
#
# First an exact bookkeeper, then a formula.
#
# ### Your turn: replay a run, and choose its interval
#
# **Contract.** `wall_clock(work, interval, save, restart, failures)` returns the seconds that a run takes in all.
#
# - The run has `work` seconds of training to do. After each `interval` seconds of training it writes a checkpoint, which takes `save` seconds. After its last piece, which may be shorter, it is over: no checkpoint.
# - `failures` is a list of moments on the clock, ascending; it stays as it is. At a failure the run loses all that is not in a finished checkpoint, restarts for `restart` seconds, and goes on from that checkpoint (or from the start).
# - A failure may come while it saves: then that checkpoint is worth nothing. (At the very moment at which a save ends, it comes too late: the checkpoint counts.) It may come while it restarts: then the restart begins anew.
# - Failures after the end change nothing.
#
# `best_interval(save, mtbf)` returns the seconds of training between two checkpoints that give a goodput within 1 % of the best, where failures come at random, one every `mtbf` seconds on average, and `save` is at most a tenth of `mtbf`. (Restarts cost the same whatever the interval is.)


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
            now = ahead.pop(0) + restart  # the next failure may lie before that; then it is the next to be popped
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
# John Young, 1974: √(2 · save · M). Saving costs `save / interval` of the time, lost work `interval / (2 M)`; at the best interval both are equal. John Daly (2006) corrected it for failures so frequent that they hit saves and each other.
#
# How good is it? Your replay can tell. A run like Llama 3's: failures every 3.1 hours at random moments, a checkpoint takes a minute, a restart ten. Twenty runs of a week for each of many intervals.
#
# **Predict.** What is the best goodput? And by how many points does it fall if you save four times too rarely?

# %% name="young_guess"
my_guess = None  # goodput in percent, at the best interval
my_rare_guess = None  # points lost with four times this interval
### BEGIN GUESS
my_guess = 100 * (1 - math.sqrt(2 * 60 / 11140) - 600 / 11140)  # save / T and T / 2M are equal at the best
my_rare_guess = 100 * math.sqrt(2 * 60 / 11140) * ((4 + 1 / 4) / 2 - 1)  # one share 4 times as large, one a quarter
### END GUESS
young_guess = Prediction("Goodput at the best interval", my_guess, "%", difference=True)
rare_guess = Prediction("Lost with four times the best interval", my_rare_guess, "points", difference=True)

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
young_guess.reveal(best)
rare_guess.reveal(best - means[4])
print(f"Young's interval is {young / 60:.0f} minutes: {means[1]:.1f} %; the best of all is {best:.1f} %")
print(f"√(save · M), without the 2, is 0.7 of Young's: {means[0.7]:.1f} %")
show(goodput_figure(young, goodputs), "Goodput by interval: a flat top around Young's interval, steep on both sides.")
claims.record("C22", "Young's interval is close to the best", "simulated week", best - means[1], "points lost", 0, 1)

# %% [markdown] name="young_explained"
# The top is flat, so nobody needs to know M exactly, and whoever forgets the 2 under the root hardly loses: the check takes that answer, too. And if saving is four times faster, you save twice as often and lose half as much: hence section 5.
#
# Larger jobs, with the same save, restart and rate of failures:

# %% name="larger"
table = [("GPUs", "hours between failures", "save every", "goodput")]
for gpus in (1_024, 16_384, 100_000):
    mtbf = 86_400 / (gpus * PUBLISHED_RUNS[0].per_gpu_day)
    every = best_interval(SAVE, mtbf)
    share = WEEK / wall_clock(WEEK, every, SAVE, RESTART, random_failures(mtbf, 50 * WEEK, seed=1))
    table.append((f"{gpus:,}", f"{mtbf / 3600:.1f}", f"{every / 60:.0f} minutes", f"{share:.0%}"))
print(text_table(table))

# %% [markdown] name="killed_text"
# Meta reports more than 90 % for Llama 3; our minute and our ten minutes are assumptions. On the last line it is the restart that hurts, and no interval helps against it.
#
# ### Real kills
#
# Is the bookkeeping right? Here is a real process: a step takes 10 ms, a checkpoint 30 ms, and from outside comes SIGKILL, at random, 0.6 seconds after a start on average. SIGKILL cannot be caught; the process has no time to say goodbye. Three of them, each with its own interval, must do 300 steps.
#
# A restart costs about as much as importing PyTorch does on your machine, and the picture below shows what it came to.
#
# **Predict.** Which goodput does the one with Young's interval reach? (The formulas above leave the restart out. What does it take off?)

# %% name="killed_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * (1 - math.sqrt(2 * 0.03 / 0.6))
### END GUESS
killed_guess = Prediction("Goodput under real kills, Young's interval", my_guess, "%", difference=True)

# %% name="killed"
steps_between = {"too often": 3, "Young": round(best_interval(0.03, 0.6) / 0.01), "too rarely": 120}
runs = killed_runs(steps_between, steps=300, tick=0.01, save=0.03, mtbf=0.6)
killed_guess.reveal(100 * runs["Young"].goodput)
show(parts_figure(runs), "Three bars of useful, repeated, saving and restarting seconds; Young's has the best balance.")
table = [("interval", "steps", "kills", "seconds", "replayed", "goodput")]
for name, run in runs.items():
    replayed = wall_clock(300 * run.step, steps_between[name] * run.step, run.save, run.restart, run.kills)
    row = name, str(steps_between[name]), str(len(run.kills)), f"{run.seconds:.1f}", f"{replayed:.1f}"
    table.append((*row, f"{run.goodput:.0%}"))
    if run.busy:
        claims.not_measured("T41", "the replay predicts a run", f"{name}; this machine was too busy")
    else:
        claims.record("T41", "the replay predicts a run", f"killed {name}", run.seconds / replayed, "x", 0.8, 1.3)
print(text_table(table))

# %% [markdown] name="killed_explained"
# *Replayed* is your `wall_clock`, given the moments at which this process was really killed, and what its steps, saves and restarts took on average. (With so few kills, luck has a say in which run is fastest; the curve above was an average.)
#
# ## 3 · What must a checkpoint hold?
#
# The helper `Training` is a small run on the digits, with all that real ones have. Its state has six parts:

# %% name="parts"
print(inspect.getsource(Training.step))
print("parts:", ", ".join(Training.PARTS))

# %% [markdown] name="parts_guess_text"
# Without interruption it does 70 steps. Then six runs are resumed after step 35, each with one part left out, as if somebody had forgotten to save it: the part stays as it is at the start of a run.
#
# **Predict.** In how many of the six does the *first* loss after resuming differ from that without interruption, even if only in the last digit? And how many of the six would you notice: mean loss of the next 35 steps more than 10 % above the right one?

# %% name="parts_guess"
my_guess = None  # of 6: first loss differs
my_notice_guess = None  # of 6: mean loss more than 10 % higher
### BEGIN GUESS
my_guess = 3  # weights, rows, dropout; the others act through the first update
my_notice_guess = 2  # weights, optimizer
### END GUESS
first_guess = Prediction("First loss differs", my_guess, "of 6", difference=True)
notice_guess = Prediction("Mean loss more than 10 % higher", my_notice_guess, "of 6", difference=True)

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
first_guess.reveal(sum(losses[0] != right[0] for losses in left_out.values()))
worse = {part: statistics.mean(losses) / statistics.mean(right) - 1 for part, losses in left_out.items()}
notice_guess.reveal(sum(share > 0.1 for share in worse.values()))
table = [("left out", "first loss off by", "mean loss", "largest difference")]
for part, losses in left_out.items():
    apart = [abs(a - b) for a, b in zip(losses, right, strict=True)]
    table.append((part, f"{apart[0]:.2g}", f"{worse[part]:+.0%}", f"{max(apart):.2g}"))
print(text_table(table))
print("with all six, the losses are the same to the last bit:", resumed(()) == right)
show(
    losses_figure(through.losses, left_out, 35),
    "Six panels: only without weights is the curve clearly a different one.",
)
same = float(resumed(()) == right)
claims.record("T41", "all six parts: the same bits", "35 steps after resuming", same, "(1: yes)", 1, 1)

# %% [markdown] name="parts_explained"
# Only one mistake is obvious. That is the danger: the others pass for noise, and it is a different run all the same.
#
# - **Optimizer**: without moments, Adam's first steps are far too large: a hump, then it recovers.
# - **Schedule**: the rate warms up again, and decays too late.
# - **Scaler**: steps are thrown away until the scale is right again.
# - **Data position**: the run trains on rows that it has had, and never sees others. The loss may even be *lower*.
# - **Random state**: other dropout masks, no better and no worse. But a run that cannot be repeated cannot be debugged.
#
# ### Of every rank, and of every worker
#
# On N ranks there are N random states. A common shortcut: rank 0 saves its own, and all ranks load it.
#
# **Predict.** Dropout with p = 0.5 on two ranks. What share of the two masks agrees before, and what share after such a resume?

# %% name="masks_guess"
my_before_guess = None  # share of equal elements
my_after_guess = None
### BEGIN GUESS
my_before_guess = 0.5  # two coins
my_after_guess = 1.0  # one coin, thrown once for both
### END GUESS
before_guess = Prediction("Masks that agree, before", my_before_guess, "")
after_guess = Prediction("Masks that agree, after", my_after_guess, "")


# %% name="masks"
def two_masks():
    torch.manual_seed(100 + dist.get_rank())  # its own state on each rank
    before = F.dropout(torch.ones(10_000), 0.5)
    state = torch.get_rng_state()
    dist.broadcast(state, src=0)  # what rank 0 has saved
    torch.set_rng_state(state)
    return before, F.dropout(torch.ones(10_000), 0.5)


(before_0, after_0), (before_1, after_1) = run_ranks(two_masks, 2, device="cpu").results
before_guess.reveal((before_0 == before_1).float().mean().item())
after_guess.reveal((after_0 == after_1).float().mean().item())

# %% [markdown] name="masks_explained"
# So each rank saves its own state: on GPUs `torch.cuda.get_rng_state()` as well, and those of `numpy` and `random`.
#
# Workers of a `DataLoader` are worse: they run ahead, so when you save, their generators are further than the loop. And on another number of ranks or workers there *is* no state to give back. The way out is no state at all: the crop of sample 4,711 in epoch 3 is drawn from a generator made from `(seed, 3, 4711)`, whoever loads it.
#
# The same goes for the order of the data. The loader of [[data_loading]] remembers its place, and counts on the same ranks coming back. At scale a broken machine is taken out, and the job goes on with fewer. The **global batch** should stay as it was, whoever computes it.
#
# ### Your turn: a data order that can be resumed
#
# **Contract.** `DataOrder(samples, batch_size, seed)` says who trains on what.
#
# - `rows(step, rank, ranks)` returns the samples (numbers from 0 to `samples` − 1) of this rank in this step, of any step, in any order of asking.
# - The parts of all ranks, one after the other, are the global batch of the step: `batch_size` samples, **the same list for any number of ranks**. Parts differ by one sample at most.
# - An epoch has `samples // batch_size` steps. In it no sample comes twice. Each epoch has a new order, and so has each seed: no epoch of a seed is like any epoch of another. The program's own random numbers (`torch`, `numpy`, `random`) are neither used nor changed.
# - `skip(step, count)`: from now on `step` has the batch that came `count` steps later, and so on for all later steps. Earlier steps keep theirs. It may be called again, also with an earlier step. (Section 8 needs it.)
# - `state_dict()` is small and plain (`json.dumps` can write it). Skips that come later do not change a state that was returned or loaded. `load_state_dict(state)` makes any order with the same samples and batch size that one, whatever seed it began with. The step itself is not part of it: the checkpoint has it anyway.


# %% name="order" answer=true reveal=true
class DataOrder:
    def __init__(self, samples, batch_size, seed):
        ### BEGIN SOLUTION
        self.samples, self.batch_size, self.seed = samples, batch_size, seed
        self.skipped = []  # positions in the stream of batches that no step has, ascending
        ### END SOLUTION

    def rows(self, step, rank, ranks):
        ### BEGIN SOLUTION
        epoch, index = divmod(self.position(step), self.samples // self.batch_size)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        batch = order[index * self.batch_size : (index + 1) * self.batch_size]
        return np.array_split(batch, ranks)[rank].tolist()
        ### END SOLUTION

    def skip(self, step, count):
        ### BEGIN SOLUTION
        left_out = [self.position(step + i) for i in range(count)]
        self.skipped = sorted(self.skipped + left_out)
        ### END SOLUTION

    def state_dict(self):
        ### BEGIN SOLUTION
        return {"seed": self.seed, "skipped": self.skipped}
        ### END SOLUTION

    def load_state_dict(self, state):
        ### BEGIN SOLUTION
        self.seed, self.skipped = state["seed"], state["skipped"]

    def position(self, step):
        for gap in self.skipped:
            step += gap <= step
        return step
        ### END SOLUTION


# %% name="order_check"
DataOrder = check("runs_that_survive.order", DataOrder)

# %% name="order_hint"
hint("runs_that_survive.order")

# %% name="order_shown"
order = DataOrder(12, 6, seed=0)
for ranks in (1, 2, 3):
    print(f"step 1 on {ranks} rank(s):", *(order.rows(1, rank, ranks) for rank in range(ranks)))

# %% [markdown] name="torn_text"
# ## 4 · A checkpoint that survives a kill at any moment
#
# `torch.save(state, "checkpoint.pt")` empties the old file and then writes the new one. Here is a process that does so over and over, and is killed forty times at a random moment.
#
# **Predict.** After how many of the forty kills can the file not be loaded?

# %% name="torn_guess"
my_guess = None  # of 40
### BEGIN GUESS
my_guess = 30  # it does nothing else but write
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
# And the old one is gone, too. (A program that saves for 1 % of its time is hit there once in a hundred kills: rarely enough that nobody tests it.)
#
# One operation of file systems helps: `os.replace(draft, name)` is **atomic**. Anyone who looks sees the old file or the new one, never half of one. So write under another name, and *publish* with a rename.
#
# After a power failure the name may be on disk and the bytes not yet, unless `os.fsync` has waited for them.
#
# And disks lose bits. The last line above shows one of them: the weights should all be 1, and `torch.load` says nothing. A reader needs a proof that a file is whole, a **checksum** in it. (`torch.save` writes a ZIP archive, which has one for each of its entries. `torch.load` does not look at them; `zipfile.ZipFile(path).testzip()` does.)
#
# ### Your turn: a checkpoint manager
#
# **Contract.** `Checkpoints(folder, keep=2)` makes the folder if there is none.
#
# - `save(step, state)` writes a dictionary of tensors, numbers and such dictionaries, and leaves it as it is; its keys are strings or integers. `step` is a whole number from 0 to 9,999,999. When `save` returns, a new `Checkpoints(folder)`, in another process, finds it. A step may be saved again: then the new state counts.
# - Killed at **any** moment of `save`, what is found is the newest from before (the highest step), whole, or the new one, whole.
# - All bytes are on the disk (`os.fsync` of every file, after it has been flushed) before the checkpoint is published.
# - `latest()` returns `(step, state)` of the whole checkpoint with the highest step, whatever the files' names and dates, or None if there is none. A damaged one (cut short, empty, all zeros, a single bit changed, parts exchanged, gone) is passed over; no error. `latest()` only reads.
# - After `save` at most `keep` checkpoints are left, the newest ones, and nothing that killed saves have left behind. `keep` counts **whole** ones: the last whole one is never deleted in favour of a damaged one.
#
# How many files a checkpoint has, and how they are called, is up to you.


# %% name="manager" answer=true reveal=true
class Checkpoints:
    def __init__(self, folder, keep=2):
        ### BEGIN SOLUTION
        self.folder, self.keep = Path(folder), keep
        self.folder.mkdir(parents=True, exist_ok=True)
        ### END SOLUTION

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
# The check kills nothing. While your `save` runs, it copies the folder whenever it has changed, and lets a new manager look at each copy: that is what a kill at that moment would leave.
#
# ## 5 · Sharded, and without waiting
#
# A state of 175 billion parameters does not go through one process. With `torch.distributed.checkpoint` (DCP) each rank writes its own part ([[sharding]]). A complete one has the file `.metadata`, written last and renamed; it proves that all parts were written, not that their bytes are still right. So give each step a folder of its own, and publish that: a save *over* an old checkpoint destroys it first.
#
# And training need not wait for the disk. `dcp.async_save` copies the state into the host's memory (**staging**) and returns; a thread writes while training goes on. On a GPU the copy must cross PCIe and is then apart from the GPU's memory. On a CPU it is a plain copy. Two ranks, a sharded model, AdamW; a save with every fourth of twelve steps.
#
# **Predict.** How large is the staging copy, in units of the bytes of the rank's own parameters? And what share of the seconds of a `save` does the loop wait in `async_save`?

# %% name="async_guess"
my_bytes_guess = None  # bytes staged / bytes of the rank's parameters
my_wait_guess = None  # seconds waited, async_save / save
### BEGIN GUESS
my_bytes_guess = 3  # parameters and two moments
my_wait_guess = 0.2
### END GUESS
staged_guess = Prediction("Staged / own parameters", my_bytes_guess, "times")
wait_guess = Prediction("The loop waits: async_save / save", my_wait_guess, "")


# %% name="async"
class CountingStager(BlockingAsyncStager):
    nbytes = 0

    def stage(self, state):
        staged = super().stage(state)
        tensors = [t for part in staged.values() for t in torch.utils._pytree.tree_leaves(part)]
        self.nbytes = sum(getattr(t, "_local_tensor", t).nbytes for t in tensors if isinstance(t, torch.Tensor))
        return staged


def train_and_save(folder, ways):
    mesh, group = init_device_mesh("cpu", (2,)), dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = fully_shard(nn.Sequential(*(nn.Linear(768, 768) for _ in range(6))), mesh=mesh)
    optimizer, x, told = torch.optim.AdamW(model.parameters()), torch.randn(64, 768), {}
    stager = CountingStager(cache_staged_state_dict=False)
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
        told.setdefault(way, []).append((waited, time.perf_counter() - begin))
    own = sum(p.to_local().nbytes for p in model.parameters())
    return {way: tuple(map(min, zip(*runs, strict=True))) for way, runs in told.items()}, stager.nbytes, own


# %% name="async_measured"
with tempfile.TemporaryDirectory() as folder:
    told, staged, own = run_ranks(
        train_and_save, 2, folder, ("none", "save", "async_save"), device="cpu", measure=False, timeout=180
    ).results[0]
staged_guess.reveal(staged / own)
wait_guess.reveal(told["async_save"][0] / told["save"][0])
table = [("12 steps, 3 checkpoints", "the loop waits, s", "in all, s")]
table += [(way, f"{waited:.2f}", f"{seconds:.2f}") for way, (waited, seconds) in told.items() if way != "warm up"]
print(text_table(table))
print(f"staged on each rank: {human_bytes(staged)}; its own parameters: {human_bytes(own)}")
slower = {way: told[way][1] - told["none"][1] for way in ("save", "async_save")}
subject = "2 ranks on the CPU, sharded, AdamW"
if slower["save"] > 0.1 * told["none"][1]:
    cost = slower["async_save"] / slower["save"]
    claims.record("C22", "async checkpoints cost (almost) no time", subject, cost, "of a synchronous one", -1, 0.2)
else:
    claims.not_measured("C22", "async checkpoints cost (almost) no time", f"{subject}; too busy to tell")

# %% [markdown] name="async_explained"
# The loop waits for the copy alone. But the thread that writes needs a processor, and here training needs it, too: compare the last column. So claim C22, that asynchronous checkpoints cost almost no time, may well fall on a CPU; the table at the end says what it came to on yours. Beside a GPU the host's cores are mostly free. The copy is as large as the whole state.
#
# In the formula of section 2, `save` becomes the time that the loop waits. But what is being written is not yet safe; and if it takes longer than an interval, the next save waits for it.
#
# ## 6 · Restarted by `torchrun`
#
# `torchrun --max-restarts=2` watches its ranks. When one fails, it ends all others and starts all anew, up to two times. It brings back no state: each start must look for the newest checkpoint itself. Here is a whole program, with your `DataOrder` and your `Checkpoints`, and with places where it can be broken.


# %% name="faults"
data = digits()
images, labels = data.train_x, data.train_y


def small_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def break_here(fault, where, model):
    """Do to this rank what `fault` says, if this is where it is done."""
    if where == "before":
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(1000)
        if fault == "slow":
            time.sleep(0.05)
        if fault == "wrong gradient":
            model[1].weight.grad[0, 0] += 1.0
    elif fault == "wrong weight":
        with torch.no_grad():
            model[1].weight[0, 0] += 1.0


# %% name="program"
def survive(folder, faults, steps):
    """Train on this rank from the newest checkpoint on; `faults` says what breaks: (attempt, rank, step) -> how."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    dist.init_process_group("gloo")
    patience = 5 if "hang" in faults.values() else 60  # seconds; on a busy machine a healthy rank may take long
    group = dist.new_group(timeout=timedelta(seconds=patience))  # once all are there
    rank, ranks = dist.get_rank(), dist.get_world_size()
    diary, manager = RankDiary(folder, rank, attempt), Checkpoints(f"{folder}/checkpoints")
    order, begin, losses = DataOrder(len(images), 48, seed=1), 0, []
    model, optimizer = small_model()
    if found := manager.latest():
        begin, state = found
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        order.load_state_dict(state["order"])
    for step in range(begin, steps):
        fault, rows = faults.get((attempt, rank, step)), order.rows(step, rank, ranks)
        loss = F.cross_entropy(model(images[rows]), labels[rows], reduction="sum") / order.batch_size
        loss.backward()
        break_here(fault, "before", model)
        gradient = torch.cat([loss.detach().view(1), *(p.grad.flatten() for p in model.parameters())])
        with diary.call("all_reduce"):
            dist.all_reduce(gradient, group=group)
        losses.append(gradient[0].item())
        for p, whole in zip(
            model.parameters(), gradient[1:].split([p.numel() for p in model.parameters()]), strict=True
        ):
            p.grad = whole.view_as(p)
        optimizer.step()
        optimizer.zero_grad()
        break_here(fault, "after", model)
        diary.note("checksum", checksum(model.parameters()))
        if (step + 1) % 8 == 0 and rank == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "order": order.state_dict()}
            manager.save(step + 1, parts)
    if rank == 0:
        print(f"attempt {attempt}, {ranks} ranks: steps {begin} to {steps}, weights {checksum(model.parameters()):08x}")
    dist.barrier()
    dist.destroy_process_group()
    return losses


# %% [markdown] name="restart_text"
# In the first attempt rank 1 is killed at step 20. In the second it hangs at step 27: it never comes to its all-reduce. The group of the all-reduces has a timeout of 5 seconds where a hang is staged ([[data_parallel]]): without one there would be no failure, and so no restart.
#
# **Predict.** It saves every 8 steps and has 32 to do. How many steps does rank 0 do in all three attempts together?

# %% name="restart_guess"
my_guess = None  # steps
### BEGIN GUESS
my_guess = 20 + (27 - 16) + (32 - 24)  # 0 to 20, 16 to 27, 24 to 32
### END GUESS
restart_guess = Prediction("Steps done in three attempts", my_guess, "")

# %% name="restart"
faults = {(0, 1, 20): "kill", (1, 1, 27): "hang"}
with tempfile.TemporaryDirectory() as folder:
    job = torchrun_job(survive, 2, folder, faults, 32, restarts=2)
    attempts = [read_logs(folder, job.exit_codes(attempt, 2), attempt) for attempt in range(3)]
with tempfile.TemporaryDirectory() as folder:
    untouched = torchrun_job(survive, 2, folder, {}, 32)
print(f"killed and hung: {job.printed}\nuninterrupted:   {untouched.printed}")
for exit_code, rank in job.failures:
    print(f"torchrun blames rank {rank}, exit code {exit_code}")
said, subject = "killed and hung: the same bits", "2 ranks, torchrun, 32 steps"
as_staged = [code for code, _ in job.failures] == [-9, 1]  # not for a rank that a busy machine held up for too long
if job.code == untouched.code == 0 and as_staged:
    restart_guess.reveal(sum(len(logs[0].checksums) for logs in attempts))
    claims.record("T41", said, subject, float(job.printed[-8:] == untouched.printed[-8:]), "(1: yes)", 1, 1)
else:
    print("This machine is too busy at the moment: a job took longer than it may.")
    claims.not_measured("T41", said, f"{subject}; this machine was too busy")

# %% [markdown] name="restart_explained"
# The weights are those of the run that nobody disturbed, to the last bit. Now look at which rank `torchrun` blames: the one that failed *first*. For the kill it is right. In the second attempt rank 1 hung, and rank 0 was the first to lose patience: the one that reports the accident is not the one that caused it.
#
# > **Note:** By default the ranks of a new attempt meet in the *same* store as the last ones, and may read addresses of processes that are dead ("connection refused", now and then; PyTorch issues 135712 and 167288, and still so over gloo in 2.13). The helper sets `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: a new store for each attempt.
#
# ### With fewer ranks
#
# The broken machine does not come back. Two ranks train for 16 steps; then one rank, or three, go on with the same checkpoint.
#
# **Predict.** How far is the last loss, after 16 more steps on 1 or 3 ranks, from that of 2 ranks throughout? Relative, and to the nearest power of ten.

# %% name="fewer_guess"
my_guess = None
### BEGIN GUESS
my_guess = 1e-6  # the same samples, added in another order
### END GUESS
fewer_guess = Prediction("Last loss on other numbers of ranks: relative difference", my_guess, "")


# %% name="fewer"
def on_ranks(ranks, folder, steps, faults=None):
    run = run_ranks(survive, ranks, folder, faults or {}, steps, device="cpu", process_group=False, show=False)
    return run.results[0]


losses = {}
for ranks in (1, 2, 3):
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(2, folder, 16)
        losses[ranks] = on_ranks(ranks, folder, 32)
furthest = max(abs(losses[ranks][-1] / losses[2][-1] - 1) for ranks in (1, 3))
fewer_guess.reveal(furthest)
for ranks, after in losses.items():
    print(f"resumed on {ranks}: {' '.join(f'{loss:.6f}' for loss in after[-6:])}")
claims.record("T41", "resumed on other ranks: same losses", "2 to 1 and 3 ranks", furthest, "relative", 0, 1e-4)

# %% [markdown] name="fewer_explained"
# The global batch is the same because `DataOrder` knows nothing of ranks. Had each rank kept *its* 24 rows, one rank would have gone on with a batch of 24, and that is a different run. What is left is rounding. If you need the last bit on fewer ranks, too, sum in an order that does not depend on them.
#
# ## 7 · Slow, and wrong
#
# Nobody dies, and still something is broken. Three ranks train for 12 steps. In one run rank 2 is slow in each step. In another, from step 6 on, a bit of rank 1 goes wrong: either in its **weights**, after the update, or in its **gradient**, before the all-reduce. Replicas should be equal to the last bit, so after each step each rank notes a checksum of its weights.
#
# **Predict.** In how many of the 12 steps do the checksums of the ranks differ: with a wrong weight from step 6 on, and with a wrong gradient from step 6 on?

# %% name="wrong_guess"
my_weight_guess = None  # of 12 steps
my_gradient_guess = None
### BEGIN GUESS
my_weight_guess = 6
my_gradient_guess = 0  # the sum is wrong, and it is wrong for everybody
### END GUESS
weight_guess = Prediction("Steps in which checksums differ: wrong weight", my_weight_guess, "of 12", difference=True)
sum_guess = Prediction("Steps in which checksums differ: wrong gradient", my_gradient_guess, "of 12", difference=True)


# %% name="wrong"
def broken(rank, first, fault):
    """Return what three ranks leave after a job of 12 steps with a fault."""
    with tempfile.TemporaryDirectory() as folder:
        on_ranks(3, folder, 12, {(0, rank, step): fault for step in range(first, 12)})
        return read_logs(folder, {0: 0, 1: 0, 2: 0})


jobs = {"slow": broken(2, 0, "slow"), "wrong weight": broken(1, 6, "wrong weight")}
jobs["wrong gradient"] = broken(1, 6, "wrong gradient")
jobs |= {"killed": attempts[0], "hung": attempts[1]} if as_staged else {}
differ = {
    name: sum(len(set(step)) > 1 for step in zip(*(log.checksums for log in logs), strict=False))
    for name, logs in jobs.items()
}
weight_guess.reveal(differ["wrong weight"])
sum_guess.reveal(differ["wrong gradient"])
for rank, log in enumerate(jobs["wrong weight"]):
    print(f"wrong weight, rank {rank}:", " ".join(f"{value:08x}" for value in log.checksums[4:8]))

# %% [markdown] name="wrong_explained"
# A wrong weight shows at once, and with three ranks the majority says whose it is. (With two you only know that one is wrong.) A wrong gradient goes into the sum, and everybody gets the same wrong sum. Replicas agree, and all are wrong.
#
# To find that one, give all ranks the **same** rows now and then, and compare gradients *before* they are summed:


# %% name="same_rows"
def same_rows(faulty):
    model, _ = small_model()
    F.cross_entropy(model(images[:48]), labels[:48]).backward()
    if dist.get_rank() == faulty:
        break_here("wrong gradient", "before", model)
    return checksum(p.grad for p in model.parameters())


found = run_ranks(same_rows, 3, 1, device="cpu", show=False).results
print("the same rows on all ranks, gradients:", " ".join(f"{value:08x}" for value in found))

# %% [markdown] name="diagnosis_task"
# ### Your turn: who broke the job?
#
# On 16,384 GPUs nobody reads logs by hand. Each rank leaves a `RankLog`: `exit_code`; `calls`, its collectives, each with `asked` and `answered` (seconds; None if it never came back); `checksums`, of its weights after each step. (The calls are those that a flight recorder keeps ([[data_parallel]]), with the times that it lacks over gloo.)
#
# **Contract.** `diagnose(logs)` takes the logs of all ranks, at least three, and returns a pair: what happened, and to which rank. It does not change the logs.
#
# - `("killed", rank)`: SIGKILL took it (exit code −9). The others lose their connection and raise (1), or are told to stop (−15).
# - `("hung", rank)`: the job broke and nobody was killed; all others wait in a collective that this rank has not called.
# - `("wrong", rank)`: its weights are not those of the others, from some step on.
# - `("slow", rank)`: it works more than 1.5 times as long as the median rank, in most steps. *Working* is the time between an answer and the next question. A single long step, such as a rank that writes a checkpoint, means nothing.
# - `("healthy", None)`: none of these. Each job has at most one of them.


# %% name="diagnosis" answer=true reveal=true
def diagnose(logs):
    ### BEGIN SOLUTION
    for rank, log in enumerate(logs):
        if log.exit_code == -9:
            return "killed", rank
    if any(log.exit_code for log in logs):
        return "hung", next(rank for rank, log in enumerate(logs) if log.calls[-1].answered is not None)
    for step in zip(*(log.checksums for log in logs), strict=False):
        usual = Counter(step).most_common(1)[0][0]
        for rank, value in enumerate(step):
            if value != usual:
                return "wrong", rank
    working = []
    for log in logs:
        pairs = zip(log.calls, log.calls[1:], strict=False)
        working.append(statistics.median(after.asked - before.answered for before, after in pairs))
    slowest = max(working)
    if slowest > 1.5 * statistics.median(working):
        return "slow", working.index(slowest)
    return "healthy", None
    ### END SOLUTION


# %% name="diagnosis_check"
diagnose = check("runs_that_survive.diagnosis", diagnose)

# %% name="diagnosis_hint"
hint("runs_that_survive.diagnosis")

# %% name="diagnosed"
for name, logs in jobs.items():
    print(f"{name:15} diagnosed as {diagnose(logs)}")
for rank, log in enumerate(jobs["slow"]):
    waits = statistics.median(call.answered - call.asked for call in log.calls)
    print(f"slow, rank {rank}: waits {1000 * waits:.0f} ms a step in its all-reduce")

# %% [markdown] name="diagnosed_explained"
# These are the real jobs of this lab. The one with the wrong gradient is not called wrong, and cannot be: what nobody records, no diagnosis can find. (On a busy machine a rank of it may pass for slow, and it is slow then.) The slow rank is the one that waits least ([[data_parallel]]).
#
# ## 8 · Loss spikes
#
# Sometimes it is not the machine. The loss jumps, for a batch or for good. PaLM's authors met about twenty spikes. They went back about 100 steps before each, left out a few hundred batches, and the spike did not return. Their data were not bad: the same batches did no harm with other weights. (We stage a spike with bad batches below, because that can be repeated.)
#
# We stage one: four batches from step 65 on have wrong labels and inputs that are ten times too large. Four ways to deal with it:
#
# - *carry on*;
# - *clip* the gradient to a norm of 1;
# - *leave out* each update whose gradient norm is more than 4 times the median of the last 20;
# - *roll back*: when the loss is more than 3 times the median of the last 20, go back to the last checkpoint, and `skip` 8 batches from the spike on.
#
# **Predict.** By what factor is the test loss at the end, after 180 steps, higher if you carry on than if you roll back?

# %% name="spike_guess"
my_guess = None  # test loss carrying on / rolled back
### BEGIN GUESS
my_guess = 1.5  # four bad updates, and Adam's second moment forgets slowly
### END GUESS
spike_guess = Prediction("Test loss at the end: carry on / roll back", my_guess, "times")


# %% name="spike"
def unusual(values, times):
    return len(values) > 20 and values[-1] > times * statistics.median(values[-21:-1])


def with_spike(way, bad, steps=180):
    """Train through `bad` poisoned batches; return the test loss after each step, and how many steps were done."""
    (model, optimizer), order = small_model(), DataOrder(len(images), 48, seed=1)
    poisoned = [order.rows(step, 0, 1) for step in range(65, 65 + bad)]
    step, done, losses, norms, tests = 0, 0, [], [], []
    while step < steps:
        if step % 10 == 0:
            kept = step, copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        rows = order.rows(step, 0, 1)
        x, y = (10 * images[rows], 9 - labels[rows]) if rows in poisoned else (images[rows], labels[rows])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0 if way == "clip" else math.inf).item())
        losses.append(loss.item())
        if way == "roll back" and unusual(losses, 3):
            order.skip(step, 8)
            step, (weights, moments) = kept[0], copy.deepcopy(kept[1])
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)
            del losses[step:], norms[step:], tests[step:]
            continue
        if not (way == "leave out" and unusual(norms, 4)):
            optimizer.step()
        with torch.no_grad():
            tests.append(F.cross_entropy(model(data.test_x), data.test_y).item())
        step, done = step + 1, done + 1
    return tests, done


# %% name="spiked"
WAYS = ("carry on", "clip", "leave out", "roll back")


def spiked(bad):
    """Deal with `bad` poisoned batches in each way; print a table, return the test losses."""
    table, curves = [(f"{bad} bad batches", "test loss before", "worst after", "at the end", "steps done")], {}
    for way in WAYS:
        curves[way], done = with_spike(way, bad)
        before, worst, end = curves[way][64], max(curves[way][65:]), curves[way][-1]
        table.append((way, f"{before:.2f}", f"{worst:.2f}", f"{end:.3f}", str(done)))
    print(text_table(table))
    return curves


curves = spiked(bad=4)
spike_guess.reveal(curves["carry on"][-1] / curves["roll back"][-1])
show(spike_figure(curves, 65), "Four curves of the test loss; carrying on, it jumps and comes back slowly.")
worse = curves["carry on"][-1] / curves["roll back"][-1]
said = "a spike costs more than its steps"
claims.record("T41", said, "4 bad batches, carry on / roll back", worse, "x", 1.2, math.inf)

# %% [markdown] name="spike_short"
# Four batches cost the rest of the run: the weights are thrown off, and Adam's second moment (β₂ = 0.999) remembers huge gradients for about 1,000 steps; with the 0.95 of most language models it is about 20, so the way back goes in small ones. Each of the three remedies is good enough here.
#
# Then why does anybody go to the trouble of rolling back? Here is a spike of 24 batches.
#
# **Predict.** Which of the three remedies fails now? (One of them compares with the last 20 steps.)

# %% name="long_spike"
long = spiked(bad=24)
show(spike_figure(long, 65), "Four curves of the test loss; only rolled back does it show no hump.")

# %% [markdown] name="spike_explained"
# - *Leaving out* catches what stands out from the last 20 steps. After ten bad batches, half of those 20 are bad ones: the median has become theirs, and the rest goes through.
# - *Clipping* bounds what one batch can do, in healthy steps, too. Twenty-four bounded steps in a wrong direction are still 24 of them.
# - *Rolling back* undoes everything, as often as the loss stands out again. It needs all that you have built: whole checkpoints, and an order of the data whose gap survives the next restart.
#
# ### Play: goodput
#
# Exact for failures at random (Daly's model, with restarts). Which helps more at 100,000 GPUs: to save four times faster, or to restart four times faster? And at 1,000?


# %% name="play"
def play(gpus, save_in_seconds, restart_in_minutes, failures_per_1000_GPU_days):
    mtbf = 86_400 / (gpus * failures_per_1000_GPU_days / 1000)
    every = best_interval(save_in_seconds, mtbf)
    return goodput_figure(every, exact={"save": save_in_seconds, "restart": 60 * restart_in_minutes, "mtbf": mtbf})


explore(
    play,
    "Goodput by interval, with Young's interval marked.",
    gpus=(16_384, (64, 1_024, 4_096, 16_384, 32_768, 100_000)),
    save_in_seconds=(60, (1, 4, 15, 60, 240)),
    restart_in_minutes=(10, (1, 2.5, 5, 10, 20, 40)),
    failures_per_1000_GPU_days=(0.5, (0.25, 0.5, 1, 2)),
)

# %% [markdown] name="summary_text"
# ## 9 · What this run measured

# %% name="summary"
print(text_table([("under real kills", "goodput"), *((name, f"{run.goodput:.0%}") for name, run in runs.items())]))
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A job on n GPUs fails n times as often as one GPU. Goodput is what is left after saving, lost work and restarts.
# - Save every √(2 · save · M) seconds. The top is flat; what helps is a faster save and a faster restart.
# - A checkpoint holds weights, optimizer, schedule, scaler, data position, and the random state of every rank. Most of what you forget does not show in the loss. Test it: the resumed run must have the same bits.
# - Write a draft, `fsync`, rename; store a checksum; keep two; delete last.
# - `async_save` waits only for the staging copy, as large as the state.
# - `torchrun` restarts everything after a failure, and only a timeout makes a hang a failure. It blames the rank that failed first, which need not be the one at fault.
# - Checksums of replicas find what goes wrong after the all-reduce, not before.
# - Roll back, and skip.
#
# **What to reach for when.** One GPU and a few hours: save weights, optimizer, position and random state every half an hour, and test the resume once. Many GPUs: DCP with `async_save`, a folder for each step, `torchrun` with restarts, and timeouts that fit the job (NCCL's default is ten minutes, gloo's thirty). Thousands: spare machines, and a diagnosis that runs by itself.
#
# **Sources.** Young 1974, *A First Order Approximation to the Optimum Checkpoint Interval*; Daly 2006, *A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps*; Llama team 2024, *The Llama 3 Herd of Models*, section 3.3.4; Zhang et al. 2022, *OPT: Open Pre-trained Transformer Language Models*, and its logbook (facebookresearch/metaseq, `projects/OPT/chronicles`); Lablup 2026, *From Detection to Recovery* (arXiv 2605.09370); Chowdhery et al. 2022, *PaLM*, section 5.1 (loss spikes); PyTorch documentation, `torchrun`, `torch.distributed.checkpoint`, *Flight Recorder*.
