"""A score by exact match: which answers greedy decoding would write to the last letter."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

IGNORED, END, WORDS, LENGTH = -100, 2, 40, 64
SURE, UNSURE = 9.0, 1.0  # the likeliest token's logit: beside 40 others near 0, its probability is 0.99, or 0.06


@dataclass(frozen=True)
class _Case:
    """A row.

    Attributes:
        wrong: places in the answer whose token is not the likeliest.
        holds: tokens of the answer, by their places in it.
        peak: the likeliest token's logit.
        instead: what is likeliest at the wrong places.
    """

    prompt: int
    answer: int
    wrong: tuple[int, ...] = ()
    holds: Mapping[int, int] = field(default_factory=dict)
    peak: float = SURE
    instead: int = 3  # a token that no answer has


CASES = {
    "all tokens of the answer are the likeliest": _Case(6, 12),
    "the last token, which ends the turn, is not": _Case(6, 12, (11,)),
    "the first token is not": _Case(6, 12, (0,)),
    "one token in the middle is not": _Case(6, 12, (5,)),
    "no token is": _Case(6, 4, (0, 1, 2, 3)),
    "an answer of one token, which is": _Case(9, 1),
    "an answer of one token, which is not": _Case(9, 1, (0,)),
    "an answer that fills its row": _Case(8, 56),
    "an answer that fills its row, whose last token is not the likeliest": _Case(8, 56, (55,)),
    "one token of 56 is not": _Case(8, 56, (30,)),
    "token 0 in the answer is not the likeliest": _Case(6, 12, (4,), {4: 0}),
    "token 1 in the answer is not the likeliest": _Case(6, 12, (4,), {4: 1}),
    "token 0 is the likeliest in place of another": _Case(6, 12, (4,), instead=0),
    "an END token is inside the answer, and a token after it is not the likeliest": _Case(6, 12, (7,), {4: END}),
    "the likeliest tokens have probabilities of 0.06": _Case(6, 12, peak=UNSURE),
    "a token with a probability of 0.06 is not the likeliest": _Case(6, 12, (5,), peak=UNSURE),
}


def _given(seed: int) -> tuple[Tensor, Tensor]:
    """Return logits (cases, 64, 40) and labels (cases, 64); at prompts and padding the likeliest token is any other."""
    draw = torch.Generator().manual_seed(seed)
    likeliest = torch.randint(10, WORDS, (len(CASES), LENGTH), generator=draw)
    labels = torch.full((len(CASES), LENGTH), IGNORED)
    peaks = torch.tensor([case.peak for case in CASES.values()])[:, None, None]
    for row, case in enumerate(CASES.values()):
        answer = torch.randint(10, WORDS, (case.answer,), generator=draw)
        for place, token in {**case.holds, case.answer - 1: END}.items():
            answer[place] = token
        labels[row, case.prompt : case.prompt + case.answer] = answer
        likeliest[row, case.prompt - 1 : case.prompt + case.answer - 1] = answer
        for place in case.wrong:
            likeliest[row, case.prompt - 1 + place] = case.instead
    logits = torch.randn(len(CASES), LENGTH, WORDS, generator=draw) * (peaks / SURE)
    return logits.scatter_(2, likeliest[..., None], peaks.expand(-1, LENGTH, 1)), labels


class RightToTheLastToken(Check):
    """An answer is right if each of its tokens, including the last, is the most likely one after those before it."""

    hint = (
        "The output at position i predicts the token at position i + 1: which two slices belong together?\n"
        "argmax over the last dimension gives the most likely tokens.\n"
        "A place with the label -100 must not make a row wrong: count it as right, and require all places of the row."
    )

    @staticmethod
    def probe(seed: int, exactly_right: Callable[..., Any]) -> Evidence:
        logits, labels = _given(seed)
        before = {"logits": logits.clone(), "labels": labels.clone()}
        right = exactly_right(logits, labels)
        changed = [name for name, t in (("logits", logits), ("labels", labels)) if not torch.equal(t, before[name])]
        none = exactly_right(before["logits"][:0], before["labels"][:0])
        return {
            "right": right.tolist(),
            "changed": changed,
            "dtypes": [str(verdicts.dtype).removeprefix("torch.") for verdicts in (right, none)],
            "shapes": [list(right.shape), list(none.shape)],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["shapes"] != expected["shapes"]:
            return f"{len(CASES)} rows and no rows give the shapes {seen['shapes']}; expected {expected['shapes']}."
        if seen["dtypes"] != expected["dtypes"]:
            rows, none = seen["dtypes"]
            return f"The result has dtype {rows} ({none} without rows); it should be bool: right or not, for each row."
        if seen["changed"]:
            return f"The {seen['changed'][0]} that you were given have changed; work on a copy."
        wrong = [name for name, a, b in zip(CASES, seen["right"], expected["right"], strict=True) if a != b]
        if not wrong:
            return None
        if not any(seen["right"]):
            return (
                "No answer counts as right. Do you compare the output at position i with the label at position i + 1, "
                "and ignore labels of -100?"
            )
        said, should = ("right", "wrong") if seen["right"][list(CASES).index(wrong[0])] else ("wrong", "right")
        return f"In the case '{wrong[0]}', the answer counts as {said}; it is {should}."


EXACT = (RightToTheLastToken,)
