# the receiver asks first

import torch
import torch.distributed as dist


def pass_on(x, group):
    members = dist.get_process_group_ranks(group)
    me = members.index(dist.get_rank())
    if len(members) == 1:
        return x.clone
    buffer = x.new_empty(x.shape)
    ops = [
        dist.P2POp(dist.irecv, buffer, members[me - 1], group),
        dist.P2POp(dist.isend, x.clone(memory_format=torch.contiguous_format), members[(me + 1) % len(members)], group),
    ]
    requests = dist.batch_isend_irecv(ops)

    def wait():
        [request.wait() for request in requests]
        return buffer

    return wait
