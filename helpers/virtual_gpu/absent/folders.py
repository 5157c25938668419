"""Files and folders without a disk, for code of the program's own: it finds them, and what it opens is made up.

Libraries see what is there: they look for many files which are not meant to exist. A program's own code that asks
whether `data/train.txt` exists, or what is in a folder that is not there, has its data set in mind.
"""

import builtins
import functools
import glob
import gzip
import io
import json
import os
import re
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..patches import Patches
from ..user_line import is_users
from ..waits import Waits
from .annotations import size_of
from .asked import MADE_UP, layout_for, rows_of
from .columns import CLASSES, FILE, IMAGE, TEXT, value
from .named import is_named_file, is_named_folder

_WORDS = """
    train training valid validation val test eval dev data dataset input corpus alpaca sft dpo
    instructions dialogs wiki wikitext shakespeare tinyshakespeare enwik enwik8 text texts names
"""
_DATA_WORDS = set(_WORDS.split())
_READ_AS_DATA = (".txt", ".json", ".jsonl", ".csv", ".tsv", ".bin", ".npy", ".parquet")
_TABLES = (".json", ".jsonl", ".csv", ".tsv", ".parquet")  # with rows that have names
_SPLITS = ("train", "val", "test")
_PICTURES, _ARRAYS = (".jpg", ".png"), (".npy", ".bin", ".txt", ".json", ".jsonl", ".csv", ".parquet")
_ROWS, _FEW, _IMAGES = 1024, 128, 128  # _FEW: rows of a file to evaluate on; some programs want 100 images
_SIZES = {"enwik8": 10**8, "text8": 10**8}  # bytes of texts that programs split by numbers
_IDX = re.compile(r"(images|labels)[-.]idx[13]-ubyte$")  # MNIST's files
_LLM_C = (20240520, 1, 2**20)  # the header of llm.c's token files: magic number, version, tokens


def install(patches: Patches, waits: Waits) -> None:
    """Teach `os`, `glob`, `pathlib`, `open` and, as soon as they are imported, PIL, OpenCV and pyarrow."""

    def assume(what: Any, words: str) -> None:
        waits.leave_out("file", f"{Path(what).name}: {words}")

    for name, may_be in (("exists", _is_found), ("isfile", is_data), ("isdir", is_named_folder)):
        patches.put(os.path, name, _finding(getattr(os.path, name), may_be))
    for name, may_be in (("exists", is_named_folder), ("is_dir", is_named_folder), ("is_file", _is_named_picture)):
        patches.put(Path, name, _finding(getattr(Path, name), may_be))
    patches.put(Path, "iterdir", _each(Path.iterdir, assume))
    patches.put(os, "listdir", _listing(os.listdir, assume))
    for name in ("glob", "iglob"):
        patches.put(glob, name, _matching(getattr(glob, name), assume))
    for name in ("glob", "rglob"):
        patches.put(Path, name, _below(getattr(Path, name), assume))
    for owner in (builtins, io):
        patches.put(owner, "open", _opening(owner.open, assume))
    patches.after_import("PIL.Image", lambda p, module: _pictures(p, module, assume))
    patches.after_import("cv2", lambda p, module: _arrays(p, module, assume))
    patches.after_import("pyarrow.parquet", lambda p, module: _tables(p, module, assume))
    patches.after_import("torchvision.io.image", lambda p, module: _tensors(p, module, assume))
    patches.after_import("huggingface_hub.file_download", lambda p, module: _labels(p, module, assume))


def is_data(path: Any) -> bool:
    """Say whether the name of a file that is not there is one that data sets have."""
    if not isinstance(path, (str, os.PathLike)) or os.path.lexists(path):
        return False
    name = os.path.basename(os.fspath(path)).lower()
    stem, ending = os.path.splitext(name.removesuffix(".gz"))
    if is_mnist(Path(name)):
        return True
    known = ending in _READ_AS_DATA or (not ending and name.endswith(".gz"))
    words = set(re.split(r"[^a-z0-9]+|(?<=[a-z])\d+", stem))
    return known and (bool(_DATA_WORDS & words) or is_named_file(path))


def _is_asked_by_user() -> bool:
    """Say whether the program's own code opens a file, itself or with pathlib."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("pathlib"):
        frame = frame.f_back
    return is_users(frame)


def _is_of_rows(path: Any) -> bool:
    """Return whether a file's ending is one that almost only data files have, so that the program needs its rows."""
    return isinstance(path, (str, os.PathLike)) and Path(path).suffix in (".csv", ".tsv", ".jsonl")


def is_mnist(path: Path) -> bool:
    """Say whether a file is one of MNIST's, compressed or not."""
    return _IDX.search(path.name.lower().removesuffix(".gz")) is not None


def _is_found(path: Any) -> bool:
    return is_data(path) or is_named_folder(path)


def _is_named_picture(path: Path) -> bool:
    return path.suffix in _PICTURES and is_named_folder(path.parent)


def _finding(base: Any, may_be: Any) -> Any:
    @functools.wraps(base)
    def found(path: Any, **options: Any) -> bool:
        return base(path, **options) or (is_users(sys._getframe(1)) and may_be(path))

    return found


def _each(base: Any, assume: Any) -> Any:
    @functools.wraps(base)
    def iterdir(self: Path) -> Any:
        if is_named_folder(self) and is_users(sys._getframe(1)):
            assume(self, "a folder of made-up pictures")
            return iter([self / name for name in _names(_PICTURES[:1])])
        return base(self)

    return iterdir


def _listing(base: Any, assume: Any) -> Any:
    @functools.wraps(base)
    def listdir(path: Any = ".") -> list[Any]:
        try:
            return base(path)
        except FileNotFoundError:
            if not is_users(sys._getframe(1)):
                raise
            assume(path, "a folder of made-up files")
            return _names()

    return listdir


def _names(endings: tuple[str, ...] = _PICTURES + _ARRAYS) -> list[str]:
    """Return files of a folder: pictures, and two of each other kind for each split."""
    counts = {ending: _IMAGES if ending in _PICTURES else 2 for ending in endings}
    return [f"{split}_{i:06d}{ending}" for ending, count in counts.items() for split in _SPLITS for i in range(count)]


def _matching(base: Any, assume: Any) -> Any:
    @functools.wraps(base)
    def matching(pathname: Any, *args: Any, **kwargs: Any) -> Any:
        found = list(base(pathname, *args, **kwargs))
        if not found and is_users(sys._getframe(1)):
            found = [os.path.join(os.path.dirname(pathname), name) for name in _matches(os.path.basename(pathname))]
            if found:
                assume(pathname, "made-up files")
        return found

    return matching


def _matches(pattern: str) -> list[str]:
    """Return names that a pattern matches, of files that data sets have; pictures for any ending."""
    pattern = pattern.removesuffix("*.*") + "*.jpg" if pattern.endswith("*.*") else pattern
    ending = os.path.splitext(pattern)[1]
    if "*" not in pattern or ending not in _PICTURES + _ARRAYS or "checkpoint" in pattern:
        return []
    return [pattern.replace("**", "*").replace("*", f"{i:06d}") for i in range(_IMAGES if ending in _PICTURES else 2)]


def _below(base: Any, assume: Any) -> Any:
    @functools.wraps(base)
    def below(self: Path, pattern: str, **kwargs: Any) -> Any:
        found = list(base(self, pattern, **kwargs))
        if not found and is_users(sys._getframe(1)) and not self.exists():
            found = [self / name for name in _matches(os.path.basename(pattern))]
            if found:
                assume(self, "a folder of made-up files")
        return iter(found)

    return below


def _opening(base: Any, assume: Any) -> Any:
    @functools.wraps(base)
    def read(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        try:
            return base(file, mode, *args, **kwargs)
        except FileNotFoundError:
            if mode not in ("r", "rt", "rb") or not _is_asked_by_user() or not (is_data(file) or _is_of_rows(file)):
                raise
            made = content_of(Path(file))
            if made is None or ("b" not in mode and Path(file).suffix == ".bin"):
                raise
        assume(file, _words(Path(file)))
        return io.BytesIO(made) if "b" in mode else io.StringIO(made.decode())

    return read


def _words(path: Path) -> str:
    if path.suffix == ".bin":
        return "made-up tokens, after llm.c's header"
    return rows_of(path.stem) if path.suffix in _TABLES else MADE_UP


def content_of(path: Path) -> bytes | None:
    """Return what a made-up file of this name has; None for kinds that are made up elsewhere."""
    if path.suffix == ".gz":
        made = unpacked(path)
        return None if made is None else gzip.compress(made, compresslevel=1)
    if found := _IDX.search(path.name.lower()):
        return _mnist(found[1] == "images", 60_000 if "train" in path.name else 10_000)
    if path.suffix == ".bin":
        import numpy as np

        header = np.zeros(256, dtype=np.int32)
        header[: len(_LLM_C)] = _LLM_C
        return header.tobytes() + (np.arange(_LLM_C[2]) % 256).astype(np.uint16).tobytes()
    kinds = {name: FILE if kind == IMAGE else kind for name, kind in layout_for(path.stem)[0].items()}
    count = _FEW if re.search("val|test|dev", path.stem.lower()) else _ROWS
    rows = [{name: value(kind, row) for name, kind in kinds.items()} for row in range(count)]
    if path.suffix == ".parquet":
        return _table(kinds, rows)
    if path.suffix == ".json":
        return json.dumps(rows).encode()
    if path.suffix == ".jsonl":
        return "\n".join(map(json.dumps, rows)).encode()
    if path.suffix in (".csv", ".tsv"):
        mark = "\t" if path.suffix == ".tsv" else ","
        return "\n".join([mark.join(kinds), *(mark.join(map(str, row.values())) for row in rows)]).encode()
    return None


def unpacked(path: Path) -> bytes | None:
    """Return what a made-up file holds that gzip has compressed: JSON as a line per row; None for kinds of its own."""
    inner = Path(path.stem)
    if inner.suffix == ".json":
        return content_of(inner.with_suffix(".jsonl"))
    if inner.suffix in ("", ".txt") and not _IDX.search(inner.name.lower()):
        lines = "\n".join(value(TEXT, row) for row in range(_ROWS)).encode()
        return (lines * -(-_SIZES.get(inner.stem.lower(), 1) // len(lines)))[: _SIZES.get(inner.stem.lower())]
    return content_of(inner)


def _mnist(images: bool, count: int) -> bytes:
    """Return a file of MNIST: gray images of 28 x 28, or the labels 0 to 9 in turn."""
    if images:
        return struct.pack(">4I", 2051, count, 28, 28) + bytes([128]) * (count * 28 * 28)
    return struct.pack(">2I", 2049, count) + bytes(row % 10 for row in range(count))


def _table(kinds: dict[str, str], rows: list[dict[str, Any]]) -> bytes:
    """Return a Parquet file of `rows`, in groups of an eighth."""
    import pyarrow
    import pyarrow.parquet

    made = io.BytesIO()
    columns = {name: [row[name] for row in rows] for name in kinds}
    pyarrow.parquet.write_table(pyarrow.table(columns), made, row_group_size=max(1, len(rows) // 8))
    return made.getvalue()


def _tables(patches: Patches, module: Any, assume: Any) -> None:
    base = module.ParquetFile.__init__

    @functools.wraps(base)
    def opened(self: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        if is_data(source):
            assume(source, "made-up rows")
            source = io.BytesIO(content_of(Path(source)))
        base(self, source, *args, **kwargs)

    patches.put(module.ParquetFile, "__init__", opened)


def _pictures(patches: Patches, module: Any, assume: Any) -> None:
    base = module.open

    @functools.wraps(base)
    def opened(fp: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(fp, *args, **kwargs)
        except FileNotFoundError:
            assume(Path(fp).parent, "gray images")
            return module.new("RGB", size_of(Path(fp).name) or (256, 256))

    patches.put(module, "open", opened)


def _tensors(patches: Patches, module: Any, assume: Any) -> None:
    """Teach torchvision, which reads a picture into a tensor."""
    import torch

    base = module.read_image

    @functools.wraps(base)
    def read_image(path: Any, *args: Any, **kwargs: Any) -> Any:
        if os.path.lexists(path):
            return base(path, *args, **kwargs)
        assume(Path(path).parent, "gray images")
        width, height = size_of(Path(path).name) or (256, 256)
        return torch.full((3, height, width), 128, dtype=torch.uint8)

    for owner in (module, sys.modules.get("torchvision.io")):
        if hasattr(owner, "read_image"):  # the package takes it over when it is imported
            patches.put(owner, "read_image", read_image)


def _labels(patches: Patches, module: Any, assume: Any) -> None:
    """Teach the Hub's client the files with the names of classes that scripts for segmentation download."""
    base, made = module.hf_hub_download, tempfile.TemporaryDirectory(prefix="labels-")
    patches.later(made.cleanup)

    @functools.wraps(base)
    def hf_hub_download(repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return base(repo_id, filename, *args, **kwargs)
        except OSError:
            if not filename.endswith("id2label.json"):
                raise
        assume(filename, f"{CLASSES} made-up classes")
        file = Path(made.name) / "id2label.json"
        file.write_text(json.dumps({number: f"class {number}" for number in range(CLASSES)}), encoding="utf-8")
        return str(file)

    patches.put(module, "hf_hub_download", hf_hub_download)


def _arrays(patches: Patches, module: Any, assume: Any) -> None:
    """Teach OpenCV, which returns None for a file that is not there."""
    import numpy as np

    base = module.imread

    @functools.wraps(base)
    def imread(filename: Any, flags: int = 1, *args: Any, **kwargs: Any) -> Any:
        if os.path.lexists(filename) or not is_users(sys._getframe(1)):
            return base(filename, flags, *args, **kwargs)
        assume(Path(filename).parent, "gray images")
        width, height = size_of(Path(filename).name) or (256, 256)
        return np.full((height, width) if flags == 0 else (height, width, 3), 128, dtype=np.uint8)

    patches.put(module, "imread", imread)
