"""A lab's solution, dry: each cell has the allocated peak that it has computed, or a value was missing on its way."""

import json
import os
import subprocess
import sys

from helpers.core.files import ROOT

import pytest

from ..sampling import sample
from .solution_cells import __file__ as program

SECONDS = 120  # of the processor, after which no further cell is computed
LABS = (
    "00_start_here",
    "01_where_memory_goes",
    "03_mixed_precision",
    "04_gradient_accumulation",
    "05_activation_checkpointing",
)


def rows_of(solution, *options):
    done = subprocess.run(
        [sys.executable, program, str(ROOT / "solutions" / f"{solution}.py"), *options, "--seconds", str(SECONDS)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("solution", sample(LABS, one_in=len(LABS)))
def test_cells_have_the_same_peaks(solution):
    dry, computed = rows_of(solution, "--dry"), rows_of(solution)
    assert sum(peak > 0 for _, peak, _, _ in computed) > 3
    missing = {name for name, _, _, error in dry if error} - {name for name, _, _, error in computed if error}
    ends = next((number for number, row in enumerate(dry) if row[0] in missing), min(len(dry), len(computed)))
    assert ends > 10
    assert [row[:2] for row in dry[:ends]] == [row[:2] for row in computed[:ends]]
