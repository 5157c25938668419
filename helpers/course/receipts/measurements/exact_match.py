"""The fine-tune of lab "adapters_in_practice" with three seeds: how far its score by exact match varies."""

import copy
import statistics

import torch
import torch.nn.functional as F

from ....claims.claims import Claims
from ....core.real_model import RealModelError, real_model
from ....exercises.adapters_in_practice.number_task import NumberTask
from ....exercises.lora.fine_tune import fine_tune
from ....exercises.reference.adapters_in_practice import exactly_right, pack
from ..steps import Skip

_SEEDS, _STEPS, _LR = range(3), 10, 4e-3  # as in the lab, whose own run is another one


def measure(claims: Claims, device: torch.device) -> None:
    """Record the score before, after each run, and the least rise; seeds draw A and the order of the examples."""
    from peft import LoraConfig, get_peft_model

    try:
        base, tokenizer, name = real_model()
    except RealModelError as error:
        raise Skip(str(error)) from error
    base = base.to(device)
    task = NumberTask(tokenizer, device)
    task.pack = pack
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    before, _ = _score(task, base)
    after = []
    for seed in _SEEDS:
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(base), config)
        fine_tune(model, lambda step, seed=seed, model=model: task.loss(model, _drawn(task, seed, step)), _STEPS, _LR)
        right, loss = _score(task, model.eval())
        after.append(right)
        subject = f"{name}, numbers in words, {_STEPS} steps of LoRA r=8, seed {seed}"
        claims.figure("exactly right", subject, right, "%")
        claims.figure("held-out loss", subject, loss, "nats a token")
    subject = f"{name}, numbers in words, {_STEPS} steps of LoRA r=8, {len(_SEEDS)} seeds"
    claims.figure("exactly right", f"{name}, numbers in words, before", before, "%")
    claims.record(
        "T42",
        "a LoRA fine-tune teaches the task",
        f"{subject}: the least rise",
        min(after) - before,
        "points more exactly right",
        30,
        100,
    )
    claims.figure("spread of the score", subject, statistics.stdev(after), "points, standard deviation")


def _drawn(task: NumberTask, seed: int, step: int) -> list[int]:
    return task.drawn(1000 * (seed + 1) + step)


@torch.no_grad()
def _score(task: NumberTask, model: torch.nn.Module) -> tuple[float, float]:
    """Return the share of unseen numbers exactly right, in per cent, and their loss."""
    logits, labels = task.outputs(model)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).item()
    return 100 * exactly_right(logits, labels).float().mean().item(), loss
