"""The source of every lab runs on every pretended machine; `make test` takes two short ones a day."""

from helpers.core.files import ROOT

import pytest

from ..sampling import runs_whole, sample
from .coverage import run_on
from .settings import QUICK, settings_of

SOURCES = sorted((ROOT / "solutions").glob("[0-9]*.py"))
RUNS = [(path, setting) for path in SOURCES for setting in settings_of(path) if runs_whole() or path.stem in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "setting"), sample(RUNS, one_in=len(RUNS) // 2), ids=lambda value: getattr(value, "stem", value)
)
def test_source_runs(path, setting):
    run = run_on(setting, path)
    assert run.returncode == 0, run.output[-5000:]


def test_every_source_has_settings():
    assert len(SOURCES) > 20
    assert all(settings_of(path) for path in SOURCES)
