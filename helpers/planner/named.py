"""Messages of a command: what a run's fields are called in its options."""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .config import RecipeError

_ALONE, _APART = r"(?<![\w./-])", r"(?![\w/-]|\.\w)"  # not part of a path or of another name
_BEGINS, _VERB = r"(?:^|(?<=[;:] )|(?<=\())", r"(?= (?:is|are|needs) )"


@contextmanager
def options_named(add_arguments: Callable[[argparse.ArgumentParser], None]) -> Iterator[None]:
    """Let messages of what is refused inside name options as `add_arguments` describes them, and not fields.

    Raises:
        RecipeError: whatever was refused.
    """
    try:
        yield
    except RecipeError as error:
        parser = argparse.ArgumentParser(add_help=False)
        add_arguments(parser)
        raise RecipeError(name_options(str(error), parser)) from error


def name_options(message: str, parser: argparse.ArgumentParser) -> str:
    """Return `message` with the options of `parser` in place of the fields that they set: "tensor 3" is "--tp 3".

    A field called by a plain word counts as one only before a number, before one of its values, or where it begins a
    clause. What says "zero3" for a stage of ZeRO says "--zero-stage 3".
    """
    shown = [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]
    for action in shown:
        name, flag = action.dest, action.option_strings[0]
        if action.const is False:
            message = re.sub(rf"\bset {name} to False\b", f"add {flag}", message)
            message = re.sub(rf"\b(?:keep|leave) {name}\b(?: at True)?", f"leave out {flag}", message)
            message = re.sub(rf"{_ALONE}{name} False{_APART}", flag, message)
        elif "_" in name:
            message = re.sub(rf"\bleave {name} False\b", f"leave out {flag}", message)
            message = re.sub(f"{_ALONE}{name}{_APART}", flag, message)
        else:
            values = "|".join(["[0-9]", *(f"{re.escape(str(value))}{_APART}" for value in action.choices or ())])
            message = re.sub(f"{_ALONE}{name}(?= (?:{values}))|{_BEGINS}{name}{_VERB}", flag, message)
        if name == "zero":
            message = re.sub(rf"{_ALONE}zero none{_APART}", f"{flag} 0", message)
            message = re.sub(rf"{_ALONE}zero([123]){_APART}", rf"{flag} \1", message)
    return message
