"""The source of every lab runs on every pretended machine; `make test` takes a short one every third day.

Those with lines that depend on CUDA run in `test_cuda_lines.py`, on the same machines.
"""

import re

from helpers.core.files import ROOT

import pytest

from ..sampling import runs_whole, sample
from .coverage import depends_on_cuda, labs, run_on
from .settings import QUICK, settings_of
from .smaller import SMALLER, smaller

OTHERS = [path for path in labs() if (runs_whole() or path.stem in QUICK) and not depends_on_cuda(path)]
RUNS = [(path, setting) for path in OTHERS for setting in settings_of(path)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "setting"), sample(RUNS, one_in=3 * len(RUNS)), ids=lambda value: getattr(value, "stem", value)
)
def test_source_runs(path, setting):
    run = run_on(setting, path)
    assert run.returncode == 0, run.output[-5000:]


def test_every_source_has_settings():
    assert len(labs()) > 20
    assert all(settings_of(path) for path in labs())


@pytest.mark.parametrize("name", SMALLER)
def test_only_numbers_of_a_lab_are_made_smaller(name):
    path = ROOT / "solutions" / f"{name}.py"
    text, computed = path.read_text(encoding="utf-8"), smaller(path)
    assert computed != text
    assert re.sub(r"\d+", "0", computed) == re.sub(r"\d+", "0", text)
