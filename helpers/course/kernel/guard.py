"""See what an answer has changed in the modules around it, and change it back.

A check calls functions of the course, of PyTorch and of Python. An answer runs in the same process and could replace
them. So before any answer runs, the guard writes down which function, class and module stands under which
name; afterwards it puts back what was replaced and says what it was.
"""

import builtins
import operator
import sys
import types
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_WORDS = (
    "helpers torch numpy peft transformers builtins collections contextlib copy cloudpickle functools gc io itertools "
    "json math multiprocessing os pickle random sklearn subprocess sys tempfile threading time weakref"
)
GUARDED = frozenset(_WORDS.split())  # packages whose names are watched
_METHODS = (classmethod, staticmethod, property)
_BUILTINS = frozenset(name for name in vars(builtins) if not name.startswith("_"))


class Guard:
    """Functions, classes and modules as they stand now, by the name under which they are found."""

    def __init__(self) -> None:
        self._owners: list[tuple[Any, list[str], list[Any]]] = []  # modules and classes with their names and values
        self._shadows: list[tuple[types.ModuleType, frozenset[str]]] = []  # names of builtins that a module lacks
        classes: dict[int, type] = {}
        functions: dict[int, types.FunctionType] = {}

        def note(owner: Any, kinds: tuple[type, ...]) -> None:
            values = {n: v for n, v in list(vars(owner).items()) if callable(v) or isinstance(v, kinds)}
            self._owners.append((owner, list(values), list(values.values())))
            for value in values.values():
                if isinstance(value, types.FunctionType):
                    functions[id(value)] = value
                elif isinstance(value, type) and value.__module__.partition(".")[0] in GUARDED:
                    classes[id(value)] = value

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some names warn when they are only looked at
            for module in list(sys.modules.values()):
                if isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] in GUARDED:
                    note(module, (types.ModuleType,))
                    if module is not builtins and type(module) is types.ModuleType:  # torch.ops makes names as it goes
                        self._shadows.append((module, _BUILTINS.difference(vars(module))))
            for kind in list(classes.values()):
                note(kind, _METHODS)
        self._bodies = [(f, f.__code__, f.__defaults__) for f in functions.values()]
        keywords = ((f, f.__kwdefaults__) for f in functions.values())
        self._keywords = [(f, kept, dict(kept or {})) for f, kept in keywords]  # the dictionary itself can be changed
        self._modules = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in GUARDED}

    def restore(self, reading: AbstractContextManager | None = None) -> list[str]:
        """Put everything back; return the names of what had been replaced, e.g. "torch.testing.assert_close".

        Args:
            reading: entered while the bodies of functions are read, which raises two audit events per function: see
                `Watch.reading_bodies`.
        """
        changed = []
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                changed.append(f"sys.modules[{name!r}]")
        for owner, names, values in self._owners:
            if not all(map(operator.is_, map(vars(owner).get, names), values)):  # this loop is hot, so it is C's
                changed += _put_back(owner, zip(names, values, strict=True))
        for module, shadows in self._shadows:
            if not shadows.isdisjoint(vars(module)):  # a name that the module's functions would find before the builtin
                for name in shadows.intersection(vars(module)):
                    delattr(module, name)
                    changed.append(f"{module.__name__}.{name}")
        with reading or nullcontext():
            bodies = [
                body for body in self._bodies if body[0].__code__ is not body[1] or body[0].__defaults__ is not body[2]
            ]
            keywords = [entry for entry in self._keywords if _is_other(entry[0].__kwdefaults__, *entry[1:])]
        for function, code, defaults in bodies:
            function.__code__, function.__defaults__ = code, defaults
            changed.append(f"the body of {_called(function)}")
        for function, kept, values in keywords:
            function.__kwdefaults__ = kept
            if kept is not None:
                kept.clear()
                kept.update(values)
            changed.append(f"the keyword defaults of {_called(function)}")
        return changed


def _is_other(now: dict | None, kept: dict | None, values: dict[str, Any]) -> bool:
    """Say whether keyword defaults are another dictionary than the one kept, or hold other values than it did."""
    if now is not kept or now is None:
        return now is not kept
    return len(now) != len(values) or not all(map(operator.is_, map(now.get, values), values.values()))


def _put_back(owner: Any, noted: Iterable[tuple[str, Any]]) -> list[str]:
    """Give `owner` its values again, and return the names of those that had been replaced."""
    changed = []
    for name, value in noted:
        if vars(owner).get(name) is not value:
            try:
                setattr(owner, name, value)
            except (AttributeError, TypeError):  # a name that cannot be set cannot have been replaced
                continue
            changed.append(f"{_called(owner)}.{name}")
    return changed


def _called(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
