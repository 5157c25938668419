"""The report that a check prints, and what it returns."""

import html
import importlib
import pkgutil
import re
import sys
from dataclasses import replace
from types import ModuleType

from helpers import check
from helpers.exercises import reference
from helpers.exercises.base import Check, Outcome, Part, Verdict
from helpers.exercises.check_report import Report
from helpers.exercises.checking import gather, judge, reference_evidence
from helpers.ranks.failure import RankError

import pytest


def test_a_report_breaks_lines_between_words():
    words = "Micro-batches of a rule that goes on and on. " * 6
    verdict = Verdict("long_rule", words, 0, 1, Outcome.MISSED, f"{words}\n  second line", words)
    part = Part("x.y", (), ())
    lines = str(Report(part, [verdict])).splitlines()
    assert max(map(len, lines)) <= 108
    assert " ".join(" ".join(lines[1:]).split()) == " ".join(f"✗ long_rule: {words} {words} second line".split())


def test_a_report_is_html_in_a_notebook_with_the_same_words_and_nothing_of_the_answer_runs_in_it():
    passed = Verdict("doubles", "It doubles.", 1, 1, Outcome.PASSED, None, "")
    missed = Verdict("triples", "It triples.", 0, 1, Outcome.MISSED, "<b>3</b> is not 9.\n  second line", "")
    shown = Report(Part("x.y", (), ()), [passed, missed])
    page = shown._repr_html_()
    assert "&lt;b&gt;3&lt;/b&gt; is not 9." in page
    text = re.sub(r"<[^>]*>", " ", page)
    assert html.unescape(" ".join(text.split())) == " ".join(str(shown).split()).replace(":", "").replace(
        "x.y 1", "x.y: 1"
    )
    assert page.index("solid #0072B2") < page.index("double #D55E00")


def test_code_between_backticks_is_code_in_a_notebook_and_nothing_of_it_runs():
    missed = Verdict("triples", "Call `x.triple()`.", 0, 1, Outcome.MISSED, "`<script>` is not `9`.", "")
    shown = Report(Part("x.y", (), ()), [missed])
    page = shown._repr_html_()
    assert "Call <code>x.triple()</code>." in page
    assert "<code>&lt;script&gt;</code> is not <code>9</code>." in page
    assert "Call `x.triple()`." in str(shown)


def test_where_nothing_was_attempted_one_line_says_what_to_do():
    blank = Verdict("doubles", "It doubles.", 0, 1, Outcome.NOT_ATTEMPTED, "Not attempted yet.", "")
    shown = Report(Part("x.y", (), ()), [blank])
    assert len(str(shown).splitlines()) == 1
    assert "doubles" not in str(shown) + shown._repr_html_()


# -- what later cells go on with


class Doubles(Check):
    """It doubles."""

    hint = "Look at two numbers.\nAdd the number to itself."

    @staticmethod
    def probe(seed, double, triple):
        return {"two": double(1)}

    @staticmethod
    def judge(seen, expected):
        return None if seen == expected else f"{seen['two']} is not {expected['two']}."


class Triples(Check):
    """It triples."""

    hint = "Double it first."

    @staticmethod
    def probe(seed, double, triple):
        return {"three": triple(1)}

    @staticmethod
    def judge(seen, expected):
        return None if seen == expected else "Not three times as much."


def untouched(x):
    raise NotImplementedError()


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


@pytest.fixture
def part(monkeypatch):
    """A part of two answers, as if an exercise module held it."""
    part = Part("planted.both", ("double", "triple"), (Doubles, Triples))
    exercise, reference = ModuleType("planted"), ModuleType("helpers.exercises.reference.planted")
    exercise.PARTS, reference.double, reference.triple = (part,), double, triple
    monkeypatch.setitem(sys.modules, "helpers.exercises.planted", exercise)
    monkeypatch.setitem(sys.modules, "helpers.exercises.reference.planted", reference)
    return part


def test_the_course_stands_in_for_what_is_not_filled_in_and_says_so(part, capsys):
    assert check(part.name, untouched, untouched) == (double, triple)
    printed = capsys.readouterr().out
    assert "not attempted yet" in printed
    assert printed.count("the cells below use the course's answer") == 2


def test_the_reference_is_probed_only_to_compare_with(part, monkeypatch):
    asked = []
    monkeypatch.setattr(
        sys.modules["helpers.exercises.reference.planted"], "double", lambda x: asked.append(x) or 2 * x
    )
    assert reference_evidence(part, 0) == {"doubles": {"seen": {"two": 2}}, "triples": {"seen": {"three": 3}}}
    monkeypatch.setattr(Doubles, "compared", False)
    assert reference_evidence(part, 0) == {"doubles": {"seen": {}}, "triples": {"seen": {"three": 3}}}
    assert asked == [1]


def test_where_an_optional_package_is_missing_nothing_is_checked_and_that_is_said(part, monkeypatch, capsys):
    needy = replace(part, needs="no_such_package")
    monkeypatch.setattr(sys.modules["helpers.exercises.planted"], "PARTS", (needy,))
    assert check(part.name, double, untouched) == (double, untouched)
    assert capsys.readouterr().out == (
        "planted.both: not attempted yet, and cannot be checked. "
        "no_such_package is not installed: pip install no_such_package\n"
    )
    check(part.name, double, triple)
    assert capsys.readouterr().out.startswith("planted.both: not checked. no_such_package is not installed")
    installed = replace(part, needs="torch")
    monkeypatch.setattr(sys.modules["helpers.exercises.planted"], "PARTS", (installed,))
    check(part.name, double, triple)
    assert "2 of 2 checks passed" in capsys.readouterr().out


def test_an_answer_is_gone_on_with_right_or_wrong(part, capsys):
    def wrong(x):
        return x

    assert check(part.name, double, triple) == (double, triple)
    assert check(part.name, wrong, triple) == (wrong, triple)
    assert "stands in" not in capsys.readouterr().out


def test_a_graded_exercise_without_its_reference_says_when_points_come(part, monkeypatch, capsys):
    monkeypatch.setattr(Doubles, "points", 2)
    monkeypatch.delitem(sys.modules, "helpers.exercises.reference.planted")
    assert check(part.name, double, triple) is None
    printed = capsys.readouterr().out
    assert printed.startswith("planted.both: no verdict, because this copy has no reference to compare with.")
    assert "small inputs of your own" in printed


def test_one_of_two_answers_may_be_missing(part, capsys):
    mine = lambda x: x + x  # noqa: E731
    assert check(part.name, mine, untouched) == (mine, triple)
    printed = capsys.readouterr().out
    assert "1 of 2 checks passed" in printed
    assert "`triple` is not filled in yet: the cells below use the course's answer." in printed


def test_a_right_answer_may_raise_the_error_of_stubs(part):
    def careful(x):
        if isinstance(x, str):
            raise NotImplementedError
        return 3 * x

    assert check(part.name, double, careful) == (double, careful)


def test_nothing_stands_in_for_an_answer_that_is_graded(part, monkeypatch, capsys):
    monkeypatch.setattr(Doubles, "points", 1)
    assert check(part.name, untouched, untouched) is None
    assert "stands in" not in capsys.readouterr().out


# -- one observation for several checks


class Observed(Check):
    """Counts how often the answer runs."""

    runs = 0

    @staticmethod
    def probe(seed, double, triple):
        Observed.runs += 1
        if double(1) == "late":
            raise RankError("ranks 0, 1 have not come back within 45 s", overdue=True)
        return {"two": double(1)}


class IsTwo(Observed):
    """Two."""

    judge = staticmethod(lambda seen, expected: None if seen["two"] == 2 else "Not 2.")


class IsEven(Observed):
    """Even."""

    judge = staticmethod(lambda seen, expected: None if seen["two"] % 2 == 0 else "Odd.")


def test_checks_that_share_a_probe_run_the_answer_once(part, monkeypatch):
    monkeypatch.setattr(Observed, "runs", 0)
    sharing = replace(part, checks=(IsTwo, Triples, IsEven))
    evidence = gather(sharing, (lambda x: 4, triple), 0)
    assert list(evidence) == ["is_two", "triples", "is_even"]
    assert Observed.runs == 1
    verdicts = judge(sharing, evidence, {check: {"seen": {"three": 3}} for check in evidence})
    assert [v.outcome for v in verdicts] == [Outcome.MISSED, Outcome.PASSED, Outcome.PASSED]


def judged(part, *answers):
    """Return what is said of `answers`, by check."""
    return {v.check: v for v in judge(part, gather(part, answers, 0), reference_evidence(part, 0))}


def test_a_check_after_one_that_failed_is_not_judged(part, monkeypatch):
    monkeypatch.setattr(Triples, "after", ("doubles",))
    both = judged(part, triple, double)
    assert both["doubles"].diagnosis == "3 is not 2."
    assert both["triples"].diagnosis == "Not judged until doubles passes."
    assert both["triples"].outcome is Outcome.NOT_RUN
    assert judged(part, double, double)["triples"].diagnosis == "Not three times as much."
    assert judged(part, triple, triple)["triples"].passed


def test_an_error_is_shown_once_unless_it_is_graded(part, monkeypatch):
    def broken(x):
        raise ValueError(f"no {x}")

    both = judged(part, broken, broken)
    assert both["doubles"].diagnosis.startswith("Raised ValueError: no 1")
    assert both["triples"].diagnosis == "Raised the same error as doubles."
    assert both["triples"].outcome is Outcome.RAISED
    monkeypatch.setattr(Triples, "points", 1)
    assert judged(part, broken, broken)["triples"].diagnosis.startswith("Raised ValueError: no 1")


def test_checks_come_after_checks_of_their_part_that_precede_them():
    for exercise in pkgutil.iter_modules(reference.__path__):
        for each in importlib.import_module(f"helpers.exercises.{exercise.name}").PARTS:
            names = [check.name() for check in each.checks]
            for i, one in enumerate(each.checks):
                assert set(one.after) <= set(names[:i])


def test_nobody_waits_twice_for_ranks_that_do_not_come_back_unless_it_is_graded(part, monkeypatch):
    waits = replace(part, checks=(IsTwo, Triples))
    late = (lambda x: "late", triple)
    assert gather(waits, late, 0)["triples"] == {"stopped": "the ranks of is_two did not come back. Fix that first."}
    monkeypatch.setattr(Triples, "points", 1)
    assert gather(waits, late, 0)["triples"] == {"seen": {"three": 3}}


def test_a_missing_kernel_is_no_stub(part):
    def without_a_kernel(x):
        raise NotImplementedError("geqrf_cpu not implemented for BFloat16")

    evidence = gather(part, (double, without_a_kernel), 0)
    verdicts = {v.check: v for v in judge(part, evidence, reference_evidence(part, 0))}
    assert any("geqrf_cpu not implemented" in (v.diagnosis or "") for v in verdicts.values())
    assert all(v.outcome is not Outcome.NOT_ATTEMPTED for v in verdicts.values())
