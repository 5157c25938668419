"""What a recipe minimizes: the loss of one micro-batch, and the models beside the one that is trained.

Preferences and rewards are computed as TRL does: log-probabilities row by row, of the policy first. The reference is a
copy of the model that is not trained; with adapters it is the model itself, without them.
"""

import contextlib
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog.models import ModelSpec
from ..config import RecipeError, TrainingConfig

CHUNKS = 8  # of the tokens, as torchtune's `CEWithChunkedOutputLoss` cuts them
BETA = 0.1  # of preferences; it does not change memory
IGNORED = -100  # label of a token without a target


class Objective:
    """The loss of a recipe.

    Args:
        recipe: says which.
        spec: the model that the recipe names.
        model: built on the meta device; its head changes where not all logits are written.

    Attributes:
        others: models that need memory beside `model`: the reference.

    Raises:
        RecipeError: the model has no logits of tokens, or no head that a loss could be fused with.
    """

    def __init__(self, recipe: TrainingConfig, spec: ModelSpec, model: nn.Module) -> None:
        self.recipe, self.spec, self.others = recipe, spec, []
        if (recipe.method, recipe.loss) == ("sft", "full"):
            return
        if spec.kind not in ("CausalLM", "ImageTextToText") or spec.config is None:
            needs = f"{recipe.method} with {recipe.loss} loss needs one"
            raise RecipeError(f"{recipe.model} is not a causal language model; {needs}.")
        if recipe.loss != "full":
            _let_the_loss_project(model, recipe.loss)
        if recipe.method != "sft" and recipe.reference and not recipe.lora_rank:
            self.others = [spec.build(recipe, recipe.weight_dtype).requires_grad_(False).eval()]

    def loss(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Return the mean loss of one micro-batch, a scalar."""
        if self.recipe.method != "sft":
            return self._compared(model, inputs)
        if self.spec.config is not None:
            result = model(**inputs)
            if not hasattr(result, "loss"):
                raise RecipeError(
                    f"{self.recipe.model}: a {type(model).__name__} computes no loss: name another class."
                )
            return result.loss
        x, labels = inputs.values()
        return F.cross_entropy(model(x).float().flatten(0, -2), labels.flatten())

    def _compared(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        """Return the loss of pairs (the first half is preferred) or of answers with a reward."""
        now = _of_model(model, inputs)
        before = self._of_reference(model, inputs) if self.recipe.reference else None
        if self.recipe.method == "dpo":
            gains = (now if before is None else now - before).sum(-1)
            preferred, other = gains.chunk(2)
            return -F.logsigmoid(BETA * (preferred - other)).mean()
        advantages = torch.ones(now.shape[0], 1, dtype=now.dtype, device=now.device)
        loss = -(now - now.detach()).exp() * advantages
        if before is not None:
            loss = loss + BETA * ((before - now).exp() - (before - now) - 1)
        return loss.mean()

    @torch.no_grad()
    def _of_reference(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        if self.others:
            return _of_model(self.others[0], inputs)
        with model.disable_adapter() if hasattr(model, "disable_adapter") else contextlib.nullcontext():
            return _of_model(model, inputs)


def _of_model(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the log-probability of each token after the first, (B, S - 1)."""
    rest = {name: value for name, value in inputs.items() if name != "labels"}
    return log_probabilities(model(**rest).logits[:, :-1], inputs["input_ids"][:, 1:])


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities of `targets`, (B, S), as TRL's `selective_log_softmax` does: row by row.

    logits: (B, S, V).
    """
    if logits.dtype == torch.float32:
        return _Chosen.apply(logits, targets)
    rows = [F.log_softmax(row, -1).gather(-1, ids[:, None])[:, 0] for row, ids in zip(logits, targets, strict=True)]
    return torch.stack(rows)


class _Chosen(torch.autograd.Function):
    """A chosen logit less the logarithm of the sum of all: two gradients, of which autograd adds one to the other.

    With fake tensors it would make a third of them.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        sums = torch.stack([torch.logsumexp(row, -1) for row in logits])
        ctx.save_for_backward(logits, targets, sums)
        return logits.gather(-1, targets[..., None])[..., 0] - sums

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets, sums = ctx.saved_tensors
        of_chosen = torch.zeros_like(logits).scatter_(-1, targets[..., None], gradient[..., None])
        pairs = zip(logits, sums, gradient, strict=True)
        of_sums = torch.stack([(row - total[:, None]).exp() * -g[:, None] for row, total, g in pairs])
        return of_chosen.add_(of_sums), None


# -- losses that do not hold all logits


def _let_the_loss_project(model: nn.Module, which: str) -> None:
    """Let the head of `model` hand its input on, and the loss make the logits."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = causal.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise RecipeError("A chunked or fused loss needs a head that is one linear layer, without adapters.")
    project = head.forward
    head.forward = lambda hidden: hidden

    def loss(logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Tensor:  # some models pass the vocabulary's size
        targets = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].reshape(-1)
        hidden = logits.flatten(0, 1)
        if which == "fused":
            return FusedLoss.apply(hidden, head.weight, targets)
        logits = [project(chunk) for chunk in hidden.chunk(CHUNKS)]
        pairs = zip(logits, targets.chunk(CHUNKS), strict=True)
        sums = [F.cross_entropy(chunk.float(), ids, ignore_index=IGNORED, reduction="sum") for chunk, ids in pairs]
        return torch.stack(sums).sum() / targets.numel()

    causal.loss_function = loss


class FusedLoss(torch.autograd.Function):
    """Liger's fused linear cross-entropy: logits of a chunk of tokens at a time, and both gradients at once.

    Shape: hidden (N, D), weight (V, D), targets (N,); the chunk has about N * D / V tokens.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss; the gradients are already made."""
        tokens = -(-hidden.shape[0] // -(-weight.shape[0] // weight.shape[1]))
        of_hidden = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(hidden.shape[0], device=hidden.device)
        size = 2 ** math.ceil(math.log2(tokens))
        for chunk, gradient, part in zip(hidden.split(size), of_hidden.split(size), losses.split(size), strict=True):
            logits = chunk @ weight.t()
            part.copy_(logits[:, 0])
            logits.mul_(1)  # the kernel writes the gradient over the logits
            gradient.copy_(logits @ weight)
            if of_weight is not None:
                of_weight += torch.mm(logits.t(), chunk.to(logits.dtype)).float()
        ctx.save_for_backward(of_hidden, of_weight)
        return losses.sum() / hidden.shape[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Scale the gradients in place."""
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden.mul_(gradient), None if of_weight is None else of_weight.mul_(gradient), None
