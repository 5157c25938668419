"""Fill the folder of a class, read it, and compare what came of it with what should have."""

import io
import json
import zipfile

from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.grade.intake.collect import collect
from helpers.course.grade.intake.hand_in import reference_hand_in

EXERCISES = [source for source in sources() if source.graded]
X1, X2, X3, X7, X5, X6, X4 = EXERCISES
NAME = f"{X1.name}.ipynb"
ANSWERS = {source.exercise: reference_hand_in(source).answers for source in EXERCISES}


def notebook(source=X1, solved=True):
    return json.loads(write(make_notebook(source, solved)))


def text(source=X1, solved=True):
    return json.dumps(notebook(source, solved))


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def zipped(members, kind=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def cell_of(raw, name):
    return next(cell for cell in raw["cells"] if cell["id"] == name)


def first(root, source=X1, student="ada"):
    """The submission of one student for one exercise, which must be told in one clear line."""
    (hand_in,) = [h for h in collect(root, EXERCISES) if h.student == student and h.source == source]
    for line in [*(hand_in.problem or ()), *hand_in.flags]:
        assert len(line.splitlines()) == 1
        assert len(line) < 1000
        line.encode()
    return hand_in


def read(root, raw, source=X1):
    put(root / "ada" / f"{source.name}.ipynb", raw if isinstance(raw, str | bytes) else json.dumps(raw))
    return first(root, source)


def assert_whole(hand_in, flags=()):
    assert hand_in.problem is None
    assert hand_in.answers == ANSWERS[hand_in.source.exercise]
    assert len(hand_in.flags) == len(flags), hand_in.flags
    for flag, words in zip(hand_in.flags, flags, strict=True):
        assert words in flag


def assert_problem(hand_in, status, *words):
    assert hand_in.problem[0] == status
    assert hand_in.answers == {}
    for word in words:
        assert word in hand_in.problem[1]
