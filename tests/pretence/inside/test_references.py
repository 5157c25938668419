"""The checks accept their own reference on a GPU, too: its random numbers, rounding and kernels are others."""

from helpers.exercises.checking import find_part

import pytest

from tests.mutants import reference_text, run_answers, topics, verdicts
from tests.sampling import sample

PARTS = sorted({m.part for answers in topics().values() for m in answers.mutants if not find_part(m.part).missing})


@pytest.mark.parametrize("part", sample(PARTS, one_in=48, topic=lambda part: part.partition(".")[0]))
def test_a_reference_passes_beside_a_gpu(part):
    names = run_answers(reference_text(part))
    assert [(v.check, v.diagnosis) for v in verdicts(part, names, seed=3) if not v.passed] == []
