"""The FLOPs and bytes of a step, by phase and operation, as the dispatcher sees them."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from .flops import flops_of
from .kinds import Kind, kind_of
from .operations_seen import each_operation
from .phases import Phase, range_phase
from .traffic import bytes_moved

StepWork = dict[tuple[Phase, Kind, str], tuple[int, int, int]]  # calls, FLOPs, bytes

_ENTER = torch.ops.profiler._record_function_enter_new.default
_EXIT = torch.ops.profiler._record_function_exit._RecordFunction


class _Tally:
    """Adds up operations, and follows the labeled ranges around them."""

    def __init__(self) -> None:
        self.work: dict[tuple[Phase, Kind, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._labels: list[str] = []

    def see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add an operation; calls that begin and end a labeled range come as operations as well."""
        if func is _ENTER:
            self._labels.append(args[0])
        elif func is _EXIT and self._labels:
            self._labels.pop()
        name = func._schema.name
        kind = kind_of(name)
        if kind is None:
            return
        row = self.work[self._phase(kind), kind, part_name(name)]
        row[0] += 1
        row[1] += flops_of(func, args, kwargs, result)
        row[2] += sum(bytes_moved(func, args, kwargs, result))

    def _phase(self, kind: Kind) -> Phase:
        """Return the phase by the rules by which `spans.py` reads it from a trace."""
        if kind == "collective":
            return "communication"
        labelled = next((phase for label in reversed(self._labels) if (phase := range_phase(label))), None)
        if labelled or torch._C._current_graph_task_id() == -1:
            return labelled or "forward"
        return "recompute" if torch.is_grad_enabled() else "backward"


def part_name(name: str) -> str:
    """Return the name under which seconds and work of an operation meet.

    PyTorch adds gradients and biases in place, but makes new tensors while a dispatch mode looks on: one name for both.
    """
    return "aten::add" if name == "aten::add_" else name


def step_work(step_fn: Callable[[], object]) -> StepWork:
    """Run `step_fn()` and return calls, FLOPs and bytes of each operation in each phase; causal attention in full."""
    tally = _Tally()
    each_operation(step_fn, tally.see)
    return {key: (calls, flops, moved) for key, (calls, flops, moved) in tally.work.items()}
