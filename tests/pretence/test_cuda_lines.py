"""Every line of helpers and labs that depends on CUDA is executed on a pretended GPU, or there is a reason.

`make test` takes the helpers or one short lab every other day, another each time; `make test-all` takes all.
"""

from helpers.core.files import ROOT

import pytest

from tests.sampling import runs_whole, sample

from .coverage import Coverage, depends_on_cuda, helper_files, labs, run_helper_tests, run_on
from .settings import QUICK, settings_of

HELPERS = ROOT / "helpers"
CHOSEN = [HELPERS, *(path for path in labs() if (runs_whole() or path.stem in QUICK) and depends_on_cuda(path))]


@pytest.mark.slow
@pytest.mark.parametrize("path", sample(CHOSEN, one_in=2 * len(CHOSEN)), ids=lambda path: path.stem)
def test_cuda_lines_are_executed_in_one_of_the_settings(path):
    runs = run_helper_tests() if path == HELPERS else [run_on(setting, path) for setting in settings_of(path)]
    for run in runs:
        assert run.returncode == 0, run.output[-5000:]
    coverage = Coverage(helper_files() if path == HELPERS else [path], runs)
    assert len(coverage.executed) > (100 if path == HELPERS else 0)
    assert not coverage.missed, str(coverage)
    assert not coverage.stale, str(coverage)
