"""Hostile hand-ins: right grade, right status, and nobody else pays."""

import os

from helpers.course.build import make_notebook, write
from helpers.course.grade import grade
from helpers.course.grade.sandbox import find_bubblewrap

import psutil
import pytest

from .attacks import ATTACKS, RIGHT, X1, Attack

TIMEOUT = 40.0 if os.environ.get("CI") else 30.0  # of one cell; a right scaler takes a second
SAMPLED = 8  # one in so many runs in `make test`; all run in CI and in `make test-all`


def hand_in(folder, answers):
    notebook = make_notebook(X1, solved=False)
    for cell in notebook.cells:
        if cell.id in answers:
            cell.source = answers[cell.id]
    folder.mkdir(parents=True)
    (folder / f"{X1.name}.ipynb").write_text(write(notebook), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(find_bubblewrap() is None, reason="needs bubblewrap that may make namespaces")
def test_attacks_get_what_they_earn(tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    canary.write_text("sings")
    monkeypatch.setenv("CANARY", "sings")
    hand_ins = tmp_path / "hand-ins"
    chosen = dict(ATTACKS)
    if not os.environ.get("WHOLE_LABS"):
        chosen = dict(list(ATTACKS.items())[::SAMPLED])
    chosen["an honest one, last of all"] = Attack({"scaler": RIGHT}, 3)
    for name, one in chosen.items():
        places = {"canary": str(canary), "folder": str(hand_ins)}
        texts = {
            cell: text.format(**places) if "{canary!r}" in text or "{folder!r}" in text else text
            for cell, text in one.answers.items()
        }
        hand_in(hand_ins / name, texts)
    before = {path: path.read_bytes() for path in hand_ins.rglob("*.ipynb")}
    results = {
        r.student: r
        for r in grade(hand_ins, tmp_path / "grades", seed=5, jobs=2, timeout=TIMEOUT)
        if r.exercise == "x1"
    }
    wrong = []
    for name, one in chosen.items():
        got = results[name]
        if (got.total, got.status) != (one.total, one.status) or one.flag not in "; ".join(got.flags):
            wrong.append(
                f"{name}: {got.total}, {got.status} ({got.reason}), flags {got.flags}; {[v.diagnosis for v in got.verdicts][:3]}"
            )
    assert not wrong, "\n".join(wrong)
    assert canary.read_text() == "sings"
    assert {path: path.read_bytes() for path in hand_ins.rglob("*") if path.is_file()} == before
    assert not [p for p in psutil.process_iter(["cmdline"]) if "4711" in (p.info["cmdline"] or [])]
