"""The model that is sharded.

Its sizes are odd, one is smaller than the number of ranks, and a name is not PyTorch's. The model, its blocks and a
layer of buffers alone draw numbers of their own; one buffer is not saved, and one is an integer. Dropout drops nothing:
what counts is its mode.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

VOCABULARY, WIDTH, BLOCKS, LENGTH = 37, 30, 2, 6  # no size is a multiple of 4


class Scale(nn.Module):
    """Multiplies by a factor per channel, drawn around one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.gain, 1.0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],)) * self.gain


class Places(nn.Module):
    """Adds a wave to each position, from a table that is not saved, and a phase and a key that are drawn and saved."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.empty(LENGTH, width), persistent=False)
        self.register_buffer("phase", torch.empty(width))
        self.register_buffer("key", torch.empty((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        angles = torch.arange(LENGTH)[:, None] * torch.linspace(0.1, math.pi, self.table.shape[1])
        self.table.copy_(angles.sin())
        self.phase.normal_()
        self.key.random_()

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.table[: x.shape[1]] + self.phase).to(x.dtype)


class Block(nn.Module):
    """x + down(gelu(up(scale(x)))) + offset, and the mean over earlier positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.up, self.down = Scale(width), nn.Linear(width, 3 * width - 1), nn.Linear(3 * width - 1, width)
        self.offset = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.offset, 0.0, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.scale(x)
        h = h.cumsum(1) / torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype)[:, None]
        return x + self.down(F.gelu(self.up(h))) + self.offset


class Model(nn.Module):
    """A causal model of tokens."""

    def __init__(self, width: int = WIDTH, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), Places(width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.scale, self.head = Scale(width), nn.Linear(width, VOCABULARY, bias=False)
        self.first = nn.Parameter(torch.empty(1, width))  # one row: most ranks have none of it
        self.drop = nn.Dropout(0.0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.first, 0.0, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (n, T, VOCABULARY) for tokens (n, T)."""
        x = self.drop(self.places(self.embed(tokens) + self.first))
        for block in self.blocks:
            x = block(x)
        return self.head(self.scale(x))


def in_one_process(seed: int, model: nn.Module | None = None) -> nn.Module:
    """Return the model as one process initializes it."""
    model = model or Model()
    torch.manual_seed(seed)
    for layer in model.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return model


def mesh_of(shape: tuple[int, ...]) -> DeviceMesh:
    """Return a mesh of all ranks: shards, or replicas x shards, in which the ranks that share a copy are apart."""
    ranks = torch.arange(math.prod(shape)).view(shape[::-1])
    rows = ranks.mT.tolist() if len(shape) > 1 else ranks.tolist()
    return DeviceMesh("cpu", rows, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def sharded(seed: int, mesh: DeviceMesh, width: int = WIDTH, idle: bool = False) -> nn.Module:
    """Return the model of one process, sharded in FP32, as the parts that come after the first get it.

    With `idle`, one of its layers and a parameter are frozen, and no forward pass uses another layer.
    """
    model = in_one_process(seed, Model(width))
    if idle:
        model.blocks[0].spare = nn.Linear(8, 3)
        model.blocks[1].offset.requires_grad_(False)
        model.blocks[1].scale.requires_grad_(False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy())
    return fully_shard(model, mesh=mesh)


def local_of(full: Tensor, like: DTensor) -> Tensor:
    """Return this rank's part of a full tensor."""
    return distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None).to_local()
