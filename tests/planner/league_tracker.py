"""PyTorch's own MemTracker on fake tensors: the peaks that it states for the full trainings on one GPU.

`python -m tests.planner.league_tracker` runs them, a minute or two each, and keeps the peaks in tracker_peaks.json,
which `tests.planner.league` reads. The tensors are fake ones on the CPU: on fake CUDA tensors, autograd wants a PyTorch
that was built for CUDA. The model, its loss and its checkpointing are those of transformers, as a user has them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.planner import Recipe
from helpers.planner.catalog.models import spec_of
from helpers.planner.simulate.contexts import no_compiler, quiet_transformers
from helpers.planner.simulate.model import materialize

import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from tests.planner.published import FIGURES, Figure

PEAKS = Path(__file__).with_name("tracker_peaks.json")


def figures() -> list[Figure]:
    """Return the full trainings of decoders on one GPU whose allocated bytes are published."""
    wanted = [each for each in FIGURES if each.metric == "allocated" and not each.recipe.lora_rank]
    return [each for each in wanted if not each.recipe.model.startswith("vit")]


def name_of(recipe: Recipe) -> str:
    """Return what tracker_peaks.json calls a recipe: what the page's table does."""
    return f"{recipe.summary}, {recipe.seq} tokens"


def peak(recipe: Recipe, layers: int = 0) -> int:
    """Return the bytes at the peak of two steps, as MemTracker has them; `layers`: 0 for the model's own depth."""
    spec = spec_of(recipe)
    spec = spec.with_layers(layers) if layers else spec
    with quiet_transformers():
        model = spec.build(recipe, recipe.weight_dtype)
        with no_compiler(), _NoPadding(), FakeTensorMode(allow_non_fake_inputs=True):
            materialize(model)
            return _tracked(model.train(), recipe)


class _NoPadding(TorchFunctionMode):
    """Answers transformers, which asks fake tensors whether all tokens count; then attention needs no mask."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return True if func is torch.Tensor.__bool__ else func(*args, **(kwargs or {}))


class _Peaks(MemTracker):
    """Leaves out the peaks of single modules: for each operation they cost a pass over all modules."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        stats, self.memory_tracking = self.memory_tracking, WeakIdKeyDictionary()
        super()._update_peak_stats(peak_state)
        self.memory_tracking = stats


def _tracked(model: nn.Module, recipe: Recipe) -> int:
    """Take two steps under MemTracker; micro-batches beyond the second of a step are left out, since they are alike."""
    model.config.use_cache = False
    if recipe.checkpointing == "every":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    fused = recipe.optimizer_impl == "fused"
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=not fused)  # CUDA's default: foreach
    tokens = torch.zeros(recipe.micro_batch_size, recipe.seq, dtype=torch.long)
    tracker = _Peaks()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        for micro_batches in (1, min(2, recipe.gradient_accumulation_steps)):
            for _ in range(micro_batches):
                tracker.reset_mod_stats()
                model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return int(snapshot["Total"])


def main() -> None:
    """Run every recipe and keep its peak."""
    runs: dict[str, Any] = {}
    for figure in figures():
        found = peak(figure.recipe)
        runs[name_of(figure.recipe)] = {"bytes": found}
        print(name_of(figure.recipe), found, f"{found / figure.said - 1:+.1%}", flush=True)
    about = "Peaks of PyTorch's MemTracker on fake CPU tensors: python -m tests.planner.league_tracker writes this."
    told = {"about": about, "torch": torch.__version__, "transformers": transformers.__version__, "runs": runs}
    PEAKS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
