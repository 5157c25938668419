"""The reference answers of solutions/12b_x7_fits_on_no_rank.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from helpers import check, device_name, hint, pick_device
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor

device = pick_device()


@torch.no_grad()
def copy_part(layer, own):
    """Copy an unsharded layer's own parameters and buffers to `own`, the same layer of a sharded model.

    Of each parameter it copies this rank's part, for any size and any mesh. Children of the layer are left out.
    """
    for key, full in layer.named_parameters(recurse=False):
        sharded = own.get_parameter(key)
        part = distribute_tensor(full, sharded.device_mesh, sharded.placements, src_data_rank=None)
        sharded.to_local().copy_(part.to_local())
    for key, full in layer.named_buffers(recurse=False):
        own.get_buffer(key).copy_(full)


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model, template = make_model(), make_model()
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    root = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=root)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for name, layer in template.named_modules():
        if hasattr(layer, "reset_parameters"):
            layer.to_empty(device="cpu", recurse=False)
            layer.reset_parameters()  # this layer alone, in full: the same numbers on every rank
            copy_part(layer, model.get_submodule(name))
            layer.to_empty(device="meta", recurse=False)
    return model


def count_targets(micro_batches):
    """Return how many targets count in this rank's micro-batches, an int."""
    return sum((y != -100).sum().item() for _, y in micro_batches)


def sum_over_ranks(number):
    """Return the sum of a number over all ranks, a float. Every rank has to call it."""
    total = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def train_step(model, optimizer, micro_batches, max_norm):
    optimizer.zero_grad()
    counted, total = sum_over_ranks(count_targets(micro_batches)), 0.0
    for i, (x, y) in enumerate(micro_batches, 1):
        model.set_requires_gradient_sync(i == len(micro_batches))
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / counted
        (loss * dist.get_world_size()).backward()  # fully_shard takes the mean over the ranks
        total += loss.item()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).full_tensor()
    optimizer.step()
    return sum_over_ranks(total), norm.item()


def save(model, optimizer, step, folder):
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, checkpoint_id=folder)


def load(model, optimizer, folder):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["step"]
