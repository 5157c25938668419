# %% [markdown] name="title"
# # Lean optimizers and in-place operations
#
# **What an optimizer remembers, what its step holds for a moment and how long gradients live are three separate bills, and you can lower each on its own.**
#
# | | |
# |---|---|
# | After this you can | predict an optimizer's bytes to the last one; choose between foreach and fused, 8 bits and 4; take the step inside the backward pass and say what that forbids; say which in-place operations save memory and which break a gradient |
# | Time | 90 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one. bitsandbytes and torchao are optional |
# | Before this | labs [[#start_here]] and [[#where_memory_goes]]; [[number_formats]] helps |
# | Syllabus | T12, T13, C11 |

# %% name="setup" setup=true
import importlib.util
import math
import statistics

from helpers import (
    COLOURS,
    TENANTS,
    Claims,
    GiB,
    MemoryMeter,
    MiB,
    Prediction,
    Recipe,
    SmallCNN,
    SmallGPT,
    ViT,
    check,
    compare,
    device_name,
    digits,
    english,
    explore,
    human_bytes,
    parallel_map,
    pick_device,
    planned,
    show,
    state_bytes,
    tenant_bars,
)

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims()
HAS_BNB, HAS_TORCHAO = (importlib.util.find_spec(name) is not None for name in ("bitsandbytes", "torchao"))
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")
print(f"bitsandbytes: {'yes' if HAS_BNB else 'not installed'}, torchao: {'yes' if HAS_TORCHAO else 'not installed'}")

# %% [markdown] name="idea_text"
# ## 1 · What an optimizer remembers
#
# Walk downhill in fog. With no memory you follow the slope under your feet: **SGD**. Remember the way you came and you stop zigzagging: **momentum**, one number for each weight. Remember also how steep each direction has been, and
# you can take long steps where it is flat: **Adam**, two numbers for each weight. Each number is 4 bytes in FP32 and lives as long as the training. Together they are the *optimizer state*.
#
# **Predict** the bytes of state for each parameter. The model is a GPT of 3 million parameters; its large matrices are 256 × 768 and 256 × 1,024.

# %% name="guess_state"
my_guess = None  # bytes a parameter, SGD with momentum
### BEGIN GUESS
my_guess = 4
### END GUESS
momentum_guess = Prediction("State of SGD with momentum", my_guess, "bytes a parameter")
my_guess = None  # bytes a parameter, AdamW
### BEGIN GUESS
my_guess = 8
### END GUESS
adam_guess = Prediction("State of AdamW", my_guess, "bytes a parameter")
my_guess = None  # bytes a parameter, Adafactor: it keeps a mean for each row and one for each column of a matrix
### BEGIN GUESS
my_guess = 0.03  # 4 x (256 + 1,024) bytes for a matrix of 256 x 1,024 numbers is 0.02; smaller ones cost more
### END GUESS
adafactor_guess = Prediction("State of Adafactor", my_guess, "bytes a parameter")

# %% [markdown] name="state_text"
# The GPT gets 16 tokens: all weights, hardly any activations. `state_bytes` adds up what an optimizer keeps. Next to it is a formula for each
# parameter; the `4 +` is the step counter.


# %% name="state"
def factored(p):
    """Adafactor: one number a row and one a column; anything that is not a matrix keeps all its numbers."""
    return 4 * p.numel() if p.dim() < 2 else 4 * (p.numel() // p.shape[-1] + p.numel() // p.shape[-2])


OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2, foreach=False),
    "SGD, momentum": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, foreach=False),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=1e-3, foreach=False),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3, foreach=False),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2, foreach=False),
}
FORMULA = {
    "SGD": lambda p: 0,
    "SGD, momentum": lambda p: 4 * p.numel(),
    "Adam": lambda p: 4 + 8 * p.numel(),
    "AdamW": lambda p: 4 + 8 * p.numel(),
    "Adafactor": lambda p: 4 + factored(p),
}

# %% name="gpt"
text = english(device)
ids, next_ids = text.train_x[:16].clone()[None], text.train_y[:16].clone()[None]


def make_gpt():
    torch.manual_seed(0)
    return SmallGPT(layers=4, width=256).to(device)


def backward(model, x, y):
    F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()


# %% name="state_measured"
phi = sum(p.numel() for p in make_gpt().parameters())


def state_of(name):
    """Return (predicted, measured) bytes of state a parameter, after one step."""
    model = make_gpt()
    optimizer = OPTIMIZERS[name](model.parameters())
    backward(model, ids, next_ids)
    optimizer.step()
    return sum(FORMULA[name](p) for p in model.parameters()) / phi, state_bytes(optimizer) / phi


state = {name: state_of(name) for name in OPTIMIZERS}
momentum_guess.reveal(state["SGD, momentum"][1])
adam_guess.reveal(state["AdamW"][1])
adafactor_guess.reveal(state["Adafactor"][1])
print(f"\n{'bytes a parameter':18}{'predicted':>11}{'measured':>11}")
for name, (predicted, found) in state.items():
    print(f"{name:18}{predicted:>11.4f}{found:>11.4f}")
whole = sum(4 * p.numel() for p in make_gpt().parameters() if p.dim() < 2) / phi
print(f"of Adafactor's state, biases and norms, which are kept whole: {whole:.4f}")

# %% [markdown] name="state_explained"
# To the byte. AdamW is Adam with a different weight decay: same state. Of Adam's second moment **Adafactor** keeps only the mean of each row and of each column, and rebuilds the rest as their product; it has no first moment. For a matrix of
# *r* × *c* that is *r* + *c* numbers instead of 2·*r*·*c*: next to nothing. Anything that is not a matrix is kept whole, and that is a good part of the little state there is.
#
# ### "SGD instead of Adam saves two thirds of the optimizer memory"
#
# So say the articles. Two thirds of what? There are three ways of counting, and two optimizers are called SGD. Measure all six:
#
# - **state only**, as above;
# - **with the master weights**: in classic mixed precision the weights are 16-bit, and the FP32 copy that the optimizer updates counts as the optimizer's ([[where_memory_goes]]);
# - **everything static**: FP32 weights, gradients and state together.

# %% name="count_ways"
ways = {"state only": {}, "with master weights": {}, "weights, gradients, state": {}}
for name in ("AdamW", "SGD, momentum", "SGD"):
    model = make_gpt().to(torch.bfloat16)
    masters = [p.detach().float() for p in model.parameters()]  # what the optimizer updates
    optimizer = OPTIMIZERS[name](masters)
    backward(model, ids, next_ids)
    for master, p in zip(masters, model.parameters(), strict=True):
        master.grad = p.grad.float()
    optimizer.step()
    kept = state_bytes(optimizer)
    weights, gradients = (sum(t.nbytes for t in ts) for ts in (masters, [m.grad for m in masters]))
    for way, nbytes in zip(ways, (kept, weights + kept, weights + gradients + kept), strict=True):
        ways[way][name] = nbytes / phi
print(f"{'bytes a parameter':27}" + "".join(f"{name:>15}" for name in ways["state only"]))
for way, row in ways.items():
    print(f"{way:27}" + "".join(f"{nbytes:>15.2f}" for nbytes in row.values()))
    for name in ("SGD", "SGD, momentum"):
        saved = 100 * (1 - row[name] / row["AdamW"])
        claims.record("C11", "SGD saves two thirds of the optimizer memory", f"{name}, {way}", saved, "%", 63, 70)
claims

# %% [markdown] name="count_explained"
# **One of six.** Two thirds is right for *plain* SGD, and only if you count the master weights: 4 is a third of 12. By state alone, plain SGD saves everything; SGD with momentum, which is what people mean by SGD, saves half. Of the whole static part
# they save a half and a quarter. A percentage without its denominator says nothing; say *bytes a parameter*.
#
# ## 2 · The same state in fewer bits
#
# A moment need not be exact. **8-bit optimizers** cut each state tensor into blocks of 256 neighbours. They keep one FP32 scale for the block, and for each element the nearest of 256 values in a code book that is dense near zero.
#
# **Predict** the bytes a parameter for 8-bit AdamW: two moments, scales included.

# %% name="guess_8bit"
my_guess = None  # bytes a parameter
### BEGIN GUESS
my_guess = 2 * (1 + 4 / 256)
### END GUESS
eight_guess = Prediction("State of 8-bit AdamW (bitsandbytes)", my_guess, "bytes a parameter")

# %% name="eight_bit"
LITTLE = 4096  # smaller tensors stay in FP32
if HAS_BNB:
    import bitsandbytes as bnb

    OPTIMIZERS["AdamW 8-bit, bnb"] = lambda ps: bnb.optim.AdamW8bit(ps, lr=1e-3)
    FORMULA["AdamW 8-bit, bnb"] = lambda p: (
        2 * (p.numel() + 4 * math.ceil(p.numel() / 256)) if p.numel() >= LITTLE else 8 * p.numel()
    )
    state["AdamW 8-bit, bnb"] = state_of("AdamW 8-bit, bnb")
    eight_guess.reveal(state["AdamW 8-bit, bnb"][1])
    print("\nby size of the parameter:")
    for n in (LITTLE - 1, LITTLE, LITTLE + 1, 2**20):
        p = nn.Parameter(torch.ones(n, device=device))
        p.grad = torch.ones_like(p)
        optimizer = OPTIMIZERS["AdamW 8-bit, bnb"]([p])
        optimizer.step()
        print(f"{n:>10,} elements: {state_bytes(optimizer) / n:.3f} bytes a parameter")
else:
    print("bitsandbytes is not installed, so this cell measures nothing: pip install bitsandbytes")
    claims.not_measured("T13", "8-bit AdamW: state of 2 B a parameter", "needs bitsandbytes")

# %% [markdown] name="eight_bit_explained"
# Below 4,096 elements nothing is quantised: biases and norms take few bytes and are delicate. So the mean lies a little above 2.03, and far above it for a network of many small tensors. (The two code books, 1 KiB each, are shared by all parameters of an optimizer; with one small tensor they show.)
#
# torchao implements the same idea in plain PyTorch, and goes down to 4 bits: blocks of 128, a code book of 16 values. It compiles its step with `torch.compile`, which needs a C++ compiler and takes a while for each shape. `force_eager` runs it uncompiled: the same state, with larger temporaries.


# %% name="four_bit"
def few_bits(bits, block, book):
    """Return torchao's formula: codes, scales and a separate code book for each moment of each large tensor."""
    return lambda p: (
        4 + (2 * (p.numel() * bits // 8 + 4 * p.numel() // block + 4 * book) if p.numel() >= LITTLE else 8 * p.numel())
    )


if HAS_TORCHAO:
    from torchao import optim as low_bit

    torch.compiler.set_stance("force_eager")
    OPTIMIZERS["AdamW 8-bit, torchao"] = lambda ps: low_bit.AdamW8bit(ps, lr=1e-3)
    OPTIMIZERS["AdamW 4-bit, torchao"] = lambda ps: low_bit.AdamW4bit(ps, lr=1e-3)
    FORMULA["AdamW 8-bit, torchao"] = few_bits(8, block=256, book=256)
    FORMULA["AdamW 4-bit, torchao"] = few_bits(4, block=128, book=16)
    state |= {name: state_of(name) for name in OPTIMIZERS if "torchao" in name}
else:
    print("torchao is not installed, so this cell measures nothing: pip install torchao")
    claims.not_measured("T13", "4-bit AdamW: state of 1 B a parameter", "needs torchao")
for name, (predicted, found) in state.items():
    if "bit" in name:
        print(f"{name:24} predicted {predicted:.4f}, measured {found:.4f} bytes a parameter")
        said = 2 if "8-bit" in name else 1
        claims.record("T13", f"{4 * said}-bit AdamW: state of {said} B a parameter", f"GPT, {name}", found, "bytes", said, 1.1 * said)  # fmt: skip

# %% [markdown] name="quality_text"
# ### Is it as good?
#
# Bytes are only half of the question. Train an MLP on handwritten digits with each: same seeds, same batches, same learning rate. The schedule is a rise over a third of the steps, then a **cosine** down to zero. The distance between *seeds* is the yardstick: a difference far below it does not matter.
# We search for the learning rate with FP32 AdamW, on 300 *training* images held out for it. Adafactor is not a compressed AdamW: its rate is relative to the size of the weights, so it gets its own search.


# %% name="train"
data = digits()


def make_mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def train(make_net, make_optimizer, lr, seed, epochs, split=data):
    """Train from `seed`; return the training losses, and the loss and accuracy (%) on `split`'s test images."""
    torch.manual_seed(seed)
    net = make_net().to(device)
    optimizer = make_optimizer(net.parameters(), lr)
    steps = epochs * math.ceil(len(split.train_x) / 64)
    rise = steps // 3
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / rise, 0.5 * (1 + math.cos(math.pi * i / steps)))
    )
    losses = []
    for _ in range(epochs):
        for index in torch.randperm(len(split.train_x)).split(64):
            loss = F.cross_entropy(net(split.train_x[index].to(device)), split.train_y[index].to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    with torch.no_grad():
        logits = net.eval()(split.test_x.to(device)).cpu()
    accuracy = 100 * (logits.argmax(1) == split.test_y).float().mean().item()
    return losses, F.cross_entropy(logits, split.test_y).item(), accuracy


# %% name="rates"
held_out = data._replace(
    train_x=data.train_x[300:], train_y=data.train_y[300:], test_x=data.train_x[:300], test_y=data.train_y[:300]
)
SEEDS = (0, 1)
SEARCH = {
    "AdamW": (lambda ps, lr: torch.optim.AdamW(ps, lr=lr), (3e-3, 1e-2, 3e-2, 1e-1)),
    "Adafactor": (lambda ps, lr: torch.optim.Adafactor(ps, lr=lr), (3e-2, 1e-1, 3e-1, 1.0)),
}
best = {}
for name, (make, rates) in SEARCH.items():
    loss = {lr: statistics.mean(train(make_mlp, make, lr, seed, 4, held_out)[1] for seed in SEEDS) for lr in rates}
    best[name] = min(loss, key=loss.get)
    losses = ", ".join(f"{lr:g}: {held:.3f}" for lr, held in loss.items())
    print(f"{name:10} loss on held-out images, by rate: {losses}; best: {best[name]:g}")

# %% name="quality"
SMALL = 3e-3  # the smallest of the rates, for comparison
LOW = {"AdamW, FP32": SEARCH["AdamW"][0]}
if HAS_BNB:
    LOW["AdamW 8-bit, bnb"] = lambda ps, lr: bnb.optim.AdamW8bit(ps, lr=lr)
if HAS_TORCHAO:
    LOW["AdamW 4-bit, torchao"] = lambda ps, lr: low_bit.AdamW4bit(ps, lr=lr)
jobs = [(name, make, lr) for lr in (best["AdamW"], SMALL) for name, make in LOW.items()]
jobs.append(("Adafactor", SEARCH["Adafactor"][0], best["Adafactor"]))
quality = {(name, lr): [train(make_mlp, make, lr, seed, epochs=4) for seed in SEEDS] for name, make, lr in jobs}

# %% name="quality_table"


def apart(a, b):
    """Mean distance between two loss curves."""
    return statistics.mean(abs(x - y) for x, y in zip(a[0], b[0], strict=True))


print(f"{'':22}{'rate':>6}{'apart, in seeds':>17}{'test loss, by seed':>21}{'accuracy':>16}")
for (name, lr), runs in quality.items():
    reference = quality["AdamW, FP32", best["AdamW"] if name == "Adafactor" else lr]
    off = statistics.mean(apart(a, b) for a, b in zip(runs, reference, strict=True)) / apart(*reference)
    figures = f"{off:>17.2f}{runs[0][1]:>14.3f}{runs[1][1]:>7.3f}{runs[0][2]:>9.1f}{runs[1][2]:>5.1f} %"
    print(f"{name:22}{lr:>6g}{figures}")
    if "bit" in name:
        worse = sum(run[1] for run in runs) / sum(run[1] for run in reference)
        claims.record("T13", "fewer bits, as good a test loss", f"MLP, {name}, rate {lr:g}", worse, "of FP32's", 0, 1.15)  # fmt: skip

# %% [markdown] name="quality_explained"
# *Apart* is how far a loss curve lies from the FP32 one, measured in distances between two FP32 seeds. At the best rate no format is off by more than a change of seed. At a rate that is too small, 4 bits leave a mark, and not by chance: look at the test losses of both seeds. So a verdict on a format holds only for a learning rate. 8 bits are as good at either rate.
#
# Adafactor goes its own way, as a different algorithm will. Its line is not a contest with AdamW.
#
# This is a small network on an easy task. 8 bits hold up on large models too (Dettmers et al. 2022), with one habit: keep the embedding's state in 32 bits.
#
# ## 3 · What the step holds for a moment
#
# The state is what stays. While the step runs, more is held. PyTorch has three implementations of the same update:
#
# - **for-loop**: parameter by parameter, several small kernels each;
# - **foreach**: each operation for *all* parameters at once; the default on a GPU;
# - **fused**: the whole update in one kernel.
#
# They compute the same numbers. **Predict** the peak of the whole training step with `foreach`, in bytes a parameter. Weights, gradients and two moments are 16.

# %% name="guess_foreach"
my_guess = None  # bytes a parameter
### BEGIN GUESS
my_guess = 20  # one more copy of everything: the square roots of the second moments
### END GUESS
foreach_guess = Prediction("Peak with foreach", my_guess, "bytes a parameter")


# %% name="metered"
def metered(make_optimizer, make_model=make_gpt, x=ids, y=next_ids, attach=None):
    """Measure one whole training step, after a warm-up step. (`attach` puts the step elsewhere: section 4.)"""
    model = make_model()
    optimizers = attach(model, make_optimizer) if attach else [make_optimizer(model.parameters())]

    def step():
        backward(model, x, y)
        for optimizer in [] if attach else optimizers:
            optimizer.step()
        model.zero_grad()

    step()
    with MemoryMeter(model, optimizers) as meter:
        step()
    return meter


IMPLEMENTATIONS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
implemented = {name: metered(lambda ps, how=how: torch.optim.AdamW(ps, **how)) for name, how in IMPLEMENTATIONS.items()}
foreach_guess.reveal(implemented["foreach"].peak_bytes / phi)
for name, meter in implemented.items():
    print(f"{name:9} {meter.peak_bytes / phi:6.2f} bytes a parameter, in {meter.peak_at}")

# %% name="foreach_figure"
show(
    tenant_bars(
        {name: m.at_peak for name, m in implemented.items()},
        TENANTS,
        "AdamW's three implementations: who holds memory at the peak",
    ),
    "Equal bars for parameters, gradients and state; foreach has temporaries as large as the parameters on top.",
)

# %% [markdown] name="foreach_explained"
# `foreach` holds a temporary for every parameter at once: one more copy of the model. The for-loop holds only two the size of the largest parameter, and `fused` none. With `fused`, even the peak has moved out of the step, to the end of the backward pass (where the embedding, which is used twice, adds up its two gradients). Now the numbers, and the time:


# %% name="implementation_numbers"
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
    print(f"{name:8} update differs from the for-loop's by {off:.1e} of its norm")

# %% name="implementation_time"
for name in ("foreach", "fused"):
    pace = compare(stepper("for-loop")[1], stepper(name)[1], runs=9)
    print(f"{name:8} {pace}")
    claims.record("T13", f"{name} is faster than the for-loop", f"AdamW step, GPT, {device.type}", pace.speedup, "times", 1.1, math.inf)  # fmt: skip
extra = (implemented["foreach"].peak_bytes - implemented["fused"].peak_bytes) / phi
claims.record("T13", "foreach holds one more copy of the weights", "AdamW, GPT, against fused", extra, "bytes a parameter", 3, 4.5)  # fmt: skip

# %% [markdown] name="implementation_explained"
# `fused` is the lean one, and it is fast as well: the state is read and written once. `foreach` was made for GPUs, where launching thousands of small kernels costs more than the work; on a CPU it gains little. You have to ask for `fused` by name: `AdamW(..., fused=True)`.
#
# And the 8-bit optimizers: does the *peak* fall as far as the state?

# %% name="peaks"
peaks = {f"AdamW, {name}": meter for name, meter in implemented.items()}
for name in OPTIMIZERS:
    if name not in ("Adam", "AdamW"):
        peaks[name] = metered(OPTIMIZERS[name])
matrix = max(p.nbytes for p in make_gpt().parameters())
print(f"the largest matrix: {matrix / phi:.2f} bytes a parameter of the model\n")
print(f"{'bytes a parameter':21}{'state':>6}{'moment':>8}{'(matrices)':>11}{'PEAK':>7}  reached in")
for name, meter in peaks.items():
    kept, moment = meter.at_peak["optimizer state"], meter.at_peak["temporaries"] + meter.at_peak["kernel workspace"]
    figures = f"{kept / phi:>6.2f}{moment / phi:>8.2f}{moment / matrix:>11.1f}{meter.peak_bytes / phi:>7.2f}"
    print(f"{name:21}{figures}  {meter.peak_at}")

# %% [markdown] name="moment_text"
# *Moment* is what is alive at the peak and gone after it. What is it? Here it is by the operation that made it, in units of the largest matrix (crumbs left out):

# %% name="moment_named"
for name in [name for name in peaks if "bit" in name]:
    print(name)
    made = {}
    for life in peaks[name].lifetimes:
        alive = life.start <= peaks[name].peak_time and (life.end is None or life.end > peaks[name].peak_time)
        if alive and life.tenant in ("temporaries", "kernel workspace") and life.nbytes > matrix / 100:
            made.setdefault(str(life.op), []).append(life.nbytes / matrix)
    for operation, sizes in made.items():
        print(f"   {operation:68}  " + " + ".join(f"{size:.2f}" for size in sizes))

# %% [markdown] name="peaks_explained"
# Not quite. To update a parameter, its moments are unpacked to FP32 and packed again afterwards. On a GPU bitsandbytes does both inside the kernel; its CPU version holds several FP32 copies of the parameter. torchao uncompiled is an open book: two new moments (`lerp`), the new weights (`sub`), the moment scaled to between -1 and 1 (`div`), and the search for the nearest
# value in the code book, with both neighbours (`index`) and codes as 64-bit integers, which count double (`where`, `clip`). Compiled, most of that stays in registers. So here **4 bits with a poor kernel peak above 8 bits with a better one**.
#
# All this is for **one parameter at a time**. That is a lot here, where the largest matrix is a twelfth of the model, and little in a model of a hundred layers. (SGD has a moment too, but not in the optimizer: it is in the backward pass, where the embedding adds up its two gradients.)
#
# Something else is worth noticing: with plain SGD, half of what is left is **gradients**.
#
# ## 4 · The step inside the backward pass
#
# Gradients are finished at different moments of the backward pass, the last layer's first. Yet all of them wait for the end, because `optimizer.step()` comes after `backward()`. They need not: a hook can step a parameter as soon as its gradient is complete, and free the gradient. That takes an optimizer for each parameter:


# %% name="step_inside"
def step_inside(model, make_optimizer):
    """Let the backward pass of `model` step each parameter and free its gradient; return the optimizers."""
    own = {p: make_optimizer([p]) for p in model.parameters()}

    def step_and_free(p):
        own[p].step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_and_free)  # runs when p.grad is complete
    return list(own.values())


# %% name="step_inside_same"
ends = {}
for inside in (False, True):
    model = make_gpt()
    make = lambda ps: torch.optim.AdamW(ps, fused=True)  # noqa: E731
    optimizers = step_inside(model, make) if inside else [make(model.parameters())]
    for _ in range(3):
        backward(model, ids, next_ids)
        if not inside:
            optimizers[0].step()
            optimizers[0].zero_grad()
    ends[inside] = flat(model)
print("after three steps, identical to the last bit:", torch.equal(ends[True], ends[False]))
print("gradients left after the backward pass:", sum(p.grad is not None for p in model.parameters()))
print("parameters:", len(optimizers), "- the embedding, which is also the output layer, counts once")

# %% [markdown] name="guess_inside_text"
# This is no approximation: it gives the same numbers, earlier. (A tied weight gets its two contributions added up first; the hook runs once.)
#
# **Predict.** With `fused` the peak was about 16 bytes a parameter. Where does it go with the step inside?

# %% name="guess_inside"
my_guess = None  # bytes a parameter
### BEGIN GUESS
my_guess = 12.3  # weights and moments stay; of the gradients, only the largest, a twelfth of the model
### END GUESS
inside_guess = Prediction("Peak with the step inside", my_guess, "bytes a parameter")

# %% name="inside_measured"
outside = implemented["fused"]
inside = metered(lambda ps: torch.optim.AdamW(ps, fused=True), attach=step_inside)
inside_guess.reveal(inside.peak_bytes / phi)
for name, meter in {"step after the backward pass": outside, "step inside": inside}.items():
    share = meter.largest["gradients"] / phi / 4
    there = ", ".join(f"{tenant} {held / phi:.2f}" for tenant, held in meter.at_peak.items() if held > phi / 100)
    print(f"{name:30} most gradients alive {share:5.0%}, peak {meter.peak_bytes / phi:5.2f}, in {meter.peak_at}")
    print(f"   at the peak: {there}")
    show(
        meter.plot(f"AdamW, {name}"), "Gradients pile up to the end; with the step inside they are a row of thin teeth."
    )
claims.record("T13", "the step inside the backward pass saves the gradients", "GPT, 16 tokens, AdamW fused", (outside.peak_bytes - inside.peak_bytes) / phi, "bytes a parameter", 3, 4)  # fmt: skip

# %% [markdown] name="inside_explained"
# Gradients become a row of teeth, each as high as one layer's gradient. The peak is now near the *beginning* of the backward pass, where a large gradient meets the activations that are still alive. Not quite four bytes are saved: the largest gradient, those activations and a temporary remain.
#
# So who benefits? Feed in more tokens, and activations join in:

# %% name="sweep"
LANES = {
    "AdamW, foreach": (lambda ps: torch.optim.AdamW(ps, foreach=True), None),
    "AdamW, fused": (lambda ps: torch.optim.AdamW(ps, fused=True), None),
    "AdamW, fused, inside": (lambda ps: torch.optim.AdamW(ps, fused=True), step_inside),
    "SGD, inside": (lambda ps: torch.optim.SGD(ps, lr=1e-2), step_inside),
}


def tokens(n):
    """Return n ids and n targets, in rows of at most 64."""
    return (t[:n].clone().view(-1, min(n, 64)) for t in (text.train_x, text.train_y))


SIZES = (16, 128, 512)
sweep = {
    name: [metered(make, make_gpt, *tokens(n), attach=attach) for n in SIZES] for name, (make, attach) in LANES.items()
}

# %% name="sweep_figure"
figure = Figure(figsize=(7.5, 3.6), layout="constrained")
axes = figure.add_subplot()
for (name, meters), colour, marker in zip(sweep.items(), COLOURS, "osD^", strict=False):
    axes.plot(SIZES, [m.peak_bytes / MiB for m in meters], marker + "-", color=colour, label=name)
axes.set(title="Four ways to train the same GPT", xlabel="tokens in a batch", ylabel="peak, MiB", ylim=(0, None))
axes.legend(frameon=False)
show(
    figure,
    "Far apart at 16 tokens; at 512 the AdamW lines have met, and SGD with the step inside is lower by the size of the state.",
)
for n in (0, -1):
    print(f"{SIZES[n]:>5} tokens: " + ", ".join(f"{name} {human_bytes(m[n].peak_bytes)}" for name, m in sweep.items()))
a_token = sweep["AdamW, fused"][-1].largest["activations"] / SIZES[-1]
print(f"activations: {human_bytes(a_token)} a token; all gradients: {human_bytes(4 * phi)}")
met = sweep["AdamW, foreach"][-1].peak_bytes / sweep["AdamW, fused, inside"][-1].peak_bytes
claims.record("T13", "the step inside lowers the peak", "GPT, 512 tokens", met, "times", 1.05, math.inf)

# %% [markdown] name="sweep_explained"
# With many tokens the peak is where the activations are at their highest, as the backward pass begins. There are no gradients and no step temporaries at that moment, so `foreach` or not, inside or not, makes no difference. *State* is always there, so a leaner optimizer pays at any size, by the same number of bytes. The lowest line changes two things; at the right end only the state still counts. A convolutional network lies far to the right in such a picture: nothing in this lab so far would help it much.
#
# ### What it forbids
#
# Whatever needs **all gradients at once** is gone: clipping by their joint norm, a loss scaler's search for infinities before the step, and gradient accumulation. None of them raises an error. The control that must fail:

# %% name="forbidden_inside"
AdamW = lambda ps: torch.optim.AdamW(ps, lr=1e-3, fused=True)  # noqa: E731
model = make_gpt()
step_inside(model, AdamW)
backward(model, ids, next_ids)
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
honest = make_gpt()
backward(honest, ids, next_ids)
true_norm = nn.utils.clip_grad_norm_(honest.parameters(), 1.0).item()
print(f"norm that clip_grad_norm_ saw: {norm:g}; the true norm: {true_norm:.3g}")

claims.record("T13", "with the step inside, clipping sees the gradients", "norm seen / true", norm / true_norm, "of it", 0.99, 1.01)  # fmt: skip


# %% name="forbidden_accumulation"
def accumulated(inside):
    """Two micro-batches of 8 tokens for what is meant to be one update; return how far the weights moved."""
    model = make_gpt()
    optimizers = step_inside(model, AdamW) if inside else [AdamW(model.parameters())]
    for half in (slice(0, 8), slice(8, 16)):
        (F.cross_entropy(model(ids[:, half]).flatten(0, 1), next_ids[0, half]) / 2).backward()
    if not inside:
        optimizers[0].step()
    return flat(model) - start


one, two = accumulated(False), accumulated(True)
off = ((two - one).norm() / one.norm()).item()
print(f"accumulation over two micro-batches: the update is off by {off:.0%} of its norm")
claims.record("T13", "the step inside goes with accumulation", "GPT, 2 micro-batches", off, "off", 0, 0.01)

# %% [markdown] name="forbidden_explained"
# Two steps were taken instead of one, and the clipping clipped nothing. Ways out: clip each parameter by its own norm (a different algorithm), fold micro-batches into the momentum ([[capstone]] does), or train in BF16, which needs no scaler. Under `DistributedDataParallel`, a gradient that is used before it is averaged belongs to one process only, and the copies of the model drift apart; there, let the framework do it.
#
# ### Your turn: for any model
#
# `step_inside` has faults. It trips over a frozen parameter, and you cannot remove it again.
#
# **Contract.** `step_in_backward(parameters, make_optimizer)` returns two lists, `optimizers` and `handles`.
#
# - `parameters` yields tensors, once (it may be a generator). Some may be frozen (`requires_grad` is False): leave them alone. The same one may appear twice: treat it once.
# - `make_optimizer([p])` makes an optimizer for the list it is given. Make one for each trained parameter, once, before the first backward pass, and return them all, in any order: a schedule sets `group["lr"]` there, and each step must obey it.
# - From then on `loss.backward()` steps each parameter that gets a gradient, once, when the gradient is complete, with its own optimizer, and frees the gradient at once: `p.grad` is None afterwards, and all gradients are never alive together. The result is that of one optimizer for all parameters.
# - The tool is `p.register_post_accumulate_grad_hook(hook)`: it calls `hook(p)` when the gradient of `p` is complete, and returns a handle.
# - `handles` have `.remove()`. When all are removed, `backward()` makes gradients and updates nothing.


# %% name="backward" answer=true reveal=true
def step_in_backward(parameters, make_optimizer):
    ### BEGIN SOLUTION
    optimizers, handles = [], []
    trained = dict.fromkeys(p for p in parameters if p.requires_grad)  # each one once
    for parameter in trained:
        optimizer = make_optimizer([parameter])

        def step(parameter, optimizer=optimizer):  # bound now: the loop goes on
            optimizer.step()
            optimizer.zero_grad()

        optimizers.append(optimizer)
        handles.append(parameter.register_post_accumulate_grad_hook(step))
    return optimizers, handles
    ### END SOLUTION


# %% name="backward_check"
check("lean_optimizers.backward", step_in_backward)

# %% [markdown] name="use_text"
# Here it is in use: the GPT with its first two blocks frozen, a falling learning rate, Adafactor in the hook. (It sees one batch, which it learns by heart: the loss shows that steps are taken, not that Adafactor trains well.)

# %% name="use"
model = make_gpt()
model.blocks[:2].requires_grad_(False)
x, y = tokens(128)
try:
    optimizers, handles = step_in_backward(model.parameters(), lambda ps: torch.optim.Adafactor(ps, lr=3e-2))
    losses = []
    for i in range(12):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 3e-2 * (1 - i / 12)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        losses.append(loss.item())
    with MemoryMeter(model, optimizers) as meter:
        backward(model, x, y)
    static = sum(p.nbytes for p in model.parameters()) + sum(map(state_bytes, optimizers))
    print(
        f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; weights and state {human_bytes(static)}, peak {human_bytes(meter.peak_bytes)}"
    )
except NotImplementedError:
    print("The figures appear once you have written step_in_backward.")

# %% [markdown] name="sgd_text"
# ## 5 · SGD with cosine decay: does the saving cost anything?
#
# "Adam is a habit; SGD with a cosine schedule gets you there with less memory." Two networks on the digits, a convolutional one and a vision transformer; three optimizers; the same number of steps. To be fair, we choose each optimizer's learning rate from three for each network, on the images held
# out in section 2, in runs of 5 epochs. Then each trains on all training images, and we compare seed by seed. The transformer trains twice: for 8 epochs, and for 24 at the same rates.
#
# **Predict** by how many points plain SGD falls behind AdamW on the vision transformer.

# %% name="guess_sgd"
my_guess = None  # points of accuracy behind AdamW, 8 epochs
### BEGIN GUESS
my_guess = 1
### END GUESS
sgd_guess = Prediction("Vision transformer, SGD behind AdamW after 8 epochs", my_guess, "points")
my_guess = None  # points of accuracy behind AdamW, 24 epochs
### BEGIN GUESS
my_guess = 1
### END GUESS
long_guess = Prediction("The same after 24 epochs", my_guess, "points")


# %% name="rivals"
RIVALS = {
    "SGD": lambda ps, lr: torch.optim.SGD(ps, lr=lr, fused=True),
    "SGD, momentum": lambda ps, lr: torch.optim.SGD(ps, lr=lr, momentum=0.9, fused=True),
    "AdamW": lambda ps, lr: torch.optim.AdamW(ps, lr=lr, fused=True),
}
RATES = {
    "CNN": {"SGD": (1.0, 3.0, 10.0), "SGD, momentum": (0.1, 0.3, 1.0), "AdamW": (0.03, 0.1, 0.3)},
    "ViT": {"SGD": (0.1, 0.3, 1.0), "SGD, momentum": (0.03, 0.1, 0.3), "AdamW": (0.01, 0.03, 0.1)},
}
NETS = {
    "CNN": lambda: SmallCNN(8),
    "ViT": lambda: ViT(side=8, patch=2, layers=2, width=32, heads=2, inner=64),
}


def train_all(jobs, split):
    """Train `jobs`, each (net, rival, rate, seed, epochs), in two processes; return {job: (loss, accuracy)}."""
    runs = parallel_map(lambda job: train(NETS[job[0]], RIVALS[job[1]], *job[2:], split)[1:], jobs)
    return dict(zip(jobs, runs, strict=True))


# %% name="search"
search = [(net, rival, lr, 0, 5) for net in NETS for rival, rates in RATES[net].items() for lr in rates]
tried = train_all(search, held_out)
rate = {}
for net in NETS:
    for rival, rates in RATES[net].items():
        losses = [tried[net, rival, lr, 0, 5][0] for lr in rates]
        losses = [loss if math.isfinite(loss) else math.inf for loss in losses]
        rate[net, rival] = chosen = rates[losses.index(min(losses))]
        edge = ", at the edge" if chosen in (rates[0], rates[-1]) else ""
        line = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in zip(rates, losses, strict=True))
        print(f"{net} {rival:14} loss by rate {line:36} chosen: {chosen:g}{edge}")

# %% name="compete"
CONTESTS = {("ViT", 24): (("SGD", "AdamW"), 2), ("ViT", 8): (tuple(RIVALS), 2), ("CNN", 8): (tuple(RIVALS), 3)}
final = train_all(
    [
        (net, rival, rate[net, rival], seed, epochs)
        for (net, epochs), (rivals, seeds) in CONTESTS.items()
        for rival in rivals
        for seed in range(seeds)
    ],
    data,
)

# %% name="compete_table"
print(f"{'':18}{'rival':15}{'accuracy by seed, %':>29}{'behind AdamW, mean and by seed':>38}")
behind = {}
for (net, epochs), (rivals, seeds) in reversed(CONTESTS.items()):
    scores = {r: [final[net, r, rate[net, r], seed, epochs][1] for seed in range(seeds)] for r in rivals}
    for rival in rivals:
        line = f"{net}, {epochs:2} epochs    {rival:15}" + "".join(f"{s:>7.1f}" for s in scores[rival]).rjust(29)
        gaps = [a - b for a, b in zip(scores["AdamW"], scores[rival], strict=True)]
        behind[net, rival, epochs] = mean = statistics.mean(gaps)
        if rival == "AdamW":
            print(line)
            continue
        print(f"{line}{mean:>9.1f}  (" + ",".join(f"{gap:>6.1f}" for gap in gaps) + ")")
        claims.record("T13", "SGD with cosine: at most a point behind", f"{net}, {rival}, {epochs} epochs", mean, "points", -math.inf, 1)  # fmt: skip
print(f"one test image is {100 / len(data.test_y):.2f} points")
sgd_guess.reveal(behind["ViT", "SGD", 8])
long_guess.reveal(behind["ViT", "SGD", 24])

# %% [markdown] name="sgd_explained"
# On the convolutional network there is no clear order: the differences are as large as those between seeds. On the transformer SGD is far behind after the same number of steps, and momentum does not close the gap. With **three times the steps** most of the gap is gone. So AdamW buys *steps* here; a run of this size cannot say whether it buys a better end.
#
# Larger transformers show it too. One explanation is that their parts differ in curvature far more than the layers of a convolutional network, so one learning rate cannot serve them all. Adam's second moment gives each weight its own. "SGD instead of Adam" comes from vision models with convolutions. For a language model, where steps are what you pay for,
# look at Adafactor or 8 bits first. (A caveat: the rates come from one seed and from short runs; where it says *at the edge*, a rate further out might do better.)
#
# ## 6 · Gradients between two steps
#
# `zero_grad()` sets gradients to None, which frees their memory. `zero_grad(set_to_none=False)` fills them with zeros, and they stay through the next forward pass. Does it matter? That depends on who your tenants are. **Predict** for the GPT on 512 tokens: by how many copies of the weights is the peak of two steps higher with zeros?

# %% name="guess_kept"
my_guess = None  # copies of the weights
### BEGIN GUESS
my_guess = 0  # gradients are there at the peak anyway, or so you would think
### END GUESS
kept_guess = Prediction("Zeros in place of None, GPT on 512 tokens", my_guess, "copies of the weights")

# %% name="set_to_none"
images, labels = (t[:128].clone().to(device) for t in digits(size=16)[:2])


def two_steps(make_model, x, y, to_none):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with MemoryMeter(model, optimizer) as meter:
        for _ in range(2):
            backward(model, x, y)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    return meter


# %% name="set_to_none_measured"
SUBJECTS = {
    "GPT, 16 tokens": (make_gpt, ids, next_ids),
    "GPT, 512 tokens": (make_gpt, *tokens(512)),
    "CNN, 128 images": (lambda: SmallCNN(32).to(device), images, labels),
}
for subject, (make, x, y) in SUBJECTS.items():
    pair = [two_steps(make, x, y, to_none) for to_none in (True, False)]
    more = (pair[1].peak_bytes - pair[0].peak_bytes) / sum(p.nbytes for p in make().parameters())
    print(
        f"{subject:18} peak {human_bytes(pair[0].peak_bytes):>10}, with zeros kept {human_bytes(pair[1].peak_bytes):>10}: {more:.2f} copies of the weights more"
    )
    claims.record("T12", "keeping zeroed gradients costs a copy of the weights", subject, more, "copies", 0.9, 1.1)
    if "512" in subject:
        kept_guess.reveal(more)
        for words, meter in zip(("None", "zeros"), pair, strict=True):
            show(
                meter.plot(f"Two steps, gradients set to {words}"),
                "Gradients end after the step, or lie under the second forward pass.",
            )

# %% [markdown] name="set_to_none_explained"
# Look at the second hump. If activations make the peak, the gradients you kept lie beneath them: a whole extra copy of the weights. If the peak is the moment when all gradients are there anyway, keeping them costs little. None is the default, and rightly so. (It is not quite the same training: an optimizer skips a parameter whose gradient is None, but moves one whose gradient is zero, by momentum and weight decay.)
#
# ## 7 · In place
#
# `x.relu_()`, `nn.ReLU(inplace=True)`: the result overwrites the input. That looks like one tensor instead of two. **Predict**: four linear layers, four ReLUs. How many of the tensors saved for the backward pass does `inplace=True` spare?

# %% name="guess_inplace"
my_guess = None  # tensors
### BEGIN GUESS
my_guess = 4  # one for each ReLU, you would think
### END GUESS
inplace_guess = Prediction("Tensors spared by ReLU(inplace=True)", my_guess, "tensors")

# %% name="inplace_kept"
rows = torch.randn(2048, 64, device=device)


def kept_by(kind, inplace):
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), kind(inplace=inplace))]
    net = nn.Sequential(*layers, nn.Linear(64, 1)).to(device)
    with MemoryMeter(net) as meter:
        net(rows).sum().backward()
    return meter


inplace = {}
for kind in (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Hardtanh):
    inplace[kind] = pair = [kept_by(kind, inplace) for inplace in (False, True)]
    kept = [round(meter.largest["activations"] / rows.nbytes) for meter in pair]
    words = f"{kind.__name__:10} kept {kept[0]} tensors, in place {kept[1]};"
    print(f"{words} peak {human_bytes(pair[0].peak_bytes)} -> {human_bytes(pair[1].peak_bytes)}")
    claims.record("T12", "inplace=True saves activations", f"4 layers, {kind.__name__}", kept[0] - kept[1], "tensors", 1, math.inf)  # fmt: skip
    if kind is nn.ReLU:
        relu_spared = kept[0] - kept[1]
inplace_guess.reveal(relu_spared)
for words, meter in zip(("", " in place"), inplace[nn.LeakyReLU], strict=True):
    show(meter.plot(f"LeakyReLU{words}"), "Eight steps up without inplace, four with it.")

# %% [markdown] name="inplace_explained"
# Ask what the backward pass needs. ReLU's derivative follows from its **output**, which the next layer keeps anyway. Its input is freed at once, in place or not: nothing is spared. LeakyReLU and ELU keep their **input** when they run out of place, and work from the **output** when in place: that halves what is kept. For SiLU and
# Hardtanh PyTorch needs the input in any case, so it keeps a copy before overwriting it: nothing is spared.
#
# Without a backward pass nothing is kept, and what counts is the widest moment:


# %% name="inplace_inference"
def inference_peak(inplace):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 512), nn.SiLU(inplace=inplace), nn.Linear(512, 64)).to(device)
    with MemoryMeter(net) as meter, torch.no_grad():
        net(rows)
    return meter.peak_bytes


spared = inference_peak(False) / inference_peak(True)
print(f"inference, 64 -> 512 -> 64: peak {human_bytes(inference_peak(False))} -> {human_bytes(inference_peak(True))}")
claims.record("T12", "in place saves memory in inference", "MLP, 8 times as wide inside", spared, "times", 1.3, 2)

# %% [markdown] name="versions_text"
# ### When autograd forbids it
#
# Each tensor has a **version**, which every in-place operation raises by one. A tensor saved for the backward pass is saved with its version. If that has changed by the time the tensor is needed, autograd refuses, because the gradient would be wrong. Which of these six pass?

# %% name="guess_versions"
my_guess = None  # six letters in the order of the cases below: p passes, r is refused
### BEGIN GUESS
my_guess = "pprrrr"
### END GUESS
versions_guess = my_guess


# %% name="versions"
def attempt(words, program, why=""):
    w = torch.linspace(0.5, 2, 4, device=device, requires_grad=True)
    try:
        program(w).sum().backward()
        print(f"passes   {words}{why}")
        return True
    except RuntimeError as error:
        print(f"REFUSED  {words}{why}\n           {str(error).splitlines()[0][:96]} ...")
        return False


def input_changed(w):
    x = w * 1
    y = x.sin()
    x.add_(1)
    return y


# %% name="versions_tried"
CASES = {
    "(w * 2).add_(1)": (lambda w: (w * 2).add_(1), "the product kept nothing of its result"),
    "w.sin().add_(1)": (lambda w: w.sin().add_(1), "the sine kept its input"),
    "x.sin(), then x.add_(1)": (input_changed, "the sine kept its input"),
    "w.exp().add_(1)": (lambda w: w.exp().add_(1), "exp kept its output"),
    "dropout in place after relu": (lambda w: F.dropout(w.relu(), 0.5, inplace=True), "relu kept its output"),
    "w.add_(1)": (lambda w: w.add_(1), "w is a leaf that needs its gradient"),
}
found = "".join("p" if attempt(words, program, f"   ({why})") else "r" for words, (program, why) in CASES.items())
if versions_guess:
    print(f"You guessed {sum(map(str.__eq__, versions_guess, found))} of {len(found)} right.")
with torch.no_grad():
    leaf = torch.ones(4, requires_grad=True)
    leaf.add_(1)  # what every optimizer does
    print("passes   w.add_(1) under torch.no_grad()")

# %% [markdown] name="silent_text"
# The rule: **a saved tensor must not change.** The error comes late, in the backward pass; `torch.autograd.set_detect_anomaly(True)` names the forward operation.
#
# ### The control that must fail
#
# Old code writes through `.data`, which has its own version. Then nobody notices. The gradient of eʷ + 1 is eʷ:

# %% name="silent"
w = torch.linspace(0.5, 2, 4, device=device, requires_grad=True)
y = w.exp()
y.data.add_(1)
y.sum().backward()
off = ((w.grad - w.detach().exp()).norm() / w.detach().exp().norm()).item()
print(f"through .data: no error, and the gradient is off by {off:.0%}")
refused = not attempt("through .detach(), which shares the version", lambda w: (y := w.exp(), y.detach().add_(1))[0])
claims.record("T12", "a write through .data is noticed", "exp, then add 1", float(off < 1e-6), "errors", 1, 1)
claims.record("T12", "a write through .detach() is noticed", "exp, then add 1", float(refused), "errors", 1, 1)

# %% [markdown] name="seven_text"
# ## 8 · 7B
#
# The planner ([[where_memory_goes]]) runs a 7B Llama on fake tensors, which take no memory: FP32 weights, one sequence of 512 tokens, every block checkpointed, so that the static part dominates. `planned` looks up plans that were made earlier and come with the course; a recipe that you change is planned on the spot, in about ten seconds. **Predict** the last line before you run it, from bytes a parameter, times 6.74 billion parameters.

# %% name="guess_seven"
my_guess = None  # GiB
### BEGIN GUESS
my_guess = 6.74e9 * 4 / 2**30  # the weights alone: no state to speak of, one gradient at a time
### END GUESS
seven_guess = Prediction("7B, FP32 weights, Adafactor inside the backward pass", my_guess, "GiB")

# %% name="seven"
job = {"model": "llama-2-7b", "precision": "fp32", "checkpointing": "every"}
fused, inside = {"optimizer_impl": "fused"}, {"step_in_backward": True}
SEVEN = {
    "AdamW, foreach": {},
    "AdamW, fused": fused,
    "AdamW, fused, inside": fused | inside,
    "8-bit AdamW": {"optimizer": "adamw-8bit"},
    "8-bit AdamW, inside": inside | {"optimizer": "adamw-8bit"},
    "Adafactor, for-loop, inside": inside | {"optimizer": "adafactor", "optimizer_impl": "for-loop"},
}
seven = dict(zip(SEVEN, planned([Recipe(**job | change) for change in SEVEN.values()]), strict=True))
print(f"{len(seven)} plans; making them took {sum(each.seconds for each in seven.values()):.0f} s")
seven_guess.reveal(seven["Adafactor, for-loop, inside"].peak_allocated_bytes / GiB)
for name, need in seven.items():
    size = need.peak_allocated_bytes
    print(f"{name:34}{size / GiB:>7.1f} GiB  {size / need.parameters:>6.1f} bytes a parameter")
largest, smallest = (seven[name].peak_allocated_bytes for name in ("AdamW, foreach", "Adafactor, for-loop, inside"))
print(
    f"last line: {smallest / largest:.2f} of the first; 4 + 4 bytes a parameter over 25 GB/s: {8 * need.parameters / 25e9:.1f} s"
)

# %% [markdown] name="seven_explained"
# That is the whole ladder, without a GPU, and every weight is trained in FP32. Above its weights, the last line holds the largest gradient with its temporaries (the embedding has 32,000 × 4,096 numbers), the logits, and the inputs of the blocks. (Under BF16 autocast, weight copies add 2 bytes a parameter to every line; [[mixed_precision]].)
#
# ### Paged and offloaded state
#
# There are two ways to have the state without holding it on the GPU:
#
# - **Paged** (`bitsandbytes.optim.PagedAdamW8bit`): the state is in CUDA's *unified* memory. It stays on the GPU while there is room, and pages move to the host when something else needs the space. You plan nothing, and a rare long batch breaks nothing. If it never fits, every step waits for the bus.
# - **Offloaded** (`torchao`'s `CPUOffloadOptimizer`, DeepSpeed's ZeRO-Offload): gradients travel to the host, the CPU takes the step, weights travel back. The state never costs the GPU a byte; each step moves 4 + 4 bytes a parameter in FP32. The line under the table says how long that takes over a bus of 25 GB/s. A long backward pass can hide it.
#
# A CPU has nowhere else to put the state, so there is nothing to measure here; [[sharding]] runs DeepSpeed's version.

# %% [markdown] name="play_text"
# ## 9 · Play
#
# Which optimizer, how many tokens, step inside or after? Find the number of tokens beyond which the step inside no longer helps `fused`. Work it out first: it is about where the activations take as much as all gradients; section 4 printed both.

# %% name="play"
WAYS = {
    "AdamW, foreach": LANES["AdamW, foreach"][0],
    "AdamW, fused": LANES["AdamW, fused"][0],
    "Adafactor": OPTIMIZERS["Adafactor"],
    "SGD": OPTIMIZERS["SGD"],
}


def picture(optimizer, tokens_in_batch, step):
    meter = metered(
        WAYS[optimizer], make_gpt, *tokens(tokens_in_batch), attach=step_inside if step == "inside" else None
    )
    return meter.plot(f"{optimizer}, {tokens_in_batch} tokens, step {step}: {human_bytes(meter.peak_bytes)}")


explore(
    picture,
    "Memory over one training step, tenant by tenant.",
    optimizer=("AdamW, fused", tuple(WAYS)),
    tokens_in_batch=(128, (16, 64, 128, 192, 256, 512)),
    step=("inside", ("inside", "after")),
)

# %% [markdown] name="summary_text"
# ## 10 · Before and after

# %% name="summary"
peaks["AdamW, fused, inside"] = metered(LANES["AdamW, fused"][0], attach=step_inside)
peaks["Adafactor, inside"] = metered(OPTIMIZERS["Adafactor"], attach=step_inside)
peaks["SGD, inside"] = metered(OPTIMIZERS["SGD"], attach=step_inside)
first = peaks["AdamW, foreach"].peak_bytes
for name, meter in sorted(peaks.items(), key=lambda item: -item[1].peak_bytes):
    print(
        f"{name:24}{human_bytes(meter.peak_bytes):>11}{meter.peak_bytes / phi:>7.2f} bytes a parameter{first / meter.peak_bytes:>6.1f}x less"
    )
claims

# %% [markdown] name="recap"
# ## Recap
#
# - State: SGD 0, momentum 4, Adam 8, 8-bit Adam a little over 2, 4-bit a little over 1, Adafactor almost 0 bytes a parameter. "Two thirds" is right for one way of counting in six.
# - A verdict on a format or an optimizer holds only for a learning rate and a number of steps: SGD on the transformer is far behind at equal steps and close after three times as many.
# - `foreach` holds one more copy of the weights in its step; `fused` none.
# - The step inside the backward pass gives the same numbers without a full set of gradients; no accumulation, no joint clipping, no loss scaler.
# - In place helps if the derivative follows from the output and the input would otherwise have been kept. Never write through `.data`.
#
# | Your peak | Reach for |
# |---|---|
# | in the optimizer step | `fused=True`: costs nothing |
# | state, throughout | 8-bit AdamW; Adafactor; SGD for convolutional networks |
# | gradients, and you need no accumulation | the step inside the backward pass |
# | where activations are highest | not this lab: labs [[#mixed_precision]], [[#gradient_accumulation]], [[#activation_checkpointing]] |
#
# **Sources.** Shazeer and Stern 2018, *Adafactor*; Dettmers et al. 2022, *8-bit Optimizers via Block-wise Quantization*; Li et al. 2023, *Memory Efficient Optimizers with 4-bit States*; Lv et al. 2023, *Full Parameter Fine-tuning for Large Language Models with Limited Resources* (LOMO); Zhang et al. 2024, *Why Transformers Need Adam*;
# PyTorch tutorial *How to save memory by fusing the optimizer step into the backward pass*; PyTorch documentation: `torch.optim`, *Autograd mechanics* (in-place operations).
