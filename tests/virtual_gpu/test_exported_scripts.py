"""A recipe and the script that it exports are one program: a dry run of the script has the planner's peak."""

import json
import os
import subprocess
import sys

from helpers.core.files import ROOT
from helpers.planner import ParallelConfig, Recipe
from helpers.planner.plan import plan
from helpers.planner.script import training_script

import pytest

from ..sampling import sample

LLAMA, QWEN, GPT2, BIG = "llama-3.2-1b", "qwen2.5-0.5b", "gpt2", "llama-2-7b"
RECIPES = {
    "bf16": Recipe(LLAMA),
    "bf16, long": Recipe(LLAMA, seq=2048, checkpointing="every"),
    "fp32": Recipe(GPT2, precision="fp32", micro_batch_size=4, seq=1024),
    "bf16-amp": Recipe(GPT2, precision="bf16-amp", micro_batch_size=8, seq=1024),
    "fp16-amp": Recipe(GPT2, precision="fp16-amp", micro_batch_size=8),
    "fused": Recipe(LLAMA, optimizer_impl="fused"),
    "for-loop": Recipe(LLAMA, optimizer_impl="for-loop"),
    "sgd": Recipe(LLAMA, optimizer="sgd"),
    "momentum": Recipe(QWEN, optimizer="sgd-momentum"),
    "adafactor": Recipe(QWEN, optimizer="adafactor"),
    "every-2": Recipe(QWEN, checkpointing="every-2", precision="bf16-amp", micro_batch_size=4),
    "accumulation": Recipe(QWEN, gradient_accumulation_steps=4, micro_batch_size=2),
    "step in backward": Recipe(LLAMA, step_in_backward=True),
    "step in backward, 7B": Recipe(BIG, step_in_backward=True, optimizer="sgd", checkpointing="every"),
    "LoRA": Recipe(BIG, lora_rank=16, checkpointing="every"),
    "LoRA, plain": Recipe(LLAMA, lora_rank=16),
    "eager attention": Recipe(LLAMA, attention="eager"),
    "FSDP, 7B": Recipe(BIG, precision="bf16-amp", checkpointing="every", parallel=ParallelConfig(shard=8)),
    "FSDP, LoRA": Recipe(LLAMA, lora_rank=16, parallel=ParallelConfig(shard=4)),
    "FSDP": Recipe(LLAMA, precision="bf16-amp", parallel=ParallelConfig(shard=4)),
}


def dry_peak(folder, recipe):
    """Return the allocated peak of a dry run of the recipe's script."""
    (folder / "train.py").write_text(training_script(recipe))
    (folder / "text.txt").write_text("One row in twenty is held out, and read before the first step. " * 2_000)
    options = ["--gpu", "b200-192gb", "--gpus", str(recipe.ranks), "--json", "train.py"]
    own = ["--text", "text.txt", "--steps", "9", "--checkpoint-every", "0", "--evaluate-every", "1000"]
    done = subprocess.run(
        [sys.executable, "-m", "helpers", "dry-run", *options, *own],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])["peak_allocated_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(sorted(RECIPES), one_in=10))
def test_a_script_has_the_peak_of_its_recipe(name, tmp_path):
    planned = plan(RECIPES[name], "b200-192gb").peak_allocated_bytes
    assert dry_peak(tmp_path, RECIPES[name]) == pytest.approx(planned, rel=0.005)
