# %% [markdown] name="title"
# # Where memory goes
#
# **A few categories of tensors fill the memory of a training step. Your code determines how large each one is, so you
# can predict the peak before you run it, to within a few percent.**
#
# | | |
# |---|---|
# | After this you can | name what fills memory in a training step and when the peak occurs; derive the "16 bytes per parameter" rule and say when it is 18; estimate training compute as 6ND; say how activations grow with batch, sequence, width and depth; predict the peak of a GPT to within a few percent |
# | Time | 110 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[start_here]] |
# | Syllabus | T1, T2, C1, C2, C3, C4, C5 |

# %% name="setup" setup=true
import contextlib
import math

from helpers import (
    Claims,
    GiB,
    MemoryMeter,
    Prediction,
    Recipe,
    SmallCNN,
    SmallGPT,
    category_bars,
    category_table,
    check,
    count_parameters,
    device_name,
    digits,
    explore_memory,
    hint,
    human_bytes,
    pick_device,
    plan_many,
    show,
    show_table,
)
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="scale_text"
# ## 1 · Why scale hurts
#
# Start with the weights alone: a 7B model has about seven billion of them. GPUs sold for training have 16 to 288 GB of memory. How many of these GPUs does it take to hold the weights?
#
# This course has a **planner**. It builds a model of any size without allocating its memory, and it can work out how much memory training would take.
# Here it only counts parameters. (GPT-3's 175 billion is the published number; its config file and weights are not public.)

# %% name="weights_alone"
parameters = {
    "Llama-2-7B": count_parameters("llama-2-7b"),
    "Llama-2-70B": count_parameters("llama-2-70b"),
    "GPT-3 175B": 175_000_000_000,
}
table = [("", "parameters", "FP32", "16 bit", "80 GB GPUs for the 16-bit weights", "288 GB GPUs")]
for name, n in parameters.items():
    gpus = [f"{math.ceil(2 * n / size)}" for size in (80e9, 288e9)]
    table.append((name, f"{n:,}", f"{4 * n / 1e9:.0f} GB", f"{2 * n / 1e9:.0f} GB", *gpus))
show_table(table)
claims.record("C1", "7B weights: 28 GB in FP32", "Llama-2-7B", 4 * parameters["Llama-2-7B"] / 1e9, "GB", 26.6, 29.4)
claims.record("C1", "70B weights: 280 GB in FP32", "Llama-2-70B", 4 * parameters["Llama-2-70B"] / 1e9, "GB", 266, 294)

# %% [markdown] name="compute_text"
# "7B" is rounded up: Llama-2-7B has 6.74 billion parameters.
#
# The parameter count also tells you the amount of arithmetic. In a matmul, each weight costs one multiplication and one addition per token in the forward
# pass, and twice that in the backward pass, which computes two gradients: one for the weights and one for the inputs. That makes 6 FLOPs per parameter per
# token, or **6ND** for N parameters and D tokens. The formula leaves out attention scores, norms and activation functions. It also counts the input embedding, which is
# a lookup and not a matmul: 2% of Llama-2-7B's parameters.
#
# Llama-2-7B was trained on 2 trillion tokens. Meta reports 184,320 hours of A100 time (Touvron et al. 2023, table 2). An A100's data sheet promises 312 TFLOP/s in BF16.
#
# **Predict.** What percentage of that rate did Meta's GPUs reach, taking 6ND as the total work?

# %% name="guess_mfu"
my_guess = None  # %
### BEGIN GUESS
my_guess = 60  # well-tuned code from an expert team
### END GUESS
mfu_guess = Prediction("Llama-2-7B: 6ND FLOPs per second as a share of the A100's peak", my_guess, "%")

# %% name="compute"
llama_flops = 6 * parameters["Llama-2-7B"] * 2e12
mfu_guess.reveal(100 * llama_flops / (184_320 * 3600 * 312e12), how="from published figures")
print(f"6ND = {llama_flops:.2g} FLOPs: {llama_flops / 312e12 / 3600 / 24 / 365:.1f} years on one A100 at its peak rate")

# %% [markdown] name="scale_explained"
# With attention's own FLOPs added, this ratio is called **model FLOPs utilization** (MFU). At 4,096 tokens, attention adds about 8% to Llama-2-7B's 6ND if only the causal
# half counts, and 16% as the PaLM paper counts it. Values of 35 to 50% are typical of good runs; [[where_the_time_goes]] explains where the rest goes.
#
# So far we have counted weights *at rest*. Training also stores gradients, optimizer state and activations. PyTorch's profiler calls these kinds of memory
# **categories**, and so do we. To see them, take a model that is small enough for this machine and built like the large ones.
#
# ## 2 · The categories of a real step
#
# The model is a GPT with four layers and a width of 128. It takes one AdamW step in FP32 on 8 sequences of 128 tokens.


# %% name="step"
def train_step(model, optimizer, ids):
    """One step on token ids (B, T + 1): each position predicts the next one."""
    optimizer.zero_grad()
    logits = model(ids[:, :-1])  # (B, T, vocabulary)
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()


def measured_step(batch=8, context=128, vocabulary=256, **sizes):
    """Measure the second step; in the first, Adam still has to create its state."""
    torch.manual_seed(0)
    model = SmallGPT(vocabulary, context, **sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)  # foreach: the default on a GPU
    ids = torch.randint(vocabulary, (batch, context + 1), device=device)
    train_step(model, optimizer, ids)
    with MemoryMeter(model, optimizer) as meter:
        train_step(model, optimizer, ids)
    return meter


gpt = SmallGPT().to(device)
n = sum(p.numel() for p in gpt.parameters())
print(f"{n:,} parameters: {human_bytes(4 * n)} in FP32")

# %% [markdown] name="guess_peak_text"
# **Predict.** The weights take 3.2 MiB. How many **MiB** does the whole step hold at its peak?

# %% name="guess_peak"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = (
    4 * 3.2 + 3.2 + 4 * 8 * 128 * 4 * 128 * 16 / 2**20
)  # five times the weights, and 16 numbers per token, layer and channel
### END GUESS
peak_guess = Prediction("Peak of one training step", my_guess, "MiB")

# %% name="measure_step"
step = measured_step()
peak_guess.reveal(step.peak_bytes / MiB)
print(step)

# %% [markdown] name="categories_explained"
# Each category is there for a reason:
#
# - **parameters**: the weights themselves;
# - **gradients**: one number per trainable weight, from the backward pass until `zero_grad`;
# - **optimizer state**: Adam's two moments, two numbers per trainable weight;
# - **activations**: what the forward pass saves so that the backward pass can compute gradients. They grow with the amount of data in a batch;
# - **temporaries**: tensors that are not saved for the backward pass, most of them short-lived. The temporaries of the loss grow with the batch, too;
# - **kernel workspace**: scratch memory of a single operation; **inputs and other**: the batch.
#
# There are no gradients at the peak, because it comes before any weight has one. The moment of the peak matters as much as its size.

# %% name="timeline"
show(
    step.plot("One training step, by category"),
    "Activations grow through the forward pass; in the backward pass they shrink while gradients grow.",
)
kinds = [kind for kind in step.at_peak if any(s.held_after[kind] > 0.02 * step.peak_bytes for s in step.stages)]
table = [("stage", "peak", *(f"leaves {kind}" for kind in kinds))]
for stage in step.stages:
    left = [human_bytes(stage.held_after[kind]) for kind in kinds]
    table.append((stage.name, human_bytes(stage.peak_bytes), *left))
show_table(table)

# %% [markdown] name="timeline_explained"
# From left to right: in the *forward* pass, activations pile up layer by layer. In the *backward* pass, each layer uses and frees its activations while its
# gradients appear. In the *optimizer step*, the narrow part at the right, the activations are gone, all gradients are present, and Adam allocates some
# temporaries: the printed peak of this stage is above what it leaves behind.
#
# Here is the same step, tensor by tensor. Each band is one tensor, colored by category:

# %% name="blocks"
show(
    step.plot_blocks(),
    "Bands of activations, stacked up in the forward pass and taken down from the top in the backward pass.",
)

# %% [markdown] name="pace_text"
# How much arithmetic is in this step? Compare PyTorch's count of its matmuls with 6ND. (The count uses plain attention, because the counter does not know every
# fused kernel.)

# %% name="pace"
optimizer = torch.optim.AdamW(gpt.parameters())
with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
    train_step(gpt, optimizer, torch.randint(256, (8, 129), device=device))
counted, tokens = counter.get_total_flops(), 8 * 128
print(f"counted {counted:.3g} FLOPs, 6ND {6 * n * tokens:.3g}")
print(f"FLOPs per parameter per token: {counted / (n * tokens):.2f}")

# %% [markdown] name="pace_explained"
# The count is higher than 6ND because attention multiplies queries by keys and scores by values, and these matmuls use no parameters. Their share grows
# with sequence length and shrinks with width, so 6ND is closer for large models. How long these FLOPs take is the subject of [[where_the_time_goes]].

# %% [markdown] name="moment_text"
# ## 3 · A smaller batch
#
# Which categories are in memory at the peak if the batch is a single sequence? And if it is 32?
#
# **Predict.** Divide the peak with 32 sequences by the peak with one. What is the ratio?

# %% name="guess_batch"
my_guess = None  # peak with batch 32 / peak with batch 1
### BEGIN GUESS
my_guess = 20  # most of it is activations, which grow with the batch
### END GUESS
batch_guess = Prediction("Peak with 32 sequences / with one", my_guess, "times")

# %% name="moment"
runs = {f"batch {batch}": measured_step(batch=batch) for batch in (1, 8, 32)}
batch_guess.reveal(runs["batch 32"].peak_bytes / runs["batch 1"].peak_bytes)
for name, meter in runs.items():
    print(f"{name:9} peak {human_bytes(meter.peak_bytes):>10} in {meter.peak_at}")
show(
    category_bars({name: meter.at_peak for name, meter in runs.items()}, list(step.at_peak), "Categories at the peak"),
    "With batch 1 the peak holds gradients and no activations; with batch 32 it is mostly activations.",
)

# %% [markdown] name="moment_explained"
# With batch 1 the peak has moved into the optimizer step. It holds parameters, gradients, two moments and **one more** set of tensors of the same size. That fifth set
# is a temporary of Adam's `foreach` implementation, which works on all parameters at once. This is fast, but at its peak it holds the square roots of all
# second moments. (Without `foreach`, Adam goes parameter by parameter and needs temporaries for only one at a time. [[Lean_optimizers]] gets rid of these temporaries.)
#
# With 32 sequences the activations are 32 times as large, but the peak is not: parameters and optimizer state stay the same, and the peak with one sequence holds gradients
# and Adam's temporaries in place of activations.
#
# Large models with small batches behave like batch 1 (section 5 plans one), and convolutional networks with many pixels behave like batch 32 (section 6 measures one). Advice that helped
# one model may therefore do nothing for yours. First measure what fills your memory.
#
# ## 4 · Bytes per parameter
#
# "Training with Adam in mixed precision costs 16 bytes per parameter" is the rule you will hear most often. It ignores activations. It
# adds up what each parameter costs once all gradients exist, just before the optimizer steps. (The next `zero_grad` frees the gradients.)
#
# The rule covers more than one scheme. All of them run matmuls in 16 bits. The weights being updated need more digits
# ([[number_formats]]), so they are kept in FP32: either as **master weights** alongside 16-bit weights, or as the only weights, from which
# `torch.autocast` makes 16-bit copies for each matmul ([[mixed_precision]]).
#
# | bytes per parameter | weights | gradients | master weights | moments | sum |
# |---|---|---|---|---|---|
# | classic mixed precision | 2 | 2 | 4 | 4 + 4 | 16 |
# | the same with FP32 gradients | 2 | 4 | 4 | 4 + 4 | 18 |
# | `torch.autocast` | 4 | 4 | 0 | 4 + 4 | 16 |
#
# Megatron-style runs use the second row: gradients of many micro-batches and ranks (processes, one per GPU) are summed, and such sums need FP32. Megatron Core's documentation lists these
# 18 bytes for BF16 weights, and 16 if everything is FP32. With a mixed-precision policy, PyTorch's FSDP2 ([lab 12b](12b_fully_shard.ipynb)) keeps FP32 weights and gradients and casts the weights of a block to 16 bits when it gathers them, so it belongs in the third row.
#
# Measure all three on a stack of linear layers that is large enough to make activations negligible. In the classic scheme each
# weight has its own optimizer, so that only one FP32 gradient exists at a time.


# %% name="scheme_steps"
def stack():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8))).to(device)


@torch.no_grad()
def copy_into(weight, master):
    weight.copy_(master)


# %% name="scheme_steps_amp"
def autocast_step(model, optimizer, x, _):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def classic_step(model, optimizer, x, master):
    model(x.bfloat16()).float().square().mean().backward()
    for one, copy, weight in zip(optimizer, master, model.parameters(), strict=True):  # one FP32 gradient at a time
        copy.grad = weight.grad.float()
        one.step()
        copy.grad = None
        copy_into(weight, copy)
    model.zero_grad()


def fp32_gradient_step(model, optimizer, x, master):
    model(x.bfloat16()).float().square().mean().backward()  # a hook moves each gradient to its master weight
    optimizer.step()
    for copy, weight in zip(master, model.parameters(), strict=True):
        copy_into(weight, copy)
    optimizer.zero_grad()


def hand_over(copy):
    def hook(weight):
        copy.grad, weight.grad = weight.grad.float(), None

    return hook


# %% [markdown] name="guess_scheme_text"
# The stack has eight layers of equal size, so one layer in FP32 takes 4 / 8 = 0.5 bytes per parameter. `foreach` is off: Adam's loop takes one layer
# after another, and [[start_here]] showed the temporaries that it makes for one of them. Remember that a Python variable keeps its tensor alive until the variable is reassigned.
#
# **Predict.** How many bytes per parameter does one step under `torch.autocast` hold at its peak, **beyond** the 16 in the table?

# %% name="guess_scheme"
my_guess = None  # bytes per parameter
### BEGIN GUESS
my_guess = 2  # the 16-bit copies of the weights
### END GUESS
scheme_guess = Prediction("Peak under autocast, beyond 16", my_guess, "bytes per parameter")

# %% name="schemes"
x = torch.randn(4, 512, device=device)
schemes = {}
steps = {"autocast": autocast_step, "classic": classic_step, "FP32 gradients": fp32_gradient_step}
for name, run in steps.items():
    model, master = stack(), []
    if name == "autocast":
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    else:
        master = [p.detach().clone() for p in model.parameters()]  # FP32
        model.bfloat16()
        optimizer = torch.optim.Adam(master, foreach=False)
    if name == "classic":
        optimizer = [torch.optim.Adam([copy], foreach=False) for copy in master]
    if name == "FP32 gradients":
        for copy, weight in zip(master, model.parameters(), strict=True):
            weight.register_post_accumulate_grad_hook(hand_over(copy))
    run(model, optimizer, x, master)
    with MemoryMeter(model, optimizer) as meter:
        for copy in master:
            copy.add_(0)  # the meter counts a tensor from its first use, and these are in memory from the start
        run(model, optimizer, x, master)
    schemes[name] = meter
each = sum(p.numel() for p in model.parameters())
scheme_guess.reveal((schemes["autocast"].peak_bytes - x.nbytes) / each - 16)
rows = {
    kind: [meter.largest[kind] / each for meter in schemes.values()]
    for kind in ("parameters", "gradients", "optimizer state", "inputs and other", "weight copies", "temporaries")
}
rows["peak"] = [meter.peak_bytes / each for meter in schemes.values()]
rows["left after the step"] = [sum(meter.stages[-1].held_after.values()) / each for meter in schemes.values()]
table = [("bytes per parameter", *schemes)]
table += [(kind, *(f"{figure:.2f}" for figure in figures)) for kind, figures in rows.items()]
show_table(table)

# %% [markdown] name="schemes_explained"
# Each row is the maximum of that category. These maxima occur at different moments, so a column need not add up to its peak.
# After the step the gradients are gone: 12 bytes remain under autocast, 14 with master weights.
#
# The master weights appear under *inputs and other*. The meter counts as parameters only what belongs to the model, and the master weights do not.
# In the classic scheme the gradients take 2 bytes per parameter, plus the bytes of the one FP32 gradient that is being applied.
#
# Autocast adds *weight copies*: 16-bit casts of the weights, made in the forward pass and saved for the backward pass.
# They are gone when the optimizer steps, so they matter only if the peak is in the backward pass.
#
# All three peaks exceed the sums in the table at the start of this section, mostly because of Adam's *temporaries*. Adam works on one layer at a time here (`foreach` is off). One layer in FP32 is 0.5
# bytes per parameter. Adam takes the square root of the second moment, then scales it, and each result is a tensor of a layer's size. Under autocast and with FP32 gradients there are three. Here
# are those of the autocast run:

# %% name="leftover"
auto = schemes["autocast"]
for life in sorted(auto.lifetimes, key=lambda life: life.start):
    alive = life.start <= auto.peak_time and (life.end is None or life.end > auto.peak_time)
    if alive and life.category == "temporaries" and life.nbytes >= 512 * 512 * 4:
        before = (auto.peak_time - life.start) / 1e6
        print(f"{human_bytes(life.nbytes)}, made by {life.op.name.split('.')[1]}, {before:.2f} ms before the peak")

# %% [markdown] name="leftover_explained"
# The first was made for the previous layer: a variable in Adam's loop refers to it until the current layer's result is ready. In the classic scheme each optimizer has one layer, so there is
# no previous one; the other 0.5 bytes of its excess are the FP32 gradient.
#
# Here is the same arithmetic for 7B: two moments of 4 bytes per parameter, with or without 4 more for the master weights. No run is needed;
# the parameter count is enough.

# %% name="claim_16"
for name, meter in schemes.items():
    held = next(stage for stage in meter.stages if stage.name == "backward").held_after  # just before the step
    kinds = ("parameters", "gradients", "optimizer state", "inputs and other")
    rule = (sum(held[kind] for kind in kinds) - x.nbytes) / each
    said = "Adam in mixed precision: 16 bytes per parameter"
    claims.record("C2", said, f"{name}, 8 linear layers", rule, "bytes", 15.5, 16.5)
n7 = parameters["Llama-2-7B"]
for words, low, high, measured in (
    ("Adam's states for 7B: 56 GB", 53, 59, 2 * 4 * n7 / 1e9),
    ("and 84 GB with the FP32 master copy", 80, 88, 3 * 4 * n7 / 1e9),
):
    claims.record("C3", words, "Llama-2-7B, counted", measured, "GB", low, high)
claims

# %% [markdown] name="stays_task"
# ### Your turn: what a parameter costs
#
# Write the rule as code, for four schemes and for models that may be partly frozen.
#
# **Contract.** `resident_bytes(model, scheme)` takes an `nn.Module` and the name of a scheme. It returns the bytes of the model's weights, gradients, master
# weights and Adam's two moments. Only the number of elements matters, not the dtype that the model has now. The schemes are:
#
# - `"fp32"`: everything in FP32;
# - `"autocast"`: weights and gradients in FP32, as in `"fp32"` (do not count the weight copies);
# - `"classic"`: weights and gradients in 16 bits; an FP32 master copy for each *trained* parameter; moments in FP32;
# - `"bf16"`: weights, gradients and moments all in BF16; no master copy.
#
# A frozen parameter (its `requires_grad` is False) has a weight and nothing else. A shared parameter counts once. Buffers do not count, and neither does
# the temporary FP32 copy of a gradient. The function does not change the model.


# %% name="stays" answer=true reveal=true
def resident_bytes(model, scheme):
    ### BEGIN SOLUTION
    weight = {"fp32": 4, "autocast": 4, "classic": 2, "bf16": 2}[scheme]
    trained_too = {"fp32": 4 + 8, "autocast": 4 + 8, "classic": 2 + 4 + 8, "bf16": 2 + 4}[scheme]
    return sum(p.numel() * (weight + trained_too * p.requires_grad) for p in model.parameters())
    ### END SOLUTION


# %% name="stays_check"
resident_bytes = check("where_memory_goes.stays", resident_bytes)

# %% name="stays_hint"
hint("where_memory_goes.stays")

# %% [markdown] name="growth_text"
# ## 5 · How activations grow
#
# Activations depend on four sizes: **batch**, **sequence**, **width** and **layers**. Change one at a time, double it, double it again, and see how
# the activations follow.
#
# **Predict.** Double the sequence length. By what factor do the activations grow?

# %% name="guess_growth"
my_guess = None  # activations at 256 tokens / activations at 128 tokens
### BEGIN GUESS
my_guess = 2  # fused attention never writes the T x T scores to memory
### END GUESS
growth_guess = Prediction("Activations at 256 tokens, relative to 128", my_guess, "times")


# %% name="growth"
def activations(**sizes):
    return measured_step(**sizes).largest["activations"]


base = {"batch": 4, "context": 64, "layers": 4, "width": 64}
tried = {"batch": (4, 8, 16, 32), "context": (64, 128, 256), "layers": (2, 4, 8), "width": (64, 128, 256)}
grown = {size: [activations(**base | {size: value}) for value in values] for size, values in tried.items()}
growth_guess.reveal(grown["context"][2] / grown["context"][1])
slopes = {size: np.polyfit(np.log(tried[size]), np.log(held), 1)[0] for size, held in grown.items()}
for size, held in grown.items():
    print(f"{size:8} {tried[size]}: {', '.join(human_bytes(h) for h in held)}; power {slopes[size]:.2f}")
    claims.record("C4", f"activations grow with {size}, power 1", "GPT, fused attention", slopes[size], "", 0.85, 1.15)

# %% [markdown] name="growth_explained"
# *Power* is the exponent p in "activations grow like size^p", fitted to the figures. It is 1 for batch and sequence and slightly less for layers and width.
# The exponent is below 1 because some memory does not depend on that size. Here that is mainly the logits: batch × sequence ×
# vocabulary does not grow with layers or width.
#
# The exponent for sequence length surprises people who have read that attention is quadratic. Its *arithmetic* is quadratic. Its memory depends on
# whether the scores, a T × T table per head, are ever written to memory. A **fused** kernel works through the table in tiles and never stores it.
# Switch to plain attention and compare:

# %% name="eager"
contexts = (64, 128, 256, 512)
fused = [activations(context=context, batch=2, width=64) for context in contexts]
with sdpa_kernel(SDPBackend.MATH):  # plain matmuls and a softmax, scores in memory
    eager = [activations(context=context, batch=2, width=64) for context in contexts]
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
axes.loglog(contexts, np.array(eager) / MiB, "o-", base=2, color="#D55E00", label="scores in memory")
axes.loglog(contexts, np.array(fused) / MiB, "s-", base=2, color="#0072B2", label="fused")
axes.set(title="Activations by sequence length", xlabel="tokens", ylabel="MiB")
axes.legend(frameon=False)
show(figure, "The fused curve has slope 1; the plain one bends toward 2.")
scores = [e - f for e, f in zip(eager, fused, strict=True)]
power = np.polyfit(np.log(contexts[1:]), np.log(scores[1:]), 1)[0]
print("plain attention also saves:", [human_bytes(s) for s in scores], f"power {power:.2f}")
claims.record("C4", "quadratic where scores are kept", "GPT, plain attention, the scores alone", power, "", 1.85, 2.15)

# %% [markdown] name="exceed_text"
# How large do activations get in a big model? Such a model does not fit here, but the planner can predict its memory. A `Recipe` names the model and
# how it is trained; `bf16-amp` is autocast to BF16. Take GPT-2 XL, with 1.6 billion parameters, on 8 sequences of 1,024 tokens.
# In the small GPT the activations took about ten times as much memory as the parameters at the peak. What is the ratio here?

# %% name="exceed"
batches = (1, 2, 4, 8)
xl = plan_many([Recipe("gpt2-xl", micro_batch_size=batch, seq=1024, precision="bf16-amp") for batch in batches])
ratio = xl[-1].at_peak["activations"] / xl[-1].at_peak["parameters"]
print(f"planned, batch 8: the activations take {ratio:.1f} times as much memory as the parameters")
for answer in xl:
    held = ", ".join(f"{kind} {held / 2**30:.1f}" for kind, held in answer.at_peak.items() if held > 2**27)
    print(f"batch {answer.recipe.micro_batch_size}: peak {answer.peak_allocated_bytes / 2**30:5.1f} GiB: {held}")
claims.record(
    "C4", "activations can exceed the parameters", "planned: GPT-2 XL, batch 8 x 1,024", ratio, "times", 1, math.inf
)

# %% [markdown] name="control_text"
# (These figures count blocks of PyTorch's CUDA allocator, which rounds sizes up. That is why the same optimizer state takes between 11.6 and 11.9 GiB, depending on which gaps
# between other blocks it ends up in.)
#
# ## 6 · The rule on a CNN
#
# Apply "16 bytes per parameter", and nothing else, to the CNN of [[mixed_precision]]. It has four 3 × 3 convolutions with 32, 32, 64 and 64
# channels, each followed by batch norm, which saves its input, and ReLU, which saves its output. A 2 × 2 max-pooling layer after the second convolution halves the height and width. In all there are 66,000 parameters. A batch is
# 256 images of 16 × 16 pixels, in FP32.
#
# **Predict.** What is the ratio of the measured peak to the rule's figure?

# %% name="guess_control"
my_guess = None  # measured / rule
### BEGIN GUESS
my_guess = 10  # activations are extra, and an image is small
### END GUESS
control_guess = Prediction("CNN: measured peak / 16 bytes per parameter", my_guess, "times")

# %% name="control"
data = digits(device, size=16)
images, labels = data.train_x[:256].clone(), data.train_y[:256].clone()
cnn = SmallCNN(32).to(device)
optimizer = torch.optim.AdamW(cnn.parameters())
for _ in range(2):
    optimizer.zero_grad()
    with MemoryMeter(cnn, optimizer) as meter:
        F.cross_entropy(cnn(images), labels).backward()
        optimizer.step()
rule = 16 * sum(p.numel() for p in cnn.parameters())
control_guess.reveal(meter.peak_bytes / rule)
for name, ruled, got in (("CNN", rule, meter.peak_bytes), ("GPT, batch 1", 16 * n, runs["batch 1"].peak_bytes)):
    ratio = got / ruled
    print(f"{name:13} rule {human_bytes(ruled):>10}, measured {human_bytes(got):>10}: {ratio:.1f} times the rule")

# %% [markdown] name="ledger_text"
# The CNN has few weights and saves an activation for every pixel and channel, so the rule leaves out nearly all of its peak. For the GPT at batch 1 it leaves out little more
# than the temporaries of `foreach`.
#
# ## 7 · Predict a GPT
#
# First list what one block of this GPT saves for the backward pass, per token. The meter records the
# operation and the module behind each allocation.

# %% name="ledger"
width, tokens = 128, 8 * 128
made = [life for life in step.lifetimes if life.category == "activations"]
block = [life for life in made if life.op.module.startswith("blocks.1")]
print("saved by one block, in units of tokens x width x 4 bytes:")
for life in sorted(block, key=lambda life: life.start):
    print(f"  {life.nbytes / (tokens * width * 4):>6.2f}  {life.op.name.split('.')[1]:42} {life.op.module}")
print(f"  {sum(life.nbytes for life in block) / (tokens * width * 4):>6.2f}  in all")
rest = [life for life in made if not life.op.module.startswith("blocks") and life.nbytes > 2**16]
for life in rest:
    shape = "tokens x vocabulary" if life.nbytes == tokens * 256 * 4 else "tokens x width"
    print(f"outside the blocks: {human_bytes(life.nbytes):>10}  {life.op.name} ({shape})")

# %% [markdown] name="ledger_explained"
# The list follows the block's forward pass: the first norm's output (1); q, k and v (3); attention's output (1); its sum with the block's input, which the
# second norm saves (1); that norm's output (1); the MLP before and after GELU (4 + 4); and the block's own
# output, which the next norm saves (1). **Sixteen.** This is the ledger of this GPT; [[selective_checkpointing]] has one for a Llama block. Outside the blocks, the
# first norm saves its input and the head saves the last norm's output. (Entries of 0.01 are a mean and an inverse standard deviation per token; the 0.03 entry comes from
# attention.)
#
# Then come the **logits**: one number per token and *vocabulary entry*. When the backward pass begins, several tensors of that size
# exist at once. Here they are:

# %% name="logits"
logits_bytes, spans = tokens * 256 * 4, []
for life in step.lifetimes:
    if life.nbytes == logits_bytes and life.op.name != "made earlier":
        born, died = ((moment or step.ended) - step.began for moment in (life.start, life.end))
        print(f"{life.category:12} from {born / 1e6:5.1f} to {died / 1e6:5.1f} ms, made by {life.op}")
        spans.append((born, died))
together = max(sum(born <= moment < died for born, died in spans) for moment, _ in spans)
print(f"in memory at once: {together}")

# %% [markdown] name="peak_task"
# The first of them stays in memory until the function returns, because the name `logits` in `train_step` still refers to it. So it is still there in the optimizer
# step.
#
# ### Your turn: the peak of a GPT
#
# **Contract.** `gpt_peak(vocabulary, context, layers, width, batch)` returns the bytes at the peak of `train_step` (its second call, as above) for
# `SmallGPT(vocabulary, context, layers, width)` in FP32 with AdamW, `foreach=True`. It builds no model and creates no tensor. It computes with five
# integers, so it also works for models that are too large for any machine you have.
#
# The check measures seven GPTs of very different shapes and accepts predictions **within 4%** for all of them. (On a GPU it accepts 10%, because the blocks of PyTorch's CUDA allocator can be larger than the
# tensors in them.) You need:
#
# - the number of parameters: token embedding (shared with the output layer), position embedding and final norm; each block has four matrices (`qkv`: 3 × width², `out`: width²,
#   the MLP: 8 × width²), their biases (9 × width together) and two norms (4 × width together);
# - which tensors are alive when the backward pass starts: parameters, moments, the ledger of section 7, and as many tensors of logits as the last cell counted;
# - which are alive during `optimizer.step()`: see sections 2 and 3, and do not forget `logits`. The larger sum is the peak. (Models whose embedding is far larger than
#   everything else have a third candidate: the moment at which the two gradients of the shared embedding are added. The check does not include such models.)


# %% name="peak" answer=true reveal=true
def gpt_peak(vocabulary, context, layers, width, batch):
    ### BEGIN SOLUTION
    tokens = batch * context
    parameters = (vocabulary + context) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    logits = 4 * tokens * vocabulary
    kept = 4 * tokens * (16 * width * layers + 2 * width)  # 16 per block; inputs of the first norm and the head
    # Logits, their log-softmax, its gradient, and the gradient of the logits are alive when the backward pass begins.
    at_backward = 12 * parameters + kept + 4 * logits
    step = (12 + 4 + 4) * parameters + logits  # all gradients, foreach's copy, and the variable `logits`
    return max(at_backward, step)
    ### END SOLUTION


# %% name="peak_check"
gpt_peak = check("where_memory_goes.peak", gpt_peak)

# %% name="peak_hint"
hint("where_memory_goes.peak")

# %% [markdown] name="peak_explained"
# Did you pass? Four percent leaves room for a forgotten norm, but not for a forgotten tensor per block. The table at the end shows how close you are; better than 1% is possible.

# %% [markdown] name="virtual_text"
# ### A model that does not fit here
#
# `gpt_peak` also holds for models that this machine could not train, such as GPT-2 XL with its 48 layers of width 1,600. To check it on such a model, use a **virtual GPU**. Inside `with virtual_gpu(...)`,
# PyTorch behaves as if this machine had that GPU. Your Python code runs unchanged, and a model of PyTorch's CUDA allocator decides which allocations fit. Operations on the GPU compute nothing, so even
# a step of a large model is quick. `beside_real_gpu` calls a function that uses a virtual GPU. If this machine has a real GPU, another process calls it, which does not see the real one.
#
# Run `train_step` from section 2 with one sequence of 1,024 tokens. On an RTX 4090, 23.1 GiB is available, which is less than `gpt_peak` returns.
#
# **Predict.** Which line of `train_step` runs out of memory in the *first* step: `model(...)` (1), `loss.backward()` (2) or `optimizer.step()` (3)?

# %% name="guess_virtual"
my_guess = None  # 1, 2 or 3
### BEGIN GUESS
my_guess = 2  # where the peak was in section 2, with 8 sequences
### END GUESS
line_guess = Prediction("GPT-2 XL on 24 GB: the line that fails", my_guess, "", difference=True)

# %% name="virtual"
xl_sizes = {"vocabulary": 50257, "context": 1024, "layers": 48, "width": 1600}


def steps_of_xl(gpu, steps=2):
    """Train GPT-2 XL on a virtual GPU for `steps` steps or until memory runs out; return the record of the run."""
    with virtual_gpu(gpu) as run, contextlib.suppress(torch.OutOfMemoryError):
        model = SmallGPT(**xl_sizes).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(steps):
            train_step(model, optimizer, torch.randint(50257, (1, 1025), device="cuda"))
    return run


small, large = (beside_real_gpu(steps_of_xl, gpu) for gpu in ("rtx-4090-24gb", "h100-80gb"))
line_guess.reveal(("forward", "backward", "optimizer step").index(small.owners.phase) + 1, how="simulated")
show(
    small.plot("GPT-2 XL on a virtual RTX 4090"),
    "Parameters, then activations, which shrink while gradients grow; optimizer state rises until an allocation fails.",
)
print(f"on a virtual H100: peak {large.peak_allocated / GiB:.2f} GiB, in the {large.owners.phase}")
try:
    print(f"gpt_peak:               {gpt_peak(batch=1, **xl_sizes) / GiB:.2f} GiB")
except NotImplementedError:
    print("gpt_peak is still missing")

# %% [markdown] name="virtual_explained"
# In the graph, the first forward and backward passes stay below 13 GiB: Adam has no state yet, and activations are freed while gradients appear. Adam creates its moments in the first `optimizer.step()`.
# They are as large as parameters and gradients together, and the graph shows them growing, tensor by tensor, until one does not fit. So **a first backward pass that succeeds does not show that the run fits.**
#
# The thin band of activations that is left in the optimizer step is `logits`. The virtual GPU counts as an activation anything that the forward pass makes and that is still there when the backward pass begins; the meter of
# section 2 counts only what autograd saves, so there `logits` is a temporary.
#
# On the larger GPU the peak is in the optimizer step, too, and includes `foreach`'s temporaries. It is a little above what `gpt_peak` returns, because PyTorch's CUDA allocator hands out blocks that are larger than the tensors in them
# ([[memory_profiling]]).
#
# Some operations save different tensors on a GPU than on a CPU. Dropout is one of them. It must drop the same numbers in the backward pass, so it saves a **mask**. This GPT has no dropout, so the next cell measures the mask of one dropout operation.


# %% name="mask"
def mask_bytes(device):
    """Return how many bytes dropout saves for the backward pass, per number of its input."""
    x, saved = torch.ones(8, 128, 128, device=device, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.nbytes) or t, lambda t: t):
        F.dropout(x, 0.1)
    return sum(saved) / x.numel()


def mask_on_virtual_gpu():
    with virtual_gpu("rtx-4090-24gb"):
        return mask_bytes("cuda")


print(f"the mask's bytes per FP32 number: {mask_bytes(device):g} on this {device.type},", end=" ")
print(f"{beside_real_gpu(mask_on_virtual_gpu):g} on a virtual GPU")

# %% [markdown] name="mask_explained"
# On a CPU, PyTorch stores the mask in the dtype of the input; on an NVIDIA GPU it stores one byte per number. [[Layouts_in_practice]] compares the masks of a 7B model with a published peak.

# %% [markdown] name="temporaries_text"
# ## 8 · Temporaries, reserve, fragmentation
#
# "Temporaries, the allocator's reserve and fragmentation add 20 to 30% in practice." This sentence lumps several things together. Temporaries are tensors,
# and you have measured them. The **reserve** is memory that PyTorch's CUDA allocator has taken from the GPU and not returned, although no tensor occupies it at the moment: it keeps freed memory for the next
# request, in blocks that may be too small for that request. The planner replays every allocation of a step through the allocator's rules, so it can tell temporaries from reserve for models that do
# not fit here. [[Memory_profiling]] explains those rules.
#
# **Predict.** GPT-2 trains on 8 sequences of 512 tokens under BF16 autocast. What percentage do temporaries and reserve add to everything else at the peak?

# %% name="guess_temporaries"
my_guess = None  # %
### BEGIN GUESS
my_guess = 25  # the middle of the quoted range
### END GUESS
temporaries_guess = Prediction("GPT-2, batch 8: temporaries and reserve add", my_guess, "%")

# %% name="temporaries"
recipes = [
    Recipe("gpt2", micro_batch_size=8, seq=512, precision="bf16-amp"),
    Recipe("bert-base", micro_batch_size=16, seq=128, precision="bf16-amp"),
    Recipe("vit-b-16", micro_batch_size=32, precision="fp32"),
    Recipe("resnet-50", micro_batch_size=32, precision="bf16-amp"),
    Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, precision="bf16"),
    Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, precision="bf16", lora_rank=16, checkpointing="every"),
]
table = [("recipe", "temporaries", "reserve", "together", "peak in")]
added, said = [], "temporaries and reserve add 20 to 30%"
for answer in plan_many(recipes):
    passing = answer.at_peak["temporaries"] + answer.at_peak["kernel workspace"]
    rest = answer.peak_allocated_bytes - passing
    low, high = (100 * (reserved / rest - 1) for reserved in answer.reserved_bytes)  # the planned range
    temporary = 100 * passing / rest
    operation = answer.peak_at.split(" in ")[0].split("aten.")[-1]
    ranges = f"{low - temporary:.0f} to {high - temporary:.0f}%", f"{low:.0f} to {high:.0f}%"
    table.append((answer.recipe.summary, f"{temporary:.0f}%", *ranges, operation))
    added.append((low + high) / 2)
    subject = f"planned: {answer.recipe.summary}"
    if any(low < bound < high for bound in (20, 30)):
        claims.figure("temporaries and reserve, a range that crosses a bound of C5", subject, added[-1], "%")
    else:
        claims.record("C5", said, subject, added[-1], "%", 20, 30)
temporaries_guess.reveal(added[0], how="planned")
show_table(table)

# %% [markdown] name="temporaries_explained"
# The planner knows the reserve only as a range. If the range in *together* crosses 20% or 30%, the cell gives no verdict; otherwise, the figure in the table of claims is the middle of the range.
#
# No such constant exists. Temporaries depend on the operation at the peak: in the softmax of a large vocabulary they are copies of the logits, in
# Adam's `foreach` they are as large as the parameters, and in a CNN or a vision transformer they are small. A rule of thumb like this one may be right for one
# model and wrong for the next.
#
# ## 9 · Explore
#
# The calculator below asks the planner. Change one setting at a time. Before you do, predict which category will change and whether the peak will move. The
# lower bar shows what the allocator will have reserved; its hatched part is uncertain. A run is certain to fit if even the end of the hatched part is below the line. All answers are precomputed; for
# other settings, use `plan(Recipe(...))`. (With the keyboard: Tab moves to a control. In a list, Home and End select the first and the last entry, and Alt + ↓ opens
# it. JupyterLab keeps the plain arrow keys for itself.)
#
# Start with this: *Llama 3.2 1B with AdamW, one sequence of 1,024 tokens, would fit into 24 GiB if only allocated memory counted. Look at the
# reserved memory. Which settings, changed one at a time, guarantee that the run fits, and why is checkpointing not one of them?* Then set the batch to 4: *which category grew, and in which
# operation is the peak now? Do the settings that helped before still help?* Finally: *what do four sequences of 256 tokens and one of 1,024 have in
# common?*

# %% name="play"
explore_memory()

# %% [markdown] name="summary_text"
# ## 10 · Claims and measurements
#
# The right-hand columns of the claims table come from receipts: files that record what other machines measured earlier. A planned figure does not depend on the
# machine. Where a receipt's figure differs from this run's, the receipt comes from an earlier version of the planner, and the table marks it: use the figure from this run.

# %% name="summary"
show_table(category_table(runs))
print()
sizes = {"vocabulary": 256, "context": 128, "layers": 4, "width": 128}
for batch in (1, 8, 32):
    measured = runs[f"batch {batch}"].peak_bytes
    try:
        predicted = gpt_peak(batch=batch, **sizes)
    except NotImplementedError:
        print(f"batch {batch:2}: measured {measured / MiB:.1f} MiB; gpt_peak is still missing")
        continue
    print(
        f"batch {batch:2}: gpt_peak {predicted / MiB:7.1f} MiB, measured {measured / MiB:7.1f} MiB, {predicted / measured - 1:+.1%}"
    )

# %% name="claims"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Parameters, gradients and optimizer state follow from the number of parameters; activations from batch × sequence × width × layers; logits from batch × sequence × vocabulary.
# - Training takes about 6ND FLOPs, plus attention.
# - The peak is a *moment*: usually the beginning of the backward pass, or the optimizer step. Only what is in memory at that moment matters.
# - The 16 bytes per parameter break down differently in each scheme (18 with 16-bit weights and FP32 gradients), and they leave out activations and temporaries.
# - Fused attention makes memory linear in the sequence length.
#
# **What to reach for when.** Are activations the largest category? Mixed precision ([[mixed_precision]]), accumulation ([[#gradient_accumulation]]),
# checkpointing ([[#activation_checkpointing]]). Optimizer state? Lean optimizers ([[#lean_optimizers]]), sharding ([[#sharding]]). Weights? LoRA and
# quantization ([[#lora]]).
#
# **Sources.** Rajbhandari et al. 2020, *ZeRO*, section 3 (the 16 bytes); Megatron Core documentation, *Distributed optimizer* (the 18 bytes); Kaplan et al. 2020, *Scaling Laws for Neural Language Models* (6ND); Touvron et
# al. 2023, *Llama 2*; Korthikanti et al. 2022, *Reducing Activation Recomputation*, section 4 (activations of a transformer, term by term); Dao et al.
# 2022, *FlashAttention*; PyTorch documentation, *CUDA semantics: memory management*.
