"""Answers made in advance, so that a lab need not wait for them.

A search takes minutes, and its answer is the same on every machine. Those that the labs ask for are kept in
`searched.json`; a question that is not there is searched for on the spot, so change one and see.

`python -m helpers build` adds answers that a lab asks for and the table does not have. `python -m helpers searches`
finds all of them again, after a change of the planner; each is written down as soon as it is there.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ..catalog.archs import arch_of
from ..catalog.clusters import find_cluster
from ..layout.arch import Arch
from ..layout.layout import Layout
from ..planned import KEEP
from .found import Found
from .kept import Answer, answer
from .losers import Loser
from .question import SEQ, Question

TABLE = Path(__file__).with_suffix(".json")
MOST_PROCESSES = 8


@dataclass(frozen=True)
class Asked:
    """A question by the names of what it is about, as the catalog has them.

    Attributes:
        model, cluster: names in the catalog.
        gpus: how many.
        tokens: of one optimizer step, over all GPUs.
        seq: tokens in a sequence.
        objective: as in `Question`.
    """

    model: str
    cluster: str
    gpus: int
    tokens: int
    seq: int = SEQ
    objective: str = "time"

    def question(self) -> Question:
        """Return the question itself.

        Raises:
            RecipeError: a name is not in the catalog, or the values do not go together.
        """
        cluster = find_cluster(self.cluster)
        return Question(arch_of(self.model), cluster, self.gpus, self.tokens, self.seq, self.objective)

    def __str__(self) -> str:
        return f"{self.model} on {self.gpus} x {find_cluster(self.cluster).gpu.name}"


def searched(asked: Asked) -> Answer:
    """Return the answer to a question: a kept one at once, another after minutes of searching.

    Raises:
        RecipeError: a name is not in the catalog, or no layout divides the GPUs and the tokens.
    """
    kept = kept_answers()
    if asked not in kept:
        kept[asked] = _search(asked)
        if KEEP in os.environ:
            _write(kept)
    return kept[asked]


def search_anew(tell: Callable[[str], None] = print) -> None:
    """Find every answer of the table again; `tell` hears which is being looked for."""
    answers = dict(kept_answers())
    for asked in list(answers):
        tell(str(asked))
        answers[asked] = _search(asked)
        _write(answers)


def _search(asked: Asked) -> Answer:
    processes = min(MOST_PROCESSES, os.cpu_count() or 1)
    return answer(asked.question(), processes, lambda what, done, of: None)


@cache
def kept_answers() -> dict[Asked, Answer]:
    """Return the answers of the table; those that are found later join them until the program ends."""
    if not TABLE.exists():
        return {}
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    archs = {name: Arch(**sizes) for name, sizes in table["archs"].items()}
    return dict(_from_json(row, archs) for row in table["answers"])


def _from_json(row: dict[str, Any], archs: dict[str, Arch]) -> tuple[Asked, Answer]:
    asked = Asked(**row["asked"])
    best = [
        Found(**entry | {"layout": Layout(archs[asked.model], **entry["layout"]), "reserved": tuple(entry["reserved"])})
        for entry in row["best"]
    ]
    losers = [Loser(**loser) for loser in row["losers"]]
    return asked, Answer(best, losers, row["layouts"], row["planned"], row["refused"])


def _write(answers: dict[Asked, Answer]) -> None:
    """Write the table: the models' sizes once, then an answer a line."""
    archs = {asked.model: asdict(arch_of(asked.model)) for asked in answers}
    rows = [
        json.dumps({"asked": asdict(asked), **_to_json(answer)})
        for asked, answer in sorted(answers.items(), key=lambda item: str(asdict(item[0])))
    ]
    head = json.dumps(dict(sorted(archs.items())))
    text = f'{{"archs": {head},\n"answers": [\n' + ",\n".join(rows) + "\n]}\n"
    TABLE.write_text(text, encoding="utf-8", newline="\n")


def _to_json(answer: Answer) -> dict[str, Any]:
    """Return an answer in plain values; fields of layouts that are at their defaults are left out."""
    plain = {field.name: field.default for field in fields(Layout) if field.name != "arch"}
    best = []
    for found in answer.best:
        values = {name: getattr(found.layout, name) for name in plain}
        changed = {name: value for name, value in values.items() if value != plain[name]}
        best.append({field.name: getattr(found, field.name) for field in fields(Found)} | {"layout": changed})
    losers = [asdict(loser) for loser in answer.losers]
    return {**asdict(answer), "best": best, "losers": losers}
