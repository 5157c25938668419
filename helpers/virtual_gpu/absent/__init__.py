"""What a script asks for and this machine does not have: weights, tokenizers and, on request, data sets.

    models.py      which shape a model has that is known by its name
    weights.py     `from_pretrained` without weights: transformers, timm, torchvision
    recipes.py     torchtune's checkpoints; checkpoints.py: litgpt's, and nanochat's tokenizer
    diffusion.py   models of diffusers
    processors.py  what prepares images and sound for a model
    tokenizer.py   a tokenizer with the vocabulary of the model; token_files.py: SentencePiece's and tiktoken's files
    data.py        `load_dataset` without the data set; columns.py: what its columns are called
    asked.py       columns that the program's code reads by name; named.py: those that its arguments name
    metrics.py     evaluate's metrics
    images.py      torchvision's and timm's data sets without files; annotations.py: COCO's and VOC's
    sound.py       sound without files; graphs.py: torch_geometric's data sets
    files.py       arrays and texts without files; folders.py: files that a program looks for
    tables.py      tables for numpy and pandas, and what gzip has compressed
    downloads.py   files from the web
    flash_attention.py   the package `flash_attn`

Whatever stands in for something is listed in the report. What is on this machine is used as it is.
"""

import functools
import logging
import socket
import threading
from typing import Any

from ..patches import Patches
from ..waits import Waits
from . import (
    annotations,
    checkpoints,
    data,
    diffusion,
    files,
    flash_attention,
    folders,
    graphs,
    images,
    metrics,
    recipes,
    sound,
    tables,
    token_files,
    tokenizer,
    weights,
)

_HUB = "huggingface.co"


def install(patches: Patches, waits: Waits, *, fake_data: bool) -> None:
    """Let models be built without their weights and, with `fake_data`, let data sets be made up.

    Args:
        patches: puts everything back later.
        waits: is told what stands in for what.
        fake_data: whether data sets that are not there are replaced.
    """
    patches.after_import("huggingface_hub.constants", _leave_the_hub_alone)
    _silence(patches, "bitsandbytes")  # which says at length that it finds no CUDA
    weights.install(patches, waits)
    recipes.install(patches, waits)
    checkpoints.install(patches, waits)
    flash_attention.install(patches, waits)
    tokenizer.install(patches, waits)
    token_files.install(patches, waits)
    diffusion.install(patches, waits)
    metrics.install(patches, waits)
    if fake_data:
        data.install(patches, waits)
        images.install(patches, waits)
        annotations.install(patches, waits)
        sound.install(patches, waits)
        graphs.install(patches, waits)
        files.install(patches, waits)
        folders.install(patches, waits)
        tables.install(patches, waits)


def _leave_the_hub_alone(patches: Patches, constants: Any) -> None:
    """Ask a hub that cannot be reached for nothing: each question would be repeated for a minute."""
    if not constants.HF_HUB_OFFLINE and not _is_known(_HUB):
        patches.put(constants, "HF_HUB_OFFLINE", True)


def _silence(patches: Patches, name: str) -> None:
    logger = logging.getLogger(name)
    patches.later(functools.partial(logger.setLevel, logger.level))
    logger.setLevel(logging.CRITICAL)


def _is_known(host: str, seconds: float = 3.0) -> bool:
    """Return whether the address of `host` is found in time."""
    found = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, 443))
        except OSError:
            return

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(found)
