"""Small programs of several ranks, as torchrun starts them: `python rank_programs.py KIND`, on GPUs that NCCL joins."""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, STEPS = 128, 8, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def blocks(count):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count))).cuda()


def train(model, mixed=False):
    """Take steps; with `mixed`, some parameters are DTensors and some are not, which no foreach operation takes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False if mixed else None)
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        if not mixed:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()


def ddp():
    train(DistributedDataParallel(blocks(4), device_ids=[torch.cuda.current_device()], bucket_cap_mb=1))


def fsdp2():
    model = blocks(4)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    train(fully_shard(model, mp_policy=policy))


def fsdp1():
    train(FullyShardedDataParallel(blocks(4), device_id=torch.cuda.current_device(), use_orig_params=True))


def tp():
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = blocks(4)
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    train(model, mixed=True)


def pp(schedule=Schedule1F1B):
    rank, size = dist.get_rank(), dist.get_world_size()
    micro, rows = size, 2
    model = blocks(2)
    example = torch.randn(rows, WIDTH, device="cuda", requires_grad=True)
    stage = PipelineStage(model, rank, size, torch.device("cuda", torch.cuda.current_device()), example, example)
    runner = schedule(stage, micro, loss_fn=lambda y, target: (y - target).square().mean())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        x = torch.randn(micro * rows, WIDTH, device="cuda")
        if rank == 0:
            runner.step(x)
        elif rank == size - 1:
            runner.step(target=x, losses=[])
        else:
            runner.step()
        optimizer.step()
        optimizer.zero_grad()


def gpipe():
    pp(ScheduleGPipe)


KINDS = {"ddp": ddp, "fsdp2": fsdp2, "fsdp1": fsdp1, "tp": tp, "pp": pp, "gpipe": gpipe}


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    if os.environ.get("COUNT_INTO"):
        from helpers.virtual_gpu.install import mode
        from helpers.virtual_gpu.traffic import Traffic

        mode().traffic = traffic = Traffic()
        KINDS[sys.argv[1]]()
        rows = {}
        for row, calls in traffic.calls.items():
            before = rows.get(row.name, (0, 0))
            rows[row.name] = before[0] + calls, before[1] + traffic.nbytes[row]
        peak = torch.cuda.max_memory_allocated()
        with open(os.environ["COUNT_INTO"] + os.environ["RANK"], "w") as file:
            json.dump({"peak": peak, "rows": rows}, file)
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)
    KINDS[sys.argv[1]]()


if __name__ == "__main__":
    main()
