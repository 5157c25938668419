# %% [markdown] name="title"
# # Training in FP8
#
# **On GPUs with FP8 units, matmuls in FP8 are faster than in 16 bits. You write the backward pass of a linear layer in FP8, train with it, and measure how it changes the error, the loss, the memory and the time of a step.**
#
# | | |
# |---|---|
# | After this you can | write the backward pass of a linear layer in FP8, and predict the error of its gradients; judge whether a recipe trains like BF16; use torchao's and Transformer Engine's recipes; calculate how many bytes and seconds FP8 saves; explain NVFP4's training recipe |
# | Time | 80 to 105 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●● |
# | Needs | a CPU, where FP8 matmuls are emulated; a GPU with FP8 units (Hopper, Ada or newer) for speed. torchao is optional |
# | Before this | labs [[#fp8]] and [[#gradient_accumulation]] |
# | Syllabus | T24, C15 |

# %% name="setup" setup=true
import contextlib
import importlib.util
import math
from dataclasses import replace
from functools import partial

from helpers import (
    COLORS,
    Claims,
    LinearLog,
    Prediction,
    Recipe,
    ShortRun,
    category_table,
    check,
    compare,
    device_name,
    hint,
    human_bytes,
    numbers_beyond_cache,
    pick_device,
    planned,
    show,
    show_table,
    supports,
)
from helpers.exercises.fp8.built import current_scale, delayed_scale, nvfp4, one_scale, quantize

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

claims = Claims()
device = pick_device() if pick_device().type == "cuda" else torch.device("cpu")  # PyTorch has no FP8 on Apple GPUs
BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
HAS_FP8_UNITS = device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")
print("BF16 matmuls:", "native" if supports(BF16, device) else "emulated in FP32: correct, but slow")
print("FP8 matmuls:", "on the GPU's FP8 units" if HAS_FP8_UNITS else "emulated, no FP8 units here")

# %% [markdown] name="again_text"
# This lab continues [[fp8]], from which you need four things. The course's versions are imported above.
#
# - **`quantize(x, dtype, scale)`** returns the FP8 values of x / scale. **`current_scale(x, dtype)`** takes the scale from the amax of x, and **`delayed_scale(history, x, dtype)`** from those of earlier steps. `one_scale(x)` casts x to E4M3 and back.
# - **`nvfp4(x, to_format)`** casts x (rows, n) to four bits and back: values in E2M1, and one scale per 16 contiguous values of a row. `to_format` is the function that rounds to E2M1, normally to the nearest.
# - **The formula.** The relative error of a cast is 0.212 × 2⁻ᵐ for a format with m fraction bits, whatever the scale, as long as few numbers fall outside its range.
# - **The subject** is a GPT of two layers, trained in BF16 for 60 steps. Each batch of 512 tokens counts as one of 64 micro-batches. We record the inputs **x**, the weights **w** and the gradients of the outputs **g** of its eight linear layers.
#
# The next cell trains it again, and keeps the tensors of the last step.

# %% name="again"
FORMULA = {dtype: torch.finfo(dtype).eps / (32 * math.log(2)) ** 0.5 for dtype in (E4M3, E5M2)}  # eps is 2^-m
short_run = ShortRun(device)  # one GPT, one order of batches: helpers/exercises/fp8/short_run.py
STEPS = short_run.steps
log, losses = LinearLog((STEPS - 1,)), {}
_, losses["BF16"] = short_run.train(lambda model: log.attach(short_run.linears(model)))
kept = {(layer, kind): tensor for (_, layer, kind), tensor in log.tensors.items()}
print(f"loss {losses['BF16'][0]:.2f} -> {losses['BF16'][-1]:.2f} in {STEPS} steps; {len(kept)} tensors")
print("error of a cast:", *(f"{str(dtype)[6:]} {expected:.2%}" for dtype, expected in FORMULA.items()))

# %% [markdown] name="layer_matmuls_text"
# ## 1 · Inside a linear layer
#
# A linear layer runs three matmuls. In the hybrid recipe, their operands have these formats:
#
# | matmul | left | right |
# |---|---|---|
# | y = x wᵀ | x in E4M3 | w in E4M3 |
# | gradient of x = g w | g in E5M2 | w in E4M3 |
# | gradient of w = gᵀ x | g in E5M2 | x in E4M3 |
#
# All three matmuls return BF16. PyTorch's `F.scaled_mm` computes them (in older versions, `torch._scaled_mm`). Without FP8 units we emulate it: we convert the FP8 values to FP32, multiply, and apply both scales. The operands are rounded in the same way, but the emulation tells you nothing about speed.


# %% name="product"
def with_torch(a, scale_a, b, scale_b, fast=False):
    """PyTorch's own matmul. It needs contiguous rows of a, contiguous columns of b, and sizes divisible by 16."""
    a, b = a.contiguous(), b.t().contiguous().t()
    if hasattr(F, "scaled_mm"):
        whole = F.ScalingType.TensorWise
        return F.scaled_mm(a, b, scale_a, whole, scale_b, whole, output_dtype=BF16, use_fast_accum=fast)
    return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=BF16, use_fast_accum=fast)


def scaled_mm(a, scale_a, b, scale_b, fast=False):
    """a (M, K) @ b (K, N), FP8 values, times both scales, in BF16. `fast`: sum inside the tensor cores."""
    if HAS_FP8_UNITS:
        return with_torch(a, scale_a, b, scale_b, fast)
    return (a.float() @ b.float() * (scale_a * scale_b)).to(BF16)


x, w = kept["blocks.0.qkv", "x"], kept["blocks.0.qkv", "w"]
scales = current_scale(x, E4M3), current_scale(w, E4M3)
factors = quantize(x, E4M3, scales[0]), scales[0], quantize(w, E4M3, scales[1]).t(), scales[1]
right, by_torch = x @ w.t(), "does not run"
for name, y in (("FP8", scaled_mm(*factors)), ("BF16", x.bfloat16() @ w.t().bfloat16())):
    print(f"x wT in {name}, error vs. FP32: {(y.float() - right).norm() / right.norm():.2%}")
with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError, ValueError):
    by_torch = f"differs by {(with_torch(*factors) - scaled_mm(*factors)).float().norm() / right.norm():.1e}"
print(f"PyTorch's scaled_mm on this {device.type}: {by_torch}")

# %% [markdown] name="layer_text"
# ### Your turn: the backward pass
#
# Start with its two matmuls. Their operands are already in FP8. With one scale per tensor, you can simply transpose the values.
#
# **Contract.** There are M tokens, K inputs and N outputs. The matrices `g8` (M, N), `x8` (M, K) and `w8` (N, K) are in FP8, and each comes with its scale. `product(a, scale_a, b, scale_b)` is `scaled_mm` or behaves like it.
#
# - `gradient_of_x(g8, scale_g, w8, scale_w, product)` returns (M, K) in BF16. `gradient_of_w(g8, scale_g, x8, scale_x, product)` returns (N, K) in BF16.
# - Each function calls `product` once, on two FP8 matrices, and passes each matrix with its own scale.


# %% name="products" answer=true reveal=true
def gradient_of_x(g8, scale_g, w8, scale_w, product):
    """The gradient of x (M, K), summed over outputs."""
    ### BEGIN SOLUTION
    return product(g8, scale_g, w8, scale_w)
    ### END SOLUTION


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    """The gradient of w (N, K), summed over tokens."""
    ### BEGIN SOLUTION
    return product(g8.t(), scale_g, x8, scale_x)
    ### END SOLUTION


# %% name="products_check"
gradient_of_x, gradient_of_w = check("training_in_fp8.products", gradient_of_x, gradient_of_w)

# %% name="products_hint"
hint("training_in_fp8.products")

# %% [markdown] name="function_text"
# Now write the backward pass of an autograd function. Its `forward` is given. Note what it **saves**: `keep_x` and `keep_w` decide whether x and w are saved in FP8 or in their own dtype, which will matter in section 3.
#
# **Contract.** `backward(ctx, g)` gets g (M, N) in BF16 and returns a tuple of gradients.
#
# - Quantize g to E5M2 once, with the scale that `ctx.scale_of(g, E5M2)` returns, and use the result in both matmuls. Use x and w in E4M3, with the scales of the forward pass. If x or w was saved in BF16, quantize it again.
# - Return one entry per input of `forward`: the gradients of x and w, which your two functions compute with `ctx.product`, and then None four times.
# - If x or w needs no gradient (`ctx.needs_input_grad`), skip its matmul and return None for it.
# - g, x, w and the saved tensors are not changed.


# %% name="layer" answer=true reveal=true
class Float8Product(torch.autograd.Function):
    """x (M, K) times the transpose of weight (N, K), in FP8."""

    @staticmethod
    def forward(ctx, x, weight, scale_of, product, keep_x, keep_w):
        scale_x, scale_w = scale_of(x, E4M3), scale_of(weight, E4M3)
        x8, w8 = quantize(x, E4M3, scale_x), quantize(weight, E4M3, scale_w)
        ctx.scale_of, ctx.product = scale_of, product
        ctx.save_for_backward(x8 if keep_x else x, w8 if keep_w else weight, scale_x, scale_w)
        return product(x8, scale_x, w8.t(), scale_w)

    @staticmethod
    def backward(ctx, g):
        ### BEGIN SOLUTION
        x, w, scale_x, scale_w = ctx.saved_tensors
        scale_g = ctx.scale_of(g, E5M2)
        g8 = quantize(g, E5M2, scale_g)
        of_x = of_w = None
        if ctx.needs_input_grad[0]:
            w8 = w if w.dtype == E4M3 else quantize(w, E4M3, scale_w)
            of_x = gradient_of_x(g8, scale_g, w8, scale_w, ctx.product)
        if ctx.needs_input_grad[1]:
            x8 = x if x.dtype == E4M3 else quantize(x, E4M3, scale_x)
            of_w = gradient_of_w(g8, scale_g, x8, scale_x, ctx.product)
        return of_x, of_w, None, None, None, None
        ### END SOLUTION


# %% name="layer_check"
Float8Product = check("training_in_fp8.backward", Float8Product)

# %% name="layer_hint"
hint("training_in_fp8.backward")

# %% [markdown] name="module_text"
# The next cell wraps `Float8Product` in a module and defines functions that replace a model's linear layers with it:


# %% name="module"
def no_scale(x, dtype):
    return torch.tensor(1.0, device=x.device)


class Float8Linear(nn.Module):
    """A linear layer that computes in FP8 with the weight and bias of `linear`, which stay BF16."""

    def __init__(self, linear, scale_of=current_scale, product=scaled_mm, keep_x=False, keep_w=False):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.multiply = lambda x, w: Float8Product.apply(x, w, scale_of, product, keep_x, keep_w)

    def forward(self, x):
        y = self.multiply(x.flatten(0, -2), self.weight)
        return y.view(*x.shape[:-1], -1) + self.bias


def to_float8(model, **options):
    for name, layer in short_run.linears(model).items():
        model.set_submodule(name, Float8Linear(layer, **options))


HISTORY = 16  # steps


class Delayed:
    """A `scale_of` with one history for each of a layer's tensors; an extra forward pass does not mix them up."""

    def __init__(self, weight):
        self.weight = weight
        self.histories = dict(zip("xwg", torch.zeros(3, HISTORY, device=device), strict=True))

    def __call__(self, t, dtype):
        kind = "g" if dtype == E5M2 else "w" if t.data_ptr() == self.weight.data_ptr() else "x"
        return delayed_scale(self.histories[kind], t, dtype)


def to_delayed(model):
    for name, layer in short_run.linears(model).items():
        model.set_submodule(name, Float8Linear(layer, scale_of=Delayed(layer.weight)))


# %% [markdown] name="gradient_text"
# **Predict.** The errors of x and w follow the formula for E4M3, and the error of g follows that for E5M2. All errors are random and independent. How large is the error of the gradient of w, gᵀ x?

# %% name="guess_gradient"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 100 * (FORMULA[E4M3] ** 2 + FORMULA[E5M2] ** 2) ** 0.5  # independent errors add as squares
### END GUESS
gradient_guess = Prediction("Weight gradient of one FP8 layer", my_guess, "%")

# %% name="gradient"
layer = "blocks.0.mlp.0"
x, w, g = (kept[layer, kind] for kind in "xwg")


def gradients(function, dtype):
    """Gradients of x and w when g arrives at the output of `function(x, w)`."""
    leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in (x, w)]
    function(*leaves).backward(g.to(dtype))
    return [t.grad.float() for t in leaves]


right = gradients(F.linear, torch.float32)
table = [("error vs. FP32", "gradient of x", "gradient of w")]
for name, function in {
    "BF16": F.linear,
    "FP8": lambda x, w: Float8Product.apply(x, w, current_scale, scaled_mm, True, True),
    "FP8, cast again": lambda x, w: Float8Product.apply(x, w, current_scale, scaled_mm, False, False),
    "FP8 without scales": lambda x, w: Float8Product.apply(x, w, no_scale, scaled_mm, False, False),
}.items():
    off = [((a - b).norm() / b.norm()).item() for a, b in zip(gradients(function, BF16), right, strict=True)]
    table.append((name, f"{off[0]:.2%}", f"{off[1]:.2%}"))
    if name == "FP8":
        measured = off
show_table(table)
gradient_guess.reveal(100 * measured[1])

# %% [markdown] name="agree_text"
# The gradient of x has a smaller error than g itself! Each element of it is a long sum. The *errors* of the terms have random signs, so their squares add up. If the *terms* had random signs too, their sum would grow at the same rate, and the error of the gradient would be the root of the sum of its operands' squared errors. Where terms agree in sign, their sum is larger by some factor, and the same error is a smaller share of it. So divide that root by this factor.


# %% name="agree"
def by_formula(a, b):
    """Error of a @ b with a rounded to E5M2 and b to E4M3, and how much larger a @ b is than with random signs."""
    larger = ((a @ b).norm() / (a**2 @ b**2).sum().sqrt()).item()
    return (FORMULA[E5M2] ** 2 + FORMULA[E4M3] ** 2) ** 0.5 / larger, larger


print(f"with random signs the error would be {(FORMULA[E5M2] ** 2 + FORMULA[E4M3] ** 2) ** 0.5:.2%}")
table = [("", "times as large as with random signs", "formula", "measured")]
for name, factors, found in (("gradient of x", (g, w), measured[0]), ("gradient of w", (g.t(), x), measured[1])):
    expected, larger = by_formula(*factors)
    table.append((name, f"{larger:.2f}", f"{expected:.2%}", f"{found:.2%}"))
    claims.record("T24", "error of a matmul by the formula", f"{name}, {layer}, FP8", found / expected, "x", 0.9, 1.1)
show_table(table)

# %% [markdown] name="gradient_explained"
# So the error depends on two fraction widths and on one property of the tensors. It does not depend on the number of terms, *provided that* the sum is kept in FP32, as ours is. Hopper's tensor cores keep about 14 bits of a running sum, as DeepSeek found. `use_fast_accum=False` moves partial sums to FP32 from time to time, at some cost in speed. The precision of the sum matters most for the weight gradient, whose sums are the longest.
#
# ## 2 · Does it train?
#
# We compare BF16 (trained above) with our FP8 under current scaling, under delayed scaling, and, as a control, without scales. All runs have the same seed and the same batches.
#
# **Predict.** By what percentage does FP8's final loss (mean of the last ten steps) differ from BF16's?

# %% name="guess_loss"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 1
### END GUESS
loss_guess = Prediction("Difference between FP8's loss and BF16's", my_guess, "%", difference=True)


# %% name="train_fp8"
def last(name):
    """The mean loss of the last ten steps, and how far it is from BF16's, in percent."""
    ends = {run: sum(losses[run][-10:]) / 10 for run in (name, "BF16")}
    return ends[name], 100 * (ends[name] / ends["BF16"] - 1)


# %% name="train_compare"
models = {}
models["FP8 by hand"], losses["FP8 by hand"] = short_run.train(to_float8)
models["FP8, delayed"], losses["FP8, delayed"] = short_run.train(to_delayed)
models["FP8, no scales"], losses["FP8, no scales"] = short_run.train(lambda model: to_float8(model, scale_of=no_scale))
loss_guess.reveal(abs(last("FP8 by hand")[1]))
table = [("", "loss", "vs. BF16", "zero weight gradients")]
for name, model in models.items():
    end, off = last(name)
    table.append((name, f"{end:.3f}", f"{off:+.2f}%", f"{short_run.zero_gradients(model):.1f}%"))
show_table([*table, ("BF16", f"{last('BF16')[0]:.3f}", "", "")])

# %% [markdown] name="noise_text"
# Does a difference of this size mean anything? And does the backward pass need E5M2? We add a version with **E4M3 throughout**, and two more seeds for each. The new version emulates FP8 by *fake quantization*: the forward pass rounds, and the backward pass treats the rounding as the identity (a *straight-through* gradient). A hook rounds g before both matmuls of the backward pass.


# %% name="all_e4m3"
def e4m3_throughout(x, w):
    """x (M, K) times the transpose of w (N, K), with g in E4M3 as well."""
    x8, w8 = (t.float() + (one_scale(t) - t.float()).detach() for t in (x, w))
    y = x8 @ w8.t()
    y.register_hook(one_scale)
    return y.to(x.dtype)


def to_e4m3_throughout(model):
    to_float8(model)
    for module in model.modules():
        if isinstance(module, Float8Linear):
            module.multiply = e4m3_throughout


# %% name="noise"
compared = {"BF16": None, "hybrid": to_float8, "E4M3 throughout": to_e4m3_throughout}
ends = {("BF16", 0): last("BF16")[0], ("hybrid", 0): last("FP8 by hand")[0]}
for seed in range(3):
    for name, change in compared.items():
        if (name, seed) not in ends:
            ends[name, seed] = sum(short_run.train(change, seed)[1][-10:]) / 10
table = [(f"{seed}", *(f"{ends[name, seed]:.4f}" for name in compared)) for seed in range(3)]
show_table([("seed", *compared), *table])
by_seed = [ends["BF16", seed] for seed in range(3)]
spread = 100 * (max(by_seed) / min(by_seed) - 1)
print(f"BF16 with another seed: up to {spread:.2f}%")
for name in ("hybrid", "E4M3 throughout"):
    offs = [100 * (ends[name, seed] / ends["BF16", seed] - 1) for seed in range(3)]
    print(f"{name} vs. BF16: " + ", ".join(f"{off:+.2f}%" for off in offs))
    claims.record(
        "T24", "FP8 matters less than the seed", f"GPT, 3 seeds, {name}, mean distance by BF16's spread",
        sum(map(abs, offs)) / 3 / spread, "x", 0, 1,
    )  # fmt: skip

# %% [markdown] name="torchao_text"
# The rounding errors of FP8 change the final loss by less than the spread of the three seeds. You cannot tell the two formats for g apart here: E5M2 doubles the error of g and loses fewer small gradients, and neither effect shows in the loss. A small GPT and 60 steps cannot settle the question for a large run. In practice, recipes with one scale per tensor use the hybrid (Transformer Engine's default; torchao's *tensorwise*). Recipes with finer scales use E4M3 throughout (torchao's *rowwise*, DeepSeek-V3, MXFP8).
#
# ### torchao: the PyTorch-native option
#
# `convert_to_float8_training` swaps a model's linear layers for FP8 ones with current scaling. The recipe sets the granularity: *tensorwise*; *rowwise*, with one scale per row or column along the summed dimension; or *rowwise_with_gw_hp*, which leaves the weight gradient's matmul in BF16 because it is the most sensitive. For Blackwell there is MXFP8 with `RCEIL`, the rounding rule that you wrote in [[fp8]]. All of them can be emulated. On a GPU add `torch.compile`, which fuses amax, scaling and cast with the operations around them.

# %% name="torchao_recipes"
HAS_TORCHAO = True
try:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
    from torchao.quantization import quantize_
except ImportError as missing:  # prototypes move between releases
    HAS_TORCHAO = False
    print(f"torchao's cells do nothing here ({missing}): pip install torchao")


# %% name="torchao"
def torchao_float8(model, recipe="tensorwise"):
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=not HAS_FP8_UNITS)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, name: name != "head")


def torchao_mxfp8(model):
    config = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL)  # Blackwell: MXFP8_RCEIL
    quantize_(model, config, filter_fn=lambda module, name: isinstance(module, nn.Linear) and name != "head")


recipes = {"rowwise": lambda model: torchao_float8(model, "rowwise"), "MXFP8, RCEIL": torchao_mxfp8}
for recipe, change in recipes.items() if HAS_TORCHAO else ():
    _, losses[f"torchao {recipe}"] = short_run.train(change)
    end, off = last(f"torchao {recipe}")
    print(f"torchao {recipe:20} loss {end:.3f} ({off:+.1f}% vs. BF16)")
    claims.record(
        "T24", "torchao's float8 trains like BF16", f"GPT, {STEPS} steps, {recipe}, loss", off, "% from BF16's", -3, 3
    )

# %% name="loss_figure"
figure = Figure(figsize=(7.5, 3.4), layout="constrained")
axes = figure.add_subplot()
shown = ("BF16", "FP8 by hand", "FP8, no scales", "torchao rowwise")
for name, color in zip(shown, (COLORS[0], COLORS[1], COLORS[4], COLORS[2]), strict=True):
    look = {"lw": 5, "alpha": 0.4} if name == "BF16" else {"lw": 1.5, "ls": "--" if "torchao" in name else "-"}
    axes.plot(losses.get(name, []), color=color, label=name, **look)
axes.set(title="Training a small GPT, same seed and batches", xlabel="step", ylabel="loss")
figure.legend(loc="outside right upper", frameon=False)
show(figure, "BF16 and FP8 with scales follow the same curve; FP8 without scales falls more slowly and stays above.")
off = last("FP8 by hand")[1]
claims.record(
    "T24", "E4M3 forward, E5M2 backward trains like BF16", f"GPT, {STEPS} steps, loss", off, "% from BF16's", -3, 3
)
off = last("FP8, no scales")[1]
claims.record("T24", "without scales it does not", f"GPT, {STEPS} steps, loss", off, "% from BF16's", 5, 1000)

# %% [markdown] name="train_explained"
# With scales, FP8 stays within a percent of BF16's loss, and the three seeds spread over more than that. Without them there is no exception and no NaN, and the loss still falls: biases, norms and the embedding learn, while almost all weight gradients of the linear layers are zero. So a falling loss does not show that FP8 works. Compare it with BF16's.
#
# ## 3 · Does it save memory?
#
# Next, the memory meter measures one step of a GPT of width 256, after a first step has created the optimizer state. We compare BF16, torchao's FP8, and our FP8 with three choices of what to save.
#
# In all of these runs, weights and optimizer state are in BF16.
#
# **Predict.** After the forward pass a step holds parameters, optimizer state and activations. What is this total with torchao's FP8, as a fraction of BF16's?

# %% name="guess_memory"
my_guess = None  # a share, such as 0.5
### BEGIN GUESS
my_guess = 0.9  # FP8 values that wait for the backward pass take one byte instead of two
### END GUESS
memory_guess = Prediction("Held after the forward pass, FP8 / BF16", my_guess, "")


# %% name="memory"
runs = {"BF16": short_run.meter()}
if HAS_TORCHAO:
    runs["torchao"] = short_run.meter(torchao_float8)
runs["keeps BF16"] = short_run.meter(to_float8)
runs["keeps FP8 x"] = short_run.meter(lambda model: to_float8(model, keep_x=True))
runs["keeps both"] = short_run.meter(lambda model: to_float8(model, keep_x=True, keep_w=True))

# %% name="memory_table"
held = {
    name: next(stage for stage in meter.stages if stage.name == "forward").held_after for name, meter in runs.items()
}
categories = [category for category in held["BF16"] if any(row[category] for row in held.values())]
table = [(category, *(human_bytes(row[category]) for row in held.values())) for category in categories]
total = {name: sum(row.values()) for name, row in held.items()}
show_table([("held after forward", *held), *table, ("sum", *map(human_bytes, total.values()))])
memory_guess.reveal(total["torchao" if HAS_TORCHAO else "keeps BF16"] / total["BF16"])
print(f"\npeak of each category over the whole step (last/first: {list(runs)[-1]} over BF16):")
show_table(category_table(runs))
claims.record(
    "T24", "FP8 compute saves no memory by itself", "GPT, 2 layers of 256, held after forward",
    total["keeps BF16"] / total["BF16"], "x BF16", 0.98, 1.2,
)  # fmt: skip
claims.record(
    "T24", "keeping the inputs in FP8 saves activations", "the same GPT, activations after forward",
    held["keeps FP8 x"]["activations"] / held["BF16"]["activations"], "x BF16", 0.3, 0.95,
)  # fmt: skip

# %% [markdown] name="memory_explained"
# (The peaks of FP8 are higher because casts and emulation need temporaries. *Weight copies* are weights in FP32 that are about to be cast. Hopper's tensor cores also need transposed copies.)
#
# After the forward pass FP8 holds as many bytes as BF16. Weights, gradients and optimizer state are BF16 as before: in FP8, most weight updates would be lost (swamping, [[number_formats]]). A layer that saves its **input unchanged** saves BF16, and the FP8 copy exists only during the matmul. torchao does this, like our *keeps BF16*. Transformer Engine's `Linear` saves the *quantized* input, as our `keep_x` does. The saving comes from that choice and not from the matmul.
#
# *keeps FP8 x* halves the saved inputs of three of a block's four layers, but not the activations, because norms, GELU, attention and the loss save BF16. (Attention keeps its output in BF16 in any case, so for the projection after it, the FP8 copy is extra.) *keeps both* adds FP8 weights to the BF16 ones. In a layer of `in` by `out`, saving x in FP8 saves tokens × `in` bytes if no other operation keeps x, and keeping w in FP8 costs `in` × `out`. So keeping both pays off once a layer has more tokens than outputs. Here there are 512 tokens and up to 1,024 outputs.
#
# **Where FP8 does save memory.** Transformer Engine can hold the *weights themselves* in FP8, under `te.quantized_model_init()` (`te.fp8_model_init` in older versions). This pays off for frozen weights, or if the optimizer keeps FP32 master weights anyway. torchao's `enable_fsdp_float8_all_gather` makes FSDP ([[sharding]]) *send* weights in FP8. Its `AdamWFp8` keeps moments in FP8 ([[lean_optimizers]]).
#
# ## 4 · Does it save time?
#
# "FP8 is up to twice as fast as 16 bit on Hopper." This claim is about the **bare matmul**: it reads half the bytes and does twice the multiplications per cycle, *on units that support it*. If this machine has such units, the next cell times the matmul and a full layer, including amax and casts.


# %% name="speed"
def time_on_fp8_units(n=8192):
    a, b, goal = (torch.randn(n, n, device=device, dtype=BF16) for _ in range(3))
    a8, b8, one = quantize(a, E4M3), quantize(b, E4M3), torch.ones((), device=device)
    layer, leaf = nn.Linear(n, n).to(device, BF16), a.clone().requires_grad_()
    for fast in (False, True):
        wrapped = Float8Linear(layer, product=partial(scaled_mm, fast=fast), keep_x=True, keep_w=True)
        bare = compare(lambda: a @ b.t(), lambda f=fast: scaled_mm(a8, one, b8.t(), one, f), runs=20)
        whole = compare(lambda: layer(leaf).backward(goal), lambda w=wrapped: w(leaf).backward(goal), runs=10)
        print(f"use_fast_accum={fast}: matmul of {n} x {n}, BF16 -> FP8: {bare}")
        print(f"  our layer with amax and casts, not compiled, forward and backward: {whole}")
        for subject, result in (("matmul", bare), ("our layer with casts", whole)):
            subject = f"{subject}, {n} x {n}, {'fast' if fast else 'accurate'} sum"
            claims.record("C15", "FP8 up to 2x the speed of 16 bit", subject, result.speedup, "x", 1.5, 2.2)


if HAS_FP8_UNITS:
    time_on_fp8_units()
else:
    claims.not_measured("C15", "FP8 up to 2x the speed of 16 bit", "matmul and layer: no FP8 units here")
    print("No FP8 units here: the matmul cannot be timed.")

# %% [markdown] name="bytes_text"
# On any machine, you can count the bytes that a matmul moves and measure what a cast costs.

# %% name="bytes"
# on a GPU, a tensor that its cache cannot hold
n = 2048 if device.type == "cpu" else 2 ** math.ceil(math.log2(numbers_beyond_cache(device)) / 2)
a = torch.randn(n, n, device=device, dtype=BF16)
operands = {x.dtype: 2 * x.nbytes for x in (a, quantize(a, E4M3))}  # both operands of a matmul
casts = 2 * n * n * (2 + 2 + 1)  # of each operand: read for its amax, read again, write FP8
moved = {
    "BF16 matmul": operands[BF16] + 2 * n * n,
    "FP8 matmul": operands[E4M3] + 2 * n * n,
    "FP8 matmul and two casts": operands[E4M3] + 2 * n * n + casts,
}
show_table([("bytes moved, by count", ""), *((name, human_bytes(nbytes)) for name, nbytes in moved.items())])
cast = compare(a.clone, lambda: quantize(a, E4M3, current_scale(a, E4M3)), runs=7)
print(f"amax and cast, not compiled, take as long as {1 / cast.speedup:.1f} copies of the tensor on this {device.type}")
bytes_a_second, bf16_products, fp8_products = 3.35e12, 989e12, 1979e12  # data sheet of the H100 SXM
saved = 2 / bf16_products - 2 / fp8_products  # seconds / n^3: a matmul is 2 n^3 operations
even = casts / n**2 / bytes_a_second / saved  # casts take 10 n^2 bytes: where 10 n^2 / bandwidth = n^3 x saved
print(f"by an H100's data sheet, two casts cost as much as a matmul of n x n saves at n = {even:,.0f}")

# %% [markdown] name="bytes_explained"
# FP8 operands take half the bytes, but the casts read BF16 first, so a matmul *with* its casts moves more bytes than one in BF16. The cost of the casts grows with n², the savings with n³. So FP8 pays off only above a certain layer size. That size is smaller if a compiler fuses the cast into the operation before it.
#
# Now take a full training step: a 7B model with 4 sequences of 4,096 tokens per step on an H100.
#
# **Predict.** If all matmuls took half the time, by what factor would the step be faster? The planner estimates what limits each part of the step.

# %% name="guess_amdahl"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.8  # nearly everything is a matmul
### END GUESS
amdahl_guess = Prediction(
    "7B, 4 x 4,096 tokens, matmuls twice as fast: the step is faster by at most", my_guess, "times"
)

# %% name="amdahl_planned"
common = {"precision": "bf16", "optimizer_impl": "fused"}
few = Recipe("llama-2-7b", **common)  # one sequence of 512 tokens
usual = Recipe("llama-2-7b", micro_batch_size=4, seq=4096, checkpointing="every", **common)
for tokens, one in zip(("512", "4 x 4,096"), planned([few, usual]), strict=True):
    forecast = one.forecasts["h100-80gb"]
    bound = 1 / (1 - forecast.bounds["compute"] / 2)
    print(f"7B in BF16, {tokens} tokens, H100: {forecast}\n  with matmuls twice as fast: at most {bound:.2f} times")
    claims.figure("a step if its matmuls are 2x as fast, at most", f"7B, {tokens} tokens, H100, planned", bound, "x")
amdahl_guess.reveal(bound, "planned")  # the usual size

# %% [markdown] name="speed_explained"
# This is **Amdahl's law**: if a share p of the time is sped up by a factor of s, the total is sped up by a factor of 1 / (1 − p + p/s). Norms, activation functions and the optimizer wait for memory, and FP8 matmuls do not help them. With few tokens per step, p is even smaller, because the optimizer still reads and writes all weights. The bound also leaves out the casts, which take extra time.
#
# **Published end-to-end gains** over BF16 are for other models, and they stay below the second of the two bounds printed above (4 × 4,096 tokens). The table compares tokens per second on H100 or H200 GPUs, with `torch.compile`:
#
# | model | GPUs | gain | source |
# |---|--:|--:|---|
# | GPT-2 size (nanochat) | 8 | about 1.05 to 1.07× | its author, 2026 |
# | Llama-3-8B | 8 | up to 1.25× | torchao documentation, 2026 |
# | Llama-3.1-70B and 405B | up to 512 | 1.43 to 1.51× | torchao README, 2024 |
#
# ### Transformer Engine
#
# NVIDIA's library does all of this in fused kernels: `te.Linear`, `te.LayerNormMLP`, `te.TransformerLayer`. A **recipe** sets the kind of scaling, and a context around the forward pass applies it: `te.autocast` (`te.fp8_autocast` in older versions). `Float8BlockScaling` is DeepSeek's method: E4M3, one scale per 128 contiguous values of x and g and per 128 × 128 block of w (powers of two, unless `use_f32_scales`). `MXFP8BlockScaling` and `NVFP4BlockScaling` need Blackwell.
#
# Transformer Engine needs an NVIDIA GPU and `pip install --no-build-isolation "transformer_engine[pytorch]"`.


# %% name="transformer_engine"
def to_transformer_engine(model):
    for name, layer in short_run.linears(model).items():
        new = te.Linear(layer.in_features, layer.out_features, params_dtype=BF16, device=device)
        new.load_state_dict(layer.state_dict(), strict=False)  # te's layers have extra state besides these
        model.set_submodule(name, new)


if HAS_FP8_UNITS and importlib.util.find_spec("transformer_engine") is not None:
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling

    for chosen in (DelayedScaling(amax_history_len=16), Float8CurrentScaling()):
        run, around = f"Transformer Engine, {type(chosen).__name__}", partial(te.autocast, enabled=True, recipe=chosen)
        _, losses[run] = short_run.train(to_transformer_engine, around=around)
        print(f"{run}: loss {last(run)[0]:.3f} ({last(run)[1]:+.1f}% vs. BF16)")
else:
    print("Transformer Engine does not run here: it needs a GPU with FP8 units and the package transformer_engine.")

# %% [markdown] name="nvfp4_text"
# ## 5 · What makes four bits train
#
# With four bits, every operand has an error of about a tenth ([[fp8]]). NVIDIA found that a plain cast does not train well enough. Its NVFP4 recipe (2025, a 12B model on 10 trillion tokens) adds four things:
#
# - **Some layers stay in BF16**: about 15% of the linear layers, most of them at the end of the network, along with embedding, head, norms and attention's own matmuls.
# - **16 × 16 blocks for weights**, so that the forward and backward passes see the same weights.
# - **Stochastic rounding of gradients**: round up with a probability equal to the distance from the lower neighbor, divided by the step. The mean of many such roundings is the number itself.
# - **A random Hadamard transform** of both operands of the weight gradient, along the summed dimension: multiply every 16 values by an orthogonal matrix H with entries ±1/4. (HᵀA)ᵀ(HᵀB) = AᵀB, so the result is unchanged, but an outlier is spread over its block before it is rounded.
#
# We test the last two on our tensors.
#
# **Predict.** Round g to NVFP4 once, with stochastic rounding. How large is its error, as a multiple of the error with round-to-nearest?

# %% name="guess_stochastic"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1
### END GUESS
stochastic_guess = Prediction("One rounding of g, error: stochastic / nearest", my_guess, "times")


# %% name="stochastic"
def stochastically(x):
    """Round x to E2M1, up or down at random, so that the mean is x."""
    size = x.abs().clamp(max=6)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))  # between neighbors in E2M1
    return (size / step + torch.rand_like(size)).floor().mul(step).clamp(max=6) * x.sign()


torch.manual_seed(0)
g = kept["blocks.0.mlp.0", "g"]
many = 64
rounded = {"nearest": [nvfp4(g)] * many, "stochastic": [nvfp4(g, stochastically) for _ in range(many)]}
off = {}
table = [("rounding of g", "once", f"mean of {many}")]
for name, copies in rounded.items():
    off[name] = [((t - g).norm() / g.norm()).item() for t in (copies[0], sum(copies) / many)]
    table.append((name, *(f"{figure:.2%}" for figure in off[name])))
show_table(table)
stochastic_guess.reveal(off["stochastic"][0] / off["nearest"][0])
claims.record(
    "T24", "stochastic rounding averages out", f"g in NVFP4, mean of {many}, stochastic / nearest",
    off["stochastic"][1] / off["nearest"][1], "x", 0.1, 0.3,
)  # fmt: skip

# %% [markdown] name="hadamard_text"
# Stochastic rounding makes each cast worse and the average much better. Optimizer moments average over steps, so they reduce an unbiased error but not a bias.
#
# Next we test the transform. We multiply one token of a real input by a factor, quantize along the tokens, as for the weight gradient, and look at the error of **the other tokens in its block**, with and without the transform.
#
# **Predict.** One token becomes 32 times as large. How large is the error of its 15 neighbors with the transform, as a multiple of their error without it?

# %% name="guess_hadamard"
my_guess = None  # times
### BEGIN GUESS
my_guess = 0.5  # a spread outlier leaves its neighbors more of the range
### END GUESS
hadamard_guess = Prediction("Error of 15 neighbors, outlier of 32: with / without the transform", my_guess, "times")

# %% name="hadamard"
H = torch.ones(1, 1, device=device)
while len(H) < 16:
    H = torch.cat((torch.cat((H, H), 1), torch.cat((H, -H), 1)))
H = H * (torch.randint(2, (16, 1), device=device) * 2.0 - 1) / 4  # random signs; orthogonal: H.T @ H = 1


def rotated(t):  # (rows, n): each 16 contiguous values times H
    return (t.reshape(len(t), -1, 16) @ H).view(t.shape)


def rotated_back(t):
    return (t.reshape(len(t), -1, 16) @ H.t()).view(t.shape)


x = kept["blocks.0.mlp.0", "x"]
neighbors = [token for token in range(16) if token != 5]
table = [("factor", "error of the 15 neighbors, NVFP4", "with transform")]
for factor in (1, 4, 8, 16, 32):
    spiked = x.clone()
    spiked[5] *= factor
    spiked = spiked.t().contiguous()  # blocks along tokens
    results = nvfp4(spiked), rotated_back(nvfp4(rotated(spiked)))
    shown = [((t - spiked)[:, neighbors].norm() / spiked[:, neighbors].norm()).item() for t in results]
    table.append((f"{factor}", *(f"{figure:.1%}" for figure in shown)))
show_table(table)
hadamard_guess.reveal(shown[1] / shown[0])  # the largest factor

# %% [markdown] name="nvfp4_explained"
# By this measure the transform does not pay off once a token stands out. Without the transform, the large token sets the scale, and its neighbors round to zero or close to it. With it, the outlier's own rounding error is spread over the neighbors. NVIDIA's ablation still finds a lower loss with the transform, if it is applied to the weight gradient only. So you cannot tell from the error of one tensor whether a recipe trains well. For that, compare its loss with BF16's over many tokens. NVIDIA reports a loss within 1% of FP8's for most of the run, and about 1.5% above it at the end. torchao 0.18 has the recipe as a prototype for Blackwell (`NVFP4TrainingConfig`).

# %% [markdown] name="measured_text"
# ## 6 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - The error of an FP8 matmul follows from the fraction bits of its operands, and from how much its terms agree in sign. It does not grow with the number of terms if the sum is kept in FP32.
# - Without scales there is no error message, and the loss still falls. Compare it with BF16's.
# - In our runs E4M3 throughout and the hybrid trained alike, within the noise of seeds. Common practice: the hybrid with one scale per tensor, E4M3 throughout with finer scales.
# - FP8 saves memory only where a tensor is *kept* in FP8.
# - FP8 saves time only on GPUs with FP8 units, and only in large layers: the cost of the casts grows with n², the savings with n³. The rest of the step limits the speedup.
# - Four bits need more than a format: stochastic rounding of gradients, layers left in BF16, and, in NVIDIA's recipe, a Hadamard transform.
#
# | You have | Reach for |
# |---|---|
# | Hopper or Ada, large linear layers | torchao's float8 with `torch.compile`, or Transformer Engine |
# | Blackwell | MXFP8; NVFP4 after a long comparison with BF16 |
# | an older GPU, a CPU, small layers, few tokens | BF16 ([[mixed_precision]]) |
# | too little memory | labs [[#activation_checkpointing]], [[#lean_optimizers]], [[#sharding]], [[#lora]]; not FP8 matmuls alone |
#
# **Next.** [[Lora]] saves the memory that FP8 matmuls do not: it trains few parameters, and keeps the frozen ones in four bits.
#
# **Sources.** Micikevicius et al. 2022, *FP8 Formats for Deep Learning*, arXiv:2209.05433 · DeepSeek-AI 2024, *DeepSeek-V3 Technical Report*, arXiv:2412.19437 (block scaling on Hopper, the precision of sums) · NVIDIA 2025, *Pretraining Large Language Models with NVFP4*, arXiv:2509.25149 · documentation of Transformer Engine (*FP8 recipes*, `te.autocast`) and torchao (`torchao.float8`, *Quantized Training*).
