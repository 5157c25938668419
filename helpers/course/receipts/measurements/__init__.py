"""Measurements that no lab makes, most of them for GPUs. Each module has `measure(claims, device)`.

On a CPU they run with smaller models, so that the tests run every line.
"""
