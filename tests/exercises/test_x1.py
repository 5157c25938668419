"""X1's checks judge an answer by what it does, not by what an earlier one has left."""

import torch

from ..mutants import reference, verdicts


def test_autocast_that_an_earlier_answer_left_on_does_not_count_against_the_next():
    torch.set_autocast_enabled("cpu", True)
    try:
        found = verdicts("x1.step", vars(reference("x1.step")), only="forward_in_low_precision")
    finally:
        torch.set_autocast_enabled("cpu", False)
    assert [verdict.diagnosis for verdict in found] == [None]
