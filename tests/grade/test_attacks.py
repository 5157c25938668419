"""Hostile submissions: right grade, right status, and nobody else pays."""

import csv
import os
import sys

from helpers.course.build.notebooks import make_notebook, write
from helpers.course.grade import grade
from helpers.course.grade.run.sandbox import find_bubblewrap

import psutil
import pytest

from ..attacks import ATTACKS, GRADED, RIGHT, Attack
from ..sampling import sample

TIMEOUT = 60.0  # of one cell; a right scaler takes two seconds on a quiet machine
ONE_IN = 48  # runs in `make test`, others each day; all of them in `make attacks` and `make test-all`
HONEST = Attack({"scaler": RIGHT}, 3, ("graded",), "")


WITHOUT_WALLS = (  # what limits and the end of a whole process tree have to hold alone
    "hangs_at_once",
    "sleeps_and_ignores_signals",
    "takes_all_memory_at_once",
    "a_bomb_of_threads",
    "leaves_a_process_behind",
    "leaves_a_daemon_behind",
)


def hand_in(folder, answers, source):
    notebook = make_notebook(source, solved=False)
    for cell in notebook.cells:
        cell.source = answers.get(cell.id, cell.source)
    folder.mkdir(parents=True)
    (folder / f"{source.name}.ipynb").write_text(write(notebook), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(find_bubblewrap() is None, reason="needs bubblewrap that may make namespaces")
def test_attacks_get_what_they_earn(tmp_path, monkeypatch, mark):
    canary, hand_ins = tmp_path / "canary", tmp_path / "submissions"
    canary.write_text("sings")
    monkeypatch.setenv("CANARY", "sings")
    chosen = dict(sample(list(ATTACKS.items()), ONE_IN)) | {"an honest one, last of all": HONEST}
    for name, one in chosen.items():
        texts = one.answers
        for sign, path in (("{canary!r}", canary), ("{folder!r}", hand_ins)):
            texts = {cell: text.replace(sign, repr(str(path))) for cell, text in texts.items()}
        hand_in(hand_ins / name, texts, GRADED[one.exercise])
    before = {path: path.read_bytes() for path in hand_ins.rglob("*.ipynb")}
    results = grade(hand_ins, tmp_path / "grades", seed=5, jobs=2, timeout=TIMEOUT)
    assert_earned(chosen, results)
    assert canary.read_text() == "sings"
    assert {path: path.read_bytes() for path in hand_ins.rglob("*") if path.is_file()} == before
    assert not left_behind(mark)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits and process trees of POSIX")
def test_without_a_sandbox_limits_hold_and_the_gradebook_says_untrusted(tmp_path, monkeypatch, mark):
    monkeypatch.setattr("helpers.course.grade.run.warm.find_bubblewrap", lambda: None)
    chosen = {name: ATTACKS[name] for name in sample(WITHOUT_WALLS, one_in=6)} | {"an honest one, last of all": HONEST}
    for name, one in chosen.items():
        hand_in(tmp_path / "submissions" / name, one.answers, GRADED[one.exercise])
    results = grade(tmp_path / "submissions", tmp_path / "grades", seed=5, jobs=2, timeout=TIMEOUT)
    assert_earned(chosen, results)
    with open(tmp_path / "grades" / "gradebook.csv", encoding="utf-8-sig", newline="") as book:
        assert {row["sandbox"] for row in csv.DictReader(book)} == {"no: untrusted"}
    assert not left_behind(mark)


def assert_earned(chosen, results):
    by_hand_in = {(result.student, result.exercise): result for result in results}
    wrong = []
    for name, one in chosen.items():
        got = by_hand_in[name, one.exercise]
        if got.total != one.total or got.status not in one.status or one.flag not in "; ".join(got.flags):
            words = [verdict.diagnosis for verdict in got.verdicts][:3]
            wrong.append(f"{name}: {got.total}, {got.status} ({got.reason}), flags {got.flags}; {words}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module", autouse=True)
def mark(tmp_path_factory):
    """Add a folder to PATH, which submissions are given: by it their processes are told from those of other tests."""
    folder = str(tmp_path_factory.mktemp("mark"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.environ["PATH"] + os.pathsep + folder)
        yield folder


def left_behind(mark):
    """Processes that the attacks started and that should be gone."""
    graded = [p for p in psutil.process_iter(["environ"]) if "GRADED_EXERCISE" in (p.info["environ"] or {})]
    return [p for p in graded if mark in p.info["environ"]["PATH"]]
