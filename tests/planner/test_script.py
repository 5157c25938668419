"""Exported training scripts: they compile, they say what the recipe says, and three of them run as they are."""

import ast
import contextlib
import itertools
import os
import re
import subprocess
import sys

from helpers.planner import Recipe, RecipeError
from helpers.planner.catalog.models import find_model
from helpers.planner.script import training_script
from helpers.planner.simulate.model import build

import pytest
import torch

RUNS = {
    "adapters, one process": (
        Recipe("llama-3.2-1b", lora_rank=8, checkpointing="every", gradient_accumulation_steps=2, precision="bf16"),
        "pytorch",
        1,
    ),
    "Trainer": (
        Recipe(
            "qwen2.5-0.5b",
            precision="bf16-amp",
            checkpointing="every",
            gradient_accumulation_steps=2,
            micro_batch_size=2,
        ),
        "trainer",
        1,
    ),
    "adapters, fully_shard, two processes": (
        Recipe("llama-3.2-1b", lora_rank=8, gradient_accumulation_steps=1, precision="bf16", ranks=2, shard="zero3"),
        "pytorch",
        2,
    ),
    "fully_shard, two processes": (
        Recipe(
            "llama-2-7b",
            precision="bf16-amp",
            checkpointing="every-2",
            gradient_accumulation_steps=2,
            ranks=2,
            shard="zero3",
        ),
        "pytorch",
        2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_script_runs_as_it_is(name, tmp_path):
    recipe, style, ranks = RUNS[name]
    script = tmp_path / "train.py"
    script.write_text(training_script(recipe, style))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        offline["CUDA_VISIBLE_DEVICES"] = ""  # one GPU is not enough for two ranks
    done = subprocess.run(
        [sys.executable, *launcher, str(script), "--tiny", "--lr", "1e-3"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=os.environ | offline,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [float(x) for x in re.findall(r"loss (?:of|over) [a-z0-9' -]*?(\d+\.\d+)", done.stdout)]
    assert losses, done.stdout
    assert all(0 < loss < 10 for loss in losses), done.stdout
    assert f"{ranks} ranks" in done.stdout or style == "trainer"


def _grid():
    for precision, optimizer, blocks in itertools.product(
        ("fp32", "bf16", "bf16-amp", "fp16-amp"),
        ("adamw", "sgd-momentum", "adamw-8bit", "adafactor"),
        ("none", "every-3"),
    ):
        for accumulate, step, rank, sharing in (
            (1, True, 0, {}),
            (4, False, 16, {}),
            (4, False, 0, {"ranks": 2}),
            (2, False, 0, {"ranks": 2, "shard": "zero3"}),
            (1, False, 0, {"ranks": 2, "shard": "zero2"}),
            (2, False, 0, {"ranks": 2, "shard": "zero3", "offload": "all"}),
        ):
            try:
                yield Recipe(
                    "gpt2", precision=precision, optimizer=optimizer, checkpointing=blocks,
                    gradient_accumulation_steps=accumulate, step_in_backward=step, lora_rank=rank, **sharing,
                )  # fmt: skip
            except RecipeError:
                continue


def test_scripts_of_many_recipes_are_clean(tmp_path):
    written = 0
    for recipe, style in itertools.product(_grid(), ("pytorch", "trainer")):
        try:
            text = training_script(recipe, style)
        except RecipeError:
            continue
        ast.parse(text)
        (tmp_path / f"{written}.py").write_text(text)
        written += 1
    assert written > 100
    rules = ["--isolated", "--select", "E9,F,B,I", "--line-length", "120", "--no-cache"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_script_keeps_adapters_as_the_plan_does():
    """The planner simulates PEFT's default; a script that chose another dtype would not be the recipe planned."""
    recipe = Recipe("gpt2", lora_rank=8)
    model = build(recipe, find_model("gpt2"), lambda: (contextlib.nullcontext(), contextlib.nullcontext()))
    assert {p.dtype for name, p in model.named_parameters() if "lora_" in name} == {torch.float32}
    assert "autocast_adapter_dtype" not in training_script(recipe)


def test_no_rank_takes_the_whole_model_to_its_gpu():
    text = training_script(Recipe("gpt2", ranks=2, shard="zero3"))
    before, _, after = text.partition("fully_shard(block")
    assert after
    assert ".to(device)" not in before.partition("def prepare")[2].partition("return model.to(device)")[2]
    assert "if world == 1:\n        return model.to(device)" in before


def test_script_says_what_the_recipe_says():
    adapters = training_script(Recipe("llama-2-7b", lora_rank=16, checkpointing="every", gradient_accumulation_steps=8))
    assert "r=16" in adapters
    assert "ACCUMULATE" in adapters
    assert "checkpoint(" in adapters or "partial(checkpoint" in adapters
    assert "fully_shard" not in adapters
    whole = training_script(Recipe("llama-2-7b", precision="fp32", ranks=2, shard="zero3", offload="all"))
    assert "CPUOffloadPolicy" in whole
    assert "Lora" not in whole
    assert "autocast" not in whole
    same = training_script(Recipe("gpt2", lora_rank=8, lora_dtype="weights"))
    assert "autocast_adapter_dtype=False" in same
    assert ".compile()" in training_script(Recipe("gpt2", compile=True))
    assert "torch_compile=True" in training_script(Recipe("gpt2", compile=True), "trainer")
    assert "compile" not in adapters + whole
    assert "PagedAdamW8bit([p]," in training_script(Recipe("gpt2", optimizer="adamw-8bit-paged", step_in_backward=True))


@pytest.mark.parametrize(
    ("recipe", "style"),
    [
        (Recipe("vit-l-16"), "pytorch"),
        (Recipe("llama-2-7b", lora_rank=8, quantize="nf4"), "pytorch"),
        (Recipe("gpt2", checkpointing="sqrt"), "pytorch"),
        (Recipe("gpt2", step_in_backward=True), "trainer"),
        (Recipe("gpt2", ranks=2, shard="zero3"), "trainer"),
        (Recipe("gpt2", ranks=2, shard="zero3", compile=True), "pytorch"),
        (Recipe("gpt2"), "jax"),
    ],
)
def test_what_cannot_be_written_is_refused(recipe, style):
    with pytest.raises(RecipeError):
        training_script(recipe, style)
