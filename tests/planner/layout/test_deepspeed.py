"""Ranks of Megatron-DeepSpeed, by what its repository and BLOOM's chronicles state of their memory."""

from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.config import RecipeError
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import CONTEXT, device_bytes, plan_layout
from helpers.planner.layout.rank_memory import RankMemory
from helpers.planner.rows.answers import answer
from helpers.planner.rows.line import read_line

import pytest

ARCH = {"layers": 4, "hidden": 1024, "heads": 8, "ffn": 4096, "vocab": 8192, "gated": False, "tied": True}
PARAMETERS = 4 * (12 * 1024**2 + 13 * 1024) + (8192 + 2048 + 2) * 1024  # blocks, tables, the last norm
LINE = {
    "framework": "bigscience",
    "arch": ARCH,
    "gpu": "a100",
    "seq": 512,
    "gradient_accumulation_steps": 4,
    "stage": "fullest",
}


@pytest.mark.parametrize("data", [2, 8])
def test_bf16_takes_four_bytes_more_per_parameter_whatever_is_sharded(data):
    """So chronicles-prequel.md: "4bytes x params and it's not sharded across gpus"."""
    line = LINE | {"gpus": data, "micro_batch_size": 4}  # so that the peak is in the passes
    bf16, fp16 = (answer(line | {"precision": of}) for of in ("bf16", "fp16"))
    more = bf16["peak_allocated_bytes"] - fp16["peak_allocated_bytes"]
    assert more == pytest.approx(4 * PARAMETERS, rel=0.02)


def test_megatron_lm_has_no_second_gradients():
    deepspeed, plain = (
        read_line(LINE | {"framework": name, "gpus": 2}).layout for name in ("bigscience", "megatron-lm")
    )
    assert deepspeed.deepspeed
    assert deepspeed.narrow_gradients
    assert not plain.deepspeed
    assert not plain.narrow_gradients


def test_the_update_asks_for_long_vectors():
    """BF16 sends all gradients in 16 bits; FP16 fills a bucket of 5e8 elements and widens its share."""
    cluster, rest = find_cluster("dgx-a100"), {"gpus": 4}
    plans = {of: plan_layout(read_line(LINE | rest | {"precision": of}).layout, cluster) for of in ("bf16", "fp16")}
    assert plans["bf16"].worst.apart == 2 * PARAMETERS
    assert plans["fp16"].worst.apart == 1e9 + 6 * PARAMETERS / 4
    whole = plan_layout(read_line(LINE | rest | {"precision": "fp16", "zero": "zero0"}).layout, cluster)
    assert whole.worst.apart == 8 * PARAMETERS  # of no sharded state: the gradients in FP32, and a vector of them


def test_nvidia_smi_shows_more_than_is_reserved():
    layout, cluster = read_line(LINE | {"gpus": 1}).layout, find_cluster("dgx-a100")
    rank = RankMemory({"weights": 10**9}, "", 0)
    rank.peak = type("Held", (dict,), {"total": lambda self: sum(self.values())})(rank.peak)
    low, high = 10**9, int(1.15 * 10**9)
    assert device_bytes(layout, cluster, rank) == pytest.approx((low + high) / 2 + CONTEXT, abs=2)
    rank.apart = 10**9
    assert device_bytes(layout, cluster, rank) == pytest.approx(low + high + CONTEXT, abs=2)


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [
        (82, 12, [6, *[7] * 10, 6]),  # "2 layers less, to match 2+nlayers*PP"
        (72, 12, [6] * 12),
        (78, 12, [*[7] * 6, *[6] * 6]),
    ],
)
def test_whose_embedding_has_a_share_of_its_own(layers, stages, sizes):
    line = LINE | {"arch": ARCH | {"layers": layers}, "gpus": stages, "pipeline": stages}
    asked = read_line(line)
    assert [len(own) for own in asked.layout.stage_layers()] == sizes
    assert ("ends_as_blocks" in asked.assumed) == (layers == 82)
    usual = read_line(line | {"framework": "megatron-lm"}).layout.stage_layers()
    assert len(usual[0]) == -(-layers // stages)


def test_deepspeed_is_a_way_of_megatron():
    arch = read_line(LINE | {"gpus": 1}).layout.arch
    with pytest.raises(RecipeError, match="deepspeed needs engine megatron"):
        Layout(arch, deepspeed=True, engine="torchtitan")
