"""Checks of balancing: the loss that punishes an uneven router, the bias that steers it, and the capacity."""

from typing import Any

import torch

from ..base import Check, Evidence
from ..tensor_parallel.said import noted, wrong_tensor
from .inputs import leaf

EXPERTS = 5


def _choices(seed: int, tokens: int, k: int, favor: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, EXPERTS, generator=generator, dtype=torch.float64)
    logits = logits + torch.tensor(favor, dtype=torch.float64)
    return logits, logits.topk(k, dim=1).indices


ROUTERS = {  # tokens, k, how experts are favored
    "k = 1": (12, 1, [0.0] * EXPERTS),
    "k = 2, uneven": (20, 2, [2.0, 0.0, 0.0, 1.0, 0.0]),
    "k = 3, an expert without tokens": (12, 3, [0.0, 0.0, -60.0, 0.0, 0.0]),
    "one token": (1, 2, [0.0] * EXPERTS),
}


def _losses(seed: int, balance_loss: Any) -> Evidence:
    seen = {}
    for case, (tokens, k, favor) in ROUTERS.items():
        logits, chosen = _choices(seed, tokens, k, favor)
        before = leaf(logits)
        loss = balance_loss(before * 1, chosen.clone())
        if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.dim() == 0:
            loss.backward()
        loss = torch.as_tensor(loss, dtype=torch.float64)
        seen[case] = {"loss": noted(loss), "gradient": noted(before.grad)}
        seen[case]["lacks"], seen[case]["times"] = noted(loss / EXPERTS), noted(loss * k)
    return seen


class PunishesImbalance(Check):
    """The balance loss is E times the sum over experts of f P; its gradient flows through P."""

    hint = (
        "f is how often each expert appears in `chosen`, divided by the number of all choices.\n"
        "P: `logits.softmax(dim=1).mean(dim=0)`, over all tokens, whether or not they chose the expert."
    )

    @staticmethod
    def probe(seed: int, balance_loss: Any, *_: Any) -> Evidence:
        return _losses(seed, balance_loss)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            mistakes = {
                "lacks the factor E": want["lacks"],
                "is k times too large: f is a share of the choices, not of the tokens": want["times"],
            }
            if text := wrong_tensor(seen[case]["loss"], want["loss"], mistakes):
                return f"{case}: the loss {text}."
            if text := wrong_tensor(seen[case]["gradient"], want["gradient"], {}):
                return f"{case}: the loss is right, but its gradient with respect to the logits {text}."
        return None


LOADS = {
    "uneven": [9, 1, 3, 2, 5],
    "an expert without tokens": [0, 10, 4, 4, 2],
    "one just above the mean": [5, 4, 4, 4, 4],
    "even": [4, 4, 4, 4, 4],
    "one at the mean": [4, 7, 1, 2, 6],
}


class NudgesByTheSign(Check):
    """`nudge` changes the bias in place: up by `rate` below the mean load, down above it, no change at it."""

    hint = (
        "The distance from the mean does not matter, only the side: `torch.sign`.\n"
        "Change it in place: `bias += ...` or `bias.add_(...)`. The router does not see a new tensor."
    )

    @staticmethod
    def probe(seed: int, _: Any, nudge: Any, __: Any) -> Evidence:
        seen, generator = {}, torch.Generator().manual_seed(seed)
        for case, loads in LOADS.items():
            before = torch.randn(EXPERTS, generator=generator, dtype=torch.float64)
            bias, counts = before.clone(), torch.tensor(loads)
            nudge(bias, counts, 0.25)
            moved = [round(number, 9) for number in (bias - before).tolist()]
            seen[case] = {"moved": moved, "counts": counts.tolist()}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["moved"] != want["moved"]:
                still = " Did you change it in place?" if not any(got["moved"]) else ""
                return (
                    f"{case}, counts {want['counts']}, rate 0.25: the bias moved by {got['moved']}; "
                    f"it should move by {want['moved']}.{still}"
                )
            if got["counts"] != want["counts"]:
                return f"{case}: `nudge` changed `counts`; only the bias should change."
        return None


CAPACITIES = {
    "capacity 3": (12, 2, 3),
    "capacity 1": (10, 1, 1),
    "capacity 0": (5, 2, 0),
    "enough for all": (6, 2, 12),
    "capacity 2, k = 3": (8, 3, 2),
}


class FirstComeFirstServed(Check):
    """Each expert keeps its first `capacity` choices, in token order, and no more."""

    hint = (
        "For each choice: how many earlier choices, in the flat order, went to the same expert?\n"
        "A running sum over `F.one_hot(...)` counts for all experts at once. Where does each choice find its own count?"
    )

    @staticmethod
    def probe(seed: int, _: Any, __: Any, within_capacity: Any) -> Evidence:
        seen = {}
        for case, (tokens, k, capacity) in CAPACITIES.items():
            _, chosen = _choices(seed, tokens, k, [2.0, 0.0, 1.0, 0.0, -60.0])
            kept = within_capacity(chosen.clone(), EXPERTS, capacity)
            seen[case] = {"kept": kept.tolist(), "dtype": str(kept.dtype), "chosen": chosen.tolist()}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got, capacity, k = seen[case], CAPACITIES[case][2], CAPACITIES[case][1]
            if got["dtype"] != want["dtype"]:
                return f"{case}: returns {got['dtype']}; it should return a tensor of booleans."
            if got["kept"] == want["kept"]:
                continue
            if [len(row) for row in got["kept"]] != [k] * len(want["kept"]):
                return f"{case}: it should return one boolean per choice, in the shape of `chosen`."
            flat = [
                (e, kept)
                for row, ks in zip(want["chosen"], got["kept"], strict=True)
                for e, kept in zip(row, ks, strict=True)
            ]
            served = [sum(kept for expert, kept in flat if expert == e) for e in range(EXPERTS)]
            asked = [sum(expert == e for expert, _ in flat) for e in range(EXPERTS)]
            right = [min(number, capacity) for number in asked]
            if served != right:
                return f"{case}: the experts were chosen {asked} times and keep {served}; they should keep {right}."
            return f"{case}: each expert keeps the right number of choices, but not the first ones in flat order."
        return None


BALANCE = (PunishesImbalance, NudgesByTheSign, FirstComeFirstServed)
