# folders, numpy, recursion

import copy
import math
import os
import shutil
import zlib
from collections import deque
from pathlib import Path

import numpy as np
import torch


def wall_clock(work, interval, save, restart, failures):
    queue = deque(sorted(failures))
    now = left = 0.0
    left = work
    while left > 0:
        piece = interval if interval < left else left
        need = piece + save if left > piece else piece
        while queue and queue[0] < now:
            queue.popleft()
        if queue and queue[0] < now + need:
            now = queue.popleft()
            ready = now + restart
            while queue and queue[0] < ready:
                ready = queue.popleft() + restart
            now = ready
        else:
            now += need
            left -= piece
    return now


def best_interval(save, mtbf):
    """Daly's higher order."""
    x = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - save


class DataOrder:
    def __init__(self, samples, batch_size, seed):
        self.samples, self.batch_size = samples, batch_size
        self.state = {"seed": seed, "skips": []}

    def rows(self, step, rank, ranks):
        for at, count in reversed(self.state["skips"]):  # back to what the steps were before each skip
            if step >= at:
                step += count
        epoch, index = step // (self.samples // self.batch_size), step % (self.samples // self.batch_size)
        draw = np.random.Generator(np.random.PCG64([epoch, self.state["seed"]])).random(self.samples)
        batch = np.argsort(draw).reshape(-1)[index * self.batch_size : index * self.batch_size + self.batch_size]
        cuts = [self.batch_size * i // ranks for i in range(ranks + 1)]
        return [int(i) for i in batch[cuts[rank] : cuts[rank + 1]]]

    def skip(self, step, count):
        self.state["skips"].append([step, count])

    def state_dict(self):
        return copy.deepcopy(self.state)

    def load_state_dict(self, state):
        self.state = {"seed": state["seed"], "skips": [list(skip) for skip in state["skips"]]}


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
    """A folder for each checkpoint, renamed when it is complete; a second save of a step is another folder."""

    def __init__(self, folder, keep=2):
        self.root, self.keep = str(folder), keep
        make(folder)

    def _folders(self):
        names = [name for name in os.listdir(self.root) if name.startswith("done_")]
        return sorted(names, key=lambda name: tuple(map(int, name.split("_")[1:])), reverse=True)

    def _state(self, name):
        try:
            with open(os.path.join(self.root, name, "state"), "rb") as file:
                data = file.read()
            with open(os.path.join(self.root, name, "crc")) as file:
                right = int(file.read())
            return data if zlib.crc32(data) == right else None
        except (OSError, ValueError):
            return None

    def save(self, step, state):
        work = os.path.join(self.root, "work")
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work)
        path = os.path.join(work, "state")
        torch.save(state, path)
        with open(path, "rb") as file:
            crc = zlib.crc32(file.read())
            os.fsync(file.fileno())
        with open(os.path.join(work, "crc"), "w") as file:
            file.write(str(crc))
            file.flush()
            os.fsync(file.fileno())
        same = [int(name.split("_")[2]) for name in self._folders() if int(name.split("_")[1]) == step]
        os.rename(work, os.path.join(self.root, f"done_{step}_{max(same, default=-1) + 1}"))
        sync_directory(self.root)
        steps = []
        for name in self._folders():
            if int(name.split("_")[1]) in steps or len(steps) == self.keep or self._state(name) is None:
                shutil.rmtree(os.path.join(self.root, name))
            else:
                steps.append(int(name.split("_")[1]))

    def latest(self):
        import io

        for name in self._folders():
            data = self._state(name)
            if data is not None:
                return int(name.split("_")[1]), torch.load(io.BytesIO(data), weights_only=True)
