"""The pages for students and for the instructor."""

import re
from dataclasses import replace

from helpers.course.build.notebooks import make_notebook
from helpers.course.grade.report.class_page import class_page
from helpers.course.grade.report.feedback import feedback, page_name
from helpers.course.grade.report.report import Report
from helpers.course.grade.report.resemblance import Pair
from helpers.exercises.base import Outcome, Verdict
from helpers.exercises.checking import NOT_ATTEMPTED_YET

from ..results import CONDITIONS, GRADED, TOO_LARGE, X1, missing, result, stubs


def page(*results):
    return feedback(results[0].student, list(results), CONDITIONS)


def test_a_page_says_what_was_expected_what_came_and_shows_the_code_beside():
    code = {**stubs(X1), "scaler": "class Mine:\n    '''my own scaler'''"}
    text = page(result(missed={"scale_grows": TOO_LARGE}, answers=code))
    assert "9 of 10 points" in text
    assert text.index(TOO_LARGE) < text.index("After growth_interval good steps in a row") < text.index("my own scaler")
    assert "X1 · Train a CNN in mixed precision" in text
    assert "Part 1 · One scaler, two optimizers" in text
    assert "Ask your instructor for a review" in text
    assert "ran for 12 s" in text


def test_a_part_without_a_cell_of_its_own_is_not_said_to_lack_one():
    x6 = next(source for source in GRADED if source.exercise == "x6")
    text = page(result(source=x6))
    assert text.count("This part runs your answers to the parts before it.") == 1
    assert "was not in your notebook" not in text
    assert "was not in your notebook" in page(result(source=x6, answers=dict(list(stubs(x6).items())[:1])))


def test_the_class_page_counts_blank_submissions_beside_the_attempted():
    checks = [v.check for v in result().verdicts]
    blank = dict.fromkeys(checks, (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET))
    text = class_page([result("ada"), result("gus", missed=blank, status="blank")], [], CONDITIONS, 2)
    assert "All checks passed in the one attempted submission; 1 was blank." in text
    assert "the submission of <bdi>ada</bdi> ran for 12 s" in text
    assert "1 with 10, 1 blank" in text
    alone = class_page([result("ada")], [], CONDITIONS, 1)
    assert "All checks passed in the one attempted submission." in alone
    assert "blank" not in alone.partition("</style>")[2]


def test_the_class_page_cuts_a_diagnosis_between_words_and_not_within_code():
    text = class_page(
        [result(missed={"scale_grows": "word " * 57 + "`scaler.step(optimizer)` " * 3})], [], CONDITIONS, 1
    )
    assert "word …</td>" in text
    assert "`" not in text


def test_hints_and_reasons_show_code_as_code():
    with_code = result(missed={"scale_grows": TOO_LARGE}, status="crashed", reason="It called `exit`.")
    with_code.verdicts[:] = [replace(v, hint="Look at `step`.") for v in with_code.verdicts]
    text = page(with_code)
    assert "It called <code>exit</code>." in text
    assert "Look at <code>step</code>." in text


def test_one_reason_for_many_checks_is_said_once():
    checks = [v.check for v in result().verdicts]
    assert page(missing()).count("was not submitted; no notebook") == 1
    assert "Expected:" not in page(missing())
    assert "random numbers of seed" not in page(missing())  # nothing was run
    assert "random numbers of seed" in page(result())
    died = page(result(missed=dict.fromkeys(checks, "Did not run: the kernel died"), status="crashed"))
    assert died.count("Did not run: the kernel died") == 3  # once a part
    assert died.count("Expected:") == 10
    blank = dict.fromkeys(checks, (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET))
    untouched = page(result(missed=blank, status="blank"))
    assert untouched.count("</span> Not attempted</p>") == 3
    assert "Hint" not in untouched
    assert "✗" not in untouched  # nothing is wrong with what was not done
    assert ">blank</span>" in untouched


def test_pages_take_nothing_for_markup_and_load_nothing():
    evil = "<script>alert(1)</script>\"'><img src=x>{{ 7*7 }}"
    code = dict.fromkeys(stubs(X1), evil)
    results = [result(evil, missed={"scale_grows": evil}, reason=evil, flags=[evil], answers=code, status="crashed")]
    pairs = [Pair("x1", evil, evil, 1.0)]
    for text in (feedback(evil, results, CONDITIONS), class_page(results, pairs, CONDITIONS, 1)):
        assert "<script" not in text
        assert "<img" not in text
        assert "&lt;script&gt;" in text
        assert "49" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
        assert "default-src 'none'" in text


def test_a_page_shows_no_solution_no_flags_and_no_endless_code():
    solution = make_notebook(X1, solved=True)
    lines = {line.strip() for cell in solution.cells if cell.cell_type == "code" for line in cell.source.splitlines()}
    given = {line.strip() for cell in make_notebook(X1, solved=False).cells for line in cell.source.splitlines()}
    checks = [v.check for v in result().verdicts]
    text = page(result(missed=dict.fromkeys(checks, TOO_LARGE), flags=["touches sys.modules"]))
    shown = "\n".join([*given, *(v.hint for v in result().verdicts)])  # what the notebook shows anyway
    assert [line for line in lines if len(line) > 15 and line in text and line not in shown] == []
    assert "sys.modules" not in text
    assert len(page(result(answers={"scaler": "x" * 1_000_000}))) < 100_000


def test_page_names_are_safe_and_different():
    names = [
        "x" * 250,
        "李" * 84,
        "caf\udce9",
        "Ada Lovelace",
        "ada lovelace",
        "../../etc",
        "a/b",
        "a:b",
        "李雷",
        "O'Brien",
    ]
    names += ["", "CON?", "con", "nul", "Ada", "ada", "ADA", ".html", "-", "__"]
    names += [page_name(name).removesuffix(".html") for name in names]  # somebody may be called like another's page
    pages = [page_name(name) for name in dict.fromkeys(names)]
    assert len({page.lower() for page in pages}) == len(pages), "also where Ada.html and ada.html are one file"
    assert all(len(page.encode()) < 120 for page in pages)
    assert all(re.fullmatch(r"[\w-]+\.html", page, flags=re.ASCII) for page in pages)
    assert not {"con.html", "nul.html"} & set(pages)
    assert page_name("ada") == "ada.html"


def test_the_class_page_sums_up(tmp_path):
    wrong = [
        result(f"s{n}", missed={"scale_grows": f"The gradient is {n}.5x too large", "memory_falls": "Too much."})
        for n in range(3)
    ]
    wrong[0].verdicts[2] = Verdict("scale_grows", "rule", 0, 1, Outcome.MISSED, "Something else.", "hint")
    blank = (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET)
    checks = [v.check for v in result().verdicts]
    half = result("fay", missed={"scale_grows": blank, "memory_falls": "Too much."})
    untouched = result("gus", missed=dict.fromkeys(checks, blank), status="blank")
    results = [*wrong, result("zoe", flags=["touches sys.modules"]), half, untouched, missing("eve")]
    Report(tmp_path, CONDITIONS, planned=9).write(results)
    text = (tmp_path / "class.html").read_text(encoding="utf-8")
    assert "7 students, 6 submissions; the run was interrupted, and 2 of 9 results are still missing" in text
    assert "graded: 5" in text
    assert "missing: 1" in text
    assert "median 12 s over 5 attempted submissions; longest 12 s (" in text
    assert "blank: 1" in text
    assert NOT_ATTEMPTED_YET not in text  # is no diagnosis
    assert "The gradient is 1.5x too large" in text
    assert "Something else." not in text
    assert "touches sys.modules" in text
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', text)
    assert labels == [
        "Histogram of the points earned in X1, out of 10: 4 with 8, 1 with 10, 1 blank.",
        "Bar chart of the checks missed in X1, 5 submissions: memory_falls missed in 4, not attempted in 0, "
        "scale_grows missed in 3, not attempted in 1.",
    ]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "two figures on one page must not share names"
    links = re.findall(r'href="([^"#]+)', text)
    assert all((tmp_path / link).exists() for link in links if not link.startswith("#"))
    assert len([link for link in links if link.startswith("feedback/")]) == 7
