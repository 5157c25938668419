"""What an exported script keeps when a run goes wrong: NaN, a divergent rate, SIGTERM, a full disk, a lost rank."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from helpers.core.descendants import end_process
from helpers.planner import ParallelConfig, Recipe

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import tree_leaves

from ..sampling import sample, sample_seed
from .scripts import command, run

ALONE = Recipe("gpt2", precision="bf16-amp")
DDP = Recipe("gpt2", precision="bf16-amp", parallel=ParallelConfig(shard=2, zero="none"), gradient_accumulation_steps=2)
FSDP = Recipe("llama-3.2-1b", precision="bf16-amp", parallel=ParallelConfig(shard=2))
ADAPTERS = Recipe("llama-3.2-1b", precision="bf16", lora_rank=4, parallel=ParallelConfig(shard=2))
KINDS = {
    "one rank": (ALONE, "pytorch"),
    "ddp": (DDP, "pytorch"),
    "fsdp": (FSDP, "pytorch"),
    "trainer": (ALONE, "trainer"),
}
PLANTS = {
    "one rank": (ALONE, "pytorch"),
    "adapters": (Recipe("llama-3.2-1b", lora_rank=4, checkpointing="every"), "pytorch"),
    "in backward": (Recipe("llama-3.2-1b", precision="fp32", step_in_backward=True), "pytorch"),
    "fp16": (Recipe("llama-3.2-1b", precision="fp16-amp", gradient_accumulation_steps=2), "pytorch"),
    "trainer": (Recipe("llama-3.2-1b", precision="bf16-amp", gradient_accumulation_steps=2), "trainer"),
}

# Runs the script with a NaN in a gradient, before the update of number AT.
NAN = """
import runpy, sys
import torch

at, update = int(sys.argv[1]), 0
sys.argv = sys.argv[2:]
clip = torch.nn.utils.clip_grad_norm_


def planted(parameters, *rest, **options):
    global update
    parameters, update = list(parameters), update + 1
    if update == at:
        gradient = parameters[1].grad
        getattr(gradient, "_local_tensor", gradient).view(-1)[:1] = float("nan")
    return clip(parameters, *rest, **options)


torch.nn.utils.clip_grad_norm_ = planted
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# Runs the script with a NaN in update AT, in a gradient or in an activation that SEED chooses, or from then on.
PLANTED = """
import random, sys
from pathlib import Path
import torch

seed, at, forever = (int(word) for word in sys.argv[1:4])
sys.argv = sys.argv[4:]
script, draw, passes = {"__name__": "script", "__doc__": ""}, random.Random(seed), 0
exec(compile(Path(sys.argv[0]).read_text(), sys.argv[0], "exec"), script)
make_model, accumulate = script["make_model"], script["ACCUMULATE"]
first = (at - 1) * accumulate + draw.randint(1, accumulate)  # the forward pass, of those that train


def count(model, _):
    global passes
    passes += model.training and torch.is_grad_enabled()


def plant(values):
    if passes != first and not (forever and passes > first):
        return values
    values = values.clone()
    values.view(-1)[draw.randrange(values.numel())] = float("nan")
    return values


def planted(*args, **options):
    model = make_model(*args, **options)
    model.register_forward_pre_hook(count)
    if draw.random() < 0.5:
        name, weight = draw.choice([pair for pair in model.named_parameters() if pair[1].requires_grad])
        weight.register_hook(plant)
    else:
        layers = [pair for pair in model.named_modules() if not list(pair[1].children()) and list(pair[1].parameters())]
        name, layer = draw.choice(layers)
        layer.register_forward_hook(lambda layer, _, out: plant(out) if layer.training else out)
    print("planted in", name, flush=True)
    return model


script["make_model"] = planted
script["main"]()
"""
# Runs the script where no file may grow beyond so many bytes: what a full disk does, without one.
SMALL_DISK = """
import resource, runpy, sys

most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _through(folder: Path, line: list, program: str, *values: int) -> list:
    """Return `line` with `program`, which is given `values`, between Python and the script."""
    (folder / "through.py").write_text(program)
    at = line.index("train.py")
    return [*line[:at], "through.py", *map(str, values), *line[at:]]


def _kept(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints by their step."""
    return {int(path.parent.name.partition("-")[2]): path.parent for path in folder.glob("checkpoints/*-*/run.json")}


def _tensors(folder: Path, scratch: Path) -> list[torch.Tensor]:
    """Return the weights in a checkpoint."""
    if (folder / "model.safetensors").exists():
        from safetensors.torch import load_file

        return list(load_file(folder / "model.safetensors").values())
    file = folder / "state.pt"
    if not file.exists():
        file = scratch / "state.pt"
        dcp_to_torch_save(folder, file)
    return list(torch.load(file)["model"].values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(list(KINDS), one_in=2))
def test_a_nan_in_a_gradient_is_skipped_counted_and_never_published(kind, tmp_path):
    recipe, style = KINDS[kind]
    line, settings = command(tmp_path, recipe, style, "--steps", 6, "--checkpoint-every", 2)
    done = run(_through(tmp_path, line, NAN, random.Random(sample_seed()).randrange(1, 7)), settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "1 updates skipped" in done.stdout
    assert sorted(_kept(tmp_path))[-2:] == [4, 6]
    assert all(tensor.isfinite().all() for tensor in _tensors(_kept(tmp_path)[6], tmp_path))


def _are_finite(folder: Path) -> bool:
    """Return whether all weights and all states of the optimizer in `folder` are finite, and there are some."""
    from safetensors.torch import load_file

    states = [torch.load(path) for path in folder.glob("*.pt")] + [load_file(f) for f in folder.glob("*.safetensors")]
    tensors = [leaf for leaf in tree_leaves(states) if isinstance(leaf, torch.Tensor)]
    return bool(tensors) and all(tensor.isfinite().all() for tensor in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), sample([(kind, seed) for seed in range(2) for kind in PLANTS], one_in=5))
def test_a_nan_anywhere_costs_its_update_alone(kind, seed, tmp_path):
    recipe, style = PLANTS[kind]
    options = ["--steps", 12, "--checkpoint-every", 4, "--out", "kept"]
    at = random.Random(f"{kind} {seed} {sample_seed()}").randint(1, 12)
    line, settings = command(tmp_path, recipe, style, *options)
    done = run(_through(tmp_path, line, PLANTED, seed + 2 * sample_seed(), at, 0), settings)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [int(step) for step in re.findall(r"step (\d+) is skipped", done.stdout)] == [at], done.stdout
    assert "1 updates skipped" in done.stdout
    assert "nan" not in done.stdout.partition("held-out loss: ")[2], done.stdout
    if style == "trainer":
        assert re.search(r"^12 steps: mean of the finite training losses in the log: \d+\.\d{4}$", done.stdout, re.M)
        assert "'loss': 'nan'" not in done.stdout  # a sum that once held a NaN would be NaN to the end
    assert {8, 12} <= set(_kept(tmp_path))
    for folder in [*_kept(tmp_path).values(), tmp_path / "kept"]:
        assert _are_finite(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(list(PLANTS), one_in=5))
def test_a_nan_in_every_update_ends_the_run_and_what_was_good_stays(kind, tmp_path):
    recipe, style = PLANTS[kind]
    line, settings = command(tmp_path, recipe, style, "--steps", 60, "--checkpoint-every", 4, "--out", "kept")
    done = run(_through(tmp_path, line, PLANTED, sample_seed(), 7, 1), settings)
    patience = 30 if kind == "fp16" else 10
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert f"{patience} consecutive updates were not finite" in done.stdout
    assert [int(step) for step in re.findall(r"step (\d+) is skipped", done.stdout)] == [*range(7, 7 + patience)]
    assert _kept(tmp_path)
    assert all(_are_finite(folder) for folder in _kept(tmp_path).values())
    assert not list((tmp_path / "kept").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(list(PLANTS), one_in=3))
def test_a_short_run_without_one_good_update_fails(kind, tmp_path):
    recipe, style = PLANTS[kind]
    line, settings = command(tmp_path, recipe, style, "--steps", 4, "--out", "kept")
    done = run(_through(tmp_path, line, PLANTED, sample_seed(), 1, 1), settings)
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert [int(step) for step in re.findall(r"step (\d+) is skipped", done.stdout)] == [1, 2, 3, 4]
    assert done.stdout.count("All updates were skipped: nothing was trained, so no model is saved.") == 1
    assert not list((tmp_path / "kept").glob("*.safetensors"))
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(["one rank", "fsdp"], one_in=2))
def test_a_run_that_diverges_ends_and_its_last_good_checkpoint_stays(kind, tmp_path):
    recipe, style = KINDS[kind]
    good = ["--steps", 2, "--checkpoint-every", 2]
    assert run(*command(tmp_path, recipe, style, *good)).returncode == 0
    before = [tensor.clone() for tensor in _tensors(_kept(tmp_path)[2], tmp_path)]
    wild = ["--steps", 30, "--checkpoint-every", 2, "--lr", 1e30, "--resume", "--allow-changes"]
    done = run(*command(tmp_path, recipe, style, *wild))
    assert done.returncode == 1
    assert "10 consecutive updates were not finite" in done.stdout
    kept = _kept(tmp_path)
    assert 2 in kept
    for folder in kept.values():
        assert all(tensor.isfinite().all() for tensor in _tensors(folder, tmp_path))
    assert all(map(torch.equal, before, _tensors(kept[2], tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(list(KINDS), one_in=2))
def test_senseless_updates_that_are_finite_do_not_replace_the_best_checkpoint(kind, tmp_path):
    recipe, style = KINDS[kind]
    good = ["--steps", 4, "--checkpoint-every", 2]
    assert run(*command(tmp_path, recipe, style, *good)).returncode == 0
    before = [tensor.clone() for tensor in _tensors(_kept(tmp_path)[4], tmp_path)]
    wild = ["--steps", 12, "--checkpoint-every", 2, "--lr", 3, "--resume", "--allow-changes"]
    done = run(*command(tmp_path, recipe, style, *wild))
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(_kept(tmp_path)) == [4, 10, 12]
    assert re.search(r"-12 is complete: .*-4 has the lowest held-out loss, ", done.stdout)
    assert all(map(torch.equal, before, _tensors(_kept(tmp_path)[4], tmp_path)))


@contextlib.contextmanager
def _started(line: list, settings: dict, folder: Path, checkpoints: int) -> Iterator[subprocess.Popen]:
    """Start the script and give it out once it has so many checkpoints; end it and its ranks afterwards."""
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log, **settings)
    end = time.monotonic() + 200
    try:
        while len(_kept(folder)) < checkpoints and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        assert process.poll() is None, (folder / "log.txt").read_text()
        yield process
    finally:
        end_process(process.pid)


def _process_of(rank: int, launcher: subprocess.Popen) -> int:
    """Return the number of the process that torchrun has started as `rank`."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return next(int(pid) for pid in children if f"\0RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), sample([*((kind, "SIGTERM") for kind in KINDS), ("ddp", "SIGUSR1")], one_in=2)
)
def test_a_signal_saves_the_step_it_comes_in(kind, name, tmp_path):
    recipe, style = KINDS[kind]
    line, settings = command(tmp_path, recipe, style, "--steps", 100_000, "--checkpoint-every", 3)
    to_torchrun = recipe.ranks == 1 or name == "SIGTERM"  # which forwards no other signal unless it is asked to
    with _started(line, settings, tmp_path, 1) as process:
        os.kill(process.pid if to_torchrun else _process_of(0, process), getattr(signal, name))
        process.wait(100)
    told = (tmp_path / "log.txt").read_text()
    stopped = int(re.search(name + r": stopped after step (\d+)\.", told)[1])
    assert max(_kept(tmp_path)) == stopped
    assert f"-{stopped} is complete: continue with --resume" in told
    assert json.loads((_kept(tmp_path)[stopped] / "run.json").read_text())["done"]["before"] > 1
    if recipe.ranks == 1:
        assert process.returncode == 143


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(["one rank", "trainer"], one_in=2))
def test_a_finished_run_that_is_resumed_makes_no_further_update(kind, tmp_path):
    recipe, style = KINDS[kind]
    line, settings = command(tmp_path, recipe, style, "--steps", 4, "--checkpoint-every", 2, "--resume")
    ends = [run(line, settings) for _ in range(2)]
    assert [done.returncode for done in ends] == [0, 0], ends[1].stderr[-2000:]
    after = [re.search(r"before, ([\d.]+) after", done.stdout)[1] for done in ends]
    assert after[0] == after[1]
    assert max(_kept(tmp_path)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(["one rank", "fsdp"], one_in=2))
def test_a_full_disk_costs_no_checkpoint_that_is_there(kind, tmp_path):
    recipe, style = KINDS[kind]
    assert run(*command(tmp_path, recipe, style, "--steps", 2, "--checkpoint-every", 2)).returncode == 0
    line, settings = command(
        tmp_path, recipe, style, "--steps", 6, "--checkpoint-every", 2, "--resume", "--allow-changes"
    )
    done = run(_through(tmp_path, line, SMALL_DISK, 200_000), settings)
    assert done.returncode == 1
    assert re.search(r"step-6 was not saved: .*GiB of the disk is free\). checkpoints/step-2 is complete", done.stdout)
    assert list(_kept(tmp_path)) == [2]
    assert not (tmp_path / "checkpoints" / "unfinished").exists()
    last = run(line, settings)  # there is room again
    assert last.returncode == 0, last.stderr[-2000:]
    assert sorted(_kept(tmp_path))[-2:] == [4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sample(["ddp", "fsdp"], one_in=2))
def test_a_lost_rank_ends_the_run_with_one_line_and_no_checkpoint_is_lost(kind, tmp_path):
    recipe, style = KINDS[kind]
    line, settings = command(tmp_path, recipe, style, "--steps", 100_000, "--checkpoint-every", 2)
    with _started(line, settings, tmp_path, 2) as process:
        os.kill(_process_of(1, process), signal.SIGKILL)
        process.wait(100)
    told = (tmp_path / "log.txt").read_text()
    assert process.returncode == 1
    newest = max(_kept(tmp_path))
    assert f"rank 0: another rank is gone. checkpoints/step-{newest} is complete: continue with --resume." in told
    assert all(tensor.isfinite().all() for tensor in _tensors(_kept(tmp_path)[newest], tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sample([FSDP, ADAPTERS], one_in=2), ids=lambda recipe: recipe.summary)
def test_shards_load_on_another_number_of_ranks(recipe, tmp_path):
    options = ["--checkpoint-every", 2, "--steps", 2]
    assert run(*command(tmp_path, recipe, "pytorch", *options)).returncode == 0
    stored = FileSystemReader(tmp_path / "checkpoints" / "step-2").read_metadata().state_dict_metadata
    assert stored
    if recipe.lora_rank:
        assert all("lora_" in name for name in stored if name.startswith("model."))
    other = ["--checkpoint-every", 2, "--steps", 4, "--resume", "--allow-changes", "--out", "kept"]
    done = run(*command(tmp_path, recipe, "pytorch", *other, ranks=1))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "world size 1" in done.stdout
    assert "continuing after step 2" in done.stdout
    before = float(re.search(r"held-out loss: ([\d.]+) before", done.stdout)[1])
    assert float(re.search(r"before, ([\d.]+) after", done.stdout)[1]) < before
