"""A wire that sends, over gloo, and a count of everything that a rank sends."""

from collections import Counter

from helpers.meter.count import Count
from helpers.planner.layout.wire import Wire

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes


class RealWire(Wire):
    """The ranks of one dimension, as a process group of gloo."""

    def __init__(self, name, listener, group):
        super().__init__(name, dist.get_world_size(group), listener, dist.get_rank(group))
        self.group = group

    def all_reduce(self, x, largest=False):
        out = x.clone()
        dist.all_reduce(out, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group)
        return self._made(out)

    def all_gather(self, x, dim):
        shape = list(x.shape)
        shape[dim] *= self.size
        whole = x.new_empty(shape)
        front = whole.unflatten(dim, (self.size, -1)).movedim(dim, 0)
        assert front.is_contiguous()  # one sequence a micro-batch: tokens lie in front, as Megatron has them
        dist.all_gather_into_tensor(front.flatten(), x.contiguous().flatten(), group=self.group)
        return self._made(whole)

    def reduce_scatter(self, x, dim):
        front = x.contiguous().unflatten(dim, (self.size, -1)).movedim(dim, 0)
        assert front.is_contiguous()
        own = x.new_empty(front.shape[1:])
        dist.reduce_scatter_tensor(own.flatten(), front.flatten(), group=self.group)
        return self._made(own)

    def all_to_all(self, x, split, join):
        outgoing = x.unflatten(split, (self.size, -1)).movedim(split, 0).contiguous()
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming.flatten(), outgoing.flatten(), group=self.group)
        return self._made(incoming.movedim(0, join).flatten(join, join + 1).contiguous())

    def arrived(self, x):
        return x

    def shift(self, x):
        came = torch.empty_like(x)
        sent = dist.isend(x, group=self.group, group_dst=(self.rank + 1) % self.size)
        dist.recv(came, group=self.group, group_src=(self.rank - 1) % self.size)
        sent.wait()
        return self._made(came)


class Post:
    """Messages between pipeline stages. What the network keeps of a message until it is fetched is not the rank's."""

    def __init__(self, group, sent):
        self.group, self.pending, self.sent = group, [], sent

    def send(self, x, to, tag):
        with _disable_current_modes():
            copy = x.detach().clone().contiguous()
            self.pending.append((dist.isend(copy, group=self.group, group_dst=to, tag=tag), copy))
        self.sent["pipeline", "send"] += 1
        self.sent["pipeline", "send", "bytes"] += x.numel() * x.element_size()

    def receive(self, x, source, tag):
        with _disable_current_modes():
            dist.recv(x.detach(), group=self.group, group_src=source, tag=tag)

    def finish(self):
        for work, _ in self.pending:
            work.wait()
        self.pending.clear()


_COLLECTIVES = {  # operation -> (collective, where the whole tensor is, where the group is)
    "c10d::allreduce_": ("all-reduce", 0, 1),
    "c10d::_allgather_base_": ("all-gather", 0, 2),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1, 2),
    "c10d::alltoall_base_": ("all-to-all", 1, 2),
    "c10d::send": ("shift", 0, 1),
}


class Meter(Count):
    """Counts the tensors of a rank, and what PyTorch's own collectives send: it sees every one of them."""

    def __init__(self):
        self.ticks = 0
        super().__init__("cpu", self._tick, lambda storage: storage._cdata)
        self.names, self.sent, self.unknown = {}, Counter(), Counter()

    def _tick(self):
        self.ticks += 1
        return self.ticks

    def observe(self, func, args, kwargs, result):
        name = func._schema.name
        if name in _COLLECTIVES:
            collective, whole, group = _COLLECTIVES[name]
            tensor = args[whole][0] if isinstance(args[whole], list | tuple) else args[whole]
            wire = self.names[dist.ProcessGroup.unbox(args[group]).group_name]
            self.sent[wire, collective] += 1
            self.sent[wire, collective, "bytes"] += tensor.numel() * tensor.element_size()
        elif name.startswith(("c10d::", "_c10d_functional::")) and name not in ("c10d::recv_",):
            self.unknown[name] += 1

    def tell(self, collective, wire, nbytes):
        """What a wire says about itself does not count here."""

    def made(self, tensor):
        self.track(tensor)

    def kept(self, tensor):
        """What the forward pass keeps of a gathered input is alive, and so counted already."""

    def peak(self, since):
        """The most bytes alive at once from tick `since` on; what gloo copies for itself is not the program's."""
        blocks = [b for b in self.blocks if b.op.name != "c10d._reduce_scatter_base_.default"]
        changes = [(b.start, b.nbytes) for b in blocks] + [(b.end, -b.nbytes) for b in blocks if b.end is not None]
        held = most = 0
        for tick, nbytes in sorted(changes):
            most = max(most, held if tick >= since else 0)
            held += nbytes
        return max(most, held)
