"""Sound without files: the `Audio` columns of datasets, torchaudio's data sets and `torchaudio.load`. It is silence."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..patches import Patches
from ..waits import Waits

_RATE = 16_000  # samples per second, where a program does not ask for another rate
_ROWS, _SECONDS = 1024, 10
_COMMANDS = (
    *("backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go", "happy"),
    *("house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop"),
    *("three", "tree", "two", "up", "visual", "wow", "yes", "zero"),
)
_GENRES = ("blues", "classical", "country", "disco", "hiphop", "jazz", "metal", "pop", "reggae", "rock")
_TEXT = "the model reads a line of the book and learns what follows"
# torchaudio's class -> (samples per second, seconds, what follows the waveform and the rate; a tuple is chosen from)
_SETS: dict[str, tuple[int, int, tuple[Any, ...]]] = {
    "SPEECHCOMMANDS": (16_000, 1, (_COMMANDS, "speaker", 0)),
    "LIBRISPEECH": (16_000, 19, (_TEXT.upper(), 1, 2, 3)),
    "LIBRITTS": (24_000, 19, (_TEXT, _TEXT, 1, 2, "3")),
    "LJSPEECH": (22_050, 10, (_TEXT, _TEXT)),
    "VCTK_092": (48_000, 10, (_TEXT, "p225", "001")),
    "CMUARCTIC": (16_000, 10, (_TEXT, "a0001")),
    "GTZAN": (22_050, 30, (_GENRES,)),
    "YESNO": (8_000, 6, ([0, 1, 0, 1, 0, 1, 0, 1],)),
    "COMMONVOICE": (48_000, 10, ({"sentence": _TEXT, "client_id": "0"},)),
}


def sound_path(seconds: int, row: int) -> str:
    """Return the path of a made-up sound of a row; nothing is there, and `Audio` columns do not look."""
    return f"made-up/{seconds}s/{row}.wav"


class Silence(dict):
    """What an `Audio` column gives: "array" (samples,), "sampling_rate" and "path", and a decoder's samples."""

    def get_all_samples(self) -> Any:
        """Return the samples as torchcodec's decoder does: data (1, samples), sample_rate, duration_seconds."""
        rate = self["sampling_rate"]
        seconds = len(self["array"]) / rate
        return SimpleNamespace(
            data=torch.from_numpy(self["array"])[None], sample_rate=rate, duration_seconds=seconds, pts_seconds=0.0
        )


def install(patches: Patches, waits: Waits) -> None:
    """Teach datasets and torchaudio as soon as they are imported."""
    patches.after_import("datasets.features.audio", teach_columns)
    patches.after_import("torchaudio.datasets", lambda p, module: teach_torchaudio(p, module, waits))
    patches.after_import("torchaudio", lambda p, module: _load(p, module, waits))


def teach_columns(patches: Patches, module: Any) -> None:
    """Let `datasets.Audio` encode and decode the paths of made-up sounds, without torchcodec."""
    encode, decode = module.Audio.encode_example, module.Audio.decode_example

    def encode_example(self: Any, value: Any) -> Any:
        if isinstance(value, Silence):
            return {"bytes": None, "path": value["path"]}
        return value if _seconds(value) else encode(self, value)

    def decode_example(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = _seconds(value)
        if not seconds:
            return decode(self, value, *args, **kwargs)
        rate = self.sampling_rate or _RATE
        return Silence(array=np.zeros(seconds * rate, np.float32), sampling_rate=rate, path=value["path"])

    patches.put_all(module.Audio, {"encode_example": encode_example, "decode_example": decode_example})


def _seconds(value: Any) -> int:
    """Return how long the made-up sound of a column's value is; 0 for real ones."""
    found = re.match(r"made-up/(\d+)s/", str(value.get("path"))) if isinstance(value, dict) else None
    return int(found[1]) if found else 0


def teach_torchaudio(patches: Patches, module: Any, waits: Waits) -> None:
    """Put classes into `torchaudio.datasets` that are silent where they find no files."""
    for name, layout in _SETS.items():
        if hasattr(module, name):
            patches.put(module, name, _silent(getattr(module, name), layout, waits))


def _silent(base: Any, layout: tuple[int, int, tuple[Any, ...]], waits: Waits) -> Any:
    rate, seconds, rest = layout

    class Replaced(base):  # programs derive their own classes from it
        _silent = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            try:
                super().__init__(*args, **kwargs)
            except (OSError, RuntimeError):
                self._silent = True
                waits.leave_out("data set", f"{base.__name__}: silence")
                folder = args[0] if args else kwargs.get("root", ".")
                self._path = self._archive = str(Path(folder) / base.__name__)
                self._walker = [f"{self._path}/{number}.wav" for number in range(_ROWS)]

        def __len__(self) -> int:
            return len(self._walker) if self._silent else super().__len__()

        def __getitem__(self, index: int) -> Any:
            if not self._silent:
                return super().__getitem__(index)
            if index >= len(self._walker):
                raise IndexError(index)
            chosen = [part[index % len(part)] if isinstance(part, tuple) else part for part in rest]
            return torch.zeros(1, rate * seconds), rate, *chosen

    Replaced.__name__ = Replaced.__qualname__ = base.__name__
    return Replaced


def _load(patches: Patches, module: Any, waits: Waits) -> None:
    base = module.load

    def load(uri: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(uri, str | Path) or Path(uri).exists():
            return base(uri, *args, **kwargs)
        waits.leave_out("file", "torchaudio.load: silence")
        return torch.zeros(1, _SECONDS * _RATE), _RATE

    patches.put(module, "load", load)
