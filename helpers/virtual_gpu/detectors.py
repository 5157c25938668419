"""torchvision's detectors draw a fixed number of boxes from those that match, and a dry run does not know which do.

It assumes that there are enough of either kind: a quarter of a picture's 512 boxes, say, holds an object, as the
sampler wants it. Otherwise all boxes would count as objects, and the heads would get too many of them.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from .hollow import is_hollow
from .patches import Patches


def install(patches: Patches) -> None:
    """Teach torchvision as soon as its detectors are imported."""
    patches.after_import("torchvision.models.detection._utils", _sample)
    patches.after_import("torchvision.models.detection.roi_heads", _label)


def _sample(patches: Patches, module: Any) -> None:
    owner = module.BalancedPositiveNegativeSampler
    base = owner.__call__

    @functools.wraps(base)
    def sampled(self: Any, matched_idxs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        chosen = base(self, matched_idxs)
        if not any(map(is_hollow, matched_idxs)):
            return chosen
        return _halves(matched_idxs, self)

    patches.put(owner, "__call__", sampled)


def _halves(matched: list[Tensor], sampler: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return two masks for each picture: of the boxes with an object, and of those without, in the sampler's shares."""
    kinds: tuple[list[Tensor], list[Tensor]] = ([], [])
    for boxes in matched:
        count = min(boxes.numel(), sampler.batch_size_per_image)
        objects = int(count * sampler.positive_fraction)
        for masks, first, end in zip(kinds, (0, objects), (objects, count), strict=True):
            mask = torch.zeros(boxes.shape, dtype=torch.uint8)
            mask[first:end] = 1
            masks.append(mask.to(boxes.device))
    return kinds


def _label(patches: Patches, module: Any) -> None:
    owner = module.RoIHeads
    base = owner.select_training_samples

    @functools.wraps(base)
    def select_training_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        proposals, matched, labels, targets = base(self, *args, **kwargs)
        share = self.fg_bg_sampler.positive_fraction
        labels = [_known(kind, share) if is_hollow(kind) else kind for kind in labels]
        return proposals, matched, labels, targets

    patches.put(owner, "select_training_samples", select_training_samples)


def _known(labels: Tensor, share: float) -> Tensor:
    """Return labels of as many boxes: an object's for this share of them, the background's for the others."""
    objects = torch.arange(labels.numel()) < int(labels.numel() * share)
    return objects.to(labels.dtype).to(labels.device)
