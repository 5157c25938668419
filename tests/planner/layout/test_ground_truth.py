"""Predictions against real ranks on gloo: bytes within 2 %, collectives exactly."""

from collections import Counter
from unittest.mock import patch

from helpers import run_ranks
from helpers.planner.layout import long_stage
from helpers.planner.layout import stage_run as runs
from helpers.planner.layout.layout_plan import stage_kinds
from helpers.planner.layout.rank_memory import action_key, rank_memory
from helpers.planner.layout.schedule import orders
from helpers.planner.layout.trace import Message

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from tests.planner.layout.cpu_kernels import cpu_kernels
from tests.planner.layout.real_rank import train
from tests.planner.layout.small import GROUPED, MIXED, layout
from tests.sampling import sample

FP32 = {"zero": "none", "precision": "fp32"}
MEGATRON = {"zero": "none", "engine": "megatron"}
CASES = {
    "tensor": layout(tensor=4, sequence_parallel=False, **FP32),
    "tensor grouped amp": layout(GROUPED, tensor=4, sequence_parallel=False, zero="none", engine="pytorch"),
    "tensor and tokens": layout(tensor=4, **FP32),
    "tensor and tokens, megatron": layout(tensor=4, micro_batches=2, **MEGATRON),
    "fsdp": layout(shard=4, micro_batches=2),
    "fsdp kept": layout(shard=4, reshard_after_forward=False, precision="fp32"),
    "fsdp accumulates whole": layout(shard=4, micro_batches=3, accumulate_whole=True),
    "fsdp accumulates whole, all in 16 bits": layout(shard=2, micro_batches=3, accumulate_whole=True, precision="bf16"),
    "plain ends": layout(tensor=2, shard=2, micro_batches=2, accumulate_whole=True, plain_ends=True, precision="bf16"),
    "plain ends in a pipeline": layout(
        tensor=2,
        pipeline=2,
        shard=2,
        micro_batches=3,
        sequence_parallel=False,
        plain_ends=True,
        precision="bf16",
        reshard_after_forward=False,
    ),
    "fsdp recomputed": layout(shard=4, recompute="full"),
    "fsdp selective": layout(shard=4, recompute="selective"),
    "hsdp": layout(shard=2, replicate=2),
    "gpipe": layout(pipeline=4, schedule="gpipe", micro_batches=4, **FP32),
    "1f1b": layout(pipeline=4, schedule="1f1b", micro_batches=6, **FP32),
    "interleaved": layout(pipeline=4, schedule="interleaved", virtual_stages=2, micro_batches=4, **FP32),
    "zero-bubble": layout(pipeline=4, schedule="zero-bubble", micro_batches=4, **FP32),
    "zero-bubble grouped": layout(GROUPED, pipeline=2, schedule="zero-bubble", micro_batches=6, tensor=2, **FP32),
    "ring": layout(context=4),
    "ring selective": layout(context=2, recompute="selective"),
    "all-to-all": layout(context=4, context_method="all-to-all"),
    "experts": layout(MIXED, shard=4, expert=4),
    "experts in two groups": layout(MIXED, shard=4, expert=2),
    "tensor x fsdp": layout(tensor=2, shard=2),
    "pipeline x fsdp": layout(pipeline=2, shard=2, micro_batches=4, reshard_after_forward=False),
    "zero-bubble x fsdp": layout(
        pipeline=2, schedule="zero-bubble", shard=2, micro_batches=4, reshard_after_forward=False, precision="fp32"
    ),
    "zero-bubble x fsdp in 16 bits": layout(
        pipeline=4, schedule="zero-bubble", shard=2, micro_batches=8, reshard_after_forward=False
    ),
    "tensor x pipeline": layout(tensor=2, pipeline=2, micro_batches=4, **MEGATRON),
    "tensor x pipeline x fsdp": layout(tensor=2, pipeline=2, shard=2, micro_batches=4, reshard_after_forward=False),
}


def predicted(case):
    """Of each pipeline rank: the bytes of its fullest moment, and its calls and bytes of each collective in a step."""
    kinds = stage_kinds(case)
    with cpu_kernels():
        with patch.object(long_stage, "_run", runs.run_stage):  # nothing of these is kept for other tests
            stages = {kind: long_stage.run_long_stage(case, kind) for kind in dict.fromkeys(kinds)}
        result = []
        for rank, order in enumerate(orders(case)):
            own = {s: stages[kinds[s]] for s in range(rank, len(kinds), case.pipeline)}
            memory = rank_memory(case, order, own)
            result.append((memory, _sent(case, order, own)))
    return result


def _sent(case, order, stages):
    sent = Counter()
    done = [stages[a.stage].actions[action_key(case, a)] for a in order if a.kind != "W"]
    done += [stage.actions[runs.UPDATE, ""] for stage in stages.values()]
    for places in done:
        for event in (event for place in places for event in place.events if isinstance(event, Message)):
            sent[event.wire, event.collective] += 1
            sent[event.wire, event.collective, "bytes"] += event.nbytes
    last = case.pipeline * case.virtual_stages - 1
    tokens = case.micro_batch_size * case.local_seq // (case.tensor if case.splits_tokens else 1)
    message = tokens * case.arch.hidden * (4 if case.precision == "fp32" else 2)  # as the plan times it
    calls = sum((a.kind == "F" and a.stage < last) or (a.kind in "BI" and a.stage > 0) for a in order)
    if calls:
        sent["pipeline", "send"], sent["pipeline", "send", "bytes"] = calls, calls * message
    return dict(sent)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_a_split_backward_pass_finds_no_weights_that_were_freed(kept):
    run = run_ranks(split_pass, 1, not kept, device="cpu", measure=False, show=False)
    assert run.results == [kept]


def split_pass(reshard):
    """Do both halves of a backward pass, as PyTorch's schedules do; return whether the weights have gradients then."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    for layer in model:
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    model.set_is_last_backward(False)
    model.set_reshard_after_backward(False)
    model.set_requires_gradient_sync(False)
    x = torch.ones(2, 4, requires_grad=True)
    out = model(x)
    _, groups = stage_backward_input([out], [torch.ones_like(out)], [x], model.parameters())
    stage_backward_weight(model.parameters(), groups)
    return all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(list(CASES), one_in=14))
def test_real_ranks_hold_and_send_what_was_planned(name):
    case = CASES[name]
    plans = predicted(case)
    run = run_ranks(train, case.ranks, case, device="cpu", timeout=400, measure=False, show=False)
    for number, peak, sent, unknown in run.results:
        memory, expected = plans[number]
        assert unknown == {}
        assert sent == expected
        assert peak == pytest.approx(memory.nbytes, rel=0.02), (number, memory)
