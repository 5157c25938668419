"""One attention on several ranks: the same tensors on all of them, each rank's chunks, and the results of one process.

An attention over ranks is right if every rank gets its part of what one process computes. So all ranks draw the same
queries, keys and values from one seed, each runs the attention on its own chunks, and each compares its output and
gradients with its chunks of the results of one process.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ...core.device import rank_device

Order = Sequence[Sequence[int]]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class AttentionTrial:
    """Queries, keys, values and a gradient of the output, the same on each rank.

    Args:
        documents: tokens of each document; no token attends to another document. One number is one sequence.
        heads, kv_heads: of q, and of k and v.
        width: channels of a head.

    Attributes:
        whole: q (1, H, T, d), k and v (1, K, T, d), and the gradient of the output (1, H, T, d), in FP32.
    """

    def __init__(self, *documents: int, heads: int = 8, kv_heads: int = 4, width: int = 16) -> None:
        torch.manual_seed(0)
        self.documents, length = documents, sum(documents)
        sizes = (heads, kv_heads, kv_heads, heads)
        self.whole = [torch.randn(1, h, length, width, device=rank_device()) for h in sizes]

    def cut(self, tensor: Tensor, order: Order) -> Tensor:
        """Return this rank's chunks of dimension 2: those of the first document, then those of the next."""
        held = []
        for document in tensor.split(self.documents, dim=2):
            chunks = document.chunk(sum(map(len, order)), dim=2)
            held += [chunks[number] for number in order[dist.get_rank()]]
        return torch.cat(held, dim=2)

    def mine(self, order: Order) -> list[Tensor]:
        """Return this rank's chunks of q, k, v and the output's gradient."""
        return [self.cut(tensor, order) for tensor in self.whole]

    @staticmethod
    def through(attention: Attention, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> list[Tensor]:
        """Return the output of `attention` and the gradients of its three inputs."""
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
        out = attention(*leaves)
        out.backward(gradient)
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    def distances(self, results: Sequence[Tensor], order: Order) -> list[float]:
        """Return how far this rank's output, dq, dk and dv are from one process's, each relative to its norm."""
        wanted = [self.cut(t, order) for t in self.through(self._in_one_process, *self.whole)]
        return [((a - b).norm() / b.norm()).item() for a, b in zip(results, wanted, strict=True)]

    def _in_one_process(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lengths = torch.tensor(self.documents, device=q.device)
        number = torch.arange(len(lengths), device=q.device).repeat_interleave(lengths)  # (T,): each token's document
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(number[:, None] == number).tril())
