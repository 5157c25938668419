# moments by hand

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

KEYS = ("exp_avg", "exp_avg_sq")


def entries(model, optimizer):
    """Weights, buffers, moments and options by name; the moments are made where there are none yet."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, p in model.named_parameters():
        state = optimizer.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state |= {key: torch.zeros_like(p) for key in KEYS}
            optimizer.state[p] = state
        found |= {f"{key}.{name}": state[key] for key in KEYS}
        found["count." + name] = state["step"]
    for i, group in enumerate(optimizer.param_groups):
        options = [group["lr"], *group["betas"], group["eps"], group["weight_decay"]]
        found[f"options.{i}"] = torch.tensor(options, dtype=torch.float64)
    return found


def save(model, optimizer, step, folder):
    dcp.save(entries(model, optimizer) | {"step": torch.tensor(step)}, checkpoint_id=folder)
    dist.barrier()


def load(model, optimizer, folder):
    state = entries(model, optimizer) | {"step": torch.zeros((), dtype=torch.int64)}
    dcp.load(state, checkpoint_id=folder)  # in place
    for i, group in enumerate(optimizer.param_groups):
        group["lr"], *betas, group["eps"], group["weight_decay"] = state[f"options.{i}"].tolist()
        group["betas"] = tuple(betas)
    return state["step"].item()
