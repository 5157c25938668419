"""Objects that reach worker processes wherever they were defined."""

import pickle

from helpers import PickledByValue

import pytest


def test_a_lambda_is_pickled_and_arrives_as_itself():
    double = PickledByValue(lambda x: 2 * x)
    arrived = pickle.loads(pickle.dumps(double))
    assert arrived(4) == double(4) == 8
    assert not isinstance(arrived, PickledByValue)
    assert (len(PickledByValue([1, 2])), PickledByValue([1, 2])[1]) == (2, 2)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(lambda x: x)
