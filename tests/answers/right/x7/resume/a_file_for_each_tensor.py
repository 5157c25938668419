# a file for each tensor

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def save(model, optimizer, step, folder):
    weights, moments = get_state_dict(model, optimizer)
    writer = dcp.FileSystemWriter(folder, single_file_per_rank=False)
    dcp.save({"model": weights, "optimizer": moments, "step": step}, storage_writer=writer)


def load(model, optimizer, folder):
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": -1}
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]
