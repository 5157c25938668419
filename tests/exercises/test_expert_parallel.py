"""What lab and checks of expert parallelism rest on: the plain loop, what leaves a rank, pictures."""

from helpers.exercises.expert_parallel import pictures
from helpers.exercises.expert_parallel.one_loop import one_loop
from helpers.exercises.expert_parallel.parcels import Parcels
from helpers.exercises.mixture_of_experts.inputs import drawn
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh

SEND = [[1, 2, 3], [0, 4, 1], [2, 0, 0]]  # row i, column j: rows from rank i to rank j
ROW = 5 * 4  # bytes


def _one_exchange(way):
    """One rank: exchange rows as the table says; return what was noted."""
    me = dist.get_rank()
    send, receive = SEND[me], [row[me] for row in SEND]
    rows, arrived = torch.ones(sum(send), 5), torch.empty(sum(receive), 5)
    with Parcels() as parcels:
        if way == "one tensor":
            dist.all_to_all_single(arrived, rows, receive, send)
        else:
            funcol.all_to_all_single(rows, receive, send, dist.group.WORLD).sum().item()
    return parcels.parcels


@pytest.mark.parametrize("way", ["one tensor", "functional"])
def test_of_an_uneven_exchange_only_what_leaves_counts(way):
    results = run_ranks(_one_exchange, 3, way, device="cpu", measure=False).results
    for me, parcels in enumerate(results):
        (parcel,) = parcels
        assert parcel.name == "all_to_all"
        assert parcel.ranks == (0, 1, 2)
        assert parcel.left == ROW * (sum(SEND[me]) - SEND[me][me])
        assert parcel.arrived == ROW * (sum(row[me] for row in SEND) - SEND[me][me])


def test_even_exchanges_and_other_collectives_are_counted_in_their_group():
    def on_a_rank():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "expert"))
        with Parcels() as parcels:
            dist.all_to_all_single(torch.empty(4, 5), torch.ones(4, 5))
            dist.all_to_all(list(torch.empty(4, 5)), list(torch.ones(4, 5)))
            funcol.all_reduce(torch.ones(8), "sum", mesh.get_group("replica")).sum().item()
            dist.all_reduce(torch.ones(8), group=mesh.get_group("replica"))
            dist.barrier()
        ranks = dist.get_process_group_ranks(mesh.get_group("replica"))
        return parcels.left, parcels.arrived, parcels.left_among(ranks), parcels.left_among(range(4))

    for found in run_ranks(on_a_rank, 4, device="cpu", measure=False).results:
        assert found == (6 * ROW + 64, 6 * ROW + 64, 64, 6 * ROW)  # an all-reduce sends 2 (N - 1) / N of 32 bytes


def test_the_loop_is_what_autograd_makes_of_one_token_at_a_time():
    given = drawn(0, 6, [1.0, 0.0, -99.0, 0.0])
    assert not (given.chosen == 2).any()
    got = one_loop(given)
    up = given.up.clone().requires_grad_()
    y = torch.stack(
        [
            sum(w * (F.gelu(up[e] @ x) @ given.down[e].T) for e, w in zip(chosen, weights, strict=True))
            for x, chosen, weights in zip(given.x, given.chosen, given.weights, strict=True)
        ]
    )
    (y * given.goal).sum().backward()
    torch.testing.assert_close(got["y"], y.detach())
    torch.testing.assert_close(got["up"], up.grad)
    assert not got["up"][2].any()


def test_pictures_can_be_drawn(tmp_path):
    for i, figure in enumerate((pictures.exchange_picture(SEND), pictures.mesh_picture(2, 3))):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 1000
