"""What a run writes for those who teach: pages without names, letters, pages on flags, what regrading changed."""

import email
import email.policy
import zipfile
from dataclasses import replace

from helpers.course.grade.report.audit import flag
from helpers.course.grade.report.pseudonyms import pseudonyms
from helpers.course.grade.report.report import Report
from helpers.course.grade.report.roster import Person
from helpers.exercises.base import Outcome
from helpers.exercises.checking import NOT_ATTEMPTED_YET

import nbformat

from ..results import CONDITIONS, GRADED, TOO_LARGE, X1, missing, result, rows_of, stubs

ADA = "Ada Lovelace_12345_assignsubmission_file_"
PEOPLE = {ADA: Person(ADA, "Lovelace,\nAda", "1815", "ada@example.org")}


def everything(out):
    return {p.relative_to(out).as_posix(): p for p in out.rglob("*") if p.is_file()}


def test_anonymous_pages_name_nobody_and_platforms_know_who_is_who(tmp_path):
    results = [result(ADA, flags=["scaler, line 2: uses `eval`."]), missing("ben")]
    Report(tmp_path, CONDITIONS, 2, PEOPLE).write(results)
    names = pseudonyms(tmp_path / "names.csv", [ADA, "ben"])
    assert pseudonyms(tmp_path / "names.csv", ["ben", ADA]) == names  # kept from run to run
    report = Report(tmp_path, CONDITIONS, 2, PEOPLE, names=names)
    report.write(results)
    files = everything(tmp_path)
    told = ("canvas.csv", "moodle.csv", "names.csv", "moodle_feedback.zip")
    for name, path in files.items():
        if name not in told:
            assert "lovelace" not in name.lower() + path.read_text(encoding="utf-8").lower(), name
    assert f"feedback/{names['ben']}.html" in files
    assert "1815" in files["canvas.csv"].read_text(encoding="utf-8")


def test_letters_are_written_to_those_with_an_address(tmp_path):
    Report(tmp_path, CONDITIONS, 2, PEOPLE, sender="course@example.org").write(
        [result(ADA, missed={"scale_grows": TOO_LARGE}), missing("ben")]
    )
    (path,) = (tmp_path / "letters").iterdir()
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    assert (message["From"], message["To"], message["X-Unsent"]) == ("course@example.org", "ada@example.org", "1")
    text, page = message.iter_parts()
    assert "Dear Ada Lovelace,\n\nX1: 9 of 10 points" in text.get_content().replace("\r\n", "\n")
    assert TOO_LARGE in page.get_content()


def test_feedback_goes_back_to_moodle_under_the_name_of_the_folder(tmp_path):
    Report(tmp_path, CONDITIONS, 2).write([result(ADA), result("ben")])
    with zipfile.ZipFile(tmp_path / "moodle_feedback.zip") as archive:
        assert archive.namelist() == [f"{ADA}/feedback.html"]
        assert "10 of 10" in archive.read(f"{ADA}/feedback.html").decode()


def test_feedback_goes_back_to_canvas_as_a_notebook_under_the_name_it_came_with(tmp_path):
    late = "lovelaceada_LATE_12_345"
    missed = {"scale_grows": TOO_LARGE}
    cem = result("cem", source=GRADED[1], canvas="cem_1_2")
    results = [result("lovelaceada", missed=missed, canvas=late), result("ben"), cem, missing("dan_3_4")]
    Report(tmp_path, CONDITIONS, 4).write(results)
    assert sorted(path.name for path in tmp_path.glob("*.zip")) == ["canvas_feedback_x1.zip", "canvas_feedback_x2.zip"]
    with zipfile.ZipFile(tmp_path / "canvas_feedback_x1.zip") as archive:
        (name,) = archive.namelist()
        notebook = nbformat.reads(archive.read(name).decode(), 4)
    assert name == f"{late}_{X1.name}.ipynb"
    assert [piece for piece in name.split("_") if piece.isdigit()][:2] == ["12", "345"]  # as Canvas reads it
    nbformat.validate(notebook)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "9 of 10 points" in text
    assert TOO_LARGE in text
    assert {cell.cell_type for cell in notebook.cells} == {"raw"}


def test_what_was_not_attempted_has_no_hint_in_a_notebook_for_canvas(tmp_path):
    blank = {"scale_grows": (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET), "memory_falls": TOO_LARGE}
    theirs = result(missed=blank, canvas="ada_1_2")
    Report(tmp_path, CONDITIONS, 1).write([theirs])
    with zipfile.ZipFile(tmp_path / "canvas_feedback_x1.zip") as archive:
        notebook = nbformat.reads(archive.read(archive.namelist()[0]).decode(), 4)
    text = "\n".join(cell.source for cell in notebook.cells)
    hints = {v.check: v.hint.splitlines()[0] for v in theirs.verdicts}
    assert "Not attempted:\nExpected: " in text
    assert NOT_ATTEMPTED_YET not in text
    assert hints["scale_grows"] not in text
    assert hints["memory_falls"] in text


def test_each_flag_leads_to_a_page_with_its_line_marked(tmp_path):
    code = {**stubs(X1), "scaler": "import math\nx = eval('<b>1</b>')\n"}
    flags = ["scaler, line 2: uses `eval`.", "replaced torch.norm while scale_grows ran", "step: opens a file (open)"]
    Report(tmp_path, CONDITIONS, 1).write([result(flags=flags, answers=code)])
    overview = (tmp_path / "class.html").read_text(encoding="utf-8")
    for n in (1, 2, 3):
        assert f'href="audit/x1-ada.html#flag-{n}"' in overview
    page = (tmp_path / "audit" / "x1-ada.html").read_text(encoding="utf-8")
    assert "<mark>   2  x = eval(&#39;&lt;b&gt;1&lt;/b&gt;&#39;)</mark>" in page
    assert page.count('<section id="flag-') == 3
    meanings = [flag(text).meaning for text in [*flags, "resembles ben (80%)", "something else"]]
    assert len(set(meanings)) == 5


def test_a_flag_for_resemblance_links_the_other_code(tmp_path):
    code = {"step": "\n".join(f"a{n} = torch.f{n}(b{n}, c{n})" for n in range(40))}
    names = ("ada", "ben", "cem")
    Report(tmp_path, CONDITIONS, 3).write([result(name, answers=code) for name in names])
    page = (tmp_path / "audit" / "x1-ada.html").read_text(encoding="utf-8")
    for other in names[1:]:
        assert f'<a href="x1-{other}.html#code"><bdi>{other}</bdi></a>' in page
        assert '<section id="code">' in (tmp_path / "audit" / f"x1-{other}.html").read_text(encoding="utf-8")


def test_pages_of_students_who_are_gone_are_removed_and_nothing_else(tmp_path):
    flags = ["scaler, line 2: uses `eval`."]
    first = Report(
        tmp_path, CONDITIONS, 3, sender="me@example.org", roster={"okafro": Person("okafro", "O", "", "o@x.y")}
    )
    first.write([result("okafro", flags=flags), result("mc-okafro", flags=flags), result("zoe", flags=flags)])
    mine = tmp_path / "feedback" / "mine.html"
    mine.write_text("notes")
    now = [result("okafor", flags=flags), result("mc-okafro")]  # zoe's has not been graded again yet
    Report(tmp_path, CONDITIONS, 3, students={"okafor", "mc-okafro", "zoe"}).write(now)
    pages = {path.name for path in tmp_path.glob("feedback/*")}
    assert pages == {"okafor.html", "mc-okafro.html", "zoe.html", "mine.html"}
    assert {path.name for path in tmp_path.glob("audit/*")} == {"x1-okafor.html", "x1-zoe.html"}
    assert list(tmp_path.glob("letters/*")) == []


def test_regrading_is_written_down(tmp_path):
    report = Report(tmp_path, CONDITIONS, 1)
    before = result(missed={"scale_grows": TOO_LARGE})
    report.regraded(before, result())
    report.regraded(result(), replace(before, status="crashed"))
    report.regraded(before, result(answers={**before.answers, "scaler": "..."}))
    first, second, third = rows_of((tmp_path / "history.csv").read_text(encoding="utf-8"))
    assert [row["why"] for row in (first, second, third)] == ["graded again", "graded again", "resubmitted"]
    assert (first["student"], first["points before"], first["points now"]) == ("ada", "9", "10")
    assert (first["checks"], first["seed"]) == ("scale_grows passed", "11")
    assert (second["status before"], second["status now"], second["checks"]) == (
        "graded",
        "crashed",
        "scale_grows missed",
    )
