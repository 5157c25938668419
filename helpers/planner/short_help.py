"""Help that fits one screen: examples first, then the options that most runs need. `--help-all` prints the rest."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

WIDTH, COLUMN = 110, 33
EXAMPLES = (
    (
        "--model llama-2-7b --lora-rank 16 --activation-checkpointing full --gpu rtx-4090",
        "one GPU: whether the run fits, and how long a step takes",
    ),
    ("--model config.json --micro-batch-size 8 --budget 16", "a Hugging Face config, 16 GiB"),
    ("--model llama-3.1-70b --gpus 64 --tp 8 --pp 4 --cluster dgx-h100", "many GPUs"),
    ("--from axolotl.yaml --gpu rtx-4090", "the run that a configuration or a launch script describes"),
)
USUAL = ("model", "gpu", "budget", "micro_batch_size", "seq", "precision", "optimizer", "lora_rank", "lora_targets")
USUAL += ("quantize", "checkpointing", "compile", "gradient_accumulation_steps", "gpus", "cluster", "tensor")
USUAL += ("pipeline", "shard", "zero", "from_file", "json", "list")


class HelpAll(argparse.Action):
    """Prints the help of every option and ends the program."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # as argparse calls it
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print it."""
        print(argparse.ArgumentParser.format_help(parser), end="")
        parser.exit()


def shorten_help(parser: argparse.ArgumentParser) -> None:
    """Let `--help` of a parser that has all its options print one screen, and `--help-all` everything."""
    parser.add_argument("--help-all", action=HelpAll, dest="help_all", help="show every option")
    parser.format_help = lambda: short_help(parser)  # type: ignore[method-assign]


def short_help(parser: argparse.ArgumentParser) -> str:
    """Return the examples, a line for each of the usual options that the parser has, and where the others are."""
    known = {action.dest: action for action in parser._actions if action.help != argparse.SUPPRESS}
    lines = ["examples:"]
    for arguments, meaning in EXAMPLES:
        lines.append(f"  {parser.prog} {arguments}")
        lines.append(f"{'':{8}}{meaning}")
    lines += ["", "options:"]
    for action in (known[name] for name in USUAL if name in known):
        lines.append(_line(action))
    others = len(known) - sum(name in known for name in USUAL) - 1  # --help itself
    lines += ["", f"{parser.prog} --help-all shows these and {others} more."]
    return "\n".join(lines) + "\n"


def _line(action: argparse.Action) -> str:
    option = action.option_strings[0]
    takes = action.nargs != 0
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    head = f"  {option} {value}" if takes else f"  {option}"
    if len(head) >= COLUMN:  # too much for the column
        head = f"  {option} "
    text = (action.help or "").replace("%%", "%")
    line = f"{head:<{COLUMN}}{text}"
    return line if len(line) <= WIDTH else line[: WIDTH - 4].rpartition(" ")[0] + " ..."
