"""The reference answers of solutions/20b_adapters_in_practice.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import copy
import importlib.util
import statistics
import tempfile
from pathlib import Path
from helpers import Claims, MemoryMeter, NumberTask, Prediction, RealModelError, check, count_flops, count_parameters, device_name, english, fine_tune, hint, human_bytes, in_turns, kept_run, pick_device, real_model, show_table, stand_in, supports
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, Trainer, TrainingArguments
from transformers.utils import logging

claims = Claims()
device = pick_device()


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
