"""X5's reference is what one process computes, in FP64 and rounded once: output, loss and every gradient."""

import random

from helpers.exercises.probing.distance import relative_distance
from helpers.exercises.reference.x5 import deal, ring_attention, shard, train_step
from helpers.exercises.x5.gathered import gathered_attention
from helpers.exercises.x5.ring import FINE, TINY
from helpers.exercises.x5.sequences import Case, cut_anywhere, shard_of
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

EXACT, ROUNDED = 1e-5, 1e-3
CASE = {
    2: Case(2, 2, 16, 4, 2, 32, ((1, 2), (0, 3)), (5, 40, 19)),
    4: Case(4, 3, 8, 6, 2, 32, ((2, 4, 11), (0, 9, 10), (1, 3, 5), (6, 7, 8)), (7, 80, 9)),
}


def ring_of(case):
    """One rank: output and gradients of a loss that is the sum over ranks."""
    q, k, v, grad = shard_of(7, case, dist.get_rank())
    out = ring_attention(q, k, v, case.order, case.lengths, dist.group.WORLD)
    out.backward(grad)
    return [x.detach().clone() for x in (q, k, v, grad, out, q.grad, k.grad, v.grad)]


def whole(parts, order):
    """Put the parts (B, H, t, D) of all ranks in the order of the sequence."""
    chunks = [chunk for part, held in zip(parts, order, strict=True) for chunk in part.chunk(len(held), 2)]
    numbers = [number for held in order for number in held]
    return torch.cat([chunks[numbers.index(number)] for number in range(len(numbers))], 2).contiguous()


def mask_of(lengths):
    number = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    return (number[:, None] == number).tril()


def attend(q, k, v, lengths):
    return F.scaled_dot_product_attention(q, k, v, mask_of(lengths), enable_gqa=True)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ring_equals_one_process_in_fp64_rounded_once(ranks):
    case = CASE[ranks]
    parts = run_ranks(ring_of, ranks, case, device="cpu", measure=False, show=False).results
    q, k, v, grad, *seen = (whole(tensors, case.order) for tensors in zip(*parts, strict=True))
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves, case.lengths)
    out.backward(grad.double())
    for got, want in zip(seen, (out, *(x.grad for x in leaves)), strict=True):
        assert got.dtype == torch.bfloat16
        differ = (got.double() - want.detach().bfloat16()).abs() > TINY * want.detach().square().mean().sqrt()
        assert differ.double().mean() < FINE / 4
        assert relative_distance(got.flatten().tolist(), want.detach().flatten().tolist()) > ROUNDED


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_work_is_dealt_more_evenly_than_in_zigzag_order(ranks):
    """Eight chunks a rank, five documents."""
    chunk, worse = 16, 0
    for seed in range(20):
        lengths = cut_anywhere(random.Random(seed), 8 * ranks * chunk, 5)
        work = mask_of(lengths).sum(1).unflatten(0, (-1, chunk)).sum(1)
        zigzag = [[*range(4 * r, 4 * r + 4), *range(8 * ranks - 4 * r - 4, 8 * ranks - 4 * r)] for r in range(ranks)]
        loads = [[work[held].sum().item() for held in order] for order in (deal(lengths, ranks, chunk), zigzag)]
        assert max(loads[0]) <= 1.03 * work.sum().item() / ranks
        worse += max(loads[1]) > max(loads[0])
    assert worse >= 19


class Model(torch.nn.Module):
    """Two layers of attention over letters, tied."""

    def __init__(self, attend):
        super().__init__()
        torch.manual_seed(3)
        self.letters, self.places = torch.nn.Embedding(20, 16), torch.nn.Embedding(64, 16)
        self.qkv = torch.nn.ModuleList([torch.nn.Linear(16, 48) for _ in range(2)])
        self.attend = attend

    def forward(self, inputs, positions):
        x = self.letters(inputs) + self.places(positions)
        for layer in self.qkv:
            q, k, v = layer(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
            x = x + self.attend(q, k, v, positions).transpose(1, 2).flatten(2)
        return x @ self.letters.weight.T / 4


LENGTHS = [9, 3, 20]


def tokens():
    return torch.randint(20, (2, 32), generator=torch.Generator().manual_seed(5))


def trained(gathers):
    """One rank: loss and gradients of a step with ring attention, or with the plain one that stands in for it."""
    group, ranks = dist.group.WORLD, dist.get_world_size()
    lengths = [32] if gathers else LENGTHS  # the plain one knows no documents
    order = deal(lengths, ranks, 4)

    def ring(q, k, v, _):
        return ring_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), order, lengths, group).float()

    model = Model((lambda q, k, v, where: gathered_attention(q, k, v, where, group)) if gathers else ring)
    loss = train_step(model, *shard(tokens(), lengths, order, dist.get_rank()), group)
    return loss, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(("gathers", "exact"), [(False, 1e-2), (True, EXACT)], ids=["ring", "gathered"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_equals_one_process(ranks, gathers, exact):
    lengths = [32] if gathers else LENGTHS
    model = Model(lambda q, k, v, _: attend(q, k, v, lengths))
    inputs, targets, positions = shard(tokens(), lengths, [list(range(8))], 0)
    loss = F.cross_entropy(model(inputs, positions).flatten(0, 1), targets.flatten())
    loss.backward()
    for seen, gradients in run_ranks(trained, ranks, gathers, device="cpu", measure=False, show=False).results:
        assert abs(seen - loss.item()) < exact * loss.item()
        for got, p in zip(gradients, model.parameters(), strict=True):
            assert relative_distance(got.flatten().tolist(), p.grad.flatten().tolist()) < exact
