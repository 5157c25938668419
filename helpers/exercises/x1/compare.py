"""Checks of part 3: the comparison of three precisions. Both judge one observation of five trainings."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...core.data import Split, digits
from ...core.device import pick_device
from ..base import Check, Evidence
from ..probing.fingerprint import OTHER_DATA, fingerprint
from ..probing.measuring_weights import close
from ..probing.plain import plain
from .shared import PRECISIONS
from .training import OTHER_SECONDS, SETTINGS, STEP_SECONDS, UNEVEN, Pass, Watch, rows_of

EPOCHS = {"fp32": 3, "bf16": 1, "fp16": 2}  # 16 bits are slow on a CPU
BATCH = 64
EXTRA = 20  # steps more than the epochs have: for the meter, or to take the time of; less than an epoch
LONG = 1e4  # by which the gradient of one step, and of a metered one, is multiplied, so that it has to be clipped
OVERFLOW_AT, AFTERWARDS = 15, 12  # the step that overflows, late in an epoch, and after how many the scale is looked at


def observe(seed: int, train: Callable[..., dict], train_step: Callable[..., Tensor]) -> Evidence:
    """Train in each precision, then again with the same seed, and with another; return what happened each time.

    In FP16 one step overflows: what becomes of the scale shows that the scaler is used. In the last training the
    gradient of one step is long, so that it is clipped.
    """
    data = digits(pick_device())
    runs = {
        name: _run(train, train_step, data, name, seed, epochs, torch.inf if name == "fp16" else 1.0)
        for name, epochs in EPOCHS.items()
    }
    again = _run(train, train_step, data, "fp32", seed, 1)
    other = _run(train, train_step, data, "fp32", seed + 1, 1, disturb=LONG)
    return {"digits": fingerprint(*data), "runs": runs, "again": again, "other": other, "images": len(data.train_x)}


def _run(
    train: Callable[..., dict],
    train_step: Callable[..., Tensor],
    data: Split,
    precision: str,
    seed: int,
    epochs: int,
    disturb: float = 1.0,
) -> Evidence:
    """Return what one training did, and what it says of itself."""
    with Watch(train, train_step, disturb, OVERFLOW_AT) as watch:
        result = train(precision, seed=seed, epochs=epochs)
    keys = ("model", "accuracy", "peak_bytes", "step_seconds")
    missing = [key for key in keys if not isinstance(result, dict) or key not in result]
    if missing:
        raise ValueError(f"train() must return a dict with {', '.join(keys)}; missing: {', '.join(missing)}")
    model = result["model"]
    if not isinstance(model, nn.Module):
        raise TypeError(f'"model" must be the trained model; it is a {type(model).__name__}')
    mine = [one for one in watch.passes if _is_of(model, one)]
    updates = [update for update in watch.updates if _updates(update.optimizer, mine)]
    others = [update for update in watch.updates if not _updates(update.optimizer, mine)]
    norms: dict[int, list[float]] = {}
    for update in watch.updates:
        if update.norm is not None:
            norms.setdefault(update.number, []).append(update.norm)
    return {
        "accuracy": float(result["accuracy"]),
        "peak": int(result["peak_bytes"]),
        "seconds": float(result["step_seconds"]),
        "true_seconds": watch.seconds / max(1, len(watch.passes)),
        "evaluated": _evaluated(watch.passes),
        "weight": next((one.weight for one in mine if one.weight), 0.0),
        "steps": [_step(one, data) for one in mine if one.step],
        "blocks": [_block(block, model) for block in watch.blocks],
        "optimizers": [len({id(update.optimizer) for update in part}) for part in (updates, others)],
        "settings": [setting for update in updates[:1] + updates[-1:] for setting in update.settings],
        "head": [setting for update in others[:1] + others[-1:] for setting in update.settings],
        "held": [update.numbers for update in updates[:1] + others[:1]],
        "norms": [sum(norm**2 for norm in both) ** 0.5 for both in norms.values()],
        "at": sum(one.step and one.number < watch.at for one in mine),
        "shapes": [list(parameter.shape) for parameter in model.parameters()],
        "dtypes": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}),
        **_accuracy(model, data, PRECISIONS[precision]),
    }


def _evaluated(passes: list[Pass]) -> int:
    """Return how many images went through a model in evaluation mode between two training steps, at most."""
    images: dict[int, int] = {}
    for one in passes:
        if not one.training and not one.step:
            images[one.number] = images.get(one.number, 0) + len(one.images)
    return max(images.values(), default=0)


def _is_of(model: nn.Module, one: Pass) -> bool:
    """Say whether a forward pass was one of `model`, or of another with its weights."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    return bool(layers) and (layers[0] is one.layer or torch.equal(layers[0].weight, one.layer.weight))


def _updates(optimizer: torch.optim.Optimizer, passes: list[Pass]) -> bool:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return any(id(one.layer.weight) in held for one in passes)


def _step(one: Pass, data: Split) -> Evidence:
    """Describe a training step: its images, and from the gradient of the outputs its labels and the loss's scale."""
    rows = rows_of(one.images, data)
    logits, gradient = torch.from_numpy(one.logits), torch.from_numpy(one.gradient)
    labels = gradient.argmin(1)
    told = gradient.amin(1) < 0  # of the others, softmax is sure
    right = logits.softmax(1) - nn.functional.one_hot(labels, logits.shape[1])
    true = data.train_y.cpu()[torch.tensor(rows).clamp(min=0)]
    return {
        "rows": rows,
        "dtype": one.dtype,
        "training": one.training,
        "inside": one.inside,
        "wrong_labels": int((labels != true)[told].sum()),
        "scale": ((gradient * right).sum() / right.square().sum() * len(rows)).item(),
    }


def _block(block: Any, model: nn.Module) -> Evidence:
    """Describe what a meter has measured; `model` is the one that was trained."""
    steps = [one for one in block.passes if one.step]
    return {
        "peak": block.profile.peak_bytes,
        "activations": block.profile.largest["activations"],
        "optimizers": block.optimizers,
        "own": all(_is_of(model, one) for one in block.passes),
        "passes": len(block.passes),
        "steps": len(steps),
        "rows": sum(len(one.images) for one in steps),
        "spare": max((one.spare for one in steps), default=0),
        "first": any(one.number == 0 for one in steps),
    }


def _accuracy(model: nn.Module, data: Split, dtype: torch.dtype) -> Evidence:
    """Return which share of the test images the model gets right: in FP32, and in the precision it was trained in."""
    model.eval()
    shares = []
    for enabled in (False, dtype != torch.float32):
        with torch.no_grad(), torch.autocast(data.test_x.device.type, dtype=dtype, enabled=enabled):
            guesses = plain(model(data.test_x)).argmax(1)
        shares.append((guesses == data.test_y).float().mean().item())
    return {"right": shares, "tests": len(data.test_y)}


class MemoryFalls(Check):
    """The peak reported is the peak measured, and 16-bit training needs less memory than FP32 does."""

    points = 1
    hint = "Measure one whole train_step on a batch of 64 with MemoryMeter(model, optimizers); report meter.peak_bytes."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in EPOCHS:
            wrong = _wrong_peak(name, seen["runs"][name], expected["runs"][name])
            if wrong:
                return f"train('{name}'): {wrong}"
        return None


def _wrong_peak(name: str, got: Evidence, want: Evidence) -> str | None:
    if not got["blocks"]:
        return "no MemoryMeter was running. Measure one training step with it."
    block = next((block for block in got["blocks"] if block["peak"] == got["peak"]), None)
    if block is None:
        measured = ", ".join(f"{block['peak']:,}" for block in got["blocks"][:5])
        return (
            f"it reports a peak of {got['peak']:,} bytes, but its meter measured {measured}. Report meter.peak_bytes."
        )
    if block["steps"] != 1 or block["passes"] != 1:
        passes = block["passes"]
        return f"the meter measured {block['steps']} training steps ({passes} forward passes); it should be one step."
    if block["rows"] != BATCH:
        return f"the meter measured a step with {block['rows']} images; a full batch has {BATCH}."
    if block["first"]:
        return "the meter measured the first step, in which Adam creates its state. Measure a later one."
    if not block["own"]:
        return "the meter measured a step of a model that is not the one you trained."
    if block["optimizers"] < 2:
        how = "with one of the optimizers" if block["optimizers"] else "without the optimizers"
        return f"the meter was made {how}: MemoryMeter(model, optimizers) can tell whose bytes are whose."
    right = want["blocks"][0]
    if block["activations"] > 1.1 * right["activations"]:
        why = "Is it SmallCNN(width=16)?" if name == "fp32" else "Does the forward pass run under autocast, once?"
        return (
            f"train_step keeps {block['activations']:,} bytes of activations for the backward pass; the reference "
            f"keeps {right['activations']:,}. {why}"
        )
    peak, most = right["peak"], right["peak"] + block["spare"]
    if not 0.9 * peak <= block["peak"] <= 1.1 * most:
        return (
            f"the step peaks at {block['peak']:,} bytes; the reference's at {peak:,}. Create the batch before the "
            "meter starts, so that it measures train_step(...) and nothing else."
        )
    return None


class AccuracyHolds(Check):
    """The 16-bit formats learn as well as FP32; each run trains in its own precision, starting from the seed."""

    points = 1
    hint = (
        "digits(device), batches of 64, AdamW for the features, SGD for the head, max_norm=1.0; a scaler for FP16; "
        "model.eval() and torch.no_grad() for the accuracy.\n"
        "`torch.manual_seed(seed)` before anything random is drawn: the model, and the order of the images."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["digits"] != expected["digits"]:
            return OTHER_DATA
        for name, epochs in EPOCHS.items():
            got, want = seen["runs"][name], expected["runs"][name]
            wrong = (
                _wrong_steps(got["steps"], want["steps"], epochs, seen["images"])
                or _wrong_model(got, want)
                or _wrong_accuracy(name, got, want)
                or _wrong_seconds(got["seconds"], got["true_seconds"])
            )
            if wrong:
                return f"train('{name}'): {wrong}"
        return (
            _wrong_scaling(seen["runs"]["fp16"])
            or _wrong_clipping(seen["other"])
            or _wrong_seeds(seen)
            or _made_up([*seen["runs"].values(), seen["again"], seen["other"]])
        )


def _wrong_steps(got: list[Evidence], want: list[Evidence], epochs: int, images: int) -> str | None:
    """Say what is wrong with the training steps of a run."""
    if not got:
        return "no training step of the model that it returns was seen. Return the model that was trained."
    if any(row < 0 for step in got for row in step["rows"]):
        return "it trains on images that are not in data.train_x of digits(device)."
    sizes = [len(step["rows"]) for step in got]
    full, due = sizes.count(BATCH), images // BATCH * epochs
    if max(sizes) > BATCH or full < min(due, len(sizes) // 2):
        return (
            f"{full} of its {len(sizes)} batches have {BATCH} images, and the largest has {max(sizes)}; all but the "
            f"last of an epoch should have {BATCH}."
        )
    least, most = due * BATCH, epochs * images + EXTRA * BATCH
    if not least <= sum(sizes) <= most:
        return f"{epochs} epochs of {images} images were asked for, and it trained on {sum(sizes)} images in all."
    if not all(step["training"] for step in got):
        return "the model was in evaluation mode in a training step: BatchNorm then learns no statistics."
    other = next((step["dtype"] for step in got if step["dtype"] != want[0]["dtype"]), None)
    if other:
        return f"it trained in {other}; it should train in {want[0]['dtype']}."
    if any(step["wrong_labels"] > len(step["rows"]) // 8 for step in got):
        return "the labels of a batch are not those of its images. Select both with the same index."
    if not all(step["inside"] for step in got):
        return "a training step did not go through your train_step."
    return None


def _wrong_model(got: Evidence, want: Evidence) -> str | None:
    """Say what is wrong with the model, or with its optimizer."""
    if got["shapes"] != want["shapes"]:
        return "its model is not SmallCNN(width=16)."
    if got["dtypes"] != want["dtypes"]:
        return f"the weights of the model that it returns are {', '.join(got['dtypes'])}; they must stay float32."
    for count, part in zip(got["optimizers"], ("features", "head"), strict=True):
        if count != 1:
            return f"{count} optimizers updated the {part}; one should, from the first step to the last."
    for key, part in (("settings", "features"), ("head", "head")):
        kind, setting = want[key][:2]
        if kind not in got[key]:
            return f"the optimizer of the {part} is {got[key][0]}; it should be torch.optim.{kind}."
        other = next((one for one in got[key] if one not in (kind, setting)), None)
        if other:
            name, a, b = next(three for three in zip(SETTINGS, other, setting, strict=True) if three[1] != three[2])
            return f"the optimizer of the {part} has {name}={a}; it should have {name}={b}."
    for seen, right, part in zip(got["held"], want["held"], ("features", "head"), strict=True):
        if seen != right:
            return f"the optimizer of the {part} holds {seen:,} numbers; model.{part} has {right:,}."
    return None


def _wrong_accuracy(name: str, got: Evidence, want: Evidence) -> str | None:
    """Say what is wrong with the accuracy."""
    # Three epochs end between 87 and 99 %, depending on the order of the images; untrained models near 10 %.
    floor = min(0.8, want["right"][0] - 0.15) if name == "fp32" else 0.3
    if not max(got["right"]) >= floor:
        look = "Look at the losses that train_step returns: do they fall?"
        if name == "fp16":
            look = (
                "Does a loss become NaN? Then a gradient has overflowed: training in FP16 needs one scaler throughout."
            )
        return (
            f"it gets {max(got['right']):.1%} of the test images right; correct training gets at least {floor:.0%}. "
            f"{look}"
        )
    if not got["evaluated"]:  # first, because figures in training mode may be far from the model's or close to them
        return "the model was never called in evaluation mode: call model.eval() before the test images."
    if not min(abs(got["accuracy"] - right) for right in got["right"]) <= 0.005:
        share = f"{got['right'][0]:.4f} of the test images"
        return f"it reports an accuracy of {got['accuracy']:.4f}, but its model gets {share} right."
    if not abs(got["accuracy"] * got["tests"] - round(got["accuracy"] * got["tests"])) <= 0.01:
        return (
            f"it reports {got['accuracy']:.3%}, which is not a whole number of {got['tests']} test images. "
            "The mean over batches of different sizes is not the share of the images."
        )
    if got["evaluated"] < got["tests"]:
        return f"only {got['evaluated']} of {got['tests']} test images went through the model in evaluation mode."
    return None


def _wrong_seconds(seconds: float, true: float) -> str | None:
    """Say what is wrong with the time of a step: by the set clock or, had it read another, by the true one."""
    if close(seconds, STEP_SECONDS, 0.02) or true / 3 <= seconds <= 3 * true:
        return None
    held = "more than ordinary steps" if seconds > STEP_SECONDS else "less than a whole step"
    if min(UNEVEN) <= seconds / STEP_SECONDS <= 1.01 * max(UNEVEN):
        held = "one step, and not the average"
    return (
        f"it reports step_seconds of {seconds:.4g}. For this check, the clock gains {STEP_SECONDS:,.0f} s in a "
        f"training step on average, {OTHER_SECONDS:,.0f} s in the first, in a metered one and in an evaluation: the "
        f"figure contains {held}. Divide the time of ordinary steps by their number."
    )


def _wrong_scaling(fp16: Evidence) -> str | None:
    """Say what is wrong with the use of a loss scaler, going by the scales of the losses."""
    scales = [step["scale"] for step in fp16["steps"]]
    at = fp16["at"]
    before, after = scales[:at], scales[at + 1 : at + 1 + AFTERWARDS]
    if not min(before) > 1.5:
        return "train('fp16') trained without loss scaling: its gradients are no larger than those of FP32."
    if not after or not max(after) < 0.75 * before[-1]:
        largest = max(after, default=0.0)
        return (
            f"train('fp16'): an infinite gradient appeared at a scale of {before[-1]:.6g}, and in the next "
            f"{len(after)} steps the scale was {largest:.6g}. One scaler for the whole run skips such a step and goes "
            "on at a lower scale."
        )
    return None


def _wrong_clipping(run: Evidence) -> str | None:
    wrong = next((norm for norm in run["norms"] if not close(norm, 1.0, 0.01)), None)
    if run["norms"] and wrong is None:
        return None
    norm = "the optimizer did not step" if wrong is None else f"a norm of {wrong:.4g} reached the optimizer"
    return f"train('fp32'): the gradient of one step was made {LONG:,.0f} times as long, and {norm}; max_norm is 1.0."


def _wrong_seeds(seen: Evidence) -> str | None:
    """Say what does not depend on the seed as it should; whether an epoch shows all images."""
    epoch = seen["images"] // BATCH
    first, again, other = (
        (run["weight"], [step["rows"] for step in run["steps"][:epoch]])
        for run in (seen["runs"]["fp32"], seen["again"], seen["other"])
    )
    for i, what in enumerate(("set of initial weights", "order of the images")):
        if first[i] != again[i]:
            return (
                f"train('fp32') was called twice with the same seed and drew a different {what}. Call "
                "torch.manual_seed(seed) before anything random is drawn."
            )
        if first[i] == other[i]:
            return f"train('fp32') was called with two seeds and drew the same {what}. Use the seed that is passed in."
    shown = len({row for step in seen["again"]["steps"] for row in step["rows"]})
    if shown < epoch * BATCH:
        return f"train('fp32', epochs=1) trained on {shown} of {seen['images']} images: an epoch shows each once."
    return None


def _made_up(runs: list[Evidence]) -> str | None:
    seconds = {run["seconds"] for run in runs}
    if len(seconds) > 1 or close(seconds.pop(), STEP_SECONDS, 0.02):
        return None
    return f"Five training runs report the same step_seconds, {runs[0]['seconds']:.4g}: no clock does that."


COMPARE = (MemoryFalls, AccuracyHolds)
