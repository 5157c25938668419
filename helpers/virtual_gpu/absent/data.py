"""`datasets.load_dataset` of a data set that is not on this machine: rows are made up, columns are called as there."""

import functools
import re
import sys
from typing import Any

from ..patches import Patches
from ..waits import Waits
from . import columns
from .asked import MADE_UP, layout_for, rows_of

ROWS, FEW = 1024, 128  # of the training split, and of the others
_SHARDS, _AGAIN = 32, 100  # files of a data set that is streamed, and how often its training rows come


def install(patches: Patches, waits: Waits) -> None:
    """Teach datasets as soon as it is imported."""
    patches.after_import("datasets.load", lambda p, module: _load(p, module, waits))
    patches.after_import("datasets.arrow_dataset", lambda p, module: _select(p, module.Dataset))


def _load(patches: Patches, module: Any, waits: Waits) -> None:
    base, from_disk = module.load_dataset, module.load_from_disk

    @functools.wraps(base)
    def load_dataset(path: str, name: str | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(path, name, *args, **kwargs)
        except Exception:
            split, streams = kwargs.get("split"), kwargs.get("streaming", False)
            title = _title(path, name, kwargs.get("data_files"))
            waits.leave_out("data set", f"{title}: {rows_of(title)}")
            return made_up(title, split, streams)

    @functools.wraps(from_disk)
    def load_from_disk(path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return from_disk(path, *args, **kwargs)
        except OSError:
            waits.leave_out("data set", f"{path}: {rows_of(str(path))}")
            return made_up(str(path), None, False)

    made = {"load_dataset": load_dataset, "load_from_disk": load_from_disk}
    patches.put_all(module, made)
    package = sys.modules.get("datasets")
    if hasattr(package, "load_dataset"):  # it was imported before, and has taken them over
        patches.put_all(package, made)


def _select(patches: Patches, owner: Any) -> None:
    """Let a program select more rows than were made up: they come again."""
    base = owner.select

    @functools.wraps(base)
    def select(self: Any, indices: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(self, indices, *args, **kwargs)
        except IndexError:
            if not len(self) or MADE_UP not in (self.info.description or ""):
                raise
        return base(self, [index % len(self) for index in indices], *args, **kwargs)

    patches.put(owner, "select", select)


def _title(path: str, name: str | None, files: Any) -> str:
    return " ".join(str(part) for part in (path, name, files) if part)


def made_up(title: str, split: Any, streams: bool) -> Any:
    """Return a data set with made-up rows.

    Args:
        title: by which its columns are chosen.
        split: as `load_dataset` takes it, e.g. "train[:5%]"; None for all.
        streams: whether it is to be iterable only.
    """
    from datasets import Dataset, DatasetDict, Features, Value

    kinds, splits = layout_for(title)
    languages = columns.languages_of(title)

    def rows(name: str) -> Any:
        wanted = re.match(r"[^\[+]+", name)[0]
        count = ROWS if "train" in wanted else FEW
        made = {column: [columns.value(kind, row, languages) for row in range(count)] for column, kind in kinds.items()}
        features = _features(kinds, languages, Features, Value)
        part = Dataset.from_dict(made, features=features)
        part.info.description = MADE_UP
        part = part.select(range(*_bounds(name, count)))
        return _stream(part, "train" in wanted) if streams else part

    if split is None:
        from datasets import IterableDatasetDict

        kind = IterableDatasetDict if streams else DatasetDict
        return kind({name: rows(name) for name in splits})
    if isinstance(split, (list, tuple)):
        return [rows(str(name)) for name in split]
    return rows(str(split))


def _stream(rows: Any, trains: bool) -> Any:
    """Return rows that come one by one, as from many files; those to train on come again: such data sets are long."""
    stream = rows.to_iterable_dataset(num_shards=min(len(rows), _SHARDS))
    return stream.repeat(_AGAIN) if trains else stream


def _features(kinds: dict[str, str], languages: tuple[str, str], features: Any, value: Any) -> Any:
    from datasets import Audio, ClassLabel, Image

    types: dict[Any, Any] = {
        columns.TEXT: value("string"),
        columns.SHORT: value("string"),
        columns.LONG: value("string"),
        columns.LABEL: ClassLabel(names=[f"class {number}" for number in range(columns.CLASSES)]),
        columns.NUMBER: value("int64"),
        columns.FRACTION: value("float32"),
        columns.IMAGE: Image(),
        columns.PIXELS: Image(),
        columns.INSTANCES: Image(),
        columns.FILE: value("string"),
        "side": value("int64"),
        columns.WORDS: [value("string")],
        columns.TAGS: [ClassLabel(names=[f"tag {number}" for number in range(9)])],
        columns.ANSWERS: {"text": [value("string")], "answer_start": [value("int32")]},
        columns.TRUTH: value("bool"),
        columns.ENDINGS: [value("string")],
        columns.TRANSLATION: {language: value("string") for language in languages},
        columns.OBJECTS: {
            **{"id": [value("int64")], "area": [value("int64")], "bbox": [[value("float32")]]},
            "category": [ClassLabel(names=[f"class {number}" for number in range(columns.CLASSES)])],
        },
        columns.SHARED: [{"from": value("string"), "value": value("string")}],
        columns.CLASS_IDS: {f"class {number}": value("int64") for number in range(columns.CLASSES)},
    }
    types |= dict.fromkeys(columns.SOUNDS, Audio())
    chat = [{"role": value("string"), "content": value("string")}]
    types |= {kind: value("string") for kind in kinds.values() if columns.is_one_of(kind)}
    return features({name: chat if kind in columns.CHATS else types[kind] for name, kind in kinds.items()})


def _bounds(split: str, count: int) -> tuple[int, int]:
    """Return which rows "train[10%:20%]" or "train[:100]" means."""
    found = re.search(r"\[(-?\d*)(%?):(-?\d*)(%?)\]", split)
    if not found:
        return 0, count

    def place(number: str, percent: str, default: int) -> int:
        if not number:
            return default
        at = count * int(number) // 100 if percent else int(number)
        return max(0, min(count, at + count if at < 0 else at))

    first, last = place(found[1], found[2], 0), place(found[3], found[4], count)
    return first, max(first + 1, last)
