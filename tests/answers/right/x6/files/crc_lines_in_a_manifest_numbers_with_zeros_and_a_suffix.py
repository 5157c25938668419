# crc lines in a manifest, numbers with zeros and a suffix

import os
import shutil
import uuid
import zlib

import torch


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def number(path):
    return int(path.name[5:12])


def good(path):
    try:
        lines = (path / "MANIFEST").read_bytes()
        head, _, rest = lines.partition(b"\n")
        if int(head) != zlib.crc32(rest):
            return None
        state = {}
        for line in rest.decode().splitlines():
            crc, size, key = line.split(" ", 2)
            data = (path / f"{key}.pt").read_bytes()
            if len(data) != int(size) or zlib.crc32(data) != int(crc):
                return None
            state[key] = torch.load(path / f"{key}.pt", weights_only=True)
        return state
    except (OSError, ValueError):
        return None


def save(folder, step, state, keep):
    os.makedirs(folder, exist_ok=True)
    fsync(folder)  # a save that was killed may have renamed and not synced
    for entry in os.scandir(folder):
        if not entry.name.startswith("step-"):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.remove(entry.path)
    held = sorted(folder.glob("step-*"), key=lambda q: (number(q), q.name))
    early = [q for q in held if number(q) < step]
    spare = [q for q in held if q not in early[max(len(early) - keep + 1, 0) :]]
    spare.sort(key=lambda q: good(q) is not None)
    for q in spare[: max(len(held) - keep, 0)]:  # one that a save left which was killed
        drop(folder, q)
    new = folder / ".new"
    new.mkdir()
    lines = []
    for key in state:
        path = new / f"{key}.pt"
        torch.save(state[key], path)
        fsync(path)
        data = path.read_bytes()
        lines.append(f"{zlib.crc32(data)} {len(data)} {key}\n")
    rest = "".join(lines).encode()
    with open(new / "MANIFEST", "wb") as out:
        out.write(str(zlib.crc32(rest)).encode() + b"\n" + rest)
        out.flush()
        os.fsync(out)
    fsync(new)
    final = folder / f"step-{step:07d}.{uuid.uuid4().hex[:8]}"
    os.rename(new, final)
    fsync(folder)
    older = sorted((q for q in folder.glob("step-*") if number(q) < step), key=number, reverse=True)
    for q in folder.glob("step-*"):
        if q != final and q not in older[: keep - 1]:
            drop(folder, q)
    fsync(folder)


def drop(folder, path):
    away = folder / (".old" + path.name)
    os.rename(path, away)
    shutil.rmtree(away)


def load(folder):
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    for path in sorted((folder / n for n in names if n.startswith("step-")), key=number, reverse=True):
        state = good(path)
        if state is not None:
            return number(path), state
    return None
