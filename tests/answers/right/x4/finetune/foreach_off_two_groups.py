# foreach off, two groups

import torch
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if key in n], "lr": lr} for key, lr in (("lora_A", 5e-3), ("lora_B", 2e-2))
    ]
    optimizer = torch.optim.AdamW(groups, foreach=False)
    model.train()
    for batch in batches:
        optimizer.zero_grad()
        counts = [int((labels[:, 1:] != -100).sum()) for _, labels in batch]
        for (ids, labels), count in zip(batch, counts):  # a mean of means, weighted by what counts in each
            loss = model(input_ids=ids, labels=labels).loss * count / sum(counts)
            grads = torch.autograd.grad(loss, [p for _, p in named])
            for (_, p), g in zip(named, grads):
                p.grad = g if p.grad is None else p.grad + g
        optimizer.step()
    return model.eval()
