"""The reference answers of solutions/20_x4_lora.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import copy
import math
import subprocess
import sys
from pathlib import Path
from helpers import GiB, Prediction, RealModelError, Recipe, check, device_name, hint, measure_recipe, pick_device, plan, real_model, training_script
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn

device = pick_device()


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        like = {"device": linear.weight.device, "dtype": linear.weight.dtype}
        self.A = nn.Parameter(torch.empty(rank, linear.in_features, **like))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank, **like))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        self.is_merged = False

    def forward(self, x):
        y = self.linear(x)
        if self.is_merged:
            return y
        return y + self.scale * F.linear(F.linear(self.dropout(x), self.A), self.B)

    @torch.no_grad()
    def merge(self):
        if not self.is_merged:
            self.linear.weight += self.scale * (self.B @ self.A)
            self.is_merged = True

    @torch.no_grad()
    def unmerge(self):
        if self.is_merged:
            self.linear.weight -= self.scale * (self.B @ self.A)
            self.is_merged = False


def adapter_config(rank):
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.05, target_modules=layers, task_type="CAUSAL_LM")


def trained_parameters(config, rank):
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    q_and_o, k_and_v, mlp = 2 * (width + queries), 2 * (width + keys), 3 * (width + inner)
    return config.num_hidden_layers * rank * (q_and_o + k_and_v + mlp)


def fine_tune_plan():
    return Recipe(
        "llama-2-7b",
        micro_batch_size=4,
        seq=2048,
        gradient_accumulation_steps=8,
        precision="bf16",
        checkpointing="every",
        lora_rank=16,
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    )


def fine_tune(base, batches):
    adapter = adapter_config(8)
    model = get_peft_model(base, adapter).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for batch in batches:
        count = sum((labels[:, 1:] != -100).sum() for _, labels in batch)
        for ids, labels in batch:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
            (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def merged_model(model):
    return model.merge_and_unload()


def labeled_chats(chats, tokenizer, longest):
    def tokens(turns, prompt=False):
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    found = []
    for turns in chats:
        ids = tokens(turns)
        labels = [-100] * len(ids)
        for i, turn in enumerate(turns):
            if turn["role"] == "assistant":
                start = len(tokens(turns[:i], prompt=True))
                end = ids.index(tokenizer.eos_token_id, start) + 1
                labels[start:end] = ids[start:end]
        if len(ids) <= longest:
            found.append((ids, labels))
    return found
