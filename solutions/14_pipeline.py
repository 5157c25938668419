# %% [markdown] name="title"
# # Pipeline parallelism
#
# **A model that does not fit on one GPU can be split between its layers. Each rank runs its layers and exchanges messages with its neighbors, in the order that a list of actions specifies. You write the passes and the lists.**
#
# | | |
# |---|---|
# | After this you can | write a stage's forward and backward pass across processes; write GPipe, 1F1B and an interleaved schedule as lists of actions; predict their bubble and their memory, and check both; recognize lists that would hang; calculate what messages cost on a slow link |
# | Time | 90 to 115 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo (even on a machine with GPUs) |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#data_parallel]] |
# | Syllabus | T19, T37 |
#
# The second half, [[pipelines_in_practice]], splits the backward pass, runs PyTorch's own schedules, and handles stages that are unequal, tied or sharded.

# %% name="setup" setup=true
import dataclasses
import inspect

from helpers import (
    Claims,
    Pipeline,
    Prediction,
    Stuck,
    activations_held,
    check,
    clock_pipelines,
    device_name,
    distance_from_one_process,
    hint,
    human_bytes,
    in_a_row,
    pick_device,
    run_ranks,
    show,
    show_table,
    toy_batch,
    toy_stages,
)
from helpers.exercises.pipeline import built as course
from helpers.exercises.pipeline.bubble_claim import record_bubble
from helpers.pipelines.stage import Stage

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

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
# - `run_forward`: the first stage's input is `stage.x[i]`. Every other stage receives it from the previous rank; it has the shape and dtype of `stage.x[i]`. Every stage but the last sends its output, which also has that shape, to the next rank and returns None.
# - The last stage returns the micro-batch's share of the loss, `F.mse_loss(output, stage.y[i])` divided by m, detached.
# - `run_backward` continues from the loss, or from the gradient of the output, which the next rank sends. Every stage but the first sends the gradient of its input to the previous rank.
# - After both passes of all micro-batches, each rank's gradients equal those of one process. A stage's module runs once per micro-batch, and nothing else is sent.
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
# Now four ranks run your two functions on the whole batch as one micro-batch. Do they get the same gradients as one process?


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
# Now for the time. Four ranks on a laptop compete for its cores, which would hide what we want to see. So each action lasts for a fixed time: one **tick** for a forward pass (a few hundredths of a second), two ticks for a backward pass. The real arithmetic is done within that time, then the action *waits* for the rest of it. The messages are real. (On a busy machine timers fire late. So predictions are compared with a simulation, in which no timer is late, and the clocked figure is printed as well.)

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
ideals = {m: 300 / (m + 3) for m in sweep}
for m, rival in ((1, 2), (8, 16)):
    said = f"bubble of (R - 1) / (m + R - 1) = {ideals[m]:.0f} %"
    size = f"4 ranks, {m} micro-batch{'es' * (m > 1)}"
    record_bubble(claims, said, size, sweep[m], ideals[m], ideals[rival])

# %% [markdown] name="gpipe_explained"
# Call one forward plus one backward pass of a micro-batch a *turn*, and let R be the number of ranks. A rank works for m turns and waits for R − 1 turns: rank 0 waits in the middle, the last rank at the start and at the end. So the bubble is **(R − 1) / (m + R − 1)** of the step, if all stages are equally fast. (Some papers divide by the working time instead and write (R − 1) / m.) The excess in the table comes from messages and from timers that fire late, especially on a busy machine.
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
# Your lists fit together. Here ranks run them, timed by the clock:

# %% name="same_clocked"
pair = {"GPipe": lines[8], "1F1B": Pipeline.of(one_f_one_b, 4, 8)}
runs = clock_pipelines(pair)
for name, run in runs.items():
    print(f"{name}: {run}")
for rank, actions in enumerate(pair["1F1B"].schedules):
    print(f"rank {rank}:", " ".join(f"{kind}{i}" for kind, i in actions))
picture = runs["1F1B"].figure("1F1B, 8 micro-batches")
show(picture, "After a short warm-up blue and orange bars alternate in each row.")
record_bubble(claims, "1F1B has the bubble of GPipe", "4 ranks, 8 micro-batches", runs["1F1B"], 300 / 11, 300 / 19)

# %% [markdown] name="held_text"
# The bubble is the same. (The difference in the clocked figures comes from messages and late timers.) So why is 1F1B used at all? A small bubble needs many micro-batches, and these cost memory. Here are the activations of steps with 4, 8 and 16 micro-batches of 8 rows each.

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
said = "v chunks: bubble of (R - 1) / (v m + R - 1)"
record_bubble(claims, said, "4 ranks, 8 micro-batches, v = 2", run, 300 / 19, 300 / 27)
print(f"messages: {run.messages} against {runs['1F1B'].messages} with 1F1B")
bytes_held = {"1F1B": held["1F1B, m = 8"], **activations_held({"interleaved": thin})}
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in bytes_held.items()]
show_table(table)

# %% [markdown] name="interleaved_explained"
# The bubble is (R − 1) / (v m + R − 1), a little more than half that of 1F1B. The output below the figure shows the cost: more messages, and more activations on the later ranks. (Rank 0 holds twice as many micro-batches, counted per chunk, and each takes half as much.)
#
# So far, messages have taken almost no time. The simulator can show what a slow link costs: let each message take a quarter of a full stage's forward pass, while all ranks continue to compute.
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
# GPipe waits for six messages, three forward and three back. 1F1B waits throughout the step: it holds as few micro-batches as possible, so a rank has no spare one to work on while a message travels. The interleaved schedule sends more than twice as many messages and waits the longest, so it needs faster links than 1F1B. Megatron-LM and PyTorch give it a longer warm-up, by R − r − 1 forward passes. That takes more memory and keeps spare micro-batches ready. [[Pipelines_in_practice]] runs PyTorch's list.
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
# ## 5 · What this run measured

# %% name="summary"
print("Simulated, with messages that take no time:")
table = [("4 ranks, 8 micro-batches", "idle", "step, ticks", "micro-batches on rank 0")]
for name, line, thickness in (
    ("one batch", one_batch, 1),
    ("GPipe", lines[8], 1),
    ("1F1B", pair["1F1B"], 1),
    ("interleaved, 2 chunks", thin, 2),
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
# - 1F1B and the interleaved schedule wait for slow messages throughout the step; GPipe waits for only 2 (R − 1) messages per step. On the links of a GPU cluster these messages are short.
#
# **What to reach for when.** With many layers and slow links between machines, use a pipeline with 1F1B and checkpointing. If you have few micro-batches, use an interleaved schedule, or one with a split backward pass ([[pipelines_in_practice]]). Before that, try sharding ([[sharding]]), which needs no change to the model, and tensor parallelism within an NVLink domain ([[tensor_parallel_in_practice]]).
#
# **Sources.** Huang et al. 2019, *GPipe*; Narayanan et al. 2019 and 2021, *PipeDream* and *Efficient Large-Scale Language Model Training on GPU Clusters* (1F1B with a flush at the end of each step, as here, and the interleaved schedule).
