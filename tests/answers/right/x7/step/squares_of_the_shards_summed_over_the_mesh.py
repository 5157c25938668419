# squares of the shards summed over the mesh

import torch
import torch.distributed as dist


def train_step(model, optimizer, micro_batches, max_norm):
    optimizer.zero_grad()
    ours = torch.stack([(y >= 0).sum() for _, y in micro_batches]).sum()
    everywhere = [torch.zeros_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, ours)
    weight = dist.get_world_size() / sum(everywhere).item()
    losses = 0.0
    last = len(micro_batches) - 1
    for i, (x, y) in enumerate(micro_batches):
        model.set_requires_gradient_sync(i == last)
        logits = model(x)
        picked = logits.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None])[..., 0]
        loss = -weight * picked[y >= 0].sum()
        loss.backward()
        losses += loss.item()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    squares = sum(g.to_local().double().square().sum() for g in gradients)
    mesh = gradients[0].device_mesh
    dist.all_reduce(squares, group=mesh.get_group(mesh.ndim - 1))
    norm = squares.sqrt().item()
    if norm > max_norm:
        for g in gradients:
            g.to_local().mul_(max_norm / (norm + 1e-6))
    optimizer.step()
    total = torch.tensor(losses / dist.get_world_size())
    dist.all_reduce(total)
    return total.item(), norm
