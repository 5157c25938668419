# foreach

from helpers import MemoryMeter, SmallCNN, benchmark, digits, pick_device

import torch
from torch import nn


class DynamicLossScaler:
    """Written around one list of gradients and PyTorch's foreach functions."""

    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.value, self.up, self.down, self.interval = init_scale, growth_factor, backoff_factor, growth_interval
        self.streak, self.states = 0, {}

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return loss.mul(self.value)

    def unscale_(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        torch._foreach_mul_(grads, 1.0 / self.value)
        total = torch.stack(torch._foreach_norm(grads)).sum()
        self.states[id(optimizer)] = "good" if torch.isfinite(total) else "bad"

    def step(self, optimizer):
        if id(optimizer) not in self.states:
            self.unscale_(optimizer)
        if "bad" in self.states.values():
            return False
        optimizer.step()
        return True

    def update(self):
        bad = "bad" in self.states.values()
        self.streak = 0 if bad else self.streak + 1
        if bad:
            self.value = self.value * self.down
        elif self.streak % self.interval == 0:
            self.value, self.streak = self.value * self.up, 0
        self.states = {}


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    """Loss and backward inside autocast, where cross-entropy is promoted to FP32; gradients cleared by hand."""
    for p in model.parameters():
        p.grad = None
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not torch.float32):
        loss = nn.CrossEntropyLoss()(model(images), labels)
        (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(sum(g.square().sum() for g in grads))
    for g in grads:
        g.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    if scaler is None or torch.isfinite(norm):
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    return loss.detach()


def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed + 17)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    device = pick_device()
    data = digits(device)
    model = SmallCNN(width=16).to(device)
    optimizers = [
        torch.optim.AdamW(model.features.parameters(), lr=3e-3),
        torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
    ]
    scaler = DynamicLossScaler() if precision == "fp16" else None
    train_set = torch.utils.data.TensorDataset(data.train_x, data.train_y)
    loader = torch.utils.data.DataLoader(train_set, batch_size=64, shuffle=True)
    for _ in range(epochs):
        for images, labels in loader:
            train_step(model, optimizers, scaler, images, labels, dtype, 1.0)
    batch = data.train_x[:64], data.train_y[:64]
    with MemoryMeter(model, optimizers) as meter:
        train_step(model, optimizers, scaler, *batch, dtype, 1.0)
    timing = benchmark(lambda: train_step(model, optimizers, scaler, *batch, dtype, 1.0), runs=3, warmup=1)
    model.eval()
    with torch.inference_mode():
        right = (model(data.test_x).argmax(-1) == data.test_y).sum().item()
    return dict(model=model, accuracy=right / len(data.test_y), peak_bytes=meter.peak_bytes, step_seconds=timing.median)
