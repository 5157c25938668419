# %% [markdown] name="title"
# # Start here
#
# **Your program, far more than your hardware, determines how much memory a training step needs. You can predict that number, and then measure every byte of it
# on the machine in front of you.**
#
# | | |
# |---|---|
# | After this you can | predict, measure and explain the memory of a small training step; read the verdict of a check; say what your machine can do |
# | Time | 20 minutes |
# | Difficulty | ●○○ |
# | Needs | a CPU |
# | Before this | nothing; you have trained a model with PyTorch before |
# | Syllabus | how the labs work; a first look at T2 |
#
# Run a cell with **Shift + Enter**. Start with the next one.

# %% name="setup" setup=true
from helpers import (
    MemoryMeter,
    Prediction,
    check,
    compare,
    device_name,
    hint,
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
# Every lab runs on the machine you have. On a GPU the figures come from PyTorch's CUDA allocator, and on a CPU from the log of PyTorch's CPU allocator. The
# **bytes** are equally real in both places. The **seconds** depend on your device, so a lab compares two versions of a program in the same run and
# never tells you how many milliseconds to expect.

# %% name="machine"
for name, dtype in {"FP32": torch.float32, "BF16": torch.bfloat16, "FP16": torch.float16}.items():
    print(f"{name}: {torch.finfo(dtype).bits // 8} bytes per number, supported here: {supports(dtype, device)}")

# %% [markdown] name="doctor_text"
# In a terminal, `python -m helpers doctor` prints this and more: memory, versions, what is missing and how to get it.
#
# ## 2 · Predict
#
# If a course only hands you numbers, you forget them by Friday. So before each figure, you write down a guess. A wrong guess costs nothing. Guesses are
# saved on your machine, and `python -m helpers progress` shows how far off each one was.
#
# The model below is a single linear layer from 1,024 to 1,024 features, without a bias. **How many MiB do its parameters hold** in FP32? Replace
# `None` with your number. (This first prediction is plain arithmetic, to show how predictions work.)

# %% name="guess_parameters"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 1024 * 1024 * 4 / 2**20  # one number per weight, 4 bytes per number, 2**20 bytes per MiB
### END GUESS
parameter_guess = Prediction("Parameters of the layer", my_guess, "MiB")

# %% [markdown] name="measure_text"
# ## 3 · Measure
#
# `MemoryMeter` measures what happens in its `with` block. If you give it the model, it reports the model's bytes separately. An empty block shows what is already in memory.

# %% name="measure_parameters"
layer = nn.Linear(1024, 1024, bias=False, device=device)
with MemoryMeter(layer) as meter:
    pass
parameter_guess.reveal(meter.peak_bytes / 2**20)

# %% [markdown] name="units_text"
# > **Note:** 1 MiB is 2²⁰ = 1,048,576 bytes, and 1 GiB is 2³⁰ bytes. 1 GB, the unit of disks and papers, is 10⁹ bytes. A "28 GB" model is 26.1 GiB. This is a common
# > source of confusion, so every figure here carries its unit.
#
# ## 4 · Predict again: a whole step
#
# Now train that layer for one step with Adam, on a batch of 32 rows. Think about what needs memory: the parameters, a gradient for each of them, what
# Adam remembers about each (two running averages), and what the forward pass saves for the backward pass.
#
# **How many MiB at the peak?**

# %% name="guess_step"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 4 + 4 + 8  # parameters, gradients, two averages for Adam; 32 rows of activations are negligible
### END GUESS
step_guess = Prediction("Peak of one training step", my_guess, "MiB")

# %% name="measure_step"
optimizer = torch.optim.Adam(layer.parameters(), foreach=False)  # one parameter after another, on every device
rows = torch.randn(32, 1024, device=device)


def train_step():
    optimizer.zero_grad()
    loss = layer(rows).square().mean()
    loss.backward()
    optimizer.step()


train_step()  # Adam creates its averages in the first step; measure the second
with MemoryMeter(layer, optimizer) as meter:
    train_step()
step_guess.reveal(meter.peak_bytes / 2**20)

# %% [markdown] name="explain_text"
# ## 5 · Explain
#
# If you said 16, you counted parameters, gradients and Adam's two averages, as most people do. The measurement is higher. A difference between a prediction and a
# measurement is never just "overhead": every byte of it has a cause. Ask the meter what held the bytes at the peak, and during which operation.

# %% name="explain"
print(meter)

# %% [markdown] name="explained"
# The peak comes during the optimizer's step, and **temporaries** are part of it: to compute its update, Adam makes two tensors, each as
# large as the parameter it works on. This model has a single parameter tensor, so the two take twice as much memory as the whole model. They exist
# only briefly, but that is the moment of the peak. ([[Lean_optimizers]] shows how to avoid them.)
#
# What the forward pass saved is not part of this peak: the backward pass used it and freed it before the optimizer started.
#
# Here is the same step as a picture. Read it from left to right: forward, backward, optimizer step.

# %% name="plot"
show(
    meter.plot("One training step of a linear layer with Adam"),
    "Memory over time: parameters and optimizer state stay, gradients appear, temporaries rise in the optimizer's step.",
)

# %% [markdown] name="check_text"
# ## 6 · Check
#
# Every answer cell has a check in the next cell, which prints one verdict per line. A failed check shows what it saw and where to look.
# Results stay on your machine, in `.progress/progress.json`. (In Colab, that machine is deleted after the session: download the file if you want to keep it.) Here is your first task.
#
# ### Your turn: count bytes
#
# **Contract.** `parameter_bytes(model)` returns the number of bytes that the parameters of `model` (an `nn.Module`) hold, as an int. All parameters
# count, frozen ones too, whatever their dtype. A parameter that two layers share counts once.
#
# Replace the line that raises `NotImplementedError`, run the cell, and then run the check below it. If you are stuck, run the `hint` cell.


# %% name="bytes" answer=true reveal=true
def parameter_bytes(model):
    ### BEGIN SOLUTION
    return sum(p.numel() * p.element_size() for p in model.parameters())
    ### END SOLUTION


# %% name="bytes_check"
parameter_bytes = check("start_here.bytes", parameter_bytes)

# %% name="bytes_hint"
hint("start_here.bytes")

# %% [markdown] name="failing_text"
# ### A check that fails
#
# A check is useful only if it rejects wrong answers. Here is a plausible one: it assumes that every number takes 4 bytes. See what the
# diagnosis says about the cause.


# %% name="failing"
def assumes_fp32(model):
    return sum(p.numel() for p in model.parameters()) * 4


assumes_fp32 = check("start_here.bytes", assumes_fp32, counts=False)  # not your answer, so not your progress

# %% [markdown] name="time_text"
# ## 7 · Time
#
# Seconds are harder than bytes: the first calls are slow, a GPU is still working through its queue when your clock stops, and the machine has other
# things to do. `compare` warms up, waits for the device, and times two functions in pairs, one right after the other. Each pair gives a ratio; `compare`
# reports the median. **Predict:** one function gets a batch 16 times as large as the other's. How many times as long does it take?

# %% name="guess_time"
my_guess = None  # times as long
### BEGIN GUESS
my_guess = 16.0
### END GUESS
time_guess = Prediction("Time for 512 rows, compared with 32", my_guess, "times")

# %% name="time"
many_rows = torch.randn(512, 1024, device=device)
timing = compare(lambda: layer(many_rows), lambda: layer(rows), runs=30, warmup=5)
time_guess.reveal(timing.speedup)
print(timing)

# %% [markdown] name="time_explained"
# The answer need not be 16. A call has costs that do not grow with the batch, such as starting the operation and reading the weights. If your figure is
# below 16, a row takes less time in the large batch. That is one reason to want more memory. The next cell computes how much of it the weights of a 7B model take.

# %% name="bytes_of_a_7b"
print("7 billion parameters in FP32:", human_bytes(7e9 * 4), "in 16 bits:", human_bytes(7e9 * 2))

# %% [markdown] name="recap"
# ## Where to go from here
#
# - Each lab's card lists the codes of its techniques, pitfalls and claims (T4, P2, C7); `docs/codes.md` explains them. A **claim** is a
#   published statement, often repeated, that the labs test.
# - **Labs** teach a technique: predict, measure, explain, explore. The practice tasks carry no points, and each solution is one click away, below the
#   check.
# - **Exercises** (X1 to X7) are separate notebooks and are graded. You submit the notebook.
# - **Solved notebooks** for everything are in the course's repository, in `solutions/`. Try first, then look.
# - If a cell hangs, interrupt it (**Kernel → Interrupt Kernel**; in Colab, **Runtime → Interrupt execution**). **Kernel → Restart Kernel and Run All Cells** (in Colab, **Runtime → Restart session and run all**) starts over. You lose only the variables.
