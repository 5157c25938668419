# a class for the run, gradients in one vector

import torch


class Run:
    def __init__(self, model, optimizer, scheduler, state):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.position, self.rows, self.loss = state[:3] if state else (0, 0, 0.0)
        self.losses = []
        optimizer.zero_grad()
        model.zero_grad()
        if state and state[3] is not None:
            vector, reached = state[3].clone(), state[4]
            for p, there in zip(model.parameters(), reached, strict=True):
                if there:
                    p.grad, vector = vector[: p.numel()].view_as(p).clone(), vector[p.numel() :]

    def take(self, loss, rows):
        (rows * loss).backward()
        self.position += 1
        self.rows += rows
        self.loss += rows * loss.detach().item()

    def update(self):
        if not self.rows:
            return
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(grads, self.rows)
        self.optimizer.step()
        self.scheduler.step()
        self.model.zero_grad()
        self.losses.append(self.loss / self.rows)
        self.rows, self.loss = 0, 0.0

    def state(self):
        reached = [p.grad is not None for p in self.model.parameters()]
        grads = [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        return [self.position, self.rows, self.loss, torch.cat(grads) if grads else None, reached]


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    run = Run(model, optimizer, scheduler, state)
    left = stop_after
    for x, y in loader(run.position):
        run.take(loss_fn(model(x), y), len(x))
        if run.position % accumulate == 0:
            run.update()
        if left is not None:
            left -= 1
            if left == 0:
                return run.losses, run.state()
    run.update()
    return run.losses, None
