"""Wrappers: a shell reads them, YAML reads them, and the counts are right."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from helpers.planner.catalog.gpus import GPUS
from helpers.planner.config import RecipeError
from helpers.planner.exports import EXPORTS, WRAPPERS, command, environment, wrap
from helpers.planner.exports.wrappers import ACCELERATORS

import pytest
import yaml

from .cases import BASES


@pytest.mark.parametrize("nodes", [1, 8])
@pytest.mark.parametrize("engine", EXPORTS)
def test_a_shell_can_read_every_job(engine, nodes):
    for how in ("torchrun", "sbatch"):
        text = wrap(command(engine), nodes, 8, how, "dgx-h100")
        read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert read.returncode == 0, read.stderr
        assert "--nproc-per-node=8" in text
        assert ("--nnodes=8" in text) == (nodes == 8)
        assert command(engine) in text
    task = yaml.safe_load(wrap(command(engine), nodes, 8, "skypilot", "dgx-h100"))
    assert task["num_nodes"] == nodes
    assert task["resources"]["accelerators"] == "H100:8"
    assert command(engine) in task["run"]
    assert subprocess.run(["bash", "-n"], input=task["run"], text=True, check=False).returncode == 0


def test_slurm_is_told_the_nodes_before_the_first_command():
    lines = wrap("train.py", 4, 8, "sbatch", "dgx-h100").splitlines()
    told = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert {"--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--job-name=planned-dgx-h100"} <= set(told)
    assert lines[0] == "#!/bin/bash"
    assert all(line.startswith("#") for line in lines[: len(told) + 1])


def test_the_head_node_is_where_all_meet():
    for how in ("sbatch", "skypilot"):
        text = wrap("train.py", 2, 8, how, "h100")
        assert text.index("HEAD_NODE=$(") < text.index("export HEAD_NODE") < text.index('"$HEAD_NODE:29500"')


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"how": "pbs"}, "choose one of torchrun, sbatch, skypilot"),
        ({"nodes": 0}, "both must be at least 1"),
        ({"gpus_per_node": 0}, "both must be at least 1"),
        ({"command": "a\nb"}, "one line"),
        ({"command": " "}, "one line"),
        ({"how": "skypilot", "name": "abacus"}, "abacus"),
        ({"how": "skypilot", "name": "rtx-3060-12gb"}, "SkyPilot offers no rtx-3060-12gb"),
    ],
)
def test_what_cannot_be_is_refused(change, complaint):
    values = {"command": "train.py", "nodes": 2, "gpus_per_node": 8, "how": "sbatch", "name": "dgx-h100"} | change
    with pytest.raises(RecipeError, match=complaint):
        wrap(**values)


@pytest.mark.parametrize(
    ("gpu", "ranks", "needed"),
    [
        ("h100-80gb", {"tensor": 2}, True),
        ("h100-80gb", {"context": 2}, True),
        ("h100-80gb", {"pipeline": 2}, False),
        ("a100-80gb", {"tensor": 2}, True),
        ("b200-192gb", {"tensor": 2, "context": 2}, False),
    ],
)
@pytest.mark.parametrize("how", WRAPPERS)
def test_megatron_gets_one_connection_where_it_asserts_it(gpu, ranks, needed, how):
    layout = replace(BASES["megatron"], **ranks)
    assert environment(replace(BASES["torchtitan"], tensor=2), "torchtitan", GPUS[gpu]) == {}
    for engine in ("megatron", "megatron-bridge"):
        text = wrap(command(engine), 2, 8, how, gpu, environment(layout, engine, GPUS[gpu]))
        assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in text.partition("torchrun --")[0]) == needed


def test_the_command_leaves_comments_out(tmp_path):
    (tmp_path / "planned.args").write_text("# a comment\n--lr 3e-4\n--bf16\n")
    words = ["bash", "-c", f"echo {command('megatron')}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pretrain_gpt.py", "--lr", "3e-4", "--bf16"]


def test_accelerators_are_gpus_of_the_catalog():
    assert set(ACCELERATORS) <= set(GPUS)


def test_the_command_starts_a_process_for_each_gpu(tmp_path):
    program = "import os, pathlib\npathlib.Path(f\"rank-{os.environ['RANK']}\").write_text(os.environ['WORLD_SIZE'])\n"
    (tmp_path / "train.py").write_text(program)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", wrap("train.py", 1, 2, "torchrun", "this")],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {file.name: file.read_text() for file in tmp_path.glob("rank-*")} == {"rank-0": "2", "rank-1": "2"}
    assert WRAPPERS[0] == "torchrun"
