# gradients cleared before the backward pass

import torch
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for batch in batches:
        losses, counted = [], 0
        for ids, labels in batch:
            logits = model(input_ids=ids).logits
            wanted = torch.full_like(labels, -100)
            wanted[:, :-1] = labels[:, 1:]
            losses.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none").sum())
            counted += wanted.ne(-100).sum().item()
        optimizer.zero_grad()
        (sum(losses) / counted).backward()
        optimizer.step()
    return model.eval()
