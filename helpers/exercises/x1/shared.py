"""What the checks of several parts use: the three precisions, a model and its data, a scaler."""

import torch
from torch import Tensor, nn

from ...core.data import digits
from ...core.device import pick_device
from ...core.models import SmallCNN

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CLIP_OFF = 1e6  # a max_norm that no gradient reaches


class Shifted(SmallCNN):
    """A small CNN with a parameter in neither of its parts, whose gradient is not small."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.shift = nn.Parameter(torch.zeros(10))

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 1, H, H) to logits (B, 10)."""
        logits = super().forward(images)
        return logits + (4 * self.shift).to(logits.dtype)


class CountingScaler(torch.amp.GradScaler):
    """PyTorch's own scaler, which counts its updates."""

    updates = 0

    def update(self, new_scale: float | Tensor | None = None) -> None:
        self.updates += 1
        super().update(new_scale)


def scaler_for(dtype: torch.dtype, init_scale: float = 2.0**10) -> CountingScaler | None:
    """Return PyTorch's own scaler, which never grows here, for FP16; None for a dtype that needs none."""
    if dtype != torch.float16:
        return None
    return CountingScaler(pick_device().type, init_scale=init_scale, growth_interval=10**6)


def setting(
    seed: int, lr: float = 1.0, momentum: float = 0.0, rows: int = 37, kind: type[SmallCNN] = SmallCNN
) -> tuple[SmallCNN, list[torch.optim.Optimizer], Tensor, Tensor]:
    """Return a small CNN, SGD for its features and SGD for the rest, and 37 digits with their labels.

    They are the same for a seed. The first optimizer has two groups of parameters. Autocast is off: an answer that was
    checked before may have left it on.
    """
    torch.manual_seed(seed)
    device = pick_device()
    torch.set_autocast_enabled(device.type, False)
    model = kind(width=8).to(device)
    features = list(model.features.parameters())
    others = [p for name, p in model.named_parameters() if not name.startswith("features.")]
    groups = [{"params": features[3:]}, {"params": features[:3]}]  # the first layer is in the second
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(groups, lr=lr, momentum=momentum),
        torch.optim.SGD(others, lr=lr, momentum=momentum),
    ]
    data = digits(device)
    index = torch.randint(len(data.train_x), (rows,))
    return model, optimizers, data.train_x[index], data.train_y[index]
