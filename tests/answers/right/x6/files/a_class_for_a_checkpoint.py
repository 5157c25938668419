# a class for a checkpoint

import hashlib
import os
import shutil
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

    def digest(self):
        files = sorted(self.path.glob("*.pt"))
        return ":".join([hashlib.md5(file.read_bytes()).hexdigest() + file.stem for file in files])

    def write(self, state):
        shutil.rmtree(self.path, ignore_errors=True)  # of a save that was killed
        self.path.mkdir()
        for key, value in state.items():
            torch.save(value, self.path / f"{key}.pt")
        self.path.joinpath("digest").write_text(self.digest())
        for path in [*self.path.iterdir(), self.path]:
            sync(path)

    def move(self, name):
        self.path = self.path.rename(self.path.with_name(name))

    def delete(self):
        self.move("deleted")
        shutil.rmtree(self.path)

    def read(self):
        try:
            if self.path.joinpath("digest").read_bytes() != self.digest().encode():
                return None
        except OSError:
            return None
        return {file.stem: torch.load(file, map_location="cpu") for file in self.path.glob("*.pt")}


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "deleted", ignore_errors=True)
    new = Checkpoint(step, folder / "unfinished")
    new.write(state)
    for one in Checkpoint.all(folder):
        if one.step == step:
            one.delete()
    new.move(f"step-{step}")
    sync(folder)
    before = [one for one in Checkpoint.all(folder) if one.step <= step]
    for one in Checkpoint.all(folder):
        if one not in before[-keep:]:
            one.delete()


def load(folder):
    for one in reversed(Checkpoint.all(folder)):
        state = one.read()
        if state is not None:
            return one.step, state
    return None
