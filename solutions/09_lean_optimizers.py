# %% [markdown] name="title"
# # Lean optimizers
#
# **An optimizer's state, the temporaries of its step, and the lifetime of gradients are three separate memory costs, and you can lower each on its own.**
#
# | | |
# |---|---|
# | After this you can | predict the bytes of an optimizer's state; store its moments in 8 bits, block by block, and say which codebook works; choose between for-loop, foreach and fused; take the step inside the backward pass, and say what that rules out |
# | Time | 90 to 115 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one. bitsandbytes and torchao are optional |
# | Before this | labs [[#start_here]] and [[#where_memory_goes]]; [[number_formats]] helps |
# | Syllabus | T13, C11 |
#
# This lab counts bytes. [[Muon_and_in_place]] asks whether a model trains as well with a leaner optimizer.

# %% name="setup" setup=true
import gc
import importlib.util
import math
import weakref

from helpers import (
    CATEGORIES,
    COLORS,
    Claims,
    GiB,
    MatricesAndRest,
    MemoryMeter,
    MiB,
    Prediction,
    Recipe,
    SmallGPT,
    category_bars,
    check,
    compare,
    device_name,
    english,
    explore,
    hint,
    human_bytes,
    pick_device,
    planned,
    show,
    show_table,
    sign_of_life,
    state_bytes,
    static_bars,
)

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · What an optimizer remembers
#
# - **SGD** keeps nothing: it follows the gradient.
# - **Momentum** keeps a decaying sum of the gradients: one number per weight. **Lion** also keeps one, and uses only the sign of its update.
# - **Adam** also keeps a running average of the squared gradient, so that the size of a step hardly depends on the size of the gradient: two numbers per weight.
# - **Adafactor** has no momentum here, and replaces Adam's second number with one mean per row of a matrix and one per column.
# - **GaLore** projects the gradient of a matrix onto *k* directions and keeps Adam's two numbers there.
# - **Muon** keeps only momentum, and turns the momentum of a matrix into a step in which no direction dominates ([[muon_and_in_place]]). Parameters that are not matrices go to AdamW.
#
# Each number takes 4 bytes in FP32 and stays in memory for the whole training run. Together they are the *optimizer state*. AdamW's takes 8 bytes per parameter ([[where_memory_goes]]).
#
# **Predict.** How many bytes per parameter does Adafactor's state take? The model is a GPT of 3 million parameters; its large matrices are 256 × 768 and 256 × 1,024.

# %% name="guess_state"
my_guess = None  # bytes per parameter, Adafactor
### BEGIN GUESS
my_guess = 0.03  # 4 x (256 + 1,024) bytes for a matrix of 256 x 1,024 numbers is 0.02; smaller ones cost more
### END GUESS
adafactor_guess = Prediction("State of Adafactor", my_guess, "bytes per parameter")

# %% [markdown] name="state_text"
# `MatricesAndRest` gives matrices to Muon and the other parameters to AdamW. (The usual recipe also leaves the embedding and the output layer to AdamW; here Muon gets every matrix.) `state_bytes` adds up what an optimizer keeps.
#
# The GPT gets 16 tokens, so weights dominate and activations are small. `foreach` is the subject of section 3 and does not change the state. Lion and GaLore are not part of PyTorch, so the table has only their formulas.

# %% name="state"
OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2, foreach=False),
    "SGD, momentum": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, foreach=False),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3, foreach=False),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2, foreach=False),
    "Muon and AdamW": lambda ps: MatricesAndRest(
        ps,
        lambda matrices: torch.optim.Muon(matrices, ns_steps=1),  # the state does not depend on this number
        lambda rest: torch.optim.AdamW(rest, lr=1e-3, foreach=False),
    ),
}

# %% name="gpt"
text = english(device)
ids, next_ids = text.train_x[:16].clone()[None], text.train_y[:16].clone()[None]


def make_gpt():
    torch.manual_seed(0)
    return SmallGPT(layers=4, width=256).to(device)


def backward(model, x, y):
    loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    loss.backward()
    return loss.detach()


# %% name="state_measured"
FORMULA = {  # bytes for a parameter; the `4 +` is a step counter
    "SGD": lambda p: 0,
    "SGD, momentum": lambda p: 4 * p.numel(),
    "AdamW": lambda p: 4 + 8 * p.numel(),
    "Adafactor": lambda p: 4 + 4 * (sum(p.numel() // n for n in p.shape[-2:]) if p.dim() > 1 else p.numel()),
    "Muon and AdamW": lambda p: 4 * p.numel() if p.dim() == 2 else 4 + 8 * p.numel(),
    "Lion": lambda p: 4 * p.numel(),
    # the projection, and two moments of the projected gradient; AdamW for what is not a matrix
    "GaLore, rank 64": lambda p: 4 * 64 * (min(p.shape) + 2 * max(p.shape)) if p.dim() == 2 else 4 + 8 * p.numel(),
}
phi = sum(p.numel() for p in make_gpt().parameters())


def state_of(name):
    """Return the bytes of state per parameter, after one step."""
    model = make_gpt()
    optimizer = OPTIMIZERS[name](model.parameters())
    backward(model, ids, next_ids)
    optimizer.step()
    return state_bytes(optimizer) / phi


with sign_of_life("a step of each optimizer"):
    state = {name: state_of(name) for name in OPTIMIZERS}
adafactor_guess.reveal(state["Adafactor"])
table = [("bytes per parameter", "by formula", "measured")]
for name, formula in FORMULA.items():
    found = f"{state[name]:.4f}" if name in state else "-"
    table.append((name, f"{sum(map(formula, make_gpt().parameters())) / phi:.4f}", found))
show_table(table)
unfactored = sum(4 * p.numel() for p in make_gpt().parameters() if p.dim() < 2) / phi
print(f"biases and norms (not factored): {unfactored:.4f} bytes per parameter of Adafactor's state")

# %% [markdown] name="state_explained"
# The formulas agree with the measured figures in every digit shown.
#
# - Adafactor reconstructs the second moment from the means of its rows and columns. For a matrix of *r* × *c* it keeps *r* + *c* numbers, which is almost nothing, where Adam keeps 2·*r*·*c*. Parameters that are not matrices are not factored, and they make up nearly half of its state here.
# - Muon needs as much as momentum. Most of a transformer's parameters are in matrices, so this is half of Adam's state.
#
# ### "SGD instead of Adam saves two thirds of the optimizer memory"
#
# Many articles claim this. Two thirds of what? You can count the state alone, the state with the FP32 master weights of mixed precision ([[where_memory_goes]]), or everything static: FP32 weights, gradients and state. And two optimizers are called SGD, one with momentum and one without.
# That makes six cases:

# %% name="count_ways"
COUNTED = {"state only": 0, "with master weights": 4, "weights, gradients, state": 8}  # bytes besides the state
for way, more in COUNTED.items():
    for name in ("SGD", "SGD, momentum"):
        saved = 100 * (1 - (more + state[name]) / (more + state["AdamW"]))
        claims.record("C11", "SGD saves two thirds of the optimizer memory", f"{name}, {way}", saved, "%", 63, 70)
print(claims)

# %% [markdown] name="count_explained"
# (C11 is the claim's number in this course's list; here the claim *holds* if the saving is between 63% and 70%.) Two thirds is right in one case, *plain* SGD with the master weights: 4 is a third of 12. SGD with momentum, which is what people usually mean by SGD, saves half of the state, and a quarter of everything static. So give bytes per parameter, not a percentage.
#
# ## 2 · The same state in fewer bits
#
# ### BF16 moments
#
# The simplest way to halve the state is to store the moments in BF16. The second moment is an average: each step multiplies it by β₂ and adds (1 − β₂)·g². With PyTorch's default of 0.999 it cannot decay in BF16, because 0.999·v rounds back to v ([[number_formats]]). With 0.997, each step takes away three times as much. Here the second moment starts at 1, and the gradient is 0 for 1,000 steps:

# %% name="bf16_moment"
averages = {dtype: torch.ones(4, dtype=dtype, device=device) for dtype in (torch.float32, torch.bfloat16)}
for _ in range(1000):
    for average in averages.values():
        average.mul_(0.997)
stuck_at = averages[torch.bfloat16][0].item()
print(f"after 1,000 steps: {averages[torch.float32][0].item():.3f} in FP32, {stuck_at:.3f} in BF16")
half_a_gap = torch.finfo(torch.bfloat16).eps / 4
print(f"the next step would take away {0.003 * stuck_at:.6f}; half a gap between 0.5 and 1: {half_a_gap:.6f}")

# %% [markdown] name="blocks_text"
# In BF16 it gets stuck at about two thirds. A step removes a fixed share of v, but BF16's numbers between 0.5 and 1 are all 1/256 apart. Below 0.65 a share of 0.3% is less than half of that gap, so 0.997·v rounds back to v. A second moment in BF16 can therefore grow but hardly shrink, and after a few large gradients the steps of a weight stay too small. Either store it with **stochastic rounding** ([[number_formats]]), or use a format with its own scale:
#
# ### 8 bits, block by block
#
# **8-bit optimizers** store a moment like this:
#
# 1. Cut the tensor into blocks of 256 contiguous numbers.
# 2. The **scale** of a block is its largest magnitude, in FP32. Dividing by it brings all numbers in the block between -1 and 1.
# 3. A **codebook** lists 256 values in that range. For each number, store the index of the nearest value: one byte, its **code**.
#
# Each step decodes the moment to FP32, updates it and encodes it again. A number that changes too little, relative to its block, keeps its code, as in BF16. But the scale is in FP32: when a whole block decays, its codes stay and its scale shrinks.
#
# Here are two codebooks for each moment: one with equal steps, and one in which each value is the one before it times a fixed *factor*.


# %% name="books"
def equal_steps(signed):
    return torch.linspace(-1 if signed else 0, 1, 255 if signed else 256).to(device)


def equal_factors(signed, smallest):
    positive = torch.logspace(math.log10(smallest), 0, 127 if signed else 255)
    zero = torch.zeros(1)
    return torch.cat([-positive.flip(0), zero, positive] if signed else [zero, positive]).to(device)


BOOKS = {  # of the first moment, which has signs, and of the second, which has none
    "equal steps": (equal_steps(True), equal_steps(False)),
    "equal factors": (equal_factors(True, 1e-4), equal_factors(False, 1e-7)),
}
for name, (_, second) in BOOKS.items():
    print(f"{name:14} second moment: " + ", ".join(f"{value:.3g}" for value in second[:4].tolist()) + ", ..., 1")

# %% [markdown] name="blocks_task"
# ### Your turn: encode and decode
#
# **Contract.** `encode(x, book, block)` returns a pair, `codes` and `scales`. `decode(codes, scales, book, block, shape)` returns the tensor.
#
# - `x` is FP32, of any shape, contiguous or not, and is not changed. `book` (up to 256 values) is in ascending order and on the same device.
# - Blocks are cut from the flattened tensor. The last one may be shorter.
# - `scales` (blocks,), FP32: the largest magnitude of each block.
# - `codes` (numbers,), `torch.uint8`: for each number the index in `book` of the value nearest to number / scale.
# - A block of zeros has a scale of 0 and decodes to zeros. A block of numbers near 1e-12 keeps its relative precision.
# - `encode` never holds more than 40 bytes per number. (A table of all distances would take 1,024.)
# - `decode` returns FP32 of the given `shape`: the book's value for each code, times the scale of its block.


# %% name="blocks" answer=true reveal=true
def encode(x, book, block):
    ### BEGIN SOLUTION
    flat = x.flatten()
    blocks = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scales = blocks.abs().amax(1)
    scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    borders = (book[1:] + book[:-1]) / 2  # halfway between neighbors
    codes = torch.bucketize(scaled, borders, out_int32=True)
    return codes.flatten()[: len(flat)].to(torch.uint8), scales
    ### END SOLUTION


def decode(codes, scales, book, block, shape):
    ### BEGIN SOLUTION
    scale_of_each = scales.repeat_interleave(block)[: len(codes)]
    return (book[codes.int()] * scale_of_each).view(shape)
    ### END SOLUTION


# %% name="blocks_check"
encode, decode = check("lean_optimizers.blocks", encode, decode)

# %% name="blocks_hint"
hint("lean_optimizers.blocks")

# %% [markdown] name="guess_zero_text"
# Adam divides by the square root of the second moment. If the second moment rounds to zero, Adam divides by almost zero.
#
# **Predict.** With equal steps and blocks of 256, what percentage of the numbers in a real second moment decode to zero? Gradients within a block differ by a factor of ten or more, and the second moment holds their squares.

# %% name="guess_zero"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 5  # below half a step, 1/510 of the largest: a gradient of less than a 22nd
### END GUESS
zero_guess = Prediction("Second moments that decode to zero, equal steps", my_guess, "%")


# %% name="books_compared"
def ten_steps(make_optimizer):
    """Train the GPT for ten steps; return its largest matrix, the optimizer and the losses."""
    model, losses = make_gpt(), []
    optimizer = make_optimizer(model.parameters())
    for start in range(0, 640, 64):
        x, y = (t[start : start + 64].clone()[None] for t in (text.train_x, text.train_y))
        losses.append(backward(model, x, y).item())
        optimizer.step()
        optimizer.zero_grad()
    return max(model.parameters(), key=torch.numel), optimizer, losses


largest, optimizer, _ = ten_steps(lambda ps: torch.optim.AdamW(ps, fused=True))
v = optimizer.state[largest]["exp_avg_sq"]
lost = {}
table = [("codebook", "block", "bytes per number", "decode to 0", "median error")]
for name, (_, book) in BOOKS.items():
    for block in (256, v.numel()):
        codes, scales = encode(v, book, block)
        back = decode(codes, scales, book, block, v.shape)
        lost[name, block] = 100 * (back[v > 0] == 0).float().mean().item()
        error = ((back - v).abs() / v)[v > 0].median().item()
        size = "whole tensor" if block > 256 else f"{block}"
        stored = (codes.nbytes + scales.nbytes) / v.numel()
        table.append((name, size, f"{stored:.4f}", f"{lost[name, block]:.1f}%", f"{error:.1%}"))
show_table(table)
zero_guess.reveal(lost["equal steps", 256])

# %% name="books_figure"
share = (v.flatten().view(-1, 256) / v.flatten().view(-1, 256).amax(1, keepdim=True)).flatten()
figure = Figure(figsize=(7.5, 3), layout="constrained")
axes = figure.add_subplot()
axes.hist(share[share > 0].log10().cpu().numpy(), bins=80, color=COLORS[0])
for (name, (_, book)), color in zip(BOOKS.items(), COLORS[3:], strict=False):
    axes.axvline(math.log10(book[1].item() / 2), color=color, lw=2, label=f"{name}: zero to the left of this")
axes.set(title="Adam's second moment, as a share of its block's largest", xlabel="power of ten", ylabel="numbers")
axes.legend(frameon=False)
show(
    figure,
    "A broad hump over several powers of ten. Its left tail crosses the line of equal steps; nothing reaches that of equal factors.",
)

# %% [markdown] name="books_explained"
# - Equal steps represent the largest numbers of a block well and lose the smallest: a few percent here. With one scale for the full tensor they lose nearly half.
# - Equal factors give each number the same *relative* error and lose none. That is the difference between integers and floating point ([[number_formats]]), and why 8-bit optimizers have codebooks that are dense near zero.
# - The median error does not tell the two codebooks apart. The few percent of zeros do.
#
# The blocks' scales cost 4 / 256 bytes per number. Blocks limit the effect of an outlier to its block.
#
# ### Your turn: Adam with 8-bit moments
#
# Adam keeps exponential moving averages of *g* and *g*², and its step divides the first by the root of the second. *t* counts the steps of this parameter:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\,g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \qquad p \leftarrow p - \text{lr} \cdot \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \varepsilon}$$
#
# `adam_` below does this in place for one parameter, and `step` calls `update` for each parameter that has a gradient. Write `update`: get the moments from the state, call `adam_`, and store the moments again.
#
# **Contract.** `step()` updates all parameters by these formulas, with `books` (of *m*, of *v*) and blocks of 256.
#
# - The update uses *m* and *v* as just computed, in FP32. They are encoded afterwards. The next step starts from the decoded values, or from zeros if there are none.
# - `lr`, `betas` and `eps` come from the parameter's group in each step, because a schedule may have changed them.
# - For a tensor of 4,096 numbers or more, `self.state[p]` has codes and scales, and nothing else that is large. A smaller tensor keeps FP32 moments there and is updated exactly as by Adam.
# - Only one parameter at a time is decoded: with 24 equal tensors, a step holds at most 14 FP32 copies of one of them.
# - In a step in which a parameter has no gradient, neither the parameter nor its moments change, and its *t* does not count that step.
# - The gradients are not changed.


# %% name="adam" answer=true reveal=true
def adam_(p, m, v, t, group):
    """Take step `t` of Adam with the settings of `group`: update `p` and its moments `m` and `v`, in place."""
    beta1, beta2 = group["betas"]
    m.lerp_(p.grad, 1 - beta1)
    v.lerp_(p.grad.square(), 1 - beta2)
    root = (v / (1 - beta2**t)).sqrt_().add_(group["eps"])
    p.addcdiv_(m, root, value=-group["lr"] / (1 - beta1**t))


class Adam8(torch.optim.Optimizer):
    """Adam that stores its moments in 8 bits."""

    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books = books

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                self.update(p, self.state[p], group)

    def update(self, p, state, group):
        """Step number `state["step"]` of `p`; its moments are in `state` from one step to the next."""
        ### BEGIN SOLUTION
        moments = []
        for name, book in zip("mv", self.books, strict=True):
            moment = state.get(name)
            if moment is None:
                moment = torch.zeros_like(p)
            elif p.numel() >= 4096:
                moment = decode(*moment, book, 256, p.shape)
            moments.append(moment)
        adam_(p, *moments, state["step"], group)
        for name, book, moment in zip("mv", self.books, moments, strict=True):
            state[name] = encode(moment, book, 256) if p.numel() >= 4096 else moment
        ### END SOLUTION


# %% name="adam_check"
Adam8 = check("lean_optimizers.adam", Adam8)

# %% name="adam_hint"
hint("lean_optimizers.adam")

# %% [markdown] name="others_text"
# ### Its size, and existing implementations
#
# Two libraries have such an optimizer. Like yours, they do not quantize tensors with fewer than 4,096 numbers: biases and norms take few bytes and are sensitive.
#
# - **bitsandbytes**: `AdamW8bit`, blocks of 256, and a codebook that is dense near zero.
# - **torchao**: also `AdamW8bit`, and `AdamW4bit` with blocks of 128 and a codebook of 16 values: 2 × (½ + 4/128) bytes per number. It compiles its step with `torch.compile`, which takes some time for each shape. PyTorch's compiler stance `force_eager` runs it uncompiled: the same state, with larger temporaries.

# %% name="ready_made"
HAS_BNB, HAS_TORCHAO = (importlib.util.find_spec(name) is not None for name in ("bitsandbytes", "torchao"))
print(f"bitsandbytes: {'yes' if HAS_BNB else 'not installed'}, torchao: {'yes' if HAS_TORCHAO else 'not installed'}")
OPTIMIZERS["Adam8"] = lambda ps: Adam8(ps, BOOKS["equal factors"])
if HAS_BNB:
    import bitsandbytes as bnb

    OPTIMIZERS["AdamW 8-bit, bnb"] = lambda ps: bnb.optim.AdamW8bit(ps, lr=1e-3)
if HAS_TORCHAO:
    with sign_of_life("loading torchao"):
        from torchao import optim as low_bit

    torch.compiler.set_stance("force_eager")  # until its last step, in section 3
    OPTIMIZERS["AdamW 4-bit, torchao"] = lambda ps: low_bit.AdamW4bit(ps, lr=1e-3)
FEW_BITS = [name for name in OPTIMIZERS if name not in FORMULA]
for name in FEW_BITS:
    state[name] = state_of(name)
    print(f"{name:22}{state[name]:.4f} bytes per parameter")

# %% name="state_figure"
show(
    static_bars(state),
    "Equal bars of weights and gradients, and on top the state: most for AdamW, nearly none for Adafactor, a little for 8 bits.",
)

# %% [markdown] name="quality_text"
# On average, 8-bit Adam keeps a little more than 2 × (1 + 4/256) bytes per parameter. It would be much more for a network of many small tensors.
#
# ### The same bytes, the other codebook
#
# Train the GPT for ten steps with each codebook. A uniform guess over the 256 byte values has a loss of ln 256, which is 5.5.

# %% name="control"
for name, books in BOOKS.items():
    _, trained, losses = ten_steps(lambda ps, books=books: Adam8(ps, books))
    largest_weight = max(p.abs().max().item() for group in trained.param_groups for p in group["params"])
    print(f"losses with {name:14}" + ", ".join(f"{loss:.2f}" for loss in losses))
    print(f"   afterwards, the weights have magnitudes up to {largest_weight:.3g}")

# %% [markdown] name="moment_idea_text"
# A few percent of the second moments decode to zero. The next step adds only (1 − β₂)·g² to such a zero. If that gradient is small, the root of this number is far below *m*, which still remembers larger gradients, and the update *m* / √v moves a weight much too far: the largest weight shows it, and the loss rises again. The median error did not show this.
#
# With equal factors the losses fall. [[Muon_and_in_place]] trains such an optimizer for longer and compares it with FP32 Adam. 8 bits also work on large models (Dettmers et al. 2022), with one exception: keep the embedding's state in 32 bits.
#
# ## 3 · Temporaries of the step
#
# The state stays in memory. While the step runs, it also needs temporaries. PyTorch has three implementations of the same update:
#
# - **for-loop**: parameter by parameter, several small kernels each;
# - **foreach**: each operation for *all* parameters at once; the default on a GPU;
# - **fused**: the full update in one kernel.
#
# They compute the same numbers up to rounding. Here are all three, for a full training step. Weights, gradients and two moments are 16 bytes per parameter.


# %% name="metered"
def metered(make_optimizer, make_model=make_gpt, x=ids, y=next_ids, inside=False):
    """Measure one full training step, after a warm-up step; `inside` takes it in the backward pass (section 4)."""
    model = make_model()
    if inside:
        optimizers, _ = step_in_backward(model.parameters(), make_optimizer)
    else:
        optimizers = [make_optimizer(model.parameters())]

    def step():
        backward(model, x, y)
        for optimizer in [] if inside else optimizers:
            optimizer.step()
        model.zero_grad()

    step()
    with MemoryMeter(model, optimizers) as meter:
        step()
    return meter


# %% name="implementations"
IMPLEMENTATIONS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
with sign_of_life("a step of each implementation"):
    implemented = {
        name: metered(lambda ps, how=how: torch.optim.AdamW(ps, **how)) for name, how in IMPLEMENTATIONS.items()
    }
for name, meter in implemented.items():
    print(f"{name:9} {meter.peak_bytes / phi:6.2f} bytes per parameter, in {meter.peak_at}")

# %% name="foreach_figure"
show(
    category_bars(
        {name: m.at_peak for name, m in implemented.items()},
        CATEGORIES,
        "AdamW's three implementations, at the peak",
    ),
    "Equal bars for parameters, gradients and state; foreach has temporaries as large as the parameters on top.",
)

# %% [markdown] name="foreach_named_text"
# What are the temporaries? The next cell lists them by the operation that made them: how many tensors, and their total size in units of the largest matrix (small entries omitted).

# %% name="foreach_named"
matrix = max(p.nbytes for p in make_gpt().parameters())


def print_moment(meter):
    """List what is alive at the peak and gone after it, by the operation that made it."""
    made = {}
    for life in meter.lifetimes:
        alive = life.start <= meter.peak_time and (life.end is None or life.end > meter.peak_time)
        if alive and life.category in ("temporaries", "kernel workspace"):
            made.setdefault(str(life.op), []).append(life.nbytes)
    for operation, sizes in made.items():
        if sum(sizes) > matrix / 100:
            print(f"   {operation:66}{len(sizes):>4} x, together {sum(sizes) / matrix:>5.2f}")


for name, meter in implemented.items():
    print(name)
    print_moment(meter)

# %% [markdown] name="foreach_explained"
# Adam's step divides by √v + ε. That root is a new tensor, because *v* itself must be kept:
#
# - `foreach` takes the roots for **all** parameters before it uses the first: one more copy of the model, 4 bytes per parameter.
# - The **for-loop** has the root of one parameter at a time, and the root divided by its correction: two tensors of the size of the largest parameter. (Other lines of the list count small ones, too.)
# - **fused** has none: the root never leaves the registers. Its peak is no longer in the step but at the end of the backward pass, where the embedding, which is used twice, adds up its two gradients.
#
# Do they take the same step, and how long does it take?
#
# **Predict.** By what factor is `fused` faster than the for-loop on your device?

# %% name="guess_fused"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1.5  # one pass over weights, gradients and state instead of several
### END GUESS
fused_guess = Prediction("AdamW's step, for-loop / fused", my_guess, "times")


# %% name="implementation_time"
def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def stepper(name):
    """Return a model with gradients, and a function that takes one optimizer step."""
    model = make_gpt()
    backward(model, ids, next_ids)
    return model, torch.optim.AdamW(model.parameters(), **IMPLEMENTATIONS[name]).step


start, moved = flat(make_gpt()), {}
for name in IMPLEMENTATIONS:
    model, step = stepper(name)
    step()
    moved[name] = flat(model) - start
for name in ("foreach", "fused"):
    off = ((moved[name] - moved["for-loop"]).norm() / moved["for-loop"].norm()).item()
    pace = compare(stepper("for-loop")[1], stepper(name)[1], runs=9)
    print(f"{name:8} off by {off:.0e} of the for-loop's step; {pace}")
fused_guess.reveal(pace.speedup)

# %% [markdown] name="implementation_explained"
# `fused` is lean and fast: it reads and writes the state once. You have to request it: `AdamW(..., fused=True)`. `foreach` was made for GPUs, where launching thousands of small kernels takes longer than their work. On a CPU it gains little or nothing.
#
# What about the 8-bit optimizers? AdamW's state is 8 bytes per parameter; yours is a little over 2. With weights and gradients that makes a little over 10. The largest matrix is a twelfth of the model, so one FP32 copy of it is 0.32 bytes per parameter of the model. **Predict** the *peak* of a full step with your `Adam8`.

# %% name="guess_peak"
my_guess = None  # bytes per parameter
### BEGIN GUESS
my_guess = 11.3  # 10.1, and about four tensors of the largest matrix's size, 0.3 each
### END GUESS
peak_guess = Prediction("Peak with Adam8", my_guess, "bytes per parameter")

# %% name="peaks"
peaks = {f"AdamW, {name}": meter for name, meter in implemented.items()}
with sign_of_life("a step of each optimizer"):
    peaks |= {name: metered(make) for name, make in OPTIMIZERS.items() if name != "AdamW"}
torch.compiler.set_stance("default")
peak_guess.reveal(peaks["Adam8"].peak_bytes / phi)
print(f"one copy of the largest matrix: {matrix / phi:.2f} bytes per parameter of the model")
table = [("bytes per parameter", "state", "transient", "in largest matrices", "PEAK", "reached in")]
for name, meter in peaks.items():
    kept, passing = meter.at_peak["optimizer state"], meter.at_peak["temporaries"] + meter.at_peak["kernel workspace"]
    figures = (kept / phi, passing / phi, passing / matrix, meter.peak_bytes / phi)
    table.append((name, *(f"{figure:.2f}" for figure in figures), meter.peak_at))
show_table(table)

# %% [markdown] name="peaks_explained"
# *Transient* memory is alive at the peak and freed after it; the next column gives it in units of the largest matrix. Because of it, the peak falls less than the state. To update a parameter, its moments are decoded to FP32 and encoded again afterwards:
#
# - On a GPU, **bitsandbytes** does both inside its kernel. Its CPU version holds several FP32 copies of the parameter.
# - **Yours** and uncompiled **torchao** hold the new moments, their roots, the scaled numbers, and codes as wide integers. Compiled, most of them stay in registers ([[compilation_and_fusion]]).
# - **Muon** holds the new momentum and a few BF16 matrices, each at most half as large.
#
# So **an optimizer with fewer bits and a poor kernel can have a higher peak than one with more bits and a better kernel**. (Compare the 4-bit with the 8-bit optimizers, if torchao is installed. Torchao's step runs uncompiled here. In practice you would compile it, and its peak would be lower; no cell tests that.) These temporaries exist for **one parameter at a time**. That is a lot here, where the largest matrix is a twelfth of the model, and little in a model of a hundred layers.
#
# With plain SGD, **gradients** are about half of the memory that is left.
#
# ## 4 · The step inside the backward pass
#
# Gradients are complete at different moments of the backward pass, those of the last layer first. All of them then wait until the end, because `optimizer.step()` comes after `backward()`. This is not necessary: a **hook** can update a parameter as soon as its gradient is complete, and free the gradient. That takes one optimizer per parameter.
#
# `p.register_post_accumulate_grad_hook(hook)` registers a function. PyTorch calls `hook(p)` when the gradient of `p` is complete. The registration returns a handle whose `.remove()` removes the hook.
#
# ### Your turn
#
# **Contract.** `step_in_backward(parameters, make_optimizer)` returns two lists, `optimizers` and `handles`.
#
# - `parameters` is an iterable of tensors; iterate over it only once, because it may be a generator. Do not touch frozen ones (`requires_grad` is False). The same parameter may appear twice: treat it once.
# - `make_optimizer([p])` makes an optimizer for the list it is given. Make one per trained parameter, once, before the first backward pass, and return them all, in any order. A schedule sets `group["lr"]` in them, and each step must use it.
# - From then on `loss.backward()` updates each parameter that gets a gradient, once, when the gradient is complete, with its own optimizer, and frees the gradient at once. `p.grad` is None afterwards, and the gradients are never all alive at once. The result equals that of one optimizer for all parameters.
# - `handles` have `.remove()`. When all are removed, `backward()` makes gradients and updates nothing.


# %% name="backward" answer=true reveal=true
def step_in_backward(parameters, make_optimizer):
    optimizers, handles = [], []
    trained = dict.fromkeys(p for p in parameters if p.requires_grad)  # each one once
    ### BEGIN SOLUTION
    for parameter in trained:
        optimizer = make_optimizer([parameter])

        def step(parameter, optimizer=optimizer):  # bound now: the loop goes on
            optimizer.step()
            optimizer.zero_grad()

        optimizers.append(optimizer)
        handles.append(parameter.register_post_accumulate_grad_hook(step))
    ### END SOLUTION
    return optimizers, handles


# %% name="backward_check"
step_in_backward = check("lean_optimizers.backward", step_in_backward)

# %% name="backward_hint"
hint("lean_optimizers.backward")

# %% [markdown] name="same_text"
# PyTorch has such a function, too, though its name still starts with an underscore. Compare yours, PyTorch's, and the step after the backward pass:


# %% name="step_inside_same"
def fused_adamw(ps):
    return torch.optim.AdamW(ps, lr=1e-3, fused=True)


def three_steps(put_inside=None):
    """Take three training steps; return the weights and how many gradients are left."""
    model = make_gpt()
    outside = [] if put_inside else [fused_adamw(model.parameters())]
    if put_inside:
        put_inside(model.parameters())
    for _ in range(3):
        backward(model, ids, next_ids)
        for optimizer in outside:
            optimizer.step()
            optimizer.zero_grad()
    return flat(model), sum(p.grad is not None for p in model.parameters())


after, _ = three_steps()
for name, put_inside in {
    "yours": lambda ps: step_in_backward(ps, fused_adamw),
    "PyTorch's": lambda ps: _apply_optimizer_in_backward(torch.optim.AdamW, ps, {"lr": 1e-3, "fused": True}),
}.items():
    weights, left = three_steps(put_inside)
    print(f"{name:10} gradients left: {left}; same weights to the last bit: {torch.equal(weights, after)}")

# %% [markdown] name="inside_text"
# The result is not an approximation: it is identical. (For a tied weight, autograd first adds up the two contributions, and the hook runs once.) What happens to the gradients' memory?

# %% name="inside_measured"
outside, inside = implemented["fused"], metered(fused_adamw, inside=True)
for name, meter in {"step after the backward pass": outside, "step inside": inside}.items():
    share = meter.largest["gradients"] / phi / 4
    there = ", ".join(f"{category} {held / phi:.2f}" for category, held in meter.at_peak.items() if held > phi / 100)
    print(
        f"{name:30} gradients alive at once: at most {share:5.0%}, peak {meter.peak_bytes / phi:5.2f} bytes per parameter"
    )
    print(f"   in {meter.peak_at}: {there}")
show(
    outside.plot("AdamW, step after the backward pass"),
    "Memory over a step, by category: gradients pile up until the end of the backward pass.",
)
show(inside.plot("AdamW, step inside"), "The same with the step inside: gradients are a series of narrow spikes.")
a_token = outside.largest["activations"] / ids.numel()
print(f"activations: {human_bytes(a_token)} per token at most; all gradients: {human_bytes(4 * phi)}")
claims.record("T13", "the step inside the backward pass lowers the peak", "GPT, 16 tokens, AdamW fused", outside.peak_bytes / inside.peak_bytes, "times", 1.05, math.inf)  # fmt: skip

# %% [markdown] name="hooks_text"
# These hooks have a side effect. What happens to a model that has them when you no longer need it? The next cell drops the last reference to a small one and runs Python's garbage collector:


# %% name="hooks_keep"
def drop_a_model(remove):
    """Build a model whose step is in its backward pass, and let it go; return a weak reference to its weight."""
    model = torch.nn.Linear(8, 8)
    _, handles = step_in_backward(model.parameters(), fused_adamw)
    for handle in handles if remove else []:
        handle.remove()
    return weakref.ref(model.weight)


for remove in (False, True):
    weight = drop_a_model(remove)
    gc.collect()
    print(f"hooks {'removed' if remove else 'in place'}: the weight is {'gone' if weight() is None else 'still there'}")

# %% [markdown] name="inside_explained"
# The parameter holds the hook, the hook its optimizer, and the optimizer the parameter. Python's garbage collector frees such cycles, but this one passes through C++, where it cannot look. So remove the hooks before you drop the model: otherwise the weights and the optimizer's state stay in memory until the process ends, alongside the next model.
#
# And the peak? Each gradient now lives only for a moment. The peak is near the *start* of the backward pass, where a large gradient meets the activations that are still alive. The saving is a little less than four bytes per parameter: the largest gradient, those activations and a temporary remain.
#
# When does this help? At 16 tokens, the peak of `foreach` is nearly two copies of the weights above that of `fused` with the step inside: its temporaries, plus most of the gradients. The last line under the figures above gives the bytes of activations per token, and of all gradients. **Predict** the gap at 512 tokens.

# %% name="guess_sweep"
my_guess = None  # copies of the weights
### BEGIN GUESS
my_guess = 0  # activations are highest where the backward pass begins; no gradient is there yet
### END GUESS
sweep_guess = Prediction(
    "foreach's peak minus that of fused with the step inside, 512 tokens",
    my_guess,
    "copies of the weights",
    difference=True,
)

# %% name="sweep"
LANES = {
    "AdamW, foreach": (lambda ps: torch.optim.AdamW(ps, foreach=True), False),
    "AdamW, fused, inside": (fused_adamw, True),
    "Adam8, inside": (OPTIMIZERS["Adam8"], True),
}
SIZES = (16, 128, 512)


def tokens(n):
    """Return n ids and n targets, in rows of at most 64."""
    return (t[:n].clone().view(-1, min(n, 64)) for t in (text.train_x, text.train_y))


with sign_of_life("steps with more tokens"):
    at_16 = implemented["foreach"], inside, metered(OPTIMIZERS["Adam8"], inside=True)
    sweep = {
        name: [first, *(metered(make, make_gpt, *tokens(n), inside=where) for n in SIZES[1:])]
        for (name, (make, where)), first in zip(LANES.items(), at_16, strict=True)
    }
one, other = (sweep[name][-1].peak_bytes for name in ("AdamW, foreach", "AdamW, fused, inside"))
sweep_guess.reveal((one - other) / (4 * phi))
for i in (0, -1):
    print(f"{SIZES[i]:>5} tokens: " + ", ".join(f"{name} {human_bytes(m[i].peak_bytes)}" for name, m in sweep.items()))
a_token = sweep["AdamW, foreach"][-1].largest["activations"] / SIZES[-1]
print(f"activations: {human_bytes(a_token)} per token; all gradients: {human_bytes(4 * phi)}")
claims.record("T13", "the step inside the backward pass lowers the peak", "GPT, 512 tokens, against foreach", one / other, "times", 1.05, math.inf)  # fmt: skip

# %% name="sweep_figure"
figure = Figure(figsize=(7.5, 3.6), layout="constrained")
axes = figure.add_subplot()
for (name, meters), color, marker in zip(sweep.items(), COLORS, "osD", strict=False):
    axes.plot(SIZES, [m.peak_bytes / MiB for m in meters], marker + "-", color=color, label=name)
axes.set(title="Three setups for the same GPT", xlabel="tokens in a batch", ylabel="peak, MiB", ylim=(0, None))
axes.legend(frameon=False)
show(
    figure,
    "Far apart at 16 tokens; at 512 the two AdamW lines have met, and 8 bits with the step inside stays lower by most of the state that it saves.",
)

# %% [markdown] name="sweep_explained"
# With many tokens the peak is where the activations are highest, at the start of the backward pass. There are hardly any gradients and no temporaries of AdamW's step at that moment, so neither `foreach` nor the step inside makes a difference.
#
# *State* is always there, so a leaner optimizer saves about the same number of bytes at any size. The lowest line differs in two ways, 8 bits and the step inside; at the right end, what counts is the saving in state minus the FP32 temporaries of `Adam8`'s own step, which runs while most activations are still alive.
#
# ### What it rules out
#
# Methods that need **all gradients at once** no longer work: clipping by their joint norm, a loss scaler's check for infinities before the step, and gradient accumulation. Clipping and accumulation raise no error. (`GradScaler.step` does, with "No inf checks were recorded for this optimizer": it finds no gradients to check. No cell tests that.) The next cell tries accumulation and clipping anyway:


# %% name="forbidden"
def update(inside, batches):
    """Accumulate the gradients of `batches` for what is meant to be one clipped step; return it, and the norm seen."""
    model = make_gpt()
    if inside:
        step_in_backward(model.parameters(), fused_adamw)
    else:
        optimizer = fused_adamw(model.parameters())
    for part in batches:
        (F.cross_entropy(model(ids[:, part]).flatten(0, 1), next_ids[0, part]) / len(batches)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    if not inside:
        optimizer.step()
    return flat(model) - start, norm


halves = slice(0, 8), slice(8, 16)
(right, norm), (wrong, seen) = update(False, halves), update(True, halves)
print(f"norm that clip_grad_norm_ saw: {seen:g}; the true norm: {norm:.3g}")
print(f"two micro-batches: the update is off by {(wrong - right).norm() / right.norm():.0%} of its norm")

# %% [markdown] name="forbidden_explained"
# Two steps were taken instead of one, and `clip_grad_norm_` saw no gradients. Alternatives:
#
# - clip each parameter by its own norm (a different algorithm);
# - merge micro-batches into the momentum ([[capstone]] does);
# - train in BF16, which needs no scaler.
#
# Under `DistributedDataParallel`, a gradient that is used before it is averaged belongs to one process only, and the copies of the model diverge (no cell tests that, either). Use the framework's own support there.

# %% [markdown] name="seven_text"
# ## 5 · The same for a 7B model
#
# The planner ([[where_memory_goes]]) runs a 7B Llama on fake tensors, which take no memory. The recipe: FP32 weights, one sequence of 512 tokens, every block checkpointed, so that the static part dominates. `planned` looks up plans that come with the course. A recipe that you change is planned when you run the cell.

# %% name="seven"
job = {"model": "llama-2-7b", "precision": "fp32", "checkpointing": "every"}
fused, step_inside = {"optimizer_impl": "fused"}, {"step_in_backward": True}
SEVEN = {
    "AdamW, foreach": {},
    "AdamW, fused": fused,
    "AdamW, fused, inside": fused | step_inside,
    "8-bit AdamW": {"optimizer": "adamw-8bit"},
    "8-bit AdamW, inside": step_inside | {"optimizer": "adamw-8bit"},
    "Adafactor, for-loop, inside": step_inside | {"optimizer": "adafactor", "optimizer_impl": "for-loop"},
}
seven = dict(zip(SEVEN, planned([Recipe(**job | change) for change in SEVEN.values()]), strict=True))
count = next(iter(seven.values())).parameters
sizes = {name: need.peak_allocated_bytes for name, need in seven.items()}
table = [(name, f"{size / GiB:.1f} GiB", f"{size / count:.1f}") for name, size in sizes.items()]
show_table([("7B", "planned", "bytes per parameter"), *table])
print(f"4 + 4 bytes per parameter over a bus of 25 GB/s: {8 * count / 25e9:.1f} s")

# %% [markdown] name="seven_explained"
# All of these train every weight in FP32. On top of its weights, the last recipe (Adafactor, inside) holds the largest gradient with its temporaries (the embedding has 32,000 × 4,096 numbers), the logits, and the inputs of the blocks.
#
# ### Paged and offloaded state
#
# There are two ways to keep the state off the GPU:
#
# - **Paged** (`bitsandbytes.optim.PagedAdamW8bit`): pages of the state move to the host when other tensors need the space. This needs no planning, and a rare long batch does not fail. If the state never fits, every step waits for the bus.
# - **Offloaded** (`torchao`'s `CPUOffloadOptimizer`, DeepSpeed's ZeRO-Offload): gradients travel to the host, the CPU takes the step, weights travel back. The last line under the table says how long the transfers take over a bus of 25 GB/s. A long backward pass can hide them.
#
# On a CPU there is nowhere else to put the state, so this lab measures neither paging nor offloading; [[sharding]] runs DeepSpeed's version.

# %% [markdown] name="play_text"
# ## 6 · Explore
#
# Choose the optimizer, the number of tokens, and whether the step runs inside the backward pass or after it. Find the number of tokens beyond which the step inside no longer helps `fused`. Estimate it first: it is about where the activations take as much as all gradients, and section 4 printed both.

# %% name="play"
SETUPS = {"AdamW, foreach": LANES["AdamW, foreach"][0], "AdamW, fused": fused_adamw}
SETUPS |= {name: OPTIMIZERS[name] for name in ("Adam8", "Adafactor", "SGD")}


def picture(optimizer, tokens_in_batch, step):
    meter = metered(SETUPS[optimizer], make_gpt, *tokens(tokens_in_batch), inside=step == "inside")
    return meter.plot(f"{optimizer}, {tokens_in_batch} tokens, step {step}: {human_bytes(meter.peak_bytes)}")


explore(
    picture,
    "Memory over one training step, category by category.",
    optimizer=("AdamW, fused", tuple(SETUPS)),
    tokens_in_batch=(128, (16, 64, 128, 192, 256, 512)),
    step=("inside", ("inside", "after")),
)

# %% [markdown] name="summary_text"
# ## 7 · Before and after

# %% name="summary"
peaks |= {name: meters[0] for name, meters in sweep.items() if "inside" in name}  # at 16 tokens
peaks |= {f"{name}, inside": metered(OPTIMIZERS[name], inside=True) for name in ("Adafactor", "SGD")}
first = peaks["AdamW, foreach"].peak_bytes
sizes = sorted(((meter.peak_bytes, name) for name, meter in peaks.items()), reverse=True)
table = [(name, human_bytes(size), f"{size / phi:.2f}", f"{first / size:.1f}x") for size, name in sizes]
show_table([("", "peak", "bytes per parameter", "smaller by"), *table])
claims

# %% [markdown] name="recap"
# ## Recap
#
# - State in bytes per parameter: SGD, 0; momentum, Lion and Muon, 4; Adam, 8; 8-bit Adam, a little over 2, 4-bit a little over 1, Adafactor almost 0.
# - A second moment in BF16 stops decaying far too early. 8-bit moments need blocks, a scale for each, and a codebook with equal *factors*: a second moment that rounds to zero means dividing by almost zero.
# - `foreach` holds one more copy of the weights in its step; `fused` does not.
# - The step inside the backward pass gives the same numbers without a full set of gradients, but rules out accumulation, joint clipping and loss scaling.
#
# | Your peak | Reach for |
# |---|---|
# | in the optimizer step | `fused=True`: costs nothing |
# | is mostly optimizer state | 8-bit AdamW; [[muon_and_in_place]] tries Muon and Adafactor |
# | is mostly gradients, and you need no accumulation | the step inside the backward pass |
# | where activations are highest | other labs: [[#mixed_precision]], [[#gradient_accumulation]], [[#activation_checkpointing]] |
#
# **Sources.**
#
# - Shazeer and Stern 2018, *Adafactor*; Chen et al. 2023, *Symbolic Discovery of Optimization Algorithms* (Lion); Zhao et al. 2024, *GaLore*
# - Dettmers et al. 2022, *8-bit Optimizers via Block-wise Quantization*; Li et al. 2023, *Memory Efficient Optimizers with 4-bit States*
# - Lv et al. 2023, *Full Parameter Fine-tuning for Large Language Models with Limited Resources* (LOMO)
# - PyTorch tutorial *How to save memory by fusing the optimizer step into the backward pass*; PyTorch documentation: `torch.optim`
