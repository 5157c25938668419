"""Text as training on large corpora reads it: all documents end to end in one file of 16-bit tokens.

A corpus is larger than memory. So the file is *mapped*: it looks like an array, and the system fetches a page of it
from the disk when somebody reads there, and may drop the page again when memory is short. Two bytes are enough for a
vocabulary of up to 65,536 tokens.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset


class TokenFile(Dataset):
    """A data set of documents in a mapped file: item k is document k (T,) of int64.

    Args:
        path: a file that `write` has written.
        starts: (documents + 1,) of int64, where each document begins, and where the last one ends.

    Attributes:
        tokens: (N,) of uint16, the mapped file.
    """

    def __init__(self, path: Path, starts: np.ndarray) -> None:
        self.path, self.starts = path, starts
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")

    @classmethod
    def write(cls, path: Path, documents: Sequence[bytes], copies: int) -> "TokenFile":
        """Write the bytes of `documents` as tokens to `path`, `copies` times over, and map the file."""
        once = np.frombuffer(b"".join(documents), dtype=np.uint8).astype(np.uint16)
        with path.open("wb") as file:
            for _ in range(copies):
                file.write(once.tobytes())
            os.fsync(file.fileno())  # pages that are not on the disk yet cannot be dropped
        lengths = np.tile([len(document) for document in documents], copies)
        return cls(path, np.concatenate([[0], lengths.cumsum()]))

    def __reduce__(self) -> tuple:
        """Send a worker the path. Pickle would write out what is mapped, all of it."""
        return TokenFile, (self.path, self.starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, k: int) -> Tensor:
        return torch.from_numpy(self.tokens[self.starts[k] : self.starts[k + 1]].astype(np.int64))

    def forget(self) -> None:
        """Map the file anew, and ask the system to drop its pages: the next reads come from the disk again."""
        del self.tokens  # what is mapped is not dropped
        if hasattr(os, "posix_fadvise"):  # on Linux
            with self.path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
