# %% [markdown] name="title"
# # Activation checkpointing
#
# **What the forward pass keeps can be thrown away and recomputed when the backward pass needs it: arithmetic buys memory, at a rate you can choose
# block by block.**
#
# | | |
# |---|---|
# | After this you can | write checkpointing yourself, with everything the second run must see again; decide what a block keeps, operation by operation; move saved tensors elsewhere; read off what each choice saves and costs |
# | Time | 150 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and, for autocast, [[#mixed_precision]] |
# | Syllabus | T9, T10, C9, P5 |

# %% name="setup" setup=true
import functools
import itertools
import math

from helpers import (
    COLOURS,
    Claims,
    MemoryMeter,
    Prediction,
    SmallGPT,
    benchmark,
    check,
    compare,
    count_flops,
    device_name,
    english,
    explore,
    hfu,
    hint,
    human_bytes,
    kept_over_time,
    mfu,
    pick_device,
    saved_tensor_bytes,
    show,
    sign_of_life,
    text_table,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

device = pick_device()
claims = Claims()
aten = torch.ops.aten
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · The idea
#
# A hiker who wants to find the way back can draw every step on a map. Or she can drop a stone at each crossing and, on the way back, walk each
# stretch between two stones once more to see what lies there. Fewer notes, more walking.
#
# The forward pass draws the map. With **activation checkpointing**
#
# - a block keeps only its *input*;
# - when the backward pass reaches it, the block runs forward again from that input;
# - now it keeps the rest, but only for as long as its own backward pass takes.

# %% name="idea"
show(
    kept_over_time(blocks=6, keeps=6),
    "Tensors held over time by six blocks. Above, six more with each block, up to 36, and down again in the backward "
    "pass. Below, one more with each block, up to 6; then each block runs forward again before its backward pass, and "
    "12 is the most.",
)

# %% [markdown] name="model_text"
# (A sketch: six blocks, each of which keeps six tensors as large as its input.) A block of a GPT keeps 16 such tensors ([[where_memory_goes]]), and the
# model below has 24 narrow blocks, so that activations are nearly everything. A *policy* says how to run block number i.

# %% name="model"
text = english(device)
ids, targets = text.train_x[: 4 * 128].view(4, 128).clone(), text.train_y[: 4 * 128].view(4, 128).clone()
LAYERS = 24


def make_gpt(layers=LAYERS, width=64):
    torch.manual_seed(0)
    return SmallGPT(layers=layers, width=width).to(device)


def loss_of(model, policy):
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
    flops = count_flops(lambda: loss_of(model, policy).backward())  # and no first run is under the meter
    return metered(policy), flops


# %% [markdown] name="recompute_task"
# ### Your turn: keep the input, run once more
#
# PyTorch lets you write an operation with a backward pass of your own: a `torch.autograd.Function` has two static methods.
#
# - Inside `forward` autograd records nothing.
# - `ctx` is for what `backward` will need: tensors go in with `ctx.save_for_backward(...)` and come out of `ctx.saved_tensors`; anything else may be an
#   attribute of it.
# - `backward` is given the gradient of the result, and returns a gradient for each argument of `forward`, or None.
#
# **Contract.** `Recompute.apply(run, x)` is run(x), checkpointed. `run` maps one tensor to another and may use parameters; `x` requires a gradient.
#
# - The result is that of run(x).
# - Between the passes, x is kept and nothing else. After the backward pass, the graph of the second run is not kept.
# - `run` is called once in the forward pass, and once more in the backward pass.
# - `backward` returns the gradient of x (and None for `run`).
# - The gradients of the parameters that `run` uses are added to their `.grad`. A model calls `apply` many times, with another `run` each time.


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
        x = x.detach().requires_grad_()  # a new beginning: the graph of this stretch ends here
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)  # on its way it adds to the parameters' .grad
        return None, x.grad
        ### END SOLUTION


# %% name="recompute_check"
Recompute = check("activation_checkpointing.recompute", Recompute)

# %% name="recompute_hint"
hint("activation_checkpointing.recompute")


# %% [markdown] name="same_text"
# ### The same numbers first


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
# Identical, not merely close: the same operations ran on the same numbers, some of them twice. (On a GPU some kernels add in a different order on
# every run; there, compare with the difference between two plain runs.)
#
# **Predict.** Without checkpointing, each of the 24 blocks keeps 16 tensors of tokens × width. With it, each keeps 1, and at any moment one block has
# its 16 back. By what factor does the **peak** fall? And by what factor does the **arithmetic** grow, if a backward pass costs two forward passes?

# %% name="guess"
my_guess = None  # peak, plain / checkpointed
### BEGIN GUESS
my_guess = 24 * 16 / (24 + 16)  # leaves out logits, weights and so on: too high
### END GUESS
peak_guess = Prediction("Peak, plain / checkpointed", my_guess, "times")
my_guess = None  # FLOPs, checkpointed / plain
### BEGIN GUESS
my_guess = 4 / 3  # forward 1, backward 2; and the forward pass once more
### END GUESS
flops_guess = Prediction("FLOPs, checkpointed / plain", my_guess, "times")

# %% name="measure"
with sign_of_life("measuring both"):
    runs = {"plain": measured(plain), "recomputed": measured(recomputed)}
(before, flops), (after, more_flops) = runs.values()
peak_guess.reveal(before.peak_bytes / after.peak_bytes)
flops_guess.reveal(more_flops / flops)
print(f"\nplain: {before}\n\nrecomputed: {after}")

# %% name="measure_figure"
shapes = {"plain": "Activations are a mountain.", "recomputed": "Activations are a low ramp, and then 24 teeth."}
for name, alt in shapes.items():
    show(runs[name][0].plot(f"Forward and backward pass, {name}"), alt)

# %% [markdown] name="measure_explained"
# Look at the second picture. The forward pass is a low ramp: the inputs of the blocks. The backward pass is a row of teeth: each tooth is one block,
# recomputed, used and freed. The meter has a tenant for them: **recomputed activations**.
#
# - The **peak** falls by less than 24 × 16 / (24 + 16) = 9.6, the ratio for activations alone: parameters and temporaries stay, and gradients grow through the backward pass, so the peak is at the last tooth.
# - **FLOPs** grow by a little less than 4/3. The output head is not checkpointed, and a backward pass costs a little more than two forward passes, because
#   fused attention computes its scores again there, checkpointed or not.
#
# ## 2 · What the second run must see again
#
# `run` is called twice, some time apart. The gradients are right only if it does the same thing both times. A block with **dropout** draws random
# numbers.
#
# **Predict.** 32 equal rows of ones go through a linear layer, dropout of one half, and another linear layer. The first two are recomputed with your
# function. By how many percent is the gradient of the first layer's weight off, relative to its length?

# %% name="dropout_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * math.sqrt(2 / 32)  # two independent means of 32 masks, each with deviation 1 / sqrt(32)
### END GUESS
dropout_guess = Prediction("Gradient off", my_guess, "%")


# %% name="dropout"
def dropped(way):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to(device)
    last = nn.Linear(64, 1).to(device)
    rows = torch.ones(32, 64, device=device, requires_grad=True)
    torch.manual_seed(1)
    last(way(layers, rows)).sum().backward()
    return layers[0].weight.grad


def off(way):
    right = dropped(lambda run, x: run(x))
    return 100 * ((dropped(way) - right).norm() / right.norm()).item()


dropout_guess.reveal(off(Recompute.apply))

# %% [markdown] name="repeatable_task"
# The second run dropped different elements. The gradient belongs to a network that never ran, and nothing complains.
#
# ### Your turn: the same again
#
# Random numbers come from a generator whose state can be read and set. The other thing that a block takes from its surroundings is **autocast**: the
# forward pass often runs inside of `torch.autocast`, the backward pass outside.
#
# **Contract.** `repeatable(run)` returns a function of x that runs `run` the same way each time.
#
# - The *first* call is that of `run`: nothing is different, and the generators move on as they do after `run`.
# - Each later call draws the random numbers of the first call, and leaves the generators as they were before it.
# - Each later call runs `run` once, on the x that it is given. Autograd records a call if it is on around that call, whatever was on around the first one.
# - Each later call runs under the autocast of the first call, whatever is on around it: on or off, and in the same format.
#
# `torch.is_autocast_enabled(kind)` and `torch.get_autocast_dtype(kind)` tell how autocast is set for a kind of device, such as `x.device.type`;
# `torch.autocast(kind, dtype, enabled)` is the context that sets it.


# %% name="repeatable" answer=true reveal=true
def random_states():
    """Return the states of the generators: that of the CPU, and that of the device if it has its own."""
    own = {"cuda": torch.cuda, "mps": torch.mps}.get(device.type)
    return torch.get_rng_state(), own.get_rng_state() if own else None


def set_random_states(states):
    """Put back what `random_states` returned."""
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
# Put the two together, and you have a checkpoint of your own.


# %% name="own"
def own_checkpoint(run, x):
    return Recompute.apply(repeatable(run), x)


def autocast_off(way):
    """Return by how many percent the gradient is off that a layer gets when its forward pass runs under autocast."""
    found = []
    for each in (lambda run, x: run(x), way):
        torch.manual_seed(0)
        layer = nn.Linear(64, 64).to(device)
        rows = torch.randn(32, 64, device=device, requires_grad=True)
        with torch.autocast(device.type, torch.bfloat16):
            y = each(lambda x, layer=layer: layer(layer(x).tanh()).tanh(), rows)
        y.float().square().sum().backward()
        found.append(layer.weight.grad)
    return 100 * ((found[1] - found[0]).norm() / found[0].norm()).item()


for name, way in {"Recompute": Recompute.apply, "with repeatable": own_checkpoint}.items():
    print(f"{name:16} dropout: {off(way):6.2f} % off, autocast: {autocast_off(way):6.2f} % off")
# %% [markdown] name="reentrant_text"
# ### PyTorch's own
#
# `torch.utils.checkpoint.checkpoint` has two implementations.
#
# - `use_reentrant=True` is the older one, and it is what you have just written: a Function that runs a backward pass *inside* a backward pass.
# - `use_reentrant=False` needs no Function. The block runs as usual, under hooks that throw away what autograd wants to save (section 6 has such hooks).
#   When the backward pass asks for the first of those tensors, the block runs again and the hooks fill in all of them.
#
# Both note random numbers and autocast, as yours does (`preserve_rng_state=False` switches the former off).
#
# **Predict.** A linear layer gets data that need no gradient. (So do blocks behind frozen layers, as in LoRA.) Its weights still require gradients. Does the
# checkpointed result require a gradient? 1 for yes, 0 for no, for your function and for PyTorch's newer one.

# %% name="reentrant_guess"
my_guess = None  # your own: 1 or 0
### BEGIN GUESS
my_guess = 0  # autograd asks whether an input of the Function requires a gradient, and does not know of the weights
### END GUESS
own_guess = Prediction("Your own: the result requires a gradient", my_guess, "(1: yes)")
my_guess = None  # use_reentrant=False: 1 or 0
### BEGIN GUESS
my_guess = 1  # the block runs under autograd as usual
### END GUESS
hooks_guess = Prediction("use_reentrant=False: the result requires a gradient", my_guess, "(1: yes)")

# %% name="reentrant"
import warnings

layer, data = nn.Linear(8, 8).to(device), torch.randn(4, 8, device=device)  # data: needs no gradient
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    needs = {r: float(checkpoint(layer, data, use_reentrant=r).requires_grad) for r in (True, False)}
own_guess.reveal(float(own_checkpoint(layer, data).requires_grad))
hooks_guess.reveal(needs[False])
print(f"use_reentrant=True: {needs[True]:.0f}, with this warning: {said[0].message}")
words = "no gradient for the weights where the input needs none (use_reentrant=True)"
claims.record("P5", words, "one layer", needs[True], "gradients", 0, 0)

# %% [markdown] name="reentrant_explained"
# A Function is asked for gradients of its *arguments*. The weights are not arguments: they are hidden inside `run`. If no argument wants a gradient, autograd leaves
# the Function out, and the block never trains. All you get is a warning, if you get that.
#
# From here on we use `use_reentrant=False`. It also takes keyword arguments and works with `torch.autograd.grad`.
#
# **Predict.** Every block checkpointed with PyTorch's own: how much more arithmetic than plain, in percent?

# %% name="beside_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (more_flops / flops - 1)  # what yours takes
### END GUESS
stop_guess = Prediction("PyTorch's own: more arithmetic", my_guess, "%")


# %% name="beside"
def every(k):
    """Checkpoint blocks 0, k, 2k, ..."""
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False) if i % k == 0 else block(x)


runs["every block"] = measured(every(1))
stop_guess.reveal(100 * (runs["every block"][1] / flops - 1))
del runs["recomputed"]  # the two differ in arithmetic only, as the next lines show
for name, (meter, these_flops) in {"your own": (after, more_flops), "PyTorch's": runs["every block"]}.items():
    more = 100 * (these_flops / flops - 1)
    print(f"{name:10} peak {human_bytes(meter.peak_bytes)}, arithmetic +{more:.1f} %")
after, more_flops = runs["every block"]

# %% [markdown] name="beside_explained"
# PyTorch stops recomputing a block as soon as it has the last tensor that the backward pass needs (*early stop*). Here that saves the last product of
# the MLP, whose result nobody keeps. In units of 2 × tokens × width², a block costs
#
# - 3 for q, k and v, 4 for attention (over 128 tokens at width 64), 1 for its output,
# - 4 and 4 for the MLP: so early stop saves a quarter of what is recomputed.
#
# ### What the articles say
#
# One says "2 to 3 times less memory", another "40 to 50 % of the activations saved", and both say "30 to 33 % slower".
#
# **Predict.** On this device, how much longer does a forward and backward pass take with every block checkpointed?

# %% name="time_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * (more_flops / flops - 1)  # as much as there is more arithmetic
### END GUESS
time_guess = Prediction("Every block checkpointed: more time", my_guess, "%")

# %% name="claims_whole"
model = make_gpt()


def run(policy):
    model.zero_grad()
    loss_of(model, policy).backward()


with sign_of_life("plain and checkpointed in turns"):
    pace = compare(lambda: run(plain), lambda: run(every(1)), runs=3, warmup=1)
slower = 100 * (1 / pace.speedup - 1)
time_guess.reveal(slower)
kept = {name: sum(m.largest[t] for t in ("activations", "recomputed activations")) for name, (m, _) in runs.items()}
saved = 100 * (1 - kept["every block"] / kept["plain"])
print(f"of the activations {saved:.0f} % are saved; {100 * (more_flops / flops - 1):.0f} % more arithmetic")
gpt24 = "GPT, 24 blocks of width 64"
claims.record("C9", "2 to 3x less memory", gpt24, before.peak_bytes / after.peak_bytes, "times", 2, 3)
claims.record("C9", "30 to 33 % slower", f"{gpt24}, time on this device", slower, "%", 29, 34)
claims

# %% [markdown] name="whole_explained"
# - **Memory.** On a deep stack of equal blocks the saving is larger than any of the articles say. Their models had other tenants: with Adam and few
#   activations the peak falls only a little, because it was never made of activations.
# - **Time** need not follow arithmetic. Recomputed norms, activations and additions count few FLOPs but move as many bytes as before, and each
#   segment adds Python's own work. The ratio also varies from run to run on a busy machine.
#
# How well do the two runs use the machine?
#
# - **MFU** counts the arithmetic that the model needs, **HFU** all that was done: recomputed blocks are in HFU only.
# - Each is a share of what the machine could have done in the same time ([[where_the_time_goes]]).
#
# **Predict.** Checkpointing every block changes MFU and HFU, each relative to that of the plain run. Which of them moves further from 1?

# %% name="utilization_guess"
my_guess = None  # MFU, every block / plain
### BEGIN GUESS
my_guess = 1 / (1 + slower / 100)  # the same useful arithmetic in more time
### END GUESS
mfu_guess = Prediction("MFU, every block / plain", my_guess, "times")
my_guess = None  # HFU, every block / plain
### BEGIN GUESS
my_guess = (more_flops / flops) / (1 + slower / 100)
### END GUESS
hfu_guess = Prediction("HFU, every block / plain", my_guess, "times")

# %% name="utilization"
side = 1024 if device.type == "cpu" else 8192
square = torch.randn(side, side, device=device)
fastest = 2 * side**3 / benchmark(lambda: square @ square).median  # FLOP/s of a large product
shares = {}
for name, timing, executed in (("plain", pace.before, flops), ("every block", pace.after, more_flops)):
    needed, done = mfu(executed, timing.median, fastest, executed - flops), hfu(executed, timing.median, fastest)
    shares[name] = needed, done
    print(f"{name:12} {1e3 * timing.median:6.0f} ms, MFU {needed:.0%}, HFU {done:.0%}")
mfu_guess.reveal(shares["every block"][0] / shares["plain"][0])
hfu_guess.reveal(shares["every block"][1] / shares["plain"][1])

# %% [markdown] name="segments_text"
# The MFU that you see is the HFU divided by the growth in arithmetic, so it is MFU that falls further. HFU falls only as far as recomputing runs
# slower than the rest of the step. A report that quotes HFU for a run with checkpointing counts recomputation as useful work.
#
# ## 3 · How many segments?
#
# Several blocks can be checkpointed as one **segment**: fewer inputs kept, more recomputed at a time.
#
# - `checkpoint_sequential` cuts an `nn.Sequential` into equal segments.
# - The last segment runs without a checkpoint, since it would be recomputed immediately. So "1 segment" is no checkpointing at all.
# - The textbook says that with n layers, √n segments need O(√n) memory. For 24 layers that is about 5 segments.
#
# **Predict.** What number of segments gives the lowest peak for the 24 GPT blocks? (1, 2, 4, 6, 8, 12 or 24)

# %% name="guess_segments"
my_guess = None
### BEGIN GUESS
my_guess = 24  # inputs cost 1 each and a recomputed block 16: s + 16 x 24 / s is least at s = sqrt(16 x 24), about 20
### END GUESS
segments_guess = Prediction("Segments with the lowest peak", my_guess, "")


# %% name="segments"
from torch.utils.checkpoint import checkpoint_sequential


class Thin(nn.Module):
    """A layer that keeps one tensor, as large as its input."""

    def forward(self, x):
        return torch.tanh(x)


def segmented(blocks, x, segments):
    """Return the most that activations hold when `blocks` run in `segments` checkpointed segments."""
    with MemoryMeter(blocks) as meter:
        checkpoint_sequential(blocks, segments, x, use_reentrant=False).sum().backward()
    blocks.zero_grad()
    tenants = ("activations", "recomputed activations", "temporaries")
    return max(sum(moment.held[t] for t in tenants) for moment in meter.timeline)


counts = (1, 2, 4, 6, 8, 12, 24)
x = torch.randn(2, 128, 64, device=device, requires_grad=True)
stacks = {
    "GPT blocks, which keep 16": make_gpt().blocks,
    "thin layers, which keep 1": nn.Sequential(*(Thin() for _ in range(24))),
}
with sign_of_life("two stacks in 1 to 24 segments"):
    curves = {name: [segmented(blocks, x, s) / x.nbytes for s in counts] for name, blocks in stacks.items()}
best = {name: counts[int(np.argmin(curve))] for name, curve in curves.items()}
segments_guess.reveal(best["GPT blocks, which keep 16"])

# %% name="segments_figure"
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
for (name, curve), colour, marker in zip(curves.items(), (COLOURS[4], COLOURS[0]), "os", strict=True):
    axes.loglog(counts, curve, marker + "-", base=2, color=colour, label=name)
axes.set(title="24 layers in segments", xlabel="segments", ylabel="most held, in inputs", xticks=counts)
axes.set_xticklabels(counts)
axes.legend(frameon=False)
show(figure, "Thin layers have their minimum near 5 segments; GPT blocks fall all the way to one segment a block.")
for name, curve in curves.items():
    print(f"{name}: {dict(zip(counts, [round(c) for c in curve], strict=True))}")
times_root = best["GPT blocks, which keep 16"] / math.sqrt(24)
claims.record("C9", "the square root of n segments is best", "24 GPT blocks", times_root, "x root", 0.5, 1.7)

# %% [markdown] name="segments_explained"
# - **Thin layers.** The textbook's rule assumes that what a layer keeps is as large as its input. Then *s* segments of *n/s* layers hold about
#   *s + n/s*, which is smallest at √n.
# - **Transformer blocks** keep 16 times their input, and *s + 16·n/s* is smallest at √(16·n), about 20. Of the numbers tried, 24 is best.
#
# So "checkpoint every block" is the right default for transformers, and √n for long chains of thin layers.
#
# Does the minimum itself grow like √n? Here are chains of thin layers, each with √n segments:

# %% name="root"
depths = (16, 64, 256)
least = [segmented(nn.Sequential(*(Thin() for _ in range(n))), x, math.isqrt(n)) / x.nbytes for n in depths]
power = np.polyfit(np.log(depths), np.log(least), 1)[0]
print({n: round(m, 1) for n, m in zip(depths, least, strict=True)}, f"power of n: {power:.2f}")

# %% [markdown] name="every_text"
# ## 4 · Every second, every third
#
# If there is room, checkpoint only some blocks. "Every 2nd or 3rd block: 60 to 70 % of the saving for 10 to 15 % of the time."
#
# **Predict.** If every second block is checkpointed, how much of the saving is left? And how much arithmetic comes on top of the plain run's?

# %% name="every_guess"
my_guess = None  # % of the saving
### BEGIN GUESS
my_guess = 50  # half of the blocks, half of what they keep
### END GUESS
every_guess = Prediction("Every second block: of the saving", my_guess, "%")
my_guess = None  # % more FLOPs than plain
### BEGIN GUESS
my_guess = 50 * (more_flops / flops - 1)  # half of what all blocks cost
### END GUESS
price_guess = Prediction("Every second block: more arithmetic", my_guess, "%")

# %% name="every"
with sign_of_life("every second, every third"):
    runs |= {f"every {k}": measured(every(k)) for k in (2, 3)}
whole_saving = before.peak_bytes - after.peak_bytes
share, extra = {}, {}
for k in (2, 3):
    meter, these_flops = runs[f"every {k}"]
    share[k] = 100 * (before.peak_bytes - meter.peak_bytes) / whole_saving
    extra[k] = 100 * (these_flops / flops - 1)
    gain = f"{share[k]:.0f} % of the saving for {extra[k]:.1f} % more arithmetic"
    print(f"every {k}: {gain}, peak in {meter.peak_at}")
print(f"every block: peak in {after.peak_at}")
every_guess.reveal(share[2])
price_guess.reveal(extra[2])
claims.record("C9", "every 2nd or 3rd: 60 to 70 % of the saving", f"{gpt24}, every 2", share[2], "%", 60, 70)

# %% [markdown] name="parts_text"
# - The saving is nearly in proportion to the price: half of the blocks give about half of both.
# - The saving is not exactly half, because the two peaks come at different moments: at the loss for every second block, at the end for every block.
#
# With equal blocks there is no free lunch in choosing *which* ones. There is one in choosing **what inside a block**.
#
# ## 5 · Inside a block
#
# ### Attention or MLP
#
# With score-keeping attention a block keeps the T × T scores of every head. With fused attention these scores never exist. So the value of "checkpoint
# attention only" depends on the kernel (and, since scores grow with T², on the sequence length).
#
# **Predict.** With fused attention, which half should be checkpointed? Give the peak with attention only, relative to that with the MLP only.

# %% name="parts_guess"
my_guess = None  # peak with attention only / peak with the MLP only
### BEGIN GUESS
my_guess = (16 - 6 + 1) / (16 - 10 + 1)  # of 16 inputs the MLP keeps 10: a norm's result, and 4 before and after GELU
### END GUESS
parts_guess = Prediction("Peak, attention only / MLP only", my_guess, "times")


# %% name="attention_only"
from torch.nn.attention import SDPBackend, sdpa_kernel


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
parts_guess.reveal(runs["attention only"][0].peak_bytes / runs["MLP only"][0].peak_bytes)
fused = {name: runs[name][0] for name in with_scores}
for kernel, meters in {"fused": fused, "score-keeping": with_scores}.items():
    for name in halves:
        share = meters[name].peak_bytes / meters["plain"].peak_bytes
        print(f"{kernel} attention, {name:15} checkpointed: peak {share:.0%} of no checkpoint")

# %% [markdown] name="policy_task"
# With fused attention the MLP holds more. With score-keeping attention the scores are held as well, and the order is reversed.
#
# ### Your turn: operation by operation
#
# A *selective* policy is asked about every operation in the block: keep the result, or recompute it?
#
# - The usual rule says that products are expensive and everything else is cheap.
# - But products differ: an element that was summed over 256 terms cost four times as much as one summed over 64, and takes the same room.
#
# So ask of each operation how many FLOPs **one element of its result** cost, and keep what costs enough.
#
# **Contract.** `keep_costly(least)` returns a `context_fn` for `checkpoint(..., use_reentrant=False, context_fn=...)`: a function without arguments that
# returns what `create_selective_checkpoint_contexts(policy)` returns.
#
# - `policy(context, op, *args, **kwargs)` is called for each operation. It returns `CheckpointPolicy.MUST_SAVE` to keep the result and
#   `CheckpointPolicy.PREFER_RECOMPUTE` to drop it.
# - A product of (m, k) and (k, n) costs 2·k FLOPs per element of its result. `FACTOR` has these operations and says which argument is the first factor.
# - Fused attention, whose names `is_attention` knows, costs 4·T FLOPs per element for T keys. Its first arguments are q, k and v, each (..., length, d).
# - Everything else costs 0.
# - Results of `least` FLOPs per element or more are kept, all others dropped; `least` is above 0, and need not be a whole number.
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
# What an element costs in our blocks, by this account:
#
# - 2 × 64 = 128 FLOPs in the products for q, k, v, for attention's output and for the MLP's first layer;
# - 2 × 256 = 512 in the MLP's second layer;
# - 4 × 128 = 512 in attention: as much, since the text is just twice as long as the model is wide.
#
# So there are three levels to choose from. *Keep products* is the usual rule: it looks for matrix products by name, and fused attention has another name.
#
# **Predict.** How much more arithmetic than plain, in percent, does *keep products* take?

# %% name="selective_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100 * 4 / (3 * 16)  # attention again, 4 of 16 units; the whole takes three times 16
### END GUESS
products_guess = Prediction("Keep products: more arithmetic", my_guess, "%")


# %% name="selective"
def selective(context_fn):
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False, context_fn=context_fn)


def keep_products(context, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op in FACTOR else CheckpointPolicy.PREFER_RECOMPUTE


usual_rule = functools.partial(create_selective_checkpoint_contexts, keep_products)
policies = {
    "plain": plain,
    "every block": every(1),
    "every 2": every(2),
    "every 3": every(3),
    **halves,
    "keep products": selective(usual_rule),
    "keep from 128 FLOPs": selective(keep_costly(128)),
    "keep from 512 FLOPs": selective(keep_costly(512)),
}
with sign_of_life("three selective policies"):
    runs |= {name: measured(policy) for name, policy in policies.items() if name not in runs}
products_guess.reveal(100 * (runs["keep products"][1] / flops - 1))
for name in list(policies)[-3:]:
    meter, these_flops = runs[name]
    print(f"{name:20} peak {human_bytes(meter.peak_bytes):>10}, arithmetic +{100 * (these_flops / flops - 1):.1f} %")

# %% [markdown] name="pareto_text"
# ### All in one picture
#
# Each way of running the model is a point: memory against arithmetic on the left, memory against time on the right. Lower left is better. A way is
# **beaten** if another one takes neither more memory nor more arithmetic.
#
# **Predict.** How many of the nine ways are beaten in arithmetic?

# %% name="pareto_guess"
my_guess = None  # ways
### BEGIN GUESS
my_guess = 5  # whole blocks, attention and keep products lose to those that drop what is cheap and wide; plain, too
### END GUESS
beaten_guess = Prediction("Ways that are beaten", my_guess, "ways")

# %% name="pareto"
ways = {name: (runs[name][0].peak_bytes / MiB, 100 * (runs[name][1] / flops - 1)) for name in policies}
beaten_by = {
    name: [other for other, (x, y) in ways.items() if (x, y) != here and x <= here[0] and y <= here[1]]
    for name, here in ways.items()
}
taken = {name: [] for name in policies}
with sign_of_life("nine ways in turns, twice"):  # in turns, so that a slow moment of the machine meets all of them
    for name, policy in 2 * list(policies.items()):
        taken[name].append(benchmark(lambda policy=policy: run(policy), runs=1, warmup=0).median)
seconds = {name: min(these) for name, these in taken.items()}
beaten_guess.reveal(sum(bool(by) for by in beaten_by.values()))
for name, by in beaten_by.items():
    print(f"{name:20} {f'beaten by {by[0]}' + (', ...' if by[1:] else '') if by else 'beaten by none'}")

# %% name="pareto_figure"
figure = Figure(figsize=(9, 3.8), layout="constrained")
left, right = figure.subplots(1, 2)
front = sorted(ways[name] for name, by in beaten_by.items() if not by)
left.plot(*zip(*front, strict=True), color=COLOURS[7], lw=1)
looks = zip(itertools.cycle(COLOURS), itertools.cycle("osD^v<>P"), strict=False)
for (name, (peak, more)), (colour, marker) in zip(ways.items(), looks, strict=False):
    left.plot(peak, more, marker, color=colour, ls="", label=name)
    right.plot(peak, 100 * (seconds[name] / seconds["plain"] - 1), marker, color=colour, ls="")
figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
limits = (0, 1.1 * before.peak_bytes / MiB)
left.set(title="in arithmetic", xlabel="peak, MiB", ylabel="more FLOPs than plain, %", xlim=limits)
right.set(title="in time on this device", xlabel="peak, MiB", ylabel="more time than plain, %", xlim=limits)
show(
    figure,
    "Left, arithmetic against peak: ways that keep what is costly, and the MLP alone, lie on a line below all others. "
    "Right, time against peak: selective policies take more time than their arithmetic says.",
)

# %% [markdown] name="selective_explained"
# Read the left picture first.
#
# - *Keep from 128 FLOPs* keeps all products and attention. Nothing that counts is repeated, and norms, GELU and sums were a good part of what was kept.
# - *Keep products* runs attention again, and is beaten by *MLP only*, which holds less for the same arithmetic: it drops the widest results of the block,
#   and those are cheap. (That the arithmetic is the same is a coincidence of this size: attention costs as much as the MLP's first layer when the text
#   is twice as long as the model is wide.)
# - *Keep from 512 FLOPs* keeps attention and the MLP's result, and drops what is wide: it saves most of the memory for the fewest extra FLOPs.
# - *Every block* reaches a peak that no other way reaches.
#
# So **keep what costs the most FLOPs for each byte**. That even *plain* is beaten comes from how arithmetic is counted: only products count.
#
# The right picture says that arithmetic is not time. A policy is asked about every operation, in Python, and with operations as small as these that costs more than
# the arithmetic it saves. For a compiled block the choice is made once, before it runs (section 7).
#
# ## 6 · Moved instead of recomputed
#
# A third way is to keep activations elsewhere and fetch them when they are needed. Autograd has hooks for that: `pack` is called with each tensor that
# is being saved, and what it returns is kept instead; `unpack` is called with that in the backward pass and returns the tensor.
#
# ### Your turn: hooks
#
# **Contract.** `moved(parameters, put, get, least)` returns a context, `torch.autograd.graph.saved_tensors_hooks(pack, unpack)`. Under it, saved tensors
# are put away.
#
# - `put(tensor)` puts a copy away and returns a ticket, which may be anything, a tensor as well; `get(ticket)` brings the tensor back. Call `get` in the backward pass only;
#   if the graph is retained, a second backward pass calls it again.
# - Put away tensors of floating-point numbers, of `least` bytes or more. All others stay.
# - `parameters` stay as well, and so does everything that shares memory with one. (They exist anyway, and a linear layer saves its weight *transposed*.)
# - Of what was put away, only the ticket is kept, and nothing of it after the backward pass.
# - What stays is kept as `tensor.detach()`: an operation that saves its own result would otherwise keep itself alive.


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
# Where to?
#
# - **Away.** On a GPU, into the memory of the host. On a CPU they are already there, so they move one level down, to a file
# on the disk. (The
#   system keeps pages of the file in memory as long as nobody else wants it, and gives them up when somebody does. They are not the program's.)
# - **Nowhere.** Keep them in place, in half the bytes: in BF16.
#
# **Predict** the peak for each, relative to plain. And how much more time than plain does it take to move them away and back?

# %% name="offload_guess"
my_guess = None  # moved away: peak / plain
### BEGIN GUESS
my_guess = 2 * before.at_peak["parameters"] / before.peak_bytes  # parameters and gradients are left
### END GUESS
away_guess = Prediction("Peak, moved away / plain", my_guess, "times")
my_guess = None  # kept in BF16: peak / plain
### BEGIN GUESS
my_guess = 0.55  # half of the activations, all of the rest
### END GUESS
half_guess = Prediction("Peak, kept in BF16 / plain", my_guess, "times")
my_guess = None  # moved away: % more time
### BEGIN GUESS
my_guess = 2 * slower  # twice as slow as computing them again
### END GUESS
moving_guess = Prediction("Moved away: more time than plain", my_guess, "%")


# %% name="elsewhere"
import tempfile


class Elsewhere:
    """The host's memory for tensors of a GPU; a file on disk for those of a CPU."""

    def __init__(self):
        self.file, self.nbytes = tempfile.TemporaryFile(buffering=0), 0  # noqa: SIM115 (open as long as the object)

    def put(self, tensor):
        self.nbytes += tensor.nbytes
        if device.type != "cpu":
            return tensor.cpu()
        place = self.file.tell()
        self.file.write(tensor.detach().contiguous().numpy())
        return place, tensor.shape, tensor.dtype

    def get(self, ticket):
        if device.type != "cpu":
            return ticket.to(device)
        place, shape, dtype = ticket
        tensor = torch.empty(shape, dtype=dtype)
        self.file.seek(place)
        self.file.readinto(tensor.numpy())
        return tensor


# %% name="offload"
def under(put, get, least=64 * 1024):
    """Run forward and backward under the hooks; return the meter, the seconds, and how far off the gradient is."""
    model = make_gpt()

    def step():
        model.zero_grad()
        with moved(model.parameters(), put, get, least):
            loss = loss_of(model, plain)
        loss.backward()

    with MemoryMeter(model) as meter:
        step()
    away, right = torch.cat([p.grad.flatten() for p in model.parameters()]), gradients["plain"]
    timing = benchmark(step, runs=1, warmup=0)
    return meter, timing.median, ((away - right).norm() / right.norm()).item()


elsewhere = Elsewhere()
with sign_of_life("moving tensors"):
    found = {
        "moved away": under(elsewhere.put, elsewhere.get),
        "kept in BF16": under(lambda t: t.bfloat16(), lambda t: t.float()),
    }
away_guess.reveal(found["moved away"][0].peak_bytes / before.peak_bytes)
half_guess.reveal(found["kept in BF16"][0].peak_bytes / before.peak_bytes)
moving_guess.reveal(100 * (found["moved away"][1] / seconds["plain"] - 1))
for name, (meter, took, far) in found.items():
    slower = 100 * (took / seconds["plain"] - 1)
    print(f"{name:13} peak {human_bytes(meter.peak_bytes)}, {slower:+.0f} % time, gradient off by {far:.1e}")
print(f"each step moved {human_bytes(elsewhere.nbytes / 2)} there, and as much back")

# %% [markdown] name="offload_explained"
# - **Moved away**: no extra arithmetic and the same gradient, at the price of a round trip for every byte. Whether that is quicker than computing the bytes
#   again depends on the link: compare its bytes a second with what recomputing a byte costs ([[where_the_time_goes]]).
# - **On a GPU**, pinned memory and a stream of its own let the copies run beside the arithmetic. `torch.autograd.graph.save_on_cpu(pin_memory=True)` is
#   the one-line version, but without a stream of its own.
# - **In BF16** the forward pass is untouched. Only the backward pass works with rounded values, so the gradient is off by what rounding to 8 bits costs.
#
# Both can be combined with checkpointing: then only the blocks' inputs move.
#
# ## 7 · Let the compiler choose
#
# `torch.compile` sees a whole block, forward and backward, before it runs. It can decide for itself what to keep: minimise what is recomputed, under a
# budget of memory.
#
# - `activation_memory_budget` is 1 for "keep what the backward pass wants" and 0 for "keep the inputs alone".
# - Here each block is compiled; the code of all 24 is the same, so it is compiled once.
# - The backend used here only cuts the graph in two and needs no C++ compiler; with the default one the kernels would be fused as well.
#
# **Predict.** With a budget of 0.4, what share of the saved bytes is left?

# %% name="budget_guess"
my_guess = None  # saved bytes, budget 0.4 / budget 1
### BEGIN GUESS
my_guess = 0.4
### END GUESS
budget_guess = Prediction("Saved with a budget of 0.4 / with 1", my_guess, "times")

# %% name="budget"
from torch._functorch import config as partitioner

model = make_gpt()


def compiled_with(budget):
    """Return the bytes saved, and the peak."""
    torch._dynamo.reset()
    with partitioner.patch(activation_memory_budget=budget):
        one_block = torch.compile(lambda block, x: block(x), backend="aot_eager_decomp_partition")

        def choose(block, x, i):
            return one_block(block, x)

        kept_bytes = saved_tensor_bytes(lambda: loss_of(model, choose), model.parameters())
        with MemoryMeter(model, by_tenant=False) as meter:
            loss_of(model, choose).backward()
    model.zero_grad()
    return kept_bytes, meter.peak_bytes


with sign_of_life("compiling a block three times"):
    compiled = {budget: compiled_with(budget) for budget in (1.0, 0.4, 0.0)}
budget_guess.reveal(compiled[0.4][0] / compiled[1.0][0])
table = [("budget", "saved", "peak")]
for budget, (kept_bytes, peak) in compiled.items():
    table.append((f"{budget:.1f}", human_bytes(kept_bytes), human_bytes(peak)))
print(text_table(table))

# %% [markdown] name="budget_explained"
# One number, and the memory follows it. Nothing is decided per operation while the model runs: the choice was made when the block was compiled.
#
# Here each block is a graph of its own, so that what is recomputed is there for one block at a time, as with your function.
#
# ## 8 · The head, and whole models
#
# ### The head
#
# Logits are large: tokens × vocabulary. Checkpoint the output head together with the loss, and they need not be kept. **Predict**: how much of the
# peak is left, for a vocabulary of 8,000?

# %% name="head_guess"
my_guess = None  # peak, checkpointed / plain
### BEGIN GUESS
my_guess = 0.5  # as if what is not kept were never there
### END GUESS
head_guess = Prediction("Peak with a checkpointed head / plain", my_guess, "times")

# %% name="head"
torch.manual_seed(0)
head, norm = nn.Linear(64, 8000, bias=False).to(device), nn.LayerNorm(64).to(device)
hidden = torch.randn(4 * 128, 64, device=device, requires_grad=True)


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
# Less is held *after the forward pass*, but the peak is where it was: the head is the first thing that the backward pass reaches, so its logits are
# back at the very moment of the peak. What helps here is to compute the loss in chunks of tokens and checkpoint each chunk
# ([[profiling_and_oom_clinic]] has such a patient).
#
# ### Hugging Face models
#
# Models from `transformers` come with their own switch. It checkpoints every block, in training mode only. The cache of keys and values, which is for
# generating text, has to be off.
#
# **Predict.** A Llama of 8 blocks, of the same width: how much of the peak is left?

# %% name="hugging_face_guess"
my_guess = None  # peak, checkpointed / plain
### BEGIN GUESS
my_guess = (8 + 16) / (8 * 16)  # inputs of 8 blocks and one block's 16; leaves out logits, weights and so on: too low
### END GUESS
llama_guess = Prediction("Llama's peak, checkpointed / plain", my_guess, "times")

# %% name="hugging_face"
with sign_of_life("importing transformers"):
    from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 8, "num_attention_heads": 4}
llama = LlamaForCausalLM(LlamaConfig(vocab_size=256, use_cache=False, **sizes)).to(device).train()
held = {}
for name in ("plain", "checkpointed"):
    if name == "checkpointed":
        # Newer versions of transformers call it activation_checkpointing_enable.
        switch = getattr(llama, "activation_checkpointing_enable", None) or llama.gradient_checkpointing_enable
        switch({"use_reentrant": False})  # the default today; in older versions it was True
    with MemoryMeter(llama) as meter:
        llama(input_ids=ids, labels=ids).loss.backward()
    llama.zero_grad()
    held[name] = meter.peak_bytes
    print(f"{name:13} peak {human_bytes(meter.peak_bytes)}, in {meter.peak_at}")
llama_guess.reveal(held["checkpointed"] / held["plain"])

# %% [markdown] name="fit_task"
# One switch, and nearly what section 1 won. With a third of the blocks, logits, weights and gradients are a larger part of the whole.
#
# ## 9 · Your turn: fit the budget
#
# Blocks are not always equal. Given what each block keeps and what recomputing it costs, find the cheapest choice of blocks to checkpoint that fits
# the budget.
#
# **Contract.** `choose_blocks(kept, inputs, flops, budget)` returns the indices of the blocks to checkpoint (any order), or None if no choice fits.
#
# - `kept[i]`: bytes that block i keeps when it is not checkpointed; `inputs[i]`: bytes of its input; `flops[i]`: what recomputing it costs. At most 10 blocks.
# - Held at the worst moment: `kept` of all blocks that are **not** checkpointed, plus `inputs` of those that **are**, plus the largest `kept` among those that are
#   (the one being recomputed).
# - Of all choices that hold at most `budget` bytes, take the one with the smallest sum of `flops`. No checkpointing at all is also a choice.


# %% name="fit" answer=true reveal=true
def choose_blocks(kept, inputs, flops, budget):
    ### BEGIN SOLUTION
    n = len(kept)

    def held(chosen):
        stay = sum(kept[i] for i in range(n) if i not in chosen)
        return stay + sum(inputs[i] for i in chosen) + max((kept[i] for i in chosen), default=0)

    choices = itertools.chain.from_iterable(itertools.combinations(range(n), r) for r in range(n + 1))
    fitting = [chosen for chosen in choices if held(chosen) <= budget]
    return min(fitting, key=lambda chosen: sum(flops[i] for i in chosen), default=None)
    ### END SOLUTION


# %% name="fit_check"
choose_blocks = check("activation_checkpointing.fit", choose_blocks)

# %% name="fit_hint"
hint("activation_checkpointing.fit")

# %% [markdown] name="fit_real_text"
# Now a real network: eight MLP blocks of different hidden widths. A formula says what each keeps, and the meter checks it. Your choice must bring the
# activations below 60 %.

# %% name="fit_real"
widths = (64, 512, 128, 768, 256, 384, 64, 640)
torch.manual_seed(0)
parts = nn.ModuleList(nn.Sequential(nn.Linear(64, w), nn.GELU(), nn.Linear(w, 64), nn.Tanh()) for w in widths).to(
    device
)
rows = torch.randn(2048, 64, device=device, requires_grad=True)


def activations_of(chosen):
    with MemoryMeter(parts) as meter:
        x = rows
        for i, part in enumerate(parts):
            x = checkpoint(part, x, use_reentrant=False) if i in chosen else part(x)
        x.sum().backward()
    parts.zero_grad()
    return max(m.held["activations"] + m.held["recomputed activations"] for m in meter.timeline)


kept = [4 * 2048 * (2 * w + 64) for w in widths]  # GELU's input and output, and Tanh's output, which is the next input
inputs, costs = [4 * 2048 * 64] * 8, [4 * 2048 * 64 * w for w in widths]
nothing = activations_of(())
chosen = choose_blocks(kept, inputs, costs, int(0.6 * sum(kept))) or ()
less, again = activations_of(chosen), sum(costs[i] for i in chosen) / sum(costs)
print(f"choice {sorted(chosen)}: activations {human_bytes(nothing)} -> {human_bytes(less)}, {less / nothing:.0%}")
print(f"recomputed: {again:.0%} of the forward pass")

# %% [markdown] name="play_text"
# ## 10 · Play
#
# The same 24 blocks, with every k-th of them checkpointed. Where is the peak, and who holds it?

# %% name="play"
strides = {k: runs[name][0] for k, name in ((1, "every block"), (2, "every 2"), (3, "every 3"))}
with sign_of_life("two more strides"):
    strides |= {k: metered(every(k)) for k in (8, 24)}
explore(
    lambda every_kth: strides[every_kth].plot(
        f"one block in {every_kth} checkpointed: peak {human_bytes(strides[every_kth].peak_bytes)}"
    ),
    "Memory over a forward and a backward pass: with more blocks checkpointed, a lower mountain and more teeth.",
    every_kth=(2, tuple(strides)),
)

# %% [markdown] name="summary_text"
# ## 11 · Before and after

# %% name="summary"
table = [("", "peak", "of plain", "more arithmetic", "more time")]
for name in policies:
    peak, more = ways[name]
    share, longer = MiB * peak / before.peak_bytes, 100 * (seconds[name] / seconds["plain"] - 1)
    table.append((name, f"{peak:.1f} MiB", f"{share:.0%}", f"{more:.1f} %", f"{longer:.0f} %"))
for name, (meter, took, _) in found.items():
    share, longer = meter.peak_bytes / before.peak_bytes, 100 * (took / seconds["plain"] - 1)
    table.append((name, f"{meter.peak_bytes / MiB:.1f} MiB", f"{share:.0%}", "0.0 %", f"{longer:.0f} %"))
print(text_table(table))
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A checkpointed block keeps its input and runs forward once more in the backward pass: the same numbers for at most a third more arithmetic.
# - The second run must see what the first saw: random numbers and autocast. A Function sees only its arguments, so use `use_reentrant=False`.
# - The blocks of this lab's GPT keep 16 times their input, a Llama's more, so one block per segment is right; √n segments are for thin layers.
# - Choosing *what* to keep inside a block beats choosing *which* blocks: keep what costs the most FLOPs for each byte, and count attention.
# - Saved tensors can also be moved or rounded, with two hooks.
#
# **What to reach for when.** If activations are the largest tenant and the batch is one already, checkpoint every block first; then keep as much as
# you can afford, with a selective policy or the compiler's budget. If the peak is in the optimizer step, checkpointing will not help
# ([[lean_optimizers]]).
#
# **Sources.** Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost* (√n); Korthikanti et al. 2022 (selective recomputation); PyTorch documentation, `torch.utils.checkpoint` and *Hooks for
# autograd saved tensors*; PyTorch blog 2025, *Current and New Activation Checkpointing Techniques in PyTorch*.
