"""Checks of decisions: the planner evaluates the chosen layout, whichever it is."""

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from typing import Any

from ...core.units import GiB, human_bytes
from ...planner.catalog.clusters import Cluster
from ...planner.layout.layout import Layout
from ...planner.layout.layout_plan import plan_layout
from ...planner.search.found import Found, found_of
from ...planner.search.names import name as name_of
from ..base import Check, Evidence
from .decisions import WITHIN, best_known, decisions

ASKED = {"ranks": "gpus", "seq": "seq", "tokens": "tokens", "precision": "precision"}  # of a layout: of a question
_NOT_ASKED = "not judged until the layout matches the question (see the first check)."
_TOO_LARGE = "not judged until the layout fits (see the second check)."
_ASKED_WORDS = {
    "ranks": "GPUs",
    "seq": "tokens in a sequence",
    "tokens": "tokens per step",
    "precision": "as its precision",
}


@lru_cache(maxsize=64)
def _planned(layout: Layout, cluster: Cluster) -> Found:
    return found_of(plan_layout(layout, cluster))


def _proposed(seed: int, decide: Any) -> Evidence:
    """Return what each proposal is, and what the planner says of those that answer the question."""
    seen = {}
    for name, question in decisions().items():
        layout = decide(question)
        if not isinstance(layout, Layout):
            seen[name] = {"type": type(layout).__name__}
            continue
        answers = [getattr(layout, field) for field in ASKED] == [getattr(question, field) for field in ASKED.values()]
        answers = answers and layout.arch == question.arch and not layout.lora_rank
        plain = {field.name: getattr(layout, field.name) for field in fields(Layout) if field.name != "arch"}
        seen[name] = {"layout": plain, "parameters": layout.arch.count(), "answers": answers}
        if answers:
            found, best = _planned(layout, question.cluster), best_known(name)
            more = {part: seconds - best.parts.get(part, 0.0) for part, seconds in found.parts.items()}
            part = max(more, key=lambda key: more[key])
            figures = {"nbytes": found.nbytes, "room": question.cluster.gpu.room, "fits": found.fits}
            seen[name] |= {**figures, "seconds": found.seconds, "best": best.seconds, "part": part, "more": more[part]}
    return seen


def _name(question: str, one: Evidence) -> str:
    """Return a proposal's layout in one line, behind the question that it answers."""
    return f"{question}: {name_of(Layout(best_known(question).layout.arch, **one['layout']))}"


def _lines(seen: Evidence, line: Callable[[str, Evidence], str | None]) -> str | None:
    """Return what `line` says of each proposal, a line each; None if it has nothing to say of any."""
    return "\n".join(filter(None, (line(name, one) for name, one in seen.items()))) or None


class AnswersTheQuestion(Check):
    """The layout trains all of this model in the default precision, on all GPUs, with the tokens of the step."""

    compared = False
    hint = (
        "tensor x pipeline x context x shard x replicate must equal the number of GPUs.\n"
        "shard x replicate x micro_batch_size x micro_batches must equal `question.sequences`."
    )

    probe = staticmethod(_proposed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def line(name: str, one: Evidence) -> str | None:
            if "type" in one:
                return f"{name}: the answer is a {one['type']}, not a Layout."
            return None if one["answers"] else f"{_name(name, one)} {_other_question(name, one)}."

        return _lines(seen, line)


def _other_question(name: str, one: Evidence) -> str:
    """Say in which point a layout answers another question."""
    question = decisions()[name]
    layout = Layout(question.arch, **one["layout"])
    for field, asked in ASKED.items():
        mine, right = getattr(layout, field), getattr(question, asked)
        if mine != right:
            return f"has {_figure(mine)} {_ASKED_WORDS[field]}; it should have {_figure(right)}"
    if layout.lora_rank:
        return "trains adapters only; the question is how to train all weights"
    return f"is for a model of {one['parameters']:,} parameters; the question's has {question.arch.count():,}"


def _figure(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class FitsByThePlanner(Check):
    """The rank with the highest peak fits, according to the planner."""

    compared = False
    hint = (
        "Memory per rank falls with more shards, recomputation, smaller micro-batches, tensor or context ranks.\n"
        "`layout_explorer` below shows what a rank holds at its peak."
    )

    probe = staticmethod(_proposed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def line(name: str, one: Evidence) -> str | None:
            if not one.get("answers"):
                return f"{name}: {_NOT_ASKED}"
            if one["fits"]:
                return None
            over = (one["nbytes"] - one["room"]) / GiB
            return (
                f"{_name(name, one)} does not fit by {over:.1f} GiB: it holds {human_bytes(one['nbytes'])}, "
                f"and there is room for {human_bytes(one['room'])}."
            )

        return _lines(seen, line)


class NearTheBest(Check):
    """A layout that fits takes at most 10% longer than the best that the search has found."""

    compared = False
    hint = (
        "Which part of the step takes longest? Reduce the traffic along the slowest link.\n"
        "Engines differ in their attention kernel, and long sequences spend most of their time in attention.\n"
        "Recompute only what memory demands, and try larger micro-batches: fewer gathers for the same tokens."
    )

    probe = staticmethod(_proposed)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        def line(name: str, one: Evidence) -> str | None:
            if not one.get("answers"):
                return f"{name}: {_NOT_ASKED}"
            if not one["fits"]:
                return f"{name}: {_TOO_LARGE}"
            if one["seconds"] <= (1 + WITHIN) * one["best"]:
                return None
            slower = one["seconds"] / one["best"] - 1
            return (
                f"{_name(name, one)} takes {one['seconds']:.3g} s, {slower:.1%} longer than the best known: "
                f"{one['more']:.3g} s more of it is {_WORDS.get(one['part'], 'waiting for ' + one['part'])}."
            )

        return _lines(seen, line)


_WORDS = {
    "compute": "computation (recomputed, or in smaller matmuls)",
    "memory": "passes over memory",
    "launch": "waiting for the host",
    "bubble": "bubble",
    "update": "the optimizer's update",
    "tensor": "waiting for the tensor ranks",
    "context": "waiting for the context ranks",
    "shard": "waiting for the data ranks (gathers and reductions)",
}

DECIDE = (AnswersTheQuestion, FitsByThePlanner, NearTheBest)
