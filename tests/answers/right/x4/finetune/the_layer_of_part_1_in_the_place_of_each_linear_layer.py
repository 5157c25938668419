# the layer of part 1 in the place of each linear layer

from helpers.exercises.reference.x4 import LoRALinear

import torch
import torch.nn.functional as F
from torch import nn


def fine_tune(base, batches):
    base.requires_grad_(False)
    for block in base.model.layers:
        for parent in (block.self_attn, block.mlp):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, LoRALinear(child, 8, 16, 0.05))
    base.train()
    optimizer = torch.optim.AdamW([p for p in base.parameters() if p.requires_grad], lr=1e-2)
    for batch in batches:
        optimizer.zero_grad()
        count = torch.cat([labels[:, 1:] for _, labels in batch]).ne(-100).sum()
        for ids, labels in batch:
            logits = base(input_ids=ids).logits
            kept = labels[:, 1:] != -100
            (F.cross_entropy(logits[:, :-1][kept], ids[:, 1:][kept], reduction="sum") / count).backward()
        optimizer.step()
    return base.eval()


def merged_model(model):
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoRALinear):
                child.merge()
                setattr(parent, name, child.linear.requires_grad_(True))
    return model
