# %% [markdown] name="title"
# # FP8: numbers and their scales
#
# **Training can run on eight-bit numbers, provided that each tensor comes with a scale. You write the cast, two kinds of scales and a block format, and measure their errors on the tensors of a model in training.**
#
# | | |
# |---|---|
# | After this you can | cast to E4M3 or E5M2 with a scale, and explain what goes wrong without one; predict the error of a cast; write delayed scaling with its history, and compare it with current and block scaling; say what finer scales are for; write an MXFP8 quantizer, and compare its rule with those of the standard and of two four-bit formats |
# | Time | 85 to 110 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU, or a GPU; FP8 units are not needed. torchao is optional |
# | Before this | labs [[#start_here]], [[#number_formats]] and [[#mixed_precision]] |
# | Syllabus | T24 |

# %% name="setup" setup=true
from collections import defaultdict

from helpers import (
    COLORS,
    E2M1,
    Claims,
    LinearLog,
    Prediction,
    ShortRun,
    check,
    device_name,
    explore_scale,
    float8_products_picture,
    floor_power_of_two,
    hint,
    pick_device,
    quantize_blockwise,
    show,
    show_table,
    to_e2m1,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

claims = Claims()
device = pick_device() if pick_device().type == "cuda" else torch.device("cpu")  # PyTorch has no FP8 on Apple GPUs
BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="casts_text"
# ## 1 · Two formats of eight bits
#
# **E4M3** has 4 exponent bits and 3 fraction bits. It divides the interval from 1 to 2 into eight steps, and its maximum is 448. **E5M2** divides that interval into four steps, and its maximum is 57,344 ([[number_formats]]). Their smallest positive numbers are 2⁻⁹ = 0.002 and 2⁻¹⁶ = 0.000015. Each format rounds anything up to half of its smallest number to zero. (The `fn` in PyTorch's `float8_e4m3fn` means "finite, NaN": the format has NaN but no infinity.)

# %% name="casts"
numbers = torch.tensor([0.1, 1.06, 300.0, 448.0, 1000.0, 1e6, 1e-3, 1e-6, torch.inf, torch.nan])

casts = [(f"{x.item():g}", f"{x.to(E4M3).item():.5g}", f"{x.to(E5M2).item():.5g}") for x in numbers]
show_table([("number", "E4M3", "E5M2"), *casts])

# %% [markdown] name="casts_explained"
# Both ends of the range are traps. Just above zero, numbers are subnormal and the steps are coarse: E4M3 turns 0.001 into almost twice its value, and smaller numbers **underflow to zero**. Above the maximum, the result depends on the version of PyTorch: it can be the maximum, infinity or NaN. So we clamp before the cast, and a number that is too large **saturates** at the maximum. NaN stays NaN, so that you can see a broken step.
#
# An FP8 tensor is a pair: eight-bit values and an FP32 **scale**, with
#
# $$x \approx \text{scale} \times \text{values}$$
#
# (Some libraries store the inverse and call that the scale.)
#
# ### Your turn: the cast
#
# **Contract.** `quantize(x, dtype, scale=1.0)` divides `x` by `scale` and returns the quotients in FP8, so that scale times values is close to x.
#
# - `x` is FP32 or BF16, of any shape, and is not changed. `dtype` is E4M3 or E5M2. `scale` is a number, or a tensor that broadcasts to the shape of `x`.
# - Divide in FP32, and cast the quotient to `dtype` at once. (A division in BF16 would round twice: to BF16, and then in the cast.)
# - A number whose magnitude exceeds the format's maximum, infinity included, becomes the maximum with its sign. NaN stays NaN.


# %% name="quantize" answer=true reveal=true
def quantize(x, dtype, scale=1.0):
    """The FP8 values of `x`, such that scale * values is close to x."""
    ### BEGIN SOLUTION
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype)
    ### END SOLUTION


# %% name="quantize_check"
quantize = check("fp8.quantize", quantize)

# %% name="quantize_hint"
hint("fp8.quantize")


# %% name="error_and_lost"
def error(x, dtype, scale=1.0):
    """Relative error of `x` in FP8: the norm of the difference divided by the norm of x."""
    x = x.float()
    return ((quantize(x, dtype, scale).float() * scale - x).norm() / x.norm()).item()


def lost(x, dtype, scale=1.0):
    """Percentage of the nonzero numbers of `x` that become zero."""
    x = x[x != 0]
    return 100 * (quantize(x, dtype, scale).float() == 0).float().mean().item()


# %% [markdown] name="record_text"
# ## 2 · Real tensors
#
# A linear layer runs three matmuls on three tensors. The forward pass multiplies its input **x** by its weight **w**. The backward pass multiplies **g**, the gradient of its output, by w (for the gradient of x) and by x (for the gradient of w).
#
# We train a small GPT in BF16 and record these tensors in its eight linear layers. We leave out the head, which shares its weights with the embedding and usually stays in BF16. To get gradients of a realistic size, each batch of 512 tokens counts as one of 64 micro-batches ([[gradient_accumulation]]). We record the largest magnitude (the **amax**) at every step and keep the tensors of three steps.

# %% name="record"
KEEP = (2, 20, 59)  # steps
KINDS = {"x": "inputs x", "w": "weights w", "g": "gradients g"}
short_run = ShortRun(device)  # one GPT, one order of batches: helpers/exercises/fp8/short_run.py
STEPS = short_run.steps

# %% name="watch"
log = LinearLog(KEEP)  # hooks on forward and backward passes
amaxes, kept = log.amaxes, log.tensors  # (layer, kind) -> amax of each step; (step, layer, kind) -> tensor
_, losses = short_run.train(lambda model: log.attach(short_run.linears(model)))
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {STEPS} steps")
table = [("largest magnitude", *(f"step {step}" for step in KEEP))]
for layer, kind in (("blocks.0.qkv", "x"), ("blocks.1.mlp.2", "x"), ("blocks.0.qkv", "w")):
    table.append((f"{layer} {kind}", *(f"{amaxes[layer, kind][step]:.2g}" for step in KEEP)))
for which, choose in (("smallest", min), ("largest", max)):
    row = [choose(series[step] for (_, kind), series in amaxes.items() if kind == "g") for step in KEEP]
    table.append((f"g of 8 layers, {which}", *(f"{amax:.2g}" for amax in row)))
show_table(table)

# %% [markdown] name="unscaled_text"
# ## 3 · The control: no scale
#
# The loss is a mean over 64 × 512 = 32,768 tokens, so the gradient of a token's logits is at most 1/32,768 = 3 × 10⁻⁵. The last two rows of the table above show how large the gradients in the layers are.
#
# **Predict.** Cast the gradients to E5M2, the format with the wider range, without a scale. What percentage of them becomes zero?

# %% name="guess_lost"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 99  # anything below half of E5M2's smallest number, 7.6e-6, rounds to zero
### END GUESS
lost_guess = Prediction("Gradients that E5M2 without a scale makes zero, step 59", my_guess, "%")


# %% name="unscaled"
def over_layers(measure, step, kind):
    """The mean over layers of `measure(tensor, layer)`."""
    found = [measure(tensor, layer) for (s, layer, k), tensor in kept.items() if (s, k) == (step, kind)]
    return sum(found) / len(found)


lost_guess.reveal(over_layers(lambda t, _: lost(t, E5M2), 59, "g"))
middle = torch.cat([t.abs().flatten() for (step, _, kind), t in kept.items() if (step, kind) == (59, "g")]).median()
print(f"E5M2 rounds anything up to {2.0**-17:.1e} to zero; half of the gradients are below {middle:.1e}")
table = [("no scale, step 59", "lost E4M3", "lost E5M2", "error E4M3", "error E5M2")]
for kind, name in KINDS.items():
    row = [over_layers(lambda t, _, d=d: lost(t, d), 59, kind) for d in (E4M3, E5M2)]
    row += [over_layers(lambda t, _, d=d: 100 * error(t, d), 59, kind) for d in (E4M3, E5M2)]
    table.append((name, *(f"{figure:.1f}%" for figure in row)))
show_table(table)
claims.record(
    "T24", "gradients need a scale", "E4M3 without one, error", over_layers(lambda t, _: error(t, E4M3), 59, "g"),
    "relative", 0.9, 1.1,
)  # fmt: skip

# %% [markdown] name="scale_text"
# Activations and weights nearly fit the range as they are. Gradients do not: most are far below their amax, and even the amax is close to E5M2's lower end.
#
# ## 4 · A scale by hand
#
# Choose the scale so that the amax becomes the format's maximum. For E4M3 that is `scale = amax / 448`.
#
# ### Your turn: the scale
#
# **Contract.** `current_scale(x, dtype)` returns one number as an FP32 tensor of shape `[]`: the amax of `x` divided by the maximum of `dtype`. A tensor of zeros gets the scale 1. No gradient flows through the scale, and the function never waits for the GPU (no `if`, no `.item()`). `x` is not changed.


# %% name="current_scale" answer=true reveal=true
def current_scale(x, dtype):
    """One scale for the tensor, from its own amax."""
    ### BEGIN SOLUTION
    amax = x.detach().abs().amax().float()
    return torch.where(amax > 0, amax / torch.finfo(dtype).max, 1.0)
    ### END SOLUTION


# %% name="scale_check"
current_scale = check("fp8.scale", current_scale)

# %% name="scale_hint"
hint("fp8.scale")

# %% name="scale_by_hand"
table = [("scaled, step 59", "lost E4M3", "lost E5M2", "error E4M3", "error E5M2")]
for kind, name in KINDS.items():
    row = [over_layers(lambda t, _, d=d: lost(t, d, current_scale(t, d)), 59, kind) for d in (E4M3, E5M2)]
    row += [over_layers(lambda t, _, d=d: 100 * error(t, d, current_scale(t, d)), 59, kind) for d in (E4M3, E5M2)]
    table.append((name, *(f"{figure:.1f}%" for figure in row)))
show_table(table)
FORMULA = {dtype: torch.finfo(dtype).eps / (32 * np.log(2)) ** 0.5 for dtype in (E4M3, E5M2, BF16)}  # eps is 2^-m
print("formula, below:", *(f"{str(dtype)[6:]} {expected:.2%}" for dtype, expected in FORMULA.items()))
scaled = [over_layers(lambda t, _, d=d: error(t, d, current_scale(t, d)), 59, "g") for d in (E4M3, E5M2)]
claims.record("T24", "E5M2 rounds twice as coarsely as E4M3", "scaled gradients", scaled[1] / scaled[0], "x", 1.7, 2.3)
claims.record(
    "T24",
    "error = 0.212 x 2^-m",
    "scaled gradients, E4M3, measured / formula",
    scaled[0] / FORMULA[E4M3],
    "x",
    0.95,
    1.05,
)

# %% [markdown] name="scale_explained"
# **The formula behind these figures.** With m fraction bits, numbers from 2ᵉ up to 2ᵉ⁺¹ are rounded in steps of 2ᵉ⁻ᵐ. A uniform error of up to half a step has a root mean square of step/√12. Divide by the number, square, and average over one octave, giving equal weight to equal intervals of the logarithm:
#
# $$\text{relative error} = \frac{2^{-m}}{\sqrt{32 \ln 2}} \approx 0.212 \times 2^{-m}$$
#
# (A number's weight in the norm is its square. The last line above compares the formula with the table.) Neither the tensor nor the scale appears in the formula. It holds as long as few numbers fall outside the range and few lie exactly on a representable value.
#
# The **error** is smaller in E4M3 for every tensor. E5M2 **loses** slightly fewer gradients. The recipe of the first FP8 papers is *hybrid*: **E4M3 forward, E5M2 backward**. The reason is range: gradients have the widest spread, and their scale may be out of date (next section). [[Training_in_fp8]] tests whether the choice matters for training.

# %% [markdown] name="play_text"
# ### Explore: range and scale
#
# Move the scale by powers of two. The band is the format's range. Its pale part, on the left, holds the subnormal numbers, which have fewer significant bits. How far can you move the scale in each format before the error grows?

# %% name="play"
explore_scale(
    {
        "gradients of blocks.0.mlp.2": kept[59, "blocks.0.mlp.2", "g"],
        "inputs of blocks.1.mlp.2": kept[59, "blocks.1.mlp.2", "x"],
        "weights of blocks.0.qkv": kept[59, "blocks.0.qkv", "w"],
    },
    lambda x, dtype, scale: f"error {error(x, dtype, scale):.1%}, lost {lost(x, dtype, scale):.1f}%",
)

# %% [markdown] name="history_text"
# A scale need not be exact: in E5M2 you can move it by more than twice as many powers of two as in E4M3 before the error grows.
#
# ## 5 · Which amax?
#
# To find the amax, you must read the whole tensor before you can cast any of it, which takes another pass over memory. There are three options:
#
# - **Current scaling** makes this extra pass.
# - **Delayed scaling** uses the largest amax of some *earlier* steps.
# - **Block scaling** gives each small block its own scale, computed while the block is in registers.
#
# ### Your turn: delayed scaling
#
# **Contract.** `delayed_scale(history, x, dtype)` is called once per step for each tensor. `history`, FP32 of shape (steps,), holds the amaxes of earlier steps, newest first; it starts as zeros.
#
# - It returns the scale as an FP32 tensor of shape `[]`: the largest amax in `history` divided by the maximum of `dtype`. While the history holds only zeros, the scale is `current_scale(x, dtype)`.
# - It then shifts `history` in place: the oldest amax drops out, and the amax of `x` becomes `history[0]`.
# - An amax that is infinite or NaN is not written; the history then stays as it was.
# - No gradient flows through the scale, the function never waits for the GPU, and `x` is not changed.


# %% name="delayed_scale" answer=true reveal=true
def delayed_scale(history, x, dtype):
    """The scale from the amaxes of earlier steps; this step's amax goes into the history."""
    ### BEGIN SOLUTION
    known = history.max()
    scale = torch.where(known > 0, known / torch.finfo(dtype).max, current_scale(x, dtype))
    amax = x.detach().abs().amax().float()
    moved = torch.cat((amax[None], history[:-1]))
    history.copy_(torch.where(amax.isfinite(), moved, history))
    return scale
    ### END SOLUTION


# %% name="delayed_check"
delayed_scale = check("fp8.delayed", delayed_scale)

# %% name="delayed_hint"
hint("fp8.delayed")

# %% [markdown] name="clip_text"
# **Predict.** With a history of 16 steps, in what percentage of steps is the gradients' amax larger than all 16 before it, so that something is clipped?

# %% name="guess_clip"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 / 17
### END GUESS
clip_guess = Prediction("Steps in which delayed scaling clips gradients", my_guess, "%")

# %% name="history"
HISTORY = 16


def delayed_amax(series, step, history=HISTORY):
    """The largest finite amax of the steps before `step`."""
    past = [amax for amax in series[max(0, step - history) : step] if np.isfinite(amax)]
    return max(past, default=0.0)


def clipped(kind, margin=1.0):
    """Percentage of steps, over all layers, whose amax is above `margin` times that of the history."""
    over = [
        series[step] > margin * delayed_amax(series, step)
        for (_, k), series in amaxes.items()
        if k == kind
        for step in range(HISTORY, STEPS)
    ]
    return 100 * sum(over) / len(over)


clip_guess.reveal(clipped("g"))
table = [(name, f"{clipped(kind):.1f}%", f"{clipped(kind, 2):.1f}%") for kind, name in KINDS.items()]
show_table([("steps that clip", "no margin", "margin 2x"), *table])

# %% [markdown] name="history_explained"
# If the 17 amaxes came in random order, the newest would be the largest once in 17 steps, or 5.9%. A **trend** changes this percentage: a rising amax sets a new record more often, and a falling amax hardly ever does.
#
# Headroom is cheap in *floating point*: a margin of 2 costs one power of two at the bottom of the range and no fraction bits.
#
# **Predict.** Cast the gradients to E4M3, with a scale for every 32 contiguous ones. How large is their error, as a share of the error with one scale per tensor?

# %% name="guess_blocks"
my_guess = None  # a share, such as 0.25
### BEGIN GUESS
my_guess = 0.5  # each block uses the whole range of the format
### END GUESS
blocks_guess = Prediction("Gradients in E4M3, error: blocks of 32 / one scale", my_guess, "")


# %% name="scaling_table"
def block_scale(x, dtype, size):
    """A scale for every `size` contiguous values of a row of x, expanded to the shape of x."""
    amax = x.view(len(x), -1, size).abs().amax(-1)  # (rows, blocks)
    return torch.where(amax > 0, amax / torch.finfo(dtype).max, 1.0).repeat_interleave(size, 1)


def replayed(x, dtype, series, step):
    """Your delayed scale, with the recorded amaxes of earlier steps as its history."""
    past = torch.zeros(HISTORY, device=device)
    recorded = torch.tensor(series[max(0, step - HISTORY) : step][::-1])
    past[: len(recorded)] = recorded
    return delayed_scale(past, x, dtype)


METHODS = {
    "no scale": lambda x, dtype, series, step: torch.tensor(1.0, device=device),
    "delayed": replayed,
    "current": lambda x, dtype, series, step: current_scale(x, dtype),
    "blocks of 128": lambda x, dtype, series, step: block_scale(x, dtype, 128),
    "128, powers of 2": lambda x, dtype, series, step: 2 * floor_power_of_two(block_scale(x, dtype, 128)),
    "blocks of 32": lambda x, dtype, series, step: block_scale(x, dtype, 32),
}

# %% name="scaling_errors"
CASES = (("x", "E4M3"), ("w", "E4M3"), ("g", "E4M3"), ("g", "E5M2"))
by_method = defaultdict(dict)  # (step, method) -> (kind, format) -> percent error, percent lost
for step in KEEP[1:]:
    for method, scale_of in METHODS.items():
        for kind, form in CASES:
            dtype = {"E4M3": E4M3, "E5M2": E5M2}[form]

            def both(t, layer, dtype=dtype, scale_of=scale_of, kind=kind, step=step):
                scale = scale_of(t, dtype, amaxes[layer, kind], step)
                kept_scale = scale if scale.ndim == 0 else scale[t != 0]
                return np.array([100 * error(t, dtype, scale), lost(t, dtype, kept_scale)])

            by_method[step, method][kind, form] = over_layers(both, step, kind)
for number, what in enumerate(("error, %", "lost, %")):
    table = [(what, *(f"{kind} in {form}" for kind, form in CASES))]
    for (step, method), row in by_method.items():
        table.append((f"step {step}, {method}", *(f"{row[case][number]:.2f}" for case in CASES)))
    show_table(table)
late = {method: by_method[KEEP[-1], method] for method in METHODS}
blocks_guess.reveal(late["blocks of 32"]["g", "E4M3"][0] / late["current"]["g", "E4M3"][0])

# %% name="scaling_claims"
claims.record(
    "T24", "delayed scaling is as good as current", f"gradients in E5M2, step {KEEP[-1]}, error",
    late["delayed"]["g", "E5M2"][0] / late["current"]["g", "E5M2"][0], "x", 0.95, 1.05,
)  # fmt: skip
then = {method: by_method[KEEP[1], method]["g", "E4M3"][1] for method in ("delayed", "current")}
claims.record(
    "T24", "delayed scaling is as good as current", f"gradients in E4M3, step {KEEP[1]}, lost",
    then["delayed"] - then["current"], "% more", -0.1, 0.1,
)  # fmt: skip
claims.record(
    "T24", "a guess of this lab: blocks of 32 halve the error", f"gradients in E4M3, step {KEEP[-1]}",
    late["blocks of 32"]["g", "E4M3"][0] / late["current"]["g", "E4M3"][0], "x one scale", 0, 0.6,
)  # fmt: skip
claims.record(
    "T24", "block scales may be powers of two", f"gradients in E4M3, step {KEEP[-1]}, error",
    late["128, powers of 2"]["g", "E4M3"][0] / late["blocks of 128"]["g", "E4M3"][0], "x FP32 scales", 0.95, 1.05,
)  # fmt: skip
claims.record(
    "T24", "with blocks hardly any number is lost", f"gradients in E4M3, step {KEEP[-1]}, blocks of 32",
    late["blocks of 32"]["g", "E4M3"][1], "%", 0, 0.01,
)  # fmt: skip

# %% [markdown] name="scaling_explained"
# "Blocks halve the error" was our own guess. It is wrong, as you could have predicted from the formula, in which the scale does not appear. The gain from blocks of 32 has another cause: each block's largest number becomes 448, which the format represents exactly. The next cell separates the largest numbers from the others.
#
# Three of the four layers in a transformer block take 128 inputs, so there a block of 128 is a whole row of x or w. torchao calls this *row-wise* scaling. If the scales are powers of two (Transformer Engine's default for blocks), only that gain is lost: the largest number of a block no longer lands on 448, and the error matches the formula to within about one percent.
#
# *Delayed* scaling has the same error as *current* scaling, but loses more numbers. At step 20 the history still holds larger values from earlier steps, so small gradients fall below E4M3's lower end. With E5M2, hardly any are lost.

# %% name="largest"
g = kept[59, "blocks.0.qkv", "g"]
scale = block_scale(g, E4M3, 32)
wrong, blocks = quantize(g, E4M3, scale).float() * scale - g, g.reshape(-1, 32)
largest = (blocks.abs() == blocks.abs().amax(1, keepdim=True)).reshape(g.shape)
for name, chosen in (("the largest of each block", largest), ("the others", ~largest)):
    share, off = g[chosen].square().sum() / g.square().sum(), wrong[chosen].norm() / g[chosen].norm()
    print(f"{name:26} {share:5.0%} of the squared norm, error {off:.2%}")

# %% [markdown] name="outlier_text"
# The error of the others follows the formula. The largest numbers have almost no error. So the error of the whole tensor is √(1 − share of the largest) times the formula's. (The table above shows a mean over layers.)
#
# What are finer scales for? In large language models, a few channels can be a hundred times (2⁷) larger than the rest (Xiao et al. 2022), and a few individual numbers 100,000 times (2¹⁷; Sun et al. 2024). We multiply one channel of a real input by such a factor and look at the error of **all the others**. We also use INT8, whose 255 values are evenly spaced.
#
# **Predict.** One channel becomes 2¹⁰ times as large. In E4M3 with one scale for the tensor, by what factor does the error of the other channels grow?

# %% name="guess_outlier"
my_guess = None  # times
### BEGIN GUESS
my_guess = 4  # the outlier takes most of the range
### END GUESS
outlier_guess = Prediction("E4M3, one scale, an outlier of 2^10: growth of the others' error", my_guess, "times")

# %% name="outlier"
x = kept[59, "blocks.0.qkv", "x"]
powers = list(range(0, 21, 2))
curves = {"INT8, one scale": [], "E4M3, one scale": [], "E4M3, blocks of 32": []}
for power in powers:
    spiked = x.clone()
    spiked[:, 5] *= 2.0**power
    one, each, step = current_scale(spiked, E4M3), block_scale(spiked, E4M3, 32), spiked.abs().max() / 127
    results = (
        (spiked / step).round() * step,
        quantize(spiked, E4M3, one).float() * one,
        quantize(spiked, E4M3, each).float() * each,
    )
    others = torch.arange(x.shape[1]) != 5
    for method, back in zip(curves, results, strict=True):
        curves[method].append(100 * ((back - x)[:, others].norm() / x[:, others].norm()).item())
one = curves["E4M3, one scale"]
outlier_guess.reveal(one[powers.index(10)] / one[0])

# %% name="outlier_figure"
figure = Figure(figsize=(7.5, 3.2), layout="constrained")
axes = figure.add_subplot()
for (method, line), color in zip(curves.items(), (COLORS[7], COLORS[4], COLORS[0]), strict=True):
    axes.semilogy(powers, line, "o-", color=color, label=method, ms=4)
axes.set(
    title="One channel grows: the error of the others", xlabel="log2 of the factor on that channel", ylabel="error, %"
)
axes.set_xticks(powers)
figure.legend(loc="outside right upper", frameon=False)
show(
    figure,
    "Three curves, one per method: the error of the other channels over the factor on one channel, both logarithmic.",
)
table = [(f"2^{power}", *(f"{line[i]:.2f}%" for line in curves.values())) for i, power in enumerate(powers)]
show_table([("factor", *curves), *table])
room = np.log2(torch.finfo(E4M3).max / torch.finfo(E4M3).smallest_normal)
print(f"E4M3's normal numbers span {room:.1f} powers of two")
claims.record(
    "T24", "an outlier of 2^10 needs finer scales", "E4M3, one scale, error of the others",
    one[powers.index(10)] / one[0], "x without it", 2, np.inf,
)  # fmt: skip
claims.record(
    "T24", "blocks contain an outlier", "E4M3, one channel x 2^16, error of the others",
    curves["E4M3, blocks of 32"][powers.index(16)] / curves["E4M3, one scale"][powers.index(16)], "x one scale", 0, 0.5,
)  # fmt: skip

# %% [markdown] name="outlier_explained"
# INT8 starts with the smallest error and breaks first, because one large channel uses up its whole range. A factor of 2⁸ ruins INT8, but even 2¹² costs E4M3 with one scale almost nothing. Beyond that, E4M3 needs finer scales, too. With block scales, an outlier affects only the 31 other numbers of its block. The main use of finer scales is in formats with less range, such as those of four bits (section 6).

# %% [markdown] name="recipes_explained"
# ## 6 · Blocks in the standard: MXFP8
#
# The tensor cores of NVIDIA's Blackwell GPUs apply block scales inside the matmul. The format, **MXFP8**, is an open standard: E4M3 values (the standard also allows E5M2), and a scale in **E8M0** for every 32 contiguous values. E8M0 has eight exponent bits and nothing else: the powers of two from 2⁻¹²⁷ to 2¹²⁷, and NaN (`fnu`: finite, NaN, unsigned). A value costs 8 + 8/32 = 8.25 bits.
#
# ### Your turn: the block format
#
# **Contract.** `mx_quantize(x)` returns `(values, scales)`.
#
# - `x` (..., n) is FP32 or BF16 and has at least one dimension. A block is 32 contiguous values along the last dimension. If 32 does not divide n, the last block of each row is shorter. `x` is not changed.
# - `values` (..., n) is `torch.float8_e4m3fn`; `scales` (..., blocks per row) is `torch.float8_e8m0fnu`. x is approximately values times scales.
# - The scale is the **smallest power of two for which nothing in the block is clipped**: no magnitude divided by it exceeds 448. If this power of two is below 2⁻¹²⁷, the scale is 2⁻¹²⁷. A block of zeros gets the scale 1.
# - Each value is its number divided by the scale, rounded to E4M3.
# - A block with an infinity or NaN gets the scale NaN; its values do not matter. Other blocks are not affected.
#
# Take care at and just above 448 × 2ᵏ: `torch.log2` rounds, `torch.frexp` does not.


# %% name="mx" answer=true reveal=true
def mx_quantize(x):
    ### BEGIN SOLUTION
    n = x.shape[-1]
    padded = F.pad(x.float(), (0, -n % 32))  # zeros do not change an amax
    blocks = padded.reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().amax(-1)  # NaN and infinity propagate
    fraction, exponent = torch.frexp(amax)  # amax = fraction x 2^exponent, 1/2 <= fraction < 1; 448 = 7/8 x 2^9
    exponent = exponent - 9 + (fraction > 7 / 8).int()
    scale = torch.ldexp(torch.ones_like(amax), exponent.clamp(min=-127))
    scale = torch.where(amax == 0, 1.0, scale)
    scale = torch.where(amax.isfinite(), scale, torch.nan)
    values = (blocks / scale[..., None]).reshape(padded.shape)[..., :n]
    return values.to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)
    ### END SOLUTION


# %% name="mx_check"
mx_quantize = check("fp8.mx", mx_quantize)

# %% name="mx_hint"
hint("fp8.mx")

# %% [markdown] name="directions_text"
# ### Along which dimension?
#
# A scale can be factored out of a sum only if all terms share it. So the 32 values must lie **along the dimension that is summed**, which differs from matmul to matmul.
#
# The next picture shows the three matmuls of section 2, in the hybrid formats. White lines outline the blocks of values that share a scale.

# %% name="products_picture"
show(
    float8_products_picture(),
    "Three matmuls. g is in E5M2, everything else in E4M3. Blocks run along the inner dimension: along the rows of the left matrix, down the columns of the right one.",
)

# %% [markdown] name="twice_text"
# For y, w has blocks along `in`; for the gradient of x, along `out`. Each tensor is needed with blocks along *both* of its dimensions. With a single scale you could transpose the values. Here each tensor is **quantized twice**.
#
# **Predict.** Quantize a layer's weights to MXFP8 along their rows and along their columns, and multiply the values by their scales. What percentage of the weights differ between the two copies?

# %% name="guess_twice"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 30  # a number gets a different scale in each copy, so it is rounded differently
### END GUESS
twice_guess = Prediction("Weights whose two copies in MXFP8 differ", my_guess, "%", difference=True)


# %% name="rounding_ways"
def mxfp8_unclipped(x):
    values, scales = mx_quantize(x)
    return values.float() * scales.float().repeat_interleave(32, 1)[:, : x.shape[1]]


def to_e4m3(x):
    return quantize(x, E4M3).float()


def one_scale(x):
    scale = current_scale(x, E4M3)
    return quantize(x, E4M3, scale).float() * scale


def e4m3_blocks(x):  # like MXFP8, but with scales in FP32
    return quantize_blockwise(x, 32, lambda amax: amax / 448, to_e4m3)


def mxfp4(x):
    return quantize_blockwise(x, 32, lambda amax: floor_power_of_two(amax) / 4, to_e2m1)


# %% name="directions"
x, w, g = (kept[59, "blocks.0.mlp.0", kind] for kind in "xwg")
try:
    bits = [[mx_quantize(side)[0].view(torch.uint8) for side in (t, t.t().contiguous())] for t in (x, w, g)]
    stored = [100 * (rows != columns.t()).float().mean().item() for rows, columns in bits]
    table = [("numbers that differ", *KINDS.values()), ("MXFP8, the bytes stored", *(f"{d:.1f}%" for d in stored))]
    for name, rounded in (("MXFP8", mxfp8_unclipped), ("E4M3, FP32 scales", e4m3_blocks), ("MXFP4", mxfp4)):
        differ = [100 * (rounded(t) != rounded(t.t().contiguous()).t()).float().mean().item() for t in (x, w, g)]
        table.append((f"{name}, times scales", *(f"{d:.2f}%" for d in differ)))
        if name == "MXFP8":
            twice_guess.reveal(differ[1])
            claims.record("T24", "MX copies agree in value", "weights, rows and columns", differ[1], "% differ", 0, 2)
    show_table(table)
except NotImplementedError:
    print("This table appears once mx_quantize is written.")
print(f"two copies in MXFP8: {2 * 8.25} bits per number; BF16: 16")

# %% [markdown] name="directions_explained"
# The bytes differ: neither copy is a transpose of the other. Their *values* nearly agree because the scales are powers of two. Such a scale does not change a number's fraction bits, so the number rounds the same way in both copies unless it is subnormal in one of them. With FP32 scales, the forward and the backward pass use different weights. MXFP4 is in between, because it has few normal numbers.
#
# Two copies take more memory than BF16, so keep only the one that the backward pass needs. **Square** blocks (DeepSeek's weights, or 16 × 16 in NVFP4) can be transposed.
#
# ### The standard's rule, and four bits
#
# The standard's own rule rounds the amax *down* to a power of two and divides by 256. A block's largest number can then fall between 448 and 512, where it is clipped.
#
# **NVFP4** goes down to four bits: its values are in **E2M1**, which has eight magnitudes and rounds ties to the even bit pattern. A block has 16 values and a scale in E4M3. One FP32 scale for the tensor brings the block scales into range. This takes 4 + 8/16 = 4.5 bits per value. **MXFP4** has blocks of 32 and E8M0 scales, which takes 4.25 bits. PyTorch does not cast to four bits on a CPU; `helpers` does.

# %% name="four_bits"
print("E2M1:", *E2M1)


def nvfp4(x):
    whole = x.abs().max() / (6 * 448)  # so that the largest block scale is 448
    return quantize_blockwise(x, 16, lambda amax: to_e4m3(amax / 6 / whole).clamp(min=2**-9) * whole, to_e2m1)


def mxfp8_by_standard(x):
    return quantize_blockwise(x, 32, lambda amax: floor_power_of_two(amax) / 256, to_e4m3)


# %% name="blocks"
FORMATS_TRIED = {
    "E4M3, one scale": (8, one_scale),
    "MXFP8, nothing clipped": (8 + 8 / 32, mxfp8_unclipped),
    "MXFP8, the standard's rule": (8 + 8 / 32, mxfp8_by_standard),
    "NVFP4": (4 + 8 / 16, nvfp4),
    "MXFP4": (4 + 8 / 32, mxfp4),
}
found = {}
table = [("error, step 59", "bits", *KINDS.values())]
for name, (bits, function) in FORMATS_TRIED.items():
    try:
        row = [over_layers(lambda t, _, f=function: ((f(t) - t).norm() / t.norm()).item(), 59, kind) for kind in KINDS]
    except NotImplementedError:
        print(f"{name} appears once mx_quantize is written")
        continue
    found[name] = row
    table.append((name, f"{bits:.4g}", *(f"{100 * e:.2f}%" for e in row)))
show_table(table)
print(f"formula for one fraction bit: {2.0**-1 / (32 * np.log(2)) ** 0.5:.1%}")

# %% [markdown] name="blocks_explained"
# With eight bits, finer scales gain nothing *here*, as the formula predicts. (The tenth that blocks of 32 gained in section 5 is lost, because a power of two does not put a block's largest number on a representable value.) The rule that never clips is better on these tensors: clipping takes up to an eighth off a block's largest number, and these tensors do not need the extra range that it adds at the bottom. With four bits, the size of the blocks and the precision of the scale make a visible difference.
#
# The rule that never clips is called **RCEIL** (Mishra et al. 2025). It is the rounding mode of torchao's training config. The next cell compares its bytes with yours.

# %% name="rceil"
try:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    differ, numbers = 0, 0
    for tensor in (x, w, g):
        scales, values = to_mx(tensor.contiguous(), E4M3, 32, ScaleCalculationMode.RCEIL)
        differ += (values.view(torch.uint8) != mx_quantize(tensor)[0].view(torch.uint8)).sum().item()
        numbers += values.numel()
    print(f"values that differ from torchao's: {differ} of {numbers:,}")
    claims.record(
        "T24", "torchao's RCEIL is this rule", f"{numbers:,} numbers of a layer", differ, "bytes differ", 0, 0
    )
except ImportError as missing:  # prototypes move between releases
    print(f"This cell does nothing here ({missing}): pip install torchao")
except NotImplementedError:
    print("This comparison appears once mx_quantize is written.")

# %% [markdown] name="measured_text"
# ## 7 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - An FP8 tensor is a pair: values and a scale. Without the scale, almost all gradients become zero, and no error is raised.
# - The relative error is 0.212 × 2⁻ᵐ, whatever the scale, as long as few numbers fall outside the format's range. E4M3 halves E5M2's error; E5M2 reaches further down.
# - Delayed scaling saves a pass over the tensor. Its history can be out of date, so it may clip large numbers or lose small ones.
# - With eight bits, finer scales hardly make the error smaller. They keep an outlier from affecting other blocks, and small numbers from being lost. With four bits, the size of the blocks and the precision of their scales matter.
# - MX blocks run along the summed dimension, so each tensor is quantized twice.
#
# **What to reach for when.** If you can afford to read each tensor twice, use current scaling: it cannot be out of date. If the cast must happen in one pass, use delayed scaling, with a margin. Use block scales on GPUs that apply them in hardware, and for tensors whose numbers do not fit under one scale. With four bits, you need them.
#
# **Next.** [[Training_in_fp8]] builds a linear layer from these casts, trains with it, and measures what FP8 does to loss, memory and time.
#
# **Sources.** Micikevicius et al. 2022, *FP8 Formats for Deep Learning*, arXiv:2209.05433 · Open Compute Project 2023, *OCP Microscaling Formats (MX) Specification*; Rouhani et al. 2023, *Microscaling Data Formats for Deep Learning*, arXiv:2310.10537 · Mishra et al. 2025, *Recipes for Pre-training LLMs with MXFP8*, arXiv:2506.08027 (rounding the scale up) · Xiao et al. 2022, *SmoothQuant*, arXiv:2211.10438; Sun et al. 2024, *Massive Activations in Large Language Models*, arXiv:2402.17762 (outliers) · documentation of Transformer Engine (*FP8 recipes*) and torchao (`torchao.prototype.mx_formats`).
