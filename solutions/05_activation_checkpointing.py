# %% [markdown] name="title"
# # Activation checkpointing
#
# **What the forward pass keeps can be thrown away and recomputed when the backward pass needs it: arithmetic buys memory, at a rate you can choose
# block by block.**
#
# | | |
# |---|---|
# | After this you can | checkpoint blocks, segments, parts of blocks and single operations; read off what each choice saves and what it recomputes; avoid what silently goes wrong |
# | Time | 75 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs [[#start_here]] and [[#where_memory_goes]] |
# | Syllabus | T9, T10, C9, P5 |

# %% name="setup" setup=true
import functools
import itertools
import math
import warnings

from helpers import (
    COLOURS,
    TENANTS,
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
    human_bytes,
    mfu,
    pick_device,
    show,
)

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · The idea
#
# A hiker who wants to find the way back can draw every step on a map. Or she can drop a stone at each crossing and, on the way back, walk each
# stretch between two stones once more to see what lies there. Fewer notes, more walking.
#
# The forward pass draws the map: each block of a GPT keeps 16 tensors of the size of its input ([[where_memory_goes]]). With **activation
# checkpointing** a block keeps only its *input*. When the backward pass reaches it, the block runs forward again from that input and now keeps the
# rest, but only for as long as its own backward pass takes.
#
# The model has 24 narrow blocks, so that activations are nearly everything. A *policy* says how to run block number i.

# %% name="model"
text = english(device)
ids, targets = text.train_x[: 8 * 128].view(8, 128).clone(), text.train_y[: 8 * 128].view(8, 128).clone()
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


def every(k):
    """Checkpoint blocks 0, k, 2k, ..."""
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False) if i % k == 0 else block(x)


def measured(policy, model=None):
    """Run forward and backward once; return the meter and the floating-point operations."""
    model = model or make_gpt()
    flops = count_flops(lambda: loss_of(model, policy).backward())
    model.zero_grad()
    with MemoryMeter(model) as meter:
        loss_of(model, policy).backward()
    return meter, flops


# %% [markdown] name="same_text"
# ### The same numbers first

# %% name="same"
gradients = {}
for name, policy in {"plain": plain, "checkpointed": every(1)}.items():
    model = make_gpt()
    loss_of(model, policy).backward()
    gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
print("identical to the last bit:", torch.equal(gradients["plain"], gradients["checkpointed"]))

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
runs = {"plain": measured(plain), "every block": measured(every(1))}
(before, flops), (after, more_flops) = runs.values()
peak_guess.reveal(before.peak_bytes / after.peak_bytes)
flops_guess.reveal(more_flops / flops)
print(f"\nplain: {before}\n\ncheckpointed: {after}")

# %% name="measure_figure"
for name, (meter, _) in runs.items():
    show(
        meter.plot(f"Forward and backward pass, {name}"),
        "Activations over time: a mountain without checkpointing, a low ramp and 24 teeth with it.",
    )

# %% [markdown] name="measure_explained"
# Look at the second picture. The forward pass is a low ramp: the inputs of the blocks. The backward pass is a row of teeth: each tooth is one block,
# recomputed, used and freed. The meter has a tenant for them: **recomputed activations**. The peak falls by less than 24 × 16 / (24 + 16) = 9.6,
# which is the ratio for activations alone: parameters and temporaries stay.
#
# FLOPs grow by a factor of less than 4/3. The output head is not checkpointed, and PyTorch stops recomputing a block as soon as it has the last
# tensor that the backward pass needs (*early stop*). In this block that saves the last product of the MLP, whose result nobody keeps. In units of
# 2 × tokens × width², a block costs 3 (q, k, v), 4 (attention, over 128 tokens at width 64), 1 (output), 4 and 4 (MLP): a quarter is saved. And a
# backward pass costs a little more than two forward passes, because fused attention computes its scores again there, checkpointed or not.
#
# Now for the figures in the articles. One says "2 to 3 times less memory", another "40 to 50 % of the activations saved", and both say "30 to 33 %
# slower". Here they are, measured, with the time on this device:

# %% name="claims_whole"
model = make_gpt()


def run(policy):
    model.zero_grad()
    loss_of(model, policy).backward()


pace = compare(lambda: run(plain), lambda: run(every(1)), runs=5, warmup=1)
slower = 100 * (1 / pace.speedup - 1)
kept = {name: sum(m.largest[t] for t in ("activations", "recomputed activations")) for name, (m, _) in runs.items()}
saved = 100 * (1 - kept["every block"] / kept["plain"])
gpt24 = "GPT, 24 blocks of width 64"
claims.record("C9", "2 to 3x less memory", gpt24, before.peak_bytes / after.peak_bytes, "times", 2, 3)
claims.record("C9", "saves 40 to 50 % of the activations", gpt24, saved, "%", 40, 50)
claims.record("C9", "30 to 33 % slower", f"{gpt24}, arithmetic", 100 * (more_flops / flops - 1), "%", 29, 34)
claims.record("C9", "30 to 33 % slower", f"{gpt24}, time on this device", slower, "%", 29, 34)
claims

# %% [markdown] name="whole_explained"
# On a deep stack of equal blocks the saving is far larger than any of the articles say. Their models had other tenants: with Adam and few
# activations, the peak falls only a little, because it was never made of activations ([[where_memory_goes]]). "2 to 3x" is true for a mix; it is not
# a property of checkpointing.
#
# Time need not follow arithmetic. On a CPU, writing 100 MiB that are never in the cache can cost as much as computing them again, and the
# checkpointed run may even be faster. On a GPU expect something near the arithmetic.
#
# How well do the two runs use the machine? **MFU** counts the arithmetic that the model needs, **HFU** all that was done, each as a share of what
# the machine could have done in the same time ([[where_the_time_goes]]). Recomputed blocks are in HFU only.

# %% name="utilization"
side = 1024 if device.type == "cpu" else 8192
square = torch.randn(side, side, device=device)
fastest = 2 * side**3 / benchmark(lambda: square @ square).median  # FLOP/s of a large product
for name, timing, executed in (("plain", pace.before, flops), ("every block", pace.after, more_flops)):
    needed, done = mfu(executed, timing.median, fastest, executed - flops), hfu(executed, timing.median, fastest)
    print(f"{name:12} {1e3 * timing.median:6.0f} ms, MFU {needed:.0%}, HFU {done:.0%}")

# %% [markdown] name="segments_text"
# A report that quotes HFU for a run with checkpointing counts the walking back as progress.
#
# ## 2 · How many segments?
#
# Several blocks can be checkpointed as one **segment**: fewer inputs kept, more recomputed at a time. `checkpoint_sequential` cuts an `nn.Sequential`
# into equal segments. The last segment runs without a checkpoint, since it would be recomputed immediately. So "1 segment" is no checkpointing at
# all. The textbook says that with n layers, √n segments need O(√n) memory. For 24 layers that is about 5 segments.
#
# **Predict.** What number of segments gives the lowest peak for the 24 GPT blocks? (1, 2, 3, 4, 6, 8, 12 or 24)

# %% name="guess_segments"
my_guess = None
### BEGIN GUESS
my_guess = 24  # inputs cost 1 each and a recomputed block 16: s + 16 x 24 / s is least at s = sqrt(16 x 24), about 20
### END GUESS
segments_guess = Prediction("Segments with the lowest peak", my_guess, "")


# %% name="segments"
class Thin(nn.Module):
    """A layer that keeps one tensor, as large as its input."""

    def forward(self, x):
        return torch.tanh(x)


def segmented(blocks, x, segments):
    """Return the most that activations hold when `blocks` run in `segments` checkpointed segments."""
    with MemoryMeter(blocks) as meter:
        checkpoint_sequential(blocks, segments, x, use_reentrant=False).sum().backward()
    return max(
        sum(moment.held[t] for t in ("activations", "recomputed activations", "temporaries"))
        for moment in meter.timeline
    )


counts = (1, 2, 3, 4, 6, 8, 12, 24)
x = torch.randn(8, 128, 64, device=device, requires_grad=True)
stacks = {
    "GPT blocks, which keep 16": make_gpt().blocks,
    "thin layers, which keep 1": nn.Sequential(*(Thin() for _ in range(24))),
}
curves = {name: [segmented(blocks, x, s) / x.nbytes for s in counts] for name, blocks in stacks.items()}
best = {name: counts[int(np.argmin(curve))] for name, curve in curves.items()}
segments_guess.reveal(best["GPT blocks, which keep 16"])
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
for (name, curve), colour, marker in zip(curves.items(), (COLOURS[4], COLOURS[0]), "os", strict=True):
    axes.loglog(counts, curve, marker + "-", base=2, color=colour, label=name)
axes.set(
    title="24 layers in segments", xlabel="segments", ylabel="most held, in inputs", xticks=counts, xticklabels=counts
)
axes.legend(frameon=False)
show(
    figure, "Thin layers have their minimum near 5 segments; GPT blocks fall all the way to about one segment a block."
)
for name, curve in curves.items():
    print(f"{name}: {dict(zip(counts, [round(c) for c in curve], strict=True))}")
root = math.sqrt(24)
claims.record(
    "C9",
    "the square root of n segments is best",
    "24 thin layers",
    best["thin layers, which keep 1"] / root,
    "x root",
    0.5,
    1.7,
)
claims.record(
    "C9",
    "the square root of n segments is best",
    "24 GPT blocks",
    best["GPT blocks, which keep 16"] / root,
    "x root",
    0.5,
    1.7,
)

# %% [markdown] name="segments_explained"
# The textbook's rule assumes that what a layer keeps is as large as its input. Then *s* segments of *n/s* layers hold about *s + n/s*, which is
# smallest at √n. A transformer block keeps 16 times its input, and *s + 16·n/s* is smallest at √(16·n), about 20. Of the numbers tried, 24 is best.
# So "checkpoint every block" is the right default for transformers, and √n for long chains of thin layers.
#
# Does the minimum itself grow like √n? Here are chains of thin layers, each with √n segments:

# %% name="root"
depths = (16, 64, 256)
least = [segmented(nn.Sequential(*(Thin() for _ in range(n))), x, math.isqrt(n)) / x.nbytes for n in depths]
power = np.polyfit(np.log(depths), np.log(least), 1)[0]
print({n: round(m, 1) for n, m in zip(depths, least, strict=True)}, f"power of n: {power:.2f}")
claims.record("C9", "O(sqrt n) activations", "chains of 16 to 256 thin layers", power, "power", 0.35, 0.6)

# %% [markdown] name="every_text"
# ## 3 · Every second, every third
#
# If there is room, checkpoint only some blocks. "Every 2nd or 3rd block: 60 to 70 % of the saving for 10 to 15 % of the time." Think before you
# measure: if half of the blocks are checkpointed, how much of the saving can there be?

# %% name="every"
for k in (2, 3):
    runs[f"every {k}"] = measured(every(k))
whole_saving = before.peak_bytes - after.peak_bytes
for k in (2, 3):
    meter, these_flops = runs[f"every {k}"]
    share = 100 * (before.peak_bytes - meter.peak_bytes) / whole_saving
    extra = 100 * (these_flops / flops - 1)
    print(f"every {k}: {share:.0f} % of the saving for {extra:.0f} % more arithmetic")
    claims.record("C9", "every 2nd or 3rd: 60 to 70 % of the saving", f"{gpt24}, every {k}", share, "%", 60, 70)
    claims.record("C9", "every 2nd or 3rd: for 10 to 15 %", f"{gpt24}, every {k}, arithmetic", extra, "%", 10, 17)

# %% [markdown] name="parts_text"
# The saving is in proportion to the price: half of the blocks give about half of both. With equal blocks there is no free lunch in choosing *which*
# ones. There is one in choosing **what inside a block**.
#
# ## 4 · Inside a block
#
# ### Attention only
#
# With plain attention a block keeps the T × T scores of every head. With fused attention these scores never exist. So the value of "checkpoint
# attention only" depends on the kernel (and, since scores grow with T², on the sequence length):


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


for kernel, backend in {"fused": None, "plain": SDPBackend.MATH}.items():
    context = sdpa_kernel(backend) if backend else torch.enable_grad()
    with context:
        base, base_flops = measured(plain)
        for name, policy in {"attention only": attention_only, "MLP only": mlp_only}.items():
            meter, these_flops = measured(policy)
            print(
                f"{kernel} attention, {name:15} peak {human_bytes(base.peak_bytes)} -> {human_bytes(meter.peak_bytes)}"
                f" ({meter.peak_bytes / base.peak_bytes:.0%}), arithmetic +{100 * (these_flops / base_flops - 1):.0f} %"
            )
            if kernel == "fused":
                runs[name] = meter, these_flops

# %% [markdown] name="selective_text"
# ### Operation by operation
#
# A *selective* policy is asked about every operation in the block: keep the result, or recompute it? The usual rule says that matrix products are
# expensive and everything else is cheap. So keep the products, and recompute norms, GELU, sums and attention.


# %% name="selective"
aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.linear.default}  # the last on an Apple GPU
ATTENTION = {
    op.default
    for name, op in (
        (n, getattr(aten, n)) for n in dir(aten) if n.startswith("_scaled_dot_product") and "backward" not in n
    )
}


def keep(operations):
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in operations else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return lambda block, x, i: checkpoint(block, x, use_reentrant=False, context_fn=contexts)


for name, operations in {"keep products": PRODUCTS, "keep products and attention": PRODUCTS | ATTENTION}.items():
    runs[name] = measured(keep(operations))
    meter, these_flops = runs[name]
    print(f"{name:28} peak {human_bytes(meter.peak_bytes):>10}, arithmetic +{100 * (these_flops / flops - 1):.1f} %")

# %% [markdown] name="selective_explained"
# The cheap results were a good part of what was kept. But the usual rule overlooks that attention consists of products, too, and *keep products* runs
# them again. Keep attention's result as well, and nothing is repeated that counts. (`MUST_SAVE` keeps a result, `PREFER_RECOMPUTE` drops it, and
# `context_fn` passes the policy to the checkpoint.)
#
# What to keep, then? Ask what a number costs to recompute. A number of the MLP's first product takes width multiplications and additions, which is 128
# FLOPs here; a number of attention's result takes 4 × length, which is 512. So *MLP only*, which drops the widest results of the block, and cheap ones,
# holds far less than *keep products* for the same arithmetic. **Keep what costs the most FLOPs for each byte.**
#
# Arithmetic is not time. The policy is asked about every operation, in Python, and when operations are as small as here, that costs more than the
# arithmetic it saves. Time your own.
#
# ### Moved instead of recomputed
#
# A third way is to keep activations in host memory and fetch them when they are needed. `torch.autograd.graph.save_on_cpu` does it in one line. On a
# GPU the peak falls and the bus is busy; on a CPU the "other place" is the same memory, so nothing can be saved, and the meter does not pretend
# otherwise.

# %% name="offload"
model = make_gpt()
with MemoryMeter(model) as meter, torch.autograd.graph.save_on_cpu(pin_memory=device.type == "cuda"):
    loss_of(model, plain).backward()
print(f"plain {human_bytes(before.peak_bytes)}, saved on the host {human_bytes(meter.peak_bytes)} on {device.type}")

# %% [markdown] name="pareto_text"
# ### All in one picture
#
# Each way of running the model is a point: memory against arithmetic. Lower left is better; a point is worth having if no other is both lower and
# further left.

# %% name="pareto"
figure = Figure(figsize=(8, 3.8), layout="constrained")
axes = figure.add_subplot()
looks = zip(itertools.cycle(COLOURS), itertools.cycle("osD^v<>P"), strict=False)
for (name, (meter, these_flops)), (colour, marker) in zip(runs.items(), looks, strict=False):
    axes.plot(meter.peak_bytes / MiB, 100 * (these_flops / flops - 1), marker, color=colour, ls="", label=name)
figure.legend(loc="outside right upper", frameon=False, fontsize=8)
axes.set(
    title="What to keep",
    xlabel="peak, MiB",
    ylabel="more arithmetic, %",
    xlim=(0, 1.25 * before.peak_bytes / MiB),
    ylim=(-2, 42),
)
show(
    figure,
    "Below the line from plain to every block lie the selective policies and the MLP alone: less arithmetic for the same memory.",
)

# %% [markdown] name="wrong_text"
# ## 5 · What silently goes wrong
#
# ### Dropout
#
# Recomputing a block with dropout must drop the same elements again, or the gradients belong to a different network. So PyTorch saves the random
# number generator's state with each checkpoint. Switch that off and see:


# %% name="dropout"
def dropped(preserve):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1)).to(device)
    rows = torch.ones(32, 64, device=device)
    torch.manual_seed(1)
    how = {"use_reentrant": False, "preserve_rng_state": preserve}
    out = layer(rows) if preserve is None else checkpoint(layer, rows, **how)
    out.sum().backward()
    return layer[0].weight.grad


right = dropped(None)
for preserve in (True, False):
    off = 100 * ((dropped(preserve) - right).norm() / right.norm()).item()
    print(f"preserve_rng_state={preserve}: the gradient is off by {off:.0f} %")
    limits = (0, 0.01) if preserve else (1, math.inf)
    claims.record(
        "P5",
        f"dropout is recomputed {'rightly with' if preserve else 'wrongly without'} the random state",
        "one layer",
        off,
        "% off",
        *limits,
    )

# %% [markdown] name="reentrant_text"
# ### Reentrant or not
#
# There are two implementations. The older one, *reentrant*, runs a whole backward pass inside the backward pass. It cannot see parameters, only inputs: if no **input** of the block requires a gradient, it concludes
# that nobody wants one. That happens where the input is data (the first layer of a vision network) or comes from frozen layers (LoRA):

# %% name="reentrant"
for reentrant in (True, False):
    torch.manual_seed(0)
    layer = nn.Linear(8, 8).to(device)
    rows = torch.randn(4, 8, device=device)  # data: needs no gradient
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        out = checkpoint(layer, rows, use_reentrant=reentrant)
        got = out.requires_grad
    want = 0.0 if reentrant else 1.0
    words = f"input without gradient, use_reentrant={reentrant}: {'none' if reentrant else 'one'} for the weights"
    claims.record("P5", words, "one layer", float(got), "gradients", want, want)
    print(
        f"use_reentrant={reentrant}: the output requires a gradient: {got}; warnings: {[str(w.message)[:74] for w in said]}"
    )

# %% [markdown] name="reentrant_explained"
# The result is a warning, easily lost in a log, and a block that never trains. Use `use_reentrant=False`; it also takes keyword arguments, stops
# early, and works with `torch.autograd.grad`.
#
# ### Checkpointing the head
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
hidden = torch.randn(8 * 128, 64, device=device, requires_grad=True)


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
    print(
        f"{name:13} after the forward pass {human_bytes(sum(meter.stages[0].held_after.values())):>10}, peak {human_bytes(meter.peak_bytes)}"
    )

head_guess.reveal(head_peaks[1] / head_peaks[0])
claims.record(
    "P5", "checkpointing the head lowers no peak", "vocabulary 8,000", head_peaks[1] / head_peaks[0], "times", 0.95, 1.1
)

# %% [markdown] name="head_explained"
# Less is held *after the forward pass*, but the peak is where it was: the head is the first thing that the backward pass reaches, so its logits are
# back at the very moment of the peak. What helps here is to compute the loss in chunks of tokens and checkpoint each chunk
# ([[profiling_and_oom_clinic]] has such a patient).
#
# ## 6 · One line for Hugging Face models
#
# Models from `transformers` come with their own switch. It checkpoints every block, in training mode only. The cache of keys and values, which is for
# generating text, has to be off.

# %% name="hugging_face"
from transformers import LlamaConfig, LlamaForCausalLM

sizes = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 12, "num_attention_heads": 4}
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
    print(f"{name:13} peak {human_bytes(meter.peak_bytes)}")

# %% [markdown] name="fit_task"
# ## 7 · Your turn: fit the budget
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
check("activation_checkpointing.fit", choose_blocks)

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
try:
    chosen = choose_blocks(kept, inputs, costs, int(0.6 * sum(kept))) or ()
    print(f"choice {sorted(chosen)}: activations {human_bytes(nothing)} -> {human_bytes(activations_of(chosen))}")
    print(
        f"that is {activations_of(chosen) / nothing:.0%}; recomputed: {sum(costs[i] for i in chosen) / sum(costs):.0%} of the forward pass"
    )
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% [markdown] name="play_text"
# ## 8 · Play
#
# The same 24 blocks, with every k-th of them checkpointed. Where is the peak, and who holds it?

# %% name="play"
strides = {k: measured(every(k)) for k in (1, 2, 3, 4, 8, 24)}
explore(
    lambda every_kth: strides[every_kth][0].plot(
        f"one block in {every_kth} checkpointed: peak {human_bytes(strides[every_kth][0].peak_bytes)}"
    ),
    "Memory over one forward and backward pass; the more blocks are checkpointed, the lower the mountain and the more teeth.",
    every_kth=(2, tuple(strides)),
)

# %% [markdown] name="picker_text"
# ### Pick one: memory against arithmetic
#
# Here are the points of section 4 again, with more ways of checkpointing whole blocks. Pick one after another and look at the right: who is there at
# the peak, and who is *added* by recomputing? The grey line joins the ways that no other beats on both axes. **Which ways are beaten, and by which?**

# %% name="picker"
ways = runs | {f"every {k}": pair for k, pair in strides.items() if k > 1}
prices = {name: (meter.peak_bytes / MiB, 100 * (these / flops - 1)) for name, (meter, these) in ways.items()}
beaten_by = {
    name: [other for other, (x, y) in prices.items() if (x, y) != here and x <= here[0] and y <= here[1]]
    for name, here in prices.items()
}


def picked(way):
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    front = sorted(prices[name] for name, by in beaten_by.items() if not by)
    left.plot(*zip(*front, strict=True), color=COLOURS[7], lw=1)
    left.plot(*zip(*prices.values(), strict=True), "o", color=COLOURS[3])
    left.plot(*prices[way], "D", color=COLOURS[4], ms=9)
    peak, more = prices[way]
    left.set(title=f"{way}: peak {peak:.1f} MiB, +{more:.0f} % arithmetic", xlabel="peak, MiB", xlim=(0, None))
    left.set(ylabel="more arithmetic, %", ylim=(-2, 42))
    held = {t: nbytes / MiB for t, nbytes in ways[way][0].at_peak.items() if nbytes}
    right.barh(list(held), list(held.values()), color=[COLOURS[TENANTS.index(t)] for t in held])
    right.invert_yaxis()
    right.set(title="tenants at the peak", xlabel="MiB", xlim=(0, 1.05 * max(before.at_peak.values()) / MiB))
    return figure


explore(
    picked,
    "More arithmetic against the peak, a point for each way of checkpointing, and the tenants at the peak of the chosen one.",
    way=("every block", tuple(ways)),
)

# %% name="picker_answer"
for name, by in beaten_by.items():
    if by:
        print(f"{name:28} is beaten by {', '.join(by)}")

# %% [markdown] name="picker_explained"
# Checkpointing only some of the blocks is beaten, because it repeats expensive results along with cheap ones. *Keep products and attention* drops only
# what is free in this picture; *MLP only* drops the cheapest product as well; and *every block* reaches a peak that no other way reaches. *Keep
# products* keeps that cheap product and repeats the expensive attention, as *attention only* does. That even `plain` is beaten comes from how
# arithmetic is counted: only products count. Cheap operations done twice are free here, but they take time on a machine.

# %% [markdown] name="summary_text"
# ## 9 · Before and after

# %% name="summary"
print(f"{'':28}{'peak':>12}{'of plain':>10}{'more arithmetic':>17}")
for name, (meter, these_flops) in runs.items():
    share = meter.peak_bytes / before.peak_bytes
    print(f"{name:28}{human_bytes(meter.peak_bytes):>12}{share:>10.0%}{100 * (these_flops / flops - 1):>15.1f} %")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A checkpointed block keeps its input and runs forward once more in the backward pass: the same numbers for at most a third more arithmetic.
# - Transformer blocks keep 16 times their input, so one block per segment is right; √n segments are for thin layers.
# - In arithmetic, choosing *what* to keep inside a block beats choosing *which* blocks: keep what costs the most FLOPs for each byte, and count attention.
# - Do not checkpoint the head, do not use the reentrant version, and never go without the random state.
#
# **What to reach for when.** If activations are the largest tenant and the batch is one already, checkpoint every block first; then keep as much as
# you can afford, with a selective policy. If the peak is in the optimizer step, checkpointing will not help ([[lean_optimizers]]).
#
# **Sources.** Chen et al. 2016, *Training Deep Nets with Sublinear Memory Cost* (√n); Korthikanti et al. 2022 (selective recomputation); PyTorch documentation, `torch.utils.checkpoint`; PyTorch blog 2025, *Current and New
# Activation Checkpointing Techniques in PyTorch*.
