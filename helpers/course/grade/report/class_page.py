"""The page for the instructor: how the class did, what was missed most and why, and what needs a human."""

import io
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from itertools import groupby

import matplotlib
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ....core.colors import COLORS
from ....exercises.base import Outcome
from ..judge.result import Result
from ..store.conditions import Conditions
from .audit import audit_name
from .feedback import PAGES, by_student, layout, page_name
from .resemblance import Pair

_INK = "#123456"  # becomes the page's own color of text, so that figures are legible in dark mode


@dataclass
class Miss:
    """A check that was missed.

    Attributes:
        count: submissions whose answer was wrong.
        blank: submissions in which its part was not attempted.
        diagnosis: what those with a wrong answer were told most often; "" where none was wrong.
    """

    check: str
    rule: str
    count: int
    blank: int
    diagnosis: str


@dataclass
class Exercise:
    """What the page says of one exercise."""

    name: str
    title: str
    attempts: int
    blank: int
    statuses: Counter[str]
    misses: list[Miss]
    totals: Markup
    missed: Markup
    median: float
    longest: Result | None


def class_page(results: list[Result], pairs: list[Pair], conditions: Conditions, planned: int) -> str:
    """Return the page. `planned` is the number of submissions; fewer results mean a run that was interrupted."""
    ordered = sorted(results, key=lambda r: r.exercise)
    exercises = [_exercise(name, list(theirs)) for name, theirs in groupby(ordered, key=lambda r: r.exercise)]
    students = [
        (student, page_name(student), {r.exercise: r for r in theirs}, _total(theirs))
        for student, theirs in by_student(results).items()
    ]
    page, submitted = PAGES.get_template("class.html"), [r for r in results if r.status != "missing"]
    return page.render(
        exercises=exercises,
        students=students,
        pairs=pairs,
        conditions=conditions,
        submitted=len(submitted),
        graded=len(results),
        planned=planned,
        seconds_of_all=sum(r.seconds for r in results),
        page_name=page_name,
        audit_name=audit_name,
    )


def _total(results: list[Result]) -> float | str:
    """Return a student's points; "" where there is no grade."""
    graded = [r.total for r in results if r.has_grade]
    return sum(graded) if graded else ""


def _exercise(name: str, results: list[Result]) -> Exercise:
    tried = [r for r in results if r.status not in ("missing", "unreadable") and not r.blank]
    times = [r.seconds for r in tried if r.seconds]
    blank = sum(r.blank for r in results)
    misses = _misses(tried)
    return Exercise(
        name=name,
        title=layout(name)[0],
        attempts=len(tried),
        blank=blank,
        statuses=Counter(r.status for r in results),
        misses=misses,
        totals=_histogram(name, tried, blank) if tried else Markup(),
        missed=_bars(name, misses, len(tried)) if misses else Markup(),
        median=statistics.median(times) if times else 0.0,
        longest=max(tried, key=lambda r: r.seconds) if times else None,
    )


def _misses(tried: list[Result]) -> list[Miss]:
    """Return the checks that were missed, those with most wrong answers first."""
    by_check: dict[str, list] = {}
    for r in tried:
        for v in r.verdicts:
            if not v.passed:
                by_check.setdefault(v.check, []).append(v)
    misses = []
    for check, verdicts in by_check.items():
        wrong = [v for v in verdicts if v.outcome is not Outcome.NOT_ATTEMPTED]
        # Figures differ from submission to submission where the mistake is the same.
        alike = [re.sub(r"\d[\d.,e+-]*", "#", v.diagnosis) for v in wrong]
        most = Counter(alike).most_common(1)[0][0] if wrong else ""
        example = _shortened(wrong[alike.index(most)].diagnosis) if wrong else ""
        misses.append(Miss(check, verdicts[0].rule, len(wrong), len(verdicts) - len(wrong), example))
    return sorted(misses, key=lambda miss: (-miss.count, -miss.blank))


def _shortened(text: str, most: int = 300) -> str:
    """Return a diagnosis that fits into the table, cut between words and not within code.

    >>> _shortened("The call `a b c` fails", 13), _shortened("The call", 18)
    ('The call …', 'The call')
    """
    if len(text) <= most:
        return text
    text = text[:most].rpartition(" ")[0] or text[:most]
    if text.count("`") % 2:
        text = text[: text.rindex("`")]
    return f"{text.rstrip()} …"


def _histogram(name: str, tried: list[Result], blank: int) -> Markup:
    counts, maximum = Counter(round(r.total) for r in tried), tried[0].maximum  # a policy may give half points
    figure = Figure(figsize=(5.2, 2.6), layout="constrained")
    axes = figure.add_subplot()
    points = range(round(maximum) + 1)
    axes.bar(points, [counts[n] for n in points], color=COLORS[0], width=0.8)
    if blank:
        axes.bar([0], [blank], bottom=[counts[0]], color=COLORS[7], width=0.8, label="blank")
        figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8, labelcolor=_INK)
    axes.set(title=f"{name.upper()}: points earned", xlabel="points", ylabel="submissions", xticks=points)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    words = ", ".join([f"{counts[n]} with {n}" for n in points if counts[n]] + [f"{blank} blank"] * bool(blank))
    return _svg(
        figure, f"{name}-totals", f"Histogram of the points earned in {name.upper()}, out of {maximum}: {words}."
    )


def _bars(name: str, misses: list[Miss], tried: int) -> Markup:
    figure = Figure(figsize=(6.2, 0.9 + 0.3 * len(misses)), layout="constrained")
    axes = figure.add_subplot()
    checks, wrong = [miss.check for miss in misses], [miss.count for miss in misses]
    axes.barh(checks, wrong, color=COLORS[4], height=0.7, label="missed")
    if any(miss.blank for miss in misses):
        axes.barh(checks, [m.blank for m in misses], left=wrong, color=COLORS[7], height=0.7, label="not attempted")
        figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8, labelcolor=_INK)
    axes.invert_yaxis()
    axes.set(
        title=f"{name.upper()}: checks missed",
        xlabel=f"of {tried} attempted",
        xlim=(0, max(tried, 1) * 1.08),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    words = ", ".join(f"{miss.check} missed in {miss.count}, not attempted in {miss.blank}" for miss in misses)
    return _svg(
        figure, f"{name}-missed", f"Bar chart of the checks missed in {name.upper()}, {tried} submissions: {words}."
    )


def _svg(figure: Figure, name: str, alt: str) -> Markup:
    """Return `figure` as SVG that stands in a page: text stays text, colors of ink are the page's, ids are its own."""
    for axes in figure.axes:
        axes.title.set_color(_INK)
        axes.tick_params(colors=_INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_INK)
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set_color(_INK)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :].replace(_INK, "currentColor")
    drawn = re.sub(r'( id="|="#|url\(#)', rf"\1{name}-", drawn)
    return Markup(drawn.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1))
