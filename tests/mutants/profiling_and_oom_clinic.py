"""Wrong and right answers for the practice tasks of profiling and oom clinic."""

from . import Mutant, one

SNAPSHOT = "profiling_and_oom_clinic.snapshot"
HISTORY, LETS_GO = "profiling_and_oom_clinic.history", "history_lets_go"
HEAD, PIECES = "profiling_and_oom_clinic.head", "head_in_pieces"
EVALUATION, NOTHING = "profiling_and_oom_clinic.evaluation", "evaluation_keeps_nothing"
OPTIMIZER, TURNS = "profiling_and_oom_clinic.optimizer", "optimizer_takes_turns"
HOOK, FORGETS = "profiling_and_oom_clinic.hook", "hook_forgets"


def snapshot(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, SNAPSHOT, check, replace, raises)


FREED = 'alive.pop(event["addr"], None)'
SUM = 'left[name] = left.get(name, 0) + event["size"]'

MUTANTS = [
    # the reader of snapshots
    snapshot("adds_up_what_is_left", "the last block of each line", (SUM, 'left[name] = event["size"]')),
    snapshot("adds_up_what_is_left", "blocks, not bytes", (SUM, "left[name] = left.get(name, 0) + 1")),
    snapshot("adds_up_what_is_left", "nothing is ever freed", (FREED, "pass")),
    snapshot("adds_up_what_is_left", "the outermost frame", ('["frames"][0]', '["frames"][-1]')),
    snapshot("adds_up_what_is_left", "KiB", ("    return left\n", "    return {name: size // 1024 for name, size in left.items()}\n")),
    snapshot("adds_up_what_is_left", "lines with nothing left, too", ("    left = {}\n", "    left = {event['frames'][0]['name']: 0 for event in trace}\n")),
    snapshot("adds_up_what_is_left", "a list", ("    return left\n", "    return list(left)\n")),
    snapshot("knows_that_addresses_return", "every address that was freed once", ("    left = {}\n", "    once = {event['addr'] for event in trace if event['action'] == 'free_completed'}\n    alive = {a: e for a, e in alive.items() if a not in once}\n    left = {}\n")),
    snapshot("knows_that_addresses_return", "the first block of an address", ('alive[event["addr"]] = event', 'alive.setdefault(event["addr"], event) if event["addr"] in alive else alive.update({event["addr"]: next(e for e in trace if e["addr"] == event["addr"])})')),
    snapshot("looks_from_a_moment_on", "from the beginning", ('if event["time_us"] >= since', "if True")),
    snapshot("looks_from_a_moment_on", "after, not at", ('event["time_us"] >= since', 'event["time_us"] > since')),
    snapshot("looks_from_a_moment_on", "before", ('event["time_us"] >= since', 'event["time_us"] < since or since == 0')),
    snapshot("waits_until_it_is_free", "free when requested", ('event["action"] == "free_completed"', '"free" in event["action"]')),
    snapshot("waits_until_it_is_free", "segments, too", ('event["action"] == "alloc"', '"alloc" in event["action"] and not event.get("seen")'), ("    for event in trace:\n", "    trace = [e for e in trace if e['action'] != 'segment_free']\n    for event in trace:\n")),
    snapshot("changes_no_trace", "taken apart", ("    left = {}\n", "    trace.clear()\n    left = {}\n")),
    snapshot("changes_no_trace", "marked", (FREED, 'event["freed"] = True\n            alive.pop(event["addr"], None)')),
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
    one("foreach", OPTIMIZER, TURNS, "fused=True", "foreach=True"),
    one("another optimizer", OPTIMIZER, TURNS, "torch.optim.Adam(parameters, fused=True)",
        "torch.optim.SGD(parameters, lr=1e-3)"),
    one("foreach left open", OPTIMIZER, TURNS, ", fused=True", ""),
    one("AdamW", OPTIMIZER, TURNS, "torch.optim.Adam(", "torch.optim.AdamW("),
    one("evaluation mode kept", EVALUATION, NOTHING, "    total = 0.0\n", "    total = 0.0\n    model.eval()\n"),
    one("batches weighed by rows", EVALUATION, NOTHING,
        "ids[:, 1:].flatten()).item()\n    return total / len(batches)",
        "ids[:, 1:].flatten()).item() * len(ids) / 8\n    return total / sum(len(b) / 8 for b in batches)"),
    one("mean of chunk means", HEAD, PIECES, 'reduction="sum"', 'reduction="mean"'),
    one("another learning rate", OPTIMIZER, TURNS, "fused=True", "fused=True, lr=1e-2"),
    one("a copy of its own", OPTIMIZER, TURNS, "fused=True", "fused=True, amsgrad=True"),
    one("keeps outputs", HOOK, FORGETS, "means[name] = output.mean().item()",
        "module.kept, means[name] = output, output.mean().item()"),
    one("maximum for mean", HOOK, FORGETS, "output.mean()", "output.max()"),
    one("first element only", HOOK, FORGETS, "output.mean().item()", "output.flatten()[0].item()"),
]  # fmt: skip

RIGHT = {
    "numbers": """
def still_there(trace, since):
    ends = {}
    left = {}
    for event in reversed(trace):  # from the end: a free belongs to the alloc before it
        if event["action"] == "free_completed":
            ends[event["addr"]] = ends.get(event["addr"], 0) + 1
        elif event["action"] == "alloc":
            if ends.get(event["addr"], 0):
                ends[event["addr"]] -= 1
            elif event["time_us"] >= since:
                left.setdefault(event["frames"][0]["name"], []).append(event["size"])
    return {name: sum(sizes) for name, sizes in left.items()}


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
import collections


class Books:
    def __init__(self, since):
        self.since, self.blocks = since, {}

    def alloc(self, event):
        self.blocks[event["addr"]] = event["time_us"], event["frames"][0]["name"], event["size"]

    def free_completed(self, event):
        self.blocks.pop(event["addr"], None)

    def left(self):
        total = collections.Counter()
        for when, name, size in self.blocks.values():
            if not when < self.since:
                total[name] += size
        return total


def still_there(trace, since):
    books = Books(since)
    for event in trace:
        getattr(books, event["action"], lambda event: None)(event)
    return books.left()


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
