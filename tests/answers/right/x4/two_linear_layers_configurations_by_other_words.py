# two linear layers, configurations by other words

from helpers import Recipe

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaForCausalLM


class LoRALinear(nn.Module):
    def __init__(self, linear, rank, alpha, dropout):
        super().__init__()
        where = dict(bias=False, device=linear.weight.device, dtype=linear.weight.dtype)
        self.down = nn.Linear(linear.in_features, rank, **where)
        self.up = nn.Linear(rank, linear.out_features, **where)
        nn.init.zeros_(self.up.weight)
        self.base = linear
        for p in self.base.parameters():
            p.requires_grad = False
        self.factor, self.drop, self.kept = alpha / rank, nn.Dropout(dropout), None

    def forward(self, x):
        if self.kept is not None:
            return self.base(x)
        return self.base(x) + self.up(self.down(self.drop(x))) * self.factor

    @torch.no_grad()
    def merge(self):
        if self.kept is None:
            self.kept = self.base.weight.clone()
            self.base.weight.add_(self.up.weight @ self.down.weight, alpha=self.factor)

    @torch.no_grad()
    def unmerge(self):
        if self.kept is not None:
            self.base.weight.copy_(self.kept)
            self.kept = None


def adapter_config(rank):
    return LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=rank * 2, lora_dropout=0.05, target_modules="all-linear"
    )


def trained_parameters(config, rank):
    with torch.device("meta"):
        model = get_peft_model(LlamaForCausalLM(config), adapter_config(rank))
    return sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)


def fine_tune_plan():
    return Recipe(
        "llama-2-7b",
        micro_batch_size=2,
        seq=4096,
        gradient_accumulation_steps=16,
        checkpointing="every",
        lora_rank=16,
        lora_targets=["o_proj", "v_proj", "k_proj", "q_proj"],
    )


def fine_tune(base, batches):
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=32, target_modules="all-linear"))
    model.train()
    adapters = [p for n, p in model.named_parameters() if "lora_" in n]
    optimizer = torch.optim.AdamW(adapters, lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * len(batches))
    for batch in batches:
        optimizer.zero_grad(set_to_none=True)
        weight = 1 / sum(float((labels[:, 1:] >= 0).sum()) for _, labels in batch)
        for ids, labels in batch:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")
            loss.mul(weight).backward()
        nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()
        schedule.step()
    model.eval()
    return model


def merged_model(model):
    model.eval()
    return model.merge_and_unload(safe_merge=True)


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
