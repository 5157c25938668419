# %% [markdown] name="title"
# # Data parallelism
#
# **N workers each hold a full copy of the model, compute on their parts of the batch, and average their gradients after every backward pass. The update is the same as with one process on the joint batch, at up to N times the speed.**
#
# | | |
# |---|---|
# | After this you can | build an all-reduce from sends and receives and state its cost; send gradients in buckets during the backward pass; state what `DistributedDataParallel` sends, when, and in which buckets, and what it costs in memory; start a job with `torchrun` |
# | Time | 90 to 120 minutes; a good place to stop is after section 5 |
# | Difficulty | ●●● |
# | Needs | a CPU, where ranks are processes that use gloo; if there is one GPU per rank, the cells use NCCL, which has not been tested yet |
# | Before this | labs [[#start_here]], [[#where_memory_goes]] and [[#gradient_accumulation]] |
# | Syllabus | T18, T34, C13 |
#
# The next lab, [[when_ranks_go_wrong]], gives each rank its rows, measures the speed of two ranks, and shows how ranks fail and how to recognize each failure. The graded exercise X3 follows.

# %% name="setup" setup=true
import time

from helpers import (
    CATEGORIES,
    AllReduceLog,
    Claims,
    Collectives,
    MemoryMeter,
    Messages,
    Prediction,
    SmallGPT,
    category_bars,
    check,
    device_name,
    digits,
    explore,
    hint,
    human_bytes,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    show_table,
    torchrun,
)
from helpers.core.device import synchronize
from helpers.exercises.data_parallel import pictures

# %% name="setup_torch" setup=true
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = pick_device()
MiB = 2**20
pair = ranks_device(2)  # one rank and two ranks are compared on the same kind of device
claims = Claims(device=pair)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"one or two ranks: on {'GPUs, over NCCL' if pair.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="ranks_text"
# ## 1 · Ranks
#
# In PyTorch a worker is a **process**, its number is its **rank**, and the number of workers is the **world size**. There is no coordinator. The ranks communicate through **collectives**, calls that every rank makes. After an `all_reduce`, for example, each rank has the sum of all ranks' tensors. Two libraries carry the messages: **NCCL** between GPUs, **gloo** between CPUs.
#
# The helper `run_ranks(fn, n)` starts *n* real processes, calls `fn` in each, and collects the results and the printed lines. The function and the variables that it uses are **copied** to each rank. A rank changes only its own copies, and only results come back. `rank_device()` is the rank's own GPU or the CPU. By default `run_ranks` also measures the memory that the function uses. `measure=False` turns that off where it would disturb a timer or another measurement.
#
# The collectives, the deadlocks and the bytes are the same as on a cluster. The speed is not.


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
# How can every rank get the sum? All ranks could send everything to rank 0, which adds it up and sends the sum back. But then all traffic goes through one rank, and the time grows with the number of ranks.
#
# In a **ring** each rank communicates with its two neighbors only. It cuts its vector into N chunks. In each round it sends one chunk to the right and receives another from the left. For N − 1 rounds it **adds** the chunk that arrives to its own. After these rounds each rank holds one complete chunk. For another N − 1 rounds the complete chunks go around and are **copied**.

# %% name="ring_picture"
show(
    pictures.ring_figure(4),
    "A table of four ranks and seven rows. Each rank has four chunks, at first with 1 in each. After three rounds of adding, each rank has one chunk with a 4; after three more of copying, all chunks are 4.",
)

# %% [markdown] name="guess_ring_text"
# Work this out before you write the function. With four ranks, how much does each rank send in total, as a multiple of its vector's size?

# %% name="guess_ring"
my_guess = None  # bytes sent by one of four ranks / bytes of its vector
### BEGIN GUESS
my_guess = 6 / 4  # six rounds, a quarter of the vector in each
### END GUESS
ring_guess = Prediction("Sent by one of four ranks", my_guess, "vectors")

# %% [markdown] name="ring_task"
# ### Your turn: the ring
#
# **Contract.** `ring_all_reduce(vector)` is called on every rank, with a vector of the same length and dtype on each.
#
# - Afterwards `vector` holds the sum over all ranks, as after `dist.all_reduce(vector)`. The function changes it in place and returns nothing. `vector` may be a (contiguous) slice of a larger tensor, and the rest of that tensor must not change.
# - It works for any number of ranks, including 1, and any length, including 0. The length need not be divisible by the number of ranks, and may be smaller. Any floating-point dtype is allowed.
# - All ranks end with the same numbers, to the last bit.
# - A rank sends only to `rank + 1` and receives only from `rank - 1` (the ring is closed: rank 0 follows the last rank). It calls no collective.
# - It sends at most 2 (N − 1) messages, each of at most 1/N of the vector, rounded up.
#
# In each round, start the send and the receive together with `dist.batch_isend_irecv`. It takes a list of `dist.P2POp(dist.isend, tensor, to_rank)` and `dist.P2POp(dist.irecv, tensor, from_rank)`, and returns a list of requests. Call `wait()` on each request. `vector.tensor_split(n)` returns n views.


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
# With 1,000 ranks, 2 (N − 1)/N is 1.998. Each rank sends less than twice the size of its vector, for any number of ranks, so a ring scales. (The number of *rounds* grows. For short messages, libraries use trees, which need fewer.)
#
# ## 3 · What an all-reduce costs
#
# An all-reduce of n bytes between two ranks takes about
#
# $$t(n) = \alpha + \frac{n}{\beta}$$
#
# seconds. The **latency** α is the time that an empty all-reduce takes, and the **bandwidth** β is the number of bytes that each rank sends per second in a long one. Both depend on the machine, the network and the library, but the formula usually has this form. (Between two ranks a ring has two rounds, so one round costs α/2. With N ranks the formula is (N − 1) α + 2 (N − 1)/N · n/β.)
#
# The next cell times all-reduces from 1 KiB to 16 MiB on this machine.
#
# **Predict.** An all-reduce of 64 KiB has 64 times as many bytes as one of 1 KiB. How many times as long does it take here?

# %% name="guess_cost"
my_guess = None  # seconds of 64 KiB / seconds of 1 KiB
### BEGIN GUESS
my_guess = 4  # latency is part of both
### END GUESS
cost_guess = Prediction("Seconds of 64 KiB / of 1 KiB", my_guess, "times")

# %% name="cost"
SIZES = [1024 * 4**k for k in range(8)]  # bytes, up to 16 MiB
HELD_OUT = [96 * 1024, 3 * MiB]  # not used in the fit


def seconds_of(sizes, rounds=60):
    here = rank_device()
    tensors = [torch.zeros(nbytes // 4, device=here) for nbytes in sizes]
    seconds, order = [[] for _ in sizes], np.random.default_rng(0)  # the same order on all ranks
    for _ in range(rounds):  # all sizes in each round: a busy moment of the machine affects each of them
        for i in order.permutation(len(sizes)):  # in a fixed order, one size would always follow the longest
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensors[i])
            synchronize(here)
            seconds[i].append(time.perf_counter() - start)
    return [min(times[1:]) for times in seconds]  # the undisturbed cost, without the first, which connects


both_ranks = run_ranks(seconds_of, 2, SIZES + HELD_OUT, device=pair, measure=False).results
slower = [max(times) for times in zip(*both_ranks, strict=True)]  # the slower rank counts
measured = dict(zip(SIZES + HELD_OUT, slower, strict=True))
cost_guess.reveal(round(measured[64 * 1024] / measured[1024], 1))
for nbytes in SIZES:
    print(f"{human_bytes(nbytes):>10}: {1e6 * measured[nbytes]:>9,.0f} µs on this machine")

# %% [markdown] name="fit_task"
# The 1 KiB all-reduce is nearly all latency. The extra time of the 16 MiB one comes from its bytes.
#
# ### Your turn: fit the formula
#
# **Contract.** `fit_link(sweep)` returns `alpha` (seconds) and `beta` (bytes per second), two floats.
#
# - `sweep` is a list of pairs (bytes, seconds) with at least two different sizes, in any order. Do not change it.
# - If the seconds follow the formula exactly, the function returns its alpha and beta.
# - If each measurement of a sweep from 1 KiB to 16 MiB is off by up to 5%, alpha and beta are off by at most 25%. So an error in the time of the largest message must not determine alpha.
# - alpha is never below 0, whatever the noise.
#
# Two well-chosen sizes are enough. Least squares also works if you weight the measurements.


# %% name="fit" answer=true reveal=true
def fit_link(sweep):
    ### BEGIN SOLUTION
    nbytes, seconds = np.array(sweep).T
    seconds_per_byte, alpha = np.polyfit(nbytes, seconds, 1, w=1 / seconds)  # relative errors have equal weight
    return max(0.0, float(alpha)), float(1 / seconds_per_byte)
    ### END SOLUTION


# %% name="fit_check"
fit_link = check("data_parallel.link", fit_link)

# %% name="fit_hint"
hint("data_parallel.link")

# %% name="fit_shown"
alpha, beta = fit_link([(nbytes, measured[nbytes]) for nbytes in SIZES])
show(
    pictures.link_figure([(n, measured[n]) for n in SIZES], alpha, beta),
    "Seconds by bytes: flat at first, then a rising line.",
)
print(f"this machine: alpha {1e6 * alpha:,.0f} µs, beta {beta / 1e9:.2f} GB/s")
ranks, table = 2, [("all-reduce", "algorithm bandwidth", "bus bandwidth")]
for nbytes in SIZES[::2]:
    algorithm = nbytes / measured[nbytes] / 1e9
    table.append((human_bytes(nbytes), f"{algorithm:.3f} GB/s", f"{algorithm * 2 * (ranks - 1) / ranks:.3f} GB/s"))
show_table(table)
for nbytes in HELD_OUT:
    off = (alpha + nbytes / beta) / measured[nbytes]
    print(f"{human_bytes(nbytes)}, not in the sweep: the formula predicts {off:.2f} times the measured time")
    claims.figure(
        "alpha + n / beta: predicted / measured", f"all-reduce of {human_bytes(nbytes)}, 2 ranks", off, "times"
    )
bytes_only = 13.8e6 / beta
times = (76 * alpha + bytes_only) / (alpha + bytes_only)
print(f"13.8 MB in 76 messages instead of one: {times:.1f} times as long, by the formula")

# %% [markdown] name="fit_explained"
# A formula with two numbers does well to come within a factor of two. On one machine "the link" is memory, messages of some sizes fit into a cache and others do not, and two processes compete for cores. If the ratios are far from 1, check whether something else is running, and measure again. NCCL also changes its protocol with the size, so fit the formula to the sizes that you will send.
#
# NVIDIA's *nccl-tests* report two bandwidths. The **algorithm bandwidth** (`algbw`) is n / t. The **bus bandwidth** (`busbw`) is `algbw` times 2 (N − 1)/N, the bytes that each rank actually sends per second. For any N, compare `busbw` with the link's data sheet. For two ranks `algbw` and `busbw` are equal, and by the formula both approach β as messages get longer.
#
# The size at which the two terms are equal is n = αβ. Well below that size, a shorter message is hardly any cheaper. So it pays to send few messages. The model that we train below has 3.5 million parameters in 76 tensors, 13.8 MB of gradients. The last line of the output compares 76 all-reduces, one per tensor, with a single one. (The formula leaves out that ranks also wait for each other.)

# %% [markdown] name="byhand_text"
# ## 4 · Averaging gradients by hand
#
# The loss of a batch is a mean over its rows, and the gradient of a mean is the mean of the gradients ([[gradient_accumulation]]). So cut the batch into N equal parts, one for each rank. Each rank computes the gradient of its part, and the average of these gradients is the gradient of the joint batch.
#
# First comes the reference: one process with the whole batch of 64.

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
# **Predict.** Four ranks take five steps of SGD, each on its 16 rows, and average their gradients after each backward pass. How many of the four pass `torch.equal(weights, weights_of_one_process)`, where the one process trains on all 64 rows?

# %% name="guess_byhand"
my_guess = None  # of the 4 ranks
### BEGIN GUESS
my_guess = 4  # the same gradient, so the same weights
### END GUESS
byhand_guess = Prediction("Ranks with the single process's weights, bit for bit", my_guess, "of 4", difference=True)


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


four = run_ranks(train_by_hand, 4, device=ranks_device(4)).results
one = run_ranks(train_by_hand, 1, device=ranks_device(4)).results[0]
byhand_guess.reveal(sum(torch.equal(weights, one[0]) for weights, _ in four))
print("ranks with the weights of rank 0:", sum(torch.equal(weights, four[0][0]) for weights, _ in four))
print(f"distance from one process on the joint batch, after 5 steps: {distance(four[0][0], one[0]):.1e}")
print("one step sent:", four[0][1])

# %% [markdown] name="byhand_explained"
# There are two kinds of agreement here. The ranks agree with each other **to the last bit**: they start from the same weights (the same seed), `all_reduce` gives each the same sum, and the same inputs give the same results. They agree with the single process only **up to rounding**, because adding four sums of 16 rows rounds differently from one sum over 64 rows.
#
# Each of the six gradients is sent in a message of its own, after the backward pass is over. That is correct but slow: each message costs another α, and the processor is idle while the messages travel.
#
# ## 5 · Buckets that overlap the backward pass
#
# Two ideas make this faster. Pack gradients into **buckets**, so that there are few messages. Then send each bucket as soon as the backward pass has filled it, while the rest of the pass continues.
#
# The backward pass begins at the loss, so the *last* layers have their gradients first. Therefore buckets are filled from the last parameter to the first.
#
# ### Your turn: the buckets
#
# **Contract.** `BucketedAverage(model, bucket_bytes)` is created once on every rank. Each step then calls `loss.backward()` and `finish()`.
#
# - The parameters that require a gradient go into buckets in the reverse order of `model.parameters()`. A bucket is closed once it holds `bucket_bytes` or more; the last one may hold less.
# - A bucket is sent **during** the backward pass, as soon as it is full and all buckets before it have been sent. Each bucket is one all-reduce of one flat tensor.
# - The backward pass does not wait for results: use `async_op=True`. `finish()` waits.
# - `finish()` sends the buckets that have not been sent because some parameter got no gradient on this rank. The gradient of such a parameter counts as zeros. The order of the buckets is the same on all ranks.
# - After `finish()` each `.grad` is the average over the ranks, as with `DistributedDataParallel`, and the next step can begin. (If no rank uses a parameter, its `.grad` may stay None.)
# - Frozen parameters do not change and are not sent.
#
# The cell suggests two more methods; write others if you like. `p.register_post_accumulate_grad_hook(f)` calls `f(p)` when the gradient of p is complete. `dist.all_reduce(tensor, async_op=True)` returns a request; call `wait()` on it.


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
        """Send the buckets that are left, wait for all results, and write the averages into `.grad`."""
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
# ### On a timeline
#
# Take a GPT with 6 blocks, whose gradients fill ten buckets of 1 MiB. PyTorch's profiler records the backward pass, and each all-reduce from its call until its result arrives. `AllReduceLog` runs the profiler and reads these times from its trace. (This runs over gloo on every machine. On GPUs, the trace shows NCCL's kernels on their own stream, next to those of the backward pass.)


# %% name="timeline"
def make_gpt():
    torch.manual_seed(0)
    return SmallGPT(layers=6, width=216, heads=4)


ids = torch.randint(256, (8, 129), generator=torch.Generator().manual_seed(0))


def gpt_loss(model, part):
    part = part.to(next(model.parameters()).device)
    return F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())


def logged_step():
    model, part = make_gpt().to(rank_device()), ids.chunk(2)[dist.get_rank()]
    buckets = BucketedAverage(model, 1 * MiB)
    for _ in range(3):  # the last step is the one we look at
        model.zero_grad()
        loss = gpt_loss(model, part)
        with AllReduceLog() as log:
            loss.backward()
            buckets.finish()
    return log, gradient_of(model)


log, own = run_ranks(logged_step, 2, device="cpu", measure=False).results[0]
early = sum(entry.asked < log.computed for entry in log.entries)
print(f"{early} of {len(log.entries)} buckets were sent before the backward pass had finished")
show(
    pictures.bucket_timeline(log),
    "A bar for the backward pass and one for each of ten buckets, each later than the one before.",
)
print(f"{log.hidden:.0%} of the messages' time was hidden behind the backward pass, on this machine")

# %% [markdown] name="timeline_explained"
# Bucket 0 holds the gradients of the last layers, which come first. The last bucket is sent at the very end of the pass, so hardly any of it can be hidden. On this machine ranks share cores, so messages and arithmetic slow each other down, and the hidden share depends on what else is running. Between GPUs the links are separate from the cores, but NCCL's reduction is a kernel, too: it takes some of the GPU's processors and memory bandwidth, so the matmuls that run at the same time slow down a little. (This lab does not measure that.)
#
# ## 6 · DistributedDataParallel
#
# DDP does the same as `BucketedAverage`, in C++. At the start it also copies rank 0's parameters and buffers to all ranks.
#
# DDP fills its buckets in the order in which the gradients arrive, and it learns that order in the first backward pass. After that, its first bucket closes at 1 MiB by default, so that communication starts early; the others close at 25 MiB.
#
# **Predict.** How many all-reduces does the very first backward pass of the GPT take?

# %% name="guess_buckets"
my_guess = None
### BEGIN GUESS
my_guess = 2  # 14 MB of gradients: the first MiB, and all the rest in one
### END GUESS
buckets_guess = Prediction("All-reduces in the first backward pass", my_guess, "")


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
buckets_guess.reveal(steps[0].count("all_reduce"))
for i, said in enumerate(steps):
    print(f"step {i}: {said}")
print(f"{phi:,} parameters; distance of your gradient from DDP's: {distance(own, ddp_gradient):.1e}")
sent = sum(c.nbytes for c in steps[-1].calls if c.name == "all_reduce") / (4 * phi)
claims.record("C13", "gradients are all-reduced, once each", "GPT, DDP, 2 ranks", sent, "x gradients", 0.999, 1.001)

# %% [markdown] name="buckets_explained"
# The first step is special. DDP cannot know the order in which gradients will arrive, so it sends everything as one message and records the order. (The output shows the one message; the reason is in PyTorch's source.) Before the second step it builds the buckets in that order. Rank 0 broadcasts the bucket indices and sizes, because all ranks must use the same buckets.
#
# Smaller buckets mean more messages, which can start earlier. Larger buckets mean fewer messages. `bucket_cap_mb` sets the limit for all buckets, including the first.

# %% name="caps"
for cap in (0.25, 1, 25):
    said = run_ranks(ddp_talk, 2, cap).results[0][0][-1]
    count = said.count("all_reduce")
    print(f"bucket_cap_mb={cap:<5} {count:>3} all-reduce{'s' * (count > 1)}, {said.volume // 2:,} bytes in all")

# %% [markdown] name="memory_text"
# ### Memory
#
# Now use two ranks instead of one process, so that each rank has half of the batch.
#
# **Predict.** *After the backward pass*, how much memory does each DDP rank hold, as a multiple of what the single process holds?

# %% name="guess_memory"
my_guess = None
### BEGIN GUESS
my_guess = 1  # every rank holds parameters, gradients and state
### END GUESS
memory_guess = Prediction("Held after the backward pass: one of two ranks / one process", my_guess, "times")


# %% name="memory_step"
def held_in_a_step(kind):
    model = make_gpt().to(rank_device())
    wrapped = model if kind == "alone" else DistributedDataParallel(model, gradient_as_bucket_view=kind == "view")
    optimizer = torch.optim.AdamW(model.parameters())
    part = ids.chunk(dist.get_world_size())[dist.get_rank()]

    def take_two_steps():
        for _ in range(2):
            optimizer.zero_grad()
            gpt_loss(wrapped, part).backward()
            optimizer.step()

    take_two_steps()  # after the first step, buckets are rebuilt and Adam's state exists
    with MemoryMeter(model, optimizer) as meter:
        take_two_steps()  # the meter finds the buckets when something is written to them, so the second step counts
    after = [stage.held_after for stage in meter.stages if stage.name == "backward"][-1]
    static = sum(meter.largest[category] for category in ("parameters", "gradients", "optimizer state"))
    return meter.at_peak, static, sum(after.values())


# %% name="memory"
runs = {"1 process, batch of 8": (1, "alone"), "DDP, 2 ranks": (2, "ddp"), "DDP, gradients are views": (2, "view")}
held = {
    name: run_ranks(held_in_a_step, n, kind, device=pair, measure=False).results[0] for name, (n, kind) in runs.items()
}
first, ddp, views = held
memory_guess.reveal(held[ddp][2] / held[first][2])
table = [("", "all that is held after backward", "peak")]
table += [(name, human_bytes(after), human_bytes(sum(at_peak.values()))) for name, (at_peak, _, after) in held.items()]
show_table(table)
show(
    category_bars({name: at_peak for name, (at_peak, _, _) in held.items()}, CATEGORIES, "At the peak, on one rank"),
    "Parameters and optimizer state are the same in all runs; DDP adds one more block the size of the gradients and halves the activations.",
)
kept = held[ddp][1] / held[first][1]
claims.record("C13", "memory 1x per GPU: static part", "GPT, AdamW, 2 ranks", kept, "x one process", 0.99, 1.01)
for name in (ddp, views):
    extra = (held[name][2] - held[first][2]) / (4 * phi)
    claims.record("C13", "buckets take no extra memory", name, extra, "x gradients", -0.05, 0.06)

# %% [markdown] name="memory_explained"
# Data parallelism does not reduce static memory; sharding does ([[sharding]]). Each rank holds the activations of its own rows only, so they are half as large here.
#
# DDP even adds memory. The buckets are separate buffers, one more copy of all gradients. (The meter counts them under *inputs and other*.) With `gradient_as_bucket_view=True` each `.grad` *is* a slice of its bucket, so after the backward pass there is no second copy.
#
# At the peak, views save nothing here. The peak is at the start of the backward pass, when activations are at their highest. A single process holds hardly any gradients at that moment, but DDP's buckets are there all the time, views or not. Views save one copy after the backward pass, during the optimizer step.
#
# ## 7 · With accumulation and mixed precision
#
# With accumulation, only the last micro-batch of an update needs an all-reduce. You wrote that loop, with `no_sync()`, in [[gradient_accumulation]].
#
# In practice each rank usually keeps its micro-batch, so N ranks make the batch N times as large. Goyal et al. (2017) multiply the learning rate of SGD by N; with Adam, the square root of N is the usual first guess. Both fail beyond the critical batch size ([[gradient_accumulation]]).
#
# Autocast ([[mixed_precision]]) works as usual inside each rank: weights and gradients stay FP32, and so do the messages. To send half as much, a **communication hook** can compress the buckets to BF16. DDP calls it with each full bucket, and it returns a future that yields the averaged bucket.
#
# The next cell runs a backward pass under autocast, with messages in FP32 and then in BF16.


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
for name, (gradient, said, kept) in (("sent in FP32", usual), ("sent in BF16", squeezed)):
    print(f"{name}: {said}, gradients {kept}, {distance(gradient, joint):.2%} away from the FP32 gradient")
whole, half = usual[1].volume / (2 * joint.nbytes), squeezed[1].volume / usual[1].volume
claims.record("C13", "under autocast, gradients are sent in FP32", "MLP", whole, "x FP32 traffic", 0.99, 1.01)
claims.record("C13", "a BF16 hook halves it", "MLP", half, "x FP32 traffic", 0.49, 0.51)

# %% [markdown] name="torchrun_text"
# Two ranks add only once, so the hook's rounding is small beside autocast's own. A sum over hundreds of ranks is rounded at every hop of the ring, so large runs usually reduce in FP32 (`reduce_dtype` in [[fully_shard]]). FP16 with a gradient scaler also works unchanged. Gradients are averaged while they are still scaled, so an overflow on one rank is an overflow on all: a sum with an inf is inf or NaN, and the scaler skips the step for either.
#
# ## 8 · On a server: `torchrun`
#
# On a server there is no notebook. `torchrun` starts the processes and passes them their identity in the environment: `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` (on this machine), `MASTER_ADDR`, `MASTER_PORT`. `run_ranks` sets the same variables, so one function works under both. Here is a complete training script:

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
    dist.barrier()                                   # no rank leaves while others still communicate
    dist.destroy_process_group()

main()
"""
print(torchrun(SCRIPT, 2))

# %% [markdown] name="torchrun_explained"
# The command was `torchrun --standalone --nproc-per-node=2 train.py`. `set_device` comes first; `device_id` tells NCCL which GPU belongs to this rank, so that it connects at once rather than at the first collective. For more than one machine, see [[fully_shard]].
#
# > **The older `nn.DataParallel`**, which still appears in articles, is *one* process with a thread for each GPU. In every step GPU 0 copies the weights to all others, distributes the rows, gathers the outputs, computes the loss alone, and adds up the gradients that come back. So every step sends all weights out of GPU 0 and all gradients back to it, whereas DDP sends only gradients and has no hub. The threads share one Python interpreter, GPU 0 runs out of memory first, and nothing overlaps. On a CPU the wrapper does nothing and gives no warning: it just calls the model. PyTorch's own documentation advises against it, even on one machine.

# %% [markdown] name="play_text"
# ### Explore: how far does it scale?
#
# This is a model of one step, not a measurement. Each GPU computes for as long as you set, two thirds of it in the backward pass. An all-reduce sends 2 (N − 1)/N · n bytes per GPU at the bandwidth that you set. It also takes α/2 for each round: a ring has 2 (N − 1) rounds, a tree 2 log₂ N, and libraries choose the faster one. Messages may overlap with the whole backward pass. Any time beyond that makes the step longer.
#
# | link, one direction | GB/s (data sheets) |
# |---|---|
# | NVLink 5 (B200), per GPU | 900 |
# | NVLink 4 (H100), per GPU | 450 |
# | PCIe 5.0, 16 lanes, per GPU | 64 |
# | InfiniBand NDR, 400 Gb/s, per port | 50 |
# | Ethernet, 100 Gb/s, per port | 12.5 |
# | Ethernet, 10 Gb/s, per port | 1.25 |
#
# Between machines, the bandwidth also depends on how many of a machine's network ports the rings use ([[sharding]] works that out). A cloud machine with a single port has only that port's bandwidth.


# %% name="play"
def scaling(parameters_in_millions, milliseconds_of_compute, link_in_GB_per_second, alpha_in_microseconds):
    compute, speeds = milliseconds_of_compute / 1e3, {}
    for precision, nbytes in (("FP32", 4), ("BF16", 2)):
        speeds[f"gradients in {precision}"] = speed = []
        for n in (2**i for i in range(8)):
            sent = 2 * (n - 1) / n * nbytes * parameters_in_millions * 1e6
            rounds = 2 * min(n - 1, np.log2(n))  # of a ring or a tree
            seconds = rounds * alpha_in_microseconds / 2e6 + sent / (link_in_GB_per_second * 1e9)
            speed.append(n * compute / (compute + max(0.0, seconds - 2 / 3 * compute)))
    return pictures.scaling_figure(speeds)


explore(
    scaling,
    "Speed against the number of GPUs, for gradients in FP32 and BF16: straight lines that bend down where the link is slow.",
    parameters_in_millions=(1000, range(100, 7001, 100)),
    milliseconds_of_compute=(300, range(50, 1001, 50)),
    link_in_GB_per_second=(50, (1.25, 12.5, 25, 50, 64, 100, 400, 450, 900)),
    alpha_in_microseconds=(20, (2, 20, 200, 2000)),
)

# %% [markdown] name="summary_text"
# Make the link slower until 128 GPUs with FP32 gradients are less than 64 times as fast as one GPU, but with BF16 gradients still more than 64 times as fast. What would you change first: the link, the format, or the micro-batch (more compute per step)? And does latency ever dominate?
#
# ## 9 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - An all-reduce in a ring has N − 1 rounds of adding and N − 1 of copying, and each rank sends less than twice the size of its vector. Between two ranks it takes about α + n/β, so few messages are better than many.
# - Data parallelism keeps the full model on every rank, gives each rank a part of the batch, and averages the gradients. The update is the same as with one process on the joint batch if all ranks have the same number of rows and no layer mixes rows, as BatchNorm does ([[when_ranks_go_wrong]]).
# - DDP sends each gradient once, in buckets, during the backward pass. It saves no static memory: by default it holds one more copy of the gradients; with `gradient_as_bucket_view=True` it keeps none after the backward pass.
# - With accumulation, run every micro-batch but the last in `no_sync()`.
# - Effective batch = micro-batch × accumulation × ranks.
#
# **What to reach for when.** If the model fits on one GPU and you want speed, use DDP. If it does not fit, shard it ([[sharding]]), or split the model itself (labs [[#tensor_parallel]] and [[#pipeline]]).
#
# **Sources.** Li et al. 2020, *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*; Patarasuk and Yuan 2009, *Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*; Goyal et al. 2017, *Accurate, Large Minibatch SGD*; PyTorch documentation, `DistributedDataParallel`, `torchrun`; NVIDIA, *nccl-tests: Performance*, and data sheets (links).
