# %% [markdown] name="title"
# # Capstone: one model, one batch, one ladder
#
# **Stack what the labs taught, one change at a time, on one model with one effective batch, until the peak is a small part of what it was and the accuracy is still there. Then account for every byte that is left.**
#
# | | |
# |---|---|
# | After this you can | stack techniques and say what each one took from which tenant; account for the remaining floor byte by byte; test a recipe guide with the planner; choose a recipe for a GPU and export it as a script |
# | Time | 90 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#where_memory_goes]] to [[#activation_checkpointing]] and [[#sharding]]; the others help |
# | Syllabus | C12, T26, T27 |

# %% name="setup" setup=true
import functools
import itertools
import math
import statistics
import time
from collections import Counter
from dataclasses import dataclass, replace

from helpers import (
    COLOURS,
    TENANTS,
    Claims,
    GiB,
    KiB,
    MemoryMeter,
    Prediction,
    Recipe,
    ViT,
    benchmark,
    check,
    choose,
    device_name,
    digits,
    explore,
    find_gpu,
    hint,
    human_bytes,
    lab_report,
    parallel_map,
    peak_table,
    pick_device,
    plan,
    planned,
    profile_step,
    rank_device,
    run_ranks,
    show,
    text_table,
    training_script,
)

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
torch.set_num_threads(1)  # a CPU kernel's workspace grows with its threads: with one, all CPUs give the same bytes
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="rules_text"
# ## 1 · The rules
#
# Articles on these techniques promise that together they cut peak memory "up to 20 times, with the same accuracy" (section 4 looks at the one quoted most). It is easy to cheat on such a ladder: a smaller batch is a different training run, and a peak read at a different moment is a different figure. So here are the rules, before the first rung:
#
# - **One model**: a vision transformer of four blocks on handwritten digits, started from the same weights.
# - **One effective batch**: every update sees the same 512 images in the same order, and every rung sees the same number of images.
# - **One figure**: the peak of a whole training step, in bytes, from the meter of [[where_memory_goes]], including parameters and optimizer state.
# - **One accuracy to hold**, on images that are used neither to train nor to choose anything. There are few of them (the next cell prints what one is worth), so a single run says little about 0.5 points. To test the claim, we train five seeds in pairs.
#
# The images stay in NumPy, as a data loader would keep them; the device gets only what a micro-batch needs.

# %% name="task"
BATCH, TRAINED = 512, 1024  # images in an update, and to train on: two batches an epoch
SHAPE = {"side": 8, "patch": 4, "layers": 4, "width": 32, "heads": 4, "inner": 128}
data = digits()
images = torch.cat([data.train_x, data.test_x]).numpy()
labels = torch.cat([data.train_y, data.test_y]).numpy()
tested = len(images) - TRAINED
print(
    f"{TRAINED:,} images of {images[0].size} pixels to train on, {tested} to test on: one of them is {100 / tested:.2f} points"
)


@dataclass(frozen=True)
class Rung:
    """One way to take the same training step."""

    name: str
    autocast: bool = False
    micro: int = BATCH  # images in a micro-batch
    checkpointing: bool = False
    keep_random: bool = True  # `checkpoint` saves the random generator's state for each block, by default
    optimizer: str = "adamw"
    fold: bool = False  # gradients go into the optimizer state during the backward pass
    dtype: torch.dtype = torch.float32  # of weights and optimizer state


# %% name="model"
def make_model(rung, seed, where):
    torch.manual_seed(seed)
    model = ViT(**SHAPE).to(where, rung.dtype)
    if rung.checkpointing:
        how = {"use_reentrant": False, "preserve_rng_state": rung.keep_random}
        for block in model.blocks:
            block.forward = functools.partial(checkpoint, block.forward, **how)
    return model


phi = sum(p.numel() for p in make_model(Rung(""), 0, "cpu").parameters())
print(f"{phi:,} parameters")

# %% [markdown] name="optimizer_text"
# ### A lean optimizer that can take its gradients early
#
# Adam keeps two numbers a parameter. **Signum** (Bernstein et al. 2018) keeps one, a running mean of gradients, and steps by its sign: every weight moves by the learning rate. Adam moves a weight by *at most* the learning rate, roughly, and by less where gradients contradict each other from update to update. So expect the two to need different rates.
#
# Signum has a second virtue. [[Gradient_accumulation]] keeps a gradient for every parameter while micro-batches add up. An optimizer step in the backward pass would free each gradient at once, but a step after every micro-batch is a different training run: **the two cannot be combined as they are**. But the running mean is *linear* in the gradient,
#
# *m* ← β·*m* + (1 − β)·(*g*₁ + *g*₂ + … + *g*ₙ),
#
# so a hook can add each piece *g*ᵢ to *m* as soon as it exists, and free it. Weights move once, after the last micro-batch. The optimizer state *is* the accumulator. (This does not work for Adam's second moment: the square of a sum is not the sum of squares.)
#
# In 16 bits small additions are lost ([[number_formats]]), so additions to BF16 tensors round **stochastically**. BF16 is FP32 without its lower 16 bits. Add a random 16-bit number to those bits and cut them off: the carry rounds up with the right probability.


# %% name="rounding"
def add(target, change):
    """Add FP32 `change` to `target` in place; into BF16 with stochastic rounding."""
    if target.dtype == torch.float32:
        target.add_(change)
        return
    bits = target.float().add_(change).view(torch.int32)
    bits.add_(torch.randint_like(bits, 2**16)).bitwise_and_(-(2**16))
    target.copy_(bits.view(torch.float32))


# %% name="optimizer"
class Signum(torch.optim.Optimizer):
    """Steps by the sign of a running mean, which takes gradients whole or in pieces.

    A parameter that has received no gradient since the last step is left alone, and so is its mean.
    """

    def __init__(self, parameters, lr, momentum=0.9):
        self.group_of, self.taken = {}, set()
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    def add_param_group(self, group):
        super().add_param_group(group)
        for p in self.param_groups[-1]["params"]:
            self.group_of[p] = len(self.param_groups) - 1
            self.state[p]["mean"] = torch.zeros_like(p)

    @torch.no_grad()
    def take(self, p):
        """Move the gradient of `p`, or a piece of it, into the mean, and free it."""
        mean, momentum = self.state[p]["mean"], self.param_groups[self.group_of[p]]["momentum"]
        if p not in self.taken:  # the first piece since the last step: the old mean fades, once
            mean.mul_(momentum)
            self.taken.add(p)
        add(mean, p.grad.float() * (1 - momentum))
        p.grad = None

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.take(p)
                if p in self.taken:
                    add(p, self.state[p]["mean"].sign().float() * -group["lr"])
        self.taken.clear()


# %% name="step"
def make_optimizer(rung, model, rate=4e-3):
    if rung.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=rate)
    optimizer = Signum(model.parameters(), lr=rate)
    if rung.fold:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(optimizer.take)
    return optimizer


def train_step(rung, model, optimizer, rows):
    """Update once with the images `rows`, a micro-batch at a time."""
    gradients(rung, model, rows)
    optimizer.step()
    optimizer.zero_grad()


def gradients(rung, model, rows):
    where = next(model.parameters()).device
    for part in np.split(rows, range(rung.micro, len(rows), rung.micro)):
        x, y = (torch.from_numpy(a[part]).to(where) for a in (images, labels))
        with torch.autocast(where.type, torch.bfloat16, enabled=rung.autocast):
            logits = model(x.to(rung.dtype))
        (F.cross_entropy(logits.float(), y, reduction="sum") / len(rows)).backward()


# %% [markdown] name="same_text"
# ### Equivalence before memory
#
# In FP32, the rungs that claim "the same gradient" must deliver it: accumulated, checkpointed, and folded into the momentum. The last line is the control, which must fail: a step after *every* micro-batch.

# %% name="same"
base = Rung("0 FP32, AdamW")
rows = np.arange(BATCH)


def gradient_of(rung):
    model = make_model(rung, 0, device)
    gradients(rung, model, rows)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


whole = gradient_of(base)
for name, rung in {
    "16 micro-batches": replace(base, micro=32),
    "and checkpointed": replace(base, micro=32, checkpointing=True),
}.items():
    off = (gradient_of(rung) - whole).norm() / whole.norm()
    print(f"{name:28} gradient differs by {off:.1e} of its norm")
    claims.record("T8", "the gradient is that of the whole batch", name, off.item(), "relative", 0, 1e-5)


# %% name="same_folded"
def weights_after(rung, every_piece=False, steps=2):
    """Return all weights, by name, after some steps; with `every_piece`, step after each micro-batch."""
    model = make_model(rung, 0, device)
    optimizer = make_optimizer(rung, model)
    for _ in range(steps):
        for part in np.split(rows, len(rows) // rung.micro) if every_piece else [rows]:
            train_step(rung, model, optimizer, part)
    return {name: p.detach() for name, p in model.named_parameters()}


lean = replace(base, micro=32, checkpointing=True, optimizer="signum")
plain = weights_after(lean)
for name, other in {
    "folded into the momentum": weights_after(replace(lean, fold=True)),
    "a step every micro-batch": weights_after(replace(lean, fold=True), every_piece=True),
}.items():
    differ = {n: other[n] != plain[n] for n in plain}
    everywhere = sum(d.sum().item() for d in differ.values())
    keys = slice(SHAPE["width"], 2 * SHAPE["width"])  # biases of queries, keys and values, in this order
    in_keys = sum(d[keys].sum().item() for n, d in differ.items() if n.endswith("in_proj_bias"))
    print(f"{name:28} {everywhere:,} of {phi:,} weights differ, {in_keys} of them are biases of keys")
    if "folded" in name:
        rest = (everywhere - in_keys) / phi
        said = "folding does not change the update, but for the keys' biases"
        claims.record("T8", said, "Signum, 2 steps, FP32", rest, "of the weights", 0, 1e-3)

# %% [markdown] name="same_explained"
# Folding adds in a different order, so the last bit may differ, and so may the *sign* where a mean is almost zero.
#
# Why in the biases of the keys, of all weights? A key's bias *b* adds the same *q·b* to every score of a query, and softmax ignores whatever is added to all its inputs. So **the gradient of this bias is zero** in exact arithmetic. What arrives is rounding noise, and Signum takes a full step by its sign. That does no harm, since the model ignores the bias as well.
#
# The control, a step after every micro-batch, ends up somewhere else altogether.
#
# ## 2 · The ladder
#
# Each rung changes one thing and keeps everything else.

# %% name="rungs"
LADDER = [base]
for name, change in {
    "1 BF16 autocast": {"autocast": True},
    "2 16 micro-batches of 32": {"micro": 32},
    "3 checkpointing": {"checkpointing": True},
    "4 Signum for AdamW": {"optimizer": "signum"},
    "5 gradients folded": {"fold": True},
    "6 BF16 weights and state": {"autocast": False, "dtype": torch.bfloat16},
}.items():
    LADDER.append(replace(LADDER[-1], name=name, **change))


def measured(rung, seen=rows):
    """Return the meter of one training step on the images `seen`, after a warm-up step."""
    model = make_model(rung, 0, device)
    optimizer = make_optimizer(rung, model)
    train_step(rung, model, optimizer, seen)
    with MemoryMeter(model, optimizer) as meter:
        train_step(rung, model, optimizer, seen)
    return meter


subject = f"ViT, {phi:,} parameters, batch {BATCH}, rungs 0 to {len(LADDER) - 1}"
meters = {base.name: measured(base)}
first = meters[base.name].peak_bytes
print(meters[base.name])
print(peak_table(meters[base.name], 5))

# %% [markdown] name="guess_text"
# Nearly all of it is activations: 512 images × 5 tokens × 4 blocks. **Predict** two figures before you see them. By what factor does BF16 autocast alone lower the peak? And what is the factor with all six changes stacked?

# %% name="guess"
my_guess = None  # times less, BF16 autocast alone
### BEGIN GUESS
my_guess = 2  # half the bytes a number; too high, because it ignores what stays in FP32
### END GUESS
autocast_guess = Prediction("FP32 peak / BF16 autocast peak", my_guess, "times")
my_guess = None  # times less, all six changes
### BEGIN GUESS
my_guess = 20  # what the article promises
### END GUESS
ladder_guess = Prediction("FP32 peak / peak of the last rung", my_guess, "times")

# %% name="climb"
meters |= zip([rung.name for rung in LADDER[1:]], parallel_map(measured, LADDER[1:]), strict=True)
peaks = {name: meter.peak_bytes for name, meter in meters.items()}
last = LADDER[-1].name
autocast_guess.reveal(first / peaks[LADDER[1].name])
ladder_guess.reveal(first / peaks[last])
shown = [t for t in TENANTS if any(m.at_peak[t] >= KiB for m in meters.values())]
lines = [["KiB at the peak", *(t.split()[0] for t in shown), "PEAK", "less"]]
for name, meter in meters.items():
    held = [f"{meter.at_peak[t] / KiB:,.0f}" for t in shown]
    lines.append([name, *held, f"{meter.peak_bytes / KiB:,.0f}", f"{first / meter.peak_bytes:.1f}x"])
print(text_table(lines))

# %% [markdown] name="climb_explained"
# Read the table by columns, and ask of every rung what it took, what it *added*, and what it moved.
#
# - **Autocast** halves most activations and leaves weights, gradients and state alone. It adds a tenant, the 16-bit copies of weights. So the factor stays below 2.
# - **Micro-batches** take the most by far: from activations, temporaries, workspace and inputs at once. They bring gradients back. In rung 0 the peak comes early in the backward pass, before most gradients exist; now gradients live through the whole step.
# - **Checkpointing** takes activations and adds recomputed ones. The copies of weights fall as well: those of a recomputed block are made for that block and freed with it. It looks modest because it had little left to take. *The order of the rungs decides what each of them seems to be worth.* Only the product counts.
# - From rung 3 on, the static part dominates. **Signum** takes a state tensor and **folding** takes the gradients: each affects one tenant and leaves the others alone. **BF16** halves weights and state, takes the copies, and takes some of the activations that autocast keeps in FP32.
#
# On a GPU the workspaces of cuBLAS (8 to 32 MiB) are larger than this model. They are allocated in the step before the measured one, and are not part of the figure.
#
# ### What did it cost?
#
# Accuracy first. AdamW and Signum need different learning rates, and if you try rates on the test images, you have trained on them. So a fifth of the *training* images is held out for this; the test images stay unseen. Two processes work side by side, as they did for the meters.

# %% name="train"
STEPS, SEEDS = 32, range(5)
KEPT = TRAINED - TRAINED // 5  # the rest of the training images is held out to choose rates


def train(rung, rate, seed, pool, where):
    """Train on batches of the first `pool` images; return the model."""
    model = make_model(rung, seed, where)
    optimizer = make_optimizer(rung, model, rate)
    order, waiting = np.random.default_rng(seed), []
    for i in range(STEPS):
        if not waiting:
            waiting = np.split(order.permutation(pool)[: pool // BATCH * BATCH], pool // BATCH)
        for group in optimizer.param_groups:  # a short warm-up, then half a cosine
            group["lr"] = rate * min(1, (i + 1) / 6) * (1 + math.cos(math.pi * i / STEPS)) / 2
        train_step(rung, model, optimizer, waiting.pop())
    return model


def accuracy(rung, rate, seed, pool, begin, end):
    """Train on the first `pool` images; return the accuracy on images `begin` to `end` in %."""
    where = pick_device()
    model = train(rung, rate, seed, pool, where)
    with torch.no_grad(), torch.autocast(where.type, torch.bfloat16, enabled=rung.autocast):
        guessed = model(torch.from_numpy(images[begin:end]).to(where, rung.dtype)).argmax(1)
    return 100 * (guessed.cpu() == torch.from_numpy(labels[begin:end])).float().mean().item()


# %% name="rates"
def all_of(jobs):
    """Return job -> accuracy."""
    return dict(zip(jobs, parallel_map(lambda job: accuracy(*job), jobs), strict=True))


# %% name="rates_taken"
tried = {"adamw": (4e-3, 8e-3, 16e-3), "signum": (2e-3, 4e-3, 8e-3)}
jobs = [(replace(base, optimizer=o), rate, s, KEPT, KEPT, TRAINED) for o in tried for rate in tried[o] for s in (0, 1)]
held_out, RATES = all_of(jobs), {}
for optimizer, rates in tried.items():
    means = {
        r: statistics.mean(a for job, a in held_out.items() if job[:2] == (replace(base, optimizer=optimizer), r))
        for r in rates
    }
    RATES[optimizer] = max(means, key=means.get)
    words = ", ".join(f"{rate:g}: {mean:.1f} %" for rate, mean in means.items())
    print(f"{optimizer:7} on {TRAINED - KEPT} held-out images   {words}   chosen: {RATES[optimizer]:g}")

# %% name="moves"
model = make_model(base, 0, device)
optimizer = make_optimizer(base, model, RATES["adamw"])
for update in range(1, 17):
    train_step(base, model, optimizer, rows)
    if update in (2, 4, 8, 16):
        state = optimizer.state.values()
        means = [s["exp_avg"] / (1 - 0.9**update) for s in state]
        squares = [s["exp_avg_sq"] / (1 - 0.999**update) for s in state]
        moved = torch.cat([(m / (v.sqrt() + 1e-8)).abs().flatten() for m, v in zip(means, squares, strict=True)])
        print(
            f"update {update:2}: AdamW moves a weight by {moved.mean():.2f} of the learning rate on average, Signum by 1"
        )

# %% [markdown] name="scores_text"
# With a few hundred images and two seeds, neighbours in this list differ by an image or two: treat the choice between them as a coin toss, not a finding. What you can see is that Signum needs smaller rates, and why: its steps do not shrink.
#
# Now the rungs, on all training images. The claim compares the last rung with the first, so these two are trained from five seeds, in pairs (same seed, same start, same order of images). The rungs between are trained once: enough to see that they train, **not** enough to see half a point.
#
# Do we have to train all of them? Checkpointing recomputes the same numbers, so a rung should end with the same weights with and without it, to the last bit. That should hold even with stochastic rounding, because `checkpoint` restores the random generator. If it does, we can train without the extra work.

# %% name="same_bits"
plainer = {rung.name: replace(rung, checkpointing=False, name="") for rung in LADDER}  # trained instead of a rung


def bits_changed(rung):
    """Return how many weights differ after two steps, with and without checkpointing."""
    one, other = weights_after(rung), weights_after(plainer[rung.name])
    return sum((one[name] != other[name]).sum().item() for name in one)


checkpointed = [rung for rung in LADDER if rung.checkpointing]
for rung, differ in zip(checkpointed, parallel_map(bits_changed, checkpointed), strict=True):
    print(f"{rung.name:25} with and without checkpointing: {differ} of {phi:,} weights differ after 2 steps")
    claims.record("T8", "checkpointing changes no bit", f"rung {rung.name}, 2 steps", differ, "weights differ", 0, 0)


# %% name="scores"
def job_of(rung, seed):
    return plainer[rung.name], RATES[rung.optimizer], seed, TRAINED, TRAINED, len(images)


wanted = [(LADDER[-1], seed) for seed in SEEDS] + [(rung, 0) for rung in reversed(LADDER[1:-1])]
wanted += [(base, seed) for seed in SEEDS]
trained = all_of(list(dict.fromkeys(job_of(*each) for each in wanted)))  # jobs shared by two rungs run once
scores = {(rung.name, seed): trained[job_of(rung, seed)] for rung, seed in wanted}
last_by_seed, first_by_seed = ([scores[name, seed] for seed in SEEDS] for name in (last, base.name))
pairs = [b - a for a, b in zip(first_by_seed, last_by_seed, strict=True)]
STUDENT = {
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    7: 2.365,
    8: 2.306,
    9: 2.262,
}  # 95 %, by degrees of freedom
lost, error = statistics.mean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))
lost_at_worst, lost_at_best = (lost + sign * STUDENT[len(pairs) - 1] * error for sign in (-1, 1))
print("rung 0:     " + ", ".join(f"{score:.2f}" for score in first_by_seed), "%")
print("last rung:  " + ", ".join(f"{score:.2f}" for score in last_by_seed), "%")
print(f"difference: {lost:+.2f} points on average, 95 % interval {lost_at_worst:+.2f} to {lost_at_best:+.2f}")

# %% [markdown] name="pace_text"
# Then time. All rungs take a step in turn, for five rounds after a warm-up round. Each is compared with the others *within* a round, so that a slow moment of the machine hits both. The spread is over the five rounds.


# %% name="pace"
def turns(rungs, seen, rounds=5):
    """Return the seconds of `rounds` steps of each rung, with the rungs taking turns."""
    steps = []
    for rung in rungs:
        model = make_model(rung, 0, device)
        steps.append(functools.partial(train_step, rung, model, make_optimizer(rung, model), seen))
    taken = [[benchmark(step, runs=1, warmup=0).median for step in steps] for _ in range(rounds + 1)]
    return list(zip(*taken[1:], strict=True))


def times(before, after):
    """Return how many times slower `after` is: median, minimum and maximum over the rounds."""
    ratios = [b / a for a, b in zip(before, after, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


paces = dict(zip(peaks, turns(LADDER, rows), strict=True))
table = [["rung", "peak", "less", "time", "in 5 rounds", "seed 0, %", f"{len(SEEDS)} seeds, %"]]
for name, peak in peaks.items():
    slower, least, most = times(paces[base.name], paces[name])
    row = [name, human_bytes(peak), f"{first / peak:.1f}x", f"{slower:.1f}x", f"{least:.1f} to {most:.1f}"]
    several = [score for (rung, _), score in scores.items() if rung == name]
    mean = f"{statistics.mean(several):.2f}" if len(several) > 1 else ""
    table.append([*row, f"{scores[name, 0]:.2f}", mean])
print(text_table(table))

# %% [markdown] name="reason_text"
# A time column wants a reason. The profiler of [[where_the_time_goes]] splits a step into phases and kinds of operation; the next cell says of each rung what has grown most since the rung before.


# %% name="reason"
def profiled(rung):
    model = make_model(rung, 0, device)
    optimizer = make_optimizer(rung, model)
    return profile_step(functools.partial(train_step, rung, model, optimizer, rows), runs=2)


def parts_of(profile):
    """Return milliseconds by (kind, phase)."""
    sums = Counter()
    for part in profile.parts:
        sums[part.kind, part.phase] += 1e3 * part.seconds
    return sums


steps = {rung.name: profiled(rung) for rung in LADDER}
table = [("rung", "ms", "calls", "grew most since the rung before", "shrank most")]
for before, after in itertools.pairwise(steps):
    more = parts_of(steps[after])
    more.subtract(parts_of(steps[before]))
    grown, shrunk = max(more, key=more.get), min(more, key=more.get)
    said = [f"{kind}, {phase} {more[kind, phase]:+.0f} ms" for kind, phase in (grown, shrunk)]
    calls = sum(part.calls for part in steps[after].parts)
    table.append((after, f"{1e3 * steps[after].seconds:.0f}", f"{calls:,}", *said))
print(text_table(table))

# %% name="why_slower"
pieces, at_once = replace(base, micro=32), base  # checkpointing against none: 4 micro-batches of 32, and all at once
for name, rung, seen in (
    ("FP32, micro-batches of 32", pieces, rows[:128]),
    ("BF16 autocast, micro-batches of 32", replace(pieces, autocast=True), rows[:128]),
    ("the same, random state not saved", replace(pieces, autocast=True, keep_random=False), rows[:128]),
    ("BF16 autocast, 512 at once", replace(at_once, autocast=True), rows),
):
    slower, least, most = times(*turns([rung, replace(rung, checkpointing=True)], seen))
    print(f"{name:36} checkpointing takes {slower:.2f}x the time ({least:.2f} to {most:.2f})")

# %% name="ladder_claims"
TWENTY = 18, math.inf  # "up to 20x" is tested three times in this lab by one rule: 20x is reached, within 10 %
claims.record("C12", "20x less peak memory", subject, first / peaks[last], "times", *TWENTY)
claims.record("C12", "this lab's target: 40x less", subject, first / peaks[last], "times", 40, math.inf)
paired = f"{subject}, {len(SEEDS)} pairs"
said = "the same accuracy: at most 0.5 points lost"
claims.record("C12", said, f"{paired}, mean", lost, "points", -0.5, math.inf)
claims.record("C12", said, f"{paired}, low end of 95 %", lost_at_worst, "points", -0.5, math.inf)
claims

# %% name="ladder_figure"
figure = Figure(figsize=(8.5, 4.2), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(2, 3), sharey=True)
names = list(meters)
left.barh(names, [first / peaks[name] for name in names], color=COLOURS[0])
left.axvline(40, color="black", ls="--", lw=1)
left.set(title="Times less than rung 0", xlabel="peak of rung 0 / peak (dashed: the target)", xlim=(0, 55))
left.invert_yaxis()
start = np.zeros(len(names))
for tenant, colour in zip(TENANTS, COLOURS, strict=True):
    width = np.array([100 * meters[name].at_peak[tenant] / peaks[name] for name in names])
    if width.max() >= 1:
        right.barh(names, width, left=start, color=colour, label=tenant)
        start += width
right.set(title="Whose bytes make up the peak", xlabel="% of that rung's peak", xlim=(0, 100))
figure.legend(loc="outside lower center", ncols=4, frameon=False)
show(
    figure,
    "The factor grows from rung to rung, past the target of 40. The first peak is nearly all activations; the last is mostly weights, state and one recomputed block.",
)

# %% [markdown] name="cost_explained"
# The interval says what five pairs can show. If its low end is above −0.5 points, the claim is safe for this model. If not, the mean may pass, but five pairs **cannot rule out** a larger loss. That would take more seeds, or longer training, which varies less. An article that shows one run of each has shown less than this.
#
# Read accuracy down the column of seed 0, which has all rungs; do not compare a mean with a single run. Rung 3 equals rung 2 to the last bit, as the steps above have shown, and was not trained twice. Micro-batches and folding add in a different order, so rungs 1 and 2, or 4 and 5, may differ by a few images.
#
# The price is time. Small micro-batches keep a processor less busy. Checkpointed blocks run their forward pass twice, which is a third more arithmetic (a backward pass costs two forward passes). That is about what it takes with all images at once; in micro-batches of 32 it takes more. Where does the rest come from? The four lines rule things out, as far as their spread allows (where two spreads overlap, nothing has been shown). FP32 need not cast weights again for every recomputed block: if it pays as much, casts are not the reason. If leaving out the random states gains nothing beyond the spread, they are not the reason either. That leaves the size of the pieces: a small operation mostly costs its call, and checkpointing adds its own calls to every block of every piece.
#
# > **Note:** rung 4 is another optimizer with its own learning rate. It is the only rung that changes *what* is computed, not how. The published ladder has one, too (Adam to SGD). It is allowed here because the rule is to hold the accuracy.
#
# ## 3 · The floor, byte by byte
#
# At the last rung's peak, these are the largest blocks of memory alive, each with the operation that made it:

# %% name="floor"
final = meters[last]
print(peak_table(final, 12))

# %% [markdown] name="laws_text"
# The shapes of the model explain every one of them. The peak is in the backward pass of the last MLP, with one block of one micro-batch recomputed.
#
# **Predict** one tenant, from shapes: 32 images of 5 tokens, 32 wide, 2 bytes a number, 4 blocks. How many KiB of *activations* are there, not counting recomputed ones? (What does a checkpointed block save, and what does the first layer?)

# %% name="guess_kept"
my_guess = None  # KiB of activations at the peak of the last rung
### BEGIN GUESS
my_guess = 4 * 32 * 5 * 32 * 2 / 1024  # the inputs of four blocks
### END GUESS
kept_guess = Prediction("Activations at the peak of the last rung", my_guess, "KiB")


# %% name="laws"
def laws_of(micro):
    """Return what each tenant must hold at the last rung's peak: bytes, from shapes alone, and the reason."""
    width, inner, layers, heads = (SHAPE[name] for name in ("width", "inner", "layers", "heads"))
    pixels, sequence = images[0].size, (SHAPE["side"] // SHAPE["patch"]) ** 2 + 1
    tokens = micro * sequence
    random = torch.get_rng_state().nbytes if device.type == "cpu" else 0  # a GPU generator's state is on the host
    wide = 2 * inner  # GELU: its input and its output
    narrow = 3 * width + 4 * width  # q, k, v; outputs of both norms and of attention, the sum after it
    rows_of = 4 * micro * heads * sequence + 2 * 4 * tokens  # softmax's sums (FP32); mean and deviation, two norms
    block = 2 * tokens * (wide + narrow) + rows_of
    return {
        "parameters": (2 * phi, "2 bytes each"),
        "optimizer state": (2 * phi, "2 bytes a parameter: one mean, which is also the accumulator"),
        "inputs and other": (micro * (4 * pixels + 8), "FP32 images, labels"),
        "activations": (2 * (layers * tokens * width + micro * pixels), "inputs of 4 blocks; images in BF16"),
        "recomputed activations": (block, "GELU in and out; q, k, v; 4 of the width; softmax and norm statistics"),
        "temporaries": (
            2 * (tokens * (inner + width) + inner * width + micro * 10) + 2 * 4,
            "gradients of GELU's output, the block's and one weight; logits; 2 scalars",
        ),
        "kernel workspace": (layers * random, "the random generator's state, for each checkpoint"),
    }


# %% name="floor_table"
floor = [["tenant", "bytes", "by law", "rest"]]
for tenant, (law, _) in laws_of(32).items():
    floor.append([tenant, *(f"{n:,}" for n in (final.at_peak[tenant], law, final.at_peak[tenant] - law))])
scratch = final.at_peak["kernel workspace"] - laws_of(32)["kernel workspace"][0]
total = sum(law for law, _ in laws_of(32).values()) + scratch
floor.append(["sum, with scratch", f"{final.peak_bytes:,}", f"{total:,}", f"{final.peak_bytes - total:,}"])
assert sum(final.at_peak.values()) == final.peak_bytes
print(text_table(floor))
print()
for tenant, (_, why) in laws_of(32).items():
    print(f"{tenant:24}{why}")
print(f"{'scratch':24}{human_bytes(scratch)}: requested by {final.peak_at}")
print(f"a random generator's state on a CPU: {torch.get_rng_state().nbytes:,} bytes")
unnamed = 100 * abs(final.peak_bytes - total) / final.peak_bytes
claims.record("C12", "the floor is named: laws from shapes, and scratch", subject, unnamed, "% unnamed", 0, 1)
kept_guess.reveal(final.at_peak["activations"] / KiB)
static = final.at_peak["parameters"] + final.at_peak["optimizer state"]
claims.record("C12", "weights and state: 4 bytes a parameter", subject, static / phi, "bytes", 4, 4.3)

# %% [markdown] name="floor_explained"
# - **Weights and running means**, 2 + 2 bytes a parameter: the floor in the strict sense. To go lower you need another number format ([[fp8]]), fewer trained parameters ([[lora]]), or more machines ([[sharding]]).
# - **Activations**: the inputs of checkpointed blocks, for one micro-batch. **Recomputed activations** and most **temporaries**: one block of one micro-batch, while its backward pass runs.
# - **Kernel workspace** has two owners. One is scratch of the matrix product at the peak. On a CPU, 16-bit products repack their operands, and how is the library's business (the one figure here that no shape gives). The other is a discovery: `checkpoint` saves **the state of the random generator** for each block, so that dropout would draw the same numbers again. On a CPU that costs each block as many bytes as the last line says, and this model has no dropout.
#
# Account for a floor byte by byte, and you find what nobody had looked for; `preserve_rng_state=False` removes it.
#
# **Predict** what comes next: with micro-batches of 4 images instead of 32, what is the factor? Use the laws, but ask of each tenant whether it depends on the micro-batch at all.

# %% name="guess_smaller"
my_guess = None  # times less than rung 0, micro-batches of 4
### BEGIN GUESS
my_guess = 95  # everything but weights and means falls to an eighth
### END GUESS
smaller_guess = Prediction("FP32 peak / peak with micro-batches of 4", my_guess, "times")


# %% name="smaller"
def shrunk(micro, **change):
    """Measure the last rung on four micro-batches: as in gradient accumulation, all after the first are alike."""
    return measured(replace(LADDER[-1], micro=micro, **change), rows[: 4 * micro])


sizes = (128, 32, 16, 4)
curve = dict(zip([f"micro-batches of {micro}" for micro in sizes], parallel_map(shrunk, sizes), strict=True))
assert curve["micro-batches of 32"].peak_bytes == final.peak_bytes
smallest = curve["micro-batches of 4"]
smaller_guess.reveal(first / smallest.peak_bytes)
lines = [["KiB at the peak", "weights, means", "activations", "temporaries", "workspace", "PEAK", "less"]]
for name, meter in (curve | {"32, no random state": shrunk(32, keep_random=False)}).items():
    held = meter.at_peak
    activations = held["activations"] + held["recomputed activations"]
    tenants = (static, activations, held["temporaries"], held["kernel workspace"], meter.peak_bytes)
    lines.append([name, *(f"{n / KiB:,.0f}" for n in tenants), f"{first / meter.peak_bytes:.1f}x"])
print(text_table(lines))
print(f"\nwith 4 images the peak is in {smallest.peak_at}")
print(f"if only weights and running means were left: {first / static:.0f}x")

# %% [markdown] name="vit_text"
# Activations fall with the micro-batch. Temporaries do **not**: with few images the peak moves into the optimizer's hook. There stochastic rounding holds the largest weight three times in 4-byte numbers (the mean, its change, the random bits), whatever the batch. Nor do the random states fall. Push one tenant down, and another takes its place at the peak.
#
# So the floor depends on three choices: bytes a weight, bytes of state, and how little is computed at a time. The factor depends on what the first rung wasted: *"40 times" says as much about rung 0 as about rung 6.*
#
# ## 4 · The famous ladder, checked
#
# The most quoted figure of this kind is from [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md): ViT-L/16 on CIFAR-10 at 224 pixels, "20x". Its own logs give reserved memory, for six steps on one GPU. The planner ([[where_memory_goes]]) runs the same steps on fake tensors. It gives reserved memory as a range: the allocator's replay, and what may shift it.
#
# A plan takes seconds and is the same on every machine, so those of this lab were made in advance and come with the course. `planned` looks them up, and computes any that are missing, such as a recipe that you change.
#
# **Predict.** The six logs of ViT-L on one GPU begin with 26.79 GB in FP32 with batches of 64 and Adam, and 18.21 GB with FP16 autocast. Then come BF16 weights, a batch of 16, four micro-batches of 4, and SGD instead of Adam. There are about 300 million parameters. What is the last figure?

# %% name="guess_vit"
my_guess = None  # GB reserved
### BEGIN GUESS
my_guess = 26.79 / 20  # as the article says
### END GUESS
vit_guess = Prediction("ViT-L/16, the last of six logs", my_guess, "GB reserved")

# %% name="vit"
PUBLISHED = {  # reserved GB in the logs, and the step that was logged; gradients are zeroed after the forward pass
    "FP32, batch 64, Adam": (26.79, {"precision": "fp32", "micro_batch_size": 64}),
    "FP16 autocast": (18.21, {"precision": "fp16-amp", "micro_batch_size": 64}),
    "BF16 weights": (13.82, {"precision": "bf16", "micro_batch_size": 64}),
    "batch 16": (5.69, {"precision": "bf16", "micro_batch_size": 16}),
    "4 x 4 accumulated": (3.91, {"precision": "bf16", "micro_batch_size": 4, "gradient_accumulation_steps": 4}),
    "SGD, cosine": (
        2.02,
        {"precision": "bf16", "micro_batch_size": 4, "gradient_accumulation_steps": 4, "optimizer": "sgd"},
    ),
}
# The same ladder, with 64 images in every update:
SAME_BATCH = {"precision": "bf16", "micro_batch_size": 4, "gradient_accumulation_steps": 16}
ours = {
    "BF16 weights, 16 x 4": SAME_BATCH,
    "and checkpointing": SAME_BATCH | {"checkpointing": "every"},
    "and SGD": SAME_BATCH | {"checkpointing": "every", "optimizer": "sgd"},
}
steps = [change | {"set_to_none": False} for _, change in PUBLISHED.values()] + list(ours.values())
recipes = [Recipe("vit-l-16", **{"optimizer": "adam"} | step) for step in steps]
vit = dict(zip([*PUBLISHED, *ours], planned(recipes), strict=True))
print(f"{len(recipes)} plans; making them took {sum(each.seconds for each in vit.values()):.0f} s")

# %% name="vit_logs"
errors, lines = {}, [["", "batch", "logged GB", "planned, reserved GB", "off by"]]
for name, (said, _) in PUBLISHED.items():
    least, most = (b / 1e9 for b in vit[name].reserved_bytes)
    errors[name] = 0.0 if least <= said <= most else (least if said < least else most) / said - 1
    batch = vit[name].recipe.micro_batch_size * vit[name].recipe.gradient_accumulation_steps
    lines.append([name, f"{batch}", f"{said:.2f}", f"{least:.2f} to {most:.2f}", f"{errors[name]:.0%}"])
print(text_table(lines))
logged = [said for said, _ in PUBLISHED.values()]
vit_guess.reveal(logged[-1])
print(f"first log / last log: {logged[0] / logged[-1]:.1f}x")
print(f"of this, a factor of {logged[2] / logged[3]:.2f} is a batch of 16 instead of 64: a different training run")
claims.record("C12", "20x less peak memory", "ViT-L/16, the published logs", logged[0] / logged[-1], "times", *TWENTY)
claims.record("C12", "the same run: one effective batch", "ViT-L/16, the published logs", 64 / 16, "x the batch", 1, 1)
off = 100 * max(errors.values(), key=abs)
claims.record("C12", "the planner follows the logs", "6 logs, the worst of them", off, "% off", -20, 20)

# %% name="vit_ours"
began_with = vit["FP32, batch 64, Adam"]
top = began_with.peak_allocated_bytes
lines = [["64 images in every update, planned", "GB allocated", "less", "peak in"]]
for name in ours:
    peak = vit[name].peak_allocated_bytes
    lines.append([name, f"{peak / 1e9:.2f}", f"{top / peak:.1f}x", vit[name].peak_at.partition(":")[0]])
print(text_table(lines))
factor = top / vit["and SGD"].peak_allocated_bytes
claims.record("C12", "20x less peak memory", "ViT-L/16, batch kept at 64, planned", factor, "times", *TWENTY)
(first_least, first_most), (last_least, last_most) = began_with.reserved_bytes, vit["and SGD"].reserved_bytes
print(f"in reserved memory, as in the logs: {first_least / last_most:.0f}x to {first_most / last_least:.0f}x")
weights = 2 * began_with.parameters
print(f"{began_with.parameters / 1e6:.0f} million parameters: in BF16 with gradients {2 * weights / 1e9:.2f} GB")

# %% [markdown] name="vit_explained"
# The logs stay below 20 times, and their fourth rung cuts the batch from 64 to 16: that is a different training run, with four times the updates an epoch. Accumulation then goes up to 16, never back to 64. Keeping the batch at 64 costs no more memory, because accumulation does not care how many micro-batches there are; it costs time. Checkpointing, which these six do not use, reaches 20 after all, but by another measure: that ratio is of allocated memory. The logs are of reserved memory, where the planner gives a range.
#
# Look at what checkpointing takes in the second line: nearly nothing. With Adam the optimizer step needs almost as much as the backward pass, and by then activations are gone. SGD, which comes next, seems to take more than half. In the logs SGD came without checkpointing and still took about half (the last two rows of the table above), and checkpointing would have had something to take after it. Again, the order decides.
#
# Where the planner is off, the software differs: the logs are of PyTorch 2.1, whose Adam held two temporary copies where today's holds one.
#
# Why does ViT-L stop where it does, and our small model so much later? Because of the weights: in BF16, with their gradients, they are most of what is left, before the first image arrives. *A model with many weights and a small batch has a short ladder.*
#
# ## 5 · A recipe guide, row by row
#
# "Which model can I train on my GPU?" Guides answer with one line a card. The lines below are collected from several guides, all with BF16, checkpointing and accumulation. The planner can test each line. Our reading is charitable: *pure* BF16, including weights and optimizer state; one sequence of 1,024 tokens; AdamW.
#
# The rule: a line **holds** if the card has room for all that the allocator may *reserve*. If there is room for the tensors but perhaps not for the reserve, the line is **at the edge**: it may run, or end in an out-of-memory error after an hour. So is a line with less than 0.2 GiB to spare: the CUDA context alone varies by more.

# %% [markdown] name="guide_guess_text"
# **Predict.** Take the first row: "8 GB: about 1B", which here is Llama-3.2-1B, with 1.24 billion parameters and a vocabulary of 128,256 words. All of it is trained, in BF16 with AdamW, on 1,024 tokens. How many GiB is the peak?

# %% name="guess_guide"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 1.24e9 * 8 / GiB + 0.5  # weight, gradient, two moments of 2 bytes; and some activations
### END GUESS
guide_guess = Prediction("Peak of a whole 1B in BF16 with AdamW", my_guess, "GiB")

# %% name="guide_rows"
plain = {
    "precision": "bf16",
    "checkpointing": "every",
    "gradient_accumulation_steps": 2,
    "seq": 1024,
    "optimizer_impl": "fused",
}
lean_step = {
    "gradient_accumulation_steps": 1,
    "step_in_backward": True,
    "optimizer": "adamw-8bit",
    "optimizer_impl": "foreach",
}
SIZES = {
    "8 GB": "rtx-3060-12gb",
    "16 GB": "v100-16gb",
    "24 GB": "rtx-4090-24gb",
    "40 GB": "a100-40gb",
    "80 GB": "h100-80gb",
}
GUIDE = {  # the guide's line -> (card, recipe)
    "8 GB: ~1B": ("8 GB", Recipe("llama-3.2-1b", **plain)),
    "16 GB: ~3B": ("16 GB", Recipe("llama-3.2-3b", **plain)),
    "24 GB: ~7B, LoRA r=8 to 16": ("24 GB", Recipe("llama-2-7b", lora_rank=16, **plain)),
    "40 GB: ~13B, LoRA r=32": ("40 GB", Recipe("llama-2-13b", lora_rank=32, **plain)),
    "80 GB: 7B whole": ("80 GB", Recipe("llama-2-7b", **plain)),
    "80 GB: 7B whole, FP32 weights": ("80 GB", Recipe("llama-2-7b", **plain | {"precision": "bf16-amp"})),
    "8 x 80 GB: 70B, ZeRO-3 / FSDP": ("80 GB", Recipe("llama-2-70b", ranks=8, shard="zero3", **plain)),
}

# %% name="guide_repaired"
fp32_weights = plain | {"precision": "bf16-amp"}
REPAIRED = {  # what to do where a line does not hold
    "8 GB: 1B, 8-bit AdamW in the backward pass": ("8 GB", Recipe("llama-3.2-1b", **plain | lean_step)),
    "8 GB: 1B, LoRA r=16": ("8 GB", Recipe("llama-3.2-1b", lora_rank=16, **plain)),
    "16 GB: 3B, 8-bit AdamW in the backward pass": ("16 GB", Recipe("llama-3.2-3b", **plain | lean_step)),
    "16 GB: 3B, LoRA r=16": ("16 GB", Recipe("llama-3.2-3b", lora_rank=16, **plain)),
    "16 GB, no BF16: 3B, QLoRA r=16, FP16": (
        "16 GB",
        Recipe("llama-3.2-3b", lora_rank=16, quantize="nf4-dq", **plain | {"precision": "fp16-amp"}),
    ),
    "80 GB: 7B, FP32 weights, offload": ("80 GB", Recipe("llama-2-7b", offload="optimizer", **fp32_weights)),
    "16 x 80 GB: 70B, ZeRO-3 / FSDP": ("80 GB", Recipe("llama-2-70b", ranks=16, shard="zero3", **plain)),
}


def room(card):
    """Bytes that PyTorch's allocator can have on a card sold as having so many GB."""
    gpu = find_gpu(SIZES[card])
    sold = float(gpu.name.rsplit("-", 1)[1].removesuffix("gb"))
    return gpu.total * float(card.split()[0]) / sold - GiB / 2  # half a GiB: the CUDA context


# %% [markdown] name="guide_plans"
# The first line is planned here and now; the others, which can take minutes, were planned in advance.

# %% name="guide"
whole_1b = plan(GUIDE["8 GB: ~1B"][1])
print(f"planned in {whole_1b.seconds:.0f} s")
guide_guess.reveal(whole_1b.peak_allocated_bytes / GiB)
logits = 4 * 1024 * 128256
beside = whole_1b.peak_allocated_bytes - 8 * whole_1b.parameters
print(f"peak in {whole_1b.peak_at}")
print(f"8 bytes for each of {whole_1b.parameters:,} parameters, and {beside / GiB:.2f} GiB")
print(f"logits of 1,024 tokens in FP32: {logits / GiB:.2f} GiB, so the rest is {beside / logits:.1f} times these")

# %% name="guide_table"
needs = dict(zip(GUIDE | REPAIRED, planned([recipe for _, recipe in (GUIDE | REPAIRED).values()]), strict=True))
off = needs["8 GB: ~1B"].peak_allocated_bytes / whole_1b.peak_allocated_bytes - 1
print(f"the stored plan of the first line differs from the one made here by {off:.1%}\n")


def verdict(need, card):
    most, has = need.reserved_bytes[1], room(card)
    if abs(has - most) < 0.2 * GiB or need.peak_allocated_bytes <= has < most:
        return "at the edge"
    return "fits" if most < has else "does not fit"


rows_shown = [["GiB", "allocated", "in the", "reserved up to", "room", "to spare", "verdict"]]
for line, (card, _) in (GUIDE | REPAIRED).items():
    if line == next(iter(REPAIRED)):
        rows_shown.append(["what may work instead", *[""] * 6])
    need, has = needs[line], room(card)
    most, phase = need.reserved_bytes[1], need.peak_at.partition(":")[0]
    allocated, *rest = (f"{n / GiB:.2f}" for n in (need.peak_allocated_bytes, most, has, has - most))
    rows_shown.append([line, allocated, phase, *rest, verdict(need, card)])
print(text_table(rows_shown))
tested_lines = GUIDE | {line: REPAIRED[line] for line in ("8 GB: 1B, 8-bit AdamW in the backward pass",)}
for line, (card, recipe) in tested_lines.items():
    most = (room(card) - 0.2 * GiB) / GiB
    claims.record(
        "T26", line, f"{recipe.model}, planned, reserved", needs[line].reserved_bytes[1] / GiB, "GiB", 0, most
    )

# %% [markdown] name="guide_explained"
# The LoRA lines hold, with room to spare: a card of 24 GB takes 7B (planned with the larger rank), because nearly all of it is the frozen weights. Full training in pure BF16 with AdamW takes **four times the weights** (weights, gradients and two moments, 8 bytes a parameter), so 1B does not fit into 8 GB, nor 3B into 16 GB. Those lines are right for *adapters*. On top of the 8 bytes, the 1B has its large vocabulary: the peak is in the backward pass of the loss, with three FP32 tensors the size of the logits. With an 8-bit optimizer that steps in the backward pass (which rules out accumulation, section 1) both come down to the edge. There is room for the tensors; the printed margins say whether there is also room for what the allocator reserves. A desktop that draws its windows on the same card is enough to tip the balance.
#
# "80 GB: 7B whole" holds only in pure BF16, where small updates are lost ([[number_formats]]). With FP32 weights it does not, unless the optimizer state moves to the host: then it fits, with a few GiB to spare. 70B on 8 cards is at the edge with one sequence a rank; on 16 cards it fits.
#
# > **Note:** the common 16 GB cards, T4 and V100, **have no BF16**: it is emulated in FP32, at an eighth of the speed. The plans of the "16 GB" lines are for a card that has it (RTX 4080, A4000). On a T4 or V100 use FP16 autocast with a scaler ([[mixed_precision]]); pure FP16 weights do not train. The line "no BF16" is the one that fits.
#
# ## 6 · The summary table
#
# Overviews of these techniques like to end with a table: so many times less memory, so many times the speed. This one is collected from several. Memory comes first, planned: GPT-2 (124 million parameters), 8 sequences of 1,024 tokens per step and rank, AdamW. Each line is compared with the line it builds on.

# %% name="summary_plans"
job = {"micro_batch_size": 8, "seq": 1024, "precision": "bf16-amp"}
LINES = {  # name -> (recipe, compared with, said about memory, from, to)
    "FP32": (Recipe("gpt2", **job | {"precision": "fp32"}), None),
    "mixed precision": (Recipe("gpt2", **job), "FP32", "2x", 1.7, 2.3),
    "+ checkpointing": (Recipe("gpt2", checkpointing="every", **job), "FP32", "4x", 3.4, 4.6),
    "a batch of 1": (Recipe("gpt2", **job | {"micro_batch_size": 1}), None),
    "+ accumulation, 8 x 1": (
        Recipe("gpt2", **job | {"micro_batch_size": 1, "gradient_accumulation_steps": 8}),
        "a batch of 1",
        "1x",
        0.85,
        1.15,
    ),
    "DDP, 8 ranks": (Recipe("gpt2", ranks=8, **job), "mixed precision", "1x", 0.85, 1.15),
    "FSDP, 8 ranks": (Recipe("gpt2", ranks=8, shard="zero3", **job), "mixed precision", "8x", 6.8, 9.2),
    "offloaded optimizer": (Recipe("gpt2", offload="optimizer", **job), "mixed precision", "less", 1.05, math.inf),
}
plans = dict(zip(LINES, planned([recipe for recipe, *_ in LINES.values()]), strict=True))
lines = [["planned", "GiB a rank", "less", "said", "compared with"]]
for name, (_, other, *said) in LINES.items():
    size = plans[name].peak_allocated_bytes
    if other is None:
        lines.append([name, f"{size / GiB:.2f}", "", "", ""])
        continue
    less, (words, *between) = plans[other].peak_allocated_bytes / size, said
    lines.append([name, f"{size / GiB:.2f}", f"{less:.2f}x", words, other])
    claims.record("T27", f"{name}: memory {words}", "GPT-2, 8 x 1,024 tokens, planned", less, "times less", *between)
print(text_table(lines))

# %% [markdown] name="memory_explained"
# - **Mixed precision** does not halve this model: its peak is the FP32 logits (50,257 wide), which autocast leaves alone. A factor without its model means nothing.
# - **Accumulation** runs eight sequences in the memory of one, or a little more: the gradients of earlier pieces wait while the next one runs.
# - **DDP** holds slightly *more* than one rank: its buckets. **FSDP** divides weights, gradients and state, not activations. That is nowhere near 8 here, but near 8 where weights are nearly everything (a large model, a small batch, checkpointing).
# - **Offloading** the optimizer takes two numbers a parameter off the GPU. That is little where activations make up the peak.
#
# ### Speed
#
# On one device, speed was measured above: the steps of the ladder, in turn. Between devices there is a wire. So we start with two ranks on this machine, all three ways side by side, every rank with its own batch. In "alone" one rank works while the other waits.


# %% name="two_ranks"
def shared_out(kind, where):
    """Return the model and its optimizer, distributed in one of three ways."""
    model = make_model(base, 0, where)
    if kind == "DDP":
        model = DistributedDataParallel(model)
    if kind == "FSDP":
        mesh = init_device_mesh(where.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, make_optimizer(base, model)


# %% name="two_ranks_turns"
def in_turns(rounds=7):
    """Return, for each way, the seconds of each step and the peak of the second one."""
    torch.set_num_threads(1)  # a rank is one worker: alone it must not use the other's core
    ways = {kind: shared_out(kind, rank_device()) for kind in ("alone", "DDP", "FSDP")}
    seconds, peaks = {kind: [] for kind in ways}, {}
    for turn in range(rounds):
        for kind, (model, optimizer) in ways.items():
            dist.barrier()
            if kind == "alone" and dist.get_rank() > 0:
                continue
            began = time.perf_counter()
            if turn == 1:  # measured, not timed
                with MemoryMeter(model, optimizer) as meter:
                    train_step(base, model, optimizer, rows)
                peaks[kind] = meter.peak_bytes
                continue
            train_step(base, model, optimizer, rows)
            seconds[kind].append(time.perf_counter() - began)
    return {kind: seconds[kind][1:] for kind in seconds}, peaks


# %% name="two_ranks_run"
seconds, held = run_ranks(in_turns, 2, timeout=300, measure=False).results[0]
for kind in ("DDP", "FSDP"):
    faster = 2 * statistics.median(a / b for a, b in zip(seconds["alone"], seconds[kind], strict=True))
    less = held["alone"] / held[kind]
    print(f"{kind:5} 2 ranks: {faster:.2f}x the images a second, {less:.2f}x less memory a rank")
    two = f"our ViT, 2 ranks on this {rank_device().type}"
    claims.record("T27", f"{kind}, 2 ranks: speed 2x", two, faster, "times", 1.8, 2.2)
    claims.record(
        "T27",
        f"{kind}, 2 ranks: memory {'2x' if kind == 'FSDP' else '1x'}",
        two,
        less,
        "times less",
        *((1.7, 2.3) if kind == "FSDP" else (0.85, 1.15)),
    )

# %% [markdown] name="wires_text"
# For eight GPUs we have no measurement, so we use a bound that *includes the wires*: the roofline time of the plan's step, plus what a rank sends at the rate of the wire, with nothing overlapped. An A100's NVLink carries 300 GB/s each way, PCIe 4.0 32 GB/s. The next cell prints the other two figures. Offloading sends gradients to the host and weights back over PCIe, in every update.
#
# **Predict.** Eight ranks with DDP over NVLink process how many times as many sequences a second as one rank?

# %% name="guess_wires"
one = plans["mixed precision"].roofline_seconds["a100-80gb"]
flops, sent = plans["mixed precision"].flops, plans["DDP, 8 ranks"].sent_bytes
print(
    f"one rank: {flops / 1e12:.2f} TFLOP a step at 312 TFLOP/s (BF16): {one * 1e3:.1f} ms; DDP sends {sent / 1e6:,.0f} MB"
)
my_guess = None  # times the sequences a second, 8 ranks, NVLink
### BEGIN GUESS
my_guess = 8  # as every table says
### END GUESS
wires_guess = Prediction("DDP on 8 ranks over NVLink / one rank, nothing overlapped", my_guess, "times")

# %% name="wires"
WIRES = {"NVLink": 300e9, "PCIe": 32e9}  # bytes/s each way, data sheets
lines, faster = [["", "sent a step", *WIRES, "said"]], {}
for name, said in {"DDP, 8 ranks": "8x", "FSDP, 8 ranks": "8x", "offloaded optimizer": "slower"}.items():
    several = plans[name]
    sent = several.sent_bytes or 2 * 4 * several.trained  # offloaded: FP32 gradients out, FP32 weights back
    for wire, rate in WIRES.items():
        faster[name, wire] = several.recipe.ranks * one / (several.roofline_seconds["a100-80gb"] + sent / rate)
    speeds = [f"{faster[name, w]:.2f}x" if several.sent_bytes or w == "PCIe" else "-" for w in WIRES]
    lines.append([name, human_bytes(sent), *speeds, said])
wires_guess.reveal(faster["DDP, 8 ranks", "NVLink"])
print(text_table(lines))
for name in ("DDP, 8 ranks", "FSDP, 8 ranks"):
    for wire in WIRES:
        about = f"GPT-2, A100, planned with {wire}"
        claims.record("T27", f"{name}: speed 8x", about, faster[name, wire], "times", 7.2, 8.8)
slow = faster["offloaded optimizer", "PCIe"]
claims.record("T27", "offloaded optimizer: slower", "GPT-2, A100, planned with PCIe", slow, "times", 0, 0.95)

# %% name="one_device"
ratios = {  # in the ladder: a rung against the one before it, round by round
    "mixed precision: speed 2x": (1, 1.8, 2.2),
    "+ accumulation: speed 1x": (2, 0.9, 1.1),
    "+ checkpointing: speed 0.7x": (3, 0.63, 0.77),
}
for said, (rung, *between) in ratios.items():
    ratio, least, most = times(paces[LADDER[rung].name], paces[LADDER[rung - 1].name])
    print(f"{said:30} measured {ratio:.2f}x on this {device.type} ({least:.2f} to {most:.2f} in 5 rounds)")
    claims.record("T27", said, f"our ViT on this {device.type}", ratio, "times", *between)
less = first / peaks[LADDER[1].name]
claims.record("T27", "mixed precision: memory 2x", f"our ViT on this {device.type}", less, "times less", 1.7, 2.3)

# %% [markdown] name="summary_explained"
# - **On one device** the table's figures are those of some GPU with some model. 16 bits are fast if the arithmetic units support them and the matrices are large enough to fill them. Small micro-batches cost speed if they leave the device idle. This model is small, so accumulation is expensive; on a GPU that a micro-batch of 1 fills, it is nearly free.
# - **Checkpointing** costs what it recomputes: a third of the arithmetic, says the textbook. In small micro-batches it costs more (section 2): with small operations, their number counts.
# - **DDP and FSDP** give N times, less what the wire costs. It is a coincidence that both send the same here. DDP all-reduces FP32 gradients, twice 4 bytes a parameter, of which a ring of 8 ranks sends 7/8 (a rank keeps its own part). FSDP gathers weights in BF16 for the forward and again for the backward pass (2 + 2) and reduce-scatters FP32 gradients (4). In pure FP32 it would send half as much again. Real arithmetic is slower than the data sheet, and communication overlaps with it, so real factors are better than this bound.
# - **Two ranks on one machine** share its memory and caches, and gloo copies through the processor: less than 2. FSDP communicates for every block, and this model's blocks are small. Nor does it divide the memory here, which is nearly all activations.
# - **Offloading** is slower because of what crosses PCIe in every update, and because of the host's AdamW, which the bound leaves out. More sequences an update make it cheaper.
#
# In such a table, believe the row that was measured on your model.

# %% [markdown] name="chooser_text"
# ## 7 · Choose a recipe
#
# Now the other way round: GPU, model and data in, recipes out. Recipes that fit come first, starting with the one that has the *least to do*; then those that do not fit, the smallest first. "Times the least" compares roofline seconds, from arithmetic and memory traffic at the data sheet's rates. That is a lower bound: it can rank recipes, but not forecast a step. A micro-batch is one sequence, so more sequences in an update cost time but no memory; the optimizer runs once an update.
#
# The plans were made in advance, by `python -m helpers chooser`, so that the figure can answer at once. Three questions:
#
# 1. Which is the smallest of these cards that can train all of 7B, and how?
# 2. Which recipe does the longer sequence push off a card of 24 GB (7B)?
# 3. On a T4 (7B), what comes first, and why is the only other recipe that fits so far behind?
#
# <details><summary>Answers</summary>
#
# 1. 40 GB (`a100-40gb`), with BF16 weights, SGD and checkpointing. With AdamW it takes 80 GB; with 8-bit AdamW and 512 tokens it is at the edge of 40 GB.
# 2. LoRA without checkpointing: its activations fit at 512 tokens, but not at 2,048. LoRA with checkpointing stays.
# 3. QLoRA under FP16 autocast. The T4 has no BF16, so QLoRA in BF16 is computed in FP32, at an eighth of the rate. The figure says "BF16 emulated".
#
# </details>


# %% name="chooser_figure"
def chosen(gpu, model, tokens, sequences):
    choices = choose(gpu, model, tokens, sequences)
    least = choices[0].seconds
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.add_subplot()
    most = max(choices[0].room_bytes, *(c.reserved_bytes for c in choices)) / GiB
    for place, c in enumerate(choices):
        axes.barh(
            place, c.reserved_bytes / GiB, color="white", edgecolor=COLOURS[7], label="" if place else "reserved, up to"
        )
        axes.barh(place, c.peak_bytes / GiB, color=COLOURS[2 if c.fits else 4], label="")
        words = f"{c.seconds / least:.2f} x the least" if c.fits else "does not fit"
        words = "at the edge" if c.peak_bytes <= c.room_bytes < c.reserved_bytes else words
        words += ", BF16 emulated" if c.fits and c.emulated else ""
        axes.text(c.reserved_bytes / GiB + 0.01 * most, place, words, va="center", fontsize=8, backgroundcolor="white")
    axes.axvline(choices[0].room_bytes / GiB, color="black", ls="--", label=f"room on {gpu}")
    axes.set_yticks(range(len(choices)), [c.name for c in choices])
    axes.invert_yaxis()
    title = f"{model}, {sequences} x {tokens} tokens per update"
    axes.set(title=title, xlabel="GiB at the peak (filled: allocated)", xlim=(0, 1.4 * most))
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


# %% name="chooser"
explore(
    chosen,
    "Thirteen recipes for a model with their peaks, ranked: those that fit the GPU first, with the least to do on top.",
    gpu=("rtx-4090-24gb", ("rtx-3060-12gb", "t4-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")),
    model=("llama-2-7b", ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-2-13b")),
    tokens=(2048, (512, 2048)),
    sequences=(16, (1, 4, 16, 64)),
)
began = time.perf_counter()
best = choose("rtx-4090-24gb", "llama-2-7b", 2048, 16)[0]
print(f"on top: {best.name} ({best.recipe.summary})\nanswered in {time.perf_counter() - began:.3f} s")

# %% [markdown] name="script_text"
# You can take your choice away as a program: one file that runs as it is, alone or under `torchrun`. It contains what the recipe asks for and nothing else. `--tiny` tries it with a small random model on any machine; `--weights` and `--text` make it the real thing. It keeps a checkpoint every 100 steps (`--checkpoint-every` says otherwise); if it is killed, the same command with `--resume` goes on from the newest. `style="trainer"` writes it for Hugging Face's Trainer. (A 4-bit base is refused: it has to be loaded, as [[lora]] shows.)
#
# Read it from the bottom up: `main` is the training loop, and it calls everything above it. Which line is checkpointing, and which is accumulation? Where would a second GPU change anything?

# %% name="script"
print(training_script(best.recipe))
# open("train.py", "w").write(training_script(best.recipe))    # to keep it

# %% [markdown] name="lean_text"
# ## 8 · Your turn: no room for gradients
#
# Section 1 folded gradients into a mean. Here the loss has gaps, the update has weight decay, and part of the model is frozen. So think about what is done once an *update*, what once a *piece*, and what to divide by.
#
# **Contract.** `lean_update(model, means, x, y, lr)` makes one update, in place, from the *whole* batch.
#
# - `model` is an `nn.Sequential` of 9 layers in FP32. The parameters of its first layer are frozen (`requires_grad` is False) and stay as they are. `x` has shape (130, 64); `y` (130,) holds classes, and **−100 in rows that do not count**. The loss is the mean cross entropy over the rows that do. How many do differs from piece to piece, and a piece may have none.
# - `means` maps each trained parameter to its running mean. With *g* = gradient of the loss + **0.01 · p** (L2 decay, with the weights before the update): mean ← 0.9 · mean + 0.1 · *g*, then p ← p − lr · sign(mean). Both change in place.
# - On top of weights, means and the batch, the peak may take **100 KiB**. All gradients together are larger than that; so are the activations of the batch, and so is a copy of the means.
# - It is called again and again: afterwards no gradient and no hook is left.
#
# <details><summary>Hint</summary>
#
# `F.cross_entropy` skips rows of −100 itself. With `reduction="sum"` the loss of a piece without rows is 0; with the default, a mean over no rows, it is NaN.
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

# %% [markdown] name="report_text"
# ## 9 · Your lab report
#
# Every table of claims that this course's notebooks showed you was saved in one small file on this machine (`.progress/progress.json`; with `TAS_PROGRESS=off` in the environment nothing is saved). It is sent nowhere. Here it is as one page: your ladder, your floor and your recipe on top, then the claims of every lab. It certifies what *you* measured, on your device; change a rung and run again, and it says so. `save` writes the page as HTML.

# %% name="claims"
claims

# %% name="report"
sections = {
    f"The ladder: peak {first / peaks[last]:.1f} times lower, {lost:+.2f} points": table,
    f"The floor: {human_bytes(final.peak_bytes)}, byte by byte": floor,
    "The recipe chosen": f"{best.name} ({best.recipe.summary}): {human_bytes(best.peak_bytes)} planned at the peak",
}
report = lab_report(claims, sections)
# report.save("lab_report.html")    # open it in a browser
report

# %% [markdown] name="recap"
# ## Recap
#
# - A forty times lower peak with the same batch, and the accuracy held on average, is possible where activations are nearly all of the peak. The price is time.
# - Ask of each rung what it took, what it added and what it moved. The order decides what a rung seems to be worth. Only the product counts, and that depends on how wasteful rung 0 was.
# - You cannot combine accumulation and a step in the backward pass as they are. But if the optimizer state is linear in the gradient, it can be the accumulator.
# - The floor has names: bytes a weight, bytes of state, one block of one micro-batch, scratch; and a random generator's state that nobody asked for.
# - To test for half a point of accuracy you need pairs of runs, rates chosen without the test images, and an interval.
# - Guides and tables hold for the model, the batch and the number format they were made with. Ask the planner.
#
# **Sources.** Bernstein et al. 2018, *signSGD*; Zhang et al. 2023, *Adam Accumulation to Reduce Memory Footprints* (the same idea for Adam, which it has to change); [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim), logs; PyTorch tutorial, *How to save memory by fusing the optimizer step into the backward pass*; Rajbhandari et al. 2020, *ZeRO*; Hu et al. 2021, *LoRA*.
