# functional

import time

from helpers import MemoryMeter, SmallCNN, digits, pick_device

import torch


class DynamicLossScaler:
    """Keeps what it found by looking at the largest gradient; grows by a countdown."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._scale = float(init_scale)
        self._factors = backoff_factor, growth_factor
        self._interval = self._left = growth_interval
        self._finite, self._unscaled = True, []

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return self._scale * loss

    def unscale_(self, optimizer):
        self._unscaled.append(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.grad /= self._scale
                peak = p.grad.abs().max().item()
                self._finite = self._finite and peak < float("inf")  # False for NaN as well

    def step(self, optimizer):
        if not any(optimizer is one for one in self._unscaled):
            self.unscale_(optimizer)
        if self._finite:
            optimizer.step()
            return True
        return False

    def update(self):
        backoff, growth = self._factors
        if not self._finite:
            self._scale, self._left = self._scale * backoff, self._interval
        else:
            self._left -= 1
            if self._left == 0:
                self._scale, self._left = self._scale * growth, self._interval
        self._finite, self._unscaled = True, []


def forward(model, images, dtype):
    if dtype == torch.float32:
        return model(images)
    with torch.autocast(device_type=images.device.type, dtype=dtype):
        return model(images)


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    """Cross-entropy by hand, and gradients from torch.autograd.grad."""
    logits = forward(model, images, dtype).to(torch.float32)
    right = logits.gather(1, labels[:, None]).squeeze(1)
    loss = (torch.logsumexp(logits, dim=1) - right).mean()
    parameters = list(model.parameters())
    target = loss if scaler is None else scaler.scale(loss)
    for p, g in zip(parameters, torch.autograd.grad(target, parameters)):
        p.grad = g
    if scaler is not None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if scaler is None:
        for optimizer in optimizers:
            optimizer.step()
    else:
        for optimizer in optimizers if norm.isfinite() else ():
            scaler.step(optimizer)
        scaler.update()
    return loss.detach()


def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed)
    device = pick_device()
    dtype = dict(fp32=torch.float32, bf16=torch.bfloat16, fp16=torch.float16)[precision]
    x, y, test_x, test_y = digits(device)
    model = SmallCNN(width=16).to(device)
    optimizers = [
        torch.optim.AdamW(model.features.parameters(), lr=3e-3),
        torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
    ]
    scaler = DynamicLossScaler(init_scale=1024.0) if precision == "fp16" else None
    peak, seconds, steps = 0, 0.0, 0
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), 64):
            rows = order[start : start + 64].to(device)
            args = (model, optimizers, scaler, x[rows], y[rows], dtype, 1.0)
            if epoch == 0 and start == 128:
                with MemoryMeter(model, optimizers) as meter:
                    train_step(*args)
                peak = meter.peak_bytes
            elif epoch == start == 0:
                train_step(*args)
            else:
                began = time.perf_counter()
                train_step(*args)
                seconds += time.perf_counter() - began
                steps += 1
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(1) == test_y).float().mean())
    return {"model": model, "accuracy": accuracy, "peak_bytes": peak, "step_seconds": seconds / steps}
