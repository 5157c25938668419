"""Mistakes over classes: alike but for their figures they are one, with a page that leads to the lab."""

import json

from helpers.__main__ import main
from helpers.core.files import ROOT
from helpers.course.build.source import sources
from helpers.course.grade.report.exports import results_json
from helpers.course.grade.report.mistakes import Mistake, places
from helpers.exercises.base import Outcome
from helpers.exercises.checking import NOT_ATTEMPTED_YET

from ..results import CONDITIONS, GRADED, TOO_LARGE, missing, result


def a_class(folder, *results):
    folder.mkdir()
    (folder / "results.json").write_text(results_json(results, CONDITIONS), encoding="utf-8")
    return str(folder)


def test_a_mistake_is_counted_over_classes_and_has_a_page(tmp_path, capsys):
    checks = [v.check for v in result().verdicts]
    other = TOO_LARGE.replace("4.0x", "8.0x")
    first = a_class(
        tmp_path / "spring",
        result(
            "ada", missed={"scale_grows": TOO_LARGE, "loss_in_fp32": (Outcome.NOT_RUN, "Did not run: as an example")}
        ),
        result("ben", missed={"scale_grows": other}),
        missing("cem"),
        result("dan", missed=dict.fromkeys(checks, (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET)), status="blank"),
    )
    second = a_class(
        tmp_path / "autumn",
        result("eve", missed={"scale_grows": other, "memory_falls": (Outcome.NOT_ATTEMPTED, NOT_ATTEMPTED_YET)}),
        result("fay", missed={"scale_grows": "Another <b>one</b>."}),
    )
    out = tmp_path / "out"
    assert main(["mistakes", first, second, "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'index.html'}\n"
    assert sorted(path.name for path in out.iterdir()) == [
        "index.html",
        "x1-scale_grows-1.html",
        "x1-scale_grows-2.html",
    ]
    page = (out / "x1-scale_grows-1.html").read_text(encoding="utf-8")
    assert "Submissions with this mistake: 3." in page
    assert "2 of 2" in page
    assert "1 of 2" in page
    assert "<b>" not in (out / "x1-scale_grows-2.html").read_text(encoding="utf-8")


def test_every_check_leads_to_a_heading_that_is_there():
    for source in GRADED:
        for verdict in result(source=source).verdicts:
            part, lab = places(Mistake(source.exercise, verdict.check, "", "", ""))
            name, _, anchor = part.address.rpartition("/labs/")[2].partition(".ipynb#")
            cells = json.loads((ROOT / "labs" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
            headings = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
            assert anchor.replace("-", " ") in " ".join(headings).replace("-", " "), part
            assert any(lab.address.endswith(f"/labs/{one.name}.ipynb") for one in sources() if not one.graded)


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert main(["mistakes", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path} has no results.json")
