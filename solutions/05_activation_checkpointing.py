# %% [markdown] name="title"
# # Activation checkpointing
#
# **Activations can be thrown away after the forward pass and recomputed in the backward pass. You choose how much memory to save, block by block or
# operation by operation, and pay for it in arithmetic.**
#
# | | |
# |---|---|
# | After this you can | write checkpointing yourself, including everything that the second run must reproduce; choose what a block keeps, operation by operation; move saved tensors elsewhere; measure what each choice saves and costs |
# | Time | 180 minutes, in two sittings: sections 1 to 4, then 5 to 10 |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and, for autocast, [[#mixed_precision]] |
# | Syllabus | T9, T10, T32, C9, P5 |

# %% name="setup" setup=true
import contextlib
import functools
import itertools
import math
import tempfile
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
    kept_over_time,
    pick_device,
    saved_tensor_bytes,
    show,
    show_table,
    sign_of_life,
)
from helpers.virtual_gpu import virtual_gpu

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch._functorch import config as partitioner
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

device = pick_device()
claims = Claims()
aten = torch.ops.aten
MiB = 2**20
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
# The sketch shows six blocks, each of which saves six tensors of the size of its input. A block of our GPT saves 16 ([[where_memory_goes]]). The model
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
# compare with the difference between two plain runs.)
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
# For activations alone the ratio would be 24 × 16 / (24 + 16) = 9.6. The peak falls by less because parameters and temporaries stay, and gradients
# grow through the backward pass. The peak is now at the end of that pass, in block 0.
#
# ## 2 · What the second run must reproduce
#
# `run` is called twice, and the gradients are right only if both calls do the same thing. A block with **dropout** draws random numbers.
#
# **Predict.** 32 equal rows of ones go through a linear layer, dropout with p = 0.5, and another linear layer. `Recompute` checkpoints the first two.
# How far off is the gradient of the first layer's weight, as a percentage of its norm?

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
# - The *first* call is exactly run(x), and the generators advance as they do after `run`.
# - Each later call draws the same random numbers as the first, and leaves the generators as they were before it.
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
    """Return the error in percent of a weight's gradient when the forward pass alone runs under autocast."""
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
#   section 6). When the backward pass asks for the first of these tensors, the block runs again and the hooks fill in all of them.
#
# Both restore random numbers and autocast, as `own_checkpoint` does. (`preserve_rng_state=False` leaves out the random numbers.)
#
# They differ for a layer with trainable weights whose input does not require a gradient. (You will meet this case in fine-tuning with LoRA, where the layers below are frozen.) Does the
# result require a gradient?

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
# Look at the last lines. If you leave the argument out, PyTorch warns and still runs the older implementation. (The warning announces an error for
# version 2.9; version 2.13, the one this lab is tested with, still does not raise it.) So always pass `use_reentrant=False`. It also takes keyword arguments
# and works with `torch.autograd.grad`.
#
# **Predict.** When PyTorch's version (`use_reentrant=False`) checkpoints every block, by what percentage does the arithmetic of a forward and backward pass
# grow?

# %% name="beside_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 33  # one more forward pass, where a step is a forward pass and two for the backward
### END GUESS
stop_guess = Prediction("PyTorch's own: more arithmetic", my_guess, "%")


# %% name="beside"
def every(k):
    """Checkpoint blocks 0, k, 2k, ..."""
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False) if i % k == 0 else block(x)


runs["every block"] = measured(every(1))
stop_guess.reveal(100 * (runs["every block"][1] / flops - 1))
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
# - 4 and 4 for the two layers of the MLP. Early stop saves the last 4 of these 16.
#
# ### What the articles say
#
# Two widely read articles on checkpointing make different claims about memory: "2 to 3 times less memory", and "40 to 50% of the activations saved". Both claim "30 to 33% slower".
#
# From here on, the lab times 12 of the 24 blocks, which takes half as long.
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


def in_turns(steps, rounds=5):
    """Time each step once per round, after a warm-up; return seconds by name, an array with one entry per round."""
    taken = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):  # taking turns, so that a slow moment of the machine affects all of them
        for name, step in steps.items():
            taken[name].append(benchmark(step, runs=1, warmup=0).median)
    return {name: np.array(these) for name, these in taken.items()}


def more_time(taken, name, baseline="plain"):
    """Return the quartiles of the additional time over the rounds, in percent of the baseline in the same round."""
    return np.percentile(100 * (taken[name] / taken[baseline] - 1), (25, 50, 75))


with sign_of_life("plain and checkpointed, taking turns"):
    taken = in_turns({"plain": lambda: run(plain), "every block": lambda: run(every(1))})
low, slower, high = more_time(taken, "every block")
time_guess.reveal(slower)
print(f"middle half of {len(taken['plain'])} pairs: {low:.0f} to {high:.0f}% more time")
print(f"{100 * (more_flops / flops - 1):.0f}% more arithmetic")
gpt24 = f"GPT, 24 blocks of width {WIDTH}"
gpt12 = f"GPT, {len(deep.blocks)} blocks of width {WIDTH}"
claims.figure("every block checkpointed, more time", f"{gpt12}, this device", slower, "%")

# %% [markdown] name="memory_text"
# The claim about memory is about training, so it needs a whole step: forward, backward and AdamW.


# %% name="claims_memory"
def step_peak(policy):
    """Return the peak of a whole training step with AdamW, the second one."""
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
print(f"whole step: {' and '.join(map(human_bytes, peaks))}, {less:.2f} times less; without AdamW {without:.2f}")
print(f"of the activations {saved:.0f}% are saved")
claims.record("C9", "2 to 3x less memory", f"{gpt24}, step with AdamW", less, "times", 2, 3)
claims

# %% [markdown] name="whole_explained"
# **Memory.** The peak of the whole step falls by about the factor that the first article promises, although the activations shrink much more: Adam's moments and temporaries do not shrink. The
# factor depends on the share of activations: with fewer of them, the peak would hardly fall.
#
# **Time** grows more than arithmetic does. Why? Three explanations can be measured one by one: which operations run again and how long they
# take, what early stop skips, and what `checkpoint` itself costs in Python. The last one is measured on two tokens, where there is hardly any arithmetic: take
# the time of a checkpointed run, minus that of a plain run, minus that of the second forward pass.
#
# **Predict.** A block's norms, GELU and residual sums do almost none of its FLOPs. What percentage of the time of its forward pass do they take?

# %% name="guess_light"
my_guess = None  # %
### BEGIN GUESS
my_guess = 5  # they touch each number once
### END GUESS
light_guess = Prediction("Norms, GELU and sums: share of a block's forward pass", my_guess, "%")

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
with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t, lambda t: t):
    block(x)
with sign_of_life("one operation after the other"):
    lasts = {name: np.median(these) for name, these in in_turns(operations, 15).items()}
    skipped = len(deep.blocks) * benchmark(lambda: block.mlp[2](wide), runs=10).median
    again = benchmark(lambda: deep.blocks(x), runs=5).median  # the forward pass of all blocks
    tiny = in_turns(
        {
            "plain": lambda: loss_of(deep, plain, *short).backward(),
            "checkpointed": lambda: loss_of(deep, every(1), *short).backward(),
            "forward": lambda: deep.blocks(x[:1, :2]),
        },
        15,
    )
light_guess.reveal(100 * sum(lasts[name] for name in ("2 norms", "GELU", "2 residual sums")) / sum(lasts.values()))
work = {name: count_flops(operation) for name, operation in operations.items()}
table = [("forward pass of a block", "of its FLOPs", "of its time")]
for name, seconds in lasts.items():
    table.append((name, f"{work[name] / sum(work.values()):.0%}", f"{seconds / sum(lasts.values()):.0%}"))
show_table(table)
whole = np.median(taken["plain"])
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
# - The forward pass of the blocks runs again. It is about a third of a plain step in FLOPs. The first line below the table gives its share of the time. Norms, GELU and sums take a good part of that time,
#   with almost no FLOPs: they read and write large tensors, and that takes time, too.
# - `checkpoint` handles **every saved tensor** in Python: hooks pack it in the forward pass, again in the second one, and unpack it in the backward pass. This cost does
#   not depend on the size of the tensor, so it weighs most heavily on small blocks.
# - Early stop skips a quarter of the recomputed FLOPs, but in one large matmul, which runs at a high FLOP rate, so it saves less than a quarter of the time.
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
axes.set(title="24 layers in segments", xlabel="segments", ylabel="peak of activations, in inputs", xticks=counts)
axes.set_xticklabels(counts)
axes.legend(frameon=False)
show(figure, "Thin layers have their minimum near 5 segments; GPT blocks fall all the way to one segment per block.")
for name, curve in curves.items():
    print(f"{name}: {dict(zip(counts, [round(c) for c in curve], strict=True))}")
for name, count in best.items():
    subject, times_root = f"24 {name}, best of {len(counts)} numbers", count / math.sqrt(24)
    claims.record("C9", "the square root of n segments is best", subject, times_root, "x root", 0.5, 1.7)

# %% [markdown] name="segments_explained"
# - **Thin layers.** The textbook rule assumes that a layer saves as much as its input takes. Then *s* segments of *n/s* layers hold about *s + n/s*,
#   which has its minimum at √n.
# - **GPT blocks** save 16 times their input. *s + 16·n/s* has its minimum at √(16·n), about 20. Of the numbers that we tried, 24 is best.
#
# The best number of segments grows only with √n, so in a deep model the best segment may contain more than one block. The next cell runs 64 blocks with one, two or four per segment.

# %% name="deeper"
deep_stack = make_gpt(layers=64).blocks
with sign_of_life("64 blocks in three kinds of segments"):
    for k in (1, 2, 4):
        peak = segmented(deep_stack, x, 64 // k) / x.nbytes
        print(f"{k} per segment: peak {peak:.0f} inputs; n/k + 16 k is {64 / k + 16 * k:.0f}")

# %% [markdown] name="every_text"
# With 64 blocks, pairs need less memory than single blocks: *n/k + 16·k* is smaller for k = 2 than for k = 1 if n is above 32. So checkpoint each block by itself if
# a device has fewer than about 32 of them, and consider pairs if it has more. The √n rule is for long chains of thin layers.
#
# ## 4 · Every second or third block
#
# If you have memory to spare, checkpoint only some of the blocks. If you checkpoint every second or third block, one article promises "60 to 70% of the saving for 10 to 15% of
# the time".

# %% name="every"
with sign_of_life("every second, every third"):
    runs |= {f"every {k}": measured(every(k)) for k in (2, 3)}
whole_saving = before.peak_bytes - after.peak_bytes
share = {}
for k in (2, 3):
    meter, these_flops = runs[f"every {k}"]
    share[k] = 100 * (before.peak_bytes - meter.peak_bytes) / whole_saving
    gain = f"{share[k]:.0f}% of the saving for {100 * (these_flops / flops - 1):.1f}% more arithmetic"
    print(f"every {k}: {gain}, peak in {meter.peak_at}")
    claims.record("C9", "every 2nd or 3rd: 60 to 70 % of the saving", f"{gpt24}, every {k}", share[k], "%", 60, 70)
print(f"every block: {100 * (more_flops / flops - 1):.1f}% more arithmetic, peak in {after.peak_at}")
for name, left_out in {"all but the first": 0, "all but the last": LAYERS - 1}.items():

    def policy(block, x, i, out=left_out):
        return block(x) if i == out else checkpoint(block, x, use_reentrant=False)

    meter, these_flops = measured(policy)
    print(f"{name}: {100 * (these_flops / flops - 1):.1f}% more arithmetic, peak {human_bytes(meter.peak_bytes)}")
print(f"every block: peak {human_bytes(after.peak_bytes)}")

# %% [markdown] name="parts_text"
# Half of the blocks give about half of the saving for half of the arithmetic, and a third gives about a third. (It is not exactly half because the peak
# moves: with every second block it is at the loss, with every block at the end of the backward pass.)
#
# *Which* blocks you choose matters a little. The last block needs no checkpoint: the backward pass starts with it, so its tensors are recomputed as soon as they
# are freed. Leave it out, and the peak is the same for less arithmetic. The first block is the opposite: its tensors are needed until the end of the backward pass.
# What you keep **inside a block** matters more.
#
# ## 5 · Inside a block
#
# ### What a block saves
#
# The GPT's block has LayerNorm, fused attention and an MLP with GELU. A Llama block has RMSNorm, rotary position embeddings and SwiGLU: three matrices,
# with an inner size of 2.75 × width here, instead of two with 4 × width. Both have about the same number of parameters.
#
# **Predict.** How many times the size of its input does the Llama block save?

# %% name="ledger_guess"
my_guess = None  # saved bytes / bytes of the input
### BEGIN GUESS
my_guess = 16  # as the GPT's
### END GUESS
ledger_guess = Prediction("A Llama block saves, relative to its input", my_guess, "times")

# %% name="ledger"
with sign_of_life("importing transformers"):
    from transformers import LlamaConfig, LlamaForCausalLM


def make_llama(kv_heads=4, layers=8):
    sizes = {"hidden_size": WIDTH, "intermediate_size": 11 * WIDTH // 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": kv_heads, "num_hidden_layers": layers, "max_position_embeddings": LENGTH}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, use_cache=False, **sizes)).to(device).train()


def ledger(block, parts, forward):
    """Return what each part of `block` adds to the saved tensors, in sizes of the block's input."""
    saved, inside, handles = {}, ["rest"], []

    def leave(*_):
        inside.pop()

    for name in parts:
        part = block.get_submodule(name)
        handles.append(part.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))
        handles.append(part.register_forward_hook(leave))
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved.setdefault(storage.data_ptr(), (inside[-1], storage))  # counted where it is saved first
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    for handle in handles:
        handle.remove()
    by_part = {name: sum(s.nbytes() for part, s in saved.values() if part == name) for name in (*parts, "rest")}
    return {name: nbytes / result.nbytes for name, nbytes in by_part.items()}


# %% name="ledgers"
block, x = make_gpt(layers=1).blocks[0], torch.randn(BATCH, LENGTH, WIDTH, device=device, requires_grad=True)
ledgers = {"GPT": ledger(block, ("norm_1", "qkv", "out", "norm_2", "mlp"), lambda: block(x))}
for heads in (4, 1):
    llama = make_llama(heads, layers=1)
    layer, angles = llama.model.layers[0], llama.model.rotary_emb(x, torch.arange(LENGTH, device=device)[None])
    parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    forward = functools.partial(layer, x, position_embeddings=angles)
    ledgers[f"Llama, {heads} KV head{'s' * (heads > 1)}"] = ledger(layer, parts, forward)
ledger_guess.reveal(sum(ledgers["Llama, 4 KV heads"].values()))
for name, parts in ledgers.items():
    print(f"{name:18} {sum(parts.values()):5.2f}: {', '.join(f'{part} {size:.2f}' for part, size in parts.items())}")

# %% [markdown] name="ledger_explained"
# In multiples of the size of its input, each block saves
#
# | | GPT | Llama |
# |---|---|---|
# | first norm | 1: its input | 2: its input, and the normalized input before it is multiplied by the weight |
# | attention | 5: the norm's result, q, k, v, and the output | 5: the same; rotary embeddings add only small tables |
# | second norm | 1 | 2 |
# | MLP | 9: the norm's result; before and after GELU, 4 each | 12: the norm's result; gate, SiLU of the gate, up and their product, 2.75 each |
# | total | 16 | 21 |
#
# (The printed lines count a tensor where it is first saved, so the "rest" of the GPT holds q, k, v and the output of attention.) With one KV head instead of four, k and v
# shrink to a quarter. Fused kernels for RMSNorm or SwiGLU would save less.
#
# Korthikanti et al. (2022) published **34 bytes** per token and unit of width for a GPT block in 16 bits. It is the same ledger: 16 tensors
# of 2 bytes, and two dropout masks of 1 byte. Without fused attention they add 5 × heads × T / width bytes for the scores.
#
# ### Attention or MLP
#
# Without a fused kernel, a block also saves the T × T scores of every head. With fused attention these scores never exist in memory. So the value of
# "checkpoint attention only" depends on the kernel (and, since scores grow with T², on the sequence length).


# %% name="attention_only"
def attention_part(block, x):
    B, T, C = x.shape
    q, k, v = block.qkv(block.norm_1(x)).split(C, dim=-1)
    q, k, v = (t.view(B, T, block.heads, C // block.heads).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + block.out(y.transpose(1, 2).reshape(B, T, C))


def mlp_part(block, x):
    return x + block.mlp(block.norm_2(x))


def attention_only(block, x, i):
    return mlp_part(block, checkpoint(attention_part, block, x, use_reentrant=False))


def mlp_only(block, x, i):
    return checkpoint(mlp_part, block, attention_part(block, x), use_reentrant=False)


halves = {"attention only": attention_only, "MLP only": mlp_only}
with sign_of_life("halves of blocks, with two kernels"):
    runs |= {name: measured(policy) for name, policy in halves.items()}
    with sdpa_kernel(SDPBackend.MATH):
        with_scores = {name: metered(policy) for name, policy in ({"plain": plain} | halves).items()}
fused = {name: runs[name][0] for name in with_scores}
for kernel, meters in {"fused": fused, "unfused": with_scores}.items():
    for name in halves:
        share = meters[name].peak_bytes / meters["plain"].peak_bytes
        print(f"{kernel} attention, {name:15} checkpointed: peak {share:.0%} of no checkpoint")

# %% [markdown] name="policy_task"
# With fused attention, checkpointing the MLP saves more. Without it, checkpointing attention does.
#
# ### Your turn: operation by operation
#
# A *selective* policy is asked about every operation in the block: keep the result, or recompute it?
#
# - The usual rule: matmuls are expensive, everything else is cheap.
# - But matmuls differ. An element that sums 256 terms costs four times as much as one that sums 64, and takes the same memory.
#
# So compute for each operation how many FLOPs **one element of its result** costs, and keep the expensive results.
#
# **Contract.** `keep_costly(least)` returns a `context_fn` for `checkpoint(..., use_reentrant=False, context_fn=...)`: a function without arguments that
# returns `create_selective_checkpoint_contexts(policy)`.
#
# - PyTorch calls `policy(context, op, *args, **kwargs)` for each operation. It returns `CheckpointPolicy.MUST_SAVE` to keep the result and
#   `CheckpointPolicy.PREFER_RECOMPUTE` to drop it.
# - A matmul of (m, k) and (k, n) costs 2·k FLOPs per element of its result. `FACTOR` lists these operations, each with the position of its first factor in `args`.
# - Fused attention costs 4·T FLOPs per element, for T keys. `is_attention` recognizes it. Its first arguments are q, k and v, each (..., length, d).
# - Every other operation costs 0.
# - Results that cost `least` FLOPs per element or more are kept, all others dropped. `least` is above 0 and need not be an integer.
# - One `context_fn` serves many blocks: each call returns new contexts.

# %% name="policy" answer=true reveal=true
FACTOR = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten.linear.default: 0}


def is_attention(op):
    return op.name().startswith("aten::_scaled_dot_product")


def keep_costly(least):
    ### BEGIN SOLUTION
    def flops_per_element(op, args):
        if op in FACTOR:
            return 2 * args[FACTOR[op]].shape[-1]
        return 4 * args[1].shape[-2] if is_attention(op) else 0

    def policy(context, op, *args, **kwargs):
        worth_it = flops_per_element(op, args) >= least
        return CheckpointPolicy.MUST_SAVE if worth_it else CheckpointPolicy.PREFER_RECOMPUTE

    return functools.partial(create_selective_checkpoint_contexts, policy)
    ### END SOLUTION


# %% name="policy_check"
keep_costly = check("activation_checkpointing.policy", keep_costly)

# %% name="policy_hint"
hint("activation_checkpointing.policy")

# %% [markdown] name="selective_text"
# In FLOPs per element, with sequences twice as long as the model is wide, our block has
#
# - 2 × width in the matmuls for q, k and v, for the output of attention and for the first layer of the MLP;
# - 8 × width in the second layer of the MLP, which sums 4 × width terms;
# - 8 × width in attention.
#
# We compare three policies: `keep_costly` from 2 × width, `keep_costly` from 4 × width, and the rule that people usually write, "keep matmuls":
# keep the result if the operation is in `FACTOR`.
#
# **Predict.** How much arithmetic does "keep matmuls" add, as a percentage of the plain run's?

# %% name="selective_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 0  # all matmuls are kept, and the rest costs no FLOPs that count
### END GUESS
matmuls_guess = Prediction("Keep matmuls: more arithmetic", my_guess, "%", difference=True)


# %% name="selective"
def selective(context_fn):
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False, context_fn=context_fn)


def keep_matmuls(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in FACTOR else CheckpointPolicy.PREFER_RECOMPUTE


usual_rule = functools.partial(create_selective_checkpoint_contexts, keep_matmuls)


def policies_for(width):
    """Return all policies by name; those of `keep_costly` suit a model of this width."""
    return {
        "plain": plain,
        "every block": every(1),
        "every 2": every(2),
        "every 3": every(3),
        **halves,
        "keep matmuls": selective(usual_rule),
        "keep from 2 x width": selective(keep_costly(2 * width)),
        "keep from 4 x width": selective(keep_costly(4 * width)),
    }


policies = policies_for(WIDTH)
with sign_of_life("three selective policies"):
    runs |= {name: measured(policy) for name, policy in policies.items() if name not in runs}
matmuls_guess.reveal(100 * (runs["keep matmuls"][1] / flops - 1))
for name in list(policies)[-3:]:
    meter, these_flops = runs[name]
    print(f"{name:20} peak {human_bytes(meter.peak_bytes):>10}, arithmetic +{100 * (these_flops / flops - 1):.1f}%")
part = (before.peak_bytes - runs["keep from 4 x width"][0].peak_bytes) / whole_saving
cost = (runs["keep from 4 x width"][1] - flops) / (more_flops - flops)
print(f"keep from 4 x width: {part:.0%} of what every block saves, for {cost:.0%} of its arithmetic")

# %% [markdown] name="pareto_text"
# Fused attention is not in `FACTOR`: its kernel has a name of its own, and the usual rule recomputes it.
#
# ### All in one picture
#
# Each policy is a point: peak against arithmetic on the left, peak against time on the right. Lower left is better. A policy is **dominated** if
# another one needs no more memory and no more arithmetic.
#
# **Predict.** "Keep from 2 × width" recomputes no matmul and no attention. How much more time than plain does it take on this device?

# %% name="pareto_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 10  # norms, GELU and sums
### END GUESS
policy_guess = Prediction("Keep from 2 x width: more time", my_guess, "%", difference=True)

# %% name="pareto"
ways = {name: (runs[name][0].peak_bytes / MiB, 100 * (runs[name][1] / flops - 1)) for name in policies}
dominated_by = {
    name: [other for other, (x, y) in ways.items() if (x, y) != here and x <= here[0] and y <= here[1]]
    for name, here in ways.items()
}
with sign_of_life("nine policies on 12 blocks, taking turns"):
    taken = in_turns({name: lambda policy=policy: run(policy) for name, policy in policies.items()})
quartiles = {name: more_time(taken, name) for name in policies}
policy_guess.reveal(quartiles["keep from 2 x width"][1])
table = [("", "peak", "more arithmetic", "more time", "middle half", "dominated by")]
for name, (peak, more) in ways.items():
    low, middle, high = quartiles[name]
    spread, by = f"{low:.0f} to {high:.0f}%", dominated_by[name]
    table.append((name, f"{peak:.1f} MiB", f"{more:.1f}%", f"{middle:.0f}%", spread, by[0] if by else "-"))
show_table(table)

# %% name="pareto_figure"
figure = Figure(figsize=(9, 3.8), layout="constrained")
left, right = figure.subplots(1, 2)
front = sorted(ways[name] for name, by in dominated_by.items() if not by)
left.plot(*zip(*front, strict=True), color=COLORS[7], lw=1)
looks = zip(itertools.cycle(COLORS), itertools.cycle("osD^v<>P"), strict=False)
for (name, (peak, more)), (color, marker) in zip(ways.items(), looks, strict=False):
    low, middle, high = quartiles[name]
    left.plot(peak, more, marker, color=color, ls="", label=name)
    right.errorbar(peak, middle, [[middle - low], [high - middle]], fmt=marker, color=color, capsize=3)
figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
limits = (0, 1.1 * before.peak_bytes / MiB)
left.set(title="in arithmetic", xlabel="peak, MiB", ylabel="more FLOPs than plain, %", xlim=limits)
right.set(title=f"in time, width {WIDTH}", xlabel="peak, MiB", ylabel="more time than plain, %", xlim=limits)
show(
    figure,
    "Left, arithmetic against peak: the policies by cost per element, and the MLP alone, lie on a line below the others. "
    "Right, time against peak, with error bars for the middle half of the rounds.",
)

# %% [markdown] name="selective_explained"
# The left picture, on arithmetic:
#
# - *Keep from 2 × width* repeats no matmul and no attention. Norms, GELU and sums made up a good part of the saved bytes.
# - *Keep matmuls* runs attention again and is dominated by *MLP only*, which recomputes the widest tensors of the block. They cost few FLOPs per byte.
# - *Keep from 4 × width* keeps attention and the result of the MLP, and drops the wide tensors: nearly the saving of *every block*, for two thirds of its extra FLOPs.
# - *Every block* has the lowest peak of all.
#
# So **keep what costs the most FLOPs per byte**. (*Plain* is dominated because only matmuls and attention count as arithmetic here.)
#
# In time (right picture), the ranking is different, because PyTorch calls the policy in Python for every operation. With narrow layers these calls can take longer than the arithmetic that they
# save: compare the selective policies with *every block*. Does this hold for wide layers?

# %% name="wider"
wider, longer, sequences = (2048, 1024, 4) if device.type == "cuda" else (512, 256, 1)
wide_model, batch = make_gpt(layers=2, width=wider, length=longer), list(make_batch(sequences, longer))
chosen = ("plain", "every block", "MLP only", "keep matmuls", "keep from 2 x width")
of_wider = {name: policy for name, policy in policies_for(wider).items() if name in chosen}


def wider_step(policy):
    wide_model.zero_grad()
    loss_of(wide_model, policy, *batch).backward()


with sign_of_life(f"five policies at width {wider}"):
    work = {name: count_flops(lambda policy=policy: wider_step(policy)) for name, policy in of_wider.items()}
    taken = in_turns({name: lambda policy=policy: wider_step(policy) for name, policy in of_wider.items()}, 5)
table = [("", "more arithmetic", f"more time, width {wider}", "middle half", f"more time, width {WIDTH}")]
for name in chosen:
    low, middle, high = more_time(taken, name)
    spread, narrow = f"{low:.0f} to {high:.0f}%", f"{quartiles[name][1]:.0f}%"
    table.append((name, f"{100 * (work[name] / work['plain'] - 1):.1f}%", f"{middle:.0f}%", spread, narrow))
show_table(table)

# %% [markdown] name="moved_task"
# The last column shows the same policies with narrow layers. With wide layers, Python takes a smaller share of the time. Compare the middle halves before you rank
# policies: where they overlap, these rounds do not show which policy is faster. A compiled block needs no Python at all for this choice (section 7).
#
# ## 6 · Moved instead of recomputed
#
# Activations can also be kept elsewhere and fetched when they are needed. Autograd has hooks for that. It calls `pack` with each tensor that it saves,
# and keeps what `pack` returns. In the backward pass it calls `unpack` with that object, and `unpack` returns the tensor.
#
# ### Your turn: hooks
#
# **Contract.** `moved(parameters, put, get, least)` returns a context manager, `torch.autograd.graph.saved_tensors_hooks(pack, unpack)`. Tensors that are
# saved inside it are put away.
#
# - `put(tensor)` stores a copy and returns a ticket, which may be any object, including a tensor. `get(ticket)` returns the tensor. Call `get` in the backward pass only;
#   if the graph is retained, a second backward pass calls it again.
# - Put away floating-point tensors of `least` bytes or more. All others stay.
# - `parameters` stay, and so does every tensor that shares memory with one. (They exist anyway, and a linear layer saves its weight *transposed*.)
# - For a tensor that was put away, only the ticket is kept, and nothing after the backward pass.
# - For a tensor that stays, keep `tensor.detach()`. Otherwise an operation that saves its own result would keep itself alive.


# %% name="moved" answer=true reveal=true
def moved(parameters, put, get, least):
    ### BEGIN SOLUTION
    there = {p.untyped_storage().data_ptr() for p in parameters}

    def pack(tensor):
        exists = tensor.untyped_storage().data_ptr() in there
        if exists or tensor.nbytes < least or not tensor.is_floating_point():
            return False, tensor.detach()
        return True, put(tensor)

    def unpack(packed):
        away, kept = packed
        return get(kept) if away else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    ### END SOLUTION


# %% name="moved_check"
moved = check("activation_checkpointing.moved", moved)

# %% name="moved_hint"
hint("activation_checkpointing.moved")

# %% [markdown] name="offload_text"
# Where can saved tensors go?
#
# - **Away.** From a GPU's memory to the host's. On a CPU they are already in the host's memory, so here they move to files. The meter does not count
#   files, but the operating system caches them in the same RAM as long as there is room. So on a CPU the cell shows the mechanism and its cost, but frees no RAM.
# - **Nowhere.** They can stay where they are, in half the bytes: as BF16.
#
# **Predict.** How much more time than plain does a step take if it moves every large tensor away and back?

# %% name="offload_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 2 * slower  # twice as slow as recomputing
### END GUESS
moving_guess = Prediction("Moved away: more time than plain", my_guess, "%", difference=True)


# %% name="elsewhere"
class Elsewhere:
    """Stores tensors of a GPU in the host's memory, and tensors of a CPU in files, one per tensor."""

    def __init__(self):
        self.nbytes = 0

    def put(self, tensor):
        self.nbytes += tensor.nbytes
        if device.type != "cpu":
            return tensor.cpu()
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (a file per tensor: it goes when the ticket goes)
        file.write(tensor.detach().contiguous().numpy())
        return file, tensor.shape, tensor.dtype

    def get(self, ticket):
        if device.type != "cpu":
            return ticket.to(device)
        file, shape, dtype = ticket
        tensor = torch.empty(shape, dtype=dtype)
        file.seek(0)
        if file.readinto(tensor.numpy()) != tensor.nbytes:
            raise OSError("the file is shorter than the tensor: is the disk full?")
        return tensor


# %% name="offload"
def step_under(model, put, get, least=64 * 1024):
    """Run forward and backward; tensors that autograd saves go through `put` and `get`."""
    model.zero_grad()
    with moved(model.parameters(), put, get, least):
        loss = loss_of(model, plain)
    loss.backward()


elsewhere = Elsewhere()
hooks = {
    "moved away": (elsewhere.put, elsewhere.get),
    "kept in BF16": (lambda t: t.bfloat16(), lambda t: t.float()),
}
found, right = {}, gradients["plain"]
model = make_gpt()
with sign_of_life("moving tensors"):
    for name, (put, get) in hooks.items():
        with MemoryMeter(model) as meter:
            step_under(model, put, get)
        mine = torch.cat([p.grad.flatten() for p in model.parameters()])
        found[name] = meter, ((mine - right).norm() / right.norm()).item()
    moved_bytes = elsewhere.nbytes
    steps = {"plain": lambda: run(plain), "every block": lambda: run(every(1))}
    steps |= {name: lambda pair=pair: step_under(deep, *pair) for name, pair in hooks.items()}
    taken = in_turns(steps, 4)
quartiles |= {name: more_time(taken, name) for name in hooks}
moving_guess.reveal(quartiles["moved away"][1])
for name, (meter, error) in found.items():
    low, middle, high = quartiles[name]
    print(
        f"{name:13} peak {human_bytes(meter.peak_bytes)}, {middle:+.0f}% time ({low:.0f} to {high:.0f}%), gradient off by {error:.1e}"
    )
print(f"each step moves {human_bytes(moved_bytes)} away, and as much back")
low, middle, high = more_time(taken, "every block")
print(f"every block checkpointed, in the same rounds: {middle:+.0f}% time ({low:.0f} to {high:.0f}%)")

# %% [markdown] name="offload_explained"
# - **Moved away**: no additional arithmetic and the same gradient, at the price of a round trip for every byte. Whether this is faster than recomputing
#   depends on the link: compare its bandwidth with the bytes per second that recomputation produces ([[where_the_time_goes]]).
# - **On a GPU**, the copies can run alongside the arithmetic if they use pinned memory and a stream of their own.
#   `torch.autograd.graph.save_on_cpu(pin_memory=True)` is the one-line version, without a separate stream.
# - **In BF16**, the forward pass is unchanged. Only the backward pass works with rounded values. The gradient is off by less than one rounding to
#   a format with 8 significant bits, because many rounding errors average out.
#
# Either method can be combined with checkpointing. Then only the inputs of the blocks are moved or rounded.
#
# ## 7 · Let the compiler choose
#
# `torch.compile` sees a whole block, forward and backward, before it runs. It can choose what to keep: it minimizes what is recomputed under a memory
# budget.
#
# - `activation_memory_budget` is 1 for what the compiler keeps by default, and 0 for "keep only the inputs".
# - Here each block is compiled by itself. All 24 have the same code, so it is compiled once.
# - The backend used here only splits the graph in two and needs no C++ compiler. The default backend would also fuse the kernels.
#
# Order matters: checkpoint a block first, then compile it, then shard it with FSDP ([[fully_shard]] tries the other orders).

# %% name="budget"
model = make_gpt()


def compiled_with(budget):
    """Return the bytes that autograd saves between the passes."""
    torch._dynamo.reset()
    with partitioner.patch(activation_memory_budget=budget):
        one_block = torch.compile(lambda block, x: block(x), backend="aot_eager_decomp_partition")
        return saved_tensor_bytes(lambda: loss_of(model, lambda block, x, i: one_block(block, x)), model.parameters())


with sign_of_life("compiling a block three times"):
    compiled = {budget: compiled_with(budget) for budget in (1.0, 0.4, 0.0)}
table = [("budget", "saved", "of budget 1")]
for budget, kept_bytes in compiled.items():
    table.append((f"{budget:.1f}", human_bytes(kept_bytes), f"{kept_bytes / compiled[1.0]:.0%}"))
show_table(table)

# %% [markdown] name="budget_explained"
# The saved bytes follow the budget. With a budget of 1, this backend saves about as much as autograd did in section 1. No policy runs while the model trains: the choice was made once, when the block was compiled.
#
# ## 8 · The head, and whole models
#
# ### The head
#
# Logits are large: tokens × vocabulary. Checkpoint the output head together with the loss, and the logits are not saved.
#
# **Predict.** For a vocabulary of 8,000, what share of the peak is left?

# %% name="head_guess"
my_guess = None  # peak, checkpointed / plain
### BEGIN GUESS
my_guess = 0.5  # as if the logits no longer existed
### END GUESS
head_guess = Prediction("Peak with a checkpointed head / plain", my_guess, "times")

# %% name="head"
torch.manual_seed(0)
head, norm = nn.Linear(WIDTH, 8000, bias=False).to(device), nn.LayerNorm(WIDTH).to(device)
hidden = torch.randn(BATCH * LENGTH, WIDTH, device=device, requires_grad=True)


def head_loss(hidden):
    return F.cross_entropy(head(norm(hidden)), targets.flatten())


head_peaks = []
for name, run_head in {
    "plain": lambda: head_loss(hidden),
    "checkpointed": lambda: checkpoint(head_loss, hidden, use_reentrant=False),
}.items():
    with MemoryMeter(head) as meter:
        run_head().backward()
    head_peaks.append(meter.peak_bytes)
    head.zero_grad()
    norm.zero_grad()
    hidden.grad = None
    kept_bytes = human_bytes(sum(meter.stages[0].held_after.values()))
    print(f"{name:13} after the forward pass {kept_bytes:>10}, peak {human_bytes(meter.peak_bytes)}")

left = head_peaks[1] / head_peaks[0]
head_guess.reveal(left)

# %% [markdown] name="head_explained"
# Less is held *after the forward pass*, but the peak stays. The backward pass starts with the head, so its logits are recomputed at the very moment of
# the peak. Instead, compute the loss in chunks of tokens and checkpoint each chunk ([[profiling_and_oom_clinic]] does this).
#
# ### Hugging Face models
#
# Models from `transformers` have a switch that checkpoints every block, in training mode only. The cache of keys and values for generating text has to
# be off. In recent releases of version 5 the switch is called `activation_checkpointing_enable` (before, `gradient_checkpointing_enable`), and two options cover sections 4 and 6:
#
# - `every_n_layers=2` checkpoints every second block;
# - `offload=True` also moves the saved inputs of the blocks to pinned host memory. It needs a GPU: without one, PyTorch cannot pin memory, and the first step raises an error.

# %% name="hugging_face"
held = {}
for name, options in {"plain": None, "every block": {}, "every_n_layers=2": {"every_n_layers": 2}}.items():
    llama = make_llama()
    if options is not None and hasattr(llama, "activation_checkpointing_enable"):
        llama.activation_checkpointing_enable({"use_reentrant": False}, **options)
    elif options == {}:  # the name in version 4 and early releases of version 5
        llama.gradient_checkpointing_enable({"use_reentrant": False})
    elif options:
        continue
    with MemoryMeter(llama) as meter:
        llama(input_ids=ids, labels=ids).loss.backward()
    held[name] = meter.peak_bytes
    print(f"{name:17} peak {human_bytes(meter.peak_bytes):>10}, in {meter.peak_at}")

# %% [markdown] name="batch_text"
# ### The largest batch
#
# Less memory per sequence means a larger batch. How much larger, on a GPU that you may not have? Use the **virtual GPU** of [[where_memory_goes]]: inside `with virtual_gpu("rtx-4090-24gb"):` your
# program's allocations follow the rules of PyTorch's CUDA allocator, and operations compute nothing.
#
# A GPT of GPT-2's size trains there in FP32 with AdamW, on sequences of 1,024 tokens, with 12 layers of width 768 and a vocabulary of 50,257. Per token, the forward pass saves
# 12 × 16 × 768 = 147,456 numbers in the blocks. A tensor of logits has 50,257.
#
# **Predict.** By what factor does the largest batch that fits grow when every block is checkpointed?

# %% name="batch_guess"
my_guess = None  # times the largest plain batch
### BEGIN GUESS
my_guess = (147_456 + 50_257) / (12 * 768 + 50_257)  # a block saves its input only; the logits stay
### END GUESS
batch_guess = Prediction("Largest batch, every block checkpointed / plain", my_guess, "times")


# %% name="batch"
def gpt_loss(model, ids, checkpointed, chunks):
    """Return the loss of token ids (B, T + 1). With more than one chunk, each chunk of the head and loss is checkpointed."""
    x = model.tokens(ids[:, :-1]) + model.positions.weight
    for block in model.blocks:
        x = checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)
    rows, labels = model.norm(x).flatten(0, 1), ids[:, 1:].flatten()
    if chunks == 1:
        return F.cross_entropy(model.head(rows), labels)

    def chunk_loss(rows, labels):
        return F.cross_entropy(model.head(rows), labels, reduction="sum")

    pairs = zip(rows.chunk(chunks), labels.chunk(chunks), strict=True)
    return sum(checkpoint(chunk_loss, *pair, use_reentrant=False) for pair in pairs) / len(labels)


def on_4090(batch, checkpointed, chunks):
    """Train two steps on a virtual RTX 4090; return the record of the run."""
    with virtual_gpu("rtx-4090-24gb") as run, contextlib.suppress(torch.OutOfMemoryError):
        model = SmallGPT(50257, 1024, layers=12, width=768).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            ids = torch.randint(50257, (batch, 1025)).to("cuda")
            gpt_loss(model, ids, checkpointed, chunks).backward()
            optimizer.step()
            optimizer.zero_grad()
    return run


@functools.cache
def trains(batch, checkpointed, chunks):
    return not on_4090(batch, checkpointed, chunks).ledger.refusals


# %% name="largest_batch"
variants = {"plain": (False, 1), "every block": (True, 1), "every block, loss in 16 chunks": (True, 16)}
table, largest = [("", "peak with batch 8", "largest batch, estimated", "largest batch that trains")], {}
if device.type == "cuda":
    print("This machine has a real GPU: train gpt_loss on it with growing batches, once per variant.")
else:
    for name, variant in variants.items():
        eight = on_4090(8, *variant)
        estimated = batch = eight.largest_batches["rtx-4090-24gb"]
        while not trains(batch, *variant):  # an estimate may be too high
            batch -= 1
        while trains(batch + 1, *variant):  # or too low
            batch += 1
        largest[name] = batch
        table.append((name, human_bytes(eight.peak_allocated), str(estimated), str(batch)))
    show_table(table)
    batch_guess.reveal(largest["every block"] / largest["plain"], how="simulated")

# %% [markdown] name="batch_explained"
# The logits limit the batch. Add up what the second row of the table holds with 8 sequences: weights and moments of 124 million parameters take 1.4 GiB, and the inputs of the blocks 0.3 GiB. Of the 6.3 GiB,
# 4.6 are left, three times the 1.5 GiB of a tensor of logits: the log-softmax, its gradient, and the gradient of the logits. Three such tensors have 150,771 numbers per token, a little more than everything that the plain blocks save, and
# checkpointing the blocks does not affect them. **After each change, look at the peak again: another category may now be the largest.** With the loss in chunks, each chunk keeps only its input and recomputes
# its logits, so the batch grows much further.
#
# The estimate comes from the run with 8 sequences: `run.largest_batches` scales the parts that grow with the batch. With every block checkpointed it is too high. To see why, run `print(on_4090(27, True, 1))` in a new cell: with one sequence
# more than fits, the program fails well below 23.1 GiB, because the free memory is in pieces and none of them is large enough for a tensor of logits ([[profiling_and_oom_clinic]]).

# %% [markdown] name="play_text"
# ## 9 · Explore
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
# ## 10 · Before and after

# %% name="summary"
table = [("", "peak", "of plain", "more arithmetic", "more time", "middle half")]
peaks = {name: (MiB * peak, more) for name, (peak, more) in ways.items()}
peaks |= {name: (meter.peak_bytes, 0.0) for name, (meter, _) in found.items()}
for name, (peak, more) in peaks.items():
    low, middle, high = quartiles[name]
    share, spread = f"{peak / before.peak_bytes:.0%}", f"{low:.0f} to {high:.0f}%"
    table.append((name, human_bytes(peak), share, f"{more:.1f}%", f"{middle:.0f}%", spread))
show_table(table)
print("(moved away: on a CPU, to files that the system caches in RAM; the peak does not count them)")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A checkpointed block saves its input and runs forward again in the backward pass: the same gradients for at most a third more arithmetic. Time grows
#   by more, most of all with narrow layers, because `checkpoint` handles every saved tensor in Python.
# - The second run must reproduce the first, including random numbers and autocast. Always pass `use_reentrant=False`.
# - This lab's GPT block saves 16 times its input, a Llama block about 21 times. So checkpoint each block by itself, or pairs if a device has more than
#   about 32; √n segments are for thin layers.
# - In arithmetic, choosing *what* to keep inside a block beats choosing *which* blocks: keep what costs the most FLOPs per byte, and count attention. In time, a policy
#   in Python costs the most with narrow layers.
# - A pair of hooks can also move saved tensors or round them.
#
# **What to reach for when.** If activations are the largest category and the batch is already one, checkpoint every block first. Then keep as much as
# you can afford, with a selective policy or the compiler's budget. If the peak is in the optimizer step, checkpointing will not help
# ([[lean_optimizers]]). For what checkpointing does to MFU, see [[where_the_time_goes]].
#
# **Sources.** Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost* (√n); Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*; PyTorch documentation, `torch.utils.checkpoint` and *Hooks for
# autograd saved tensors*; PyTorch blog 2025, *Current and New Activation Checkpointing Techniques in PyTorch*.
