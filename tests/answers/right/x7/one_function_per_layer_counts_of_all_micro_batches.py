# one function per layer counts of all micro batches

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor


def draw(layer):
    """Give one layer memory, and its numbers."""
    layer.to_empty(device="cpu", recurse=False)
    layer.reset_parameters()


def keep_my_part(layer, sharded):
    for (_, whole), (_, part) in zip(
        layer.named_parameters(recurse=False), sharded.named_parameters(recurse=False), strict=True
    ):
        mine = distribute_tensor(whole.detach(), part.device_mesh, part.placements, src_data_rank=None)
        part.detach().to_local().copy_(mine.to_local())
    for (_, whole), (_, copy) in zip(
        layer.named_buffers(recurse=False), sharded.named_buffers(recurse=False), strict=True
    ):
        copy.copy_(whole)
    layer.to_empty(device="meta", recurse=False)


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model, other = make_model(), make_model()
    policy = {"param_dtype": dtype, "reduce_dtype": torch.float32}
    [fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy)) for block in model.blocks]
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy, output_dtype=torch.float32))
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for layer, sharded in zip(other.modules(), model.modules(), strict=True):
        if hasattr(layer, "reset_parameters"):
            draw(layer)
            keep_my_part(layer, sharded)
    return model


def train_step(model, optimizer, micro_batches, max_norm):
    optimizer.zero_grad()
    targets = torch.cat([y.flatten() for _, y in micro_batches])
    counted = (targets != -100).sum().double()
    dist.all_reduce(counted)
    weight = dist.get_world_size() / counted.item()
    losses = []
    for x, y in micro_batches:
        model.set_requires_gradient_sync(len(losses) == len(micro_batches) - 1)
        loss = F.cross_entropy(model(x).permute(0, 2, 1), y, reduction="none").sum() * weight
        loss.backward()
        losses.append(loss.detach().double())
    mean = torch.stack(losses).sum() / dist.get_world_size()
    dist.all_reduce(mean)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return mean.item(), norm.full_tensor().item()


def state_of(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    return {"step": step, "state": {"weights": weights, "moments": moments}}


def save(model, optimizer, step, folder):
    dcp.save(state_of(model, optimizer, step), checkpoint_id=folder)


def load(model, optimizer, folder):
    state = state_of(model, optimizer, None)
    dcp.load(state, checkpoint_id=folder)
    inner = state["state"]
    set_state_dict(model, optimizer, model_state_dict=inner["weights"], optim_state_dict=inner["moments"])
    return state["step"]
