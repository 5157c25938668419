# %% [markdown] name="title"
# # Start here
#
# **Memory is a property of your program, not of your hardware: you can measure every byte of a training step on the machine in front of you, and
# predict it before you do.**
#
# | | |
# |---|---|
# | After this you can | predict, measure and explain the memory of a small training step; read the verdict of a check; say what your machine can do |
# | Time | 20 minutes |
# | Difficulty | ●○○ |
# | Needs | a CPU |
# | Before this | nothing; you have trained a model with PyTorch before |
# | Syllabus | the way of working; a first look at T2 |
#
# Run a cell with **Shift + Enter**. Start with the next one.

# %% name="setup" setup=true
from helpers import (
    MemoryMeter,
    Prediction,
    check,
    compare,
    device_name,
    human_bytes,
    pick_device,
    show,
    supports,
)

import torch
from torch import nn

device = pick_device()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}")
print(f"memory meter: {MemoryMeter().method}")

# %% [markdown] name="machine_text"
# ## 1 · Your machine
#
# Every lab runs on what you have. On a GPU the figures are those of CUDA's allocator; on a CPU they come from the log of PyTorch's CPU
# allocator. The **bytes** are as real in both places. The **seconds** are those of your device, so a lab compares two ways of doing something in the same run
# and never tells you what to expect in milliseconds.

# %% name="machine"
for name, dtype in {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}.items():
    print(f"{name}: {torch.finfo(dtype).bits // 8} bytes a number, computes here: {supports(dtype, device)}")

# %% [markdown] name="doctor_text"
# In a terminal, `python -m helpers doctor` says the same and more: memory, versions, what is missing and how to get it.
#
# ## 2 · Predict
#
# A course that tells you figures is forgotten by Friday. So before a figure comes, you write one down. A wrong guess costs nothing here, is not
# recorded, and is the best way to find out what you believe.
#
# The model below is one linear layer from 1,024 to 1,024 features, without bias. **How many MiB do its parameters hold** in
# FP32? Put your number in place of `None`.

# %% name="guess_parameters"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 1024 * 1024 * 4 / 2**20  # one number a weight, 4 bytes a number, 2**20 bytes a MiB
### END GUESS
parameter_guess = Prediction("Parameters of the layer", my_guess, "MiB")

# %% [markdown] name="measure_text"
# ## 3 · Measure
#
# `MemoryMeter` measures what happens in its `with` block. Give it the model, and it can tell the model's bytes from others. An empty block shows
# what is there before anything happens.

# %% name="measure_parameters"
layer = nn.Linear(1024, 1024, bias=False, device=device)
with MemoryMeter(layer) as meter:
    pass
parameter_guess.reveal(meter.peak_bytes / 2**20)

# %% [markdown] name="units_text"
# > **Note:** MiB is 2²⁰ = 1,048,576 bytes, GiB is 2³⁰. GB, with which disks and papers count, is 10⁹. A "28 GB" model is 26.1 GiB. Half
# > of all quarrels about memory figures are about that, so figures here carry their unit.
#
# ## 4 · Predict again: a whole step
#
# Now train that layer for one step with Adam, on a batch of 32 rows. Think of who needs memory: the parameters; a gradient for each; what Adam
# remembers for each (two running averages); and what the forward pass leaves behind for the backward pass.
#
# **How many MiB at the peak?**

# %% name="guess_step"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 4 + 4 + 8  # parameters, gradients, two averages for Adam; 32 rows of activations are next to nothing
### END GUESS
step_guess = Prediction("Peak of one training step", my_guess, "MiB")

# %% name="measure_step"
optimizer = torch.optim.Adam(layer.parameters())
rows = torch.randn(32, 1024, device=device)


def train_step():
    optimizer.zero_grad()
    loss = layer(rows).square().mean()
    loss.backward()
    optimizer.step()


train_step()  # Adam's averages are born in the first step; measure the second
with MemoryMeter(layer, optimizer) as meter:
    train_step()
step_guess.reveal(meter.peak_bytes / 2**20)

# %% [markdown] name="explain_text"
# ## 5 · Explain
#
# If you said 16, you counted parameters, gradients and Adam's two averages, as most people do. The measurement is higher. A difference between a prediction and a
# measurement is never "overhead": it has a name. Ask the meter who held the bytes at the peak, and during which operation.

# %% name="explain"
print(meter)

# %% [markdown] name="explained"
# There it is. The peak comes during the optimizer's step, and **temporaries** are part of it: to compute its update, Adam makes two tensors as large as the
# parameter it works on. This model is one single parameter, so they are twice the model. They live for a moment, but the memory must be there for
# that moment. ([[Lean_optimizers]] shows how to avoid them.)
#
# The same as a picture. Read it from left to right: forward, backward, optimizer step.

# %% name="plot"
show(
    meter.plot("One training step of a linear layer with Adam"),
    "Memory over time: parameters and optimizer state stay, gradients appear, temporaries rise in the optimizer's step.",
)

# %% [markdown] name="check_text"
# ## 6 · Check
#
# Exercises come with a check in the very next cell. It prints one verdict a line; a failed one says what it saw and what to look at. Nothing is counted or
# sent anywhere. Here is a first one.
#
# ### Your turn: count bytes
#
# **Contract.** `parameter_bytes(model)` returns how many bytes the parameters of `model` (an `nn.Module`) hold, an int. All parameters count, frozen ones too, whatever
# their dtype. A parameter that two layers share is one parameter.
#
# Replace the line that raises `NotImplementedError`.


# %% name="bytes" answer=true reveal=true
def parameter_bytes(model):
    ### BEGIN SOLUTION
    return sum(p.numel() * p.element_size() for p in model.parameters())
    ### END SOLUTION


# %% name="bytes_check"
check("start_here.bytes", parameter_bytes)

# %% [markdown] name="failing_text"
# ### A check that fails
#
# A check is worth something only if wrong answers fail it. Here is a plausible wrong one: it takes for granted that every number has 4 bytes. See
# how the check finds out, and how its diagnosis leads to the cause.


# %% name="failing"
def assumes_fp32(model):
    return sum(p.numel() for p in model.parameters()) * 4


check("start_here.bytes", assumes_fp32)

# %% [markdown] name="time_text"
# ## 7 · Time
#
# Seconds are harder than bytes: the first calls are slow, a GPU works through a queue while your clock already stops, and the machine has other things to do.
# `compare` warms up, waits for the device, and runs two functions alternately. **Predict:** the batch is 16 times larger in the second function. How
# much longer does it take?

# %% name="guess_time"
my_guess = None  # times as long
### BEGIN GUESS
my_guess = 16.0
### END GUESS
time_guess = Prediction("512 rows take, against 32", my_guess, "times as long")

# %% name="time"
many_rows = torch.randn(512, 1024, device=device)
timing = compare(lambda: layer(many_rows), lambda: layer(rows), runs=30, warmup=5)
time_guess.reveal(timing.speedup)
print(timing)

# %% [markdown] name="time_explained"
# Seldom 16. A call has costs that do not grow with the batch, such as starting the operation and reading the weights. When your figure is below 16, the large
# batch gets more out of the device for each row: one of the reasons for wanting memory.

# %% name="bytes_of_a_7b"
print("7 billion parameters in FP32:", human_bytes(7e9 * 4), "in 16 bits:", human_bytes(7e9 * 2))

# %% [markdown] name="recap"
# ## How to go on
#
# - Techniques, claims and pitfalls have numbers (T4, C7, P2) that stand on each lab's card. A **claim** is a sentence with a figure that people repeat; labs put it to the test.
# - **Labs** teach a technique: predict, measure, explain, play. Practice tasks in them carry no points, and their solution is one click away, under the check.
# - **Exercises** (X1 to X4) are notebooks of their own and are graded. You hand in the notebook.
# - **Solved notebooks** of everything lie in `solutions/`. Look when you have tried.
# - Stuck cell? **Kernel → Restart Kernel and Run All Cells** puts everything back; nothing is lost but the variables.
#
# Next: **03 · Mixed precision**, the first technique.
