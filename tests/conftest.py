"""Test processes that run beside each other share the cores: one thread each, or all of them crawl."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # for this process, before torch is imported, and for those it starts
