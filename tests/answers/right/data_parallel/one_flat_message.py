# one flat message

import torch
import torch.distributed as dist


def ring_all_reduce(vector):
    n, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % n, (rank - 1) % n
    edges = [i * len(vector) // n for i in range(n + 1)]

    def piece(i):
        return vector[edges[i % n] : edges[i % n + 1]]

    for step in range(n - 1):
        came = torch.empty_like(piece(rank - step - 1))
        sending = dist.isend(piece(rank - step), right)
        dist.recv(came, left)
        sending.wait()
        piece(rank - step - 1).add_(came)
    for step in range(n - 1):
        sending = dist.isend(piece(rank + 1 - step), right)
        dist.recv(piece(rank - step), left)
        sending.wait()


def fit_link(sweep):
    (n1, t1), (n2, t2) = min(sweep), max(sweep)
    beta = (n2 - n1) / (t2 - t1)
    return max(t1 - n1 / beta, 0.0), beta


class BucketedAverage:
    def __init__(self, model, bucket_bytes):
        parameters = [p for p in model.parameters() if p.requires_grad][::-1]
        self.buckets, bucket = [], []
        for p in parameters:
            bucket.append(p)
            if sum(q.numel() * q.element_size() for q in bucket) >= bucket_bytes:
                self.buckets.append(bucket)
                bucket = []
        self.buckets += [bucket] if bucket else []
        self.index = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.hook)
        self.restart()

    def restart(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.flats, self.works = [], []

    def hook(self, p):
        self.missing[self.index[p]] -= 1
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
            self.launch()

    def launch(self):
        bucket, at = self.buckets[len(self.works)], 0
        flat = bucket[0].new_zeros(sum(p.numel() for p in bucket))
        for p in bucket:
            if p.grad is not None:
                flat[at : at + p.numel()] = p.grad.reshape(-1) / dist.get_world_size()
            at += p.numel()
        self.flats.append(flat)
        self.works.append(dist.all_reduce(flat, async_op=True))

    def finish(self):
        while len(self.works) < len(self.buckets):
            self.launch()
        for work in self.works:
            work.wait()
        for bucket, flat in zip(self.buckets, self.flats):
            at = 0
            for p in bucket:
                p.grad = flat[at : at + p.numel()].view(p.shape).clone()
                at += p.numel()
        self.restart()
