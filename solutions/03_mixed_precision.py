# %% [markdown] name="title"
# # Mixed precision
#
# **Computing in 16 bits saves up to half of what a training step keeps for the backward pass, leaves weights, gradients and optimizer state as they
# are, and needs one precaution in FP16 and none in BF16.**
#
# | | |
# |---|---|
# | After this you can | say which bytes mixed precision saves and which it does not; read autocast's choices; tell FP32 from TF32; scale a loss by hand and with `GradScaler`; explain when BF16 hurts |
# | Time | 90 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[start_here]] |
# | Syllabus | T3 (in short), T4, T5, T6, T7, C7, P1, P2, P3 |
#
# Exercise X1, the graded notebook after this one, uses all of it.

# %% name="setup" setup=true
import math
import warnings

from helpers import (
    COLOURS,
    TENANTS,
    Claims,
    MemoryMeter,
    Prediction,
    SmallCNN,
    SmallGPT,
    autocast_rule,
    check,
    compare,
    device_name,
    digits,
    english,
    explore_loss_scale,
    fp32_computed_as,
    fp32_precision,
    has_tf32,
    pick_device,
    show,
    sixteen_bit_dtype,
    tenant_bars,
    tenant_table,
)

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
half = sixteen_bit_dtype(device)
HALF = "BF16" if half == BF16 else "FP16"
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")
print(f"16-bit format of this lab: {HALF}")
print("FP32 on a GPU with TF32 units:", ", ".join(f"{what} in {how}" for what, how in fp32_precision().items()))

# %% [markdown] name="baseline_text"
# ## 1 · The step we want to shrink
#
# A training step in FP32: forward, loss, backward, optimizer. The model is a small convolutional network on 256 handwritten digits of 16 × 16 pixels.
# This is the step you will meet throughout the lab; `dtype` is what mixed precision will change.
#
# Where the text says BF16, the cells take the 16-bit format that your device computes in. A GPU without units for BF16, such as a T4, runs it all the same,
# by way of FP32, and slowly; there the cells use FP16.


# %% name="train_step"
def train_step(model, optimizer, x, y, dtype=FP32):
    """One step. `dtype` is what matrix products and convolutions compute in; FP32 switches autocast off."""
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != FP32):
        logits = model(x)
    loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


data = digits(device, size=16)
images, labels = data.train_x[:256].clone(), data.train_y[:256].clone()  # clones: a slice would hold the whole set
print("images", tuple(images.shape), images.dtype)
print(SmallCNN(32).features)

# %% [markdown] name="guess_peak_text"
# **Predict.** The network has about 66,000 parameters: 260 KiB. How many **MiB** does one step hold at its peak, in FP32? The list above shows the
# layers. A hint: each convolution of the first stage makes 256 × 32 × 16 × 16 numbers.

# %% name="guess_peak"
my_guess = None  # MiB
### BEGIN GUESS
# First stage 2 x (convolution, BatchNorm, ReLU) of 256 x 32 x 16 x 16 numbers; the second has twice the channels on a
# quarter of the pixels: half as much. The ReLU's output is also the next input, so 3 tensors a layer would be too many:
layer = 256 * 32 * 16 * 16 * 4 / 2**20  # MiB
my_guess = 2 * 2 * layer + 2 * 2 * layer / 2
### END GUESS
peak_guess = Prediction("Peak of one FP32 step", my_guess, "MiB")


# %% name="measure_fp32"
def measured_step(make_model, x, y, dtype):
    """Measure the second step; in the first, Adam still has to create its state."""
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_step(model, optimizer, x, y, dtype)
    with MemoryMeter(model, optimizer) as meter:
        train_step(model, optimizer, x, y, dtype)
    return meter


cnn = {"FP32": measured_step(lambda: SmallCNN(32), images, labels, FP32)}
peak_guess.reveal(cnn["FP32"].peak_bytes / 2**20)
print(cnn["FP32"])

# %% [markdown] name="fp32_explained"
# We call those who hold memory its **tenants**. The largest by far are the **activations**: what the forward pass keeps for the backward pass.
# Parameters, gradients and Adam's two moments are next to nothing here. (In a big language model with a small batch it is the other way round; keep
# that in mind for the claim below.)
#
# What a layer-by-layer guess leaves out has names too. *Temporaries* are tensors that live for a moment, such as the gradient of the layer being
# worked on. *Kernel workspace* is scratch memory that a convolution takes for itself and that no tensor of yours explains; the meter finds it by
# comparing the allocator's log with all tensors.

# %% name="plot_fp32"
show(
    cnn["FP32"].plot("One FP32 training step of the CNN"),
    "Memory over time: activations grow layer by layer in the forward pass and shrink again in the backward pass.",
)

# %% [markdown] name="formats_text"
# ## 2 · Three formats in a nutshell
#
# A floating-point number is a sign, an exponent (how large) and a significand (which digits). Sixteen bits cannot have both FP32's
# range and FP32's digits. FP16 gives up range; BF16 gives up digits. ([[Number_formats]] takes them apart bit by bit.)

# %% name="formats" tags=["nbval-check-output"]
print(f"{'':6}{'bits':>5}{'largest':>12}{'smallest normal':>17}{'smallest > 0':>14}{'next after 1':>14}")
for name, dtype in {"FP32": FP32, "BF16": BF16, "FP16": FP16}.items():
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps
    print(
        f"{name:6}{info.bits:>5}{info.max:>12.3g}{info.smallest_normal:>17.2g}{subnormal:>14.2g}{1 + info.eps:>14.7f}"
    )

# %% [markdown] name="formats_explained"
# Below the smallest normal number a format has fewer and fewer digits (*subnormal* numbers), down to the smallest of all. Anything up to half of that
# becomes zero.
#
# Read the two columns that matter. **FP16** ends at 65504 and has nothing below 6e-8, and gradients live down there. **BF16** reaches as far as FP32
# but has no number between 1 and 1.0078, which is a problem for weights. Both problems are shown below, then cured.

# %% [markdown] name="swamping_text"
# ### Swamping: why weights stay in FP32
#
# Add 0.001 to 1 in BF16, and the sum is 1 again, however often you repeat it: the next number is 1.0078 ([[number_formats]] has the details). A tide of
# small updates that never arrives. Does it happen to a real model? Put the whole CNN into BF16, weights included, and take one
# AdamW step. Adam moves each weight by about the learning rate. How many weights change at all?

# %% name="swamping_real"
print(f"{'learning rate':>14}{'weights that moved, FP32':>27}{'BF16':>8}")
for lr in (1e-3, 1e-4, 3e-5):
    moved = {}
    for dtype in (FP32, BF16):
        torch.manual_seed(0)
        model = SmallCNN(16).to(device, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
        before = [p.detach().clone() for p in model.parameters()]
        F.cross_entropy(model(images.to(dtype)).float(), labels).backward()
        optimizer.step()
        changed = sum((a != b).sum().item() for a, b in zip(before, model.parameters(), strict=True))
        moved[dtype] = changed / sum(p.numel() for p in model.parameters())
    print(f"{lr:>14g}{moved[FP32]:>27.1%}{moved[BF16]:>8.1%}")

# %% [markdown] name="master_text"
# In BF16 most weights stand still at small learning rates: their update is less than half the distance to the next BF16 number. The cure is to keep a
# copy of the weights in FP32, the **master weights**. Updates add up there, and the model computes with a 16-bit image of it. Classic mixed precision
# did that by hand; `torch.autocast` does it by leaving the weights in FP32 and casting them on the way into each matrix product.

# %% [markdown] name="master_task"
# ### Your turn: SGD with master weights
#
# Write one step of SGD for a weight that the model uses in BF16.
#
# **Contract.** `sgd_with_master(weight, master, gradient, lr)` changes `master` and `weight` in place and returns nothing.
#
# - `weight` (any shape) BF16: what the model computes with. It must stay the same tensor.
# - `master` (same shape) FP32: it moves by `-lr * gradient`, in FP32.
# - `gradient` (same shape) BF16: unchanged.
# - Afterwards `weight` is `master` rounded to BF16.


# %% name="master" answer=true reveal=true
def sgd_with_master(weight, master, gradient, lr):
    ### BEGIN SOLUTION
    master -= lr * gradient.float()
    weight.copy_(master)
    ### END SOLUTION


# %% name="master_check"
check("mixed_precision.master", sgd_with_master)

# %% [markdown] name="autocast_text"
# ## 3 · Autocast
#
# `torch.autocast` is a switch for a region of code. Inside it, each operation is looked up in a list. Matrix products and convolutions run in 16
# bits, because that is where the time goes. Operations that lose too much in 16 bits run in FP32. The rest take what they are given. The weights are
# not touched.
#
# The lists differ between devices, so ask PyTorch. `autocast_rule` runs an operation on FP32 tensors, on 16-bit tensors and on one of each, and says
# from the results which of four kinds it is. For CUDA it needs no GPU: casting comes before computing, so a tensor that only claims to be on a GPU is
# enough.


# %% name="autocast_table"
operations = {
    "linear": F.linear,
    "convolution": lambda x, y: F.conv2d(x.view(1, 1, 16, 16), y.view(1, 1, 16, 16)),
    "attention": lambda x, y: F.scaled_dot_product_attention(*(t.view(1, 1, 16, 16) for t in (x, y, y))),
    "relu": lambda x, y: torch.relu(x),
    "x + y": torch.add,
    "layer norm": lambda x, y: F.layer_norm(x, (16,)),
    "RMS norm": lambda x, y: F.rms_norm(x, (16,)),
    "group norm": lambda x, y: F.group_norm(x, 4),
    "softmax": lambda x, y: torch.softmax(x, -1),
    "exp": lambda x, y: torch.exp(x),
    "power": lambda x, y: x**3,
    "sum": lambda x, y: torch.sum(x),
    "cross entropy": lambda x, y: F.cross_entropy(x, y.argmax(1)),
    "mse loss": F.mse_loss,
    "dot": lambda x, y: torch.dot(x.flatten(), y.flatten()),
    "scatter_add": lambda x, y: x.scatter_add(0, x.argmax(0, keepdim=True), y),
    "index_copy": lambda x, y: x.index_copy(0, x.argmax(1), y),
}
places = dict.fromkeys(("cpu", "cuda", device.type))
print(f"{'autocast to ' + HALF:18}" + "".join(f"{place:>10}" for place in places))
for name, operation in operations.items():
    print(f"{name:18}" + "".join(f"{autocast_rule(operation, place, half):>10}" for place in places))

# %% [markdown] name="autocast_explained"
# Four kinds. *16 bits*: products come out in 16 bits whatever goes in. *FP32*: comes out in FP32 whatever goes in. *Widest*: where two dtypes meet, the
# wider one wins, and without autocast it would be an error. Everything else *follows* its input.
#
# On a CPU only the losses are in FP32: a chain of 16-bit products keeps its ReLUs **and norms** in 16 bits. On CUDA norms, softmax, `exp`, powers and
# sums are on the FP32 list too (RMS norm was not yet in PyTorch 2.9). Write `.float()` before a loss of your own; then neither list matters.
#
# Should a 16-bit product not suffer from the swamping of section 2? Add up 4,096 ones, first one by one in BF16, then with a 16-bit matrix product:

# %% name="accumulate"
one_by_one = torch.tensor(0.0, dtype=BF16)
for _ in range(4096):
    one_by_one += 1
ones = torch.ones(1, 4096, dtype=half, device=device)
print(f"one by one: {one_by_one.item():g}     by a matrix product: {(ones @ ones.T).item():g}")

# %% [markdown] name="accumulate_explained"
# One by one, the sum stops at 256, where the next BF16 number is 258. The product gets it right: its inputs and its result are 16-bit, but internally
# it adds with more digits. That is what makes 16-bit products usable.

# %% name="weights_stay"
model = SmallCNN(32).to(device)
optimizer = torch.optim.AdamW(model.parameters())
train_step(model, optimizer, images, labels, half)
print(
    f"after a {HALF} step: weights",
    {p.dtype for p in model.parameters()},
    "gradients",
    {p.grad.dtype for p in model.parameters()},
)
print("Adam's moments", {state["exp_avg"].dtype for state in optimizer.state.values()})

# %% [markdown] name="equivalence_text"
# ### The same numbers first
#
# Before asking what it saves, ask whether it still trains. Same seed, same batches, six epochs in FP32 and in BF16: do the losses agree, and do the
# accuracies on unseen digits?


# %% name="equivalence"
def train_cnn(dtype, epochs=6, lr=1e-2, pure=False):
    """Train and return (losses, test accuracy). `pure` casts weights and all to `dtype`, without autocast."""
    torch.manual_seed(0)
    model = SmallCNN(16).to(device, dtype if pure else FP32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        for index in torch.randperm(len(data.train_x)).split(128):
            x = data.train_x[index].to(dtype if pure else FP32)
            losses.append(train_step(model, optimizer, x, data.train_y[index], FP32 if pure else dtype).item())
    model.eval()
    with torch.no_grad():
        right = model(data.test_x.to(dtype if pure else FP32)).argmax(1) == data.test_y
    return losses, right.float().mean().item()


curves = {name: train_cnn(dtype) for name, dtype in {"FP32": FP32, HALF: half}.items()}
for name, (losses, accuracy) in curves.items():
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {accuracy:.1%}")
gap = max(abs(a - b) for a, b in zip(curves["FP32"][0], curves[HALF][0], strict=True))
print(f"largest difference between the two loss curves: {gap:.4f}")
claims.record(
    "C7", "the accuracy holds", f"CNN, 6 epochs, {HALF} against FP32",
    100 * (curves[HALF][1] - curves["FP32"][1]), "points of accuracy", -1.0, math.inf,
)  # fmt: skip

# %% [markdown] name="memory_text"
# ## 4 · What it saves
#
# "Mixed precision halves the memory", say many articles. You know enough to doubt it.
#
# **Predict.** The FP32 peak of the CNN is above. What share of it does the BF16 step need? Give a number between 0 and 1. Which tenants
# halve?

# %% name="guess_bf16"
my_guess = None  # 16-bit peak / FP32 peak
### BEGIN GUESS
my_guess = 0.55  # almost all of it is activations, and not quite all of those are 16-bit
### END GUESS
half_guess = Prediction(f"{HALF} peak as a share of FP32's", my_guess, "")

# %% name="measure_bf16"
cnn[HALF] = measured_step(lambda: SmallCNN(32), images, labels, half)
half_guess.reveal(cnn[HALF].peak_bytes / cnn["FP32"].peak_bytes)
print(tenant_table(cnn))

# %% [markdown] name="bf16_explained"
# The table shows the most that each tenant ever held, at whatever moment, so a column adds up to more than its peak. *last/first* divides the last
# column by the first.
#
# - **Activations** nearly halve. Which do not? Look below.
# - **Parameters, gradients, optimizer state** do not change by a byte: autocast leaves them in FP32.
# - **Weight copies** are new: autocast's 16-bit casts of the weights, cached until the region ends and kept for the backward pass.
# - **Temporaries** halve as well. **Kernel workspace** does only where the device computes in 16 bits; where it has to convert, the workspace grows
#   (more in section 5).
#
# Autograd can tell you what it saves, by dtype:


# %% name="saved_by_dtype"
def saved_mib(make_model, x, dtype):
    """Describe what a forward pass saves for the backward pass, in MiB by dtype; parameters and input do not count."""
    model, storages = make_model().to(device), {}
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), x]}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = (str(tensor.dtype).removeprefix("torch."), storage.nbytes())
        return tensor.detach()

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device.type, dtype=dtype, enabled=dtype != FP32),
    ):
        logits = model(x)  # held until the end, so that no address is used twice
    del logits
    kinds = sorted({kind for kind, _ in storages.values()})
    mib = {kind: sum(n for k, n in storages.values() if k == kind) / 2**20 for kind in kinds}
    return ", ".join(f"{kind} {n:.2f} MiB" for kind, n in mib.items())


print("CNN, FP32:", saved_mib(lambda: SmallCNN(32), images, FP32))
print(f"CNN, {HALF}:", saved_mib(lambda: SmallCNN(32), images, half))

# %% [markdown] name="saved_explained"
# The residue has a name: **max pooling** remembers which pixel won, as 64-bit integers, and integers do not shrink. All floating-point activations of
# this network were halved.
#
# So the saving depends on who the tenants are. Now a language model, with other tenants.

# %% name="measure_gpt"
text = english(device)
ids = text.train_x[: 8 * 128].view(8, 128).clone()
next_ids = text.train_y[: 8 * 128].view(8, 128).clone()
gpt = {name: measured_step(SmallGPT, ids, next_ids, dtype) for name, dtype in {"FP32": FP32, HALF: half}.items()}
print(tenant_table(gpt))
print("\nkept for the backward pass, FP32:", saved_mib(SmallGPT, ids, FP32))
print(f"kept for the backward pass, {HALF}:", saved_mib(SmallGPT, ids, half))

# %% name="residual_stream"
with torch.autocast(device.type, dtype=half):
    seen = {}
    model = SmallGPT().to(device)
    for name in ("tokens", "blocks.0.qkv", "blocks.0", "norm", "head"):
        model.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.dtype}))
    model(ids)
print(f"what comes out, under {HALF} autocast:")
for name, dtype in seen.items():
    print(f"  {name:14}{str(dtype).removeprefix('torch.')}")

# %% name="plot_bars"
bars = {f"CNN {name}": meter.at_peak for name, meter in cnn.items()}
bars |= {f"GPT {name}": meter.at_peak for name, meter in gpt.items()}
show(
    tenant_bars(bars, TENANTS, "Who holds memory at the peak of a training step"),
    "Bars by tenant: BF16 shrinks the activations of both models and leaves parameters and optimizer state as they were.",
)

# %% name="claims_memory"
for subject, runs in {"CNN, batch 256": cnn, "GPT, 8 x 128 tokens": gpt}.items():
    saving = runs["FP32"].peak_bytes / runs[HALF].peak_bytes
    claims.record("C7", "2x less memory", f"{subject}, {HALF}, peak", saving, "x less", 1.9, math.inf)
    saving = runs["FP32"].largest["activations"] / runs[HALF].largest["activations"]
    claims.record("C7", "2x less memory", f"{subject}, {HALF}, activations", saving, "x less", 1.9, math.inf)
print(claims)

# %% [markdown] name="gpt_explained"
# (C7 is the claim's number in this course's list. It counts as *held* from 1.9x: rounding is forgiven, hope is not.)
#
# A factor of two was promised; neither peak gets there. In the GPT the optimizer state, which does not shrink, has a larger share, and some of the
# activations stay FP32. The dtypes above say which. An embedding is not a matrix product, so it comes out in FP32. FP32 plus 16 bit is FP32, so what
# flows from block to block (the *residual stream*) stays FP32, and so does what the norms keep. **Mixed precision halves what becomes 16-bit, and
# nothing else.** Optimizer state needs other tools ([[lean_optimizers]]), and so do the remaining activations ([[activation_checkpointing]]).

# %% [markdown] name="speed_text"
# ## 5 · What it costs or saves in time
#
# The other half of the promise: "2x faster". Speed comes from hardware that multiplies 16-bit numbers: tensor cores on a GPU, AMX or AVX-512 BF16 on
# a CPU. Where there is no hardware for a format, the library converts back and forth, at a price.
#
# Faster than what? NVIDIA GPUs since Ampere can also compute an FP32 product in **TF32**: the inputs are rounded to 10 fraction bits, the sum and the
# result are FP32. By default PyTorch does so in convolutions and not in matrix products, so "FP32" can mean two things in one model. Below, FP32 means
# FP32 (`fp32_computed_as("ieee")`), and TF32 has a row of its own where the GPU has it. Each format takes turns with FP32, so that both suffer the same
# disturbances. (The batch is smaller than above: without hardware for it, FP16 takes its time.)


# %% name="speed"
def step_of(make_model, x, y, dtype, fp32="ieee"):
    """Return a function that takes one training step of a fresh model and leaves its gradient in the parameters."""
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        with fp32_computed_as(fp32):
            train_step(model, optimizer, x, y, dtype)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    return step


subjects = {
    "CNN, batch 64": (lambda: SmallCNN(32), images[:64], labels[:64]),
    "GPT, 8 x 128 tokens": (SmallGPT, ids, next_ids),
}
lines = [(subject, HALF, half, "ieee") for subject in subjects]
if has_tf32(device):
    lines = [(subject, "TF32", FP32, "tf32") for subject in subjects] + lines
if half != FP16:
    lines.append(("CNN, batch 64", "FP16", FP16, "ieee"))
for subject, name, dtype, fp32 in lines:
    right, other = step_of(*subjects[subject], FP32), step_of(*subjects[subject], dtype, fp32)
    exact = right()
    off = ((other() - exact).norm() / exact.norm()).item()
    timing = compare(right, other, runs=5, warmup=1)
    print(f"{subject:20} FP32 -> {name}: {timing}; the first gradient is off by {off:.1e}")
    claims.record("C7", "2x faster", f"{subject}, {name}", timing.speedup, "x faster", 1.8, math.inf)
if not has_tf32(device):
    print("no line for TF32: it needs an NVIDIA GPU of compute capability 8.0 or more")

# %% [markdown] name="speed_explained"
# A line above 1x says that your device has hardware for the format and that this model is large enough to feed it. A line far below 1x says that it
# has none: every FP16 number is converted before and after each operation. TF32 saves no bytes, and its gradient should be as near as FP16's: both have
# 10 fraction bits.
#
# To train in TF32 with nothing else changed, write `torch.set_float32_matmul_precision("high")`. Newer names for the same are
# `torch.backends.cuda.matmul.fp32_precision = "tf32"` for products and `torch.backends.cudnn.conv.fp32_precision` for convolutions. Use one generation of names: reading
# an old one after a new one has been set can raise an error.
#
# If a format was slow on your device, the memory meter sees the conversions too:

# %% name="fp16_workspace"
cnn["FP16"] = measured_step(lambda: SmallCNN(32), images, labels, FP16)
workspace = {name: meter.largest["kernel workspace"] / 2**20 for name, meter in cnn.items()}
print("kernel workspace, MiB:", {name: round(size, 1) for name, size in workspace.items()})
print("peak, MiB:            ", {name: round(meter.peak_bytes / 2**20, 1) for name, meter in cnn.items()})

# %% [markdown] name="workspace_explained"
# BF16 and FP16 keep the same activations. Where a convolution has to convert its inputs, its scratch space eats
# up part of what was saved. A figure taken from tensors alone would have missed that.

# %% [markdown] name="underflow_text"
# ## 6 · FP16 loses small gradients
#
# FP16's smallest number is 2⁻²⁴ (6e-8); anything of 2⁻²⁵ or less becomes zero. Are real gradients that small? It depends on how the loss is averaged.
# Take a network that removes noise from the digits. Its loss is a mean over all pixels of a batch, and in a model with several tasks such a term gets
# a small weight, say 0.0001. Each pixel's share of the loss is tiny, and so is its gradient.


# %% name="denoiser"
def make_denoiser(width=8):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1)).to(device)


def denoise_loss(model, x, dtype, weight=1e-4):
    """Return the weighted loss of one term among several, and the plain error, for noisy images `x`."""
    noisy = x + 0.5 * torch.randn_like(x)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != FP32):
        clean = model(noisy)
    error = F.mse_loss(clean.float(), x)
    return weight * error, error.item()


def activation_gradients(model, x):
    """Return the gradients of all layers' outputs in one FP32 backward pass, as one flat tensor."""
    found = []

    def watch(layer, inputs, output):
        output.register_hook(lambda gradient: found.append(gradient.detach().flatten()))

    hooks = [layer.register_forward_hook(watch) for layer in model]
    denoise_loss(model, x, FP32)[0].backward()
    for hook in hooks:
        hook.remove()
    return torch.cat(found)


gradients = activation_gradients(make_denoiser(), data.train_x[:128])
print(
    f"{gradients.numel():,} gradients, median magnitude {gradients.abs().median():.1e}, largest {gradients.abs().max():.1e}"
)

# %% [markdown] name="underflow_task"
# ### Your turn: count what is lost
#
# **Contract.** `underflow_share(gradient, scale)` returns the share of the **nonzero** elements of `gradient` (FP32, any shape) that become exactly
# zero when multiplied by `scale` and cast to FP16: a float between 0 and 1, and 0.0 when all elements are zero. `gradient` stays unchanged.


# %% name="underflow" answer=true reveal=true
def underflow_share(gradient, scale):
    ### BEGIN SOLUTION
    nonzero = gradient[gradient != 0]
    if nonzero.numel() == 0:
        return 0.0
    return ((nonzero * scale).half() == 0).float().mean().item()
    ### END SOLUTION


# %% name="underflow_check"
check("mixed_precision.underflow", underflow_share)

# %% name="underflow_measured"
try:
    for exponent in (0, 4, 8, 12, 16):
        print(f"loss scale 2^{exponent:<3} gradients lost in FP16: {underflow_share(gradients, 2.0**exponent):.1%}")
except NotImplementedError:
    print("The figures appear when underflow_share is written.")

# %% [markdown] name="control_text"
# ### The control that must fail
#
# Train the denoiser in FP16 and do nothing about it. Beside it, train the same network in FP32, in BF16, and in FP16 with a scaler.
#
# **Predict.** Which of the four does not learn?


# %% name="control"
def train_denoiser(dtype, scaler=None, epochs=6):
    """Train; return the error of each step, and the share of all its gradients that were zero."""
    model = make_denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = scaler or torch.amp.GradScaler(device.type, enabled=False)
    errors, zeros = [], []
    for _ in range(epochs):
        for index in torch.randperm(len(data.train_x)).split(128):
            optimizer.zero_grad()
            loss, error = denoise_loss(model, data.train_x[index], dtype)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            errors.append(error)
            zeros.append((torch.cat([p.grad.flatten() for p in model.parameters()]) == 0).float().mean().item())
    return errors, zeros


runs = {
    "FP32": train_denoiser(FP32),
    "BF16": train_denoiser(BF16),
    "FP16, no scaler": train_denoiser(FP16),
    "FP16, GradScaler": train_denoiser(FP16, torch.amp.GradScaler(device.type)),
}
for name, (errors, zeros) in runs.items():
    epoch = len(errors) // 6
    first, last = sum(errors[:epoch]) / epoch, sum(errors[-epoch:]) / epoch
    print(
        f"{name:17} error, mean of epoch 1 and 6: {first:.3f} -> {last:.3f}   zero gradients: {sum(zeros) / len(zeros):.1%}"
    )

# %% [markdown] name="control_explained"
# No error message, no NaN: FP16 without a scaler does not learn, because all its gradients are zero. BF16 has FP32's range and needs nothing. With a
# scaler, FP16 learns just as FP32 does.
#
# Would you have noticed on the digits classifier? Train it in FP16 without a scaler too.

# %% name="survivor"
fp16_losses, fp16_accuracy = train_cnn(FP16)
print(f"classifier, FP16 without scaler: loss {fp16_losses[-1]:.4f}, accuracy {fp16_accuracy:.1%}")
print(f"classifier, FP32:                loss {curves['FP32'][0][-1]:.4f}, accuracy {curves['FP32'][1]:.1%}")

# %% [markdown] name="survivor_explained"
# No: with a plain mean over 128 images its gradients are large enough, and nothing goes wrong. That is what makes the mistake nasty. It is there all
# along and shows up only when a loss is averaged over more elements, or weighted less.

# %% [markdown] name="explorer_text"
# ### Play: find the right loss scale
#
# The histogram is of the denoiser's real gradients. Move the slider until nothing is lost and nothing overflows. How much
# room is there, in powers of two? (The scaler below will find less: weight gradients are sums over many of these, and overflow sooner.)

# %% name="explorer"
explore_loss_scale(gradients, log2_scale=0)

# %% [markdown] name="scaling_text"
# ## 7 · Loss scaling, by hand and automatic
#
# The gradient is linear in the loss. Multiply the loss by S, and every gradient on the way is S times larger and stays above
# FP16's floor; divide by S once they are FP32 weight gradients, and the update is the one you wanted.

# %% name="scaling_by_hand"
x = data.train_x[:128]


def weight_gradient(dtype, scale):
    """Return the denoiser's weight gradients with the loss multiplied by `scale` and divided out again."""
    model = make_denoiser()
    torch.manual_seed(1)  # the same noise each time
    (scale * denoise_loss(model, x, dtype)[0]).backward()
    return torch.cat([p.grad.flatten() / scale for p in model.parameters()])


true = weight_gradient(FP32, 1.0)
for exponent in (0, 8, 16, 24, 40):
    error = (weight_gradient(FP16, 2.0**exponent) - true).norm() / true.norm()
    print(f"FP16, loss scale 2^{exponent:<3} relative error of the gradient: {error.item():.4f}")

# %% [markdown] name="dynamic_text"
# Too small a scale loses gradients, too large a scale turns them into inf, and in between is a wide plain where any scale is as good as another. So
# nobody searches for the best. Start high. Whenever an inf or NaN turns up, skip that step and halve the scale. After many good steps in a row,
# double it. That is **dynamic loss scaling**, and `torch.amp.GradScaler` does it. Here are its defaults, read from the object:

# %% name="scaler_defaults"
scaler = torch.amp.GradScaler(device.type)
print(f"start {scaler.get_scale():g}, grow x{scaler.get_growth_factor():g} after {scaler.get_growth_interval()} good steps, "
      f"back off x{scaler.get_backoff_factor():g}")  # fmt: skip

# %% name="scaler_at_work"
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**44, growth_interval=12)
model = make_denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scales, skipped = [], []
for step in range(60):
    optimizer.zero_grad()
    loss, error = denoise_loss(model, data.train_x[:64], FP16)
    scaler.scale(loss).backward()
    before = model[0].weight.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    scales.append(scaler.get_scale())
    if (before == model[0].weight).all():
        skipped.append(step)

# %% name="plot_scaler"
figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.add_subplot()
axes.step(range(60), [math.log2(scale) for scale in scales], where="post", color=COLOURS[0], label="scale")
axes.plot(skipped, [math.log2(scales[step]) for step in skipped], "x", color=COLOURS[4], label="step skipped")
axes.set(title="GradScaler at work", xlabel="step", ylabel="log2 of the scale")
axes.legend(frameon=False)
show(figure, "The scale halves at every step until the gradients fit, then rises now and then and is pushed back.")
print("steps skipped:", *skipped)

# %% [markdown] name="dynamic_explained"
# Here it starts far too high on purpose. The first steps are thrown away, each halving the scale, until the gradients fit. From then on it feels its
# way up and is pushed back now and then. A skipped step moves no weights. (A learning-rate scheduler that steps anyway gets ahead of the weights by
# that one step.)

# %% [markdown] name="clipping_text"
# ## 8 · Clipping comes after unscaling
#
# Gradient clipping limits the norm of the gradient. With a scaler, `.grad` holds the gradient times 65536. Clip that to norm 0.01, divide by 65536, and
# the step is far smaller than you meant. Try it with SGD, which moves by the gradient, and with Adam, which normalises it:


# %% name="clipping"
def clipped_update(make_optimizer, unscale_first):
    """Take one FP16 step with clipping at norm 0.01; return how far the weights moved."""
    model = make_denoiser()
    optimizer = make_optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device.type)
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    loss, _ = denoise_loss(model, x, FP16, weight=1.0)
    scaler.scale(loss).backward()
    if unscale_first:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    scaler.step(optimizer)
    scaler.update()
    return (nn.utils.parameters_to_vector(model.parameters()) - before).norm().item()


makers = {
    "SGD, lr 1": lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    "Adam, lr 0.001": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "Adam, eps 1e-20": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-20),
}
for name, make_optimizer in makers.items():
    right, wrong = clipped_update(make_optimizer, True), clipped_update(make_optimizer, False)
    print(f"{name:15} unscale_, then clip: moved by {right:.2g}   clip at once: moved by {wrong:.2g}")

# %% [markdown] name="clipping_explained"
# SGD hardly moves when the scaled gradient is clipped. Adam divides each gradient by its own size, so it still moves, and the mistake is easy to
# overlook. What is lost is lost to `eps`, the small number that keeps it from dividing by zero, as the last line shows.
#
# The order is always `scale(loss).backward()` → `unscale_(optimizer)` → clip → `step(optimizer)` → `update()`. Under `DistributedDataParallel`
# nothing changes: the gradients that travel between GPUs are the scaled ones, the same scale on every rank, and an inf on one rank becomes an inf on
# all, so all of them skip together ([[data_parallel]] shows it).

# %% [markdown] name="bf16_text"
# ## 9 · BF16: no scaler, fewer digits
#
# BF16 needs no scaling: in the control above it learnt just as FP32 did. But it has only eight binary digits, where FP32 has 24. Under autocast that
# hardly matters, since weights and sums stay in FP32. It matters when the *weights* are BF16 and the learning rate is small: the swamping of section
# 2, now as a training run.

# %% name="pure_bf16"
print(f"{'':28}{'lr 1e-3':>10}{'lr 1e-4':>10}")
settings = {"FP32": (FP32, False), "BF16 autocast": (BF16, False), "BF16 weights": (BF16, True)}
for name, (dtype, pure) in settings.items():
    final = [train_cnn(dtype, lr=lr, pure=pure)[0][-1] for lr in (1e-3, 1e-4)]
    print(f"loss after 6 epochs, {name:15}{final[0]:>7.3f}{final[1]:>10.3f}")

# %% [markdown] name="bf16_explained_2"
# Autocast tracks FP32; BF16 weights fall behind, most of all at the small learning rate. People do train large models in pure BF16 to save the FP32
# weights. They then add the update with *stochastic rounding* ([[number_formats]] tries it) or keep the lost part beside the weight.

# %% [markdown] name="pitfalls_text"
# ## 10 · Pitfalls, on purpose
#
# **Old names.** `torch.cuda.amp.autocast` and `torch.cuda.amp.GradScaler` are still used in half of the tutorials.

# %% name="old_names"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.amp.autocast()
    torch.cuda.amp.GradScaler()
for warning in caught:
    if issubclass(warning.category, FutureWarning):
        print(str(warning.message).splitlines()[0])

# %% [markdown] name="loss_text"
# **The loss in 16 bits.** Here is cross-entropy over a vocabulary of 50,000, averaged over 64 rows of the same logits. Everything from the softmax to
# the mean is done once in FP32 and once in each 16-bit format:

# %% name="loss_in_16_bits"
torch.manual_seed(0)
logits, target = 2 * torch.randn(64, 50_000, device=device), torch.randint(50_000, (64,), device=device)
exact = F.cross_entropy(logits.cpu().double(), target.cpu()).item()  # not every GPU has FP64
for name, dtype in {"FP32": FP32, "BF16": BF16, "FP16": FP16}.items():
    loss = F.cross_entropy(logits.to(dtype), target)
    print(f"{name}: loss {loss.item():.5f}, off by {abs(loss.item() - exact) / exact:.1e}")

# %% [markdown] name="loss_explained"
# BF16 gets the third digit of the loss wrong. Keep losses in FP32: `F.cross_entropy(logits.float(), target)`.
#
# **`backward()` inside autocast.** Articles call it a mistake, and PyTorch's documentation advises against it. Is the gradient another one?


# %% name="backward_inside"
def gradient_of(make_model, x, y, inside):
    """Return the gradient of a fresh model, with `backward()` inside or outside the autocast region."""
    torch.manual_seed(0)
    model = make_model().to(device)
    with torch.autocast(device.type, dtype=half):
        loss = F.cross_entropy(model(x).float().flatten(0, -2), y.flatten())
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


for subject, (make_model, x, y) in subjects.items():
    outside, again, inside = (gradient_of(make_model, x[:2], y[:2], inside) for inside in (False, False, True))
    equal = f"outside twice: {torch.equal(outside, again)}; inside and outside: {torch.equal(outside, inside)}"
    print(f"{subject[:3]}: gradients bitwise equal, {equal}")

# %% [markdown] name="custom_function_text"
# No. (If even the same gradient taken twice differs, a GPU added up in another order.) Autograd has recorded each operation with its casts, and the
# backward formulas of PyTorch's own operations get their dtypes from there. What has no such record is a formula of **your** own. A
# `torch.autograd.Function` whose author counts on FP32 gets 16-bit products wherever autocast is on: in its forward pass, and in its backward pass if
# that runs inside the region. `custom_fwd(cast_inputs=...)` and `custom_bwd` settle it: both passes then run without autocast.


# %% name="custom_function"
class Gram(torch.autograd.Function):
    """All products between rows: x (n, d) to (n, n). Its author wants FP32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x @ x.T).float()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return ((gradient + gradient.T) @ x).float()


class SafeGram(torch.autograd.Function):
    forward = staticmethod(torch.amp.custom_fwd(Gram.forward, device_type=device.type, cast_inputs=FP32))
    backward = staticmethod(torch.amp.custom_bwd(Gram.backward, device_type=device.type))


def gram_errors(function, inside):
    """Return how far value and gradient are from FP64's, relatively."""
    torch.manual_seed(0)
    x = torch.randn(64, 128, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype=half):
        gram = function.apply(x)
        if inside:
            gram.sum().backward()
    if not inside:
        gram.sum().backward()
    wide = x.detach().cpu().double()
    truth = {gram: wide @ wide.T, x.grad: 2 * wide.sum(0).expand_as(wide)}
    return [((t.detach().cpu() - exact).norm() / exact.norm()).item() for t, exact in truth.items()]


for function in (Gram, SafeGram):
    for inside in (False, True):
        value, gradient = gram_errors(function, inside)
        where = "inside" if inside else "outside"
        print(f"{function.__name__:9} backward {where:8} value off by {value:.0e}, gradient off by {gradient:.0e}")

# %% [markdown] name="table_text"
# ## 11 · Before and after
#
# Here is the memory of this run in two tables, then what was said against what was measured, speed included.

# %% name="table"
print("CNN, batch 256, by tenant:")
print(tenant_table(cnn))
print("\nGPT, 8 x 128 tokens, by tenant:")
print(tenant_table(gpt))

# %% name="claims_table"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Mixed precision saves bytes of **activations** and of temporaries. Weights, gradients and optimizer state stay FP32 under autocast; 16-bit weight
#   copies come on top.
# - "2x less memory" is the limit for a model that is all activations; measure yours.
# - "2x faster" is a statement about hardware. Check that your device has units for the format.
# - FP16 needs loss scaling and fails silently without it. BF16 needs none.
# - Order: scale, backward, unscale, clip, step, update. Keep the loss in FP32. A `Function` of your own needs `custom_fwd` and `custom_bwd`.
# - Say what "FP32" means: on recent NVIDIA GPUs it may be TF32.
#
# | Your device | Reach for |
# |---|---|
# | Ampere GPU or newer, TPU, recent CPU | BF16 autocast, no scaler |
# | T4, V100, older GPUs | FP16 autocast with `GradScaler` |
# | Apple GPU | measure both; keep FP32 if neither helps |
# | weights too large for FP32 | other tools: labs [[#lean_optimizers]], [[#sharding]] and [[#lora]] |
#
# **Sources.** Micikevicius et al., *Mixed Precision Training* (2018), arXiv:1710.03740 · Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training* (2019), arXiv:1905.12322 ·
# PyTorch documentation: *Automatic Mixed Precision package*, *Automatic Mixed Precision examples*, *CUDA semantics* (TensorFloat-32).
#
# Next: **03_x1_amp_cnn**, the graded exercise.
