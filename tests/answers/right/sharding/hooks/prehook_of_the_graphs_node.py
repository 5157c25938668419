# prehook of the graph's node

from functools import partial

from helpers.exercises.reference.sharding import gather_parameters, reduce_gradients


def _complete(flat, shard, *_):
    flat.untyped_storage().resize_(flat.nbytes)
    gather_parameters(flat, shard)


def _drop(flat, *_):
    flat.untyped_storage().resize_(0)


def _watch(flat, shard, module, args, y):
    if y.grad_fn is not None:
        y.grad_fn.register_prehook(partial(_complete, flat, shard))
    _drop(flat)


def _finish(params, flat, shard, stage, _):
    if None not in [p.grad for p in params]:
        reduce_gradients(params, shard)
        if stage == 3:
            _drop(flat)


def add_hooks(block, flat, shard, stage):
    params = tuple(block.parameters())
    for p in params:
        p.register_post_accumulate_grad_hook(partial(_finish, params, flat, shard, stage))
    if stage == 3:
        _drop(flat)
        block.register_forward_pre_hook(partial(_complete, flat, shard))
        block.register_forward_hook(partial(_watch, flat, shard))
