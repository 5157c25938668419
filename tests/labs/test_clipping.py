"""Clipping and the optimizer's step on the models that the labs on many GPUs build, beside one process.

The models and the training come from the labs' sources, so what one lab teaches works in the next.
"""

from pathlib import Path
from typing import Any

from helpers.core.device import rank_device
from helpers.core.files import ROOT
from helpers.course.build.source import Source
from helpers.exercises.sharding.blocks import Blocks, rank_rows
from helpers.ranks.failure import RankError
from helpers.ranks.run import run_ranks

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

HOW = ("fused", "foreach")
CLOSE = 1e-4  # relative; an update with the wrong norm is farther off
LIMIT = 0.05


def names_of(lab: str, *cells: str) -> dict[str, Any]:
    """Run these cells of a lab's solution, in their order, and return its names."""
    (path,) = Path(ROOT, "solutions").glob(f"*_{lab}.py")
    names: dict[str, Any] = {"__name__": lab}
    for cell in Source(path).cells():
        if cell.metadata.get("name") in cells:
            exec(compile(cell.source, f"{path.name}: {cell.metadata.name}", "exec"), names)
    return names


def _sharded(make_sharded: Any, how: str) -> tuple[float, float]:
    """One rank: three clipped steps, sharded and not; return how far weights and norm are off."""
    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))
    whole, model = (Blocks(count=2, width=32).to(rank_device()) for _ in range(2))
    model, optimizers = make_sharded(model, mesh), []
    for each in (whole, model):
        optimizers.append(torch.optim.AdamW(each.parameters(), lr=1e-3, **{how: True}))
    (x, y), norms = rank_rows(width=32), [0.0, 0.0]
    for _ in range(3):
        F.mse_loss(model(x), y).backward()
        F.mse_loss(whole(x), y).backward()
        for p in whole.parameters():  # as DDP does
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        for i, each in enumerate((whole, model)):
            norm = nn.utils.clip_grad_norm_(each.parameters(), LIMIT)
            norms[i] = (norm.full_tensor() if i else norm).item()
            optimizers[i].step()
            optimizers[i].zero_grad()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return max(((p.full_tensor() - q).norm() / q.norm()).item() for p, q in pairs), abs(norms[1] / norms[0] - 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_sharded_model_clips_and_steps_like_one_process(how):
    make_sharded = names_of("sharding", "setup", "setup_torch", "sharded")["make_sharded"]
    for far, norm in run_ranks(_sharded, 4, make_sharded, how, device="cpu", measure=False).results:
        assert far < CLOSE
        assert norm < CLOSE


@pytest.mark.slow
def test_a_block_on_a_mesh_clips_and_steps_like_one_process_and_without_norms_on_it_cannot(capsys):
    cells = ("setup", "mlp", "heads", "block", "block_run", "torch_plan", "sequence_plan", "mesh_run")
    names = names_of("tensor_parallel", *cells)
    assert "must have the same mesh" in capsys.readouterr().out  # the plan that leaves the norms alone
    for how in HOW:
        ranks = run_ranks(names["train_on_mesh"], 4, 2, 2, True, how, device="cpu", measure=False).results
        for far, norm, right, _ in ranks:
            assert far < CLOSE
            assert norm == pytest.approx(right, rel=CLOSE)
    with pytest.raises(RankError):
        run_ranks(names["train_on_mesh"], 4, 2, 2, False, device="cpu", measure=False, show=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_pipeline_clips_by_the_norm_of_all_stages(how):
    names = names_of("pipeline", "setup", "setup_torch", "pipelining", "clip", "clip_run")
    optimizer_of = names["optimizer_of"]
    names["optimizer_of"] = lambda module: optimizer_of(module, how)
    right_norms, before, right = names["train_alone"]()
    for joint, close in ((True, True), (False, False)):
        ranks = run_ranks(names["train_stage"], 4, joint, device="cpu", measure=False).results
        off = (torch.cat([weights for _, weights in ranks]) - right).norm() / (right - before).norm()
        assert (off < CLOSE) == close
        assert all((norms == pytest.approx(right_norms, rel=CLOSE)) == close for norms, _ in ranks)
