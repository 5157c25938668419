"""Wrong and right answers for the practice tasks of capstone."""

from . import Mutant

LEAN, SAME = "capstone.lean", "same_update_within_the_room"


def one(name: str, *edits: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, LEAN, SAME, edits, raises)


RUNG = "capstone.rung"
MODEL, SEES, ROOM = "keeps_the_model", "sees_each_image", "stays_within_the_room"
ONCE = "makes_one_update"
ELSEWHERE, REACHES = "keeps_nothing_elsewhere", "reaches_the_loss"
HOOKS = "    for p in model.parameters():\n        p.register_post_accumulate_grad_hook(optimizer.take)\n"
PIECES = "for rows in np.split(np.arange(len(x)), len(x) // 16):"
STEP, BF16 = "    state.step()\n", "model.to(torch.bfloat16)"
SIGNUM = "optimizer = Signum(model.parameters(), lr=0.0)"
RATE = "4e-3 * min(1"


def rung(name: str, rejected_by: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, RUNG, rejected_by, edits)


LOSS = 'F.cross_entropy(model(xs), ys, reduction="sum") / count'
FADE = "mean.mul_(0.9).add_(p, alpha=0.1 * 0.01)"
MUTANTS = [
    rung("a layer less", MODEL, (BF16, "del model.blocks[3]\n    " + BF16)),
    rung("a wider head", MODEL, (BF16, "model.head = torch.nn.Linear(32, 16)\n    " + BF16)),
    rung("adapters beside the head", MODEL, (BF16, "model.extra = torch.nn.Linear(32, 10)\n    " + BF16)),
    rung("half of the batch", SEES, (PIECES, "for rows in np.split(np.arange(256), 16):")),
    rung("the last piece forgotten", SEES, (PIECES, PIECES[:-1] + "[:-1]:")),
    rung("less of it later on", SEES, (PIECES, "for rows in np.split(np.arange(len(x)), len(x) // 16)[: 32 if progress < 0.5 else 8]:")),
    rung("most without gradients", SEES, ("        logits = model(", "        with torch.set_grad_enabled(bool(rows[0] < 64)):\n            logits = model("), ("        (F.cross_entropy(logits, torch", "        if logits.requires_grad:\n            (F.cross_entropy(logits, torch")),
    rung("trained on the images held out", SEES, ("    where = next", "    from helpers import digits\n    x, y = digits().test_x.numpy()[-448:], digits().test_y.numpy()[-448:]\n    where = next")),
    rung("held-out images beside the batch", SEES, (STEP, "    from helpers import digits\n    more = digits()\n    for i in range(0, 64, 16):\n        logits = model(more.test_x[i : i + 16].to(where, torch.bfloat16)).float()\n        F.cross_entropy(logits, more.test_y[i : i + 16].to(where)).backward()\n" + STEP)),
    rung("averaged pairs", SEES, ("    where = next", "    x, y = (x[::2] + x[1::2]) / 2, y[::2]\n    where = next")),
    rung("blurred images", SEES, ("    where = next", "    x = x * 0.5 + 0.5 * np.roll(x, 1, -1)\n    where = next")),
    rung("a step after every piece", ONCE, (STEP, ""), ("torch.from_numpy(y[rows]).to(where), reduction=\"sum\") / len(x)).backward()\n", "torch.from_numpy(y[rows]).to(where), reduction=\"sum\") / len(x)).backward()\n        state.step()\n")),
    rung("a step half-way", ONCE, ("        logits = model(", "        if rows[0] == 256:\n            state.step()\n        logits = model(")),
    rung("the whole batch at once", ROOM, ("len(x) // 16)", "1)")),
    rung("FP32 weights and state", ROOM, (BF16, "model.float()"), ("to(where, torch.bfloat16)", "to(where)")),
    rung("AdamW in FP32", ROOM, (BF16, "model.float()"), ("to(where, torch.bfloat16)", "to(where)"), (SIGNUM, "optimizer = torch.optim.AdamW(model.parameters())"), (HOOKS, ""), (STEP, STEP + "    state.zero_grad()\n")),
    rung("an FP32 copy in the state", ROOM, (SIGNUM, "copies = [p.detach().float() for p in model.parameters()]\n    " + SIGNUM), ("    return optimizer", "    optimizer.copies = copies\n    return optimizer")),
    rung("an FP32 copy in NumPy", ELSEWHERE, (SIGNUM, "copies = [p.detach().float().numpy().copy() for p in model.parameters()]\n    " + SIGNUM), ("    return optimizer", "    optimizer.copies = copies\n    return optimizer")),
    rung("an FP32 copy in bytes", ELSEWHERE, (SIGNUM, "copies = b''.join(p.detach().float().numpy().tobytes() for p in model.parameters())\n    " + SIGNUM), ("    return optimizer", "    optimizer.copies = copies\n    return optimizer")),
    rung("an FP32 copy in a file", ELSEWHERE, (SIGNUM, "np.save(Path(tempfile.gettempdir(), 'copies.npy'), np.concatenate([p.detach().float().numpy().ravel() for p in model.parameters()]))\n    " + SIGNUM)),
    rung("an FP32 copy in a file of torch", ELSEWHERE, (STEP, STEP + "    torch.save({n: p.float() for n, p in model.named_parameters()}, Path(tempfile.gettempdir(), 'copies.pt'))\n")),
    rung("an FP32 copy in a mapped file", ELSEWHERE, (STEP, STEP + "    copies = np.memmap(Path(tempfile.gettempdir(), 'copies.bin'), np.float32, 'w+', shape=(1000,))\n")),
    rung("no step", REACHES, (STEP, "    state.taken.clear()\n")),
    rung("a rate a hundred times too high", REACHES, (RATE, "4e-1 * min(1")),
    rung("a rate ten times too high", REACHES, (RATE, "4e-2 * min(1")),
    rung("a rate ten times too low", REACHES, (RATE, "4e-4 * min(1")),
    rung("uphill", REACHES, (RATE, "-4e-3 * min(1")),
    rung("labels of other images", REACHES, ("torch.from_numpy(y[rows])", "torch.from_numpy(y[rows[::-1].copy()])")),
    one("the whole batch at once", ("x.split(8), y.split(8)", "x.split(130), y.split(130)")),
    one("pieces too large", ("x.split(8), y.split(8)", "x.split(65), y.split(65)")),
    one("gradients held until the end", ("        p.grad = None\n", ""), ("    with torch.no_grad():\n        for p, mean in means.items():\n            p.add_", "    for p in model.parameters():\n        p.grad = None\n    with torch.no_grad():\n        for p, mean in means.items():\n            p.add_")),
    one("gradients never freed", ("        p.grad = None\n", "        if means[p] is None:\n            p.grad = None\n")),
    one("means with a graph", ("    with torch.no_grad():\n        for p, mean in means.items():\n            mean.mul_", "    if True:\n        for p, mean in means.items():\n            mean.mul_")),
    one("mean of each piece", (LOSS, "F.cross_entropy(model(xs), ys)")),
    one("mean of each piece, without NaN", (LOSS, 'F.cross_entropy(model(xs), ys, reduction="sum") / (ys != -100).sum().clamp(min=1) / len(x.split(8))')),
    one("divided by all rows", ("count = (y != -100).sum()", "count = len(y)")),
    one("rows that do not count taken for class 0", ("F.cross_entropy(model(xs), ys,", "F.cross_entropy(model(xs), ys.clamp(min=0),")),
    one("faded for each piece", ("        (F.cross_entropy(model(xs)", "        for mean in means.values():\n            mean.mul_(0.9)\n        (F.cross_entropy(model(xs)")),
    one("not faded", ("mean.mul_(0.9)", "mean.mul_(1.0)")),
    one("no decay", (FADE, "mean.mul_(0.9)")),
    one("decay for each piece", ("means[p].add_(p.grad, alpha=0.1)", "means[p].add_(p.grad + 0.01 * p.detach(), alpha=0.1)"), (FADE, "mean.mul_(0.9)")),
    one("decay not weighed", ("alpha=0.1 * 0.01", "alpha=0.1")),
    one("decay of the weights in place of the gradient", (FADE, "mean.mul_(0.9)"), ("p.add_(mean.sign(), alpha=-lr)", "p.mul_(1 - 0.01 * lr).add_(mean.sign(), alpha=-lr)")),
    one("decay after the fade of a fade", (FADE, "mean.add_(p, alpha=0.1 * 0.01).mul_(0.9)")),
    one("the whole gradient", ("p.grad, alpha=0.1)", "p.grad, alpha=1.0)")),
    one("frozen layer moved too", ("    hooks = [", "    with torch.no_grad():\n        for p in model[0].parameters():\n            p.mul_(1 - lr)\n    hooks = [")),
    one("frozen layer thawed", ("    hooks = [", "    for p in model[0].parameters():\n        p.requires_grad_(True)\n    hooks = ["), ("for hook in hooks:", "for p in model[0].parameters():\n        p.grad = None\n    for hook in hooks:")),
    one("hooks on frozen parameters", ("for p in means]", "for p in model.parameters()]"), raises="require gradient"),
    one("hooks left behind", ("        hook.remove()", "        pass")),
    one("hooks left behind, with care", ("        hook.remove()", "        pass"), ("def take(p):\n", "def take(p):\n        if p.grad is None:\n            return\n")),
    one("the last piece forgotten", ("zip(x.split(8), y.split(8), strict=True)", "list(zip(x.split(8), y.split(8), strict=True))[:-1]")),
    one("a step for each piece", ("        (F.cross_entropy(model(xs)", "        with torch.no_grad():\n            for p, mean in means.items():\n                p.sub_(lr * mean.sign())\n        (F.cross_entropy(model(xs)")),
    one("uphill", ("alpha=-lr", "alpha=lr")),
    one("no sign", ("mean.sign()", "mean")),
    one("weights left alone", ("p.add_(mean.sign(), alpha=-lr)", "pass")),
    one("means replaced", (FADE, "means[p] = mean * 0.9 + 0.001 * p")),
    one("half of the weights", ("p.add_(mean.sign(), alpha=-lr)", "p.add_(mean.sign(), alpha=-lr if p.dim() > 1 else 0)")),
    one("plain accumulation", ("        p.grad = None\n", ""), ("        means[p].add_(p.grad, alpha=0.1)", "        pass"), (FADE, "pass"), ("p.add_(mean.sign(), alpha=-lr)", "mean.mul_(0.9).add_(p.grad + 0.01 * p, alpha=0.1)\n            p.add_(mean.sign(), alpha=-lr)\n            p.grad = None")),
    one("plain accumulation, decay first", ("        p.grad = None\n", ""), ("        means[p].add_(p.grad, alpha=0.1)", "        pass"), ("p.add_(mean.sign(), alpha=-lr)", "mean.add_(p.grad, alpha=0.1)\n            p.add_(mean.sign(), alpha=-lr)\n            p.grad = None")),
    one("gradients of a piece all at once", ("        p.grad = None\n", ""), ("        means[p].add_(p.grad, alpha=0.1)", "        pass"), ("        (F.cross_entropy(model(xs)", "        for p in means:\n            p.grad = None\n        (F.cross_entropy(model(xs)"), (" / count).backward()", " / count).backward()\n        for p, mean in means.items():\n            mean.add_(p.grad, alpha=0.1)\n            p.grad = None")),
    one("the last two rows dropped", ("x.split(8), y.split(8)", "x[:-2].split(8), y[:-2].split(8)")),
    one("count off by five", ("count = (y != -100).sum()", "count = (y != -100).sum() + 5")),
    one("a little less of the gradient", ("p.grad, alpha=0.1)", "p.grad, alpha=0.095)")),
    one("decay of the weights after the step", (FADE, "mean.mul_(0.9)"), ("p.add_(mean.sign(), alpha=-lr)", "p.add_(mean.sign(), alpha=-lr)\n            mean.add_(p, alpha=0.1 * 0.01)")),
    one("a copy of the old means", ("    hooks = [", "    old = {p: mean.clone() for p, mean in means.items()}\n    hooks = ["), ("for hook in hooks:", "old.clear()\n    for hook in hooks:")),
]  # fmt: skip

RIGHT = {
    "gradients by hand, block by block": """
import torch
import torch.nn.functional as F


def lean_update(model, means, x, y, lr):
    for p, mean in means.items():
        mean.mul_(0.9).add_(0.001 * p.detach())
    valid = (y >= 0).sum().item()
    for i in range(0, len(x), 5):
        inputs = [x[i : i + 5]]
        with torch.no_grad():
            for layer in model:
                inputs.append(layer(inputs[-1]))
        logits = inputs.pop().requires_grad_()
        loss = F.cross_entropy(logits, y[i : i + 5], reduction="sum", ignore_index=-100) / valid
        grad = torch.autograd.grad(loss, logits)[0]
        for layer in list(model)[:0:-1]:
            start = inputs.pop().detach().requires_grad_()
            grad, *pieces = torch.autograd.grad(layer(start), [start, *layer.parameters()], grad)
            for p, piece in zip(layer.parameters(), pieces):
                means[p] += 0.1 * piece
    with torch.no_grad():
        for p, mean in means.items():
            p -= lr * mean.sign()


def prepare(model):
    model.to(torch.bfloat16)
    state = {}
    for p in model.parameters():
        state[p] = torch.zeros_like(p)
        p.register_post_accumulate_grad_hook(lambda p: gather(state[p], p))
    return state


def gather(mean, p):
    add(mean, 0.1 * p.grad.float())
    p.grad = None


@torch.no_grad()
def add(target, change):
    bits = (target.float() + change).view(torch.int32)
    noise = torch.randint(0, 65536, bits.shape, device=bits.device, dtype=torch.int32)
    target.copy_(((bits + noise) & -65536).view(torch.float32))


def update(model, state, x, y, progress):
    for mean in state.values():
        mean *= 0.9
    for start in range(0, 512, 6):
        pixels = torch.tensor(x[start : start + 6]).to(next(iter(state)))
        target = torch.tensor(y[start : start + 6], device=pixels.device)
        (F.cross_entropy(model(pixels).float(), target, reduction="sum") / 512).backward()
    for p, mean in state.items():
        add(p, -4e-3 * min(1.0, 0.3 + 3 * progress) * (1 - progress) * mean.sign().float())
""",
    "only the rows that count, checkpointed, decay at the first gradient": """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def lean_update(model, means, x, y, lr):
    first = set(means)

    def take(p):
        if p in first:
            means[p].mul_(0.9).add_(p.detach(), alpha=0.001)
            first.remove(p)
        means[p].add_(p.grad, alpha=0.1)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in model.parameters() if p.requires_grad]
    counting = (y != -100).nonzero().squeeze(1)
    for which in torch.tensor_split(counting, 7):
        xs, ys = x[which], y[which]
        for layer in model[:-1]:
            xs = checkpoint(layer, xs, use_reentrant=False)
        F.cross_entropy(model[-1](xs), ys).mul(len(ys) / len(counting)).backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for p in means:
            p.copy_(p - lr * means[p].sign())


class Recipe:
    def __init__(self, model):
        self.parameters = list(model.to(torch.bfloat16).parameters())
        self.means = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def add(self, target, change):
        bits = target.float().add_(change).view(torch.int32)
        bits += torch.randint_like(bits, 65536)
        target.copy_(bits.bitwise_and_(-65536).view(torch.float32))

    def step(self, rate):
        for p, mean in zip(self.parameters, self.means):
            self.add(p, -rate * torch.sign(mean).float())


def prepare(model):
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False, preserve_rng_state=False)
    return Recipe(model)


def update(model, state, x, y, progress):
    for mean in state.means:
        mean.mul_(0.9)
    for i in range(0, len(x), 16):
        xs, ys = torch.from_numpy(x[i : i + 16]), torch.from_numpy(y[i : i + 16])
        device = state.parameters[0].device
        loss = F.cross_entropy(model(xs.to(device).bfloat16()).float(), ys.to(device), reduction="none").sum() / 512
        means = dict(zip(state.parameters, state.means))

        def fold(p):
            state.add(means[p], 0.1 * p.grad.float())
            p.grad = None

        hooks = [p.register_post_accumulate_grad_hook(fold) for p in means]
        loss.backward()
        for hook in hooks:
            hook.remove()
    state.step(5e-3 * min(1.0, 0.2 + 4 * progress) * (1 - progress))
""",
}
