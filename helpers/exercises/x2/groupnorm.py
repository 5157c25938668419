"""Check of part 5: normalization that does not depend on the micro-batch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.models import SmallCNN
from ..base import Check, Evidence

FIELDS = ("name", "type", "groups", "channels", "eps", "dtype", "training", "trainable", "weight", "bias")


class _Nested(nn.Module):
    """A model that keeps a BatchNorm2d in every kind of place, some in evaluation mode, and norms of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(4)
        self.stages = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)), nn.BatchNorm2d(6)]
        )
        self.named = nn.ModuleDict({"last": nn.BatchNorm2d(6, eps=0.01)})
        self.rows = nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(6))
        self.stages.eval()
        self.stages[0][0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for stage in self.stages:
            x = stage(x)
        return self.rows(self.named["last"](x).mean((2, 3)))


def _shake(model: nn.Module) -> None:
    """Give scales, shifts and running statistics values that tell them apart."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -1, 1)
            nn.init.uniform_(module.running_mean, 1, 2)
            nn.init.uniform_(module.running_var, 2, 3)


def _described(name: str, norm: nn.GroupNorm) -> list[Any]:
    kind = [name, type(norm).__name__, norm.num_groups, norm.num_channels, norm.eps]
    if norm.weight is None or norm.bias is None:
        return [*kind, "no scale and shift", norm.training, False, [], []]
    trainable = norm.weight.requires_grad and norm.bias.requires_grad
    return [*kind, str(norm.weight.dtype), norm.training, trainable, norm.weight.tolist(), norm.bias.tolist()]


def _others(model: nn.Module) -> dict[str, list[Any]]:
    """Return, by name, what stands in `model` beside BatchNorm2d and what takes its place."""
    return {
        name: [
            module,
            [module.training, *(p.requires_grad for p in module.parameters(recurse=False))],
            [t.detach().clone() for t in (*module.parameters(recurse=False), *module.buffers(recurse=False))],
        ]
        for name, module in model.named_modules()
        if not isinstance(module, nn.BatchNorm2d)
    }


def _changed(before: dict[str, list[Any]], after: dict[str, list[Any]]) -> dict[str, str]:
    """Return the kinds of what is no longer what it was, by name."""
    changed = {}
    for name, (module, settings, values) in before.items():
        same = name in after and after[name][0] is module and after[name][1] == settings
        if not same or not all(torch.equal(a, b) for a, b in zip(values, after[name][2], strict=True)):
            changed[name] = type(module).__name__
    return changed


def _replaced(with_group_norm: Any, model: nn.Module, groups: int) -> Evidence:
    _shake(model)
    before = _others(model)
    new = with_group_norm(model, groups)
    if not isinstance(new, nn.Module):
        return {"kind": type(new).__name__}
    return {
        "same": new is model,
        "left": sum(isinstance(m, nn.BatchNorm2d) for m in new.modules()),
        "kind": "model",
        "norms": [_described(name, m) for name, m in new.named_modules() if isinstance(m, nn.GroupNorm)],
        "changed": _changed(before, _others(new)),
    }


def _elsewhere(with_group_norm: Any) -> list[str]:
    """Return the devices of the norms in a model that is not on the CPU; none when an error came instead."""
    model = SmallCNN(8).to("meta")
    try:
        with_group_norm(model, 2)
    except (NotImplementedError, RuntimeError):  # of PyTorch: such a weight has no values to be copied to the CPU
        return []
    return sorted({m.weight.device.type for m in model.modules() if isinstance(m, nn.GroupNorm)})


def _split(with_group_norm: Any) -> Evidence:
    """Return how much the outputs and gradients of 24 rows change when they come as three micro-batches."""
    model = SmallCNN(8)
    _shake(model)
    with_group_norm(model, 4)
    model.double().requires_grad_().train()
    x = torch.randn(24, 1, 8, 8, dtype=torch.float64)
    y = torch.randint(10, (24,))
    whole, parts = model(x), torch.cat([model(part) for part in x.split(8)])
    gradient = torch.autograd.grad(F.cross_entropy(whole, y), list(model.parameters()))
    pieces = torch.autograd.grad(F.cross_entropy(parts, y), list(model.parameters()))
    flat, other = (torch.cat([g.flatten() for g in gs]) for gs in (gradient, pieces))
    return {
        "outputs": (whole - parts).abs().max().item(),
        "gradients": ((flat - other).norm() / flat.norm()).item(),
        "length": whole.norm().item(),
    }


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def _wrong_norm(got: list[Any], want: list[Any]) -> str | None:
    for field, a, b in zip(FIELDS, got, want, strict=True):
        if field in ("weight", "bias") and a != b:
            what = "scale (weight)" if field == "weight" else "shift (bias)"
            return f"the {what} of norm {{number}} is not that of the BatchNorm2d that stood there."
        if field == "name" and a != b:
            return f"norm {{number}} is at {a}; the BatchNorm2d was at {b}."
        same = a == b
        if not same and field == "training":
            return (
                f"norm {{number}} is in {_mode(a)} mode, and the BatchNorm2d that stood there was in {_mode(b)} mode."
            )
        if not same:
            return f"{field} of norm {{number}} is {a}; it should be {b}."
    return None


def _wrongly_replaced(got: Evidence, want: Evidence) -> str | None:
    if got["kind"] != "model":
        return f"a {got['kind']} came back; replace the norms in place and return the model."
    if not got["same"]:
        return "another model came back; replace the norms in place and return the same object."
    if got["left"]:
        return f"{got['left']} BatchNorm2d are left."
    if got["changed"]:
        kinds = ", ".join(sorted(set(got["changed"].values())))
        return f"something else has changed, of the kind {kinds}: replace nn.BatchNorm2d alone."
    if len(got["norms"]) != len(want["norms"]):
        return f"{len(got['norms'])} GroupNorms stand where {len(want['norms'])} BatchNorms stood."
    for number, (a, b) in enumerate(zip(got["norms"], want["norms"], strict=True), 1):
        wrong = _wrong_norm(a, b)
        if wrong:
            return wrong.format(number=number)
    return None


class EveryBatchNormIsReplaced(Check):
    """Each BatchNorm2d, and nothing else, becomes a GroupNorm with its scale, shift, eps, dtype, device and mode."""

    points = 1
    hint = "named_children() of every module, and setattr for those of type nn.BatchNorm2d; copy weight, bias and mode."

    @staticmethod
    def probe(seed: int, with_group_norm: Any) -> Evidence:
        torch.manual_seed(seed)
        models = {
            "nested": (_Nested(), 2),
            "CNN in FP64": (SmallCNN(8).double(), 8),
            "CNN in evaluation mode": (SmallCNN(8).eval(), 4),
        }
        return {
            "replaced": {name: _replaced(with_group_norm, *model) for name, model in models.items()},
            "devices": _elsewhere(with_group_norm),
            "split": _split(with_group_norm),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected["replaced"].items():
            wrong = _wrongly_replaced(seen["replaced"][name], want)
            if wrong:
                return f"{name}: {wrong}"
        if seen["devices"] != expected["devices"]:
            return (
                "A model on another device than the CPU (here PyTorch's `meta`): not all new norms are there. "
                "Make each where the weight of the old one is."
            )
        for what in ("outputs", "gradients"):
            if not seen["split"][what] <= 1e-9:
                return f"Split 24 rows into three micro-batches: {what} differ by {seen['split'][what]:.3g}."
        length = expected["split"]["length"]
        if not abs(seen["split"]["length"] - length) <= 1e-6 * length:
            return "The outputs are not those of GroupNorm with the same scale and shift."
        return None


GROUPNORM = (EveryBatchNormIsReplaced,)
