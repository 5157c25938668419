# %% [markdown] name="title"
# # Where memory goes
#
# **A handful of things fill the memory of a training step, and your code determines them: you can predict how much memory
# the step needs before you run it, to within a few percent.**
#
# | | |
# |---|---|
# | After this you can | name the tenants of a training step and the moment of its peak; take the "16 bytes a parameter" rule apart; say how activations grow with batch, sequence, width and depth; predict the peak of a GPT to within 10 % |
# | Time | 75 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[start_here]] |
# | Syllabus | T1, T2, C1, C2, C3, C4, C5 |

# %% name="setup" setup=true
import math

from helpers import (
    Claims,
    MemoryMeter,
    Prediction,
    Recipe,
    SmallCNN,
    SmallGPT,
    check,
    count_parameters,
    device_name,
    digits,
    explore_memory,
    hint,
    human_bytes,
    pick_device,
    plan_many,
    profile_step,
    show,
    tenant_bars,
    tenant_table,
)

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="scale_text"
# ## 1 · Why scale hurts
#
# Start with the weights alone: a 7B model has about seven billion of them. GPUs have 8 to 80 GB. How far does that go?
#
# This course has a **planner**: it builds a model of any size without allocating memory for it, and can say how much memory training would take. Here
# it only counts parameters. (175B is GPT-3's published number; there is no public config to count.)

# %% name="weights_alone"
parameters = {
    "Llama-2-7B": count_parameters("llama-2-7b"),
    "Llama-2-70B": count_parameters("llama-2-70b"),
    "GPT-3 175B": 175_000_000_000,
}
print(f"{'':14}{'parameters':>18}{'FP32':>10}{'16 bit':>10}   80 GB GPUs for the 16-bit weights, at least")
for name, n in parameters.items():
    print(f"{name:14}{n:>18,}{4 * n / 1e9:>7.0f} GB{2 * n / 1e9:>7.0f} GB   {math.ceil(2 * n / 80e9)}")
claims.record("C1", "7B weights: 28 GB in FP32", "Llama-2-7B", 4 * parameters["Llama-2-7B"] / 1e9, "GB", 26.6, 29.4)
claims.record("C1", "70B weights: 280 GB in FP32", "Llama-2-70B", 4 * parameters["Llama-2-70B"] / 1e9, "GB", 266, 294)

# %% [markdown] name="scale_explained"
# "7B" is rounded up: Llama-2-7B has 6.74 billion. And these are the weights *at rest*. Training also stores
# gradients, optimizer state and activations; we call all of these **tenants**. To meet them, take a model that is small enough for this machine and built like the large ones.
#
# ## 2 · The tenants of a real step
#
# A GPT with four layers, 128 wide, reads 8 sequences of 128 tokens and takes one AdamW step in FP32.


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
# **Predict.** The weights take 3.2 MiB. How many **MiB** does the whole step hold at its peak? (For one linear layer, [[start_here]] found six times
# the weights: four, plus two for temporaries.)

# %% name="guess_peak"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = (
    4 * 3.2 + 3.2 + 4 * 8 * 128 * 4 * 128 * 16 / 2**20
)  # five times the weights, and 16 numbers a token, layer and channel
### END GUESS
peak_guess = Prediction("Peak of one training step", my_guess, "MiB")

# %% name="measure_step"
step = measured_step()
peak_guess.reveal(step.peak_bytes / MiB)
print(step)

# %% [markdown] name="tenants_explained"
# The tenants, and why each of them is there:
#
# - **parameters**: the weights themselves;
# - **gradients**: one number for each trained weight, from the backward pass until `zero_grad`;
# - **optimizer state**: what Adam remembers, two numbers for each trained weight;
# - **activations**: what the forward pass keeps so that the backward pass can compute gradients. The largest tenant that depends on how much data
#   you feed in;
# - **temporaries**: tensors that are not kept for the backward pass, most of them gone after a moment; **kernel workspace**: scratch memory of a
#   single operation; **inputs and other**: the batch.
#
# There are no gradients at the peak. They are not missing: the peak came before there were any.
# The moment of the peak matters as much as its size.

# %% name="timeline"
show(
    step.plot("One training step, tenant by tenant"),
    "Activations grow through the forward pass; in the backward pass they shrink while gradients grow.",
)
for stage in step.stages:
    left = [(tenant, human_bytes(held)) for tenant, held in stage.held_after.items() if held > 0.02 * step.peak_bytes]
    print(f"{stage.name:15} peak {human_bytes(stage.peak_bytes):>10}, leaves {', '.join(map(' '.join, left))}")

# %% [markdown] name="timeline_explained"
# Read it from left to right. *Forward*: activations pile up, layer upon layer. *Backward*: each layer's activations are used and freed while its
# gradients appear. *Optimizer step*, the sliver at the right: the activations are gone, the gradients are all there, and Adam takes some room for its
# arithmetic (its printed peak is above what it leaves).
#
# The same step, block by block. Each band is one tensor, coloured by tenant:

# %% name="blocks"
show(
    step.plot_blocks(),
    "A mountain of activations, stacked in the forward pass and taken down from the top in the backward pass.",
)

# %% [markdown] name="pace_text"
# Bytes are one account of a step, seconds are another. Here is the same step in seconds, phase by phase. Does the phase that holds the most bytes take the most time?

# %% name="pace"
optimizer = torch.optim.AdamW(gpt.parameters(), foreach=True)
ids = torch.randint(256, (8, 129), device=device)
pace = profile_step(lambda: train_step(gpt, optimizer, ids))
shares = ", ".join(f"{phase} {seconds / pace.seconds:.0%}" for phase, seconds in pace.by_phase().items())
print(f"{1e3 * pace.seconds:.0f} ms: {shares}; {pace.flops / pace.seconds / 1e9:,.0f} GFLOP/s")

# %% [markdown] name="pace_explained"
# The peak is one moment, at the start of the backward pass. Seconds add up: the backward pass does twice the products of the forward pass, and the optimizer, a sliver in the picture above, goes over every weight several times. How fast this step could be, and what keeps it from getting there, is lab [[#where_the_time_goes]].

# %% [markdown] name="moment_text"
# ## 3 · The peak moves
#
# So there are two candidates for the peak: the summit of the mountain, and the optimizer step. Feed one sequence instead of eight, and the other one
# wins:

# %% name="moment"
runs = {f"batch {batch}": measured_step(batch=batch) for batch in (1, 8, 32)}
for name, meter in runs.items():
    print(f"{name:9} peak {human_bytes(meter.peak_bytes):>10} in {meter.peak_at}")
show(
    tenant_bars({name: meter.at_peak for name, meter in runs.items()}, list(step.at_peak), "Tenants at the peak"),
    "With batch 1 the peak holds gradients and no activations; with batch 32 it is mostly activations.",
)

# %% [markdown] name="moment_explained"
# With batch 1 the peak holds parameters, gradients, two moments and **one more** copy of the parameters. That fifth copy is a temporary of Adam's
# `foreach` implementation, which works on all parameters at once. That is fast, but at its height it holds the square roots of all second moments.
# ([[Start_here]] saw two such copies. Without `foreach`, Adam goes parameter by parameter and holds two copies of the current one, and that model had
# only one parameter. [[Lean_optimizers]] gets rid of these copies.)
#
# Large models with small batches are like batch 1, convolutional networks with large images like batch 32. That is why advice that helped
# one model may do nothing for yours: first measure what fills your memory.
#
# ## 4 · Sixteen bytes a parameter
#
# "Training with Adam in mixed precision costs 16 bytes a parameter" is the rule you will hear most often. It says nothing about activations. It
# counts what each parameter costs when all gradients are there, just before the optimizer steps. (Between steps, with gradients freed, it is less.)
# Two different schemes hide behind it. In both, matrix products are computed in 16 bits. The weights that the optimizer updates need more digits
# ([[number_formats]]), so they are kept in FP32: either as **master weights** next to 16-bit weights, or as the only weights, from which
# `torch.autocast` makes 16-bit copies on the way into each product ([[mixed_precision]]).
#
# | bytes a parameter | weights | gradients | master weights | moments | sum |
# |---|---|---|---|---|---|
# | classic mixed precision | 2 | 2 | 4 | 4 + 4 | 16 |
# | `torch.autocast` | 4 | 4 | 0 | 4 + 4 | 16 |
#
# The sums agree; the parts do not. Measure both on a stack of linear layers large enough that activations do not matter. In the classic scheme each
# weight has its own optimizer, so that only one FP32 gradient is alive at a time.


# %% name="scheme_steps"
def stack():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8))).to(device)


def autocast_step(model, optimizer, x, master):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def classic_step(model, optimizer, x, master):
    model(x.bfloat16()).float().square().mean().backward()
    for copy, weight in zip(master, model.parameters(), strict=True):  # one at a time: one FP32 gradient is alive
        copy.grad = weight.grad.float()
        optimizer[copy].step()
        copy.grad = None
        weight.data.copy_(copy)
    model.zero_grad()


# %% name="schemes"
x = torch.randn(4, 512, device=device)
schemes = {}
for name, run in {"autocast": autocast_step, "classic": classic_step}.items():
    model, master = stack(), []
    if name == "classic":
        master = [p.detach().clone() for p in model.parameters()]  # FP32
        model.bfloat16()
        optimizer = {copy: torch.optim.Adam([copy], foreach=False) for copy in master}
        optimizers = list(optimizer.values())
    else:
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        optimizers = [optimizer]
    run(model, optimizer, x, master)
    with MemoryMeter(model, optimizers) as meter:
        run(model, optimizer, x, master)
    schemes[name] = meter
each = sum(p.numel() for p in model.parameters())
print(f"{'bytes a parameter':24}" + "".join(f"{name:>10}" for name in schemes))
for tenant in ("parameters", "gradients", "optimizer state", "inputs and other", "weight copies"):
    print(f"{tenant:24}" + "".join(f"{meter.largest[tenant] / each:>10.2f}" for meter in schemes.values()))
print(f"{'peak':24}" + "".join(f"{meter.peak_bytes / each:>10.2f}" for meter in schemes.values()))
print(
    f"{'left after the step':24}"
    + "".join(f"{sum(m.stages[-1].held_after.values()) / each:>10.2f}" for m in schemes.values())
)

# %% [markdown] name="schemes_explained"
# Each row is that tenant's own maximum. These maxima come at different moments, so a column need not add up to the peak. What is *left* when the step
# is over no longer includes gradients: 12 bytes under autocast, 14 in the classic scheme.
#
# In the classic scheme the master weights are listed under *inputs and other*: the meter was given the model and the optimizer, and they belong to
# neither. Gradients are 2 bytes plus the single FP32 gradient being applied.
#
# Under autocast there is a fifth item, *weight copies*: the 16-bit casts that autocast makes in the forward pass and keeps for the backward pass.
# They are gone by the time the optimizer steps, so they matter only if your peak is in the backward pass.
#
# Both peaks are slightly above 16 because of Adam's temporaries, one layer at a time, since `foreach` is off here.
#
# The same arithmetic for 7B: two moments of 4 bytes for each parameter, with or without 4 more for the master weights. This needs no run;
# the parameter count is enough.

# %% name="claim_16"
for name, meter in schemes.items():
    sixteen = [meter.largest[t] for t in ("parameters", "gradients", "optimizer state", "inputs and other")]
    sixteen = (sum(sixteen) - x.nbytes) / each
    claims.record(
        "C2", "Adam in mixed precision: 16 bytes a parameter", f"{name}, 8 linear layers", sixteen, "bytes", 15.5, 17
    )
n7 = parameters["Llama-2-7B"]
for words, low, high, measured in (
    ("Adam's states for 7B: 56 GB", 53, 59, 2 * 4 * n7 / 1e9),
    ("and 84 GB with the FP32 master copy", 80, 88, 3 * 4 * n7 / 1e9),
):
    claims.record("C3", words, "Llama-2-7B, counted", measured, "GB", low, high)
print(claims)

# %% [markdown] name="stays_task"
# ### Your turn: what a parameter costs
#
# Write the rule as code, for four schemes and for models that may be partly frozen.
#
# **Contract.** `resident_bytes(model, scheme)` returns the bytes of weights, gradients, master weights and Adam's two moments of `model` (an
# `nn.Module`; only its number of elements matters, not its dtype):
#
# - `"fp32"`: everything in FP32;
# - `"autocast"`: as above, weights and gradients in FP32 (leave out the weight copies);
# - `"classic"`: 16-bit weights and gradients; for each *trained* parameter an FP32 master copy; moments in FP32;
# - `"bf16"`: weights, gradients and moments all in BF16, no master copy.
#
# A frozen parameter (`requires_grad` is False) has a weight and nothing else. A shared parameter counts once. Buffers do not count, and neither does
# a gradient's FP32 copy on its way into the optimizer. The function leaves the model as it is.


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
# **Predict.** Double the sequence length. Do the activations double, or more than double?

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
# *Power* is the p in "activations grow like size^p", fitted to the figures. It is 1 for batch and sequence, and a little less for layers and width.
# The exponent is below 1 because some memory does not depend on that size: it is a constant, and it flattens the line. Here it is the logits: batch × sequence ×
# vocabulary does not grow with layers or width.
#
# The power for the sequence surprises people who have read that attention is quadratic. It is quadratic in *arithmetic*. In memory it depends on
# whether the scores, a T × T table for each head, are ever written down. A **fused** kernel works through the table in tiles and never stores it.
# Switch to plain attention and see:

# %% name="eager"
contexts = (64, 128, 256, 512)
fused = [activations(context=context, batch=2, width=64) for context in contexts]
with sdpa_kernel(SDPBackend.MATH):  # plain matrix products and a softmax, scores in memory
    eager = [activations(context=context, batch=2, width=64) for context in contexts]
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
axes.loglog(contexts, np.array(eager) / MiB, "o-", base=2, color="#D55E00", label="scores in memory")
axes.loglog(contexts, np.array(fused) / MiB, "s-", base=2, color="#0072B2", label="fused")
axes.set(title="Activations against sequence length", xlabel="tokens", ylabel="MiB")
axes.legend(frameon=False)
show(figure, "The line of fused attention has slope 1; that of plain attention bends towards slope 2.")
scores = [e - f for e, f in zip(eager, fused, strict=True)]
power = np.polyfit(np.log(contexts[1:]), np.log(scores[1:]), 1)[0]
print("what plain attention also keeps:", [human_bytes(s) for s in scores], f"power {power:.2f}")
claims.record("C4", "quadratic where scores are kept", "GPT, plain attention, the scores alone", power, "", 1.85, 2.15)

# %% [markdown] name="exceed_text"
# "In big models activations can exceed the parameters." A big model does not fit here, but the planner can tell us. A `Recipe` names the model and
# how it is trained; `bf16-amp` is autocast to BF16. Take GPT-2 XL, with 1.6 billion parameters, on sequences of 1,024 tokens (about ten seconds):

# %% name="exceed"
batches = (1, 2, 4, 8)
xl = plan_many([Recipe("gpt2-xl", micro_batch_size=batch, seq=1024, precision="bf16-amp") for batch in batches])
for answer in xl:
    held = ", ".join(f"{tenant} {held / 2**30:.1f}" for tenant, held in answer.at_peak.items() if held > 2**27)
    print(f"batch {answer.recipe.micro_batch_size}: peak {answer.peak_allocated_bytes / 2**30:5.1f} GiB: {held}")
ratio = xl[-1].at_peak["activations"] / xl[-1].at_peak["parameters"]
claims.record("C4", "activations can exceed the parameters", "GPT-2 XL, batch 8 x 1,024", ratio, "times", 1, math.inf)

# %% [markdown] name="control_text"
# (A tenant's figure here counts blocks of CUDA's allocator, which rounds up. So the same state takes 11.6 or 11.9 GiB, depending on the holes it
# finds.)
#
# ## 6 · A rule of thumb that must fail
#
# Sixteen bytes a parameter and nothing else: does that predict a peak? Put it to the test on the CNN of [[mixed_precision]]. It must fail there; the
# point is by how much.

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
for name, said, got in (("CNN", rule, meter.peak_bytes), ("GPT, batch 1", 16 * n, runs["batch 1"].peak_bytes)):
    print(
        f"{name:13} rule {human_bytes(said):>10}, measured {human_bytes(got):>10}: the rule is {got / said:.1f}x too low"
    )

# %% [markdown] name="ledger_text"
# The CNN has few weights and many positions to remember: the rule misses nearly all of its peak. For the GPT at batch 1 it misses only `foreach`'s
# copy.
#
# ## 7 · Predict a GPT
#
# Now put it together. What does one block of this GPT keep for the backward pass, for each token? Ask the meter: for each allocation it knows the
# operation and the module that made it.

# %% name="ledger"
width, tokens = 128, 8 * 128
made = [life for life in step.lifetimes if life.tenant == "activations"]
block = [life for life in made if life.op.module.startswith("blocks.1")]
print("kept by one block, in units of tokens x width x 4 bytes:")
for life in sorted(block, key=lambda life: life.start):
    print(f"  {life.nbytes / (tokens * width * 4):>6.2f}  {life.op.name.split('.')[1]:42} {life.op.module}")
print(f"  {sum(life.nbytes for life in block) / (tokens * width * 4):>6.2f}  in all")
rest = [life for life in made if not life.op.module.startswith("blocks") and life.nbytes > 2**16]
for life in rest:
    shape = "tokens x vocabulary" if life.nbytes == tokens * 256 * 4 else "tokens x width"
    print(f"outside the blocks: {human_bytes(life.nbytes):>10}  {life.op.name} ({shape})")

# %% [markdown] name="ledger_explained"
# Read the list as a walk through the block: the first norm's output (1); q, k and v (3); attention's output (1); its sum with the block's input, which the second norm keeps (1); that norm's output (1); the MLP before and after GELU (4 + 4); and the block's own
# output, which the next norm keeps (1). **Sixteen.** Outside the blocks: the input of the first norm, and the output of the last one. (Entries of 0.01 are a mean and a deviation for each token.)
#
# Then come the **logits**: one number for each token and *each word of the vocabulary*. When the backward pass begins, several tensors of that size
# are alive at once. Find them:

# %% name="logits"
logits_bytes, spans = tokens * 256 * 4, []
for life in step.lifetimes:
    if life.nbytes == logits_bytes and life.op.name != "made earlier":
        born, died = ((moment or step.ended) - step.began for moment in (life.start, life.end))
        print(f"{life.tenant:12} from {born / 1e6:5.1f} to {died / 1e6:5.1f} ms, made by {life.op}")
        spans.append((born, died))
together = max(sum(born <= moment < died for born, died in spans) for moment, _ in spans)
print(f"alive at once: {together}")

# %% [markdown] name="peak_task"
# The first of them lives until the function returns: the name `logits` in `train_step` still refers to it. So it is still there in the optimizer
# step.
#
# ### Your turn: the peak of a GPT
#
# **Contract.** `gpt_peak(vocabulary, context, layers, width, batch)` returns the bytes at the peak of `train_step` (the second one, as above) for
# `SmallGPT(vocabulary, context, layers, width)` in FP32 with AdamW, `foreach=True`. It builds no model and makes no tensor: it is arithmetic on five
# integers, so it also answers for models that fit on no machine you have.
#
# The check measures five GPTs of very different shapes and accepts predictions **within 10 %** for all of them. You need:
#
# - the number of parameters. Token embedding (shared with the output layer), position embedding, final norm; a block has four matrices (`qkv`: 3 × width², `out`: width²,
#   the MLP: 8 × width²), their biases and two norms. Print `SmallGPT()` if in doubt;
# - which tensors are alive when the backward pass starts, and which during `optimizer.step()`. The larger sum is the peak. (For models whose embedding dwarfs
#   all the rest there is a third candidate: the moment at which the two gradients of the shared embedding are added. The check has no such models.)


# %% name="peak" answer=true reveal=true
def gpt_peak(vocabulary, context, layers, width, batch):
    ### BEGIN SOLUTION
    tokens = batch * context
    parameters = (vocabulary + context) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    logits = 4 * tokens * vocabulary
    kept = 4 * tokens * (16 * width * layers + 2 * width)  # 16 a block; the final norm's input and output
    # Logits, their log-softmax, its gradient, and the gradient of the logits are alive when the backward pass begins.
    summit = 12 * parameters + kept + 4 * logits
    step = (12 + 4 + 4) * parameters + logits  # all gradients, foreach's copy, and the variable `logits`
    return max(summit, step)
    ### END SOLUTION


# %% name="peak_check"
gpt_peak = check("where_memory_goes.peak", gpt_peak)

# %% name="peak_hint"
hint("where_memory_goes.peak")

# %% [markdown] name="peak_explained"
# Passed? Ten per cent leaves room for a forgotten norm. The table at the end shows how close you are; better than 1 % is possible.

# %% [markdown] name="temporaries_text"
# ## 8 · Temporaries, reserve, fragmentation
#
# "Temporaries, the allocator's reserve and fragmentation add 20 to 30 % in practice." This sentence mixes several things. Temporaries are tensors,
# and you have measured them. The **reserve** is what CUDA's allocator has taken from the GPU and not returned: it keeps freed memory for the next
# request, in blocks that may not fit. The planner replays every allocation of a step through the allocator's rules ([[profiling_and_oom_clinic]]
# opens that box), so it can tell the two apart for models that do not fit here. Below, temporaries and reserve are relative to everything else at the
# peak. The reserve, holes included, is the middle of the range that the planner gives. (This takes a quarter of a minute.)

# %% name="temporaries"
recipes = [
    Recipe("gpt2", micro_batch_size=8, seq=512, precision="bf16-amp"),
    Recipe("bert-base", micro_batch_size=16, seq=128, precision="bf16-amp"),
    Recipe("vit-b-16", micro_batch_size=32, precision="fp32"),
    Recipe("resnet-50", micro_batch_size=32, precision="bf16-amp"),
    Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, precision="bf16"),
    Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, precision="bf16", lora_rank=16, checkpointing="every"),
]
print(f"{'':70}{'temporaries':>12}{'reserve':>9}{'together':>10}   peak in")
for answer in plan_many(recipes):
    passing = answer.at_peak["temporaries"] + answer.at_peak["kernel workspace"]
    rest = answer.peak_allocated_bytes - passing
    reserved = sum(answer.reserved_bytes) / 2
    total = 100 * (reserved / rest - 1)
    kept_back = (reserved - answer.peak_allocated_bytes) / rest
    operation = answer.peak_at.split(" in ")[0].split("aten.")[-1]
    print(f"{answer.recipe.summary:70}{passing / rest:>12.0%}{kept_back:>9.0%}{total:>9.0f} %   {operation}")
    claims.record("C5", "temporaries and reserve add 20 to 30 %", answer.recipe.summary, total, "%", 20, 30)

# %% [markdown] name="temporaries_explained"
# There is no such constant. Temporaries depend on the operation at the peak: in the softmax of a large vocabulary they are copies of the logits, in
# Adam's `foreach` a copy of the parameters, in a CNN or a vision transformer next to nothing. A rule of thumb that is right for somebody's model is a
# measurement of somebody's model.
#
# ## 9 · Play
#
# The calculator below asks the planner. Turn one knob at a time. Before you do, say which tenant will change and whether the peak will move. The
# lower bar is what the allocator will have reserved; its hatched part is what the planner cannot know. All its answers were planned in advance; for
# anything it does not offer, use `plan(Recipe(...))`. (With the keyboard: Tab reaches a control. In a list, Home and End choose, and Alt + ↓ opens
# it. JupyterLab keeps the plain arrow keys for itself.)
#
# Start with this: *Llama 3.2 1B with AdamW, one sequence of 1,024 tokens, would fit into 24 GiB if only allocated memory counted. Look at what is
# reserved. Which single knobs make room, and why is checkpointing not one of them?* Then set the batch to 4: *which tenant grew, and in which
# operation is the peak now? Does the knob that helped before still help?* Last: *what do four sequences of 256 tokens and one of 1,024 have in
# common?*

# %% name="play"
explore_memory()

# %% [markdown] name="summary_text"
# ## 10 · What was said, what was measured

# %% name="summary"
print(tenant_table(runs))
print()
sizes = {"vocabulary": 256, "context": 128, "layers": 4, "width": 128}
for batch in (1, 8, 32):
    measured = runs[f"batch {batch}"].peak_bytes
    try:
        said = gpt_peak(batch=batch, **sizes)
    except NotImplementedError:
        print(f"batch {batch:2}: measured {measured / MiB:.1f} MiB; your formula is still missing")
        continue
    print(
        f"batch {batch:2}: your formula {said / MiB:7.1f} MiB, measured {measured / MiB:7.1f} MiB, {said / measured - 1:+.1%}"
    )

# %% name="claims"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Parameters, gradients and optimizer state follow from the number of parameters; activations from batch × sequence × width × layers; logits from batch × sequence × vocabulary.
# - The peak is a *moment*: usually near the top of the mountain, where the backward pass begins, or in the optimizer step. All that matters is who is
#   there at that moment.
# - Sixteen bytes a parameter is a sum of different parts in different schemes, and says nothing about activations.
# - Fused attention made memory linear in the sequence.
#
# **What to reach for when.** Are activations the largest tenant? Mixed precision ([[mixed_precision]]), accumulation ([[#gradient_accumulation]]),
# checkpointing ([[#activation_checkpointing]]). Optimizer state? Lean optimizers ([[#lean_optimizers]]), sharding ([[#sharding]]). Weights? LoRA and
# quantization ([[#lora]]).
#
# **Sources.** Rajbhandari et al. 2020, *ZeRO*, section 3 (the 16 bytes); Korthikanti et al. 2022, *Reducing Activation Recomputation*, section 4 (activations of a transformer, term by term); Dao et al.
# 2022, *FlashAttention*; PyTorch documentation, *CUDA semantics: memory management*.
