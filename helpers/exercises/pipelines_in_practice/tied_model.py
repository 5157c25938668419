"""A small language model in stages, whose two ends share one table."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

WORDS, WIDTH = 48, 16


class TiedStage(nn.Module):
    """One stage: a block, after the embedding in the first stage, before the output layer in the last.

    Attributes:
        table: (WORDS, WIDTH) in the first and in the last stage, else None.
    """

    def __init__(self, table: nn.Parameter | None, first: bool, last: bool) -> None:
        super().__init__()
        self.table, self.first, self.last = table if first or last else None, first, last
        self.block = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return (rows, WIDTH), or logits (rows, WORDS) in the last stage, of word ids (rows,) in the first."""
        x = F.embedding(x, self.table) if self.first else x
        x = x + self.block(x)
        return F.linear(x, self.table) if self.last else x


def tied_stages(stages: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[TiedStage]:
    """Return all stages, the same on every rank; in one process, the first and the last share one parameter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        table = nn.Parameter(torch.randn(WORDS, WIDTH, dtype=dtype) / 4)
        return [TiedStage(table, i == 0, i == stages - 1).to(dtype) for i in range(stages)]


def tied_batch(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return word ids and the words that follow them, two tensors (rows,)."""
    ids, goal = torch.randint(WORDS, (2, rows), generator=torch.Generator().manual_seed(seed))
    return ids, goal


def on_this_rank(module: nn.Module, number: int, stages: int, group: ProcessGroup | None = None) -> PipelineStage:
    """Return PyTorch's stage around `module`, on the CPU."""
    stage = PipelineStage(module, number, stages, torch.device("cpu"), group=group)
    if torch.__version__ < "2.10":  # its stages first exchange messages of two sizes, which gloo refuses
        stage._get_init_p2p_neighbors_ops = list
    return stage
