# isend and irecv in a class that is called

import torch
import torch.distributed as dist


class Message:
    def __init__(self, x, group):
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        to, of = (dist.get_global_rank(group, (rank + step) % ranks) for step in (1, -1))
        self.sent, self.came = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.works = [dist.isend(self.sent, to, group=group), dist.irecv(self.came, of, group=group)]

    def __call__(self):
        for work in self.works:
            work.wait()
        return self.came


def pass_on(x, group):
    return Message(x, group) if dist.get_world_size(group) > 1 else (lambda: x)
