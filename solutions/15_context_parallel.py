# %% [markdown] name="title"
# # Long sequences: context parallel
#
# **A sequence that does not fit on one GPU can be cut into parts. Everything but attention works on the parts as they are; attention takes a ring of messages, and you write it, forward and backward.**
#
# | | |
# |---|---|
# | After this you can | say what grows with the sequence, and plan 128k tokens for 8B; merge partial attention by log-sum-exp; write ring attention with right gradients; predict its traffic and its memory; see and cure the imbalance of causal masks; get positions, labels and documents right over shards; choose between the ring and all-to-all |
# | Time | 120 to 190 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the same cells use NCCL |
# | Before this | labs [[#where_memory_goes]], [[#compilation_and_fusion]] (the online softmax), [[#data_parallel]] and [[#tensor_parallel]] |
# | Syllabus | T38, C17, C18 |

# %% name="setup" setup=true
from helpers import (
    Claims,
    Collectives,
    MemoryMeter,
    Prediction,
    RankError,
    check,
    device_name,
    explore,
    hint,
    human_bytes,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    saved_tensor_bytes,
    show,
    text_table,
)
from helpers.core.progress_line import progress_line
from helpers.exercises.context_parallel.attend import attend, attend_backward
from helpers.exercises.context_parallel.clock import clock_rings
from helpers.exercises.context_parallel.model import LongModel
from helpers.exercises.context_parallel.pictures import ring_picture, scores_picture, timeline_picture
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.recipe import RecipeError

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)  # all runs of this lab: on GPUs if there is one for each of four ranks
claims = Claims(device=where)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if where.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="grows_text"
# ## 1 · What grows with the sequence
#
# Parameters, gradients and optimizer state do not care how long a sequence is. Activations do. Here is a small decoder, and two kinds of attention in it: `plain` keeps its scores, one number for each pair of tokens and each head; `fused` is PyTorch's own, which recomputes them in the backward pass ([[compilation_and_fusion]]).
#
# **Predict.** From 256 to 1,024 tokens, by what factor do the bytes saved for the backward pass grow? First with plain attention, then with fused.

# %% name="grows_guess"
my_guess = None  # plain attention, times
### BEGIN GUESS
my_guess = 12  # the scores by 16, the rest by 4
### END GUESS
plain_guess = Prediction("Saved with plain attention, 1,024 tokens / 256", my_guess, "times")
my_guess = None  # fused attention, times
### BEGIN GUESS
my_guess = 4
### END GUESS
fused_guess = Prediction("Saved with fused attention, 1,024 tokens / 256", my_guess, "times")


# %% name="grows"
def plain(q, k, v):
    scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def fused(q, k, v):
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def saved(attention, length):
    model, ids = LongModel(attention).to(device), torch.zeros(1, length, dtype=torch.long, device=device)
    positions = torch.arange(length, device=device)
    return saved_tensor_bytes(lambda: model(ids, positions), besides=model.parameters())


table = [("tokens", "plain attention", "fused attention")]
kept = {length: [saved(attention, length) for attention in (plain, fused)] for length in (256, 512, 1024)}
table += [(f"{length:,}", *map(human_bytes, both)) for length, both in kept.items()]
plain_growth, fused_growth = (b / a for a, b in zip(kept[256], kept[1024], strict=True))
plain_guess.reveal(plain_growth)
fused_guess.reveal(fused_growth)
print(text_table(table))

# %% [markdown] name="grows_explained"
# Scores grow with the square of the sequence, all other activations with its length. Fused attention gets rid of the square: what is left is linear, and that is the problem of this lab.
#
# The planner does the same sum for a real model: Llama 3.1 8B, one sequence of 131,072 tokens on each of eight H100s (80 GB), parameters sharded over all eight ([[sharding]]), fused attention.
#
# Its 32 blocks work on tensors of (tokens, 4,096) in BF16, and each block keeps about 16 of them for the backward pass.
#
# **Predict.** How many GiB of activations does each GPU have to hold?

# %% name="plan_guess"
my_guess = None  # GiB of activations on each GPU
### BEGIN GUESS
my_guess = 32 * 16 * 131072 * 4096 * 2 / 2**30  # 32 blocks that keep about 16 tensors of (tokens, width) in BF16
### END GUESS
plan_guess = Prediction("Activations of 128k tokens on each GPU", my_guess, "GiB")

# %% name="plan"
llama, h100s = arch_of("llama-3.1-8b"), find_cluster("dgx-h100")
layouts = {
    "8 sequences, one on each GPU": {"shard": 8},
    "the same, blocks recomputed": {"shard": 8, "recompute": "full"},
    "1 sequence on 2 GPUs, 4 at once": {"shard": 4, "context": 2},
    "1 sequence on 8 GPUs": {"context": 8},
    "1 on 8 GPUs, blocks recomputed": {"context": 8, "recompute": "full"},
}
plans = {}
for name, how in layouts.items():
    progress_line(f"planning: {name}")
    plans[name] = plan_layout(Layout(llama, seq=131072, **how), h100s)
progress_line("")
plan_guess.reveal(plans["8 sequences, one on each GPU"].worst.peak["activations"] / 2**30)
table = [("8 x H100, 128k tokens", "activations", "all", "fits in 80 GB")]
for name, plan in plans.items():
    table.append(
        (
            name,
            human_bytes(plan.worst.peak["activations"]),
            human_bytes(plan.worst.nbytes),
            "yes" if plan.fits else "no",
        )
    )
print(text_table(table))

# %% [markdown] name="plan_explained"
# Sharding does not help here: one sequence alone is too much, even if each block is recomputed ([[activation_checkpointing]]). So cut the **sequence**: of T tokens, each of N ranks keeps T/N. That is *context parallelism*.
#
# Embedding, norms, projections, MLP and loss look at one token at a time. Attention is the exception: a query needs the keys and values of all tokens before it, and these are on other ranks. Gathering them would grow with T again. So they come by in blocks, one at a time.
#
# ## 2 · Half an answer, and the other half
#
# In [[compilation_and_fusion]] you kept three things for each row of scores, and added tile after tile. Here is a tidier way to say it. Attention of a row on **some** of the columns gives
#
# - `out`, the mean of their values, weighted by the softmax of their scores;
# - `lse`, the logarithm of the sum of the exponentials of their scores (*log-sum-exp*).
#
# Two such results, for different columns, can be merged into that for all of them. The given `attend(q, k, v, causal)` returns both.

# %% name="attend"
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))  # (batch, heads, tokens, channels of a head)
left, right = attend(q, k[:, :, :2], v[:, :, :2], causal=False), attend(q, k[:, :, 2:], v[:, :, 2:], causal=False)
print("out:", tuple(left[0].shape), " lse:", tuple(left[1].shape))
whole = attend(q, k, v, causal=False)
print(f"the mean of both halves is off by {((left[0] + right[0]) / 2 - whole[0]).abs().max():.2f}")
print(f"the sum of the exponentials is off by {(left[1].exp() + right[1].exp() - whole[1].exp()).abs().max():.0e}")

# %% [markdown] name="merge_task"
# The mean of the two is wrong: the halves do not weigh the same. Their weights are the sums of exponentials, and `lse` knows them.
#
# ### Your turn: merge
#
# **Contract.** `merge(one, other)` takes two results `(out, lse)` for the same rows and different columns, and returns `(out, lse)` for all these columns.
#
# - `out` (..., R, d), `lse` (..., R), FP32 or FP64; the result has the same shapes and dtype.
# - An `lse` may be as large as ±10,000, in each row another: no overflow, no NaN.
# - An `lse` of -inf says that nothing was seen: then the other result is the answer. If neither has seen anything, `out` is 0 and `lse` -inf.
# - Nothing that comes in is changed.


# %% name="merge" answer=true reveal=true
def merge(one, other):
    ### BEGIN SOLUTION
    (out_1, lse_1), (out_2, lse_2) = one, other
    lse = torch.logaddexp(lse_1, lse_2)
    base = torch.where(lse.isinf(), 0.0, lse)  # where neither has seen anything: exp(-inf - 0) is 0
    share_1, share_2 = (lse_1 - base).exp()[..., None], (lse_2 - base).exp()[..., None]
    return share_1 * out_1 + share_2 * out_2, lse
    ### END SOLUTION


# %% name="merge_check"
merge = check("context_parallel.merge", merge)

# %% name="merge_hint"
hint("context_parallel.merge")

# %% [markdown] name="ring_text"
# ## 3 · Round the ring
#
# Each rank keeps its queries. Keys and values travel: in each step a rank hands the block that it has to the next rank and gets one from the rank before. After N − 1 steps everybody has seen everything, and nobody has had more than a block or two at a time.

# %% name="ring_figure"
show(
    ring_picture(RANKS),
    "Four ranks in rows, four steps in columns. In step 0 rank r has block r. An arrow from each rank to the next: in "
    "step 1 rank 1 has block 0, rank 0 has block 3, and so on, until each rank has had all four blocks.",
)

# %% [markdown] name="shift_text"
# That takes a send and a receive at once. The obvious way is `dist.send` to the next rank, then `dist.recv` from the one before. Everybody does the same.
#
# **Predict.** How many of the four ranks get their block within five seconds?


# %% name="shift_guess"
my_guess = None  # ranks, of 4
### BEGIN GUESS
my_guess = 4
### END GUESS
polite_guess = Prediction("Ranks that get a block, each sending first", my_guess, "of 4", difference=True)


# %% name="shift_naive"
def everybody_sends_first():
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.full((1000,), float(rank))
    arrived = torch.empty_like(mine)
    dist.send(mine, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    return bool((arrived == (rank - 1) % n).all())


try:
    got = run_ranks(everybody_sends_first, RANKS, device="cpu", timeout=5, measure=False, show=False).results
    polite_guess.reveal(sum(got))
except RankError as error:
    polite_guess.reveal(0)
    print(str(error).splitlines()[0])
    print("\n".join(line for line in str(error).splitlines() if line.startswith("rank ")))

# %% [markdown] name="shift_task"
# Over gloo, `send` returns when the other side receives the message, and no rank receives: all wait in a circle. (Over NCCL the host returns at once and the stream waits, in the same circle.) So hand over both at once: `dist.batch_isend_irecv` takes a list of `dist.P2POp(dist.isend, tensor, to)` and `dist.P2POp(dist.irecv, tensor, from)`, starts all of them and returns a list of requests before any data arrive. `request.wait()` waits for one request.
#
# It returns before anything has arrived, and that is what we want: a rank computes with the block that it has while the next is on its way.
#
# ### Your turn: shift
#
# **Contract.** `shift(*tensors)` is called on every rank (two or more), and returns `(arriving, finish)`.
#
# - It sends each tensor to the next rank, and receives those of the rank before: rank 0 from the last. Nothing else is sent.
# - All messages set out in the call, which does not wait for other ranks. `finish()`, called without arguments, does.
# - After `finish()`, `arriving` is a list of new tensors with the numbers that the rank before gave to its `shift`, of the same shapes and dtypes, in that order.
# - `tensors` may be of different shapes and dtypes, need not be contiguous, and are not changed. Several shifts may be under way at a time; they are finished in the order in which they were begun.


# %% name="shift" answer=true reveal=true
def shift(*tensors):
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    leaving = [tensor.contiguous() for tensor in tensors]
    arriving = [torch.empty_like(tensor) for tensor in leaving]
    messages = [dist.P2POp(dist.isend, tensor, (rank + 1) % n) for tensor in leaving]
    messages += [dist.P2POp(dist.irecv, tensor, (rank - 1) % n) for tensor in arriving]
    requests = dist.batch_isend_irecv(messages)

    def finish():
        for request in requests:
            request.wait()
        leaving.clear()  # until now they had to stay

    return arriving, finish
    ### END SOLUTION


# %% name="shift_check"
shift = check("context_parallel.shift", shift)

# %% name="shift_hint"
hint("context_parallel.shift")

# %% [markdown] name="forward_task"
# ## 4 · Ring attention
#
# Specify which part of the sequence each rank holds. Cut the sequence into **pieces** of equal length, numbered from 0; `order[r]` lists the pieces of rank r as they lie in its tensors. For now that is one piece each: `[[0], [1], [2], [3]]`. Section 5 will want two.
#
# A causal mask then says of each pair of pieces: rows of piece i see columns of piece j entirely if j < i, up to the diagonal if j = i, and not at all if j > i.
#
# ### Your turn: forward
#
# **Contract.** `ring_forward(q, k, v, order)` is called on every rank (two or more) and returns `(out, lse)` of causal attention for this rank's rows.
#
# - `q` (B, H, S, d), `k` and `v` (B, K, S, d) hold this rank's pieces one after the other; K divides H, and `attend` copes with that. `out` (B, H, S, d) and `lse` (B, H, S) are for all columns that a row may see, on whichever rank they are.
# - All ranks have equally many pieces, one or more. `order` is any way to deal them out, and the same on each rank.
# - All scores are computed by `attend`, and none twice; pieces that a row may not see cost nothing.
# - Sent: keys and values, N − 1 times a block of each, point to point. No queries, no collective.
# - No rank holds more than a fixed number of blocks at a time, however many ranks there are.
# - Nothing that comes in is changed, `order` included.


# %% name="forward" answer=true reveal=true
def ring_forward(q, k, v, order):
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = q.chunk(len(order[rank]), dim=2)
    found = [(torch.zeros_like(row), torch.full_like(row[..., 0], float("-inf"))) for row in rows]
    visiting = k, v
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(*visiting)  # on its way while this block is at work
        held = order[(rank - step) % n]
        for column, *block in zip(held, *(t.chunk(len(held), dim=2) for t in visiting), strict=True):
            for i, row in enumerate(order[rank]):
                if column <= row:
                    found[i] = merge(found[i], attend(rows[i], *block, causal=column == row))
        if step < n - 1:
            finish()
            visiting = arriving
    return torch.cat([out for out, _ in found], dim=2), torch.cat([lse for _, lse in found], dim=2)
    ### END SOLUTION


# %% name="forward_check"
ring_forward = check("context_parallel.forward", ring_forward)

# %% name="forward_hint"
hint("context_parallel.forward")

# %% [markdown] name="backward_task"
# On the way back, no merging is needed. Once `lse` and `out` of the whole row are known, each score's share of the softmax is exp(score − lse) on any rank, and the gradient of a score is that share times (g · v − δ), where δ is the sum over the row of g · `out`. So each pair of pieces adds its part to three gradients without the other pairs, as long as it gets the `lse` *and* the `out` of whole rows. `attend_backward(gradient, (q, k, v), (out, lse), causal)` returns these parts: dq, dk and dv.
#
# dq belongs to the rows, and stays. dk and dv belong to the visitors: the rank that computes a part must send it to the owner.
#
# ### Your turn: backward
#
# **Contract.** `ring_backward(gradient, inputs, results, order)` is called on every rank (two or more) and returns this rank's `(dq, dk, dv)`.
#
# - `inputs` is `(q, k, v)` and `results` is `(out, lse)` as `ring_forward` took and returned them; `gradient` has the shape of `out`. All gradients are those of one process.
# - All of them are computed by `attend_backward`, each pair of pieces once; nothing is computed that no row may see, and nothing of the forward pass again.
# - Sent, point to point: keys and values N − 1 times, and their gradients at most N times, a block of each.
# - No rank holds more than a fixed number of blocks at a time. Nothing that comes in is changed, `order` included.


# %% name="backward" answer=true reveal=true
def ring_backward(gradient, inputs, results, order):
    ### BEGIN SOLUTION
    (q, k, v), rank, n = inputs, dist.get_rank(), dist.get_world_size()
    dq = torch.zeros_like(q)
    visiting = [k, v, torch.zeros_like(k), torch.zeros_like(v)]
    mine = list(zip(*(t.chunk(len(order[rank]), dim=2) for t in (gradient, q, *results, dq)), strict=True))
    for step in range(n):
        held = order[(rank - step) % n]
        guests = list(zip(*(t.chunk(len(held), dim=2) for t in visiting), strict=True))
        for row, (g, q_piece, out, lse, dq_piece) in zip(order[rank], mine, strict=True):
            for column, (k_piece, v_piece, *theirs) in zip(held, guests, strict=True):
                if column <= row:
                    parts = attend_backward(g, (q_piece, k_piece, v_piece), (out, lse), causal=column == row)
                    for total, part in zip((dq_piece, *theirs), parts, strict=True):
                        total += part  # a view: it lands in the whole tensor
        visiting, finish = shift(*(visiting if step < n - 1 else visiting[2:]))  # at last the gradients alone: home
        finish()
    return dq, *visiting
    ### END SOLUTION


# %% name="backward_check"
ring_backward = check("context_parallel.backward", ring_backward)

# %% name="backward_hint"
hint("context_parallel.backward")

# %% [markdown] name="ring_function_text"
# Put the two into a function for autograd, and hold it against one process: output and all three gradients, in FP32, on 2 and 4 ranks.


# %% name="ring_function"
class Ring(torch.autograd.Function):
    """Causal attention over all ranks; each has its pieces of q, k and v."""

    @staticmethod
    def forward(ctx, q, k, v, order):
        out, lse = ring_forward(q, k, v, order)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.order = order
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, out, lse = ctx.saved_tensors
        return *ring_backward(gradient.contiguous(), (q, k, v), (out, lse), ctx.order), None


def in_a_row(ranks):
    return [[rank] for rank in range(ranks)]


def mine(tensor, order):
    """Return this rank's pieces of dimension 2."""
    pieces = tensor.chunk(sum(map(len, order)), dim=2)
    return torch.cat([pieces[number] for number in order[dist.get_rank()]], dim=2)


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


# %% name="ring_compared"
def drawn(length, heads=8, kv_heads=4, width=16):
    """Return q, k, v and a gradient for the output, the same on each rank."""
    torch.manual_seed(0)
    sizes = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(1, h, length, width, device=rank_device()) for h in sizes]


def through(attention, inputs, gradient):
    """Return the output of `attention` and the gradients of its inputs."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = attention(*leaves)
    out.backward(gradient)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def ring_on_ranks(order):
    *inputs, gradient = drawn(512)
    alone = through(fused, inputs, gradient)
    ring = through(lambda *qkv: Ring.apply(*qkv, order), [mine(t, order) for t in inputs], mine(gradient, order))
    return [relative(a, mine(b, order)) for a, b in zip(ring, alone, strict=True)]


table = [("ring, in a row", "output", "dq", "dk", "dv")]
for n in (2, 4):
    results = run_ranks(ring_on_ranks, n, in_a_row(n), device=where, measure=False).results
    worst = [max(far) for far in zip(*results, strict=True)]
    table.append((f"{n} ranks, off by at most", *(f"{far:.1e}" for far in worst)))
    claims.record("T38", "ring attention equals one process", f"{n} ranks, FP32", max(worst), "relative", 0, 1e-5)
print(text_table(table))

# %% [markdown] name="traffic_guess_text"
# ### What it sends
#
# Take one block of keys, B × K × T/N × d numbers, as the unit.
#
# **Predict** for four ranks: how many units does a rank send in the forward pass, and how many in the backward pass?

# %% name="traffic_guess"
my_guess = None  # units, forward
### BEGIN GUESS
my_guess = 3 * 2  # keys and values, N - 1 times
### END GUESS
forward_guess = Prediction("Sent by a rank forward", my_guess, "blocks")
my_guess = None  # units, backward
### BEGIN GUESS
my_guess = 3 * 2 + 4 * 2  # again, and their gradients N times: they have to get home
### END GUESS
backward_guess = Prediction("Sent by a rank backward", my_guess, "blocks")


# %% name="traffic"
def ring_traffic(order):
    *inputs, gradient = drawn(512)
    inputs = [mine(t, order).requires_grad_() for t in inputs]
    with Collectives() as forward:
        out = Ring.apply(*inputs, order)
    with Collectives() as backward:
        out.backward(mine(gradient, order))
    unit = inputs[1].nbytes
    return [
        sum(call.nbytes for call in calls if call.name == "send") / unit for calls in (forward.calls, backward.calls)
    ]


ways = run_ranks(ring_traffic, RANKS, in_a_row(RANKS), device=where, measure=False).results[0]
forward_guess.reveal(ways[0])
backward_guess.reveal(ways[1])
formula = 2 * (RANKS - 1) + 2 * (RANKS - 1) + 2 * RANKS
claims.record(
    "T38",
    "a ring sends 6 N - 4 blocks of keys",
    "4 ranks, measured / formula",
    sum(ways) / formula,
    "times",
    0.98,
    1.02,
)

# %% [markdown] name="memory_guess_text"
# All together **6 N − 4** units: 2 (N − 1) forward and 2 (N − 1) + 2 N backward. A unit is 1/N of the keys, so what a rank sends hardly depends on N: about three times the sequence's keys and values.
#
# ### What it holds
#
# The sequence stays as long as it is, and more and more ranks share it. Two figures for attention alone: the bytes that a rank **keeps** for the backward pass, and its **peak** in both passes, inputs included. One process runs `attend` and `attend_backward` once, on the whole sequence.
#
# **Predict.** To what share of one process do they fall with four ranks? And the peak from two ranks to four? (For the peaks, count the blocks that your own two functions hold at their busiest moment.)

# %% name="memory_guess"
my_guess = None  # kept by a rank of 4 / kept by one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
kept_guess = Prediction("Kept for the backward pass, 4 ranks / one process", my_guess, "times")
my_guess = None  # peak of a rank of 4 / peak of one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
memory_guess = Prediction("Peak of a rank, 4 ranks / one process", my_guess, "times")
my_guess = None  # peak of a rank of 4 / peak of a rank of 2
### BEGIN GUESS
my_guess = 0.5
### END GUESS
halved_guess = Prediction("Peak of a rank, 4 ranks / 2 ranks", my_guess, "times")


# %% name="memory"
def alone(q, k, v, gradient):
    results = attend(q, k, v, causal=True)
    return attend_backward(gradient, (q, k, v), results, causal=True)


def ringed(q, k, v, gradient, order):
    results = ring_forward(q, k, v, order)
    return ring_backward(gradient, (q, k, v), results, order)


def attention_peak(order):
    """Return the peak of attention, what it keeps between both passes, and the size of a block of keys."""
    parts = [mine(t, order).clone() for t in drawn(2048, heads=4, width=64)]
    attention = fused if len(order) == 1 else lambda q, k, v: Ring.apply(q, k, v, order)
    leaves = [t.clone().requires_grad_() for t in parts[:3]]
    kept = saved_tensor_bytes(lambda: attention(*leaves))
    with MemoryMeter(device=parts[0].device) as profile:
        results = alone(*parts) if len(order) == 1 else ringed(*parts, order)
    del results
    return profile.peak_bytes, kept, parts[1].nbytes


# %% name="memory_run"
peaks = {n: max(run_ranks(attention_peak, n, in_a_row(n), device=where, measure=False).results) for n in (1, 2, 4)}
kept_guess.reveal(peaks[4][1] / peaks[1][1])
memory_guess.reveal(peaks[4][0] / peaks[1][0])
halved_guess.reveal(peaks[4][0] / peaks[2][0])
table = [("ranks", "kept for the backward pass", "peak of a rank", "in blocks of its keys")]
for n, (peak, kept_bytes, unit) in peaks.items():
    table.append((str(n), human_bytes(kept_bytes), human_bytes(peak), f"{peak / unit:.1f}"))
print(text_table(table))
print(f"(scores of the whole sequence, if anybody kept them: {human_bytes(4 * 2048**2 * 4)})")
for what, i in (("kept for the backward pass", 1), ("peak of both passes", 0)):
    share = peaks[4][i] / peaks[1][i]
    claims.record(
        "C17", "ring attention's memory a rank is 1/N", f"{what}, 4 ranks", share, "of one process", 0.2, 0.27
    )
claims.record(
    "C17", "from N to 2 N ranks it halves", "peak, 2 to 4 ranks", peaks[4][0] / peaks[2][0], "times", 0.45, 0.6
)

# %% [markdown] name="memory_explained"
# What stays from the forward to the backward pass is 1/N, as promised: q, k, v, out and lse of this rank's tokens.
#
# The peak is another matter. Ring attention works with a fixed number of blocks: the visitors, their gradients, those that are arriving, and what a block's gradients take. One process has fewer tensors, but whole ones. So two ranks save little; what halves, from there on, is what the blocks take. "1/N" hides a constant: the last column. The contract asks only that this constant does not depend on N, so yours may be larger than the course's or smaller, and the claims about the peak in the table at the end are judged by **your** functions. If they did not hold: which tensors are alive at once that could take turns? Scores exist for 64 rows at a time.
#
# ### When is the traffic hidden?
#
# While a rank computes with one block, the next one travels. With c tokens on a rank, computing grows with c², the message with c: so from some c on, the message arrives in time. Take Llama 3.1 8B (H = 32 heads, K = 8 of them for keys and values) on H100s that compute at their peak in BF16 (989 TFLOP/s), with half of each block masked: 2 c² H d FLOPs forward against 4 c K d bytes.
#
# **Predict.** At how many tokens per GPU does computing begin to hide the forward ring's messages between nodes (400 Gb/s per GPU)?

# %% name="hide_guess"
my_guess = None  # tokens on each GPU
### BEGIN GUESS
my_guess = 10_000  # 2 c^2 H d / F = 4 c K d / W, so c = 2 (K / H) F / W
### END GUESS
hide_guess = Prediction("Tokens per GPU at which the ring is hidden, between nodes", my_guess, "tokens")

# %% name="hide"
grouped = llama.kv_heads / llama.heads
hides = {
    link: 2 * grouped * h100s.gpu.flops16 / bandwidth
    for link, bandwidth in (("NVLink, in a node", h100s.inside), ("network, between nodes", h100s.outside))
}
hide_guess.reveal(hides["network, between nodes"])
for link, tokens in hides.items():
    print(f"{link:23}: from {tokens:,.0f} tokens on each GPU; with 8 GPUs, sequences of {8 * tokens:,.0f}")

# %% [markdown] name="hide_explained"
# Kernels that reach half of the peak halve these figures. For long sequences on few GPUs a ring costs next to nothing; for short ones on many it is all you see. Grouped queries help: fewer heads of keys travel.
#
# ## 5 · Who works when
#
# The tokens are dealt out evenly. Is the work?
#
# **Predict.** Four ranks, a causal mask, one piece each in order. What share of the step does a rank wait for others, on average? (The step ends with the last rank; messages take no time.)

# %% name="row_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 43  # works of 0.5, 1.5, 2.5 and 3.5 blocks: the mean is 2, the most 3.5
### END GUESS
row_guess = Prediction("Waiting, pieces in a row", my_guess, "%", difference=True)

# %% [markdown] name="clock_text"
# As in [[pipeline]], a clock makes waiting visible: each block *takes* as long as it has scores, whatever the cores of this machine do, and the messages are real.


# %% name="row_clocked"
def one_step(order):
    *inputs, gradient = (mine(t, order) for t in drawn(256, heads=2, kv_heads=2))
    through(lambda *qkv: Ring.apply(*qkv, order), inputs, gradient)


in_row = clock_rings(one_step, RANKS, {"in a row": in_a_row(RANKS)})["in a row"]
row_guess.reveal(in_row.share)
print(in_row)
show(
    scores_picture(in_a_row(RANKS), "In a row"),
    "Scores in four pieces of rows and columns, below the diagonal coloured by the rank of the row: half a square for "
    "rank 0, one and a half for rank 1, two and a half for rank 2, three and a half for rank 3.",
)
show(
    timeline_picture(in_row, "In a row"),
    "Four rows of bars, a short forward and a short backward bar for rank 0, more for each further rank; only the last "
    "row is full.",
)

# %% [markdown] name="cut_task"
# Rank 0 has almost no work, the last rank the most, and all ranks wait for the last. With more ranks, nearly half of the time is lost.
#
# The cure costs nothing. Cut the sequence into 2 N pieces, and give each rank **two** of them, chosen so that all ranks compute equally many scores. Your ring can do that already: `order` takes any number of pieces.
#
# The tokens are then no longer in a row, and three things must follow them: the **labels** (the next token of the whole sequence, not of the piece), the **positions** that rotate queries and keys, and whoever puts the results together.
#
# ### Your turn: another order, and its tokens
#
# **Contract.** Two functions, without messages.
#
# - `zigzag(ranks)` returns an `order`: a list for each rank, with two of the pieces 0 to 2 · `ranks` − 1 in ascending order. Each piece is on one rank, and under a causal mask all ranks compute the same number of scores.
# - `cut(tokens, order, rank)` returns what `rank` trains with, `(ids, labels, positions)`. `tokens` (B, T + 1) are whole sequences, of which the first T are inputs; T is a multiple of the number of pieces. Neither `tokens` nor `order` is changed.
#   - `ids` (B, T/N): the inputs of this rank's pieces, one after the other, for any `order` with equally many pieces a rank.
#   - `labels` (B, T/N): for each of them the token that follows it in the sequence.
#   - `positions` (T/N,): where they stand in the sequence, from 0; int64, on the device of `tokens`.


# %% name="cut" answer=true reveal=true
def zigzag(ranks):
    ### BEGIN SOLUTION
    return [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]  # a cheap one and a dear one
    ### END SOLUTION


def cut(tokens, order, rank):
    ### BEGIN SOLUTION
    pieces = torch.arange(tokens.shape[1] - 1, device=tokens.device).chunk(sum(map(len, order)))
    positions = torch.cat([pieces[number] for number in order[rank]])
    return tokens[:, positions], tokens[:, positions + 1], positions
    ### END SOLUTION


# %% name="cut_check"
zigzag, cut = check("context_parallel.cut", zigzag, cut)

# %% name="cut_hint"
hint("context_parallel.cut")

# %% [markdown] name="zigzag_guess_text"
# **Predict.** By what factor does the whole step become shorter on four ranks?

# %% name="zigzag_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 3.5 / 2
### END GUESS
shorter_guess = Prediction("Step in a row / step with zigzag", my_guess, "times")

# %% name="zigzag_clocked"
zigzagged = clock_rings(one_step, RANKS, {"zigzag": zigzag(RANKS)})["zigzag"]
shorter_guess.reveal(max(in_row.work) / max(zigzagged.work))
print(zigzagged)
show(
    timeline_picture(zigzagged, "Zigzag"), "Four full rows of bars: all ranks work all the time, forward and backward."
)
for name, run, ideal in (("in a row", in_row, 100 * (1 - 2 / 3.5)), ("zigzag", zigzagged, 0)):
    said = f"{name}: {ideal:.0f} % of the step is waiting"
    claims.record("T38", said, "4 ranks, counted", run.counted, "% idle", ideal - 0.5, ideal + 0.5)
    if run.busy:
        claims.not_measured("T38", said, "4 ranks, by the clock; this machine was too busy")
    else:
        claims.record("T38", said, "4 ranks, by the clock", run.idle, "% idle", ideal - 5, ideal + 10)

# %% [markdown] name="orders_play_text"
# Play with it: which orders are fair, for how many ranks? *Striped* deals pieces out one at a time, like cards, four to each rank.


# %% name="orders_play"
def orders_drawn(order, ranks):
    orders = {"in a row": in_a_row(ranks), "zigzag": zigzag(ranks)}
    orders["striped"] = [list(range(rank, 4 * ranks, ranks)) for rank in range(ranks)]
    return scores_picture(orders[order], order)


explore(
    orders_drawn,
    "Scores below the diagonal, in pieces, coloured by the rank that computes them, with each rank's work.",
    order=("zigzag", ("in a row", "zigzag", "striped")),
    ranks=(4, (2, 3, 4, 6, 8)),
)

# %% [markdown] name="model_text"
# ## 6 · A whole model
#
# Now train a decoder of two blocks, with rotated queries and keys, on a sequence that no rank has whole. Each rank has all parameters and its own tokens, so the gradients of the parameters are summed over the ranks, as in [[data_parallel]].
#
# The loss is a mean over all tokens that count. Some do not (label −100), and they are not spread evenly: divide by the count of **all** ranks.


# %% name="model"
def make_tokens(length):
    torch.manual_seed(1)
    tokens = torch.randint(128, (1, length + 1))
    return tokens.to(rank_device())


def make_model(attention):
    torch.manual_seed(2)
    return LongModel(attention).to(rank_device())


def summed_loss(model, ids, labels, positions):
    labels = labels.masked_fill(positions < PROMPT, -100)  # a prompt is not learned
    loss = F.cross_entropy(model(ids, positions).flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, (labels != -100).sum()


def train_on_ranks(order, parts_of=cut):
    """Return this rank's loss of the joint sequence, and its gradients after the ranks have added theirs."""
    model = make_model(lambda q, k, v: Ring.apply(q, k, v, order))
    loss, count = summed_loss(model, *parts_of(make_tokens(LENGTH), order, dist.get_rank()))
    dist.all_reduce(count)
    (loss / count).backward()
    joint = loss.detach() / count
    dist.all_reduce(joint)
    for p in model.parameters():
        dist.all_reduce(p.grad)
    return joint.cpu(), [p.grad.cpu() for p in model.parameters()]


# %% name="model_compared"
LENGTH, PROMPT = 512, 100
whole_order = [[0]]


def train_alone():
    model = make_model(fused)
    loss, count = summed_loss(model, *cut(make_tokens(LENGTH), whole_order, 0))
    (loss / count).backward()
    return (loss / count).detach().cpu(), [p.grad.cpu() for p in model.parameters()]


def off(results, right):
    """Return how far the loss and the worst gradient of any rank are from those of one process."""
    losses = [abs(loss - right[0]).item() / right[0].item() for loss, _ in results]
    gradients = [relative(a, b) for _, found in results for a, b in zip(found, right[1], strict=True)]
    return max(losses), max(gradients)


right = run_ranks(train_alone, 1, device=where, measure=False).results[0]
table = [("ranks, order", "loss off by", "worst gradient off by")]
for n in (2, 4):
    for name, order in (("in a row", in_a_row(n)), ("zigzag", zigzag(n))):
        loss, gradient = off(run_ranks(train_on_ranks, n, order, device=where, measure=False).results, right)
        table.append((f"{n}, {name}", f"{loss:.1e}", f"{gradient:.1e}"))
        claims.record(
            "T38",
            "a model over shards equals one process",
            f"{n} ranks, {name}",
            max(loss, gradient),
            "relative",
            0,
            1e-5,
        )
print(text_table(table))

# %% [markdown] name="wrong_text"
# Three controls that must fail. Each of them works for data parallelism and looks right in the code:
#
# - **Labels after cutting**: each rank shifts its own tokens by one, and drops its last.
# - **Positions from 0**: each rank numbers its own tokens.
# - **A mean of means**: each rank divides by its own count, and the ranks' losses are averaged.
#
# **Predict.** With 512 tokens on four ranks in zigzag order: how many of the 512 labels are wrong or missing when they are made after cutting?

# %% name="wrong_guess"
my_guess = None  # labels
### BEGIN GUESS
my_guess = 4  # the last one of each rank
### END GUESS
labels_guess = Prediction("Labels that are wrong or missing", my_guess, "of 512")


# %% name="wrong_ways"
def labels_after_cutting(tokens, order, rank):
    ids, _, positions = cut(tokens, order, rank)
    return ids, F.pad(ids[:, 1:], (0, 1), value=-100), positions


def positions_from_zero(tokens, order, rank):
    ids, labels, positions = cut(tokens, order, rank)
    return ids, labels, torch.arange(len(positions), device=ids.device)


def lost_labels():
    tokens, rank = make_tokens(LENGTH), dist.get_rank()
    _, labels, positions = cut(tokens, zigzag(RANKS), rank)
    late = labels_after_cutting(tokens, zigzag(RANKS), rank)[1]
    return positions[(late != labels)[0]].tolist()


def mean_of_means():
    model = make_model(lambda q, k, v: Ring.apply(q, k, v, in_a_row(RANKS)))
    loss, count = summed_loss(model, *cut(make_tokens(LENGTH), in_a_row(RANKS), dist.get_rank()))
    mean = loss.detach() / count
    dist.all_reduce(mean)
    return (mean / RANKS).item()


# %% name="wrong"
lost = run_ranks(lost_labels, RANKS, device=where, measure=False).results
labels_guess.reveal(sum(map(len, lost)))
print("whose labels:", {f"rank {rank}": positions for rank, positions in enumerate(lost)})
table = [("4 ranks", "loss", "off by", "worst gradient off by"), ("one process", f"{right[0]:.4f}", "", "")]
for name, way in (("labels after cutting", labels_after_cutting), ("positions from 0", positions_from_zero)):
    results = run_ranks(train_on_ranks, RANKS, zigzag(RANKS), way, device=where, measure=False).results
    loss, gradient = off(results, right)
    table.append((name, f"{results[0][0]:.4f}", f"{loss:.1e}", f"{gradient:.1e}"))
mean = run_ranks(mean_of_means, RANKS, device=where, measure=False).results[0]
table.append(("a mean of means, in a row", f"{mean:.4f}", f"{abs(mean / right[0].item() - 1):.1e}", ""))
print(text_table(table))

# %% [markdown] name="wrong_explained"
# None of the three raises an error, and no loss looks alarming: the model is new, and every answer is equally bad. The gradients tell. Each rank has two wrong or missing labels, but for the last: its two pieces are neighbours, so it has one seam fewer. In the mean of means, rank 0 has the prompt and few labels, and each of these counts several times as much as it should.
#
# ### Documents
#
# Long sequences are often many documents in a row, and no token may look into another document ([[data_loading]]). That changes who has how much to do.
#
# **Predict.** 1,024 tokens, documents of 640, 128, 128 and 128, four ranks, and attention inside of documents only. What share of the step does a rank wait with the zigzag order?

# %% name="documents_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 20  # the long document is most of the work, and it is spread in zigzag
### END GUESS
documents_guess = Prediction("Waiting, zigzag over four documents", my_guess, "%", difference=True)

# %% name="documents"
DOCUMENTS = (640, 128, 128, 128)


def waiting(order):
    """Return the share of the step in which a rank waits, from the scores that each rank's rows take."""
    seen = torch.cat([torch.arange(1, length + 1) for length in DOCUMENTS])  # columns that each row may see
    pieces = seen.chunk(sum(map(len, order)))
    work = [sum(pieces[number].sum().item() for number in held) for held in order]
    return 100 * (1 - sum(work) / len(work) / max(work)), work


for name, order in (("in a row", in_a_row(RANKS)), ("zigzag", zigzag(RANKS))):
    share, work = waiting(order)
    print(f"{name}: waiting {share:.0f} %; scores of each rank: {', '.join(f'{scores:,}' for scores in work)}")
documents_guess.reveal(waiting(zigzag(RANKS))[0])

# %% [markdown] name="documents_explained"
# Zigzag is fair for **one** causal triangle. The end of the long document stands in the middle of the row, and one rank has it all; here zigzag is worse than no order at all.
#
# So treat each document as a sequence of its own: cut **each** into 2 N pieces, and let it go round the ring alone. Then every document is shared out fairly, and nothing across borders is computed. (Pad each to a multiple of 2 N. Short ones had better stay whole on one rank, and need no ring.)


# %% name="documents_run"
def by_document(tensor):
    return tensor.split(DOCUMENTS, dim=2)


def documents_on_ranks():
    order = zigzag(dist.get_world_size())
    tensors = drawn(sum(DOCUMENTS))
    number = torch.arange(len(DOCUMENTS), device=rank_device()).repeat_interleave(
        torch.tensor(DOCUMENTS, device=rank_device())
    )
    mask = (number[:, None] == number).tril()  # what one process may see

    def masked(q, k, v):
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def each_alone(q, k, v):  # each holds this rank's pieces of all documents, one document after the other
        lengths = [length // dist.get_world_size() for length in DOCUMENTS]
        parts = zip(*(t.split(lengths, dim=2) for t in (q, k, v)), strict=True)
        return torch.cat([Ring.apply(*document, order) for document in parts], dim=2)

    *inputs, gradient = [torch.cat([mine(part, order) for part in by_document(t)], dim=2) for t in tensors]
    alone = through(masked, tensors[:3], tensors[3])
    ringed = through(each_alone, inputs, gradient)
    wanted = [torch.cat([mine(part, order) for part in by_document(t)], dim=2) for t in alone]
    return max(relative(a, b) for a, b in zip(ringed, wanted, strict=True))


far = max(run_ranks(documents_on_ranks, RANKS, device=where, measure=False).results)
print(f"each document in zigzag order, beside one process with a mask: off by {far:.1e}")
claims.record(
    "T38", "documents go round alone and equal a mask", "4 documents, 4 ranks, FP32", far, "relative", 0, 1e-5
)

# %% [markdown] name="ulysses_text"
# ## 7 · The other way: all-to-all
#
# Attention treats each **head** on its own. So exchange: before attention every rank gives away all heads but its own, and gets all tokens for those it keeps. Attention then runs as in one process, with any kernel and any mask; afterwards the exchange is reversed. That is *Ulysses* (Jacobs et al. 2023). `dist.all_to_all_single` sends each rank its slice of a tensor. Its gradient is the exchange in reverse: a slice that came from a rank sends its gradient back to that rank, so `backward` below calls the same function with `split` and `join` swapped.


# %% name="ulysses"
class Exchange(torch.autograd.Function):
    """Cut `split` over the ranks and join `join`: heads (1) for tokens (2), or back."""

    @staticmethod
    def forward(ctx, x, split, join):
        ctx.dims = split, join
        leaving = torch.stack(x.chunk(dist.get_world_size(), dim=split))
        arrived = torch.empty_like(leaving)
        dist.all_to_all_single(arrived, leaving)
        return torch.cat(arrived.unbind(), dim=join)

    @staticmethod
    def backward(ctx, gradient):
        split, join = ctx.dims
        return Exchange.apply(gradient, join, split), None, None


def ulysses(q, k, v):
    """Causal attention of this rank's tokens, in a row; where there are fewer K/V heads than ranks, they are repeated."""
    n = dist.get_world_size()
    k, v = (t.repeat_interleave(max(1, n // t.shape[1]), dim=1) for t in (k, v))
    return Exchange.apply(fused(*(Exchange.apply(t, 1, 2) for t in (q, k, v))), 2, 1)


# %% [markdown] name="ulysses_guess_text"
# What does it send? q, k, v and the result once each, forward and backward. Of each tensor a rank keeps 1/N and sends the rest.
#
# **Predict.** With as many heads for keys as for queries: how many times as much as Ulysses does the ring send, forward and backward, on four ranks? And on two ranks with grouped queries, four query heads for each head of keys?

# %% name="ulysses_guess"
my_guess = None  # bytes of the ring / bytes of Ulysses, 4 ranks, no groups
### BEGIN GUESS
my_guess = 20 / (8 * 3 / 4)  # 6 N - 4 blocks against 8 tensors, of which 3/4 travel
### END GUESS
four_guess = Prediction("Ring / Ulysses, 4 ranks, 8 heads and 8 K/V heads", my_guess, "times")
my_guess = None  # the same, 2 ranks, 8 heads and 2 K/V heads
### BEGIN GUESS
my_guess = 8 / 5  # fewer keys travel in both
### END GUESS
grouped_guess = Prediction("Ring / Ulysses, 2 ranks, 8 heads and 2 K/V heads", my_guess, "times")


# %% name="ulysses_run"
def both_ways(kv_heads):
    """Return, for both ways, the bytes that this rank sends, and how far they are from one process."""
    n, order = dist.get_world_size(), in_a_row(dist.get_world_size())
    *inputs, gradient = drawn(512, heads=8, kv_heads=kv_heads)
    alone, found = through(fused, inputs, gradient), {}
    for name, attention in (("ring", lambda *qkv: Ring.apply(*qkv, order)), ("ulysses", ulysses)):
        with Collectives() as seen:
            got = through(attention, [mine(t, order) for t in inputs], mine(gradient, order))
        far = max(relative(a, mine(b, order)) for a, b in zip(got, alone, strict=True))
        to_others = {"send": 1, "all_to_all": (n - 1) / n}
        found[name] = sum(call.nbytes * to_others.get(call.name, 0) for call in seen.calls), far
    return found


def formula(n, kv_heads, heads=8):
    """Return the bytes of ring and Ulysses; a block of queries is one rank's 512 / n tokens, in FP32."""
    block = heads * 512 // n * 16 * 4
    return {
        "ring": (6 * n - 4) * block * kv_heads / heads,
        "ulysses": 4 * (1 + max(kv_heads, n) / heads) * (n - 1) / n * block,
    }


table = [("ranks", "heads", "K/V heads", "ring", "Ulysses", "ring / Ulysses", "off by")]
sent, ratios = {}, {}
for n, kv_heads in ((2, 8), (4, 8), (2, 2), (4, 2)):
    sent[n, kv_heads] = got = run_ranks(both_ways, n, kv_heads, device=where, measure=False).results[0]
    ratios[n, kv_heads] = got["ring"][0] / got["ulysses"][0]
    shown = (human_bytes(got[way][0]) for way in ("ring", "ulysses"))
    far = max(distance for _, distance in got.values())
    table.append((str(n), "8", str(kv_heads), *shown, f"{ratios[n, kv_heads]:.2f}", f"{far:.0e}"))
four_guess.reveal(ratios[4, 8])
grouped_guess.reveal(ratios[2, 2])
print(text_table(table))

# %% name="ulysses_claims"
for way, name in (("ring", "the ring"), ("ulysses", "Ulysses")):
    errors = [got[way][0] / formula(*case)[way] for case, got in sent.items()]
    worst = max(errors, key=lambda error: abs(error - 1))
    claims.record("T38", f"bytes of {name} by the formula", "4 cases, the worst", worst, "times", 0.98, 1.02)
for (n, kv_heads), ratio in ratios.items():
    subject = f"{n} ranks, 8 heads, {kv_heads} K/V heads: ring / Ulysses"
    claims.record("C18", "all-to-all sends less than the ring", subject, ratio, "times", 1.0, float("inf"))

# %% [markdown] name="ulysses_explained"
# "Ulysses sends less" is right for many ranks: its bytes fall with N, and the ring's do not. But grouped queries help the ring far more: only keys and values travel in it, while Ulysses has to send queries and results, too. On few ranks with few heads of keys, the ring sends less.
#
# Ulysses has a limit that no link can mend: a rank needs at least one head. Tensor parallelism ([[tensor_parallel]]) cuts the same heads, so both together cannot go beyond their number. Ask the planner for 8 × 8 ranks and 32 heads:

# %% name="heads_limit"
for method in ("ring", "all-to-all"):
    try:
        layout = Layout(llama, tensor=8, context=8, context_method=method, seq=131072)
        print(f"{method}: {plan_layout(layout, h100s).worst.nbytes / 2**30:.1f} GiB on each of {layout.ranks} GPUs")
    except RecipeError as error:
        print(f"{method}: {error}")

# %% [markdown] name="heads_limit_text"
# And they can be combined: Ulysses inside a node, where links are fast and heads suffice, and a ring between nodes.
#
# ## 8 · PyTorch's own
#
# `context_parallel(mesh, buffers=..., buffer_seq_dims=...)` is a context in which the buffers are cut in place, and `F.scaled_dot_product_attention` becomes ring attention. It is a prototype (`torch.distributed.tensor.experimental`), and covers CUDA's fused kernels.
#
# **Predict.** Of eight pieces, 0 to 7, which ones does it leave on rank 0 of four? Write down the sum of their numbers.

# %% name="torch_guess"
my_guess = None  # the sum of the numbers of rank 0's pieces
### BEGIN GUESS
my_guess = 0 + 1  # the first two
### END GUESS
torch_guess = Prediction("Sum of the numbers of rank 0's pieces", my_guess, "")


# %% name="torch_run"
def torch_on_ranks():
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    positions = torch.arange(512, device=rank_device())
    q, k, v, gradient = drawn(512, kv_heads=8)
    order = zigzag(dist.get_world_size())
    right = through(fused, (q, k, v), gradient)
    with context_parallel(mesh, buffers=[positions, q, k, v], buffer_seq_dims=[0, 2, 2, 2]):
        kept = (positions // 64).unique().tolist()
        try:
            got = through(
                lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=True), (q, k, v), mine(gradient, order)
            )
            return kept, max(relative(a, mine(b, order)) for a, b in zip(got, right, strict=True))
        except (NotImplementedError, RuntimeError) as error:
            return kept, f"{type(error).__name__}: {str(error)[:120]}"


results = run_ranks(torch_on_ranks, RANKS, device=where, measure=False).results
torch_guess.reveal(sum(results[0][0]))
for rank, (kept, _) in enumerate(results):
    print(f"rank {rank}: pieces {kept}")
said = results[0][1]
print(f"its attention: off by {said:.1e}" if isinstance(said, float) else f"its attention here: {said}")

# %% [markdown] name="torch_explained"
# It cuts in zigzag, as you did: the first and the last piece on rank 0. So whatever else belongs to tokens, labels and positions above all, must be in its list of buffers, or it stays in the old order.
#
# On a CPU its attention raises an error: no rule has been written for the CPU's kernel. On GPUs it either gathers all keys and values at once (its default), or passes them round (`set_rotate_method("alltoall")`). The default breaks the promise of section 4: whole keys and values on each rank.
#
# ## 9 · What this run measured

# %% name="summary"
table = [("4 ranks", "first", "second")]
table += [
    ("kept for the backward pass: one process, ring", human_bytes(peaks[1][1]), human_bytes(peaks[4][1])),
    ("peak of attention: one process, ring", human_bytes(peaks[1][0]), human_bytes(peaks[4][0])),
    ("waiting: in a row, zigzag", f"{in_row.share:.0f} %", f"{zigzagged.share:.0f} %"),
    ("sent: ring, Ulysses (8 K/V heads)", *(human_bytes(sent[4, 8][way][0]) for way in ("ring", "ulysses"))),
    ("sent: ring, Ulysses (2 K/V heads)", *(human_bytes(sent[4, 2][way][0]) for way in ("ring", "ulysses"))),
]
print(text_table(table))
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Everything but attention looks at one token at a time. So cut the sequence, and repair attention.
# - A partial result is a mean and a log-sum-exp; two of them merge into one. In the backward pass the whole row's log-sum-exp makes each block independent.
# - Keys and values go round; their gradients go round with them and end at home. 6 N − 4 blocks a layer, hidden behind arithmetic if the blocks are long enough.
# - What is kept falls to 1/N. The peak is a fixed number of blocks, so it falls from a higher level.
# - Under a causal mask, a row of pieces leaves nearly half of the time unused; zigzag is fair. Documents each need their own zigzag.
# - Labels are made before cutting, positions travel with their tokens, and the loss is divided by the count of all ranks.
# - Ulysses sends less on many ranks, until the heads run out; with grouped queries on few ranks, the ring sends less.
#
# **What to reach for when.** Activations too large: recompute ([[activation_checkpointing]]) first, then context parallel. Up to eight ranks in a node and enough heads: all-to-all. Beyond, or with few heads of keys: a ring in zigzag order. The planner knows both (`python -m helpers plan --context 8 --context-method ring`).
#
# **Sources.** Liu et al. 2023, *Ring Attention with Blockwise Transformers*; Dao et al. 2022, *FlashAttention*; Brandon et al. 2023, *Striped Attention*; Dubey et al. 2024, *The Llama 3 Herd of Models*, section 3.3.2 (pieces dealt out in pairs; it gathers keys and values); Jacobs et al. 2023, *DeepSpeed Ulysses*; PyTorch documentation, `torch.distributed.tensor.experimental.context_parallel`.
