"""Runs where DeepSpeed is installed: its own classes read ./ds_config.json for so many ranks.

Prints JSON: the parsed values.
"""

import json
import os
import sys
from types import SimpleNamespace

os.environ["DS_ACCELERATOR"] = "cpu"

from deepspeed import comm
from deepspeed.runtime.config import DeepSpeedConfig

comm.get_rank = lambda: 0  # there are no other ranks here
mpu = SimpleNamespace(get_data_parallel_world_size=lambda: int(sys.argv[1]))
config = DeepSpeedConfig("ds_config.json", mpu)
told = {
    "ranks": config.world_size,
    "stage": config.zero_optimization_stage,
    "batch": [
        config.train_micro_batch_size_per_gpu,
        config.gradient_accumulation_steps,
        config.train_batch_size,
    ],
    "autocast": [config.torch_autocast_enabled, str(config.torch_autocast_dtype)],
    "bf16": config.bfloat16_config.enabled,
    "clip": config.gradient_clipping,
}
print(json.dumps(told))
