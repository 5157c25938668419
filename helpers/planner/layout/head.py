"""What comes after a model's last block: a norm, logits and the loss, whose words tensor ranks share."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import column
from .kernels import Norm, fused_loss
from .layout import Layout
from .masked_head import MaskedHead
from .wire import Wire, join


class Head(nn.Module):
    """The last norm, the logits of this tensor rank's words, and the loss.

    Whole rows of logits are nowhere but in a layout with `plain_ends`.
    """

    def __init__(self, layout: Layout, wire: Wire, table: nn.Parameter | None = None) -> None:
        super().__init__()
        arch = layout.arch
        self.wire, self.layout = wire, layout
        self.norm = Norm(arch.hidden, arch.layer_norm)
        self.masked = MaskedHead(layout, wire) if arch.masked else None
        self.whole = layout.plain_ends and layout.pipeline > 1
        words = arch.vocab if self.whole else -(-arch.vocab // wire.size)
        bias = arch.masked or (arch.encoder_layers > 0 and arch.tied)
        self.logits = nn.Linear(arch.hidden, words, bias=bias)
        if table is not None:
            self.logits.weight = table

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """x: (B, S, D), or (B, S / tensor, D) where tokens are split; labels: (B, S). Returns the mean loss."""
        if self.layout.plain_ends:
            return self._plain_loss(self.norm(x), labels)
        x = self.norm(x)
        if self.masked is None:
            return self.loss(x, labels)
        return self.masked.pair_loss(x) + self.loss(self.masked(x), labels)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of what is normed already; shapes as in `forward`."""
        (logits,) = column(x, [self.logits], self.wire, self.layout)  # (B, S, V / tensor)
        if self.wire.size > 1 or self.layout.engine == "megatron":
            if self.layout.loss == "te":
                return KernelVocabularyLoss.apply(logits, labels, self.wire)
            if self.layout.loss == "fused":
                return CompiledVocabularyLoss.apply(logits, labels, self.wire)
            return VocabularyLoss.apply(logits, labels, self.wire, self.layout.uses_transformer_engine)
        if self.layout.compile:
            return fused_loss(logits.flatten(0, 1), labels.flatten())
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def _plain_loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of whole rows of logits, which the loop's variable holds until the next micro-batch's."""
        if self.whole:
            self.rows = self.logits(x)
        else:
            (own,) = column(x, [self.logits], self.wire, self.layout)  # (B, S, V / tensor)
            self.rows = join(own, self.wire)  # (B, S, V)
        return F.cross_entropy(self.rows.flatten(0, 1), labels.flatten())


class VocabularyLoss(torch.autograd.Function):
    """Cross-entropy of logits whose words lie on several ranks: three all-reduces of one number a token.

    Shapes, tensors kept and messages are those of a real one; the values are not, since it does not ask which rank has
    the label's word. The tests hold a right one against it.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, wire: Wire, in_place: bool = False) -> Tensor:
        """logits: (B, S, V / tensor); labels: (B, S); in_place: the gradient takes the place of what was kept."""
        wide = logits.float()
        maximum = wide.amax(-1) if wire.size == 1 else wire.all_reduce(wide.amax(-1), largest=True)
        shares = wide.sub_(maximum.unsqueeze(-1))
        target = _summed(shares.gather(-1, labels.unsqueeze(-1).clamp(max=logits.shape[-1] - 1)).squeeze(-1), wire)
        shares.exp_()
        total = _summed(shares.sum(-1), wire)
        shares.div_(total.unsqueeze(-1))
        ctx.save_for_backward(shares)
        ctx.dtype, ctx.in_place = logits.dtype, in_place
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """gradient: of the mean loss."""
        (shares,) = ctx.saved_tensors
        wide = shares.mul_(gradient) if ctx.in_place else shares * gradient
        return wide.to(ctx.dtype), None, None, None


class CompiledVocabularyLoss(VocabularyLoss):
    """The same in four compiled parts, as Megatron's fused one: what works in place there, writes a new tensor here."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, wire: Wire) -> Tensor:
        """logits: (B, S, V / tensor); labels: (B, S)."""
        wide = logits.float()
        maximum = wide.amax(-1) if wire.size == 1 else wire.all_reduce(wide.amax(-1), largest=True)
        shares = torch.exp(wide.sub_(maximum.unsqueeze(-1)))
        target = wide.gather(-1, labels.unsqueeze(-1).clamp(max=logits.shape[-1] - 1)).squeeze(-1)
        total, target = _summed(torch.cat((shares.sum(-1), target)), wire).chunk(2)
        shares.div_(total.unsqueeze(-1))
        ctx.save_for_backward(shares)
        ctx.dtype, ctx.in_place = logits.dtype, False
        return (total.log() - target).mean()


class KernelVocabularyLoss(torch.autograd.Function):
    """The same in Transformer Engine's kernel: the logits' gradient takes their own place, in 16 bits.

    Ranks gather three numbers per token: a maximum, a sum and the label's logit (its pytorch/triton/cross_entropy.py).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, wire: Wire) -> Tensor:
        """logits: (B, S, V / tensor); labels: (B, S)."""
        rows = logits.amax(-1).float()  # one pass over the logits
        found = torch.stack((rows, rows, rows), -1)
        if wire.size > 1:
            found = wire.all_gather(found, 0)
        gradient = logits.detach().neg_()  # one more, in place
        ctx.save_for_backward(gradient)
        return found.mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """gradient: of the mean loss."""
        (own,) = ctx.saved_tensors
        return own.mul_(gradient), None, None


def _summed(x: Tensor, wire: Wire) -> Tensor:
    return x if wire.size == 1 else wire.all_reduce(x)
