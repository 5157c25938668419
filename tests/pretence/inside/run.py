"""Run these tests in this process, on the machine that it pretends to be: a script for `python -m tests.pretence`."""

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]))
