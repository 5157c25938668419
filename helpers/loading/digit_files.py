"""The digits as a folder of image files would hold them: compressed, one by one, a few milliseconds away.

Most data sets are not tensors. They are files on a disk or across a network, to be fetched, decoded and augmented
sample by sample. `DigitFiles` does all three with scikit-learn's digits: the PNG files are real and so is the
decoding. Only the latency is simulated, by sleeping, because a course cannot bring its own network.

The class is in a module, not in a notebook cell, so that worker processes can find it however they were started.
"""

import functools
import io
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from ..core.data import digits


def decode(file: bytes) -> Tensor:
    """Decode one PNG file to an image (1, H, W) of FP32 in 0 to 1."""
    from matplotlib.image import imread  # imported here, so that a new process starts quickly

    return torch.from_numpy(imread(io.BytesIO(file))[None, ..., 0].copy())  # (H, W, 4): gray, so one channel is enough


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each of `images` (B, 1, H, W) by its own angle of `degrees` (B,)."""
    angle = torch.deg2rad(degrees).to(images)
    cos, sin, none = angle.cos(), angle.sin(), torch.zeros_like(angle)
    affine = torch.stack([cos, -sin, none, sin, cos, none], dim=1).view(-1, 2, 3)
    return F.grid_sample(images, F.affine_grid(affine, list(images.shape), align_corners=False), align_corners=False)


@functools.cache
def _files(size: int) -> tuple[list[bytes], Tensor]:
    """Return all training digits as PNG files, and their labels."""
    from PIL import Image

    data = digits(size=size)
    low, high = data.train_x.min(), data.train_x.max()
    gray = (255 * (data.train_x - low) / (high - low)).byte()
    files = []
    for image in gray[:, 0].numpy():  # (size, size)
        file = io.BytesIO()
        Image.fromarray(image).convert("RGBA").save(file, "png")  # in colors, as cameras write them
        files.append(file.getvalue())
    return files, data.train_y


class DigitFiles(Dataset):
    """Handwritten digits as PNG files: sample i is (image (1, size, size) of FP32, label).

    Args:
        count: number of files, at most 1,348.
        latency: seconds that each read waits, as it would for a disk or a network; it uses no core.
        augmented: rotate each image by up to 20 degrees, drawn from `generator`.
        size: side of the images in pixels.
        logged: keep `reads` and `log`, which takes a part of the time of a read.

    Attributes:
        files: the PNG files.
        labels: (count,) of int64.
        generator: NumPy's, the data set's own. Each process that gets a copy of the data set gets a copy of it.
        reads: (count,) of int64: how often each sample was read, by whichever process.
        log: (count, 4) of FP64: start and end of each sample's last read (`time.perf_counter`), the process that read
            it, and the degrees that it drew (NaN for none). Like `reads`, it is shared with the workers.
    """

    def __init__(
        self, count: int = 1024, latency: float = 0.0, augmented: bool = True, size: int = 32, logged: bool = True
    ) -> None:
        files, labels = _files(size)
        self.files, self.labels = files[:count], labels[:count].clone()
        self.latency, self.augmented, self.logged = latency, augmented, logged
        self.log = torch.zeros(count, 4, dtype=torch.float64).share_memory_()
        self.reads = torch.zeros(count, dtype=torch.int64).share_memory_()
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Restart the data set's random numbers, in this process."""
        self.generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        start, degrees = time.perf_counter(), math.nan
        if self.latency:
            time.sleep(self.latency)
        image = decode(self.files[i])
        if self.augmented:
            degrees = self.generator.uniform(-20, 20)
            image = rotate(image[None], torch.tensor([degrees]))[0]
        if self.logged:
            self.reads[i] += 1
            self.log[i] = torch.tensor([start, time.perf_counter(), os.getpid(), degrees], dtype=torch.float64)
        return image, self.labels[i]
