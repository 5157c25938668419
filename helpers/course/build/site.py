"""Render the solved labs to static pages with an index and a search, for reading without a kernel.

Everything a page needs is in it: no server, no network, so a folder of files can be opened from a disk or a phone.
"""

import html
import re
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup, escape
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from ...claims.receipt import receipts
from ...core.inline_code import inline_code
from ..receipts import by_verdict, cells, claim_results, not_measured
from .front_page import PARTS, card
from .lab_map import lab_map, needed, without_detours
from .notebooks import repository
from .routes import routes
from .source import Source, sources

# Without a kernel a control moves nothing, so a picture with controls is shown as the plain picture beside it.
_SHOWN = ["text/html", "image/png", "text/markdown", "text/plain"]
_FOLD, _FOLDED = '<div class="fold"></div>', '<div class="folded"></div>'  # tags that the exporter keeps
_PROSE = re.compile(r'<div class="text_cell_render[^>]*>(.*?)(?=<div class="cell |\Z)', flags=re.DOTALL)


def make_site(out: Path) -> Path:
    """Write the index, a page a lab and the page of claims into the folder `out`; return the index.

    Raises:
        FileNotFoundError: a lab has no built notebook.
    """
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape())
    environment.globals["style"] = HtmlFormatter(style="default").get_style_defs(".highlight")
    out.mkdir(parents=True, exist_ok=True)
    environment.filters |= {"links": _links, "codes": _codes}
    labs = sources()
    needs = needed(labs)
    pages, sections = [], []
    for source in labs:
        notebook = _for_reading(nbformat.read(source.path.with_suffix(".ipynb"), as_version=4))
        title = notebook.cells[0].source.partition("\n")[0].lstrip("# ")
        before = [(name, _short(name)) for name in sorted(without_detours(needs)[source.name])]
        part = PARTS.get(title.partition(" ")[0], "")
        facts = {"name": source.name, "title": title, "body": _body(notebook), "needs": before, "part": part}
        pages.append({**card(source), **facts})
        sections += _sections(source.name, title, pages[-1]["body"])
    for before, page, after in zip([None, *pages], pages, [*pages[1:], None], strict=False):
        text = environment.get_template("site_page.html").render(page=page, before=before, after=after)
        (out / f"{page['name']}.html").write_text(text, encoding="utf-8")
    _write_claims(environment, out / "claims.html")
    index = out / "index.html"
    text = environment.get_template("site_index.html").render(
        pages=pages, sections=sections, map=_map(labs, pages), routes=list(routes()), repository=repository()
    )
    index.write_text(text, encoding="utf-8")
    return index


def _short(name: str) -> str:
    """Return the number of a lab, or the name of an exercise, from the name of its source."""
    number, _, rest = name.partition("_")
    return rest.partition("_")[0].upper() if re.match(r"x\d", rest) else number


def _codes(markdown: str) -> Markup:
    """Turn the words between backticks into code."""
    return Markup(inline_code(markdown))


def _map(labs: list[Source], pages: list[dict[str, str]]) -> Markup:
    """Return the map of the labs, safe to stand in a page."""
    return Markup(lab_map(labs, {page["name"]: page["title"] for page in pages}))


def _write_claims(environment: Environment, path: Path) -> None:
    """Write the page of claims: a summary, what is missing, and a row per measurement, with a filter."""
    claims = list(claim_results(receipts()))
    verdicts = sorted({" ".join(sorted(row.verdicts)) or "no verdict yet" for c in claims for row in c.measurements})
    text = environment.get_template("site_claims.html").render(
        claims=claims, verdicts=verdicts, cells=cells, summary=by_verdict(claims), missing=not_measured(claims)
    )
    path.write_text(text, encoding="utf-8")


def _links(markdown: str) -> Markup:
    """Turn the links of a line of Markdown into HTML."""
    return Markup(re.sub(r"\[([^]]+)\]\((\S+?)\)", r'<a href="\2">\1</a>', str(escape(markdown))))


def _for_reading(notebook: NotebookNode) -> NotebookNode:
    """Leave out what is for running only, and give every picture its words."""
    notebook.cells = [cell for cell in notebook.cells if cell.id != "install"]
    badge = re.compile(r"^\[!\[Open In Colab\].*\n\n?", flags=re.MULTILINE)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\(([\w/.]+)\.ipynb", r"](\1.html", badge.sub("", cell.source))
            cell.source = cell.source.replace("](../docs/", f"]({repository()}/blob/main/docs/")
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.metadata.setdefault("image/png", {})["alt"] = str(output.data.get("text/plain", ""))
    return notebook


class _Exporter(HTMLExporter):
    """Folds the code that a notebook shows collapsed."""

    def register_filter(self, name: str, jinja_filter: Any) -> Any:
        """Wrap the filter that highlights code."""
        if name != "highlight_code":
            return super().register_filter(name, jinja_filter)

        def folded(source: str, metadata: NotebookNode) -> str:
            code = jinja_filter(source, metadata=metadata)
            hidden = metadata.get("jupyter", {}).get("source_hidden")
            return f"{_FOLD}{code}{_FOLDED}" if hidden else code

        return super().register_filter(name, folded)


def _body(notebook: NotebookNode) -> str:
    config = Config({"NbConvertBase": {"display_data_priority": _SHOWN}})
    exporter = _Exporter(config, template_name="basic", exclude_output_prompt=True, exclude_input_prompt=True)
    body = exporter.from_notebook_node(notebook)[0]
    return body.replace(_FOLD, '<details class="code"><summary>code</summary>').replace(_FOLDED, "</details>")


def _sections(name: str, title: str, body: str) -> list[dict[str, str]]:
    """Return what the search looks through: each heading with the prose under it, and where it is."""
    found = [{"lab": title, "heading": title, "to": f"{name}.html", "text": ""}]
    for piece in _PROSE.findall(body):
        text, *rest = re.split(r'<h[2-4] id="([^"]+)">(.*?)</h[2-4]>', piece, flags=re.DOTALL)
        found[-1]["text"] += _plain(text)
        for anchor, heading, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            heading = _plain(heading.partition('<a class="anchor-link"')[0])
            found.append({"lab": title, "heading": heading, "to": f"{name}.html#{anchor}", "text": _plain(text)})
    return found


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>|\s+", " ", text)).strip() + " "
