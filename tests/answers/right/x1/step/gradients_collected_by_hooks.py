# gradients collected by hooks

import torch


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    [optimizer.zero_grad() for optimizer in optimizers]
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
        [scaler.unscale_(optimizer) for optimizer in optimizers]
    norm = sum(p.grad.square().sum() for p in squares).sqrt()
    if norm > max_norm:
        for p in squares:
            p.grad *= max_norm / norm
    if scaler is None:
        [optimizer.step() for optimizer in optimizers]
    else:
        [scaler.step(optimizer) for optimizer in optimizers if norm < torch.inf]
        scaler.update()
    return loss.detach()
