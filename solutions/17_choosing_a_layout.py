# %% [markdown] name="title"
# # Choosing a layout
#
# **Data, tensor, pipeline and context ranks multiply into thousands of layouts. A few formulas narrow them down: what fits in memory, how many bytes travel along which link, and which ranks wait.**
#
# | | |
# |---|---|
# | After this you can | lay ranks out on a grid and list the groups of each dimension; compute what a rank sends along each dimension, and measure it on a 2 × 2 × 2 grid; say which messages grow with the tokens; write a search with three formulas, and find out where it errs |
# | Time | 80 to 105 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes |
# | Before this | labs [[#start_here]], [[#sharding]], [[#tensor_parallel]] and [[#pipeline]] |
# | Syllabus | T40, C20 |

# %% name="setup" setup=true
import math

from helpers import (
    Claims,
    Collectives,
    Engine,
    GiB,
    Prediction,
    check,
    device_name,
    explore,
    hint,
    human_bytes,
    in_a_row,
    pick_device,
    run_ranks,
    show,
    show_table,
    toy_batch,
    toy_stages,
)
from helpers.exercises.choosing_a_layout import pictures
from helpers.exercises.choosing_a_layout.candidates import candidates
from helpers.exercises.choosing_a_layout.model_of_blocks import ModelOfBlocks
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.exercises.pipeline.built import one_f_one_b
from helpers.exercises.tensor_parallel.mesh_traffic import MeshTraffic
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import CLUSTERS
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
# This section combines three models (Llama 3.1 with 8, 70 and 405 billion parameters) with three clusters. For each pair, the planner has searched the layouts: every divisor of the number of GPUs in each dimension, and several micro-batch sizes, schedules and choices of what to recompute. It simulates a step of the promising layouts and keeps the fastest one that fits. A search takes minutes, so its answers are stored; `python -m helpers layout` runs others.
#
# *GB/s inside* is the bandwidth from one GPU to the others in its node. *GB/s outside* is the bandwidth from one GPU to other nodes; a node of 8 GPUs has 8 times as much. *Tokens per step* counts all GPUs.

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
# Short names for layouts:
#
# | name | meaning |
# |---|---|
# | FSDP 8 | parameters, gradients and optimizer state sharded over 8 ranks (ZeRO-3); "not resharded" means that parameters stay gathered between forward and backward |
# | FSDP 8 × 2 | HSDP: sharded over 8 ranks, with 2 such replicas |
# | ZeRO-1 4 | 4 data ranks that shard only the optimizer state; DDP 4 shards nothing |
# | TP 2, PP 4, CP 2 | 2 tensor ranks, 4 pipeline ranks, 2 context ranks; PP is followed by the schedule ("× 16": its number of virtual stages), CP by the method |
# | batch 1 x 16 | 16 micro-batches of 1 sequence per data rank in each step |
# | recompute full | all blocks are recomputed in the backward pass; "selective" recomputes only attention |
# | (Megatron) | the layout needs Megatron; without this mark, torchtitan can run it. "TP overlap": tensor ranks send in chunks while their matmuls run |
#
# **Predict.** For how many of the nine pairs does the search find a layout that fits in memory?

# %% name="nine_guess"
my_guess = None  # pairs, of nine
### BEGIN GUESS
my_guess = 6
### END GUESS
fit_guess = Prediction("Pairs with a layout that fits", my_guess, "of 9", difference=True)

# %% name="nine_answers"
answers = {key: kept_answers()[asked] for key, asked in QUESTIONS.items() if asked in kept_answers()}
fit_guess.reveal(sum(bool(answer.best) for answer in answers.values()), how="planned")
table = [("planned", "state, GiB", "all GPUs, GiB", "layouts", "the best", "GiB", "s per step")]
for (model, place), answer in answers.items():
    name, gpus, _ = PLACES[place]
    totals = 16 * arch_of(model).count() / GiB, gpus * CLUSTERS[name].gpu.room / GiB
    row = ("none fits", "", "")
    if answer.best:
        found = answer.best[0]
        row = name_of(found.layout), f"{found.nbytes / GiB:.0f}", f"{found.seconds:.3g}"
    table.append((f"{model}, {place}", *(f"{total:,.0f}" for total in totals), f"{answer.layouts:,}", *row))
show_table(table)

# %% [markdown] name="nine_explained"
# *State* is 16 bytes per parameter: weights, gradients and two moments in FP32. Where it exceeds the memory of all GPUs together, no layout can fit. On the 4090s, the 8B model's state leaves little room for activations, so the best layout recomputes every block.
#
# ## 2 · A grid of ranks
#
# Each rank has a number, and one coordinate for each dimension of a grid. The last coordinate varies fastest, so ranks along the last dimension have consecutive numbers and usually share a node.

# %% name="grid_figure"
SIZES = {"pipeline": 2, "data": 2, "tensor": 2}  # slowest first
show(
    pictures.grid_picture(SIZES, node=4),
    "Eight ranks in four rows of two. A row holds the two tensor ranks of one pipeline stage and one data coordinate. "
    "The first two rows, pipeline stage 0, are one node of four ranks; the last two, stage 1, are the other node.",
)

# %% [markdown] name="grid_contract"
# Along each dimension, ranks form **groups**. The ranks of a group differ only in that dimension's coordinate, and communicate with each other. A group that crosses nodes uses the slower link.
#
# ### Your turn: groups, and what they send
#
# **Contract.** `groups(sizes, dimension)` takes `sizes`, a dict such as SIZES with the slowest dimension first, and `dimension`, one of its keys. It returns all groups along that dimension, as a list of lists of ints. The ranks of a group are sorted by their coordinate, and the groups by their first rank. Neither function changes `sizes`.
#
# `sent(sizes, stage, model, m)` returns a dict with the bytes that one rank of pipeline stage `stage` sends in one step along "tensor", "pipeline" and "data". `sizes` has these three keys, in any order.
#
# - `model` has four attributes: `blocks`, the number of equal blocks, which are split into stages of equal size; `weights`, the bytes of one block's gradients; `message`, the bytes that one micro-batch passes from one block to the next; and `all_reduces`, the number of all-reduces of one message that tensor ranks need per block and micro-batch, forward and backward together.
# - Each data rank has `m` micro-batches.
# - Tensor ranks split every block's weights evenly. Along "data", a rank's gradients are all-reduced once per step.
# - Along "pipeline", each tensor rank sends each micro-batch's whole message to the next stage, and a gradient of the same size to the previous stage, if that stage exists.
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
# `init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=...)` makes the same grid, with a process group for each list.
#
# ## 3 · Eight ranks for real
#
# Now train on that grid. The model has the eight blocks of [[pipeline]], each x + MLP(x). It runs in a pipeline of two stages, with the engine and the 1F1B schedule of that lab. In each stage PyTorch splits every MLP over two tensor ranks ([[tensor_parallel]]), with two all-reduces per block. Two data ranks share the micro-batches equally and average their gradients.
#
# On a grid, one mistake is easy to make: averaging gradients over the wrong group. Here, all stages and all halves of a matrix have the same shapes, so nothing raises an error.
#
# **Predict.** If gradients are averaged over **all** ranks instead of only along `data`, how far off are they, as a multiple of the norm of the correct gradient?

# %% name="run_guess"
my_guess = None  # distance / norm of the correct gradient
### BEGIN GUESS
my_guess = 1
### END GUESS
wrong_guess = Prediction("Distance from the correct gradient", my_guess, "of its norm", difference=True)

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
# Loss and gradients match those of a single process, and the bytes match the formula. (The calls, their sizes and their groups are recorded as the ranks run; the share of a message that a rank sends comes from the formula in both columns.) The excess along `data` comes from the norms and from the bias of the second matrix: each tensor rank holds these in full, but the formula counts half.
#
# The average over all ranks mixes gradients of different stages and of different halves of a matrix. The loss is still right, because it was computed before the gradients were averaged. A comparison with one process shows the mistake.
#
# ## 4 · Tokens or parameters
#
# In your formulas, `tensor` and `pipeline` carry **activations**, which grow with the tokens. `data` carries **gradients**, and with sharding also parameters, which do not. So which kind of traffic is cheaper depends on how many tokens a rank processes between two reductions.
#
# The next cell distributes one MLP block of width 64 (33,216 parameters) over four ranks by two methods. `fully_shard` gathers the parameters twice and reduces the gradients once. Tensor parallelism all-reduces a message twice.
#
# **Predict.** With how many tokens per micro-batch do both methods send the same number of bytes?

# %% name="tokens_guess"
my_guess = None  # tokens per micro-batch
### BEGIN GUESS
my_guess = 1000
### END GUESS
tokens_guess = Prediction("Both methods send the same number of bytes at", my_guess, "tokens")


# %% name="tokens_run"
def both_methods(lengths):
    """Return the bytes that a rank of four sends per micro-batch length: sharded, and with tensor ranks."""
    mesh, rows = init_device_mesh("cpu", (4,)), []
    for length in lengths:
        sharded, cut = (toy_stages(8, nn.Linear)[0] for _ in range(2))
        fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
        parallelize_module(cut[0], mesh, {"mlp.1": ColwiseParallel(), "mlp.3": RowwiseParallel()})
        volumes = []
        for block in (sharded, cut):
            x = torch.randn(length, 64, requires_grad=True)
            with Collectives() as seen:
                block(x).square().mean().backward()
            volumes.append(seen.volume * 3 / 4)  # the share that leaves a rank of a ring of four, by formula
        rows.append(volumes)
    return rows


LENGTHS = (64, 128, 256, 512, 1024)
rows = run_ranks(both_methods, 4, LENGTHS, device="cpu", measure=False).results[0]
methods = dict(zip(("sharded", "tensor"), zip(*rows, strict=True), strict=True))
tokens_guess.reveal(LENGTHS[0] * methods["sharded"][0] / methods["tensor"][0], how="counted")
show(
    pictures.crossing_picture(LENGTHS, methods),
    "Bytes over tokens, both axes logarithmic: a flat line for the sharded block, a rising one for tensor ranks.",
)
growth = {name: nbytes[-1] / nbytes[0] for name, nbytes in methods.items()}
said = "sharding sends the same for any number of tokens"
claims.record("C20", said, "4 ranks, 16 x tokens", growth["sharded"], "x", 0.99, 1.01)
said = "tensor ranks send in proportion to tokens"
claims.record("C20", said, "4 ranks, 16 x tokens", growth["tensor"], "x", 15, 17)
claims.not_measured("C20", "tensor parallelism across nodes is slow", "needs two nodes of GPUs")

# %% [markdown] name="tokens_explained"
# The flat line is why sharding is cheap with large micro-batches: its messages hide behind computation, which grows with the tokens. For tensor ranks, a larger batch does not help: messages and computation grow together, and without overlap the ranks wait for each message.
#
# ## 5 · Formulas that search
#
# A search needs to know what fits and how long a step takes. Write a short function for each, for layouts of sharded data ranks, tensor ranks and 1F1B. A `Layout` has `arch`, `tensor`, `pipeline`, `shard`, `micro_batch_size`, `micro_batches` (per data rank and step), `seq`, `recompute`, `ranks` and `tokens` (of a step).
#
# `ring_bandwidth(cluster, ranks, stride)` returns the speed of a ring in bytes/s. Inside a node, it is the bandwidth of a GPU's link. Over several nodes, it is the bandwidth of a network port times the number of ring members in a node, but at most the bandwidth inside a node ([[sharding]]).

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
# - Activations: a rank has `arch.layers` / pipeline blocks. For each micro-batch that this stage has in flight in 1F1B ([[pipeline]]; there may be fewer micro-batches than stages), a block saves 34 bytes per token and element of `arch.hidden`. Tensor ranks split these bytes. With recompute "full" a block saves 2 bytes in place of 34, but one block of one micro-batch needs all 34 on top of that.
# - Logits: 4 bytes for each token of a micro-batch and each entry of `arch.vocab`, split by tensor ranks. They count only if pipeline is 1; otherwise they are on another rank.
#
# `seconds(layout, cluster)` combines three durations. The messages of sharded data ranks travel during computation, so the longer of the two counts. Nothing hides the messages of tensor ranks. The bubble of 1F1B ([[pipeline]]) stretches the sum: each stage idles for as long as it spends on `pipeline` − 1 micro-batches.
#
# - compute: each token of the step costs `arch.flops_per_token(seq)` FLOPs. All ranks share this work, each at half of `cluster.gpu.flops16`. With recompute "full" it takes 4/3 as long.
# - data: derive it. For each micro-batch, fully sharded ranks gather their parameters in BF16 for the forward pass and again for the backward pass, and reduce their gradients in FP32. Section 2 gives the share of a message that a rank of a ring sends (an all-gather or a reduce-scatter is half an all-reduce). Neighbors in the ring of `shard` ranks are `tensor` ranks apart.
# - tensor: derive it from `sent`. A transformer block needs 4 all-reduces per micro-batch, or 6 with recompute "full". A message is one micro-batch's hidden state in BF16. Tensor ranks are neighbors.
#
# `best(layouts, cluster)` takes a list of layouts and returns the fastest one whose memory is at most `cluster.gpu.room`, or None if none fits.


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
# Now let your formulas search all powers of two in each dimension, and micro-batches of 1 to 8 sequences (`candidates`). The planner then simulates their choice.
#
# **Predict.** How much longer, in percent, is a step with your formulas' choice than one with the planner's best layout, averaged over the questions that have an answer?

# %% name="laws_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 10
### END GUESS
laws_guess = Prediction("With the formulas' choice, a step is longer by", my_guess, "%", difference=True)

# %% name="laws_search"
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
claims.figure("three formulas choose: step above the best", "worst of the questions, planned", max(slower), "%")

# %% [markdown] name="laws_explained"
# These few formulas choose layouts that are nearly as fast as the planner's best. Their bytes leave out gathered parameters and other temporaries. In their times, "half of the peak" stands in for everything that a chip does; the ratios show that it fits some questions better than others. An error that all layouts share does not change their order.
#
# Formulas can choose only among what they cover. Yours leave out ZeRO-1, context ranks, other pipeline schedules, tensor messages that overlap, and selective recomputation. The planner's best layout for the 70B model uses the first four.
#
# ### Explore
#
# Each point is a layout, by your formulas, for 2 million tokens per step. How many GPUs does each model need? With 64 GPUs, does your formulas' choice use most of the memory?


# %% name="play"
def play(model, gpus):
    arch, points, room = arch_of(model), {}, h100.gpu.room
    layouts = list(candidates(arch, gpus, 2**21))
    for layout in layouts:
        points.setdefault(f"tensor {layout.tensor}", []).append((memory(layout), seconds(layout, h100)))
    top = best(layouts, h100)
    return pictures.search_picture(points, room, top and (memory(top), seconds(top, h100)))


explore(
    play,
    "Points of bytes and seconds, a color for each number of tensor ranks; a line marks the memory of an H100, and a circle the fastest layout that fits.",
    model=("llama-3.1-8b", MODELS),
    gpus=(8, (8, 16, 32, 64)),
)

# %% [markdown] name="summary_text"
# ## 6 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Ranks form a grid, and ranks along the last dimension are neighbors. Each dimension's groups carry one kind of traffic: activations along tensor and pipeline; parameters and gradients along data.
# - Gradients averaged over the wrong group raise no error, and the loss of that step is right. Compare with one process.
# - Activations grow with the tokens; gradients do not. So with enough tokens, computation hides the messages of sharded data ranks. Without overlap, tensor ranks always wait for theirs.
# - A search needs only formulas for bytes and seconds. The messages of sharded data ranks overlap with computation, so the longer of the two counts. Add the messages that nothing hides, and stretch the sum by the bubble.
#
# **What to reach for when.** Let formulas narrow the choice. Then let a simulation or a measurement decide.
#
# **Next.** [[Layouts_in_practice]] finds out what these formulas miss, tests the rules of thumb, and ends with a layout for an engine and the cost of its run.
#
# **Sources.** Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters*; Korthikanti et al. 2022, *Reducing Activation Recomputation* (the 34 bytes); Rajbhandari et al. 2020, *ZeRO*; Tazi et al. 2025, *The Ultra-Scale Playbook*; Austin et al. 2025, *How to Scale Your Model*.
