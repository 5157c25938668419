"""Predicted against measured: `python -m tests.meter.roofline_validation` (a minute on two quiet cores).

The roofline of this machine is measured, and between its rounds six models train that had no part in it, so that a
machine that changes its pace does so for both. A step's prediction is the sum of what the roofline says of each of its
operations; it is held against the median of the steps. `--parts` also shows where each prediction goes wrong: predicted
and measured seconds of the operations, each where it is. A second table has the cost of the profiler.

This is no test: its figures are only worth something when nothing else runs on the machine.
"""

import argparse
import itertools
import statistics
from collections import Counter
from collections.abc import Callable

from helpers import SmallCNN, SmallGPT, ViT, benchmark, profile_step, text_table, works_of
from helpers.meter.roofline import Roofline
from helpers.meter.roofline.bench import Bench
from helpers.meter.roofline.measured import roofline_of
from helpers.meter.roofline.timed import TimedWork, timed
from helpers.meter.timing import Timing
from helpers.meter.work import Work

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

CPU = torch.device("cpu")
Step = Callable[[], object]
ROUNDS = 9
RUNS = 3  # of each model in a round


def _mlp() -> tuple[nn.Module, Tensor, Tensor]:
    sizes = (784, 1024, 1024, 512)
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10)), torch.randn(256, sizes[0]), torch.randint(10, (256,))


def _cnn() -> tuple[nn.Module, Tensor, Tensor]:
    return SmallCNN(width=24), torch.randn(48, 1, 24, 24), torch.randint(10, (48,))


def _vit() -> tuple[nn.Module, Tensor, Tensor]:
    model = ViT(side=32, patch=4, layers=4, width=96, heads=3, inner=384, channels=3)
    return model, torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def _gpt() -> tuple[nn.Module, Tensor, Tensor]:
    ids = torch.randint(512, (6, 97))
    return SmallGPT(vocabulary=512, context=96, layers=3, width=192, heads=6), ids[:, :-1], ids[:, 1:].contiguous()


def _lora() -> tuple[nn.Module, Tensor, Tensor]:
    model, x, y = _gpt()
    return get_peft_model(model, LoraConfig(r=8, target_modules=["qkv", "out"])), x, y


def _step(model: nn.Module, x: Tensor, y: Tensor, bf16: bool) -> Step:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def steps() -> dict[str, Step]:
    """Return a training step of each model; those in BF16 run under autocast."""
    makers = {"MLP": _mlp, "CNN": _cnn, "ViT": _vit, "GPT": _gpt, "GPT, BF16": _gpt, "LoRA": _lora}
    return {name: _step(*make(), bf16="BF16" in name) for name, make in makers.items()}


def predicted(roofline: Roofline, works: list[Work]) -> float:
    """Return the seconds that the roofline gives operations, one after another."""
    return sum(roofline.seconds(work)[0] for work in works)


def parts(roofline: Roofline, rounds: list[list[TimedWork]], rows: int = 12) -> str:
    """Return a table of the operations that the prediction misses by most, without what comes between them."""
    totals: dict[str, Counter[str]] = {"predicted": Counter(), "measured": Counter(), "calls": Counter()}
    for runs in zip(*rounds, strict=True):  # of one operation
        work = runs[0].work
        name = f"{work.name} {work.dtype}"
        totals["calls"][name] += 1
        totals["predicted"][name] += 1e3 * (roofline.seconds(work)[0] - roofline.launch + roofline.dispatch)
        totals["measured"][name] += 1e3 * statistics.median(run.seconds for run in runs)
    by_miss = sorted(totals["measured"], key=lambda name: -abs(totals["predicted"][name] - totals["measured"][name]))
    table = [("operation", "calls", "predicted, ms", "measured, ms")]
    for name in by_miss[:rows]:
        calls, *both = (totals[of][name] for of in ("calls", "predicted", "measured"))
        table.append((name, str(calls), *(f"{milliseconds:.2f}" for milliseconds in both)))
    calls, *both = (totals[of].total() for of in ("calls", "predicted", "measured"))
    return text_table([*table, ("all", str(calls), *(f"{milliseconds:.2f}" for milliseconds in both))])


def profiles(models: dict[str, Step]) -> str:
    """Return a table of what the profile of each step costs while it is on, and of what its parts leave unexplained."""
    table = [("model", "events", "under the profiler", "unexplained")]
    for name, step in models.items():
        seen = profile_step(step, CPU, runs=RUNS * ROUNDS if "BF16" not in name else RUNS)
        cost, rest = seen.profiled.median / seen.seconds, seen.unexplained / seen.seconds
        table.append((name, f"{seen.events:,}", f"{cost:.2f} x the step", f"{rest:+.1%} of the step"))
    return text_table(table)


def main() -> None:
    """Print the table, and its median and worst error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", action="store_true", help="show which operations are predicted wrongly")
    args = parser.parse_args()
    torch.manual_seed(0)
    bench, models = Bench(CPU, (torch.float32, torch.bfloat16)), steps()
    for step in models.values():
        step()  # makes the optimizer's state
    runs: dict[str, list[float]] = {name: [] for name in models}
    operations: dict[str, list[list[TimedWork]]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        bench.round()
        for name, step in models.items():
            runs[name] += benchmark(step, runs=RUNS, warmup=0).runs
            if args.parts:
                operations[name].append(timed(step, CPU))
    roofline = roofline_of(bench)
    print(roofline, f"\nspread {roofline.spread:.0%}\n")
    rows, errors = [("model", "operations", "predicted, ms", "measured, ms", "spread", "error")], []
    for name, step in models.items():
        works, timing = works_of(step), Timing(tuple(runs[name]))
        expected = predicted(roofline, works)
        errors.append(expected / timing.median - 1)
        figures = (f"{expected * 1e3:.2f}", f"{timing.median * 1e3:.2f}", f"{timing.spread:.0%}", f"{errors[-1]:+.0%}")
        rows.append((name, str(len(works)), *figures))
    print(text_table(rows))
    print(f"median error {statistics.median(map(abs, errors)):.0%}, worst {max(map(abs, errors)):.0%}")
    print(f"\n{profiles(models)}")
    for name, rounds in operations.items():
        if rounds:
            print(f"\n{name}\n{parts(roofline, rounds)}")


if __name__ == "__main__":
    main()
