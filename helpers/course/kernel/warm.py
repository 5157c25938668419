"""Imported once in a sandbox, before any answer: what the checks of the exercise need, and the guard's notes of it.

Only this exercise's, because each submission pays for it: transformers and peft take three times as long as the rest.
"""

import importlib
import linecache  # noqa: F401 - used by tracebacks
import os
import random  # noqa: F401 - here so that the guard knows it
import tempfile  # noqa: F401

import cloudpickle  # noqa: F401
import numpy  # noqa: F401
import sklearn.datasets  # noqa: F401 - its joblib changes multiprocessing
import torch
import torch.distributed
import torch.nn.parallel
from IPython.core.inputtransformer2 import TransformerManager  # noqa: F401

from .dispatcher import Dispatcher
from .guard import Guard

importlib.import_module(f"helpers.exercises.{os.environ['GRADED_EXERCISE']}")
if os.environ["GRADED_EXERCISE"] == "x4":
    import helpers.planner.measure  # noqa: F401 - and the simulation, which a plan imports when it is asked for

    import peft  # noqa: F401
    import transformers.models.llama.modeling_llama

    transformers.LlamaForCausalLM, transformers.LlamaConfig  # noqa: B018 - loaded when first looked at
torch.utils.checkpoint  # noqa: B018
for _optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):  # the first of a kind wraps its step()
    _optimizer([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

GUARD, DISPATCHER = Guard(), Dispatcher()
