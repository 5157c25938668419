# %% [markdown] name="title"
# # Capstone: one model, one batch, one ladder
#
# **Stack the techniques of the labs, one change at a time, on one model with one effective batch, until the peak is a small fraction of what it was. Test whether the loss stays the same, account for every byte that is left, and climb the same ladder with a language model.**
#
# | | |
# |---|---|
# | After this you can | write and stack micro-batches, checkpointing, an optimizer with one state per parameter, and gradients folded into that state; state how much each saves, and in which category; account for the remaining peak byte by byte; decide with pairs of runs whether the loss is preserved; bound the factor for a model from its parameters and activations; add a step of your own to the ladder |
# | Time | 100 to 120 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#where_memory_goes]] to [[#activation_checkpointing]] and [[#sharding]]; the others help |
# | Syllabus | C12 |
#
# The next lab, [[choosing_a_recipe]], tests what articles and guides promise, and exports a recipe as a script.

# %% name="setup" setup=true
import functools
import math
import statistics
from dataclasses import replace

# %% name="setup_helpers" setup=true
from helpers import (
    CATEGORIES,
    Claims,
    KiB,
    LadderRun,
    LadderTask,
    MemoryMeter,
    Prediction,
    Rung,
    Signum,
    SmolLM2,
    check,
    device_name,
    hint,
    human_bytes,
    in_turns,
    lab_report,
    ladder_figure,
    parallel_map,
    peak_table,
    pick_device,
    planned,
    run_open_rung,
    seven_rungs,
    show,
    show_table,
)
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import ttest_rel
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
torch.set_num_threads(1)  # a CPU kernel's workspace grows with its threads: with one, all CPUs give the same bytes
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="rules_text"
# ## 1 · The rules
#
# Articles promise that these techniques together cut peak memory "up to 20 times, with the same accuracy". It is easy to cheat on such a ladder: a smaller batch makes it a different training run, and a peak read at a different moment is a different quantity. So we need rules:
#
# - **One model**: a vision transformer of four blocks on handwritten digits, started from the same weights.
# - **One effective batch**: an update takes 512 images. In every rung, each update sees the same images in the same order, and all rungs see the same number of images.
# - **One figure**: the peak of a full training step, in bytes, from the meter of [[where_memory_goes]], including parameters and optimizer state.
# - **One loss to preserve**, on images that are used neither for training nor for choosing anything. A single pair of runs proves little, so we compare several pairs. The two runs of a pair start from the same weights and see the images in the same order.

# %% name="task"
task = LadderTask()  # the model, the images in NumPy, and a step of each rung
BATCH, TRAINED, images, labels = task.batch, task.trained, task.images, task.labels
phi = sum(p.numel() for p in task.model(Rung(""), 0, "cpu").parameters())
tested = len(images) - TRAINED
print(f"{phi:,} parameters; {TRAINED:,} images of {images[0].size} pixels to train on, {tested} to test on")

# %% [markdown] name="optimizer_text"
# ### A lean optimizer that can absorb gradients early
#
# Adam keeps two numbers per parameter. **Signum** (Bernstein et al. 2018) keeps one, a running mean of gradients, and steps by the sign of that mean, so every weight moves by the learning rate. Adam moves a weight by *at most* about the learning rate, so a rate that suits one of these optimizers need not suit the other.
#
# The running mean has another use. [[Gradient_accumulation]] keeps a gradient for every parameter while micro-batches add up. An optimizer step in the backward pass would free each gradient at once, but a step after every micro-batch is a different training run: **the two techniques cannot be combined as they are**. However, the running mean is *linear* in the gradient,
#
# *m* ← β·*m* + (1 − β)·(*g*₁ + *g*₂ + … + *g*ₙ),
#
# so a hook can add each *g*ᵢ to *m* as soon as it exists, and then free it. The weights move once, after the last micro-batch. The optimizer state *is* the accumulator. (This does not work for Adam's second moment: the square of a sum is not the sum of squares.) We call it **folding** the gradients into the momentum.
#
# In 16 bits, small additions are lost ([[number_formats]]), so `helpers.Signum` adds to BF16 tensors with **stochastic rounding**: it rounds up or down at random, so that the result is right on average.

# %% [markdown] name="same_text"
# ### Equivalence before memory
#
# In FP32, accumulation, checkpointing and folding should give the same gradient as the full batch. The next two cells test this. The last line of the second output is the control, a step after *every* micro-batch; its weights must differ.

# %% name="same"
base = Rung("0 FP32, AdamW")
rows = np.arange(BATCH)
whole = task.gradient(base, rows, device)
for name, rung in {
    "16 micro-batches": replace(base, micro=32),
    "and checkpointed": replace(base, micro=32, checkpointing=True),
}.items():
    off = (task.gradient(rung, rows, device) - whole).norm() / whole.norm()
    print(f"{name:28} gradient differs by {off:.1e} of its norm")
    claims.record("T8", "the gradient is that of the whole batch", name, off.item(), "relative", 0, 1e-5)

# %% name="same_folded"
lean = replace(base, micro=32, checkpointing=True, optimizer="signum")
folded = replace(lean, fold=True)
two_updates = [rows, rows]
plain = task.weights_after(lean, two_updates, device)
for name, other in {
    "folded into the momentum": task.weights_after(folded, two_updates, device),
    "a step per micro-batch": task.weights_after(folded, 2 * np.split(rows, BATCH // lean.micro), device),
}.items():
    differ = {n: other[n] != plain[n] for n in plain}
    everywhere = sum(d.sum().item() for d in differ.values())
    keys = slice(task.shape["width"], 2 * task.shape["width"])  # biases of queries, keys and values, in this order
    in_keys = sum(d[keys].sum().item() for n, d in differ.items() if n.endswith("in_proj_bias"))
    print(f"{name:28} {everywhere:,} of {phi:,} weights differ, {in_keys} of them are biases of keys")
    if "folded" in name:
        rest = (everywhere - in_keys) / phi
        said = "folding does not change the update, but for the keys' biases"
        claims.record("T8", said, "Signum, 2 steps, FP32", rest, "of the weights", 0, 1e-3)

# %% [markdown] name="same_explained"
# Folding adds the same numbers in a different order, so the last bit may differ. Where a mean is almost zero, even its *sign* may differ. The control ends up with different weights almost everywhere.
#
# Why does the cell count the biases of the keys? A key's bias *b* adds the same *q·b* to every score of a query, and softmax ignores a constant added to all its inputs. So **the gradient of this bias is zero** in exact arithmetic. Signum gets only rounding noise, and takes a full step against its sign. This does no harm, because the bias does not change the model's output.
#
# ## 2 · The ladder
#
# Each rung changes one thing and keeps everything else the same. First you write rungs 2 to 5 yourself, in FP32. Then `helpers` measures all seven.
#
# ### Your turn: rungs 2 to 5
#
# **Contract.** Write four functions, which `my_step` uses in a cell below. `means` maps each parameter to its running mean, a tensor of the same shape.
#
# - Rung 2: `accumulate(model, x, y, micro)` adds the gradient of the mean cross-entropy over **all** rows of `x` to the parameters' gradients, with backward passes that run the parameters' hooks. Rows go through in order, at most `micro` at a time; the last micro-batch may be smaller. Activations of only one micro-batch are in memory.
# - Rung 3: `checkpoint_blocks(model)` changes the model in place: each block of `model.blocks` saves only its input for the backward pass and then recomputes the rest, one block at a time. Outputs, gradients and the names of the parameters stay the same.
# - Rung 4: `signum_step(means, lr)` moves each parameter by `lr`, against the sign of its mean. Where the mean is 0, the parameter stays as it is.
# - Rung 5: `fold(means)` begins an update: it multiplies every mean by 0.9 and returns a list of hook handles. Until the hooks are removed, they multiply each gradient by 0.1, add it to its mean and free it, as soon as it is complete for a micro-batch.


# %% name="stack" answer=true reveal=true
def accumulate(model, x, y, micro):
    ### BEGIN SOLUTION
    for xs, ys in zip(x.split(micro), y.split(micro), strict=True):
        (F.cross_entropy(model(xs), ys, reduction="sum") / len(x)).backward()
    ### END SOLUTION


def checkpoint_blocks(model):
    ### BEGIN SOLUTION
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    ### END SOLUTION


@torch.no_grad()
def signum_step(means, lr):
    ### BEGIN SOLUTION
    for weight, mean in means.items():
        weight.sub_(lr * mean.sign())
    ### END SOLUTION


def fold(means):
    ### BEGIN SOLUTION
    def into_mean(weight):
        means[weight].add_(0.1 * weight.grad)
        weight.grad = None

    for mean in means.values():
        mean.mul_(0.9)
    return [weight.register_post_accumulate_grad_hook(into_mean) for weight in means]
    ### END SOLUTION


# %% name="stack_check"
accumulate, checkpoint_blocks, signum_step, fold = check(
    "capstone.stack", accumulate, checkpoint_blocks, signum_step, fold
)

# %% name="stack_hint"
hint("capstone.stack")


# %% name="stacked"
def my_step(model, means, x, y, lr, micro=32):
    handles = fold(means)
    accumulate(model, x, y, micro)
    signum_step(means, lr)
    for handle in handles:
        handle.remove()


mine = task.model(base, 0, device)
checkpoint_blocks(mine)
means = {p: torch.zeros_like(p) for p in mine.parameters()}
x, y = (torch.from_numpy(part[rows]).to(device) for part in (images, labels))
for _ in range(2):  # the second step is metered
    with MemoryMeter(mine) as my_meter:
        my_step(mine, means, x, y, 4e-3)
by_helpers = task.weights_after(folded, two_updates, device)
differ = sum((p != by_helpers[name]).sum().item() for name, p in mine.named_parameters())
print(f"after two steps {differ} of {phi:,} weights differ from those of `helpers` (keys' biases may)")

# %% name="rungs"
if device.type == "cuda":
    torch.set_float32_matmul_precision("high")  # TF32, from here on: FP32 without it is too easy to beat
LADDER = [base]  # what each field of a rung changes: helpers/exercises/capstone/ladder_task.py
for name, change in {
    "1 BF16 autocast": {"autocast": True},
    "2 16 micro-batches of 32": {"micro": 32},
    "3 checkpointing": {"checkpointing": True},
    "4 Signum for AdamW": {"optimizer": "signum"},
    "5 gradients folded": {"fold": True},
    "6 BF16 weights and state": {"autocast": False, "dtype": torch.bfloat16},
}.items():
    LADDER.append(replace(LADDER[-1], name=name, **change))


def measured(rung):
    return task.meter(rung, rows, device)


subject = f"ViT, {phi:,} parameters, batch {BATCH}, rungs 0 to {len(LADDER) - 1}"
meters = {base.name: measured(base)}
first = meters[base.name].peak_bytes
print(meters[base.name])
show_table(peak_table(meters[base.name], 5))

# %% [markdown] name="guess_text"
# Activations make up nearly all of the peak: 512 images × 5 tokens × 4 blocks.
#
# **Predict.** By what factor do all six changes together lower the peak?

# %% name="guess"
my_guess = None  # a factor, all six changes
### BEGIN GUESS
my_guess = 20  # what the article promises
### END GUESS
ladder_guess = Prediction("FP32 peak / peak of the last rung", my_guess, "times")

# %% name="climb"
meters |= zip([rung.name for rung in LADDER[1:]], parallel_map(measured, LADDER[1:]), strict=True)
peaks = {name: meter.peak_bytes for name, meter in meters.items()}
last = LADDER[-1].name
ladder_guess.reveal(first / peaks[last])
shown = [t for t in CATEGORIES if any(m.at_peak[t] >= KiB for m in meters.values())]
lines = [["KiB at the peak", *shown, "PEAK", "smaller by"]]
for name, meter in meters.items():
    held = [f"{meter.at_peak[t] / KiB:,.0f}" for t in shown]
    lines.append([name, *held, f"{meter.peak_bytes / KiB:,.0f}", f"{first / meter.peak_bytes:.1f}x"])
show_table(lines)
by_micro = peaks[LADDER[1].name] / peaks[LADDER[2].name]
print(f"your rungs 2 to 5, in FP32: peak {human_bytes(my_meter.peak_bytes)}, the batch included")
headline = f"{first / peaks[last]:.1f}x = {by_micro:.1f}x by micro-batches, {first / peaks[last] / by_micro:.1f}x by all the rest"
print(f"\n{headline}")

# %% [markdown] name="climb_explained"
# Read the table column by column. For every rung, ask what it removed, what it *added*, and what it moved to another category.
#
# - **Autocast** halves most activations, but it adds 16-bit copies of the weights and workspace for their matmuls. So the factor stays below 2. On a GPU, this workspace can be larger than all other categories of so small a model, and then the peak rises.
# - **Micro-batches** remove the most by far: they shrink activations, temporaries, workspace and inputs at once. But accumulation keeps gradients alive. In rung 0 the peak comes early in the backward pass, before most gradients exist; in rung 2 all gradients exist from the first micro-batch on.
# - **Checkpointing** removes activations and adds recomputed ones. The weight copies shrink as well, because each recomputed block makes and frees its own. Checkpointing looks modest because few activations were left to remove. *The order of the rungs decides how much each of them seems to save*, but not the total.
# - In rung 3, workspace aside, the static part dominates. **Signum** removes a state tensor, and **folding** removes the gradients; each of these changes affects only one category. **BF16** halves weights and state, and removes the copies and some of the activations that autocast keeps in FP32. Its stochastic rounding needs FP32 temporaries of its own, which section 3 shows.
#
# So the largest factor comes from the simplest technique, small micro-batches.

# %% [markdown] name="time_text"
# ### What did it cost? Time
#
# The rungs take turns: in each of three rounds, after a warm-up, every rung takes one step. We compare rungs *within* a round, so a temporary slowdown of the machine is likely to affect both sides of a comparison.
#
# **Predict.** How long does a step of the last rung take, as a multiple of a step of rung 1 (BF16 autocast)?

# %% name="guess_time"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.33  # checkpointing: one more forward pass
### END GUESS
time_guess = Prediction("Time of a step, last rung / rung 1", my_guess, "times")


# %% name="pace_table"
def step_of(rung):
    model = task.model(rung, 0, device)
    return functools.partial(task.step, rung, model, task.optimizer(rung, model), rows)


paces = in_turns({rung.name: step_of(rung) for rung in LADDER}, rounds=3).seconds
time_guess.reveal(float(np.median(paces[last] / paces[LADDER[1].name])))
table = [["rung", "peak", "smaller by", "time", "in 3 rounds"]]
for name, peak in peaks.items():
    slower = paces[name] / paces[base.name]
    spread = f"{min(slower):.1f} to {max(slower):.1f}"
    table.append([name, human_bytes(peak), f"{first / peak:.1f}x", f"{np.median(slower):.1f}x", spread])
show_table(table)

# %% [markdown] name="cost_text"
# Compare each rung with the one before it. On a CPU, rung 1 often makes the step slower; on a GPU, autocast saves time if the matmuls are large enough ([[mixed_precision]]). Small micro-batches use a processor less efficiently. Checkpointed blocks run their forward pass twice, which adds a third to the arithmetic, and more than a third to the time of small micro-batches, where most of an operation's cost is the call itself ([[activation_checkpointing]]).

# %% [markdown] name="rates_text"
# ### And the loss?
#
# Each optimizer gets its own learning rate. If you chose the rates by the loss on the test images, you would in effect be training on them. So a fifth of the *training* images is held out for this choice.

# %% name="runs"
PAIRS = range(5)
KEPT = TRAINED - TRAINED // 5  # the rest of the training images is held out to choose rates


def all_of(runs):
    """Return run -> (loss, accuracy). Two processes work side by side, as they did for the meters."""
    return dict(zip(runs, parallel_map(lambda run: run.scored(task), runs), strict=True))


# %% name="rates_taken"
tried, RATES = {"adamw": (4e-3, 8e-3, 16e-3), "signum": (2e-3, 4e-3, 8e-3, 16e-3)}, {}
runs = [LadderRun(replace(base, optimizer=o), rate, 0, KEPT, (KEPT, TRAINED)) for o in tried for rate in tried[o]]
for run, (loss, right) in all_of(runs).items():
    name = run.rung.optimizer
    print(f"{name:7} {run.rate:g}: loss {loss:.3f} on {TRAINED - KEPT} held-out images, {right:.1f}% right")
    RATES.setdefault(name, []).append((loss, run.rate))
RATES = {optimizer: min(found)[1] for optimizer, found in RATES.items()}
print("chosen:", RATES)

# %% [markdown] name="scores_text"
# With one seed and a few hundred images, neighboring rates in this list often differ by only a few images. Treat the choice between them as a coin toss.

# %% [markdown] name="pairs_text"
# Next we test whether the last rung reaches the loss of the first. We train both with five seeds, in pairs. Accuracy changes in steps of one image, and the **loss** is a finer measure, so we compute an interval for the difference in loss. You must set the margin before the runs (here the loss may rise by at most 0.1), and the interval must be narrow enough to *decide*. As a control, we also train the last rung with ordinary rounding. Does it lose its small steps in so short a run?
#
# To save time, these runs leave out checkpointing, which does not change a single bit ([[activation_checkpointing]]), and fold four micro-batches of 128 instead of sixteen of 32, which gives the same gradient with fewer roundings.
#
# **Predict.** What is the last rung's loss on the test images minus that of rung 0, on average over the pairs?

# %% name="guess_pairs"
my_guess = None  # loss of the last rung minus that of rung 0
### BEGIN GUESS
my_guess = 0.0
### END GUESS
pairs_guess = Prediction("Loss of the last rung minus that of rung 0", my_guess, "")


# %% name="pairs"
def nearest(target, change):
    """Add with ordinary rounding, in place of Signum's stochastic rounding."""
    target.copy_(target.float().add_(change))


plainer = {rung.name: replace(rung, checkpointing=False, name="") for rung in LADDER}  # trained instead of a rung
variants = {
    "rung 0": (base, PAIRS),
    "last rung": (LADDER[-1], PAIRS),
    "last rung, rounded to nearest": (LADDER[-1], PAIRS[:2]),
}
everything = TRAINED, (TRAINED, len(images))  # trained on, tested on
runs = {
    (variant, seed): LadderRun(
        replace(plainer[rung.name], micro=max(128, rung.micro)),
        RATES[rung.optimizer],
        seed,
        *everything,
        nearest if "nearest" in variant else None,
    )
    for variant, (rung, seeds) in variants.items()
    for seed in seeds
}

# %% name="pairs_scored"
found = all_of(list(runs.values()))
losses = {name: [found[runs[name, seed]][0] for seed in seeds] for name, (_, seeds) in variants.items()}
for name, (_, seeds) in variants.items():
    right = statistics.mean(found[runs[name, seed]][1] for seed in seeds)
    print(f"{name:30} {right:.2f}% right, loss " + " ".join(f"{loss:.3f}" for loss in losses[name]))
more = statistics.mean(losses["last rung"]) - statistics.mean(losses["rung 0"])
least_more, most_more = ttest_rel(losses["last rung"], losses["rung 0"]).confidence_interval(0.95)
pairs_guess.reveal(more)
print(f"{len(PAIRS)} pairs: {more:+.3f} in loss, 95% interval {least_more:+.3f} to {most_more:+.3f}")
swamped = [b - a for a, b in zip(losses["last rung"], losses["last rung, rounded to nearest"], strict=False)]
points = [found[runs["last rung", seed]][1] - found[runs["rung 0", seed]][1] for seed in PAIRS]
low_points, high_points = ttest_rel(points, [0.0] * len(points)).confidence_interval(0.95)
print(f"accuracy: {statistics.mean(points):+.2f} points, 95% interval {low_points:+.2f} to {high_points:+.2f}")
print("loss when rounded to nearest, minus the last rung's: " + ", ".join(f"{d:+.3f}" for d in swamped))

# %% name="ladder_claims"
TWENTY = 18, math.inf  # one rule for all models of this lab: 20x is reached, within 10%
claims.record("C12", "our ViT: a peak 20x lower", subject, first / peaks[last], "times", *TWENTY)
paired = f"{subject}, {len(PAIRS)} pairs of {LadderRun.updates} updates"


def verdict_if_decided(said, low, high, allowed, unit):
    """Record a verdict if the interval lies on one side of `allowed`; otherwise, only the interval."""
    worst = high if allowed > 0 else low
    if low <= allowed <= high:
        claims.figure(f"{said} (undecided)", f"{paired}, 95%: {low:+.2f} to {high:+.2f}", worst, unit)
        return
    band = (-math.inf, allowed) if allowed > 0 else (allowed, math.inf)
    claims.record("C12", said, f"{paired}, worse end of 95%", worst, unit, *band)


verdict_if_decided("the same loss: at most 0.1 more", least_more, most_more, 0.1, "more")
verdict_if_decided("the same accuracy: at most 0.5 points lost", low_points, high_points, -0.5, "points")
said = "BF16 rounded to nearest, not stochastically: more loss"
claims.figure(said, f"{subject}, 2 pairs of {LadderRun.updates} updates", statistics.mean(swamped), "")

# %% name="ladder_figure"
show(
    ladder_figure(meters),
    "Two panels, one bar per rung: the factor by which the peak is lower, and each category's percentage of the peak.",
)

# %% [markdown] name="cost_explained"
# Compare the interval with the margin of 0.1. Keep in mind that after so few updates the model is undertrained. The last line under the losses is the control. For most weights, a step of Signum is several times larger than the gap between neighboring BF16 numbers, so ordinary rounding loses little in so short a run. If the steps were small, it would lose nearly all of them ([[number_formats]]).
#
# The interval shows how much five pairs can tell you. If all of it is below the margin, the claim is safe for this model. If all of it is above, the claim is refuted. If it straddles the margin, these pairs **cannot decide**, and you need more of them. Rung 3 changes nothing, and rungs 1, 2, 5 and 6 change rounding only. Only rung 4 changes *what* is computed: it uses another optimizer, with its own learning rate. The most-quoted ladder also changes its optimizer, from Adam to SGD ([[choosing_a_recipe]]).

# %% [markdown] name="floor_text"
# ## 3 · The floor, byte by byte
#
# This section measures on the CPU on all machines, because there a tensor takes as many bytes as its shape says. (CUDA's allocator rounds each tensor up to a multiple of 512 bytes, and its attention kernels pad our 5 tokens to 64 or 128 in their workspace.)
#
# The next cell lists the largest blocks of memory at the last rung's peak, each with the operation that allocated it.

# %% name="floor"
if device.type == "cpu":
    top, final, floor_subject = meters[base.name], meters[last], subject
else:
    top, final = (task.meter(rung, rows, "cpu") for rung in (base, LADDER[-1]))
    floor_subject = f"{subject}, on the CPU"
show_table(peak_table(final, 12))

# %% [markdown] name="laws_text"
# The shapes of the model explain all of these blocks except the scratch memory of a kernel. The peak is in the backward pass of the last MLP, when one block has been recomputed for one micro-batch. It is at the MLP's matmul if the matmul needs scratch, as on many CPUs; otherwise it comes a moment later, in Signum's hook.


# %% name="laws"
def formulas(micro):
    """Return what each category must hold at the last rung's peak: bytes, from shapes alone, and the reason."""
    width, inner, layers, heads = (task.shape[name] for name in ("width", "inner", "layers", "heads"))
    pixels, sequence = images[0].size, (task.shape["side"] // task.shape["patch"]) ** 2 + 1
    tokens = micro * sequence
    random = torch.get_rng_state().nbytes
    wide = 2 * inner  # GELU: its input and its output
    narrow = 3 * width + 4 * width  # q, k, v; outputs of both norms and of attention, the sum after it
    rows_of = 4 * micro * heads * sequence + 2 * 4 * tokens  # softmax's sums (FP32); mean and deviation, two norms
    block = 2 * tokens * (wide + narrow) + rows_of
    # In Signum's hook, GELU's output is free, and three tensors of the weight's size are in FP32:
    hook = "randint" in final.peak_at
    return {
        "parameters": (2 * phi, "2 bytes each"),
        "optimizer state": (2 * phi, "2 bytes per parameter: one mean, which is also the accumulator"),
        "inputs and other": (micro * (4 * pixels + 8), "FP32 images, labels"),
        "activations": (2 * (layers * tokens * width + micro * pixels), "inputs of 4 blocks; images in BF16"),
        "recomputed activations": (
            block - hook * 2 * tokens * inner,
            "GELU in and out; q, k, v; 4 tensors of the model's width; softmax and norm statistics",
        ),
        "temporaries": (
            2 * (tokens * (inner + width) + inner * width + micro * 10) + 2 * 4 + hook * 3 * 4 * inner * width,
            "gradients of GELU's and the block's outputs, one weight; logits; 2 scalars; in the hook its FP32 tensors",
        ),
        "kernel workspace": (layers * random, "the random generator's state, for each checkpoint"),
    }


# %% name="floor_table"
floor = [["category", "bytes", "formula", "remainder"]]
for category, (expected, _) in formulas(32).items():
    held = final.at_peak[category]
    floor.append([category, *(f"{n:,}" for n in (held, expected, held - expected))])
scratch = final.at_peak["kernel workspace"] - formulas(32)["kernel workspace"][0]
total = sum(expected for expected, _ in formulas(32).values()) + scratch
floor.append(["sum, with scratch", f"{final.peak_bytes:,}", f"{total:,}", f"{final.peak_bytes - total:,}"])
assert sum(final.at_peak.values()) == final.peak_bytes
show_table(floor)
print()
for category, (_, why) in formulas(32).items():
    print(f"{category:24}{why}")
print(f"{'scratch':24}{human_bytes(scratch)}: requested by {final.peak_at}")
print(f"a random generator's state on a CPU: {torch.get_rng_state().nbytes:,} bytes")
unnamed = 100 * abs(final.peak_bytes - total) / final.peak_bytes
claims.record("C12", "the floor is named: formulas from shapes, and scratch", floor_subject, unnamed, "% unnamed", 0, 1)
static = final.at_peak["parameters"] + final.at_peak["optimizer state"]
claims.record("C12", "weights and state: 4 bytes per parameter", floor_subject, static / phi, "bytes", 4, 4.3)

# %% [markdown] name="floor_explained"
# - **Weights and running means** take 2 + 2 bytes per parameter. They are the floor in the strict sense. To go lower, you need another number format ([[fp8]]), fewer trained parameters ([[lora]]), or more machines ([[sharding]]).
# - **Activations** are the inputs of the checkpointed blocks and the images, for one micro-batch. **Recomputed activations** and most **temporaries** belong to the one block whose backward pass is running.
# - **Kernel workspace** has two sources. One is the matmul's scratch, if the peak is at a matmul: on many CPUs, 16-bit matmuls repack their operands. (It is the only figure here that does not follow from shapes.) The other is a surprise: `checkpoint` saves **the state of the random generator** for each block, so that dropout would draw the same numbers again. The last line of the output shows its size on a CPU. Every block saves one, although this model has no dropout. `preserve_rng_state=False` removes it.

# %% [markdown] name="smaller_text"
# **Predict.** With micro-batches of 4 images instead of 32, by what factor does the peak of the last rung fall?

# %% name="guess_smaller"
my_guess = None  # a factor
### BEGIN GUESS
my_guess = 2  # activations and temporaries, about half of the peak, by 8
### END GUESS
smaller_guess = Prediction("Last rung's peak, micro-batches of 32 / of 4", my_guess, "times")


# %% name="smaller"
def shrunk(micro, **change):
    """Measure the last rung on four micro-batches: as in gradient accumulation, all after the first are alike."""
    return task.meter(replace(LADDER[-1], micro=micro, **change), rows[: 4 * micro], "cpu")


sizes = (128, 32, 16, 4)
curve = dict(zip([f"micro-batches of {micro}" for micro in sizes], parallel_map(shrunk, sizes), strict=True))
assert curve["micro-batches of 32"].peak_bytes == final.peak_bytes
smallest = curve["micro-batches of 4"]
smaller_guess.reveal(final.peak_bytes / smallest.peak_bytes)
lines = [["KiB at the peak", "weights, means", "activations", "temporaries", "workspace", "PEAK", "smaller by"]]
for name, meter in (curve | {"32, no random state": shrunk(32, keep_random=False)}).items():
    held = meter.at_peak
    activations = held["activations"] + held["recomputed activations"]
    categories = (static, activations, held["temporaries"], held["kernel workspace"], meter.peak_bytes)
    lines.append([name, *(f"{n / KiB:,.0f}" for n in categories), f"{top.peak_bytes / meter.peak_bytes:.1f}x"])
show_table(lines)
print(f"\nwith 4 images the peak is in {smallest.peak_at}")
print(f"if only weights and running means were left: {top.peak_bytes / static:.0f}x")

# %% [markdown] name="vit_text"
# Activations fall with the micro-batch. With few images, the peak is in a kernel's scratch memory on some CPUs. On others it is in the optimizer's hook, where stochastic rounding holds three tensors of 4 bytes per element that are as large as the largest weight (the mean, its change, the random bits), whatever the batch. The random states do not shrink either. When you shrink one category, another takes its place at the peak.
#
# So the floor depends on three choices: the bytes per weight, the bytes of state, and how much you compute at a time. The factor tells you as much about rung 0 as about rung 6.

# %% [markdown] name="bound_text"
# ## 4 · Models that people train
#
# How far does the ladder go on other models? We plan the seven rungs for two larger models: ViT-L on 64 images of 224 pixels, and a 1B language model on 16 sequences of 1,024 tokens. (SGD with momentum stands in for Signum: one number per parameter.)
#
# The factor has an upper **bound**. With Φ parameters, rung 0 holds at most 16Φ bytes (weights, gradients, two moments) plus A, the rest of its peak (mostly activations). The last rung holds 4Φ bytes (weights and mean in BF16) plus a, the memory that one micro-batch needs:
#
# $$\text{factor} \le \frac{16Φ + A}{4Φ + a} < 4 + \frac{A}{4Φ}$$
#
# **Predict.** What is the factor for the 1B model, with Φ = 1.24 billion? (Section 2 has the factor of our small ViT.)

# %% name="guess_1b"
my_guess = None  # a factor, seven rungs, 1B
### BEGIN GUESS
my_guess = 10  # weights matter more than in the ViT
### END GUESS
billion_guess = Prediction("1B, FP32 peak / peak of the last rung", my_guess, "times")


# %% name="record_factor"
def record_factor(model, how, weights, peak, less):
    """Print the bound for a model whose first rung has this `peak`; record the factor `less` beside it."""
    bound = 4 + (peak - 16 * weights) / (4 * weights)
    print(f"16Φ = {16e-9 * weights:.2f} GB, 4Φ = {4e-9 * weights:.2f} GB: at most {bound:.1f}x\n")
    claims.record("C12", f"{model}: a peak 20x lower", f"our ladder, {how}", less, "times", *TWENTY)
    claims.record("C12", "factor below 4 + A / 4Φ", f"{model}, {how}", less / bound, "of the bound", 0, 1)


# %% name="planned_table"
LOSS = {"3 checkpointing": "the same bits", "4 one state": "another optimizer", "0 FP32, AdamW": ""}


def plan_ladder(model, batch, micro, **shared):
    """Show the seven rungs of `model`, planned, and its bound; return the factor."""
    rungs = seven_rungs(model, batch, micro, **shared)
    plans = dict(zip(rungs, planned([recipe for recipe, _ in rungs.values()]), strict=True))
    # Each step as often as an update needs it:
    seconds = {name: rungs[name][1] * plan.roofline_seconds["a100-80gb"] for name, plan in plans.items()}
    top = plans["0 FP32, AdamW"]
    lines = [[f"{model}, batch {batch}, planned", "GB", "smaller by", "roofline time / rung 1", "loss"]]
    for name, plan in plans.items():
        slower = "" if plan is top else f"{seconds[name] / seconds['1 BF16 autocast']:.2f}x"  # rung 0 is without TF32
        gb, less = plan.peak_allocated_bytes / 1e9, top.peak_allocated_bytes / plan.peak_allocated_bytes
        lines.append([name, f"{gb:.2f}", f"{less:.1f}x", slower, LOSS.get(name, "other rounding")])
    show_table(lines)
    record_factor(f"{model}, batch {batch}", "planned", top.parameters, top.peak_allocated_bytes, less)
    return less


plan_ladder("vit-l-16", 64, 4)
billion_guess.reveal(plan_ladder("llama-3.2-1b", 16, 1, seq=1024), "planned")
bound = 4 + (first - 16 * phi) / (4 * phi)
print(f"our ViT by the same bound: {bound:.0f}x, of which it reached {first / peaks[last]:.0f}x")

# %% [markdown] name="planned_explained"
# The bound explains the difference. A grows with the batch, and Φ does not. In our small ViT, A is far larger than the weights, so its bound is high, and the memory for one micro-batch keeps the factor far below it. The large models come closer to a bound that is much lower: most of what is left consists of weights and means.
#
# The times are ratios of roofline times, at the rates of an A100's data sheet. Each roofline is a lower bound, but their ratio is only a rough guide: it does not show, for example, that small micro-batches use a GPU less well. (We leave out rung 0, because the planner's FP32 does not use TF32, which would make every other rung look fast.) The loss column states what may differ; only pairs of runs can show how much.

# %% [markdown] name="smol_text"
# ### Your rungs on a language model
#
# The plans above run training steps from `helpers`. To run your own functions on a larger model, use a **virtual GPU** ([[where_memory_goes]]): inside `virtual_gpu`, PyTorch behaves as if this machine had that GPU. Operations compute nothing, and every allocation counts. If this machine has a real GPU, `beside_real_gpu` calls your functions in another process, which does not see it.
#
# `SmolLM2()` is SmolLM2-135M, built from its config, with random weights. Each of its `blocks` takes only its input, and dimension 1 of its logits is the vocabulary, where `F.cross_entropy` expects classes. So `accumulate`, `checkpoint_blocks`, `signum_step` and `fold` run unchanged.

# %% name="smol_steps"
SEQUENCES, TOKENS = 16, 1024


def rung_0(model, x, y):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):  # the first step makes the optimizer state
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def rungs_2_to_5(model, x, y):
    checkpoint_blocks(model)
    means = {p: torch.zeros_like(p) for p in model.parameters()}
    my_step(model, means, x[:2], y[:2], 1e-3, micro=1)  # all micro-batches after the first are alike


def on_h100(step, dtype):
    """Run `step` on a virtual H100; return the record of the run."""
    with virtual_gpu("h100-80gb") as run:
        with torch.device("cuda"):
            model = SmolLM2().to(dtype)
            ids = torch.randint(model.vocabulary, (SEQUENCES, TOKENS + 1))
        step(model, ids[:, :-1], ids[:, 1:])
    return run


# %% [markdown] name="guess_smol_text"
# **Predict.** Rung 0 is FP32 with AdamW and all 16 sequences at once. By what factor do your rungs 2 to 5, with weights and means in BF16, lower its peak?

# %% name="guess_smol"
my_guess = None  # a factor
### BEGIN GUESS
my_guess = 25  # a little more than for 1B
### END GUESS
smol_guess = Prediction("SmolLM2-135M, peak of rung 0 / of your rungs in BF16", my_guess, "times")

# %% name="smol"
smol_variants = {
    "rung 0": (rung_0, torch.float32),
    "rungs 2 to 5, FP32": (rungs_2_to_5, torch.float32),
    "the same, BF16": (rungs_2_to_5, torch.bfloat16),
}
smol_runs = {name: beside_real_gpu(on_h100, *variant) for name, variant in smol_variants.items()}
smol_peaks = {name: run.peak_allocated for name, run in smol_runs.items()}
smol_first, *_, smol_last = smol_peaks.values()
smol_guess.reveal(smol_first / smol_last, "simulated")

with torch.device("meta"):  # no memory: only the sizes are needed
    smol = SmolLM2()
smol_phi = sum(p.numel() for p in smol.parameters())
lines = [[f"SmolLM2, {smol_phi:,} parameters, simulated", "peak", "smaller by"]]
for name, peak in smol_peaks.items():
    lines.append([name, human_bytes(peak), f"{smol_first / peak:.1f}x"])
show_table(lines)
record_factor("SmolLM2-135M", "simulated", smol_phi, smol_first, smol_first / smol_last)
rest = human_bytes(smol_last - 4 * smol_phi)
print(f"in BF16: weights and means {human_bytes(4 * smol_phi)}, a (all the rest) {rest}")
print(f"the logits of one sequence take {human_bytes(2 * TOKENS * smol.vocabulary)}; at the peak, by line:")
for line, nbytes in smol_runs["the same, BF16"].owners.lines.most_common(4):
    print(f"{human_bytes(nbytes):>12}  {line}")

# %% [markdown] name="smol_explained"
# Why is the factor larger than that of the 1B model, with the same batch? The bound gives the reason. For each token, a block saves a number of values proportional to its *width*, but it has a number of weights proportional to the *square* of its width. So in a narrow model A is large compared with 4Φ, and the bound is high.
#
# Why does the factor stay below the bound? Because of a, the memory for one micro-batch. The list names each line of code by its cell. Two lines made the weights and the means; almost all the rest comes from your `accumulate`. Most of that is three tensors as large as the **logits** of a sequence: the log-probabilities that the loss saves, their gradient, and the gradient of the logits. Their size is tokens × vocabulary, so no rung lowers it: checkpointing ends before the head, and a micro-batch cannot be smaller than one sequence. The next rung would be a loss in chunks ([[oom_clinic]], [[fused_kernels]]).
#
# (With real values, means in BF16 would also need `Signum`'s stochastic rounding. A dry run only counts bytes.)

# %% [markdown] name="lean_text"
# ## 5 · Your turn: no room for gradients
#
# In section 2 you folded gradients into a mean. Here some rows have no label, the update has weight decay, and part of the model is frozen. Decide what happens once per *update*, what happens once per *micro-batch*, and what to divide by.
#
# **Contract.** `lean_update(model, means, x, y, lr)` performs one update, in place, from the *full* batch.
#
# - `model` is an `nn.Sequential` of 9 layers in FP32. The parameters of its first layer are frozen (`requires_grad` is False) and stay as they are. `x` has shape (130, 64); `y` (130,) holds classes, and **−100 in rows that do not count**. The loss is the mean cross-entropy over the rows that count. Their number differs between micro-batches, and a micro-batch may have none.
# - `means` maps each trained parameter to its running mean. With *g* = gradient of the loss + **0.01 · p** (L2 decay, with the weights before the update): mean ← 0.9 · mean + 0.1 · *g*, then p ← p − lr · sign(mean). Both change in place.
# - At its peak, the function may hold at most **100 KiB** in addition to the weights, the means and the batch. All gradients together take more than that, and so do the activations of the full batch, or a copy of the means.
# - The function is called many times. After each call, no gradient is left, and no hook is left on any parameter or layer, not even one that does nothing. `x` and `y` stay as they are.
#
# <details><summary>Hint</summary>
#
# `F.cross_entropy` skips rows of −100 itself. With `reduction="sum"` the loss of a micro-batch without counted rows is 0; with the default, a mean over no rows, it is NaN.
#
# </details>


# %% name="lean" answer=true reveal=true
def lean_update(model, means, x, y, lr):
    ### BEGIN SOLUTION
    def take(p):
        means[p].add_(p.grad, alpha=0.1)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in means]
    with torch.no_grad():
        for p, mean in means.items():
            mean.mul_(0.9).add_(p, alpha=0.1 * 0.01)
    count = (y != -100).sum()
    for xs, ys in zip(x.split(8), y.split(8), strict=True):
        (F.cross_entropy(model(xs), ys, reduction="sum") / count).backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for p, mean in means.items():
            p.add_(mean.sign(), alpha=-lr)
    ### END SOLUTION


# %% name="lean_check"
lean_update = check("capstone.lean", lean_update)

# %% name="lean_hint"
hint("capstone.lean")

# %% [markdown] name="rung_text"
# ### An open rung: any recipe, by the rules
#
# Now the ladder is yours. Build a recipe that takes **at most 284 KiB** (320 on CUDA, whose allocator rounds every tensor up to a multiple of 512 bytes) and reaches a loss of **at most 1.1** on images that it never sees, in 24 updates of 64 images. Smaller micro-batches alone are not enough: section 3 names what does not shrink with them. How low can you go? (An update has fewer images than in the ladder, to keep the check short. Even so, it can take a minute on a CPU, and longer with very small micro-batches. The peak depends on the size of a micro-batch, not on the number of micro-batches.)
#
# **Contract.** Write two functions:
#
# - `prepare(model)` gets the ViT of this lab with FP32 weights, and may change it in place: its dtype, checkpointing, hooks. It returns whatever `update` needs.
# - `update(model, state, x, y, progress)` performs one update; `state` is what `prepare` returned. All micro-batches of an update see the same weights, which change after the last of them. `x` (64, 1, 8, 8) and `y` (64,) are NumPy arrays. `progress` goes from 0 (first update) to 1 (last).
# - In every update, all 64 images go through `model(...)` with gradients on, unchanged, in micro-batches of any size, and no other images do. Each run assigns the digits to the labels anew, at random, so other data does not help.
# - The parameters keep their names and shapes. At the end, the weights are loaded into a fresh FP32 model, whose loss counts.
# - Keep everything in tensors on the device. Outside tensors, Python and NumPy may keep at most 32 KiB, not counting blocks under 4 KiB. The peak includes everything that outlives an operation: weights, state, gradients, activations, and copies that lie idle. Scratch memory that a kernel allocates and frees itself does not count, because it differs between CPUs. An update must not write files.


# %% name="rung" answer=true reveal=true
def prepare(model):
    ### BEGIN SOLUTION
    model.to(torch.bfloat16)
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    optimizer = Signum(model.parameters(), lr=0.0)

    def take(p):  # part by part, so that no FP32 copy is as large as a weight
        mean = optimizer.state[p]["mean"].view(-1)
        if p not in optimizer.taken:
            mean.mul_(0.9)
            optimizer.taken.add(p)
        for part, g in zip(mean.split(1024), p.grad.reshape(-1).split(1024), strict=True):
            optimizer.add(part, g.float().mul_(0.1))
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(take)
    return optimizer
    ### END SOLUTION


def update(model, state, x, y, progress):
    ### BEGIN SOLUTION
    where = next(model.parameters()).device
    for group in state.param_groups:
        group["lr"] = 4e-3 * min(1, 0.2 + 4 * progress) * (1 + math.cos(math.pi * progress)) / 2
    for rows in np.split(np.arange(len(x)), len(x) // 8):
        logits = model(torch.from_numpy(x[rows]).to(where, torch.bfloat16)).float()
        (F.cross_entropy(logits, torch.from_numpy(y[rows]).to(where), reduction="sum") / len(x)).backward()
    state.step()
    ### END SOLUTION


# %% name="rung_check"
prepare, update = check("capstone.rung", prepare, update)

# %% name="rung_hint"
hint("capstone.rung")

# %% name="rung_result"
my_rung = run_open_rung(prepare, update)
reached = f"{human_bytes(my_rung.peak_bytes)}, loss {my_rung.loss:.3f}"
print(f"{reached}; the last rung of the ladder: {human_bytes(peaks[last])}")

# %% [markdown] name="report_text"
# ## 6 · Your lab report
#
# Every table of claims that you saw in this course's notebooks has been saved in one small file on this machine (`.progress/progress.json`; with `TAS_PROGRESS=off` in the environment nothing is saved). The file stays on this machine. The next cell lists the claims of this lab, and the one after it shows the whole file as one page: your ladder and your floor first, then the claims of every lab. The page contains what *you* measured on your device, and what the planner and the virtual GPU calculated (the column *measured on* says so). If you change a rung and run the lab again, or do another lab and run the last cell again, the page changes. `save` writes it as HTML.

# %% name="claims"
claims

# %% name="report"
sections = {
    f"The ladder: {headline}; {more:+.3f} in loss ({least_more:+.3f} to {most_more:+.3f})": table,
    f"The floor, on a CPU: {human_bytes(final.peak_bytes)}, byte by byte": floor,
    "The open rung": reached,
}
report = lab_report(claims, sections)
# report.save("lab_report.html")    # open it in a browser
report

# %% [markdown] name="recap"
# ## Recap
#
# - A peak that consists almost entirely of activations can shrink by a factor of several dozen, with the same batch (by less where a kernel's workspace remains, as on a GPU with sequences as short as ours). Small micro-batches contribute most, and they cost time. The factor is less than 4 + A / 4Φ, which is low for wide models and small batches. In a language model, the logits of one sequence may be most of what is left.
# - For each rung, ask what it removed, what it added and what it moved. The order decides how much a rung seems to save. The total depends on how wasteful rung 0 was.
# - You cannot combine accumulation and a step in the backward pass as they are. But if the optimizer state is linear in the gradient, it can be the accumulator.
# - Every byte of the floor has a cause: bytes per weight, bytes of state, one block of one micro-batch, scratch memory, and saved states of the random generator, which this model does not need.
# - To show that a loss is preserved, you need pairs of runs, rates chosen without the test images, a margin set in advance, and an interval that is narrow enough to decide.
#
# **Sources.** Bernstein et al. 2018, *signSGD*; Zhang et al. 2023, *Adam Accumulation to Reduce Memory Footprints* (the same idea for Adam, which it has to change); PyTorch tutorial, *How to save memory by fusing the optimizer step into the backward pass*; Allal et al. 2025, *SmolLM2*.
