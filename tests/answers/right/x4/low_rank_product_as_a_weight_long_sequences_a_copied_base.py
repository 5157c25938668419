# low-rank product as a weight, long sequences, a copied base

import copy

from helpers import Recipe

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn

NAMES = [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        self.linear, self.alpha, self.p, self.merged = linear.requires_grad_(False), alpha, dropout, 0
        self.a = nn.Parameter(
            torch.rand(rank, linear.in_features, dtype=linear.weight.dtype, device=linear.weight.device)
        )
        self.b = nn.Parameter(torch.zeros_like(linear.weight[:, :1]).repeat(1, rank))

    def delta(self):
        return (self.b @ self.a) * (self.alpha / self.a.shape[0])

    def forward(self, x):
        y = self.linear(x)
        if not self.merged:
            y = y + F.linear(F.dropout(x, self.p, self.training), self.delta())
        return y

    def merge(self):
        if not self.merged:
            self.linear.weight.data += self.delta().data
        self.merged = 1

    def unmerge(self):
        if self.merged:
            self.linear.weight.data -= self.delta().data
        self.merged = 0


def adapter_config(rank):
    from peft import TaskType

    return LoraConfig(
        r=rank, lora_alpha=2.0 * rank, lora_dropout=0.05, target_modules=NAMES, task_type=TaskType.CAUSAL_LM
    )


def trained_parameters(config, rank):
    d, heads, kv = config.head_dim, config.num_attention_heads, config.num_key_value_heads
    shapes = {
        "q": (config.hidden_size, heads * d),
        "k": (config.hidden_size, kv * d),
        "v": (config.hidden_size, kv * d),
        "o": (heads * d, config.hidden_size),
        "gate": (config.hidden_size, config.intermediate_size),
        "up": (config.hidden_size, config.intermediate_size),
        "down": (config.intermediate_size, config.hidden_size),
    }
    return config.num_hidden_layers * sum(rank * (i + o) for i, o in shapes.values())


def fine_tune_plan():
    return Recipe(
        "llama-2-7b",
        micro_batch_size=4,
        seq=2048,
        gradient_accumulation_steps=8,
        checkpointing="every",
        lora_rank=16,
        lora_alpha=8,
        lora_targets=tuple(NAMES[:4]),
        optimizer_impl="for-loop",
    )


def fine_tune(base, batches):
    torch.manual_seed(3)
    model = get_peft_model(copy.deepcopy(base), LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=NAMES))
    optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    for i in range(len(batches)):
        model.train()
        count = sum((labels[:, 1:] != -100).sum() for _, labels in batches[i])
        for ids, labels in batches[i]:
            model(ids, labels=labels, num_items_in_batch=count).loss.backward()
        optimizer.step()
        model.zero_grad()
    return model.eval()


def merged_model(model):
    model.merge_adapter()
    return model.unload()


def labeled_chats(chats, tokenizer, longest):
    pairs = []
    for chat in chats:
        texts = [tokenizer.apply_chat_template(chat[: n + 1], tokenize=False) for n in range(len(chat))]
        ids = tokenizer.encode(texts[-1], add_special_tokens=False)
        labels = [-100 for _ in ids]
        for n, turn in enumerate(chat):
            if turn["role"] != "assistant":
                continue
            header = tokenizer.apply_chat_template(chat[:n], tokenize=False, add_generation_prompt=True)
            at = len(tokenizer.encode(header, add_special_tokens=False))
            while True:
                labels[at] = ids[at]
                if ids[at] == tokenizer.eos_token_id:
                    break
                at += 1
        pairs.append((ids, labels))
    return [pair for pair in pairs if not len(pair[0]) > longest]
