# a class for a checkpoint

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(order=True)
class Checkpoint:
    step: int
    path: Path

    @classmethod
    def all(cls, folder):
        return sorted(cls(int(path.name[5:]), path) for path in folder.glob("step-*"))

    def read(self):
        digest, _, body = self.path.read_bytes().partition(b":")
        if digest != hashlib.md5(body).hexdigest().encode():
            return None
        return torch.load(io.BytesIO(body), map_location="cpu")


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "unfinished"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    with temporary.open("wb") as file:  # what a killed save left is cut to nothing
        file.write(hashlib.md5(body).hexdigest().encode() + b":" + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / f"step-{step}")
    sync_directory(folder)
    before = [one for one in Checkpoint.all(folder) if one.step <= step]
    for one in Checkpoint.all(folder):
        if one not in before[-keep:]:
            one.path.unlink()


def load(folder):
    for one in reversed(Checkpoint.all(folder)):
        state = one.read()
        if state is not None:
            return one.step, state
    return None
