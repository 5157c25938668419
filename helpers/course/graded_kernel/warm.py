"""Imported once in a sandbox, before any answer: what every check needs, and the guard's notes of it."""

import importlib
import linecache  # noqa: F401 - used by tracebacks
import os
import pkgutil
import random  # noqa: F401 - here so that the guard knows it
import tempfile  # noqa: F401
from pathlib import Path

import helpers
import helpers.exercises

import cloudpickle  # noqa: F401
import numpy  # noqa: F401
import peft  # noqa: F401
import sklearn.datasets  # noqa: F401 - its joblib changes multiprocessing
import torch
import torch.distributed
import torch.nn.parallel
import transformers
import transformers.models.llama.modeling_llama
from IPython.core.inputtransformer2 import TransformerManager  # noqa: F401

from .guard import Guard

for _module in pkgutil.iter_modules([str(Path(helpers.exercises.__file__).parent)]):
    if _module.name.startswith("x"):  # the graded ones
        importlib.import_module(f"helpers.exercises.{_module.name}")
transformers.LlamaForCausalLM, transformers.LlamaConfig  # noqa: B018 - loaded when first looked at
torch.utils.checkpoint, os  # noqa: B018
for _optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):  # the first of a kind wraps its step()
    _optimizer([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

GUARD = Guard()
