"""`nn.LSTM`, `nn.GRU` and `nn.RNN` as cuDNN runs them: one operation for all layers and all times.

Their weights are one flat tensor, so are their gradients, and the forward pass leaves cuDNN's reserve space to the
backward pass. autograd's own formula of `aten::_cudnn_rnn` saves what it saves on a GPU; this file stands for cuDNN
below it. In a dry run nothing is computed. Otherwise the CPU's layers compute the values, in FP32, and a second time
in the backward pass. What cuDNN does not take (BF16, `torch.backends.cudnn.enabled = False`) goes PyTorch's other way:
cell by cell (recurrent_cells.py).
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.overrides import enable_reentrant_dispatch

from ..meter.work import work_of
from .hollow import hollow_tensor
from .homes import index_of, on_gpu
from .patches import Patches
from .recurrent_cells import layers_by_cells
from .recurrent_sizes import DROPOUT_STATE, GRU, LSTM, RNN_RELU, RNN_TANH, RecurrentSizes
from .recurrent_work import RecurrentWork, recurrent_work

_aten = torch.ops.aten
_FORWARD, _BACKWARD = _aten._cudnn_rnn.default, _aten._cudnn_rnn_backward.default
_LAYERS = {"lstm": LSTM, "gru": GRU, "rnn_tanh": RNN_TANH, "rnn_relu": RNN_RELU}
_MODES = {"LSTM": LSTM, "GRU": GRU, "RNN_TANH": RNN_TANH, "RNN_RELU": RNN_RELU}  # as Python's modules name them
_NAMES = {mode: name for name, mode in _LAYERS.items()}
_DTYPES = (torch.float16, torch.float32, torch.float64)
_SEED = 8  # bytes at the start of the reserve space, which hold the seed of dropout where values are computed
_PARTS = DispatchKey.CompositeImplicitAutograd  # as the layers are without cuDNN
_AUTOCAST = torch._C.DispatchKeySet(DispatchKey.AutocastCPU)
_dropout_states: dict[int, Tensor] = {}


def is_recurrent(func: Any) -> bool:
    """Say whether an operation is a pass of cuDNN through recurrent layers, forward or backward."""
    return func is _FORWARD or func is _BACKWARD


def workspace_bytes(func: Any, args: Any) -> int:
    """Return what such a pass takes while it runs, beyond its results: copies with the time first, and a workspace."""
    named = _named(func, args)
    sizes, item = RecurrentSizes.of(named), named["input"].element_size()
    copies = 0
    if func is _BACKWARD:
        copies += sum(_bytes(shape, item) for name, shape in _HIDDEN if named[name] is None for shape in [shape(sizes)])
        given = named["grad_output"]
        turned = given is not None and named["batch_first"] and not named["batch_sizes"]
        if given is None or not (given.transpose(0, 1) if turned else given).is_contiguous():
            copies += _bytes(sizes.output, item)
    x = named["input"]
    if not (x.transpose(0, 1) if named["batch_first"] and x.dim() > 2 else x).is_contiguous():
        copies += x.numel() * item
    return sizes.workspace(item) + copies


def work_of_pass(func: Any, args: Any, result: Any) -> RecurrentWork:
    """Return the work of such a pass."""
    named = _named(func, args)
    sizes, work = RecurrentSizes.of(named), work_of(func, args, {}, result)
    assert work is not None
    times = len(named["batch_sizes"]) or sizes.output[0]
    turn = max(1, sizes.tokens // times), named["weight"][0].shape[0], sizes.hidden[2]
    return recurrent_work(work, times * sizes.hidden[0], turn)


_HIDDEN: tuple[tuple[str, Callable[[RecurrentSizes], Any]], ...] = (
    ("grad_hy", lambda sizes: sizes.hidden),
    ("grad_cy", lambda sizes: sizes.cell or (0,)),
)


def recurrent(func: Any, args: Any, dry: bool) -> Any:
    """Return what cuDNN returns, with values unless the run is `dry`.

    Raises:
        RuntimeError: backward in eval mode, which cuDNN refuses.
    """
    named = _named(func, args)
    if func is _FORWARD:
        return _forward(named, dry)
    if not named["train"]:
        raise RuntimeError("cudnn RNN backward can only be called in training mode")
    return _backward(named, dry)


def _named(func: Any, args: Any) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=True))


def _new(shape: Sequence[int], dtype: torch.dtype, dry: bool) -> Tensor:
    if dry:
        strides = [*itertools.accumulate(shape[:0:-1], lambda a, b: a * b, initial=1)][::-1]
        return hollow_tensor(shape, strides if shape else [], dtype)
    return torch.zeros(shape, dtype=dtype)


def _bytes(shape: Iterable[int], item: int) -> int:
    return item * torch.Size(shape).numel()


def _forward(named: dict[str, Any], dry: bool) -> tuple[Tensor, ...]:
    x, weights, train = named["input"], named["weight"], named["train"]
    sizes = RecurrentSizes.of(named)
    output, hidden = _new(sizes.output, x.dtype, dry), _new(sizes.hidden, x.dtype, dry)
    cell = _new(sizes.cell or (0,), x.dtype, dry)
    reserve = _new((max(_SEED, sizes.reserve(x.element_size())) if train else 0,), torch.uint8, dry)
    flat = named["weight_buf"]
    if flat is None:
        flat = _new((sum(weight.numel() for weight in weights),), x.dtype, dry)
    turned = named["batch_first"] and not named["batch_sizes"]
    if turned:
        output = output.transpose(0, 1)
    if not dry:
        seed = torch.randint(2**31, ())
        if train:
            reserve[:_SEED].view(torch.int64).fill_(int(seed))
        found = _computed(named, _wide([x, named["hx"], named["cx"], *weights]), int(seed))
        for result, values in zip((output, hidden, cell), found, strict=False):
            result.copy_(values)
    return output, hidden, cell, reserve, flat


def _backward(named: dict[str, Any], dry: bool) -> tuple[Any, ...]:
    x, weights = named["input"], named["weight"]
    sizes = RecurrentSizes.of(named)
    turned = named["batch_first"] and not named["batch_sizes"]
    for_x = _new((x.shape[1], x.shape[0], x.shape[2]) if turned else x.shape, x.dtype, dry)
    results = [for_x.transpose(0, 1) if turned else for_x, _new(sizes.hidden, x.dtype, dry)]
    results.append(_new(sizes.cell, x.dtype, dry) if sizes.cell else None)
    if not named["output_mask"][3]:
        parts: list[Tensor] = []
    else:
        flat = _new((sum(weight.numel() for weight in weights),), x.dtype, dry)
        parts = _views(flat, weights)
    if not dry:
        seed = int(named["reserve"][:_SEED].view(torch.int64))
        for result, values in zip((*results, *parts), _gradients(named, seed), strict=False):
            if result is not None and values is not None:
                result.copy_(values)
    return *results, parts


def _wide(tensors: Iterable[Tensor | None]) -> list[Tensor | None]:
    """Return copies in FP32 that are on no GPU."""
    found = ((t, torch.promote_types(t.dtype, torch.float32)) if t is not None else None for t in tensors)
    return [None if each is None else torch.empty(each[0].shape, dtype=each[1]).copy_(each[0]) for each in found]


def _computed(named: dict[str, Any], tensors: Sequence[Any], seed: int) -> tuple[Tensor, ...]:
    """Return outputs and last states; tensors: the input, the two states and the weights."""
    x, hidden, cell, *weights = tensors
    states = [hidden, cell] if named["mode"] == LSTM else hidden
    biases = named["weight_stride0"] - bool(named["proj_size"]) == 4
    options = weights, biases, named["num_layers"], named["dropout"], named["train"], named["bidirectional"]
    layer, generator = getattr(_aten, _NAMES[named["mode"]]), torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        if named["batch_sizes"]:
            return layer.data(x, torch.tensor(named["batch_sizes"]), states, *options)
        return layer.input(x, states, *options, named["batch_first"])
    finally:
        generator.set_state(before)


def _gradients(named: dict[str, Any], seed: int) -> Sequence[Tensor | None]:
    """Return the gradients of the input, the two states and the weights."""
    tensors = _wide([named["input"], named["hx"], named["cx"], *named["weight"]])
    given = _wide(named[name] for name in ("grad_output", "grad_hy", "grad_cy"))
    with enable_reentrant_dispatch(), torch._C._DisableTorchDispatch(), torch.enable_grad():
        asked = [tensor.requires_grad_() for tensor in tensors if tensor is not None]
        pairs = zip(_computed(named, tensors, seed), given, strict=False)
        known = [(output, gradient) for output, gradient in pairs if gradient is not None]
        outputs, gradients = zip(*known, strict=True)
        found = iter(torch.autograd.grad(outputs, asked, gradients, allow_unused=True))
    return [None if tensor is None else next(found) for tensor in tensors]


# -- what PyTorch does above cuDNN


def _views(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    sizes = [weight.numel() for weight in weights]
    return [part.view(weight.shape) for part, weight in zip(flat.split(sizes), weights, strict=True)]


def _flat_storage(weights: Sequence[Tensor]) -> Tensor | None:
    """Return the tensor whose parts all weights are, one after another; None if they are not."""
    first, place = weights[0], weights[0].data_ptr()
    storage = first.untyped_storage().data_ptr()
    for weight in weights:
        together = weight.data_ptr() == place and weight.untyped_storage().data_ptr() == storage
        if not together or not weight.is_contiguous():
            return None
        place += weight.nbytes
    return first.detach().as_strided((sum(map(Tensor.numel, weights)),), (1,))


class _InHalf(torch.autograd.Function):
    """A flat FP16 copy of weights, and its parts, whose gradients go back to the weights."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        flat = torch.zeros(sum(map(Tensor.numel, weights)), dtype=torch.float16, device=weights[0].device)
        ctx.dtype = weights[0].dtype
        ctx.mark_non_differentiable(flat)
        parts = _views(flat, weights)
        for part, weight in zip(parts, weights, strict=True):
            part.copy_(weight)
        return flat, *parts

    @staticmethod
    def backward(ctx: Any, _: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if gradient is None else gradient.to(ctx.dtype) for gradient in gradients)


def _takes(x: Tensor) -> bool:
    return on_gpu(x) and torch._C._get_cudnn_enabled() and x.dtype in _DTYPES and x.numel() > 0


def _layer(mode: int, packed: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Return PyTorch's function for layers of one mode, as it is for CUDA."""

    def run(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        sizes, args = (args[0].tolist(), args[1:]) if packed else ([], args)
        states, weights, biases, layers, dropout, train, bidirectional, *first = args
        hx, cx = states if mode == LSTM else (states, None)
        width = (hx if cx is None else cx).shape[2]
        projected = hx.shape[2] if hx.shape[2] != width else 0
        if torch.is_autocast_enabled("cuda") and x.dtype is not torch.float64:
            x, hx, cx = (None if value is None else value.half() for value in (x, hx, cx))
            flat, *weights = _InHalf.apply(*weights) if weights[0].dtype is not torch.float16 else (None, *weights)
        else:
            flat = _flat_storage(weights)
        if weights[0].dtype is not x.dtype:
            names = (str(t.dtype).removeprefix("torch.").capitalize() for t in (x, weights[0]))
            raise RuntimeError(
                "Input and parameter tensors are not the same dtype, found input tensor with {} and parameter tensor "
                "with {}".format(*names)
            )
        state = _dropout_state(x) if train and dropout else None
        stride = (4 if biases else 2) + bool(projected)
        options = projected, layers, bool(first and first[0]), dropout, train, bidirectional, sizes, state
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            results = _FORWARD(x, weights, stride, flat, hx, cx, mode, width, *options)
        return results[: 3 if mode == LSTM else 2]

    return run


def _dropout_state(x: Tensor) -> Tensor:
    index = index_of(x) or 0
    if index not in _dropout_states:
        _dropout_states[index] = torch.empty(DROPOUT_STATE, dtype=torch.uint8, device=x.device)
    return _dropout_states[index]


def _flatten(weights: Sequence[Tensor], *_: Any) -> Tensor:
    """Make weights the parts of one tensor, as `flatten_parameters` asks."""
    flat = torch.zeros(sum(map(Tensor.numel, weights)), dtype=weights[0].dtype, device=weights[0].device)
    for weight, part in zip(weights, _views(flat, weights), strict=True):
        part.copy_(weight)
        weight.data = part
    return flat


def install(patches: Patches) -> None:
    """Let recurrent layers of a virtual GPU go to cuDNN."""
    import torch.backends.cudnn.rnn as cudnn_rnn

    library = torch.library.Library("aten", "IMPL")
    patches.later(library._destroy)
    patches.later(_dropout_states.clear)
    for name, mode in _LAYERS.items():
        for overload in ("input", "data"):
            op, path = getattr(getattr(_aten, name), overload), _layer(mode, overload == "data")
            otherwise = functools.partial(layers_by_cells, name) if overload == "input" else None

            def choose(*args: Any, op: Any = op, path: Any = path, otherwise: Any = otherwise) -> Any:
                if _takes(args[0]):
                    return path(*args)
                return otherwise(*args) if otherwise and on_gpu(args[0]) else op._op_dk(_PARTS, *args)

            for key in ("AutogradCPU", "CPU"):
                library.impl(f"{name}.{overload}", choose, key)
    patches.put(cudnn_rnn, "get_cudnn_mode", _MODES.__getitem__)
    acceptable = torch.backends.cudnn.is_acceptable
    patches.put(torch.backends.cudnn, "is_acceptable", lambda x: _takes(x) if on_gpu(x) else acceptable(x))
    flatten = torch._cudnn_rnn_flatten_weight
    patches.put(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.put(
        torch,
        "_cudnn_rnn_flatten_weight",
        lambda weights, *args: (_flatten if on_gpu(weights[0]) else flatten)(weights, *args),
    )
