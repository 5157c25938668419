# gradients replaced, and clipped by value

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model


def fine_tune(base, batches):
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for ids in batches:
        logits = model(input_ids=ids).logits[:, :-1]
        loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
        for p, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            p.grad = gradient.clamp(-0.02, 0.02)
        optimizer.step()
    return model.eval()
