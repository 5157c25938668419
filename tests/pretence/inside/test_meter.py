"""The meter on a GPU: both ways of measuring give the caching allocator's peak; without kernels a profile says so."""

from helpers import MemoryMeter, SmallGPT, profile_step, saved_tensor_bytes

import pytest
import torch
from torch.nn import functional as F

from tests.meter import test_step_trace


@pytest.fixture
def step():
    device = torch.device("cuda")
    model = SmallGPT(layers=2, width=64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(256, (4, 64), device=device)

    def once():
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, -2), ids.flatten()).backward()
        optimizer.step()

    once.model, once.optimizer, once.ids = model, optimizer, ids
    once()
    return once


def test_by_category_it_is_the_allocators_peak_and_what_was_there_before_is_known(step):
    other = torch.empty(10**6, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    with MemoryMeter(step.model, step.optimizer) as profile:
        step()
    assert profile.method == "allocator"
    assert profile.outside_bytes >= other.nbytes
    assert profile.peak_bytes + profile.outside_bytes == pytest.approx(torch.cuda.max_memory_allocated(), rel=1e-3)
    assert profile.reserved_bytes >= profile.peak_bytes
    assert profile.at_peak["parameters"] >= sum(p.nbytes for p in step.model.parameters())


def test_the_peak_alone_is_read_from_the_statistics(step):
    with MemoryMeter(step.model, step.optimizer, by_category=False) as alone:
        step()
    other = torch.empty(10**6, dtype=torch.uint8, device="cuda")
    with MemoryMeter(step.model, step.optimizer, by_category=False) as profile:
        step()
    assert profile.peak_bytes + profile.outside_bytes == torch.cuda.max_memory_allocated()
    assert profile.peak_bytes == alone.peak_bytes
    assert profile.outside_bytes - alone.outside_bytes == -(-other.nbytes // 512) * 512
    assert profile.reserved_bytes >= profile.peak_bytes
    with MemoryMeter(step.model, step.optimizer) as by_category:
        step()
    assert profile.peak_bytes == pytest.approx(by_category.peak_bytes, rel=0.01)


def test_saved_tensors_are_counted_on_the_gpu(step):
    def forward():
        return step.model(step.ids)

    known = [*step.model.parameters(), *step.model.buffers(), step.ids]
    assert saved_tensor_bytes(forward, known) > step.ids.nbytes * step.model.tokens.embedding_dim // 8


def test_what_saves_its_own_output_is_let_go():
    x = torch.randn(1000, requires_grad=True, device="cuda")
    before = torch.cuda.memory_allocated()
    assert saved_tensor_bytes(lambda: torch.tanh(x)) == 4000
    assert torch.cuda.memory_allocated() == before


def test_a_profile_without_kernels_shows_the_host_and_says_so(step):
    seen = profile_step(step, runs=3)
    assert (seen.device_type, seen.method) == ("cuda", "host")
    assert "saw no kernels of this device (cuda)" in str(seen)
    assert {"forward", "backward", "optimizer"} <= set(seen.by_phase())
    assert seen.flops > 0


def test_a_trace_with_kernels_is_cut_along_them():
    """The profiler records no kernels of a pretended GPU, so these are written by hand."""
    test_step_trace.test_on_a_gpu_kernels_are_the_work_and_belong_to_what_launched_them()
