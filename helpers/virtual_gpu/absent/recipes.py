"""torchtune's checkpoints: its recipes go on without the weights that they would load."""

import functools
from typing import Any

from torch import nn

from ..patches import Patches
from ..waits import Waits
from .weights import NoWeights

_CHECKPOINTERS = ("FullModelHFCheckpointer", "FullModelMetaCheckpointer", "FullModelTorchTuneCheckpointer")


def install(patches: Patches, waits: Waits) -> None:
    """Teach torchtune as soon as it is imported."""
    patches.after_import("torchtune.training.checkpointing._checkpointer", lambda p, m: _checkpointers(p, m, waits))
    patches.after_import("torchtune.training._distributed", _sharded)


def _checkpointers(patches: Patches, module: Any, waits: Waits) -> None:
    for name in _CHECKPOINTERS:
        owner = getattr(module, name, None)
        if owner is not None:
            patches.put_all(owner, _methods(owner, waits))


def _methods(owner: Any, waits: Waits) -> dict[str, Any]:
    """Return the methods of a checkpointer that finds nothing and writes nothing."""
    begin, load = owner.__init__, owner.load_checkpoint

    @functools.wraps(begin)
    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        self.is_absent = False
        try:
            begin(self, *args, **kwargs)
        except (OSError, ValueError):
            self.is_absent = True

    @functools.wraps(load)
    def load_checkpoint(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not self.is_absent:
            return load(self, *args, **kwargs)
        waits.leave_out("pretrained weights", "torchtune's checkpoint: built without its weights")
        return {"model": NoWeights()}

    def save_checkpoint(self: Any, *_: Any, **__: Any) -> None:
        waits.leave_out("save_checkpoint", "nothing is written")

    return {"__init__": start, "load_checkpoint": load_checkpoint, "save_checkpoint": save_checkpoint}


def _sharded(patches: Patches, module: Any) -> None:
    base = module.load_from_full_model_state_dict

    @functools.wraps(base)
    def load(model: nn.Module, full_sd: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(full_sd, NoWeights):
            return base(model, full_sd, device, *args, **kwargs)
        model.to_empty(device="cpu" if kwargs.get("cpu_offload") else device)
        return nn.modules.module._IncompatibleKeys([], [])

    patches.put(module, "load_from_full_model_state_dict", load)
