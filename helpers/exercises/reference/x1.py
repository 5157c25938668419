"""The reference answers of solutions/03b_x1_amp_cnn.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import time
from helpers import MemoryMeter, SmallCNN, check, compare, device_name, digits, fp32_computed_as, hint, human_bytes, pick_device
import torch
import torch.nn.functional as F

device = pick_device()


class DynamicLossScaler:
    """Finds a loss scale that does not overflow; its optimizers step together or not at all."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.current_scale = init_scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.good_steps = 0
        self.unscaled = []  # optimizers that unscale_ was called for since the last update
        self.overflowed = False  # whether it found inf or NaN in any of them

    def get_scale(self):
        return self.current_scale

    def scale(self, loss):
        return loss * self.current_scale

    def unscale_(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self.current_scale)
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            self.overflowed = True
        self.unscaled.append(optimizer)

    def step(self, optimizer):
        if optimizer not in self.unscaled:
            self.unscale_(optimizer)
        if not self.overflowed:
            optimizer.step()
        return not self.overflowed

    def update(self):
        if self.overflowed:
            self.current_scale *= self.backoff_factor
            self.good_steps = 0
        else:
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                self.current_scale *= self.growth_factor
                self.good_steps = 0
        self.unscaled = []
        self.overflowed = False


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(images)  # (B, classes)
    loss = F.cross_entropy(logits.float(), labels)
    if scaler is None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)  # clip the true gradient, not the scaled one
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if torch.isfinite(norm):  # GradScaler would skip only the optimizer whose own gradient overflowed
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return loss.detach()


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed)
    data = digits(device)
    model = SmallCNN(width=16).to(device)
    adam = torch.optim.AdamW(model.features.parameters(), lr=3e-3)
    optimizers = [adam, torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)]
    dtype = DTYPES[precision]
    scaler = DynamicLossScaler() if dtype == torch.float16 else None

    def step(images, labels):
        train_step(model, optimizers, scaler, images, labels, dtype, max_norm=1.0)

    order = [b for _ in range(epochs) for b in torch.randperm(len(data.train_x)).split(64)]
    batches = [(data.train_x[index], data.train_y[index]) for index in order]
    step(*batches[0])  # Adam creates its state here
    with MemoryMeter(model, optimizers) as meter:
        step(*batches[1])
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, lambda: None)
    wait()  # for what is still in the device's queue
    start = time.perf_counter()
    for batch in batches[2:]:
        step(*batch)
    wait()
    step_seconds = (time.perf_counter() - start) / len(batches[2:])

    model.eval()
    with torch.no_grad():
        accuracy = (model(data.test_x).argmax(1) == data.test_y).float().mean().item()
    return {
        "model": model,
        "accuracy": accuracy,
        "peak_bytes": meter.peak_bytes,
        "step_seconds": step_seconds,
    }
