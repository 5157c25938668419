# looked up among all scales

import torch


def quantize(x, dtype, scale=1.0):
    top = torch.finfo(dtype).max
    return torch.clip(x.float() / scale, -top, top).to(dtype)


def current_scale(x, dtype):
    top = torch.linalg.vector_norm(x.detach().float(), ord=torch.inf)
    return (top / torch.finfo(dtype).max).masked_fill(top == 0, 1.0)


def delayed_scale(history, x, dtype):
    largest = torch.stack(history.unbind()).max().clone()
    amax = x.detach().float().abs().max()
    history.copy_(torch.where(torch.isfinite(amax), torch.cat((amax.reshape(1), history))[:-1], history))
    return torch.where(largest == 0, current_scale(x, dtype), largest / torch.finfo(dtype).max)


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
    scales = torch.exp2(torch.arange(-127, 128, dtype=torch.float64))
    full = torch.zeros(*x.shape[:-1], -(-x.shape[-1] // 32) * 32, dtype=torch.float64)
    full[..., : x.shape[-1]] = x
    blocks = full.unflatten(-1, (-1, 32))
    top = blocks.abs().max(-1).values
    pattern = torch.searchsorted(448 * scales, top.nan_to_num(0, 0, 0))  # the first that is large enough
    scale = scales[pattern].masked_fill(top == 0, 1.0)
    values = (blocks / scale.unsqueeze(-1)).flatten(-2).narrow(-1, 0, x.shape[-1])
    scale = scale.masked_fill(~top.isfinite(), torch.nan)
    return values.float().to(torch.float8_e4m3fn), scale.float().to(torch.float8_e8m0fnu)
