"""Exported training scripts: they compile, they say what the recipe says, run as they are, and go on after a kill."""

import ast
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import time

from helpers.core.byte_tokenizer import byte_tokenizer
from helpers.core.descendants import end_process
from helpers.core.real_model import find_real_model
from helpers.exercises.adapters_in_practice.number_words import number_words
from helpers.planner import ParallelConfig, Recipe, RecipeError
from helpers.planner.catalog.models import find_model
from helpers.planner.script import training_script
from helpers.planner.simulate.model import build

import pytest
import torch
import transformers

from ..kills import SCRIPTS, Script
from ..sampling import sample, sample_seed

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
        Recipe(
            "llama-3.2-1b",
            lora_rank=8,
            gradient_accumulation_steps=1,
            precision="bf16",
            parallel=ParallelConfig(shard=2),
        ),
        "pytorch",
        2,
    ),
    "fully_shard, two processes": (
        Recipe(
            "llama-2-7b",
            precision="bf16-amp",
            checkpointing="every-2",
            gradient_accumulation_steps=2,
            parallel=ParallelConfig(shard=2),
        ),
        "pytorch",
        2,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_script_runs_as_it_is(name, tmp_path):
    recipe, style, ranks = RUNS[name]
    line, settings = _command(tmp_path, recipe, style)
    done = subprocess.run(line, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr[-2000:]
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)|loss': '?(\d+\.\d+)", done.stdout) for x in x if x]
    assert losses, done.stdout
    assert all(0 < loss < 10 for loss in losses), done.stdout
    assert f"world size {ranks}, rank 0 on cpu" in done.stdout
    log = ("M parameters are trained", "updates of", "epochs", "tokens/s", " left", "held-out loss")
    assert all(part in done.stdout for part in (*log, "grad_norm" if style == "trainer" else "gradient norm"))
    assert not (tmp_path / "checkpoints").exists() or style == "trainer"


def _command(folder, recipe, style, *options):
    """Write the script into `folder`; return how to call it there."""
    (folder / "train.py").write_text(training_script(recipe, style))
    alone = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={recipe.ranks}"]
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if recipe.ranks > 1 or options:
        settings["CUDA_VISIBLE_DEVICES"] = ""  # one GPU is not enough for two ranks; bits are compared on the CPU
    line = [sys.executable, *(alone if recipe.ranks > 1 else []), "train.py", "--tiny", "--lr", "1e-3", *options]
    return line, {"cwd": folder, "env": os.environ | settings}


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(SCRIPTS), one_in=8))
def test_a_killed_script_goes_on_to_the_last_bit(name, tmp_path):
    """With its launcher and all its ranks, as when a machine goes down; many kills at random: tests/test_kills.py."""
    recipe, style = SCRIPTS[name]
    target = Script(tmp_path, recipe, style)
    line, settings = _command(tmp_path, recipe, style, "--steps", "8", "--checkpoint-every", "2")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **settings}
    subprocess.run([*line, "--checkpoints", whole], check=True, **quiet)
    run = subprocess.Popen([*line, "--checkpoints", killed], **quiet)
    deadline = time.monotonic() + 300
    while not target.published(killed) and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(random.Random(sample_seed()).uniform(0, 0.1))
    end_process(run.pid)
    run.wait()
    assert target.published(killed)
    subprocess.run([*line, "--checkpoints", killed, "--resume"], check=True, **quiet)
    assert target.read(target.published(killed)[8]) == target.read(target.published(whole)[8])
    assert {6, 8} <= set(target.published(killed))
    assert len(target.published(killed)) <= 3


def test_scripts_keep_checkpoints_and_refuse_to_begin_among_others():
    for style in ("pytorch", "trainer"):
        text = training_script(Recipe("gpt2"), style)
        assert all(option in text for option in ("--resume", "--checkpoint-every", "--checkpoints"))
        assert "os.fsync" in text
        assert "there are checkpoints in" in text
    adapters = training_script(Recipe("gpt2", lora_rank=8))
    assert "strict=False" in adapters  # the frozen base is not saved again and again
    assert "scaler.load_state_dict" in training_script(Recipe("gpt2", precision="fp16-amp"))
    assert "scaler" not in adapters


def _grid():
    for precision, optimizer, blocks in itertools.product(
        ("fp32", "bf16", "bf16-amp", "fp16-amp"),
        ("adamw", "sgd-momentum", "adamw-8bit", "adafactor"),
        ("none", "every-3"),
    ):
        for accumulate, step, rank, sharing in (
            (1, True, 0, {}),
            (4, False, 16, {}),
            (4, False, 0, {"parallel": ParallelConfig(shard=2, zero="none")}),
            (2, False, 0, {"parallel": ParallelConfig(shard=2)}),
            (1, False, 0, {"parallel": ParallelConfig(shard=2, zero="zero2")}),
            (2, False, 0, {"parallel": ParallelConfig(shard=2), "offload": "all"}),
            (2, False, 16, {"quantize": "nf4-dq"}),
            (1, False, 16, {"quantize": "nf4-dq", "compile": True}),
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


def test_one_rank_makes_the_whole_model_and_the_others_only_their_shards():
    text = training_script(Recipe("gpt2", parallel=ParallelConfig(shard=2)))
    prepare = text.partition("def prepare")[2].partition("\ndef ")[0]
    alone, _, shared = prepare.partition("whole = make_model(args) if rank == 0 else None\n")
    assert "if world == 1:\n        return make_model(args).to(device)" in alone
    assert "make_model(args, shapes_only=True)" in shared.partition('with torch.device("meta"):')[2]
    assert shared.count("make_model(") == 1


def test_script_says_what_the_recipe_says():
    adapters = training_script(Recipe("llama-2-7b", lora_rank=16, checkpointing="every", gradient_accumulation_steps=8))
    assert "r=16" in adapters
    assert "ACCUMULATE" in adapters
    assert "checkpoint(" in adapters or "partial(checkpoint" in adapters
    assert "fully_shard" not in adapters
    whole = training_script(Recipe("llama-2-7b", precision="fp32", parallel=ParallelConfig(shard=2), offload="all"))
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
        (Recipe("gpt2", checkpointing="sqrt"), "pytorch"),
        (Recipe("gpt2", step_in_backward=True), "trainer"),
        (Recipe("gpt2", parallel=ParallelConfig(tensor=2)), "pytorch"),
        (Recipe("gpt2", parallel=ParallelConfig(shard=2, replicate=2)), "pytorch"),
        (Recipe("gpt2", parallel=ParallelConfig(shard=2)), "trainer"),
        (Recipe("gpt2", parallel=ParallelConfig(shard=2), compile=True), "pytorch"),
        (Recipe("gpt2"), "jax"),
    ],
)
def test_what_cannot_be_written_is_refused(recipe, style):
    with pytest.raises(RecipeError):
        training_script(recipe, style)


KEPT = {
    "adapter": (Recipe("llama-3.2-1b", lora_rank=4, seq=64, lora_targets=("q_proj", "down_proj")), "pytorch"),
    "quantized": (Recipe("llama-3.2-1b", lora_rank=4, seq=64, quantize="nf4-dq", checkpointing="every"), "pytorch"),
    "sharded": (Recipe("llama-3.2-1b", seq=64, precision="bf16-amp", parallel=ParallelConfig(shard=2)), "pytorch"),
    "Trainer": (Recipe("llama-3.2-1b", lora_rank=4, seq=64, precision="fp32"), "trainer"),
    "BF16": (Recipe("llama-3.2-1b", seq=64, checkpointing="every-2"), "pytorch"),
    "FP16": (Recipe("llama-3.2-1b", seq=64, precision="fp16-amp", gradient_accumulation_steps=2), "pytorch"),
    "in-backward": (Recipe("llama-3.2-1b", seq=64, precision="fp32", step_in_backward=True), "pytorch"),
    "adafactor": (Recipe("llama-3.2-1b", seq=64, precision="fp32", optimizer="adafactor"), "pytorch"),
    "ddp": (
        Recipe(
            "llama-3.2-1b",
            seq=64,
            precision="fp32",
            parallel=ParallelConfig(shard=2, zero="none"),
            optimizer="sgd-momentum",
        ),
        "pytorch",
    ),
    "zero2": (
        Recipe("llama-3.2-1b", seq=64, precision="bf16-amp", parallel=ParallelConfig(shard=2, zero="zero2")),
        "pytorch",
    ),
    "offload": (
        Recipe("llama-3.2-1b", seq=64, precision="fp32", parallel=ParallelConfig(shard=2), offload="all"),
        "pytorch",
    ),
    "sharded adapter": (Recipe("llama-3.2-1b", lora_rank=4, seq=64, parallel=ParallelConfig(shard=2)), "pytorch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(KEPT), one_in=3))
def test_what_a_script_has_trained_is_kept_and_plain_transformers_loads_it(name, tmp_path):
    """From a pretrained folder and chats, of which answers count alone, to a model that writes."""
    recipe, style = KEPT[name]
    if recipe.quantize != "none":
        pytest.importorskip("bitsandbytes")
    line, settings = _command(tmp_path, recipe, style, "--weights", str(_pretrained(tmp_path / "base")))
    chats = [{"prompt": f"{n} + 1?", "answer": f"{n + 1}"} for n in range(60)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    line = [word for word in line if word != "--tiny"]  # that would cut rows to 32 tokens
    line += ["--cpu", "--text", "chats.jsonl", "--steps", "6", "--checkpoint-every", "0", "--out", "kept"]
    done = subprocess.run(line, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = map(float, re.search(r"held-out loss: ([\d.]+) before, ([\d.]+) after", done.stdout).groups())
    assert after < before, done.stdout
    kept = tmp_path / "kept"
    assert json.loads((kept / "recipe.json").read_text())["recipe"]["model"] == "llama-3.2-1b"
    _assert_it_writes(kept, before)


def _pretrained(folder):
    """Save a small model that has learned nothing, with the tokenizer of bytes; return the folder."""
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def _assert_it_writes(kept, before):
    """Load what was kept without the course's code, and hold its loss against that of the base."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(kept)
    model = transformers.AutoModelForCausalLM.from_pretrained(kept, dtype=torch.float32)
    chat = [{"role": "user", "content": "58 + 1?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(prompt + "59" + tokenizer.eos_token)["input_ids"]])
    labels = ids.masked_fill(torch.arange(ids.shape[1]) < ids.shape[1] - 3, -100)
    with torch.no_grad():
        assert model(input_ids=ids, labels=labels).loss.item() < before
    written = model.generate(input_ids=ids[:, :-3], max_new_tokens=4, do_sample=False, pad_token_id=2)
    assert written.shape[1] > ids.shape[1] - 3


@pytest.mark.slow
@pytest.mark.skipif(find_real_model() is None, reason="no pretrained model: make install-real")
def test_a_script_trains_the_real_model(tmp_path):
    recipe = Recipe("llama-3.2-1b", lora_rank=8, seq=64, precision="fp32", lora_targets=("q_proj", "v_proj"))
    chats = [{"prompt": f"Write {n} in words.", "answer": number_words(n)} for n in range(100, 108)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    line, settings = _command(tmp_path, recipe, "pytorch", "--weights", find_real_model(), "--text", "chats.jsonl")
    line = [word for word in line if word != "--tiny"]
    line += ["--cpu", "--steps", "3", "--checkpoint-every", "0", "--out", "kept"]
    done = subprocess.run(line, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = map(float, re.search(r"held-out loss: ([\d.]+) before, ([\d.]+) after", done.stdout).groups())
    assert after < before
    assert (tmp_path / "kept" / "adapter_model.safetensors").is_file()
    assert "{% for" in transformers.AutoTokenizer.from_pretrained(tmp_path / "kept").chat_template


@pytest.mark.slow
def test_chats_that_do_not_fit_get_one_line(tmp_path):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"prompt": "a" * 90, "answer": "b"}))
    line, settings = _command(tmp_path, Recipe("gpt2", seq=64), "pytorch", "--text", "chats.jsonl")
    done = subprocess.run(line, capture_output=True, text=True, **settings)
    assert done.returncode == 1
    assert "1 of 1 chats was dropped: it is longer than a row of 32 tokens" in done.stdout
    assert "0 chats fill 0 rows of 32 tokens" in done.stderr
    assert "Traceback" not in done.stderr
