"""Checks of the checkpoint manager: killed at any moment, read after any damage, on a disk that does not grow."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from ..base import Check, Evidence
from ..probing.folder_watch import look_at
from ..probing.on_ranks import on_ranks
from ..probing.photographs import Photographs
from ..probing.synced_files import SyncedFiles

NUMBERS = 4096  # of the tensor in each state: 16 KiB
SMALL = 2  # a version that fits into the buffer of a file, with 16 numbers
SET_BACK = (5, 20, 10, 7)  # steps as a run saves them that was set back
STEPS = (0, 2, 9, 10, 99, 100, 9_999, 10_000, 999_999, 1_000_000)


def state_of(step: int, version: int = 0) -> dict[str, Any]:
    """Return a state that can be told from that of other steps; `version` tells two of one step."""
    generator = torch.Generator().manual_seed(1000 * version + step)
    weights = torch.randn(16 if version == SMALL else NUMBERS, generator=generator)
    optimizer = {"state": {0: {"exp_avg": weights[:16].clone()}}, "lr": 0.1 * step}  # nested, as state dicts are
    return {"weights": weights, "step": step, "version": version, "optimizer": optimizer}


def photographed(folder: Path, album: Path, save: Callable[[], Any]) -> Photographs:
    """Run `save`, which writes to `folder`, and return photographs of it."""
    with SyncedFiles(folder) as synced:
        camera = Photographs(folder, album, synced)
        camera.during(save)
    return camera


def found(DataClass: Any, folder: Path, keep: int = 2) -> list[int] | str:
    """Return step and version of what a new manager finds in `folder`; [] for nothing; else what is wrong with it."""
    try:
        latest = DataClass(folder, keep=keep).latest()
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    if latest is None:
        return []
    step, state = latest
    if not hasattr(step, "__index__"):
        return "not a step"
    try:
        version = int(state["version"])
        right = state_of(int(step), version)
        same = all(torch.equal(mine, its) for mine, its in zip(_tensors(state), _tensors(right), strict=True))
        return [int(step), version] if same and _rest(state) == _rest(right) else "mixed"
    except Exception:
        return "unreadable"


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


_STATES = ("a state of 16 KiB", "a state of 100 bytes")  # whose bytes must be on the disk before they are published


class InFolder(Check):
    """Probes in a temporary folder."""

    compared = False

    @classmethod
    def probe(cls, seed: int, Checkpoints: Any) -> Evidence:
        with tempfile.TemporaryDirectory(prefix="checkpoints-") as name:
            return cls.measured(Path(name), Checkpoints)

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        """Return the evidence, with files below `folder`."""
        raise NotImplementedError


class FindsTheNewest(InFolder):
    """A new manager returns the checkpoint with the highest step as it was saved, or None for an empty folder."""

    hint = (
        "`torch.save` and `torch.load` do the writing and reading of a dictionary.\n"
        "File names sort as text: step_9 comes after step_10. Compare numbers, or pad them with zeros."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        empty, steps = found(Checkpoints, folder / "not yet there" / "none"), []
        manager = Checkpoints(folder / "some", keep=2)
        for step in STEPS:
            manager.save(step, state_of(step))
            steps.append(found(Checkpoints, folder / "some"))
        # A run that was set back saves a lower step, whose files are the newest.
        manager.save(10, state_of(10))
        back = found(Checkpoints, folder / "some")
        own = Checkpoints(folder / "own", keep=2)
        state = state_of(1)
        entries = _entries(state)
        own.save(1, state)
        changed = _entries(state) != entries or not torch.equal(state["weights"], state_of(1)["weights"])
        state["weights"] += 1  # training goes on, in place
        before = look_at(folder / "own")
        # In a process of its own: what this one remembers is no checkpoint.
        (later,) = on_ranks(found, 1, Checkpoints, folder / "own", process_group=False)
        touched = look_at(folder / "own") != before
        return {"empty": empty, "steps": steps, "back": back, "later": later, "changed": changed, "touched": touched}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["empty"] != []:
            return f"in an empty folder `latest()` should return None; {said(seen['empty'])}."
        for step, got in zip(STEPS, seen["steps"], strict=True):
            if got != [step, 0]:
                return f"after the checkpoint of step {step}: {said(got)}."
        if seen["back"] != [STEPS[-1], 0]:
            return f"step 10 was saved after step {STEPS[-1]}, which is the highest: {said(seen['back'])}."
        if seen["changed"]:
            return "`save` changed the dictionary that it was given."
        if seen["later"] != [1, 0]:
            return f"the state was changed in place after `save`; in another process, {said(seen['later'])}."
        if seen["touched"]:
            return "`latest()` changed the folder; it should only read."
        return None


_SCENES = (  # name, keep, steps that were saved before, the step that is saved and its version
    ("first", 2, [], (5, 0)),
    ("next", 2, [5, 10], (15, 0)),
    ("next, keep=1", 1, [5], (10, 0)),
    ("same step again", 2, [5, 10], (10, 1)),
    ("same step again, keep=1", 1, [10], (10, 1)),
)


def _scene(name: str, step: int) -> str:
    """Say during which save something happened."""
    where = "the first save" if name == "first" else f"the save of step {step}"
    return where + " (again)" * ("again" in name) + ", with keep=1" * ("keep=1" in name)


class SurvivesKills(InFolder):
    """After a kill at any point during `save`, a reader finds the old checkpoint or the new one, whole."""

    after = ("finds_the_newest",)
    hint = (
        "Write under a name that `latest` ignores; os.replace(draft, name) then publishes it atomically.\n"
        "Delete old checkpoints after the new one is published, not before.\n"
        "A step may be saved a second time: the old file of that step must stay until the new one replaces it."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        runs = {}
        for name, keep, before, (step, version) in _SCENES:
            place, album = folder / name, folder / f"{name}, photographs"
            manager = Checkpoints(place, keep=keep)
            for old in before:
                manager.save(old, state_of(old))
            state = state_of(step, version)
            camera = photographed(place, album, lambda m=manager, step=step, state=state: m.save(step, state))
            runs[name] = {
                "allowed": [[before[-1], 0] if before else [], [step, version]],
                "found": [found(Checkpoints, photograph, keep) for photograph in camera.taken],
                "new": [step, version],
            }
        return {"runs": runs}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, run in seen["runs"].items():
            where = _scene(name, run["new"][0])
            for number, got in enumerate(run["found"], 1):
                if got not in run["allowed"]:
                    return (
                        f"killed during {where} (moment {number} of {len(run['found'])}): {said(got)}; it should find "
                        f"{_either(run['allowed'])}."
                    )
            if run["found"][-1] != run["new"]:
                return f"after {where} has returned: {_said_after(run['found'][-1], run['new'])}."
        return None


class SurvivesPowerFailures(InFolder):
    """A power failure at any moment leaves the old or the new checkpoint; after `save`, it leaves the new one."""

    after = ("finds_the_newest", "survives_kills")
    hint = (
        "A rename changes the directory. Until the directory is synced, a power failure may undo the rename and keep a "
        "later deletion.\n"
        "fd = os.open(folder, os.O_RDONLY); os.fsync(fd); os.close(fd): after os.replace, before you delete anything."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        runs = {}
        for name, keep, before, (step, version) in _SCENES:
            place, album = folder / name, folder / f"{name}, photographs"
            manager = Checkpoints(place, keep=keep)
            for old in before:
                manager.save(old, state_of(old))
            state = state_of(step, version)
            camera = photographed(place, album, lambda m=manager, step=step, state=state: m.save(step, state))
            left = [found(Checkpoints, camera.after_power_failure(i), keep) for i in range(len(camera.taken))]
            runs[name] = {"allowed": [[before[-1], 0] if before else [], [step, version]], "found": left}
        return {"runs": runs, "lost": cls._lost_folders(folder / "new", Checkpoints)}

    @staticmethod
    def _lost_folders(top: Path, Checkpoints: Any) -> list[str]:
        """Return the names of folders in `top` that a power failure may lose after a first save two levels below."""
        top.mkdir()
        with SyncedFiles(top) as synced:
            Checkpoints(top / "runs" / "7", keep=2).save(5, state_of(5))
            return synced.lost_names(top, {"runs": None})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, run in seen["runs"].items():
            where = _scene(name, run["allowed"][1][0])
            for number, got in enumerate(run["found"], 1):
                if got not in run["allowed"]:
                    return (
                        f"power fails during {where} (moment {number} of {len(run['found'])}): {said(got)}; it should "
                        f"find {_either(run['allowed'])}. Was the directory synced after the rename, and before "
                        "anything was deleted?"
                    )
            if run["found"][-1] != run["allowed"][1]:
                return (
                    f"power fails just after {where} has returned: {_said_after(run['found'][-1], run['allowed'][1])}. "
                    "Sync the directory, too."
                )
        if seen["lost"]:
            return (
                "power fails after the first save: the folders that Checkpoints created are gone. Sync the "
                "folder above each of them."
            )
        return None


class OnDiskFirst(InFolder):
    """All bytes are on disk (os.fsync) before the checkpoint is published."""

    after = ("finds_the_newest",)
    hint = (
        "Written data may still be in the memory of the operating system; a power failure loses it.\n"
        "file.flush(), then os.fsync(file.fileno()), then os.replace. Without flush(), Python may still buffer bytes."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        saves = []
        for name, version in zip(_STATES, (0, SMALL), strict=True):
            place = folder / name / "run"
            manager = Checkpoints(place, keep=2)
            manager.save(5, state_of(5, version))
            state = state_of(10, version)
            camera = photographed(place, folder / name / "photographs", lambda m=manager, s=state: m.save(10, s))
            published = next((n for n, p in enumerate(camera.taken) if found(Checkpoints, p) == [10, version]), None)
            saves.append(None if published is None else _not_on_disk(camera, published))
        return {"unsynced": saves}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, missing in zip(_STATES, seen["unsynced"], strict=True):
            if missing is None:
                return f"{name}: while `save` runs and after it, a new manager does not find the new checkpoint."
            if missing:
                return (
                    f"{name}: the checkpoint is published, but not all of its {missing} bytes are on the disk. Was "
                    "os.fsync called for this file after all of it had been written and flushed?"
                )
        return None


def _not_on_disk(camera: Photographs, number: int) -> int:
    """Return the bytes of the files that `save` has written by then and that are not on the disk as they are."""
    look, on_disk = camera.looks[number], camera.on_disk[number]
    before = {file for file in camera.before.values() if file}
    return sum(file[0] for path, file in look.items() if file and file not in before and path not in on_disk)


class PassesOverDamage(InFolder):
    """If the newest checkpoint is damaged or gone, the one before it is found, without an error."""

    after = ("finds_the_newest",)
    hint = (
        "The right size, or a file that loads, proves nothing: a bit may have changed. Store a checksum, "
        "hashlib.sha256(data), beside the data, and compare it when you read.\n"
        "`latest` tries the newest first, then the next older one, until a checksum matches. It deletes nothing."
    )
    damages = (
        "half of it gone",
        "the last byte gone",
        "emptied",
        "all of it zeros",
        "a bit changed",
        "a bit of the tensor changed",
        "two pieces of the tensor swapped",
        "deleted",
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        place = folder / "run"
        manager = Checkpoints(place, keep=3)
        manager.save(5, state_of(5))
        before = look_at(place)
        manager.save(10, state_of(10))
        changed = [path for path, file in look_at(place).items() if file and before.get(path) != file]
        results = []
        for damage in cls.damages:
            for path in changed:
                for data in _damaged((place / path).read_bytes(), damage):
                    copy = Path(shutil.copytree(place, folder / "copies" / str(len(results))))
                    (copy / path).unlink() if data is None else (copy / path).write_bytes(data)
                    results.append([damage, found(Checkpoints, copy, 3)])
        for path in changed:  # under the manager that has saved it, which may remember it
            (place / path).write_bytes((place / path).read_bytes()[:-1])
        before = look_at(place)
        own = found(lambda *_, **__: manager, place)
        return {"results": results, "own": own, "touched": look_at(place) != before}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["results"]:
            return "`save` left no file in its folder."
        for damage, got in seen["results"]:
            if damage in PassesOverDamage.damages and got not in ([5, 0], [10, 0]):
                return (
                    f"a damaged file of the newest checkpoint, step 10 ({damage}): {said(got)}. Step 5 is whole "
                    "and should be found."
                )
        if seen["own"] != [5, 0]:
            return (
                "the newest checkpoint, step 10, was damaged after it was saved, and `latest()` of the same manager "
                "should find step 5. It should read the files, not remember what it saved."
            )
        if seen["touched"]:
            return "`latest()` changed the folder when it met a damaged checkpoint; it should only read."
        return None


class BoundedDisk(InFolder):
    """At most `keep` checkpoints remain, those with the highest steps, and one more while the new one is written."""

    after = ("finds_the_newest",)
    hint = (
        "After the new one is published, delete all but the `keep` with the highest steps.\n"
        "The one just saved need not be among them: a run that was set back saves lower steps."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        one = Checkpoints(folder / "one", keep=1)
        one.save(1, state_of(1))
        size, rows = bytes_in(folder / "one"), []
        for keep in (1, 2, 4):
            place = folder / f"keep {keep}"
            manager = Checkpoints(place, keep=keep)
            for step in range(1, 8):
                manager.save(step, state_of(step))
            after = bytes_in(place) / size
            camera = photographed(place, folder / f"photographs {keep}", lambda m=manager: m.save(8, state_of(8)))
            rows.append([keep, after, max(bytes_in(photograph) for photograph in camera.taken) / size])
        place, left = folder / "set back", []
        for step in SET_BACK:
            Checkpoints(place, keep=2).save(step, state_of(step))
            left.append(_all_found(Checkpoints, place, folder / f"copy {step}"))
        return {"rows": rows, "left": left}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for keep, after, during in seen["rows"]:
            if not after <= keep + 0.5:
                holds = f"the folder holds {after:.1f} times the bytes of a checkpoint"
                return f"keep={keep}: after seven saves {holds}; at most {keep} should be left."
            if not after >= keep - 0.5:
                return (
                    f"keep={keep}: after seven saves the folder holds only {after:.1f} times the bytes of a "
                    f"checkpoint; {keep} should be left."
                )
            if not during <= keep + 1.5:
                return (
                    f"keep={keep}: during a save the folder holds {during:.1f} times the bytes of a checkpoint; "
                    f"there is room for {keep}, and for the new one."
                )
        for number, got in enumerate(seen["left"], 1):
            right = sorted(SET_BACK[:number], reverse=True)[:2]
            if got != right:
                saved = ", ".join(map(str, SET_BACK[:number]))
                return (
                    f"keep=2, steps saved in this order: {saved}. `latest()` finds {_one_by_one(got)}; it should find "
                    f"{_one_by_one(right)}."
                )
        return None


class NoLeftovers(InFolder):
    """The next save removes what killed saves left behind."""

    after = ("finds_the_newest",)
    hint = "Give all drafts the same name, or delete every file that is not one of the checkpoints you keep."

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        place = folder / "run"
        Checkpoints(place, keep=1).save(1, state_of(1))
        size, files = bytes_in(place), len(look_at(place))
        for step in range(2, 8):  # each is killed where it has left most behind, as a process of its own
            manager, album = Checkpoints(place, keep=1), folder / f"photographs {step}"
            with patch("os.getpid", return_value=os.getpid() + step):
                camera = photographed(place, album, lambda m=manager, step=step: m.save(step, state_of(step)))
            fullest = max(camera.taken, key=bytes_in)
            shutil.rmtree(place)
            shutil.copytree(fullest, place)
        before = look_at(place)
        found(Checkpoints, place, 1)
        touched = look_at(place) != before
        Checkpoints(place, keep=1).save(100, state_of(100))
        more = len(look_at(place)) - files
        after = bytes_in(place) / size
        return {"after": after, "more": more, "found": found(Checkpoints, place, 1), "touched": touched}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        killed = "six processes were killed halfway through a save, then another saved: with keep=1 the folder holds"
        if not seen["after"] <= 1.5:
            return f"{killed} {seen['after']:.1f} times the bytes of one checkpoint. Remove what killed saves left."
        if not seen["more"] <= 0:
            return f"{killed} {seen['more']} files or folders more than after the first save."
        if seen["touched"]:
            return (
                "`latest()` changed what a killed save had left, which may be a save in progress; it should only read."
            )
        if seen["found"] != [100, 0]:
            return (
                f"six processes were killed halfway through a save, then another saved step 100: {said(seen['found'])}."
            )
        return None


class KeepsWholeOnes(InFolder):
    """`keep` counts whole checkpoints: a damaged one does not displace the last usable one."""

    after = ("finds_the_newest",)
    hint = "When you delete old ones, verify the newer ones as `latest` does: only whole ones count."

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        place = folder / "run"
        manager = Checkpoints(place, keep=2)
        for step in (5, 10):
            manager.save(step, state_of(step))
        _tear_what(place, lambda: manager.save(15, state_of(15)))  # leaves 10, and 15 damaged
        Checkpoints(place, keep=2).save(20, state_of(20))
        newest = found(Checkpoints, place)
        return {"newest": newest, "before": _without(Checkpoints, place, 20)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["newest"] != [20, 0]:
            return f"step 15 is damaged, and step 20 is whole: {said(seen['newest'])}; it should find step 20."
        if seen["before"] != [10, 0]:
            return (
                "keep=2: step 15 was damaged when step 20 was saved, so steps 20 and 10 are the two whole ones. "
                f"Then step 20 is damaged as well: {said(seen['before'])}; it should find step 10."
            )
        return None


def said(got: Any) -> str:
    """Say what a new manager has found."""
    if got == []:
        return "a new manager finds nothing"
    if got in ("mixed", "unreadable"):
        return "a new manager returns a state that is not what was saved"
    if got == "not a step":
        return "a new manager returns a step that is not an integer"
    if isinstance(got, str):
        return f"`latest()` raises {got}" if got.isidentifier() else "`latest()` raises an error"
    return f"a new manager finds step {got[0]}" + (" as it was saved the second time" if got[1:] == [1] else "")


def _said_after(got: Any, new: list[int]) -> str:
    """Say what a new manager has found after the save of `new` (step and version)."""
    first = got == [new[0], 0] and new[1] == 1
    return said(got) + (" as it was saved the first time" if first else "")


def _either(allowed: list[list[int]]) -> str:
    """Say what a new manager may find: nothing or the old checkpoint (step and version), or the new one."""
    old, new = allowed
    if not old:
        return f"nothing or step {new[0]}"
    return f"step {new[0]}, as it was before or as it is now" if old[0] == new[0] else f"step {old[0]} or {new[0]}"


def _one_by_one(steps: list[int]) -> str:
    """Say which steps are found, one after the other."""
    return ", and once that is damaged, ".join(f"step {step}" for step in steps) or "nothing"


def _entries(state: dict[Any, Any]) -> list[tuple[Any, int]]:
    """Return the keys of a state and of the dictionaries in it, each with the identity of its value."""
    inner = [entry for value in state.values() if isinstance(value, dict) for entry in _entries(value)]
    return [*((key, id(value)) for key, value in state.items()), *inner]


def _tensors(state: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return state["weights"], state["optimizer"]["state"][0]["exp_avg"]


def _rest(state: dict[str, Any]) -> list[Any]:
    """Return what a state holds beside its tensors."""
    return [sorted(state), state["step"], state["version"], sorted(state["optimizer"]), state["optimizer"]["lr"]]


def _damaged(data: bytes, damage: str) -> list[bytes | None]:
    """Return what may become of a file with these bytes; None where it is gone."""
    cut = {"half of it gone": len(data) // 2, "the last byte gone": len(data) - 1, "emptied": 0}
    tensor = data.find(state_of(10)["weights"].numpy().tobytes())
    if damage in cut:
        return [data[: cut[damage]]]
    if damage == "deleted":
        return [None]
    if damage == "all of it zeros":
        return [bytes(len(data))]
    if damage == "a bit changed":
        ends = [at for at in range(48) if at < len(data)]
        places = {*ends, *(len(data) - 1 - at for at in ends), *range(len(data) // 2, len(data), 1 + len(data) // 16)}
        return [_flipped(data, at) for at in sorted(places)]
    if tensor < 0:  # the weights are in another file
        return []
    if damage == "a bit of the tensor changed":
        return [_flipped(data, tensor + at) for at in range(257, 4 * NUMBERS, 1999)]
    exchanged, there, middle = bytearray(data), slice(tensor, tensor + 64), slice(tensor + 4096, tensor + 4160)
    exchanged[there], exchanged[middle] = exchanged[middle], exchanged[there]
    return [bytes(exchanged)]


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _tear_what(place: Path, save: Callable[[], Any]) -> None:
    """Run `save`, then cut the files that it has added or changed."""
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    save()
    for path in place.rglob("*"):
        if path.is_file() and before.get(path) != path.read_bytes():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _all_found(DataClass: Any, place: Path, copy: Path) -> list[int]:
    """Return the steps that are found in a copy of `place`, damaging the one that was found each time."""
    shutil.copytree(place, copy)
    steps, got = [], found(DataClass, copy)
    while isinstance(got, list) and got and got[0] not in steps:
        steps.append(got[0])
        got = _without(DataClass, copy, got[0])
    return steps


def _without(DataClass: Any, place: Path, step: int) -> list[int] | str:
    """Return what is found once the files that hold the checkpoint of `step` are damaged."""
    needle = state_of(step)["weights"].numpy().tobytes()[256:320]
    for path in [path for path in place.rglob("*") if path.is_file()]:
        data = path.read_bytes()
        if needle in data:
            path.write_bytes(data[: len(data) // 2])
    return found(DataClass, place)


MANAGER = (
    FindsTheNewest,
    SurvivesKills,
    SurvivesPowerFailures,
    OnDiskFirst,
    PassesOverDamage,
    BoundedDisk,
    NoLeftovers,
    KeepsWholeOnes,
)
