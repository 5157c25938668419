"""The tools behind the mutants: edits by machine, trials in a process of their own, the list of harmless edits."""

import pytest

from .mutants import reference_text, topics
from .mutants.edits import edits
from .mutants.equivalent import EQUIVALENT
from .mutants.trial import HANGS, try_answer

ANSWER = """
def unused(x):
    return x - 1


def helper(x):
    return x.float()


def answer(x, n):
    total = 0
    for i in range(n):
        total += helper(x) * 2
        n = n
    if n > 3 and x:
        total = min(total, n)
    return total
"""
EXPECTED = {
    "total += helper(x) * 2  ->  total -= helper(x) * 2",
    "total += helper(x) * 2  ->  total += helper(x) / 2",
    "total += helper(x) * 2  ->  total += helper(x) * 3",
    "total += helper(x) * 2  ->  pass",
    "if n > 3 and x:  ->  if n >= 3 and x:",
    "if n > 3 and x:  ->  if n > 3 or x:",
    "if n > 3 and x:  ->  if True:",
    "total = min(total, n)  ->  total = min(n, total)",
    "return total  ->  return",
    "return x.float()  ->  return x",
}


def test_edits_are_small_each_once_and_of_the_answer_and_its_helpers():
    found = list(edits(ANSWER, ("answer",)))
    words = [edit.words for edit in found]
    assert set(words) >= EXPECTED
    assert len({edit.source for edit in found}) == len(found)
    assert not any("x - 1" in text or "x + 1" in text for text in words)
    for edit in found:
        compile(edit.source, "edited", "exec")


def test_only_statements_that_depend_on_each_other_are_swapped():
    text = "def answer(a, b):\n    c = a\n    d = b\n    e = d\n    return e + c\n"
    words = [edit.words for edit in edits(text, ("answer",))]
    assert "d = b / e = d  ->  e = d / d = b" in words
    assert "c = a / d = b  ->  d = b / c = a" not in words


@pytest.mark.slow
@pytest.mark.parametrize("exercise", sorted({exercise for exercise, _ in EQUIVALENT}))
def test_each_edit_that_is_called_harmless_is_still_one_that_the_search_makes(exercise):
    parts = __import__(f"helpers.exercises.{exercise}", fromlist=["PARTS"]).PARTS
    texts = [reference_text(exercise), *topics()[exercise].right.values()]
    made = {edit.words for part in parts for text in texts for edit in edits(text, part.answers)}
    assert {words for of, words in EQUIVALENT if of == exercise} <= made
    assert all(reason for reason in EQUIVALENT.values())


@pytest.mark.slow
def test_a_trial_names_what_fails_and_ends_what_hangs():
    text = reference_text("x1")
    assert try_answer("x1.scaler", text) == {}
    wrong = text.replace("return loss * self.current_scale", "return loss")
    assert list(try_answer("x1.scaler", wrong)) == ["gradient_is_unscaled"]
    endless = text.replace("return loss * self.current_scale", "while True: pass")
    assert list(try_answer("x1.scaler", endless, checks=["gradient_is_unscaled"], limit=3.0)) == [HANGS]
