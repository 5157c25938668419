"""Clipping and the optimizer's step on the models that the labs on many GPUs build, beside one process.

The models and the training come from the labs' sources, so what one lab teaches works in the next.
"""

from helpers.ranks.failure import RankError
from helpers.ranks.run import run_ranks

import pytest
import torch

from .names_of import names_of

HOW = ("fused", "foreach")
CLOSE = 1e-4  # relative; an update with the wrong norm is farther off


@pytest.mark.slow
def test_a_block_on_a_mesh_clips_and_steps_like_one_process_and_without_norms_on_it_cannot(capsys):
    cells = ("setup", "setup_torch", "torch_plan", "sequence_plan", "mesh_train", "mesh_control")
    names = names_of("tensor_parallel_in_practice", *cells)
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
    names = names_of("pipelines_in_practice", "setup", "setup_torch", "pipelining", "clip", "clip_guess", "clip_run")
    optimizer_of = names["optimizer_of"]
    names["optimizer_of"] = lambda module: optimizer_of(module, how)
    right_norms, before, right = names["train_alone"]()
    for joint, close in ((True, True), (False, False)):
        ranks = run_ranks(names["train_stage"], 4, joint, device="cpu", measure=False).results
        off = (torch.cat([weights for _, weights in ranks]) - right).norm() / (right - before).norm()
        assert (off < CLOSE) == close
        assert all((norms == pytest.approx(right_norms, rel=CLOSE)) == close for norms, _ in ranks)
