# %% [markdown] name="title"
# # Choosing a layout
#
# **Data, tensor, pipeline and context ranks multiply to thousands of layouts, and a few laws say which of them is worth renting GPUs for: what fits, what is sent along which link, and who waits.**
#
# | | |
# |---|---|
# | After this you can | lay ranks out on a grid and name the groups of each dimension; predict what a rank sends along each, and measure it on a 2 × 2 × 2 grid; write a search by three laws and say where it errs; test the rules of thumb; choose a layout that a planner accepts; write the bill of a whole run with its uncertainty; hand the layout to torchtitan |
# | Time | 110 to 170 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes |
# | Before this | labs [[#start_here]], [[#sharding]], [[#tensor_parallel]], [[#pipeline]], [[#context_parallel]] and [[#mixture_of_experts]] |
# | Syllabus | T40, C20 |

# %% name="setup" setup=true
import itertools
import math
from dataclasses import replace

from helpers import (
    Claims,
    Collectives,
    Engine,
    GiB,
    Prediction,
    check,
    device_name,
    hint,
    human_bytes,
    in_a_row,
    layout_explorer,
    pick_device,
    run_ranks,
    show,
    text_table,
    toy_batch,
    toy_stages,
)
from helpers.exercises.choosing_a_layout import pictures
from helpers.exercises.choosing_a_layout.decisions import best_known, decisions
from helpers.exercises.choosing_a_layout.model_of_blocks import ModelOfBlocks
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.exercises.reference.pipeline import one_f_one_b
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.exports import export
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.search.found import found_of
from helpers.planner.search.names import name as name_of
from helpers.planner.search.searched import Asked, kept_answers

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = pick_device()
claims = Claims(device=torch.device("cpu"))  # its ranks talk over gloo on every machine
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="nine_text"
# ## 1 · Nine questions
#
# Three models, three clusters. The planner's search has tried layouts for each pair: all divisors of the GPUs in each dimension, sizes of micro-batches, schedules, what is recomputed. It has not tried everything that the planner can simulate: tensor parallelism whose messages overlap with matmuls (`tensor_overlap`), for one, which can beat the printed best. It simulates a step of the promising ones and keeps the fastest that fits. A search takes minutes, so its answers are kept with the course. (`python -m helpers layout` answers any question of this kind, also yours.)
#
# In the table, *GB/s inside* is what a GPU sends to another one of its node, *outside* what each GPU sends to other nodes, and *tokens a step* are those of one optimizer step, over all GPUs.

# %% name="nine_questions"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
PLACES = {"one node": ("dgx-h100", 8, 2**19), "eight nodes": ("dgx-h100", 64, 2**21), "4090s": ("8x-4090", 8, 2**19)}
QUESTIONS = {(model, place): Asked(model, *of) for model in MODELS for place, of in PLACES.items()}
table = [("cluster", "GPUs", "memory", "TFLOP/s", "GB/s inside", "GB/s outside", "tokens a step")]
for place, (name, gpus, tokens) in PLACES.items():
    c = CLUSTERS[name]
    links = f"{c.inside / 1e9:g}", f"{c.outside / 1e9:g}"
    table.append(
        (
            f"{place}: {c.gpu.name}",
            str(gpus),
            human_bytes(c.gpu.room),
            f"{c.gpu.flops16 / 1e12:.0f}",
            *links,
            str(tokens),
        )
    )
print(text_table(table))

# %% [markdown] name="nine_guess_text"
# Sequences have 8,192 tokens; weights are kept in FP32, products computed in BF16.
#
# **Predict** the best layouts of the 8B model. How many tensor ranks has the best one on one node? What MFU does the best one reach on the 4090s? And how many of the three models fit on those at all?

# %% name="nine_guess"
my_guess = None  # tensor ranks, 8B on one node of 8 H100
### BEGIN GUESS
my_guess = 1
### END GUESS
tensor_guess = Prediction("Tensor ranks, 8B on one node", my_guess, "")
my_guess = None  # percent
### BEGIN GUESS
my_guess = 30
### END GUESS
mfu_guess = Prediction("MFU, 8B on eight 4090s", my_guess, "%", difference=True)
my_guess = None  # of three models
### BEGIN GUESS
my_guess = 1
### END GUESS
fits_guess = Prediction("Models that fit on the 4090s", my_guess, "")

# %% name="nine_answers"
answers = {key: kept_answers()[asked] for key, asked in QUESTIONS.items() if asked in kept_answers()}
tensor_guess.reveal(answers["llama-3.1-8b", "one node"].best[0].layout.tensor)
mfu_guess.reveal(100 * answers["llama-3.1-8b", "4090s"].best[0].mfu)
fits_guess.reveal(sum(bool(answers[model, "4090s"].best) for model in MODELS))
table = [("", "layouts", "the best", "GiB", "s a step", "MFU")]
for (model, place), answer in answers.items():
    row = ("none fits", "", "", "")
    if answer.best:
        found = answer.best[0]
        row = name_of(found.layout), f"{found.nbytes / GiB:.0f}", f"{found.seconds:.3g}", f"{found.mfu:.0%}"
    table.append((f"{model}, {place}", f"{answer.layouts:,}", *row))
print(text_table(table))

# %% [markdown] name="losers_text"
# An answer without its reasons is an oracle. What would people have tried instead, and why does it lose? (Only the pairs with a layout that fits have losers.)

# %% name="losers"
for pair in (("llama-3.1-8b", "one node"), ("llama-3.1-8b", "4090s"), ("llama-3.1-70b", "eight nodes")):
    print(f"\n{' on '.join(pair)}: {name_of(answers[pair].best[0].layout)}")
    for loser in answers[pair].losers:
        print(f"  {loser.name}: {loser.reason}")

# %% name="ten_best"
table = [("8B on one node: the ten best", "s a step", "from", "to")]
for found in answers["llama-3.1-8b", "one node"].best:
    table.append((name_of(found.layout), *(f"{value:.2f}" for value in (found.seconds, found.low, found.high))))
print(text_table(table))

# %% [markdown] name="losers_explained"
# Memory rules most layouts out before any clock runs: all those of the two larger models on eight GPUs, and whatever keeps parameters whole. Among those that fit, the ten best differ by less than the planner's own error (*from* and *to*), so read an answer as a group. On the H100 node tensor ranks lose; their messages cost more than they save. On the 4090s everything is recomputed, because 22 GiB is not much.
#
# The rest of this lab builds what is behind such an answer: where ranks lie, what they send, what fits, how long it takes.
#
# ## 2 · A grid of ranks
#
# Seats in a theatre have a number, and also a floor, a row and a place in the row. Ranks likewise: one number, and a coordinate in each dimension. The last dimension counts fastest, so its ranks are neighbours, and neighbours share a node.

# %% name="grid_figure"
SIZES = {"pipeline": 2, "data": 2, "tensor": 2}  # slowest first
show(
    pictures.grid_picture(SIZES, node=4),
    "Eight ranks in four rows of two. A row has the two tensor ranks of one pipeline stage and one data coordinate. "
    "The first two rows, which are pipeline stage 0, are one node of four; the last two, stage 1, the other.",
)

# %% [markdown] name="grid_guess_text"
# Each dimension has its **groups**: ranks that differ in this coordinate alone, and talk to each other. In the picture, nodes have four ranks.
#
# **Predict.** Of the 4 groups of each dimension, so 12 in all, how many have to cross from node to node?

# %% name="grid_guess"
my_guess = None  # groups of 12
### BEGIN GUESS
my_guess = 4  # the pipeline's
### END GUESS
crossing_guess = Prediction("Groups that cross nodes", my_guess, "of 12")

# %% [markdown] name="grid_contract"
# ### Your turn: groups, and what they send
#
# **Contract.** `groups(sizes, dimension)`: `sizes` is a dict such as SIZES, slowest dimension first; `dimension` is one of its keys. Returns a list of lists of ranks, all groups along that dimension. Within a group, ranks stand in the order of their coordinate; groups in the order of their first ranks.
#
# `sent(sizes, stage, model, m)`: returns a dict with the bytes that one rank of pipeline stage `stage` sends in one step, along "tensor", "pipeline" and "data". `sizes` has these three.
#
# - `model` has `blocks` equal blocks, cut into stages of equal numbers; `weights`, the bytes of one block's gradients; `message`, the bytes that one micro-batch has between two blocks; `all_reduces`, of one message, that tensor ranks need for a block and a micro-batch, forward and backward.
# - There are `m` micro-batches on each data rank.
# - Tensor ranks split every block's weights evenly. Along "data", a rank's gradients are all-reduced once a step.
# - Along "pipeline", each micro-batch's message goes to the next stage, and its gradient to the one before, if there are such stages.
# - An all-reduce goes round a ring: of B bytes over n ranks, each sends 2 (n − 1) / n · B.


# %% name="grid" answer=true reveal=true
def groups(sizes, dimension):
    ### BEGIN SOLUTION
    ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    along = ranks.movedim(list(sizes).index(dimension), -1)
    return along.reshape(-1, sizes[dimension]).tolist()
    ### END SOLUTION


def sent(sizes, stage, model, m):
    ### BEGIN SOLUTION
    def ring(n, nbytes):
        return 2 * (n - 1) / n * nbytes

    blocks = model.blocks // sizes["pipeline"]
    neighbours = (stage > 0) + (stage < sizes["pipeline"] - 1)
    return {
        "tensor": ring(sizes["tensor"], model.message) * model.all_reduces * blocks * m,
        "pipeline": neighbours * m * model.message,
        "data": ring(sizes["data"], model.weights * blocks / sizes["tensor"]),
    }
    ### END SOLUTION


# %% name="grid_check"
groups, sent = check("choosing_a_layout.grid", groups, sent)

# %% name="grid_hint"
hint("choosing_a_layout.grid")

# %% name="grid_run"
crossing = {name: sum(len({rank // 4 for rank in group}) > 1 for group in groups(SIZES, name)) for name in SIZES}
crossing_guess.reveal(sum(crossing.values()))
for name in SIZES:
    print(f"{name:9} {groups(SIZES, name)}, {crossing[name]} cross")

# %% [markdown] name="run_text"
# The order of the dimensions decides who crosses. `init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=...)` makes the same grid, with a process group for each list.
#
# ## 3 · Eight ranks for real
#
# Now train on it. The model has the eight blocks of [[pipeline]], each x + MLP(x). A pipeline of two stages, by the engine and the 1F1B list of that lab; in each stage PyTorch cuts every MLP over two tensor ranks ([[tensor_parallel]]), with two all-reduces a block; and two data ranks take half of the micro-batches each and average their gradients.
#
# The grid makes one mistake easy: to average gradients over the wrong group. All stages and halves have tensors of the same shapes here, so nothing will complain.
#
# **Predict.** Which share of a rank's bytes goes along `tensor`? And if gradients are averaged over **all** ranks, not along `data`, how far off are they (in lengths of the right gradient)?

# %% name="run_guess"
my_guess = None  # percent of the bytes
### BEGIN GUESS
my_guess = 60
### END GUESS
share_guess = Prediction("Bytes along tensor", my_guess, "%", difference=True)
my_guess = None  # distance / length of the right gradient
### BEGIN GUESS
my_guess = 1
### END GUESS
wrong_guess = Prediction("Off, averaged over all ranks", my_guess, "lengths", difference=True)

# %% name="step_on_a_grid"
M, ROWS = 4, 64  # micro-batches of a data rank, and rows in each


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def step_on_a_grid(sizes, everywhere=False):
    """One step; `everywhere`: gradients are averaged over all ranks. Return place, loss, gradients, and bytes sent."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    at = dict(zip(sizes, mesh.get_coordinate(), strict=True))
    stage = toy_stages(sizes["pipeline"], nn.Linear)[at["pipeline"]]
    for block in stage:
        parallelize_module(block, mesh["tensor"], {"mlp.1": ColwiseParallel(), "mlp.3": RowwiseParallel()})
    line = next(group for group in groups(sizes, "pipeline") if dist.get_rank() in group)
    engine = Engine([stage], in_a_row(sizes["pipeline"]), peers=line)
    x, y = (parts[at["data"] :: sizes["data"]] for parts in toy_batch(ROWS * M * sizes["data"], M * sizes["data"]))
    over = None if everywhere else mesh.get_group("data")
    with MeshTraffic(mesh) as traffic:
        loss = engine.step(one_f_one_b(at["pipeline"], sizes["pipeline"], M), x, y)
        for p in stage.parameters():
            dist.all_reduce(local(p.grad), group=over)
            p.grad /= dist.get_world_size(over)
    whole = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in stage.parameters()]
    return at, loss, torch.cat([gradient.flatten() for gradient in whole]), traffic.by_dimension()


# %% name="one_process"
def one_process(data):
    """Return loss and gradient of the whole model on the whole batch."""
    model = nn.Sequential(*toy_stages(1, nn.Linear))
    x, y = map(torch.cat, toy_batch(ROWS * M * data, M * data))
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def off(results, data):
    """Return how far loss and gradients of a grid are from those of one process, relative."""
    loss, right = one_process(data)
    last = max(at["pipeline"] for at, *_ in results)
    losses = [mine for at, mine, *_ in results if at["pipeline"] == last]
    by_stage = {at["pipeline"]: gradient for at, _, gradient, _ in results}
    seen = torch.cat([by_stage[stage] for stage in sorted(by_stage)])
    return abs(sum(losses) / len(losses) / loss - 1), ((seen - right).norm() / right.norm()).item()


# %% name="grid_steps"
results = run_ranks(step_on_a_grid, 8, SIZES, device="cpu", measure=False).results
mixed = run_ranks(step_on_a_grid, 8, SIZES, True, device="cpu", measure=False).results
block = toy_stages(8, nn.Linear)[0]
model = ModelOfBlocks(8, 4 * sum(p.numel() for p in block.parameters()), 4 * ROWS * 64, 2)
# Sends of the pipeline are in no group of the mesh. What travels round a ring is counted for a long one: 2 B.
measured = [
    {"tensor": sent_by["tensor"] / 2, "pipeline": sent_by["another group"], "data": sent_by["data"] / 2}
    for *_, sent_by in results
]
share_guess.reveal(100 * measured[0]["tensor"] / sum(measured[0].values()))
wrong_guess.reveal(off(mixed, SIZES["data"])[1])

# %% name="grid_table"
loss_off, gradient_off = off(results, SIZES["data"])
print(f"along data: loss off by {loss_off:.1e}, gradients by {gradient_off:.1e}")
print(f"over all:   loss off by {off(mixed, SIZES['data'])[0]:.1e}, gradients by {off(mixed, SIZES['data'])[1]:.2f}")
table = [("a rank of stage 0", "predicted", "measured", "measured / predicted")]
for name, nbytes in sent(SIZES, 0, model, M).items():
    ratio = measured[0][name] / nbytes
    table.append((name, f"{nbytes:,.0f} B", f"{measured[0][name]:,.0f} B", f"{ratio:.4f}"))
    claims.record("T40", f"bytes along {name}, by formula", "2 x 2 x 2, 8 ranks", ratio, "of predicted", 0.98, 1.02)
print(text_table(table))
worst = max(loss_off, gradient_off)
claims.record("T40", "a 2 x 2 x 2 grid equals one process", "loss and all gradients", worst, "relative", 0, 1e-5)

# %% [markdown] name="grid_explained"
# Loss and gradients are those of one process. Bytes are those of the formula; the excess along `data` comes from the norms and the biases after the second matrix. Each tensor rank holds these in full, but the formula halves them.
#
# Averaged over all ranks, stage 0 got gradients of stage 1 mixed in, and the loss looks perfect: it was computed before. Only a comparison with one process, or many steps, shows it.
#
# ## 4 · Tokens or parameters
#
# Look at the three formulas again. Along `tensor` and `pipeline` go **activations**: they grow with the tokens. Along `data` go **gradients**, and with sharding parameters: they do not. So which sends less depends on how many tokens a rank reads before it must reduce.
#
# Four ranks, one MLP block of width 64 (33,216 parameters). `fully_shard` gathers the parameters twice and reduces the gradients once. Tensor parallel all-reduces a message twice.
#
# **Predict.** With how many tokens in a micro-batch of each rank do both send the same?

# %% name="tokens_guess"
my_guess = None  # tokens of a micro-batch
### BEGIN GUESS
my_guess = 3 * 33_216 / (2 * 2 * 64)  # three times the parameters; two all-reduces of tokens x width, twice each
### END GUESS
tokens_guess = Prediction("Tokens at which both send the same", my_guess, "")


# %% name="tokens_run"
def both_ways(lengths):
    """Bytes that a rank sends for micro-batches of these lengths: sharded, and with tensor ranks (four ranks)."""
    mesh, rows = init_device_mesh("cpu", (4,)), []
    for length in lengths:
        sharded, cut = (toy_stages(8, nn.Linear)[0] for _ in range(2))
        fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
        parallelize_module(cut[0], mesh, {"mlp.1": ColwiseParallel(), "mlp.3": RowwiseParallel()})
        volumes = []
        for way in (sharded, cut):
            x = torch.randn(length, 64, requires_grad=True)
            with Collectives() as said:
                way(x).square().mean().backward()
            volumes.append(said.volume * 3 / 4)
        rows.append(volumes)
    return rows


LENGTHS = (64, 128, 256, 512, 1024)
rows = run_ranks(both_ways, 4, LENGTHS, device="cpu", measure=False).results[0]
ways = dict(zip(("sharded", "tensor"), zip(*rows, strict=True), strict=True))
tokens_guess.reveal(LENGTHS[0] * ways["sharded"][0] / ways["tensor"][0])
show(
    pictures.crossing_picture(LENGTHS, ways),
    "Bytes over tokens, both axes logarithmic: a flat line for the sharded block, a rising one for tensor ranks.",
)
growth = {name: nbytes[-1] / nbytes[0] for name, nbytes in ways.items()}
claims.record(
    "C20", "sharding sends the same for any tokens", "4 ranks, 16 x tokens", growth["sharded"], "x", 0.99, 1.01
)
claims.record("C20", "tensor ranks send in step with tokens", "4 ranks, 16 x tokens", growth["tensor"], "x", 15, 17)

# %% [markdown] name="tokens_explained"
# The flat line is why sharding is cheap for long micro-batches: its messages hide behind computation that grows with the tokens. The rising line does not hide behind a larger batch: messages and computation grow together, and plain tensor ranks wait for each message. (Splitting each matmul so that its messages overlap with it, `tensor_overlap`, hides a part.)
#
# ## 5 · Laws that search
#
# A search needs three things: what fits, how long a step takes, and the patience to try. You write laws of a few lines for layouts of sharded data ranks, tensor ranks and 1F1B. A `Layout` knows its `arch`, `tensor`, `pipeline`, `shard`, `micro_batch_size`, `micro_batches`, `seq`, `recompute`, `ranks` and `tokens` (of a step).
#
# How fast a ring is depends on where its ranks lie. `ring_bandwidth(cluster, ranks, stride)` says it, in bytes/s: inside a node, its links; over several nodes, as many network ports as the ring has ranks in a node.

# %% name="rings"
h100 = CLUSTERS["dgx-h100"]
for ranks, stride, what in (
    (8, 1, "8 neighbours"),
    (16, 1, "16 neighbours"),
    (64, 1, "64 neighbours"),
    (8, 8, "8 ranks, one of each node"),
):
    print(f"{what:26} {ring_bandwidth(h100, ranks, stride) / 1e9:5.0f} GB/s")

# %% [markdown] name="laws_contract"
# ### Your turn: what fits, how long, and the best
#
# **Contract.** `memory(layout)`: bytes on the first pipeline rank, the sum of
#
# - state: 16 bytes (FP32 weights, gradients, two moments) for each of its parameters, `arch.count()` / (tensor · pipeline); each of the `shard` ranks keeps its part;
# - activations: 34 bytes for each token of a micro-batch and each of `arch.hidden` numbers, in each of its layers / pipeline blocks, for each micro-batch in flight in 1F1B; tensor ranks split them. With recompute "full" a block keeps 2 bytes in place of 34, and beside that one block of one micro-batch has all 34;
# - logits: 4 bytes for each token of a micro-batch and each of `arch.vocab` words, split by tensor ranks. Only if pipeline is 1: else they are on another rank.
#
# `seconds(layout, cluster)`: (max(compute, data) + tensor) · (1 + (pipeline − 1) / micro_batches), where
#
# - compute: `arch.flops_per_token(seq)` for each token of the step, shared by all ranks, at half of `cluster.gpu.flops16`; with recompute "full" 4/3 of it;
# - data: for each micro-batch, two gathers of 2 bytes and one reduction of 4 bytes a parameter of this rank; (n − 1) / n of it leaves the rank. The shard ranks lie `tensor` apart;
# - tensor: for each micro-batch and block of this rank 4 all-reduces, with recompute "full" 6, of 2 bytes for each token and hidden number. Tensor ranks are neighbours.
#
# `best(layouts, cluster)`: of a list, the layout with the least seconds whose memory is at most `cluster.gpu.room`; None if none fits.


# %% name="laws" answer=true reveal=true
def memory(layout):
    ### BEGIN SOLUTION
    arch, tokens = layout.arch, layout.micro_batch_size * layout.seq / layout.tensor
    state = 16 * arch.count() / (layout.tensor * layout.pipeline * layout.shard)
    blocks = arch.layers / layout.pipeline * min(layout.pipeline, layout.micro_batches)  # times those in flight
    width = tokens * arch.hidden
    activations = 34 * width * blocks if layout.recompute == "none" else 2 * width * blocks + 34 * width
    logits = 4 * tokens * arch.vocab if layout.pipeline == 1 else 0
    return state + activations + logits
    ### END SOLUTION


def seconds(layout, cluster):
    ### BEGIN SOLUTION
    arch, m, again = layout.arch, layout.micro_batches, layout.recompute == "full"
    flops = arch.flops_per_token(layout.seq) * layout.tokens / layout.ranks * (4 / 3 if again else 1)
    compute = flops / (0.5 * cluster.gpu.flops16)
    parameters = arch.count() / (layout.tensor * layout.pipeline)
    leaves = 8 * parameters * (layout.shard - 1) / layout.shard * m
    data = leaves / ring_bandwidth(cluster, layout.shard, layout.tensor)
    message = 2 * layout.micro_batch_size * layout.seq * arch.hidden
    reduces = (6 if again else 4) * arch.layers / layout.pipeline * m
    around = 2 * (layout.tensor - 1) / layout.tensor * message
    tensor = reduces * around / ring_bandwidth(cluster, layout.tensor)
    return (max(compute, data) + tensor) * (1 + (layout.pipeline - 1) / m)
    ### END SOLUTION


def best(layouts, cluster):
    ### BEGIN SOLUTION
    fitting = [layout for layout in layouts if memory(layout) <= cluster.gpu.room]
    return min(fitting, key=lambda layout: seconds(layout, cluster), default=None)
    ### END SOLUTION


# %% name="laws_check"
memory, seconds, best = check("choosing_a_layout.laws", memory, seconds, best)

# %% name="laws_hint"
hint("choosing_a_layout.laws")


# %% [markdown] name="laws_guess_text"
# Now let them search: all powers of two in each dimension, and micro-batches of 1 to 8 sequences. The planner, which simulates every kernel and message, says what the choice is worth.
#
# **Predict.** How much longer does the step of the laws' choice take than that of the search's best, on average over the questions that have an answer?

# %% name="laws_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 10
### END GUESS
laws_guess = Prediction("The laws' choice, longer than the best by", my_guess, "%", difference=True)


# %% name="laws_search"
def candidates(arch, gpus, tokens, seq=8192):
    """Yield layouts of sharded data, tensor and pipeline ranks."""
    powers = [2**n for n in range(7)]
    for tensor, pipeline, size in itertools.product(powers, powers, (1, 2, 4, 8)):
        shard, rest = divmod(gpus, tensor * pipeline)
        count, more = divmod(tokens // seq, max(shard, 1) * size)
        if rest or more or not count or not shard or arch.kv_heads % tensor or arch.layers % pipeline:
            continue
        for recompute in ("none", "full"):
            sizes = {"tensor": tensor, "pipeline": pipeline, "shard": shard}
            yield Layout(arch, **sizes, micro_batch_size=size, micro_batches=count, seq=seq, recompute=recompute)


table, slower, memory_ratios, time_ratios = [("", "by your laws", "fits", "longer than the best")], [], [], []
for (model, place), answer in answers.items():
    if not answer.best:
        continue
    asked, top = QUESTIONS[model, place], answer.best[0]
    chosen = best(list(candidates(top.layout.arch, asked.gpus, asked.tokens)), CLUSTERS[asked.cluster])
    real = found_of(plan_layout(chosen, CLUSTERS[asked.cluster]))
    slower.append(100 * (real.seconds / top.seconds - 1))
    memory_ratios.append(memory(chosen) / real.nbytes)
    time_ratios.append(seconds(chosen, CLUSTERS[asked.cluster]) / real.seconds)
    table.append((f"{model}, {place}", chosen.summary, "yes" if real.fits else "no", f"{slower[-1]:.0f} %"))

# %% name="laws_table"
laws_guess.reveal(sum(slower) / len(slower))
print(text_table(table))
print(f"bytes, law / planner:   {min(memory_ratios):.2f} to {max(memory_ratios):.2f}")
print(f"seconds, law / planner: {min(time_ratios):.2f} to {max(time_ratios):.2f}")
claims.record(
    "T40", "three laws choose nearly as well as the search", "worst of the questions", max(slower), "% longer", 0, 15
)

# %% [markdown] name="laws_explained"
# A few lines of law choose nearly as well as the simulation. What they miss in bytes are gathered parameters and other temporaries. In seconds, half of the peak stands for everything a chip does; the ratios show that it is right for one and wrong for another. The choice hardly minds, because such an error stretches all layouts of a cluster alike.
#
# Two warnings. A law that errs in *bytes* chooses layouts that do not fit, so leave room. And laws know only what you put in: yours know neither context ranks nor selective recomputation, and nothing can be chosen that was not written down.
#
# ## 6 · Rules of thumb
#
# Four rules are quoted everywhere. *Tensor parallel stays inside a node.* *Pipelines go between nodes.* *Shard everything until communication shows.* *Give each GPU enough tokens to hide the gathers.* The planner can try them on 16 and 64 H100.
#
# **Predict.** Take the 8B model on 16 H100, two nodes; 64 sequences of 8,192 tokens a step, one in a micro-batch. How many times as long does the step take with 16 tensor ranks, over both nodes, as with 8 inside a node? And with 8, compared with 1 (all sharded)?

# %% name="tensor_rule_guess"
my_guess = None  # seconds with 16 tensor ranks / with 8
### BEGIN GUESS
my_guess = 2
### END GUESS
beyond_guess = Prediction("Tensor 16 over two nodes / tensor 8 inside", my_guess, "times")
my_guess = None  # seconds with 8 tensor ranks / with 1
### BEGIN GUESS
my_guess = 1.2
### END GUESS
inside_guess = Prediction("Tensor 8 inside / tensor 1", my_guess, "times")

# %% name="tensor_rule_run"
EIGHT = answers["llama-3.1-8b", "one node"].best[0].layout.arch
cut = {t: plan_layout(Layout(EIGHT, tensor=t, shard=16 // t, micro_batches=4 * t, seq=8192), h100) for t in (1, 8, 16)}
beyond_guess.reveal(cut[16].seconds / cut[8].seconds)
inside_guess.reveal(cut[8].seconds / cut[1].seconds)
show(
    pictures.parts_picture({f"tensor {t}, shard {16 // t}": plan for t, plan in cut.items()}),
    "Three bars of seconds: with more tensor ranks, waiting for them grows, and so do passes over memory.",
)
beyond, inside = cut[16].seconds / cut[8].seconds, cut[8].seconds / cut[1].seconds
claims.record(
    "C20", "tensor parallel beyond a node loses", "planner: 8B, 16 H100, 16 / 8 ranks", beyond, "x", 1.05, math.inf
)
claims.record(
    "C20", "tensor parallel inside a node is for free", "planner: 8B, 16 H100, 8 / 1 ranks", inside, "x", 0, 1.05
)

# %% [markdown] name="tensor_rule_explained"
# Beyond a node it loses. But not because the network is that slow: two full nodes have eight ports each between them. Messages stay as long as they were, while each rank's products become half as large; so waiting takes a larger share, whichever link. That is why eight ranks inside a node lose to one as well, where one fits. The rule says **where** to put tensor ranks that memory (or a batch that is too small to split further) forces on you, and not that you should have some.
#
# ### Enough tokens
#
# From `data = compute` in your law follows how many tokens a GPU must read between two gatherings: 8 bytes a parameter over the ring, against 6 FLOPs a parameter and token at half the peak.
#
# **Predict.** With how many tokens in a micro-batch does the computation just cover the messages, on 64 H100?

# %% name="enough_guess"
my_guess = None  # tokens
### BEGIN GUESS
my_guess = 8 / ring_bandwidth(h100, 64) / (6 / (0.5 * h100.gpu.flops16))
### END GUESS
enough_guess = Prediction("Tokens of a micro-batch that hide the gathers, 64 H100", my_guess, "tokens")

# %% name="enough_run"
enough = {
    tokens: plan_layout(Layout(EIGHT, shard=64, seq=tokens, micro_batches=2), h100) for tokens in (1024, 2048, 8192)
}
table = [("tokens of a micro-batch", "waits for data ranks", "MFU")]
for tokens, plan in enough.items():
    table.append((f"{tokens:,}", f"{plan.parts['shard']:.0%}", f"{plan.mfu:.0%}"))
print(text_table(table))
law = 8 / ring_bandwidth(h100, 64) / (6 / (0.5 * h100.gpu.flops16))
enough_guess.reveal(law)
few, many = (100 * enough[tokens].parts["shard"] for tokens in (1024, 8192))
claims.record(
    "C20", "too few tokens a GPU: gathers show", "planner: 8B, 64 H100, 1,024 tokens", few, "% waits", 10, 100
)
claims.record(
    "C20", "enough tokens a GPU hide the gathers", "planner: 8B, 64 H100, 8,192 tokens", many, "% waits", 0, 3
)

# %% [markdown] name="enough_explained"
# Around the law's figure the chips stop waiting for parameters, and little by little: there is no cliff. The model's size is not in it: parameters cancel. What counts is FLOP/s over bytes/s, a property of the cluster. So a faster chip on the same network needs **more** tokens.
#
# Micro-batches do not add up here: two of 1,024 tokens gather twice. "Until communication shows" has thus a number: with a fixed batch and more and more GPUs, the tokens of each fall until they reach it. Then it is time for another dimension.
#
# ### Pipelines between nodes
#
# **Predict.** The 70B model on 64 H100, 2 million tokens a step. Sharded over all with full recomputation; or, as Megatron does it, 8 tensor ranks in each node, and a pipeline of 8 nodes. How many times as long does the second take?

# %% name="pipeline_guess"
my_guess = None  # seconds, tensor 8 x pipeline 8 / sharded
### BEGIN GUESS
my_guess = 0.9
### END GUESS
pipeline_guess = Prediction("Tensor 8 x pipeline 8 / sharded over 64", my_guess, "times")

# %% name="pipeline_run"
SEVENTY = QUESTIONS["llama-3.1-70b", "eight nodes"].question().arch
ways = {
    "sharded over 64": Layout(SEVENTY, shard=64, micro_batches=4, seq=8192, recompute="full"),
    "tensor 8 x pipeline 8": Layout(
        SEVENTY, tensor=8, pipeline=8, zero="none", engine="megatron", micro_batches=256, seq=8192
    ),
}
plans = {name: plan_layout(layout, h100) for name, layout in ways.items()}
sharded, line = plans.values()
pipeline_guess.reveal(line.seconds / sharded.seconds)
show(
    pictures.parts_picture(plans),
    "Two bars of seconds. The sharded one computes more, for it recomputes; the other waits for tensor ranks.",
)
for name, plan in plans.items():
    law = seconds(plan.layout, h100)
    print(f"{name}: {plan.seconds:.1f} s by the planner, {law:.1f} s by your laws; MFU {plan.mfu:.0%}", end=", ")
    print(f"{human_bytes(plan.worst.nbytes)}, {'fits' if plan.fits else 'does not fit'}")
by_law = seconds(line.layout, h100) / seconds(sharded.layout, h100)
claims.record("T40", "the laws rank this pair as the planner does", "70B, 64 H100, / sharded", by_law, "x", 1, math.inf)
claims.record(
    "C20",
    "tensor in the node, pipeline between: the best",
    "planner: 70B, 64 H100, / sharded",
    line.seconds / sharded.seconds,
    "x",
    0,
    1,
)

# %% [markdown] name="pipeline_explained"
# The picture shows what each pays: recomputation in one, waiting for tensor ranks and a bubble in the other. With 256 micro-batches the schedule's bubble is small; the rest of it is the head, which makes the last stage heavier ([[pipeline]]). So here the rule loses.
#
# By your laws it wins. They know of no head, and give a rank with an eighth of each product the same half of the peak as a rank with whole ones. So they are a little too slow for the one and too fast for the other, and that reverses their order: laws find the region, and a simulation or a measurement has to decide within it.
#
# The rule has conditions: a small batch, a model that does not fit otherwise, a network without a port for each GPU. Try one of them: a quarter of the tokens (micro-batches / 4), or a cluster with a slower network.
#
# ## 7 · Decide
#
# Two questions that nobody has answered for you. There is no one right answer: the planner is asked about whatever you propose.

# %% name="decide_questions"
for name, question in decisions().items():
    cluster, seq = question.cluster, f"sequences of {question.seq:,}"
    print(f"{name}: {question.arch.count() / 1e9:.1f}B parameters on {question.gpus} x {cluster.gpu.name},")
    print(f"    {question.tokens:,} tokens a step in {seq}: {question.sequences} sequences")

# %% [markdown] name="decide_contract"
# ### Your turn: a layout
#
# **Contract.** `decide(question)` gets one of the questions above. Returns a `Layout` that
#
# - answers the question: its `arch`, all its `gpus`, its `seq`, and `sequences` in a step (`shard` × `replicate` × `micro_batch_size` × `micro_batches`);
# - fits;
# - takes at most 10 % longer than the best that the search knows.
#
# Besides what your laws know, a layout has `context` ranks with `context_method` "ring" or "all-to-all", `replicate`, `zero`, `engine` ("torchtitan", "megatron" or "pytorch"), `reshard_after_forward`, recompute "selective"; `help(Layout)` lists all. A proposal takes seconds to be judged: try several.


# %% name="decide" answer=true reveal=true
def decide(question):
    ### BEGIN SOLUTION
    if question.seq > 2**15:  # four sequences on eight GPUs: split each, and recompute what is cheap, for room
        split = {"context": 8, "context_method": "all-to-all", "micro_batches": 4, "recompute": "selective"}
        return Layout(question.arch, shard=1, **split, seq=question.seq)
    split = {"context": 2, "context_method": "all-to-all", "reshard_after_forward": False}  # there is room: gather once
    return Layout(question.arch, shard=32, **split, seq=question.seq)
    ### END SOLUTION


# %% name="decide_check"
decide = check("choosing_a_layout.decide", decide)

# %% name="decide_hint"
hint("choosing_a_layout.decide")

# %% [markdown] name="decide_guess_text"
# **Predict.** How much longer than the best known does your layout take, for the long sequences? And for the small step, how much longer than *your* layout does one take that also recomputes "full", though it need not?

# %% name="decide_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 0
### END GUESS
decide_guess = Prediction("Long sequences, longer than the best by", my_guess, "%", difference=True)
my_guess = None  # percent
### BEGIN GUESS
my_guess = 33
### END GUESS
again_guess = Prediction("Small step, recomputed: longer by", my_guess, "%", difference=True)

# %% name="decide_run"
mine = {name: plan_layout(decide(question), question.cluster) for name, question in decisions().items()}
decide_guess.reveal(100 * (mine["long"].seconds / best_known("long").seconds - 1))
again = plan_layout(replace(mine["small"].layout, recompute="full"), h100)
again_guess.reveal(100 * (again.seconds / mine["small"].seconds - 1))
for name, plan in mine.items():
    found = best_known(name)
    print(f"{name}: {name_of(plan.layout)}, {plan.seconds:.3g} s, {human_bytes(plan.worst.nbytes)}")
    print(f"    best known: {name_of(found.layout)}, {found.seconds:.3g} s, {human_bytes(found.nbytes)}")

# %% [markdown] name="decide_others_text"
# The small step has half as many sequences as there are GPUs: 32 data ranks, and two of something else. Here are all three candidates, otherwise alike.

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
# Context ranks are the fastest ([[context_parallel]]), and two tensor ranks in a node come close. A pipeline has one micro-batch in each data rank here, so one of its two stages always waits.
#
# Then memory decides. Long sequences need recomputation; the small step has room for everything, so whatever saves memory there is time given away: recomputation, and also parameters gathered twice. The best known does not even split them (ZeRO-1).
#
# ### Play
#
# All controls of a layout, the memory of its ranks and the timeline of its step. Begin with the long sequences. Which control brings it closest to not fitting? Which one makes the chips wait most?

# %% name="play"
layout_explorer(
    model="llama-3.1-8b",
    cluster="dgx-h100",
    gpus=8,
    tokens=2**19,
    seq=131_072,
    tensor=1,
    context=8,
    context_method="all-to-all",
    recompute="full",
)

# %% [markdown] name="bill_text"
# ## 8 · The bill
#
# A layout is chosen for a run, and a run has a price. Its uncertainty belongs to it: the planner gives a step between `low` and `high` seconds, and not all of the time is training ([[runs_that_survive]]): goodput lies between two values, too.
#
# ### Your turn: days, GPU-hours, dollars
#
# **Contract.** `bill(found, tokens, price, goodput)`: `found` has `seconds`, `low` and `high` of one step, and `layout` with `tokens` of a step and `ranks`. `tokens` are those of the run, `price` the dollars of one GPU for an hour, `goodput` a pair (worst, best) of shares of 1. Returns a dict with "days", "gpu_hours" and "dollars", each a tuple (low, likely, high).
#
# - A run takes whole steps. Each takes its seconds over the goodput.
# - Likely: `seconds`, at the mean of the two goodputs. Low: the quickest step at the best goodput. High: the slowest at the worst.
# - You pay for every GPU the whole time.


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
bill = check("choosing_a_layout.bill", bill)

# %% name="bill_hint"
hint("choosing_a_layout.bill")

# %% [markdown] name="bill_guess_text"
# **Predict.** The 8B model on 160 billion tokens (20 a parameter, as *Chinchilla* advises), with a goodput of 0.85 to 0.97. What does it cost on the H100 node at 2.50 dollars a GPU-hour? And on the eight 4090s, at 0.40 dollars, how many times that? (Prices change weekly: put in yours.)

# %% name="bill_guess"
my_guess = None  # dollars, H100
### BEGIN GUESS
my_guess = 6 * 8e9 * 160e9 / (0.45 * 989e12) / 3600 / 0.91 * 2.5  # FLOPs over what a GPU does at 45 % MFU
### END GUESS
bill_guess = Prediction("Dollars for 8B on 160 billion tokens, H100", my_guess, "dollars")
my_guess = None  # dollars on 4090s / on H100
### BEGIN GUESS
my_guess = 0.5
### END GUESS
cards_guess = Prediction("Dollars, 4090s / H100", my_guess, "times")

# %% name="bill_run"
PRICES = {"one node": 2.50, "4090s": 0.40}  # dollars of a GPU for an hour
table, bills = [("8B, 160 billion tokens", "days", "GPU-hours", "dollars")], {}
for place, price in PRICES.items():
    bills[place] = bill(answers["llama-3.1-8b", place].best[0], 160e9, price, (0.85, 0.97))
    cells = (f"{likely:,.0f} ({low:,.0f} to {high:,.0f})" for low, likely, high in bills[place].values())
    table.append((place, *cells))
dollars = {place: made["dollars"] for place, made in bills.items()}
bill_guess.reveal(dollars["one node"][1])
cards_guess.reveal(dollars["4090s"][1] / dollars["one node"][1])
print(text_table(table))
wide = dollars["one node"][2] / dollars["one node"][0]
claims.figure("a bill's high end / its low end", "8B, 160 billion tokens, 8 H100", wide, "x")

# %% [markdown] name="bill_explained"
# The cheap card's hours add up: it recomputes, it waits for PCIe, and its days are many. Whether it is cheaper depends on prices within the width of the estimate. That is what the two ends are for: a difference that is smaller than their distance decides nothing.
#
# ### Hand it over
#
# A plan becomes a run when an engine is configured with it. The planner writes the configuration for torchtitan, Megatron and DeepSpeed, and refuses what an engine cannot do. Here is the sharded 70B of section 6:

# %% name="export"
print(export(ways["sharded over 64"], "llama-3.1-70b", "torchtitan"))

# %% [markdown] name="summary_text"
# ## 9 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Ranks lie on a grid; the last dimension has neighbours. Each dimension's groups carry one kind of traffic: activations along tensor, pipeline and context, parameters and gradients along data.
# - Activations grow with tokens, gradients do not. So sharding hides behind enough tokens, and plain tensor ranks wait.
# - Three laws choose: what fits; computation or gathers, whichever is longer; messages nobody can hide, stretched by the bubble.
# - Enough tokens: 8 bytes over the ring against 6 FLOPs. A cluster has this number, not a model.
# - A rule of thumb is a law with its conditions left out. Ask the planner, or measure, before you quote it.
#
# **What to reach for when.** It fits sharded, with enough tokens a GPU: shard, and stop there. It does not fit: recompute, then cut along tensor inside a node, or split long sequences over context ranks. Too few tokens a GPU for all of them: tensor and pipeline ranks take GPUs that data ranks cannot use. Next: [[runs_that_survive]], for what happens to such a run in its third week.
#
# **Sources.** Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters* (tensor inside, pipeline between nodes); Korthikanti et al. 2022, *Reducing Activation Recomputation* (the 34 bytes); Rajbhandari et al. 2020, *ZeRO*; Hoffmann et al. 2022, *Training Compute-Optimal Large Language Models*; Tazi et al. 2025, *The Ultra-Scale Playbook*; Austin et al. 2025, *How to Scale Your Model*; torchtitan's documentation.
