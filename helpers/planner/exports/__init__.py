"""Exports: a layout as the configuration of a real training engine, and the job that starts it.

`export` writes the configuration, `command` what torchrun has to start, `wrap` the job around it. What an engine cannot
express is refused in one line, never left out: a configuration that trains something other than the plan is worse than
none.
"""

from ..catalog.gpus import Gpu
from ..config import RecipeError
from ..layout.layout import Layout
from . import deepspeed, megatron, megatron_bridge, torchrun, torchtitan
from .wrappers import WRAPPERS, wrap

_ENGINES = {
    "torchtitan": torchtitan,
    "megatron": megatron,
    "megatron-bridge": megatron_bridge,
    "deepspeed": deepspeed,
    "torchrun": torchrun,
}
EXPORTS = tuple(_ENGINES)
_HEADED = (torchtitan, megatron, megatron_bridge)

__all__ = ["EXPORTS", "FILES", "WRAPPERS", "command", "environment", "export", "wrap"]

FILES = {name: engine.FILE for name, engine in _ENGINES.items()}


def export(layout: Layout, model: str, engine: str, gpu: str = "") -> str:
    """Return the text of the file that makes `engine` train as `layout` says; `FILES` has its usual name.

    Args:
        model: the name of the model, as the catalog has it; it heads the file, and a script of ours builds it.
        engine: one of `EXPORTS`.
        gpu: for which GPUs, as the catalog has them; the first line names them, and `--from` reads it. Empty: none.

    Raises:
        RecipeError: the engine cannot express the layout; the message says which part, and what to change.
    """
    module = _engine(engine)
    return module.text(layout, model, gpu) if module in _HEADED else module.text(layout, model)


def command(engine: str) -> str:
    """Return what torchrun starts, beside the exported file under its usual name: a program and its arguments.

    Raises:
        RecipeError: `engine` is none of `EXPORTS`.
    """
    return _engine(engine).COMMAND


def environment(layout: Layout, engine: str, gpu: Gpu) -> dict[str, str]:
    """Return the variables that each process of `engine` needs on this kind of GPU."""
    return megatron.environment(layout, gpu) if engine.startswith("megatron") else {}


def _engine(name: str):  # noqa: ANN202
    if name not in _ENGINES:
        raise RecipeError(f"There is no export {name!r}; choose one of {', '.join(EXPORTS)}.")
    return _ENGINES[name]
