"""What a dry run writes to files: a picture, a snapshot for PyTorch's memory viewer, a trace for Perfetto.

A dry run has no clock. Its time is the order of allocations and frees: each is a microsecond after the one before it.
"""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.units import GiB, MiB, human_bytes
from ..meter.categories import CATEGORIES
from .ledger import Allocation, Ledger
from .owners import category_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 4000  # of a picture or a trace: the largest of each stretch is drawn


def held_by_category(ledger: Ledger, index: int) -> np.ndarray:
    """Return the bytes that GPU `index` holds after each event, of each category: (events, categories)."""
    changes = np.zeros((len(ledger.events) + 1, len(CATEGORIES)), dtype=np.int64)
    for place, record in enumerate(ledger.events):
        if record.index == index:
            sign = 1 if record.born == place else -1
            changes[place + 1, CATEGORIES.index(category_of(record))] = sign * record.nbytes
    return changes.cumsum(0)


def draw_timeline(ledger: Ledger, index: int, room: int, title: str) -> "Figure":
    """Draw the memory of GPU `index` by category over the program, with its `room` in bytes where that is near.

    It ends where the program was ended, or where it ran out of memory, with a line as long as what did not fit.
    """
    from matplotlib.figure import Figure

    from ..core.colors import COLORS

    refused = ledger.refusals[-1] if ledger.ran_out else (len(ledger.events), index, 0)
    end, asked = ledger.over or refused[0], refused[2]
    everything = held_by_category(ledger, index)[: end + 1]
    places, held = _thinned(everything)
    unit, name = (GiB, "GiB") if held.sum(1).max() >= GiB else (MiB, "MiB")
    present = [number for number in range(len(CATEGORIES)) if held[:, number].any()]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, pad=16 if ledger.marks else None)
    axes.stackplot(
        places,
        held[:, present].T / unit,
        labels=[CATEGORIES[number] for number in present],
        colors=[COLORS[number] for number in present],
        step="post",
    )
    for number, mark in enumerate(ledger.marks, start=1):
        axes.axvline(mark, color="black", lw=0.6, ls=":")
        axes.annotate(
            f"step {number} ends", (mark, 1), xycoords=("data", "axes fraction"), ha="right", va="bottom", size=7
        )
    if 2 * held.sum(1).max() > room:
        axes.axhline(room / unit, color="black", lw=0.8, ls="--")
        axes.annotate("room", (0, room / unit), xytext=(3, 2), textcoords="offset points", size=7)
    if asked:
        low, high = everything[-1].sum() / unit, min(everything[-1].sum() + asked, 1.2 * room) / unit
        axes.plot((end, end), (low, high), color="black", lw=3, clip_on=False, solid_capstyle="butt")
        words = f"asks for {human_bytes(asked)}: out of memory"
        axes.annotate(words, (end, high), xytext=(-3, 3), textcoords="offset points", ha="right", size=7)
    axes.set(xlabel="allocations and frees, in order", ylabel=name)
    axes.margins(x=0, y=0.06)
    axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return figure


def _thinned(held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return places and rows of which enough for a picture are left: of each stretch, the one that holds most."""
    stretch = -(-len(held) // _POINTS)
    total = held.sum(1)
    places = np.array([start + total[start : start + stretch].argmax() for start in range(0, len(held), stretch)])
    return places, held[places]


def write_snapshot(path: str | Path, ledger: Ledger) -> None:
    """Write what `torch.cuda.memory._dump_snapshot` would; the frame of a block is its line, named by its category.

    It ends where the program was ended: at the last step, or where the memory ran out. What is freed later was alive.
    """
    last = ledger.refusals[-1].place if ledger.refusals else [len(ledger.events), *ledger.marks][-1]
    over = ledger.over or last
    gpus = 1 + max((record.index for record in ledger.events), default=0)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(gpus)]
    segments = []
    for place, record in enumerate(ledger.events[:over]):
        born = record.born == place
        event = _event(record) | {"action": "alloc" if born else "free_completed", "time_us": place}
        traces[record.index].append(event)
        if born and not 0 <= record.died < over:
            piece = {"address": event["addr"], "size": record.nbytes, "requested_size": record.nbytes}
            block = piece | {"state": "active_allocated", "frames": event["frames"]}
            sizes = dict.fromkeys(("total_size", "allocated_size", "active_size", "requested_size"), record.nbytes)
            kind = {"device": record.index, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0)}
            segments.append(kind | {"address": event["addr"], "is_expandable": False, "blocks": [block]} | sizes)
    for refusal in ledger.refusals:
        oom = {"action": "oom", "addr": 0, "size": refusal.nbytes, "stream": 0, "time_us": refusal.place}
        traces[refusal.index].append(oom | {"device_free": refusal.free, "frames": [_frame(refusal.line, "asked")]})
    whole = {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}
    Path(path).write_bytes(pickle.dumps(whole))


def _event(record: Allocation) -> dict[str, Any]:
    frames = [_frame(record.line, category_of(record))]
    return {"addr": (record.born + 1) << 34, "size": record.nbytes, "stream": 0, "frames": frames}


def _frame(place: str, name: str) -> dict[str, Any]:
    file, _, line = place.rpartition(":")
    return {"name": name, "filename": file, "line": int(line or 0)}


def write_trace(path: str | Path, ledger: Ledger, index: int) -> None:
    """Write Chrome's trace format, which Perfetto opens: memory by category, steps, and the phases in them."""
    places, held = _thinned(held_by_category(ledger, index))
    events: list[dict[str, Any]] = [
        {
            "ph": "C",
            "pid": index,
            "name": "memory",
            "ts": int(place),
            "args": dict(zip(CATEGORIES, row.tolist(), strict=True)),
        }
        for place, row in zip(places, held, strict=True)
    ]
    first = 0
    for number, mark in enumerate(ledger.marks, start=1):
        events.append(_slice(f"step {number}", first, mark, 1))
        first = mark
    events += [_slice(name, first, last, 2) for name, first, last in _phases(ledger)]
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def _slice(name: str, first: int, last: int, row: int) -> dict[str, Any]:
    return {"ph": "X", "pid": 0, "tid": row, "name": name, "ts": first, "dur": last - first}


def _phases(ledger: Ledger) -> Iterator[tuple[str, int, int]]:
    """Yield each stretch of one phase: its name, first and last place."""
    name, first = "", 0
    for place, record in enumerate(ledger.events):
        phase = record.phase if record.born == place else record.ended
        if phase != name:
            if name:
                yield name, first, place
            name, first = phase, place
    if name:
        yield name, first, len(ledger.events)
