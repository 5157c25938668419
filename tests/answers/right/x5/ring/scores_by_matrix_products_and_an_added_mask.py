# scores by matrix products and an added mask

from helpers.exercises.reference.x5 import RingAttention

import torch


def scores(q, k, mine):
    s = (q / q.shape[-1] ** 0.5) @ k.unsqueeze(2).mT
    if mine:
        i, j = torch.arange(q.shape[-2], device=q.device), torch.arange(k.shape[-2], device=q.device)
        s = s + torch.where(i[:, None] >= j, 0.0, float("-inf"))
    return s


RingAttention.scores = staticmethod(scores)
