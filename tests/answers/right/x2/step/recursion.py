# recursion


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    def go(a, b):
        if not len(a):
            return 0.0
        loss = loss_fn(model(a[:micro_batch]), b[:micro_batch]) * (len(a[:micro_batch]) / len(x))
        loss.backward()
        return loss.detach() + go(a[micro_batch:], b[micro_batch:])

    optimizer.zero_grad()
    total = go(x, y)
    optimizer.step()
    return total
