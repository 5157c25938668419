"""Test processes that run beside each other share the cores: one thread each, or all of them crawl."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # set before torch is imported, and inherited by kernels and scripts
    os.environ["OMP_NUM_THREADS"] = "1"
