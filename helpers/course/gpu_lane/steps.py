"""What the lane runs, in order: what tells most about a GPU comes first.

Tests marked cuda, a step a file; measurements; every lab's source as a plain script, whose claims are kept as well.
"""

import ast
import hashlib
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ...core.files import ROOT
from ..receipts.steps import steps

_MARK = re.compile(r"^(@|pytestmark = )pytest\.mark\.cuda", re.MULTILINE)
# Measurements that say whether the course's own instruments are right on this GPU.
_INSTRUMENTS = ("meter", "planner")
# Labs whose figures a GPU changes. The other labs run on many ranks, which one GPU leaves to the CPU.
_LABS = (
    "start_here",
    "where_memory_goes",
    "number_formats",
    "mixed_precision",
    "loss_scaling",
    "gradient_accumulation",
    "activation_checkpointing",
    "selective_checkpointing",
    "memory_profiling",
    "oom_clinic",
    "data_loading",
    "workers_in_practice",
    "tokens",
    "lean_optimizers",
    "muon_and_in_place",
    "compilation_and_fusion",
    "fused_kernels",
    "fp8",
    "training_in_fp8",
    "lora",
    "adapters_in_practice",
    "capstone",
    "choosing_a_recipe",
)


@dataclass(frozen=True)
class LaneStep:
    """One command.

    Attributes:
        name: "environment", or a folder and what is run, such as "labs/fp8".
        command: what to run at the root of the checkout.
        files: what it runs; when they change, the step is run again.
    """

    name: str
    command: tuple[str, ...]
    files: tuple[Path, ...] = ()

    @property
    def digest(self) -> str:
        """What tells whether its files have changed since it was run."""
        return hashlib.sha256(b"".join(path.read_bytes() for path in self.files)).hexdigest()[:16]

    @property
    def missing(self) -> list[str]:
        """The packages that its files import at their top and that are not installed."""
        return sorted({name for path in self.files for name in _imported(path) if find_spec(name) is None})


def lane_steps(device: str, again: bool = False) -> list[LaneStep]:
    """Return all steps of this checkout.

    Args:
        device: "cuda", or "cpu" to try the lane itself.
        again: let `receipts` measure anew what it has measured already.
    """
    python = (sys.executable, "-u", "-m")
    environment = LaneStep("environment", (*python, "helpers.course.gpu_lane.environment", device))
    tests = [
        LaneStep(f"tests/{path.parent.name}/{path.stem}", (*python, "pytest", "-m", "cuda", "-q", str(path)), (path,))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if _MARK.search(path.read_text(encoding="utf-8"))
    ]
    measure = (*python, "helpers", "receipts", "--show", "--device", device, *(["--fresh"] if again else []))
    measured = [
        LaneStep(step.name if step.lab else f"measurements/{step.name}", (*measure, step.name), step.files)
        for step in sorted(steps(), key=lambda step: (step.lab, _place(step.name)))
    ]
    return [environment, *tests, *measured]


def _place(name: str) -> int:
    """Return where a measurement or a lab comes among its kind; those that share a place keep their order."""
    if name.startswith("labs/"):
        topic = name.removeprefix("labs/")
        return _LABS.index(topic) if topic in _LABS else len(_LABS)
    return not name.startswith(_INSTRUMENTS)


def _imported(path: Path) -> set[str]:
    """Return the top-level packages that a file imports unconditionally, other than this project's and Python's."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"helpers", "tests"}
