"""Checks of the checkpoint manager: killed at any moment, read after any damage, on a disk that does not grow."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..base import Check, Evidence
from .photographs import Photographs

NUMBERS = 4096  # of the tensor in each state: 16 KiB


def state_of(step: int, version: int = 0) -> dict[str, Any]:
    """Return a state that can be told from that of other steps; `version` tells two of one step."""
    generator = torch.Generator().manual_seed(1000 * version + step)
    weights = torch.randn(NUMBERS, generator=generator)
    optimizer = {"state": {0: {"exp_avg": weights[:16].clone()}}, "lr": 0.1 * step}  # nested, as state dicts are
    return {"weights": weights, "step": step, "version": version, "optimizer": optimizer}


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
    try:
        version = int(state["version"])
        right = state_of(int(step), version)
        same = all(torch.equal(mine, its) for mine, its in zip(_tensors(state), _tensors(right), strict=True))
        same = same and state["optimizer"]["lr"] == right["optimizer"]["lr"]
        return [int(step), version] if same and state["step"] == step else "mixed"
    except Exception:
        return "unreadable"


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    """A new manager finds the checkpoint with the highest step, as it was saved; None in an empty folder."""

    hint = (
        "`torch.save` and `torch.load` do the writing and reading of a dictionary.\n"
        "File names sort as text: step_9 comes after step_10. Compare numbers, or write them with zeros in front."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        empty, steps = found(Checkpoints, folder / "none"), []
        manager = Checkpoints(folder / "some", keep=2)
        for step in (2, 9, 10, 100, 1000):
            manager.save(step, state_of(step))
            steps.append(found(Checkpoints, folder / "some"))
        own = Checkpoints(folder / "own", keep=2)
        state = state_of(1)
        own.save(1, state)
        state["weights"] += 1  # training goes on, in place
        return {"empty": empty, "steps": steps, "later": found(Checkpoints, folder / "own")}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["empty"] != []:
            return f"in an empty folder `latest()` should be None; {said(seen['empty'])}."
        for step, got in zip((2, 9, 10, 100, 1000), seen["steps"], strict=True):
            if got != [step, 0]:
                return f"after the checkpoint of step {step}: {said(got)}."
        if seen["later"] != [1, 0]:
            return f"the state was changed in place after `save`: {said(seen['later'])}."
        return None


class SurvivesKills(InFolder):
    """Killed at any moment of `save`, it leaves the old checkpoint or the new one to be found, whole."""

    hint = (
        "Write under a name that `latest` does not look at; os.replace(draft, name) then publishes it in one move.\n"
        "Delete old checkpoints after the new one has its name, not before.\n"
        "A step may be saved a second time: the old file of that step must stay until the new one takes its place."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        runs = {}
        for name, keep, before, (step, version) in (
            ("first", 2, [], (5, 0)),
            ("next", 2, [5, 10], (15, 0)),
            ("next, keep=1", 1, [5], (10, 0)),
            ("same step again", 2, [5, 10], (10, 1)),
            ("same step again, keep=1", 1, [10], (10, 1)),
        ):
            place, album = folder / name, folder / f"{name}, photographs"
            manager = Checkpoints(place, keep=keep)
            for old in before:
                manager.save(old, state_of(old))
            camera = Photographs(place, album)
            camera.during(
                lambda manager=manager, step=step, version=version: manager.save(step, state_of(step, version))
            )
            runs[name] = {
                "allowed": [[before[-1], 0] if before else [], [step, version]],
                "found": [found(Checkpoints, photograph, keep) for photograph in camera.taken],
                "new": [step, version],
            }
        return {"runs": runs}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, run in seen["runs"].items():
            where = {"first": "while the first checkpoint was saved"}.get(
                name, f"while the checkpoint of step {run['new'][0]} was saved"
            )
            where += " (again)" if "again" in name else ""
            where += ", with keep=1" if "keep=1" in name else ""
            for number, got in enumerate(run["found"], 1):
                if got not in run["allowed"]:
                    return f"killed {where} (at moment {number} of {len(run['found'])}): {said(got)}."
            if run["found"][-1] != run["new"]:
                return f"after `save` has returned ({where.partition('while ')[2]}): {said(run['found'][-1])}."
        return None


class OnDiskFirst(InFolder):
    """The bytes are on the disk (os.fsync) before the checkpoint gets its name."""

    hint = (
        "A file that has been written may still be in the memory of the operating system; a power failure loses it.\n"
        "file.flush(), then os.fsync(file.fileno()), then os.replace."
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        place = folder / "run"
        manager = Checkpoints(place, keep=2)
        manager.save(5, state_of(5))
        camera = Photographs(place, folder / "photographs")
        camera.during(lambda: manager.save(10, state_of(10)))
        published = [found(Checkpoints, photograph) == [10, 0] for photograph in camera.taken]
        return {"published": published, "fsyncs": camera.fsyncs}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first = next((n for n, there in zip(seen["fsyncs"], seen["published"], strict=True) if there), None)
        if first is None:
            return "the new checkpoint is never found."
        if first < 1:
            ever = seen["fsyncs"][-1]
            return "the checkpoint has its name before anything was written through to the disk" + (
                ": os.fsync comes too late." if ever else ": os.fsync is never called."
            )
        return None


class PassesOverDamage(InFolder):
    """If the newest is damaged (cut short, empty, a bit changed, gone), the one before is found, without an error."""

    hint = (
        "A size or a file that can be read is no proof: a bit may have changed. Store a checksum, "
        "hashlib.sha256(data), beside the data, and compare it when you read.\n"
        "`latest` tries the newest first, and goes on to the next older one until the checksum is right."
    )
    damages = (
        "half of it gone",
        "the last byte gone",
        "emptied",
        "a bit changed",
        "a bit of the tensor changed",
        "deleted",
    )

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        place = folder / "run"
        manager = Checkpoints(place, keep=3)
        manager.save(5, state_of(5))
        before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        manager.save(10, state_of(10))
        after = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        changed = [path for path, data in after.items() if before.get(path) != data]
        needle = state_of(10)["weights"].numpy().tobytes()[256:320]
        results = []
        for damage in cls.damages:
            for index, path in enumerate(changed):
                copy = folder / f"copy {damage} {index}"
                shutil.copytree(place, copy)
                if not _damage(copy / path.relative_to(place), damage, needle):
                    continue
                results.append([damage, found(Checkpoints, copy, 3)])
        return {"results": results}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["results"]:
            return "`save` has left no file in its folder."
        for damage, got in seen["results"]:
            if damage in PassesOverDamage.damages and got not in ([5, 0], [10, 0]):
                return f"a file of the newest checkpoint, {damage}: {said(got)}; the one before is whole."
        return None


class BoundedDisk(InFolder):
    """No more than `keep` checkpoints stay, and one more while the new one is written."""

    hint = "After the new one has its name, delete all but the newest `keep`."

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
            camera = Photographs(place, folder / f"photographs {keep}")
            camera.during(lambda manager=manager: manager.save(8, state_of(8)))
            rows.append([keep, after, max(bytes_in(photograph) for photograph in camera.taken) / size])
        return {"rows": rows}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for keep, after, during in seen["rows"]:
            if not after <= keep + 0.5:
                return f"keep={keep}: after seven saves the folder holds {after:.1f} times the bytes of a checkpoint."
            if not after >= keep - 0.5:
                return (
                    f"keep={keep}: after seven saves the folder holds only {after:.1f} times the bytes of a checkpoint."
                )
            if not during <= keep + 1.5:
                return f"keep={keep}: during a save the folder holds {during:.1f} times the bytes of a checkpoint."
        return None


class NoLeftovers(InFolder):
    """What killed saves have left behind goes with the next save."""

    hint = "Drafts: give them all the same name, or delete every file that is not one of the checkpoints you keep."

    @classmethod
    def measured(cls, folder: Path, Checkpoints: Any) -> Evidence:
        place = folder / "run"
        Checkpoints(place, keep=1).save(1, state_of(1))
        size = bytes_in(place)
        for step in range(2, 8):  # each is killed where it has left most behind
            album = folder / f"photographs {step}"
            camera = Photographs(place, album)
            manager = Checkpoints(place, keep=1)
            camera.during(lambda manager=manager, step=step: manager.save(step, state_of(step)))
            fullest = max(camera.taken, key=bytes_in)
            shutil.rmtree(place)
            shutil.copytree(fullest, place)
        killed = bytes_in(place) / size
        Checkpoints(place, keep=1).save(100, state_of(100))
        return {"killed": killed, "after": bytes_in(place) / size, "found": found(Checkpoints, place, 1)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["after"] <= 1.5:
            return (
                f"six saves were killed half-way, then one went through: with keep=1 the folder holds "
                f"{seen['after']:.1f} times the bytes of one checkpoint."
            )
        if seen["found"] != [100, 0]:
            return f"after six killed saves and one that went through: {said(seen['found'])}."
        return None


class KeepsWholeOnes(InFolder):
    """`keep` counts whole checkpoints: a damaged one does not push out the last one that is of use."""

    hint = "When you delete old ones, check the newer ones as `latest` does: only whole ones count."

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
            return f"after a damaged checkpoint of step 15 and a whole one of step 20: {said(seen['newest'])}."
        if seen["before"] != [10, 0]:
            return (
                "keep=2: step 15 was damaged when step 20 was saved, so steps 20 and 10 are the two whole ones. "
                f"Then step 20 is damaged, too: {said(seen['before'])}."
            )
        return None


def said(got: Any) -> str:
    """Say what a new manager has found."""
    if got == []:
        return "a new manager finds nothing"
    if got in ("mixed", "unreadable"):
        return "a new manager returns a state that is not what was saved"
    if isinstance(got, str):
        return f"`latest()` raises {got}" if got.isidentifier() else "`latest()` raises an error"
    return f"a new manager finds step {got[0]}" + (" as it was saved the second time" if got[1:] == [1] else "")


def _tensors(state: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return state["weights"], state["optimizer"]["state"][0]["exp_avg"]


def _damage(path: Path, damage: str, needle: bytes) -> bool:
    """Damage a file; return whether that is possible."""
    data = bytearray(path.read_bytes())
    if damage == "deleted":
        path.unlink()
        return True
    if damage == "a bit of the tensor changed":
        where = data.find(needle)
        if where < 0:
            return False
        data[where + 1] ^= 1
    elif damage == "a bit changed":
        data[len(data) // 2] ^= 16
    else:
        data = data[: {"half of it gone": len(data) // 2, "the last byte gone": len(data) - 1, "emptied": 0}[damage]]
    path.write_bytes(bytes(data))
    return True


def _tear_what(place: Path, save: Callable[[], Any]) -> None:
    """Run `save`, then cut the files that it has added or changed."""
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    save()
    for path in place.rglob("*"):
        if path.is_file() and before.get(path) != path.read_bytes():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


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
    OnDiskFirst,
    PassesOverDamage,
    BoundedDisk,
    NoLeftovers,
    KeepsWholeOnes,
)
