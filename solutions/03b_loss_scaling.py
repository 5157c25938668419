# %% [markdown] name="title"
# # Loss scaling
#
# **FP16 cannot represent very small gradients. You write the scaler that saves them, find out where clipping belongs, and compare autocast with what large models use
# instead.**
#
# | | |
# |---|---|
# | After this you can | recognize a training run whose gradients are lost in FP16; write a dynamic loss scaler, and use `GradScaler`; put clipping in the right place; choose between autocast, master weights and FSDP's policy; compute losses and call `backward()` correctly |
# | Time | 65 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[mixed_precision]] |
# | Syllabus | T5, T6, T7, P2, P3 |
#
# Exercise X1, the graded notebook after this one, builds on this lab and the one before.

# %% name="setup" setup=true
import math

from helpers import (
    COLORS,
    MemoryMeter,
    Prediction,
    SmallGPT,
    category_table,
    check,
    device_name,
    digits,
    english,
    explore_loss_scale,
    hint,
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
print(f"device: {device_name(device)}, torch {torch.__version__}, meter: {MemoryMeter().method}, 16 bits: {HALF}")

# %% [markdown] name="underflow_text"
# From [[mixed_precision]] you need this: under autocast, weights and their gradients are FP32, but matmuls and convolutions run in 16 bits. Their backward
# formulas do, too, so in a chain of such layers the gradients that travel from one to the next are 16-bit numbers.
#
# ## 1 · Small gradients in FP16
#
# FP16 ends at 65504, and a number of 2⁻²⁵ (3e-8) or less becomes zero. Are real gradients that small? It depends on how the loss is averaged. Take a network that removes noise
# from handwritten digits. Its loss is a mean over all pixels of a batch, and in a model with several tasks such a term often gets a small weight, here 0.0001. Each
# pixel's share of the loss is tiny, and so is its gradient.


# %% name="denoiser"
def make_denoiser(width=8):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1)).to(device)


def denoise_loss(model, x, dtype, weight=1e-4):
    """Return the weighted loss of one term among several, and the plain error, for images `x`, to which it adds noise."""
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


data = digits(device, size=16)
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
def train_denoiser(dtype, scaler=None, weight=1e-4, epochs=2):
    """Train; return the mean error of the first and the last epoch, and the share of zeros among gradients, in %."""
    model = make_denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    if scaler is None:
        scaler = torch.amp.GradScaler(device.type, enabled=False)
    errors, zeros = [], []
    for _ in range(epochs):
        for index in torch.randperm(len(data.train_x)).split(128):
            optimizer.zero_grad()
            loss, error = denoise_loss(model, data.train_x[index], dtype, weight)
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
with sign_of_life("three training runs"):
    runs = {name: train_denoiser(dtype) for name, dtype in {"FP32": FP32, "BF16": BF16, "FP16": FP16}.items()}
for name, run in runs.items():
    print_run(name, run)

# %% [markdown] name="control_explained"
# FP16 does not learn because all its gradients are zero, yet it raises no error and produces no NaN. BF16 has FP32's range and needs no precautions.
#
# Now make the loss ten times as large: set the weight to 0.001 instead of 0.0001.
#
# **Predict.** What is the error in the last epoch of the FP16 run, still without a scaler?

# %% name="guess_larger"
my_guess = None
### BEGIN GUESS
my_guess = 0.5  # the list above: times 16, nearly all gradients still become zero
### END GUESS
larger_guess = Prediction("FP16, weight 0.001: error in the last epoch", my_guess, "")

# %% name="larger"
with sign_of_life("two training runs"):
    runs = {name: train_denoiser(dtype, weight=1e-3) for name, dtype in {"FP32": FP32, "FP16": FP16}.items()}
larger_guess.reveal(runs["FP16"][1])
for name, run in runs.items():
    print_run(f"{name}, weight 0.001", run)
share = 100 * ((nonzero * 10).half() == 0).float().mean().item()  # ten times the gradients of section 1
print(f"gradients of activations that become zero in FP16: {share:.1f}%")

# %% [markdown] name="larger_explained"
# The run learns, although the last line shows that nearly all gradients of activations become zero. A weight's gradient is a sum over many pixels, so fewer weight gradients become zero: the sum survives as long as
# some of its terms do. Such a sum is wrong (section 2 measures by how much; its line for 2^3 comes close to this case), but Adam divides each gradient by its own size, so a step is as large as ever.
#
# Compare the two runs' errors. The FP16 run may even end lower than FP32's. One run of two epochs each does not show a benefit of lost gradients: different gradients send the runs along different paths.
# So the loss does not reveal the problem. The zeros among the weights' gradients do, if you count them. Because the loss looks normal, the mistake is hard to find: the same training code works for one loss and fails for another that is ten
# times smaller.

# %% [markdown] name="explorer_text"
# ### Explore: find the right loss scale
#
# The histogram shows the denoiser's real gradients. Move the slider until nothing is lost and nothing overflows. How much
# room is there, in powers of two? (A loss scaler will find less room: weight gradients are sums over many of these and overflow sooner.)

# %% name="explorer"
explore_loss_scale(gradients, log2_scale=0)

# %% [markdown] name="scaling_text"
# ## 2 · Loss scaling, by hand and automatic
#
# The gradient is linear in the loss. Multiply the loss by S, and every gradient in the backward pass is S times as large and stays above FP16's minimum. Divide the FP32 weight gradients
# by S, and the update is the one you wanted. Below, the scale goes from 2⁰ to 2⁴⁰.

# %% name="scaling_by_hand"
x = data.train_x[:128]


def weight_gradient(dtype, scale):
    """Return the denoiser's weight gradients, with the loss multiplied by `scale` and the gradients divided by it."""
    model = make_denoiser()
    torch.manual_seed(1)  # the same noise each time
    (scale * denoise_loss(model, x, dtype)[0]).backward()
    return torch.cat([p.grad.flatten() / scale for p in model.parameters()])


true = weight_gradient(FP32, 1.0)
errors = {n: ((weight_gradient(FP16, 2.0**n) - true).norm() / true.norm()).item() for n in (0, 3, 8, 16, 24, 40)}
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
#   NaN. It skips only parameters whose `.grad` is None; if a frozen parameter has a gradient, that is divided, too. You may assume that at least one gradient exists. Gradients that contain inf are divided as well. Checking a sum or a norm of the gradient in FP32 instead of its elements is allowed.
# - `step(optimizer)` calls `unscale_` unless you have called it since the last `update()`. Then it calls `optimizer.step()` if all gradients are
#   finite. It returns True if it stepped and False if it skipped, and leaves the gradients where they are.
# - `update()` is called once after each step, and nothing else changes the scale. After a skipped step it multiplies the scale by `backoff_factor`. After `growth_interval` consecutive
#   good steps it multiplies the scale by `growth_factor`. Either one restarts the count of good steps.


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
LossScaler = check("loss_scaling.scaler", LossScaler)

# %% name="scaler_hint"
hint("loss_scaling.scaler")

# %% [markdown] name="scaler_own"
# Train the denoiser in FP16 once more, with the loss of section 1 and your scaler.

# %% name="scaler_trains"
with sign_of_life("one training run in FP16"):
    print_run("FP16, LossScaler", train_denoiser(FP16, LossScaler()))

# %% [markdown] name="scaler_pytorch"
# **Compare with PyTorch's `GradScaler`.** Start `LossScaler` and `GradScaler` at 2⁴⁴, far too high, let them grow after 12 good steps, and compare their scales.


# %% name="scaler_at_work"
def scales_of(scaler, steps=60):
    """Train the denoiser in FP16; return the scale of each step, and which steps were skipped."""
    model = make_denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scales, skipped = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss, _ = denoise_loss(model, data.train_x[:32], FP16)
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
usual = torch.amp.GradScaler(device.type)
print(f"GradScaler's defaults: start {usual.get_scale():g}, back off x{usual.get_backoff_factor():g},", end=" ")
print(f"grow x{usual.get_growth_factor():g} after {usual.get_growth_interval()} good steps")

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
# ## 3 · Clipping
#
# Gradient clipping limits the norm of the gradient. With a scaler, `.grad` holds the gradient times the scale. If you clip it in this state, to
# norm 0.01, and the scaler then divides it by the scale, SGD takes a step that is too short by a factor equal to the scale, 65,536. Adam, however, normalizes its gradients.
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
# ## 4 · What large models use instead
#
# Autocast decides operation by operation. Training code for language models mostly casts whole models, in one of two ways. Both use BF16, which needs no scaler.
#
# - **BF16 weights with FP32 master weights**, as in [[mixed_precision]], section 2: the model exists in BF16, and the optimizer owns an FP32 copy.
# - **A mixed-precision policy**, as in FSDP2: `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)` keeps the FP32 weights, casts each block's weights and
#   inputs to BF16 before it runs, and adds up the ranks' gradients in FP32 ([[fully_shard]]).
#
# In both, norms and the residual stream are in BF16, too. The cell below casts all weights at once, with `functional_call`, and keeps the copies up to the backward pass. (FSDP2
# casts block by block and frees each block's copies after use, so it holds fewer of them at a time.) On a GPU without hardware for BF16 the cell computes in FP16.
#
# The error of a gradient is its distance from FP32's.
#
# **Predict.** For a small GPT, divide the gradient error with all weights cast by the gradient error under autocast. What do you get?

# %% name="guess_policy"
my_guess = None
### BEGIN GUESS
my_guess = 1  # the matmuls are in BF16 in both
### END GUESS
policy_guess = Prediction("Error of the gradient, all weights cast / autocast", my_guess, "times")


# %% name="policy"
text = english(device)
ids = text.train_x[: 8 * 128].view(8, 128).clone()
next_ids = text.train_y[: 8 * 128].view(8, 128).clone()


def under_autocast(model, dtype):
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != FP32):
        return model(ids)


def all_weights_cast(model, dtype):
    cast = {name: p.to(dtype) for name, p in model.named_parameters()}
    return torch.func.functional_call(model, cast, (ids,))


def second_step(forward, dtype):
    """Take two steps of the GPT; return the meter of the second, and its gradient."""
    torch.manual_seed(0)
    model = SmallGPT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # creates its state, and leaves the weights alone

    def step():
        optimizer.zero_grad()
        F.cross_entropy(forward(model, dtype).float().flatten(0, -2), next_ids.flatten()).backward()
        optimizer.step()

    step()
    with MemoryMeter(model, optimizer) as meter:
        step()
    return meter, torch.cat([p.grad.flatten() for p in model.parameters()])


# %% name="policy_measured"
fp32, true = second_step(under_autocast, FP32)
meters, errors = {"FP32": fp32}, {}
for name, forward in {"autocast": under_autocast, "all cast": all_weights_cast}.items():
    meters[name], gradient = second_step(forward, half)
    errors[name] = ((gradient - true).norm() / true.norm()).item()
policy_guess.reveal(errors["all cast"] / errors["autocast"])
show_table(category_table(meters))
for name, error in errors.items():
    print(f"{name:10} gradient off by {error:.1e}")

# %% [markdown] name="policy_explained"
# With all weights cast, activations need fewer bytes than under autocast, because the residual stream is in 16 bits as well. The gradient is less accurate:
# compare the last two lines. Only a trial run shows whether your model tolerates casting all weights; large runs keep sensitive parts, such as the loss,
# in FP32.

# %% [markdown] name="loss_text"
# ## 5 · The loss, and where to call backward()
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
loss_guess = Prediction("Relative error of the BF16 loss", my_guess, "")

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
def gradient_of(inside, fp32_head=False):
    """Return the GPT's gradient under autocast; `backward()` runs inside of the region, or outside."""
    torch.manual_seed(0)
    model = SmallGPT().to(device)
    head, model.head = model.head, nn.Identity()
    with torch.autocast(device.type, dtype=half):
        hidden = model(ids[:2])
        with torch.autocast(device.type, dtype=half, enabled=not fp32_head):
            logits = head(hidden.float())
        loss = F.cross_entropy(logits.flatten(0, -2), next_ids[:2].flatten())
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    return torch.cat([p.grad.flatten() for p in (*model.parameters(), *head.parameters())])


outside, again, inside = gradient_of(False), gradient_of(False), gradient_of(True)
inside_guess.reveal(((inside - outside).norm() / outside.norm()).item())
print(
    f"bitwise equal: two runs outside: {torch.equal(outside, again)}; inside and outside: {torch.equal(outside, inside)}"
)
outside, inside = gradient_of(False, fp32_head=True), gradient_of(True, fp32_head=True)
print(f"with the output layer in FP32: {((inside - outside).norm() / outside.norm()).item():.1e}")

# %% [markdown] name="inside_explained"
# For this GPT it makes no difference. (If even the same gradient computed twice differs, the GPU added the numbers in a different order.)
# Autograd has recorded each cast, so the backward formulas of a matmul in 16 bits get 16-bit tensors in any case. The last line shows why the advice holds all the same: the matmuls in the
# backward pass of a layer that ran **in FP32** (here in a region with `enabled=False`) would otherwise stay in FP32, but inside the region autocast casts their inputs to 16 bits. So call `backward()` outside.
#
# A `torch.autograd.Function` of **your own** has no record of casts: decorate its `forward` with `torch.amp.custom_fwd` and its `backward` with `torch.amp.custom_bwd`. They make `backward` run under
# the autocast state of `forward`; without them it runs under whatever state is active when you call `backward()`.

# %% [markdown] name="recap"
# ## Recap
#
# - Without loss scaling, training in FP16 can fail without raising an error. BF16 does not need it.
# - A dynamic scaler starts high, halves the scale and skips the step at an inf or NaN, and doubles it after many good steps.
# - Order: scale, backward, unscale, clip, step, update.
# - Two methods cast whole models, residual stream included: FSDP's policy, and BF16 weights with FP32 masters.
# - Keep the loss in FP32, and call `backward()` outside the region. Decorate your own autograd functions with `custom_fwd` and `custom_bwd`.
#
# | Your device | Reach for |
# |---|---|
# | Ampere GPU or newer, TPU, recent CPU | BF16, no scaler |
# | T4, V100, older GPUs | FP16 autocast with `GradScaler` |
# | Apple GPU | measure BF16 and FP16; keep FP32 if neither helps |
#
# **Sources.** Micikevicius et al., *Mixed Precision Training* (2018), arXiv:1710.03740 · Kalamkar et al., *A Study of BFLOAT16 for Deep Learning Training* (2019), arXiv:1905.12322 ·
# PyTorch documentation: *Automatic Mixed Precision examples*, *fully_shard*.
