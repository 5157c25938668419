"""Experts of Megatron that gather tokens: what a block keeps is what its parts keep, to the byte."""

from dataclasses import replace

from helpers.planner.config import RecipeError
from helpers.planner.importers.megatron import row_of
from helpers.planner.layout.attention import Wires
from helpers.planner.layout.gathered_experts import GatheredExperts
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.wire import Wire
from helpers.planner.rows.answers import answer
from helpers.planner.rows.line import read_line

import pytest
import torch

from .small import DENSE

MIB = 2**20
ARCH = replace(DENSE, hidden=64, experts=8, experts_per_token=1, moe_ffn=128, gated=False)
LAYOUT = Layout(
    ARCH,
    **{"engine": "megatron", "dispatcher": "all-gather", "zero": "zero1", "precision": "bf16-amp", "compile": False},
    **{"tensor": 2, "shard": 2, "expert": 2, "expert_tensor": 2, "seq": 32, "transformer_engine": True},
)
TOKENS = 16  # of a tensor rank
GATHERED, PICKED = 4 * TOKENS, 2 * TOKENS  # of 2 x 2 ranks; half of them choose the experts of this one


class Heard:
    """Listens to a wire."""

    def __init__(self):
        self.said = []

    def tell(self, collective, wire, nbytes):
        self.said.append((collective, wire, nbytes))

    def arrived(self, collective):
        pass

    def made(self, tensor):
        pass

    def kept(self, tensor):
        pass


def kept_by(layout):
    """Return the bytes that a forward pass keeps besides weights, by (shape, element size), and what was sent."""
    heard = Heard()
    experts = GatheredExperts(layout, Wires(*(Wire(name, 2, heard) for name in ("tensor", "context", "expert"))))
    experts = experts.to(torch.bfloat16)
    weights = {p.untyped_storage().data_ptr() for p in experts.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.zeros(1, TOKENS, ARCH.hidden, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = experts(x)
    assert out.shape == x.shape
    held = sum(found.values())
    out.sum().backward()
    assert x.grad.shape == x.shape
    return held, heard.said


def expected(results):
    """Return the bytes of the tensors that the docstring names."""
    width, inner, local, bf16 = ARCH.hidden, ARCH.moe_ffn // 2, ARCH.experts // 2, 2
    tokens = TOKENS * width * bf16  # normed, for the router
    shares = TOKENS * ARCH.experts * (bf16 + 1)  # a sigmoid's result, and the map that masks it
    places = PICKED * 8 + GATHERED * local  # where the picked tokens lie, and who chose them
    return (
        tokens + shares + places + PICKED * bf16 * (width + 3 * inner + 1) + (PICKED * width * bf16 if results else 0)
    )


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_block_keeps_what_its_parts_keep(grouped, deterministic):
    held, said = kept_by(replace(LAYOUT, grouped_experts=grouped, deterministic=deterministic))
    # Places are a slice of the order of all pairs, taken modulo; the slice itself is not kept.
    assert held == expected(results=deterministic)
    sent = [nbytes for collective, _, nbytes in said if collective == "all-gather"]
    assert GATHERED * ARCH.hidden * 2 in sent
    assert ("reduce-scatter", "expert", GATHERED * ARCH.hidden * 2) in said


def test_slices_of_experts_are_sharded_over_the_ranks_that_are_left():
    layout = replace(LAYOUT, shard=4, expert=2)
    assert layout.expert_shards == 2  # of 8 ranks, 2 x 2 hold different parts of the experts
    assert replace(layout, expert_tensor=1).expert_shards == 4
    with pytest.raises(RecipeError, match="expert_tensor needs dispatcher all-gather"):
        replace(layout, dispatcher="all-to-all")
    with pytest.raises(RecipeError, match="does not divide the width"):
        replace(layout, arch=replace(ARCH, moe_ffn=127))
    with pytest.raises(RecipeError, match="do not divide"):
        replace(layout, expert=8)
    with pytest.raises(RecipeError, match="not planned with shared experts"):
        replace(layout, arch=replace(ARCH, shared_experts=1))


ROW = {
    "framework": "megatron-lm",
    "arch": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 1024, "positions": 512, "bias": False}
    | {"experts": 4, "experts_per_token": 1, "moe_ffn": 1024},
    **{"gpus": 2, "expert": 2, "seq": 512, "gradient_accumulation_steps": 1, "checkpointing": "none"},
    **{"compile": False, "dispatcher": "allgather", "wgrad_fusion": False, "gpu": "a100"},
}


def peak(**changes):
    found = answer(ROW | changes)
    assert found["error"] is None
    return found["peak_allocated_bytes"]


def test_workspaces_are_those_of_transformer_engine():
    assert peak(large_workspace=True) - peak() == 2 * (32 * MIB - 8519680)
    # Its four streams; which matmuls are grouped changes what is alive at the peak by less than a block's tokens.
    assert peak(grouped_experts=True) - peak() == pytest.approx(4 * 4 * MIB, abs=512 * 256 * 2)
    kept = 2 * 512 * 256 * 2  # the results of two blocks
    assert peak(deterministic=True) - peak(large_workspace=True) == pytest.approx(kept, abs=MIB)


def test_nonsense_is_refused():
    assert "choose one of alltoall, allgather" in answer(ROW | {"dispatcher": "flex"})["error"]
    assert "whole number of at least 1" in answer(ROW | {"expert_tensor": 1.5})["error"]


def test_arguments_are_those_of_megatron():
    given = {"num-layers": "2", "hidden-size": "64", "num-attention-heads": "4", "seq-length": "32", "bf16": "true"}
    given |= {"num-experts": "4", "moe-router-topk": "1", "disable-bias-linear": "true", "sequence-parallel": "true"}
    given |= {"tensor-model-parallel-size": "2", "expert-model-parallel-size": "2", "moe-grouped-gemm": "true"}
    row, unknown = row_of(given, 4, "a100")
    assert unknown == []
    layout = read_line(row).layout  # gathering is the default, and experts have as many tensor ranks as the rest
    assert (layout.dispatcher, layout.expert_tensor, layout.grouped_experts) == ("all-gather", 2, True)
    one = row_of(given | {"moe-token-dispatcher-type": "alltoall", "expert-tensor-parallel-size": "1"}, 4, "a100")
    assert one[1] == []
    assert read_line(one[0]).layout.dispatcher == "all-to-all"
    split = row_of(given | {"moe-token-dispatcher-type": "alltoall"}, 4, "a100")
    assert split[1] == ["expert-tensor-parallel-size 2: experts are planned whole"]
