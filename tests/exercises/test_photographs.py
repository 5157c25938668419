"""Photographs of a folder, and what of it was on the disk when they were taken."""

import os
import sys
import threading
import time
from pathlib import Path

from helpers.exercises.probing.folder_watch import FolderWatch
from helpers.exercises.probing.photographs import Photographs
from helpers.exercises.probing.synced_files import SyncedFiles

import pytest


def photographed(scratch: Path, save) -> Photographs:
    folder = scratch / "folder"
    folder.mkdir()
    with SyncedFiles(folder) as synced:
        camera = Photographs(folder, scratch / "album", synced)
        camera.during(lambda: save(folder))
    return camera


def write_badly(folder: Path) -> None:
    path = folder / "file"
    path.write_bytes(b"old" * 100)
    os.replace(path, path.with_name("new"))
    path.write_bytes(b"again")


def in_a_thread(folder: Path) -> None:
    thread = threading.Thread(target=write_badly, args=(folder,))
    thread.start()
    thread.join()


@pytest.mark.parametrize("write", [write_badly, in_a_thread])
def test_they_show_what_a_kill_would_leave(tmp_path, write):
    camera = photographed(tmp_path, write)
    seen = [{path.name: path.stat().st_size for path in photo.iterdir()} for photo in camera.taken]
    assert {"file": 0} in seen  # opened, and nothing written yet
    assert {"file": 300} in seen
    assert {"new": 300} in seen
    assert seen[-1] == {"new": 300, "file": 5}
    assert sys.getprofile() is None


def test_a_thread_waits_while_another_one_looks(tmp_path):
    looks, looking, written, too_early = [], [], [], []  # lists: a thread would wait while it held an event's lock

    def changed(look):
        looks.append(look)
        if threading.current_thread() is threading.main_thread() and not looking:
            looking.append(True)
            time.sleep(0.2)  # the other thread writes now, and may go on only when it has looked
            too_early.extend(written)

    def write():
        with (tmp_path / "of the other").open("wb", buffering=0) as file:
            for _ in range(3 * 10**7):  # calls nothing, or this thread would look
                if looking:
                    break
            file.write(b"once")
            written.append(True)
            file.write(b"twice")

    def both():
        thread = threading.Thread(target=write)
        thread.start()
        (tmp_path / "of the main thread").touch()
        thread.join()

    FolderWatch(tmp_path, changed).during(both)
    sizes = [look["of the other"][0] for look in looks if "of the other" in look]
    assert sorted(set(sizes)) == [0, 4, 9]
    assert too_early == []


def save(folder: Path, flush: bool = True, sync: bool = True, of: str = "draft") -> None:
    (folder / "other").touch()
    with (folder / "draft").open("wb") as file:
        file.write(b"bytes")
        if flush:
            file.flush()
        if sync:
            with (folder / of).open("rb") as synced:
                os.fsync(synced.fileno())
    os.replace(folder / "draft", folder / "final")


@pytest.mark.parametrize(
    ("options", "on_disk"),
    [({}, True), ({"flush": False}, False), ({"sync": False}, False), ({"of": "other"}, False)],
)
def test_they_say_whether_all_bytes_were_on_the_disk(tmp_path, options, on_disk):
    original = os.fsync
    camera = photographed(tmp_path, lambda folder: save(folder, **options))
    assert os.fsync is original
    first = next(n for n, look in enumerate(camera.looks) if "final" in look)
    assert ("final" in camera.on_disk[first]) == on_disk


@pytest.mark.parametrize(("synced", "lost"), [((), ["final"]), (("folder",), []), (("folder/final",), ["final"])])
def test_a_power_failure_undoes_a_rename_whose_directory_was_not_synced(tmp_path, synced, lost):
    def rename(folder):
        save(folder)
        for path in synced:
            handle = os.open(folder.parent / path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        (folder / "last").touch()  # so that there is a photograph

    camera = photographed(tmp_path, rename)
    assert [path for path in camera.lost[-1] if path == "final"] == lost
    assert (camera.after_power_failure(len(camera.taken) - 1) / "final").exists() == (not lost)


def test_a_name_may_be_off_the_disk_when_the_call_begins(tmp_path):
    folder, album = tmp_path / "folder", tmp_path / "album"
    folder.mkdir()
    for name in ("old", "new"):
        (folder / name).touch()
    with SyncedFiles(tmp_path) as synced:
        camera = Photographs(folder, album, synced)
        camera.during((folder / "old").unlink, ["new"])
    assert [sorted(set(look) - set(lost)) for look, lost in zip(camera.looks, camera.lost, strict=True)][-1] == []
