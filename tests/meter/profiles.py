"""Memory profiles for tests of what is made from them."""

from helpers import MemoryMeter

import torch


def small_and_large():
    """Return the profiles of a small and of a large batch, by name."""
    model = torch.nn.Linear(64, 64)
    profiles = {}
    for name, rows in {"small": 8, "large": 64}.items():
        with MemoryMeter(model) as profile:
            model(torch.ones(rows, 64)).sum().backward()
        profiles[name] = profile
    return profiles
