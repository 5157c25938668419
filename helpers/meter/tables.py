"""Tables that several labs show."""

from collections.abc import Mapping

from ..core.units import human_bytes
from .categories import CATEGORIES
from .profile import MemoryProfile

Rows = list[tuple[str, ...]]  # for `show_table`, the header first


def stage_table(profile: MemoryProfile) -> Rows:
    """Return a row for each stage of a step: its peak, and what is held when it ends, by category."""
    categories = [t for t in CATEGORIES if any(stage.held_after[t] for stage in profile.stages)]
    heads = [f"held after: {category}" if number == 0 else category for number, category in enumerate(categories)]
    table: Rows = [("stage", "peak", *heads)]
    for stage in profile.stages:
        held = (human_bytes(stage.held_after[category]) for category in categories)
        table.append((stage.name, human_bytes(stage.peak_bytes), *held))
    return table


def peak_table(profile: MemoryProfile, rows: int = 8) -> Rows:
    """Return the largest stretches of memory alive at the peak: category, size, and the operation that made it."""
    peak = profile.peak_time
    alive = [b for b in profile.lifetimes if b.start <= peak and (b.end is None or b.end > peak)]
    alive.sort(key=lambda b: -b.nbytes)
    table: Rows = [("alive at the peak", "size", "made by")]
    table += [(b.category, human_bytes(b.nbytes), str(b.op)) for b in alive[:rows]]
    rest = alive[rows:]
    return [*table, (f"{len(rest)} more", human_bytes(sum(b.nbytes for b in rest)), "")] if rest else table


def category_table(runs: Mapping[str, MemoryProfile]) -> Rows:
    """Return the most that each category held in each run, a row a category; the last column compares last with first.

    Categories reach their own maxima at different moments, so a column adds up to more than its peak.
    """
    profiles = list(runs.values())
    rows = [(category, [profile.largest[category] for profile in profiles]) for category in CATEGORIES]
    rows = [(name, held) for name, held in rows if any(held)] + [("PEAK", [profile.peak_bytes for profile in profiles])]
    table: Rows = [("", *runs, "last/first")]
    for name, held in rows:
        ratio = f"{held[-1] / held[0]:.2f}" if held[0] else "new"
        table.append((name, *map(human_bytes, held), ratio))
    return table
