"""Wrong and right answers for the practice tasks of fp8."""

from . import Mutant

MX = "fp8.mx"
ORDINARY, SHAPE, END, EXTREMES = (
    "scales_ordinary_blocks",
    "minds_the_shape",
    "knows_its_end",
    "minds_zeros_and_the_extremes",
)
EXPONENT = "exponent = exponent - 9 + (fraction > 7 / 8).int()"
AMAX = "amax = blocks.abs().amax(-1)"
VALUES = "blocks / scale[..., None]"
PADDED = "F.pad(x.float(), (0, -n % 32))"
RESHAPE = "padded.reshape(*x.shape[:-1], -1, 32)"
ZEROS = "torch.where(amax == 0, 1.0, scale)"
FINITE = "torch.where(amax.isfinite(), scale, torch.nan)"
RETURN = "    return values.to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)"


def one(name: str, rejected_by: str, old: str, new: str, raises: str = "") -> Mutant:
    return Mutant(name, MX, rejected_by, ((old, new),), raises)


ROUNDS, SATURATES = "rounds_to_the_format", "saturates_and_keeps_nan"
CAST = "return (x.float() / scale).clamp(-largest, largest).to(dtype)"


def cast(name: str, rejected_by: str, new: str, old: str = CAST) -> Mutant:
    return Mutant(name, "fp8.quantise", rejected_by, ((old, new),))


AMAX_ON, ZEROS_CASE = "puts_the_amax_on_the_last_number", "has_a_case_for_zeros"
SCALE_LINE = "return torch.where(amax > 0, amax / torch.finfo(dtype).max, 1.0)"
AMAX_LINE = "amax = x.detach().abs().amax().float()"


def scale(name: str, rejected_by: str, old: str, new: str) -> Mutant:
    return Mutant(name, "fp8.scale", rejected_by, ((old, new),))


MATRICES, BESIDE, AS_IT_IS = "multiplies_the_right_matrices", "hands_over_both_scales", "returns_the_product"
OF_X, OF_W = "return product(g8, scale_g, w8, scale_w)", "return product(g8.t(), scale_g, x8, scale_x)"


def product(name: str, rejected_by: str, old: str, new: str) -> Mutant:
    return Mutant(name, "fp8.products", rejected_by, ((old, new),))


E5, EACH, BOTH = "takes_the_right_formats", "scales_each_operand", "gives_each_its_gradient"
SAVED, SKIPS = "takes_what_was_saved", "skips_what_nobody_needs"
SCALE_G, G8 = "scale_g = ctx.scale_of(g, E5M2)", "g8 = quantise(g, E5M2, scale_g)"
W8 = "w8 = w if w.dtype == E4M3 else quantise(w, E4M3, scale_w)"
X8 = "x8 = x if x.dtype == E4M3 else quantise(x, E4M3, scale_x)"
CALL_X = "of_x = gradient_of_x(g8, scale_g, w8, scale_w, ctx.product)"
CALL_W = "of_w = gradient_of_w(g8, scale_g, x8, scale_x, ctx.product)"
GIVEN = "return of_x, of_w, None, None, None, None"


def layer(name: str, rejected_by: str, *edits: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, "fp8.backward", rejected_by, edits, raises)


MUTANTS = [
    cast("no division", ROUNDS, "return x.float().clamp(-largest, largest).to(dtype)"),
    cast("multiplied", ROUNDS, "return (x.float() * scale).clamp(-largest, largest).to(dtype)"),
    cast("divided in BF16", ROUNDS, "return (x / scale).bfloat16().clamp(-largest, largest).to(dtype)"),
    cast("rounded to BF16 first", ROUNDS, "return (x.bfloat16().float() / scale).clamp(-largest, largest).to(dtype)"),
    cast("always E4M3", ROUNDS, "return (x.float() / scale).clamp(-largest, largest).to(torch.float8_e4m3fn)"),
    cast("rounded twice", ROUNDS,
        "return (x.float() / scale).clamp(-largest, largest).to(torch.float8_e4m3fn).float().to(dtype)"),
    cast("multiplied back", ROUNDS, "return (x.float() / scale).clamp(-largest, largest).to(dtype).float() * scale"),
    cast("signs lost", ROUNDS, "return (x.float() / scale).abs().clamp(-largest, largest).to(dtype)"),
    cast("divided in place", ROUNDS,
        "x.copy_(x.float() / scale)\n    return x.float().clamp(-largest, largest).to(dtype)"),
    cast("a list", ROUNDS, "return [(x.float() / scale).clamp(-largest, largest).to(dtype)]"),
    cast("no clamp", SATURATES, "return (x.float() / scale).to(dtype)"),
    cast("clamped above only", SATURATES, "return (x.float() / scale).clamp(max=largest).to(dtype)"),
    cast("clamped before the division", SATURATES, "return (x.float().clamp(-largest, largest) / scale).to(dtype)"),
    cast("the end of E4M3 for both", SATURATES, "return (x.float() / scale).clamp(-448, 448).to(dtype)"),
    cast("too large becomes zero", SATURATES,
        "y = x.float() / scale\n    return torch.where(y.abs() > largest, 0.0, y).to(dtype)"),
    cast("NaN becomes zero", SATURATES,
        "return (x.float() / scale).nan_to_num(0.0).clamp(-largest, largest).to(dtype)"),
    scale("largest number, not magnitude", AMAX_ON, AMAX_LINE, "amax = x.detach().amax().float()"),
    scale("always for E4M3", AMAX_ON, "amax / torch.finfo(dtype).max", "amax / 448"),
    scale("the inverse", AMAX_ON, "amax / torch.finfo(dtype).max", "torch.finfo(dtype).max / amax"),
    scale("amax alone", AMAX_ON, "amax / torch.finfo(dtype).max", "amax"),
    scale("a scale a row", AMAX_ON, AMAX_LINE, "amax = x.detach().abs().amax(-1, keepdim=True).float()"),
    scale("in the dtype of x", AMAX_ON, AMAX_LINE, "amax = x.detach().abs().amax()"),
    scale("the mean magnitude", AMAX_ON, AMAX_LINE, "amax = x.detach().abs().mean().float()"),
    scale("part of the graph", AMAX_ON, AMAX_LINE, "amax = x.abs().amax().float()"),
    scale("a Python number", AMAX_ON, SCALE_LINE, "return float(amax / torch.finfo(dtype).max) or 1.0"),
    scale("zeros have no case", ZEROS_CASE, SCALE_LINE, "return amax / torch.finfo(dtype).max"),
    scale("zeros get a tiny scale", ZEROS_CASE, SCALE_LINE, "return amax.clamp(min=1e-12) / torch.finfo(dtype).max"),
    product("x for w", MATRICES, OF_X, "return product(g8.t(), scale_g, w8, scale_w)"),
    product("w transposed", MATRICES, OF_X, "return product(g8, scale_g, w8.t(), scale_w)"),
    product("the gradient transposed", MATRICES, OF_X, "return product(w8.t(), scale_w, g8.t(), scale_g).t()"),
    product("g not transposed", MATRICES, OF_W, "return product(g8, scale_g, x8, scale_x)"),
    product("x transposed, times g", MATRICES, OF_W, "return product(x8.t(), scale_x, g8, scale_g)"),
    product("not in FP8", MATRICES, OF_X, "return product(g8.float(), scale_g, w8.float(), scale_w)"),
    product("by hand", MATRICES, OF_W,
        "return (g8.float().t() @ x8.float() * scale_g * scale_x).to(torch.bfloat16)"),
    product("twice", MATRICES, OF_W, "product(g8.t(), scale_g, x8, scale_x)\n    " + OF_W),
    product("g in E4M3", MATRICES, OF_X, "return product(g8.to(torch.float8_e4m3fn), scale_g, w8, scale_w)"),
    product("scales swapped", BESIDE, OF_X, "return product(g8, scale_w, w8, scale_g)"),
    product("scales forgotten", BESIDE, OF_X, "return product(g8, torch.tensor(1.0), w8, torch.tensor(1.0))"),
    product("one scale for both", BESIDE, OF_W, "return product(g8.t(), scale_g, x8, scale_g)"),
    product("scaled once more", AS_IT_IS, OF_X, "return product(g8, scale_g, w8, scale_w) * scale_g * scale_w"),
    product("in FP32", AS_IT_IS, OF_W, "return product(g8.t(), scale_g, x8, scale_x).float()"),
    product("transposed in the end", AS_IT_IS, OF_W, "return product(g8.t(), scale_g, x8, scale_x).t()"),
    product("nothing", AS_IT_IS, OF_W, "product(g8.t(), scale_g, x8, scale_x)"),
    layer("g in E4M3", E5, (SCALE_G, "scale_g = ctx.scale_of(g, E4M3)"), (G8, "g8 = quantise(g, E4M3, scale_g)")),
    layer("w in E5M2", E5, (W8, "w8 = w if w.dtype == E4M3 else quantise(w, E5M2, scale_w)")),
    layer("x in E5M2", E5, (X8, "x8 = x if x.dtype == E4M3 else quantise(x, E5M2, scale_x)")),
    layer("g stays in BF16", E5, (G8, "g8 = (g / scale_g).bfloat16()")),
    layer("no product", E5, (CALL_X, "of_x = g @ w.to(g.dtype)"), (CALL_W, "of_w = g.t() @ x.to(g.dtype)")),
    layer("the scale of another format", EACH, (SCALE_G, "scale_g = ctx.scale_of(g, E4M3)")),
    layer("no scale", EACH, (SCALE_G, "scale_g = torch.tensor(1.0)")),
    layer("the lab's own scale", EACH, (SCALE_G, "scale_g = current_scale(g, E5M2)")),
    layer("asked for each product", EACH,
        (CALL_W, "scale_g = ctx.scale_of(g, E5M2)\n            of_w = gradient_of_w(g8, scale_g, x8, scale_x, ctx.product)")),
    layer("scales of x anew", EACH, (X8, "scale_x = ctx.scale_of(x, E4M3)\n            " + X8)),
    layer("scale of w forgotten", EACH, (CALL_X, "of_x = gradient_of_x(g8, scale_g, w8, torch.tensor(1.0), ctx.product)")),
    layer("scale of x for w", EACH, (CALL_X, "of_x = gradient_of_x(g8, scale_g, w8, scale_x, ctx.product)")),
    layer("swapped", BOTH, (GIVEN, "return of_w, of_x, None, None, None, None"), raises="invalid gradient"),
    layer("scaled once more", BOTH, (GIVEN, "return of_x * 2, of_w, None, None, None, None")),
    layer("the gradient of w is missing", BOTH, (GIVEN, "return of_x, None, None, None, None, None")),
    layer("too few", BOTH, (GIVEN, "return of_x, of_w"), raises="incorrect number of gradients"),
    layer("saved w quantised again", SAVED, (W8, "w8 = quantise(w, E4M3, scale_w)")),
    layer("saved x quantised again", SAVED, (X8, "x8 = quantise(x, E4M3, scale_x)")),
    layer("saved x multiplied by its scale", SAVED, (X8, "x8 = quantise(x.float() * scale_x, E4M3, 1.0) if x.dtype == E4M3 else quantise(x, E4M3, scale_x)")),
    layer("x for a frozen w", SKIPS, ("if ctx.needs_input_grad[1]:", "if True:")),
    layer("w for an input without gradient", SKIPS, ("if ctx.needs_input_grad[0]:", "if True:")),
    layer("both or none", SKIPS, ("if ctx.needs_input_grad[0]:", "if all(ctx.needs_input_grad[:2]):")),
    one("twice as large as needed", ORDINARY, EXPONENT, "exponent = exponent - 8"),
    one("the end of E5M2", ORDINARY, EXPONENT, "exponent = exponent - 16 + (fraction > 7 / 8).int()"),
    one("256 is the end", ORDINARY, EXPONENT, "exponent = exponent - 9 + (fraction > 1 / 2).int()"),
    one("rounded to the nearest power", ORDINARY, EXPONENT,
        "exponent = torch.log2(amax / 448).nan_to_num(0, 0, 0).round().int()"),
    one("negative numbers overlooked", ORDINARY, AMAX, "amax = blocks.amax(-1).clamp(min=0)"),
    one("one scale a row", ORDINARY, AMAX,
        "amax = blocks.abs().amax((-2, -1), keepdim=True)[..., 0].expand(blocks.shape[:-1])"),
    one("one scale a tensor", ORDINARY, AMAX, "amax = blocks.abs().max().expand(blocks.shape[:-1])"),
    one("blocks of 16", ORDINARY, ", -1, 32)", ", -1, 16)"),
    one("rounded to BF16 first", ORDINARY, PADDED, "F.pad(x.bfloat16().float(), (0, -n % 32))"),
    one("values not divided", ORDINARY, VALUES, "blocks"),
    one("multiplied by the scale", ORDINARY, VALUES, "blocks * scale[..., None]"),
    one("signs lost", ORDINARY, VALUES, "blocks.abs() / scale[..., None]"),
    one("values cut to whole numbers", ORDINARY, f"({VALUES})", f"({VALUES}).trunc()"),
    one("values in E5M2", ORDINARY, "values.to(torch.float8_e4m3fn)", "values.to(torch.float8_e5m2)"),
    one("rounded twice", ORDINARY, "values.to(torch.float8_e4m3fn)",
        "values.to(torch.float8_e5m2).to(torch.float8_e4m3fn)"),
    one("values alone", ORDINARY, RETURN, "    return values.to(torch.float8_e4m3fn)"),
    one("scales in FP32", ORDINARY, "scale.to(torch.float8_e8m0fnu)", "scale"),
    one("the inverse of the scale", ORDINARY, "scale.to(torch.float8_e8m0fnu)", "(1 / scale).to(torch.float8_e8m0fnu)"),
    one("changes x", ORDINARY, RETURN, "    x.clamp_(-1, 1)\n" + RETURN),
    one("no padding", SHAPE, PADDED, "x.float()", raises="invalid for input of size"),
    one("padded with ones", SHAPE, PADDED, "F.pad(x.float(), (0, -n % 32), value=1.0)"),
    Mutant("the short block comes first", MX, SHAPE, (("(0, -n % 32)", "(-n % 32, 0)"), ("[..., :n]", "[..., -n:]"))),
    one("padding is handed out", SHAPE, "[..., :n]", ""),
    one("two dimensions only", SHAPE, RESHAPE, "padded.reshape(len(x), -1, 32)", raises="shape"),
    one("blocks run on into the next row", SHAPE, PADDED,
        "F.pad(x.float().flatten(), (0, x.shape[:-1].numel() * (n + -n % 32) - x.numel())).reshape(*x.shape[:-1], -1)"),
    one("the standard's rule, which clips", END, EXPONENT, "exponent = exponent - 9"),
    one("448 counts as too large", END, "fraction > 7 / 8", "fraction >= 7 / 8"),
    one("log2 rounds", END, EXPONENT, "exponent = torch.ceil(torch.log2(amax / 448)).nan_to_num(0, 0, 0).int()"),
    one("difference of logarithms", END, EXPONENT,
        "exponent = torch.ceil(torch.log2(amax) - torch.log2(torch.tensor(448.0))).nan_to_num(0, 0, 0).int()"),
    one("480 is the end", END, "fraction > 7 / 8", "fraction > 15 / 16"),
    one("no lowest exponent", EXTREMES, "exponent.clamp(min=-127)", "exponent"),
    one("lowest exponent of FP32", EXTREMES, "exponent.clamp(min=-127)", "exponent.clamp(min=-126)"),
    one("amax / 448 becomes zero", EXTREMES, ZEROS, "torch.where(amax / 448 == 0, 1.0, scale)"),
    one("zeros have no case", EXTREMES, ZEROS, "scale"),
    one("zeros get the lowest scale", EXTREMES, ZEROS, "torch.where(amax == 0, 2.0**-127, scale)"),
    one("small blocks count as zeros", EXTREMES, ZEROS, "torch.where(amax < 1e-30, 1.0, scale)"),
    one("infinities have no case", EXTREMES, FINITE, "scale.nan_to_num(1.0)"),
    one("NaN only", EXTREMES, FINITE, "torch.where(amax.isnan(), torch.nan, scale)"),
    one("one bad block spoils all", EXTREMES, FINITE,
        "scale if bool(amax.isfinite().all()) else torch.full_like(scale, torch.nan)"),
    one("NaN overlooked", EXTREMES, AMAX, "amax = blocks.nan_to_num(0.0, torch.inf, -torch.inf).abs().amax(-1)"),
]  # fmt: skip

RIGHT = {
    "number by number": """
import math

import torch


def quantise(x, dtype, scale=1.0):
    end = 448.0 if dtype == torch.float8_e4m3fn else 57344.0
    divided = torch.div(x.to(torch.float32), scale)
    return torch.minimum(torch.maximum(divided, torch.tensor(-end)), torch.tensor(end)).type(dtype)


def current_scale(x, dtype):
    with torch.no_grad():
        amax = torch.maximum(x.max(), -x.min()).to(torch.float32)
        return torch.where(amax == 0, torch.ones_like(amax), amax / torch.finfo(dtype).max)


def gradient_of_x(g8, scale_g, w8, scale_w, product):
    return product(a=g8, scale_a=scale_g, b=w8, scale_b=scale_w)


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    return product(g8.transpose(0, 1), scale_g, x8, scale_x)


class Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale_of, product, keep_x, keep_w):
        scales = [scale_of(t, torch.float8_e4m3fn) for t in (x, weight)]
        x8, w8 = (quantise(t, torch.float8_e4m3fn, s) for t, s in zip((x, weight), scales))
        ctx.scale_of, ctx.product = scale_of, product
        ctx.save_for_backward(x8 if keep_x else x, w8 if keep_w else weight, *scales)
        return product(x8, scales[0], w8.t(), scales[1])

    @staticmethod
    def backward(ctx, g):
        saved, scales = ctx.saved_tensors[:2], ctx.saved_tensors[2:]
        scale = ctx.scale_of(g, torch.float8_e5m2)
        small = quantise(g, torch.float8_e5m2, scale)
        grads = [None] * 6
        for which, other in ((0, 1), (1, 0)):
            if not ctx.needs_input_grad[which]:
                continue
            right = saved[other]
            if right.element_size() == 2:
                right = quantise(right, torch.float8_e4m3fn, scales[other])
            left = small if which == 0 else small.t()
            grads[which] = ctx.product(left, scale, right, scales[other])
        return tuple(grads)


def mx_quantise(x):
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
""",
    "from the bits": """
import torch


def quantise(x, dtype, scale=1.0):
    top = torch.finfo(dtype).max
    return torch.clip(x.float() / scale, -top, top).to(dtype)


def current_scale(x, dtype):
    top = torch.linalg.vector_norm(x.detach().float(), ord=torch.inf)
    return (top / torch.finfo(dtype).max).masked_fill(top == 0, 1.0)


def gradient_of_x(g8, scale_g, w8, scale_w, product):
    return product(g8, scale_g, w8.t().contiguous().t(), scale_w)


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    return product(g8.t().contiguous(), scale_g, x8, scale_x)


class Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale_of, product, keep_x, keep_w):
        scale_x, scale_w = scale_of(x, torch.float8_e4m3fn), scale_of(weight, torch.float8_e4m3fn)
        x8, w8 = quantise(x, torch.float8_e4m3fn, scale_x), quantise(weight, torch.float8_e4m3fn, scale_w)
        ctx.scale_of, ctx.product = scale_of, product
        ctx.save_for_backward(x8 if keep_x else x, w8 if keep_w else weight, scale_x, scale_w)
        return product(x8, scale_x, w8.t(), scale_w)

    @staticmethod
    def backward(ctx, g):
        x, w, scale_x, scale_w = ctx.saved_tensors
        wants_x, wants_w = ctx.needs_input_grad[:2]
        scale_g = ctx.scale_of(g, torch.float8_e5m2)
        g8 = quantise(g.contiguous(), torch.float8_e5m2, scale_g)
        if w.dtype != torch.float8_e4m3fn:
            w = quantise(w, torch.float8_e4m3fn, scale_w)
        if x.dtype != torch.float8_e4m3fn:
            x = quantise(x, torch.float8_e4m3fn, scale_x)
        return (
            gradient_of_x(g8, scale_g, w, scale_w, ctx.product) if wants_x else None,
            gradient_of_w(g8, scale_g, x, scale_x, ctx.product) if wants_w else None,
            *[None] * 4,
        )


def mx_quantise(x):
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
""",
    "looked up among all scales": """
import torch


def quantise(x, dtype, scale=1.0):
    top = torch.finfo(dtype).max
    return torch.clip(x.float() / scale, -top, top).to(dtype)


def current_scale(x, dtype):
    top = torch.linalg.vector_norm(x.detach().float(), ord=torch.inf)
    return (top / torch.finfo(dtype).max).masked_fill(top == 0, 1.0)


def gradient_of_x(g8, scale_g, w8, scale_w, product):
    return product(g8, scale_g, w8.t().contiguous().t(), scale_w)


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    return product(g8.t().contiguous(), scale_g, x8, scale_x)


class Float8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale_of, product, keep_x, keep_w):
        scale_x, scale_w = scale_of(x, torch.float8_e4m3fn), scale_of(weight, torch.float8_e4m3fn)
        x8, w8 = quantise(x, torch.float8_e4m3fn, scale_x), quantise(weight, torch.float8_e4m3fn, scale_w)
        ctx.scale_of, ctx.product = scale_of, product
        ctx.save_for_backward(x8 if keep_x else x, w8 if keep_w else weight, scale_x, scale_w)
        return product(x8, scale_x, w8.t(), scale_w)

    @staticmethod
    def backward(ctx, g):
        x, w, scale_x, scale_w = ctx.saved_tensors
        wants_x, wants_w = ctx.needs_input_grad[:2]
        scale_g = ctx.scale_of(g, torch.float8_e5m2)
        g8 = quantise(g.contiguous(), torch.float8_e5m2, scale_g)
        if w.dtype != torch.float8_e4m3fn:
            w = quantise(w, torch.float8_e4m3fn, scale_w)
        if x.dtype != torch.float8_e4m3fn:
            x = quantise(x, torch.float8_e4m3fn, scale_x)
        return (
            gradient_of_x(g8, scale_g, w, scale_w, ctx.product) if wants_x else None,
            gradient_of_w(g8, scale_g, x, scale_x, ctx.product) if wants_w else None,
            *[None] * 4,
        )


def mx_quantise(x):
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
""",
}
