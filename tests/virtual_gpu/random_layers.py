"""The layers of small random programs: each maps (batch, length, width) to the same shape."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


class Attention(nn.Module):
    def __init__(self, draw, width):
        super().__init__()
        self.heads, self.causal = draw.choice((1, 2, 4)), draw.random() < 0.6
        self.shared = self.heads > 1 and draw.random() < 0.3  # one head of keys and values for two of queries
        self.drop = draw.choice((0.0, 0.1))
        kept = width // (2 if self.shared else 1)
        self.q, self.kv = nn.Linear(width, width, bias=self.causal), nn.Linear(width, 2 * kept, bias=self.causal)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(batch, length, 2, -1, width // self.heads).permute(2, 0, 3, 1, 4)
        mask = None if self.causal else torch.ones(length, length, dtype=torch.bool, device=x.device)
        drop = self.drop if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, drop, self.causal, enable_gqa=self.shared)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


class ByMultihead(nn.Module):
    def __init__(self, draw, width):
        super().__init__()
        self.inner, self.weights = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True), draw.random() < 0.5

    def forward(self, x):
        return x + self.inner(x, x, x, need_weights=self.weights)[0]


class Checkpointed(nn.Module):
    """A layer of which what the backward pass needs is computed again: all, or all but the results of products."""

    def __init__(self, draw, inner):
        super().__init__()
        self.inner, self.kind = inner, draw.choice(("plain", "plain", "reentrant", "selective"))

    def forward(self, x):
        if self.kind == "selective":
            return checkpoint(self.inner, x, use_reentrant=False, context_fn=_keeping_products)
        return checkpoint(self.inner, x, use_reentrant=self.kind == "reentrant")


def _keeping_products():
    aten = torch.ops.aten
    kept = {aten.mm.default, aten.addmm.default, aten.bmm.default}

    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Convolution(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x.transpose(1, 2)).transpose(1, 2)


class Image(nn.Module):
    """Convolutions over length and width, as over a gray image, at half the size and back."""

    def __init__(self, draw):
        super().__init__()
        norm = draw.choice((nn.BatchNorm2d, nn.InstanceNorm2d, lambda channels: nn.GroupNorm(2, channels)))(8)
        self.before = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), norm, nn.LeakyReLU(0.1, inplace=True))
        self.pool = draw.choice((nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Conv2d(8, 8, 2, stride=2, groups=4)))
        self.after = nn.Conv2d(8, 1, 1)
        if draw.random() < 0.3:
            self.to(memory_format=torch.channels_last)

    def forward(self, x):
        small = self.pool(self.before(x.unsqueeze(1)))
        return x + self.after(F.interpolate(small, x.shape[1:], mode="nearest")).squeeze(1)


class Recurrent(nn.Module):
    def __init__(self, draw, width):
        super().__init__()
        options = {"num_layers": draw.randint(1, 2), "bidirectional": draw.random() < 0.3, "batch_first": True}
        kind, self.packed = draw.choice((nn.LSTM, nn.LSTM, nn.GRU, nn.RNN)), draw.random() < 0.3
        self.inner = kind(width, width // (2 if options["bidirectional"] else 1), **options)

    def forward(self, x):
        if not self.packed:
            return x + self.inner(x)[0]
        lengths = torch.arange(x.shape[0]) % 4 + x.shape[1] - 3
        lengths[0] = x.shape[1]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return x + pad_packed_sequence(self.inner(packed)[0], batch_first=True)[0]


class Cells(nn.Module):
    """A recurrent layer written out in Python, over a few times."""

    def __init__(self, draw, width):
        super().__init__()
        self.cell = draw.choice((nn.LSTMCell, nn.GRUCell))(width, width)

    def forward(self, x):
        state, outputs = None, []
        for time in range(0, x.shape[1], 8):
            state = self.cell(x[:, time], state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return x + torch.stack(outputs, 1).mean(1, keepdim=True)


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


class InPlace(nn.Module):
    """Changes of a tensor and of its views where they are."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.scale = nn.Linear(width, width), nn.Parameter(torch.ones(width))
        self.register_buffer("calls", torch.zeros(width))

    def forward(self, x):
        y = self.linear(x)
        y[..., ::2] *= 2
        y.narrow(1, 0, 4).add_(1)
        y.masked_fill_(torch.arange(y.shape[1], device=x.device).unsqueeze(1) % 5 == 0, 0.0)
        with torch.no_grad():
            self.calls.lerp_(y.detach().float().mean((0, 1)), 0.1)
        return torch.addcmul(x, y.to(x.dtype), self.scale.to(x.dtype))


class Views(nn.Module):
    """Parts, turns and joins of a tensor, and a sum over named dimensions."""

    def __init__(self, draw, width):
        super().__init__()
        self.mix, self.window = nn.Parameter(torch.randn(4, 4)), draw.randint(2, 5)
        self.width = width

    def forward(self, x):
        first, second = x.chunk(2, -1)
        y = torch.cat((second.flip(1), first.roll(1, 1)), -1)
        heads = torch.einsum("blhw,hg->blgw", y.unflatten(-1, (4, self.width // 4)), self.mix).flatten(2)
        means = x.unfold(1, self.window, 1).mean(-1)
        return heads + F.pad(means, (0, 0, 0, self.window - 1)) + x[:, -1:].expand_as(x)


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x, by)
        return x * x * by

    @staticmethod
    def backward(ctx, gradient):
        x, by = ctx.saved_tensors
        return 2 * gradient * x * by, (gradient * x * x).sum((0, 1))


class OwnFunction(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.by = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return _Squared.apply(torch.tanh(x), self.by.to(x.dtype))


def mlp(draw, width):
    activation = draw.choice((nn.GELU, nn.SiLU, nn.Tanh))()
    return nn.Sequential(nn.Linear(width, 3 * width), activation, nn.Linear(3 * width, width))


def normalized_weights(draw, width):
    with_norm = draw.choice((nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm))
    return nn.Sequential(with_norm(nn.Linear(width, width)), nn.Softplus())


def encoder(draw, width):
    first = draw.random() < 0.5
    return nn.TransformerEncoderLayer(width, 2, 2 * width, activation="gelu", batch_first=True, norm_first=first)


def random_layer(draw, width, depth=0):
    """Return a layer; some are sequences of others, and some are checkpointed."""
    kinds = {
        "mlp": lambda: mlp(draw, width),
        "attention": lambda: Attention(draw, width),
        "multihead": lambda: ByMultihead(draw, width),
        "encoder": lambda: encoder(draw, width),
        "norm": lambda: draw.choice((nn.LayerNorm, lambda w: nn.RMSNorm(w, eps=1e-6)))(width),
        "dropout": lambda: nn.Dropout(0.2),
        "convolution": lambda: Convolution(width),
        "image": lambda: Image(draw),
        "recurrent": lambda: Recurrent(draw, width),
        "cells": lambda: Cells(draw, width),
        "routed": lambda: Routed(width),
        "inplace": lambda: InPlace(width),
        "relu": lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True)),
        "views": lambda: Views(draw, width),
        "function": lambda: OwnFunction(width),
        "parametrized": lambda: normalized_weights(draw, width),
        "nested": lambda: nn.Sequential(*(random_layer(draw, width, depth + 1) for _ in range(2))),
    }
    names = [name for name in kinds if name != "nested" or depth < 2]
    layer = kinds[draw.choice(names)]()
    return Checkpointed(draw, layer) if draw.random() < 0.3 else layer
