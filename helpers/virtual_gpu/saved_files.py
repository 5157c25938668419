"""Checkpoints that a dry run saves and loads again: they stay in memory, and no file is written.

A tensor on a GPU is kept as its place, shape and type; it has no values. Values that the host has are kept, apart from
large tensors of floating-point numbers, which come back as zeros.
"""

import functools
import io
import os
import pickle
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from .hollow import SMALL_INTEGERS, is_hollow, make_hollow
from .homes import home_of, is_gpu, storage_of
from .patches import Patches
from .waits import Waits

_MAGIC = b"a checkpoint of a dry run\n"  # at the start of one that was saved to a buffer
_ERRORS = (pickle.PicklingError, AttributeError, TypeError, RuntimeError, NotImplementedError)


class SavedFiles:
    """What `torch.save` was given, by path, until the end of the run."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._files: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def install(self, patches: Patches) -> None:
        """Teach `torch.save`, `torch.load`, and what `os` and `shutil` have to find, move, copy and remove files."""
        patches.put_all(torch, {"save": self._save, "load": self._loading(torch.load)})
        patches.put(os, "stat", self._stat(os.stat))
        patches.put_all(os, {"listdir": self._listing(os.listdir), "scandir": self._scanning(os.scandir)})
        patches.put(shutil, "rmtree", self._removing_all(shutil.rmtree))
        patches.after_import("torch.distributed.checkpoint", self._sharded)
        for name in ("remove", "unlink"):
            patches.put(os, name, self._removing(getattr(os, name)))
        for name in ("rename", "replace"):
            patches.put(os, name, self._moving(getattr(os, name)))
        for name in ("copyfile", "copy", "copy2"):
            patches.put(shutil, name, self._copying(getattr(shutil, name)))

    def _save(self, obj: Any, f: Any = None, *_: Any, **__: Any) -> None:
        self._waits.leave_out("torch.save", "nothing is written")
        buffer = io.BytesIO()
        pickler = _Pickler(buffer)
        try:
            pickler.dump(obj)
        except _ERRORS as error:  # a kind of tensor that has no storage of its own, say
            self._waits.leave_out("torch.save", f"cannot be loaded again: {error}".partition("\n")[0])
            return
        if isinstance(f, io.BytesIO):
            f.write(_MAGIC + buffer.getvalue())
        elif (path := _path_of(f)) is not None:
            self._files[path] = buffer.getvalue()
            self._sizes[path] = sum(pickler.nbytes.values()) + buffer.tell()

    def _loading(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            kept = self._files.get(_path_of(f) or "")
            if kept is None and isinstance(f, io.BytesIO) and f.getbuffer()[f.tell() :][: len(_MAGIC)] == _MAGIC:
                kept = f.read()[len(_MAGIC) :]
            if kept is None:
                return base(f, map_location, *args, **kwargs)
            with torch.no_grad():
                return _Unpickler(io.BytesIO(kept), map_location).load()

        return load

    def _sharded(self, patches: Patches, module: Any) -> None:
        """Keep PyTorch's sharded checkpoints from the disk; a state that was saved is loaded as it is."""
        saved: set[str | None] = set()
        base = module.load

        def save(state_dict: Any, *, checkpoint_id: Any = None, **_: Any) -> None:
            self._waits.leave_out("torch.distributed.checkpoint", "nothing is written")
            saved.add(_path_of(checkpoint_id))

        def async_save(state_dict: Any, **options: Any) -> Future[None]:
            save(state_dict, **options)
            done: Future[None] = Future()
            done.set_result(None)
            return done

        def load(state_dict: Any, *, checkpoint_id: Any = None, **options: Any) -> None:
            if _path_of(checkpoint_id) not in saved:
                base(state_dict, checkpoint_id=checkpoint_id, **options)

        patches.put_all(module, {"save": save, "async_save": async_save, "load": load})

    def _names(self, folder: Any) -> list[str]:
        """Return the names of the files in a folder that are kept."""
        path = _path_of(folder or ".") if self._files and not isinstance(folder, int) else None
        return [os.path.basename(key) for key in self._files if os.path.dirname(key) == path]

    def _listing(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def listdir(path: Any = None) -> list[Any]:
            names, kept = base(path), self._names(path)
            return names + [name for name in kept if name not in names]

        return listdir

    def _scanning(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def scandir(path: Any = None) -> Any:
            kept = self._names(path)
            if not kept:
                return base(path)
            with base(path) as entries:
                found: list[Any] = list(entries)
            there = {entry.name for entry in found}
            return _Entries(found + [_Entry(path or ".", name) for name in kept if name not in there])

        return scandir

    def _removing_all(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            folder = _path_of(path)
            for key in [key for key in self._files if folder and key.startswith(folder + os.sep)]:
                self._files.pop(key)
            base(path, *args, **kwargs)

        return rmtree

    def _kept(self, path: Any) -> str | None:
        """Return the key of a path that was saved; None for any other. A file on the disk that is gone is no key."""
        key = _path_of(path) if self._files and isinstance(path, (str, bytes, os.PathLike)) else None
        return key if key in self._files else None

    def _stat(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def found(path: Any, *args: Any, **kwargs: Any) -> Any:
            key = self._kept(path)
            if key is None:
                return base(path, *args, **kwargs)
            now = int(time.time())
            return os.stat_result((stat.S_IFREG | 0o644, 0, 0, 1, 0, 0, self._sizes[key], now, now, now))

        return found

    def _removing(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def remove(path: Any, *args: Any, **kwargs: Any) -> None:
            key = self._kept(path)
            if key is not None:
                self._files.pop(key)
                if not os.path.lexists(path):
                    return
            base(path, *args, **kwargs)

        return remove

    def _moving(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def move(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            key, to = self._kept(source), _path_of(target)
            if key is None or to is None:
                base(source, target, *args, **kwargs)
                return
            self._files[to], self._sizes[to] = self._files.pop(key), self._sizes[key]

        return move

    def _copying(self, base: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(base)
        def copy(source: Any, target: Any, **kwargs: Any) -> Any:
            key = self._kept(source)
            if key is None:
                return base(source, target, **kwargs)
            if os.path.isdir(target):
                target = os.path.join(target, os.path.basename(source))
            to = _path_of(target)
            self._files[to], self._sizes[to] = self._files[key], self._sizes[key]
            return target

        return copy


class _Entry:
    """A file that is kept, as `os.scandir` describes it."""

    def __init__(self, folder: Any, name: str) -> None:
        self.name, self.path = name, os.path.join(os.fsdecode(folder), name)

    def __fspath__(self) -> str:
        return self.path

    def is_file(self, **_: Any) -> bool:
        """Say that it is a file."""
        return True

    def is_dir(self, **_: Any) -> bool:
        """Say that it is no folder."""
        return False

    def is_symlink(self) -> bool:
        """Say that it is no link."""
        return False

    def stat(self, **_: Any) -> os.stat_result:
        """Return its size and times."""
        return os.stat(self.path)


class _Entries:
    """What `os.scandir` returns."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End."""


class _Pickler(pickle.Pickler):
    """Writes tensors as descriptions.

    Attributes:
        nbytes: bytes of each storage, by its id.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.nbytes: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is used twice

    def persistent_id(self, obj: Any) -> Any:
        """Return the description of a plain tensor or a storage; None for everything else."""
        if isinstance(obj, torch.TypedStorage):
            return "typed", obj.dtype, self.persistent_id(obj._untyped_storage)
        if isinstance(obj, torch.UntypedStorage):
            return "storage", None, self.persistent_id(torch.empty(0, dtype=torch.uint8, device=obj.device).set_(obj))
        if not isinstance(obj, Tensor) or type(obj) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
            return None
        storage = storage_of(obj)
        if storage is None or obj.layout is not torch.strided or obj.is_quantized:
            return None
        self._alive += [storage, obj]
        key, home = storage._cdata, home_of(obj)
        self.nbytes[key] = storage.nbytes()
        device = str(obj.device)
        place = (storage.nbytes(), obj.dtype, device, tuple(obj.shape), obj.stride(), obj.storage_offset())
        known = home is None and not is_hollow(obj) and obj.device.type == "cpu"
        if known and obj.dtype.is_floating_point and obj.numel() > SMALL_INTEGERS:
            known = False
        values = obj.detach().reshape(-1).view(torch.uint8).numpy().tobytes() if known and obj.numel() else None
        return id(obj), key, place, values, type(obj) is torch.nn.Parameter, obj.requires_grad


class _Unpickler(pickle.Unpickler):
    """Makes the tensors anew, where `map_location` wants them; those that shared a storage share one again."""

    def __init__(self, file: Any, map_location: Any) -> None:
        super().__init__(file)
        self._to = map_location
        self._bases: dict[int, Tensor] = {}  # one for each storage
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        """Return the tensor or the storage of a description."""
        if pid[0] == "storage":
            return self.persistent_load(pid[2]).untyped_storage()
        if pid[0] == "typed":
            return torch.TypedStorage(wrap_storage=self.persistent_load(pid[2]), dtype=pid[1], _internal=True)
        name, *description = pid
        if name not in self._tensors:
            self._tensors[name] = self._tensor(*description)
        return self._tensors[name]

    def _tensor(self, key: int, place: Any, values: bytes | None, is_parameter: bool, requires_grad: bool) -> Tensor:
        nbytes, dtype, device, shape, stride, offset = place
        base = self._bases.get(key)
        if base is None:
            to = torch.device(_mapped(self._to, device))
            base = self._bases[key] = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device=to)
            if is_gpu(torch.device(device)):
                make_hollow(base)
        tensor = (base if base.dtype is dtype else base.view(dtype)).as_strided(shape, stride, offset).detach()
        if values is not None:
            tensor.copy_(torch.frombuffer(bytearray(values), dtype=dtype).view(shape))
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad)
        return tensor.requires_grad_(requires_grad)


def _mapped(to: Any, device: str) -> Any:
    """Return the device on which a tensor of `device` is wanted, as `torch.load` reads `map_location`."""
    if to is None:
        return device
    if isinstance(to, dict):
        return to.get(device, device)
    if callable(to) and not isinstance(to, torch.device):
        try:
            wanted = to(torch.UntypedStorage(0), device)
        except (AssertionError, RuntimeError):  # `storage.cuda(0)`: a storage has no device to go to here
            return device
        return device if wanted is None else wanted.device
    return to


def _path_of(file: Any) -> str | None:
    """Return the absolute path of a file by its name, or of one that the program has opened; None for buffers."""
    name = file if isinstance(file, (str, bytes, os.PathLike)) else getattr(file, "name", None)
    return os.path.abspath(os.fsdecode(name)) if isinstance(name, (str, bytes, os.PathLike)) else None
