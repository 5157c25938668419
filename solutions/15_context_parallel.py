# %% [markdown] name="title"
# # Long sequences: context parallelism
#
# **A sequence that does not fit on one GPU can be split across several. Every layer except attention works on the parts independently. Attention needs a ring of messages, and you write it, forward and backward.**
#
# | | |
# |---|---|
# | After this you can | list what grows with the sequence, and plan 128k tokens for an 8B model; merge partial attention by log-sum-exp; write ring attention with correct gradients, and derive what its backward pass needs; compute its traffic and measure its memory; fix the imbalance of causal masks; keep positions, labels and documents correct across shards; choose between ring, all-gather and all-to-all |
# | Time | 150 to 210 minutes; a good place to stop is after section 4 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#where_memory_goes]], [[#fused_kernels]] (the online softmax), [[#data_parallel]] and [[#tensor_parallel]] |
# | Syllabus | T38, C17, C18 |

# %% name="setup" setup=true
from dataclasses import replace
from functools import partial

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
    show_table,
)
from helpers.core.progress_line import progress_line
from helpers.exercises.context_parallel.attend import attend, attend_backward
from helpers.exercises.context_parallel.attention_trial import AttentionTrial
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
# Parameters, gradients and optimizer state do not depend on the sequence length. Activations do. The cell below runs a small decoder with two kinds of attention. `plain` saves its scores: one number per head and pair of tokens. `fused` is PyTorch's own attention, which recomputes the scores in the backward pass ([[fused_kernels]]).
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
# The planner does this calculation for a real model: Llama 3.1 8B on eight H100s (80 GB) with fused attention. At first, each GPU trains on one sequence of 131,072 tokens, and the parameters are sharded over all eight ([[sharding]]). For the backward pass, each of the model's 32 blocks saves as many bytes as about 17 BF16 tensors of shape (tokens, 4,096).

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
tiny = replace(llama, vocab=1024)  # almost no logits
no_logits = plan_layout(Layout(tiny, seq=131072, shard=8, recompute="full"), h100s).worst.nbytes
doubled = plan_layout(Layout(tiny, seq=2 * 131072, shard=8, recompute="full"), h100s).worst.nbytes
progress_line("")
table = [("planned: 8 x H100, 128k tokens", "activations", "total", "fits in 80 GB")]
for name, plan in plans.items():
    sizes = (human_bytes(nbytes) for nbytes in (plan.worst.peak["activations"], plan.worst.nbytes))
    table.append((name, *sizes, "yes" if plan.fits else "no"))
show_table(table)
print(f"blocks recomputed and almost no logits: {human_bytes(no_logits)}; with twice the tokens {human_bytes(doubled)}")

# %% [markdown] name="plan_explained"
# Sharding the parameters does not help here: without recomputation, one sequence is far too large for one GPU. If each block is recomputed ([[activation_checkpointing]]), two large parts remain: the blocks' inputs (32 GiB, linear in the length), and the logits and their gradients, each with 131,072 × 128,256 elements. The line under the table shows the same case with almost no logits, which a chunked loss comes close to ([[fused_kernels]]). Then recomputation alone is enough to make the sequence fit. But recomputation costs a second forward pass, and a sequence twice as long still does not fit. The alternative is to split the **sequence**, so that each of N ranks keeps T/N of the T tokens. This is *context parallelism*.
#
# Embedding, norms, projections, MLP and loss work on one token at a time. Attention is the exception. A query needs the keys and values of all earlier tokens, and some of them are on other ranks. A rank can get them in two ways: gather all keys and values before attention, or receive them in blocks, one at a time. This lab builds the second method and compares it with the first in section 7.
#
# ## 2 · Merging partial attention
#
# In [[fused_kernels]] you kept three running results per row of scores (the maximum, the sum of the exponentials and the weighted sum), and updated them tile by tile. The same idea has a simpler form. Attention of a row over **some** of the columns gives
#
# - `out`, the mean of their values, weighted by the softmax of their scores;
# - `lse`, the logarithm of the sum of the exponentials of their scores (*log-sum-exp*).
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
# - An `lse` of -inf means that the row attended to no column. For such a row, the other result is the answer. If the row attended to no column in either result, `out` is 0 and `lse` is -inf.
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
# The obvious code calls `dist.send` to the next rank, and then `dist.recv` from the previous one. All ranks run it at the same time. The next cell gives them five seconds.
#
# **Predict.** How many of the four ranks have received a block by then?

# %% name="shift_guess"
my_guess = None  # ranks
### BEGIN GUESS
my_guess = 4
### END GUESS
received_guess = Prediction("Ranks that have received their block", my_guess, "of 4")


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
# Over gloo, `send` returns only when the other side receives the message. No rank reaches its `recv`, so all ranks wait for each other in a circle: a deadlock. Over NCCL the call returns at once, but the GPUs' streams can deadlock in the same way. Small messages fit into NCCL's buffers and get through, so the code works until the blocks grow.
#
# So start both messages at once. `dist.batch_isend_irecv` takes a list of `dist.P2POp(dist.isend, tensor, to)` and `dist.P2POp(dist.irecv, tensor, from)`, starts all of them, and returns a list of requests before any data arrives. `request.wait()` waits for one message. Until then, the rank can compute with the block that it already has.
#
# ### Your turn: shift
#
# **Contract.** `shift(*tensors)` is called on every rank (two or more) and returns `(arriving, finish)`.
#
# - It sends each tensor to the next rank and receives the tensors of the previous rank. The last rank sends to rank 0. Nothing else is sent.
# - The call starts all messages and does not wait for other ranks. `finish()`, which takes no arguments, waits until the messages have arrived.
# - After `finish()`, `arriving` is a list of new tensors with the values that the previous rank passed to its `shift`, in the same order, with the same shapes and dtypes.
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
# Each rank needs to know which part of the sequence every other rank holds. Split the sequence into **chunks** of equal length, numbered from 0. `order[r]` lists the chunks of rank r in the order in which its tensors hold them. For now each rank has one chunk: `[[0], [1], [2], [3]]`. In section 5 each has two.
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
# dq belongs to the rows, so it stays on their rank. dk and dv belong to the rank that owns the block, so every other rank has to send its contribution there.
#
# ### Your turn: backward
#
# **Contract.** `ring_backward(gradient, inputs, results, order)` is called on every rank (two or more) and returns this rank's `(dq, dk, dv)`.
#
# - `inputs` is `(q, k, v)`, which `ring_forward` took, and `results` is `(out, lse)`, which it returned. `gradient` has the shape of `out`. All gradients equal those of one process.
# - Compute all of them with `attend_backward`, called once for each pair of chunks. Compute no masked pairs, and repeat nothing from the forward pass.
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
print(f"a rank of {RANKS} sends {ways[0]:g} blocks forward and {ways[1]:g} backward")
formula = 2 * (RANKS - 1) + 2 * (RANKS - 1) + 2 * RANKS
said, subject = "a ring sends 6 N - 4 blocks of keys", "4 ranks, FP32, measured / formula"
claims.record("T38", said, subject, sum(ways) / formula, "times", 0.98, 1.02)

# %% [markdown] name="memory_guess_text"
# For N ranks that is **6 N − 4** blocks: 2 (N − 1) forward, and 2 (N − 1) + 2 N backward. A block is 1/N of the keys, so a rank sends 6 − 4/N times the bytes of the sequence's keys. With many ranks this hardly depends on N: it is close to six times the keys, or three times the keys and values.
#
# In BF16 training a rank sends more. The gradients are sums over many blocks, so PyTorch accumulates and sends dK and dV in FP32, at twice the bytes of a BF16 block. (Transformer Engine, which Megatron uses, sends them in the dtype of K and V.) Counted in BF16 blocks, PyTorch's ring sends 4 (N − 1) + 2 · 2 N = **8 N − 4**, or, with many ranks, close to four times the sequence's keys and values.
#
# ### What a rank holds
#
# Now the sequence stays the same, and more ranks share it. The next cells measure two figures for attention alone: the bytes that a rank **saves** for the backward pass, and its **peak** over both passes, inputs included. For comparison, one process runs `attend` and `attend_backward` once on the whole sequence.
#
# **Predict.** With four ranks, what is the peak of one rank, as a fraction of the single process's peak? (Count the blocks that your two functions hold at their busiest moment.)

# %% name="memory_guess"
my_guess = None  # peak of a rank of 4 / peak of one process
### BEGIN GUESS
my_guess = 0.25
### END GUESS
memory_guess = Prediction("Peak of a rank, 4 ranks / one process", my_guess, "times")


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
table = [("ranks", "saved for the backward pass", "peak of a rank", "in blocks of its keys")]
for n, (peak, kept_bytes, unit) in peaks.items():
    table.append((str(n), human_bytes(kept_bytes), human_bytes(peak), f"{peak / unit:.1f}"))
show_table(table)
print(f"(all scores of the whole sequence would take {human_bytes(4 * 2048**2 * 4)})")
for what, i in (("saved for the backward pass", 1), ("peak of both passes", 0)):
    share = peaks[4][i] / peaks[1][i]
    said = "ring attention needs 1/N of the memory per rank"
    claims.record("C17", said, f"{what}, 4 ranks", share, "of one process", 0.2, 0.27)
claims.figure("peak from N to 2 N ranks", "2 to 4 ranks", peaks[4][0] / peaks[2][0], "times")
claims.not_measured("C17", "its messages hide behind arithmetic", "needs GPUs and the link between them")

# %% [markdown] name="memory_explained"
# The bytes that the forward pass saves for the backward pass fall to 1/N, as claimed. They are q, k, v, out and lse of this rank's tokens.
#
# The peak does not fall to 1/N. Ring attention works with a fixed number of blocks: the current keys and values, their gradients, the blocks that are arriving, and the temporary tensors of the computation. One process has fewer tensors, but they cover the whole sequence. So with two ranks, the peak hardly falls. From two to four ranks the peak comes closer to half, and the last column shows why it is not quite half. "1/N" hides a constant. The contract asks only that this constant not depend on N, so yours may be larger or smaller than the course's. The claim about the peak is judged on **your** functions. If it did not hold in your run, which of the tensors that are alive at the same time could share a buffer?
#
# ### When is the traffic hidden?
#
# While a rank computes with one block, the next one travels. With c tokens per rank, the computation grows with c² and the message with c, so above some c the message arrives in time. The next cell evaluates this **formula** for the forward pass of Llama 3.1 8B (H = 32 query heads, K = 8 key and value heads) on H100s at their BF16 peak (989 TFLOP/s), with half of each block masked: 2 c² H d FLOPs against 4 c K d bytes. It is an estimate for hardware that this lab does not have.

# %% name="hide"
grouped = llama.kv_heads / llama.heads
for link, bandwidth in (("NVLink, in a node", h100s.inside), ("network, between nodes", h100s.outside)):
    tokens = 2 * grouped * h100s.gpu.flops16 / bandwidth
    print(f"{link:23}: from {tokens:,.0f} tokens on each GPU; with 8 GPUs, sequences of {8 * tokens:,.0f}")

# %% [markdown] name="hide_explained"
# Kernels that reach half of the peak halve these figures. In the backward pass a block takes 2.5 times the FLOPs, and keys, values and their FP32 gradients travel, which together have three times the bytes of the forward pass. So the backward pass needs slightly more tokens to hide its messages, if both rotations overlap with computation, as in the solution and in PyTorch's own ring. Grouped queries (GQA) help: fewer key and value heads travel.
#
# ## 5 · Load balance
#
# The tokens are distributed evenly. Is the work distributed evenly, too?
#
# Four ranks have one chunk each, in sequence order, under a causal mask. The step ends when the last rank has finished. As in [[pipeline]], a clock makes waiting visible. Each block *takes* time in proportion to the number of its scores, however busy the cores of this machine are. The messages are real, and short compared with that time.


# %% name="row_clocked"
def one_step(order):
    trial = AttentionTrial(256, heads=2, kv_heads=2)
    trial.through(ring_of(order), *trial.mine(order))


in_sequence = clock_rings(one_step, RANKS, {"contiguous": contiguous_order(RANKS)})["contiguous"]
print(in_sequence)
show(
    scores_picture(contiguous_order(RANKS), "Contiguous"),
    "Scores in four chunks of rows and columns, below the diagonal, colored by the rank of the row: half a square for "
    "rank 0, one and a half for rank 1, two and a half for rank 2, three and a half for rank 3.",
)
show(
    timeline_picture(in_sequence, "Contiguous"),
    "Four rows of bars: a short forward and a short backward bar for rank 0, more for each further rank. Only the last "
    "row is full.",
)

# %% [markdown] name="cut_task"
# Rank 0 has the least work, the last rank has the most, and all ranks wait for the last. With more ranks, the waiting time approaches half of the step.
#
# The fix needs no extra messages. Split the sequence into 2 N chunks, and give each rank **two** of them, chosen so that all ranks compute the same number of scores. Your ring supports that already: `order` takes any number of chunks.
#
# The tokens of a rank are then no longer contiguous, and two things must follow them: the **labels** (the next token of the whole sequence, not of the chunk), and the **positions**, by which rotary position embedding (RoPE) rotates queries and keys.
#
# ### Your turn: another order, and its tokens
#
# **Contract.** Write two functions. Neither of them communicates.
#
# - `zigzag(ranks)` returns an `order`: for each rank, a list of two of the chunks 0 to 2 · `ranks` − 1, in ascending order. Each chunk is on one rank, and under a causal mask all ranks compute the same number of scores.
# - `cut(tokens, order, rank)` returns the training data of `rank`, `(ids, labels, positions)`. `tokens` (B, T + 1) holds whole sequences, whose first T tokens are inputs. T is a multiple of the number of chunks. Neither `tokens` nor `order` is changed.
#   - `ids` (B, T/N) are the inputs of this rank's chunks, one after the other, for any `order` with the same number of chunks on every rank.
#   - `labels` (B, T/N) hold for each of them the token that follows it in the sequence.
#   - `positions` (T/N,) are their positions in the sequence, from 0, in int64, on the device of `tokens`.


# %% name="cut" answer=true reveal=true
def zigzag(ranks):
    ### BEGIN SOLUTION
    return [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]  # a cheap one and an expensive one
    ### END SOLUTION


def cut(tokens, order, rank):
    ### BEGIN SOLUTION
    chunks = torch.arange(tokens.shape[1] - 1, device=tokens.device).chunk(sum(map(len, order)))
    positions = torch.cat([chunks[number] for number in order[rank]])
    return tokens[:, positions], tokens[:, positions + 1], positions
    ### END SOLUTION


# %% name="cut_check"
zigzag, cut = check("context_parallel.cut", zigzag, cut)

# %% name="cut_hint"
hint("context_parallel.cut")

# %% [markdown] name="zigzag_guess_text"
# The same step, with two chunks per rank:

# %% name="zigzag_clocked"
zigzagged = clock_rings(one_step, RANKS, {"zigzag": zigzag(RANKS)})["zigzag"]
print(f"the step is shorter by a factor of {max(in_sequence.work) / max(zigzagged.work):.2f}, counted in scores")
print(zigzagged)
show(
    timeline_picture(zigzagged, "Zigzag"), "Four full rows of bars: all ranks work all the time, forward and backward."
)
for name, run, ideal in (("contiguous", in_sequence, 100 * (1 - 2 / 3.5)), ("zigzag", zigzagged, 0)):
    said = f"{name}: {ideal:.0f} % of the step is waiting"
    claims.record("T38", said, "4 ranks, counted", run.counted, "% idle", ideal - 0.5, ideal + 0.5)
    if run.busy:
        claims.not_measured("T38", said, "4 ranks, by the clock; this machine was too busy")
    else:
        claims.record("T38", said, "4 ranks, by the clock", run.idle, "% idle", ideal - 5, ideal + 10)

# %% [markdown] name="orders_play_text"
# Explore: which orders are fair, and for how many ranks? *Striped* deals chunks out one at a time, four to each rank.


# %% name="orders_play"
def orders_drawn(order, ranks):
    orders = {"contiguous": contiguous_order(ranks), "zigzag": zigzag(ranks)}
    orders["striped"] = [list(range(rank, 4 * ranks, ranks)) for rank in range(ranks)]
    return scores_picture(orders[order], order)


explore(
    orders_drawn,
    "Scores below the diagonal, in chunks, colored by the rank that computes them, with each rank's work.",
    order=("zigzag", ("contiguous", "zigzag", "striped")),
    ranks=(4, (2, 3, 4, 6, 8)),
)

# %% [markdown] name="model_text"
# ## 6 · A whole model
#
# Now train a decoder of two blocks, with rotary positions, on a sequence that no rank holds completely. Each rank has all parameters and its own tokens, so the gradients of the parameters are summed over the ranks. (In [[data_parallel]] you averaged them, because each rank's loss was a mean over its own rows. Here each rank divides by the joint count.)
#
# The loss is a mean over all tokens that count. Some tokens do not count (label −100), and these are not spread evenly over the ranks. So divide by the count over **all** ranks.


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
    model = make_model(ring_of(order))
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
    pairs = [pair for _, found in results for pair in zip(found, right[1], strict=True)]
    gradients = [((a - b).norm() / b.norm()).item() for a, b in pairs]
    return max(losses), max(gradients)


right = run_ranks(train_alone, 1, device=where, measure=False).results[0]
table = [("ranks, order", "loss off by", "worst gradient off by")]
for n in (2, 4):
    for name, order in (("contiguous", contiguous_order(n)), ("zigzag", zigzag(n))):
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
show_table(table)

# %% [markdown] name="wrong_text"
# The next cells run three variants that should fail. The first two are correct for data parallelism. The third is correct only if all ranks count the same number of labels. All three look right in the code:
#
# - **Labels after cutting**: each rank shifts its own tokens by one, and its last token gets no label.
# - **Positions from 0**: each rank numbers its own tokens.
# - **A mean of means**: each rank divides by its own count, and the ranks' losses are averaged.
#
# **Predict.** With 512 tokens on four ranks in zigzag order, how many of the 512 labels are wrong or missing if they are made after cutting?

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
    model = make_model(ring_of(contiguous_order(RANKS)))
    loss, count = summed_loss(model, *cut(make_tokens(LENGTH), contiguous_order(RANKS), dist.get_rank()))
    mean = loss.detach() / count
    dist.all_reduce(mean)
    return (mean / RANKS).item()


# %% name="wrong"
lost = run_ranks(lost_labels, RANKS, device=where, measure=False).results
labels_guess.reveal(sum(map(len, lost)))
print("positions of these labels:", {f"rank {rank}": positions for rank, positions in enumerate(lost)})
table = [("4 ranks", "loss", "off by", "worst gradient off by"), ("one process", f"{right[0]:.4f}", "", "")]
for name, way in (("labels after cutting", labels_after_cutting), ("positions from 0", positions_from_zero)):
    results = run_ranks(train_on_ranks, RANKS, zigzag(RANKS), way, device=where, measure=False).results
    loss, gradient = off(results, right)
    table.append((name, f"{results[0][0]:.4f}", f"{loss:.1e}", f"{gradient:.1e}"))
mean = run_ranks(mean_of_means, RANKS, device=where, measure=False).results[0]
table.append(("a mean of means, contiguous", f"{mean:.4f}", f"{abs(mean / right[0].item() - 1):.1e}", ""))
show_table(table)

# %% [markdown] name="wrong_explained"
# None of the three raises an error, and no loss looks alarming: the model is untrained, and every answer is equally bad. In the first two, the gradients show the mistake. Each rank has two wrong or missing labels, except the last, whose two chunks are adjacent. In the mean of means, rank 0 has the prompt and only 28 of the 412 labels that count. Each of these 28 counts 412 / (4 · 28) = 3.7 times as much as it should.
#
# ### Documents
#
# A long sequence often consists of many documents, and no token may attend to another document ([[tokens]]). This changes how the work is distributed.
#
# **Predict.** Four ranks hold 1,024 tokens in zigzag order. The documents have 640, 128, 128 and 128 tokens, and attention stays within them. What percentage of the step does a rank spend waiting, on average over the four?

# %% name="documents_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 20  # the long document is most of the work, and it is spread in zigzag
### END GUESS
documents_guess = Prediction("Waiting, zigzag over four documents", my_guess, "%", difference=True)

# %% name="documents"
DOCUMENTS = (640, 128, 128, 128)


def waiting(order):
    """Return the percentage of the step in which a rank waits, counted in scores, and each rank's scores."""
    seen = torch.cat([torch.arange(1, length + 1) for length in DOCUMENTS])  # columns that each row may attend to
    chunks = seen.chunk(sum(map(len, order)))
    work = [sum(chunks[number].sum().item() for number in held) for held in order]
    return 100 * (1 - sum(work) / len(work) / max(work)), work


documents_guess.reveal(waiting(zigzag(RANKS))[0], how="counted")
for name, order in (("contiguous", contiguous_order(RANKS)), ("zigzag", zigzag(RANKS))):
    share, work = waiting(order)
    print(f"{name}: waiting {share:.0f}%; scores of each rank: {', '.join(f'{scores:,}' for scores in work)}")

# %% [markdown] name="documents_explained"
# Zigzag balances **one** causal triangle. Here the most expensive rows, those at the end of the long document, are in the middle of the sequence, and one rank has them all. Zigzag is even worse than the contiguous order.
#
# So treat each document as a sequence of its own: split **each** into 2 N chunks, and run the ring per document. Then every document is distributed fairly, and nothing is computed across documents. PyTorch's context parallelism has a per-document load balancer for this, and another one for FlexAttention's block masks, which distributes blocks of queries by their work. (Pad each document to a multiple of 2 N. Keep each short document on one rank, where it needs no ring.)


# %% name="documents_run"
def documents_on_ranks():
    order = zigzag(dist.get_world_size())
    trial = AttentionTrial(*DOCUMENTS)

    def each_alone(q, k, v):  # each holds this rank's chunks of all documents, one document after the other
        lengths = [length // dist.get_world_size() for length in DOCUMENTS]
        parts = zip(*(t.split(lengths, dim=2) for t in (q, k, v)), strict=True)
        return torch.cat([Ring.apply(*document, order) for document in parts], dim=2)

    return max(trial.distances(trial.through(each_alone, *trial.mine(order)), order))


far = max(run_ranks(documents_on_ranks, RANKS, device=where, measure=False).results)
print(f"each document in zigzag order, compared with one process and a mask: off by {far:.1e}")
claims.record(
    "T38",
    "one ring per document matches a masked single process",
    "4 documents, 4 ranks, FP32",
    far,
    "relative",
    0,
    1e-5,
)

# %% [markdown] name="ulysses_text"
# ## 7 · Other methods: all-to-all and all-gather
#
# **All-to-all.** Attention treats each **head** independently. So exchange heads for tokens: before attention every rank sends all heads but its own to the other ranks, and receives all tokens for the heads that it keeps. Attention then runs as in one process, with any kernel and any mask. Afterwards the exchange is reversed. This is *Ulysses* (Jacobs et al. 2023). `dist.all_to_all_single` sends each rank its slice of a tensor. The gradient of the exchange is the reverse exchange, so `backward` below calls the same function with `split` and `join` swapped.
#
# **All-gather.** Gather all keys and values on every rank before attention, and reduce-scatter their gradients afterwards. Llama 3 was trained this way. PyTorch gathers keys and values by default, too, but still passes their gradients around the ring. By the count of section 4, a rank sends 2 (N − 1) blocks forward. If it gathers again in the backward pass, it sends 4 (N − 1) there. The total is 6 N − 6, about as much as the ring sends. All-gather handles any mask, including document masks, with one kernel call, and with GQA the gathered keys and values are small. It has two drawbacks: its messages do not overlap with computation by themselves, and every rank holds the keys and values of the whole sequence.


# %% name="ulysses"
class Exchange(torch.autograd.Function):
    """Split dimension `split` over the ranks and join dimension `join`: heads (1) for tokens (2), or back."""

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
    """Causal attention of this rank's contiguous tokens; with fewer K/V heads than ranks, K/V heads are repeated."""
    n = dist.get_world_size()
    k, v = (t.repeat_interleave(max(1, n // t.shape[1]), dim=1) for t in (k, v))
    return Exchange.apply(fused(*(Exchange.apply(t, 1, 2) for t in (q, k, v))), 2, 1)


# %% [markdown] name="ulysses_guess_text"
# In each of the two passes, Ulysses exchanges four tensors once: q, k, v and the result, or their gradients. A rank keeps 1/N of each tensor and sends the rest.
#
# **Predict.** Two ranks have 8 query heads and 2 key and value heads (GQA). What is the ratio of the bytes that the ring sends to the bytes that Ulysses sends, forward and backward together?

# %% name="ulysses_guess"
my_guess = None  # bytes of the ring / bytes of Ulysses
### BEGIN GUESS
my_guess = 8 / 5  # fewer keys travel in both
### END GUESS
grouped_guess = Prediction("Ring / Ulysses, 2 ranks, 8 heads and 2 K/V heads", my_guess, "times")


# %% name="ulysses_run"
def both_ways(kv_heads):
    """Return, for both ways, the bytes that this rank sends, and how far they are from one process."""
    n, order = dist.get_world_size(), contiguous_order(dist.get_world_size())
    trial, found = AttentionTrial(512, kv_heads=kv_heads), {}
    for name, attention in (("ring", ring_of(order)), ("ulysses", ulysses)):
        with Collectives() as seen:
            got = trial.through(attention, *trial.mine(order))
        far = max(trial.distances(got, order))
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
grouped_guess.reveal(ratios[2, 2])
show_table(table)

# %% name="ulysses_claims"
for way, name in (("ring", "the ring"), ("ulysses", "Ulysses")):
    errors = [got[way][0] / formula(*case)[way] for case, got in sent.items()]
    worst = max(errors, key=lambda error: abs(error - 1))
    claims.record("T38", f"bytes of {name} by the formula", "4 cases, the worst", worst, "times", 0.98, 1.02)
for (n, kv_heads), ratio in ratios.items():
    subject = f"{n} ranks, 8 heads, {kv_heads} K/V heads: ring / Ulysses"
    claims.record("C18", "all-to-all sends less than the ring", subject, ratio, "times", 1.0, float("inf"))

# %% [markdown] name="ulysses_explained"
# "Ulysses sends less" is right for many ranks: its bytes fall with N, and the ring's do not. But grouped queries help the ring far more. In the ring only keys and values travel, while Ulysses also has to send queries and results. On few ranks with few K/V heads, the ring sends less.
#
# Ulysses has a hard limit: a rank needs at least one head. Tensor parallelism ([[tensor_parallel]]) splits the same heads, so the product of the two degrees cannot exceed the number of heads. The next cell asks the planner for 8 × 8 ranks and 32 heads.

# %% name="heads_limit"
for method in ("ring", "all-to-all"):
    try:
        layout = Layout(llama, tensor=8, context=8, context_method=method, seq=131072)
        print(f"{method}: {plan_layout(layout, h100s).worst.nbytes / 2**30:.1f} GiB on each of {layout.ranks} GPUs")
    except RecipeError as error:
        print(f"{method}: {error}")

# %% [markdown] name="heads_limit_text"
# The methods can be combined: Ulysses inside a node, where links are fast and there are enough heads, and a ring between nodes (USP, *unified sequence parallelism*).
#
# ## 8 · PyTorch's context parallelism
#
# `context_parallel(mesh, buffers=..., buffer_seq_dims=...)` is a context manager that shards the buffers in place and makes `F.scaled_dot_product_attention` context-parallel. It is a prototype (`torch.distributed.tensor.experimental`) and supports CUDA's fused kernels. Transformer Engine and Megatron offer the methods of this lab as `cp_comm_type`: "p2p" (the ring), "all_gather", "a2a" (Ulysses) and "a2a+p2p".
#
# The next cell uses `context_parallel` to split the positions 0 to 511 over four ranks, and then calls attention inside the context.
#
# **Predict.** What is the highest position that rank 0 gets?

# %% name="torch_guess"
my_guess = None  # a position from 0 to 511
### BEGIN GUESS
my_guess = 127  # the first of four parts
### END GUESS
last_guess = Prediction("The last position on rank 0", my_guess, "")


# %% name="torch_run"
def torch_on_ranks():
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    positions = torch.arange(512, device=rank_device())
    trial, order = AttentionTrial(512, kv_heads=8), zigzag(dist.get_world_size())
    *qkv, gradient = (t.clone() for t in trial.whole)  # the buffers are changed in place
    with context_parallel(mesh, buffers=[positions, *qkv, gradient], buffer_seq_dims=[0, 2, 2, 2, 2]):
        kept = positions.tolist()
        try:
            got = trial.through(partial(F.scaled_dot_product_attention, is_causal=True), *qkv, gradient)
        except (NotImplementedError, RuntimeError) as error:
            return kept, f"{type(error).__name__}: {str(error)[:120]}"
    return kept, max(trial.distances(got, order))


results = run_ranks(torch_on_ranks, RANKS, device=where, measure=False).results
last_guess.reveal(max(results[0][0]), how="counted")
for rank, (kept, _) in enumerate(results):
    print(f"rank {rank}: eighths {sorted({position // 64 for position in kept})} of the sequence")
said = results[0][1]
print(f"its attention: off by {said:.1e}" if isinstance(said, float) else f"its attention here: {said}")

# %% [markdown] name="torch_explained"
# `context_parallel` shards in zigzag order, as in section 5: the first and the last chunk go to rank 0. So its list of buffers must include everything else that belongs to tokens, above all labels and positions. A tensor that is missing from the list keeps its original order.
#
# On a CPU, attention inside the context raises an error: PyTorch has no sharding rule for the CPU's kernel. On GPUs, `context_parallel` gathers all keys and values at once by default. After `set_rotate_method("alltoall")` it passes them around instead. The default gives up the memory bound of section 4: every rank holds the keys and values of the whole sequence.
#
# ## 9 · What this run measured

# %% name="summary"
table = [("4 ranks, two ways", "the first", "the second")]
table += [
    ("saved for the backward pass: one process, ring", human_bytes(peaks[1][1]), human_bytes(peaks[4][1])),
    ("peak of attention: one process, ring", human_bytes(peaks[1][0]), human_bytes(peaks[4][0])),
    ("waiting: contiguous, zigzag", f"{in_sequence.share:.0f}%", f"{zigzagged.share:.0f}%"),
    ("sent: ring, Ulysses (8 K/V heads)", *(human_bytes(sent[4, 8][way][0]) for way in ("ring", "ulysses"))),
    ("sent: ring, Ulysses (2 K/V heads)", *(human_bytes(sent[4, 2][way][0]) for way in ("ring", "ulysses"))),
]
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Every layer except attention works on one token at a time. So split the sequence, and handle attention separately.
# - A partial result is a mean and a log-sum-exp, and two of them merge into one. In the backward pass, the log-sum-exp and the output of the whole row (through δ = g · out) make each block independent.
# - Keys and values travel around the ring, and their gradients travel with them until they are back with their owner: 6 N − 4 blocks per layer in one dtype, 8 N − 4 BF16 blocks with FP32 gradients. Start each message before the block is computed.
# - The saved bytes fall to 1/N. The peak is a nearly fixed number of blocks, so it falls with N, too, but from a higher level.
# - Under a causal mask, four ranks with contiguous chunks wait for 43% of the step on average, and zigzag is fair. Each document needs its own zigzag.
# - Make labels before cutting, let positions travel with their tokens, and divide the loss by the count over all ranks.
# - Ulysses sends less on many ranks, until the heads run out. With GQA on few ranks, the ring sends less. All-gather sends about as much as the ring and needs more memory, but takes any mask.
#
# **What to reach for when.** If activations are too large, recompute first ([[activation_checkpointing]]), then use context parallelism. With document masks, few K/V heads and memory to spare, use all-gather. With up to eight ranks in a node and enough heads, use all-to-all. With more ranks or tight memory, use a ring in zigzag order. The planner knows ring and all-to-all (`python -m helpers plan --context 8 --context-method ring`).
#
# **Sources.** Liu et al. 2023, *Ring Attention with Blockwise Transformers*; Dao et al. 2022, *FlashAttention*; Brandon et al. 2023, *Striped Attention*; Dubey et al. 2024, *The Llama 3 Herd of Models*, section 3.3.2 (chunks assigned in pairs; all-gather of keys and values); Jacobs et al. 2023, *DeepSpeed Ulysses*; Fang and Zhao 2024, *USP: A Unified Sequence Parallelism Approach*; Su et al. 2021, *RoFormer* (RoPE); Ainslie et al. 2023, *GQA*; PyTorch documentation, `torch.distributed.tensor.experimental.context_parallel`; Transformer Engine documentation, `cp_comm_type`.
