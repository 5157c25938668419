# scaled, and unscaled by the optimizer

import torch
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler(base.device.type, init_scale=1024.0)
    for ids in batches:
        scaler.scale(model(input_ids=ids, labels=ids).loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model.eval()
