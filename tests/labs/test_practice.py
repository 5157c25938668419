"""Practice checks carry no points and are held to the same standard: mutants die, right answers pass."""

import importlib
import inspect

import pytest

from ..mutants import activation_checkpointing as lab05
from ..mutants import assert_rejected, reference, run_answers, verdicts
from ..mutants import capstone as lab15
from ..mutants import compilation_and_fusion as lab09
from ..mutants import data_loading as lab07
from ..mutants import data_parallel as lab10
from ..mutants import fp8 as lab13
from ..mutants import gradient_accumulation as lab04
from ..mutants import lean_optimizers as lab08
from ..mutants import lora as lab14
from ..mutants import mixed_precision as lab03
from ..mutants import number_formats as lab02
from ..mutants import profiling_and_oom_clinic as lab06
from ..mutants import sharding as lab12
from ..mutants import start_here as lab00
from ..mutants import tensor_parallel as lab11
from ..mutants import where_memory_goes as lab01

LABS = (lab00, lab01, lab02, lab03, lab04, lab05, lab06, lab07, lab08, lab09, lab10, lab11, lab12, lab13, lab14, lab15)
MUTANTS = [mutant for lab in LABS for mutant in lab.MUTANTS]
RIGHT = [(lab, name) for lab in LABS for name in lab.RIGHT]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.part}-{m.name}".replace(" ", "-"))
def test_mutant_is_rejected(mutant):
    assert_rejected(mutant)


@pytest.mark.parametrize(("lab", "name"), RIGHT, ids=lambda x: x if isinstance(x, str) else "")
def test_differently_written_right_answers_pass(lab, name):
    names = run_answers(lab.RIGHT[name])
    for part in {mutant.part for mutant in lab.MUTANTS}:
        assert [v.diagnosis for v in verdicts(part, names, seed=5) if not v.passed] == []


@pytest.mark.parametrize("part", sorted({mutant.part for mutant in MUTANTS}))
def test_reference_passes(part):
    assert all(v.passed for v in verdicts(part, run_answers(inspect.getsource(reference(part)))))


def test_every_check_has_mutants_and_two_right_answers():
    modules = [importlib.import_module(f"helpers.exercises.{lab.__name__.rpartition('.')[2]}") for lab in LABS]
    checks = {(p.name, c.name()) for module in modules for p in module.PARTS for c in p.checks}
    assert {(m.part, m.rejected_by) for m in MUTANTS} == checks
    assert all(len(lab.RIGHT) >= 2 for lab in LABS)
