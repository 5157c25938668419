# single tensors, newest names

import warnings

import torch
import torch.distributed as dist

warnings.simplefilter("ignore", FutureWarning)


def partition(parameters, rank, world_size):
    total = sum(p.numel() for p in parameters)
    size = (total + world_size - 1) // world_size
    flat = torch.zeros(size * world_size, dtype=parameters[0].dtype, device=parameters[0].device)
    offset = 0
    with torch.no_grad():
        for p in parameters:
            view = flat.narrow(0, offset, p.numel()).reshape(p.shape)
            view[...] = p
            p.set_(view) if False else setattr(p, "data", view)
            offset += p.numel()
    return flat, flat.narrow(0, rank * size, size)


def reduce_gradients(parameters, shard):
    world = dist.get_world_size()
    packed = torch.zeros(world, shard.numel(), dtype=shard.dtype, device=shard.device)
    line, offset = packed.view(-1), 0
    for p in parameters:
        gradient, p.grad = p.grad, None
        if gradient is not None:
            line.narrow(0, offset, p.numel()).copy_(gradient.reshape(-1))
        offset += p.numel()
    own = packed.new_empty(shard.numel())
    dist.reduce_scatter_tensor(own, line)
    own = own / world
    shard.grad = own + (0 if shard.grad is None else shard.grad)


def gather_parameters(flat, shard):
    dist.all_gather_into_tensor(flat, shard.detach().clone())


def add_hooks(block, flat, shard, stage):
    params = [p for p in block.parameters()]
    waiting = set(params)

    def fill():
        flat.untyped_storage().resize_(flat.numel() * flat.element_size())
        gather_parameters(flat, shard)

    def before(module, args):
        fill()

    def after(module, args, out):
        flat.untyped_storage().resize_(0)
        if out.requires_grad:
            out.register_hook(lambda grad: fill())

    def arrived(p):
        waiting.discard(p)
        if waiting:
            return
        waiting.update(params)
        reduce_gradients(params, shard)
        if stage == 3:
            flat.untyped_storage().resize_(0)

    for p in params:
        p.register_post_accumulate_grad_hook(arrived)
    if stage == 3:
        flat.untyped_storage().resize_(0)
        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)
