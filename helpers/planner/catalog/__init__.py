"""What the planner knows by name: models and GPUs.

The figures come from data sheets and published configs, and each names its source.
"""

from .gpus import GPUS, Gpu, find_gpu
from .models import ModelSpec, count_parameters, find_model, limits, model_names, spec_of

__all__ = ["GPUS", "Gpu", "ModelSpec", "count_parameters", "find_gpu", "find_model", "limits", "model_names", "spec_of"]
