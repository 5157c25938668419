"""The list of clauses holds what the contracts say, and names every check; docs/checks.md is up to date."""

import importlib

from helpers.exercises.checking import find_part

import pytest

from .mutants import clauses, topics
from .mutants.contracts import contracts

EXERCISES = ("x1", "x2", "x3", "x4", "x5", "x6", "x7")


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_clause_has_its_judge_and_every_check_a_clause(exercise):
    found = contracts(exercise)
    parts = {part.name: {check.name() for check in part.checks} for part in exercise_parts(exercise)}
    assert found.keys() == parts.keys() - {"x6.survive"}  # which runs the answers of the other parts together
    for part, texts in found.items():
        assert len(texts) == len(clauses.JUDGED[part]), part
        named = {name for entry in clauses.JUDGED[part] for name in entry.split()}
        assert named - {clauses.GIVEN, clauses.UNCHECKED} == parts[part]


def exercise_parts(exercise):
    return importlib.import_module(f"helpers.exercises.{exercise}").PARTS


def test_clauses_end_where_the_contract_does():
    (opening, *_, last) = contracts("x1")["x1.compare"]
    assert opening.startswith("`train(precision, seed, epochs)` trains a fresh")
    assert last.endswith("(the meter slows its step down).")
    assert contracts("x3")["x3.epoch"][5].startswith("Gradients are averaged between ranks")


def test_what_one_check_alone_rejects_was_measured_on_mutants_that_there_are():
    for part, names in clauses.read_kept().items():
        assert len(find_part(part).checks) > 1
        assert set(names) <= {m.name for m in topics()[part.partition(".")[0]].mutants if m.part == part}


def test_the_page_is_up_to_date():
    assert clauses.PAGE.read_text(encoding="utf-8") == clauses.page(), "python -m tests.mutants.clauses"
