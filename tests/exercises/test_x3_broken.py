"""Each broken program shows the symptom that tells it from the others."""

from helpers.exercises.x3.broken import DIAGNOSES, PROGRAMS, ROWS, compare_diagnoses, observe, symptoms_table


def test_each_program_has_the_symptom_of_its_fault_alone():
    found = {PROGRAMS[name]: each for name, each in observe().items()}
    assert {d for d, s in found.items() if s.apart[-1] > 1e-3} == {2, 4}
    assert {d for d, s in found.items() if s.apart[0] > 0.1} == {2}
    assert {d for d, s in found.items() if s.seen == ROWS // 2} == {3}
    assert {d: s.all_reduces for d, s in found.items() if s.all_reduces != 1} == {4: 0, 5: 4}
    assert {d for d, s in found.items() if s.length > 2} == {6}
    assert all(last < first for first, last in (s.losses for s in found.values()))
    assert len(symptoms_table({"A": found[1]})) == 2


def test_answers_are_compared(capsys):
    compare_diagnoses(PROGRAMS | {"A": None, "B": 0})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "A: no answer yet"
    assert said[1].endswith("not 0")
    assert said[-1] == "4 of 6 are right"
    compare_diagnoses(dict.fromkeys(PROGRAMS))
    assert not any(words in capsys.readouterr().out for words in DIAGNOSES.values())
    assert set(PROGRAMS.values()) == set(DIAGNOSES)
