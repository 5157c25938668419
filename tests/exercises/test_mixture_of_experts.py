"""What lab and checks of the mixture of experts rest on: training, pictures, and the layer that later labs use."""

from helpers.core.data import Split
from helpers.exercises.mixture_of_experts import pictures
from helpers.exercises.mixture_of_experts.built import MoE
from helpers.exercises.mixture_of_experts.trained import batch_at, train
from helpers.exercises.mixture_of_experts.window_model import SEES, WIDTH, WindowModel, windows

import pytest
import torch
from torch import nn

from ..labs.names_of import names_of


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
    drawn_ones = (pictures.layer_picture(), pictures.loads_picture({"one": loads, "another": loads}))
    for i, figure in enumerate(drawn_ones):
        figure.savefig(tmp_path / f"{i}.png")
        assert (tmp_path / f"{i}.png").stat().st_size > 1000


def test_later_labs_use_the_layer_of_the_lab(capsys):
    lab = names_of("mixture_of_experts", "setup", "setup_torch", "layer", "layer_class")["MoE"]
    x, found = torch.randn(20, WIDTH), []
    for kind in (lab, MoE):
        torch.manual_seed(0)
        layer = kind(experts=4, k=2, hidden=16)
        layer.bias += torch.tensor([0.0, 0.5, 0.0, 0.0])
        y = layer(x)
        y.square().mean().backward()
        found.append([y, layer.chosen, layer.counts, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
