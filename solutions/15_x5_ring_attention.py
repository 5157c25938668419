# %% [markdown] name="title"
# # X5 · Ring attention
#
# **Graded exercise, 10 points.** A sequence too long for one rank is spread over several. Each rank keeps its queries, and keys and values travel around a ring, so that no rank ever holds all of them. You write all of it: which tokens a rank holds, the message, attention forward and backward, and the training step around it.
#
# | | |
# |---|---|
# | After this you can | train on a sequence that no rank holds, with the loss and the gradients of one process; keep within limits on what a rank stores, sends and multiplies, and prove it |
# | Time | 90 to 120 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU (4 processes) |
# | Before this | [[context_parallel]] |
# | Syllabus | X5 |
#
# There are four answer cells, each followed by its check. Most checks start four or five real ranks (over gloo on the CPU, so that every machine gives the same verdict), in groups of 2 to 5 ranks, each with its own sequence. Run them as often as you like. If ranks wait for each other, the check reports it within half a minute, with the line that each of them has reached. Save the notebook when you are done: it is your submission, and its name must stay the same.

# %% name="setup" setup=true
from helpers import check, device_name, english, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

device = pick_device()
where = ranks_device(4)  # where 1, 2 and 4 ranks run, so that your table compares nothing but their number
print(f"{device_name(device)} ({device.type}), torch {torch.__version__}; ranks run on {where.type}")

# %% [markdown] name="shard_task"
# ## Part 1 · Which tokens a rank holds (1 point)
#
# A causal query attends to earlier tokens only, so the rank with the end of a sequence would have the most work. In **zigzag order** every rank gets one early and one late chunk.
#
# **Contract.** `shard(tokens, rank, ranks)` returns `(inputs, targets, positions)` of one rank.
#
# 1. `tokens` is `(B, T + 1)`, int64. The inputs are its first `T` tokens, and the target of each is the token after it.
# 2. The `T` positions are cut into `2 * ranks` chunks of equal size. Rank `r` holds chunks `r` and `2 * ranks - 1 - r`, in this order.
# 3. `inputs` and `targets` are `(B, T / ranks)`. `positions` is `(T / ranks,)`, int64, and applies to all rows.
# 4. If `T` cannot be divided evenly, it raises `ValueError` on every rank.


# %% name="shard" answer=true
def shard(tokens, rank, ranks):
    ### BEGIN SOLUTION
    chunk, left = divmod(tokens.shape[1] - 1, 2 * ranks)
    if left:
        raise ValueError(f"{tokens.shape[1] - 1} tokens cannot be divided into {2 * ranks} chunks of equal size")
    chunks = torch.arange(2 * ranks * chunk, device=tokens.device).view(2 * ranks, chunk)
    positions = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])
    return tokens[:, positions], tokens[:, positions + 1], positions
    ### END SOLUTION


# %% name="shard_check" points=1
check("x5.shard", shard)

# %% name="shard_hint"
hint("x5.shard")

# %% [markdown] name="pass_on_task"
# ## Part 2 · The message (1 point)
#
# **Contract.** `pass_on(x, group)` is called on every rank of a process group. It sends `x` to the next rank of the group and receives what the previous one sends. (After the last rank comes the first.)
#
# 1. It starts both messages and returns **at once**, before its neighbors need to have called it. The messages travel while the caller computes, also before it waits. It returns a function. Called without arguments, that function waits (on a GPU: the current stream waits) and returns the received tensor, with the shape and dtype of `x`.
# 2. `x` may be a non-contiguous view, and is not changed. Only its own bytes are sent, only to the next rank, and without a collective.
# 3. Two calls may be in flight between the same ranks, and the second may be waited for first. All ranks of a group make their calls in the same order: messages between two ranks carry no tag and match in the order in which they were started.
# 4. `group` may consist of any ranks of the world, such as 1 and 3, while the others do something else. In a group of one rank, the function returns `x`.


# %% name="pass_on" answer=true
def pass_on(x, group):
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return lambda: x
    coming = torch.empty_like(x, memory_format=torch.contiguous_format)
    send = dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=(rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % ranks)
    under_way = dist.batch_isend_irecv([send, receive])

    def wait():
        for work in under_way:
            work.wait()
        return coming

    wait.send = send  # it holds the only reference to a copy of x, which has to stay until then
    return wait
    ### END SOLUTION


# %% name="pass_on_check" points=1
check("x5.pass_on", pass_on)

# %% name="pass_on_hint"
hint("x5.pass_on")

# %% [markdown] name="ring_task"
# ## Part 3 · The ring (6 points)
#
# **Contract.** `ring_attention(q, k, v, group)` is called on every rank of `group` and returns the rank's part of causal attention over the whole sequence.
#
# 1. `q` is `(B, H, t, D)`, `k` and `v` are `(B, h, t, D)`, in FP32: the rank's own part in zigzag order, `t / 2` tokens per chunk. They may be non-contiguous views. `H` is a multiple of `h`: query head `i` uses key head `i // (H / h)`.
# 2. The output, `(B, H, t, D)`, is what `F.scaled_dot_product_attention(..., is_causal=True, enable_gqa=True)` gives one process for these queries, to 1e-5. Scores may be larger than 100.
# 3. The gradients of `q`, `k` and `v`, after every rank has run its backward pass, are those of the sum of all ranks' losses in one process. There may be several calls before the first backward pass, and their backward passes may come in any order. Second derivatives are not needed. The inputs and the gradient of the output are not changed.
# 4. **Memory.** With parts of the same size, more ranks take no more memory per rank, neither at the peaks nor between the passes. A rank never holds the keys or the values of all ranks, its scores with all of them, a mask of the whole sequence, or one output per block, and saves nothing of these sizes for the backward pass. A few numbers per token are allowed.
# 5. **Messages** go from a rank to the next one of the group, and to no other rank, by `dist.isend` and `dist.irecv` or `dist.batch_isend_irecv`. A block is one rank's keys and values, `h` heads each. Each of N ranks keeps to these limits:
#
#    | what a rank sends | forward | backward |
#    |---|---|---|
#    | blocks | at most N - 1 | at most N - 1 |
#    | gradients of a block | none | at most N |
#    | collectives, per kind (enough for counts and a barrier) | 512 bytes | 512 bytes |
#
# 6. **Work.** Masked pairs are not multiplied, forward or backward: in every matmul a rank computes its own block, and half of each other block. A mask within your own block is allowed. Scores and output may be recomputed in the backward pass. Multiply with `@`, `einsum` or PyTorch's attention: the check counts those.
#
# Write the attention yourself: an answer that imports from `helpers.exercises` is flagged for the instructor.
#
# The check calls only `ring_attention`. `meets` and the class are there because most solutions need something like them. Change or drop them as you like.


# %% name="ring" answer=true
def meets(source, rank, half):
    """Return the slice of my t queries and the slice of the t keys from rank `source` that meet each other."""
    ### BEGIN SOLUTION
    if source < rank:
        return slice(None), slice(half)  # their earlier chunk lies before both of mine, their later one behind
    if source > rank:
        return slice(half, None), slice(None)  # my later chunk lies behind both of theirs, my earlier one before
    return slice(None), slice(None)
    ### END SOLUTION


class RingAttention(torch.autograd.Function):
    @staticmethod
    def scores(q, k, mine):  # (B, h, g, i, D) and (B, h, j, D) -> (B, h, g, i, j)
        ### BEGIN SOLUTION
        scores = torch.einsum("bhgid,bhjd->bhgij", q, k) / q.shape[-1] ** 0.5
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill_(later, float("-inf")) if mine else scores
        ### END SOLUTION

    @staticmethod
    def forward(ctx, q, k, v, group):
        ### BEGIN SOLUTION
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        q = q.unflatten(1, (k.shape[1], -1))  # (B, h, g, t, D): the heads that share a key head
        block, out, lse = torch.stack([k, v]), torch.zeros_like(q), torch.full_like(q[..., 0], float("-inf"))
        for step in range(ranks):
            source = (rank - step) % ranks
            wait = pass_on(block, group) if step < ranks - 1 else None
            mine, theirs = meets(source, rank, q.shape[-2] // 2)
            scores = RingAttention.scores(q[..., mine, :], block[0][..., theirs, :], source == rank)
            new = torch.logaddexp(lse[..., mine], scores.logsumexp(-1))
            out[..., mine, :] *= (lse[..., mine] - new).exp()[..., None]
            p = (scores - new[..., None]).exp()
            out[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", p, block[1][..., theirs, :])
            lse[..., mine] = new
            block = wait() if wait else block
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out.flatten(1, 2)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, grad):
        ### BEGIN SOLUTION
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        grad = grad.unflatten(1, q.shape[1:3])
        delta = (grad * out).sum(-1, keepdim=True)  # (B, h, g, t, 1)
        block, dq = torch.stack([k, v]), torch.zeros_like(q)
        d_block = torch.zeros_like(block)
        for step in range(ranks):
            source = (rank - step) % ranks
            wait = pass_on(block, ctx.group) if step < ranks - 1 else None
            mine, theirs = meets(source, rank, q.shape[-2] // 2)
            q_, g_, k_, v_ = q[..., mine, :], grad[..., mine, :], block[0][..., theirs, :], block[1][..., theirs, :]
            p = (RingAttention.scores(q_, k_, source == rank) - lse[..., mine, None]).exp()
            d_block[1][..., theirs, :] += torch.einsum("bhgij,bhgid->bhjd", p, g_)
            ds = torch.einsum("bhgid,bhjd->bhgij", g_, v_).sub_(delta[..., mine, :]).mul_(p).div_(q.shape[-1] ** 0.5)
            d_block[0][..., theirs, :] += torch.einsum("bhgij,bhgid->bhjd", ds, q_)
            dq[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", ds, k_)
            d_block = pass_on(d_block, ctx.group)()  # travels with its block; the last step brings it home
            block = wait() if wait else block
        return dq.flatten(1, 2), d_block[0], d_block[1], None
        ### END SOLUTION


def ring_attention(q, k, v, group):
    ### BEGIN SOLUTION
    return RingAttention.apply(q, k, v, group)
    ### END SOLUTION


# %% name="ring_check" points=6
check("x5.ring", ring_attention)

# %% name="ring_hint"
hint("x5.ring")

# %% [markdown] name="train_task"
# ## Part 4 · The training step (2 points)
#
# **Contract.** `train_step(model, inputs, targets, positions, group)` is called on every rank of `group` with the rank's part of a batch. It returns the loss, and leaves gradients for an optimizer.
#
# 1. `model(inputs, positions)` returns logits `(B, t, V)` for the rank's tokens, `(B, t)`. Its attention sees the whole sequence, forward and backward, as yours does. Every rank calls the model once. The parameters are the same on all ranks, and every trained parameter is used on every rank. (The check brings its own attention, so that a mistake above costs nothing here.)
# 2. The loss is the mean cross-entropy over the targets of **all** ranks of the group. A target of -100 does not count. Ranks may have different numbers of targets that count, and a rank may have none.
# 3. Afterwards each parameter's `.grad`, on every rank, is the gradient of that loss in one process. Frozen parameters (`requires_grad=False`) get none.
# 4. A model takes many steps: gradients, hooks and numbers of earlier steps must not leak in. Parameters and inputs do not change.
# 5. It returns the loss, a Python float, the same on every rank.


# %% name="train" answer=true
def train_step(model, inputs, targets, positions, group):
    ### BEGIN SOLUTION
    model.zero_grad()
    count = (targets != -100).sum()
    dist.all_reduce(count, group=group)
    logits = model(inputs, positions)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item()
    ### END SOLUTION


# %% name="train_check" points=2
check("x5.train", train_step)

# %% name="train_hint"
hint("x5.train")

# %% [markdown] name="run_text"
# ## Your ring at work
#
# A small model reads 1,024 letters at a time, on one rank, on two and on four. The model and the data are the same, so the loss must be the same as well. Each rank's peak shows what the ring is for.


# %% name="model"
class Reader(nn.Module):
    """A causal model of letters whose attention is yours."""

    def __init__(self, group, width=64, heads=4, layers=2):
        super().__init__()
        self.group, self.heads = group, heads
        self.letters, self.places = nn.Embedding(256, width), nn.Embedding(1024, width)
        nn.init.normal_(self.letters.weight, std=0.02)
        self.qkv = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])
        self.mlp = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, inputs, positions):
        x = self.letters(inputs) + self.places(positions)
        for qkv, mlp in zip(self.qkv, self.mlp, strict=True):
            parts = qkv(F.layer_norm(x, x.shape[-1:])).unflatten(-1, (3, self.heads, -1))
            q, k, v = parts.permute(2, 0, 3, 1, 4)  # (B, heads, t, D)
            x = x + ring_attention(q, k, v, self.group).transpose(1, 2).flatten(2)
            x = x + mlp(F.gelu(F.layer_norm(x, x.shape[-1:])))
        return F.layer_norm(x, x.shape[-1:]) @ self.letters.weight.T


def read(text, steps):
    here, group = rank_device(), dist.group.WORLD
    torch.manual_seed(0)
    model = Reader(group).to(here)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        tokens = text[1024 * step : 1024 * (step + 1) + 1].to(here)[None]
        losses.append(train_step(model, *shard(tokens, dist.get_rank(), dist.get_world_size()), group))
        optimizer.step()
    return losses


# %% name="run"
text, steps = english().train_x, 4
try:
    runs = {ranks: run_ranks(read, ranks, text[: 1024 * steps + 1], steps, device=where) for ranks in (1, 2, 4)}
    alone = runs[1].results[0]
    print(f"{'ranks':>5}{'peak of a rank':>16}   loss of each step")
    for ranks, run in runs.items():
        losses = ", ".join(f"{loss:.6f}" for loss in run.results[0])
        print(f"{ranks:>5}{human_bytes(max(run.peak_bytes)):>16}   {losses}")
    worst = max(abs(a - b) for run in runs.values() for a, b in zip(run.results[0], alone, strict=True))
    print(f"largest difference from one rank: {worst:.1e}")
except RuntimeError as error:  # NotImplementedError is one, too
    print("The table appears when all four parts are done." if "NotImplementedError" in repr(error) else error)

# %% [markdown] name="run_reading"
# Compare the peaks. With twice as many ranks, `t = T / N` falls to half, and so does everything that grows with `t`. In this solution the `(t, t)` scores of a block fall to a quarter. A fused kernel does not hold them at all, so its peak would fall by about half. The parameters, their gradients and the optimizer's state do not shrink, because every rank holds all of them.

# %% [markdown] name="hand_in"
# ## Submit
#
# Save this notebook under the name it has. Your instructor collects it as `YOUR_NAME/15_x5_ring_attention.ipynb` and grades it with
#
# ```
# python -m helpers grade SUBMISSIONS --out GRADES
# ```
#
# Grading takes only your four answer cells, runs them with different random numbers, and runs the same ten checks. Changes
# elsewhere in the notebook neither help nor hurt.
