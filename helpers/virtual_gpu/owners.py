"""The peak of each step, and who holds it: by category, by module and by line of the user's program."""

import re
from collections import Counter
from dataclasses import dataclass, field

from ..meter.categories import CATEGORIES
from .ledger import BACKWARD, FORWARD, SETUP, UPDATE, Allocation, Ledger


@dataclass(frozen=True)
class Step:
    """The memory of one step.

    Attributes:
        allocated, reserved: peaks in bytes.
        at: place of the allocated peak in the ledger's events.
        first, last: places of its first event, and of the one after its last.
    """

    allocated: int
    reserved: int
    at: int
    first: int
    last: int


@dataclass
class Owners:
    """Who holds memory at one moment, in bytes of the allocator's blocks.

    Attributes:
        allocated: all of it.
        phase, line: where the program was; "" before its first allocation.
        categories: in the order of `helpers.meter.categories`.
        modules: by the module that made them, blocks of a kind together ("model.layers.*.mlp.up_proj").
        lines: by the line of the program.
        largest: the largest single block.
        items: bytes by category and by bytes of an element, as far as these are known.
    """

    allocated: int = 0
    phase: str = ""
    line: str = ""
    categories: dict[str, int] = field(default_factory=dict)
    modules: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    largest: Allocation | None = None
    items: Counter[tuple[str, int]] = field(default_factory=Counter)


def busiest_gpu(ledger: Ledger) -> int:
    """Return the index of the GPU that allocated the most bytes."""
    given: Counter[int] = Counter()
    for at, record in enumerate(ledger.events):
        given[record.index] += record.nbytes if record.born == at else 0
    return max(given, key=lambda index: (given[index], -index), default=0)


def steps_of(ledger: Ledger, index: int) -> list[Step]:
    """Return the steps of a program on GPU `index`; what comes before the end of the first belongs to it."""
    ends = [mark for mark in ledger.marks if mark]
    last = ends[-1] if ends else 0
    if not ends or any(record.born >= last for record in ledger.events[last : ledger.over or None]):
        ends.append(len(ledger.events))
    steps, held, first = [], 0, 0
    for last in ends:
        peak, reserved, at = held, 0, first
        for place in range(first, last):
            record = ledger.events[place]
            if record.index != index:
                continue
            if record.born != place:
                held -= record.nbytes
                continue
            held += record.nbytes
            reserved = max(reserved, record.reserved)
            if held > peak:
                peak, at = held, place
        reserved = max(reserved, steps[-1].reserved if steps and not reserved else 0)
        steps.append(Step(peak, reserved, at, first, last))
        first = last
    return steps


def owners_at(ledger: Ledger, index: int, at: int) -> Owners:
    """Return who holds the memory of GPU `index` right after an event."""
    ledger.label_modules()
    alive = [
        record
        for place, record in enumerate(ledger.events[: at + 1])
        if record.born == place and record.index == index and not 0 <= record.died <= at
    ]
    if not alive:
        return Owners()
    now = ledger.events[min(at, len(ledger.events) - 1)]
    categories: Counter[str] = Counter()
    owners = Owners(sum(record.nbytes for record in alive), now.phase, now.line)
    for record in alive:
        category = category_of(record)
        categories[category] += record.nbytes
        if record.item:
            owners.items[category, record.item] += record.nbytes
        owners.lines[record.line] += record.nbytes
        owners.modules[_module(record)] += record.nbytes
    owners.categories = {name: categories[name] for name in CATEGORIES if categories[name]}
    owners.largest = max(alive, key=lambda record: record.nbytes)
    return owners


def category_of(record: Allocation) -> str:
    """Return what a block was for: what the forward pass makes and the backward pass finds is an activation.

    So is what a backward pass leaves to another, with `create_graph`.
    """
    if record.category:
        return record.category
    if record.phase == FORWARD:
        kept = record.graph if record.unwound else record.ended != FORWARD  # an error frees what was saved, too
        return "activations" if kept else "temporaries"
    if record.phase == BACKWARD and record.backward != -1 and record.outlived:
        return "activations"
    return "temporaries" if record.phase in (BACKWARD, UPDATE) else "inputs and other"


def _module(record: Allocation) -> str:
    name = record.module.name if record.module is not None else ""
    if not name:
        return {SETUP: "(before the first forward pass)", FORWARD: "(between modules)"}.get(record.phase, record.phase)
    return re.sub(r"(?<![A-Za-z_])\d+", "*", name)
