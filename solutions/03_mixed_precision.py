# %% [markdown] name="title"
# # Mixed precision
#
# **Mixed precision computes in 16 bits and updates the weights in FP32. You measure what that saves in memory and time, what it costs in accuracy, and what
# each 16-bit format needs to train correctly.**
#
# | | |
# |---|---|
# | After this you can | say which bytes mixed precision saves and which it does not; write your own autocast, and say what it leaves in FP32; tell FP32 from TF32; write a dynamic loss scaler, and use `GradScaler`; choose between autocast, master weights and FSDP's policy |
# | Time | 135 minutes, in two sittings: sections 1 to 6, then 7 to 12 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[start_here]], [[number_formats]] |
# | Syllabus | T3 (in short), T4, T5, T6, T7, C7, P1, P2, P3 |
#
# Exercise X1, the graded notebook after this one, builds on all of it.

# %% name="setup" setup=true
import math

from helpers import (
    CATEGORIES,
    COLORS,
    Claims,
    MemoryMeter,
    Prediction,
    SmallCNN,
    SmallGPT,
    autocast_rule,
    cast_path,
    category_bars,
    category_table,
    check,
    compare,
    device_name,
    digits,
    english,
    explore_loss_scale,
    fp32_computed_as,
    fp32_precision,
    has_tf32,
    hint,
    parallel_map,
    pick_device,
    show,
    show_table,
    sign_of_life,
    sixteen_bit_dtype,
)

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
half = sixteen_bit_dtype(device)
HALF = "BF16" if half == BF16 else "FP16"
claims = Claims()
print(f"device: {device_name(device)}, torch {torch.__version__}, meter: {MemoryMeter().method}, 16 bits: {HALF}")

# %% [markdown] name="baseline_text"
# ## 1 · The step we want to shrink
#
# A training step in FP32: forward, loss, backward, optimizer. The model is a small convolutional network on 256 handwritten digits of 16 × 16 pixels.
# The whole lab uses this step; mixed precision changes only `dtype`.
#
# Where the text says BF16, the cells use BF16, or FP16 on a GPU without hardware for BF16. Such a GPU, a T4 for example, emulates BF16 by way of FP32, and
# that is slow.


# %% name="train_step"
def train_step(model, optimizer, x, y, dtype=FP32):
    """One step. `dtype` is what matmuls and convolutions compute in; FP32 switches autocast off."""
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != FP32):
        logits = model(x)
    loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()
    return loss.detach()


data = digits(device, size=16)
images, labels = data.train_x[:256].clone(), data.train_y[:256].clone()  # clones: a slice keeps the whole set in memory
print("images", tuple(images.shape), images.dtype)
print(SmallCNN(32).features)


# %% name="measure_fp32"
def measured_step(make_model, x, y, dtype, step=train_step):
    """Measure the second step; in the first, Adam still has to create its state."""
    torch.manual_seed(0)
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step(model, optimizer, x, y, dtype)
    with MemoryMeter(model, optimizer) as meter:
        step(model, optimizer, x, y, dtype)
    return meter


cnn = {"FP32": measured_step(lambda: SmallCNN(32), images, labels, FP32)}
print(cnn["FP32"])

# %% [markdown] name="fp32_explained"
# The largest category by far is **activations**: what the forward pass saves for the backward pass.
# Parameters, gradients and Adam's two moments are negligible here. (In a large language model with a small batch the reverse is true; keep
# that in mind for the claim below.)
#
# *Temporaries* are short-lived tensors, such as the gradient of the layer being computed. *Kernel workspace* is scratch memory that a convolution allocates
# internally and that belongs to none of your tensors; the meter finds it by comparing the allocator's log with all tensors.

# %% name="plot_fp32"
show(
    cnn["FP32"].plot("One FP32 training step of the CNN"),
    "Memory over time: activations grow layer by layer in the forward pass and shrink again in the backward pass.",
)

# %% [markdown] name="formats_text"
# ## 2 · Weights stay in FP32
#
# [[Number_formats]] took the two 16-bit formats apart. This lab needs two facts:
#
# - **FP16** ends at 65504 and has nothing below 6e-8. Large activations overflow, and small gradients become zero.
# - **BF16** has FP32's range, but no number between 1 and 1.0078. Small updates to weights are rounded away.
#
# The usual answer to the second point is to keep the weights in FP32 and to compute with a 16-bit copy. FP32 weights alongside 16-bit weights are
# called **master weights**. The first mixed-precision programs managed them by hand, and optimizers for large-scale training still keep them.
#
# ### Your turn: SGD with master weights
#
# Write one step of SGD for a weight that the model uses in BF16.
#
# **Contract.** `sgd_with_master(weight, master, gradient, lr)` changes `master` and `weight` in place and returns nothing.
#
# - `weight` (any shape) is the BF16 tensor that the model computes with. It must remain the same tensor.
# - `master` (same shape) is FP32. It moves by `-lr * gradient`, computed in FP32, and must also remain the same tensor.
# - `gradient` (same shape) is BF16. The function does not change it.
# - Afterwards `weight` is `master` rounded to BF16.


# %% name="master" answer=true reveal=true
def sgd_with_master(weight, master, gradient, lr):
    ### BEGIN SOLUTION
    master -= lr * gradient.float()
    weight.copy_(master)
    ### END SOLUTION


# %% name="master_check"
sgd_with_master = check("mixed_precision.master", sgd_with_master)

# %% name="master_hint"
hint("mixed_precision.master")

# %% [markdown] name="autocast_text"
# ## 3 · Autocast, built by hand
#
# `torch.autocast` needs no second set of weights. The weights are FP32 and stay FP32. Inside its region, autocast looks up each operation in a list
# and casts the operation's inputs.
#
# - Matmuls and convolutions run in 16 bits, because most of the time goes there.
# - Operations that lose too much precision in 16 bits run in FP32.
# - All others take their inputs as they are.
#
# Here are two linear layers with a ReLU between them, and a loss, run under `torch.autocast` and drawn with the dtypes that were observed.

# %% name="cast_picture"
operations = [("linear", nn.Linear(16, 32)), ("ReLU", nn.ReLU()), ("linear", nn.Linear(32, 10))]
operations.append(("cross entropy", lambda scores: F.cross_entropy(scores, scores.argmax(1))))
for _, layer in operations[:3]:
    layer.to(device)
show(
    cast_path(operations, torch.randn(4, 16, device=device), half),
    "Inputs and FP32 weights are cast on their way into each linear layer; ReLU follows; what goes into the loss is cast back to FP32.",
)

# %% [markdown] name="autocast_task"
# ### Your turn: autocast
#
# You can write that. A `TorchFunctionMode` is a region in which PyTorch hands you every call to one of its functions before it runs: `func` is the function,
# `args` and `kwargs` are its arguments. Inside `__torch_function__` the mode is off, so calling `func` runs it.
#
# **Contract.** `with Autocast(dtype):` is an autocast region.
#
# - A function in `LOW_PRECISION` gets its floating-point tensors in `dtype`, which is BF16 or FP16.
# - A function in `LOSSES` gets its floating-point tensors in FP32.
# - Every other function runs with the arguments it was given.
# - Tensors are cast in `args` and in `kwargs`. Integer tensors, masks and non-tensor arguments are left alone.
# - Weights keep their dtype and their values, and their gradients arrive in FP32. A weight may change between two regions; the next region uses
#   its new values.

# %% name="autocast" answer=true reveal=true
LOW_PRECISION = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(torch.overrides.TorchFunctionMode):
    """Casts the inputs of functions in LOW_PRECISION to `dtype`, and those of LOSSES to FP32."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ### BEGIN SOLUTION
        if func in LOW_PRECISION:
            dtype = self.dtype
        elif func in LOSSES:
            dtype = torch.float32
        else:
            return func(*args, **kwargs)

        def cast(value):
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if floating else value  # for autograd an operation like any other

        return func(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})
        ### END SOLUTION


# %% name="autocast_check"
Autocast = check("mixed_precision.autocast", Autocast)

# %% name="autocast_hint"
hint("mixed_precision.autocast")

# %% [markdown] name="own_text"
# **Compare with PyTorch's own.** The next cell computes the gradients of the CNN and of a small GPT, once under `Autocast` and once under `torch.autocast`, and compares them.

# %% name="own"
text = english(device)
ids = text.train_x[: 8 * 128].view(8, 128).clone()
next_ids = text.train_y[: 8 * 128].view(8, 128).clone()
subjects = {
    "CNN, batch 64": (lambda: SmallCNN(32), images[:64], labels[:64]),
    "GPT, 8 x 128 tokens": (SmallGPT, ids, next_ids),
}


def gradient_of(make_model, x, y, region, inside=False):
    """Return the gradient of a fresh model; `backward()` runs inside of the region, or outside."""
    torch.manual_seed(0)
    model = make_model().to(device)
    with region:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def theirs():
    return torch.autocast(device.type, dtype=half)


for make_model, x, y in subjects.values():
    mine, pytorch = (gradient_of(make_model, x[:2], y[:2], region) for region in (Autocast(half), theirs()))
    difference = ((mine - pytorch).norm() / pytorch.norm()).item()
    equal = torch.equal(mine, pytorch)
    print(f"{len(mine):,} gradients, equal in every bit: {equal}; relative difference {difference:.0e}")

# %% [markdown] name="rules_text"
# Seven functions are enough for two models. PyTorch's lists are longer and differ between devices. `autocast_rule` finds out which rule applies: it runs an operation
# on FP32 tensors, on 16-bit tensors and on one of each, and looks at the dtypes of the results. For CUDA it needs no GPU, because autocast casts
# before anything is computed, so a tensor that only claims to be on a GPU is enough.
#
# - *16 bits*: the result is in 16 bits, whatever the input.
# - *FP32*: the result is in FP32, whatever the input.
# - *widest*: if two dtypes meet, the wider one wins; without autocast this would be an error.
# - *follows*: everything else.

# %% name="autocast_table"
operations = {
    "linear": F.linear,
    "convolution": lambda x, y: F.conv2d(x.view(1, 1, 16, 16), y.view(1, 1, 16, 16)),
    "attention": lambda x, y: F.scaled_dot_product_attention(*(t.view(1, 1, 16, 16) for t in (x, y, y))),
    "relu": lambda x, y: torch.relu(x),
    "x + y": torch.add,
    "layer norm": lambda x, y: F.layer_norm(x, (16,)),
    "RMS norm": lambda x, y: F.rms_norm(x, (16,)),
    "softmax": lambda x, y: torch.softmax(x, -1),
    "exp": lambda x, y: torch.exp(x),
    "sum": lambda x, y: torch.sum(x),
    "cross entropy": lambda x, y: F.cross_entropy(x, y.argmax(1)),
    "dot": lambda x, y: torch.dot(x.flatten(), y.flatten()),
    "index_copy": lambda x, y: x.index_copy(0, x.argmax(1), y),
}
places = dict.fromkeys(("cpu", "cuda", device.type))
rules = {name: [autocast_rule(operation, place, half) for place in places] for name, operation in operations.items()}
print(f"{'autocast to ' + HALF:18}" + "".join(f"{place:>10}" for place in places))
for name, rule in rules.items():
    print(f"{name:18}" + "".join(f"{kind:>10}" for kind in rule))

# %% [markdown] name="autocast_explained"
# Of these operations, only cross entropy runs in FP32 on a CPU (its list has others, such as `cdist` and `prod`), so a norm of a 16-bit tensor stays in 16 bits. On CUDA, norms, softmax, `exp` and
# sums are on the FP32 list, too (RMS norm since PyTorch 2.12). Call `.float()` on what goes into your own loss, and it does not matter which list applies.
#
# A 16-bit matmul adds up thousands of numbers. [[Number_formats]] showed that a BF16 sum of ones stops growing at 256.
#
# **Predict.** What does a 16-bit matmul of 4,096 ones with 4,096 ones return?

# %% name="guess_accumulate"
my_guess = None
### BEGIN GUESS
my_guess = 256  # the same additions
### END GUESS
matmul_guess = Prediction("4,096 ones, added up by a 16-bit matmul", my_guess, "")

# %% name="accumulate"
ones = torch.ones(1, 4096, dtype=half, device=device)
matmul_guess.reveal((ones @ ones.T).item())
shortcut = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
print("CUDA may add up parts of a BF16 matmul in BF16:", shortcut)

# %% [markdown] name="accumulate_explained"
# The matmul gets it right: its inputs and its result are in 16 bits, but it accumulates in FP32. This makes 16-bit matmuls usable. (A GPU
# may split a long sum into parts and add those in 16 bits; the last line shows whether PyTorch allows that. If a BF16 run diverges from its FP32 reference, set `allow_bf16_reduced_precision_reduction` to False and compare again.)
#
# Under autocast every matmul of the GPT returns 16 bits. Each block adds the results of two of its matmuls to its input, and returns the sum.
#
# **Predict.** How many bits per number does the GPT's first block return?

# %% name="guess_residual"
my_guess = None  # bits per number
### BEGIN GUESS
my_guess = 16  # like all matmuls inside
### END GUESS
residual_guess = Prediction("Output of the GPT's first block under autocast", my_guess, "bits per number")

# %% name="widened_gpt"
model = SmallGPT().to(device)
seen = {}
for name in ("tokens", "blocks.0.qkv", "blocks.0", "norm", "head"):
    model.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.dtype}))
with theirs():
    model(ids)
residual_guess.reveal(8 * seen["blocks.0"].itemsize)
for name, dtype in seen.items():
    print(f"  {name:14} returns {str(dtype).removeprefix('torch.')}")

# %% [markdown] name="widened_explained"
# An embedding is not a matmul, so it returns FP32. Each block adds 16-bit results to it, and FP32 + 16 bits is FP32. The **residual
# stream** between blocks therefore stays in FP32, and so does everything that the norms save from it.
#
# And the weights?

# %% name="weights_stay"
model = SmallCNN(32).to(device)
optimizer = torch.optim.AdamW(model.parameters())
train_step(model, optimizer, images[:16], labels[:16], half)
print(
    f"after a {HALF} step: weights",
    {p.dtype for p in model.parameters()},
    "gradients",
    {p.grad.dtype for p in model.parameters()},
)
print("Adam's moments", {state["exp_avg"].dtype for state in optimizer.state.values()})

# %% [markdown] name="equivalence_text"
# ## 4 · First, does it still train?
#
# Before you ask what 16 bits save, check that the model still trains. The next cell trains it from three seeds, each in FP32 and in 16 bits, with the same initial weights and batches.

# %% name="train_cnn"
small = digits(device)  # 8 x 8 pixels: a quarter of the work


def train_cnn(dtype, seed=0, epochs=4):
    """Train and return (losses, test accuracy)."""
    torch.manual_seed(seed)
    model = SmallCNN(16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(epochs):
        for index in torch.randperm(len(small.train_x)).split(128):
            losses.append(train_step(model, optimizer, small.train_x[index], small.train_y[index], dtype).item())
    model.eval()
    with torch.no_grad():
        right = model(small.test_x).argmax(1) == small.test_y
    return losses, right.float().mean().item()


# %% name="equivalence"
jobs = [(name, seed) for name in (HALF, "FP32") for seed in range(3)]
with sign_of_life("six trainings, two at a time"):
    trained = parallel_map(lambda job: train_cnn(half if job[0] == HALF else FP32, job[1]), jobs)
curves = dict(zip(jobs, trained, strict=True))
accuracy = {name: [100 * curves[name, seed][1] for seed in range(3)] for name in ("FP32", HALF)}
for name, figures in accuracy.items():
    print(f"{name}: accuracy {', '.join(f'{figure:.1f}%' for figure in figures)}")
gap = max(abs(a - b) for a, b in zip(curves["FP32", 0][0], curves[HALF, 0][0], strict=True))
print(f"largest difference between the two loss curves of seed 0: {gap:.4f}")
points = (sum(accuracy[HALF]) - sum(accuracy["FP32"])) / 3
claims.figure("accuracy, 16 bits minus FP32", f"CNN, 4 epochs, mean of 3 seeds, {HALF}", points, "points")

# %% [markdown] name="memory_text"
# The loss curves stay close. The accuracies of the three seeds differ by about a point, so a gap of a point between the formats could come from the
# seeds alone. That is why the cell records a figure and gives no verdict on the accuracy.
#
# ## 5 · Memory
#
# "Mixed precision halves the memory", many articles claim.
#
# **Predict.** The FP32 peak of the CNN is printed above. What fraction of it does the 16-bit step need? Give a number between 0 and 1.

# %% name="guess_bf16"
my_guess = None  # 16-bit peak / FP32 peak
### BEGIN GUESS
my_guess = 0.55  # almost all of it is activations, and not quite all of those are 16-bit
### END GUESS
half_guess = Prediction(f"{HALF} peak as a share of FP32's", my_guess, "")

# %% name="measure_bf16"
cnn[HALF] = measured_step(lambda: SmallCNN(32), images, labels, half)
half_guess.reveal(cnn[HALF].peak_bytes / cnn["FP32"].peak_bytes)
show_table(category_table(cnn))

# %% [markdown] name="bf16_explained"
# The table shows each category's own maximum, at whatever moment it occurs, so a column adds up to more than its peak. *last/first* divides the last
# column by the first.
#
# - **Activations** nearly halve. The exception is **max pooling**, which saves the position of each maximum as a 64-bit integer.
# - **Parameters, gradients, optimizer state** do not change by a byte: autocast leaves them in FP32.
# - **Weight copies** are new: autocast's 16-bit casts of the weights, cached until the region ends and saved for the backward pass.
# - **Temporaries** halve as well. **Kernel workspace** depends on the device. A CPU without BF16 hardware converts
#   inside each convolution: there the workspace grows, and the peak may move to it.
#
# Here is what autograd saves for 64 images, by dtype (a tensor that two operations save counts twice):

# %% name="saved_by_dtype"
kept = {}


def note(tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    kept[dtype] = kept.get(dtype, 0) + tensor.nbytes
    return tensor


with theirs(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    SmallCNN(32).to(device)(images[:64])
print({dtype: f"{size / 2**20:.2f} MiB" for dtype, size in kept.items()})

# %% [markdown] name="gpt_text"
# So the saving depends on which categories fill the memory. The GPT has larger parameters and optimizer state, and its residual stream stays in FP32.

# %% name="measure_gpt"
gpt = {name: measured_step(SmallGPT, ids, next_ids, dtype) for name, dtype in {"FP32": FP32, HALF: half}.items()}
show_table(category_table(gpt))

# %% name="plot_bars"
bars = {f"CNN {name}": meter.at_peak for name, meter in cnn.items()}
bars |= {f"GPT {name}": meter.at_peak for name, meter in gpt.items()}
show(
    category_bars(bars, CATEGORIES, "Categories at the peak of a training step"),
    "Bars by category: 16 bits shrink the activations of both models; parameters and optimizer state stay as they were.",
)

# %% name="claims_memory"
for subject, runs in {"CNN, batch 256": cnn, "GPT, 8 x 128 tokens": gpt}.items():
    saving = runs["FP32"].peak_bytes / runs[HALF].peak_bytes
    if device.type == "cpu" and runs is cnn:  # its convolutions may convert, in a workspace that no GPU has
        claims.figure("16 bits on a CPU, less memory", f"{subject}, {HALF}, peak", saving, "x less")
    else:
        claims.record("C7", "2x less memory", f"{subject}, {HALF}, peak", saving, "x less", 1.9, math.inf)
    saving = runs["FP32"].largest["activations"] / runs[HALF].largest["activations"]
    claims.figure("16 bits, less memory for activations", f"{subject}, {HALF}", saving, "x less")
print(claims)

# %% [markdown] name="gpt_explained"
# (C7 is the claim's number in this course's list. It counts as *held* at 1.9x or more, which allows for rounding and nothing else. On a CPU the CNN's peak gets no verdict,
# because it depends on how the convolution is emulated.)
#
# Neither peak reaches the promised factor of two. **Mixed precision halves what becomes 16-bit, and nothing else.** Optimizer state needs other
# techniques ([[lean_optimizers]]), and so do the remaining activations ([[activation_checkpointing]]).

# %% [markdown] name="speed_text"
# ## 6 · Time
#
# The other half of the promise is "2x faster". Speed comes from hardware that multiplies 16-bit numbers: tensor cores on a GPU, AMX or AVX-512 BF16 on
# a CPU.
#
# The baseline matters, too. NVIDIA GPUs since Ampere can also compute an FP32 matmul in **TF32**: the inputs are rounded to 10 fraction bits, the sum and the
# result are FP32. By default PyTorch does so in convolutions and not in matmuls, so "FP32" can mean two things in one model. Below, FP32 means
# FP32 (`fp32_computed_as("ieee")`), and TF32 has its own line if the GPU supports it. Each format takes turns with FP32, so that both see the same
# interference. On a GPU the models are larger, so that the timing measures arithmetic and not kernel launches.
#
# **Predict.** How many times as fast as FP32 is the CNN's 16-bit step on your device?

# %% name="guess_speed"
my_guess = None
### BEGIN GUESS
my_guess = 2  # as promised
### END GUESS
speed_guess = Prediction(f"CNN, FP32 to {HALF}", my_guess, "x as fast")


# %% name="step_of"
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


# %% name="speed"
if device.type == "cuda":
    long = [tokens[: 16 * 1024].view(16, 1024) for tokens in (text.train_x, text.train_y)]
    timed = {
        "CNN, 256 channels, batch 1,024": (lambda: SmallCNN(256), images.repeat(4, 1, 1, 1), labels.repeat(4)),
        "GPT, 8 layers of 1,024, 16 x 1,024 tokens": (lambda: SmallGPT(context=1024, layers=8, width=1024), *long),
    }
else:
    timed = dict(subjects)
lines = [(subject, HALF, half, "ieee") for subject in timed]
if has_tf32(device):
    lines = [(subject, "TF32", FP32, "tf32") for subject in timed] + lines
if device.type == "cpu" and half != FP16:  # a device without FP16 hardware is slow: fewer images are enough
    timed["CNN, batch 16"] = (lambda: SmallCNN(32), images[:16], labels[:16])
    lines.append(("CNN, batch 16", "FP16", FP16, "ieee"))
for subject, name, dtype, fp32 in lines:
    with sign_of_life(f"{subject}, FP32 and {name}"):
        right, other = step_of(*timed[subject], FP32), step_of(*timed[subject], dtype, fp32)
        exact = right()
        off = ((other() - exact).norm() / exact.norm()).item()
        timing = compare(right, other, runs=3, warmup=0)
    if name == HALF and subject.startswith("CNN"):
        speed_guess.reveal(timing.speedup)
    spread = f"{timing.speedup:.2f}x (3 pairs: {min(timing.ratios):.2f} to {max(timing.ratios):.2f})"
    print(f"{subject:20} FP32 -> {name}: {spread}; the first gradient is off by {off:.1e}")
    if device.type == "cuda":  # the claim is about tensor cores
        claims.record("C7", "2x faster", f"{subject}, {name}", timing.speedup, "x as fast", 1.8, math.inf)
    else:
        claims.figure("speed in 16 bits, on a CPU", f"{subject}, {name}", timing.speedup, "x as fast")
if not has_tf32(device):
    print("no line for TF32: it needs an NVIDIA GPU of compute capability 8.0 or more")
print(
    "what FP32 means by default on a GPU with TF32:",
    ", ".join(f"{what} in {how}" for what, how in fp32_precision().items()),
)

# %% [markdown] name="speed_explained"
# If even the lowest ratio of a line is above 1x, your device has hardware for the format and this model is large enough to use it. On a CPU, a line whose highest ratio is far
# below 1x means that it does not: every 16-bit number is converted before and after each operation. The claim of 2x is about tensor cores, so it gets a verdict only on
# a GPU. TF32 saves no bytes. It has as many fraction bits as FP16, 10, so the error of its gradient should be about as large.
#
# To train in TF32 with nothing else changed, call `torch.set_float32_matmul_precision("high")`. Newer names for the same settings are
# `torch.backends.cuda.matmul.fp32_precision = "tf32"` for matmuls and `torch.backends.cudnn.conv.fp32_precision` for convolutions. Use one generation of names: reading
# an old one after setting a new one can raise an error.

# %% [markdown] name="underflow_text"
# ## 7 · Small gradients in FP16
#
# In FP16, a number of 2⁻²⁵ or less becomes zero. Are real gradients that small? It depends on how the loss is averaged. Take a network that removes noise
# from the digits. Its loss is a mean over all pixels of a batch, and in a model with several tasks such a term often gets a small weight, here 0.0001. Each
# pixel's share of the loss is tiny, and so is its gradient.


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
size = gradients.abs()
print(f"{size.numel():,} gradients, median magnitude {size.median():.1e}, largest {size.max():.1e}")

# %% name="underflow"
nonzero = gradients[gradients != 0]
lost = {2**n: 100 * ((nonzero * 2.0**n).half() == 0).float().mean().item() for n in (0, 4, 8, 12, 16)}
print("become zero in FP16:", {f"times {scale:,}": f"{share:.1f}%" for scale, share in lost.items()})

# %% [markdown] name="control_text"
# ### Three runs, side by side
#
# Train the denoiser in FP16 without any precautions. For comparison, train the same network in FP32 and in BF16.


# %% name="train_denoiser"
def train_denoiser(dtype, scaler=None, epochs=3):
    """Train; return the mean error of the first and the last epoch, and the share of zeros among gradients, in %."""
    model = make_denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    if scaler is None:
        scaler = torch.amp.GradScaler(device.type, enabled=False)
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
    epoch = len(errors) // epochs
    return sum(errors[:epoch]) / epoch, sum(errors[-epoch:]) / epoch, 100 * sum(zeros) / len(zeros)


def print_run(name, run):
    first, last, zeros = run
    print(f"{name:22} error, first and last epoch: {first:.3f} -> {last:.3f}   zero gradients: {zeros:.1f}%")


# %% name="control"
with sign_of_life("three trainings"):
    runs = {name: train_denoiser(dtype) for name, dtype in {"FP32": FP32, "BF16": BF16, "FP16": FP16}.items()}
for name, run in runs.items():
    print_run(name, run)

# %% [markdown] name="control_explained"
# FP16 does not learn, because all its gradients are zero, and it raises no error and produces no NaN. BF16 has FP32's range and needs no precautions.
#
# Does the same happen to the digits classifier in FP16, without a scaler?

# %% name="survivor"
with sign_of_life("two epochs in FP32 and in FP16"):
    survivors = {name: train_cnn(dtype, epochs=2) for name, dtype in {"FP32": FP32, "FP16, no scaler": FP16}.items()}
for name, (losses, accuracy) in survivors.items():
    print(f"{name:16} loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {accuracy:.1%}")

# %% [markdown] name="survivor_explained"
# With a plain mean over 128 images the gradients are large enough, and nothing goes wrong. This makes the mistake hard to find: the same training code that works for
# this loss fails for the denoiser's, which is averaged over more elements and has a smaller weight.

# %% [markdown] name="explorer_text"
# ### Explore: find the right loss scale
#
# The histogram shows the denoiser's real gradients. Move the slider until nothing is lost and nothing overflows. How much
# room is there, in powers of two? (A loss scaler will find less room: weight gradients are sums over many of these and overflow sooner.)

# %% name="explorer"
explore_loss_scale(gradients, log2_scale=0)

# %% [markdown] name="scaling_text"
# ## 8 · Loss scaling, by hand and automatic
#
# The gradient is linear in the loss. Multiply the loss by S, and every gradient in the backward pass is S times as large and stays above FP16's minimum. Divide the FP32 weight gradients
# by S, and the update is the one you wanted. Below, the scale goes from 2⁰ to 2⁴⁰.

# %% name="scaling_by_hand"
x = data.train_x[:128]


def weight_gradient(dtype, scale):
    """Return the denoiser's weight gradients with the loss multiplied by `scale` and divided out again."""
    model = make_denoiser()
    torch.manual_seed(1)  # the same noise each time
    (scale * denoise_loss(model, x, dtype)[0]).backward()
    return torch.cat([p.grad.flatten() / scale for p in model.parameters()])


true = weight_gradient(FP32, 1.0)
errors = {n: ((weight_gradient(FP16, 2.0**n) - true).norm() / true.norm()).item() for n in (0, 8, 16, 24, 40)}
for exponent, error in errors.items():
    print(f"FP16, loss scale 2^{exponent:<3} relative error of the gradient: {error:.4f}")

# %% [markdown] name="dynamic_text"
# A scale that is too small loses gradients, and one that is too large turns them into inf. In between is a wide plateau on which all scales are equally good, so there is no need
# to search for the best one. Start high. If an inf or NaN appears, skip that step and halve the scale. After many consecutive good steps, double it. This is
# **dynamic loss scaling**.
#
# ### Your turn: a dynamic loss scaler
#
# **Contract.** `LossScaler(init_scale, growth_factor, backoff_factor, growth_interval)` has the main methods of `torch.amp.GradScaler` and serves one optimizer:
#
# - `get_scale()` returns the current scale, a float.
# - `scale(loss)` returns the loss times the scale. `loss` is a scalar (0-dimensional) tensor.
# - `unscale_(optimizer)` divides the gradients of all the optimizer's parameters by the scale, in place, and records whether any element is inf or
#   NaN. It skips parameters whose `.grad` is None, and no others, frozen or not; at least one has a gradient. It also divides gradients that contain inf.
# - `step(optimizer)` calls `unscale_` unless you have called it since the last `update()`. Then it calls `optimizer.step()` if all gradients are
#   finite. It returns True if it stepped and False if it skipped, and leaves the gradients where they are.
# - `update()` is called once after each step, and nothing else changes the scale. After a skipped step it multiplies the scale by `backoff_factor`. After `growth_interval` good steps in
#   a row it multiplies the scale by `growth_factor`. Both restart the count of good steps.


# %% name="scaler" answer=true reveal=true
class LossScaler:
    """Finds a loss scale that does not overflow, while training."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.current_scale = init_scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.good_steps = 0
        self.overflowed = None  # None: unscale_ has not run since the last update

    def get_scale(self):
        return self.current_scale

    def scale(self, loss):
        ### BEGIN SOLUTION
        return loss * self.current_scale
        ### END SOLUTION

    def unscale_(self, optimizer):
        ### BEGIN SOLUTION
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self.current_scale)
        self.overflowed = not all(torch.isfinite(gradient).all() for gradient in gradients)
        ### END SOLUTION

    def step(self, optimizer):
        ### BEGIN SOLUTION
        if self.overflowed is None:
            self.unscale_(optimizer)
        if not self.overflowed:
            optimizer.step()
        return not self.overflowed
        ### END SOLUTION

    def update(self):
        ### BEGIN SOLUTION
        if self.overflowed:
            self.current_scale *= self.backoff_factor
            self.good_steps = 0
        else:
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                self.current_scale *= self.growth_factor
                self.good_steps = 0
        self.overflowed = None
        ### END SOLUTION


# %% name="scaler_check"
LossScaler = check("mixed_precision.scaler", LossScaler)

# %% name="scaler_hint"
hint("mixed_precision.scaler")

# %% [markdown] name="scaler_own"
# **Compare with PyTorch's own.** Train the denoiser with `LossScaler` and with `GradScaler`. Then start both at 2⁴⁴, far too high, let them grow after 12 good steps, and compare their scales.

# %% name="scaler_defaults"
with sign_of_life("two trainings in FP16"):
    for name, scaler in {"LossScaler": LossScaler(), "GradScaler": torch.amp.GradScaler(device.type)}.items():
        print_run(f"FP16, {name}", train_denoiser(FP16, scaler))
print(f"GradScaler: start {scaler.get_scale():g}, back off x{scaler.get_backoff_factor():g},", end=" ")
print(f"grow x{scaler.get_growth_factor():g} after {scaler.get_growth_interval()} good steps")


# %% name="scaler_at_work"
def scales_of(scaler, steps=60):
    """Train the denoiser in FP16; return the scale of each step, and which steps were skipped."""
    model = make_denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scales, skipped = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss, _ = denoise_loss(model, data.train_x[:64], FP16)
        scales.append(scaler.get_scale())  # before `update` may change it
        scaler.scale(loss).backward()
        before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        if (before == model[0].weight).all():
            skipped.append(step)
    return scales, skipped


with sign_of_life("60 steps in FP16, twice"):
    settings = {"init_scale": 2.0**44, "growth_interval": 12}
    scales, skipped = scales_of(torch.amp.GradScaler(device.type, **settings))
    own_scales, _ = scales_of(LossScaler(**settings))
print("LossScaler's and GradScaler's scales agree in every step:", own_scales == scales)

# %% name="plot_scaler"
figure = Figure(figsize=(7, 3), layout="constrained")
axes = figure.add_subplot()
axes.step(range(60), [math.log2(scale) for scale in scales], where="post", color=COLORS[0], label="scale")
axes.plot(skipped, [math.log2(scales[step]) for step in skipped], "x", color=COLORS[4], label="step skipped")
axes.set(title="GradScaler at work", xlabel="step", ylabel="log2 of the scale")
axes.legend(frameon=False)
show(figure, "The scale halves at every step until the gradients fit, then rises now and then and is pushed back.")
print("steps skipped:", *skipped)

# %% [markdown] name="dynamic_explained"
# The first steps are skipped, each halving the scale, until the gradients fit. After that the scale rises from time to time and is halved again. A
# skipped step moves no weights. (A learning-rate scheduler that steps anyway gets ahead of the weights by one step.)

# %% [markdown] name="clipping_text"
# ## 9 · Clipping
#
# Gradient clipping limits the norm of the gradient. With a scaler, `.grad` holds the gradient times the scale. If you clip it in this state, to
# norm 0.01, and let the scaler divide, SGD takes a step that is too short by a factor equal to the scale, 65,536. Adam, however, normalizes its gradients.
#
# **Predict.** By what factor is Adam's step too short?

# %% name="guess_clipping"
my_guess = None
### BEGIN GUESS
my_guess = 1  # it divides each gradient by its own size
### END GUESS
adam_guess = Prediction("Adam: right step / step when clipped without unscaling", my_guess, "")


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
steps = {name: [clipped_update(make, first) for first in (True, False)] for name, make in makers.items()}
adam_guess.reveal(steps["Adam, lr 0.001"][0] / steps["Adam, lr 0.001"][1])
for name, (right, wrong) in steps.items():
    print(f"{name:15} unscale_, then clip: moved by {right:.2g}   clip without unscaling: moved by {wrong:.2g}")

# %% [markdown] name="clipping_explained"
# SGD hardly moves. Adam divides each gradient by its own size, so it still moves, and the mistake is easy to
# miss. The difference that remains comes from `eps`, the small number that prevents division by zero: with a smaller `eps` it disappears.
#
# The order is `scale(loss).backward()` → `unscale_(optimizer)` → clip → `step(optimizer)` → `update()`. Under `DistributedDataParallel`
# nothing changes: the ranks exchange scaled gradients, with the same scale on every rank, and an inf on one rank becomes an inf on
# all, so all of them skip together ([[data_parallel]] shows it).

# %% [markdown] name="bf16_text"
# ## 10 · What large models use instead
#
# Autocast decides operation by operation. Training code for language models mostly casts whole models, in one of two ways. Both use BF16, which needs no scaler.
#
# - **BF16 weights with FP32 master weights**, as in section 2: the model exists in BF16, the optimizer owns an FP32 copy.
# - **A mixed-precision policy**, as in FSDP2: `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)` keeps the FP32 weights, casts each block's weights and
#   inputs to BF16 before it runs, and adds up the ranks' gradients in FP32 ([[fully_shard]]).
#
# In both, norms and the residual stream are in BF16, too. The cell below casts all weights at once, with `functional_call`, and keeps the copies up to the backward pass. (FSDP2
# casts block by block and frees each block's copies after use, so it holds fewer of them at a time.)
#
# The error of a gradient is its distance from FP32's.
#
# **Predict.** By what factor is the error of the GPT's gradient larger with all weights cast than under autocast?

# %% name="guess_policy"
my_guess = None
### BEGIN GUESS
my_guess = 1  # the matmuls are in BF16 in both
### END GUESS
policy_guess = Prediction("Error of the gradient, all weights cast / autocast", my_guess, "times")


# %% name="policy"
def policy_step(model, optimizer, x, y, dtype):
    """One step with FP32 weights that are cast before the forward pass, all of them."""
    optimizer.zero_grad()
    cast = {name: p.to(dtype) for name, p in model.named_parameters()}
    logits = torch.func.functional_call(model, cast, (x,))
    del cast
    loss = F.cross_entropy(logits.float().flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()


def gradient_error(step, dtype):
    """Return how far a first step's gradient is from FP32's, relatively."""
    found = []
    for take, kind in ((train_step, FP32), (step, dtype)):
        torch.manual_seed(0)
        model = SmallGPT().to(device)
        take(model, torch.optim.SGD(model.parameters(), lr=0.0), ids, next_ids, kind)
        found.append(torch.cat([p.grad.flatten().float() for p in model.parameters()]))
    return ((found[1] - found[0]).norm() / found[0].norm()).item()


gpt["policy"] = measured_step(SmallGPT, ids, next_ids, half, step=policy_step)
errors = {name: gradient_error(step, half) for name, step in {"autocast": train_step, "policy": policy_step}.items()}
policy_guess.reveal(errors["policy"] / errors["autocast"])
show_table(category_table(gpt))
for name, error in errors.items():
    print(f"{name:10} gradient off by {error:.1e}")

# %% [markdown] name="policy_explained"
# The policy needs fewer bytes for activations than autocast, because the residual stream is in 16 bits as well. Its gradient is less accurate:
# compare the last two lines. Only a trial shows which one your model tolerates; large runs keep sensitive parts, such as the loss or a router,
# in FP32.

# %% [markdown] name="loss_text"
# ## 11 · The loss, and where to call backward()
#
# **The loss in 16 bits.** Take a cross-entropy over a vocabulary of 50,000, averaged over 64 rows. The logits, and every result
# from the log-softmax to the mean, are rounded to one format: FP32, BF16 or FP16.
#
# **Predict.** What is the relative error of the loss in BF16?

# %% name="guess_loss"
my_guess = None
### BEGIN GUESS
my_guess = 1e-3  # one BF16 rounding is up to 1 in 256, and the mean of 64 rows evens out
### END GUESS
loss_guess = Prediction("BF16: loss off by, relatively", my_guess, "")

# %% name="loss_in_16_bits"
torch.manual_seed(0)
logits, target = 2 * torch.randn(64, 50_000, device=device), torch.randint(50_000, (64,), device=device)
exact = F.cross_entropy(logits.cpu().double(), target.cpu()).item()  # not every GPU has FP64
for name, dtype in {"FP32": FP32, "BF16": BF16, "FP16": FP16}.items():
    loss = F.cross_entropy(logits.to(dtype), target)
    if name == "BF16":
        loss_guess.reveal(abs(loss.item() - exact) / exact)
    print(f"{name}: loss {loss.item():.5f}, off by {abs(loss.item() - exact) / exact:.1e}")

# %% [markdown] name="loss_explained"
# BF16 gets the third digit of the loss wrong. Keep losses in FP32: `F.cross_entropy(logits.float(), target)`.
#
# **`backward()` inside autocast.** PyTorch's documentation advises against it.
#
# **Predict.** How far apart, in relative terms, are the gradients with `backward()` inside and outside the region?

# %% name="guess_inside"
my_guess = None
### BEGIN GUESS
my_guess = 1e-3  # as large as 16-bit noise, if the advice has a reason
### END GUESS
inside_guess = Prediction("GPT: gradients with backward() inside and outside", my_guess, "")

# %% name="backward_inside"
for subject, (make_model, x, y) in subjects.items():
    outside, again = (gradient_of(make_model, x[:2], y[:2], theirs()) for _ in range(2))
    inside = gradient_of(make_model, x[:2], y[:2], theirs(), inside=True)
    equal = f"outside twice: {torch.equal(outside, again)}; inside and outside: {torch.equal(outside, inside)}"
    print(f"{subject[:3]}: gradients bitwise equal, {equal}")
inside_guess.reveal(((inside - outside).norm() / outside.norm()).item())

# %% [markdown] name="inside_explained"
# With PyTorch's own operations it makes no difference. (If even the same gradient computed twice differs, the GPU added the numbers in a different order.)
# Autograd has recorded each operation with its casts, and the backward formulas take their dtypes from there. A `torch.autograd.Function` of **your
# own** has no such record: decorate its `forward` with `torch.amp.custom_fwd` and its `backward` with `torch.amp.custom_bwd`. They make `backward` run under
# the autocast state of `forward`; without them it runs under whatever state is active when you call `backward()`.

# %% [markdown] name="table_text"
# ## 12 · Claims and measurements

# %% name="claims_table"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Autocast is a list of operations and a cast of their inputs. Operations that are on neither list follow their inputs, so a residual stream
#   that begins in FP32 stays there.
# - Mixed precision saves **activations** and temporaries. Weights, gradients and optimizer state stay FP32 under autocast, and 16-bit weight
#   copies are added.
# - "2x less memory" is the limit for a model that is all activations; measure yours.
# - "2x faster" depends on the hardware. Check that your device has units for the format and that the model is large enough.
# - FP16 needs loss scaling and can fail silently without it. BF16 does not need it.
# - Order: scale, backward, unscale, clip, step, update. Keep the loss in FP32.
# - FSDP's policy and BF16 weights with FP32 masters cast whole models, residual stream included.
# - Say what "FP32" means: on recent NVIDIA GPUs it may be TF32.
#
# | Your device | Reach for |
# |---|---|
# | Ampere GPU or newer, TPU, recent CPU | BF16, no scaler |
# | T4, V100, older GPUs | FP16 autocast with `GradScaler` |
# | Apple GPU | measure BF16 and FP16; keep FP32 if neither helps |
# | weights too large for FP32 | other tools: labs [[#lean_optimizers]], [[#sharding]] and [[#lora]] |
#
# **Sources.** Micikevicius et al., *Mixed Precision Training* (2018), arXiv:1710.03740 · Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training* (2019), arXiv:1905.12322 ·
# PyTorch documentation: *Automatic Mixed Precision package*, *Automatic Mixed Precision examples*, *fully_shard*, *CUDA semantics* (TensorFloat-32).
#
# Next: **03_x1_amp_cnn**, the graded exercise.
