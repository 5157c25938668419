"""Who is a student: folders, archives and notebooks of a class, whatever their names."""

import os
import unicodedata

from helpers.course.grade.intake.collect import collect

import pytest

from .class_folder import EXERCISES, NAME, X1, X2, X4, assert_problem, assert_whole, first, put, text, zipped


def test_every_student_and_exercise_has_a_hand_in_sorted_by_student(tmp_path):
    put(tmp_path / "zoe" / NAME, text())
    put(tmp_path / "ada" / f"{X2.name}.ipynb", text(X2))
    (tmp_path / "Ben").mkdir()
    hand_ins = collect(tmp_path, EXERCISES)
    assert [(h.student, h.source.exercise) for h in hand_ins] == [
        (student, source.exercise) for student in ("Ben", "ada", "zoe") for source in EXERCISES
    ]
    assert_whole(first(tmp_path, X1, "zoe"))
    assert_whole(first(tmp_path, X2))
    assert_problem(first(tmp_path, X1, "Ben"), "missing", "no notebook in the folder")
    assert_problem(first(tmp_path), "missing", NAME, f"{X2.name}.ipynb")


def test_a_folder_and_an_archive_of_the_same_name_are_two_students(tmp_path):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada.zip", zipped({f"{X2.name}.ipynb": text(X2)}))
    put(tmp_path / "ben.ZIP", zipped({f"{X2.name}.ipynb": text(X2)}))  # alone, it goes by its name without the ending
    assert sorted({h.student for h in collect(tmp_path, EXERCISES)}) == ["ada", "ada.zip", "ben"]
    assert_whole(first(tmp_path))
    assert_whole(first(tmp_path, X2, "ada.zip"))
    assert_problem(first(tmp_path, X1, "ada.zip"), "missing", f"the ZIP file contains {X2.name}.ipynb (X2).")


def test_canvas_puts_the_files_of_all_students_side_by_side(tmp_path, capsys):
    put(tmp_path / f"lovelaceada_12345_67890_{X4.name}.ipynb", text(X4))
    put(tmp_path / f"smithjo_LATE_111_222_{X4.name}-1.ipynb", text(X4))
    put(tmp_path / f"smithjo_333_444_{X4.name}.ipynb", text(X4, solved=False))
    put(tmp_path / "untitled.ipynb", text(X4))
    put(tmp_path / f"{X1.name}.ipynb", text())
    assert sorted({h.student for h in collect(tmp_path, EXERCISES)}) == [
        NAME, "lovelaceada", "smithjo_111", "smithjo_333", "untitled.ipynb",
    ]  # fmt: skip
    assert_whole(first(tmp_path, X4, "lovelaceada"))
    assert_whole(first(tmp_path, X4, "smithjo_111"), flags=["Late, according to Canvas."])
    assert_whole(first(tmp_path, X4, "untitled.ipynb"))
    assert_whole(first(tmp_path, X1, NAME))
    assert capsys.readouterr().out == ""


def test_what_canvas_has_of_one_student_is_one_student(tmp_path):
    put(tmp_path / f"lopezmaria_101_9001_{X1.name}.ipynb", text())
    put(tmp_path / f"lopezmaria_LATE_101_9555_{X2.name}.ipynb", text(X2, solved=False))
    put(tmp_path / f"lopezmaria_LATE_101_9556_{X2.name}-1.ipynb", text(X2))
    put(tmp_path / "lopezmaria_101_9777_work.zip", zipped({f"{X4.name}.ipynb": text(X4)}))
    assert {h.student for h in collect(tmp_path, EXERCISES)} == {"lopezmaria"}
    assert_whole(first(tmp_path, X1, "lopezmaria"))
    late = first(tmp_path, X2, "lopezmaria")
    assert late.flags[0] == "Late, according to Canvas."
    assert late.canvas == "lopezmaria_LATE_101_9556"
    assert_whole(first(tmp_path, X4, "lopezmaria"))
    assert first(tmp_path, EXERCISES[2], "lopezmaria").canvas.endswith("_101_9001")  # the ID is known all the same


def test_the_number_of_an_exercise_is_not_one_of_canvas(tmp_path):
    put(tmp_path / f"ada_12_{X2.name}.ipynb", text(X2))
    assert X2.name.startswith("04_")
    assert first(tmp_path, X2, "ada_12").canvas == ""


def test_of_files_from_canvas_the_last_attachment_counts(tmp_path):
    put(tmp_path / f"ada_1_20_{X1.name}-1.ipynb", text())
    put(tmp_path / f"ada_1_3_{X1.name}.ipynb", text().replace("growth_interval", "interval"))
    assert first(tmp_path).canvas == "ada_1_20"


def test_two_exercises_of_one_beginning_are_one_student(tmp_path):
    put(tmp_path / f"ada_{X1.name}.ipynb", text())
    put(tmp_path / f"ada_{X2.name}.ipynb", text(X2))
    assert {h.student for h in collect(tmp_path, EXERCISES)} == {"ada"}
    assert_whole(first(tmp_path))
    assert_whole(first(tmp_path, X2))


def test_a_file_is_not_added_to_a_folder_of_the_same_name(tmp_path):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / f"ada_{X2.name}.ipynb", text(X2))
    assert_problem(first(tmp_path, X2), "missing")
    assert_whole(first(tmp_path, X2, f"ada_{X2.name}.ipynb"))


def test_moodle_names_folders_with_its_own_words(tmp_path):
    put(tmp_path / "Ada Lovelace_12345_assignsubmission_file_" / NAME, text())
    assert_whole(first(tmp_path, X1, "Ada Lovelace_12345_assignsubmission_file_"))


def test_stray_files_are_named_in_one_line(tmp_path, capsys):
    put(tmp_path / "ada" / NAME, text())
    for name in ("notes.pdf", "new\nline.txt", ".DS_Store", "caf\udce9.txt"):
        put(tmp_path / name, "x")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert {h.student for h in collect(tmp_path, EXERCISES)} == {"ada"}
    out = capsys.readouterr().out
    assert out == "Skipped: .hidden, caf\\udce9.txt, new\\nline.txt, notes.pdf, pipe.\n"


ODD_NAMES = [
    "two words", "O'Brien \"Bo\"", "new\nline", "李雷", "Ωmega ñ", "a..b", "..", "-rf", "--out=x", "x" * 250, "ada.",
    "$(touch x)", "a;b&c|d", "%s{}[bold]", "back\\slash", "CON", "tab\there", "=1+1", "é\u202e",
]  # fmt: skip


def test_odd_names_are_students(tmp_path):
    names = ["..ada" if name == ".." else name for name in ODD_NAMES]
    for name in names:
        put(tmp_path / name / NAME, text())
    hand_ins = [h for h in collect(tmp_path, EXERCISES) if h.source == X1]
    assert [h.student for h in hand_ins] == sorted(names)
    for hand_in in hand_ins:
        assert_whole(hand_in)


def test_names_of_bytes_that_are_no_text_can_be_written(tmp_path):
    put(tmp_path / "caf\udce9" / NAME, text())
    put(tmp_path / "caf\\udce9" / NAME, text())
    put(tmp_path / "\x1b[31mred" / NAME, text())
    students = {h.student for h in collect(tmp_path, EXERCISES)}
    assert students == {"caf\\udce9", "caf\\udce9'", "\\x1b[31mred"}
    assert all(h.problem is None for h in collect(tmp_path, [X1]))


def test_names_that_differ_by_case_or_normalisation_are_different_students(tmp_path):
    names = ["Ada", "ada", unicodedata.normalize("NFC", "José"), unicodedata.normalize("NFD", "José")]
    for name in names:
        put(tmp_path / name / NAME, text())
    if len(os.listdir(tmp_path)) < 4:
        pytest.skip("this file system takes them for the same")
    assert [h.student for h in collect(tmp_path, [X1])] == sorted(names)
