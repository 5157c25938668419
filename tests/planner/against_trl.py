"""The exported script against TRL's SFTTrainer: losses, gradient norms and tokens per second on the same rows.

`python -m tests.planner.against_trl` needs TRL, which the course does not install. Both train a small Llama in FP32 on
Python's manual, on one thread of the CPU, at a constant rate, with AdamW, clipping and accumulation. They take turns.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from helpers.core.byte_tokenizer import byte_tokenizer
from helpers.planner import Recipe

import torch
import transformers

from .scripts import functions

BATCH, ACCUMULATE, SEQ, RATE = 4, 2, 128, 1e-3
WARM = 5  # updates that are not timed
RECIPE = Recipe(
    "llama-3.2-1b", precision="fp32", micro_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATE, seq=SEQ
)
SIZES = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4,
}  # fmt: skip


def script(base: Path, steps: int) -> tuple[list[tuple[float, float]], list[float], torch.Tensor]:
    """Train with the script. Return loss and gradient norm of each update, its seconds, and the rows in order."""
    defined = functions(RECIPE)
    defined["rate"] = lambda *_: RATE
    line = ["train.py", "--weights", base, "--cpu", "--steps", steps, "--lr", RATE, "--checkpoint-every", 0]
    with patch.object(sys, "argv", [str(word) for word in [*line, "--out", base / "out"]]):
        run = defined["Run"](defined["arguments"]())
    size = BATCH * ACCUMULATE
    order = [defined["rows_of_update"](i * size, run.train.shape[1], 1).flatten() for i in range(steps)]
    figures, seconds = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        loss, norm, _ = run.update()
        seconds.append(time.perf_counter() - begin)
        figures.append((loss, norm))
    return figures, seconds, run.train[0, torch.cat(order)]


class Noted(transformers.TrainerCallback):
    """What TRL logs of each update, and its seconds."""

    def __init__(self) -> None:
        self.figures, self.seconds = [], []

    def on_step_begin(self, *_, **__):
        self.begin = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.begin)

    def on_log(self, args, state, control, logs, **_):
        if "loss" in logs:
            self.figures.append((float(logs["loss"]), float(logs["grad_norm"])))


def trl(base: Path, steps: int, rows: torch.Tensor) -> tuple[list[tuple[float, float]], list[float]]:
    """Train with SFTTrainer on `rows`, in this order."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    settings = SFTConfig(
        output_dir=str(base / "trl"), max_steps=steps, learning_rate=RATE, lr_scheduler_type="constant",
        per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATE, max_length=SEQ, packing=False,
        weight_decay=0.01, max_grad_norm=1.0, warmup_steps=0, bf16=False, gradient_checkpointing=False, use_cpu=True,
        train_sampling_strategy="sequential", logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    noted = Noted()
    SFTTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=settings,
        train_dataset=Dataset.from_dict({"input_ids": rows.tolist()}),
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
        callbacks=[noted],
    ).train()
    return noted.figures, noted.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    speeds: dict[str, list[float]] = {"script": [], "TRL": []}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(base)
        byte_tokenizer().save_pretrained(base)
        for _ in range(args.rounds):
            ours, our_seconds, rows = script(base, args.steps)
            theirs, their_seconds = trl(base, args.steps, rows)
            for name, seconds in (("script", our_seconds), ("TRL", their_seconds)):
                speeds[name].append(BATCH * ACCUMULATE * SEQ / statistics.median(seconds[WARM:]))
    pairs = list(zip(ours, theirs, strict=True))
    print(f"losses {ours[0][0]:.4f} to {ours[-1][0]:.4f}; TRL {theirs[0][0]:.4f} to {theirs[-1][0]:.4f}")
    print(f"largest difference of a loss: {max(abs(a[0] - b[0]) for a, b in pairs):.1e}")
    print(f"largest difference of a gradient norm: {max(abs(a[1] / b[1] - 1) for a, b in pairs):.1e}, relative")
    for name, found in speeds.items():
        print(f"{name}: tokens per second, median of a run: {', '.join(f'{speed:,.0f}' for speed in found)}")


if __name__ == "__main__":
    main()
