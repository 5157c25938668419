"""From what is set on the page to an answer: the settings become a command line, and the command answers."""

import argparse
import hashlib
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ..core.program import PROGRAM
from ..planner import RecipeError
from ..planner.catalog.clusters import find_cluster
from ..planner.cli import add_arguments, answer
from ..planner.named import name_options
from ..planner.plan import gpus_of
from .controls import CONTROLS, OWN, Control

Emit = Callable[[dict[str, Any]], None]
"""Sends an event to the page; raises where nobody waits for it any more."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise RecipeError(f"{message[:1].upper()}{message[1:]}.")


def arguments(kind: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the options of `plan` that the settings of "one" GPU or of "many" stand for.

    Raises:
        RecipeError: a setting that no control has.
    """
    known = {control.name: control for control in CONTROLS[kind]}
    if unknown := sorted(set(settings) - set(known)):
        raise RecipeError(f"The page has no control {', '.join(unknown)}.")
    result: list[str] = []
    for name, control in known.items():
        result += _option(control, settings.get(name, control.value), settings)
    return result


def _option(control: Control, value: Any, settings: Mapping[str, Any]) -> list[str]:
    if value is None or value is False or value == "" or (control.name == "lora_rank" and not int(value)):
        return []
    if control.name == "lora_targets" and not int(settings.get("lora_rank", 1) or 0):
        return []
    if control.choices and str(value) not in [str(choice) for choice, _ in control.choices]:
        raise RecipeError(f"{control.label} cannot be {value!r}.")
    if control.switch:
        return [control.flag]
    if control.name == "budget" and settings.get("gpu"):  # of a GPU that has no name
        return []
    if control.name == "price_per_gpu_hour" and not settings.get("run_tokens"):
        return []
    return [control.flag, str(value)]


def command(words: list[str]) -> str:
    """Return the command line that gives the same answer in a terminal."""
    return shlex.join([PROGRAM, *words])


def in_words(kind: str, message: str) -> str:
    """Return a message with the options and fields that it names called what the page calls them."""
    if kind in CONTROLS:
        message = name_options(message, _parser())
    for control in CONTROLS.get(kind, ()):
        pattern = rf"(?<![\w-]){control.flag}(?![\w-])(?:/--[\w-]+)*"
        message = re.sub(pattern, f'"{control.label.partition(",")[0]}"', message)  # without its unit
    return re.sub(r"^Argument (?=\")", "", message)


def _parser() -> _Parser:
    parser = _Parser(add_help=False)
    add_arguments(parser)
    return parser


class Asked:
    """A question: what is set on the page, with the user's own config in a file where the command finds it.

    Args:
        kind: "one" GPU, or "many".
        settings: the controls' values by name.
        config: the text of the user's config.json, or "".
    """

    def __init__(self, kind: str, settings: Mapping[str, Any], config: str = "") -> None:
        if kind not in CONTROLS:
            raise RecipeError(f"The page has no part {kind!r}.")
        self.kind, self.settings = kind, settings
        self.shown = arguments(kind, settings)
        self._path = ""
        if settings.get("model") == OWN:
            if not config.strip():
                raise RecipeError("Paste the model's config.json, or choose its file.")
            folder = Path(tempfile.gettempdir()) / f"planner-page-{hashlib.sha256(config.encode()).hexdigest()[:16]}"
            folder.mkdir(exist_ok=True)
            (folder / OWN).write_text(config, encoding="utf-8")
            self._path = str(folder / OWN)

    @property
    def options(self) -> list[str]:
        """The command's options, with the path of the user's config."""
        return [self._path if self._path and word == OWN else word for word in self.shown]

    def clean(self, text: str) -> str:
        """Return `text` without the path of a file that the user has not chosen."""
        return text.replace(self._path, OWN) if self._path else text

    def parsed(self, *more: str) -> argparse.Namespace:
        """Return the command's options as its parser reads them.

        Raises:
            RecipeError: it refuses one.
        """
        return _parser().parse_args([*self.options, *more])


def plan(asked: Asked, emit: Emit) -> None:
    """Emit the stages of planning as they begin, and the answer; it comes early, then with what takes longer.

    Raises:
        RecipeError: what is asked for cannot be.
    """
    with tempfile.TemporaryDirectory() as folder:
        picture, args = Path(folder) / "timeline.svg", asked.parsed()
        if _by_blocks(args):
            args.timeline = str(picture)
        elif asked.kind == "one":
            args.largest_batch = True
        values, words = answer(
            args,
            lambda stage: emit({"stage": asked.clean(stage)}) if stage else None,
            lambda early: emit({"answer": _told(early, args), "final": False}),
        )
        told = _told(values, args) | {"words": asked.clean(words)}
        if picture.exists():
            told["timeline"] = picture.read_text(encoding="utf-8")
        emit({"answer": told, "final": True})


def _by_blocks(args: argparse.Namespace) -> bool:
    from ..planner.described import described

    return described(vars(args)).config.by_blocks


def _told(values: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return the values with the room of the GPU and its name, as the page's titles have it."""
    gpu = find_cluster(args.cluster).gpu if args.cluster else gpus_of(args.gpu, args.budget)[0]
    return json.loads(json.dumps({**values, "gpu": gpu.name, "room": gpu.room}, default=str))


def export(asked: Asked, engine: str) -> str:
    """Return the configuration of an engine, or the script, that trains as asked.

    Raises:
        RecipeError: it cannot be expressed.
    """
    args = asked.parsed("--export", engine)
    args.run_tokens = args.price_per_gpu_hour = None  # of the answer on the page; no configuration holds them
    return asked.clean(answer(args, lambda stage: None)[1])
