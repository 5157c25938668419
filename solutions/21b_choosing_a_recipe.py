# %% [markdown] name="title"
# # Choosing a recipe
#
# **Articles, guides and summary tables state what fits on a card and what each technique saves. Test their claims with the planner, add the links to a bound on speed, and export the recipe that you choose as a script that survives a crash.**
#
# | | |
# |---|---|
# | After this you can | compare published peaks with a plan, and see what a published factor contains; decide whether a recipe fits a card, with room for what the allocator reserves; test a table of factors for memory and speed; calculate what a rank sends per update, and bound the speedup by the link; choose a recipe for a GPU and export it as a script that continues after a crash |
# | Time | 70 to 90 minutes; a good place to stop is after section 2 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#where_memory_goes]], [[#activation_checkpointing]], [[#data_parallel]] and [[#sharding]]; [[#lora]] and [[#capstone]] help |
# | Syllabus | C12, T26, T27 |

# %% name="setup" setup=true
import functools
import math
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from helpers import (
    Claims,
    GiB,
    LadderTask,
    MemoryMeter,
    ParallelConfig,
    Prediction,
    Recipe,
    Rung,
    check,
    choose,
    chooser_figure,
    device_name,
    explore,
    find_gpu,
    hint,
    human_bytes,
    in_turns,
    pick_device,
    planned,
    show_table,
    training_script,
)

# %% name="setup_torch" setup=true
import numpy as np
import torch

device = pick_device()
claims = Claims()
torch.set_num_threads(1)  # as in the ladder of the capstone, whose steps section 3 times
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="vit_text"
# ## 1 · A famous ladder, checked
#
# [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md) has the most-quoted figure of this kind: combined techniques cut the peak memory of ViT-L/16, on CIFAR-10 at 224 pixels, by "20x". The repository's own logs list reserved memory for six rungs on one GPU. The planner ([[where_memory_goes]]) runs the same training steps on fake tensors. It plans reserved memory as a range: it replays the allocations by the allocator's rules, and widens the result to cover effects that it does not simulate.
#
# The six logs begin with FP32, batches of 64 and Adam. The next ones add FP16 autocast, BF16 weights, a batch of 16, four micro-batches of 4, and SGD instead of Adam.
#
# **Predict.** What factor do the logs give, the first log over the last?

# %% name="guess_logs"
my_guess = None  # a factor, six logs
### BEGIN GUESS
my_guess = 20  # what the article promises
### END GUESS
logs_guess = Prediction("ViT-L/16: reserved memory, first log / last log", my_guess, "times")

# %% name="vit"
PUBLISHED = {  # reserved GB in the logs, and the step that was logged; gradients are zeroed after the forward pass
    "FP32, batch 64, Adam": (26.79, {"precision": "fp32", "micro_batch_size": 64}),
    "FP16 autocast": (18.21, {"precision": "fp16-amp", "micro_batch_size": 64}),
    "BF16 weights": (13.82, {"precision": "bf16", "micro_batch_size": 64}),
    "batch 16": (5.69, {"precision": "bf16", "micro_batch_size": 16}),
    "4 x 4 accumulated": (3.91, {"precision": "bf16", "micro_batch_size": 4, "gradient_accumulation_steps": 4}),
}
PUBLISHED["SGD, cosine"] = (2.02, PUBLISHED["4 x 4 accumulated"][1] | {"optimizer": "sgd"})
common = {"optimizer": "adam", "set_to_none": False}
recipes = [Recipe("vit-l-16", **common | change) for _, change in PUBLISHED.values()]
vit = dict(zip(PUBLISHED, planned(recipes), strict=True))
print(f"{len(recipes)} plans; making them took {sum(each.seconds for each in vit.values()):.0f} s")

# %% name="vit_logs"
errors, lines = {}, [["", "batch", "logged GB", "planned, reserved GB", "off by"]]
for name, (said, _) in PUBLISHED.items():
    least, most = (b / 1e9 for b in vit[name].reserved_bytes)
    errors[name] = 0.0 if least <= said <= most else (least if said < least else most) / said - 1
    batch = vit[name].recipe.micro_batch_size * vit[name].recipe.gradient_accumulation_steps
    lines.append([name, f"{batch}", f"{said:.2f}", f"{least:.2f} to {most:.2f}", f"{errors[name]:.0%}"])
show_table(lines)
logged = [said for said, _ in PUBLISHED.values()]
logs_guess.reveal(logged[0] / logged[-1], "published")
print(f"of this, a factor of {logged[2] / logged[3]:.2f} comes from batch 16 instead of 64: a different training run")
# "20x" is reached, within 10%:
claims.record("C12", "a peak 20x lower, published", "ViT-L/16, six logs", logged[0] / logged[-1], "times", 18, math.inf)
claims.record("C12", "the same run: one effective batch", "ViT-L/16, six logs", 64 / 16, "x the batch", 1, 1)
off = 100 * max(errors.values(), key=abs)
claims.record("C12", "the planner follows the logs", "6 logs, the worst of them", off, "% from the log", -20, 20)

# %% [markdown] name="logs_explained"
# The logs stay below a factor of 20, and the fourth cuts the batch from 64 to 16, which makes it a different training run. [[Capstone]] climbs a ladder that keeps the batch.
#
# The plan is for today's software, and the logs are from a nightly build of PyTorch 2.1. One difference is known: that Adam held two temporary copies, while today's holds one. The six recipes have not been run with both versions, so how much of the disagreement this explains is open.

# %% [markdown] name="guide_text"
# ## 2 · A recipe guide, row by row
#
# "Which model can I train on my GPU?" Guides answer this question with one line per card. The lines below come from several guides, and all of them assume BF16, checkpointing and accumulation. We read them charitably: *pure* BF16, including weights and optimizer state; one sequence of 1,024 tokens; AdamW.
#
# The rule: a line **holds** if the card has room for all that the allocator may *reserve*, with 0.2 GiB to spare (the size of the CUDA context alone varies by that much). If the card has room for the tensors but perhaps not for all that is reserved, the line is **at the edge**: the run may succeed, or end in an out-of-memory error after an hour.
#
# **Predict.** How many of these seven lines hold?
#
# | card | the guides say |
# |---|---|
# | 8 GB | about 1B, fully trained |
# | 16 GB | about 3B, fully trained |
# | 24 GB | about 7B with LoRA, r = 16 |
# | 40 GB | about 13B with LoRA, r = 32 |
# | 80 GB | 7B, fully trained |
# | 80 GB | 7B, fully trained with FP32 weights |
# | 8 × 80 GB | 70B, ZeRO-3 / FSDP |

# %% name="guess_lines"
my_guess = None  # lines of seven
### BEGIN GUESS
my_guess = 5
### END GUESS
lines_guess = Prediction("Lines of the guide that hold", my_guess, "of 7")

# %% name="guide_rows"
plain = {"precision": "bf16", "checkpointing": "every", "gradient_accumulation_steps": 2, "seq": 1024}
plain["optimizer_impl"] = "fused"
GUIDE = {  # the guide's line -> (GB of the card, recipe)
    "8 GB: ~1B": (8, Recipe("llama-3.2-1b", **plain)),
    "16 GB: ~3B": (16, Recipe("llama-3.2-3b", **plain)),
    "24 GB: ~7B, LoRA r=8 to 16": (24, Recipe("llama-2-7b", lora_rank=16, **plain)),
    "40 GB: ~13B, LoRA r=32": (40, Recipe("llama-2-13b", lora_rank=32, **plain)),
    "80 GB: 7B, full": (80, Recipe("llama-2-7b", **plain)),
    "80 GB: 7B, full, FP32 weights": (80, Recipe("llama-2-7b", **plain | {"precision": "bf16-amp"})),
    "8 x 80 GB: 70B, ZeRO-3 / FSDP": (80, Recipe("llama-2-70b", parallel=ParallelConfig(shard=8), **plain)),
}

# %% name="guide_repaired"
CARDS = {8: "rtx-3060-12gb", 16: "v100-16gb", 24: "rtx-4090-24gb", 40: "a100-40gb", 80: "h100-80gb"}  # by GB sold
lean_step = {"gradient_accumulation_steps": 1, "step_in_backward": True, "optimizer": "adamw-8bit"}
lean_step["optimizer_impl"] = "foreach"
fp32_weights, fp16 = plain | {"precision": "bf16-amp"}, plain | {"precision": "fp16-amp"}
REPAIRED = {  # what to do if a line does not hold
    "8 GB: 1B, 8-bit AdamW in the backward pass": (8, Recipe("llama-3.2-1b", **plain | lean_step)),
    "16 GB: 3B, LoRA r=16": (16, Recipe("llama-3.2-3b", lora_rank=16, **plain)),
    "16 GB, no BF16: 3B, QLoRA r=16, FP16": (16, Recipe("llama-3.2-3b", lora_rank=16, quantize="nf4-dq", **fp16)),
    "80 GB: 7B, FP32 weights, offload": (80, Recipe("llama-2-7b", offload="optimizer", **fp32_weights)),
    "16 x 80 GB: 70B, ZeRO-3 / FSDP": (80, Recipe("llama-2-70b", parallel=ParallelConfig(shard=16), **plain)),
}


def room(sold):
    """Bytes that PyTorch's allocator can have on a card that is sold with `sold` GB."""
    gpu = find_gpu(CARDS[sold])  # if the catalog has no card of this size, a similar one, scaled
    return gpu.total * sold / float(gpu.name.rsplit("-", 1)[1].removesuffix("gb")) - GiB / 2  # the CUDA context


# %% name="guide_table"
needs = dict(zip(GUIDE | REPAIRED, planned([recipe for _, recipe in (GUIDE | REPAIRED).values()]), strict=True))


def verdict(need, card):
    most, has = need.reserved_bytes[1], room(card)
    if abs(has - most) < 0.2 * GiB or need.peak_allocated_bytes <= has < most:
        return "at the edge"
    return "fits" if most < has else "does not fit"


rows_shown = [["GiB", "allocated", "peak in", "reserved up to", "room", "to spare", "verdict"]]
for line, (card, _) in (GUIDE | REPAIRED).items():
    if line == next(iter(REPAIRED)):
        rows_shown.append(["what may work instead", *[""] * 6])
    need, has = needs[line], room(card)
    most, phase = need.reserved_bytes[1], need.peak_at.partition(":")[0]
    allocated, *rest = (f"{n / GiB:.2f}" for n in (need.peak_allocated_bytes, most, has, has - most))
    rows_shown.append([line, allocated, phase, *rest, verdict(need, card)])
show_table(rows_shown)
lines_guess.reveal(sum(verdict(needs[line], card) == "fits" for line, (card, _) in GUIDE.items()), "planned")
for line, (card, recipe) in GUIDE.items():
    subject_line, reserved = f"{recipe.model}, planned, reserved", needs[line].reserved_bytes[1] / GiB
    if verdict(needs[line], card) == "at the edge":  # within the planner's own error
        claims.figure(f"{line} (at the edge)", subject_line, reserved, "GiB")
    else:
        claims.record("T26", line, subject_line, reserved, "GiB", 0, room(card) / GiB - 0.2)

# %% [markdown] name="guide_explained"
# The LoRA lines hold, with room to spare. 7B fits on a 24 GB card (planned with the larger rank), and the frozen weights take nearly all of the memory. Full training in pure BF16 with AdamW takes **four times the memory of the weights** (weights, gradients and two moments, 8 bytes per parameter), so 1B does not fit in 8 GB, and 3B does not fit in 16 GB. With *adapters*, 3B fits in 16 GB. With an 8-bit optimizer that steps in the backward pass (which rules out accumulation), 1B is at the edge.
#
# "80 GB: 7B" holds only in pure BF16, where small updates are lost ([[number_formats]]). With FP32 weights, 7B fits once the optimizer state moves to the host, with only a few GiB to spare. 70B on 8 cards is at the edge with one sequence per rank; on 16 cards it fits.
#
# > **Note:** the common 16 GB cards, T4 and V100, **do not support BF16**: it is emulated in FP32, at an eighth of the speed of FP16. The plans of the "16 GB" lines are for a card that supports it (RTX 4080, A4000). On a T4 or V100 use FP16 autocast with a scaler ([[loss_scaling]]); pure FP16 weights do not train. The line marked "no BF16" is planned for such a card, and its recipe fits.

# %% [markdown] name="memory_text"
# ## 3 · The summary table
#
# Overviews of these techniques often end with a table of factors for memory and speed. The factors below come from several such tables. We begin with memory, which we plan for GPT-2 (124 million parameters) with AdamW and 8 sequences of 1,024 tokens per step and rank. The last column names the line that each line is compared with. (*+ checkpointing* is compared with FP32, because the factor in the tables includes mixed precision.)
#
# **Predict.** According to the table, FSDP on eight ranks divides the memory by 8. By what factor is the planned peak of a rank lower than the peak of one GPU, both in mixed precision?

# %% name="guess_fsdp"
my_guess = None  # a factor
### BEGIN GUESS
my_guess = 4  # weights, gradients and state by 8; activations stay
### END GUESS
fsdp_guess = Prediction("GPT-2, mixed precision: peak of one GPU / of a rank of 8, FSDP", my_guess, "times")

# %% name="summary_plans"
job = {"micro_batch_size": 8, "seq": 1024, "precision": "bf16-amp"}
single = job | {"micro_batch_size": 1}
eight_times_one = single | {"gradient_accumulation_steps": 8}
ddp, fsdp = ParallelConfig(shard=8, zero="none"), ParallelConfig(shard=8)
LINES = {  # name -> (recipe, compared with, said about memory, from, to)
    "FP32": (Recipe("gpt2", **job | {"precision": "fp32"}), None),
    "mixed precision": (Recipe("gpt2", **job), "FP32", "2x", 1.7, 2.3),
    "+ checkpointing": (Recipe("gpt2", checkpointing="every", **job), "FP32", "4x", 3.4, 4.6),
    "a batch of 1": (Recipe("gpt2", **single), None),
    "+ accumulation, 8 x 1": (Recipe("gpt2", **eight_times_one), "a batch of 1", "1x", 0.85, 1.15),
    "DDP, 8 ranks": (Recipe("gpt2", parallel=ddp, **job), "mixed precision", "1x", 0.85, 1.15),
    "FSDP, 8 ranks": (Recipe("gpt2", parallel=fsdp, **job), "mixed precision", "8x", 6.8, 9.2),
    "offloaded optimizer": (Recipe("gpt2", offload="optimizer", **job), "mixed precision", "less", 1.05, math.inf),
}

# %% name="summary_memory"
plans = dict(zip(LINES, planned([recipe for recipe, *_ in LINES.values()]), strict=True))
lines = [["planned", "GiB per rank", "smaller by", "the table says", "compared with"]]
for name, (_, other, *said) in LINES.items():
    size = plans[name].peak_allocated_bytes
    if other is None:
        lines.append([name, f"{size / GiB:.2f}", "", "", ""])
        continue
    less, (words, *between) = plans[other].peak_allocated_bytes / size, said
    lines.append([name, f"{size / GiB:.2f}", f"{less:.2f}x", words, other])
    claims.record("T27", f"{name}: memory {words}", "GPT-2, 8 x 1,024 tokens, planned", less, "x", *between)
show_table(lines)
one_gpu, a_rank = (plans[name].peak_allocated_bytes for name in ("mixed precision", "FSDP, 8 ranks"))
fsdp_guess.reveal(one_gpu / a_rank, "planned")

# %% [markdown] name="memory_explained"
# - **Mixed precision** does not halve this model's peak, because its largest tensors stay in FP32: the logits, 50,257 wide, and the loss's tensors of the same size. A factor means little unless you know which model it was obtained on.
# - **Accumulation** runs eight sequences in the memory of one, or somewhat more: earlier gradients stay while the next micro-batch runs.
# - **DDP** holds slightly *more* on each rank than a single GPU without DDP, because of its buckets. **FSDP** divides weights, gradients and state, but not activations. Here the factor is nowhere near 8. It is near 8 where weights, gradients and state are nearly everything (a large model, a small batch, checkpointing).
# - **Offloading** the optimizer takes two numbers per parameter off the GPU. That saves little where activations make up the peak.

# %% [markdown] name="bound_text"
# ### Speed on several GPUs
#
# The tables say that eight GPUs are 8 times as fast. We cannot measure that here, so we estimate it, by a formula that *includes the links*: the roofline time of a rank's step, plus the time that the rank's bytes take at the link's data-sheet rate, with no overlap.

# %% [markdown] name="links_task"
# ### Your turn: the bytes on the link
#
# **Contract.** Write two functions.
#
# - `sent_per_update(kind, parameters, ranks, micro_batches)` returns the number of bytes that each of the `ranks` ranks sends in one update, in which it trains `parameters` parameters on `micro_batches` micro-batches. `kind` is one of three strings:
#   - `"DDP"`: FP32 gradients are all-reduced once per update, with the last micro-batch.
#   - `"FSDP"`: in every micro-batch, BF16 weights are all-gathered for the forward pass and all-gathered again for the backward pass, and FP32 gradients are reduce-scattered.
#   - `"offload"`: once per update, FP32 gradients go to the host and FP32 weights return. Count both directions. This does not depend on the number of ranks.
# - All collectives use rings. In an all-gather or a reduce-scatter of *B* bytes over *N* ranks, each rank sends *B* · (*N* − 1) / *N*. An all-reduce is a reduce-scatter followed by an all-gather. With one rank, nothing is sent for DDP and FSDP.
# - `times_faster(alone, step, sent, rate, ranks)` returns the speedup: the samples per second of all `ranks` ranks, divided by those of a single GPU. The single GPU takes `alone` seconds for a number of samples. Each rank computes for `step` seconds on the same number of samples, and *then* sends `sent` bytes at `rate` bytes per second.


# %% name="links" answer=true reveal=true
def sent_per_update(kind, parameters, ranks, micro_batches):
    ### BEGIN SOLUTION
    if kind == "offload":
        return 2 * 4 * parameters
    ring = (ranks - 1) / ranks
    if kind == "DDP":
        return 2 * ring * 4 * parameters
    return micro_batches * ring * (2 + 2 + 4) * parameters
    ### END SOLUTION


def times_faster(alone, step, sent, rate, ranks):
    ### BEGIN SOLUTION
    return ranks * alone / (step + sent / rate)
    ### END SOLUTION


# %% name="links_check"
sent_per_update, times_faster = check("choosing_a_recipe.links", sent_per_update, times_faster)

# %% name="links_hint"
hint("choosing_a_recipe.links")

# %% [markdown] name="wires_text"
# The next cell applies your functions to the plans for GPT-2 on A100s. NVLink carries 300 GB/s each way, PCIe 4.0 32 GB/s.
#
# **Predict.** By this bound, how many times as fast as one GPU are eight GPUs with DDP over PCIe?

# %% name="guess_wires"
my_guess = None  # times as fast as one GPU
### BEGIN GUESS
my_guess = 7  # the gradients take a little time
### END GUESS
wires_guess = Prediction("GPT-2 on 8 A100s, DDP over PCIe: speedup, nothing overlapped", my_guess, "times")

# %% name="wires"
one = plans["mixed precision"].roofline_seconds["a100-80gb"]
WIRES = {"NVLink": 300e9, "PCIe": 32e9}  # bytes/s each way, data sheets
lines, faster = [["planned, nothing overlapped", "sent per update", "by the planner", *WIRES, "the table says"]], {}
for name, kind, said in (
    ("DDP, 8 ranks", "DDP", "8x"),
    ("FSDP, 8 ranks", "FSDP", "8x"),
    ("offloaded optimizer", "offload", "slower"),
):
    several = plans[name]
    ranks, step = several.recipe.ranks, several.roofline_seconds["a100-80gb"]
    sent = sent_per_update(kind, several.trained, ranks, 1)
    for wire, rate in WIRES.items():
        if ranks > 1 or wire == "PCIe":
            faster[name, wire] = times_faster(one, step, sent, rate, ranks)
    speeds = [f"{faster[name, w]:.2f}x" if (name, w) in faster else "-" for w in WIRES]
    lines.append([name, human_bytes(sent), human_bytes(several.sent_bytes) if ranks > 1 else "-", *speeds, said])
wires_guess.reveal(faster["DDP, 8 ranks", "PCIe"], "planned")
show_table(lines)
eight = {kind: human_bytes(sent_per_update(kind, plans["FP32"].trained, 8, 8)) for kind in ("DDP", "FSDP")}
print("\nwith 8 micro-batches per update, a rank sends " + ", ".join(f"{kind}: {sent}" for kind, sent in eight.items()))
for (name, wire), times in faster.items():
    claims.figure(f"{name}: speed, nothing overlapped", f"GPT-2, A100, planned with {wire}", times, "x")

# %% [markdown] name="wires_explained"
# - With one micro-batch per update, **DDP and FSDP** happen to send the same number of bytes: 2 × 4 per parameter for DDP and 2 + 2 + 4 for FSDP, each times 7/8, because a rank keeps its own part. In pure FP32, FSDP would send 50% more than DDP. With several micro-batches FSDP sends all of this for each of them, unless you keep the weights gathered ([[fully_shard]]), and DDP sends once.
# - In practice, much of the communication overlaps with arithmetic, which makes the speedup larger than this estimate. A link that is slower than its data sheet, or shared, makes it smaller. If the estimate is below half the number of ranks, sending takes longer than computing, and overlap cannot hide all of it.
# - **Offloading** is slower because of the bytes that cross PCIe in every update, and because of the host's AdamW, which the estimate leaves out, so it is too optimistic. More sequences per update make it cheaper.

# %% [markdown] name="one_device_text"
# ### Speed on one device
#
# Three more lines of the tables are about one device: mixed precision doubles the speed, accumulation leaves it as it is, checkpointing costs 30%. The next cell times them on the capstone's small ViT, with 512 images per update: in each of three rounds, every variant takes one step, and each is compared with the one before it.
#
# **Predict.** Under autocast, what is the speed of updates from 16 micro-batches of 32 images, as a multiple of the speed with one batch of 512? (The tables say: 1.)

# %% name="guess_micro"
my_guess = None  # times as fast
### BEGIN GUESS
my_guess = 0.8  # a small micro-batch leaves a processor partly idle
### END GUESS
micro_guess = Prediction("Speed with accumulation / without, small ViT", my_guess, "times")

# %% name="one_device"
if device.type == "cuda":
    torch.set_float32_matmul_precision("high")  # TF32: FP32 without it is too easy to beat
task, rung = LadderTask(), Rung("")
variants = {"FP32": rung}
for said, change in {
    "mixed precision: speed 2x": {"autocast": True},
    "+ accumulation: speed 1x": {"micro": 32},
    "+ checkpointing: speed 0.7x": {"checkpointing": True},
}.items():
    variants[said] = rung = replace(rung, **change)


def step_of(rung):
    """Return a function that makes one update of 512 images."""
    model = task.model(rung, 0, device)
    return functools.partial(task.step, rung, model, task.optimizer(rung, model), np.arange(task.batch))


seconds = in_turns({name: step_of(rung) for name, rung in variants.items()}, rounds=3).seconds

# %% name="one_device_table"
lines = [["the table says", f"measured on this {device.type}", "in 3 rounds"]]
for before, said in zip(variants, list(variants)[1:], strict=False):
    speed = seconds[before] / seconds[said]
    ratio, expected = float(np.median(speed)), float(re.search(r"([\d.]+)x", said)[1])
    lines.append([said, f"{ratio:.2f}x", f"{min(speed):.2f} to {max(speed):.2f}"])
    if device.type == "cuda":  # the table's figures are about GPUs
        claims.record("T27", said, "small ViT on this GPU", ratio, "times", 0.9 * expected, 1.1 * expected)
    else:
        claims.figure(said, f"small ViT on this {device.type}", ratio, "x")
micro_guess.reveal(float(np.median(seconds["mixed precision: speed 2x"] / seconds["+ accumulation: speed 1x"])))
show_table(lines)

# %% [markdown] name="summary_explained"
# The tables' figures come from particular GPUs and models. 16-bit matmuls are fast if the hardware supports them and the matrices are large enough to fill it. Small micro-batches cost speed if they leave the device idle. This model is small, so accumulation is expensive; on a GPU that a micro-batch of 1 fills, it is nearly free. Checkpointing costs the recomputation, a third of the arithmetic, and more with small micro-batches, where most of the cost of an operation is the call itself ([[activation_checkpointing]]).
#
# So measure such factors on your own model before you rely on them.

# %% [markdown] name="chooser_text"
# ## 4 · Choose a recipe
#
# Now you choose a GPU, a model and the data, and the figure lists recipes. Recipes that fit come first, starting with the one that does the *least work*. The others follow, starting with the smallest. "Times the least" compares roofline seconds: the time for all arithmetic or the time for all memory traffic at the data sheet's rates, whichever is longer. Two recipes tie if they differ only in the shorter time. Below, LoRA and QLoRA with checkpointing tie, although unpacking NF4 costs time ([[lora]]). Roofline seconds are a lower bound: they give a rough ranking and do not forecast a step's time. A micro-batch is one sequence. All plans have at least two micro-batches, so they include the gradients that accumulation keeps; more sequences per update cost time but no more memory. The optimizer runs once per update.
#
# The plans were made in advance, by `python -m helpers chooser`, so that the figure can answer at once. LoRA rows put adapters on q and v alone, which is PEFT's default for these models. [[Lora]] shows that adapters on all linear layers learn more. With checkpointing, such adapters take little additional memory. Without it, each adapted layer also saves its input, which at 2,048 tokens can take several GiB. So name the layers (`lora_targets`) in the recipe that you export, and plan it again.
#
# Three questions:
#
# 1. What is the smallest of these cards on which full training of 7B fits, and with which recipe?
# 2. Which recipe no longer fits a 24 GB card with the longer sequence (7B)?
# 3. Which recipe comes first on a T4 (7B), and why is the only other recipe that fits so much slower?
#
# <details><summary>Answers</summary>
#
# 1. 40 GB (`a100-40gb`), with BF16 weights, SGD and checkpointing. It *fits*; whether it learns is another matter, because BF16 weights lose small updates ([[number_formats]]) and SGD rarely trains a language model well. With AdamW it takes 80 GB; with 8-bit AdamW and 512 tokens it is at the edge of 40 GB.
# 2. LoRA without checkpointing: its activations fit at 512 tokens, but not at 2,048. LoRA with checkpointing still fits.
# 3. QLoRA under FP16 autocast comes first. The T4 has no BF16, so operations in BF16 are computed in FP32, at an eighth of the rate. The figure marks the slower recipe "BF16 emulated".
#
# </details>

# %% name="chooser"
explore(
    chooser_figure,
    "Thirteen recipes for a model with their peaks, ranked: those that fit the GPU first, the least work first.",
    gpu=("rtx-4090-24gb", ("rtx-3060-12gb", "t4-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb", "h200-141gb")),
    model=("llama-2-7b", ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-2-13b")),
    tokens=(2048, (512, 2048)),
    sequences=(16, (1, 4, 16, 64)),
)
best = choose("rtx-4090-24gb", "llama-2-7b", 2048, 16)[0]
print(f"on top: {best.name} ({best.recipe.summary})")

# %% [markdown] name="script_text"
# ## 5 · From a recipe to a run
#
# You can export your choice as a program, with `training_script(recipe)`: one file that runs without changes, alone or under `torchrun`. It contains the recipe and everything else that a run needs: warm-up, clipping, a data order, checkpoints. With `--tiny` you can try it on any machine with a small random model; with `--weights` and `--text` it trains the real model on your text. If a run is killed, the same command with `--resume` continues from the newest checkpoint. With the argument `style="trainer"`, `training_script` writes the program for Hugging Face's Trainer. (The script of a QLoRA recipe loads its 4-bit base and cannot create one, so it needs `--weights` or `--tiny`.)
#
# The next cell shows the method that performs an update. Which lines do the accumulation? Which lines behave differently on two GPUs?
#
# <details><summary>Answers</summary>
#
# The loop over `piece`, with `counted` over all pieces: each micro-batch's sum of losses is divided by the number of tokens of the full update. On two GPUs, `self.rank` picks different rows for each rank, `dist.all_reduce` sums the losses and the requests to stop, and DDP averages the gradients, which is why `counted` is divided by `self.world`. `torch.manual_seed` gives each rank and step its own dropout, and `require_backward_grad_sync` lets DDP send gradients only with the last piece, so this line belongs to accumulation, too.
#
# </details>

# %% name="script"
program = training_script(best.recipe)
excerpt = re.search(r"    def update\(self\):\n.*?\n(?=\n    def )", program, re.DOTALL)[0]
print(f"one method of a program of {len(program.splitlines())} lines:\n\n{excerpt}")

# %% [markdown] name="resume_text"
# Does the script survive a crash? The next cell runs it with `--tiny` for six steps. Then it deletes the last checkpoint, as if the run had crashed in step 6, and continues with `--resume` from step 4. Each checkpoint holds the model, the optimizer, the random numbers and the order of the data, so the held-out losses of the two runs should agree to the last digit.

# %% name="resumed"
with tempfile.TemporaryDirectory() as folder:
    script = Path(folder, "train.py")
    script.write_text(program, encoding="utf-8")
    ends = []
    for resume in ([], ["--resume"]):
        command = [sys.executable, script.name, "--tiny", "--steps=6", "--checkpoint-every=2", *resume]
        said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=True).stdout
        ends.append(float(re.findall(r"\d+\.\d{4}", said)[-1]))  # of the held-out rows, after the last step
        kept = sorted(Path(folder, "checkpoints").iterdir())
        print(*resume or ["in one go"], "->", said.strip().splitlines()[-1], "| kept:", *(each.name for each in kept))
        if len(ends) == 1:
            shutil.rmtree(kept[-1])
print(f"held-out loss, resumed minus uninterrupted: {ends[1] - ends[0]:+.4f}")
claims.record(
    "C12", "a resumed run is the same run", "exported script, --tiny, 6 steps", abs(ends[1] - ends[0]), "of loss", 0, 0
)

# %% [markdown] name="summary_text"
# ## 6 · What this run tested
#
# Most rows are plans. If you run this lab on a GPU, the rows about one device get a verdict. The lab report of [[capstone]] includes this table if you run its last cell again.

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Check a published factor with three questions. Is it the same training run? Which memory was read, allocated or reserved? How wasteful was the first line?
# - A recipe fits if the card has room for what the allocator may *reserve*. If the margin is within the planner's own error, the recipe is at the edge, and only a run can decide.
# - Full training in pure BF16 with AdamW takes four times the memory of the weights. With LoRA, the frozen weights take nearly everything.
# - A table of factors is valid only for the model, batch and number format behind it. Sharding divides weights, gradients and state, but not activations.
# - An estimate of speed must include the links. DDP sends once per update, and FSDP sends in every micro-batch.
# - A run that can be killed needs all of its state in the checkpoint: model, optimizer, random numbers, the order of the data.
#
# **What to reach for when.** For one card, start with the chooser or `python -m helpers plan`, and take the recipe that fits with the least work. If it is at the edge, shorten the sequences or take the next recipe on the list. On a slow link, prefer DDP with accumulation as long as the state fits; shard over a fast one.
#
# **Sources.** [rasbt/pytorch-memory-optim](https://github.com/rasbt/pytorch-memory-optim), logs; Rajbhandari et al. 2020, *ZeRO*; Hu et al. 2021, *LoRA*; Dettmers et al. 2023, *QLoRA*; NVIDIA, data sheet of the A100; PyTorch documentation, *DistributedDataParallel* and *fully_shard*.
