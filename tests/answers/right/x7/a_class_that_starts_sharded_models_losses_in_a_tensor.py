# a class that starts sharded models losses in a tensor

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Start:
    def __init__(self, make_model, mesh):
        with torch.device("meta"):
            self.model, self.bare = make_model(), make_model()
        self.mesh = mesh

    def shard(self, dtype):
        for block in self.model.blocks:
            fully_shard(block, mesh=self.mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32))
        fully_shard(self.model, mesh=self.mesh, mp_policy=MixedPrecisionPolicy(dtype, torch.float32, torch.float32))
        self.model.to_empty(device="cpu")

    @torch.no_grad()
    def fill(self, seed):
        torch.manual_seed(seed)
        last = self.mesh.ndim - 1
        place, of = self.mesh.get_local_rank(last), self.mesh.size(last)
        for name, layer in self.bare.named_modules():
            if not callable(getattr(layer, "reset_parameters", None)):
                continue
            layer.to_empty(device="cpu", recurse=False)
            layer.reset_parameters()
            mine = self.model.get_submodule(name)
            for key, p in layer.named_parameters(recurse=False):
                pieces = p.chunk(of)
                if place < len(pieces):
                    getattr(mine, key).to_local().copy_(pieces[place])
            for key, buffer in layer.named_buffers(recurse=False):
                getattr(mine, key).copy_(buffer)
            layer.to_empty(device="meta", recurse=False)


def build(make_model, mesh, dtype, seed):
    start = Start(make_model, mesh)
    start.shard(dtype)
    start.fill(seed)
    return start.model


def train_step(model, optimizer, micro_batches, max_norm):
    model.zero_grad()
    count = sum((y != -100).sum() for _, y in micro_batches).float()
    dist.all_reduce(count)
    loss = torch.tensor(0.0)
    for i in range(len(micro_batches)):
        x, y = micro_batches[i]
        model.set_requires_gradient_sync(i + 1 == len(micro_batches))
        sum_here = F.cross_entropy(model(x).flatten(end_dim=1), y.flatten(), reduction="sum")
        (sum_here / count * dist.get_world_size()).backward()
        loss = loss + sum_here.detach()
    dist.all_reduce(loss)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients).full_tensor()
    scale = min(1.0, max_norm / (norm.item() + 1e-6))
    with torch.no_grad():
        for gradient in gradients:
            gradient *= scale
    optimizer.step()
    return (loss / count).item(), norm.item()


def save(model, optimizer, step, folder):
    weights, moments = get_state_dict(model, optimizer)
    state = {f"model.{name}": value for name, value in weights.items()}
    dcp.save(state | {"optimizer": moments, "extra": {"step": step}}, checkpoint_id=folder)


def load(model, optimizer, folder):
    weights, moments = get_state_dict(model, optimizer)
    state = {f"model.{name}": value for name, value in weights.items()}
    state |= {"optimizer": moments, "extra": {"step": 0}}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state["optimizer"])
    return state["extra"]["step"]
