"""Packed chats: whole examples side by side in rows of equal length, with a loss on the answers only."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

LENGTH, END = 16, 2  # the mark that ends a turn also fills rows up, as in SmolLM2's tokenizer
IGNORED = -100


def _examples(seed: int, sizes: list[tuple[int, int]]) -> list[tuple[list[int], list[int]]]:
    """Return pairs of prompt and answer with so many tokens; prompts have an END inside, answers end with one."""
    draw = torch.Generator().manual_seed(seed)

    def some(n: int) -> list[int]:
        return torch.randint(10, 99, (n,), generator=draw).tolist()

    return [([*some(prompt - 2), END, *some(1)], [*some(answer - 1), END]) for prompt, answer in sizes]


CASES = {  # (tokens of the prompt, tokens of the answer) of each example; the simple ones first
    "one example that fills its row": [(10, 6)],
    "one example and padding": [(6, 4)],
    "two examples in one row": [(5, 3), (4, 2)],
    "two examples that fill their row": [(5, 3), (4, 4)],
    "three examples in two rows": [(5, 3), (5, 4), (4, 2)],
    "a short one that must not overtake": [(6, 4), (7, 3), (3, 2), (8, 8)],
    "no examples": [],
}
SENTINELS = {  # the examples themselves: tokens whose numbers mean something elsewhere
    "token 0 in prompts and answers": [([0, 11, 0], [0, 12, 0, END]), ([13], [0])],
    "an END inside an answer": [([11, END, 12], [13, END, 14, END]), ([15], [END])],
    "answers that repeat their prompts": [([11, 12], [11, 12, END]), ([11, 12], [11, 12, END])],
}
OTHER_PAD = "rows padded with 0, which is also in answers"


def _rows(tensor: Any) -> Any:
    return tensor.tolist() if isinstance(tensor, Tensor) else tensor


class _Packed(Check):
    """What the checks of `pack` share: the probe."""

    @staticmethod
    def probe(seed: int, pack: Callable[..., Any]) -> Evidence:
        seen: Evidence = {"cases": {}, "changed": 0}
        given = {name: _examples(seed, sizes) for name, sizes in CASES.items()} | SENTINELS
        given[OTHER_PAD] = SENTINELS["token 0 in prompts and answers"]
        for name, examples in given.items():
            mine = copy.deepcopy(examples)
            ids, labels, positions = pack(mine, LENGTH, 0 if name == OTHER_PAD else END)
            seen["changed"] += mine != examples
            seen["cases"][name] = {"ids": _rows(ids), "labels": _rows(labels), "positions": _rows(positions)}
            shapes = [list(t.shape) for t in (ids, labels, positions)]
            seen["cases"][name] |= {
                "shapes": shapes,
                "dtypes": sorted({str(t.dtype) for t in (ids, labels, positions)}),
            }
        try:
            pack(_examples(seed, [(12, 5)]), LENGTH, END)
            seen["too long"] = ""
        except Exception as error:
            seen["too long"] = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        return seen


class ExamplesStayWhole(_Packed):
    """Rows of equal length hold whole examples, in order: each in the last row if it has room, else in a new one."""

    hint = (
        "Keep a list of rows. If the last row has no room for the next example, start a new row. "
        "At the end, fill each row with `pad`. First of all, refuse an example that is longer than `length`."
    )

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected["cases"].items():
            got = seen["cases"][name]
            if got["shapes"] != want["shapes"]:
                return f"{name}: the shapes are {got['shapes']}; they should be {want['shapes']}."
            if got["dtypes"] != want["dtypes"]:
                return f"{name}: the tensors have dtype {', '.join(got['dtypes'])}; token ids are int64."
            if got["ids"] != want["ids"]:
                return f"{name}: the rows are {got['ids']}; they should be {want['ids']}."
        if seen["changed"]:
            return "The examples that you were given have changed: `prompt += answer` writes to the caller's list."
        if seen["too long"] != "ValueError":
            return (
                "An example longer than a row must raise ValueError: if you truncate it, the model learns half an "
                "answer."
            )
        return None


class OnlyAnswersCount(_Packed):
    """Labels are the tokens of the answers, including the last of each, and -100 at prompts and padding."""

    hint = (
        "The model shifts labels itself, so a token's label is at the token's position. Note which tokens belong to "
        "an answer while you build the row. Their values do not show it: the last token of an answer may equal `pad`."
    )
    after = ("examples_stay_whole",)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected["cases"].items():
            ids, labels, right = want["ids"], seen["cases"][name]["labels"], want["labels"]
            if labels == right:
                continue
            if [len(row) for row in labels] != [len(row) for row in right]:
                return f"{name}: labels do not have the shape of the rows."
            return f"{name}: {_why(ids, labels, right)}"
        return None


def _why(ids: list[list[int]], labels: list[list[int]], right: list[list[int]]) -> str:
    """Say what is wrong with the first row whose labels are."""
    row, got, want = next(it for it in zip(ids, labels, right, strict=True) if it[1] != it[2])
    if got in ([*want[1:], IGNORED], [IGNORED, *want[:-1]]):
        return (
            "the labels are shifted by one. The model shifts them itself, so it would predict the token after the next."
        )
    places = [i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b]
    last = max(i for i, label in enumerate(want) if label != IGNORED)
    counted = [i for i in places if want[i] == IGNORED]
    if counted and all(i > last for i in counted):
        return f"padding counts in the loss (places {counted}), so the model would learn to write padding."
    if counted:
        return f"tokens of prompts count in the loss (places {counted}): only the answer counts."
    if all(row[i] == END for i in places):
        return (
            f"an end-of-turn token of an answer does not count (places {places}); the model needs it to learn to stop."
        )
    return f"tokens of answers do not count, or have a wrong label (places {places})."


class PositionsBeginAnew(_Packed):
    """Positions count from 0 in each example and in the padding, so that attention can tell them apart."""

    hint = "An example of n tokens has the positions list(range(n)). The padding of a row starts at 0, too."
    after = ("examples_stay_whole",)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected["cases"].items():
            got = seen["cases"][name]["positions"]
            if got == want["positions"]:
                continue
            n = len(want["positions"][0])
            if got == [list(range(n))] * len(want["positions"]):
                return f"{name}: positions continue through the row, so an example would attend to the one before it."
            return f"{name}: the positions are {got}; they should be {want['positions']}."
        return None


PACKED = (ExamplesStayWhole, OnlyAnswersCount, PositionsBeginAnew)
