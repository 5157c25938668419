# %% [markdown] name="title"
# # Number formats
#
# **Sixteen bits, or eight, buy range or precision, not both. Each tensor of a training step needs one of
# them more than the other, and the wrong choice fails in one of three ways: overflow, swamping or underflow.**
#
# | | |
# |---|---|
# | After this you can | read a number from its bits; compute the gap between neighboring numbers; round to BF16 and TF32 by hand; find the learning rate at which BF16 weights stop moving, and fix that with stochastic rounding or with Kahan compensation; say what BF16 does to Adam's moments and to sums of gradients, and which optimizers accept an FP32 gradient for a BF16 weight; decide from a histogram which tensor needs which format |
# | Time | 105 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[start_here]] |
# | Syllabus | T3, C6, P1, P2, the start of T24 |

# %% name="setup" setup=true
import copy
import math

from helpers import (
    COLORS,
    FORMATS,
    Claims,
    LinearLog,
    Prediction,
    SmallGPT,
    check,
    device_name,
    english,
    explain_bits,
    explore_bits,
    hint,
    parallel_map,
    pick_device,
    python_source,
    show,
    show_table,
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
# Here *f* is the number of fraction bits. The *bias* lets an exponent field that is never negative stand for negative powers, too.
#
# More exponent bits give more range. More fraction bits give more precision. Here is 0.1 in the five formats you will meet in training:

# %% name="bits"
print(explain_bits(0.1))

# %% [markdown] name="bits_explained"
# No format stores 0.1 exactly. Each stores the nearest number it can represent: FP32 is off by 1 part in 70 million, BF16 by 1 in 1,000, E4M3 by 1 in 64.
#
# **BF16** has the layout of FP32's upper half: the same exponent, and 7 of its 23 fraction bits, rounded. **FP16** has three fewer exponent bits than BF16 and
# three more fraction bits. **E4M3** and **E5M2** are the two eight-bit formats, named after their numbers of exponent and fraction bits.
#
# ### Explore
#
# (Two exponent fields are special. A field of all zeros means that the leading 1 is missing, as you will see below. A field of all ones is reserved for infinity and
# "not a number", except in E4M3, which reserves one pattern per sign, 0x7F and 0xFF, for NaN.)
#
# Type a number, choose a format, and click bits. What is the largest number you can make? The smallest above zero? What happens when you flip the highest
# exponent bit?

# %% name="play"
explore_bits(0.1, "FP16")

# %% [markdown] name="range_text"
# ## 2 · Range
#
# Sixteen bits give 65,536 patterns, few enough to list in full. FP32 has too many, so its limits come from PyTorch's `finfo`.

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
        assert largest == info.max  # our count agrees with PyTorch
    else:
        largest, smallest, in_one = info.max, info.smallest_normal * info.eps, 2**form.fraction_bits
    table[name] = largest, 2.0 ** (1 - form.bias), smallest, in_one
rows = [("format", "largest", "smallest normal", "smallest", "numbers in [1, 2)", "decimal digits")]
for name, (largest, normal, smallest, in_one) in table.items():
    digits = math.log10(2 * in_one)
    rows.append((name, f"{largest:.5g}", f"{normal:.3g}", f"{smallest:.3g}", f"{in_one:,}", f"{digits:.1f}"))
show_table(rows)

# %% name="range_claims"
reach = table["BF16"][0] / table["FP32"][0]
claims.record("C6", "BF16 reaches as far as FP32", "the largest numbers of both", reach, "of FP32's", 0.99, 1.01)
claims

# %% [markdown] name="subnormal_explained"
# *Smallest normal* and *smallest* differ. When the exponent field is zero, the leading 1 is dropped, and the numbers continue, evenly spaced, down to
# zero, with fewer and fewer digits. These are the **subnormal** numbers. Without them FP16 would end at 6e-5.
#
# What happens beyond the maximum depends on the format and on the conversion code:

# %% name="overflow"
for name, form in FORMATS.items():
    beyond = 3 * form.all_values().nan_to_num(0, 0, 0).max().item() if form.bits <= 16 else 1e39
    print(f"{name}: {beyond:.4g} becomes {form.decode(form.encode(beyond))}")

# %% [markdown] name="overflow_explained"
# All but E4M3 go to infinity, which a loss scaler can detect ([[loss_scaling]]). E4M3 has no infinity. This version of PyTorch saturates at the maximum
# representable value; others have returned NaN. Eight-bit training therefore scales first and does not rely on overflow behavior.

# %% [markdown] name="gap_text"
# ## 3 · Precision
#
# BF16 has 128 numbers between 1 and 2, and another 128, twice as far apart, between 2 and 4. The gap grows with the number: precision is
# *relative*. The gap just above 1 is called **epsilon**.

# %% name="gaps"
figure = Figure(figsize=(7, 3.4), layout="constrained")
axes = figure.add_subplot()
x = np.logspace(-9, 6, 400)
colors = dict(zip(FORMATS, COLORS, strict=False))  # a format keeps its color in all figures
for name, form in FORMATS.items():
    limits = table[name]
    inside = torch.from_numpy(x[(x >= limits[2]) & (x <= limits[0])])
    axes.loglog(inside, form.gaps(inside) / inside, color=colors[name], label=name)
axes.set(title="Gap to the next number, relative to the number", xlabel="number", ylabel="relative gap", ylim=(1e-8, 2))
axes.legend(frameon=False, ncols=2)
show(figure, "A sawtooth just below each format's epsilon, rising steeply where the subnormal numbers begin.")

# %% [markdown] name="gap_task"
# Most of this lab follows from this picture. Each curve stays between half of epsilon and epsilon over its format's normal range, so its height is set
# by the fraction bits, and it rises to the left where that range ends.
#
# ### Your turn: the gap
#
# **Contract.** `gap(value, exponent_bits, fraction_bits)` returns, as a float, the distance from `value` to the next larger number of a format with that many
# exponent and fraction bits.
#
# - `value` is a positive number of the format, smaller than the format's maximum.
# - The bias is 2^(exponent_bits − 1) − 1, and the smallest normal number is 2^(1 − bias). Below it the numbers are evenly spaced.


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
# PyTorch has `x.bfloat16()`. What does it do to the bits? BF16 has FP32's sign and exponent fields and a shorter fraction: 7 of 23 bits remain.
#
# **Contract.** `round_to(x, fraction_bits)` rounds each number of `x` to a fraction of `fraction_bits` bits. It returns an FP32 tensor of the same shape.
#
# - `x` is an FP32 tensor of any shape. Its numbers are zero, or normal and finite. The function must not change it. `fraction_bits` is an integer from 1 to 22.
# - Each number becomes the nearest number whose lower 23 − `fraction_bits` fraction bits are zero.
# - If two are equally near, take the one whose last remaining bit is zero. (This is *ties to even*; always rounding up would make sums drift.)
# - A number that rounds up beyond the maximum representable value becomes infinity.
#
# `x.view(torch.int32)` gives you the bits as an integer, and `.view(torch.float32)` converts them back. The fraction is the lower 23 bits; the
# exponent is the 8 bits above it. You need no loop.


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
# **PyTorch's own rounding.** Does `round_to` agree with `.bfloat16()` on every number? With other bit counts, it produces formats for which PyTorch has
# no dtype. **TF32** is one: NVIDIA GPUs since Ampere can round the inputs of an FP32 matmul to 10 fraction bits. It has FP32's exponent and FP16's fraction.
# ([[Mixed_precision]] turns it on. GPUs may round differently.)

# %% name="tf32"
numbers = torch.randn(100_000) * torch.exp2(torch.randint(-30, 30, (100_000,)).float())
same = (round_to(numbers, 7) == numbers.bfloat16().float()).float().mean()
print(f"round_to(x, 7) and .bfloat16() agree on {same:.2%} of 100,000 numbers")
in_tf32 = round_to(torch.tensor([0.1]), 10)
print(
    f"0.1 in TF32 is {in_tf32.item():.9g}; the tensor's dtype is {in_tf32.dtype}, {in_tf32.element_size()} bytes per number"
)
one_to_two = (torch.arange(2**23, dtype=torch.int32) + 0x3F800000).view(torch.float32)  # all FP32 numbers there
in_one = int((round_to(one_to_two, 10).unique() < 2).sum())
normal = table["FP32"][1]  # the exponent bits are FP32's
table["TF32"] = (2 - 1 / in_one) * 2.0**127, normal, normal / in_one, in_one
for name in ("FP32", "TF32", "BF16", "FP16"):
    largest, normal, smallest, in_one = table[name]
    print(f"{name}: largest {largest:.5g}, smallest {smallest:.3g}, numbers in [1, 2): {in_one:,}")

# %% [markdown] name="swamping_text"
# ## 4 · Swamping: updates that are rounded away
#
# An update of less than half a gap is rounded away. The next cell trains a small GPT for 60 steps on English text, then records the
# AdamW update that follows. First compare the magnitudes of the weights and of the update.

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
# **Predict.** At what learning rate do half of this GPT's BF16 weights stop moving? An update moves a weight by the learning rate times the size above.

# %% name="guess_stall"
my_guess = None
### BEGIN GUESS
my_guess = 3e-4  # half a gap: weights of 0.015 have a gap of 2^-7 x 2^-7 = 6e-5, and updates are 0.1 x the rate
### END GUESS
stall_guess = Prediction("Learning rate at which half of the weights stop moving", my_guess, "")


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
    axes.semilogx(rates, [100 * s for s in shares], color=colors[name], label=name)
axes.set(title="Weights that an AdamW update moves", xlabel="learning rate", ylabel="%")
axes.legend(frameon=False)
show(figure, "Nearly all FP32 weights move at all rates shown; below 1e-3 fewer and fewer BF16 weights do.")
stall_guess.reveal(float(np.exp(np.interp(0.5, moving["BF16"], np.log(rates)))))

# %% [markdown] name="stall_explained"
# Learning rates around 1e-5 are common in fine-tuning. At such a rate one update leaves most BF16 weights unchanged, and PyTorch reports nothing.
#
# The problem disappears if the weights stay in FP32 and only the computation runs in 16 bits; that is [[mixed_precision]]. It takes four bytes per
# weight, and usually two more for a 16-bit copy. If the weights must be BF16 and nothing else, there are two fixes. You will write both.
#
# ## 5 · Two fixes
#
# ### Your turn: stochastic rounding
#
# 1.001 lies between the BF16 numbers 1 and 1.0078. Rounding to nearest always gives 1. Stochastic rounding rounds up at random, with a probability of 0.001 /
# 0.0078 = 13%. A single result can be farther off, but the **mean** of many is right.
#
# **Contract.** `stochastic_round(x)` takes an FP32 tensor of any shape and returns a BF16 tensor of the same shape. The numbers in `x` are finite; some may be
# subnormal.
#
# - Each number becomes one of its two BF16 neighbors; values already representable in BF16 are unchanged.
# - The probabilities are such that the expected result is the number itself.
# - Each element is drawn independently, and anew in each call.
# - The function does not change `x`. Both neighbors of each number are finite.
#
# Rounding to nearest can be written as adding half a gap and then clearing the lower bits. What would you add here?


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
# Stochastic rounding needs no extra memory. With two more bytes per weight you can avoid the randomness: store what rounding removed, and add it to the next
# update. This is **Kahan summation**, or compensated summation.
#
# **Contract.** `kahan_add(weight, lost, update)` returns the new `(weight, lost)`, both BF16.
#
# - `weight` and `lost` are BF16 tensors of the same shape; `update` is an FP32 tensor of that shape. The function changes none of them.
# - `lost` is the compensation: what `weight` still lacks, rounded to BF16.
# - The new weight is the BF16 number nearest to the sum of all three, and the new `lost` is that sum minus the new weight.
# - `lost` counts in full toward the sum, even where adding it to `weight` in BF16 would change nothing.


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
# Start at 1.0, add 0.001 a thousand times, and store each sum in BF16. Rounding to nearest never leaves 1.0. Stochastic rounding arrives at 2.0 on average, but a
# model takes this walk only once. How far from 2.0 does one walk end?

# %% name="walk"
nearest, drawn, kept, kept_too = (torch.ones(1000).bfloat16() for _ in range(4))
owed, owed_in_fp32, small = torch.zeros(1000).bfloat16(), torch.zeros(1000), torch.full((1000,), 0.001)
for _ in range(1000):
    nearest = (nearest.float() + small).bfloat16()
    drawn = stochastic_round(drawn.float() + small)
    kept, owed = kahan_add(kept, owed, small)
    meant = kept_too.float() + owed_in_fp32 + small  # the same with `lost` in FP32
    kept_too = meant.bfloat16()
    owed_in_fp32 = meant - kept_too.float()
above_one = 2.0**-7  # BF16's gap there
chance = 0.001 / above_one
deviation = above_one * math.sqrt(chance * (1 - chance))
print(f"one step: up by {above_one:.4f} with probability {chance:.3f}, standard deviation {deviation:.4f}")
print(f"a thousand independent steps: {deviation:.4f} x the square root of 1,000 = {deviation * math.sqrt(1000):.3f}")
print(f"measured: standard deviation of the walks {drawn.float().std():.3f}")
print(f"nearest {nearest[0].item():.5f}; stochastic {drawn.float().mean():.5f}, mean of {len(drawn):,} walks")
off = abs((kept.double() + owed.double())[0].item() - 2)
print(f"Kahan: weight {kept[0].item():.5f}, lost {owed[0].item():.5f}, their sum off by {off:.4f}")
off = abs((kept_too.double() + owed_in_fp32.double())[0].item() - 2)
print(f"Kahan with `lost` in FP32: their sum off by {off:.6f}")

# %% [markdown] name="tune_text"
# A single walk typically ends about ten BF16 gaps from 2 (using the size of the gap just below 2), while the mean of a thousand walks is almost exactly right. Kahan's sum ends less than one gap off. Nearly all of
# that error comes from rounding `lost`, which is BF16, too: compare the last two lines.
#
# ### What BF16 does to Adam's moments
#
# Training in pure BF16 usually means `AdamW(model.bfloat16().parameters())`. PyTorch then creates the moments in BF16 as well. Each step
# multiplies the second moment by β₂ and adds (1 − β₂) g². PyTorch's default is β₂ = 0.999; language models are usually trained with 0.95.
#
# **Predict.** With the default β₂, a weight has gradients of 1 for 50 steps, then of 0.01 for 2,950 steps. What is the ratio of its final second moment in BF16
# to the one in FP32?

# %% name="guess_moment"
my_guess = None  # BF16's second moment / FP32's
### BEGIN GUESS
my_guess = 1.1  # roundings of 0.2 % go up and down
### END GUESS
moment_guess = Prediction("Second moment in BF16, relative to FP32", my_guess, "times")


# %% name="second_moment"
def second_moment(dtype, beta_2):
    """Return AdamW's second moment of a weight whose gradient falls from 1 to 0.01 after 50 of 3,000 steps."""
    weight = torch.zeros(1, dtype=dtype, requires_grad=True)
    adam = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, beta_2))
    for step in range(3000):
        weight.grad = torch.full_like(weight, 1.0 if step < 50 else 0.01)
        adam.step()
    return adam.state[weight]["exp_avg_sq"].item()


for beta_2 in (0.999, 0.99, 0.95):
    exact, narrow = (second_moment(dtype, beta_2) for dtype in (torch.float32, torch.bfloat16))
    if beta_2 == 0.999:
        moment_guess.reveal(narrow / exact)
    print(f"beta_2 {beta_2:5}: second moment {exact:.2g} in FP32, {narrow:.2g} in BF16: {narrow / exact:.2f} times")

# %% [markdown] name="second_moment_explained"
# With β₂ = 0.999, the second moment in BF16 rises with large gradients but cannot fall: a decay of 0.1% is less than half a gap, so 0.999 v rounds back to v. Adam divides by
# the square root of v, so its steps stay too small for the rest of the run. With β₂ = 0.99 the decay of 1% is only one to three gaps, so rounding distorts it, and v gets stuck at almost three times FP32's value. With 0.95, v falls almost
# as in FP32. A short run with steady gradients would not show this, because its second moment has no reason to fall. Large gradients at the start, or a single spike, would. With the default β₂, keep the second moment in FP32 or
# round it stochastically.
#
# Sums of gradients have the same problem. `.grad` has the parameter's dtype, so with BF16 weights a sum over many micro-batches is a BF16 sum. PyTorch 2.10 and later
# let you request another dtype through `weight.grad_dtype`.

# %% name="grad_dtype"
for wide in (False, True):
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    if wide and not hasattr(weight, "grad_dtype"):
        print("this version of PyTorch has no grad_dtype")
        continue
    if wide:
        weight.grad_dtype = torch.float32
    for _ in range(1000):
        weight.sum().backward()  # a gradient of 1
    print(f"1,000 gradients of 1 add up to {weight.grad.item():g} in {weight.grad.dtype}")

# %% [markdown] name="grad_dtype_text"
# With an FP32 gradient the sum is right. The weight itself stays BF16. An optimizer now has to combine the two. The next cell tries five: SGD, Muon, Adafactor, Adam
# and AdamW.
#
# **Predict.** How many of the five take the step? The others raise an error.

# %% name="guess_optimizers"
my_guess = None  # of 5
### BEGIN GUESS
my_guess = 5  # an update is element-wise arithmetic, in which PyTorch promotes BF16 to FP32
### END GUESS
optimizers_guess = Prediction("Optimizers that take the step", my_guess, "of 5")


# %% name="grad_dtype_steps"
def weight_with_gradient():
    """Return a BF16 weight of ones with an FP32 gradient of ones."""
    weight = torch.ones(4, 4, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight.grad_dtype = torch.float32
    weight.sum().backward()
    return weight


def step_with(make_optimizer):
    """Take one step. Return the error, or how the weight has moved."""
    weight = weight_with_gradient()
    try:
        make_optimizer([weight], lr=0.1).step()
    except RuntimeError as error:
        return f"RuntimeError: {str(error)[:70]}"
    return f"the weight moves from 1 to {weight[0, 0].item():.3f}"


if hasattr(weight, "grad_dtype"):
    kinds = torch.optim.SGD, torch.optim.Muon, torch.optim.Adafactor, torch.optim.Adam, torch.optim.AdamW
    found = {kind.__name__: step_with(kind) for kind in kinds}
    optimizers_guess.reveal(sum("moves" in outcome for outcome in found.values()))
    for name, outcome in found.items():
        print(f"{name:22} {outcome}")
    narrow = weight_with_gradient()
    master = narrow.detach().float()
    master.grad, narrow.grad = narrow.grad, None
    torch.optim.AdamW([master], lr=0.1).step()
    with torch.no_grad():
        narrow.copy_(master)
    print(f"{'AdamW on FP32 masters':22} the weight moves from 1 to {narrow[0, 0].item():.3f}")

# %% [markdown] name="tune_intro"
# In PyTorch 2.13, SGD (unless `fused=True`), Muon and Adafactor accept it. Adam and AdamW raise an error: they create
# their moments in the weight's dtype, and their update cannot combine a BF16 moment with an FP32 gradient.
# With AdamW, keep an FP32 master weight, move the FP32 gradient to it, and copy the result back, as the last lines of the cell do.
#
# ### What pure BF16 fine-tuning loses
#
# Now a whole run. The GPT trained on English continues on Python source for 150 steps of AdamW. "BF16" stores weights, gradients and moments in BF16. "BF16 weights" stores only
# the weights in BF16, rounded to nearest, stochastically or with Kahan compensation, and keeps gradients and moments in FP32; these runs stop after 40 steps. All runs compute in FP32, so
# only the storage differs. The measure is how far the loss on unseen Python falls.
#
# **Predict.** At a learning rate of 1e-4, what percentage of FP32's progress does "BF16" make in 150 steps?

# %% name="guess_tune"
my_guess = None  # %, after 150 steps
### BEGIN GUESS
my_guess = 90  # at 1e-4 a third of the weights move in a step, and steps add up
### END GUESS
late_guess = Prediction("Progress in BF16 at 1e-4, 150 steps", my_guess, "% of FP32's")


# %% name="tune_run"
def stored(old, update, kind, lost):
    """Return the stored weight after `update`, as FP32 values; `lost` is Kahan's compensation, changed in place."""
    if kind == "stochastic":
        return stochastic_round(old + update).float()
    if kind == "Kahan":
        new, rest = kahan_add(old.bfloat16(), lost, update)
        lost.copy_(rest)
        return new.float()
    return (old + update).bfloat16().float() if kind == "nearest" else old + update


# %% name="tune_progress"
def progress(job):
    """Return how far the loss on unseen Python falls in as many steps as the job says, and what the first 40 did."""
    kind, lr, marks = job
    torch.manual_seed(1)
    tuned = copy.deepcopy(model)
    parameters = list(tuned.parameters())
    with torch.no_grad():
        for p in parameters:
            p.copy_(p if kind == "FP32" else p.bfloat16())
    lost = [torch.zeros_like(p, dtype=torch.bfloat16) for p in parameters]
    narrow = [
        p.detach().bfloat16() for p in parameters
    ]  # what AdamW sees if everything is in BF16; the model computes in FP32
    optimizer = torch.optim.AdamW(narrow if kind == "BF16" else parameters, lr=lr)
    falls, did, before = [], [], loss_of(tuned, *unseen).item()
    for step in range(marks[-1]):
        old = [p.detach().clone() for p in parameters]
        for p in parameters:
            p.grad = None
        loss_of(tuned, *batch(python, step, rows=4)).backward()
        for p, copied in zip(parameters, narrow, strict=True):
            copied.grad = p.grad.bfloat16()
        optimizer.step()
        with torch.no_grad():
            for p, copied, was, rest in zip(parameters, narrow, old, lost, strict=True):
                p.copy_(copied if kind == "BF16" else stored(was, p - was, kind, rest))
            if step < 40:  # the share of the weights that moved; the fall of the loss by gradient x change
                moved = sum((p != was).sum().item() for p, was in zip(parameters, old, strict=True))
                slope = sum((p.grad * (was - p)).sum().item() for p, was in zip(parameters, old, strict=True))
                did.append((moved / sum(p.numel() for p in parameters), slope))
            if step + 1 in marks:
                falls.append(before - loss_of(tuned, *unseen).item())
    return falls, did


python = python_source(device)
unseen = [ids[: 32 * 128].view(32, 128) for ids in (python.test_x, python.test_y)]

# %% name="tune"
rates = (1e-5, 1e-4, 1e-3)
jobs = [(kind, lr, (40, 150)) for lr in rates for kind in ("FP32", "BF16")]
jobs += [(kind, 1e-5, (40,)) for kind in ("nearest", "stochastic", "Kahan")]
with sign_of_life("six runs of 150 steps and three of 40"):
    results = parallel_map(progress, jobs)
falls = {(kind, lr): fall for (kind, lr, _), (fall, _) in zip(jobs, results, strict=True)}
steps_of = {(kind, lr): did for (kind, lr, _), (_, did) in zip(jobs, results, strict=True)}
made = {
    (kind, lr): [100 * fall / exact for fall, exact in zip(found, falls["FP32", lr], strict=False)]
    for (kind, lr), found in falls.items()
}
late_guess.reveal(made["BF16", 1e-4][1])
names = {"nearest": "BF16 weights, nearest", "stochastic": "BF16 weights, stochastic", "Kahan": "BF16 weights, Kahan"}
rows = [("storage", "learning rate", "loss reduction in 40 steps", "of FP32", "in 150 steps", "of FP32")]
for (kind, lr), shares in sorted(made.items(), key=lambda item: item[0][1]):
    figures = [f"{f:.4f} {s:.0f}%" for f, s in zip(falls[kind, lr], shares, strict=False)]
    cells = " ".join(figures).split()
    rows.append((names.get(kind, kind), f"{lr:g}", *cells, *[""] * (4 - len(cells))))
show_table(rows)

# %% [markdown] name="tune_parts_text"
# In section 4, nearly all weights stopped moving at 1e-5. How does the run still get this far? Look at the steps: how many weights move in each, and how much each one
# lowers the loss. (Gradient times change, summed over all weights, is the loss reduction to first order.)
#
# **Predict.** Compare the average loss reduction per step over steps 31 to 40. What percentage of the FP32 run's reduction does the run with BF16 weights (rounded to nearest) achieve?

# %% name="guess_parts"
my_guess = None  # %
### BEGIN GUESS
my_guess = 10  # as much as the share of the weights that move
### END GUESS
parts_guess = Prediction("Loss reduction in steps 31 to 40, BF16 weights rounded to nearest", my_guess, "% of FP32's")

# %% name="tune_parts"
nearest_steps, exact_steps = steps_of["nearest", 1e-5], steps_of["FP32", 1e-5]
rows = [("at 1e-5, steps", "weights that move", "loss reduction", "in FP32", "of FP32's")]
for first in (0, 10, 20, 30):  # single steps are noisy: take the mean of ten
    moved, slope = np.mean(nearest_steps[first : first + 10], axis=0)
    exact = np.mean(exact_steps[first : first + 10], axis=0)[1]
    share = f"{slope / exact:.0%}"
    rows.append((f"{first + 1} to {first + 10}", f"{moved:.1%}", f"{slope:.1e}", f"{exact:.1e}", share))
parts_guess.reveal(100 * slope / exact)  # of the last ten
show_table(rows)

# %% [markdown] name="tune_explained"
# Three effects are at work:
#
# - A new AdamW divides each gradient by its own size, so its first updates are about as large as the learning rate. The update of section 4 came after 60
#   steps, when the second moment still contained larger gradients.
# - A weight that moves at all moves by a whole number of gaps, which can be more than the update asked for, or less.
# - The two runs are in different states. FP32 is ahead, and its loss reduction per step falls faster than BF16's: compare the two columns.
#
# Rounding to nearest does not ruin the run, but it costs progress. At 1e-5 BF16 makes about a third of FP32's progress, or less. At 1e-4 it makes most of FP32's progress in 40
# steps and clearly less in 150: the shortfall grows with the length of the run. At 1e-3 almost nothing is lost in this run. BF16 moments make no difference in
# 40 steps at 1e-5; that is too few for the decay of the second moment to matter. Stochastic rounding and Kahan compensation recover what was lost. Stochastic rounding costs no bytes, Kahan compensation two per weight.
#
# What does this mean for your own run?
#
# - **Bytes.** Weight, gradient and Adam's two moments take 4 × 2 bytes per parameter in BF16, and 4 × 4 in FP32. That may decide whether a model fits.
# - **Rates.** Here, with two layers and 150 steps, pure BF16 with rounding to nearest kept up only at a learning rate of 1e-3. Adapters are often trained at 1e-4 or more ([[lora]]), full fine-tuning at 1e-5. Schedules
#   decay the rate, and a long run spends most of its steps at small rates.
# - **Stochastic rounding.** torchao's optimizers, such as `AdamW8bit`, have a switch for it: `bf16_stochastic_round=True`. It costs no memory.
#
# Compare BF16 and FP32 at your own rate for as many steps as you can afford. At 1e-4, 40 steps showed only about half of the shortfall that 150 steps did.

# %% [markdown] name="underflow_text"
# ## 6 · Underflow: gradients that become zero
#
# Gradients are small. Here are those of the GPT above, along with its other tensors, compared with the range of each format. (The ranges of FP32 and BF16 begin
# far to the left of the picture.) `LinearLog` records the inputs of three linear layers (*activations*) and the gradients of their outputs. Each black bar reaches from half of a format's smallest number, below which everything becomes zero, to its maximum.

# %% name="gradients"
log = LinearLog(keep={0})  # inputs x and gradients g of one step
log.attach({name: model.get_submodule(name) for name in ("blocks.0.qkv", "blocks.1.mlp.0", "head")})
optimizer.zero_grad()
loss_of(model, *batch(text, 61)).backward()
recorded = {kind: torch.cat([t.flatten() for key, t in log.tensors.items() if key[2] == kind]) for kind in "xg"}
tensors = {
    "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
    "activations": recorded["x"],
    "gradients of weights": torch.cat([p.grad.flatten() for p in model.parameters()]),
    "gradients of activations": recorded["g"],
    "Adam's second moment": torch.cat([s["exp_avg_sq"].flatten() for s in optimizer.state.values()]),
}
tensors = {name: t[t != 0].cpu().double() for name, t in tensors.items()}

# %% name="histogram"
figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.add_subplot()
for (name, t), color in zip(tensors.items(), COLORS, strict=False):
    counts, edges = np.histogram(torch.log2(t.abs()).numpy(), bins=np.arange(-60, 12))
    axes.step(edges[:-1], 100 * counts / counts.sum(), where="post", color=color, label=name)
for i, name in enumerate(("FP16", "E5M2", "E4M3")):
    low, high = math.log2(table[name][2]) - 1, math.log2(table[name][0])  # above half the smallest rounds up
    axes.plot([low, high], [-1.5 - 1.2 * i] * 2, color="black", lw=3, solid_capstyle="butt")
    axes.text(low - 1, -1.5 - 1.2 * i, name, ha="right", va="center", fontsize=8)
axes.set(
    title="Where the numbers of each tensor lie",
    xlabel="log2 of the magnitude",
    ylabel="% of the numbers",
    xlim=(-60, 17),
    ylim=(-5.5, None),
)
axes.set_yticks([tick for tick in axes.get_yticks() if tick >= 0])
axes.legend(frameon=False, loc="upper left")
show(
    figure,
    "Nearly all weights and activations lie within every format's range; gradients reach below FP16's, second moments far below.",
)

# %% name="underflow"
show_table(
    [
        ("magnitude", "median", "largest"),
        *((name, f"{t.abs().median():.1e}", f"{t.abs().max():.1e}") for name, t in tensors.items()),
    ]
)
print()
lost = {
    name: {form: 100 * (t.to(FORMATS[form].dtype).double() == 0).double().mean().item() for form in FORMATS}
    for name, t in tensors.items()
}
rows = [("becomes zero, %", *FORMATS)]
rows += [(name, *(f"{share:.1f}" for share in shares.values())) for name, shares in lost.items()]
show_table(rows)

# %% [markdown] name="which_text"
# ## 7 · Which tensor needs which format
#
# Zeros are one kind of loss; lost digits are another. The table below has the *median* relative error of the elements (1.0: at least half of the tensor is
# gone) and the percentage of zeros. A tensor may first be multiplied by a **scale** that brings its largest number near the top of the range, and divided by it
# afterwards. That costs one number per tensor, and eight-bit training works that way ([[fp8]]).
#
# Without a scale, E4M3 loses nearly all of Adam's second moments. The tables above show E4M3's smallest and largest numbers (section 2) and the largest second moment (section 6), and the histogram shows how
# far down the others reach.
#
# **Predict.** With such a scale, what percentage of the second moments still becomes zero?

# %% name="guess_scaled"
my_guess = None  # %
### BEGIN GUESS
my_guess = 1  # the scale lifts the whole tensor into the range; only a few stragglers stay below
### END GUESS
moments_guess = Prediction("Scaled second moments that E4M3 makes zero", my_guess, "%")


# %% name="which"
def rounded(t, form, scaled):
    scale = 0.9 * table[form][0] / t.abs().max() if scaled else 1.0
    return (t * scale).to(FORMATS[form].dtype).double() / scale


narrow = [name for name in FORMATS if name != "FP32"]
zeros = {}
rows = [("median error", *narrow)]
for name in ("weights", "activations", "gradients of activations", "Adam's second moment"):
    t = tensors[name]
    for scaled in (False, True):
        errors = [((rounded(t, form, scaled) - t) / t).abs().median().item() for form in narrow]
        label = f"{name}, {'scaled' if scaled else 'unscaled'}"
        rows.append((label, *(f"{error:.1e}" for error in errors)))
    zeros[name] = {form: 100 * (rounded(t, form, True) == 0).double().mean().item() for form in narrow}
    rows.append(("zeros when scaled, %", *(f"{share:.1f}" for share in zeros[name].values())))
show_table(rows)
moments_guess.reveal(zeros["Adam's second moment"]["E4M3"])

# %% [markdown] name="which_explained"
# - **Weights**: 16 bits are enough without a scale, and FP16, with three more fraction bits, is more precise than BF16. E4M3 needs
#   the scale, or small weights become subnormal or zero. E5M2, with its wider range, hardly needs one. **Activations** are larger, and here they need no scale even in E4M3.
# - **Gradients of activations** need range. Without a scale, FP16 has few digits left for the median element, the eight-bit formats have none, and BF16 is unaffected. With a scale, FP16 is more
#   precise than BF16 again.
# - **Adam's second moment** holds squares of gradients and so needs twice the range in powers of two. Without a scale, only formats with eight exponent bits can hold
#   it. With a single scale for the whole tensor, E4M3 still turns some of it into zero. That is why optimizers keep it in FP32 or scale block by block
#   ([[lean_optimizers]]).
# - **E4M3 or E5M2?** With a scale, E4M3 has the smaller error in most rows, but more zeros: one scale cannot fit a tensor whose numbers spread over many
#   powers of two. The recipe of Micikevicius et al. (2022) therefore gives gradients E5M2 and everything else E4M3. Recipes with one scale per block of 32 or 128 elements use
#   E4M3 throughout ([[#training_in_fp8]]). (Each row here has one scale for several layers, which is a harder case than one scale per layer.)
#
# ## 8 · Claims and measurements

# %% name="summary"
still = 100 - 100 * share_that_moves(weights.bfloat16(), 1e-5 * direction)
vanished = lost["gradients of activations"]["FP16"]
claims.record(
    "P1",
    "BF16 swallows small updates",
    "GPT, an update of AdamW scaled to 1e-5, weights that did not move",
    still,
    "%",
    50,
    100,
)
for lr in rates:
    said = "a pure BF16 model does not train"
    claims.record(
        "P1", said, f"GPT, 150 steps at {lr:g}, share of FP32's loss reduction", made["BF16", lr][1], "%", 0, 10
    )
claims.figure("FP16 makes small gradients zero", "GPT, gradients of activations", vanished, "%")
rows = [("format", "bits", "largest", "smallest", "epsilon", "gradients of activations lost, unscaled")]
for name, form in FORMATS.items():
    largest, _, smallest, in_one = table[name]
    share = lost["gradients of activations"][name]
    rows.append((name, f"{form.bits}", f"{largest:.3g}", f"{smallest:.2g}", f"{1 / in_one:.2g}", f"{share:.1f}%"))
show_table(rows)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Exponent bits buy range, fraction bits precision. Gaps are relative, except below the smallest normal number.
# - **Swamping**: an update of less than half a gap does nothing. Fixes: weights in FP32 (4 bytes), a BF16 compensation term alongside the BF16 weight (2 more bytes), or
#   stochastic rounding (none).
# - With the default β₂ of 0.999, Adam's second moment cannot decay in BF16, and a BF16 sum of gradients stops growing. Keep both in FP32; for the gradients, set
#   `grad_dtype` if your optimizer accepts it.
# - **Underflow**: anything up to half the smallest number becomes zero. Fixes: a scale, or BF16.
# - Weights and activations need precision, gradients need range, second moments need a great deal of range.
#
# **What to reach for when.** BF16 by default on hardware that supports it; FP16 with loss scaling elsewhere ([[loss_scaling]]); eight bits, with
# scales, for matmuls ([[fp8]]). Pure BF16 halves the memory of weights, gradients and moments. At small learning rates, combine it with
# stochastic rounding or Kahan compensation.
#
# **Sources.** IEEE 754-2019 (FP32, FP16); Kalamkar et al. 2019, *A Study of BFLOAT16 for Deep Learning Training*; Micikevicius et al. 2022, *FP8 Formats for Deep Learning*; Gupta et al. 2015, *Deep Learning with Limited
# Numerical Precision* (stochastic rounding).
