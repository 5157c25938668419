"""Wrong and right answers for the practice tasks of mixed precision."""

from . import Mutant, one

MASTER, AUTOCAST, WIDENED, SAFE = (f"mixed_precision.{part}" for part in ("master", "autocast", "widened", "safe"))
KEEPS = "master_keeps_small_updates"
PRODUCTS, LOSSES, OTHERS, FLOATS, GRADIENTS = (
    "products_are_narrow", "losses_are_in_fp32", "others_follow", "casts_only_floating_point", "gradients_come_back",
)  # fmt: skip
NOTES, NOTHING, CHANGES = "notes_what_widens", "notes_nothing_else", "changes_nothing"
FORWARD, BACKWARD, WITHOUT, ANY = (
    "forward_is_in_fp32", "backward_is_in_fp32", "works_without_autocast", "takes_any_function",
)  # fmt: skip

CALL = "func(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})"
CAST = "value.to(dtype) if floating else value"
KEEP = f"self.kept.setdefault((id(value), dtype), value.to(dtype)) if floating and value.requires_grad else {CAST}"
IS_LOSS = "        elif func in LOSSES:\n            dtype = torch.float32\n"
IS_FLOATING = " and value.is_floating_point()"
WIDE = "isinstance(result, torch.Tensor) and result.dtype == torch.float32"
NOTE = "            self.found.append(func.__name__)\n"
CUSTOM_FWD = "torch.amp.custom_fwd(function.forward, device_type=device_type, cast_inputs=torch.float32)"
CUSTOM_BWD = "torch.amp.custom_bwd(function.backward, device_type=device_type)"
MADE = "    Safe.forward, Safe.backward = staticmethod(forward), staticmethod(backward)\n    return Safe"

MUTANTS = [
    # master weights
    one("updates the BF16 weight", MASTER, KEEPS, "    master -= lr * gradient.float()\n    weight.copy_(master)",
        "    weight -= lr * gradient\n    master.copy_(weight)"),
    one("product in BF16", MASTER, KEEPS, "gradient.float()", "gradient"),
    one("master rebound", MASTER, KEEPS, "master -= lr * gradient.float()", "master = master - lr * gradient.float()"),
    one("master forgotten", MASTER, KEEPS, "    weight.copy_(master)\n", ""),
    one("weight rebound", MASTER, KEEPS, "weight.copy_(master)", "weight = master.bfloat16()"),
    one("master made anew from the weight", MASTER, KEEPS, "    master -= ", "    master.copy_(weight)\n    master -= "),
    one("master's memory replaced", MASTER, KEEPS, "master -= lr * gradient.float()",
        "master.data = master - lr * gradient.float()", "`master` has got other memory"),
    one("weight before the master moves", MASTER, KEEPS, "    master -= lr * gradient.float()\n    weight.copy_(master)",
        "    weight.copy_(master)\n    master -= lr * gradient.float()"),
    one("larger moves of larger gradients", MASTER, KEEPS, "lr * gradient.float()",
        "lr * gradient.float() * (gradient.float().abs() if lr < 1e-3 else 1)"),
    one("uphill", MASTER, KEEPS, "master -= ", "master += "),
    one("weight turned into FP32", MASTER, KEEPS, "weight.copy_(master)", "weight.data = master.clone()"),
    one("weight cut off, not rounded", MASTER, KEEPS, "weight.copy_(master)",
        "weight.copy_((master.view(torch.int32) & ~0xFFFF).view(torch.float32))"),
    one("weight one number above the nearest", MASTER, KEEPS, "weight.copy_(master)",
        "weight.copy_(master).view(torch.int16).add_(1)"),
    one("gradient scaled in place", MASTER, KEEPS, "lr * gradient.float()", "gradient.mul_(lr).float()"),
    # an autocast
    one("keywords forgotten", AUTOCAST, PRODUCTS, CALL, "func(*map(cast, args), **kwargs)"),
    one("returns no result", AUTOCAST, PRODUCTS, f"return {CALL}", CALL),
    one("returns results of products alone", AUTOCAST, PRODUCTS, "            return func(*args, **kwargs)\n",
        "            return None\n"),
    one("BF16 always", AUTOCAST, PRODUCTS, "dtype = self.dtype", "dtype = torch.bfloat16"),
    one("products in FP32", AUTOCAST, PRODUCTS, "dtype = self.dtype", "dtype = torch.float32"),
    one("FP64 stays", AUTOCAST, PRODUCTS, IS_FLOATING, f"{IS_FLOATING} and value.dtype != torch.float64"),
    one("the other 16-bit dtype stays", AUTOCAST, PRODUCTS, IS_FLOATING,
        f"{IS_FLOATING} and (dtype == torch.float32 or value.dtype not in (torch.bfloat16, torch.float16))"),
    one("the result rounded, not the inputs", AUTOCAST, PRODUCTS, "            dtype = self.dtype\n",
        "            return func(*[v.float() if torch.is_tensor(v) and v.is_floating_point() else v for v in args], "
        "**{n: v.float() if torch.is_tensor(v) and v.is_floating_point() else v for n, v in kwargs.items()})"
        ".to(self.dtype)\n", "Cast what goes in"),
    one("masks of numbers stay", AUTOCAST, PRODUCTS, "name: cast(value) for",
        'name: value if name == "attn_mask" else cast(value) for'),
    one("a bias stays", AUTOCAST, PRODUCTS, IS_FLOATING, f"{IS_FLOATING} and not (func is F.conv2d and value.dim() == 1)"),
    one("torch.matmul forgotten", AUTOCAST, PRODUCTS, "if func in PRODUCTS:",
        "if func in PRODUCTS and func is not torch.matmul:"),
    one("the first argument alone", AUTOCAST, PRODUCTS, CALL, "func(cast(args[0]), *args[1:], **kwargs)"),
    one("losses follow", AUTOCAST, LOSSES, IS_LOSS, ""),
    one("losses in 16 bits", AUTOCAST, LOSSES, "dtype = torch.float32\n", "dtype = self.dtype\n"),
    one("losses cast when it is too late", AUTOCAST, LOSSES, "            dtype = torch.float32\n",
        "            return func(*args, **kwargs).float()\n"),
    one("keywords of losses forgotten", AUTOCAST, LOSSES, "            dtype = torch.float32\n",
        "            return func(*[v.float() if torch.is_tensor(v) and v.is_floating_point() else v for v in args], "
        "**kwargs)\n"),
    one("losses of FP64 stay", AUTOCAST, LOSSES, IS_FLOATING,
        f"{IS_FLOATING} and not (value.dtype == torch.float64 and func in LOSSES)"),
    one("products by their names", AUTOCAST, OTHERS, "if func in PRODUCTS:",
        'if func in PRODUCTS or "mm" in func.__name__:'),
    one("every loss", AUTOCAST, OTHERS, "elif func in LOSSES:", 'elif func in LOSSES or "loss" in func.__name__:'),
    one("there and back again", AUTOCAST, OTHERS, "            return func(*args, **kwargs)\n",
        "            result = func(*args, **kwargs)\n"
        "            return result.to(self.dtype).to(result.dtype) if func is torch.relu else result\n"),
    one("everything else in FP32", AUTOCAST, OTHERS, "            return func(*args, **kwargs)\n",
        "            dtype = torch.float32\n"),
    one("everything else in 16 bits", AUTOCAST, OTHERS, "            return func(*args, **kwargs)\n",
        "            dtype = self.dtype\n"),
    one("casts masks", AUTOCAST, FLOATS, IS_FLOATING, " and value.dtype != torch.int64"),
    one("casts class numbers", AUTOCAST, FLOATS, IS_FLOATING, " and value.dtype != torch.bool"),
    one("leaves out what is no tensor", AUTOCAST, FLOATS, "for name, value in kwargs.items()}",
        "for name, value in kwargs.items() if isinstance(value, torch.Tensor)}"),
    Mutant("casts of weights kept for ever", AUTOCAST, GRADIENTS,
           (("class Autocast(", "KEPT = {}\n\n\nclass Autocast("), (CAST, KEEP.replace("self.kept", "KEPT")))),
    Mutant("casts of weights kept by the region", AUTOCAST, GRADIENTS,
           (("        self.dtype = dtype\n", "        self.dtype, self.kept = dtype, {}\n"), (CAST, KEEP)),
           "the region that was used before"),
    one("cuts the way back", AUTOCAST, GRADIENTS, CAST, "value.detach().to(dtype) if floating else value"),
    one("computes without autograd", AUTOCAST, GRADIENTS, f"        return {CALL}",
        f"        with torch.no_grad():\n            return {CALL}"),
    one("casts the weights themselves", AUTOCAST, GRADIENTS, CAST,
        "(setattr(value, 'data', value.data.to(dtype)) or value) if floating and value.is_leaf and value.requires_grad "
        "else value.to(dtype) if floating else value"),
    one("cuts off the weights", AUTOCAST, GRADIENTS, CAST,
        "(value.detach() if value.is_leaf and value.shape == (6, 8) else value).to(dtype) if floating else value"),
    # where 16 bits become FP32
    one("BF16 alone", WIDENED, NOTES, "(torch.bfloat16, torch.float16)", "(torch.bfloat16,)"),
    one("arguments without keywords", WIDENED, NOTES, "(*args, *kwargs.values())", "args"),
    one("the first tensor alone", WIDENED, NOTES, "for tensor in tensors)", "for tensor in tensors[:1])"),
    one("all tensors narrow", WIDENED, NOTES, "narrow = any(", "narrow = all("),
    one("each name once", WIDENED, NOTES, "        if narrow and", "        if func.__name__ not in self.found and narrow and"),
    one("the function, not its name", WIDENED, NOTES, "append(func.__name__)", "append(func)"),
    one("the last first", WIDENED, NOTES, "append(func.__name__)", "insert(0, func.__name__)"),
    one("parameters left out", WIDENED, NOTES, "if isinstance(value, torch.Tensor)]", "if type(value) is torch.Tensor]"),
    one("single numbers left out", WIDENED, NOTES, "if narrow and", "if narrow and getattr(result, 'ndim', 0) and"),
    one("in place left out", WIDENED, NOTES, "if narrow and", "if narrow and not func.__name__.endswith('_') and"),
    one("whatever was narrow", WIDENED, NOTHING, f"narrow and {WIDE}", "narrow"),
    one("whatever is wide", WIDENED, NOTHING, f"narrow and {WIDE}", WIDE),
    one("any wider result", WIDENED, NOTHING, "result.dtype == torch.float32", "result.dtype.itemsize > 2"),
    one("two bytes of anything", WIDENED, NOTHING, "tensor.dtype in (torch.bfloat16, torch.float16)",
        "tensor.dtype.itemsize == 2"),
    one("asks a size for its dtype", WIDENED, NOTHING, WIDE, "result.dtype == torch.float32", raises="AttributeError"),
    one("casts back", WIDENED, CHANGES, NOTE, f"{NOTE}            result = result.bfloat16()\n"),
    one("tensors alone come back", WIDENED, CHANGES, f"{NOTE}        return result",
        f"{NOTE}        return result if isinstance(result, torch.Tensor) else None"),
    one("the first of several tensors", WIDENED, CHANGES, f"{NOTE}        return result",
        f"{NOTE}        return result[0] if type(result) is torch.return_types.max else result"),
    one("hides errors", WIDENED, CHANGES, "result = func(*args, **kwargs)",
        "try:\n            result = func(*args, **kwargs)\n        except RuntimeError:\n            return None"),
    one("returns nothing", WIDENED, CHANGES, f"{NOTE}        return result", NOTE),
    one("one list for all", WIDENED, CHANGES, "        self.found = []\n",
        "        self.found = type(self).__dict__.get('all') or []\n        type(self).all = self.found\n"),
    # a Function made safe
    one("no custom_fwd", SAFE, FORWARD, CUSTOM_FWD, "function.forward"),
    Mutant("neither of the two", SAFE, FORWARD,
           ((CUSTOM_FWD, "function.forward"), (CUSTOM_BWD, "function.backward"))),
    Mutant("for CUDA alone", SAFE, FORWARD,
           ((CUSTOM_FWD, CUSTOM_FWD.replace("=device_type", "='cuda'")),
            (CUSTOM_BWD, CUSTOM_BWD.replace("=device_type", "='cuda'")))),
    one("inputs as they are", SAFE, FORWARD, ", cast_inputs=torch.float32", ""),
    one("autocast off, inputs as they are", SAFE, FORWARD, CUSTOM_FWD,
        "torch.amp.custom_fwd(torch.autocast(device_type, enabled=False)(function.forward), device_type=device_type)"),
    one("inputs in BF16", SAFE, FORWARD, "cast_inputs=torch.float32", "cast_inputs=torch.bfloat16"),
    Mutant("inputs cast, autocast left on", SAFE, FORWARD,
           ((CUSTOM_FWD, "lambda ctx, *inputs: function.forward(ctx, *(t.float() for t in inputs))"),
            (CUSTOM_BWD, "torch.autocast(device_type, enabled=False)(function.backward)"))),
    one("no custom_bwd", SAFE, BACKWARD, CUSTOM_BWD, "function.backward"),
    one("gradients in BF16", SAFE, BACKWARD, CUSTOM_BWD,
        f"lambda ctx, gradient, run={CUSTOM_BWD}: tuple("
        "g.bfloat16() if torch.is_autocast_enabled(device_type) else g for g in run(ctx, gradient))"),
    one("changes what it was given", SAFE, WITHOUT, MADE,
        "    function.forward, function.backward = staticmethod(forward), staticmethod(backward)\n    return function"),
    one("casts without autocast, too", SAFE, WITHOUT, "    Safe.forward, Safe.backward = staticmethod(forward),",
        "    Safe.forward, Safe.backward = staticmethod(lambda ctx, *inputs: forward("
        "ctx, *(t.float() if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs))),"),
    one("one gradient", SAFE, ANY, CUSTOM_BWD, f"(lambda run: lambda ctx, gradient: run(ctx, gradient))({CUSTOM_BWD})",
        "TypeError"),
    one("two inputs", SAFE, ANY, CUSTOM_FWD, f"(lambda run: lambda ctx, x, y=None: run(ctx, x, y))({CUSTOM_FWD})",
        "TypeError"),
    one("a class for all", SAFE, ANY, MADE, """    shared = safe.__dict__.setdefault("made", Safe)
    shared.forward, shared.backward = staticmethod(forward), staticmethod(backward)
    return shared""", "the same class"),
    one("numbers as a tensor", SAFE, ANY, MADE, """    Safe.forward = staticmethod(lambda ctx, *inputs: forward(
        ctx, *(t.where(t == t, 0) if torch.is_tensor(t) else 1 for t in inputs)))
    Safe.backward = staticmethod(backward)
    return Safe"""),
    one("the second output alone counts", SAFE, ANY, CUSTOM_BWD,
        "(lambda run: lambda ctx, *gradients: run(ctx, *(g * (n == len(gradients) - 1) "
        f"for n, g in enumerate(gradients))))({CUSTOM_BWD})"),
    one("autocast always on", SAFE, WITHOUT, MADE, """    def always(ctx, *inputs):
        with torch.autocast(device_type, dtype=torch.bfloat16):
            return function.forward(ctx, *inputs)

    Safe.forward, Safe.backward = staticmethod(always), staticmethod(function.backward)
    return Safe"""),
]  # fmt: skip

RIGHT = {
    "step by step": """
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def sgd_with_master(weight, master, gradient, lr):
    master.add_(gradient.to(torch.float32), alpha=-lr)
    weight.data[:] = master.to(torch.bfloat16)


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = list(args), dict(kwargs or {})
        target = self.dtype if func in PRODUCTS else torch.float32 if func in LOSSES else None
        if target is not None:
            for place, value in enumerate(args):
                if torch.is_tensor(value) and torch.is_floating_point(value):
                    args[place] = value.to(dtype=target)
            for name, value in kwargs.items():
                if torch.is_tensor(value) and torch.is_floating_point(value):
                    kwargs[name] = value.to(dtype=target)
        return func(*args, **kwargs)


class Widened(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not torch.is_tensor(out) or out.dtype is not torch.float32:
            return out
        for value in list(args) + list((kwargs or {}).values()):
            if torch.is_tensor(value) and value.is_floating_point() and value.element_size() == 2:
                self.found.append(func.__name__)
                break
        return out


def safe(function, device_type):
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            if torch.is_autocast_enabled(device_type):
                inputs = [t.float() if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs]
            with torch.autocast(device_type, enabled=False):
                return function.forward(ctx, *inputs)

        @staticmethod
        def backward(ctx, *gradients):
            with torch.autocast(device_type, enabled=False):
                return function.backward(ctx, *gradients)

    return Made
""",
    "trees and decorators": """
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


def sgd_with_master(weight, master, gradient, lr):
    with torch.no_grad():
        torch.sub(master, gradient.float(), alpha=lr, out=master)
        weight.copy_(master.bfloat16())


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        for functions, dtype in ((PRODUCTS, self.dtype), (LOSSES, torch.float32)):
            if func in functions:
                args, kwargs = tree_map(
                    lambda x: x.type(dtype) if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x,
                    (args, kwargs),
                )
        return func(*args, **(kwargs or {}))


class Widened(TorchFunctionMode):
    narrow = {torch.bfloat16, torch.float16}

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        went_in = {x.dtype for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if went_in & self.narrow and getattr(result, "dtype", None) == torch.float32:
            self.found += [func.__name__]
        return result


def safe(function, device_type):
    class Decorated(function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)
        def forward(ctx, *inputs):
            return function.forward(ctx, *inputs)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, *gradients):
            return function.backward(ctx, *gradients)

    return Decorated
""",
    "an optimizer, a table, a class made by type": """
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode


def sgd_with_master(weight, master, gradient, lr):
    parameter = nn.Parameter(master)  # shares its memory
    parameter.grad = gradient.float()
    torch.optim.SGD([parameter], lr=lr).step()
    weight.copy_(parameter.detach())


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Caster:
    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, value):
        match value:
            case torch.Tensor() if torch.is_floating_point(value):
                return torch.ops.aten._to_copy(value, dtype=self.dtype)
            case _:
                return value


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.casters = dict.fromkeys(PRODUCTS, Caster(dtype)) | dict.fromkeys(LOSSES, Caster(torch.float32))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        caster = self.casters.get(func, lambda value: value)
        return func(*[caster(value) for value in args], **{k: caster(v) for k, v in (kwargs or {}).items()})


class Widened(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        names = {str(getattr(value, "dtype", "")) for value in (*args, *(kwargs or {}).values())}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float32:
            self.found.extend([func.__name__] if names & {"torch.bfloat16", "torch.float16"} else [])
        return result


def safe(function, device_type):
    forward = torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)(function.forward)
    backward = torch.amp.custom_bwd(device_type=device_type)(function.backward)
    return type("Safe", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
""",
}
