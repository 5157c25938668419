# %% [markdown] name="title"
# # Data parallel
#
# **N workers, each with the whole model and a part of the batch, agree on the average gradient after every backward pass. You get the update of the joint batch at up to N times the
# speed, and save not a byte of parameters, gradients or optimizer state.**
#
# | | |
# |---|---|
# | After this you can | build an all-reduce from sends and receives and say what it costs; write gradient buckets that travel during the backward pass; say what `DistributedDataParallel` sends, when and in which buckets; recognise each way to get it wrong by its symptoms; find the rank that is slow and the rank that is stuck |
# | Time | 150 to 230 minutes; good places to stop are after sections 5 and 8 |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the same cells use NCCL |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#gradient_accumulation]] |
# | Syllabus | T18, C13, P7 |
#
# Exercise X3, the graded notebook after this one, uses all of it.

# %% name="setup" setup=true
import contextlib
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from helpers import (
    TENANTS,
    Claims,
    Collectives,
    Diary,
    MemoryMeter,
    Messages,
    Prediction,
    RankError,
    SmallCNN,
    SmallGPT,
    calls_in,
    check,
    device_name,
    digits,
    explore,
    flight_report,
    hint,
    human_bytes,
    losses_of_copies,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    tenant_bars,
    text_table,
    torchrun,
    write_flight_record,
)
from helpers.core.device import synchronize
from helpers.exercises.data_parallel import pictures

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

device = pick_device()
MiB = 2**20
pair = ranks_device(2)  # comparisons of one rank with two run both there: else they would compare devices
claims = Claims(device=pair)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"one or two ranks: on {'GPUs, over NCCL' if pair.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="ranks_text"
# ## 1 · Ranks
#
# Four friends translate a book. Each takes a chapter. Every evening they compare notes, so that they all use the same words for the same things. There is no coordinator: they sit in a circle and
# pass the notes around.
#
# In PyTorch a worker is a **process**, its number is its **rank**, and the number of workers is the **world size**. Comparing notes is a **collective**: a call that every
# rank makes, such as `all_reduce`, after which each has the sum of what all had. Two libraries carry the messages: **NCCL** between GPUs, **gloo** between CPUs.
#
# The helper `run_ranks(fn, n)` starts *n* real processes, calls `fn` in each, and brings back what they returned and printed. The function and the variables it uses are **copied** to each rank: what a rank changes stays there, and only results come back. `rank_device()` is the rank's own GPU or the CPU. `measure=False` leaves out the memory meter around the
# function, which would disturb a clock or a meter inside.
#
# The collectives, the deadlocks and the bytes are those of a cluster. The speed is not.


# %% name="ranks"
def hello():
    mine = torch.tensor([10.0 ** dist.get_rank()], device=rank_device())
    print(f"I have {mine.item():.0f}")
    dist.all_reduce(mine)  # the sum, on every rank
    return mine.item()


run_ranks(hello, 4).results

# %% [markdown] name="ring_text"
# ## 2 · An all-reduce from sends and receives
#
# How does a sum reach everybody? Everyone could send everything to rank 0, which adds up and sends the sum back. Then all traffic goes through one rank, and the more ranks there are, the longer it takes.
#
# In a **ring** each rank talks to its two neighbours only. It cuts its vector into N pieces. In each round it sends one piece to the right and receives another from the left. For N − 1 rounds it **adds** what
# arrives to its own piece. Then each rank holds one piece that is complete, and for another N − 1 rounds the complete pieces go around and are **copied**.

# %% name="ring_picture"
show(
    pictures.ring_figure(4),
    "A table of four ranks and seven rows. Each rank has four pieces, at first with 1 in each. After three rounds of adding, each rank has one piece with a 4; after three more of copying, all pieces are 4.",
)

# %% [markdown] name="guess_ring_text"
# **Predict.** How much does one of four ranks send in all? Count in sizes of its vector. And then: how much more would it be with 1,000 ranks?

# %% name="guess_ring"
my_guess = None  # bytes sent by one of four ranks / bytes of its vector
### BEGIN GUESS
my_guess = 6 / 4  # six rounds, a quarter of the vector in each
### END GUESS
ring_guess = Prediction("Sent by one of four ranks", my_guess, "vectors")

# %% [markdown] name="ring_task"
# ### Your turn: the ring
#
# **Contract.** `ring_all_reduce(vector)` is called on every rank, with a vector of the same length and format on each.
#
# - Afterwards `vector` holds the sum over all ranks, as after `dist.all_reduce(vector)`. It is changed in place, and nothing around it: it may be a (contiguous) slice of a larger tensor. Return nothing.
# - Any number of ranks, also 1. Any length, also 0: it need not be divisible, and there may be fewer elements than ranks. Any floating-point format.
# - All ranks end with the same numbers, to the last bit.
# - A rank sends to `rank + 1` and receives from `rank - 1` only (the ring closes: after the last comes rank 0), and calls no collective.
# - It sends at most 2 (N − 1) messages, each of at most an N-th of the vector, rounded up.
#
# If every rank sends first and receives afterwards, all wait for each other: nobody is listening. `dist.batch_isend_irecv` starts both at once and returns a list of requests, to each of which you `wait()`. It takes
# a list of `dist.P2POp(dist.isend, tensor, to_rank)` and `dist.P2POp(dist.irecv, tensor, from_rank)`. `vector.tensor_split(n)` returns n views.


# %% name="ring" answer=true reveal=true
def ring_all_reduce(vector):
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = vector.tensor_split(n)
    for step in range(2 * (n - 1)):
        leaving, ours = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        arriving = torch.empty_like(ours)
        send = dist.P2POp(dist.isend, leaving, (rank + 1) % n)
        receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)
        for request in dist.batch_isend_irecv([send, receive]):
            request.wait()
        if step < n - 1:
            ours += arriving
        else:
            ours.copy_(arriving)
    ### END SOLUTION


# %% name="ring_check"
ring_all_reduce = check("data_parallel.ring", ring_all_reduce)

# %% name="ring_hint"
hint("data_parallel.ring")


# %% name="ring_bytes"
def ring_traffic(numbers):
    vector = torch.randn(numbers, device=rank_device())
    with Messages() as messages:
        ring_all_reduce(vector)
    return messages.nbytes / vector.nbytes


traffic = {n: run_ranks(ring_traffic, n, 60_000).results[0] for n in (2, 3, 4)}
ring_guess.reveal(traffic[4])
for n, vectors in traffic.items():
    print(f"{n} ranks: each sends {vectors:.3f} vectors; 2 (N - 1) / N is {2 * (n - 1) / n:.3f}")

# %% [markdown] name="cost_text"
# With 1,000 ranks it would be 1.998 vectors. The traffic of a rank stays below two vectors, however many ranks there are: that is why a ring scales. (The number of *rounds* grows. For short messages, libraries use trees, which need fewer.)
#
# ## 3 · What a message costs
#
# A message of n bytes takes about
#
# $$t(n) = \alpha + \frac{n}{\beta}$$
#
# seconds. The **latency** α is what an empty message would take. The **bandwidth** β is how many bytes pass in a second once they flow. Both depend on machine, network and library; the law hardly does.
#
# Here are messages of all sizes from 1 KiB to 4 MiB on this machine. You see the shortest and the longest first.


# %% name="cost"
SIZES = [1024 * 4**k for k in range(7)]  # bytes, up to 4 MiB
HELD_OUT = [96 * 1024, 3 * MiB]  # these are for later


def seconds_of(sizes, rounds=60):
    here = rank_device()
    tensors = [torch.zeros(nbytes // 4, device=here) for nbytes in sizes]
    seconds, dice = [[] for _ in sizes], np.random.default_rng(0)  # all ranks throw alike
    for _ in range(rounds):  # all sizes in each round: a busy moment of the machine meets each of them
        for i in dice.permutation(len(sizes)):  # else one of them would always follow the longest
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensors[i])
            synchronize(here)
            seconds[i].append(time.perf_counter() - start)
    return [min(times[1:]) for times in seconds]  # the first makes connections; the least is what it costs undisturbed


both_ranks = run_ranks(seconds_of, 2, SIZES + HELD_OUT, device=pair, measure=False).results
measured = dict(zip(SIZES + HELD_OUT, map(max, *both_ranks), strict=True))  # the slower rank decides
for nbytes in (SIZES[0], SIZES[-1]):
    print(f"{human_bytes(nbytes):>10}: {1e6 * measured[nbytes]:>9,.0f} µs of this machine")

# %% [markdown] name="guess_cost_text"
# In the short one nearly all is latency, so it tells you α; the extra time of the long one comes from its bytes, so it tells you β.
#
# **Predict.** How many times as long does an all-reduce of 64 KiB take as one of 1 KiB? Work it out from the two figures.

# %% name="guess_cost"
my_guess = None  # seconds of 64 KiB / seconds of 1 KiB
### BEGIN GUESS
latency = measured[1024]
seconds_a_byte = (measured[4 * MiB] - latency) / (4 * MiB)
my_guess = (latency + 64 * 1024 * seconds_a_byte) / latency
### END GUESS
cost_guess = Prediction("Seconds of 64 KiB / of 1 KiB", my_guess, "times")

# %% name="cost_shown"
cost_guess.reveal(measured[64 * 1024] / measured[1024])
for nbytes in SIZES:
    print(f"{human_bytes(nbytes):>10}: {1e6 * measured[nbytes]:>9,.0f} µs of this machine")

# %% [markdown] name="law_task"
# ### Your turn: the law of this machine
#
# **Contract.** `fit_link(sweep)` returns `alpha` (seconds) and `beta` (bytes a second), two floats.
#
# - `sweep` is a list of pairs (bytes, seconds) of two or more sizes, in any order. It is not changed.
# - Where the seconds follow the law, it finds the law.
# - Where every measurement of a sweep from 1 KiB to 16 MiB is off by up to 5 %, alpha and beta are off by no more than a quarter: an error in the largest message must not determine alpha.
# - alpha is never below 0, whatever the noise.
#
# Two well-chosen sizes will do. Least squares will do as well, if you weigh the sizes.


# %% name="law" answer=true reveal=true
def fit_link(sweep):
    ### BEGIN SOLUTION
    nbytes, seconds = np.array(sweep).T
    seconds_a_byte, alpha = np.polyfit(nbytes, seconds, 1, w=1 / seconds)  # every size counts by its relative error
    return max(0.0, float(alpha)), float(1 / seconds_a_byte)
    ### END SOLUTION


# %% name="law_check"
fit_link = check("data_parallel.law", fit_link)

# %% name="law_hint"
hint("data_parallel.law")

# %% name="law_fit"
alpha, beta = fit_link([(nbytes, measured[nbytes]) for nbytes in SIZES])
show(
    pictures.link_figure([(n, measured[n]) for n in SIZES], alpha, beta),
    "Seconds by bytes: flat at first, then a rising line.",
)
print(f"this machine: alpha {1e6 * alpha:,.0f} µs, beta {beta / 1e9:.2f} GB/s")
for nbytes in HELD_OUT:
    off = (alpha + nbytes / beta) / measured[nbytes]
    print(f"{human_bytes(nbytes)}, not in the sweep: the law predicts {off:.2f} times as long as it took")
    claims.figure(
        "alpha + n / beta: predicted / measured", f"all-reduce of {human_bytes(nbytes)}, 2 ranks", off, "times"
    )

# %% [markdown] name="law_explained"
# How good is it? Within a factor of two a law of two numbers is doing well: on one machine "the link" is memory, a cache that some sizes fit and others do not, and two processes that need a core at the same moment. If the
# ratios are far from 1, see whether something else is running, and measure again.
#
# The size at which both terms are equal is n = αβ. Below that size, shorter messages are no cheaper. So it is worth sending few messages.
#
# **Predict.** The model that we train below has 3.5 million parameters in 76 tensors, 13.8 MB of gradients. How many times as long do 76 all-reduces take as a single one with all of it? Use your alpha and beta.

# %% name="guess_many"
my_guess = None  # seconds of 76 messages / seconds of one
### BEGIN GUESS
my_guess = (76 * alpha + 13.8e6 / beta) / (alpha + 13.8e6 / beta)
### END GUESS
many_guess = Prediction("76 messages / one message of the same bytes, seconds", my_guess, "times")


# %% name="many"
def make_gpt():
    torch.manual_seed(0)
    return SmallGPT(layers=6, width=216, heads=4)


def apart_and_together(rounds=6):
    here, seconds = rank_device(), {"apart": [], "together": []}
    apart = [torch.zeros_like(p) for p in make_gpt().to(here).parameters()]
    together = [torch.cat([gradient.flatten() for gradient in apart])]
    for _ in range(rounds):
        for name, messages in (("apart", apart), ("together", together)):
            dist.barrier()
            start = time.perf_counter()
            for message in messages:
                dist.all_reduce(message)
            synchronize(here)
            seconds[name].append(time.perf_counter() - start)
    return min(seconds["apart"][1:]) / min(seconds["together"][1:])


many_guess.reveal(run_ranks(apart_and_together, 2, device=pair, measure=False).results[0])

# %% [markdown] name="byhand_text"
# ## 4 · Averaging gradients by hand
#
# The loss of a batch is a mean over its rows, and the gradient of a mean is the mean of the gradients ([[gradient_accumulation]]). So cut the batch into N equal parts, one for each rank. Each
# rank computes the gradient of its part; the average of those is the gradient of the joint batch.
#
# First the reference: one process, the whole batch of 64.

# %% name="byhand_alone"
data = digits()
x, y = data.train_x[:64].clone(), data.train_y[:64].clone()


def make_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()


def gradient_of(model):
    return flat(p.grad for p in model.parameters())


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


def mine(n=None):
    """Return this rank's part of the batch, on its device."""
    rank, n, here = dist.get_rank(), n or dist.get_world_size(), rank_device()
    return x.chunk(n)[rank].to(here), y.chunk(n)[rank].to(here)


model = make_mlp()
F.cross_entropy(model(x), y).backward()
joint = gradient_of(model)

# %% [markdown] name="guess_byhand_text"
# **Predict.** Four ranks take five steps of SGD, each on its 16 rows, and average their gradients after each backward pass. How many of the four end with *exactly* the weights of rank 0, to the last bit?

# %% name="guess_byhand"
my_guess = None
### BEGIN GUESS
my_guess = 4  # all add the same numbers to the same weights
### END GUESS
byhand_guess = Prediction("Ranks with the weights of rank 0, to the last bit", my_guess, "of 4")


# %% name="byhand"
def average_gradients_by_hand(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def train_by_hand(steps=5):
    model = make_mlp().to(rank_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = mine()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        with Collectives() as said:
            average_gradients_by_hand(model)
        optimizer.step()
    return flat(model.parameters()), said


four, (one,) = (run_ranks(train_by_hand, n, device=ranks_device(4)).results for n in (4, 1))
byhand_guess.reveal(sum(torch.equal(weights, four[0][0]) for weights, _ in four))
print(f"distance from one process on the joint batch, after 5 steps: {distance(four[0][0], one[0]):.1e}")
print("one step sent:", four[0][1])

# %% [markdown] name="byhand_explained"
# These are two different kinds of equal. The ranks agree **to the last bit**: `all_reduce` gives each the same sum, they start from the same weights (the same seed), and the same numbers
# in give the same numbers out. With one process they agree **up to rounding**, because four sums of 16 are added in a different order from one of 64.
#
# There is one message for each of the six parameters, after the backward pass is over. That is right, but slow: you know what each message costs, and meanwhile the
# processor has nothing to do.
#
# ## 5 · Buckets that overlap the backward pass
#
# Two ideas repair that. Pack gradients into **buckets**, so that there are few messages. And send a bucket as soon as the backward pass has filled it, while the rest of the pass goes on.
#
# The backward pass begins at the loss, so the *last* layers have their gradients first. Therefore buckets are filled from the last parameter to the first.
#
# ### Your turn: the buckets
#
# **Contract.** `BucketedAverage(model, bucket_bytes)` is made on every rank. Then each step is `loss.backward()` and `finish()`.
#
# - The parameters that require a gradient go into buckets in the reverse order of `model.parameters()`. A bucket is closed once it holds `bucket_bytes` or more; the last one may hold less.
# - A bucket leaves **during** the backward pass, as soon as it is full and all buckets before it have left. It is one all-reduce of one flat tensor.
# - The backward pass does not wait for answers: `async_op=True`. `finish()` does.
# - `finish()` sends the buckets that have not left, because some parameter got no gradient on this rank. Such a parameter counts as zeros. The order of the buckets is the same on all ranks.
# - After `finish()` each `.grad` is the average over the ranks, as with `DistributedDataParallel`, and the next step can begin. (A parameter that no rank uses may keep None.)
# - Frozen parameters are left alone and not sent.
#
# The cell suggests two more methods; write others if you like. `p.register_post_accumulate_grad_hook(f)` calls `f(p)` when the gradient of p is complete. `dist.all_reduce(tensor, async_op=True)` returns a request to `wait()` for.


# %% name="overlap" answer=true reveal=true
class BucketedAverage:
    def __init__(self, model, bucket_bytes):
        ### BEGIN SOLUTION
        self.buckets = [[]]
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            if sum(q.nbytes for q in self.buckets[-1]) >= bucket_bytes:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.arrived)
        self.ready, self.sent = set(), []
        ### END SOLUTION

    def arrived(self, p):
        """Called when the gradient of p is complete."""
        ### BEGIN SOLUTION
        self.ready.add(p)
        while len(self.sent) < len(self.buckets) and self.ready.issuperset(self.buckets[len(self.sent)]):
            self.send_next()
        ### END SOLUTION

    def send_next(self):
        """Send the next bucket, full or not, and do not wait for it."""
        ### BEGIN SOLUTION
        bucket = self.buckets[len(self.sent)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
        ### END SOLUTION

    def finish(self):
        """Send what has not left, wait for everything, and put the averages where they belong."""
        ### BEGIN SOLUTION
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (flat, request) in zip(self.buckets, self.sent, strict=True):
            request.wait()
            flat /= dist.get_world_size()
            for p, gradient in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = gradient.view_as(p)
        self.ready, self.sent = set(), []
        ### END SOLUTION


# %% name="overlap_check"
BucketedAverage = check("data_parallel.overlap", BucketedAverage)

# %% name="overlap_hint"
hint("data_parallel.overlap")

# %% [markdown] name="guess_overlap_text"
# ### Seen on a timeline
#
# Take the GPT with buckets of 1 MiB: ten of them. A diary notes when each all-reduce is asked for, and when the answer comes. (This runs over gloo on every machine, because the diary reads the clock of the CPU. Between GPUs you would look at a profiler.)
#
# **Predict.** How many of the ten leave *before* the backward pass has finished?

# %% name="guess_overlap"
my_guess = None
### BEGIN GUESS
my_guess = 10  # even the last leaves in the hook of the first layer's parameter, inside backward()
### END GUESS
overlap_guess = Prediction("Buckets that leave before the backward pass has finished", my_guess, "of 10")


# %% name="timeline"
ids = torch.randint(256, (8, 129), generator=torch.Generator().manual_seed(0))


def gpt_loss(model, part):
    part = part.to(next(model.parameters()).device)
    return F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())


def step_with_diary():
    model, part = make_gpt().to(rank_device()), ids.chunk(2)[dist.get_rank()]
    buckets = BucketedAverage(model, 1 * MiB)
    for _ in range(3):  # the last step is the one we look at
        model.zero_grad()
        loss = gpt_loss(model, part)
        with Diary() as diary:
            loss.backward()
            diary.note_computed()
            buckets.finish()
    return diary, gradient_of(model)


diary, own = run_ranks(step_with_diary, 2, device="cpu", measure=False).results[0]
overlap_guess.reveal(sum(entry.asked < diary.computed for entry in diary.entries))
show(
    pictures.bucket_timeline(diary),
    "A bar for the backward pass and one for each of ten buckets, each later than the one before.",
)
print(f"messages were under way while the pass computed: {diary.hidden:.0%} of their time, on this machine")

# %% [markdown] name="timeline_explained"
# Bucket 0 holds the gradients of the last layers, which come first. The last bucket leaves at the very end of the pass and can hide behind nothing. On this machine ranks share
# cores, so messages and arithmetic slow each other down, and the hidden share depends on what else is running. Between GPUs, messages have their own wires and engines, and hiding them is what overlap is for.
#
# ## 6 · DistributedDataParallel
#
# DDP does what you have written, in C++, and it copies rank 0's parameters to all ranks at the start.
#
# **Predict.** By default DDP's first bucket closes at 1 MiB, so that communication starts early; the next ones close at 25 MiB. How many all-reduces does one backward pass of the GPT take?

# %% name="guess_buckets"
my_guess = None
### BEGIN GUESS
my_guess = 2  # 14 MB of gradients: the first MiB, and all the rest in one
### END GUESS
buckets_guess = Prediction("All-reduces in one backward pass", my_guess, "")


# %% name="buckets"
def ddp_talk(bucket_cap_mb=None):
    model = DistributedDataParallel(make_gpt().to(rank_device()), bucket_cap_mb=bucket_cap_mb)
    part = ids.chunk(dist.get_world_size())[dist.get_rank()]
    steps = []
    for _ in range(3):
        model.zero_grad()
        with Collectives() as said:
            gpt_loss(model, part).backward()
        steps.append(said)
    return steps, gradient_of(model)


steps, ddp_gradient = run_ranks(ddp_talk, 2, device="cpu").results[0]
phi = sum(p.numel() for p in make_gpt().parameters())
buckets_guess.reveal(steps[-1].count("all_reduce"))
for i, said in enumerate(steps):
    print(f"step {i}: {said}")
print(f"{phi:,} parameters; distance of your gradient from DDP's: {distance(own, ddp_gradient):.1e}")
sent = sum(c.nbytes for c in steps[-1].calls if c.name == "all_reduce") / (4 * phi)
claims.record("C13", "gradients are all-reduced, once each", "GPT, DDP, 2 ranks", sent, "x gradients", 0.999, 1.001)

# %% [markdown] name="buckets_explained"
# The first step is special. DDP cannot know the order in which gradients will arrive, so it sends everything as one message and records the order. Before the second step
# it builds the buckets in that order. Rank 0 tells the others (two small broadcasts of bucket indices and sizes), because all must pack alike.
#
# Smaller buckets mean more messages, which can start earlier; larger ones mean fewer. `bucket_cap_mb` sets the limit, for the first bucket too.

# %% name="caps"
for cap in (0.25, 1, 25):
    said = run_ranks(ddp_talk, 2, cap).results[0][0][-1]
    print(f"bucket_cap_mb={cap:<5} {said.count('all_reduce'):>3} all-reduces of {said.volume // 2:,} bytes in all")

# %% [markdown] name="memory_text"
# ### Memory
#
# **Predict.** Two GPUs instead of one. Each rank now sees half of the batch. By what factor do parameters + gradients + optimizer state fall, on each?

# %% name="guess_memory"
my_guess = None
### BEGIN GUESS
my_guess = 1  # every rank holds all of them
### END GUESS
memory_guess = Prediction("Parameters, gradients and state: one process / one of two ranks", my_guess, "times")


# %% name="memory_step"
def held_in_a_step(kind):
    model = make_gpt().to(rank_device())
    wrapped = model if kind == "alone" else DistributedDataParallel(model, gradient_as_bucket_view=kind == "view")
    optimizer = torch.optim.AdamW(model.parameters())
    part = ids.chunk(dist.get_world_size())[dist.get_rank()]
    for step in range(3):  # buckets are rebuilt in the first step, and Adam's state is made
        with MemoryMeter(model, optimizer) if step == 2 else contextlib.nullcontext() as meter:
            optimizer.zero_grad()
            gpt_loss(wrapped, part).backward()
            optimizer.step()
    after = next(stage.held_after for stage in meter.stages if stage.name == "backward")
    static = sum(meter.largest[tenant] for tenant in ("parameters", "gradients", "optimizer state"))
    return meter.at_peak, static, sum(after.values())


# %% name="memory"
runs = {"1 process, batch of 8": (1, "alone"), "DDP, 2 ranks": (2, "ddp"), "DDP, gradients are views": (2, "view")}
held = {
    name: run_ranks(held_in_a_step, n, kind, device=pair, measure=False).results[0] for name, (n, kind) in runs.items()
}
first, ddp, views = held
memory_guess.reveal(held[first][1] / held[ddp][1])
table = [("", "parameters, gradients, state", "all that is held after backward", "peak")]
table += [
    (name, human_bytes(static), human_bytes(after), human_bytes(sum(at_peak.values())))
    for name, (at_peak, static, after) in held.items()
]
print(text_table(table))
show(
    tenant_bars({name: at_peak for name, (at_peak, _, _) in held.items()}, TENANTS, "At the peak, on one rank"),
    "Parameters and optimizer state are the same in all runs; DDP adds one more block the size of the gradients and halves the activations.",
)
kept = held[ddp][1] / held[first][1]
claims.record("C13", "memory 1x per GPU: static part", "GPT, AdamW, 2 ranks", kept, "x one process", 0.99, 1.01)
for name in (ddp, views):
    extra = (held[name][2] - held[first][2]) / (4 * phi)
    claims.record("C13", "memory 1x per GPU, buckets included", name, extra, "x gradients", -0.05, 0.06)

# %% [markdown] name="memory_explained"
# Data parallelism does not save a single static byte: that takes sharding ([[sharding]]). Activations are those of the rank's own rows, as if you had accumulated ([[gradient_accumulation]]).
#
# And it has a price that few articles mention: the buckets are separate buffers (the meter files them under *inputs and other*), one more copy of all gradients. With `gradient_as_bucket_view=True` each `.grad` *is* a slice of its bucket, and after the backward
# pass the copy is gone.
#
# Look at the peak, though: here views save nothing, and cost a little (each new gradient is made first and then copied into place). The peak is at the start of the backward pass, when activations are at their highest. A single process holds no gradients at that moment; DDP's buckets are there all the time, views or not. What views save is one copy
# during the optimizer step.
#
# ### Speed
#
# "N GPUs, about N times the speed." The fair comparison on this machine is one process with one thread against two ranks with one thread each, and the same batch for each rank (so twice the rows a step).
#
# But who says that this machine has twice as much to give? Caches and memory are shared, and somebody else may be using the cores. So there is a control: two ranks that train side by side and never talk. What they reach is what DDP could reach at best.
#
# **Predict.** What share of the control's speed does DDP keep here?

# %% name="guess_speed"
my_guess = None  # rows a second of DDP / rows a second of two ranks that never talk
### BEGIN GUESS
my_guess = 0.9
### END GUESS
speed_guess = Prediction("DDP's rows a second / those of two silent ranks", my_guess, "")


# %% name="speed_step"
larger = digits(size=16)


def rows_per_second(talk):
    torch.set_num_threads(1)
    here, rank = rank_device(), dist.get_rank()
    torch.manual_seed(0)
    model = SmallCNN(24).to(here)
    model = DistributedDataParallel(model) if talk else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = (t[64 * rank : 64 * rank + 64].to(here) for t in (larger.train_x, larger.train_y))
    for step in range(16):
        if step == 1:  # the first warms up
            dist.barrier()
            start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(xs), ys).backward()
        optimizer.step()
    dist.barrier()
    return 64 * 15 * dist.get_world_size() / (time.perf_counter() - start)


# %% name="speed"
ways = {"one rank": (1, False), "two that never talk": (2, False), "two with DDP": (2, True)}
rounds = [  # all three in each round, so that a slow moment of the machine meets all
    [run_ranks(rows_per_second, n, talk, device=pair, measure=False).results[0] for n, talk in ways.values()]
    for _ in range(3)
]
one, silent, ddp = (max(rows) for rows in zip(*rounds, strict=True))  # the least disturbed of three
for name, rows in zip(ways, (one, silent, ddp), strict=True):
    print(f"{name:<20}{rows:>8,.0f} rows a second")
speed_guess.reveal(ddp / silent)
print(f"two ranks that never talk: {silent / one:.2f} times as many as one; with DDP: {ddp / one:.2f} times")
claims.figure("speed of two ranks", "CNN, 2 ranks of one thread", ddp / one, "times that of one")
said = "DDP keeps the speed of N ranks"
if silent / one < 1.2:
    print("This machine has no second core to give at the moment: too busy to tell what DDP keeps.")
    claims.not_measured("C13", said, "CNN, 2 ranks: the machine is too busy")
else:
    claims.record("C13", said, "CNN, 2 ranks of one thread", ddp / silent, "of two silent ranks", 0.6, torch.inf)

# %% [markdown] name="speed_explained"
# Two figures, two causes. What two silent ranks lose against twice the speed, they lose to the machine: caches and memory are shared, and so are the cores if other programs run. What DDP loses against them is the price of talking: the last bucket
# hides behind nothing, and at the end of each backward pass the faster rank waits for the slower one. On a cluster the question is whether the backward pass is
# long enough to hide the messages: a large micro-batch helps, a slow network hurts. Section 12 has a slider for that.
#
# ## 7 · Who gets which rows
#
# Each rank runs its own `DataLoader`; a `DistributedSampler` gives it every N-th index of a shuffled list. All ranks shuffle with the same seed, so that the parts fit together. The order depends on
# `seed + epoch`, and only you can tell the sampler which epoch it is.
#
# **Predict.** Ten rows, two ranks, three epochs, and nobody calls `set_epoch`. How many of the ten rows does rank 0 ever see?

# %% name="guess_sampler"
my_guess = None
### BEGIN GUESS
my_guess = 5  # one order for ever, so always the same half
### END GUESS
sampler_guess = Prediction("Rows that rank 0 sees in three epochs without set_epoch", my_guess, "of 10")


# %% name="sampler"
def order(epochs, tell):
    sampler = DistributedSampler(range(10), shuffle=True, seed=0)
    seen = []
    for epoch in range(epochs):
        if tell:
            sampler.set_epoch(epoch)
        seen.append(list(sampler))
    return seen


orders = {tell: run_ranks(order, 2, 3, tell).results for tell in (True, False)}
sampler_guess.reveal(len({row for epoch in orders[False][0] for row in epoch}))
for tell, (first_rank, second_rank) in orders.items():
    print("with set_epoch:" if tell else "without:")
    for epoch, (a, b) in enumerate(zip(first_rank, second_rank, strict=True)):
        print(f"  epoch {epoch}: rank 0 {a}, rank 1 {b}")
    different = len({tuple(part) for part in first_rank})
    said = f"{'with' if tell else 'without'} set_epoch: {'a new order each epoch' if tell else 'one order for ever'}"
    claims.record("P7", said, "3 epochs", different, "orders", *((3, 3) if tell else (1, 1)))

# %% [markdown] name="sampler_explained"
# Without `set_epoch` every epoch goes through the rows in the same order, and rank 0 never sees what rank 1 has. Nothing crashes; each rank just sees half of the data for ever. Look for the call in any script you inherit.
#
# ### Ten rows, four ranks
#
# Ten is not divisible by four. The sampler pads with rows from the front, so that all ranks have the same number.
#
# **Predict.** A model is right on rows 2 to 9 and wrong on rows 0 and 1: an accuracy of 0.8. What does the average over the ranks' shares say?

# %% name="guess_padding"
my_guess = None
### BEGIN GUESS
my_guess = 8 / 12  # twelve rows: 0 and 1 count twice
### END GUESS
padding_guess = Prediction("Accuracy over the padded shares", my_guess, "")

# %% name="padding"
shares = run_ranks(lambda: list(DistributedSampler(range(10), shuffle=False)), 4).results
scores = [0.0, 0.0] + 8 * [1.0]  # right or wrong, row by row
padded = sum(scores[row] for share in shares for row in share) / sum(len(share) for share in shares)
padding_guess.reveal(padded)
print("shares:", shares)
claims.record("P7", "padding falsifies a metric", "10 rows, 4 ranks", abs(padded - sum(scores) / 10), "off", 0.01, 1)

# %% [markdown] name="padding_explained"
# For training this does not matter (`drop_last=True` drops rows instead). For **evaluation** it does: rows 0 and 1 count twice. Give each rank `range(rank, n, world_size)`, sum right answers and rows separately, and
# divide once, at the end.

# %% [markdown] name="seeds_text"
# ## 8 · Ways to get it wrong
#
# ### Different weights at the start
#
# We average by hand, with a different seed on each rank. The gradients are averaged correctly, and every step moves all ranks by the same amount.
#
# **Predict.** How far apart are the two replicas after 20 steps, relative to how far apart they were at the start?

# %% name="guess_seeds"
my_guess = None
### BEGIN GUESS
my_guess = 1  # the same moves for both: the difference stays what it was
### END GUESS
seeds_guess = Prediction("Distance of the replicas after 20 steps / at the start", my_guess, "times")


# %% name="seeds"
def from_own_seed(how):
    model = make_mlp(seed=dist.get_rank()).to(rank_device())
    before = flat(model.parameters())
    wrapped = DistributedDataParallel(model) if how == "DDP" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    xs, ys = mine()
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(wrapped(xs), ys).backward()
        if how == "by hand":
            average_gradients_by_hand(model)
        optimizer.step()
    return before, flat(model.parameters())


(before_a, a), (before_b, b) = run_ranks(from_own_seed, 2, "by hand").results
seeds_guess.reveal(((a - b).norm() / (before_a - before_b).norm()).item())
(_, c), (_, d) = run_ranks(from_own_seed, 2, "DDP").results
print(
    f"largest difference of a weight between the ranks: by hand {(a - b).abs().max():.2g}, DDP {(c - d).abs().max():.2g}"
)
said = "different seeds: replicas never meet"
claims.record("P7", said, "MLP, 20 steps by hand", distance(a, b), "relative", 0.1, torch.inf)
claims.record("P7", "DDP starts all from rank 0", "MLP, 20 steps", distance(c, d), "relative", 0, 0)

# %% [markdown] name="seeds_explained"
# DDP's constructor sends rank 0's parameters and buffers to all. So with DDP you are safe, as long as nobody changes the weights behind its back afterwards (by loading a checkpoint on rank 0 only, say).
# Randomness is another matter: dropout and augmentation *should* differ between ranks. Make the model from the same seed everywhere, and then add the rank to the seed.
#
# ### Unequal batches
#
# DDP divides the sum of gradients by the number of ranks. One rank has 60 rows, the other 4.
#
# **Predict.** How many times the weight of one of the 60 does one of the four rows get?

# %% name="guess_unequal"
my_guess = None
### BEGIN GUESS
my_guess = 60 / 4  # each rank's mean counts half
### END GUESS
unequal_guess = Prediction("Weight of a row on the rank with 4 / with 60", my_guess, "times")


# %% name="unequal"
def unequal(weigh):
    rank, here = dist.get_rank(), rank_device()
    model = nn.Linear(64, 10, bias=False).to(here)
    nn.init.zeros_(model.weight)
    ddp = DistributedDataParallel(model)
    rows, labels = torch.eye(64).split((60, 4))[rank].to(here), y.split((60, 4))[rank].to(here)
    loss = F.cross_entropy(ddp(rows), labels)
    if weigh:
        loss = loss * len(rows) * dist.get_world_size() / 64
    loss.backward()
    return model.weight.grad.cpu()  # row i of the identity has its gradient in column i, and there alone


plain, weighed = (run_ranks(unequal, 2, weigh).results[0] for weigh in (False, True))
unequal_guess.reveal((plain[:, -1].norm() / plain[:, 0].norm()).item())
alike = F.one_hot(y, 10).T  # of one process on the joint batch: (softmax of zeros - one_hot) / 64
whole = (0.1 - alike) / 64
print(
    f"distance from the joint batch: mean of means {distance(plain, whole):.1e}, by rows {distance(weighed, whole):.1e}"
)
said = "unequal batches: the mean of means is wrong"
claims.record("P7", said, "60 and 4 rows", distance(plain, whole), "relative", 0.01, torch.inf)
claims.record("P7", "weighing by rows repairs it", "60 and 4 rows", distance(weighed, whole), "relative", 0, 1e-5)

# %% [markdown] name="average_text"
# The repair here multiplies the loss before the backward pass. Now do it with the gradients.
#
# ### Your turn: average with unequal rows
#
# **Contract.** `average_gradients(model, rows)` is called on every rank after a backward pass. Afterwards each `.grad` is the gradient of the **joint** batch: the mean over the rows of all ranks.
#
# - Before the call each `.grad` is that of the **mean** loss over this rank's own `rows` rows. Ranks may have different numbers of rows.
# - A rank with 0 rows has run no backward pass: its `.grad`s are `None`. It still takes part, and has gradients afterwards.
# - Parameters with `requires_grad=False` keep `.grad` None on all ranks. No other parameter is unused.
# - Use only collectives from `torch.distributed`, and send each gradient about once (do not send everything to every rank). Return nothing.


# %% name="average" answer=true reveal=true
def average_gradients(model, rows):
    ### BEGIN SOLUTION
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.tensor(float(rows), device=trained[0].device)
    dist.all_reduce(total)
    for p in trained:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        p.grad *= rows / total.item()
        dist.all_reduce(p.grad)
    ### END SOLUTION


# %% name="average_check"
average_gradients = check("data_parallel.average", average_gradients)

# %% name="average_hint"
hint("data_parallel.average")

# %% [markdown] name="rank0_text"
# ### A collective that not all reach
#
# Evaluating the *wrapped* model on rank 0 only deadlocks if the model has BatchNorm: DDP's forward pass broadcasts the buffers. `run_ranks` ends it after its time limit and asks every rank where it is. We use gloo here on every machine (`device="cpu"`), because over gloo a rank stands where it waits:


# %% name="rank0"
def evaluate_on_rank_0(through):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(SmallCNN(8).to(rank_device()))
    if dist.get_rank() == 0:
        model = ddp if through == "ddp" else ddp.module
        with torch.no_grad():
            model(x.to(rank_device()))
    dist.barrier()
    return "done"


for through, limit in (("ddp", 4), ("ddp.module", 60)):  # seconds
    try:
        print(f"through {through}:", run_ranks(evaluate_on_rank_0, 2, through, device="cpu", timeout=limit).results)
    except RankError as error:
        print(f"through {through}: {error}\n")

# %% [markdown] name="rank0_explained"
# Look closely at the first report: each rank is *in* a collective, but not the same one. Rank 0 sends a broadcast that rank 1 never joins; rank 1 is at a barrier that rank 0 has not reached. That is gloo, which matches each call with its own kind. NCCL does not check: a barrier is an all-reduce there, it meets the broadcast on the same connections, and the result is undefined (a hang, a crash or wrong data; NCCL documentation, *Collective Operations*). Call `ddp.module` where only one rank works.
#
# The same happens when one rank has a batch more than the others. `DistributedSampler` gives all ranks the same number. Where that is not possible, `Join` lets a rank that is done keep answering the collectives of those still at work:


# %% name="hang"
def uneven():
    model = DistributedDataParallel(make_mlp().to(rank_device()))
    with Join([model]):
        for _ in range(3 if dist.get_rank() == 0 else 2):  # without Join, rank 0 would wait for ever
            F.cross_entropy(model(x.to(rank_device())), y.to(rank_device())).backward()
    return "done"


print("with Join:", run_ranks(uneven, 2).results)

# %% [markdown] name="batchnorm_text"
# ### BatchNorm
#
# Everything said about "the update of the joint batch" holds for models whose rows do not see each other. BatchNorm normalises with the rows of *its own rank*:


# %% name="batchnorm"
def cnn_gradient(sync):
    torch.manual_seed(0)
    model = SmallCNN(16).to(rank_device())
    if sync:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    ddp = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
    xs, ys = mine()
    F.cross_entropy(ddp(xs), ys).backward()
    return gradient_of(model)


whole = run_ranks(cnn_gradient, 1, False, device=pair).results[0]
apart = distance(run_ranks(cnn_gradient, 2, False, device=pair).results[0], whole)
print(f"CNN with BatchNorm, 2 ranks of 32 rows: distance from the joint batch {apart:.2g}")
said = "BatchNorm: two ranks are not the joint batch"
claims.record("P7", said, "CNN, 2 x 32 rows", apart, "relative", 0.01, torch.inf)
if pair.type == "cuda":
    together = distance(run_ranks(cnn_gradient, 2, True, device=pair).results[0], whole)
    print(f"with SyncBatchNorm: {together:.2g}")

# %% [markdown] name="batchnorm_explained"
# It is the same as with accumulation ([[gradient_accumulation]]). On GPUs `SyncBatchNorm.convert_sync_batchnorm(model)` computes the statistics over all ranks, at the price of a small collective in each such layer. Running statistics differ too: each forward pass in training mode
# starts from those of rank 0, which are also the ones in rank 0's checkpoint.
#
# ### A branch that not all take
#
# A part of the model that gets no gradient leaves its bucket unfilled. Your `finish()` sends it all the same. DDP has no such call, and notices in the next forward pass:


# %% name="unused"
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.rare_head = make_mlp(), nn.Linear(10, 10), nn.Linear(10, 10)

    def forward(self, x):
        return self.head(self.body(x))


def unused(find):
    model = DistributedDataParallel(TwoHeads().to(rank_device()), find_unused_parameters=find)
    for _ in range(2):
        F.cross_entropy(model(x.to(rank_device())), y.to(rank_device())).backward()
    return "done"


try:
    run_ranks(unused, 2, False)
except RankError as error:
    print(str(error).partition("raised ")[2][:220], "...")
print("\nfind_unused_parameters=True:", run_ranks(unused, 2, True).results)

# %% [markdown] name="unused_explained"
# `find_unused_parameters=True` walks the graph after each forward pass and marks the parameters that will get no gradient. That is work in every step, so use it only when you must. Parameters that are frozen (`requires_grad=False`) before the model is wrapped
# cost nothing and are left alone.
#
# ### Everybody saves
#
# Two ranks write a checkpoint to the same file at the same time:


# %% name="saving"
def save(path, everybody):
    rank = dist.get_rank()
    block = bytes([65 + rank]) * 1000  # rank 0 writes A, rank 1 writes B
    if everybody or rank == 0:
        with open(path, "wb", buffering=0) as file:
            race = (0, 200, 0) if rank == 0 else (100, 0, 100)  # disks and networks favour now one rank, now the other
            for blocks in race if everybody else (200,):
                dist.barrier() if everybody else None
                file.write(block * blocks)
    dist.barrier()  # nobody reads before it is written
    return Path(path).read_bytes()


for everybody in (True, False):
    with tempfile.TemporaryDirectory() as folder:
        content = run_ranks(save, 2, f"{folder}/checkpoint.pt", everybody).results[0]
    writers = len(set(content))
    print(f"{'each rank saves' if everybody else 'rank 0 saves'}: {len(content):,} bytes from {writers} writer(s)")
    said = "saving from every rank mixes the file" if everybody else "saving from rank 0 does not"
    claims.record("P7", said, "2 ranks, 1 file", writers, "writers", *((2, 2) if everybody else (1, 1)))

# %% [markdown] name="straggler_text"
# (Here barriers force the race; on a cluster it happens by itself.) The rule has three parts: rank 0 saves, **then** comes a barrier, then anybody may read or leave.
#
# ## 9 · The slow rank and the stuck rank
#
# Suppose that one GPU runs hot and slows down. Every step then takes as long as the slowest rank, and all the others wait. Which one is it? Each rank can time its own all-reduces. (Over NCCL a call only queues: there, time with CUDA events, or take the shortest NCCL kernel from a trace.) Here computing is a nap: 20 ms on three ranks, 80 ms on rank 2.
#
# **Predict.** How does the time that rank 2 spends in the all-reduce compare with that of the others?

# %% name="guess_straggler"
my_guess = None  # seconds in all_reduce: the slow rank / the others
### BEGIN GUESS
my_guess = 0.05  # the others are there already when it comes
### END GUESS
straggler_guess = Prediction("Time in the all-reduce: the slow rank / the others", my_guess, "")


# %% name="straggler"
def naps():
    nap = 0.08 if dist.get_rank() == 2 else 0.02
    gradient, working, waiting = torch.ones(1000), [], []
    for _ in range(8):
        start = time.perf_counter()
        time.sleep(nap)
        asked = time.perf_counter()
        dist.all_reduce(gradient)
        working.append(asked - start)
        waiting.append(time.perf_counter() - asked)
    return np.median(working), np.median(waiting)


working, waiting = zip(*run_ranks(naps, 4, device="cpu", measure=False).results, strict=True)
straggler_guess.reveal(waiting[2] / np.median([waiting[rank] for rank in (0, 1, 3)]))
show(
    pictures.waiting_bars(working, waiting),
    "Four bars of nearly one length; ranks 0, 1 and 3 spend most of it in the all-reduce.",
)

# %% [markdown] name="straggler_explained"
# The rank that waits **least** is the slow one. In a profile of any single healthy rank, communication looks terrible, and it is not communication at all. So gather the waiting times of all ranks (one `all_gather` of one number) before you blame the network.
#
# ### Stuck: a timeout, shown for real
#
# A process group has a **timeout**: half an hour over gloo, ten minutes over NCCL, unless `init_process_group(timeout=...)` says otherwise. Here it is two seconds. After its second step rank 0, and no other, broadcasts its loss, "only for the log".
#
# Each group also has a **flight recorder**, a ring buffer of its last calls (`TORCH_FR_BUFFER_SIZE` of them), each with the line it came from. When the timeout strikes, every rank writes its own to a file.

# %% [markdown] name="guess_flight_text"
# **Predict.** Count the collectives of each rank in the cell below, from 1. At which number do the two records part?

# %% name="guess_flight"
my_guess = None
### BEGIN GUESS
my_guess = 3  # two all-reduces each; then a broadcast on rank 0, an all-reduce on rank 1
### END GUESS
flight_guess = Prediction("Number of the first collective in which the ranks differ", my_guess, "")


# %% name="flight"
def stuck(folder, seconds):
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    gradient, said = torch.ones(1000), "done"
    try:
        for step in range(4):
            dist.all_reduce(gradient)
            if dist.get_rank() == 0 and step == 1:
                dist.broadcast(torch.ones(5), src=0)
    except RuntimeError as error:
        said = str(error).partition("] ")[2]
    recorded = write_flight_record(folder)
    dist.destroy_process_group()
    return said, recorded


for seconds in (2, 15):  # on a busy machine an all-reduce may take longer than two
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_ranks(stuck, 2, folder, seconds, device="cpu", process_group=False, measure=False).results
        calls, report = calls_in(folder), flight_report(folder) if outcome[0][1] else ""
    parts = [i for i, pair in enumerate(zip(*calls.values(), strict=False), 1) if pair[0][:2] != pair[1][:2]]
    if parts or not report:
        break
for rank, (said, recorded) in enumerate(outcome):
    print(f"rank {rank}: {said}; {recorded} calls recorded")
if parts:
    flight_guess.reveal(parts[0])
    print(report)
elif report:
    print("This machine is too busy: the ranks timed out before they parted.")
else:
    print("This version of PyTorch records no calls of gloo; from 2.13 on it does.")

# %% [markdown] name="flight_explained"
# Both ranks only know that somebody did not answer. Put side by side, the records say where they parted: `torchfrtrace FOLDER` matches the n-th call of each rank with the n-th of the others, and stops at the first that does not fit. Beware of the word *culprit*: it is whoever differs from the first rank. Here the report calls rank 1 the culprit, and it is rank 0 that does what no other does. (`--just_print_entries` shows all calls; it needs the package `tabulate`.)
#
# The recorder works over gloo in PyTorch 2.13, but the group has no name in the dump, and `torchfrtrace` stops with a `KeyError`; the helper fills the name in. Over gloo no call ever leaves the state *scheduled*. Over NCCL it goes on to *started* and *completed*, so you also see who came to the call and did not finish it.
#
# **Over NCCL** a call only queues its collective on the GPU, and Python goes on. A hung rank's stack shows a later line, where it first needs a result: at `loss.item()`, or in `torch.cuda.synchronize()`. So "where does it stand?" says little there, and the recorder is the tool. Set
#
# ```
# TORCH_FR_BUFFER_SIZE=2000  TORCH_NCCL_DUMP_ON_TIMEOUT=1  TORCH_FR_DUMP_TEMP_FILE=/shared/run7/rank_
# ```
#
# and after the timeout a watchdog thread writes one file for each rank and ends the process. It also prints lines such as these, shortened, from a report to NVIDIA (github.com/NVIDIA/nccl/issues/1409):
#
# ```
# [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80078, OpType=BROADCAST, NumelIn=5056, ...)
# [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=80078, OpType=ALLREDUCE, NumelIn=2106881, ...)
# ```
#
# You can read them now. Both ranks are at their call number 80,078, and the calls are different: rank 7 took another way through the program. It is no fault of the network, though it was reported as one.
#
# <details><summary><code>NCCL_DEBUG</code>: which lines to look for</summary>
#
# `NCCL_DEBUG=WARN` prints what goes wrong, `NCCL_DEBUG=INFO` also how the ranks found each other; `NCCL_DEBUG_SUBSYS=INIT,COLL` chooses, `NCCL_DEBUG_FILE=nccl.%h.%p` sends it to a file for each process. A line begins with host, process, thread and the number of the GPU.
#
# | line | says |
# |---|---|
# | `NCCL INFO Bootstrap : Using eth0:...` | by which network interface the ranks met; the wrong one, and they never meet: `NCCL_SOCKET_IFNAME` |
# | `NCCL INFO Using network Socket` (or `IB`) | what carries messages between machines; `Socket` where you have paid for InfiniBand explains slow training |
# | `NCCL INFO Channel 01 : 0[...] -> 1[...] via P2P` (or `SHM`, `NET`) | an edge of a ring: rank 0 sends to rank 1 directly, through the host's memory, or over the network |
# | `NCCL INFO comm 0x... rank 0 nranks 2 ... Init COMPLETE` | this rank is ready; a rank without this line is the one the others wait for |
# | `NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000` | two ranks on one GPU: somebody forgot `torch.cuda.set_device(local_rank)` |
#
# (No cell has measured these: the table is from NVIDIA's documentation and from published logs.)
# </details>
#
# ## 10 · N times the batch: which learning rate?
#
# Eight ranks with 16 rows each are a batch of 128. In the same number of epochs there is an eighth of the updates. Goyal et al. (2017) multiply the learning rate by N (**linear scaling**): eight small steps in nearly the same direction are one step of eight times the length. Others take the square root of N.
#
# To find out we need no ranks: section 4 has shown that the update is that of the joint batch. The helper trains many copies of a small network at once, five seeds for each rate, eight epochs with plain SGD.
#
# **Predict.** With 16 rows and a rate of 0.1 the network reaches a certain training loss. By which factor must the rate grow for the batch of 128 to come nearest to it: 1, 2.8 (the root), 8 or 16?

# %% name="guess_rate"
my_guess = None
### BEGIN GUESS
my_guess = 8
### END GUESS
rate_guess = Prediction("Factor of the rate that comes nearest, from 0.1", my_guess, "times")

# %% name="rate"
FACTORS = (1, 8**0.5, 8, 16)
nearest, table = {}, [("base rate", "batch", "factor of the rate", "training loss", "spread over seeds")]
for base in (0.1, 0.3):
    small = losses_of_copies(16, [base])[0]
    large = losses_of_copies(128, [base * factor for factor in FACTORS])
    warmed = losses_of_copies(128, [8 * base], warm_up=0.2)[0]
    named = [("16", "1", small), *(("128", f"{f:.3g}", losses) for f, losses in zip(FACTORS, large, strict=True))]
    for batch, factor, losses in [*named, ("128", "8, warmed up", warmed)]:
        table.append((f"{base}", batch, factor, f"{losses.mean():.3f}", f"{losses.std():.3f}"))
    ratios = (large.mean(1) / small.mean()).log().abs()
    nearest[base] = FACTORS[int(ratios.argmin())]
rate_guess.reveal(nearest[0.1])
print(text_table(table))
print(f"from 0.3, the nearest is a factor of {nearest[0.3]:.3g}")
for base, factor in nearest.items():
    claims.record("", "N times the batch wants N times the rate", f"SGD from {base}, N = 8", factor, "times", 7, 9)

# %% [markdown] name="rate_explained"
# With the rate left alone, the large batch has simply done too little: an eighth of the updates, of the same length. From 0.1 a factor of 8 brings it nearer than the others to where the small batch was. From 0.3 the same rule asks for 2.4, and training breaks down: eight steps are one long step only as long as the gradient changes little on the way. There a smaller factor is the best there is, and nothing brings back what the small batch reached.
#
# A warm-up is meant to help over the first steps, where the gradient changes fastest. Look at its rows: at a rate that stays too high it does not save the run, and in a run this short it costs updates.
#
# So linear scaling is a first guess that fails beyond some batch size. Adam's steps have a length that does not depend on the gradient's, and the square root is the usual first guess there. How far a batch can grow at all is the critical batch size of [[gradient_accumulation]].
#
# ## 11 · Accumulation: `no_sync`
#
# With accumulation, DDP averages after each micro-batch, though only the last one needs it. `no_sync()` holds it back.
#
# **Predict.** There are four micro-batches in an update. By what factor do the bytes that a rank sends fall with `no_sync` on the first three?

# %% name="guess_nosync"
my_guess = None
### BEGIN GUESS
my_guess = 4  # once instead of four times
### END GUESS
nosync_guess = Prediction("Bytes sent without no_sync / with it", my_guess, "times")


# %% name="nosync"
def accumulate(hold, forward_outside=False):
    model = make_mlp().to(rank_device())
    ddp = DistributedDataParallel(model)
    pieces = list(zip(*(part.split(8) for part in mine()), strict=True))
    for _ in range(2):
        ddp.zero_grad()
        with Collectives() as said:
            for i, (xm, ym) in enumerate(pieces):
                silent = hold and i < len(pieces) - 1
                loss = F.cross_entropy(ddp(xm), ym) if forward_outside else None
                with ddp.no_sync() if silent else contextlib.nullcontext():
                    loss = loss if forward_outside else F.cross_entropy(ddp(xm), ym)
                    (loss / len(pieces)).backward()
    return gradient_of(model), said


ways = {"without no_sync": (False,), "with no_sync": (True,), "around the backward pass only": (True, True)}
runs = {name: run_ranks(accumulate, 2, *how).results[0] for name, how in ways.items()}
fewer = runs["without no_sync"][1].volume / runs["with no_sync"][1].volume
nosync_guess.reveal(fewer)
for name, (gradient, said) in runs.items():
    print(f"{name:30} {said.count('all_reduce')} all-reduces, {distance(gradient, joint):.1e} from the joint batch")
claims.record("P7", "no_sync sends once in place of k times", "MLP, 4 micro-batches", fewer, "times", 3.9, 4.1)

# %% [markdown] name="nosync_explained"
# All are right; one communicates less often. (Averages add up: the average of four sums is the sum of four averages.) The last line is the trap: the **forward** pass must be inside `no_sync()` too, because that is where DDP decides whether the coming backward pass will communicate.
#
# ### Mixed precision under DDP
#
# Autocast ([[mixed_precision]]) works as ever, inside each rank: weights and gradients stay FP32, and so does what is sent. To send half as much, a **communication hook** can compress the buckets to BF16 on the way. DDP calls it with each full bucket, and it returns a future that yields the averaged bucket.
#
# **Predict.** The gradient under autocast is some distance from that of FP32. By what factor does that distance grow when it also travels in BF16?

# %% name="guess_amp"
my_guess = None  # distance with BF16 messages / with FP32 messages
### BEGIN GUESS
my_guess = 1.05  # autocast has rounded far more already
### END GUESS
amp_guess = Prediction("Distance from FP32: sent in BF16 / sent in FP32", my_guess, "times")


# %% name="amp"
def in_bf16(_, bucket):  # PyTorch's own is default_hooks.bf16_compress_hook, which needs NCCL
    small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()

    def back(future):
        value = future.value()
        return bucket.buffer().copy_(value[0] if isinstance(value, list) else value)

    return dist.all_reduce(small, async_op=True).get_future().then(back)


def amp(compress):
    model, (xs, ys) = make_mlp().to(rank_device()), mine()
    ddp = DistributedDataParallel(model)
    if compress:
        ddp.register_comm_hook(None, in_bf16)
    with Collectives() as said:
        with torch.autocast(rank_device().type, torch.bfloat16):
            loss = F.cross_entropy(ddp(xs), ys)
        loss.backward()
    return gradient_of(model), said, {str(p.grad.dtype) for p in model.parameters()}


usual, squeezed = (run_ranks(amp, 2, compress).results[0] for compress in (False, True))
amp_guess.reveal(distance(squeezed[0], joint) / distance(usual[0], joint))
print(f"autocast: sent {usual[1]}, gradients {usual[2]}\nand compressed: sent {squeezed[1]}, gradients {squeezed[2]}")
whole, half = usual[1].volume / (2 * joint.nbytes), squeezed[1].volume / usual[1].volume
claims.record("C13", "autocast leaves FP32 to be sent", "MLP", whole, "x FP32 traffic", 0.99, 1.01)
claims.record("C13", "a BF16 hook halves it", "MLP", half, "x FP32 traffic", 0.49, 0.51)

# %% [markdown] name="torchrun_text"
# Autocast's own rounding is larger than what the hook adds. With an FP16 scaler there is nothing to do either. Gradients are averaged while they are still scaled, so an overflow on one rank is an overflow on all: a sum with an inf is inf or NaN, and the scaler skips the step for either.
#
# ## 12 · On a server: `torchrun`
#
# On a server there is no notebook. `torchrun` starts the processes, and tells each who it is through the environment: `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` (on this machine), `MASTER_ADDR`, `MASTER_PORT`. `run_ranks` sets the same
# variables, so one function works under both. Here is a whole training script:

# %% name="torchrun"
SCRIPT = """
import os
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", local)         # each rank has a GPU of its own
        torch.cuda.set_device(local)                 # nothing lands on GPU 0 by mistake
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    torch.manual_seed(0)                             # the same weights in each run
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())               # each rank has its own rows
    for step in range(3):
        x = torch.randn(32, 8, device=device)
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)                       # a metric, over all ranks
        if dist.get_rank() == 0:
            print(f"step {step}: loss {total.item() / dist.get_world_size():.3f}", flush=True)
    dist.barrier()                                   # nobody leaves while others still talk
    dist.destroy_process_group()

main()
"""
print(torchrun(SCRIPT, 2))

# %% [markdown] name="torchrun_explained"
# The command was `torchrun --standalone --nproc-per-node=2 train.py`. `set_device` comes first; `device_id` tells NCCL which GPU is this rank's, so that it connects at once and not at the first collective. For more than one machine, see [[sharding]].
#
# > **The older `nn.DataParallel`**, which you still meet in articles, is *one* process with a thread for each GPU. In every step GPU 0 copies the weights to all others, deals out the rows, gathers the outputs, computes the loss alone, and adds up the gradients that come back. So 2 (N − 1) copies of the model pass through GPU 0, where a ring
# > needs less than two in and two out; the threads take turns in one Python; GPU 0 runs out of memory first; nothing overlaps. On a CPU it silently passes everything through. PyTorch's own documentation advises against it, even on one machine.

# %% [markdown] name="play_text"
# ### Play: how far does it scale?
#
# This is a model of one step, not a measurement. Each GPU computes for as long as you say, two thirds of it in the backward pass. A ring takes 2 (N − 1) rounds, each of which costs α + n / (Nβ), from the first bucket on. Whatever does not fit behind the
# backward pass makes the step longer.


# %% name="play"
def scaling(parameters_in_millions, milliseconds_of_compute, link_in_GB_per_second, alpha_in_microseconds):
    compute, speeds = milliseconds_of_compute / 1e3, {}
    for precision, nbytes in (("FP32", 4), ("BF16", 2)):
        speeds[f"gradients in {precision}"] = speed = []
        for n in (2**i for i in range(8)):
            piece = nbytes * parameters_in_millions * 1e6 / n
            talk = 2 * (n - 1) * (alpha_in_microseconds / 1e6 + piece / (link_in_GB_per_second * 1e9))
            speed.append(n * compute / (compute + max(0.0, talk - 2 / 3 * compute)))
    return pictures.scaling_figure(speeds)


explore(
    scaling,
    "Speed against the number of GPUs, for gradients in FP32 and BF16: straight lines that bend down where the link is slow.",
    parameters_in_millions=(1000, range(100, 7001, 100)),
    milliseconds_of_compute=(300, range(50, 1001, 50)),
    link_in_GB_per_second=(100, (1, 3, 10, 25, 50, 100, 400)),
    alpha_in_microseconds=(10, (1, 10, 100, 1000)),
)

# %% [markdown] name="summary_text"
# Make the link slower until 128 GPUs are less than 64 times as fast with FP32 gradients, but still more than that with BF16. What would you change first: the link, the format, or the micro-batch (more compute a step)? And from which α on is latency what counts?
#
# ## 13 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - An all-reduce in a ring: N − 1 rounds of adding, N − 1 of copying, less than two vectors sent by each rank. A message costs α + n/β, so few messages are better than many.
# - Data parallel: the whole model everywhere, a part of the batch each, gradients averaged. The update is that of the joint batch, if all ranks have the same number of rows and nothing like BatchNorm looks across rows.
# - DDP sends each gradient once, in buckets, during the backward pass. It saves no static memory: by default it holds one more copy of the gradients, with `gradient_as_bucket_view=True` none.
# - The rank that waits least in its all-reduces is the slow one. The flight recorder says which call parted the ranks.
# - N times the batch wants up to N times the learning rate, until the rate is too high.
# - Call `set_epoch`. Wrap accumulation in `no_sync`. Save on rank 0, evaluate without padding, and never put a collective where some ranks do not pass.
# - Effective batch = micro-batch × accumulation × ranks.
#
# **What to reach for when.** The model fits on one GPU and you want speed: DDP. It does not fit: shard it ([[sharding]]), or cut up the model itself (labs [[#tensor_parallel]] and [[#pipeline]]).
#
# **Sources.** Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*; Patarasuk and Yuan 2009, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*; Goyal et al. 2017,
# *Accurate, Large Minibatch SGD*; PyTorch documentation, `DistributedDataParallel`, `DistributedSampler`, `init_process_group` (timeouts), `torchrun`; PyTorch tutorials, *Flight Recorder for Debugging Stuck Jobs*; NVIDIA, *NCCL: Environment Variables* and *Collective Operations*.
