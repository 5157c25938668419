# %% [markdown] name="title"
# # Mixed precision
#
# **Computing in 16 bits saves up to half of what a training step keeps for the backward pass, leaves weights, gradients and optimizer state as they
# are, and needs one precaution in FP16 and none in BF16.**
#
# | | |
# |---|---|
# | After this you can | say which bytes mixed precision saves and which it does not; write an autocast and find what it leaves in FP32; tell FP32 from TF32; scale a loss by hand and with `GradScaler`; keep a backward formula of your own safe |
# | Time | 130 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[start_here]], [[number_formats]] |
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
    cast_path,
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
    pick_device,
    show,
    sign_of_life,
    sixteen_bit_dtype,
    tenant_bars,
    tenant_table,
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
# This is the step you will meet throughout the lab; `dtype` is what mixed precision will change.
#
# Where the text says BF16, the cells take BF16, or FP16 on a GPU without units for BF16; section 6 shows what your device is fast in. A GPU without units for BF16, such as a T4, runs it all the same,
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
# We call what holds memory its **tenants**. The largest by far are the **activations**: what the forward pass keeps for the backward pass.
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
# ## 2 · Weights stay in FP32
#
# [[Number_formats]] took the two 16-bit formats apart. What this lab needs of it:
#
# - **FP16** ends at 65504 and has nothing below 6e-8. Large activations overflow, and small gradients become zero.
# - **BF16** reaches as far as FP32, but has no number between 1 and 1.0078. Small updates of weights are rounded away.
#
# The second point is settled once and for all: keep the weights in FP32, and compute with a 16-bit copy of them. Kept beside 16-bit weights, these are
# called **master weights**. The first mixed-precision programs did that by hand, and optimizers of large runs still do.
#
# ### Your turn: SGD with master weights
#
# Write one step of SGD for a weight that the model uses in BF16.
#
# **Contract.** `sgd_with_master(weight, master, gradient, lr)` changes `master` and `weight` in place.
#
# - `weight` (any shape) BF16: what the model computes with. It must stay the same tensor.
# - `master` (same shape) FP32: it moves by `-lr * gradient`, in FP32, and stays the same tensor, too.
# - `gradient` (same shape) BF16: unchanged.
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
# `torch.autocast` does without a second copy. The weights are FP32 and stay so; each operation in its region is looked up in a list, and its inputs are
# cast on the way in.
#
# - Matrix products and convolutions run in 16 bits, because that is where the time goes.
# - Operations that lose too much in 16 bits run in FP32.
# - The rest take what they are given.
#
# Here are two linear layers with a ReLU between them, and a loss, run under `torch.autocast` and drawn with the dtypes that were seen.

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
# You can write that. A `TorchFunctionMode` is a region in which Python hands you every call of a PyTorch function before it runs: `func` is the function,
# `args` and `kwargs` are what it was called with. Inside of `__torch_function__` the mode is off, so calling `func` runs it.
#
# **Contract.** `with Autocast(dtype):` is an autocast region.
#
# - A function in `PRODUCTS` gets its floating-point tensors in `dtype`, which is BF16 or FP16.
# - A function in `LOSSES` gets its floating-point tensors in FP32.
# - Every other function runs with what it was given.
# - Tensors are cast in `args` and in `kwargs`. Integer tensors, masks and non-tensor arguments are left alone.
# - Weights keep their dtype and their values, and their gradients arrive in FP32. A weight may change between two regions; the next region uses
#   its new values.

# %% name="autocast" answer=true reveal=true
PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(torch.overrides.TorchFunctionMode):
    """Casts what goes into products to `dtype`, and what goes into losses to FP32."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ### BEGIN SOLUTION
        if func in PRODUCTS:
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
# **PyTorch's own, beside yours.** Here is a step of the CNN and one of a small GPT, with your region and with `torch.autocast`.

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
# Seven functions are enough for two models. PyTorch's lists are longer, and they differ between devices, so ask PyTorch. `autocast_rule` runs an operation
# on FP32 tensors, on 16-bit tensors and on one of each, and says from the results which of four kinds it is. For CUDA it needs no GPU: casting comes
# before computing, so a tensor that only claims to be on a GPU is enough.
#
# - *16 bits*: comes out in 16 bits whatever goes in.
# - *FP32*: comes out in FP32 whatever goes in.
# - *widest*: where two dtypes meet, the wider one wins, and without autocast it would be an error.
# - *follows*: everything else.
#
# **Predict.** Below are 17 operations. How many of them compute in FP32 on CUDA, whatever goes in?

# %% name="guess_rules"
my_guess = None
### BEGIN GUESS
my_guess = 8  # norms, softmax, exp, power, sum and the losses
### END GUESS
rules_guess = Prediction("Operations that CUDA computes in FP32", my_guess, "")

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
rules = {name: [autocast_rule(operation, place, half) for place in places] for name, operation in operations.items()}
rules_guess.reveal(sum(rule[list(places).index("cuda")] == "FP32" for rule in rules.values()))
print(f"{'autocast to ' + HALF:18}" + "".join(f"{place:>10}" for place in places))
for name, rule in rules.items():
    print(f"{name:18}" + "".join(f"{kind:>10}" for kind in rule))

# %% [markdown] name="autocast_explained"
# Of these 17 functions, only the losses run in FP32 on a CPU: a chain of 16-bit products keeps its ReLUs **and norms** in 16 bits. On CUDA norms, softmax, `exp`, powers and
# sums are on the FP32 list too (RMS norm was not yet in PyTorch 2.9). Write `.float()` before a loss of your own; then neither list matters.
#
# Should a 16-bit product not suffer from swamping? It adds up thousands of numbers.
#
# **Predict.** 4,096 ones, added up one by one in BF16, stop growing somewhere. Where? And what does a 16-bit matrix product of the same ones return?

# %% name="guess_accumulate"
my_guess = None  # one by one
### BEGIN GUESS
my_guess = 256  # 8 binary digits: from there on the numbers are 2 apart
### END GUESS
ones_guess = Prediction("4,096 ones, added one by one in BF16", my_guess, "")
my_guess = None  # by a matrix product
### BEGIN GUESS
my_guess = 256  # the same additions
### END GUESS
product_guess = Prediction("4,096 ones, added by a 16-bit matrix product", my_guess, "")

# %% name="accumulate"
one_by_one = torch.tensor(0.0, dtype=BF16)
for _ in range(4096):
    one_by_one += 1
ones = torch.ones(1, 4096, dtype=half, device=device)
ones_guess.reveal(one_by_one.item())
product_guess.reveal((ones @ ones.T).item())
shortcut = torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
print("a CUDA GPU may add up parts of a BF16 product in BF16:", shortcut)

# %% [markdown] name="accumulate_explained"
# One by one, the sum stops at 256, where the next BF16 number is 258. The product gets it right: its inputs and its result are 16-bit, but internally
# it adds with more digits. That is what makes 16-bit products usable. (A GPU may split a long product into parts and add those up in 16 bits; the
# last line says whether that is allowed. If the loss fluctuates, set it to False.)

# %% [markdown] name="widened_task"
# ### Your turn: why does it stay FP32?
#
# Under autocast, the blocks of the GPT hand FP32 tensors to each other, although each block ends with a 16-bit product. Somewhere 16-bit tensors become
# FP32 again. Find out where, with a second mode.
#
# **Contract.** `with Widened() as widened:` notes in `widened.found` where 16-bit numbers become FP32.
#
# - `found` is a list that is empty at first. A new mode has a new list.
# - It gets `func.__name__` of every function that was given a floating-point tensor of 16 bits (BF16 or FP16, in `args` or in `kwargs`; lists
#   of tensors need not be searched) and returned an FP32 tensor: in order, and as often as it happens.
# - Nothing else is noted: no 16-bit integers, no results of other dtypes, no non-tensor results.
# - Every function returns what it would return without the mode, or raises what it would raise.


# %% name="widened" answer=true reveal=true
class Widened(torch.overrides.TorchFunctionMode):
    """Notes the names of functions that get 16-bit floating-point tensors and return FP32."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ### BEGIN SOLUTION
        result = func(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        narrow = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
        if narrow and isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            self.found.append(func.__name__)
        return result
        ### END SOLUTION


# %% name="widened_check"
Widened = check("mixed_precision.widened", Widened)

# %% name="widened_hint"
hint("mixed_precision.widened")

# %% [markdown] name="guess_widened_text"
# **Predict.** The GPT has four blocks. How many times does a 16-bit tensor become FP32 in its forward pass (without the loss)? Which function does it?

# %% name="guess_widened"
my_guess = None
### BEGIN GUESS
my_guess = 8  # twice a block, where a branch is added to what came in
### END GUESS
widened_guess = Prediction("Times a 16-bit tensor becomes FP32 in the GPT", my_guess, "")

# %% name="widened_gpt"
model = SmallGPT().to(device)
with theirs(), Widened() as widened:
    model(ids)
widened_guess.reveal(len(widened.found))
print("by:", ", ".join(sorted(set(widened.found))))
seen = {}
for name in ("tokens", "blocks.0.qkv", "blocks.0", "norm", "head"):
    model.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out.dtype}))
with theirs():
    model(ids)
for name, dtype in seen.items():
    print(f"  {name:14} comes out in {str(dtype).removeprefix('torch.')}")

# %% [markdown] name="widened_explained"
# An embedding is no matrix product, so it comes out in FP32. Each block adds its 16-bit result to it, twice, and FP32 + 16 bits is FP32. So what flows from
# block to block, the **residual stream**, stays FP32 to the end, and so does what the norms keep of it. Autocast has not overlooked a tensor: no listed operation touched it.
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
# ## 4 · The same numbers first
#
# Before asking what it saves, ask whether it still trains. Same seed, same batches, in FP32 and in 16 bits.
#
# **Predict.** By how many points will the accuracies on unseen digits differ?

# %% name="guess_equivalence"
my_guess = None
### BEGIN GUESS
my_guess = 0.5  # half a point is noise
### END GUESS
accuracy_guess = Prediction(f"Accuracy, {HALF} minus FP32", my_guess, "points", difference=True)

# %% name="train_cnn"
small = digits(device)  # 8 x 8 pixels: a quarter of the work


def train_cnn(dtype, seed=0, epochs=6):
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
with sign_of_life("four trainings"):
    curves = {name: train_cnn(dtype) for name, dtype in {"FP32": FP32, HALF: half}.items()}
    other_seeds = [train_cnn(FP32, seed)[1] for seed in (1, 2)]
points = 100 * (curves[HALF][1] - curves["FP32"][1])
accuracy_guess.reveal(points)
for name, (losses, accuracy) in curves.items():
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {accuracy:.1%}")
gap = max(abs(a - b) for a, b in zip(curves["FP32"][0], curves[HALF][0], strict=True))
print(f"largest difference between the two loss curves: {gap:.4f}")
print("FP32 with other seeds:", ", ".join(f"{accuracy:.1%}" for accuracy in other_seeds))
claims.record("C7", "the accuracy holds", f"CNN, 6 epochs, {HALF} against FP32", points, "points", -1.0, math.inf)

# %% [markdown] name="memory_text"
# The two curves stay close. Judge the difference in accuracy by that between seeds: one that is no larger says nothing about the format.
#
# ## 5 · What it saves
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
# - **Activations** nearly halve. What stays is no rounding: **max pooling** remembers which pixel won, as 64-bit integers.
# - **Parameters, gradients, optimizer state** do not change by a byte: autocast leaves them in FP32.
# - **Weight copies** are new: autocast's 16-bit casts of the weights, cached until the region ends and kept for the backward pass.
# - **Temporaries** halve as well. **Kernel workspace** does only where the device computes in 16 bits. A CPU without units for BF16 converts
#   inside of each convolution: there the workspace grows, and the peak may move to it (share nearer to 0.85 than to 0.55).
#
# Here is what autograd keeps of 64 images, by dtype (a tensor that two operations keep counts twice):

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
# So the saving depends on who the tenants are. Now the GPT, whose parameters and optimizer state weigh more, and whose residual stream stays FP32.
#
# **Predict.** What share of its FP32 peak does the GPT need?

# %% name="guess_gpt"
my_guess = None
### BEGIN GUESS
my_guess = 0.75  # less than the CNN saves: more state, and a wide residual stream
### END GUESS
gpt_guess = Prediction(f"GPT: {HALF} peak as a share of FP32's", my_guess, "")

# %% name="measure_gpt"
gpt = {name: measured_step(SmallGPT, ids, next_ids, dtype) for name, dtype in {"FP32": FP32, HALF: half}.items()}
gpt_guess.reveal(gpt[HALF].peak_bytes / gpt["FP32"].peak_bytes)
print(tenant_table(gpt))

# %% name="plot_bars"
bars = {f"CNN {name}": meter.at_peak for name, meter in cnn.items()}
bars |= {f"GPT {name}": meter.at_peak for name, meter in gpt.items()}
show(
    tenant_bars(bars, TENANTS, "Who holds memory at the peak of a training step"),
    "Bars by tenant: 16 bits shrink the activations of both models; parameters and optimizer state stay as they were.",
)

# %% name="claims_memory"
for subject, runs in {"CNN, batch 256": cnn, "GPT, 8 x 128 tokens": gpt}.items():
    saving = runs["FP32"].peak_bytes / runs[HALF].peak_bytes
    claims.record("C7", "2x less memory", f"{subject}, {HALF}, peak", saving, "x less", 1.9, math.inf)
    saving = runs["FP32"].largest["activations"] / runs[HALF].largest["activations"]
    claims.record("C7", "2x less memory", f"{subject}, {HALF}, activations", saving, "x less", 1.9, math.inf)
print(claims)

# %% [markdown] name="gpt_explained"
# (C7 is the claim's number in this course's list. It counts as *held* from 1.9x: rounding is allowed for, nothing more.)
#
# A factor of two was promised; neither peak gets there. **Mixed precision halves what becomes 16-bit, and nothing else.** Optimizer state needs other
# tools ([[lean_optimizers]]), and so do the remaining activations ([[activation_checkpointing]]).

# %% [markdown] name="speed_text"
# ## 6 · What it costs or saves in time
#
# The other half of the promise: "2x faster". Speed comes from hardware that multiplies 16-bit numbers: tensor cores on a GPU, AMX or AVX-512 BF16 on
# a CPU. Where there is no hardware for a format, the library converts back and forth, at a price.
#
# Faster than what? NVIDIA GPUs since Ampere can also compute an FP32 product in **TF32**: the inputs are rounded to 10 fraction bits, the sum and the
# result are FP32. By default PyTorch does so in convolutions and not in matrix products, so "FP32" can mean two things in one model. Below, FP32 means
# FP32 (`fp32_computed_as("ieee")`), and TF32 has a row of its own where the GPU has it. Each format takes turns with FP32, so that both suffer the same
# disturbances.
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
timed = subjects | {"CNN, batch 16": (lambda: SmallCNN(32), images[:16], labels[:16])}
lines = [(subject, HALF, half, "ieee") for subject in subjects]
if has_tf32(device):
    lines = [(subject, "TF32", FP32, "tf32") for subject in subjects] + lines
if half != FP16:  # a device without units for it is slow: fewer images will do
    lines.append(("CNN, batch 16", "FP16", FP16, "ieee"))
for subject, name, dtype, fp32 in lines:
    with sign_of_life(f"{subject}, FP32 and {name}"):
        right, other = step_of(*timed[subject], FP32), step_of(*timed[subject], dtype, fp32)
        exact = right()
        off = ((other() - exact).norm() / exact.norm()).item()
        timing = compare(right, other, runs=3, warmup=0)
    if (subject, name) == ("CNN, batch 64", HALF):
        speed_guess.reveal(timing.speedup)
    print(f"{subject:20} FP32 -> {name}: {timing}; the first gradient is off by {off:.1e}")
    claims.record("C7", "2x faster", f"{subject}, {name}", timing.speedup, "x as fast", 1.8, math.inf)
if not has_tf32(device):
    print("no line for TF32: it needs an NVIDIA GPU of compute capability 8.0 or more")
print("FP32 on a GPU that has it, by default:", ", ".join(f"{what} in {how}" for what, how in fp32_precision().items()))

# %% [markdown] name="speed_explained"
# A line above 1x says that your device has hardware for the format and that this model is large enough to feed it. On a CPU, a line far below 1x
# means that it does not: every 16-bit number is converted before and after each operation. On a GPU it can also mean that the model is too small, and that
# the step waits for kernel launches. TF32 saves no bytes, and its gradient should be as near as FP16's: both have
# 10 fraction bits.
#
# To train in TF32 with nothing else changed, write `torch.set_float32_matmul_precision("high")`. Newer names for the same are
# `torch.backends.cuda.matmul.fp32_precision = "tf32"` for products and `torch.backends.cudnn.conv.fp32_precision` for convolutions. Use one generation of names: reading
# an old one after a new one has been set can raise an error.

# %% [markdown] name="underflow_text"
# ## 7 · FP16 loses small gradients
#
# Anything of 2⁻²⁵ or less becomes zero in FP16. Are real gradients that small? It depends on how the loss is averaged. Take a network that removes noise
# from the digits. Its loss is a mean over all pixels of a batch, and in a model with several tasks such a term gets a small weight, say 0.0001. Each
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

# %% [markdown] name="guess_underflow_text"
# **Predict.** What share of these gradients is lost in FP16, as they are? And times 2¹²?

# %% name="guess_underflow"
my_guess = None  # %, as they are
### BEGIN GUESS
my_guess = 100  # 2^-25 is 3e-8, and the largest is not above it
### END GUESS
bare_guess = Prediction("Gradients lost in FP16", my_guess, "%")
my_guess = None  # %, times 2^12
### BEGIN GUESS
my_guess = 5  # 4,096 times larger: only the smallest few
### END GUESS
scaled_guess = Prediction("Gradients lost in FP16 when multiplied by 4,096", my_guess, "%")

# %% name="underflow"
lost = {2**n: 100 * ((gradients[gradients != 0] * 2.0**n).half() == 0).float().mean().item() for n in (0, 4, 8, 12, 16)}
bare_guess.reveal(lost[1])
scaled_guess.reveal(lost[2**12])
print({f"times {scale:,}": f"{share:.1f} %" for scale, share in lost.items()})

# %% [markdown] name="control_text"
# ### Four runs, side by side
#
# Train the denoiser in FP16 and do nothing about it. Beside it, train the same network in FP32, in BF16, and in FP16 with a scaler.
#
# **Predict.** Which of the four does not learn? And of all weight gradients in FP16 without a scaler, how many are zero?

# %% name="guess_control"
my_guess = None  # %
### BEGIN GUESS
my_guess = 100  # a sum of zeros is zero
### END GUESS
control_guess = Prediction("Zero weight gradients, FP16 without a scaler", my_guess, "%")


# %% name="train_denoiser"
def train_denoiser(dtype, scaler=None, epochs=3):
    """Train; return the mean error of the first and the last epoch, and the share of zeros among gradients, in %."""
    model = make_denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
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
    epoch = len(errors) // epochs
    return sum(errors[:epoch]) / epoch, sum(errors[-epoch:]) / epoch, 100 * sum(zeros) / len(zeros)


# %% name="control"
with sign_of_life("four trainings"):
    runs = {
        "FP32": train_denoiser(FP32),
        "BF16": train_denoiser(BF16),
        "FP16, no scaler": train_denoiser(FP16),
        "FP16, GradScaler": train_denoiser(FP16, torch.amp.GradScaler(device.type)),
    }
control_guess.reveal(runs["FP16, no scaler"][2])
for name, (first, last, zeros) in runs.items():
    print(f"{name:17} error, first and last epoch: {first:.3f} -> {last:.3f}   zero gradients: {zeros:.1f} %")

# %% [markdown] name="control_explained"
# No error message, no NaN: FP16 without a scaler does not learn, because all its gradients are zero. BF16 has FP32's range and needs nothing. With a
# scaler, FP16 learns just as FP32 does.
#
# **Predict.** Would you have noticed on the digits classifier? What accuracy does it reach in FP16 without a scaler, in two epochs?

# %% name="guess_survivor"
my_guess = None  # %
### BEGIN GUESS
my_guess = 90  # its loss is a plain mean over 128 images
### END GUESS
survivor_guess = Prediction("Accuracy of the classifier, FP16 without a scaler", my_guess, "%")

# %% name="survivor"
with sign_of_life("two epochs in FP32 and in FP16"):
    survivors = {name: train_cnn(dtype, epochs=2) for name, dtype in {"FP32": FP32, "FP16, no scaler": FP16}.items()}
survivor_guess.reveal(100 * survivors["FP16, no scaler"][1])
for name, (losses, accuracy) in survivors.items():
    print(f"{name:16} loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {accuracy:.1%}")

# %% [markdown] name="survivor_explained"
# With a plain mean over 128 images the gradients are large enough, and nothing goes wrong. That is what makes the mistake nasty. It is there all along and
# shows up only when a loss is averaged over more elements, or weighted less.

# %% [markdown] name="explorer_text"
# ### Play: find the right loss scale
#
# The histogram is of the denoiser's real gradients. Move the slider until nothing is lost and nothing overflows. How much
# room is there, in powers of two? (The scaler below will find less: weight gradients are sums over many of these, and overflow sooner.)

# %% name="explorer"
explore_loss_scale(gradients, log2_scale=0)

# %% [markdown] name="scaling_text"
# ## 8 · Loss scaling, by hand and automatic
#
# The gradient is linear in the loss. Multiply the loss by S, and every gradient on the way is S times larger and stays above FP16's floor; divide by S once
# they are FP32 weight gradients, and the update is the one you wanted.
#
# **Predict.** Below, the scale goes from 2⁰ to 2⁴⁰. At 2¹⁶, how far is the gradient from FP32's, relatively?

# %% name="guess_scaling"
my_guess = None
### BEGIN GUESS
my_guess = 0.001  # FP16 has 10 fraction bits
### END GUESS
scaling_guess = Prediction("Relative error of the gradient at a loss scale of 2^16", my_guess, "")

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
scaling_guess.reveal(errors[16])
for exponent, error in errors.items():
    print(f"FP16, loss scale 2^{exponent:<3} relative error of the gradient: {error:.4f}")

# %% [markdown] name="dynamic_text"
# Too small a scale loses gradients, too large a scale turns them into inf, and in between is a wide plateau where any scale is as good as another. So there is no need
# to search for the best. Start high. Whenever an inf or NaN turns up, skip that step and halve the scale. After many good steps in a row, double it. That is
# **dynamic loss scaling**, and `torch.amp.GradScaler` does it. Here are its defaults, read from the object:

# %% name="scaler_defaults"
scaler = torch.amp.GradScaler(device.type)
print(f"start {scaler.get_scale():g}, back off x{scaler.get_backoff_factor():g}")
print(f"grow x{scaler.get_growth_factor():g} after {scaler.get_growth_interval()} good steps")

# %% [markdown] name="guess_skips_text"
# **Predict.** Let it start at 2⁴⁴, far too high, and grow after 12 good steps. In 60 steps, how many are skipped?

# %% name="guess_skips"
my_guess = None
### BEGIN GUESS
my_guess = 15  # some 12 halvings until the gradients fit, then one in a dozen
### END GUESS
skips_guess = Prediction("Steps skipped of 60", my_guess, "")

# %% name="scaler_at_work"
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**44, growth_interval=12)
model = make_denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scales, skipped = [], []
with sign_of_life("60 steps in FP16"):
    for step in range(60):
        optimizer.zero_grad()
        loss, error = denoise_loss(model, data.train_x[:64], FP16)
        scales.append(scaler.get_scale())  # before `update` may change it
        scaler.scale(loss).backward()
        before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        if (before == model[0].weight).all():
            skipped.append(step)
skips_guess.reveal(len(skipped))

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
# The first steps are thrown away, each halving the scale, until the gradients fit. From then on it feels its way up and is pushed back now and then. A
# skipped step moves no weights. (A learning-rate scheduler that steps anyway gets ahead of the weights by that one step.)

# %% [markdown] name="clipping_text"
# ## 9 · Clipping comes after unscaling
#
# Gradient clipping limits the norm of the gradient. With a scaler, `.grad` holds the gradient times the scale. Clip that as it stands, to
# norm 0.01, let the scaler divide, and the step is not the one you meant. Try it with SGD, which moves by the gradient, and with Adam, which normalises it.
#
# **Predict.** How many times too short is the step of SGD? And of Adam?

# %% name="guess_clipping"
my_guess = None  # SGD
### BEGIN GUESS
my_guess = 65536  # a gradient of norm 0.01, divided by the scale
### END GUESS
sgd_guess = Prediction("SGD: right step / step when clipped without unscaling", my_guess, "")
my_guess = None  # Adam
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
sgd_guess.reveal(steps["SGD, lr 1"][0] / steps["SGD, lr 1"][1])
adam_guess.reveal(steps["Adam, lr 0.001"][0] / steps["Adam, lr 0.001"][1])
for name, (right, wrong) in steps.items():
    print(f"{name:15} unscale_, then clip: moved by {right:.2g}   clip without unscaling: moved by {wrong:.2g}")

# %% [markdown] name="clipping_explained"
# SGD hardly moves when the scaled gradient is clipped. Adam divides each gradient by its own size, so it still moves, and the mistake is easy to
# overlook. What is lost is lost to `eps`, the small number that keeps it from dividing by zero, as the last line shows.
#
# The order is always `scale(loss).backward()` → `unscale_(optimizer)` → clip → `step(optimizer)` → `update()`. Under `DistributedDataParallel`
# nothing changes: the gradients that travel between GPUs are the scaled ones, the same scale on every rank, and an inf on one rank becomes an inf on
# all, so all of them skip together ([[data_parallel]] shows it).

# %% [markdown] name="bf16_text"
# ## 10 · BF16: no scaler, fewer digits
#
# BF16 needs no scaling: in the control above it learnt just as FP32 did. It has eight binary digits where FP32 has 24. Under autocast that hardly matters,
# since weights and sums stay in FP32. With *weights* in BF16 it matters when the learning rate is small; [[number_formats]] measured what is lost there, and
# how stochastic rounding or a kept remainder brings it back.
#
# ## 11 · What tutorials warn of
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
# **The loss in 16 bits.** Take a cross-entropy over a vocabulary of 50,000, averaged over 64 rows of the same logits. Everything from the softmax to
# the mean is done once in FP32 and once in each 16-bit format.
#
# **Predict.** How far off, relatively, is the loss in BF16?

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
# **Predict.** How far apart, relatively, are the gradients with `backward()` inside and outside of the region?

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

# %% [markdown] name="custom_function_text"
# With PyTorch's own operations it does no harm. (If even the same gradient taken twice differs, a GPU added up in another order.) Autograd has recorded
# each operation with its casts, and the backward formulas get their dtypes from there.
#
# A formula of **your own** has no such record. A `torch.autograd.Function` whose author counts on FP32 gets 16-bit products wherever autocast is
# on: in its forward pass, and in its backward pass if that runs inside the region. Here is one.


# %% name="gram"
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


# %% [markdown] name="safe_task"
# ### Your turn: make it safe
#
# **Contract.** `safe(function, device_type)` takes a subclass of `torch.autograd.Function` and returns a new one.
#
# - Under autocast its forward pass gets its 16-bit and FP32 tensors in FP32 and computes in FP32. Other arguments, such as indices, stay as they are.
# - Its backward pass computes in FP32 as well, whether `backward()` runs inside the region or outside.
# - Without autocast it does what `function` does: 16-bit inputs are not cast. `function` itself stays as it was.
# - A Function may have several inputs and outputs. Each call of `safe` makes a class of its own.
#
# `torch.amp.custom_fwd` and `torch.amp.custom_bwd` are made for it. They are usually written as decorators above `forward` and `backward`; here the two exist
# already, so call them. Wrap their results in
# `staticmethod(...)`.


# %% name="safe" answer=true reveal=true
def safe(function, device_type):
    ### BEGIN SOLUTION
    forward = torch.amp.custom_fwd(function.forward, device_type=device_type, cast_inputs=torch.float32)
    backward = torch.amp.custom_bwd(function.backward, device_type=device_type)

    class Safe(torch.autograd.Function):
        pass

    Safe.forward, Safe.backward = staticmethod(forward), staticmethod(backward)
    return Safe
    ### END SOLUTION


# %% name="safe_check"
safe = check("mixed_precision.safe", safe)

# %% name="safe_hint"
hint("mixed_precision.safe")

# %% [markdown] name="guess_gram_text"
# **Predict.** Under autocast with `backward()` inside, how far is the gradient of `Gram` from FP64's, relatively?

# %% name="guess_gram"
my_guess = None
### BEGIN GUESS
my_guess = 2e-3  # BF16 has 8 binary digits
### END GUESS
gram_guess = Prediction("Gram, backward inside: gradient off by", my_guess, "")


# %% name="gram_measured"
def gram_errors(function, inside):
    """Return how far value and gradient are from FP64's, relatively."""
    torch.manual_seed(0)
    x = torch.randn(64, 128, device=device, requires_grad=True)
    with theirs():
        gram = function.apply(x)
        if inside:
            gram.sum().backward()
    if not inside:
        gram.sum().backward()
    wide = x.detach().cpu().double()
    truth = {gram: wide @ wide.T, x.grad: 2 * wide.sum(0).expand_as(wide)}
    return [((t.detach().cpu() - exact).norm() / exact.norm()).item() for t, exact in truth.items()]


gram_guess.reveal(gram_errors(Gram, inside=True)[1])
for name, function in {"Gram": Gram, "safe(Gram)": safe(Gram, device.type)}.items():
    for place, inside in {"inside": True, "outside": False}.items():
        value, gradient = gram_errors(function, inside)
        print(f"{name:10} backward {place:7}: value off by {value:.0e}, gradient off by {gradient:.0e}")

# %% [markdown] name="table_text"
# ## 12 · What was said, and what you have measured

# %% name="claims_table"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Autocast is a list and a cast on the way in. What is on no list follows its inputs, so a residual stream that begins in FP32 stays there.
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
