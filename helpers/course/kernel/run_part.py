"""Run the checks of one part in a process of their own: first the cells so far, then each probe."""

import functools
import json
import linecache
import os
import sys
import types
from multiprocessing.connection import Connection
from typing import Any

from helpers.core.device import pick_device
from helpers.exercises.checking import find_part, message_of, own_entry, probe, sharing_a_probe

from IPython.core.inputtransformer2 import TransformerManager

from .dispatcher import leave_modes
from .other_threads import Elsewhere
from .warm import DISPATCHER, GUARD
from .watch import ANSWER, Watch

Cells = list[tuple[str, str]]  # name, source


def run_part(reply: Connection, token: bytes, cells: Cells, name: str, seed: int) -> None:
    """Run `cells`, probe their answers for the part `name`, and send a report (token, then JSON) for each check.

    Where an answer is not defined, that is the evidence of all checks, and nothing is probed.

    A report has `check` and its `evidence`; `changed`, what the answers had replaced before the probe (it was put
    back); `changed_meanwhile`, what was replaced while the probe ran; `elsewhere`, whether other threads worked
    meanwhile; and `heard`, see `Watch`.
    """
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # whatever an answer prints, however much, goes nowhere
        os.dup2(silence, stream)
    watch = Watch()
    names, failed = _run(cells)
    part = find_part(name)
    missing = [answer for answer in part.answers if answer not in names]
    why = "; ".join(f"the cell {cell} failed with {error}" for cell, error in failed.items())
    stopped = f"{', '.join(missing)} is not defined{': ' if why else '.'}{why}"
    changed = [*leave_modes(), *GUARD.restore(watch.reading_bodies())]
    for group in sharing_a_probe(part.checks):
        report: dict[str, Any] = {"changed": changed, "heard": watch.heard}
        entry: dict[str, Any] = {"stopped": stopped}
        if not missing:
            elsewhere = Elsewhere(watch, pick_device().type)
            entry = probe(group[0], tuple(names.get(answer) for answer in part.answers), seed)
            report["elsewhere"] = elsewhere.worked()
            report["changed_meanwhile"] = [*leave_modes(), *GUARD.restore(watch.reading_bodies())]
            report["changed_meanwhile"] += DISPATCHER.other_kernels()
        for check in group:
            own = {"check": check.name(), "evidence": own_entry(check, entry)}
            reply.send_bytes(token + json.dumps(report | own).encode())
    reply.send_bytes(token)  # these were all
    os._exit(0)  # no exit handlers: they might be the answer's


def _run(cells: Cells) -> tuple[dict[str, Any], dict[str, str]]:
    """Run the cells as a notebook would, one after the other, also after one that failed."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    names, failed = vars(main), {}
    names["get_ipython"] = _shell
    for name, source in cells:
        try:
            text = TransformerManager().transform_cell(source)  # magics and shell lines
            file = f"{ANSWER}{name}>"
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            exec(compile(text, file, "exec"), names)
        except BaseException as error:  # SystemExit, too: it ends only its own cell
            words = message_of(error)[:200]
            failed[name] = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return names, failed


@functools.cache
def _shell() -> Any:
    from IPython.core.interactiveshell import InteractiveShell

    class Shell(InteractiveShell):
        def enable_gui(self, gui: str | None = None) -> None:
            """Nothing is shown here, so `%matplotlib` has nothing to do."""

    return Shell.instance()
