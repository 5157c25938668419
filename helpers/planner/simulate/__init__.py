"""Two training steps on tensors without memory, and every allocation that they would make.

What the allocator and the GPU make of it is read outside, from the `Simulation`.
"""
