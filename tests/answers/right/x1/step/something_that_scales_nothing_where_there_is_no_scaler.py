# something that scales nothing where there is no scaler

import torch
import torch.nn.functional as F


class NoScaler:
    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    scaler = scaler or NoScaler()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    context = torch.amp.autocast(device_type=images.device.type, dtype=dtype, enabled=dtype != torch.float32)
    with context:
        logits = model(images)
    one_hot = F.one_hot(labels, logits.shape[1]).float()
    loss = -(one_hot * logits.float().log_softmax(1)).sum(1).mean()
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    with torch.no_grad():
        torch._foreach_mul_([p.grad for p in model.parameters()], (max_norm / (norm + 1e-6)).clamp(max=1))
    if not (norm.isinf() or norm.isnan()):
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return loss.data
