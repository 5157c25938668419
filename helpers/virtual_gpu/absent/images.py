"""Data sets of images without files: torchvision's classes and timm's `create_dataset`."""

import inspect
from typing import Any

import numpy as np
import torch

from ..patches import Patches
from ..waits import Waits

SHAPES = {  # torchvision's class -> (side, channels, classes)
    "MNIST": (28, 1, 10),
    "FashionMNIST": (28, 1, 10),
    "KMNIST": (28, 1, 10),
    "EMNIST": (28, 1, 47),
    "CIFAR10": (32, 3, 10),
    "CIFAR100": (32, 3, 100),
    "SVHN": (32, 3, 10),
    "STL10": (96, 3, 10),
    "ImageFolder": (256, 3, 1000),
    "ImageNet": (256, 3, 1000),
    "Flowers102": (256, 3, 102),
    "Food101": (256, 3, 101),
    "OxfordIIITPet": (256, 3, 37),
    "CelebA": (178, 3, 40),
}
_ROWS = 4096
_IMAGES = {  # in the training split; scripts number them by heart
    "MNIST": 60_000,
    "FashionMNIST": 60_000,
    "KMNIST": 60_000,
    "CIFAR10": 50_000,
    "CIFAR100": 50_000,
    "SVHN": 73_257,
    "STL10": 5_000,
}


class MadeUpImages(torch.utils.data.Dataset):
    """Gray images with labels, transformed as the data set's would be."""

    def __init__(
        self, shape: tuple[int, int, int], transform: Any = None, target_transform: Any = None, rows: int = _ROWS
    ) -> None:
        self._side, self._channels, count = shape
        self._rows = rows
        self.transform, self.target_transform = transform, target_transform
        self.classes = [str(number) for number in range(count)]
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self._labels = [number % count for number in range(rows)]
        self.targets = self.labels = torch.tensor(self._labels) if self._channels == 1 else list(self._labels)
        self.imgs = self.samples = [(f"{number}.jpg", target) for number, target in enumerate(self._labels)]

    @property
    def data(self) -> Any:
        """All of the images in one array, as the small data sets of torchvision have them."""
        shape = (self._rows, self._side, self._side)
        return torch.zeros(shape, dtype=torch.uint8) if self._channels == 1 else np.zeros((*shape, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        from PIL import Image

        if index >= self._rows:
            raise IndexError(index)
        image = Image.new("L" if self._channels == 1 else "RGB", (self._side, self._side))
        target = self._labels[index]
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )


def install(patches: Patches, waits: Waits) -> None:
    """Teach torchvision and timm as soon as they are imported."""
    patches.after_import("torchvision.datasets", lambda p, module: teach_torchvision(p, module, waits))
    patches.after_import("timm.data.dataset_factory", lambda p, module: _timm(p, module, waits))


def teach_torchvision(patches: Patches, module: Any, waits: Waits) -> None:
    """Put classes into `torchvision.datasets` that make images up where they find none."""
    for name, shape in SHAPES.items():
        patches.put(module, name, _replaced(getattr(module, name), shape, waits))


def _replaced(base: Any, shape: tuple[int, int, int], waits: Waits) -> Any:
    class Replaced(base):  # `isinstance` and subclasses go on
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return base(*args, **kwargs)
            except (OSError, RuntimeError):
                waits.leave_out("data set", f"{base.__name__}: gray images")
                given = inspect.signature(base.__init__).bind_partial(None, *args, **kwargs).arguments
                rows = _IMAGES.get(base.__name__, _ROWS)
                return MadeUpImages(shape, given.get("transform"), given.get("target_transform"), rows)

    Replaced.__name__ = Replaced.__qualname__ = base.__name__
    return Replaced


def _timm(patches: Patches, module: Any, waits: Waits) -> None:
    base = module.create_dataset

    def create_dataset(name: str = "", *args: Any, **kwargs: Any) -> Any:
        try:
            return base(name, *args, **kwargs)
        except Exception:
            waits.leave_out("data set", f"{name or kwargs.get('root') or 'images'}: gray images")
            return MadeUpImages(SHAPES["ImageNet"])

    patches.put(module, "create_dataset", create_dataset)
