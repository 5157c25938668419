"""Units, timing, models, data, claims, predictions, tables and widgets."""

import math
import subprocess
import sys
import time
from importlib.util import find_spec
from types import SimpleNamespace

from helpers import (
    TENANTS,
    Claims,
    GiB,
    LinearLog,
    MemoryMeter,
    MiB,
    Prediction,
    SmallCNN,
    SmallGPT,
    benchmark,
    compare,
    digits,
    english,
    explore,
    explore_loss_scale,
    floor_power_of_two,
    human_bytes,
    pick_device,
    quantize_blockwise,
    range_ruler,
    saved_tensor_bytes,
    supports,
    tenant_bars,
    tenant_table,
    to_e2m1,
    traffic,
    why_no_compiler,
    written_kernels,
)
from helpers.core.device import device_name
from helpers.core.notebook import to_png
from helpers.exercises.base import Part, Verdict
from helpers.exercises.checking import report
from helpers.meter.count import Op
from helpers.meter.figures import memory_timeline
from helpers.meter.recorder import Moment
from helpers.widgets.loss_scale import fate_of, loss_scale_figure
from helpers.widgets.timelines import timelines_figure

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3.5 * MiB, "3.50 MiB"), (-2 * GiB, "-2.00 GiB")],
)
def test_human_bytes(n, text):
    assert human_bytes(n) == text


def test_device_is_one_that_can_compute():
    device = pick_device()
    assert device.type in ("cuda", "mps", "cpu")
    assert supports(torch.float32, device)
    assert not supports(torch.bool, device)
    assert device_name(device)


def test_timing_measures_what_ran():
    timing = benchmark(lambda: time.sleep(0.01), runs=5, warmup=0)
    assert len(timing.runs) == 5
    assert timing.median >= 0.01
    assert "5 runs" in str(timing)


def test_warm_up_does_not_count():
    calls = []
    benchmark(lambda: calls.append(1), runs=3, warmup=2)
    assert len(calls) == 5


def test_comparison_alternates_and_says_which_is_faster():
    order = []
    result = compare(
        lambda: (order.append("a"), time.sleep(0.02)), lambda: (order.append("b"), time.sleep(0.005)), runs=4, warmup=1
    )
    assert order == ["a", "b"] * 5
    assert result.speedup > 1.5


def test_cnn_and_gpt_shapes():
    assert SmallCNN(8)(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert SmallGPT(vocabulary=50, context=12)(torch.zeros(3, 12, dtype=torch.long)).shape == (3, 12, 50)


def test_gpt_starts_near_ln_vocabulary_and_is_causal():
    torch.manual_seed(0)
    model = SmallGPT()
    ids = torch.randint(256, (4, 64))
    logits = model(ids)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(256, (4 * 64,)))
    assert loss.item() == pytest.approx(math.log(256), rel=0.05)
    changed = ids.clone()
    changed[:, 40:] = 0
    torch.testing.assert_close(model(changed)[:, :40], logits[:, :40])


def test_digits_are_real_and_split_without_overlap():
    data = digits()
    assert data.train_x.shape[1:] == (1, 8, 8)
    assert len(data.train_x) + len(data.test_x) == 1797
    assert set(data.train_y.tolist()) == set(range(10))
    train = {tuple(x.flatten().tolist()) for x in data.train_x}
    twins = sum(tuple(x.flatten().tolist()) in train for x in data.test_x)
    assert twins == 0
    assert digits(size=16).test_x.shape[-2:] == (16, 16)
    assert torch.equal(digits().train_x, data.train_x)  # the same split each time


def test_english_text_is_shifted_by_one_and_readable():
    data = english()
    assert torch.equal(data.train_x[1:], data.train_y[:-1])
    assert len(data.train_x) > 200_000
    assert b" the " in bytes(data.test_x.tolist())


def test_claims_reach_their_own_verdict():
    claims = Claims()
    claims.record("C7", "2x less memory", "CNN", 1.8, "x less", 1.9, math.inf)
    claims.record("C7", "2x less memory", "all <activations>", 2.0, "x less", 1.9, math.inf)
    assert [row.held for row in claims.rows] == [False, True]
    lines = str(claims).splitlines()
    assert lines[1].endswith("did not hold")
    assert lines[2].endswith("held")
    assert "&lt;activations&gt;" in claims._repr_html_()
    assert not Claims().rows  # a new table is empty


def test_a_claim_that_cannot_be_measured_is_not_hidden_and_has_no_verdict():
    claims = Claims()
    claims.not_measured("C15", "2x the speed", "product: no FP8 units here")
    assert not claims.rows[0].held
    line = str(claims).splitlines()[1]
    assert line.endswith(" not measured here")
    assert "did not hold" not in line
    assert "product: no FP8 units here" in claims._repr_html_()


@pytest.mark.parametrize(
    ("guess", "says"),
    [
        (None, "not guessed"),
        (10.5, "within 10 %"),
        (20, "2.00x too high"),
        (4, "2.50x too low"),
        (0, "You said 0 MiB: off by 10."),
    ],
)
def test_prediction(capsys, guess, says):
    Prediction("Peak", guess, "MiB").reveal(10.0)
    out = capsys.readouterr().out
    assert "Peak: measured 10 MiB" in out
    assert says in out


@pytest.mark.parametrize(("guess", "says"), [(-1, "10.00x too near to zero"), (-20, "2.00x too far below zero")])
def test_prediction_of_a_negative_number(capsys, guess, says):
    Prediction("SGD against AdamW", guess, "points").reveal(-10.0)
    assert says in capsys.readouterr().out


def meters():
    model = torch.nn.Linear(64, 64)
    found = {}
    for name, rows in {"small": 8, "large": 64}.items():
        with MemoryMeter(model) as meter:
            model(torch.ones(rows, 64)).sum().backward()
        found[name] = meter
    return found


def test_tenant_table_compares_last_with_first():
    found = meters()
    lines = tenant_table(found).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[-1].startswith("PEAK")
    ratio = found["large"].peak_bytes / found["small"].peak_bytes
    assert lines[-1].endswith(f"{ratio:.2f}")
    assert any(line.startswith("parameters") and line.endswith("1.00") for line in lines)


def test_figures_render():
    found = meters()
    bars = tenant_bars({name: meter.at_peak for name, meter in found.items()}, TENANTS, "t")
    timeline = memory_timeline(found["small"].timeline, TENANTS, "t")
    for figure in (bars, timeline):
        assert to_png(figure).startswith(b"\x89PNG")
    assert to_png(bars) == to_png(bars)


def test_fate_of_gradients_adds_up_and_follows_the_scale():
    gradient = torch.tensor([0.0, 1.0, 2.0**-20, 2.0**-30, 2.0**10])
    share = fate_of(gradient, 1.0)
    assert share == {"kept": 0.5, "blurred": 0.25, "lost": 0.25, "overflowed": 0.0}
    assert fate_of(gradient, 2.0**8) == {"kept": 0.5, "blurred": 0.25, "lost": 0.0, "overflowed": 0.25}
    figure = loss_scale_figure(gradient, 8)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "becomes inf: 25.0%" in labels


def test_a_cursor_names_the_operation_and_who_is_there():
    found = meters()
    first, second = list(found)[:2]
    for percent in (0, 50, 100):
        figure = timelines_figure(found, first, second, percent)
        upper, lower = (axes.get_title() for axes in figure.axes)
        assert upper.startswith(f"{first}, ")
        assert lower.startswith(f"{second}, ")
        assert "(MiB: " in upper.splitlines()[0]
        assert ": " in upper.splitlines()[1]  # phase and operation
    assert timelines_figure(found, first, first, 50).axes[0].get_title() != upper


def test_the_title_of_a_long_operation_stays_inside_the_picture():
    op = Op(0, "backward (recomputing)", "aten.native_layer_norm.default", "blocks.3.block.norm_2 (LayerNorm)")
    held = dict.fromkeys(TENANTS, 0) | {
        "optimizer state": 7 * 2**20,
        "recomputed activations": 5 * 2**20,
        "temporaries": 3 * 2**20,
    }
    meter = SimpleNamespace(began=0, ended=10**9, timeline=[Moment(s, held, op) for s in (0.0, 0.5, 1.0)])
    name = "a quarter of the rows"
    figure = timelines_figure({name: meter}, name, name, 50)
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        box = axes.title.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1


def test_a_report_breaks_lines_between_words():
    words = "Micro-batches of a rule that goes on and on. " * 6
    verdict = Verdict("long_rule", words, 0, 1, f"{words}\n  second line", words)
    part = Part("x.y", (), ())
    lines = report(part, [verdict]).splitlines()
    assert max(map(len, lines)) <= 108
    assert " ".join(" ".join(lines[1:]).split()) == " ".join(
        f"✗ long_rule: {words} {words} second line Hint: {words}".split()
    )


def test_explorers_speak_where_there_is_no_notebook(capsys):
    explore_loss_scale(torch.tensor([1.0, 1e-9]))
    assert "[figure] Histogram" in capsys.readouterr().out
    drawn = []
    explore(lambda a, b: drawn.append((a, b)), "words", a=(1, range(3)), b=("x", ["x", "y"]))
    assert drawn == [(1, "x")]


@pytest.mark.slow
def test_nothing_is_said_on_stderr_by_what_the_labs_import():
    code = "import helpers, peft, transformers\nfrom transformers import Trainer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_e2m1_takes_the_nearest_number_and_of_two_the_even_one():
    halfway = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert to_e2m1(halfway).tolist() == even
    assert to_e2m1(-halfway).tolist() == [-x for x in even]
    assert to_e2m1(torch.tensor([0.26, 0.74, 2.6, 100.0, -torch.inf])).tolist() == [0.5, 0.5, 3.0, 6.0, -6.0]
    assert to_e2m1(torch.tensor(torch.nan)).isnan()


def test_floor_power_of_two_is_exact_beside_powers_of_two():
    powers = 2.0 ** torch.arange(-120, 120)
    above, below = (torch.nextafter(powers, torch.tensor(end)) for end in (torch.inf, 0.0))
    assert torch.equal(floor_power_of_two(powers), powers)
    assert torch.equal(floor_power_of_two(above), powers)
    assert torch.equal(floor_power_of_two(below), powers / 2)


def test_blocks_lie_along_rows_and_zeros_stay_zeros():
    x = torch.tensor([[1.0, 2.0, 8.0, 16.0], [0.0, 0.0, 3.0, -4.0]])
    rounded = quantize_blockwise(x, 2, lambda amax: amax, torch.round)  # 0.5 goes to 0, 0.75 to 1
    assert rounded.tolist() == [[0.0, 2.0, 0.0, 16.0], [0.0, 0.0, 4.0, -4.0]]


def test_linear_log_sees_inputs_weights_and_gradients_of_each_step():
    layer = torch.nn.Linear(3, 2)
    log = LinearLog(keep=(1,))
    log.attach({"layer": layer})
    for size in (1.0, 2.0):
        (layer(torch.full((4, 5, 3), size)) * size).sum().backward()
    assert log.amaxes["layer", "x"] == log.amaxes["layer", "g"] == [1.0, 2.0]
    assert len(log.amaxes["layer", "w"]) == 2
    assert {key: tuple(tensor.shape) for key, tensor in log.kept.items()} == {
        (1, "layer", "x"): (20, 3),
        (1, "layer", "w"): (2, 3),
        (1, "layer", "g"): (20, 2),
    }


def test_range_ruler_renders():
    sizes = torch.logspace(-8, 2, 50).numpy()
    assert to_png(range_ruler(sizes, 2**-9, 2**-6, 448, "a format", (-30, 20)))


def test_traffic_counts_what_operations_read_and_write():
    x, row = torch.randn(64, 32), torch.randn(32)
    moved = traffic(lambda: (x * 2).add_(x).t().expand(32, 64) + row[:, None])
    assert [name for name, _, _ in moved.rows] == ["mul", "add_", "add"]  # views move nothing
    assert [(read / x.nbytes, written / x.nbytes) for _, read, written in moved.rows[:2]] == [(1, 1), (2, 1)]
    assert moved.rows[2][1:] == (x.nbytes + row.nbytes, x.nbytes)
    assert traffic(lambda: x * x).nbytes == 2 * x.nbytes  # x is read once
    assert traffic(lambda: x + row.expand(64, 32)).nbytes == 2 * x.nbytes + row.nbytes
    assert traffic(torch.empty, 5).nbytes == 0
    assert "3 operations move 7.02" in moved.table(x.nbytes)


def test_traffic_of_a_backward_pass():
    x = torch.randn(64, requires_grad=True)
    assert len(traffic(lambda: x.exp().sum().backward()).rows) > len(traffic(lambda: x.exp().sum()).rows)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_kept_bytes_are_those_autograd_keeps(backend):
    x, w = torch.randn(8, 4), torch.randn(4, 4, requires_grad=True)

    def forward():
        return (x @ w).sigmoid()

    run = torch.compile(forward, backend=backend) if backend else forward
    assert saved_tensor_bytes(run, besides=(x, w)) == 8 * 4 * 4  # the sigmoid's result
    assert saved_tensor_bytes(run) == 8 * 4 * 4 + x.nbytes


def test_what_the_compiler_misses_is_said(monkeypatch):
    monkeypatch.setattr("helpers.core.compiler.shutil.which", lambda name: None)
    for kind, word in (("cpu", "g++"), ("cuda", "iton" if find_spec("triton") is None else "gcc")):
        monkeypatch.setattr("helpers.core.compiler.pick_device", lambda kind=kind: torch.device(kind))
        assert word in why_no_compiler()
    monkeypatch.setattr("helpers.core.compiler.pick_device", lambda: torch.device("cpu"))
    monkeypatch.setattr("helpers.core.compiler.shutil.which", lambda name: name)
    assert why_no_compiler() is None


@pytest.mark.slow
@pytest.mark.skipif(why_no_compiler() is not None, reason=f"torch.compile makes no kernels: {why_no_compiler()}")
def test_written_kernels_are_shown():
    kernels = written_kernels(lambda x: torch.relu(x * 2 + 1), torch.randn(4096, device=pick_device()))
    assert len(kernels) == 1
    assert kernels[0].count("load") == kernels[0].count("store") == 1
