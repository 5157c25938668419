"""Checks of part 4: the fine-tune. Hooks record what was trained, by which optimizer and in which mode."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...core.data import english, python_source
from ...core.device import pick_device
from ...core.units import human_bytes
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.fingerprint import OTHER_DATA, fingerprint
from ..probing.plain import plain
from .small_llama import STEPS, batches_of, fresh, held_out, pretrained

RANK = 8


@torch.no_grad()
def _loss(model: nn.Module, seed: int) -> float:
    """Return the loss on held-out Python. The model sees no token before it has predicted it."""
    ids, losses = held_out(seed, 256), []
    for length in range(6, ids.shape[1], 6):
        logits = plain(model(input_ids=ids[:, :length]).logits)[:, -1]
        losses.append(F.cross_entropy(logits.float(), ids[:, length]))
    return torch.stack(losses).mean().item()


class _Optimizers:
    """A context that records, at each step of any optimizer, which parameters it holds."""

    def __init__(self) -> None:
        self.steps = 0
        self.held: set[int] = set()
        self.kinds: set[str] = set()

    def __enter__(self) -> "_Optimizers":
        self._handle = register_optimizer_step_pre_hook(self._step)
        return self

    def _step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.steps += 1
        self.kinds.add(type(optimizer).__name__)
        self.held |= {id(p) for group in optimizer.param_groups for p in group["params"]}

    def __exit__(self, *_: object) -> None:
        self._handle.remove()


class LearnsTheNewText(Check):
    """After one pass over the batches, in training mode, the loss on other Python fell by 0.7 of what LoRA can do."""

    points = 1
    hint = (
        "For each batch in turn: clear gradients, forward, backward, step. Where only the loss is too high: LoRA "
        "bears, and needs, a larger learning rate than full training; try 5e-3 to 2e-2."
    )
    SHARE = 0.7  # of the fall in loss of the reference

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        model = fresh(seed)
        before = _loss(model, seed)
        batches = batches_of(python_source(), STEPS, seed)
        given = [ids.sum().item() for ids in batches]  # tells batches apart
        texts = fingerprint(*batches, held_out(seed), english().train_x)
        read: list[float] = []
        modes: set[bool] = set()
        stale: list[float] = []

        def spy(module: nn.Module, args: Any, kwargs: Any) -> None:
            read.append((kwargs["input_ids"] if "input_ids" in kwargs else args[0]).sum().item())
            modes.add(module.training)
            stale.append(
                max((p.grad.abs().max().item() for p in module.parameters() if p.grad is not None), default=0.0)
            )

        handle = model.register_forward_pre_hook(spy, with_kwargs=True)
        with _Optimizers() as optimizers:
            tuned = fine_tune(model, batches)
        handle.remove()
        passes, in_modes, left = list(read), sorted(modes), max(stale, default=0.0)  # a copied base still has the spy
        left_training = tuned.training
        tuned.eval()
        return {
            "texts": texts,
            "before": before,
            "after": _loss(tuned, seed),
            "in order": passes == given,
            "passes": len(passes),
            "stale": left,
            "optimizers": sorted(optimizers.kinds),
            "modes": in_modes,
            "steps": optimizers.steps,
            "left training": left_training,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["texts"] != expected["texts"] or not abs(seen["before"] / expected["before"] - 1) <= 0.01:
            return OTHER_DATA
        if not seen["in order"]:
            ran = f"The model ran {seen['passes']} times"
            return f"{ran}, and not once on each of the {STEPS} batches, whole and in order."
        if seen["steps"] != STEPS:
            return f"{seen['steps']} updates were made for {STEPS} batches."
        if seen["optimizers"] != ["AdamW"]:
            return f"The optimizer is {', '.join(seen['optimizers'])}; AdamW was asked for."
        if seen["stale"]:
            return "Gradients of the batch before were still there when the next one began."
        if seen["modes"] != [True]:
            return "The model was in evaluation mode while it was trained: dropout slept."
        if seen["left training"]:
            return "The model is returned in training mode; whoever uses it next would drop out activations."
        if seen["after"] > seen["before"]:
            return (
                f"The loss rose from {seen['before']:.3f} to {seen['after']:.3f}. Do the updates go down the gradient "
                "of the loss of the next token, at a learning rate that is not too large?"
            )
        fall, possible = (entry["before"] - entry["after"] for entry in (seen, expected))
        if not fall >= LearnsTheNewText.SHARE * possible:
            enough = seen["before"] - LearnsTheNewText.SHARE * possible
            return (
                f"The loss went from {seen['before']:.3f} to {seen['after']:.3f}; {expected['after']:.3f} can be "
                f"reached, {enough:.3f} is enough. Which learning rate does it take?"
            )
        return None


class BaseIsFrozen(Check):
    """The base is unchanged to the last bit; gradients and the optimizer's state exist for adapters only."""

    points = 1
    hint = "Which parameters does the optimizer get? requires_grad tells them apart. Look at the base's .grad, too."

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        model = fresh(seed)
        base = [p.detach().clone() for p in model.parameters()]
        batches = batches_of(python_source(), 4, seed)
        with _Optimizers() as optimizers, MemoryMeter(device=pick_device()) as meter:
            tuned = fine_tune(model, batches)
        frozen = [p for p in tuned.parameters() if not p.requires_grad]
        trained = [p for p in tuned.parameters() if p.requires_grad]
        survived = [any(p.shape == b.shape and torch.equal(plain(p), b) for p in frozen) for b in base]
        return {
            "lost": survived.count(False),
            "tensors": len(base),
            "trained": sum(p.numel() for p in trained),
            "gradients": sum(p.grad is not None for p in frozen),
            "strangers": len(optimizers.held - {id(p) for p in trained}),
            "peak": meter.peak_bytes,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["lost"]:
            return f"{seen['lost']} of the base's {seen['tensors']} tensors have changed, or are trained now."
        if seen["trained"] != expected["trained"]:
            return f"{seen['trained']:,} parameters are trained; adapters of rank {RANK} have {expected['trained']:,}."
        if seen["gradients"]:
            return f"{seen['gradients']} frozen tensors have gradients."
        if seen["strangers"]:
            return f"The optimizer holds {seen['strangers']} tensors that are not trained."
        if not seen["peak"] <= 1.5 * expected["peak"]:
            peak, enough = human_bytes(seen["peak"]), human_bytes(expected["peak"])
            return f"The peak of the fine-tune is {peak} above what was there before; {enough} is enough."
        return None


class MergedIsEqual(Check):
    """Merged, it is an ordinary model again: the base's parameters by name, and the same output."""

    points = 1
    hint = "PEFT's merge_and_unload does both. Compare the logits in evaluation mode."

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        base = pretrained(seed)
        tuned = fine_tune(fresh(seed), batches_of(python_source(), 8, seed))
        ids = batches_of(python_source(), 1, seed + 1)[0]
        with torch.no_grad():
            unmerged = plain(tuned.eval()(input_ids=ids).logits).clone()
            merged = merged_model(tuned)
            logits = plain(merged.eval()(input_ids=ids).logits)
            moved = ((unmerged - base(input_ids=ids).logits).norm() / unmerged.norm()).item()
        return {
            "off": ((logits - unmerged).norm() / unmerged.norm()).item(),
            "moved": moved,
            "kind": [type(merged).__name__, type(base).__name__],
            "same names": [n for n, _ in merged.named_parameters()] == [n for n, _ in base.named_parameters()],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["same names"]:
            return "Its parameters are not those of the base, by name: adapters, or a wrapper, are still there."
        if seen["kind"] != expected["kind"]:
            return f"It is a {seen['kind'][0]}, and should be an ordinary {expected['kind'][0]}."
        if not seen["off"] <= 1e-4:
            return f"The merged model's output is {seen['off']:.2g} off, relative, from the unmerged one's."
        if not seen["moved"] > 1e-3:
            return "The output is that of the base: no adapter has been merged."
        return None


FINETUNE = (LearnsTheNewText, BaseIsFrozen, MergedIsEqual)
