# masks, each row written once

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
    wanted = labels[:, 1:]
    flat = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="none"
    )
    return -flat.view(wanted.shape).sum(1)


def dpo_loss(chosen, rejected, ref_chosen, ref_rejected, beta):
    with torch.no_grad():
        reference = ref_chosen - ref_rejected
    return torch.nn.functional.softplus(-beta * (chosen - rejected - reference)).mean()


def serve(x, weight, A, B, scale, which):
    y = x @ weight.T
    for k in range(len(A)):
        rows = which == k
        y[rows] = y[rows] + scale * (x[rows] @ A[k].T) @ B[k].T
    return y
