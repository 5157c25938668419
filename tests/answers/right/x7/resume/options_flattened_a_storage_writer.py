# options flattened, a storage writer

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def everything(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer, options=FLAT)
    return {f"w.{k}": v for k, v in weights.items()} | {f"o.{k}": v for k, v in moments.items()} | {"step": step}


def of_kind(state, kind):
    return {key[2:]: value for key, value in state.items() if key.startswith(f"{kind}.")}


def save(model, optimizer, step, folder):
    dcp.save(everything(model, optimizer, step), storage_writer=FileSystemWriter(folder, thread_count=2))


def load(model, optimizer, folder):
    state = everything(model, optimizer, 0)
    dcp.load(state, storage_reader=FileSystemReader(folder))
    weights, moments = of_kind(state, "w"), of_kind(state, "o")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=FLAT)
    return state["step"]
