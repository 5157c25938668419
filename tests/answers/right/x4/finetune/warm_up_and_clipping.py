# warm-up and clipping

from helpers.exercises.reference.x4 import adapter_config

import torch
from peft import get_peft_model


def fine_tune(base, batches):
    model = get_peft_model(base, adapter_config(8))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1.5e-2, betas=(0.9, 0.95), weight_decay=0.0)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    for batch in batches:
        counted = 0
        for ids, labels in batch:
            count = (labels[:, 1:] != -100).sum()
            (model(input_ids=ids, labels=labels).loss * count).backward()
            counted += count
        for p in trained:
            p.grad /= counted
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        warm.step()
        for p in trained:
            p.grad = None
    model.eval()
    return model
