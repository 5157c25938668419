"""Streaming data sets that reach worker processes wherever they were defined."""

import pickle

from helpers import PickledStream

from torch.utils.data import DataLoader, IterableDataset


class Five(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def test_a_stream_is_iterated_here_and_arrives_as_itself():
    stream = PickledStream(Five())
    assert list(stream) == [0, 1, 2, 3, 4]
    assert type(pickle.loads(pickle.dumps(stream))).__name__ == "Five"


def test_each_worker_iterates_over_all_of_it():
    loader = DataLoader(PickledStream(Five()), None, num_workers=2, multiprocessing_context="spawn")
    assert sorted(loader) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
