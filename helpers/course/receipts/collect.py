"""Run all steps on this machine, one process after the other, and keep what they measured in `receipts/DEVICE.json`."""

import contextlib
import json
import os
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import torch

from ...claims.receipt import FOLDER, Receipt, ReceiptError, measurement
from ...core.device import device_name, pick_device
from ...core.files import atomic_write
from ...core.limited_process import run_limited
from .steps import Step, steps

_LIMIT = 900  # seconds of one step
_LINES = 20  # of a failing step's output, to print
_VERSIONS = ("torch", "numpy", "transformers", "peft", "torchao", "bitsandbytes", "triton")


class ReceiptsError(ValueError):
    """What was asked for cannot be run here; the message says why."""


def run_receipts(
    device: str | None = None,
    fresh: bool = False,
    names: tuple[str, ...] = (),
    show: bool = False,
    folder: Path = FOLDER,
) -> int:
    """Run what is not yet in the receipt, or has changed since; each figure is kept as soon as its step has ended.

    Args:
        device: "cuda", "mps" or "cpu"; None takes the fastest.
        fresh: run all steps again.
        names: only steps of that name; of a name that no step has, those whose names or files begin so, such as
            "labs/mixed_precision", "mixed" and "03".
        show: print what the steps print, too; otherwise only the end of what a failing one has printed.
        folder: where the receipt is kept.

    Returns:
        how many steps failed.

    Raises:
        ReceiptsError: there is no such device or no such step, or the sources are not here.
    """
    environment = _environment(device)
    subject = pick_device() if device is None else torch.device(device)
    chosen = _choose(names, on_cpu=subject.type == "cpu")
    receipt = _earlier(Receipt(device_name(subject), subject.type), folder)
    print(f"Writing to {folder / receipt.path}:")
    failed = 0
    for number, step in enumerate(chosen, 1):
        print(f"{number:2}/{len(chosen)}  {step.name}", end="", flush=True)
        before = receipt.steps.get(step.name)
        if before and not fresh and _still_true(before, step):
            print(f": measured on {before['date']}, unchanged", flush=True)
            continue
        print(" ...", end="", flush=True)
        result = _run(step, environment, show)
        failed += result["status"] == "failed"
        if result["status"] == "failed" and before and before["status"] == "done":
            print(f" failed, so the earlier figures stay: {result['reason']}", flush=True)
            continue
        receipt.steps[step.name] = _record(result, step, receipt.device)
        _save(receipt, folder)
        figures = f"{len(result['rows'])} figures"
        outcome = figures if result["status"] == "done" else f"{result['status']}: {result['reason']}"
        print(f" {result['seconds']:.0f} s, {outcome}", flush=True)
    return failed


def _choose(names: tuple[str, ...], on_cpu: bool) -> list[Step]:
    """Return the steps to run: those of that name, else those whose names or files begin so."""
    known = steps()
    exact = {step.name for step in known} & set(names)
    begun = tuple(name for name in names if name not in exact)
    chosen = [
        step
        for step in known
        if not names
        or step.name in exact
        or step.name.startswith(begun)
        or step.name.removeprefix("labs/").startswith(begun)
        or (step.path.stem.startswith(begun) and not (on_cpu and step.exercise))
    ]
    if not chosen:
        unknown = f"No such step: {', '.join(names)}. A step is a measurement or a lab: mixed_precision, 03."
        raise ReceiptsError(unknown if names else "The labs' sources are not here: run this in a checkout.")
    if on_cpu and not names:  # exercises record no claims; on a GPU it is worth knowing that they run
        chosen = [step for step in chosen if not step.exercise]
    return chosen


def _record(result: dict[str, Any], step: Step, device: str) -> dict[str, Any]:
    """Return what the receipt keeps of a step: its result, and what it was measured with."""
    return {
        **result,
        "date": date.today().isoformat(),
        "source": step.digest,
        "versions": _versions(),
        "rows": [measurement(row, device) for row in result["rows"]],
    }


def _environment(device: str | None) -> dict[str, str]:
    """Return the environment in which `pick_device` picks `device`."""
    fastest = pick_device().type
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" and fastest == "cuda" else {}
    if device not in (None, fastest) and not hidden:
        raise ReceiptsError(f"PyTorch sees no {device} device here; this machine computes on: {fastest}.")
    quiet = {"TAS_PROGRESS": "off", "MPLBACKEND": "agg", "PYTHONIOENCODING": "utf-8"}
    return {**os.environ, **hidden, **quiet}


def _earlier(empty: Receipt, folder: Path) -> Receipt:
    path = folder / empty.path
    try:
        return Receipt.read(path) if path.exists() else empty
    except ReceiptError as error:
        print(f"{error} Starting over.")
        return empty


def _versions() -> dict[str, str]:
    versions = {"python": python_version()}
    for name in _VERSIONS:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _still_true(before: dict[str, Any], step: Step) -> bool:
    same = before["source"] == step.digest and before["versions"].get("torch") == version("torch")
    return same and before["status"] != "failed"


def _run(step: Step, environment: dict[str, str], show: bool) -> dict[str, Any]:
    """Run one step in a process of its own and return what it wrote; an error or a hang costs no other step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        out, said = Path(scratch) / "out.json", Path(scratch) / "said.txt"
        command = [sys.executable, "-m", "helpers.course.receipts.one_step", str(step.path), str(out)]
        began = time.perf_counter()
        with said.open("wb") as output:
            code = run_limited(command, environment, _LIMIT, None if show else output)
        if code and (lines := said.read_text(encoding="utf-8", errors="replace").splitlines()):
            print("\n" + "\n".join(f"      {line}" for line in lines[-_LINES:]), flush=True)
        try:
            return json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            late = f"it took more than {_LIMIT} s"
            reason = late if code is None else f"it ended with code {code} and wrote nothing"
            seconds = round(time.perf_counter() - began, 1)
            return {"status": "failed", "reason": reason, "seconds": seconds, "rows": []}


def _save(receipt: Receipt, folder: Path) -> None:
    """Replace the file in one go, so that an interrupted run leaves the one before or the one after."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / receipt.path, receipt.text())
