"""Saves in processes of their own, photographed where a kill could hit, and loads in others."""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..base import Evidence
from ..checking import message_of
from ..probing.folder_watch import Look, look_at
from ..probing.photographs import Photographs
from ..probing.synced_files import SyncedFiles
from .elsewhere import elsewhere
from .entries import entries_of, steps_of
from .forms import form_of
from .opened_files import descriptors, written_outside
from .processes import run_or_die, unpacked
from .states import MIXED, continued, digest_of, make_state, print_of

LOADING = 2  # processes that load; each folder is one's alone


@dataclass(frozen=True)
class Scene:
    """Saves into one folder, one after the other, by one process.

    Attributes:
        name: of the scene.
        states: what is saved, as (kind, step).
        keep: in each save.
        watched: the last save is photographed.
        unsynced: a step whose name is in the folder, but not on the disk, when the last save begins.
    """

    name: str
    states: tuple[tuple[str, int], ...]
    keep: int
    watched: bool = False
    unsynced: int | None = None


@dataclass(frozen=True)
class Place:
    """Where the files of a scene are."""

    scratch: Path

    def folder(self, scene: str) -> Path:
        """Return the folder of checkpoints. Neither it nor what it is in need be there."""
        return self.scratch / scene / "run" / "checkpoints"

    def after(self, scene: str, number: int) -> Path:
        """Return a copy of the folder after so many saves."""
        return self.scratch / scene / "after" / str(number)

    def album(self, scene: str) -> Path:
        """Return where the photographs of the last save are."""
        return self.scratch / scene / "photographs"

    def photographs(self, scene: str) -> list[Path]:
        """Return the photographs of the last save, in order."""
        return sorted(self.album(scene).glob("*"), key=lambda path: int(path.name))


def save_scenes(answers: bytes, place: Place, seed: int, *scenes: Scene) -> Evidence:
    """Save in a new process; return what each scene has shown, by its name."""
    run = run_or_die(_save_scenes, 1, answers, place, seed, scenes, process_group=False)
    return run[0] if run else {}


def load_from(answers: bytes, folders: list[Path]) -> list[Evidence]:
    """Return what new processes load from each folder: the step, and a digest of the state."""
    run = run_or_die(_load_every, LOADING, answers, folders, process_group=False)
    return [run[n % LOADING][n // LOADING] if run else {"raised": "SIGKILL"} for n in range(len(folders))]


# -- in the new process ---------------------------------------------------------------------------------------


def _save_scenes(answers: bytes, place: Place, seed: int, scenes: tuple[Scene, ...]) -> Evidence:
    torch.set_num_threads(1)
    outside = written_outside(place.scratch)
    with SyncedFiles(place.scratch) as synced:
        save, load = unpacked(answers)
        return {
            scene.name: _save_scene(save, load, place, seed, scene, synced) | {"outside": len(outside())}
            for scene in scenes
        }


def _save_scene(save: Any, load: Any, place: Place, seed: int, scene: Scene, synced: SyncedFiles) -> Evidence:
    folder, left, forms, changed, state = place.folder(scene.name), [], [], False, {}
    unclosed: list[int] = []
    camera = Photographs(folder, place.album(scene.name), synced)
    for number, (kind, step) in enumerate(scene.states, 1):
        state = continued(state, make_state(kind, seed, step))
        before, opened = digest_of(state), descriptors()
        try:
            if scene.watched and number == len(scene.states):
                lost = {entry.name for entry in entries_of(folder) if steps_of(entry) == scene.unsynced}
                camera.during(lambda state=state, step=step: save(folder, step, state, scene.keep), lost)
            else:
                save(folder, step, state, scene.keep)
        except NotImplementedError:
            raise
        except Exception as error:
            return {"raised": type(error).__name__, "text": message_of(error)[:200], "step": step}
        changed |= digest_of(state) != before
        unclosed.append(descriptors() - opened)
        forms.append([step, form_of(folder, step, state)])
        if folder.is_dir():
            with contextlib.suppress(shutil.Error):  # a thread of the answer is still at work
                shutil.copytree(folder, place.after(scene.name, number))
        left.append(sorted(map(steps_of, folder.iterdir())) if folder.is_dir() else [])
    _overwrite(state)  # training goes on
    return {
        "left": left,
        "forms": forms,
        "changed": changed,
        "beside": len([path for path in folder.parent.glob("*") if path != folder]),
        "unclosed": min(unclosed) if len(unclosed) > 1 else 0,  # one for the folder may stay open
        "later": _loaded(load, folder),
        "bytes": [_bytes_of(look) for look in camera.looks],
        "arrivals": _arrivals(camera),
        "durable": [_durable(*moment) for moment in zip(camera.looks, camera.lost, strict=True)],
    }


def _overwrite(value: Any) -> None:
    """Zero all tensors in `value`, in place."""
    if isinstance(value, torch.Tensor):
        value.zero_()
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            _overwrite(inner)


def _bytes_of(look: Look) -> int:
    """Return the bytes of all files; one with two names counts once."""
    return sum({file[2]: file[0] for file in look.values() if file}.values())


def _arrivals(camera: Photographs) -> list[Evidence]:
    """Return the moments at which files got a name step-N: were they and their names on the disk, and from within?"""
    arrivals: list[Evidence] = []
    before, known = _entries(camera.before), _inodes(camera.before)
    for look, on_disk, unnamed in zip(camera.looks, camera.on_disk, camera.unnamed, strict=True):
        entries = _entries(look)
        for name, files in entries.items():
            new = files - before.get(name, set())
            if name.startswith("step-") and (new or name not in before):
                synced = bool(files) and {path for path, _ in new} <= set(on_disk)
                within = {inode for _, inode in new} <= known
                named = not {path for path, _ in new} & set(unnamed)
                arrivals.append({"step": steps_of(Path(name)), "synced": synced, "named": named, "within": within})
        before, known = entries, known | _inodes(look)
    return arrivals


def _durable(look: Look, lost: list[str]) -> list[int]:
    """Return the steps whose names step-N a power cut at this moment would leave."""
    names = {Path(path).parts[0] for path in look} - set(lost)
    return sorted(steps_of(Path(name)) for name in names if name.startswith("step-"))


def _entries(look: Look) -> dict[str, set[tuple[str, int]]]:
    """Return the files of each entry of the folder, as (path, inode)."""
    entries: dict[str, set[tuple[str, int]]] = {}
    for path, file in look.items():
        entries.setdefault(Path(path).parts[0], set()).update({(path, file[2])} if file else ())
    return entries


def _inodes(look: Look) -> set[int]:
    return {file[2] for file in look.values() if file}


def _load_every(answers: bytes, folders: list[Path]) -> list[Evidence]:
    """Load from this process's share of the folders: every second one of two processes."""
    torch.set_num_threads(1)
    _, load = unpacked(answers)
    with elsewhere():
        return [_loaded(load, folder) for folder in folders[int(os.environ["RANK"]) :: LOADING]]


def _loaded(load: Any, folder: Path) -> Evidence:
    """Return what `load` found, and whether the folder is another one now."""
    before = folder.exists(), look_at(folder)
    try:
        found = load(folder)
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": type(error).__name__}
    touched = {"touched": True} if (folder.exists(), look_at(folder)) != before else {}
    if found is None:
        return touched | {"none": True}
    if not (isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[0], int)):
        return touched | {"type": type(found).__name__}
    seen = touched | {"step": int(found[0]), "digest": digest_of(found[1])}
    return seen | ({"print": print_of(found[1])} if isinstance(found[1], dict) and MIXED in found[1] else {})
