"""Hand-ins that resemble each other are found; right answers that do not are left alone."""

import re
import time

from helpers.course.grade.intake.hand_in import reference_hand_in
from helpers.course.grade.report.report import Report
from helpers.course.grade.report.resemblance import ALIKE, resembling_pairs, words

import pytest

from ...answers import topics
from ..results import CONDITIONS, GRADED, X1, result, rows_of, stubs


def solved(source):
    return reference_hand_in(source).answers


def disguised(code):
    """The same code with other names, other layout, comments and type hints in strings."""
    own = set(re.findall(r"\b(?:def|class) (\w+)|(?:^|[^.\w])(\w+) = ", code)[0]) | {
        "loss", "model", "optimizer", "images", "labels", "gradient", "gradients", "parameters", "group", "x", "y", "p",
        "step", "batch", "order", "data", "total", "loader", "seen", "rows", "totals", "inner", "mine", "logits",
    }  # fmt: skip
    for n, name in enumerate(sorted(own - {""})):
        code = re.sub(rf"(?<![.\w]){name}\b(?!=)", f"v{n}", code)
    lines = [f"{line}  # {n}" if line.strip() and not line.rstrip().endswith("\\") else line
             for n, line in enumerate(code.splitlines())]  # fmt: skip
    return '"""My very own."""\n' + "\n\n".join(lines).replace("    ", "   ")


def pairs_of(source, hand_ins):
    return resembling_pairs(source.exercise, hand_ins, stubs(source).values(), solved(source).values())


@pytest.mark.parametrize("source", GRADED, ids=lambda source: source.name)
def test_right_answers_written_differently_are_no_pair_and_copies_are(source):
    right = topics()[source.exercise].right
    written = [(name, {"all": code}) for name, code in right.items()]
    assert pairs_of(source, written) == []
    for name, code in right.items():
        copy = disguised(code)
        assert words(copy)[:40] != []
        (pair,) = pairs_of(source, [*written, ("copy", {"all": copy})])
        assert {pair.first, pair.second} == {name, "copy"}
        padded = copy + "\n\ndef unused(a, b):\n    return [a + i * b for i in range(9) if a]\n" * 10
        (pair,) = pairs_of(source, [*written, ("padded", {"all": padded})])
        assert {pair.first, pair.second} == {name, "padded"}


@pytest.mark.parametrize("source", GRADED, ids=lambda s: s.exercise)
def test_the_published_solution_is_known_again(source):
    copy = {name: disguised(code) for name, code in solved(source).items()}
    pairs = pairs_of(source, [("ada", copy), ("ben", solved(source)), ("eve", stubs(source))])
    assert {(pair.first, pair.second) for pair in pairs} == {("ada", None), ("ben", None)}
    assert all(pair.share >= ALIKE for pair in pairs)


def test_stubs_and_short_answers_are_not_compared():
    short = {"scaler": "def f(x):\n    return x + 1\n"}
    assert pairs_of(X1, [("a", stubs(X1)), ("b", stubs(X1)), ("c", short), ("d", short), ("e", {})]) == []


def test_what_few_students_wrote_cannot_slow_the_comparison_of_all():
    nasty = ['"\\' * 40_000, "'''" + 'a\\"' * 40_000, '"""' * 40_000, "(" * 90_000, "rb'" * 30_000, "1." * 50_000]
    right = list(topics()["x2"].right.values())
    usual = [(f"s{n}", {"all": right[n % 2]}) for n in range(24)]
    seconds = []  # of this process, so that a busy machine changes nothing
    for hand_ins in (usual, usual + [(f"n{n}", {"all": text}) for n, text in enumerate(nasty)]):
        begin = time.process_time()
        assert len(pairs_of(GRADED[1], hand_ins)) == 2 * 12 * 11 // 2
        seconds.append(time.process_time() - begin)
    assert seconds[1] < 20 * seconds[0]


def test_pairs_become_flags_in_the_final_gradebook(tmp_path):
    code = next(iter(topics()["x1"].right.values()))
    results = [result(name, answers={"scaler": code}) for name in ("ada", "ben", "cem", "dan", "eve")]
    results.append(result("zoe", answers=solved(X1), flags=["f"]))
    Report(tmp_path, CONDITIONS, planned=6).write(results)
    rows = {row["student"]: row["flags"] for row in rows_of((tmp_path / "gradebook.csv").read_text(encoding="utf-8"))}
    assert rows["ada"] == "resembles ben (100%), cem (100%), dan (100%) and 1 more"
    assert rows["zoe"] == "f; resembles the published solution (100%)"
    assert results[0].flags == []
