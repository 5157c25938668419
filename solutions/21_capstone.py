# %% [markdown] name="title"
# # Capstone: one model, one batch, one ladder
#
# **Stack the techniques of the labs, one change at a time, on one model with one effective batch, until the peak is a small fraction of what it was. Test whether the loss stays the same. Then account for every byte that is left.**
#
# | | |
# |---|---|
# | After this you can | write and stack micro-batches, checkpointing, an optimizer with one state per parameter, and gradients folded into that state; state how much each saves, and in which category; account for the remaining peak byte by byte; decide with pairs of runs whether the loss is preserved; test a recipe guide with the planner; export a recipe as a script; add a step of your own to the ladder of techniques |
# | Time | 150 to 180 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#where_memory_goes]] to [[#activation_checkpointing]] and [[#sharding]]; the others help |
# | Syllabus | C12, T26, T27 |

# %% name="setup" setup=true
import functools
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

# %% name="setup_helpers" setup=true
from helpers import (
    CATEGORIES,
    Claims,
    GiB,
    KiB,
    LadderRun,
    LadderTask,
    MemoryMeter,
    ParallelConfig,
    Prediction,
    Recipe,
    Rung,
    Signum,
    benchmark,
    check,
    choose,
    chooser_figure,
    device_name,
    explore,
    find_gpu,
    hint,
    human_bytes,
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
    training_script,
)

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
# Articles promise that these techniques together cut peak memory "up to 20 times, with the same accuracy" (section 4 examines the most quoted one). It is easy to cheat on such a ladder: a smaller batch makes it a different training run, and a peak read at a different moment is a different quantity. So we need rules:
#
# - **One model**: a vision transformer of four blocks on handwritten digits, started from the same weights.
# - **One effective batch**: an update takes 512 images. In every rung, each update sees the same images in the same order, and all rungs see the same number of images.
# - **One figure**: the peak of a full training step, in bytes, from the meter of [[where_memory_goes]], including parameters and optimizer state.
# - **One loss to preserve**, on images that are used neither for training nor for choosing anything. A single pair of runs proves little, so we compare rungs over several pairs. The two runs of a pair have the same seed, start from the same weights, and see the images in the same order.

# %% name="task"
task = LadderTask()  # the model, the images in NumPy, and a step of each rung
BATCH, TRAINED, images, labels = task.batch, task.trained, task.images, task.labels
phi = sum(p.numel() for p in task.model(Rung(""), 0, "cpu").parameters())
tested = len(images) - TRAINED
print(f"{phi:,} parameters; {TRAINED:,} images of {images[0].size} pixels to train on, {tested} to test on")

# %% [markdown] name="optimizer_text"
# ### A lean optimizer that can absorb gradients early
#
# Adam keeps two numbers per parameter. **Signum** (Bernstein et al. 2018) keeps one, a running mean of gradients, and steps by the sign of that mean, so every weight moves by the learning rate. Adam moves a weight by roughly *at most* the learning rate, and by less where gradients change sign from update to update. So a learning rate that suits one of these optimizers need not suit the other.
#
# The running mean has another use. [[Gradient_accumulation]] keeps a gradient for every parameter while micro-batches add up. An optimizer step in the backward pass would free each gradient at once, but a step after every micro-batch is a different training run: **the two techniques cannot be combined as they are**. But the running mean is *linear* in the gradient,
#
# *m* ← β·*m* + (1 − β)·(*g*₁ + *g*₂ + … + *g*ₙ),
#
# so a hook can add each *g*ᵢ to *m* as soon as it exists, and then free it. The weights move once, after the last micro-batch. The optimizer state *is* the accumulator. (This does not work for Adam's second moment: the square of a sum is not the sum of squares.) We call it **folding** the gradients into the momentum.
#
# In 16 bits, small additions are lost ([[number_formats]]), so additions to BF16 tensors use **stochastic rounding**: they round up or down at random, so that the result is right on average. In `helpers`, this optimizer is called `Signum`.

# %% [markdown] name="same_text"
# ### Equivalence before memory
#
# In FP32, three techniques should give the same gradient as the full batch: accumulation, checkpointing, and folding into the momentum. The next two cells test this. The last line of the second output is the control, a step after *every* micro-batch; its weights must differ.

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
    "a step every micro-batch": task.weights_after(folded, 2 * np.split(rows, BATCH // lean.micro), device),
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
# Folding adds the same numbers in a different order, so the last bit may differ. Where a mean is almost zero, even its *sign* may differ.
#
# Why does the cell count the biases of the keys? A key's bias *b* adds the same *q·b* to every score of a query, and softmax ignores a constant added to all its inputs. So **the gradient of this bias is zero** in exact arithmetic. The optimizer gets only rounding noise, and Signum takes a full step in the direction of its sign. This does no harm, because this bias does not change the model's output.
#
# The control, a step after every micro-batch, ends up with different weights almost everywhere.
#
# ## 2 · The ladder
#
# Each rung changes one thing and keeps everything else the same. First you write rungs 2 to 5 yourself, in FP32. Then `helpers` measures all seven.
#
# ### Your turn: rungs 2 to 5
#
# **Contract.** Write four functions, which `my_step` uses in a cell below. `means` maps each parameter to its running mean, a tensor of the same shape.
#
# - Rung 2: `accumulate(model, x, y, micro)` adds to the parameters' gradients the gradient of the mean cross-entropy over **all** rows of `x`, at most `micro` rows at a time and in order. The last micro-batch may be smaller. Activations of only one micro-batch are in memory at a time.
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
# - **Autocast** halves most activations and leaves weights and state alone. It adds 16-bit copies of the weights and workspace for their matmuls. So the factor stays below 2.
# - **Micro-batches** remove the most by far: they shrink activations, temporaries, workspace and inputs at once. But accumulation keeps gradients alive. In rung 0 the peak comes early in the backward pass, before most gradients exist; in rung 2 all gradients exist from the first micro-batch on.
# - **Checkpointing** removes activations and adds recomputed ones. The weight copies shrink as well, because each recomputed block makes and frees its own. Checkpointing looks modest because few activations were left to remove. *The order of the rungs decides how much each of them seems to save.* Only the total is independent of the order.
# - From rung 3 on, the static part dominates. **Signum** removes a state tensor, and **folding** removes the gradients; each of these changes affects only one category. **BF16** halves weights and state, and removes the copies and some of the activations that autocast keeps in FP32. Its stochastic rounding needs FP32 temporaries of its own, which section 3 shows.
#
# So the largest factor comes from the simplest technique, small micro-batches. But it has a price.
#
# ### What did it cost? Time
#
# The rungs take turns: in each of three rounds, after a warm-up round, every rung makes one step. We compare rungs *within* a round, so a slow moment of the machine is likely to affect both sides of a comparison.
#
# **Predict.** By what factor does a step of the last rung take longer than a step of rung 1 (BF16 autocast)?

# %% name="guess_time"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.33  # checkpointing: one more forward pass
### END GUESS
time_guess = Prediction("Time of a step, last rung / rung 1", my_guess, "times")


# %% name="pace"
def turns(rungs, seen, rounds=3):
    """Return the seconds of `rounds` steps of each rung, with the rungs taking turns."""
    steps = []
    for rung in rungs:
        model = task.model(rung, 0, device)
        steps.append(functools.partial(task.step, rung, model, task.optimizer(rung, model), seen))
    taken = [[benchmark(step, runs=1, warmup=0).median for step in steps] for _ in range(rounds + 1)]
    return list(zip(*taken[1:], strict=True))


def times(before, after):
    """Return how many times slower `after` is: median, minimum and maximum over the rounds."""
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


# %% name="pace_table"
paces = dict(zip(peaks, turns(LADDER, rows), strict=True))
table = [["rung", "peak", "smaller by", "time", "in 3 rounds"]]
for name, peak in peaks.items():
    slower, least, most = times(paces[base.name], paces[name])
    table.append([name, human_bytes(peak), f"{first / peak:.1f}x", f"{slower:.1f}x", f"{least:.1f} to {most:.1f}"])
time_guess.reveal(times(paces[LADDER[1].name], paces[last])[0])
show_table(table)

# %% [markdown] name="cost_text"
# Compare each rung with the one before it. On a CPU, rung 1 often makes the step slower; on a GPU, autocast saves time if the matmuls are large enough ([[mixed_precision]]). Small micro-batches use a processor less efficiently. Checkpointed blocks run their forward pass twice, which adds a third to the arithmetic (a backward pass costs as much as two forward passes). With small micro-batches it adds more than a third to the time, because then most of an operation's cost is the call itself ([[activation_checkpointing]]).
#
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
#
# Next we test whether the last rung reaches the loss of the first. We train both with five seeds, in pairs. Accuracy on a few hundred images changes in steps of one image. The **loss** is a finer measure, so we compute an interval for the difference in loss. You must set the margin before the runs (here the loss may rise by at most 0.1), and the interval must be narrow enough to *decide*. As a control, we also train the last rung with ordinary rounding. Does it lose its small steps in so short a run?

# %% [markdown] name="pairs_text"
# To save time, these runs leave out checkpointing, which does not change a single bit of the result ([[activation_checkpointing]]).
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
        replace(plainer[rung.name], micro=max(128, rung.micro)),  # four micro-batches instead of sixteen, to save time
        RATES[rung.optimizer],
        seed,
        *everything,
        nearest if "nearest" in variant else None,
    )
    for variant, (rung, seeds) in variants.items()
    for seed in seeds
}
found = all_of(list(runs.values()))
losses = {name: [found[runs[name, seed]][0] for seed in seeds] for name, (_, seeds) in variants.items()}
for name, (_, seeds) in variants.items():
    right = statistics.mean(found[runs[name, seed]][1] for seed in seeds)
    print(f"{name:30} {right:.2f}% right, loss " + " ".join(f"{loss:.3f}" for loss in losses[name]))
more = statistics.mean(losses["last rung"]) - statistics.mean(losses["rung 0"])
least_more, most_more = ttest_rel(losses["last rung"], losses["rung 0"]).confidence_interval(0.95)
pairs_guess.reveal(more)
print(f"{len(PAIRS)} pairs: {more:+.3f} of loss, 95% interval {least_more:+.3f} to {most_more:+.3f}")
swamped = [b - a for a, b in zip(losses["last rung"], losses["last rung, rounded to nearest"], strict=False)]
points = [found[runs["last rung", seed]][1] - found[runs["rung 0", seed]][1] for seed in PAIRS]
low_points, high_points = ttest_rel(points, [0.0] * len(points)).confidence_interval(0.95)
print(f"accuracy: {statistics.mean(points):+.2f} points, 95% interval {low_points:+.2f} to {high_points:+.2f}")
print("rounded to nearest, against the last rung: " + ", ".join(f"{d:+.3f}" for d in swamped))

# %% name="ladder_claims"
TWENTY = 18, math.inf  # "up to 20x" is tested more than once in this lab by one rule: 20x is reached, within 10%
claims.record("C12", "20x less peak memory", subject, first / peaks[last], "times", *TWENTY)
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
    "Two panels, a bar per rung: the factor by which the peak is lower, and the peak by category, in percent of it.",
)

# %% [markdown] name="cost_explained"
# Compare the interval with the margin of 0.1. Keep in mind that after so few updates the model is undertrained. The last line is the control. For most weights, a step of Signum is several times larger than the gap between neighboring BF16 numbers, so ordinary rounding loses little in so short a run. If the steps were small, it would lose nearly all of them ([[number_formats]]). (The runs of the last rung fold four micro-batches of 128 instead of sixteen of 32, to save time. The gradient is the same, with fewer roundings.)
#
# The interval shows how much five pairs can tell you. If all of it is below the margin, the claim is safe for this model. If all of it is above, the claim is refuted. If it straddles the margin, these pairs **cannot decide**, and you need more of them. Rung 3 changes nothing, and rungs 1, 2, 5 and 6 change rounding only. Only rung 4 changes *what* is computed: it uses another optimizer, with its own learning rate. The published ladder changes its optimizer, too (from Adam to SGD).
#
# ## 3 · The floor, byte by byte
#
# The next cell lists the largest blocks of memory at the last rung's peak, each with the operation that allocated it.

# %% name="floor"
final = meters[last]
show_table(peak_table(final, 12))

# %% [markdown] name="laws_text"
# The shapes of the model explain all of these blocks except the scratch memory of a kernel. The peak is in the backward pass of the last MLP, when one block has been recomputed for one micro-batch. It is at the MLP's matmul if the matmul needs scratch, as on many CPUs; otherwise it comes a moment later, in Signum's hook.


# %% name="laws"
def formulas(micro):
    """Return what each category must hold at the last rung's peak: bytes, from shapes alone, and the reason."""
    width, inner, layers, heads = (task.shape[name] for name in ("width", "inner", "layers", "heads"))
    pixels, sequence = images[0].size, (task.shape["side"] // task.shape["patch"]) ** 2 + 1
    tokens = micro * sequence
    random = torch.get_rng_state().nbytes if device.type == "cpu" else 0  # a GPU generator's state is on the host
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
            "GELU in and out; q, k, v; 4 of the width; softmax and norm statistics",
        ),
        "temporaries": (
            2 * (tokens * (inner + width) + inner * width + micro * 10) + 2 * 4 + hook * 3 * 4 * inner * width,
            "gradients of GELU's output, the block's and one weight; logits; 2 scalars; in the hook its FP32 tensors",
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
claims.record("C12", "the floor is named: formulas from shapes, and scratch", subject, unnamed, "% unnamed", 0, 1)
static = final.at_peak["parameters"] + final.at_peak["optimizer state"]
claims.record("C12", "weights and state: 4 bytes per parameter", subject, static / phi, "bytes", 4, 4.3)

# %% [markdown] name="floor_explained"
# - **Weights and running means** take 2 + 2 bytes per parameter. They are the floor in the strict sense. To go lower, you need another number format ([[fp8]]), fewer trained parameters ([[lora]]), or more machines ([[sharding]]).
# - **Activations** are the inputs of the checkpointed blocks, for one micro-batch, and the images. **Recomputed activations** and most **temporaries** belong to one block of one micro-batch, whose backward pass is running.
# - **Kernel workspace** has two sources. One is the matmul's scratch, if the peak is at a matmul: on many CPUs, 16-bit matmuls repack their operands, and the library decides how much memory that takes. (It is the only figure here that does not follow from shapes.) The other is a surprise: `checkpoint` saves **the state of the random generator** for each block, so that dropout would draw the same numbers again. On a CPU this state takes the number of bytes in the last line of the output for each block, although this model has no dropout. `preserve_rng_state=False` removes it.
#
# **Predict.** With micro-batches of 4 images instead of 32, by what factor does the peak of the last rung fall?

# %% name="guess_smaller"
my_guess = None  # a factor
### BEGIN GUESS
my_guess = 2  # activations and temporaries, more than half of the peak, by 8
### END GUESS
smaller_guess = Prediction("Last rung's peak, micro-batches of 32 / of 4", my_guess, "times")


# %% name="smaller"
def shrunk(micro, **change):
    """Measure the last rung on four micro-batches: as in gradient accumulation, all after the first are alike."""
    return task.meter(replace(LADDER[-1], micro=micro, **change), rows[: 4 * micro], device)


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
    lines.append([name, *(f"{n / KiB:,.0f}" for n in categories), f"{first / meter.peak_bytes:.1f}x"])
show_table(lines)
print(f"\nwith 4 images the peak is in {smallest.peak_at}")
print(f"if only weights and running means were left: {first / static:.0f}x")

# %% [markdown] name="vit_text"
# Activations fall with the micro-batch. Temporaries stop falling: with few images the peak is in the optimizer's hook. There, stochastic rounding holds three tensors of 4 bytes per element that are as large as the largest weight (the mean, its change, the random bits), whatever the batch. The random states do not shrink either. When you shrink one category, another takes its place at the peak.
#
# So the floor depends on three choices: the bytes per weight, the bytes of state, and how much you compute at a time. The factor also depends on how wasteful the first rung was: it tells you as much about rung 0 as about rung 6.
#
# ## 4 · The famous ladder, checked
#
# The most quoted figure of this kind is from [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md): ViT-L/16 on CIFAR-10 at 224 pixels, "20x". The repository's own logs list reserved memory for six rungs on one GPU. The planner ([[where_memory_goes]]) runs the same training steps on fake tensors. It plans reserved memory as a range: it replays the allocations by the allocator's rules, and widens the result to cover effects that it does not simulate.
#
# The six logs of ViT-L begin with FP32, batches of 64 and Adam. The next ones add FP16 autocast, BF16 weights, a batch of 16, four micro-batches of 4, and SGD instead of Adam. Do these changes amount to a factor of 20?

# %% name="vit"
PUBLISHED = {  # reserved GB in the logs, and the step that was logged; gradients are zeroed after the forward pass
    "FP32, batch 64, Adam": (26.79, {"precision": "fp32", "micro_batch_size": 64}),
    "FP16 autocast": (18.21, {"precision": "fp16-amp", "micro_batch_size": 64}),
    "BF16 weights": (13.82, {"precision": "bf16", "micro_batch_size": 64}),
    "batch 16": (5.69, {"precision": "bf16", "micro_batch_size": 16}),
    "4 x 4 accumulated": (3.91, {"precision": "bf16", "micro_batch_size": 4, "gradient_accumulation_steps": 4}),
}
PUBLISHED["SGD, cosine"] = (2.02, PUBLISHED["4 x 4 accumulated"][1] | {"optimizer": "sgd"})
common = {"optimizer": "adam", "set_to_none": False}
recipes = [Recipe("vit-l-16", **common | change) for _, change in PUBLISHED.values()]
vit = dict(zip(PUBLISHED, planned(recipes), strict=True))
print(f"{len(recipes)} plans; making them took {sum(each.seconds for each in vit.values()):.0f} s")

# %% name="vit_logs"
errors, lines = {}, [["", "batch", "logged GB", "planned, reserved GB", "off by"]]
for name, (said, _) in PUBLISHED.items():
    least, most = (b / 1e9 for b in vit[name].reserved_bytes)
    errors[name] = 0.0 if least <= said <= most else (least if said < least else most) / said - 1
    batch = vit[name].recipe.micro_batch_size * vit[name].recipe.gradient_accumulation_steps
    lines.append([name, f"{batch}", f"{said:.2f}", f"{least:.2f} to {most:.2f}", f"{errors[name]:.0%}"])
show_table(lines)
logged = [said for said, _ in PUBLISHED.values()]
print(f"first log / last log: {logged[0] / logged[-1]:.1f}x")
print(f"of this, a factor of {logged[2] / logged[3]:.2f} is a batch of 16 instead of 64: a different training run")
claims.record("C12", "20x less peak memory", "ViT-L/16, the published logs", logged[0] / logged[-1], "times", *TWENTY)
claims.record("C12", "the same run: one effective batch", "ViT-L/16, the published logs", 64 / 16, "x the batch", 1, 1)
off = 100 * max(errors.values(), key=abs)
claims.record("C12", "the planner follows the logs", "6 logs, the worst of them", off, "% from the log", -20, 20)

# %% [markdown] name="planned_text"
# ### Our ladder, on models that people train
#
# The logs stay below a factor of 20, and their fourth rung cuts the batch from 64 to 16, which makes it a different training run. So we plan *our* seven rungs, which keep the batch the same, for two larger models: ViT-L on 64 images of 224 pixels, and a 1B language model on 16 sequences of 1,024 tokens. (SGD with momentum stands for Signum: one number per parameter.)
#
# The factor has an upper **bound**. With Φ parameters, rung 0 holds at most 16Φ bytes (weights, gradients, two moments) plus its activations A. The last rung holds 4Φ bytes (weights and mean in BF16) plus a, the memory that one micro-batch needs:
#
# $$\text{factor} = \frac{16Φ + A}{4Φ + a} < 4 + \frac{A}{4Φ}$$
#
# **Predict.** What is the factor for the 1B model, with Φ = 1.24 billion? (Section 2 has the factor of our small ViT.)

# %% name="guess_1b"
my_guess = None  # a factor, seven rungs, 1B
### BEGIN GUESS
my_guess = 10  # weights matter more than in the ViT
### END GUESS
billion_guess = Prediction("1B, FP32 peak / peak of the last rung, planned", my_guess, "times")

# %% name="planned_table"
loss_of = {"3 checkpointing": "the same bits", "4 one state": "another optimizer", "0 FP32, AdamW": ""}
for model, batch, micro, shared in (("vit-l-16", 64, 4, {}), ("llama-3.2-1b", 16, 1, {"seq": 1024})):
    rungs = seven_rungs(model, batch, micro, **shared)
    planned_rungs = dict(zip(rungs, planned([recipe for recipe, _ in rungs.values()]), strict=True))
    top, *_, bottom = planned_rungs.values()
    lines, seconds = [[f"{model}, batch {batch}, planned", "GB", "smaller by", "time, lower bound", "loss"]], {}
    for name, rung in planned_rungs.items():
        seconds[name] = rungs[name][1] * rung.roofline_seconds["a100-80gb"]  # each step as often as an update needs it
        less, slower = top.peak_allocated_bytes / rung.peak_allocated_bytes, ""  # rung 0: FP32 without TF32
        if name != "0 FP32, AdamW":
            slower = f"{seconds[name] / seconds['1 BF16 autocast']:.2f}x"
        gb, loss = f"{rung.peak_allocated_bytes / 1e9:.2f}", loss_of.get(name, "other rounding")
        lines.append([name, gb, f"{less:.1f}x", slower, loss])
    weights = top.parameters
    bound = 4 + (top.peak_allocated_bytes - 16 * weights) / (4 * weights)
    show_table(lines)
    print(
        f"16 bytes per parameter {16 * weights / 1e9:.2f} GB, 4 bytes {4 * weights / 1e9:.2f} GB: at most {bound:.1f}x\n"
    )
    claims.record(
        "C12", "20x less peak memory", f"{model}, our seven rungs, batch {batch}, planned", less, "times", *TWENTY
    )
    claims.record("C12", "factor below 4 + A / 4Φ", f"{model}, planned", less / bound, "of the bound", 0, 1)
billion_guess.reveal(less, "planned")
print(
    f"our ViT by the same bound: {4 + (first - 16 * phi) / (4 * phi):.0f}x, of which it reached {first / peaks[last]:.0f}x"
)

# %% [markdown] name="vit_explained"
# The bound explains the difference. A grows with the batch, and Φ does not. In our small ViT, A is far larger than the weights, so its bound is high, and the memory for one micro-batch keeps the factor far below the bound. The large models come closer to a bound that is much lower: most of what is left consists of weights and means, which smaller micro-batches do not reduce. So a model with many weights and a small batch gets a small factor.
#
# The time is a lower bound at the rates of an A100's data sheet, relative to rung 1. (We leave out rung 0, because the planner's FP32 does not use TF32, which would make every other rung look fast.) The loss column states what may differ; only pairs of runs can show how much.
#
# Where the plan misses a log, the software is the likely reason: the logs are from a nightly build of PyTorch 2.1, whose Adam held two temporary copies, while today's Adam holds one.
#
# ## 5 · A recipe guide, row by row
#
# "Which model can I train on my GPU?" Guides answer this question with one line per card. The lines below come from several guides, and all of them assume BF16, checkpointing and accumulation. We read them charitably: *pure* BF16, including weights and optimizer state; one sequence of 1,024 tokens; AdamW.
#
# The rule: a line **holds** if the card has room for all that the allocator may *reserve*, with 0.2 GiB to spare (the size of the CUDA context alone varies by that much). If the card has room for the tensors but perhaps not for all that is reserved, the line is **at the edge**: the run may succeed, or end in an out-of-memory error after an hour.
#
# **Predict.** How many of these seven lines hold?
#
# | card | the guides say |
# |---|---|
# | 8 GB, 16 GB | about 1B; about 3B, fully trained |
# | 24 GB, 40 GB | about 7B with LoRA, r = 16; about 13B with LoRA, r = 32 |
# | 80 GB | 7B fully trained; 7B fully trained with FP32 weights |
# | 8 × 80 GB | 70B, ZeRO-3 / FSDP |

# %% name="guess_lines"
my_guess = None  # lines of seven
### BEGIN GUESS
my_guess = 5
### END GUESS
lines_guess = Prediction("Lines of the guide that hold", my_guess, "of 7")

# %% name="guide_rows"
plain = {"precision": "bf16", "checkpointing": "every", "gradient_accumulation_steps": 2, "seq": 1024}
plain["optimizer_impl"] = "fused"
GUIDE = {  # the guide's line -> (GB of the card, recipe)
    "8 GB: ~1B": (8, Recipe("llama-3.2-1b", **plain)),
    "16 GB: ~3B": (16, Recipe("llama-3.2-3b", **plain)),
    "24 GB: ~7B, LoRA r=8 to 16": (24, Recipe("llama-2-7b", lora_rank=16, **plain)),
    "40 GB: ~13B, LoRA r=32": (40, Recipe("llama-2-13b", lora_rank=32, **plain)),
    "80 GB: 7B, full": (80, Recipe("llama-2-7b", **plain)),
    "80 GB: 7B, full, FP32 weights": (80, Recipe("llama-2-7b", **plain | {"precision": "bf16-amp"})),
    "8 x 80 GB: 70B, ZeRO-3 / FSDP": (80, Recipe("llama-2-70b", parallel=ParallelConfig(shard=8), **plain)),
}

# %% name="guide_repaired"
CARDS = {8: "rtx-3060-12gb", 16: "v100-16gb", 24: "rtx-4090-24gb", 40: "a100-40gb", 80: "h100-80gb"}  # by GB sold
lean_step = {"gradient_accumulation_steps": 1, "step_in_backward": True, "optimizer": "adamw-8bit"}
lean_step["optimizer_impl"] = "foreach"
fp32_weights, fp16 = plain | {"precision": "bf16-amp"}, plain | {"precision": "fp16-amp"}
REPAIRED = {  # what to do if a line does not hold
    "8 GB: 1B, 8-bit AdamW in the backward pass": (8, Recipe("llama-3.2-1b", **plain | lean_step)),
    "16 GB: 3B, LoRA r=16": (16, Recipe("llama-3.2-3b", lora_rank=16, **plain)),
    "16 GB, no BF16: 3B, QLoRA r=16, FP16": (16, Recipe("llama-3.2-3b", lora_rank=16, quantize="nf4-dq", **fp16)),
    "80 GB: 7B, FP32 weights, offload": (80, Recipe("llama-2-7b", offload="optimizer", **fp32_weights)),
    "16 x 80 GB: 70B, ZeRO-3 / FSDP": (80, Recipe("llama-2-70b", parallel=ParallelConfig(shard=16), **plain)),
}


def room(sold):
    """Bytes that PyTorch's allocator can have on a card that is sold with `sold` GB."""
    gpu = find_gpu(CARDS[sold])  # if the catalog has no card of this size, a similar one, scaled
    return gpu.total * sold / float(gpu.name.rsplit("-", 1)[1].removesuffix("gb")) - GiB / 2  # the CUDA context


# %% name="guide_table"
needs = dict(zip(GUIDE | REPAIRED, planned([recipe for _, recipe in (GUIDE | REPAIRED).values()]), strict=True))


def verdict(need, card):
    most, has = need.reserved_bytes[1], room(card)
    if abs(has - most) < 0.2 * GiB or need.peak_allocated_bytes <= has < most:
        return "at the edge"
    return "fits" if most < has else "does not fit"


rows_shown = [["GiB", "allocated", "peak in", "reserved up to", "room", "to spare", "verdict"]]
for line, (card, _) in (GUIDE | REPAIRED).items():
    if line == next(iter(REPAIRED)):
        rows_shown.append(["what may work instead", *[""] * 6])
    need, has = needs[line], room(card)
    most, phase = need.reserved_bytes[1], need.peak_at.partition(":")[0]
    allocated, *rest = (f"{n / GiB:.2f}" for n in (need.peak_allocated_bytes, most, has, has - most))
    rows_shown.append([line, allocated, phase, *rest, verdict(need, card)])
show_table(rows_shown)
lines_guess.reveal(sum(verdict(needs[line], card) == "fits" for line, (card, _) in GUIDE.items()), "planned")
for line, (card, recipe) in GUIDE.items():
    subject_line, reserved = f"{recipe.model}, planned, reserved", needs[line].reserved_bytes[1] / GiB
    if verdict(needs[line], card) == "at the edge":  # within the planner's own error
        claims.figure(f"{line} (at the edge)", subject_line, reserved, "GiB")
    else:
        claims.record("T26", line, subject_line, reserved, "GiB", 0, room(card) / GiB - 0.2)

# %% [markdown] name="guide_explained"
# The LoRA lines hold, with room to spare. 7B fits on a 24 GB card (planned with the larger rank), and the frozen weights take nearly all of the memory. Full training in pure BF16 with AdamW takes **four times the weights** (weights, gradients and two moments, 8 bytes per parameter), so 1B does not fit in 8 GB, and 3B does not fit in 16 GB. With *adapters*, 3B fits in 16 GB. With an 8-bit optimizer that steps in the backward pass (which rules out accumulation, section 1), 1B is at the edge.
#
# "80 GB: 7B" holds only in pure BF16, where small updates are lost ([[number_formats]]). With FP32 weights, 7B fits only if the optimizer state moves to the host, and then with little to spare. 70B on 8 cards is at the edge with one sequence per rank; on 16 cards it fits.
#
# > **Note:** the common 16 GB cards, T4 and V100, **do not support BF16**: it is emulated in FP32, at an eighth of the speed of FP16. The plans of the "16 GB" lines are for a card that supports it (RTX 4080, A4000). On a T4 or V100 use FP16 autocast with a scaler ([[loss_scaling]]); pure FP16 weights do not train. The line marked "no BF16" is planned for such a card, and its recipe fits.
#
# ## 6 · The summary table
#
# Overviews of these techniques often end with a table of factors for memory and speed. The factors below come from several such tables. We begin with memory, which we plan for GPT-2 (124 million parameters) with AdamW and 8 sequences of 1,024 tokens per step and rank. Each line is compared with the line that it builds on.
#
# **Predict.** According to the table, FSDP on eight ranks divides the memory by 8. By what factor is the planned peak of a rank lower than the peak of one GPU, both in mixed precision?

# %% name="guess_fsdp"
my_guess = None  # a factor
### BEGIN GUESS
my_guess = 4  # weights, gradients and state by 8; activations stay
### END GUESS
fsdp_guess = Prediction("GPT-2, mixed precision: peak of one GPU / of a rank of 8, FSDP", my_guess, "times")

# %% name="summary_plans"
job = {"micro_batch_size": 8, "seq": 1024, "precision": "bf16-amp"}
single = job | {"micro_batch_size": 1}
eight_times_one = single | {"gradient_accumulation_steps": 8}
ddp, fsdp = ParallelConfig(shard=8, zero="none"), ParallelConfig(shard=8)
LINES = {  # name -> (recipe, compared with, said about memory, from, to)
    "FP32": (Recipe("gpt2", **job | {"precision": "fp32"}), None),
    "mixed precision": (Recipe("gpt2", **job), "FP32", "2x", 1.7, 2.3),
    "+ checkpointing": (Recipe("gpt2", checkpointing="every", **job), "FP32", "4x", 3.4, 4.6),
    "a batch of 1": (Recipe("gpt2", **single), None),
    "+ accumulation, 8 x 1": (Recipe("gpt2", **eight_times_one), "a batch of 1", "1x", 0.85, 1.15),
    "DDP, 8 ranks": (Recipe("gpt2", parallel=ddp, **job), "mixed precision", "1x", 0.85, 1.15),
    "FSDP, 8 ranks": (Recipe("gpt2", parallel=fsdp, **job), "mixed precision", "8x", 6.8, 9.2),
    "offloaded optimizer": (Recipe("gpt2", offload="optimizer", **job), "mixed precision", "less", 1.05, math.inf),
}
plans = dict(zip(LINES, planned([recipe for recipe, *_ in LINES.values()]), strict=True))
lines = [["planned", "GiB per rank", "smaller by", "the table says", "compared with"]]
for name, (_, other, *said) in LINES.items():
    size = plans[name].peak_allocated_bytes
    if other is None:
        lines.append([name, f"{size / GiB:.2f}", "", "", ""])
        continue
    less, (words, *between) = plans[other].peak_allocated_bytes / size, said
    lines.append([name, f"{size / GiB:.2f}", f"{less:.2f}x", words, other])
    claims.record("T27", f"{name}: memory {words}", "GPT-2, 8 x 1,024 tokens, planned", less, "times smaller", *between)
show_table(lines)
one_gpu, a_rank = (plans[name].peak_allocated_bytes for name in ("mixed precision", "FSDP, 8 ranks"))
fsdp_guess.reveal(one_gpu / a_rank, "planned")

# %% [markdown] name="memory_explained"
# - **Mixed precision** does not halve this model's peak, because its largest tensors stay in FP32: the logits, 50,257 wide, and the loss's tensors of the same size. A factor means little unless you know which model it was obtained on.
# - **Accumulation** runs eight sequences in the memory of one, or somewhat more: earlier gradients stay while the next micro-batch runs.
# - **DDP** holds slightly *more* on each rank than a single GPU without DDP, because of its buckets. **FSDP** divides weights, gradients and state, but not activations. Here the factor is nowhere near 8. It is near 8 where weights, gradients and state are nearly everything (a large model, a small batch, checkpointing).
# - **Offloading** the optimizer takes two numbers per parameter off the GPU. That is little where activations make up the peak.
#
# ### Speed
#
# On one device, section 2 measured the speed of each rung. With several devices, communication takes time as well ([[data_parallel]] and [[sharding]] measure it on two ranks).
#
# For eight GPUs we have no measurement, so we use a bound that *includes the links*: the roofline time of the plan's step, plus the time that a rank's bytes take on the link, without any overlap. An A100's NVLink carries 300 GB/s each way, PCIe 4.0 32 GB/s. Offloading sends gradients to the host and weights back over PCIe, in every update.

# %% name="wires"
one = plans["mixed precision"].roofline_seconds["a100-80gb"]
WIRES = {"NVLink": 300e9, "PCIe": 32e9}  # bytes/s each way, data sheets
lines, faster = [["planned, nothing overlapped", "sent per step", *WIRES, "the table says"]], {}
for name, said in {"DDP, 8 ranks": "8x", "FSDP, 8 ranks": "8x", "offloaded optimizer": "slower"}.items():
    several = plans[name]
    sent = several.sent_bytes or 2 * 4 * several.trained  # offloaded: FP32 gradients out, FP32 weights back
    for wire, rate in WIRES.items():
        faster[name, wire] = several.recipe.ranks * one / (several.roofline_seconds["a100-80gb"] + sent / rate)
    speeds = [f"{faster[name, w]:.2f}x" if several.sent_bytes or w == "PCIe" else "-" for w in WIRES]
    lines.append([name, human_bytes(sent), *speeds, said])
show_table(lines)
for (name, wire), times_faster in faster.items():
    claims.figure(f"{name}: speed, lower bound", f"GPT-2, A100, planned with {wire}", times_faster, "x")

# %% name="one_device"
ratios = {  # in the ladder: a rung against the one before it, round by round
    "mixed precision: speed 2x": (1, 1.8, 2.2),
    "+ accumulation: speed 1x": (2, 0.9, 1.1),
    "+ checkpointing: speed 0.7x": (3, 0.63, 0.77),
}
for said, (rung, *between) in ratios.items():
    ratio, least, most = times(paces[LADDER[rung].name], paces[LADDER[rung - 1].name])
    print(f"{said:30} measured {ratio:.2f}x on this {device.type} ({least:.2f} to {most:.2f} in 3 rounds)")
    if device.type == "cuda":  # the table's figures are about GPUs
        claims.record("T27", said, "our ViT on this GPU", ratio, "times", *between)
    else:
        claims.figure(said, f"our ViT on this {device.type}", ratio, "x")

# %% [markdown] name="summary_explained"
# - **On one device**, the table's figures are those of some GPU with some model. 16-bit matmuls are fast if the hardware supports them and the matrices are large enough to fill it. Small micro-batches cost speed if they leave the device idle. This model is small, so accumulation is expensive; on a GPU that a micro-batch of 1 fills, it is nearly free.
# - **Checkpointing** costs the recomputation, a third of the arithmetic. With small micro-batches it costs more (section 2), because most of the cost of a small operation is the call itself.
# - **DDP and FSDP** on N ranks give N times the speed, less the time for communication. Here both happen to send the same number of bytes. DDP all-reduces FP32 gradients, twice 4 bytes per parameter, of which a ring of 8 ranks sends 7/8 (a rank keeps its own part). FSDP gathers weights in BF16 for the forward and again for the backward pass (2 + 2) and reduce-scatters FP32 gradients (4). In pure FP32, FSDP would send 50% more than DDP. In practice, much of the communication overlaps with arithmetic, so the speedup is larger than this lower bound.
# - **Offloading** is slower because of the bytes that cross PCIe in every update, and because of the host's AdamW, which the bound leaves out. More sequences per update make it cheaper.
#
# So measure such factors on your own model before you rely on them.

# %% [markdown] name="chooser_text"
# ## 7 · Choose a recipe
#
# Now we go the other way: you choose a GPU, a model and the data, and the figure lists recipes. Recipes that fit come first, starting with the one that does the *least work*. The others follow, starting with the smallest. "Times the least" compares roofline seconds: the time for all arithmetic or the time for all memory traffic at the data sheet's rates, whichever is longer. Recipes that differ only in the shorter of the two tie. With the settings below, LoRA and QLoRA with checkpointing do, although unpacking NF4 costs time ([[lora]]). So roofline seconds, a lower bound, give a rough ranking, and they cannot forecast the time of a step. A micro-batch is one sequence, so more sequences per update cost time but no memory; the optimizer runs once per update.
#
# The plans were made in advance, by `python -m helpers chooser`, so that the figure can answer at once. LoRA rows put adapters on q and v alone, which is PEFT's default for these models. [[Lora]] shows that adapters on all linear layers learn more. Such adapters take little additional memory, so leave a little more room, and name the layers (`lora_targets`) in the recipe that you export.
#
# Three questions:
#
# 1. What is the smallest of these cards on which full training of 7B fits, and with which recipe?
# 2. Which recipe no longer fits a card of 24 GB with the longer sequence (7B)?
# 3. Which recipe comes first on a T4 (7B), and why is the only other recipe that fits so much slower?
#
# <details><summary>Answers</summary>
#
# 1. 40 GB (`a100-40gb`), with BF16 weights, SGD and checkpointing. It *fits*; whether it learns is another matter, because BF16 weights lose small updates ([[number_formats]]) and SGD rarely trains a language model well. With AdamW it takes 80 GB; with 8-bit AdamW and 512 tokens it is at the edge of 40 GB.
# 2. LoRA without checkpointing: its activations fit at 512 tokens, but not at 2,048. LoRA with checkpointing still fits.
# 3. QLoRA under FP16 autocast comes first. The T4 has no BF16, so operations in BF16 are computed in FP32, at an eighth of the rate. The figure marks the slower recipe "BF16 emulated".
#
# </details>

# %% name="chooser"
explore(
    chooser_figure,
    "Thirteen recipes for a model with their peaks, ranked: those that fit the GPU first, the least work first.",
    gpu=("rtx-4090-24gb", ("rtx-3060-12gb", "t4-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")),
    model=("llama-2-7b", ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-2-13b")),
    tokens=(2048, (512, 2048)),
    sequences=(16, (1, 4, 16, 64)),
)
best = choose("rtx-4090-24gb", "llama-2-7b", 2048, 16)[0]
print(f"on top: {best.name} ({best.recipe.summary})")

# %% [markdown] name="script_text"
# You can export your choice as a program, with `training_script(recipe)`: one file that runs without changes, alone or under `torchrun`. It contains the recipe and everything else that a run needs: warm-up, clipping, a data order, checkpoints. With `--tiny` you can try it on any machine with a small random model; with `--weights` and `--text` it trains the real model on your text. If a run is killed, the same command with `--resume` continues from the newest checkpoint. With the argument `style="trainer"`, `training_script` writes the program for Hugging Face's Trainer. (The script of a QLoRA recipe loads its 4-bit base and cannot create one, so it needs `--weights` or `--tiny`.)
#
# The next cell shows the method that makes an update. Which lines do the accumulation? Which lines behave differently on two GPUs?
#
# <details><summary>Answers</summary>
#
# The loop over `piece`, with `counted` over all pieces: each micro-batch's sum of losses is divided by the number of tokens of the full update. On two GPUs, `self.rank` picks different rows for each rank, `dist.all_reduce` sums the losses and the requests to stop, and DDP averages the gradients, which is why `counted` is divided by `self.world`.
#
# </details>

# %% name="script"
program = training_script(best.recipe)
excerpt = re.search(r"    def update\(self\):\n.*?\n(?=\n    def )", program, re.DOTALL)[0]
print(f"one method of a program of {len(program.splitlines())} lines:\n\n{excerpt}")

# %% [markdown] name="resume_text"
# Does the script survive a crash? The next cell runs it with `--tiny` for six steps. Then it deletes the last checkpoint, as if the run had crashed in step 6, and continues with `--resume` from step 4. Model, optimizer, random numbers and the order of the data are all in a checkpoint, so the held-out losses of the two runs should agree to the last digit.

# %% name="resumed"
with tempfile.TemporaryDirectory() as folder:
    script = Path(folder, "train.py")
    script.write_text(training_script(best.recipe), encoding="utf-8")
    ends = []
    for resume in ([], ["--resume"]):
        command = [sys.executable, script.name, "--tiny", "--steps=6", "--checkpoint-every=2", *resume]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=True).stdout
        ends.append(float(re.findall(r"\d+\.\d{4}", said)[-1]))  # of the held-out rows, after the last step
        kept = sorted(Path(folder, "checkpoints").iterdir())
        print(*resume or ["at once"], "->", said.strip().splitlines()[-1], "| kept:", *(each.name for each in kept))
        if len(ends) == 1:
            shutil.rmtree(kept[-1])
print(f"held-out loss, resumed minus uninterrupted: {ends[1] - ends[0]:+.4f}")
claims.record(
    "C12", "a resumed run is the same run", "exported script, --tiny, 6 steps", abs(ends[1] - ends[0]), "of loss", 0, 0
)

# %% [markdown] name="lean_text"
# ## 8 · Your turn: no room for gradients
#
# In section 2 you folded gradients into a mean. Here some rows have no label, the update has weight decay, and part of the model is frozen. Decide what happens once per *update*, what happens once per *micro-batch*, and what to divide by.
#
# **Contract.** `lean_update(model, means, x, y, lr)` makes one update, in place, from the *full* batch.
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
# Now the ladder is yours. Build a recipe that takes **at most 284 KiB** and reaches a loss of **at most 1.1** on images that it never sees, in 24 updates of 64 images. Smaller micro-batches alone are not enough: look at what the last table of section 3 lists at the peak with 4 images. How low can you go? (An update has fewer images than in the ladder, to keep the check short. Even so, it can take a minute on a CPU, and longer with very small micro-batches. The peak depends on the size of a micro-batch, not on the number of micro-batches.)
#
# **Contract.** Write two functions:
#
# - `prepare(model)` gets the ViT of this lab with FP32 weights, and may change it in place: its dtype, checkpointing, hooks. It returns whatever `update` needs.
# - `update(model, state, x, y, progress)` makes one update; `state` is what `prepare` returned. All micro-batches of an update see the same weights, which change after the last of them. `x` (64, 1, 8, 8) and `y` (64,) are in NumPy. `progress` goes from 0 (first update) to 1 (last).
# - In every update, all 64 images go through `model(...)` with gradients on, unchanged, in micro-batches of any size, and no other images do. Each run assigns the digits to the labels anew, at random, so other data does not help.
# - The parameters keep their names and shapes. In the end, the weights are loaded into a fresh FP32 model, and its loss counts.
# - Keep everything in tensors on the device. Python and NumPy may keep at most 32 KiB outside tensors, in blocks of 4 KiB or more; smaller blocks do not count. The peak includes everything that outlives an operation: weights, state, gradients, activations, and copies that lie idle. Scratch memory that a kernel allocates and frees itself does not count, because it differs between CPUs. An update must not write files.


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
# ## 9 · Your lab report
#
# Every table of claims that you saw in this course's notebooks has been saved in one small file on this machine (`.progress/progress.json`; with `TAS_PROGRESS=off` in the environment nothing is saved). The file stays on this machine. The next cell lists the claims of this lab, and the one after it shows the whole file as one page: your ladder, your floor and your recipe first, then the claims of every lab. The page contains what *you* measured, on your device. If you change a rung and run the lab again, the page changes. `save` writes it as HTML.

# %% name="claims"
claims

# %% name="report"
sections = {
    f"The ladder: {headline}; {more:+.3f} of loss ({least_more:+.3f} to {most_more:+.3f})": table,
    f"The floor: {human_bytes(final.peak_bytes)}, byte by byte": floor,
    "The open rung": reached,
    "The recipe chosen": f"{best.name} ({best.recipe.summary}): {human_bytes(best.peak_bytes)} planned at the peak",
}
report = lab_report(claims, sections)
# report.save("lab_report.html")    # open it in a browser
report

# %% [markdown] name="recap"
# ## Recap
#
# - With the same batch, a peak can shrink by a factor of several dozen if it consists almost entirely of activations. Small micro-batches contribute most of this factor, and they cost time. The factor is less than 4 + A / 4Φ, which is low for large models.
# - For each rung, ask what it removed, what it added and what it moved. The order decides how much a rung seems to save. The total does not depend on the order, but it depends on how wasteful rung 0 was.
# - You cannot combine accumulation and a step in the backward pass as they are. But if the optimizer state is linear in the gradient, it can be the accumulator.
# - Every byte of the floor has a cause: bytes per weight, bytes of state, one block of one micro-batch, scratch memory, and saved states of the random generator, which this model does not need.
# - To show that a loss is preserved, you need pairs of runs, rates chosen without the test images, a margin set in advance, and an interval that is narrow enough to decide.
# - Guides and tables are valid for the model, the batch and the number format that they were made for. For other cases, ask the planner.
#
# **Sources.** Bernstein et al. 2018, *signSGD*; Zhang et al. 2023, *Adam Accumulation to Reduce Memory Footprints* (the same idea for Adam, which it has to change); [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim), logs; PyTorch tutorial, *How to save memory by fusing the optimizer step into the backward pass*; Rajbhandari et al. 2020, *ZeRO*; Hu et al. 2021, *LoRA*.
