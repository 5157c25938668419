"""Number formats bit by bit, block scales, and what a layer's products see.

For the labs on number formats and FP8. Which formats a device computes in is asked in `core/device.py`.
"""
