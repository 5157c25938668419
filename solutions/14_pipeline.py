# %% [markdown] name="title"
# # Pipeline parallel
#
# **A model that does not fit on one GPU can be cut between its layers. Which rank does what, and when, is a list of actions: you write it.**
#
# | | |
# |---|---|
# | After this you can | write GPipe, 1F1B, an interleaved and a zero-bubble schedule as lists of actions; predict their bubble and their memory, and measure both; run PyTorch's own; cut a model whose head is heavy; say what sharded stages send |
# | Time | 100 to 140 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#data_parallel]] and [[#sharding]] |
# | Syllabus | T19 |

# %% name="setup" setup=true
import dataclasses
import inspect

from helpers import (
    Claims,
    Collectives,
    Costs,
    Engine,
    LinearInTwoParts,
    MemoryMeter,
    Pipeline,
    Prediction,
    Stuck,
    activations_held,
    check,
    clock_pipelines,
    count_flops,
    device_name,
    distance_from_one_process,
    explore,
    hint,
    human_bytes,
    in_a_row,
    in_a_vee,
    pick_device,
    rank_device,
    run_ranks,
    show,
    text_table,
    torch_order,
    toy_batch,
    toy_stages,
    weights_later,
)

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks talk over gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="stages_text"
# ## 1 · Stages and actions
#
# A bakery has four rooms: mixing, rising, baking, packing. Bread goes from room to room.
#
# Cut a model of eight blocks into four **stages** of two blocks. Each rank keeps one stage, and so a quarter of the parameters, gradients and optimizer state. Activations travel from stage to stage, and their
# gradients travel back.
#
# What a rank does, and in which order, is a list of **actions**: `("F", 3)` is the forward pass of micro-batch 3 in this rank's stage, `("B", 3)` its backward pass. An **engine** runs the list. It is given; here are its two most important actions.

# %% name="engine"
print(inspect.getsource(Engine._forward))
print(inspect.getsource(Engine._backward))

# %% [markdown] name="engine_text"
# - A rank *receives* where it needs something, and waits there. It *sends* without waiting and goes on with its list.
# - `_kept` is what a micro-batch occupies between its forward and its backward pass: the graph with its activations.
# - The loss of a micro-batch is divided by their number: this is gradient accumulation ([[gradient_accumulation]]), spread over ranks.
# - `_written_down` keeps the diary: which action, from when until when.
#
# The simplest list takes the whole batch as one micro-batch: one forward pass, one backward pass. First the usual test: are these the gradients of one process?

# %% name="one_batch"
one_batch = Pipeline.of(lambda rank, ranks, m: [("F", 0), ("B", 0)], 4, 1)
for rank, actions in enumerate(one_batch.schedules):
    print(f"rank {rank}: {actions}")
print(f"gradients differ from those of one process by {distance_from_one_process(one_batch):.1e}")

# %% [markdown] name="one_guess_text"
# Then the time. Four ranks on a laptop fight for its cores, which would hide what we want to see. So with the clock on, each action *waits* until its time is up: a **tick** for a forward pass (a few hundredths of a second), two ticks for a backward pass. The real arithmetic is done
# within that time; the messages are real.
#
# **Predict.** One batch goes through the four stages. What share of the step is a rank idle, on average?

# %% name="one_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 75  # one of four works at any time
### END GUESS
one_guess = Prediction("Idle with 4 ranks and one batch", my_guess, "%", difference=True)

# %% name="one_clocked"
run = clock_pipelines({"one batch": one_batch})["one batch"]
one_guess.reveal(run.bubble, run.how)
print(run)
show(
    run.figure("One batch"),
    "Four ranks; one bar after another, down the stairs forward and up again backward.",
)

# %% [markdown] name="gpipe_text"
# The picture is drawn from the engine's diary, in ticks. With many small trays instead of one large one, all rooms of the bakery can be at work.
#
# ## 2 · GPipe: many micro-batches
#
# Cut the batch into m micro-batches. All forward passes first, then all backward passes; gradients add up. Even so, ranks have to wait now and then: that is the **bubble**.
#
# **Predict.** Draw it on paper: 4 ranks, 8 micro-batches, all stages equally fast. What share of the step is a rank idle?

# %% name="gpipe_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / 11
### END GUESS
gpipe_guess = Prediction("Idle with GPipe, 4 ranks, 8 micro-batches", my_guess, "%", difference=True)

# %% [markdown] name="gpipe_task"
# ### Your turn: GPipe
#
# **Contract.** `gpipe(rank, ranks, m)` returns this rank's list of actions, for any number of ranks and micro-batches.
#
# - Each rank runs `("F", i)` and `("B", i)` of each micro-batch i, 0 ≤ i < m, once, and nothing else.
# - No backward pass before the last forward pass.
# - All ranks take the micro-batches in one order, and none waits longer than it must: the step takes m + `ranks` − 1 forward and backward passes. (NCCL messages carry no tag. A rank that needs micro-batch 1 takes whatever its neighbor sends next.)


# %% name="gpipe" answer=true reveal=true
def gpipe(rank, ranks, m):
    ### BEGIN SOLUTION
    return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]
    ### END SOLUTION


# %% name="gpipe_check"
gpipe = check("pipeline.gpipe", gpipe)

# %% name="gpipe_hint"
hint("pipeline.gpipe")

# %% name="gpipe_clocked"
lines = {m: Pipeline.of(gpipe, 4, m) for m in (1, 2, 4, 8, 16)}
runs = clock_pipelines({f"GPipe, {m} micro-batch(es)": line for m, line in lines.items()})
sweep = dict(zip(lines, runs.values(), strict=True))
gpipe_guess.reveal(sweep[8].bubble, sweep[8].how)
print(sweep[8])
picture = sweep[8].figure("GPipe, 8 micro-batches")
show(
    picture,
    "Blue bars fill each row after a short wait; then orange bars, which begin on the last rank and reach rank 0 last.",
)
table = [("micro-batches", "(R - 1) / (m + R - 1)", "idle, measured")]
table += [(str(m), f"{3 / (m + 3):.1%}", "too busy" if run.busy else f"{run.idle:.1f}%") for m, run in sweep.items()]
print(text_table(table))


def note(said, subject, run, ideal):
    """Record what a run measured, if the machine was quiet enough for it to mean anything."""
    if run.busy:
        claims.not_measured("T19", said, f"{subject}; this machine was too busy")
    else:
        claims.record("T19", said, subject, run.idle, "% idle", ideal - 5, ideal + 10)


for m in (1, 8):
    note(
        f"bubble of (R - 1) / (m + R - 1) = {300 / (m + 3):.0f} %",
        f"4 ranks, {m} micro-batch(es)",
        sweep[m],
        300 / (m + 3),
    )

# %% [markdown] name="gpipe_explained"
# Call a forward and a backward pass of one micro-batch a *turn*. A rank works for m turns and waits for R − 1, where R is the number of ranks: the later ones wait at the start, the earlier ones in the middle. So the bubble is **(R − 1) / (m + R − 1)** of the
# step, if all stages are equally fast. (Some papers divide by the working time instead and write (R − 1) / m.) What exceeds it is due to messages and to ranks that wake up late.
#
# More micro-batches make a smaller bubble. But all of them are in flight when the first backward pass begins, and each keeps its activations. That is a memory problem, and we came here because of memory.
#
# ## 3 · 1F1B: one forward, one backward
#
# Begin the backward pass of a micro-batch as soon as you can, and release its activations. At first, a rank has to run a few forward passes, to keep itself and the ranks after it at work until the first gradient comes back. From then on it alternates: one forward, one backward.
#
# **Predict.** Backward passes start much earlier than with GPipe. How many *points* is the bubble of 1F1B below that of GPipe (4 ranks, 8 micro-batches)?

# %% name="same_guess"
my_guess = None  # points: idle of GPipe in percent - idle of 1F1B in percent
### BEGIN GUESS
my_guess = 0  # the first gradient comes back no earlier than before
### END GUESS
same_guess = Prediction("Idle, GPipe - 1F1B", my_guess, "points", difference=True)

# %% [markdown] name="held_guess_text"
# **Predict.** Micro-batches stay as they are, 8 rows, but there are more of them: first 4, then 16. By what factor do the activations grow that rank 0 holds at once? First with GPipe, then with 1F1B.

# %% name="held_guess"
my_gpipe_guess = None  # bytes with 16 micro-batches / bytes with 4
my_1f1b_guess = None
### BEGIN GUESS
my_gpipe_guess = 4  # all of them
my_1f1b_guess = 1  # ranks - r, whatever m is
### END GUESS
gpipe_held = Prediction("GPipe, rank 0: 16 micro-batches / 4", my_gpipe_guess, "times")
onefoneb_held = Prediction("1F1B, rank 0: 16 micro-batches / 4", my_1f1b_guess, "times")

# %% [markdown] name="one_f_one_b_task"
# ### Your turn: 1F1B
#
# **Contract.** `one_f_one_b(rank, ranks, m)` returns this rank's list of actions, for any number of ranks and micro-batches: m may be smaller than `ranks`.
#
# - Each rank runs F and B of each micro-batch once, and nothing else.
# - The lists fit together: no rank waits for something that never comes, and each takes messages in the order in which its neighbour sends them.
# - The step takes no longer than with GPipe.
# - Rank r holds at most `ranks` − r micro-batches at once (from F to B). So the last rank holds one.


# %% name="one_f_one_b" answer=true reveal=true
def one_f_one_b(rank, ranks, m):
    ### BEGIN SOLUTION
    warm_up = min(ranks - rank - 1, m)
    schedule = [("F", i) for i in range(warm_up)]
    for i in range(m - warm_up):
        schedule += [("F", warm_up + i), ("B", i)]
    return schedule + [("B", i) for i in range(m - warm_up, m)]
    ### END SOLUTION


# %% name="one_f_one_b_check"
one_f_one_b = check("pipeline.one_f_one_b", one_f_one_b)

# %% name="one_f_one_b_hint"
hint("pipeline.one_f_one_b")

# %% [markdown] name="stuck_text"
# Before anything runs on ranks, the checks **simulate** the lists: an action starts as soon as its rank is free and what it needs has arrived. So can you. Here is a control that must fail, an impatient 1F1B without a warm-up:

# %% name="stuck"
impatient = Pipeline.of(lambda rank, ranks, m: [(kind, i) for i in range(m) for kind in "FB"], 4, 8)
print(f"impatient: idle {impatient.simulated().idle:.0f} %, in flight {impatient.in_flight}")
mixed = Pipeline(
    [impatient.schedules[0][:4], gpipe(1, 2, 2)], in_a_row(2), 2
)  # rank 0 follows one plan, rank 1 another
try:
    mixed.simulated()
except Stuck as error:
    print(f"mixed: {error}")

# %% [markdown] name="stuck_explained"
# The impatient one is right and useless: one micro-batch is under way at a time. In the mixed one, rank 0 is impatient and rank 1 follows GPipe, and each waits for the other. On real ranks you would see nothing at all until a timeout.
#
# Yours fits together. So how much smaller is its bubble?

# %% name="same_clocked"
pair = {"GPipe": lines[8], "1F1B": Pipeline.of(one_f_one_b, 4, 8)}
runs = clock_pipelines(pair)
if any(run.busy for run in runs.values()):  # a simulation is compared with a simulation
    same_guess.reveal(runs["GPipe"].ideal.idle - runs["1F1B"].ideal.idle, "simulated")
else:
    same_guess.reveal(runs["GPipe"].bubble - runs["1F1B"].bubble)
for rank, actions in enumerate(pair["1F1B"].schedules):
    print(f"rank {rank}:", " ".join(f"{kind}{i}" for kind, i in actions))
picture = runs["1F1B"].figure("1F1B, 8 micro-batches")
show(picture, "After a short warm-up blue and orange bars alternate in each row.")
note("1F1B has the bubble of GPipe", "4 ranks, 8 micro-batches", runs["1F1B"], 300 / 11)

# %% [markdown] name="held_text"
# The bubble is the same. (A few points of difference either way are messages.) So why does everybody use 1F1B? You saw that a small bubble needs many micro-batches. Here is what they cost: a step with 4, 8 and 16 micro-batches of 8 rows each.

# %% name="held"
methods = {"GPipe": gpipe, "1F1B": one_f_one_b}
held = activations_held(
    {f"{name}, m = {m}": Pipeline.of(make, 4, m) for name, make in methods.items() for m in (4, 8, 16)}
)
gpipe_growth = held["GPipe, m = 16"][0] / held["GPipe, m = 4"][0]
onefoneb_growth = held["1F1B, m = 16"][0] / held["1F1B, m = 4"][0]
gpipe_held.reveal(gpipe_growth)
onefoneb_held.reveal(onefoneb_growth)
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in held.items()]
print(text_table(table))
claims.record("T19", "GPipe holds all m micro-batches", "rank 0 of 4, m = 16 / 4", gpipe_growth, "times", 3.8, 4.2)
claims.record("T19", "1F1B holds R - r, whatever m", "rank 0 of 4, m = 16 / 4", onefoneb_growth, "times", 0.95, 1.05)
last = held["GPipe, m = 8"][3] / held["1F1B, m = 8"][3]
claims.record("T19", "GPipe holds m / (R - r) times as much", "rank 3 of 4, m = 8", last, "times", 7, 8.5)

# %% [markdown] name="held_explained"
# That is the whole point of 1F1B: memory no longer depends on the number of micro-batches, so m can be as large as a small bubble requires.
#
# Rank 0 holds most: a micro-batch that it sends off must go down all ranks and come back. The usual companion is to checkpoint each stage ([[activation_checkpointing]]): then it keeps only its inputs.
#
# ## 4 · Interleaved: thinner stages
#
# At the start, the last rank waits until the first micro-batch has gone through all stages before it. If stages were half as thick, it would wait half as long. But there are only R ranks. So give each rank *several* thin stages, its **chunks**: with 4 ranks and 2 chunks, rank 0 keeps stages 0 and 4, rank 1 stages 1 and 5,
# and so on. A micro-batch goes round twice.
#
# **Predict.** 4 ranks, 8 micro-batches, 2 chunks a rank, each with half of the work. What share of the step is a rank idle?

# %% name="interleaved_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / (2 * 8 + 3)
### END GUESS
interleaved_guess = Prediction("Idle with 2 chunks a rank", my_guess, "%", difference=True)

# %% [markdown] name="interleaved_task"
# An action says which chunk it means: `("F", 3, 1)`. In a forward pass, chunk 0 comes first; in a backward pass, the last chunk.
#
# ### Your turn: an interleaved schedule
#
# **Contract.** `interleaved(rank, ranks, m, v)` returns this rank's list for v chunks a rank. m is a multiple of `ranks`, as in Megatron-LM.
#
# - Each rank runs `("F", i, chunk)` and `("B", i, chunk)` once for each micro-batch and chunk, and nothing else.
# - The lists fit together, as before.
# - The step takes v · m + `ranks` − 1 forward and backward passes of a chunk.
# - Rank r holds at most v · `ranks` − r micro-batches at once, each chunk's counted. (With one chunk, that is 1F1B.)
#
# The order that does it: `ranks` micro-batches through chunk 0, the same ones through chunk 1, …, then the next `ranks` micro-batches.


# %% name="interleaved" answer=true reveal=true
def interleaved(rank, ranks, m, v):
    ### BEGIN SOLUTION
    forward = [("F", first + i, chunk) for first in range(0, m, ranks) for chunk in range(v) for i in range(ranks)]
    backward = [("B", i, v - 1 - chunk) for _, i, chunk in forward]
    warm_up = v * ranks - rank - 1
    schedule = forward[:warm_up]
    for pair in zip(forward[warm_up:], backward, strict=False):
        schedule += pair
    return schedule + backward[v * m - warm_up :]
    ### END SOLUTION


# %% name="interleaved_check"
interleaved = check("pipeline.interleaved", interleaved)

# %% name="interleaved_hint"
hint("pipeline.interleaved")

# %% name="interleaved_clocked"
thin = Pipeline.of(interleaved, 4, 8, chunks=2)  # each forward pass is half a tick, each backward pass a tick
run = clock_pipelines({"interleaved": thin}, tick=0.05)["interleaved"]  # a slow clock: thin actions are long enough
interleaved_guess.reveal(run.bubble, run.how)
print(run)
show(run.figure("Interleaved, 2 chunks a rank"), "Dark and pale bars take turns: the two chunks of each rank.")
note("v chunks: bubble of (R - 1) / (v m + R - 1)", "4 ranks, 8 micro-batches, v = 2", run, 300 / 19)
print(f"messages: {run.messages} against {runs['1F1B'].messages} with 1F1B")
bytes_held = {"1F1B": held["1F1B, m = 8"], **activations_held({"interleaved": thin})}
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in bytes_held.items()]
print(text_table(table))

# %% [markdown] name="interleaved_explained"
# The cost is shown below the figure: more messages, and more activations on the later ranks. (Rank 0 holds twice as many micro-batches, each of them half as large.)
#
# So far messages took next to no time. On a slow link they do not. The simulator can tell what that costs: let each message take a quarter of a forward pass (of a whole stage), while everybody goes on working.
#
# **Predict.** With 1F1B, 4 ranks and 16 micro-batches, how many ticks longer is the step than without such messages? Take a forward pass as a tick.

# %% name="message_guess"
my_guess = None  # ticks
### BEGIN GUESS
my_guess = 6 * 0.25  # three messages down, three up
### END GUESS
message_guess = Prediction("1F1B, a message of a quarter of a tick: step longer by", my_guess, "ticks")


# %% name="message"
def slow_link(line):
    """Return the ticks of a step without and with messages of a quarter of a stage's forward pass."""
    costs = dataclasses.replace(line.costs, message=0.25)
    return line.simulated().duration, dataclasses.replace(line, costs=costs).simulated().duration


many = {
    "GPipe": Pipeline.of(gpipe, 4, 16),
    "1F1B": Pipeline.of(one_f_one_b, 4, 16),
    "interleaved": Pipeline.of(interleaved, 4, 16, chunks=2),
}
slow = {name: slow_link(line) for name, line in many.items()}
message_guess.reveal(slow["1F1B"][1] - slow["1F1B"][0], "simulated")
table = [("16 micro-batches", "ticks", "ticks with messages", "longer")]
table += [(name, f"{a:g}", f"{b:g}", f"{b / a - 1:.0%}") for name, (a, b) in slow.items()]
print(text_table(table))

# %% [markdown] name="message_explained"
# GPipe pays for six messages, three down and three up. 1F1B pays in every turn, because each rank always waits for the micro-batch that has just left it: it holds as few as possible, so nothing is in reserve. The interleaved schedule pays most. That is why it is used where links are fast, and why Megatron-LM and PyTorch warm up by R − r − 1
# forward passes more than you did: more memory, but something in reserve. Section 6 has PyTorch's list.
#
# ## 5 · Zero bubble: a backward pass in two parts
#
# A linear layer y = x Wᵀ has two products in its backward pass. With dy, the gradient of its output:
#
# - dx = dy W, the gradient of the **input**. The rank before waits for it.
# - dW = dyᵀ x, the gradient of the **weights**. Nobody waits for it before the optimizer's step.
#
# PyTorch computes both at once because it is simplest. The engine's blocks have a linear layer that can leave the second product for later. Inside of `weights_later()`, its backward pass only notes down x and dy:

# %% name="two_parts"
layer, x = LinearInTwoParts(3, 2), torch.randn(4, 3, requires_grad=True)
y = layer(x)
with weights_later() as backlog:
    y.backward(torch.ones_like(y))
print(f"x has its gradient: {x.grad is not None}; the weights have theirs: {layer.weight.grad is not None}")
for one, noted_x, noted_dy in backlog:
    one.add_weight_gradients(noted_x, noted_dy)
print(f"now the weights have theirs: {layer.weight.grad is not None}")
print(f"it is dyᵀ x: {torch.equal(layer.weight.grad, torch.ones(4, 2).T @ x.detach())}")

# %% [markdown] name="zero_text"
# So there are two new actions: `("I", i)` is the input's half of a backward pass, `("W", i)` the weights' half, which can wait. (These are PyTorch's letters. The paper, Qi et al. 2023, calls them B and W.) Now the bubble can be filled: where a rank would wait, it catches up on weight gradients.
#
# But what waits is *held*: x and dy stay in memory until W. Run all W at the very end, and you are back at GPipe's memory.
#
# **Predict.** 4 ranks, 8 micro-batches, at most as many of them in flight on a rank as there are ranks. What share of the step is a rank idle at best?

# %% name="zero_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / (3 * 8 + 3)
### END GUESS
zero_guess = Prediction("Idle with the backward pass in two parts", my_guess, "%", difference=True)

# %% [markdown] name="zero_task"
# ### Your turn: fill the bubble
#
# **Contract.** `zero_bubble(rank, ranks, m)` returns this rank's list, with m ≥ `ranks`. An F, an I and a W take a tick each.
#
# - Each rank runs F, I and W of each micro-batch once, and nothing else. W of a micro-batch comes after its I.
# - The lists fit together, as before.
# - The step takes 3 · m + `ranks` − 1 ticks.
# - No rank holds more than `ranks` micro-batches at once (from F to W): no more than rank 0 holds with 1F1B.
#
# You may start from `one_f_one_b`: each B becomes an I at once and a W later. How much later, on which rank?


# %% name="zero_bubble" answer=true reveal=true
def zero_bubble(rank, ranks, m):
    ### BEGIN SOLUTION
    schedule = []
    for kind, i in one_f_one_b(rank, ranks, m):
        if kind == "F":
            schedule.append(("F", i))
        else:
            schedule.append(("I", i))
            if i >= rank:  # rank r lets r weight gradients wait
                schedule.append(("W", i - rank))
    return schedule + [("W", i) for i in range(m - rank, m)]
    ### END SOLUTION


# %% name="zero_bubble_check"
zero_bubble = check("pipeline.zero_bubble", zero_bubble)

# %% name="zero_bubble_hint"
hint("pipeline.zero_bubble")

# %% name="zero_clocked"
line = Pipeline.of(zero_bubble, 4, 8)
run = clock_pipelines({"zero bubble": line})["zero bubble"]
zero_guess.reveal(run.bubble, run.how)
print(run)
picture = run.figure("Backward pass in two parts")
show(picture, "Rows of forward, input and weight gradients; green weight gradients fill what was empty at the end.")
note("split backward: bubble of (R - 1) / (3 m + R - 1)", "4 ranks, 8 micro-batches", run, 300 / 27)
bytes_held |= activations_held({"zero bubble": line})
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in bytes_held.items()]
print(text_table(table))

# %% [markdown] name="zero_explained"
# Despite the name, one bubble remains: each rank waits R − 1 ticks before its first input gradient, when there is nothing yet to fill the time with. It costs rank 0 no memory; the later ranks, which held less, now hold more.
#
# In a real model F, I and W do not take the same time, and attention has no W at all. Then the lists are made for the times that were measured.
#
# ## 6 · PyTorch's own
#
# `torch.distributed.pipelining` has an engine and all of these schedules. A stage is any module; the schedule does the rest. First `PipelineStage` with `ScheduleGPipe` and `Schedule1F1B`, on the same model and batch:


# %% name="pipelining"
def on_cpu(work, *args):
    """Run `work` on four ranks where our engine ran, even if there are four GPUs: else two devices are compared."""
    return run_ranks(work, 4, *args, device="cpu", measure=False).results


def torch_stage(module, number, stages, group=None):
    stage = PipelineStage(module, number, stages, rank_device(), group=group)  # the rank's own, not the machine's
    if torch.__version__ < "2.10":  # its stages greet each other with messages of two sizes, which gloo refuses
        stage._get_init_p2p_neighbors_ops = list
    return stage


def with_torch(kind, m, placement):
    """Run a step of PyTorch's schedule; return gradients by stage, bytes held, and the lists of actions if it has some."""
    here, rank, last = rank_device(), dist.get_rank(), max(map(max, placement))
    modules = [module.to(here) for module in toy_stages(last + 1, nn.Linear)]
    mine = nn.ModuleList(modules[number] for number in placement[rank])
    stages = [torch_stage(modules[number], number, last + 1) for number in placement[rank]]
    schedule = kind(stages if len(stages) > 1 else stages[0], n_microbatches=m, loss_fn=F.mse_loss)
    x, y = (torch.cat(parts).to(here) for parts in toy_batch(8 * m, m))
    with MemoryMeter(mine) as meter:
        schedule.step(*([x] if 0 in placement[rank] else []), **({"target": y} if last in placement[rank] else {}))
    gradients = [torch.cat([p.grad.flatten().cpu() for p in module.parameters()]) for module in mine]
    orders = torch_order(schedule, placement) if len(stages) > 1 else None
    return dict(zip(placement[rank], gradients, strict=True)), meter.largest["activations"], orders


def off(results):
    """Return how far PyTorch's gradients, of 8 micro-batches, are from those of one process."""
    by_stage = {number: gradient for gradients, _, _ in results for number, gradient in gradients.items()}
    whole, (x, y) = nn.Sequential(*toy_stages(1)), map(torch.cat, toy_batch(64, 8))
    F.mse_loss(whole(x), y).backward()
    right = torch.cat([p.grad.flatten() for p in whole.parameters()])
    return ((torch.cat([by_stage[n] for n in sorted(by_stage)]) - right).norm() / right.norm()).item()


# %% name="pipelining_run"
for kind, ours in ((ScheduleGPipe, "GPipe"), (Schedule1F1B, "1F1B")):
    results = on_cpu(with_torch, kind, 8, in_a_row(4))
    bytes_0 = f"rank 0 holds {human_bytes(results[0][1])}, with your list {human_bytes(held[f'{ours}, m = 8'][0])}"
    print(f"{kind.__name__:13} gradients differ by {off(results):.1e}, {bytes_0}")

# %% [markdown] name="torch_list_text"
# For schedules with several stages a rank, PyTorch makes lists of actions, as you did. So its lists can run on *our* engine, and in our simulator. First its interleaved schedule beside yours, with 16 micro-batches, and the slow link of section 4:

# %% name="torch_list"
results = on_cpu(with_torch, ScheduleInterleaved1F1B, 16, in_a_row(4, 2))
many["PyTorch's interleaved"] = Pipeline(results[0][2], in_a_row(4, 2), 16, Costs.thin(2))
table = [("16 micro-batches", "in flight", "ticks", "ticks with messages")]
for name, line in list(many.items())[2:]:
    table.append((name, str(line.in_flight), *(f"{ticks:g}" for ticks in slow_link(line))))
print(text_table(table))

# %% [markdown] name="zbv_text"
# The longer warm-up changes nothing while messages are quick, and shields the step where they are slow.
#
# Now `ScheduleZBVZeroBubble`: two thin stages a rank, a split backward pass, and stages placed in a V: with 4 ranks, rank 0 keeps stages 0 and **7**, rank 3 stages 3 and 4. So a micro-batch turns round on the last rank without a message, and rank 0 computes the loss.
#
# PyTorch's engine is not timed here: on a few cores its ranks would fight for them. It gives us its list, and computes gradients. The clock is that of our engine once more, in which an action waits until its time is up. So what you see is how good PyTorch's *list* is if all actions take their ticks: a simulation with real messages, and no measurement of PyTorch's speed.
#
# **Predict.** The same 4 ranks and 8 micro-batches. What share of the step is a rank idle?

# %% name="zbv_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / (2 * 3 * 8 + 3)  # your zero bubble, with chunks half as thick
### END GUESS
zbv_guess = Prediction("Idle with PyTorch's ZBV list, on our clock", my_guess, "%", difference=True)

# %% name="zbv"
results = on_cpu(with_torch, ScheduleZBVZeroBubble, 8, in_a_vee(4))
print(f"on PyTorch's engine, gradients differ by {off(results):.1e}")
zbv = Pipeline(results[0][2], in_a_vee(4), 8, Costs.thin(2))
print(
    f"on ours, gradients differ by {distance_from_one_process(zbv):.1e}; in flight {zbv.in_flight} thin micro-batches"
)
run = clock_pipelines({"ZBV": zbv}, tick=0.05)["ZBV"]
zbv_guess.reveal(run.bubble, run.how)
print(run)
show(
    run.figure("PyTorch's ZBV list"),
    "The rows are nearly full: forward, input and weight gradients of two chunks each.",
)
note("PyTorch's ZBV: bubble of (R - 1) / (6 m + R - 1)", "4 ranks, 8 micro-batches", run, 300 / 51)
for rank, actions in enumerate(zbv.schedules):
    print(f"rank {rank}:", " ".join(map(str, actions)))

# %% [markdown] name="unequal_text"
# ## 7 · Stages that are not alike
#
# So far all stages took the same time. A language model has an embedding at one end, which costs almost no time (but holds as many parameters as several blocks), and a head at the other: a matmul with the whole vocabulary. How heavy is that? Count the FLOPs of one block and of the head, in the sizes of Llama 3.2 1B (16 blocks; the real model ties embedding and head, so that a pipeline would also have to add up the two gradients of that matrix in every step; tensors on `meta` have no data, so this takes no
# time and no memory).

# %% name="head"
T, WIDTH, VOCABULARY = 4096, 2048, 128256
with torch.device("meta"):
    tokens, wide, query = torch.empty(T, WIDTH), torch.empty(T, 8192), torch.empty(1, 32, T, 64)
    attention = [nn.Linear(WIDTH, n, bias=False) for n in (2048, 512, 512, 2048)]  # q, k, v, output
    gate, up, down = nn.Linear(WIDTH, 8192), nn.Linear(WIDTH, 8192), nn.Linear(8192, WIDTH)
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)


def block():
    for layer in (*attention, gate, up):
        layer(tokens)
    F.scaled_dot_product_attention(query, query, query, is_causal=True)
    down(wide)


heavy = count_flops(lambda: head(tokens)) / count_flops(block)
print(f"the head does the work of {heavy:.1f} blocks")

# %% [markdown] name="unequal_guess_text"
# So 16 blocks on 4 ranks, cut 4 | 4 | 4 | 4 + head, as many scripts do. The clock runs in these proportions: a tick is now the forward pass of one block.
#
# **Predict.** 1F1B, 8 micro-batches. What share of the step is a rank idle now?

# %% name="unequal_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 45  # the last rank never waits; the others have half of its work
### END GUESS
unequal_guess = Prediction("Idle with 4 | 4 | 4 | 4 + head", my_guess, "%", difference=True)

# %% name="unequal"
balanced = Pipeline.of(one_f_one_b, 4, 8)
cuts = {"4 | 4 | 4 | 4 + head": (4, 4, 4, 4 + heavy), "5 | 5 | 5 | 1 + head": (5, 5, 5, 1 + heavy)}
cut_lines = {name: dataclasses.replace(balanced, costs=Costs(stages=work)) for name, work in cuts.items()}
runs = clock_pipelines(cut_lines, tick=0.005)  # a block, forward
first, mended = runs.values()
unequal_guess.reveal(first.bubble, first.how)
print(first)
show(first.figure("4 | 4 | 4 | 4 + head"), "Long bars without gaps in the last row; gaps in all other rows.")
show(mended.figure("5 | 5 | 5 | 1 + head"), "Bars of nearly the same length in all rows, as with equal stages.")
for name, run in runs.items():
    print(f"{name}: idle {run.bubble:.0f} %, a step of {run.ideal.duration:.0f} blocks' forward passes at best")
note("the slowest stage sets the pace", "4 | 4 | 4 | 4 + head", first, first.ideal.idle)

# %% [markdown] name="unequal_explained"
# Every turn takes as long as the slowest stage. No schedule can fix this; the model must be cut differently. Here the last rank gives three of its blocks away. Real jobs do that, or put embedding and head in stages of their own, or cut the head across ranks ([[tensor_parallel]]).
#
# Mind the memory when you move blocks: rank 0 already holds most micro-batches.
#
# ## 8 · Sharded stages: who gathers how often?
#
# Large jobs combine methods: stages across machines, and each stage sharded with `fully_shard` over the ranks that share it ([[sharding]]). A sharded stage must gather its parameters before it can compute. In plain data parallelism that is twice a step, once forward and once backward. How often here?
#
# A mesh of 2 × 2 ranks: two stages, and two copies of the pipeline which share out the batch and the shards. Each stage is one unit. `Collectives` counts.
#
# **Predict.** 1F1B with 8 micro-batches, `fully_shard` as it comes. How many all-gathers does a rank take part in, in one step?

# %% name="gathers_guess"
my_guess = None  # all-gathers of a rank in a step
### BEGIN GUESS
my_guess = 2 * 8  # each pass of each micro-batch releases the parameters again
### END GUESS
gathers_guess = Prediction("All-gathers in a step, 8 micro-batches", my_guess, "")


# %% name="gathers"
def sharded(ways, m):
    """Count the collectives of a second step on a 2 x 2 mesh: two stages, each sharded over two ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipe", "data"))
    number, copy = mesh.get_coordinate()
    x, y = (parts[copy::2] for parts in toy_batch(8 * 2 * m, 2 * m))  # every other micro-batch
    counts = {}
    for name, keep in ways.items():
        module = fully_shard(toy_stages(2)[number], mesh=mesh["data"], reshard_after_forward=not keep)
        if "PyTorch" in name:
            stage = torch_stage(module, number, 2, mesh["pipe"].get_group())
            schedule = Schedule1F1B(stage, n_microbatches=m, loss_fn=F.mse_loss)
            step = schedule.step
            arguments = ((torch.cat(x),), {}) if number == 0 else ((), {"target": torch.cat(y)})
        else:
            step = Engine([module], in_a_row(2), peers=[copy, 2 + copy]).step
            arguments = (one_f_one_b(number, 2, m), x, y), {}
        step(*arguments[0], **arguments[1])
        with Collectives() as said:
            step(*arguments[0], **arguments[1])
        counts[name] = said.count("all_gather"), said.count("reduce_scatter")
    return counts


ways = {
    "our engine": False,
    "our engine, kept after forward": True,
    "PyTorch's": False,
    "PyTorch's, kept after forward": True,
}
counts = on_cpu(sharded, ways, 8)[3]
gathers_guess.reveal(counts["our engine"][0])
rows = [(name, *map(str, both)) for name, both in counts.items()]
print(text_table([("1F1B, 8 micro-batches", "all-gathers", "reduce-scatters"), *rows]))

# %% [markdown] name="gathers_explained"
# As it comes, each pass of each micro-batch gathers the stage anew, and each backward pass reduces gradients: traffic grows with the number of micro-batches, of which there are many in a pipeline.
#
# PyTorch's stage knows that it is part of a pipeline. It reduces gradients once a step, and with `reshard_after_forward=False` it also gathers once: parameters and gradients of the stage stay whole during the step, and what remains sharded is the optimizer's state. That is ZeRO-1 inside of a pipeline, the usual choice: a stage is only a part of
# the model, so it may be whole for a while.
#
# ### Play: schedules
#
# This is a simulation: messages take no time. With eight ranks, how many micro-batches bring the bubble below 10 %, with each schedule? And how many does rank 0 hold by then?


# %% name="play"
def play(schedule, ranks, micro_batches):
    if schedule == "interleaved":
        m = -(-micro_batches // ranks) * ranks  # a multiple
        line = Pipeline.of(interleaved, ranks, m, chunks=2)
    else:
        make = {"GPipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}[schedule]
        m = max(ranks, micro_batches) if schedule == "zero bubble" else micro_batches
        line = Pipeline.of(make, ranks, m)
    return line.simulated().figure(f"{schedule}, m = {m}, rank 0 holds {line.in_flight[0]}")


explore(
    play,
    "A simulated schedule: a bar for each action of each rank.",
    schedule=("1F1B", ("GPipe", "1F1B", "interleaved", "zero bubble")),
    ranks=(4, range(2, 13)),
    micro_batches=(8, range(1, 81)),
)

# %% [markdown] name="summary_text"
# ## 9 · What this run measured

# %% name="summary"
print("Simulated, with messages that take no time:")
table = [("4 ranks, 8 micro-batches", "idle", "step, ticks", "micro-batches on rank 0")]
for name, line, thickness in (
    ("one batch", one_batch, 1),
    ("GPipe", lines[8], 1),
    ("1F1B", balanced, 1),
    ("interleaved, 2 chunks", thin, 2),
    ("zero bubble", Pipeline.of(zero_bubble, 4, 8), 1),
    ("PyTorch's ZBV list, 2 chunks", zbv, 2),
):
    ran = line.simulated()
    ticks = ran.duration * (8 if line.micro_batches == 1 else 1)  # the same work, in one piece or in eight
    table.append(
        (name, f"{ran.idle:.1f}%", f"{ticks:g}", f"{line.in_flight[0] / thickness * 8 / line.micro_batches:g}")
    )
print(text_table(table))
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A rank keeps a stage: some of the layers, with their gradients and optimizer state. A schedule is a list of actions for each rank.
# - R ranks, m micro-batches: GPipe and 1F1B have the same bubble, (R − 1) / (m + R − 1). GPipe holds all m micro-batches, rank r of 1F1B only R − r: so m can be large.
# - v thin stages a rank divide the bubble by about v, for more messages and more activations.
# - Weight gradients can wait: split the backward pass, and they fill the bubble.
# - Every turn takes as long as the slowest stage, so cut by work, not by number of blocks.
# - Sharded stages gather for every micro-batch unless told to keep their parameters.
#
# **What to reach for when.** Many layers and slow links between machines: a pipeline with 1F1B and checkpointing; interleaved or zero-bubble where there are few micro-batches. Before that: sharding ([[sharding]]), which needs no change to the model, and, inside a machine, tensor parallel ([[tensor_parallel]]).
#
# **Sources.** Huang et al. 2019, *GPipe*; Narayanan et al. 2019 and 2021, *PipeDream* and *Efficient Large-Scale Language Model Training on GPU Clusters* (1F1B with a flush at the end of each step, as here, and the interleaved schedule); Qi et al. 2023, *Zero Bubble Pipeline Parallelism* (ZB-H1 is the list that you wrote), and
# 2024, *Pipeline Parallelism with Controllable Memory* (ZBV); PyTorch documentation, `torch.distributed.pipelining`.
