"""What a script does besides computing that a dry run leaves out: compiling for the GPU, and writing checkpoints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import absent, flex_attention, paged, spawned
from .patches import Patches
from .ranks import Device
from .saved_files import SavedFiles
from .script_end import ScriptEnd
from .user_line import is_library_loading
from .waits import Waits
from .world import World


@contextmanager
def for_scripts(waits: Waits, end: ScriptEnd, world: World | None = None, *, fake_data: bool = False) -> Iterator[None]:
    """Let `torch.compile` return what it is given, and `torch.save` write no file; both are noted.

    What ends the script from inside is left to `end`. Models are built without weights that are not here; with
    `fake_data`, data sets that are not here are made up.
    """
    patches = Patches()
    SavedFiles(waits).install(patches)  # under what makes files up, which asks who its caller is
    absent.install(patches, waits, fake_data=fake_data)
    paged.install(patches, waits)
    flex_attention.install(patches, waits)
    spawned.install(patches, world, waits)
    end.install(patches)

    def compiled(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compiled(function, **options)
        if not is_library_loading():  # libraries decorate functions that the program may never call
            waits.leave_out("torch.compile", "not compiled: the peak is that of eager mode")
        return model

    def compiled_module(self: Any, *_: Any, **__: Any) -> None:
        waits.leave_out("Module.compile", "not compiled: the peak is that of eager mode")

    replaced: dict[Any, dict[str, Callable[..., Any]]] = {
        torch: {"compile": compiled, "device": Device},
        torch.nn.Module: {"compile": compiled_module},
    }
    for owner, functions in replaced.items():
        patches.put_all(owner, functions)
    try:
        yield
    finally:
        patches.undo()
