"""Wrong and right answers for X1."""

from . import Mutant, one

SCALER, STEP, COMPARE = "x1.scaler", "x1.step", "x1.compare"
LOSS = "    loss = F.cross_entropy(logits.float(), labels)\n"
REPORT = "    return loss.detach()\n"


MUTANTS = [
    # the scaler
    one("loss not scaled", SCALER, "gradient_is_unscaled", "return loss * self.current_scale", "return loss"),
    one("gradient multiplied", SCALER, "gradient_is_unscaled", "gradient.div_(", "gradient.mul_("),
    one("unscaled twice", SCALER, "gradient_is_unscaled", "if self.overflowed is None:", "if True:"),
    one("step unscales nothing", SCALER, "gradient_is_unscaled", "            self.unscale_(optimizer)\n",
        "            self.overflowed = False\n"),
    one("steps on inf", SCALER, "overflow_skips_and_backs_off", "if not self.overflowed:", "if True:"),
    one("sees inf but not nan", SCALER, "overflow_skips_and_backs_off", "torch.isfinite(gradient).all()",
        "not torch.isinf(gradient).any()"),
    one("sees nan but not inf", SCALER, "overflow_skips_and_backs_off", "torch.isfinite(gradient).all()",
        "not torch.isnan(gradient).any()"),
    one("looks at one element", SCALER, "overflow_skips_and_backs_off", "torch.isfinite(gradient).all()",
        "torch.isfinite(gradient.flatten()[0])"),
    one("first group of parameters only", SCALER, "gradient_is_unscaled", "for group in optimizer.param_groups for",
        "for group in optimizer.param_groups[:1] for"),
    one("scale never backs off", SCALER, "overflow_skips_and_backs_off",
        "            self.current_scale *= self.backoff_factor\n", ""),
    one("overflow never forgotten", SCALER, "overflow_skips_and_backs_off", "        self.overflowed = None\n\n\n", "\n\n"),
    one("step says nothing", SCALER, "overflow_skips_and_backs_off", "return not self.overflowed", "return None"),
    one("scale never grows", SCALER, "scale_grows", "                self.current_scale *= self.growth_factor\n", ""),
    one("scale grows at every step", SCALER, "scale_grows", "if self.good_steps == self.growth_interval:", "if True:"),
    one("bad step does not restart the count", SCALER, "scale_grows",
        "self.backoff_factor\n            self.good_steps = 0\n", "self.backoff_factor\n"),
    one("count goes on after growing", SCALER, "scale_grows",
        "self.growth_factor\n                self.good_steps = 0\n", "self.growth_factor\n"),
    one("scale is not a float", SCALER, "scale_grows", "return self.current_scale\n\n    def scale",
        "return torch.tensor(self.current_scale)\n\n    def scale"),
    Mutant("only the gradient is scaled", SCALER, "gradient_is_unscaled", ((
        "return loss * self.current_scale", "return loss + (loss - loss.detach()) * (self.current_scale - 1)"),)),
    one("another tensor put into .grad", SCALER, "gradient_is_unscaled", """        for gradient in gradients:
            gradient.div_(self.current_scale)
""", """        for p in parameters:
            if p.grad is not None:
                p.grad = p.grad / self.current_scale
"""),
    one("overflow forgotten where unscale_ was called", SCALER, "overflow_skips_and_backs_off",
        "            self.unscale_(optimizer)\n",
        "            self.unscale_(optimizer)\n        else:\n            self.overflowed = False\n"),
    one("False left out", SCALER, "overflow_skips_and_backs_off",
        "            optimizer.step()\n        return not self.overflowed\n",
        "            optimizer.step()\n            return True\n"),
    Mutant("one unscale_ counts for all later steps", SCALER, "gradient_is_unscaled", (
        ("        self.overflowed = None  # None: unscale_ has not run since the last update\n",
         "        self.overflowed = None\n        self.unscaled = False\n"),
        ("        for gradient in gradients:\n            gradient.div_(self.current_scale)\n",
         "        if not self.unscaled:\n            for gradient in gradients:\n                gradient.div_(self.current_scale)\n"),
        ("            self.unscale_(optimizer)\n", "            self.unscale_(optimizer)\n            self.unscaled = False\n"),
        ("gradients)\n\n    def step", "gradients)\n        self.unscaled = True\n\n    def step"))),
    Mutant("the inverse of the first scale is kept", SCALER, "gradient_is_unscaled", (
        ("        self.current_scale = init_scale\n", "        self.current_scale = init_scale\n        self.inverse = 1 / init_scale\n"),
        ("gradient.div_(self.current_scale)", "gradient.mul_(self.inverse)"))),
    one("divided by the scale to come", SCALER, "gradient_is_unscaled", "gradient.div_(self.current_scale)",
        "gradient.div_(self.current_scale * (2 if self.good_steps == self.growth_interval - 1 else 1))"),
    Mutant("inf looked for where step() unscales, and nowhere else", SCALER, "overflow_skips_and_backs_off", (
        ("        self.overflowed = not all(torch.isfinite(gradient).all() for gradient in gradients)\n",
         "        self.overflowed = False\n        return gradients\n"),
        ("            self.unscale_(optimizer)\n",
         "            gradients = self.unscale_(optimizer)\n"
         "            self.overflowed = not all(torch.isfinite(gradient).all() for gradient in gradients)\n"))),
    one("another scale by default", SCALER, "scale_grows", "init_scale=2.0**16", "init_scale=2.0**15"),
    one("backs off further by default", SCALER, "scale_grows", "backoff_factor=0.5", "backoff_factor=0.25"),
    one("grows faster by default", SCALER, "scale_grows", "growth_factor=2.0", "growth_factor=4.0"),
    one("grows after 1,000 steps by default", SCALER, "scale_grows", "growth_interval=2000", "growth_interval=1000"),
    one("the scaled loss is cut off", SCALER, "gradient_is_unscaled", "return loss * self.current_scale",
        "return loss.detach() * self.current_scale"),
    one("the scale of the loss in whole numbers", SCALER, "gradient_is_unscaled", "return loss * self.current_scale",
        "return (loss * self.current_scale).round()"),
    # the scaler, once its scale has moved, and at other sizes
    Mutant("the first scale for all losses", SCALER, "gradient_is_unscaled", (
        ("        self.current_scale = init_scale\n", "        self.current_scale = self.first = init_scale\n"),
        ("return loss * self.current_scale", "return loss * self.first"))),
    one("the loss is scaled in place", SCALER, "gradient_is_unscaled", "return loss * self.current_scale",
        "loss.data *= self.current_scale\n        return loss"),
    one("the scaled loss has a dimension", SCALER, "gradient_is_unscaled", "return loss * self.current_scale",
        "return loss * torch.tensor([self.current_scale])"),
    one("other memory behind .grad", SCALER, "gradient_is_unscaled", "gradient.div_(self.current_scale)",
        "gradient.data = gradient.data / self.current_scale"),
    one("gradients rounded to 16 bits", SCALER, "gradient_is_unscaled", "gradient.div_(self.current_scale)",
        "gradient.copy_((gradient.half() / self.current_scale).float())"),
    one("division stops at an inf", SCALER, "gradient_is_unscaled", "            gradient.div_(self.current_scale)\n",
        "            if not torch.isfinite(gradient).all():\n                break\n            gradient.div_(self.current_scale)\n"),
    one("more than FP16 holds taken for an overflow", SCALER, "overflow_skips_and_backs_off",
        "torch.isfinite(gradient).all()", "(gradient.abs() <= 65504).all()"),
    Mutant("step() lowers the scale", SCALER, "overflow_skips_and_backs_off", (
        ("            self.current_scale *= self.backoff_factor\n", ""),
        ("        return not self.overflowed\n",
         "        if self.overflowed:\n            self.current_scale *= self.backoff_factor\n        return not self.overflowed\n"))),
    one("the scale stays above 1", SCALER, "scale_grows", "self.current_scale *= self.backoff_factor",
        "self.current_scale = max(1.0, self.current_scale * self.backoff_factor)"),
    one("the scale stays below 2**24", SCALER, "scale_grows", "self.current_scale *= self.growth_factor",
        "self.current_scale = min(2.0**24, self.current_scale * self.growth_factor)"),
    one("the scale doubles whatever is asked", SCALER, "scale_grows", "self.current_scale *= self.growth_factor",
        "self.current_scale *= 2"),
    # the training step
    one("autocast disabled", STEP, "forward_in_low_precision", "enabled=dtype != torch.float32", "enabled=False"),
    one("model cast wholesale", STEP, "forward_in_low_precision", "logits = model(images)",
        "logits = model.to(dtype)(images.to(dtype))"),
    one("always BF16", STEP, "forward_in_low_precision", "dtype=dtype, enabled", "dtype=torch.bfloat16, enabled"),
    one("loss in 16 bit", STEP, "loss_in_fp32", "logits.float()", "logits"),
    Mutant("loss in 16 bit, an FP32 copy reported", STEP, "loss_in_fp32", (
        (LOSS, LOSS + "    reported = loss.detach()\n    loss = F.cross_entropy(logits, labels)\n"),
        (REPORT, "    return reported\n"))),
    Mutant("loss in 16 bit cast to FP32, an FP32 copy reported", STEP, "loss_in_fp32", (
        (LOSS, LOSS + "    reported = loss.detach()\n    loss = F.cross_entropy(logits, labels).float()\n"),
        (REPORT, "    return reported\n"))),
    Mutant("backward from a loss cast to 16 bit", STEP, "loss_in_fp32", (
        (LOSS, LOSS + "    reported, loss = loss.detach(), loss.to(dtype)\n"), (REPORT, "    return reported\n"))),
    one("only the loss returned is in 16 bit", STEP, "loss_in_fp32", REPORT,
        "    return F.cross_entropy(logits.detach(), labels).float()\n"),
    Mutant("another loss goes back than is returned", STEP, "loss_in_fp32", (
            (LOSS, "    loss = F.multi_margin_loss(logits.float(), labels)\n"),
            (REPORT, "    return F.cross_entropy(logits.float(), labels).detach()\n"))),
    one("scaled loss returned", STEP, "loss_in_fp32", "return loss.detach()",
        "return (loss * (scaler.get_scale() if scaler else 1)).detach()"),
    one("loss returned in FP64", STEP, "loss_in_fp32", "return loss.detach()", "return loss.detach().double()"),
    one("loss returned with a dimension", STEP, "loss_in_fp32", "return loss.detach()", "return loss.detach()[None]"),
    one("loss with its graph returned", STEP, "loss_in_fp32", "return loss.detach()", "return loss"),
    one("loss returned as a number", STEP, "loss_in_fp32", "return loss.detach()", "return loss.item()"),
    one("scaler passed over in BF16", STEP, "steps_in_a_row", "    if scaler is None:", "    if dtype != torch.float16:"),
    one("no unscale before clipping", STEP, "clips_true_gradient",
        "        scaler.unscale_(optimizer)  # clip the true gradient, not the scaled one\n", ""),
    one("no clipping with the scaler", STEP, "clips_true_gradient",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n        scaler.step", "        scaler.step"),
    one("values clipped, too", STEP, "clips_true_gradient",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n        scaler.step",
        "        torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)\n"
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n        scaler.step"),
    one("clipped after the step", STEP, "clips_true_gradient",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n        scaler.step(optimizer)\n",
        "        scaler.step(optimizer)\n        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"),
    one("no zero_grad", STEP, "sixteen_bits_without_scaler", "    optimizer.zero_grad()\n", ""),
    Mutant("gradients cleared after the step only", STEP, "steps_in_a_row", (
        ("    optimizer.zero_grad()\n", ""), (REPORT, "    optimizer.zero_grad()\n" + REPORT))),
    Mutant("gradients cleared after the step only, without a scaler", STEP, "sixteen_bits_without_scaler", (
        ("    optimizer.zero_grad()\n", ""), (REPORT, "    optimizer.zero_grad()\n" + REPORT))),
    Mutant("up the gradient", STEP, "sixteen_bits_without_scaler", (("        loss.backward()\n", "        (-loss).backward()\n"),)),
    Mutant("up the gradient with the scaler", STEP, "steps_in_a_row", (("scaler.scale(loss)", "scaler.scale(-loss)"),)),
    one("up the gradient, by the loss", STEP, "loss_in_fp32", "scaler.scale(loss)", "scaler.scale(-loss)"),
    one("asks the scaler for its scale", STEP, "steps_in_a_row", "scaler.scale(loss).backward()",
        "(loss * scaler.get_scale()).backward()", raises="get_scale"),
    one("step past the scaler", STEP, "steps_in_a_row", "scaler.step(optimizer)", "optimizer.step()"),
    Mutant("scaler never updated", STEP, "steps_in_a_row", (("        scaler.update()\n", ""),),
           raises="unscale_() is being called after step()"),
    one("BF16 with a scaler that skips", STEP, "sixteen_bits_without_scaler", "    if scaler is None:\n",
        "    if dtype == torch.bfloat16:\n"
        "        scaler = torch.amp.GradScaler(images.device.type, init_scale=float('inf'))\n"
        "    if scaler is None:\n"),
    one("no clipping without scaler", STEP, "sixteen_bits_without_scaler",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n        optimizer.step()",
        "        optimizer.step()"),
    one("two forward passes", STEP, "forward_in_low_precision", "    optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    model(images)\n"),
    one("autocast left on", STEP, "forward_in_low_precision", "    optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    torch.set_autocast_enabled(images.device.type, dtype != torch.float32)\n"),
    one("the loss is scaled in 16 bits", STEP, "loss_in_fp32", "scaler.scale(loss)", "scaler.scale(loss.to(dtype))"),
    one("half of the images", STEP, "loss_in_fp32", "    optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    images, labels = images[:32], labels[:32]\n"),
    one("gradients in 16 bits once unscaled", STEP, "clips_true_gradient",
        "        scaler.unscale_(optimizer)  # clip the true gradient, not the scaled one\n",
        "        scaler.unscale_(optimizer)\n        for p in model.parameters():\n            p.grad.copy_(p.grad.to(dtype))\n"),
    one("scaler passed over in FP32", STEP, "steps_in_a_row", "    if scaler is None:",
        "    if scaler is None or dtype == torch.float32:"),
    one("a scale of its own in FP16", STEP, "sixteen_bits_without_scaler", "        loss.backward()\n",
        "        (loss * (1024.0 if dtype == torch.float16 else 1.0)).backward()\n"),
    one("the first group of parameters clipped", STEP, "clips_true_gradient",
        "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n        scaler.step",
        "        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]['params'], max_norm)\n        scaler.step"),
    # the experiment
    one("peak made up", COMPARE, "memory_falls", '"peak_bytes": meter.peak_bytes', '"peak_bytes": 1_000_000'),
    one("peak not lower than FP32's", COMPARE, "memory_falls", "enabled=dtype != torch.float32", "enabled=False"),
    one("a second graph kept alive", COMPARE, "memory_falls", "logits = model(images)",
        "logits, second = model(images), model(images)"),
    one("peak of the evaluation", COMPARE, "memory_falls", "        step(*batches[1])\n", "        model(data.test_x[:8])\n"),
    one("always trained in FP32", COMPARE, "accuracy_holds", "dtype = DTYPES[precision]", "dtype = torch.float32"),
    one("FP16 without a scaler", COMPARE, "accuracy_holds", "DynamicLossScaler() if dtype == torch.float16 else None",
        "None"),
    one("hardly trained", COMPARE, "accuracy_holds", "    for batch in batches[2:]:", "    for batch in batches[2:6]:"),
    one("accuracy made up", COMPARE, "accuracy_holds", '"accuracy": accuracy', '"accuracy": 1.0'),
    one("all seconds for one step", COMPARE, "accuracy_holds", " / len(batches[2:])\n", "\n"),
    one("looks at the first parameter", SCALER, "overflow_skips_and_backs_off", "for gradient in gradients)",
        "for gradient in gradients[:1])"),
    one("another seed each time", COMPARE, "accuracy_holds", "torch.manual_seed(seed)", "torch.seed()"),
    one("one seed for all", COMPARE, "accuracy_holds", "torch.manual_seed(seed)", "torch.manual_seed(0)"),
    one("one order for all seeds", COMPARE, "accuracy_holds", "torch.randperm(len(data.train_x))",
        "torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(0))"),
    one("weights drawn before the seed", COMPARE, "accuracy_holds",
        "torch.manual_seed(seed)\n    data = digits(device)\n    model = SmallCNN(width=16).to(device)",
        "data = digits(device)\n    torch.seed()\n    model = SmallCNN(width=16).to(device)\n    torch.manual_seed(seed)"),
    one("not shuffled", COMPARE, "accuracy_holds", "torch.randperm(len(data.train_x))", "torch.arange(len(data.train_x))"),
    one("the first step metered", COMPARE, "memory_falls", "    step(*batches[0])  # Adam's state is born here\n", ""),
    one("the meter knows no optimizer", COMPARE, "memory_falls", "MemoryMeter(model, optimizer)", "MemoryMeter(model)"),
    one("half a batch metered", COMPARE, "memory_falls", "        step(*batches[1])\n",
        "        step(*[half[:32] for half in batches[1]])\n"),
    one("Adam in place of AdamW", COMPARE, "accuracy_holds", "torch.optim.AdamW", "torch.optim.Adam"),
    one("another learning rate", COMPARE, "accuracy_holds", "lr=3e-3", "lr=1e-3"),
    one("evaluated in training mode", COMPARE, "accuracy_holds", "    model.eval()\n", ""),
    one("accuracy of the training images", COMPARE, "accuracy_holds",
        "(model(data.test_x).argmax(1) == data.test_y)", "(model(data.train_x).argmax(1) == data.train_y)"),
    one("seconds made up", COMPARE, "accuracy_holds", '"step_seconds": step_seconds', '"step_seconds": 0.0'),
]  # fmt: skip

FOREACH = '''
import time

import torch
from torch import nn

from helpers import MemoryMeter, SmallCNN, benchmark, digits, pick_device


class DynamicLossScaler:
    """Written around one list of gradients and PyTorch's foreach functions."""

    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.value, self.up, self.down, self.interval = init_scale, growth_factor, backoff_factor, growth_interval
        self.streak, self.state = 0, "scaled"

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return loss.mul(self.value)

    def unscale_(self, optimizer):
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        torch._foreach_mul_(grads, 1.0 / self.value)
        total = torch.stack(torch._foreach_norm(grads)).sum()
        self.state = "good" if torch.isfinite(total) else "bad"

    def step(self, optimizer):
        if self.state == "scaled":
            self.unscale_(optimizer)
        if self.state == "bad":
            return False
        optimizer.step()
        return True

    def update(self):
        self.streak = 0 if self.state == "bad" else self.streak + 1
        if self.state == "bad":
            self.value = self.value * self.down
        elif self.streak % self.interval == 0:
            self.value, self.streak = self.value * self.up, 0
        self.state = "scaled"


def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    """Loss and backward inside autocast, where cross-entropy is promoted to FP32; gradients cleared by hand."""
    for p in model.parameters():
        p.grad = None
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not torch.float32):
        loss = nn.CrossEntropyLoss()(model(images), labels)
        (scaler.scale(loss) if scaler else loss).backward()
    if scaler:
        scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.sqrt(sum(g.square().sum() for g in grads))
    for g in grads:
        g.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return loss.detach()


def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed + 17)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    device = pick_device()
    data = digits(device)
    model = SmallCNN(width=16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = DynamicLossScaler() if precision == "fp16" else None
    train_set = torch.utils.data.TensorDataset(data.train_x, data.train_y)
    loader = torch.utils.data.DataLoader(train_set, batch_size=64, shuffle=True)
    for _ in range(epochs):
        for images, labels in loader:
            train_step(model, optimizer, scaler, images, labels, dtype, 1.0)
    batch = data.train_x[:64], data.train_y[:64]
    with MemoryMeter(model, optimizer) as meter:
        train_step(model, optimizer, scaler, *batch, dtype, 1.0)
    timing = benchmark(lambda: train_step(model, optimizer, scaler, *batch, dtype, 1.0), runs=3, warmup=1)
    model.eval()
    with torch.inference_mode():
        right = (model(data.test_x).argmax(-1) == data.test_y).sum().item()
    return dict(model=model, accuracy=right / len(data.test_y), peak_bytes=meter.peak_bytes, step_seconds=timing.median)
'''

FUNCTIONAL = '''
import time

import torch
import torch.nn.functional as F

from helpers import MemoryMeter, SmallCNN, digits, pick_device


class DynamicLossScaler:
    """Keeps what it found by looking at the largest gradient; grows by a countdown."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self._scale = float(init_scale)
        self._factors = backoff_factor, growth_factor
        self._interval = self._left = growth_interval
        self._finite = None

    def get_scale(self):
        return self._scale

    def scale(self, loss):
        return self._scale * loss

    def unscale_(self, optimizer):
        self._finite = True
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.grad /= self._scale
                peak = p.grad.abs().max().item()
                self._finite = self._finite and peak < float("inf")  # False for NaN as well

    def step(self, optimizer):
        if self._finite is None:
            self.unscale_(optimizer)
        if self._finite:
            optimizer.step()
            return True
        return False

    def update(self):
        backoff, growth = self._factors
        if not self._finite:
            self._scale, self._left = self._scale * backoff, self._interval
        else:
            self._left -= 1
            if self._left == 0:
                self._scale, self._left = self._scale * growth, self._interval
        self._finite = None


def forward(model, images, dtype):
    if dtype == torch.float32:
        return model(images)
    with torch.autocast(device_type=images.device.type, dtype=dtype):
        return model(images)


def train_step(model, optimizer, scaler, images, labels, dtype, max_norm):
    """Cross-entropy by hand, and gradients from torch.autograd.grad."""
    logits = forward(model, images, dtype).to(torch.float32)
    right = logits.gather(1, labels[:, None]).squeeze(1)
    loss = (torch.logsumexp(logits, dim=1) - right).mean()
    parameters = list(model.parameters())
    target = loss if scaler is None else scaler.scale(loss)
    for p, g in zip(parameters, torch.autograd.grad(target, parameters)):
        p.grad = g
    if scaler is not None:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return loss.detach()


def train(precision, seed=0, epochs=3):
    torch.manual_seed(seed)
    device = pick_device()
    dtype = dict(fp32=torch.float32, bf16=torch.bfloat16, fp16=torch.float16)[precision]
    x, y, test_x, test_y = digits(device)
    model = SmallCNN(width=16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = DynamicLossScaler(init_scale=1024.0) if precision == "fp16" else None
    peak, seconds, steps = 0, 0.0, 0
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), 64):
            rows = order[start : start + 64].to(device)
            args = (model, optimizer, scaler, x[rows], y[rows], dtype, 1.0)
            if epoch == 0 and start == 128:
                with MemoryMeter(model, optimizer) as meter:
                    train_step(*args)
                peak = meter.peak_bytes
            elif epoch == start == 0:
                train_step(*args)
            else:
                began = time.perf_counter()
                train_step(*args)
                seconds += time.perf_counter() - began
                steps += 1
    model.eval()
    with torch.no_grad():
        accuracy = float((model(test_x).argmax(1) == test_y).float().mean())
    return {"model": model, "accuracy": accuracy, "peak_bytes": peak, "step_seconds": seconds / steps}
'''

RIGHT = {"foreach": FOREACH, "functional": FUNCTIONAL}
