"""Wrong and right answers for the practice task of sharding."""

from . import Mutant

SHARDED, HOLDS = "sharding.sharded", "holds_its_share_and_no_more"
BODY = "    for block in model.blocks:\n        fully_shard(block, mesh=mesh)\n    fully_shard(model, mesh=mesh)  # what is outside the blocks, and the root that coordinates them\n    return model\n"


def one(name: str, body: str, raises: str = "") -> Mutant:
    return Mutant(name, SHARDED, HOLDS, ((BODY, body),), raises)


MUTANTS = [
    one("left as it is", "    return model\n"),
    one("replicated behind DDP", "    return DistributedDataParallel(model)\n"),
    one("replicated behind DDP, gradients as views", "    return DistributedDataParallel(model, gradient_as_bucket_view=True)\n"),
    one("replicated and called FSDP", """
    from torch.distributed.fsdp import ShardingStrategy
    return FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=rank_device(), use_orig_params=True)
"""),
    one("one unit", "    fully_shard(model, mesh=mesh)\n    return model\n"),
    one("one unit, older wrapper", "    return FullyShardedDataParallel(model, device_id=rank_device(), use_orig_params=True)\n"),
    one("parameters kept after forward", BODY.replace("mesh=mesh", "mesh=mesh, reshard_after_forward=False")),
    one("every second block", BODY.replace("model.blocks:", "model.blocks[::2]:")),
    one("no root", BODY.replace("    fully_shard(model", "    #")),
    one("no root, released all the same", BODY.replace("    fully_shard(model", "    #").replace("(block, mesh=mesh", "(block, mesh=mesh, reshard_after_forward=True")),
    one("the root first", "    fully_shard(model, mesh=mesh)\n" + BODY.replace("    fully_shard(model", "    #"), raises="on the ranks"),
    one("returns nothing", BODY.replace("    return model\n", ""), raises="returned NoneType"),
    one("units of two blocks", """
    blocks = list(model.blocks)
    for i in range(0, len(blocks), 2):
        fully_shard(blocks[i : i + 2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
"""),
    one("sharded beside a copy of all", "    model.copy = [p.detach().clone() for p in model.parameters()]\n" + BODY),
    one("every rank its own group", """
    from torch.distributed.device_mesh import DeviceMesh
    n = dist.get_world_size()
    mesh = DeviceMesh(rank_device().type, torch.arange(n).view(n, 1), mesh_dim_names=("copies", "parts"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model
"""),
    one("gradients not averaged", BODY.replace("    return", "    for block in model.blocks:\n        block.set_requires_gradient_sync(False)\n    return")),
    one("in 16 bits", "    model.bfloat16()\n    model.register_forward_pre_hook(lambda _, args: args[0].bfloat16())\n    model.register_forward_hook(lambda _, args, out: out.float())\n" + BODY),
    one("half frozen", "    model.blocks[:6].requires_grad_(False)\n" + BODY),
]  # fmt: skip

RIGHT = {
    "older wrapper": """
from helpers import rank_device

from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def make_sharded(model, mesh):
    policy = ModuleWrapPolicy({type(model.blocks[0])})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=rank_device(), use_orig_params=True)
""",
    "older wrapper, flat parameters": """
from helpers import rank_device

from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def make_sharded(model, mesh):
    policy = ModuleWrapPolicy({type(model.blocks[0])})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=rank_device())
""",
    "each layer a unit": """
from torch.distributed.fsdp import fully_shard


def make_sharded(model, mesh):
    for module in list(model.modules()):
        if not list(module.children()) and list(module.parameters()):
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)
""",
}
