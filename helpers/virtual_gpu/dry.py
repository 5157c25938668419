"""The mode of a dry run: operations on the GPU compute nothing, and their results are hollow.

What is small and known is computed for real: token ids, masks, scales, counters. So a program decides as it would,
until it asks for a value that comes from a weight; then `stand_ins.py` answers, and `waits.py` takes note of the line.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..meter.work import Work, work_of
from . import stand_ins, value_shapes
from .dispatch import Pretence, _tensors
from .hollow import give_hint, hollow_tensor, is_hollow, is_made_up, is_small, make_hollow
from .homes import home_of, parts, storage_of
from .recurrent import is_recurrent, recurrent, work_of_pass
from .refusals import Refusals
from .schema import argument, effects_of
from .shapes import Spec, signature, specs_of
from .traffic import group_ranks
from .waits import Waits
from .world import NAMESPACES, communicate

_INITIALIZERS = {"normal_", "uniform_", "random_", "bernoulli_"}
_CONSTANTS = {"zeros": 0.0, "ones": 1.0, "zero_": 0.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0}
_VALUE_IS_GIVEN = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
_LARGE = 2**20  # elements of a tensor on the host whose random values are not drawn
_UNSCALES = torch.ops.aten._amp_foreach_non_finite_check_and_unscale_


class DryMode(Pretence):
    """Places the results of operations on GPUs, and does not compute them.

    Attributes:
        seen: called with the work of each operation on a GPU.
        wrote: called with each tensor on a GPU that an operation has written to.
        stacked: called with rows that came to a GPU one by one, and the tensor that they are stacked to.
        taken_apart: called with a tensor of which a part is taken, along its first dimension.
    """

    def __init__(self, refusals: Refusals, waits: Waits) -> None:
        super().__init__(refusals)
        self._waits = waits
        self._works: dict[Any, Work | None] = {}
        self.seen: Any = None
        self.wrote: Any = None
        self.stacked: Any = None
        self.taken_apart: Any = None

    def _execute(
        self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor], index: int | None
    ) -> Any:
        name = func._schema.name.partition("::")[2]
        hollow = any(map(is_hollow, tensors))
        if func.namespace in NAMESPACES and self.traffic is not None:
            return self._communicate(func, name, args, kwargs)
        if func.namespace == "fsdp":  # Python's kernels, which return views of their arguments
            with self:
                return func._op_dk(torch._C.DispatchKey.CPU, *args, **kwargs)
        if index is None and not hollow:
            return self._on_host(func, name, args, kwargs, tensors)
        if name == "copy_":
            return self._copy(func, args, kwargs)
        if effects_of(func).view:
            result = func(*args, **kwargs)
            if self.taken_apart is not None and name in ("select", "unbind") and args[1:2] in ((), (0,)):
                self.taken_apart(args[0])
            return result
        if index is not None and is_recurrent(func):
            result = recurrent(func, args, dry=True)
            if self.seen is not None:
                self.seen(work_of_pass(func, args, result))
            return result
        if "sparse" in name or any(tensor.layout is not torch.strided for tensor in tensors):
            return _sparse(func, args, kwargs, tensors)
        if value_shapes.reads_values(name, args, kwargs):
            if index is not None and name != "_pack_padded_sequence":  # whose lengths are on the CPU
                self._waits.synchronize(name)
            if not hollow:
                return func(*args, **kwargs)
            result, assumed = value_shapes.stand_in(name, args, kwargs)
            if assumed:
                self._waits.assume(name, assumed)
            return result
        key = signature(func, args, kwargs)
        try:
            specs = specs_of(key, func, args, kwargs)
        except NotImplementedError:  # no shapes without values: let it run on whatever there is
            self._waits.assume(name, "ran on memory without data, so its result is meaningless")
            return func(*args, **kwargs)
        if (not hollow or name in _VALUE_IS_GIVEN) and self._is_small(func, args, kwargs, specs):
            result = func(*args, **kwargs)
        else:
            result = self._hollow_results(func, args, kwargs, specs)
            stand_ins.learn(name, args, result)
            self._learn_constant(name, args, result)
        if self.seen is not None and index is not None:
            self._see(key, (func, args, kwargs, result))
        if self.stacked is not None and name == "stack" and args[1:] in ((), (0,)):
            self.stacked(args[0], result)
        if self.wrote is not None and index is not None:
            for tensor in _written(func, args, kwargs):
                self.wrote(tensor)
        return result

    def _communicate(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Stand for a collective: it ends at once, and what it writes or returns is hollow where its inputs are."""
        if name == "wait_tensor":
            return args[0]
        if func.namespace == "c10d":
            result = communicate(func, name, args, len(group_ranks(args)))
        elif effects_of(func).writes:
            result = kwargs.get("out", args[0])
        else:
            specs = specs_of(signature(func, args, kwargs), func, args, kwargs)
            result = self._hollow_results(func, args, kwargs, specs)
        self.traffic.saw(func, args, result)
        return result

    def _on_host(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor]) -> Any:
        """Run an operation of the CPU; only the first random values of large tensors are not drawn."""
        if name in _INITIALIZERS and tensors[0].numel() >= _LARGE and not tensors[0].is_meta:
            return make_hollow(args[0])
        if name in _CONSTANTS and not tensors and "pin_memory" not in kwargs and kwargs.get("device") is not None:
            spec = specs_of(signature(func, args, kwargs), func, args, kwargs)  # C++ made it: see dispatch.py
            if not is_small(_numel(spec), spec.dtype):
                result = hollow_tensor(*spec)
                give_hint(result, "mean", _CONSTANTS[name])
                return result
        if name == "copy_" and is_made_up(args[0]):
            storage_of(args[0]).made_up = False
        return func(*args, **kwargs)

    def _copied(self, func: Any, args: Any, kwargs: dict[str, Any], destination: Any) -> Any:
        source = args[0]
        spec = specs_of(signature(func, args, kwargs), func, args, kwargs)
        small = is_small(_numel(spec), spec.dtype)
        if destination == "cpu":
            self._waits.synchronize("copy to the host")
        else:
            self._note_pageable(source)
        if not is_hollow(source) and (small or destination == "cpu"):
            return func(*args, **kwargs)
        if destination == "cpu" and small:
            self._waits.assume("copy to the host", stand_ins.in_words(stand_ins.number(source)))
            return stand_ins.fill(torch.empty_strided(*spec[:2], dtype=spec.dtype), source)
        result = hollow_tensor(*spec)
        if is_hollow(source):
            stand_ins.learn("_to_copy", args, result)
        return result

    def _copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Stand for `copy_`, which goes between devices as well."""
        target, source = args[:2]
        here, there = home_of(target), home_of(source)
        if here is None and there is not None:
            self._waits.synchronize("copy to the host")
        if here is not None and there is None and here.index is not None:
            self._note_pageable(source)
        small = is_small(target.numel(), target.dtype)
        whole = storage_of(target).nbytes() == target.numel() * target.element_size()
        if not is_hollow(source) and small and (whole or not is_hollow(target)):
            storage_of(target).hollow = False
            return func(*args, **kwargs)
        if here is None and small and not is_hollow(target):
            self._waits.assume("copy to the host", stand_ins.in_words(stand_ins.number(source)))
            return stand_ins.fill(target, source)
        return make_hollow(target)

    def _note_pageable(self, source: Tensor) -> None:
        storage = storage_of(source)
        on_host = home_of(source) is None and source.numel() > 1
        if on_host and storage is not None and not storage.__dict__.get("pinned", False):
            self._waits.copy_pageable(source.numel() * source.element_size())

    @staticmethod
    def _is_small(func: Any, args: Any, kwargs: dict[str, Any], specs: Any) -> bool:
        """Say whether all that an operation returns and writes is small."""
        return all(is_small(_numel(spec), spec.dtype) for spec in _each(specs)) and all(
            is_small(tensor.numel(), tensor.dtype) for tensor in _written(func, args, kwargs)
        )

    @staticmethod
    def _hollow_results(func: Any, args: Any, kwargs: dict[str, Any], specs: Any) -> Any:
        """Return the results of an operation without data; what it writes to loses its data."""
        effects = effects_of(func)
        for place in effects.writes:
            if func._overloadpacket is _UNSCALES and place[1] == "found_inf":
                continue  # all gradients are finite
            for tensor in _tensors([argument(place, args, kwargs)]):
                make_hollow(tensor)
        if not effects.returns:
            return None
        several = specs if len(effects.returns) > 1 else [specs]
        results = [
            _made(spec) if place is None else argument(place, args, kwargs)
            for spec, place in zip(several, effects.returns, strict=True)
        ]
        return tuple(results) if len(results) > 1 else results[0]

    @staticmethod
    def _learn_constant(name: str, args: Any, result: Any) -> None:
        if isinstance(result, Tensor) and is_hollow(result):
            constant = _CONSTANTS.get(name)
            if name in ("fill_", "full", "full_like") and len(args) > 1 and isinstance(args[1], (int, float)):
                constant = float(args[1])
            storage = storage_of(result)
            if storage.nbytes() == result.numel() * result.element_size():
                give_hint(result, "mean", constant)

    def _see(self, key: Any, operation: tuple[Any, Any, Any, Any]) -> None:
        if key not in self._works:
            try:
                self._works[key] = work_of(*operation)
            except (IndexError, TypeError, ValueError, AttributeError):  # an operation of a kind that has no formula
                self._works[key] = None
        if self._works[key] is not None:
            self.seen(self._works[key])


def _sparse(func: Any, args: Any, kwargs: dict[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Run an operation on sparse tensors, whose results depend on indices; values without data stay without."""
    unknown = [part for tensor in tensors for part in parts(tensor) or [tensor] if is_hollow(part)]
    for part in unknown:
        if not part.is_floating_point():
            part.zero_()  # an index must be in range
    result = func(*args, **kwargs)
    if unknown:
        for made in _tensors([result]):
            for part in parts(made) or [made]:
                if part.is_floating_point():
                    make_hollow(part)
    return result


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterable[Tensor]:
    return _tensors(argument(place, args, kwargs) for place in effects_of(func).writes)


def _made(spec: Any) -> Any:
    if isinstance(spec, Spec):
        return hollow_tensor(*spec)
    return [_made(part) for part in spec] if isinstance(spec, list) else spec


def _each(specs: Any) -> Iterable[Spec]:
    if isinstance(specs, Spec):
        yield specs
    elif isinstance(specs, list):
        for part in specs:
            yield from _each(part)


def _numel(spec: Spec) -> int:
    numel = 1
    for size in spec.shape:
        numel *= size
    return numel
