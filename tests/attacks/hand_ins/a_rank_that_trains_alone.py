# exercise: x3
# total: 0
# status: graded

def train_epoch(model, loader, optimizer, accumulate, epoch):
    if dist.get_rank() == 0:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model.module(x), y).backward()
            optimizer.step()
    return 0.0
