"""The picture of a step."""

from helpers.planner import RecipeError
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout import timeline
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.layout.timeline import BUBBLE, WAITS, bars, draw_timeline, timeline_alt, waited, write_timeline

import pytest

from tests.planner.layout.small import layout

CLUSTER = find_cluster("dgx-h100")
KINDS = {
    "gpipe": {"pipeline": 4, "schedule": "gpipe", "micro_batches": 4, "tensor": 2},
    "1f1b": {"pipeline": 4, "micro_batches": 6, "shard": 2, "zero": "zero1"},
    "interleaved": {"pipeline": 2, "schedule": "interleaved", "virtual_stages": 2, "micro_batches": 4},
    "zero-bubble": {
        "pipeline": 2,
        "schedule": "zero-bubble",
        "virtual_stages": 2,
        "micro_batches": 4,
        "tensor": 2,
        "reshard_after_forward": False,
    },
    "alone": {"shard": 4, "micro_batches": 2},
}


@pytest.fixture(scope="module", params=KINDS)
def plan(request):
    return plan_layout(layout(**KINDS[request.param]), CLUSTER)


def test_every_pass_is_drawn_once_and_a_row_shows_one_thing_at_a_time(plan):
    drawn = list(bars(plan))
    passes = [bar for bar in drawn if bar.label]
    assert len(passes) == sum(map(len, plan.spans))
    for rank in range(plan.layout.pipeline):
        for thin in (False, True):
            row = sorted((bar.begin, bar.end) for bar in drawn if (bar.rank, bar.thin) == (rank, thin))
            ends = [0.0, *(end for _, end in row)]
            assert all(begin >= end - 1e-12 for (begin, _), end in zip(row, ends, strict=False))


def test_the_time_of_a_pass_adds_up(plan):
    for span in (span for rank in plan.spans for span in rank):
        assert sum(waited(plan, span).values()) == pytest.approx(span.end - span.begin)


def test_bars_and_parts_tell_the_same(plan):
    whole = plan.seconds * plan.layout.pipeline
    drawn = list(bars(plan))
    free = 1 - sum(bar.end - bar.begin for bar in drawn if not bar.thin) / whole
    assert free == pytest.approx(plan.parts["bubble"], abs=1e-9)
    waits = sum(bar.end - bar.begin for bar in drawn if bar.thin and bar.what == WAITS["tensor"][0])
    assert waits / whole == pytest.approx(plan.parts.get("tensor", 0.0), rel=1e-6)
    assert (waits > 0) == (plan.layout.tensor > 1)


def test_the_updates_end_the_step(plan):
    updates = [bar for bar in bars(plan) if bar.what == "update"]
    assert len(updates) == plan.layout.pipeline
    assert max(bar.end for bar in updates) == pytest.approx(plan.seconds)
    done = max([span.end for rank in plan.spans for span in rank] + plan.reduced)
    assert {bar.begin for bar in updates} == {done}


def test_the_picture_names_ranks_and_colors(plan):
    figure = draw_timeline(plan)
    (axes,) = figure.axes
    assert len(axes.get_yticklabels()) == plan.layout.pipeline
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert {"forward", "update"} <= set(names)
    assert ("backward: weights' gradients" in names) == (plan.layout.schedule == "zero-bubble")
    assert ("bubble" in names) == (plan.layout.pipeline > 1)
    assert len({patch.get_facecolor() for patch in legend.get_patches()}) == len(names)
    assert {text.get_text() for text in axes.texts} <= {str(m) for m in range(plan.layout.micro_batches)}


def test_an_svg_says_in_words_what_it_shows(plan, tmp_path):
    path = tmp_path / "step.svg"
    write_timeline(plan, str(path))
    text = path.read_text()
    words = timeline_alt(plan)
    assert words in text
    assert "<image" not in text
    assert f"{plan.layout.micro_batches} micro-batches" in words
    if plan.layout.pipeline > 1:
        assert f"{plan.layout.pipeline} pipeline ranks" in words
        assert f"{plan.parts['bubble']:.0%} of the time is bubble" in words
        assert BUBBLE in text
    write_timeline(plan, str(tmp_path / "again.svg"))
    assert len((tmp_path / "again.svg").read_text()) == len(text)


def test_thousands_of_bars_become_pixels(monkeypatch, tmp_path):
    monkeypatch.setattr(timeline, "MANY", 5)
    plan = plan_layout(layout(**KINDS["1f1b"]), CLUSTER)
    path = tmp_path / "step.svg"
    write_timeline(plan, str(path))
    assert "<image" in path.read_text()


def test_only_pictures_are_drawn():
    plan = plan_layout(layout(**KINDS["alone"]), CLUSTER)
    with pytest.raises(RecipeError, match="svg"):
        write_timeline(plan, "step.txt")
