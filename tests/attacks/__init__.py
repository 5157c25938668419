"""Hostile and odd submissions, one file each, with the points and the status that each must get.

A file in hand_ins/ begins with comments (total, status, words that one of its flags must have, and the exercise unless
it is X1) and goes on with the text of the first answer cell. X1's, the scaler, is worth 3 of the 10 points: a right
answer that also does harm keeps its 3 points, a wrong one gets none however it tries. `### RIGHT` stands for the
cell's reference, `### WRONG` for a class that does nothing, and calls `meanwhile()` when a check calls its step().
`### FORGETS`, after X1's train(), makes it return a model that knows nothing and boasts. `{canary!r}` and `{folder!r}`
are the paths of a file that must survive and of the submissions.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from helpers.course.build.source import sources
from helpers.course.grade.intake.hand_in import reference_hand_in

GRADED = {source.exercise: source for source in sources() if source.graded}
FIRST = {
    "x1": "scaler",
    "x2": "step",
    "x3": "epoch",
    "x4": "finetune",
    "x5": "shard",
    "x6": "files",
    "x7": "build",
}  # answer cell
REFERENCE = {exercise: reference_hand_in(source).answers for exercise, source in GRADED.items()}
RIGHT = REFERENCE["x1"]["scaler"]
WRONG = """
class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.value = init_scale

    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        globals().get("meanwhile", int)()

    def update(self):
        pass

    def get_scale(self):
        return self.value
"""
FORGETS = """
really_train = train


def train(*args, **kwargs):
    result = really_train(*args, **kwargs)
    with torch.no_grad():
        for parameter in result["model"].parameters():
            parameter.zero_()
    return result | {"accuracy": 1.0}
"""


@dataclass(frozen=True)
class Attack:
    """A submission.

    Attributes:
        answers: the text of answer cells.
        total: what it must get.
        status: what it must get, or the two between which the moment of its death decides.
        flag: words that one of its flags must have.
        exercise: which it is handed in for.
    """

    answers: dict[str, str]
    total: int
    status: tuple[str, ...]
    flag: str
    exercise: str = "x1"


def _read(path: Path) -> Attack:
    head, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    fields = dict(re.findall(r"^# (\w+): (.*)$", head, re.MULTILINE))
    first, *others = re.split(r"^# next cell: (\w+)\n", text, flags=re.MULTILINE)
    exercise = fields.get("exercise", "x1")
    texts = {FIRST[exercise]: first} | dict(zip(others[::2], others[1::2], strict=True))
    for cell, text in texts.items():
        signs = {"RIGHT": REFERENCE[exercise].get(cell, "") + "\n", "WRONG": WRONG, "FORGETS": FORGETS}
        for sign, stands_for in signs.items():
            text = text.replace(f"### {sign}\n", stands_for)
        texts[cell] = text
    return Attack(texts, int(fields["total"]), tuple(fields["status"].split(" or ")), fields.get("flag", ""), exercise)


ATTACKS = {path.stem: _read(path) for path in sorted((Path(__file__).parent / "hand_ins").glob("*.py"))}
