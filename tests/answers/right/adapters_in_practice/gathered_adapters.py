# gathered adapters

import torch


def pack(examples, length, pad):
    if any(len(prompt) + len(answer) > length for prompt, answer in examples):
        raise ValueError("too long")
    groups, room = [], 0
    for one in examples:
        n = sum(map(len, one))
        if n > room:
            groups.append([])
            room = length
        groups[-1].append(one)
        room -= n
    ids = torch.full((len(groups), length), pad)
    labels = torch.full_like(ids, -100)
    positions = torch.zeros_like(ids)
    for row, group in enumerate(groups):
        at = 0
        for prompt, answer in group:
            end = at + len(prompt) + len(answer)
            ids[row, at:end] = torch.tensor(list(prompt) + list(answer))
            labels[row, at + len(prompt) : end] = torch.tensor(answer)
            positions[row, at:end] = torch.arange(end - at)
            at = end
        positions[row, at:] = torch.arange(length - at)
    return ids, labels, positions


def exactly_right(logits, labels):
    right = torch.ones(len(labels), dtype=torch.bool)
    for row in range(len(labels)):
        for place in range(1, labels.shape[1]):
            if labels[row, place] >= 0 and logits[row, place - 1].argmax() != labels[row, place]:
                right[row] = False
    return right


def answer_log_probs(logits, labels):
    sums = []
    for outputs, row in zip(logits, labels, strict=True):
        places = (row != -100).nonzero().squeeze(1)
        logs = outputs[places - 1] - outputs[places - 1].logsumexp(-1, keepdim=True)
        sums.append(logs[torch.arange(len(places)), row[places]].sum())
    return torch.stack(sums)


def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    up, down = chosen - ref_chosen.data, rejected - ref_rejected.data
    zero = torch.zeros_like(up)
    return torch.logaddexp(zero, beta * (down - up)).sum() / len(up)


def serve(x, weight, A, B, scale, which):
    used = (which >= 0).to(x.dtype)[:, None]
    at = which.clamp(min=0)
    low = torch.einsum("ni,nri->nr", x, A[at])
    return x @ weight.T + scale * used * torch.einsum("nr,nor->no", low, B[at])
