"""The reference answers of solutions/20_lora.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import copy
import importlib.util
import math
import tempfile
import warnings
from pathlib import Path
from helpers import CATEGORIES, Claims, GiB, MemoryMeter, MiB, NumberTask, Prediction, RealModelError, Recipe, TokensLine, byte_tokenizer, category_bars, category_table, check, compare, count_flops, count_parameters, device_name, english, explore, find_gpu, fine_tune, hint, human_bytes, kept_run, levels_picture, lora_picture, measure_recipe, pick_device, planned, profile_step, python_source, real_model, show, show_table, supports
from helpers.exercises.lora.nf4 import LEVELS
from helpers.virtual_gpu import virtual_gpu
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from peft.optimizers import create_loraplus_optimizer
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
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


def pack(examples, length, pad):
    rows = []  # each a list of (id, label, position)
    for prompt, answer in examples:
        n = len(prompt) + len(answer)
        if n > length:
            raise ValueError(f"an example of {n} tokens does not fit a row of {length}")
        if not rows or len(rows[-1]) + n > length:
            rows.append([])
        labels = [-100] * len(prompt) + list(answer)
        rows[-1] += zip([*prompt, *answer], labels, range(n), strict=True)
    for row in rows:
        row += [(pad, -100, i) for i in range(length - len(row))]
    return torch.tensor(rows, dtype=torch.long).view(len(rows), length, 3).unbind(2)


def exactly_right(logits, labels):
    wanted = labels[:, 1:]
    right = logits[:, :-1].argmax(-1) == wanted
    return (right | (wanted == -100)).all(1)


def answer_log_probs(logits, labels):
    wanted = labels[:, 1:]
    counts = wanted != -100
    each = logits[:, :-1].log_softmax(-1).gather(-1, wanted.clamp(min=0)[..., None]).squeeze(-1)
    return (each * counts).sum(1)


def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    margin = (chosen - ref_chosen.detach()) - (rejected - ref_rejected.detach())
    return -F.logsigmoid(beta * margin).mean()


def serve(x, weight, A, B, scale, which):
    y = x @ weight.T
    for k in which[which >= 0].unique().tolist():
        rows = (which == k).nonzero().squeeze(1)
        y = y.index_add(0, rows, scale * ((x[rows] @ A[k].T) @ B[k].T))
    return y
