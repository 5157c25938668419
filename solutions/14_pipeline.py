# %% [markdown] name="title"
# # Pipeline parallelism
#
# **A model that does not fit on one GPU can be split between its layers. Each rank runs its layers and exchanges messages with its neighbors, in the order that a list of actions gives. You write the passes and the lists.**
#
# | | |
# |---|---|
# | After this you can | write a stage's forward and backward pass across processes; write GPipe, 1F1B, an interleaved and a zero-bubble schedule as lists of actions; predict their bubble and their memory, and check both; run PyTorch's own schedules with the right loss scale, clip by the gradient norm over all stages, and keep tied ends equal; split a model that has an expensive output layer; state how often sharded stages gather |
# | Time | 160 to 205 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo (even on a machine with GPUs) |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#data_parallel]], [[#sharding]] and [[#fully_shard]] |
# | Syllabus | T19, T37 |

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
    show_table,
    torch_order,
    toy_batch,
    toy_stages,
    weights_later,
)
from helpers.exercises.pipeline.tied_model import tied_batch, tied_stages
from helpers.exercises.reference import pipeline as course
from helpers.pipelines.stage import Stage

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
    schedules,
)
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks use gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="stages_text"
# ## 1 · Stages and actions
#
# Split a model of eight blocks into four **stages** of two blocks. Each rank keeps one stage, and so a quarter of the parameters, gradients and optimizer state. Activations travel from stage to stage, and their gradients travel back.
#
# Autograd works within one process. Between two stages there is no graph, only messages, and you write the code for these. A `Stage` holds what a rank needs for that:

# %% name="stage_shown"
print(inspect.getsource(Stage))

# %% [markdown] name="stage_task"
# ### Your turn: a stage's two passes
#
# The batch is split into m *micro-batches*, which pass through the stages one after the other. `dist.recv(tensor, rank)` waits for a message from that rank and writes it into `tensor`. `dist.send(tensor, rank)` waits until the receiver takes the message. `dist.isend(tensor, rank)` returns at once, with a `Work` to wait for. Messages between two ranks arrive in the order in which they were sent.
#
# **Contract.** `run_forward(stage, i)` and `run_backward(stage, i)` run one pass of micro-batch i on this rank. They are called once for each i, first forward and later backward. Passes of other micro-batches may come in between. All ranks process the micro-batches in the same order.
#
# - `run_forward`: the first stage's input is `stage.x[i]`. Every other stage receives it from the rank before; it has the shape and dtype of `stage.x[i]`. All but the last stage send their output, which also has that shape, to the next rank, and return None.
# - The last stage returns the micro-batch's share of the loss, `F.mse_loss(output, stage.y[i])` divided by m, detached.
# - `run_backward` continues from the loss, or from the gradient of the output, which the next rank sends. All but the first stage send the gradient of their input to the rank before.
# - After both passes of all micro-batches each rank has the gradients of one process. A stage's module runs once per micro-batch, and nothing else is sent.
# - A pass does not wait until its message has been received. It appends the pair (work, tensor) to `stage.sending`; `stage.finish()` waits for all of them at the end of the step.
# - After `run_backward(stage, i)` only `stage.x` and the messages in `stage.sending` may keep the input or output of micro-batch i alive.


# %% name="stage" answer=true reveal=true
def run_forward(stage, i):
    ### BEGIN SOLUTION
    x = stage.x[i]
    if stage.number > 0:
        x = torch.empty_like(x)
        dist.recv(x, stage.number - 1)
        x.requires_grad_()  # a new leaf: its gradient is the message back
    y = stage.module(x)
    if stage.number == stage.count - 1:
        y = F.mse_loss(y, stage.y[i]) / len(stage.y)
    else:
        message = y.detach()
        stage.sending.append((dist.isend(message, stage.number + 1), message))
    stage.kept[i] = x, y
    return y.detach() if stage.number == stage.count - 1 else None
    ### END SOLUTION


def run_backward(stage, i):
    ### BEGIN SOLUTION
    x, y = stage.kept.pop(i)
    gradient = None
    if stage.number < stage.count - 1:
        gradient = torch.empty_like(y)
        dist.recv(gradient, stage.number + 1)
    y.backward(gradient)
    if stage.number > 0:
        stage.sending.append((dist.isend(x.grad, stage.number - 1), x.grad))
    ### END SOLUTION


# %% name="stage_check"
run_forward, run_backward = check("pipeline.stage", run_forward, run_backward)

# %% name="stage_hint"
hint("pipeline.stage")

# %% [markdown] name="stage_text"
# Over NCCL, which this lab does not run, these two functions can hang under the schedule of section 3. NCCL runs all messages between two ranks in order, and a large send blocks all later messages until the other rank receives it. Suppose that two ranks have queued these messages:
#
# | | this rank | the next rank |
# |---|---|---|
# | 1 | send F0 | receive F0 |
# | 2 | send F1 | send B0 |
# | 3 | receive B0 | receive F1 |
#
# The first line goes through. Then both ranks send, and neither reaches its third line, where it would receive. So real engines start a send forward and a receive backward *together*: Megatron-LM's `send_forward_recv_backward`, PyTorch's `batch_isend_irecv`. Gloo's `isend` does not block later messages.
#
# Now four ranks run your two functions on the whole batch as one micro-batch. Do they get the gradients of one process?


# %% name="stage_run"
def one_batch_by_hand():
    rank, (x, y) = dist.get_rank(), toy_batch(8, 1)
    stage = Stage(toy_stages(4)[rank], rank, 4, x, y)
    run_forward(stage, 0)
    run_backward(stage, 0)
    stage.finish()
    return torch.cat([p.grad.flatten() for p in stage.module.parameters()])


got = torch.cat(run_ranks(one_batch_by_hand, 4, device="cpu", measure=False).results)
whole, (x, y) = nn.Sequential(*toy_stages(1)), toy_batch(8, 1)
F.mse_loss(whole(x[0]), y[0]).backward()
right = torch.cat([p.grad.flatten() for p in whole.parameters()])
print(f"gradients differ from those of one process by {(got - right).norm() / right.norm():.1e}")

# %% [markdown] name="engine_text"
# ### Lists of actions
#
# A list of **actions** states what a rank does, in order: `("F", 3)` is the forward pass of micro-batch 3 in this rank's stage, and `("B", 3)` is its backward pass. An **engine** runs the list. The course's `Engine` does what your two functions do. It also tags its messages, can hold several stages per rank, and logs the start and end of each action.
#
# The loss of each micro-batch is divided by the number of micro-batches. This is gradient accumulation ([[gradient_accumulation]]), spread over ranks.
#
# The simplest list is what you have just run: one micro-batch, one forward pass, one backward pass.

# %% name="one_batch"
one_batch = Pipeline.of(lambda rank, ranks, m: [("F", 0), ("B", 0)], 4, 1)
for rank, actions in enumerate(one_batch.schedules):
    print(f"rank {rank}: {actions}")
print(f"gradients differ from those of one process by {distance_from_one_process(one_batch):.1e}")

# %% [markdown] name="one_guess_text"
# Now for the time. Four ranks on a laptop compete for its cores, which would hide what we want to see. So each action lasts for a fixed time: one **tick** for a forward pass (a few hundredths of a second), two ticks for a backward pass. The real arithmetic is done within that time, then the action *waits* for the rest of it. The messages are real. (A machine with other work to do wakes its timers late. So predictions are compared with a simulation, in which no timer is late, and the clocked figure stands beside it.)

# %% name="one_clocked"
run = clock_pipelines({"one batch": one_batch})["one batch"]
print(run)
show(
    run.figure("One batch"),
    "Four ranks with one bar each, one after the other: forward from rank 0 to rank 3, and backward to rank 0.",
)

# %% [markdown] name="gpipe_text"
# The figure shows the engine's log, in ticks. Only one of the four ranks works at any time.
#
# ## 2 · GPipe: many micro-batches
#
# Split the batch into m micro-batches. Run all forward passes first, then all backward passes; the gradients add up. Ranks still have to wait at times. This idle time is the **bubble**.
#
# **Predict.** Draw it on paper: 4 ranks, 8 micro-batches, all stages equally fast. For what percentage of the step is a rank idle?

# %% name="gpipe_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / 11
### END GUESS
gpipe_guess = Prediction("Idle with GPipe, 4 ranks, 8 micro-batches", my_guess, "%", difference=True)

# %% [markdown] name="gpipe_simulated_text"
# `course` holds the course's lists of actions, and `simulated()` runs them without processes or messages: an action starts as soon as its rank is free and its inputs have arrived.

# %% name="gpipe_simulated"
gpipe_guess.reveal(Pipeline.of(course.gpipe, 4, 8).simulated().idle, "simulated")

# %% [markdown] name="gpipe_task"
# ### Your turn: GPipe
#
# **Contract.** `gpipe(rank, ranks, m)` returns this rank's list of actions, for any number of ranks and micro-batches.
#
# - Each rank runs `("F", i)` and `("B", i)` once for each micro-batch i, 0 ≤ i < m, and nothing else.
# - No backward pass comes before the last forward pass.
# - All ranks process the micro-batches in the same order, and no rank waits longer than it must: the step takes m + `ranks` − 1 forward and backward passes. (NCCL messages carry no tag, so a rank that needs micro-batch 1 receives whatever its neighbor sends next.)


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
runs = clock_pipelines({f"GPipe, m = {m}": line for m, line in lines.items()})
sweep = dict(zip(lines, runs.values(), strict=True))
print(sweep[8])
picture = sweep[8].figure("GPipe, 8 micro-batches")
show(
    picture,
    "Blue bars fill each row after a short wait; then orange bars, which begin on the last rank and reach rank 0 last.",
)
table = [("micro-batches", "(R - 1) / (m + R - 1)", "idle, clocked")]
table += [(str(m), f"{3 / (m + 3):.1%}", "too busy" if run.busy else f"{run.idle:.1f}%") for m, run in sweep.items()]
show_table(table)


def note(said, subject, run, ideal, rival):
    """Record what a run measured: within half the distance to the nearest rival, if the clock was that exact."""
    band = abs(ideal - rival) / 2
    if run.busy or abs(run.idle - run.ideal.idle) > band:  # late timers alone would decide
        claims.not_measured("T19", said, f"{subject}; this machine was too busy")
    else:
        claims.record("T19", said, subject, run.idle, "% idle", ideal - band, ideal + band)


ideals = {m: 300 / (m + 3) for m in sweep}
for m, rival in ((1, 2), (8, 16)):
    said = f"bubble of (R - 1) / (m + R - 1) = {ideals[m]:.0f} %"
    note(said, f"4 ranks, {m} micro-batch{'es' * (m > 1)}", sweep[m], ideals[m], ideals[rival])

# %% [markdown] name="gpipe_explained"
# Call one forward plus one backward pass of a micro-batch a *turn*, and let R be the number of ranks. A rank works for m turns and waits for R − 1 turns: rank 0 waits in the middle, the last rank at the start and at the end. So the bubble is **(R − 1) / (m + R − 1)** of the step, if all stages are equally fast. (Some papers divide by the working time instead and write (R − 1) / m.) The excess in the table comes from messages and from timers that wake up late, on a busy machine most of all.
#
# More micro-batches make the bubble smaller. But all of them are in flight when the first backward pass begins, and the activations of each are kept, so they cost memory.
#
# ## 3 · 1F1B: one forward, one backward
#
# Begin the backward pass of a micro-batch as soon as possible, and free its activations. In the **warm-up** a rank runs a few forward passes, which keep it and the ranks after it busy until the first gradient comes back. From then on it alternates: one forward, one backward.
#
# **Predict.** Backward passes start much earlier than with GPipe. By how many *percentage points* is the bubble of 1F1B smaller than that of GPipe (4 ranks, 8 micro-batches)?

# %% name="bubble_guess"
my_guess = None  # points: idle of GPipe in percent - idle of 1F1B in percent
### BEGIN GUESS
my_guess = 0  # each rank still waits for R - 1 turns
### END GUESS
bubble_guess = Prediction("Idle, GPipe - 1F1B", my_guess, "points", difference=True)

# %% [markdown] name="held_guess_text"
# **Predict.** Under 1F1B, with 8 rows per micro-batch, the number of micro-batches grows from 4 to 16. By what factor do the activations that rank 0 holds at once grow?

# %% name="held_guess"
my_guess = None  # bytes with 16 micro-batches / bytes with 4
### BEGIN GUESS
my_guess = 1  # ranks - r, whatever m is
### END GUESS
onefoneb_held = Prediction("1F1B, rank 0: 16 micro-batches / 4", my_guess, "times")

# %% name="one_f_one_b_simulated"
idle = {make: Pipeline.of(make, 4, 8).simulated().idle for make in (course.gpipe, course.one_f_one_b)}
bubble_guess.reveal(idle[course.gpipe] - idle[course.one_f_one_b], "simulated")
four, sixteen = activations_held({m: Pipeline.of(course.one_f_one_b, 4, m) for m in (4, 16)}).values()
onefoneb_held.reveal(sixteen[0] / four[0])

# %% [markdown] name="one_f_one_b_task"
# ### Your turn: 1F1B
#
# **Contract.** `one_f_one_b(rank, ranks, m)` returns this rank's list of actions, for any number of ranks and micro-batches; m may be smaller than `ranks`.
#
# - Each rank runs F and B of each micro-batch once, and nothing else.
# - The lists fit together: no rank waits for a message that never comes, and each rank receives messages in the order in which its neighbor sends them.
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
# Before your lists run on ranks, the checks **simulate** them. You can do the same. Here are two controls: 1F1B without a warm-up, and two lists that do not fit together.

# %% name="stuck"
no_warm_up = Pipeline.of(lambda rank, ranks, m: [(kind, i) for i in range(m) for kind in "FB"], 4, 8)
print(f"no warm-up: idle {no_warm_up.simulated().idle:.0f}%, in flight {no_warm_up.in_flight}")
mixed = Pipeline([no_warm_up.schedules[0][:4], gpipe(1, 2, 2)], in_a_row(2), 2)
try:
    mixed.simulated()
except Stuck as error:
    print(f"mixed: {error}")

# %% [markdown] name="stuck_explained"
# Without a warm-up the result is right, but only one micro-batch is in flight at a time. In the mixed case rank 0 has no warm-up and rank 1 follows GPipe, and each waits for the other. On real ranks such a run hangs without an error message until a timeout.
#
# Your lists fit together. Here they run by the clock:

# %% name="same_clocked"
pair = {"GPipe": lines[8], "1F1B": Pipeline.of(one_f_one_b, 4, 8)}
runs = clock_pipelines(pair)
for name, run in runs.items():
    print(f"{name}: {run}")
for rank, actions in enumerate(pair["1F1B"].schedules):
    print(f"rank {rank}:", " ".join(f"{kind}{i}" for kind, i in actions))
picture = runs["1F1B"].figure("1F1B, 8 micro-batches")
show(picture, "After a short warm-up blue and orange bars alternate in each row.")
note("1F1B has the bubble of GPipe", "4 ranks, 8 micro-batches", runs["1F1B"], 300 / 11, 300 / 19)

# %% [markdown] name="held_text"
# The bubble is the same. (The clocked difference comes from messages and late timers.) So why is 1F1B used at all? A small bubble needs many micro-batches, and these cost memory. Here are the activations of steps with 4, 8 and 16 micro-batches of 8 rows each.

# %% name="held"
methods = {"GPipe": gpipe, "1F1B": one_f_one_b}
held = activations_held(
    {f"{name}, m = {m}": Pipeline.of(make, 4, m) for name, make in methods.items() for m in (4, 8, 16)}
)
gpipe_growth = held["GPipe, m = 16"][0] / held["GPipe, m = 4"][0]
onefoneb_growth = held["1F1B, m = 16"][0] / held["1F1B, m = 4"][0]
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in held.items()]
show_table(table)
claims.record("T19", "GPipe holds all m micro-batches", "rank 0 of 4, m = 16 / 4", gpipe_growth, "times", 3.8, 4.2)
claims.record("T19", "1F1B holds R - r, whatever m", "rank 0 of 4, m = 16 / 4", onefoneb_growth, "times", 0.95, 1.05)
last = held["GPipe, m = 8"][3] / held["1F1B, m = 8"][3]
claims.record("T19", "GPipe holds m / (R - r) times as much", "rank 3 of 4, m = 8", last, "times", 7, 8.5)

# %% [markdown] name="held_explained"
# That is the advantage of 1F1B: memory no longer depends on the number of micro-batches, so m can be as large as a small bubble requires.
#
# Rank 0 holds the most, because each of its micro-batches must pass through all ranks and come back. Pipelines are usually combined with checkpointing of each stage ([[activation_checkpointing]]), so that a rank keeps only its stage's inputs. Real engines also free a stage's *output* once it has been sent (Megatron-LM's `deallocate_pipeline_outputs`): the backward pass needs its graph, not its values.
#
# ## 4 · Interleaved: thinner stages
#
# At the start the last rank waits until the first micro-batch has passed through all earlier stages. If stages had half as many layers, it would wait half as long. So give each rank *several* thin stages, its **chunks**. With 4 ranks and 2 chunks, rank 0 keeps stages 0 and 4, rank 1 stages 1 and 5, and so on. A micro-batch passes through all ranks twice.

# %% [markdown] name="interleaved_task"
# An action names its chunk: `("F", 3, 1)`. In a forward pass chunk 0 comes first; in a backward pass the last chunk does.
#
# ### Your turn: an interleaved schedule
#
# **Contract.** `interleaved(rank, ranks, m, v)` returns this rank's list for v chunks per rank. m is a multiple of `ranks`, as in Megatron-LM.
#
# - Each rank runs `("F", i, chunk)` and `("B", i, chunk)` once for each micro-batch and chunk, and nothing else.
# - The lists fit together, as before.
# - The step takes v · m + `ranks` − 1 forward and backward passes of a chunk.
# - Rank r holds at most v · `ranks` − r micro-batches at once, counted per chunk. (With one chunk, this is 1F1B.)
#
# This order works: `ranks` micro-batches through chunk 0, the same ones through chunk 1, …, then the next `ranks` micro-batches.


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
run = clock_pipelines({"interleaved": thin}, tick=0.1)["interleaved"]  # slower: chunks take half as long
print(run)
show(run.figure("Interleaved, 2 chunks per rank"), "Dark and pale bars alternate: the two chunks of each rank.")
note("v chunks: bubble of (R - 1) / (v m + R - 1)", "4 ranks, 8 micro-batches, v = 2", run, 300 / 19, 300 / 27)
print(f"messages: {run.messages} against {runs['1F1B'].messages} with 1F1B")
bytes_held = {"1F1B": held["1F1B, m = 8"], **activations_held({"interleaved": thin})}
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in bytes_held.items()]
show_table(table)

# %% [markdown] name="interleaved_explained"
# The bubble is (R − 1) / (v m + R − 1), a little more than half that of 1F1B. The output below the figure shows the cost: more messages, and more activations on the later ranks. (Rank 0 holds twice as many micro-batches, counted per chunk, and each takes half as much.)
#
# So far messages took almost no time. The simulator can show what a slow link costs: let each message take a quarter of a full stage's forward pass, while all ranks continue to compute.
#
# **Predict.** By how many ticks do such messages lengthen a step of 1F1B with 4 ranks and 16 micro-batches? A forward pass takes one tick.

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
show_table(table)

# %% [markdown] name="message_explained"
# GPipe waits for six messages, three forward and three back. 1F1B waits in every turn: it holds as few micro-batches as possible, so a rank has no spare one to work on while a message travels. The interleaved schedule sends more than twice as many messages and waits the longest, so it needs faster links than 1F1B. Megatron-LM and PyTorch give it a warm-up of R − r − 1 more forward passes than yours. That takes more memory and keeps spare micro-batches ready. Section 6 has PyTorch's list.
#
# Is a message that takes a quarter of a forward pass realistic? Take Llama-2-7B in four stages, one sequence of 4,096 tokens per micro-batch, BF16, and H100s at 40% of their peak:

# %% name="message_seconds"
parameters, width, tokens = 6.74e9, 4096, 4096
forward = 2 * parameters / 4 * tokens / (0.4 * 989e12)  # seconds of one stage; 989 TFLOP/s is an H100's BF16 peak
links = {"NVLink 4": 450, "InfiniBand NDR, 400 Gb/s": 50, "Ethernet, 100 Gb/s": 12.5, "Ethernet, 10 Gb/s": 1.25}
table = [("link", "GB/s", "message", "share of a stage's forward pass")]
for name, rate in links.items():
    message = tokens * width * 2 / (rate * 1e9)
    table.append((name, f"{rate:g}", f"{1000 * message:.2f} ms", f"{message / forward:.1%}"))
print(f"a stage's forward pass takes {1000 * forward:.0f} ms")
show_table(table)

# %% [markdown] name="message_seconds_explained"
# Under 1F1B these messages are not hidden, but on the links of a GPU cluster they are short. 1F1B waited 7 ticks, which is 28 messages of a quarter of a tick. At 1.9% of a forward pass (InfiniBand), they add half a tick to a step of 57 ticks, or 1%. That is why pipelines suit slow links. The quarter in the simulation corresponds to a link of about 4 GB/s, or to a stage with much less work.
#
# ## 5 · Zero bubble: a backward pass in two parts
#
# The backward pass of a linear layer y = x Wᵀ has two matmuls. With dy, the gradient of its output:
#
# - dx = dy W is the gradient of the **input**. The previous rank waits for it.
# - dW = dyᵀ x is the gradient of the **weights**. It is not needed before the optimizer's step.
#
# PyTorch computes both in one autograd node. The engine's blocks have a linear layer that can postpone the second matmul. Within `weights_later()` its backward pass does not compute dW but stores x and dy:

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
# So there are two new actions. `("I", i)` computes the gradient of the input, and `("W", i)` computes the gradients of the weights, which can wait. (These are PyTorch's letters. The paper, Qi et al. 2023, calls them B and W.) Now a rank that would be idle can compute weight gradients.
#
# But postponed work takes memory: x and dy stay until W. With every W at the end of the step, you are back at GPipe's memory.
#
# **Predict.** F, I and W take one tick each. There are 4 ranks and 8 micro-batches, and each rank may have as many micro-batches in flight as there are ranks. For what percentage of the step is a rank idle at best?

# %% name="zero_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / (3 * 8 + 3)
### END GUESS
zero_guess = Prediction("Idle with the backward pass in two parts", my_guess, "%", difference=True)

# %% name="zero_simulated"
zero_guess.reveal(Pipeline.of(course.zero_bubble, 4, 8).simulated().idle, "simulated")

# %% [markdown] name="zero_task"
# ### Your turn: fill the bubble
#
# **Contract.** `zero_bubble(rank, ranks, m)` returns this rank's list for m ≥ `ranks`. F, I and W take one tick each.
#
# - Each rank runs F, I and W of each micro-batch once, and nothing else. W of a micro-batch comes after its I.
# - The lists fit together, as before.
# - The step takes 3 · m + `ranks` − 1 ticks.
# - No rank holds more than `ranks` micro-batches at once (from F to W), which is what rank 0 holds with 1F1B.
#
# You may start from `one_f_one_b`: replace each B by an I, and add the W later. How much later, on which rank?


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
run = clock_pipelines({"zero bubble": line}, tick=0.05)["zero bubble"]
print(run)
picture = run.figure("Backward pass in two parts")
show(picture, "Rows of forward, input and weight gradients; green weight gradients fill what was empty at the end.")
note("split backward: bubble of (R - 1) / (3 m + R - 1)", "4 ranks, 8 micro-batches", run, 300 / 27, 300 / 19)
bytes_held |= activations_held({"zero bubble": line})
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in bytes_held.items()]
show_table(table)

# %% [markdown] name="zero_explained"
# Despite the name, one bubble remains: each rank waits R − 1 ticks before its first input gradient, when it has no weight gradients to compute yet. Rank 0 holds as much memory as with 1F1B; the later ranks, which held less, now hold more.
#
# In a real model F, I and W do not take equally long, and the attention scores have no W. So the paper also has an algorithm that finds a schedule from measured times.
#
# ## 6 · PyTorch's own schedules
#
# `torch.distributed.pipelining` has an engine and all of these schedules. Any module can be a stage, and the schedule does the rest. First, we run `PipelineStage` with `ScheduleGPipe` and `Schedule1F1B` on the same model and batch.
#
# **Predict.** PyTorch's schedule gets `loss_fn=F.mse_loss` in the first two runs and `mse_loss / 8` in the third, with 8 micro-batches. What is the gradient of the third run, as a multiple of that of one process on the whole batch: 1/8, 1 or 8?

# %% name="scale_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1  # the mean of eight means
### END GUESS
scale_guess = Prediction("Loss divided by 8: gradient / right gradient", my_guess, "times")


# %% name="pipelining"
def on_cpu(work, *args):
    """Run `work` on four CPU ranks, where our engine ran, even on a machine with four GPUs."""
    return run_ranks(work, 4, *args, device="cpu", measure=False).results


def torch_stage(module, number, stages, group=None):
    stage = PipelineStage(module, number, stages, rank_device(), group=group)  # the rank's own, not the machine's
    if torch.__version__ < "2.10":  # its stages first exchange messages of two sizes, which gloo refuses
        stage._get_init_p2p_neighbors_ops = list
    return stage


def with_torch(kind, m, placement, loss_fn=F.mse_loss):
    """Run a step of PyTorch's schedule; return gradients by stage, bytes held, and its lists of actions if it has any."""
    here, rank, last = rank_device(), dist.get_rank(), max(map(max, placement))
    modules = [module.to(here) for module in toy_stages(last + 1, nn.Linear)]
    mine = nn.ModuleList(modules[number] for number in placement[rank])
    stages = [torch_stage(modules[number], number, last + 1) for number in placement[rank]]
    schedule = kind(stages if len(stages) > 1 else stages[0], n_microbatches=m, loss_fn=loss_fn)
    x, y = (torch.cat(parts).to(here) for parts in toy_batch(8 * m, m))
    with MemoryMeter(mine) as meter:
        schedule.step(*([x] if 0 in placement[rank] else []), **({"target": y} if last in placement[rank] else {}))
    gradients = [torch.cat([p.grad.flatten().cpu() for p in module.parameters()]) for module in mine]
    orders = torch_order(schedule, placement) if len(stages) > 1 else None
    return dict(zip(placement[rank], gradients, strict=True)), meter.largest["activations"], orders


def off(results):
    """Return the distance of PyTorch's gradients, of 8 micro-batches, from one process's, and their relative length."""
    by_stage = {number: gradient for gradients, _, _ in results for number, gradient in gradients.items()}
    whole, (x, y) = nn.Sequential(*toy_stages(1)), map(torch.cat, toy_batch(64, 8))
    F.mse_loss(whole(x), y).backward()
    right = torch.cat([p.grad.flatten() for p in whole.parameters()])
    got = torch.cat([by_stage[n] for n in sorted(by_stage)])
    return ((got - right).norm() / right.norm()).item(), (got.norm() / right.norm()).item()


# %% name="pipelining_run"
def divided(y, target):
    return F.mse_loss(y, target) / 8


for kind, ours in ((ScheduleGPipe, "GPipe"), (Schedule1F1B, "1F1B")):
    results = on_cpu(with_torch, kind, 8, in_a_row(4))
    bytes_0 = f"rank 0 holds {human_bytes(results[0][1])}, with your list {human_bytes(held[f'{ours}, m = 8'][0])}"
    print(f"{kind.__name__:13} gradients differ by {off(results)[0]:.1e}, {bytes_0}")
scale_guess.reveal(off(on_cpu(with_torch, Schedule1F1B, 8, in_a_row(4), divided))[1])

# %% [markdown] name="scale_explained"
# PyTorch's schedules already divide the gradients by the number of micro-batches (`scale_grads=True`, the default). So pass a loss that is a mean over the micro-batch's rows, undivided. If the loss is a *sum* over tokens that you divide by their number yourself, pass `scale_grads=False`.
#
# ### Clipping and stepping
#
# Each rank has the gradients of its own stage, so `clip_grad_norm_` would clip each stage by its own norm. The joint norm takes one all-reduce of the squared norms over the stages. The optimizer's step needs no message. The next cell compares three steps with those of one process:

# %% name="clip"
LIMIT, LR = 0.02, 0.1


def one_step(parameters, optimizer, joint):
    """Clip by the norm of this rank's gradients, or by the joint norm of all stages; step; return the norm."""
    norm = get_total_norm([p.grad for p in parameters])
    if joint:
        norm = norm.square()
        dist.all_reduce(norm)
        norm = norm.sqrt()
    clip_grads_with_norm_(parameters, LIMIT, norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm.item()


def optimizer_of(module, how="fused"):
    return torch.optim.SGD(module.parameters(), lr=LR, momentum=0.9, **{how: True})


def train_stage(joint, steps=3):
    """Train a stage under PyTorch's 1F1B; return the norms by which it clipped and its weights."""
    rank, module = dist.get_rank(), toy_stages(4, nn.Linear)[dist.get_rank()]
    schedule = Schedule1F1B(torch_stage(module, rank, 4), n_microbatches=8, loss_fn=F.mse_loss)
    optimizer, (x, y), norms = optimizer_of(module), map(torch.cat, toy_batch(64, 8)), []
    for _ in range(steps):
        schedule.step(*([x] if rank == 0 else []), **({"target": y} if rank == 3 else {}))
        norms.append(one_step(list(module.parameters()), optimizer, joint))
    return norms, torch.cat([p.detach().flatten() for p in module.parameters()])


# %% name="clip_run"
def train_alone(steps=3):
    module, (x, y), norms = nn.Sequential(*toy_stages(1, nn.Linear)), map(torch.cat, toy_batch(64, 8)), []
    before, optimizer = torch.cat([p.detach().flatten() for p in module.parameters()]), optimizer_of(module)
    for _ in range(steps):
        F.mse_loss(module(x), y).backward()
        norms.append(one_step(list(module.parameters()), optimizer, joint=False))
    return norms, before, torch.cat([p.detach().flatten() for p in module.parameters()])


right_norms, before, right = train_alone()
table = [("clipped by", "norm on ranks 0 to 3, first step", "one process", "update off by")]
for name, joint in (("each stage's own norm", False), ("the joint norm", True)):
    ranks = on_cpu(train_stage, joint)
    update = (torch.cat([weights for _, weights in ranks]) - right).norm() / (right - before).norm()
    norms = ", ".join(f"{norms[0]:.4f}" for norms, _ in ranks)
    table.append((name, norms, f"{right_norms[0]:.4f}", f"{update.item():.1e}"))
show_table(table)
claims.record("T19", "joint norm: three clipped steps of one process", "4 stages", update.item(), "relative", 0, 1e-3)

# %% [markdown] name="torch_list_text"
# Each stage's own norm is about half of the joint norm. So clipping by it makes the first update about twice as large. After three steps, the distance from the right update is as large as that update itself.
#
# With several ranks per stage (section 8, or tensor parallelism within a stage), first take the norm over the ranks of a stage, then add the squares over the stages.
#
# For schedules with several stages per rank, PyTorch makes lists of actions, as you did. So its lists can run on *our* engine and in our simulator. First we compare its interleaved schedule with yours, with 16 micro-batches and the slow link of section 4:

# %% name="torch_list"
results = on_cpu(with_torch, ScheduleInterleaved1F1B, 16, in_a_row(4, 2))
many["PyTorch's interleaved"] = Pipeline(results[0][2], in_a_row(4, 2), 16, Costs.thin(2))
table = [("16 micro-batches", "in flight", "ticks", "ticks with messages")]
for name, line in list(many.items())[2:]:
    table.append((name, str(line.in_flight), *(f"{ticks:g}" for ticks in slow_link(line))))
show_table(table)

# %% [markdown] name="zbv_text"
# The longer warm-up makes no difference if messages take no time, and keeps the step short if they are slow.
#
# Next is `ScheduleZBVZeroBubble`: two thin stages per rank, a split backward pass, and stages placed in a V. With 4 ranks, rank 0 keeps stages 0 and **7**, and rank 3 keeps stages 3 and 4. So a micro-batch passes from stage 3 to stage 4 without a message, and rank 0 computes the loss.
#
# We do not time PyTorch's engine, because its ranks would compete for this machine's few cores. PyTorch's engine gives us its list and computes gradients. Our engine then runs the list by its own clock, in which each action lasts for a fixed time. So you see how good PyTorch's *list* is if every action takes exactly its ticks. This is a simulation with real messages, not a measurement of PyTorch's speed.
#
# **Predict.** There are 4 ranks and 8 micro-batches again. For what percentage of the step is a rank idle?

# %% name="zbv_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * 3 / (2 * 3 * 8 + 3)  # your zero bubble, with chunks that take half as long
### END GUESS
zbv_guess = Prediction("Idle with PyTorch's ZBV list, on our clock", my_guess, "%", difference=True)

# %% name="zbv"
results = on_cpu(with_torch, ScheduleZBVZeroBubble, 8, in_a_vee(4))
print(f"on PyTorch's engine, gradients differ by {off(results)[0]:.1e}")
zbv = Pipeline(results[0][2], in_a_vee(4), 8, Costs.thin(2))
print(
    f"on ours, gradients differ by {distance_from_one_process(zbv):.1e}; in flight {zbv.in_flight} thin micro-batches"
)
run = clock_pipelines({"ZBV": zbv}, tick=0.1)["ZBV"]
zbv_guess.reveal(run.ideal.idle, "simulated")
print(run)
show(
    run.figure("PyTorch's ZBV list"),
    "The rows are nearly full: forward, input and weight gradients of two chunks each.",
)

# %% [markdown] name="dualpipe_text"
# **DualPipeV** (Sea AI Lab's version of DeepSeek's DualPipe, cut in half; PyTorch's `ScheduleDualPipeV`) uses the same placement. Its list pairs the forward pass of one micro-batch with the backward pass of another. In a mixture-of-experts model ([[mixture_of_experts]]) one of the two then computes while the other's tokens travel. Our simulator does not model that overlap and runs the two one after the other. It can still compare the bubble and the memory:

# %% name="dualpipe"
note("PyTorch's ZBV: bubble of (R - 1) / (6 m + R - 1)", "4 ranks, 8 micro-batches", run, 300 / 51, 300 / 27)
table = [("8 micro-batches, simulated", "idle", "ticks", "thin micro-batches on ranks 0 to 3")]
lists = {"ZBV": zbv}
if kind := getattr(schedules, "ScheduleDualPipeV", None):
    lists["DualPipeV"] = Pipeline(on_cpu(with_torch, kind, 8, in_a_vee(4))[0][2], in_a_vee(4), 8, Costs.thin(2))
for name, line in lists.items():
    table.append((name, f"{line.simulated().idle:.1f}%", f"{line.simulated().duration:g}", str(line.in_flight)))
show_table(table)

# %% [markdown] name="unequal_text"
# The bubble is the same, and DualPipeV holds one more thin micro-batch on each rank. Its advantage is the overlap, which this simulation leaves out.
#
# ## 7 · Unequal stages
#
# So far all stages took equally long. A language model has an embedding at one end and an output layer, the *head*, at the other: a matmul with the whole vocabulary. How many blocks' worth of FLOPs and parameters are the embedding and the head? Take the sizes of Llama 3.2 1B, which has 16 blocks. Tensors on `meta` have no data, so counting takes almost no time and memory. Attention is causal: fused kernels skip the masked half of the scores, but the counter includes it, so we subtract half.

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


masked = count_flops(lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True)) / 2
heavy = count_flops(lambda: head(tokens)) / (count_flops(block) - masked)
weights = sum(layer.weight.numel() for layer in (*attention, gate, up, down))
table = head.weight.numel()
print(f"the head does the work of {heavy:.1f} blocks; an embedding does almost none")
print(f"each of the two has {table / 1e6:.1f} M parameters, as many as {table / weights:.1f} blocks")
print(f"an all-reduce of a tied table's gradient between two ranks: {table * 4 / 1e6:.0f} MB in FP32 per step")

# %% [markdown] name="tied_task"
# **Tied tables.** Llama 3.2 1B uses one table for both ends. In a pipeline, the first and the last rank then hold a copy each, and each computes a part of its gradient. The two parts must be *added* in every step, like the shared K/V heads of [[tensor_parallel]]. Otherwise the copies drift apart. `PipelineStage` does not do this for you.
#
# ### Your turn: tied ends
#
# **Contract.** `finish_step(parameters, table, ends, limit)` is called on every rank of a pipeline with one stage per rank, after `schedule.step(...)` and before the optimizer's step.
#
# - `parameters` is a list of this stage's parameters, each with a gradient. On the first and the last rank, `table` is the one of them that is this rank's copy of the tied table; on all other ranks it is None. `ends` is the process group of the first and the last rank.
# - Afterwards both copies of the table have the gradient that the table has in one process.
# - The gradients are clipped to the norm `limit`, as `clip_grad_norm_` does in one process, where the table occurs once. Return the joint norm before clipping, as a float or a tensor, the same on every rank.
# - The table's gradient is sent once, between the two ends. Apart from that, only one number is sent, for the norm. Parameters do not change.


# %% name="tied" answer=true reveal=true
def finish_step(parameters, table, ends, limit):
    ### BEGIN SOLUTION
    if table is not None:
        dist.all_reduce(table.grad, group=ends)
    counted = [p.grad for p in parameters if p is not table or dist.get_rank() == 0]  # the table on the first rank only
    norm = get_total_norm(counted).square()
    dist.all_reduce(norm)
    norm = norm.sqrt()
    clip_grads_with_norm_(parameters, limit, norm)
    return norm
    ### END SOLUTION


# %% name="tied_check"
finish_step = check("pipeline.tied", finish_step)

# %% name="tied_hint"
hint("pipeline.tied")

# %% [markdown] name="tied_run_text"
# Train a tiny tied model for three steps on four ranks, with your function and without it: the control clips each stage by the joint norm of section 6 and leaves the table alone.


# %% name="tied_run"
def clip_only(parameters, table, ends, limit):
    norm = get_total_norm([p.grad for p in parameters]).square()
    dist.all_reduce(norm)
    clip_grads_with_norm_(parameters, limit, norm.sqrt())


def train_tied(finish, steps=3):
    """Train the tied model under PyTorch's 1F1B; return this rank's copy of the table, if it has one."""
    rank, (ids, goal) = dist.get_rank(), tied_batch(64)
    module, ends = tied_stages(4)[rank], dist.new_group([0, 3])
    schedule, optimizer = (
        Schedule1F1B(torch_stage(module, rank, 4), n_microbatches=8, loss_fn=F.cross_entropy),
        optimizer_of(module),
    )
    for _ in range(steps):
        schedule.step(*([ids] if rank == 0 else []), **({"target": goal} if rank == 3 else {}))
        finish(list(module.parameters()), module.table, ends, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return None if module.table is None else module.table.detach()


# %% name="tied_table"
whole, (ids, goal) = nn.Sequential(*tied_stages(4)), tied_batch(64)
start, optimizer = whole[0].table.detach().clone(), optimizer_of(whole)
for _ in range(3):
    F.cross_entropy(whole(ids), goal).backward()
    nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
moved = (whole[0].table.detach() - start).norm()
table = [("after three steps", "copies apart", "first rank's copy off from one process")]
for name, finish in (("table left alone", clip_only), ("finish_step", finish_step)):
    ends = on_cpu(train_tied, finish)
    apart, far = (((ends[0] - other).norm() / moved).item() for other in (ends[3], whole[0].table.detach()))
    table.append((name, f"{apart:.1e}", f"{far:.1e}"))
show_table(table)
claims.record("T19", "tied ends: three clipped steps of one process", "4 stages", max(apart, far), "relative", 0, 1e-3)

# %% [markdown] name="unequal_guess_text"
# (Distances are relative to how far one process moves the table.) Without the sum each copy follows its own part of the gradient, and no error is raised.
#
# Now put 16 blocks on 4 ranks, split as 4 | 4 | 4 | 4 + head: the same number of blocks on each rank. The clock keeps these proportions: a tick is now the forward pass of one block.
#
# **Predict.** With 1F1B and 8 micro-batches, for what percentage of the step is a rank idle now, on average over the ranks?

# %% name="unequal_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 45  # the last rank hardly waits; the others have half of its work
### END GUESS
unequal_guess = Prediction("Idle with 4 | 4 | 4 | 4 + head", my_guess, "%", difference=True)

# %% name="unequal"
balanced = Pipeline.of(one_f_one_b, 4, 8)
equal, moved = "4 | 4 | 4 | 4 + head", "5 | 5 | 5 | 1 + head"
cuts = {equal: (4, 4, 4, 4 + heavy), moved: (5, 5, 5, 1 + heavy)}
cut_lines = {name: dataclasses.replace(balanced, costs=Costs(stages=work)) for name, work in cuts.items()}
runs = clock_pipelines(cut_lines, tick=0.005)  # a block, forward
first, second = runs.values()
unequal_guess.reveal(first.ideal.idle, "simulated")
print(first)
show(first.figure(equal), "Long bars without gaps in the last row; gaps in all other rows.")
show(second.figure(moved), "Bars of nearly the same length in all rows, as with equal stages.")
for name, run in runs.items():
    print(
        f"{name}: idle {run.bubble:.0f}%, at best, a step takes as long as {run.ideal.duration:.0f} forward passes of one block"
    )
note("the slowest stage sets the pace", equal, first, first.ideal.idle, second.ideal.idle)

# %% [markdown] name="unequal_explained"
# Every turn takes as long as the slowest stage. No schedule can fix this; the model must be split differently. In the second split the last rank gives three of its blocks to the other ranks. Real jobs do that, or put the embedding and the head into their own stages, or split the head across ranks ([[tensor_parallel]]).
#
# Watch the memory when you move blocks. Rank 0 already holds the most micro-batches, and the embedding has as many parameters as four blocks. With a fifth block, rank 0 holds the parameters of about nine blocks.
#
# ## 8 · Sharded stages: how often do they gather?
#
# Large jobs combine methods: stages across machines, and each stage sharded with `fully_shard` over the ranks that share it ([[fully_shard]]). A sharded stage must gather its parameters before it can compute. Without a pipeline, FSDP gathers twice per micro-batch, once forward and once backward. How often does it gather here?
#
# Take a mesh of 2 × 2 ranks: two stages, and two copies of the pipeline that divide the batch and the shards between them. Each stage is one unit. `Collectives` counts the calls on a rank of the last stage.
#
# **Predict.** PyTorch's stage runs 1F1B with 8 micro-batches, and `fully_shard` has its default options. In how many all-gathers per step does a rank of the last stage take part?

# %% name="gathers_guess"
my_guess = None  # all-gathers per rank and step
### BEGIN GUESS
my_guess = 2 * 8  # each pass of each micro-batch frees the parameters again
### END GUESS
gathers_guess = Prediction("All-gathers in a step of PyTorch's stage, 8 micro-batches", my_guess, "")


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
gathers_guess.reveal(counts["PyTorch's"][0])
rows = [(name, *map(str, both)) for name, both in counts.items()]
show_table([("1F1B, 8 micro-batches", "all-gathers", "reduce-scatters"), *rows])

# %% [markdown] name="gathers_explained"
# - **Our engine, default options**: each pass of each micro-batch gathers the stage again, and each backward pass reduces gradients. The traffic grows with the number of micro-batches, and a pipeline needs many.
# - **PyTorch's stage, default options**: 9 gathers on the last stage. `PipelineStage` turns `reshard_after_backward` off until the last micro-batch, so a backward pass leaves the parameters gathered. Under 1F1B the first forward pass of the last stage gathers the parameters and frees them. Then each of its 8 backward passes gathers them, and the next forward pass finds them gathered and frees them again. Gradients are reduced once per step.
# - **PyTorch's stage, kept after forward**: one gather. Parameters and gradients of the stage are complete during the step, and only the optimizer state stays sharded. That is ZeRO-1 within a pipeline, the usual choice: a stage is only a part of the model, so its parameters and gradients fit.
#
# ### Explore: schedules
#
# This is a simulation in which messages take no time. With eight ranks, how many micro-batches does each schedule need for a bubble below 10%? And how many of them does rank 0 hold then?


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
    ticks = ran.duration * (8 if line.micro_batches == 1 else 1)  # the same work, in one part or in eight
    table.append(
        (name, f"{ran.idle:.1f}%", f"{ticks:g}", f"{line.in_flight[0] / thickness * 8 / line.micro_batches:g}")
    )
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Each rank keeps one stage (or several): some of the layers, with their gradients and optimizer state. A schedule is a list of actions for each rank.
# - With R ranks and m micro-batches, GPipe and 1F1B have the same bubble, (R − 1) / (m + R − 1). With GPipe a rank holds all m micro-batches; with 1F1B rank r holds only R − r, so m can be large.
# - v thin stages per rank divide the bubble by about v, at the cost of more messages and more activations.
# - Weight gradients can wait: with a split backward pass they fill most of the bubble.
# - PyTorch's schedules divide gradients by m themselves. Clip by the norm over all stages, and add the gradients of a tied table.
# - Every turn takes as long as the slowest stage, so split by work, not by number of blocks.
# - Sharded stages gather for every micro-batch unless you keep their parameters gathered.
#
# **What to reach for when.** With many layers and slow links between machines, use a pipeline with 1F1B and checkpointing. If you have few micro-batches, use an interleaved or zero-bubble schedule. Before that, try sharding ([[sharding]]), which needs no change to the model, and tensor parallelism within an NVLink domain ([[tensor_parallel]]).
#
# **Sources.** Huang et al. 2019, *GPipe*; Narayanan et al. 2019 and 2021, *PipeDream* and *Efficient Large-Scale Language Model Training on GPU Clusters* (1F1B with a flush at the end of each step, as here, and the interleaved schedule); Qi et al. 2023, *Zero Bubble Pipeline Parallelism* (ZB-H1 is the list that you wrote), and 2024, *Pipeline Parallelism with Controllable Memory* (ZBV); PyTorch documentation, `torch.distributed.pipelining`.
