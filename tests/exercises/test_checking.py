"""The report that a check prints."""

from helpers.exercises.base import Part, Verdict
from helpers.exercises.checking import report


def test_a_report_breaks_lines_between_words():
    words = "Micro-batches of a rule that goes on and on. " * 6
    verdict = Verdict("long_rule", words, 0, 1, f"{words}\n  second line", words)
    part = Part("x.y", (), ())
    lines = report(part, [verdict]).splitlines()
    assert max(map(len, lines)) <= 108
    assert " ".join(" ".join(lines[1:]).split()) == " ".join(
        f"✗ long_rule: {words} {words} second line Hint: {words}".split()
    )
