"""Check of part 1: merging the correction into the weight, and taking it out again."""

import torch
import torch.nn.functional as F
from torch import nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .around import (
    EXACT,
    Around,
    around,
    fill,
    flat,
    inputs_of,
    is_adapter,
    tensors_of,
    trained,
    wrong_adapter,
    wrong_numbers,
)

RANK, ALPHA = 3, 4.5
CASES = {"with a bias": True, "without a bias": False}
# In the first round the layer is in evaluation mode. For the second, A, B and the weight are set to other numbers, as
# by training and by loading another base, and the layer is in training mode.
ROUNDS = (["unmerge", "merge", "merge", "unmerge", "unmerge"], ["merge", "unmerge"])


def _when(number: int, calls: list[str], done: int) -> str:
    """Name the moment after `done` calls of round `number`, e.g. "after merge(), merge()"."""
    again = " with a different A, B and weight" if number else ""
    return f"after {', '.join(f'{call}()' for call in calls[:done])}{again}"


class MergesOnce(Check):
    """merge() adds the correction to the weight, unmerge() removes it; a second call to either changes nothing."""

    points = 1
    hint = (
        "The layer must remember whether it is merged, and its forward pass must check that. Compute the correction "
        "when you need it, from the A and B of that moment, and change the weight in place under torch.no_grad()."
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        return {name: MergesOnce._one(seed, lora_linear, bias) for name, bias in CASES.items()}

    @staticmethod
    def _one(seed: int, lora_linear: type[nn.Module], bias: bool) -> Evidence:
        it = around(lora_linear, seed, (RANK, ALPHA, 0.5), bias)
        beside = around(lora_linear, seed, (RANK, ALPHA, 0.5), bias)  # it is never merged
        seen = trained(it.layer)
        if not is_adapter(seen, RANK):
            return {"trained": seen}
        fill(beside.layer, seed)
        rounds = []
        for number, calls in enumerate(ROUNDS):
            if not is_adapter(trained(it.layer), RANK):
                break  # the round before says so
            A, B = fill(it.layer, seed + number)
            with torch.no_grad():
                it.given.weight.mul_(1 + number)
            inputs = inputs_of(it.given, A, B, it.x)
            it.layer.train(number == 1)
            modes = {module: module.training for module in it.layer.modules()}
            rounds.append({"inputs": inputs, "calls": []})
            if number == 0:
                rounds[0]["before"] = MergesOnce._before(it)
            for call in calls:
                try:
                    rounds[-1]["calls"].append(MergesOnce._call(call, it, beside, modes))
                except NotImplementedError:
                    raise
                except Exception as error:
                    text = " ".join(str(error).split())[:200]
                    rounds[-1]["calls"].append({"error": type(error).__name__, "text": text})
                    return {"trained": seen, "rounds": rounds}
        return {"trained": seen, "rounds": rounds}

    @staticmethod
    @torch.no_grad()
    def _before(it: Around) -> Evidence:
        """Return what a layer does before any call: its output, whether it drops, and whether the base is frozen."""
        mode = it.layer.training
        try:
            output = flat(it.layer.eval()(it.x.clone()))
            drops = not torch.equal(it.layer.train()(it.x.clone()), it.layer(it.x.clone()))
        except NotImplementedError:
            raise
        except Exception:  # the calls raise it again
            output, drops = [], True
        it.layer.train(mode)
        return {"output": output, "drops": drops, "frozen": not it.given.weight.requires_grad}

    @staticmethod
    @torch.no_grad()
    def _call(call: str, it: Around, beside: Around, modes: dict[nn.Module, bool]) -> Evidence:
        weight, view, mode = it.given.weight, it.given.weight.detach(), it.layer.training
        with torch.enable_grad():  # as in a script around it
            it.layer.merge() if call == "merge" else it.layer.unmerge()
        after = {module: module.training for module in it.layer.modules()}
        outputs = {}
        for training in (False, True) if call == "merge" else (False,):
            outputs["training" if training else "evaluation"] = flat(it.layer.train(training)(it.x))
        x = it.x.clone().requires_grad_()
        with torch.enable_grad():
            y = it.layer.eval()(x)
            gradient = torch.autograd.grad(y.square().sum(), x)[0] if y.requires_grad else torch.zeros_like(x)
        drops = not torch.equal(it.layer.train()(it.x.clone()), it.layer(it.x.clone()))
        for module, training in after.items():  # what the call has done to them is not undone here
            module.training = training
        A, B = sorted((p for p in it.layer.parameters() if list(p.shape) in ([RANK, 12], [7, RANK])), key=len)
        return {
            "mode kept": after[it.layer] == mode,
            "modules kept": all(training == modes.get(module, training) for module, training in after.items()),
            "drops": drops,
            "in place": it.given.weight is weight and torch.equal(view, weight),
            "frozen": not it.given.weight.requires_grad,
            "trained": trained(it.layer),
            "outputs": outputs,
            "gradient of x": flat(gradient),
            "weight": flat(it.given.weight),
            "A": flat(A),
            "B": flat(B),
            "beside": flat(beside.layer.eval()(beside.x)),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = wrong_adapter(seen[case]["trained"], RANK)
            if wrong:
                return wrong
            wrong = MergesOnce._wrong_before(seen[case]["rounds"][0], want["rounds"][0]["inputs"])
            if wrong:
                return f"Around a layer {case}, even before merge(): {wrong}"
            for number, calls in enumerate(ROUNDS):
                got, inputs = seen[case]["rounds"][number]["calls"], want["rounds"][number]["inputs"]
                for done, call in enumerate(calls, 1):
                    wrong = MergesOnce._wrong(call, got[done - 1], inputs, want["rounds"][0]["inputs"])
                    if wrong:
                        return f"Around a layer {case}, {_when(number, calls, done)}: {wrong}"
        return None

    @staticmethod
    def _wrong_before(first: Evidence, inputs: Evidence) -> str | None:
        """Say what another check judges, so that merging gets no blame for it."""
        before = first["before"]
        if not before["frozen"]:
            return "the given linear layer is not frozen. Freeze the layer itself, not a copy of it."
        wrong = wrong_numbers("the output in evaluation mode", before["output"], _by_formula(inputs)[1])
        if before["output"] and wrong:
            return f"{wrong} Correct the forward pass first."
        if not before["drops"]:
            return "in training mode, two calls with the same input agree. Each call needs a new dropout mask."
        return None

    @staticmethod
    def _wrong(call: str, got: Evidence, inputs: Evidence, inputs_beside: Evidence) -> str | None:
        if "error" in got:
            recorded = "leaf" in got["text"]
            why = " Is it recorded for a backward pass? Change the weight under torch.no_grad()." if recorded else ""
            return f"it raised {got['error']}: {got['text']}{why}"
        merged, output, gradient = _by_formula(inputs)
        weight = merged if call == "merge" else inputs["weight"]
        if not got["in place"]:
            return "the linear layer's weight is a new tensor, or has new memory. Change the weight in place."
        if not got["frozen"]:
            return (
                f"the linear layer's weight requires a gradient: has {call}() been recorded for a backward pass? "
                "Change the weight under torch.no_grad()."
            )
        if not got["mode kept"]:
            return "the call has switched the layer between training and evaluation mode."
        for mode, seen in got["outputs"].items():
            wrong = wrong_numbers(f"the output in {mode} mode", seen, output)
            if wrong:
                return wrong
        wrong = wrong_numbers("the gradient of x in evaluation mode", got["gradient of x"], gradient) or wrong_numbers(
            "the weight of the linear layer", got["weight"], weight
        )
        if wrong:
            return wrong
        if not relative_distance(got["A"] + got["B"], inputs["A"] + inputs["B"]) <= EXACT:
            return "the call has changed A or B."
        if call == "unmerge" and not is_adapter(got["trained"], RANK):
            return f"training cannot continue. {wrong_adapter(got['trained'], RANK)}"
        if call == "unmerge" and not got["modules kept"]:
            return "a module in the layer is in a different mode than before the calls. Does dropout stay switched off?"
        if call == "unmerge" and not got["drops"]:
            return "in training mode, two calls with the same input agree: dropout no longer drops anything."
        wrong = wrong_numbers("the output", got["beside"], _by_formula(inputs_beside)[1])
        return f"another layer, which was never merged, has changed: {wrong}" if wrong else None


def _by_formula(inputs: Evidence) -> tuple[list[float], list[float], list[float]]:
    """Return the merged weight, the output, and the gradient of the sum of its squares for x."""
    weight, bias, A, B, x = tensors_of(inputs)
    merged = weight + ALPHA / RANK * B @ A
    output = F.linear(x, merged, bias)
    return flat(merged), flat(output), flat(torch.autograd.grad(output.square().sum(), x)[0])
