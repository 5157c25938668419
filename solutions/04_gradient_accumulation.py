# %% [markdown] name="title"
# # Gradient accumulation
#
# **You can feed a batch in pieces: gradients add up, so you get the update of the whole batch with the activations of one piece, if you weight the
# pieces correctly and know what does not add up.**
#
# | | |
# |---|---|
# | After this you can | accumulate gradients and prove that the update is the same; say what memory it saves and when it saves none; recognise six ways to get it wrong by their numbers |
# | Time | 75 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | labs [[#start_here]], [[#where_memory_goes]], [[#number_formats]] and [[#mixed_precision]] |
# | Syllabus | T8, C8, P4 |
#
# Exercise X2, the graded notebook after this one, uses all of it.

# %% name="setup" setup=true

import math

from helpers import (
    COLOURS,
    Claims,
    MemoryMeter,
    Prediction,
    SmallCNN,
    SmallGPT,
    check,
    compare,
    device_name,
    digits,
    english,
    explore,
    human_bytes,
    pick_device,
    show,
    tenant_table,
)

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · The idea
#
# Somebody found that a batch of 256 trains well. Your GPU holds 64. Carry the shopping home in four trips: the kitchen does not care.
#
# The gradient of a mean is the mean of the gradients. So: feed 64 rows, `backward()`, feed the next 64, `backward()` again. PyTorch **adds** to
# `.grad` instead of overwriting it; after four *micro-batches* the gradients of all 256 rows are in there. Then step, once.
#
# First the obvious way to write it, which is wrong. The model is a small network of GroupNorm and linear layers on digits.


# %% name="naive"
data = digits(device)


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.GroupNorm(4, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers).to(device, dtype)


def whole_batch(model, x, y, micro_batch=None):
    F.cross_entropy(model(x), y).backward()


def naive(model, x, y, micro_batch):
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        F.cross_entropy(model(xs), ys).backward()


def gradient(method, model, x, y, micro_batch=None):
    """Return the gradient that `method` leaves in `.grad`, all parameters in one vector."""
    model.zero_grad()
    method(model, x, y, micro_batch)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def distance(a, b):
    """Return how far `a` is from `b`, relative to the length of `b`."""
    return ((a - b).norm() / b.norm()).item()


# %% [markdown] name="guess_naive_text"
# **Predict.** Take the naive gradient of 256 rows in four micro-batches of 64. How many times as long as the gradient of the whole batch is it?

# %% name="guess_naive"
my_guess = None
### BEGIN GUESS
my_guess = 4  # each backward() adds the mean of 64 rows; four means are four times the mean
### END GUESS
naive_guess = Prediction("Length of the naive gradient, relative to the right one", my_guess, "times")

# %% name="measure_naive"
x, y = data.train_x[:256], data.train_y[:256]
model = make_model()
right, wrong = gradient(whole_batch, model, x, y), gradient(naive, model, x, y, 64)
naive_guess.reveal((wrong.norm() / right.norm()).item())
print(f"direction: cosine {F.cosine_similarity(right, wrong, dim=0).item():.6f}")
longer = (wrong.norm() / right.norm()).item()
claims.record("P4", "no division: the gradient is 4 times too long", "MLP, 4 x 64", longer, "times", 3.99, 4.01)

# %% [markdown] name="naive_explained"
# The direction is right, the length is not: by accident, the learning rate is four times too high. Divide each loss by the number of micro-batches:


# %% name="divided"
def accumulate(model, x, y, micro_batch):
    """Leave the gradient of the mean loss over all rows in `.grad`; micro-batches of equal size."""
    pieces = x.split(micro_batch)
    for xs, ys in zip(pieces, y.split(micro_batch), strict=True):
        (F.cross_entropy(model(xs), ys) / len(pieces)).backward()


# %% [markdown] name="equal_text"
# ### The same numbers
#
# Is it *equal*, or nearly equal? Computers add in some order, and floating-point sums depend on that order. Compare formats with more and fewer
# digits:

# %% name="equal"
for dtype in (torch.float64, torch.float32, torch.bfloat16):
    if device.type == "mps" and dtype == torch.float64:
        continue
    model = make_model(dtype)
    inputs = x.to(dtype)
    off = distance(gradient(accumulate, model, inputs, y, 64), gradient(whole_batch, model, inputs, y))
    print(
        f"{str(dtype).removeprefix('torch.'):9} relative distance {off:.1e}, epsilon of the format {torch.finfo(dtype).eps:.1e}"
    )
    if dtype == torch.float32:
        claims.record("C8", "the gradient equals the whole batch's", "MLP, FP32, 4 x 64", off, "relative", 0, 1e-5)
    if dtype == torch.bfloat16:
        claims.record("C8", "the gradient equals the whole batch's", "MLP, pure BF16, 4 x 64", off, "relative", 0, 1e-5)

for micro_batch in (64, 16, 4, 1):
    model, inputs = make_model(torch.bfloat16), x.bfloat16()
    off = distance(gradient(accumulate, model, inputs, y, micro_batch), gradient(whole_batch, model, inputs, y))
    print(f"bfloat16 in micro-batches of {micro_batch:2}: relative distance {off:.1e}")

# %% [markdown] name="equal_explained"
# The distance follows the format's epsilon: it is rounding and nothing else. In pure BF16, where `.grad` itself has 8 significant bits, rounding is
# no longer negligible. With *many* micro-batches it gets worse, because small gradients are added to a large sum (swamping, [[number_formats]]).
# Under autocast `.grad` is FP32, and the problem does not arise.
#
# ## 2 · What it saves
#
# **Predict.** The CNN of [[mixed_precision]] takes one AdamW step on 256 digits of 16 × 16 pixels. In one batch that needs about 60 MiB. How many
# **MiB** does it need in four micro-batches of 64?


# %% name="guess_memory"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 60 / 4 + 1  # a quarter of the activations; parameters, gradients and Adam's state are below 1 MiB
### END GUESS
memory_guess = Prediction("Peak with micro-batches of 64", my_guess, "MiB")


# %% name="step"
def step(model, optimizer, x, y, micro_batch):
    """One optimizer step; micro-batches of equal size."""
    optimizer.zero_grad()
    accumulate(model, x, y, micro_batch)
    optimizer.step()


def measured(make, x, y, micro_batch):
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, x, y, micro_batch)
    with MemoryMeter(model, optimizer) as meter:
        step(model, optimizer, x, y, micro_batch)
    return meter


large = digits(device, size=16)
images, labels = large.train_x[:256].clone(), large.train_y[:256].clone()
cnn = {m: measured(lambda: SmallCNN(32), images, labels, m) for m in (256, 128, 64, 32, 16, 8)}
memory_guess.reveal(cnn[64].peak_bytes / MiB)
print(tenant_table({"whole": cnn[256], "4 x 64": cnn[64], "32 x 8": cnn[8]}))

# %% name="memory_figure"
figure = Figure(figsize=(7, 3.2), layout="constrained")
axes = figure.add_subplot()
axes.plot(list(cnn), [m.peak_bytes / MiB for m in cnn.values()], "o-", color=COLOURS[0], label="peak")
axes.plot(
    list(cnn), [m.largest["activations"] / MiB for m in cnn.values()], "s--", color=COLOURS[4], label="activations"
)
axes.set(title="256 digits in micro-batches", xlabel="rows in a micro-batch", ylabel="MiB", ylim=(0, None))
axes.legend(frameon=False)
show(figure, "Peak and activations grow in straight lines with the rows of a micro-batch.")

# %% [markdown] name="memory_explained"
# (The table shows each tenant at its own largest moment, so a column adds up to more than its peak.)
#
# Straight lines: a fixed part, plus so many bytes per row. Where a line meets the axis is what accumulation cannot save: parameters, gradients,
# optimizer state, and the whole batch of inputs, which is always there.
#
# "The peak is that of the micro-batch": compare with a plain step on 64 rows.

# %% name="micro_claim"
plain = measured(lambda: SmallCNN(32), images[:64].clone(), labels[:64].clone(), 64)
ratio = (cnn[64].peak_bytes - images.nbytes) / (plain.peak_bytes - images[:64].nbytes)
print(f"4 x 64: {human_bytes(cnn[64].peak_bytes)}; a plain step on 64 rows: {human_bytes(plain.peak_bytes)}")
claims.record("C8", "the peak is that of the micro-batch", "CNN, inputs aside", ratio, "times", 0.95, 1.05)

# %% [markdown] name="nothing_text"
# ### When it buys little, or nothing
#
# A GPT has more parameters for each row it reads. **Predict**: a GPT of 3.3 million parameters trains with AdamW on 64 sequences of 32 characters.
# How much memory do 64 micro-batches of one row need, relative to 16 micro-batches of four rows?

# %% name="guess_nothing"
my_guess = None  # peak with micro-batches of 1 / peak with micro-batches of 4
### BEGIN GUESS
my_guess = 1.0  # with so many parameters the optimizer step is the peak already
### END GUESS
nothing_guess = Prediction("Peak with micro-batches of 1, relative to 4", my_guess, "times")

# %% name="nothing"
text = english(device)
ids, next_ids = text.train_x[: 64 * 32].view(64, 32).clone(), text.train_y[: 64 * 32].view(64, 32).clone()


class FlatLogits(nn.Module):
    """A GPT that returns logits as rows of a classifier: (B x T, vocabulary) for (B, T) ids."""

    def __init__(self):
        super().__init__()
        self.gpt = SmallGPT(context=32, layers=4, width=256)

    def forward(self, ids):
        return self.gpt(ids).flatten(0, 1)


def gpt_step(model, optimizer, micro_batch):
    optimizer.zero_grad()
    pieces = ids.split(micro_batch)
    for xs, ys in zip(pieces, next_ids.split(micro_batch), strict=True):
        (F.cross_entropy(model(xs), ys.flatten()) / len(pieces)).backward()
    optimizer.step()


gpt = {}
for micro_batch in (64, 16, 4, 1):
    torch.manual_seed(0)
    model = FlatLogits().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)  # the default on a GPU
    gpt_step(model, optimizer, micro_batch)
    with MemoryMeter(model, optimizer) as meter:
        gpt_step(model, optimizer, micro_batch)
    gpt[micro_batch] = meter
nothing_guess.reveal(gpt[1].peak_bytes / gpt[4].peak_bytes)
for micro_batch, meter in gpt.items():
    print(f"micro-batch {micro_batch:2}: peak {human_bytes(meter.peak_bytes):>10} in {meter.peak_at}")

# %% [markdown] name="nothing_explained"
# Below a certain micro-batch the peak stops moving: it is now in the **optimizer step**, which holds gradients, moments and temporaries, and no
# activations at all. Smaller micro-batches then save nothing and cost time.
#
# There is also a price that a plain step does not pay: gradients stay alive through the forward passes of the later micro-batches. A plain step can
# free them between steps. For a model with large parameters and small activations, accumulation can even need *more* than a plain step on the same
# micro-batch.

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
claims.record(
    "C8", "the peak is that of the micro-batch", "wide MLP with SGD, inputs aside", ratio, "times", 0.95, 1.05
)

# %% [markdown] name="time_text"
# ### What it costs
#
# The same rows go through the same layers. Time is lost only where a micro-batch is too small to keep the device busy:

# %% name="time"
torch.manual_seed(0)
model = SmallCNN(32).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for micro_batch in (64, 16, 4):
    pace = compare(
        lambda: step(model, optimizer, images, labels, 256),
        lambda m=micro_batch: step(model, optimizer, images, labels, m),
        runs=3,
        warmup=1,
    )
    print(f"micro-batches of {micro_batch:2}: {1 / pace.speedup:.2f} x the time of the whole batch")

# %% [markdown] name="time_explained"
# On a CPU smaller pieces may even be faster for a while, because they fit its cache. On a GPU the whole batch is rarely slower. Below a certain size
# the time always rises.

# %% [markdown] name="pitfalls_text"
# ## 3 · Six ways to get it wrong
#
# You will see each mistake happen, measure it, and see the repair. All of them train without an error message.
#
# ### Wrong length, and why Adam hides it
#
# The naive gradient is 4 times too long. With SGD that is a learning rate 4 times too high. With Adam? It divides by the size of the gradient:

# %% name="adam_hides"
for name, make in {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.1),
}.items():
    moved = {}
    for method in (accumulate, naive):
        model = make_model()
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer = make(model.parameters())
        gradient(method, model, x, y, 64)
        optimizer.step()
        moved[method] = torch.cat([p.detach().flatten() for p in model.parameters()]) - before
    print(
        f"{name:5} update without the division, relative to the update with it: {(moved[naive].norm() / moved[accumulate].norm()).item():.3f}"
    )
model = make_model()
for method in (accumulate, naive):
    gradient(method, model, x, y, 64)
    print(
        f"{method.__name__:11} gradient norm as clip_grad_norm_ sees it: {nn.utils.clip_grad_norm_(model.parameters(), 1.0).item():.3f}"
    )

# %% [markdown] name="adam_explained"
# Adam's update hardly changes, so the loss curve looks fine and nobody notices, until gradient clipping is switched on: it sees a gradient four times
# too long and clips where it should not. A loss curve that looks fine either way tells you nothing here; the *norm* does.
#
# ### A smaller last micro-batch
#
# 200 rows split by 64 make micro-batches of 64, 64, 64 and 8. Divide by four, and each row of the last one weighs eight times as much.


# %% name="ragged"
def by_rows(model, x, y, micro_batch):
    """Weight each micro-batch by its share of the rows."""
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        (F.cross_entropy(model(xs), ys) * (len(xs) / len(x))).backward()


model = make_model()
x200, y200 = data.train_x[:200], data.train_y[:200]
whole = gradient(whole_batch, model, x200, y200)
for method in (accumulate, by_rows):
    off = distance(gradient(method, model, x200, y200, 64), whole)
    print(f"{method.__name__:11} relative distance from the whole batch: {off:.2g}")
    if method is accumulate:
        claims.record(
            "P4", "a ragged micro-batch counts for too much", "MLP, 200 by 64", off, "relative", 1e-3, math.inf
        )

# %% [markdown] name="tokens_text"
# ### Tokens that do not count
#
# In text the rows differ in length, and padding does not count (target -100). `F.cross_entropy` takes the mean over the targets that count *in the micro-batch*, so a micro-batch of short
# rows weighs as much as one of long rows. Many training libraries did this for years, until somebody compared the loss curves in October 2024 (see the sources).


# %% name="tokens"
def token_gradient(micro_batch, weigh):
    torch.manual_seed(0)
    model = SmallGPT(context=32, layers=2, width=64).to(device)
    total = (padded != -100).sum()
    for xs, ys in zip(ids.split(micro_batch), padded.split(micro_batch), strict=True):
        logits = model(xs).flatten(0, 1)
        if weigh == "mean of means":
            loss = F.cross_entropy(logits, ys.flatten()) / (len(ids) // micro_batch)
        else:
            loss = F.cross_entropy(logits, ys.flatten(), reduction="sum") / total
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


padded = next_ids.clone()
lengths = torch.linspace(2, 32, 64).long()  # sorted by length, as in loaders that want little padding
for row, length in enumerate(lengths):
    padded[row, length:] = -100
whole = token_gradient(64, "by token")
for weigh in ("mean of means", "by token"):
    off = distance(token_gradient(16, weigh), whole)
    print(f"{weigh:14} relative distance from the whole batch: {off:.2g}")
    if weigh == "mean of means":
        claims.record(
            "P4", "means of token means are not the mean", "GPT, rows of 2 to 32", off, "relative", 1e-3, math.inf
        )

# %% [markdown] name="tokens_explained"
# The repair needs one number that no single micro-batch knows: how many targets count in the **whole** batch. Count first, then go through the
# pieces.
#
# ### BatchNorm
#
# BatchNorm normalises with the mean and variance of the rows it sees, and no weighting of gradients brings back those of the whole batch. LayerNorm
# and GroupNorm look at one row at a time and do not care.

# %% name="batchnorm"
norms = {"BatchNorm": nn.BatchNorm1d(128), "GroupNorm": nn.GroupNorm(4, 128), "LayerNorm": nn.LayerNorm(128)}
for name, norm in norms.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), norm, nn.ReLU(), nn.Linear(128, 10)).to(device)
    off = distance(gradient(accumulate, model, x, y, 16), gradient(whole_batch, model, x, y))
    print(f"{name}: relative distance {off:.1e}")
    limits = (1e-3, math.inf) if name == "BatchNorm" else (0, 1e-5)
    claims.record(
        "P4",
        f"{name} {'minds' if name == 'BatchNorm' else 'does not mind'} the split",
        "MLP, 16 x 16",
        off,
        "relative",
        *limits,
    )
seen = {}
for micro_batch in (256, 16):
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(64).to(device)
    rows_in = x.flatten(1) + 5  # mean 5, so that the running mean has some way to go
    for part in rows_in.split(micro_batch):
        layer(part)
    seen[micro_batch] = layer.running_mean.mean().item()
print(f"running mean after one batch of 256: {seen[256]:.2f}; after 16 micro-batches of it: {seen[16]:.2f}")

# %% [markdown] name="batchnorm_explained"
# There are two effects. The gradients differ. And the *running* statistics, which evaluation uses, move once per micro-batch, so with momentum 0.1
# they forget faster. What to do: use GroupNorm from the start or, in fine-tuning, BatchNorm in evaluation mode with frozen statistics.
#
# ### The schedule
#
# A warm-up of 100 steps means optimizer steps. Step the scheduler after each of four micro-batches, and the warm-up ends after 25:

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
hurry = ends["after each update"] / ends["after each micro-batch"]
claims.record("P4", "a schedule stepped too often ends 4 times too early", "4 micro-batches", hurry, "times", 3.9, 4.1)

# %% [markdown] name="ddp_text"
# ### Talking too much
#
# With several GPUs ([[data_parallel]]), `DistributedDataParallel` averages gradients between them in every backward pass. During accumulation only
# the last pass needs that; `no_sync()` turns it off in the others. To count the traffic, one process is enough: DDP with world size one and a hook
# that records what would be sent.

# %% name="ddp"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sent = []


def write_down(_, bucket):
    sent.append(bucket.buffer().nbytes)
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


replica = DistributedDataParallel(make_model().cpu())
replica.register_comm_hook(None, write_down)
traffic = {}
pieces = list(zip(x.cpu().split(64), y.cpu().split(64), strict=True))
for name in ("every micro-batch", "last one only"):
    sent.clear()
    replica.zero_grad()
    for i, (xs, ys) in enumerate(pieces):
        hold = name == "last one only" and i < len(pieces) - 1
        if hold:
            with replica.no_sync():
                (F.cross_entropy(replica(xs), ys) / len(pieces)).backward()
        else:
            (F.cross_entropy(replica(xs), ys) / len(pieces)).backward()
    print(f"{name:18} {sum(sent):>9,} bytes in {len(sent)} all-reduces")
    traffic[name] = sum(sent)
dist.destroy_process_group()
more = traffic["every micro-batch"] / traffic["last one only"]
claims.record("P4", "without no_sync DDP sends 4 times as much", "MLP, 4 micro-batches", more, "times", 3.9, 4.1)

# %% [markdown] name="largest_text"
# ## 4 · Your turn: the largest micro-batch that fits
#
# You have a budget, and you want the largest micro-batch that stays within it: fewer, larger pieces are faster. Trying one after another takes a long
# time. Section 2 showed that a few measurements are enough: the peak is flat while it is in the optimizer step, then it follows a straight line.
#
# **Contract.** `largest_micro_batch(peak_bytes, budget, most)` returns the largest number of rows m, 1 ≤ m ≤ `most`, with `peak_bytes(m) <= budget`; 0 if not even one row
# fits.
#
# - `peak_bytes(m)` measures and returns the peak for a micro-batch of m rows (1 ≤ m ≤ `most`). It is the larger of a constant and *fixed + each × m*; at `most` and at
#   `most // 2` it is on the line. Call it **at most four times**.
# - `budget` is in bytes, `most` is even, *each* is above 0; all are whole numbers.


# %% name="largest" answer=true reveal=true
def largest_micro_batch(peak_bytes, budget, most):
    ### BEGIN SOLUTION
    half, whole = peak_bytes(most // 2), peak_bytes(most)
    each = (whole - half) / (most - most // 2)
    fixed = whole - each * most
    rows = max(1, min(most, int((budget - fixed) // each)))
    return rows if peak_bytes(rows) <= budget else 0  # on the flat part, fewer rows would not help either
    ### END SOLUTION


# %% name="largest_check"
check("gradient_accumulation.largest", largest_micro_batch)

# %% [markdown] name="largest_real_text"
# The check uses made-up numbers. Try your function on the real CNN and its batch of 256, with a budget of 20 MiB:

# %% name="largest_real"
calls = {}


def cnn_peak(micro_batch):
    calls[micro_batch] = measured(lambda: SmallCNN(32), images, labels, micro_batch).peak_bytes
    return calls[micro_batch]


try:
    found = largest_micro_batch(cnn_peak, 20 * MiB, 256)
    print(f"measured {sorted(calls)}: {', '.join(human_bytes(calls[m]) for m in sorted(calls))}; found {found} rows")
    if found:
        print(f"{found} rows take {human_bytes(cnn_peak(found))}, {found + 1} take {human_bytes(cnn_peak(found + 1))}")
    else:
        print(
            "The line said that more fit. A GPU's allocator may hand out larger blocks than you ask for; plan a margin."
        )
except NotImplementedError:
    print("Fill in the answer cell first.")

# %% [markdown] name="play_text"
# ## 5 · Play
#
# One optimizer step on 256 digits, in as many pieces as you like. Watch the mountain of [[where_memory_goes]] become a range of hills, with gradients
# that stay in between.


# %% name="play"
explore(
    lambda micro_batch: cnn[micro_batch].plot(f"256 rows in micro-batches of {micro_batch}"),
    "Memory over one step: one hill of activations per micro-batch; the more hills, the lower they are.",
    micro_batch=(64, tuple(cnn)),
)

# %% [markdown] name="summary_text"
# ## 6 · Before and after

# %% name="summary"
torch.manual_seed(0)
normed = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.GroupNorm(4, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
reference = gradient(whole_batch, normed, images, labels)
print(f"{'':10}{'CNN peak':>12}{'of whole':>10}{'gradient differs by':>21}")
for m, meter in cnn.items():
    off = distance(gradient(accumulate, normed, images, labels, m), reference)
    share = meter.peak_bytes / cnn[256].peak_bytes
    print(f"{256 // m:>3} x {m:<4}{human_bytes(meter.peak_bytes):>12}{share:>10.0%}{off:>21.1e}")
print("(the last column is for a network without BatchNorm)")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Gradients of a mean add up; activations need not all be there at once. Effective batch = micro-batch × accumulation steps (× GPUs).
# - Give every **row** (or token) the same weight. Dividing by the number of micro-batches is right only when they are alike.
# - The line *fixed + each × rows* tells you what can be saved. Once the peak has moved to the optimizer step, smaller pieces save nothing.
# - Not everything adds up: BatchNorm, schedules, clipping, communication.
#
# **What to reach for when.** If activations are the largest tenant and the batch is above one, accumulate first: it costs least. If the batch is one
# already, use checkpointing ([[activation_checkpointing]]). If the peak is in the optimizer step: [[lean_optimizers]].
#
# **Sources.** PyTorch documentation, *torch.amp: gradient accumulation*, and `DistributedDataParallel.no_sync`; Hugging Face, *Fixing Gradient Accumulation* (October 2024), on token-weighted losses; Wu and
# He 2018, *Group Normalization*.
