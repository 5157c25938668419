"""Runs where Megatron Core is installed: its own parser reads ./planned.args and checks that they go together.

Prints JSON: a few of the parsed values, and how many data-parallel ranks it makes of so many GPUs.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from megatron.training.arguments import parse_args, validate_args

os.environ |= {"WORLD_SIZE": sys.argv[1], "RANK": "0", "LOCAL_RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
lines = Path("planned.args").read_text(encoding="utf-8").splitlines()
sys.argv = ["pretrain_gpt.py", *(word for line in lines if not line.startswith("#") for word in line.split())]
torch.cuda.get_device_capability = lambda *device: (9, 0)  # it asks which GPU; there is none
torch.cuda.get_device_properties = lambda *device: SimpleNamespace(major=9, minor=0)
args = parse_args()
validate_args(args)
names = (
    "data_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "cp_comm_type",
    "expert_model_parallel_size",
    "num_layers",
    "kv_channels",
    "num_query_groups",
    "swiglu",
    "normalization",
    "sequence_parallel",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "moe_layer_freq",
    "recompute_granularity",
    "attention_backend",
    "attention_dropout",
    "fp8",
    "bf16",
    "fp16",
)
print(json.dumps({name: getattr(args, name, None) for name in names}, default=str))
