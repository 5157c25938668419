# a set of targets, counted on the meta device

import torch
from peft import LoraConfig
from torch import nn


def adapter_config(rank):
    names = {f"{which}_proj" for which in "q k v o gate up down".split()}
    return LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=names, lora_dropout=5e-2, bias="none", task_type="CAUSAL_LM"
    )


def trained_parameters(config, rank):
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    linear = [m for n, m in model.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]
    return rank * sum(m.in_features + m.out_features for m in linear)
