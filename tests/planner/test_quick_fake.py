"""What is remembered of fake operations changes nothing: the record of a step is PyTorch's own, event for event."""

import json
from dataclasses import replace

from helpers.planner import ParallelConfig, Recipe
from helpers.planner.layout import stage_run
from helpers.planner.layout.parallelize import StageKind
from helpers.planner.rows.line import read_line
from helpers.planner.simulate import simulate, steps
from helpers.planner.simulate.quick_fake import QuickFakeMode

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .test_repeat import LLAMA, T5

BASE = Recipe("", precision="bf16", micro_batch_size=2, seq=64)
ARCH = {"layers": 4, "hidden": 128, "heads": 4, "ffn": 512, "vocab": 1024}
RECIPES = {
    "full": (LLAMA, BASE),
    "checkpointed": (LLAMA, replace(BASE, checkpointing="every", precision="fp32")),
    "adapters": (LLAMA, replace(BASE, lora_rank=4, quantize="nf4-dq", lora_dropout=0.1)),
    "8 bits": (LLAMA, replace(BASE, optimizer="adamw-8bit", step_in_backward=True)),
    "sharded": (LLAMA, replace(BASE, parallel=ParallelConfig(shard=8, zero="zero3"))),
    "compiled": (LLAMA, replace(BASE, compile=True, loss="fused")),
    "T5": (T5, replace(BASE, target_seq=16)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_record_is_the_same(name, tmp_path, monkeypatch):
    config, recipe = RECIPES[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    recipe = replace(recipe, model=str(tmp_path / "config.json"))

    def record(mode):
        monkeypatch.setattr(steps, "QuickFakeMode", mode)
        done = simulate(recipe)
        blocks = [(b.nbytes, b.category, b.start, b.end, b.op, b.recomputed) for b in done.blocks]
        return blocks, done.works, done.flops, done.state_bytes

    record(FakeTensorMode)  # PyTorch's memory cuts the padding off a result that it returns again
    assert record(QuickFakeMode) == record(FakeTensorMode) == record(QuickFakeMode)


def test_results_share_memory_as_they_would():
    with QuickFakeMode() as mode:
        for _ in range(2):
            x = torch.empty(4, 6)
            view, own = x.t(), x + 1
            assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
            assert own.untyped_storage()._cdata != x.untyped_storage()._cdata
            assert x.add_(1) is x
            assert view.stride() == (1, 6)
            assert (own.shape, own.fake_mode) == ((4, 6), mode)
            assert x.resize_(2, 3).shape == (2, 3)


def test_parts_share_memory_with_the_whole():
    weight = torch.nn.Parameter(torch.empty(6, 4, device="meta"))
    with QuickFakeMode(allow_non_fake_inputs=True):
        for _ in range(2):
            x = torch.empty(6, 4)
            for whole in (x, weight):
                for parts in (whole.split(4), whole.split([1, 5]), whole.chunk(2), whole.unbind()):
                    assert len({part.untyped_storage()._cdata for part in parts}) == 1
                    assert [part.storage_offset() for part in parts] == sorted(part.storage_offset() for part in parts)
                assert [len(part) for part in whole.split(4)] == [4, 2]
            assert x.split(4)[1].untyped_storage()._cdata == x.untyped_storage()._cdata
            flat = torch.ops.aten._unsafe_view(x, [24])
            assert flat.untyped_storage()._cdata == x.untyped_storage()._cdata
            assert weight.split(2)[0].untyped_storage()._cdata == weight.split(3)[1].untyped_storage()._cdata
            assert torch.empty_like(weight).untyped_storage()._cdata != weight.split(2)[0].untyped_storage()._cdata


@pytest.mark.parametrize(
    "changes",
    [
        {"framework": "torchtitan", "gpus": 4, "tensor": 2},
        {"framework": "torchtitan", "gpus": 4, "checkpointing": "full"},
        {"framework": "fms-fsdp", "gpus": 2},
        {"framework": "megatron-lm", "gpus": 4, "tensor": 2, "sequence_parallel": True},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_the_record_of_a_layout_is_the_same(changes, monkeypatch):
    layout = read_line({"arch": ARCH, "seq": 128, "gradient_accumulation_steps": 4} | changes).layout

    def record(mode):
        monkeypatch.setattr(stage_run, "QuickFakeMode", mode)
        return stage_run.run_stage(layout, StageKind(2, 0, True, True), every=True)

    record(FakeTensorMode)
    assert record(QuickFakeMode) == record(FakeTensorMode) == record(QuickFakeMode)


def test_numbers_of_another_type_are_other_arguments():
    with QuickFakeMode():
        x = torch.ones(3, dtype=torch.int64)
        for _ in range(2):
            assert [(x + each).dtype for each in (1, 1.0, True)] == [torch.int64, torch.float32, torch.int64]
            assert x.to(torch.float32).dtype is torch.float32
