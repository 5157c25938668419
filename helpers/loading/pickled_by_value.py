"""Send to a worker process what was defined in a notebook cell.

A process that is spawned, not forked, gets its data set and functions by pickle, and pickle writes down only the *name*
of a class or function: the new process imports it from its module. A cell is no module, and a lambda has no name.
cloudpickle pickles *by value*: it writes down the code itself.
"""

from typing import Any

import cloudpickle


class PickledByValue:
    """A data set or function that reaches workers wherever it was defined: `DataLoader(PickledByValue(dataset), ...)`.

    It stands in for `value`: indexing, calls and attributes reach it, also in a forked worker. A spawned worker gets
    `value` itself. Tensors in shared memory are copied on the way.
    """

    def __init__(self, value: Any) -> None:
        object.__setattr__(self, "value", value)

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.value),)

    def __getattr__(self, name: str) -> Any:
        if name == "value":  # asked for before __init__ has run, as by copy
            raise AttributeError(name)
        return getattr(self.value, name)

    def __setattr__(self, name: str, new: Any) -> None:
        setattr(self.value, name, new)

    def __call__(self, *args: Any) -> Any:
        """Call `value`, if it is a function."""
        return self.value(*args)

    def __getitem__(self, i: int) -> Any:
        return self.value[i]

    def __len__(self) -> int:
        return len(self.value)
