# %% [markdown] name="title"
# # Pipelines in practice
#
# **Weight gradients can wait, so a rank that would be idle can compute them. You write that schedule, run PyTorch's own, and handle what lists of actions leave out: the loss scale, clipping, tied tables, unequal stages and sharding.**
#
# | | |
# |---|---|
# | After this you can | split a backward pass, and write a zero-bubble schedule as lists of actions; run PyTorch's own schedules with the right loss scale, clip by the gradient norm over all stages, and keep tied ends equal; split a model that has an expensive output layer; state how often sharded stages gather |
# | Time | 75 to 100 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo (even on a machine with GPUs) |
# | Before this | labs [[#pipeline]] and [[#fully_shard]]; [[#tensor_parallel]] helps |
# | Syllabus | T19, T37 |

# %% name="setup" setup=true
import dataclasses

from helpers import (
    Claims,
    Collectives,
    Costs,
    Engine,
    LinearInTwoParts,
    MemoryMeter,
    Pipeline,
    Prediction,
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
from helpers.exercises.pipeline.bubble_claim import record_bubble
from helpers.exercises.pipeline.built import gpipe, interleaved, one_f_one_b
from helpers.exercises.pipelines_in_practice import built as course
from helpers.exercises.pipelines_in_practice.tied_model import tied_batch, tied_stages

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

# %% [markdown] name="again_text"
# This lab continues [[pipeline]], from which you need four things:
#
# - A list of **actions** states what a rank does, in order: `("F", 3)` is the forward pass of micro-batch 3, and `("B", 3)` is its backward pass. If a rank has several thin stages, its *chunks*, a third entry names the chunk.
# - The course's **engine** runs such lists on ranks. `simulated()` runs them without processes or messages. `clock_pipelines` runs them on ranks with a clock that gives each action a fixed time: one **tick** for the forward pass of a full stage, two ticks for its backward pass.
# - The **bubble** is the time for which ranks are idle. With R ranks and m micro-batches it is (R − 1) / (m + R − 1) of the step for GPipe and 1F1B, and (R − 1) / (v m + R − 1) for the interleaved schedule with v chunks per rank.
# - With GPipe a rank holds the activations of all micro-batches at once. With 1F1B rank r holds those of R − r micro-batches.
#
# The next cell makes the lists of these schedules with the course's functions and runs them.

# %% name="again"
lines = {
    "GPipe": Pipeline.of(gpipe, 4, 8),
    "1F1B": Pipeline.of(one_f_one_b, 4, 8),
    "interleaved": Pipeline.of(interleaved, 4, 8, chunks=2),
}
held = activations_held(lines)
for name, line in lines.items():
    print(f"{name}: idle {line.simulated().idle:.1f}%, rank 0 holds {human_bytes(held[name][0])}")

# %% [markdown] name="two_parts_text"
# ## 1 · Zero bubble: a backward pass in two parts
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
# - The lists fit together: no rank waits for a message that never comes, and each rank receives messages in the order in which its neighbor sends them.
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
zero_bubble = check("pipelines_in_practice.zero_bubble", zero_bubble)

# %% name="zero_bubble_hint"
hint("pipelines_in_practice.zero_bubble")

# %% name="zero_clocked"
line = Pipeline.of(zero_bubble, 4, 8)
run = clock_pipelines({"zero bubble": line}, tick=0.05)["zero bubble"]
print(run)
picture = run.figure("Backward pass in two parts")
show(
    picture,
    "Each row holds forward passes, input gradients and weight gradients; green weight gradients fill the gaps at the end.",
)
said = "split backward: bubble of (R - 1) / (3 m + R - 1)"
record_bubble(claims, said, "4 ranks, 8 micro-batches", run, 300 / 27, 300 / 19)
held |= activations_held({"zero bubble": line})
table = [("activations held", *(f"rank {rank}" for rank in range(4)))]
table += [(name, *map(human_bytes, nbytes)) for name, nbytes in held.items()]
show_table(table)

# %% [markdown] name="zero_explained"
# Despite the name, one bubble remains: each rank waits R − 1 ticks before its first input gradient, when it has no weight gradients to compute yet. Rank 0 holds as much memory as with 1F1B; the later ranks, which held less, now hold more.
#
# In a real model F, I and W do not take the same time, and the attention scores have no W. So the paper also has an algorithm that finds a schedule from measured times.
#
# ## 2 · PyTorch's own schedules
#
# `torch.distributed.pipelining` has an engine and all of these schedules. Any module can be a stage, and the schedule does the rest. First, we run `PipelineStage` with `ScheduleGPipe` and `Schedule1F1B` on the model and the batch of our engine.
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
    bytes_0 = f"rank 0 holds {human_bytes(results[0][1])}, with our list {human_bytes(held[ours][0])}"
    print(f"{kind.__name__:13} gradients differ by {off(results)[0]:.1e}, {bytes_0}")
scale_guess.reveal(off(on_cpu(with_torch, Schedule1F1B, 8, in_a_row(4), divided))[1])

# %% [markdown] name="scale_explained"
# PyTorch's schedules already divide the gradients by the number of micro-batches (`scale_grads=True`, the default). So pass a loss that is a mean over the micro-batch's rows, undivided. If the loss is a *sum* over tokens that you divide by their number yourself, pass `scale_grads=False`.
#
# ### Clipping and stepping
#
# Each rank has the gradients of its own stage, so `clip_grad_norm_` would clip each stage by its own norm. The joint norm takes one all-reduce of the squared norms over the stages. The optimizer's step needs no message. The code below clips in both ways and compares three steps with those of one process.

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


# %% [markdown] name="clip_guess_text"
# **Predict.** Each of the four stages clips by its own norm, which is above the limit. What is the norm of the first update of the whole model, as a multiple of the right update's norm?

# %% name="clip_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 2  # four parts, each of the length of the limit, at right angles
### END GUESS
clip_guess = Prediction("Each stage clipped by its own norm: first update / right update", my_guess, "times")


# %% name="clip_run"
def train_alone(steps=3):
    module, (x, y), norms = nn.Sequential(*toy_stages(1, nn.Linear)), map(torch.cat, toy_batch(64, 8)), []
    before, optimizer = torch.cat([p.detach().flatten() for p in module.parameters()]), optimizer_of(module)
    for _ in range(steps):
        F.mse_loss(module(x), y).backward()
        norms.append(one_step(list(module.parameters()), optimizer, joint=False))
    return norms, before, torch.cat([p.detach().flatten() for p in module.parameters()])


right_norms, before, right = train_alone()
first = torch.cat([weights for _, weights in on_cpu(train_stage, False, 1)])
clip_guess.reveal(((first - before).norm() / (train_alone(1)[2] - before).norm()).item())
table = [("clipped by", "norm on ranks 0 to 3, first step", "one process", "update off by")]
for name, joint in (("each stage's own norm", False), ("the joint norm", True)):
    ranks = on_cpu(train_stage, joint)
    update = (torch.cat([weights for _, weights in ranks]) - right).norm() / (right - before).norm()
    norms = ", ".join(f"{norms[0]:.4f}" for norms, _ in ranks)
    table.append((name, norms, f"{right_norms[0]:.4f}", f"{update.item():.1e}"))
show_table(table)
claims.record("T19", "joint norm: three clipped steps of one process", "4 stages", update.item(), "relative", 0, 1e-3)

# %% [markdown] name="torch_list_text"
# Clipping a stage by its own norm brings its gradient norm down to the limit. The joint norm of four such stages is √4 = 2 times the limit. After three steps, the distance from the right update is as large as that update itself.
#
# With several ranks per stage (section 4, or tensor parallelism within a stage), first take the norm over the ranks of a stage, then add the squares over the stages.
#
# For schedules with several stages per rank, PyTorch makes lists of actions, as you did. So its lists can run on *our* engine and in our simulator. First we compare its interleaved schedule, which has a longer warm-up, with that of [[pipeline]]. There are 16 micro-batches. In the last column each message takes a quarter of a full stage's forward pass, as on the slow link of [[pipeline]]:

# %% name="torch_list"
results = on_cpu(with_torch, ScheduleInterleaved1F1B, 16, in_a_row(4, 2))
many = {
    "interleaved": Pipeline.of(interleaved, 4, 16, chunks=2),
    "PyTorch's interleaved": Pipeline(results[0][2], in_a_row(4, 2), 16, Costs.thin(2)),
}
table = [("16 micro-batches", "in flight", "ticks", "ticks with messages")]
for name, line in many.items():
    slow = dataclasses.replace(line, costs=dataclasses.replace(line.costs, message=0.25))
    table.append((name, str(line.in_flight), *(f"{each.simulated().duration:g}" for each in (line, slow))))
show_table(table)

# %% [markdown] name="zbv_text"
# The longer warm-up makes no difference if messages take no time, and keeps the step short if they are slow.
#
# Next is `ScheduleZBVZeroBubble`: two thin stages per rank, a split backward pass, and stages placed in a V. With 4 ranks, rank 0 keeps stages 0 and **7**, and rank 3 keeps stages 3 and 4. So a micro-batch passes from stage 3 to stage 4 without a message, and rank 0 computes the loss.
#
# We do not time PyTorch's engine, because its ranks would compete for this machine's few cores. PyTorch's engine gives us its list and computes gradients. Our engine then runs the list with its own clock, which gives each action a fixed time. So you see how good PyTorch's *list* is if every action takes exactly its number of ticks. This is a simulation with real messages, not a measurement of PyTorch's speed.
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
    "The rows are nearly full: forward passes, input gradients and weight gradients of two chunks each.",
)

# %% [markdown] name="dualpipe_text"
# **DualPipeV** (Sea AI Lab's version of DeepSeek's DualPipe, cut in half; PyTorch's `ScheduleDualPipeV`) uses the same placement. Its list pairs the forward pass of one micro-batch with the backward pass of another. With expert parallelism ([[expert_parallel]]) one of the two then computes while the other's tokens travel. Our simulator does not model that overlap and runs the two one after the other. It can still compare the bubble and the memory:

# %% name="dualpipe"
said = "PyTorch's ZBV: bubble of (R - 1) / (6 m + R - 1)"
record_bubble(claims, said, "4 ranks, 8 micro-batches", run, 300 / 51, 300 / 27)
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
# ## 3 · Unequal stages
#
# So far, all stages have taken the same time. A language model has an embedding at one end and an output layer, the *head*, at the other: a matmul with the whole vocabulary. An embedding only looks rows up and does almost no arithmetic.
#
# Take the sizes of Llama 3.2 1B: 16 blocks of width 2,048, MLPs of width 8,192, 32 query heads and 8 K/V heads of width 64, a vocabulary of 128,256, and sequences of 4,096 tokens.
#
# **Predict.** The head's forward pass takes as many FLOPs as the forward passes of how many blocks?

# %% name="head_guess"
my_guess = None  # blocks
### BEGIN GUESS
my_guess = 2048 * 128256 / 60.8e6  # by parameters; attention's scores have none
### END GUESS
head_guess = Prediction("Forward pass of the head of Llama 3.2 1B", my_guess, "blocks")

# %% [markdown] name="head_text"
# Tensors on `meta` have no data, so counting takes almost no time or memory. Attention is causal: fused kernels skip the masked half of the scores, but the counter includes it, so we subtract half.

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
head_guess.reveal(heavy, "counted")
print(f"the embedding and the head have {table / 1e6:.1f} M parameters each, as many as {table / weights:.1f} blocks")
print(f"an all-reduce of a tied table's gradient between two ranks: {table * 4 / 1e6:.0f} MB in FP32 per step")

# %% [markdown] name="tied_task"
# **Tied tables.** Llama 3.2 1B uses one table for both ends. In a pipeline, the first and the last rank then hold a copy each, and each computes a part of its gradient. The two parts must be *added* in every step, like the gradients of shared K/V heads in [[tensor_parallel]]. Otherwise the copies drift apart. `PipelineStage` does not do this for you.
#
# ### Your turn: tied ends
#
# **Contract.** `finish_step(parameters, table, ends, limit)` is called on every rank of a pipeline with one stage per rank, after `schedule.step(...)` and before the optimizer's step.
#
# - `parameters` is a list of this stage's parameters, each with a gradient. On the first and the last rank, `table` is one of these parameters, this rank's copy of the tied table; on all other ranks it is None. `ends` is the process group of the first and the last rank.
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
finish_step = check("pipelines_in_practice.tied", finish_step)

# %% name="tied_hint"
hint("pipelines_in_practice.tied")

# %% [markdown] name="tied_run_text"
# Train a tiny tied model for three steps on four ranks, with your function and without it: the control clips each stage by the joint norm of section 2 and leaves the table alone.
#
# **Predict.** How far apart are the control's two copies of the table after three steps, as a multiple of the distance that one process moves the table?

# %% name="tied_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 0.5  # each copy has one of the two parts
### END GUESS
tied_guess = Prediction("Table left alone: copies apart / moved by one process", my_guess, "times")


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
distances = {}
for name, finish in (("table left alone", clip_only), ("finish_step", finish_step)):
    ends = on_cpu(train_tied, finish)
    distances[name] = [((ends[0] - other).norm() / moved).item() for other in (ends[3], whole[0].table.detach())]
tied_guess.reveal(distances["table left alone"][0])
table = [("after three steps", "copies apart", "first rank's copy off from one process")]
table += [(name, *(f"{distance:.1e}" for distance in both)) for name, both in distances.items()]
show_table(table)
worst = max(distances["finish_step"])
claims.record("T19", "tied ends: three clipped steps of one process", "4 stages", worst, "relative", 0, 1e-3)

# %% [markdown] name="unequal_guess_text"
# (All distances are relative to how far one process moves the table.) Without the sum each copy follows its own part of the gradient, and no error is raised.
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
equal, moved = "4 | 4 | 4 | 4 + head", "5 | 5 | 5 | 1 + head"
cuts = {equal: (4, 4, 4, 4 + heavy), moved: (5, 5, 5, 1 + heavy)}
cut_lines = {name: dataclasses.replace(lines["1F1B"], costs=Costs(stages=work)) for name, work in cuts.items()}
runs = clock_pipelines(cut_lines, tick=0.005)  # a block, forward
first, second = runs.values()
unequal_guess.reveal(first.ideal.idle, "simulated")
print(first)
show(first.figure(equal), "Long bars without gaps in the last row; gaps in all other rows.")
show(second.figure(moved), "Bars of nearly the same length in all rows, as with equal stages.")
for name, run in runs.items():
    print(
        f"{name}: idle {run.bubble:.0f}%; at best, a step takes as long as {run.ideal.duration:.0f} forward passes of one block"
    )
record_bubble(claims, "the slowest stage sets the pace", equal, first, first.ideal.idle, second.ideal.idle)

# %% [markdown] name="unequal_explained"
# Every turn takes as long as the slowest stage. No schedule can fix this; the model must be split differently. In the second split the last rank gives three of its blocks to the other ranks. Real jobs do that, or put the embedding and the head into their own stages, or split the head across ranks ([[tensor_parallel_in_practice]]).
#
# Watch the memory when you move blocks. Rank 0 already holds the most micro-batches, and the embedding has as many parameters as four blocks. With a fifth block, rank 0 holds the parameters of about nine blocks.
#
# ## 4 · Sharded stages: how often do they gather?
#
# Large jobs combine methods: stages across machines, and each stage sharded with `fully_shard` over the ranks that share it ([[fully_shard]]). A sharded stage must gather its parameters before it can compute. Without a pipeline, FSDP gathers twice per micro-batch, once forward and once backward. How often does it gather here?
#
# Take a mesh of 2 × 2 ranks: two stages, and two copies of the pipeline that divide the batch and the shards between them. Each stage is one unit, its own root. `Collectives` counts the calls on a rank of the last stage.
#
# **Predict.** PyTorch's stage runs 1F1B with 8 micro-batches, with `reshard_after_forward=True`: a forward pass frees the parameters at its end. In how many all-gathers per step does a rank of the last stage take part?

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
# - **Our engine**: each pass of each micro-batch gathers the stage again, and each backward pass reduces gradients. The traffic grows with the number of micro-batches, and a pipeline needs many.
# - **PyTorch's stage**: 9 gathers on the last stage. `PipelineStage` turns `reshard_after_backward` off until the last micro-batch, so a backward pass leaves the parameters gathered. Under 1F1B the first forward pass of the last stage gathers the parameters and frees them. Then each of its 8 backward passes gathers them, and the next forward pass finds them gathered and frees them again. Gradients are reduced once per step.
# - **PyTorch's stage, kept after forward** (a root's default): one gather. Parameters and gradients of the stage are complete during the step, and only the optimizer state stays sharded. That is ZeRO-1 within a pipeline, the usual choice: a stage is only a part of the model, so its parameters and gradients fit.
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
# ## 5 · What this run measured

# %% name="summary"
print("Simulated, with messages that take no time:")
table = [("4 ranks, 8 micro-batches", "idle", "step, ticks", "micro-batches on rank 0")]
for name, line, thickness in (
    ("1F1B", lines["1F1B"], 1),
    ("interleaved, 2 chunks", lines["interleaved"], 2),
    ("zero bubble", Pipeline.of(zero_bubble, 4, 8), 1),
    ("PyTorch's ZBV list, 2 chunks", zbv, 2),
):
    ran = line.simulated()
    table.append((name, f"{ran.idle:.1f}%", f"{ran.duration:g}", f"{line.in_flight[0] / thickness:g}"))
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Weight gradients can wait: with a split backward pass they fill most of the bubble.
# - PyTorch's schedules divide gradients by m themselves. Clip by the norm over all stages, and add the gradients of a tied table.
# - Every turn takes as long as the slowest stage, so split by work, not by number of blocks.
# - Sharded stages gather for every micro-batch unless you keep their parameters gathered.
#
# **What to reach for when.** If you have too few micro-batches for 1F1B, use a zero-bubble schedule: it holds no more micro-batches than rank 0 does with 1F1B. Give the rank with the head fewer blocks. If several ranks share a stage, shard its optimizer state, and keep its parameters gathered during the step.
#
# **Sources.** Qi et al. 2023, *Zero Bubble Pipeline Parallelism* (ZB-H1 is the list that you wrote), and 2024, *Pipeline Parallelism with Controllable Memory* (ZBV); PyTorch documentation, `torch.distributed.pipelining`.
