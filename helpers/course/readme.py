"""The README's tables of labs and of claims, made from the cards at the head of the labs and from the receipts."""

import re

from ..receipt import receipts
from .receipts import claims_table
from .source import ROOT, Source, sources

README = ROOT / "README.md"
_LABS = re.compile(r"(<!-- labs: [^>]*-->\n).*?(<!-- end of labs -->)", re.DOTALL)
_CLAIMS = re.compile(r"(<!-- claims: [^>]*-->\n).*?(<!-- end of claims -->)", re.DOTALL)


def card(source: Source) -> dict[str, str]:
    """Return the rows of the card in the title cell, with the lab's title under "title"."""
    text = source.cells()[0].source
    rows = re.findall(r"^\| ([^|]+?) \| (.+?) \|$", text, flags=re.MULTILINE)
    return {"title": text.partition("\n")[0].removeprefix("# "), **dict(rows)}


def readme() -> str:
    """Return the README with tables of labs and claims that are up to date."""
    lines = ["| Lab | Time | Needs | After it you can |", "|---|---|---|---|"]
    for source in sources():
        row = card(source)
        links = f"[{row['title']}](labs/{source.name}.ipynb) ([solved](solutions/{source.name}.ipynb))"
        lines.append(f"| {links} | {row['Time']} | {row['Needs']} | {row['After this you can']} |")
    text = README.read_text(encoding="utf-8")
    for place, table in ((_LABS, "\n".join(lines)), (_CLAIMS, claims_table(receipts()))):
        text = place.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
    return text
