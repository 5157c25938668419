# %% [markdown] name="title"
# # Pipeline parallel
#
# **A model that does not fit on one GPU can be cut between its layers. The art is to keep all stages busy.**
#
# | | |
# |---|---|
# | After this you can | predict and measure the bubble of a pipeline; read GPipe and 1F1B as schedules and say what 1F1B saves, in bytes; run both with `torch.distributed.pipelining` |
# | Time | 50 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#data_parallel]] and [[#sharding]] |
# | Syllabus | T19 |

# %% name="setup" setup=true
import time

from helpers import (
    COLOURS,
    Claims,
    MemoryMeter,
    Prediction,
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks talk over gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="naive_text"
# ## 1 · Stages
#
# A bakery has four rooms: mixing, rising, baking, packing. With a single tray, three rooms are idle at any time. With many small trays, all are at work, except at the beginning and at the end.
#
# Cut a model of eight blocks into four **stages** of two blocks. Each rank keeps one stage, and so a quarter of the parameters, gradients and optimizer state. Activations travel from stage to stage, and their
# gradients travel back.
#
# A *schedule* says what a rank does, and in which order: `("F", 3)` is the forward pass of micro-batch 3, `("B", 3)` its backward pass. Stages count from 0. The engine below runs any schedule. (It always uses the CPU and gloo. Over NCCL two neighbours that each wait to
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
    torch.manual_seed(0)  # we make all blocks, to compare weights; a real program makes only its own stage
    blocks = [Block(seconds) for _ in range(BLOCKS)]
    each = BLOCKS // stages
    return nn.Sequential(*blocks[rank * each : (rank + 1) * each])


def batch():
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)


def run_schedule(stage, schedule, x, y):
    """Run one training step of this rank's stage on the micro-batches x and y.

    Return its loss (last stage) and a diary: (what, which micro-batch, start, end).
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
                outputs[i] = F.mse_loss(outputs[i], y[i]) / len(y)  # gradient accumulation: means of equal parts
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
            outputs.pop(i).backward(gradient)  # frees micro-batch i
            arrived = inputs.pop(i)  # the stage before waits for its gradient
            diary.append(("B", i, start, time.perf_counter()))
            if rank > 0:
                sending.append(dist.isend(arrived.grad, rank - 1))
    for message in sending:  # isend does not wait: the stage went on computing
        message.wait()
    return total, diary


def naive(rank, stages, m):
    return [("F", 0), ("B", 0)]


# %% [markdown] name="naive_guess_text"
# The first test is the usual one: the same numbers. Then comes the time. Four ranks on a laptop fight for its cores, which would hide what we want to see. So for the
# clock each block *waits*: 160 ms for the whole batch in its forward pass, twice that in its backward pass, and for a micro-batch its share of that. The real arithmetic on top is tiny. The messages are real.
#
# **Predict.** One batch goes through four stages, one after the other. What share of the time is a rank idle?

# %% name="guess_naive"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 75  # one of four works at any time
### END GUESS
naive_guess = Prediction("Idle with 4 stages and one batch", my_guess, "%")


# %% name="naive"
SECONDS = 0.16  # how long a block waits for the whole batch, forward


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
    """Percentage of the step in which a rank computes nothing, on average."""
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


ranks = run_ranks(pipeline, 4, naive, 1, device="cpu").results
print(f"loss {ranks[-1][0]:.6f}, in one process {reference_loss.item():.6f}; gradients differ by {off(ranks):.1e}")
naive_run = [diary for _, diary, _ in run_ranks(pipeline, 4, naive, 1, SECONDS, measure=False, device="cpu").results]
naive_guess.reveal(idle(naive_run))
show(draw(naive_run, "One batch"), "Four stages; one bar after another, down the stairs forward and up again backward.")

# %% [markdown] name="gpipe_text"
# ## 2 · GPipe: many small batches
#
# Cut the batch into M micro-batches. Run all forward passes first, then all backward passes; gradients add up ([[gradient_accumulation]]). The stages still wait at the start and at the end: that is the **bubble**.
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


ranks = run_ranks(pipeline, 4, gpipe, 8, device="cpu").results
print(f"gradients differ from one process by {off(ranks):.1e}")
gpipe_run = [diary for _, diary, _ in run_ranks(pipeline, 4, gpipe, 8, SECONDS, measure=False, device="cpu").results]
gpipe_guess.reveal(idle(gpipe_run))
show(
    draw(gpipe_run, "GPipe, 8 micro-batches"),
    "Blue bars fill each row after a short wait; then orange bars, from the last stage up.",
)
print(f"the step is {duration(naive_run) / duration(gpipe_run):.1f} times as fast as with one batch")
print(f"{'micro-batches':>13} {'(S-1)/(M+S-1)':>14} {'measured':>9}")
for m in (1, 2, 4, 8, 16):
    run = [diary for _, diary, _ in run_ranks(pipeline, 4, gpipe, m, SECONDS, measure=False, device="cpu").results]
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
# Here is the rule. Call a forward and a backward pass of one micro-batch a *turn*. A stage works for M turns and waits for S − 1 (the later stages wait at the start, the earlier ones in the middle). So the bubble is **(S − 1) / (M + S − 1)** of the
# time, if all stages are equally fast. (Some papers divide by the working time instead and write (S − 1) / M.) Whatever exceeds the formula is due to messages and to ranks that wake up late: each turn takes as long as its slowest stage.
#
# More micro-batches make a smaller bubble. But micro-batches that are too small no longer fill a GPU. And each stage must keep the activations of
# **all** of them until the backward passes begin: cutting the batch into smaller pieces saves nothing. That is a memory problem, and we came here because of memory.
#
# ## 3 · 1F1B: one forward, one backward
#
# Begin the backward pass of a micro-batch as soon as its forward pass is done. Before the first gradient reaches stage r, a micro-batch must have gone down the S − r − 1 stages after it and come back. So stage r runs S − r − 1 forward passes to
# warm up, and then alternates: one forward, one backward. Will the bubble be smaller?


# %% name="onefoneb"
def one_f_one_b(rank, stages, m):
    warm_up = min(stages - rank - 1, m)
    schedule = [("F", i) for i in range(warm_up)]
    for i in range(m - warm_up):
        schedule += [("F", warm_up + i), ("B", i)]
    return schedule + [("B", i) for i in range(m - warm_up, m)]


for rank in range(4):
    print(f"stage {rank}:", " ".join(f"{what}{i}" for what, i in one_f_one_b(rank, 4, 8)))
ranks = run_ranks(pipeline, 4, one_f_one_b, 8, device="cpu").results
print(f"gradients differ from one process by {off(ranks):.1e}")
onefoneb_run = [
    diary for _, diary, _ in run_ranks(pipeline, 4, one_f_one_b, 8, SECONDS, measure=False, device="cpu").results
]
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
# The bubble is the same. What differs is how many micro-batches are in flight.
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
    name: run_ranks(activations, 4, schedule, 8, measure=False, device="cpu").results
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
# Stage r holds S − r micro-batches with 1F1B, and all M with GPipe. So for a batch of a given size, more micro-batches make 1F1B's activations *smaller* and leave GPipe's as they are. With micro-batches of a given size, GPipe's grow with their number and 1F1B's do not:
# M can be large and the bubble small.
#
# The first stage holds most: it must keep S micro-batches until the first gradient has come all the way back. The usual companion is to checkpoint each stage ([[activation_checkpointing]]):
# then it keeps only inputs. *Interleaved* schedules give each rank several thin stages instead of a thick one, which makes the bubble smaller at the price of more messages.
#
# ### PyTorch's own
#
# `torch.distributed.pipelining` has the engine and these schedules (and others that split the backward pass to fill the bubble). A stage is any module; the schedule does the rest.


# %% name="pipelining"
def with_torch(kind, m):
    rank, stages, here = dist.get_rank(), dist.get_world_size(), rank_device()
    module = make_stage(rank, stages).to(here)
    stage = PipelineStage(module, rank, stages, here)
    if torch.__version__ < "2.10":  # its stages greet each other with messages of two sizes, which gloo refuses
        stage._get_init_p2p_neighbors_ops = list
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
# This is a model, not a measurement: a forward pass takes one tick, a backward pass two, messages nothing. With eight stages, how many micro-batches bring the bubble below 10 %? And how many does GPipe hold by then?


# %% name="schedules"
def ideal(schedule, stages, m):
    """When each action runs, if it starts as soon as its rank is free and its input has arrived."""
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

# %% [markdown] name="summary_text"
# ## 4 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A rank keeps a stage: some of the layers, with their gradients and optimizer state.
# - The bubble is (S − 1) / (M + S − 1) for S stages and M micro-batches. 1F1B has the same bubble as GPipe, but stage r holds S − r micro-batches instead of M.
#
# **What to reach for when.** Many layers and slow links between machines: a pipeline with 1F1B and checkpointing. Before that: sharding ([[sharding]]), which needs no change to the model, and, inside a machine, tensor parallel ([[tensor_parallel]]).
#
# **Sources.** Huang et al. 2019, *GPipe*; Narayanan et al. 2019 and 2021, *PipeDream* and *Efficient Large-Scale Language Model Training on GPU Clusters* (1F1B with a flush at the end of each step, as here; the PipeDream of 2019 has none and keeps old weights instead); PyTorch documentation, `torch.distributed.pipelining`.
