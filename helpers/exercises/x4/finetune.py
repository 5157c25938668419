"""Checks of part 4: the fine-tune, as it is watched, and what it has learned."""

import copy
from typing import Any

import torch
from torch import nn

from ...core.data import english, python_source
from ..base import Check, Evidence
from ..probing.fingerprint import OTHER_DATA, fingerprint
from ..probing.plain import plain
from .small_llama import (
    STEPS,
    batches_of,
    copied,
    held_out,
    loss_before,
    loss_on_held_out,
    pretrained,
    tensors_of,
)
from .watched import LOOKED_AT, Watched

RANK = 8
ALIKE = 0.999  # a cosine; under autocast in BF16 it is 0.9999, with a row of the batch left out less than 0.997
EXACTLY = 0.01  # by how much a gradient's norm may be off: in BF16 it is off by less
AGAIN = 3  # batches of a second fine-tune, which must not know of the first


def observe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
    """Watch one fine-tune on all batches, and measure what has been learned."""
    batches = batches_of(python_source(), STEPS, seed)
    texts = fingerprint(*tensors_of(batches), held_out(seed), english().train_x)
    with Watched(seed, batches) as watched:
        tuned = fine_tune(watched.base, copied(batches))
    seen = watched.evidence(batches, tuned)
    return seen | {"texts": texts, "before": loss_before(seed), "after": loss_on_held_out(tuned.eval(), seed)}


class LearnsTheNewText(Check):
    """After one pass, in training mode, the loss on other Python falls by 0.7 of the reference's fall."""

    points = 1
    hint = (
        "For each batch: count the labels that are predicted and not -100, in all of its micro-batches. Then, for each "
        "micro-batch, forward and backward, its sum of losses divided by that count. Then step and clear gradients.\n"
        "If only the loss is too high, raise the rate: LoRA tolerates, and needs, a larger learning rate than full "
        "training; try 5e-3 to 2e-2."
    )
    SHARE = 0.7  # of the fall in loss of the reference

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["texts"] != expected["texts"] or not abs(seen["before"] / expected["before"] - 1) <= 0.01:
            return OTHER_DATA
        wrong = _wrong_course(seen, STEPS)
        if wrong:
            return wrong
        wrong = _wrong_gradient(seen, expected)
        if wrong and seen["after"] > seen["before"] and seen["likeness"][0] >= ALIKE:
            rates = ", ".join(f"{rate:g}" for rate in sorted({rate for rates in seen["rates"] for rate in rates})[-1:])
            return (
                f"The loss rose from {seen['before']:.3f} to {seen['after']:.3f}: training diverges. The gradient of "
                f"update {LOOKED_AT[0]} is right. Is the learning rate ({rates}) too high?"
            )
        if wrong:
            return wrong
        if seen["after"] > seen["before"]:
            return (
                f"The loss rose from {seen['before']:.3f} to {seen['after']:.3f}. Do the updates follow the negative "
                "gradient of the next-token loss? Is the learning rate too high?"
            )
        fall, possible = (entry["before"] - entry["after"] for entry in (seen, expected))
        if not fall >= LearnsTheNewText.SHARE * possible:
            enough = seen["before"] - LearnsTheNewText.SHARE * possible
            return (
                f"The loss fell from {seen['before']:.3f} to {seen['after']:.3f}. LoRA can reach "
                f"{expected['after']:.3f}, and {enough:.3f} is enough. Which learning rate do you need?"
            )
        return None


def _wrong_course(seen: Evidence, batches: int) -> str | None:
    """Say where a fine-tune did not take one AdamW step on each batch, in training mode."""
    if not seen["in order"]:
        ran = f"The model ran {seen['passes']} times"
        every = f"each of the {seen['micro-batches']} micro-batches"
        if seen["another order"]:
            return f"{ran}, once on {every}, but not in the given order."
        return f"{ran}; it should run once on {every}, with all of its tokens and in order."
    if seen["steps"] != batches:
        return f"{seen['steps']} updates were made for {batches} batches."
    if seen["optimizers"] != ["AdamW"]:
        return f"The optimizer is {', '.join(seen['optimizers'])}; it should be AdamW."
    if seen["number of optimizers"] != 1:
        return (
            f"{seen['number of optimizers']} optimizers made the updates. Use one, so that its state lasts for all "
            "batches."
        )
    if seen["modes"] != [True]:
        return "The model, or a layer in it, was in evaluation mode during training, so its dropout was off."
    if seen["left training"]:
        return "The model, or a layer in it, is returned in training mode, so its dropout would still be active."
    return None


def _wrong_gradient(seen: Evidence, expected: Evidence) -> str | None:
    """Say where updates were not made from the gradient of the mean loss of all next tokens that count."""
    for update, likeness, of_means in zip(LOOKED_AT, seen["likeness"], seen["like means"], strict=True):
        if likeness >= ALIKE:
            continue
        if seen["sizes"][LOOKED_AT.index(update)][0] == 0:
            return f"Update {update} had no gradients. Are they cleared between the backward pass and the step?"
        if seen["stale"] and update > 1:  # where they have been replaced, not added to, nothing is wrong
            return "Gradients of the previous batch still existed when the next backward pass began."
        if seen["trained"] != expected["trained"]:
            return (
                f"The gradient of update {update} is not that of adapters on the blocks' linear layers alone: "
                f"{seen['trained']:,} parameters are trained, and such adapters have {expected['trained']:,}."
            )
        if of_means >= ALIKE:
            return (
                f"The gradient of update {update} is that of a mean of means: each micro-batch has the same weight, "
                "however few of its tokens count. Divide by what counts in the whole batch."
            )
        why = (
            "Which tokens are predicted, and from which? If you pass `labels=labels`, the model shifts them itself."
            if likeness < 0.9
            else "Is there another term in the loss, do the right tokens count, or is something smoothed?"
        )
        return (
            f"The gradient of update {update} has a cosine of {likeness:.4f} with that of the mean loss of all next "
            f"tokens of the batch that count. {why}"
        )
    factors = [mine / right for mine, right in seen["sizes"]]
    norms = [mine for mine, _ in seen["sizes"]]
    scaled = max(factors) - min(factors) <= EXACTLY * min(factors) and max(norms) - min(norms) > EXACTLY * min(norms)
    # Clipping makes some smaller, all to one norm, and none larger.
    if max(factors) > 1 + EXACTLY or (scaled and max(factors) < 1 - EXACTLY):
        updates = f"{', '.join(map(str, LOOKED_AT[:-1]))} and {LOOKED_AT[-1]}"
        return (
            f"The gradients of updates {updates} have {', '.join(f'{factor:.4g}' for factor in factors)} times the "
            "norm of the gradient of the mean loss. Is the loss a sum, or is it divided or multiplied by something?"
        )
    return None


class BaseIsFrozen(Check):
    """The base is unchanged to the last bit; adapters of rank 8 are trained, and the optimizer holds only them."""

    points = 1
    hint = "Which parameters do you pass to the optimizer? Select them by requires_grad. Check the base's .grad, too."

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["strangers"]:
            return f"The optimizer holds {seen['strangers']} tensors that are not trained."
        if seen["lost"]:
            have, are = ("has", "is") if seen["lost"] == 1 else ("have", "are")
            return f"{seen['lost']} of the base's {seen['tensors']} tensors {have} changed, or {are} now trained."
        if seen["trained"] != expected["trained"]:
            return f"{seen['trained']:,} parameters are trained; adapters of rank {RANK} have {expected['trained']:,}."
        if seen["left out"]:
            return f"The optimizer does not hold {seen['left out']} tensors that require a gradient."
        if seen["gradients"]:
            return f"{seen['gradients']} frozen tensors have gradients."
        return None


class MergedIsEqual(Check):
    """The merged model is an ordinary model again: the base's parameters by name, and the same output."""

    points = 1
    hint = "PEFT's merge_and_unload does both. Compare the logits in evaluation mode."

    @staticmethod
    def probe(seed: int, fine_tune: Any, merged_model: Any) -> Evidence:
        # Twice, because what an answer keeps from the first call would come back in the second.
        calls = [MergedIsEqual._one(seed, 1, fine_tune, merged_model)]
        try:
            calls.append(MergedIsEqual._one(seed, 2, fine_tune, merged_model))
        except Exception as error:
            return {"calls": calls, "error": type(error).__name__, "text": " ".join(str(error).split())[:300]}
        return {"calls": calls}

    @staticmethod
    def _one(seed: int, call: int, fine_tune: Any, merged_model: Any) -> Evidence:
        base = pretrained(seed)
        batches = batches_of(python_source(), AGAIN, seed + call)
        with Watched(seed, batches) as watched:
            tuned = fine_tune(watched.base, copied(batches))
        ids = torch.cat([ids for ids, _ in batches[0]])
        seen = watched.evidence(batches, tuned)
        with torch.no_grad():
            unmerged = plain(tuned.eval()(input_ids=ids).logits).clone()
            merged = merged_model(tuned)
            same_names = _names(merged) == _names(base)
            logits = plain(merged.eval()(input_ids=ids).logits)
            by_weights = logits
            if same_names and type(merged) is type(base):
                ordinary = copy.deepcopy(base)
                ordinary.load_state_dict(merged.state_dict())
                by_weights = ordinary(input_ids=ids).logits
            moved = ((unmerged - base(input_ids=ids).logits).norm() / unmerged.norm()).item()
        return seen | {
            "off": ((logits - unmerged).norm() / unmerged.norm()).item(),
            "off by weights": ((by_weights - unmerged).norm() / unmerged.norm()).item(),
            "moved": moved,
            "kind": [type(merged).__name__, type(base).__name__],
            "same names": same_names,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for number, (got, want) in enumerate(zip(seen["calls"], expected["calls"], strict=False), 1):
            wrong = MergedIsEqual._wrong(got, want)
            if wrong:
                return f"In call {number} of both functions: {wrong}"
        if "error" in seen:
            return (
                f"Call 2 raised {seen['error']}: {seen['text']} Call 1 did not: what do the functions keep from it, "
                "such as a model?"
            )
        first, second = seen["calls"]
        if second["start"] == first["end"]:
            return "In call 2 of `fine_tune` the adapter starts as call 1 had trained it: keep nothing between calls."
        if second["rates"] != first["rates"]:
            rates = " and ".join(str([round(rate[0], 6) for rate in call["rates"]]) for call in (first, second))
            return (
                f"For as many batches, two calls of `fine_tune` have the learning rates {rates}: does a schedule or a "
                "counter carry over from call to call?"
            )
        return None

    @staticmethod
    def _wrong(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["same names"]:
            return "The parameters' names are not those of the base: adapters or a wrapper are still there."
        if seen["kind"] != expected["kind"]:
            return f"The merged model is a {seen['kind'][0]}; it should be an ordinary {expected['kind'][0]}."
        if not seen["off"] <= 1e-4:
            return f"The merged model's output differs from the unmerged one's by {seen['off']:.2g} (relative)."
        if not seen["off by weights"] <= 1e-4:
            return (
                f"In an ordinary model, its weights give an output that is off by {seen['off by weights']:.2g} "
                "(relative), so they do not contain the adapter. Is the adapter in a hook?"
            )
        if not seen["moved"] > 1e-3:
            return "The output is the same as the base's, so no adapter has been merged."
        if seen["passes"] != expected["passes"]:
            why = "Each should go through it once." if seen["passes"] else "Do you return a model from an earlier call?"
            times, every = seen["passes"], seen["micro-batches"]
            return f"the model that `fine_tune` got ran {times} times for {every} micro-batches. {why}"
        return None


def _names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


FINETUNE = (LearnsTheNewText, BaseIsFrozen, MergedIsEqual)
