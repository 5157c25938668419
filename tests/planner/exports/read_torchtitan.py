"""Runs where torchtitan is installed: its own parser reads ./planned.py, and its own code splits the model on meta.

Prints JSON: the parsed numbers, the parameters of the model and of rank 0, the blocks in each of that rank's stages.
"""

import json
import os
import sys

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config import ConfigManager
from torchtitan.distributed import parallel_dims
from torchtitan.distributed import utils as distributed

ranks, how = int(sys.argv[1]), sys.argv[2]
os.environ |= {"WORLD_SIZE": str(ranks), "RANK": "0", "LOCAL_RANK": "0"}
if how == "fp8":  # else it wants a GPU that can
    from torchtitan.components.quantization import float8

    float8.has_cuda_capability = lambda *version: True
# The backend that a released PyTorch can run; torchtitan's default wants a nightly one.
arguments = ["--module", "planned", "--config", "planned", "--parallelism.spmd-backend", "partial_dtensor"]
config = ConfigManager().parse_args(arguments)
told = {
    "batch": [config.training.local_batch_size, config.training.global_batch_size, config.training.seq_len],
    "dtypes": [config.training.dtype, config.training.mixed_precision_param],
    "recompute": type(config.activation_checkpoint).__qualname__,
    "compile": config.compile.enable,
}
if how == "split":
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    parallel_dims.device_type = "cpu"
    grid = parallel_dims.ParallelDims.from_config(config.parallelism, ranks)
    grid.build_mesh()
    distributed.set_spmd_backend(config.parallelism.spmd_backend)
    spec = config.model_spec
    spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = spec.model.build()
    told["parameters"] = sum(p.numel() for p in model.parameters())
    options = {
        "parallel_dims": grid,
        "training": config.training,
        "parallelism": config.parallelism,
        "compile_config": config.compile,
        "ac_config": config.activation_checkpoint,
        "dump_folder": ".",
    }
    parts = [model]
    if grid.pp_enabled:
        schedule, parts, *_ = spec.pipelining_fn(
            model,
            device=torch.device("meta"),
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=lambda *outputs: None,
            **options,
        )
        told["schedule"] = [type(schedule).__name__, schedule._n_microbatches]
    else:
        spec.parallelize_fn(model, **options)
    told["blocks"] = [len(part.layers) for part in parts]
    mine = [getattr(p, "_local_tensor", p) for part in parts for p in part.parameters()]
    told["mine"] = sum(p.numel() for p in mine)
print(json.dumps(told))
