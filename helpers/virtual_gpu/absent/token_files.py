"""Files of vocabularies that are not on this machine: SentencePiece's and tiktoken's.

Tokens are learned from Python's manual, as the ones in tokenizer.py are, so English text takes about as many.
"""

import functools
import io
from pathlib import Path
from typing import Any

from ..patches import Patches
from ..waits import Waits

_PIECES = 4000  # of a SentencePiece model; every vocabulary has more
_RANKS = {"cl100k": 100_256, "o200k": 199_998, "p50k": 50_280, "r50k": 50_256, "gpt2": 50_256, "gpt-2": 50_256}
_LLAMA_3 = 128_000  # ranks in a file of another name: this vocabulary is the one that is read from files


def install(patches: Patches, waits: Waits) -> None:
    """Teach sentencepiece and tiktoken as soon as they are imported."""
    patches.after_import("sentencepiece", lambda p, module: _sentencepiece(p, module, waits))
    patches.after_import("tiktoken.load", lambda p, module: _tiktoken(p, module, waits))


def _sentencepiece(patches: Patches, module: Any, waits: Waits) -> None:
    owner = module.SentencePieceProcessor
    for name in ("LoadFromFile", "load_from_file"):
        patches.put(owner, name, _loading(getattr(owner, name), module, waits))


def _loading(base: Any, module: Any, waits: Waits) -> Any:
    @functools.wraps(base)
    def load(self: Any, *args: Any, **kwargs: Any) -> Any:
        file = next((value for value in (*args, *kwargs.values()) if value), None)
        if not isinstance(file, (str, Path)) or Path(file).exists():
            return base(self, *args, **kwargs)
        waits.leave_out("tokenizer", f"{Path(file).name}: one with {_PIECES:,} tokens")
        return self.LoadFromSerializedProto(_pieces(module))

    return load


@functools.cache
def _pieces(module: Any) -> bytes:
    from pydoc_data import topics

    written = io.BytesIO()
    module.SentencePieceTrainer.train(
        sentence_iterator=(line for topic in topics.topics.values() for line in topic.splitlines() if line.strip()),
        model_writer=written,
        vocab_size=_PIECES,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    return written.getvalue()


def _tiktoken(patches: Patches, module: Any, waits: Waits) -> None:
    for name in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        patches.put(module, name, _reading(getattr(module, name), waits))


def _reading(base: Any, waits: Waits) -> Any:
    @functools.wraps(base)
    def read(*args: Any, **kwargs: Any) -> dict[bytes, int]:
        try:
            return base(*args, **kwargs)
        except OSError:  # no such file, or, from requests, no such host
            file = str(next(iter((*args, *kwargs.values()))))
            waits.leave_out("tokenizer", f"{Path(file).name}: one with the vocabulary's size")
            return made_up_ranks(next((count for name, count in _RANKS.items() if name in file.lower()), _LLAMA_3))

    return read


@functools.cache
def made_up_ranks(count: int) -> dict[bytes, int]:
    """Return `count` tokens: all bytes, words of Python's manual in their order of learning, then bytes of no text."""
    from .tokenizer import trained

    letters = _letters()
    merged = sorted(trained(count, ()).get_vocab().items(), key=lambda row: row[1])
    tokens = [bytes([byte]) for byte in range(256)]
    for token, _ in merged:
        if len(token) > 1 and all(letter in letters for letter in token):
            tokens.append(bytes(letters[letter] for letter in token))
    filler = (b"\xff\xfe" + number.to_bytes(3, "big") for number in range(count))
    tokens += [next(filler) for _ in range(count - len(tokens))]
    return {token: rank for rank, token in enumerate(tokens[:count])}


def _letters() -> dict[str, int]:
    """Return which byte a letter of a byte-level vocabulary stands for."""
    shown = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    letters = {chr(byte): byte for byte in shown}
    hidden = (byte for byte in range(256) if byte not in shown)
    return letters | {chr(256 + place): byte for place, byte in enumerate(hidden)}
