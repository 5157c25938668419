# a header of its own, written by the system's calls

import io
import os
import shutil
import struct
import zlib

import torch


def written(folder):
    return {int(p.name.split("-")[1]): p for p in folder.glob("step-*")} if folder.exists() else {}


def write(directory, name, body):
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, dir_fd=directory)
    try:
        rest = memoryview(body)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(folder):
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder, step, state, keep):
    folder.mkdir(parents=True, exist_ok=True)
    for rest in set(folder.iterdir()) - set(written(folder).values()):
        shutil.rmtree(rest)
    half = folder / ".half"
    os.mkdir(half)
    directory = os.open(half, os.O_RDONLY)
    table = b""
    for name, value in state.items():
        stream = io.BytesIO()
        torch.save(value, stream)
        write(directory, f"{name}.pt", stream.getvalue())
        table += struct.pack("<QI", stream.tell(), zlib.crc32(stream.getvalue())) + name.encode() + b"/"
    write(directory, "header", struct.pack("<QI", len(table), zlib.crc32(table)) + table)
    os.fsync(directory)
    os.close(directory)
    if (folder / f"step-{step}").exists():
        os.rename(folder / f"step-{step}", folder / ".same")
    os.rename(half, folder / f"step-{step}")
    sync_directory(folder)
    there = written(folder)
    for n in sorted(there):
        later = [m for m in there if n <= m <= step]
        if n > step or len(later) > keep:
            os.rename(there[n], folder / f".old{n}")
    for rest in set(folder.iterdir()) - set(written(folder).values()):
        shutil.rmtree(rest)


def entries_of(path):
    """Return the names of the intact entries; None for a damaged checkpoint."""
    data = (path / "header").read_bytes() if (path / "header").exists() else b""
    if len(data) < 12 or struct.unpack("<QI", data[:12]) != (len(data) - 12, zlib.crc32(data[12:])):
        return None
    names, at = [], 12
    while at < len(data):
        size, checksum = struct.unpack("<QI", data[at : at + 12])
        end = data.index(b"/", at + 12)
        file = path / f"{data[at + 12 : end].decode()}.pt"
        body = file.read_bytes() if file.exists() else b""
        if (size, checksum) != (len(body), zlib.crc32(body)):
            return None
        names.append(file.stem)
        at = end + 1
    return names


def load(folder):
    for n, path in sorted(written(folder).items(), key=lambda pair: -pair[0]):
        names = entries_of(path)
        if names is not None:
            return n, {name: torch.load(path / f"{name}.pt") for name in names}
    return None
