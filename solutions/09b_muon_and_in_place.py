# %% [markdown] name="title"
# # Muon, Adafactor, and in-place operations
#
# **Saved bytes count only if training still works: a leaner optimizer has to pass a fair comparison, and an in-place operation must not change what autograd has saved.**
#
# | | |
# |---|---|
# | After this you can | write Muon's orthogonalization and its step; compare optimizers fairly, each at its best learning rate and with a trivial model as a yardstick; say which in-place operations save memory, and which break a gradient; write an in-place activation that autograd accepts |
# | Time | 90 to 110 minutes; a good place to stop is after section 3 |
# | Difficulty | ●●○ |
# | Needs | a CPU; the same cells use a GPU if there is one |
# | Before this | [[lean_optimizers]] |
# | Syllabus | T12, T13 |

# %% name="setup" setup=true
import itertools
import math
import statistics
import textwrap

from helpers import (
    COLORS,
    Claims,
    MatricesAndRest,
    MemoryMeter,
    Prediction,
    SmallCNN,
    SmallGPT,
    ViT,
    check,
    device_name,
    digits,
    english,
    explore,
    hint,
    human_bytes,
    parallel_map,
    pick_device,
    show,
    show_table,
    sign_of_life,
    state_bytes,
)
from helpers.exercises.muon_and_in_place.eight_bits import adam8

# %% name="setup_torch" setup=true
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims()
print(f"device: {device_name(device)} ({device.type}), torch {torch.__version__}, meter: {MemoryMeter().method}")

# %% [markdown] name="idea_text"
# ## 1 · A step from a few matmuls
#
# An optimizer's state accounts for much of the memory used in training. In FP32, AdamW keeps 8 bytes per parameter, Muon and SGD with momentum keep 4, and Adafactor almost none ([[lean_optimizers]] counts them). This lab asks what you pay for the difference.
#
# Muon starts from the momentum of a matrix and moves its **singular values** toward 1, so that the weights also move in directions in which gradients are small. This takes a few matmuls and no decomposition (**Newton-Schulz**). For a matrix *X* whose singular values are at most 1, one iteration is
#
# $$A = X X^\top \qquad X \leftarrow a X + (b A + c A^2)\,X \qquad a = 3.4445,\ b = -4.7750,\ c = 2.0315$$
#
# It maps each singular value *s* to *as + bs³ + cs⁵* and keeps the singular vectors. These coefficients (Jordan et al. 2024) raise small values fast, and settle for values *near* 1.
#
# ### Your turn: Newton-Schulz
#
# **Contract.** `orthogonalize(matrix, iterations)` returns a new FP32 matrix of the same shape, after that many iterations.
#
# - First divide by the Frobenius norm (plus 1e-7), so that no singular value is above 1. Then it does not matter how large the numbers of `matrix` are, and zeros give zeros.
# - `matrix` is FP32, square, wide or tall, and is not changed.
# - No intermediate has more numbers than `matrix`: for a tall matrix (more rows than columns), work with the transpose, and transpose the result.


# %% name="newton" answer=true reveal=true
def orthogonalize(matrix, iterations):
    ### BEGIN SOLUTION
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (matrix.norm() + 1e-7)
    tall = len(x) > x.shape[1]
    x = x.mT if tall else x
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x
    ### END SOLUTION


# %% name="newton_check"
orthogonalize = check("muon_and_in_place.newton", orthogonalize)

# %% name="newton_hint"
hint("muon_and_in_place.newton")

# %% [markdown] name="guess_muon_text"
# Apply it to the gradient of one 256 × 256 matrix in a small GPT, and compare with PyTorch's Muon, which does the same iterations in BF16. First look at the gradient:

# %% name="gpt"
text = english(device)


def make_gpt():
    torch.manual_seed(0)
    return SmallGPT(layers=4, width=256).to(device)


def tokens(n):
    """Return n ids and n targets, in rows of at most 64."""
    return (t[:n].clone().view(-1, min(n, 64)) for t in (text.train_x, text.train_y))


def backward(model, x, y):
    F.cross_entropy(model(x).flatten(0, -2), y.flatten()).backward()


# %% name="gradient"
model = make_gpt()
weight = model.blocks[0].out.weight
backward(model, *tokens(512))


def print_values(name, matrix):
    """Print how large the singular values of `matrix` are; return how many are above a tenth of the largest."""
    singular = torch.linalg.svdvals(matrix.cpu().float())
    above = int((singular > singular[0] / 10).sum())
    sizes = f"largest {singular[0]:.3g}, median {singular.median():.3g}, norm {singular.norm():.3g}"
    print(f"{name:12} above a tenth of the largest: {above:3} of 256; {sizes}")
    return above


_ = print_values("gradient", weight.grad)

# %% [markdown] name="guess_muon_task"
# After the division by the norm, one iteration multiplies a small singular value by about *a* = 3.4445. The largest settle near 1.
#
# **Predict.** After five iterations, how many of the 256 singular values are above a tenth of the largest?

# %% name="guess_muon"
my_guess = None  # of 256
### BEGIN GUESS
my_guess = 256  # all of them near 1
### END GUESS
step_guess = Prediction("Singular values above a tenth, after five iterations", my_guess, "of 256")

# %% name="muon_step"
before = weight.detach().clone()
muon = torch.optim.Muon([weight], lr=1.0, weight_decay=0)
muon.step()
step_guess.reveal(print_values("yours", orthogonalize(weight.grad.float(), 5)))
_ = print_values("Muon's step", before - weight.detach())

# %% [markdown] name="muon_explained"
# The gradient of this layer has only a few large singular values. Five iterations multiply a small one by at most 3.4445⁵ ≈ 485. So those below about a 4,000th of the norm cannot reach a tenth of the largest.
#
# ### Explore: how many iterations?
#
# The picture shows what the iterations do to each singular value. Find the number of iterations that brings 0.001 above a tenth. Then try the classical coefficients, which converge to exactly 1: how many do they need to bring 0.001 above a tenth?

# %% name="map_picture"
COEFFICIENTS = {"Muon's": (3.4445, -4.7750, 2.0315), "classical": (1.5, -0.5, 0.0)}


def picture(coefficients, iterations):
    before = s = torch.logspace(-4, 0, 300)
    a, b, c = COEFFICIENTS[coefficients]
    for _ in range(iterations):
        s = a * s + b * s**3 + c * s**5
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.loglog(before, s, color=COLORS[0])
    for height in (0.1, 1):
        axes.axhline(height, color=COLORS[3], lw=1)
    axes.set(
        title=f"{coefficients} coefficients, {iterations} iterations", xlabel="singular value", ylabel="afterwards"
    )
    return figure


explore(
    picture,
    "A line that rises from the lower left and levels off near 1; with more iterations it levels off further left.",
    coefficients=("Muon's", tuple(COEFFICIENTS)),
    iterations=(5, (1, 2, 3, 4, 5, 6, 8, 12, 20)),
)

# %% [markdown] name="muon_task"
# ## 2 · Muon's step
#
# Muon keeps one number per weight, the momentum *M* of each matrix, which starts at zero. With the gradient *G* of a matrix *P* of *r* × *c* numbers, a step is
#
# $$M \leftarrow 0.95\,M + 0.05\,G \qquad N = 0.95\,M + 0.05\,G \qquad P \leftarrow P - \text{lr} \cdot 0.2\,\sqrt{\max(r, c)} \cdot \text{orthogonalize}(N, 5)$$
#
# *N* is **Nesterov's** momentum: it adds the newest gradient once more. The factor next to the learning rate makes Muon's steps about as large as AdamW's, so that one learning rate can serve both.
#
# ### Your turn
#
# **Contract.** `Muon(matrices, lr).step()` updates all matrices by these formulas.
#
# - *N* uses *M* as just updated.
# - `lr` comes from the matrix's group in each step, because a schedule may have changed it.
# - `self.state[p]` has the momentum, in FP32, and nothing else that is large. (A multiple of *M* will do if *N* is the same multiple, because `orthogonalize` ignores the size of its argument.) Between steps, nothing is kept elsewhere.
# - Only one matrix at a time is orthogonalized: with 24 equal matrices, a step holds at most 12 copies of one of them, besides weights, gradients and momentum.
# - In a step in which a matrix has no gradient, neither the matrix nor its momentum changes.
# - The gradients are not changed.


# %% name="muon" answer=true reveal=true
class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized; for matrices only."""

    def __init__(self, matrices, lr):
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self):
        ### BEGIN SOLUTION
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"].lerp_(p.grad, 0.05)
                step = orthogonalize(p.grad.lerp(momentum, 0.95), 5)
                p.sub_(step, alpha=0.2 * math.sqrt(max(p.shape)) * group["lr"])
        ### END SOLUTION


# %% name="muon_check"
Muon = check("muon_and_in_place.muon", Muon)

# %% name="muon_hint"
hint("muon_and_in_place.muon")

# %% [markdown] name="same_text"
# PyTorch has `torch.optim.Muon`, which multiplies in BF16. `adjust_lr_fn="match_rms_adamw"` selects the factor above. Muon is only for matrices: `MatricesAndRest` gives it the matrices of a model, and all other parameters to AdamW. (The usual recipe also leaves the embedding and the output layer to AdamW. Here Muon gets every matrix.) Your Muon and PyTorch's each train the GPT for twenty steps on the same batches.
#
# **Predict.** How far apart are the two results for the matrix of section 1, as a percentage of the distance that it has moved?

# %% name="guess_same"
my_guess = None  # percent
### BEGIN GUESS
my_guess = 10  # BF16 rounds by up to 0.4%, and twenty steps pass the difference on
### END GUESS
same_guess = Prediction("Your Muon and PyTorch's after twenty steps", my_guess, "% apart")

# %% name="muon_same"
SETTINGS = {"lr": 0.01, "weight_decay": 0, "adjust_lr_fn": "match_rms_adamw"}
MUONS = {"yours": lambda ps: Muon(ps, 0.01), "PyTorch's": lambda ps: torch.optim.Muon(ps, **SETTINGS)}


def twenty_steps(make_muon):
    """Return how far the first layer's matrix went, the last loss, and the bytes of state per parameter."""
    model = make_gpt()
    optimizer = MatricesAndRest(model.parameters(), make_muon, lambda rest: torch.optim.AdamW(rest, lr=0.01))
    weight = model.blocks[0].out.weight
    start = weight.detach().clone()
    for i in range(20):
        x, y = (t[128 * i : 128 * i + 128].view(2, 64) for t in (text.train_x, text.train_y))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weight.detach() - start, loss.item(), state_bytes(optimizer) / sum(p.numel() for p in model.parameters())


with sign_of_life("twenty steps with each"):
    went = {name: twenty_steps(make) for name, make in MUONS.items()}
for name, (_, loss, kept) in went.items():
    print(f"{name:10} last training loss {loss:.3f}, state {kept:.2f} bytes per parameter")
mine, theirs = (moved for moved, *_ in went.values())
same_guess.reveal(100 * ((mine - theirs).norm() / theirs.norm()).item())

# %% [markdown] name="rivals_text"
# The gap comes from two causes that this run does not separate: PyTorch's Muon rounds to BF16, and once the weights differ, so do the gradients. The losses hardly differ.
#
# ## 3 · Does leaner cost quality?
#
# We train four models:
#
# - an MLP on handwritten digits, with Adam and with the 8-bit Adam of [[lean_optimizers]];
# - a convolutional network and a vision transformer on the digits, with SGD and AdamW;
# - a **language model** on English text, with your Muon, Adafactor and AdamW.
#
# Each optimizer gets its own learning rate for each network: the best of three by the loss on held-out data, with one seed. Only 8-bit Adam reuses Adam's rate, because it is meant to replace Adam. Then each trains again, with three seeds on the digits and with two new ones on the text.
#
# A short run can mislead in two ways:
#
# - If the learning rate falls early, an optimizer that starts slowly stays behind. So on the text the rate stays constant after the warm-up, and falls only over the last 30% of the 160 steps.
# - Two models may be compared before either has learned much. So the lines below the table also give the **unigram loss**, which a model that knows only each token's frequency would reach, and the step at which a run gets clearly below it.
#
# **Predict** how much higher the language model's test loss is with Adafactor than with AdamW (negative: lower).

# %% name="guess_sgd"
my_guess = None  # test loss minus AdamW's; negative: lower
### BEGIN GUESS
my_guess = 0.1
### END GUESS
adafactor_behind = Prediction("Language model, Adafactor's test loss minus AdamW's", my_guess, "", difference=True)

# %% name="rivals"
RIVALS = {
    "SGD": lambda ps, lr: torch.optim.SGD(ps, lr=lr, momentum=0.9, fused=True),
    "Adafactor": lambda ps, lr: torch.optim.Adafactor(ps, lr=lr, foreach=False),
    "AdamW": lambda ps, lr: torch.optim.AdamW(ps, lr=lr, fused=True),
}
RIVALS["Muon"] = lambda ps, lr: MatricesAndRest(
    ps, lambda matrices: Muon(matrices, lr), lambda rest: RIVALS["AdamW"](rest, lr)
)
RIVALS["Adam"] = lambda ps, lr: torch.optim.Adam(ps, lr=lr, fused=True)
RIVALS["Adam8"] = adam8
NETS = {
    "MLP": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    ),
    "CNN": lambda: SmallCNN(8),
    "ViT": lambda: ViT(side=8, patch=2, layers=2, width=32, heads=2, inner=64),
    "GPT": lambda: SmallGPT(context=LM_LENGTH, layers=2, width=64),
}
RATES_OF = {
    ("MLP", "Adam"): (0.01, 0.03, 0.1),
    ("ViT", "SGD"): (0.03, 0.1, 0.3),
    ("ViT", "AdamW"): (0.01, 0.03, 0.1),
    ("CNN", "SGD"): (0.1, 0.3, 1.0),
    ("CNN", "AdamW"): (0.01, 0.03, 0.1),
    ("GPT", "Muon"): (0.01, 0.03, 0.1),
    ("GPT", "Adafactor"): (0.03, 0.1, 0.3),
    ("GPT", "AdamW"): (0.0005, 0.001, 0.002),
}
EPOCHS, LM_STEPS, LM_ROWS, LM_LENGTH = 6, 160, 4, 64
data = digits()


# %% name="fit"
def fit(net, optimizer, factor, batches):
    """Take a step per batch, at the optimizer's learning rate times `factor(step)`; return the losses."""
    schedule, losses = torch.optim.lr_scheduler.LambdaLR(optimizer, factor), []
    for x, y in batches:
        loss = F.cross_entropy(net(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def digit_batches(split):
    for _ in range(EPOCHS):
        for index in torch.randperm(len(split.train_x)).split(64):
            yield split.train_x[index].to(device), split.train_y[index].to(device)


def text_batches(seed):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(LM_STEPS):
        places = torch.randint(len(text.train_x) - LM_LENGTH - 1, (LM_ROWS, 1), generator=draw)
        rows = text.train_x[(places + torch.arange(LM_LENGTH + 1)).to(device)]
        yield rows[:, :-1], rows[:, 1:]


# %% name="run_job"
frequency = torch.bincount(text.train_x, minlength=256).add(1).double()
UNIGRAM = -(frequency / frequency.sum()).log()  # loss of each token, if only the frequencies are known


def run_job(job, split, test):
    """Train (net, rival, rate, seed); return the loss on the test data, and the accuracy on digits.

    For text: the loss, and the step from which a running mean of the training loss is 0.1 below the unigram loss.
    """
    kind, rival, lr, seed = job
    torch.manual_seed(seed)
    net = NETS[kind]().to(device)
    optimizer = RIVALS[rival](net.parameters(), lr)
    if kind == "GPT":
        rise, fall = LM_STEPS // 10, 0.3 * LM_STEPS
        losses = fit(net, optimizer, lambda i: min((i + 1) / rise, 1, (LM_STEPS - i) / fall), text_batches(seed))
        means = itertools.accumulate(losses, lambda mean, loss: 0.9 * mean + 0.1 * loss, initial=math.log(256))
        low = UNIGRAM[text.train_x.cpu()].mean() - 0.1
        rows = test[: 64 * LM_LENGTH + 1].unfold(0, LM_LENGTH + 1, LM_LENGTH)
        with torch.no_grad():
            loss = F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()
        return loss, next((i for i, mean in enumerate(means) if mean < low), math.inf)
    steps = EPOCHS * math.ceil(len(split.train_x) / 64)
    rise = steps // 3
    fit(net, optimizer, lambda i: min((i + 1) / rise, 0.5 * (1 + math.cos(math.pi * i / steps))), digit_batches(split))
    with torch.no_grad():
        logits = net.eval()(split.test_x.to(device)).cpu()
    accuracy = 100 * (logits.argmax(1) == split.test_y).float().mean().item()
    return F.cross_entropy(logits, split.test_y).item(), accuracy


def train_all(jobs, split, test):
    """Run `jobs` in two processes; return {job: what `run_job` returns}."""
    with sign_of_life(f"{len(jobs)} trainings in two processes"):
        runs = parallel_map(lambda job: run_job(job, split, test), jobs)
    return dict(zip(jobs, runs, strict=True))


# %% name="search"
held_out = data._replace(
    train_x=data.train_x[300:], train_y=data.train_y[300:], test_x=data.train_x[:300], test_y=data.train_y[:300]
)
jobs = [(*pair, lr, 0) for pair, rates in RATES_OF.items() for lr in rates]
tried = train_all(jobs, held_out, text.test_x[len(text.test_x) // 2 :])  # the other half is for the table
rate = {}
for pair, rates in RATES_OF.items():
    losses = {lr: tried[(*pair, lr, 0)][0] for lr in rates}
    rate[pair] = min(losses, key=lambda lr: (math.isnan(losses[lr]), losses[lr]))
    edge = "" if rate[pair] == rates[1] else ", at the edge"
    line = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in losses.items())
    print(f"{pair[0]} {pair[1]:9} loss by rate {line:36} chosen: {rate[pair]:g}{edge}")
rate["MLP", "Adam8"] = rate["MLP", "Adam"]  # 8 bits replace 32 at the same rate

# %% name="compete_table"
seeds_of = {pair: range(1, 3) if pair[0] == "GPT" else range(3) for pair in rate}
jobs = [(*pair, rate[pair], seed) for pair in rate for seed in seeds_of[pair]]
found = train_all(jobs, data, text.test_x)
behind = {}
table = [("model, optimizer", "accuracy (%) or test loss, by seed", "mean", "behind Adam(W)")]
for net, rival in rate:
    base = "Adam" if net == "MLP" else "AdamW"
    column = 0 if net == "GPT" else 1  # a loss is better if it is lower, an accuracy if it is higher
    scores, others = (
        [found[net, name, rate[net, name], seed][column] for seed in seeds_of[net, name]] for name in (rival, base)
    )
    sign = 1 if net == "GPT" else -1
    behind[net, rival] = sign * (statistics.mean(scores) - statistics.mean(others))
    error = math.sqrt((statistics.variance(others) + statistics.variance(scores)) / len(scores))
    digits_shown = 3 if net == "GPT" else 1
    gap = "" if rival == base else f"{behind[net, rival]:.{digits_shown}f} ± {error:.{digits_shown}f}"
    by_seed = "  ".join(f"{score:.{digits_shown}f}" for score in scores)
    table.append((f"{net}, {rival}", by_seed, f"{statistics.mean(scores):.{digits_shown}f}", gap))
show_table(table)
unigram = UNIGRAM[text.test_x[1 : 64 * LM_LENGTH + 1].cpu()].mean().item()
print(f"GPT's test ids: unigram loss {unigram:.3f}")
for rival in ("Muon", "Adafactor", "AdamW"):
    left = [found["GPT", rival, rate["GPT", rival], seed][1] for seed in seeds_of["GPT", rival]]
    print(f"   {rival}: first clearly below the unigram loss at steps " + " and ".join(f"{step:g}" for step in left))
eight, full = (
    statistics.mean(found["MLP", n, rate["MLP", n], seed][0] for seed in range(3)) for n in ("Adam8", "Adam")
)
claims.record("T13", "fewer bits, as good a test loss", "MLP, 8-bit Adam, 3 seeds", eight / full, "x FP32's", 0, 1.15)
for net in ("CNN", "ViT"):
    claims.figure("SGD, test accuracy below AdamW's", f"{net}, {EPOCHS} epochs, 3 seeds", behind[net, "SGD"], "points")
for rival in ("Muon", "Adafactor"):
    claims.figure(f"{rival}'s test loss above AdamW's", f"GPT, {LM_STEPS} steps, 2 seeds", behind["GPT", rival], "")
adafactor_behind.reveal(behind["GPT", "Adafactor"])

# %% [markdown] name="sgd_explained"
# *Behind Adam(W)* is in points of accuracy for the digits, and in test loss for the text. The figure after the ± is the standard error of the gap, from the spread between seeds. A gap of less than two standard errors is not a finding. With two or three seeds the error itself is rough.
#
# - **MLP.** 8 bits make no clear difference.
# - **Convolutional network.** There is no clear difference between SGD and AdamW.
# - **Vision transformer.** SGD with momentum is far behind AdamW in so few steps, and its results vary widely from seed to seed.
# - **Language model.** Muon, with half of AdamW's state, and Adafactor, with almost none, get below the unigram loss many steps before AdamW (last lines), and after 160 steps their test loss is still lower. Part of the gap may be this head start.
#
# One explanation for SGD on the vision transformer (Zhang et al. 2024): the parts of a transformer differ in curvature far more than the layers of a convolutional network, so one learning rate does not fit all of them. Adam's second moment gives each weight its own step size.
#
# (*Held* for 8-bit Adam means a test loss at most 1.15 times FP32's.) What do these results support? The advice "SGD instead of Adam" comes from convolutional vision models. For a language model, Muon and Adafactor are worth a trial. This run does not rank them: 160 steps of a tiny model show which optimizer is fast at the start, not which ends lower. And each rate comes from one seed; where the rate search printed *at the edge* (it may not have), a rate beyond that edge might do better. Higher rates were tried for AdamW on the text (0.004, 0.01 and 0.03, outside this notebook): none came near the loss at 0.001. PyTorch's Adafactor has no momentum by design. Muon's price is its matmuls, and it needs full matrices, which a sharded model has to gather first ([[sharding]]).
#
# ## 4 · Zeroed gradients
#
# The rest of this lab is about overwriting tensors instead of allocating new ones. The first case is the gradients between two steps. `zero_grad()` sets them to None, which frees their memory. `zero_grad(set_to_none=False)` fills them with zeros in place, so they stay alive through the next forward pass.
#
# **Predict.** The GPT of section 1 trains on 16 tokens, with fused AdamW. By how much does `set_to_none=False` raise the peak of two steps, in copies of the weights?

# %% name="guess_zeros"
my_guess = None  # copies of the weights
### BEGIN GUESS
my_guess = 1  # a full set of gradients is alive when it need not be
### END GUESS
zeros_guess = Prediction("Increase in peak when zeros are kept, 16 tokens", my_guess, "copies of the weights")


# %% name="set_to_none"
def two_steps(x, y, to_none):
    model = make_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with MemoryMeter(model, optimizer) as meter:
        for _ in range(2):
            backward(model, x, y)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    return meter


def on_one_scale(meters, titles):
    """Return a plot of each meter, all with the same vertical axis."""
    figures = [meter.plot(title) for meter, title in zip(meters, titles, strict=True)]
    top = max(axes.get_ylim()[1] for figure in figures for axes in figure.axes)
    for axes in (axes for figure in figures for axes in figure.axes):
        axes.set_ylim(0, top)
    return figures


phi = sum(p.numel() for p in make_gpt().parameters())
for n in (16, 512):
    x, y = tokens(n)
    pair = [two_steps(x, y, to_none) for to_none in (True, False)]
    more = (pair[1].peak_bytes - pair[0].peak_bytes) / (4 * phi)
    freed, zeroed = (human_bytes(meter.peak_bytes) for meter in pair)
    if n == 16:
        zeros_guess.reveal(more)
    print(f"GPT, {n:3} tokens: peak {freed}, with zeros kept {zeroed}: {more:.2f} copies of the weights more")
freed, zeroed = on_one_scale(pair, ("Two steps, gradients set to None", "Two steps, gradients set to zero"))
show(
    freed,
    "Memory over two steps, by category: the gradients are freed at the end of each step.",
)
show(
    zeroed,
    "The same with zeros: the gradients of the first step are still there during the second forward pass.",
)

# %% [markdown] name="set_to_none_explained"
# With few tokens the peak comes when all gradients exist anyway, so keeping the old ones costs little. With many, the activations set the peak, and the old gradients add a full copy of the weights to it.
#
# None is the default, and a good one. (The training is not quite the same: an optimizer skips a parameter whose gradient is None, but moves one whose gradient is zero, by momentum and weight decay.)
#
# ## 5 · Activations in place
#
# `x.relu_()` and `nn.ReLU(inplace=True)` overwrite their input with the result, so one tensor is stored instead of two. **Predict** for four linear layers, each followed by a ReLU, and a fifth that returns one number: how many of the tensors saved for the backward pass does `inplace=True` avoid?

# %% name="guess_inplace"
my_guess = None  # tensors
### BEGIN GUESS
my_guess = 4  # one per ReLU, it would seem
### END GUESS
inplace_guess = Prediction("Saved tensors avoided by ReLU(inplace=True)", my_guess, "tensors")

# %% name="inplace_kept"
rows = torch.randn(2048, 64, device=device)


def kept_by(kind, inplace):
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), kind(inplace=inplace))]
    net = nn.Sequential(*layers, nn.Linear(64, 1)).to(device)
    with MemoryMeter(net) as meter:
        net(rows).sum().backward()
    return meter


for kind in (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Hardtanh):
    pair = [kept_by(kind, inplace) for inplace in (False, True)]
    kept = [round(meter.largest["activations"] / rows.nbytes) for meter in pair]
    peaks_of = [meter.peak_bytes for meter in pair]
    print(
        f"{kind.__name__:10} kept {kept[0]} tensors, in place {kept[1]}; peak {' -> '.join(map(human_bytes, peaks_of))}"
    )
    if kind in (nn.ReLU, nn.LeakyReLU):
        claims.record("T12", "in place saves memory", f"training, 4 layers, {kind.__name__}", peaks_of[0] / peaks_of[1], "times", 1.1, math.inf)  # fmt: skip
    if kind is nn.ReLU:
        relu_spared = kept[0] - kept[1]
    if kind is nn.LeakyReLU:
        outside, inside = on_one_scale(pair, ("LeakyReLU", "LeakyReLU in place"))
        show(outside, "Memory over forward and backward pass: eight steps up, two for each layer.")
        show(inside, "The same in place: four steps up, one for each layer.")
inplace_guess.reveal(relu_spared)

# %% [markdown] name="inplace_explained"
# It depends on what the backward pass needs:
#
# - **ReLU**: its derivative follows from its *output*, which the next layer saves anyway. Its input is freed at once, in place or not, so nothing is gained.
# - **LeakyReLU, ELU**: out of place they save their *input*; in place they work from the *output*. That halves what is saved.
# - **SiLU, Hardtanh**: PyTorch saves the input in any case, so it copies it before overwriting it. Nothing is gained.
#
# Without a backward pass nothing is saved, and what counts is the widest point:

# %% name="inplace_inference"
widest = []
for inplace in (False, True):
    net = nn.Sequential(nn.Linear(64, 512), nn.SiLU(inplace=inplace), nn.Linear(512, 64)).to(device)
    with MemoryMeter(net) as meter, torch.no_grad():
        net(rows)
    widest.append(meter.peak_bytes)
print(f"inference, 64 -> 512 -> 64: peak {' -> '.join(map(human_bytes, widest))}")
claims.record("T12", "in place saves memory", "inference, SiLU, 8 times as wide inside", widest[0] / widest[1], "times", 1.1, math.inf)  # fmt: skip

# %% [markdown] name="versions_text"
# ## 6 · When autograd forbids it
#
# Each tensor has a **version**, which every in-place operation increases by one. Autograd saves a tensor together with its version. If the version has changed when the tensor is needed, autograd raises an error, because the gradient would be wrong.
#
# **Predict** which of these six pass. `w` requires a gradient. For each operation, ask what it saved: its input, its output, or nothing.


# %% name="guess_versions"
def input_changed(w):
    x = w * 1
    y = x.sin()
    x.add_(1)
    return y


CASES = {
    "(w * 2).add_(1)": lambda w: (w * 2).add_(1),
    "w.sin().add_(1)": lambda w: w.sin().add_(1),
    "x.sin(), then x.add_(1)": input_changed,
    "w.exp().add_(1)": lambda w: w.exp().add_(1),
    "dropout in place after relu": lambda w: F.dropout(w.relu(), 0.5, inplace=True),
    "w.add_(1)": lambda w: w.add_(1),
}
my_guess = None  # six letters in the order of the cases: p passes, r is refused
### BEGIN GUESS
my_guess = "pprrrr"
### END GUESS
versions_guess = my_guess


# %% name="versions"
def attempt(words, program):
    w = torch.linspace(0.5, 2, 4, device=device, requires_grad=True)
    try:
        program(w).sum().backward()
        print(f"passes   {words}")
        return "p"
    except RuntimeError as error:
        reason = str(error).splitlines()[0].partition(" Hint:")[0]
        print(f"REFUSED  {words}", textwrap.indent(textwrap.fill(reason, 95), 11 * " "), sep="\n")
        return "r"


found = "".join(attempt(words, program) for words, program in CASES.items())
if versions_guess:
    print(f"You guessed {sum(map(str.__eq__, versions_guess, found))} of {len(found)} right.")

# %% [markdown] name="silent_text"
# Multiplying by a number does not save its result, and the sine saves its input, so changing their outputs does no harm. exp and relu save their *output*. A leaf that requires a gradient must not be changed in place at all, except under `torch.no_grad()`, as in an optimizer's step.
#
# The rule: **a saved tensor must not change.** The error comes late, in the backward pass. `torch.autograd.set_detect_anomaly(True)` names the forward operation.
#
# ### Writes that autograd does not see
#
# Old code writes through `.data`, which has its own version, so autograd does not detect the change. The gradient of eʷ + 1 is eʷ:

# %% name="silent"
w = torch.linspace(0.5, 2, 4, device=device, requires_grad=True)
y = w.exp()
y.data.add_(1)
y.sum().backward()
off = ((w.grad - w.detach().exp()).norm() / w.detach().exp().norm()).item()
print(f"through .data: no error, and the gradient is off by {off:.0%}")


def add_through_detach(w):
    y = w.exp()
    y.detach().add_(1)
    return y


_ = attempt("through .detach(), which shares the version", add_through_detach)

# %% [markdown] name="hardtanh_task"
# ## 7 · An activation of your own
#
# For SiLU, PyTorch has to save the input: two inputs can have the same output. For **Hardtanh**, which limits every number to the range from -1 to 1, it would not have to. The derivative is 1 where the output is strictly between -1 and 1, and 0 elsewhere.
#
# A `torch.autograd.Function` is an operation with a backward pass of your own. `ctx.save_for_backward(tensor)` saves a tensor together with its version, and `backward` gets it back from `ctx.saved_tensors`. `ctx.mark_dirty(x)` tells autograd that `forward` has overwritten `x`.
#
# ### Your turn: Hardtanh in place
#
# **Contract.** `forward(ctx, x)` limits `x` in place and returns it. `backward(ctx, gradient)` returns the gradient of the input. A layer calls `HardtanhInPlace.apply(x)`.
#
# - Results and gradients equal those of `F.hardtanh`, even at exactly -1 and 1. `gradient` is not changed.
# - `forward` does not allocate a tensor as large as `x`, not even a mask.
# - For the backward pass, only the result is kept.
# - Autograd knows about the change. A leaf that requires a gradient is refused. If an earlier operation has saved `x`, or if the result is changed afterwards, the backward pass raises an error. After the call, the gradient through the variable `x` is the same as the gradient through the result.


# %% name="hardtanh" answer=true reveal=true
class HardtanhInPlace(torch.autograd.Function):
    """Clamps a tensor to [-1, 1] in place, and keeps only the result for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        x.clamp_(-1, 1)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x
        ### END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        ### BEGIN SOLUTION
        (y,) = ctx.saved_tensors
        return gradient * (y.abs() < 1)
        ### END SOLUTION


# %% name="hardtanh_check"
HardtanhInPlace = check("muon_and_in_place.hardtanh", HardtanhInPlace)

# %% name="hardtanh_hint"
hint("muon_and_in_place.hardtanh")

# %% [markdown] name="own_text"
# Compare it with PyTorch's own, in the network of section 5:


# %% name="own_kept"
class Own(nn.Module):
    def __init__(self, inplace):
        super().__init__()

    def forward(self, x):
        return HardtanhInPlace.apply(x)


for name, kind in {"PyTorch's, in place": nn.Hardtanh, "yours": Own}.items():
    meter = kept_by(kind, True)
    kept = round(meter.largest["activations"] / rows.nbytes)
    print(f"{name:20} kept {kept} tensors; peak {human_bytes(meter.peak_bytes)}")

# %% [markdown] name="summary_text"
# Yours keeps one tensor per layer, which the next layer saves anyway. Its peak includes the temporaries of your backward pass.
#
# ## 8 · What this run found

# %% name="summary"
claims

# %% [markdown] name="recap"
# ## Recap
#
# - Muon's step comes from a few matmuls (Newton-Schulz), and its state is one momentum per matrix. Very small singular values stay small.
# - A verdict on an optimizer holds only for a model, a schedule and a number of steps. Give each optimizer its best rate, repeat with other seeds, and ask what a trivial model reaches.
# - 8-bit Adam matches Adam on a small MLP. SGD with momentum matches AdamW on a small convolutional network, but not on a vision transformer.
# - Zeroed gradients raise the peak by up to a copy of the weights. Gradients set to None do not.
# - In training, an in-place activation saves memory if its derivative follows from the output and the input would otherwise have been saved.
# - A saved tensor must not change. Never write through `.data`.
#
# | You want | Reach for |
# |---|---|
# | half of AdamW's state, or almost none | Muon or Adafactor, after a comparison of your own over enough steps |
# | smaller activations | in-place activations where they help; then [[#mixed_precision]], [[#activation_checkpointing]] |
# | to change a parameter outside of an optimizer | `torch.no_grad()`, before the forward pass or after the backward pass |
#
# **Sources.**
#
# - Jordan et al. 2024, *Muon*; Liu et al. 2025, *Muon is Scalable for LLM Training* (the size of its steps)
# - Shazeer and Stern 2018, *Adafactor*; Zhang et al. 2024, *Why Transformers Need Adam*
# - PyTorch documentation: `torch.optim.Muon`, `torch.optim.Optimizer.zero_grad`, *Autograd mechanics* (in-place operations)
