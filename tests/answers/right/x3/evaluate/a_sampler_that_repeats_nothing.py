# a sampler that repeats nothing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Share(torch.utils.data.Sampler):
    def __init__(self, dataset):
        self.mine = range(dist.get_rank(), len(dataset), dist.get_world_size())

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


def evaluate(model, dataset, batch_size):
    net = model.module
    was, where = [m for m in net.modules() if m.training], next(net.parameters()).device
    net.train(False)
    numbers = torch.zeros(2, dtype=torch.float64, device=where)
    with torch.inference_mode():
        for x, y in DataLoader(dataset, batch_size, sampler=Share(dataset)):
            out = net(x.to(where))
            y = y.to(where)
            numbers = numbers + torch.stack(
                [F.cross_entropy(out, y, reduction="sum"), out.argmax(1).eq(y).sum().double()]
            )
    for m in was:
        m.training = True
    numbers = numbers.clone()
    dist.all_reduce(numbers)
    loss, right = (numbers / len(dataset)).tolist()
    return {"loss": loss, "accuracy": right}
