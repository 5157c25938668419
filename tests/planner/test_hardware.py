"""The files of GPUs: each loads and can be planned on, names are found by whole parts, and one file is all it takes."""

import itertools
import json

from helpers.planner import Recipe, RecipeError, find_gpu, plan
from helpers.planner.catalog.clusters import CLUSTERS, find_cluster
from helpers.planner.catalog.gpus import GPUS, HARDWARE, gpu_of, read_sheet
from helpers.planner.catalog.rooflines import fitted_rates, matmul_rates, roofline_of
from helpers.planner.costs import forecasts
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.simulate import simulate

import pytest

from tests.planner.layout.small import DENSE
from tests.planner.support import SMALL

FILES = sorted(HARDWARE.glob("*.toml"))
EXPECTED = "h20 l40 l40s l4 a10 rtx-5090 rtx-pro-6000 b200 b300 gb200 gb300 mi300x mi325x mi350x mi355x h200-nvl"
MINE = """
name = "x1-48gb"
sources = ["a test"]
capability = [13, 0]
multiprocessors = 100
watts = 500
usable_gib = 47.5
memory_gb_s = 2000
host_gb_s = 64

[peak_tflops]
sixteen_bits = 400
float32 = 50

[[clusters]]
name = "x1-node"
gpus_per_node = 4
node_gb_s = 200
network_gb_s = 25
source = "a test"
"""


@pytest.fixture
def mine(tmp_path):
    """The path of a file of a GPU that the catalog does not have."""
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    return path


@pytest.fixture(scope="module")
def step():
    return simulate(SMALL)


# -- each file


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_describes_the_gpu_of_its_name(path):
    gpu = gpu_of(read_sheet(path))
    assert gpu == GPUS[path.stem] == find_gpu(path.stem) == find_gpu(str(path))
    assert gpu.source
    assert gpu.multiprocessors >= 10
    assert 50 < gpu.watts < 2000
    assert 7 < gpu.total / 2**30 < float(gpu.name.rpartition("-")[2].removesuffix("gb"))  # less than on the box
    assert gpu.flops16 > gpu.flops32 or gpu.capability < (7, 0)  # no units for 16 bits
    assert gpu.flops16 <= (gpu.flops8 or gpu.flops16) <= (gpu.flops4 or gpu.flops8 or gpu.flops16)
    assert gpu.bandwidth > 4 * gpu.link > 0
    assert not gpu.like or gpu.like in GPUS
    assert bool(gpu.rates) != bool(gpu.like)  # measured, or kin to one that is


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_a_step_is_forecast_on_each(gpu, step):
    answer = forecasts(step, 0, [gpu])[gpu.name]
    assert 0 < answer.low <= answer.seconds <= answer.high
    assert gpu.cublas_workspace
    rates = matmul_rates(gpu, fitted_rates())
    assert set(gpu.peaks) <= set(rates)
    for dtype, peak in gpu.peaks.items():
        assert 0.2 * peak < rates[dtype] < 1.25 * peak, dtype
    assert roofline_of(gpu).peak("bfloat16") > 0


@pytest.mark.parametrize("name", [*GPUS, *CLUSTERS])
def test_a_layout_is_planned_on_each(name):
    cluster = find_cluster(name)
    answer = plan_layout(Layout(DENSE, shard=2, seq=64), cluster)
    assert answer.fits
    assert answer.seconds > 0
    assert name in (cluster.name, cluster.gpu.name)


def test_no_cluster_is_named_twice():
    assert len(CLUSTERS) == sum(len(read_sheet(path).get("clusters", [])) for path in FILES)


def test_what_people_ask_for_is_known():
    for name in EXPECTED.split():
        assert find_gpu(name).name.startswith(name)


# -- names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h20", "h20-96gb"),
        ("H200", "h200-141gb"),
        ("l4", "l4-24gb"),
        ("l40", "l40-48gb"),
        ("a10", "a10-24gb"),
        ("a800", "a800-80gb"),
        ("rtx4090", "rtx-4090-24gb"),
        ("GeForce RTX 4090", "rtx-4090-24gb"),
        ("4090", "rtx-4090-24gb"),
        ("a100-80", "a100-80gb"),
        ("NVIDIA A100-SXM 80GB", "a100-80gb"),
        ("h100", "h100-80gb"),
        ("h100-96gb", "h100-96gb"),
        ("b300", "b300-288gb"),
        ("mi300x", "mi300x-192gb"),
        ("3080", "rtx-3080-10gb"),
        ("RTX 3080 Ti", "rtx-3080-ti-12gb"),
        ("4070ti super", "rtx-4070-ti-super-16gb"),
        ("rtx4070tisuper", "rtx-4070-ti-super-16gb"),
        ("4070 Ti", "rtx-4070-ti-12gb"),
        ("4060 ti 16gb", "rtx-4060-ti-16gb"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada-48gb"),
        ("RTX A5000", "a5000-24gb"),
        ("rtxa4000", "a4000-16gb"),
        ("RTX A6000", "a6000-48gb"),
        ("Quadro RTX 8000", "quadro-rtx-8000-48gb"),
        ("2080ti", "rtx-2080-ti-11gb"),
        ("titan rtx", "titan-rtx-24gb"),
        ("Tesla P100", "p100-16gb"),
        ("h100 pcie", "h100-pcie-80gb"),
        ("a40", "a40-48gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA Blackwell GPU (GB200)", "gb200-186gb"),
        ("AMD Instinct MI355X 288GB HBM3e", "mi355x-288gb"),
        ("AMD Instinct MI350X 288GB HBM3e", "mi350x-288gb"),
        ("NVIDIA H200-NVL-141GB", "h200-nvl-141gb"),
        ("NVIDIA H200-SXM5-141GB", "h200-141gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-96gb"),
        ("B200-SXM-180GB", "b200-192gb"),
        ("B300-SXM-270GB", "b300-288gb"),
    ],
)
def test_whole_parts_of_a_name_find_a_gpu(name, found):
    assert find_gpu(name).name == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a100", "a100-40gb or a100-80gb"),
        ("h2000", "h200-141gb"),
        ("t", "t4-16gb"),
        ("rtx 6000", "quadro-rtx-6000-24gb or rtx-6000-ada-48gb"),
        ("6000", "quadro-rtx-6000-24gb or rtx-6000-ada-48gb or rtx-pro-6000-96gb"),
        ("4060 ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("rtx 5060", "rtx-5060-ti-16gb"),
        ("mi300", "mi300x-192gb"),
        ("rtx-4900", "rtx-4090-24gb"),
        ("abacus", "is not in the catalog. `plan --list`"),
        ("", "is not in the catalog. `plan --list`"),
        ("nvidia", "is not in the catalog. `plan --list`"),
        ("h100-cnx", "is not in the catalog"),
        ("a100-60gb", "is not in the catalog"),
    ],
)
def test_another_name_is_refused_with_the_nearest(name, words):
    with pytest.raises(RecipeError, match="GPU") as refusal:
        find_gpu(name)
    assert words in str(refusal.value)


# -- a GPU of one's own


def test_one_file_is_all_that_a_gpu_needs(mine, step):
    gpu = find_gpu(str(mine))
    answer = plan(SMALL, gpu=str(mine))
    assert answer.fits == {"x1-48gb": True}
    assert answer.forecasts["x1-48gb"].seconds > 0
    assert forecasts(step, 0, [gpu])["x1-48gb"] == answer.forecasts["x1-48gb"]
    cluster = find_cluster(str(mine))
    assert (cluster.name, cluster.node, cluster.inside) == ("x1-node", 4, 200e9)
    layout = plan_layout(Layout(DENSE, shard=2, seq=64), cluster)
    assert layout.seconds > 0
    assert find_cluster(str(mine), 2).node == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("watts = 500", ""), "lacks watts"),
        (("watts = 500", "watts = 500\ntdp = 3"), "has unknown tdp"),
        (("float32 = 50", ""), "sixteen_bits, float32"),
        (("float32 = 50", "float32 = 50\nfloat2 = 1"), "sixteen_bits, float32"),
        (("node_gb_s = 200", ""), "a cluster has"),
        (("gpus_per_node = 4", "gpus_per_node = 0"), "at least one GPU"),
        (("[peak_tflops]", "[peak"), "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_is_refused(mine, change, complaint):
    mine.write_text(MINE.replace(*change))
    with pytest.raises(RecipeError, match=complaint):
        find_cluster(str(mine))


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(RecipeError, match=r"nowhere\.toml cannot be read"):
        find_gpu("nowhere.toml")


# -- the sheet's order is the forecast's

CONFIG = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8}
ORDERED = {
    "eager, FP32": {"precision": "fp32", "attention": "eager"},
    "fused attention, FP32": {"precision": "fp32"},
    "eager, FP16": {"precision": "fp16-amp", "attention": "eager"},
    "fused attention, BF16": {"precision": "bf16-amp"},
}
NOISE = 1.03  # between measured rates of chips that are alike


@pytest.mark.parametrize("changes", ORDERED.values(), ids=ORDERED)
def test_no_gpu_that_is_slower_on_its_sheet_is_faster(changes, tmp_path):
    """Where one vendor's sheet gives a GPU no more of anything: FLOP/s in each dtype, bandwidth, power."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "vocab_size": 1000} | CONFIG))
    simulation = simulate(Recipe(str(path), micro_batch_size=64, seq=128, **changes))
    seconds = {name: answer.seconds for name, answer in forecasts(simulation, 0, list(GPUS.values())).items()}
    compared = 0
    for slow, fast in itertools.permutations(GPUS.values(), 2):
        if slow.vendor == fast.vendor and _at_most(slow, fast):
            compared += 1
            assert seconds[fast.name] <= NOISE * seconds[slow.name], f"{slow.name} is faster than {fast.name}"
    assert compared > 100


def _at_most(slow, fast):
    figures = ("flops16", "flops32", "tf32", "flops8", "bandwidth", "watts")
    return slow.bf16 <= fast.bf16 and all(getattr(slow, name) <= getattr(fast, name) for name in figures)
