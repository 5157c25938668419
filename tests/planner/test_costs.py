"""Seconds from work and a roofline: which of them bounds, and what a forecast says."""

import math
from dataclasses import replace

from helpers.meter.roofline import Roofline
from helpers.meter.work import Work, works_of
from helpers.planner import ParallelConfig, Recipe, RecipeError, plan
from helpers.planner.catalog import GPUS, Gpu
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.catalog.layout_rates import layout_rates
from helpers.planner.catalog.rooflines import fitted_rates, roofline_of
from helpers.planner.costs import forecasts, paging_seconds, peak_dtype, seconds_by_bound
from helpers.planner.simulate import simulate
from helpers.planner.simulate.work_count import RepeatedWork

import pytest
import torch
from torch import nn

from tests.planner.support import SMALL

GPU = Roofline("a GPU", "cuda", {"float32": [(64, 64, 64, 1e12)]}, [(1.0, 1e9)], launch=1e-3)
CPU = replace(GPU, machine="a CPU", device="cpu")
PRODUCT = Work("aten.mm", "matmul", int(1e12), 1000, "float32", (64, 64, 64))  # a second of arithmetic
ADDITION = Work("aten.add", "pointwise", 0, int(1e9), "float32", ())  # a second of memory
TINY = Work("aten.add", "pointwise", 0, 1000, "float32", ())  # a microsecond, and a launch of a thousand


def step(work, times=1, phase="forward"):
    return RepeatedWork(work, phase, False, times)


def test_each_operation_takes_what_bounds_it():
    assert seconds_by_bound([step(PRODUCT, 2), step(ADDITION, 3)], GPU) == pytest.approx(
        {"compute": 2.0, "memory": 3.0, "launch": 0.0}
    )


def test_a_cpu_launches_and_computes_in_turn():
    assert seconds_by_bound([step(PRODUCT), step(TINY, 1000)], CPU).total() == pytest.approx(1.001 + 1.001)


def test_a_gpu_computes_while_the_host_launches():
    assert seconds_by_bound([step(PRODUCT), step(TINY, 500)], GPU).total() == pytest.approx(1.0005)
    slow = seconds_by_bound([step(PRODUCT), step(TINY, 1999)], GPU)
    assert slow.total() == pytest.approx(2.0)  # 2000 launches
    assert slow["launch"] == pytest.approx(2.0 - 1.002, rel=0.01)


def test_a_phase_cannot_wait_for_the_next():
    busy, waiting = step(PRODUCT), step(TINY, 500, "optimizer step")
    assert seconds_by_bound([busy, waiting], GPU).total() == pytest.approx(1.0 + 0.5)


def test_paged_state_waits_for_the_bus_as_far_as_there_is_no_room():
    recipe = replace(SMALL, optimizer="adamw-8bit-paged")
    simulation, unpaged = simulate(recipe), simulate(replace(SMALL, optimizer="adamw-8bit"))
    state = simulation.host_bytes
    assert simulation.state_bytes == 0 < state == unpaged.state_bytes
    gpu = Gpu("a GPU", 10**9, link=1e9, context=0)
    assert paging_seconds(simulation, 10**9 - state, gpu) == 0
    assert paging_seconds(simulation, 10**9 - state // 2, gpu) == pytest.approx(2 * (state - state // 2) / 1e9)
    assert paging_seconds(simulation, 10**9, gpu) == 2 * state / 1e9  # out and in again
    assert paging_seconds(unpaged, 10**9, gpu) == 0


# -- GPUs of the catalog


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_no_gpu_is_much_faster_than_its_data_sheet(gpu):
    roofline = roofline_of(gpu)
    for dtype, peak in gpu.peaks.items():
        assert 0.25 * peak < roofline.peak(dtype) < 1.25 * peak, dtype  # GeForce boards clock above their sheet
    assert roofline.product_seconds((8192, 8192, 8192), "float16") >= 2 * 8192**3 / roofline.peak("float16")
    assert 0.6 * gpu.bandwidth < 1e9 / roofline.traffic_seconds(1e9) < gpu.bandwidth


def test_skinny_and_small_products_are_slower_for_their_flops():
    roofline = roofline_of(GPUS["h100-80gb"])

    def rate(m, n, k):
        return 2 * m * n * k / roofline.product_seconds((m, n, k), "bfloat16")

    assert rate(8192, 8192, 8192) > 1.5 * rate(8192, 16, 8192) > 1.5 * rate(64, 16, 64)


def test_a_batch_of_products_costs_one_launch():
    """2,304 heads of 197 tokens are one kernel: they take as long as their FLOPs or bytes, not 2,304 launches."""
    roofline = roofline_of(GPUS["rtx-3090-24gb"])
    heads = (2304, 197, 197, 64)
    batch = Work("aten.bmm", "matmul", 2 * math.prod(heads), 0, "float16", heads, "nt")
    seconds, bound = roofline.seconds(batch)
    least = batch.flops / roofline.peak("float16")
    assert bound == "compute"
    assert least < seconds < 2 * least + 2 * roofline.launch
    one = replace(batch, flops=batch.flops // 2304, shape=heads[1:])
    assert 2304 * roofline.seconds(one)[0] > 50 * seconds


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["t4-16gb", "rtx-3090-24gb", "h100-80gb", "mi300x-192gb"])
def test_fused_attention_is_costed_in_every_dtype(name, dtype):
    """A head more costs its share, however small the heads are."""
    roofline = roofline_of(GPUS[name])

    def seconds(heads):
        shape = (heads, 96, 96, 64)
        work = Work("aten._scaled_dot_product_efficient_attention", "attention", 0, 0, dtype, shape)
        return roofline.seconds(replace(work, flops=4 * math.prod(shape)))[0] - roofline.launch

    assert seconds(1024) == pytest.approx(1024 * seconds(1))
    assert 0.1 < 4 * 96 * 96 * 64 / seconds(1) / roofline.peak(dtype) < 1.25


def test_emulated_bf16_is_slower_than_fp32():
    for name in ("t4-16gb", "v100-16gb"):
        products = fitted_rates().products[name]
        assert products["bfloat16"] < products["float32"] < products["float16"]


# -- what a plan says


@pytest.fixture(scope="module")
def gpt2():
    return plan(Recipe("gpt2", micro_batch_size=8, seq=1024))


def test_a_forecast_is_above_the_bound_and_adds_up(gpt2):
    assert set(gpt2.forecasts) == {name for name, gpu in GPUS.items() if gpu.common}
    for name, answer in gpt2.forecasts.items():
        assert answer.seconds > 0.99 * gpt2.roofline_seconds[name] or GPUS[name].capability >= (12, 0), name
        assert answer.low <= answer.seconds <= answer.high
        assert sum(answer.bounds.values()) == pytest.approx(1, abs=0.01)
        assert answer.per_second == pytest.approx(8 * 1024 / answer.seconds, rel=0.01)
        assert answer.unit == "tokens"
        assert 0 < answer.mfu < 1
        assert answer.mfu <= 1.15 * answer.bounds["compute"]


def test_recomputing_takes_longer_and_lowers_mfu(gpt2):
    again = plan(replace(gpt2.recipe, checkpointing="every"), gpu="h100").forecasts["h100-80gb"]
    plain = gpt2.forecasts["h100-80gb"]
    assert 1.1 * plain.seconds < again.seconds < 1.5 * plain.seconds
    assert again.mfu < plain.mfu


def test_compiling_and_fused_attention_are_faster(gpt2):
    plain = gpt2.forecasts["h100-80gb"].seconds
    assert plan(replace(gpt2.recipe, compile=True), gpu="h100").forecasts["h100-80gb"].seconds < 0.9 * plain
    assert plan(replace(gpt2.recipe, attention="eager"), gpu="h100").forecasts["h100-80gb"].seconds > 1.05 * plain


def test_small_models_wait_for_the_host():
    tiny = plan(replace(SMALL, micro_batch_size=1, seq=16), gpu="h100").forecasts["h100-80gb"]
    assert tiny.bounds["launch"] > 0.5


def test_images_are_counted_as_images():
    answer = plan(Recipe("vit-b-16", micro_batch_size=4, gradient_accumulation_steps=2), gpu="a100-80gb")
    speed = answer.forecasts["a100-80gb"]
    assert speed.unit == "images"
    assert speed.per_second == pytest.approx(8 / speed.seconds, rel=0.01)
    assert f"{speed.per_second:.0f} images/s" in str(answer)


def test_this_machine_is_forecast_from_its_measured_roofline(monkeypatch):
    monkeypatch.setattr("helpers.meter.roofline.kept_roofline", lambda: CPU)
    slow, fast = plan(SMALL, gpu="this"), plan(replace(SMALL, micro_batch_size=1), gpu="this")
    assert slow.forecasts["this"].seconds > 2 * fast.forecasts["this"].seconds
    assert set(slow.fits) == {"this"}
    assert plan(replace(SMALL, precision="fp16-amp"), gpu="this").forecasts["this"].mfu > 0  # measured in FP32 only
    monkeypatch.setattr("helpers.meter.roofline.kept_roofline", lambda: None)
    with pytest.raises(RecipeError, match="helpers roofline"):
        plan(SMALL, gpu="this")


def test_messages_of_ranks_are_hidden_by_passes_or_take_time():
    def seconds(ranks, link, **changes):
        cluster = replace(find_cluster("dgx-h100"), inside=link * 1e9)
        parallel = ParallelConfig(shard=ranks, zero=changes.pop("zero", "none"))
        recipe = replace(SMALL, optimizer="sgd", parallel=parallel, **changes)
        (each,) = plan(recipe, cluster=cluster).forecasts.values()
        assert each.low <= each.seconds <= each.high
        return each

    alone = seconds(1, 450)
    fast, slow, slower = (seconds(4, link) for link in (450, 1, 0.5))
    assert fast.seconds == pytest.approx(alone.seconds, rel=0.05)
    assert fast.bounds["messages"] == 0
    assert fast.per_second == pytest.approx(alone.per_second, rel=0.05)  # of one GPU
    # What is not hidden grows by what the link takes longer: twice the parameters, less what a rank has itself.
    sent = 2 * 3 / 4 * 4 * plan(SMALL).parameters
    share = layout_rates().inside
    assert slower.seconds - slow.seconds == pytest.approx(sent / share / 1e9, rel=0.05)
    assert slow.high >= slow.seconds + alone.seconds * 0.5
    assert seconds(4, 1, zero="zero3").seconds > fast.seconds


def test_there_is_no_forecast_where_messages_or_the_host_take_part():
    for changed in ({"parallel": ParallelConfig(shard=2, zero="none")}, {"offload": "optimizer"}):
        answer = plan(replace(SMALL, **changed), gpu="h100")
        assert answer.forecasts == {}
        assert "a lower bound" in str(answer)
    assert "without a data sheet" in str(plan(SMALL, budget=40))


# -- FP32 that is computed in TF32

LARGE = (8192, 8192, 8192)
CONVOLUTION = Work("aten.convolution", "convolution", int(1e13), 1000, "float32", LARGE)
MATMUL = Work("aten.mm", "matmul", int(1e13), 1000, "float32", LARGE)


@pytest.fixture(scope="module")
def seconds():
    """Return the forecast of a step that only does this work, on a GPU."""
    small = simulate(Recipe("small-cnn", precision="fp32"))

    def run(work, gpu, **options):
        recipe = replace(small.recipe, **options)
        return forecasts(replace(small, recipe=recipe, works=[step(work)]), 0, [GPUS[gpu]])[gpu]

    return run


def test_convolutions_of_fp32_numbers_take_tf32_where_the_gpu_has_it(seconds):
    assert seconds(CONVOLUTION, "a100-80gb").seconds < seconds(MATMUL, "a100-80gb").seconds / 4
    for without in ("v100-16gb", "mi300x-192gb"):  # no units for it; no default of PyTorch's
        assert seconds(CONVOLUTION, without).seconds == seconds(MATMUL, without).seconds


def test_matmuls_take_tf32_if_they_are_told_to(seconds):
    told = seconds(MATMUL, "a100-80gb", tf32=True)
    assert told.seconds == seconds(CONVOLUTION, "a100-80gb").seconds
    assert 0.3 < told.mfu < 1  # of what TF32 could do
    assert seconds(MATMUL, "v100-16gb", tf32=True) == seconds(MATMUL, "v100-16gb")


def test_the_mfu_of_few_convolutions_is_a_share_of_fp32():
    net = simulate(Recipe("vit-b-16", precision="fp32"))
    assert peak_dtype(net, GPUS["a100-80gb"]) == "float32"
    assert peak_dtype(replace(net, recipe=replace(net.recipe, tf32=True)), GPUS["a100-80gb"]) == "tf32"


def test_tf32_is_about_fp32():
    with pytest.raises(RecipeError, match="precision fp32"):
        Recipe("gpt2", tf32=True, precision="bf16")


def test_groups_of_a_convolution_have_the_rate_of_their_own_channels():
    """As many FLOPs in eight groups take longer than in one: a group's matmul has an eighth of the channels out."""
    roofline = roofline_of(GPUS["rtx-3090-24gb"])
    seconds = {}
    for groups in (1, 8):
        layer = nn.Conv2d(512 * groups // 8, 512, 3, groups=groups, device="meta", dtype=torch.float16)
        x = torch.empty(64, 512 * groups // 8, 28, 28, device="meta", dtype=torch.float16)
        (work,) = (each for each in works_of(lambda layer=layer, x=x: layer(x)) if each.kind == "convolution")
        assert work.shape[1:] == (512 // groups, 64 * 9)
        seconds[groups] = roofline.seconds(work)[0]
        flops = work.flops
    assert flops == 2 * 64 * 26 * 26 * 512 * 64 * 9  # of either
    assert 1.1 < seconds[8] / seconds[1] < 3
