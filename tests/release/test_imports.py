"""What the labs and the command line import, and what they do without."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import helpers
from helpers.core.environment import SPIN
from helpers.core.files import ROOT

import pytest

from ..sampling import sample_with_quick

WATCHED = ("torch", "matplotlib", "transformers", "peft", "bitsandbytes", "torchao", "torch.distributed.tensor")


def imported_by(code: str, **environment: str | None) -> set[str]:
    """Return which of the watched packages a new process has imported after `code`."""
    environment = {**os.environ, **environment}
    tell = f"\nimport json, sys\nprint(json.dumps([name for name in {WATCHED} if sys.modules.get(name)]))"
    done = subprocess.run([sys.executable, "-c", code + tell], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(*arguments: str) -> str:
    return (
        f"from helpers.__main__ import main\ntry:\n    main({list(arguments)})\n"
        "except SystemExit as stop:\n    assert not stop.code"
    )


@pytest.mark.slow
def test_nothing_is_said_on_stderr_by_what_the_labs_import():
    code = "from helpers import *\nimport peft, transformers\nfrom transformers import Trainer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", helpers.__all__)
def test_every_name_lives_in_the_module_that_the_stub_says(name):
    module = f"helpers.{helpers._MODULES[name]}"
    assert getattr(helpers, name) is getattr(sys.modules[module], name)
    assert name in dir(helpers)


def test_the_stub_is_installed_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert Path(helpers.__file__).with_suffix(".pyi").name in project["tool"]["setuptools"]["package-data"]["helpers"]


def test_a_name_that_is_not_there_is_an_error():
    assert not hasattr(helpers, "no_such_name")
    with pytest.raises(ImportError, match="no_such_name"):
        exec("from helpers import no_such_name")


@pytest.mark.parametrize("arguments", [("--help",), ("plan", "--list"), ("plan", "--help")], ids=" ".join)
def test_help_and_lists_do_without_pytorch(arguments):
    assert imported_by(command(*arguments)) == set()


def test_a_lab_imports_what_it_names():
    assert imported_by("import helpers") == set()
    assert imported_by("from helpers import MemoryMeter, check, pick_device, run_ranks") == {"torch"}


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("--model", "small-gpt"), set()),
        (("--model", "gpt2"), {"transformers"}),
        (("--model", "gpt2", "--lora-rank", "4"), {"transformers", "peft"}),
        (("--model", "gpt2", "--lora-rank", "4", "--quantize", "nf4"), {"transformers", "peft"}),
    ],
    ids=["our own model", "a config", "adapters", "a base in 4 bits"],
)
@pytest.mark.slow
def test_a_plan_imports_the_libraries_that_its_recipe_needs(arguments, needed):
    libraries = {"transformers", "peft", "bitsandbytes", "torchao"}
    assert imported_by(command("plan", *arguments, "--seq", "128")) & libraries == needed


def test_the_simulation_asks_for_no_sharded_tensors():
    """PyTorch's optimizers import them by way of the compiler; the planner does only for `fully_shard`."""
    assert "torch.distributed.tensor" not in imported_by("import helpers.planner.simulate")


@pytest.mark.parametrize("module", ["helpers.meter.flops", "helpers.planner.layout.layout_plan"])
def test_triton_is_told_of_its_interpreter_before_anything_imports_it(module, tmp_path):
    """Its own functions, such as `tl.max`, are made for the GPU or for the interpreter when it is imported."""
    (tmp_path / "triton.py").write_text("import os\nprint(os.environ.get('TRITON_INTERPRET'))\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    code = f"import {module}, torch.utils.flop_counter"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert set(done.stdout.split()) == {"1"}


POLICIES = [  # torch imported first or not, the environment; what is said, and how long threads spin
    ("", {}, "spin briefly, then sleep (OMP_WAIT_POLICY=PASSIVE)", "2000"),
    ("", {"GOMP_SPINCOUNT": "7"}, "spin briefly, then sleep (OMP_WAIT_POLICY=PASSIVE)", "7"),
    ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "spin (OMP_WAIT_POLICY=ACTIVE)", "None"),
    ("import torch", {}, "not set by the course: torch was imported first", "2000"),
    ("import torch", {"OMP_WAIT_POLICY": "passive"}, "not set by the course: torch was imported first", "2000"),
    ("import torch", {"OMP_WAIT_POLICY": "ACTIVE"}, "spin (OMP_WAIT_POLICY=ACTIVE)", "None"),
    ("import torch", {"OMP_WAIT_POLICY": "PASSIVE"} | SPIN, "spin briefly, then sleep", "2000"),
]


@pytest.mark.parametrize(
    ("before", "environment", "policy", "spin"), sample_with_quick(POLICIES, one_in=1, quick_one_in=3)
)
def test_idle_threads_spin_briefly_unless_told_otherwise(before, environment, policy, spin):
    code = f"{before}\nimport os, helpers\nfrom helpers.core.environment import idle_threads\nprint(idle_threads())"
    ours = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {**{name: value for name, value in os.environ.items() if name not in ours}, **environment}
    code += "\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout.splitlines()
    assert said[0].startswith(policy)
    assert said[1] == spin


def test_the_makefile_sets_what_helpers_set():
    """A notebook may import torch first; then what `make lab` has set counts."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"export {name} ?= {value}\n" in makefile for name, value in SPIN.items())
