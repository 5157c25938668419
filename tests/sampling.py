"""What `make test` runs of the tests that take too long to run every time: another part each day.

Two samples are drawn. Of a large family, `sample` takes one case in so many, each in turn. Of all tests marked slow,
those "of today" run, each once in a round of nine days. Both depend on a seed, which is the day unless the environment
variable SAMPLE_SEED sets it. WHOLE_LABS=1 runs everything, and CHANGED_TOPICS="x1 lora" all answers of these topics
beside the sample (`tests/changed.py` sets it). After SAMPLE_UNTIL, in seconds since 1970, no slow test begins: where a
machine is so busy that a run would come too late, it does without the rest of its sample, and says so.
"""

import os
import time
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from .costs import ROUND

Item = TypeVar("Item")
CHANGED_TOPICS = "CHANGED_TOPICS"
_DAY = 24 * 60 * 60  # seconds


def runs_whole() -> bool:
    """Say whether everything runs, as in `make test-all`."""
    return bool(os.environ.get("WHOLE_LABS"))


def time_is_up() -> bool:
    """Say whether no further slow test is to begin: SAMPLE_UNTIL is over."""
    until = os.environ.get("SAMPLE_UNTIL")
    return bool(until) and time.time() > float(until)


def sample_seed() -> int:
    """Return the seed of this run: SAMPLE_SEED, or the days since 1970."""
    seed = os.environ.get("SAMPLE_SEED")
    return int(seed) if seed else int(time.time() // _DAY)


def share_seed() -> None:
    """Set SAMPLE_SEED, so that all processes of this run draw the same sample, even around midnight."""
    os.environ["SAMPLE_SEED"] = str(sample_seed())


def sample(items: Sequence[Item], one_in: int, topic: Callable[[Item], str] | None = None) -> list[Item]:
    """Return one in `one_in` of `items`, others each day; all of them when everything runs, or their topic changed."""
    changed = os.environ.get(CHANGED_TOPICS, "").split()

    def runs(number: int, item: Item) -> bool:
        due = (number + sample_seed()) % one_in == 0
        return due or runs_whole() or (topic is not None and topic(item) in changed)

    return [item for number, item in enumerate(items) if runs(number, item)]


def days_turn(day: int) -> bool:
    """Say whether it is the turn of this day of a round: each has one in every round, and never the same for long.

    Days that always kept their place could miss the turns of a `sample` for good.
    """
    round_, today = divmod(sample_seed(), ROUND)
    return (day + zlib.crc32(str(round_).encode())) % ROUND == today


def sample_with_quick(
    items: Sequence[Item], one_in: int, quick_one_in: int, topic: Callable[[Item], str] | None = None
) -> list:
    """Return `sample(items, one_in, topic)` as parameters, of which all but one in `quick_one_in` are marked slow.

    So `make test-fast` runs a part of what `make test` runs of a large family, and each item has its day in both.
    """
    quick = {i for i in range(len(items)) if (i + sample_seed()) % (one_in * quick_one_in) == 0}
    values = [item if isinstance(item, tuple) else (item,) for item in items]
    chosen = sample(range(len(items)), one_in, topic and (lambda i: topic(items[i])))
    return [pytest.param(*values[i], marks=[] if i in quick else [pytest.mark.slow]) for i in chosen]
