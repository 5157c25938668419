"""The house: few loose modules, a docstring on every door, arrows that point down, short functions."""

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from helpers.core.files import PACKAGE
from helpers.course.build.import_graph import imported_rooms

import pytest

FILES = sorted(PACKAGE.rglob("*.py"))
# Functions with more than five parameters, and why.
MANY_PARAMETERS = {
    "claims/claims.py: record": "the columns of a table, which every lab fills in",
    "core/models.py: __init__": "the sizes of a vision transformer",
    "exercises/fused_kernels/triton_tile.py: _kernel": "a kernel is given addresses and sizes one by one",
    "exercises/mixed_precision/autocast.py: _wrong": "evidence on both sides, and the words of one clause",
    "exercises/pipeline/bubble_claim.py: record_bubble": "the columns of a claim, and the figures that decide it",
    "exercises/x1/compare.py: _run": "what a training is given, and by how much it is disturbed",
    "exercises/x6/saving.py: _save_scene": "the two answers, and where and when they run",
    "exercises/x7/resume.py: _goes_on": "a checkpoint, and what is compared or done with it on these ranks",
    "planner/exports/wrappers.py: wrap": "a command, the nodes on which it runs, and what each of its processes needs",
    "planner/layout/schedule.py: order_of": "the sizes of a schedule, by which its order is kept",
    "planner/plan.py: plan": "a GPU is named in one of three ways, and two functions hear of what is known so far",
    "planner/simulate/cuda_kernels.py: _attention": "takes the place of PyTorch's function of that signature",
    "ranks/deepspeed_config.py: deepspeed_config": "the entries of a configuration",
    "virtual_gpu/recurrent_cells.py: layers_by_cells": "the signature of PyTorch's operator",
    "virtual_gpu/recurrent_cells.py: _lstm_backward": "the signature of the kernel for which it stands",
    "virtual_gpu/absent/flash_attention.py: flash_attn_func": "the signature of the function it replaces",
    "virtual_gpu/absent/flash_attention.py: flash_attn_varlen_func": "the signature of the function it replaces",
    "virtual_gpu/absent/flash_attention.py: layer_norm_fn": "the signature of the function it replaces",
    "virtual_gpu/absent/models.py: _bart": "the sizes of an encoder-decoder",
    "virtual_gpu/flex_attention.py: attend": "the signature of PyTorch's operator",
    "virtual_gpu/kernels.py: _backward_elemt": "the signature of PyTorch's operator",
    "virtual_gpu/kernels.py: _backward_reduce": "the signature of PyTorch's operator",
    "virtual_gpu/kernels.py: _elemt": "the signature of PyTorch's operator",
    "virtual_gpu/kernels.py: _gather_stats": "the signature of PyTorch's operator",
    "virtual_gpu/world.py: init_process_group": "the signature of the function it replaces",
    "ranks/run.py: run_ranks": "labs use one or two of its four options",
}


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_few_modules_stand_outside_the_rooms():
    loose = [path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    assert len(loose) <= 5, loose


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=where)
def test_every_package_says_what_it_is_for(folder):
    door = folder / "__init__.py"
    assert door.exists()
    assert ast.get_docstring(ast.parse(door.read_text(encoding="utf-8")))


@pytest.mark.parametrize("house", [PACKAGE, PACKAGE / "course", PACKAGE / "course" / "grade"], ids=where)
def test_no_rooms_import_each_other_in_a_circle(house):
    rooms = imported_rooms(house)
    assert len(rooms) >= 4
    try:
        tuple(TopologicalSorter(rooms).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' imports '.join(error.args[1][::-1])}")


# -- functions and names


@functools.cache
def functions() -> tuple[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
    return tuple(_functions())


def _functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in FILES:
        if "reference" in path.parts:  # built from the labs
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{where(path)}: {node.name}", node


def test_functions_are_short():
    long = {name: node.end_lineno - node.lineno + 1 for name, node in functions()}
    assert {name: lines for name, lines in long.items() if lines > 60} == {}


def test_functions_have_few_parameters():
    many = set()
    for name, node in functions():
        args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        if len([arg for arg in args if arg.arg not in ("self", "cls")]) > 5:
            many.add(name)
    assert many == set(MANY_PARAMETERS)


@pytest.mark.parametrize("name", ["run.py", "report.py", "measure.py"])
def test_a_name_that_says_little_is_used_once(name):
    assert len([path for path in FILES if path.name == name]) <= 1
