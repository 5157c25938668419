"""The reference answers of solutions/12b_fully_shard.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import itertools
import tempfile
import warnings
from pathlib import Path
from helpers import Claims, GiB, MemoryMeter, MiB, ParallelConfig, Prediction, Recipe, check, device_name, hint, human_bytes, pick_device, planned, rank_device, ranks_device, run_ranks, show, show_table
from helpers.core.progress_line import progress_line
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
from helpers.virtual_gpu.world import World
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm
from transformers import AutoModelForCausalLM, LlamaConfig

device = pick_device()
everywhere = ranks_device(4)
claims = Claims(device=everywhere)


def make_sharded(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # the other parameters, and the root that coordinates all units


def accumulated_step(model, optimizer, micro_batches, limit):
    rows, total = sum(len(x) for x, _ in micro_batches), 0.0
    for i, (x, y) in enumerate(micro_batches, 1):
        model.set_requires_gradient_sync(i == len(micro_batches))
        loss = F.mse_loss(model(x), y) * (len(x) / rows)
        loss.backward()
        total += loss.detach()
    norm = clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm.full_tensor()
