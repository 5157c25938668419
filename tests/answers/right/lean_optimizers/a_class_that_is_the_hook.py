# a class that is the hook

import torch


def borders_of(book):
    return torch.stack([book[:-1], book[1:]]).mean(0)


def encode(x, book, block):
    flat = x.reshape(-1)
    which = torch.arange(len(flat), device=x.device) // block
    scales = torch.zeros(int(which[-1]) + 1, device=x.device)
    scales = scales.scatter_reduce(0, which, flat.abs(), "amax")
    scaled = (flat / scales[which]).nan_to_num(0.0)
    return torch.bucketize(scaled, borders_of(book), right=True).to(torch.uint8), scales


def decode(codes, scales, book, block, shape):
    which = torch.arange(len(codes), device=codes.device) // block
    return torch.take(book, codes.long()).mul(scales[which]).reshape(shape)


class Adam8(torch.optim.Optimizer):
    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books = books

    @torch.no_grad()
    def step(self):
        for group, p in [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]:
            whole = torch.optim.Adam(
                [torch.nn.Parameter(p)], lr=group["lr"], betas=group["betas"], eps=group["eps"], foreach=False
            )
            (twin,) = whole.param_groups[0]["params"]
            twin.grad = p.grad
            state = self.state[p]
            if state:
                whole.state[twin]["step"] = torch.tensor(float(state["step"]))
                for name, book in zip(("exp_avg", "exp_avg_sq"), self.books):
                    kept = state[name]
                    whole.state[twin][name] = decode(*kept, book, 256, p.shape) if type(kept) is tuple else kept
            whole.step()
            p.copy_(twin)
            after = whole.state[twin]
            state["step"] = int(after["step"])
            for name, book in zip(("exp_avg", "exp_avg_sq"), self.books):
                state[name] = encode(after[name], book, 256) if p.numel() >= 4096 else after[name]


class Stepper:
    def __init__(self, p, make_optimizer):
        self.optimizer = make_optimizer(iter([p]))
        self.handle = p.register_post_accumulate_grad_hook(self)

    def __call__(self, p):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def step_in_backward(parameters, make_optimizer):
    seen, steppers = set(), []
    for p in parameters:
        if p.requires_grad and p not in seen:
            seen.add(p)
            steppers.append(Stepper(p, make_optimizer))
    return tuple(s.optimizer for s in steppers), [s.handle for s in steppers]
