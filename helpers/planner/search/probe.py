"""A probe: a few blocks run alone, which says what a block of many layouts costs.

Neither the schedule nor what the data ranks split changes what a block computes, or keeps. So one probe, a fraction of
a second, serves all layouts with the same tensor, context and expert ranks, micro-batch, engine and recomputation. Of
the three blocks the middle one counts: it begins and ends as the others of a long stage do.
"""

from dataclasses import dataclass, replace

from ..layout.layout import Layout
from ..layout.rank_memory import first_half, waiting_gradients
from ..layout.stage_run import BACKWARD, FORWARD, LAST, StageKind, StageRun, run_stage
from ..layout.streams import Streams
from ..layout.trace import Place

BLOCKS = 3
_WEIGHTS = {"bf16-amp": "bf16", "fp8": "bf16", "bf16": "bf16", "fp32": "fp32"}  # in which gathered parameters compute


@dataclass(frozen=True)
class Probed:
    """What a block costs, by a probe.

    Attributes:
        forward, backward: seconds of one micro-batch, without starts of operations that the host may be late with.
        kept: bytes from forward to backward pass.
        less: bytes by which the last block keeps less.
        working: bytes that the backward pass takes beyond what it found, or its inputs' half where that is less.
        waiting: bytes of gradients that wait where the weights' half of the backward pass is put off.
    """

    forward: float
    backward: float
    kept: int
    less: int
    working: int
    waiting: int


def probe_of(layout: Layout) -> Layout | None:
    """Return the layout whose blocks are to be run for a probe of `layout`; None if there is none."""
    precision = layout.precision if layout.engine == "megatron" else _WEIGHTS.get(layout.precision)
    if precision is None:
        return None
    return replace(
        layout,
        pipeline=1,
        schedule="1f1b",
        virtual_stages=1,
        micro_batches=1,
        shard=layout.data if layout.arch.experts else 1,
        replicate=1,
        zero="none",
        reshard_after_forward=True,
        precision=precision,
    )


def run_probe(plain: Layout) -> dict[bool, StageRun]:
    """Run blocks of a layout that `probe_of` returned: with experts (True) and without (False), which the model has."""
    arch = plain.arch
    kinds = {arch.is_moe(layer) for layer in (0, arch.layers - 1)}
    return {
        mixed: run_stage(plain, StageKind(0 if mixed else BLOCKS, BLOCKS if mixed else 0, False, False))
        for mixed in kinds
    }


def probed(run: StageRun, streams: Streams, layout: Layout) -> Probed:
    """Return what a block of a probe for `layout` costs on a chip with its wires."""
    forward, backward = (_blocks(run.actions[kind, LAST]) for kind in (FORWARD, BACKWARD))
    kept = [place.end.total() - place.start.total() for place in forward]
    fullest = list(backward)
    if layout.splits_backward:  # only its first stage does a backward pass at once
        fullest += [first_half(layout, [place])[0] for place in backward]
    return Probed(
        min(streams.run([place]).seconds for place in forward),
        min(streams.run([place]).seconds for place in backward),
        kept[1],
        max(0, kept[1] - min(kept)),
        min(place.peak.total() - place.start.total() for place in fullest),
        min(waiting_gradients(layout, [place]).total() for place in backward),
    )


def _blocks(places: list[Place]) -> list[Place]:
    return [place for place in places if place.name.startswith("layer")]
