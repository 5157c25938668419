"""One page of what a learner has measured in all labs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from .claims import Claims
from .measurement import Measurement
from .progress import current_lab, progress_file, read_progress

Section = str | Sequence[Sequence[str]]  # a text, or a table whose first row is its header
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Lab report</title><style>
body { max-width: 62em; margin: 2em auto; padding: 0 1em; font: 13px/1.35 system-ui, sans-serif }
</style></head><body>
"""
_BODY = """<style>
.report h2 { font-size: 1.1em; margin: 1.2em 0 .2em }
.report table { border-collapse: collapse; width: 100%; table-layout: auto !important }  /* JupyterLab has its own */
.report td, .report th { text-align: left !important; padding: .1em .6em .1em 0; border-bottom: 1px solid #ddd }
.report .no { color: #a33b00 } .report .yes { color: #00694d }
</style><div class="report"><h1>Lab report</h1>
{% for title, section in sections.items() %}<h2>{{ title }}</h2>
{% if section is string %}<p>{{ section }}</p>{% else %}<table>
{% for row in section %}{% set tag = 'th' if loop.first else 'td' %}<tr>
{%- for cell in row %}<{{ tag }}>{{ cell }}</{{ tag }}>{% endfor %}</tr>
{% endfor %}</table>{% endif %}{% endfor %}
<p>{{ total }} claims tested in {{ labs|length }} lab{{ 's' if labs|length != 1 }}:
{{ held }} held, {{ total - held }} did not{% if missing %}; {{ missing }} could not be measured{% endif %}.
Written on {{ today }}. A claim that did not hold on one model and one machine may hold on another.</p>
{% for lab in labs %}<h2>{{ lab.name }}</h2><p>measured on {{ lab.device }}</p>
<table><tr><th>claim</th><th>said</th><th>measured on</th><th>measured</th><th>verdict</th></tr>
{% for row in lab.rows %}<tr>
{% for cell in (row.claim, row.said, row.subject, row.figure) %}<td>{{ cell }}</td>{% endfor %}
{% set tried = row.tests and row.measured is not none %}
<td{% if tried %} class="{{ 'yes' if row.held else 'no' }}"{% endif %}>{{ row.verdict }}</td></tr>
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
    """One page of what was measured: it displays itself in a notebook, and `save` writes it.

    Attributes:
        labs: the names of its labs.
        sections: what stands above the claims, by title.
        html: the page, which needs no other files.
    """

    def __init__(self, labs: Sequence[_Lab], sections: Mapping[str, Section] | None = None) -> None:
        from jinja2 import Environment

        every = [row for lab in labs for row in lab.rows if row.tests]  # figures have no verdict to count
        rows = [row for row in every if row.measured is not None]
        held = sum(row.held for row in rows)
        page = Environment(autoescape=True).from_string(_BODY)
        self.labs = [lab.name for lab in labs]
        self.sections = dict(sections or {})
        today = date.today().isoformat()
        counts = {"total": len(rows), "held": held, "missing": len(every) - len(rows)}
        self._body = page.render(labs=labs, sections=self.sections, today=today, **counts)
        self.html = _HEAD + self._body + _TAIL
        self._summary = f"Lab report: {len(rows)} claims in {len(labs)} lab{'s' * (len(labs) != 1)}, {held} held"

    def __repr__(self) -> str:
        return self._summary

    def _repr_html_(self) -> str:
        return self._body

    def save(self, path: str | Path) -> None:
        """Write the page to `path`."""
        Path(path).write_text(self.html, encoding="utf-8", newline="\n")


def lab_report(claims: Claims, sections: Mapping[str, Section] | None = None) -> LabReport:
    """Return the page of all labs whose progress is saved, with the `claims` of this one.

    Args:
        claims: of the running notebook.
        sections: what to put above them: title -> a text, or rows of cells, the first of them the header.
    """
    rows_by_lab = {name: lab.claims for name, lab in read_progress(progress_file()).items()}
    rows_by_lab[current_lab()] = list(claims.rows)
    return LabReport([_Lab(lab, rows) for lab, rows in rows_by_lab.items() if rows], sections)
