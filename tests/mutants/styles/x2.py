"""Right answers to parts of X2."""

STEP, TOKENS, SCALED, EPOCH, NORM = "x2.step", "x2.tokens", "x2.scaled", "x2.epoch", "x2.groupnorm"

STYLES = {
    "torch.autograd.grad and a foreach sum": (STEP, """
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in parameters]
    losses = []
    for xs, ys in zip(torch.split(x, micro_batch), torch.split(y, micro_batch)):
        loss = loss_fn(model(xs), ys)
        torch._foreach_add_(sums, torch.autograd.grad(loss, parameters), alpha=len(xs))
        losses.append(loss.item() * len(xs))
    torch._foreach_div_(sums, len(x))
    for p, g in zip(parameters, sums):
        p.grad = g
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses) / len(x)
"""),
    "weights the gradient that backward starts from": (STEP, """
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    model.zero_grad()
    total, rows = x.new_zeros(()), x.size(0)
    pieces = -(-rows // micro_batch)
    for i in range(pieces):
        part = slice(i * micro_batch, (i + 1) * micro_batch)
        loss = loss_fn(model(x[part]), y[part])
        weight = torch.full_like(loss, x[part].size(0) / rows)
        loss.backward(gradient=weight)
        total += loss.detach() * weight
    optimizer.step()
    return total
"""),
    "a loader over the batch": (STEP, """
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=micro_batch)
    optimizer.zero_grad(set_to_none=False)
    share = lambda a, b: loss_fn(model(a), b).mul(len(a)).div(len(x))
    losses = []
    for a, b in loader:
        losses.append(share(a, b))
        losses[-1].backward()
        losses[-1] = losses[-1].detach()
    optimizer.step()
    return torch.stack(losses).sum()
"""),
    "recursion": (STEP, """
def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    def go(a, b):
        if not len(a):
            return 0.0
        loss = loss_fn(model(a[:micro_batch]), b[:micro_batch]) * (len(a[:micro_batch]) / len(x))
        loss.backward()
        return loss.detach() + go(a[micro_batch:], b[micro_batch:])

    optimizer.zero_grad()
    total = go(x, y)
    optimizer.step()
    return total
"""),
    "log-probabilities picked by gather": (TOKENS, """
def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    valid = targets != -100
    n, total = valid.sum(), 0.0
    for i in range(0, len(ids), micro_batch):
        rows = slice(i, i + micro_batch)
        logp = model(ids[rows]).log_softmax(-1)
        picked = logp.gather(-1, targets[rows].clamp(min=0)[..., None])[..., 0]
        loss = -(picked * valid[rows]).sum() / n
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
"""),
    "the mean of a micro-batch times its share of targets": (TOKENS, """
def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    everything = int(torch.count_nonzero(targets != -100))
    total = torch.zeros((), dtype=torch.float64)
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch)):
        mine = int((ys != -100).sum())
        if mine == 0:
            continue  # its mean would be NaN
        loss = F.cross_entropy(model(xs).permute(0, 2, 1), ys)
        (loss * (mine / everything)).backward()
        total += loss.detach() * mine
    optimizer.step()
    return total / everything
"""),
    "targets that count chosen before the loss, gradients divided at the end": (TOKENS, """
def token_step(model, optimizer, ids, targets, micro_batch):
    for p in model.parameters():
        p.grad = None
    count, summed = 0, 0.0
    for start in range(0, ids.shape[0], micro_batch):
        y = targets[start : start + micro_batch].reshape(-1)
        chosen = y.ne(-100).nonzero().squeeze(1)
        logits = model(ids[start : start + micro_batch]).reshape(len(y), -1)
        loss = F.nll_loss(F.log_softmax(logits[chosen], dim=1), y[chosen], reduction="sum")
        loss.backward()
        count, summed = count + len(chosen), summed + loss.item()
    torch._foreach_div_([p.grad for p in model.parameters() if p.grad is not None], count)
    optimizer.step()
    return torch.tensor(summed / count)
"""),
    "clipping by hand": (SCALED, """
def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    for i in range(0, len(x), micro_batch):
        outputs = model(x[i : i + micro_batch])
        loss = F.cross_entropy(outputs, y[i : i + micro_batch], reduction="sum")
        scaler.scale(loss / len(x)).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    torch._foreach_mul_(grads, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    scaler.step(optimizer)
    scaler.update()
"""),
    "a scale taken once, before the loop": (SCALED, """
def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    optimizer.zero_grad()
    weights = scaler.scale(torch.ones(len(x)) / len(x)).split(micro_batch)
    for xs, ys, w in zip(x.split(micro_batch), y.split(micro_batch), weights):
        rows = F.cross_entropy(model(xs), ys, reduction="none")
        rows.backward(w.to(rows))
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return None
"""),
    "torch.func.grad on each micro-batch": (
        EPOCH,
        """
def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    buffers = dict(model.named_buffers())

    def summed(parameters, buffers, x, y):
        return loss_fn(torch.func.functional_call(model, (parameters, buffers), (x,)), y) * len(x)

    losses, stream = [], iter(loader)
    while (pair := next(stream, None)) is not None:
        named = {name: p.detach() for name, p in model.named_parameters()}
        rows, total, sums = 0, 0.0, {name: torch.zeros_like(p) for name, p in named.items()}
        for number in range(accumulate):
            pair = pair if number == 0 else next(stream, None)
            if pair is None:
                break
            grads, loss = torch.func.grad_and_value(summed)(named, buffers, *pair)
            sums = {name: sums[name] + grads[name] for name in sums}
            rows, total = rows + len(pair[0]), total + loss.item()
        for name, p in model.named_parameters():
            p.grad = sums[name] / rows
        optimizer.step()
        scheduler.step()
        losses.append(total / rows)
    return losses
""",
    ),
    "one micro-batch looked ahead": (EPOCH, """
def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    losses, rows, total, n = [], 0, 0.0, 0
    optimizer.zero_grad()
    stream = iter(loader)
    ahead = next(stream, None)
    while ahead is not None:
        x, y = ahead
        loss = loss_fn(model(x), y)
        (loss * len(x)).backward()
        rows, total, n = rows + len(x), total + float(loss) * len(x), n + 1
        ahead = next(stream, None)
        if n == accumulate or ahead is None:
            with torch.no_grad():
                for p in model.parameters():
                    p.grad.mul_(1 / rows)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(total / rows)
            rows, total, n = 0, 0.0, 0
    return losses
"""),
    "a generator of groups": (EPOCH, """
def groups(loader, size):
    group = []
    for pair in loader:
        group.append(pair)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    def update(group):
        optimizer.zero_grad()
        rows = sum(len(x) for x, _ in group)
        losses = []
        for x, y in group:
            loss = loss_fn(model(x), y) * (len(x) / rows)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        scheduler.step()
        return torch.stack(losses).sum().item()

    return [update(group) for group in groups(loader, accumulate)]
"""),
    "gradients rescaled as the group grows": (EPOCH, """
def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    means, mean, rows, n = [], 0.0, 0, 0
    optimizer.zero_grad()

    def finish():
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        means.append(mean)

    for x, y in loader:
        kept = rows / (rows + len(x))
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(kept)
        loss = loss_fn(model(x), y)
        (loss * (1 - kept)).backward()
        mean, rows, n = kept * mean + (1 - kept) * loss.item(), rows + len(x), n + 1
        if n == accumulate:
            finish()
            mean, rows, n = 0.0, 0, 0
    if n:
        finish()
    return means
"""),
    "from the longest name": (NORM, """
def with_group_norm(model, groups):
    for name, old in sorted(model.named_modules(), key=lambda pair: -len(pair[0])):
        if isinstance(old, nn.BatchNorm2d):
            where = {"device": old.weight.device, "dtype": old.weight.dtype}
            new = nn.GroupNorm(groups, old.num_features, old.eps, **where)
            new.weight.data, new.bias.data = old.weight.data, old.bias.data
            new.training = old.training
            model.set_submodule(name, new)
    return model
"""),
    "children in their own dictionary": (NORM, """
def with_group_norm(model, groups):
    def visit(module):
        for name in list(module._modules):
            child = module._modules[name]
            if isinstance(child, nn.BatchNorm2d):
                norm = nn.GroupNorm(groups, child.num_features, eps=child.eps).to(child.weight)
                norm.weight, norm.bias = child.weight, child.bias
                module._modules[name] = norm.train(child.training)
            elif child is not None:
                visit(child)
        return module

    return visit(model)
"""),
}  # fmt: skip
