"""X6, part 1: saving and loading. Five checks of a point each, with processes that die while they save."""

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..base import Check, Evidence
from .folder_watch import CAN_STOP_WRITES, FolderWatch, bytes_in, die_at_byte, files_in
from .processes import packed, run_or_die, unpacked
from .states import hash_of, make_state, print_of

Answer = Callable[..., Any]
ENTRY = re.compile(r"step-0*(\d+)(?!\d)")
MOST_MOMENTS = 14  # of a save, at which it is killed: the first and the last ones when there are more


@dataclass(frozen=True)
class Saving:
    """What a process saves: these steps, one after the other.

    It dies before the call number `die_before`; with `die_at`, in a write after it, when a file has so many bytes.
    """

    seed: int
    steps: tuple[int, ...]
    keep: int
    die_before: int | None = None
    die_at: int = 0


def digest(state: Any) -> str:
    """Return one hash of a whole state."""
    return hash_of(*sorted(print_of(state).items()))


def _save(answers: bytes, folder: Path, saving: Saving) -> Evidence:
    """In a process of its own: save."""
    torch.set_num_threads(1)
    watch = FolderWatch(folder, saving.die_before, saving.die_at)
    save, _ = unpacked(answers)
    if saving.die_at and saving.die_before is None:
        die_at_byte(saving.die_at)
    left, changed = [], False
    for step in saving.steps:
        state = make_state(saving.seed, step)
        before = digest(state)
        with watch:
            save(folder, step, state, saving.keep)
        left.append(sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else [])
        changed |= digest(state) != before
    return {"moments": watch.moments, "most": watch.most, "flushed": watch.published, "left": left, "changed": changed}


def _load(answers: bytes, folders: list[Path], each: bool) -> list[Evidence]:
    """In a process of its own: load from each folder."""
    torch.set_num_threads(1)
    _, load = unpacked(answers)
    return [_loaded(load, folder, each) for folder in folders]


def _loaded(load: Answer, folder: Path, each: bool) -> Evidence:
    try:
        found = load(folder)
    except NotImplementedError:
        raise
    except Exception as error:
        return {"raised": type(error).__name__}
    if found is None:
        return {"none": True}
    if not (isinstance(found, tuple | list) and len(found) == 2 and isinstance(found[0], int)):
        return {"type": type(found).__name__}
    seen = {"step": int(found[0]), "digest": digest(found[1])}
    return seen | ({"print": print_of(found[1])} if each else {})


def save_in(answers: bytes, folder: Path, saving: Saving) -> Evidence | None:
    """Save in a new process; None when it was killed."""
    run = run_or_die(_save, 1, answers, folder, saving, process_group=False)
    return run and run[0]


def load_from(answers: bytes, folders: list[Path], each: bool = False) -> list[Evidence]:
    """Load from each folder, in one new process; `each`: with a print of each value."""
    run = run_or_die(_load, 1, answers, folders, each, process_group=False)
    return run[0] if run else [{"raised": "SIGKILL"} for _ in folders]


def entries_of(folder: Path) -> list[Path]:
    """Return what is published in `folder`: all entries whose name begins with "step-"."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def _right(seed: int, *steps: int) -> dict[str, str]:
    return {str(step): digest(make_state(seed, step)) for step in steps}


def _short(found: Evidence) -> str:
    """Say what `load` did, in a few words."""
    if found.get("none"):
        return "load returned None"
    if "raised" in found:
        return f"load raised {found['raised']}"
    return f"load returned step {found['step']}" if "step" in found else f"load returned {found['type']}"


def _is(found: Evidence, step: int, right: dict[str, str]) -> bool:
    return found.get("step") == step and found.get("digest") == right[str(step)]


# -- comes back ---------------------------------------------------------------------------------------------


class NewestComesBack(Check):
    """What was saved with the most steps comes back in another process, bit for bit; None where there is nothing."""

    points = 1
    hint = (
        "Compare numbers of steps, not names: step-9 comes after step-10 in the alphabet.\n"
        "torch.save takes the whole dictionary; torch.load(..., map_location='cpu') gives it back."
    )

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer) -> Evidence:
        answers = packed(save, load)
        with tempfile.TemporaryDirectory() as scratch:
            there, dated, empty = (Path(scratch) / name for name in ("runs/there", "dated", "empty"))
            empty.mkdir()
            saved = save_in(answers, there, Saving(seed, (8, 9, 10), 3))
            if there.is_dir():
                shutil.copytree(there, dated)
                for n, entry in enumerate(sorted(dated.iterdir(), key=steps_of)):  # as a copy may leave them
                    for file in (entry, *files_in(entry)):
                        os.utime(file, (1e9 - 1000 * n, 1e9 - 1000 * n))
            absent = Path(scratch) / "absent"
            found = load_from(answers, [there, dated, empty, absent], each=True)
            names = [entry.name for entry in entries_of(there)]
        return {
            "changed": bool(saved and saved["changed"]),
            "names": names,
            "found": dict(zip(("there", "dated", "empty", "absent"), found, strict=True)),
            "right": print_of(make_state(seed, 10)),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["changed"]:
            return "save changed the state that it was given."
        steps = sorted(int(m[1]) for name in seen["names"] if (m := ENTRY.match(name)))
        if steps != [8, 9, 10]:
            return f"After saving steps 8, 9 and 10 with keep=3, {len(seen['names'])} entries are named step-N."
        where = {"there": "after saving steps 8, 9 and 10", "dated": "when step 8 has the newest date, as after a copy"}
        for case, words in where.items():
            found = seen["found"][case]
            if found.get("step") != 10:
                return f"{words}: {_short(found)}; step 10 is the newest."
            for place, value in expected["right"].items():
                if found["print"].get(place) != value:
                    return f"{words}: the state differs from the one saved at {place}."
        for case, words in {"empty": "an empty folder", "absent": "a folder that does not exist"}.items():
            if not seen["found"][case].get("none"):
                return f"{words}: {_short(seen['found'][case])}; None is right."
        return None


def steps_of(entry: Path) -> int:
    """Return the number of steps in the name of `entry`; -1 where there is none."""
    match = ENTRY.match(entry.name)
    return int(match[1]) if match else -1


# -- killed -------------------------------------------------------------------------------------------------


def _moments(answers: bytes, scratch: Path, seed: int, keep: int) -> list[tuple[str, Saving]]:
    """Return the ways in which a save of step 10 is killed: before each call that changes files, and in a write."""
    whole = scratch / "whole"
    save_in(answers, whole, Saving(seed, (9,), keep))
    done = save_in(answers, whole, Saving(seed, (10,), keep))
    calls = done["moments"] if done else []
    chosen = range(len(calls))
    if len(calls) > MOST_MOMENTS:
        chosen = [*chosen[: MOST_MOMENTS // 2], *chosen[-MOST_MOMENTS // 2 :]]
    kills = [(calls[i], Saving(seed, (10,), keep, die_before=i)) for i in chosen]
    largest = max((file.stat().st_size for file in files_in(whole)), default=0)
    if CAN_STOP_WRITES and largest > 16:
        sizes = (largest // 4, largest * 3 // 4, largest - 8)
        kills += [("write", Saving(seed, (10,), keep, die_at=size)) for size in sizes]
        opened = [i for i in chosen if calls[i] == "open"][1:]  # files after the first one
        kills += [("write", Saving(seed, (10,), keep, i, largest // 2)) for i in opened]
    return kills


class SurvivesAKillWhileSaving(Check):
    """Killed at any moment of a save, the newest whole one is found, and every name step-N stands for a whole one."""

    points = 1
    hint = (
        "Write under a name that does not begin with step-, and give it its name when it is complete.\n"
        "os.replace(temporary, final) changes the name in one go. Delete the older ones after that, not before."
    )

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer) -> Evidence:
        answers = packed(save, load)
        seen = []
        with tempfile.TemporaryDirectory() as name:
            scratch = Path(name)
            before = scratch / "before"
            save_in(answers, before, Saving(seed, (9,), 1))
            kills = [(call, before, saving) for call, saving in _moments(answers, scratch, seed, keep=1)]
            kills += [(call, scratch / "nothing", saving) for call, _, saving in kills[-1:]]
            folders: list[Path] = []
            for n, (call, begin, saving) in enumerate(kills):
                folder = scratch / f"killed-{n}" / "all"
                folder.parent.mkdir()
                if begin.is_dir():
                    shutil.copytree(begin, folder)
                killed = save_in(answers, folder, saving) is None
                alone = [_copied_alone(entry, scratch / f"killed-{n}") for entry in entries_of(folder)]
                seen.append({"call": call, "killed": killed, "before": begin == before, "names": len(alone)})
                seen[-1] |= {"steps": [steps_of(entry) for entry in entries_of(folder)]}
                folders += [folder, *alone]
            found = iter(load_from(answers, folders))
            for kill in seen:
                kill |= {"found": next(found), "alone": [next(found) for _ in range(kill["names"])]}
        return {"kills": seen, "right": _right(seed, 9, 10)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not any(kill["killed"] for kill in seen["kills"]):
            return "save made no call that changes the folder: nothing was written there."
        for kill in seen["kills"]:
            where = "Killed in the middle of a write" if kill["call"] == "write" else f"Killed before {kill['call']}"
            for step, found in zip(kill["steps"], kill["alone"], strict=True):
                if step not in (9, 10) or not _is(found, step, expected["right"]):
                    name = f"step-{step}" if step >= 0 else "step-..."
                    return f"{where}: the folder has an entry {name} that is not whole ({_short(found)} from it alone)."
            found = kill["found"]
            if not kill["before"]:
                if not found.get("none") and not _is(found, 10, expected["right"]):
                    return f"{where} of the very first save: {_short(found)}; None or step 10 is right."
            elif not any(_is(found, step, expected["right"]) for step in (9, 10)):
                return f"{where}: {_short(found)}; step 9 was whole, so it or step 10 must come back."
            elif found["step"] != max(kill["steps"]):
                return f"{where}: {_short(found)}, though step {max(kill['steps'])} is there and whole."
        return None


def _copied_alone(entry: Path, scratch: Path) -> Path:
    """Return a folder with a copy of this entry, and nothing else."""
    folder = scratch / f"alone {entry.name}"
    folder.mkdir()
    if entry.is_dir():
        shutil.copytree(entry, folder / entry.name)
    else:
        shutil.copy(entry, folder)
    return folder


# -- damaged ------------------------------------------------------------------------------------------------


def _cut(file: Path, size: int) -> None:
    with file.open("rb+") as stream:
        stream.truncate(size)


def _flip(file: Path, at: int, n: int) -> None:
    data = bytearray(file.read_bytes())
    for i in range(at, min(at + n, len(data))):
        data[i] ^= 0xFF
    file.write_bytes(bytes(data))


DAMAGES: dict[str, Callable[[Path, int], None]] = {
    "half": lambda file, size: _cut(file, size // 2),
    "end": lambda file, size: _cut(file, size - 3),
    "nothing": lambda file, size: _cut(file, 0),
    "bytes": lambda file, size: _flip(file, size // 2, 200),
    "byte": lambda file, size: _flip(file, size // 3, 1),
}
WORDS = {
    "half": "The second half is missing",
    "end": "The last bytes are missing",
    "nothing": "Everything is missing",
    "bytes": "200 bytes have changed",
    "byte": "One byte has changed",
}


class DamagedOnesArePassedOver(Check):
    """A checkpoint that was cut short, or in which bytes have changed, is passed over for the next older whole one."""

    points = 1
    hint = (
        "torch.load notices a missing end, and not always a changed byte. Keep a checksum of the bytes with them.\n"
        "hashlib.sha256(data).digest() + data in the file; compare when loading, and go on to the next older one."
    )

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer) -> Evidence:
        answers = packed(save, load)
        with tempfile.TemporaryDirectory() as name:
            whole, folders = Path(name) / "whole", []
            save_in(answers, whole, Saving(seed, (8, 9, 10), 3))
            cases = [(damage, 1) for damage in DAMAGES] + [("half", 2), ("bytes", 3)]
            for n, (damage, newest) in enumerate(cases):
                folder = Path(name) / str(n)
                if whole.is_dir():
                    shutil.copytree(whole, folder)
                for entry in sorted(entries_of(folder), key=steps_of)[-newest:]:
                    file = max(files_in(entry), key=lambda f: f.stat().st_size, default=None)
                    if file:
                        DAMAGES[damage](file, file.stat().st_size)
                folders.append(folder)
            found = load_from(answers, [whole, *folders])
        return {
            "whole": found[0],
            "cases": [{"damage": d, "newest": n, "found": f} for (d, n), f in zip(cases, found[1:], strict=True)],
            "right": _right(seed, 8, 9, 10),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not _is(seen["whole"], 10, expected["right"]):
            return f"Nothing is damaged yet: {_short(seen['whole'])}; step 10, as it was saved, is right."
        for case, right in zip(seen["cases"], expected["cases"], strict=True):
            found, newest = case["found"], right["newest"]
            if any(_is(found, step, expected["right"]) for step in range(11 - newest, 11)):
                continue  # what was changed was no part of the state
            where = f"{WORDS[right['damage']]} in the {'newest' if newest == 1 else f'{newest} newest'}"
            if newest == 3 and not found.get("none"):
                return f"{where}: {_short(found)}; nothing whole is left, so None is right."
            if newest < 3 and not _is(found, 10 - newest, expected["right"]):
                what = _short(found)
                if found.get("step", 0) > 10 - newest:
                    what += ", with values that nobody saved"
                return f"{where}: {what}; step {10 - newest} is the newest whole one."
        return None


# -- flushed ------------------------------------------------------------------------------------------------


class FlushedBeforePublished(Check):
    """The bytes are on the disk before the name is: a power cut leaves no name step-N with nothing behind it."""

    points = 1
    hint = (
        "close() hands bytes to the operating system, which writes them when it likes: os.fsync waits for the disk.\n"
        "file.flush(), then os.fsync(file.fileno()), then os.replace."
    )

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer) -> Evidence:
        with tempfile.TemporaryDirectory() as name:
            saved = save_in(packed(save, load), Path(name) / "run", Saving(seed, (9, 10), 2))
        return {"flushed": [flushed for _, flushed in sorted((saved or {}).get("flushed", {}).items())]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if len(seen["flushed"]) != len(expected["flushed"]):
            return f"{len(seen['flushed'])} entries named step-N appeared in two saves; one for each save is right."
        if not all(seen["flushed"]):
            return "An entry got its name step-N while bytes of it had not been flushed to the disk."
        return None


# -- bounded ------------------------------------------------------------------------------------------------


class DiskStaysBounded(Check):
    """After a save the newest `keep` are left and nothing else; during it, no more than one beside them."""

    points = 1
    hint = (
        "What an earlier save left when it was killed lies there, too: remove it before you write.\n"
        "After publishing, keep this step and the keep - 1 newest below it; remove every other entry of the folder."
    )

    @staticmethod
    def probe(seed: int, save: Answer, load: Answer) -> Evidence:
        answers = packed(save, load)
        with tempfile.TemporaryDirectory() as name:
            run, three, back = (Path(name) / folder for folder in ("run", "three", "back"))
            saves = [save_in(answers, run, Saving(seed, (8, 9, 10, 11), 1))]
            saves.append(save_in(answers, three, Saving(seed, (8, 9, 10, 11), 3)))
            one = max((bytes_in(entry) for entry in entries_of(run)), default=0)
            # killed twice in a row in the middle of a write, then a whole save
            if CAN_STOP_WRITES and one > 16:
                for step in (12, 13):
                    save_in(answers, run, Saving(seed, (step,), 2, die_at=one * 3 // 4))
            saves.append(save_in(answers, run, Saving(seed, (14, 15), 2)))
            # the newest two are damaged, so the run goes on from an older one
            save_in(answers, back, Saving(seed, (8, 9, 10), 3))
            for entry in sorted(entries_of(back), key=steps_of)[1:]:
                for file in files_in(entry):
                    DAMAGES["half"](file, file.stat().st_size)
            again = save_in(answers, back, Saving(seed, (9,), 2))
            (found,) = load_from(answers, [back])
        return {
            "saves": [{"left": [_steps(names) for names in s["left"]], "most": s["most"]} for s in saves if s],
            "one": one,
            "again": _steps(again["left"][0]) if again else [],
            "found": found,
            "right": _right(seed, 9),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        cases = (("keep=1", 1), ("keep=3", 3), ("keep=2, after two saves that were killed", 2))
        for (case, keep), got, want in zip(cases, seen["saves"], expected["saves"], strict=True):
            for left, right in zip(got["left"], want["left"], strict=True):
                if left != right:
                    return f"{case}: a save left {_listed(left)}; {_listed(right)} is right."
            if got["most"] > (keep + 1.2) * seen["one"] + 2000:
                return (
                    f"{case}: the folder held {got['most'] / seen['one']:.1f} times the bytes of a checkpoint; "
                    f"{keep + 1} times is the most."
                )
        if seen["again"] != expected["again"]:
            return (
                f"Steps 9 and 10 are damaged, and step 9 is saved again with keep=2: {_listed(seen['again'])} is left; "
                f"{_listed(expected['again'])} is right."
            )
        if not _is(seen["found"], 9, expected["right"]):
            return f"Step 9 was damaged and has been saved again: {_short(seen['found'])}; the new step 9 is right."
        return None


def _steps(names: list[str]) -> list[int]:
    """Return the steps of the entries called `names`; -1 for a name that is not step-N."""
    return sorted(int(m[1]) if (m := ENTRY.match(name)) else -1 for name in names)


def _listed(steps: list[int]) -> str:
    known = [f"step {step}" for step in steps if step >= 0]
    others = len(steps) - len(known)
    return ", ".join([*known, *([f"{others} with other names"] if others else [])]) or "nothing"


FILES = (
    NewestComesBack,
    SurvivesAKillWhileSaving,
    DamagedOnesArePassedOver,
    FlushedBeforePublished,
    DiskStaysBounded,
)
