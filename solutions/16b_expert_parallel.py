# %% [markdown] name="title"
# # Expert parallelism
#
# **Experts that do not fit on one device are spread over many. Tokens then travel to their experts, and the results travel back. You write that exchange and its backward pass, find out which rank is overloaded, and average and clip gradients over the right ranks.**
#
# | | |
# |---|---|
# | After this you can | send rows between ranks in uneven parts, with correct gradients; put experts on ranks, and predict the bytes; explain why the host waits, and what parts of a fixed size cost instead; predict which rank runs out of memory first; reduce and clip gradients over the right ranks |
# | Time | 80 to 105 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#mixture_of_experts]] and [[#data_parallel]]; [[#tensor_parallel]] helps |
# | Syllabus | T39 |

# %% name="setup" setup=true
import math

from helpers import (
    Claims,
    MemoryMeter,
    Prediction,
    check,
    device_name,
    english,
    hint,
    human_bytes,
    parallel_map,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
    sign_of_life,
)
from helpers.exercises.expert_parallel import pictures
from helpers.exercises.expert_parallel.parcels import Parcels
from helpers.exercises.mixture_of_experts.built import MoE, grouped, nudge, permute, unpermute
from helpers.exercises.mixture_of_experts.trained import batch_at, train
from helpers.exercises.mixture_of_experts.window_model import WIDTH, WindowModel

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)  # where the ranks run: on GPUs if there are enough
claims = Claims(device=where)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if where.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="travel_text"
# ## 1 · Rows travel to their experts
#
# In a mixture, most of the parameters are in the experts, and each expert processes few of the tokens. So instead of moving parameters to the tokens, as sharding does ([[sharding]]), move tokens to the parameters. This is **expert parallelism**. Each of N ranks keeps E/N of the E experts and its own part of the batch. A token has one row for each of the k experts that it chose. Rows travel to the rank that owns their expert, and the results travel back.
#
# The collective for this is the *all-to-all*: each rank sends a different part to every other rank. Here the parts are uneven, and their sizes change with the router's choices in every step.

# %% name="exchange_figure"
show(
    pictures.exchange_picture([[3, 1, 2, 2], [1, 4, 0, 3], [2, 2, 1, 3], [0, 5, 1, 2]]),
    "A table of four by four: how many rows each rank sends to each other rank in one exchange. Each row of the table "
    "sums to 8. The columns differ: rank 1 receives 12 rows, rank 2 receives 4. Rows on the gray diagonal do not travel.",
)

# %% [markdown] name="mixtures_text"
# This lab uses two of the mixtures of [[mixture_of_experts]], both trained on English text for 200 steps: 2 blocks, 8 experts each, k = 2. In one of them nothing balances the experts. In the other, a bias on the router's choice is nudged after each step. `route`, `permute`, `grouped`, `unpermute` and the class `MoE` are the course's versions from that lab. The next cell trains both. `joint` is a batch of 4,096 windows of text that the ranks will share.


# %% name="mixtures"
text = english(device)
AFTER_A_STEP = {"no balancing": None, "bias": lambda layer: nudge(layer.bias, layer.counts, 0.01)}


def trained_on_text(after):
    """Train a mixture; return its weights, and the load of the busiest expert."""
    model = WindowModel(MoE).to(device)
    run = train(model, text, after=after)
    return {key: t.cpu() for key, t in model.state_dict().items()}, run.busiest()


with sign_of_life("training 2 models"):
    runs = dict(zip(AFTER_A_STEP, parallel_map(trained_on_text, AFTER_A_STEP.values()), strict=True))
joint = [t.cpu() for t in batch_at(text, 4096, torch.Generator().manual_seed(3))]
for name, (_, busiest) in runs.items():
    print(f"{name:12} the busiest expert gets {busiest:.2f} times its even share")

# %% [markdown] name="exchange_contract"
# ### Your turn: the exchange
#
# **Contract.** Write an autograd function, `Exchange`. `Exchange.apply(rows, send, receive, group)` is called on every rank of `group`, which has N ranks.
#
# - It takes `rows` (sum of `send`, C), ordered by destination rank. `send` and `receive` are lists of N row counts. It returns (sum of `receive`, C): the rows that all ranks sent to this one, in rank order. A rank may send or receive nothing.
# - The backward pass sends the gradient along the reverse route. A second backward pass through the same graph (`retain_graph=True`) gives the same gradient again.
# - No input tensor is changed. Rows and gradients may arrive in any memory layout.
#
# `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group=group)` sends rows of contiguous tensors. `backward` returns one value per argument of `forward`.


# %% name="exchange" answer=true reveal=true
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ### BEGIN SOLUTION
        ctx.parts = send, receive, group
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        send, receive, group = ctx.parts
        back = gradient.new_empty(sum(send), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), send, receive, group=group)
        return back, None, None, None
        ### END SOLUTION


# %% name="exchange_check"
Exchange = check("expert_parallel.exchange", Exchange)

# %% name="exchange_hint"
hint("expert_parallel.exchange")

# %% [markdown] name="torch_text"
# PyTorch has a version of the exchange with a gradient: `all_to_all_single_autograd`, in a private module that torchtitan uses. The next cell compares it with yours on four ranks, where rank i sends i + j rows to rank j.


# %% name="torch_run"
def beside_torch():
    """Say whether both give the same rows and gradients on this rank."""
    rank, n, here = dist.get_rank(), dist.get_world_size(), rank_device()
    torch.manual_seed(rank)
    send, receive = [rank + to for to in range(n)], [rank + to for to in range(n)]  # i + j rows from i to j
    rows, goal = (torch.randn(sum(send), WIDTH, device=here) for _ in range(2))
    found = []
    for exchange in (
        lambda t: Exchange.apply(t, send, receive, dist.group.WORLD),
        lambda t: all_to_all_single_autograd(t, receive, send, dist.group.WORLD),
    ):
        leaf = rows.clone().requires_grad_()
        y = exchange(leaf)
        (y * goal).sum().backward()
        found.append((y.detach().cpu(), leaf.grad.cpu()))
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


print("the same rows and gradients:", run_ranks(beside_torch, RANKS, device=where, measure=False).results)

# %% [markdown] name="layer_contract"
# ## 2 · The layer on many ranks
#
# A rank must know how many rows will arrive before it can receive them: the host needs the numbers to allocate the buffer. So the ranks first exchange row counts, then rows.
#
# ### Your turn: expert parallelism
#
# **Contract.** Write the layer. `expert_parallel(x, chosen, weights, up, down, group)` is called on every rank of `group`.
#
# - It takes this rank's tokens: x (n, C), `chosen` and `weights` (n, k), where `chosen` holds expert indices from 0 to E − 1. `up` (E/N, H, C) and `down` (E/N, C, H) are this rank's experts; rank 0 has the first E/N. It returns (n, C) for this rank's tokens. n may differ between ranks, and may be 0.
# - The loss is the sum of the losses of all ranks. After `backward()` on every rank, each gradient equals that of one process. The gradients of x and weights are those of this rank's tokens. The gradients of `up` and `down` are those of this rank's experts, and include the tokens of **all** ranks.
# - The forward pass sends the number of rows for each expert, then each row once, then its result once. The backward pass sends the gradients of both. Nothing is padded, and nothing else is sent. All communication stays within `group`.
# - No input tensor is changed.
#
# Rows arrive sorted by the rank that sent them, and within each rank by expert. `grouped` needs all rows of an expert together.


# %% name="layer" answer=true reveal=true
def expert_parallel(x, chosen, weights, up, down, group):
    ### BEGIN SOLUTION
    ranks, own = dist.get_world_size(group), len(up)
    rows, counts, source = permute(x, chosen, ranks * own)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)
    coming = coming.view(ranks, own)  # rows from each rank for each expert of this one
    send, receive = torch.stack([counts.view(ranks, own), coming]).sum(dim=2).tolist()  # waits once for both
    arrived = Exchange.apply(rows, send, receive, group)
    owned = torch.arange(own, device=x.device).repeat(ranks)
    expert = owned.repeat_interleave(coming.flatten(), output_size=sum(receive))
    order = expert.argsort(stable=True)
    results = grouped(arrived[order], coming.sum(dim=0), up, down)
    results = torch.empty_like(results).index_copy(0, order, results)  # back in the order of arrival
    return unpermute(Exchange.apply(results, receive, send, group), source, weights)
    ### END SOLUTION


# %% name="layer_check"
expert_parallel = check("expert_parallel.layer", expert_parallel)

# %% name="layer_hint"
hint("expert_parallel.layer")

# %% [markdown] name="spread_text"
# Now put the trained mixtures on ranks. `spread` leaves each rank with its part of the experts and replaces each block's `experts` method with your layer.


# %% name="spread"
def spread(model, group):
    """Keep only this rank's part of each block's experts, and exchange tokens with the other ranks of `group`."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    for block in model.blocks:
        block.up, block.down = (nn.Parameter(t.detach().chunk(n)[me].clone()) for t in (block.up, block.down))
        block.experts = lambda x, weights, block=block: expert_parallel(
            x, block.chosen, weights, block.up, block.down, group
        )
    return model


def load(name):
    """Return one of the trained mixtures with all of its experts, on this rank's device."""
    model = WindowModel(MoE)
    model.load_state_dict(runs[name][0])
    return model.to(rank_device())


def relative(a, b):
    """Return the distance of a from b, relative to b."""
    return ((a - b).norm() / b.norm()).item()


# %% name="ranks_step"
def step_on_ranks(name, bias):
    """Run one step on all ranks. Return the distance from one process, the bytes sent, and this rank's expert rows."""
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = (t.to(rank_device()) for t in joint)
    whole, model = load(name), load(name)
    for each in (whole, model):
        for block in each.blocks:
            block.bias += torch.tensor(bias, device=block.bias.device)
    right = F.cross_entropy(whole(x), y)
    right.backward()
    spread(model, dist.group.WORLD)
    with Parcels() as parcels:
        loss = F.cross_entropy(model(x.chunk(n)[rank]), y.chunk(n)[rank]) / n  # the sum over ranks is the mean
        loss.backward()
    total = loss.detach().clone()
    dist.all_reduce(total)
    far = [abs(total.item() - right.item()) / right.item()]
    far += [
        relative(mine.grad, one.grad.chunk(n)[rank]) if one.grad.chunk(n)[rank].any() else mine.grad.abs().max().item()
        for block, plain in zip(model.blocks, whole.blocks, strict=True)
        for mine, one in ((block.up, plain.up), (block.down, plain.down))
    ]
    rows = [block.counts.chunk(n)[rank].sum().item() for block in whole.blocks]
    return max(far), parcels.left, rows


# %% name="ranks_run"
NEVER, EVEN = -2.0, [0.0] * 8
CASES = {
    "bias": ("bias", EVEN),
    "no balancing": ("no balancing", EVEN),
    "no tokens for expert 5": ("no balancing", [*EVEN[:5], NEVER, *EVEN[6:]]),
    "no tokens for experts 4 to 7": ("no balancing", [*EVEN[:4], *[NEVER] * 4]),
}
steps = {
    (n, case): run_ranks(step_on_ranks, n, *CASES[case], device=where, measure=False).results
    for n in (2, RANKS)
    for case in CASES
}

# %% name="ranks_table"
table = [("ranks", "off by", "rows of each rank, both layers")]
for (n, case), results in steps.items():
    rows = " ".join(f"{sum(rows):,}" for *_, rows in results)
    table.append((f"{n}, {case}", f"{max(far for far, *_ in results):.1e}", rows))
show_table(table)
farthest = max(far for results in steps.values() for far, *_ in results)
said, subject = "expert parallel equals one process", "2 and 4 ranks, loss and experts' gradients"
claims.record("T39", said, subject, farthest, "relative", 0, 1e-5)

# %% [markdown] name="ranks_explained"
# The cell ran the mixtures on the joint batch, spread over the ranks. The loss and the gradients are those of one process, even if an expert, or every expert of a rank, gets no tokens (in the last row, two of the four ranks get none). A rank without rows still makes every call: an all-to-all waits for all ranks.
#
# Where does the host wait? To allocate `arrived`, your layer reads the counts, and `grouped` reads them to split the rows. On a GPU each read is a host synchronization, in every layer. Production code either accepts the wait, overlaps it with other work, or keeps the counts on the device and allocates for the worst case. In DeepEP, `dispatch` waits for the counts by default. With `do_cpu_sync=False` it does not wait, and allocates as if every rank sent all its tokens here. (In its first version, the training kernels waited, and only the low-latency kernels, made for inference, did not.)

# %% [markdown] name="uneven_text"
# ## 3 · How many bytes, and for whom
#
# Each layer makes four exchanges of rows: rows to experts, results back, and the gradients of both. With an even load, a rank keeps 1/N of its rows and sends the rest. So in the forward and the backward pass together, it sends 4 n k C (N − 1) / N numbers per layer.
#
# How good is this formula if the load is uneven?
#
# **Predict.** On 4 ranks, how many bytes does the mixture without balancing send in total, as a multiple of the formula's figure?

# %% name="uneven_guess"
my_guess = None  # bytes of all ranks / formula
### BEGIN GUESS
my_guess = 1.4
### END GUESS
total_guess = Prediction("Sent by all ranks, without balancing / formula", my_guess, "times")

# %% name="uneven_run"
formula = 2 * 4 * 1024 * 2 * WIDTH * 4 * (RANKS - 1) / RANKS  # bytes per rank: two layers, FP32
table, ratios, busiest = (
    [("4 ranks", "mean of the ranks / formula", "busiest sender / formula", "busiest receiver / mean")],
    {},
    {},
)
for name in ("bias", "no balancing", "no tokens for experts 4 to 7"):
    results = steps[RANKS, name]
    left = [left / formula for _, left, _ in results]
    layers = zip(*(rows for *_, rows in results), strict=True)  # for each layer, the rows of each rank
    busiest[name] = sum(max(rows) * RANKS / sum(rows) for rows in layers) / 2
    ratios[name] = sum(left) / RANKS
    table.append((name, f"{ratios[name]:.3f}", f"{max(left):.2f}", f"{busiest[name]:.2f} x"))
total_guess.reveal(ratios["no balancing"])
show_table(table)
said = "a rank sends 4 n k C (N - 1) / N numbers per layer"
claims.record("T39", said, "bias, mean of 4 ranks", ratios["bias"], "of the formula", 0.98, 1.02)
claims.figure("rows of the busiest rank, without balancing", "4 ranks", busiest["no balancing"], "times the mean")

# %% [markdown] name="fixed_text"
# The total hardly changes: the ranks' texts are alike, so about three of every four rows leave their rank. Imbalance changes **where** rows arrive. The busiest rank has the most to receive and to compute, and an all-to-all ends only when the last part has arrived, so all ranks wait for it.
#
# If both experts of a token are on the same rank, its row is sent there twice. Some implementations send it only once. DeepSeek-V3 also limits the experts of a token to four nodes.
#
# What if you avoid counts altogether? On TPUs (GShard, Switch Transformer), all shapes are fixed before the program runs. Each rank then sends parts of one fixed size to every other rank, padded with zeros where there are fewer rows. Take the smallest size that drops no row: that of the largest of the layer's 16 parts in this batch.
#
# **Predict.** Without balancing, what is the ratio of the bytes of fixed-size parts to those of uneven parts?

# %% name="fixed_guess"
my_guess = None  # bytes of fixed-size parts / of uneven parts
### BEGIN GUESS
my_guess = 1.7
### END GUESS
fixed_guess = Prediction("Parts of one size / uneven parts, without balancing", my_guess, "times")


# %% name="fixed_run"
@torch.no_grad()
def parts(name):
    """Return for each layer how many rows each rank sends to each rank: (layers, RANKS, RANKS)."""
    model = WindowModel(MoE)
    model.load_state_dict(runs[name][0])
    model(joint[0])
    owners = [block.chosen // (8 // RANKS) for block in model.blocks]  # of each choice, the rank of its expert
    return torch.stack(
        [torch.stack([F.one_hot(own, RANKS).sum(dim=(0, 1)) for own in owner.chunk(RANKS)]) for owner in owners]
    )


table, padded = [("4 ranks", "uneven parts", "of one size", "of one size / uneven", "room for any batch / uneven")], {}
for name in runs:
    rows = parts(name)
    uneven = (rows * (1 - torch.eye(RANKS, dtype=torch.long))).sum().item()  # without what stays on its rank
    fixed = RANKS * (RANKS - 1) * rows.amax(dim=(1, 2)).sum().item()
    room = RANKS * (RANKS - 1) * 2 * len(joint[0]) // RANKS * len(rows)  # a rank's n k choices may all go to one rank
    padded[name] = fixed / uneven
    table.append((name, f"{uneven:,} rows", f"{fixed:,} rows", f"{padded[name]:.2f} x", f"{room / uneven:.2f} x"))
fixed_guess.reveal(padded["no balancing"])
show_table(table)
claims.figure("fixed-size parts / uneven parts, without balancing", "4 ranks", padded["no balancing"], "times")

# %% [markdown] name="busiest_text"
# One large part sets the size of all others, so padding costs the most where balancing is worst. And you do not know the largest part before the router has run. Room for any batch, in the last column, costs about N times the bytes. So programs with fixed shapes use a capacity and drop what does not fit ([[mixture_of_experts]]).
#
# Uneven parts are exact. But the busiest rank also has to *store* its rows.
#
# **Predict.** Measure the peak memory of one layer's forward and backward pass on each of 4 ranks. What is the highest peak without balancing, as a multiple of the highest peak of the bias mixture?

# %% name="busiest_guess"
my_guess = None  # peak of the busiest rank, no balancing / bias
### BEGIN GUESS
my_guess = 1.3
### END GUESS
busiest_guess = Prediction("Peak of the busiest rank, no balancing / bias", my_guess, "times")


# %% name="busiest_run"
def layer_peak(name):
    """Return this rank's peak memory for the first layer, forward and backward, with 4,096 tokens per rank."""
    model = spread(load(name), dist.group.WORLD)
    with torch.no_grad():
        x = model.norms[0](model.enter(model.embedding(joint[0].to(rank_device())).flatten(1)))
    x.requires_grad_()
    with MemoryMeter(device=rank_device(), by_category=False) as profile:
        model.blocks[0](x).square().mean().backward()
    return profile.peak_bytes


layer_peaks = {name: run_ranks(layer_peak, RANKS, name, device=where, measure=False).results for name in runs}
busiest_guess.reveal(max(layer_peaks["no balancing"]) / max(layer_peaks["bias"]))
table = [("4 ranks", *(f"rank {rank}" for rank in range(RANKS)))]
show_table([*table, *((name, *map(human_bytes, peaks)) for name, peaks in layer_peaks.items())])

# %% [markdown] name="busiest_explained"
# All ranks have the same number of tokens and of parameters, so only the routing makes their peaks differ. Part of each peak is the same on every rank: its own tokens and their copies. The rest follows the rows that it receives in this layer. If an even load would nearly fill the GPUs, the busiest rank runs out of memory first, in a step in which the router favors its experts. So imbalance can end a run with an out-of-memory error even though the loss looks normal.

# %% [markdown] name="groups_text"
# ## 4 · Which ranks share a gradient?
#
# Eight experts can be spread over at most 8 ranks, even if there are 64. So ranks form a mesh: along `expert` they hold different experts, along `replica` they hold the same ones. All other parameters (embedding, router, norms) are on all ranks, as in data parallelism. Every rank has its own part of the batch.

# %% name="mesh_figure"
show(
    pictures.mesh_picture(2, 2),
    "Four ranks on a grid of two by two. The two ranks of a row hold different experts and exchange tokens; the two of "
    "a column hold the same experts.",
)

# %% [markdown] name="groups_guess_text"
# After the backward pass, the gradients must be combined into those of the mean loss over all ranks. Here are two candidates:
#
# - `over_all`: average every gradient over all ranks, as `DistributedDataParallel` does by default;
# - `over_copies`: average shared parameters over all ranks, and an expert's parameters over the ranks that hold that expert.
#
# **Predict.** Train 50 steps with AdamW on a 2 × 2 mesh with `over_all`. The loss starts near ln 256 ≈ 5.5 nats. By how much does the final loss with `over_all` exceed that of one process: is it nearest to 0.01, 0.2 or 2 nats?

# %% name="groups_guess"
my_guess = None  # loss with over_all - correct loss
### BEGIN GUESS
my_guess = 2
### END GUESS
mixed_guess = Prediction("Loss after 50 steps, over_all - correct, the nearest of three", my_guess, "nats")


def nearest(figure, choices):
    """Return the choice that is off by the smallest factor."""
    return min(choices, key=lambda choice: abs(math.log(figure / choice)))


# %% [markdown] name="gradients_contract"
# ### Your turn: average the gradients
#
# **Contract.** `average_gradients(shared, experts, mesh)` is called on every rank after its `backward()`. Each rank's loss is the mean over its own tokens, and all ranks have the same number of tokens.
#
# - `mesh` has the dimensions "replica" and "expert", of any size, and contains all ranks. `mesh.get_group("replica")` contains the ranks that hold the same experts as this one.
# - `shared` is a list of parameters that all ranks hold. `experts` is a list of the parameters of this rank's experts. Each has a `.grad`.
# - Afterwards each `.grad` is that of the mean loss over all ranks. Parameters do not change.
# - Each shared gradient is sent once, over all ranks, and each expert gradient once, over the ranks that hold that expert. (A collective in a group of one rank does not count.)
#
# Before you write it: from which ranks has an expert already received tokens in `expert_parallel`?


# %% name="gradients" answer=true reveal=true
def average_gradients(shared, experts, mesh):
    ### BEGIN SOLUTION
    for parameter in shared:
        dist.all_reduce(parameter.grad)
    for parameter in experts:
        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))
    for parameter in (*shared, *experts):
        parameter.grad /= mesh.size()
    ### END SOLUTION


# %% name="gradients_check"
average_gradients = check("expert_parallel.gradients", average_gradients)

# %% name="gradients_hint"
hint("expert_parallel.gradients")


# %% name="candidates"
def over_all(shared, experts, mesh):
    """Average every gradient over all ranks."""
    for parameter in (*shared, *experts):
        dist.all_reduce(parameter.grad)
        parameter.grad /= mesh.size()


def over_copies(shared, experts, mesh):
    """Average an expert's gradients over the ranks that hold it."""
    over_all(shared, [], mesh)
    for parameter in experts:
        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))
        parameter.grad /= mesh["replica"].size()


# %% name="groups"
def parts_of(model):
    """Return the shared parameters and those of experts, by name."""
    named = dict(model.named_parameters())
    experts = {name: p for name, p in named.items() if name.endswith((".up", ".down"))}
    return {name: p for name, p in named.items() if name not in experts}, experts


def losses_of(model, steps, finish=None, mesh=None):
    """Train on the joint batches, or this rank's part of each; return the mean of the last ten losses, and gradients."""
    n, rank = (mesh.size(), dist.get_rank()) if mesh else (1, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, first = [], None
    for i in range(steps):
        x, y = (t.chunk(4)[i % 4].chunk(n)[rank].to(rank_device()) for t in joint)  # 1,024 windows of all ranks
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        loss = loss.detach()
        if mesh:
            finish(*(list(part.values()) for part in parts_of(model)), mesh)
            dist.all_reduce(loss)
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
        losses.append(loss.item() / n)
        optimizer.step()
    return sum(losses[-10:]) / len(losses[-10:]), first


# %% name="groups_run"
def on_a_mesh(finish, replicas, steps=1):
    """Train on a mesh. Return: largest error of step 1's gradients (shared, experts); an expert's norm ratio; losses."""
    shape = replicas, dist.get_world_size() // replicas
    mesh = init_device_mesh(rank_device().type, shape, mesh_dim_names=("replica", "expert"))
    right_loss, right = losses_of(WindowModel(MoE).to(rank_device()), 1)
    model = spread(WindowModel(MoE).to(rank_device()), mesh.get_group("expert"))
    loss, got = losses_of(model, steps, finish, mesh)
    at = mesh.get_local_rank("expert")
    shared, experts = parts_of(model)
    right |= {name: right[name].chunk(shape[1])[at] for name in experts}
    far = [max(relative(got[name], right[name]) for name in part) for part in (shared, experts)]
    name = next(iter(experts))
    return far, (got[name].norm() / right[name].norm()).item(), loss, right_loss


ways = {"over_all": over_all, "over_copies": over_copies, "yours": average_gradients}
tried = {
    name: run_ranks(on_a_mesh, RANKS, way, 2, 50, device=where, measure=False).results for name, way in ways.items()
}
alone = losses_of(WindowModel(MoE).to(rank_device()), 50)[0]
mixed_guess.reveal(nearest(max(tried["over_all"][0][2] - alone, 1e-3), (0.01, 0.2, 2)))
table = [("2 x 2, worst of 4 ranks", "shared off by", "experts off by", "norm of an expert's gradient", "final loss")]
for name, results in tried.items():
    worst = [f"{max(far[i] for far, *_ in results):.1e}" for i in (0, 1)]
    table.append((name, *worst, f"{results[0][1]:.2f} x", f"{results[0][2]:.3f}"))
show_table([*table, ("one process", "", "", "", f"{alone:.3f}")])

# %% [markdown] name="groups_explained"
# - `over_all` averages the gradients of *different* experts that happen to have the same shape and name on their ranks. It raises no error and no warning. All other parameters get the right gradients. So only the loss shows the mistake, and only if you compare it with the loss of a correct run. `DistributedDataParallel` is worse: when it is constructed, it overwrites every rank's experts with rank 0's, because names and shapes agree. Exclude them (`DistributedDataParallel._set_params_and_buffers_to_ignore_for_model`). (This lab does not run that case.)
# - `over_copies` gives the right direction, but makes the gradients too large by a factor equal to the number of ranks along `expert`. The exchange has already *summed* over those ranks, while the loss is a *mean* over all. Up to its ε, AdamW cancels a constant factor, which hides the mistake ([[gradient_accumulation]]): the loss after 50 steps is close to the correct one. SGD, or clipping by the global norm, would reveal it.
# - The correct method sums over the ranks that hold a copy, and divides by the total number of ranks.
#
# With FSDP2 two calls do the same, as in torchtitan: `fully_shard` of the experts over `replica` alone, and `experts.set_gradient_divide_factor(mesh.size())`.
#
# The next cell checks yours against one process on four mesh shapes.

# %% name="meshes_run"
SHAPES = ((1, 2), (1, 4), (2, 2), (4, 1))
for replicas, ranks in SHAPES:
    n = replicas * ranks
    results = run_ranks(on_a_mesh, n, average_gradients, replicas, device=where, measure=False).results
    farthest = max(*(distance for far, *_ in results for distance in far), *(abs(a - b) / b for *_, a, b in results))
    print(f"{replicas} x {ranks} (replica x expert): loss and all gradients off by at most {farthest:.1e}")
    subject = f"{replicas} x {ranks} ranks, loss and all gradients"
    claims.record("T39", "experts x data equals one process", subject, farthest, "relative", 0, 1e-5)

# %% [markdown] name="norm_text"
# ## 5 · Which norm to clip by
#
# Gradient clipping needs the norm of the *model's* gradient. Each rank holds the shared gradients and those of its own experts only, so `torch.nn.utils.clip_grad_norm_` on plain tensors sees one rank's part. The next cell compares the norms after one backward pass.


# %% name="norm_run"
def norms():
    """Return the gradient norm of this rank alone, of the whole mesh, and of one process."""
    mesh = init_device_mesh(rank_device().type, (1, RANKS), mesh_dim_names=("replica", "expert"))
    right = losses_of(WindowModel(MoE).to(rank_device()), 1)[1]
    model = spread(WindowModel(MoE).to(rank_device()), mesh.get_group("expert"))
    got = losses_of(model, 1, average_gradients, mesh)[1]
    shared, experts = (sum(got[name].square().sum() for name in part) for part in parts_of(model))
    local = (shared + experts).sqrt().item()
    dist.all_reduce(experts, group=mesh.get_group("expert"))
    return local, (shared + experts).sqrt().item(), sum(g.square().sum() for g in right.values()).sqrt().item()


table = [("1 x 4 (replica x expert)", "this rank's norm", "squares summed over expert", "one process")]
for rank, row in enumerate(run_ranks(norms, RANKS, device=where, measure=False).results):
    table.append((f"rank {rank}", *(f"{norm:.4f}" for norm in row)))
show_table(table)

# %% [markdown] name="drift_text"
# The ranks' own norms are close to each other and to the right one. Is it safe to clip by them?
#
# **Predict.** Train 20 steps with AdamW on a 1 × 4 mesh, with your average, and clip on each rank by its own norm. How far apart are two ranks' copies of the shared parameters, relative to how far training has moved them: is it nearest to 0, 0.00003, 0.003 or 0.3?

# %% name="drift_guess"
my_guess = None  # distance between copies / distance moved
### BEGIN GUESS
my_guess = 0
### END GUESS
drift_guess = Prediction(
    "Copies apart / moved, clipped by own norms, the nearest of four", my_guess, "", difference=True
)


# %% name="drift_run"
def own_norm(shared, experts, mesh):
    """Average, then clip by the norm of what this rank holds."""
    average_gradients(shared, experts, mesh)
    clip_grad_norm_([*shared, *experts], 0.5)


def joint_norm(shared, experts, mesh):
    """Average, then clip by the norm of the whole model."""
    average_gradients(shared, experts, mesh)
    squares = sum(p.grad.square().sum() for p in experts)
    dist.all_reduce(squares, group=mesh.get_group("expert"))  # each expert once; all ranks have the shared ones
    norm = (squares + sum(p.grad.square().sum() for p in shared)).sqrt()
    clip_grads_with_norm_([*shared, *experts], 0.5, norm)


def drift(finish, steps=20):
    """Train on a 1 x 4 mesh; return the distance of the shared parameters from rank 0's / the distance moved."""
    mesh = init_device_mesh(rank_device().type, (1, RANKS), mesh_dim_names=("replica", "expert"))
    model = spread(WindowModel(MoE).to(rank_device()), mesh.get_group("expert"))
    before = nn.utils.parameters_to_vector(parts_of(model)[0].values()).detach()
    losses_of(model, steps, finish, mesh)
    after = nn.utils.parameters_to_vector(parts_of(model)[0].values()).detach()
    first = after.clone()
    dist.broadcast(first, 0)
    return ((after - first).norm() / (first - before).norm()).item()


apart = {
    name: max(run_ranks(drift, RANKS, finish, device=where, measure=False).results)
    for name, finish in (("own norm", own_norm), ("joint norm", joint_norm))
}
drift_guess.reveal(nearest(apart["own norm"], (3e-5, 3e-3, 0.3)) if apart["own norm"] else 0)
for name, distance in apart.items():
    print(f"clipped by {name:10} copies apart / moved: {distance:.1e}")

# %% [markdown] name="drift_explained"
# The ranks scale the same shared gradients by slightly different factors, and the factors change from step to step. AdamW cancels a factor only if it stays the same. So the copies drift apart. No error is raised, and nothing pulls the copies together again, so the ranks train models that differ more and more. With the joint norm they stay equal to the last bit. Sum the squares of the experts' gradients over `expert` first, and count the shared ones once.
#
# With DTensor parameters (FSDP2), `clip_grad_norm_` computes this sum itself if all parameters are on one mesh. If the experts are on a mesh of their own, you need code like that of `joint_norm`.
#
# ## 6 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Expert parallelism exchanges row counts, rows and results, and then the gradients of both. The backward pass of an exchange is the exchange in reverse.
# - On average over the ranks, each sends 4 n k C (N − 1) / N numbers per layer, for any load that is similar on all ranks. Imbalance costs time and memory on the busiest rank.
# - Uneven parts need counts on the host, which waits for them. Fixed-size parts need no counts, but cost padding or dropped rows.
# - An expert's gradient is summed over its copies and divided by the total number of ranks. Averaging over all ranks mixes different experts without an error. The clipping norm counts each expert once.
#
# **What to reach for when.** If the experts do not fit, use expert parallelism inside a node or over fast links, with data parallelism or sharding across nodes.
#
# **Next.** [[Choosing_a_layout]] combines all kinds of parallelism, and [[layouts_in_practice]] plans what more expert ranks cost and save.
#
# **Sources.** Lepikhin et al. 2020, *GShard* (expert parallelism, fixed shapes); Fedus et al. 2021, *Switch Transformers*; DeepSeek-AI 2024, *DeepSeek-V3*, and its library DeepEP; torchtitan, `torchtitan/distributed/expert_parallel.py`.
