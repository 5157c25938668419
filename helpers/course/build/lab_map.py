"""The map of the labs: what needs what, drawn from the line "Before this" of their cards, as an SVG in the page.

A lab stands in the row after the last of those that it needs. Lines that follow from others are left out: whoever
has done a lab has done what that lab needs.
"""

import html
import re
from graphlib import CycleError, TopologicalSorter

from .source import BuildError, Source

WIDTH, HEIGHT = 172, 46  # of a box
GAP, DROP = 16, 44  # between boxes of a row, and between rows
LONGEST = 24  # letters in a box
_NEEDS = re.compile(r"\[\[#?(\w+)\]\]")
_GENTLE = 0.5  # of the way between two rows, where a line bends


def needed(labs: list[Source]) -> dict[str, set[str]]:
    """Return for each lab, by name, those that its card names as needed before; an exercise needs its lab as well.

    Raises:
        BuildError: a card names a lab that is not there, or labs need each other in a circle.
    """
    by_topic = {lab.topic: lab.name for lab in labs}
    lab_of = {lab.number: lab.name for lab in labs if not lab.graded}
    needs = {}
    for lab in labs:
        row = re.search(r"^\| Before this \| (.+?) \|$", lab.cells()[0].source, flags=re.MULTILINE)
        wanted = [part for part in (row[1] if row else "").split(";") if not part.endswith(("help", "helps"))]
        topics = [topic.lower() for part in wanted for topic in _NEEDS.findall(part)]
        lost = [topic for topic in topics if topic not in by_topic]
        if lost:
            raise BuildError(f"{lab.name}: the card's row 'Before this' names a lab that does not exist: {lost[0]!r}.")
        needs[lab.name] = {by_topic[topic] for topic in topics}
        if lab.graded and lab.number in lab_of:
            needs[lab.name].add(lab_of[lab.number])
    try:
        tuple(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise BuildError(f"Labs need each other: {' needs '.join(error.args[1])}.") from None
    return needs


def without_detours(needs: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the needs that do not follow from others."""
    everything: dict[str, set[str]] = {}
    for name in TopologicalSorter(needs).static_order():
        everything[name] = needs[name].union(*(everything[before] for before in needs[name]))
    return {name: {b for b in before if not any(b in everything[o] for o in before)} for name, before in needs.items()}


def rows(needs: dict[str, set[str]]) -> list[list[str]]:
    """Return the labs by how long the longest way to them is, each row in the course's order."""
    depth: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        depth[name] = 1 + max((depth[before] for before in needs[name]), default=-1)
    return [sorted(name for name in needs if depth[name] == row) for row in range(1 + max(depth.values(), default=-1))]


def lab_map(labs: list[Source], titles: dict[str, str]) -> str:
    """Return the map as an SVG whose boxes are links to the pages of the labs.

    Args:
        labs: all that are drawn.
        titles: by name, what is written into a box.

    Raises:
        BuildError: as in `needed`.
    """
    needs = without_detours(needed(labs))
    lines = rows(needs)
    across = max(map(len, lines), default=0)
    width, height = across * (WIDTH + GAP) + GAP, len(lines) * (HEIGHT + DROP) + GAP
    at = {}
    for row, names in enumerate(lines):
        left = (width - len(names) * (WIDTH + GAP) + GAP) / 2
        at |= {name: (left + i * (WIDTH + GAP), GAP + row * (HEIGHT + DROP)) for i, name in enumerate(names)}
    drawn = [_line(at[before], at[name], before, name) for name in needs for before in sorted(needs[name])]
    drawn += [_box(lab, titles[lab.name], at[lab.name]) for lab in labs]
    words = "Map of the labs: an arrow leads from each lab to those that need it."
    head = f'<svg class="map" viewBox="0 0 {width} {height}" role="img" aria-label="{words}" width="{width}">'
    arrow = '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return "\n".join([head, f'<defs>{arrow}<path d="M0 0L8 4L0 8z"/></marker></defs>', *drawn, "</svg>"])


def _line(start: tuple[float, float], end: tuple[float, float], before: str, name: str) -> str:
    x, y, to_x, to_y = start[0] + WIDTH / 2, start[1] + HEIGHT, end[0] + WIDTH / 2, end[1]
    bend = DROP * _GENTLE + (to_y - y) * 0.2
    path = f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path class="need" data-from="{before}" data-to="{name}" d="{path}" marker-end="url(#tip)"/>'


def _box(lab: Source, title: str, place: tuple[float, float]) -> str:
    x, y = place
    kind = "exercise" if lab.graded else "lab"
    middle = x + WIDTH / 2
    words = _in_two_lines(title)
    top = y + HEIGHT / 2 + (4 if len(words) == 1 else -4)
    texts = (
        f'<text x="{middle:.0f}" y="{top + 16 * i:.0f}">{html.escape(text)}</text>' for i, text in enumerate(words)
    )
    box = f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
    return f'<a class="{kind}" href="{lab.name}.html">{box}{"".join(texts)}</a>'


def _in_two_lines(title: str) -> list[str]:
    """Break a title where both lines are nearest to equal, if it is long; cut what does not fit then."""
    title = title.partition(":")[0]
    words = title.split()
    if len(title) <= LONGEST or len(words) == 1:
        return [title]
    ways = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(1, len(words))]
    best = min(ways, key=lambda pair: max(map(len, pair)))
    return [line if len(line) <= LONGEST else line[: LONGEST - 1].rstrip() + "…" for line in best]
