# gather and add

import torch
import torch.distributed as dist


def ring_all_reduce(vector):
    n = dist.get_world_size()
    if n == 1:
        return
    rank = dist.get_rank()
    size = -(-len(vector) // n)
    padded = vector.new_zeros(n * size)
    padded[: len(vector)] = vector
    table = padded.view(n, size)
    buffer = vector.new_empty(size)
    for step in range(2 * n - 2):
        there, here = (rank - step) % n, (rank - step - 1) % n
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, buffer, (rank - 1) % n),
                dist.P2POp(dist.isend, table[there].clone(), (rank + 1) % n),
            ]
        )
        for work in works:
            work.wait()
        table[here] = table[here] + buffer if step < n - 1 else buffer
    vector.copy_(padded[: len(vector)])


def fit_link(sweep):
    rows = torch.tensor([[1 / t, n / 1e6 / t] for n, t in sweep], dtype=torch.float64)
    alpha, slope = torch.linalg.lstsq(rows, torch.ones(len(sweep), 1, dtype=torch.float64)).solution.flatten().tolist()
    return max(alpha, 0.0), 1e6 / slope


class BucketedAverage:
    def __init__(self, model, bucket_bytes):
        self.queue, room = [], 0
        for p in reversed(list(model.parameters())):
            if not p.requires_grad:
                continue
            if room <= 0:
                self.queue.append({"parameters": [], "there": set()})
                room = bucket_bytes
            self.queue[-1]["parameters"].append(p)
            room -= p.nbytes
            p.register_post_accumulate_grad_hook(self._make_hook(self.queue[-1]))
        self.under_way = []

    def _make_hook(self, bucket):
        def hook(p):
            bucket["there"].add(id(p))
            self._send(wait_for_all=True)

        return hook

    def _send(self, wait_for_all):
        for bucket in self.queue[len(self.under_way) :]:
            if wait_for_all and len(bucket["there"]) < len(bucket["parameters"]):
                return
            for p in bucket["parameters"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            flat = torch._utils._flatten_dense_tensors([p.grad for p in bucket["parameters"]])
            self.under_way.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        self._send(wait_for_all=False)
        for bucket, (flat, work) in zip(self.queue, self.under_way):
            work.wait()
            parts = torch._utils._unflatten_dense_tensors(flat / dist.get_world_size(), bucket["parameters"])
            for p, part in zip(bucket["parameters"], parts):
                p.grad.copy_(part)
            bucket["there"].clear()
        self.under_way = []
