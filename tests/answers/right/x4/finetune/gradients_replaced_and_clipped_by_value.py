# gradients replaced, and clipped by value

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for batch in batches:
        sums, counted = [torch.zeros_like(p) for p in trained], 0
        for ids, labels in batch:
            logits = model(input_ids=ids).logits[:, :-1]
            loss = F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], reduction="sum")
            for total, gradient in zip(sums, torch.autograd.grad(loss, trained), strict=True):
                total += gradient
            counted += (labels[:, 1:] != -100).sum()
        for p, total in zip(trained, sums, strict=True):
            p.grad = (total / counted).clamp(-0.02, 0.02)
        optimizer.step()
    return model.eval()
