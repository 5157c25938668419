# %% [markdown] name="title"
# # Data parallel
#
# **N workers, each with the whole model and a part of the batch, agree on the average gradient after every backward pass. You get the update of the joint batch at about N times the
# speed, and save not a byte of parameters, gradients or optimizer state.**
#
# | | |
# |---|---|
# | After this you can | average gradients by hand and prove the update right; say what `DistributedDataParallel` sends, when and in which buckets; recognise each way to get it wrong by its symptoms; start the same program with `torchrun` |
# | Time | 90 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the same cells use NCCL |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#gradient_accumulation]] |
# | Syllabus | T18, C13, P7 |
#
# Exercise X3, the graded notebook after this one, uses all of it.

# %% name="setup" setup=true
import contextlib
import copy
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from helpers import (
    COLOURS,
    TENANTS,
    Claims,
    Collectives,
    MemoryMeter,
    Prediction,
    RankError,
    SmallCNN,
    SmallGPT,
    check,
    device_name,
    digits,
    explore,
    hint,
    human_bytes,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    tenant_bars,
)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

device = pick_device()
MiB = 2**20
pair = ranks_device(2)  # comparisons of one rank with two run both there: else they would compare devices
claims = Claims(device=pair)
gpus = torch.cuda.device_count()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {gpus}")
print(f"one or two ranks: on {'GPUs, over NCCL' if pair.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="ranks_text"
# ## 1 · Ranks
#
# Four friends translate a book. Each takes a chapter. Every evening they compare notes, so that they all use the same words for the same things. Nobody waits for a boss: they sit in a circle and
# pass the notes around.
#
# Two libraries carry the messages: **NCCL** between GPUs, **gloo** between CPUs.
#
# In PyTorch a worker is a **process**, its number is its **rank**, and the number of workers is the **world size**. Comparing notes is a **collective**: a call that every
# rank makes, such as `all_reduce`, after which each has the sum of what all had.
#
# The helper `run_ranks(fn, n)` starts *n* real processes, calls `fn` in each, and brings back what they returned and printed. The function and the variables it uses are **copied** to each rank. What a rank changes stays there; only results come back. `rank_device()` is the rank's own GPU or the CPU. `measure=False` leaves out the memory meter around the
# function, which would disturb a clock or a meter inside. With one GPU for each rank they talk over NCCL; here they may use
# gloo and the CPU. The collectives, the deadlocks and the bytes are those of a cluster. The speed is not.


# %% name="ranks"
def hello():
    mine = torch.tensor([10.0 ** dist.get_rank()], device=rank_device())
    print(f"I have {mine.item():.0f}")
    dist.all_reduce(mine)  # the sum, on every rank
    return mine.item()


run_ranks(hello, 4).results

# %% [markdown] name="byhand_text"
# How does a sum reach everybody? In a **ring**: each of N ranks cuts its message into N pieces and passes one piece on to its neighbour, N − 1 times until each piece is summed somewhere, and N − 1 times more until all have it. So a rank sends 2 (N − 1) / N of the message: nearly twice its size, however many ranks there are.
#
# ## 2 · Averaging gradients by hand
#
# The helper `Collectives` records what a rank sends, and how large each message is.
#
# The loss of a batch is a mean over its rows, and the gradient of a mean is the mean of the gradients ([[gradient_accumulation]]). So cut the batch into N equal parts, one for each rank. Each
# rank computes the gradient of its part; the average of those is the gradient of the joint batch. First the reference: one process, the whole batch of 64.

# %% name="byhand"
data = digits()
x, y = data.train_x[:64].clone(), data.train_y[:64].clone()


def make_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


def train_alone(steps=5):
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model)


def average_gradients_by_hand(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train_by_hand(steps=5):
    here, rank, world_size = rank_device(), dist.get_rank(), dist.get_world_size()
    model = make_mlp().to(here)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = x.chunk(world_size)[rank].to(here), y.chunk(world_size)[rank].to(here)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        with Collectives() as said:
            average_gradients_by_hand(model)
        optimizer.step()
    return flat(model), said


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


alone = train_alone()
by_hand = run_ranks(train_by_hand, 4).results
print("four ranks bit-identical:", all(torch.equal(weights, by_hand[0][0]) for weights, _ in by_hand))
print(f"distance from one process on the joint batch, after 5 steps: {distance(by_hand[0][0], alone):.1e}")
print("one step sent:", by_hand[0][1])

# %% [markdown] name="byhand_explained"
# These are two different kinds of equal. The ranks agree **to the last bit**: `all_reduce` gives each the same sum, they start from the same weights (the same seed), and the same numbers
# in give the same numbers out. With one process they agree **up to rounding**, because four sums of 16 are added in a different order from one of 64.
#
# There is one call for each of the six parameters, after the backward pass is over. That is right, but slow: a network takes time for each message however short it is, and meanwhile the
# processor has nothing to do.
#
# ## 3 · DistributedDataParallel
#
# DDP does three things better. It copies rank 0's parameters to all at the start. It packs gradients into **buckets**, so that there are few messages. And it sends
# a bucket as soon as the backward pass has filled it, while the rest of the pass goes on.
#
# **Predict.** A GPT has 3.5 million parameters in 76 tensors. By default DDP's first bucket closes at 1 MiB, so that communication starts early; the next ones close at 25 MiB. How many all-reduces does one backward pass take?

# %% name="guess_buckets"
my_guess = None
### BEGIN GUESS
my_guess = 2  # 14 MB of gradients: the first MiB, and all the rest in one
### END GUESS
buckets_guess = Prediction("All-reduces in one backward pass", my_guess, "")


# %% name="buckets"
ids = torch.randint(256, (8, 129), generator=torch.Generator().manual_seed(0))


def make_gpt():
    torch.manual_seed(0)
    return SmallGPT(layers=6, width=216, heads=4)


def gpt_loss(model, part):
    part = part.to(next(model.parameters()).device)
    return F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())


def ddp_talk(bucket_cap_mb=None):
    model = DistributedDataParallel(make_gpt().to(rank_device()), bucket_cap_mb=bucket_cap_mb)
    part = ids.chunk(dist.get_world_size())[dist.get_rank()]
    steps = []
    for _ in range(3):
        model.zero_grad()
        with Collectives() as said:
            gpt_loss(model, part).backward()
        steps.append(said)
    return steps


steps = run_ranks(ddp_talk, 2).results[0]
gpt = make_gpt()
phi = sum(p.numel() for p in gpt.parameters())
print(f"{phi:,} parameters in {len(list(gpt.parameters()))} tensors, {4 * phi:,} bytes of gradients")
buckets_guess.reveal(steps[-1].count("all_reduce"))
for i, said in enumerate(steps):
    print(f"step {i}: {said}")
sent = sum(c.nbytes for c in steps[-1].calls if c.name == "all_reduce")
claims.record(
    "C13", "gradients are all-reduced, once each", "GPT, DDP, 2 ranks", sent / (4 * phi), "x gradients", 0.999, 1.001
)

# %% [markdown] name="buckets_explained"
# The first step is special. DDP cannot know the order in which gradients will arrive, so it sends everything as one message and records the order. Before the second step
# it builds the buckets in that order. Rank 0 tells the others (two small broadcasts of bucket indices and sizes), because all must pack alike.
#
# The default made two buckets: the first is closed as soon as it holds at least 1 MiB. Smaller buckets mean more messages, which can start earlier; larger ones mean fewer. `bucket_cap_mb` sets the limit, for the first bucket too: set to 25, everything is one
# message here.

# %% name="caps"
for cap in (0.25, 1, 4, 25):
    said = run_ranks(ddp_talk, 2, cap).results[0][-1]
    print(
        f"bucket_cap_mb={cap:<5} {said.count('all_reduce'):>3} all-reduces, {sum(c.nbytes for c in said.calls):,} bytes"
    )

# %% [markdown] name="overlap_text"
# ### Overlap, seen
#
# A **communication hook** is called with each full bucket, and returns a promise of the averaged one. Ours starts the usual all-reduce and records when it
# started and when the answer came.


# %% name="overlap"
def overlap():
    model = DistributedDataParallel(make_gpt().to(rank_device()), bucket_cap_mb=1)
    diary = []

    def hook(_, bucket):
        entry = [bucket.index(), time.perf_counter(), 0.0, 0.0]
        diary.append(entry)

        def answered(future):
            entry[3] = time.perf_counter()
            value = future.value()
            return value[0] if isinstance(value, list) else value

        future = default_hooks.allreduce_hook(None, bucket).then(answered)
        entry[2] = time.perf_counter()  # from here on the backward pass goes on
        return future

    model.register_comm_hook(None, hook)
    part = ids.chunk(dist.get_world_size())[dist.get_rank()]
    for _ in range(3):  # the third step is the one we look at
        model.zero_grad()
        diary.clear()
        loss = gpt_loss(model, part)
        start = time.perf_counter()
        loss.backward()
    return [(index, *(t - start for t in times)) for index, *times in diary]


buckets = run_ranks(overlap, 2, measure=False).results[0]
computed = max(asked for _, asked, _, _ in buckets)  # the last bucket is full: nothing is left to compute
figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.add_subplot()
axes.barh("computing", 1e3 * computed, color=COLOURS[0])
for index, asked, _, answered in buckets:
    axes.barh(f"bucket {index}", 1e3 * (answered - asked), left=1e3 * asked, color=COLOURS[4])
axes.invert_yaxis()
axes.set(title="Buckets leave while the backward pass is still at work (rank 0)", xlabel="milliseconds")
show(
    figure,
    "One bar for each of ten buckets, spread over the length of the backward pass, each later than the one before.",
)
under_way = sum(answered - asked for _, asked, _, answered in buckets)
hidden = sum(max(0.0, min(answered, computed) - back) for _, _, back, answered in buckets)
print(
    f"{len(buckets)} messages, under way for {1e3 * under_way:.0f} ms; {hidden / under_way:.0%} of it while the pass computed"
)
claims.record(
    "C13",
    "communication overlaps the backward pass",
    "GPT, 1 MiB buckets",
    hidden / under_way,
    "of the message time",
    0.3,
    1.0,
)

# %% [markdown] name="overlap_explained"
# Bucket 0 holds the gradients of the last layers, which come first. The last bucket cannot hide behind anything: nothing is left to compute when it leaves. On this machine ranks share
# cores, so messages and arithmetic slow each other down. Between GPUs, messages have their own wires and engines, and hiding them is what DDP is for.
#
# ### Memory
#
# **Predict.** Two GPUs instead of one. Each rank now sees half of the batch. By what factor do parameters + gradients + optimizer state fall, on each?

# %% name="guess_memory"
my_guess = None
### BEGIN GUESS
my_guess = 1  # every rank holds all of them
### END GUESS
memory_guess = Prediction("Parameters, gradients and state: one process / one of two ranks", my_guess, "times")


# %% name="memory"
def one_step(kind):
    model = make_gpt().to(rank_device())
    wrapped = model if kind == "alone" else DistributedDataParallel(model, gradient_as_bucket_view=kind == "view")
    optimizer = torch.optim.AdamW(model.parameters())
    part = ids.chunk(dist.get_world_size())[dist.get_rank()]
    for _ in range(2):  # buckets are rebuilt in the first step
        optimizer.zero_grad()
        gpt_loss(wrapped, part).backward()
        optimizer.step()
    with MemoryMeter(model, optimizer) as meter:
        optimizer.zero_grad()
        gpt_loss(wrapped, part).backward()
        optimizer.step()
    after = next(stage.held_after for stage in meter.stages if stage.name == "backward")
    return meter.at_peak, meter.peak_bytes, meter.largest, sum(after.values())


held = {
    "1 process, batch of 8": run_ranks(one_step, 1, "alone", device=pair, measure=False).results[0],
    "DDP, 2 ranks": run_ranks(one_step, 2, "ddp", device=pair, measure=False).results[0],
    "DDP, gradients are views": run_ranks(one_step, 2, "view", device=pair, measure=False).results[0],
}
static = {
    name: sum(largest[tenant] for tenant in ("parameters", "gradients", "optimizer state"))
    for name, (_, _, largest, _) in held.items()
}
first, ddp, views = held
memory_guess.reveal(static[first] / static[ddp])
for name, (_, peak, _, after) in held.items():
    print(
        f"{name:25} parameters, gradients, state {human_bytes(static[name])}; "
        f"everything held after backward {human_bytes(after)}; peak {human_bytes(peak)}"
    )
show(
    tenant_bars({name: at_peak for name, (at_peak, _, _, _) in held.items()}, TENANTS, "At the peak, on one rank"),
    "Parameters and optimizer state are the same in all runs; DDP adds one more block the size of the gradients and halves the activations.",
)
claims.record(
    "C13",
    "memory 1x per GPU: static part",
    "GPT, AdamW, 2 ranks",
    static[ddp] / static[first],
    "x one process",
    0.99,
    1.01,
)
for name in (ddp, views):
    extra = (held[name][3] - held[first][3]) / (4 * phi)
    claims.record("C13", "memory 1x per GPU, buckets included", name, extra, "x gradients", -0.05, 0.06)

# %% [markdown] name="memory_explained"
# Data parallelism does not save a single static byte: that takes sharding ([[sharding]]). Activations are those of the rank's own rows, as if you had accumulated ([[gradient_accumulation]]).
#
# And it has a price that few articles mention: the buckets are separate buffers (the meter files them under *inputs and other*), one more copy of all gradients. With `gradient_as_bucket_view=True` each `.grad` *is* a slice of its bucket, and after the backward
# pass the copy is gone.
#
# Look at the peak, though: here views save nothing, and cost a little (each new gradient is made first and then copied into place). The peak is at the start of the backward pass, when activations are at their highest. A single process holds no gradients at that moment; DDP's buckets are there all the time, views or not. What views save is one copy
# during the optimizer step.
#
# ### Speed
#
# "N GPUs, about N times the speed." The fair comparison on this machine is one process with one thread against two ranks with one thread each, and the same batch for each rank (so twice the rows a step).
#
# But who says that this machine has twice as much to give? Caches and memory are shared, and somebody else may be using the cores. So there is a control: two ranks that train side by side and never talk. What they reach is what DDP could reach at best.


# %% name="speed"
larger = digits(size=16)


def rows_per_second(talk):
    torch.set_num_threads(1)
    here, rank = rank_device(), dist.get_rank()
    torch.manual_seed(0)
    model = SmallCNN(24).to(here)
    if talk:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs = larger.train_x[64 * rank : 64 * rank + 64].to(here)
    ys = larger.train_y[64 * rank : 64 * rank + 64].to(here)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        optimizer.step()

    step()
    dist.barrier()
    start, steps = time.perf_counter(), 15
    for _ in range(steps):
        step()
    dist.barrier()
    return 64 * steps * dist.get_world_size() / (time.perf_counter() - start)


ways = {"one rank": (1, False), "two that never talk": (2, False), "two with DDP": (2, True)}
rounds = [  # all three in each round, so that a slow moment of the machine meets all
    [run_ranks(rows_per_second, n, talk, device=pair, measure=False).results[0] for n, talk in ways.values()]
    for _ in range(3)
]
for name, rows in zip(ways, zip(*rounds, strict=True), strict=True):
    print(f"{name:<20}{statistics.median(rows):>8,.0f} rows a second")
apart = statistics.median(silent / one for one, silent, _ in rounds)
gain = statistics.median(ddp / one for one, _, ddp in rounds)
kept = statistics.median(ddp / silent for _, silent, ddp in rounds)
print(f"two ranks that never talk: {apart:.2f} times as many as one; with DDP: {gain:.2f} times, {kept:.0%} of it")
claims.figure("speed of two ranks", "CNN, 2 ranks of one thread", gain, "times that of one")
claims.record(
    "C13", "DDP keeps the speed of N ranks", "CNN, 2 ranks of one thread", kept, "of two silent ranks", 0.6, 1.1
)

# %% [markdown] name="speed_explained"
# Two figures, two causes. What two silent ranks lose against twice the speed, they lose to the machine: caches and memory are shared, and so are the cores if other programs run. What DDP loses against them is the price of talking: the last bucket
# hides behind nothing, and at the end of each backward pass the faster rank waits for the slower one. On a cluster the question is whether the backward pass is
# long enough to hide the messages: a large micro-batch helps, a slow network hurts. Section 8 has a slider for that.
#
# ## 4 · Who gets which rows
#
# Each rank runs its own `DataLoader`; a `DistributedSampler` gives it every N-th index of a shuffled list. All ranks shuffle with the same seed, so that the parts fit together. The order depends on
# `seed + epoch`, and only you can tell the sampler which epoch it is.


# %% name="sampler"
def order(epochs, tell):
    sampler = DistributedSampler(range(10), shuffle=True, seed=0)
    seen = []
    for epoch in range(epochs):
        if tell:
            sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen


for tell in (True, False):
    first_rank, second_rank = run_ranks(order, 2, 3, tell).results
    print("with set_epoch:" if tell else "without:")
    for epoch, (a, b) in enumerate(zip(first_rank, second_rank, strict=True)):
        print(f"  epoch {epoch}: rank 0 {a}, rank 1 {b}")
    orders = len({tuple(part) for part in first_rank})
    said = f"{'with' if tell else 'without'} set_epoch: {'a new order each epoch' if tell else 'one order for ever'}"
    claims.record("P7", said, "3 epochs", orders, "orders", *((3, 3) if tell else (1, 1)))

# %% [markdown] name="sampler_explained"
# Without `set_epoch` every epoch goes through the rows in the same order, and rank 0 never sees what rank 1 has. Nothing crashes; each rank just sees half of the data for ever. Look for the call in any script you inherit.
#
# ### Ten rows, four ranks
#
# Ten is not divisible by four. The sampler pads with rows from the front, so that all ranks have the same number:

# %% name="padding"
shares = run_ranks(lambda: list(DistributedSampler(range(10), shuffle=False)), 4).results
counts = {row: sum(row in share for share in shares) for row in range(10)}
print("shares:", shares)
print("rows seen twice:", [row for row, times in counts.items() if times == 2])
scores = torch.tensor([0.0, 0, 1, 1, 1, 1, 1, 1, 1, 1])  # right or wrong, row by row
padded = sum(scores[row].item() for share in shares for row in share) / sum(len(share) for share in shares)
print(f"accuracy: {scores.mean().item():.3f}; average over the ranks' shares: {padded:.3f}")
claims.record(
    "P7", "padding falsifies a metric", "10 rows, 4 ranks", abs(padded - scores.mean().item()), "off", 0.01, 1
)

# %% [markdown] name="padding_explained"
# For training this does not matter (`drop_last=True` drops rows instead). For **evaluation** it does: rows 0 and 1 count twice. Give each rank `range(rank, n, world_size)`, sum right answers and rows separately, and
# divide once, at the end.
#
# ## 5 · Ways to get it wrong
#
# ### Different weights at the start
#
# We average by hand, with a different seed on each rank. The gradients are averaged correctly, every step moves all ranks by the same amount, and the ranks never meet:


# %% name="seeds"
def from_own_seed(how):
    rank, here = dist.get_rank(), rank_device()
    model = make_mlp(seed=rank).to(here)
    wrapped = DistributedDataParallel(model) if how == "DDP" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = x.chunk(2)[rank].to(here), y.chunk(2)[rank].to(here)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(wrapped(xs), ys).backward()
        if how == "by hand":
            average_gradients_by_hand(model)
        optimizer.step()
    return flat(model)


for how in ("by hand", "DDP"):
    a, b = run_ranks(from_own_seed, 2, how).results
    print(f"{how:8} relative distance of the two replicas after 20 steps: {distance(a, b):.2g}")
    if how == "by hand":
        claims.record(
            "P7",
            "different seeds: replicas never meet",
            "MLP, 20 steps by hand",
            distance(a, b),
            "relative",
            0.1,
            math.inf,
        )
    else:
        claims.record("P7", "DDP starts all from rank 0", "MLP, 20 steps", distance(a, b), "relative", 0, 0)

# %% [markdown] name="seeds_explained"
# DDP's constructor sends rank 0's parameters and buffers to all. So with DDP you are safe, as long as nobody changes the weights behind its back afterwards (by loading a checkpoint on rank 0 only, say).
# Randomness is another matter: dropout and augmentation *should* differ between ranks. Make the model from the same seed everywhere, and then add the rank to the seed.
#
# ### Unequal batches
#
# DDP divides the sum of gradients by the number of ranks. With 60 rows on one rank and 4 on the other, each of the four weighs fifteen times as much:


# %% name="unequal"
def unequal(weigh):
    rank, here = dist.get_rank(), rank_device()
    model = make_mlp().to(here)
    ddp = DistributedDataParallel(model)
    xs, ys = x.split((60, 4))[rank].to(here), y.split((60, 4))[rank].to(here)
    loss = F.cross_entropy(ddp(xs), ys)
    if weigh:
        loss = loss * len(xs) * dist.get_world_size() / len(x)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()


model = make_mlp()
F.cross_entropy(model(x), y).backward()
joint = torch.cat([p.grad.flatten() for p in model.parameters()])
for weigh in (False, True):
    off = distance(run_ranks(unequal, 2, weigh).results[0], joint)
    print(f"{'weighted by rows' if weigh else 'mean of means':17} distance from the joint batch: {off:.1e}")
    said = "weighing by rows repairs it" if weigh else "unequal batches: the mean of means is wrong"
    claims.record("P7", said, "60 and 4 rows", off, "relative", *((0, 1e-5) if weigh else (0.01, math.inf)))

# %% [markdown] name="uneven_text"
# ### An unequal *number* of batches
#
# Worse: rank 0 has one batch more. It calls `all_reduce`, but rank 1 has gone home, so rank 0 waits. On a cluster it waits until its backend loses patience (gloo after half an hour, NCCL after ten minutes) and then dies, without saying what rank 1 was doing. `run_ranks` ends it
# after its time limit and asks every rank where it is. We use gloo here on every machine (`device="cpu"`), because over gloo a rank stands where it waits:


# %% name="hang"
def uneven(join):
    rank = dist.get_rank()
    model = DistributedDataParallel(make_mlp().to(rank_device()))
    with Join([model]) if join else contextlib.nullcontext():
        for _ in range(3 if rank == 0 else 2):
            F.cross_entropy(model(x.to(rank_device())), y.to(rank_device())).backward()
    return "done"


try:
    run_ranks(uneven, 2, False, device="cpu", timeout=2)
except RankError as error:
    print(error)
print("\nwith Join:", run_ranks(uneven, 2, True, device="cpu").results)

# %% [markdown] name="hang_explained"
# The line numbers tell you most in such a report: one rank is inside a collective, and another has finished. (The count includes the calls that DDP made when it was constructed and when it built its buckets.) `Join` lets a rank that is done keep answering the collectives of those still at work. Better: give all ranks the same number of batches, as `DistributedSampler` does.
#
# **Over NCCL** a call only queues its collective on the GPU, and Python goes on. A rank that hangs stands further down, where it first needs a result: at `loss.item()`, or in `torch.cuda.synchronize()`. After the timeout a watchdog thread ends the process, and the *flight recorder* can write down which collective each rank had come to
# (`TORCH_NCCL_DUMP_ON_TIMEOUT=1`; PyTorch tutorials, *Flight Recorder for Debugging Stuck Jobs*).
#
# The same deadlock comes in another guise: a collective inside `if rank == 0:`. Evaluating the *wrapped* model on rank 0 only is an example, if the model has BatchNorm: DDP's forward pass broadcasts the buffers.


# %% name="rank0"
def evaluate_on_rank_0(through):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(SmallCNN(8).to(rank_device()))
    if dist.get_rank() == 0:
        model = ddp if through == "ddp" else ddp.module
        with torch.no_grad():
            model(x.to(rank_device()))
    dist.barrier()
    return "done"


for through in ("ddp", "ddp.module"):
    try:
        print(f"through {through}:", run_ranks(evaluate_on_rank_0, 2, through, device="cpu", timeout=2).results)
    except RankError as error:
        print(f"through {through}: {error}\n")

# %% [markdown] name="rank0_explained"
# Look closely at the first report: each rank is *in* a collective, but not the same one. Rank 0 sends a broadcast that rank 1 never joins; rank 1 is at a barrier that rank 0 has not reached. That is gloo, which matches each call with its own kind. NCCL does not check: a barrier is an all-reduce there, it meets the broadcast on the same connections, and the result is undefined (a hang, a crash or wrong data; NCCL documentation, *Collective Operations*). Call `ddp.module` where only one rank works.
#
# ### BatchNorm
#
# Everything said about "the update of the joint batch" holds for models whose rows do not see each other. BatchNorm normalises with the rows of *its own rank*:


# %% name="batchnorm"
def cnn_gradient(sync):
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = SmallCNN(16).to(rank_device())
    if sync:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if n > 1:
        model = DistributedDataParallel(model)
    F.cross_entropy(model(x.chunk(n)[rank].to(rank_device())), y.chunk(n)[rank].to(rank_device())).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()


whole = run_ranks(cnn_gradient, 1, False, device=pair).results[0]
apart = distance(run_ranks(cnn_gradient, 2, False, device=pair).results[0], whole)
print(f"CNN with BatchNorm, 2 ranks of 32 rows: distance from the joint batch {apart:.2g}")
claims.record(
    "P7", "BatchNorm: two ranks are not the joint batch", "CNN, 2 x 32 rows", apart, "relative", 0.01, math.inf
)
if pair.type == "cuda":
    together = distance(run_ranks(cnn_gradient, 2, True, device=pair).results[0], whole)
    print(f"with SyncBatchNorm: {together:.2g}")

# %% [markdown] name="batchnorm_explained"
# It is the same as with accumulation ([[gradient_accumulation]]). On GPUs `SyncBatchNorm.convert_sync_batchnorm(model)` computes the statistics over all ranks, at the price of a small collective in each such layer. Running statistics differ too: each forward pass in training mode
# starts from those of rank 0, which are also the ones in rank 0's checkpoint.
#
# ### A branch that not all take
#
# A part of the model that gets no gradient leaves its bucket unfilled. DDP notices in the next forward pass:


# %% name="unused"
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.rare_head = make_mlp(), nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x):
        return self.head(self.body(x))


def unused(find):
    model = DistributedDataParallel(TwoHeads().to(rank_device()), find_unused_parameters=find)
    for _ in range(2):
        F.cross_entropy(model(x.to(rank_device())), y.to(rank_device())).backward()
    return "done"


try:
    run_ranks(unused, 2, False)
except RankError as error:
    print(str(error)[:240], "...")
print("\nfind_unused_parameters=True:", run_ranks(unused, 2, True).results)

# %% [markdown] name="unused_explained"
# `find_unused_parameters=True` walks the graph after each forward pass and marks the parameters that will get no gradient. That is work in every step, so use it only when you must. Parameters that are frozen (`requires_grad=False`) before the model is wrapped
# cost nothing and are left alone.
#
# ### Everybody saves
#
# Two ranks write a checkpoint to the same file at the same time:


# %% name="saving"
def save(path, everybody):
    rank = dist.get_rank()
    block = bytes([65 + rank]) * 1000  # rank 0 writes A, rank 1 writes B
    if everybody or rank == 0:
        with open(path, "wb", buffering=0) as file:
            dist.barrier() if everybody else None
            for i in range(200):
                file.write(block)
                slow = (i < 100) == (rank == 0)  # disks and networks favour now one rank, now the other
                time.sleep((0.001 if rank == 0 else 0.003) if slow else 0)
    dist.barrier()  # nobody reads before it is written
    return Path(path).read_bytes()


for everybody in (True, False):
    with tempfile.TemporaryDirectory() as folder:
        content = run_ranks(save, 2, f"{folder}/checkpoint.pt", everybody).results[0]
    writers = len(set(content))
    print(f"{'each rank saves' if everybody else 'rank 0 saves'}: {len(content):,} bytes from {writers} writer(s)")
    said = "saving from every rank mixes the file" if everybody else "saving from rank 0 does not"
    claims.record("P7", said, "2 ranks, 1 file", writers, "writers", *((2, 2) if everybody else (1, 1)))

# %% [markdown] name="nosync_text"
# (The sleep stages the race; on a cluster nobody has to.) The rule has three parts: rank 0 saves, **then** comes a barrier, then anybody may read or leave.
#
# ## 6 · Accumulation: `no_sync`
#
# With accumulation, DDP averages after each micro-batch, though only the last one needs it. `no_sync()` holds it back.
#
# **Predict.** There are four micro-batches in an update. By what factor do the bytes that a rank sends fall with `no_sync` on the first three?

# %% name="guess_nosync"
my_guess = None
### BEGIN GUESS
my_guess = 4  # once instead of four times
### END GUESS
nosync_guess = Prediction("Bytes sent without no_sync / with it", my_guess, "times")


# %% name="nosync"
def accumulate(hold, forward_outside=False):
    rank, here = dist.get_rank(), rank_device()
    model = make_mlp().to(here)
    ddp = DistributedDataParallel(model)
    xs, ys = x.chunk(2)[rank].to(here), y.chunk(2)[rank].to(here)
    pieces = list(zip(xs.split(8), ys.split(8), strict=True))
    for _ in range(2):
        ddp.zero_grad()
        with Collectives() as said:
            for i, (xm, ym) in enumerate(pieces):
                silent = hold and i < len(pieces) - 1
                loss = F.cross_entropy(ddp(xm), ym) if forward_outside else None
                with ddp.no_sync() if silent else contextlib.nullcontext():
                    loss = loss if forward_outside else F.cross_entropy(ddp(xm), ym)
                    (loss / len(pieces)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).cpu(), said


loud, quiet = (run_ranks(accumulate, 2, hold).results[0] for hold in (False, True))
nosync_guess.reveal(loud[1].volume / quiet[1].volume)
print(
    f"without no_sync: {loud[1].count('all_reduce')} all-reduces, distance from the joint batch {distance(loud[0], joint):.1e}"
)
print(
    f"with no_sync:    {quiet[1].count('all_reduce')} all-reduces, distance from the joint batch {distance(quiet[0], joint):.1e}"
)
outside = run_ranks(accumulate, 2, True, True).results[0][1]
print(f"no_sync around the backward pass only: {outside.count('all_reduce')} all-reduces")
claims.record(
    "P7",
    "no_sync sends once in place of k times",
    "MLP, 4 micro-batches",
    loud[1].volume / quiet[1].volume,
    "times",
    3.9,
    4.1,
)

# %% [markdown] name="nosync_explained"
# Both are right; one is silent for longer. (Averages add up: the average of four sums is the sum of four averages.) The last line is the trap: the **forward** pass must be inside `no_sync()` too, because that is where DDP decides whether the coming backward pass will communicate.
#
# ### Mixed precision under DDP
#
# Autocast ([[mixed_precision]]) works as ever, inside each rank: weights and gradients stay FP32, and so does what is sent. To send half as much, a hook can compress the buckets to BF16 on the way:


# %% name="amp"
def in_bf16(_, bucket):  # PyTorch's own is default_hooks.bf16_compress_hook, which needs NCCL
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()

    def back(future):
        value = future.value()
        return bucket.buffer().copy_(value[0] if isinstance(value, list) else value)

    return dist.all_reduce(small, async_op=True).get_future().then(back)


def amp(compress):
    rank, here = dist.get_rank(), rank_device()
    model = make_mlp().to(here)
    ddp = DistributedDataParallel(model)
    if compress:
        ddp.register_comm_hook(None, in_bf16)
    xs, ys = x.chunk(2)[rank].to(here), y.chunk(2)[rank].to(here)
    with Collectives() as said:
        with torch.autocast(here.type, torch.bfloat16):
            loss = F.cross_entropy(ddp(xs), ys)
        loss.backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).cpu()
    return gradient, said, {str(p.grad.dtype) for p in model.parameters()}


plain, squeezed = (run_ranks(amp, 2, compress).results[0] for compress in (False, True))
print(f"autocast: sent {plain[1]}, gradients {plain[2]}, distance from FP32 {distance(plain[0], joint):.1e}")
print(
    f"and compressed: sent {squeezed[1]}, gradients {squeezed[2]}, distance from FP32 {distance(squeezed[0], joint):.1e}"
)
claims.record(
    "C13", "autocast leaves FP32 to be sent", "MLP", plain[1].volume / loud[1].volume * 4, "x FP32 traffic", 0.99, 1.01
)
claims.record("C13", "a BF16 hook halves it", "MLP", squeezed[1].volume / plain[1].volume, "x FP32 traffic", 0.49, 0.51)

# %% [markdown] name="amp_explained"
# The two distances are alike because autocast's own rounding is larger than what the hook adds. With an FP16 scaler there is nothing to do either. Gradients are averaged while they are still scaled, so an overflow on one rank is an overflow on all: inf plus anything is inf.
#
# ## 7 · `DataParallel`, and why it lost
#
# The older `nn.DataParallel` is one process with a thread for each GPU. In **every step** GPU 0 copies the model to all others, distributes the rows, gathers the outputs, computes the loss alone, and adds up the gradients that come
# back. On a CPU it silently passes everything through. So here is what it does, in twenty lines that run anywhere, with a log of what is copied:


# %% name="dataparallel"
class DataParallelByHand(nn.Module):
    def __init__(self, module, replicas):
        super().__init__()
        self.module, self.copied = module, {"weights": 0, "rows": 0, "outputs": 0}
        self.shells = [copy.deepcopy(module) for _ in range(replicas)]  # the copied weights go in here

    def _copy(self, tensor, what):
        self.copied[what] += tensor.nbytes
        return tensor.clone()  # clone carries gradients back, so they are copied too

    def forward(self, x):
        weights = dict(self.module.named_parameters())
        outputs = [None] * len(self.shells)

        def work(i, part):  # one thread a GPU, and one Python for all of them
            mine = weights if i == 0 else {name: self._copy(w, "weights") for name, w in weights.items()}
            part = part if i == 0 else self._copy(part, "rows")
            outputs[i] = torch.func.functional_call(self.shells[i], mine, (part,))

        threads = [threading.Thread(target=work, args=item) for item in enumerate(x.chunk(len(self.shells)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat([outputs[0], *(self._copy(out, "outputs") for out in outputs[1:])])


rows = []
for n in (2, 4, 8):
    old = DataParallelByHand(make_mlp(), n)
    F.cross_entropy(old(x), y).backward()
    assert distance(torch.cat([p.grad.flatten() for p in old.module.parameters()]), joint) < 1e-5
    weights, activations = old.copied["weights"], old.copied["rows"] + old.copied["outputs"]
    through_gpu_0 = (
        2 * weights + old.copied["rows"] + 2 * old.copied["outputs"]
    )  # gradients come back the way the weights went
    ring = 2 * 2 * (n - 1) / n * sum(p.nbytes for p in old.module.parameters())  # sent, and as much received
    rows.append((n, through_gpu_0, ring))
    print(
        f"{n} GPUs: through GPU 0 {human_bytes(through_gpu_0):>10} a step ({human_bytes(weights)} of weights, as much of gradients); DDP, in and out of each GPU: {human_bytes(ring)}"
    )
n, through_gpu_0, ring = rows[-1]
claims.record(
    "T18",
    "DataParallel: one GPU carries what grows with N",
    "MLP, 8 GPUs against 2",
    rows[-1][1] / rows[0][1],
    "times",
    5,
    8,
)
claims.record(
    "T18",
    "DDP: traffic of a GPU stays below twice that of 2 GPUs",
    "MLP, 8 GPUs against 2",
    rows[-1][2] / rows[0][2],
    "times",
    1,
    2,
)

# %% [markdown] name="dataparallel_explained"
# The result is right. The traffic is the problem: GPU 0's grows with the number of GPUs, while a ring's stays below two copies of the gradients in and two out. On top of that, the threads take turns in one Python interpreter, GPU 0 holds all outputs
# and the loss (so it runs out of memory first), and nothing overlaps. With two GPUs the next cell runs the real one.

# %% name="dataparallel_real"
if gpus >= 2:
    wide = SmallCNN(64).cuda()
    old = nn.DataParallel(wide)
    batch, labels = (t[:512].cuda() for t in digits(size=32)[:2])
    for name, model in {"one GPU": wide, "DataParallel": old}.items():
        with MemoryMeter(wide, by_tenant=False) as meter:
            start = time.perf_counter()
            for _ in range(5):
                F.cross_entropy(model(batch), labels).backward()
            torch.cuda.synchronize()
        print(
            f"{name}: {5 * 512 / (time.perf_counter() - start):,.0f} rows a second, peak on GPU 0 {human_bytes(meter.peak_bytes)}"
        )
else:
    print("DataParallel needs two GPUs; on this machine it would pass everything straight through.")

# %% [markdown] name="torchrun_text"
# ### The same program with `torchrun`
#
# On a server there is no notebook. `torchrun` starts the processes, and tells each who it is through the environment: `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` (on this machine), `MASTER_ADDR`, `MASTER_PORT`. `run_ranks` sets the same
# variables, so one function works under both. Here is a whole training script:

# %% name="torchrun"
SCRIPT = """
import os
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # each rank has a GPU of its own
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    torch.manual_seed(0)                             # the same weights in each run
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())               # each rank has its own rows
    for step in range(3):
        x = torch.randn(32, 8, device=device)
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        dist.all_reduce(loss, dist.ReduceOp.SUM)     # a metric, over all ranks
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item() / dist.get_world_size():.3f}", flush=True)
    dist.barrier()                                   # nobody leaves while others still talk
    dist.destroy_process_group()
    if device.type == "cpu":
        os._exit(0)                                  # over gloo an ordinary exit can hang (PyTorch 2.13)

main()
"""
with tempfile.TemporaryDirectory() as folder:
    script = Path(folder) / "train.py"
    script.write_text(SCRIPT)
    quiet_run = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "RES_OPTIONS": "timeout:1 attempts:1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | quiet_run, timeout=120)
print(done.stdout or done.stderr[-2000:])

# %% [markdown] name="torchrun_explained"
# The command was `torchrun --standalone --nproc-per-node=2 train.py`. `set_device` comes first, so that nothing lands on GPU 0 by mistake; `device_id` tells NCCL which GPU is this rank's. For more than one machine, see [[sharding]].
#
# ## 8 · Play: how far does it scale?
#
# This is a model of one step, not a measurement. Each GPU computes for as long as you say, two thirds of it in the backward pass. A ring sends 2 (N − 1) / N of the gradients at the speed of the link, from the first bucket on. Whatever does not fit behind the
# backward pass makes the step longer.


# %% name="play"
def scaling(parameters_in_millions, milliseconds_of_compute, link_in_GB_per_second):
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.add_subplot()
    ranks = [2**i for i in range(8)]
    for precision, nbytes, colour in (("FP32", 4, COLOURS[4]), ("BF16", 2, COLOURS[0])):
        speed = []
        for n in ranks:
            talk = 2 * (n - 1) / n * nbytes * parameters_in_millions * 1e6 / (link_in_GB_per_second * 1e9) * 1e3
            step = milliseconds_of_compute + max(0.0, talk - 2 / 3 * milliseconds_of_compute)
            speed.append(n * milliseconds_of_compute / step)
        axes.loglog(ranks, speed, "o-", base=2, color=colour, label=f"gradients in {precision}")
    axes.loglog(ranks, ranks, ":", base=2, color="grey", label="N times")
    axes.set(
        title="Model of scaling: speed-up over one GPU", xlabel="GPUs", ylabel="times", xticks=ranks, xticklabels=ranks
    )
    axes.legend(frameon=False)
    return figure


explore(
    scaling,
    "Speed against the number of GPUs, for gradients in FP32 and BF16: straight lines that bend down where the link is slow.",
    parameters_in_millions=(1000, range(100, 7001, 100)),
    milliseconds_of_compute=(300, range(50, 1001, 50)),
    link_in_GB_per_second=(100, (1, 3, 10, 25, 50, 100, 400)),
)

# %% [markdown] name="average_text"
# Make the link slower until 128 GPUs are less than 64 times as fast with FP32 gradients, but still more than that with BF16. What would you change first: the link, the format, or the micro-batch (more compute a step)?
#
# ## 9 · Your turn: average with unequal rows
#
# **Contract.** `average_gradients(model, rows)` is called on every rank after a backward pass. Afterwards each `.grad` is the gradient of the **joint** batch: the mean over the rows of all ranks.
#
# - Before the call each `.grad` is that of the **mean** loss over this rank's own `rows` rows. Ranks may have different numbers of rows.
# - A rank with 0 rows has run no backward pass: its `.grad`s are `None`. It still takes part, and has gradients afterwards.
# - Parameters with `requires_grad=False` keep `.grad` None on all ranks. No other parameter is unused.
# - Use only collectives from `torch.distributed`, and send each gradient about once (all to all is too much). Return nothing.


# %% name="average" answer=true reveal=true
def average_gradients(model, rows):
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.tensor(float(rows), device=trained[0].device)
    dist.all_reduce(total)
    for p in trained:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad *= rows / total.item()
        dist.all_reduce(p.grad)
    ### END SOLUTION


# %% name="average_check"
average_gradients = check("data_parallel.average", average_gradients)

# %% name="average_hint"
hint("data_parallel.average")

# %% [markdown] name="summary_text"
# ## 10 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Data parallel: the whole model everywhere, a part of the batch each, gradients averaged. The update is that of the joint batch, if all ranks have the same number of rows and nothing like BatchNorm looks across rows.
# - DDP sends each gradient once, in buckets, during the backward pass. It saves no static memory: by default it holds one more copy of the gradients, with `gradient_as_bucket_view=True` none.
# - Call `set_epoch`. Wrap accumulation in `no_sync`. Save on rank 0, evaluate without padding, and never put a collective where some ranks do not pass.
# - Effective batch = micro-batch × accumulation × ranks.
#
# **What to reach for when.** The model fits on one GPU and you want speed: DDP. It does not fit: shard it ([[sharding]]), or cut up the model itself (labs [[#tensor_parallel]] and [[#pipeline]]).
#
# **Sources.** Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*; PyTorch documentation, `DistributedDataParallel`, `DistributedSampler`, `init_process_group` (timeouts), `torchrun`; Goyal et al. 2017,
# *Accurate, Large Minibatch SGD*, on averaging and learning rates.
