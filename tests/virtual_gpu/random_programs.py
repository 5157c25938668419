"""Small random training programs, drawn from a seed: layers, optimizers, hooks, autocast, checkpointing, compiling."""

import gc
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=causal), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mask = None if self.causal else torch.ones(length, length, dtype=torch.bool, device=x.device)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class Checkpointed(nn.Module):
    def __init__(self, inner, reentrant):
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Convolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x.transpose(1, 2)).transpose(1, 2)


class Routed(nn.Module):
    """A mixture of experts by a known routing: which tokens go where does not depend on a weight."""

    def __init__(self, width):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        expert = torch.arange(x.shape[1], device=x.device) % len(self.experts)
        y = torch.zeros_like(x)
        for number, layer in enumerate(self.experts):
            chosen = (expert == number).nonzero().squeeze(1)
            y = y.index_add(1, chosen, layer(x[:, chosen]).to(y.dtype))
        return x + y


def mlp(draw, width):
    activation = draw.choice((nn.GELU, nn.SiLU, nn.Tanh))()
    return nn.Sequential(nn.Linear(width, 3 * width), activation, nn.Linear(3 * width, width))


def random_layer(draw, width):
    kind = draw.choice(("mlp", "attention", "norm", "rms", "dropout", "convolution", "routed", "inplace"))
    layer = {
        "mlp": lambda: mlp(draw, width),
        "attention": lambda: Attention(width, draw.choice((1, 2, 4)), draw.random() < 0.6),
        "norm": lambda: nn.LayerNorm(width),
        "rms": lambda: nn.RMSNorm(width, eps=1e-6),
        "dropout": lambda: nn.Dropout(0.2),
        "convolution": lambda: Convolution(width),
        "routed": lambda: Routed(width),
        "inplace": lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)),
    }[kind]()
    chance = draw.random()
    return Checkpointed(layer, reentrant=chance < 0.1) if chance < 0.3 else layer


def random_optimizer(draw, parameters):
    return draw.choice(
        (
            lambda: torch.optim.SGD(parameters, lr=1e-3),
            lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, nesterov=True),
            lambda: torch.optim.Adam(parameters, amsgrad=True),
            lambda: torch.optim.AdamW(parameters, foreach=False),
            lambda: torch.optim.AdamW(parameters, fused=True),
            lambda: torch.optim.RMSprop(parameters, centered=True),
            lambda: torch.optim.Adagrad(parameters),
        )
    )()


def run_program(seed):
    """Train for three steps; return the allocated peak of each step and what was held at its end, in bytes.

    The collector runs between programs only, not in the middle of one.
    """
    gc.collect()
    gc.disable()
    try:
        return _peaks_of_steps(seed)
    finally:
        gc.enable()
        torch._dynamo.reset()


def _peaks_of_steps(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    width, batch, length, words = draw.choice((16, 48, 64, 80)), draw.choice((2, 5, 8)), draw.choice((16, 33)), 200
    layers = [random_layer(draw, width) for _ in range(draw.randint(1, 5))]
    model = nn.Sequential(nn.Embedding(words, width), *layers, nn.Linear(width, words)).to("cuda")
    if draw.random() < 0.2:
        model[0].weight.requires_grad_(False)
        model[0].register_forward_hook(lambda module, args, out: out.requires_grad_())
    if draw.random() < 0.2:
        model.register_forward_hook(lambda module, args, out: out * 2)
    optimizer = random_optimizer(draw, [p for p in model.parameters() if p.requires_grad])
    dtype, clips, accumulates = (
        draw.choice((None, torch.bfloat16, torch.float16)),
        draw.random() < 0.5,
        draw.randint(1, 2),
    )
    run = torch.compile(model, backend="eager") if draw.random() < 0.1 else model

    def loss_of_batch():
        tokens = torch.randint(words, (batch, length)).cuda()
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            logits = run(tokens)
            return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()) / accumulates

    if run is not model:  # the compiler's errors, of code that it cannot record, hold tensors until the collector runs
        loss_of_batch().backward()
        optimizer.zero_grad()
        gc.collect()
    peaks = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(accumulates):
            loss_of_batch().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=draw.random() < 0.8)
        peaks += [torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()]
    return peaks
