"""Read what a user measured: `--rates FILE`. What kind of file it is follows from what is in it.

Tables of matmuls come as JSON or CSV, or as SimuMax's own; collectives as nccl-tests print them; a whole GPU as
`roofline --json` writes it; runs as lines of JSON in the words of `plan --rows`, each with its tokens per second.
"""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..catalog.clusters import Cluster
from ..catalog.gpus import find_gpu
from ..config import RecipeError
from .check import check, check_against
from .measured import ATTENTION, PASSES, Attention, Matmul, Measured, Wire
from .nccl_tests import is_nccl_tests, read_nccl_tests
from .roofline import is_roofline, read_roofline
from .simumax import systems

_GROUPS = {"gpu", "matmuls", "attention", "memory_gb_s", "kernel_us", "collectives", "launch_us", "runs", "about"}
_SPEEDS = ("tokens_per_second_per_gpu", "tokens_per_second", "step_seconds")  # of a run; one of them
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "float8_e4m3fn"}
_TERA, _GIGA, _MICRO = 1e12, 1e9, 1e-6


@dataclass(frozen=True, eq=False)
class RatesFile:
    """A file of rates.

    Attributes:
        name: of the file.
        systems: its tables, by the GPU that they name; "" where the file names none.
        runs: lines as of `plan --rows`, each with a speed that was measured.
    """

    name: str
    systems: Mapping[str, Measured]
    runs: Sequence[Mapping[str, Any]] = ()

    def of(self, cluster: Cluster) -> Measured:
        """Return the tables of a cluster's GPU.

        Raises:
            RecipeError: the file has none, or they contradict the data sheet.
        """
        found = self.systems.get("")
        if found is None:
            mine = [tables for name, tables in self.systems.items() if _is(name, cluster.gpu.name)]
            if not mine:
                names = ", ".join(self.systems)
                raise RecipeError(f"{self.name} has rates of {names}; the run is on {cluster.gpu.name}.")
            found = mine[0]
        check_against(found, cluster, self.name)
        return found


def _is(name: str, gpu: str) -> bool:
    """Return whether a system is called like a GPU: "b200_bf16_ceperm" is a b200-192gb, and no gb200-186gb."""
    return name.lower().replace("-", "_").split("_")[0] == gpu.split("-")[0] or name == gpu


def read_rates(path: str) -> RatesFile:
    """Return the rates in a file.

    Raises:
        RecipeError: it is of no known kind, says too little, or contradicts itself.
        OSError: it cannot be read.
    """
    name = Path(path).name
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise RecipeError(f"{name} is not a text file.") from None
    found = _read(text, name)
    for tables in found.systems.values():
        if not found.runs or tables is not _NOTHING:
            check(tables, name)
    return found


_NOTHING = Measured()


def _read(text: str, name: str) -> RatesFile:
    if is_nccl_tests(text):
        return RatesFile(name, {"": read_nccl_tests(text)})
    value = _json(text)
    if is_roofline(value):
        return RatesFile(name, {"": read_roofline(value)})
    known = systems(value)
    if known:
        return RatesFile(name, known)
    if isinstance(value, Mapping) and any(speed in value for speed in _SPEEDS):
        value = [value]
    _check_kind(text, value, name)
    if isinstance(value, Mapping):
        return _own(value, name)
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        runs = [row for row in value if any(speed in row for speed in _SPEEDS)]
        if len(runs) == len(value):
            return RatesFile(name, {"": _NOTHING}, runs)
        return RatesFile(name, {"": Measured([_matmul(row, name) for row in value])})
    first = "".join(text.lstrip().splitlines()[:1])
    comma = next((each for each in ",;\t" if each in first), ",")
    if {"m", "n", "k"} <= {word.strip().lower() for word in first.split(comma)}:
        rows = csv.DictReader(text.strip().splitlines(), delimiter=comma, skipinitialspace=True)
        table = [{str(key).strip().lower(): said for key, said in row.items() if said} for row in rows]
        return RatesFile(name, {"": Measured([_matmul(row, name) for row in table])})
    raise RecipeError(
        f"{name} is not a table of rates: give JSON or CSV with m, n, k and tflops, the output of nccl-tests or of "
        "roofline --json, or lines of runs with tokens_per_second_per_gpu."
    )


def _check_kind(text: str, value: Any, name: str) -> None:
    """Make sure that a file is neither a profiler's trace nor the log of a training.

    Raises:
        RecipeError: it is; says what to give instead.
    """
    first = value[0] if isinstance(value, list) and value else value
    keys = set(first) if isinstance(first, Mapping) else set()
    if "traceEvents" in keys or {"ph", "ts"} <= keys:
        raise RecipeError(
            f"{name} is a profiler's trace, which does not give the FLOPs of its kernels: give a table with m, n, k "
            "and tflops, or the output of roofline --json."
        )
    if (value is None and _LOGGED.search(text)) or _OF_LOGS & keys:
        raise RecipeError(
            f"{name} is a training log, which does not state its layout: give a line of JSON with the fields of --rows "
            f"and a measured {', '.join(_SPEEDS[:-1])} or {_SPEEDS[-1]} for each run."
        )


# Of Megatron, torchtitan, NeMo, Hugging Face's Trainer, and DeepSpeed; in JSON, of Trainer and LLaMA-Factory.
_LOGGED = re.compile(
    r"elapsed time per iteration|\btps:\s*[\d,]+|train_step_timing|'(?:loss|train_runtime)':|SamplesPerSec="
)
_OF_LOGS = {"log_history", "train_samples_per_second", "current_steps"}


def _json(text: str) -> Any:
    """Return the value of a text, or the list of its lines' values; None where it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return None


def _own(value: Mapping[str, Any], name: str) -> RatesFile:
    """Return a file in this project's own words."""
    unknown = sorted(set(value) - _GROUPS)
    if unknown:
        raise RecipeError(f"{name} has unknown {', '.join(unknown)}; the known ones are {', '.join(sorted(_GROUPS))}.")
    tables = Measured(
        [_matmul(row, name) for row in _rows(value, "matmuls", name)],
        [_attention(row, name) for row in _rows(value, "attention", name)],
        [_wire(row, name) for row in _rows(value, "collectives", name)],
        _number(value, "memory_gb_s", name, 0.0) * _GIGA,
        _number(value, "kernel_us", name, 0.0) * _MICRO,
        _number(value, "launch_us", name, 0.0) * _MICRO,
    )
    gpu = find_gpu(str(value["gpu"])).name if value.get("gpu") else ""
    runs = _rows(value, "runs", name)
    empty = not (tables.matmuls or tables.attention or tables.wires or tables.memory or tables.launch)
    return RatesFile(name, {gpu: _NOTHING if empty else tables}, runs)


def _rows(value: Mapping[str, Any], group: str, name: str) -> list[Mapping[str, Any]]:
    rows = value.get(group) or []
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise RecipeError(f"{name}: {group} must be a list of objects.")
    return rows


def _number(row: Mapping[str, Any], key: str, name: str, default: float | None = None) -> float:
    said = row.get(key, default)
    if said is None:
        raise RecipeError(f"{name} lacks {key}.")
    try:
        number = float(said)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(said, bool) or not 0 <= number < 1e18:
        raise RecipeError(f"{name}: {key} is {said!r}; it must be a number.")
    return number


def _side(row: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    number = _number(row, key, name, default)
    if number < 1 or number != int(number):
        raise RecipeError(f"{name}: {key} is {row.get(key)!r}; it must be a whole number of at least 1.")
    return int(number)


def _matmul(row: Mapping[str, Any], name: str) -> Matmul:
    which = str(row.get("pass") or "")
    if which not in (*PASSES, ""):
        raise RecipeError(f"{name}: pass is {which!r}; choose one of {', '.join(PASSES)}.")
    dtype = str(row.get("dtype") or "bfloat16").removeprefix("torch.")
    sides = (_side(row, key, name) for key in "mnk")
    rate = _number(row, "tflops", name) * _TERA
    return Matmul(*sides, rate, _DTYPES.get(dtype, dtype), which, _side(row, "groups", name, 1))


def _attention(row: Mapping[str, Any], name: str) -> Attention:
    which = str(row.get("pass") or "forward")
    if which not in ATTENTION:
        raise RecipeError(f"{name}: pass is {which!r}; attention has {' and '.join(ATTENTION)}.")
    sequences = _side(row, "batch", name, 1) * _side(row, "heads", name)
    seq, head = _side(row, "seq", name), _side(row, "head_dim", name, 128)
    return Attention(sequences, seq, head, _number(row, "tflops", name) * _TERA, which)


def _wire(row: Mapping[str, Any], name: str) -> Wire:
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")
    if row.get("collective") not in kinds:
        raise RecipeError(f"{name}: collective is {row.get('collective')!r}; choose one of {', '.join(kinds)}.")
    latency = _number(row, "latency_us", name, 0.0) * _MICRO
    bandwidth = _number(row, "bus_gb_s", name) * _GIGA
    return Wire(row["collective"], _side(row, "ranks", name), _side(row, "nodes", name, 1), latency, bandwidth)


def speed_of(run: Mapping[str, Any], tokens: int, gpus: int) -> float:
    """Return the measured seconds of a step of a run with so many tokens.

    Raises:
        RecipeError: it has none.
    """
    if run.get("step_seconds"):
        return _number(run, "step_seconds", "runs")
    per_gpu = run.get("tokens_per_second_per_gpu")
    whole = _number(run, "tokens_per_second_per_gpu", "runs") * gpus if per_gpu else None
    whole = whole or _number(run, "tokens_per_second", "runs")
    if not whole:
        raise RecipeError("The speed of every run must be more than 0.")
    return tokens / whole


def with_pace(tables: Measured, pace: float) -> Measured:
    """Return tables by which every second counts `pace` times."""
    return replace(tables, pace=pace, _known={})
