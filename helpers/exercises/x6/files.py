"""X6, part 1: saving and loading. Three checks of a point each, which judge one observation."""

from ..base import Check, Evidence
from .forms import FILE, LINK
from .observation import DAMAGED, FIRST, SECOND, SERIES, THIRD, observe

KEEP = {scene.name: scene.keep for scene in (*FIRST, *SECOND, *THIRD)}
STATES = {scene.name: scene.states for scene in (*FIRST, *SECOND, *THIRD)}
NEW = {name: states[-1] for name, states in STATES.items()}  # kind and step of the last save
# The newest intact step before the last save:
BEFORE = {"first": None, "one": 9, "two": 9, "small": 9, "damaged": 8, "unsynced": 10, "newest damaged": 9}
CASES = {  # what comes before the last save
    "killed": "a save of step 10 was killed, then step 11 is saved",
    "killed again": "two saves were killed, then step 12 is saved",
    "other keys": "a save of step 10 was killed, then step 11 is saved with a state that has other keys",
    "deleting": "a save of step 10 was killed while it deleted step 9, then step 11 is saved",
    "published": "a save of step 10 was killed after the new name, then step 11 is saved",
    "unsynced": "a save of step 10 was killed right after the rename, then step 11 is saved",
    "repeated": "a save of step 10 was killed right after the rename, then the same step 10 is saved again",
    "damaged stays": "steps 9 and 10 are there, step 10 is damaged, and step 11 is saved",
    "newest damaged": "a save of step 10 was killed after the new name, step 10 is damaged, and step 11 is saved",
    "damaged": "steps 9 and 10 are damaged, and step 9 is saved again",
    "set back": "steps 3, 4, 6, 7 and 8 are there, and step 5 is saved",
    "twice": "steps 8 and 9 are saved, then step 9 again with different values",
    "dated": "step 8 has the newest date, as after a copy, and step 11 is saved",
}
KILLED = ("killed", "killed again")  # where what a killed save has left takes room
DAMAGES = {
    "file": "A file of the newest checkpoint is missing",
    "half": "A file of the newest checkpoint has lost its second half",
    "end": "A file of the newest checkpoint has lost its last bytes",
    "nothing": "A file of the newest checkpoint is (almost) empty",
    "zeros": "All bytes of a file of the newest checkpoint are zeros",
    "bytes": "200 bytes of a file of the newest checkpoint have changed",
    "byte": "One byte of the newest checkpoint, which has 1.6 MB, has changed",
    "block": "Part of the newest checkpoint has been zeroed, or two parts swapped",
    "single": "One byte of the newest checkpoint has changed",
    "two newest": "In the two newest checkpoints, a file has lost its second half",
    "four newest": "In the four newest of five checkpoints, a file has lost its second half",
    "bytes of all": "In all three checkpoints, bytes of the largest file have changed",
    "all": "In all three checkpoints, a file has lost its second half",
}


class OneObservation(Check):
    """Judges what all scenes have shown."""

    points = 1
    probe = staticmethod(observe)


def _found(found: Evidence) -> str:
    """Say what `load` did, in a few words."""
    if found.get("none"):
        return "load returned None"
    if "raised" in found:
        return f"load raised {found['raised']}"
    return f"load returned step {found['step']}" if "step" in found else f"load returned {found['type']}"


def _is(found: Evidence, kind: str, step: int, expected: Evidence) -> bool:
    return found.get("step") == step and found.get("digest") == expected["right"].get(f"{kind} {step}", "")


def _not_saved(seen: Evidence, *scenes: str) -> str | None:
    """Say in which of these scenes `save` raised, or left something else than a directory with a file per entry."""
    for name in scenes:
        scene = seen["scenes"][name]
        case = f" ({CASES[name]})" if name in CASES else ""
        if "raised" in scene:
            what = " that holds every kind of value" if name == "mixed" else ""
            return f"save raised {scene['raised']} for a state{what} of step {scene['step']}{case}: {scene['text']}"
        for step, form in scene["forms"]:
            if form is None:
                return f"step {step} was saved, but no entry of the folder is called step-{step}."
            if form in (FILE, LINK):
                form_of_all = "a directory with a file KEY.pt for each entry"
                return f"the checkpoint of step {step} is a {form}; it should be {form_of_all}."
            if missing := form["files_missing"]:
                return f"the directory of step {step} lacks {missing[0]}: each entry has a file KEY.pt."
            if beside := form["files_beside"]:
                return f"the directory of step {step} also holds {beside[0]}, but the state has no such entry{case}."
    return None


def _listed(steps: list[int]) -> str:
    known = [f"step {step}" for step in steps if step >= 0]
    others = len(steps) - len(known)
    return ", ".join([*known, *([f"{others} with other names"] if others else [])]) or "nothing"


class NewestComesBack(OneObservation):
    """The newest intact checkpoint comes back in another process, bit for bit; None where there is none."""

    hint = (
        "Compare numbers of steps, not names: step-9 comes after step-10 in the alphabet.\n"
        "Which files does `load` read, and how does it know the keys of the state?\n"
        "torch.load notices a missing end, but not always a changed byte. What can `save` write beside the entries?\n"
        "How does `load` notice that a file is missing, and what if the damaged file is the one that it trusts?"
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _not_saved(seen, "mixed", "series", "three", "dated", "twice")
        if wrong:
            return wrong
        if any(scene["changed"] for scene in seen["scenes"].values() if "changed" in scene):
            return "save changed the state that it was given."
        if any(scene.get("unclosed", 0) > 0 for scene in seen["scenes"].values()):
            return (
                "each save leaves more files open than there were before, and a process may have a few hundred. Close "
                "what you open, including what os.open returned."
            )
        for step, form in (pair for name in ("mixed", "three") for pair in seen["scenes"][name]["forms"]):
            if differ := form["files_differ"]:
                return f"torch.load of {differ[0]} in the directory of step {step} does not give that entry."
        loads = seen["loads"]
        newest = [(f"after saving step {step}", "small", step) for step in SERIES]
        newest.append(("step 8 has the newest date, as after a copy", "usual", 10))
        for found, (where, kind, step) in zip([*loads["series"], *loads["dates"]], newest, strict=True):
            if found.get("step") != step:
                return f"{where}: {_found(found)}; step {step} is the newest."
            if not _is(found, kind, step, expected):
                return f"{where}: load returned a state that differs from the saved one."
        if not _is(loads["saved twice"][0], "again", 9, expected):
            return f"step 9 was saved twice, with new values: {_found(loads['twice'][0])}; expected the later state."
        (mixed,) = loads["mixed"]
        for place, value in expected["print"].items():
            if mixed.get("print", {}).get(place) != value:
                return f"a state with every kind of value: {_found(mixed)}, and the state differs at {place}."
        if not _is(seen["scenes"]["three"]["later"], "usual", 10, expected):
            return (
                "the caller changed tensors of the state after save had returned, and load returns the changed values."
            )
        for case, words in {"empty": "an empty folder", "absent": "a folder that does not exist"}.items():
            (found,) = loads[case]
            if not found.get("none"):
                return f"{words}: {_found(found)}; it should return None."
        if any(found.get("touched") for group in loads.values() for found in group):
            return "load changed the folder, or made one that did not exist; load should only read."
        return _wrong_after_damage(seen, expected)


class SurvivesKillAndPowerCut(OneObservation):
    """A kill or a power failure during a save costs at most that checkpoint, and every step-N is complete."""

    hint = (
        "What is called step-N while files are written, and while they are deleted? Another program may copy it.\n"
        "os.replace renames a directory in one step, but not onto a directory that has files. What has to move first?\n"
        "close() hands bytes to the operating system, which writes them later: os.fsync waits for the disk.\n"
        "A name is an entry of its directory. Which directories have new names, and which of them must be on the disk"
        " before the next step?"
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _not_saved(seen, *BEFORE, "repeated", "set back", "twice") or _killed(seen, expected)
        return wrong or _written_elsewhere(seen) or _power_cut(seen)


def _killed(seen: Evidence, expected: Evidence) -> str | None:
    """Say at which moment of a save a kill would cost an older checkpoint, or leave a torn one."""
    for scene, old in BEFORE.items():
        wrong = None if "damaged" in scene else _torn_entry(seen, expected, scene)
        wrong = wrong or _lost(seen, expected, scene, old)
        if wrong:
            return wrong
    return _lost_when_set_back(seen, expected) or _torn_when_replaced(seen, expected)


def _written_elsewhere(seen: Evidence) -> str | None:
    """Say which file outside of the folder was opened to write, or stays there."""
    for scene in seen["scenes"].values():
        if scene.get("beside", 0) > 0:
            return "save leaves something beside the folder, in the directory above it. It should write only inside it."
        if scene.get("outside"):
            return (
                "save opened a file outside of the folder to write: that may be another disk, and too small. "
                "Where does tempfile put its files if it gets no dir?"
            )
    return None


def _torn_when_replaced(seen: Evidence, expected: Evidence) -> str | None:
    """Say what is incomplete, or lost, while a step that is there is saved again with other values."""
    for step, found in zip(seen["alone"]["twice"], seen["loads"]["alone twice"], strict=True):
        if not any(_is(found, kind, step, expected) for kind in ("small", "again")):
            return (
                f"while step 9 was saved again, with new values, an entry step-{step} was neither the old checkpoint "
                f"nor the new one ({_found(found)} from it alone)."
            )
    for steps, found in zip(seen["photographs"]["twice"], seen["loads"]["twice"], strict=True):
        if not any(_is(found, *state, expected) for state in (("small", 8), ("small", 9), ("again", 9))):
            return (
                f"killed while step 9 was saved again, with new values ({_listed(steps)} there): {_found(found)}; "
                "step 8, or one of the two steps 9, must come back."
            )
    return None


def _lost_when_set_back(seen: Evidence, expected: Evidence) -> str | None:
    """Say at which moment of saving a step before the newest one a kill would leave less than there was."""
    moments = list(zip(seen["photographs"]["set back"], seen["loads"]["set back"], strict=True))
    for number, (steps, found) in enumerate(moments, 1):
        step = 8 if 5 not in steps else found.get("step", -1)
        if not _is(found, "small", step, expected):
            return (
                f"killed at moment {number} of {len(moments)} of saving step 5 where steps 6 to 8 are there "
                f"({_listed(steps)} there): {_found(found)}. Delete a step only after step 5 has its name."
            )
    return None


def _power_cut(seen: Evidence) -> str | None:
    """Say what a power cut would lose that has its name, or whose name `save` relies on."""
    scenes = {"one": "a state of 50 KB", "small": "a state of 100 bytes", "first": "the first checkpoint"}
    for scene, words in scenes.items():
        new = [arrival for arrival in seen["scenes"][scene]["arrivals"] if arrival["step"] == 10]
        if not new:
            return f"{words}: no entry got the name step-10 when step 10 was saved."
        if not all(arrival["synced"] for arrival in new):
            return f"{words}: step-10 got its name before all of its bytes were on the disk."
        if not all(arrival["named"] for arrival in new):
            return (
                f"{words}: step-10 got its name before the names of its files were on the disk: they are entries of "
                "the checkpoint's own directory, which was not synced."
            )
        wrong = _lost_name(seen["scenes"][scene]["durable"], scene == "first")
        if wrong:
            return f"{words}: {wrong}"
    for scene in ("unsynced", "repeated"):
        if all(seen["scenes"][scene]["durable"]):
            continue
        return (
            f"{CASES[scene]}: step 9 was deleted while no newer name was on the disk, not even step-10, so a "
            "power failure may leave no checkpoint. Sync the folder before you delete, at the beginning, too."
        )
    return None


def _torn_entry(seen: Evidence, expected: Evidence, scene: str) -> str | None:
    """Say which entry called step-N was not complete at some moment, or came from elsewhere."""
    kind, new = NEW[scene]
    for step, found in zip(seen["alone"][scene], seen["loads"][f"alone {scene}"], strict=True):
        if not _is(found, kind, step, expected):
            return (
                f"while step {new} was saved, the folder had an entry step-{step if step >= 0 else '...'} that was not "
                f"complete ({_found(found)} from it alone)."
            )
    if not all(arrival["within"] for arrival in seen["scenes"][scene]["arrivals"]):
        return (
            f"step-{new} was written outside of the folder and moved into it. The folder may be on its own disk, "
            "and from another disk a rename fails or copies."
        )
    return None


def _lost(seen: Evidence, expected: Evidence, scene: str, old: int | None) -> str | None:
    """Say at which moment a kill would have cost more than the checkpoint that was being saved."""
    kind, new = NEW[scene]
    moments = list(zip(seen["photographs"][scene], seen["loads"][scene], strict=True))
    for number, (steps, found) in enumerate(moments, 1):
        if old is None and found.get("none"):
            continue
        where = f"killed at moment {number} of {len(moments)} of saving step {new} ({_listed(steps)} there)"
        if not any(_is(found, kind, step, expected) for step in (old, new) if step is not None):
            right = f"step {old} was intact, so it or step {new}" if old else f"None or step {new}"
            return f"{where}: {_found(found)}; {right} must come back."
        if "damaged" not in scene and found["step"] != max(steps):
            return f"{where}: {_found(found)}, though step {max(steps)} is there and intact."
    if not moments or not _is(moments[-1][1], kind, new, expected):
        return f"after saving step {new}: {_found(moments[-1][1]) if moments else 'the folder is not there'}."
    return None


def _wrong_after_damage(seen: Evidence, expected: Evidence) -> str | None:
    """Say what is loaded after a file is missing, was cut short, or has changed."""
    wrong = _not_saved(seen, "three", "small", "large")
    if wrong:
        return wrong
    for way, (scene, newest) in DAMAGED.items():
        kind, step = NEW[scene]
        left = STATES[scene][:-newest]
        if not seen["loads"][way]:
            return "step 10 was saved, but the folder has no entry step-10 that could be damaged."
        for found in seen["loads"][way]:
            if newest == 1 and _is(found, kind, step, expected):
                continue  # what was changed was no part of the state
            if not left and not found.get("none"):
                return f"{DAMAGES[way]}: {_found(found)}; nothing intact is left, so it should return None."
            if left and not _is(found, *left[-1], expected):
                never = ", with values that were never saved" if found.get("step") == step else ""
                return f"{DAMAGES[way]}: {_found(found)}{never}; step {left[-1][1]} is the newest intact one."
    return None


def _lost_name(moments: list[list[int]], first: bool) -> str | None:
    """Say at which moment a power cut would leave neither step 9 nor step 10; later, step 10 must be there."""
    if not first and not all({9, 10} & set(steps) for steps in moments):
        return (
            "step 9 was deleted while the name step-10 was not yet on the disk, so a power failure may leave neither. "
            "Sync the folder after the rename, and before you delete."
        )
    if 10 not in moments[-1]:
        return "save has returned, but a power failure may still lose the name step-10: the folder was not synced."
    return None


class DiskStaysBounded(OneObservation):
    """After a save the newest `keep` are left and nothing else; while it runs, at most one more."""

    hint = (
        "What may a killed save have left in the folder, and when is there room for it?\n"
        "The step that was saved need not be the largest number in the folder. Which ones are left after it?"
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        scenes = [name for name in KEEP if name not in ("mixed", "large")]
        wrong = _not_saved(seen, *scenes)
        if wrong:
            return wrong
        for name in scenes:
            scene, keep = seen["scenes"][name], KEEP[name]
            case = f"keep={keep}" + (f", {CASES[name]}" if name in CASES else "")
            for left, right in zip(scene["left"], expected["scenes"][name]["left"], strict=True):
                if left != right:
                    return f"{case}: a save left {_listed(left)}; it should leave {_listed(right)}."
            most, one = max(scene["bytes"], default=0), seen["one"]
            room = keep + 2 if name in KILLED else keep + 1
            if NEW[name][0] == "usual" and most > (room + 0.2) * one + 2000:
                return f"{case}: the folder held {most / one:.1f} times the bytes of a checkpoint, not {room}."
        found = seen["loads"]["damaged"][-1]
        if not _is(found, "usual", 9, expected):
            return f"Step 9 was damaged and has been saved again: {_found(found)}; expected the new step 9."
        return None


FILES = (
    NewestComesBack,
    SurvivesKillAndPowerCut,
    DiskStaysBounded,
)
