"""Context managers around a simulation: what would disturb it is switched off, and comes back afterwards."""

import contextlib
import gc
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from ...meter.count import Count


@contextlib.contextmanager
def default_modes() -> Iterator[None]:
    """Undo what the caller may have switched: gradients, inference mode, autocast, a default device."""
    device = contextlib.nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    autocast = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    try:
        with torch.inference_mode(False), torch.enable_grad(), device:
            yield
    finally:
        torch.set_autocast_enabled("cpu", autocast)


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Switch the cyclic garbage collector off: it would scan millions of live objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from logging advice about models that are never used."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def no_compiler() -> Iterator[None]:
    """Keep transformers from taking fake tensors for a compiler's, and from reading them.

    For a compiler, which must handle any batch, it makes an attention mask that a real run without padding leaves out.
    Version 4 looks for padding in the token ids, to warn of it, and version 5 compares the number of image tokens with
    that of an image's patches; a fake tensor has no values to look at.
    """
    with contextlib.ExitStack() as patches:
        patches.enter_context(patch.dict(os.environ, TRANSFORMERS_DISABLE_TORCH_CHECK="1"))
        if masks := sys.modules.get("transformers.masking_utils"):  # loaded with the model, if the model needs it
            patches.enter_context(patch.object(masks, "is_tracing", lambda *_: False, create=True))
        if models := sys.modules.get("transformers.modeling_utils"):
            silent = patch.object(models.PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_: None)
            patches.enter_context(silent)
        yield


@contextlib.contextmanager
def resizing_counted(count: Count) -> Iterator[None]:
    """Let `count` see `storage.resize_`, with which `fully_shard` frees and fills its gathered parameters."""
    plain = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> None:
        plain(storage, size)
        count.track_storage(storage, storage._cdata, "weight copies")

    torch.UntypedStorage.resize_ = resize
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = plain


@contextlib.contextmanager
def shapes_uncounted() -> Iterator[None]:
    """Let no mode see the tensors of full size on which DTensors work out the shapes of their results.

    They have no memory on a GPU. PyTorch keeps what it found out, so in a process they would be seen only once.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.utils._python_dispatch import _disable_current_modes

    name = "_propagate_tensor_meta_non_cached"
    work_out = getattr(ShardingPropagator, name, None)
    if work_out is None:
        yield
        return

    def unseen(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return work_out(*args, **kwargs)

    setattr(ShardingPropagator, name, unseen)
    try:
        yield
    finally:
        setattr(ShardingPropagator, name, work_out)
