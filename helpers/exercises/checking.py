"""Run a part's checks. In a notebook `check` does it; in grading a kernel probes and the grader judges."""

import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cloudpickle
import torch

from ..claims.progress import current_part, remember_checks
from ..core.files import PACKAGE
from ..core.notebook import show_report
from ..core.progress_line import progress_line
from ..ranks.failure import RankError
from .base import Check, Evidence, Outcome, Part, Verdict
from .check_report import Report
from .filled_in import filled_in

NOT_ATTEMPTED_YET = "Not attempted yet."

last_verdicts: dict[str, list[Verdict]] = {}
"""What `check` has found in each part that it was called for, the last time."""


def find_part(name: str) -> Part:
    """Return the part called `name`, e.g. "x1.scaler"; a name that it had before is found, too.

    Raises:
        LookupError: no exercise has such a part.
    """
    name = current_part(name)
    exercise = name.partition(".")[0]
    try:
        parts = importlib.import_module(f"{__package__}.{exercise}").PARTS
        return next(part for part in parts if part.name == name)
    except (ModuleNotFoundError, StopIteration):
        raise LookupError(f"There is no check called {name!r}.") from None


def probe(item: type[Check], answers: tuple[Any, ...], seed: int) -> Evidence:
    """Probe `answers` with one check: {"seen": its evidence}, or {"error": ..., "text": ...} if it raised."""
    try:
        # The notebook's own random numbers are not disturbed.
        with _usual_modes(), torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            return {"seen": item.probe(seed, *answers)}
    except Exception as error:
        return evidence_of(error)


@contextmanager
def _usual_modes() -> Iterator[None]:
    """Record graphs and do not autocast in the block, whatever an earlier answer has left; put it back afterwards."""
    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    recorded, autocast = torch.is_grad_enabled(), {kind: torch.is_autocast_enabled(kind) for kind in kinds}
    torch.set_grad_enabled(True)
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        torch.set_grad_enabled(recorded)
        for kind, on in autocast.items():
            torch.set_autocast_enabled(kind, on)


def evidence_of(error: Exception) -> Evidence:
    """Return what evidence keeps of an error that an answer has raised."""
    overdue = isinstance(error, RankError) and error.overdue
    name = type(error).__name__
    if name == NotImplementedError.__name__ and message_of(error):
        name = "a kernel is missing"  # PyTorch raises the error of stubs, too, but with a message
    return {"error": name, "text": describe(error), **({"overdue": True} if overdue else {})}


def own_entry(item: type[Check], entry: Evidence) -> Evidence:
    """Return what `item` judges of the entry that `probe` returned: of a run in stages, that of its own stage."""
    return entry["seen"][item.stage] if item.stage and "seen" in entry else entry


def sharing_a_probe(checks: Sequence[type[Check]]) -> list[list[type[Check]]]:
    """Group `checks` by their probe: one run of the answer is enough for each group."""
    groups: dict[Callable[..., Evidence], list[type[Check]]] = {}
    for item in checks:
        groups.setdefault(item.probe, []).append(item)
    return list(groups.values())


def gather(part: Part, answers: tuple[Any, ...], seed: int) -> dict[str, Evidence]:
    """Probe `answers` with each check of `part`.

    In practice, nobody waits a second time for ranks that have not come back: what comes after them is not run.
    """
    evidence: dict[str, Evidence] = {}
    groups = sharing_a_probe(part.checks)
    try:
        for number, group in enumerate(groups, 1):
            name = group[0].name()
            progress_line(f"{part.name}: run {number} of {len(groups)}, {name}")
            late = next((check for check, entry in evidence.items() if entry.get("overdue")), None)
            if late and not part.points:
                entry = {"stopped": f"the ranks of {late} did not come back. Fix that first."}
            else:
                entry = probe(group[0], answers, seed)
            evidence |= {item.name(): own_entry(item, entry) for item in group}
    finally:
        progress_line("")
    return {item.name(): evidence[item.name()] for item in part.checks}


def message_of(error: BaseException) -> str:
    """Return the message of an error in one line, at most 600 characters; "" when it cannot be printed."""
    try:
        return " ".join(str(error).split())[:600]
    except Exception:  # the answer's own kind of error, with a fault of its own
        return ""


def describe(error: Exception) -> str:
    """Say what was raised, and by which line of the answer."""
    if isinstance(error, RankError):
        return "\n".join(["an error on the ranks:", *_lines_of_ranks(str(error))[:12]])
    message = message_of(error)[:300]
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not any(path in f.filename for path in _NOT_THEIRS)]
    if theirs and theirs[-1].line:
        text += f" (at: {theirs[-1].line})"
    return text


UNREADABLE = "The evidence of this check cannot be read."
_NOT_THEIRS = ("<frozen", str(PACKAGE), "site-packages", sysconfig.get_path("stdlib"))
_REASON = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): .")  # the last line of a traceback, which is not indented


def _lines_of_ranks(message: str) -> list[str]:
    """Return the lines of a `RankError`, a few for each rank, without frames that are not the learner's."""
    lines, theirs = [], True
    for full in filter(str.strip, message.splitlines()):
        line = full.strip()
        if line.startswith("Traceback "):  # one in an exception's message, as of a checkpoint: its end says why
            theirs = False
            continue
        if not theirs and _REASON.match(full):
            if line[:200] not in lines:
                lines.append(line[:200])
            continue
        if line.startswith("File "):
            theirs = not any(path in line for path in _NOT_THEIRS)
            if not theirs and lines[-1:]:
                lines[-1] = lines[-1].replace(": at this line;", ": in the check's own code;")
        theirs |= line.startswith("rank")
        if theirs:
            lines.append(line[:200])
    return lines


def judge(part: Part, evidence: Mapping[str, Evidence], expected: Mapping[str, Evidence]) -> list[Verdict]:
    """Compare the evidence of an answer with that of the reference, check by check.

    Evidence may come from an untrusted kernel: whatever its shape, there is a verdict. In parts that award no points,
    one cause gets one diagnosis: checks that depend on another that failed are not judged, and an error is shown once.
    """
    verdicts = [_verdict(item, evidence.get(item.name()), expected[item.name()]) for item in part.checks]
    return verdicts if part.points else _one_diagnosis_each(part, verdicts)


def _one_diagnosis_each(part: Part, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Replace the diagnoses that only repeat an earlier one, or that follow from it."""
    failed = {v.check for v in verdicts if v.outcome in (Outcome.MISSED, Outcome.RAISED)}
    errors: dict[str, str] = {}  # the check that an error was shown for first, by the error
    told = []
    for item, verdict in zip(part.checks, verdicts, strict=True):
        cause = next((name for name in item.after if name in failed), None)
        if cause and (verdict.check in failed or verdict.diagnosis == UNREADABLE):
            text = f"Not judged until {cause} passes."
            told.append(replace(verdict, outcome=Outcome.NOT_RUN, diagnosis=text))
            continue
        if verdict.outcome is Outcome.RAISED:
            first = errors.setdefault(_error_in(verdict.diagnosis or ""), verdict.check)
            if first != verdict.check:
                told.append(replace(verdict, diagnosis=f"Raised the same error as {first}."))
                continue
        told.append(verdict)
    return told


def _error_in(diagnosis: str) -> str:
    """Return what tells one error from another: the first rank's, or the text; without numbers, such as sizes."""
    lines = diagnosis.splitlines()
    return re.sub(r"\d+", "#", lines[min(1, len(lines) - 1)] if lines else "")


def _verdict(item: type[Check], entry: object, reference: Evidence) -> Verdict:
    if "seen" not in reference:
        why = reference.get("text", reference.get("stopped"))
        raise RuntimeError(f"{item.name()}: the reference answer failed: {why}")
    outcome, diagnosis = _outcome(item, entry, reference)
    hint = item.hint
    if isinstance(entry, dict) and entry.get("error") == RankError.__name__:
        ranks = "Look at the ranks' own lines first: which one raised, or which two wait for different collectives?"
        hint = f"{ranks}\n{hint}"
    points = item.points if outcome is Outcome.PASSED else 0
    return Verdict(item.name(), item.rule(), points, item.points, outcome, diagnosis, hint)


def _outcome(item: type[Check], entry: object, reference: Evidence) -> tuple[Outcome, str | None]:
    """Return how a check ended, and the diagnosis."""
    if not isinstance(entry, dict):
        return Outcome.NOT_RUN, "The check did not run."
    if "seen" in entry:
        try:
            diagnosis = item.judge(entry["seen"], reference["seen"])
        except Exception:  # the evidence is not of the shape that a probe writes
            return Outcome.NOT_RUN, UNREADABLE
        return (Outcome.PASSED if diagnosis is None else Outcome.MISSED), diagnosis
    if "stopped" in entry:
        return Outcome.NOT_RUN, f"Did not run: {entry['stopped']}"
    if entry.get("error") == NotImplementedError.__name__:
        return Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET
    return Outcome.RAISED, f"Raised {entry.get('text')}"


def reference_answers(part: Part) -> tuple[Any, ...]:
    """Return the answers of the solution, which the build keeps as a module."""
    module = importlib.import_module(_reference_of(part))
    # Ranks get its functions by value: by name, each rank would import what the module imports, for seconds.
    if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.register_pickle_by_value(module)
    return tuple(getattr(module, name) for name in part.answers)


def _reference_of(part: Part) -> str:
    """Return the name of the module that has the solution's answers."""
    return f"{__package__}.reference.{part.name.partition('.')[0]}"


def _has_reference(part: Part) -> bool:
    name = _reference_of(part)
    return name in sys.modules or importlib.util.find_spec(name) is not None


def reference_evidence(part: Part, seed: int) -> dict[str, Evidence]:
    """Probe the reference answers with the checks that compare with them."""
    compared = replace(part, checks=tuple(item for item in part.checks if item.compared))
    evidence = gather(compared, reference_answers(part), seed) if compared.checks else {}
    return {item.name(): evidence.get(item.name(), {"seen": {}}) for item in part.checks}


def check(name: str, *answers: Callable[..., Any], seed: int = 0, counts: bool = True) -> Any:
    """Check the learner's `answers` for the part called `name`, and print a verdict per line.

    The result is saved as the learner's progress where it `counts`; that of a wrong answer shown by a lab does not.

    Nothing is raised when a check fails, so that "Run All" goes on; when nbgrader validates or grades
    a notebook, a failed check raises, as nbgrader expects.

    Returns:
        What later cells go on with: the answer, or the course's own where the cell has not been filled in. Of several
        answers, a tuple. None in a graded exercise, where nothing stands in for an answer.
    """
    part = find_part(name)
    name = part.name
    if part.missing:
        tried = "not checked" if all(map(filled_in, answers)) else "not attempted yet, and cannot be checked"
        print(f"{name}: {tried}. {part.needs} is not installed: pip install {part.needs}")
        return answers[0] if len(answers) == 1 else answers
    if part.points and not _has_reference(part):  # an instructor took it out
        print(
            f"{name}: no verdict, because this copy has no reference to compare with. The checks run when your "
            "instructor grades your work. Until then, call your code on small inputs of your own, and compare what it "
            "does with the contract above. The hints work without a check."
        )
        return None
    evidence = gather(part, answers, seed)
    if all(entry.get("error") == "NotImplementedError" for entry in evidence.values()):
        expected = {name: {"seen": {}} for name in evidence}  # nothing to compare, so the reference is not run
    else:
        expected = reference_evidence(part, seed)
    verdicts = judge(part, evidence, expected)
    last_verdicts[name] = verdicts
    show_report(Report(part, verdicts))
    if counts:
        remember_checks(name, [(v.check, v.passed, v.points, v.max_points) for v in verdicts])
    if any(key in os.environ for key in ("NBGRADER_EXECUTION", "NBGRADER_VALIDATING")):
        failed = [v.check for v in verdicts if not v.passed]
        if failed:
            raise AssertionError(", ".join(failed))
    return None if part.points else _go_on_with(part, answers, verdicts)


def _go_on_with(part: Part, answers: tuple[Any, ...], verdicts: Sequence[Verdict]) -> Any:
    """Return `answers`, those that are not filled in replaced by the reference's; if there is one, without a tuple."""
    untouched = all(v.outcome is Outcome.NOT_ATTEMPTED for v in verdicts)
    finished = all(v.passed for v in verdicts)  # whatever else the code may raise
    chosen = []
    for name, answer, own in zip(part.answers, answers, reference_answers(part), strict=True):
        stands_in = untouched or not (finished or filled_in(answer))
        if stands_in:
            print(f"`{name}` is not filled in yet: the cells below use the course's answer.")
        chosen.append(own if stands_in else answer)
    return chosen[0] if len(chosen) == 1 else tuple(chosen)
