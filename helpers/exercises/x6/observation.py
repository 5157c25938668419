"""What `save` and `load` do, observed once for all checks of part 1.

Three processes save, one after the other, since a killed run goes on in another process. A fourth one loads: what they
have left, each photograph that was taken while they saved, and what a disk has damaged since.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..base import Evidence
from .damages import changed_largest, damages_of, half, replace_bytes
from .entries import bytes_in, entries_of, files_in, steps_of
from .processes import packed
from .saving import Place, Scene, load_from, save_scenes
from .states import digest_of, make_state, print_of

Answer = Callable[..., Any]
SERIES = (0, 9, 10, 99, 100, 999, 1_000, 9_999, 10_000, 99_999, 100_000, 999_999, 1_000_000)
FIRST = (
    Scene("first", (("usual", 10),), 1, watched=True),
    Scene("one", (("usual", 9), ("usual", 10)), 1, watched=True),
    Scene("two", (("usual", 7), ("usual", 8), ("usual", 9), ("usual", 10)), 2, watched=True),
    Scene("three", (("usual", 8), ("usual", 9), ("usual", 10)), 3),
    Scene("small", (("small", 8), ("small", 9), ("small", 10)), 3, watched=True),
    Scene("large", (("small", 9), ("large", 10)), 2),
    Scene("mixed", (("mixed", 7),), 1),
    Scene("series", tuple(("small", step) for step in SERIES), 3),
    Scene("twice", (("small", 8), ("small", 9), ("again", 9)), 2, watched=True),
    Scene("five", tuple(("small", step) for step in (1, 2, 3, 4, 6, 7, 8)), 5),
)
SECOND = (  # each begins with what `_begin_second` puts there
    Scene("killed", (("usual", 11),), 1, watched=True),
    Scene("other keys", (("small", 11),), 1),
    Scene("deleting", (("usual", 11),), 1),
    Scene("published", (("usual", 11),), 2),
    Scene("unsynced", (("small", 11),), 1, watched=True, unsynced=10),
    Scene("repeated", (("small", 10),), 1, watched=True, unsynced=10),
    Scene("newest damaged", (("small", 11),), 1, watched=True),
    Scene("damaged stays", (("small", 11),), 2),
    Scene("damaged", (("usual", 9),), 2, watched=True),
    Scene("set back", (("small", 5),), 3, watched=True),
    Scene("dated", (("usual", 11),), 2),
)
THIRD = (Scene("killed again", (("usual", 12),), 1, watched=True),)
DAMAGED = {  # by way, the scene of which a copy is damaged, and how many of the newest checkpoints are
    **dict.fromkeys(("file", "half", "end", "nothing", "zeros", "bytes"), ("three", 1)),
    **dict.fromkeys(("byte", "block"), ("large", 1)),
    "single": ("small", 1),
    "two newest": ("three", 2),
    "four newest": ("five", 4),
    "all": ("three", 3),
    "bytes of all": ("three", 3),
}


def observe(seed: int, save: Answer, load: Answer) -> Evidence:
    """Return what the scenes have shown, and what was loaded from where."""
    answers = packed(save, load)
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name))
        place.folder("first").mkdir(parents=True)  # there, but empty
        scenes = save_scenes(answers, place, seed, *FIRST)
        _begin_second(place)
        scenes |= save_scenes(answers, place, seed, *SECOND)
        _copy(_fullest(place.photographs("killed")), place.folder("killed again"))
        scenes |= save_scenes(answers, place, seed, *THIRD)
        folders = _folders(place)
        found = iter(load_from(answers, [folder for group in folders.values() for folder in group]))
        loads = {group: [next(found) for _ in those] for group, those in folders.items()}
        watched = [scene.name for scene in (*FIRST, *SECOND, *THIRD) if scene.watched]
        return {
            "scenes": scenes,
            "loads": loads,
            "photographs": {scene: [_steps(photo) for photo in place.photographs(scene)] for scene in watched},
            "alone": {scene: [steps_of(folder) for folder in folders[f"alone {scene}"]] for scene in watched},
            "one": bytes_in(place.after("one", 2)),
            "right": _right(seed),
            "print": print_of(make_state("mixed", seed, 7)),
        }


def _right(seed: int) -> dict[str, str]:
    states = {state for scene in (*FIRST, *SECOND, *THIRD) for state in scene.states}
    return {f"{kind} {step}": digest_of(make_state(kind, seed, step)) for kind, step in sorted(states)}


def _steps(folder: Path) -> list[int]:
    return sorted(map(steps_of, entries_of(folder)))


def _copy(source: Path | None, target: Path) -> Path:
    if source and source.is_dir():
        shutil.copytree(source, target)
    return target


def _fullest(photographs: list[Path], of: Callable[[Path], int] = bytes_in) -> Path | None:
    return max(photographs, key=of, default=None)


def _begin_second(place: Place) -> None:
    """Make the folders with which the second process begins."""
    for scene in ("killed", "other keys"):
        _copy(_fullest(place.photographs("one")), place.folder(scene))
    renamed = [photo for photo in place.photographs("one") if _steps(photo) == [10]]
    _copy(_fullest(renamed), place.folder("deleting"))
    crowded = _fullest(place.photographs("two"), lambda photo: len(entries_of(photo)))
    _copy(crowded, place.folder("published"))  # killed after the new name, before the old one was deleted
    # Killed after the new name, too: steps 9 and 10 are there.
    for scene in ("unsynced", "repeated", "newest damaged", "damaged stays"):
        for entry in entries_of(_copy(place.after("small", 3), place.folder(scene))):
            if steps_of(entry) == 8:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            elif "damaged" in scene and steps_of(entry) == 10:
                _halve(entry)
    _copy(place.after("five", 7), place.folder("set back"))
    damaged = _copy(place.after("three", 3), place.folder("damaged"))
    for entry in sorted(entries_of(damaged), key=steps_of)[1:]:
        _halve(entry)
    for folder in (place.folder("dated"), place.scratch / "dates"):
        _copy(place.after("three", 3), folder)
        for n, entry in enumerate(sorted(entries_of(folder), key=steps_of)):  # as a copy may leave them
            for file in (*files_in(entry), entry):
                os.utime(file, (1e9 - 1000 * n, 1e9 - 1000 * n))


def _folders(place: Place) -> dict[str, list[Path]]:
    """Return the folders to load from, in groups."""
    empty = place.scratch / "empty"
    empty.mkdir()
    folders = {
        "series": [place.after("series", number) for number in range(1, len(SERIES) + 1)],
        "mixed": [place.after("mixed", 1)],
        "dates": [place.scratch / "dates"],
        "saved twice": [place.after("twice", 3)],
        "empty": [empty],
        "absent": [place.scratch / "absent"],
    }
    for scene in (*FIRST, *SECOND, *THIRD):
        if scene.watched:
            folders[scene.name] = place.photographs(scene.name)
            folders[f"alone {scene.name}"] = _alone(place, scene.name)
    return folders | {way: list(_damaged(place, way)) for way in DAMAGED}


def _alone(place: Place, scene: str) -> list[Path]:
    """Return folders with a copy of one entry each: all that an entry has been while the scene was photographed."""
    folders: dict[tuple, Path] = {}
    for photo in place.photographs(scene):
        for entry in entries_of(photo):
            content = tuple((file.relative_to(photo), file.read_bytes()) for file in files_in(entry))
            folder = place.scratch / scene / "alone" / str(len(folders)) / entry.name
            if folders.setdefault((entry.name, content), folder) is folder:
                folder.mkdir(parents=True)
                shutil.copytree(entry, folder / entry.name) if entry.is_dir() else shutil.copy(entry, folder)
    return list(folders.values())


def _damaged(place: Place, way: str) -> list[Path]:
    scene, newest = DAMAGED[way]
    saves = next(len(each.states) for each in FIRST if each.name == scene)
    whole = place.after(scene, saves)
    entries = sorted(entries_of(whole), key=steps_of)[-newest:]
    every = changed_largest if way == "bytes of all" else _halve
    damages = [every] if newest > 1 else [damage for entry in entries for damage in damages_of(way, entry)]
    folders = [place.scratch / "damages" / way / str(n) for n in range(len(damages))]
    for folder in folders if whole.is_dir() else ():
        shutil.copytree(whole, folder, copy_function=_link)  # most of the files stay as they are
    for damage, folder in zip(damages, folders, strict=True):
        for entry in entries:
            damage(folder / entry.name)
    return folders


def _link(source: str, target: str) -> None:
    """Let `target` be another name of the file `source`; a copy of it where a disk has no such names."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)


def _halve(entry: Path) -> None:
    """Cut off the second half of each file."""
    for file in files_in(entry):
        replace_bytes(file, half)
