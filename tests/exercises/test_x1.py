"""X1's checks judge an answer by what it does, not by what an earlier one has left."""

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
