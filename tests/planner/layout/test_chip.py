"""A chip's kernels: no product is faster than the rate, tiles fill waves, and whole steps keep to both."""

import itertools
from dataclasses import replace

from helpers.meter.work import Work
from helpers.planner.catalog.clusters import CLUSTERS, find_cluster
from helpers.planner.catalog.layout_rates import layout_rates
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.chip import EIGHT, FOUR, Chip
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.rows.line import read_line

import pytest

from tests.planner.layout.small import DENSE
from tests.sampling import sample_with_quick

RATES = replace(layout_rates(), products={}, attention={}, fused=1.0, eager=1.0, depth=0.0, power=0.0)
MODEL = Arch(layers=4, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000)
CASE = Layout(MODEL)
H100 = Chip(find_cluster("dgx-h100").gpu, RATES, CASE)


def product(*shape, dtype="bfloat16", nbytes=0):
    flops = 2
    for side in shape:
        flops *= side
    return Work("aten.mm", "matmul", flops, nbytes, dtype, shape, "nn")


def test_one_tile_more_than_the_chip_takes_at_once_takes_more_waves():
    units = find_cluster("dgx-h100").gpu.multiprocessors
    full, more = (H100.product_seconds((256 * tiles, 128, 4096), "bfloat16") for tiles in (units, units + 1))
    assert H100.product_rate("bfloat16") * full == pytest.approx(2 * 256 * units * 128 * 4096)
    assert more == pytest.approx(1.5 * full)  # three waves of smaller tiles


def test_short_loops_are_slow():
    chip = Chip(find_cluster("dgx-h100").gpu, replace(RATES, depth=256.0), CASE)
    for k, slower in ((128, 2.0), (1280, 1.1), (12800, 1.01)):
        shape = (8192, 8192, k)
        assert chip.product_seconds(shape, "bfloat16") == pytest.approx(
            slower * H100.product_seconds(shape, "bfloat16")
        )


def test_a_chip_with_less_power_is_slower_though_its_sheet_is_the_same():
    limited = find_cluster("h100-96gb").gpu
    rates = [Chip(limited, replace(RATES, power=share), CASE).product_rate("bfloat16") for share in (0.0, 1.0)]
    assert rates == pytest.approx([H100.product_rate("bfloat16"), H100.product_rate("bfloat16") * 500 / 700])


def test_matrices_of_a_batch_fill_the_chip_together():
    alone, together = (
        H100.product_seconds((512, 512, 128), "bfloat16"),
        H100.product_seconds((64, 512, 512, 128), "bfloat16"),
    )
    assert together < 10 * alone


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_no_chip_is_faster_than_its_sheet(cluster):
    gpu = find_cluster(cluster).gpu
    chip = Chip(gpu, RATES, CASE)
    for dtype, peak in gpu.peaks.items():
        work = product(8192, 8192, 8192, dtype=dtype)
        seconds, bound = chip.seconds(work)
        assert bound == "compute"
        assert 0.4 < work.flops / peak / seconds < 1.06, dtype
    seconds, bound = chip.seconds(Work("aten.add", "pointwise", 0, 10**9, "bfloat16", ()))
    assert bound == "memory"
    assert 0.5 < 10**9 / gpu.bandwidth / seconds < 1


@pytest.mark.parametrize(("cluster", "slower"), [("dgx-a100", 1), ("dgx-h100", 2), ("dgx-b200", 2)])
def test_older_fused_attention_is_slow_on_newer_chips(cluster, slower):
    gpu = find_cluster(cluster).gpu
    old, new = (Chip(gpu, RATES, replace(CASE, attention=name)) for name in ("fused-2023", "fused"))
    assert old.attention_seconds(1e12, "bfloat16") == slower * new.attention_seconds(1e12, "bfloat16")


@pytest.mark.parametrize(("cluster", "faster"), [("dgx-a100", 1), ("dgx-h100", 1.5), ("dgx-b200", 1)])
def test_megatron_has_cudnns_attention_on_hopper_unless_an_older_one_is_named(cluster, faster):
    gpu = find_cluster(cluster).gpu

    def seconds(engine, attention):
        layout = replace(CASE, zero="none", engine=engine, attention=attention)
        return Chip(gpu, RATES, layout).attention_seconds(1e12, "bfloat16")

    for name in ("fused", "cudnn"):
        assert seconds("torchtitan", "fused") == pytest.approx(faster * seconds("megatron", name))
    assert seconds("megatron", "fused-2023") == seconds("torchtitan", "fused-2023")


def test_numbers_are_cast_to_eight_bits_before_each_product():
    eight, sixteen = (H100.seconds(product(256, 4096, 4096, dtype=d))[0] for d in ("float8_e4m3fn", "bfloat16"))
    assert eight > sixteen
    square = product(8192, 8192, 8192, dtype="float8_e4m3fn")
    casts = H100.seconds(square)[0] - H100.product_seconds(square.shape, square.dtype) - RATES.kernel
    assert casts == pytest.approx(H100.passing_seconds(5 * 2 * 8192**2))


def test_an_operation_takes_some_time_however_small():
    assert H100.seconds(product(1, 1, 1))[0] >= RATES.kernel


STEPS = list(itertools.product(["none", "zero1", "zero2", "zero3"], [1, 2, 5]))


@pytest.mark.parametrize(("zero", "micro_batches"), sample_with_quick(STEPS, one_in=1, quick_one_in=4))
def test_no_step_is_faster_than_its_products(zero, micro_batches):
    """Among others: what a stage's last micro-batch does is not taken for what another did."""
    cluster = find_cluster("dgx-a100")
    case = Layout(MODEL, shard=8, zero=zero, micro_batches=micro_batches, seq=1024, recompute="full")
    plan = plan_layout(case, cluster, RATES)
    fastest = Chip(cluster.gpu, RATES, case).product_rate("bfloat16")
    assert plan.flops / fastest < plan.seconds < 5 * plan.flops / fastest
    assert sum(plan.parts.values()) == pytest.approx(1)


def test_four_bits_reach_the_share_of_their_sheet_that_eight_reach():
    gpu, layout = find_cluster("dgx-b200").gpu, Layout(MODEL, engine="megatron", zero="zero1", micro_batches=4)
    chip = Chip(gpu, layout_rates(), layout)
    shape = (8192, 8192, 8192)
    assert chip.product_rate(FOUR) / chip.product_rate(EIGHT) == pytest.approx(gpu.flops4 / gpu.flops8)
    without = Chip(find_cluster("dgx-h100").gpu, layout_rates(), layout)
    assert without.product_seconds(shape, FOUR) > without.product_seconds(shape, EIGHT)  # no units: as in FP32
    cast = chip.seconds(product(*shape, dtype=FOUR))[0] - chip.product_seconds(shape, FOUR)
    assert cast > chip.passing_seconds(4 * 8192 * 8192)  # 16 bits are read twice


@pytest.mark.parametrize(("gpu", "seconds"), [("gb300", 4.43), ("gb200", 6.69)])
def test_a_published_step_in_four_bits(gpu, seconds):
    """Megatron Bridge's Llama 3 70B in NVFP4 on 64 GPUs; no rate was fitted to it."""
    sizes = {"tensor": 2 if gpu == "gb200" else 1, "pipeline": 4, "virtual_stages": 5, "gpus": 64, "seq": 8192}
    line = {"framework": "megatron-bridge", "model": "llama-3.1-70b", "gpu": gpu, "global_batch_size": 256} | sizes
    asked = read_line(line | {"precision": "nvfp4"})
    assert "4" in asked.assumed["precision"]
    assert plan_layout(asked.layout, asked.cluster).seconds == pytest.approx(seconds, rel=0.12)
    eight = read_line(line | {"precision": "fp8"})
    assert plan_layout(eight.layout, eight.cluster).seconds > 1.2 * seconds


@pytest.mark.parametrize(("shard", "passes"), [(1, 2), (4, 4)])
def test_megatron_goes_through_its_gradients_before_they_are_sent(shard, passes):
    plain = Layout(DENSE, engine="megatron", zero="zero1", shard=shard, seq=32)
    cluster, rates = find_cluster("dgx-h100"), replace(layout_rates(), kernel=0.0, launch=0.0)
    before, after = (plan_layout(replace(plain, buffer_passes=each), cluster, rates) for each in (False, True))
    passing = Chip(cluster.gpu, rates, plain).passing_seconds(passes * 4 * DENSE.count())  # FP32
    assert after.seconds - before.seconds == pytest.approx(passing, rel=0.01)
    assert [rank.nbytes for rank in after.ranks] == [rank.nbytes for rank in before.ranks]
