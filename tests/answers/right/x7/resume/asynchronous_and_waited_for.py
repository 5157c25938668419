# asynchronous and waited for

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)


def parts(model, optimizer):
    return {"m": get_model_state_dict(model), "o": get_optimizer_state_dict(model, optimizer)}


def save(model, optimizer, step, folder):
    state = parts(model, optimizer) | {"step": torch.tensor(step)}
    dcp.async_save(state, checkpoint_id=folder).result()
    dist.barrier()


def load(model, optimizer, folder):
    state = parts(model, optimizer) | {"step": torch.tensor(0)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["m"])
    set_optimizer_state_dict(model, optimizer, state["o"])
    return int(state["step"])
