"""Functions that are timed in turns."""

import time

from helpers import in_turns
from helpers.meter.turns import Turns

import numpy as np
import pytest


def test_each_function_runs_once_per_round_after_a_warm_up():
    order = []
    taken = in_turns({"a": lambda: (order.append("a"), time.sleep(0.01)), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert [len(seconds) for seconds in taken.seconds.values()] == [3, 3]
    assert taken.seconds["a"].min() >= 0.01


def test_additional_time_is_compared_within_a_round():
    taken = Turns({"plain": np.array([1.0, 2.0, 4.0]), "twice": np.array([2.0, 4.0, 8.0]), "less": np.array([1, 1, 1])})
    assert taken.more_time("twice") == pytest.approx([100, 100, 100])
    assert taken.more_time("plain", "twice") == pytest.approx([-50, -50, -50])
    assert taken.more_time("less") == pytest.approx([-62.5, -50, -25])
