# %% [markdown] name="title"
# # Balance and documents
#
# **Ring attention gives the right result, but some ways of distributing the tokens leave ranks idle, and mistakes in labels, positions or documents raise no error. You fix both problems, and compare the ring with two other methods.**
#
# | | |
# |---|---|
# | After this you can | fix the imbalance of causal masks; keep positions, labels and documents correct across shards; write the all-to-all of heads and tokens; state how long a sequence must be for messages to hide; choose between ring, all-gather and all-to-all; use PyTorch's `context_parallel` |
# | Time | 80 to 115 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | [[context_parallel]] |
# | Syllabus | T38, C18 |
#
# The graded exercise X5 follows.

# %% name="setup" setup=true
from functools import partial

from helpers import (
    Claims,
    Collectives,
    Prediction,
    check,
    device_name,
    explore,
    hint,
    human_bytes,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
)
from helpers.exercises.balance_and_documents.clock import clock_rings
from helpers.exercises.balance_and_documents.pictures import scores_picture, timeline_picture
from helpers.exercises.context_parallel.attention_trial import AttentionTrial
from helpers.exercises.context_parallel.built import ring_backward, ring_forward
from helpers.exercises.context_parallel.model import LongModel
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

# %% [markdown] name="ring_again"
# This lab starts with the ring of [[context_parallel]]. The sequence is split into **chunks** of equal length, numbered from 0, and `order[r]` lists the chunks that rank r holds. In `ring_forward` the ranks pass their blocks of keys and values around, and each rank computes its rows of causal attention. `ring_backward` returns the gradients of a rank's queries, keys and values. The next cell wraps the course's versions of the two functions so that autograd can use them, and adds the attention of a single process for comparison. `AttentionTrial` draws the same q, k, v and output gradient on every rank. `trial.mine(order)` returns a rank's chunks of them, and `trial.distances` compares its results with those of one process.


# %% name="ring" setup=true
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


def ring_of(order):
    return lambda q, k, v: Ring.apply(q, k, v, order)


def fused(q, k, v):
    """Causal attention of one process, with PyTorch's own kernel."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


# %% [markdown] name="balance_text"
# ## 1 · Load balance
#
# The tokens are distributed evenly. Is the work distributed evenly, too?
#
# Four ranks have one chunk each, in sequence order, under a causal mask. The step ends when the last rank has finished. As in [[pipeline]], a clock makes waiting visible. Each block *takes* time in proportion to the number of its scores, however busy the cores of this machine are. The messages are real, and short compared with that time.
#
# **Predict.** What percentage of the step does a rank spend waiting, on average over the four?

# %% name="row_guess"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 25  # the first rank waits most of the time, the last one never
### END GUESS
row_guess = Prediction("Waiting, four chunks in sequence order", my_guess, "%", difference=True)


# %% name="row_clocked"
def one_step(order):
    trial = AttentionTrial(256, heads=2, kv_heads=2)
    trial.through(ring_of(order), *trial.mine(order))


in_sequence = clock_rings(one_step, RANKS, {"contiguous": contiguous_order(RANKS)})["contiguous"]
row_guess.reveal(in_sequence.share, how="counted" if in_sequence.busy else "clocked")
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
# The fix needs no extra messages. Split the sequence into 2 N chunks, and give each rank **two** of them, chosen so that all ranks compute the same number of scores. The ring supports that already: `order` takes any number of chunks.
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
#   - `labels` (B, T/N) hold, for each input, the token that follows it in the sequence.
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
zigzag, cut = check("balance_and_documents.cut", zigzag, cut)

# %% name="cut_hint"
hint("balance_and_documents.cut")

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
# ## 2 · A whole model
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
# The next cells run three variants that are wrong here. The first two are correct for data parallelism. The third is correct only if all ranks count the same number of labels. All three look right in the code:
#
# - **Labels after cutting**: each rank shifts its own tokens by one, and its last token gets no label.
# - **Positions from 0**: each rank numbers its own tokens.
# - **A mean of means**: each rank divides by its own count, and the ranks' losses are averaged.
#
# **Predict.** With 512 tokens on four ranks in zigzag order, how many of the 512 labels are wrong or missing if they are made after the sequence is cut?

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
# ## 3 · Documents
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
# So treat each document as a sequence of its own: split **each** into 2 N chunks, and run the ring per document. Then every document is distributed fairly, and nothing is computed across documents. PyTorch's context parallelism has a per-document load balancer for this, and another one for FlexAttention's block masks, which distributes blocks of queries by their work; this lab runs neither. (Pad each document to a multiple of 2 N. Keep each short document on one rank, where it needs no ring.)


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

# %% [markdown] name="hide_text"
# ## 4 · Other methods: all-to-all and all-gather
#
# The ring is not the only method. Its advantage is that its messages can hide: while a rank computes with one block, the next one travels. With c tokens per rank, the computation grows with c² and the message with c, so above some c the message arrives in time. The next cell evaluates this **formula** for the forward pass of Llama 3.1 8B (H = 32 query heads, K = 8 key and value heads) on H100s at their BF16 peak (989 TFLOP/s), with half of each block masked: 2 c² H d FLOPs against 4 c K d bytes. It is an estimate for hardware that this lab does not have.

# %% name="hide"
llama, h100s = arch_of("llama-3.1-8b"), find_cluster("dgx-h100")
grouped = llama.kv_heads / llama.heads
for link, bandwidth in (("NVLink, in a node", h100s.inside), ("network, between nodes", h100s.outside)):
    tokens = 2 * grouped * h100s.gpu.flops16 / bandwidth
    print(f"{link:23}: at least {tokens:,.0f} tokens per GPU; with 8 GPUs, sequences of at least {8 * tokens:,.0f}")

# %% [markdown] name="hide_explained"
# Kernels that reach half of the peak halve these figures. In the backward pass a block takes 2.5 times the FLOPs. Keys, values and their FP32 gradients travel, three times the bytes of the forward pass in total. So the backward pass needs slightly more tokens to hide its messages, if both kinds of messages overlap with computation, as in the course's ring and in PyTorch's own. Grouped queries (GQA) help: fewer key and value heads travel.
#
# **All-gather.** (This lab does not run it; the counts below follow from the collectives.) Gather all keys and values on every rank before attention, and reduce-scatter their gradients afterwards. According to its paper, Llama 3 was trained this way. PyTorch gathers keys and values by default, too, but according to its source it still passes their gradients around the ring. The ring sends 6 N − 4 blocks (a block is one rank's keys or its values, everything in one dtype). All-gather sends 2 (N − 1) blocks forward. If a rank gathers again in the backward pass, it sends 4 (N − 1) there, so the total is about the same. All-gather handles any mask, including document masks, with one kernel call, and with GQA the gathered keys and values are small. It has two drawbacks: its messages do not overlap with computation automatically, and every rank holds the keys and values of the whole sequence.
#
# **All-to-all.** Attention treats each **head** independently. So exchange heads for tokens: before attention, every rank gives away all heads but its share, and receives all tokens for the heads that it keeps. Attention then runs as in one process, with any kernel and any mask. Afterwards the exchange is reversed. This is *Ulysses* (Jacobs et al. 2023).
#
# `dist.all_to_all_single(arrived, leaving)` cuts `leaving` into N equal parts along dimension 0 and sends part j to rank j. The part from rank i becomes part i of `arrived`. Both tensors must be contiguous.
#
# ### Your turn: exchange
#
# **Contract.** `exchange(x, split, join)` is called on every rank and returns a new tensor.
#
# - `x` (B, H, S, d) has the same shape on every rank. `split` and `join` are two of its dimensions: 1 (heads) and 2 (tokens), or 2 and 1. The size of `x` in dimension `split` is a multiple of the number of ranks N.
# - Cut `x` into N equal slices along `split`. Rank j gets slice j of every rank, and joins these slices along `join`, in the order of the ranks. So with `split` 1 and `join` 2, (B, H, T/N, d) becomes (B, H/N, T, d).
# - Each slice goes only to the rank that needs it: one all-to-all with the bytes of `x`, and no other message.
# - `x` need not be contiguous, and is not changed.


# %% name="exchange" answer=true reveal=true
def exchange(x, split, join):
    ### BEGIN SOLUTION
    leaving = torch.stack(x.chunk(dist.get_world_size(), dim=split))
    arrived = torch.empty_like(leaving)
    dist.all_to_all_single(arrived, leaving)
    return torch.cat(arrived.unbind(), dim=join)
    ### END SOLUTION


# %% name="exchange_check"
exchange = check("balance_and_documents.exchange", exchange)

# %% name="exchange_hint"
hint("balance_and_documents.exchange")

# %% [markdown] name="ulysses_text"
# The gradient of the exchange is the reverse exchange, so `backward` below calls your function with `split` and `join` swapped.


# %% name="ulysses"
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, split, join):
        ctx.dims = split, join
        return exchange(x, split, join)

    @staticmethod
    def backward(ctx, gradient):
        split, join = ctx.dims
        return exchange(gradient, join, split), None, None


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
# "Ulysses sends less" is right for many ranks: its bytes fall with N, and the ring's do not. But grouped queries help the ring far more. In the ring only keys and values travel, while Ulysses also has to send queries and results. On two ranks with two K/V heads, the ring sends less.
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
# ## 5 · PyTorch's context parallelism
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
# `context_parallel` shards in zigzag order, as in section 1: the first and the last chunk go to rank 0. So its list of buffers must include everything else that belongs to tokens, in particular labels and positions. A tensor that is missing from the list keeps its original order.
#
# On a CPU, attention inside the context raises an error: PyTorch has no sharding rule for the CPU's kernel. On GPUs, `context_parallel` gathers all keys and values at once by default. After `set_rotate_method("alltoall")` it passes them around instead. (Neither runs on a CPU; this is what the documentation and the source say.) The default gives up the memory bound of the ring ([[context_parallel]], section 4).
#
# ## 6 · What this run measured

# %% name="summary"
waits = (f"{run.share:.0f}%" for run in (in_sequence, zigzagged))
show_table([("4 ranks", "contiguous", "zigzag"), ("waiting, of the step", *waits)])
table = [("4 ranks, bytes sent by each", "ring", "Ulysses")]
for heads in (8, 2):
    table.append((f"{heads} K/V heads", *(human_bytes(sent[4, heads][way][0]) for way in ("ring", "ulysses"))))
show_table(table)
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Under a causal mask, four ranks with contiguous chunks wait for 43% of the step on average, and zigzag is fair. Each document needs its own zigzag.
# - Make labels before you cut the sequence, let positions travel with their tokens, and divide the loss by the count over all ranks.
# - With enough tokens per GPU, the ring's messages travel while blocks are computed. Between nodes it takes far more tokens than within one.
# - Ulysses sends less on many ranks, until the heads run out. On two ranks with two K/V heads, the ring sends less. All-gather sends about as much as the ring and needs more memory, but takes any mask.
#
# **What to reach for when.** With document masks, few K/V heads and memory to spare, use all-gather (according to the counts in section 4; this lab has not run it). With up to eight ranks in a node and enough heads, use all-to-all. With more ranks or tight memory, use a ring in zigzag order. The planner knows ring and all-to-all (`python -m helpers plan --context 8 --context-method ring`).
#
# **Sources.** Brandon et al. 2023, *Striped Attention*; Dubey et al. 2024, *The Llama 3 Herd of Models*, section 3.3.2 (chunks assigned in pairs; all-gather of keys and values); Jacobs et al. 2023, *DeepSpeed Ulysses*; Fang and Zhao 2024, *USP: A Unified Sequence Parallelism Approach*; Su et al. 2021, *RoFormer* (RoPE); PyTorch documentation, `torch.distributed.tensor.experimental.context_parallel`; Transformer Engine documentation, `cp_comm_type`.
