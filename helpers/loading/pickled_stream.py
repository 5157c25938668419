"""Send a streaming data set that was defined in a notebook cell to a worker, as `PickledByValue` sends others."""

from collections.abc import Iterator
from typing import Any

import cloudpickle
from torch.utils.data import IterableDataset


class PickledStream(IterableDataset):
    """A streaming data set that reaches workers wherever it was defined: `DataLoader(PickledStream(dataset), ...)`.

    It is iterated here, or in a worker that was forked; in a worker that was spawned it *is* `dataset`.
    """

    def __init__(self, dataset: IterableDataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        return cloudpickle.loads, (cloudpickle.dumps(self.dataset),)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)
