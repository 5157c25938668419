"""Folders and archives, harmless and hostile: nothing is followed, unpacked or read without limit."""

import os
import socket
import stat
import struct
import zipfile

from helpers.course.grade.intake import folders_and_zips

import pytest

from .class_folder import NAME, X1, X2, X3, X4, assert_problem, assert_whole, first, put, text, zipped


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
        assert_whole(first(tmp_path / "class", source, "ada"))
    assert os.listdir(tmp_path) == ["class"]
    assert os.listdir(tmp_path / "class") == ["ada.zip"]


def test_a_notebook_that_unpacks_to_more_than_the_limit_is_unreadable(tmp_path, monkeypatch):
    monkeypatch.setattr(folders_and_zips, "LARGEST", 2**20)
    put(tmp_path / "ada" / "bomb.zip", zipped({NAME: b" " * 2**22, f"{X2.name}.ipynb": text(X2)}))
    assert_problem(first(tmp_path), "unreadable", f"bomb.zip/{NAME} is larger than 1 MiB")
    assert_whole(first(tmp_path, X2))


def test_an_archive_that_lies_about_sizes_is_read_no_further_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(folders_and_zips, "LARGEST", 2**20)
    data = zipped({NAME: b" " * 2**22})
    put(tmp_path / "ada" / "bomb.zip", data.replace(struct.pack("<L", 2**22), struct.pack("<L", 1000)))
    assert_problem(first(tmp_path), "unreadable", NAME)


def test_archives_in_archives_end(tmp_path, monkeypatch):
    data = zipped({NAME: text()})
    for _ in range(20):
        data = zipped({"next.zip": data})
    put(tmp_path / "ada" / "a.zip", data)
    assert_problem(first(tmp_path), "unreadable", "more than 12 folders deep")
    monkeypatch.setattr(folders_and_zips, "_LARGEST_INNER", 1000)
    assert_problem(first(tmp_path), "unreadable", "a.zip/next.zip is larger than 0 MiB")


def test_there_is_a_limit_to_members_and_to_all_bytes(tmp_path, monkeypatch):
    put(tmp_path / "ada" / "many.zip", zipped({f"{i}.txt": "" for i in range(folders_and_zips.MOST_FILES + 1)}))
    assert_problem(first(tmp_path), "unreadable", "many.zip was not opened: it has more than")
    put(tmp_path / "ben" / "a.zip", zipped({f"{i}/{NAME}": text() for i in range(3)}))
    monkeypatch.setattr(folders_and_zips, "MOST_BYTES", 2 * len(text()))
    assert_whole(first(tmp_path, X1, "ben"), ["There are also unreadable notebooks: a.zip/2/"])
    monkeypatch.setattr(folders_and_zips, "MOST_NOTEBOOKS", 1)
    assert_whole(first(tmp_path, X1, "ben"), ["There are also unreadable notebooks"])
    monkeypatch.setattr(folders_and_zips, "_LONGEST_READ", 10_000)
    assert_problem(first(tmp_path), "unreadable", "table of contents is too long")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a readable archive"),
        (b"Rar!\x1a\7\0 and so on", "not a readable archive"),
        (os.urandom(1000), "not a readable archive"),
        (zipped({NAME: text()})[:-100], "not a readable archive"),
        (zipped({NAME: text()}, zipfile.ZIP_BZIP2), "unsupported kind of compression"),
    ],
)
def test_broken_and_strange_archives_are_unreadable(tmp_path, data, words):
    put(tmp_path / "ada" / "work.zip", data)
    put(tmp_path / "ada" / f"{X2.name}.ipynb", text(X2))
    put(tmp_path / "ada.zip", data)
    for student in ("ada", "ada.zip"):
        assert_problem(first(tmp_path, X1, student), "unreadable", words)
    if "archive" in words:
        assert_whole(first(tmp_path, X2), ["Skipped: work.zip"])


def test_damaged_and_encrypted_members_are_unreadable(tmp_path):
    data = bytearray(zipped({NAME: text()}))
    data[200:300] = bytes(100)
    put(tmp_path / "ada" / "work.zip", bytes(data))
    assert_problem(first(tmp_path), "unreadable", f"work.zip/{NAME} is not a readable archive")
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
    monkeypatch.setattr(folders_and_zips, "MOST_FILES", 10)
    assert_whole(first(tmp_path), ["venv has too many files: only 10 were examined"])


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
    for student, name in (("ben", "ben"), ("cay", "cay.zip"), (NAME, NAME)):
        assert_problem(first(tmp_path / "class", X3, student), "unreadable", f"{name} is a link, which is not followed")


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
                assert_problem(first(tmp_path, source), "unreadable", f"{source.name}.ipynb is not a regular file")
            assert_problem(first(tmp_path, X3), "unreadable", "a.zip is not a regular file")
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
