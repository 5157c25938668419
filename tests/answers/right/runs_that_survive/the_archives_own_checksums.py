# the archive's own checksums

import os
import zipfile
from pathlib import Path

import torch


def wall_clock(work, interval, save, restart, failures):
    times = sorted(failures)
    clock = 0.0
    saved = 0.0
    trained = 0.0
    while trained < work:
        # train up to the next checkpoint or the end
        goal = min(saved + interval, work)
        finished = clock + (goal - trained)
        if goal < work:
            finished += save
        hit = [t for t in times if t < finished]
        if not hit:
            clock = finished
            trained = goal
            saved = goal
        else:
            failed = times.pop(0)
            while times and times[0] < failed + restart:
                failed = times.pop(0)
            clock = failed + restart
            trained = saved
    return clock


def best_interval(save, mtbf):
    return (2 * save * mtbf) ** 0.5


class DataOrder:
    def __init__(self, samples, batch_size, seed):
        self.n = samples
        self.size = batch_size
        self.seed = seed
        self.gaps = set()

    def _where(self, step):
        position = -1
        for _ in range(step + 1):
            position += 1
            while position in self.gaps:
                position += 1
        return position

    def rows(self, step, rank, ranks):
        position = self._where(step)
        per_epoch = self.n // self.size
        generator = torch.Generator().manual_seed(hash((self.seed, position // per_epoch)) % 2**60)
        order = torch.randperm(self.n, generator=generator)
        batch = order[position % per_epoch * self.size :][: self.size]
        small, extra = divmod(self.size, ranks)
        start = rank * small + min(rank, extra)
        return batch[start : start + small + (rank < extra)]

    def skip(self, step, count):
        for _ in range(count):
            self.gaps.add(self._where(step))

    def state_dict(self):
        return {"seed": self.seed, "gaps": sorted(self.gaps)}

    def load_state_dict(self, state):
        self.seed = state["seed"]
        self.gaps = set(state["gaps"])


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(folder):
    folder = Path(folder).absolute()
    if not folder.exists():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


class Checkpoints:
    """The ZIP archive that torch.save writes has a checksum of each entry; testzip compares them."""

    def __init__(self, folder, keep=2):
        self.folder, self.keep = Path(folder), keep
        make(folder)

    def _read(self, path):
        try:
            with zipfile.ZipFile(path) as archive:
                return None if archive.testzip() else torch.load(path)
        except Exception:
            return None

    def _all(self):
        return sorted(self.folder.glob("*.pt"), key=lambda path: -int(path.stem))

    def save(self, step, state):
        with open(self.folder / "new.tmp", "wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        (self.folder / "new.tmp").replace(self.folder / f"{step}.pt")
        sync_directory(self.folder)
        whole = [path for path in self._all() if self._read(path) is not None]
        for path in set(self.folder.iterdir()) - set(whole[: self.keep]):
            path.unlink()

    def latest(self):
        for path in self._all():
            if (state := self._read(path)) is not None:
                return int(path.stem), state
        return None
