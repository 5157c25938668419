# %% [markdown] name="title"
# # Number formats
#
# **You can spend sixteen bits, or eight, on range or on precision: each tensor of a training step needs one of
# them more than the other, and the wrong choice fails in one of two ways, swamping or underflow.**
#
# | | |
# |---|---|
# | After this you can | read a number from its bits; say how far apart neighbouring numbers are; round to BF16 and TF32 by hand; find the learning rate at which BF16 weights stand still, and cure that in two ways, by chance and by a remainder; tell from a histogram which tensor needs which format |
# | Time | 105 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[start_here]] |
# | Syllabus | T3, C6, P1, P2, the start of T24 |

# %% name="setup" setup=true
import copy
import math

from helpers import (
    COLOURS,
    FORMATS,
    Claims,
    Prediction,
    SmallGPT,
    check,
    device_name,
    english,
    explain_bits,
    explore_bits,
    hint,
    pick_device,
    python_source,
    show,
    sign_of_life,
)

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="bits_text"
# ## 1 · A number is three fields
#
# Scientific notation writes 0.1 as 1.0 × 10⁻¹: digits and an exponent. A computer does the same with powers of two: **sign**, **exponent**,
# **fraction**.
#
# $$x = (-1)^{\text{sign}} \times \left(1 + \frac{\text{fraction}}{2^{f}}\right) \times 2^{\,\text{exponent} - \text{bias}}$$
#
# More exponent bits, more range. More fraction bits, more precision. Here is 0.1 in the five formats you will meet in training:

# %% name="bits"
print(explain_bits(0.1))

# %% [markdown] name="bits_explained"
# Nobody stores 0.1. Each format stores the nearest number it has: FP32 is off by 1 part in 70 million, BF16 by 1 in 1,000, E4M3 by 1 in 64.
#
# **BF16** has the layout of FP32's upper half: the same exponent, and 7 of its 23 fraction bits, rounded. **FP16** has three fewer exponent bits and
# three more fraction bits. **E4M3** and **E5M2** are the two eight-bit formats, named after their bits.
#
# ### Play with it
#
# (Two exponents are special. All zeros means that there is no leading 1, as you will see below. All ones is reserved for infinity and "not a number",
# except in E4M3, which reserves a single pattern for that.)
#
# Type a number, choose a format, click bits. What is the largest number you can make? The smallest above zero? What does flipping the highest
# exponent bit do?

# %% name="play"
explore_bits(0.1, "FP16")

# %% [markdown] name="range_text"
# ## 2 · Range
#
# **Predict.** FP16 has 5 exponent bits; the largest exponent of a finite number is 30 − 15 = 15. What is the largest FP16 number?

# %% name="guess_largest"
my_guess = None
### BEGIN GUESS
my_guess = 2**16 - 2**5  # (2 - 1/1024) x 2^15: just below the next power of two
### END GUESS
largest_guess = Prediction("Largest FP16 number", my_guess, "")

# %% [markdown] name="range_all_text"
# Sixteen bits make 65,536 patterns: few enough to look at all of them. FP32 has too many, so its limits come from PyTorch's `finfo`.

# %% name="range"
table = {}
for name, form in FORMATS.items():
    info = torch.finfo(form.dtype)
    if form.bits <= 16:
        values = form.all_values()
        finite = values[torch.isfinite(values)]
        positive = finite[finite > 0]
        largest, smallest = finite.max().item(), positive.min().item()
        in_one = int(((positive >= 1) & (positive < 2)).sum())
        assert largest == info.max  # what we counted is what PyTorch says
    else:
        largest, smallest, in_one = info.max, info.smallest_normal * info.eps, 2**form.fraction_bits
    table[name] = largest, 2.0 ** (1 - form.bias), smallest, in_one
largest_guess.reveal(table["FP16"][0])
print(f"  exactly: {table['FP16'][0]:,.0f}")
print(f"{'':6}{'largest':>12}{'smallest normal':>17}{'smallest':>12}{'numbers in [1, 2)':>19}{'decimal digits':>16}")
for name, (largest, normal, smallest, in_one) in table.items():
    digits = math.log10(2 * in_one)
    print(f"{name:6}{largest:>12.5g}{normal:>17.3g}{smallest:>12.3g}{in_one:>19,}{digits:>16.1f}")

# %% name="range_claims"
reach = table["BF16"][0] / table["FP32"][0]
claims.record("C6", "BF16 reaches as far as FP32", "the largest numbers of both", reach, "of FP32's", 0.99, 1.01)
claims

# %% [markdown] name="subnormal_explained"
# *Smallest normal* and *smallest* differ: when the exponent field is zero, the leading 1 is dropped, and the numbers continue, evenly spaced, down to
# zero, with fewer and fewer digits. These are the **subnormal** numbers. Without them FP16 would end at 6e-5.
#
# And beyond the largest? That depends on the format, and on who does the conversion:

# %% name="overflow"
for name, form in FORMATS.items():
    beyond = 3 * form.all_values().nan_to_num(0, 0, 0).max().item() if form.bits <= 16 else 1e39
    print(f"{name}: {beyond:.4g} becomes {form.decode(form.encode(beyond))}")

# %% [markdown] name="overflow_explained"
# FP16 and BF16 go to infinity, which a loss scaler can see ([[mixed_precision]]). E4M3 has no infinity: this version of PyTorch stops at its largest
# number; others have returned NaN. So eight-bit training scales first and never relies on what happens out of range.

# %% [markdown] name="gap_text"
# ## 3 · Precision
#
# Between 1 and 2 BF16 has 128 numbers. Between 2 and 4 it has another 128, twice as far apart. The gap grows with the number: precision is
# *relative*. The gap next to 1 is called **epsilon**.
#
# **Predict.** How far apart are neighbouring BF16 numbers near 1,000?

# %% name="guess_gap"
my_guess = None
### BEGIN GUESS
my_guess = 512 / 128  # 1,000 lies between 512 and 1,024, where 128 numbers are evenly spaced
### END GUESS
gap_guess = Prediction("Gap between BF16 numbers near 1000", my_guess, "")

# %% name="gaps"
near = torch.tensor(1000.0).bfloat16()
next_one = (near.view(torch.int16) + 1).view(torch.bfloat16)
gap_guess.reveal((next_one.double() - near.double()).item())
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
x = np.logspace(-9, 6, 400)
colours = dict(zip(FORMATS, COLOURS, strict=False))  # a format keeps its colour in all figures
for name, form in FORMATS.items():
    limits = table[name]
    inside = torch.from_numpy(x[(x >= limits[2]) & (x <= limits[0])])
    axes.loglog(inside, form.gaps(inside) / inside, color=colours[name], label=name)
axes.set(title="Gap to the next number, relative to the number", xlabel="number", ylabel="relative gap", ylim=(1e-8, 2))
axes.legend(frameon=False, ncols=2)
show(figure, "Flat saw-teeth at each format's epsilon, rising steeply where the subnormal numbers begin.")

# %% [markdown] name="gap_task"
# Most of this lab can be read off this picture. A curve is flat over the format's normal range, at a height set
# by its fraction bits, and rises to the left where that range ends.
#
# ### Your turn: the gap
#
# **Contract.** `gap(value, exponent_bits, fraction_bits)` returns the distance from `value` to the next larger number, in a format with that many
# exponent and fraction bits.
#
# - `value` is a positive number of the format, below its largest. Returns a float.
# - The bias is 2^(exponent_bits − 1) − 1; the smallest normal number is 2^(1 − bias). Below it the numbers are evenly spaced.


# %% name="gap" answer=true reveal=true
def gap(value, exponent_bits, fraction_bits):
    ### BEGIN SOLUTION
    lowest = 1 - (2 ** (exponent_bits - 1) - 1)  # exponent of the smallest normal number
    exponent = math.frexp(value)[1] - 1  # 2**exponent <= value < 2**(exponent + 1)
    return 2.0 ** (max(exponent, lowest) - fraction_bits)
    ### END SOLUTION


# %% name="gap_check"
gap = check("number_formats.gap", gap)

# %% name="gap_hint"
hint("number_formats.gap")

# %% [markdown] name="round_task"
# ### Your turn: rounding by bits
#
# PyTorch has `x.bfloat16()`. What happens inside? BF16 has FP32's sign and exponent, so only the fraction changes: 7 bits stay of 23.
#
# **Contract.** `round_to(x, fraction_bits)` returns each number of `x`, rounded to a fraction of so many bits, as an FP32 tensor of the same shape.
#
# - `x` is an FP32 tensor of any shape. Its numbers are zero, or normal and finite. It is not changed. `fraction_bits` is a number from 1 to 22.
# - Each number becomes the nearest that has zeros in the lower 23 − `fraction_bits` bits of its fraction.
# - Of two that are equally near, the one whose last kept bit is zero is taken. (This is *ties to even*; always going up would make sums drift.)
# - What rounds up beyond the largest number becomes infinity.
#
# `x.view(torch.int32)` gives you the bits as whole numbers, and `.view(torch.float32)` takes them back. The fraction is the lower 23 bits, the
# exponent the 8 above it. No loop is needed.


# %% name="round" answer=true reveal=true
def round_to(x, fraction_bits):
    ### BEGIN SOLUTION
    dropped = 23 - fraction_bits
    bits = x.view(torch.int32)
    last = (bits >> dropped) & 1  # the last bit that stays
    half = (1 << (dropped - 1)) - 1  # just below the middle; an odd last bit pushes the middle itself over
    return ((bits + half + last) & -(1 << dropped)).view(torch.float32)
    ### END SOLUTION


# %% name="round_check"
round_to = check("number_formats.round", round_to)

# %% name="round_hint"
hint("number_formats.round")

# %% [markdown] name="tf32_text"
# **PyTorch's own.** Does your rounding agree with `.bfloat16()`, number by number? And with another number of bits it makes a format that PyTorch has
# no dtype for. **TF32** is such a format: NVIDIA GPUs since Ampere can round the inputs of an FP32 product to 10 fraction bits on the way in.
# ([[Mixed_precision]] switches it on. A GPU may round in another way than to the nearest.)
#
# **Predict.** TF32 has FP32's exponent and FP16's fraction. How many bytes does a TF32 tensor take per number?

# %% name="guess_tf32"
my_guess = None  # bytes
### BEGIN GUESS
my_guess = 4  # 19 bits carry something, and they are kept in 32
### END GUESS
tf32_guess = Prediction("Bytes of a TF32 number in memory", my_guess, "")

# %% name="tf32"
numbers = torch.randn(100_000) * torch.exp2(torch.randint(-30, 30, (100_000,)).float())
same = (round_to(numbers, 7) == numbers.bfloat16().float()).float().mean()
print(f"your 7 fraction bits and .bfloat16() agree on {same:.2%} of 100,000 numbers")
in_tf32 = round_to(torch.tensor([0.1]), 10)
print(f"0.1 in TF32 is {in_tf32.item():.9g}; the tensor's dtype is {in_tf32.dtype}")
tf32_guess.reveal(in_tf32.element_size())
one_to_two = (torch.arange(2**23, dtype=torch.int32) + 0x3F800000).view(torch.float32)  # all that FP32 has
in_one = int((round_to(one_to_two, 10).unique() < 2).sum())
normal = table["FP32"][1]  # the exponent bits are FP32's
table["TF32"] = (2 - 1 / in_one) * 2.0**127, normal, normal / in_one, in_one
for name in ("FP32", "TF32", "BF16", "FP16"):
    largest, normal, smallest, in_one = table[name]
    print(f"{name}: largest {largest:.5g}, smallest {smallest:.3g}, numbers in [1, 2): {in_one:,}")

# %% [markdown] name="swamping_text"
# ## 4 · Swamping: weights that stand still
#
# An update of less than half a gap is rounded away. Look at the sizes first, then predict. Here is a small GPT after 60 steps on English text, and the
# AdamW update that comes next.

# %% name="real_update"
text = english(device)


def batch(text, seed, rows=8, length=128):
    """Return (ids, next ids), each (rows, length), from places in `text` that `seed` draws."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text.train_x) - length, (rows,), generator=generator).tolist()
    return tuple(torch.stack([ids[at : at + length] for at in starts]) for ids in (text.train_x, text.train_y))


def loss_of(model, ids, targets):
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


torch.manual_seed(0)
model = SmallGPT(layers=2).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with sign_of_life("61 steps of training"):
    for step in range(61):
        before = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
        optimizer.zero_grad()
        loss_of(model, *batch(text, step)).backward()
        optimizer.step()
after = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
weights, direction = before, (before - after) / 1e-3  # the update at learning rate 1
print(f"weights: median size {weights.abs().median():.3g}")
print(f"update at learning rate 1: median size {direction.abs().median():.2g}")

# %% [markdown] name="guess_stall_text"
# **Predict.** At what learning rate do half of this GPT's BF16 weights stand still? An update moves a weight by the learning rate times the size above.

# %% name="guess_stall"
my_guess = None
### BEGIN GUESS
my_guess = 3e-4  # half a gap: weights of 0.015 have a gap of 2^-7 x 2^-7 = 6e-5, and updates are 0.1 x the rate
### END GUESS
stall_guess = Prediction("Learning rate at which half of the weights stand still", my_guess, "")


# %% name="stall"
def share_that_moves(weight, update):
    """Return the share of `weight`'s numbers that change when `update` is subtracted and the result stored again."""
    return ((weight.float() - update).to(weight.dtype) != weight).float().mean().item()


rates = np.logspace(-7, -2, 21)
moving = {
    name: [share_that_moves(weights.to(FORMATS[name].dtype), float(rate) * direction) for rate in rates]
    for name in ("FP32", "FP16", "BF16")
}
figure = Figure(figsize=(7, 3.2), layout="constrained")
axes = figure.add_subplot()
for name, shares in moving.items():
    axes.semilogx(rates, [100 * s for s in shares], color=colours[name], label=name)
axes.set(title="Weights that an AdamW update moves", xlabel="learning rate", ylabel="%")
axes.legend(frameon=False)
show(figure, "Nearly all FP32 weights move at all rates shown; of BF16 weights fewer and fewer below 1e-3.")
stall_guess.reveal(float(np.exp(np.interp(0.5, moving["BF16"], np.log(rates)))))

# %% [markdown] name="stall_explained"
# Learning rates around 1e-5 are common in fine-tuning. There, one update leaves most BF16 weights where they are, and no error tells you so.
#
# Nothing is lost if the weights stay in FP32 and only the computing is done in 16 bits; that is [[mixed_precision]]. But it takes four bytes for each
# weight, and usually two more for the copy that computes. If the weights are to be BF16 and nothing else, there are two cures. You write both.
#
# ## 5 · Two cures
#
# ### Your turn: stochastic rounding
#
# 1.001 lies between the BF16 numbers 1 and 1.0078. Rounding to the nearest always gives 1. Draw at random instead: round up with a probability of 0.001 /
# 0.0078 = 13 %. Each single result is worse, but the **mean** of many is right.
#
# **Contract.** `stochastic_round(x)` takes an FP32 tensor of any shape and returns a BF16 tensor of the same shape. The numbers in `x` are finite; some may be
# subnormal.
#
# - Each number becomes one of its two BF16 neighbours; values already representable in BF16 are unchanged.
# - The probabilities are such that the mean is the number itself.
# - Each element is drawn independently, and afresh in each call.
# - `x` is not changed. Both neighbours of each of its numbers are finite.
#
# Your `round_to` added a fixed number before it cleared the lower bits. What would you add here?


# %% name="stochastic" answer=true reveal=true
def stochastic_round(x):
    ### BEGIN SOLUTION
    bits = x.view(torch.int32)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)
    return ((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()  # the sum carries into the upper half by chance
    ### END SOLUTION


# %% name="stochastic_check"
stochastic_round = check("number_formats.stochastic", stochastic_round)

# %% name="stochastic_hint"
hint("number_formats.stochastic")

# %% [markdown] name="kahan_task"
# ### Your turn: keep what was lost
#
# Stochastic rounding needs no extra memory. With two more bytes for each weight nothing has to be left to chance: keep what rounding took away, and add it next time. This is
# **Kahan summation**, or compensated summation: like a shop that has no small coins and writes down what it still owes you.
#
# **Contract.** `kahan_add(weight, lost, update)` returns the new `(weight, lost)`, both BF16.
#
# - `weight` and `lost` are BF16 tensors of the same shape, `update` is an FP32 tensor of that shape. None of the three is changed.
# - `lost` is what `weight` still lacks: the two together are the weight that is meant.
# - The new weight is the BF16 number nearest to weight + lost + update. The sum is made in FP32.
# - The new `lost` is that sum minus the new weight, rounded to BF16.


# %% name="kahan" answer=true reveal=true
def kahan_add(weight, lost, update):
    ### BEGIN SOLUTION
    meant = weight.float() + lost.float() + update
    rounded = meant.bfloat16()
    return rounded, (meant - rounded.float()).bfloat16()
    ### END SOLUTION


# %% name="kahan_check"
kahan_add = check("number_formats.kahan", kahan_add)

# %% name="kahan_hint"
hint("number_formats.kahan")

# %% [markdown] name="walk_text"
# Start at 1.0, add 0.001 a thousand times, and store each sum in BF16. Rounding to the nearest never leaves 1.0. Dice arrive at 2.0 on average, but a
# model makes this walk only once: its steps are independent, so their standard deviations add up like the square root of their number.
#
# **Predict.** How far from 2.0 does a single walk with dice end (as a standard deviation)? And how far off is Kahan's sum, weight and `lost` together?

# %% name="walk_guess"
my_guess = None  # with dice
### BEGIN GUESS
my_guess = 0.08  # 1,000 throws, each a gap of 0.0078 with probability 0.13: 0.0078 x sqrt(1000 x 0.13 x 0.87)
### END GUESS
dice_guess = Prediction("One walk with dice, standard deviation", my_guess, "")
my_guess = None  # Kahan's
### BEGIN GUESS
my_guess = 0.003  # lost is BF16, too, with a gap of 2^-16 or so: a thousand roundings, perhaps all the same way
### END GUESS
kahan_guess = Prediction("Kahan's sum is off by", my_guess, "")

# %% name="walk"
nearest, dice, kept = (torch.ones(1000).bfloat16() for _ in range(3))
owed, small = torch.zeros(1000).bfloat16(), torch.full((1000,), 0.001)
for _ in range(1000):
    nearest = (nearest.float() + small).bfloat16()
    dice = stochastic_round(dice.float() + small)
    kept, owed = kahan_add(kept, owed, small)
above_one = 2.0**-7  # BF16's gap there
chance = 0.001 / above_one
deviation = above_one * math.sqrt(chance * (1 - chance))
print(f"one step with dice: up by {above_one:.4f} with probability {chance:.3f}, standard deviation {deviation:.4f}")
print(f"a thousand independent ones: {deviation:.4f} x the root of 1,000 = {deviation * math.sqrt(1000):.3f}")
dice_guess.reveal(dice.float().std().item())
kahan_guess.reveal(abs((kept.double() + owed.double())[0].item() - 2))
print(f"to the nearest {nearest[0].item():.5f}; with dice {dice.float().mean():.5f}, mean of {len(dice):,} walks")
print(f"Kahan: weight {kept[0].item():.5f}, lost {owed[0].item():.5f}")

# %% [markdown] name="tune_text"
# A single walk ends about ten BF16 steps off, the mean of a thousand walks almost exactly right. Kahan's sum ends less than one step off: that error
# comes from rounding `lost` itself, which is BF16, too.
#
# ### What pure BF16 fine-tuning loses
#
# Now a whole run. The GPT that has learnt English goes on with Python source, for 40 steps of AdamW. The weights are stored in FP32, or in BF16 in one
# of three ways; all else is FP32, so that nothing but the storage differs. The figure of merit is how far the loss on unseen Python falls.
#
# **Predict.** At learning rate 1e-5, what share of FP32's progress does BF16 make when it rounds to the nearest? And at 1e-3?

# %% name="guess_tune"
my_guess = None  # %, at 1e-5
### BEGIN GUESS
my_guess = 15  # about the share of the weights that move at all
### END GUESS
low_guess = Prediction("Progress in BF16, learning rate 1e-5", my_guess, "% of FP32's")
my_guess = None  # %, at 1e-3
### BEGIN GUESS
my_guess = 100  # there almost all weights move
### END GUESS
high_guess = Prediction("Progress in BF16, learning rate 1e-3", my_guess, "% of FP32's")


# %% name="tune_run"
def stored(old, update, kind, lost):
    """Return the weight (FP32 values) after `update`, as it is when it has been stored; `lost` is Kahan's, in place."""
    if kind == "dice":
        return stochastic_round(old + update).float()
    if kind == "Kahan":
        new, rest = kahan_add(old.bfloat16(), lost, update)
        lost.copy_(rest)
        return new.float()
    return (old + update).bfloat16().float() if kind == "nearest" else old + update


def progress(kind, lr, steps=40):
    """Return how far the loss on unseen Python falls in `steps` steps; `seen` gets what each step does."""
    torch.manual_seed(1)
    tuned = copy.deepcopy(model)
    parameters = list(tuned.parameters())
    with torch.no_grad():
        for p in parameters:
            p.copy_(p if kind == "FP32" else p.bfloat16())
    lost = [torch.zeros_like(p, dtype=torch.bfloat16) for p in parameters]
    optimizer = torch.optim.AdamW(parameters, lr=lr)
    before = loss_of(tuned, *unseen).item()
    for step in range(steps):
        old = [p.detach().clone() for p in parameters]
        optimizer.zero_grad()
        loss_of(tuned, *batch(python, step)).backward()
        optimizer.step()
        with torch.no_grad():
            for p, was, rest in zip(parameters, old, lost, strict=True):
                p.copy_(stored(was, p - was, kind, rest))
            moved = sum((p != was).sum().item() for p, was in zip(parameters, old, strict=True))
            slope = sum((p.grad * (was - p)).sum().item() for p, was in zip(parameters, old, strict=True))
        seen[kind, lr, step] = moved / sum(p.numel() for p in parameters), slope
    return before - loss_of(tuned, *unseen).item()


python = python_source(device)
unseen = [ids[: 32 * 128].view(32, 128) for ids in (python.test_x, python.test_y)]
seen = {}  # (kind, learning rate, step) -> share of the weights that moved, fall of the loss by gradient x change

# %% name="tune"
with sign_of_life("eight runs of 40 steps"):
    falls = {(kind, lr): progress(kind, lr) for lr in (1e-5, 1e-4, 1e-3) for kind in ("FP32", "nearest")}
    falls |= {(kind, 1e-5): progress(kind, 1e-5) for kind in ("dice", "Kahan")}
made = {(kind, lr): 100 * fall / falls["FP32", lr] for (kind, lr), fall in falls.items()}
low_guess.reveal(made["nearest", 1e-5])
high_guess.reveal(made["nearest", 1e-3])
print(f"{'learning rate':>14} {'storage':10}{'bytes a weight':>15}{'loss falls by':>15}{'of FP32':>9}")
for (kind, lr), fall in sorted(falls.items(), key=lambda item: item[0][1]):
    size = 2 if kind in ("nearest", "dice") else 4
    print(f"{lr:>14g} {kind:10}{size:>15}{fall:>15.4f}{made[kind, lr]:>8.0f}%")

# %% [markdown] name="tune_parts_text"
# In section 4, nearly all weights stood still at this rate. How can the run get so far? Look at single steps: how many weights move, and how much of
# the fall they bring. (Gradient times change, summed over all weights, is the fall of the loss as far as it is a straight line.)
#
# **Predict.** In the last step, what share of FP32's loss reduction comes from the few weights that still move?

# %% name="guess_parts"
my_guess = None  # %
### BEGIN GUESS
my_guess = 10  # as much as their share of all weights
### END GUESS
parts_guess = Prediction("Fall in the last step, BF16 to the nearest", my_guess, "% of FP32's")

# %% name="tune_parts"
parts_guess.reveal(100 * seen["nearest", 1e-5, 39][1] / seen["FP32", 1e-5, 39][1])
print(f"{'at 1e-5, step':>14}{'weights that move':>19}{'fall, of FP32 in the same step':>33}")
for step in (0, 10, 20, 30, 39):
    moved, slope = seen["nearest", 1e-5, step]
    print(f"{step:>14}{moved:>19.1%}{slope / seen['FP32', 1e-5, step][1]:>33.0%}")

# %% [markdown] name="tune_explained"
# - A new AdamW divides each gradient by its own size, so at first every weight moves by about the learning rate. The update of section 4 came after 60
#   steps, when its second moment remembered larger gradients.
# - Small weights have small gaps and go on moving; it is the large ones that stand still. One that moves goes a whole gap, more than it was asked to.
# - FP32 makes its easy progress first, then each step brings less. BF16 is behind, so its easy progress is still to come.
#
# So rounding to the nearest does not ruin the run. At the smallest rate a good part of the progress is lost, at the largest next to nothing. Both cures bring back what was lost, one at no cost in bytes, the other for two bytes per weight.
#
# So why do people fine-tune in pure BF16 all the same?
#
# - **Bytes.** Weight, gradient and Adam's two moments take 4 × 2 bytes per parameter in BF16, and 4 × 4 in FP32. That may decide whether a model fits.
# - **Rates.** The larger the learning rate, the less is lost: compare the rows of the table. Adapters, for example, are trained at 1e-4 and more ([[lora]]).
#   The loss also grows with the length of the run: 40 steps of a fresh Adam, whose first updates are large, are the kindest case.
# - **Dice.** Several optimizers have a switch for stochastic rounding, which costs no memory.
#
# What to watch for: a small learning rate, and the end of a schedule that lets it decay. Your own loss at your own rate decides: run both for a few
# hundred steps.

# %% [markdown] name="underflow_text"
# ## 6 · Underflow: gradients that become zero
#
# Gradients are small. Here are those of the GPT above, with its other tensors, against the range of each format. (The ranges of FP32 and BF16 begin
# far to the left of the picture.) A black bar reaches from half of a format's smallest number, below which all becomes zero, to its largest.

# %% name="gradients"
optimizer.zero_grad()
hidden = {}


def remember(name):
    def hook(module, inputs, output):
        hidden[name] = output
        output.retain_grad()

    return hook


handles = [
    model.get_submodule(n).register_forward_hook(remember(n)) for n in ("blocks.0.qkv", "blocks.1.mlp.0", "head")
]
loss_of(model, *batch(text, 61)).backward()
for handle in handles:
    handle.remove()
moments = torch.cat([s["exp_avg_sq"].flatten() for s in optimizer.state.values()])
tensors = {
    "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
    "activations": torch.cat([h.detach().flatten() for h in hidden.values()]),
    "gradients of weights": torch.cat([p.grad.flatten() for p in model.parameters()]),
    "gradients of activations": torch.cat([h.grad.flatten() for h in hidden.values()]),
    "Adam's second moment": moments,
}
tensors = {name: t[t != 0].cpu().double() for name, t in tensors.items()}

# %% name="histogram"
figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.add_subplot()
for (name, t), colour in zip(tensors.items(), COLOURS, strict=False):
    counts, edges = np.histogram(torch.log2(t.abs()).numpy(), bins=np.arange(-60, 12))
    axes.step(edges[:-1], 100 * counts / counts.sum(), where="post", color=colour, label=name)
for i, name in enumerate(("FP16", "E5M2", "E4M3")):
    low, high = math.log2(table[name][2]) - 1, math.log2(table[name][0])  # half the smallest still rounds up to it
    axes.plot([low, high], [-1.5 - 1.2 * i] * 2, color="black", lw=3, solid_capstyle="butt")
    axes.text(low - 1, -1.5 - 1.2 * i, name, ha="right", va="center", fontsize=8)
axes.set(
    title="Who lives where", xlabel="log2 of the size", ylabel="% of the numbers", xlim=(-60, 17), ylim=(-5.5, None)
)
axes.set_yticks([tick for tick in axes.get_yticks() if tick >= 0])
axes.legend(frameon=False, loc="upper left")
show(
    figure,
    "Weights and activations lie within every format's range; gradients reach below FP16's, second moments far below.",
)

# %% [markdown] name="guess_underflow_text"
# **Predict.** What share of the gradients *of activations* becomes zero in FP16? (FP16 rounds to zero below half of its
# smallest number: 2⁻²⁵.)

# %% name="guess_underflow"
my_guess = None  # %
### BEGIN GUESS
my_guess = 5  # the left tail of the histogram, below 2^-25
### END GUESS
underflow_guess = Prediction("Gradients of activations that FP16 makes zero", my_guess, "%")

# %% name="underflow"
lost = {
    name: {form: 100 * (t.to(FORMATS[form].dtype).double() == 0).double().mean().item() for form in FORMATS}
    for name, t in tensors.items()
}
underflow_guess.reveal(lost["gradients of activations"]["FP16"])
print(f"{'becomes zero, %':26}" + "".join(f"{form:>8}" for form in FORMATS))
for name, shares in lost.items():
    print(f"{name:26}" + "".join(f"{share:>8.1f}" for share in shares.values()))

# %% [markdown] name="which_text"
# ## 7 · Which tensor needs which format
#
# Zeros are one kind of loss, lost digits are the other. Look at the relative error of the *median* element (1.0: at least half of the tensor is
# gone), and at the zeros. A tensor may first be multiplied by a **scale** that brings its largest number to the top of the range, and divided by it
# afterwards. That costs one number per tensor and is how eight-bit training works ([[fp8]]).
#
# **Predict.** As they are, E4M3 loses all of Adam's second moments. With such a scale, what percentage still becomes zero?

# %% name="guess_scaled"
my_guess = None  # %
### BEGIN GUESS
my_guess = 1  # the scale lifts the whole tensor into the range; only a few stragglers stay below
### END GUESS
moments_guess = Prediction("Scaled second moments that E4M3 makes zero", my_guess, "%")


# %% name="which"
rounding = {"FP32": lambda t: t.float(), "TF32": lambda t: round_to(t.float(), 10)}
rounding |= {name: lambda t, form=form: t.to(form.dtype) for name, form in FORMATS.items() if form.bits <= 16}


def rounded(t, form, scaled):
    scale = 0.9 * table[form][0] / t.abs().max() if scaled else 1.0
    return rounding[form](t * scale).double() / scale


def median_error(t, form, scaled):
    return ((rounded(t, form, scaled) - t) / t).abs().median().item()


for scaled in (False, True):
    print(f"{'median error, ' + ('scaled' if scaled else 'as it is'):28}" + "".join(f"{form:>10}" for form in rounding))
    for name, t in tensors.items():
        print(f"  {name:26}" + "".join(f"{median_error(t, form, scaled):>10.1e}" for form in rounding))
print(f"{'zeros when scaled, %':28}" + "".join(f"{form:>10}" for form in rounding))
for name, t in tensors.items():
    zeros = {form: 100 * (rounded(t, form, True) == 0).double().mean().item() for form in rounding}
    print(f"  {name:26}" + "".join(f"{share:>10.1f}" for share in zeros.values()))
moments_guess.reveal(zeros["E4M3"])  # the last row is the second moment's

# %% [markdown] name="which_explained"
# First a column: TF32 has FP16's error with FP32's range, so it needs no scale. It makes products faster and saves no bytes. Then row by row:
#
# - **Weights and activations**: 16 bits hold them as they are, and FP16, with three more fraction bits, holds them better than BF16. Eight bits need
#   the scale, or small weights end up among the subnormal numbers.
# - **Gradients of activations** need range: unscaled, FP16 has few digits left for the median element and the eight-bit formats have none. BF16 does
#   not mind. With a scale, FP16 is better again.
# - **Adam's second moment** holds squares of gradients: twice the range in powers of two. Unscaled, only formats with eight exponent bits can hold
#   it, and a single scale for the whole tensor does not make eight bits safe either. That is why optimizers keep it in FP32, or scale block by block
#   ([[lean_optimizers]]).
# - **E4M3 or E5M2?** With a scale, E4M3 has the smaller error in most rows, but look at its zeros: where the numbers of one tensor spread over many
#   powers of two, one scale cannot serve them all, and E5M2 loses fewer. That is why eight-bit training often gives gradients E5M2 and everything
#   else E4M3. (Each row here pools several layers under one scale, which is harder than a scale for each.)
#
# ## 8 · What you have measured

# %% name="summary"
still = 100 - 100 * share_that_moves(weights.bfloat16(), 1e-5 * direction)
vanished = lost["gradients of activations"]["FP16"]
claims.record("P1", "BF16 swallows small updates", "GPT, AdamW at 1e-5, weights that stood still", still, "%", 50, 100)
for lr in (1e-5, 1e-3):
    said = "a pure BF16 model does not train"
    claims.record("P1", said, f"GPT, 40 steps at {lr:g}, of FP32's fall", made["nearest", lr], "%", 0, 10)
claims.record("P2", "FP16 makes small gradients zero", "GPT, gradients of activations", vanished, "%", 0.1, 100)
print(f"{'':6}{'bits':>5}{'largest':>12}{'smallest':>11}{'epsilon':>11}   gradients of activations lost, unscaled")
for name, form in FORMATS.items():
    largest, _, smallest, in_one = table[name]
    share = lost["gradients of activations"][name]
    print(f"{name:6}{form.bits:>5}{largest:>12.3g}{smallest:>11.2g}{1 / in_one:>11.2g}   {share:.1f} %")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Exponent bits buy range, fraction bits precision. Gaps are relative, except below the smallest normal number.
# - **Swamping**: an update below half a gap does nothing. Cures: weights in FP32 (4 bytes), a BF16 remainder beside the BF16 weight (2 more bytes), or
#   stochastic rounding (none).
# - **Underflow**: anything below half the smallest number becomes zero. Cures: a scale, or BF16.
# - Weights and activations need precision, gradients need range, second moments need a great deal of range.
#
# **What to reach for when.** BF16 by default on hardware that has it; FP16 with loss scaling elsewhere ([[mixed_precision]]); eight bits, with a
# scale, for matrix products ([[fp8]]). Pure BF16 weights save half of the bytes of weights, gradients and moments; at small learning rates, give them
# dice or a remainder.
#
# **Sources.** IEEE 754-2019 (FP32, FP16); Kalamkar et al. 2019, *A Study of BFLOAT16 for Deep Learning Training*; Micikevicius et al. 2022, *FP8 Formats for Deep Learning*; Gupta et al. 2015, *Deep Learning with Limited
# Numerical Precision* (stochastic rounding).
