"""Leave these tests out where there is no GPU, real or pretended."""

from pathlib import Path

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark of these tests."""
    config.addinivalue_line("markers", "gpus(n): needs one GPU (1), or several (2)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them as tests that need a GPU, and leave out what wants another number of GPUs."""
    gpus = torch.cuda.device_count()
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        item.add_marker(pytest.mark.cuda)
        wants = item.get_closest_marker("gpus")
        if wants and wants.args[0] != min(gpus, 2):
            item.add_marker(pytest.mark.skip(reason=f"there are {gpus} GPUs"))
