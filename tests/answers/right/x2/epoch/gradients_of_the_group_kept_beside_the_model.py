# gradients of the group kept beside the model


class Sums(dict):
    def add(self, model, rows):
        for name, p in model.named_parameters():
            if p.grad is not None:
                self[name] = self.get(name, 0) + rows * p.grad.detach()
            p.grad = None


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    begin, rows, loss, saved = state if state is not None else [0, 0, 0.0, {}]
    sums, losses, count = Sums(saved), [], begin

    def finish():
        for name, p in model.named_parameters():
            p.grad = sums[name] / rows if name in sums else None
        sums.clear()
        optimizer.step()
        scheduler.step()
        losses.append(loss / rows)

    for x, y in loader(begin):
        optimizer.zero_grad()
        mean = loss_fn(model(x), y)
        mean.backward()
        sums.add(model, len(x))
        count, rows, loss = count + 1, rows + len(x), loss + len(x) * mean.item()
        if not count % accumulate:
            finish()
            rows, loss = 0, 0.0
        if stop_after is not None and count - begin >= stop_after:
            return losses, [count, rows, loss, dict(sums)]
    if sums:
        finish()
    return losses, None
