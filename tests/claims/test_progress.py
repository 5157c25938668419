"""What progress is saved, where, and when none is; and the page made from it."""

import importlib
import json
import re

from helpers import Claims, check, lab_report
from helpers.claims.progress import read_progress
from helpers.claims.status import status
from helpers.exercises.checking import find_part

import pytest


@pytest.fixture
def claims():
    table = Claims()
    table.record("C1", "halves the memory", "a <small> model", 1.9, "times", 1.8, 2.2)
    table.record("C2", "no cost", "the same", 3.0, "times", 0.9, 1.1)
    return table


def test_shown_claims_are_saved_and_reported(claims, tmp_path, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path / "kept"))
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/03_mixed_precision.ipynb")
    claims._repr_html_()
    claims._repr_html_()  # shown again: saved once
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/15_capstone.ipynb")
    table = Claims()
    table.record("C12", "20x", "ViT", 44.0, "times", 20, 50)
    report = lab_report(table)
    assert report.labs == ["03_mixed_precision", "15_capstone"]
    assert "3 claims" in report.html
    assert "2 held, 1 did not" in report.html
    assert "a &lt;small&gt; model" in report.html
    assert "http" not in report.html
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == report.html
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["progress.json"]


def test_what_could_not_be_measured_is_saved_and_counts_as_neither(claims, tmp_path, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/13_fp8.ipynb")
    claims.not_measured("C15", "2x the speed", "no FP8 units here")
    claims._repr_html_()
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/15_capstone.ipynb")
    report = lab_report(Claims())  # from the file alone
    assert "2 claims" in report.html
    assert "1 held, 1 did not; 1 could not be measured." in report.html
    assert "<td>not measured here</td>" in report.html  # in no verdict's color
    assert repr(report) == "Lab report: 2 claims in 1 lab, 1 held"


def test_a_figure_without_a_claim_counts_as_neither(claims):
    before = repr(lab_report(claims))
    claims.figure("seconds of a step", "this CPU", 1.5, "s")
    report = lab_report(claims)
    assert repr(report) == before
    assert "<td>figure only</td>" in report.html  # in no verdict's color


def test_the_report_shows_itself_with_its_sections(claims):
    ladder = [["rung", "peak"], ["<0> FP32", "22 MiB"]]
    report = lab_report(claims, {"The ladder": ladder, "The recipe": "bf16, batch 1"})
    for text in (report.html, report._repr_html_()):
        assert "<h2>The ladder</h2>" in text
        assert "<th>peak</th>" in text
        assert "<td>&lt;0&gt; FP32</td>" in text
        assert "<p>bf16, batch 1</p>" in text
        assert "halves the memory" in text
    assert report.html.startswith("<!doctype html>")
    assert "<body" not in report._repr_html_()


@pytest.mark.parametrize("folder", ["", "off", " OFF "])
def test_off_saves_nothing(claims, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAS_PROGRESS", folder)
    claims._repr_html_()
    assert list(tmp_path.iterdir()) == []
    assert len(lab_report(claims).labs) == 1


def test_tests_and_builds_leave_no_trace(claims, monkeypatch):
    from helpers.claims import progress

    monkeypatch.delenv("TAS_PROGRESS", raising=False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert progress.progress_file() is None


@pytest.mark.parametrize("junk", ["", "{", "[1, 2]", '{"01": [{"claim": 3}]}', '{"01": 5}'])
def test_a_broken_file_does_no_harm(claims, junk, tmp_path, monkeypatch):
    (tmp_path / "progress.json").write_text(junk)
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    assert lab_report(claims).labs == ["this lab"]
    status()
    claims._repr_html_()
    assert "halves the memory" in (tmp_path / "progress.json").read_text()


def test_progress_saved_under_a_name_that_a_part_had_is_that_of_the_part(tmp_path):
    saved = {"11_data_parallel": {"claims": [], "checks": {"data_parallel.law.tolerates_noise": [True, 0, 0]}}}
    (tmp_path / "progress.json").write_text(json.dumps(saved))
    labs = read_progress(tmp_path / "progress.json")
    assert labs["11_data_parallel"].checks == {"data_parallel.link.tolerates_noise": (True, 0, 0)}
    assert find_part("data_parallel.law") is find_part("data_parallel.link")


def test_status_counts_labs_claims_checks_and_points(claims, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    status()
    assert capsys.readouterr().out.startswith("Nothing has been measured or checked")
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/00_start_here.ipynb")
    claims._repr_html_()

    def untouched(*inputs):
        raise NotImplementedError

    part = importlib.import_module("helpers.exercises.start_here").PARTS[0]
    reference = importlib.import_module("helpers.exercises.reference.start_here")
    check(part.name, *[untouched] * len(part.answers))
    status()
    assert re.search(rf"00_start_here +2 +0 of {len(part.checks)} +-\n", capsys.readouterr().out)
    check(part.name, *(getattr(reference, name) for name in part.answers))
    status()
    output = capsys.readouterr().out
    assert re.search(
        rf"00_start_here +2 +{len(part.checks)} of {len(part.checks)} +-\n", output
    )  # practice has no points
    assert str(tmp_path) in output
    (tmp_path / "progress.json").unlink()
    status()
    assert "Nothing has been measured" in capsys.readouterr().out
