"""Twelve recipes: exported on the command line, trained for 20 updates, saved, and loaded by plain Transformers."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from helpers.core.byte_tokenizer import byte_tokenizer
from helpers.core.files import ROOT

import pytest
import torch
import transformers

from ..sampling import sample

STEPS = 20
# name: arguments of `python -m helpers plan`, without model and length
RECIPES = {
    "BF16": "--precision bf16",
    "FP32": "--precision fp32 --optimizer-impl fused",
    "FP16 autocast": "--precision fp16-amp --gradient-accumulation-steps 2",
    "BF16 autocast": "--precision bf16-amp --micro-batch-size 2 --gradient-accumulation-steps 4",
    "LoRA, packed chats": "--precision bf16 --lora-rank 4 --lora-targets all-linear",
    "NF4, LoRA": "--precision bf16 --lora-rank 4 --quantize nf4-dq",
    "Adafactor": "--precision fp32 --optimizer adafactor",
    "8-bit AdamW": "--precision bf16-amp --optimizer adamw-8bit",
    "checkpointing": "--precision bf16-amp --activation-checkpointing full",
    "step in backward": "--precision fp32 --step-in-backward",
    "Trainer, packed chats": "--precision bf16-amp --gradient-accumulation-steps 2",
    "two ranks": "--precision bf16-amp --no-compile --gpus 2 --zero-stage 3",
}


class Figures(NamedTuple):
    """What a script printed, and what plain Transformers makes of what it saved."""

    losses: list[float]
    before: float
    after: float
    loaded: float
    written: int
    seconds: float


def trained(name: str, folder: Path) -> Figures:
    """Export the recipe into `folder`, train a small Llama, and load the result."""
    style = "trainer" if name.startswith("Trainer") else "pytorch"
    plan = ["plan", "--model", "llama-3.2-1b", "--seq", "64", "--gpu", "h200-141gb", *RECIPES[name].split()]
    settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    quiet = {"cwd": folder, "env": os.environ | settings, "capture_output": True, "text": True, "timeout": 300}
    export = ["-m", "helpers", *plan, "--export", style, "--out", "train.py"]
    done = subprocess.run([sys.executable, *export], **quiet)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    _make_base(folder / "base")
    rows = ["--text", "chats.jsonl"] if "chats" in name else []
    (folder / "chats.jsonl").write_text(
        "\n".join(json.dumps({"prompt": f"{n} + 1?", "answer": f"{n + 1}"}) for n in range(200))
    )
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if name == "two ranks" else []
    line = ["train.py", "--weights", "base", "--cpu", "--lr", "1e-3", "--steps", str(STEPS), "--out", "kept", *rows]
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *ranks, *line], **quiet)
    seconds = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr[-3000:]
    told = re.findall(r"(?:: loss |'loss': '?)([\d.]+)", done.stdout)
    after = re.search(r"held-out loss: (?:([\d.]+) before, )?([\d.]+) after", done.stdout)
    loaded, written = _loaded(folder, rows[-1] if rows else None)
    return Figures([*map(float, told)], float(after[1] or told[0]), float(after[2]), loaded, written, seconds)


def _make_base(folder: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def _loaded(folder: Path, text: str | None) -> tuple[float, int]:
    """Return the loss of the rows held out, by plain Transformers, and the number of tokens that the model writes."""
    script = {"__name__": "script", "__doc__": ""}
    exec(compile((folder / "train.py").read_text(), "train.py", "exec"), script)
    file = folder / text if text else None
    rows = script["token_rows"](SimpleNamespace(weights=str(folder / "base"), text=file, seq=64, tiny=False)).long()
    rows = rows[:, -min(max(1, rows.shape[1] // 20), 64) :]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "kept")
    os.chdir(folder)  # an adapter names its base as the script was given it
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "kept", dtype=torch.float32).eval()
    packed = {"position_ids": rows[2], "use_cache": False} if len(rows) == 3 else {}
    with torch.no_grad():
        loss = model(input_ids=rows[0], labels=rows[min(1, len(rows) - 1)], **packed).loss.item()
    given = tokenizer("The with statement", return_tensors="pt")
    written = model.generate(**given, min_new_tokens=5, max_new_tokens=5, do_sample=False, pad_token_id=2)
    return loss, written.shape[1] - given["input_ids"].shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(RECIPES), one_in=12))
def test_a_recipe_comes_out_as_a_model_that_writes(name, tmp_path, monkeypatch):
    if "NF4" in name or "8-bit" in name:
        pytest.importorskip("bitsandbytes")
    monkeypatch.chdir(tmp_path)
    found = trained(name, tmp_path)
    assert found.losses[-1] < found.losses[0]
    assert found.after < found.before
    assert found.loaded == pytest.approx(found.after, abs=0.02)
    assert found.written == 5
