# %% [markdown] name="title"
# # X1 · Train a CNN in mixed precision
#
# **Graded exercise, 10 points.** You write a loss scaler for two optimizers that step together, a training step that is correct for FP32, BF16
# and FP16, and the experiment that compares the three in memory, time and accuracy.
#
# | | |
# |---|---|
# | After this you can | write loss scaling for several optimizers; put unscaling, clipping and stepping in the right order; say what mixed precision saved and what it did not |
# | Time | 60 to 90 minutes |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[mixed_precision]] and [[loss_scaling]] |
# | Syllabus | X1 (T4, T5, T6, T7, C7, P2, P3) |
#
# There are three answer cells, each followed by its check. A check prints what it found and where to look; run it as often as you like. In a copy without reference answers the checks give no verdict; your instructor's grading does. When you are done, save the
# notebook under its current name: it is your submission.

# %% name="setup" setup=true
import time

from helpers import (
    MemoryMeter,
    SmallCNN,
    check,
    compare,
    device_name,
    digits,
    fp32_computed_as,
    hint,
    human_bytes,
    pick_device,
)

import torch
import torch.nn.functional as F

device = pick_device()
print(f"{device_name(device)} ({device.type}), torch {torch.__version__}")

# %% [markdown] name="scaler_task"
# ## Part 1 · One scaler, two optimizers (3 points)
#
# Many recipes train a model with two optimizers, one for the matrices and one for the rest. Both take part in the same step: if the gradients of one overflow, neither may
# step, or half of the model takes a step that the other half skips. `torch.amp.GradScaler` decides for each optimizer separately. Yours decides for both.
#
# **Contract.** `DynamicLossScaler` has these five methods of `torch.amp.GradScaler` and serves any number of optimizers:
#
# - `get_scale()` returns the current scale, a float.
# - `scale(loss)` returns the loss times the scale. `loss` is a scalar (0-dimensional) tensor.
# - `unscale_(optimizer)` divides the gradients of all this optimizer's parameters by the scale, in place, and records whether any element is inf or
#   NaN. It skips only parameters whose `.grad` is None; if a frozen parameter has a gradient, that is divided, too. You may assume that at least one gradient exists. It also divides gradients that contain inf. It is called at most once per optimizer
#   between two updates. Checking a sum or a norm of the gradient in FP32 instead of its elements is allowed.
# - `step(optimizer)` calls `unscale_(optimizer)` unless it was called for this optimizer since the last `update()`. Then it calls `optimizer.step()`, unless an inf or NaN has been found since
#   the last `update()` in the gradients of **any** optimizer. (The caller therefore calls `unscale_` for all optimizers before the first `step`.) It returns True if it stepped and False if it skipped, and leaves the gradients where they are.
# - `update()` is called once after `step` has been called for every optimizer, and nothing else changes the scale. The scale is not clamped. If an inf or NaN was found, it multiplies the scale by `backoff_factor`. After `growth_interval`
#   consecutive updates without one, it multiplies the scale by `growth_factor`. Both restart the count.


# %% name="scaler" answer=true
class DynamicLossScaler:
    """Finds a loss scale that does not overflow; its optimizers step together or not at all."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.current_scale = init_scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.good_steps = 0
        ### BEGIN SOLUTION
        self.unscaled = []  # optimizers that unscale_ was called for since the last update
        self.overflowed = False  # whether it found inf or NaN in any of them
        ### END SOLUTION

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
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            self.overflowed = True
        self.unscaled.append(optimizer)
        ### END SOLUTION

    def step(self, optimizer):
        ### BEGIN SOLUTION
        if optimizer not in self.unscaled:
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
        self.unscaled = []
        self.overflowed = False
        ### END SOLUTION


# %% name="scaler_check" points=3
check("x1.scaler", DynamicLossScaler)

# %% name="scaler_hint"
hint("x1.scaler")

# %% [markdown] name="step_task"
# ## Part 2 · One training step (5 points)
#
# **Contract.** `train_step(model, optimizers, scaler, images, labels, dtype, max_norm)` takes one step with all optimizers and returns the loss. It calls the model once.
#
# - `images` (B, 1, H, H) in FP32 and `labels` (B,) of int64 are on the model's device, and must not be modified. `optimizers` is a list of two; each owns a part of the model's parameters, and together they own all of them.
# - `dtype` is `torch.float32`, `torch.bfloat16` or `torch.float16`: what convolutions and linear layers compute in. The
#   weights stay FP32. Autocast is off again when the step ends.
# - The model arrives in training mode and stays in it.
# - The loss is the cross-entropy in FP32. Convert the logits to FP32 exactly once, after the model returns them. Without a scaler, `backward()` starts from this loss; with a scaler, it starts from the scaled loss. It may run inside the autocast block or after it. Without a scaler nothing is scaled, and whether a step with inf or NaN is skipped is up to you.
# - The **true** gradient (not the scaled one) is clipped to the norm `max_norm` over all parameters of the model together; the parts of `model` may differ from those of a `SmallCNN`.
# - `scaler` is None or a `torch.amp.GradScaler`, of which the step may use `scale`, `unscale_`, `step` and `update`. With a scaler, `update` is called once. If the gradient of either optimizer contains inf or NaN,
#   neither optimizer steps, and neither optimizer's state changes.
# - Gradients from earlier steps must not leak into this one. An optimizer may have several groups of parameters.
# - It returns the unscaled loss: a detached FP32 scalar tensor.
#
# The check gives your step PyTorch's own `GradScaler`, so this part does not depend on part 1.


# %% name="step" answer=true
def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    ### BEGIN SOLUTION
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(images)  # (B, classes)
    loss = F.cross_entropy(logits.float(), labels)
    if scaler is None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)  # clip the true gradient, not the scaled one
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if torch.isfinite(norm):  # GradScaler would skip only the optimizer whose own gradient overflowed
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return loss.detach()
    ### END SOLUTION


# %% name="step_check" points=5
check("x1.step", train_step)

# %% name="step_hint"
hint("x1.step")

# %% [markdown] name="compare_task"
# ## Part 3 · The experiment (2 points)
#
# **Contract.** `train(precision, seed, epochs)` trains a fresh `SmallCNN(width=16)` on `data = digits(device)`, images of 8 × 8 pixels, with your own
# `train_step`. FP16 uses your own `DynamicLossScaler`, or PyTorch's `GradScaler` if part 1 is not done yet, so this part does not depend
# on it.
#
# - `precision` is `"fp32"`, `"bf16"` or `"fp16"`; `seed` determines the initial weights and the order of the images.
# - Each epoch uses every training image once, in batches of 64. The smaller batch at the end of an epoch may be left out. A few extra steps, for the
#   meter or the clock, are allowed.
# - Two optimizers: `torch.optim.AdamW` with learning rate 3e-3 for `model.features`, `torch.optim.SGD` with learning rate 0.1 and momentum 0.9 for `model.head`, their other settings at their defaults. One scaler for the whole training run, and `max_norm=1.0`. Three
#   epochs are enough.
# - It returns a dict:
#   - `"model"`: the trained model;
#   - `"accuracy"`: the share of `data.test_x` that it labels correctly, in evaluation mode, between 0 and 1;
#   - `"peak_bytes"`: the peak of one whole training step with a full batch, from `MemoryMeter(model, optimizers)`. Do not measure the first step, in which Adam
#     creates its state. Create the batch before the meter starts, so that it measures `train_step(...)` and nothing else;
#   - `"step_seconds"`: seconds per training step, measured by one of Python's clocks (on a GPU, call `torch.cuda.synchronize()` before you read it) and averaged over steps that are neither the first nor the
#     metered one (the meter slows its step down).
#
# A format without hardware support is slow (FP16 on most CPUs, BF16 on a T4), so an epoch can take a few seconds there.

# %% name="compare" answer=true
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(precision, seed=0, epochs=3):
    ### BEGIN SOLUTION
    torch.manual_seed(seed)
    data = digits(device)
    model = SmallCNN(width=16).to(device)
    adam = torch.optim.AdamW(model.features.parameters(), lr=3e-3)
    optimizers = [adam, torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)]
    dtype = DTYPES[precision]
    scaler = DynamicLossScaler() if dtype == torch.float16 else None

    def step(images, labels):
        train_step(model, optimizers, scaler, images, labels, dtype, max_norm=1.0)

    order = [b for _ in range(epochs) for b in torch.randperm(len(data.train_x)).split(64)]
    batches = [(data.train_x[index], data.train_y[index]) for index in order]
    step(*batches[0])  # Adam creates its state here
    with MemoryMeter(model, optimizers) as meter:
        step(*batches[1])
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, lambda: None)
    wait()  # for what is still in the device's queue
    start = time.perf_counter()
    for batch in batches[2:]:
        step(*batch)
    wait()
    step_seconds = (time.perf_counter() - start) / len(batches[2:])

    model.eval()
    with torch.no_grad():
        accuracy = (model(data.test_x).argmax(1) == data.test_y).float().mean().item()
    return {
        "model": model,
        "accuracy": accuracy,
        "peak_bytes": meter.peak_bytes,
        "step_seconds": step_seconds,
    }
    ### END SOLUTION


# %% name="compare_check" points=2
check("x1.compare", train, train_step)

# %% name="compare_hint"
hint("x1.compare")

# %% [markdown] name="table_text"
# ## Your table
#
# The cell below runs your experiment once per format and prints the results. Which columns did mixed precision change? Accuracies with different seeds differ by a
# point or more ([[mixed_precision]], section 4), so a difference of that size between the rows says nothing about the formats.
#
# On a GPU, this network is too small to compare the speed of formats: its kernels are so short that launching them probably takes most of a step. So there the speed column comes from your `train_step` on a network with 256 channels and 1,024
# larger images. On a CPU the time depends on whether the CPU has instructions for the format, and the column gives no verdict.


# %% name="table"
def wide_step(precision):
    """Return a function that takes one of your steps, with a network that is large enough for a GPU."""
    wide, large = SmallCNN(width=256).to(device), digits(device, size=16)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (wide.features, wide.head)]
    scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
    batch = large.train_x[:1024].clone(), large.train_y[:1024].clone()
    return lambda: train_step(wide, optimizers, scaler, *batch, DTYPES[precision], 1.0)


def speed_of(precision):
    """Return the speedup of a step over FP32."""
    if device.type != "cuda":
        return "no verdict"
    with fp32_computed_as("ieee"):
        return f"{compare(wide_step('fp32'), wide_step(precision), runs=5).speedup:.2f}x"


try:
    results = {precision: train(precision) for precision in DTYPES}
except NotImplementedError:
    print("The table appears when parts 1 to 3 are done.")
else:
    print(f"{'':6}{'accuracy':>10}{'peak':>14}{'of FP32':>9}{'ms per step':>13}{'speed':>12}")
    base = results["fp32"]
    for precision, r in results.items():
        memory = r["peak_bytes"] / base["peak_bytes"]
        print(
            f"{precision:6}{r['accuracy']:>10.1%}{human_bytes(r['peak_bytes']):>14}{memory:>9.0%}"
            f"{r['step_seconds'] * 1e3:>13.1f}{speed_of(precision):>12}"
        )

# %% [markdown] name="explain"
# **Explain the memory column.** Double-click this cell and answer in two or three sentences. Which categories of memory shrank in 16 bits, and which did not?
# Why does no peak fall to half of FP32's? (Print the meter's profile in `train` to see the categories.) The grader does not read your answer; it is for you and your instructor.
#
# *Your answer:*

# %% [markdown] name="submit"
# ## Submit
#
# Save this notebook under its current name. Your instructor collects it as `YOUR_NAME/03b_x1_amp_cnn.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# The grader takes only your three answer cells, runs them with different random numbers, and applies the same ten checks. Changes
# elsewhere in the notebook make no difference.
