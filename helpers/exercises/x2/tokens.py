"""Check of part 2: a step in which every token weighs the same."""

import random
from dataclasses import dataclass
from typing import Any

import torch

from ...core.models import SmallGPT
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.returned_loss import number, wrong_loss
from .activations import too_many_activations
from .spy import (
    DIVIDED_RATE,
    OLD_GRADIENTS,
    Spy,
    leave_gradients,
    update_since,
    weights,
    wrong_mode,
    wrong_rows,
    wrong_update,
)

IGNORED = -100  # target of a position that does not count, as in F.cross_entropy


@dataclass(frozen=True)
class _Case:
    micro_batch: int
    empty: bool = False  # whether one micro-batch has no targets
    gaps: bool = False  # whether targets in the middle of a row do not count
    old_gradients: bool = False
    weight_decay: float = 0.0


CASES = {
    "lengths differ": _Case(3),
    "a micro-batch without targets": _Case(4, empty=True),
    "targets that do not count in the middle of rows": _Case(3, gaps=True),
}
VOCABULARY, LONGER = 512, 12  # where kept logits show, and how many rows the longer batch has more
ALONE = {"old gradients": _Case(3, old_gradients=True), "weight decay": _Case(3, weight_decay=0.5)}  # a clause each


def _one_step(token_step: Any, seed: int, case: _Case) -> Evidence:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = SmallGPT(vocabulary=11, context=12, layers=1, width=16, heads=2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=case.weight_decay)
    ids = torch.randint(11, (10, 12))
    targets = torch.randint(11, (10, 12))
    for row in range(10):
        targets[row, rng.randint(1, 12) :] = IGNORED
    if case.empty:
        targets[4:8] = IGNORED
    if case.gaps:
        targets[::2, :3] = IGNORED
        targets[1::2, 2:5] = IGNORED
        targets[:, 11] = torch.randint(11, (10,))
    given = ids.clone(), targets.clone()
    spy = Spy(model, optimizer)
    if case.old_gradients:
        leave_gradients(model)
    before = weights(model)
    with MemoryMeter(model, optimizer) as meter:
        loss = token_step(model, optimizer, ids, targets, case.micro_batch)
    return {
        "moved": update_since(before, model),
        "loss": number(loss),
        "rows": spy.rows,
        "first": spy.first,
        "modes": spy.modes,
        "kept": torch.equal(ids, given[0]) and torch.equal(targets, given[1]),
        "steps": len(spy.gradients),
        "activations": meter.largest["activations"],
    }


def _kept(token_step: Any, seed: int) -> int:
    """Return by how much the peak grows, beside ids and targets, with more rows in micro-batches of the same size."""
    peaks = []
    for rows in (4, 4 + LONGER):
        torch.manual_seed(seed)
        model = SmallGPT(vocabulary=VOCABULARY, context=12, layers=1, width=16, heads=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        ids, targets = torch.randint(VOCABULARY, (2, rows, 12))
        with MemoryMeter(model, optimizer, by_tenant=False) as meter:
            token_step(model, optimizer, ids, targets, 2)
        peaks.append(meter.peak_bytes - 2 * ids.nbytes)
    return peaks[1] - peaks[0]


def _without_the_empty(evidence: Evidence) -> Evidence:
    """Leave out the call of the micro-batch without targets: it need not be fed to the model."""
    return {key: [one for i, one in enumerate(evidence[key]) if i != 1] for key in ("rows", "first")}


class TokensWeighTheSame(Check):
    """Every target that counts weighs the same, whichever micro-batch it lies in."""

    points = 1
    hint = (
        "Sum the losses of a micro-batch (reduction='sum') and divide by the number of targets that count in the whole "
        "batch. A micro-batch may have none."
    )

    @staticmethod
    def probe(seed: int, token_step: Any) -> Evidence:
        seen: Evidence = {name: _one_step(token_step, seed, case) for name, case in CASES.items()}
        for name, case in ALONE.items():
            seen[name] = _one_step(token_step, seed, case)["moved"]
        return seen | {"kept": _kept(token_step, seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, setting in CASES.items():
            got, want = seen[case], expected[case]
            wrong = wrong_rows(got, want)
            if wrong and not (setting.empty and wrong_rows(got, _without_the_empty(want)) is None):
                return f"{case}: {wrong}"
            if not got["kept"]:
                return f"{case}: ids or targets have changed; leave the batch as it was."
            if got["steps"] != 1:
                return f"{case}: the optimizer stepped {got['steps']} times."
            wrong = (
                wrong_update(got["moved"], want["moved"])
                or wrong_loss(got["loss"], want["loss"]["value"])
                or too_many_activations(got["activations"], want["activations"])
                or wrong_mode(got["modes"])
            )
            if wrong:
                return f"{case}: {wrong}"
        if wrong_update(seen["old gradients"], expected["old gradients"]):
            return OLD_GRADIENTS
        if wrong_update(seen["weight decay"], expected["weight decay"]):
            return DIVIDED_RATE
        logits = LONGER * 12 * VOCABULARY * 4
        if seen["kept"] > logits / 2:
            return (
                f"With {LONGER} rows more, in micro-batches of the same size, the peak is {seen['kept']:,} bytes "
                f"higher; the logits of these rows have {logits:,}. Keep no logits after their backward()."
            )
        return None


TOKENS = (TokensWeighTheSame,)
