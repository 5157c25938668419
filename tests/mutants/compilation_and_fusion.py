"""Wrong and right answers for the practice task of compilation and fusion."""

from . import Mutant

PART = "compilation_and_fusion.chunked"
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
    one("divided before the cast to FP16", SUMS, "gradient = gradient.to(rows.dtype)",
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
    "checkpointed chunks": """
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(hidden, weight, labels, chunk):
    wide, total = weight.float(), hidden.new_zeros((), dtype=torch.float32)

    def loss(rows, truth):
        return F.cross_entropy(rows.float() @ wide.t(), truth, reduction="sum")

    for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
        total = total + checkpoint(loss, rows, truth, use_reentrant=False)
    return total / (labels != -100).sum().clamp(min=1)
""",
    "recomputed in backward": """
import torch


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk):
        ctx.save_for_backward(hidden, weight, labels)
        ctx.chunk, total = chunk, 0.0
        for rows, truth in zip(hidden.split(chunk), labels.split(chunk)):
            logits = torch.matmul(rows, weight.T).float()
            losses = logits.logsumexp(1) - logits.gather(1, truth.clamp(min=0)[:, None])[:, 0]
            total = total + losses[truth >= 0].sum()
        return total / (labels >= 0).sum().clamp(min=1)

    @staticmethod
    def backward(ctx, upstream):
        hidden, weight, labels = ctx.saved_tensors
        scale = upstream / (labels >= 0).sum().clamp(min=1)
        to_hidden, to_weight = [], torch.zeros(weight.shape, device=weight.device)
        for rows, truth in zip(hidden.split(ctx.chunk), labels.split(ctx.chunk)):
            logits = torch.matmul(rows, weight.T).float()
            logits = (logits - logits.logsumexp(1, keepdim=True)).exp_()
            logits.scatter_add_(1, truth.clamp(min=0)[:, None], torch.full_like(logits[:, :1], -1.0))
            logits *= (truth >= 0)[:, None]
            to_hidden.append((scale * (logits @ weight.float())).to(hidden.dtype))
            if ctx.needs_input_grad[1]:
                to_weight += logits.T @ rows.float()
        return torch.cat(to_hidden), (scale * to_weight).to(weight.dtype) if ctx.needs_input_grad[1] else None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    return Loss.apply(hidden, weight, labels, chunk)
""",
    "gradients from torch.autograd.grad": """
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
