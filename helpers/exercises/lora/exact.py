"""A score by exact match: which answers greedy decoding would write to the last letter."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

IGNORED, END, WORDS, LENGTH = -100, 2, 40, 24
# name: (tokens of the prompt, tokens of the answer, places in the answer whose token is not the likeliest)
CASES = {
    "all tokens of the answer are the likeliest": (6, 12, []),
    "the last token, which ends the turn, is not": (6, 12, [11]),
    "the first token is not": (6, 12, [0]),
    "one token in the middle is not": (6, 12, [5]),
    "no token is": (6, 4, [0, 1, 2, 3]),
    "an answer of one token, which is": (9, 1, []),
    "an answer of one token, which is not": (9, 1, [0]),
    "an answer that fills its row": (8, 16, []),
    "an answer that fills its row, whose last token is not the likeliest": (8, 16, [15]),
}


def _given(seed: int) -> tuple[Tensor, Tensor]:
    """Return logits (cases, 24, 40) and labels (cases, 24); at prompts and padding the likeliest token is any other."""
    draw = torch.Generator().manual_seed(seed)
    likeliest = torch.randint(10, WORDS, (len(CASES), LENGTH), generator=draw)
    labels = torch.full((len(CASES), LENGTH), IGNORED)
    for row, (prompt, answer, wrong) in enumerate(CASES.values()):
        labels[row, prompt : prompt + answer] = torch.randint(10, WORDS, (answer,), generator=draw)
        labels[row, prompt + answer - 1] = END
        likeliest[row, prompt - 1 : prompt + answer - 1] = labels[row, prompt : prompt + answer]
        for place in wrong:
            likeliest[row, prompt - 1 + place] = 3  # a token that no answer has
    logits = torch.randn(len(CASES), LENGTH, WORDS, generator=draw)
    return logits.scatter_(2, likeliest[..., None], 9.0), labels


class RightToTheLastToken(Check):
    """An answer is right if each of its tokens, the END included, is the likeliest one after those before it."""

    hint = (
        "The output at place i speaks of the token at place i + 1: which two slices face each other?\n"
        "argmax over the last dimension gives the likeliest tokens.\n"
        "A place whose label is -100 must not spoil a row: count it as right, then ask for all of the row."
    )

    @staticmethod
    def probe(seed: int, exactly_right: Callable[..., Any]) -> Evidence:
        logits, labels = _given(seed)
        right = exactly_right(logits, labels)
        none = exactly_right(logits[:0], labels[:0])
        return {
            "right": right.tolist(),
            "dtypes": [str(verdicts.dtype).removeprefix("torch.") for verdicts in (right, none)],
            "shapes": [list(right.shape), list(none.shape)],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["shapes"] != expected["shapes"]:
            return f"{len(CASES)} rows and no rows give the shapes {seen['shapes']}; {expected['shapes']} is right."
        if seen["dtypes"] != expected["dtypes"]:
            rows, none = seen["dtypes"]
            return (
                f"The result is of {rows}, and for no rows of {none}; it should be of bool: right or not, for each row."
            )
        wrong = [name for name, a, b in zip(CASES, seen["right"], expected["right"], strict=True) if a != b]
        if not wrong:
            return None
        if not any(seen["right"]):
            return (
                "No answer counts as right. Does the output at place i face the label at place i + 1, and are places "
                "with a label of -100 left out?"
            )
        said = "right" if seen["right"][list(CASES).index(wrong[0])] else "wrong"
        return f"{wrong[0]}: the answer is said to be {said}."


EXACT = (RightToTheLastToken,)
