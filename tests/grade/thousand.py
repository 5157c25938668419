"""A class of a thousand: on three workers, on one machine, and on workers of which one dies, as does the command.

`python -m tests.grade.thousand --hand-ins 1000 --real 10` makes so many hand-ins for X1, most of them cells that nobody
has filled in, and grades them three times with the same seed. The last time one worker and then the command itself end
by SIGKILL; the same command again goes on from there. All three gradebooks must be equal but for the seconds of runs.

Of the hand-ins, `--real` run in the sandbox: untouched ones, wrong ones, and one that is right. The others run nothing
(their points come from name and seed), so that an evening is enough; everything around them is real: notebooks are
read, shipped and judged on, results are stored, pages written. The last line is the count, as JSON.
"""

import argparse
import csv
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from helpers.course.build.notebooks import make_notebook, write

from .local_cluster import LocalCluster, gradebook, wait_for
from .results import X1

LIMIT = 4 * 60 * 60  # seconds, after which a run counts as hanging
PATIENT = ("--timeout", "1800")  # seconds a cell: a machine busy with other work is no reason for another grade


@dataclass
class Count:
    """What came of a class.

    Attributes:
        real: hand-ins that ran in the sandbox.
        points: how many hand-ins got so many points.
        seconds_on_workers, seconds_on_one, seconds_again: of the run on three workers, of the run on one machine, and
            of both halves of the run in which a worker and the command were killed.
        stored: results that were there when the command had been killed.
        twice: hand-ins that ran again because something was killed.
        equal: all gradebooks are the same.
    """

    hand_ins: int
    real: int
    points: dict[str, int]
    seconds_on_workers: float
    seconds_on_one: float
    seconds_again: float
    stored: int
    twice: int
    equal: bool


def make_class(folder: Path, hand_ins: int, real: int) -> None:
    """Write the hand-ins. The last one is right; of the others, every third real one has a wrong scaler."""
    solved, untouched = (make_notebook(X1, solved=solved) for solved in (True, False))
    right = next(cell.source for cell in solved.cells if cell.id == "scaler")
    wrong = right.replace("*= self.backoff_factor", "/= self.backoff_factor")
    assert wrong != right
    for number in range(hand_ins):
        student = f"{'real' if number >= hand_ins - real else 'student'} {number:04}"
        text = write(solved)
        if number < hand_ins - 1:
            cell = next(cell for cell in untouched.cells if cell.id == "scaler")
            stub, cell.source = cell.source, cell.source + f"\n# {student}"
            if number % 3 == 0:
                cell.source = f"{wrong}\n# {student}"
            text, cell.source = write(untouched), stub
        place = folder / student
        place.mkdir(parents=True)
        (place / f"{X1.name}.ipynb").write_text(text, encoding="utf-8")


def grade_thrice(folder: Path, hand_ins: int, real: int = 0, lasts: float = 0.02) -> Count:
    """Make a class in `folder` and grade it.

    Args:
        lasts: seconds that a hand-in takes which runs nothing.
    """
    students = folder / "class"
    make_class(students, hand_ins, real)
    cluster = LocalCluster(folder, real > 0)
    try:
        workers = [cluster.worker(LASTS=str(lasts)) for _ in range(3)]
        on_workers = _whole(cluster.command(students, folder / "whole", *PATIENT))
        assert set(cluster.runs().values()) == {1}  # nothing was graded twice
        assert len(cluster.runs()) == hand_ins
        began = time.perf_counter()
        cluster.ran.write_text("")
        killed = cluster.command(students, folder / "out", *PATIENT)
        wait_for(lambda: len(cluster.runs()) > hand_ins / 5, LIMIT)
        workers[0].kill()
        wait_for(lambda: len(cluster.runs()) > hand_ins / 2, LIMIT)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        stored = len(list((folder / "out" / "results").glob("x1-*.json")))
        again = cluster.command(students, folder / "out", *PATIENT)
        said, _ = again.communicate(timeout=LIMIT)
        assert again.returncode == 0, said
        assert f"{stored} hand-ins have not changed and keep their results; {hand_ins - stored} are to be run." in said
        seconds = time.perf_counter() - began
        twice = sum(count - 1 for count in cluster.runs("began").values())
    finally:
        cluster.end()
    on_one = _whole(cluster.command(students, folder / "one", "--jobs", "2", *PATIENT, here=True))
    books = [_rows(gradebook(folder / name)) for name in ("one", "whole", "out")]
    points = Counter(row["total"] for row in books[0])
    equal = books[0] == books[1] == books[2] and len(books[0]) == hand_ins
    points = {total: points[total] for total in sorted(points, key=int)}
    return Count(hand_ins, real, points, on_workers, on_one, round(seconds, 1), stored, twice, equal)


def _whole(run: subprocess.Popen) -> float:
    """Wait for the end of a command; return its seconds."""
    began = time.perf_counter()
    said, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, said
    return round(time.perf_counter() - began, 1)


def _rows(book: str) -> list[dict[str, str]]:
    """Return the rows of a gradebook without what no two runs have in common."""
    rows = list(csv.DictReader(io.StringIO(book)))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.grade.thousand", description=__doc__)
    parser.add_argument("--hand-ins", type=int, default=1000)
    parser.add_argument("--real", type=int, default=10, help="so many of them run in the sandbox")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        count = grade_thrice(Path(name), args.hand_ins, args.real)
    print(json.dumps(asdict(count)))
    sys.exit(not count.equal)


if __name__ == "__main__":
    main()
