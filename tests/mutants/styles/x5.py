"""Right answers to parts of X5."""

SHARD, PASS, RING, TRAIN = "x5.shard", "x5.pass_on", "x5.ring", "x5.train"

STYLES = {
    "two aranges": (SHARD, """
def shard(tokens, rank, ranks):
    n = tokens.shape[1] - 1
    if n % (2 * ranks):
        raise ValueError(f"{n} tokens cannot be cut into {2 * ranks} equal chunks")
    c = n // (2 * ranks)
    first, second = rank * c, (2 * ranks - 1 - rank) * c
    positions = torch.cat([torch.arange(i, i + c, device=tokens.device) for i in (first, second)])
    return tokens[:, :-1].index_select(1, positions), tokens[:, 1:].index_select(1, positions), positions
"""),
    "chunks of inputs and targets": (SHARD, """
def shard(tokens, rank, ranks):
    x, y = tokens[:, :-1], tokens[:, 1:]
    pieces = 2 * ranks
    if x.shape[1] % pieces != 0:
        raise ValueError("the sequence does not divide by twice the number of ranks")
    where = torch.arange(x.shape[1], device=tokens.device)
    mine = lambda t: torch.cat([t.chunk(pieces, -1)[i] for i in (rank, pieces - 1 - rank)], dim=-1)
    return mine(x), mine(y), mine(where)
"""),
    "a mask of the chunks": (SHARD, """
def shard(tokens, rank, ranks):
    n = tokens.size(1) - 1
    if n % (2 * ranks):
        raise ValueError(n)
    at = torch.arange(n, device=tokens.device)
    chunk = torch.div(at, n // (2 * ranks), rounding_mode="floor")
    positions = at[(chunk == rank) | (chunk + rank == 2 * ranks - 1)]
    return tokens[:, positions], tokens[:, positions + 1], positions
"""),
    "isend and irecv in a class that is called": (PASS, """
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
"""),
    "the receiver asks first": (PASS, """
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
"""),
    "scores by matrix products and an added mask": (RING, """
def scores(q, k, mine):
    s = (q / q.shape[-1] ** 0.5) @ k.unsqueeze(2).mT
    if mine:
        i, j = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
        s = s + torch.where(i[:, None] >= j, 0.0, float("-inf"))
    return s


RingAttention.scores = staticmethod(scores)
"""),
    "the slices in a table": (RING, """
def meets(source, rank, half):
    whole, late, early = slice(None), slice(half, None), slice(0, half)
    table = {-1: (whole, early), 0: (whole, whole), 1: (late, whole)}
    return table[(source > rank) - (source < rank)]
"""),
    "one all-reduce of all gradients in one vector": (TRAIN, """
def train_step(model, inputs, targets, positions, group):
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = None
    logits = model(inputs, positions)
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum")
    numbers = torch.stack([losses.detach().double(), (targets != -100).sum().double()])
    dist.all_reduce(numbers, group=group)
    losses.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=group)
    flat /= numbers[1].to(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p)
    return (numbers[0] / numbers[1]).item()
"""),
    "torch.autograd.grad, log-probabilities by hand": (TRAIN, """
def train_step(model, inputs, targets, positions, group):
    model.zero_grad(set_to_none=True)
    counted = targets.ne(-100)
    n = counted.sum()
    dist.all_reduce(n, op=dist.ReduceOp.SUM, group=group)
    logp = model(inputs, positions).log_softmax(-1)
    picked = logp.gather(-1, targets.where(counted, 0)[..., None]).squeeze(-1)
    loss = -(picked * counted).sum() / n
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, g in zip(trained, torch.autograd.grad(loss, trained, materialize_grads=True)):
        p.grad = g.contiguous()
        dist.all_reduce(p.grad, group=group)
    whole = loss.detach().clone()
    dist.all_reduce(whole, group=group)
    return float(whole)
"""),
}  # fmt: skip
