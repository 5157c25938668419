# %% [markdown] name="title"
# # Reading traces
#
# **A trace records when every operation ran. From it you can compute what fraction of a step the processor is idle, and why. Then you know what to fix, and a correct comparison of times shows whether the fix helped.**
#
# | | |
# |---|---|
# | After this you can | read a profiler's trace, including one from a real GPU; profile a few steps of a long run; compare the speed of two programs correctly; diagnose a slow loop from its trace, and fix it |
# | Time | 80 to 105 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[where_the_time_goes]] |
# | Syllabus | T29, T30 |

# %% name="setup" setup=true
import functools
import json
import math
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from helpers import (
    COLORS,
    Claims,
    Prediction,
    SmallGPT,
    benchmark,
    check,
    compare,
    device_name,
    english,
    explore,
    gpu_trace,
    gpu_trace_source,
    hint,
    pick_device,
    show,
    time_line,
)
from helpers.core.device import synchronize

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

device = pick_device()
activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, threads: {torch.get_num_threads()}")

# %% [markdown] name="step_text"
# ## 1 · Reading a trace
#
# This lab uses two results of [[where_the_time_goes]]. An operation takes as long as its arithmetic or its memory traffic, whichever takes longer, plus a launch. On a GPU, the host launches operations into a queue and does not wait for their work. It waits only when Python reads a value.
#
# The next cell defines the step to profile: a small GPT, trained with AdamW.

# %% name="step"
BATCH, LENGTH, WIDTH, BLOCKS, VOCABULARY = 8, 128, 128, 4, 256
text = english(device)
ids = text.train_x[: BATCH * LENGTH].view(BATCH, LENGTH).clone()
targets = text.train_y[: BATCH * LENGTH].view(BATCH, LENGTH).clone()
torch.manual_seed(0)
model = SmallGPT(VOCABULARY, LENGTH, BLOCKS, WIDTH).to(device)
optimizer = torch.optim.AdamW(model.parameters())
print(f"{len(list(model.parameters()))} parameter tensors")


def step():
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% [markdown] name="traced_text"
# PyTorch's **profiler** records when each operation starts and ends. Its **trace** is a list of events in Chrome's format, which [ui.perfetto.dev](https://ui.perfetto.dev) draws. Here you read the list yourself.


# %% name="traced"
def traced(fn):
    """Run `fn` twice, the second time in the profiler, as "step"; return the events of the trace."""
    fn()
    synchronize(device)
    with profile(activities=activities) as recorded, record_function("step"):
        fn()
        synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


events = traced(step)
print(len(events), "events:", dict(Counter(event["ph"] for event in events)))
for event in [e for e in events if e["ph"] == "X" and e["name"] in ("step", "aten::linear", "aten::addmm")][:3]:
    print({key: event.get(key) for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur")})

# %% [markdown] name="trace_task"
# ### Your turn
#
# `ts` is when an event starts and `dur` how long it lasts, both in microseconds. `aten::linear` calls `aten::addmm`, so the same microseconds are in the trace twice, and the sum of all durations is too large. What you need is each operation's **self time**: its duration minus that of the events directly inside it.
#
# **Contract.** `self_times(events)` returns a dictionary: name → self time in microseconds, summed over all events of this name.
#
# - Only complete events are spans: those with `event["ph"] == "X"`. Other events mark moments or name threads, and may lack `ts` or `dur`. A trace may have no spans, or no events at all: then the dictionary is empty.
# - A span is inside another if both are on the same thread, the same `(pid, tid)`, and its interval is within the other's. Events of the same name may be nested.
# - Events come in any order. Of two that start together, the longer one is outside. No two events of a thread have both the same start and the same end.
# - A span may start in the very nanosecond in which the one before it ends. Then the two are side by side, not nested. Careful: the profiler counts whole nanoseconds and `ts` is large, so `ts + dur` is rounded and may be slightly later than the `ts` of the next event.
# - Do not change the events.


# %% name="trace" answer=true reveal=true
def self_times(events):
    ### BEGIN SOLUTION
    threads = defaultdict(list)  # (pid, tid) -> (start, -duration, name) in nanoseconds
    for event in events:
        if event["ph"] == "X":
            start, duration = round(1000 * event["ts"]), round(1000 * event["dur"])
            threads[event["pid"], event["tid"]].append((start, -duration, event["name"]))
    own = Counter()
    for spans in threads.values():
        around = []  # (end, name) of the spans that are open, the innermost last
        for start, minus, name in sorted(spans):
            while around and around[-1][0] <= start:
                around.pop()
            if around:
                own[around[-1][1]] += minus
            own[name] -= minus
            around.append((start - minus, name))
    return {name: nanoseconds / 1000 for name, nanoseconds in own.items()}
    ### END SOLUTION


# %% name="trace_check"
self_times = check("traces.self_times", self_times)

# %% name="trace_hint"
hint("traces.self_times")

# %% [markdown] name="longest_text"
# The next cell applies it to the step of the GPT. Section 1 printed how many parameter tensors the model has. On a CPU, AdamW updates them one by one, each with several operations.
#
# **Predict.** What percentage of the step's operations (events named `aten::...`) run in AdamW's update?

# %% name="longest_guess"
my_guess = None  # %
### BEGIN GUESS
my_guess = 15  # about its share of the step's time
### END GUESS
update_guess = Prediction("Operations of the step in AdamW's update", my_guess, "%")

# %% name="longest"
whole = next(e for e in events if e["name"] == "step" and e["cat"] == "user_annotation")
spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (whole["pid"], whole["tid"])]
own = self_times(events)
for what, total in (("durations", sum(e["dur"] for e in spans)), ("self times", sum(self_times(spans).values()))):
    print(f"the sum of all {what} on the step's thread: {total / whole['dur']:.2f} x the step")
print("the largest self times:")
for name in sorted((name for name in own if name.startswith("aten::")), key=own.get, reverse=True)[:3]:
    print(f"   {name[:40]:40} {own[name] / 1e3:8.2f} ms, {own[name] / whole['dur']:.0%} of the step")
operations = [e for e in events if e["ph"] == "X" and e["name"].startswith("aten::")]
update = next(e for e in spans if e["name"].startswith("Optimizer.step"))
in_update = [e for e in operations if update["ts"] <= e["ts"] < update["ts"] + update["dur"]]
print(f"{len(operations):,} operations, {len(in_update):,} of them in AdamW's update", end="; ")
print(f"the update takes {update['dur'] / whole['dur']:.0%} of the step")
update_guess.reveal(100 * len(in_update) / len(operations))

# %% [markdown] name="line_text"
# Here is the same trace as a timeline. Each row is a level of nesting: an operation was called by the one above it.

# %% name="line"
show(
    time_line(events, "One training step"),
    "Timeline of a step: forward pass, then the backward pass, then many small operations of the optimizer.",
)

# %% [markdown] name="line_explained"
# By default, AdamW on a CPU updates the parameters one by one, each with many small operations. On a GPU it updates all of them together (`foreach`), with far fewer operations. (Only this device's default runs here.)

# %% [markdown] name="schedule_text"
# ## 2 · The profiler in a real loop
#
# A trace of every step would fill the disk, and the first steps are not typical. `torch.profiler.schedule` skips some steps, warms up, and records a few. When a recording is complete, the profiler calls `on_trace_ready`, which saves it here. `key_averages()` adds up self times by operation, as you just did. On a GPU, sort it by `self_device_time_total`.
#
# `record_function("name")` marks a range of your own. For NVIDIA's Nsight Systems, mark ranges with `torch.cuda.nvtx.range("name")` and run `nsys profile python train.py`: its timeline also shows CUDA calls, NCCL and other processes.

# %% name="schedule"
trace_file = Path(tempfile.gettempdir(), "traces.json.gz")
with profile(
    activities=activities,
    schedule=schedule(wait=2, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda recorded: recorded.export_chrome_trace(str(trace_file)),
) as profiler:
    for _ in range(5):
        step()
        profiler.step()  # tells the schedule that a step has ended
sort_by = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
for row in profiler.key_averages().table(sort_by=sort_by, row_limit=4, max_name_column_width=34).splitlines()[:8]:
    print(row if len(row) <= 112 else f"{row[:111]}…")
print(f"saved as {trace_file.name} in the folder for temporary files; ui.perfetto.dev opens it")

# %% [markdown] name="clock_text"
# ## 3 · Comparing times correctly
#
# Before you make a program faster, learn to measure whether it is faster. Three mistakes are common.
#
# ### One call each
#
# Two versions of a layer multiply by a table of cosines. `computed` computes, in every call, the part of the table that it needs. `kept` computes a long table once and keeps it, as real models do.

# %% name="tables"
POSITIONS, NEEDED, FREQUENCIES = 2**15, 256, 256
signal = torch.randn(NEEDED, FREQUENCIES, device=device)


def cosines(positions):
    angles = torch.outer(torch.arange(positions, device=device), torch.logspace(0, -4, FREQUENCIES, device=device))
    return torch.cos(angles)


@functools.cache
def long_table():
    return cosines(POSITIONS)


def computed(x=signal):
    return x * cosines(NEEDED)


def kept(x=signal):
    return x * long_table()[:NEEDED]


def once(fn):
    synchronize(device)  # nothing from before is timed
    start = time.perf_counter()
    fn()
    synchronize(device)
    return time.perf_counter() - start


# %% [markdown] name="first_call_text"
# **Predict.** Each of the two is called once, and the call is timed. What is the time of `kept`, relative to that of `computed`?

# %% name="first_call_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 0.1  # it only multiplies
### END GUESS
call_guess = Prediction("kept / computed, one call each", my_guess, "times")

# %% name="first_call"
computed()  # it is not the first operation on this device; only `kept` has something left to do
naive = once(computed) / once(kept)
honest = compare(computed, kept)
call_guess.reveal(1 / naive)
print(f"after a warm-up, alternately: {honest}")
claims.figure("a single cold call", "kept table, naive / honest speed", naive / honest.speedup, "times")

# %% [markdown] name="drift_text"
# The first call to `kept` computed the long table. In general, a first call maps memory, chooses kernels, fills caches and compiles. Its time is real, but it is not the time of the other calls. So warm up first.
#
# ### The order
#
# Laptops get hot and slow down, and on a shared machine other jobs start. The next cell simulates such a machine: after each call it sleeps, longer each time. Call number i (counting from 0) takes 1 + i times as long as a call on an idle machine. So the first call takes its normal time, and the sixteenth takes 16 times as long. Two matmuls are timed on it. The second does half the work of the first. First, all eight runs of the larger one are timed, and then all eight runs of the smaller one. What counts is the median of each set of eight. After that, the two alternate.
#
# **Predict.** By what factor does the smaller matmul appear to be faster when all of its runs come last? (Below 1 means slower.)

# %% name="drift_guess"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 2  # half the work
### END GUESS
drift_guess = Prediction("The smaller matmul, timed last", my_guess, "times as fast")


# %% name="drift"
class Warming:
    """A machine that gets slower: call number i takes 1 + i times as long."""

    def __init__(self):
        self.calls = 0

    def run(self, fn):
        seconds = once(fn)
        time.sleep(self.calls * seconds)
        self.calls += 1


side = 1024 if device.type == "cpu" else 8192  # a GPU needs more to be busy
a, b = (torch.randn(side, side, device=device) for _ in range(2))
left, half, narrow = a[: side // 2], b[:, : side // 2].contiguous(), b[:, : side // 4].contiguous()
more_work, less_work = (lambda: left @ half), (lambda: left @ narrow)
machine = Warming()
blocks = [benchmark(lambda fn=fn: machine.run(fn), runs=8, warmup=0).median for fn in (more_work, less_work)]
machine = Warming()
paired = compare(lambda: machine.run(more_work), lambda: machine.run(less_work), runs=8, warmup=1)
drift_guess.reveal(2 * 4.5 / 12.5, "simulated")  # the medians of 1 to 8 and of 9 to 16; the work is 2 to 1
print(f"clocked here: {blocks[0] / blocks[1]:.2f} times as fast")
print(f"alternately: {paired.speedup:.2f} times as fast; by its FLOPs it should be 2")
subject = "drift simulated, smaller product"
claims.figure("timed one after the other", subject, blocks[0] / blocks[1], "times as fast")
if blocks[0] > blocks[1]:
    print("Other programs outweighed the simulated drift: no verdict.")
else:
    claims.record("T29", "timing in pairs finds the faster", subject, paired.speedup, "times as fast", 1, math.inf)

# %% [markdown] name="drift_explained"
# Timed in two separate blocks, the matmul with *less* work appears slower, because it runs later. In pairs, both see nearly the same machine. `compare` works this way, and prints the interval that holds the middle half of the pairs' ratios: if it contains 1, do not claim a difference. `compare` takes the median, because a single slow run would distort the mean. The minimum describes the machine when it is idle. That suits a cost model but is too optimistic for a plan.
#
# ### The queue
#
# On a GPU there is a third mistake. An operation returns as soon as it is *queued*, so a clock that stops then has timed only the queueing. `benchmark` and `compare` synchronize before they read the clock. The first time printed below is measured without that wait. With an NVIDIA GPU, a third time comes from **CUDA events**: the GPU itself records two time stamps in its queue, and the host waits only once, at the end.

# %% name="queue"
honest_matmul = benchmark(lambda: a @ b, runs=5).median
synchronize(device)
start = time.perf_counter()
a @ b
queued = time.perf_counter() - start
synchronize(device)
print(f"without waiting {1e3 * queued:.3f} ms, with {1e3 * honest_matmul:.3f} ms")
said = "a clock that does not wait measures only the queueing"
if device.type == "cpu":
    print("On a CPU an operation returns when it is done: there is no queue, and there are no CUDA events.")
    claims.not_measured("T29", said, "a matmul, needs a GPU")
else:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        a @ b
        end.record()
        end.synchronize()
        print(f"by CUDA events {begin.elapsed_time(end):.3f} ms")
    claims.record("T29", said, "a matmul, queued / done", queued / honest_matmul, "times", 0, 0.5)

# %% [markdown] name="clinic_text"
# ## 4 · The trace clinic
#
# Here are three slow evaluation loops. They evaluate a classifier on 2,000 small images.

# %% name="ward_data"
SAMPLES, PIXELS = 2_000, 1_024
generator = torch.Generator().manual_seed(0)
images = torch.randint(256, (SAMPLES, PIXELS), generator=generator, dtype=torch.uint8)  # in the host's memory
labels = torch.randint(10, (SAMPLES,), generator=generator)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(PIXELS, 16), nn.ReLU(), nn.Linear(16, 10)).to(device).eval()
pairs = zip(images.split(250), labels.split(250), strict=True)
loaded = [(x.to(device, torch.float32), y.to(device)) for x, y in pairs]

# %% name="patients"


@torch.no_grad()
def patient_a():
    right = 0
    for x, y in loaded:
        for guess, label in zip(net(x).argmax(1), y, strict=True):
            if guess == label:
                right += 1
    return right / SAMPLES


@torch.no_grad()
def patient_b():
    right = torch.zeros((), device=device)
    for rows in torch.arange(SAMPLES).split(50):
        everything = images.to(device, torch.float32)
        right += (net(everything[rows]).argmax(1) == labels[rows].to(device)).sum()
    return right.item() / SAMPLES


@torch.no_grad()
def patient_c():
    right = torch.zeros((), device=device)
    for x, y in loaded:
        guesses = torch.stack([net(image).argmax() for image in x])
        right += (guesses == y).sum()
    return right.item() / SAMPLES


patients = {"A": patient_a, "B": patient_b, "C": patient_c}
charts = {name: traced(patient) for name, patient in patients.items()}
for name, patient in patients.items():
    print(f"patient {name}: {benchmark(patient, runs=3, warmup=0)}, accuracy {patient():.3f}")

# %% [markdown] name="clinic_task"
# Before you go on, look at the code alone and write down what is wrong with A, with B and with C.
#
# ### Your turn
#
# Three signs tell these problems apart. The first question is always whether the processor is idle. If it is busy with useful work, there is nothing to fix in the loop: a few reads or copies that hide behind running kernels cost nothing.
#
# - **idle**: the fraction of the step in which the processor does no useful work. On a GPU: no kernel runs. On a CPU: no operation runs other than copies and reads of values.
# - **items**: how often Python waits to read the value of a tensor. `if`, `float()`, `print` and `.item()` all end in `aten::item`. On a GPU, reading a value there waits until everything queued before it is done, and in the meantime nothing new is queued; the trace then shows `cudaStreamSynchronize` inside `aten::item`. A value in host memory is read without waiting: AdamW keeps its step counters there and reads one per parameter. On a CPU each read costs only Python overhead.
# - **copying**: the fraction of the step in which a copy runs and no kernel does.
#
# **Contract.** `signs(events)` returns a dictionary with these three signs, for the step in the trace. Do not change the events.
#
# - The step is the event named `step` of the category (`event["cat"]`) `user_annotation`; a GPU's trace has another event of that name. `idle` and `copying` are fractions of that event's `dur`. Events outside it do not count, and no event straddles its boundaries. (`ts` and `dur` are rounded to whole nanoseconds: compare integers, as in the first task, or the time stamps `ts` alone.) Only complete events (`ph` is `X`) are spans.
# - *Operations* are the events on the step's thread whose name starts with `aten::`. *Kernels* are the events of the category `kernel` inside the step, on any stream. Wherever several events run at once, or inside each other, that time counts once.
# - `copying`: the time in which an operation named `aten::copy_` or an event of the category `gpu_memcpy` runs and no kernel does.
# - In a step **without kernels** (a CPU's), `items` is the number of operations named `aten::item`. `idle` is the time in which either no operation runs, or an `aten::copy_` or `aten::item` is running. If nothing runs, `idle` is 1.
# - In a step **with kernels** (a GPU's), `items` counts only those `aten::item` during which an event named `cudaStreamSynchronize` starts on the step's thread. `idle` is the time in which no kernel runs.
#
# `diagnose(signs)` takes that dictionary and returns a word. If `idle` is at most 0.3, there is nothing to fix: `"healthy"`. Otherwise, return the first whose condition holds: `"synchronizes"` (more than 10 items), `"copies"` (copying above 0.3). If neither does, the operations are small and many: `"tiny"`.


# %% name="clinic" answer=true reveal=true
def signs(events):
    ### BEGIN SOLUTION
    spans = [event for event in events if event["ph"] == "X"]
    step = next(e for e in spans if e["name"] == "step" and e.get("cat") == "user_annotation")
    end = step["ts"] + step["dur"]
    inside = [e for e in spans if step["ts"] <= e["ts"] < end]
    mine = [e for e in inside if (e["pid"], e["tid"]) == (step["pid"], step["tid"])]
    operations = [e for e in mine if e["name"].startswith("aten::")]
    kernels = [e for e in inside if e.get("cat") == "kernel"]
    copies = [e for e in operations if e["name"] == "aten::copy_"]
    reads = [e for e in operations if e["name"] == "aten::item"]
    transfers = [e for e in inside if e.get("cat") == "gpu_memcpy"]
    waits = [e["ts"] for e in mine if e["name"] == "cudaStreamSynchronize"]
    if kernels:  # a value in host memory is read without waiting
        reads = [e for e in reads if any(e["ts"] <= at < e["ts"] + e["dur"] for at in waits)]

    def covered(some):  # microseconds in which at least one of them runs
        total, reached = 0, -math.inf
        for event in sorted(some, key=lambda e: e["ts"]):
            until = event["ts"] + event["dur"]
            total += max(0, until - max(event["ts"], reached))
            reached = max(reached, until)
        return total

    useful = covered(kernels) if kernels else covered(operations) - covered(copies + reads)
    return {
        "items": len(reads),
        "copying": (covered(copies + transfers + kernels) - covered(kernels)) / step["dur"],
        "idle": 1 - useful / step["dur"],
    }
    ### END SOLUTION


def diagnose(signs):
    ### BEGIN SOLUTION
    if signs["idle"] <= 0.3:
        return "healthy"
    if signs["items"] > 10:
        return "synchronizes"
    return "copies" if signs["copying"] > 0.3 else "tiny"
    ### END SOLUTION


# %% name="clinic_check"
signs, diagnose = check("traces.clinic", signs, diagnose)

# %% name="clinic_hint"
hint("traces.clinic")

# %% [markdown] name="ward_text"
# Now the real programs, and a healthy one: a large matmul.

# %% name="ward"
planted = {"A": "synchronizes", "B": "copies", "C": "tiny", "a matmul": "healthy"}
charts["a matmul"] = traced(lambda: a @ b)
has_kernels = any(e.get("cat") == "kernel" for chart in charts.values() for e in chart)
if device.type == "cuda" and not has_kernels:
    print("These traces have no kernels: the profiler saw only the host, as on a CPU. So there is no verdict.")
found = {}
for name, chart in charts.items():
    seen = signs(chart)
    found[name] = diagnose(seen)
    print(f"{name:10} items {seen['items']:5}, copying {seen['copying']:4.0%}, idle {seen['idle']:4.0%}: {found[name]}")
agreed = sum(found[name] == problem for name, problem in planted.items())
if has_kernels:
    claims.record("T30", "three signs tell slow programs apart", "four programs, right diagnoses", agreed, "of 4", 4, 4)
else:
    where = "a CPU" if device.type == "cpu" else "a GPU, from the host"
    claims.figure("three signs tell slow programs apart", f"four programs on {where}, right diagnoses", agreed, "of 4")

# %% [markdown] name="ward_line_text"
# On a CPU, patient A's idle share is not far above the limit of 0.3. On a busy machine the share may fall below the limit, and A then counts as healthy.
#
# Choose a program, and look for its signs in the timeline: copies, many short operations, gaps.

# %% name="ward_line"
explore(
    lambda patient, milliseconds: time_line(
        charts[patient], f"{patient}: the first {milliseconds} ms of the step", milliseconds
    ),
    "Timeline of the chosen program, one row for each level of nesting. Patient C: first one longer operation, which cuts a batch into images, then a steady run of very short operations with gaps between them.",
    patient=("C", tuple(charts)),
    milliseconds=(3, (1, 3, 10)),
)

# %% [markdown] name="cure_task"
# ### Your turn: fix patient A
#
# **Contract.** `accuracy(model, batches)` returns the fraction of samples for which the model's largest logit is the label's, as a Python number.
#
# - `batches` is a list of pairs (inputs (B, ...), labels (B,)), which may differ in size; `model(inputs)` returns logits (B, classes).
# - Each batch goes through the model once, as a whole.
# - Python reads **one** value at most, after the last batch: no `.item()`, `if`, `float()`, `.tolist()` or `.cpu()` before. `.nonzero()` and indexing with a mask also count as reads, because the size of the result depends on the values.
# - Autograd records nothing, and its state (on or off) is the same afterwards as before. The model arrives in evaluation mode. Do not change its mode or the batches.


# %% name="cure" answer=true reveal=true
def accuracy(model, batches):
    ### BEGIN SOLUTION
    right = samples = 0
    with torch.no_grad():
        for inputs, labels in batches:
            right = right + (model(inputs).argmax(1) == labels).sum()  # stays a tensor: nothing waits for it
            samples += len(labels)
    return right.item() / samples
    ### END SOLUTION


# %% name="cure_check"
accuracy = check("traces.cure", accuracy)

# %% name="cure_hint"
hint("traces.cure")

# %% [markdown] name="cures_text"
# The same function fixes patient C, whose data already comes in whole batches. Patient B needs a different fix: select the rows first, then convert only those.
#
# **Predict.** By what factor is patient B faster after the fix?

# %% name="cures_guess"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 1 / (1 - signs(charts["B"])["copying"])  # all of its copying saved
### END GUESS
fix_guess = Prediction("Patient B after the fix", my_guess, "times as fast")


# %% name="cures"
@torch.no_grad()
def fixed_b():
    right = torch.zeros((), device=device)
    for rows in torch.arange(SAMPLES).split(50):
        picked = images[rows].to(device, torch.float32)
        right += (net(picked).argmax(1) == labels[rows].to(device)).sum()
    return right.item() / SAMPLES


fixes = {"A": lambda: accuracy(net, loaded), "B": fixed_b, "C": lambda: accuracy(net, loaded)}
for name, fixed in fixes.items():
    gain = compare(patients[name], fixed, runs=5, warmup=1)
    print(f"patient {name}: {gain}; the same accuracy: {math.isclose(patients[name](), fixed())}")
    claims.record("T30", "the cure makes it faster", f"patient {name}", gain.speedup, "times", 1.2, math.inf)
    if name == "B":
        fix_guess.reveal(gain.speedup)
for when, chart in (("before", charts["B"]), ("after", traced(fixed_b))):
    seen = signs(chart)
    took = next(e for e in chart if e["name"] == "step" and e["cat"] == "user_annotation")["dur"] / 1e3
    rest = seen["idle"] - seen["copying"]
    print(f"B {when}: {took:.1f} ms, copying {took * seen['copying']:.1f}, other idle time {took * rest:.1f}")

# %% [markdown] name="cures_explained"
# The last two lines show where patient B's time went. It had copied all 2,000 images for every batch of 50, so the fix removes most of the copying. The gain can exceed 1 / (1 − copying): each round also allocated and freed the converted images of the whole set, and read them from memory instead of the cache. (Each trace is a single run, so on a busy machine it need not agree with the timed gain.)
#
# On a CPU, patient A goes through Python for every sample. On a GPU the same line also stops the queue: each `if` copies a value to the host and waits (PyTorch's *Performance Tuning Guide*), and nothing new is queued in the meantime. In a GPU's trace of patient A, look for `cudaStreamSynchronize` inside `aten::item`, and for wide gaps between kernels. (`torch.cuda.set_sync_debug_mode("warn")` warns at such lines.) For patient B, look for `Memcpy HtoD`, and for patient C, gaps longer than the kernels.

# %% [markdown] name="gpu_traces_text"
# ## 5 · Two traces from real GPUs
#
# A GPU's trace has more lanes: the host's threads (the backward pass has its own) and the GPU's streams. The course includes one training step from each of two [published traces](https://github.com/facebookresearch/HolisticTraceAnalysis). Both train a convolutional network with `DistributedDataParallel`, so NCCL's kernels, which exchange data with other GPUs, count as busy time where a step has any (the second does). Here is what your functions find in the first:


# %% name="gpu_traces"
def read_trace(gpu):
    """Print what your functions find in a trace of a real GPU; return its events and the milliseconds of its step."""
    events = gpu_trace(gpu)
    took = next(e["dur"] for e in events if e["name"] == "step" and e["cat"] == "user_annotation") / 1e3
    seen = signs(events)
    found = f"items {seen['items']}, copying {seen['copying']:.0%}, idle {seen['idle']:.0%}: {diagnose(seen)}"
    print(f"{gpu_trace_source(gpu)}\nstep {took:.1f} ms; {found}")
    return events, took


of_v100, v100_ms = read_trace("v100")
on_host = self_times([e for e in of_v100 if e["cat"] == "cuda_runtime"])
for name in sorted(on_host, key=on_host.get, reverse=True)[:2]:
    print(f"   the host spends {on_host[name] / 1e3:.1f} ms in {name}")
waits = sorted(e["dur"] for e in of_v100 if e["name"] == "cudaLaunchKernel")
print(f"   half of its launches take at most {waits[len(waits) // 2]:.1f} µs, the longest {waits[-1]:,.0f} µs")
kernels_of = {gpu: [e["dur"] / 1e3 for e in gpu_trace(gpu) if e["cat"] == "kernel"] for gpu in ("v100", "a100")}
for gpu, durations in kernels_of.items():
    print(f"{gpu}: {len(durations)} kernels, together {sum(durations):.1f} ms")

# %% [markdown] name="gpu_traces_guess_text"
# The V100 is busy nearly all the time. Most of the host's time in `cudaLaunchKernel` is *not* launch overhead. A minority of the launches takes many times as long as the median and makes up most of the sum: the queue is full, and they wait for a free slot.
#
# The second trace is from a faster GPU, an A100. It has about as many kernels, but they take much less time in total (last line).
#
# **Predict.** How long is the A100's step, relative to the V100's?

# %% name="gpu_traces_guess"
my_guess = None  # step on the A100 / step on the V100
### BEGIN GUESS
my_guess = sum(kernels_of["a100"]) / v100_ms  # as long as its kernels
### END GUESS
a100_guess = Prediction("Step on the A100 / step on the V100", my_guess, "times")

# %% name="gpu_traces_lanes"
of_a100, a100_ms = read_trace("a100")
calls = sorted(e["dur"] for e in of_a100 if e["name"] == "cudaLaunchKernel")
print(
    f"   all {len(calls)} launches together take {sum(calls) / 1e3:.1f} ms; half take at most {calls[len(calls) // 2]:.1f} µs each"
)
a100_guess.reveal(a100_ms / v100_ms, "published")
figure = Figure(figsize=(9, 3.6), layout="constrained")
both = figure.subplots(2, 1, sharex=True)
for axes, gpu, chart in zip(both, ("V100", "A100"), (of_v100, of_a100), strict=True):
    for lane, category in enumerate(("cpu_op", "kernel")):
        shown = (e for e in chart if e["cat"] == category and e["ts"] < 45e3 and e["ts"] + e["dur"] > 40e3)
        spans = [(e["ts"] / 1e3, e["dur"] / 1e3) for e in shown]
        axes.broken_barh(spans, (lane - 0.4, 0.8), color=COLORS[4 * lane])
    axes.set(title=gpu, yticks=(0, 1), yticklabels=("host", "kernels"), xlim=(40, 45))
both[1].set(xlabel="milliseconds of the step")
show(
    figure,
    "Five milliseconds of both steps. On the V100 the lane of kernels is full; on the A100 short kernels alternate with gaps.",
)

# %% [markdown] name="gpu_traces_explained"
# The faster GPU has the slower step. Its kernels are done before the host has launched the next ones, so the host sets the pace, as for the narrow GPT in [[where_the_time_goes]]. The lines above also show that the launch calls themselves are not the reason: together they take only a small part of the step. The trace does not say what else makes this host slow: its profiler may record more, or other processes may share the CPU. It does say that a faster GPU would not help.

# %% [markdown] name="claims_text"
# ## 6 · Claims and measurements
#
# The table shows this run alongside those of other machines, where `receipts/` has the same rows.

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Durations in a trace are nested. Add up self times: an event's duration minus that of the events directly inside it.
# - Record a few typical steps with a schedule, never the whole run.
# - Warm up, wait for the queue, time in pairs, and check the spread.
# - Ask first whether the processor is idle. If it is, count the reads of values and the time of the copies.
# - When the host sets the pace, a faster GPU does not help.
#
# **What to reach for when.** The GPU is busy: compute the MFU ([[where_the_time_goes]]). It is idle with many calls to `aten::item`: keep values in tensors. Idle with long copies: move less data, or move it in the background ([[data_loading]]). Idle with thousands of operations: larger batches, or compile ([[compilation_and_fusion]]).
#
# **Sources.** PyTorch documentation, `torch.profiler` and *Performance Tuning Guide*; Perfetto documentation, *Trace Event Format*; Meta, *Holistic Trace Analysis* (the two GPU traces); NVIDIA, *Nsight Systems User Guide*.
