"""Pictures of the lab on data loading."""

from helpers import loader_path, padded_and_packed

import numpy as np
import torch


def test_padding_and_packing_are_counted():
    lengths = np.array([4, 10, 2, 3, 5])
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 2, -1]])
    padded, packed = padded_and_packed(lengths, document).axes
    assert padded.get_title() == "padded: 75% tokens, from 2 documents"  # the second one is cut off at 8
    assert packed.get_title() == "packed: 94% tokens, from 3 documents"
    assert (padded.images[0].get_array() == 0).sum() == 4
    assert (packed.images[0].get_array() == 0).sum() == 1


def test_a_batch_passes_everybody_in_order():
    (axes,) = loader_path().axes
    stations = {text.get_text().partition(":")[0]: text.get_position()[0] for text in axes.texts}
    way = ("main process", "worker 0", "shared memory", "thread", "the loop")
    assert sorted(way, key=stations.get) == list(way)
    assert stations["worker 0"] == stations["worker 1"]
