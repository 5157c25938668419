"""Watch a fine-tune: what runs through the model, in which mode, and what each update is made from."""

import copy
import hashlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..base import Evidence
from ..probing.fingerprint import fingerprint
from .small_llama import MicroBatch, fresh

LOOKED_AT = (2, 3, 8)  # the updates whose gradients are computed again: of equally many micro-batches


def _bits(model: nn.Module) -> list[str]:
    """Return a print of each trained parameter of `model`, all of its bits, in an order that does not matter."""
    parameters = (p.detach().cpu().flatten() for p in model.parameters() if p.requires_grad)
    return sorted(hashlib.sha256(p.view(torch.uint8).numpy().tobytes()).hexdigest()[:16] for p in parameters)


def _random_states(device: torch.device) -> list[Tensor]:
    """Return the states of the CPU's generator and of the device's, which dropout draws from there."""
    own = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state()]
    return [torch.get_rng_state(), *own]


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for own in states[1:]:
        torch.get_device_module(device).set_rng_state(own)


class Watched:
    """A fresh copy of the base whose forward passes, and all optimizers' updates, are noted in the block.

    It is the inner `LlamaModel` that notes, because every forward pass runs through it, also one that does without the
    language model around it; a copy of the base notes, too.

    Attributes:
        base: what the answer gets.
    """

    def __init__(self, seed: int, batches: list[list[MicroBatch]]) -> None:
        self.base = fresh(seed)
        self._labels = [labels for batch in batches for _, labels in batch]  # of each pass, in order
        self._before = {name: p.detach().clone() for name, p in self.base.named_parameters()}
        self._parameters = list(self.base.parameters())
        self._head = copy.deepcopy(self.base.get_output_embeddings())
        self._read: list[int] = []
        self._modes: set[bool] = set()
        self._stale = 0.0
        self._steps: list[torch.optim.Optimizer] = []
        self._held: dict[int, nn.Parameter] = {}
        self._trained: dict[int, nn.Parameter] = {}
        self._strangers: set[int] = set()
        self._likeness: list[float] = []
        self._like_means: list[float] = []
        self._sizes: list[list[float]] = []
        self._rates: list[list[float]] = []
        self._start: list[str] = []
        self._passes: list[tuple[nn.Module, Tensor, Tensor, list[Tensor]]] = []  # of this update
        self._off = True

    def __enter__(self) -> "Watched":
        self._off = False
        self._handles = [
            self.base.model.register_forward_pre_hook(self._forward, with_kwargs=True),
            self.base.model.register_forward_hook(self._watch_backward),
            register_optimizer_step_pre_hook(self._step),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        self._off = True  # a copy of the base keeps its hook
        for handle in self._handles:
            handle.remove()

    def __deepcopy__(self, memo: Any) -> "Watched":
        return self  # a copy of the base has its hook copied, and that is a method of this

    def _forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._off:
            return
        ids, mask = kwargs["input_ids"] if "input_ids" in kwargs else args[0], kwargs.get("attention_mask")
        self._read += fingerprint(ids if mask is None or mask.dim() != 2 else ids * mask)
        self._modes |= {m.training for m in module.modules()}
        self._trained |= {id(p): p for p in module.parameters() if p.requires_grad}
        if not self._read[1:]:
            self._start = _bits(module)
        labels = self._labels[min(len(self._read), len(self._labels)) - 1]
        labels = labels if labels.shape == ids.shape else ids  # another order is told by another check
        self._passes.append((module, ids, labels, _random_states(ids.device)))

    def _watch_backward(self, module: nn.Module, args: Any, output: Any) -> None:
        """Have the gradients looked at when an update's first backward pass begins, before it makes any."""
        if not self._off and output[0].requires_grad and len(self._passes) == 1:
            output[0].register_hook(lambda _: self._note_old_gradients(module))

    def _note_old_gradients(self, module: nn.Module) -> None:
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        self._stale = max(self._stale, *(g.abs().max().item() for g in gradients), 0.0)

    def _step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self._steps.append(optimizer)
        self._rates.append([float(group["lr"]) for group in optimizer.param_groups])
        self._held |= {id(p): p for p in held}
        self._strangers |= {id(p) for p in held if not p.requires_grad}
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            return self._look(optimizer, held)
        self._passes.clear()

        def looked_at() -> Any:  # the gradients are made by the closure
            loss = closure()
            self._look(optimizer, held)
            return loss

        return (optimizer, looked_at), {}

    def _look(self, optimizer: torch.optim.Optimizer, held: list[nn.Parameter]) -> None:
        if len(self._steps) in LOOKED_AT and self._passes:
            scaler = getattr(optimizer, "grad_scale", None)  # of an optimizer that unscales the gradients itself
            scale = 1.0 if scaler is None else float(scaler)
            likeness, of_means, sizes = self._like([p for p in held if p.grad is not None], scale)
            self._likeness.append(likeness)
            self._like_means.append(of_means)
            self._sizes.append(sizes)
        self._passes.clear()

    @torch.enable_grad()
    def _like(self, parameters: list[nn.Parameter], scale: float) -> tuple[float, float, list[float]]:
        """Compare the gradient of this update, divided by `scale`, with that of the mean loss of all tokens that count.

        The micro-batches run once more through the model, with the random numbers of the answer's own passes.

        Returns:
            the cosine between both, or with the latter clipped by value if that is larger; the cosine with the gradient
            of the mean of the micro-batches' means; both norms of the former.
        """
        if not parameters:
            return 0.0, 0.0, [0.0, 0.0]
        counted, total, of_means = 0, 0.0, 0.0
        for one in list(self._passes):
            gradient, count = self._gradient(parameters, *one)
            counted, total = counted + count, total + gradient
            of_means = of_means + gradient / max(1, count)
        seen = torch.cat([p.grad.flatten() for p in parameters]).double() / scale
        wanted, limit = total / max(1, counted), seen.abs().max().item()
        best = max((wanted, wanted.clamp(-limit, limit)), key=lambda g: F.cosine_similarity(seen, g, dim=0).item())
        both = [F.cosine_similarity(seen, goal, dim=0).item() for goal in (best, of_means)]
        return *both, [seen.norm().item(), best.norm().item()]

    def _gradient(
        self, parameters: list[nn.Parameter], module: nn.Module, ids: Tensor, labels: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, int]:
        """Return the gradient of the sum of a micro-batch's losses, flat, and how many of its tokens count."""
        self._off = True
        now = _random_states(ids.device)
        _set_random_states(ids.device, states)
        logits = self._head(module(input_ids=ids, use_cache=False).last_hidden_state)[:, :-1]
        _set_random_states(ids.device, now)
        self._off = False
        wanted = labels[:, 1:].flatten()
        loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted, reduction="sum")
        right = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in right]).double(), int((wanted != -100).sum())

    def evidence(self, batches: list[list[MicroBatch]], tuned: nn.Module) -> Evidence:
        """Return what was noted, and how `tuned`, which came back, relates to the base."""
        trained = self._trained | self._held | {id(p): p for p in tuned.parameters() if p.requires_grad}
        for stranger in self._strangers:
            trained.pop(stranger)
        rest = [p for p in tuned.parameters() if id(p) not in trained]
        survived = [any(p.shape == b.shape and torch.equal(p, b) for p in rest) for b in self._before.values()]
        given = [torch.equal(p, b) for p, b in zip(self._parameters, self._before.values(), strict=True)]
        return {
            "in order": self._read == fingerprint(*(ids for batch in batches for ids, _ in batch)),
            "another order": sorted(self._read) == sorted(fingerprint(*(ids for batch in batches for ids, _ in batch))),
            "passes": len(self._read),
            "micro-batches": sum(map(len, batches)),
            "stale": self._stale,
            "modes": sorted(self._modes),
            "left training": any(m.training for m in tuned.modules()),
            "steps": len(self._steps),
            "optimizers": sorted({type(optimizer).__name__ for optimizer in self._steps}),
            "number of optimizers": len({id(optimizer) for optimizer in self._steps}),
            "likeness": self._likeness,
            "like means": self._like_means,
            "sizes": self._sizes,
            "rates": self._rates,
            "start": self._start,
            "end": _bits(tuned),
            "trained": sum(p.numel() for p in trained.values()),
            "left out": len(trained.keys() - self._held.keys()),
            "strangers": len(self._strangers),
            "tensors": len(self._before),
            "lost": max(survived.count(False), given.count(False)),
            "gradients": sum(p.grad is not None for p in rest),
        }
