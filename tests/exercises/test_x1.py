"""X1's checks judge an answer by what it does, not by what an earlier one has left."""

from helpers.exercises.x1.compare import _wrong_accuracy

import pytest
import torch

from ..mutants import reference, run_answers, topics, verdicts


def judged(check, names):
    return [verdict.diagnosis for verdict in verdicts("x1.step", names, only=check)]


def test_modes_that_an_earlier_answer_left_do_not_count_against_the_next():
    torch.set_autocast_enabled("cpu", True)
    torch.set_grad_enabled(False)
    try:
        found = judged("forward_in_low_precision", vars(reference("x1.step")))
        assert torch.is_autocast_enabled("cpu")  # the notebook's own, put back
        assert not torch.is_grad_enabled()
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.set_grad_enabled(True)
    assert found == [None]


def test_autocast_left_on_by_one_call_is_reported_and_does_not_reach_the_next():
    left_on = next(m for m in topics()["x1"].mutants if m.name == "autocast left on")
    (diagnosis,) = judged("forward_in_low_precision", run_answers(left_on.source()))
    assert "autocast is still on" in diagnosis
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("reported", [0.9911, 0.96])
def test_a_model_that_was_never_in_evaluation_mode_has_one_diagnosis_whatever_it_reports(reported):
    got = {"right": [0.958, 0.958], "accuracy": reported, "tests": 449, "evaluated": 0}
    assert "never called in evaluation mode" in _wrong_accuracy("fp32", got, {"right": [0.96]})
    words = _wrong_accuracy("fp32", {**got, "evaluated": 449, "accuracy": 0.9911}, {"right": [0.96]})
    assert words == "it reports an accuracy of 0.9911, but its model gets 0.9580 of the test images right."
