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


def test_attributes_reach_the_value_so_that_a_forked_worker_can_seed_it():
    class Draws(list):
        seed = 0

        def __getitems__(self, indices):
            return [self[i] for i in indices]

    value = Draws([5, 6, 7])
    stand_in = PickledByValue(value)
    stand_in.seed = 3
    assert (value.seed, stand_in.seed) == (3, 3)
    assert stand_in.__getitems__([2, 0]) == [7, 5]  # PyTorch asks for it before it fetches a batch
    assert not hasattr(PickledByValue([1]), "__getitems__")
    assert not isinstance(pickle.loads(pickle.dumps(PickledByValue([1]))), PickledByValue)
