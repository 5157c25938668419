"""Wrong and right answers for the practice tasks of sharding."""

from . import Mutant

PARTITION, REDUCE, GATHER, SHARDED = (f"sharding.{part}" for part in ("partition", "reduce", "gather", "sharded"))
HOLDS = "holds_its_share_and_no_more"

SIZE = "size = -(-sum(p.numel() for p in parameters) // world_size)"
FLAT = "flat = parameters[0].data.new_zeros(world_size * size)"
FOR = "    for p in parameters:\n        place ="
PLACE = "place = flat[start : start + p.numel()].view_as(p)"
COPY = "place.copy_(p.data)"
ASSIGN = "        p.data = place\n"
RETURN_FLAT = "    return flat, flat[rank * size : (rank + 1) * size]\n"

HEAD = "n, start = dist.get_world_size(), 0"
WHOLE = "whole = shard.data.new_zeros(n * shard.numel())"
EACH = "    for p in parameters:\n        if p.grad is not None:\n"
FORGET = "            p.grad = None\n"
MOVE_ON = "p.grad = None\n        start += p.numel()\n"
MINE = "    mine = torch.empty_like(shard.data)\n"
SCATTER = "dist.reduce_scatter(mine, list(whole.chunk(n)))"
MEAN = "mine /= n"
KEEP = "shard.grad = mine if shard.grad is None else shard.grad + mine"

ALL_GATHER = "    dist.all_gather(list(flat.chunk(dist.get_world_size())), shard.detach())\n"

UNITS = "    for block in model.blocks:\n        fully_shard(block, mesh=mesh, **options)\n"
ROOT = "    return fully_shard(model, mesh=mesh, **options)  # what is outside the blocks, and the root that coordinates them\n"
BODY = UNITS + ROOT


def partition(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, PARTITION, check, replace, raises)


def reduction(check: str, name: str, *replace: tuple[str, str], raises: str = "") -> Mutant:
    return Mutant(name, REDUCE, check, replace, raises)


def gathering(name: str, body: str, check: str = "fills_the_vector_in_place", raises: str = "") -> Mutant:
    return Mutant(name, GATHER, check, ((ALL_GATHER, body),), raises)


def sharded(name: str, body: str, check: str = HOLDS, raises: str = "") -> Mutant:
    return Mutant(name, SHARDED, check, ((BODY, body),), raises)


MUTANTS = [
    # the partition
    *(partition("one_vector_for_all", *mutant) for mutant in (
        ("no padding", (FLAT, "flat = parameters[0].data.new_zeros(sum(p.numel() for p in parameters))")),
        ("padding always", (SIZE, "size = sum(p.numel() for p in parameters) // world_size + 1")),
        ("each parameter padded", (ASSIGN, ASSIGN + "        start += -p.numel() % world_size\n"), (SIZE, "size = sum(-(-p.numel() // world_size) for p in parameters)")),
        ("padded with ones", (FLAT, "flat = parameters[0].data.new_ones(world_size * size)")),
        ("padded with the first numbers", (RETURN_FLAT, "    flat[start:] = flat[: len(flat) - start]\n" + RETURN_FLAT)),
        ("last parameter first", (FOR, FOR.replace("parameters", "reversed(parameters)"))),
        ("smallest first", (FOR, FOR.replace("parameters", "sorted(parameters, key=lambda p: p.numel())"))),
        ("always FP32", (FLAT, "flat = torch.zeros(world_size * size)")),
        ("always FP64", (FLAT, "flat = torch.zeros(world_size * size, dtype=torch.float64)")),
        ("two dimensions", (RETURN_FLAT, "    flat = flat.view(world_size, size)\n    return flat, flat[rank]\n")),
        ("requires a gradient", (RETURN_FLAT, "    shard = flat[rank * size : (rank + 1) * size]\n    return flat.requires_grad_(), shard\n")),
    )),
    partition("one_vector_for_all", "rounded down", (SIZE, "size = max(1, sum(p.numel() for p in parameters) // world_size)"), raises="Raised RuntimeError"),
    partition("one_vector_for_all", "returns the vector alone", (RETURN_FLAT, "    return flat\n"), raises="two tensors are wanted"),
    *(partition("shard_is_this_ranks_slice", *mutant) for mutant in (
        ("a copy", (RETURN_FLAT, RETURN_FLAT.replace("size]", "size].clone()"))),
        ("the whole vector", (RETURN_FLAT, "    return flat, flat\n")),
        ("rank 0's", (RETURN_FLAT, "    return flat, flat[:size]\n")),
        ("the next rank's", (RETURN_FLAT, "    rank = (rank + 1) % world_size\n" + RETURN_FLAT)),
        ("every N-th number", (RETURN_FLAT, "    return flat, flat[rank::world_size]\n")),
        ("without padding", (RETURN_FLAT, "    return flat, flat[rank * size : min(start, (rank + 1) * size)]\n")),
    )),
    *(partition("parameters_are_views", *mutant) for mutant in (
        ("parameters keep their memory", (ASSIGN, "")),
        ("only the first is a view", (ASSIGN, "        if start == 0:\n            p.data = place\n")),
        ("copies of the places", (ASSIGN, "        p.data = place.clone()\n")),
        ("flat ones", (ASSIGN, "        p.data = place.flatten()\n")),
        ("all at the beginning", (ASSIGN, ASSIGN.replace("place", "place if False else flat[: p.numel()].view_as(p)"))),
        ("left empty", (ASSIGN, "        p.data = place.zero_() if start and rank else place\n")),
        ("frozen", (ASSIGN, ASSIGN + "        p.requires_grad_(False)\n")),
        ("takes the list apart", (RETURN_FLAT, "    parameters.clear()\n" + RETURN_FLAT)),
    )),
    # the reduction
    *(reduction("mean_of_its_slice", *mutant) for mutant in (
        ("the sum", (MEAN, "pass")),
        ("divided twice", (MEAN, "mine /= n * n")),
        ("halved, however many ranks", (MEAN, "mine /= 2")),
        ("its own gradient", (SCATTER, "mine.copy_(whole.chunk(n)[dist.get_rank()] * n)")),
        ("the next rank's slice", (SCATTER, "dist.reduce_scatter(mine, list(whole.roll(shard.numel()).chunk(n)))")),
        ("the maximum", (SCATTER, "dist.reduce_scatter(mine, list(whole.chunk(n)), op=dist.ReduceOp.MAX)"), (MEAN, "pass")),
        ("last parameter first", (EACH, EACH.replace("parameters", "reversed(parameters)"))),
        ("transposed", ("p.grad.flatten()", "p.grad.T.flatten() if p.grad.ndim == 2 else p.grad")),
        ("None", (KEEP, "pass")),
    )),
    *(reduction("missing_gradients_are_zeros", *mutant) for mutant in (
        ("the next one moves up", (MOVE_ON, "start += p.numel()\n            p.grad = None\n")),
        ("ones where there is none", (WHOLE, WHOLE.replace("zeros", "ones"))),
        ("stops at a missing one", (EACH, "    for p in parameters:\n        if p.grad is None:\n            break\n        if True:\n")),
    )),
    reduction("missing_gradients_are_zeros", "expects one everywhere", (EACH, "    for p in parameters:\n        if True:\n"), raises="on the ranks"),
    *(reduction("adds_to_the_shard", *mutant) for mutant in (
        ("replaced", (KEEP, "shard.grad = mine")),
        ("the mean of both", (KEEP, "shard.grad = mine if shard.grad is None else (shard.grad + mine) / 2")),
        ("what was there is kept", (KEEP, "shard.grad = mine if shard.grad is None else shard.grad")),
        ("divided again each time", (KEEP, "shard.grad = mine if shard.grad is None else shard.grad / n + mine")),
    )),
    *(reduction("adds_to_the_shard", *mutant) for mutant in (
        ("right twice, then replaced", (KEEP, "calls = reduce_gradients.__dict__.setdefault('calls', {})\n    calls[id(shard)] = calls.get(id(shard), 0) + 1\n    shard.grad = mine if shard.grad is None or calls[id(shard)] > 2 else shard.grad + mine")),
        ("the last mean counts twice", (KEEP, "shard.grad = mine if shard.grad is None else shard.grad + mine * (1 + (shard.grad is None))\n    shard.last = getattr(shard, 'last', 0) + 1\n    shard.grad = shard.grad + mine if shard.last > 2 else shard.grad")),
    )),
    *(reduction("leaves_nothing_whole", *mutant) for mutant in (
        ("received into the weights", (MINE, "    mine = shard.data\n"), (KEEP, "shard.grad = mine.clone() if shard.grad is None else shard.grad + mine")),
        ("a view of the whole at the second call", (KEEP, "whole[: shard.numel()] = mine if shard.grad is None else shard.grad + mine\n    shard.grad = mine if shard.grad is None else whole[: shard.numel()]")),
        ("steps on the way", (KEEP, KEEP + "\n    shard.data -= 0.1 * mine")),
        ("whole gradients stay", (FORGET, "            pass\n")),
        ("set to zero", (FORGET, "            p.grad = torch.zeros_like(p)\n")),
        ("a view of the whole", (MINE, "    mine = torch.empty_like(whole)[: shard.numel()]\n")),
        ("the first stays", (FORGET, "            p.grad = p.grad if p is parameters[0] else None\n")),
    )),
    *(reduction("sends_one_reduce_scatter", *mutant) for mutant in (
        ("an all-reduce", (SCATTER, "dist.all_reduce(whole)\n    mine.copy_(whole.chunk(n)[dist.get_rank()])")),
        ("a reduction to each rank", (SCATTER, "for r, part in enumerate(whole.chunk(n)):\n        dist.reduce(part, r)\n    mine.copy_(whole.chunk(n)[dist.get_rank()])")),
        ("a barrier first", (SCATTER, "dist.barrier()\n    " + SCATTER)),
        ("twice", (SCATTER, SCATTER + "\n    " + SCATTER)),
    )),
    # the gathering
    gathering("nothing", "    pass\n"),
    gathering("its own slice alone", "    n, rank = dist.get_world_size(), dist.get_rank()\n    flat.chunk(n)[rank].copy_(shard.detach())\n"),
    gathering("into copies", "    dist.all_gather([part.clone() for part in flat.chunk(dist.get_world_size())], shard.detach())\n"),
    gathering("in the wrong order", "    dist.all_gather(list(flat.chunk(dist.get_world_size()))[::-1], shard.detach())\n"),
    gathering("for two ranks", "    n = dist.get_world_size()\n    parts = list(flat.chunk(n))\n    dist.all_gather(parts, shard.detach())\n    for part in parts[2:]:\n        part.zero_()\n"),
    gathering("into new memory", "    new = torch.empty_like(flat)\n    dist.all_gather(list(new.chunk(dist.get_world_size())), shard.detach())\n    flat.data = new\n"),
    gathering("what the vector has, not the shard", "    n, rank = dist.get_world_size(), dist.get_rank()\n    dist.all_gather(list(flat.chunk(n)), flat.chunk(n)[rank].clone())\n"),
    gathering("comes back", ALL_GATHER + "    return flat\n"),
    gathering("the first numbers for ever", "    parts = [part.clone() for part in flat.chunk(dist.get_world_size())]\n    dist.all_gather(parts, shard.detach())\n    kept = gather_parameters.__dict__.setdefault('kept', {})\n    flat.copy_(kept.setdefault(flat.data_ptr(), torch.cat(parts)))\n"),
    gathering("the sum of all", "    parts = list(flat.chunk(dist.get_world_size()))\n    dist.all_gather(parts, shard.detach())\n    parts[0].copy_(sum(part.clone() for part in parts))\n"),
    *(gathering(name, body, "leaves_the_shard_alone") for name, body in (
        ("inside autograd", "    parts = list(flat.clone().chunk(dist.get_world_size()))\n    dist.all_gather(parts, shard.detach())\n    parts[dist.get_rank()] = shard\n    flat.copy_(torch.cat(parts))\n"),
        ("clears the gradient", ALL_GATHER + "    shard.grad = None\n"),
        ("empties the shard", ALL_GATHER + "    if shard.data_ptr() != flat.chunk(dist.get_world_size())[dist.get_rank()].data_ptr():\n        shard.data.zero_()\n"),
        ("requires a gradient", ALL_GATHER + "    flat.requires_grad_()\n"),
    )),
    *(gathering(name, body, "sends_one_all_gather") for name, body in (
        ("broadcasts", "    for r, part in enumerate(flat.chunk(dist.get_world_size())):\n        if r == dist.get_rank():\n            part.copy_(shard.detach())\n        dist.broadcast(part, r)\n"),
        ("a sum of vectors with zeros", "    values = shard.detach().clone()\n    flat.zero_()\n    flat.chunk(dist.get_world_size())[dist.get_rank()].copy_(values)\n    dist.all_reduce(flat)\n"),
        ("twice", ALL_GATHER + ALL_GATHER),
        ("objects", "    parts = [None] * dist.get_world_size()\n    dist.all_gather_object(parts, shard.detach().clone())\n    flat.copy_(torch.cat(parts))\n"),
    )),
    # fully_shard
    sharded("left as it is", "    return model\n"),
    sharded("replicated behind DDP", "    return DistributedDataParallel(model)\n"),
    sharded("replicated behind DDP, gradients as views", "    return DistributedDataParallel(model, gradient_as_bucket_view=True)\n"),
    sharded("replicated and called FSDP", """
    from torch.distributed.fsdp import ShardingStrategy
    return FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=rank_device(), use_orig_params=True)
"""),
    sharded("one unit", ROOT),
    sharded("one unit, older wrapper", "    return FullyShardedDataParallel(model, device_id=rank_device(), use_orig_params=True)\n"),
    sharded("parameters kept after forward", BODY.replace("mesh=mesh", "mesh=mesh, reshard_after_forward=False")),
    sharded("every second block", BODY.replace("model.blocks:", "model.blocks[::2]:")),
    sharded("no root", UNITS + "    return model\n"),
    sharded("no root, released all the same", UNITS.replace("mesh=mesh", "mesh=mesh, reshard_after_forward=True") + "    return model\n"),
    sharded("the root first", "    fully_shard(model, mesh=mesh)\n" + UNITS + "    return model\n", raises="on the ranks"),
    sharded("returns nothing", UNITS + "    fully_shard(model, mesh=mesh, **options)\n", raises="returned NoneType"),
    sharded("units of two blocks", """
    blocks = list(model.blocks)
    for i in range(0, len(blocks), 2):
        fully_shard(blocks[i : i + 2], mesh=mesh)
    return fully_shard(model, mesh=mesh)
"""),
    sharded("sharded beside a copy of all", "    model.copy = [p.detach().clone() for p in model.parameters()]\n" + BODY),
    sharded("every rank its own group", """
    from torch.distributed.device_mesh import DeviceMesh
    n = dist.get_world_size()
    mesh = DeviceMesh(rank_device().type, torch.arange(n).view(n, 1), mesh_dim_names=("copies", "parts"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
"""),
    sharded("gradients not averaged", BODY.replace("    return fully", "    for block in model.blocks:\n        block.set_requires_gradient_sync(False)\n    return fully")),
    sharded("in 16 bits", "    model.bfloat16()\n    model.register_forward_pre_hook(lambda _, args: args[0].bfloat16())\n    model.register_forward_hook(lambda _, args, out: out.float())\n" + BODY),
    sharded("half frozen", "    model.blocks[:6].requires_grad_(False)\n" + BODY),
    *(sharded(name, body, "shards_over_the_given_mesh") for name, body in (
        ("a mesh of its own, of all ranks", BODY.replace("mesh=mesh, ", "")),
        ("the default mesh for the root", BODY.replace("model, mesh=mesh", "model")),
        ("the default mesh for the blocks", BODY.replace("block, mesh=mesh", "block")),
        ("a flat mesh of all ranks", "    mesh = init_device_mesh(rank_device().type, (dist.get_world_size(),))\n" + BODY),
    )),
    *(sharded(name, body, "hands_options_on") for name, body in (
        ("no options for the blocks", BODY.replace("block, mesh=mesh, **options", "block, mesh=mesh")),
        ("no options for the root", BODY.replace("model, mesh=mesh, **options", "model, mesh=mesh")),
        ("no options", BODY.replace(", **options", "")),
        ("not for the last block", BODY.replace("block, mesh=mesh, **options", "block, mesh=mesh, **(options if block is not model.blocks[-1] else {})")),
    )),
]  # fmt: skip

RIGHT = {
    "by hand, with a list": """
import math

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def partition(parameters, rank, world_size):
    numbers = [p.detach().reshape(-1) for p in parameters]
    length = sum(len(part) for part in numbers)
    size = math.ceil(length / world_size)
    flat = torch.cat([*numbers, numbers[0].new_zeros(size * world_size - length)])
    for p, part in zip(parameters, flat.split([len(part) for part in numbers] + [size * world_size - length])):
        p.data = part.view(p.shape)
    return flat, flat.chunk(world_size)[rank]


def reduce_gradients(parameters, shard):
    n = dist.get_world_size()
    pieces = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    for p in parameters:
        p.grad = None
    whole = torch.cat(pieces).div(n)
    whole = torch.nn.functional.pad(whole, (0, n * shard.numel() - whole.numel()))
    received = torch.empty(shard.shape, dtype=whole.dtype, device=whole.device)
    dist.reduce_scatter(received, [whole[r * shard.numel() : (r + 1) * shard.numel()] for r in range(n)])
    if shard.grad is None:
        shard.grad = received
    else:
        shard.grad += received


def gather_parameters(flat, shard):
    with torch.no_grad():
        dist.all_gather(list(flat.split(shard.numel())), shard.data.clone())


def make_sharded(model, mesh, **options):
    for module in list(model.modules()):
        if not list(module.children()) and list(module.parameters()):
            fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)
""",
    "single tensors, newest names": """
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

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


def make_sharded(model, mesh, **options):
    model.blocks.apply(lambda m: fully_shard(m, mesh=mesh, **options) if m in list(model.blocks) else None)
    fully_shard(model, mesh=mesh, **options)
    return model
""",
    "later blocks first, layers of a block as one list": """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector


def partition(parameters, rank, world_size):
    vector = parameters_to_vector(parameters).detach()
    missing = -len(vector) % world_size
    flat = torch.cat([vector, torch.zeros(missing).to(vector)])
    torch.nn.utils.vector_to_parameters(flat[: len(vector)], parameters)
    shards = flat.view(world_size, -1)
    return flat, shards[rank]


def reduce_gradients(parameters, shard):
    n, size = dist.get_world_size(), shard.numel()
    outgoing = [torch.zeros(size).to(shard.data) for _ in range(n)]
    at = 0
    for p in parameters:
        if p.grad is not None:
            for i, number in enumerate(p.grad.flatten()):
                outgoing[(at + i) // size][(at + i) % size] = number
        p.grad = None
        at += p.numel()
    arrived = torch.zeros(size).to(shard.data)
    dist.reduce_scatter(arrived, outgoing, op=dist.ReduceOp.SUM)
    arrived.mul_(1 / n)
    if shard.grad is not None:
        arrived.add_(shard.grad)
    shard.grad = arrived


def gather_parameters(flat, shard):
    received = [torch.empty_like(shard.data) for _ in range(dist.get_world_size())]
    dist.all_gather(received, shard.data)
    flat.copy_(torch.cat(received))


def make_sharded(model, mesh, **options):
    for block in reversed(model.blocks):
        fully_shard([block.norm, block.up, block.down], mesh=mesh, **options)
    fully_shard([model.enter, model.leave], mesh=mesh, **options) if hasattr(model.enter, "weight") else None
    return fully_shard(model, mesh=mesh, **options)
""",
}
