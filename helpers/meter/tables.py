"""Tables that several labs print."""

from collections.abc import Mapping

from ..core.table import text_table
from ..core.units import human_bytes
from .categories import CATEGORIES
from .profile import MemoryProfile


def stage_table(profile: MemoryProfile) -> str:
    """Return a row for each stage of a step: its peak, and what it leaves behind, by category."""
    short = {category: category.split()[0] for category in CATEGORIES}  # "optimizer state" -> "optimizer"
    categories = [t for t in CATEGORIES if any(stage.held_after[t] for stage in profile.stages)]
    lines = [f"{'stage':15}{'peak':>11} | leaves" + "".join(f"{short[category]:>13}" for category in categories)]
    for stage in profile.stages:
        held = "".join(f"{human_bytes(stage.held_after[category]):>13}" for category in categories)
        lines.append(f"{stage.name:15}{human_bytes(stage.peak_bytes):>11} |       {held}")
    return "\n".join(lines)


def peak_table(profile: MemoryProfile, rows: int = 8) -> str:
    """Return the largest stretches of memory alive at the peak: category, size, and the operation that made it."""
    peak = profile.peak_time
    alive = [b for b in profile.lifetimes if b.start <= peak and (b.end is None or b.end > peak)]
    alive.sort(key=lambda b: -b.nbytes)
    lines = [f"{b.category:23}{human_bytes(b.nbytes):>12}   {b.op}" for b in alive[:rows]]
    rest = sum(b.nbytes for b in alive[rows:])
    return "\n".join(
        [*lines, f"{f'{len(alive) - rows} more':23}{human_bytes(rest):>12}"] if len(alive) > rows else lines
    )


def category_table(runs: Mapping[str, MemoryProfile]) -> str:
    """Return the most that each category held in each run, a row a category; the last column compares last with first.

    Categories reach their own maxima at different moments, so a column adds up to more than its peak.
    """
    profiles = list(runs.values())
    rows = [(category, [profile.largest[category] for profile in profiles]) for category in CATEGORIES]
    rows = [(name, held) for name, held in rows if any(held)] + [("PEAK", [profile.peak_bytes for profile in profiles])]
    table = [["", *runs, "last/first"]]
    for name, held in rows:
        ratio = f"{held[-1] / held[0]:.2f}" if held[0] else "new"
        table.append([name, *map(human_bytes, held), ratio])
    return text_table(table)
