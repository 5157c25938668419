"""Checks of an autocast written by hand: which operations it casts for, which arguments, and that gradients come back.

Operations are probed by the dtypes and the values of their results. No probe looks at how the casts are made.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base import Check, Evidence

Mode = Callable[[torch.dtype], Any]
HALVES = (torch.bfloat16, torch.float16)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _unless_refused(operation: Callable[[], Tensor]) -> Tensor | None:
    """Return the result of `operation`; None if PyTorch does not accept the dtypes of its inputs."""
    try:
        return operation()
    except NotImplementedError:  # a RuntimeError, too: the answer has not been attempted
        raise
    except RuntimeError:
        return None


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _wrong_dtype(seen: Evidence, expected: Evidence, why: str) -> str | None:
    for case, wanted in expected["dtypes"].items():
        if seen["dtypes"][case] != wanted:
            return f"{case}: comes out in {seen['dtypes'][case]}, and should in {wanted}. {why}"
    return None


def _returns_nothing(autocast: Mode) -> bool:
    """Whether a function returns None in the region, one that is in PRODUCTS or one that is in neither list."""
    x = torch.ones(4, 4)
    for operation in (lambda: torch.relu(x), lambda: F.linear(x, x)):
        try:
            with autocast(torch.bfloat16):
                if operation() is None:
                    return True
        except NotImplementedError:
            raise
        except RuntimeError:  # refused: it has been called
            pass
    return False


class ProductsAreNarrow(Check):
    """Operations in PRODUCTS come out in the 16-bit dtype, whatever goes in and however it is handed in."""

    hint = (
        "`func` is the operation itself: is it in `PRODUCTS`?\n"
        "Cast the tensors in `args` and those in `kwargs`, then call `func` with the new ones.\n"
        "The dtype to cast to is `self.dtype`; the same mode must work for FP16."
    )

    @staticmethod
    def probe(seed: int, autocast: Mode) -> Evidence:
        if _returns_nothing(autocast):
            return {"silent": True}
        x = torch.randn(2, 1, 8, 8, generator=_generator(seed))
        w = torch.randn(3, 1, 3, 3, generator=_generator(seed + 1))
        square = x[0, 0]
        dtypes = {}
        for half in HALVES:
            with autocast(half):
                operations = {
                    "linear": lambda: F.linear(x, square, square[0]),
                    "linear with keywords": lambda: F.linear(x, weight=square, bias=square[0]),
                    "linear of a 16-bit input": lambda half=half: F.linear(x.to(half), square),
                    "convolution": lambda: F.conv2d(x, w, padding=1),
                    "matrix product": lambda: square @ square,
                    "attention": lambda: F.scaled_dot_product_attention(x, x, x),
                }
                results = {case: _unless_refused(operation) for case, operation in operations.items()}
            for case, result in results.items():
                dtypes[f"{case}, mode for {_name(half)}"] = "refused" if result is None else _name(result.dtype)
        return {"dtypes": dtypes, "silent": False}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["silent"]:
            return "Your `__torch_function__` returns nothing: return what `func` returns."
        wrong = [case for case, dtype in expected["dtypes"].items() if seen["dtypes"][case] != dtype]
        if len(wrong) == len(HALVES) and all("keywords" in case for case in wrong):
            return "F.linear(x, weight=w, bias=b) does not work: tensors in `kwargs` have to be cast, too."
        if any(seen["dtypes"][case] == "refused" for case in wrong):
            return f"{wrong[0]}: PyTorch refuses two dtypes. Cast every floating-point tensor of a product."
        if wrong and all(case.endswith("float16") and not case.endswith("bfloat16") for case in wrong):
            return "All is right for BF16 and wrong for FP16: cast to `self.dtype`."
        return _wrong_dtype(seen, expected, "It is in PRODUCTS.")


class LossesAreInFp32(Check):
    """Operations in LOSSES compute in FP32, even of 16-bit inputs."""

    hint = "For these the target is `torch.float32`. Cast before the operation: after it, the digits are lost."

    @staticmethod
    def probe(seed: int, autocast: Mode) -> Evidence:
        logits = 4 * torch.randn(64, 500, generator=_generator(seed))
        target = torch.randint(500, (64,), generator=_generator(seed))
        dtypes, values = {}, {}
        for half in HALVES:
            narrow = logits.to(half)
            with autocast(half):
                losses = {
                    "cross entropy": F.cross_entropy(narrow, target),
                    "squared error": F.mse_loss(narrow, target=narrow.roll(1)),
                }
            dtypes |= {f"{case} of {_name(half)}": _name(loss.dtype) for case, loss in losses.items()}
            values |= {f"{case} of {_name(half)}": loss.item() for case, loss in losses.items()}
        return {"dtypes": dtypes, "values": values}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, wanted in expected["values"].items():
            if seen["dtypes"][case] == "float32" and not abs(seen["values"][case] - wanted) <= 1e-5 * abs(wanted):
                return (
                    f"{case}: the result is FP32 and was computed in 16 bits: {seen['values'][case]:.6g}, not "
                    f"{wanted:.6g}. Cast what goes in, not what comes out."
                )
        return _wrong_dtype(seen, expected, "It is in LOSSES.")


class OthersFollow(Check):
    """All other operations run as if the mode were not there."""

    hint = "For an operation that is in neither list: `return func(*args, **kwargs)`, and nothing else."

    @staticmethod
    def probe(seed: int, autocast: Mode) -> Evidence:
        x = torch.randn(4, 8, generator=_generator(seed))
        half = torch.bfloat16
        with autocast(half):
            results = {
                "relu of FP32": torch.relu(x),
                "relu of BF16": torch.relu(x.to(half)),
                "layer norm of FP32": F.layer_norm(x, (8,)),
                "layer norm of BF16": F.layer_norm(x.to(half), (8,)),
                "BF16 + FP32": x.to(half) + x,
                "softmax of BF16": torch.softmax(x.to(half), dim=-1),
                "embedding of FP32": F.embedding(torch.tensor([1, 2]), x),
            }
        return {"dtypes": {case: _name(result.dtype) for case, result in results.items()}}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_dtype(seen, expected, "It is in neither list.")


class CastsOnlyFloatingPoint(Check):
    """Integers, masks and arguments that are no tensors reach the operation as they are."""

    hint = "`isinstance(value, torch.Tensor) and value.is_floating_point()`: a class index or a mask is not to be cast."

    @staticmethod
    def probe(seed: int, autocast: Mode) -> Evidence:
        x = torch.randn(1, 2, 6, 4, generator=_generator(seed))
        mask = torch.rand(6, 6, generator=_generator(seed)) < 0.5
        mask |= torch.eye(6, dtype=torch.bool)  # at least one key each
        logits = torch.randn(5, 300, generator=_generator(seed))
        classes = torch.tensor([299, 258, 257, 1, 0])
        with autocast(torch.bfloat16):
            masked = F.scaled_dot_product_attention(x, x, x, attn_mask=mask, scale=0.3)
            loss = _unless_refused(lambda: F.cross_entropy(logits, classes, label_smoothing=0.1))
        return {"masked": masked.float().flatten().tolist(), "loss": None if loss is None else loss.item()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["loss"] is None:
            return "Cross entropy refuses its class indices: were these integers cast?"
        if not abs(seen["loss"] - expected["loss"]) <= 1e-4:
            return (
                f"A cross entropy with `label_smoothing=0.1` is {seen['loss']:.4f}, not {expected['loss']:.4f}: do all "
                "keywords arrive?"
            )
        yours, wanted = torch.tensor(seen["masked"]), torch.tensor(expected["masked"])
        if not (yours - wanted).norm() <= 0.02 * wanted.norm():
            return "Attention with a mask of True and False gives other numbers: was the mask cast?"
        return None


class GradientsComeBack(Check):
    """Weights stay FP32 as they were, and get FP32 gradients: a cast is an operation like others for autograd."""

    hint = "`value.to(dtype)` is recorded by autograd. `.data`, `.detach()` and `no_grad` cut the way back."

    @staticmethod
    def probe(seed: int, autocast: Mode) -> Evidence:
        weight = torch.randn(6, 8, generator=_generator(seed)).requires_grad_()
        before = weight.detach().clone()
        x = torch.randn(5, 8, generator=_generator(seed + 1)).requires_grad_()
        with autocast(torch.bfloat16):
            loss = F.mse_loss(F.linear(x, weight), torch.ones(5, 6))
        if loss.requires_grad:
            loss.backward()

        def gradient(tensor: Tensor) -> list[float] | None:
            return None if tensor.grad is None else tensor.grad.float().flatten().tolist()

        return {
            "weight": gradient(weight),
            "input": gradient(x),
            "dtype": _name(weight.dtype),
            "changed": not torch.equal(before, weight.detach().float()),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["dtype"] != "float32" or seen["changed"]:
            return "The weight itself has been cast or changed. Cast a copy: `weight.to(dtype)` makes one."
        for name in ("weight", "input"):
            if seen[name] is None:
                return f"No gradient reaches the {name}: something on the way is not recorded by autograd."
            yours, wanted = torch.tensor(seen[name]), torch.tensor(expected[name])
            if not (yours - wanted).norm() <= 0.02 * wanted.norm():
                return f"The gradient of the {name} is off by {(yours - wanted).norm() / wanted.norm():.0%}."
        return None


AUTOCAST = (ProductsAreNarrow, LossesAreInFp32, OthersFollow, CastsOnlyFloatingPoint, GradientsComeBack)
