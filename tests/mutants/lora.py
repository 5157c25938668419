"""Wrong and right answers for the practice tasks of lora."""

from . import Mutant
from . import one as elsewhere

SERVE, OWN = "lora.serve", "each_row_has_its_own_adapter"
LOOP = "for k in which[which >= 0].unique().tolist():"
ADD = "y = y.index_add(0, rows, scale * ((x[rows] @ A[k].T) @ B[k].T))"
LAST = "    return y\n"
BASE = "y = x @ weight.T\n"
GROUPS = """y = torch.zeros(len(x), len(weight), dtype=x.dtype)
    for k in range(-1, len(A)):
        rows = which == k
        y[rows] = x[rows] @ weight.T
        if k >= 0:
            y[rows] += scale * (x[rows] @ A[k].T) @ B[k].T
    return y
"""
ROWS = """y = torch.zeros(len(x), len(weight), dtype=x.dtype)
    for i, k in enumerate(which.tolist()):
        y[i] = weight @ x[i]
        if k >= 0:
            y[i] += scale * B[k] @ (A[k] @ x[i])
    return y
"""

FORWARD = "return self.linear(x) + self.scale * F.linear(F.linear(x, self.A), self.B)"
ADDS, THIN = "adds_the_correction", "stays_thin"
LAYER = (
    ("no correction", ADDS, FORWARD, "return self.linear(x)"),
    ("no base", ADDS, FORWARD, FORWARD.replace("self.linear(x) + ", "")),
    ("no bias", ADDS, FORWARD, FORWARD.replace("self.linear(x)", "x @ self.linear.weight.T")),
    ("no scale", ADDS, FORWARD, FORWARD.replace("self.scale * ", "")),
    ("alpha for alpha / r", ADDS, FORWARD, FORWARD.replace("self.scale", "self.scale * len(self.A)")),
    ("A without gradient", ADDS, FORWARD, FORWARD.replace("self.A)", "self.A.detach())")),
    ("B without gradient", ADDS, FORWARD, FORWARD.replace("self.B)", "self.B.detach())")),
    ("no gradient for x by the adapter", ADDS, FORWARD, FORWARD.replace("F.linear(x, ", "F.linear(x.detach(), ")),
    ("no gradient for x by the base", ADDS, FORWARD, FORWARD.replace("self.linear(x)", "self.linear(x.detach())")),
    ("rows flattened", ADDS, FORWARD, "x = x.flatten(0, -2)\n        " + FORWARD),
    ("merged on the way", THIN, FORWARD, "return self.linear(x) + self.scale * F.linear(x, self.B @ self.A)"),
    ("the base is trained, too", THIN, FORWARD, "self.linear.requires_grad_(True)\n        " + FORWARD),
)
WHOLE, ANSWERS, POSITIONS = "examples_stay_whole", "only_answers_count", "positions_begin_anew"
LABELS = "labels = [-100] * len(prompt) + list(answer)"
PADDED = "row += [(pad, -100, i) for i in range(length - len(row))]"
LONG = """if n > length:
            raise ValueError(f"an example of {n} tokens does not fit a row of {length}")"""
ROOM = "if not rows or len(rows[-1]) + n > length:\n            rows.append([])"
INTO = "rows[-1] += zip([*prompt, *answer], labels, range(n), strict=True)"
OUT = "return torch.tensor(rows, dtype=torch.long).view(len(rows), length, 3).unbind(2)"
FIRST_FIT = "fit = next((r for r in rows if len(r) + n <= length), None)\n        if fit is None:\n            rows.append(fit := [])"
PACKED = (
    (
        "too long an example is cut",
        WHOLE,
        LONG,
        "n = min(n, length)\n        answer = answer[: max(0, n - len(prompt))]\n        prompt = prompt[:n]",
    ),
    ("a row is never full", WHOLE, ROOM, ROOM.replace("> length", ">= length")),
    ("an example to a row", WHOLE, ROOM, "rows.append([])"),
    (
        "the first row with room",
        WHOLE,
        ROOM + "\n        " + LABELS + "\n        " + INTO,
        FIRST_FIT + "\n        " + LABELS + "\n        fit += zip([*prompt, *answer], labels, range(n), strict=True)",
    ),
    (
        "longest first",
        WHOLE,
        "for prompt, answer in examples:",
        "for prompt, answer in sorted(examples, key=lambda one: -len(one[0]) - len(one[1])):",
    ),
    ("filled up with zeros", WHOLE, PADDED, PADDED.replace("(pad,", "(0,")),
    ("int32", WHOLE, OUT, OUT.replace("torch.long", "torch.int32")),
    (
        "no rows, no length",
        WHOLE,
        OUT,
        "return torch.tensor(rows, dtype=torch.long).view(len(rows), -1 if rows else 0, 3).unbind(2)",
    ),
    ("loss on prompts", ANSWERS, LABELS, "labels = [*prompt, *answer]"),
    ("labels shifted", ANSWERS, LABELS, LABELS + "\n        labels = [*labels[1:], -100]"),
    ("labels shifted the other way", ANSWERS, LABELS, LABELS + "\n        labels = [-100, *labels[:-1]]"),
    ("padding counts", ANSWERS, PADDED, PADDED.replace("-100", "pad")),
    (
        "masked by value: the model never stops",
        ANSWERS,
        LABELS,
        LABELS + "\n        labels = [-100 if label == pad else label for label in labels]",
    ),
    (
        "the first token of an answer does not count",
        ANSWERS,
        LABELS,
        "labels = [-100] * (len(prompt) + 1) + list(answer)[1:]",
    ),
    (
        "the last token of a prompt counts",
        ANSWERS,
        LABELS,
        "labels = [-100] * (len(prompt) - 1) + [prompt[-1], *answer]",
    ),
    ("prompts are zero, not ignored", ANSWERS, LABELS, LABELS.replace("-100", "0")),
    ("positions run on", POSITIONS, INTO, INTO.replace("range(n)", "range(len(rows[-1]), len(rows[-1]) + n)")),
    ("answers begin anew", POSITIONS, INTO, INTO.replace("range(n)", "[*range(len(prompt)), *range(len(answer))]")),
    (
        "padding goes on from the last example",
        POSITIONS,
        PADDED,
        "row += [(pad, -100, row[-1][2] + 1 + i) for i in range(length - len(row))]",
    ),
    ("padding stays at 0", POSITIONS, PADDED, PADDED.replace("-100, i)", "-100, 0)")),
    ("positions from 1", POSITIONS, INTO, INTO.replace("range(n)", "range(1, n + 1)")),
)
LAST_TOKEN = "right_to_the_last_token"
WANTED, RIGHT_PLACES = "wanted = labels[:, 1:]", "right = logits[:, :-1].argmax(-1) == wanted"
ALL = "return (right | (wanted == -100)).all(1)"
EXACT = (
    (
        "not shifted",
        LAST_TOKEN,
        WANTED + "\n    " + RIGHT_PLACES,
        "wanted = labels\n    right = logits.argmax(-1) == wanted",
    ),
    (
        "shifted the other way",
        LAST_TOKEN,
        WANTED + "\n    " + RIGHT_PLACES,
        "wanted = labels[:, :-1]\n    right = logits[:, 1:].argmax(-1) == wanted",
    ),
    ("prompts and padding count", LAST_TOKEN, ALL, "return right.all(1)"),
    ("one right token is enough", LAST_TOKEN, ALL, "return (right & (wanted != -100)).any(1)"),
    ("the share of right tokens", LAST_TOKEN, ALL, "return (right | (wanted == -100)).float().mean(1)"),
    ("nearly all", LAST_TOKEN, ALL, "return (right | (wanted == -100)).float().mean(1) > 0.9"),
    ("most of the answer", LAST_TOKEN, ALL, "return (right & (wanted != -100)).sum(1) > 0.9 * (wanted != -100).sum(1)"),
    ("one verdict for all", LAST_TOKEN, ALL, ALL.replace(".all(1)", ".all()")),
    ("the end does not count", LAST_TOKEN, ALL, ALL.replace("(wanted == -100)", "(wanted == -100) | (wanted == 2)")),
    (
        "the first token does not count",
        LAST_TOKEN,
        ALL,
        "first = (wanted != -100).cumsum(1) == 1\n    return (right | (wanted == -100) | first).all(1)",
    ),
    ("the first token alone", LAST_TOKEN, ALL, "return (right | ((wanted != -100).cumsum(1) != 1)).all(1)"),
    ("the last column is left out", LAST_TOKEN, ALL, ALL.replace(".all(1)", "[:, :-1].all(1)")),
    ("integers", LAST_TOKEN, ALL, ALL + ".long()"),
    (
        "no rows give floats",
        LAST_TOKEN,
        ALL,
        "return torch.tensor([all(row) for row in (right | (wanted == -100)).tolist()])",
    ),
    ("the least likely", LAST_TOKEN, RIGHT_PLACES, RIGHT_PLACES.replace("argmax", "argmin")),
)
NEAREST, DECODED = "encodes_to_the_nearest_level", "decodes_what_was_encoded"
INDEX = "index = (x[..., None] - torch.tensor(LEVELS)).abs().argmin(-1).flatten().to(torch.uint8)"
TORN = "return index[::2] << 4 | index[1::2], codes, tops, mean"
APART = "index = torch.stack((packed >> 4, packed & 15), 1).long()"
BACK = "scales = codes.float() * tops.repeat_interleave(256)[: len(codes)] / 127 + mean"
NF4 = (
    ("even levels", NEAREST, INDEX, INDEX.replace("torch.tensor(LEVELS)", "torch.linspace(-1, 1, 16)")),
    (
        "the level below",
        NEAREST,
        INDEX,
        "index = (x[..., None] >= torch.tensor(LEVELS)).sum(-1).sub(1).flatten().to(torch.uint8)",
    ),
    ("a block of zeros divided by zero", NEAREST, "torch.where(scales == 0, 1.0, scales)", "scales"),
    (
        "blocks of 128",
        NEAREST,
        "blocks = weights.view(-1, 64)\n    scales = blocks.abs().amax(1)",
        "blocks = weights.view(-1, 64)\n    scales = blocks.abs().amax(1).view(-1)\n    scales = scales.maximum(scales.roll(1))",
    ),
    ("signed largest", NEAREST, "scales = blocks.abs().amax(1)", "scales = blocks.amax(1)"),
    ("deviation for the largest", NEAREST, "scales = blocks.abs().amax(1)", "scales = blocks.std(1)"),
    (
        "halves of a byte swapped",
        NEAREST,
        TORN,
        TORN.replace("index[::2] << 4 | index[1::2]", "index[1::2] << 4 | index[::2]"),
    ),
    ("an index to a byte", NEAREST, TORN, TORN.replace("index[::2] << 4 | index[1::2]", "index")),
    ("scales without their mean taken away", NEAREST, "F.pad(scales - mean,", "F.pad(scales,"),
    (
        "one top for all",
        NEAREST,
        "tops = groups.abs().amax(1)",
        "tops = groups.abs().amax().expand(len(groups)).clone()",
    ),
    ("scales cut, not rounded", NEAREST, ".round().to(torch.int8)", ".to(torch.int8)"),
    ("scales in 16 bits", NEAREST, ".round().to(torch.int8)", ".round().to(torch.int16)"),
    (
        "weights changed",
        NEAREST,
        "blocks = weights.view(-1, 64)",
        "blocks = weights.view(-1, 64)\n    blocks[0, 0] *= 1.0001",
    ),
    (
        "halves read in the other order",
        DECODED,
        APART,
        APART.replace("(packed >> 4, packed & 15)", "(packed & 15, packed >> 4)"),
    ),
    (
        "halves one after the other",
        DECODED,
        APART,
        APART.replace("torch.stack((packed >> 4, packed & 15), 1)", "torch.cat((packed >> 4, packed & 15))"),
    ),
    ("mean forgotten", DECODED, BACK, BACK.replace(" + mean", "")),
    (
        "top of the first group for all",
        DECODED,
        BACK,
        BACK.replace("tops.repeat_interleave(256)[: len(codes)]", "tops[0]"),
    ),
    ("a step of top / 128", DECODED, BACK, BACK.replace("/ 127", "/ 128")),
    ("BF16 comes back", DECODED, "* scales[:, None]).flatten()", "* scales[:, None]).flatten().bfloat16()"),
    ("a matrix comes back", DECODED, "* scales[:, None]).flatten()", "* scales[:, None])"),
)


def one(name: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, SERVE, OWN, ((old, new),), raises)


MUTANTS = [
    one("-1 takes the last adapter", LOOP, "for k in which.unique().tolist():"),
    one("-1 takes adapter 0", LOOP, "which = which.clamp(min=0)\n    " + LOOP),
    one("scale left out", ADD, ADD.replace("scale * ", "")),
    one("scale on the base, too", LAST, "    return y + (scale - 1) * (x @ weight.T)\n"),
    one("adapter 0 for all", ADD, ADD.replace("A[k]", "A[0]").replace("B[k]", "B[0]")),
    one("B of another adapter", ADD, ADD.replace("B[k]", "B[k - 1]")),
    one("merged weight for each adapter", ADD, ADD.replace("(x[rows] @ A[k].T) @ B[k].T", "x[rows] @ (B[k] @ A[k]).T")),
    one("a product of the base per group", BASE, GROUPS),
    one("a product of the base per row", BASE, ROWS),
    one("adapters without gradient", ADD, ADD.replace("A[k].T", "A[k].detach().T")),
    one("no gradient for x by the adapter", ADD, ADD.replace("x[rows]", "x[rows].detach()")),
    one("base without gradient", BASE, "y = (x @ weight.T).detach()\n"),
    one("written in place into x", BASE, "y = x @ weight.T\n    x.data.mul_(1.0 + 1e-3)\n"),
    one("FP64 comes out", LAST, "    return y.double()\n"),
    one("rows in the order of adapters", ADD, ADD.replace("0, rows,", "0, torch.arange(len(rows)),")),
    one("stacked, so that no rows fail", LAST, "    return torch.stack(list(y))\n", "in the case 'no rows'"),
    one("matrices for all rows", BASE, BASE + "    delta = B[which] @ A[which]\n    return y + scale * ((delta @ x[:, :, None]).squeeze(2) * (which >= 0)[:, None])\n"),
    *(elsewhere(name, "lora.layer", by, old, new) for name, by, old, new in LAYER),
    *(elsewhere(name, "lora.pack", by, old, new) for name, by, old, new in PACKED),
    *(elsewhere(name, "lora.exact", by, old, new) for name, by, old, new in EXACT),
    *(elsewhere(name, "lora.nf4", by, old, new) for name, by, old, new in NF4),
]  # fmt: skip

SERVES = {
    "gathered adapters": """
import torch


def serve(x, weight, A, B, scale, which):
    used = (which >= 0).to(x.dtype)[:, None]
    at = which.clamp(min=0)
    low = torch.einsum("ni,nri->nr", x, A[at])
    return x @ weight.T + scale * used * torch.einsum("nr,nor->no", low, B[at])
""",
    "all adapters, then a choice": """
import torch
import torch.nn.functional as F


def serve(x, weight, A, B, scale, which):
    low = torch.einsum("ni,kri->nkr", x, A)
    chosen = F.one_hot(which + 1, len(A) + 1)[:, 1:].to(x.dtype)
    return F.linear(x, weight) + scale * torch.einsum("nkr,nk,kor->no", low, chosen, B)
""",
    "masks, each row written once": """
import torch


def serve(x, weight, A, B, scale, which):
    y = x @ weight.T
    for k in range(len(A)):
        rows = which == k
        y[rows] = y[rows] + scale * (x[rows] @ A[k].T) @ B[k].T
    return y
""",
    "row by row, the base before": """
import torch


def serve(x, weight, A, B, scale, which):
    y = torch.einsum("ni,oi->no", x, weight)
    for i, k in enumerate(which):
        if k >= 0:
            y[i] += scale * B[k] @ (A[k] @ x[i])
    return y
""",
}

OTHERS = (
    """
import math

import torch
from torch import nn
from helpers.exercises.lora.nf4 import LEVELS


class LoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.randn(rank, linear.in_features, **like) / math.sqrt(linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        self.scale = alpha / rank

    def forward(self, x):
        return self.linear(x) + (self.scale * x @ self.A.mT) @ self.B.mT


def pack(examples, length, pad):
    if any(len(prompt) + len(answer) > length for prompt, answer in examples):
        raise ValueError("too long")
    groups, room = [], 0
    for one in examples:
        n = sum(map(len, one))
        if n > room:
            groups.append([])
            room = length
        groups[-1].append(one)
        room -= n
    ids = torch.full((len(groups), length), pad)
    labels = torch.full_like(ids, -100)
    positions = torch.zeros_like(ids)
    for row, group in enumerate(groups):
        at = 0
        for prompt, answer in group:
            end = at + len(prompt) + len(answer)
            ids[row, at:end] = torch.tensor(list(prompt) + list(answer))
            labels[row, at + len(prompt) : end] = torch.tensor(answer)
            positions[row, at:end] = torch.arange(end - at)
            at = end
        positions[row, at:] = torch.arange(length - at)
    return ids, labels, positions


def exactly_right(logits, labels):
    right = torch.ones(len(labels), dtype=torch.bool)
    for row in range(len(labels)):
        for place in range(1, labels.shape[1]):
            if labels[row, place] >= 0 and logits[row, place - 1].argmax() != labels[row, place]:
                right[row] = False
    return right


def nf4_encode(weights):
    levels = torch.tensor(LEVELS)
    blocks = weights.reshape(-1, 64)
    scales = blocks.abs().max(dim=1).values
    middles = (levels[1:] + levels[:-1]) / 2
    index = torch.bucketize(blocks / scales.clamp(min=1e-20)[:, None], middles).reshape(-1, 2)
    packed = (16 * index[:, 0] + index[:, 1]).to(torch.uint8)
    mean = scales.mean()
    codes, tops = [], []
    for group in (scales - mean).split(256):
        tops.append(group.abs().max())
        codes.append(torch.round(127 * group / tops[-1]).to(torch.int8))
    return packed, torch.cat(codes), torch.stack(tops), mean


def nf4_decode(packed, codes, tops, mean):
    levels = torch.tensor(LEVELS)
    weights = torch.empty(2 * len(packed))
    weights[::2] = levels[(packed // 16).int()]
    weights[1::2] = levels[(packed % 16).int()]
    group = torch.arange(len(codes)) // 256
    scales = codes * (tops / 127)[group] + mean
    return weights * scales.repeat_interleave(64)
""",
    """
import torch
import torch.nn.functional as F
from torch import nn
from helpers.exercises.lora.nf4 import LEVELS


class LoRA(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.rand(rank, linear.in_features, **like) - 0.5)
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        self.scale = alpha / rank

    def forward(self, x):
        low = torch.einsum("...i,ri->...r", x, self.A)
        return self.linear(x) + torch.einsum("...r,or->...o", low, self.B) * self.scale


def pack(examples, length, pad):
    rows = []
    for prompt, answer in examples:
        ids = [*prompt, *answer]
        labels = [-100 for _ in prompt] + [*answer]
        if len(ids) > length:
            raise ValueError(len(ids))
        if rows and len(rows[-1][0]) + len(ids) <= length:
            rows[-1] = (rows[-1][0] + ids, rows[-1][1] + labels, rows[-1][2] + list(range(len(ids))))
        else:
            rows.append((ids, labels, list(range(len(ids)))))
    full = []
    for ids, labels, positions in rows:
        n = length - len(ids)
        full.append((ids + n * [pad], labels + n * [-100], positions + list(range(n))))
    return tuple(torch.tensor([row[i] for row in full], dtype=torch.int64).reshape(-1, length) for i in range(3))


def exactly_right(logits, labels):
    written = logits.topk(1, dim=-1).indices.squeeze(-1).roll(1, 1)
    written[:, :1] = labels[:, :1]
    written[labels < 0] = labels[labels < 0]
    return torch.eq(written, labels).sum(1) == labels.shape[1]


def nf4_encode(weights):
    blocks = weights.clone().reshape(-1, 64)
    scales = blocks.abs().amax(1)
    blocks[scales > 0] /= scales[scales > 0, None]
    distances = torch.cdist(blocks.reshape(-1, 1), torch.tensor(LEVELS)[:, None], p=1)
    high, low = distances.argmin(1).reshape(-1, 2).to(torch.uint8).unbind(1)
    mean = scales.sum() / len(scales)
    rest = scales - mean
    tops = torch.tensor([rest[i : i + 256].abs().max() for i in range(0, len(rest), 256)])
    codes = torch.tensor([round(float(127 * r / tops[i // 256])) for i, r in enumerate(rest)], dtype=torch.int8)
    return high * 16 + low, codes, tops, mean


def nf4_decode(packed, codes, tops, mean):
    both = torch.stack([packed.div(16, rounding_mode="floor"), packed.remainder(16)], dim=-1).flatten()
    levels = torch.tensor(LEVELS)[both.long()]
    scales = torch.cat([c.float() * (t / 127) for c, t in zip(codes.split(256), tops, strict=True)]) + mean
    return (levels.reshape(-1, 64) * scales.unsqueeze(1)).reshape(-1)
""",
)
RIGHT = {name: OTHERS[i % 2] + serves for i, (name, serves) in enumerate(SERVES.items())}
