"""What the lab on balance and documents uses: a clock of the ranks, and pictures."""

from helpers.exercises.balance_and_documents.clock import ClockedRing, clock_rings
from helpers.exercises.balance_and_documents.pictures import scores_picture, timeline_picture
from helpers.exercises.context_parallel.attend import attend
from helpers.exercises.context_parallel.block_log import Entry

import pytest
import torch
import torch.distributed as dist


def test_what_waits_is_counted_and_clocked():
    logs = [[Entry("forward", 1, 0.0, 1.0)], [Entry("forward", 3, 0.0, 3.0)]]
    run = ClockedRing(logs, 1.0)
    assert run.counted == run.idle == pytest.approx(100 / 3)
    assert not run.busy
    late = ClockedRing([*logs, [Entry("forward", 3, 0.5, 6.0)]], 1.0)
    assert late.busy
    assert late.share == pytest.approx(late.counted, abs=0.1)
    assert "too busy" in str(late)


def _step(order):
    q = torch.randn(1, 1, 8, 2)
    for _ in range(order[dist.get_rank()]):
        attend(q, q, q, causal=False)


@pytest.mark.slow
def test_a_ring_is_clocked_on_ranks(capsys):
    runs = clock_rings(_step, 2, {"uneven": [1, 3], "even": [2, 2]})
    assert runs["uneven"].counted == pytest.approx(100 / 3)
    assert runs["even"].counted == 0
    assert all(run.stretch > 0.99 for run in runs.values())
    assert ("this machine is busy" in capsys.readouterr().out) == any(run.busy for run in runs.values())


def test_pictures_can_be_drawn(tmp_path):
    entries = [[Entry("forward", 1, 0.0, 1.0), Entry("backward", 2, 1.0, 3.0)], [Entry("forward", 3, 0.0, 3.0)]]
    drawn = (scores_picture([[0, 3], [1, 2]], "zigzag"), timeline_picture(ClockedRing(entries, 1.0), "two ranks"))
    for i, figure in enumerate(drawn):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 1000
