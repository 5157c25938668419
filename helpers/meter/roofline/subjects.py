"""What is run to find out what a machine can do: layers as networks have them, in three sizes.

Each function here runs a forward and a backward pass. Which operations that makes is up to PyTorch and the device, so
nobody lists them: `timed` sees them, and takes the seconds of each.
"""

import functools
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

Subject = Callable[[], object]
# (rows, width), (images, channels, side) and (batch, length, head); the largest leave the cache.
_ROWS = {
    "cpu": ((32, 32), (128, 64), (512, 128), (1024, 512), (4096, 512)),
    "gpu": ((256, 256), (1024, 1024), (4096, 4096), (16384, 8192)),
}
_IMAGES = {
    "cpu": ((8, 16, 8), (32, 16, 32), (16, 32, 16), (16, 64, 16)),
    "gpu": ((16, 32, 32), (64, 128, 32), (64, 256, 64)),
}
_HEADS = {"cpu": ((8, 16, 16), (32, 64, 32), (8, 256, 64)), "gpu": ((32, 128, 64), (64, 1024, 64), (64, 4096, 128))}
_WEIGHTS = 6  # that an optimizer goes through, one after another


def subjects(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[tuple[object, ...], Subject]]:
    """Yield everything to be run in `dtype`, each with a name; the small sizes first."""
    size = "cpu" if device.type == "cpu" else "gpu"
    place = {"device": device, "dtype": dtype}
    for run, sizes in ((_vectors, _ROWS), (_images, _IMAGES), (_attention, _HEADS)):
        for numbers in sizes[size]:
            yield (run.__name__, dtype, *numbers), functools.partial(run, *numbers, place)
    if dtype == torch.float32:  # of weights, as mixed precision has them
        for numbers in _ROWS[size][:-1]:
            yield ("_optimizers", *numbers), functools.partial(_optimizers, *numbers, place)


def _vectors(rows: int, width: int, place: dict) -> None:
    """Run what layers do to vectors one by one, on x (rows, width)."""
    x = torch.randn(rows, width, **place, requires_grad=True)
    scale, bias = (nn.Parameter(torch.ones(width, **place)) for _ in range(2))
    ids = torch.randint(width, (rows,), device=x.device)
    h = F.layer_norm(x + F.embedding(ids, x), (width,), scale, bias)
    h = F.gelu(h) + F.dropout(F.silu(h) + bias) + F.relu(h) * x
    heads = torch.cat(h.split(width // 4, dim=1), dim=1).view(rows, 4, width // 4).transpose(0, 1).contiguous()
    other = torch.bfloat16 if x.dtype == torch.float32 else torch.float32  # as autocast converts
    (F.softmax(heads, dim=-1).to(other).mean() + F.cross_entropy(h, ids)).backward()


def _optimizers(rows: int, width: int, place: dict) -> None:
    """Run what two optimizers do to weights (rows, width)."""
    weights = [torch.randn(rows, width, **place, requires_grad=True) for _ in range(_WEIGHTS)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    for optimizer in (torch.optim.AdamW(weights), torch.optim.SGD(weights, lr=1e-3, momentum=0.9)):
        for _ in range(2):  # the first step makes the state
            optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def _images(images: int, channels: int, side: int, place: dict) -> None:
    """Run a stage of a convolutional network on x (images, channels, side, side), and patches of a transformer."""
    x = torch.randn(images, channels, side, side, **place, requires_grad=True)
    gray = torch.randn(images, 1, side, side, **place)
    layers = nn.Sequential(
        nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * channels, channels, 1),
        nn.AdaptiveAvgPool2d(1),
    ).to(**place)
    first, patches = nn.Conv2d(1, channels, 3, padding=1).to(**place), nn.Conv2d(1, channels, 4, stride=4).to(**place)
    (layers(x + first(gray)).mean() + patches(gray).mean()).backward()


def _attention(batch: int, length: int, head: int, place: dict) -> None:
    """Run attention, causal and not, on 4 heads of q, k, v (batch, 4, length, head)."""
    q, k, v = (torch.randn(batch, 4, length, head, **place, requires_grad=True) for _ in range(3))
    for causal in (False, True):
        F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()


def tiny_step(device: torch.device) -> Subject:
    """Return a training step whose tensors are so small that it is Python, autograd and the dispatcher all the way."""
    width = 8
    model = nn.Sequential(
        *(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(8))
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, targets = torch.randn(4, width, device=device), torch.randint(width, (4,), device=device)

    def step() -> None:
        F.cross_entropy(model(x), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
