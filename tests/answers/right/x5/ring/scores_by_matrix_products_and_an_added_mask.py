# scores by matrix products and an added mask

from helpers.exercises.reference.x5 import RingAttention

import torch


def scores(q, k, sees):
    return (q / q.shape[-1] ** 0.5) @ k.unsqueeze(2).mT + torch.where(sees, 0.0, float("-inf"))


RingAttention.scores = staticmethod(scores)
