# %% [markdown] name="title"
# # Mixture of experts
#
# **A mixture of experts can have many more parameters than it uses per token. That saves FLOPs. In return, you have to route tokens, keep the experts balanced, and hold all of them in memory.**
#
# | | |
# |---|---|
# | After this you can | write the layer: router, permutation, grouped matmuls without a host synchronization; balance experts with a loss and with a bias; measure what a capacity drops, what rounding reroutes, and what a z-loss changes; distinguish total from active parameters in memory, FLOPs and MFU; state what finer experts and a shared expert cost |
# | Time | 90 to 115 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●● |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | labs [[#start_here]] and [[#where_the_time_goes]] |
# | Syllabus | T39, C19 |

# %% name="setup" setup=true
import copy
import math

from helpers import (
    Claims,
    MemoryMeter,
    Prediction,
    check,
    compare,
    count_flops,
    device_name,
    english,
    hint,
    human_bytes,
    model_flops,
    parallel_map,
    pick_device,
    show,
    show_table,
    sign_of_life,
)
from helpers.exercises.mixture_of_experts import pictures
from helpers.exercises.mixture_of_experts.trained import batch_at, loss_on_test_text, train
from helpers.exercises.mixture_of_experts.window_model import WIDTH, WindowModel

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()
claims = Claims(device=device)
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, GPUs: {torch.cuda.device_count()}")

# %% [markdown] name="layer_text"
# ## 1 · Experts and a router
#
# The MLP of a transformer block processes each token independently, and uses all of its parameters for every token. A **mixture of experts** replaces it with several small MLPs, the *experts*, and a *router*: a linear layer with one output per expert. Each token goes to the k experts to which the router gives the highest probabilities. For each token, the layer returns the weighted sum of the results of these k experts.
#
# This lab uses 8 experts with a hidden size of 64 and k = 2. It is compared with a dense MLP with a hidden size of 128, which uses as many parameters per token as two experts do.

# %% name="layer_figure"
show(
    pictures.layer_picture(),
    "Four tokens on the left, four experts in the middle. Lines connect each token to the two experts that the router "
    "chose for it, thicker for the larger weight, and each expert to the token's weighted sum on the right.",
)

# %% [markdown] name="layer_contract"
# ### Your turn: the layer
#
# A token needs one copy per chosen expert. Sorting the copies by expert makes each expert's rows contiguous. This is the **permutation**. After the experts have run, the results go back to their tokens.
#
# **Contract.** Write four functions for n tokens of width C, E experts and k choices per token. n may be 0.
#
# - `route(logits, k, bias=None)` takes logits (n, E). It returns `chosen` (n, k), the k experts with the highest probabilities (softmax over all experts), in any order, and `weights` (n, k) in the same order: the probabilities of the chosen experts, divided by their sum, in the dtype of `logits`. A `bias` (E,) is added to the probabilities when experts are chosen. It does not enter the weights.
# - `permute(x, chosen, experts)` takes x (n, C). It returns `rows` (n·k, C), one copy of a token per choice, sorted by expert; `counts` (E,), the number of rows of each expert; and `source` (n·k,), where row j belongs to choice source[j] of `chosen.flatten()`.
# - `grouped(rows, counts, up, down)` takes up (E, H, C) and down (E, C, H). The first counts[0] rows belong to expert 0, the next counts[1] rows to expert 1, and so on. It returns down[e] · `F.gelu`(up[e] · row) for each row. No expert computes another expert's rows. An expert without rows gets a gradient of zeros. Even without any rows, the result must depend on `rows`, `up` and `down` in autograd: with many ranks ([[expert_parallel]]), a rank without tokens still takes part in the exchange of gradients.
# - `unpermute(rows, source, weights)` returns (n, C): for each token, the sum of its k rows, each multiplied by its weight.


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
    return x[source // chosen.shape[1]], F.one_hot(flat, experts).sum(dim=0), source
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
        self.counts = F.one_hot(self.chosen, len(self.bias)).sum(dim=(0, 1))
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
print(f"parameters, mixture / dense MLP: {mixture[0] / mlp[0]:.3f}")
print(f"FLOPs, mixture / dense MLP:      {mixture[1] / mlp[1]:.3f}")

# %% [markdown] name="one_guess_text"
# The mixture has four times the parameters at the same FLOPs. The router accounts for the small excess in both ratios. The **total** parameters determine memory: weights, gradients and optimizer state. The **active** parameters determine FLOPs.
#
# Some mixtures use k = 1 (the *Switch Transformer*).
#
# **Predict.** With your `route`, what is the norm of the router's gradient at k = 1, relative to k = 2?

# %% name="one_guess"
my_guess = None  # norm at k = 1 / norm at k = 2
### BEGIN GUESS
my_guess = 0.5
### END GUESS
one_guess = Prediction("Norm of the router's gradient, k = 1 / k = 2", my_guess, "times", difference=True)


# %% name="one_run"
def router_gradient(k):
    torch.manual_seed(0)
    layer = MoE(k=k)
    layer(torch.randn(512, WIDTH)).square().mean().backward()
    return layer.router.weight.grad.norm().item()


one_guess.reveal(router_gradient(1) / router_gradient(2))

# %% [markdown] name="one_explained"
# A single weight, divided by its own sum, is always 1, whatever the logits are. The router gets no gradient apart from rounding noise, so it never learns, and PyTorch reports nothing. With k = 1, use the probability itself as the weight, as the Switch Transformer does.
#
# The choice itself, a top-k, has no gradient at any k. The router learns only through the weights of the experts it chose. It gets no signal about how well the other experts would have done.

# %% [markdown] name="kernel_contract"
# ### Your turn: grouped matmuls
#
# Your `grouped` probably loops over the experts, with two matmuls each, and reads `counts` on the host to know where to split. On a GPU, this has two costs. Small matmuls, one after the other, leave most of the device idle. And `counts.tolist()` is a host synchronization: the CPU waits until the router has finished, and launches nothing in the meantime. For BF16 on an H100 or B200, `F.grouped_mm` runs all experts in one kernel and reads the boundaries on the device. (On an A100, or in FP32, it falls back to a loop that copies them to the host.)
#
# `torch.bincount` synchronizes, too: it reads the largest index to size its output. So training code counts with `F.one_hot(...).sum(dim=0)`, `histc` or `scatter_add`.
#
# **Contract.** `grouped_kernel(rows, counts, up, down)` has the same arguments and result as `grouped`, in FP32 or BF16.
#
# - It calls `F.grouped_mm` exactly twice in the forward pass and no other matmul.
# - It never reads `counts` on the host: no `tolist`, no `item`, no slicing by values.
#
# `F.grouped_mm(a, b, offs=ends)` multiplies the rows of `a` (rows, C) that belong to expert e by `b[e]`; `b` is (E, C, H). `ends` (E,) holds the index after the last row of each expert, in int32.


# %% name="kernel" answer=true reveal=true
def grouped_kernel(rows, counts, up, down):
    ### BEGIN SOLUTION
    ends = counts.cumsum(dim=0).to(torch.int32)
    hidden = F.gelu(F.grouped_mm(rows, up.mT, offs=ends))
    return F.grouped_mm(hidden, down.mT, offs=ends)
    ### END SOLUTION


# %% name="kernel_check"
grouped_kernel = check("mixture_of_experts.kernel", grouped_kernel)

# %% name="kernel_hint"
hint("mixture_of_experts.kernel")


# %% name="kernel_run"
EACH, WIDE = (512, 1024) if device.type == "cuda" else (64, 64)  # rows of each expert, their width


def work(function, dtype, experts=32):
    """Return a forward and backward pass of `function` with EACH rows per expert, on the device."""
    rows = torch.randn(EACH * experts, WIDE, device=device, dtype=dtype)
    up = torch.randn(experts, 2 * WIDE, WIDE, device=device, dtype=dtype)
    inputs = [t.requires_grad_() for t in (rows, up, up.mT.contiguous())]
    counts = torch.full((experts,), EACH, device=device)
    goal = torch.ones_like(rows)
    return lambda: torch.autograd.grad(function(inputs[0], counts, *inputs[1:]), inputs, goal)


for dtype in (torch.bfloat16,) if device.type == "cuda" else (torch.float32, torch.bfloat16):
    print(dtype, "loop -> grouped_mm:", compare(work(grouped, dtype), work(grouped_kernel, dtype), runs=10))

# %% [markdown] name="kernel_explained"
# These timings are for this device. PyTorch's CPU version of `F.grouped_mm` loops over the experts in C++, so on a CPU the gain is less overhead in Python and autograd. How much that is depends on your loop. If it indexes `up[e]`, autograd makes a gradient as large as all of `up` for each expert, and most of the printed gain comes from avoiding that. `up.unbind()`, or a `zip` over `up`, does not have this cost. On an H100, in BF16, the loop launches 2 E matmuls and waits once for `counts`. The grouped version launches two matmuls and does not wait. The other cells keep `grouped`, which also runs in FP64.

# %% [markdown] name="alone_text"
# ## 2 · Without balancing
#
# The model to train is tiny: two blocks and no attention. It reads the last 8 bytes of English text (Python's own manual) and predicts the next byte. Three versions see the same batches. The blocks of the first have a dense MLP with a hidden size of 128, and those of the second a dense MLP with 512. The third is a mixture, with 8 experts of hidden size 64 in each block and k = 2. The mixture computes about as much as the first version and has about as many parameters as the second.
#
# Nothing in the loss asks the router to balance. Compare the load of a layer's busiest expert with its even share: 1 means that all experts get the same, and 4 is the maximum, where every token chooses that expert.
#
# **Predict.** At the end of training, what is the busiest expert's load, as a multiple of its even share: is it nearest to 1.2, 2, 3 or 4?

# %% name="alone_guess"
my_guess = None  # times the even share
### BEGIN GUESS
my_guess = 2
### END GUESS
alone_guess = Prediction("Busiest expert, without balancing, the nearest of four", my_guess, "times the even share")


def nearest(figure, choices):
    """Return the choice that is off by the smallest factor."""
    return min(choices, key=lambda choice: abs(math.log(figure / choice)))


# %% name="train_all"
text = english(device)
models, runs = {}, {}


def trained_on_text(job):
    """Train what a job describes: how to make a block, the model's seed, options of `train`."""
    make, seed, options = job
    model = WindowModel(make, seed=seed).to(device)
    run = train(model, text, **options)
    return model.state_dict(), run


def train_all(jobs):
    """Train a model per job, two at a time, and add each to `models` and `runs` by its name."""
    with sign_of_life(f"training {len(jobs)} models"):
        results = parallel_map(trained_on_text, jobs.values())
    for (name, (make, seed, _)), (weights, run) in zip(jobs.items(), results, strict=True):
        models[name], runs[name] = WindowModel(make, seed=seed).to(device), run
        models[name].load_state_dict(weights)


# %% name="alone_run"
MAKERS = {"dense 128": lambda: dense(128), "dense 512": lambda: dense(512), "no balancing": MoE}
train_all({name: (make, 0, {}) for name, make in MAKERS.items()})
alone_guess.reveal(nearest(runs["no balancing"].busiest(), (1.2, 2, 3, 4)))
show(
    pictures.loads_picture({"no balancing": runs["no balancing"].loads}),
    "Eight bands, one per expert of the first block, over the training steps. The width of a band is the expert's share "
    "of the choices. The bands soon become very unequal.",
)
print(f"busiest expert: {runs['no balancing'].busiest():.2f} times its even share")
print(f"test loss {runs['no balancing'].test:.3f}")
idle = (runs["no balancing"].loads[-50:].mean(dim=0) * 8 < 0.25).sum().item()
print(f"experts with less than a quarter of their even share at the end: {idle} of 16")

# %% [markdown] name="alone_explained"
# An expert that is chosen gets gradients, improves, and is chosen more often. The widest bands show this early in the run. Here some of the other experts catch up in part. If they never did, this would be *routing collapse*: an expert that gets few tokens learns little, so it keeps getting few.

# %% [markdown] name="balance_text"
# ## 3 · Balancing
#
# **With a loss** (GShard, Switch Transformer). Let f be an expert's share of the choices, and P its mean probability over all tokens. Add α E Σ f·P to the loss, summed over the E experts. When both are even, Σ f·P is 1/E, so the term is α. The shares f have no gradient. The probabilities P do: the loss lowers P where f is large.
#
# **With a bias** (DeepSeek-V3). After each step, compare each expert's load with the mean and move its `route` bias a little: down for experts above the mean, up for experts below it. The bias changes which experts are chosen, but does not enter the weights or the gradient. DeepSeek-V3 also computes scores with a sigmoid in place of the softmax, and keeps a very small balance loss per *sequence*, because a load that is even over the batch can still be uneven within one sequence.
#
# **With a capacity.** Give each expert room for a fixed number of rows, its *capacity*, and drop the rest: a dropped token skips that expert. All experts then work on tensors of one fixed size.

# %% [markdown] name="balance_contract"
# ### Your turn: balancing
#
# **Contract.**
#
# - `balance_loss(logits, chosen)` takes logits (n, E) and chosen (n, k). It returns E Σ f·P as a scalar tensor, where f is a share of all n·k choices.
# - `nudge(bias, counts, rate)` changes `bias` (E,) in place. It adds `rate` where `counts` is below its mean, subtracts `rate` where it is above, and leaves the bias unchanged where they are equal.
# - `within_capacity(chosen, experts, capacity)` returns booleans (n, k). Each expert accepts the first `capacity` choices that name it, in the order of `chosen.flatten()`. Those are True, the rest False.


# %% name="balance" answer=true reveal=true
def balance_loss(logits, chosen):
    ### BEGIN SOLUTION
    experts = logits.shape[1]
    f = F.one_hot(chosen.flatten(), experts).sum(dim=0) / chosen.numel()
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
# **Predict.** Train the mixture again, once with α = 0.02 and once with a bias that moves by 0.01 per step. With the bias, is the test loss lower than without balancing by more than 0.01 nats (−1), the same within 0.01 (0), or higher (1)?

# %% name="balance_guess"
my_guess = None  # -1, 0 or 1
### BEGIN GUESS
my_guess = -1
### END GUESS
better_guess = Prediction(
    "Test loss with the bias: lower (-1), the same (0), higher (1)", my_guess, "", difference=True
)

# %% name="balance_run"
WAYS = {
    "loss": {"also": lambda layer: 0.02 * balance_loss(layer.logits, layer.chosen)},
    "bias": {"after": lambda layer: nudge(layer.bias, layer.counts, 0.01)},
}
train_all({name: (MoE, 0, way) for name, way in WAYS.items()} | {"bias, seed 1": (MoE, 1, WAYS["bias"])})
MIXTURES, again = ("no balancing", *WAYS), runs["bias, seed 1"]
better = runs["no balancing"].test - runs["bias"].test
better_guess.reveal((better < -0.01) - (better > 0.01))
show(
    pictures.loads_picture({name: runs[name].loads for name in MIXTURES}),
    "Three panels with the experts' shares of the choices over the training steps: very unequal bands without "
    "balancing, nearly equal ones with the loss and with the bias.",
)
for name in MIXTURES:
    print(f"{name:12} busiest {runs[name].busiest():.2f} x   test loss {runs[name].test:.3f}")
print(f"bias, another seed: busiest {again.busiest():.2f} x, test loss {again.test:.3f}")
busiest = max(runs["bias"].busiest(), again.busiest())
claims.record(
    "T39", "a bias alone keeps experts balanced", "8 experts, busiest of two seeds", busiest, "times even", 1, 1.5
)
claims.figure("balanced experts lower the loss by", "no balancing - bias, one seed", better, "nats")

# %% [markdown] name="balance_explained"
# Both methods balance the experts. With the loss, the router is pulled toward good predictions and toward equal loads at the same time, and α sets the strength of the second pull. The bias adds no gradient, so nothing competes with the task's gradient. It needs the loads of *all* tokens: with several ranks, all-reduce the counts before `nudge`. The loss has a similar problem. If it is computed per micro-batch, it demands balance within every micro-batch, which is stricter than balance over the global batch.

# %% [markdown] name="precision_text"
# ### Keep the router in FP32
#
# The router's logits decide which experts process a token. A rounding error there can send the token to a different expert. So a common defense is to compute the router in FP32 even if everything else runs in BF16. How much rerouting does that prevent?
#
# **Predict.** Run the trained router of the bias mixture with BF16 inputs and weights. What percentage of the tokens gets a different pair of experts in at least one of the two layers: is it nearest to 0.01, 1, 10 or 50%?

# %% name="precision_guess"
my_guess = None  # percent of the tokens
### BEGIN GUESS
my_guess = 1
### END GUESS
rounding_guess = Prediction("Tokens that change experts with a BF16 router, the nearest of four", my_guess, "%")


# %% name="precision_run"
@torch.no_grad()
def rerouted(model, x):
    """Return the percentage of the windows x whose experts change when each router computes in BF16."""
    changed = torch.zeros(len(x), dtype=torch.bool, device=x.device)

    def compare_choices(block, inputs, _):
        rounded = F.linear(inputs[0].bfloat16(), block.router.weight.bfloat16()).float()
        chosen = route(rounded, block.k, block.bias)[0]
        changed.logical_or_((chosen.sort(dim=1).values != block.chosen.sort(dim=1).values).any(dim=1))

    hooks = [block.register_forward_hook(compare_choices) for block in model.blocks]
    model(x)
    for hook in hooks:
        hook.remove()
    return 100 * changed.float().mean().item()


fresh = batch_at(text, 4096, torch.Generator().manual_seed(2))[0]
changed = rerouted(models["bias"], fresh)
rounding_guess.reveal(nearest(max(changed, 1e-3), (0.01, 1, 10, 50)))
print(f"tokens that change experts: {changed:.2f}%")

# %% [markdown] name="z_text"
# Rounding alone sends these tokens to experts that the FP32 router would not choose. The same can happen when activation checkpointing recomputes a block and the recomputation is not bitwise repeatable (because of atomics, or a different autocast state). If a token is then routed differently, a dropless layer's shapes change and `checkpoint` raises an error. With a fixed capacity the gradient is silently wrong. (This lab runs neither case.)
#
# ### A z-loss
#
# BF16 numbers just above 1 are 1/128 apart, and just above 32 they are 1/4 apart, so large logits round more coarsely. A second defense is meant to keep the logits from growing. The **z-loss** (ST-MoE) adds a small multiple of the mean of logsumexp(logits)² to the loss. What matters to the choice is how far apart a token's logits are: the largest minus the smallest, their *spread*.
#
# **Predict.** Train the bias mixture again, with 0.01 times this mean added to the loss for each layer. What is the mean spread of the logits, relative to that without a z-loss?

# %% name="z_guess"
my_guess = None  # spread with the z-loss / without
### BEGIN GUESS
my_guess = 0.5
### END GUESS
z_guess = Prediction("Spread of the router's logits, with a z-loss / without", my_guess, "times")

# %% name="z_run"
Z_LOSS = {"also": lambda layer: 0.01 * layer.logits.logsumexp(dim=1).square().mean()}
train_all({"bias, z-loss": (MoE, 0, WAYS["bias"] | Z_LOSS)})
table, spreads = [("", "mean logsumexp", "mean spread", "tokens rerouted by BF16", "test loss")], {}
for name in ("bias", "bias, z-loss"):
    share = rerouted(models[name], fresh)  # a forward pass, after which each layer has its logits
    logits = torch.cat([block.logits for block in models[name].blocks])
    spreads[name] = (logits.amax(dim=1) - logits.amin(dim=1)).mean().item()
    size = logits.logsumexp(dim=1).mean()
    table.append((name, f"{size:.2f}", f"{spreads[name]:.2f}", f"{share:.2f}%", f"{runs[name].test:.3f}"))
z_guess.reveal(spreads["bias, z-loss"] / spreads["bias"])
show_table(table)

# %% [markdown] name="z_explained"
# The z-loss does what its formula says: logsumexp moves toward 0. Here it gets there mostly by a shift that all of a token's logits share. A common shift changes neither the softmax nor the choice. It makes rounding finer only where logits were large. Those of this small router never were, so BF16 does not reroute fewer tokens here (third column). In a long training run logits can grow into the tens, and no shift can then bring logsumexp near 0 without making the largest logits smaller as well. That is the case for which the z-loss was made. (This lab does not run that case.)

# %% [markdown] name="capacity_text"
# ### What a capacity drops
#
# A capacity is usually given as a factor: 1.25 means room for 1.25 times the even load.
#
# **Predict.** With a factor of 1.25, what percentage of the choices does the mixture without balancing drop?

# %% name="drop_guess"
my_guess = None  # percent of the choices
### BEGIN GUESS
my_guess = 35
### END GUESS
alone_drop_guess = Prediction("Dropped at 1.25, without balancing", my_guess, "%", difference=True)


# %% name="drop_run"
def dropping(model, factor):
    """Return the percentage of choices dropped at a capacity factor (None: no capacity), and the test loss."""
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
alone_drop_guess.reveal(dropped["no balancing", 1.25][0])
table = [("capacity factor", "1.25", "2", "dropless")]
for name in MIXTURES:
    cells = [dropped[name, factor] for factor in (1.25, 2.0, None)]
    table.append((name, *(f"{share:.1f}% dropped, loss {loss:.3f}" for share, loss in cells)))
show_table(table)

# %% [markdown] name="drop_explained"
# A capacity has two costs. Dropped tokens skip the busy experts, and the slots of underused experts stay empty. Which tokens are dropped depends on the rest of the batch.
#
# Your `permute` and `grouped` drop nothing: they are **dropless** (MegaBlocks). `F.grouped_mm` makes that practical on a GPU.

# %% [markdown] name="cheap_text"
# ## 4 · What is cheaper, and what is not
#
# How good is a mixture, compared with dense models of its active and of its total size? And how many FLOPs does it save? Articles promise savings equal to the ratio of total to active parameters. For the experts alone that ratio is 4. A model also has parameters that every token uses, so the ratio for the full model is smaller. A cell below computes it from the parameters that take part in matmuls.
#
# Dense 512 has a lower test loss than dense 128. A mixture as good as dense 128 would close 0% of this gap, and one as good as dense 512 would close 100%.
#
# **Predict.** What percentage of the gap does the bias mixture close: is it nearest to 25, 50 or 100%?

# %% name="cheap_guess"
my_guess = None  # percent of the gap
### BEGIN GUESS
my_guess = 50
### END GUESS
gap_guess = Prediction("Gap that the mixture closes, the nearest of three", my_guess, "%", difference=True)


# %% name="cheap_run"
def step_of(model):
    """Return a forward and backward pass of a batch."""
    x, y = batch
    return lambda: F.cross_entropy(model(x), y).backward()


def in_matmuls(model, active=1.0):
    """Count the parameters that take part in matmuls; of the experts, the share that is active."""
    count = sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "embedding" not in name)
    experts = sum(block.up.numel() + block.down.numel() for block in model.blocks)
    return count - (1 - active) * experts


def flops_until(name, loss):
    """Return the FLOPs of a run until its smoothed training loss is `loss`; infinite if it never is."""
    steps = next((i + 1 for i, value in enumerate(runs[name].smoothed()) if value <= loss), math.inf)
    return steps * flops[name.partition(",")[0]]


def against_dense(seed):
    """Return the percentage of the gap that the mixture closes, and its saving in FLOPs to the loss of dense 512."""
    small, large, mixture = (f"{name}{seed}" for name in ("dense 128", "dense 512", "bias"))
    low, high = runs[large].test, runs[small].test
    final = runs[large].smoothed()[-1] + 0.01  # within 0.01 nats of its final loss
    return 100 * (high - runs[mixture].test) / (high - low), flops_until(large, final) / flops_until(mixture, final)


train_all({f"{name}, seed 1": (MAKERS[name], 1, {}) for name in ("dense 512", "dense 128")})
batch = batch_at(text, 1024, torch.Generator().manual_seed(2))
flops = {name: count_flops(step_of(models[name])) for name in (*MAKERS, *WAYS)}
gaps, savings = zip(*map(against_dense, ("", ", seed 1")), strict=True)
gap_guess.reveal(nearest(max(sum(gaps) / 2, 1), (25, 50, 100)))

# %% name="cheap_table"
counted = {"total": in_matmuls(models["bias"]), "active": in_matmuls(models["bias"], active=2 / 8)}
ratio = counted["total"] / counted["active"]
table = [("", "test loss", "another seed", "parameters", "FLOPs of a step")]
for name in flops:
    count = sum(p.numel() for p in models[name].parameters())
    other = f"{runs[f'{name}, seed 1'].test:.3f}" if f"{name}, seed 1" in runs else ""
    table.append((name, f"{runs[name].test:.3f}", other, f"{count:,}", f"{flops[name] / 1e6:.0f} M"))
show_table(table)
print(f"gap closed: {gaps[0]:.0f}% and {gaps[1]:.0f}%; total / active parameters: {ratio:.2f}")
print(f"FLOPs to the same loss, dense 512 / mixture: {savings[0]:.2f} and {savings[1]:.2f}")
said = "the loss of a larger dense model at the FLOPs of the active part"
claims.record("C19", said, "gap closed, 8 experts, k = 2, mean of two seeds", sum(gaps) / 2, "%", 80, math.inf)
said, subject = "cheaper by total / active parameters", "FLOPs to the loss of dense 512 / that ratio, mean of two seeds"
claims.record("C19", said, subject, sum(savings) / 2 / ratio, "times", 0.8, 1.25)

# %% [markdown] name="cheap_explained"
# With either seed, the mixture comes close to the loss of the dense model with MLPs four times as wide, or beats it. The saving is close to the model's own ratio of total to active parameters, or above it. The last two printed lines show that both figures depend on the seed, so the verdicts use the mean of two seeds. The experts' own ratio of 4 would promise too much: the layers before and after the blocks cost the same in all models, and they are a large part of a small model.
#
# This is one small byte-level model, trained on text for which more parameters help within 200 steps. Some articles say that a mixture reaches the loss of a dense model of its total size. At scale that is too strong. Scaling studies place a mixture between a dense model of its active size and one of its total size. In two, the gain shrinks as models grow (Clark et al. 2022; Artetxe et al. 2021). In a later one it grows (Krajewski et al. 2024).

# %% [markdown] name="seconds_text"
# ### Seconds and MFU
#
# The last column of the table above gives the FLOPs of a step.
#
# **Predict.** On this machine, how much longer does a step of dense 512 take than a step of the bias mixture: is the ratio of the times nearest to 1, 2 or 3?

# %% name="seconds_guess"
my_guess = None  # seconds of dense 512 / of the mixture
### BEGIN GUESS
my_guess = 2
### END GUESS
seconds_guess = Prediction("Seconds of a step, dense 512 / mixture, the nearest of three", my_guess, "times")

# %% name="seconds_run"
timing = compare(step_of(models["dense 512"]), step_of(models["bias"]), runs=30)
seconds_guess.reveal(nearest(timing.speedup, (1, 2, 3)))
print(timing)
utilization = timing.speedup * flops["bias"] / flops["dense 512"]
print(f"MFU of the mixture, from its own FLOPs: {utilization:.2f} x that of dense 512")
rates = {name: model_flops(count, 1024) / flops["bias"] for name, count in counted.items()}
for name, count in counted.items():
    print(f"6 N D with {name:6} parameters, N = {count:9,.0f}: {rates[name]:.2f} x the counted FLOPs")
claims.record(
    "T39", "6 N D with the active parameters", "mixture, 1,024 tokens", rates["active"], "of the counted", 0.9, 1.1
)
claims.figure("a step of dense 512 / of the mixture", "1,024 tokens, forward and backward", timing.speedup, "times")

# %% [markdown] name="seconds_explained"
# Fewer FLOPs do not mean proportionally fewer seconds. The experts' matmuls are many and small. Sorting, copying and restoring rows costs memory traffic and launches, which a FLOP count does not show ([[where_the_time_goes]]). So the mixture's MFU is lower here. An MFU from 6 N D with the total parameters would hide that, as the last lines show. When you read the MFU of a mixture, ask which N it uses.

# %% [markdown] name="memory_text"
# ### Memory
#
# **Predict.** In a training step with AdamW and a batch of 256 windows, what is the mixture's peak memory, as a multiple of dense 128's?

# %% name="memory_guess"
my_guess = None  # peak of the mixture / of dense 128
### BEGIN GUESS
my_guess = 1.5
### END GUESS
memory_guess = Prediction("Peak memory of a step, mixture / dense 128", my_guess, "times")


# %% name="memory_run"
def training_peak(make, rows=256):
    """Return the memory profile of a second training step."""
    model = WindowModel(make).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = (t[:rows] for t in batch)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    step()
    with MemoryMeter(model, optimizer) as profile:
        step()
    return profile


profiles = {name: training_peak(make) for name, make in {**MAKERS, "mixture": MoE}.items() if name != "no balancing"}
memory_guess.reveal(profiles["mixture"].peak_bytes / profiles["dense 128"].peak_bytes)
KINDS = ("parameters", "gradients", "optimizer state", "activations")
table = [("", *KINDS, "peak")]
for name, profile in profiles.items():
    table.append(
        (name, *(human_bytes(profile.largest.get(kind, 0)) for kind in KINDS), human_bytes(profile.peak_bytes))
    )
show_table(table)

# %% [markdown] name="memory_explained"
# Parameters, gradients and optimizer state follow the total parameters: for these three, the mixture needs about as much memory as dense 512. Its activations take more memory than those of dense 128, because each token has k copies, and each copy has a result.

# %% [markdown] name="fine_text"
# ### Finer experts, and a shared one
#
# DeepSeek's models change two things. With **fine-grained experts**, there are twice as many experts, each half the size, and k is doubled. Parameters and FLOPs stay the same, apart from the router, and many more combinations are possible. A **shared expert** processes every token, so the other experts need not all learn the same things. At scale it has a second use: its tokens stay on their rank, so it can compute while the other experts' tokens travel ([[expert_parallel]]).
#
# The next cells compare three layers: 8 experts with k = 2; 16 experts of half the size with k = 4; and 15 of these with k = 3 plus a shared one.
#
# **Predict.** What is the peak memory of the layer's forward and backward pass with 16 fine experts, relative to 8?

# %% name="fine_guess"
my_guess = None  # peak with 16 fine experts / with 8
### BEGIN GUESS
my_guess = 1.3
### END GUESS
fine_guess = Prediction("Peak of a layer, 16 fine experts / 8 experts", my_guess, "times")


# %% name="fine_run"
class Shared(MoE):
    """15 routed experts, and one that processes every token."""

    def __init__(self):
        super().__init__(experts=15, k=3, hidden=32)
        self.shared = dense(32)

    def forward(self, x):
        return self.shared(x) + super().forward(x)


def layer_peak(make):
    """Return the peak memory of a layer, forward and backward, with 4,096 tokens."""
    layer, x = make().to(device), torch.randn(4096, WIDTH, device=device, requires_grad=True)
    with MemoryMeter(layer) as profile:
        layer(x).square().mean().backward()
    return profile.peak_bytes


FINE = {"8 experts, k = 2": MoE, "16 fine, k = 4": lambda: MoE(16, 4, 32), "1 shared, 15 fine, k = 3": Shared}
peaks = {name: layer_peak(make) for name, make in FINE.items()}
fine_guess.reveal(peaks["16 fine, k = 4"] / peaks["8 experts, k = 2"])

# %% name="fine_table"
train_all({name: (make, 0, WAYS["bias"]) for name, make in FINE.items() if make is not MoE})
runs["8 experts, k = 2"], models["8 experts, k = 2"] = runs["bias"], models["bias"]
table = [("", "test loss", "busiest expert", "FLOPs of a step", "peak of a layer")]
for name in FINE:
    needed, run = count_flops(step_of(models[name])), runs[name]
    table.append((name, f"{run.test:.3f}", f"{run.busiest():.2f} x", f"{needed / 1e6:.0f} M", human_bytes(peaks[name])))
show_table(table)
print(f"two seeds of 8 experts with the bias differ by {abs(runs['bias'].test - again.test):.3f} in test loss")

# %% [markdown] name="fine_explained"
# The FLOPs are the same, and the memory is not. With k = 4 there are twice as many rows, and every row has a copy of its token and a result, each of the full width. Only the hidden layer takes the same memory as before. With many ranks, twice as many rows also travel. A shared expert saves part of that, because its tokens are not copied.
#
# Compare the differences in test loss with the last line, which shows how much two seeds differ. DeepSeekMoE reports a lower loss for fine-grained and shared experts, after billions of tokens. 200 steps of such a small model neither confirm nor refute that. They are not quite fair to the finer experts, either: the probabilities of 16 experts are smaller than those of 8, so a bias that moves by 0.01 is a larger step for them, and their loads vary more (third column).
#
# ## 5 · What this run measured

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Parameters, gradients and optimizer state follow the total parameters; FLOPs follow the active ones; seconds follow neither exactly.
# - From the task's loss, the router learns only through the weights of the experts it chose. Without balancing, a few experts get most of the tokens. A loss or a bias prevents that. Keep the router in FP32; a z-loss keeps its logsumexp near 0.
# - A capacity drops tokens. Grouped matmuls on sorted rows drop none, and in BF16 on an H100 `F.grouped_mm` needs no host synchronization (according to its source; this lab has checked only that the host reads no counts).
# - Finer experts cost no more FLOPs, but more rows: more memory, and more to send.
#
# **What to reach for when.** For a lower loss at the same FLOPs, with memory to spare, use a mixture. When you report an MFU, state that it counts active parameters.
#
# **Next.** [[Expert_parallel]] spreads the experts over many ranks: which rows travel, which rank is overloaded, and which gradients are averaged.
#
# **Sources.** Shazeer et al. 2017, *Outrageously Large Neural Networks*; Lepikhin et al. 2020, *GShard*; Fedus et al. 2021, *Switch Transformers*; Artetxe et al. 2021, *Efficient Large Scale Language Modeling with Mixtures of Experts*; Clark et al. 2022, *Unified Scaling Laws for Routed Language Models*; Krajewski et al. 2024, *Scaling Laws for Fine-Grained Mixture of Experts*; Zoph et al. 2022, *ST-MoE* (z-loss, FP32 router); Gale et al. 2022, *MegaBlocks*; Dai et al. 2024, *DeepSeekMoE* (shared and fine-grained experts); Wang et al. 2024, *Auxiliary-Loss-Free Load Balancing*, and DeepSeek-AI 2024, *DeepSeek-V3* (the bias).
