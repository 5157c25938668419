# number by number

import math

import torch


def quantize(x, dtype, scale=1.0):
    end = 448.0 if dtype == torch.float8_e4m3fn else 57344.0
    divided = torch.div(x.to(torch.float32), scale)
    return torch.minimum(torch.maximum(divided, torch.tensor(-end)), torch.tensor(end)).type(dtype)


def current_scale(x, dtype):
    with torch.no_grad():
        amax = torch.maximum(x.max(), -x.min()).to(torch.float32)
        return torch.where(amax == 0, torch.ones_like(amax), amax / torch.finfo(dtype).max)


def delayed_scale(history, x, dtype):
    amax = torch.maximum(x.detach().max(), -x.detach().min()).to(torch.float32)
    largest = history.sort().values[-1].clone()
    empty = (history == 0).all()
    kept = history.clone()
    history[1:] = torch.where(torch.isfinite(amax), kept[:-1], kept[1:])
    history[0] = torch.where(torch.isfinite(amax), amax, kept[0])
    return torch.where(empty, current_scale(x, dtype), largest / torch.finfo(dtype).max)


def mx_quantize(x):
    rows = x.detach().to(torch.float64).reshape(-1, x.shape[-1]).tolist()
    values, scales = [], []
    for row in rows:
        for start in range(0, len(row), 32):
            block = row[start : start + 32]
            if not all(math.isfinite(number) for number in block):
                scale = math.nan
            elif not any(block):
                scale = 1.0
            else:
                scale = 2.0**-127
                while max(abs(number) for number in block) / scale > 448:
                    scale *= 2
            scales.append(scale)
            values += [number / scale for number in block]
    shape = (*x.shape[:-1], -(-x.shape[-1] // 32))
    values = torch.tensor(values, dtype=torch.float64).float().reshape(x.shape)
    return values.to(torch.float8_e4m3fn), torch.tensor(scales).float().reshape(shape).to(torch.float8_e8m0fnu)
