# %% [markdown] name="title"
# # Layouts in practice
#
# **A formula or a rule of thumb chooses well only under conditions that it does not state. You test four rules with a planner, choose layouts that it accepts, and estimate the cost of a run, with its uncertainty.**
#
# | | |
# |---|---|
# | After this you can | recognize layouts that a plan cannot tell apart; test rules of thumb, and name their conditions; weigh the memory that expert ranks save against their all-to-alls; choose a layout that a planner accepts; estimate the cost of a run and the uncertainty of that estimate; name bytes that memory formulas forget; export the layout to torchtitan |
# | Time | 85 to 110 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU |
# | Before this | lab [[#choosing_a_layout]]; [[#tensor_parallel_in_practice]], [[#pipelines_in_practice]], [[#context_parallel]], [[#mixture_of_experts]] and [[#expert_parallel]] help |
# | Syllabus | T40, C20 |

# %% name="setup" setup=true
import math
from dataclasses import replace

from helpers import (
    Claims,
    GiB,
    Prediction,
    check,
    device_name,
    hint,
    human_bytes,
    layout_explorer,
    pick_device,
    show,
    show_table,
)
from helpers.exercises.choosing_a_layout.built import best, memory, seconds
from helpers.exercises.choosing_a_layout.candidates import candidates
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.exercises.layouts_in_practice.decisions import best_known, decisions
from helpers.exercises.layouts_in_practice.pictures import parts_picture
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.config import RecipeError
from helpers.planner.exports import export
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.rows.line import read_line
from helpers.planner.search.found import found_of
from helpers.planner.search.names import name as name_of
from helpers.planner.search.searched import Asked, searched

# %% name="setup_torch" setup=true
import torch

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # a plan is the same on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="equals_text"
# ## 1 · Which differences count
#
# This lab continues [[choosing_a_layout]] with three of its nine questions; section 1 there explains the short names of layouts.

# %% name="three_questions"
ASKED = {
    "8B, 8 H100s": Asked("llama-3.1-8b", "dgx-h100", 8, 2**19),
    "8B, 8 4090s": Asked("llama-3.1-8b", "8x-4090", 8, 2**19),
    "70B, 64 H100s": Asked("llama-3.1-70b", "dgx-h100", 64, 2**21),
}
answers = {name: searched(asked) for name, asked in ASKED.items()}
EIGHT, SEVENTY = arch_of("llama-3.1-8b"), arch_of("llama-3.1-70b")
h100 = CLUSTERS["dgx-h100"]
for name, answer in answers.items():
    print(f"{name}: {answer.layouts:,} layouts, the best: {name_of(answer.best[0].layout)}")

# %% [markdown] name="tenth_text"
# **Predict.** For the 8B model on eight H100s, how much longer, in percent, is a step of the tenth-best layout than a step of the best?

# %% name="tenth_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 15
### END GUESS
tenth_guess = Prediction("The tenth-best layout takes longer by", my_guess, "%", difference=True)

# %% name="ten_best"
ten = answers["8B, 8 H100s"].best
tenth_guess.reveal(100 * (ten[-1].seconds / ten[0].seconds - 1), how="planned")
table = [("planned: 8B on 8 H100s", "s per step", "from", "to")]
for found in ten:
    table.append((name_of(found.layout), *(f"{value:.2f}" for value in (found.seconds, found.low, found.high))))
show_table(table)
claims.figure("the tenth best layout / the best", "planned: 8B, 8 H100", ten[-1].seconds / ten[0].seconds, "x")

# %% [markdown] name="losers_text"
# What makes other layouts slower or too large?

# %% name="losers"
for name in ("8B, 8 H100s", "8B, 8 4090s"):
    print(f"\n{name}: {name_of(answers[name].best[0].layout)}")
    for loser in answers[name].losers:
        print(f"  {loser.name}: {loser.reason}")

# %% [markdown] name="losers_explained"
# *From* and *to* show the planner's own error: of ten runs from a source that it has never seen, nine should lie between them. The ten best layouts differ by far less, so treat them as equals, and prefer the one that is easiest to run. That includes pure FSDP, which is slower by far less than this error.
#
# Memory rules out others before any timing: every layout that keeps all parameters, gradients and optimizer state on each GPU, and on the 4090s also every layout that recomputes nothing.
#
# ## 2 · A search that forgets a term
#
# The next cell searches with your formulas (in the course's version), and then with a memory formula that counts only the state, 16 bytes per parameter. The planner checks both choices.

# %% name="forgetful"
table, over = [("planned", "memory formula", "its choice", "GiB by that formula", "GiB", "room", "fits")], {}
for name in ("8B, 8 4090s", "70B, 64 H100s"):
    asked = ASKED[name]
    cluster, layouts = CLUSTERS[asked.cluster], list(candidates(arch_of(asked.model), asked.gpus, asked.tokens))
    room = cluster.gpu.room

    def state(layout):
        return 16 * layout.arch.count() / layout.ranks

    fastest = min((each for each in layouts if state(each) <= room), key=lambda each: seconds(each, cluster))
    for formula, chosen in (("all terms", best(layouts, cluster)), ("state only", fastest)):
        counted = (memory if formula == "all terms" else state)(chosen)
        plan = plan_layout(chosen, cluster)
        over[name, formula] = plan.worst.nbytes / room
        figures = (f"{nbytes / GiB:.0f}" for nbytes in (counted, plan.worst.nbytes, room))
        table.append((name, formula, chosen.summary, *figures, "yes" if plan.fits else "no"))
show_table(table)
for (name, formula), ratio in over.items():
    claims.figure(f"{formula}: bytes of the search's choice / room", f"planned: {name}", ratio, "x")

# %% [markdown] name="forgetful_explained"
# To a formula without activations and logits, recomputation costs time and saves nothing. So the search does not recompute, and its choice does not fit. Your formulas leave out some bytes, too, so leave room.
#
# ### Bytes that are easy to forget
#
# Which bytes do formulas leave out? To find out, compare a plan with a run whose peak has been published. One of Megatron-LM's functional tests trains a GPT with 7 billion parameters on eight A100s, and logs the allocated peak of its last pipeline rank ([published values](https://github.com/NVIDIA/Megatron-LM/blob/d98e8a64ddf34856e74b24714e3bedb2f5a39553/tests/functional_tests/test_cases/gpt/gpt3_7b_tp1_pp4_memory_speed/golden_values_dev_dgx_a100.json)). Each of the four pipeline ranks has eight chunks of one block. A micro-batch is one sequence of 8,192 tokens, and nothing is recomputed.
#
# The test keeps Megatron's default for **dropout**: 0.1. In each block, dropout zeroes a tenth of the attention weights, inside the fused attention kernel. It also zeroes a tenth of the numbers that attention and MLP add to the residual stream.
#
# **Predict.** By what percentage does the planned peak fall without dropout?

# %% name="masks_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 6  # two masks of 1 byte: 2 of the 34 bytes per token and channel in the paper that lab 05b cites
### END GUESS
masks_guess = Prediction("7B on 8 A100s: without dropout, the peak falls by", my_guess, "%", difference=True)

# %% name="masks"
# A row describes a run in the words of the planner's option --rows; what it leaves out is the framework's default.
MEGATRON = {"framework": "megatron-lm", "gpus": 8, "zero": "zero1", "compile": False}
MEGATRON |= {"wgrad_fusion": False, "deterministic": True}
SIZES = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 16_384, "vocab": 131_200, "positions": 8192}
SEVEN = MEGATRON | {"arch": SIZES | {"bias": True, "tied": False}, "gpu": "a100", "pipeline": 4, "virtual_stages": 8}
SEVEN |= {"seq": 8192, "global_batch_size": 8}
SEVEN_PUBLISHED = 60_489_064_448  # bytes


def logged(row):
    """Return the planned memory of the rank whose peak the framework logs."""
    question = read_line(row)
    return question.logged(plan_layout(question.layout, question.cluster))


dropped, undropped = logged(SEVEN), logged(SEVEN | {"dropout": 0.0})
masks_guess.reveal(100 * (1 - undropped.nbytes / dropped.nbytes), how="planned")
for name, rank in (("with dropout", dropped), ("without", undropped)):
    print(f"{name:13}planned {rank.nbytes / 1e9:.2f} GB, published {SEVEN_PUBLISHED / 1e9:.2f} GB:", end=" ")
    print(f"{100 * (rank.nbytes / SEVEN_PUBLISHED - 1):+.2f}%")
by_hand = dropped.in_flight * 2 * SIZES["hidden"] * SEVEN["seq"]  # two masks per block, one byte per number
print(f"{dropped.in_flight} blocks in flight: their masks take {by_hand:,} bytes,", end=" ")
print(f"and the plans differ by {dropped.nbytes - undropped.nbytes:,}")
claims.figure("peak without dropout / published", "planned: 7B, 8 A100", undropped.nbytes / SEVEN_PUBLISHED, "x")
claims.figure("peak with dropout / published", "planned: 7B, 8 A100", dropped.nbytes / SEVEN_PUBLISHED, "x")

# %% [markdown] name="masks_explained"
# The backward pass must drop the same numbers, so dropout saves a **mask**: one byte per number. Each block in flight has two masks of sequence × width, one for its attention and one for its MLP. The last rank has only eight blocks, but in an interleaved schedule a block holds the activations of several micro-batches at once. The attention weights need no mask here: the fused kernel saves the state of its random number generator, and draws the same numbers again.
#
# With the masks, the plan agrees with the published peak to well below 1%. The masks are a small share of the activations, and the peak also holds weights, gradients and optimizer state, so the peak falls by less than the activations do.
#
# If attention is *not* fused, its dropout saves a mask, too: one byte per query-key pair and head. Another of Megatron's tests trains a small model with unfused attention ([published values](https://github.com/NVIDIA/Megatron-LM/blob/d98e8a64ddf34856e74b24714e3bedb2f5a39553/tests/functional_tests/test_cases/gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_fim_dataset/golden_values_dev_dgx_h100.json)): 12 blocks of width 512, 8 heads, and 4 sequences of 1,024 tokens per micro-batch. The planner always includes these masks, so the cell subtracts them.

# %% name="scores"
NARROW = {"layers": 12, "hidden": 512, "heads": 8, "vocab": 50_432, "positions": 1024, "bias": True, "tied": True}
SMALL = MEGATRON | {"arch": NARROW, "gpu": "h100", "attention": "unfused"}
SMALL |= {"seq": 1024, "micro_batch_size": 4, "global_batch_size": 32}
SMALL_PUBLISHED = 4_702_430_720  # bytes
small_peak = logged(SMALL).nbytes
of_weights = 12 * 4 * 8 * 1024**2  # blocks x sequences x heads x tokens squared, one byte each
of_stream = 12 * 2 * 4 * 1024 * 512  # blocks x 2 x sequences x tokens x width, one byte each
for name, nbytes in (("planned", small_peak), ("without masks of attention weights", small_peak - of_weights)):
    off = 100 * (nbytes / SMALL_PUBLISHED - 1)
    print(f"{name:35}{nbytes / 1e9:.2f} GB, published {SMALL_PUBLISHED / 1e9:.2f} GB: {off:+.2f}%")
print(f"masks: attention weights {human_bytes(of_weights)}, residual stream {human_bytes(of_stream)}")
share = 100 * of_weights / SMALL_PUBLISHED
claims.figure("masks of attention weights, share of the published peak", "12 blocks of width 512", share, "%")

# %% [markdown] name="dummies_text"
# These masks grow with the square of the sequence length, and here they are much larger than those of the residual stream. Unfused dropout also keeps a second copy of the attention weights: softmax needs the weights before dropout in its backward pass, and the matmul with the values needs those after it.
#
# The framework also holds tensors that your model does not define. With fused gradient accumulation (Megatron's default, which these two tests turn off), the matmul that computes a weight's gradient adds it to an FP32 buffer. Autograd still expects a gradient from the layer. So Transformer Engine, whose layers Megatron uses, returns a **dummy**: a tensor with the weight's shape and dtype, whose contents are not used. It allocates a dummy when it first needs one, and keeps it.
#
# SimuMax has measured 12 of Llama-3-70B's blocks under Megatron, with BF16 weights and sequences of 4,096 tokens, in two pipeline stages on eight B200s ([published values](https://github.com/MooreThreads/SimuMax/blob/4dcaae513ba7679d56c116a17cd4a691ec41e252/docs/b200/b200_release_v1.2_summary.json)).
#
# **Predict.** By what percentage does the planned peak fall without the dummies?

# %% name="dummies_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 10  # one dummy per weight: 2 bytes, beside the weight's 2 and its gradient's 4, and activations
### END GUESS
dummies_guess = Prediction("12 blocks of 70B: without dummies, the peak falls by", my_guess, "%", difference=True)

# %% name="dummies"
WIDE = {"layers": 12, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28_672, "vocab": 128_256, "tied": False}
TRIMMED = {"framework": "megatron-bridge", "arch": WIDE | {"gated": True}, "gpu": "b200", "gpus": 8, "pipeline": 2}
TRIMMED |= {"seq": 4096, "gradient_accumulation_steps": 4, "precision": "bf16-amp", "sequence_parallel": False}
TRIMMED_PUBLISHED = 66.55 * GiB  # the largest of all ranks
full, bare = logged(TRIMMED), logged(TRIMMED | {"wgrad_fusion": False})
dummies_guess.reveal(100 * (1 - bare.nbytes / full.nbytes), how="planned")
for name, rank in (("with dummies", full), ("without", bare)):
    print(f"{name:13}planned {rank.nbytes / GiB:.2f} GiB, published {TRIMMED_PUBLISHED / GiB:.2f} GiB:", end=" ")
    print(f"{100 * (rank.nbytes / TRIMMED_PUBLISHED - 1):+.2f}%")
shapes = {"q, k and v": 80 * 128, "output": 64 * 128, "gate and up": 2 * 28_672, "down": 28_672}  # each times 8,192
by_hand = 2 * 8192 * sum(shapes.values())
print(f"one dummy for each of {len(shapes)} shapes: {by_hand:,} bytes,", end=" ")
print(f"and the plans differ by {full.nbytes - bare.nbytes:,}")
subject = "planned: 12 blocks of 70B, 8 B200"
claims.figure("peak without dummies / published", subject, bare.nbytes / TRIMMED_PUBLISHED, "x")
claims.figure("peak with dummies / published", subject, full.nbytes / TRIMMED_PUBLISHED, "x")

# %% [markdown] name="dummies_explained"
# Transformer Engine keeps one dummy per distinct **shape** and dtype, not one per weight (`get_dummy_wgrad` in its `module/base.py`): the six blocks of a stage share four dummies. So the bytes of dummies depend on the width of the blocks and on the number of tensor ranks that divide the weights, but not on the number of blocks or tokens. Dummies matter most if a GPU has a few wide blocks, undivided, and few tokens.
#
# So before you rely on a formula to the last percent, ask what dropout saves, and which tensors the framework allocates for itself.
#
# ## 3 · Rules of thumb
#
# You often hear four rules. *Keep tensor parallelism inside a node.* *Put pipelines between nodes.* *Shard everything until communication becomes the bottleneck.* *Give each GPU enough tokens to hide the gathers.* The planner can test them.
#
# **Predict.** The 8B model trains on 16 H100s (two nodes), with 64 sequences of 8,192 tokens per step. Each layout processes the same number of tokens per GPU and micro-batch: with more tensor ranks, micro-batches are proportionally larger. What is the step time with 8 tensor ranks inside a node, divided by the step time with 1 tensor rank (all sharded)?

# %% name="tensor_rule_guess"
my_guess = None  # seconds with 8 tensor ranks / with 1
### BEGIN GUESS
my_guess = 1.1
### END GUESS
inside_guess = Prediction("Tensor 8 inside / tensor 1", my_guess, "times")

# %% name="tensor_rule_run"
sizes = {t: {"tensor": t, "shard": 16 // t, "micro_batch_size": t, "micro_batches": 4} for t in (1, 8, 16)}
cut = {t: plan_layout(Layout(EIGHT, **size, seq=8192), h100) for t, size in sizes.items()}
beyond, inside = cut[16].seconds / cut[8].seconds, cut[8].seconds / cut[1].seconds
inside_guess.reveal(inside, how="planned")
show(
    parts_picture({f"tensor {t}, shard {16 // t}": plan for t, plan in cut.items()}),
    "Three bars of seconds: with more tensor ranks, waiting for them grows, and so do passes over memory.",
)
for t, plan in cut.items():
    print(
        f"tensor {t:2}: {plan.seconds:.2f} s, {human_bytes(plan.worst.nbytes)}, {'fits' if plan.fits else 'too large'}"
    )
claims.figure("tensor parallel over two nodes / inside one", "planned: 8B, 16 H100, 16 / 8 ranks", beyond, "x")
claims.figure("tensor parallel inside a node / none", "planned: 8B, 16 H100, 8 / 1 ranks", inside, "x")

# %% [markdown] name="tensor_rule_explained"
# The planner's error is larger than this factor, but the direction is clear: tensor ranks wait for every message here. A rank's arithmetic stays about the same, because t tensor ranks share a micro-batch of t sequences. But each all-reduce carries t sequences, so a rank sends 2 (t − 1) times the message of one sequence, and waiting grows with t on any link. The ring of 16 tensor ranks uses all network ports of both nodes and is almost as fast as a ring inside a node, so the network alone does not explain why 16 ranks are slower. The rule tells you **where** to put tensor ranks if memory (or a batch that cannot be split further) forces you to use them. It is not a reason to use them.
#
# ### Enough tokens
#
# [[Sharding]] calculated how many tokens hide a gather. For a whole micro-batch, set data = compute in your formula for `seconds`.

# %% name="enough_run"
enough_tokens = 8 / ring_bandwidth(h100, 64) / (6 / (0.5 * h100.gpu.flops16))
print(f"by the formula, {enough_tokens:,.0f} tokens per micro-batch hide the gathers on 64 H100s")
enough = {
    tokens: plan_layout(Layout(EIGHT, shard=64, seq=tokens, micro_batches=2), h100) for tokens in (1024, 2048, 8192)
}
table = [("planned: tokens of a micro-batch", "waits for data ranks", "MFU")]
for tokens, plan in enough.items():
    table.append((f"{tokens:,}", f"{plan.parts['shard']:.0%}", f"{plan.mfu:.0%}"))
show_table(table)
few, many = (100 * enough[tokens].parts["shard"] for tokens in (1024, 8192))
claims.figure("waits for gathers, too few tokens per GPU", "planned: 8B, 64 H100, 1,024 tokens", few, "%")
claims.figure("waits for gathers, enough tokens per GPU", "planned: 8B, 64 H100, 8,192 tokens", many, "%")

# %% [markdown] name="enough_explained"
# Above that number of tokens, the waits for parameters soon fade. So this number makes the third rule precise. If you add GPUs and keep the batch, the tokens per micro-batch fall to it. Then it is time for another dimension.
#
# ### Pipelines between nodes
#
# The 70B model trains on 64 H100s, with 2 million tokens per step. One layout shards over all of them and recomputes every block, which adds a third to its computation. The other follows Megatron's rule: 8 tensor ranks in each node, and a pipeline of 8 nodes. It recomputes nothing, and its 256 micro-batches keep the schedule's bubble at 7/256 of the working time. With `tensor_overlap` (Megatron's `--tp-comm-overlap`), its tensor messages travel in chunks while the matmuls run.
#
# **Predict.** With `tensor_overlap`, what is the step time of the second layout, divided by that of the first?

# %% name="pipeline_guess"
my_guess = None  # seconds, tensor 8 x pipeline 8 with overlap / sharded
### BEGIN GUESS
my_guess = 0.9
### END GUESS
pipeline_guess = Prediction("Tensor 8 x pipeline 8 with overlap / sharded over 64", my_guess, "times")

# %% name="pipeline_run"
variants = {
    "sharded over 64": Layout(SEVENTY, shard=64, micro_batches=4, seq=8192, recompute="full"),
    "tensor 8 x pipeline 8": Layout(
        SEVENTY, tensor=8, pipeline=8, zero="none", engine="megatron", micro_batches=256, seq=8192
    ),
}
variants["tensor 8 x pipeline 8, overlap"] = replace(variants["tensor 8 x pipeline 8"], tensor_overlap=True)
plans = {name: plan_layout(layout, h100) for name, layout in variants.items()}
sharded, line, overlapped = plans.values()
pipeline_guess.reveal(overlapped.seconds / sharded.seconds, how="planned")
show(
    parts_picture(plans),
    "Three bars of seconds. The sharded layout computes more, because it recomputes; the second waits for tensor ranks, and the third waits less.",
)
for name, plan in plans.items():
    by_formulas = seconds(plan.layout, h100)
    print(
        f"{name}: {plan.seconds:.1f} s by the planner, {by_formulas:.1f} s by the formulas; MFU {plan.mfu:.0%}",
        end=", ",
    )
    print(f"{human_bytes(plan.worst.nbytes)}, {'fits' if plan.fits else 'does not fit'}")
ratio = seconds(line.layout, h100) / seconds(sharded.layout, h100)
subject = "planned: 70B, 64 H100, tensor 8 x pipeline 8 / sharded"
claims.figure("by the formulas", subject.removeprefix("planned: "), ratio, "x")
claims.figure("without tensor overlap", subject, line.seconds / sharded.seconds, "x")
claims.figure("with tensor overlap", subject, overlapped.seconds / sharded.seconds, "x")

# %% [markdown] name="one_port_text"
# The first layout pays for recomputation, the others for tensor ranks and a bubble. The output layer adds to the schedule's bubble, because it makes the last stage slower ([[pipelines_in_practice]]).
#
# The planner and your formulas rank the first two layouts differently. Your formulas ignore that the output layer slows one stage. They also assume that every rank computes at half of its peak, whether it computes full matmuls or an eighth of each. Here even the planner cannot decide: the third layout differs from the first by less than the planner's error.
#
# The rule may hold on a slow network. The next cell gives each node one port instead of one per GPU.

# %% name="one_port"
one_port = replace(h100, outside=h100.outside / h100.node)  # eight GPUs share what each had
shared = {name: plan_layout(variants[name], one_port) for name in ("sharded over 64", "tensor 8 x pipeline 8, overlap")}
for name, plan in shared.items():
    waits = plan.parts.get("shard", 0.0)
    print(
        f"{name}: {plan.seconds:.1f} s ({plans[name].seconds:.1f} s with a port per GPU), waits for data ranks {waits:.0%}"
    )
sharded, piped = shared.values()
claims.figure("one network port per node, with tensor overlap", subject, piped.seconds / sharded.seconds, "x")

# %% [markdown] name="experts_text"
# Now the sharded layout waits for its gathers. The other layout keeps its tensor messages inside the nodes, and its pipeline sends little. (The difference is still smaller than the planner's error; measure before you decide.)
#
# ## 4 · How many expert ranks?
#
# A mixture of experts ([[mixture_of_experts]]) has one more dimension: the ranks over which its experts are spread. Mixtral 8x7B has 47 billion parameters, nearly all of them in the 8 experts of each block. It trains on 64 H100s with ZeRO-1 and full recomputation, and each GPU has one sequence of 8,192 tokens per micro-batch. Expert ranks are data ranks, too: each still has its own tokens, but keeps only some of the experts, and all-to-alls carry the tokens to their experts and back. The planner assumes that all experts get the same load.
#
# **Predict.** How much longer, in percent, is a step with 8 expert ranks than with 1? (With 1, each GPU holds all experts. That does not fit, but the planner can still simulate it.)

# %% name="experts_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 15
### END GUESS
experts_guess = Prediction("With 8 expert ranks, a step is longer by", my_guess, "%", difference=True)

# %% name="experts"
mixtral = arch_of("mixtral-8x7b")
spread = {
    n: plan_layout(
        Layout(
            mixtral, shard=64, expert=n, zero="zero1", engine="megatron", micro_batches=4, seq=8192, recompute="full"
        ),
        h100,
    )
    for n in (1, 2, 4, 8)
}
exchanged = {n: plan.parts.get("expert", 0.0) * plan.seconds for n, plan in spread.items()}
experts_guess.reveal(100 * (spread[8].seconds / spread[1].seconds - 1), how="planned")
KINDS = ("parameters", "gradients", "optimizer state")
table = [("planned: expert ranks", *KINDS, "total", "fits", "s per step", "in all-to-alls")]
for n, plan in spread.items():
    held = (human_bytes(plan.worst.peak[kind]) for kind in KINDS)
    row = human_bytes(plan.worst.nbytes), "yes" if plan.fits else "no", f"{plan.seconds:.2f}", f"{exchanged[n]:.2f} s"
    table.append((str(n), *held, *row))
show_table(table)
subject = "planned: Mixtral 8x7B, 64 H100"
claims.figure("all-to-alls of 8 expert ranks / of 2", subject, exchanged[8] / exchanged[2], "x")
claims.figure("a step with 8 expert ranks / with 1", subject, spread[8].seconds / spread[1].seconds, "x")

# %% [markdown] name="experts_explained"
# Each of N expert ranks keeps 1/N of its rows and sends the rest ([[expert_parallel]]). So the bytes grow like (N − 1) / N and never exceed twice those of 2 ranks. The time in all-to-alls grows with them.
#
# Memory falls much faster. The weights and gradients of the experts are divided by N. The optimizer state stays as it is, because ZeRO-1 already shards it over all 64 ranks. So *inside a node*, where these eight ranks exchange their tokens over NVLink, many expert ranks cost little and save a lot. Between nodes, each GPU sends through its own network port, at a ninth of the bandwidth.
#
# ## 5 · Decide
#
# Here are two questions with several right answers.

# %% name="decide_questions"
for name, question in decisions().items():
    cluster, seq = question.cluster, f"sequences of {question.seq:,}"
    print(f"{name}: {question.arch.count() / 1e9:.1f}B parameters on {question.gpus} x {cluster.gpu.name},")
    print(f"    {question.tokens:,} tokens per step in {seq}: {question.sequences} sequences")

# %% [markdown] name="decide_contract"
# ### Your turn: a layout
#
# **Contract.** `decide(question)` takes one of the questions above and returns a `Layout` that
#
# - answers the question: it has the question's `arch`, all its `gpus`, its `seq`, and its number of `sequences` per step (`shard` × `replicate` × `micro_batch_size` × `micro_batches`), and trains all weights in the default `precision`;
# - fits in memory;
# - takes at most 10% longer than the best layout that the search found.
#
# A `Layout` also has settings that your formulas do not cover: `context` ranks with `context_method` "ring" or "all-to-all", `replicate`, `zero`, `engine` ("torchtitan", "megatron" or "pytorch"), `reshard_after_forward`, and "selective" for `recompute`. `help(Layout)` lists everything. Two differences between the engines matter here. The planner assumes that Megatron's attention kernel on an H100 (cuDNN's) is 1.5 times as fast as torchtitan's. And here Megatron does not shard the parameters: it needs `zero="none"` or `zero="zero1"`. `candidates` and your formulas give a first list. Evaluating a proposal with `plan_layout(layout, question.cluster)` can take 20 seconds or more, so choose your proposals with care.


# %% name="decide" answer=true reveal=true
def decide(question):
    ### BEGIN SOLUTION
    engine = {"engine": "megatron", "zero": "zero1"}  # the fastest attention on H100s
    if question.seq > 2**15:  # four sequences on eight GPUs: split each, and recompute its blocks, for room
        split = {"context": 8, "context_method": "all-to-all", "micro_batches": 4, "recompute": "full"}
        return Layout(question.arch, shard=1, **split, **engine, seq=question.seq)
    split = {"context": 2, "context_method": "all-to-all"}  # there is room: recompute nothing
    return Layout(question.arch, shard=32, **split, **engine, seq=question.seq)
    ### END SOLUTION


# %% name="decide_check"
decide = check("layouts_in_practice.decide", decide)

# %% name="decide_hint"
hint("layouts_in_practice.decide")

# %% [markdown] name="decide_guess_text"
# **Predict.** If *your* layout for the small step also uses recompute "full", by what percentage does the step get longer?

# %% name="decide_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 33
### END GUESS
again_guess = Prediction("Recomputed, the small step is longer by", my_guess, "%", difference=True)

# %% name="decide_run"
mine = {name: plan_layout(decide(question), question.cluster) for name, question in decisions().items()}
again = plan_layout(replace(mine["small"].layout, recompute="full"), h100)
again_guess.reveal(100 * (again.seconds / mine["small"].seconds - 1), how="planned")
for name, plan in mine.items():
    found = best_known(name)
    print(f"{name}: {name_of(plan.layout)}, {plan.seconds:.3g} s, {human_bytes(plan.worst.nbytes)}")
    print(f"    best known: {name_of(found.layout)}, {found.seconds:.3g} s, {human_bytes(found.nbytes)}")

# %% [markdown] name="decide_others_text"
# The small step has half as many sequences as there are GPUs. So there are at most 32 data ranks, and another dimension must have two ranks. Here are three candidates, otherwise equal.

# %% name="decide_others"
small = decisions()["small"]
pairs = {
    "context": {"context": 2, "context_method": "all-to-all"},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
}
for name, pair in pairs.items():
    grid = Layout(small.arch, shard=32, reshard_after_forward=False, seq=small.seq, **pair)
    plan = plan_layout(grid, small.cluster)
    print(f"2 {name} ranks: {plan.seconds:.3f} s, {plan.parts.get('bubble', 0):.0%} of it bubble")

# %% [markdown] name="play_text"
# Two context ranks are the fastest here ([[context_parallel]]), but two tensor ranks in a node are slower by less than the planner's error. The pipeline has one micro-batch per data rank, so one of its two stages always waits. The engine matters, too: the best known layout also has two context ranks, but it uses Megatron's attention kernel and does not shard the parameters. The small step has room for everything, so recomputing blocks only costs time there: less than a third, in part because the output layer is not repeated.
#
# ### Explore
#
# The figure has controls for every setting of a layout, and shows the memory of its ranks and a timeline of its step. It starts with the long sequences on 8 tensor ranks. Which setting fills the memory most without exceeding it? Which one makes the GPUs wait most?

# %% name="play"
layout_explorer(
    model="llama-3.1-8b",
    cluster="dgx-h100",
    gpus=8,
    tokens=2**19,
    seq=131_072,
    tensor=8,
    recompute="full",
)

# %% [markdown] name="bill_text"
# ## 6 · The bill
#
# The price of a run can only be estimated. According to the planner, a step takes between `low` and `high` seconds. The goodput, the fraction of the time that is spent on training ([[runs_that_survive]]), is uncertain, too.
#
# ### Your turn: days, GPU-hours, dollars
#
# **Contract.** `bill(found, tokens, price, goodput)` takes `found`, which has the `seconds`, `low` and `high` of one step, and a `layout` with `tokens` per step and `ranks`. `tokens` is the number of tokens of the run, `price` is in dollars per GPU-hour, and `goodput` is a pair (worst, best) of fractions. It returns a dict with "days", "gpu_hours" and "dollars", each a tuple (low, likely, high).
#
# - A run takes a whole number of steps. Each takes its seconds divided by the goodput.
# - The likely values use `seconds` and the mean of the two goodputs. The low values use the fastest step and the best goodput, the high values the slowest step and the worst goodput.
# - You pay for every GPU during the whole run.


# %% name="bill" answer=true reveal=true
def bill(found, tokens, price, goodput):
    ### BEGIN SOLUTION
    steps = math.ceil(tokens / found.layout.tokens)
    worst, best = goodput
    each = found.low / best, found.seconds / ((worst + best) / 2), found.high / worst
    days = tuple(steps * seconds / 86_400 for seconds in each)
    gpu_hours = tuple(24 * found.layout.ranks * time for time in days)
    return {"days": days, "gpu_hours": gpu_hours, "dollars": tuple(price * hours for hours in gpu_hours)}
    ### END SOLUTION


# %% name="bill_check"
bill = check("layouts_in_practice.bill", bill)

# %% name="bill_hint"
hint("layouts_in_practice.bill")

# %% [markdown] name="bill_guess_text"
# The next cell computes the bill for the 8B model on 160 billion tokens (20 per parameter, as *Chinchilla* advises), with a goodput of 0.85 to 0.97: on one node of H100s, on one node of 4090s, and on eight nodes of 4090s. (Insert your prices.) The eight nodes replicate the best layout of one node, with four times as many tokens per step. The replicas all-reduce their gradients between nodes, where each 4090 has only 1.5 GB/s of bandwidth.
#
# **Predict.** How much higher, in percent, is the bill for eight nodes of 4090s than the bill for one node of 4090s?

# %% name="bill_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 0  # the same GPU-hours, spread over more GPUs
### END GUESS
nodes_guess = Prediction("Eight nodes of 4090s cost more than one by", my_guess, "%", difference=True)

# %% name="bill_run"
PRICES = {"one node of H100s": 2.50, "one node of 4090s": 0.40}  # dollars per GPU-hour
PRICES["eight nodes of 4090s"] = PRICES["one node of 4090s"]
layouts = {
    "one node of H100s": answers["8B, 8 H100s"].best[0],
    "one node of 4090s": answers["8B, 8 4090s"].best[0],
}
# Eight nodes are 64 GPUs, with 2**21 tokens per step.
replicated = replace(layouts["one node of 4090s"].layout, replicate=8, micro_batches=4)
layouts["eight nodes of 4090s"] = found_of(plan_layout(replicated, CLUSTERS["8x-4090"]))
table, bills = [("planned: 8B, 160 billion tokens", "days", "GPU-hours", "dollars")], {}
for place, price in PRICES.items():
    bills[place] = bill(layouts[place], 160e9, price, (0.85, 0.97))
    cells = (f"{likely:,.0f} ({low:,.0f} to {high:,.0f})" for low, likely, high in bills[place].values())
    table.append((place, *cells))
dollars = {place: made["dollars"] for place, made in bills.items()}
nodes_guess.reveal(100 * (dollars["eight nodes of 4090s"][1] / dollars["one node of 4090s"][1] - 1), how="planned")
show_table(table)
days = bills["one node of 4090s"]["days"][1] / bills["one node of H100s"]["days"][1]
peaks = CLUSTERS["dgx-h100"].gpu.flops16 / CLUSTERS["8x-4090"].gpu.flops16
print(f"days on eight 4090s / on eight H100s: {days:.1f}; peak FLOP/s of an H100 / of a 4090: {peaks:.1f}")
for place in ("one node of H100s", "one node of 4090s"):
    print(f"MFU of {place}: {layouts[place].mfu:.0%}")
waits = layouts["eight nodes of 4090s"].parts["replicate"] / layouts["eight nodes of 4090s"].seconds
print(f"share of a step in which eight nodes of 4090s wait for replicas: {waits:.0%}")
wide = dollars["one node of H100s"][2] / dollars["one node of H100s"][0]
claims.figure("a bill's high end / its low end", "planned: 8B, 160 billion tokens, 8 H100", wide, "x")

# %% [markdown] name="bill_explained"
# As the last line shows, the eight nodes wait for the slow links between them, and you pay for that time.
#
# A 4090 needs many more hours than an H100 because it is slower: compare the ratio of the days with the ratio of the peaks. Both machines have about the same MFU, although the 4090s also recompute every block, which MFU does not count. So their matmuls run closer to their peak. Which machine is cheaper depends on prices. The ranges of the first two rows overlap, so this estimate does not decide.
#
# ## 7 · Export it
#
# The planner writes a plan as a configuration for torchtitan, Megatron or DeepSpeed. Here is the sharded 70B layout of section 3:

# %% name="export"
print(export(variants["sharded over 64"], "llama-3.1-70b", "torchtitan"))

# %% [markdown] name="export_control_text"
# An export must fail if the engine cannot run the plan. The search's best layout for the 70B model needs Megatron:

# %% name="export_control"
try:
    export(answers["70B, 64 H100s"].best[0].layout, "llama-3.1-70b", "torchtitan")
except RecipeError as error:
    print(f"RecipeError: {error}")

# %% [markdown] name="summary_text"
# ## 8 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - A plan has a margin of error. Treat layouts that differ by less than that as equals, and take the one that is easiest to run.
# - A search whose memory formula lacks a term can choose a layout that does not fit.
# - Dropout saves masks, one byte per number. A framework can hold tensors of its own, such as one dummy gradient per shape of a weight.
# - Without overlap, tensor ranks cost time even inside a node. Tensor and pipeline ranks can pay off where memory, too few sequences or a slow network limits sharding.
# - A micro-batch has enough tokens if its computation takes at least as long as its gathers and reductions. The cluster determines this number of tokens, not the model.
# - Expert ranks divide the experts' weights and gradients by N, and send (N − 1) / N of their rows: spread experts over a whole node before you go beyond it.
# - A rule of thumb does not state its conditions. Ask the planner, or measure, before you quote it.
#
# **What to reach for when.** If the model fits when sharded, with enough tokens per GPU, shard it, and stop there. If it does not fit, recompute, then use tensor ranks inside a node, or split long sequences over context ranks. If there are too few tokens for all GPUs to be data ranks, use the remaining GPUs as context or tensor ranks, or as a pipeline if each data rank still has many micro-batches.
#
# **Next.** [[Runs_that_survive]] is about what happens to such a run in its third week.
#
# **Sources.** Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters* (tensor inside, pipeline between nodes); Hoffmann et al. 2022, *Training Compute-Optimal Large Language Models* (*Chinchilla*); Tazi et al. 2025, *The Ultra-Scale Playbook*; torchtitan's documentation; Megatron-LM at commit d98e8a6, golden values of two functional tests (linked in section 2); SimuMax at commit 4dcaae5, `docs/b200`; Transformer Engine, `transformer_engine/pytorch/module/base.py`.
