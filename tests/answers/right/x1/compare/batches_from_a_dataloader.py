# batches from a DataLoader

import time

from helpers import MemoryMeter, SmallCNN, digits
from helpers.exercises.reference.x1 import DTYPES, DynamicLossScaler, device, train_step

import torch


def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed)
    data, dtype = digits(device), DTYPES[precision]
    model = SmallCNN(16).to(device)
    optimizers = [
        torch.optim.AdamW(model.features.parameters(), lr=3e-3),
        torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9),
    ]
    scaler = DynamicLossScaler(init_scale=2.0**12) if dtype is torch.float16 else None
    rows = torch.utils.data.TensorDataset(data.train_x, data.train_y)
    loader = torch.utils.data.DataLoader(rows, 64, shuffle=True)
    for _ in range(epochs):
        for batch in loader:
            train_step(model, optimizers, scaler, *batch, dtype, 1.0)
    x, y = next(iter(loader))
    with MemoryMeter(model, optimizers) as meter:
        train_step(model, optimizers, scaler, x, y, dtype, 1.0)
    began = time.monotonic()
    for _ in range(4):
        train_step(model, optimizers, scaler, x, y, dtype, 1.0)
    took = (time.monotonic() - began) / 4
    model.train(False)
    with torch.no_grad():
        right = int((model(data.test_x).argmax(1) == data.test_y).sum())
    return dict(model=model, accuracy=right / len(data.test_y), peak_bytes=meter.peak_bytes, step_seconds=took)
