# the digest at the end, a number with zeros

import hashlib
import os
import re
import shutil

import torch


def steps_in(folder):
    found = {}
    for path in folder.glob("step-*"):
        found[int(re.match(r"step-0*([0-9]+)", path.name)[1])] = path
    return found


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def digest_of(paths):
    digest = hashlib.blake2b()
    for path in paths:
        digest.update(hashlib.blake2b(path.name.encode()).digest() + hashlib.blake2b(path.read_bytes()).digest())
    return digest.digest()


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            shutil.rmtree(path)
    part = folder / "part"
    part.mkdir()
    for name, value in state.items():
        with open(part / f"{name}.pt", "wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
    with open(part / "z.end", "wb") as file:
        file.write(digest_of(sorted(part.glob("*.pt"))))
        file.flush()
        os.fsync(file.fileno())
    sync_directory(part)
    for n, path in steps_in(folder).items():
        if n == step:
            path.rename(folder / "same")
    part.replace(folder / f"step-{step:09d}.d")
    sync_directory(folder)
    older = sorted((n for n in steps_in(folder) if n < step), reverse=True)
    stays = {step, *older[: keep - 1]}
    for n, path in steps_in(folder).items():
        if n not in stays:
            path.rename(folder / f"{n}")
    for path in folder.iterdir():
        if not path.name.startswith("step-"):
            shutil.rmtree(path)


def load(folder):
    if not folder.is_dir():
        return None
    for n, path in sorted(steps_in(folder).items(), reverse=True):
        files = sorted(path.glob("*.pt"))
        if (path / "z.end").exists() and (path / "z.end").read_bytes() == digest_of(files):
            return n, {file.stem: torch.load(file, map_location="cpu") for file in files}
    return None
