# %% [markdown] name="title"
# # Number formats
#
# **You can spend sixteen bits, or eight, on range or on precision: each tensor of a training step needs one more than the other, and two failures
# show when it got the wrong one, swamping and underflow.**
#
# | | |
# |---|---|
# | After this you can | read a number from its bits; say how far apart neighbouring numbers are; find the learning rate at which BF16 weights stand still, and cure that with stochastic rounding; tell from a histogram which tensor needs which format |
# | Time | 60 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[start_here]] |
# | Syllabus | T3, C6, P1, P2, the start of T24 |

# %% name="setup" setup=true
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
    pick_device,
    show,
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
for said, measured, want in (
    ("FP16 ends at 65504", table["FP16"][0], 65504),
    ("FP16's smallest normal is 6.1e-5", table["FP16"][1], 6.1e-5),
    ("FP16's smallest is 6e-8", table["FP16"][2], 6e-8),
    ("BF16 reaches as far as FP32", table["BF16"][0] / table["FP32"][0], 1),
    ("E4M3 ends at 448", table["E4M3"][0], 448),
    ("E5M2 ends at 57344", table["E5M2"][0], 57344),
):
    claims.record("C6", said, "all patterns of the format", measured, "", 0.99 * want, 1.01 * want)
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
#
# **TF32** is a format that nobody stores. NVIDIA GPUs since Ampere can round the inputs of an FP32 product to FP32's 8 exponent bits and FP16's 10
# fraction bits on the way in: 19 bits, kept in the upper part of 32. [[Mixed_precision]] switches it on. Here we simulate it, rounding to the nearest (a GPU may
# round in another way):


# %% name="tf32"
def to_tf32(x):
    """FP32 numbers rounded to the nearest of those whose lower 13 fraction bits are zero; ties go to the even one."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


one_to_two = (torch.arange(2**23, dtype=torch.int32) + 0x3F800000).view(torch.float32)  # all that FP32 has
kept = to_tf32(one_to_two).unique()
in_one = int((kept < 2).sum())
normal = table["FP32"][1]  # the exponent bits are FP32's
table["TF32"] = (2 - 1 / in_one) * 2.0**127, normal, normal / in_one, in_one
print(f"0.1 becomes {to_tf32(torch.tensor(0.1)).item():.9g}")
print(f"{'':6}{'largest':>12}{'smallest normal':>17}{'smallest':>12}{'numbers in [1, 2)':>19}{'bytes stored':>14}")
for name in ("FP32", "TF32", "BF16", "FP16"):
    largest, normal, smallest, in_one = table[name]
    print(f"{name:6}{largest:>12.5g}{normal:>17.3g}{smallest:>12.3g}{in_one:>19,}{2 if '16' in name else 4:>14}")

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
for (name, form), colour in zip(FORMATS.items(), COLOURS, strict=False):
    limits = table[name]
    inside = x[(x >= limits[2]) & (x <= limits[0])]
    gaps = 2.0 ** (np.maximum(np.floor(np.log2(inside)), 1 - form.bias) - form.fraction_bits)
    axes.loglog(inside, gaps / inside, color=colour, label=name)
axes.axhline(1 / table["TF32"][3], color="black", lw=0.8, ls=":", label="TF32's epsilon")
axes.set(title="Gap to the next number, relative to the number", xlabel="number", ylabel="relative gap", ylim=(1e-8, 2))
axes.legend(frameon=False, ncols=2)
show(figure, "Flat saw-teeth at each format's epsilon, rising steeply where the subnormal numbers begin.")

# %% [markdown] name="gap_task"
# This picture is the whole story of the lab. A curve is flat where the format is at home, at a height set by its fraction bits, and rises to the left
# where the range ends.
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
check("number_formats.gap", gap)

# %% [markdown] name="swamping_text"
# ## 4 · Swamping: weights that stand still
#
# An update of less than half a gap is rounded away. Look at the sizes first, then predict. Here is the fifth AdamW update of a small GPT on English
# text.

# %% name="real_update"
torch.manual_seed(0)
model = SmallGPT().to(device)
text = english(device)
ids, targets = text.train_x[: 8 * 128].view(8, 128), text.train_y[: 8 * 128].view(8, 128)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    optimizer.zero_grad()
    F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    optimizer.step()
after = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
weights, direction = before, (before - after) / 1e-3  # the update at learning rate 1
print(
    f"weights: median size {weights.abs().median():.3g}; update at learning rate 1: median size {direction.abs().median():.2g}"
)

# %% [markdown] name="moves_task"
# ### Your turn: who moves?
#
# **Contract.** `share_that_moves(weight, update)` returns the share (0 to 1) of `weight`'s elements that change when `update` is subtracted and the
# result is stored in `weight`'s dtype.
#
# - `weight` is a tensor in FP32, FP16 or BF16, `update` one of the same shape in FP32. Neither may be changed.
# - The subtraction is done in FP32; only its result is rounded. Returns a float.


# %% name="moves" answer=true reveal=true
def share_that_moves(weight, update):
    ### BEGIN SOLUTION
    moved = (weight.float() - update).to(weight.dtype)
    return (moved != weight).float().mean().item()
    ### END SOLUTION


# %% name="moves_check"
check("number_formats.moves", share_that_moves)

# %% [markdown] name="guess_stall_text"
# **Predict.** At what learning rate do half of this GPT's BF16 weights stand still?

# %% name="guess_stall"
my_guess = None
### BEGIN GUESS
my_guess = 3e-5  # half a gap: weights of 0.014 have a gap of 2^-7 x 2^-7 = 6e-5
### END GUESS
stall_guess = Prediction("Learning rate at which half of the weights stand still", my_guess, "")

# %% name="stall"
rates = np.logspace(-7, -2, 21)
try:
    moving = {
        name: [share_that_moves(weights.to(FORMATS[name].dtype), float(rate) * direction) for rate in rates]
        for name in ("FP32", "FP16", "BF16")
    }
except NotImplementedError:
    print("The picture appears when share_that_moves is done.")
else:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, shares), colour in zip(moving.items(), COLOURS, strict=False):
        axes.semilogx(rates, [100 * s for s in shares], color=colour, label=name)
    axes.set(title="Weights that an AdamW update moves", xlabel="learning rate", ylabel="%")
    axes.legend(frameon=False)
    show(
        figure,
        "Nearly all FP32 weights move at all rates shown; fewer and fewer BF16 weights below 1e-3, hardly any below 1e-5.",
    )
    stall_guess.reveal(float(np.exp(np.interp(0.5, moving["BF16"], np.log(rates)))))

# %% [markdown] name="stall_explained"
# Learning rates of 1e-5 are common in fine-tuning. At that rate most of a pure BF16 model does not train, and no error tells you so.
#
# The usual cure is to keep the weights in FP32 and compute with 16-bit copies ([[mixed_precision]]). That costs memory. There is another cure.
#
# ### Stochastic rounding
#
# 1.001 lies between the BF16 numbers 1 and 1.0078. Rounding to the nearest always gives 1. Throw dice instead: round up with a probability of 0.001 /
# 0.0078 = 13 %. Each single result is worse, but the **mean** of many is right. On average, a thousand small updates then arrive.
#
# **Contract.** `stochastic_round(x)` takes an FP32 tensor of finite numbers and returns a BF16 tensor of the same shape.
#
# - Each number becomes one of its two BF16 neighbours; a number that BF16 has stays as it is.
# - The probabilities are such that the mean is the number itself. Each element is drawn independently, and afresh in each call.
# - `x` is not changed. Both neighbours of each of its numbers are finite.
#
# A BF16 number is an FP32 number whose lower 16 bits are zero: `x.view(torch.int32)` gives you the bits.


# %% name="stochastic" answer=true reveal=true
def stochastic_round(x):
    ### BEGIN SOLUTION
    bits = x.view(torch.int32)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)
    return ((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()  # the sum carries into the upper half by chance
    ### END SOLUTION


# %% name="stochastic_check"
check("number_formats.stochastic", stochastic_round)

# %% [markdown] name="walk_text"
# **Predict**, then look: start at 1.0, add 0.001 a thousand times, and store each sum in BF16. Where do you end when you round to the nearest, and
# where with dice?

# %% name="walk_guess"
my_guess = None  # to the nearest
### BEGIN GUESS
my_guess = 1.0  # 0.001 is less than half the gap of 0.0078
### END GUESS
walk_guess = Prediction("1.0 plus a thousand times 0.001, to the nearest", my_guess, "")

# %% name="walk"
try:
    nearest, dice = torch.ones(1000).bfloat16(), torch.ones(1000).bfloat16()
    for _ in range(1000):
        nearest = (nearest.float() + 0.001).bfloat16()
        dice = stochastic_round(dice.float() + 0.001)
    walk_guess.reveal(nearest.float().mean().item())
    print(f"with dice, mean of 1000 walks: {dice.float().mean():.3f}, spread {dice.float().std():.3f}")
    stored, wanted = weights.bfloat16().float(), -1e-5 * direction
    moves = {
        "to the nearest": (stored + wanted).bfloat16().float() - stored,
        "with dice": sum(stochastic_round(stored + wanted).float() for _ in range(64)) / 64 - stored,
    }
    for name, move in moves.items():
        print(
            f"at learning rate 1e-5, share of the intended update that arrives {name}: {(move @ wanted) / (wanted @ wanted):.0%}"
        )
except NotImplementedError:
    print("The walk begins when stochastic_round is done.")

# %% [markdown] name="underflow_text"
# ## 5 · Underflow: gradients that become zero
#
# Gradients are small. Here are those of the GPT above, with its other tensors, against the range of each format. (The ranges of FP32 and BF16 begin
# far to the left of the picture.)

# %% name="gradients"
optimizer.zero_grad()
hidden = {}


def remember(name):
    def hook(module, inputs, output):
        hidden[name] = output
        output.retain_grad()

    return hook


handles = [
    model.get_submodule(n).register_forward_hook(remember(n)) for n in ("blocks.0.qkv", "blocks.3.mlp.0", "head")
]
F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
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
figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.add_subplot()
for (name, t), colour in zip(tensors.items(), COLOURS, strict=False):
    counts, edges = np.histogram(torch.log2(t.abs()).numpy(), bins=np.arange(-60, 12))
    axes.step(edges[:-1], 100 * counts / counts.sum(), where="post", color=colour, label=name)
for i, name in enumerate(("FP16", "E5M2", "E4M3")):
    low, high = math.log2(table[name][2]), math.log2(table[name][0])
    axes.plot([low, high], [-1.5 - 1.2 * i] * 2, color="black", lw=3, solid_capstyle="butt")
    axes.text(low - 1, -1.5 - 1.2 * i, name, ha="right", va="center", fontsize=8)
axes.set(
    title="Who lives where", xlabel="log2 of the size", ylabel="% of the numbers", xlim=(-60, 17), ylim=(-5.5, None)
)
axes.legend(frameon=False, loc="upper left")
show(
    figure,
    "Weights and activations lie within every format's range; gradients reach below FP16's, Adam's second moment far below.",
)

# %% [markdown] name="guess_underflow_text"
# **Predict.** What share of the gradients *of activations* becomes zero in FP16?

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
# ## 6 · Which tensor needs which format
#
# Zeros are one kind of loss, lost digits are the other. Look at the relative error of the *median* element (1.0: at least half of the tensor is
# gone), and at the zeros. A tensor may first be multiplied by a **scale** that brings its largest number to the top of the range, and divided by it
# afterwards. That costs one number per tensor and is how eight-bit training works ([[fp8]]).


# %% name="which"
rounding = {"FP32": lambda t: t.float(), "TF32": lambda t: to_tf32(t.float())}
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
    zeros = [100 * (rounded(t, form, True) == 0).double().mean().item() for form in rounding]
    print(f"  {name:26}" + "".join(f"{share:>10.1f}" for share in zeros))

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
# ## 7 · What you have measured

# %% name="summary"
still = (weights.bfloat16().float() - 1e-5 * direction).bfloat16() == weights.bfloat16()
vanished = lost["gradients of activations"]["FP16"]
claims.record(
    "P1",
    "BF16 swallows small updates",
    "GPT, AdamW at 1e-5, weights that stood still",
    100 * still.float().mean().item(),
    "%",
    50,
    100,
)
claims.record("P2", "FP16 makes small gradients zero", "GPT, gradients of activations", vanished, "%", 0.1, 100)
print(
    f"{'':6}{'bits':>5}{'largest':>12}{'smallest':>11}{'epsilon':>11}   GPT gradients (of activations) lost, unscaled"
)
for name, form in FORMATS.items():
    largest, _, smallest, in_one = table[name]
    print(
        f"{name:6}{form.bits:>5}{largest:>12.3g}{smallest:>11.2g}{1 / in_one:>11.2g}   {lost['gradients of activations'][name]:.1f} %"
    )
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Exponent bits buy range, fraction bits precision. Gaps are relative, except below the smallest normal number.
# - **Swamping**: an update below half a gap does nothing. Cures: FP32 master weights, or stochastic rounding.
# - **Underflow**: anything below half the smallest number becomes zero. Cures: a scale, or BF16.
# - Weights and activations need precision, gradients need range, second moments need a great deal of range.
#
# **What to reach for when.** BF16 by default on hardware that has it; FP16 with loss scaling elsewhere ([[mixed_precision]]); eight bits, with a
# scale, for matrix products ([[fp8]]). At small learning rates, never 16-bit weights without a master copy or dice.
#
# **Sources.** IEEE 754-2019 (FP32, FP16); Kalamkar et al. 2019, *A Study of BFLOAT16 for Deep Learning Training*; Micikevicius et al. 2022, *FP8 Formats for Deep Learning*; Gupta et al. 2015, *Deep Learning with Limited
# Numerical Precision* (stochastic rounding).
