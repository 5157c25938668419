"""Checks of the law of traffic: what a rank sends along each dimension of a grid in one step."""

import random
from typing import Any

from ..base import Check, Evidence
from .model_of_blocks import ModelOfBlocks

NEAR = 1e-6  # relative


class OnTraffic(Check):
    """Compares the bytes of one dimension with the reference's, over grids drawn from the seed."""

    dimension: str
    look: str

    @staticmethod
    def drawn(seed: int) -> list[tuple[dict[str, int], int, ModelOfBlocks, int]]:
        """Return (sizes, stage, model, micro-batches) of several grids."""
        chance, cases = random.Random(seed), []
        for _ in range(12):
            pipeline, data, tensor = chance.choice((2, 3, 4)), chance.choice((2, 4, 5)), chance.choice((2, 4, 8))
            model = ModelOfBlocks(
                pipeline * chance.randint(1, 5), chance.randint(1, 99) * 840, chance.randint(1, 99) * 840, 2
            )
            sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}
            cases.append((sizes, chance.randrange(pipeline), model, chance.randint(2, 9)))
        sizes, _, model, m = cases[0]
        ends = [(sizes, stage, model._replace(all_reduces=4), m) for stage in (0, sizes["pipeline"] - 1)]
        inner = {"tensor": 8, "data": 2, "pipeline": 4}, 2, model._replace(blocks=4 * model.blocks), m
        return [*cases, *ends, inner]

    @staticmethod
    def probe(seed: int, _: Any, sent: Any) -> Evidence:
        cases = OnTraffic.drawn(seed)
        given = [(dict(sizes), *others) for sizes, *others in cases]
        got = [_bytes(sent, sizes, stage, model, m) for sizes, stage, model, m in given]
        return {
            "cases": [[sizes, stage, *model, m] for sizes, stage, model, m in cases],
            "got": got,
            "kept": cases == given,
        }

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        if not seen["kept"]:
            return "`sent` changes the `sizes` that it gets. Leave the caller's dict as it is."
        for case, *each in zip(expected["cases"], seen["got"], expected["got"], strict=True):
            got, want = (nbytes[cls.dimension] for nbytes in each)
            if not abs(got - want) <= NEAR * max(1.0, want):
                return f"{_words(case)}: {got:,.0f} B along {cls.dimension}; it should be {want:,.0f} B. {cls.look}"
        return None


def _bytes(sent: Any, sizes: dict[str, int], stage: int, model: ModelOfBlocks, m: int) -> dict[str, float]:
    nbytes = sent(sizes, stage, model, m)
    return {name: float(nbytes[name]) for name in ("pipeline", "data", "tensor")}


def _words(case: list[Any]) -> str:
    """Say in words what a case is."""
    sizes, stage, blocks, weights, message, all_reduces, m = case
    grid = f"{', '.join(f'{name} {size}' for name, size in sizes.items())}, stage {stage}, {m} micro-batches"
    return f"{grid}, {blocks} blocks of {weights:,} B, messages of {message:,} B, {all_reduces} all-reduces"


class TensorSendsMessages(OnTraffic):
    """Along tensor: `all_reduces` all-reduces of a message for each block of this stage and each micro-batch."""

    dimension = "tensor"
    look = "How many blocks does a stage have, how many micro-batches pass through, and what does a ring send?"
    hint = (
        "A ring all-reduce of B bytes over n ranks: each sends 2 (n - 1) / n of B.\n"
        "A stage has blocks / pipeline blocks; each of them, for each micro-batch, needs `all_reduces`."
    )


class PipelineSendsBothWays(OnTraffic):
    """Along pipeline: each micro-batch's activation forward and gradient back, where there is a neighbor."""

    dimension = "pipeline"
    look = "Does this stage have one after it, and one before it?"
    hint = "The first stage sends nothing back, the last nothing forward: (stage < last) + (stage > 0) messages."


class DataSendsGradients(OnTraffic):
    """Along data: the gradients that this rank has, once per step, however many micro-batches there are."""

    dimension = "data"
    look = "Which part of the gradients is on this rank? They were added up over the micro-batches first."
    hint = "A stage has blocks / pipeline blocks, and tensor ranks have 1 / tensor of each: one all-reduce of that."


class OneRankSendsNothing(Check):
    """Along a dimension of one rank nothing is sent; along the others the bytes are the same as always."""

    after = ("tensor_sends_messages", "pipeline_sends_both_ways", "data_sends_gradients")
    hint = "2 (n - 1) / n is 0 for n = 1. And a pipeline of one stage has no neighbors."

    @staticmethod
    def probe(seed: int, _: Any, sent: Any) -> Evidence:
        model = ModelOfBlocks(12, 8400, 840, 2)
        seen = {}
        for name in ("pipeline", "data", "tensor"):
            sizes = {"pipeline": 2, "data": 2, "tensor": 2, name: 1}
            seen[name] = _bytes(sent, sizes, 0, model, 4)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in expected:
            if not abs(seen[name][name]) <= 0:  # NaN is not
                return f"{name} of one rank: {seen[name][name]:,.0f} B are sent, but there is no other rank."
            for other, want in expected[name].items():
                if not abs(seen[name][other] - want) <= NEAR * want:
                    return f"{name} of one rank: {seen[name][other]:,.0f} B along {other}; it should be {want:,.0f} B."
        return None


TRAFFIC = (TensorSendsMessages, PipelineSendsBothWays, DataSendsGradients, OneRankSendsNothing)
