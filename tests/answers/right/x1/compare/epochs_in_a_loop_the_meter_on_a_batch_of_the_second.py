# epochs in a loop, the meter on a batch of the second

import time

from helpers import MemoryMeter, SmallCNN, digits
from helpers.exercises.reference.x1 import DTYPES, device, train_step

import torch


def train(precision, seed=0, epochs=3):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    data, dtype = digits(device), DTYPES[precision]
    model = SmallCNN(width=16).to(device)
    optimizers = [
        torch.optim.AdamW(model.features.parameters(), lr=3e-3),
        torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
    ]
    scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
    seconds, peak, steps = [], None, 0
    for _ in range(epochs):
        order = torch.randperm(len(data.train_x), generator=generator).to(device)
        for start in range(0, len(order), 64):
            index = order[start : start + 64]
            x, y = data.train_x[index], data.train_y[index]
            if steps == 5:
                with MemoryMeter(model, optimizers) as meter:
                    train_step(model, optimizers, scaler, x, y, dtype, 1.0)
                peak = meter.peak_bytes
            else:
                began = time.perf_counter()
                train_step(model, optimizers, scaler, x, y, dtype, 1.0)
                seconds.append(time.perf_counter() - began)
            steps += 1
    with torch.inference_mode():
        guesses = torch.cat([model.eval()(part).argmax(-1) for part in data.test_x.split(100)])
    accuracy = (guesses == data.test_y).double().mean().item()
    return {
        "model": model,
        "accuracy": accuracy,
        "peak_bytes": peak,
        "step_seconds": sum(seconds[1:]) / len(seconds[1:]),
    }
