# gradients collected by hooks

import torch


def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    optimizer.zero_grad()
    squares = []
    handles = [p.register_post_accumulate_grad_hook(lambda p: squares.append(p)) for p in model.parameters()]
    try:
        with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32, cache_enabled=False):
            logits = model(images)
        loss = torch.nn.CrossEntropyLoss()(logits.float(), labels)
        (loss if scaler is None else scaler.scale(loss)).backward()
    finally:
        for handle in handles:
            handle.remove()
    if scaler is not None:
        scaler.unscale_(optimizer)
    norm = sum(p.grad.square().sum() for p in squares).sqrt()
    if norm > max_norm:
        for p in squares:
            p.grad *= max_norm / norm
    (optimizer.step() if scaler is None else (scaler.step(optimizer), scaler.update()))
    return loss.detach()
