"""Which blocks of a model are alike: what they are made of, module by module, as transformers builds them.

Blocks of a kind have the same modules, with the same parameters and the same settings. Where kinds take turns, as in
models whose every other block looks back a few thousand tokens only, the pattern repeats after a period of several.
"""

import json
from typing import Any

import torch
from torch import nn

from ..catalog.models import ModelSpec
from ..config import TrainingConfig

FEW = 3  # blocks of the shallower copy: the first, the last, and one between them, since the ends differ
MOST = 8  # the longest period that is looked for
_NUMBERS = ("idx", "layer_id", "layer_number")  # parts of the names under which a block keeps its own number
# T5's blocks share a bias whose gradients are added up; in the backward pass, the second block has none to free yet.
_SHARED = "relative_attention_num_buckets"
_Kind = tuple[Any, ...]
_compared: dict[tuple[Any, ...], tuple[int, int] | None] = {}  # a search plans many recipes for one model


def compared_depths(recipe: TrainingConfig, spec: ModelSpec) -> tuple[int, int] | None:
    """Return the numbers of blocks of two copies, a period apart, that show what each block adds; None without any.

    Both are as far from the model's own number as whole periods reach, and shorter than it.
    """
    if spec.config is None:
        return None
    built_of = recipe.attention, recipe.image_size, recipe.dropout  # all of a recipe that a model is built of
    known = spec.kind, spec.called, json.dumps(spec.config.to_dict(), default=str), *built_of
    if known not in _compared:
        _compared[known] = _compare(recipe, spec)
    return _compared[known]


def _compare(recipe: TrainingConfig, spec: ModelSpec) -> tuple[int, int] | None:
    kinds = _kinds(recipe, spec)
    period = next((n for n in range(1, MOST + 1) if kinds and _repeats(kinds, n)), 0)
    if not period:
        return None
    least = FEW + hasattr(spec.config, _SHARED)
    few = least + (spec.layers - least) % period
    if 2 * few + period >= spec.layers:  # nothing would be saved
        return None
    for layers in (few, few + period):
        if _kinds(recipe, spec.with_layers(layers)) != [*kinds[: layers - 1], kinds[-1]]:
            return None
    return few, few + period


def _repeats(kinds: list[_Kind], period: int) -> bool:
    """Return whether each block but those at the ends is as the one a period later."""
    inner = kinds[1:-1]
    return len(inner) > 2 * period and inner[:-period] == inner[period:]


def _kinds(recipe: TrainingConfig, spec: ModelSpec) -> list[_Kind]:
    """Return what each block of a model is made of; nothing where it has no list of so many blocks, or several.

    The blocks of an encoder and its decoder of equal depth are counted in pairs.
    """
    try:
        model = spec.build(recipe, torch.float32)
    except Exception:  # model classes raise anything; what runs the model reports it
        return []
    lists: list[nn.ModuleList] = []
    inside: set[nn.Module] = set()  # of the lists: a block's own few parts are no list of blocks
    for each in model.modules():  # a list comes before what is in it
        if isinstance(each, nn.ModuleList) and len(each) == spec.layers and each not in inside:
            lists.append(each)
            inside.update(each.modules())
    if len(lists) != (2 if spec.pair else 1):
        return []
    return [tuple(part for block in blocks for part in _kind(block)) for blocks in zip(*lists, strict=True)]


def _kind(block: nn.Module) -> _Kind:
    return tuple((name, *_made_of(module)) for name, module in block.named_modules())


def _made_of(module: nn.Module) -> _Kind:
    """Return the class of a module, its own parameters, and its plain settings."""
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors)
    settings = tuple(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and not any(part in name for part in _NUMBERS)
    )
    return type(module).__name__, shapes, settings
