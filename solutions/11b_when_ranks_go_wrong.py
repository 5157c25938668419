# %% [markdown] name="title"
# # When ranks go wrong
#
# **Most mistakes with ranks raise no error. The loss falls and the weights are wrong, or the job hangs and the error message blames the wrong rank. Each mistake leaves traces; this lab shows what they are and how to find them.**
#
# | | |
# |---|---|
# | After this you can | give each rank its rows; recognize, by their symptoms, replicas that differ, unequal batches, epochs that repeat, per-rank statistics and files that several ranks wrote at once; average over ranks with unequal rows; measure what DDP costs in speed; find the rank that is slow and estimate what random delays cost; find the rank that is out of step, from the flight recorder and with `TORCH_DISTRIBUTED_DEBUG=DETAIL` |
# | Time | 85 to 115 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●○ |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, some cells use NCCL, which has not been tested yet |
# | Before this | [[data_parallel]] |
# | Syllabus | T18, T34, C13, P7 |
#
# Exercise X3, the graded notebook after this one, uses all of it. [[Failures]] covers what jobs on thousands of GPUs also need.

# %% name="setup" setup=true
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from helpers import (
    COLORS,
    Claims,
    Prediction,
    RankError,
    SmallCNN,
    calls_in,
    check,
    device_name,
    digits,
    explore,
    flight_report,
    hint,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
    waiting_bars,
    write_flight_record,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

device = pick_device()
pair = ranks_device(2)  # one rank and two ranks are compared on the same kind of device
claims = Claims(device=pair)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"one or two ranks: on {'GPUs, over NCCL' if pair.type == 'cuda' else 'the CPU, over gloo'}")

# %% name="joint_batch"
data = digits()
x, y = data.train_x[:64].clone(), data.train_y[:64].clone()  # the joint batch


def make_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()


def gradient_of(model):
    return flat(p.grad for p in model.parameters())


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def mine():
    """Return this rank's equal part of the joint batch, on its device."""
    rank, n, here = dist.get_rank(), dist.get_world_size(), rank_device()
    return x.chunk(n)[rank].to(here), y.chunk(n)[rank].to(here)


def average_gradients_by_hand(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


# %% [markdown] name="seeds_text"
# ## 1 · No error, and wrong weights
#
# The starting point is a small program: two ranks train an MLP, each on half of 64 digits, and average the gradients by hand as in [[data_parallel]]. Each part below breaks this program, or a similar one, in one way.
#
# ### Different weights at the start
#
# The gradients are averaged correctly, but each rank makes its model from its own seed.
#
# **Predict.** How far apart are the two replicas after 20 steps, relative to their distance at the start?

# %% name="guess_seeds"
my_guess = None  # times the distance at the start
### BEGIN GUESS
my_guess = 1  # the same moves for both: the difference stays what it was
### END GUESS
seeds_guess = Prediction("Distance of the replicas after 20 steps / at the start", my_guess, "times")


# %% name="seeds"
def from_own_seed(how):
    model = make_mlp(seed=dist.get_rank()).to(rank_device())
    before = flat(model.parameters())
    wrapped = DistributedDataParallel(model) if how == "DDP" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = mine()
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(wrapped(xs), ys).backward()
        if how == "by hand":
            average_gradients_by_hand(model)
        optimizer.step()
    return before, flat(model.parameters())


(before_a, a), (before_b, b) = run_ranks(from_own_seed, 2, "by hand").results
seeds_guess.reveal(((a - b).norm() / (before_a - before_b).norm()).item())
(_, c), (_, d) = run_ranks(from_own_seed, 2, "DDP").results
print(
    f"largest difference of a weight between the ranks: by hand {(a - b).abs().max():.2g}, DDP {(c - d).abs().max():.2g}"
)
said = "different seeds: replicas never meet"
claims.record("P7", said, "MLP, 20 steps by hand", distance(a, b), "relative", 0.1, torch.inf)
claims.record("P7", "DDP starts all from rank 0", "MLP, 20 steps", distance(c, d), "relative", 0, 0)

# %% [markdown] name="seeds_explained"
# DDP's constructor sends rank 0's parameters and buffers to all ranks. So DDP is safe here, unless the weights are changed later on one rank only, for example by loading a checkpoint on rank 0. A checksum of the weights, compared between ranks every few hundred steps, detects such drift. Randomness is another matter: dropout and augmentation *should* differ between ranks. Build the model from the same seed on every rank, and only then reseed with seed + rank.
#
# ### Unequal batches
#
# DDP divides the sum of gradients by the number of ranks. Here one rank has 60 rows and the other 4, and each takes the mean loss over its own rows.


# %% name="unequal"
def unequal(by_rows):
    rank, here = dist.get_rank(), rank_device()
    model = nn.Linear(64, 10, bias=False).to(here)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model)
    rows, labels = torch.eye(64).split((60, 4))[rank].to(here), y.split((60, 4))[rank].to(here)
    loss = F.cross_entropy(ddp(rows), labels)
    if by_rows:
        loss = loss * len(rows) * dist.get_world_size() / 64
    loss.backward()
    return model.weight.grad.cpu()  # row i of the identity has its gradient in column i, and only there


plain, weighted = (run_ranks(unequal, 2, by_rows).results[0] for by_rows in (False, True))
weight = (plain[:, -1].norm() / plain[:, 0].norm()).item()
print(f"a row on the rank with 4 rows has {weight:.3g} times the weight of a row on the other rank")
alike = F.one_hot(y, 10).T  # the gradient of one process on the joint batch is (softmax of zeros - one_hot) / 64
whole = (0.1 - alike) / 64
print(
    f"distance from the joint batch: mean of means {distance(plain, whole):.1e}, "
    f"weighted by rows {distance(weighted, whole):.1e}"
)
said = "unequal batches: the mean of means is wrong"
claims.record("P7", said, "60 and 4 rows", distance(plain, whole), "relative", 0.01, torch.inf)
claims.record("P7", "weighting by rows repairs it", "60 and 4 rows", distance(weighted, whole), "relative", 0, 1e-5)

# %% [markdown] name="average_text"
# Here the loss was weighted before the backward pass. Now weight the gradients.
#
# ### Your turn: average with unequal rows
#
# **Contract.** `average_gradients(model, rows)` is called on every rank after a backward pass. Afterwards each `.grad` is the gradient of the **joint** batch: the mean over the rows of all ranks.
#
# - Before the call each `.grad` is the gradient of the **mean** loss over this rank's own `rows` rows. Ranks may have different numbers of rows.
# - A rank with 0 rows has run no backward pass, so its `.grad`s are `None`. It still takes part, and has gradients afterwards.
# - The `.grad` of a parameter with `requires_grad=False` stays `None` on all ranks. Every other parameter has a gradient on each rank that has rows.
# - Use only collectives from `torch.distributed` (no sends and receives), and send each gradient once: do not gather everything on every rank. A few extra numbers are fine. Return nothing.
#
# The joint count can stay on the device: dividing by a tensor needs no `.item()`, which would stop Python until the GPU has caught up.


# %% name="average" answer=true reveal=true
def average_gradients(model, rows):
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.tensor(float(rows), device=trained[0].device)
    dist.all_reduce(total)
    for p in trained:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad *= rows / total  # a tensor: the device is not asked for its value
        dist.all_reduce(p.grad)
    ### END SOLUTION


# %% name="average_check"
average_gradients = check("when_ranks_go_wrong.average", average_gradients)

# %% name="average_hint"
hint("when_ranks_go_wrong.average")

# %% [markdown] name="sampler_text"
# ### Which rank gets which rows
#
# Each rank runs its own `DataLoader`; a `DistributedSampler` gives it every Nth index of a shuffled list. All ranks shuffle with the same seed, so that no two ranks get the same row.
#
# **Predict.** Ten rows, two ranks, three epochs, and the script never calls `set_epoch`. How many of the ten rows does rank 0 see?

# %% name="guess_sampler"
my_guess = None
### BEGIN GUESS
my_guess = 5  # always the same order, so always the same half
### END GUESS
sampler_guess = Prediction("Rows that rank 0 sees in three epochs without set_epoch", my_guess, "of 10")


# %% name="sampler"
def order(epochs, tell):
    sampler = DistributedSampler(range(10), shuffle=True, seed=0)
    seen = []
    for epoch in range(epochs):
        if tell:
            sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen


orders = {tell: run_ranks(order, 2, 3, tell).results for tell in (True, False)}
sampler_guess.reveal(len({row for epoch in orders[False][0] for row in epoch}))
for tell, (first_rank, second_rank) in orders.items():
    print("with set_epoch:" if tell else "without:")
    for epoch, (a, b) in enumerate(zip(first_rank, second_rank, strict=True)):
        print(f"  epoch {epoch}: rank 0 {a}, rank 1 {b}")
    different = len({tuple(part) for part in first_rank})
    said = f"{'with' if tell else 'without'} set_epoch: {'a new order each epoch' if tell else 'always the same order'}"
    unit = "orders" if different > 1 else "order"
    claims.record("P7", said, "3 epochs", different, unit, *((3, 3) if tell else (1, 1)))

# %% [markdown] name="sampler_explained"
# The order depends on `seed + epoch`, and only you can tell the sampler the epoch. Without `set_epoch` every epoch goes through the rows in the same order, and rank 0 never sees rank 1's rows. Nothing crashes; each rank just sees the same half of the data in every epoch. Look for the call in any script that you inherit.
#
# ### Ten rows, four ranks
#
# Ten is not divisible by four. The sampler repeats rows from the front, so that all ranks have the same number. Suppose that a model is right on rows 2 to 9 and wrong on rows 0 and 1, so its accuracy is 0.8. The next cell averages over the ranks' shares.

# %% name="padding"
shares = run_ranks(lambda: list(DistributedSampler(range(10), shuffle=False)), 4).results
scores = [0.0, 0.0] + 8 * [1.0]  # right or wrong, row by row
padded = sum(scores[row] for share in shares for row in share) / sum(len(share) for share in shares)
print(f"shares: {shares}\naccuracy over the padded shares: {padded:.3f}, over the rows: {sum(scores) / 10:.3f}")
claims.record("P7", "padding skews a metric", "10 rows, 4 ranks", abs(padded - sum(scores) / 10), "off", 0.01, 1)

# %% [markdown] name="batchnorm_text"
# In training this hardly matters. (With `drop_last=True` the sampler drops rows instead of repeating some.) In **evaluation** it does, because rows 0 and 1 count twice. Give each rank the rows `range(rank, n, world_size)`, sum correct answers and rows separately over all ranks, and divide once at the end.
#
# ### BatchNorm
#
# All statements about "the update of the joint batch" hold only for models that treat each row independently. BatchNorm normalizes with the statistics of *its own rank's* rows. A small CNN with BatchNorm now takes the 64 digits, 32 on each rank, so the averaged gradient is not that of the joint batch. Its error depends on how well a rank's rows represent the whole batch: the mean and the variance of n rows are off by about 1/√n.
#
# **Predict.** With 8 rows on each of eight ranks instead of 32 on each of two, by what factor does the averaged gradient's distance from the joint one grow?

# %% name="guess_batchnorm"
my_guess = None  # times as far
### BEGIN GUESS
my_guess = 4  # a quarter of the rows
### END GUESS
batchnorm_guess = Prediction("BatchNorm: distance from the joint gradient, 8 x 8 rows / 2 x 32", my_guess, "times")


# %% name="batchnorm"
def cnn_gradient(sync=False):
    torch.manual_seed(0)
    model = SmallCNN(16).to(rank_device())
    if sync:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
    xs, ys = mine()
    F.cross_entropy(ddp(xs), ys).backward()
    return gradient_of(model)


def cnn_gradient_of_parts(n):
    """Return the averaged gradient of n equal parts, one after the other in one process: as n ranks would."""
    gradients = []
    for xs, ys in zip(x.chunk(n), y.chunk(n), strict=True):
        torch.manual_seed(0)
        model = SmallCNN(16)
        F.cross_entropy(model(xs), ys).backward()
        gradients.append(gradient_of(model))
    return torch.stack(gradients).mean(0)


whole = run_ranks(cnn_gradient, 1, device=pair).results[0]
apart = distance(run_ranks(cnn_gradient, 2, device=pair).results[0], whole)
off = {n: distance(cnn_gradient_of_parts(n), cnn_gradient_of_parts(1)) for n in (2, 4, 8)}
print(f"two ranks of 32 rows: {apart:.3f} of the joint gradient's length; in one process {off[2]:.3f}")
print(f"four of 16 rows: {off[4]:.3f}, eight of 8: {off[8]:.3f}")
batchnorm_guess.reveal(off[8] / off[2])
said = "BatchNorm: two ranks are not the joint batch"
claims.record("P7", said, "CNN, 2 x 32 rows", apart, "relative", 0.01, torch.inf)
if pair.type == "cuda":
    together = distance(run_ranks(cnn_gradient, 2, True, device=pair).results[0], whole)
    print(f"with SyncBatchNorm: {together:.2g}")

# %% [markdown] name="batchnorm_explained"
# A quarter of the rows per rank does not make the distance four times as large. With a quarter of the rows, the mean and the variance are off by twice as much. If the ranks' errors were independent, averaging over eight ranks instead of two would cancel that again (2 / √4 = 1). The measured factor includes both effects, and this lab does not separate them. But even with 32 rows per rank the gradient is off by nearly a fifth.
#
# Accumulation has the same problem ([[gradient_accumulation]]). On GPUs, `SyncBatchNorm.convert_sync_batchnorm(model)` computes the statistics over all ranks, at the cost of a small collective in each such layer. Running statistics differ, too. At the start of a forward pass DDP resets them to rank 0's, unless the previous pass recorded no graph or ran in `no_sync`. A checkpoint that rank 0 saves contains rank 0's statistics.
#
# ### Every rank saves
#
# Two ranks each write a checkpoint of 200,000 bytes to the same path at the same time. Rank 0 writes only the letter A, rank 1 only B. Both open the file before either writes, and each keeps its own position in it. Rank 1 writes its first half, then rank 0 writes all of its bytes, then rank 1 writes its second half. (Barriers force this order here; on a cluster it can happen by chance.)
#
# **Predict.** How many bytes of A are in the file in the end?

# %% name="guess_saving"
my_guess = None  # bytes of A
### BEGIN GUESS
my_guess = 100_000  # rank 0 overwrites the first half, and rank 1 overwrites the second
### END GUESS
saving_guess = Prediction("Rank 0's bytes in the file that two ranks have written", my_guess, "bytes of A")


# %% name="saving"
def save(path, all_ranks):
    rank = dist.get_rank()
    block = bytes([65 + rank]) * 1000  # rank 0 writes A, rank 1 writes B
    if all_ranks or rank == 0:
        with open(path, "wb", buffering=0) as file:
            race = (0, 200, 0) if rank == 0 else (100, 0, 100)  # now one rank is ahead, now the other
            for blocks in race if all_ranks else (200,):
                dist.barrier() if all_ranks else None
                file.write(block * blocks)
    dist.barrier()  # no rank reads before the file is written
    return Path(path).read_bytes()


for all_ranks in (True, False):
    with tempfile.TemporaryDirectory() as folder:
        content = run_ranks(save, 2, f"{folder}/checkpoint.pt", all_ranks).results[0]
    if all_ranks:
        saving_guess.reveal(content.count(b"A"))
    writers = len(set(content))
    letters = " and ".join(sorted(set(content.decode())))
    print(f"{'each rank saves' if all_ranks else 'rank 0 saves'}: {len(content):,} bytes of {letters}")
    said, writers_due = (
        ("saving from every rank mixes the file", 2) if all_ranks else ("saving from rank 0 does not", 1)
    )
    claims.record(
        "P7", said, "2 ranks, 1 file", writers, "writers" if all_ranks else "writer", writers_due, writers_due
    )

# %% [markdown] name="rank0_text"
# The file has the right length, but it mixes the bytes of both ranks. The rule has three parts: rank 0 saves, **then** all ranks meet at a barrier, and only then may any rank read the file or exit.
#
# ## 2 · A rank that waits
#
# ### A collective that not all ranks reach
#
# Evaluating the *wrapped* model on rank 0 alone deadlocks if the model has buffers, such as BatchNorm's: DDP's forward pass broadcasts them (the argument is `broadcast_buffers`, from PyTorch 2.13 on `forward_sync_buffers`). After its time limit, `run_ranks` asks every rank where it is and ends the run. We use gloo on every machine (`device="cpu"`), because over gloo a rank's stack shows the call in which it waits:


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


for through, limit in (("ddp", 4), ("ddp.module", 60)):  # seconds
    try:
        print(f"through {through}:", run_ranks(evaluate_on_rank_0, 2, through, device="cpu", timeout=limit).results)
    except RankError as error:
        print(f"through {through}: {error}\n")

# %% [markdown] name="rank0_explained"
# In the first report both ranks are inside a collective, but not the same one. Rank 0 sends a broadcast that rank 1 never joins; rank 1 is at a barrier that rank 0 has not reached. Gloo matches each call with a call of the same kind, so here both wait. NCCL does not check: there, a barrier is an all-reduce, which meets the broadcast on the same connections, and the result is undefined (a hang, a crash or wrong data; NCCL documentation, *Collective Operations*). Call `ddp.module` where only one rank works.
#
# The same happens when one rank has one more batch than the others. `DistributedSampler` gives all ranks the same number of rows. Where that is not possible, `Join` lets a rank that has finished keep taking part in the collectives of the others:


# %% name="hang"
def uneven(join):
    model = DistributedDataParallel(make_mlp().to(rank_device()))
    with Join([model], enable=join):
        for _ in range(3 if dist.get_rank() == 0 else 2):
            F.cross_entropy(model(x.to(rank_device())), y.to(rank_device())).backward()
    return "done"


for join, limit in ((False, 4), (True, 60)):  # seconds
    try:
        print(f"Join {join}:", run_ranks(uneven, 2, join, device="cpu", timeout=limit).results)
    except RankError as error:
        print(f"Join {join}: {str(error).splitlines()[0]}")

# %% [markdown] name="unused_text"
# ### A parameter without a gradient
#
# A parameter that gets no gradient leaves its bucket unfilled. The `finish()` that you wrote in [[data_parallel]] sends the bucket anyway. DDP has no such call, and reports the problem in the next forward pass:


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
    sentences = str(error).partition("raised ")[2].split(". ")
    print(". ".join(sentences[:2]) + ". ...")
print("\nfind_unused_parameters=True:", run_ranks(unused, 2, True).results)

# %% [markdown] name="unused_explained"
# `find_unused_parameters=True` walks the graph after each forward pass and marks the parameters that will get no gradient. That costs time in every step, so use it only when you must. Parameters that are frozen (`requires_grad=False`) before the model is wrapped cost nothing and are ignored. If the same parameters are used in every step, `static_graph=True` walks the graph only once; it also allows reentrant checkpointing and checkpointing a module more than once. Under `torch.compile`, the compiled graph of a DDP model is split at the bucket boundaries (`optimize_ddp`), so that messages can still leave early.
#
# ## 3 · Ranks that are slow
#
# ### What two ranks gain
#
# The promise is "N GPUs, about N times the speed." A fair comparison on this machine is one process with one thread against two ranks with one thread each, and the same batch for each rank (so twice the rows per step).
#
# But this machine may not be able to run twice as fast: the ranks share caches and memory, and other programs may be using the cores. So there is a control: two ranks that train side by side and never communicate (*silent* ranks in the output). Apart from noise, DDP cannot be faster than that.
#
# **Predict.** What share of the control's speed does DDP keep here?

# %% name="guess_speed"
my_guess = None  # rows per second of DDP / rows per second of two ranks that never communicate
### BEGIN GUESS
my_guess = 0.9
### END GUESS
speed_guess = Prediction("DDP's rows per second / those of two silent ranks", my_guess, "")

# %% name="speed_step"
larger = digits(size=16)


def rows_per_second(talk):
    torch.set_num_threads(1)
    here, rank = rank_device(), dist.get_rank()
    torch.manual_seed(0)
    model = SmallCNN(24).to(here)
    model = DistributedDataParallel(model) if talk else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = (t[64 * rank : 64 * rank + 64].to(here) for t in (larger.train_x, larger.train_y))
    for step in range(16):
        if step == 1:  # the first warms up
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        optimizer.step()
    dist.barrier()
    return 64 * 15 * dist.get_world_size() / (time.perf_counter() - start)


# %% name="speed"
ways = {"one rank": (1, False), "two silent ranks": (2, False), "two with DDP": (2, True)}
rounds = [  # all three in each round, so that a slow moment of the machine affects all
    [run_ranks(rows_per_second, n, talk, device=pair, measure=False).results[0] for n, talk in ways.values()]
    for _ in range(3)
]
one, silent, ddp = (max(rows) for rows in zip(*rounds, strict=True))  # the least disturbed of three
for name, rows in zip(ways, (one, silent, ddp), strict=True):
    print(f"{name:<20}{rows:>8,.0f} rows per second")
kept = [with_ddp / alone for _, alone, with_ddp in rounds]
speed_guess.reveal(ddp / silent)
print(f"in the three rounds: from {min(kept):.2f} to {max(kept):.2f}")
print(f"two silent ranks: {silent / one:.2f} times as many as one; with DDP: {ddp / one:.2f} times")
claims.figure("speed of two ranks", "CNN, 2 ranks of one thread", ddp / one, "times that of one")
if silent / one < 1.2:
    print("This machine has no free second core right now, so the comparison is skipped.")
elif abs(1 - ddp / silent) < max(kept) - min(kept):
    print("The rounds differ by more than DDP costs here, so this machine cannot tell what DDP keeps.")
else:
    claims.figure("DDP's speed", "CNN, 2 ranks of one thread", ddp / silent, "of two silent ranks")

# %% [markdown] name="speed_explained"
# Two ranks lose speed in two places. Two silent ranks fall short of twice the speed because they share the machine: its caches and memory, and its cores if other programs run. The gap between DDP and the silent ranks is the cost of communication (a ratio above 1 is noise). The last bucket cannot be hidden, and at the end of each backward pass the faster rank waits for the slower one. On a cluster, the backward pass must be long enough to hide the messages. A large micro-batch helps: [[data_parallel]] has a slider, and [[sharding]] works out how many tokens per GPU are enough.
#
# ### One slow rank
#
# Suppose that one GPU runs hot and slows down. Every step then takes as long as the slowest rank takes. Which rank is the slow one? Each rank can time its own all-reduces. Here `sleep` stands in for computing: 20 ms on three ranks, 80 ms on rank 2.
#
# **Predict.** What is the ratio of rank 2's time in the all-reduce to that of the other ranks?

# %% name="guess_straggler"
my_guess = None  # seconds in all_reduce: the slow rank / the others
### BEGIN GUESS
my_guess = 0.05  # the others are already waiting when it arrives
### END GUESS
straggler_guess = Prediction("Time in the all-reduce: the slow rank / the others", my_guess, "", difference=True)


# %% name="straggler"
def naps():
    nap = 0.08 if dist.get_rank() == 2 else 0.02
    gradient, working, waiting = torch.ones(1000), [], []
    for _ in range(8):
        start = time.perf_counter()
        time.sleep(nap)
        asked = time.perf_counter()
        dist.all_reduce(gradient)
        working.append(asked - start)
        waiting.append(time.perf_counter() - asked)
    return np.median(working), np.median(waiting)


working, waiting = zip(*run_ranks(naps, 4, device="cpu", measure=False).results, strict=True)
straggler_guess.reveal(waiting[2] / np.median([waiting[rank] for rank in (0, 1, 3)]))
show(
    waiting_bars(working, waiting),
    "Four bars of nearly one length; ranks 0, 1 and 3 spend most of it in the all-reduce.",
)

# %% [markdown] name="straggler_explained"
# The rank that waits **least** is the slow one. In a profile of any other rank, communication seems to take most of the time, but that time is waiting. So gather the waiting times of all ranks (one `all_gather` of one number) before you blame the network. Over NCCL a call only queues its work, so a CPU clock around it measures only the launch. Record CUDA events around the collective and read them once per logging interval, or compare the length of one NCCL kernel in the traces of all ranks; it is shortest on the rank that arrives last.
#
# ### When all ranks are healthy
#
# Even without a slow GPU, no two steps take exactly the same time: clock rates change, a data loader is late, the operating system interrupts. Suppose that a step of each rank takes 100 ms on average, with a standard deviation of 5 ms, normally distributed and independent from rank to rank and from step to step.
#
# **Predict.** How long does a step of 1,024 such ranks take on average?

# %% name="guess_jitter"
my_guess = None  # milliseconds
### BEGIN GUESS
my_guess = 115  # the slowest of a thousand is three standard deviations late
### END GUESS
jitter_guess = Prediction("A step of 1,024 ranks, 100 ± 5 ms each", my_guess, "ms")


# %% name="jitter"
def step_times(ranks, spread, slow=1.0, steps=200):
    """Return simulated times of steps in ms; rank 0 needs `slow` times as long as the others."""
    times = np.random.default_rng(0).normal(100, spread, (steps, ranks))
    times[:, 0] *= slow
    return times.max(axis=1)  # all wait for the slowest


jitter_guess.reveal(step_times(1024, 5).mean(), "simulated")


# %% name="jitter_explore"
def waiting_figure(standard_deviation_in_ms, rank_0_is_slower_by_percent):
    counts = [2**i for i in range(13)]
    slow = 1 + rank_0_is_slower_by_percent / 100
    means = [step_times(n, standard_deviation_in_ms, slow).mean() for n in counts]
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.semilogx(counts, means, "o-", base=2, color=COLORS[0], label="the job's step")
    axes.axhline(100, ls=":", color="gray", label="mean of a healthy rank")
    axes.set(title="Simulated: a step lasts until the slowest rank is done", xlabel="ranks", ylabel="milliseconds")
    axes.set_ylim(90, 200)
    axes.legend(frameon=False, loc="upper left")
    return figure


explore(
    waiting_figure,
    "The mean step grows with the number of ranks, quickly at first and then slowly.",
    standard_deviation_in_ms=(5, (0, 1, 2, 5, 10, 20)),
    rank_0_is_slower_by_percent=(0, (0, 5, 10, 20, 50)),
)

# %% [markdown] name="mismatched_text"
# The time lost to independent delays grows like the maximum of N random numbers: fast up to a few dozen ranks, then slowly. With a standard deviation of 5 ms, each doubling adds about 2.5 ms at first and less than 1 ms at the end. (The figure's rank axis is logarithmic.) Now make rank 0 slower by 20 percent. With few ranks, rank 0 determines the step time. With thousands of ranks and a standard deviation of 10 ms, random delays cost more than the slow rank does. So on such a job, reduce the variation first.
#
# ## 4 · A rank out of step
#
# ### Mismatched calls: `TORCH_DISTRIBUTED_DEBUG=DETAIL`
#
# With this variable set, the ranks compare the kind, shape and dtype of every collective before they run it. A mismatch then raises an error instead of causing a hang. It costs extra messages per call, so use it for debugging only. Within a program, call `dist.set_debug_level` before you create the group:


# %% name="mismatched"
def mismatched():
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group("gloo")
    try:
        dist.all_reduce(torch.ones(1000))
        if dist.get_rank() == 0:
            dist.broadcast(torch.ones(5), src=0)
        else:
            dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        return str(error)
    finally:
        dist.destroy_process_group()


for rank, said in enumerate(run_ranks(mismatched, 2, device="cpu", process_group=False, measure=False).results):
    print(f"rank {rank}: {said.partition('.')[0]}; {said.partition('following aspects:')[2].strip()}")

# %% [markdown] name="stuck_text"
# ### After the fact: a timeout and the flight recorder
#
# A process group has a **timeout**: half an hour over gloo, ten minutes over NCCL, unless `init_process_group(timeout=...)` sets another. Here it is two seconds. After the second step, rank 0 alone broadcasts its loss, "only for the log."
#
# Each process also has a **flight recorder**, a ring buffer that holds the last `TORCH_FR_BUFFER_SIZE` calls of all its groups, each with the line that made it. Over NCCL it is written to a file after a timeout (the settings are at the end of this section); over gloo the program below writes it.


# %% name="flight"
def stuck(folder, seconds):
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    gradient, said = torch.ones(1000), "done"
    try:
        for step in range(4):
            dist.all_reduce(gradient)
            if dist.get_rank() == 0 and step == 1:
                dist.broadcast(torch.ones(5), src=0)
    except RuntimeError as error:
        said = str(error).partition("] ")[2]
    recorded = write_flight_record(folder)
    dist.destroy_process_group()
    return said, recorded


for seconds in (2, 15):  # on a busy machine an all-reduce may take longer than two
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_ranks(stuck, 3, folder, seconds, device="cpu", process_group=False, measure=False).results
        calls, report = calls_in(folder), flight_report(folder) if outcome[0][1] else ""
    if all(len(own) == 3 for own in calls.values()):  # also true if nothing was recorded
        break
for rank, (said, recorded) in enumerate(outcome):
    print(f"rank {rank}: {said}; {recorded} calls recorded")
if calls:
    rows = [[f"{name} {sizes}" for name, sizes, _ in own] for own in calls.values()]
    show_table([("rank", *(f"call {n + 1}" for n in range(3))), *((str(r), *row) for r, row in enumerate(rows))])
else:
    print("This version of PyTorch records no calls of gloo; from 2.13 on it does.")

# %% [markdown] name="out_of_step_text"
# Each rank reports only that it timed out (or that a connection was closed), and none reports the cause. The records, side by side, show it. With 3 ranks and 3 calls you see it at once. With 1,024 ranks and 2,000 calls each, you need a program.
#
# ### Your turn: which rank is out of step?
#
# **Contract.** `out_of_step(calls)` finds where the ranks' records differ, and which ranks to look at.
#
# - `calls` maps each rank to the list of calls that it made, in order. The ranks may come in any order. A call is a tuple (name, sizes, line), such as `("all_reduce", (1000,), "train.py:31")`. Do not modify it. There are two or more ranks, and a record may be empty.
# - Two calls are alike if their names and sizes are equal. The line does not matter.
# - If the ranks have made the same calls, the function returns `None`.
# - Otherwise it returns `(n, ranks)`. The n-th call, counted from 1, is the first one that is not alike on all ranks. A record with fewer than n calls counts as "no call" at n.
# - `ranks` is a sorted list. If **more than half** of the ranks agree at n (on a call or on "no call"), it holds all other ranks. If no such majority exists, it holds all ranks.


# %% name="out_of_step" answer=true reveal=true
def out_of_step(calls):
    ### BEGIN SOLUTION
    for n in range(max(map(len, calls.values()))):
        did = {rank: own[n][:2] if n < len(own) else None for rank, own in calls.items()}
        usual, count = Counter(did.values()).most_common(1)[0]
        if count < len(calls):
            majority = count > len(calls) / 2
            return n + 1, sorted(rank for rank in calls if did[rank] != usual or not majority)
    return None
    ### END SOLUTION


# %% name="out_of_step_check"
out_of_step = check("when_ranks_go_wrong.out_of_step", out_of_step)

# %% name="out_of_step_hint"
hint("when_ranks_go_wrong.out_of_step")

# %% [markdown] name="report_text"
# PyTorch's own tool is `torchfrtrace FOLDER`. It also matches the n-th call of each rank with the n-th of the others and stops at the first mismatch. Here is your answer, followed by the tool's report:

# %% name="report"
if calls:
    n, ranks = out_of_step(calls)
    print(f"the records differ from call {n} on; look at ranks {ranks}: {calls[ranks[0]][n - 1]}\n\n{report}")

# %% [markdown] name="flight_explained"
# Do not trust the word *culprit* in such a report. The tool gives that name to every rank whose record differs from the first one that it happened to read. Here the name fits. By the same rule, the tool would call ranks 1 and 2 the culprits if it had read rank 0's record first (this lab does not show that). Your function takes a vote. (`--just_print_entries` shows all calls; it needs the package `tabulate`.)
#
# The recorder works over gloo in PyTorch 2.13, but the group has no name in the dump, so `torchfrtrace` by itself would stop with a `KeyError`; the helper fills in the name. Over gloo a call never leaves the state *scheduled*. Over NCCL it goes on to *started* and *completed*, so you also see which ranks reached the call and did not finish it.
#
# **Over NCCL** a call only queues its collective on the GPU, and Python continues. A hung rank's stack shows a later line, where it first needs a result: at `loss.item()`, or in `torch.cuda.synchronize()`. So the stack shows little there, and the recorder is the tool to use. It is on by default. Set the path to a folder that all machines share:
#
# ```
# TORCH_FR_DUMP_TEMP_FILE=/shared/run7/rank_
# ```
#
# After the timeout, a watchdog thread on each rank writes one file and ends the process. It also prints lines such as these (shortened, from a report to NVIDIA, github.com/NVIDIA/nccl/issues/1409):
#
# ```
# [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80078, OpType=BROADCAST, NumelIn=5056, ...)
# [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80078, OpType=ALLREDUCE, NumelIn=2106881, ...)
# ```
#
# Both ranks are at call 80,078, and the two calls differ: one of the ranks took a different path through the program. The author of that report suspects the environment, but mismatched calls point to the program. Look for a branch that the ranks take differently.
#
# <details><summary><code>NCCL_DEBUG</code>: which lines to look for</summary>
#
# `NCCL_DEBUG=WARN` prints what goes wrong, and `NCCL_DEBUG=INFO` also prints how the ranks found each other. `NCCL_DEBUG_SUBSYS=INIT,COLL` selects subsystems, and `NCCL_DEBUG_FILE=nccl.%h.%p` writes a file for each process. Each line begins with the host, the process, the thread and the GPU number.
#
# | line | meaning |
# |---|---|
# | `NCCL INFO Bootstrap : Using eth0:...` | the network interface over which the ranks find each other; over the wrong one, they never connect: set `NCCL_SOCKET_IFNAME` |
# | `NCCL INFO Using network Socket` (or `IB`) | what carries messages between machines; `Socket` where you have paid for InfiniBand explains slow training |
# | `NCCL INFO Channel 01 : 0[...] -> 1[...] via P2P` (or `SHM`, `NET`) | an edge of a ring or tree: rank 0 sends to rank 1 directly, through the host's memory, or over the network |
# | `NCCL INFO comm 0x... rank 0 nranks 2 ... Init COMPLETE` | this rank is ready; if no rank prints this line, look for one without `Init START` |
# | `NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000` | two ranks on one GPU: the script does not call `torch.cuda.set_device(local_rank)` |
#
# (This lab cannot show these lines. They are from NVIDIA's documentation and published logs.)
# </details>
#
# ## 5 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# | what you see | look here first |
# |---|---|
# | the loss falls, but replicas or restarts disagree | weights made or changed on one rank only: compare checksums of the weights |
# | one process on the joint batch gives a different gradient | unequal rows per rank (weight by rows), BatchNorm (use `SyncBatchNorm`) |
# | every epoch has the same order | `set_epoch` is never called |
# | a score that changes with the number of ranks | rows that the sampler repeated count twice |
# | a checkpoint of the right size with wrong contents | more than one rank wrote it: rank 0 saves, then a barrier |
# | all ranks wait, in different calls | a collective that only some ranks reach: the wrapped model on rank 0, an extra batch, a branch |
# | "Expected to have finished reduction in the prior iteration" | a parameter without a gradient: `find_unused_parameters`, or freeze it before wrapping |
# | all ranks run, but each is slower than a single rank was | the rank that waits least in its all-reduces; then the spread of step times between ranks |
# | a timeout after minutes without output | flight records side by side; run again with `TORCH_DISTRIBUTED_DEBUG=DETAIL` |
#
# **What to reach for when.** If you can run the job again, set `TORCH_DISTRIBUTED_DEBUG=DETAIL`, which turns a mismatch into an error. If you cannot, compare the flight records that the timeout left. If nothing hangs but the result is wrong, compare with one process on the joint batch: first the gradients of one step, then the weights after a few.
#
# **Sources.** PyTorch documentation, `DistributedDataParallel`, `DistributedSampler`, `Join`, `SyncBatchNorm`, `init_process_group` (timeouts), *Debugging torch.distributed applications*; PyTorch tutorials, *Flight Recorder for Debugging Stuck Jobs*; NVIDIA, *NCCL: Environment Variables* and *Collective Operations*.
