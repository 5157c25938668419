# %% [markdown] name="title"
# # 15 · Capstone: one model, one batch, forty times less
#
# **Stack what the labs taught, one change at a time, on one model with one effective batch, until the peak is a fortieth and the accuracy is still there; then name the bytes that are left.**
#
# | | |
# |---|---|
# | After this you can | stack techniques and say what each one took from which tenant; name the floor that is left byte by byte; test a recipe guide with the planner; choose a recipe for a GPU and export it as a script |
# | Time | 90 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs 01 to 05 and 12; the others help |
# | Syllabus | C12, T26, T27 |

# %% name="setup" setup=true
import functools
import math
import os
import statistics
import time
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
    check,
    choose,
    compare,
    device_name,
    digits,
    explore,
    find_gpu,
    human_bytes,
    lab_report,
    peak_table,
    pick_device,
    plan_deep,
    plan_many,
    run_ranks,
    show,
    training_script,
)

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="rules_text"
# ## 1 · The rules
#
# An article promises that its techniques together cut peak memory up to 20 times "with the same accuracy". A ladder of that kind is easy to win by cheating: a smaller batch is another training run, and a peak that was read at another moment is another figure. So, before the first rung:
#
# - **One model**: a vision transformer of four blocks on handwritten digits, started from the same weights.
# - **One effective batch**: every update sees the same 512 images in the same order, and every rung sees the same number of them.
# - **One figure**: the peak of a whole training step, in bytes, from the meter of lab 01, parameters and optimizer state included.
# - **One accuracy to hold**: on 773 images that no rung trains on. One of them is 0.13 points, so a single run says little about 0.5 points: each rung trains from two seeds, and the mean counts.
#
# The images stay with NumPy, as a data loader would keep them; the device gets what a micro-batch needs.

# %% name="task"
BATCH, STEPS, SEEDS = 512, 40, (0, 1)
data = digits()
images = torch.cat([data.train_x, data.test_x]).numpy()
labels = torch.cat([data.train_y, data.test_y]).numpy()
TRAINED = 1024  # two batches an epoch
print(f"{TRAINED:,} images to train on, {len(images) - TRAINED} to test on, {images[0].size} pixels each")


@dataclass(frozen=True)
class Rung:
    """One way to take the same training step."""

    name: str
    autocast: bool = False
    micro: int = BATCH  # images in a micro-batch
    checkpointing: bool = False
    optimizer: str = "adamw"
    fold: bool = False  # gradients go into the optimizer's state during the backward pass
    dtype: torch.dtype = torch.float32  # of weights and optimizer state


def make_model(rung, seed, where):
    torch.manual_seed(seed)
    model = ViT(side=8, patch=4, layers=4, width=32, heads=4, inner=128).to(where, rung.dtype)
    if rung.checkpointing:
        for block in model.blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return model


phi = sum(p.numel() for p in make_model(Rung(""), 0, "cpu").parameters())
print(f"{phi:,} parameters")

# %% [markdown] name="optimizer_text"
# ### A lean optimizer that can take its gradients early
#
# Adam keeps two numbers a parameter. **Signum** (Bernstein et al. 2018) keeps one, a running mean of gradients, and steps by its sign: like Adam, it moves every weight by about the learning rate.
#
# It has a second virtue. Lab 04 keeps a gradient for every parameter while micro-batches add up. The optimizer step in the backward pass would free each gradient at once, but a step after every micro-batch is another training run: **the two do not go together as they are**. What does go together: the running mean is *linear* in the gradient,
#
# *m* ← β·*m* + (1 − β)·(*g*₁ + *g*₂ + … + *g*ₙ),
#
# so each piece *g*ᵢ can be added to *m* the moment it exists, in a hook, and be freed. Weights move once, after the last micro-batch. The state of the optimizer *is* the accumulator. (For Adam's second moment this does not hold: the square of a sum is not the sum of squares.)
#
# In 16 bits small additions are lost (lab 02), so additions to BF16 tensors round **stochastically**.


# %% name="optimizer"
def add(target, change):
    """Add FP32 `change` to `target` in place; into BF16 with stochastic rounding."""
    if target.dtype == torch.float32:
        target.add_(change)
        return
    bits = target.float().add_(change).view(torch.int32)
    bits.add_(torch.randint_like(bits, 2**16)).bitwise_and_(-(2**16))
    target.copy_(bits.view(torch.float32))


class Signum(torch.optim.Optimizer):
    """Steps by the sign of a running mean. A step is: fade, take each gradient (in pieces, if you like), step."""

    def __init__(self, parameters, lr, momentum=0.9):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        for p in self.everyone():
            self.state[p]["mean"] = torch.zeros_like(p)

    def everyone(self):
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def fade(self):
        for p in self.everyone():
            self.state[p]["mean"].mul_(self.defaults["momentum"])

    @torch.no_grad()
    def take(self, p):
        add(self.state[p]["mean"], p.grad.float() * (1 - self.defaults["momentum"]))
        p.grad = None

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                add(p, self.state[p]["mean"].sign().float() * -group["lr"])


RATES = {"adamw": 8e-3, "signum": 4e-3}


def make_optimizer(rung, model):
    if rung.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=RATES["adamw"])
    optimizer = Signum(model.parameters(), lr=RATES["signum"])
    if rung.fold:
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(optimizer.take)
    return optimizer


def gradients(rung, model, rows):
    """Run forward and backward over the images `rows`, a micro-batch at a time."""
    where = next(model.parameters()).device
    for part in np.split(rows, range(rung.micro, len(rows), rung.micro)):
        x, y = (torch.from_numpy(a[part]).to(where) for a in (images, labels))
        with torch.autocast(where.type, torch.bfloat16, enabled=rung.autocast):
            logits = model(x.to(rung.dtype))
        (F.cross_entropy(logits.float(), y, reduction="sum") / len(rows)).backward()


def train_step(rung, model, optimizer, rows):
    if rung.fold:
        optimizer.fade()
    gradients(rung, model, rows)
    if rung.optimizer == "signum" and not rung.fold:
        optimizer.fade()
        for p in model.parameters():
            optimizer.take(p)
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown] name="same_text"
# ### Equivalence before memory
#
# In FP32 the rungs that claim "the same gradient" must have it: accumulated, checkpointed, and folded into the momentum. The last line is the control that must fail: a step after *every* micro-batch.

# %% name="same"
base = Rung("0 FP32, AdamW")
rows = np.arange(BATCH)


def weights_after(rung, steps=2, every_piece=False):
    """Return all weights after some steps; `every_piece` steps after each micro-batch."""
    model = make_model(rung, 0, device)
    optimizer = make_optimizer(rung, model)
    for _ in range(steps):
        for part in np.split(rows, len(rows) // rung.micro) if every_piece else [rows]:
            train_step(rung, model, optimizer, part)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


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
    print(f"{name:28} gradient differs by {off:.1e} of its length")
    claims.record("T8", "the gradient is that of the whole batch", name, off.item(), "relative", 0, 1e-5)
lean = replace(base, micro=32, checkpointing=True, optimizer="signum")
start, after = weights_after(lean, 0), weights_after(lean)
for name, other in {
    "folded into the momentum": weights_after(replace(lean, fold=True)),
    "a step every micro-batch": weights_after(replace(lean, fold=True), every_piece=True),
}.items():
    off = (other - after).norm() / (after - start).norm()
    print(f"{name:28} weights differ by  {off:.1e} of the way they went")
    if "folded" in name:
        claims.record(
            "T8", "folding does not change the update", "Signum, 2 steps, FP32", off.item(), "relative", 0, 0.05
        )

# %% [markdown] name="same_explained"
# Folded sums are added in another order, so a last bit may differ, and where a mean is almost zero its *sign* may; everything else is equal. A step for every micro-batch goes somewhere else altogether.
#
# ## 2 · The ladder
#
# Each rung changes one thing and keeps all others.

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


def measured(rung):
    """Return the meter of one whole training step, after one that does not count."""
    model = make_model(rung, 0, device)
    optimizer = make_optimizer(rung, model)
    train_step(rung, model, optimizer, rows)
    with MemoryMeter(model, optimizer) as meter:
        train_step(rung, model, optimizer, rows)
    return meter


meters = {base.name: measured(base)}
first = meters[base.name].peak_bytes
print(meters[base.name])
print(peak_table(meters[base.name], 5))

# %% [markdown] name="guess_text"
# Nearly all of it is activations: 512 images × 5 tokens × 4 blocks. **Predict** two rungs before you see them. By what factor does BF16 autocast alone lower the peak? And when all seven rungs are stacked, what is the factor?

# %% name="guess"
my_guess = None  # times less, BF16 autocast alone
### BEGIN GUESS
my_guess = 2  # half the bytes a number; what stays in FP32 is left out: too high
### END GUESS
autocast_guess = Prediction("FP32 peak / BF16 autocast peak", my_guess, "times")
my_guess = None  # times less, all rungs
### BEGIN GUESS
my_guess = 20  # what the article promises
### END GUESS
ladder_guess = Prediction("FP32 peak / peak of the last rung", my_guess, "times")

# %% name="climb"
for rung in LADDER[1:]:
    meters[rung.name] = measured(rung)
peaks = {name: meter.peak_bytes for name, meter in meters.items()}
last = LADDER[-1].name
autocast_guess.reveal(first / peaks[LADDER[1].name])
ladder_guess.reveal(first / peaks[last])
shown = [t for t in TENANTS if any(m.at_peak[t] >= KiB for m in meters.values())]
print(f"\n{'KiB at the peak':26}" + "".join(f"{t.split()[0]:>12}" for t in shown) + f"{'PEAK':>10}{'less':>8}")
for name, meter in meters.items():
    parts = "".join(f"{meter.at_peak[t] / KiB:>12,.0f}" for t in shown)
    print(f"{name:26}{parts}{meter.peak_bytes / KiB:>10,.0f}{first / meter.peak_bytes:>7.1f}x")

# %% [markdown] name="climb_explained"
# Read the table by columns: every rung has its tenant, and leaves the others alone.
#
# - **Autocast** halves most activations and leaves weights, gradients and state; it adds a tenant, the 16-bit copies of weights. Less than 2.
# - **Micro-batches** take the most by far, and bring gradients back: they now live through the whole step.
# - **Checkpointing** looks modest, because little was left for it to take. *The order of the rungs decides what each of them seems to be worth.* Only the product counts.
# - From rung 3 on the static part is in front. **Signum** takes a state tensor, **folding** takes the gradients, **BF16** takes half of what remains, and the copies.
#
# On a GPU the workspaces of cuBLAS (8 to 32 MiB) are larger than this whole model at the end. They are made once, in the step before the one that is measured, and stay outside of the figure.
#
# ### What did it cost?
#
# Accuracy from two trainings of every rung, and time against rung 0, a step of one and a step of the other in turn. Two processes train side by side.


# %% name="train"
def accuracy(rung, seed, where):
    """Train `rung` from `seed`; return the accuracy on the test images in %."""
    model = make_model(rung, seed, where)
    optimizer = make_optimizer(rung, model)
    order = np.random.default_rng(seed)
    batches = [
        b for _ in range(STEPS * BATCH // TRAINED) for b in np.split(order.permutation(TRAINED), TRAINED // BATCH)
    ]
    for i, rows in enumerate(batches):
        for group in optimizer.param_groups:  # a short rise, then half a cosine
            group["lr"] = RATES[rung.optimizer] * min(1, (i + 1) / 6) * (1 + math.cos(math.pi * i / STEPS)) / 2
        train_step(rung, model, optimizer, rows)
    with torch.no_grad(), torch.autocast(where.type, torch.bfloat16, enabled=rung.autocast):
        guessed = model(torch.from_numpy(images[TRAINED:]).to(where, rung.dtype)).argmax(1)
    return 100 * (guessed.cpu() == torch.from_numpy(labels[TRAINED:])).float().mean().item()


def train_all(jobs):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {(rung.name, seed): accuracy(rung, seed, pick_device()) for rung, seed in jobs[rank::world]}


jobs = [(rung, seed) for seed in SEEDS for rung in LADDER]
trained = run_ranks(train_all, 2, jobs, timeout=600, measure=False, process_group=False)
scores = trained.results[0] | trained.results[1]


def pace(rung):
    """Return seconds of a step of `rung` / seconds of a step of rung 0."""
    steps = []
    for one in (rung, base):
        model = make_model(one, 0, device)
        steps.append(functools.partial(train_step, one, model, make_optimizer(one, model), rows))
    return 1 / compare(*reversed(steps), runs=3, warmup=1).speedup


table = []
for rung in LADDER:
    runs = [scores[rung.name, seed] for seed in SEEDS]
    against = [scores[rung.name, seed] - scores[base.name, seed] for seed in SEEDS]
    unsure = statistics.stdev(against) / math.sqrt(len(SEEDS))
    slower = 1.0 if rung is base else pace(rung)
    table.append((rung.name, peaks[rung.name], slower, statistics.mean(runs), statistics.mean(against), unsure))
print(f"{'':26}{'peak':>12}{'less':>8}{'time':>8}{'accuracy':>11}{'against rung 0':>23}")
for name, peak, slower, mean, against, unsure in table:
    points = f"{against:+.2f} +- {unsure:.2f} points"
    print(f"{name:26}{human_bytes(peak):>12}{first / peak:>7.1f}x{slower:>7.2f}x{mean:>9.2f} %{points:>23}")

# %% name="ladder_claims"
subject = f"ViT, {phi:,} parameters, batch {BATCH}, {last[0]} rungs"
lost = table[-1][4]
claims.record("C12", "up to 20x less peak memory", subject, first / peaks[last], "times", 0, 20)
claims.record("C12", "this lab's target: 40x less", subject, first / peaks[last], "times", 40, math.inf)
claims.record(
    "C12",
    "the same accuracy: at most 0.5 points lost",
    f"{subject}, mean of {len(SEEDS)}",
    lost,
    "points",
    -0.5,
    math.inf,
)
worst = min(row[4] for row in table)
claims.record(
    "C12", "no rung loses more than 0.5 points", f"{subject}, the worst rung", worst, "points", -0.5, math.inf
)
claims

# %% name="ladder_figure"
figure = Figure(figsize=(8.5, 4.2), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(2, 3), sharey=True)
names = list(meters)
left.barh(names, [first / peaks[name] for name in names], color=COLOURS[0])
left.axvline(40, color="black", ls="--", lw=1)
left.set(title="Times less than rung 0", xlabel="peak of rung 0 / peak", xlim=(0, 55))
left.invert_yaxis()
start = np.zeros(len(names))
for tenant, colour in zip(TENANTS, COLOURS, strict=True):
    width = np.array([100 * meters[name].at_peak[tenant] / peaks[name] for name in names])
    if width.max() >= 1:
        right.barh(names, width, left=start, color=colour, label=tenant)
        start += width
right.set(title="Whose bytes the peak is made of", xlabel="% of that rung's peak", xlim=(0, 100))
figure.legend(loc="outside lower center", ncols=4, frameon=False)
show(
    figure,
    "The factor grows from rung to rung past 40; activations are nearly all of the first peak, and weights and optimizer state a large part of the last.",
)

# %% [markdown] name="cost_explained"
# Accuracy is given with its standard error over the seeds: where the error is as large as the difference, the rung has neither gained nor lost anything that two seeds could show.
#
# Time is the price. Small micro-batches keep a processor less busy, and checkpointed blocks run twice. No rung after 1 was made for speed; the ladder buys bytes with seconds.
#
# > **Note:** rung 4 is another optimizer with its own learning rate. It is the only rung that changes *what* is computed, not how; the published ladder has one, too (Adam to SGD). It is allowed here because accuracy is what must hold.
#
# ## 3 · The floor, byte by byte
#
# The last rung's peak, every block of memory that was alive at that moment, with the operation that made it:

# %% name="floor"
final = meters[last]
print(peak_table(final, 12))
print(f"\n{'tenant':24}{'bytes':>10}   what it must be")
laws = {
    "parameters": (2 * phi, "2 bytes a parameter"),
    "optimizer state": (2 * phi, "2 bytes a parameter: one running mean, which is also the accumulator"),
}
for tenant, held in final.at_peak.items():
    if held:
        law = f"{laws[tenant][0]:,} = {laws[tenant][1]}" if tenant in laws else ""
        print(f"{tenant:24}{held:>10,}   {law}".rstrip())
print(f"{'sum':24}{sum(final.at_peak.values()):>10,}   peak: {final.peak_bytes:,}")
static = final.at_peak["parameters"] + final.at_peak["optimizer state"]
claims.record("C12", "the floor: 4 bytes a parameter", subject, static / phi, "bytes", 4, 4.3)

# %% [markdown] name="floor_explained"
# Every byte has an owner, and the owners add up to the peak.
#
# - **Weights and running means**, 2 + 2 bytes a parameter: the floor in the strict sense. Below it one needs another number format (lab 13), fewer trained parameters (lab 14), or more machines (lab 12).
# - **Recomputed activations** and **temporaries**: one block of one micro-batch, while its backward pass runs.
# - **Activations**: the inputs of checkpointed blocks, for one micro-batch.
# - **Kernel workspace**: scratch of the matrix products, in no tensor; on a CPU, 16-bit products repack weights.
#
# All but the first shrink with the micro-batch. **Predict**: with micro-batches of 4 instead of 32, what is the factor?

# %% name="guess_smaller"
my_guess = None  # times less than rung 0, micro-batches of 4
### BEGIN GUESS
my_guess = 95  # what depends on the micro-batch falls to an eighth, weights and means stay
### END GUESS
smaller_guess = Prediction("FP32 peak / peak with micro-batches of 4", my_guess, "times")

# %% name="smaller"
curve = {micro: measured(replace(LADDER[-1], micro=micro)).peak_bytes for micro in (128, 32, 16, 4)}
smaller_guess.reveal(first / curve[4])
for micro, peak in curve.items():
    print(
        f"micro-batches of {micro:>3}: {human_bytes(peak):>11}, {first / peak:>5.1f}x less; static part {static / peak:.0%}"
    )
print(f"if nothing but weights and running means were left: {first / static:.0f}x")

# %% [markdown] name="vit_text"
# So the floor is a property of three choices: bytes a weight, bytes of state, and how little is computed at a time. The factor is whatever the first rung wasted: *"40 times" says as much about rung 0 as about rung 6.*
#
# ## 4 · The famous ladder, checked
#
# The most quoted figure of this kind is from [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md): ViT-L/16 on CIFAR-10 at 224 pixels, "20x". Its own logs give reserved memory for every rung. The planner (lab 01) runs the same steps on tensors without memory. Reserved memory is a range: the allocator's replay, and what moves it.
#
# **Predict.** From the first to the last of the logged figures, what is the factor?

# %% name="guess_vit"
my_guess = None  # times less, by the published logs
### BEGIN GUESS
my_guess = 20  # so it is said
### END GUESS
vit_guess = Prediction("ViT-L/16, first log / last log", my_guess, "times")

# %% name="vit"
PUBLISHED = {  # reserved GB in the logs, and the step that was logged; gradients are zeroed after the forward pass
    "FP32, batch 64, Adam": (26.79, {"precision": "fp32", "batch": 64}),
    "FP16 autocast": (18.21, {"precision": "fp16-amp", "batch": 64}),
    "BF16 weights": (13.82, {"precision": "bf16", "batch": 64}),
    "batch 16": (5.69, {"precision": "bf16", "batch": 16}),
    "4 x 4 accumulated": (3.91, {"precision": "bf16", "batch": 4, "accumulate": 4}),
    "SGD, cosine": (2.02, {"precision": "bf16", "batch": 4, "accumulate": 4, "optimizer": "sgd"}),
}
common = {"optimizer": "adam", "keep_grads": True}
ours = {  # the same ladder with one effective batch: 64 images to every update
    "BF16 weights, 16 x 4": {"precision": "bf16", "batch": 4, "accumulate": 16},
    "and checkpointing": {"precision": "bf16", "batch": 4, "accumulate": 16, "checkpointing": "every"},
    "and SGD": {"precision": "bf16", "batch": 4, "accumulate": 16, "checkpointing": "every", "optimizer": "sgd"},
}
recipes = [
    Recipe("vit-l-16", **{**common, **change}) for change in [c for _, c in PUBLISHED.values()] + list(ours.values())
]
began = time.perf_counter()
vit = dict(zip([*PUBLISHED, *ours], plan_many(recipes), strict=True))
print(f"{len(recipes)} plans in {time.perf_counter() - began:.0f} s\n")
print(f"{'':24}{'batch':>6}{'logged GB':>11}{'planned, reserved GB':>22}{'off by':>8}")
errors = {}
for name, (said, _) in PUBLISHED.items():
    plan = vit[name]
    low, high = (b / 1e9 for b in plan.reserved_bytes)
    errors[name] = 0.0 if low <= said <= high else (low if said < low else high) / said - 1
    batch = plan.recipe.batch * plan.recipe.accumulate
    print(f"{name:24}{batch:>6}{said:>11.2f}{f'{low:.2f} to {high:.2f}':>22}{errors[name]:>8.0%}")
logged = [said for said, _ in PUBLISHED.values()]
vit_guess.reveal(logged[0] / logged[-1])
one_batch = logged[2] / logged[3]
print(f"of this, a factor {one_batch:.2f} is a batch of 16 in place of 64: another training run")
print("\nthe same with 64 images to every update, planned, allocated:")
top = vit["FP32, batch 64, Adam"].peak_allocated_bytes
for name in ours:
    peak = vit[name].peak_allocated_bytes
    print(f"{name:24}{peak / 1e9:>8.2f} GB {top / peak:>6.1f}x less, in {vit[name].peak_at}")
claims.record(
    "C12", "up to 20x less peak memory", "ViT-L/16, the published logs", logged[0] / logged[-1], "times", 19.5, math.inf
)
claims.record("C12", "the same run: one effective batch", "ViT-L/16, the published logs", 64 / 16, "x the batch", 1, 1)
worst = max(errors.values(), key=abs)
claims.record("C12", "the planner follows the logs", "6 logs, the worst of them", 100 * worst, "% off", -20, 20)
factor = top / vit["and SGD"].peak_allocated_bytes
claims.record("C12", "20x with the batch kept at 64", "ViT-L/16, planned", factor, "times", 20, math.inf)

# %% [markdown] name="vit_explained"
# The logs give 13 times and not 20, and their fourth rung cuts the batch from 64 to 16: that is another training run, with four times the updates an epoch. Accumulation then goes up to 16, never back to 64. Kept at 64 the ladder costs nothing more in memory, for accumulation does not care how many micro-batches there are; it costs time.
#
# Where the planner is off, the software differs: the logs are of PyTorch 2.1, whose Adam held two temporary copies where today's holds one.
#
# Why does ViT-L stop where it does, and our model at 44? Weights: 303 million of them. In BF16 with their gradients they are more than a gigabyte before the first image comes. *A model with many weights and a small batch has a short ladder.*
#
# ## 5 · A recipe guide, row by row
#
# "Which model can I train on my GPU?" A popular guide answers with one line a card, all with BF16, checkpointing and accumulation. The planner can test each line. To be quick, `plan_deep` plans each model with 3 and with 6 of its layers: layers are alike, so two points give the line (lab 12). The reading is charitable: *pure* BF16, weights and optimizer state too; one sequence of 1,024 tokens; AdamW.

# %% [markdown] name="guide_guess_text"
# **Predict.** The first row: "8 GB: about 1B". Llama-3.2-1B has 1.24 billion parameters. Trained whole in BF16 with AdamW, how many GiB is the peak?

# %% name="guess_guide"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 1.24e9 * 8 / 2**30 + 0.5  # weight, gradient, two moments of 2 bytes; and some activations
### END GUESS
guide_guess = Prediction("Peak of a whole 1B in BF16 with AdamW", my_guess, "GiB")

# %% name="guide"
plain = {"precision": "bf16", "checkpointing": "every", "accumulate": 2, "seq": 1024, "optimizer_impl": "fused"}
lean_step = {"accumulate": 1, "step_in_backward": True, "optimizer": "adamw-8bit", "optimizer_impl": "foreach"}
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
    "24 GB: ~7B, LoRA r=8": ("24 GB", Recipe("llama-2-7b", lora_rank=8, **plain)),
    "24 GB: ~7B, LoRA r=16": ("24 GB", Recipe("llama-2-7b", lora_rank=16, **plain)),
    "40 GB: ~13B, LoRA r=32": ("40 GB", Recipe("llama-2-13b", lora_rank=32, **plain)),
    "80 GB: 7B whole": ("80 GB", Recipe("llama-2-7b", **plain)),
    "80 GB: 7B whole, FP32 weights": ("80 GB", Recipe("llama-2-7b", **plain | {"precision": "bf16-amp"})),
    "8 x 80 GB: 70B, ZeRO-3 / FSDP": ("80 GB", Recipe("llama-2-70b", ranks=8, shard="zero3", **plain)),
}
REPAIRED = {  # what to do where a line does not hold
    "8 GB: 1B, 8-bit AdamW in the backward pass": ("8 GB", Recipe("llama-3.2-1b", **plain | lean_step)),
    "8 GB: 1B, LoRA r=16": ("8 GB", Recipe("llama-3.2-1b", lora_rank=16, **plain)),
    "16 GB: 3B, LoRA r=16": ("16 GB", Recipe("llama-3.2-3b", lora_rank=16, **plain)),
    "80 GB: 7B, FP32 weights, offload": (
        "80 GB",
        Recipe("llama-2-7b", **plain | {"precision": "bf16-amp", "offload": "optimizer"}),
    ),
    "16 x 80 GB: 70B, ZeRO-3 / FSDP": ("80 GB", Recipe("llama-2-70b", ranks=16, shard="zero3", **plain)),
}


def room(card):
    """Bytes that PyTorch's allocator can have on a card that is sold as so many GB."""
    gpu = find_gpu(SIZES[card])
    sold = float(gpu.name.rsplit("-", 1)[1].removesuffix("gb"))
    return gpu.total * float(card.split()[0]) / sold - GiB / 2  # half a GiB: the CUDA context


began = time.perf_counter()
lines = GUIDE | REPAIRED
guide = dict(zip(lines, plan_deep([recipe for _, recipe in lines.values()]), strict=True))
print(f"{2 * len(guide)} plans in {time.perf_counter() - began:.0f} s")
guide_guess.reveal(guide["8 GB: ~1B"].allocated_bytes / GiB)


def verdict(line, card):
    if guide[line].reserved_bytes <= room(card):
        return "fits"
    return "at the edge" if guide[line].allocated_bytes <= room(card) else "does not fit"


print(f"\n{'GiB':46}{'allocated':>10}{'reserved up to':>16}{'room':>7}  {'verdict'}")
for line, (card, _) in lines.items():
    if line == next(iter(REPAIRED)):
        print("what works instead")
    each = guide[line]
    print(
        f"  {line:44}{each.allocated_bytes / GiB:>10.1f}{each.reserved_bytes / GiB:>16.1f}{room(card) / GiB:>7.1f}  {verdict(line, card)}"
    )
for line, (card, recipe) in GUIDE.items():
    claims.record(
        "T26", line, f"{recipe.model}, planned", guide[line].allocated_bytes / GiB, "GiB", 0, room(card) / GiB
    )

# %% [markdown] name="guide_explained"
# The LoRA lines hold, with room to spare: a card of 24 GB takes 7B with either rank, for the frozen weights are nearly all of it. **Eight times the parameters** is what whole training in pure BF16 with AdamW takes in bytes, so 1B does not fit into 8 GB nor 3B into 16 GB. Those lines are right for *adapters*, or with an 8-bit optimizer that steps in the backward pass (which forbids accumulation, section 1).
#
# "80 GB: 7B whole" holds only in pure BF16, whose small updates are lost (lab 02). With FP32 weights it does not, unless the optimizer's state moves to the host, and then only just. 70B on 8 cards is at the edge with one sequence a rank: what tensors need has room, what the allocator reserves may not.
#
# ## 6 · The summary table
#
# Articles end with a table: so many times less memory, so many times the speed. Here each line is GPT-2 (124 million parameters), 8 sequences of 1,024 tokens to a step and rank, AdamW, planned. The speed is the bound of an A100's arithmetic and memory traffic; what has to be sent or moved stands beside it, for whoever knows the wires. Each line is compared with the line it builds on.

# %% name="summary_plans"
job = {"batch": 8, "seq": 1024, "precision": "bf16-amp"}
LINES = {  # name -> (recipe, compared with, said about memory, said about speed)
    "FP32": (Recipe("gpt2", **job | {"precision": "fp32"}), None, None, None),
    "mixed precision": (Recipe("gpt2", **job), "FP32", 2, 2),
    "+ checkpointing": (Recipe("gpt2", checkpointing="every", **job), "FP32", 4, 0.7),
    "+ accumulation": (Recipe("gpt2", **job | {"batch": 1, "accumulate": 8}), "mixed precision", None, None),
    "DDP, 8 ranks": (Recipe("gpt2", ranks=8, **job), "mixed precision", 1, 8),
    "FSDP, 8 ranks": (Recipe("gpt2", ranks=8, shard="zero3", **job), "mixed precision", 8, 8),
    "offloaded optimizer": (Recipe("gpt2", offload="optimizer", **job), "mixed precision", None, None),
}
began = time.perf_counter()
plans = dict(zip(LINES, plan_many([line[0] for line in LINES.values()], gpu="a100-80gb"), strict=True))
print(f"{len(plans)} plans in {time.perf_counter() - began:.0f} s\n")


def rows_a_second(plan):
    return plan.recipe.batch * plan.recipe.accumulate * plan.recipe.ranks / plan.at_least_seconds["a100-80gb"]


print(f"{'':22}{'GiB a rank':>11}{'memory':>9}{'said':>6}{'speed':>9}{'said':>6}   sent / moved a step, compared with")
for name, (_, other, memory, speed) in LINES.items():
    plan = plans[name]
    peak = f"{name:22}{plan.peak_allocated_bytes / GiB:>11.2f}"
    if other is None:
        print(peak)
        continue
    less = plans[other].peak_allocated_bytes / plan.peak_allocated_bytes
    against = plans["mixed precision"] if "checkpointing" in name else plans[other]  # its 0.7 is of the line above
    faster = rows_a_second(plan) / rows_a_second(against)
    moved = human_bytes(plan.sent_bytes or plan.host_bytes) if plan.sent_bytes or plan.host_bytes else "-"
    print(f"{peak}{less:>8.2f}x{memory or '':>6}{faster:>8.2f}x{speed or '':>6}   {moved}, {other}")
    if memory:
        claims.record(
            "T27",
            f"{name}: memory {memory}x",
            "GPT-2, 8 x 1,024 tokens, planned",
            less,
            "times less",
            memory * 0.85,
            memory * 1.15,
        )
    if speed:
        claims.record("T27", f"{name}: speed {speed}x", "GPT-2, A100, bound", faster, "times", speed * 0.9, speed * 1.1)
measured_here = {row[0]: row for row in table}
amp, with_checkpoints = (measured_here[LADDER[i].name] for i in (1, 3))
claims.record("T27", "mixed precision: speed 2x", f"our ViT on this {device.type}", 1 / amp[2], "times", 1.8, 2.2)
claims.record(
    "T27", "mixed precision: memory 2x", f"our ViT on this {device.type}", first / amp[1], "times less", 1.7, 2.3
)

# %% [markdown] name="summary_explained"
# - **Mixed precision** does not halve this model: its peak is the FP32 logits (50,257 wide), which autocast leaves alone. And the bound is the data sheet's ratio of 16-bit to FP32 arithmetic; that nobody sees 16 times is no surprise, for real steps wait for memory. A factor without its model and its GPU means nothing.
# - **Checkpointing** costs what it recomputes, less than the textbook's third, since head and logits are not recomputed.
# - **DDP** holds slightly *more* than one rank: its buckets. **FSDP** divides weights, gradients and state, not activations: nowhere near 8.
# - The bound counts arithmetic and memory, and no wires. What is sent is in the table; lab 10 measures what it costs.
# - **Offloading** trades memory for traffic to the host in every step.

# %% [markdown] name="chooser_text"
# ## 7 · Choose a recipe
#
# The other way round: GPU, model and data in, recipes out. What fits comes first, and of that the fastest; of what does not, the smallest. Time is relative to the fastest that fits, and a bound (arithmetic and memory traffic). A micro-batch is one sequence, so the number of sequences to an update costs time and no memory.
#
# The plans were made before, by `python -m helpers chooser`, so that the figure can answer at once. Find the smallest card on which 7B trains whole. Which recipes does a longer sequence push off a card of 24 GB?


# %% name="chooser"
def chosen(gpu, model, tokens, sequences):
    choices = choose(gpu, model, tokens, sequences)
    fastest = choices[0].seconds
    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    most = max(choices[0].room_bytes, *(c.reserved_bytes for c in choices)) / GiB
    for place, c in enumerate(choices):
        axes.barh(
            place, c.reserved_bytes / GiB, color="white", edgecolor=COLOURS[7], label="" if place else "reserved, up to"
        )
        axes.barh(place, c.peak_bytes / GiB, color=COLOURS[2 if c.fits else 4], label="")
        words = f"{c.seconds / fastest:.2f} x the time" if c.fits else "does not fit"
        axes.text(c.reserved_bytes / GiB + 0.01 * most, place, words, va="center", fontsize=8, backgroundcolor="white")
    axes.axvline(choices[0].room_bytes / GiB, color="black", ls="--", label=f"room on {gpu}")
    axes.set_yticks(range(len(choices)), [c.name for c in choices])
    axes.invert_yaxis()
    title = f"{model}, {sequences} x {tokens} tokens to an update"
    axes.set(title=title, xlabel="GiB at the peak (filled: allocated)", xlim=(0, 1.25 * most))
    figure.legend(frameon=False, loc="outside lower center", ncols=2)
    return figure


explore(
    chosen,
    "Eight recipes for a model, ranked: those that fit a GPU first, the fastest on top, with their peaks.",
    gpu=("rtx-4090-24gb", ("rtx-3060-12gb", "v100-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")),
    model=("llama-2-7b", ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-2-13b")),
    tokens=(2048, (512, 2048)),
    sequences=(16, (1, 4, 16, 64)),
)
began = time.perf_counter()
best = choose("rtx-4090-24gb", "llama-2-7b", 2048, 16)[0]
print(f"on top: {best.name} ({best.recipe.words}); answered in {time.perf_counter() - began:.3f} s")

# %% [markdown] name="script_text"
# A choice can be taken away as a program: one file, that runs as it is, alone or under `torchrun`. It holds what the recipe asks for and nothing else. `--tiny` tries it with a small random model on any machine; `--weights` and `--text` make it the real thing. `style="trainer"` writes it for Hugging Face's Trainer. (A 4-bit base is refused: it has to be loaded, which lab 14 shows.)

# %% name="script"
print(training_script(best.recipe))
# open("train.py", "w").write(training_script(best.recipe))    # to keep it

# %% [markdown] name="lean_text"
# ## 8 · Your turn: no room for gradients
#
# **Contract.** `lean_update(model, means, x, y, lr)` makes one Signum update, in place.
#
# - `model` is an `nn.Sequential` of 9 layers in FP32; `x` has shape (130, 64), `y` (130,) holds classes. The loss is the mean cross entropy over all 130 rows.
# - `means` maps each parameter to its running mean. Both change in place: mean ← 0.9 · mean + 0.1 · gradient, then p ← p − lr · sign(mean).
# - Beside weights, means and the batch the peak may take **100 KiB**. All gradients together are larger than that; so are the activations of the batch.
# - It is called again and again: afterwards no gradient and no hook is left.


# %% name="lean" answer=true reveal=true
def lean_update(model, means, x, y, lr):
    ### BEGIN SOLUTION
    def take(p):
        means[p].add_(p.grad, alpha=0.1)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in model.parameters()]
    for mean in means.values():
        mean.mul_(0.9)
    for xs, ys in zip(x.split(8), y.split(8), strict=True):
        (F.cross_entropy(model(xs), ys, reduction="sum") / len(x)).backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(means[p].sign(), alpha=-lr)
    ### END SOLUTION


# %% name="lean_check"
check("lab15.lean", lean_update)

# %% [markdown] name="report_text"
# ## 9 · Your lab report
#
# Every table of claims that a notebook of this course showed you was kept, in one small file on this machine (`.progress/progress.json`; `TAS_PROGRESS=off` in the environment keeps nothing). It goes nowhere. Here it is as one page, with the claims of this lab; `save` writes the page as HTML.

# %% name="claims"
claims

# %% name="report"
report = lab_report(claims)
print(report)
# report.save("lab_report.html")    # open it in a browser

# %% [markdown] name="recap"
# ## Recap
#
# - Forty times less peak at the same batch, with no accuracy lost, is possible where activations are nearly all of the peak; the price is time.
# - Each rung has its tenant. The order decides what a rung seems to be worth; only the product counts, and the product depends on how wasteful rung 0 was.
# - A step in the backward pass and accumulation do not go together as they are; with a state that is linear in the gradient, the state can be the accumulator.
# - The floor has names: bytes a weight, bytes of state, one block of one micro-batch, kernel workspace.
# - Guides and tables hold for the model, the batch and the number format they were made with. Ask the planner.
#
# **Sources.** Bernstein et al. 2018, *signSGD*; Zhang et al. 2023, *Adam Accumulation to Reduce Memory Footprints* (the same thought for Adam, which it has to change); [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim), logs; PyTorch tutorial, *How to save memory by fusing the optimizer step into the backward pass*; Rajbhandari et al. 2020, *ZeRO*; Hu et al. 2021, *LoRA*.
