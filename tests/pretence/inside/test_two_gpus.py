"""What `helpers` does with several GPUs: ranks, each on its own; random numbers of all of them."""

from types import SimpleNamespace

from helpers import RankError, SmallGPT, run_ranks
from helpers.claims.claims import Claims
from helpers.core.device import rank_device
from helpers.course.receipts.measurements import _subjects, data_parallel
from helpers.ranks.called import collectives_called
from helpers.ranks.failure import QUEUED
from helpers.widgets.draw_ahead import DrawAhead

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.gpus(2)


def _on_its_gpu():
    mine = torch.full((3,), float(dist.get_rank() + 1), device=rank_device())
    dist.all_reduce(mine)
    return str(mine.device), torch.cuda.current_device(), dist.get_backend(), mine.tolist()


def test_each_rank_has_a_gpu_of_its_own():
    results = run_ranks(_on_its_gpu, 2, show=False).results
    assert [(device, current, total) for device, current, _, total in results] == [
        ("cuda:0", 0, [3.0] * 3),
        ("cuda:1", 1, [3.0] * 3),
    ]


def test_ranks_beyond_the_gpus_stay_on_the_cpu_and_may_not_ask_for_more():
    gpus = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"has {gpus} GPUs"):
        run_ranks(_on_its_gpu, gpus + 1, device="cuda")
    results = run_ranks(lambda: (str(rank_device()), torch.cuda.is_available()), 2, device="cpu", show=False).results
    assert results == [("cpu", False)] * 2


def test_data_parallel_is_timed_on_all_gpus(monkeypatch):
    monkeypatch.setattr(data_parallel, "_train", lambda: (0.1, 100))
    monkeypatch.setattr(data_parallel, "gpt", lambda device: SimpleNamespace(words="a GPT"))
    claims = Claims()
    data_parallel.measure(claims, torch.device("cuda"))
    assert len(claims.rows) == 2


def _train_small():
    def batch(where):
        return torch.zeros(2, 8, dtype=torch.int64, device=where), torch.zeros(2, 8, dtype=torch.int64, device=where)

    data_parallel.gpt = lambda device: _subjects.ModelSpec("a small GPT", lambda: SmallGPT(16, 8, 1, 32, 1), batch)
    return data_parallel._train()


def test_ranks_train_a_model_of_their_own_size():
    seconds, peaks = zip(*run_ranks(_train_small, 2, show=False, measure=False).results, strict=True)
    assert min(seconds) > 0
    assert min(peaks) > 4 * sum(p.numel() for p in SmallGPT(16, 8, 1, 32, 1).parameters())


def _one_of_two_fails():
    if dist.get_rank() == 1:
        raise ArithmeticError("rank 1 cannot go on")
    dist.barrier()


def test_a_report_on_gpus_says_that_calls_only_queue():
    with pytest.raises(RankError, match="rank 1 raised ArithmeticError") as error:
        run_ranks(_one_of_two_fails, 2, show=False)
    assert QUEUED in str(error.value)


def _reduce_and_look():
    dist.all_reduce(torch.ones(1, device=rank_device()))
    return collectives_called()


def test_ranks_know_the_collectives_that_nccl_has_recorded():
    built_with_nccl = hasattr(torch._C._distributed_c10d, "_dump_nccl_trace_json")
    for names in run_ranks(_reduce_and_look, 2, show=False).results:
        assert any("all_reduce" in name for name in names) == built_with_nccl


def _numbers():
    return [torch.rand(1, device=f"cuda:{i}").item() for i in range(2)]


def test_drawing_ahead_leaves_every_gpus_random_numbers_alone():
    drawn = []
    drawing = DrawAhead.__new__(DrawAhead)  # it takes a kernel to make one as usual
    drawing._rest = iter([(1,)])
    drawing._loop = SimpleNamespace(call_later=lambda seconds, call: None)
    drawing._draw = lambda value: drawn.extend(_numbers())
    torch.cuda.manual_seed_all(7)
    drawing._draw_one()
    assert drawn == _numbers()
