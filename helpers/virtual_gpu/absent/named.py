"""What a script's arguments name: columns of its data set, folders with its data, words that are one token."""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from . import columns

_KINDS = (  # words in the name of a column, or of the option that names it -> what it holds
    (("image", "img", "pixel", "picture", "photo", "mask", "annotation"), columns.IMAGE),
    (("audio", "speech", "sound", "wav"), "speech"),
    (("answers",), columns.ANSWERS),
    (("messages", "conversation", "chosen", "rejected"), "talk"),
    (("score", "similarity"), columns.FRACTION),
    (("label", "class", "stars", "rating", "target_col", "category"), columns.LABEL),
    (("length", "idx", "number", "count"), columns.NUMBER),
    (("caption", "prompt", "title", "question", "summary", "highlights", "sentence", "answer"), columns.SHORT),
)
_OTHERS = re.compile(r"out|log|save|cache|ckpt|checkpoint|model|resume|result|class_data")  # folders that hold no data
_DATA = re.compile(r"data|image|img|root|train|val|test|src|source|file|corpus|input|text|json|csv")
_TOKENS = ("ktn", "pll", "ucd", "sks")  # rare words that diffusers' examples take as one token


def _options() -> Iterator[tuple[str, str]]:
    """Yield the options of the script with each of their values."""
    name = ""
    for word in sys.argv[1:]:
        if word.startswith("--"):
            name, equals, given = word[2:].lower().partition("=")
            if equals:
                yield name, given
        else:
            yield name, word


def named_columns() -> dict[str, str]:
    """Return the columns that the arguments name, e.g. with `--image_column photo`, and what they hold."""
    found = {}
    for option, given in _options():
        if re.search(r"column(_?names?)?$", option):
            found |= {name: kind_of(name, option) for name in given.split(",") if name}
    return found


def kind_of(name: str, option: str = "") -> str:
    """Return what a column of this name holds; `option` is that of the script that names it."""
    for text in (option, name):  # the option says more: `--caption_column file`
        for words, kind in _KINDS:
            if any(word in text.lower() for word in words):
                return kind
    return columns.TEXT


def is_named_folder(path: Any) -> bool:
    """Say whether `path` is a folder that an argument names as one with data, or lies in one."""
    if not isinstance(path, (str, os.PathLike)) or os.path.splitext(path)[1]:
        return False
    asked = os.path.abspath(os.fspath(path))
    for option, given in _options():
        if _DATA.search(option) and not _OTHERS.search(option) and os.sep in given:
            folder = os.path.abspath(given)
            if not os.path.lexists(folder) and (asked == folder or asked.startswith(folder + os.sep)):
                return True
    return False


def is_named_file(path: str | os.PathLike[str]) -> bool:
    """Say whether `path` is a file that an argument names as one with data, such as `--train_file support.jsonl`."""
    asked = os.path.abspath(os.fspath(path))
    return any(
        os.path.abspath(given) == asked and (not option or (_DATA.search(option) and not _OTHERS.search(option)))
        for option, given in _options()
    )


def single_tokens() -> tuple[str, ...]:
    """Return words that are one token, as in the model's own vocabulary: those that the arguments call tokens."""
    words = {given for option, given in _options() if "token" in option and re.fullmatch("[a-z]{2,16}", given)}
    return (*_TOKENS, *sorted(words - set(_TOKENS)))
