# forward called by its name

import torch


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    weights = list(model.parameters())
    for p in weights:
        p.grad = None
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model.forward(images)
    exact = logits.float()
    loss = torch.logsumexp(exact, 1).sub(exact[torch.arange(len(labels)), labels]).mean()
    if scaler is None:
        loss.backward()
    else:
        scaler.scale(loss).backward()
        list(map(scaler.unscale_, optimizers))
    finite = bool(torch.stack([p.grad.isfinite().all() for p in weights]).all())
    torch.nn.utils.clip_grad_norm_(weights, max_norm, foreach=False)
    if scaler is None:
        for o in optimizers:
            o.step()
    else:
        if finite:
            list(map(scaler.step, optimizers))
        scaler.update()
    return loss.detach()
