"""What the log of collectives hears, on two real ranks."""

from helpers import Collectives, MemoryMeter, rank_device, run_ranks
from helpers.ranks.collectives import Collective

import pytest
import torch
import torch.distributed as dist
from torch import nn


def said_by(work):
    def on_a_rank():
        with Collectives() as said:
            work()
        return said.calls

    return run_ranks(on_a_rank, 2, measure=False).results


def test_names_and_sizes_of_whole_messages():
    def work():
        x = torch.ones(8)
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather([torch.empty(8), torch.empty(8)], x)
        dist.reduce_scatter(torch.empty(4), [x[:4], x[4:]])
        dist.barrier()
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)

    first, second = said_by(work)
    same = [("all_reduce", 32), ("broadcast", 32), ("all_gather", 64), ("reduce_scatter", 32), ("barrier", 0)]
    assert first == [Collective(*call) for call in [*same, ("send", 32)]]
    assert second == [Collective(*call) for call in [*same, ("recv", 32)]]


def test_volume_is_that_of_rings():
    calls = [Collective("all_reduce", 100), Collective("all_gather", 100), Collective("reduce_scatter", 100)]
    assert [call.volume for call in calls] == [200, 100, 100]
    assert Collective("recv", 100).volume == Collective("barrier", 0).volume == 0


def test_ddp_in_the_backward_pass_is_heard_also_beside_a_meter():
    def on_a_rank():
        model = nn.parallel.DistributedDataParallel(nn.Linear(100, 10).to(rank_device()))
        counts = []
        for _ in range(3):
            with MemoryMeter(model), Collectives() as said:
                model(torch.ones(2, 100, device=rank_device())).sum().backward()
            counts.append((said.count("all_reduce"), said.volume))
        return counts

    counts = run_ranks(on_a_rank, 2, measure=False).results[0]
    assert counts[0] == counts[2] == (1, 2 * 4040)


def test_fully_shard_costs_three_times_the_parameters():
    def on_a_rank():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(rank_device().type, (2,))
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)).to(rank_device())
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with Collectives() as said:
            model(torch.ones(2, 64, device=rank_device())).sum().backward()
        return said.volume, str(said)

    volume, words = run_ranks(on_a_rank, 2, measure=False).results[0]
    assert volume == 3 * 2 * 64 * 64 * 4
    assert words == "4 x all_gather of 16,384 B, 2 x reduce_scatter of 16,384 B"


def test_functional_collectives_of_tensor_parallelism_are_heard_once_and_without_warnings():
    def on_a_rank():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).to(rank_device())
        mesh = init_device_mesh(rank_device().type, (2,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        x = torch.ones(4, 16, requires_grad=True, device=rank_device())
        with MemoryMeter(model), Collectives() as said:
            model(x).sum().backward()
        return said.calls

    run = run_ranks(on_a_rank, 2, measure=False)
    assert run.results[0] == [Collective("all_reduce", 256)] * 2
    assert run.printed == ["", ""]


def test_nothing_said():
    with Collectives() as said:
        torch.ones(3).sum()
    assert said.calls == []
    assert str(said) == "nothing was said"
    assert said.volume == 0


@pytest.mark.parametrize("accumulate", [1, 3])
def test_x3_reference_equals_one_process_on_the_joint_batch(accumulate):
    """Independent of the checks: the same rows in one process, with no process group."""
    from helpers.exercises.probing.distance import relative_distance
    from helpers.exercises.reference.x3 import train_epoch
    from helpers.exercises.x3 import epoch
    from helpers.exercises.x3.material import Net, Rows, weights

    import torch.nn.functional as F
    from torch.utils.data import DistributedSampler

    case = epoch._Case(26, accumulate)
    ranks = run_ranks(epoch._epochs, 2, train_epoch, 5, case, measure=False).results
    torch.manual_seed(5)
    model, rows = Net(), Rows(5, 26)
    before = weights(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2, weight_decay=0.1)
    parts = [list(DistributedSampler(rows, 2, rank, shuffle=True, seed=10)) for rank in range(2)]
    step = 4 * accumulate
    for start in range(0, 13, step):
        chosen = [i for part in parts for i in part[start : start + step]]
        optimizer.zero_grad()
        F.cross_entropy(model(rows.x[chosen]), rows.y[chosen]).backward()
        optimizer.step()
    moved = [b - a for a, b in zip(before, weights(model), strict=True)]
    assert relative_distance(ranks[0]["moved"], moved) < 1e-12
    assert ranks[0]["weights"] == ranks[1]["weights"]
