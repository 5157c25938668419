"""Helpers of Training at Scale: what the notebooks import."""

import logging
import os
import warnings

# The memory meter reads the profiler's log. The profiler announces itself on stderr, and the CPU allocator
# warns when memory older than the log is freed; the meter knows both, and learners need see neither.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# Ask the driver whether there is a GPU: asking CUDA itself would spoil the processes that are forked from this one.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch

if not torch.cuda.is_available():  # Triton looks when it is imported: here its interpreter runs kernels (lab 09)
    os.environ.setdefault("TRITON_INTERPRET", "1")

from .carried import Carried, script_as_notebook
from .chooser import choose
from .claims import Claims
from .collectives import Collective, Collectives
from .compiler import why_no_compiler, written_kernels
from .count import TENANTS
from .data import digits, english, python_source
from .deepspeed_config import deepspeed_config
from .device import device_name, pick_device, rank_device, supports
from .digit_files import DigitFiles, decode, turn
from .exercises import check
from .figures import COLOURS, range_ruler, show, tenant_bars
from .formats import FORMATS
from .kept import kept_bytes
from .lab_report import lab_report
from .linear_log import LinearLog
from .loader_timeline import LoaderTimeline
from .memory import MemoryMeter
from .microscaling import E2M1, floor_power_of_two, in_blocks, to_e2m1
from .models import SmallCNN, SmallGPT, ViT
from .optimizer_state import state_bytes
from .planner import CachingAllocator, OutOfMemory, Recipe, count_parameters, find_gpu, plan, plan_many
from .planner.deep import plan_deep
from .planner.measure import measure_recipe
from .planner.planned import planned
from .predict import Prediction
from .ranks import RankError, RankRun, run_ranks
from .recipe_script import training_script
from .side_by_side import side_by_side
from .status import status
from .tables import peak_table, stage_table, tenant_table, text_table
from .timing import compare, measure
from .traffic import traffic
from .units import GiB, KiB, MiB, human_bytes
from .widgets.bit_explorer import explain_bits, explore_bits
from .widgets.explore import explore
from .widgets.loss_scale import explore_loss_scale
from .widgets.memory_calculator import explore_memory
from .widgets.timelines import explore_timelines

# transformers has renamed gradient checkpointing; PEFT, and labs that run with older versions, use the old name.
warnings.filterwarnings("ignore", message="`(is_)?gradient_checkpointing", category=FutureWarning)
# Libraries that transformers imports where it finds them report kernels that this machine cannot load; the compiler
# reports graph breaks and recompilations, which lab 09 counts and shows.
for _name in ("torchao", "torch.utils._pytree", "bitsandbytes", "torch._dynamo", "torch.fx.experimental"):
    logging.getLogger(_name).setLevel(logging.ERROR)

__all__ = [
    "COLOURS",
    "E2M1",
    "FORMATS",
    "TENANTS",
    "CachingAllocator",
    "Carried",
    "Claims",
    "Collective",
    "Collectives",
    "DigitFiles",
    "GiB",
    "KiB",
    "LinearLog",
    "LoaderTimeline",
    "MemoryMeter",
    "MiB",
    "OutOfMemory",
    "Prediction",
    "RankError",
    "RankRun",
    "Recipe",
    "SmallCNN",
    "SmallGPT",
    "ViT",
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
    "in_blocks",
    "kept_bytes",
    "lab_report",
    "measure",
    "measure_recipe",
    "peak_table",
    "pick_device",
    "plan",
    "plan_deep",
    "plan_many",
    "planned",
    "python_source",
    "range_ruler",
    "rank_device",
    "run_ranks",
    "script_as_notebook",
    "show",
    "side_by_side",
    "stage_table",
    "state_bytes",
    "status",
    "supports",
    "tenant_bars",
    "tenant_table",
    "text_table",
    "to_e2m1",
    "traffic",
    "training_script",
    "turn",
    "why_no_compiler",
    "written_kernels",
]
