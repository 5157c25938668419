# %% [markdown] name="title"
# # Gradient accumulation
#
# **You can process a batch in micro-batches: gradients add up. You get the update of the full batch with the activations of one micro-batch, if you weight
# the micro-batches correctly and know what does not add up.**
#
# | | |
# |---|---|
# | After this you can | write the loop for rows, for tokens and for DDP, and prove that the update is the same; predict how much memory it saves; recognize six mistakes from the numbers they produce; decide whether a larger batch is worth its cost |
# | Time | 110 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#number_formats]] and [[#mixed_precision]] |
# | Syllabus | T8, C8, P4, T43 (in part), C26 |
#
# The graded exercise X2 comes after this lab.

# %% name="setup" setup=true
import contextlib
import math

from helpers import (
    COLORS,
    ByteNets,
    Claims,
    MemoryMeter,
    Prediction,
    SmallCNN,
    SmallGPT,
    accumulation_timeline,
    benchmark,
    category_table,
    check,
    device_name,
    digits,
    english,
    explore,
    hint,
    human_bytes,
    pick_device,
    show,
    show_table,
    sign_of_life,
)

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · The idea
#
# A batch of 256 is known to train well, but your GPU holds only 64 rows.
#
# The gradient of a mean is the mean of the gradients. So run 64 rows forward and backward, then the next 64, and so on. PyTorch **adds** to
# `.grad` instead of overwriting it: after four *micro-batches*, `.grad` contains the summed gradients of all 256 rows. Then take one optimizer step.

# %% name="idea_picture"
show(
    accumulation_timeline(4),
    "Four forward and backward passes, each with a hill of activations; .grad accumulates the sum and stays in memory until the step updates the weights.",
)

# %% [markdown] name="model_text"
# The model is a small network of GroupNorm and linear layers on digits. `gradient` returns the gradient that a given method computes for a batch, and `distance`
# compares two gradients.

# %% name="model"
data = digits(device)
x, y = data.train_x[:256], data.train_y[:256]


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.GroupNorm(4, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).to(device, dtype)


def whole_batch(model, x, y, micro_batch=None):
    F.cross_entropy(model(x), y).backward()


def gradient(method, model, x, y, micro_batch=None):
    """Return the gradient that `method` leaves in `.grad`, all parameters in one vector."""
    model.zero_grad()
    method(model, x, y, micro_batch)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def distance(a, b):
    """Return how far `a` is from `b`, relative to the length of `b`."""
    return ((a - b).norm() / b.norm()).item()


# %% [markdown] name="loop_task"
# ### Your turn: the loop
#
# **Contract.** `accumulate(model, x, y, micro_batch)` adds the gradient of the mean cross-entropy over all N rows to the parameters' `.grad`.
#
# - The model sees each row once, in order, at most `micro_batch` rows at a time. If N is not a multiple of it, the last micro-batch is smaller.
# - Each row has weight 1/N, even in a smaller micro-batch.
# - Memory: one micro-batch at a time. Its backward pass runs before the next forward pass. After that, its loss and outputs may be held only by variables that the next micro-batch overwrites.
# - Existing gradients are added to, not cleared. The caller clears them and takes the optimizer step. Weights, rows and the model's mode do
#   not change.
# - It returns the mean loss over all rows: a number, or a detached scalar tensor.


# %% name="loop" answer=true reveal=true
def accumulate(model, x, y, micro_batch):
    ### BEGIN SOLUTION
    total = 0.0
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        loss.backward()
        total = total + loss.detach()
    return total
    ### END SOLUTION


# %% name="loop_check"
accumulate = check("gradient_accumulation.loop", accumulate)

# %% name="loop_hint"
hint("gradient_accumulation.loop")

# %% [markdown] name="equal_text"
# ### The same numbers
#
# Is the gradient *equal* or only nearly equal? Floating-point sums depend on the order of addition. Compare formats with more and fewer digits. In BF16 even
# the full batch's gradient is rounded, so the last two columns compare the full-batch and the accumulated gradient with the gradient in FP32.

# %% name="equal"
SAME_GRADIENT = "the gradient equals the whole batch's"  # to six digits or so
right32 = gradient(whole_batch, make_model(), x, y)
table = [("distance of gradients", "epsilon", "4 x 64 to full batch", "full batch to FP32", "4 x 64 to FP32")]
for dtype in (torch.float64, torch.float32, torch.bfloat16):
    if device.type == "mps" and dtype == torch.float64:
        continue
    model, inputs = make_model(dtype), x.to(dtype)
    full, parts = gradient(whole_batch, model, inputs, y), gradient(accumulate, model, inputs, y, 64)
    away = distance(parts, full)
    if dtype == torch.float32:
        claims.record("C8", SAME_GRADIENT, "MLP, FP32, 4 x 64", away, "relative", 0, 1e-5)
    errors = [distance(each.float(), right32) for each in (full, parts)]
    row = (str(dtype).removeprefix("torch."), f"{torch.finfo(dtype).eps:.1e}", f"{away:.1e}")
    table.append(row + tuple(f"{error:.1e}" if dtype == torch.bfloat16 else "" for error in errors))
show_table(table)

# %% [markdown] name="swamping_text"
# The distance follows the format's epsilon, so it is rounding error. In BF16 four micro-batches are about as far from FP32's gradient as the full batch is:
# the digits are lost by computing in BF16; adding four numbers loses almost none.
#
# Many small micro-batches mean many additions. [[Number_formats]] showed a BF16 sum of ones that stops growing at 256.
#
# **Predict.** In pure BF16, by what factor is the error (the distance from FP32's gradient) larger with 256 micro-batches of 1 than with 4 micro-batches of 64?

# %% name="swamping_guess"
my_guess = None  # distance with micro-batches of 1 / with micro-batches of 64
### BEGIN GUESS
my_guess = 10  # 64 times as many additions, and the later ones lose their last digits
### END GUESS
swamping_guess = Prediction("Sum in BF16: error with 1 / with 64", my_guess, "times")


# %% name="swamping"
def summed(dtype, micro_batch):
    """Add up the BF16 gradients of micro-batches in `dtype`."""
    model, inputs = make_model(torch.bfloat16), x.bfloat16()
    total = 0
    for xs, ys in zip(inputs.split(micro_batch), y.split(micro_batch), strict=True):
        piece = gradient(accumulate, model, xs, ys, micro_batch)
        total = total + piece.to(dtype) * (len(xs) / len(x))
    return total.float()


def in_fp32_grad(micro_batch):
    """Accumulate in `.grad` as usual, but with a `.grad` in FP32."""
    model = make_model(torch.bfloat16)
    for p in model.parameters():
        p.grad_dtype = torch.float32
    return gradient(accumulate, model, x.bfloat16(), y, micro_batch).float()


has_grad_dtype = hasattr(nn.Parameter(torch.zeros(1)), "grad_dtype")
table, sums = [("micro-batch", "sum in BF16", "sum in FP32", "grad_dtype = FP32")], {}
for m in (64, 16, 4, 1):
    sums[m] = [distance(summed(dtype, m), right32) for dtype in (torch.bfloat16, torch.float32)]
    by_dtype = f"{distance(in_fp32_grad(m), right32):.1e}" if has_grad_dtype else "-"
    table.append((str(m), *(f"{away:.1e}" for away in sums[m]), by_dtype))
growth = sums[1][0] / sums[64][0]
swamping_guess.reveal(growth)
show_table(table)
claims.figure("BF16 sums: micro-batches of 1 / of 64, distance", "MLP, pure BF16", growth, "times")

# %% [markdown] name="equal_explained"
# With sums in FP32 the error does not grow, so it is the additions in BF16 that lose the digits: small gradients are added to a large sum that has no bits for their
# last digits (swamping, [[number_formats]]). Under autocast the parameters and `.grad` are FP32, and the problem does not arise.
#
# The last column used `p.grad_dtype = torch.float32`: the weight stays BF16, and `.grad` is an FP32 tensor that costs 2 more bytes per parameter. This
# helps only if the optimizer accepts such a gradient. In PyTorch 2.13, AdamW does not ([[number_formats]] tries it): give AdamW
# FP32 master weights, and give each master weight the FP32 gradient.
#
# ## 2 · What it saves
#
# First the full batch: one AdamW step of the CNN from [[mixed_precision]] on 256 digits of 16 × 16 pixels.

# %% name="step"
CHANNELS = 256 if device.type == "cuda" else 32  # more arithmetic per kernel on a GPU


def step(model, optimizer, x, y, micro_batch):
    """Take one optimizer step."""
    optimizer.zero_grad()
    accumulate(model, x, y, micro_batch)
    optimizer.step()


def measured(x, y, micro_batch, take=step):
    """Return the meter of the second step."""
    torch.manual_seed(0)
    model = SmallCNN(CHANNELS).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    take(model, optimizer, x, y, micro_batch)
    with MemoryMeter(model, optimizer) as meter:
        take(model, optimizer, x, y, micro_batch)
    return meter


large = digits(device, size=16)
images, labels = large.train_x[:256].clone(), large.train_y[:256].clone()
with sign_of_life("seven micro-batch sizes"):
    cnn = {m: measured(images, labels, m) for m in (256, 128, 64, 32, 16, 8, 4)}
table = category_table({"256": cnn[256], "4 x 64": cnn[64], "32 x 8": cnn[8]})
show_table([(*table[0][:-1], "32 x 8 / 256"), *table[1:]])

# %% name="memory_figure"
figure = Figure(figsize=(7, 3.2), layout="constrained")
axes = figure.add_subplot()
axes.plot(list(cnn), [m.peak_bytes / MiB for m in cnn.values()], "o-", color=COLORS[0], label="peak")
axes.plot(
    list(cnn), [m.largest["activations"] / MiB for m in cnn.values()], "s--", color=COLORS[4], label="activations"
)
axes.set(title="256 digits in micro-batches", xlabel="rows in a micro-batch", ylabel="MiB", ylim=(0, None))
axes.legend(frameon=False)
show(figure, "Peak and activations grow linearly with the number of rows in a micro-batch.")

# %% [markdown] name="memory_explained"
# (The table shows each category at its own maximum, so a column adds up to more than its peak.)
#
# The lines are straight: a fixed part plus a constant number of bytes per row. The fixed part, where the peak's line meets the vertical axis, is what accumulation cannot save:
# parameters, gradients, optimizer state, and all rows of the batch, which stay on the device.
#
# Some articles claim that "the peak is that of the micro-batch." Compare the peak of 4 × 64 with that of a plain step on 64 rows.

# %% name="micro_claim"
plain = measured(images[:64].clone(), labels[:64].clone(), 64)
ratio = (cnn[64].peak_bytes - images.nbytes) / (plain.peak_bytes - images[:64].nbytes)
print(f"4 x 64: {human_bytes(cnn[64].peak_bytes)}; a plain step on 64 rows: {human_bytes(plain.peak_bytes)}")
claims.record("C8", "the peak is that of the micro-batch", "CNN, inputs aside", ratio, "times", 0.95, 1.05)

# %% [markdown] name="nothing_text"
# ### More parameters, smaller micro-batches
#
# **Predict.** A GPT of 3.2 million parameters trains with AdamW on 32 sequences of 32 characters. By what factor does the peak fall when the batch of 32
# becomes 32 micro-batches of one sequence?

# %% name="guess_gpt"
my_guess = None  # peak with one batch of 32 / peak with micro-batches of 1
### BEGIN GUESS
my_guess = 10  # activations fall to a thirty-second, the rest stays
### END GUESS
gpt_guess = Prediction("Peak of one batch of 32 / of 32 micro-batches", my_guess, "times")

# %% name="nothing"
text = english(device)
ids, next_ids = text.train_x[: 64 * 32].view(64, 32).clone(), text.train_y[: 64 * 32].view(64, 32).clone()


def gpt_step(model, optimizer, micro_batch):
    optimizer.zero_grad()
    pieces = ids[:32].split(micro_batch)
    for xs, ys in zip(pieces, next_ids[:32].split(micro_batch), strict=True):
        (F.cross_entropy(model(xs).flatten(0, 1), ys.flatten()) / len(pieces)).backward()
    optimizer.step()


def gpt_meter(micro_batch, **how):
    torch.manual_seed(0)
    model = SmallGPT(context=32, layers=4, width=256).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    gpt_step(model, optimizer, micro_batch)
    with MemoryMeter(model, optimizer) as meter:
        gpt_step(model, optimizer, micro_batch)
    return meter


with sign_of_life("a GPT with three micro-batch sizes"):
    gpt = {m: gpt_meter(m, foreach=True) for m in (32, 4, 1)}  # foreach: the default on a GPU
gpt_guess.reveal(gpt[32].peak_bytes / gpt[1].peak_bytes)
for micro_batch, meter in gpt.items():
    print(f"micro-batch {micro_batch:2}: peak {human_bytes(meter.peak_bytes):>10} in {meter.peak_at}")

# %% [markdown] name="foreach_text"
# Below a certain micro-batch size the peak stops falling. It is now in the **optimizer step**, which holds gradients, moments and its own temporaries, but no
# activations. The size of the temporaries depends on how AdamW goes through the parameters.
#
# - `foreach=True`, the default on a GPU, runs each operation of the formula for *all* parameters together: few launches, and temporaries the size of
#   the whole model.
# - `foreach=False`, the default on a CPU, finishes one parameter after another: temporaries for one parameter at a time.
# - `fused=True` computes the whole formula in one kernel, without temporaries.

# %% name="foreach"
with sign_of_life("three implementations of AdamW"):
    ways = {"foreach=True": gpt[4]}
    ways |= {"foreach=False": gpt_meter(4, foreach=False), "fused=True": gpt_meter(4, fused=True)}
    smaller = gpt_meter(1, foreach=False)
of_model = {}
for name, meter in ways.items():
    during = next(stage for stage in meter.stages if stage.name == "optimizer step")
    settled = ("parameters", "gradients", "optimizer state", "inputs and other")
    of_model[name] = (during.peak_bytes - sum(during.held_after[t] for t in settled)) / meter.largest["parameters"]
    print(f"{name:14} peak {human_bytes(meter.peak_bytes)}, temporaries of the step: {of_model[name]:.2f} x the model")
looped = smaller.peak_bytes / ways["foreach=False"].peak_bytes
print(f"foreach=False: micro-batches of 1 need {looped:.2f} x the memory of micro-batches of 4")

# %% [markdown] name="nothing_explained"
# `foreach=True` holds one model-sized temporary, the square root of the second moment. It computes the rest of the formula in place.
#
# Once the peak is in the optimizer step, smaller micro-batches save nothing and cost time. With `foreach=False` the step needs less, so the peak still
# falls from micro-batches of 4 to micro-batches of 1.
#
# Is the peak always that of a plain step on one micro-batch? For the CNN it was, within a few percent. Now take four linear layers of
# 1024 × 1024 and a small one, with plain SGD, which keeps no state.
#
# **Predict.** A plain step sees 256 rows. The accumulated step sees two micro-batches of 256. What is the accumulated step's peak relative to the plain step's,
# inputs not counted?

# %% name="guess_wide"
my_guess = None  # peak of 2 x 256 / peak of a plain step on 256 rows
### BEGIN GUESS
my_guess = 1.2  # the first gradients are still there when the second ones arrive, layer by layer
### END GUESS
wide_guess = Prediction("Peak of 2 x 256, relative to a plain step on 256", my_guess, "times")

# %% name="price"
torch.manual_seed(0)
wide = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
rows, targets = torch.randn(512, 1024, device=device), torch.randint(10, (512,), device=device)
peaks = {}
for name, n in {"plain step, 256 rows": 256, "2 x 256": 512}.items():
    inputs = rows[:n].clone()
    with MemoryMeter(wide, optimizer) as meter:
        step(wide, optimizer, inputs, targets[:n], 256)
    wide.zero_grad()
    peaks[name] = meter.peak_bytes - inputs.nbytes
    print(f"{name:22} {human_bytes(peaks[name])} without its inputs, in {meter.peak_at}")
ratio = peaks["2 x 256"] / peaks["plain step, 256 rows"]
wide_guess.reveal(ratio)
claims.record(
    "C8", "the peak is that of the micro-batch", "wide MLP with SGD, inputs aside", ratio, "times", 0.95, 1.05
)

# %% [markdown] name="time_text"
# Gradients stay alive through the forward and backward passes of the later micro-batches, while a plain step starts without any. This matters when
# parameters are large and activations small.
#
# ### What it costs in time
#
# All variants run the same rows through the same layers. Accumulation loses time where a micro-batch is too small to keep the device busy. The
# alternative is to run the full batch and recompute activations ([[activation_checkpointing]]).
#
# **Predict.** How long do 64 micro-batches of 4 rows take, relative to one batch of 256?

# %% name="time_guess"
my_guess = None  # time, 64 x 4 / whole batch
### BEGIN GUESS
my_guess = 1.5
### END GUESS
time_guess = Prediction("Time of 64 x 4 / whole batch", my_guess, "times")


# %% name="time"
def checkpointed_step(model, optimizer, x, y, micro_batch):
    optimizer.zero_grad()
    stages, out = model.features, x
    for part in (stages[:3], stages[3:7], stages[7:]):  # each has at least one convolution
        out = checkpoint(part, out, use_reentrant=False)
    F.cross_entropy(model.head(out), y).backward()
    optimizer.step()


torch.manual_seed(0)
model = SmallCNN(CHANNELS).to(device)
optimizer = torch.optim.AdamW(model.parameters())
ways = {f"{256 // m} x {m}": lambda m=m: step(model, optimizer, images, labels, m) for m in (256, 64, 16, 4)}
ways["checkpointed"] = lambda: checkpointed_step(model, optimizer, images, labels, 256)
taken = {name: [] for name in ways}
with sign_of_life("five variants, taking turns"):
    for _ in range(6):
        for name, way in ways.items():  # taking turns, so that a temporary slowdown affects all alike
            taken[name].append(benchmark(way, runs=1, warmup=0).median)
ratios = {name: np.array(these[1:]) / taken["1 x 256"][1:] for name, these in taken.items()}  # round 0 warms up
paces = {name: np.median(these) for name, these in ratios.items()}
time_guess.reveal(paces["64 x 4"])
peaks = {f"{256 // m} x {m}": meter.peak_bytes for m, meter in cnn.items()}
peaks["checkpointed"] = measured(images, labels, 256, checkpointed_step).peak_bytes
table = [("", "time", "lowest to highest", "peak")]
for name, these in ratios.items():
    spread = f"{these.min():.1f} to {these.max():.1f}"
    table.append((name, f"{paces[name]:.1f} x", spread, human_bytes(peaks[name])))
show_table(table)

# %% [markdown] name="time_explained"
# Time grows once micro-batches are small. (A ratio a little below 1 is possible: smaller tensors may fit into a CPU's caches. If the highest figure in *lowest to highest* is at least 1.3 times the lowest, other programs disturbed the rounds:
# run the cell again when the machine is quieter.) The full batch, checkpointed, needs more memory than 4 × 64, and on a quiet machine more time, too. So keep cutting the batch as
# long as the device stays busy, and checkpoint when you need to save more memory. With FSDP, each additional micro-batch also gathers the weights again
# ([[sharding]]).
#
# ## 3 · Six mistakes
#
# You will make each mistake, measure its effect, and fix it. None of them raises an error.
#
# ### A gradient that is too long
#
# The loop below calls `backward()` on each micro-batch's mean loss and forgets the weight. With SGD that amounts to a learning rate that is 4 times too high. Train for 40 updates
# with the right gradient and with the naive one, and compare the first update and the loss.


# %% name="naive"
def naive(model, x, y, micro_batch):
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        F.cross_entropy(model(xs), ys).backward()


right, wrong = gradient(whole_batch, make_model(), x, y), gradient(naive, make_model(), x, y, 64)
longer, cosine = (wrong.norm() / right.norm()).item(), F.cosine_similarity(right, wrong, dim=0).item()
print(f"the naive gradient is {longer:.3f} times as long as the right one; cosine between them {cosine:.6f}")


# %% name="adam_hides"
def trained(method, make, clip=math.inf, updates=40):
    """Train on batches of 256 in four micro-batches; return the first update, the test loss, the gradients' norms."""
    model, norms = make_model(), []
    optimizer = make(model.parameters())
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    order = torch.Generator().manual_seed(0)
    for update in range(updates):
        rows = torch.randperm(len(data.train_x), generator=order)[:256].to(device)
        gradient(method, model, data.train_x[rows], data.train_y[rows], 64)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())  # the norm before clipping
        optimizer.step()
        if update == 0:
            moved = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    with torch.no_grad():
        return moved, F.cross_entropy(model(data.test_x), data.test_y).item(), norms


makers = {"SGD": lambda ps: torch.optim.SGD(ps, lr=0.3), "Adam": lambda ps: torch.optim.Adam(ps, lr=0.003)}
table, norms = [("", "first update, naive / right", "test loss, right", "test loss, naive")], {}
for name, make in makers.items():
    right_move, right_loss, norms[name] = trained(accumulate, make)
    naive_move, naive_loss, _ = trained(naive, make)
    longer = (naive_move.norm() / right_move.norm()).item()
    table.append((name, f"{longer:.3f}", f"{right_loss:.3f}", f"{naive_loss:.3f}"))
show_table(table)
quarter, middle, most = np.quantile(norms["SGD"], (0.25, 0.5, 0.75))
print(
    f"norm of the right gradient over the 40 updates with SGD: median {middle:.2f}, middle 50% {quarter:.2f} to {most:.2f}"
)

# %% [markdown] name="clip_text"
# Adam divides by the size of the gradient, so its update does not change, and neither does its loss after 40 updates. SGD's update is four times as
# long, yet its loss need not be worse.
#
# Gradient clipping depends on the gradient's norm. The last line of the output shows the norms of the right gradient over the 40 updates. Now clip both gradients at norm 1.
#
# **Predict.** What share of the 40 updates is clipped with the naive gradient?

# %% name="clip_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 75
### END GUESS
clip_guess = Prediction("Updates that are clipped, naive", my_guess, "%")

# %% name="clip"
table = [("clipped at norm 1", "updates that were clipped", "first update", "test loss")]
for method in (accumulate, naive):
    move, loss, these = trained(method, makers["SGD"], clip=1.0)
    share = np.mean([norm > 1 for norm in these])
    table.append((method.__name__, f"{share:.0%}", f"{move.norm().item():.3f}", f"{loss:.3f}"))
clip_guess.reveal(100 * share)
show_table(table)

# %% [markdown] name="adam_explained"
# With the naive gradient, far more updates are clipped: the threshold has a different meaning. Once clipped, both gradients have the same length, so the first updates look alike.
# The losses in the two tables do not show this mistake. The gradient *norm* does: log it.
#
# ### A smaller last micro-batch
#
# 200 rows taken 64 at a time make micro-batches of 64, 64, 64 and 8. The usual loop divides each loss by the number of micro-batches, so each row of the last micro-batch
# gets too much weight. The next cell shows how much, and how far off the gradient is:


# %% name="ragged"
def by_pieces(model, x, y, micro_batch):
    """Divide by the number of micro-batches, whatever their size."""
    pieces = x.split(micro_batch)
    for xs, ys in zip(pieces, y.split(micro_batch), strict=True):
        (F.cross_entropy(model(xs), ys) / len(pieces)).backward()


model = make_model()
x200, y200 = data.train_x[:200], data.train_y[:200]
own = nn.Linear(200, 10, bias=False).to(device)  # row i of the identity affects only column i
nn.init.zeros_(own.weight)
weights = gradient(by_pieces, own, torch.eye(200, device=device), y200, 64).view(10, 200).norm(dim=0)
print(f"weight of a row in the last micro-batch, relative to the first: {(weights[-1] / weights[0]).item():.1f}")
whole = gradient(whole_batch, model, x200, y200)
for method in (by_pieces, accumulate):
    away = distance(gradient(method, model, x200, y200, 64), whole)
    print(f"{method.__name__:11} relative distance from the whole batch: {away:.2g}")

# %% [markdown] name="tokens_text"
# ### Ignored tokens
#
# Text rows differ in length, and padding does not count (target -100). `F.cross_entropy` takes the mean over the targets that count *in the micro-batch*, so a micro-batch of short
# rows has the same weight as one of long rows. Many training libraries had this bug for years, until a comparison of loss curves in October 2024 exposed it (see the sources).
#
# ### Your turn: tokens
#
# **Contract.** `accumulate_tokens(model, ids, targets, micro_batch)` is like `accumulate`, for a language model. The mean is over all **targets that
# count** in the full batch.
#
# - `ids` and `targets` are (N, T), int64. `model(ids)` returns logits (N, T, vocabulary). A target of -100 does not count; at least one target does.
# - Each target that counts has the same weight, 1 / (number of all targets that count), so a micro-batch's weight depends on its targets and not on its rows. A micro-batch
#   in which none counts adds nothing, and may be skipped.
# - Micro-batches, memory, existing gradients, and what must not change: as in the first task. `micro_batch` may be larger than N.
# - It returns the mean loss over the targets that count: a number, or a detached scalar tensor.


# %% name="tokens" answer=true reveal=true
def accumulate_tokens(model, ids, targets, micro_batch):
    ### BEGIN SOLUTION
    counted = (targets != -100).sum()
    mean = 0.0
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch), strict=True):
        logits = model(xs).flatten(0, 1)  # (n x T, vocabulary)
        part = F.cross_entropy(logits, ys.flatten(), reduction="sum") / counted
        part.backward()
        mean = mean + part.detach()
    return mean
    ### END SOLUTION


# %% name="tokens_check"
accumulate_tokens = check("gradient_accumulation.tokens", accumulate_tokens)

# %% name="tokens_hint"
hint("gradient_accumulation.tokens")

# %% [markdown] name="means_text"
# **Predict.** A GPT reads 64 rows in four micro-batches. Each row has between 2 and 32 targets that count, and the rows are sorted by length. What is the relative
# error of the gradient that older libraries computed?

# %% name="means_guess"
my_guess = None  # relative distance
### BEGIN GUESS
my_guess = 0.5  # the few targets of the short rows weigh several times too much
### END GUESS
means_guess = Prediction("Mean of means, distance from the full batch", my_guess, "relative")


# %% name="mean_of_means"
def mean_of_means(model, ids, targets, micro_batch):
    """What libraries did: the mean of the micro-batches' means."""
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch), strict=True):
        (F.cross_entropy(model(xs).flatten(0, 1), ys.flatten()) * len(xs) / len(ids)).backward()


padded = next_ids.clone()
lengths = torch.linspace(2, 32, 64).long()  # sorted by length, as in loaders that minimize padding
for row, length in enumerate(lengths):
    padded[row, length:] = -100
torch.manual_seed(0)
model = SmallGPT(context=32, layers=2, width=64).to(device)
whole = gradient(accumulate_tokens, model, ids, padded, 64)
for method in (mean_of_means, accumulate_tokens):
    away = distance(gradient(method, model, ids, padded, 16), whole)
    print(f"{method.__name__:17} relative distance from the whole batch: {away:.2g}")
    if method is mean_of_means:
        means_guess.reveal(away)
        claims.record("C8", SAME_GRADIENT, "GPT, rows of 2 to 32, mean of means", away, "relative", 0, 1e-5)

# %% [markdown] name="tokens_explained"
# The fix needs a number that a single micro-batch does not have: how many targets count in the **full** batch. Count first, then loop over the
# micro-batches. (With several GPUs, the full batch is that of all GPUs together.)
#
# ### Norms
#
# **Predict.** Four networks differ only in their norm layer: BatchNorm, BatchNorm in evaluation mode, GroupNorm, LayerNorm. How many of them get a
# different gradient (beyond rounding) when 256 rows come in micro-batches of 16?

# %% name="guess_norms"
my_guess = None
### BEGIN GUESS
my_guess = 1  # only BatchNorm in training mode mixes rows
### END GUESS
norms_guess = Prediction("Networks whose gradient the split changes", my_guess, "of 4")

# %% name="batchnorm"
norms = {
    "BatchNorm": nn.BatchNorm1d(128),
    "BatchNorm, evaluation mode": nn.BatchNorm1d(128).eval(),
    "GroupNorm": nn.GroupNorm(4, 128),
    "LayerNorm": nn.LayerNorm(128),
}
moved = {}
for name, norm in norms.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), norm, nn.ReLU(), nn.Linear(128, 10)).to(device)
    moved[name] = distance(gradient(accumulate, model, x, y, 16), gradient(whole_batch, model, x, y))
    print(f"{name:27} relative distance {moved[name]:.1e}")
norms_guess.reveal(sum(away > 1e-5 for away in moved.values()))
claims.record("C8", SAME_GRADIENT, "MLP with BatchNorm, 16 x 16", moved["BatchNorm"], "relative", 0, 1e-5)
seen = {}
for micro_batch in (256, 16):
    layer = nn.BatchNorm1d(64).to(device)
    for part in (x.flatten(1) + 5).split(micro_batch):  # mean 5, so that the running mean has some way to go
        layer(part)
    seen[micro_batch] = layer.running_mean.mean().item()
print(f"running mean after one batch of 256: {seen[256]:.2f}; after the same rows in 16 micro-batches: {seen[16]:.2f}")

# %% [markdown] name="batchnorm_explained"
# BatchNorm in training mode normalizes with the mean and variance of the rows it sees. The split changes two things.
#
# - The gradient: no weighting restores the statistics of the full batch.
# - The *running* statistics, which evaluation uses: they are updated once per micro-batch, so with momentum 0.1 they forget faster.
#
# GroupNorm and LayerNorm look at one row at a time, and BatchNorm in evaluation mode uses fixed statistics. So use GroupNorm from the start or, in
# fine-tuning, BatchNorm in evaluation mode.
#
# ### The schedule
#
# A warm-up of 100 steps means 100 optimizer steps. If the scheduler steps after each of four micro-batches, the warm-up ends too early:

# %% name="schedule"
ends = {}
for where in ("after each update", "after each micro-batch"):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=100)
    ends[where] = 0
    while warm_up.get_last_lr()[0] < 0.9999:
        optimizer.step()
        ends[where] += 1
        for _ in range(4 if where == "after each micro-batch" else 1):
            warm_up.step()
print(f"updates until the warm-up is over: {ends}")

# %% [markdown] name="ddp_text"
# ### Too many messages
#
# With several GPUs ([[data_parallel]]), `DistributedDataParallel` (DDP) averages gradients over all GPUs in every backward pass. During accumulation, only
# the last pass needs that. DDP's context manager `no_sync()` suspends the communication. Find out what must run inside it.
#
# ### Your turn: a replica
#
# **Contract.** `accumulate_replica(replica, x, y, micro_batch)` is like `accumulate`, for a model wrapped in DDP.
#
# - The gradients are sent once per call, with the last micro-batch, after everything has been added up.
# - The gradient is that of the mean over all rows of this rank (this process, one of several), even with a smaller last micro-batch. (DDP then averages over the ranks.)
# - The model sees each row once, in order, at most `micro_batch` rows at a time.
# - It returns the mean loss over all rows: a number, or a detached scalar tensor.
#
# The check uses one process: DDP with world size 1, and a hook that records what would be sent.


# %% name="replica" answer=true reveal=true
def accumulate_replica(replica, x, y, micro_batch):
    ### BEGIN SOLUTION
    pieces = list(zip(x.split(micro_batch), y.split(micro_batch), strict=True))
    so_far = 0.0
    for i, (xs, ys) in enumerate(pieces):
        last = i == len(pieces) - 1
        with contextlib.nullcontext() if last else replica.no_sync():
            loss = F.cross_entropy(replica(xs), ys) * (len(xs) / len(x))
            loss.backward()
        so_far += loss.detach()
    return so_far
    ### END SOLUTION


# %% name="replica_check"
accumulate_replica = check("gradient_accumulation.replica", accumulate_replica)

# %% name="replica_hint"
hint("gradient_accumulation.replica")


# %% [markdown] name="sent_text"
# Now compare the traffic of `accumulate_replica` with that of three others: one without `no_sync`, and two with `no_sync` around only one of the two passes.


# %% name="sent"
def around(passes):
    """Return a method that has `no_sync` around these passes of all but the last of four micro-batches."""

    def method(replica, x, y, micro_batch):
        for i, (xs, ys) in enumerate(zip(x.split(micro_batch), y.split(micro_batch), strict=True)):
            quiet = {name: contextlib.nullcontext() for name in ("forward", "backward")}
            quiet |= {name: replica.no_sync() for name in passes if i < 3}
            with quiet["forward"]:
                loss = F.cross_entropy(replica(xs), ys) / 4
            with quiet["backward"]:
                loss.backward()

    return method


def record(_, bucket):
    sent.append(bucket.buffer().nbytes)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
replica, sent = DistributedDataParallel(make_model().cpu()), []
replica.register_comm_hook(None, record)
variants = {"without no_sync": around([])}
variants |= {f"no_sync around {one} only": around([one]) for one in ("backward", "forward")}
variants["accumulate_replica"] = accumulate_replica
for name, method in variants.items():
    sent.clear()
    method(replica, x.cpu(), y.cpu(), 64)
    print(f"{name:31} {sum(sent):>9,} bytes in {len(sent)} all-reduces")
dist.destroy_process_group()

# %% [markdown] name="critical_text"
# `no_sync` must enclose the **forward** pass: DDP decides there whether the backward pass will send. The usual code encloses both passes.
#
# ## 4 · How large a batch is worthwhile?
#
# Accumulation allows any batch size. But its micro-batches run one after the other, so a step on twice the rows takes twice the time. Doubling the batch
# pays only if it halves the number of steps.
#
# A larger batch gives a gradient with less noise. Once there is little noise left, more rows hardly help. McCandlish et al. (2018) fitted a simple formula for
# the number of rows needed to reach a given loss, with a learning rate tuned for each batch size B:
#
# $$\text{rows}(B) = \text{rows}_\text{min} \cdot \left(1 + \frac{B}{B_\text{crit}}\right)$$
#
# Far below the **critical batch size** the number of rows stays the same, and four times the batch takes a quarter of the steps. Far above it the *steps* stay the same.
#
# `ByteNets` trains a network of 6,000 parameters that predicts the next byte of English text from four bytes. For each batch size it tries four
# learning rates and stops when the first of them reaches a loss of 2.6. We repeat this with three seeds.

# %% [markdown] name="critical_guess_text"
# For this network and this loss, the critical batch size is about 500 rows.
#
# **Predict.** By what factor does the number of *steps* fall when you go from 512 rows per step to 2,048?

# %% name="critical_guess"
my_guess = None  # steps with 512 rows / steps with 2,048 rows
### BEGIN GUESS
my_guess = 2
### END GUESS
critical_guess = Prediction("Steps with 512 rows / with 2,048", my_guess, "times")

# %% name="critical"
nets, target, seeds = ByteNets(device), 2.6, (1, 2, 3)
batches, rows_needed, best, threads = (8, 32, 128, 512, 2048), {}, {}, torch.get_num_threads()
torch.set_num_threads(1)  # so small a network gains nothing from a second thread
for batch in batches:
    rates = [0.001 * batch**0.5 * 2**k for k in (0, 1, 2, 3)]  # around a square-root rule
    tuned = 0.95 ** (batch / 512)  # remembers the same number of rows, whatever the batch size
    with sign_of_life(f"training with {batch} rows per step, three times"):
        runs = [nets.rows_until(target, batch, rates, [tuned] * 4, seed) for seed in seeds]
    rows_needed[batch] = [rows for rows, _ in runs]
    best[batch] = np.median([rates[np.argmin(losses)] for _, losses in runs])
    low, mean, high = min(rows_needed[batch]), np.mean(rows_needed[batch]), max(rows_needed[batch])
    print(
        f"{batch:5} rows per step: {mean / batch:7.0f} steps, {mean:8,.0f} rows (from {low:,} to {high:,}), rate {best[batch]:.4f}"
    )
torch.set_num_threads(threads)
means = {batch: np.mean(rows) for batch, rows in rows_needed.items()}
fewer = (means[512] / 512) / (means[2048] / 2048)
critical_guess.reveal(fewer)


def critical_batch(rows):
    """Fit the formula to rows by batch size; return B_crit and rows_min."""
    each, fewest = np.polyfit(list(rows), list(rows.values()), 1, w=[1 / n for n in rows.values()])
    return fewest / each, fewest


by_seed = [critical_batch({b: rows[i] for b, rows in rows_needed.items()})[0] for i in range(len(seeds))]
critical, fewest = critical_batch(means)
print(f"critical batch size: {critical:,.0f} rows; by seed {', '.join(f'{each:,.0f}' for each in by_seed)}")
formula = (1 + critical / 512) / (1 + critical / 2048)
print(f"512 -> 2,048 rows: {fewer:.2f} x fewer steps; the fitted formula gives {formula:.2f}")
print(
    f"by the formula, going beyond 2,048 rows can cut the steps by at most another factor of {1 + critical / 2048:.2f}"
)
claims.figure("512 -> 2,048 rows, fewer steps", "6,000 parameters, critical size near 512", fewer, "times")

# %% name="critical_figure"
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
axes.loglog(batches, [n / b for b, n in means.items()], "o-", base=2, color=COLORS[0], label="steps")
axes.loglog(batches, list(means.values()), "s-", base=2, color=COLORS[4], label="rows")
fitted = [fewest * (1 + b / critical) for b in batches]
axes.loglog(batches, fitted, ":", base=2, color=COLORS[7], label="the formula, fitted")
axes.axvline(critical, color=COLORS[7], ls="--", lw=1)
axes.set(title="Needed for a loss of 2.6, mean of three seeds", xlabel="rows per step", ylabel="steps or rows")
axes.legend(frameon=False)
show(
    figure,
    "Steps fall in inverse proportion to the batch size at first and then level out; rows are level at first and then rise.",
)

# %% [markdown] name="rate_text"
# Above the figure, every line that begins with a batch size ends with the best rate for it. These rates answer an old question: by how much does a larger batch raise the best learning rate? With eight ranks instead of one, or eight micro-batches, the batch has eight times as many rows.
# For SGD, Goyal et al. (2017) then multiply the rate by 8, too (**linear scaling**): eight small steps in nearly the same direction amount to one step of eight times the length. That works as long as the gradient
# changes little along the way. The length of Adam's steps does not depend on the length of the gradient, and the usual first guess for Adam is the square root. Compare it with the best rates: from 8 to 2,048 rows, 256 times as many, the square root gives a factor of 16. (The four rates tried are 1 to 8 times a rate that follows this rule, so the best one can grow by a factor of 2 to 128.)

# %% name="rate"
grown = best[2048] / best[8]
print(
    f"from 8 to 2,048 rows the best of four rates grows {grown:.0f} x; linear scaling predicts 256 x, the square root 16 x"
)

# %% [markdown] name="rate_explained"
# The rates tried differ by factors of two. The growth of the best rates is within one grid step of what the square-root rule predicts. In the theory of McCandlish et al., which is for SGD, the best rate stops growing beyond the critical batch size, because a gradient with
# little noise left does not allow longer steps; these rates are too coarse to show it. Either rule is a first guess for a search, not a replacement for one.

# %% [markdown] name="betas_text"
# A batch four times as large gets by with the same number of rows only if the number of steps falls to a quarter. At 512 rows you are at about the critical size: going to 2,048 rows still saves steps, but
# the number of rows grows by a larger factor than the number of steps falls. "A larger batch buys nothing beyond the critical size" holds only in the formula's limit of very large batches. The line that begins "by the formula" shows how little is left to gain.
#
# - **To the left** of the figure's dashed line, the number of rows rises slowly: a larger batch costs little, and on several GPUs it saves time.
# - **To the right**, accumulation processes many more rows for the same loss, one micro-batch after the other. It still needs fewer steps, but that helps
#   only if the rows are computed in parallel.
#
# The estimates by seed differ, so treat one run's critical batch size as an order of magnitude. It is not a constant of the model, either. It grows early in
# training and then levels off, which is why large runs warm up their batch size (Merrill et al. 2025). It scales with the amount of training data rather
# than with the size of the model (Zhang et al. 2024). For large language models it is millions of tokens.
#
# To the left of the line, people often accumulate because "small batches are unstable". Part of that instability is Adam: $\beta_2$ sets how many
# **steps** the average of the squared gradients remembers. With 1/64 of the rows per step, it remembers 1/64 of the rows. The runs above accounted for
# that: β₂ was 0.95 at 512 rows and closer to 1 for smaller batches, so that it remembered the same number of rows.
#
# **Predict.** Now take 4 rows per step, and train eight networks: each of the four learning rates once with the tuned β₂ and once with 0.95. When the best network with the tuned β₂ reaches a loss of 2.6, how far
# above 2.6 is the lowest loss with 0.95?

# %% name="betas_guess"
my_guess = None  # loss - 2.6
### BEGIN GUESS
my_guess = 0.5  # they forget the gradients of all but the last 80 rows
### END GUESS
betas_guess = Prediction("Excess loss with beta_2 = 0.95, 4 rows per step", my_guess, "")

# %% name="betas"
torch.set_num_threads(1)
tuned, rates, found = 0.95 ** (4 / 512), [0.001 * 4**0.5 * 2**k for k in (0, 1, 2, 3)], []
with sign_of_life("training with 4 rows per step, three times"):
    for seed in seeds:
        found.append(nets.rows_until(target, 4, 2 * rates, [tuned] * 4 + [0.95] * 4, seed))
torch.set_num_threads(threads)
untuned = [min(losses[4:]) for _, losses in found]
betas_guess.reveal(np.mean(untuned) - target)
for seed, (rows, losses) in zip(seeds, found, strict=True):
    best = f"best loss {min(losses[:4]):.3f} with beta_2 = {tuned:.4f}, {min(losses[4:]):.3f} with 0.95"
    print(f"seed {seed}: after {rows:,} rows, 4 per step, {best}")
few = [rows for rows, _ in found]
print(f"mean: {np.mean(few):,.0f} rows with 4 per step, {means[128]:,.0f} with 128 per step")
most = max(four / many for four, many in zip(few, rows_needed[128], strict=True))
said = "small batches need no accumulation"
claims.record("C26", said, "4 rows, beta_2 tuned, against 128, worst of 3 seeds", most, "x the rows", 0, 1.25)

# %% [markdown] name="betas_explained"
# So be clear about your reason before you use accumulation to enlarge the batch.
#
# - **To keep a batch size that is known to train well** on a smaller GPU: that is what this lab is about.
# - **To keep the device busy**: choose a micro-batch that is large enough. This does not require many micro-batches per update.
# - **Because small batches train badly**: first tune the learning rate and β₂ (Marek et al. 2025, down to a batch of one).
#
# ## 5 · Your turn: the largest micro-batch that fits
#
# Given a memory budget, find the largest micro-batch that stays within it: fewer, larger micro-batches are faster. Trying all sizes takes a long
# time. Section 2 showed that a few measurements are enough: the peak is flat while it is in the optimizer step, then it follows a straight line.
#
# **Contract.** `largest_micro_batch(peak_bytes, budget, most)` returns the largest number of rows m, 1 ≤ m ≤ `most`, with `peak_bytes(m) <= budget`; 0 if not even one row
# fits. The result is an int.
#
# - `peak_bytes(m)` measures and returns the peak for a micro-batch of m rows (1 ≤ m ≤ `most`). It is the maximum of a constant and *fixed + each × m*. At `most` and at
#   `most // 2` it is on the line. Call it **at most four times**.
# - `budget` is in bytes, `most` is even, and *each* is positive. All are integers.


# %% name="largest" answer=true reveal=true
def largest_micro_batch(peak_bytes, budget, most):
    ### BEGIN SOLUTION
    half, whole = peak_bytes(most // 2), peak_bytes(most)
    each = (whole - half) // (most - most // 2)
    fixed = whole - each * most
    rows = max(1, min(most, (budget - fixed) // each))
    return rows if peak_bytes(rows) <= budget else 0  # on the flat part, fewer rows would not help either
    ### END SOLUTION


# %% name="largest_check"
largest_micro_batch = check("gradient_accumulation.largest", largest_micro_batch)

# %% name="largest_hint"
hint("gradient_accumulation.largest")

# %% [markdown] name="largest_real_text"
# The check uses invented numbers. Try `largest_micro_batch` on the real CNN and its batch of 256, with a third of the full batch's peak as the budget:

# %% name="largest_real"
calls, budget = {}, cnn[256].peak_bytes // 3


def cnn_peak(micro_batch):
    calls[micro_batch] = measured(images, labels, micro_batch).peak_bytes
    return calls[micro_batch]


with sign_of_life("a few measurements"):
    found = largest_micro_batch(cnn_peak, budget, 256)
print(f"measured {sorted(calls)}: {', '.join(human_bytes(calls[m]) for m in sorted(calls))}")
print(f"budget {human_bytes(budget)}; found {found} rows")
if found:
    print(f"{found} rows take {human_bytes(cnn_peak(found))}, {found + 1} take {human_bytes(cnn_peak(found + 1))}")
else:
    print("The fitted line promised more than fits. A GPU's allocator rounds sizes up, so leave a margin.")

# %% [markdown] name="play_text"
# ## 6 · Explore
#
# The figure shows one optimizer step on 256 digits, in micro-batches of the size that you choose. Activations rise and fall once per micro-batch, and gradients stay in memory in between.

# %% name="play"
explore(
    lambda micro_batch: cnn[micro_batch].plot(f"256 rows in micro-batches of {micro_batch}"),
    "Memory over one step: activations rise and fall once per micro-batch; more micro-batches mean lower peaks.",
    micro_batch=(64, tuple(cnn)),
)

# %% [markdown] name="summary_text"
# ## 7 · Before and after

# %% name="summary"
torch.manual_seed(0)
normed = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.GroupNorm(4, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
reference = gradient(whole_batch, normed, images, labels)
table = [("", "CNN peak", "of full", "time", "gradient differs by")]
for m, meter in cnn.items():
    away = distance(gradient(accumulate, normed, images, labels, m), reference)
    pace = paces.get(f"{256 // m} x {m}")
    share = f"{meter.peak_bytes / cnn[256].peak_bytes:.0%}"
    table.append(
        (f"{256 // m} x {m}", human_bytes(meter.peak_bytes), share, f"{pace:.1f} x" if pace else "-", f"{away:.1e}")
    )
show_table(table)
print("(the last column is for a network without BatchNorm)")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Gradients of a mean add up, and only one micro-batch's activations are needed at a time. Effective batch = micro-batch × accumulation steps (× GPUs).
# - Give every **row** (or token) the same weight. Dividing by the number of micro-batches is right only if they all have the same size.
# - The line *fixed + each × rows* shows what accumulation can save. Once the peak is in the optimizer step, smaller micro-batches save nothing.
# - Some things do not add up: BatchNorm, schedules, clipping, communication (`no_sync` around the forward pass, too). Sums in pure BF16 lose digits with many micro-batches: add up in FP32.
# - Above the critical batch size a larger batch costs rows, and accumulated rows cost time.
#
# **What to reach for when.** If activations are the largest category and the batch size is above one, accumulate as long as the device stays busy. Then
# checkpoint ([[activation_checkpointing]]); section 2 compares their times. If the peak is in the optimizer step, see [[lean_optimizers]].
#
# **Sources.** PyTorch documentation, *torch.amp: gradient accumulation*, and `DistributedDataParallel.no_sync`; Hugging Face, *Fixing Gradient Accumulation* (October 2024), on token-weighted losses; Wu and
# He 2018, *Group Normalization*; Goyal et al. 2017, *Accurate, Large Minibatch SGD*; McCandlish et al. 2018, *An Empirical Model of Large-Batch Training*; Zhang et al. 2024, *How Does Critical Batch Size Scale in Pre-training?*
# ([arXiv 2410.21676](https://arxiv.org/abs/2410.21676)); Merrill et al. 2025, *Critical Batch Size Revisited* ([arXiv 2505.23971](https://arxiv.org/abs/2505.23971)); Marek et al. 2025, *Small Batch Size Training for Language Models*.
