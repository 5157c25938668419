"""The reference answers of solutions/20_lora.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import copy
import importlib.util
import math
import tempfile
import warnings
from helpers import CATEGORIES, Claims, GiB, MemoryMeter, MiB, Prediction, Recipe, TokensLine, category_bars, category_table, check, compare, count_flops, count_parameters, device_name, english, explore, find_gpu, fine_tune, hint, human_bytes, levels_picture, lora_picture, measure_recipe, pick_device, planned, profile_step, python_source, show, show_table, supports
from helpers.exercises.lora.nf4 import LEVELS
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from peft.optimizers import create_loraplus_optimizer
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

claims = Claims()
device = pick_device()


class LoRA(nn.Module):
    """A frozen linear layer with a trained correction of rank r."""

    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, linear.in_features, **like))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))  # zero: the first step starts from W
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))  # as in nn.Linear
        self.scale = alpha / rank

    def forward(self, x):
        return self.linear(x) + self.scale * F.linear(F.linear(x, self.A), self.B)

    @torch.no_grad()
    def merged(self):
        """An ordinary linear layer with the correction added to its weight."""
        linear = copy.deepcopy(self.linear)
        linear.weight += self.scale * (self.B @ self.A)
        return linear


def nf4_encode(weights):
    blocks = weights.view(-1, 64)
    scales = blocks.abs().amax(1)
    x = blocks / torch.where(scales == 0, 1.0, scales)[:, None]
    levels = torch.tensor(LEVELS)
    index = torch.bucketize(x, (levels[1:] + levels[:-1]) / 2).flatten().to(torch.uint8)
    mean = scales.mean()
    groups = F.pad(scales - mean, (0, -len(scales) % 256)).view(-1, 256)
    tops = groups.abs().amax(1)
    codes = (groups / tops.clamp(min=1e-30)[:, None] * 127).round().to(torch.int8).flatten()[: len(scales)]
    return index[::2] << 4 | index[1::2], codes, tops, mean


def nf4_decode(packed, codes, tops, mean):
    index = torch.stack((packed >> 4, packed & 15), 1).long()
    scales = codes.float() * tops.repeat_interleave(256)[: len(codes)] / 127 + mean
    return (torch.tensor(LEVELS)[index].view(-1, 64) * scales[:, None]).flatten()
