# functions, block by block

import torch


def encode(x, book, block):
    codes, scales = [], []
    for part in x.detach().reshape(-1).split(block):
        scale = part.abs().max()
        scaled = torch.where(scale > 0, part / scale, torch.zeros_like(part))
        right = torch.searchsorted(book, scaled).clamp(1, len(book) - 1)
        lower = (scaled - book[right - 1]) < (book[right] - scaled)
        codes.append((right - lower.long()).to(torch.uint8))
        scales.append(scale)
    return torch.cat(codes), torch.stack(scales)


def decode(codes, scales, book, block, shape):
    parts = [book.index_select(0, part.long()) * s for part, s in zip(codes.split(block), scales)]
    return torch.cat(parts).reshape(shape)


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.books = books

    def unpack(self, p, name, book):
        state = self.state[p]
        if name not in state:
            return torch.zeros_like(p)
        return decode(*state[name], book, 256, p.shape) if p.numel() >= 4096 else state[name]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                m = self.unpack(p, "m", self.books[0]) * b1 + p.grad * (1 - b1)
                v = self.unpack(p, "v", self.books[1]) * b2 + p.grad**2 * (1 - b2)
                p -= group["lr"] * (m / (1 - b1 ** state["t"])) / ((v / (1 - b2 ** state["t"])).sqrt() + group["eps"])
                for name, moment, book in (("m", m, self.books[0]), ("v", v, self.books[1])):
                    state[name] = moment if p.numel() < 4096 else encode(moment, book, 256)


def step_in_backward(parameters, make_optimizer):
    optimizers, handles = [], []

    def hook_for(optimizer):
        def hook(p):
            optimizer.step()
            p.grad = None

        return hook

    for p in {id(p): p for p in parameters if p.requires_grad}.values():
        optimizers.append(make_optimizer([p]))
        handles.append(p.register_post_accumulate_grad_hook(hook_for(optimizers[-1])))
    return optimizers, handles
