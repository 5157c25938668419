# a loader over the batch

import torch


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=micro_batch)
    optimizer.zero_grad(set_to_none=False)
    share = lambda a, b: loss_fn(model(a), b).mul(len(a)).div(len(x))
    losses = []
    for a, b in loader:
        losses.append(share(a, b))
        losses[-1].backward()
        losses[-1] = losses[-1].detach()
    optimizer.step()
    return torch.stack(losses).sum()
