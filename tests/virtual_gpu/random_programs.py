"""Small random training programs, drawn from a seed.

They have nested layers (`random_layers.py`), one or two optimizers of many kinds, optimizers inside the backward pass,
hooks, autocast with and without a scaler, checkpoints, offloading, averaged weights, evaluation and compiled parts.
"""

import contextlib
import gc
import random

import torch
import torch.nn.functional as F
from torch import nn

from .random_layers import random_layer

WORDS = 200
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, nesterov=True),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "fused adam": lambda p: torch.optim.Adam(p, fused=True),
    "foreach adamw": lambda p: torch.optim.AdamW(p, foreach=True),
    "adamw of one": lambda p: torch.optim.AdamW(p, foreach=False),
    "fused adamw": lambda p: torch.optim.AdamW(p, fused=True),
    "capturable adamw": lambda p: torch.optim.AdamW(p, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True),
    "rmsprop of one": lambda p: torch.optim.RMSprop(p, momentum=0.9, foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p, foreach=False),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rprop": lambda p: torch.optim.Rprop(p),
}


def run_program(seed):
    """Train for three steps; return the allocated peak of each step and what was held at its end, in bytes.

    The collector runs between programs only, not in the middle of one.
    """
    gc.collect()
    gc.disable()
    try:
        return Program(seed).peaks_of_steps()
    finally:
        gc.enable()
        torch._dynamo.reset()


class Program:
    """A model, its optimizers and how they train, all drawn from a seed."""

    def __init__(self, seed):
        draw = self.draw = random.Random(seed)
        torch.manual_seed(seed)
        self.numbers = torch.Generator().manual_seed(seed)
        self.width, self.batch = draw.choice((16, 48, 64, 80)), draw.choice((2, 5, 8))
        self.length = draw.choice((16, 33))
        self.dtype, self.accumulates = draw.choice((None, torch.bfloat16, torch.float16)), draw.randint(1, 2)
        self.clips, self.offloads, self.evaluates = (draw.random() < chance for chance in (0.4, 0.1, 0.4))
        self.labels = draw.choice(("all", "smooth", "ignored", "masked"))
        self.model = self._model()
        self.average = self._average() if draw.random() < 0.15 else None
        self.scaler = torch.amp.GradScaler(init_scale=2.0**6, enabled=self.dtype is torch.float16)
        self.in_backward = not self.scaler.is_enabled() and self.accumulates == 1 and draw.random() < 0.1
        self.optimizers = [] if self.in_backward else self._optimizers()
        self._add_hooks()
        self.run = torch.compile(self.model, backend="eager") if draw.random() < 0.1 else self.model

    def _model(self):
        layers = [random_layer(self.draw, self.width) for _ in range(self.draw.randint(1, 5))]
        head = nn.Linear(self.width, WORDS, bias=False)
        model = nn.Sequential(nn.Embedding(WORDS, self.width), *layers, head).to("cuda")
        chance = self.draw.random()
        if chance < 0.2:
            model[0].weight.requires_grad_(False)
            model[0].register_forward_hook(lambda module, args, out: out.requires_grad_())
        elif chance < 0.4:
            head.weight = model[0].weight
        return model

    def _average(self):
        averages = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        return torch.optim.swa_utils.AveragedModel(self.model, multi_avg_fn=averages, use_buffers=True)

    def _optimizers(self):
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        parts = [parameters]
        if len(parameters) > 1 and self.draw.random() < 0.25:
            parts = [parameters[::2], parameters[1::2]]
        return [OPTIMIZERS[self.draw.choice(list(OPTIMIZERS))](part) for part in parts]

    def _add_hooks(self):
        model, draw = self.model, self.draw
        inside = draw.choice(list(model.modules()))
        hooks = (
            lambda: model.register_forward_hook(lambda module, args, out: out * 2),
            lambda: model[-1].register_forward_pre_hook(lambda module, args: (args[0] + 1,)),
            lambda: model[-1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,)),
            lambda: inside.register_full_backward_pre_hook(lambda module, outputs: None),
            lambda: model[-1].weight.register_hook(lambda gradient: gradient * 0.5),
        )
        for hook in hooks:
            if draw.random() < 0.15:
                hook()
        if self.in_backward:
            kind = OPTIMIZERS[draw.choice(list(OPTIMIZERS))]
            steps = {p: kind([p]) for p in model.parameters() if p.requires_grad}

            def step(p):
                steps[p].step()
                steps[p].zero_grad()

            for p in steps:
                p.register_post_accumulate_grad_hook(step)

    def loss(self):
        """Return the loss of a new batch."""
        tokens = torch.randint(WORDS, (self.batch, self.length), generator=self.numbers)
        tokens = tokens.cuda()
        saving = torch.autograd.graph.save_on_cpu() if self.offloads else contextlib.nullcontext()
        with saving, torch.autocast("cuda", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            logits, labels = self.run(tokens), tokens
            if self.labels == "ignored":
                labels = tokens.masked_fill(tokens % 3 == 0, -100)
            if self.labels == "masked":
                chosen = tokens % 3 > 0
                logits, labels = logits[chosen], tokens[chosen]
            smooth = 0.1 if self.labels == "smooth" else 0.0
            loss = F.cross_entropy(logits.reshape(-1, WORDS).float(), labels.flatten(), label_smoothing=smooth)
            return loss / self.accumulates

    def _step(self):
        for _ in range(self.accumulates):
            self.scaler.scale(self.loss()).backward()
        if self.clips and self.optimizers:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=self.draw.random() < 0.8)
        if self.average is not None:
            self.average.update_parameters(self.model)

    def _evaluate(self):
        self.model.eval()
        with torch.no_grad():
            float(self.loss())
        self.model.train()

    def peaks_of_steps(self):
        """Train for three steps; return what was allocated at most, and at the end, of each step and evaluation."""
        if self.run is not self.model:  # the compiler's errors, of code that it cannot record, hold tensors
            self.loss().backward()
            self.model.zero_grad()
            gc.collect()
        peaks = []
        for part in [self._step, self._evaluate] * 3 if self.evaluates else [self._step] * 3:
            torch.cuda.reset_peak_memory_stats()
            part()
            peaks += [torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()]
        return peaks
