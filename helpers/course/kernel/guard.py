"""See what an answer has changed in the modules around it, and change it back.

A check calls functions of the course, of PyTorch and of Python. An answer runs in the same process and could replace
them. So before any answer runs, the guard writes down which function, class and module stands under which
name; afterwards it puts back what was replaced and says what it was.
"""

import builtins
import sys
import types
import warnings
from typing import Any

_WORDS = (
    "helpers torch numpy peft transformers builtins collections contextlib copy cloudpickle functools gc io itertools "
    "json math multiprocessing os pickle random sklearn subprocess sys tempfile threading time weakref"
)
GUARDED = frozenset(_WORDS.split())  # packages whose names are watched
_METHODS = (classmethod, staticmethod, property)
_GONE = object()
_PLAIN = types.ModuleType  # other kinds of modules find names as they are asked for, torch.ops for one


class Guard:
    """Functions, classes and modules as they stand now, by the name under which they are found."""

    def __init__(self) -> None:
        self._names: list[tuple[Any, str, Any]] = []  # (module or class, name, value)
        self._bodies: list[tuple[types.FunctionType, tuple[Any, ...]]] = []
        classes: dict[int, type] = {}
        functions: dict[int, types.FunctionType] = {}

        def note(owner: Any, name: str, value: Any) -> None:
            self._names.append((owner, name, value))
            if isinstance(value, types.FunctionType):
                functions[id(value)] = value
            elif isinstance(value, type) and value.__module__.partition(".")[0] in GUARDED:
                classes[id(value)] = value

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some names warn when they are only looked at
            for module in list(sys.modules.values()):
                if isinstance(module, types.ModuleType) and module.__name__.partition(".")[0] in GUARDED:
                    for name, value in list(vars(module).items()):
                        if callable(value) or isinstance(value, types.ModuleType):
                            note(module, name, value)
            for kind in list(classes.values()):
                for name, value in list(vars(kind).items()):
                    if callable(value) or isinstance(value, _METHODS):
                        note(kind, name, value)
        self._bodies = [(f, (f.__code__, f.__defaults__, f.__kwdefaults__)) for f in functions.values()]
        self._modules = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in GUARDED}
        known = vars(builtins).keys()
        self._shadows = {name: known & vars(m).keys() for name, m in self._modules.items() if type(m) is _PLAIN}

    def restore(self) -> list[str]:
        """Put everything back; return the names of what had been replaced, e.g. "torch.testing.assert_close"."""
        changed = []
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                sys.modules[name] = module
                changed.append(f"sys.modules[{name!r}]")
        for owner, name, value in self._names:
            if vars(owner).get(name, _GONE) is not value:
                try:
                    setattr(owner, name, value)
                except (AttributeError, TypeError):  # a name that cannot be set cannot have been replaced
                    continue
                changed.append(f"{_called(owner)}.{name}")
        changed += self._unshadow()
        for function, (code, defaults, kwdefaults) in self._bodies:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                function.__code__, function.__defaults__ = code, defaults
                function.__kwdefaults__ = kwdefaults
                changed.append(f"the body of {function.__module__}.{function.__qualname__}")
        return changed

    def _unshadow(self) -> list[str]:
        """Take away names of Python's own functions that a module did not have: there they stand for the real ones."""
        taken = []
        for name, known in self._shadows.items():
            module = self._modules[name]
            for shadow in sorted((vars(builtins).keys() & vars(module).keys()) - known):
                delattr(module, shadow)
                taken.append(f"{name}.{shadow}")
        return taken


def _called(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
