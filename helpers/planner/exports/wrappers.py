"""Jobs: how torchrun starts on every node, as a shell command, a batch job of Slurm, or a task of SkyPilot.

torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html; sbatch: https://slurm.schedmd.com/sbatch.html;
SkyPilot: https://docs.skypilot.co/en/latest/reference/yaml-spec.html and, for what it sets on each node,
https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html.
"""

import json
import re
from collections.abc import Mapping

from ..catalog.clusters import find_cluster
from ..catalog.gpus import GPUS
from ..config import RecipeError

WRAPPERS = ("torchrun", "sbatch", "skypilot")
PORT = 29500
# SkyPilot's names of GPUs; https://docs.skypilot.co/en/latest/compute/gpus.html lists them.
ACCELERATORS = {gpu.name: gpu.skypilot for gpu in GPUS.values() if gpu.skypilot}


def wrap(
    command: str, nodes: int, gpus_per_node: int, how: str, name: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return what starts `command` on every GPU of the nodes.

    Args:
        command: what torchrun starts: a program and its arguments, as `exports.command` has it.
        how: "torchrun": the command for each node, which finds HEAD_NODE in its environment if there are several;
            "sbatch": a batch script; "skypilot": a task in YAML.
        name: of the cluster, or its GPU, as the catalog has it: SkyPilot looks for such GPUs, and the job bears it.
        environment: variables that each process needs, as `exports.environment` has them.

    Raises:
        RecipeError: counts below one, or a name that is unknown.
    """
    if how not in WRAPPERS:
        raise RecipeError(f"There is no wrapper {how!r}; choose one of {', '.join(WRAPPERS)}.")
    if nodes < 1 or gpus_per_node < 1:
        raise RecipeError(f"{nodes} nodes of {gpus_per_node} GPUs: both must be at least 1.")
    if not command.strip() or "\n" in command:
        raise RecipeError("The command to start is one line: a program and its arguments.")
    assigned = [f"{variable}={value}" for variable, value in (environment or {}).items()]
    if how == "torchrun":
        return " ".join([*assigned, _torchrun(command, nodes, gpus_per_node, "$HEAD_NODE")]) + "\n"
    make = _sbatch if how == "sbatch" else _skypilot
    return make(command, nodes, gpus_per_node, name, [f"export {each}" for each in assigned])


def _torchrun(command: str, nodes: int, gpus: int, head: str) -> str:
    if nodes == 1:
        return f"torchrun --standalone --nproc-per-node={gpus} {command}"
    meeting = f'--rdzv-backend=c10d --rdzv-endpoint="{head}:{PORT}" --rdzv-id="${{JOB:-{PORT}}}"'
    return f"torchrun --nnodes={nodes} --nproc-per-node={gpus} {meeting} {command}"


def _job(name: str) -> str:
    """Return a job's name: letters, digits and hyphens."""
    return "planned-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _sbatch(command: str, nodes: int, gpus: int, name: str, exported: list[str]) -> str:
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={_job(name)}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={gpus}",
        "#SBATCH --exclusive",
        "#SBATCH --output=%x-%j.out",
        "set -euo pipefail  # one task per node: torchrun starts its processes",
        'HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "JOB=$SLURM_JOB_ID",
        "export HEAD_NODE JOB",
        *exported,
        f"srun --kill-on-bad-exit=1 {_torchrun(command, nodes, gpus, '$HEAD_NODE')}",
    ]
    return "\n".join(lines) + "\n"


def _skypilot(command: str, nodes: int, gpus: int, name: str, exported: list[str]) -> str:
    gpu = find_cluster(name).gpu.name
    if gpu not in ACCELERATORS:
        raise RecipeError(f"SkyPilot offers no {gpu}; choose one of {', '.join(ACCELERATORS)}.")
    lines = [
        f"name: {_job(name)}",
        f"num_nodes: {nodes}",
        "workdir: .",
        "resources:",
        f"  accelerators: {json.dumps(f'{ACCELERATORS[gpu]}:{gpus}')}",
        "run: |",
        '  HEAD_NODE=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        "  JOB=$SKYPILOT_TASK_ID",
        "  export HEAD_NODE JOB",
        *(f"  {line}" for line in exported),
        f"  {_torchrun(command, nodes, gpus, '$HEAD_NODE')}",
    ]
    return "\n".join(lines) + "\n"
