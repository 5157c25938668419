"""The law of the roofline on made-up machines, and what is measured of this one."""

import json
import math
from dataclasses import replace

from helpers.core.files import user_folder
from helpers.meter.roofline import (
    Link,
    Roofline,
    bench,
    keep_roofline,
    kept_roofline,
    measure_roofline,
    measured,
    subjects,
)
from helpers.meter.roofline.figure import roofline_figure
from helpers.meter.roofline.interpolation import near_rates, on_curve
from helpers.meter.roofline.kept import machine_name, roofline_file
from helpers.meter.roofline.stopwatch import LONGEST, Stopwatch
from helpers.meter.roofline.subjects import tiny_step
from helpers.meter.roofline.timed import timed
from helpers.meter.work import Work, works_of

import pytest
import torch

CPU = torch.device("cpu")
SIDES = (1, 8, 64, 512)
# Each side that is small costs its share: a machine that reaches 1e12 FLOP/s with large ones.
GRID = [(m, n, k, 1e12 / ((1 + 8 / m) * (1 + 8 / n) * (1 + 8 / k))) for m in SIDES for n in SIDES for k in SIDES]
MACHINE = Roofline(
    "a machine",
    "cpu",
    {"float32": GRID, "bfloat16": [(m, n, k, 4 * rate) for m, n, k, rate in GRID]},
    ((1e3, 1e9), (1e6, 1e11), (1e9, 1e10)),
    launch=1e-6,
    kernels={"aten.convolution": {"float32": [(64, 64, 64, 1e10)]}},
    passes={"aten.gelu": {"float32": ((1e3, 1e8), (1e6, 1e9))}},
    link=Link(1e-5, 1e9),
)


def product(*shape, dtype="float32"):
    return Work("aten.mm", "matmul", 2 * math.prod(shape), 0, dtype, shape)


# -- between what was measured


def test_a_curve_goes_through_its_points_and_straight_between_them():
    curve = ((1e3, 1e9), (1e5, 1e11))
    assert [on_curve(curve, size) for size in (1, 1e3, 1e5, 1e9)] == [1e9, 1e9, 1e11, 1e11]
    assert on_curve(curve, 1e4) == pytest.approx(1e10)  # half-way, in logarithms


@pytest.mark.parametrize("shape", [(1, 1, 1), (512, 512, 512), (8, 512, 64)])
def test_a_measured_shape_has_its_measured_rate(shape):
    assert near_rates(GRID, shape) == pytest.approx({point[:3]: point[3] for point in GRID}[shape])


def test_no_shape_is_faster_or_slower_than_all_measured_ones():
    rates = [point[3] for point in GRID]
    for shape in [(3, 5, 7), (100, 2, 300), (10**6, 10**6, 10**6), (10**6, 1, 1), (1, 10**5, 30)]:
        assert min(rates) <= near_rates(GRID, shape) <= max(rates)
    assert near_rates(GRID, (10**6, 10**6, 10**6)) == pytest.approx(near_rates(GRID, (512, 512, 512)))


def test_between_measured_shapes_the_law_behind_them_holds():
    for m, n, k in [(20, 20, 20), (200, 200, 200), (3, 200, 200), (200, 3, 20), (100, 400, 30)]:
        truth = 1e12 / ((1 + 8 / m) * (1 + 8 / n) * (1 + 8 / k))
        assert near_rates(GRID, (m, n, k)) == pytest.approx(truth)


def test_where_a_corner_was_not_measured_its_neighbours_stand_in():
    whole = near_rates(GRID, (300, 300, 300))
    without = near_rates(GRID[:-1], (300, 300, 300))
    assert near_rates(GRID, (64, 64, 64)) < without < whole
    scattered = [(8, 8, 8, 1e9), (100, 100, 8, 2e9), (8, 500, 500, 4e9)]
    assert near_rates(scattered, (100, 100, 8)) == pytest.approx(2e9)
    assert 1e9 < near_rates(scattered, (50, 50, 50)) < 4e9


# -- the law


def test_a_product_takes_its_flops_over_the_rate_of_its_shape():
    assert MACHINE.product_seconds((512, 512, 512), "float32") == pytest.approx(2 * 512**3 / GRID[-1][3])
    assert MACHINE.product_seconds((4, 512, 512, 512), "float32") == pytest.approx(4 * 2 * 512**3 / GRID[-1][3])
    assert MACHINE.product_seconds((512, 512, 512), "bfloat16") == pytest.approx(2 * 512**3 / GRID[-1][3] / 4)
    assert MACHINE.product_seconds((512, 512, 512), "float64") == MACHINE.product_seconds((512, 512, 512), "float32")


def test_a_layout_has_its_own_rates_where_they_were_measured():
    slow = [(m, n, k, rate / 10) for m, n, k, rate in GRID]
    machine = replace(MACHINE, products={"float32": GRID, "bfloat16": slow, "bfloat16 nt": GRID})
    by_rows, linear = (machine.product_seconds((64, 64, 64), "bfloat16", layout) for layout in ("nn", "nt"))
    assert by_rows == pytest.approx(10 * linear)
    assert machine.product_seconds((64, 64, 64), "bfloat16", "tt") == by_rows
    assert machine.peak("bfloat16") == GRID[-1][3]
    assert machine.seconds(replace(product(64, 64, 64, dtype="bfloat16"), layout="nt"))[0] == pytest.approx(
        linear + 1e-6
    )


def test_traffic_is_fastest_in_the_cache():
    assert MACHINE.traffic_seconds(1e6) == pytest.approx(1e-5)
    assert MACHINE.traffic_seconds(1e10) == pytest.approx(1.0)


def test_an_operation_takes_as_long_as_the_slower_of_the_two_and_its_launch():
    large, bound = MACHINE.seconds(product(512, 512, 512))
    assert (large, bound) == (pytest.approx(MACHINE.product_seconds((512, 512, 512), "float32") + 1e-6), "compute")
    hungry, bound = MACHINE.seconds(replace(product(512, 512, 512), bytes=10**9))
    assert (hungry, bound) == (pytest.approx(0.1 + 1e-6), "memory")
    assert MACHINE.seconds(product(1, 1, 1)) == (pytest.approx(1e-6, rel=0.01), "launch")


def test_other_kernels_and_slow_passes_have_rates_of_their_own():
    convolution = Work("aten.convolution", "convolution", 10**9, 0, "float32", (64, 64, 64))
    assert MACHINE.seconds(convolution)[0] == pytest.approx(0.1, rel=0.01)
    unknown = replace(convolution, name="aten.attention", flops=2 * 512**3, shape=())  # as fast as a cube of its FLOPs
    assert MACHINE.seconds(unknown)[0] == pytest.approx(MACHINE.seconds(product(512, 512, 512))[0])
    gelu = Work("aten.gelu", "pointwise", 0, 10**6, "float32", ())
    assert MACHINE.seconds(gelu) == (pytest.approx(1e-3 + 1e-6), "memory")
    assert MACHINE.seconds(replace(gelu, name="aten.add")) == (pytest.approx(1e-5 + 1e-6), "memory")
    assert MACHINE.seconds(replace(gelu, dtype="bfloat16")) == (pytest.approx(1e-5 + 1e-6), "memory")


# -- links


def test_a_link_is_found_again_from_its_messages():
    link = Link(50e-6, 2e9)
    found = Link.fitted([(size, link.seconds(size)) for size in (1024, 2**16, 2**22, 2**26)])
    assert (found.latency, found.bandwidth) == (pytest.approx(50e-6), pytest.approx(2e9))
    assert found.misfit == pytest.approx(0, abs=1e-9)


def test_a_link_says_how_far_its_messages_are_from_the_law():
    link = Link.fitted([(1024, 1e-4), (2**20, 3e-3), (2**26, 6e-2)])
    errors = [abs(link.seconds(size) / t - 1) for size, t in [(1024, 1e-4), (2**20, 3e-3), (2**26, 6e-2)]]
    assert link.misfit == max(errors) > 0.1


def test_noise_makes_no_negative_latency():
    link = Link.fitted([(1024, 1e-6), (2**20, 3e-3), (2**26, 6e-1)])
    assert link.latency > 0
    assert link.bandwidth > 0


# -- plain data, kept


def test_a_roofline_survives_json():
    again = Roofline.from_json(MACHINE.to_json())
    assert again.to_json() == MACHINE.to_json()
    assert again.link == MACHINE.link
    work = product(100, 30, 7)
    assert again.seconds(work) == MACHINE.seconds(work)


def test_a_roofline_is_kept_for_its_machine_only(tmp_path, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path / "new"))
    assert kept_roofline(CPU) is None
    assert keep_roofline(MACHINE) == tmp_path / "new" / "roofline.json"
    assert kept_roofline(CPU) is None  # that was another machine
    here = replace(MACHINE, machine=machine_name(CPU))
    keep_roofline(here)
    assert kept_roofline(CPU).to_json() == here.to_json()
    assert set(json.loads(roofline_file().read_text())) == {"a machine", machine_name(CPU)}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    assert kept_roofline(CPU) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"MACHINE": {"speed": 3}}', '{"MACHINE": 3}'])
def test_a_file_that_is_none_of_ours_counts_for_nothing(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    roofline_file().write_text(text.replace("MACHINE", machine_name(CPU)))
    assert kept_roofline(CPU) is None
    keep_roofline(replace(MACHINE, machine=machine_name(CPU)))
    assert kept_roofline(CPU) is not None


def test_who_keeps_nothing_keeps_no_roofline(monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", "off")
    assert user_folder() is None
    assert keep_roofline(MACHINE) is None
    assert kept_roofline(CPU) is None


# -- what people see


def test_the_table_names_what_was_measured():
    text = str(MACHINE)
    for words in ("a machine", "products, bfloat16", "convolution, float32", "10 GB/s", "all-reduce", "10 µs"):
        assert words in text
    assert "pinned" not in text


def test_the_figure_has_a_level_for_each_dtype_and_a_dot_for_each_operation():
    figure = roofline_figure(MACHINE, {"an addition": (1e6, 12e6, 1e-3)})
    (axes,) = figure.axes
    *lines, dot = axes.lines
    memory, cache, *levels = lines
    assert [line.get_ydata()[1] / line.get_xdata()[1] for line in (memory, cache)] == pytest.approx([10, 100])
    assert [1e9 * line.get_ydata()[0] for line in levels] == [MACHINE.peak("float32"), MACHINE.peak("bfloat16")]
    assert 1e9 * cache.get_ydata()[1] == pytest.approx(MACHINE.peak("bfloat16"))  # the slopes end at the highest level
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (pytest.approx(1 / 12), pytest.approx(1))
    assert "a machine" in axes.get_title()


# -- this machine


def test_a_stopwatch_repeats_what_is_short_and_takes_the_median_of_its_rounds():
    calls = []
    for _ in range(5):  # a busy moment can make the call look long by which repeats are counted
        watch = Stopwatch()
        for _ in range(3):
            watch.time("short", lambda: calls.append(1))
        if len(calls) > 300:
            break
    assert len(calls) > 300
    for seconds in (1.0, 9.0, 2.0):
        watch.add("long", seconds)
    assert watch.seconds("long") == 2.0
    assert watch.pieces == ["short", "long"]
    assert watch.is_slow("long")
    assert not watch.is_slow("short")
    assert not watch.is_slow("never measured")


def test_the_first_call_does_not_count_unless_it_is_all_that_there_is_time_for(monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

        def wait(self, seconds):
            self.now += seconds

    clock, calls = Clock(), []
    monkeypatch.setattr("helpers.meter.timing.time", clock)
    watch, first = Stopwatch(), iter([0.75 * LONGEST])
    watch.time("warms up", lambda: clock.wait(next(first, 0.05 * LONGEST)))
    assert watch.seconds("warms up") == pytest.approx(0.05 * LONGEST)
    watch.time("slow", lambda: calls.append(clock.wait(2 * LONGEST)))
    assert watch.seconds("slow") == pytest.approx(2 * LONGEST)
    assert len(calls) == 1


def test_the_spread_tells_how_far_rounds_lie_apart():
    steady, jumpy = Stopwatch(), Stopwatch()
    for calm, wild in ((1.0, 1.0), (1.01, 4.0), (0.99, 2.0), (1.0, 9.0)):
        steady.add("piece", calm)
        jumpy.add("piece", wild)
    assert steady.spread < 0.05
    assert jumpy.spread > 0.5
    assert Stopwatch().spread == 0.0


def test_operations_are_timed_one_by_one():
    a, b = torch.randn(4, 3, requires_grad=True), torch.randn(3, 5)
    operations = timed(lambda: (a @ b).exp().sum().backward(), CPU)
    names = [work.name for work, _ in operations]
    assert names[:3] == ["aten.mm", "aten.exp", "aten.sum"]
    assert names.count("aten.mm") == 2  # b needs no gradient
    assert "aten.t" not in names
    assert all(seconds > 0 for _, seconds in operations)


@pytest.fixture(scope="module")
def here():
    """Measure this machine in sizes that take no time."""
    small = pytest.MonkeyPatch()
    for module, name, sizes in [
        (bench, "_SIDES", (1, 16, 128)),
        (bench, "_BATCHED_SIDES", (16, 32)),
        (bench, "_VECTORS", bench._VECTORS["cpu"][:5]),
        (subjects, "_ROWS", ((64, 64), (256, 64))),
        (subjects, "_IMAGES", ((4, 8, 8),)),
        (subjects, "_HEADS", ((2, 16, 8),)),
    ]:
        small.setattr(module, name, {"cpu": sizes})
    small.setattr(bench, "_SIDE_COMPARED", 32)
    small.setattr(measured, "ROUNDS", 2)
    yield measure_roofline(CPU)
    small.undo()


def test_everything_is_measured_and_positive(here):
    assert {key.split()[0] for key in here.products} == {"float32", "bfloat16"}
    assert {"aten.bmm", "aten.convolution", "aten.convolution_backward"} <= set(here.kernels)
    assert any("attention" in name for name in here.kernels)
    assert {"aten.gelu", "aten.native_layer_norm_backward", "aten.native_batch_norm_backward", "aten.lerp_"} <= set(
        here.passes
    )
    rates = [rate for by_dtype in here.kernels.values() for rates in by_dtype.values() for *_, rate in rates]
    rates += [rate for curves in here.passes.values() for curve in curves.values() for _, rate in curve]
    assert min(rates) > 0
    assert min(here.dispatch, here.launch) > 0
    assert here.host_copy is here.pageable_copy is here.link is None
    assert here.machine == machine_name(CPU)
    assert here.date


def test_a_larger_product_takes_longer_and_runs_faster(here):
    rates = {point[:3]: point[3] for point in here.products["float32"]}
    assert rates[128, 128, 128] > rates[1, 1, 1]
    assert here.peak("float32") >= rates[128, 128, 128]
    small, large = (here.product_seconds((side,) * 3, "float32") for side in (1, 512))  # whatever a busy machine adds
    assert small < large


def test_curves_are_in_order_and_have_each_size_once(here):
    for curves in here.passes.values():
        for curve in curves.values():
            sizes = [size for size, _ in curve]
            assert sizes == sorted(set(sizes))
    assert len(here.passes["aten.gelu"]["float32"]) == 2


def test_what_was_measured_survives_json(here):
    assert Roofline.from_json(here.to_json()).to_json() == here.to_json()
    assert here.dtypes == ["float32", "bfloat16"]
    assert "attention backward, float32" in str(here)


def test_each_shape_is_measured_once(here):
    kernels = [rates for by_dtype in here.kernels.values() for rates in by_dtype.values()]
    assert min(len(rates) for rates in here.products.values()) > 9  # no layout has a shape or two only
    for rates in [*here.products.values(), *kernels]:
        shapes = [rate[:3] for rate in rates]
        assert len(shapes) == len(set(shapes))


@pytest.mark.parametrize(("apart", "layouts"), [(0.0, ("nn", "nt", "tn")), (1e9, ("nn",))])
def test_layouts_are_measured_where_they_lie_apart(apart, layouts, monkeypatch):
    monkeypatch.setattr(bench, "_APART", apart)
    monkeypatch.setattr(bench, "_SIDES", {"cpu": (4, 32)})
    monkeypatch.setattr(bench, "_SIDE_COMPARED", 32)
    small = bench.Bench(CPU, (torch.float32,))
    small._products(torch.float32, "float32")
    assert tuple(dict.fromkeys(work.layout for work in small.watch.pieces)) == layouts
    assert len(small.watch.pieces) == 8 * len(layouts)


def test_every_operation_of_a_step_gets_its_seconds(here):
    step = tiny_step(CPU)
    step()
    works = works_of(step)
    assert sum(here.seconds(work)[0] for work in works) >= here.launch * len(works)
