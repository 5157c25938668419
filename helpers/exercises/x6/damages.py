"""Ways in which a disk damages a checkpoint: each changes files of one entry."""

from collections.abc import Callable, Iterator
from pathlib import Path

from .entries import files_in

Damage = Callable[[bytearray], bytearray]
BLOCK = 4096
MOST_FILES = 8  # of an entry, each damaged by itself: the smallest and the largest


def half(data: bytearray) -> bytearray:
    """Cut off the second half."""
    return data[: len(data) // 2]


def _zeroed(begin: float, end: float = 1.0) -> Damage:
    def damage(data: bytearray) -> bytearray:
        a, b = int(begin * len(data)), int(end * len(data))
        return data[:a] + bytes(b - a) + data[b:]

    return damage


def _flipped(at: float | int, count: int = 1, bits: int = 0x5A) -> Damage:
    """Change these bits of `count` bytes, from byte `at` on, or from this share of the bytes on."""

    def damage(data: bytearray) -> bytearray:
        begin = int(at * len(data)) if isinstance(at, float) else at % max(1, len(data))
        for i in range(begin, min(begin + count, len(data))):
            data[i] ^= bits
        return data

    return damage


def _exchanged(data: bytearray) -> bytearray:
    """Exchange two blocks: sums of bytes or of words stay as they are."""
    a = len(data) // 4 // BLOCK * BLOCK
    b = a + 16 * BLOCK
    data[a : a + BLOCK], data[b : b + BLOCK] = data[b : b + BLOCK], data[a : a + BLOCK]
    return data


def without_last_line(data: bytearray) -> bytearray:
    """Cut off the last line of a text, so that what is left still reads well; of one line, nothing is left."""
    return data[: data.rstrip(b"\n").rfind(b"\n") + 1]


IN_A_FILE: dict[str, tuple[Damage, ...]] = {  # done to a file of the entry, each in turn
    "half": (half,),
    "end": (lambda data: data[:-3], lambda data: data[:-1], without_last_line),
    "nothing": (lambda data: bytearray(), lambda data: data[:1], lambda data: data[:20]),
    "zeros": (_zeroed(0.0),),
    "bytes": (_flipped(0.5, 200),),
}
IN_THE_LARGEST: dict[str, tuple[Damage, ...]] = {
    "byte": tuple(_flipped(share / 16 + 0.013) for share in range(16)),
    "block": (_zeroed(0.6, 0.61), _zeroed(0.5), _exchanged),
}
ENDS = 48  # bytes at the beginning of the smallest and the largest file, and at their ends, each changed by itself
STRIDE = 19  # from one byte that is changed to the next, between the ends


def replace_bytes(path: Path, damage: Damage) -> None:
    """Put a damaged file in the place of `path`; what else links to that file keeps its bytes."""
    data = bytearray(path.read_bytes())
    path.unlink()
    path.write_bytes(damage(data))


def damages_of(kind: str, entry: Path) -> Iterator[Callable[[Path], None]]:
    """Yield what damages a copy of `entry` in this way, one after the other."""
    files = sorted(files_in(entry), key=lambda file: (file.stat().st_size, file))
    chosen = files if len(files) <= MOST_FILES else files[: MOST_FILES // 2] + files[-MOST_FILES // 2 :]
    if kind == "file":  # of a directory
        yield from (_without(file.relative_to(entry)) for file in chosen if entry.is_dir())
    elif kind == "single":
        for file in dict.fromkeys([*files[:1], *files[-1:]]):
            for at in (*range(-ENDS, ENDS), *range(ENDS, file.stat().st_size - ENDS, STRIDE)):
                bits = 0x5A | (at % 2) << 7  # every second time a byte that is not in ASCII
                yield _changed(file.relative_to(entry), _flipped(at, bits=bits))
        for at in range(min(ENDS, files[0].stat().st_size) if files else 0):  # a digit becomes another digit
            yield _changed(files[0].relative_to(entry), _flipped(at, bits=1))
    else:
        for file in files[-1:] if kind in IN_THE_LARGEST else chosen:
            for damage in {**IN_A_FILE, **IN_THE_LARGEST}[kind]:
                yield _changed(file.relative_to(entry), damage)


def _changed(file: Path, damage: Damage) -> Callable[[Path], None]:
    def change(entry: Path) -> None:
        replace_bytes(entry / file, damage)

    return change


def changed_largest(entry: Path) -> None:
    """Change bytes in the middle of the largest file: `torch.load` reads it as before."""
    largest = max(files_in(entry), key=lambda file: file.stat().st_size, default=None)
    if largest:
        replace_bytes(largest, _flipped(0.5, 200))


def _without(file: Path) -> Callable[[Path], None]:
    return lambda entry: (entry / file).unlink()
