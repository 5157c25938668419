# %% [markdown] name="title"
# # Choosing a layout
#
# **Data, tensor, pipeline and context ranks multiply into thousands of layouts. A few formulas narrow them down: what fits in memory, how many bytes travel along which link, and which ranks wait.**
#
# | | |
# |---|---|
# | After this you can | lay ranks out on a grid and list the groups of each dimension; compute what a rank sends along each, and measure it on a 2 × 2 × 2 grid; write a search with three formulas and find out where it errs; test the rules of thumb; weigh the memory that expert ranks save against their all-to-alls; choose a layout that a planner accepts; estimate the cost of a run and the uncertainty of that estimate; export the layout to torchtitan |
# | Time | 115 to 165 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes |
# | Before this | labs [[#start_here]], [[#sharding]], [[#tensor_parallel]] and [[#pipeline]]; [[#tensor_parallel_in_practice]], [[#pipelines_in_practice]], [[#context_parallel]], [[#mixture_of_experts]] and [[#expert_parallel]] help |
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
    show_table,
    toy_batch,
    toy_stages,
)
from helpers.exercises.choosing_a_layout import pictures
from helpers.exercises.choosing_a_layout.decisions import best_known, decisions
from helpers.exercises.choosing_a_layout.model_of_blocks import ModelOfBlocks
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.exercises.pipeline.built import one_f_one_b
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.planner.catalog.archs import arch_of
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
# The table in this section combines three models with three clusters. For each pair, the planner has searched the layouts: every divisor of the number of GPUs in each dimension, and several micro-batch sizes, schedules and choices of what to recompute. It simulates a step of the promising layouts and keeps the fastest one that fits. A search takes minutes, so its answers are stored with the course. (`python -m helpers layout` answers any question of this kind.) The search does not try everything that the planner can simulate: for example, it recomputes all blocks or none. Megatron's tensor ranks send in chunks while their matmuls run (`tensor_overlap`, section 6) wherever NVLink connects them, which never takes longer in the simulation. torchtitan's tensor ranks wait for every message.
#
# *GB/s inside* is the bandwidth from one GPU to others in its node. *GB/s outside* is the bandwidth from one GPU to other nodes, so a node of 8 GPUs has 8 times as much. *Tokens per step* counts the tokens of one optimizer step on all GPUs.

# %% name="nine_questions"
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
PLACES = {"one node": ("dgx-h100", 8, 2**19), "eight nodes": ("dgx-h100", 64, 2**21), "4090s": ("8x-4090", 8, 2**19)}
QUESTIONS = {(model, place): Asked(model, *of) for model in MODELS for place, of in PLACES.items()}
table = [("cluster", "GPUs", "memory", "TFLOP/s", "GB/s inside", "GB/s outside", "tokens per step")]
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
            f"{tokens:,}",
        )
    )
show_table(table)

# %% [markdown] name="nine_guess_text"
# Sequences have 8,192 tokens. Weights are kept in FP32, and matmuls run in BF16.
#
# The tables use short names for layouts:
#
# | name | meaning |
# |---|---|
# | FSDP 8 | parameters, gradients and optimizer state sharded over 8 ranks (ZeRO-3); "not resharded" means that parameters stay gathered between forward and backward |
# | FSDP 8 × 2 | HSDP: sharded over 8 ranks, 2 replicas of that |
# | ZeRO-1 4 | 4 data ranks that shard only the optimizer state; DDP 4 shards nothing |
# | TP 2, PP 4, CP 2 | 2 tensor ranks, 4 pipeline ranks, 2 context ranks; PP is followed by the schedule ("× 16": its number of virtual stages), CP by the method |
# | batch 1 x 16 | 16 micro-batches of 1 sequence per data rank in each step |
# | recompute full | all blocks are recomputed in the backward pass; "selective" recomputes only attention |
# | (Megatron) | the layout needs Megatron; without this mark, torchtitan can run it. "TP overlap": its tensor messages overlap with matmuls |
#
# **Predict.** How many tensor ranks does the best layout for the 8B model on one node have?

# %% name="nine_guess"
my_guess = None  # tensor ranks, 8B on one node of 8 H100
### BEGIN GUESS
my_guess = 2
### END GUESS
tensor_guess = Prediction("Tensor ranks, 8B on one node", my_guess, "")

# %% name="nine_answers"
answers = {key: kept_answers()[asked] for key, asked in QUESTIONS.items() if asked in kept_answers()}
tensor_guess.reveal(answers["llama-3.1-8b", "one node"].best[0].layout.tensor, how="planned")
table = [("planned", "layouts", "the best", "GiB", "s per step", "MFU")]
for (model, place), answer in answers.items():
    row = ("none fits", "", "", "")
    if answer.best:
        found = answer.best[0]
        row = name_of(found.layout), f"{found.nbytes / GiB:.0f}", f"{found.seconds:.3g}", f"{found.mfu:.0%}"
    table.append((f"{model}, {place}", f"{answer.layouts:,}", *row))
show_table(table)

# %% [markdown] name="losers_text"
# Which layouts might you have tried instead, and what makes them slower or too large? The next cell lists them for three of the pairs, and then the ten best layouts of the first pair.

# %% name="losers"
for pair in (("llama-3.1-8b", "one node"), ("llama-3.1-8b", "4090s"), ("llama-3.1-70b", "eight nodes")):
    print(f"\n{' on '.join(pair)}: {name_of(answers[pair].best[0].layout)}")
    for loser in answers[pair].losers:
        print(f"  {loser.name}: {loser.reason}")

# %% name="ten_best"
table = [("8B on one node: the ten best", "s per step", "from", "to")]
for found in answers["llama-3.1-8b", "one node"].best:
    table.append((name_of(found.layout), *(f"{value:.2f}" for value in (found.seconds, found.low, found.high))))
show_table(table)

# %% [markdown] name="losers_explained"
# Memory rules out many layouts before any timing: all layouts of the 405B model, all layouts of the 70B model on eight GPUs, and every layout that keeps all parameters, gradients and optimizer state on each GPU. For the 8B model on one node, the ten best layouts differ by less than the planner's own error (*from* and *to*), so treat them as equals. Common layouts that are only a few percent worse, such as pure FSDP, are equals, too. On the 4090s every block is recomputed, because nothing fits without recomputation.
#
# The rest of this lab builds the parts of such an answer: where the ranks are, what they send, what fits, and how long a step takes.
#
# ## 2 · A grid of ranks
#
# Each rank has a number, and one coordinate for each dimension of a grid. The last dimension varies fastest, so its ranks have consecutive numbers, and such ranks usually share a node.

# %% name="grid_figure"
SIZES = {"pipeline": 2, "data": 2, "tensor": 2}  # slowest first
show(
    pictures.grid_picture(SIZES, node=4),
    "Eight ranks in four rows of two. A row holds the two tensor ranks of one pipeline stage and one data coordinate. "
    "The first two rows, pipeline stage 0, are one node of four ranks; the last two, stage 1, are the other node.",
)

# %% [markdown] name="grid_guess_text"
# Each dimension has its **groups**: ranks that differ only in this coordinate and communicate with each other. A group that crosses nodes uses the slower link.

# %% [markdown] name="grid_contract"
# ### Your turn: groups, and what they send
#
# **Contract.** `groups(sizes, dimension)` takes `sizes`, a dict such as SIZES with the slowest dimension first, and `dimension`, one of its keys. It returns all groups along that dimension, as a list of lists of ranks. The ranks of a group are sorted by their coordinate, and the groups by their first rank.
#
# `sent(sizes, stage, model, m)` returns a dict with the bytes that one rank of pipeline stage `stage` sends in one step along "tensor", "pipeline" and "data". `sizes` has these three keys.
#
# - `model` has four attributes: `blocks`, the number of equal blocks, which are split into stages of equal size; `weights`, the bytes of one block's gradients; `message`, the bytes that one micro-batch passes from one block to the next; and `all_reduces`, the number of all-reduces of one message that tensor ranks need per block and micro-batch, forward and backward.
# - Each data rank has `m` micro-batches.
# - Tensor ranks split every block's weights evenly. Along "data", a rank's gradients are all-reduced once per step.
# - Along "pipeline", each tensor rank sends each micro-batch's whole message to the next stage, and its whole gradient to the previous stage, if that stage exists.
# - All-reduces use a ring: for B bytes over n ranks, each rank sends 2 (n − 1) / n · B.


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
    neighbors = (stage > 0) + (stage < sizes["pipeline"] - 1)
    return {
        "tensor": ring(sizes["tensor"], model.message) * model.all_reduces * blocks * m,
        "pipeline": neighbors * m * model.message,
        "data": ring(sizes["data"], model.weights * blocks / sizes["tensor"]),
    }
    ### END SOLUTION


# %% name="grid_check"
groups, sent = check("choosing_a_layout.grid", groups, sent)

# %% name="grid_hint"
hint("choosing_a_layout.grid")

# %% name="grid_run"
crossing = {name: sum(len({rank // 4 for rank in group}) > 1 for group in groups(SIZES, name)) for name in SIZES}
for name in SIZES:
    print(f"{name:9} {groups(SIZES, name)}, {crossing[name]} cross nodes")

# %% [markdown] name="run_text"
# The order of the dimensions decides which groups cross nodes. `init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=...)` makes the same grid, with a process group for each list.
#
# ## 3 · Eight ranks for real
#
# Now train on that grid. The model has the eight blocks of [[pipeline]], each x + MLP(x). It runs in a pipeline of two stages, with the engine and the 1F1B schedule of that lab. In each stage PyTorch splits every MLP over two tensor ranks ([[tensor_parallel]]), with two all-reduces per block. Two data ranks take half of the micro-batches each and average their gradients.
#
# On a grid, one mistake is easy to make: averaging gradients over the wrong group. All stages and halves have tensors of the same shapes here, so nothing raises an error.
#
# **Predict.** If gradients are averaged over **all** ranks instead of only along `data`, how far off are they, as a multiple of the norm of the correct gradient?

# %% name="run_guess"
my_guess = None  # distance / norm of the correct gradient
### BEGIN GUESS
my_guess = 1
### END GUESS
wrong_guess = Prediction("Off, averaged over all ranks", my_guess, "norms", difference=True)

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
# Sends of the pipeline are in no group of the mesh. An all-reduce of B bytes is counted as 2 B: halve it for two ranks.
counted = [
    {"tensor": sent_by["tensor"] / 2, "pipeline": sent_by["another group"], "data": sent_by["data"] / 2}
    for *_, sent_by in results
]
wrong_guess.reveal(off(mixed, SIZES["data"])[1])
print(f"{100 * counted[0]['tensor'] / sum(counted[0].values()):.0f}% of a rank's bytes go along tensor")

# %% name="grid_table"
loss_off, gradient_off = off(results, SIZES["data"])
print(f"along data: loss off by {loss_off:.1e}, gradients by {gradient_off:.1e}")
print(f"over all:   loss off by {off(mixed, SIZES['data'])[0]:.1e}, gradients by {off(mixed, SIZES['data'])[1]:.2f}")
table = [("a rank of stage 0", "predicted", "counted", "counted / predicted")]
for name, nbytes in sent(SIZES, 0, model, M).items():
    ratio = counted[0][name] / nbytes
    table.append((name, f"{nbytes:,.0f} B", f"{counted[0][name]:,.0f} B", f"{ratio:.4f}"))
    claims.record("T40", f"bytes along {name}, by formula", "2 x 2 x 2, 8 ranks", ratio, "of predicted", 0.98, 1.02)
show_table(table)
worst = max(loss_off, gradient_off)
claims.record("T40", "a 2 x 2 x 2 grid equals one process", "loss and all gradients", worst, "relative", 0, 1e-5)

# %% [markdown] name="grid_explained"
# Loss and gradients are those of one process, and the bytes match the formula. (The number, size and group of the calls are counted. The share of a message that a rank of a ring sends is taken from the formula in both columns.) The excess along `data` comes from the norms and from the bias of the second matrix: each tensor rank holds these in full, but the formula counts half.
#
# The average over all ranks mixed gradients of different stages and of different halves of a matrix. The loss still looks perfect, because it was computed before the gradients were averaged. Only a comparison with one process, or many steps, shows the mistake.
#
# ## 4 · Tokens or parameters
#
# Look at the three formulas again. `tensor` and `pipeline` carry **activations**, which grow with the tokens. `data` carries **gradients**, and with sharding also parameters, which do not. So which kind of traffic is cheaper depends on how many tokens a rank processes between two reductions.
#
# The next cell distributes one MLP block of width 64 (33,216 parameters) over four ranks in two ways. `fully_shard` gathers the parameters twice and reduces the gradients once. Tensor parallelism all-reduces a message twice.


# %% name="tokens_run"
def both_ways(lengths):
    """Return the bytes that a rank of four sends per micro-batch length: sharded, and with tensor ranks."""
    mesh, rows = init_device_mesh("cpu", (4,)), []
    for length in lengths:
        sharded, cut = (toy_stages(8, nn.Linear)[0] for _ in range(2))
        fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
        parallelize_module(cut[0], mesh, {"mlp.1": ColwiseParallel(), "mlp.3": RowwiseParallel()})
        volumes = []
        for way in (sharded, cut):
            x = torch.randn(length, 64, requires_grad=True)
            with Collectives() as seen:
                way(x).square().mean().backward()
            volumes.append(seen.volume * 3 / 4)  # the share that leaves a rank of a ring of four, by formula
        rows.append(volumes)
    return rows


LENGTHS = (64, 128, 256, 512, 1024)
rows = run_ranks(both_ways, 4, LENGTHS, device="cpu", measure=False).results[0]
ways = dict(zip(("sharded", "tensor"), zip(*rows, strict=True), strict=True))
show(
    pictures.crossing_picture(LENGTHS, ways),
    "Bytes over tokens, both axes logarithmic: a flat line for the sharded block, a rising one for tensor ranks.",
)
print(f"both send the same at {LENGTHS[0] * ways['sharded'][0] / ways['tensor'][0]:.0f} tokens per micro-batch")
growth = {name: nbytes[-1] / nbytes[0] for name, nbytes in ways.items()}
said = "sharding sends the same for any number of tokens"
claims.record("C20", said, "4 ranks, 16 x tokens", growth["sharded"], "x", 0.99, 1.01)
said = "tensor ranks send in proportion to tokens"
claims.record("C20", said, "4 ranks, 16 x tokens", growth["tensor"], "x", 15, 17)

# %% [markdown] name="tokens_explained"
# The flat line is why sharding is cheap for long micro-batches: its messages hide behind computation that grows with the tokens. For tensor ranks a larger batch does not help, because messages and computation grow together, and plain tensor ranks wait for each message. Splitting each matmul so that its messages overlap with it (Megatron's `--tp-comm-overlap`, here `tensor_overlap`) hides part of the wait.
#
# ## 5 · Formulas that search
#
# A search needs to know what fits and how long a step takes. You write both as formulas of a few lines, for layouts of sharded data ranks, tensor ranks and 1F1B. A `Layout` has `arch`, `tensor`, `pipeline`, `shard`, `micro_batch_size`, `micro_batches`, `seq`, `recompute`, `ranks` and `tokens` (of a step).
#
# The speed of a ring depends on where its ranks are. `ring_bandwidth(cluster, ranks, stride)` returns it in bytes/s. Inside a node, the result is the bandwidth of a GPU's link. Over several nodes, it is the bandwidth of a network port times the number of ring members in a node, but at most the bandwidth inside a node: NCCL builds one ring per port, and each ring carries its share of the message.

# %% name="rings"
h100 = CLUSTERS["dgx-h100"]
for ranks, stride, what in (
    (8, 1, "8 neighbors"),
    (16, 1, "16 neighbors"),
    (64, 1, "64 neighbors"),
    (8, 8, "8 ranks, one per node"),
):
    print(f"{what:26} {ring_bandwidth(h100, ranks, stride) / 1e9:5.0f} GB/s")

# %% [markdown] name="laws_contract"
# ### Your turn: what fits, how long, and the best
#
# **Contract.** `memory(layout)` returns the bytes on a rank of the first pipeline stage. `recompute` is "none" or "full" here. The bytes are the sum of three terms:
#
# - State: 16 bytes per parameter (FP32 weights, gradients, two moments). A rank has `arch.count()` / (tensor · pipeline) parameters, and the `shard` ranks split their state evenly.
# - Activations: a rank has `arch.layers` / pipeline blocks. For each micro-batch that this stage has in flight in 1F1B ([[pipeline]]; there may be fewer micro-batches than stages), a block saves 34 bytes per token and element of `arch.hidden`. Tensor ranks split these bytes. With recompute "full" a block saves 2 bytes in place of 34, but one block of one micro-batch needs all 34 in addition.
# - Logits: 4 bytes for each token of a micro-batch and each entry of `arch.vocab`, split by tensor ranks. They count only if pipeline is 1; otherwise they are on another rank.
#
# `seconds(layout, cluster)` combines three durations. The messages of sharded data ranks travel during computation, so the longer of the two counts. Nothing hides the messages of tensor ranks. The bubble of 1F1B ([[pipeline]]) stretches the sum: each stage idles for as long as it spends on `pipeline` − 1 micro-batches.
#
# - compute: each token of the step costs `arch.flops_per_token(seq)` FLOPs. All ranks share this work, each at half of `cluster.gpu.flops16`. With recompute "full" it takes 4/3 as long.
# - data: derive it. For each micro-batch, fully sharded ranks gather their parameters in BF16 for the forward pass and again for the backward pass, and reduce their gradients in FP32. Section 2 gives the share of a message that a rank of a ring sends (an all-gather or a reduce-scatter is half an all-reduce). The shard ranks are `tensor` apart.
# - tensor: derive it from `sent`. A transformer block needs 4 all-reduces per micro-batch, or 6 with recompute "full". A message is one micro-batch's hidden state in BF16. Tensor ranks are neighbors.
#
# `best(layouts, cluster)` returns the layout of a list with the fewest seconds whose memory is at most `cluster.gpu.room`, or None if none fits.


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
# Now let your formulas search all powers of two in each dimension, and micro-batches of 1 to 8 sequences. The planner, which simulates every kernel and message, then evaluates their choice.
#
# **Predict.** By what percentage is a step longer with your formulas' choice than with the search's best layout, on average over the questions that have an answer?

# %% name="laws_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 10
### END GUESS
laws_guess = Prediction("The formulas' choice, longer than the best by", my_guess, "%", difference=True)


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


table, slower, memory_ratios, time_ratios = [("", "by your formulas", "fits", "longer than the best")], [], [], []
for (model, place), answer in answers.items():
    if not answer.best:
        continue
    asked, top = QUESTIONS[model, place], answer.best[0]
    chosen = best(list(candidates(top.layout.arch, asked.gpus, asked.tokens)), CLUSTERS[asked.cluster])
    real = found_of(plan_layout(chosen, CLUSTERS[asked.cluster]))
    slower.append(100 * (real.seconds / top.seconds - 1))
    memory_ratios.append(memory(chosen) / real.nbytes)
    time_ratios.append(seconds(chosen, CLUSTERS[asked.cluster]) / real.seconds)
    table.append((f"{model}, {place}", chosen.summary, "yes" if real.fits else "no", f"{slower[-1]:.0f}%"))

# %% name="laws_table"
laws_guess.reveal(sum(slower) / len(slower), how="planned")
show_table(table)
print(f"bytes, formula / planner:   {min(memory_ratios):.2f} to {max(memory_ratios):.2f}")
print(f"seconds, formula / planner: {min(time_ratios):.2f} to {max(time_ratios):.2f}")
claims.figure("three formulas, longer than the search's best", "worst of the questions, planned", max(slower), "%")

# %% [markdown] name="laws_explained"
# A few lines come close to the search, and within the planner's own error. In bytes they miss gathered parameters and other temporaries. In seconds, "half of the peak" stands in for everything that a chip does, and the ratios show that it fits some of these questions better than others. These errors hardly affect the choice among the layouts that the formulas cover. They would if the formulas erred in opposite directions on two layouts.
#
# Two warnings. A formula that counts too few *bytes* can choose layouts that do not fit, so leave room. And formulas can choose only among what they cover: yours leave out context ranks, engines, messages that overlap and selective recomputation. The search's best layout for the 70B model uses the first three.
#
# ## 6 · Rules of thumb
#
# You will hear four rules everywhere. *Keep tensor parallelism inside a node.* *Put pipelines between nodes.* *Shard everything until communication shows.* *Give each GPU enough tokens to hide the gathers.* The planner can test them on 16 and 64 H100s.
#
# **Predict.** The 8B model trains on 16 H100s (two nodes), with 64 sequences of 8,192 tokens per step. Each layout processes the same number of tokens per GPU and micro-batch: with more tensor ranks, micro-batches are proportionally larger. What is the step time with 8 tensor ranks inside a node, divided by the step time with 1 tensor rank (all sharded)?

# %% name="tensor_rule_guess"
my_guess = None  # seconds with 8 tensor ranks / with 1
### BEGIN GUESS
my_guess = 1.1
### END GUESS
inside_guess = Prediction("Tensor 8 inside / tensor 1", my_guess, "times")

# %% name="tensor_rule_run"
EIGHT = answers["llama-3.1-8b", "one node"].best[0].layout.arch
sizes = {t: {"tensor": t, "shard": 16 // t, "micro_batch_size": t, "micro_batches": 4} for t in (1, 8, 16)}
cut = {t: plan_layout(Layout(EIGHT, **size, seq=8192), h100) for t, size in sizes.items()}
beyond, inside = cut[16].seconds / cut[8].seconds, cut[8].seconds / cut[1].seconds
inside_guess.reveal(inside, how="planned")
show(
    pictures.parts_picture({f"tensor {t}, shard {16 // t}": plan for t, plan in cut.items()}),
    "Three bars of seconds: with more tensor ranks, waiting for them grows, and so do passes over memory.",
)
for t, plan in cut.items():
    print(
        f"tensor {t:2}: {plan.seconds:.2f} s, {human_bytes(plan.worst.nbytes)}, {'fits' if plan.fits else 'too large'}"
    )
claims.figure("tensor parallel over two nodes / inside one", "planned: 8B, 16 H100, 16 / 8 ranks", beyond, "x")
claims.figure("tensor parallel inside a node / none", "planned: 8B, 16 H100, 8 / 1 ranks", inside, "x")

# %% [markdown] name="tensor_rule_explained"
# These figures are planned, for tensor ranks that wait for every message. With `tensor_overlap` they wait less. And a difference within the planner's error decides nothing. (Nine in ten runs of a source that the planner has never seen should lie between the *from* and *to* of section 1. For half of the published sources of dense models, nine in ten runs are within about 20% of the forecast.) The direction is clear. A rank's arithmetic stays about the same here, because t tensor ranks share a micro-batch of t sequences. But each all-reduce carries t sequences, so a rank sends 2 (t − 1) times the message of one sequence, and waiting grows with t on any link. The ring of 16 tensor ranks spans two full nodes. It uses all eight network ports of each and is almost as fast as a ring inside a node (section 5), so the network alone does not explain why 16 ranks are slower. The rule tells you **where** to put tensor ranks if memory (or a batch that cannot be split further) forces you to use them. It is no reason to use them.
#
# ### Enough tokens
#
# Setting `data = compute` in your formula gives the number of tokens that a GPU must process between two gathers: 8 bytes per parameter over the ring, against 6 FLOPs per parameter and token at half of the peak.

# %% name="enough_run"
law = 8 / ring_bandwidth(h100, 64) / (6 / (0.5 * h100.gpu.flops16))
print(f"by the formula, {law:,.0f} tokens per micro-batch hide the gathers on 64 H100s")
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
# Near that number of tokens, the waits for parameters fade out. The model's size cancels out. What counts is FLOP/s over bytes/s, a property of the cluster. So a faster GPU on the same network needs **more** tokens.
#
# Tokens of separate micro-batches do not add up here: two micro-batches of 1,024 tokens gather twice. So you can put a number on "until communication shows". If you add GPUs and keep the batch, the tokens per GPU fall until they reach this number, and then it is time for another dimension. (A larger batch does not help beyond the critical batch size ([[gradient_accumulation]]), and that limits the number of data ranks.)
#
# ### Pipelines between nodes
#
# The 70B model trains on 64 H100s, with 2 million tokens per step. One layout shards over all of them and recomputes every block, which adds a third to its computation. The other follows Megatron's rule: 8 tensor ranks in each node, and a pipeline of 8 nodes. It recomputes nothing, and its 256 micro-batches keep the schedule's bubble at 7/256 of the working time.
#
# **Predict.** If the tensor messages overlap with the matmuls (`tensor_overlap`), what is the step time of the second layout, divided by that of the first?

# %% name="pipeline_guess"
my_guess = None  # seconds, tensor 8 x pipeline 8 with overlap / sharded
### BEGIN GUESS
my_guess = 0.9
### END GUESS
pipeline_guess = Prediction("Tensor 8 x pipeline 8, messages overlap / sharded over 64", my_guess, "times")

# %% name="pipeline_run"
SEVENTY = QUESTIONS["llama-3.1-70b", "eight nodes"].question().arch
ways = {
    "sharded over 64": Layout(SEVENTY, shard=64, micro_batches=4, seq=8192, recompute="full"),
    "tensor 8 x pipeline 8": Layout(
        SEVENTY, tensor=8, pipeline=8, zero="none", engine="megatron", micro_batches=256, seq=8192
    ),
}
ways["the same, messages overlap"] = replace(ways["tensor 8 x pipeline 8"], tensor_overlap=True)
plans = {name: plan_layout(layout, h100) for name, layout in ways.items()}
sharded, line, overlapped = plans.values()
pipeline_guess.reveal(overlapped.seconds / sharded.seconds, how="planned")
show(
    pictures.parts_picture(plans),
    "Three bars of seconds. The sharded one computes more, because it recomputes; the second waits for tensor ranks, and the third less so.",
)
for name, plan in plans.items():
    law = seconds(plan.layout, h100)
    print(f"{name}: {plan.seconds:.1f} s by the planner, {law:.1f} s by your formulas; MFU {plan.mfu:.0%}", end=", ")
    print(f"{human_bytes(plan.worst.nbytes)}, {'fits' if plan.fits else 'does not fit'}")
by_law = seconds(line.layout, h100) / seconds(sharded.layout, h100)
subject = "70B, 64 H100, tensor 8 x pipeline 8 / sharded"
claims.figure("by your formulas", subject, by_law, "x")
claims.figure("by the planner, without tensor overlap", subject, line.seconds / sharded.seconds, "x")
claims.figure("by the planner, with tensor overlap", subject, overlapped.seconds / sharded.seconds, "x")

# %% [markdown] name="pipeline_explained"
# The picture shows what each layout pays: recomputation in one, waiting for tensor ranks and a bubble in the other. With 256 micro-batches the schedule's own bubble is small. The rest of the bubble comes from the output layer, which makes the last stage slower ([[pipelines_in_practice]]).
#
# The planner and your formulas rank the first two layouts differently. Your formulas leave out the output layer. They also assume half of the peak for every rank, whether it computes full matmuls or an eighth of each. So their time is too long for the first layout and too short for the second. Formulas narrow the choice. Then a simulation or a measurement has to decide, and here even the simulation cannot: the third layout, whose tensor messages overlap, is within the planner's error of the first. (The search of section 1 found a layout that is faster than all three in the simulation: it has fewer tensor and pipeline ranks, and context ranks.)
#
# The rule holds under certain conditions: a small batch, a model that does not fit otherwise, or a network without a port per GPU. Try one of them in the cell above: divide `micro_batches` by 4 in both layouts, or give `plan_layout` a cluster with a slower network.
#
# ### How many expert ranks?
#
# A mixture of experts ([[mixture_of_experts]]) has one more dimension: the ranks over which its experts are spread. Mixtral 8x7B has 47 billion parameters, nearly all of them in the 8 experts of each block. It trains on 64 H100s with ZeRO-1 and full recomputation, and each GPU has one sequence of 8,192 tokens per micro-batch. Expert ranks are data ranks, too: each still has its own tokens, but keeps only its part of the experts, and the tokens travel there and back in all-to-alls. The planner assumes that all experts get the same load: a rank's rows go to all N expert ranks in equal parts, and the part for its own experts stays where it is.
#
# **Predict.** With 8 expert ranks instead of 2, by what factor does the time grow that a GPU spends in all-to-alls?

# %% name="experts_guess"
my_guess = None  # seconds in all-to-alls, 8 expert ranks / 2
### BEGIN GUESS
my_guess = 4  # four times as many ranks to send to
### END GUESS
experts_guess = Prediction("All-to-alls, 8 expert ranks / 2", my_guess, "times")

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
experts_guess.reveal(exchanged[8] / exchanged[2], how="planned")
KINDS = ("parameters", "gradients", "optimizer state")
table = [("planned: expert ranks", *KINDS, "total", "fits", "s per step", "in all-to-alls")]
for n, plan in spread.items():
    held = (human_bytes(plan.worst.peak[kind]) for kind in KINDS)
    row = human_bytes(plan.worst.nbytes), "yes" if plan.fits else "no", f"{plan.seconds:.2f}", f"{exchanged[n]:.2f} s"
    table.append((str(n), *held, *row))
show_table(table)
subject = "planned: Mixtral 8x7B, 64 H100"
claims.figure("all-to-alls of 8 expert ranks / of 2", subject, exchanged[8] / exchanged[2], "x")

# %% [markdown] name="experts_explained"
# Each of N expert ranks keeps 1/N of its rows and sends the rest ([[expert_parallel]]). So the bytes grow like (N − 1) / N: from 1/2 with 2 ranks to 7/8 with 8, and never to more than twice those of 2 ranks. The time follows. (An all-to-all also has a latency, which does not grow.)
#
# Memory falls much faster. The weights and gradients of the experts are divided by N. The optimizer state stays as it is, because ZeRO-1 already shards it over all 64 ranks. So here many expert ranks cost little and save a lot, *inside a node*: these eight ranks exchange their tokens over NVLink. Between nodes, each GPU sends through its own network port, at a ninth of the speed (section 5). And if the experts do not get the same load, all ranks wait for the busiest one.
#
# ## 7 · Decide
#
# Here are two questions without a single right answer. The planner evaluates whatever you propose.

# %% name="decide_questions"
for name, question in decisions().items():
    cluster, seq = question.cluster, f"sequences of {question.seq:,}"
    print(f"{name}: {question.arch.count() / 1e9:.1f}B parameters on {question.gpus} x {cluster.gpu.name},")
    print(f"    {question.tokens:,} tokens per step in {seq}: {question.sequences} sequences")

# %% [markdown] name="decide_contract"
# ### Your turn: a layout
#
# **Contract.** `decide(question)` gets one of the questions above and returns a `Layout` that
#
# - answers the question: it has the question's `arch`, all its `gpus`, its `seq`, and its number of `sequences` per step (`shard` × `replicate` × `micro_batch_size` × `micro_batches`);
# - fits in memory;
# - takes at most 10% longer than the best layout that the search found.
#
# Besides what your formulas know, a layout has `context` ranks with `context_method` "ring" or "all-to-all", `replicate`, `zero`, `engine` ("torchtitan", "megatron" or "pytorch"), `reshard_after_forward`, and recompute "selective". `help(Layout)` lists everything. Two differences between the engines matter here. The planner takes the attention kernel that Megatron runs on an H100 (cuDNN's) to be 1.5 times as fast as torchtitan's. And Megatron does not shard the parameters: it needs `zero="none"` or `zero="zero1"`. `candidates` and your formulas give a first list. Evaluating a proposal with `plan_layout(layout, question.cluster)` takes up to 20 seconds, so choose your proposals with care.


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
decide = check("choosing_a_layout.decide", decide)

# %% name="decide_hint"
hint("choosing_a_layout.decide")

# %% [markdown] name="decide_guess_text"
# **Predict.** By what percentage does the small step become longer if *your* layout also uses recompute "full", although it need not?

# %% name="decide_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 33
### END GUESS
again_guess = Prediction("Small step, recomputed: longer by", my_guess, "%", difference=True)

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
# Context ranks are the fastest here ([[context_parallel]]), and two tensor ranks in a node come close, within the planner's error. A pipeline has one micro-batch per data rank here, so one of its two stages always waits.
#
# The engine matters, too: long sequences spend most of their time in attention, and Megatron's kernel is the faster one.
#
# Memory decides the rest. The long sequences need recomputation. The small step has room for everything, so recomputing blocks or gathering sharded parameters only costs time there. The best known layout does not even shard the parameters (ZeRO-1).
#
# ### Explore
#
# The figure has controls for every setting of a layout, and shows the memory of its ranks and the timeline of its step. It starts with the long sequences on 8 tensor ranks. Which setting fills the memory most without exceeding it? Which setting makes the GPUs wait most?

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
# ## 8 · The bill
#
# You choose a layout for a run, and the price of that run can only be estimated. According to the planner, a step takes between `low` and `high` seconds. And not all of the time is spent on training ([[runs_that_survive]]): the goodput is uncertain, too.
#
# ### Your turn: days, GPU-hours, dollars
#
# **Contract.** `bill(found, tokens, price, goodput)` gets `found`, which has the `seconds`, `low` and `high` of one step, and a `layout` with `tokens` per step and `ranks`. `tokens` is the number of tokens of the run, `price` is in dollars per GPU-hour, and `goodput` is a pair (worst, best) of fractions. It returns a dict with "days", "gpu_hours" and "dollars", each a tuple (low, likely, high).
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
bill = check("choosing_a_layout.bill", bill)

# %% name="bill_hint"
hint("choosing_a_layout.bill")

# %% [markdown] name="bill_guess_text"
# The next cell computes the bill for the 8B model on 160 billion tokens (20 per parameter, as *Chinchilla* advises), with a goodput of 0.85 to 0.97: on one node of H100s, on one node of 4090s, and on eight nodes of 4090s. (Prices change weekly, so insert yours.) The eight nodes use the best layout of one node and replicate it. A step has four times as many tokens as on one node. Between nodes, the replicas all-reduce their gradients, and a 4090 has 1.5 GB/s there.
#
# **Predict.** By what percentage is the bill of eight nodes of 4090s higher than the bill of one node?

# %% name="bill_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 0  # the same GPU-hours, spread over more GPUs
### END GUESS
nodes_guess = Prediction("Dollars, eight nodes of 4090s more than one", my_guess, "%", difference=True)

# %% name="bill_run"
PRICES = {"one node": 2.50, "4090s": 0.40}  # dollars per GPU-hour
PRICES["eight nodes of 4090s"] = PRICES["4090s"]
layouts = {place: answers["llama-3.1-8b", place].best[0] for place in ("one node", "4090s")}
replicated = replace(layouts["4090s"].layout, replicate=8, micro_batches=4)  # 64 GPUs, 2**21 tokens per step
layouts["eight nodes of 4090s"] = found_of(plan_layout(replicated, CLUSTERS["8x-4090"]))
table, bills = [("planned: 8B, 160 billion tokens", "days", "GPU-hours", "dollars")], {}
for place, price in PRICES.items():
    bills[place] = bill(layouts[place], 160e9, price, (0.85, 0.97))
    cells = (f"{likely:,.0f} ({low:,.0f} to {high:,.0f})" for low, likely, high in bills[place].values())
    table.append((place, *cells))
dollars = {place: made["dollars"] for place, made in bills.items()}
nodes_guess.reveal(100 * (dollars["eight nodes of 4090s"][1] / dollars["4090s"][1] - 1), how="planned")
show_table(table)
days = bills["4090s"]["days"][1] / bills["one node"]["days"][1]
peaks = CLUSTERS["dgx-h100"].gpu.flops16 / CLUSTERS["8x-4090"].gpu.flops16
print(f"days on eight 4090s / on eight H100s: {days:.1f}; peak FLOP/s of an H100 / of a 4090: {peaks:.1f}")
waits = layouts["eight nodes of 4090s"].parts["replicate"] / layouts["eight nodes of 4090s"].seconds
print(f"share of a step in which eight nodes of 4090s wait for replicas: {waits:.0%}")
wide = dollars["one node"][2] / dollars["one node"][0]
claims.figure("a bill's high end / its low end", "8B, 160 billion tokens, 8 H100", wide, "x")

# %% [markdown] name="bill_explained"
# Eight nodes finish much sooner than one, but take more than an eighth of the time. In each step the GPUs wait for the slow links between nodes, as the last line shows, and you pay for that time.
#
# The cheap card needs many more hours than an H100 because it is slower: compare the ratio of the days with the ratio of the peaks in the line before. Recomputation and PCIe add almost nothing: both machines have about the same MFU (section 1). Whether the card is cheaper in the end depends on prices. The ranges of the first two rows overlap, so this estimate does not decide it.
#
# ### Export it
#
# To run a plan, you configure an engine with it. The planner writes the configuration for torchtitan, Megatron and DeepSpeed, and rejects a layout that the engine cannot run. Here is the sharded 70B layout of section 6:

# %% name="export"
print(export(ways["sharded over 64"], "llama-3.1-70b", "torchtitan"))

# %% [markdown] name="summary_text"
# ## 9 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Ranks form a grid, and ranks of the last dimension are neighbors. Each dimension's groups carry one kind of traffic: activations along tensor, pipeline and context; parameters and gradients along data.
# - Activations grow with tokens, gradients do not. So with enough tokens, computation hides the messages of sharding. Plain tensor ranks always wait for theirs.
# - Three formulas are enough for a search: what fits; the longer of computation and gathers; and messages that nothing hides, stretched by the bubble.
# - A micro-batch has enough tokens if its computation (6 FLOPs per parameter and token) takes at least as long as its messages (8 bytes per parameter around the ring). The cluster determines this number of tokens, not the model.
# - Expert ranks divide the experts' weights and gradients by N, and send (N − 1) / N of their rows: spread experts over a whole node before you go beyond it.
# - A rule of thumb is a formula without its conditions. Ask the planner, or measure, before you quote it, and ignore differences smaller than the planner's error.
#
# **What to reach for when.** If the model fits when sharded, with enough tokens per GPU, shard it, and stop there. If it does not fit, recompute, then use tensor ranks inside a node, or split long sequences over context ranks. If there are too few tokens for all GPUs to be data ranks, use the remaining GPUs as context or tensor ranks, or as a pipeline if each data rank still has many micro-batches. [[Runs_that_survive]] is about what happens to such a run in its third week.
#
# **Sources.** Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters* (tensor inside, pipeline between nodes); Korthikanti et al. 2022, *Reducing Activation Recomputation* (the 34 bytes); Rajbhandari et al. 2020, *ZeRO*; Hoffmann et al. 2022, *Training Compute-Optimal Large Language Models*; Tazi et al. 2025, *The Ultra-Scale Playbook*; Austin et al. 2025, *How to Scale Your Model*; torchtitan's documentation.
