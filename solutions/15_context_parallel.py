# %% [markdown] name="title"
# # Long sequences: context parallelism
#
# **A sequence that does not fit on one GPU can be split across several. Every layer except attention works on the parts independently. Attention needs a ring of messages, and you write it, forward and backward.**
#
# | | |
# |---|---|
# | After this you can | list what grows with the sequence, and predict in which layouts an 8B model with 128k tokens fits; merge partial attention by log-sum-exp; send blocks around a ring of ranks; write ring attention with correct gradients, and derive what its backward pass needs; compute its traffic and measure its memory |
# | Time | 95 to 120 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#where_memory_goes]], [[#fused_kernels]] (the online softmax), [[#data_parallel]] and [[#tensor_parallel]] |
# | Syllabus | T38, C17 |
#
# The second half, [[balance_and_documents]], distributes the work evenly and trains a whole model. The graded exercise X5 follows it.

# %% name="setup" setup=true
from dataclasses import replace

from helpers import (
    Claims,
    Collectives,
    MemoryMeter,
    Prediction,
    RankError,
    check,
    device_name,
    hint,
    human_bytes,
    pick_device,
    ranks_device,
    run_ranks,
    saved_tensor_bytes,
    show,
    show_table,
)
from helpers.core.progress_line import progress_line
from helpers.exercises.context_parallel.attend import attend, attend_backward
from helpers.exercises.context_parallel.attention_trial import AttentionTrial
from helpers.exercises.context_parallel.model import LongModel
from helpers.exercises.context_parallel.pictures import ring_picture
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout

# %% name="setup_torch" setup=true
import torch
import torch.distributed as dist
import torch.nn.functional as F

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)  # all runs of this lab: on GPUs if there is one for each of four ranks
claims = Claims(device=where)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if where.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="grows_text"
# ## 1 · What grows with the sequence
#
# Parameters, gradients and optimizer state do not depend on the sequence length. Activations do. The cell below runs a small decoder (two blocks, 8 heads) with each of two kinds of attention. `plain` saves its scores: one number per head and pair of tokens. Besides the scores, each block saves about 1,300 numbers per token. `fused` is PyTorch's own attention, which recomputes the scores in the backward pass ([[fused_kernels]]).
#
# **Predict.** With plain attention, by what factor do the bytes saved for the backward pass grow if the sequence has 1,024 tokens instead of 256?

# %% name="grows_guess"
my_guess = None  # times
### BEGIN GUESS
my_guess = 12  # the scores by 16, the rest by 4
### END GUESS
plain_guess = Prediction("Saved with plain attention, 1,024 tokens / 256", my_guess, "times")


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
print(f"with fused attention: {fused_growth:.2f} times")
show_table(table)

# %% [markdown] name="grows_explained"
# Scores grow with the square of the sequence length, and all other activations grow linearly. Fused attention removes the quadratic part. This lab is about the linear part.
#
# The planner does this calculation for a real model: Llama 3.1 8B on eight H100s (80 GB) with fused attention. At first, each GPU trains on one sequence of 131,072 tokens, and the parameters are sharded over all eight ([[sharding]]). For the backward pass, each of the model's 32 blocks saves about as many bytes as 17 BF16 tensors of shape (tokens, 4,096). A block that is recomputed ([[activation_checkpointing]]) saves only its input, one such tensor. The vocabulary has 128,256 entries. Parameters, gradients and optimizer state take about 16 bytes per parameter, sharded over the eight GPUs.
#
# The planner tries four layouts:
#
# 1. 8 sequences, one on each GPU;
# 2. the same, with every block recomputed;
# 3. 1 sequence, split over all 8 GPUs;
# 4. the same, with every block recomputed.
#
# **Predict.** In how many of the four layouts does each GPU need less than 80 GB?

# %% name="plan_guess"
my_guess = None  # layouts
### BEGIN GUESS
my_guess = 3  # recomputed, or split over all GPUs
### END GUESS
fits_guess = Prediction("Layouts that fit in 80 GB", my_guess, "of 4", difference=True)

# %% name="plan"
llama, h100s = arch_of("llama-3.1-8b"), find_cluster("dgx-h100")
layouts = {
    "8 sequences, one on each GPU": {"shard": 8},
    "the same, blocks recomputed": {"shard": 8, "recompute": "full"},
    "1 sequence on 8 GPUs": {"context": 8},
    "1 on 8 GPUs, blocks recomputed": {"context": 8, "recompute": "full"},
}
plans = {}
for name, how in layouts.items():
    progress_line(f"planning: {name}")
    plans[name] = plan_layout(Layout(llama, seq=131072, **how), h100s)
tiny = replace(llama, vocab=1024)  # almost no logits
no_logits = plan_layout(Layout(tiny, seq=131072, shard=8, recompute="full"), h100s).worst.nbytes
doubled = plan_layout(Layout(tiny, seq=2 * 131072, shard=8, recompute="full"), h100s).worst.nbytes
progress_line("")
fits_guess.reveal(sum(plan.fits for plan in plans.values()), "planned")
table = [("planned: 8 x H100, 128k tokens", "activations", "total", "fits in 80 GB")]
for name, plan in plans.items():
    sizes = (human_bytes(nbytes) for nbytes in (plan.worst.peak["activations"], plan.worst.nbytes))
    table.append((name, *sizes, "yes" if plan.fits else "no"))
show_table(table)
print(f"blocks recomputed and almost no logits: {human_bytes(no_logits)}; with twice the tokens {human_bytes(doubled)}")

# %% [markdown] name="plan_explained"
# Sharding the parameters does not help here: without recomputation, one sequence is far too large for one GPU. If each block is recomputed, two large parts remain: the blocks' inputs (32 GiB, linear in the length), and the logits and their gradients, each with 131,072 × 128,256 elements. The line under the table shows the same case with almost no logits, which a chunked loss comes close to ([[fused_kernels]]). Then recomputation alone is enough to make the sequence fit. But recomputation costs a second forward pass, and a sequence twice as long still does not fit. The alternative is to split the **sequence**, so that each of N ranks keeps T/N of the T tokens. This is *context parallelism*.
#
# Embedding, norms, projections, MLP and loss work on one token at a time. Attention is the exception. A query needs the keys and values of all earlier tokens, and some of them are on other ranks. A rank can get them in two ways: gather all keys and values before attention, or receive them in blocks, one at a time. This lab builds the second method. [[Balance_and_documents]] compares it with the first.
#
# ## 2 · Merging partial attention
#
# In [[fused_kernels]] you kept three running results per row of scores (the maximum, the sum of the exponentials and the weighted sum), and updated them tile by tile. The same idea has a simpler form. Attention of one query (a row of scores) over **some** of the keys (columns) gives
#
# - `out`, the mean of those columns' values, weighted by the softmax of the row's scores;
# - `lse`, the logarithm of the sum of the exponentials of these scores (*log-sum-exp*).
#
# Two such results, over different columns, can be merged into the result over all of them. The function `attend(q, k, v, causal)`, which is given, returns both. (Real kernels do, too: FlashAttention and PyTorch's `_scaled_dot_product_flash_attention` return the log-sum-exp as a second output.)

# %% name="attend"
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))  # (batch, heads, tokens, channels of a head)
left, right = attend(q, k[:, :, :2], v[:, :, :2], causal=False), attend(q, k[:, :, 2:], v[:, :, 2:], causal=False)
print("out:", tuple(left[0].shape), " lse:", tuple(left[1].shape))
whole = attend(q, k, v, causal=False)
print(f"the mean of both halves is off by {((left[0] + right[0]) / 2 - whole[0]).abs().max():.2f}")
print(f"the sum of the exponentials is off by {(left[1].exp() + right[1].exp() - whole[1].exp()).abs().max():.0e}")

# %% [markdown] name="merge_task"
# The mean of the two outputs is wrong, because the halves have different weights. The weight of each half is its sum of exponentials, and `lse` is the logarithm of that sum.
#
# ### Your turn: merge
#
# **Contract.** `merge(one, other)` takes two results `(out, lse)` for the same rows and different columns, and returns `(out, lse)` for all these columns.
#
# - `out` is (..., R, d) and `lse` is (..., R), in FP32 or FP64. The result has the same shapes and dtype.
# - `lse` may lie anywhere between −10,000 and 10,000, and differ from row to row. Such values cause no overflow and no NaN.
# - An `lse` of -inf means that the row attended to no column; its `out` is then 0. For such a row, return the other result. If a row attended to no column in either result, return 0 and -inf for it.
# - The inputs are not changed.


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
# ## 3 · Around the ring
#
# Each rank keeps its queries. Keys and values travel: in each step a rank sends the block that it holds to the next rank, and receives one from the previous rank. After N − 1 messages every rank has seen every block, and no rank has held more than a few blocks at a time.

# %% name="ring_figure"
show(
    ring_picture(RANKS),
    "Four ranks in rows, four steps in columns. In step 0 rank r has block r. An arrow points from each rank to the "
    "next. In step 1 rank 1 has block 0, rank 0 has block 3, and so on, until each rank has had all four blocks.",
)

# %% [markdown] name="shift_text"
# The obvious code calls `dist.send` to the next rank, and then `dist.recv` from the previous one. The next cell runs it on four ranks at the same time.
#
# **Predict.** How many of the four ranks receive a block?

# %% name="shift_guess"
my_guess = None  # ranks
### BEGIN GUESS
my_guess = 4
### END GUESS
received_guess = Prediction("Ranks that have received their block", my_guess, "of 4", difference=True)


# %% name="shift_naive"
def all_send_first():
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = torch.full((1000,), float(rank))
    arrived = torch.empty_like(mine)
    dist.send(mine, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    return bool((arrived == (rank - 1) % n).all())


received = 0
try:
    received = sum(run_ranks(all_send_first, RANKS, device="cpu", timeout=5, measure=False, show=False).results)
except RankError as error:
    print(str(error).splitlines()[0])
    print("\n".join(line for line in str(error).splitlines() if line.startswith("rank ")))
received_guess.reveal(received, how="counted")

# %% [markdown] name="shift_task"
# Over gloo, `send` returns only when the other side receives the message. No rank reaches its `recv`, so all ranks wait for each other in a circle: a deadlock. (Over NCCL, not run here, the call returns at once if the ranks are connected, but the GPUs' streams can deadlock in the same way. Small messages fit into NCCL's buffers, so the code works until the blocks grow.)
#
# So start both messages at once. `dist.batch_isend_irecv` takes a list of `dist.P2POp(dist.isend, tensor, to)` and `dist.P2POp(dist.irecv, tensor, from)`, starts all of them, and returns a list of requests before any data arrives. `request.wait()` waits for one message. Until then, the rank can compute with the block that it already has.
#
# ### Your turn: shift
#
# **Contract.** `shift(*tensors)` is called on every rank (two or more) and returns `(arriving, finish)`.
#
# - It sends each tensor to the next rank and receives the tensors of the previous rank. The last rank sends to rank 0. Nothing else is sent.
# - The call starts all messages and does not wait for other ranks. `finish()`, which takes no arguments, waits until the messages have arrived.
# - `arriving` is a list of new tensors. After `finish()` they hold the values that the previous rank passed to its `shift`, in the same order, with the same shapes and dtypes.
# - `tensors` may have different shapes and dtypes, need not be contiguous, and are not changed. Several shifts may be in flight at a time. They are finished in the order in which they were started.


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
        leaving.clear()  # the buffers had to stay alive until now

    return arriving, finish
    ### END SOLUTION


# %% name="shift_check"
shift = check("context_parallel.shift", shift)

# %% name="shift_hint"
hint("context_parallel.shift")

# %% [markdown] name="forward_task"
# ## 4 · Ring attention
#
# Each rank needs to know which part of the sequence every other rank holds. Split the sequence into **chunks** of equal length, numbered from 0. `order[r]` lists the chunks of rank r in the order in which its tensors hold them. In this lab's runs each rank has one chunk, `[[0], [1], [2], [3]]`. Write the ring for any number of chunks, because [[balance_and_documents]] gives each rank two.
#
# With a causal mask, rows of chunk i attend to all columns of chunk j if j < i, to those up to the diagonal if j = i, and to none if j > i.
#
# ### Your turn: forward
#
# **Contract.** `ring_forward(q, k, v, order)` is called on every rank (two or more) and returns `(out, lse)` of causal attention for this rank's rows.
#
# - `q` (B, H, S, d), `k` and `v` (B, K, S, d) hold this rank's chunks one after the other. K divides H (grouped-query attention, GQA), and `attend` handles that. `out` (B, H, S, d) and `lse` (B, H, S) cover all columns that a row may attend to, whichever rank holds them.
# - Every rank has the same number of chunks, one or more. `order` may distribute the chunks in any way, and is the same on every rank.
# - Compute all scores with `attend`, and each of them only once. Compute nothing for chunks that a row may not attend to.
# - Each rank sends its own keys and values and passes on those that it receives, point to point. In total it sends N − 1 blocks of each. It sends no queries and calls no collective.
# - The keys and values for the next step are on their way before this step's block is computed, so that they travel during the computation.
# - The number of blocks that a rank holds at a time does not grow with the number of ranks.
# - The inputs, including `order`, are not changed.


# %% name="forward" answer=true reveal=true
def ring_forward(q, k, v, order):
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = q.chunk(len(order[rank]), dim=2)
    found = [(torch.zeros_like(row), torch.full_like(row[..., 0], float("-inf"))) for row in rows]
    visiting = k, v
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(*visiting)  # travels while this block is computed
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
# The backward pass needs no merging, but it needs two results for each row: `lse` and `out`. Write p = exp(s − lse) for the softmax weight of a score s, with the `lse` of the whole row. Given this `lse`, any rank can compute p for its own pairs. Let g be the gradient of the row's output. The gradient of a weight is dp = g · v. The softmax couples the weights of a row, so the gradient of a score is
#
# ds = p (dp − δ),  δ = Σ p dp, summed over **all** columns of the row.
#
# This sum seems to need all blocks, but it does not: Σ p (g · v) = g · Σ p v = g · `out`. So **δ = g · out**, one number per row (rowsum(dO ∘ O) in the FlashAttention papers), provided that `out` is the output over the whole row. With `lse` and `out` of whole rows, each pair of chunks contributes to three gradients independently of the other pairs. `attend_backward(gradient, (q, k, v), (out, lse), causal)` returns these contributions: dq, dk and dv. The cell below shows what happens if a rank uses the `out` of its own block instead.

# %% name="delta"
torch.manual_seed(0)
q, k, v, g = (torch.randn(1, 2, 6, 4) for _ in range(4))
halves = [(k[:, :, :2], v[:, :, :2]), (k[:, :, 2:], v[:, :, 2:])]
parts = [attend(q, *half, causal=False) for half in halves]
whole = attend(q, k, v, causal=False)
right = attend_backward(g, (q, k, v), whole, causal=False)[0]
for name, outs in (("whole out", [whole[0]] * 2), ("each half's own out", [out for out, _ in parts])):
    dq = sum(
        attend_backward(g, (q, *half), (out, whole[1]), causal=False)[0] for half, out in zip(halves, outs, strict=True)
    )
    print(f"{name:20} and whole lse: dq off by {(dq - right).norm() / right.norm():.0e}")

# %% [markdown] name="backward_contract"
# dq belongs to the rows, so it stays on their rank. dk and dv belong to the rank that owns the block, so let their sums follow the block around the ring: each rank adds its contribution and sends the sums on. After N shifts they are home.
#
# ### Your turn: backward
#
# **Contract.** `ring_backward(gradient, inputs, results, order)` is called on every rank (two or more) and returns this rank's `(dq, dk, dv)`.
#
# - `inputs` is `(q, k, v)`, which `ring_forward` took, and `results` is `(out, lse)`, which it returned. `gradient` has the shape of `out`. All gradients equal those of one process.
# - Compute all of them with `attend_backward`, called once for each pair of chunks. Do not compute masked pairs, and do not repeat any part of the forward pass.
# - Each rank sends, point to point, at most N − 1 blocks of keys and of values, and at most N blocks of each of their gradients.
# - The keys and values for the next step are on their way before this step's block is computed.
# - The number of blocks that a rank holds at a time does not grow with the number of ranks. The inputs, including `order`, are not changed.


# %% name="backward" answer=true reveal=true
def ring_backward(gradient, inputs, results, order):
    ### BEGIN SOLUTION
    (q, k, v), rank, n = inputs, dist.get_rank(), dist.get_world_size()
    dq, visiting, coming, land = torch.zeros_like(q), [k, v], None, None
    mine = list(zip(*(t.chunk(len(order[rank]), dim=2) for t in (gradient, q, *results, dq)), strict=True))
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(*visiting)  # keys and values travel while this block is computed
        held, sums = order[(rank - step) % n], [torch.zeros_like(k), torch.zeros_like(v)]
        columns = list(zip(*(t.chunk(len(held), dim=2) for t in (*visiting, *sums)), strict=True))
        for row, (g, q_chunk, out, lse, dq_chunk) in zip(order[rank], mine, strict=True):
            for column, (k_chunk, v_chunk, *theirs) in zip(held, columns, strict=True):
                if column <= row:
                    parts = attend_backward(g, (q_chunk, k_chunk, v_chunk), (out, lse), causal=column == row)
                    for total, part in zip((dq_chunk, *theirs), parts, strict=True):
                        total += part  # a view: it lands in the whole tensor
        if land:
            land()  # the sums of the earlier ranks, which traveled during this block
            for total, earlier in zip(sums, coming, strict=True):
                total += earlier
        coming, land = shift(*sums)  # travels during the next block; from the last one, home
        if step < n - 1:
            finish()
            visiting = arriving
    land()
    return dq, *coming
    ### END SOLUTION


# %% name="backward_check"
ring_backward = check("context_parallel.backward", ring_backward)

# %% name="backward_hint"
hint("context_parallel.backward")

# %% [markdown] name="ring_function_text"
# The next cells put your two functions into an autograd function and compare it with one process: output and all three gradients, in FP32, on 2 and 4 ranks. `AttentionTrial` draws the same q, k, v and output gradient on every rank. `trial.mine(order)` returns a rank's chunks of the four, and `trial.distances` compares a rank's results with the same chunks of one process's results.


# %% name="ring_function"
class Ring(torch.autograd.Function):
    """Causal attention over all ranks; each has its chunks of q, k and v."""

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


def contiguous_order(ranks):
    return [[rank] for rank in range(ranks)]


# %% name="ring_compared"
def ring_of(order):
    return lambda q, k, v: Ring.apply(q, k, v, order)


def ring_on_ranks(order):
    trial = AttentionTrial(512)
    return trial.distances(trial.through(ring_of(order), *trial.mine(order)), order)


table = [("ring, contiguous", "output", "dq", "dk", "dv")]
for n in (2, 4):
    results = run_ranks(ring_on_ranks, n, contiguous_order(n), device=where, measure=False).results
    worst = [max(far) for far in zip(*results, strict=True)]
    table.append((f"{n} ranks, off by at most", *(f"{far:.1e}" for far in worst)))
    claims.record("T38", "ring attention equals one process", f"{n} ranks, FP32", max(worst), "relative", 0, 1e-5)
show_table(table)

# %% [markdown] name="traffic_guess_text"
# ### What a rank sends
#
# The next cell counts the bytes that a rank sends, in units of one block of keys (B × K × T/N × d numbers).


# %% name="traffic"
def ring_traffic(order):
    *inputs, gradient = AttentionTrial(512).mine(order)
    with Collectives() as forward:
        out = Ring.apply(*(t.requires_grad_() for t in inputs), order)
    with Collectives() as backward:
        out.backward(gradient)
    unit = inputs[1].nbytes
    return [
        sum(call.nbytes for call in calls if call.name == "send") / unit for calls in (forward.calls, backward.calls)
    ]


ways = run_ranks(ring_traffic, RANKS, contiguous_order(RANKS), device=where, measure=False).results[0]
print(f"each of {RANKS} ranks sends {ways[0]:g} blocks forward and {ways[1]:g} backward")
formula = 2 * (RANKS - 1) + 2 * (RANKS - 1) + 2 * RANKS
said, subject = "a ring sends 6 N - 4 blocks of keys", "4 ranks, FP32, measured / formula"
claims.record("T38", said, subject, sum(ways) / formula, "times", 0.98, 1.02)

# %% [markdown] name="memory_guess_text"
# For N ranks that is **6 N − 4** blocks: 2 (N − 1) forward, and 2 (N − 1) + 2 N backward. A block is 1/N of the keys, so a rank sends 6 − 4/N times the bytes of the sequence's keys. With many ranks this hardly depends on N: it is close to six times the keys, or three times the keys and values.
#
# In BF16 training a rank sends more. The gradients are sums over many blocks, so PyTorch accumulates and sends dK and dV in FP32, at twice the bytes of a BF16 block. (Transformer Engine, which Megatron uses, sends them in the dtype of K and V, unless attention runs in FP8: `AttnFuncWithCPAndKVP2P` in its `context_parallel.py`.) Counted in BF16 blocks, PyTorch's ring sends 4 (N − 1) + 2 · 2 N = **8 N − 4**, or, with many ranks, close to four times the sequence's keys and values.
#
# ### What a rank holds
#
# Now the sequence stays the same, and more ranks share it. The next cells measure two figures for attention alone: the bytes that a rank **saves** for the backward pass, and its **peak** over both passes, inputs included. For comparison, one process runs `attend` and `attend_backward` once on the whole sequence. It peaks at 13 tensors of the size of its keys: q, k, v and their three gradients, the output and its gradient, and five temporary tensors inside `attend_backward`. On a rank, `attend_backward` has the same tensors, but each is as large as one block.
#
# **Predict.** With four ranks, what is the peak of one rank, as a fraction of the single process's peak? (Count the blocks that `ring_backward` holds at its busiest moment; one block is a quarter of the keys.)

# %% name="memory_guess"
my_guess = None  # peak of one rank (of four) / peak of one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
memory_guess = Prediction("Peak of one rank (of four) / one process", my_guess, "times")


# %% name="memory"
def alone(q, k, v, gradient):
    results = attend(q, k, v, causal=True)
    return attend_backward(gradient, (q, k, v), results, causal=True)


def ringed(q, k, v, gradient, order):
    results = ring_forward(q, k, v, order)
    return ring_backward(gradient, (q, k, v), results, order)


def attention_peak(order):
    """Return the peak of attention, what it keeps between both passes, and the size of a block of keys."""
    parts = AttentionTrial(2048, heads=4, width=64).mine(order)
    attention = fused if len(order) == 1 else ring_of(order)
    leaves = [t.clone().requires_grad_() for t in parts[:3]]
    kept = saved_tensor_bytes(lambda: attention(*leaves))
    with MemoryMeter(device=parts[0].device) as profile:
        results = alone(*parts) if len(order) == 1 else ringed(*parts, order)
    del results
    return profile.peak_bytes, kept, parts[1].nbytes


# %% name="memory_run"
peaks = {
    n: max(run_ranks(attention_peak, n, contiguous_order(n), device=where, measure=False).results) for n in (1, 2, 4)
}
memory_guess.reveal(peaks[4][0] / peaks[1][0])
table = [("ranks", "saved for the backward pass", "peak of each rank", "in blocks of its keys")]
for n, (peak, kept_bytes, unit) in peaks.items():
    table.append((str(n), human_bytes(kept_bytes), human_bytes(peak), f"{peak / unit:.1f}"))
show_table(table)
print(f"(all scores of the whole sequence would take {human_bytes(4 * 2048**2 * 4)})")
for what, i in (("saved for the backward pass", 1), ("peak of both passes", 0)):
    share = peaks[4][i] / peaks[1][i]
    said = "ring attention needs 1/N of the memory per rank"
    claims.record("C17", said, f"{what}, 4 ranks", share, "of one process", 0.2, 0.27)
claims.figure("peak with twice as many ranks", "4 ranks, compared with 2", peaks[4][0] / peaks[2][0], "times")
claims.not_measured("C17", "its messages hide behind arithmetic", "needs GPUs and the link between them")

# %% [markdown] name="memory_explained"
# The bytes that the forward pass saves for the backward pass fall to 1/N, as claimed. They hold q, k, v, out and lse for this rank's tokens.
#
# The peak does not fall to 1/N. Ring attention works with a fixed number of blocks: the current keys and values, their gradients, the blocks that are arriving, and the temporary tensors of the computation. One process has fewer tensors, but they cover the whole sequence. So with two ranks, the peak hardly falls. From two to four ranks it falls by nearly half; the last column shows how many more blocks a rank holds with four. "1/N" hides a constant. The contract asks only that this constant stop growing with N. The peak is that of **your** functions, so it may be larger or smaller than the course's. Which of its tensors need not be alive at the same time?
#
# Testing whether the messages hide behind arithmetic takes GPUs. [[Balance_and_documents]] computes how long a sequence must be for that.
#
# ## 5 · What this run measured

# %% name="summary"
table = [("attention of 2,048 tokens", "one process", "each of 4 ranks")]
table += [
    ("saved for the backward pass", human_bytes(peaks[1][1]), human_bytes(peaks[4][1])),
    ("peak of both passes", human_bytes(peaks[1][0]), human_bytes(peaks[4][0])),
]
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Every layer except attention works on one token at a time. So split the sequence, and handle attention separately.
# - A partial result is a mean and a log-sum-exp, and two of them merge into one. In the backward pass, the log-sum-exp and the output of the whole row (through δ = g · out) make each block independent.
# - Keys and values travel around the ring, and their gradients travel with them, back to the rank that owns them: 6 N − 4 blocks per layer in one dtype, 8 N − 4 BF16 blocks with FP32 gradients. Start each message before the block is computed.
# - The saved bytes fall to 1/N. The peak is a nearly fixed number of blocks, so it falls with N as well, but stays well above 1/N of one process's.
#
# **What to reach for when.** If activations are too large, recompute first ([[activation_checkpointing]]), then split the sequence. [[Balance_and_documents]] shows which rank should get which tokens, what changes in training, and when a method other than the ring is better.
#
# **Sources.** Liu et al. 2023, *Ring Attention with Blockwise Transformers*; Dao et al. 2022, *FlashAttention*; Ainslie et al. 2023, *GQA*; PyTorch documentation, `torch.distributed.tensor.experimental.context_parallel`.
