# a context for a lane's random state

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F


@contextlib.contextmanager
def in_lane(random, lane):
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(random[lane])
        yield
        random[lane] = torch.get_rng_state()


def gradient(model, streams, random, micro_batches):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for lane, stream in sorted(streams.items()):
        model.zero_grad(set_to_none=True)
        with in_lane(random, lane):
            for x, y in (next(stream) for _ in range(micro_batches)):
                loss = F.nll_loss(model(x).log_softmax(1), y)
                loss.backward()
        torch._foreach_add_(total, [p.grad for p in model.parameters()])
    for p, g in zip(model.parameters(), total):
        dist.all_reduce(g)
        p.grad = g.div_(2 * micro_batches)
