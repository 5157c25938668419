"""The stages are honest parallel programs: ranks that share the work get what one process gets with the same weights.

Two shortcuts of the planner's modules are put right here, with the same tensors and messages: they do not ask which
rank owns a word. Ring attention and experts send what they must, but their values are none.
"""

import contextlib
from dataclasses import replace
from unittest.mock import patch

from helpers import run_ranks
from helpers.planner.layout import decoder, head
from helpers.planner.layout.attention import Wires
from helpers.planner.layout.decoder import Stage
from helpers.planner.layout.parallelize import recompute
from helpers.planner.layout.wire import Wire

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.planner.layout.cpu_kernels import cpu_kernels
from tests.planner.layout.real_wire import Meter, RealWire
from tests.planner.layout.small import DENSE, GROUPED, LATENT, layout

FP32 = {"zero": "none", "precision": "fp32"}
MEGATRON = {"engine": "megatron", "transformer_engine": False}  # whose dummy gradients are no numbers
CASES = {
    "tensor": layout(replace(GROUPED, layers=2), tensor=2, sequence_parallel=False, **FP32),
    "tokens": layout(replace(GROUPED, layers=2), tensor=2, **FP32),
    "tokens, megatron": layout(replace(DENSE, layers=2), tensor=2, **MEGATRON, packed=True, **FP32),
    "all-to-all": layout(replace(GROUPED, layers=2), context=2, context_method="all-to-all", **FP32),
    "latent": layout(replace(LATENT, layers=2), tensor=2, sequence_parallel=False, **FP32),
    "masked": layout(replace(DENSE, layers=2, masked=True), tensor=2, sequence_parallel=False, **MEGATRON, **FP32),
    "encoder-decoder": layout(
        replace(DENSE, layers=2, encoder_layers=2), tensor=2, sequence_parallel=False, **MEGATRON, **FP32
    ),
    "further": layout(replace(DENSE, layers=2, further=2), tensor=2, sequence_parallel=False, **MEGATRON, **FP32),
}
COLUMNS, ROWS = ("qkv.", "inner.", "logits.", "q_up.", "kv_up.", "table.", "q.", "kv.", "both."), ("out.", "down.")
TOGETHER = {"qkv.": 3, "inner.": 2}  # layers, here of equal widths, that are one where they are packed


class Words:
    """Which words of the vocabulary this rank has."""

    def __init__(self, ids, rows, wire):
        local = ids - wire.rank * rows
        self.mine = (local >= 0) & (local < rows)
        self.local = local.clamp(0, rows - 1)


class VocabularyLoss(torch.autograd.Function):
    """The planner's, with the label's logit taken from the rank that has it."""

    @staticmethod
    def forward(ctx, logits, labels, wire, in_place):
        words = Words(labels, logits.shape[-1], wire)
        wide = logits.float()
        maximum = wire.all_reduce(wide.amax(-1), largest=True) if wire.size > 1 else wide.amax(-1)
        shares = wide - maximum.unsqueeze(-1)
        own = shares.gather(-1, words.local.unsqueeze(-1)).squeeze(-1) * words.mine
        target = head._summed(own, wire)
        shares = shares.exp()
        total = head._summed(shares.sum(-1), wire)
        shares = shares / total.unsqueeze(-1)
        shares.scatter_add_(-1, words.local.unsqueeze(-1), -words.mine.unsqueeze(-1).to(shares.dtype))
        ctx.save_for_backward(shares)
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx, gradient):
        (shares,) = ctx.saved_tensors
        return shares * gradient / shares.shape[:-1].numel(), None, None, None


def embed(self, ids):
    words = Words(ids, self.table.num_embeddings, self.wire)
    x = self.table(words.local) * words.mine.unsqueeze(-1)
    return decoder.leave(x, self.wire, self.by_tokens)


@contextlib.contextmanager
def right_words():
    right_loss = patch.object(head, "VocabularyLoss", VocabularyLoss)
    with cpu_kernels(), right_loss, patch.object(decoder.Embedding, "forward", embed):
        yield


def stage_of(case, wires):
    stage = Stage(case, wires, list(range(case.arch.encoder_layers + case.arch.layers)), (True, True))
    recompute(stage, case)
    return stage


def slice_of(name, whole, like, wire):
    """This tensor rank's part of a weight; what has the same shape everywhere is whole everywhere."""
    if whole.shape == like.shape:
        return whole
    dim = 0 if any(f".{c}" in f".{name}" for c in COLUMNS) else 1
    return whole.chunk(wire.size, dim)[wire.rank]


def apart(name, case):
    """The names of what one parameter has together, where layers are packed."""
    found = [(key, count) for key, count in TOGETHER.items() if f"{key}0." in name and case.packed]
    return [name.replace(f"{key}0.", f"{key}{n}.") for key, count in found for n in range(count)] or [name]


def work(case, weights, ids):
    """Losses and gradients of one rank."""
    nothing = Meter()
    group = dist.group.WORLD
    wire = lambda name: RealWire(name, nothing, group) if getattr(case, name) > 1 else Wire(name, 1, nothing)  # noqa: E731
    wires = Wires(wire("tensor"), wire("context"), wire("expert"))
    with right_words():
        stage = stage_of(case, wires)
        with torch.no_grad():
            for name, parameter in stage.named_parameters():
                names = apart(name, case)
                for one, part in zip(names, parameter.chunk(len(names)), strict=True):
                    part.copy_(slice_of(one, weights[one], part, wires.tensor))
        own = ids.chunk(case.context, 1)[wires.context.rank]
        labels = ids.roll(-1, 1).chunk(case.context, 1)[wires.context.rank]
        loss = stage(own, labels)
        loss.backward()
    gradients = {}
    for name, parameter in stage.named_parameters():
        names = apart(name, case)
        gradients |= dict(zip(names, parameter.grad.chunk(len(names)), strict=True))
    return loss.item(), gradients


def alone(case):
    """Weights, ids, and the loss and gradients of a process that has all of it."""
    decodes = not (case.arch.masked or case.arch.encoder_layers or case.arch.further)
    whole = replace(case, tensor=1, context=1, engine="torchtitan" if decodes else case.engine, packed=False)
    nothing = Meter()
    torch.manual_seed(0)
    ids = torch.randint(0, case.arch.vocab, (1, case.seq))
    with right_words():
        stage = stage_of(whole, Wires(*(Wire(name, 1, nothing) for name in ("tensor", "context", "expert"))))
        for name, parameter in stage.named_parameters():
            nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
        loss = stage(ids, ids.roll(-1, 1))
        loss.backward()
    weights = {name: parameter.detach() for name, parameter in stage.named_parameters()}
    return weights, ids, loss.item(), {name: parameter.grad for name, parameter in stage.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_ranks_together_compute_what_one_process_does(name):
    case = CASES[name]
    weights, ids, loss, gradients = alone(case)
    run = run_ranks(work, 2, case, weights, ids, device="cpu", timeout=200, measure=False, show=False)
    losses = [result[0] for result in run.results]
    assert sum(losses) / 2 == pytest.approx(loss, rel=1e-5)
    partial = case.context > 1 or case.splits_tokens  # ranks have other tokens: their gradients are added up
    compared = 0
    for parameter, expected in gradients.items():
        parts = [result[1][parameter] for result in run.results]
        if parts[0].shape != expected.shape:  # each rank has its slice
            dim = next(d for d in range(expected.dim()) if parts[0].shape[d] != expected.shape[d])
            got = torch.cat(parts, dim)
        elif partial or "kv_down" in parameter or "q_down" in parameter or "_norm" in parameter.split(".")[-1]:
            got = sum(parts) / case.context
        else:
            got = parts[0]
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5, msg=lambda m, p=parameter: f"{p}: {m}")
        compared += 1
    assert compared == len(weights)
