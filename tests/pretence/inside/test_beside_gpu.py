"""A virtual GPU on a machine that has another one, which a lab's dry run does not see."""

from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
from helpers.virtual_gpu.world import World

import pytest
import torch
import torch.distributed as dist
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from traitlets.config import Config


def two_steps(gpu):
    with virtual_gpu(gpu) as run:
        model = nn.Sequential(nn.Linear(8, 2**20), nn.Linear(2**20, 1)).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.ones(4, 8, device="cuda")).sum().backward()
            optimizer.step()
    return torch.cuda.device_count(), run


def test_it_runs_in_a_process_without_the_other_and_its_record_comes_back():
    with pytest.raises(RuntimeError, match="already"):
        two_steps("rtx-4090")
    others, run = beside_real_gpu(two_steps, "rtx-4090")
    assert (others, run.gpu, len(run.steps)) == (0, "rtx-4090-24gb", 2)
    parameters = 4 * (9 * 2**20 + 2**20 + 1)
    assert run.owners.categories["parameters"] == pytest.approx(parameters, rel=1e-3)
    assert "rtx-4090" in str(run)
    assert run.plot("two steps") is not None
    assert torch.cuda.is_available()


def reduced_gradients(gpu):
    """Rank 0 of two shards a layer; returns the collectives of a step."""
    with virtual_gpu(gpu, gpus=2, world=World(rank=0, size=2, node=2)) as run:
        dist.init_process_group("nccl")
        layer = nn.Linear(64, 64, device="cuda")
        fully_shard(layer, mesh=init_device_mesh("cuda", (2,)))
        layer(torch.ones(4, 64, device="cuda")).sum().backward()
        dist.destroy_process_group()
    return [row["name"] for row in run.to_json()["collectives"]]


def test_ranks_of_a_virtual_machine_reduce_gradients_there():
    assert "reduce_scatter" in beside_real_gpu(reduced_gradients, "rtx-4090")


def test_cells_keep_their_names():
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    try:
        shell.run_cell(
            "import torch\n"
            "from helpers.virtual_gpu import beside_real_gpu, virtual_gpu\n"
            "def one(gpu):\n"
            "    with virtual_gpu(gpu) as run:\n"
            "        kept = torch.ones(2**20, device='cuda')\n"
            "    return run",
            store_history=True,
        )
        shell.run_cell("run = beside_real_gpu(one, 'rtx-3060')", store_history=True).raise_error()
        assert list(shell.user_ns["run"].owners.lines) == ["In[1]:5"]
    finally:
        InteractiveShell.clear_instance()
