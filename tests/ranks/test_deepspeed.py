"""DeepSpeed's configuration, and DeepSpeed itself on two ranks where it is installed."""

import importlib.util
import os

from helpers import deepspeed_config, rank_device, run_ranks

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

ROWS, STEPS = 8, 3
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: make deepspeed"
)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"stage": 4}, "stage is 4; choose one of 0, 1, 2, 3"),
        ({"precision": "fp8"}, "precision is 'fp8'; choose one of fp32, bf16, fp16"),
        ({"offload": "parameters"}, "choose one of none, optimizer, all"),
        ({"micro_batch": 0}, "micro_batch is 0 and accumulate 1; both must be at least 1"),
        ({"accumulate": 0}, "micro_batch is 4 and accumulate 0"),
        ({"stage": 0, "offload": "optimizer"}, "needs stage 1 or higher"),
        ({"stage": 2, "offload": "all"}, "needs stage 3"),
    ],
)
def test_settings_that_cannot_be_are_refused(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        deepspeed_config(**{"stage": 1, "micro_batch": 4} | arguments)


def test_words_become_keys():
    config = deepspeed_config(3, 4, accumulate=8, precision="bf16", offload="all", learning_rate=2e-4, clip=1.0)
    zero = config["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"]["device"] == zero["offload_param"]["device"] == "cpu"
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (4, 8)
    assert config["bf16"] == {"enabled": True}
    assert config["gradient_clipping"] == 1.0
    assert config["optimizer"]["params"]["lr"] == 2e-4
    plain = deepspeed_config(1, 4)
    assert plain["gradient_clipping"] == 0.0  # DeepSpeed would clip to 1
    assert "offload_optimizer" not in plain["zero_optimization"]
    assert "bf16" not in plain


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(ROWS, 16, generator=generator), torch.randn(ROWS, 16, generator=generator)


def by_hand() -> list[float]:
    """The losses of one process with all rows."""
    model, (x, y) = small_model(), rows()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        loss = F.mse_loss(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def with_deepspeed(config):
    os.environ["DS_ACCELERATOR"] = rank_device().type
    import deepspeed

    model = small_model().to(rank_device())
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config, dist_init_required=False
    )
    x, y = (whole.chunk(dist.get_world_size())[dist.get_rank()].to(rank_device()) for whole in rows())
    losses = []
    for _ in range(STEPS):
        loss = F.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.detach())
    joint = torch.stack(losses)
    dist.all_reduce(joint)
    inner = getattr(optimizer, "optimizer", optimizer)
    state = sum(t.nbytes for slots in inner.state.values() for t in slots.values() if isinstance(t, torch.Tensor))
    return (joint / dist.get_world_size()).tolist(), state


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "offload"), [(0, "none"), (1, "none"), (2, "none"), (3, "none"), (2, "optimizer"), (3, "all")]
)
def test_every_stage_trains_as_one_process_and_shards_its_state(stage, offload):
    config = deepspeed_config(stage, ROWS // 2, offload=offload)
    ranks = run_ranks(with_deepspeed, 2, config, timeout=900, measure=False, show=False).results
    whole = 8 * sum(p.numel() for p in small_model().parameters())  # two FP32 moments
    for losses, state in ranks:
        assert losses == pytest.approx(by_hand(), rel=1e-4)
        assert state == pytest.approx(whole / (2 if stage else 1), rel=0.05)
