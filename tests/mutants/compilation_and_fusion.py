"""Wrong and right answers for the practice tasks of compilation and fusion."""

from . import Mutant

PART, SOFTMAX, ATTENTION, MERGE = (
    f"compilation_and_fusion.{part}" for part in ("chunked", "softmax", "attention", "merge")
)
SAME, IGNORED, SUMS, NEVER = (
    "matches_the_whole_logits",
    "ignored_rows_count_for_nothing",
    "sums_in_full_precision",
    "logits_never_whole",
)
TOTAL = 'total += F.cross_entropy(logits, truth, reduction="sum")'
RETURN = "return ChunkedLoss.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())"
LOOP = "for start in range(0, len(hidden), chunk):"
COUNTS = "counts = (labels != -100).sum().clamp(min=1)  # stays a tensor: the GPU need not be waited for"
BACK = "(s * (upstream / counts)).to(ctx.dtype)"
KEEP = "ctx.kept = [*getattr(ctx, 'kept', []), gradient if any(wanted) else None]"
LAST = "logits = gradient = None  # before the next chunk's are made"


CHOOSE, DIVIDE = "y = torch.where(y.mean() > 0, y - 1, y)", "return y / y.abs().max()"
NUMBERS, ONE_GRAPH = "gives_the_same_numbers", "becomes_one_graph"

LARGEST = "largest = scores.amax(-1)"
JOINED = "largest = torch.maximum(largest, state[0])"
BASE = "base = torch.where(largest.isinf(), 0.0, largest)"
WEIGHTS = "weights = (scores - base[..., None]).exp()"
NEW_SUMS = "total, weighted = weights.sum(-1), weights @ values"
RESCALE = "rescale = (state[0] - base).exp()"
ADD_TOTAL, ADD_WEIGHTED = "total = total + rescale * state[1]", "weighted = weighted + rescale[..., None] * state[2]"
STATE = "return largest, total, weighted"

ROWS = "rows, state = q[..., top : top + tile, :] * scale, None"
ACROSS = "for left in range(0, top + 1, tile):"
SCORES = "scores = rows @ k[..., left : left + tile, :].mT"
MASK = 'scores = scores.masked_fill(later, float("-inf"))'
WRITE = "out[..., top : top + tile, :] = weighted / total[..., None]"
UPDATE = "state = online_softmax(state, scores, v[..., left : left + tile, :])"
EMPTY = "out = torch.empty_like(q)"


def repair(rejected_by: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, "compilation_and_fusion.repair", rejected_by, replace, raises)


def softmax(rejected_by: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, SOFTMAX, rejected_by, replace, raises)


def attention(rejected_by: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, ATTENTION, rejected_by, replace, raises)


def merge(rejected_by: str, name: str, old: str, new: str) -> Mutant:
    return Mutant(name, MERGE, f"kernel_{rejected_by}", ((old, new),))


def one(name: str, rejected_by: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, PART, rejected_by, ((old, new),), raises)


def instead(name: str, rejected_by: str, body: str) -> Mutant:
    """Another way of computing it, instead of the reference's."""
    counts = "\n    counts = (labels != -100).sum().clamp(min=1)\n"
    return one(name, rejected_by, RETURN, "pass" + counts + body.strip("\n"))


def first(name: str, rejected_by: str, line: str) -> Mutant:
    """The reference after one more line."""
    return one(name, rejected_by, RETURN, f"{line}\n    {RETURN}")


def then(name: str, rejected_by: str, old: str, new: str) -> Mutant:
    """The reference, called with something else or returning something else."""
    assert old in RETURN
    return one(name, rejected_by, RETURN, RETURN.replace(old, new))


MUTANTS = [
    # the same in Triton, where it is installed
    merge("matches_the_softmax", "the old total not rescaled", "total = shrink * total", "total = total"),
    merge("matches_the_softmax", "the old weighted not rescaled", "shrink[:, None] * weighted", "weighted"),
    merge("matches_the_softmax", "sums over rows", "tl.sum(weights, 1)", "tl.sum(weights, 0)"),
    merge("matches_the_softmax", "only this tile", "total = shrink * total + tl", "total = tl"),
    merge("state_means_what_it_says", "a maximum that drifts", "new = tl.maximum(largest, tl.max(scores, 1))",
        "new = tl.maximum(largest, tl.max(scores, 1)) + 1"),
    merge("state_means_what_it_says", "half of both sums", "return new, total, weighted",
        "return new, total / 2, weighted / 2"),
    merge("survives_large_scores", "no maximum", "new = tl.maximum(largest, tl.max(scores, 1))",
        "new = tl.maximum(largest, tl.max(scores, 1)) * 0"),
    merge("survives_large_scores", "a maximum of less than 90", "new = tl.maximum(largest, tl.max(scores, 1))",
        "new = tl.minimum(tl.maximum(largest, tl.max(scores, 1)), 90.0)"),
    # one graph
    repair(NUMBERS, "always one branch", (CHOOSE, "y = y - 1")),
    repair(NUMBERS, "always the other", (CHOOSE, "pass")),
    repair(NUMBERS, "number by number", ("y.mean() > 0", "y > 0")),
    repair(NUMBERS, "a mean of 0 counts as positive", ("> 0", ">= 0")),
    repair(NUMBERS, "the largest, not the largest magnitude", (DIVIDE, "return y / y.max()")),
    repair(NUMBERS, "row by row", (DIVIDE, "return y / y.abs().amax(-1, keepdim=True)")),
    repair(NUMBERS, "flat", (DIVIDE, "return (y / y.abs().max()).flatten()")),
    repair(NUMBERS, "x doubled in place", ("y = x * 2", "y = x.mul_(2)")),
    repair(ONE_GRAPH, "the branch left", (CHOOSE, "if y.mean() > 0:\n        y = y - 1")),
    repair(ONE_GRAPH, "the condition as a number", ("y.mean() > 0", "torch.tensor(float(y.mean()) > 0)")),
    repair(ONE_GRAPH, "the maximum as a number", (DIVIDE, "return y / y.abs().max().item()")),
    repair(ONE_GRAPH, "still printing", (DIVIDE, 'print("shape", tuple(y.shape))\n    return y / y.abs().max()')),
    # the online softmax
    softmax("matches_the_softmax", "old sums not rescaled", (RESCALE, "rescale = torch.ones_like(largest)")),
    softmax("matches_the_softmax", "total not rescaled", (ADD_TOTAL, "total = total + state[1]")),
    softmax("matches_the_softmax", "weighted not rescaled", (ADD_WEIGHTED, "weighted = weighted + state[2]")),
    softmax("matches_the_softmax", "rescaled the wrong way", (RESCALE, "rescale = (base - state[0]).exp()")),
    softmax("matches_the_softmax", "forgets the tiles before", (ADD_TOTAL, "pass"), (ADD_WEIGHTED, "pass")),
    softmax("matches_the_softmax", "the mean of the tiles", (STATE, "weighted = weighted / total[..., None]\n    return largest, torch.ones_like(total), weighted")),
    softmax("matches_the_softmax", "one maximum for all rows", (WEIGHTS, "weights = (scores - largest.amin()).exp()")),
    softmax("state_means_what_it_says", "never a maximum", (JOINED, "pass"), (LARGEST, "largest = torch.zeros_like(scores[..., 0])")),
    softmax("state_means_what_it_says", "normalised in between", (STATE, "return largest + total.log(), torch.ones_like(total), weighted / total[..., None]")),
    softmax("state_means_what_it_says", "one maximum for the whole tile", (LARGEST, "largest = scores.amax().expand(scores.shape[:-1])")),
    softmax("state_means_what_it_says", "base two", (STATE, "return largest, total * 2, weighted * 2")),
    softmax("survives_large_scores", "no maximum subtracted", (BASE, "base = torch.zeros_like(largest)")),
    softmax("survives_large_scores", "the first maximum for ever", (JOINED, "largest = state[0]")),
    softmax("survives_large_scores", "the latest maximum alone", (JOINED, "pass")),
    softmax("survives_large_scores", "scores in 16 bits", (LARGEST, "scores = scores.bfloat16().float()\n    largest = scores.amax(-1)")),
    softmax("survives_masked_tiles", "-inf less -inf", (BASE, "base = largest")),
    softmax("survives_masked_tiles", "NaNs made zero too late", (BASE, "base = largest"), (STATE, "return largest, total, weighted.nan_to_num(0.0)")),
    softmax("survives_masked_tiles", "masked scores count a little", (LARGEST, "scores = scores.clamp(min=-1.0)\n    largest = scores.amax(-1)")),
    softmax("leaves_its_inputs_alone", "old sums rescaled in place", (ADD_TOTAL, "total = state[1].mul_(rescale).add_(total)")),
    softmax("leaves_its_inputs_alone", "old mean rescaled in place", (ADD_WEIGHTED, "weighted = state[2].mul_(rescale[..., None]).add_(weighted)")),
    softmax("leaves_its_inputs_alone", "scores shifted in place", (WEIGHTS, "weights = scores.sub_(base[..., None]).exp()")),
    softmax("leaves_its_inputs_alone", "values weighted in place", (NEW_SUMS, NEW_SUMS + "\n    values.mul_(0.5)")),
    softmax("leaves_its_inputs_alone", "the old maximum overwritten", (JOINED, "largest = torch.maximum(largest, state[0])\n        state = (state[0], state[1], state[2])\n        before = state[0].clone()\n        state[0].copy_(largest)\n        state = (before, state[1], state[2])")),
    # attention, tile by tile
    attention("matches_attention", "not scaled", (ROWS, "rows, state = q[..., top : top + tile, :], None")),
    attention("matches_attention", "scaled by d", ("q.shape[-1] ** -0.5", "1 / q.shape[-1]")),
    attention("matches_attention", "not masked", (MASK, "pass")),
    attention("matches_attention", "the diagonal masked, too", (".triu(1)", ".triu(1 if left == 0 else 0)")),
    attention("matches_attention", "one too many seen", (".triu(1)", ".triu(2)")),
    attention("matches_attention", "zero is no mask", (MASK, "scores = scores.masked_fill(later, 0.0)")),
    attention("matches_attention", "not divided", (WRITE, "out[..., top : top + tile, :] = weighted")),
    attention("matches_attention", "full tiles only", ("for top in range(0, length, tile):", "out.zero_()\n    for top in range(0, length - tile + 1, tile):")),
    attention("matches_attention", "the values of the first tile", (UPDATE, "state = online_softmax(state, scores, v[..., : scores.shape[-1], :])")),
    attention("scores_never_whole", "all scores, then tiles", (EMPTY, EMPTY + "\n    everything = (q * scale) @ k.mT"), (SCORES, "scores = everything[..., top : top + tile, left : left + tile]")),
    attention("scores_never_whole", "whole rows of scores", (ROWS, ROWS + "\n        everything = rows @ k.mT"), (SCORES, "scores = everything[..., left : left + tile]")),
    attention("scores_never_whole", "half tiles", ("length, scale = q.shape[-2], q.shape[-1] ** -0.5", "tile = max(1, tile // 2)\n    length, scale = q.shape[-2], q.shape[-1] ** -0.5")),
    attention("scores_never_whole", "always 64", ("length, scale = q.shape[-2], q.shape[-1] ** -0.5", "tile = 64\n    length, scale = q.shape[-2], q.shape[-1] ** -0.5")),
    attention("scores_never_whole", "PyTorch's own", (EMPTY, "return F.scaled_dot_product_attention(q, k, v, is_causal=True)")),
    attention("skips_what_is_masked", "all tiles", (ACROSS, "for left in range(0, length, tile):"), ("if left == top:", "if left >= top:"), (".triu(1)", ".triu(1 + top - left)")),
    attention("skips_what_is_masked", "one tile too many", (ACROSS, "for left in range(0, min(top + tile + 1, length), tile):"), ("if left == top:", "if left >= top:"), (".triu(1)", ".triu(1 + top - left)")),
    attention("skips_what_is_masked", "every product twice", (SCORES, SCORES + "\n            " + SCORES)),
    attention("skips_what_is_masked", "the tiles before the last two left out", (ACROSS, "for left in range(max(0, top - tile), top + 1, tile):")),
    attention("holds_a_tile_at_a_time", "a mask of T x T", (EMPTY, EMPTY + "\n    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)")),
    attention("holds_a_tile_at_a_time", "tiles kept in a list", (EMPTY, EMPTY + "\n    kept = []"), (UPDATE, UPDATE + "\n            kept.append(scores)")),
    attention("holds_a_tile_at_a_time", "scores put down whole", (EMPTY, EMPTY + "\n    whole = q.new_zeros(*q.shape[:-1], length)"), (UPDATE, UPDATE + "\n            whole[..., top : top + tile, left : left + tile] = scores")),
    attention("holds_a_tile_at_a_time", "q scaled in place", (EMPTY, EMPTY + "\n    q.mul_(1.0001)")),
    # values
    one("sum for mean", SAME, "return total / counts", "return total"),
    one("mean of chunk means", SAME, TOTAL,
        "total += F.cross_entropy(logits, truth) * (labels != -100).sum() * chunk / len(hidden)"),
    one("ragged tail left out", SAME, LOOP, "for start in range(0, len(hidden) - chunk + 1, chunk):"),
    one("upstream gradient dropped", SAME, BACK, "(s / counts).to(ctx.dtype)"),
    one("gradient not divided", SAME, BACK, "(s * upstream).to(ctx.dtype)"),
    one("gradient divided twice", SAME, BACK, "(s * (upstream / counts / counts)).to(ctx.dtype)"),
    one("no one at the label", SAME, "truth.clamp(min=0)] -= 1", "truth.clamp(min=0)] -= 0"),
    one("sign of the gradient", SAME, "s * (upstream / counts)", "s * (-upstream / counts)"),
    one("gradient of the weight of the last chunk only", SAME, "sums[1] += gradient.t() @ rows",
        "sums[1] = (gradient.t() @ rows).float()"),
    then("gradient of the weight missing", SAME, "(hidden, weight,", "(hidden, weight.detach(),"),
    then("gradient of hidden missing", SAME, "(hidden, weight,", "(hidden.detach(), weight,"),
    then("detached loss", SAME, "enabled())", "enabled()).detach()"),
    then("a Python number", SAME, "enabled())", "enabled()).item()"),
    then("a loss of shape (1,)", SAME, "enabled())", "enabled()).reshape(1)"),
    first("sums survive the call", SAME,
        "chunked_cross_entropy.kept = getattr(chunked_cross_entropy, 'kept', 0) + 1\n"
        "    if chunked_cross_entropy.kept > 1: hidden = hidden * 0.5"),
    # ignored rows
    one("ignored rows counted", IGNORED, COUNTS, "counts = (labels != -200).sum()"),
    one("ignored rows counted in the gradient", IGNORED, BACK, "(s * (upstream / 50)).to(ctx.dtype)"),
    one("ignored rows have a gradient", IGNORED, "gradient[truth == -100] = 0", "pass"),
    one("ignored rows count as label 0", IGNORED, TOTAL,
        'total += F.cross_entropy(logits, truth.clamp(min=0), reduction="sum")'),
    one("label 0 ignored as well", IGNORED, "gradient[truth == -100] = 0", "gradient[truth <= 0] = 0"),
    one("NaN when all are ignored", IGNORED, COUNTS, "counts = (labels != -100).sum() / (labels != -100).any()"),
    first("early return without a graph", IGNORED,
        "if bool((labels == -100).all()): return torch.zeros((), device=hidden.device)"),
    one("labels overwritten", IGNORED, COUNTS, COUNTS + "\n        labels[labels == -100] = 0"),
    instead("mean over chunks that count", IGNORED, """
    total = torch.zeros((), device=hidden.device)
    parts = list(zip(hidden.split(chunk), labels.split(chunk)))
    for rows, truth in parts:
        share = len(truth) / len(labels)
        total = total + share * F.cross_entropy((rows @ weight.t()).float(), truth).nan_to_num(0.0)
    return total
"""),
    # 16 bits
    one("softmax in 16 bits", SUMS, "(rows @ weight.t()).float()", "rows @ weight.t()"),
    one("loss summed in 16 bits", SUMS, "total = torch.zeros((), device=hidden.device)",
        "total = torch.zeros((), device=hidden.device, dtype=hidden.dtype)"),
    one("gradients summed in 16 bits", SUMS, "torch.zeros_like(t, dtype=torch.float32)", "torch.zeros_like(t)"),
    then("loss handed back in 16 bits", SUMS, "enabled())", "enabled()).to(hidden.dtype)"),
    one("divided by the count before the cast to FP16", SUMS, "gradient = gradient.to(rows.dtype)",
        "gradient = (gradient / len(hidden)).to(rows.dtype).float().mul(len(hidden)).to(rows.dtype)"),
    one("divided by much more before the cast to FP16", SUMS, "gradient = gradient.to(rows.dtype)",
        "gradient = (gradient / 768000).to(rows.dtype).float().mul_(768000).to(rows.dtype)"),
    instead("autograd adds the chunks in 16 bits", SUMS, """
    total = torch.zeros((), device=hidden.device)
    for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
        logits = torch.utils.checkpoint.checkpoint(lambda r: (r @ weight.t()).float(), rows, use_reentrant=False)
        total = total + F.cross_entropy(logits, truth, reduction="sum")
    return total / counts
"""),
    # memory and work
    instead("full logits", NEVER, "    return F.cross_entropy((hidden @ weight.t()).float(), labels)"),
    instead("full logits, checkpointed", NEVER, """
    whole = lambda h, w: F.cross_entropy((h @ w.t()).float(), labels)
    return torch.utils.checkpoint.checkpoint(whole, hidden, weight, use_reentrant=False)
"""),
    instead("chunks put together again", NEVER, """
    logits = torch.cat([rows @ weight.t() for rows in hidden.split(chunk)])
    return F.cross_entropy(logits.float(), labels)
"""),
    instead("graphs of all chunks retained", NEVER, """
    total = torch.zeros((), device=hidden.device)
    for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
        total = total + F.cross_entropy((rows @ weight.t()).float(), truth, reduction="sum")
    return total / counts
"""),
    instead("logits kept, loss checkpointed", NEVER, """
    total = torch.zeros((), device=hidden.device)
    loss = lambda logits, truth: F.cross_entropy(logits.float(), truth, reduction="sum")
    for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
        total = total + torch.utils.checkpoint.checkpoint(loss, rows @ weight.t(), truth, use_reentrant=False)
    return total / counts
"""),
    one("gradients of all chunks kept", NEVER, LAST, KEEP),
    one("gradients of the last two chunks kept", NEVER, LAST, KEEP.replace("[])", "[])[-1:]")),
    one("last chunk's tensors live on in a tuple", NEVER, LAST, "last = logits, gradient if any(wanted) else None"),
    one("the last chunk's gradient lives on", NEVER, LAST, "logits = None"),
    one("the last chunk's logits live on", NEVER, LAST, "gradient = None"),
    instead("chunks checkpointed", NEVER, """
    total = torch.zeros((), device=hidden.device)
    loss = lambda rows, truth: F.cross_entropy((rows @ weight.t()).float(), truth, reduction="sum")
    for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
        total = total + torch.utils.checkpoint.checkpoint(loss, rows, truth, use_reentrant=False)
    return total / counts
"""),
    one("the gradient of the weight made twice", NEVER, "sums[1] += gradient.t() @ rows",
        "sums[1] += (gradient.t() @ rows + gradient.t() @ rows) / 2"),
    one("the gradient of hidden made twice", NEVER, "sums[0][start : start + chunk] = gradient @ weight",
        "sums[0][start : start + chunk] = (gradient @ weight + gradient @ weight) / 2"),
    first("chunk of its own size", NEVER, "chunk = 256"),
    first("row by row", NEVER, "chunk = 1"),
    first("half chunks", NEVER, "chunk = max(chunk // 2, 1)"),
    one("a gradient for a frozen weight", NEVER, "wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[:2]]",
        "wanted = [grad_enabled, grad_enabled]"),
    one("gradients under no_grad", NEVER, "[grad_enabled and needed for", "[needed for"),
    one("the gradient of hidden under no_grad", NEVER, "if any(wanted):\n", "wanted[0] = ctx.needs_input_grad[0]\n"
        "            sums[0] = torch.zeros_like(hidden).float() if sums[0] is None else sums[0]\n            if any(wanted):\n"),
]  # fmt: skip

RIGHT = {
    "in place": """
import torch


def repaired(x):
    doubled = 2 * x
    shifted = doubled - (doubled.mean() > 0).to(doubled.dtype)
    return shifted / torch.linalg.vector_norm(shifted, ord=float("inf"))


def online_softmax(state, scores, values):
    top = scores.max(dim=-1).values
    if state is None:
        state = torch.full_like(top, -torch.inf), torch.zeros_like(top), top.new_zeros(*top.shape, values.shape[-1])
    m, l, o = state
    new = torch.maximum(m, top)
    safe = new.masked_fill(new == -torch.inf, 0)
    old, w = torch.exp(m - safe), torch.exp(scores - safe.unsqueeze(-1))
    return new, old * l + w.sum(-1), old.unsqueeze(-1) * o + torch.matmul(w, values)


def tiled_attention(q, k, v, tile):
    place = torch.arange(q.shape[2], device=q.device)
    out = []
    for rows, i in zip(q.split(tile, 2), place.split(tile)):
        state = None
        for keys, values, j in zip(k.split(tile, 2), v.split(tile, 2), place.split(tile)):
            if j[0] > i[-1]:
                break
            scores = torch.einsum("bhid,bhjd->bhij", rows, keys) / rows.shape[-1] ** 0.5
            state = online_softmax(state, torch.where(i[:, None] >= j, scores, -torch.inf), values)
        out.append(state[2] / state[1].unsqueeze(-1))
    return torch.cat(out, 2)


import torch


def in_place(logits, truth):
    counts, places = truth >= 0, torch.arange(len(truth), device=truth.device)
    logits -= logits.amax(1, keepdim=True)
    right = logits[places, truth.clamp(min=0)]
    logits.exp_()
    totals = logits.sum(1)
    logits /= totals[:, None]
    logits[places, truth.clamp(min=0)] -= 1
    logits *= counts[:, None]
    return ((totals.log() - right) * counts).sum()


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, on):
        wants = [on and wanted for wanted in ctx.needs_input_grad[:2]]
        to_weight = torch.zeros(weight.shape, device=weight.device) if wants[1] else None
        shares, total = [], 0.0
        for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
            logits = torch.mm(rows, weight.T).to(torch.float32)
            total = total + in_place(logits, truth)
            if wants[0]:
                shares.append(torch.mm(logits.to(weight.dtype), weight).float())
            if wants[1]:
                to_weight += torch.mm(logits.to(rows.dtype).T, rows)
            del logits
        ctx.sums, ctx.kinds = (torch.cat(shares) if shares else None, to_weight), (hidden.dtype, weight.dtype)
        ctx.count = max(int((labels != -100).sum()), 1)
        return total / ctx.count

    @staticmethod
    def backward(ctx, upstream):
        pairs = zip(ctx.sums, ctx.kinds)
        return *[None if s is None else (s * (upstream / ctx.count)).to(kind) for s, kind in pairs], None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    return InPlace.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())
""",
    "sums of log-probabilities": """
import torch


class Normalised:
    def __init__(self, y):
        self.y = y

    def scaled(self):
        return self.y.div(self.y.abs().amax())


def repaired(x):
    y = x + x
    return Normalised(torch.stack([y, y - 1]).index_select(0, (y.mean() > 0).long().view(1))[0]).scaled()


class Running:
    def __init__(self, state):
        self.largest, self.total, self.weighted = state

    def merged(self, other):
        largest = torch.maximum(self.largest, other.largest)
        sums = [0.0, 0.0]
        for part in (self, other):
            factor = torch.where(part.largest == -torch.inf, 0.0, torch.exp(part.largest - largest))
            sums[0] = sums[0] + factor * part.total
            sums[1] = sums[1] + factor[..., None] * part.weighted
        return largest, *sums


def online_softmax(state, scores, values):
    largest = scores.amax(-1)
    weights = torch.where(scores == -torch.inf, 0.0, torch.exp(scores - largest[..., None]))
    mine = Running((largest, weights.sum(-1), weights @ values))
    return (mine.largest, mine.total, mine.weighted) if state is None else Running(state).merged(mine)


def tiled_attention(q, k, v, tile):
    out = torch.zeros_like(q)
    for i in range(0, q.shape[2], tile):
        state, end = None, min(i + tile, q.shape[2])
        for j in reversed(range(0, end, tile)):
            scores = q[:, :, i:end] @ k[:, :, j : j + tile].transpose(2, 3) / q.shape[3] ** 0.5
            rows = torch.arange(i, end, device=q.device)[:, None]
            columns = torch.arange(j, j + scores.shape[-1], device=q.device)
            state = online_softmax(state, scores.masked_fill(columns > rows, -torch.inf), v[:, :, j : j + tile])
        out[:, :, i:end] = state[2] / state[1][..., None]
    return out


import torch
from torch.autograd.function import once_differentiable


class Chunk:
    def __init__(self, rows, truth, weight):
        self.rows, self.truth, self.weight, self.counts = rows, truth.clamp(min=0)[:, None], weight, truth >= 0
        self.log_probabilities = torch.log_softmax(torch.matmul(rows, weight.T), 1, dtype=torch.float32)

    def loss(self):
        return -self.log_probabilities.gather(1, self.truth)[self.counts].sum()

    def gradient(self):
        gradient = self.log_probabilities.exp()
        gradient.scatter_add_(1, self.truth, torch.full_like(gradient[:, :1], -1.0))
        return gradient.mul_(self.counts[:, None]).to(self.rows.dtype)

    def sums(self, wanted):
        gradient = self.gradient() if any(wanted) else None
        to_hidden = gradient @ self.weight if wanted[0] else None
        return to_hidden, (gradient.T @ self.rows).float() if wanted[1] else None


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, wanted):
        sums, total = [None, None], 0.0
        if wanted[0]:
            sums[0] = torch.zeros(hidden.shape, device=hidden.device)
        for start in range(0, len(hidden), chunk):
            part = Chunk(hidden[start : start + chunk], labels[start : start + chunk], weight)
            total = total + part.loss()
            to_hidden, to_weight = part.sums(wanted)
            del part
            if wanted[0]:
                sums[0][start : start + chunk] = to_hidden
            if wanted[1]:
                sums[1] = to_weight if sums[1] is None else sums[1] + to_weight
        ctx.sums, ctx.count = sums, (labels != -100).sum().clamp(min=1)
        ctx.types = hidden.dtype, weight.dtype
        return total / ctx.count

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        scale = upstream / ctx.count
        gradients = [None if s is None else (scale * s).to(kind) for s, kind in zip(ctx.sums, ctx.types)]
        return *gradients, None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    wanted = [torch.is_grad_enabled() and t.requires_grad for t in (hidden, weight)]
    return Loss.apply(hidden, weight, labels, chunk, wanted)
""",
    "gradients from torch.autograd.grad": """
import torch


def repaired(x):
    y = x.mul(2).flatten()
    y = y - torch.heaviside(y.mean(), torch.zeros_like(y[0]))
    return (y / torch.maximum(y.max(), -y.min())).view(x.shape)


def online_softmax(state, scores, values):
    if state is not None:  # what was seen is one more column, whose value is its weighted sum
        largest, total, weighted = state
        seen = torch.where(total > 0, largest + total.log(), -torch.inf)
    largest = scores.amax(-1) if state is None else torch.maximum(scores.amax(-1), largest)
    base = largest.clamp(min=torch.finfo(largest.dtype).min)
    weights = (scores - base[..., None]).exp()
    total, sums = weights.sum(-1), weights @ values
    if state is not None:
        share = (seen - base).exp()
        sums = sums + share[..., None] * weighted / state[1].clamp(min=1e-30)[..., None]
        total = total + share
    return largest, total, sums


def tiled_attention(q, k, v, tile):
    B, H, T, d = q.shape
    heads = [t.reshape(B * H, T, d) for t in (q, k, v)]
    out = torch.empty(B * H, T, d, device=q.device)
    for top in range(0, T, tile):
        state = None
        for left in range(0, top + 1, tile):
            rows, keys = heads[0][:, top : top + tile], heads[1][:, left : left + tile]
            scores = torch.bmm(rows, keys.transpose(1, 2)) * d**-0.5
            if left == top:
                n = scores.shape[1]
                scores = scores + torch.full((n, n), -torch.inf, device=q.device).triu(1)
            state = online_softmax(state, scores, heads[2][:, left : left + tile])
        out[:, top : top + tile] = state[2] / state[1][..., None]
    return out.view(B, H, T, d)


import torch
import torch.nn.functional as F


def chunked_cross_entropy(hidden, weight, labels, chunk):
    count = max(1, int(labels.ne(-100).sum()))
    if not torch.is_grad_enabled():
        parts = zip(hidden.split(chunk), labels.split(chunk))
        losses = (F.cross_entropy(F.linear(rows, weight).float(), truth, reduction="sum") for rows, truth in parts)
        return sum(losses) / count

    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden, weight):
            total, ctx.types = 0.0, (hidden.dtype, weight.dtype)
            to_hidden = torch.zeros(hidden.shape, device=hidden.device)
            to_weight = torch.zeros(weight.shape, device=hidden.device)
            wants = ctx.needs_input_grad
            for start in range(0, hidden.shape[0], chunk):
                rows = hidden[start : start + chunk].detach().float().requires_grad_()
                table = weight.detach().float().requires_grad_(wants[1])
                with torch.enable_grad():
                    loss = F.cross_entropy(F.linear(rows, table), labels[start : start + chunk], reduction="sum")
                grads = torch.autograd.grad(loss, [rows, table] if wants[1] else [rows])
                to_hidden[start : start + chunk] = grads[0]
                if wants[1]:
                    to_weight += grads[1]
                total += loss.detach()
            ctx.grads = to_hidden, to_weight
            return total / count

        @staticmethod
        def backward(ctx, upstream):
            return tuple(
                (grad * upstream / count).to(kind) if wanted else None
                for grad, kind, wanted in zip(ctx.grads, ctx.types, ctx.needs_input_grad)
            )

    return Loss.apply(hidden, weight)
""",
}

MERGES = (
    """
try:
    import triton.language as tl
except ImportError:
    pass


def merge_tile(largest, total, weighted, scores, values):
    top = tl.maximum(tl.max(scores, axis=1), largest)
    shares = tl.exp(scores - tl.expand_dims(top, 1))
    old = tl.exp(largest - top)
    weighted = tl.dot(shares, values, weighted * old[:, None], input_precision="ieee")
    return top, tl.sum(shares, axis=1) + total * old, weighted
""",
    """
try:
    import triton.language as tl
except ImportError:
    pass


def merge_tile(m, l, o, s, v):
    here = tl.max(s, 1)  # the tile on its own, then both joined
    w = tl.exp(s - here[:, None])
    own_l, own_o = tl.sum(w, 1), tl.sum(w[:, :, None] * v[None, :, :], 1)
    new = tl.where(here > m, here, m)
    a, b = tl.exp(m - new), tl.exp(here - new)
    return new, a * l + b * own_l, a[:, None] * o + b[:, None] * own_o
""",
)
RIGHT = {name: text + MERGES[number % 2] for number, (name, text) in enumerate(RIGHT.items())}
