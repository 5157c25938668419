"""A place for saved tensors: a GPU's go to the host's memory, a CPU's to files."""

import tempfile
from typing import Any

import torch
from torch import Tensor


class Elsewhere:
    """Stores tensors of a GPU in the host's memory, and tensors of a CPU in files, one per tensor.

    Attributes:
        nbytes: the bytes that have been put here so far.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    def put(self, tensor: Tensor) -> Any:
        """Return a ticket for a copy of `tensor`. The copy is freed with its ticket."""
        self.nbytes += tensor.nbytes
        if tensor.device.type != "cpu":
            return tensor.device, tensor.cpu()
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (a file per tensor: it goes when the ticket goes)
        file.write(tensor.detach().contiguous().numpy())
        return file, tensor.shape, tensor.dtype

    def get(self, ticket: Any) -> Tensor:
        """Return the tensor of a ticket, on the device that it was on.

        Raises:
            OSError: a file is shorter than its tensor.
        """
        if isinstance(ticket[0], torch.device):
            device, copy = ticket
            return copy.to(device)
        file, shape, dtype = ticket
        tensor = torch.empty(shape, dtype=dtype)
        file.seek(0)
        if file.readinto(tensor.numpy()) != tensor.nbytes:
            raise OSError("The file is shorter than the tensor: is the disk full?")
        return tensor
