"""The tables of README.md and docs/, made from the cards at the head of the labs, the receipts and the sources.

A table stands between two HTML comments, the first of which says who writes it. Everything outside of them is written
by hand.
"""

import re
from pathlib import Path

from ...claims.receipt import receipts
from ...core.files import PACKAGE, ROOT
from ..receipts import claims_table
from .card import card, minutes
from .codes import code_tables
from .import_graph import room_picture, room_table
from .notebooks import colab
from .option_list import option_list
from .routes import routes_table, weeks_table
from .source import sources

README = ROOT / "README.md"
DOCS = ROOT / "docs"
# The parts of the course, each with the number of its first lab.
PARTS = {
    "00": "Memory on one device",
    "07": "Time on one device",
    "11": "Many devices",
    "18": "Long runs",
    "19": "FP8, fine-tuning, and putting it all together",
}
_PLACE = r"(<!-- {}: [^>]*-->\n).*?(<!-- end of {} -->)"


def pages() -> dict[Path, str]:
    """Return README.md and the pages of docs/ that hold such tables, up to date."""
    return {
        README: filled(README, routes=routes_table(), labs=_short_list(), attacks=_attacks()),
        DOCS / "labs.md": filled(DOCS / "labs.md", labs=_long_list()),
        DOCS / "claims.md": filled(DOCS / "claims.md", claims=claims_table(receipts())),
        DOCS / "paths.md": filled(DOCS / "paths.md", weeks=weeks_table()),
        DOCS / "codes.md": filled(DOCS / "codes.md", codes=code_tables()),
        DOCS / "options.md": filled(DOCS / "options.md", options=option_list()),
        DOCS / "architecture.md": filled(
            DOCS / "architecture.md", picture=room_picture(PACKAGE), rooms=room_table(PACKAGE)
        ),
    }


def filled(path: Path, **tables: str) -> str:
    """Return the text of the page `path` with each of `tables` in its place."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        place = re.compile(_PLACE.format(name, name), re.DOTALL)
        text = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    return text


def _short_list() -> str:
    lines = ["| Lab | Minutes | Without installing |", "|---|---|---|"]
    parts = dict(PARTS)
    for source in sources():
        if part := parts.pop(source.number, None):
            lines.append(f"| **{part}** | | |")
        least, most = minutes(source)
        time = str(most) if least == most else f"{least} to {most}"
        lines.append(
            f"| [{card(source)['title']}](labs/{source.name}.ipynb) | {time} | [Colab]({colab(source.name)}) |"
        )
    return "\n".join(lines)


def _long_list() -> str:
    lines = ["| Lab | Time | Needs | After it you can |", "|---|---|---|---|"]
    for source in sources():
        row = card(source)
        links = f"[{row['title']}](../labs/{source.name}.ipynb) ([solved](../solutions/{source.name}.ipynb))"
        lines.append(f"| {links} | {row['Time']} | {row['Needs']} | {row['After this you can']} |")
    return "\n".join(lines)


def _attacks() -> str:
    count = len(list((ROOT / "tests" / "attacks" / "hand_ins").glob("*.py")))
    earns = "Each must get exactly the points that it earns, and must not change any other result."
    return f"The tests include {count} hostile submissions. {earns}"
