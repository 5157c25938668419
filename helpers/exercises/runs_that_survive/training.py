"""A small training with everything that a real one has to keep: six parts, and none of them can be computed anew."""

import copy
import math
from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...core.data import digits

BATCH = 64


class Training:
    """A classifier of digits with dropout, AdamW, warm-up, and gradients in FP16 behind a scaler. It stays on the CPU.

    Attributes:
        losses: of the steps that this object has done.
    """

    PARTS = ("weights", "optimizer", "schedule", "scaler", "data position", "random state")

    def __init__(self, steps: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.2)]
        self.model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=4e-3)
        for p in self.model.parameters():
            p.register_hook(lambda gradient: gradient.half().float())
        half = math.pi / 2
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / 12) * math.cos(half * step / steps)
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21)
        data = digits()
        self.x, self.y, self.position = data.train_x, data.train_y, 0
        self.losses: list[float] = []

    def step(self) -> None:
        """Train on the next batch."""
        rows = slice(self.position, self.position + BATCH)  # (B, 1, 8, 8) and (B,)
        loss, scale = F.cross_entropy(self.model(self.x[rows]), self.y[rows]), self.scaler.get_scale()
        self.scaler.scale(loss).backward()  # a gradient above 65,504 becomes infinite
        self.scaler.step(self.optimizer)  # then this leaves the step out,
        self.scaler.update()  # and this halves the scale
        if self.scaler.get_scale() >= scale:
            self.schedule.step()
        self.optimizer.zero_grad()
        self.position = (self.position + BATCH) % (len(self.x) - BATCH)
        self.losses.append(loss.item())

    def state(self) -> dict[str, Any]:
        """Return a copy of everything that the rest of the run depends on."""
        parts = {
            "weights": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"},
            "scaler": self.scaler.state_dict(),
            "data position": self.position,
            "random state": torch.get_rng_state(),
        }
        return copy.deepcopy(parts)

    def load(self, state: dict[str, Any], without: Collection[str] = ()) -> None:
        """Restore all parts of `state` except those in `without`, which keep their initial values."""
        state = {part: copy.deepcopy(value) for part, value in state.items() if part not in without}
        for part, owner in (("weights", self.model), ("optimizer", self.optimizer), ("scaler", self.scaler)):
            if part in state:
                owner.load_state_dict(state[part])
        if "schedule" in state:
            self.schedule.load_state_dict({"lr_lambdas": [None], **state["schedule"]})
        self.position = state.get("data position", self.position)
        if "random state" in state:
            torch.set_rng_state(state["random state"])
