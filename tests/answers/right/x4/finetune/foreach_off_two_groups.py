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
    for ids in batches:
        optimizer.zero_grad()
        grads = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, [p for _, p in named])
        for (_, p), g in zip(named, grads):
            p.grad = g
        optimizer.step()
    return model.eval()
