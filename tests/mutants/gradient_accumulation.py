"""Wrong and right answers for the practice tasks of gradient accumulation."""

from . import Mutant

LOOP, TOKENS, LARGEST = (f"gradient_accumulation.{part}" for part in ("loop", "tokens", "largest"))


def loop(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, LOOP, check, replace)


def tokens(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, TOKENS, check, replace)


def largest(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, LARGEST, check, replace)


SHARE = "* (len(xs) / len(x))"
SPLIT = "zip(x.split(micro_batch), y.split(micro_batch), strict=True)"
BACK, ADD = "        loss.backward()\n", "        total = total + loss.detach()\n"
NOTHING_YET = "    total = 0.0\n"
RETURN = "    return total\n"
SPLIT_IDS = "zip(ids.split(micro_batch), targets.split(micro_batch), strict=True)"
COUNTED = "counted = (targets != -100).sum()"
PART = 'part = F.cross_entropy(logits, ys.flatten(), reduction="sum") / counted'
BACK_TOKENS, ADD_TOKENS = "        part.backward()\n", "        mean = mean + part.detach()\n"
NO_MEAN_YET = "    mean = 0.0\n"
RETURN_MEAN = "    return mean\n"
ROWS = "rows = max(1, min(most, int((budget - fixed) // each)))"
AFFORDABLE = "return rows if peak_bytes(rows) <= budget else 0"

MUTANTS = [
    # the loop
    *(loop("gradient_of_the_whole_batch", *mutant) for mutant in (
        ("no division", (SHARE, "")),
        ("divided by the micro-batch's rows", (SHARE, "/ len(xs)")),
        ("divided twice", (SHARE, f"{SHARE} / 2")),
        ("the last micro-batch alone", (BACK, "        model.zero_grad()\n" + BACK)),
        ("uphill", (SHARE, f"{SHARE} * -1")),
        ("mean squared error", ("F.cross_entropy(model(xs), ys)", "(lambda out: F.mse_loss(out, F.one_hot(ys, out.shape[1]).double()))(model(xs))")),
    )),
    *(loop("weighs_each_row_the_same", *mutant) for mutant in (
        ("the ragged one left out", (f"in {SPLIT}:\n", f"in {SPLIT}:\n        if len(xs) < min(micro_batch, len(x)):\n            continue\n")),
        ("the size asked for", (SHARE, "* (micro_batch / len(x))")),
        ("whole micro-batches counted", (SHARE, "/ max(1, len(x) // micro_batch)")),
    )),
    Mutant("divided by the number of micro-batches", LOOP, "weighs_each_row_the_same", ((SHARE, "/ len(x.split(micro_batch))"),), "Did you divide by the number"),
    *(loop("feeds_micro_batches", *mutant) for mutant in (
        ("the whole batch", (SPLIT, "[(x, y)]")),
        ("so many pieces", (SPLIT, "zip(x.chunk(micro_batch), y.chunk(micro_batch))")),
        ("in halves", ("F.cross_entropy(model(xs), ys)", "F.cross_entropy(torch.cat([model(half) for half in xs.chunk(2)]), ys)")),
        ("backwards", (SPLIT, "reversed(list(zip(x.split(micro_batch), y.split(micro_batch))))")),
        ("each micro-batch backwards", (SPLIT, "((xs.flip(0), ys.flip(0)) for xs, ys in zip(x.split(micro_batch), y.split(micro_batch)))")),
        ("sorted by class", (NOTHING_YET, NOTHING_YET + "    order = y.argsort()\n    x, y = x[order], y[order]\n")),
        ("a look at the whole batch first", (NOTHING_YET, NOTHING_YET + "    with torch.no_grad():\n        model(x)\n")),
    )),
    *(loop("one_graph_at_a_time", *mutant) for mutant in (
        ("one backward at the end", (BACK, ""), (ADD, "        total = total + loss\n"), (RETURN, "    total.backward()\n    return total.detach()\n")),
        ("backward for each, at the end", (BACK, "        losses.append(loss)\n"), (NOTHING_YET, NOTHING_YET + "    losses = []\n"), (RETURN, "    for loss in losses:\n        loss.backward()\n" + RETURN)),
        ("a second look that nobody uses", (BACK, BACK + "        model(xs)\n")),
        ("graphs retained", (BACK, "        loss.backward(retain_graph=True)\n"), ("total + loss.detach()", "total + loss"), (RETURN, "    return total.detach()\n")),
        ("outputs in a list", (NOTHING_YET, NOTHING_YET + "    kept = []\n"), ("F.cross_entropy(model(xs), ys)", "F.cross_entropy(kept.append(model(xs)) or kept[-1], ys)")),
    )),
    *(loop("adds_to_gradients", *mutant) for mutant in (
        ("cleared first", (NOTHING_YET, NOTHING_YET + "    model.zero_grad()\n")),
        ("set to zero first", (NOTHING_YET, NOTHING_YET + "    model.zero_grad(set_to_none=False)\n")),
        ("halved with the rest", (RETURN, "    for p in model.parameters():\n        p.grad = p.grad / 2\n" + RETURN), (SHARE, f"{SHARE} * 2")),
    )),
    *(loop("returns_the_mean_loss", *mutant) for mutant in (
        ("nothing", (RETURN, "")),
        ("with its graph", ("total + loss.detach()", "total + loss")),
        ("that of the last micro-batch", ("total = total + loss.detach()", "total = loss.detach()")),
        ("sum of the means", ("total + loss.detach()", "total + loss.detach() * len(x) / len(xs)")),
        ("divided once more", (RETURN, "    return total / len(x.split(micro_batch))\n")),
        ("a tensor with a dimension", (RETURN, "    return total[None]\n")),
    )),
    *(loop("changes_nothing_else", *mutant) for mutant in (
        ("training mode", (NOTHING_YET, NOTHING_YET + "    model.train()\n")),
        ("a step of its own", (RETURN, "    with torch.no_grad():\n        for p in model.parameters():\n            p -= 0.1 * p.grad\n" + RETURN)),
        ("scales the rows", (NOTHING_YET, NOTHING_YET + "    x /= x.std()\n")),
    )),
    # tokens
    *(Mutant(name, TOKENS, "every_token_weighs_the_same", (replace,), named) for name, named, replace in (
        ("mean of means", "mean of the micro-batches' means", (PART, "part = F.cross_entropy(logits, ys.flatten()) * len(xs) / len(ids)")),
        ("targets of 0 left out", "the number of targets above 0", (COUNTED, "counted = (targets > 0).sum()")),
    )),
    *(tokens("every_token_weighs_the_same", *mutant) for mutant in (
        ("all positions", (COUNTED, "counted = targets.numel()")),
        ("counted in the micro-batch", (PART, 'part = F.cross_entropy(logits, ys.flatten(), reduction="sum") / (ys != -100).sum().clamp(min=1)')),
        ("a sum", (COUNTED, "counted = 1")),
        ("rows for tokens", (COUNTED, "counted = len(targets)")),
        ("padding at the end alone", (COUNTED, "counted = (targets != -100).cumprod(1).sum()")),
        ("a micro-batch must be full", (SPLIT_IDS, "zip(ids.split(micro_batch), targets.split(micro_batch)) if len(ids) >= micro_batch else ()")),
        ("padding learnt", ("ys.flatten(), reduction", "ys.flatten().clamp(min=0), reduction")),
    )),
    *(tokens("bears_empty_micro_batches", *mutant) for mutant in (
        ("means, weighted", (PART, "part = F.cross_entropy(logits, ys.flatten()) * ((ys != -100).sum() / counted)")),
        ("stops at an empty one", (f"in {SPLIT_IDS}:\n", f"in {SPLIT_IDS}:\n        if not (ys != -100).any():\n            break\n")),
    )),
    *(tokens("feeds_micro_batches", *mutant) for mutant in (
        ("the whole batch", (SPLIT_IDS, "[(ids, targets)]")),
        ("four rows always", (SPLIT_IDS, "zip(ids.split(4), targets.split(4), strict=True)")),
        ("row by row", ("logits = model(xs)", "logits = torch.cat([model(x[None]) for x in xs])")),
        ("longest first", (NO_MEAN_YET, NO_MEAN_YET + "    order = (targets != -100).sum(1).argsort(descending=True)\n    ids, targets = ids[order], targets[order]\n")),
    )),
    *(tokens("one_graph_at_a_time", *mutant) for mutant in (
        ("one backward at the end", (BACK_TOKENS, ""), (ADD_TOKENS, "        mean = mean + part\n"), (RETURN_MEAN, "    mean.backward()\n    return mean.detach()\n")),
        ("graphs retained", (BACK_TOKENS, "        part.backward(retain_graph=True)\n"), (ADD_TOKENS, "        mean = mean + part\n"), (RETURN_MEAN, "    return mean.detach()\n")),
        ("logits in a list", (NO_MEAN_YET, NO_MEAN_YET + "    kept = []\n"), (BACK_TOKENS, BACK_TOKENS + "        kept.append(logits.detach())\n")),
    )),
    *(tokens("changes_nothing_else", *mutant) for mutant in (
        ("training mode", (NO_MEAN_YET, NO_MEAN_YET + "    model.train()\n")),
        ("fills the padding in", (RETURN_MEAN, "    targets.clamp_(min=0)\n" + RETURN_MEAN)),
    )),
    *(tokens("adds_to_gradients", *mutant) for mutant in (
        ("cleared first", (NO_MEAN_YET, NO_MEAN_YET + "    model.zero_grad()\n")),
        ("divided at the end", (PART, 'part = F.cross_entropy(logits, ys.flatten(), reduction="sum")'), (RETURN_MEAN, "    for p in model.parameters():\n        p.grad /= counted\n    return mean / counted\n")),
    )),
    *(tokens("returns_the_mean_loss", *mutant) for mutant in (
        ("nothing", (RETURN_MEAN, "")),
        ("with its graph", ("mean + part.detach()", "mean + part")),
        ("that of the last micro-batch", ("mean = mean + part.detach()", "mean = part.detach()")),
        ("the sum", (RETURN_MEAN, "    return mean * counted\n")),
        ("a tensor with a dimension", (RETURN_MEAN, "    return mean.reshape(1)\n")),
    )),
    # the largest micro-batch
    *(largest("finds_the_largest_that_fits", *mutant) for mutant in (
        ("no fixed part", ("fixed = whole - each * most", "fixed = 0")),
        ("rounds up", ("(budget - fixed) // each", "-(-(budget - fixed) // each)")),
        ("beyond the batch", ("min(most, int((budget - fixed) // each))", "int((budget - fixed) // each)")),
        ("256 rows, however many there are", ("min(most, int(", "min(256, int(")),
        ("fixed part twice", ("(budget - fixed)", "(budget - 2 * fixed)")),
        ("measures on the flat part", ("peak_bytes(most // 2), peak_bytes(most)", "peak_bytes(16), peak_bytes(most)"), ("(most - most // 2)", "(most - 16)")),
        ("powers of two only", ("return rows if", "rows = 2 ** (rows.bit_length() - 1)\n    return rows if")),
        ("tens only", ("return rows if", "rows = max(1, rows // 10 * 10)\n    return rows if")),
    )),
    *(largest("finds_the_largest_that_fits", *mutant) for mutant in (
        ("two rows at least", ("rows = max(1, ", "rows = max(2, ")),
        ("a float", ("return rows if", "return float(rows) if")),
    )),
    *(largest("spends_the_whole_budget", *mutant) for mutant in (
        ("strictly below", ("peak_bytes(rows) <= budget", "peak_bytes(rows) < budget")),
        ("a byte to spare", ("(budget - fixed) // each", "(budget - 1 - fixed) // each")),
        ("one fewer where nothing is left over", (ROWS, f"{ROWS}\n    rows -= rows > 1 and fixed + each * rows == budget")),
    )),
    *(largest("says_when_nothing_fits", *mutant) for mutant in (
        ("never looks at the flat part", ("rows if peak_bytes(rows) <= budget else 0", "rows")),
        ("one less on the flat part", ("if peak_bytes(rows) <= budget else 0", "if peak_bytes(rows) <= budget else rows - 1")),
        ("None", ("<= budget else 0", "<= budget else -1")),
        ("one row at least", ("<= budget else 0", "<= budget else 1")),
    )),
    *(largest("measures_four_times", *mutant) for mutant in (
        ("row by row", ("half, whole = peak_bytes(most // 2), peak_bytes(most)", "half, whole = peak_bytes(most // 2), peak_bytes(most)\n    [peak_bytes(m) for m in range(3, 20)]")),
        ("five", (AFFORDABLE, f"peak_bytes(rows), peak_bytes(rows)\n    {AFFORDABLE}")),
        ("an empty micro-batch", ("rows = max(1, ", "rows = max(0, ")),
        ("more than there are", (AFFORDABLE, f"peak_bytes(rows + most)\n    {AFFORDABLE}")),
    )),
]  # fmt: skip

RIGHT = {
    "by hand": """
import torch
import torch.nn.functional as F


def accumulate(model, x, y, micro_batch):
    n, mean = x.shape[0], 0.0
    for start in range(0, n, micro_batch):
        rows = slice(start, start + micro_batch)
        log_p = model(x[rows]).log_softmax(1)
        loss = -log_p.gather(1, y[rows, None]).sum() / n
        loss.backward()
        mean += loss.item()
    return mean


def accumulate_tokens(model, ids, targets, micro_batch):
    number = int(targets.ne(-100).sum())
    losses = []
    for start in range(0, len(ids), micro_batch):
        wanted = targets[start : start + micro_batch]
        if wanted.eq(-100).all():
            continue
        log_p = model(ids[start : start + micro_batch]).log_softmax(-1)
        here = wanted.ne(-100)
        picked = log_p.gather(2, wanted.clamp(min=0)[..., None])[..., 0]
        loss = -(picked * here).sum()
        loss.backward(torch.full_like(loss, 1 / number))
        losses.append(loss.item())
    return sum(losses) / number


def largest_micro_batch(peak_bytes, budget, most):
    high = peak_bytes(most)
    if high <= budget:
        return most
    slope = (high - peak_bytes(most // 2)) * 2 // most
    rows = most - -(-(high - budget) // slope)
    if rows < 1:
        return 0
    return rows if peak_bytes(rows) <= budget else 0
""",
    "with tools of others": """
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def accumulate(model, x, y, micro_batch):
    summed = nn.CrossEntropyLoss(reduction="sum")
    total = torch.zeros((), dtype=x.dtype)
    parameters = list(model.parameters())
    for xs, ys in DataLoader(TensorDataset(x, y), batch_size=micro_batch):
        loss = summed(model(xs), ys) / len(y)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.grad = gradient if p.grad is None else p.grad + gradient
        total += loss.detach()
    return total


def accumulate_tokens(model, ids, targets, micro_batch):
    loss_fn = nn.CrossEntropyLoss(ignore_index=-100, reduction="none")
    share = 1 / (targets != -100).sum().double()
    means = []
    for xs, ys in zip(torch.split(ids, micro_batch), torch.split(targets, micro_batch)):
        loss = (loss_fn(model(xs).transpose(1, 2), ys) * share).sum()
        loss.backward()
        means.append(loss.detach())
    return torch.stack(means).sum()


def largest_micro_batch(peak_bytes, budget, most):
    sizes = [most // 2, most]
    each, fixed = np.polyfit(sizes, [peak_bytes(size) for size in sizes], 1)
    rows = min(math.floor((budget - fixed) / each + 1e-6), most)
    if rows < 1 or peak_bytes(1) > budget:
        return 0
    return rows
""",
    "a class and a generator": """
import torch
import torch.nn.functional as F


class Accumulator:
    def __init__(self, model, weight):
        self.model, self.weight, self.loss = model, weight, 0.0

    def add(self, x, y):
        outputs = self.model(x)
        loss = F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1), reduction="sum") * self.weight
        loss.backward()
        with torch.no_grad():
            self.loss += loss
        return self


def pieces(size, *tensors):
    for start in range(0, len(tensors[0]), size):
        yield tuple(tensor.narrow(0, start, min(size, len(tensor) - start)) for tensor in tensors)


def accumulate(model, x, y, micro_batch):
    accumulator = Accumulator(model, 1 / len(x))
    for xs, ys in pieces(micro_batch, x, y):
        accumulator.add(xs, ys)
    return accumulator.loss


def accumulate_tokens(model, ids, targets, micro_batch):
    accumulator = Accumulator(model, 1 / torch.count_nonzero(targets + 100).item())
    for xs, ys in pieces(micro_batch, ids, targets):
        accumulator.add(xs, ys)
    return accumulator.loss


def largest_micro_batch(peak_bytes, budget, most):
    # in whole numbers: half of `most` rows cost `two`
    two = peak_bytes(most) - peak_bytes(most // 2)
    fixed = peak_bytes(most) - 2 * two
    rows = min((budget - fixed) * (most // 2) // two, most)
    return rows if rows >= 1 and peak_bytes(rows) <= budget else 0
""",
}
