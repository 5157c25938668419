"""Two training steps on fake tensors, and every allocation that they would make.

Other modules work out from the `Simulation` what the allocator and the GPU do with them.
"""

from .steps import SIMULATED_STEPS, Simulation, simulate

__all__ = ["SIMULATED_STEPS", "Simulation", "simulate"]
