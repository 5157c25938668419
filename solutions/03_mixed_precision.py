# %% [markdown] name="title"
# # Mixed precision
#
# **Mixed precision computes in 16 bits and updates the weights in FP32. You measure what that saves in memory and time, and what it costs in accuracy.**
#
# | | |
# |---|---|
# | After this you can | say which bytes mixed precision saves and which it does not; write your own autocast, and say what it leaves in FP32; tell FP32 from TF32; measure whether 16-bit formats pay off on your device |
# | Time | 80 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[start_here]], [[number_formats]] |
# | Syllabus | T3 (in short), T4, C7, P1 |

# %% name="setup" setup=true
import math

from helpers import (
    CATEGORIES,
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
# Where the text says BF16, the cells use BF16, or FP16 on a GPU without hardware for BF16. Such a GPU, a T4 for example, emulates BF16 in FP32, which
# is slow.


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
# - Matmuls and convolutions run in 16 bits, because that is where most of the time goes.
# - Operations that lose too much precision in 16 bits run in FP32.
# - A few that take several tensors, such as `index_copy` on a CPU, cast them to the widest dtype among them.
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
    "Inputs and FP32 weights are cast on their way into each linear layer; ReLU keeps the dtype of its input; what goes into the loss is cast back to FP32.",
)

# %% [markdown] name="autocast_task"
# ### Your turn: autocast
#
# A `TorchFunctionMode` is a region in which PyTorch hands you every call to one of its functions before it runs: `func` is the function,
# `args` and `kwargs` are its arguments. Inside `__torch_function__` the mode is off, so calling `func` runs it.
#
# **Contract.** `with Autocast(dtype):` is an autocast region.
#
# - A function in `LOW_PRECISION` gets its floating-point tensors in `dtype`, which is BF16 or FP16.
# - A function in `LOSSES` gets its floating-point tensors in FP32.
# - Every other function runs with the arguments it was given.
# - Tensors are cast in `args` and in `kwargs`. Integer tensors, Boolean masks and non-tensor arguments are left alone.
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
# **Compare with `torch.autocast`.** The next cell computes the gradients of the CNN and of a small GPT, once under `Autocast` and once under `torch.autocast`, and compares them.

# %% name="own"
text = english(device)
ids = text.train_x[: 8 * 128].view(8, 128).clone()
next_ids = text.train_y[: 8 * 128].view(8, 128).clone()
subjects = {
    "CNN, batch 64": (lambda: SmallCNN(32), images[:64], labels[:64]),
    "GPT, 8 x 128 tokens": (SmallGPT, ids, next_ids),
}


def gradient_of(make_model, x, y, region):
    """Return the gradient of a fresh model whose forward pass runs in `region`."""
    torch.manual_seed(0)
    model = make_model().to(device)
    with region:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
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
# Of these operations, only cross entropy runs in FP32 on a CPU (its list has others, such as `cdist` and `prod`), so the output of a norm layer stays in 16 bits if its input is in 16 bits. On CUDA, norms, softmax, `exp` and
# sums are on the FP32 list, too (RMS norm since PyTorch 2.12). If you write your own loss, compute it outside the region, from logits after `.float()`; then none of autocast's lists apply. (Inside, `.float()` is not enough: a matmul in the loss is cast to 16 bits again.)
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
# Under autocast, every matmul in the GPT returns a 16-bit tensor. Each block adds the results of two of its matmuls to its input, and returns the sum.
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
# Before you ask what 16 bits save, check that the model still trains. The cells below train it from three seeds, each in FP32 and in 16 bits, with the same initial weights and batches.

# %% name="train_cnn"
small = digits(device)  # 8 x 8 pixels: a quarter of the work


def train_cnn(dtype, seed):
    """Train for four epochs; return (losses, test accuracy)."""
    torch.manual_seed(seed)
    model = SmallCNN(16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        for index in torch.randperm(len(small.train_x)).split(128):
            losses.append(train_step(model, optimizer, small.train_x[index], small.train_y[index], dtype).item())
    model.eval()
    with torch.no_grad():
        right = model(small.test_x).argmax(1) == small.test_y
    return losses, right.float().mean().item()


print(f"{len(small.train_x):,} digits to train on, {len(small.test_x)} to test")

# %% [markdown] name="seeds_text"
# **Predict.** How many percentage points separate the best accuracy of the three FP32 runs from the worst?

# %% name="guess_seeds"
my_guess = None  # percentage points
### BEGIN GUESS
my_guess = 0.2  # the same model, the same digits
### END GUESS
seeds_guess = Prediction("FP32, accuracy of the best seed minus the worst", my_guess, "points")

# %% name="equivalence"
jobs = [(name, seed) for name in (HALF, "FP32") for seed in range(3)]
with sign_of_life("six training runs, two at a time"):
    trained = parallel_map(lambda job: train_cnn(half if job[0] == HALF else FP32, job[1]), jobs)
curves = dict(zip(jobs, trained, strict=True))
accuracy = {name: [100 * curves[name, seed][1] for seed in range(3)] for name in ("FP32", HALF)}
seeds_guess.reveal(max(accuracy["FP32"]) - min(accuracy["FP32"]))
for name, figures in accuracy.items():
    print(f"{name}: accuracy {', '.join(f'{figure:.1f}%' for figure in figures)}")
gap = max(abs(a - b) for a, b in zip(curves["FP32", 0][0], curves[HALF, 0][0], strict=True))
print(f"largest difference between the two loss curves of seed 0: {gap:.4f}")
points = (sum(accuracy[HALF]) - sum(accuracy["FP32"])) / 3
claims.figure("accuracy, 16 bits minus FP32", f"CNN, 4 epochs, mean of 3 seeds, {HALF}", points, "points")

# %% [markdown] name="memory_text"
# The loss curves stay close. Three seeds cannot tell a gap this small from chance: rounding alone sends two runs along different paths, just as a different seed would.
# That is why the cell records a figure and gives no verdict on the accuracy.
#
# ## 5 · Memory
#
# Many articles claim that "mixed precision halves the memory."
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
# - **Parameters, gradients and optimizer state** take exactly as many bytes as before: autocast leaves them in FP32.
# - **Weight copies** are new: autocast's 16-bit casts of the weights, cached until the region ends and saved for the backward pass.
# - **Temporaries** halve as well. **Kernel workspace** depends on the device and on the algorithm chosen for it. A CPU without BF16 hardware converts the numbers
#   inside each convolution: there the workspace may grow, and the peak may shift to the moment when it is allocated.
#
# Here is what autograd saves for 64 images, by dtype (a tensor saved by two operations counts twice):

# %% name="saved_by_dtype"
kept = {}


def note(tensor):
    dtype = str(tensor.dtype).removeprefix("torch.")
    kept[dtype] = kept.get(dtype, 0) + tensor.nbytes
    return tensor.detach()  # an operation that saves its own output would otherwise keep itself alive


with theirs(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    SmallCNN(32).to(device)(images[:64])
print({dtype: f"{size / 2**20:.2f} MiB" for dtype, size in kept.items()})

# %% [markdown] name="gpt_text"
# So the savings depend on which categories fill the memory. The GPT has larger parameters and optimizer state, and its residual stream stays in FP32.

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
    if (
        device.type == "cpu" and runs is cnn
    ):  # its convolutions may convert their operands, in a workspace that a GPU does not need
        claims.figure("16 bits on a CPU, less memory", f"{subject}, {HALF}, peak", saving, "x less")
    else:
        claims.record("C7", "2x less memory", f"{subject}, {HALF}, peak", saving, "x less", 1.9, math.inf)
    saving = runs["FP32"].largest["activations"] / runs[HALF].largest["activations"]
    claims.figure("16 bits, less memory for activations", f"{subject}, {HALF}", saving, "x less")
for row in claims.rows[1:]:
    print(f"{row.said}: {row.figure} ({row.subject})")

# %% [markdown] name="gpt_explained"
# ("2x less memory" counts as *held* at 1.9x or more. On a CPU the CNN's peak gets no verdict,
# because it depends on how the convolution is computed.)
#
# On a CPU, neither peak reaches the promised factor of two. **Of your tensors, mixed precision halves what becomes 16-bit, and nothing else.** Workspace is another matter: on an
# H100 the CNN's peak fell by far more than a factor of two, and its activations did not ([claims](../docs/claims.md), C7). Optimizer state needs other
# techniques ([[lean_optimizers]]), and so do the remaining activations ([[activation_checkpointing]]).

# %% [markdown] name="speed_text"
# ## 6 · Time
#
# The other half of the promise is "2x faster". Speed comes from hardware that multiplies 16-bit numbers: tensor cores on a GPU, AMX or AVX-512 BF16 on
# a CPU.
#
# The baseline matters, too. NVIDIA GPUs since Ampere can also compute an FP32 matmul in **TF32**: the inputs are rounded to 10 fraction bits, while the sum and the
# result are FP32. By default PyTorch does so in convolutions and not in matmuls, so "FP32" can mean two things in one model. Below, FP32 means
# FP32 (`fp32_computed_as("ieee")`), and TF32 has its own line if the GPU supports it. Each format takes turns with FP32, so that both see the same
# interference. On a GPU the models are larger, so that the timing measures arithmetic and not kernel launches.
#
# **Predict.** What is the speedup of the CNN's 16-bit step over its FP32 step on your device?

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
    spread = f"{timing.speedup:.2g}x (3 pairs: {min(timing.ratios):.2g} to {max(timing.ratios):.2g})"
    print(f"{subject:20} FP32 -> {name}: {spread}; the first gradient is off by {off:.1e}")
    if device.type == "cuda":  # the claim is about tensor cores
        claims.record("C7", "2x faster", f"{subject}, {name}", timing.speedup, "x as fast", 1.8, math.inf)
    else:
        claims.figure("speed in 16 bits, on a CPU", f"{subject}, {name}", timing.speedup, "x as fast")
if not has_tf32(device):
    print("no line for TF32: it needs an NVIDIA GPU of compute capability 8.0 or higher")
print(
    "what FP32 means by default on a GPU with TF32:",
    ", ".join(f"{what} in {how}" for what, how in fp32_precision().items()),
)

# %% name="units"
if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):  # newer versions of PyTorch have it
    units = [name for name, has in torch.cpu.get_capabilities().items() if has and ("bf16" in name or "fp16" in name)]
    print("this CPU's instructions for 16 bits:", ", ".join(sorted(units)) or "none")

# %% [markdown] name="speed_explained"
# If even the lowest ratio on a line is clearly above 1x, your device probably has hardware for the format, and this model is large enough to use it. (Having only half as many bytes to move can save time, too.) A ratio far below 1x on a CPU can have several
# causes. Without instructions for the format (the last line lists yours), every 16-bit number is converted before and after each operation. With them, the library may still have no fast kernel for
# an operation, or another program may occupy the cores: taking turns with FP32 does not cancel this if that program slows one of the two formats more. Repeat the cell on an idle machine, or after
# `torch.set_num_threads(1)`, before you conclude anything from it.
#
# The claim of 2x is about tensor cores, so it gets a verdict only on a GPU. TF32 saves no bytes. Like FP16, it has 10 fraction bits.
#
# To train in TF32 with nothing else changed, call `torch.set_float32_matmul_precision("high")`. Newer names are
# `torch.backends.cuda.matmul.fp32_precision = "tf32"` for this setting, and `torch.backends.cudnn.conv.fp32_precision` for that of convolutions. Use one generation of names: reading
# an old one after setting a new one can raise an error.

# %% [markdown] name="table_text"
# ## 7 · Claims and measurements

# %% name="claims_table"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Autocast keeps lists of operations and casts their inputs. Operations that are on none of its lists follow their inputs, so a residual stream
#   that begins in FP32 stays there.
# - Mixed precision shrinks **activations** and temporaries. Weights, gradients and optimizer state stay FP32 under autocast, and 16-bit weight
#   copies are added.
# - "2x less memory" is the limit for tensors, in a model that is all activations. The workspace of convolutions comes on top and depends on the algorithm; measure yours.
# - "2x faster" depends on the hardware. Check that your device has units for the format and that the model is large enough.
# - Say what "FP32" means: on recent NVIDIA GPUs it may be TF32.
#
# **What to reach for when.** If your device has hardware for BF16, use BF16 autocast. If it has hardware for FP16 only, use FP16 autocast with the scaler of [[loss_scaling]], which also
# shows what large models use in place of autocast. If the weights are too large in FP32, use other tools: labs [[#lean_optimizers]], [[#sharding]] and [[#lora]].
#
# **Sources.** Micikevicius et al., *Mixed Precision Training* (2018), arXiv:1710.03740 · PyTorch documentation: *Automatic Mixed Precision package*, *CUDA semantics* (TensorFloat-32).
