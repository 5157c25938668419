# scaled, and unscaled by the optimizer

import torch
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler(base.device.type, init_scale=1024.0)
    for batch in batches:
        count = sum((labels[:, 1:] != -100).sum() for _, labels in batch)
        for ids, labels in batch:
            scaler.scale(model(input_ids=ids, labels=labels, num_items_in_batch=count).loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model.eval()
