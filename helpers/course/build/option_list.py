"""The tables of docs/options.md: every command and every option that its help shows, read from the parsers."""

import argparse
from importlib import import_module

from ...__main__ import COMMANDS
from ...core.program import PROGRAM


def option_list() -> str:
    """Return a section for each command, with a table of its options."""
    return "\n\n".join(_section(name) for name in COMMANDS)


def _section(name: str) -> str:
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} {name}", add_help=False)
    import_module(COMMANDS[name].module, "helpers").add_arguments(parser)
    lines = [f"## {name}", "", COMMANDS[name].help[0].upper() + COMMANDS[name].help[1:] + "."]
    for group in parser._action_groups:  # argparse keeps no public list of what was added
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if not shown:
            continue
        titled = group.title not in ("positional arguments", "options")
        lines += ["", *([f"**{group.title}**", ""] if titled else []), "| option | meaning |", "|---|---|"]
        lines += [f"| {_head(action)} | {_text(action, parser)} |" for action in shown]
    return "\n".join(lines)


def _head(action: argparse.Action) -> str:
    """Return how an option is written, with its value's name: `--gpu NAME`."""
    value = "" if action.nargs == 0 else action.metavar or ("" if action.choices else action.dest.upper())
    if not action.option_strings:
        return f"`{value or action.dest}`"
    return ", ".join(f"`{f'{flag} {value}'.strip()}`" for flag in action.option_strings).replace("|", "\\|")


def _text(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the help of an option, with its choices."""
    said = (action.help or "") % {"prog": parser.prog, "default": action.default} if action.help else ""
    chosen = ", ".join(f"`{choice}`" for choice in action.choices or ())
    return "; ".join(part for part in (said, chosen and f"one of {chosen}") if part).replace("|", "\\|")
