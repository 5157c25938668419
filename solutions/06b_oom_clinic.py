# %% [markdown] name="title"
# # The OOM clinic
#
# **"CUDA out of memory" gives a size, not a cause. Four questions find the cause: When is the peak? In which operation? Which category of memory fills it? What removes that memory?**
#
# | | |
# |---|---|
# | After this you can | find the moment, the operation and the category of a memory peak; diagnose and cure six common memory problems; read a snapshot that was taken at an out-of-memory error; choose between `no_grad` and `inference_mode`; retry a failed step |
# | Time | 75 to 85 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU where there is one |
# | Before this | [[memory_profiling]]; [[activation_checkpointing]] helps |
# | Syllabus | T15 |

# %% name="setup" setup=true
import contextlib
import math
import pickle
import tempfile
from pathlib import Path

from helpers import (
    Claims,
    MemoryMeter,
    OutOfMemory,
    Prediction,
    SmallGPT,
    check,
    compare,
    device_name,
    hint,
    human_bytes,
    peak_table,
    pick_device,
    show,
    show_table,
    stage_table,
)
from helpers.exercises.memory_profiling.built import still_there

# %% name="setup_torch" setup=true
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
from helpers.virtual_gpu.written import write_snapshot

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2**20
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="clinic_text"
# The tools are those of [[memory_profiling]]:
#
# - `MemoryMeter` records a program's allocations. `stage_table(meter)` shows the peak of each stage, and what is still held when the stage ends. `meter.peak_at` names the operation that runs at the peak,
#   and `peak_table(meter)` lists the largest tensors alive then.
# - `still_there(trace, since)` reads a snapshot and returns what was never freed, by place in the code. This lab imports the course's own.
# - Inside `virtual_gpu`, PyTorch behaves as if that GPU were there.
#
# There are six patients. For each of them, **find the moment of the peak, the operation and the category** before you read on. Then write the cure. The check runs your
# code under the meter. Your code must use no more memory than healthy code, and it must **compute the same numbers**, in the same precision. None of the cures needs `.item()`,
# which would make Python wait for the GPU in every step ([[traces]]).
#
# ## 1 · Patient A
#
# "It trains for an hour, then dies. The batches all have the same size."


# %% name="patient_a"
def sick_train_and_log(model, optimizer, batches):
    history = []
    for ids in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)
    return history


batches = [torch.randint(256, (8, 65), device=device) for _ in range(4)]
patient = SmallGPT(context=64, layers=2, width=64).to(device)
optimizer = torch.optim.SGD(patient.parameters(), lr=0.1)
with MemoryMeter(patient, optimizer) as meter_a:
    sick_train_and_log(patient, optimizer, batches)
show_table(stage_table(meter_a))
show(
    meter_a.plot("Patient A"),
    "Activations rise in four steps like a staircase: no step's saved activations are freed until the function returns.",
)

# %% [markdown] name="task_a"
# <details><summary>Diagnosis</summary>
#
# The peak is in the last backward pass, the category is activations, and each step adds as much as the one before. Two lines together cause it:
#
# - the list keeps every loss and, with it, the graph;
# - `retain_graph=True` keeps the tensors that the graph has saved.
#
# </details>
#
# **Contract.** `train_and_log(model, optimizer, batches)` trains as above and returns the list of losses (as numbers or tensors). No graph outlives
# its step.


# %% name="history" answer=true reveal=true
def train_and_log(model, optimizer, batches):
    ### BEGIN SOLUTION
    history = []
    for ids in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        history.append(loss.detach())  # the number, not the graph behind it
        del loss
    return history
    ### END SOLUTION


# %% name="history_check"
train_and_log = check("oom_clinic.history", train_and_log)

# %% name="history_hint"
hint("oom_clinic.history")

# %% [markdown] name="patient_a_text"
# How many steps does the sick version survive? The next cell gives it a model the size of GPT-2 and a virtual GPU of 24 GB, of which 23.1 GiB are available. It runs a single step first.


# %% name="patient_a_once"
def life_of_a(steps):
    """Train with patient A's code on a virtual RTX 4090; return the record of the run."""
    with virtual_gpu("rtx-4090-24gb") as run, contextlib.suppress(torch.OutOfMemoryError):
        large = SmallGPT(50257, 1024, layers=12, width=768).to("cuda")
        sgd = torch.optim.SGD(large.parameters(), lr=0.1)
        large_batches = (torch.randint(50257, (4, 1025), device="cuda") for _ in range(steps))
        sick_train_and_log(large, sgd, large_batches)
    return run


print(f"one step: peak {human_bytes(beside_real_gpu(life_of_a, 1).peak_allocated)}")

# %% [markdown] name="patient_a_guess_text"
# **Predict.** In which step does it run out of memory?

# %% name="patient_a_guess"
my_guess = None  # the number of the step, the first being 1
### BEGIN GUESS
my_guess = 5  # four such peaks fit
### END GUESS
life_guess = Prediction("Patient A runs out of memory in step", my_guess, "")

# %% name="patient_a_life"
life = beside_real_gpu(life_of_a, 20)
life_guess.reveal(len(life.steps), how="simulated")
print(f"each step leaves {human_bytes(life.left_behind.nbytes)} behind; held when memory runs out, by line:")
for line, nbytes in life.owners.lines.most_common(3):
    print(f"{human_bytes(nbytes):>12}  {line}")
show(
    life.plot("Patient A on a virtual RTX 4090"),
    "A staircase: every step adds the same amount of activations, with a spike on top, until the GPU is full.",
)

# %% [markdown] name="patient_a_life_explained"
# A step leaves behind only a part of its peak: the tensors that the graph has saved stay, and the temporaries are freed. So each step peaks one **stair** higher than the one before: step 7 would
# need 5.04 + 6 × 3.04 = 23.3 GiB. Dividing the available memory by the peak of a step gives too few steps.
#
# Nearly all of that memory was allocated by line 5 of patient A's cell, `loss = ...`, where the forward pass saved its tensors. The line that keeps them alive, `history.append(loss)`, is not in the list. A
# snapshot shows *where memory was allocated*. It does not show which reference keeps it alive; you have to find that one.
#
# [[Memory_profiling]] recommended a snapshot *at* the error. The next cell reads one. On the virtual GPU it is from the moment when patient A runs out of memory. On a real GPU it is from a loop that keeps 64 MiB per round. `still_there` reads both. The virtual GPU's file
# has no Python lines: each frame is named after the block's category, so there `still_there` returns categories.

# %% name="oom_snapshot"
oom_path = Path(tempfile.mkdtemp()) / "oom.pickle"
if device.type == "cuda":
    held, limit = [], (torch.cuda.memory_reserved() + 512 * MiB) / torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit))
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
    try:
        for _ in range(100):
            held.append(torch.empty(64 * MiB, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot(str(oom_path))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.set_per_process_memory_fraction(1.0)
else:
    write_snapshot(oom_path, life.ledger)
at_error = pickle.loads(oom_path.read_bytes())["device_traces"][device.index or 0]
refused = [human_bytes(event["size"]) for event in at_error if event["action"] == "oom"]
print(f"{len(at_error):,} events; refused: {', '.join(refused)}")
for place, size in sorted(still_there(at_error, since=0).items(), key=lambda item: -item[1])[:3]:
    print(f"{human_bytes(size):>12} alive at the error: {place}")
held = None

# %% [markdown] name="oom_snapshot_explained"
# The event `oom` records the size of the request that failed. Everything that was alive at that moment is in the file, so you can diagnose a run that died overnight.

# %% [markdown] name="patient_b_text"
# ## 2 · Patient B
#
# "A small model with a large vocabulary. It dies right after the loss."
#
# **Predict.** How many tensors of shape rows × vocabulary are alive at the peak?

# %% name="patient_b_guess"
my_guess = None  # tensors of rows x vocabulary at the peak
### BEGIN GUESS
my_guess = 4  # as at the peak of a GPT's step: logits, log-softmax, and the gradients of both
### END GUESS
logits_guess = Prediction("Tensors of rows x vocabulary at the peak", my_guess, "tensors")


# %% name="patient_b"
def sick_head_loss(head, hidden, targets):
    logits = head(hidden).float()  # (rows, vocabulary)
    return F.cross_entropy(logits, targets)


torch.manual_seed(0)
head = nn.Linear(64, 4000, bias=False).to(device)
hidden = torch.randn(1024, 64, device=device, requires_grad=True)
targets = torch.randint(4000, (1024,), device=device)
with MemoryMeter(head) as meter_b:
    sick_head_loss(head, hidden, targets).backward()
alive = [life for life in meter_b.lifetimes if life.start <= meter_b.peak_time < (life.end or math.inf)]
as_large = sum(life.nbytes >= 1024 * 4000 * 4 for life in alive)  # CUDA's blocks may be a little larger
logits_guess.reveal(as_large)
show_table(peak_table(meter_b, rows=4))

# %% [markdown] name="task_b"
# Three: the log-softmax, its gradient, and the gradient of the logits. The logits themselves have been freed, because no variable refers to them, and the
# backward pass needs only the log-softmax. Checkpointing the whole head would not lower the peak, because it recomputes all logits at this
# very moment ([[selective_checkpointing]]). But rows are independent, so you can process them in chunks and checkpoint each chunk.
#
# **Contract.** `head_loss(head, hidden, targets)` returns the mean cross-entropy over all rows as a scalar tensor. The caller may multiply it by a number before it calls `backward()`.
#
# - `hidden` is (rows, width) and `targets` is (rows,). Every row counts. The number of rows need not be a multiple of 128.
# - At most 128 rows of logits exist at a time, in the backward pass too.
#
# (Once you know how it works, use PyTorch's: 2.13 has `F.linear_cross_entropy` with chunking, see [[fused_kernels]].)


# %% name="head" answer=true reveal=true
def head_loss(head, hidden, targets):
    ### BEGIN SOLUTION
    def chunk_loss(rows, labels):
        return F.cross_entropy(head(rows).float(), labels, reduction="sum")

    total = 0
    for rows, labels in zip(hidden.split(128), targets.split(128), strict=True):
        total = total + checkpoint(chunk_loss, rows, labels, use_reentrant=False)
    return total / len(targets)
    ### END SOLUTION


# %% name="head_check"
head_loss = check("oom_clinic.head", head_loss)

# %% name="head_hint"
hint("oom_clinic.head")

# %% [markdown] name="patient_c_text"
# ## 3 · Patient C
#
# "Training fits. It dies during evaluation, which does not even have a backward pass!"
#
# **Predict.** Four batches are evaluated, one after the other. How many batches' activations are held at the peak?

# %% name="patient_c_guess"
my_guess = None  # batches
### BEGIN GUESS
my_guess = 1  # the next batch replaces the last one
### END GUESS
held_guess = Prediction("Batches whose activations are held at the peak", my_guess, "batches")


# %% name="patient_c"
def sick_evaluate(model, batches):
    total = 0
    for ids in batches:
        total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return total / len(batches)


with MemoryMeter(patient) as meter_one:
    sick_evaluate(patient, batches[:1])
with MemoryMeter(patient) as meter_c:
    sick_evaluate(patient, batches)
held = meter_c.at_peak["activations"] / meter_one.at_peak["activations"]
held_guess.reveal(held)
print(f"peak {human_bytes(meter_c.peak_bytes)} in {meter_c.peak_at}")

# %% [markdown] name="task_c"
# Autograd records every forward pass, because a `backward()` might follow, and `total` keeps all four graphs alive.
#
# **Contract.** `evaluate(model, batches)` returns the mean of the batches' losses (a number or a tensor). Each batch has the same weight. The
# model's parameters, gradients and mode are the same afterwards as before, and so is autograd's setting (on or off). You may switch to `eval()` in between.


# %% name="evaluation" answer=true reveal=true
def evaluate(model, batches):
    ### BEGIN SOLUTION
    total = 0
    with torch.no_grad():
        for ids in batches:
            total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return total / len(batches)
    ### END SOLUTION


# %% name="evaluation_check"
evaluate = check("oom_clinic.evaluation", evaluate)

# %% name="evaluation_hint"
hint("oom_clinic.evaluation")

# %% [markdown] name="inference_text"
# ### `no_grad` or `inference_mode`?
#
# PyTorch's documentation calls `torch.inference_mode()` the "extreme" version of `no_grad`. Tensors made under it are *never* part of a graph, so PyTorch skips two more
# kinds of bookkeeping: the **version counter**, which detects in-place changes, and the tracking of **views**.
#
# **Predict.** Run a thousand additions of *four numbers*, each with two views, under both. By what factor is `inference_mode` faster than `no_grad`?

# %% name="inference_guess"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 1.1  # less bookkeeping for each operation
### END GUESS
faster_guess = Prediction("Tiny operations, inference_mode versus no_grad", my_guess, "times as fast")


# %% name="inference"
def evaluation(mode):
    with mode():
        return sick_evaluate(patient, batches)


def tiny(mode):
    with mode():
        x = torch.ones(4, device=device)
        for _ in range(1000):
            x = x.view(2, 2).view(4) + 1


def pace(work):
    return compare(lambda: work(torch.no_grad), lambda: work(torch.inference_mode), runs=20)


peaks = {}
for mode in (torch.no_grad, torch.inference_mode):
    with MemoryMeter(patient) as meter_mode:
        evaluation(mode)
    peaks[mode] = meter_mode.peak_bytes
left = peaks[torch.inference_mode] / peaks[torch.no_grad]
faster_guess.reveal(pace(tiny).speedup)
print(f"the evaluation, no_grad -> inference_mode: {pace(evaluation)}; {left:.2f} times the peak")
claims.record("T15", "inference_mode takes less memory than no_grad", "an evaluation", left, "times", 0, 0.98)

# %% name="inference_price"
with torch.inference_mode():
    features = torch.ones(1, 64, device=device)
for use in (lambda: features._version, lambda: nn.Linear(64, 1).to(device)(features).sum().backward()):
    try:
        use()
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown] name="inference_explained"
# - **Memory.** The same. This bookkeeping holds no tensor data. Activations dominate, and both modes drop them.
# - **Time.** `inference_mode` saves a little for each operation and each view. For such small operations, that is a noticeable share of the time. The interval above tells you
#   whether it shows in the evaluation: an interval that includes 1 shows no difference, whatever the two times are.
# - **The price** shows in the two messages. Without a version counter autograd cannot detect a change, so it refuses to save such a tensor. Features that were
#   computed under `inference_mode` cannot be fed directly to a layer that trains; clone them outside the block first.
#
# In a training loop's evaluation, use either. If the results feed training, use `no_grad`.

# %% [markdown] name="patient_d_text"
# ## 4 · Patient D
#
# "Forward and backward fit; I checked. Then it dies in the very first `optimizer.step()`." Adam allocates its state in the first step: two numbers per
# parameter.
#
# **Predict.** In the second step, the state is already there. How high is the peak of its `optimizer.step()`, relative to the first step's?

# %% name="patient_d_guess"
my_guess = None  # peak of the second optimizer step / of the first
### BEGIN GUESS
my_guess = 0.6  # two numbers per parameter need not be allocated again
### END GUESS
state_guess = Prediction("Peak of the second optimizer step / of the first", my_guess, "times")

# %% name="patient_d"
torch.manual_seed(0)
tower = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).to(device)
optimizer = torch.optim.Adam(tower.parameters(), foreach=True)
rows = torch.randn(4, 256, device=device)
with MemoryMeter(tower, optimizer) as meter_d:
    for _ in range(2):
        optimizer.zero_grad()
        tower(rows).square().mean().backward()
        optimizer.step()
first_step, second_step = (stage.peak_bytes for stage in meter_d.stages if stage.name == "optimizer step")
state_guess.reveal(second_step / first_step)
show_table(stage_table(meter_d))
copies = meter_d.at_peak["temporaries"] / sum(p.nbytes for p in tower.parameters())
print(f"peak {human_bytes(meter_d.peak_bytes)} in {meter_d.peak_at}; temporaries: {copies:.2f} x the parameters")

# %% [markdown] name="task_d"
# At its peak, each step holds the state and temporaries. The state is needed. The temporaries are not. `foreach` runs each operation of Adam over *all* parameters before it starts the next operation, so every
# intermediate result exists for all parameters at once. On a GPU `foreach` is the default.
#
# **Contract.** `make_optimizer(parameters)` returns an optimizer with the same updates (up to rounding) as `torch.optim.Adam(parameters)`. Its step
# never holds temporaries for all parameters at once, on a GPU or a CPU.


# %% name="optimizer" answer=true reveal=true
def make_optimizer(parameters):
    ### BEGIN SOLUTION
    return torch.optim.Adam(parameters, fused=True)  # one kernel; the for-loop would do as well
    ### END SOLUTION


# %% name="optimizer_check"
make_optimizer = check("oom_clinic.optimizer", make_optimizer)

# %% name="optimizer_hint"
hint("oom_clinic.optimizer")

# %% [markdown] name="patient_e_text"
# ## 5 · Patient E
#
# "We only log the mean of every layer's output. No parameter needs a gradient, and nothing is trained."
#
# **Predict.** By what factor do the hooks increase the bytes of temporaries at the peak?

# %% name="patient_e_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 1  # a mean is a single number
### END GUESS
hook_guess = Prediction("Temporaries at the peak, with hooks / without", my_guess, "times")


# %% name="patient_e"
def sick_log_means(model, means):
    """After each forward pass `means[name]` holds the mean of the output of that leaf module."""
    outputs = {}

    def hook(name):
        def remember(module, inputs, output):
            outputs[name] = output
            means[name] = outputs[name].mean()

        return remember

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))


watched = SmallGPT(context=64, layers=2, width=64).to(device).requires_grad_(False)
with MemoryMeter(watched) as meter_bare:
    for batch in batches:
        watched(batch[:, :-1])
sick_log_means(watched, {})
with MemoryMeter(watched) as meter_e:
    for batch in batches:
        watched(batch[:, :-1])
temporaries = meter_e.at_peak["temporaries"]
hook_guess.reveal(temporaries / meter_bare.at_peak["temporaries"])
print(f"peak {human_bytes(meter_e.peak_bytes)} in {meter_e.peak_at}, of which temporaries {human_bytes(temporaries)}")

# %% [markdown] name="task_e"
# `outputs` keeps every layer's output until the next batch replaces it. So all of them are alive at once, as in training.
#
# **Contract.** `log_means(model, means)` registers hooks on all leaf modules of `model`. After a forward pass `means[name]` is the mean of that module's
# output (a number, or a tensor without a graph). The hook keeps no output alive, even in training.


# %% name="hook" answer=true reveal=true
def log_means(model, means):
    ### BEGIN SOLUTION
    def hook(name):
        def remember(module, inputs, output):
            means[name] = output.detach().mean()  # one number, without a graph, and still on the device

        return remember

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))
    ### END SOLUTION


# %% name="hook_check"
log_means = check("oom_clinic.hook", log_means)

# %% name="hook_hint"
hint("oom_clinic.hook")

# %% [markdown] name="patient_f_text"
# ## 6 · Patient F
#
# "The first step fits, the second does not. It is plain SGD, so there is no optimizer state to allocate."
#
# Read the table and write down three things before you look at the code again: the moment of the peak, the operation, and the category whose bytes need
# not be there.


# %% name="patient_f"
def sick_train(model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        loss = F.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del loss
    return losses


torch.manual_seed(0)
regressor = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).to(device)
sgd = torch.optim.SGD(regressor.parameters(), lr=0.1)
examples = [tuple(torch.randn(512, 256, device=device) for _ in range(2)) for _ in range(2)]
with MemoryMeter(regressor, sgd) as meter_f:
    sick_train(regressor, sgd, examples)
show_table(stage_table(meter_f))
print(f"peak {human_bytes(meter_f.peak_bytes)} in {meter_f.peak_at}")

# %% [markdown] name="task_f"
# <details><summary>Diagnosis</summary>
#
# The peak is at the end of the second forward pass or right after it. During the first forward pass there were no gradients. During the second, all gradients of the first step are still
# alive, along with all activations: `zero_grad()` runs after the forward pass. Had it run before that pass, they would have been freed.
#
# </details>
#
# **Contract.** `train(model, optimizer, batches)` trains as above: one step per pair (inputs, targets), with the mean squared error. It returns the list of
# losses (as numbers or tensors). The model arrives without gradients, and no gradient of a step is alive during the next forward pass.


# %% name="train" answer=true reveal=true
def train(model, optimizer, batches):
    ### BEGIN SOLUTION
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()  # sets .grad to None, so the memory is free during the forward pass
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del loss
    return losses
    ### END SOLUTION


# %% name="train_check"
train = check("oom_clinic.second", train)

# %% name="train_hint"
hint("oom_clinic.second")

# %% [markdown] name="retry_text"
# ## 7 · After the error: trying again
#
# A common recovery is to catch the error and run the step again with half the batch. Here a step allocates 32 MiB and fails in its next operation. The handler tries
# again with 16 MiB.
#
# **Predict.** What is the peak in MiB if the second try runs inside the `except` block?

# %% name="retry_guess"
my_guess = None  # MiB
### BEGIN GUESS
my_guess = 32  # the failed step is over
### END GUESS
retry_guess = Prediction("Peak, second try inside the except block", my_guess, "MiB")


# %% name="retry"
def failing_step(rows, fails):
    activations = torch.zeros(rows, MiB // 4, device=device)  # 1 MiB per row
    if fails:
        raise OutOfMemory("the next operation of this step")
    return activations[0, 0].clone()


def inside():
    try:
        failing_step(32, fails=True)
    except OutOfMemory:
        failing_step(16, fails=False)


def after():
    try:
        failing_step(32, fails=True)
    except OutOfMemory:
        failed = True
    if failed:
        failing_step(16, fails=False)


peaks = {}
for handler in (inside, after):
    with MemoryMeter() as meter_retry:
        handler()
    peaks[handler] = meter_retry.peak_bytes / MiB
retry_guess.reveal(peaks[inside])
print(f"second try after the except block: {peaks[after]:.0f} MiB")

# %% [markdown] name="retry_explained"
# Inside the block, the failed step's activations are still alive: a caught exception holds its **traceback**, the traceback holds the frames, and the frames hold their local variables. Set a flag in the `except` block, leave it, then retry. In a notebook the traceback of an uncaught error
# also stays alive between cells (`sys.last_traceback`), and the failed step's tensors with it.

# %% [markdown] name="summary_text"
# ## 8 · The six patients
#
# | patient | where the peak was | category | cause | remedy |
# |---|---|---|---|---|
# | A | last backward pass, after a staircase | activations | a list keeps graphs | `.detach()`, no `retain_graph` |
# | B | start of the backward pass | activations, temporaries | all logits at once | chunks, each checkpointed |
# | C | forward, without a backward pass | activations | graphs that no backward pass uses | `torch.no_grad()`, or `torch.inference_mode()` |
# | D | optimizer step | temporaries | `foreach` works on all parameters at once | `fused=True` or `foreach=False` |
# | E | forward | temporaries | a hook keeps outputs | keep the mean, not the output |
# | F | second forward pass | gradients | the previous step's gradients are still alive | `zero_grad()` before the forward pass |
#
# Peaks before and after the cure, measured:


# %% name="summary"
def peak_of(model, optimizer, run):
    with MemoryMeter(model, optimizer) as meter:
        run()
    return meter.peak_bytes


patient_sgd = torch.optim.SGD(patient.parameters(), lr=0.1)
adam = make_optimizer(tower.parameters())
observed = SmallGPT(context=64, layers=2, width=64).to(device).requires_grad_(False)
log_means(observed, {})
for model in (head, regressor):
    model.zero_grad()
hidden.grad = None


def two_steps():
    for _ in range(2):
        adam.zero_grad()
        tower(rows).square().mean().backward()
        adam.step()


def watch_all():
    for batch in batches:
        observed(batch[:, :-1])


cured = {
    "A": (meter_a, peak_of(patient, patient_sgd, lambda: train_and_log(patient, patient_sgd, batches))),
    "B": (meter_b, peak_of(head, None, lambda: head_loss(head, hidden, targets).backward())),
    "C": (meter_c, peak_of(patient, None, lambda: evaluate(patient, batches))),
    "D": (meter_d, peak_of(tower, adam, two_steps)),
    "E": (meter_e, peak_of(observed, None, watch_all)),
    "F": (meter_f, peak_of(regressor, sgd, lambda: train(regressor, sgd, examples))),
}
for name, (sick, healthy) in cured.items():
    print(f"patient {name}: {human_bytes(sick.peak_bytes):>10} -> {human_bytes(healthy):>10}")
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Moment, operation, category, remedy: the stage table gives the moment, `peak_at` the operation, `peak_table` the category.
# - A snapshot shows where memory was allocated, not which reference keeps it alive.
# - A checkpointed head does not lower a peak at the loss, because all logits are recomputed when the backward pass starts. Chunks of rows, each checkpointed, do.
# - `no_grad` and `inference_mode` take the same memory. Results that feed training need `no_grad`.
# - Retry after the `except` block, not inside it.
#
# **What to reach for when**
#
# - A staircase: something holds on to graphs, or to views.
# - A memory spike at the loss: the logits. One in the optimizer step: its temporaries.
# - A broad peak of activations: labs [[#mixed_precision]], [[#gradient_accumulation]], [[#activation_checkpointing]].
#
# **Sources.** PyTorch FAQ, *My model reports "cuda runtime error(2): out of memory"*; PyTorch documentation, *Autograd mechanics* (`no_grad` and `inference_mode`) and *Understanding CUDA Memory Usage*
# (snapshots).
