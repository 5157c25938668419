"""Right answers to parts of X3."""

EPOCH, EVALUATE, WORKER = "x3.epoch", "x3.evaluate", "x3.worker"

STYLES = {
    "every loss over the rows of all ranks": (EPOCH, """
def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    here = next(model.parameters()).device
    ranks, sums, group = dist.get_world_size(), [0.0, 0], []

    def update():
        optimizer.zero_grad(set_to_none=True)
        rows = sum(len(y) for _, y in group)
        for i, (x, y) in enumerate(group):
            model.require_backward_grad_sync = i == len(group) - 1
            losses = F.cross_entropy(model(x.to(here)), y.to(here), reduction="none")
            (losses.sum() / rows).backward()
            sums[0] += losses.detach().sum().item()
            sums[1] += len(y)
        model.require_backward_grad_sync = True
        optimizer.step()
        group.clear()

    for pair in loader:
        group.append(pair)
        if len(group) == accumulate:
            update()
    if group:
        update()
    both = torch.tensor(sums, dtype=torch.float64, device=here)
    dist.all_reduce(both)
    return float(both[0] / both[1])
"""),
    "each loss weighed by the rows of its group": (EPOCH, """
def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    device = next(model.parameters()).device
    sizes = [min(loader.batch_size, len(loader.sampler) - i * loader.batch_size) for i in range(len(loader))]
    total = torch.zeros((), dtype=torch.float64, device=device)
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        first = i - i % accumulate
        rows = sum(sizes[first : first + accumulate])
        ends = i + 1 == min(first + accumulate, len(sizes))
        with contextlib.ExitStack() as stack:
            if not ends:
                stack.enter_context(model.no_sync())
            loss = F.cross_entropy(model(x.to(device)), y.to(device)) * (len(x) / rows)
            loss.backward()
        total += loss.detach() * rows
        if ends:
            optimizer.step()
            optimizer.zero_grad()
    dist.all_reduce(total)
    return total.item() / (sum(sizes) * dist.get_world_size())
"""),
    "log-probabilities picked by hand": (EPOCH, """
def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    params = [p for g in optimizer.param_groups for p in g["params"]]
    here, stream = params[0].device, iter(loader)
    kept = []
    for start in range(0, len(loader), accumulate):
        n = min(accumulate, len(loader) - start)
        rows = 0
        for p in params:
            p.grad = None
        for i in range(n):
            x, y = (t.to(here) for t in next(stream))
            with model.no_sync() if i + 1 < n else contextlib.nullcontext():
                logp = model(x).log_softmax(-1)
                losses = -logp[torch.arange(len(y), device=here), y]
                losses.sum().backward()
            rows += len(y)
            kept.append(losses.detach())
        torch._foreach_div_([p.grad for p in params], rows)
        optimizer.step()
    kept = torch.cat(kept).double()
    numbers = torch.stack([kept.sum(), torch.tensor(float(len(kept)), dtype=torch.float64, device=here)])
    dist.all_reduce(numbers, op=dist.ReduceOp.SUM)
    return numbers[0].item() / numbers[1].item()
"""),
    "the last micro-batch of a group looked ahead": (EPOCH, """
def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    trained = [p for p in model.module.parameters() if p.requires_grad]
    here = trained[0].device
    totals = torch.zeros(2, dtype=torch.float64)
    optimizer.zero_grad()
    stream, number, rows = iter(loader), 0, 0
    ahead = next(stream)
    while ahead is not None:
        (x, y), ahead = ahead, next(stream, None)
        number += 1
        synchronise = ahead is None or number == accumulate
        with contextlib.nullcontext() if synchronise else model.no_sync():
            loss = F.cross_entropy(model(x.to(here)), y.to(here), reduction="sum")
            loss.backward()
        rows += x.shape[0]
        totals += torch.tensor([float(loss.detach()), x.shape[0]], dtype=torch.float64)
        if synchronise:
            for p in trained:
                p.grad.div_(rows)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            number = rows = 0
    totals = totals.to(here)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()
"""),
    "contiguous parts, and gathered lists": (EVALUATE, """
def evaluate(model, dataset, batch_size):
    rank, ranks, inner = dist.get_rank(), dist.get_world_size(), model.module
    here, mode = next(inner.parameters()).device, inner.training
    edges = [len(dataset) * r // ranks for r in range(ranks + 1)]
    rows = [dataset[i] for i in range(edges[rank], edges[rank + 1])]
    inner.eval()
    results = []
    with torch.no_grad():
        for i in range(0, len(rows), batch_size):
            x, y = (torch.stack(list(column)).to(here) for column in zip(*rows[i : i + batch_size]))
            logits = inner(x)
            results += zip(F.cross_entropy(logits, y, reduction="none").tolist(), (logits.argmax(-1) == y).tolist())
    inner.train(mode)
    gathered = [None] * ranks
    dist.all_gather_object(gathered, results)
    everything = [pair for part in gathered for pair in part]
    n = len(everything)
    return {"loss": sum(l for l, _ in everything) / n, "accuracy": sum(r for _, r in everything) / n}
"""),
    "a sampler that repeats nothing": (EVALUATE, """
class Share(torch.utils.data.Sampler):
    def __init__(self, dataset):
        self.mine = range(dist.get_rank(), len(dataset), dist.get_world_size())

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


def evaluate(model, dataset, batch_size):
    net = model.module
    was, where = net.training, next(net.parameters()).device
    net.train(False)
    numbers = torch.zeros(2, dtype=torch.float64, device=where)
    with torch.inference_mode():
        for x, y in DataLoader(dataset, batch_size, sampler=Share(dataset)):
            out = net(x.to(where))
            y = y.to(where)
            numbers = numbers + torch.stack([F.cross_entropy(out, y, reduction="sum"), out.argmax(1).eq(y).sum().double()])
    net.train(was)
    numbers = numbers.clone()
    dist.all_reduce(numbers)
    loss, right = (numbers / len(dataset)).tolist()
    return {"loss": loss, "accuracy": right}
"""),
    "a context for the mode": (EVALUATE, """
@contextlib.contextmanager
def evaluating(net):
    before = net.training
    net.eval()
    try:
        with torch.no_grad():
            yield net
    finally:
        net.train(before)


def evaluate(model, dataset, batch_size):
    device = next(model.parameters()).device
    sums = dict.fromkeys(("loss", "accuracy", "rows"), 0.0)
    mine = torch.arange(len(dataset))[dist.get_rank() :: dist.get_world_size()].tolist()
    with evaluating(model.module) as net:
        for x, y in DataLoader(Subset(dataset, mine), batch_size=batch_size):
            logits, y = net(x.to(device)), y.to(device)
            sums["loss"] += F.cross_entropy(logits, y).item() * len(y)
            sums["accuracy"] += (logits.argmax(1) == y).float().sum().item()
            sums["rows"] += len(y)
    tensor = torch.tensor(list(sums.values()), dtype=torch.float64, device=device)
    dist.all_reduce(tensor)
    return {name: (tensor[i] / tensor[2]).item() for i, name in enumerate(("loss", "accuracy"))}
"""),
    "reduced to rank 0, then broadcast": (EVALUATE, """
def evaluate(model, dataset, batch_size):
    inner = model.module
    here, training = next(inner.parameters()).device, inner.training
    inner.eval()
    mine = Subset(dataset, list(range(len(dataset)))[dist.get_rank() :: dist.get_world_size()])
    totals = torch.zeros(2, dtype=torch.float64, device=here)
    with torch.set_grad_enabled(False):
        for x, y in DataLoader(mine, batch_size):
            logp = inner(x.to(here)).log_softmax(1)
            totals[0] -= logp.gather(1, y.to(here)[:, None]).sum()
            totals[1] += (logp.argmax(1).cpu() == y).sum().to(here)
    if training:
        inner.train()
    dist.reduce(totals, dst=0)
    dist.broadcast(totals, src=0)
    return {"loss": totals[0].item() / len(dataset), "accuracy": totals[1].item() / len(dataset)}
"""),
    "closes in a finally": (WORKER, """
def worker(job):
    here = rank_device()
    gpu = here.type == "cuda"
    if gpu:
        torch.cuda.set_device(here)
    dist.init_process_group("nccl" if gpu else "gloo", device_id=here if gpu else None)
    try:
        inner = job.make_model().to(here)
        ddp = DistributedDataParallel(inner, broadcast_buffers=False)
        optimizer = job.make_optimizer((p for p in inner.parameters() if p.requires_grad))
        loader = DataLoader(
            job.train, sampler=DistributedSampler(job.train, seed=job.seed, drop_last=False), batch_size=job.micro_batch
        )
        history = [{} for _ in range(job.epochs)]
        for epoch, entry in enumerate(history):
            entry["train_loss"] = job.train_epoch(ddp, loader, optimizer, job.accumulate, epoch)
            entry |= job.evaluate(ddp, job.test, job.micro_batch)
        if not dist.get_rank():
            torch.save(inner.state_dict(), job.checkpoint)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return inner, history
"""),
    "an all-reduce for a barrier": (WORKER, """
def worker(job):
    here = rank_device()
    with_gpu = {"device_id": here} if here.type == "cuda" else {}
    dist.init_process_group(backend="nccl" if with_gpu else "gloo", init_method="env://", **with_gpu)
    if with_gpu:
        torch.cuda.set_device(here.index)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(module=job.make_model().to(here))
    sampler = DistributedSampler(job.train, num_replicas=ranks, rank=rank, shuffle=True, seed=job.seed)
    loader = DataLoader(job.train, job.micro_batch, sampler=sampler)
    optimizer = job.make_optimizer(list(filter(lambda p: p.requires_grad, model.module.parameters())))
    history = []
    for epoch in range(job.epochs):
        entry = dict(train_loss=job.train_epoch(model, loader, optimizer, job.accumulate, epoch))
        entry.update(job.evaluate(model, job.test, job.micro_batch))
        history.append(entry)
    if rank == 0:
        with open(job.checkpoint, "wb") as file:
            torch.save(model.module.state_dict(), file)
    dist.all_reduce(torch.zeros(1, device=here))  # nobody passes before rank 0 has come
    dist.destroy_process_group()
    return model.module, history
"""),
    "a small class": (WORKER, """
class Run:
    def __init__(self, job):
        self.job, self.here = job, rank_device()
        self.model = job.make_model().to(self.here)
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = job.make_optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.loader = DataLoader(
            job.train, batch_size=job.micro_batch, sampler=DistributedSampler(job.train, shuffle=True, seed=job.seed)
        )

    def epoch(self, number):
        loss = self.job.train_epoch(self.ddp, self.loader, self.optimizer, self.job.accumulate, number)
        return {"train_loss": loss} | self.job.evaluate(self.ddp, self.job.test, self.job.micro_batch)

    def save(self):
        if dist.get_rank() == 0:
            torch.save({name: t.detach().cpu().clone() for name, t in self.model.state_dict().items()}, self.job.checkpoint)
        dist.barrier()


def open_group(here):
    if here.type != "cuda":
        return dist.init_process_group("gloo")
    torch.accelerator.set_device_index(here.index)
    dist.init_process_group(device_id=here)  # its backend is NCCL


def worker(job):
    open_group(rank_device())
    run = Run(job)
    history = [run.epoch(number) for number in range(job.epochs)]
    run.save()
    dist.destroy_process_group()
    return run.model, history
"""),
    "saved under another name first": (WORKER, """
def worker(job):
    here = rank_device()
    if here.type == "cuda":
        torch.cuda.set_device(f"cuda:{here.index}")
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device(f"cuda:{here.index}"))
    else:
        dist.init_process_group("gloo")
    model = DistributedDataParallel(job.make_model().to(here), static_graph=False)
    sampler = DistributedSampler(job.train, seed=job.seed)
    loader = DataLoader(job.train, batch_size=job.micro_batch, sampler=sampler, shuffle=False)
    optimizer = job.make_optimizer([p for p in model.module.parameters() if p.requires_grad])
    history = []
    for epoch in range(job.epochs):
        history.append({"train_loss": job.train_epoch(model, loader, optimizer, job.accumulate, epoch)})
        history[-1].update(job.evaluate(model, job.test, job.micro_batch))
    if dist.get_rank() == 0:
        path = Path(job.checkpoint)
        torch.save(model.module.state_dict(), path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    dist.monitored_barrier() if here.type == "cpu" else dist.barrier()
    dist.destroy_process_group()
    return model.module, history
"""),
    "an all-reduce of one flat gradient": (EPOCH, """
def train_epoch(model, loader, optimizer, accumulate, epoch):
    loader.sampler.set_epoch(epoch)
    net = model.module
    trained = [p for p in net.parameters() if p.requires_grad]
    here, sums, batches = trained[0].device, torch.zeros(2, dtype=torch.float64), list(loader)
    for start in range(0, len(batches), accumulate):
        optimizer.zero_grad()
        group, rows = batches[start : start + accumulate], 0
        for x, y in group:
            loss = F.cross_entropy(net(x.to(here)), y.to(here), reduction="sum")
            loss.backward()
            rows += len(x)
            sums += torch.tensor([loss.item(), len(x)], dtype=torch.float64)
        flat = torch.nn.utils.parameters_to_vector([p.grad for p in trained])
        dist.all_reduce(flat)
        flat /= rows * dist.get_world_size()
        for p, part in zip(trained, flat.split([p.numel() for p in trained])):
            p.grad = part.view_as(p).clone()
        optimizer.step()
    sums = sums.to(here)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
"""),
}  # fmt: skip
