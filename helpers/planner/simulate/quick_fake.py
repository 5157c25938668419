"""Fake tensors that remember what an operation returned: a step asks for the same operation on the same shapes often.

PyTorch remembers, too, but needs longer to describe the arguments than to make the result. What is remembered here are
shapes and strides alone, of results whose storage PyTorch would make in just that size; all else is left to PyTorch.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.nn import Parameter

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_Key = tuple[Any, ...]


class _Made(NamedTuple):
    """A result: fresh memory, or a view of the argument at `of`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    of: int | None


class _Result(NamedTuple):
    """What an operation returned: tensors in a `kind` of list or alone, an argument that it changed, or nothing."""

    kind: type | None
    made: tuple[_Made, ...]
    changed: int | None


_seen: dict[_Key, _Result] = {}


class QuickFakeMode(FakeTensorMode):
    """`FakeTensorMode`, with a memory of results."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what `func` returned for arguments of these sizes, or let PyTorch find out."""
        if func.namespace == "profiler":  # it has no tensors
            return func(*args, **(kwargs or {}))
        args = tuple(map(self._fake, args))
        aliases = _aliases(func)
        key = None if aliases is None else _key(func, args, kwargs)
        if key is None:
            return super().dispatch(func, types, args, kwargs or {})
        known = _seen.get(key)
        if known is not None:
            return self._again(known, args)
        result = super().dispatch(func, types, args, kwargs or {})
        known = _described(result, aliases, args, kwargs)
        if known is not None and _key(func, args, kwargs) == key:  # else it has changed the shape of an argument
            _seen[key] = known
        return result

    def _fake(self, value: Any) -> Any:
        """Return the fake tensor of a parameter that was built on the meta device, as PyTorch would; else `value`."""
        if type(value) is Parameter and value.is_meta and self.allow_non_fake_inputs:
            return self.fake_tensor_converter.from_real_tensor(self, value)
        return value

    def _again(self, known: _Result, args: Any) -> Any:
        if known.changed is not None:
            return args[known.changed]
        made = [self._make(each, args) for each in known.made]
        return made[0] if known.kind is Tensor else (known.kind and known.kind(made))

    def _make(self, made: _Made, args: Any) -> Tensor:
        how = {"dtype": made.dtype, "device": "meta"}
        with in_kernel_invocation_manager(self):
            if made.of is None:
                empty = torch.empty_strided(made.shape, made.stride, **how)
            else:
                empty = torch.empty(0, **how)
                empty.set_(args[made.of].untyped_storage(), made.offset, made.shape, made.stride)
        return FakeTensor(self, empty, made.device)


@functools.cache
def _aliases(func: Any) -> tuple[int | None, int | None] | None:
    """Return (the argument that it returns a view of, the one that it changes and returns); None for special ones."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return None
    if torch.Tag.inplace_view in func.tags or any(argument.is_out for argument in func._schema.arguments):
        return None
    returns = func._schema.returns
    if func is torch.ops.aten._unsafe_view.default:  # a view, although its schema does not say so
        return 0, None
    if not any(each.alias_info for each in returns):
        return None, None
    if len(returns) > 1 or str(returns[0].type) not in ("Tensor", "List[Tensor]"):
        return None
    infos = [(i, a.alias_info) for i, a in enumerate(func._schema.arguments) if a.alias_info]
    if str(returns[0].type) == "List[Tensor]":  # of views; the schema calls them a part of anything
        like = [i for i, info in infos if "*" in info.after_set and not info.is_write]
    else:
        like = [i for i, info in infos if info.before_set == returns[0].alias_info.before_set]
    if len(like) != 1:
        return None
    return (None, like[0]) if returns[0].alias_info.is_write else (like[0], None)


def _key(func: Any, args: Any, kwargs: Any) -> _Key | None:
    """Return all that the result depends on; None where that is more than sizes and plain values."""
    try:
        parts = (func, torch.get_default_dtype(), *_parts(args))
        return (*parts, *kwargs, *_parts(kwargs.values())) if kwargs else parts
    except TypeError:
        return None


def _parts(values: Any) -> Iterator[Any]:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            if value.constant is not None or value.is_sparse or value.layout is not torch.strided:
                raise TypeError
            dtype = value.dtype
            if dtype.is_complex:
                raise TypeError
            yield tuple(value.shape), value.stride(), dtype, value.fake_device, value.storage_offset()
        elif kind in _PLAIN_KINDS:
            yield kind, value  # 1, 1.0 and True are equal, and an operation tells them apart
        elif kind is list or kind is tuple:
            yield "(", *_parts(value), ")"
        else:
            raise TypeError


_PLAIN_KINDS = frozenset(_PLAIN)


def _described(result: Any, aliases: tuple[int | None, int | None], args: Any, kwargs: Any) -> _Result | None:
    """Return what is to be remembered of a result; None where it is not of memory in just its size."""
    view_of, changed = aliases
    if changed is not None:
        return _Result(None, (), changed) if changed < len(args) and result is args[changed] else None
    if result is None:
        return _Result(None, (), None)
    tensors = result if type(result) in (list, tuple) else (result,)
    if not all(type(each) is FakeTensor and each.constant is None for each in tensors):
        return None
    if any(each.layout is not torch.strided or each.requires_grad or each.dtype.is_complex for each in tensors):
        return None
    storages = [each.untyped_storage() for each in tensors]
    if view_of is not None:
        if view_of >= len(args) or any(s._cdata != args[view_of].untyped_storage()._cdata for s in storages):
            return None
    else:
        given = {t.untyped_storage()._cdata for t in _flat((*args, *(kwargs or {}).values()))}
        if len({s._cdata for s in storages} | given) != len(storages) + len(given):
            return None
        for each, storage in zip(tensors, storages, strict=True):
            if each.storage_offset() or storage.nbytes() != _nbytes(each):
                return None
    made = tuple(
        _Made(tuple(t.shape), t.stride(), t.dtype, t.fake_device, t.storage_offset(), view_of) for t in tensors
    )
    return _Result(Tensor if tensors is not result else type(result), made, None)


def _flat(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _flat(value)


def _nbytes(tensor: Tensor) -> int:
    """Return the bytes of the memory that `empty_strided` makes."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
