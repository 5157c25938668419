# a stateful object

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful


class Run(Stateful):
    def __init__(self, model, optimizer, step=0):
        self.model, self.optimizer, self.step = model, optimizer, step

    def state_dict(self):
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"weights": weights, "moments": moments, "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["weights"], optim_state_dict=state["moments"])
        self.step = state["step"]


def save(model, optimizer, step, folder):
    dcp.save({"run": Run(model, optimizer, step)}, checkpoint_id=folder)


def load(model, optimizer, folder):
    run = Run(model, optimizer)
    dcp.load({"run": run}, checkpoint_id=folder)
    return run.step
