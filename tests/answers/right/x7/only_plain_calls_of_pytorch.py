# only plain calls of pytorch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint import state_dict as sd
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor


def build(make_model, mesh, dtype, seed):
    with torch.device("meta"):
        model = make_model()
    with torch.device("meta"):
        twin = make_model()
    for block in list(model.blocks):
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    p32 = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
    model = fully_shard(model, mesh=mesh, mp_policy=p32)
    model.to_empty(device="cpu")
    torch.manual_seed(seed)
    for name, module in list(twin.named_modules()):
        if "reset_parameters" in dir(module):
            module.to_empty(device="cpu", recurse=False)
            module.reset_parameters()
            target = model.get_submodule(name)
            for key in dict(module.named_parameters(recurse=False)):
                to, value = target.get_parameter(key), module.get_parameter(key).data
                to.data.copy_(distribute_tensor(value, mesh, to.placements, src_data_rank=None))
            for key in dict(module.named_buffers(recurse=False)):
                target.get_buffer(key).data.copy_(module.get_buffer(key).data)
            module.to_empty(device="meta", recurse=False)
    return model


def train_step(model, optimizer, micro_batches, max_norm):
    world = dist.get_world_size()
    optimizer.zero_grad()
    n = torch.zeros(1)
    for _, targets in micro_batches:
        n += (targets != -100).sum()
    dist.all_reduce(n, op=dist.ReduceOp.SUM)
    value = torch.zeros(1)
    for k, (tokens, targets) in enumerate(micro_batches, start=1):
        final = k == len(micro_batches)
        model.set_requires_gradient_sync(final)
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), reduction="sum") * world / n
        loss.backward()
        value += loss.detach() / world
    dist.all_reduce(value)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return float(value), float(norm.full_tensor())


def save(model, optimizer, step, folder):
    state = {
        "model": sd.get_model_state_dict(model),
        "optimizer": sd.get_optimizer_state_dict(model, optimizer),
        "step": step,
    }
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder))


def load(model, optimizer, folder):
    state = {
        "model": sd.get_model_state_dict(model),
        "optimizer": sd.get_optimizer_state_dict(model, optimizer),
        "step": 0,
    }
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    sd.set_model_state_dict(model, state["model"])
    sd.set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return state["step"]
