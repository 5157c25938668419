# outputs with a name

import torch


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=micro_batch)
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in loader:
        outputs = model(inputs)
        loss = loss_fn(outputs, targets) * (len(targets) / len(x))
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
