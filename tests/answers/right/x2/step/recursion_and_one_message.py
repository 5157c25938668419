# recursion, and one message

import torch


def added(model, loss_fn, x, y, size):
    """Add to the gradients, and return the loss and the count."""
    if not len(x):
        return torch.zeros(2, dtype=torch.float64)
    total, count = loss_fn(model(x[:size]), y[:size])
    torch.autograd.backward(total)
    own = torch.tensor([total.item(), count.item()], dtype=torch.float64)
    return own + added(model, loss_fn, x[size:], y[size:], size)


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    trained = [p.grad for p in model.parameters() if p.requires_grad]
    figures = added(model, loss_fn, x, y, micro_batch)
    message = torch.cat([figures.to(x.device), *(g.double().flatten() for g in trained)])
    all_reduce(message)
    loss, count = message[:2].tolist()
    pieces = message[2:].div(count).split([g.numel() for g in trained])
    for g, piece in zip(trained, pieces, strict=True):
        g.copy_(piece.view_as(g))
    optimizer.step()
    return loss / count
