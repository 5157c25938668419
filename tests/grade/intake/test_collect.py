"""Reading a whole class: nothing raises, nothing is written, and no student costs another."""

import os
import shutil
import sys
import time

from helpers.course.build.source import sources
from helpers.course.grade.intake import folders_and_zips
from helpers.course.grade.intake.collect import collect

import pytest

from .class_folder import EXERCISES, NAME, X1, assert_problem, assert_whole, first, put, text, zipped


def test_no_odd_bytes_raise(tmp_path):
    """Damage a notebook and an archive at many places: each time there is an answer or a reason."""
    import random

    draw = random.Random(1)
    for data, name in ((text().encode(), NAME), (zipped({NAME: text(), "a/b.zip": zipped({"c": "d"})}), "a.zip")):
        for _ in range(60):
            bad = bytearray(data)
            for _ in range(draw.choice([1, 5, 50])):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            put(tmp_path / "ada" / name, bytes(bad))
            (hand_in,) = collect(tmp_path, [X1])
            assert hand_in.problem is None or hand_in.problem[0] in ("unreadable", "missing")
        shutil.rmtree(tmp_path / "ada")


def test_what_breaks_the_reading_costs_one_student(tmp_path, monkeypatch):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ben" / NAME, text())
    real = folders_and_zips.Search.notebooks

    def breaking(self, start):
        if start.name == "ada":
            raise MemoryError("as an example")
        return real(self, start)

    monkeypatch.setattr(folders_and_zips.Search, "notebooks", breaking)
    assert_problem(first(tmp_path), "unreadable", "MemoryError", "as an example")
    assert_whole(first(tmp_path, X1, "ben"))


def test_nothing_is_written_and_all_is_closed(tmp_path):
    put(tmp_path / "ada" / "a.zip", zipped({NAME: text(), "b.zip": zipped({"x.ipynb": "{"})}))
    before = sorted(os.walk(tmp_path))
    (tmp_path / "ada").chmod(0o500)
    opened = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert_whole(first(tmp_path), ("unreadable notebooks: a.zip/b.zip/x.ipynb",))
    assert opened == (len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0)
    (tmp_path / "ada").chmod(0o700)
    assert sorted(os.walk(tmp_path)) == before


@pytest.mark.slow
def test_a_class_of_thirty_is_read_in_seconds(tmp_path):
    for student in range(30):
        for source in EXERCISES:
            put(tmp_path / f"student {student:02}" / f"{source.name}.ipynb", text(source))
    began = time.process_time()
    assert all(h.problem is None and h.flags == [] for h in collect(tmp_path, EXERCISES))
    assert time.process_time() - began < 20


def test_an_ungraded_lab_in_place_of_an_exercise_is_called_one(tmp_path):
    lab = next(source for source in sources() if source.name == "04_gradient_accumulation")
    put(tmp_path / "ada" / f"{lab.name}.ipynb", text(lab, solved=False))
    put(tmp_path / "ben" / "work.ipynb", text(lab, solved=False))
    ada, ben = collect(tmp_path, [X1])
    assert f"the folder contains {lab.name}.ipynb (ungraded lab)." in ada.problem[1]
    assert f"the folder contains work.ipynb (ungraded lab {lab.name})." in ben.problem[1]
