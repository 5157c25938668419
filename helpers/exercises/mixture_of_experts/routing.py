"""Checks of routing: which experts a token goes to, with which weights, and how the rows are sorted."""

from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .inputs import drawn, leaf

EXPERTS, TOKENS = 6, 14
EXACT = 1e-9


def _routed(seed: int, route: Any, biased: bool) -> Evidence:
    """Route random tokens with k of 1, 2 and 3, and none. What is returned is put in order of the experts."""
    generator, seen = torch.Generator().manual_seed(seed), {}
    for k, tokens in ((1, TOKENS), (2, TOKENS), (3, TOKENS), (2, 0)):
        logits, goal = torch.randn(2, tokens, EXPERTS, generator=generator, dtype=torch.float64)
        bias = torch.rand(EXPERTS, generator=generator, dtype=torch.float64) - 0.5
        before, kept = leaf(logits), bias.clone()
        chosen, weights = route(before * 1, k, bias) if biased else route(before * 1, k)
        if list(chosen.shape) == list(weights.shape) == [tokens, k]:
            if weights.requires_grad:
                (weights * goal.gather(1, chosen)).sum().backward()
            chosen, order = chosen.sort(dim=1)
            weights = weights.gather(1, order)
        p = logits.softmax(dim=1).gather(1, chosen) if chosen.shape == (tokens, k) else None
        seen[f"k = {k}" + ", no tokens" * (not tokens)] = {
            "shapes": [list(chosen.shape), list(weights.shape)],
            "chosen": chosen.tolist(),
            "weights": weights.detach().flatten().tolist(),
            "probabilities": [] if p is None else p.flatten().tolist(),
            "gradient": None if before.grad is None else before.grad.flatten().tolist(),
            "bias kept": torch.equal(bias, kept),
        }
    return seen


def _wrong_route(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        got = seen[case]
        if got["shapes"] != want["shapes"]:
            return f"{case}: chosen and weights have the shapes {got['shapes']}; they should have {want['shapes']}."
        if got["chosen"] != want["chosen"]:
            token = next(i for i, pair in enumerate(want["chosen"]) if pair != got["chosen"][i])
            return f"{case}: token {token} goes to experts {got['chosen'][token]}; expected {want['chosen'][token]}."
        if not relative_distance(got["weights"], want["weights"]) <= EXACT:
            return f"{case}: {_wrong_weights(got, want)}"
        if got["gradient"] is None:
            return f"{case}: no gradient reaches the logits through the weights, so the router learns nothing."
        far = torch.tensor(got["gradient"]) - torch.tensor(want["gradient"])  # with k = 1 the right one is zero
        if far.numel() and not far.abs().max() <= 1e-9:
            return f"{case}: the weights are right, but not their gradient with respect to the logits."
        if not got["bias kept"]:
            return f"{case}: `route` changed the bias that it was given."
    return None


def _wrong_weights(got: Evidence, want: Evidence) -> str:
    sums = torch.tensor(got["weights"]).view(TOKENS, -1).sum(dim=1)
    if relative_distance(got["weights"], got["probabilities"]) <= EXACT:
        return f"the weights are the probabilities as they are: those of token 0 sum to {sums[0]:.3f}, not to 1."
    if not (sums - 1).abs().max() <= EXACT:
        return f"the weights of token 0 sum to {sums[0]:.8g}; they should sum to 1."
    off = relative_distance(got["weights"], want["weights"])
    if off < 1e-4:  # four digits would be the same
        return f"the weights are off by {off:.1g}: were they rounded to a dtype other than that of the logits?"
    first = slice(len(want["chosen"][0]))
    mine, right = ([round(weight, 4) for weight in each["weights"][first]] for each in (got, want))
    return f"the weights of token 0 are {mine}; they should be {right}."


class RoutesToTheMostLikely(Check):
    """A token goes to its k most likely experts; the weights are their probabilities, scaled to sum to 1."""

    hint = (
        "`logits.softmax(dim=1)` gives the probabilities (n, E); `.topk(k, dim=1)` returns values and indices.\n"
        "Divide by the sum over the k chosen experts, not over all experts."
    )

    @staticmethod
    def probe(seed: int, route: Any, *_: Any) -> Evidence:
        return _routed(seed, route, biased=False)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_route(seen, expected)


class BiasOnlyChooses(Check):
    """The bias is added to the probabilities when experts are chosen, and to nothing else."""

    hint = (
        "The probabilities have two uses. The bias takes part in choosing experts, but not in the weights.\n"
        "Take `topk(...).indices` of the sum, then `probabilities.gather(1, chosen)` without the bias."
    )

    @staticmethod
    def probe(seed: int, route: Any, *_: Any) -> Evidence:
        return _routed(seed + 1, route, biased=True)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_route(seen, expected)


CASES = {  # tokens, k, how the experts are favored
    "k = 2": (TOKENS, 2, [0.0] * EXPERTS),
    "k = 1": (TOKENS, 1, [0.0] * EXPERTS),
    "k = 3, uneven": (TOKENS, 3, [3.0, 0.0, 0.0, 2.0, 0.0, 0.0]),
    "no token for experts 1 and 5": (TOKENS, 2, [0.0, -99.0, 0.0, 0.0, 0.0, -99.0]),
    "no tokens at all": (0, 2, [0.0] * EXPERTS),
}


def _plain(tensor: Any) -> list[Any]:
    return tensor.tolist() if isinstance(tensor, Tensor) else list(tensor)


class SortsByExpert(Check):
    """One row per choice, sorted by expert; `counts` holds rows per expert, `source` where each row comes from."""

    hint = (
        "`chosen.flatten()` lists the expert of each choice, token by token. Which order sorts it?\n"
        "Choice number j of that list: to which token does it belong?\n"
        "`F.one_hot(..., experts)` has a column for each expert, even for those that no token chose."
    )

    @staticmethod
    def probe(seed: int, _: Any, permute: Any, *__: Any) -> Evidence:
        seen = {}
        for case, (tokens, k, favor) in CASES.items():
            given = drawn(seed, tokens, favor, k)
            goal = drawn(seed + 1, tokens * k, favor).x
            before = leaf(given.x)
            rows, counts, source = permute(before * 1, given.chosen.clone(), EXPERTS)
            if rows.requires_grad and len(rows) == len(source) == len(goal):
                (rows * goal[source]).sum().backward()  # the same sum in every order of the rows
            seen[case] = {
                "rows": rows.detach().tolist(),
                "counts": _plain(counts),
                "source": _plain(source),
                "x": given.x.tolist(),
                "chosen": given.chosen.flatten().tolist(),
                "gradient": None if before.grad is None else before.grad.flatten().tolist(),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got, k = seen[case], CASES[case][1]
            if not all(isinstance(count, int) for count in got["counts"]):
                return f"{case}: counts are {got['counts']}; they should be integers."
            if got["counts"] != want["counts"]:
                return f"{case}: counts are {got['counts']}; they should be {want['counts']}."
            if sorted(got["source"]) != list(range(len(want["chosen"]))):
                return f"{case}: `source` must have each of 0 to n·k - 1 once; it is {got['source'][:8]} …"
            experts = [want["chosen"][place] for place in got["source"]]
            if experts != sorted(experts):
                return (
                    f"{case}: according to `source`, the rows belong to experts {experts[:12]} …, which are not sorted."
                )
            if got["rows"] != [want["x"][place // k] for place in got["source"]]:
                return f"{case}: `rows` does not match `source`: row j should be token source[j] // k."
            if got["gradient"] is None:
                return f"{case}: no gradient flows from `rows` back to x."
            if not relative_distance(got["gradient"], want["gradient"]) <= EXACT:
                return f"{case}: a token's gradient is not the sum of the gradients of its rows."
        return None


ROUTING = (RoutesToTheMostLikely, BiasOnlyChooses, SortsByExpert)
