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


def gradient_of_x(g8, scale_g, w8, scale_w, product):
    return product(g8, scale_g, w8.t().contiguous().t(), scale_w)


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    return product(g8.t().contiguous(), scale_g, x8, scale_x)


class Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale_of, product, keep_x, keep_w):
        scale_x, scale_w = scale_of(x, torch.float8_e4m3fn), scale_of(weight, torch.float8_e4m3fn)
        x8, w8 = quantize(x, torch.float8_e4m3fn, scale_x), quantize(weight, torch.float8_e4m3fn, scale_w)
        ctx.scale_of, ctx.product = scale_of, product
        ctx.save_for_backward(x8 if keep_x else x, w8 if keep_w else weight, scale_x, scale_w)
        return product(x8, scale_x, w8.t(), scale_w)

    @staticmethod
    def backward(ctx, g):
        x, w, scale_x, scale_w = ctx.saved_tensors
        wants_x, wants_w = ctx.needs_input_grad[:2]
        scale_g = ctx.scale_of(g, torch.float8_e5m2)
        g8 = quantize(g.contiguous(), torch.float8_e5m2, scale_g)
        if w.dtype != torch.float8_e4m3fn:
            w = quantize(w, torch.float8_e4m3fn, scale_w)
        if x.dtype != torch.float8_e4m3fn:
            x = quantize(x, torch.float8_e4m3fn, scale_x)
        return (
            gradient_of_x(g8, scale_g, w, scale_w, ctx.product) if wants_x else None,
            gradient_of_w(g8, scale_g, x, scale_x, ctx.product) if wants_w else None,
            *[None] * 4,
        )


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
