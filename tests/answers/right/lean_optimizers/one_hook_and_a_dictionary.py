# one hook and a dictionary

import torch
from torch.nn.functional import pad


def encode(x, book, block):
    n = x.numel()
    rows = pad(x.flatten(), (0, (block - n % block) % block)).reshape(-1, block)
    scales = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1)
    safe = torch.where(scales == 0, torch.ones_like(scales), scales)
    place = torch.searchsorted((book[1:] + book[:-1]) / 2, (rows / safe.unsqueeze(1)).contiguous(), out_int32=True)
    return place.to(torch.uint8).flatten()[:n].clone(), scales


def decode(codes, scales, book, block, shape):
    rows = pad(book[codes.long()], (0, -len(codes) % block)).view(-1, block)
    return (rows * scales.unsqueeze(1)).flatten()[: len(codes)].view(shape)


class Moment:
    def __init__(self, p, book):
        self.book, self.whole = book, p.numel() < 4096

    def blend(self, state, name, p, new, beta):
        if name not in state:
            old = torch.zeros_like(p)
        else:
            old = state[name] if self.whole else decode(state[name], state[name + " scales"], self.book, 256, p.shape)
        now = torch.lerp(old, new, 1 - beta)
        if self.whole:
            state[name] = now
        else:
            state[name], state[name + " scales"] = encode(now, self.book, 256)
        return now


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books = books

    def step(self):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self.update(p, self.state[p], group["lr"], *group["betas"], group["eps"])

    def update(self, p, state, lr, beta1, beta2, eps):
        t = state.get("t", 0) + 1
        state["t"] = t
        m = Moment(p, self.books[0]).blend(state, "m", p, p.grad, beta1)
        v = Moment(p, self.books[1]).blend(state, "v", p, p.grad * p.grad, beta2)
        p.sub_(lr * (m / (1 - beta1**t)) / (torch.sqrt(v / (1 - beta2**t)) + eps))


def step_in_backward(parameters, make_optimizer):
    optimizer_of = {}

    def hook(p):
        optimizer_of[id(p)].step()
        p.grad = None

    handles = []
    for p in list(parameters):
        if not p.requires_grad or id(p) in optimizer_of:
            continue
        optimizer_of[id(p)] = make_optimizer([p])
        handles.append(p.register_post_accumulate_grad_hook(hook))
    return list(optimizer_of.values()), handles
