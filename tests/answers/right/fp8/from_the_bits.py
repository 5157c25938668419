# from the bits

import torch


def quantize(x, dtype, scale=1.0):
    top = torch.finfo(dtype).max
    return torch.clip(x.float() / scale, -top, top).to(dtype)


def current_scale(x, dtype):
    top = torch.linalg.vector_norm(x.detach().float(), ord=torch.inf)
    return (top / torch.finfo(dtype).max).masked_fill(top == 0, 1.0)


def delayed_scale(history, x, dtype):
    with torch.no_grad():
        top = torch.linalg.vector_norm(x.float(), ord=torch.inf)
        before = history.amax() / torch.finfo(dtype).max
        scale = before.where(before > 0, current_scale(x, dtype))
        fine = torch.isfinite(top)
        shifted = history.roll(1)
        shifted[0] = top
        history.copy_(shifted.where(fine, history))
        return scale


def mx_quantize(x):
    pieces, patterns = [], []
    for piece in x.float().split(32, dim=-1):
        amax = piece.abs().max(dim=-1, keepdim=True).values
        bits = amax.contiguous().view(torch.int32)
        pattern = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000)  # 448 = (1 + 3/4) x 2^8
        pattern = pattern.clamp(min=0)
        pattern[amax == 0] = 127
        pattern[~torch.isfinite(amax)] = 255
        scale = pattern.to(torch.uint8).view(torch.float8_e8m0fnu)
        pieces.append((piece.double() / scale.double()).float().to(torch.float8_e4m3fn))
        patterns.append(scale.view(torch.uint8))
    values = torch.cat([piece.view(torch.uint8) for piece in pieces], -1).view(torch.float8_e4m3fn)
    return values, torch.cat(patterns, -1).view(torch.float8_e8m0fnu)
