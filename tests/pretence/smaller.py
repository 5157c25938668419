"""Run a lab on a pretended GPU with smaller sizes: `python tests/pretence/smaller.py solutions/03_mixed_precision.py`.

On CUDA the labs use models that keep a real GPU busy. Here a CPU computes them, so `SMALLER` names the sizes in a lab's
source that a CPU cannot wait for. Only numbers change, and no line moves, so the lines that run are the lab's. The
exit code is 1 if a check refuses the lab's own answer.
"""

import sys
from pathlib import Path

SMALLER: dict[str, dict[str, str]] = {
    "03_mixed_precision": {
        "tokens[: 16 * 1024].view(16, 1024)": "tokens[: 2 * 64].view(2, 64)",
        "SmallCNN(256)": "SmallCNN(8)",
        "images.repeat(4, 1, 1, 1), labels.repeat(4)": "images.repeat(1, 1, 1, 1), labels.repeat(1)",
        "SmallGPT(context=1024, layers=8, width=1024)": "SmallGPT(context=64, layers=2, width=64)",
    },
    "03b_x1_amp_cnn": {
        "SmallCNN(width=256)": "SmallCNN(width=8)",
        "large.train_x[:1024].clone(), large.train_y[:1024]": "large.train_x[:64].clone(), large.train_y[:64]",
    },
    "04_gradient_accumulation": {'256 if device.type == "cuda"': '32 if device.type == "cuda"'},
    "05_activation_checkpointing": {'(512, 4) if device.type == "cuda"': '(64, 4) if device.type == "cuda"'},
    "05b_selective_checkpointing": {
        '(512, 4) if device.type == "cuda"': '(64, 4) if device.type == "cuda"',
        '(2048, 1024, 4) if device.type == "cuda"': '(512, 256, 1) if device.type == "cuda"',
    },
    "07b_traces": {'1024 if device.type == "cpu" else 8192': '1024 if device.type == "cpu" else 1024'},
    "08_data_loading": {"SmallCNN(128)": "SmallCNN(8)"},
    "08b_workers_in_practice": {
        "torch.ones(4096, 4096, device=device)\n    pinned": "torch.ones(64, 64, device=device)\n    pinned",
        "torch.ones(4096, 4096, device=device)\n    for": "torch.ones(64, 64, device=device)\n    for",
    },
    "09b_muon_and_in_place": {
        "LM_LENGTH = 6, 160, 4, 64": "LM_LENGTH = 1, 10, 1, 64",
        "torch.randperm(len(split.train_x)).split(64)": "torch.randperm(len(split.train_x)).split(512)",
    },
    "16_mixture_of_experts": {'(512, 1024) if device.type == "cuda"': '(64, 64) if device.type == "cuda"'},
    "19b_training_in_fp8": {
        "def time_on_fp8_units(n=8192)": "def time_on_fp8_units(n=256)",
        "(math.log2(numbers_beyond_cache(device)) / 2)": "(math.log2(numbers_beyond_cache(device)) / 4)",
    },
    "20_lora": {"room >= 20 * GiB": "room >= 2000 * GiB"},  # 7B is not trained
    "21_capstone": {"PAIRS = range(5)": "PAIRS = range(2)"},
}


def smaller(path: Path) -> str:
    """Return the source at `path` with the sizes that a CPU can compute.

    Raises:
        ValueError: `SMALLER` names a text that does not occur exactly once.
    """
    text = path.read_text(encoding="utf-8")
    for old, new in SMALLER.get(path.stem, {}).items():
        if text.count(old) != 1:
            raise ValueError(f"{path.name} has {old!r} {text.count(old)} times; SMALLER in {__file__} needs it once")
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.argv, sys.path[0] = sys.argv[1:], str(script.parent)  # as if Python had been given the lab itself
    __file__ = str(script)
    exec(compile(smaller(script), str(script.resolve()), "exec"))

    from helpers.claims.hardware import verdict
    from helpers.exercises.checking import last_verdicts

    for row in getattr(globals().get("claims"), "rows", ()):  # to read: a time on a pretended GPU is that of a CPU
        if verdict(row, "cuda") == "did not hold":
            print(f"did not hold: {row.claim}, {row.said}, {row.subject}: {row.figure}")
    refused = [part for part, verdicts in last_verdicts.items() if not all(verdict.passed for verdict in verdicts)]
    if refused:
        sys.exit(f"The lab's own answers do not pass: {', '.join(refused)}.")
