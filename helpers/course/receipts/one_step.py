"""Run one step in this process and write what it measured: python -m helpers.course.receipts.one_step PATH OUT.

What was measured before an error is written too. The last line of OUT's "reason" says what went wrong.
"""

import importlib
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

from helpers.claims.claims import Claims
from helpers.claims.receipt import plain
from helpers.core.device import pick_device
from helpers.course.receipts.steps import Skip


def _run_lab(path: Path, claims: Claims) -> None:
    """Execute a lab's source as `python PATH` would; `claims` gets the rows of its own table."""
    script = types.ModuleType("__main__")
    script.__file__ = str(path)
    sys.modules["__main__"] = script  # what the lab pickles for its workers belongs to the script
    sys.argv = [str(path)]
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), script.__dict__)
    finally:
        if hasattr(script, "claims"):  # the exercises have none
            claims.rows.extend(script.claims.rows)


def _run_measurement(path: Path, claims: Claims) -> None:
    module = importlib.import_module(f"helpers.course.receipts.measurements.{path.stem}")
    module.measure(claims, pick_device())


def main(path: Path, out: Path) -> None:
    """Run the step at `path` and write status, reason, seconds and rows to `out`."""
    claims, began = Claims(), time.perf_counter()
    result: dict[str, Any] = {"status": "done", "reason": ""}
    try:
        (_run_lab if path.parent.name == "solutions" else _run_measurement)(path, claims)
    except Skip as skip:
        result = {"status": "skipped", "reason": str(skip)}
    except Exception as error:
        result = {"status": "failed", "reason": f"{type(error).__name__}: {error}".splitlines()[0]}
        raise
    finally:
        seconds = round(time.perf_counter() - began, 1)
        rows = [plain(row) for row in claims.rows]
        out.write_text(json.dumps({**result, "seconds": seconds, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
