# a closure makes the gradients

import torch
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def loss_of(batch):
        optimizer.zero_grad()
        count = sum((labels[:, 1:] != -100).sum() for _, labels in batch)
        total = 0.0
        for ids, labels in batch:
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=count).loss
            loss.backward()
            total += loss.item()
        return total

    for batch in batches:
        optimizer.step(lambda batch=batch: loss_of(batch))
    return model.eval()
