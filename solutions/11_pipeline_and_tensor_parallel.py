# %% [markdown] name="title"
# # 11 · Pipeline and tensor parallel
#
# **A model that does not fit one GPU can be cut in two ways: between its layers, where the art is to keep all stages busy, or through its matrices, where the art is to send the right sums at the
# right places, also on the way back.**
#
# | | |
# |---|---|
# | After this you can | predict and measure the bubble of a pipeline; write GPipe and 1F1B and say what 1F1B saves, in bytes; split a linear layer by columns or rows with right gradients; count what tensor parallelism sends |
# | Time | 100 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the second half uses NCCL |
# | Before this | labs 00, 01 and 10 |
# | Syllabus | T19, T20 |

# %% name="setup" setup=true
import time
import warnings

from helpers import (
    COLOURS,
    Claims,
    Collectives,
    MemoryMeter,
    Prediction,
    check,
    count_parameters,
    device_name,
    explore,
    human_bytes,
    pick_device,
    rank_device,
    run_ranks,
    show,
)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

claims = Claims()
device = pick_device()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="naive_text"
# ## 1 · Stages
#
# A bakery with four rooms: mixing, rising, baking, packing. With a single tray, three rooms stand idle at any time. With many small trays, all are at work, except at the beginning and at the end.
#
# Cut a model of eight blocks into four **stages** of two blocks; each rank keeps one stage, so a quarter of parameters, gradients and optimizer state. Activations travel from stage to stage, and their
# gradients travel back.
#
# A *schedule* says what a rank does, in which order: `("F", 3)` is the forward pass of micro-batch 3, `("B", 3)` its backward pass. Stages count from 0. One engine runs any schedule. (It runs on the CPU and over gloo everywhere: over NCCL two neighbours that each wait to
# send first would block each other, so PyTorch's own pipelines post such messages in pairs.)

# %% name="engine"
WIDTH, ROWS, BLOCKS = 64, 64, 8


class TakesTime(torch.autograd.Function):
    """Waits `seconds` in the forward pass, and twice as long in the backward pass."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)  # a Function may not return its input itself

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Block(nn.Module):
    """x + MLP(x), which takes at least `seconds`."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        return TakesTime.apply(x + self.mlp(x), self.seconds)


def make_stage(rank, stages, seconds=0.0):
    """The blocks of one stage, with the weights that they have in the whole model."""
    torch.manual_seed(0)  # all blocks are made so that weights can be compared; a real program makes its own stage only
    blocks = [Block(seconds) for _ in range(BLOCKS)]
    each = BLOCKS // stages
    return nn.Sequential(*blocks[rank * each : (rank + 1) * each])


def batch():
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def run_schedule(stage, schedule, x, y):
    """One training step of this rank's stage on the micro-batches x and y.

    Returns its loss (last stage) and a diary: (what, which micro-batch, start, end).
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    inputs, outputs, diary, sending, total = {}, {}, [], [], 0.0
    for what, i in schedule:
        if what == "F":
            inputs[i] = x[i] if rank == 0 else torch.empty_like(x[i])
            if rank > 0:
                dist.recv(inputs[i], rank - 1)
                inputs[i].requires_grad_()
            start = time.perf_counter()
            outputs[i] = stage(inputs[i])
            if rank == last:
                outputs[i] = F.mse_loss(outputs[i], y[i]) / len(y)  # lab 04: means of equal parts
                total += outputs[i].item()
            diary.append(("F", i, start, time.perf_counter()))
            if rank < last:
                sending.append(dist.isend(outputs[i].detach(), rank + 1))
        else:
            gradient = None
            if rank < last:
                gradient = torch.empty_like(outputs[i])
                dist.recv(gradient, rank + 1)
            start = time.perf_counter()
            outputs.pop(i).backward(gradient)  # micro-batch i is let go here
            arrived = inputs.pop(i)  # its gradient is what the stage before waits for
            diary.append(("B", i, start, time.perf_counter()))
            if rank > 0:
                sending.append(dist.isend(arrived.grad, rank - 1))
    for message in sending:  # isend does not wait: the stage went on computing
        message.wait()
    return total, diary


def naive(rank, stages, m):
    return [("F", 0), ("B", 0)]


# %% [markdown] name="naive_guess_text"
# The first test is the usual one: the same numbers. Then the time. Four ranks on a laptop fight for its cores, which would hide what we want to see; so for the
# clock each block *waits*: 160 ms for the whole batch in its forward pass, twice that in its backward pass, and a micro-batch its share of it. The real arithmetic on top is tiny. The messages are real.
#
# **Predict.** One batch, four stages, one after the other. What share of the time is a rank idle?

# %% name="guess_naive"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 75  # one of four works at any time
### END GUESS
naive_guess = Prediction("Idle with 4 stages and one batch", my_guess, "%")


# %% name="naive"
SECONDS = 0.16  # what a block waits for the whole batch, forward


def pipeline(make_schedule, micro_batches, seconds=0.0):
    rank, stages = dist.get_rank(), dist.get_world_size()
    stage = make_stage(rank, stages, seconds / micro_batches)
    x, y = (t.chunk(micro_batches) for t in batch())
    dist.barrier()
    loss, diary = run_schedule(stage, make_schedule(rank, stages, micro_batches), x, y)
    return loss, diary, [p.grad.flatten() for p in stage.parameters()]


def duration(diaries):
    """Seconds from the first start of any rank to the last end."""
    times = [t for diary in diaries for _, _, *when in diary for t in when]
    return max(times) - min(times)


def idle(diaries):
    """Percent of the step in which ranks compute nothing, on average."""
    busy = sum(end - start for diary in diaries for _, _, start, end in diary)
    return 100 * (1 - busy / duration(diaries) / len(diaries))


def draw(diaries, title):
    figure = Figure(figsize=(7, 0.9 + 0.4 * len(diaries)), layout="constrained")
    axes = figure.add_subplot()
    begin = min(start for diary in diaries for _, _, start, _ in diary)
    for rank, diary in enumerate(diaries):
        for kind, colour in zip("FB", COLOURS, strict=False):
            bars = [(1e3 * (start - begin), 1e3 * (end - start)) for what, _, start, end in diary if what == kind]
            axes.broken_barh(bars, (rank - 0.4, 0.8), facecolor=colour, edgecolor="white")
        if len(diary) <= 20:  # else there is no room for the number of the micro-batch
            for _, i, start, end in diary:
                middle = 1e3 * ((start + end) / 2 - begin)
                axes.text(middle, rank, i, ha="center", va="center", color="white", fontsize=8)
    axes.set_yticks(range(len(diaries)), [f"stage {rank}" for rank in range(len(diaries))])
    axes.invert_yaxis()
    axes.set(title=f"{title}: idle {idle(diaries):.1f} % (blue forward, orange backward)", xlabel="milliseconds")
    return figure


whole = nn.Sequential(*make_stage(0, 1))
x, y = batch()
reference_loss = F.mse_loss(whole(x), y)
reference_loss.backward()
reference = torch.cat([p.grad.flatten() for p in whole.parameters()])


def off(ranks):
    return ((torch.cat([g for _, _, grads in ranks for g in grads]) - reference).norm() / reference.norm()).item()


ranks = run_ranks(pipeline, 4, naive, 1).results
print(f"loss {ranks[-1][0]:.6f}, in one process {reference_loss.item():.6f}; gradients differ by {off(ranks):.1e}")
naive_run = [diary for _, diary, _ in run_ranks(pipeline, 4, naive, 1, SECONDS, measure=False).results]
naive_guess.reveal(idle(naive_run))
show(
    draw(naive_run, "One batch"), "Four stages; one bar after the other, down the stairs forward and up again backward."
)

# %% [markdown] name="gpipe_text"
# ## 2 · GPipe: many small batches
#
# Cut the batch into M micro-batches. All forward passes first, then all backward passes; gradients add up (lab 04). The stages still wait at the start and at the end: the **bubble**.
#
# **Predict.** Draw it on paper: S = 4 stages, M = 8 micro-batches, all stages equally fast. What share of the time is a rank idle?

# %% name="guess_gpipe"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / 11
### END GUESS
gpipe_guess = Prediction("Idle with GPipe, 4 stages, 8 micro-batches", my_guess, "%")


# %% name="gpipe"
def gpipe(rank, stages, m):
    return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]


ranks = run_ranks(pipeline, 4, gpipe, 8).results
print(f"gradients differ from one process by {off(ranks):.1e}")
gpipe_run = [diary for _, diary, _ in run_ranks(pipeline, 4, gpipe, 8, SECONDS, measure=False).results]
gpipe_guess.reveal(idle(gpipe_run))
show(
    draw(gpipe_run, "GPipe, 8 micro-batches"),
    "Blue bars fill each row after a short wait; then orange bars, from the last stage up.",
)
print(f"the step takes {duration(naive_run) / duration(gpipe_run):.1f} times less than with one batch")
print(f"{'micro-batches':>13} {'(S-1)/(M+S-1)':>14} {'measured':>9}")
for m in (1, 2, 4, 8, 16):
    run = [diary for _, diary, _ in run_ranks(pipeline, 4, gpipe, m, SECONDS, measure=False).results]
    print(f"{m:>13} {3 / (m + 3):>14.0%} {idle(run):>8.0f}%")
    if m in (1, 8):
        claims.record(
            "T19",
            f"bubble of (S-1)/(M+S-1) = {300 / (m + 3):.0f} %",
            f"4 stages, {m} micro-batch(es)",
            idle(run),
            "%",
            300 / (m + 3) - 7,
            300 / (m + 3) + 7,
        )

# %% [markdown] name="gpipe_explained"
# The rule: call a forward and a backward pass of one micro-batch a *turn*. A stage works for M turns and waits for S − 1 (the later stages wait at the start, the earlier ones in the middle), so the bubble is **(S − 1) / (M + S − 1)** of the
# time, if all stages are equally fast. (Some papers divide by the working time instead and write (S − 1) / M.) What is left over the formula is the messages and ranks that wake up late: each turn takes as long as its slowest stage.
#
# More micro-batches, smaller bubble. But micro-batches that are too small no longer fill a GPU, and each stage must keep the activations of
# **all** of them until the backward passes begin: cutting the batch in smaller pieces saves nothing. That is a memory problem, and we came here because of memory.
#
# ## 3 · 1F1B: one forward, one backward
#
# Begin the backward pass of a micro-batch as soon as its forward pass is through. Before the first gradient reaches stage r, a micro-batch must have gone down the S − r − 1 stages after it and come back; so stage r runs S − r − 1 forward passes to
# warm up, and then one forward, one backward, in turns. Will the bubble be smaller?


# %% name="onefoneb"
def one_f_one_b(rank, stages, m):
    warm_up = min(stages - rank - 1, m)
    schedule = [("F", i) for i in range(warm_up)]
    for i in range(m - warm_up):
        schedule += [("F", warm_up + i), ("B", i)]
    return schedule + [("B", i) for i in range(m - warm_up, m)]


for rank in range(4):
    print(f"stage {rank}:", " ".join(f"{what}{i}" for what, i in one_f_one_b(rank, 4, 8)))
ranks = run_ranks(pipeline, 4, one_f_one_b, 8).results
print(f"gradients differ from one process by {off(ranks):.1e}")
onefoneb_run = [diary for _, diary, _ in run_ranks(pipeline, 4, one_f_one_b, 8, SECONDS, measure=False).results]
print(f"idle: GPipe {idle(gpipe_run):.1f} %, 1F1B {idle(onefoneb_run):.1f} %")
show(draw(onefoneb_run, "1F1B, 8 micro-batches"), "After a short warm-up blue and orange bars alternate in each row.")
claims.record(
    "T19",
    "1F1B has the bubble of GPipe",
    "4 stages, 8 micro-batches",
    idle(onefoneb_run) - idle(gpipe_run),
    "points more",
    -7,
    7,
)

# %% [markdown] name="inflight_text"
# The bubble is the same. What is different is how many micro-batches are under way.
#
# **Predict.** S = 4, M = 8. How many times as many bytes of activations does GPipe hold on stage 0, compared with 1F1B?

# %% name="guess_inflight"
my_guess = None  # times
### BEGIN GUESS
my_guess = 8 / 4  # all 8, against S - r = 4
### END GUESS
inflight_guess = Prediction("Activations on stage 0, GPipe / 1F1B", my_guess, "times")


# %% name="inflight"
def activations(make_schedule, m):
    rank, stages = dist.get_rank(), dist.get_world_size()
    stage = make_stage(rank, stages)
    x, y = (t.chunk(m) for t in batch())  # made before the meter starts: it counts what the pipeline holds
    with MemoryMeter(stage) as meter:
        run_schedule(stage, make_schedule(rank, stages, m), x, y)
    return meter.largest["activations"]


held = {
    name: run_ranks(activations, 4, schedule, 8, measure=False).results
    for name, schedule in {"GPipe": gpipe, "1F1B": one_f_one_b}.items()
}
figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.add_subplot()
for shift, (name, nbytes), colour in zip((-0.2, 0.2), held.items(), (COLOURS[4], COLOURS[0]), strict=True):
    axes.bar([stage + shift for stage in range(4)], [n / 2**20 for n in nbytes], 0.4, color=colour, label=name)
axes.set(title="Activations held at once, by stage", xlabel="stage", ylabel="MiB", xticks=range(4))
figure.legend(loc="outside right upper", frameon=False)
show(
    figure,
    "GPipe: nearly the same tall bar on each stage. 1F1B: half of it on stage 0, falling to an eighth on the last.",
)
inflight_guess.reveal(held["GPipe"][0] / held["1F1B"][0])
for stage in range(4):
    ratio = held["GPipe"][stage] / held["1F1B"][stage]
    print(
        f"stage {stage}: GPipe {human_bytes(held['GPipe'][stage])}, 1F1B {human_bytes(held['1F1B'][stage])}: {ratio:.1f} times"
    )
claims.record(
    "T19",
    "1F1B holds S - r micro-batches, GPipe all M",
    "stage 0 of 4, 8 micro-batches",
    held["GPipe"][0] / held["1F1B"][0],
    "times",
    1.8,
    2.2,
)
claims.record(
    "T19",
    "1F1B holds S - r micro-batches, GPipe all M",
    "stage 3 of 4, 8 micro-batches",
    held["GPipe"][3] / held["1F1B"][3],
    "times",
    7,
    8.5,
)

# %% [markdown] name="inflight_explained"
# Stage r holds S − r micro-batches with 1F1B, and all M with GPipe. So for a batch of a given size, more micro-batches make 1F1B's activations *smaller* and leave GPipe's as they are; and with micro-batches of a given size, GPipe's grow with their number and 1F1B's do not:
# M can be large and the bubble small.
#
# The first stage holds most: it must remember S micro-batches until the first gradient has come all the way back. Checkpointing (lab 05) of
# each stage is the usual companion: then what is remembered is inputs only. *Interleaved* schedules give each rank several thin stages in place of a thick one, which makes the bubble smaller for more messages.
#
# ### PyTorch's own
#
# `torch.distributed.pipelining` has the engine and these schedules (and others that split the backward pass to fill the bubble). A stage is any module; the schedule does the rest.


# %% name="pipelining"
def with_torch(kind, m):
    rank, stages, here = dist.get_rank(), dist.get_world_size(), rank_device()
    module = make_stage(rank, stages).to(here)
    stage = PipelineStage(module, rank, stages, here)
    schedule = kind(stage, n_microbatches=m, loss_fn=F.mse_loss)
    x, y = (t.to(here) for t in batch())
    losses = []
    with MemoryMeter(module) as meter:
        if rank == 0:
            schedule.step(x)
        elif rank == stages - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
    loss = sum(one.item() for one in losses) / m
    return loss, meter.largest["activations"], [p.grad.flatten().cpu() for p in module.parameters()]


for kind in (ScheduleGPipe, Schedule1F1B):
    ranks = run_ranks(with_torch, 4, kind, 8, measure=False).results
    print(
        f"{kind.__name__:13} loss {ranks[-1][0]:.6f}, gradients differ by {off(ranks):.1e}, stage 0 holds {human_bytes(ranks[0][1])}"
    )

# %% [markdown] name="schedules_text"
# ### Play: schedules
#
# A model, not a measurement: a forward pass takes one tick, a backward pass two, messages nothing. With eight stages, find the number of micro-batches from which the bubble is below 10 %; then see what GPipe holds by then.


# %% name="schedules"
def ideal(schedule, stages, m):
    """When each action runs if it starts as soon as its rank is free and what it needs has arrived."""
    todo = [schedule(rank, stages, m) for rank in range(stages)]
    done, free, diaries = {}, [0] * stages, [[] for _ in range(stages)]
    while any(todo):
        for rank in range(stages):
            if not todo[rank]:
                continue
            what, i = todo[rank][0]
            needs = (what, i, rank - 1 if what == "F" else rank + 1)
            if (what == "F" and rank == 0) or (what == "B" and rank == stages - 1):
                needs = ("F", i, rank) if what == "B" else None
            if needs is None or needs in done:
                start = max(free[rank], done.get(needs, 0))
                end = start + (1 if what == "F" else 2)
                done[what, i, rank] = free[rank] = end
                diaries[rank].append((what, i, start / 1e3, end / 1e3))
                todo[rank].pop(0)
    return diaries


def play(schedule, stages, micro_batches):
    make = {"GPipe": gpipe, "1F1B": one_f_one_b}[schedule]
    held = micro_batches if schedule == "GPipe" else min(stages, micro_batches)
    figure = draw(ideal(make, stages, micro_batches), f"{schedule}, stage 0 holds {held}")
    figure.axes[0].set_xlabel("ticks")
    return figure


explore(
    play,
    "An ideal schedule: a bar for each forward and backward pass of each stage.",
    schedule=("1F1B", ("GPipe", "1F1B")),
    stages=(4, range(2, 13)),
    micro_batches=(8, range(1, 81)),
)

# %% [markdown] name="tensor_text"
# ## 4 · Through the matrices
#
# A pipeline cuts *between* layers. **Tensor parallelism** cuts each matrix: all ranks work on every layer at the same time. There are two ways to share out `y = x Wᵀ`.
#
# - **By columns** (of Wᵀ): each rank computes some of the outputs. It needs all of x, and has a part of y.
# - **By rows**: each rank has some of the inputs and the weights for them, and computes a *partial sum* of every output. The sums have to be added: an all-reduce.
#
# Put one after the other, and they fit: the column layer's outputs are just the parts that the row layer wants. An MLP needs **one** all-reduce, at the end, and GELU in between works on parts.
#
# In the forward pass that is all. In the backward pass it is not. Here are five ways to leave such an MLP, from the obvious `dist.all_reduce` on. All have the right output. The table says how far they are from one process, for the
# output and three gradients: of what comes **before** the MLP, of the **column** weights and of the **row** weights. 0 is right, 1 may mean twice as long, *none* is no gradient at all. FP64, so that nothing hides in rounding.


# %% name="tensor_naive"
B, T, C, HEADS = 2, 32, 64, 4  # from here on: batch, tokens, channels (width), attention heads


def make_mlp():
    torch.manual_seed(0)
    return nn.Linear(C, 4 * C, bias=False).double(), nn.Linear(4 * C, C, bias=False).double()


def mlp_input():
    torch.manual_seed(1)
    return torch.randn(B, T, C, dtype=torch.float64)


class AllReduceForward(torch.autograd.Function):
    """Sum over ranks in the forward pass; the gradient goes through unchanged. Megatron-LM's g."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class AllReduceBackward(torch.autograd.Function):
    """Unchanged in the forward pass; the gradient is summed over ranks. Megatron-LM's f."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class AllReduceBoth(torch.autograd.Function):
    """Sum over ranks in the forward pass, and again in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return AllReduceForward.forward(ctx, x)

    @staticmethod
    def backward(ctx, gradient):
        return AllReduceBackward.backward(ctx, gradient)


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return sum(parts)  # the sum again, from the parts


def plainly(x):
    dist.all_reduce(x)
    return x


def tensor_mlp(enter, leave):
    """Return how far the output and three gradients are from those of one process, and what PyTorch warned of."""
    rank, n, here = dist.get_rank(), dist.get_world_size(), rank_device()
    up, down = make_mlp()
    x = mlp_input().requires_grad_()
    before = nn.Parameter(torch.ones(C, dtype=torch.float64))  # stands for all layers below
    right = down(F.gelu(up(x * before)))
    right.square().mean().backward()
    want = [right.detach(), before.grad, up.weight.grad.chunk(n)[rank], down.weight.grad.chunk(n, dim=1)[rank]]

    mine = nn.Parameter(torch.ones(C, dtype=torch.float64, device=here))
    up_part = nn.Parameter(up.weight.detach().chunk(n)[rank].to(here))  # (4C / n, C)
    down_part = nn.Parameter(down.weight.detach().chunk(n, dim=1)[rank].to(here))  # (C, 4C / n)
    h = F.gelu(F.linear(enter(mlp_input().to(here) * mine), up_part))
    y = leave(F.linear(h, down_part))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if y.requires_grad:  # else backward() would raise; with a residual path around the MLP it would not
            y.square().mean().backward()
    got = [y.detach(), mine.grad, up_part.grad, down_part.grad]
    far = [None if a is None else ((a.cpu() - b).norm() / b.norm()).item() for a, b in zip(got, want, strict=True)]
    return far, [str(one.message) for one in warned]


def same(x):
    return x


ways = {
    "dist.all_reduce and nothing else": (same, plainly),
    "sum gathered by all_gather": (same, gathered),
    "all-reduce both ways": (AllReduceBackward.apply, AllReduceBoth.apply),
    "nothing on the way back": (same, AllReduceForward.apply),
    "the right pair": (AllReduceBackward.apply, AllReduceForward.apply),
}
print(f"{'relative distance, rank 0 | rank 1':34}{'output':>10}{'before':>20}{'column W':>20}{'row W':>20}")
for name, (enter, leave) in ways.items():
    (distances, warned), (others, _) = run_ranks(tensor_mlp, 2, enter, leave).results
    texts = [["none" if d is None else f"{d:.2g}" for d in ranks] for ranks in zip(distances, others, strict=True)]
    print(f"{name:34}{texts[0][0]:>10}" + "".join(f"{' | '.join(pair):>20}" for pair in texts[1:]))
    if warned:
        print(f"    a warning: {warned[0].partition('. ')[0][:150]}")
    if name == "the right pair":
        claims.record(
            "T20",
            "column + row with the right pair equal one process",
            "MLP, 2 ranks, FP64",
            max(distances),
            "relative",
            0,
            1e-12,
        )

# %% [markdown] name="tensor_explained"
# Five programs with the same right output, and only one whose gradients are right.
#
# - `dist.all_reduce` changes its tensor in place, behind autograd's back: the gradient passes as if nothing had happened. By luck that is right where the ranks meet, and it is wrong before the MLP. PyTorch warns that it will not stay so.
# - `dist.all_gather` fills buffers that know nothing of where they came from: **no gradient at all**. Here `backward()` would raise. In a block with a residual path around it nothing raises, and the MLP never learns.
# - Summing in both directions: every rank computes the same loss from the same sum, so the gradient of y is whole on each rank already. Summing again makes it N times too large: a relative distance of 1 is **twice** the gradient. AdamW divides such a factor out (lab 04), so in this MLP alone nobody
#   would notice. In a deep model right and wrong paths mix, and no optimizer mends that.
# - Nothing on the way back: weights inside the MLP get the right gradient, and everything **before** it gets that of this rank's part only. The two ranks get *different* ones, so layers that should be equal on both drift apart.
# - The right pair, *f* and *g* of Megatron-LM: where the ranks' paths **part**, do nothing forward and sum backward; where they **meet**, sum forward and do nothing backward. Each is the mirror of the other.
#
# ## 5 · A transformer block
#
# Attention parts just as well: each rank takes some of the **heads**. q, k and v are split by columns, the output projection by rows.
#
# **Predict.** A block: attention and MLP, where q, k and v share one input. How many all-reduces does a rank need for one forward and one backward pass, and how many bytes is each, with a batch of 2, 32 tokens and 64 channels in FP32?

# %% name="guess_block"
my_guess = None  # all-reduces
### BEGIN GUESS
my_guess = 4  # where the paths meet, in each half, forward; where they part, in each half, backward
### END GUESS
calls_guess = Prediction("All-reduces of a block, forward and backward", my_guess, "")
my_guess = None  # bytes of each
### BEGIN GUESS
my_guess = 2 * 32 * 64 * 4  # the activations, whole: nothing of it is split
### END GUESS
bytes_guess = Prediction("Bytes of each", my_guess, "bytes")


# %% name="block"
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(C, C, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, _ = x.shape
        # as many heads as there are outputs for: all, or this rank's  (B, T, heads * D) -> (B, heads, T, D)
        q, k, v = (layer(x).view(B, T, -1, C // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C, bias=False), nn.GELU(), nn.Linear(4 * C, C, bias=False))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


def make_block():
    torch.manual_seed(0)
    return TransformerBlock()


class Column(nn.Module):
    def __init__(self, linear, enters):
        super().__init__()
        part = linear.weight.detach().chunk(dist.get_world_size())[dist.get_rank()]
        self.weight, self.enters = nn.Parameter(part.clone()), enters

    def forward(self, x):
        return F.linear(self.enters(x), self.weight)


class Row(nn.Module):
    def __init__(self, linear):
        super().__init__()
        part = linear.weight.detach().chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        self.weight = nn.Parameter(part.clone())

    def forward(self, x):
        return AllReduceForward.apply(F.linear(x, self.weight))


def split_by_hand(block):
    attention, mlp = block.attention, block.mlp
    attention.q, attention.k, attention.v = (Column(layer, same) for layer in (attention.q, attention.k, attention.v))
    attention.out = Row(attention.out)
    mlp[0], mlp[2] = Column(mlp[0], same), Row(mlp[2])
    # the paths part before q, k and v: once for the three of them
    attention.register_forward_pre_hook(lambda _, args: AllReduceBackward.apply(*args))
    mlp.register_forward_pre_hook(lambda _, args: AllReduceBackward.apply(*args))
    return block


def split_by_torch(block):
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    plan = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"attention.out": RowwiseParallel(), "mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()}
    return parallelize_module(block, mesh, plan)


def split_by_torch_at_the_input(block):
    """The same plan, but the paths part at the input of the attention, once for q, k and v."""
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    part = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    return split_by_torch(parallelize_module(block, mesh, {"attention": part}))


def block_step(split):
    here = rank_device()
    block = make_block().to(here)
    block = split(block) if split else block
    x = mlp_input().float().to(here).requires_grad_()
    with Collectives() as forward:
        y = block(x)
    with Collectives() as backward:
        y.square().mean().backward()
    with MemoryMeter(block) as meter:
        block(x).square().mean().backward()
    held = {tenant: meter.largest[tenant] for tenant in ("parameters", "gradients", "activations")}
    return y.detach().cpu(), x.grad.cpu(), forward, backward, held


y_right, x_right, _, _, held_alone = run_ranks(block_step, 1, None, measure=False).results[0]
for name, split in {
    "by hand": split_by_hand,
    "parallelize_module, q, k and v one by one": split_by_torch,
    "parallelize_module, at their input": split_by_torch_at_the_input,
}.items():
    y, gradient, forward, backward, held = run_ranks(block_step, 2, split, measure=False).results[0]
    print(
        f"{name}: output off by {(y - y_right).norm() / y_right.norm():.1e}, gradient of x by {(gradient - x_right).norm() / x_right.norm():.1e}"
    )
    print(f"  forward: {forward}\n  backward: {backward}")
    calls = forward.count("all_reduce") + backward.count("all_reduce")
    claims.record("T20", "two all-reduces a block forward, two backward", name, calls, "calls", 4, 4)
    if name == "by hand":
        calls_guess.reveal(calls)
        bytes_guess.reveal(forward.calls[0].nbytes)

# %% [markdown] name="block_explained"
# The results agree to rounding with one process. Compare the number of messages in the backward pass. By hand, x is marked once, where the paths part. A plan that names q, k and v one by one makes three all-reduces of one gradient each, in place of one of the three added up:
# the same gradient, and three times the traffic; the row "did not hold" below is that. Saying in the plan that the paths part at the attention's input mends it.
#
# ### What it saves
#
# **Predict.** Two ranks hold half of each matrix. To what share do the **activations** of the block fall, on each rank?

# %% name="guess_activations"
my_guess = None  # a share, such as 0.5
### BEGIN GUESS
my_guess = 0.6  # heads and the wide layer are halved; inputs, norms and the residual stream are not
### END GUESS
activations_guess = Prediction("Activations of a block on each of 2 ranks", my_guess, "of one process")

# %% name="tensor_memory"
_, _, _, _, held = run_ranks(block_step, 2, split_by_hand, measure=False).results[0]
for tenant, nbytes in held_alone.items():
    print(
        f"{tenant:12} {human_bytes(nbytes):>11} -> {human_bytes(held[tenant]):>11} on each of 2 ranks ({held[tenant] / nbytes:.2f})"
    )
    claims.record(
        "T20",
        f"two ranks halve the {tenant}",
        "block, 2 ranks",
        held[tenant] / held_alone[tenant],
        "x one process",
        0.48,
        0.55,
    )
activations_guess.reveal(held["activations"] / held_alone["activations"])

# %% [markdown] name="tensor_memory_explained"
# Matrices are halved; the two norms are on both ranks. Activations are not halved: what lies between the parting and the meeting of paths is split (heads, the wide layer of the MLP), and the inputs, norms and residual stream are whole on every rank.
#
# **Sequence parallelism** splits those as well: outside of attention and MLP each rank keeps a part of the *sequence*. An all-reduce is a reduce-scatter followed by an all-gather; put norm, dropout and residual between the two: the same bytes travel, and those are no longer kept by all. (The gathered input of each column layer is either kept whole or gathered again in the backward pass; Megatron-LM does the second, hidden behind arithmetic. And the norms' weights then see a part of the tokens each: their gradients must be summed.)
#
# ### What it sends
#
# Tensor parallelism sends activations, several times a layer, and in the forward pass nobody can compute meanwhile. Data parallelism sends gradients once a step. An all-reduce over N ranks sends 2 (N − 1) / N of its message (lab 10), here taken as 2. Compare, for a model of 32 layers of width 4,096 (the shape of Llama-2-7B) and a
# micro-batch of one sequence of 4,096 tokens, in BF16:

# %% name="volume"
message = B * T * C * 4
print(f"our block: {forward.calls[0].nbytes:,} bytes counted in each message, {message:,} predicted (B x T x C x 4)")
claims.record(
    "T20", "each message is B x T x C numbers", "block, FP32", forward.calls[0].nbytes / message, "x predicted", 1, 1
)
layers, width, tokens = 32, 4096, 4096
tensor_parallel = 2 * (4 * layers) * tokens * width * 2  # 4 all-reduces a layer, 2 bytes a number
data_parallel = 2 * count_parameters("llama-2-7b") * 2
print(f"tensor parallel: {tensor_parallel / 1e9:.1f} GB a rank and step, in {4 * layers} messages that block")
print(f"data parallel:   {data_parallel / 1e9:.1f} GB a rank and step, hidden behind the backward pass")
print(f"equal at {data_parallel / tensor_parallel:.1f} sequences a step")
print(f"pipeline:        {2 * tokens * width * 2 / 1e9:.2f} GB between two stages")

# %% [markdown] name="volume_explained"
# Fewer bytes than data parallel for one sequence, more for many; and everybody waits for most of them. So: tensor parallel **inside** a machine, where GPUs are joined by fast links; pipeline **between** machines, for it sends least; data parallel on top.

# %% [markdown] name="row_text"
# ## 6 · Your turn: a row-parallel linear layer
#
# **Contract.** `row_parallel(x, weight, bias)` is called on every rank and returns `x_whole @ weight_whole.T + bias`, the whole of it, on every rank.
#
# - `x` (..., in / N) is this rank's part of the input features; `weight` (out, in / N) the weights for them; ranks hold them in the order of their numbers. `bias` (out,) is whole, and the same on every rank.
# - Every rank will compute the same loss from the result and call `backward()`. Then the gradients of `x`, `weight` and `bias` must be those of one process: for `x` and `weight` the rank's part, for `bias` the whole.
# - One all-reduce of the output in the forward pass; nothing is sent in the backward pass. `x`, `weight` and `bias` must not be changed.
# - Write the autograd function yourself, without `torch.distributed.nn` and DTensor. A bare `dist.all_reduce` of a tensor that needs a gradient is what PyTorch warned of above; it does not count.


# %% name="row" answer=true reveal=true
def row_parallel(x, weight, bias):
    ### BEGIN SOLUTION
    class SumOverRanks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            total = partial.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, gradient):
            return gradient  # whole on every rank already

    return SumOverRanks.apply(F.linear(x, weight)) + bias  # the bias once, after the sum
    ### END SOLUTION


# %% name="row_check"
check("lab11.row", row_parallel)

# %% [markdown] name="summary_text"
# ## 7 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Pipeline: a rank keeps a stage. The bubble is (S − 1) / (M + S − 1). 1F1B has the same bubble and holds S − r micro-batches in place of M.
# - Tensor: a rank keeps a part of every matrix. Columns then rows: one all-reduce for the pair. Where paths part, sum the gradients; where they meet, sum the outputs.
# - Autograd does not know collectives: some cut the gradient off, some are ignored. Give each its gradient; a wrong one need not show in the loss.
#
# **What to reach for when.** One layer does not fit, or its activations do not: tensor parallel, inside a machine. Many layers, slow links: pipeline with 1F1B and checkpointing. Before either: sharding (lab 12), which needs no change of the model.
#
# **Sources.** Huang et al. 2019, *GPipe*; Narayanan et al. 2019 and 2021, *PipeDream* and *Efficient Large-Scale Language Model Training on GPU Clusters* (1F1B with a flush at the end of each step, as here; the PipeDream of 2019 has none and keeps old weights instead); Shoeybi et al. 2019, *Megatron-LM*; Korthikanti et al. 2022, *Reducing Activation
# Recomputation in Large Transformer Models* (sequence parallelism); PyTorch documentation, `torch.distributed.pipelining` and `torch.distributed.tensor.parallel`.
