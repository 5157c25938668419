"""A virtual GPU on a machine that has another one, which a lab's dry run does not see."""

from helpers.virtual_gpu import beside_real_gpu, virtual_gpu

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
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
