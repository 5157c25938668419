"""One stage of a pipeline without its neighbors: it decides as if they had what it has.

PyTorch's stages vote whether their shapes are known, and send each other what they found out. A stage that was given
example inputs needs nothing more. The first stage finds its shapes itself. A later one has to be given them.
"""

from typing import Any

import torch

from .absent.models import AbsentError
from .patches import Patches


def install(patches: Patches) -> None:
    """Teach PyTorch's pipeline stages as soon as they are imported."""
    patches.after_import("torch.distributed.pipelining.stage", _votes)


def _votes(patches: Patches, module: Any) -> None:
    stage = module.PipelineStage
    if not hasattr(stage, "_warmup_forward_vote"):
        return  # an older PyTorch, whose stages do not vote
    forward, backward = stage._warmup_forward_vote, stage._warmup_backward_result

    def vote(self: Any, has_backward: bool, received_acc: Any = None) -> Any:
        mine = 0 if module.InferenceMode.needs_dynamic(self._user_meta, has_backward) else 1
        self._dry_vote = mine if received_acc is None else mine * int(received_acc)
        return torch.full_like(forward(self, has_backward, received_acc), self._dry_vote)

    def outcome(self: Any, received_result: Any = None) -> Any:
        return torch.full_like(backward(self, received_result), self._dry_vote)

    def receive(self: Any, src_stage: int) -> Any:
        if src_stage > self.stage_index:
            return module._StageBackwardMeta(module._derive_grad_metas(self._stage_meta.outputs))
        raise AbsentError(
            f"Stage {self.stage_index} of the pipeline learns its shapes from the rank before it, which is not there: "
            "give PipelineStage its input_args and output_args, or run --rank 0."
        )

    patches.put_all(stage, {"_warmup_forward_vote": vote, "_warmup_backward_result": outcome, "_recv_meta": receive})
