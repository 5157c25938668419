"""Number formats bit by bit, block scales, autocast's rules, and the tensors that go into a layer's products.

For the labs on number formats, mixed precision and FP8. Which formats a device computes in is found out in
`core/device.py`.
"""
