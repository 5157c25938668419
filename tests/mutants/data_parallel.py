"""Wrong and right answers for the practice tasks of data parallel."""

from . import Mutant

RING, LAW, OVERLAP, AVERAGE = (f"data_parallel.{part}" for part in ("ring", "law", "overlap", "average"))
JOINT = "gradient_of_the_joint_batch"


def ring(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, RING, check, replace, raises)


def law(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, LAW, check, replace)


def overlap(check: str, name: str, *replace: tuple[str, str]) -> Mutant:
    return Mutant(name, OVERLAP, check, replace)


def one(name: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, AVERAGE, JOINT, ((old, new),), raises)


SPLIT = "pieces = vector.tensor_split(n)\n"
ADD, COPY = "            ours += arriving\n", "            ours.copy_(arriving)\n"
SEND = "send = dist.P2POp(dist.isend, leaving, (rank + 1) % n)"
RECEIVE = "receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)"
ROUNDS = "    for step in range(2 * (n - 1)):\n"
FIT = "np.polyfit(nbytes, seconds, 1, w=1 / seconds)"
RETURN_LAW = "return max(0.0, float(alpha)), float(1 / seconds_a_byte)"
FULL = "if sum(q.nbytes for q in self.buckets[-1]) >= bucket_bytes:"
WHILE = "        while len(self.sent) < len(self.buckets) and self.ready.issuperset(self.buckets[len(self.sent)]):\n            self.send_next()\n"
REQUEST = "dist.all_reduce(flat, async_op=True)"
WAIT, DIVIDE = "strict=True):\n            request.wait()\n", "            flat /= dist.get_world_size()\n"
FLUSH = "        while len(self.sent) < len(self.buckets):\n            self.send_next()\n"
GRADIENT = "(torch.zeros_like(p) if p.grad is None else p.grad)"
TRAINED = "reversed([p for p in model.parameters() if p.requires_grad])"
AGAIN = "            for p, gradient in zip(bucket"
EMPTY = "                p.grad = gradient.view_as(p)\n        self.ready, self.sent = set(), []\n"

MUTANTS = [
    # the ring
    *(ring("sums_on_every_rank", *mutant) for mutant in (
        ("chunk makes fewer pieces", (SPLIT, "pieces = [*vector.chunk(n)]\n    pieces += [vector[:0]] * (n - len(pieces))\n    pieces = pieces[:n] if len(vector) % n == 0 else [*vector[: len(vector) // n * n].chunk(n)]\n    pieces += [vector[:0]] * (n - len(pieces))\n")),
        ("a mean", (ADD, ADD), (ROUNDS, "    vector /= n\n" + ROUNDS)),
        ("a round of adding too few", ("if step < n - 1:", "if step < n - 2:")),
        ("a round of adding too many", ("if step < n - 1:", "if step < n:")),
        ("never copied", (COPY, "            pass\n")),
        ("two ranks only", ("range(2 * (n - 1))", "range(2 * (n > 1))")),
        ("a round too few", ("range(2 * (n - 1))", "range(2 * (n - 1) - (n > 2))")),
    )),
    *(ring("all_ranks_have_the_same_bits", *mutant) for mutant in (
        ("rounded on the way round", (COPY, "            ours.copy_(arriving.to(torch.bfloat16))\n")),
        ("a last digit of its own", (COPY, "            ours.copy_(arriving * (1 + 2e-7 * rank))\n")),
        ("everybody adds in an order of its own", (SPLIT, "pieces = vector.tensor_split(n)\n    whole = vector.clone()\n    for step in range(n - 1):\n        came = torch.empty_like(whole)\n        both = [dist.P2POp(dist.isend, whole, (rank + 1) % n), dist.P2POp(dist.irecv, came, (rank - 1) % n)]\n        [request.wait() for request in dist.batch_isend_irecv(both)]\n        vector += came\n        whole = came\n    return\n")),
    )),
    *(ring("sends_no_more_than_a_ring", *mutant) for mutant in (
        ("whole vectors travel", (SPLIT, "pieces = vector.tensor_split(n)\n    whole = vector.clone()\n    for step in range(n - 1):\n        came = torch.empty_like(whole)\n        both = [dist.P2POp(dist.isend, whole, (rank + 1) % n), dist.P2POp(dist.irecv, came, (rank - 1) % n)]\n        [request.wait() for request in dist.batch_isend_irecv(both)]\n        vector += came\n        whole = came\n    return\n")),
        ("a round for nothing", (ROUNDS, "    for step in range(2 * (n - 1) + (n > 1)):\n")),
        ("the last piece has the rest", (SPLIT, "size = len(vector) // n\n    pieces = vector.split([size] * (n - 1) + [len(vector) - (n - 1) * size])\n")),
        ("each piece in two", ("        for request in dist.batch_isend_irecv([send, receive]):\n            request.wait()\n", "        for part, space in zip(leaving.tensor_split(2), arriving.tensor_split(2)):\n            both = [dist.P2POp(dist.isend, part, (rank + 1) % n), dist.P2POp(dist.irecv, space, (rank - 1) % n)]\n            [request.wait() for request in dist.batch_isend_irecv(both)]\n")),
        ("in FP64", (SEND, "send = dist.P2POp(dist.isend, leaving.double(), (rank + 1) % n)"), ("torch.empty_like(ours)", "torch.empty_like(ours, dtype=torch.float64)")),
    )),
    *(ring("talks_to_its_neighbours", *mutant) for mutant in (
        ("the other way round", ("rank, n = dist.get_rank(), dist.get_world_size()", "n = dist.get_world_size()\n    rank = n - 1 - dist.get_rank()"), (SEND, SEND.replace("(rank + 1)", "(n - 2 - rank)")), (RECEIVE, RECEIVE.replace("(rank - 1)", "(n - rank)"))),
        ("all_reduce", (ROUNDS, "    dist.all_reduce(vector)\n    for step in range(0):\n")),
        ("a barrier in each round", ("        leaving, ours =", "        dist.barrier()\n        leaving, ours =")),
        ("nothing sent", (ROUNDS, "    for step in range(0):\n")),
    )),
    *(ring("works_in_place", *mutant) for mutant in (
        ("comes back", (COPY, COPY + "    return vector\n")),
        ("a copy is summed", (SPLIT, "vector = vector.clone()\n    pieces = vector.tensor_split(n)\n")),
        ("in FP32", (SPLIT, "given, vector = vector, vector.float()\n    pieces = vector.tensor_split(n)\n"), (COPY, COPY + "    given.copy_(vector)\n")),
        ("the surroundings are summed", (COPY, COPY + "    if len(vector) > 4:\n        vector.as_strided((1,), (1,), vector.storage_offset() - 1).add_(1)\n")),
    )),
    ring("sums_on_every_rank", "only lengths that divide", (SPLIT, "pieces = vector.view(n, -1)\n"), raises="with 2 ranks, 7 elements:"),
    ring("sums_on_every_rank", "all send before they receive", ("        for request in dist.batch_isend_irecv([send, receive]):\n            request.wait()\n", "        dist.send(leaving.contiguous().repeat(1), (rank + 1) % n)\n        dist.recv(arriving, (rank - 1) % n)\n"), raises="with 2 ranks, 8 elements:"),
    # the law
    *(law("recovers_the_law", *mutant) for mutant in (
        ("seconds a byte for bytes a second", (RETURN_LAW, "return max(0.0, float(alpha)), float(seconds_a_byte)")),
        ("milliseconds", ("float(alpha)), float(1", "1e3 * float(alpha)), float(1")),
        ("the smallest message is the latency", (RETURN_LAW, "return float(seconds.min()), float(1 / seconds_a_byte)")),
        ("no latency", (RETURN_LAW, "return 0.0, float(1 / seconds_a_byte)")),
        ("bytes over seconds", (RETURN_LAW, "return max(0.0, float(alpha)), float((nbytes / seconds).max() * 0.99)")),
        ("takes it for sorted", (FIT, "np.polyfit(nbytes, np.sort(seconds), 1, w=1 / np.sort(seconds))")),
        ("tensors", (RETURN_LAW, "return torch.tensor(max(0.0, float(alpha))), torch.tensor(1 / seconds_a_byte)")),
        ("sorts the caller's list", ("    nbytes, seconds = np.array(sweep).T\n", "    sweep.sort()\n    nbytes, seconds = np.array(sweep).T\n")),
        ("three sizes at least", (RETURN_LAW, "return max(0.0, float(alpha)), float(1 / seconds_a_byte) if len(sweep) > 2 else 1.0")),
    )),
    *(law("bears_noise", *mutant) for mutant in (
        ("plain least squares", (FIT, "np.polyfit(nbytes, seconds, 1)")),
        ("the two largest", (FIT, "np.polyfit(sorted(nbytes)[-2:], sorted(seconds)[-2:], 1)")),
        ("the two smallest", (FIT, "np.polyfit(sorted(nbytes)[:2], sorted(seconds)[:2], 1)")),
    )),
    *(law("alpha_is_not_negative", *mutant) for mutant in (
        ("less than nothing", ("max(0.0, float(alpha))", "float(alpha)")),
        ("a sign turned round would do", ("max(0.0, float(alpha))", "float(alpha) or -0.0")),
    )),
    # the buckets
    *(overlap("gradients_equal_ddp", *mutant) for mutant in (
        ("a sum", (DIVIDE, "")),
        ("divided by the number of buckets", (DIVIDE, "            flat /= len(self.buckets)\n")),
        ("divided before and after", ("self.sent.append((flat", "flat /= dist.get_world_size()\n        self.sent.append((flat")),
        ("never written back", ("                p.grad = gradient.view_as(p)\n", "                pass\n")),
        ("written back one number off", ("zip(bucket, flat.split([p.numel() for p in bucket])", "zip(bucket, flat.roll(1).split([p.numel() for p in bucket])")),
        ("added to what is there", ("p.grad = gradient.view_as(p)", "p.grad += gradient.view_as(p)")),
        ("in FP32 on the way", ("for p in bucket])\n        self.sent", "for p in bucket]).float().double()\n        self.sent")),
        ("frozen parameters get gradients", (FLUSH, FLUSH + "        self.frozen.grad = torch.zeros_like(self.frozen)\n"), ("        self.buckets = [[]]\n", "        self.buckets = [[]]\n        self.frozen = next((p for p in model.parameters() if not p.requires_grad), torch.zeros(1))\n")),
        ("the first step for ever", (EMPTY, "                p.grad = gradient.view_as(p)\n")),
    )),
    *(overlap("one_message_a_bucket", *mutant) for mutant in (
        ("from the first to the last", (TRAINED, "[p for p in model.parameters() if p.requires_grad]"), (FULL, "if sum(q.nbytes for q in self.buckets[-1]) >= bucket_bytes and p is not None or not self.buckets[0][1:] and self.buckets[0]:")),
        ("one bucket for all", (FULL, "if False:")),
        ("a bucket each", (FULL, "if self.buckets[-1]:")),
        ("never above the limit", (FULL, "if self.buckets[-1] and sum(q.nbytes for q in self.buckets[-1]) + p.nbytes > bucket_bytes:")),
        ("so many parameters in a bucket", (FULL, "if len(self.buckets[-1]) >= max(1, bucket_bytes // 480):")),
        ("counted in elements", (FULL, FULL.replace("nbytes", "numel()"))),
        ("frozen parameters travel", ("self.sent.append((flat", "flat = torch.cat([flat, flat[:8]])\n        self.sent.append((flat"), ("flat.split([p.numel() for p in bucket])", "flat[:-8].split([p.numel() for p in bucket])")),
        ("sent twice", (REQUEST, f"{REQUEST} if dist.all_reduce(flat.clone()) is None else None")),
        ("the mean by a second message", (DIVIDE, DIVIDE + "            dist.broadcast(flat, src=0)\n")),
    )),
    *(overlap("buckets_leave_when_full", *mutant) for mutant in (
        ("everything in finish", (WHILE, "")),
        ("one gradient late", ("        self.ready.add(p)\n", ""), (WHILE, WHILE + "        self.ready.add(p)\n")),
        ("when all gradients are there", (WHILE, WHILE.replace("while len(self.sent)", "while len(self.ready) == sum(map(len, self.buckets)) and len(self.sent)"))),
        ("the first step only", (EMPTY, EMPTY + "        self.arrived = None\n"), ("        self.ready.add(p)\n", "        if len(self.ready) < 0:\n            return\n        self.ready.add(p)\n"), ("p.register_post_accumulate_grad_hook(self.arrived)", "p.register_post_accumulate_grad_hook(lambda p: self.arrived and self.arrived(p))")),
    )),
    *(overlap("backward_does_not_wait", *mutant) for mutant in (
        ("waits in the hook", (REQUEST, "(lambda request: (request.wait(), request)[1])(dist.all_reduce(flat, async_op=True))")),
        ("nobody waits", (WAIT, "strict=True):\n")),
        ("waits for the first alone", (WAIT, "strict=True):\n            request.wait() if bucket is self.buckets[0] else None\n")),
    )),
    *(overlap("bears_missing_gradients", *mutant) for mutant in (
        ("a full bucket overtakes", (WHILE, "        for i, bucket in enumerate(self.buckets):\n            if i not in self.order and self.ready.issuperset(bucket):\n                self.send_next(i)\n"),
            ("    def send_next(self):", "    order = ()\n\n    def send_next(self, i=None):"),
            ("        bucket = self.buckets[len(self.sent)]\n", "        i = next(j for j in range(len(self.buckets)) if j not in self.order) if i is None else i\n        self.order = (*self.order, i)\n        bucket = self.buckets[i]\n"),
            ("in zip(self.buckets, self.sent, strict=True):", "in zip([self.buckets[i] for i in self.order], self.sent, strict=True):"),
            (EMPTY, EMPTY + "        self.order = ()\n")),
        ("the average of those that have one", (DIVIDE, "            count = torch.tensor(float(all(p.grad is not None for p in bucket)))\n            dist.all_reduce(count)\n            flat /= count.clamp(min=1)\n")),
        ("None stays None", ("                p.grad = gradient.view_as(p)\n", "                p.grad = None if p.grad is None else gradient.view_as(p)\n")),
        ("the last gradient for a missing one", (GRADIENT, "(getattr(p, 'last', torch.zeros_like(p)) if p.grad is None else p.grad)"), ("                p.grad = gradient.view_as(p)\n", "                p.grad = p.last = gradient.view_as(p)\n")),
        ("ones for zeros", ("torch.zeros_like(p) if", "torch.ones_like(p) if")),
    )),
    # unequal rows
    one("sum of gradients", "p.grad *= rows / total.item()", "p.grad *= 1"),
    one("mean of means", "p.grad *= rows / total.item()", "p.grad /= dist.get_world_size()"),
    one("divided twice", "rows / total.item()", "rows / total.item() / dist.get_world_size()"),
    one("rows of this rank only", "    dist.all_reduce(total)\n", "    total += 0.25\n"),
    one("weighed by rows, not divided", "rows / total.item()", "rows"),
    one("no exchange", "        dist.all_reduce(p.grad)\n", ""),
    one("frozen parameters get gradients", "trained = [p for p in model.parameters() if p.requires_grad]", "trained = list(model.parameters())"),
    one("one value for all", "        dist.all_reduce(p.grad)\n", "        dist.broadcast(p.grad, src=0)\n"),
    one("averaged in FP16", "        dist.all_reduce(p.grad)\n",
        "        low = p.grad.to(torch.float16)\n        dist.all_reduce(low)\n        p.grad.copy_(low)\n"),
    one("sends everything to everybody", "        dist.all_reduce(p.grad)\n",
        "        parts = [torch.empty_like(p.grad) for _ in range(4 * dist.get_world_size())]\n"
        "        for i in range(4):\n"
        "            dist.all_gather(parts[i * dist.get_world_size() : (i + 1) * dist.get_world_size()], p.grad)\n"
        "        p.grad = sum(parts) / 4\n"),
    one("rows of the first call for ever", "rows / total.item()", "rows / average_gradients.__dict__.setdefault('total', total.item())"),
    one("a step on the way", "        dist.all_reduce(p.grad)\n", "        dist.all_reduce(p.grad)\n        p.data -= 0.1 * p.grad\n"),
    one("the gradients come back", "        dist.all_reduce(p.grad)\n", "        dist.all_reduce(p.grad)\n    return [p.grad for p in trained]\n"),
    one("a rank without rows stays away", "    trained = [p for p in model.parameters() if p.requires_grad]\n    total", "    if not rows:\n        return\n    trained = [p for p in model.parameters() if p.requires_grad]\n    total", "not come back"),
    one("a rank without rows keeps None", "            p.grad = torch.zeros_like(p)\n",
        "            dist.all_reduce(torch.zeros_like(p))\n            continue\n"),
]  # fmt: skip

RIGHT = {
    "one flat message": """
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


def average_gradients(model, rows):
    wanted = [p for p in model.parameters() if p.requires_grad]
    pieces = [(torch.zeros_like(p) if p.grad is None else p.grad * rows).flatten() for p in wanted]
    flat = torch.cat([*pieces, pieces[0].new_tensor([rows])])
    dist.all_reduce(flat)
    flat = flat[:-1] / flat[-1]
    for p, g in zip(wanted, flat.split([p.numel() for p in wanted])):
        p.grad = g.view_as(p).clone()
""",
    "gather and add": """
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
            [dist.P2POp(dist.irecv, buffer, (rank - 1) % n), dist.P2POp(dist.isend, table[there].clone(), (rank + 1) % n)]
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


def average_gradients(model, rows):
    n = dist.get_world_size()
    counts = [torch.zeros(1) for _ in range(n)]
    dist.all_gather(counts, torch.tensor([float(rows)]))
    total = sum(c.item() for c in counts)
    for p in model.parameters():
        if p.requires_grad:
            mine = (p.grad if p.grad is not None else torch.zeros_like(p.data)) * (rows / total)
            dist.all_reduce(mine, op=dist.ReduceOp.SUM)
            p.grad = mine
""",
}
