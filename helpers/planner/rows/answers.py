"""Answers to many lines; what several of them have in common is simulated once."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..config import RecipeError
from ..layout.layout_plan import LayoutPlan, device_bytes, plan_layout, reserved_bytes
from ..rates.applied import applied
from .line import Question, read_line

PROCESSES = 2
MOST_ALONE = 8  # lines of one model, if there are not many lines


def answer_rows(
    lines: Sequence[Mapping[str, Any]], tell: Callable[[int], None] = lambda done: None, rates: str = ""
) -> list[dict[str, Any]]:
    """Return an answer to each line, in order.

    Args:
        lines: as `read_line` wants them.
        tell: called with how many have been answered.
        rates: a file of rates of the user's own machine; "" for the forecast's.
    """
    from joblib import Parallel, delayed

    groups = _groups(lines)
    jobs = Parallel(PROCESSES, return_as="generator")(
        delayed(_answers)([lines[at] for at in group], rates) for group in groups
    )
    answers: dict[int, dict[str, Any]] = {}
    for group, found in zip(groups, jobs, strict=True):
        answers |= dict(zip(group, found, strict=True))
        tell(len(answers))
    return [answers[at] for at in range(len(lines))]


def _groups(lines: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return the numbers of lines in groups for one process each, the largest first.

    A group has one model, so that a process meets what it has simulated already; and no more than an eighth of all
    lines, so that no process works on alone.
    """
    alike: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        alike.setdefault(json.dumps([line.get("arch"), line.get("model")], sort_keys=True), []).append(at)
    most = max(MOST_ALONE, len(lines) // 8)
    groups = [chunk for own in alike.values() for chunk in (own[at : at + most] for at in range(0, len(own), most))]
    return sorted(groups, key=len, reverse=True)


def _answers(lines: Iterable[Mapping[str, Any]], rates: str) -> list[dict[str, Any]]:
    return [answer(line, rates) for line in lines]


def answer(line: Mapping[str, Any], rates: str = "") -> dict[str, Any]:
    """Return the answer to one line, by a file of `rates` or the forecast's; `error` says what is wrong with it."""
    blank = dict.fromkeys(FIELDS)
    try:
        question = read_line(line)
        own = [applied(rates).rates(question.cluster)] if rates else question.own_rates
        return blank | {"id": line.get("id")} | _figures(question, plan_layout(question.layout, question.cluster, *own))
    except Exception as error:  # one line that cannot be planned must not cost the others their answers
        words = str(error) if isinstance(error, RecipeError) else f"this cannot be simulated: {error!r}"
        words = " ".join(words.split())
        return blank | {"id": line.get("id"), "error": words}


FIELDS = (
    "id",
    "peak_allocated_bytes",
    "reserved_bytes",
    "device_bytes",
    "grade",
    "step_seconds",
    "step_seconds_interval",
    "tokens_per_second_per_gpu",
    "mfu",
    "hfu",
    "bound_by",
    "assumed",
    "error",
)


def _figures(question: Question, plan: LayoutPlan) -> dict[str, Any]:
    rank = question.logged(plan)
    held = rank.nbytes
    return {
        "peak_allocated_bytes": held,
        "reserved_bytes": list(reserved_bytes(plan.layout, plan.cluster, held)),
        "device_bytes": device_bytes(plan.layout, plan.cluster, rank),
        "grade": plan.grade,
        "step_seconds": plan.seconds,
        "step_seconds_interval": [plan.low, plan.high],
        "tokens_per_second_per_gpu": plan.tokens_per_second,
        "mfu": plan.mfu,
        "hfu": plan.hfu,
        "bound_by": plan.bound_by,
        "assumed": question.assumed | plan.assumed,
    }


def read_lines(text: str) -> Iterator[dict[str, Any]]:
    """Return the lines of a JSONL file.

    Raises:
        RecipeError: a line is not a JSON object.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise RecipeError(f"line {number} is not a JSON object; give one run per line.")
        yield value
