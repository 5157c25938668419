"""The timeline explorer: its cursor and its titles."""

from types import SimpleNamespace

from helpers import CATEGORIES
from helpers.meter.operation import Op
from helpers.meter.profile import Moment
from helpers.widgets.timelines import timelines_figure

from matplotlib.backends.backend_agg import FigureCanvasAgg

from ..meter.profiles import small_and_large


def test_a_cursor_names_the_operation_and_who_is_there():
    profiles = small_and_large()
    first, second = list(profiles)[:2]
    for percent in (0, 50, 100):
        figure = timelines_figure(profiles, first, second, percent)
        upper, lower = (axes.get_title() for axes in figure.axes)
        assert upper.startswith(f"{first}, ")
        assert lower.startswith(f"{second}, ")
        assert "(MiB: " in upper.splitlines()[0]
        assert ": " in upper.splitlines()[1]  # phase and operation
    assert timelines_figure(profiles, first, first, 50).axes[0].get_title() != upper


def test_both_steps_fit_into_their_pictures_whichever_is_above():
    profiles = small_and_large()
    first, second = list(profiles)[:2]
    for upper, lower in ((first, second), (second, first)):
        figure = timelines_figure(profiles, upper, lower, 50)
        for axes, name in zip(figure.axes, (upper, lower), strict=True):
            assert axes.get_ylim()[1] * 2**20 > profiles[name].peak_bytes
            assert len(axes.lines) == 1 + len(profiles[name].legs)  # the cursor, and where each leg begins


def test_the_title_of_a_long_operation_stays_inside_the_picture():
    op = Op(0, "backward (recomputing)", "aten.native_layer_norm.default", "blocks.3.block.norm_2 (LayerNorm)")
    held = dict.fromkeys(CATEGORIES, 0) | {
        "optimizer state": 7 * 2**20,
        "recomputed activations": 5 * 2**20,
        "temporaries": 3 * 2**20,
    }
    profile = SimpleNamespace(began=0, ended=10**9, legs=[], timeline=[Moment(s, held, op) for s in (0.0, 0.5, 1.0)])
    name = "a quarter of the rows"
    figure = timelines_figure({name: profile}, name, name, 50)
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        box = axes.title.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
