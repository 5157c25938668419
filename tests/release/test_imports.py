"""What the labs import."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_nothing_is_said_on_stderr_by_what_the_labs_import():
    code = "import helpers, peft, transformers\nfrom transformers import Trainer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
