"""Number formats bit by bit, block scales, autocast's rules, and the tensors that go into a layer's matmuls.

For the labs on number formats, mixed precision and FP8. `core/device.py` finds out
which formats a device computes in.
"""
