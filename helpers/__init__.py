"""Helpers of Training at Scale: what the notebooks import."""

import logging
import os
import warnings

# The memory meter reads the profiler's log. The profiler announces itself on stderr, and the CPU allocator
# warns when memory older than the log is freed; the meter knows about both, and learners need not see either.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Ask the driver whether there is a GPU: initialising CUDA here would break the processes forked from this one.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

if not torch.cuda.is_available():  # read when Triton is imported: its interpreter then runs kernels on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")

from .claims.claims import Claims
from .claims.lab_report import lab_report
from .claims.prediction import Prediction
from .core.colours import COLOURS
from .core.compiler import why_no_compiler, written_kernels
from .core.data import digits, english, python_source
from .core.device import device_name, pick_device, rank_device, supports
from .core.models import SmallCNN, SmallGPT, ViT
from .core.notebook import show
from .core.parallel_map import parallel_map
from .core.table import text_table
from .core.units import GiB, KiB, MiB, human_bytes
from .exercises import check
from .formats.float_format import FORMATS
from .formats.linear_log import LinearLog
from .formats.microscaling import E2M1, floor_power_of_two, quantize_blockwise, to_e2m1
from .formats.range_ruler import range_ruler
from .loading.digit_files import DigitFiles, decode, rotate
from .loading.loader_timeline import LoaderTimeline
from .loading.pickled_by_value import PickledByValue
from .loading.script_as_notebook import script_as_notebook
from .meter.figures import tenant_bars
from .meter.optimizer_state import state_bytes
from .meter.profile import MemoryProfile
from .meter.recorder import MemoryMeter
from .meter.saved_tensors import saved_tensor_bytes
from .meter.tables import peak_table, stage_table, tenant_table
from .meter.tenants import TENANTS
from .meter.timing import benchmark, compare
from .meter.traffic import traffic
from .planner import CachingAllocator, OutOfMemory, Recipe, count_parameters, find_gpu, plan, plan_many
from .planner.chooser import choose
from .planner.deep import plan_deep
from .planner.measure import measure_recipe
from .planner.planned import planned
from .planner.script import training_script
from .ranks.collectives import Collectives
from .ranks.deepspeed_config import deepspeed_config
from .ranks.failure import RankError
from .ranks.run import run_ranks
from .widgets.bit_explorer import explain_bits, explore_bits
from .widgets.explore import explore
from .widgets.loss_scale import explore_loss_scale
from .widgets.memory_calculator import explore_memory
from .widgets.timelines import explore_timelines

# transformers has renamed gradient checkpointing; PEFT, and labs that run with older versions, use the old name.
warnings.filterwarnings("ignore", message="`(is_)?gradient_checkpointing", category=FutureWarning)
# Optional libraries of transformers report kernels that this machine cannot load; the compiler reports graph breaks and
# recompilations, which the lab on compilation counts and shows.
for _name in ("torchao", "torch.utils._pytree", "bitsandbytes", "torch._dynamo", "torch.fx.experimental"):
    logging.getLogger(_name).setLevel(logging.ERROR)

__all__ = [
    "COLOURS",
    "E2M1",
    "FORMATS",
    "TENANTS",
    "CachingAllocator",
    "Claims",
    "Collectives",
    "DigitFiles",
    "GiB",
    "KiB",
    "LinearLog",
    "LoaderTimeline",
    "MemoryMeter",
    "MemoryProfile",
    "MiB",
    "OutOfMemory",
    "PickledByValue",
    "Prediction",
    "RankError",
    "Recipe",
    "SmallCNN",
    "SmallGPT",
    "ViT",
    "benchmark",
    "check",
    "choose",
    "compare",
    "count_parameters",
    "decode",
    "deepspeed_config",
    "device_name",
    "digits",
    "english",
    "explain_bits",
    "explore",
    "explore_bits",
    "explore_loss_scale",
    "explore_memory",
    "explore_timelines",
    "find_gpu",
    "floor_power_of_two",
    "human_bytes",
    "lab_report",
    "measure_recipe",
    "parallel_map",
    "peak_table",
    "pick_device",
    "plan",
    "plan_deep",
    "plan_many",
    "planned",
    "python_source",
    "quantize_blockwise",
    "range_ruler",
    "rank_device",
    "rotate",
    "run_ranks",
    "saved_tensor_bytes",
    "script_as_notebook",
    "show",
    "stage_table",
    "state_bytes",
    "supports",
    "tenant_bars",
    "tenant_table",
    "text_table",
    "to_e2m1",
    "traffic",
    "training_script",
    "why_no_compiler",
    "written_kernels",
]
