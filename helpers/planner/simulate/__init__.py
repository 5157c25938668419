"""Two training steps on fake tensors, and every allocation that they would make.

What the allocator and the GPU do with them is worked out outside, from the `Simulation`.
"""

from .steps import SIMULATED_STEPS, Simulation, simulate

__all__ = ["SIMULATED_STEPS", "Simulation", "simulate"]
