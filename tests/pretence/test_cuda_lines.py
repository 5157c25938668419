"""Every line of helpers and labs that depends on CUDA is executed on a pretended GPU, or there is a reason."""

import pytest

from tests.sampling import runs_whole, sample

from .coverage import Coverage, helper_files, run_helper_tests, run_on, sources
from .settings import QUICK, settings_of


@pytest.mark.slow
def test_helpers_tests_of_cuda_pass_and_execute_every_branch():
    runs = run_helper_tests()
    for run in runs:
        assert run.returncode == 0, run.output[-5000:]
    coverage = Coverage(helper_files(), runs)
    assert len(coverage.executed) > 100
    assert not coverage.missed, str(coverage)
    assert not coverage.stale, str(coverage)


LABS = [path for path in sources() if runs_whole() or path.stem in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("path", sample(LABS, one_in=len(LABS)), ids=lambda path: path.stem)
def test_a_labs_cuda_lines_are_executed_in_one_of_the_settings(path):
    runs = [run_on(setting, path) for setting in settings_of(path)]
    for run in runs:
        assert run.returncode == 0, run.output[-5000:]
    coverage = Coverage([path], runs)
    assert coverage.executed
    assert not coverage.missed, str(coverage)
    assert not coverage.stale, str(coverage)
