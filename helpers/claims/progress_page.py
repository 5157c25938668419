"""python -m helpers progress: what this learner has predicted, measured and solved, as a page in the browser."""

import argparse
import sys
import webbrowser
from datetime import date
from pathlib import Path

from ..core.files import atomic_write
from ..core.units import unit_of_distance, with_unit
from .prediction import is_exact
from .progress import Guess, LabProgress, default_file, progress_file, read_progress

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Your progress</title><style>
body { max-width: 60rem; margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a }
h2 { border-top: 1px solid #ccc; padding-top: .8rem; margin-top: 1.6rem; font-size: 1.15rem; overflow-wrap: anywhere }
h3 { font-size: 1rem; margin: .8rem 0 .2rem } code { overflow-wrap: anywhere }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .95rem }
td, th { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap }
.yes { color: #00694d } .no { color: #a33b00 } .quiet { color: #555 }
@media (max-width: 45rem) {
  table, tbody { display: block }
  tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid #ddd }
  td, th { flex: 0 1 auto; border: 0 } td:empty, th:empty { display: none }
  td:first-child, th:first-child { flex: 1 0 100%; padding-bottom: 0 }
}
</style></head><body>
<h1>Your progress</h1>
<p>{{ labs|length }} lab{{ "s" if labs|length != 1 }}, {{ guesses }} prediction{{ "s" if guesses != 1 }},
{{ near }} of them within 10%; {{ solved }} of {{ checks }} checks passed.
Written on {{ today }} from {{ path }}, which stays on this machine. Delete that file to start again.</p>
{% for name, lab in labs.items() %}
<h2>{{ name }}</h2>
{% if lab.guesses %}<h3>Predicted</h3><div class="wide"><table>
<tr><th>Question</th><th class="n">Your guess</th><th class="n">Answer</th><th>How far off</th></tr>
{% for question, guess in lab.guesses.items() %}<tr><td>{{ question }}</td>
<td class="n">{{ shown(guess.guess, guess.unit) }}</td>
<td class="n">{{ shown(guess.measured, guess.unit) }}</td><td>{{ how_far(guess) }}</td></tr>
{% endfor %}</table></div>{% endif %}
{% if lab.checks %}<h3>Solved</h3><div class="wide"><table>
<tr><th>Check</th><th>Last run</th><th class="n">{{ "Points" if graded(lab) }}</th></tr>
{% for check, (passed, points, most) in lab.checks.items() %}<tr><td><code>{{ check }}</code></td>
<td class="{{ "yes" if passed else "no" }}">{{ "✓ passed" if passed else "✗ not yet" }}</td>
<td class="n">{{ points ~ " of " ~ most if most else "" }}</td></tr>
{% endfor %}</table></div>{% endif %}
{% if lab.claims %}<p class="quiet">{{ lab.claims|length }} figure{{ "s" if lab.claims|length != 1 }} measured for its
table of claims.</p>{% endif %}
{% else %}<p>Nothing is saved yet. Notebooks save what you predict and solve when you run them in JupyterLab.</p>
{% endfor %}</body></html>
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command."""
    parser.add_argument("--no-browser", action="store_true", help="only write the page")


def run(args: argparse.Namespace) -> int:
    """Write the page beside the file of progress and open it. Returns the exit code 0."""
    source = progress_file() or default_file()
    page = source.with_suffix(".html")
    page.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(page, progress_page(read_progress(source), source))
    print(page)
    if not args.no_browser and sys.stdout.isatty():
        webbrowser.open(page.resolve().as_uri())
    return 0


def progress_page(labs: dict[str, LabProgress], path: Path) -> str:
    """Return the page as HTML that needs no other files.

    Args:
        labs: the progress by lab.
        path: of the file that holds it.
    """
    from jinja2 import Environment

    guesses = [guess for lab in labs.values() for guess in lab.guesses.values()]
    checks = [passed for lab in labs.values() for passed, *_ in lab.checks.values()]
    page = Environment(autoescape=True).from_string(_PAGE)
    return page.render(
        labs=labs,
        guesses=len(guesses),
        near=sum(map(is_near, guesses)),
        solved=sum(checks),
        checks=len(checks),
        today=date.today().isoformat(),
        path=path,
        shown=lambda figure, unit: with_unit(f"{figure:,.4g}" if abs(figure) < 1e4 else f"{figure:,.0f}", unit),
        how_far=how_far,
        graded=lambda lab: any(most for *_, most in lab.checks.values()),
    )


def is_near(guess: Guess) -> bool:
    """Return whether a guess lies within 10% of the answer."""
    return is_exact(guess.guess, guess.measured) or abs(guess.guess - guess.measured) <= 0.1 * abs(guess.measured)


def how_far(guess: Guess) -> str:
    """Say how far a guess is off: a factor, or a distance where the sign or a zero forbids one."""
    if is_exact(guess.guess, guess.measured):
        return "exactly right"
    if is_near(guess):
        return "within 10%"
    if guess.difference or not guess.measured or guess.guess / guess.measured <= 0:
        return f"off by {with_unit(f'{abs(guess.guess - guess.measured):,.4g}', unit_of_distance(guess.unit))}"
    ratio = guess.guess / guess.measured
    return f"{ratio:,.3g} times the answer"
