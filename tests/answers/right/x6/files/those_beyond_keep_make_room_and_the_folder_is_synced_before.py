# those beyond keep make room, and the folder is synced before

import hashlib
import io
import json
import os
import re
import shutil

import torch


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def listed(folder):
    found = []
    for path in folder.iterdir():
        match = re.match(r"step-(\d+)(?:\.(\d+))?$", path.name)
        if match and path.is_dir():
            found.append((int(match[1]), int(match[2] or 0), path))
    return sorted(found)


def read(path):
    try:
        line, body = (path / "manifest.txt").read_bytes().split(b"\n", 1)
        if hashlib.sha256(body).hexdigest().encode() != line:
            return None
        state = {}
        for key, digest in json.loads(body).items():
            data = (path / f"{key}.pt").read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                return None
            state[key] = torch.load(io.BytesIO(data))
        return state
    except Exception:
        return None


def remove(path):
    if path.is_dir() and not path.is_symlink():
        if path.name.startswith("step-"):
            trash = path.with_name("old-" + path.name)
            path.rename(trash)
            path = trash
        shutil.rmtree(path)
    else:
        path.unlink()


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    sync(folder)
    old = listed(folder)
    for path in list(folder.iterdir()):
        if not any(path == p for _, _, p in old):
            remove(path)
    before = [c for c in old if c[0] < step]
    spare = len(old) - keep
    if spare > 0:
        good = next((c for c in reversed(before) if read(c[2]) is not None), None)
        for c in before[: max(len(before) - (keep - 1), 0)]:
            if spare <= 0 or good is None or c >= good:
                break
            remove(c[2])
            old.remove(c)
            spare -= 1
    temporary = folder / "writing"
    temporary.mkdir()
    digests = {}
    for key, value in state.items():
        buffer = io.BytesIO()
        torch.save(value, buffer)
        data = buffer.getvalue()
        digests[key] = hashlib.sha256(data).hexdigest()
        with open(temporary / f"{key}.pt", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    body = json.dumps(digests).encode()
    with open(temporary / "manifest.txt", "wb") as file:
        file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())
    sync(temporary)
    attempt = max([a for s, a, _ in old if s == step], default=-1) + 1
    temporary.rename(folder / f"step-{step}.{attempt}")
    sync(folder)
    kept = {p for s, a, p in sorted(c for c in old if c[0] < step)[::-1][: keep - 1]}
    for _, _, path in old:
        if path not in kept:
            remove(path)
    sync(folder)


def load(folder):
    if not folder.is_dir():
        return None
    for step, _, path in reversed(listed(folder)):
        state = read(path)
        if state is not None:
            return step, state
    return None
