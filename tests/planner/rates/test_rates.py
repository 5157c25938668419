"""`--rates FILE`: every kind of file is read and moves the forecast; what cannot be true is refused."""

import json
from dataclasses import replace

from helpers.__main__ import main
from helpers.meter.roofline import Roofline
from helpers.meter.work import Work
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.catalog.layout_rates import layout_rates
from helpers.planner.config import RecipeError
from helpers.planner.layout.arch import Arch
from helpers.planner.layout.chip import _AMONG_OTHERS, Chip
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.links import Links
from helpers.planner.rates.applied import Applied
from helpers.planner.rates.read import read_rates
from helpers.planner.rows.answers import answer

import pytest

H100, B200 = find_cluster("dgx-h100"), find_cluster("dgx-b200")
MODEL = Arch(layers=2, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocab=512)
CASE = Layout(MODEL, tensor=8, engine="megatron", zero="zero1")
SHAPE = (4096, 8192, 8192)
NCCL = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1073741824
# all_reduce_perf
#  Rank  0 Group  0 Pid   1 on   node1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1 on   node1 device  1 [0x43] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    29.52   35.52   35.52      0    29.43   35.63   35.63      0
    67108864      16777216     float     sum      -1    350.0   191.7   191.7      0    351.1   191.1   191.1      0
  1073741824     268435456     float     sum      -1   5168.0   207.8   207.8      0   5168.7   207.7   207.7      0
"""


def matmul(layout="nt", dtype="bfloat16", shape=SHAPE):
    m, n, k = shape[-3:]
    return Work("aten.mm", "matmul", 2 * m * n * k, 0, dtype, shape, layout)


@pytest.fixture
def written(tmp_path):
    def write(content, name="rates.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return str(path)

    return write


def rates_of(path, cluster=H100):
    return Applied(read_rates(path)).rates(cluster)


def reached(path, work, cluster=H100, slower=_AMONG_OTHERS):
    """Return the FLOP/s of a large matmul alone, by the rates of a file: in a step it is slower."""
    chip = Chip(cluster.gpu, replace(rates_of(path, cluster), kernel=0.0), CASE)
    return work.flops / chip.seconds(work)[0] / slower


def row(tflops, **more):
    return dict(zip("mnk", SHAPE, strict=True)) | {"tflops": tflops} | more


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ([row(500)], "rates.json"),
        ({"gpu": "h100", "matmuls": [row(500, dtype="bf16", **{"pass": "forward"})]}, "rates.json"),
        ("m, n, k, tflops\n4096, 8192, 8192, 500\n", "rates.csv"),
        ("m;n;k;tflops\n4096;8192;8192;500\n", "rates.csv"),
        ("M\tN\tK\tTFLOPS\n4096\t8192\t8192\t500\n", "rates.tsv"),
        ({"rows": [{"system": "h100_x", "op": "matmul", "tflops": 500,
                    "shape": "b=1, m=4096, k=8192, n=8192, layout=TN, accumulate=False, out_dtype=bf16"}]}, "x.json"),
        (Roofline("an H100", "cuda", {"bfloat16": [(*SHAPE, 5e14)]}, [(2.0**30, 3e12)], 2e-5).to_json(), "roof.json"),
    ],
)  # fmt: skip
def test_every_kind_of_table_is_read(written, content, name):
    assert reached(written(content, name), matmul()) == pytest.approx(5e14)


def test_passes_have_rates_of_their_own_and_other_dtypes_move_along(written):
    usual = {dtype: Chip(H100.gpu, replace(layout_rates(), kernel=0.0), CASE) for dtype in ("bfloat16",)}["bfloat16"]
    share = SHAPE_RATE / usual_rate(usual, "bfloat16")
    path = written([row(SHAPE_RATE / 1e12, **{"pass": "forward"}), row(300, **{"pass": "weight"})])
    assert reached(path, matmul("nt")) == pytest.approx(SHAPE_RATE)
    assert reached(path, matmul("tn")) == pytest.approx(3e14)
    eight = Chip(H100.gpu, rates_of(written([row(SHAPE_RATE / 1e12)])), CASE)
    work = matmul(dtype="float8_e4m3fn")
    assert eight._measured_product(work) == pytest.approx(usual.product_seconds(SHAPE, work.dtype) / share)


SHAPE_RATE = 4e14


def usual_rate(chip, dtype):
    return chip.catalog_rate(SHAPE, dtype)


def test_between_measured_shapes_the_nearest_decide(written):
    near, far = row(600), {"m": 256, "n": 256, "k": 256, "tflops": 100}
    found = reached(written([near, far]), matmul(shape=(4096, 8192, 6144)), slower=layout_rates().in_step)
    assert 5.5e14 < found < 6e14


def test_no_matmul_is_faster_in_a_step_than_long_ones_were(written):
    long = [row(500, m=8192, n=size, k=16384) for size in (8192, 16384, 32768)]  # four milliseconds and more
    short, slow = row(650, m=1024, n=1024), row(300, m=2048, n=1024)
    path = written([*long, short, slow])
    assert reached(path, matmul(shape=(1024, 1024, 8192))) == pytest.approx(5e14)
    assert reached(path, matmul(shape=(2048, 1024, 8192))) == pytest.approx(3e14)
    few = written([*long[:2], short])  # which do not show what the chip keeps up
    assert reached(few, matmul(shape=(1024, 1024, 8192))) == pytest.approx(6.5e14)


def test_simumax_counts_the_bytes_of_memory_in_gib(written):
    usual = {"efficient_factor": 0.5, "gbps": 2000, "latency_us": 10}
    path = written({"rows": [{"system": "h100_x", "bandwidth": {"default": usual}, "networks": {}}]})
    assert read_rates(path).systems["h100_x"].memory == 1000 * (1 << 30)


def test_nccl_tests_give_the_links(written):
    before, after = (
        Links(replace(CASE, tensor=2), H100, r)["tensor"] for r in (layout_rates(), rates_of(written(NCCL)))
    )
    gib = 1 << 30
    assert after.seconds("all-reduce", gib) == pytest.approx(5.168e-3, rel=0.05)
    assert after.seconds("all-reduce", gib) > before.seconds("all-reduce", gib)
    outside = Links(replace(CASE, tensor=1, shard=64), H100, rates_of(written(NCCL)))["shard"]
    usual = Links(replace(CASE, tensor=1, shard=64), H100, layout_rates())["shard"]
    assert outside.seconds("all-reduce", gib) == usual.seconds("all-reduce", gib)  # was not measured


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: "])
def test_the_ranks_that_launchers_put_before_a_line_do_not_matter(written, prefix):
    lines = "\n".join(prefix + line for line in NCCL.splitlines())
    assert read_rates(written(lines)).systems[""].wires == read_rates(written(NCCL, "plain")).systems[""].wires


def test_a_ring_over_nodes_has_as_many_ports_as_ranks_in_each(written):
    measured = {"collective": "all-reduce", "ranks": 16, "nodes": 2, "bus_gb_s": 320}
    rates, gib = rates_of(written({"collectives": [measured]})), 1 << 30
    whole = Links(replace(CASE, tensor=1, shard=16), H100, rates)["shard"]
    single = Links(replace(CASE, tensor=8, shard=2), H100, rates)["shard"]
    assert whole.seconds("all-reduce", gib) == pytest.approx(2 * gib * 15 / 16 / 320e9)
    assert single.seconds("all-reduce", gib) == pytest.approx(gib / 40e9)  # one rank a node, and one port
    words = Applied(read_rates(written({"collectives": [measured]}))).words(H100)
    assert words == [f"links outside a node x {40e9 / (H100.outside * layout_rates().outside):.2f}"]


def test_simumax_says_how_data_ranks_share_a_link_with_tensor_ranks_between_them(written):
    said = {"scale": 1, "offset": -1, "efficient_factor": 0.5, "latency_us": 5, "dp_fixed_bw": {"2": 4}}
    net = {"bandwidth": {"efficient_factor": 0.5, "gbps": 30, "latency_us": 10}, "op": {"all_gather": said}}
    chip = {"bandwidth": {"default": {"efficient_factor": 0.9, "gbps": 1600, "latency_us": 40}}}
    path = written({"rows": [{"system": "a100_pcie"} | chip | {"networks": {"intra_node_pcie_8x": net}}]})
    cluster, gib = find_cluster("pcie-8x-a100"), 1 << 30
    alone, among = (
        Links(replace(CASE, tensor=tensor, shard=2), cluster, rates_of(path, cluster))["shard"] for tensor in (1, 4)
    )
    assert among.seconds("all-gather", gib) == pytest.approx(0.5 / 4)
    assert alone.seconds("all-gather", gib) == pytest.approx(0.5 / 15, rel=0.01)


LINE = {"arch": {"layers": 2, "hidden": 256, "heads": 4, "vocab": 512}, "gpu": "h100", "gpus": 8, "seq": 512, "id": 1}


def test_runs_set_the_pace(written):
    usual = answer(LINE)["step_seconds"]
    runs = "\n".join(json.dumps(LINE | {"step_seconds": usual * each}) for each in (1.4, 1.5, 1.6))
    assert answer(LINE, written(runs, "log.jsonl"))["step_seconds"] == pytest.approx(1.5 * usual, rel=0.01)
    tokens = 8 * 512 / 8 / usual / 2
    path = written([LINE | {"tokens_per_second_per_gpu": tokens}], "one.json")
    assert answer(LINE, path)["step_seconds"] == pytest.approx(2 * usual, rel=0.01)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([row(500), row(300)], "contradicts itself"),
        ([row(5000)], "at most 989 dense"),
        ([row(0)], "must be more than 0"),
        ([row(3)], "are the units different"),
        ([row("many")], "must be a number"),
        ([{"m": 1, "n": 2, "k": 1.5, "tflops": 4}], "k is 1.5"),
        ({"gpu": "b200", "matmuls": [row(500)]}, "the run is on h100-80gb"),
        ({"matmul": [row(500)]}, "unknown matmul"),
        ({}, "contains no rates"),
        ("hello", "not a table of rates"),
        ("m,n,k,milliseconds\n1,2,3,4\n", "lacks tflops"),
        ({"traceEvents": [{"ph": "X", "name": "gemm"}]}, "a profiler's trace"),
        ("iteration 10/ 100 | elapsed time per iteration (ms): 5123.4 |", "a training log"),
        ("[titan] step: 10  loss:  8.1  memory: 45.1GiB(47.45%)  tps: 5,762  mfu: 34.1%", "a training log"),
        ("iteration 10/99 | lr: 4.5e-07 | train_step_timing in s: 5.123", "a training log"),
        ("{'loss': 1.23, 'grad_norm': 0.5, 'epoch': 0.1}", "a training log"),
        ("micro_step=10, RunningAvgSamplesPerSec=12.3, MemAllocated=10.1GB", "a training log"),
        ({"log_history": [{"loss": 1.2}]}, "a training log"),
        ([{"current_steps": 10, "throughput": 512.3}], "a training log"),
        ([LINE | {"gpu": "a100", "step_seconds": 1.0}], "they are on a100-80gb"),
        (NCCL.replace("all_reduce_perf", "broadcast_perf"), "broadcast_perf measures what no layout sends"),
        (NCCL.replace("207.8   207.8", "207.8   363.0"), "contradicts itself"),
        (NCCL.replace("5168.0", "2168.0"), "contradicts itself"),
        ({"collectives": [{"collective": "all-reduce", "ranks": 8, "bus_gb_s": 5000}]}, "its links have 450"),
        (Roofline("a CPU", "cpu", {"float32": [(*SHAPE, 1e11)]}, [(2.0**30, 1e10)], 2e-5).to_json(), "of a CPU"),
        ([LINE | {"step_seconds": 1.0}, LINE | {"step_seconds": 4.0}], "one pace"),
    ],
)
def test_what_contradicts_itself_is_refused(written, content, word):
    with pytest.raises(RecipeError, match=word):
        rates_of(written(content))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "rates.bin").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(RecipeError, match=r"rates\.bin is not a text file"):
        read_rates(str(tmp_path / "rates.bin"))


def test_the_command_says_what_moved_and_refuses_with_two(written, capsys):
    plan = ["plan", "--model", "gpt2", "--gpus", "8", "--tp", "2", "--gpu", "h100", "--seq", "128", "--rates"]
    assert main([*plan, written([row(500)])]) == 0
    assert "rates of rates.json, relative to the forecast's: matmuls in bfloat16 x " in capsys.readouterr().out
    assert main([*plan, written([row(500), row(300)])]) == 2
    said = capsys.readouterr().err
    assert "contradicts itself" in said
    assert said.count("\n") == 1


def test_lines_are_planned_by_the_rates_of_a_file(written, tmp_path, capsys):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text(json.dumps(LINE) + "\n" + json.dumps(LINE | {"gpu": "b200"}), encoding="utf-8")
    path = written({"gpu": "h100", "matmuls": [row(300)]})
    assert main(["plan", "--rows", str(rows), "--out", str(out), "--rates", path]) == 0
    first, second = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert first["step_seconds"] > 0
    assert "h100-80gb" in second["error"]
    assert "dgx-h100: matmuls in bfloat16 x 0." in capsys.readouterr().err
