"""Check of the cross-entropy of logits that are split by vocabulary."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...meter.operations_seen import OperationWatch
from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import case_name, cases_on_ranks
from ..tensor_parallel.inputs import drawn, leaf
from ..tensor_parallel.said import EXACT, by_rank, in_words, noted, wrong_calls, wrong_tensor

Loss = Callable[[Tensor, Tensor], Tensor]
RANKS, HELD = 3, 7  # entries of the vocabulary on each rank
N = 10  # tokens
SCALE = 4.0  # of the loss; a power of two, so that nothing is rounded


def _targets(seed: int, low: int, high: int, ignored: int = 0) -> Tensor:
    """Return N targets from low to high - 1; the first `ignored` do not count."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(low, high, (N,), generator=generator)
    targets[-1] = low  # 0 is a token like any other
    targets[:ignored] = -100
    return targets


def _of(logits: Tensor, targets: Tensor, cross_entropy: Loss, tolerance: float = EXACT) -> Evidence:
    """Compare the answer on this rank's part of the full `logits` with PyTorch's cross-entropy of all, in FP64."""
    rank, n = dist.get_rank(), dist.get_world_size()
    mine = leaf(logits.chunk(n, dim=1)[rank])
    whole = logits.detach().double().requires_grad_()
    counted = int((targets != -100).sum())
    right = F.cross_entropy(whole, targets)
    right.backward()
    got = cross_entropy(mine * 1, targets.clone())
    if got.requires_grad:
        (SCALE * got.sum()).backward()  # as with loss scaling, or a part of a sum of losses
        mine.grad /= SCALE
    gradient = whole.grad.chunk(n, dim=1)[rank]
    alone = mine.detach().double().requires_grad_()
    local = targets - rank * HELD
    here = (local >= 0) & (local < HELD)
    (F.cross_entropy(alone, local.where(here, torch.full_like(local, -100)), reduction="sum") / counted).backward()
    return {
        "loss": noted(got),
        "right": noted(right),
        "gradient": noted(mine.grad),
        "right gradient": noted(gradient),
        "softmax alone": noted(alone.grad),
        "counted": counted,
        "tokens": len(targets),
        "tolerance": tolerance,
        "dtypes": [str(t).removeprefix("torch.") for t in (got.dtype, logits.dtype)],
    }


def _wrong(seen: Evidence, expected: Evidence, names: tuple[str, ...]) -> str | None:
    for case in (case_name(RANKS, name) for name in names):
        pairs = list(zip(seen[case], expected[case], strict=True))
        texts = [wrong_tensor(got["loss"], want["right"], _mistakes(want), want["tolerance"]) for got, want in pairs]
        if said := by_rank(f"{case}: the loss", texts):
            return f"{said}\nWhich maximum is subtracted, which rank adds the target's logit, and which targets count?"
        texts = []
        for got, want in pairs:
            mistakes = {"is that of a softmax over this rank's logits alone": want["softmax alone"]}
            texts.append(wrong_tensor(got["gradient"], want["right gradient"], mistakes, 10 * want["tolerance"]))
        if said := by_rank(f"{case}: the gradient of the logits", texts):
            return f"{said}\nWhich sums over ranks pass their gradient back unchanged, and which targets count?"
        texts = [None if got["dtypes"][0] == want["dtypes"][1] else f"is {got['dtypes'][0]}" for got, want in pairs]
        if said := by_rank(f"{case}: the loss of {pairs[0][1]['dtypes'][1]} logits", texts):
            return f"{said}\nWhich operation changes the dtype?"
    return None


def _mistakes(want: Evidence) -> dict[str, Evidence]:
    """Return the losses that well-known mistakes give."""
    (mean,), counted = want["right"]["numbers"], want["counted"]
    losses = {"is a sum over tokens, not a mean": mean * counted}
    if counted < want["tokens"]:
        losses["is divided by all tokens, including those that do not count"] = mean * counted / want["tokens"]
    return {text: {"shape": [], "numbers": [loss]} for text, loss in losses.items()}


SPREAD = (
    "targets all over the vocabulary",
    "all targets on the last rank",
    "all targets on rank 0",
    "the first and the last vocabulary entry of each rank",
    "1 token",
)
IGNORED = {f"{ignored} of {N} targets are -100": ignored for ignored in (3, N - 1)}
LARGE = (
    "logits around 10,000",
    "logits around -10,000",
    "10,000 on rank 1, -10,000 on the others, and the targets on rank 1",
    "10,000 on rank 1, -10,000 on the others, and the targets on the others",
    "every second logit of a rank at -10,000, the others at 10,000",
)
SENT = "6 tokens, 50 vocabulary entries on each rank"
CASES = {RANKS: {name: name for name in (*SPREAD, *IGNORED, *LARGE, SENT)}}


def _spread(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return logits and targets in FP64, by case: targets on one rank or several, and some of them -100."""
    logits, last = drawn(seed, N, RANKS * HELD)[0] * 3, RANKS * HELD
    ends = torch.tensor([0, 6, 7, 13, 14, 20, 0, 7, 14, 20])
    targets = (_targets(seed, 0, last), _targets(seed, last - HELD, last), _targets(seed, 0, HELD), ends)
    cases = {name: (logits, drawn_targets) for name, drawn_targets in zip(SPREAD, targets, strict=False)}
    cases[SPREAD[-1]] = logits[:1], ends[3:4]
    return cases | {name: (logits, _targets(seed, 0, last, ignored)) for name, ignored in IGNORED.items()}


def _large(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return logits and targets in FP32, by case: a target may lie 20,000 below the largest."""
    logits = drawn(seed, N, RANKS * HELD, dtype=torch.float32)[0]
    targets = _targets(seed, 0, RANKS * HELD).to(logits.device)
    on_one = HELD + targets % HELD
    by_entries, alternate = torch.zeros_like(logits), torch.zeros_like(logits)
    by_entries[:, HELD : 2 * HELD] = 20_000.0  # the largest are on rank 1; all others are negligible
    alternate[:, ::2] = 20_000.0
    others = torch.where(on_one % 2 == 0, on_one - HELD, on_one + HELD)
    even = 2 * (torch.arange(N, device=logits.device) % (RANKS * HELD // 2)) + 1  # odd entries: below the largest
    return dict(
        zip(
            LARGE,
            (
                (logits + 10_000, targets),
                (logits - 10_000, targets),
                (logits + by_entries - 10_000, on_one),
                (logits + by_entries - 10_000, others),
                (logits + alternate - 10_000, even),
            ),
            strict=True,
        )
    )


def _rank(cross_entropy: Loss, seed: int, case: str) -> Evidence:
    """One rank: a case."""
    if case == SENT:
        return _sent(seed, cross_entropy)
    if case in LARGE:
        return _of(*_large(seed)[case], cross_entropy, 1e-3)
    logits, targets = _spread(seed)[case]
    return _of(logits, targets.to(logits.device), cross_entropy)


def observe(seed: int, cross_entropy: Loss) -> Evidence:
    """Return what each of three ranks measured, by case."""
    return cases_on_ranks(_rank, CASES, cross_entropy, seed)


class LossOfTheWholeVocabulary(Check):
    """Loss and gradient are those of the full logits, no matter which rank has a target; the loss is equal on all."""

    hint = (
        "log(sum of exponentials) - target's logit: which part of each can a rank compute?\n"
        "A rank's part of the vocabulary begins at rank x (V/N): subtract that from the targets. A result outside "
        "its part contributes 0.\n"
        "The sum over ranks must pass the gradient back unchanged, as `Leave` does."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, SPREAD)


class LeavesOutWhatDoesNotCount(Check):
    """A target of -100 adds nothing to the loss or the gradient, and the mean is over the other targets."""

    hint = "What does a token with target -100 add to the sum, and to the count that you divide by?"

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, tuple(IGNORED))


class HandlesLargeLogits(Check):
    """Loss and gradient are finite and correct for logits of ±10,000."""

    hint = (
        "exp(89) is too large for FP32. What may you subtract from all logits of a token without changing its loss?\n"
        "The largest logit of the token over all ranks: an all-reduce with `op=dist.ReduceOp.MAX`, outside autograd."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, LARGE)


class _LargestTensor(OperationWatch):
    """Records the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.most = max([self.most, *(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor))])


def _sent(seed: int, cross_entropy: Loss) -> Evidence:
    """One rank: what is sent, how large tensors grow, and whether what came in has changed."""
    tokens, held = 6, 50
    logits = drawn(seed, tokens, held, dtype=torch.float32)[dist.get_rank()]
    targets = torch.arange(tokens, device=logits.device) * 15
    mine, kept = leaf(logits), targets.clone()
    with _LargestTensor() as largest:
        with Collectives() as forward:
            loss = cross_entropy(mine * 1, targets)
        with Collectives() as backward:
            loss.backward()
    whole = leaf(logits)
    cross_entropy(whole, targets).backward()
    return {
        "forward": [list(call) for call in forward.calls],
        "backward": [list(call) for call in backward.calls],
        "most": 3 * 4 * tokens,
        "largest": largest.most,
        "logits": tokens * held,
        "changed": [
            name
            for name, now, before in (("logits", whole.detach(), logits), ("targets", targets, kept))
            if not torch.equal(now, before)
        ],
    }


class SendsThreeNumbersPerToken(Check):
    """The forward pass all-reduces three numbers per token, and the backward pass sends nothing."""

    hint = (
        "Which numbers of a token need all ranks? The largest logit, the sum of exponentials, the target's logit.\n"
        "The backward pass needs no all-reduce such as `Enter`'s: each rank has the full gradient."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        case = case_name(RANKS, SENT)
        want = expected[case][0]
        texts = []
        for got in seen[case]:
            calls = got["forward"]
            fine = all(name == "all_reduce" for name, _ in calls) and sum(n for _, n in calls) <= want["most"]
            texts.append(
                None if fine else f"sends {in_words(calls)}; all-reduces of {want['most']} B in total are enough"
            )
        if said := by_rank(f"{case}: forward pass", texts):
            return f"{said}\nWhich three numbers of a token need all ranks?"
        texts = [wrong_calls(got["backward"], []) for got in seen[case]]
        said = by_rank(f"{case}: backward pass", texts)
        return said and f"{said}\nWhich sums over ranks pass their gradient back unchanged?"


class KeepsTheContract(Check):
    """No tensor is as large as the full logits, and the incoming logits and targets are not changed."""

    hint = (
        "Each rank works on its part of the vocabulary, without padding or one-hot vectors over all of it.\n"
        "Operations whose names end in an underscore change the tensor that they are called on."
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        case, texts = case_name(RANKS, SENT), []
        for got, want in zip(seen[case], expected[case], strict=True):
            times, changed = got["largest"] / want["logits"], got["changed"]
            texts.append(
                f"makes a tensor of {got['largest']:,} numbers, {times:.3g} times its logits" if times >= 2
                else f"changes its {' and '.join(changed)} in place" if changed else None
            )  # fmt: skip
        said = by_rank(f"{case}: forward and backward", texts)
        return said and f"{said}\nWhich operation makes or changes it?"


LOSS = (
    LossOfTheWholeVocabulary,
    LeavesOutWhatDoesNotCount,
    HandlesLargeLogits,
    SendsThreeNumbersPerToken,
    KeepsTheContract,
)
