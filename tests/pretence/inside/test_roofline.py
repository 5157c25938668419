"""The roofline of a GPU, in sizes that a pretended one can do: what is measured there and nowhere else."""

from helpers.claims.claims import Claims
from helpers.core.precision import has_tf32
from helpers.course.receipts.measurements import roofline as receipt
from helpers.meter.roofline import bench, measure_roofline, measured, subjects
from helpers.meter.roofline.kept import machine_name
from helpers.ranks import link

import pytest
import torch

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    for module, name, sizes in [
        (bench, "_SIDES", (1, 16)),
        (bench, "_BATCHED_SIDES", (16,)),
        (bench, "_VECTORS", (4096, 16384)),
        (subjects, "_ROWS", ((64, 64), (256, 64))),
        (subjects, "_IMAGES", ((4, 8, 8),)),
        (subjects, "_HEADS", ((2, 16, 8),)),
    ]:
        monkeypatch.setattr(module, name, {"gpu": sizes})
    monkeypatch.setattr(bench, "_SIDE_COMPARED", 16)
    monkeypatch.setattr(bench, "_MESSAGES", (1024, 65536))
    monkeypatch.setattr(measured, "ROUNDS", 2)
    monkeypatch.setattr(link, "MESSAGES", (1024, 65536))


def test_a_gpu_has_copies_from_the_host_and_maybe_tf32():
    roofline = measure_roofline(CUDA)
    assert roofline.machine == machine_name(CUDA)
    assert torch.cuda.get_device_name() in roofline.machine
    assert "threads" not in roofline.machine
    assert roofline.host_copy.bandwidth > 0
    assert roofline.pageable_copy.bandwidth > 0
    assert ("tf32" in roofline.products) == has_tf32(CUDA)


@pytest.mark.gpus(1)
def test_its_figures_are_recorded():
    claims = Claims()
    receipt.measure(claims, CUDA)
    assert {"pinned memory", "pageable memory"} <= {row.subject for row in claims.rows}
    assert all(row.measured > 0 for row in claims.rows)
