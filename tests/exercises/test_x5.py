"""X5's reference is what one process computes: output, loss and every gradient, in FP32."""

from helpers.exercises.probing.distance import relative_distance
from helpers.exercises.reference.x5 import ring_attention, shard, train_step
from helpers.exercises.x5.gathered import gathered_attention
from helpers.exercises.x5.sequences import Case, shard_of
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

EXACT = 1e-5
CASE = {2: Case(2, 5, 4, 2, 12, 2), 4: Case(4, 3, 6, 2, 8)}


def ring_of(case):
    """One rank: output and gradients of a loss that is the sum over ranks."""
    q, k, v, grad = shard_of(7, case, dist.get_rank())
    out = ring_attention(q, k, v, dist.group.WORLD)
    out.backward(grad)
    return [x.detach().clone() for x in (q, k, v, grad, out, q.grad, k.grad, v.grad)]


def whole(parts, chunk):
    """Put the parts (B, H, t, D) of all ranks in the order of the sequence."""
    ranks = len(parts)
    early, late = zip(*(part.split(chunk, 2) for part in parts), strict=True)
    return torch.cat([*early, *late[::-1]], 2).contiguous() if ranks > 1 else parts[0]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_ring_equals_one_process(ranks):
    case = CASE[ranks]
    parts = run_ranks(ring_of, ranks, case, device="cpu", measure=False, show=False).results
    q, k, v, grad, *seen = (whole(tensors, case.chunk) for tensors in zip(*parts, strict=True))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out.backward(grad)
    for got, want in zip(seen, (out, *(x.grad for x in leaves)), strict=True):
        assert relative_distance(got.flatten().tolist(), want.detach().flatten().tolist()) < EXACT


class Model(torch.nn.Module):
    """Two layers of causal attention over letters, tied."""

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


def tokens():
    return torch.randint(20, (2, 33), generator=torch.Generator().manual_seed(5))


def trained(gathers):
    """One rank: loss and gradients of a step with ring attention, or with the plain one that stands in for it."""
    group = dist.group.WORLD
    plain = lambda q, k, v, positions: gathered_attention(q, k, v, positions, group)  # noqa: E731
    model = Model(plain if gathers else lambda q, k, v, _: ring_attention(q, k, v, group))
    loss = train_step(model, *shard(tokens(), dist.get_rank(), dist.get_world_size()), group)
    return loss, [p.grad for p in model.parameters()]


@pytest.mark.parametrize("gathers", [False, True], ids=["ring", "gathered"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_equals_one_process(ranks, gathers):
    model = Model(lambda q, k, v, _: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    text = tokens()
    loss = F.cross_entropy(model(text[:, :-1], torch.arange(32)).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    for seen, gradients in run_ranks(trained, ranks, gathers, device="cpu", measure=False, show=False).results:
        assert abs(seen - loss.item()) < EXACT * loss.item()
        for got, p in zip(gradients, model.parameters(), strict=True):
            assert relative_distance(got.flatten().tolist(), p.grad.flatten().tolist()) < EXACT
