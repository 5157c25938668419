# %% [markdown] name="title"
# # X3 · Train on two ranks
#
# **Graded exercise, 10 points.** You write the worker that every data-parallel job runs: an epoch with accumulation, an evaluation that counts each row once, and the program around them. Your program runs on two GPUs, or as two processes on any machine. Then you diagnose six programs written by others.
#
# | | |
# |---|---|
# | After this you can | write a `DistributedDataParallel` program that arrives at the same weights as one process training on the joint batch; check that it does; explain each of its lines; find from its symptoms which line of such a program is wrong |
# | Time | 90 to 120 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU (2 processes); with two GPUs, the run and the table at the end use NCCL, which has not been tested yet |
# | Before this | [[data_parallel]] and [[when_ranks_go_wrong]] |
# | Syllabus | X3 (T18, C13, P7) |
#
# There are three answer cells, each followed by its check. A check starts real ranks (over gloo on the CPU, so that its result is the same on every machine), takes a few seconds and prints its verdicts. Run it as often as you like. If a rank misses a collective, the check reports it within a minute, with the line that each rank has reached. In a copy without reference answers the checks give no verdict; your instructor's grading does. Save the notebook when you are done. It is your submission, and its name must not change.

# %% name="setup" setup=true
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from helpers import (
    SmallCNN,
    check,
    device_name,
    digits,
    hint,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show_table,
)
from helpers.core.device import synchronize
from helpers.exercises.x3.broken import DIAGNOSES, compare_diagnoses, observe, symptoms_table

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

device = pick_device()
pair = ranks_device(2)  # one rank and two ranks run on the same kind of device
print(f"{device_name(device)} ({device.type}), torch {torch.__version__}; ranks run on {pair.type}")

# %% [markdown] name="epoch_task"
# ## Part 1 · An epoch (5 points)
#
# **Contract.** `train_epoch` is called on every rank and runs through the rank's `loader` once.
#
# 1. `model` is wrapped in `DistributedDataParallel`, has no BatchNorm, and is in training mode; its parameters are on the rank's device. Run it on each micro-batch once, one at a time: the graph of one micro-batch is freed before the next enters the model (a loss that you keep keeps its graph, so detach it). Some parameters may be frozen (`requires_grad=False`) and stay frozen; some may be tied. Every other parameter gets a gradient from every micro-batch.
# 2. `loader` is a `DataLoader` that yields micro-batches `(x, y)` on the CPU; `loader.sampler` is a `DistributedSampler`. Set its epoch to `epoch`: a resumed run does not begin at 0. All ranks get the same number of micro-batches, with the same numbers of rows; the last micro-batch of an epoch may be smaller.
# 3. Each group of `accumulate` micro-batches makes one update. Micro-batches left over at the end form a smaller group with its own update.
# 4. The loss is the cross-entropy of `model(x)` and `y`. Each update equals the update of one process on the **joint** batch: all rows of the group, on all ranks, have the same weight.
# 5. Gradients are averaged between ranks **once per update**, not once per micro-batch, and nothing else that large is sent. After the call, DDP still synchronizes in every backward pass, as it did before.
# 6. Gradients of earlier steps must not leak into an update, and before the first step `.grad` may be None. The optimizer holds the trained parameters and no frozen ones, in one group or several.
# 7. `train_epoch` returns the mean loss over all rows that **all** ranks saw in this call, as a Python float that is the same on every rank. Each row contributes the loss that it had when the model saw it.
#
# On a GPU, `.item()` in the loop would make Python wait in every micro-batch. Add up losses on the device and read the sum once at the end.


# %% name="epoch" answer=true
def train_epoch(model, loader, optimizer, accumulate, epoch):
    ### BEGIN SOLUTION
    loader.sampler.set_epoch(epoch)
    trained = [p for p in model.parameters() if p.requires_grad]
    here = trained[0].device
    seen = torch.zeros(2, dtype=torch.float64, device=here)  # sum of losses, rows
    rows = 0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader, start=1):
        last = i % accumulate == 0 or i == len(loader)
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x.to(here)), y.to(here), reduction="sum")
            loss.backward()
        rows += len(x)
        seen[0] += loss.detach()  # no .item(): it would wait for the GPU in every micro-batch
        seen[1] += len(x)
        if last:
            for p in trained:
                p.grad /= rows  # DDP has divided by the number of ranks
            optimizer.step()
            optimizer.zero_grad()
            rows = 0
    dist.all_reduce(seen)
    return (seen[0] / seen[1]).item()
    ### END SOLUTION


# %% name="epoch_check" points=5
check("x3.epoch", train_epoch)

# %% name="epoch_hint"
hint("x3.epoch")

# %% [markdown] name="evaluate_task"
# ## Part 2 · Evaluation (2 points)
#
# **Contract.** `evaluate` is called on every rank and returns the loss and the accuracy over the whole data set.
#
# 1. `model` is wrapped in `DistributedDataParallel`. It may contain dropout and BatchNorm, and a BatchNorm may be frozen: in evaluation mode while the model is in training mode. `dataset[i]` is `(x, y)` without a batch dimension, on the CPU.
# 2. Each row counts **once**, whatever the number of rows, which need not be divisible by the number of ranks and may be smaller than it.
# 3. The ranks share the work. No rank reads more than its share of the rows (rounded up), reads a row twice, or runs more than its share through the model. The model sees at most `batch_size` rows at a time.
# 4. It runs in evaluation mode, without a graph and without autocast. Afterwards PyTorch records graphs as before, and the model has not changed: neither its parameters (which are the same tensors), gradients and buffers, nor the mode of any layer.
# 5. It returns `{"loss": ..., "accuracy": ...}` and nothing else: the mean cross-entropy and the share of correct answers, as Python floats that are the same on every rank.


# %% name="evaluate" answer=true
def evaluate(model, dataset, batch_size):
    ### BEGIN SOLUTION
    inner = model.module  # DDP's own forward pass broadcasts BatchNorm's buffers, and ranks may have fewer batches
    here = next(inner.parameters()).device
    modes = {layer: layer.training for layer in inner.modules()}  # a frozen BatchNorm stays in evaluation mode
    inner.eval()
    totals = torch.zeros(3, dtype=torch.float64, device=here)  # sum of losses, right answers, rows
    mine = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    with torch.no_grad():
        for x, y in DataLoader(mine, batch_size=batch_size):
            logits, y = inner(x.to(here)), y.to(here)
            totals[0] += F.cross_entropy(logits, y, reduction="sum")
            totals[1] += (logits.argmax(1) == y).sum()
            totals[2] += len(y)
    for layer, mode in modes.items():
        layer.training = mode
    dist.all_reduce(totals)
    return {"loss": (totals[0] / totals[2]).item(), "accuracy": (totals[1] / totals[2]).item()}
    ### END SOLUTION


# %% name="evaluate_check" points=2
check("x3.evaluate", evaluate)

# %% name="evaluate_hint"
hint("x3.evaluate")

# %% [markdown] name="worker_task"
# ## Part 3 · The worker (3 points)
#
# **Contract.** `worker(job)` is the whole program of one rank. It also runs under `torchrun`: the environment identifies the rank (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`).
#
# 1. It opens the default process group over gloo or, if `rank_device()` is a GPU, over NCCL. For NCCL, make the GPU the current device before you open the group, and pass it as `device_id`. The worker closes the group before it returns. (The check tests this on every machine: it runs your worker, up to the start of training, in a PyTorch that appears to have two GPUs.)
# 2. `job.make_model()` returns a model on the CPU, with **different random weights on every rank**. All ranks must train the same one: rank 0's. It is trained on `rank_device()`.
# 3. It trains on `job.train` for `job.epochs` epochs: for epoch 0, 1, ... it calls `job.train_epoch(ddp, loader, optimizer, job.accumulate, epoch)`, where `ddp` is the wrapped model. The loader yields micro-batches of `job.micro_batch` rows (without loader processes); in each epoch each row goes to one rank, in an order shuffled with `job.seed`. (The number of rows is divisible by the number of ranks.)
# 4. `job.make_optimizer(parameters)` returns the optimizer. Pass it the trained parameters only; the frozen ones stay frozen.
# 5. After each epoch every rank calls `job.evaluate(ddp, job.test, job.micro_batch)`. (In this notebook, `job.train_epoch` and `job.evaluate` are your functions. The check uses simple ones of its own, so that a mistake above costs you nothing here.)
# 6. After the last epoch, rank 0 saves the trained model's `state_dict` with `torch.save` to the path `job.checkpoint`, so that it loads into `job.make_model()`. No other rank saves anything. (`LOCAL_RANK` is 0 once on each machine; `RANK` is 0 once in the job.) When `worker` returns, **on any rank**, the file is complete. (`job.checkpoint` may name a different file on each rank, so do not wait for the file: use a collective.)
# 7. It returns `(model, history)`: the trained model itself, unwrapped and not a copy, and a list with one dictionary for each epoch: `{"train_loss": ..., "loss": ..., "accuracy": ...}`.


# %% name="worker" answer=true
def worker(job):
    ### BEGIN SOLUTION
    here = rank_device()
    if here.type == "cuda":
        torch.cuda.set_device(here)
        dist.init_process_group("nccl", device_id=here)
    else:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(job.make_model().to(here))  # sends rank 0's weights to all
    sampler = DistributedSampler(job.train, shuffle=True, seed=job.seed)
    loader = DataLoader(job.train, batch_size=job.micro_batch, sampler=sampler)
    optimizer = job.make_optimizer([p for p in model.parameters() if p.requires_grad])
    history = []
    for epoch in range(job.epochs):
        train_loss = job.train_epoch(model, loader, optimizer, job.accumulate, epoch)
        history.append({"train_loss": train_loss, **job.evaluate(model, job.test, job.micro_batch)})
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), job.checkpoint)
    dist.barrier()
    dist.destroy_process_group()
    return model.module, history
    ### END SOLUTION


# %% name="worker_check" points=3
check("x3.worker", worker)

# %% name="worker_hint"
hint("x3.worker")

# %% [markdown] name="run_text"
# ## Run your worker
#
# Your worker trains a small CNN on the digits, on two ranks, with an effective batch of 2 ranks × 2 micro-batches × 32 rows. (Because of BatchNorm the result differs a little from that of one process.) Only `train_epoch` is timed, from the second epoch on: starting processes, evaluating and saving would otherwise dominate. DDP sends rank 0's BatchNorm statistics at the start of a forward pass if the pass before it recorded a graph outside `no_sync`. With accumulation that is the first micro-batch of each group. So after the last step the ranks' statistics differ. Each rank then evaluates its share with its own statistics, and the checkpoint contains rank 0's. If that matters, broadcast the buffers before you evaluate.

# %% name="run"
data = digits()
job = SimpleNamespace(
    make_model=lambda: SmallCNN(16),
    make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    train=TensorDataset(data.train_x[:1344], data.train_y[:1344]),
    test=TensorDataset(data.test_x, data.test_y),
    epochs=3,
    micro_batch=32,
    accumulate=2,
    seed=0,
    train_epoch=train_epoch,
    evaluate=evaluate,
)


# %% name="timing"
def seconds_of(epoch, device):
    """Run an epoch; return its result and its seconds, from an idle device to an idle device."""
    synchronize(device)
    start = time.perf_counter()
    result = epoch()
    synchronize(device)
    return result, time.perf_counter() - start


def timed(job):
    """Return the worker's history and weights, and the seconds of each training epoch but the first."""
    torch.manual_seed(0)  # the same weights in each run
    torch.set_num_threads(1)  # one thread per rank, as if each had one processor
    seconds = []

    def clocked(*arguments):
        dist.barrier()
        loss, took = seconds_of(lambda: train_epoch(*arguments), rank_device())
        seconds.append(took)
        return loss

    model, history = worker(SimpleNamespace(**vars(job) | {"train_epoch": clocked}))
    weights, buffers = (
        torch.cat([t.detach().flatten().double().cpu() for t in tensors])
        for tensors in (model.parameters(), filter(torch.is_floating_point, model.buffers()))
    )
    return history, weights, seconds[1:], buffers


# %% name="two_ranks"
try:
    with tempfile.TemporaryDirectory() as folder:
        job.checkpoint = str(Path(folder) / "digits.pt")
        two = run_ranks(timed, 2, job, device=pair, process_group=False).results
        saved = len(torch.load(job.checkpoint))
    for epoch, numbers in enumerate(two[0][0]):
        print(f"epoch {epoch}: " + ", ".join(f"{name} {value:.3f}" for name, value in numbers.items()))
    print(f"parameters bit-identical: {torch.equal(two[0][1], two[1][1])}; {saved} tensors in the checkpoint")
    apart = (two[0][3] - two[1][3]).norm() / two[0][3].norm()
    print(f"BatchNorm's running statistics differ by {apart:.1%} between the ranks")
except NotImplementedError:
    print("The run appears when all three parts are done.")
except RuntimeError as error:
    print("The run appears when all three parts are done." if "NotImplementedError" in str(error) else error)

# %% [markdown] name="table_text"
# ## Your table: throughput
#
# Here is the same job on one rank and on two, and with `DataParallel` if there are two GPUs, all timed in the same way and with the same number of updates. (On a CPU `DataParallel` just calls the model: see [[data_parallel]].)


# %% name="table"
def old_epoch(model, loader, optimizer):
    """Train an epoch of micro-batches for all GPUs together, with as many updates as DDP makes on two ranks."""
    for i, (x, y) in enumerate(loader, start=1):
        (F.cross_entropy(model(x.cuda()), y.cuda()) / job.accumulate).backward()
        if i % job.accumulate == 0 or i == len(loader):
            optimizer.step()
            optimizer.zero_grad()


try:
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        job.checkpoint = str(Path(folder) / "digits.pt")
        for ranks in (1, 2):
            same = SimpleNamespace(**vars(job) | {"accumulate": 2 * job.accumulate // ranks})  # rows per update
            runs = [run_ranks(timed, ranks, same, device=pair, process_group=False, measure=False) for _ in range(3)]
            seconds[f"DDP, {ranks} rank{'s' if ranks > 1 else ''}"] = [s for run in runs for s in run.results[0][2]]
    if pair.type == "cuda":
        old = nn.DataParallel(SmallCNN(16).cuda())
        optimizer = job.make_optimizer(old.parameters())
        loader = DataLoader(job.train, batch_size=2 * job.micro_batch, shuffle=True)
        times = [seconds_of(lambda: old_epoch(old, loader, optimizer), pair)[1] for _ in range(7)]
        seconds["DataParallel, 2 GPUs"] = times[1:]
    rows = {name: len(job.train) / statistics.median(times) for name, times in seconds.items()}
    for name, speed in rows.items():
        print(f"{name:22} {speed:>8,.0f} rows per second, {speed / rows['DDP, 1 rank']:.2f} times one rank")
except RuntimeError as error:  # NotImplementedError is one, too
    print("The table appears when all three parts are done." if "NotImplementedError" in repr(error) else error)

# %% [markdown] name="broken_text"
# ## Other people's programs (no points)
#
# Six programs, A to F, train a small classifier on two ranks with an effective batch of 2 ranks × 4 micro-batches × 32 rows. One is correct. Each of the others has one wrong line. All six finish, and in all six the loss falls. These are the symptoms:
#
# - **loss**: the mean over the first and over the last of three epochs, on rank 0;
# - **replicas apart**: the relative distance between the two ranks' weights, after the first and the last epoch;
# - **rows of 512 on rank 0**: the number of different rows that rank 0 saw in three epochs;
# - **all-reduces per update**: the number of all-reduces that rank 0 took part in (all gradients fit in one bucket);
# - **first update**: how far the first update moved the weights, divided by how far one process moves the same weights on the same rows.

# %% name="broken"
for number, words in DIAGNOSES.items():
    print(f"{number}: {words}")
print()
show_table(symptoms_table(observe()))

# %% [markdown] name="diagnose_text"
# Which statement describes which program? Write a number from 1 to 6 for each letter. Each number occurs once.

# %% name="diagnose"
my_diagnoses = {"A": None, "B": None, "C": None, "D": None, "E": None, "F": None}
### BEGIN GUESS
my_diagnoses = {"A": 4, "B": 5, "C": 1, "D": 6, "E": 2, "F": 3}
### END GUESS

# %% name="diagnosed"
compare_diagnoses(my_diagnoses)

# %% [markdown] name="diagnosed_text"
# The losses show almost nothing: five of the six fall by about the same amount, and the program whose loss falls fastest is wrong. Whenever you change a distributed program, compare replicas, rows and the first update, and count messages.

# %% [markdown] name="submit"
# ## Submit
#
# Save this notebook under its current name. Your instructor collects it as `YOUR_NAME/11b_x3_ddp.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# Grading uses only your three answer cells and runs the same ten checks with different random numbers. Changes elsewhere in the notebook have no effect.
