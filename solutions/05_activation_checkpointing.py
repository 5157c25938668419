# %% [markdown] name="title"
# # Activation checkpointing
#
# **Activations can be thrown away after the forward pass and recomputed in the backward pass. You choose for which blocks, and pay for the memory with
# arithmetic.**
#
# | | |
# |---|---|
# | After this you can | write checkpointing yourself, including everything that the second run must reproduce; say which implementation PyTorch's `checkpoint` runs, and how the two differ; choose the blocks to checkpoint and the length of a segment; measure what a choice saves and costs, and explain the time that it takes |
# | Time | 90 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and, for autocast, [[#mixed_precision]] |
# | Syllabus | T9, T10, C9, P5 |
#
# The next lab, [[selective_checkpointing]], looks inside a block: which of its results to keep, which to recompute, and which to move elsewhere.

# %% name="setup" setup=true
import functools
import math
import textwrap
import warnings

from helpers import (
    COLORS,
    Claims,
    MemoryMeter,
    Prediction,
    SmallGPT,
    benchmark,
    check,
    count_flops,
    device_name,
    english,
    explore,
    hint,
    human_bytes,
    in_turns,
    kept_over_time,
    pick_device,
    show,
    show_table,
    sign_of_life,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · The idea
#
# Autograd saves the tensors that the backward pass will need. With **activation checkpointing**:
#
# - a block saves only its *input*;
# - when the backward pass reaches the block, the block runs forward again from that input;
# - the recomputed tensors are freed as soon as the block's own backward pass is done.

# %% name="idea"
show(
    kept_over_time(blocks=6, keeps=6),
    "Tensors held over time by six blocks. Top: each block adds six, up to 36, and the backward pass frees them. Bottom: "
    "each block adds one, up to 6; in the backward pass each block first runs forward again, and the maximum is 12.",
)

# %% [markdown] name="model_text"
# The sketch shows six blocks, each of which saves six tensors of the size of its input. A block of our GPT saves 16 times its input ([[where_memory_goes]]). The model
# below has many narrow blocks, so that activations take nearly all of its memory. A *policy* is a function that decides how to run block number i.

# %% name="model"
LAYERS = 24
WIDTH, BATCH = (512, 4) if device.type == "cuda" else (64, 4)  # a GPU is busy only with wider layers
LENGTH = 2 * WIDTH  # tokens per sequence
text = english(device)


def make_batch(sequences, length):
    """Return token ids and targets, each (sequences, length)."""
    return (stream[: sequences * length].view(sequences, length).clone() for stream in (text.train_x, text.train_y))


def make_gpt(layers=LAYERS, width=WIDTH, length=LENGTH):
    torch.manual_seed(0)
    return SmallGPT(layers=layers, width=width, context=length).to(device)


# %% name="policies"
ids, targets = make_batch(BATCH, LENGTH)


def loss_of(model, policy, ids=ids, targets=targets):
    x = model.tokens(ids) + model.positions(torch.arange(ids.shape[1], device=device))
    for i, block in enumerate(model.blocks):
        x = policy(block, x, i)
    return F.cross_entropy(model.head(model.norm(x)).flatten(0, 1), targets.flatten())


def plain(block, x, i):
    return block(x)


def metered(policy):
    """Run forward and backward once under the meter."""
    model = make_gpt()
    with MemoryMeter(model) as meter:
        loss_of(model, policy).backward()
    return meter


def measured(policy):
    """Return the meter of one run, and its floating-point operations."""
    model = make_gpt()
    flops = count_flops(lambda: loss_of(model, policy).backward())  # this run also warms up
    return metered(policy), flops


# %% [markdown] name="recompute_task"
# ### Your turn: keep the input, run again
#
# In PyTorch you can write an operation with its own backward pass. A `torch.autograd.Function` has two static methods.
#
# - Autograd records nothing inside `forward`.
# - `ctx` carries what `backward` needs: save tensors with `ctx.save_for_backward(...)` and read them from `ctx.saved_tensors`; store anything else as an
#   attribute.
# - `backward` receives the gradient of the result and returns one gradient per argument of `forward`, or None.
#
# **Contract.** `Recompute.apply(run, x)` returns run(x), checkpointed. `run` maps one tensor to another and may use parameters; `x` requires a gradient.
#
# - The result equals run(x).
# - Between the passes, only x is kept. After the backward pass, the graph of the second run is not kept.
# - `run` is called once in the forward pass and once in the backward pass.
# - `backward` returns the gradient of x (and None for `run`).
# - The gradients of the parameters that `run` uses are added to their `.grad`. A model calls `apply` many times, each time with a different `run`.


# %% name="recompute" answer=true reveal=true
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ### BEGIN SOLUTION
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()  # a leaf: the graph of the second run ends here
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)  # this also adds to the parameters' .grad
        return None, x.grad
        ### END SOLUTION


# %% name="recompute_check"
Recompute = check("activation_checkpointing.recompute", Recompute)

# %% name="recompute_hint"
hint("activation_checkpointing.recompute")


# %% [markdown] name="same_text"
# ### First, are the gradients the same?


# %% name="same"
def recomputed(block, x, i):
    return Recompute.apply(block, x)


gradients = {}
for name, policy in {"plain": plain, "recomputed": recomputed}.items():
    model = make_gpt()
    loss_of(model, policy).backward()
    gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
print("identical to the last bit:", torch.equal(gradients["plain"], gradients["recomputed"]))

# %% [markdown] name="guess_text"
# The gradients are identical, because the same operations ran on the same numbers. (Some GPU kernels add in a different order on every run. There,
# compare with how much two plain runs differ.)
#
# **Predict.** By what factor does the **peak** fall when all 24 blocks are checkpointed?

# %% name="guess"
my_guess = None  # peak, plain / checkpointed
### BEGIN GUESS
my_guess = 24 * 16 / (24 + 16)  # activations alone: 24 inputs, and one block's 16 tensors
### END GUESS
peak_guess = Prediction("Peak, plain / checkpointed", my_guess, "times")

# %% name="measure"
with sign_of_life("measuring both"):
    runs = {"plain": measured(plain), "recomputed": measured(recomputed)}
(before, flops), (after, more_flops) = runs.values()
peak_guess.reveal(before.peak_bytes / after.peak_bytes)
print(f"\nplain: {before}\n\nrecomputed: {after}")

# %% name="measure_figure"
shapes = {
    "plain": "Activations grow through the forward pass and shrink through the backward pass.",
    "recomputed": "Activations grow slowly; the backward pass has 24 short spikes.",
}
for name, alt in shapes.items():
    show(runs[name][0].plot(f"Forward and backward pass, {name}"), alt)

# %% [markdown] name="measure_explained"
# In the second picture, the forward pass saves only the inputs of the blocks. In the backward pass, each spike is one block: recomputed, used and
# freed. The meter has a category for these tensors: **recomputed activations**.
#
# For activations alone the ratio would be 24 × 16 / (24 + 16) = 9.6, or a little more, because the block that runs again has its input already. The peak falls by less because parameters and temporaries stay, and gradients
# grow through the backward pass. The peak is now at the end of that pass, in block 0.
#
# ## 2 · What the second run must reproduce
#
# `run` is called twice, and the gradients are right only if both calls do the same thing. A block with **dropout** draws random numbers.
#
# **Predict.** 32 equal rows of ones go through a linear layer, dropout with p = 0.5, and another linear layer. `Recompute` checkpoints the first two.
# The loss is the sum of the results. How far off is the gradient of the first layer's weight, as a percentage of its norm?

# %% name="dropout_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * math.sqrt(2 / 32)  # the difference of two means over 32 masks
### END GUESS
dropout_guess = Prediction("Error of the gradient", my_guess, "%")


# %% name="dropout"
def dropped(wrap):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to(device)
    last = nn.Linear(64, 1).to(device)
    rows = torch.ones(32, 64, device=device, requires_grad=True)
    torch.manual_seed(1)
    last(wrap(layers, rows)).sum().backward()
    return layers[0].weight.grad


def off(wrap):
    right = dropped(lambda run, x: run(x))
    return 100 * ((dropped(wrap) - right).norm() / right.norm()).item()


dropout_guess.reveal(off(Recompute.apply))

# %% [markdown] name="repeatable_task"
# The second run dropped different elements. The gradient belongs to a network that never ran, and no error is raised.
#
# ### Your turn: reproduce the first run
#
# Random numbers come from a generator whose state can be read and set. A block also depends on **autocast**: the forward pass often runs inside
# `torch.autocast`, the backward pass outside.
#
# **Contract.** `repeatable(run)` returns a function of x that runs `run` the same way every time.
#
# - The *first* call is exactly run(x), and the generators advance exactly as `run` advances them.
# - Each later call draws the same random numbers as the first, and leaves the generators as it found them.
# - Each later call runs `run` once, on the x that it is given. Autograd records the call if it is enabled around that call, whether or not it was enabled around the first.
# - Each later call runs under the autocast settings of the first call (on or off, and the dtype), whatever the settings around it are.
#
# `torch.is_autocast_enabled(kind)` and `torch.get_autocast_dtype(kind)` return the settings for a device type such as `x.device.type`;
# `torch.autocast(kind, dtype, enabled)` is the context manager that sets them.


# %% name="repeatable" answer=true reveal=true
def random_states():
    """Return the states of the CPU's generator and of the device's, if it has one."""
    own = {"cuda": torch.cuda, "mps": torch.mps}.get(device.type)
    return torch.get_rng_state(), own.get_rng_state() if own else None


def set_random_states(states):
    """Restore the states that `random_states` returned."""
    torch.set_rng_state(states[0])
    if states[1] is not None:
        {"cuda": torch.cuda, "mps": torch.mps}[device.type].set_rng_state(states[1])


def repeatable(run):
    ### BEGIN SOLUTION
    noted = None

    def again(x):
        nonlocal noted
        kind = x.device.type
        if noted is None:
            noted = random_states(), torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
            return run(x)
        states, dtype, enabled = noted
        now = random_states()
        set_random_states(states)
        with torch.autocast(kind, dtype, enabled):
            y = run(x)
        set_random_states(now)
        return y

    return again
    ### END SOLUTION


# %% name="repeatable_check"
repeatable = check("activation_checkpointing.repeatable", repeatable)

# %% name="repeatable_hint"
hint("activation_checkpointing.repeatable")


# %% [markdown] name="own_text"
# Together, the two make a checkpoint function of your own.


# %% name="own"
def own_checkpoint(run, x):
    return Recompute.apply(repeatable(run), x)


def autocast_off(wrap):
    """Return the error of a weight's gradient, in percent, when only the forward pass runs under autocast."""
    found = []
    for each in (lambda run, x: run(x), wrap):
        torch.manual_seed(0)
        layer = nn.Linear(64, 64).to(device)
        rows = torch.randn(32, 64, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16):
            y = each(lambda x, layer=layer: layer(layer(x).tanh()).tanh(), rows)
        y.float().square().sum().backward()
        found.append(layer.weight.grad)
    return 100 * ((found[1] - found[0]).norm() / found[0].norm()).item()


for name, wrap in {"Recompute": Recompute.apply, "with repeatable": own_checkpoint}.items():
    print(f"{name:16} error with dropout: {off(wrap):6.2f}%, with autocast: {autocast_off(wrap):6.2f}%")

# %% [markdown] name="reentrant_text"
# ### PyTorch's own
#
# `torch.utils.checkpoint.checkpoint` has two implementations.
#
# - `use_reentrant=True` is the older one. It works like `own_checkpoint`: a Function that runs a backward pass *inside* a backward pass.
# - `use_reentrant=False` needs no Function. The block runs as usual, under hooks that discard what autograd wants to save (you will write such hooks in
#   [[selective_checkpointing]]). When the backward pass asks for the first of these tensors, the block runs again and the hooks fill in all of them.
#
# Both restore the random state and the autocast settings, as `own_checkpoint` does. (With `preserve_rng_state=False`, the random state is not restored.)
#
# They differ for a layer with trainable weights whose input does not require a gradient. (You will meet this case in fine-tuning with LoRA, where the layers below are frozen.) The cell asks each variant whether its
# result requires a gradient.

# %% name="reentrant"
layer, data = nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)  # data: needs no gradient
variants = {
    "own_checkpoint": own_checkpoint,
    "use_reentrant=False": functools.partial(checkpoint, use_reentrant=False),
    "use_reentrant=True": functools.partial(checkpoint, use_reentrant=True),
    "without the argument": checkpoint,
}
needs = {}
for how, wrap in variants.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        needs[how] = wrap(layer, data).requires_grad
    print(f"{how:21} requires a gradient: {'yes' if needs[how] else 'no'}")
    for warning in caught:
        print(textwrap.indent(textwrap.fill(str(warning.message), 110), "    "))
words = "no gradient for the weights where the input needs none (use_reentrant=True)"
claims.record("P5", words, "one layer", float(needs["use_reentrant=True"]), "gradients", 0, 0)

# %% [markdown] name="reentrant_explained"
# Autograd asks a Function for the gradients of its *arguments*. The weights are not arguments: they are hidden inside `run`. If no argument requires a
# gradient, autograd skips the Function and the block never trains. `own_checkpoint` does not even warn.
#
# Look at the last lines of the output. If you leave the argument out, PyTorch warns and still runs the older implementation. (The warning announces an error for
# version 2.9; version 2.13, the one this lab is tested with, still does not raise it.) So always pass `use_reentrant=False`. That implementation also takes keyword arguments
# and works with `torch.autograd.grad`.
#
# **Predict.** When PyTorch's version (`use_reentrant=False`) checkpoints every block, by what percentage does the arithmetic of a forward and backward pass
# grow?

# %% name="beside_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 33  # one more forward pass, where a step is a forward pass and two for the backward
### END GUESS
flops_guess = Prediction("PyTorch's own: more arithmetic", my_guess, "%")


# %% name="beside"
def every(k):
    """Checkpoint blocks 0, k, 2k, ..."""
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False) if i % k == 0 else block(x)


runs["every block"] = measured(every(1))
flops_guess.reveal(100 * (runs["every block"][1] / flops - 1))
del runs["recomputed"]
for name, (meter, these_flops) in {"own_checkpoint": (after, more_flops), "PyTorch's": runs["every block"]}.items():
    more = 100 * (these_flops / flops - 1)
    print(f"{name:14} peak {human_bytes(meter.peak_bytes)}, arithmetic +{more:.1f}%")
after, more_flops = runs["every block"]

# %% [markdown] name="beside_explained"
# `own_checkpoint` adds a little less than a third: the output head is not checkpointed, and fused attention computes its scores again in the backward pass
# anyway.
#
# PyTorch stops recomputing a block as soon as it has the last tensor that the backward pass needs (*early stop*). Here that skips the last matmul of
# the MLP, whose result is not saved. In units of 2 × tokens × width², the forward pass of a block costs
#
# - 3 for q, k and v, 4 for attention (sequences are twice as long as the model is wide), 1 for its output,
# - 4 and 4 for the two layers of the MLP. Early stop skips the last 4 of these 16.
#
# ### What the articles say
#
# Two widely read articles on checkpointing make different claims about memory: "2 to 3 times less memory," and "40 to 50% of the activations saved." Both claim "30 to 33% slower" on a GPU.
#
# From here on, the lab times 12 of the 24 blocks, which takes half as long. `in_turns` runs each step once per round, so that a temporary slowdown
# affects all of them alike. `more_time` compares the times of each round, and returns the quartiles over the rounds.
#
# **Predict.** On this device, how much longer does a forward and backward pass take with every block checkpointed?

# %% name="time_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (more_flops / flops - 1)  # as much as there is more arithmetic
### END GUESS
time_guess = Prediction("Every block checkpointed: more time", my_guess, "%")

# %% name="claims_whole"
deep = make_gpt(layers=LAYERS // 2)  # half of the blocks: the relative time is about the same


def run(policy):
    deep.zero_grad()
    loss_of(deep, policy).backward()


with sign_of_life("plain and checkpointed, taking turns"):
    taken = in_turns({"plain": lambda: run(plain), "every block": lambda: run(every(1))})
low, slower, high = taken.more_time("every block")
time_guess.reveal(slower)
print(f"middle 50% of {len(taken.seconds['plain'])} pairs: {low:.0f} to {high:.0f}% more time")
print(f"{100 * (more_flops / flops - 1):.0f}% more arithmetic")
gpt24 = f"GPT, 24 blocks of width {WIDTH}"
gpt12 = f"GPT, {len(deep.blocks)} blocks of width {WIDTH}"
claims.figure("every block checkpointed, more time", f"{gpt12}, this device", slower, "%")

# %% [markdown] name="memory_text"
# The memory claim refers to training, so it needs a whole step: forward, backward and AdamW.


# %% name="claims_memory"
def step_peak(policy):
    """Return the peak of the second whole training step with AdamW."""
    model = make_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)  # foreach: the default on a GPU

    def step():
        optimizer.zero_grad()
        loss_of(model, policy).backward()
        optimizer.step()

    step()  # AdamW creates its state
    with MemoryMeter(model, optimizer) as meter:
        step()
    return meter.peak_bytes


kept = {name: sum(m.largest[t] for t in ("activations", "recomputed activations")) for name, (m, _) in runs.items()}
saved = 100 * (1 - kept["every block"] / kept["plain"])
peaks = [step_peak(policy) for policy in (plain, every(1))]
less, without = peaks[0] / peaks[1], before.peak_bytes / after.peak_bytes
print(f"whole step: {' and '.join(map(human_bytes, peaks))}, a {less:.2f}x smaller peak ({without:.2f}x without AdamW)")
print(f"activation memory falls by {saved:.0f}%")
claims.record("C9", "2 to 3x less memory", f"{gpt24}, step with AdamW", less, "times", 2, 3)
claims

# %% [markdown] name="whole_explained"
# **Memory.** The peak of the whole step falls by about the factor that the first article promises, although the activations shrink much more (by far more than the 40 to 50% of the second article): Adam's moments and temporaries do not shrink. The
# factor depends on the share of activations: with fewer of them, the peak would hardly fall.
#
# **Time.** The articles' figure of 30 to 33% is roughly the additional arithmetic without early stop. Compare your figure with it, and with your additional arithmetic; in Python, on a CPU, time usually grows more than arithmetic does. Why? Three contributions can be measured one by one: which operations run again and how long they
# take, what early stop skips, and what `checkpoint` itself costs in Python. The last one is measured on two tokens, where there is hardly any arithmetic: it is
# the time of a checkpointed run, minus that of a plain run, minus that of the second forward pass.
#
# **Predict.** A block's norms, GELU and residual sums do almost none of its FLOPs. What percentage of its forward-pass time do they take?

# %% name="guess_share"
my_guess = None  # %
### BEGIN GUESS
my_guess = 5  # they touch each number once
### END GUESS
share_guess = Prediction("Norms, GELU and sums: share of a block's forward pass", my_guess, "%")

# %% name="where_time"
block, x = deep.blocks[0], torch.randn(BATCH, LENGTH, WIDTH, device=device, requires_grad=True)
q = torch.randn(BATCH, block.heads, LENGTH, WIDTH // block.heads, device=device, requires_grad=True)
wide = torch.randn(BATCH, LENGTH, 4 * WIDTH, device=device, requires_grad=True)
operations = {
    "4 linear layers": lambda: (block.qkv(x), block.out(x), block.mlp[0](x), block.mlp[2](wide)),
    "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    "2 norms": lambda: (block.norm_1(x), block.norm_2(x)),
    "GELU": lambda: F.gelu(wide),
    "2 residual sums": lambda: (x + x, x + x),
}
short = [part[:1, :2].clone() for part in (ids, targets)]  # two tokens
packed = []
with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.detach(), lambda t: t):
    block(x)
with sign_of_life("one operation after the other"):
    lasts = {name: np.median(these) for name, these in in_turns(operations, 15).seconds.items()}
    skipped = len(deep.blocks) * benchmark(lambda: block.mlp[2](wide), runs=10).median
    again = benchmark(lambda: deep.blocks(x), runs=5).median  # the forward pass of all blocks
    tiny = in_turns(
        {
            "plain": lambda: loss_of(deep, plain, *short).backward(),
            "checkpointed": lambda: loss_of(deep, every(1), *short).backward(),
            "forward": lambda: deep.blocks(x[:1, :2]),
        },
        15,
    ).seconds
share_guess.reveal(100 * sum(lasts[name] for name in ("2 norms", "GELU", "2 residual sums")) / sum(lasts.values()))
work = {name: count_flops(operation) for name, operation in operations.items()}
table = [("forward pass of a block", "of its FLOPs", "of its time")]
for name, seconds in lasts.items():
    table.append((name, f"{work[name] / sum(work.values()):.0%}", f"{seconds / sum(lasts.values()):.0%}"))
show_table(table)
whole = np.median(taken.seconds["plain"])
own_cost = np.median(tiny["checkpointed"] - tiny["plain"] - tiny["forward"])
print(f"\nforward pass of all blocks: {again / whole:.0%} of a plain step")
print(f"the layers that early stop skips: {skipped / whole:.0%} of a plain step")
print(
    f"checkpoint itself, for {len(deep.blocks)} blocks that save {len(packed)} tensors each: {own_cost / whole:.0%} of a plain step"
)
print(f"sum: {100 * (again - skipped + own_cost) / whole:+.0f}% time; measured {slower:+.0f}%")

# %% [markdown] name="segments_text"
# The three parts were timed in separate runs. If their sum is far from the measured figure, other programs disturbed one of the runs: run the cell again.
#
# - The forward pass of the blocks runs again. It is about a third of a plain step in FLOPs. The first line below the table gives its share of the time. Norms, GELU and sums do
#   almost no FLOPs, but they read and write large tensors. Their share of the time is the answer to the prediction. It depends on the device, and on how many threads the matmuls can use.
# - `checkpoint` handles **every saved tensor** in Python: hooks pack it in the forward pass and again in the second forward pass, and unpack it in the backward pass. This cost does
#   not depend on the size of the tensor, so it weighs most heavily on small blocks.
#   (Of a block's 24 saved tensors, 13 are parameters and small statistics. The other 11 hold 16 times the block's input; the result of attention is saved twice, in the same memory.)
# - Early stop skips a quarter of the recomputed FLOPs, but in one large matmul, which runs at a high FLOP rate, so it saves less than a quarter of the time.
#
# The same comparison has been published for GPUs and a real width. Korthikanti et al. (2022, table 4) timed one layer of a GPT with 22 billion parameters (width 6,144) on 8 A100 GPUs with tensor parallelism. The published times, forward plus backward:
#
# | | ms | more time |
# |---|---|---|
# | nothing recomputed | 19.6, of which 7.7 in the forward pass | |
# | whole layer recomputed | 27.2 | 39% |
# | only the scores of unfused attention recomputed | 20.9 | 7% |
#
# Recomputing the layer adds 7.6 ms, about the time of its forward pass. (It exceeds a third of the step because the backward pass takes less than twice as long as the forward pass: it overlaps its messages with computation.) [[Traces]] reads recorded steps of real GPUs.
#
# ## 3 · How many segments?
#
# Several blocks can be checkpointed as one **segment**. Then fewer inputs are saved, but more is recomputed at a time.
#
# - `checkpoint_sequential` cuts an `nn.Sequential` into equal segments.
# - The last segment runs without a checkpoint, because it would be recomputed immediately. So one segment means no checkpointing at all.
# - The textbook rule: with n layers, √n segments need O(√n) memory. For 24 layers that is about 5 segments.
#
# **Predict.** Which number of segments gives the lowest peak for the 24 GPT blocks: 1, 2, 4, 6, 8, 12 or 24?

# %% name="guess_segments"
my_guess = None
### BEGIN GUESS
my_guess = 24  # an input costs 1 and a recomputed block 16: s + 16 x 24 / s has its minimum near 20
### END GUESS
segments_guess = Prediction("Segments with the lowest peak", my_guess, "")


# %% name="segments"
class Thin(nn.Module):
    """A layer that saves one tensor of the size of its input."""

    def forward(self, x):
        return torch.tanh(x)


def segmented(blocks, x, segments):
    """Return the peak of activations when `blocks` run in `segments` checkpointed segments."""
    with MemoryMeter(blocks) as meter:
        checkpoint_sequential(blocks, segments, x, use_reentrant=False).sum().backward()
    blocks.zero_grad()
    categories = ("activations", "recomputed activations", "temporaries")
    return max(sum(moment.held[c] for c in categories) for moment in meter.timeline)


counts = (1, 2, 4, 6, 8, 12, 24)
x = torch.randn(2, LENGTH, WIDTH, device=device, requires_grad=True)
stacks = {
    "GPT blocks": make_gpt().blocks,
    "thin layers": nn.Sequential(*(Thin() for _ in range(24))),
}
with sign_of_life("two stacks in 1 to 24 segments"):
    curves = {name: [segmented(blocks, x, s) / x.nbytes for s in counts] for name, blocks in stacks.items()}
best = {name: counts[int(np.argmin(curve))] for name, curve in curves.items()}
segments_guess.reveal(best["GPT blocks"])

# %% name="segments_figure"
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
for (name, curve), color, marker in zip(curves.items(), (COLORS[4], COLORS[0]), "os", strict=True):
    axes.loglog(counts, curve, marker + "-", base=2, color=color, label=name)
axes.set(
    title="24 layers in segments",
    xlabel="segments",
    ylabel="peak activation memory, in multiples of one input",
    xticks=counts,
)
axes.set_xticklabels(counts)
axes.legend(frameon=False)
show(figure, "Thin layers have their minimum near 5 segments; GPT blocks fall all the way to one segment per block.")
for name, curve in curves.items():
    print(f"{name}: {dict(zip(counts, [round(c) for c in curve], strict=True))}")
for name, count in best.items():
    subject, times_root = f"24 {name}, best of {len(counts)} numbers", count / math.sqrt(24)
    claims.record("C9", "the square root of n segments is best", subject, times_root, "x √n", 0.5, 1.7)

# %% [markdown] name="segments_explained"
# - **Thin layers.** The textbook rule assumes that each layer saves one tensor the size of its input. Then *s* segments of *n/s* layers hold about *s + n/s*,
#   which has its minimum at √n.
# - **GPT blocks** save 16 times their input. *s + 16·n/s* has its minimum at √(16·n), about 20. Of the numbers that we tried, 24 is best.
#
# The best number of segments grows only with √n, so in a deep model the best segment may contain more than one block. The next cell runs 64 blocks with one, two or four per segment.

# %% name="deeper"
deep_stack = make_gpt(layers=64).blocks
with sign_of_life("64 blocks in three kinds of segments"):
    for k in (1, 2, 4):
        peak = segmented(deep_stack, x, 64 // k) / x.nbytes
        print(f"{k} per segment: peak {peak:.0f} times one input; n/k + 16 k is {64 / k + 16 * k:.0f}")

# %% [markdown] name="every_text"
# With 64 blocks, pairs need less memory than single blocks: *n/k + 16·k* is smaller for k = 2 than for k = 1 if n is above 32. So checkpoint each block by itself if
# a device has fewer than about 32 of them, and consider pairs if it has more. The √n rule is for long chains of thin layers.
#
# ## 4 · Every second or third block
#
# If you have memory to spare, checkpoint only some of the blocks. For checkpointing every second or third block, one article promises "60 to 70% of the saving for 10 to 15% of
# the time."


# %% name="every"
def all_but(one):
    """Checkpoint all blocks except number `one`."""
    return lambda block, x, i: block(x) if i == one else checkpoint(block, x, use_reentrant=False)


with sign_of_life("every second, every third"):
    runs |= {f"every {k}": measured(every(k)) for k in (2, 3)}
    of_twelve = {"plain": plain, "every block": every(1), "every 2": every(2), "every 3": every(3)}
    of_twelve |= {"all but the last": all_but(len(deep.blocks) - 1)}
    taken = in_turns({name: lambda policy=policy: run(policy) for name, policy in of_twelve.items()})
quartiles = {name: taken.more_time(name) for name in of_twelve}
whole_saving = before.peak_bytes - after.peak_bytes
for k in (2, 3):
    meter, these_flops = runs[f"every {k}"]
    share = 100 * (before.peak_bytes - meter.peak_bytes) / whole_saving
    low, middle, high = quartiles[f"every {k}"]
    cost = f"{100 * (these_flops / flops - 1):.1f}% more arithmetic, {middle:+.0f}% time ({low:.0f} to {high:.0f}%)"
    print(f"every {k}: {share:.0f}% of the saving for {cost}\n         peak in {meter.peak_at}")
    claims.record("C9", "every 2nd or 3rd: 60 to 70 % of the saving", f"{gpt24}, every {k}", share, "%", 60, 70)
print(f"every block: peak in {after.peak_at}")

# %% [markdown] name="which_text"
# Half of the blocks give about half of the saving for half of the additional arithmetic, and a third gives about a third. So neither reaches the article's 60 to 70% of the saving here. Its 10 to 15% of the time is about half of the 30% that articles give for checkpointing every block. (The saving is not exactly half because the peak
# moves: with every second block it is at the loss, with every block at the end of the backward pass.) The ranges are the middle 50% of the rounds; where they
# overlap, these rounds do not show which choice is faster. A range tens of percentage points wide, or a negative time, means that other programs disturbed the rounds: run the cell again when the machine is quieter.
#
# *Which* blocks you choose matters, too. The next cell leaves out one block: the first, or the last.

# %% name="which"
for name, one in {"all but the first": 0, "all but the last": LAYERS - 1}.items():
    runs[name] = measured(all_but(one))
for name in ("every block", "all but the first", "all but the last"):
    meter, these_flops = runs[name]
    print(f"{name:17} peak {human_bytes(meter.peak_bytes)}, {100 * (these_flops / flops - 1):.1f}% more arithmetic")

# %% [markdown] name="which_explained"
# The last block needs no checkpoint: the backward pass starts with it, so its tensors would be recomputed as soon as they
# are freed. Leave it out, and the peak is the same for less arithmetic. The first block is the opposite: its tensors are needed until the end of the backward pass.

# %% [markdown] name="play_text"
# ## 5 · Explore
#
# The figure shows the same 24 blocks with every k-th block checkpointed. Where is the peak, and which category is the largest at that moment?

# %% name="play"
strides = {k: runs[name][0] for k, name in ((1, "every block"), (2, "every 2"), (3, "every 3"))}
with sign_of_life("two more strides"):
    strides |= {k: metered(every(k)) for k in (8, 24)}
explore(
    lambda every_kth: strides[every_kth].plot(
        f"1 block in {every_kth} checkpointed; peak {human_bytes(strides[every_kth].peak_bytes)}"
    ),
    "Memory over a forward and a backward pass: with more blocks checkpointed, a lower curve with more spikes.",
    every_kth=(2, tuple(strides)),
)

# %% [markdown] name="summary_text"
# ## 6 · Before and after
#
# The times are those of section 4. If other programs slowed down those runs, first run that section's cell again, then this one.

# %% name="summary"
table = [("", "peak", "of plain", "more arithmetic", "time", "middle 50%")]
for name, (low, middle, high) in quartiles.items():
    meter, these_flops = runs[name]
    share, more = f"{meter.peak_bytes / before.peak_bytes:.0%}", f"{100 * (these_flops / flops - 1):.1f}%"
    spread = "-" if name == "plain" else f"{low:.0f} to {high:.0f}%"
    table.append((name, human_bytes(meter.peak_bytes), share, more, f"{middle:+.0f}%", spread))
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A checkpointed block saves its input and runs forward again in the backward pass: the same gradients for at most a third more arithmetic. Time can
#   grow by more, because `checkpoint` handles every saved tensor in Python, at a cost that does not depend on its size. ([[Selective_checkpointing]] measures narrow and wide layers.)
# - The second run must reproduce the first, including random numbers and autocast. Always pass `use_reentrant=False`.
# - This lab's GPT block saves 16 times its input. So checkpoint each block by itself, or in pairs if a device has more than about 32; √n segments are for
#   thin layers.
# - Checkpoint only as many blocks as you need; the first one to leave out is the last block.
#
# **What to reach for when.** If activations are the largest category and the batch size is already one, checkpoint every block first. If that saves more than
# you need, keep some results inside the blocks ([[selective_checkpointing]]). If the peak is in the optimizer step, checkpointing will not help
# ([[lean_optimizers]]). For what checkpointing does to MFU, see [[where_the_time_goes]].
#
# **Sources.** Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost* (√n); Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*; PyTorch documentation, `torch.utils.checkpoint`.
