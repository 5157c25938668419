# log-probabilities picked by gather


def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    valid = targets != -100
    n, total = valid.sum(), 0.0
    for i in range(0, len(ids), micro_batch):
        rows = slice(i, i + micro_batch)
        logp = model(ids[rows]).log_softmax(-1)
        picked = logp.gather(-1, targets[rows].clamp(min=0)[..., None])[..., 0]
        loss = -(picked * valid[rows]).sum() / n
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total
