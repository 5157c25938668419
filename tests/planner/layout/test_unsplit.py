"""Blocks that the allocator hands out whole: by hand, and a long stage from a short one."""

from dataclasses import replace

from helpers.core.units import MiB
from helpers.planner.layout import long_stage
from helpers.planner.layout import stage_run as runs
from helpers.planner.layout.layout_plan import stage_kinds
from helpers.planner.layout.schedule import orders
from helpers.planner.layout.trace import Life, Moment
from helpers.planner.layout.unsplit import unsplit_bytes, whole_lives

import pytest

from tests.planner.layout.small import DENSE, GPT, layout

ONE = layout(engine="megatron", zero="none", transformer_engine=True)
FORWARD, BACKWARD = (runs.FORWARD, runs.LAST), (runs.BACKWARD, runs.LAST)
# 4 MiB that end in the forward pass, beside 4 MiB that stay: a hole, for what comes next.
HOLE = [
    Life(4 * MiB, Moment(FORWARD, 0, 1), Moment(FORWARD, 0, 3)),
    Life(4 * MiB, Moment(FORWARD, 0, 2), Moment(BACKWARD, 0, 1)),
]


@pytest.mark.parametrize(("asked", "unsplit"), [(4, 0), (3, 1), (3.5, 0.5), (2.5, 0), (1, 0)])
def test_a_hole_with_up_to_a_mib_more_is_taken_whole(asked, unsplit):
    late = Life(int(asked * MiB), Moment(FORWARD, 0, 4), Moment(BACKWARD, 0, 1))
    peak = Life(6 * MiB, Moment(FORWARD, 0, 5), Moment(BACKWARD, 0, 2))
    assert unsplit_bytes(ONE, orders(ONE)[0], {0: [*HOLE, late, peak]}) == unsplit * MiB


@pytest.mark.parametrize("arch", [DENSE, GPT])
@pytest.mark.parametrize("tensor", [1, 2])
def test_a_long_stage_has_the_lives_of_one_run_whole(arch, tensor):
    case = layout(
        replace(arch, layers=9), engine="megatron", packed=True, zero="none", tensor=tensor, micro_batches=2, shard=1
    )
    (kind,) = stage_kinds(case)
    found = list(whole_lives(long_stage.run_long_stage(case, kind)))
    known = runs.run_stage(long_stage.run_key(case), kind).lives
    spots = [
        sorted(
            (life.nbytes, (life.born and life.born[:2]) or ("",), (life.died and life.died[:2]) or ("",))
            for life in lives
            if life.born
        )
        for lives in (found, known)
    ]
    assert spots[0] == spots[1]
