"""Send to a worker process what was defined in a notebook cell.

A process that is spawned, not forked, gets its data set and functions by pickle, and pickle writes down only the *name*
of a class or function: the new process imports it from its module. A cell is no module, and a lambda has no name.
cloudpickle writes down the code itself.
"""

import sys
from typing import Any

import cloudpickle


class Carried:
    """A data set or function that reaches workers wherever it was defined: `DataLoader(Carried(dataset), ...)`.

    Here it behaves as `thing`; in the worker it *is* `thing`. Tensors in shared memory are copied on the way.
    """

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.thing),)

    def __call__(self, *args: Any) -> Any:
        """Call `thing`, if it is a function."""
        return self.thing(*args)

    def __getitem__(self, i: int) -> Any:
        return self.thing[i]

    def __len__(self) -> int:
        return len(self.thing)


def script_as_notebook() -> None:
    """Let a script start processes anywhere, as a notebook may; in a notebook it changes nothing.

    A spawned process runs the main script once more, up to its `if __name__ == "__main__":`. The labs, which are
    notebooks first, have no such line; so the script's file name is hidden from `multiprocessing`.
    """
    main = sys.modules["__main__"]
    if main.__spec__ is None:  # a plain script; `python -m` names a module, which is not run again
        vars(main).pop("__file__", None)
