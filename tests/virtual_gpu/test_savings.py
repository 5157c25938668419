"""What the report advises: by how much the peak falls when the program follows it."""

from helpers.virtual_gpu import virtual_gpu

import pytest
import torch
from torch import nn

MiB = 2**20
FP32, SMALL, LARGE = torch.float32, 32, 512  # tokens: the peak is in the optimizer's step, or in the backward pass
CHANGES = {
    "fused optimizer": {"fused": True},
    "half the batch": {"batch": 4, "passes": 2},
    "inside the backward pass": {"in_backward": True},
    "in BF16": {"dtype": torch.bfloat16},
}


def update_in_backward(model, fused):
    optimizers = {weight: torch.optim.AdamW([weight], fused=fused) for weight in model.parameters()}

    def update(weight):
        optimizers[weight].step()
        optimizers[weight].zero_grad()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(update)


def trained(tokens, *, batch=8, passes=1, fused=False, dtype=FP32, in_backward=False, autocast=False, gpu="a100-80gb"):
    """Return the dry run of a small network whose batches come from the host."""
    with virtual_gpu(gpu) as run:
        blocks = (nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4))
        model = nn.Sequential(*blocks).cuda().to(dtype)
        optimizer = (
            update_in_backward(model, fused) if in_backward else torch.optim.AdamW(model.parameters(), fused=fused)
        )
        for _ in range(2):
            for _ in range(passes):
                x = torch.zeros(batch, tokens, 512, dtype=dtype).cuda()
                with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                    loss = model(x).float().square().mean()
                loss.backward()
                del x, loss
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
    return run


def advised(run):
    return {words: cure for words in CHANGES for cure in run.cures if words in cure.change}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("tokens", [SMALL, LARGE])
def test_the_peak_falls_by_what_is_promised(tokens, autocast):
    run = trained(tokens, autocast=autocast)
    assert (run.owners.phase == "optimizer step") == (tokens == SMALL)
    found = advised(run)
    assert ("half the batch" in found) == (tokens == LARGE)
    for words, change in CHANGES.items():
        falls = run.peak_allocated - trained(tokens, autocast=autocast, **change).peak_allocated
        promised = found[words].saves if words in found else 0
        assert promised == pytest.approx(max(0, falls), abs=0.05 * run.peak_allocated), words


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_half_of_one_sequence_is_not_advised(batch):
    run = trained(4096, batch=batch)
    promised = next((cure.saves for cure in run.cures if "half the batch" in cure.change), 0)
    falls = run.peak_allocated - trained(4096, batch=(batch + 1) // 2, passes=2).peak_allocated
    assert promised == pytest.approx(max(0, falls), abs=0.01 * run.peak_allocated)
    assert (promised > 0) == (batch > 1)


def test_a_batch_that_is_made_on_the_gpu_is_not_known():
    with virtual_gpu("t4") as run:
        weight = torch.zeros(8, device="cuda", requires_grad=True)
        (torch.zeros(2**20, 8, device="cuda") * weight).sum().backward()
    assert not any("half the batch" in cure.change for cure in run.cures)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fused": True}, "fused"),
        ({"dtype": torch.bfloat16}, "BF16"),
        ({"passes": 2}, "inside the backward pass"),
        ({"in_backward": True}, "inside the backward pass"),
    ],
)
def test_what_is_done_or_cannot_be_done_is_not_advised(change, words):
    assert words in " ".join(cure.change for cure in trained(SMALL).cures)
    assert words not in " ".join(cure.change for cure in trained(SMALL, **change).cures)


def test_a_step_inside_the_backward_pass_does_not_accumulate():
    (half,) = [c for c in trained(LARGE, in_backward=True).cures if "half the batch" in c.change]
    assert "accumulation" not in half.change


def test_segments_that_grow_are_not_advised_to_grow(monkeypatch):
    def advises():
        return any("expandable" in cure.change for cure in trained(LARGE).cures)

    assert advises()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert not advises()


def test_after_an_error_the_saving_is_a_limit():
    with pytest.raises(torch.OutOfMemoryError), virtual_gpu("t4") as run:
        model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
        for batch in (2, 2**11):
            model(torch.zeros(batch, 1024, 1024).cuda())
    (half,) = [cure for cure in run.cures if "half the batch" in cure.change]
    assert half.up_to
    assert "saves up to" in str(half)
    assert half.saves <= run.peak_allocated
