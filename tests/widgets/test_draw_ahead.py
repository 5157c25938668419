"""Pictures drawn while the kernel is idle: nearest first, never during a cell, without a trace in random numbers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from helpers.widgets import draw_ahead
from helpers.widgets.draw_ahead import DrawAhead, one_move_away

import pytest
import torch
from IPython.core.events import EventManager


@pytest.fixture
def events(monkeypatch):
    manager = EventManager(None, {"pre_execute": lambda: None, "post_execute": lambda: None})
    monkeypatch.setattr(draw_ahead, "get_ipython", lambda: SimpleNamespace(events=manager))
    monkeypatch.setattr(draw_ahead, "IDLE", 0.05)
    monkeypatch.setattr(draw_ahead, "BREATH", 0.001)
    return manager


def run(session):
    """Run a coroutine in a thread of its own: in this one playwright's loop may be running."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, session).result()


async def until(condition, seconds=60):
    """Let the loop go on until something holds; on a busy machine that takes a while."""
    for _ in range(100 * seconds):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


def test_neighbours_come_first_and_no_move_twice():
    order = list(one_move_away([range(5), ["a", "b", "c"]], (2, "c")))
    assert order == [(1, "c"), (3, "c"), (2, "b"), (0, "c"), (4, "c"), (2, "a")]
    assert len(list(one_move_away([range(1000)], (500,)))) == draw_ahead.MOST


def test_everything_near_is_drawn_once_and_then_nothing_listens(events):
    drawn = []

    async def session():
        DrawAhead(lambda *values: drawn.append(values), [range(3), "xy"], lambda: (1, "x")).start()
        assert events.callbacks["pre_execute"]
        await until(lambda: not events.callbacks["pre_execute"])

    run(session())
    assert drawn == [(0, "x"), (2, "x"), (1, "y")]
    assert not events.callbacks["pre_execute"]
    assert not events.callbacks["post_execute"]


def test_a_cell_is_not_disturbed_and_drawing_goes_on_after_it(events):
    drawn = []

    async def session():
        DrawAhead(lambda *values: drawn.append(values), [range(3)], lambda: (1,)).start()
        events.trigger("pre_execute")
        await asyncio.sleep(0.3)
        assert drawn == []
        events.trigger("post_execute")
        await until(lambda: len(drawn) == 2)

    run(session())
    assert drawn == [(0,), (2,)]


def test_a_move_starts_from_where_the_controls_are_now(events):
    drawn, now = [], [0]

    async def session():
        ahead = DrawAhead(lambda *values: drawn.append(values), [range(9)], lambda: tuple(now))
        ahead.start()
        now[0] = 8
        ahead.start()
        await until(lambda: len(drawn) == 8)

    run(session())
    assert drawn[:2] == [(7,), (6,)]
    assert len(drawn) == 8


def test_random_numbers_and_errors_stay_where_they_are(events):
    drawn = []

    def draw(value):
        drawn.append(torch.rand(1))
        raise RuntimeError("cannot draw this one")

    async def session():
        DrawAhead(draw, [range(3)], lambda: (1,)).start()
        await until(lambda: len(drawn) == 2)

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    run(session())
    assert len(drawn) == 2
    assert torch.equal(torch.rand(1), expected)
