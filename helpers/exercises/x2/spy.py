"""A spy on an answer that trains a model, the rows it trains on, and how its updates are compared."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Evidence
from ..gradient_accumulation.watched import EXACT, gradient_of, length_in_words
from ..probing.distance import relative_distance

FEATURES, HIDDEN, CLASSES = 12, 16, 5  # of the small classifier
FP32 = 1e-4  # relative; room for the rounding of a model in FP32
OLD_GRADIENTS = (
    "Gradients of an earlier update are still there: yours are added to them. "
    "Clear them with optimizer.zero_grad() before the first backward()."
)
CLIPPED = (
    "With a loss a hundred times as large the update is wrong. Nothing is clipped here: leave the gradient as it is."
)
OWN_STATE = (
    "One step is right, but two steps by SGD with momentum end up elsewhere. The optimizer keeps its state between "
    "steps: let it take the step itself, and leave its state alone."
)
ANOTHER_LOSS = (
    "With another loss_fn (cross-entropy with smoothed labels) the update is wrong, but with F.cross_entropy it "
    "is right. Is the loss computed by the loss_fn that you are given?"
)
GROUPS = (
    "With the model's parameters in two groups of the optimizer the update is wrong; in a single group it is right. Go "
    "through all of them, for example by model.parameters()."
)
DIVIDED_RATE = (
    "With weight decay in the optimizer the update is wrong; without it, it is right. Divide losses or gradients, not "
    "the learning rate: that also shrinks the rest of the update."
)

Loss = Callable[[Tensor, Tensor], Tensor]


class Spy:
    """Notes what each forward call of a model is fed, and what each step of its optimizer works with.

    Attributes:
        rows: the number of rows of each call.
        first: a number of the first row of each call: which rows came when.
        gradients: all gradients, as one list for each step.
        rates: the learning rate of each step.
        events: a letter for each forward call (f) and each update (u), in order; others may add theirs.
        trained: whether all of the model was in training mode in each call.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.rows: list[int] = []
        self.first: list[float] = []
        self.gradients: list[list[float]] = []
        self.rates: list[float] = []
        self.events: list[str] = []
        self.trained = True
        self._model = model
        model.register_forward_pre_hook(self._called)
        optimizer.register_step_post_hook(self._stepped)  # a closure may compute the gradients in the step itself

    def _called(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.rows.append(len(args[0]))
        self.first.append(float(args[0].flatten()[0]))
        self.events.append("f")
        self.trained &= _training(self._model)

    @property
    def modes(self) -> list[bool]:
        """Whether the model was in training mode in each call, and whether it is now."""
        return [self.trained, _training(self._model)]

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.gradients.append(gradient_of(self._model))
        self.events.append("u")
        self.rates.append(optimizer.param_groups[0]["lr"])


def _training(model: nn.Module) -> bool:
    return all(module.training for module in model.modules())


def weights(model: nn.Module) -> list[float]:
    """Return all weights of `model` as one list."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).cpu().tolist()


def update_since(before: list[float], model: nn.Module) -> list[float]:
    """Return by how much the weights of `model` have moved since they were `before`."""
    return [after - was for was, after in zip(before, weights(model), strict=True)]


def rows_of_classes(n: int) -> tuple[Tensor, Tensor]:
    """Return `n` rows whose losses differ a great deal, so that weighting them wrongly shows."""
    x = torch.randn(n, FEATURES, dtype=torch.float64) * torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
    return x, torch.randint(CLASSES, (n,))


def smoothed(outputs: Tensor, y: Tensor) -> Tensor:
    """Return a mean loss that is not F.cross_entropy's."""
    return F.cross_entropy(outputs, y, label_smoothing=0.3)


def steep(outputs: Tensor, y: Tensor) -> Tensor:
    """Return a mean loss whose gradient is far longer than those that are usually clipped."""
    return 100 * F.cross_entropy(outputs, y)


def opposed(outputs: Tensor, y: Tensor) -> Tensor:
    """Return a mean loss with a large part that cancels over 8 rows and the same rows twice, up to the last digits."""
    large = 1e6 if len(y) == 8 else -1e6
    return F.cross_entropy(outputs, y) + large / len(y) * outputs.square().mean()


def leave_gradients(model: nn.Module) -> None:
    """Leave gradients behind, as an earlier step would."""
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)


def compared(seen: list[float], right: list[float], whose: str = "the whole batch's") -> str:
    """Say how a vector that is not the right one differs from it: in length alone, or in direction."""
    a, b = torch.tensor(seen), torch.tensor(right)
    if not a.isfinite().all():
        return "has entries that are NaN or infinity"
    length, cosine = (a.norm() / b.norm()).item(), F.cosine_similarity(a, b, dim=0).item()
    if cosine > 0.9999 and abs(length - 1) < 5e-4:  # as long, to the digits that are shown
        return f"differs by {relative_distance(seen, right):.1e} of its length from {whose}"
    if cosine > 0.9999:
        return f"has the right direction and is {length:.4g} times as long as {whose}"
    return f"differs from {whose}: cosine {cosine:.4f}, {length_in_words(length)}"


def wrong_rows(seen: Evidence, expected: Evidence) -> str | None:
    """Say how the rows that a spy saw differ from those that the model should see, and in their order."""
    if seen["rows"] != expected["rows"]:
        first, more = ", ".join(map(str, seen["rows"][:9])), ", ..." if len(seen["rows"]) > 9 else ""
        return f"the model was called with [{first}{more}] rows; it should see {expected['rows']}."
    if seen["first"] != expected["first"]:
        return "the model sees the rows in a different order from the one they come in."
    return None


def wrong_mode(modes: list[bool]) -> str | None:
    """Say that the model was not in training mode: in a call, or afterwards."""
    if all(modes):
        return None
    when = "when it was called" if not modes[0] else "after the step"
    return f"the model, or a part of it, was in evaluation mode {when}: a training step must leave it in training mode."


def wrong_update(seen: list[float], right: list[float], tolerance: float = EXACT) -> str | None:
    """Say how an update differs from the whole batch's; None when it does not."""
    if relative_distance(seen, right) <= tolerance:
        return None
    if not any(right):
        return "The weights moved, although a gradient held inf or NaN: go through the scaler's step, which then skips."
    return f"The update {compared(seen, right)}. Look at what the gradient is divided by, and at what goes into it."
