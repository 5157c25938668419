"""Run all steps on this machine, one process after the other, and keep what they measured in `receipts/DEVICE.json`."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version
from typing import Any

import torch

from ...claims.receipt import FOLDER, Receipt, ReceiptError, measurement
from ...core.descendants import end_process
from ...core.device import device_name, pick_device
from ...core.files import ROOT, atomic_write
from .steps import Step, steps

_LIMIT = 900  # seconds of one step
_QUICK_LIMIT = 120
_VERSIONS = ("torch", "numpy", "transformers", "peft", "torchao", "bitsandbytes", "triton")
# On a GPU: labs whose figures it changes. Ranks need a GPU each, so that the labs on many GPUs run on the CPU.
_QUICK_LABS = (
    "labs/where_memory_goes",
    "labs/mixed_precision",
    "labs/gradient_accumulation",
    "labs/activation_checkpointing",
    "labs/lean_optimizers",
    "labs/compilation_and_fusion",
    "labs/fp8",
    "labs/lora",
)


class ReceiptsError(ValueError):
    """What was asked for cannot be run here; the message says why."""


def run_receipts(
    device: str | None = None,
    quick: bool = False,
    fresh: bool = False,
    names: tuple[str, ...] = (),
    folder: Path = FOLDER,
) -> int:
    """Run what is not yet in the receipt, or has changed since; each figure is kept as soon as its step has ended.

    Args:
        device: "cuda", "mps" or "cpu"; None takes the fastest.
        quick: fewer labs and a short limit: under ten minutes on a big GPU.
        fresh: run all steps again.
        names: only steps whose names begin so, with or without "labs/".
        folder: where the receipt is kept.

    Returns:
        how many steps failed.

    Raises:
        ReceiptsError: there is no such device or no such step, or the sources are not here.
    """
    environment = _environment(device)
    subject = pick_device() if device is None else torch.device(device)
    chosen = _choose(names, quick, on_cpu=subject.type == "cpu")
    receipt = _earlier(Receipt(device_name(subject), subject.type), folder)
    failed = 0
    for number, step in enumerate(chosen, 1):
        print(f"{number:2}/{len(chosen)}  {step.name}", end="", flush=True)
        before = receipt.steps.get(step.name)
        if before and not fresh and _still_true(before, step):
            print(f": measured on {before['date']}, unchanged", flush=True)
            continue
        print(" ...", end="", flush=True)
        result = _run(step, environment, _QUICK_LIMIT if quick else _LIMIT)
        failed += result["status"] == "failed"
        if result["status"] == "failed" and before and before["status"] == "done":
            print(f" failed, so the earlier figures stay: {result['reason']}")
            continue
        receipt.steps[step.name] = _record(result, step, receipt.device)
        _save(receipt, folder)
        figures = f"{len(result['rows'])} figures"
        outcome = figures if result["status"] == "done" else f"{result['status']}: {result['reason']}"
        print(f" {result['seconds']:.0f} s, {outcome}", flush=True)
    print(f"{folder / receipt.path}: {len(receipt.rows())} figures of {len(receipt.steps)} steps.")
    return failed


def _choose(names: tuple[str, ...], quick: bool, on_cpu: bool) -> list[Step]:
    """Return the steps to run. Lab steps may be named with or without "labs/"."""
    chosen = [
        step
        for step in steps()
        if not names or step.name.startswith(names) or step.name.removeprefix("labs/").startswith(names)
    ]
    if quick:
        chosen = [step for step in chosen if not step.lab or step.name.startswith(_QUICK_LABS)]
        chosen = [step for step in chosen if not step.exercise]
    if not chosen:
        raise ReceiptsError("No such step." if names else "The labs' sources are not here: run this in a checkout.")
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
        print(f"{error} Beginning anew.")
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


def _run(step: Step, environment: dict[str, str], limit: float) -> dict[str, Any]:
    """Run one step in a process of its own and return what it wrote; an error or a hang costs no other step."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        out = Path(scratch) / "out.json"
        command = [sys.executable, "-m", "helpers.course.receipts.one_step", str(step.path), str(out)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(limit)
            reason = f"it ended with code {process.returncode} and wrote nothing"
        except subprocess.TimeoutExpired:
            reason = f"it took more than {limit:.0f} s"
        finally:  # an interrupt, too
            if process.poll() is None:
                end_process(process.pid)
                process.wait()
        try:
            return json.loads(out.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"status": "failed", "reason": reason, "seconds": limit, "rows": []}


def _save(receipt: Receipt, folder: Path) -> None:
    """Replace the file in one go, so that an interrupted run leaves the one before or the one after."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / receipt.path, receipt.text())
