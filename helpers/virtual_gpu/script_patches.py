"""What a script does besides computing that a dry run leaves out: compiling, tracing, and writing checkpoints."""

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
    """Let `torch.compile` and `torch.jit.trace` return what they are given, `torch.save` write no file; all are noted.

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

    def traced(function: Any, example_inputs: Any = None, *_: Any, **options: Any) -> Any:
        waits.leave_out("torch.jit.trace", "not traced: it runs as it is")
        _run_once(function, example_inputs, options.get("example_kwarg_inputs") or {})
        return function

    replaced: dict[Any, dict[str, Callable[..., Any]]] = {
        torch: {"compile": compiled, "device": Device},
        torch.nn.Module: {"compile": compiled_module},
        torch.jit: {"trace": traced},
    }
    for writer in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        patches.after_import(writer, lambda patches, module: _draw_no_graph(patches, module.SummaryWriter, waits))
    for owner, functions in replaced.items():
        patches.put_all(owner, functions)
    try:
        yield
    finally:
        patches.undo()


def _run_once(function: Any, inputs: Any, named: dict[str, Any]) -> None:
    """Call what is to be traced, as tracing does."""
    given = () if inputs is None else inputs if isinstance(inputs, tuple) else (inputs,)
    if given or named:
        function(*given, **named)


def _draw_no_graph(patches: Patches, writer: Any, waits: Waits) -> None:
    """Leave out TensorBoard's picture of a model, for which the model is traced."""

    def add_graph(self: Any, model: Any, input_to_model: Any = None, *_: Any, **__: Any) -> None:
        waits.leave_out("add_graph", "not traced: TensorBoard shows no graph")
        _run_once(model, tuple(input_to_model) if isinstance(input_to_model, list) else input_to_model, {})

    patches.put(writer, "add_graph", add_graph)
