# a closure makes the gradients

import torch
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    def loss_of(ids):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        return loss

    for ids in batches:
        optimizer.step(lambda ids=ids: loss_of(ids))
    return model.eval()
