"""What a learner has measured, lab by lab, in one small file on this machine; and a page made of it.

When a notebook shows its table of claims, the table is kept in `progress.json`: in the folder `.progress` of the course
or, where that cannot be written, of the home directory. It is never sent anywhere; delete it whenever you like.
`TAS_PROGRESS` names another folder; empty or "off", it keeps nothing. Without it only notebooks that run in a Jupyter
server are remembered, so building, testing and grading leave no trace.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

from .claims import Claims, Measurement
from .figures import in_notebook

_ROOT = Path(__file__).parent.parent
Section = str | Sequence[Sequence[str]]  # words, or a table whose first row is its header
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lab report</title><style>
body { max-width: 62em; margin: 2em auto; padding: 0 1em; font: 13px/1.35 system-ui, sans-serif }
</style></head><body>
"""
_BODY = """<style>
.report h2 { font-size: 1.1em; margin: 1.2em 0 .2em } .report table { border-collapse: collapse; width: 100% }
.report td, .report th { text-align: left; padding: .1em .6em .1em 0; border-bottom: 1px solid #ddd }
.report .no { color: #a33b00 } .report .yes { color: #00694d }
</style><div class="report"><h1>Lab report</h1>
{% for title, section in sections.items() %}<h2>{{ title }}</h2>
{% if section is string %}<p>{{ section }}</p>{% else %}<table>
{% for row in section %}{% set tag = 'th' if loop.first else 'td' %}<tr>
{%- for cell in row %}<{{ tag }}>{{ cell }}</{{ tag }}>{% endfor %}</tr>
{% endfor %}</table>{% endif %}{% endfor %}
<p>{{ total }} claims put to the test in {{ labs|length }} lab{{ 's' if labs|length != 1 }}:
{{ held }} held, {{ total - held }} did not.
Written on {{ today }}. A claim that did not hold on one model and one machine may hold on another.</p>
{% for lab in labs %}<h2>{{ lab.name }}</h2><p>measured on {{ lab.device }}</p>
<table><tr><th>claim</th><th>said</th><th>measured on</th><th>measured</th><th>verdict</th></tr>
{% for row in lab.rows %}<tr>{% for cell in row.cells() %}
<td{% if loop.last %} class="{{ 'yes' if row.held else 'no' }}"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endfor %}</div>
"""
_TAIL = "</body></html>\n"


@dataclass(frozen=True)
class _Lab:
    name: str
    rows: list[Measurement]

    @property
    def device(self) -> str:
        return ", ".join(sorted({row.device for row in self.rows}))


class LabReport:
    """One page of what was measured: it shows itself in a notebook, and `save` writes it.

    Attributes:
        labs: the names of the labs it is made of.
        sections: what stands above the claims, by title.
        html: the page; it needs nothing but itself.
    """

    def __init__(self, labs: Sequence[_Lab], sections: Mapping[str, Section] | None = None) -> None:
        from jinja2 import Environment

        rows = [row for lab in labs for row in lab.rows]
        held = sum(row.held for row in rows)
        page = Environment(autoescape=True).from_string(_BODY)
        self.labs = [lab.name for lab in labs]
        self.sections = dict(sections or {})
        today = date.today().isoformat()
        self._body = page.render(labs=labs, sections=self.sections, total=len(rows), held=held, today=today)
        self.html = _HEAD + self._body + _TAIL
        self._words = f"Lab report: {len(rows)} claims in {len(labs)} lab{'s' * (len(labs) != 1)}, {held} held"

    def __repr__(self) -> str:
        return self._words

    def _repr_html_(self) -> str:
        return self._body

    def save(self, path: str | Path) -> None:
        """Write the page to `path`."""
        Path(path).write_text(self.html, encoding="utf-8", newline="\n")


def _file() -> Path | None:
    """Return where progress is kept; None when it is not."""
    told = os.environ.get("TAS_PROGRESS")
    if told is not None:
        return None if told.strip().lower() in ("", "off") else Path(told) / "progress.json"
    if not (in_notebook() and os.environ.get("JPY_SESSION_NAME")):
        return None
    home = _ROOT if os.access(_ROOT, os.W_OK) else Path.home()
    return home / ".progress" / "progress.json"


def _lab_here() -> str:
    return Path(os.environ.get("JPY_SESSION_NAME") or "this lab").stem


def _read(path: Path | None) -> dict[str, list[Measurement]]:
    known = {field.name for field in fields(Measurement)}
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):  # no file, or not one of ours
        kept = json.loads(path.read_text(encoding="utf-8")) if path else {}
        return {
            lab: [Measurement(**row) for row in rows if set(row) == known] for lab, rows in sorted(kept.items()) if rows
        }
    return {}


def remember(rows: Sequence[Measurement]) -> None:
    """Keep the claims of the notebook that runs, in place of what was kept of it before."""
    path = _file()
    if path is None or not rows:
        return
    kept = _read(path) | {_lab_here(): list(rows)}
    text = json.dumps({lab: [asdict(row) for row in each] for lab, each in kept.items()}, indent=1)
    with contextlib.suppress(OSError):  # a full or locked disk is no reason to stop a lab
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)


def lab_report(claims: Claims, sections: Mapping[str, Section] | None = None) -> LabReport:
    """Return the page of all labs that are remembered, with the `claims` of this one.

    Args:
        claims: of the notebook that runs.
        sections: what to put above them: title -> words, or rows of cells, the first of them the header.
    """
    kept = _read(_file()) | {_lab_here(): list(claims.rows)}
    return LabReport([_Lab(lab, rows) for lab, rows in kept.items() if rows], sections)
