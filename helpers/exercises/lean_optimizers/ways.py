"""The ways that weights go under Adam: under the learner's, under PyTorch's, and with moments in other blocks."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...core.device import pick_device
from ..base import Evidence
from ..probing.distance import relative_distance
from .books import drawn_book, rounded

MakeAdam = Callable[..., torch.optim.Optimizer]
SETTINGS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3}  # not the usual ones, so that none can be left out
LARGE, SMALL = (96, 64), (40, 60)  # 6,144 and 2,400 numbers, on either side of 4,096
Settings = dict[str, Any]  # of a parameter group
SIX, BLOCKS, GROUPS = "six steps", "blocks", "a second group, with a rate of its own"
OTHER_BLOCKS = (64, 128, 512, 1024, 2048)  # sizes that are taken for 256
FALLING = tuple({"lr": rate} for rate in (0.02, 0.016, 0.012, 0.008, 0.004, 0.002))
CASES: dict[str, tuple[Settings, ...]] = {
    SIX: ({},) * 6,
    "a falling learning rate": FALLING,
    "other betas from the fourth step on": ({},) * 3 + ({"betas": (0.5, 0.7)},) * 3,
    "another eps from the fourth step on": ({},) * 3 + ({"eps": 2.0},) * 3,
}


def books_of(seed: int) -> tuple[Tensor, Tensor]:
    """Return the code books of the first and of the second moment; both are as long, so that a code fits either."""
    first, second = drawn_book(seed, True), drawn_book(seed + 1, False)
    return first, torch.cat([second[:1], second[2:]])


def drawn_parameters(seed: int, *shapes: tuple[int, ...]) -> list[nn.Parameter]:
    """Return a parameter of each shape."""
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(pick_device())) for shape in shapes]


def _give_gradients(ps: list[nn.Parameter], generator: torch.Generator) -> list[Tensor]:
    """Give each parameter a gradient that depends on where it is; return copies of them."""
    for p in ps:
        p.grad = torch.randn(p.shape, generator=generator).to(p.device) * (1 + p.detach().abs())
    return [p.grad.clone() for p in ps]


def way(optimizer: Any, ps: list[nn.Parameter], seed: int, changes: Iterable[Settings]) -> list[list[float]]:
    """Take a step after each of `changes` on gradients drawn from `seed`; return how far each parameter went."""
    generator, start = torch.Generator().manual_seed(seed), [p.detach().clone() for p in ps]
    for changed in changes:
        for group in optimizer.param_groups:
            group.update(changed)
        _give_gradients(ps, generator)
        optimizer.step()
    return [(p.detach() - s).cpu().double().flatten().tolist() for p, s in zip(ps, start, strict=True)]


def adams_way(seed: int, shape: tuple[int, ...], changes: Iterable[Settings]) -> list[float]:
    """Return the way that a tensor of this shape goes under `torch.optim.Adam`."""
    ps = drawn_parameters(seed, shape)
    return way(torch.optim.Adam(ps, **SETTINGS), ps, seed, changes)[0]


class InOtherBlocks:
    """Adam whose moments are rounded between steps in blocks of another size, with `SETTINGS`."""

    def __init__(self, p: nn.Parameter, books: tuple[Tensor, Tensor], block: int) -> None:
        self.p, self.books, self.block = p, books, block
        self.param_groups: list[Settings] = []
        self.moments, self.steps = [torch.zeros_like(p), torch.zeros_like(p)], 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        pairs = zip(self.moments, (self.p.grad, self.p.grad.square()), SETTINGS["betas"], strict=True)
        now = [moment.lerp(new, 1 - beta) for moment, new, beta in pairs]
        m, v = (each / (1 - beta**self.steps) for each, beta in zip(now, SETTINGS["betas"], strict=True))
        self.p.sub_(SETTINGS["lr"] * m / (v.sqrt() + SETTINGS["eps"]))
        self.moments = [rounded(each, book, self.block) for each, book in zip(now, self.books, strict=True)]


def first_step_off(seed: int, make: MakeAdam) -> float:
    """Return how far the first step of a large tensor is off, as a share of Adam's."""
    ps = drawn_parameters(seed, LARGE)
    mine = way(make(ps, books_of(seed), **SETTINGS), ps, seed, ({},))[0]
    return relative_distance(mine, adams_way(seed, LARGE, ({},)))


def first_step(seed: int, make: MakeAdam) -> Evidence:
    """Take a step of a large and a small tensor; note how far the large one is off, and which gradients changed."""
    ps, generator = drawn_parameters(seed, LARGE, SMALL), torch.Generator().manual_seed(seed)
    optimizer, start = make(ps, books_of(seed), **SETTINGS), ps[0].detach().clone()
    given = _give_gradients(ps, generator)
    optimizer.step()
    mine = (ps[0].detach() - start).cpu().double().flatten().tolist()
    under_root = -SETTINGS["lr"] * given[0] / (given[0].square() + SETTINGS["eps"]).sqrt()
    same = [p.grad is not None and torch.equal(p.grad, was) for p, was in zip(ps, given, strict=True)]
    return {
        "off": relative_distance(mine, adams_way(seed, LARGE, ({},))),
        "under the root": relative_distance(mine, under_root.cpu().double().flatten().tolist()),
        "moved": any(mine),
        "changed": [size for size, equal in zip(("large", "small"), same, strict=True) if not equal],
    }


def later_steps(seed: int, make: MakeAdam) -> Evidence:
    """Return how far a large tensor goes in several steps, and where the first of them is off."""
    seen: Evidence = {"first": first_step_off(seed, make)}
    for case, changes in CASES.items():
        ps = drawn_parameters(seed, LARGE)
        seen[case] = way(make(ps, books_of(seed), **SETTINGS), ps, seed + 1, changes)[0]
    ps = drawn_parameters(seed, LARGE, LARGE)
    groups = [{"params": ps[:1]}, {"params": ps[1:], "lr": 0.005}]
    seen[GROUPS] = way(make(groups, books_of(seed), **SETTINGS), ps, seed, ({},))[1]
    seen[BLOCKS] = {}
    for block in OTHER_BLOCKS:
        (p,) = drawn_parameters(seed, LARGE)
        seen[BLOCKS][str(block)] = way(InOtherBlocks(p, books_of(seed), block), [p], seed + 1, CASES[SIX])[0]
    return seen
