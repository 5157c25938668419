"""Real data that needs no download.

The digits are the 1,797 handwritten ones that come with scikit-learn (8 x 8 gray pixels, from the UCI repository). The
English text is Python's own reference manual, which comes with every Python for its `help()` function. The other kind
of text is the source code of its standard library.
"""

import importlib
import inspect
from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Inputs and targets of a training set and of a test set."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def digits(device: torch.device | str = "cpu", size: int = 8) -> Split:
    """Load the handwritten digits, shuffled in a fixed order.

    Args:
        size: side of the images. 8 is the original; larger ones are enlarged without smoothing.

    Returns:
        images (N, 1, size, size) of FP32 with mean 0 and deviation 1, labels (N,) of int64.
    """
    from sklearn.datasets import load_digits  # slow to import, and only this function needs it

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)  # (N, 1, 8, 8)
    images = (images - images.mean()) / images.std()
    if size != 8:
        images = torch.nn.functional.interpolate(images, size=(size, size), mode="nearest")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order].to(device), torch.tensor(data.target)[order].to(device)
    tests = len(images) // 4
    return Split(images[tests:], labels[tests:], images[:tests], labels[:tests])


def english(device: torch.device | str = "cpu") -> Split:
    """Load English text as bytes (a vocabulary of 256): several hundred thousand of them.

    Returns:
        token ids of int64: train_x (N,) and test_x (M,); the targets are the same ids shifted by one.
    """
    from pydoc_data.topics import topics

    return _as_bytes("\n\n".join(topics[name] for name in sorted(topics)), device)


# modules that are one file of Python in every version
_MODULES = (
    "argparse",
    "ast",
    "calendar",
    "configparser",
    "csv",
    "dataclasses",
    "difflib",
    "fractions",
    "functools",
    "heapq",
    "inspect",
    "optparse",
    "pprint",
    "random",
    "shutil",
    "statistics",
    "tarfile",
    "textwrap",
    "threading",
    "typing",
)


def python_source(device: torch.device | str = "cpu") -> Split:
    """Load Python source code as bytes (a vocabulary of 256): about a million of them.

    Returns:
        token ids of int64, as `english` does.
    """
    return _as_bytes("\n\n".join(inspect.getsource(importlib.import_module(name)) for name in _MODULES), device)


def _as_bytes(text: str, device: torch.device | str) -> Split:
    ids = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long().to(device)
    tests = len(ids) // 10
    train, test = ids[tests:], ids[:tests]
    return Split(train[:-1], train[1:], test[:-1], test[1:])
