"""Wrong and right answers for the practice tasks of profiling and oom clinic."""

from . import Mutant, one

HISTORY, LETS_GO = "profiling_and_oom_clinic.history", "history_lets_go"
HEAD, PIECES = "profiling_and_oom_clinic.head", "head_in_pieces"
EVALUATION, NOTHING = "profiling_and_oom_clinic.evaluation", "evaluation_keeps_nothing"
OPTIMIZER, TURNS = "profiling_and_oom_clinic.optimizer", "optimizer_takes_turns"
HOOK, FORGETS = "profiling_and_oom_clinic.hook", "hook_forgets"


MUTANTS = [
    Mutant("the sick loop", HISTORY, LETS_GO, (("loss.backward()", "loss.backward(retain_graph=True)"),
        ("loss.detach())", "loss)"))),
    one("no step", HISTORY, LETS_GO, "        loss.backward()\n        optimizer.step()\n", "        loss.backward()\n"),
    one("gradients add up", HISTORY, LETS_GO, "        optimizer.zero_grad()\n", ""),
    one("outputs kept", HISTORY, LETS_GO, "history.append(loss.detach())",
        "history.append(loss.detach())\n        model.kept = getattr(model, 'kept', []) + [model(ids[:, :-1])]"),
    one("all rows at once", HEAD, PIECES, "hidden.split(128), targets.split(128)", "hidden.split(4096), targets.split(4096)"),
    one("chunks without checkpoints", HEAD, PIECES, "checkpoint(chunk_loss, rows, labels, use_reentrant=False)",
        "chunk_loss(rows, labels)"),
    one("mean of sums", HEAD, PIECES, "total / len(targets)", "total"),
    one("the last chunk only", HEAD, PIECES, "total = total + checkpoint", "total = checkpoint"),
    one("with graphs", EVALUATION, NOTHING, "torch.no_grad()", "torch.enable_grad()"),
    Mutant("a graph for each batch", EVALUATION, NOTHING, (("torch.no_grad()", "torch.enable_grad()"),
        ("ids[:, 1:].flatten()).item()\n    return total / len(batches)\n\n\ndef make_optimizer",
         "ids[:, 1:].flatten())\n    return total / len(batches)\n\n\ndef make_optimizer"))),
    one("sum of losses", EVALUATION, NOTHING, "    return total / len(batches)\n\n\ndef make", "    return total\n\n\ndef make"),
    one("foreach", OPTIMIZER, TURNS, "foreach=False", "foreach=True"),
    one("another optimizer", OPTIMIZER, TURNS, "torch.optim.Adam(parameters, foreach=False)",
        "torch.optim.SGD(parameters, lr=1e-3)"),
    one("foreach left open", OPTIMIZER, TURNS, ", foreach=False", ""),
    one("AdamW", OPTIMIZER, TURNS, "torch.optim.Adam(", "torch.optim.AdamW("),
    one("evaluation mode kept", EVALUATION, NOTHING, "    total = 0.0\n", "    total = 0.0\n    model.eval()\n"),
    one("batches weighed by rows", EVALUATION, NOTHING,
        "ids[:, 1:].flatten()).item()\n    return total / len(batches)",
        "ids[:, 1:].flatten()).item() * len(ids) / 8\n    return total / sum(len(b) / 8 for b in batches)"),
    one("mean of chunk means", HEAD, PIECES, 'reduction="sum"', 'reduction="mean"'),
    one("another learning rate", OPTIMIZER, TURNS, "foreach=False", "foreach=False, lr=1e-2"),
    one("a copy of its own", OPTIMIZER, TURNS, "foreach=False", "foreach=False, amsgrad=True"),
    one("keeps outputs", HOOK, FORGETS, "means[name] = output.mean().item()",
        "module.kept, means[name] = output, output.mean().item()"),
    one("maximum for mean", HOOK, FORGETS, "output.mean()", "output.max()"),
    one("first element only", HOOK, FORGETS, "output.mean().item()", "output.flatten()[0].item()"),
]  # fmt: skip

RIGHT = {
    "numbers": """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def train_and_log(model, optimizer, batches):
    losses = []
    for batch in batches:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        loss = F.cross_entropy(model(inputs).transpose(1, 2), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def head_loss(head, hidden, targets):
    def part(start):
        end = start + 64
        return F.cross_entropy(head(hidden[start:end]), targets[start:end], reduction="sum")

    sums = [checkpoint(part, start, use_reentrant=False) for start in range(0, len(hidden), 64)]
    return torch.stack(sums).sum() / len(hidden)


@torch.no_grad()
def evaluate(model, batches):
    losses = [F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()) for b in batches]
    return torch.stack(losses).mean()


def make_optimizer(parameters):
    return torch.optim.Adam(parameters, fused=True)


def log_means(model, means):
    def remember(module, inputs, output):
        means[names[module]] = output.detach().mean()

    names = {m: n for n, m in model.named_modules() if next(m.children(), None) is None}
    for module in names:
        module.register_forward_hook(remember)
""",
    "inference mode and groups": """
import torch
import torch.nn.functional as F


def train_and_log(model, optimizer, batches):
    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return float(loss)

    return [step(ids) for ids in batches]


class _Chunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets):
        gradient_hidden, gradient_weight, total = torch.empty_like(hidden), torch.zeros_like(weight), 0.0
        for start in range(0, len(hidden), 100):
            rows = slice(start, start + 100)
            logits = hidden[rows] @ weight.T
            total += F.cross_entropy(logits, targets[rows], reduction="sum").item()
            logits = logits.softmax(-1)
            logits[torch.arange(len(logits)), targets[rows]] -= 1
            gradient_hidden[rows] = logits @ weight
            gradient_weight += logits.T @ hidden[rows]
        ctx.save_for_backward(gradient_hidden / len(hidden), gradient_weight / len(hidden))
        return hidden.new_tensor(total / len(hidden))

    @staticmethod
    def backward(ctx, upstream):
        a, b = ctx.saved_tensors
        return a * upstream, b * upstream, None


def head_loss(head, hidden, targets):
    return _Chunk.apply(hidden, head.weight, targets)


def evaluate(model, batches):
    with torch.inference_mode():
        total = sum(F.cross_entropy(model(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()).item() for b in batches)
    return total / len(batches)


def make_optimizer(parameters):
    return torch.optim.Adam([{"params": [p]} for p in parameters], foreach=False)


def log_means(model, means):
    for name, module in model.named_modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(lambda m, i, out, name=name: means.__setitem__(name, float(out.mean())))
""",
}
