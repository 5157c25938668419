"""What a dry run has learned of a program: its peaks, who holds them, where it waits, how long a step would take."""

import functools
import statistics
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.units import human_bytes
from ..planner.catalog.gpus import Gpu
from ..planner.forecast import Forecast, seconds_in_words
from ..planner.grades import DOES_NOT_FIT, FITS, TIGHT
from ..planner.reserved import Reserved, reserved_between
from .batch import MOST, PIECES, batch_at_refusal, batch_of, batch_past_refusal, largest_batches, pieces_at
from .cures import Cure
from .fits import common_gpus, grade_on
from .ledger import Ledger
from .left_behind import LeftBehind, left_behind
from .memory import expandable_segments
from .owners import Owners, Step, busiest_gpu, owners_at, steps_of
from .savings import Timeline
from .step_forecast import host_seconds, step_forecast
from .traffic_rows import collective_rows
from .waits import Waits
from .world import World
from .written import draw_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 8  # of a table in the text; JSON has all
_REPLAYS = 4  # each in the batch that the one before allows
_NO_BATCH = "The largest batch is unknown: the tensors that each step copies to the GPU show no batch dimension."
_MORE = 1.1  # times the operations of the usual step
_UNKNOWN = "The peak of the whole run is unknown: choose a larger --gpu to see it, and the largest batch that fits."
_WHY_TIGHT = " (has room for the tensors, but perhaps not for all that PyTorch reserves)"


def _once_an_event(answer: Callable[["DryRun"], Any]) -> property:
    """Make a property that reads the whole ledger again only when something has been added to it."""

    @functools.wraps(answer)
    def remembered(self: "DryRun") -> Any:
        now = len(self.ledger.events), len(self.ledger.marks)
        if self._answers.get(answer.__name__, (None,))[0] != now:
            self._answers[answer.__name__] = now, answer(self)
        return self._answers[answer.__name__][1]

    return property(remembered)


class DryRun:
    """The record of a program on a virtual GPU.

    Attributes:
        gpu: its name.
        ledger: every allocation.
        waits: where it waited for the GPU, and which values were assumed.
        world: the ranks of which the program was one; None where there are no others.
        ignored: called when the program goes on after its last step.
        stopped_early: whether an error ended the program before its first optimizer step: its peak came later.
        caught: whether the program caught the error with which it ran out of memory, and came to its own end.
    """

    def __init__(self, gpu: Gpu, ledger: Ledger, waits: Waits, world: World | None = None) -> None:
        self.gpu, self.ledger, self.waits, self.world = gpu.name, ledger, waits, world
        self.ignored: Callable[[], object] = lambda: None
        self.stopped_early = self.caught = False
        self._gpu = gpu
        self._expandable = expandable_segments()
        self._answers: dict[str, tuple[tuple[int, int], Any]] = {}
        self._peak: Owners | None = None  # while the models live, whose modules have names

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process without the program."""
        return vars(self) | {"ignored": None, "_answers": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, ignored=lambda: None)

    def close(self) -> None:
        """Look at the peak for the last time: the program's models may go now."""
        self._peak = None
        self._peak = self.owners

    @_once_an_event
    def index(self) -> int:
        """The GPU that is reported: the one that allocated the most bytes."""
        return busiest_gpu(self.ledger)

    @_once_an_event
    def steps(self) -> list[Step]:
        """The memory of each step; the last may be unfinished."""
        return steps_of(self.ledger, self.index)

    @property
    def peak_step(self) -> int:
        """The number of the step with the highest allocated peak, counted from 0."""
        return max(self._counted, key=lambda number: self.steps[number].allocated)

    @property
    def _counted(self) -> list[int]:
        """The numbers of the steps; if the program went on after an allocation that failed, from the next one on."""
        after = 0 if self.ledger.ran_out or not self.ledger.refusals else self.ledger.refusals[-1].place
        numbers = list(range(len(self.steps)))
        return [number for number in numbers if self.steps[number].first >= after] or numbers

    @property
    def peak_allocated(self) -> int:
        """What `torch.cuda.max_memory_allocated` would say in the end, if no larger attempt had failed before."""
        return self.steps[self.peak_step].allocated

    @property
    def reserved(self) -> Reserved:
        """The interval in which `torch.cuda.max_memory_reserved` would lie."""
        return reserved_between(self.peak_allocated, self._peak_reserved, self._gpu.cublas_workspace)

    @property
    def _peak_reserved(self) -> int:
        return max(self.steps[number].reserved for number in self._counted)

    @property
    def owners(self) -> Owners:
        """Who holds the peak; if the program ran out of memory, who held it then."""
        if self._peak is not None:
            return self._peak
        if self.ledger.ran_out:
            refusal = self.ledger.refusals[-1]
            return owners_at(self.ledger, refusal.index, refusal.place - 1)
        return owners_at(self.ledger, self.index, self.steps[self.peak_step].at)

    @_once_an_event
    def left_behind(self) -> LeftBehind | None:
        """What every step makes and no step frees."""
        return left_behind(self.ledger, self.index)

    @property
    def cures(self) -> list[Cure]:
        """Changes that would lower the peak."""
        self.owners  # noqa: B018  learns which allocations are weights and gradients
        index = self.ledger.refusals[-1].index if self.ledger.ran_out else self.index
        timeline = Timeline(self.ledger, index, batch_of(self.ledger))
        return timeline.cures(None if self._expandable else self._peak_reserved, self._gpu.bf16)

    @_once_an_event
    def grades(self) -> dict[str, str]:
        """Whether it "fits" on this GPU and the common ones of the catalog, is "tight" or "does not fit"."""
        if self.stopped_early:
            return {}
        peaks = self.peak_allocated, self._peak_reserved
        gpus = common_gpus(self._gpu)
        if self.ledger.refusals:  # on a larger GPU nothing is known: it ended, or went on otherwise
            room = self._gpu.room
            if self.ledger.ran_out:
                return {gpu.name: DOES_NOT_FIT for gpu in gpus if gpu.room <= room}
            gpus = [gpu for gpu in gpus if gpu.name == self.gpu]
        return {gpu.name: grade_on(self.ledger, self.index, gpu, peaks, self._expandable) for gpu in gpus}

    @property
    def fits(self) -> dict[str, bool]:
        """Whether each GPU may run it, with room to spare or without."""
        return {name: said != DOES_NOT_FIT for name, said in self.grades.items()}

    @property
    def largest_batches(self) -> dict[str, int]:
        """The largest batch for this GPU and the common ones; empty where the program's batch is not recognized.

        It assumes that little reserved memory is unused, as in large programs. Larger batches do not fit; this one may
        be tight.
        """
        return self._batches(min(self._pieces, PIECES))

    @_once_an_event
    def safe_batches(self) -> dict[str, int]:
        """The largest batch that should fit, by a replay of the run at a batch as large as this GPU may run."""
        safe = largest = self.largest_batches
        for _ in range(_REPLAYS):
            batch = safe.get(self.gpu, 0)
            pieces = pieces_at(self.ledger, self.index, batch, self._expandable) if batch else self._pieces
            safe = {name: min(largest[name], count) for name, count in self._batches(pieces).items()}
            if safe.get(self.gpu, 0) >= batch:
                break
        return safe

    @property
    def _pieces(self) -> float:
        return self._peak_reserved / max(1, self.peak_allocated)

    def _batches(self, overhead: float) -> dict[str, int]:
        if self.ledger.refusals or self.stopped_early:
            return {}  # it ended before its peak
        largest = largest_batches(self.ledger, self.index, common_gpus(self._gpu), overhead)
        batch = batch_of(self.ledger) or 0
        for name, said in self.grades.items() if largest else ():
            largest[name] = max(largest[name], batch) if said == FITS else min(largest[name], batch - 1)
        return largest

    @property
    def usual_step(self) -> int | None:
        """The number of the step that is forecast, counted from 0; None where no step was finished.

        It is the last step with the median number of operations, so that a step which also evaluates the model is not
        taken. The first step does not count if there are others.
        """
        counts = self._operations
        if not counts:
            return None
        median = statistics.median_low(counts[1:] or counts)
        return max(number for number, count in enumerate(counts) if count == median)

    @property
    def _operations(self) -> list[int]:
        return [works.total() for works in self.ledger.works[: len(self.ledger.marks)]]

    @property
    def forecast(self) -> Forecast | None:
        """Seconds of the usual step; None where no step was finished."""
        return None if self.usual_step is None else step_forecast(self.ledger.works[self.usual_step], self._gpu)

    @property
    def host_seconds(self) -> tuple[float, float] | None:
        """Seconds in which the host launches the usual step's operations, at least and at most."""
        return None if self.usual_step is None else host_seconds(self.ledger.works[self.usual_step])

    def plot(self, title: str = "") -> "Figure":
        """Draw the memory by category, from the first allocation to the last."""
        return draw_timeline(self.ledger, self.index, self._gpu.room, title or f"A virtual {self.gpu}")

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain lists, dictionaries and numbers."""
        owners, forecast, reserved = self.owners, self.forecast, self.reserved
        return {
            "gpu": self.gpu,
            "steps": [{"allocated": step.allocated, "reserved": step.reserved} for step in self.steps],
            "finished_steps": len(self.ledger.marks),
            "peak_allocated_bytes": self.peak_allocated,
            "reserved_bytes": [reserved.low, reserved.high],
            "at_peak": {
                "step": self.peak_step + 1,
                "phase": owners.phase,
                "line": owners.line,
                "categories": owners.categories,
                "modules": dict(owners.modules.most_common()),
                "lines": dict(owners.lines.most_common()),
            },
            "left_behind_bytes": 0 if self.left_behind is None else self.left_behind.nbytes,
            "out_of_memory": bool(self.ledger.refusals),
            "caught": self.caught or (bool(self.ledger.refusals) and not self.ledger.ran_out),
            "grades": self.grades,
            "fits": self.fits,
            "batch": batch_of(self.ledger),
            "largest_batch": self.largest_batches,
            "safe_batch": self.safe_batches,
            "seconds": None if forecast is None else [forecast.low, forecast.seconds, forecast.high],
            "host_seconds": None if self.host_seconds is None else list(self.host_seconds),
            "mfu": None if forecast is None else forecast.mfu,
            "bounds": {} if forecast is None else dict(forecast.bounds),
            "collectives": collective_rows(self.ledger, self.usual_step or 0, self.gpu, self.world),
            "synchronizations": _rows(self.waits.synchronizations),
            "pageable_copies": _rows(self.waits.pageable_copies),
            "assumed": _rows(self.waits.assumed),
            "cures": [{"change": cure.change, "saves": cure.saves, "up_to": cure.up_to} for cure in self.cures],
        }

    def __str__(self) -> str:
        if not self.ledger.events:
            return f"Nothing was allocated on the GPU ({self.gpu})."
        return "\n".join(
            [
                *self._memory_lines(),
                *self._owner_lines(),
                *self._time_lines(),
                *self._traffic_lines(),
                *self._wait_lines(),
            ]
        )

    def _memory_lines(self) -> list[str]:
        reserved = self.reserved
        lines = [f"Dry run on a virtual {self.gpu}", *self._other_gpu_lines()]
        lines.append(f"{'step':>6}  {'allocated':>12}  {'reserved':>12}")
        for number, step in enumerate(self.steps, 1):
            name = str(number) if number <= len(self.ledger.marks) else f"({number})"
            lines.append(f"{name:>6}  {human_bytes(step.allocated):>12}  {human_bytes(step.reserved):>12}")
        if left := self.left_behind:
            lines.append(
                f"Each step leaves {human_bytes(left.nbytes)} behind, most of it allocated at {short(left.line)}. Does "
                "the program keep losses without .detach(), or call backward(retain_graph=True)?"
            )
        if idle := self.ledger.idle_optimizers:
            lines.append(
                f"{idle} of the optimizers took no step, so no memory of {'its' if idle == 1 else 'their'} state is "
                "counted. If they step later, repeat the run with more --steps."
            )
        if self.ledger.turned_on_in_eval and not self.ledger.checkpoints:
            lines.append(
                "Activation checkpointing is on, but has no effect: the model is in eval mode. Call model.train()."
            )
        between = f"{human_bytes(reserved.low)} to {human_bytes(reserved.high)}"
        if self.ledger.ran_out:
            return [*lines, *self._ran_out_lines()]
        lines.append(f"Peak: {human_bytes(self.peak_allocated)} allocated, {between} reserved on a real GPU")
        if self.ledger.refusals:
            asked, grade = human_bytes(self.ledger.refusals[-1].nbytes), self.grades.get(self.gpu, "")
            lines.append(f"{asked} did not fit, and the program continued: on another GPU its peak may differ.")
            return [*lines, f"From the next step on, this GPU: {grade}"] if grade else lines
        if self.stopped_early:
            return [*lines, "The script stopped before its first optimizer step, so whether it fits is unknown."]
        for said in (FITS, TIGHT, DOES_NOT_FIT):
            names = [name for name, its in self.grades.items() if its == said]
            if names or said == FITS:
                why = _WHY_TIGHT if said == TIGHT else ""
                lines.append(f"{said.capitalize()}: {', '.join(names) or 'none of the common GPUs'}{why}")
        lines += self._emulation_lines()
        largest = self.largest_batches
        if largest:
            safe = self.safe_batches
            counts = {name: sorted({safe[name], count}) for name, count in largest.items() if count}
            rooms = [f"{name} " + " to ".join(map(_count, both)) for name, both in counts.items()]
            here = f"{batch_of(self.ledger):,}"
            lines.append(f"Largest batch (here {here}), all else equal: {', '.join(rooms) or 'not even a batch of 1'}")
            if any(len(both) > 1 for both in counts.values()):
                lines.append("  (the first should fit; the second only if less reserved memory is unused there)")
        elif self.ledger.marks and batch_of(self.ledger) is None:
            lines.append(_NO_BATCH)
        return lines

    def _other_gpu_lines(self) -> list[str]:
        """Name the GPU, if the program has used several."""
        indices = sorted({record.index for record in self.ledger.events})
        peaks = {index: max(step.allocated for step in steps_of(self.ledger, index)) for index in indices}
        if len(peaks) < 2:
            return []
        others = ", ".join(f"GPU {index} {human_bytes(peak)}" for index, peak in peaks.items() if index != self.index)
        return [f"GPU {self.index}, the busiest of {len(peaks)}; peaks of the others: {others}"]

    def _emulation_lines(self) -> list[str]:
        """Say which GPUs that may run it have no units for its BF16 matmuls."""
        if not any(work.flops and work.dtype == "bfloat16" for works in self.ledger.works for work, *_ in works):
            return []
        slow = [gpu.name for gpu in common_gpus(self._gpu) if self.fits.get(gpu.name) and not gpu.bf16]
        why = "Without BF16 units: BF16 runs at the rate of FP32, and attention may need more memory than here"
        return [f"  {why}, as a run with that --gpu shows: {', '.join(slow)}"] if slow else []

    def _ran_out_lines(self) -> list[str]:
        held, asked, reserved = self.owners.allocated, self.ledger.refusals[-1].nbytes, self.steps[-1].reserved
        line = (
            f"Runs out of memory at {human_bytes(held)} allocated: the program asks for {human_bytes(asked)}, so it "
            f"needs at least {human_bytes(held + asked)}."
        )
        if held + asked <= self._gpu.room:
            line = (
                f"Runs out of memory at {human_bytes(held)} allocated, {human_bytes(reserved)} reserved: "
                f"the program asks for {human_bytes(asked)}, and no free piece is that large."
            )
        lines = [f"{line} {_UNKNOWN}"]
        if self.caught:
            lines.append("The program catches the error, and takes no optimizer step after it.")
        largest = batch_past_refusal(self.ledger, self._gpu.room)
        if largest is not None:
            here = f"(here {batch_at_refusal(self.ledger):,})"
            later = "" if self.ledger.marks else " up to this point; what comes later may need more"
            lines.append(
                f"A batch of at most {largest:,} {here} fits, all else equal{later}."
                if largest
                else f"Not even a batch of 1 {here} fits, all else equal."
            )
        return lines

    def _owner_lines(self) -> list[str]:
        owners = self.owners
        if not owners.categories:
            return []
        when = "when it ran out" if self.ledger.ran_out else f"at the peak, in step {self.peak_step + 1}"
        lines = ["", f"Memory {when} ({owners.phase}, {short(owners.line)})"]
        lines += _table(owners.categories, len(owners.categories))
        for title, rows in (("By module", owners.modules), ("By line", owners.lines)):
            lines += ["", title, *_table(dict(rows.most_common()), _ROWS)]
        if self.ledger.ran_out or self.grades.get(self.gpu, FITS) != FITS:
            lines += ["", "What to change, easiest first:", *(f"  {cure}" for cure in self.cures)]
        return lines

    def _time_lines(self) -> list[str]:
        forecast = self.forecast
        if forecast is None:
            return []
        bound = max(forecast.bounds, key=lambda name: forecast.bounds[name])
        lines = [
            "",
            f"Forecast: {forecast.low:.3g} to {forecast.high:.3g} s per step, MFU {forecast.mfu:.0%}, "
            f"{bound}-bound {forecast.bounds[bound]:.0%} of the time",
        ]
        counts, usual = self._operations, self.usual_step or 0
        busiest = max(range(1, len(counts)), key=lambda number: counts[number], default=usual)
        times = counts[busiest] / counts[usual]
        if times > _MORE:
            lines.append(
                f"  This is for a step like step {usual + 1}; step {busiest + 1} has {times:.1f} times as many "
                "operations, for example because it evaluates the model."
            )
        low, high = self.host_seconds or (0.0, 0.0)
        if high > forecast.seconds:
            compiled = any(what == "torch.compile" for _, what, _ in self.waits.left_out)
            lines.append(
                f"The host may be slower: it needs {low:.3g} to {high:.3g} s to launch a step's operations, "
                + ("if the model is not compiled." if compiled else "which a larger batch or a compiled model reduces.")
            )
        return lines

    def _traffic_lines(self) -> list[str]:
        if self.world is None:
            return []
        rows = [row for row in collective_rows(self.ledger, self.usual_step or 0, self.gpu, self.world) if row["calls"]]
        lines = ["", f"Collectives of rank {self.world.rank} of {self.world.size} per step"] if rows else []
        for row in rows:
            seconds = "" if row["seconds"] is None else f"  {seconds_in_words(row['seconds'])}"
            name = f"{row['name']} of {row['ranks']} ranks"
            lines.append(f"  {row['calls']:>6} x  {name:<28}{human_bytes(row['bytes']):>12}{seconds}")
        return lines

    def _wait_lines(self) -> list[str]:
        lines = []
        for title, rows in (
            ("The host waits for the GPU", self.waits.synchronizations),
            ("Copies from pageable memory", self.waits.pageable_copies),
            ("Values that a dry run does not have, and their stand-ins", self._stand_ins()),
            ("Left out, or replaced", Counter({row: self.waits.assumed[row] for row in self.waits.left_out})),
        ):
            if rows:
                lines += ["", title]
                most = len(rows) if title.startswith("Left") else _ROWS
                for (line, *words), times in rows.most_common(most):
                    nbytes = [] if words else [f"{human_bytes(self.waits.pageable_bytes[line])} in total"]
                    lines.append(f"  {times:>6} x  {short(line)}  {': '.join([*words, *nbytes])}")
                lines += [f"  and {len(rows) - most} more"] if len(rows) > most else []
        return lines

    def _stand_ins(self) -> Counter[tuple[str, ...]]:
        """Return how often values were assumed, those of one line together: losses fall from step to step."""
        values: dict[tuple[str, str], list[str]] = {}
        times: Counter[tuple[str, str]] = Counter()
        for (line, what, value), count in self.waits.assumed.items():
            if (line, what, value) not in self.waits.left_out:
                values.setdefault((line, what), []).append(value)
                times[line, what] += count
        return Counter(
            {(*key, its[0] if len(its) == 1 else f"{its[0]} to {its[-1]}"): times[key] for key, its in values.items()}
        )


def _count(batch: int) -> str:
    return f"{batch:,}" if batch < MOST else f"over {MOST - 1:,}"


def short(line: str) -> str:
    """Return the last folder and the file of a line, "folder/file.py:12"."""
    return "/".join(line.replace("\\", "/").split("/")[-2:])


def _table(rows: dict[str, int], most: int) -> list[str]:
    lines = [f"  {human_bytes(nbytes):>12}  {short(name) if ':' in name else name}" for name, nbytes in rows.items()]
    rest = sum(list(rows.values())[most:])
    return [*lines[:most], *([f"  {human_bytes(rest):>12}  all others"] if rest else [])]


def _rows(counts: Any) -> list[dict[str, Any]]:
    return [{"line": line, "what": list(words), "times": times} for (line, *words), times in counts.most_common()]
