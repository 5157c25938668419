"""What lab and checks of the mixture of experts rest on: the plain loop, what leaves a rank, training, pictures."""

from helpers.core.data import Split
from helpers.exercises.mixture_of_experts import pictures
from helpers.exercises.mixture_of_experts.inputs import drawn
from helpers.exercises.mixture_of_experts.one_loop import one_loop
from helpers.exercises.mixture_of_experts.parcels import Parcels
from helpers.exercises.mixture_of_experts.trained import batch_at, train
from helpers.exercises.mixture_of_experts.window_model import SEES, WIDTH, WindowModel, windows
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
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


class Counting(nn.Module):
    """Looks like a layer of experts, of which the first gets every choice."""

    def __init__(self):
        super().__init__()
        self.router, self.counts = nn.Linear(WIDTH, 4), torch.tensor([8, 0, 0, 0])

    def forward(self, x):
        return self.router(x).sum(dim=1, keepdim=True).expand_as(x)


@pytest.fixture
def text():
    ids = torch.arange(400) % 7
    return Split(ids[40:-1], ids[41:], ids[:40], ids[1:41])


def test_a_window_is_followed_by_its_target(text):
    x, y = windows(text.train_x, text.train_y, torch.tensor([0, 3]))
    assert x.shape == (2, SEES)
    assert torch.equal(y, (x[:, -1] + 1) % 7)
    assert batch_at(text, 5, torch.Generator().manual_seed(0))[0].shape == (5, SEES)


def test_training_learns_and_notes_every_load(text):
    seen = []
    run = train(WindowModel(Counting), text, 12, also=lambda layer: 0 * layer.router.weight.sum(), after=seen.append)
    assert run.losses[-1] < run.losses[0]
    assert run.loads.shape == (12, 2, 4)
    assert run.busiest() == 4
    assert len(seen) == 24
    assert run.smoothed(2)[-1] == pytest.approx(sum(run.losses[-2:]) / 2)
    assert train(WindowModel(lambda: nn.Linear(WIDTH, WIDTH)), text, 2).loads.numel() == 0


def test_models_of_one_seed_begin_alike():
    first, second = (WindowModel(lambda: nn.Linear(WIDTH, WIDTH)).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_pictures_can_be_drawn(tmp_path):
    loads = torch.rand(20, 2, 8).softmax(dim=2)
    drawn_ones = (
        pictures.layer_picture(),
        pictures.loads_picture({"one": loads, "another": loads}),
        pictures.exchange_picture(SEND),
        pictures.mesh_picture(2, 3),
    )
    for i, figure in enumerate(drawn_ones):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 1000
