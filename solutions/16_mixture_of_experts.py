# %% [markdown] name="title"
# # Mixture of experts
#
# **A model can have many times the parameters that it uses for a token. Training it is cheap in FLOPs; keeping its experts busy, and bringing tokens to them, is the work.**
#
# | | |
# |---|---|
# | After this you can | write the layer: router, permutation, grouped products; keep experts in balance by a loss, and by a bias; say what a capacity drops; count active and total parameters, and say which MFU is meant; put experts on ranks with an all-to-all of uneven parts and right gradients, and predict its bytes; say which gradient is averaged over which ranks; turn a dense model into a mixture |
# | Time | 120 to 165 minutes |
# | Difficulty | ●●● |
# | Needs | a CPU: ranks are processes; with a GPU for each rank the same cells use NCCL |
# | Before this | labs [[#start_here]], [[#where_the_time_goes]], [[#data_parallel]] and [[#tensor_parallel]] |
# | Syllabus | T39, C19 |

# %% name="setup" setup=true
import copy
import math

from helpers import (
    Claims,
    Prediction,
    check,
    compare,
    count_flops,
    device_name,
    english,
    explore,
    hint,
    model_flops,
    pick_device,
    rank_device,
    ranks_device,
    run_ranks,
    show,
    text_table,
)
from helpers.exercises.mixture_of_experts import pictures
from helpers.exercises.mixture_of_experts.parcels import Parcels
from helpers.exercises.mixture_of_experts.trained import batch_at, loss_on_test_text, train
from helpers.exercises.mixture_of_experts.window_model import WIDTH, WindowModel

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)  # all runs on ranks: on GPUs if there is one for each of four
claims = Claims(device=device)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")
print(f"ranks: on {'GPUs, over NCCL' if where.type == 'cuda' else 'the CPU, over gloo'}")

# %% [markdown] name="layer_text"
# ## 1 · Experts and a router
#
# The MLP of a transformer block treats each token on its own, and uses all of its parameters for it. A **mixture of experts** has several small MLPs, the *experts*, and a *router*: a linear layer with one output for each expert. A token goes to the k experts that the router likes best. Its result is the weighted sum of theirs.
#
# Take 8 experts with a hidden layer of 64 each, k = 2, and compare with one dense MLP with a hidden layer of 128: each token uses the same number of parameters.
#
# **Predict.** How many times the parameters of the dense MLP does the mixture have? And how many times the FLOPs, forward and backward?

# %% name="layer_figure"
show(
    pictures.layer_picture(),
    "Four tokens on the left, four experts in the middle. Each token has lines to the two experts that the router "
    "has chosen for it, thicker for the larger weight, and from there to its sum on the right.",
)

# %% name="layer_guess"
my_guess = None  # parameters of the mixture / of the dense MLP
### BEGIN GUESS
my_guess = 4  # 8 x 64 against 128
### END GUESS
parameters_guess = Prediction("Parameters, mixture / dense MLP", my_guess, "times")
my_guess = None  # FLOPs of the mixture / of the dense MLP
### BEGIN GUESS
my_guess = 1  # 2 x 64 is 128; the router is small
### END GUESS
flops_guess = Prediction("FLOPs, mixture / dense MLP", my_guess, "times")

# %% [markdown] name="layer_contract"
# ### Your turn: the layer
#
# Tokens are copied, once for each choice, and sorted by expert: the **permutation**. Then each expert has its rows in one piece. Afterwards they go back.
#
# **Contract.** Four functions, for n tokens of width C, E experts and k choices a token. n may be 0.
#
# - `route(logits, k, bias=None)`: logits (n, E). Returns `chosen` (n, k), the experts with the k largest probabilities (a softmax over all experts), in any order, and `weights` (n, k), in the same order: the probabilities of the chosen, divided by their sum. A `bias` (E,) is added to the probabilities for the choice, and not for the weights.
# - `permute(x, chosen, experts)`: x (n, C). Returns `rows` (n·k, C), a copy of a token for each of its choices, sorted by expert; `counts` (E,), how many rows each expert has; and `source` (n·k,): row j belongs to choice source[j] of `chosen.flatten()`.
# - `grouped(rows, counts, up, down)`: up (E, H, C), down (E, C, H). The rows of expert e are its next counts[e]. Returns, for each row, down[e] · gelu(up[e] · row). An expert without rows gets a gradient of zeros; even with no rows at all, the result depends on `rows`, `up` and `down` (their gradients are empty or zero), because a rank without tokens must still take part in the exchange of gradients in section 5. No expert computes rows that are not its own.
# - `unpermute(rows, source, weights)`: returns (n, C), for each token the sum of its k rows times their weights.


# %% name="layer" answer=true reveal=true
def route(logits, k, bias=None):
    ### BEGIN SOLUTION
    probabilities = logits.softmax(dim=1)
    chosen = (probabilities if bias is None else probabilities + bias).topk(k, dim=1).indices
    weights = probabilities.gather(1, chosen)
    return chosen, weights / weights.sum(dim=1, keepdim=True)
    ### END SOLUTION


def permute(x, chosen, experts):
    ### BEGIN SOLUTION
    flat = chosen.flatten()
    source = flat.argsort(stable=True)
    return x[source // chosen.shape[1]], torch.bincount(flat, minlength=experts), source
    ### END SOLUTION


def grouped(rows, counts, up, down):
    ### BEGIN SOLUTION
    pieces = rows.split(counts.tolist())
    return torch.cat([F.gelu(piece @ u.T) @ d.T for piece, u, d in zip(pieces, up, down, strict=True)])
    ### END SOLUTION


def unpermute(rows, source, weights):
    ### BEGIN SOLUTION
    placed = torch.empty_like(rows).index_copy(0, source, rows)
    return (placed.view(*weights.shape, rows.shape[1]) * weights[:, :, None]).sum(dim=1)
    ### END SOLUTION


# %% name="layer_check"
route, permute, grouped, unpermute = check("mixture_of_experts.layer", route, permute, grouped, unpermute)

# %% name="layer_hint"
hint("mixture_of_experts.layer")


# %% name="layer_class"
def dense(hidden):
    """An MLP from and to WIDTH."""
    return nn.Sequential(nn.Linear(WIDTH, hidden, bias=False), nn.GELU(), nn.Linear(hidden, WIDTH, bias=False))


class MoE(nn.Module):
    """A mixture of experts, from and to (n, WIDTH); it remembers what was chosen in the last forward pass."""

    def __init__(self, experts=8, k=2, hidden=64):
        super().__init__()
        self.k, self.router = k, nn.Linear(WIDTH, experts, bias=False)
        nn.init.normal_(self.router.weight, std=0.02)
        self.up = nn.Parameter(torch.randn(experts, hidden, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(experts, WIDTH, hidden) / (4 * hidden) ** 0.5)
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x):
        self.logits = self.router(x)
        self.chosen, weights = route(self.logits, self.k, self.bias)
        self.counts = torch.bincount(self.chosen.flatten(), minlength=len(self.bias))
        return self.experts(x, weights)

    def experts(self, x, weights):
        rows, counts, source = permute(x, self.chosen, len(self.up))
        return unpermute(grouped(rows, counts, self.up, self.down), source, weights)


# %% name="layer_run"
def cost(block):
    """Return the parameters of a block, and the FLOPs of 512 tokens, forward and backward."""
    x = torch.randn(512, WIDTH, requires_grad=True)
    return sum(p.numel() for p in block.parameters()), count_flops(lambda: block(x).sum().backward())


mixture, mlp = cost(MoE()), cost(dense(128))
parameters_guess.reveal(mixture[0] / mlp[0])
flops_guess.reveal(mixture[1] / mlp[1])

# %% [markdown] name="one_guess_text"
# What exceeds 4 and 1 is the router. The **total** parameters need memory, with their gradients and optimizer state; the **active** ones need FLOPs.
#
# Routers with k = 1 exist (the *Switch Transformer*). **Predict.** With your `route` and k = 1, how long is the gradient of the router's weight, compared with that for k = 2?

# %% name="one_guess"
my_guess = None  # times the length with k = 2
### BEGIN GUESS
my_guess = 0.5
### END GUESS
one_guess = Prediction("Router's gradient, k = 1 / k = 2", my_guess, "times", difference=True)


# %% name="one_run"
def router_gradient(k):
    torch.manual_seed(0)
    layer = MoE(k=k)
    layer(torch.randn(512, WIDTH)).square().mean().backward()
    return layer.router.weight.grad.norm().item()


one_guess.reveal(router_gradient(1) / router_gradient(2))

# %% [markdown] name="one_explained"
# Divided by its own sum, a single weight is 1, whatever the router says: it never learns. With k = 1, take the probability as it is, as the Switch Transformer does. Nothing fails and nothing warns.
#
# For the choice itself, a top-k, has no gradient. The router learns only through the weights of those it has chosen; an expert that was not chosen says nothing about how good it would have been.
#
# ## 2 · Left alone
#
# Now train. The model is the smallest in which experts matter: it sees the last 8 bytes of English text (Python's own manual) and predicts the next one, with two blocks and no attention. Three versions see the same batches: a dense MLP of 128 in each block, a dense one of 512, and 8 experts of 64 with k = 2. So the mixture computes about as much as the first, and is about as large as the second.
#
# **Predict.** Nobody tells the router to be fair. At the end of training, how many times its fair share does the busiest expert of a layer get? (1 is even. 4 is the most: every token has it among its two.)

# %% name="alone_guess"
my_guess = None  # times a fair share
### BEGIN GUESS
my_guess = 1.5
### END GUESS
alone_guess = Prediction("Busiest expert, without balance", my_guess, "times its fair share")

# %% name="alone_run"
text = english(device)
MAKERS = {"dense 128": lambda: dense(128), "dense 512": lambda: dense(512), "left alone": MoE}
models = {name: WindowModel(make).to(device) for name, make in MAKERS.items()}
runs = {name: train(model, text) for name, model in models.items()}
alone_guess.reveal(runs["left alone"].busiest())
show(
    pictures.loads_picture({"left alone": runs["left alone"].loads}),
    "Eight bands, one for each expert of the first block, over the training steps: their width is the expert's share "
    "of the choices. "
    "They soon become very unequal.",
)
for name, run in runs.items():
    print(f"{name:12} test loss {run.test:.3f}")
idle = (runs["left alone"].loads[-50:].mean(dim=0) * 8 < 0.25).sum().item()
print(f"experts with less than a quarter of their fair share at the end: {idle} of 16")

# %% [markdown] name="alone_explained"
# An expert that is chosen gets gradients, improves, and is chosen more often: the rich get richer. Early in the run the widest bands show it, and here the others catch up in part; where they do not, it is called *router collapse*. The steps in which an expert was hardly chosen are steps in which it hardly learned.
#
# ## 3 · Balance
#
# **By a loss** (GShard, Switch Transformer). Let f be the share of the choices that an expert gets, and P its mean probability over all tokens. Add α E Σ f·P to the loss, the sum over the E experts. Where both are even, Σ f·P is 1/E, so the term is α. The choices f have no gradient, the probabilities P have: an expert with a large f gets its P pushed down.
#
# **By a bias** (DeepSeek-V3, which keeps a very small sequence-wise loss beside it). The loss that the model is trained for stays untouched. After each step, look at the loads, and move the bias of `route` a little: down for experts above the mean, up for those below. It changes who is chosen, and no weight.
#
# **By force.** Give each expert room for a fixed number of rows, its *capacity*; what exceeds it is dropped: the token goes on without that expert. All experts then work on tensors of one size.
#
# ### Your turn: balance
#
# **Contract.**
#
# - `balance_loss(logits, chosen)`: logits (n, E), chosen (n, k). Returns E Σ f·P as a tensor without dimensions; f is the share of all n·k choices.
# - `nudge(bias, counts, rate)`: changes `bias` (E,) in place: plus `rate` where `counts` is below its mean, minus `rate` where it is above, unchanged where it is equal.
# - `within_capacity(chosen, experts, capacity)`: returns booleans (n, k). Each expert takes the first `capacity` choices that name it, token after token in the order of `chosen.flatten()`. True for those, False for the rest.


# %% name="balance" answer=true reveal=true
def balance_loss(logits, chosen):
    ### BEGIN SOLUTION
    experts = logits.shape[1]
    f = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
    return experts * (f * logits.softmax(dim=1).mean(dim=0)).sum()
    ### END SOLUTION


def nudge(bias, counts, rate):
    ### BEGIN SOLUTION
    bias += rate * torch.sign(counts.float().mean() - counts)
    ### END SOLUTION


def within_capacity(chosen, experts, capacity):
    ### BEGIN SOLUTION
    flat = chosen.flatten()
    place = F.one_hot(flat, experts).cumsum(dim=0).gather(1, flat[:, None])  # 1 for the first that names its expert
    return (place <= capacity).view_as(chosen)
    ### END SOLUTION


# %% name="balance_check"
balance_loss, nudge, within_capacity = check("mixture_of_experts.balance", balance_loss, nudge, within_capacity)

# %% name="balance_hint"
hint("mixture_of_experts.balance")

# %% [markdown] name="balance_guess_text"
# **Predict.** Train the mixture twice more, with α = 0.02, and with a bias moved by 0.01 a step. The busiest expert at the end? And by how much does the test loss of the one with the bias differ from that of the mixture left alone (below zero if it is better)?

# %% name="balance_guess"
my_guess = None  # loss: busiest expert, times its fair share
### BEGIN GUESS
my_guess = 1.3
### END GUESS
loss_guess = Prediction("Busiest expert, balance by a loss", my_guess, "times its fair share")
my_guess = None  # bias: busiest expert, times its fair share
### BEGIN GUESS
my_guess = 1.1
### END GUESS
bias_guess = Prediction("Busiest expert, balance by a bias", my_guess, "times its fair share")
my_guess = None  # test loss with the bias - left alone
### BEGIN GUESS
my_guess = -0.05
### END GUESS
better_guess = Prediction("Test loss, bias - left alone", my_guess, "", difference=True)

# %% name="balance_run"
WAYS = {
    "by a loss": {"also": lambda layer: 0.02 * balance_loss(layer.logits, layer.chosen)},
    "by a bias": {"after": lambda layer: nudge(layer.bias, layer.counts, 0.01)},
}
models |= {name: WindowModel(MoE).to(device) for name in WAYS}
runs |= {name: train(models[name], text, **way) for name, way in WAYS.items()}
loss_guess.reveal(runs["by a loss"].busiest())
bias_guess.reveal(runs["by a bias"].busiest())
better_guess.reveal(runs["by a bias"].test - runs["left alone"].test)
MIXTURES = ("left alone", *WAYS)
show(
    pictures.loads_picture({name: runs[name].loads for name in MIXTURES}),
    "Three panels with the experts' shares of the choices over the training steps: very unequal bands when left alone, "
    "nearly equal ones with the loss and with the bias.",
)
for name in MIXTURES:
    print(f"{name:12} busiest {runs[name].busiest():.2f} x   test loss {runs[name].test:.3f}")
busiest, better = runs["by a bias"].busiest(), runs["left alone"].test - runs["by a bias"].test
claims.record("T39", "a bias alone keeps the experts in balance", "8 experts, busiest", busiest, "x even", 1, 1.2)
claims.record("T39", "balanced experts give a lower loss", "left alone - by a bias", better, "nats", 0.01, math.inf)

# %% [markdown] name="balance_explained"
# Both ways work. The loss pulls the router towards a good prediction and towards equal loads at once; α decides how hard. The bias sends no gradient at all, so none mixes with that of the task. It needs the loads of *all* tokens: on many ranks, all-reduce the counts before `nudge`.
#
# ### What a capacity drops
#
# A capacity is usually given as a factor: 1.25 means room for 1.25 times the even load. **Predict.** With a factor of 1.25, what share of the choices is dropped in the mixture left alone, and in the one balanced by the bias?

# %% name="drop_guess"
my_guess = None  # percent dropped, left alone
### BEGIN GUESS
my_guess = 35
### END GUESS
alone_drop_guess = Prediction("Dropped at 1.25, left alone", my_guess, "%", difference=True)
my_guess = None  # percent dropped, by a bias
### BEGIN GUESS
my_guess = 0
### END GUESS
bias_drop_guess = Prediction("Dropped at 1.25, by a bias", my_guess, "%", difference=True)


# %% name="drop_run"
def dropping(model, factor):
    """Return a copy of `model` with a capacity, and its loss on the test text; None: without a capacity."""
    model, shares = copy.deepcopy(model), []
    for block in model.blocks:

        def experts(x, weights, block=block):
            room = math.ceil((factor or len(block.up)) * block.chosen.numel() / len(block.up))
            kept = within_capacity(block.chosen, len(block.up), room)
            shares.append(1 - kept.float().mean().item())
            return MoE.experts(block, x, weights * kept)

        block.experts = experts
    loss = loss_on_test_text(model, text)
    return 100 * sum(shares) / len(shares), loss


dropped = {(name, factor): dropping(models[name], factor) for name in MIXTURES for factor in (1.25, 2.0, None)}
alone_drop_guess.reveal(dropped["left alone", 1.25][0])
bias_drop_guess.reveal(dropped["by a bias", 1.25][0])
table = [("capacity factor", "1.25", "2", "dropless")]
for name in MIXTURES:
    cells = [dropped[name, factor] for factor in (1.25, 2.0, None)]
    table.append((name, *(f"{share:.1f} % dropped, loss {loss:.3f}" for share, loss in cells)))
print(text_table(table))

# %% [markdown] name="drop_explained"
# A capacity costs twice: tokens go without the work of the busy experts, and the slots of underused experts stay empty. Which tokens are dropped depends on the rest of the batch.
#
# Your `permute` and `grouped` drop nothing: they are **dropless**. On GPUs this takes kernels for products with groups of different sizes (MegaBlocks, PyTorch's `F.grouped_mm`).
#
# Play with the capacity: the picture shows the rows that each expert of the first block gets, and what becomes of them.

# %% name="capacity_play"
explore(
    lambda mixture, capacity_factor: pictures.capacity_picture(
        runs[mixture].loads[-50:, 0].mean(dim=0), capacity_factor
    ),
    "A bar for each of eight experts: its load, cut at the capacity; above it what is dropped, below it empty room.",
    mixture=("left alone", MIXTURES),
    capacity_factor=(1.25, (1.0, 1.25, 1.5, 2.0, 3.0)),
)

# %% [markdown] name="cheap_text"
# ## 4 · What is cheaper, and what is not
#
# Two things are said of mixtures: they reach **the loss of a dense model of their total size**, and **at a fraction of the cost**, total over active parameters. For the experts alone that ratio is 4; for the whole model, with its attention and head, it is what the next cells print.
#
# **Predict.** How much of the distance in test loss between dense 128 and dense 512 does the mixture with the bias close? And dense 512 ends at a certain training loss: how many times the FLOPs does it take to get there (within 0.01), compared with the mixture?

# %% name="cheap_guess"
my_guess = None  # percent of the distance
### BEGIN GUESS
my_guess = 70
### END GUESS
gap_guess = Prediction("Distance from dense 128 to dense 512 that the mixture closes", my_guess, "%", difference=True)
my_guess = None  # FLOPs of dense 512 / of the mixture, at the loss that dense 512 ends at
### BEGIN GUESS
my_guess = 3
### END GUESS
cheap_guess = Prediction("FLOPs to the same loss, dense 512 / mixture", my_guess, "times")


# %% name="cheap_run"
def step_of(model):
    """One forward and backward pass of a batch."""
    x, y = batch
    return lambda: F.cross_entropy(model(x), y).backward()


batch = batch_at(text, 1024, torch.Generator().manual_seed(2))
flops = {name: count_flops(step_of(model)) for name, model in models.items()}
curves = {name: run.smoothed() for name, run in runs.items()}


def flops_until(name, loss):
    """Return the FLOPs of a run until its smoothed training loss is `loss`, or of all its steps."""
    steps = next((i + 1 for i, value in enumerate(curves[name]) if value <= loss), None)
    return None if steps is None else steps * flops[name]


low, high = runs["dense 512"].test, runs["dense 128"].test
gap = 100 * (high - runs["by a bias"].test) / (high - low)
final = curves["dense 512"][-1] + 0.01  # near enough: a curve's last hundredth is noise
cheaper = flops_until("dense 512", final) / (flops_until("by a bias", final) or math.inf)
gap_guess.reveal(gap)
cheap_guess.reveal(cheaper)
table = [("", "test loss", "parameters", "FLOPs of a step")]
for name, run in runs.items():
    count = sum(p.numel() for p in models[name].parameters())
    table.append((name, f"{run.test:.3f}", f"{count:,}", f"{flops[name] / 1e6:.0f} M"))
print(text_table(table))
said = "the loss of a larger dense model at the FLOPs of the active part"
claims.record("C19", said, "distance closed, 8 experts, k = 2", gap, "%", 80, math.inf)
claims.record("C19", "cheaper by total / active", "FLOPs to the loss of dense 512", cheaper, "times", 3.6, math.inf)

# %% [markdown] name="cheap_explained"
# The loss is about that of the dense model four times as wide. The saving is real, and smaller than a factor of 4: only the blocks become cheaper. The layers before and after them cost the same in all models, and in a small model they are a large part.
#
# (One seed, one small model, and a text on which more parameters help within 300 steps. On a task where dense 512 is no better than dense 128, there is no gain.)
#
# ### Seconds, and MFU
#
# **Predict.** FLOPs are not seconds. How many times as long does a step of dense 512 take on this machine, compared with the mixture? And somebody computes the MFU of the mixture with 6 N D ([[where_the_time_goes]]) and takes all parameters for N: how many times too high is it?

# %% name="seconds_guess"
my_guess = None  # seconds of dense 512 / of the mixture
### BEGIN GUESS
my_guess = 1.5
### END GUESS
seconds_guess = Prediction("Seconds of a step, dense 512 / mixture", my_guess, "times")
my_guess = None  # MFU with all parameters / with what is computed
### BEGIN GUESS
my_guess = 2.5
### END GUESS
mfu_guess = Prediction("MFU by all parameters / by the FLOPs that are computed", my_guess, "times")

# %% name="seconds_run"
timing = compare(step_of(models["dense 512"]), step_of(models["by a bias"]), runs=30)
seconds_guess.reveal(timing.speedup)
print(timing)
utilization = timing.speedup * flops["by a bias"] / flops["dense 512"]
print(f"MFU of the mixture, by the FLOPs that are computed: {utilization:.2f} x that of dense 512")


def in_products(model, active=1.0):
    """Count the parameters that take part in products; of experts, the share that is active."""
    count = sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "embedding" not in name)
    experts = sum(block.up.numel() + block.down.numel() for block in model.blocks)
    return count - (1 - active) * experts


mixture = models["by a bias"]
counted = {"all": in_products(mixture), "active": in_products(mixture, active=2 / 8)}
rates = {name: model_flops(count, 1024) / flops["by a bias"] for name, count in counted.items()}
mfu_guess.reveal(rates["all"])
for name, count in counted.items():
    print(f"6 N D with {name:6} parameters, N = {count:9,.0f}: {rates[name]:.2f} x the FLOPs that are computed")
claims.record(
    "T39", "6 N D counts with the active parameters", "mixture, 1,024 tokens", rates["active"], "of count", 0.9, 1.1
)
claims.figure("a step of dense 512 / of the mixture", "1,024 tokens, forward and backward", timing.speedup, "x")

# %% [markdown] name="seconds_explained"
# FLOPs that are saved do not come back as seconds one for one. The experts' products are many and small, and sorting, copying and putting back are no FLOPs at all: bytes and launches ([[where_the_time_goes]]). So a mixture's MFU falls, as printed above, and counting all of its parameters hides that. When you read an MFU of a mixture, ask for which N. And a lower MFU can still be the faster way to a loss.
#
# ### Shared and fine-grained experts
#
# DeepSeek's models change two things. **Fine-grained**: twice as many experts of half the size, with k doubled, cost the same and can be combined in more ways. **Shared**: one expert sees every token, so that the others need not all learn the same basics.
#
# **Predict.** 16 experts of 32 with k = 4, or one shared and 15 routed experts with k = 3: by how much does the test loss of the second differ from that of the first (below zero if it is better)?

# %% name="shared_guess"
my_guess = None  # test loss, shared - without
### BEGIN GUESS
my_guess = -0.01
### END GUESS
shared_guess = Prediction("Test loss, with a shared expert - without", my_guess, "", difference=True)


# %% name="shared_run"
class SharedMoE(MoE):
    """A mixture with one more expert, for all tokens."""

    def __init__(self):
        super().__init__(experts=15, k=3, hidden=32)
        self.shared = dense(32)

    def forward(self, x):
        return self.shared(x) + super().forward(x)


FINE = {"16 fine experts": lambda: MoE(16, 4, 32), "1 shared, 15 fine": SharedMoE}
for name, make in FINE.items():
    models[name] = WindowModel(make).to(device)
    runs[name] = train(models[name], text, **WAYS["by a bias"])
difference = runs["1 shared, 15 fine"].test - runs["16 fine experts"].test
shared_guess.reveal(difference)
for name in ("by a bias", *FINE):
    print(f"{name:18} test loss {runs[name].test:.3f}, {count_flops(step_of(models[name])) / 1e6:.0f} M FLOPs a step")
finer = runs["by a bias"].test - runs["16 fine experts"].test
claims.record("T39", "finer experts lower the loss", "16 of half the size against 8", finer, "nats", 0.01, math.inf)
claims.record(
    "T39", "a shared expert lowers the loss", "1 + 15 against 16 experts", -difference, "nats", 0.01, math.inf
)

# %% [markdown] name="ranks_text"
# Each of these is one run with one seed. Before you read anything into such a difference, run it again with another seed; a claim in the table at the end that held here may not hold there. Fine experts may need more tokens than we have; and a shared expert has a second use at scale: its tokens stay at home, so it computes while the others' tokens travel.
#
# ## 5 · Experts on ranks
#
# Most of the parameters are experts, and each is needed by a few tokens. So do not bring the parameters to the tokens, as sharding does ([[sharding]]); bring the tokens to the parameters: **expert parallel**. Each rank keeps E/N experts and its own part of the batch. Rows travel to the rank that has their expert, and the results travel back.
#
# The collective for that is the *all-to-all*: each rank has something for each other. Here the parts are uneven, and the router decides anew in each step how uneven. So ranks first tell each other how many rows will come.
#
# **Predict** for 4 ranks with 1,024 tokens each, k = 2, rows of 64 numbers in FP32, and a router that is even. How many bytes does a rank send to others for one layer, forward and backward together?

# %% name="exchange_figure"
show(
    pictures.exchange_picture([[3, 1, 2, 2], [1, 4, 0, 3], [2, 2, 1, 3], [0, 5, 1, 2]]),
    "A table of four by four: how many rows each rank sends to each other, in one exchange. The rows of the table are "
    "all 8 long; its columns are not: rank 1 gets 12 rows, rank 2 gets 4. On the grey diagonal rows stay at home.",
)

# %% name="bytes_guess"
my_guess = None  # bytes of a rank, one layer, forward and backward
### BEGIN GUESS
my_guess = 4 * 1024 * 2 * 3 / 4 * 64 * 4  # there, back, and the same for gradients; 3 of 4 rows leave
### END GUESS
bytes_guess = Prediction("Sent by a rank, one layer", my_guess, "bytes")

# %% [markdown] name="parallel_contract"
# ### Your turn: expert parallel
#
# **Contract.** A function for autograd, and the layer made of it. They are called on every rank of `group`, N ranks.
#
# - `Exchange.apply(rows, send, receive, group)`: `rows` (sum of `send`, C) lie in order of the ranks that they are for; `send` and `receive` are lists of N numbers of rows. Returns (sum of `receive`, C): what the ranks have sent to this one, in rank order. The gradient goes back the way that the rows came. A rank may send or get nothing.
# - `expert_parallel(x, chosen, weights, up, down, group)`: x (n, C), `chosen` and `weights` (n, k) are this rank's tokens, with the numbers of the experts among all E. `up` (E/N, H, C) and `down` (E/N, C, H) are this rank's experts: rank 0 has the first E/N. Returns (n, C), for this rank's tokens. n may differ between ranks, and be 0.
# - The loss is the sum of what the ranks compute. After `backward()` on every rank, each gradient is that of one process: of x and weights for this rank's tokens, of `up` and `down` for this rank's experts, from the tokens of **all** ranks.
# - Sent, forward: how many rows there are for each expert, then each row once there and its result once back. Backward: their gradients. No padding, and nothing else.
# - No tensor that comes in is changed. Gradients may come in any memory layout.
#
# `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes, group=group)` sends rows of contiguous tensors. In `backward`, return one value for each argument of `forward`. What arrives is sorted by the rank it comes from; `grouped` wants it sorted by expert.


# %% name="parallel" answer=true reveal=true
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
        return Exchange.forward(ctx, gradient, receive, send, group), None, None, None
        ### END SOLUTION


def expert_parallel(x, chosen, weights, up, down, group):
    ### BEGIN SOLUTION
    ranks, own = dist.get_world_size(group), len(up)
    rows, counts, source = permute(x, chosen, ranks * own)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)
    coming = coming.view(ranks, own)  # rows from each rank for each expert of this one
    send, receive = counts.view(ranks, own).sum(dim=1).tolist(), coming.sum(dim=1).tolist()
    arrived = Exchange.apply(rows, send, receive, group)
    expert = torch.arange(own, device=x.device).repeat(ranks).repeat_interleave(coming.flatten())
    order = expert.argsort(stable=True)
    results = grouped(arrived[order], coming.sum(dim=0), up, down)
    results = torch.empty_like(results).index_copy(0, order, results)  # as they came
    return unpermute(Exchange.apply(results, receive, send, group), source, weights)
    ### END SOLUTION


# %% name="parallel_check"
Exchange, expert_parallel = check("mixture_of_experts.parallel", Exchange, expert_parallel)

# %% name="parallel_hint"
hint("mixture_of_experts.parallel")


# %% name="spread"
def spread(model, group):
    """Leave a rank its part of each block's experts, and send tokens to those of the others in `group`."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    for block in model.blocks:
        block.up, block.down = (nn.Parameter(t.detach().chunk(n)[me].clone()) for t in (block.up, block.down))
        block.experts = lambda x, weights, block=block: expert_parallel(
            x, block.chosen, weights, block.up, block.down, group
        )
    return model


claims.device = where  # from here on, ranks measure
trained = {name: {key: t.cpu() for key, t in models[name].state_dict().items()} for name in MIXTURES}
joint = [t.cpu() for t in batch_at(text, 4096, torch.Generator().manual_seed(3))]


def load(name):
    """Return one of the trained mixtures, whole, on this rank."""
    model = WindowModel(MoE)
    model.load_state_dict(trained[name])
    return model.to(rank_device())


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


# %% name="ranks_run"
def step_on_ranks(name, bias):
    """One step of all ranks: distances from one process; what this rank has sent, and rows that its experts got."""
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


NEVER, EVEN = -2.0, [0.0] * 8
CASES = {
    "by a bias": ("by a bias", EVEN),
    "left alone": ("left alone", EVEN),
    "no token for expert 5": ("left alone", [*EVEN[:5], NEVER, *EVEN[6:]]),
    "no token for the last rank": ("left alone", [*EVEN[:4], *[NEVER] * 4]),
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
print(text_table(table))
sent = [left / 2 for _, left, _ in steps[RANKS, "by a bias"]]  # of one of two layers
bytes_guess.reveal(sum(sent) / RANKS)
farthest = max(far for results in steps.values() for far, *_ in results)
claims.record(
    "T39",
    "expert parallel equals one process",
    "2 and 4 ranks, loss and experts' gradients",
    farthest,
    "relative",
    0,
    1e-5,
)

# %% [markdown] name="ranks_explained"
# These are the trained mixtures with 4,096 windows of text, spread over the ranks. Loss and gradients are those of one process, also where an expert or a whole rank gets no token. There are four exchanges a layer: rows there, results back, and the gradients of both.
#
# The prediction for an even router is 4 n k C (N − 1) / N numbers. How good is it when the load is not even?
#
# **Predict** for the mixture left alone on 4 ranks. How many times the formula's bytes are sent by all ranks together? And how many times the mean number of rows does the busiest rank's experts compute, in a layer?

# %% name="uneven_guess"
my_guess = None  # bytes of all ranks / by the formula
### BEGIN GUESS
my_guess = 1.0
### END GUESS
total_guess = Prediction("Sent by all ranks, left alone / formula", my_guess, "times")
my_guess = None  # rows of the busiest rank / of the mean
### BEGIN GUESS
my_guess = 1.6
### END GUESS
rows_guess = Prediction("Rows of the busiest rank, left alone", my_guess, "times the mean")

# %% name="uneven_run"
formula = 2 * 4 * 1024 * 2 * WIDTH * 4 * (RANKS - 1) / RANKS  # two layers, a rank
table, ratios, busiest = [("4 ranks", "all / formula", "most of a rank / formula", "busiest rank, rows")], {}, {}
for name in ("by a bias", "left alone", "no token for the last rank"):
    results = steps[RANKS, name]
    left = [left / formula for _, left, _ in results]
    layers = zip(*(rows for *_, rows in results), strict=True)  # for each layer, the rows of each rank
    busiest[name] = sum(max(rows) * RANKS / sum(rows) for rows in layers) / 2
    ratios[name] = sum(left) / RANKS
    table.append((name, f"{ratios[name]:.3f}", f"{max(left):.2f}", f"{busiest[name]:.2f} x"))
total_guess.reveal(ratios["left alone"])
rows_guess.reveal(busiest["left alone"])
print(text_table(table))
said = "4 n k C (N - 1) / N numbers leave a rank for a layer"
claims.record("T39", said, "by a bias, mean of 4 ranks", ratios["by a bias"], "of the formula", 0.98, 1.02)
claims.record(
    "T39",
    "a router left alone overloads a rank",
    "left alone, 4 ranks, rows",
    busiest["left alone"],
    "x mean",
    1.05,
    math.inf,
)

# %% [markdown] name="uneven_explained"
# The sum hardly changes: whoever a row is for, it leaves its rank three times out of four. What imbalance changes is **where** rows arrive. The busiest rank has the most to compute and the most bytes to get, and an all-to-all is over only when the last part has come. All others wait: imbalance costs time before it costs loss.
#
# If both experts of a token are on one rank, its row goes there twice. Implementations that send it once, and routers that prefer few machines (DeepSeek-V3 allows four a token), make use of that.
#
# PyTorch has the exchange, with its gradient: `all_to_all_single_autograd`. Is it yours?


# %% name="torch_run"
def beside_torch():
    rank, n, here = dist.get_rank(), dist.get_world_size(), rank_device()
    torch.manual_seed(rank)
    send, receive = [rank + to for to in range(n)], [rank + to for to in range(n)]  # i + j rows from i to j
    rows, goal = (torch.randn(sum(send), WIDTH, device=here) for _ in range(2))
    found = []
    for way in (
        lambda t: Exchange.apply(t, send, receive, dist.group.WORLD),
        lambda t: all_to_all_single_autograd(t, receive, send, dist.group.WORLD),
    ):
        leaf = rows.clone().requires_grad_()
        y = way(leaf)
        (y * goal).sum().backward()
        found.append((y.detach().cpu(), leaf.grad.cpu()))
    return all(torch.equal(a, b) for a, b in zip(*found, strict=True))


print("the same rows and gradients:", run_ranks(beside_torch, RANKS, device=where, measure=False).results)

# %% [markdown] name="groups_text"
# ## 6 · Whose gradient is it?
#
# Eight experts do not need 64 ranks. So ranks form a mesh: along `expert` they share the experts out, along `replica` they hold the same ones. Everything else (embedding, router, norms) is on all ranks, as in data parallel. Every rank has its own part of the batch.
#
# After the backward pass, gradients have to be put together, so that they are those of the mean loss over all ranks. Two ways suggest themselves:
#
# - `over_all`: average every gradient over all ranks, as `DistributedDataParallel` does with a model that it knows nothing about;
# - `over_copies`: average shared parameters over all ranks, and those of an expert over the ranks that hold it.
#
# **Predict** for the 2 × 2 mesh. With `over_copies`, how many times as long as the right one is the gradient of an expert? And after 100 steps with AdamW and `over_all`, by how much does the loss exceed that of a right run?

# %% name="mesh_figure"
show(
    pictures.mesh_picture(2, 2),
    "Four ranks on a grid of two by two. The two ranks of a row hold different experts and exchange tokens; the two of "
    "a column hold the same experts.",
)

# %% name="groups_guess"
my_guess = None  # times the right length
### BEGIN GUESS
my_guess = 2
### END GUESS
copies_guess = Prediction("Expert's gradient with over_copies", my_guess, "times the right one's length")
my_guess = None  # loss with over_all - right
### BEGIN GUESS
my_guess = 0.3
### END GUESS
mixed_guess = Prediction("Loss after 100 steps, over_all - right", my_guess, "", difference=True)

# %% [markdown] name="reduce_contract"
# ### Your turn: average the gradients
#
# **Contract.** `average_gradients(shared, experts, mesh)` is called on every rank after its `backward()`, from the mean loss of its own tokens (as many on each rank).
#
# - `mesh` has the dimensions "replica" and "expert", of any sizes, and all ranks. `mesh.get_group("replica")` are the ranks that hold the same experts as this one.
# - `shared` is a list of parameters that all ranks hold, `experts` one of parameters of this rank's experts. All have a `.grad`.
# - Afterwards each `.grad` is that of the mean loss of all ranks. Parameters are not changed.
# - Sent: each shared gradient once among all ranks, each expert's once among the ranks that hold it. (What a group of one rank sends costs nothing.)
#
# Think first: `expert_parallel` has already brought some ranks' tokens to an expert. Whose?


# %% name="reduce" answer=true reveal=true
def average_gradients(shared, experts, mesh):
    ### BEGIN SOLUTION
    for parameter in shared:
        dist.all_reduce(parameter.grad)
    for parameter in experts:
        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))
    for parameter in (*shared, *experts):
        parameter.grad /= mesh.size()
    ### END SOLUTION


# %% name="reduce_check"
average_gradients = check("mixture_of_experts.reduce", average_gradients)

# %% name="reduce_hint"
hint("mixture_of_experts.reduce")


# %% name="groups"
def over_all(shared, experts, mesh):
    for parameter in (*shared, *experts):
        dist.all_reduce(parameter.grad)
        parameter.grad /= mesh.size()


def over_copies(shared, experts, mesh):
    over_all(shared, [], mesh)
    for parameter in experts:
        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))
        parameter.grad /= mesh["replica"].size()


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
    """Train on a mesh: for shared and for experts the farthest gradient of step 1; an expert's length; the loss."""
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
    name: run_ranks(on_a_mesh, RANKS, way, 2, 100, device=where, measure=False).results for name, way in ways.items()
}
alone = losses_of(WindowModel(MoE).to(rank_device()), 100)[0]
copies_guess.reveal(tried["over_copies"][0][1])
mixed_guess.reveal(tried["over_all"][0][2] - alone)
table = [("2 x 2, worst of 4 ranks", "shared off by", "experts off by", "length", "loss after 100 steps")]
for name, results in tried.items():
    worst = [f"{max(far[i] for far, *_ in results):.1e}" for i in (0, 1)]
    table.append((name, *worst, f"{results[0][1]:.2f} x", f"{results[0][2]:.3f}"))
print(text_table([*table, ("one process", "", "", "", f"{alone:.3f}")]))

# %% [markdown] name="groups_explained"
# - `over_all` mixes the gradients of *different* experts that happen to have the same shape and the same name on their ranks. No error, no warning, and the loss still falls, only less: all else learns, and what experts have in common they learn as well. Without a correct run to compare with, you will not notice. `DistributedDataParallel` does the same; tell it to leave experts out.
# - `over_copies` has the right direction, and is too large by a factor equal to the number of ranks along `expert`. The exchange has already *summed* over those ranks, while the loss is the *mean* over all. AdamW divides a constant factor out, all but its ε, and so hides it ([[gradient_accumulation]]): the loss after 100 steps is close to the right one and may even be lower, which says nothing about the gradient. Clipping by the norm of all gradients, or SGD, would not hide it.
# - The right way: sum over the ranks that hold a copy, divide by the number of ranks whose tokens count.
#
# Does yours agree with one process on every shape of mesh?

# %% name="meshes_run"
SHAPES = ((1, 2), (1, 4), (2, 2), (4, 1))
for replicas, ranks in SHAPES:
    n = replicas * ranks
    results = run_ranks(on_a_mesh, n, average_gradients, replicas, device=where, measure=False).results
    farthest = max(*(distance for far, *_ in results for distance in far), *(abs(a - b) / b for *_, a, b in results))
    print(f"{replicas} x {ranks} (replica x expert): loss and all gradients off by at most {farthest:.1e}")
    subject = f"{replicas} x {ranks} ranks, loss and all gradients"
    claims.record("T39", "experts x data equals one process", subject, farthest, "relative", 0, 1e-5)

# %% [markdown] name="upcycling_text"
# ## 7 · Play: upcycling
#
# A dense model can become a mixture: copy its MLP into every expert, add a router with random weights, train on (*sparse upcycling*).
#
# **Predict.** By how much does the test loss change at the moment of the copy, before any training?

# %% name="upcycling_guess"
my_guess = None  # loss after the copy - before
### BEGIN GUESS
my_guess = 0.1
### END GUESS
copy_guess = Prediction("Test loss, upcycled - dense", my_guess, "", difference=True)

# %% name="upcycling_run"
STEPS = 120  # play with it
small = WindowModel(lambda: dense(64)).to(device)
first = train(small, text, STEPS)
upcycled = WindowModel(MoE).to(device)
upcycled.load_state_dict(
    {**upcycled.state_dict(), **{k: t for k, t in small.state_dict().items() if "blocks." not in k}}
)
with torch.no_grad():
    for block, old in zip(upcycled.blocks, small.blocks, strict=True):
        block.up[:], block.down[:] = old[0].weight, old[2].weight
copy_guess.reveal(loss_on_test_text(upcycled, text) - first.test)
after = {}
for name, model, way in (
    ("dense 64", small, {}),
    ("upcycled, 8 experts of 64", upcycled, WAYS["by a bias"]),
    ("8 experts from scratch", WindowModel(MoE).to(device), WAYS["by a bias"]),
):
    steps = 2 * STEPS if name.endswith("scratch") else STEPS
    after[name] = train(model, text, steps, **way).test
print(f"dense 64 after {STEPS} steps: test loss {first.test:.3f}")
print(
    text_table([(f"after {2 * STEPS} steps in all", "test loss"), *((name, f"{t:.3f}") for name, t in after.items())])
)
ahead = after["8 experts from scratch"] - after["upcycled, 8 experts of 64"]
claims.device = device
claims.record("T39", "upcycling beats experts from scratch", "equal steps in all", ahead, "nats", 0.01, math.inf)

# %% [markdown] name="upcycling_explained"
# All experts are equal and the weights sum to 1, so the mixture is the dense model, up to rounding. Equal experts part because they see different tokens. Upcycling is for those who have the dense model already. Whoever begins with nothing should look at the last line of the table, which has had as many steps as the others in all, and at the verdict below. Play: more steps, noise on the copies, no balance.
#
# ## 8 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Parameters, gradients and optimizer state follow the total parameters, FLOPs the active ones, seconds neither exactly.
# - The router learns only through the weights of those it has chosen. Left alone, it makes a few experts rich. A loss pushes it back; a bias steers it without touching a gradient.
# - A capacity drops tokens; sorted rows and grouped products drop none.
# - Expert parallel: counts, rows there, results back, and gradients the same way: 4 n k C (N − 1) / N numbers a layer, whatever the load. What imbalance costs is waiting for the busiest rank.
# - An expert's gradient is summed over its copies and divided by all ranks. Averaging it over all ranks mixes different experts, and nothing complains.
#
# **What to reach for when.** More quality for the same FLOPs, with memory to spare: a mixture. Experts do not fit: expert parallel inside a machine or over fast links, with data parallel or sharding across. An MFU is to be reported: say that it counts active parameters. Expert ranks are one dimension more to choose, with the methods of [[choosing_a_layout]]; that lab's own layouts have none.
#
# **Sources.** Shazeer et al. 2017, *Outrageously Large Neural Networks*; Lepikhin et al. 2020, *GShard*; Fedus et al. 2021, *Switch Transformers*; Gale et al. 2022, *MegaBlocks*; Komatsuzaki et al. 2022, *Sparse Upcycling*; Dai et al. 2024, *DeepSeekMoE* (shared and fine-grained experts); Wang et al. 2024, *Auxiliary-Loss-Free Load Balancing*, and DeepSeek-AI 2024, *DeepSeek-V3* (the bias).
