"""Check of the online softmax: sums that are right after each tile, whatever comes later."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.device import pick_device
from ..base import Check, Evidence
from ..probing.plain import plain

State = tuple[Tensor, Tensor, Tensor]
OnlineSoftmax = Callable[[State | None, Tensor, Tensor], State]
SAME = 1e-4  # relative, of the largest number: other orders of summation differ by less
TILES = (7, 5, 9)  # columns of the tiles


def _tiles(seed: int, batch: tuple[int, ...] = ()) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of scores (*batch, 6, columns) and values (*batch, columns, 4)."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [((*batch, 6, columns), (*batch, columns, 4)) for columns in TILES]
    pairs = [tuple(torch.randn(size, generator=generator) for size in pair) for pair in sizes]
    return [(3 * scores.to(pick_device()), values.to(pick_device())) for scores, values in pairs]


def _states(online_softmax: OnlineSoftmax, tiles: list[tuple[Tensor, Tensor]]) -> list[State]:
    """Return the state after each tile."""
    states, state = [], None
    for scores, values in tiles:
        state = online_softmax(state, scores, values)
        states.append(tuple(part.clone() for part in state))  # the answer's own may be written to in the next call
    return states


def _numbers(tensor: Tensor) -> list[float]:
    return plain(tensor).detach().cpu().double().flatten().tolist()


def _far(mine: list[float], right: list[float]) -> float:
    """Return the largest difference, as a share of the largest number; inf where a number is none."""
    if len(mine) != len(right):
        return float("inf")
    largest = max((abs(b) for b in right if abs(b) != float("inf")), default=0) + 1e-30
    far = [0.0 if a == b else abs(a - b) / largest for a, b in zip(mine, right, strict=True)]
    return max((f if f == f else float("inf") for f in far), default=0.0)


def _attended(states: list[State], tiles: list[tuple[Tensor, Tensor]]) -> Evidence:
    """Return weighted / total after each tile, and softmax(all scores so far) @ values."""
    seen: Evidence = {}
    for count, (_, total, weighted) in enumerate(states, 1):
        scores, values = torch.cat([s for s, _ in tiles[:count]], -1), torch.cat([v for _, v in tiles[:count]], -2)
        right = (scores.cpu().double().softmax(-1) @ values.cpu().double()).nan_to_num(
            nan=0.0
        )  # a row that is masked: nothing
        mine = plain(weighted) / plain(total)[..., None].masked_fill(plain(total)[..., None] == 0, 1)
        seen[f"after tile {count}"] = {"far": _far(_numbers(mine), _numbers(right)), "shape": list(weighted.shape)}
    return seen


class MatchesTheSoftmax(Check):
    """After each tile, weighted / total is the softmax over all columns so far, times their values."""

    hint = (
        "A new tile may raise the largest score of a row. What does that do to the sums computed so far?\n"
        "The old sums were computed relative to the old maximum: multiply both by exp(old maximum - new maximum).\n"
        "The new tile adds exp(scores - new maximum), summed over columns, and the same times values."
    )

    @staticmethod
    def probe(seed: int, online_softmax: OnlineSoftmax) -> Evidence:
        seen: Evidence = {}
        for case, batch in (("one matrix", ()), ("2 x 3 heads", (2, 3))):
            tiles = _tiles(seed, batch)
            seen[case] = _attended(_states(online_softmax, tiles), tiles)
        tiles = [tuple(t.transpose(0, 1).contiguous().transpose(0, 1) for t in tile) for tile in _tiles(seed, (2, 3))]
        seen["2 x 3 heads, transposed views"] = _attended(_states(online_softmax, tiles), tiles)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, stages in expected.items():
            for stage, want in stages.items():
                got = seen[case][stage]
                if got["shape"] != want["shape"]:
                    return f"{case}: weighted should be {tuple(want['shape'])}; it is {tuple(got['shape'])}."
                if not got["far"] <= SAME:
                    off = f"off by {got['far']:.2g} of its largest number"
                    look = "Which maximum is subtracted?" if stage == "after tile 1" else "Are the old sums rescaled?"
                    return f"{case}, {stage}: weighted / total is {off}. {look}"
        return None


class StateMeansWhatItSays(Check):
    """The state is the largest score of each row so far, the sum of exp(score - largest), and that times values."""

    hint = (
        "Other code may continue from your state. Is each of the three relative to the same maximum?\n"
        "The maximum is that of all tiles so far: `torch.maximum(state[0], scores.amax(-1))`."
    )

    @staticmethod
    def probe(seed: int, online_softmax: OnlineSoftmax) -> Evidence:
        tiles = _tiles(seed + 1)
        scores, values = torch.cat([s for s, _ in tiles], -1), torch.cat([v for _, v in tiles], -2)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        right = {"largest": scores.amax(-1), "total": weights.sum(-1), "weighted": weights @ values}
        state = _states(online_softmax, tiles)[-1]
        return {
            name: {"shape": list(mine.shape), "far": _far(_numbers(mine), _numbers(own))}
            for (name, own), mine in zip(right.items(), state, strict=True)
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            got = seen[name]
            if got["shape"] != want["shape"]:
                return f"{name} should have the shape {tuple(want['shape'])}; it has {tuple(got['shape'])}."
            if not got["far"] <= SAME:
                look = "Is it the largest score" if name == "largest" else "Is it relative to the largest score"
                off = f"off by {got['far']:.2g} of its largest number"
                return f"After three tiles `{name}` is {off}. {look} of all three tiles?"
        return None


class SurvivesLargeScores(Check):
    """Scores of several thousand, rising or falling from tile to tile, make no infinity or NaN."""

    hint = "exp(89) is too large for FP32. Never take exp of a number above zero: subtract the maximum first."

    @staticmethod
    def probe(seed: int, online_softmax: OnlineSoftmax) -> Evidence:
        seen: Evidence = {}
        for case, steps in (("rising", (0, 3000, 6000)), ("falling", (6000, 3000, 0)), ("low", (-9000,) * 3)):
            tiles = [(s + step, v) for (s, v), step in zip(_tiles(seed + 2), steps, strict=True)]
            seen[case] = max(stage["far"] for stage in _attended(_states(online_softmax, tiles), tiles).values())
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            if not seen[case] <= 1e-3:  # at 6,000 the scores themselves have three decimals
                if seen[case] < float("inf"):
                    off = f"off by {seen[case]:.2g} of its largest number"
                    look = "To which maximum are the old sums rescaled, and by which factor?"
                else:
                    off, look = "not finite", "Which exp gets a number above zero?"
                return f"{case} scores of thousands: weighted / total is {off}. {look}"
        return None


class SurvivesMaskedTiles(Check):
    """A score of -inf contributes nothing; a row with only such scores has total and weighted 0, without a NaN."""

    hint = (
        "What is -inf - (-inf)?\n"
        "Where the maximum is still -inf, subtract 0 instead: `torch.where(largest.isinf(), 0.0, largest)`."
    )

    @staticmethod
    def probe(seed: int, online_softmax: OnlineSoftmax) -> Evidence:
        seen: Evidence = {}
        for case, masked in (("first tile masked", (0,)), ("last tile masked", (2,)), ("two tiles masked", (0, 1))):
            tiles = _tiles(seed + 3)
            for number in masked:
                tiles[number][0][:3] = float("-inf")  # of half of the rows
            tiles[1][0][4, ::2] = float("-inf")
            seen[case] = {
                stage: found["far"] for stage, found in _attended(_states(online_softmax, tiles), tiles).items()
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, stages in expected.items():
            for stage in stages:
                if not seen[case][stage] <= SAME:
                    nan = "there are NaNs. Where is -inf subtracted from -inf?"
                    off = "the sums are off. What does a score of -inf add to them?"
                    return f"{case}, {stage}: {nan if seen[case][stage] == float('inf') else off}"
        return None


class LeavesItsInputsAlone(Check):
    """The state, the scores and the values are not changed."""

    hint = "Did an in-place operation (`mul_`, `+=`) change the old state or the scores? Make new tensors."

    @staticmethod
    def probe(seed: int, online_softmax: OnlineSoftmax) -> Evidence:
        (first, values), (second, more), _ = _tiles(seed + 4)
        state = online_softmax(None, first, values)
        given = (*state, second, more)
        before = [t.clone() for t in given]
        online_softmax(state, second, more)
        names = ("largest", "total", "weighted", "scores", "values")
        return {name: torch.equal(a, b) for name, a, b in zip(names, given, before, strict=True)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        changed = [name for name in expected if not seen[name]]
        return f"Changed by the call: {', '.join(changed)}. Which operation works in place?" if changed else None


# First, what makes the others fail: an operation in place changes the tiles that they compare with.
SOFTMAX: tuple[type[Check], ...] = (
    LeavesItsInputsAlone,
    MatchesTheSoftmax,
    StateMeansWhatItSays,
    SurvivesLargeScores,
    SurvivesMaskedTiles,
)
