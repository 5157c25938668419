"""While the kernel is idle, draw what the next move of a control would show.

A picture takes a third of a second to draw, which is longer than a hand on a slider wants to wait. Between two moves
there are seconds. So once the kernel has been idle for a moment, the pictures that are one move away are drawn, the
nearest first and one at a time. A move or a cell never waits for more than one of them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from IPython import get_ipython

IDLE = 1.5  # seconds without a cell or a move
BREATH = 0.02  # seconds between two pictures, in which messages get through
MOST = 64  # pictures after one move


class DrawAhead:
    """Calls a drawing function for the neighbors of the present values; the function is expected to cache its results.

    Args:
        draw: takes one value for each control.
        choices: all values of each control, in order.
        present: returns the present values.
    """

    def __init__(self, draw: Callable[..., object], choices: Sequence[Sequence], present: Callable[[], tuple]) -> None:
        self._draw, self._choices, self._present = draw, choices, present
        self._loop = asyncio.get_running_loop()
        self._events = get_ipython().events
        self._rest: Iterator[tuple] | None = None
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin when the kernel is idle, from the present values."""
        if self._rest is None:
            self._events.register("pre_execute", self._wait)
            self._events.register("post_execute", self._go_on)
        self._rest = one_move_away(self._choices, self._present())
        self._go_on()

    def _wait(self) -> None:
        """Draw nothing while a cell runs."""
        if self._next:
            self._next.cancel()

    def _go_on(self) -> None:
        self._wait()
        self._next = self._loop.call_later(IDLE, self._draw_one)

    def _draw_one(self) -> None:
        values = next(self._rest, None)
        if values is None:
            self._rest = None
            self._events.unregister("pre_execute", self._wait)
            self._events.unregister("post_execute", self._go_on)
            return
        # The next cell must get the random numbers that it would have got; an error is left to the move that meets it.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())), contextlib.suppress(Exception):
            self._draw(*values)
        self._next = self._loop.call_later(BREATH, self._draw_one)


def one_move_away(choices: Sequence[Sequence], present: tuple) -> Iterator[tuple]:
    """Yield `present` with one value changed, for at most `MOST` others: neighbors first, then their neighbors."""
    moves = [
        (abs(place - values.index(now)), which, value)
        for which, (values, now) in enumerate(zip(choices, present, strict=True))
        for place, value in enumerate(values)
        if value != now
    ]
    for _, which, value in sorted(moves, key=lambda move: move[:2])[:MOST]:
        yield (*present[:which], value, *present[which + 1 :])
