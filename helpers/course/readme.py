"""The README's table of labs, made from the cards at the head of the labs."""

import re

from .source import ROOT, Source, sources

README = ROOT / "README.md"
_TABLE = re.compile(r"(<!-- labs: [^>]*-->\n).*?(<!-- end of labs -->)", re.DOTALL)


def card(source: Source) -> dict[str, str]:
    """Return the rows of the card in the title cell, with the lab's title under "title"."""
    text = source.cells()[0].source
    rows = re.findall(r"^\| ([^|]+?) \| (.+?) \|$", text, flags=re.MULTILINE)
    return {"title": text.partition("\n")[0].removeprefix("# "), **dict(rows)}


def readme() -> str:
    """Return the README with a table of labs that is up to date."""
    lines = ["| Lab | Time | Needs | After it you can |", "|---|---|---|---|"]
    for source in sources():
        row = card(source)
        links = f"[{row['title']}](labs/{source.name}.ipynb) ([solved](solutions/{source.name}.ipynb))"
        lines.append(f"| {links} | {row['Time']} | {row['Needs']} | {row['After this you can']} |")
    table = "\n".join(lines) + "\n"
    return _TABLE.sub(lambda match: match[1] + table + match[2], README.read_text(encoding="utf-8"))
