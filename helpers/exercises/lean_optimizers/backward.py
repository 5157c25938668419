"""Check of an optimizer step inside the backward pass, for any model."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.device import pick_device
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance

SAME = 1e-4  # relative, of the way the weights went; other kernels round differently
_TIED = "tokens.weight"  # of `_Subject`; the head uses it too
ROOM = 1.2  # gradients may hold so many times what the reference holds


class _Subject(nn.Module):
    """A model with everything that gets in the way: tied weights, a frozen layer, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 24)
        self.inner = nn.Linear(24, 96)
        self.frozen = nn.Linear(96, 24).requires_grad_(False)
        self.norm = nn.LayerNorm(24)
        self.spare = nn.Linear(8, 8)
        self.head = nn.Linear(24, 40)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return self.head(self.norm(x + self.frozen(torch.tanh(self.inner(x)))))

    def loss(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def _subject(seed: int, batches: int) -> tuple[_Subject, list[Tensor]]:
    torch.manual_seed(seed)
    model = _Subject()
    return model.to(pick_device()), [torch.randint(40, (6, 12)).to(pick_device()) for _ in range(batches)]


def _everything(model: nn.Module) -> Iterator[nn.Parameter]:
    """Go through all parameters module by module: frozen ones too, and a tied one twice."""
    return (p for module in model.modules() for p in module.parameters(recurse=False))


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()


_MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW with weight decay": lambda ps: torch.optim.AdamW(ps, lr=0.02, weight_decay=0.5),
    "SGD with momentum": lambda ps: torch.optim.SGD(ps, lr=0.3, momentum=0.9, weight_decay=0.1),
}


class StepsLikeOneOptimizer(Check):
    """Each backward pass moves the weights as one optimizer for all parameters would, with a learning-rate schedule."""

    hint = (
        "What should happen when one gradient is complete? The hook does only that.\n"
        "Inside the hook: step the parameter's own optimizer once, then free the gradient. The optimizer is made "
        "outside of it, and is the one you return: a schedule writes its learning rates there.\n"
        "A function defined in a loop looks up its variables when it runs, after the loop. A default argument, "
        "`optimizer=optimizer`, is looked up at once."
    )

    @staticmethod
    def probe(seed: int, step_in_backward: Callable[..., Any]) -> Evidence:
        seen: Evidence = {}
        for case, make in _MAKERS.items():
            model, batches = _subject(seed, 4)
            start = _flat(model)
            optimizers, _ = step_in_backward(_everything(model), make)
            ways, moved, left = [], [], []
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            for number, ids in enumerate(batches):
                for optimizer in optimizers:
                    for group in optimizer.param_groups:
                        group["lr"] = optimizer.defaults["lr"] * (1 - number / 4)
                model.loss(ids).backward()
                ways.append((_flat(model) - start).tolist())
                left.append(sum(p.grad is not None for p in model.parameters()))
                moved.append(
                    [name for name, p in model.named_parameters() if not torch.equal(p.detach(), before[name])]
                )
            seen[case] = {"first": ways[0], "last": ways[-1], "moved": moved[0], "left": left[0]}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if not any(got["first"]):
                return (
                    f"{case}: after a backward pass no weight has changed. Is there a gradient when the step is taken? "
                    "It has to be complete, and not freed yet."
                )
            if len(got["moved"]) < len(want["moved"]):
                share = f"{len(got['moved'])} of the {len(want['moved'])} tensors that get a gradient"
                return (
                    f"{case}: in a backward pass {share} moved ({', '.join(got['moved'])}). Does each of them have a "
                    "hook that steps its own optimizer, or do several hooks step the same one?"
                )
            off = relative_distance(got["first"], want["first"])
            if not off <= SAME:
                return (
                    f"{case}: after one backward pass the weights are off by {off:.2g} times their correct change. "
                    "Does each hook step once, when the gradient of its own parameter is complete?"
                )
            off = relative_distance(got["last"], want["last"])
            if not off <= SAME and got["left"]:
                return (
                    f"{case}: the first step is right, and leaves {got['left']} parameters with their gradient, to "
                    f"which the next backward pass adds. After four, the weights are off by {off:.2g} of their change."
                )
            if not off <= SAME:
                return (
                    f"{case}: the first step is right; after four, with a falling learning rate, the weights are off "
                    f"by {off:.2g} of their change. Is the state kept, and does the schedule reach "
                    "the right optimizers?"
                )
        return None


class FreesEachGradientAtOnce(Check):
    """Gradients are never all alive together: each is freed as soon as its parameter has been stepped."""

    hint = (
        "After the step, which variable still refers to the gradient?\n"
        "`zero_grad()` sets gradients to None and so frees their memory; zeros take as much memory as other numbers."
    )

    @staticmethod
    def probe(seed: int, step_in_backward: Callable[..., Any]) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(10))).to(device)
        x = torch.randn(4, 96, device=device)
        optimizers, _ = step_in_backward(model.parameters(), lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9))
        model(x).square().mean().backward()
        with MemoryMeter(model, optimizers) as meter:
            model(x).square().mean().backward()
        return {
            "gradients": meter.largest["gradients"],
            "all": sum(p.nbytes for p in model.parameters()),
            "left": sum(p.grad is not None for p in model.parameters()),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["left"]:
            return (
                f"{seen['left']} parameters still have a gradient after the backward pass. Where does the hook free it?"
            )
        if not seen["gradients"] > 0:
            return (
                "None of the optimizers that you return took a step during the backward pass, so there is "
                "nothing to measure. Which optimizer takes the step?"
            )
        if not seen["gradients"] <= ROOM * expected["gradients"]:
            share = seen["gradients"] / seen["all"]
            return (
                f"At one point, {share:.0%} of the gradients (by size) are alive at once; "
                f"at most {ROOM * expected['gradients'] / seen['all']:.0%} is allowed. What keeps them alive?"
            )
        return None


class OneOptimizerForEach(Check):
    """Each trained parameter has its own optimizer, which steps once per backward pass; frozen ones have none."""

    hint = (
        "Which of the parameters will get a gradient? Does any appear twice?\n"
        "Check `parameter.requires_grad` first. A tied weight appears twice, but is one tensor: "
        "remember those that you "
        "have seen (`dict.fromkeys` drops repetitions and keeps the order).\n"
        "`p in a_list` compares the tensors' values; compare by `is` or by `id(p)`."
    )

    @staticmethod
    def probe(seed: int, step_in_backward: Callable[..., Any]) -> Evidence:
        model, batches = _subject(seed, 2)
        names = {id(p): name for name, p in model.named_parameters()}
        made: list[torch.optim.Optimizer] = []
        steps: dict[int, int] = {}

        def make(parameters: Any) -> torch.optim.Optimizer:
            optimizer = torch.optim.SGD(parameters, lr=0.01)
            steps[len(made)] = 0
            made.append(optimizer)

            def count(*_: Any, number: int = len(made) - 1) -> None:
                steps[number] += 1

            optimizer.register_step_post_hook(count)
            return optimizer

        optimizers, _ = step_in_backward(_everything(model), make)
        before = len(made)
        for ids in batches:
            model.loss(ids).backward()
        kept = {id(optimizer) for optimizer in optimizers}
        rows = [
            ([names[id(p)] for group in o.param_groups for p in group["params"]], steps[i], id(o) in kept)
            for i, o in enumerate(made)
        ]
        return {"made": sorted(rows), "later": len(made) - before, "returned": len(kept)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["later"]:
            return (
                f"{seen['later']} optimizers were made during two backward passes. Make each one before the first: "
                "a new optimizer has no state, and no schedule sets its learning rate."
            )
        owners: dict[str, int] = {}
        for names, _, _ in seen["made"]:
            if len(names) != 1:
                return f"An optimizer was made for {len(names)} parameters; make one for each: make_optimizer([p])."
            owners[names[0]] = owners.get(names[0], 0) + 1
        right = {names[0]: steps for names, steps, _ in expected["made"]}
        for name, number in owners.items():
            if name not in right:
                return f"{name} is frozen and has an optimizer. Leave out parameters that do not require a gradient."
            if number > 1:
                tied = (
                    " It is a tied weight: the iterable yields it twice, but it is one tensor." if name == _TIED else ""
                )
                return f"{number} optimizers were made for {name}; it needs one.{tied}"
        for name in right:
            if name not in owners:
                return f"{name} is trained, and no optimizer was made for it."
        for (name,), steps, returned in seen["made"]:
            if not returned:
                return f"The optimizer of {name} is not among those you return."
            if steps != right[name]:
                return (
                    f"In two backward passes the optimizer of {name} should take {right[name]} steps; it took {steps}."
                )
        if seen["returned"] != expected["returned"]:
            return f"{expected['returned']} optimizers should be returned; there are {seen['returned']}."
        return None


class CanBeRemoved(Check):
    """When all handles are removed, a backward pass makes gradients as usual and updates nothing."""

    hint = (
        "How can the caller remove a hook again?\n"
        "`register_post_accumulate_grad_hook` returns a handle. Keep each of them in a list, and return the list."
    )

    @staticmethod
    def probe(seed: int, step_in_backward: Callable[..., Any]) -> Evidence:
        model, batches = _subject(seed, 2)
        _, handles = step_in_backward(_everything(model), lambda ps: torch.optim.SGD(ps, lr=0.1))
        start, there = _flat(model), {name: p.detach().clone() for name, p in model.named_parameters()}
        model.loss(batches[0]).backward()
        stepped = _flat(model)
        for handle in handles:
            handle.remove()
        for p in model.parameters():
            p.grad = None  # whether the hook has left one is another check's business,
        model.load_state_dict(there, strict=False)  # and so is whether it went the right way
        for ids in batches:
            model.loss(ids).backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        return {
            "before": (stepped - start).norm().item(),
            "after": (_flat(model) - start).norm().item(),
            "gradients": torch.cat(gradients).tolist() if gradients else [],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["before"] > 0:
            return "The backward pass updated nothing even before the handles were removed."
        if not seen["after"] <= 0:
            return "The handles were removed, and a backward pass still updates weights: some hook has no handle."
        if not seen["gradients"]:
            return "The handles were removed, and gradients still disappear: some hook that frees them has no handle."
        off = relative_distance(seen["gradients"], expected["gradients"])
        if not off <= SAME:
            return f"With the handles removed, two backward passes should add up their gradients; off by {off:.2g}."
        return None


BACKWARD = (StepsLikeOneOptimizer, FreesEachGradientAtOnce, OneOptimizerForEach, CanBeRemoved)
