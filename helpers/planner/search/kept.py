"""Answers kept on disk: the same question, asked of the same planner, has the same answer.

They lie in the user's folder (`core/files.py`). The planner's sources are part of the key, so a change of it asks anew.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...core.files import PACKAGE, user_folder
from .best import Hear, Tell, search
from .found import Found
from .losers import Loser, losers
from .question import Question
from .steady import Steady
from .workers import Workers

MOST = 100  # answers that are kept


@dataclass(frozen=True)
class Answer:
    """The answer to a question.

    Attributes:
        best: the best layouts, in order.
        losers: what else people would try.
        layouts, planned, refused: how many there are, were planned, and could not be simulated.
    """

    best: list[Found]
    losers: list[Loser]
    layouts: int
    planned: int
    refused: int


def answer(question: Question, processes: int, tell: Tell, hear: Hear = lambda found: None) -> Answer:
    """Return the answer to `question`, kept or found out now; `tell` and `hear` as in `search`."""
    folder = user_folder()
    if folder is None:
        return _answer(question, "", processes, tell, hear)
    from joblib import Memory

    memory = Memory(folder / "layouts", verbose=0)
    kept: Any = memory.cache(_answer, ignore=["processes", "tell", "hear"])
    result = kept(question, version(), processes, tell, hear)
    memory.reduce_size(items_limit=MOST)
    return result


@cache
def version() -> str:
    """Return a hash of all sources and data that an answer depends on."""
    digest = hashlib.sha256()
    for room in ("planner", "meter"):
        for path in sorted((PACKAGE / room).rglob("*")):
            if path.suffix in (".py", ".json", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _answer(question: Question, sources: str, processes: int, tell: Tell, hear: Hear) -> Answer:
    steady = Steady(tell)
    with Workers(processes) as workers:
        state = search(question, workers, steady, hear)
        others = losers(state, workers, steady)
    return Answer(state.best(), others, len(state.space), len(state.planned), len(state.refused))
