"""Wrong and right answers for the practice tasks of profiling and oom clinic."""

from . import Mutant, one

REPLAY, SNAPSHOT = "profiling_and_oom_clinic.replay", "profiling_and_oom_clinic.snapshot"
HISTORY, LETS_GO = "profiling_and_oom_clinic.history", "history_lets_go"
HEAD, PIECES = "profiling_and_oom_clinic.head", "head_in_pieces"
EVALUATION, NOTHING = "profiling_and_oom_clinic.evaluation", "evaluation_keeps_nothing"
OPTIMIZER, TURNS = "profiling_and_oom_clinic.optimizer", "optimizer_takes_turns"
HOOK, FORGETS = "profiling_and_oom_clinic.hook", "hook_forgets"


def snapshot(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, SNAPSHOT, check, replace, raises)


def replay(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, REPLAY, check, replace, raises)


ENDS = "(life.end, 1, i) for i, life in enumerate(lifetimes) if life.end is not None"
GIVE_BACK = "allocator.release(blocks.pop(i))"
NOTE = "log.append((when, allocator.allocated, allocator.reserved))"
FREED = 'alive.pop(event["addr"], None)'
SUM = 'left[name] = left.get(name, 0) + event["size"]'

SUM_OF_CHUNKS = """    total = 0
    for rows, labels in zip(hidden.split(128), targets.split(128), strict=True):
        total = total + checkpoint(chunk_loss, rows, labels, use_reentrant=False)
    return total / len(targets)
"""
BY_HAND = """    class Chunked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight):
            total, of_hidden, of_weight = 0, torch.empty_like(hidden), torch.zeros_like(weight)
            for start in range(0, len(hidden), 128):
                chunk = slice(start, start + 128)
                logits = hidden[chunk] @ weight.T
                total += F.cross_entropy(logits, targets[chunk], reduction="sum").item()
                logits = logits.softmax(-1)
                logits[torch.arange(len(logits)), targets[chunk]] -= 1
                of_hidden[chunk], of_weight = logits @ weight, of_weight + logits.T @ hidden[chunk]
            ctx.save_for_backward(of_hidden / len(hidden), of_weight / len(hidden))
            return hidden.new_tensor(total / len(hidden))

        @staticmethod
        def backward(ctx, upstream):
            a, b = ctx.saved_tensors
            return GRADIENTS

    return Chunked.apply(hidden, head.weight)
"""


def by_hand(name: str, gradients: str, raises: str) -> Mutant:
    """A head with a backward pass of its own, which returns `gradients`."""
    return one(name, HEAD, PIECES, SUM_OF_CHUNKS, BY_HAND.replace("GRADIENTS", gradients), raises)


MUTANTS = [
    # the replay
    replay("orders_in_time", "all beginnings, then all ends", ("sorted(orders)", "orders")),
    replay("orders_in_time", "in order of size", ("sorted(orders)", "sorted(orders, key=lambda order: (lifetimes[order[2]].nbytes, order[:2]))")),
    replay("orders_in_time", "nothing is freed", (GIVE_BACK, "continue")),
    replay("orders_in_time", "allocated at the end", ("(life.start, 0, i)", "(life.end or life.start, 0, i)")),
    replay("orders_in_time", "what begins at 0 left out", ("for i, life in enumerate(lifetimes)]", "for i, life in enumerate(lifetimes) if life.start]"), (GIVE_BACK, "if i not in blocks:\n                continue\n            allocator.release(blocks.pop(i))")),
    replay("orders_in_time", "sorts what it was given", ("    blocks, log = {}, []\n", "    blocks, log = {}, []\n    lifetimes.sort(key=lambda life: life.start)\n    orders = [(l.start, 0, i) for i, l in enumerate(lifetimes)]\n    orders += [(l.end, 1, i) for i, l in enumerate(lifetimes) if l.end is not None]\n")),
    replay("orders_in_time", "bits", ("lifetimes[i].nbytes", "8 * lifetimes[i].nbytes")),
    replay("releases_the_very_block", "the newest block", (GIVE_BACK, "allocator.release(blocks.popitem()[1])")),
    replay("releases_the_very_block", "the oldest block", (GIVE_BACK, "allocator.release(blocks.pop(next(iter(blocks))))")),
    replay("releases_the_very_block", "any block of its size", ("blocks[i] = ", "blocks.setdefault(lifetimes[i].nbytes, []).append("), ("(lifetimes[i].nbytes)\n", "(lifetimes[i].nbytes))\n"), (GIVE_BACK, "allocator.release(blocks[lifetimes[i].nbytes].pop())")),
    replay("releases_the_very_block", "its bytes", (GIVE_BACK, "allocator.release(lifetimes[i].nbytes)")),
    replay("keeps_what_never_ends", "freed with the last", (ENDS, "(life.end or max(l.end or 0 for l in lifetimes), 1, i) for i, life in enumerate(lifetimes)")),
    replay("keeps_what_never_ends", "left out", ("    for when, ends, i in sorted(orders):\n", "    for when, ends, i in sorted(orders):\n        if ends and any(life.end is None for life in lifetimes):\n            continue\n")),
    replay("begins_before_it_ends", "ends first", (ENDS, ENDS.replace("1, i)", "-1, i)"))),
    replay("orders_in_time", "what ends at once left out", (ENDS, f"{ENDS} and life.end > life.start")),
    replay("begins_before_it_ends", "as they come", ("sorted(orders)", "sorted(orders, key=lambda order: (order[0], order[2]))")),
    replay("writes_down_each_order", "before the order", ("        if ends:\n", f"        {NOTE}\n        if ends:\n"), (f"            blocks[i] = allocator.allocate(lifetimes[i].nbytes)\n        {NOTE}", "            blocks[i] = allocator.allocate(lifetimes[i].nbytes)")),
    replay("writes_down_each_order", "allocations alone", (NOTE, f"if not ends:\n            {NOTE}")),
    replay("writes_down_each_order", "peak for allocated", ("allocator.allocated, allocator.reserved", "allocator.peak_allocated, allocator.reserved")),
    replay("writes_down_each_order", "the other way round", ("allocator.allocated, allocator.reserved", "allocator.reserved, allocator.allocated")),
    replay("writes_down_each_order", "time since the first order", ("log.append((when,", "log.append((when - min(orders)[0],")),
    replay("writes_down_each_order", "no time", ("log.append((when, allocator", "log.append((allocator")),
    # the reader of snapshots
    snapshot("adds_up_what_is_left", "the last block of each line", (SUM, 'left[name] = event["size"]')),
    snapshot("adds_up_what_is_left", "blocks, not bytes", (SUM, "left[name] = left.get(name, 0) + 1")),
    snapshot("adds_up_what_is_left", "nothing is ever freed", (FREED, "pass")),
    snapshot("adds_up_what_is_left", "the outermost frame", ('["frames"][0]', '["frames"][-1]')),
    snapshot("adds_up_what_is_left", "KiB", ("    return left\n", "    return {name: size // 1024 for name, size in left.items()}\n")),
    snapshot("adds_up_what_is_left", "lines with nothing left, too", ("    left = {}\n", "    left = {event['frames'][0]['name']: 0 for event in trace}\n")),
    snapshot("adds_up_what_is_left", "a list", ("    return left\n", "    return list(left)\n")),
    snapshot("adds_up_what_is_left", "freed bytes taken from the line that frees", (FREED, FREED + '\n            line = event["frames"][0]["name"]\n            freed[line] = freed.get(line, 0) + event["size"]'), ("    alive = {}", "    freed, every = {}, {}\n    alive = {}"), ('alive[event["addr"]] = event', 'alive[event["addr"]] = event\n            line = event["frames"][0]["name"]\n            every[line] = every.get(line, 0) + event["size"]'), ("    return left\n", "    return {line: every[line] - freed.get(line, 0) for line in left}\n")),
    snapshot("looks_from_a_moment_on", "every block was allocated in the trace", (FREED, 'del alive[event["addr"]]'), raises="KeyError"),
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
    one("losses with their graphs", HISTORY, LETS_GO, "loss.detach())", "loss)"),
    one("graphs retained", HISTORY, LETS_GO, "loss.backward()\n        optimizer.step()\n        history.append(loss.detach())  # the number, not the graph behind it\n        del loss",
        "loss.backward(retain_graph=True)\n        optimizer.step()\n        history.append(loss.detach())"),
    one("parameters frozen", EVALUATION, NOTHING, "    total = 0.0\n", "    total = 0.0\n    model.requires_grad_(False)\n"),
    one("autograd off for ever", EVALUATION, NOTHING, "    total = 0.0\n", "    total = 0.0\n    torch.set_grad_enabled(False)\n"),
    one("eight equal chunks", HEAD, PIECES, "hidden.split(128), targets.split(128)", "hidden.chunk(8), targets.chunk(8)"),
    one("a number without a graph", HEAD, PIECES, "return total / len(targets)", "return (total / len(targets)).item()"),
    one("hidden cut off", HEAD, PIECES, "zip(hidden.split", "zip(hidden.detach().split"),
    one("a hook on one module", HOOK, FORGETS, "        if not list(module.children()):\n", "        if isinstance(module, nn.LayerNorm):\n"),
    one("rows' means", HOOK, FORGETS, "output.mean().item()", "output.mean(-1)"),
    one("all rows at once", HEAD, PIECES, "hidden.split(128), targets.split(128)", "hidden.split(4096), targets.split(4096)"),
    one("chunks without checkpoints", HEAD, PIECES, "checkpoint(chunk_loss, rows, labels, use_reentrant=False)",
        "chunk_loss(rows, labels)"),
    by_hand("the wrong sign", "-a * upstream, -b * upstream", "has the wrong sign"),
    by_hand("chunks put together backwards", "a.flip(0) * upstream, b * upstream", "The gradient of hidden"),
    by_hand("tokens in another order", "a * upstream, b.flip(0) * upstream", "The gradient of head.weight"),
    by_hand("ready for backward() alone", "a, b", "multiply by the gradient"),
    one("transposed, 150 rows at a time", HEAD, PIECES, SUM_OF_CHUNKS, SUM_OF_CHUNKS.replace("128", "150").replace(
        "chunk_loss, rows, labels", "lambda r, t: F.cross_entropy((head.weight @ r.T).T, t, reduction='sum'), rows, labels")),
    one("mean of sums", HEAD, PIECES, "total / len(targets)", "total"),
    one("the last chunk only", HEAD, PIECES, "total = total + checkpoint", "total = checkpoint"),
    one("with graphs", EVALUATION, NOTHING, "torch.no_grad()", "torch.enable_grad()"),
    Mutant("a graph for each batch", EVALUATION, NOTHING, (("torch.no_grad()", "torch.enable_grad()"),
        ("ids[:, 1:].flatten()).item()\n    return total / len(batches)\n\n\ndef make_optimizer",
         "ids[:, 1:].flatten())\n    return total / len(batches)\n\n\ndef make_optimizer"))),
    one("gradients cleared", EVALUATION, NOTHING, "    total = 0.0\n", "    total = 0.0\n    model.zero_grad()\n"),
    one("autograd on afterwards", EVALUATION, NOTHING, "    return total / len(batches)\n\n\ndef make",
        "    torch.set_grad_enabled(True)\n    return total / len(batches)\n\n\ndef make"),
    one("sum of losses", EVALUATION, NOTHING, "    return total / len(batches)\n\n\ndef make", "    return total\n\n\ndef make"),
    one("foreach", OPTIMIZER, TURNS, "fused=True", "foreach=True"),
    one("another optimizer", OPTIMIZER, TURNS, "torch.optim.Adam(parameters, fused=True)",
        "torch.optim.SGD(parameters, lr=1e-3)"),
    one("foreach left open in the second group", OPTIMIZER, TURNS, "return torch.optim.Adam(parameters, fused=True)",
        "first, *others = parameters\n    return torch.optim.Adam("
        "[{'params': [first], 'foreach': False}, {'params': others}])"),
    one("foreach left open", OPTIMIZER, TURNS, ", fused=True", ""),
    one("AdamW", OPTIMIZER, TURNS, "torch.optim.Adam(", "torch.optim.AdamW("),
    one("evaluation mode kept", EVALUATION, NOTHING, "    total = 0.0\n", "    total = 0.0\n    model.eval()\n"),
    one("batches weighed by rows", EVALUATION, NOTHING,
        "ids[:, 1:].flatten()).item()\n    return total / len(batches)",
        "ids[:, 1:].flatten()).item() * len(ids) / 8\n    return total / sum(len(b) / 8 for b in batches)"),
    one("mean of chunk means", HEAD, PIECES, 'reduction="sum"', 'reduction="mean"'),
    Mutant("training mode afterwards", EVALUATION, NOTHING, (("    total = 0.0\n", "    total = 0.0\n    model.eval()\n"),
        (".item()\n    return total / len(batches)\n\n\ndef make_optimizer", ".item()\n    model.train()\n    return total / len(batches)\n\n\ndef make_optimizer"))),
    one("somewhat large pieces", HEAD, PIECES, "hidden.split(128), targets.split(128)", "hidden.split(140), targets.split(140)"),
    one("all weights turned round", HISTORY, LETS_GO, "    return history\n",
        "    with torch.no_grad():\n        for p in model.parameters():\n            p.neg_()\n    return history\n"),
    one("the last loss", HISTORY, LETS_GO, "    return history\n", "    return history[-1:]\n"),
    one("another learning rate", OPTIMIZER, TURNS, "fused=True", "fused=True, lr=1e-2"),
    one("a copy of its own", OPTIMIZER, TURNS, "fused=True", "fused=True, amsgrad=True"),
    one("keeps outputs", HOOK, FORGETS, "means[name] = output.mean().item()",
        "module.kept, means[name] = output, output.mean().item()"),
    one("means with their graphs", HOOK, FORGETS, "output.mean().item()", "output.mean()", "has a graph"),
    one("maximum for mean", HOOK, FORGETS, "output.mean()", "output.max()"),
    one("first element only", HOOK, FORGETS, "output.mean().item()", "output.flatten()[0].item()"),
]  # fmt: skip

RIGHT = {
    "numbers": """
def replay(lifetimes, allocator):
    times = sorted({t for life in lifetimes for t in (life.start, life.end) if t is not None})
    held, log = [], []
    for now in times:
        for life in lifetimes:
            if life.start == now:
                held.append((life, allocator.allocate(life.nbytes)))
                log.append((now, allocator.allocated, allocator.reserved))
        for life, block in list(held):
            if life.end == now:
                allocator.release(block)
                held.remove((life, block))
                log.append((now, allocator.allocated, allocator.reserved))
    return log


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
import heapq


class Orders:
    def __init__(self, lifetimes, allocator):
        self.allocator, self.entries = allocator, []
        self.waiting = [(life.start, False, number, life) for number, life in enumerate(lifetimes)]
        heapq.heapify(self.waiting)

    def begin(self, now, number, life):
        block = self.allocator.allocate(life.nbytes)
        if life.end is not None:
            heapq.heappush(self.waiting, (life.end, True, number, block))

    def run(self):
        while self.waiting:
            now, over, number, what = heapq.heappop(self.waiting)
            if over:
                self.allocator.release(what)
            else:
                self.begin(now, number, what)
            self.entries.append([now, self.allocator.allocated, self.allocator.reserved])
        return self.entries


def replay(lifetimes, allocator):
    return Orders(lifetimes, allocator).run()



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
    "other roads": """
import statistics

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def replay(lifetimes, allocator):
    begins = sorted(lifetimes, key=lambda life: -life.start)
    ends = sorted((life for life in lifetimes if life.end is not None), key=lambda life: -life.end)
    held, log = {}, []
    while begins or ends:
        if begins and (not ends or begins[-1].start <= ends[-1].end):
            life = begins.pop()
            held[id(life)], now = allocator.allocate(life.nbytes), life.start
        else:
            life = ends.pop()
            now = life.end
            allocator.release(held.pop(id(life)))
        log += [(now, allocator.allocated, allocator.reserved)]
    return log


def still_there(trace, since):
    last = {event["addr"]: event for event in trace if event["action"] in ("alloc", "free_completed")}
    left = [e for e in last.values() if e["action"] == "alloc" and e["time_us"] >= since]
    lines = {e["frames"][0]["name"] for e in left}
    return {line: sum(e["size"] for e in left if e["frames"][0]["name"] == line) for line in lines}


def train_and_log(model, optimizer, batches):
    def steps():
        for ids in batches:
            model.zero_grad()
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
            del logits
            loss.backward()
            optimizer.step()
            yield loss.detach().clone()
            del loss

    return list(steps())


def head_loss(head, hidden, targets):
    def summed(rows, labels):
        if len(rows) > 128:
            half = len(rows) // 2
            return summed(rows[:half], labels[:half]) + summed(rows[half:], labels[half:])
        return checkpoint(
            lambda r: -head(r).float().log_softmax(-1).gather(1, labels[:, None]).sum(), rows, use_reentrant=False
        )

    return summed(hidden, targets).div(targets.numel())


def evaluate(model, batches):
    with torch.set_grad_enabled(False):
        return statistics.fmean(float(F.cross_entropy(model(b[:, :-1]).mT, b[:, 1:])) for b in batches)


def make_optimizer(parameters):
    optimizer = torch.optim.Adam(parameters)
    for group in optimizer.param_groups:
        group["foreach"] = False
    return optimizer


def log_means(model, means):
    names = {id(module): name for name, module in model.named_modules()}

    def watch(module):
        if not module._modules:
            module.register_forward_hook(
                lambda module, args, kwargs, output: means.update({names[id(module)]: output.mean().tolist()}),
                with_kwargs=True,
            )

    model.apply(watch)
""",
}
