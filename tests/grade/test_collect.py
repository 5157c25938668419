"""Whatever lies in the folder of a class, each student has a hand-in or a reason for each exercise."""

import io
import json
import os
import shutil
import socket
import stat
import struct
import sys
import time
import unicodedata
import zipfile

from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.grade.intake import files, notebook_file
from helpers.course.grade.intake.collect import collect
from helpers.course.grade.intake.hand_in import grading_notebook, reference_hand_in

import nbformat
import pytest

EXERCISES = [source for source in sources() if source.graded]
X1, X2, X3, X4 = EXERCISES
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
    """The hand-in of one student for one exercise, which must be told in one clear line."""
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


# Who is a student


def test_every_student_and_exercise_has_a_hand_in_sorted_by_student(tmp_path):
    put(tmp_path / "zoe" / NAME, text())
    put(tmp_path / "ada" / f"{X2.name}.ipynb", text(X2))
    (tmp_path / "Ben").mkdir()
    hand_ins = collect(tmp_path, EXERCISES)
    assert [(h.student, h.source.exercise) for h in hand_ins] == [
        (student, f"x{i}") for student in ("Ben", "ada", "zoe") for i in (1, 2, 3, 4)
    ]
    assert_whole(first(tmp_path, X1, "zoe"))
    assert_whole(first(tmp_path, X2))
    assert_problem(first(tmp_path, X1, "Ben"), "missing", "no notebook in the folder")
    assert_problem(first(tmp_path), "missing", NAME, f"{X2.name}.ipynb")


def test_a_folder_and_an_archive_of_the_same_name_are_two_students(tmp_path):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada.zip", zipped({f"{X2.name}.ipynb": text(X2)}))
    assert sorted({h.student for h in collect(tmp_path, EXERCISES)}) == ["ada", "ada.zip"]
    assert_whole(first(tmp_path))
    assert_whole(first(tmp_path, X2, "ada.zip"))


def test_canvas_puts_the_files_of_all_students_side_by_side(tmp_path, capsys):
    put(tmp_path / f"lovelaceada_12345_67890_{X4.name}.ipynb", text(X4))
    put(tmp_path / f"smithjo_LATE_111_222_{X4.name}-1.ipynb", text(X4))
    put(tmp_path / f"smithjo_333_444_{X4.name}.ipynb", text(X4, solved=False))
    put(tmp_path / "untitled.ipynb", text(X4))
    put(tmp_path / f"{X1.name}.ipynb", text())
    assert sorted({h.student for h in collect(tmp_path, EXERCISES)}) == [
        NAME, "lovelaceada_12345_67890", "smithjo_333_444", "smithjo_LATE_111_222", "untitled.ipynb",
    ]  # fmt: skip
    assert_whole(first(tmp_path, X4, "lovelaceada_12345_67890"))
    assert_whole(first(tmp_path, X4, "smithjo_LATE_111_222"), ["not named"])
    assert_whole(first(tmp_path, X4, "untitled.ipynb"), ["not named"])
    assert_whole(first(tmp_path, X1, NAME))
    assert capsys.readouterr().out == ""


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
    assert_whole(first(tmp_path, X2, f"ada_{X2.name}.ipynb"), ["not named"])


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
    assert out == "Not looked at: .hidden, caf\\udce9.txt, new\\nline.txt, notes.pdf, pipe.\n"


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


# Which notebook


@pytest.mark.parametrize(
    "name", ["Untitled.ipynb", "homework 1.IPYNB", f"{X1.name} (1).ipynb", f"{NAME}.txt", "ü.ipynb"]
)
def test_a_notebook_of_another_name_is_taken_and_flagged(tmp_path, name):
    put(tmp_path / "ada" / name, text())
    assert_whole(first(tmp_path), [name])
    assert_problem(first(tmp_path, X2), "missing", name, X1.name)


def test_names_in_messages_are_on_one_line(tmp_path):
    put(tmp_path / "ada" / "new\nline\x1b[2J\udcff.ipynb", text())
    assert "new\\nline\\x1b[2J\\udcff.ipynb" in first(tmp_path).flags[0]
    assert "new\\nline" in first(tmp_path, X2).problem[1]


def changed(source=X1, to="# another\n"):
    raw = notebook(source)
    for cell in raw["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = [to, *cell["source"]]
    return json.dumps(raw)


def test_of_several_notebooks_the_exactly_named_is_taken(tmp_path):
    put(tmp_path / "ada" / "deep" / NAME, text())
    put(tmp_path / "ada" / "Untitled.ipynb", changed())
    assert_whole(first(tmp_path), ["with other answers: Untitled.ipynb"])


def test_then_the_shallowest_then_the_newest(tmp_path):
    put(tmp_path / "ada" / "a" / "b" / NAME, changed())
    put(tmp_path / "ada" / "z" / NAME, text())
    assert_whole(first(tmp_path), ["with other answers: a/b/"])
    old = put(tmp_path / "ada" / "a" / NAME, changed(to="# old\n"))
    os.utime(old, (1, 1))
    assert_whole(first(tmp_path), [f"Taken from z/{NAME}; with other answers: a/{NAME}, a/b/{NAME}."])


def test_copies_with_the_same_answers_are_no_matter(tmp_path):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada" / f"{X1.name}-Copy1.ipynb", text())
    assert_whole(first(tmp_path))


def test_a_worked_notebook_goes_before_an_untouched_one(tmp_path):
    put(tmp_path / "ada" / NAME, text(solved=False))
    put(tmp_path / "ada" / f"{X1.name} (1).ipynb", text())
    assert_whole(first(tmp_path), ["not named", "with other answers"])


def test_an_unreadable_one_gives_way_to_one_that_can_be_read(tmp_path):
    put(tmp_path / "ada" / NAME, text()[:5000])
    put(tmp_path / "ada" / f"old_{NAME}", text())
    assert_whole(first(tmp_path), ["not named", "breaks off"])


def test_checkpoints_and_files_of_macos_are_left_out(tmp_path):
    put(tmp_path / "ada" / ".ipynb_checkpoints" / f"{X1.name}-checkpoint.ipynb", text())
    put(tmp_path / "ada" / f"._{NAME}", b"\0\5\x16\7")
    members = {f"__MACOSX/._{NAME}": b"\0", ".ipynb_checkpoints/a.ipynb": text()}
    put(tmp_path / "ada" / "a.zip", zipped(members))
    assert_problem(first(tmp_path), "missing", "no notebook in the folder")


def test_another_exercise_under_the_name_counts_for_the_other(tmp_path):
    put(tmp_path / "ada" / NAME, text(X2))
    assert_whole(first(tmp_path, X2), [NAME])
    assert_problem(first(tmp_path), "missing", f"{NAME} holds {X2.name}")


@pytest.mark.parametrize("source", EXERCISES, ids=lambda source: source.exercise)
@pytest.mark.parametrize("other", EXERCISES, ids=lambda source: source.exercise)
def test_content_tells_the_exercises_apart_whatever_the_name(tmp_path, source, other):
    put(tmp_path / "ada" / f"{other.name}.ipynb", text(source))
    put(tmp_path / "ben" / "x.ipynb", text(source, solved=False))
    for each in EXERCISES:
        assert (first(tmp_path, each).problem is None) == (each == source)
        assert (first(tmp_path, each, "ben").problem is None) == (each == source)


def test_shared_names_do_not_confuse(tmp_path):
    raw = notebook(X2)
    raw["cells"] = [cell_of(raw, "step")]  # x1 has a cell of this name, too
    put(tmp_path / "ada" / "a.ipynb", json.dumps(raw))
    hand_in = first(tmp_path, X2)
    assert list(hand_in.answers) == ["step"]
    assert hand_in.flags[1:] == [
        f"{n}: the answer cell is missing." for n in ("tokens", "scaled", "epoch", "groupnorm")
    ]
    assert_problem(first(tmp_path), "missing")


def test_a_notebook_of_a_lab_is_no_hand_in(tmp_path):
    for lab in [source for source in sources() if not source.graded]:
        put(tmp_path / "ada" / "work" / f"{lab.exercise}.ipynb", text(lab))
    put(tmp_path / "ada" / "mine.ipynb", json.dumps({"cells": [], "nbformat": 4}))
    for source in EXERCISES:
        assert_problem(first(tmp_path, source), "missing", "mine.ipynb (no notebook of the course)", "00_start_here")


def test_other_files_are_named_in_the_reason(tmp_path):
    put(tmp_path / "ada" / "answers.py", "x")
    put(tmp_path / "ada" / "work.rar", "x")
    assert_problem(first(tmp_path), "missing", "answers.py, work.rar")


# Folders and archives


def test_nested_folders_and_archives(tmp_path):
    put(tmp_path / "ada" / "a" / "b c" / "ü" / NAME, text())
    inner = zipped({f"{X3.name}.ipynb": text(X3)})
    put(tmp_path / "ada" / "work.ZIP", zipped({f"src\\x\\{X2.name}.ipynb": text(X2), "more/inner.zip": inner}))
    for source in (X1, X2, X3):
        assert_whole(first(tmp_path, source))


def test_names_in_an_archive_cannot_leave_it(tmp_path):
    members = {f"../../../{NAME}": text(), f"/etc/{X2.name}.ipynb": text(X2), f"C:\\{X3.name}.ipynb": text(X3)}
    put(tmp_path / "class" / "ada.zip", zipped(members))
    for source in (X1, X2, X3):
        assert_whole(first(tmp_path / "class", source, "ada.zip"))
    assert os.listdir(tmp_path) == ["class"]
    assert os.listdir(tmp_path / "class") == ["ada.zip"]


def test_a_notebook_that_unpacks_to_more_than_the_limit_is_unreadable(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 2**20)
    put(tmp_path / "ada" / "bomb.zip", zipped({NAME: b" " * 2**22, f"{X2.name}.ipynb": text(X2)}))
    assert_problem(first(tmp_path), "unreadable", f"bomb.zip/{NAME} is larger than 1 MiB")
    assert_whole(first(tmp_path, X2))


def test_an_archive_that_lies_about_sizes_is_read_no_further_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 2**20)
    data = zipped({NAME: b" " * 2**22})
    put(tmp_path / "ada" / "bomb.zip", data.replace(struct.pack("<L", 2**22), struct.pack("<L", 1000)))
    assert_problem(first(tmp_path), "unreadable", NAME)


def test_archives_in_archives_end(tmp_path, monkeypatch):
    data = zipped({NAME: text()})
    for _ in range(20):
        data = zipped({"next.zip": data})
    put(tmp_path / "ada" / "a.zip", data)
    assert_problem(first(tmp_path), "unreadable", "more than 12 folders deep")
    monkeypatch.setattr(files, "_LARGEST_INNER", 1000)
    assert_problem(first(tmp_path), "unreadable", "a.zip/next.zip is larger than 0 MiB")


def test_there_is_a_limit_to_members_and_to_all_bytes(tmp_path, monkeypatch):
    put(tmp_path / "ada" / "many.zip", zipped({f"{i}.txt": "" for i in range(files.MOST_FILES + 1)}))
    assert_problem(first(tmp_path), "unreadable", "many.zip was not looked into: it holds too much")
    put(tmp_path / "ben" / "a.zip", zipped({f"{i}/{NAME}": text() for i in range(3)}))
    monkeypatch.setattr(files, "MOST_BYTES", 2 * len(text()))
    assert_whole(first(tmp_path, X1, "ben"), ["Not readable beside it: a.zip/2/"])
    monkeypatch.setattr(files, "MOST_NOTEBOOKS", 1)
    assert_whole(first(tmp_path, X1, "ben"), ["Not readable beside it"])
    monkeypatch.setattr(files, "_LONGEST_READ", 10_000)
    assert_problem(first(tmp_path), "unreadable", "table of contents is too long")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no archive that can be read"),
        (b"Rar!\x1a\7\0 and so on", "no archive that can be read"),
        (os.urandom(1000), "no archive that can be read"),
        (zipped({NAME: text()})[:-100], "no archive that can be read"),
        (zipped({NAME: text()}, zipfile.ZIP_BZIP2), "packed in a way that is not read"),
    ],
)
def test_broken_and_strange_archives_are_unreadable(tmp_path, data, words):
    put(tmp_path / "ada" / "work.zip", data)
    put(tmp_path / "ada" / f"{X2.name}.ipynb", text(X2))
    put(tmp_path / "ada.zip", data)
    for student in ("ada", "ada.zip"):
        assert_problem(first(tmp_path, X1, student), "unreadable", words)
    if "archive" in words:
        assert_whole(first(tmp_path, X2), ["Not looked into: work.zip"])


def test_damaged_and_encrypted_members_are_unreadable(tmp_path):
    data = bytearray(zipped({NAME: text()}))
    data[200:300] = bytes(100)
    put(tmp_path / "ada" / "work.zip", bytes(data))
    assert_problem(first(tmp_path), "unreadable", f"work.zip/{NAME} is no archive")
    data = bytearray(zipped({NAME: text()}))
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    put(tmp_path / "ada" / "work.zip", bytes(data))
    assert_problem(first(tmp_path), "unreadable", f"work.zip/{NAME} is encrypted")


def test_links_in_archives_are_not_followed(tmp_path):
    member = zipfile.ZipInfo(NAME)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    put(tmp_path / "ada" / "a.zip", zipped({member: "/dev/zero"}))
    assert_problem(first(tmp_path), "unreadable", f"a.zip/{NAME} is a link, which is not followed")


def test_dates_in_archives_may_be_nonsense(tmp_path):
    data = zipped({NAME: text()})
    stamp = data[10:14]
    put(tmp_path / "ada" / "a.zip", data.replace(stamp, b"\0\0\0\0"))
    assert_whole(first(tmp_path))


def test_too_many_files_and_folders_without_end(tmp_path, monkeypatch):
    put(tmp_path / "ada" / NAME, text())
    deep = tmp_path / "ada" / "/".join(["d"] * 50)
    put(deep / f"{X2.name}.ipynb", text(X2))
    assert_whole(first(tmp_path), ["more than 12 folders deep"])
    assert_problem(first(tmp_path, X2), "unreadable", "more than 12 folders deep")
    for i in range(20):
        put(tmp_path / "ada" / "venv" / f"{i}.py", "")
    monkeypatch.setattr(files, "MOST_FILES", 10)
    assert_whole(first(tmp_path), ["venv holds too much: only 10 files were looked at"])


# Files that are none


def test_links_are_not_followed(tmp_path):
    secret = put(tmp_path / "secret" / f"{X3.name}.ipynb", text(X3))
    ada = tmp_path / "class" / "ada"
    ada.mkdir(parents=True)
    (ada / NAME).symlink_to("/dev/zero")
    (ada / f"{X2.name}.ipynb").symlink_to(secret)
    (ada / "folder").symlink_to(secret.parent)
    (ada / "loop").symlink_to(ada)
    (ada / f"{X4.name}.ipynb").symlink_to(f"{X4.name}.ipynb")
    (tmp_path / "class" / "ben").symlink_to(secret.parent)
    (tmp_path / "class" / "cay.zip").symlink_to("/dev/zero")
    (tmp_path / "class" / NAME).symlink_to(secret)
    for source in (X1, X2, X4):
        assert_problem(first(tmp_path / "class", source), "unreadable", f"{source.name}.ipynb is a link, which is not")
    assert_problem(first(tmp_path / "class", X3), "missing", "links, which are not followed: folder, loop")
    for student in ("ben", "cay.zip", NAME):
        assert_problem(
            first(tmp_path / "class", X3, student), "unreadable", f"{student} is a link, which is not followed"
        )


def test_pipes_and_sockets_do_not_block(tmp_path):
    ada = tmp_path / "ada"
    ada.mkdir()
    os.mkfifo(ada / NAME)
    os.mkfifo(ada / "a.zip")
    here = os.getcwd()
    os.chdir(ada)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{X2.name}.ipynb")
            for source in (X1, X2):
                assert_problem(first(tmp_path, source), "unreadable", f"{source.name}.ipynb is no regular file")
            assert_problem(first(tmp_path, X3), "unreadable", "a.zip is no regular file")
    finally:
        os.chdir(here)


def test_a_folder_of_a_notebooks_name_is_a_folder(tmp_path):
    put(tmp_path / "ada" / NAME / NAME, text())
    put(tmp_path / "ada" / "x.zip" / f"{X2.name}.ipynb", text(X2))
    assert_whole(first(tmp_path))
    assert_whole(first(tmp_path, X2))


@pytest.mark.parametrize("what", ["file", "folder", "student"])
def test_what_may_not_be_opened_is_unreadable(tmp_path, monkeypatch, what):
    put(tmp_path / "ada" / NAME, text())
    put(tmp_path / "ada" / "more" / f"{X2.name}.ipynb", text(X2))
    put(tmp_path / "ben" / NAME, text())
    closed = {"file": tmp_path / "ada" / NAME, "folder": tmp_path / "ada" / "more", "student": tmp_path / "ada"}[what]
    closed.chmod(0)
    if os.geteuid() == 0:  # whom permissions do not stop
        for name in ("open", "scandir"):
            real = getattr(os, name)

            def refusing(path, *args, real=real):
                if os.fspath(path) == os.fspath(closed):
                    raise PermissionError(13, "Permission denied")
                return real(path, *args)

            monkeypatch.setattr(os, name, refusing)
    try:
        hand_ins = {source: first(tmp_path, source) for source in (X1, X2)}
        assert_whole(first(tmp_path, X1, "ben"))
    finally:
        closed.chmod(0o700)
    for source in {"file": [X1], "folder": [X2], "student": [X1, X2]}[what]:
        assert_problem(hand_ins[source], "unreadable", "Permission denied")
    if what == "folder":
        assert_whole(hand_ins[X1], ["more cannot be opened"])


# What is in a file


@pytest.mark.parametrize("minor", range(6))
def test_all_minor_versions_of_nbformat_4(tmp_path, minor):
    raw = notebook()
    raw["nbformat_minor"] = minor
    for cell in raw["cells"] if minor < 5 else ():
        del cell["id"]
    assert_whole(read(tmp_path, raw))


def test_the_old_format_is_unreadable_and_called_old(tmp_path):
    raw = json.loads(nbformat.writes(nbformat.convert(make_notebook(X1, solved=True), 3), version=3))
    assert "worksheets" in raw
    assert_problem(read(tmp_path, raw), "unreadable", NAME, "old format (nbformat 3)")
    assert_problem(read(tmp_path, {"nbformat": 2, "cells": []}), "unreadable", "old format (nbformat 2)")


def colab(raw, keep=False):
    raw["nbformat_minor"] = 0
    raw["metadata"] |= {"colab": {"provenance": [], "toc_visible": True}, "accelerator": "GPU"}
    for cell in raw["cells"]:
        cell["metadata"] = {"id": cell.pop("id"), "colab": {"base_uri": "x"}, **(cell["metadata"] if keep else {})}
    return raw


def test_colab_and_vscode(tmp_path):
    assert_whole(read(tmp_path, colab(notebook(), keep=True)))
    assert_whole(read(tmp_path, colab(notebook())))  # nbgrader's metadata is gone: Colab's ids say which cell is which
    raw = notebook()
    for cell in raw["cells"]:
        cell["metadata"] = {"vscode": {"languageId": "python"}}
    assert_whole(read(tmp_path, raw))
    raw["metadata"] = {"language_info": {"name": "python", "version": "3.12"}, "vscode": {"interpreter": {"hash": "1"}}}
    assert_whole(read(tmp_path, raw))


@pytest.mark.parametrize("source", EXERCISES, ids=lambda source: source.exercise)
def test_without_any_names_cells_are_told_by_what_they_define(tmp_path, source):
    raw = notebook(source)
    raw["nbformat_minor"] = 4
    for cell in raw["cells"]:
        del cell["id"]
        cell["metadata"] = {"trusted": True}
    put(tmp_path / "ada" / "kernel.ipynb", json.dumps(raw))
    assert_whole(first(tmp_path, source), ["not named", *["no cell has this name"] * len(ANSWERS[source.exercise])])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-16-be"])
def test_encodings(tmp_path, encoding):
    raw = notebook()
    raw["cells"][0]["source"] = "李雷 é 🙂"
    assert_whole(read(tmp_path, json.dumps(raw, ensure_ascii=False).encode(encoding)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n " * 5000, "is empty"),
        (b"[]", "JSON of another kind"),
        (b"null", "JSON of another kind"),
        (b'{"cells": 3}', "no list of cells"),
        (b"{}", "no list of cells"),
        (text().encode()[:9000], "breaks off"),
        (text().encode()[:-2], "breaks off"),
        (b'{"cells": [', "breaks off"),
        (b"{'cells': []}", "not JSON"),
        (b"\xff\xd8\xff\xe0 junk", "no text in UTF-8"),
        (bytes(range(256)) * 100, "not a notebook"),
        (b"\0" * 10_000, "not a notebook"),
        (b"PK\3\4 junk", "is a zip archive"),
        (b"<!DOCTYPE html>", "is a web page"),
        (b"[" * 100_000, "nested without end"),
        (b'{"cells": ' + b"[" * 100_000, "nested without end"),
        (b'{"cells": ' + b'{"a": ' * 100_000, "nested without end"),
        (b'{"cells": [{"cell_type": "code"}]}', "has none of the answer cells: scaler, step, compare"),
        (b'{"cells": [{"cell_type": "markdown", "metadata": {}, "source": "hi"}]}', "has none of the answer cells"),
        (b'{"cells": [' + b'"x",' * 2_100_000 + b"{}]}", "more than 8 MiB beside its outputs"),
        (b'{"cells": [' + b"{}," * 2_000 + b"{}]}", "more than 2,000 cells"),
        (b'"' + b'\\"' * 2_000_000, "not a notebook"),
    ],
)
def test_what_is_no_notebook_is_unreadable(tmp_path, data, words):
    began = time.process_time()
    assert_problem(read(tmp_path, data), "unreadable", NAME, words)
    assert time.process_time() - began < 10
    assert_problem(first(tmp_path, X2), "missing")


def test_any_half_of_a_notebook_is_unreadable_or_what_is_left(tmp_path):
    whole = text().encode()
    for length in range(0, len(whole) - 1, 997):
        assert_problem(read(tmp_path, whole[:length]), "unreadable", NAME)


def test_numbers_that_json_does_not_have(tmp_path):
    raw = text().replace('"nbformat_minor": 5', '"nbformat_minor": NaN, "a": Infinity, "b": -Infinity, "c": 1e999')
    raw = raw.replace('"execution_count": null', f'"execution_count": {"9" * 10_000}')
    assert "NaN" in raw
    assert "9" * 10_000 in raw
    assert_whole(read(tmp_path, raw))


@pytest.mark.slow
def test_a_hundred_megabytes_of_output_are_passed_over(tmp_path):
    import tracemalloc

    raw = notebook()
    code = [cell for cell in raw["cells"] if cell["cell_type"] == "code"]
    code[0]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "@"}]
    code[1]["outputs"] = [{"output_type": "display_data", "data": {"application/json": [[{"a": '"]}\\'}]] * 10_000}}]
    raw["metadata"]["widgets"] = {"state": {"x": "y" * 10_000}}
    line = "step 1: " + '\\"loss\\" [1.0] {é}' * 100 + '\\n","'
    put(tmp_path / "ada" / NAME, json.dumps(raw).replace('"@"', f'["{line * 60_000}"]'))
    assert (tmp_path / "ada" / NAME).stat().st_size > 100e6
    tracemalloc.start()
    hand_in = first(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_whole(hand_in)
    assert peak < 260e6


def test_a_notebook_above_the_limit_is_unreadable(tmp_path):
    path = put(tmp_path / "ada" / NAME, text())
    with path.open("ab") as file:
        file.truncate(notebook_file.LARGEST + 1)  # sparse: no such space is taken
    assert_problem(first(tmp_path), "unreadable", "larger than 256 MiB")


def test_too_many_brackets_are_unreadable(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook_file, "_MOST_TOKENS", 100)
    assert_problem(read(tmp_path, notebook()), "unreadable", "more than 100 strings and brackets")


# Cells


def test_odd_cells_cost_nothing(tmp_path):
    raw = notebook()
    raw["cells"][0]["metadata"] = None
    raw["cells"] += [{}, 3, None, {"cell_type": "code"}, {"cell_type": "code", "metadata": {"nbgrader": None}}]
    raw["cells"] += [{"cell_type": [], "id": {}, "metadata": {"nbgrader": {"grade_id": ["step"]}, "id": 3}}]
    assert_whole(read(tmp_path, raw))


def test_missing_and_reordered_cells(tmp_path):
    raw = notebook()
    raw["cells"] = [cell for cell in reversed(raw["cells"]) if cell["id"] not in ("scaler", "setup", "step_check")]
    hand_in = read(tmp_path, raw)
    assert list(hand_in.answers) == ["step", "compare"]
    assert hand_in.flags == ["scaler: the answer cell is missing."]
    assert "scaler" not in [cell.id for cell in grading_notebook(hand_in, 1).cells]


def test_an_answer_in_another_cell_is_pointed_at(tmp_path):
    raw = notebook(solved=False)
    mine = cell_of(notebook(), "step")
    raw["cells"].append({**mine, "id": "abc", "metadata": {}})
    hand_in = read(tmp_path, raw)
    assert hand_in.flags == [
        f"step: not answered in its own cell, but cell {len(raw['cells'])} defines train_step; not graded."
    ]


def test_an_answer_that_was_split_counts_whole(tmp_path):
    raw = notebook()
    cell = cell_of(raw, "scaler")
    lines = "".join(cell["source"]).split("\n")
    cell["source"] = "\n".join(lines[:20])
    raw["cells"].insert(raw["cells"].index(cell) + 1, {**cell, "id": "again", "source": "\n".join(lines[20:])})
    assert_whole(read(tmp_path, raw))


def test_an_answer_that_stands_twice_is_flagged_and_the_last_counts(tmp_path):
    raw = notebook()
    cell = cell_of(raw, "step")
    raw["cells"].append({**cell, "source": ["# later\n", *cell["source"]]})
    hand_in = read(tmp_path, raw)
    both = f"{ANSWERS['x1']['step']}\n# later\n{ANSWERS['x1']['step']}"
    assert hand_in.answers == {**ANSWERS["x1"], "step": both}
    assert hand_in.flags == ["step: stands in 2 cells; all were taken, in order, so the last counts."]


def test_an_untouched_copy_of_an_answer_cell_does_not_count(tmp_path):
    raw = notebook()
    raw["cells"].append(cell_of(notebook(solved=False), "step"))
    assert_whole(read(tmp_path, raw))


@pytest.mark.parametrize("kind", ["markdown", "raw", "", 3, None])
def test_an_answer_cell_that_is_no_code_is_flagged(tmp_path, kind):
    raw = notebook()
    cell_of(raw, "step")["cell_type"] = kind
    hand_in = read(tmp_path, raw)
    assert list(hand_in.answers) == ["scaler", "compare"]
    assert len(hand_in.flags) == 1
    assert "not code; not graded" in hand_in.flags[0]
    for name in ("scaler", "compare"):
        cell_of(raw, name)["cell_type"] = kind
    assert_problem(read(tmp_path, raw), "unreadable", "none of the answer cells", "not code")


@pytest.mark.parametrize(
    ("source", "taken", "words"),
    [
        ("x = 1\ny = 2", "x = 1\ny = 2", None),
        (["x = 1\n", "y = 2"], "x = 1\ny = 2", None),
        (["x = 1\n", 3, None, "y = 2"], "x = 1\ny = 2", "lines that are no text"),
        (3, "", "holds no text"),
        (None, "", "holds no text"),
        ({"a": "x"}, "", "holds no text"),
        ("#" * 300_000, "", "longer than"),
        ("x = '\0'", "x = '\ufffd'", "no text; they were replaced"),
        ("x = '\ud800'", "x = '\ufffd'", "no text; they were replaced"),
        ("x = '🙂'", "x = '🙂'", None),
    ],
)
def test_sources_of_all_kinds(tmp_path, source, taken, words):
    raw = notebook()
    cell_of(raw, "step")["source"] = source
    hand_in = read(tmp_path, raw)
    assert hand_in.problem is None
    assert hand_in.answers == {**ANSWERS["x1"], "step": taken}
    assert bool(hand_in.flags) == bool(words)
    assert not words or words in hand_in.flags[0]
    written = nbformat.writes(grading_notebook(hand_in, 1)).encode()
    first, *lines = cell_of(json.loads(written), "step")["source"]
    assert first == "# cell: step\n"
    assert lines == taken.splitlines(keepends=True)


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
    real = files.Search.notebooks

    def breaking(self, start):
        if start.name == "ada":
            raise MemoryError("as an example")
        return real(self, start)

    monkeypatch.setattr(files.Search, "notebooks", breaking)
    assert_problem(first(tmp_path), "unreadable", "MemoryError", "as an example")
    assert_whole(first(tmp_path, X1, "ben"))


def test_nothing_is_written_and_all_is_closed(tmp_path):
    put(tmp_path / "ada" / "a.zip", zipped({NAME: text(), "b.zip": zipped({"x.ipynb": "{"})}))
    before = sorted(os.walk(tmp_path))
    (tmp_path / "ada").chmod(0o500)
    opened = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert_whole(first(tmp_path))
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
