"""The table of claims: verdicts that follow from the figures."""

import math
from dataclasses import replace

from helpers import Claims
from helpers.claims.measurement import Measurement
from helpers.claims.receipt import Receipt

import pytest
import torch


def test_claims_reach_their_own_verdict():
    claims = Claims()
    claims.record("C7", "2x less memory", "CNN", 1.8, "x less", 1.9, math.inf)
    claims.record("C7", "2x less memory", "all <activations>", 2.0, "x less", 1.9, math.inf)
    assert [row.held for row in claims.rows] == [False, True]
    lines = str(claims).splitlines()
    assert lines[1].endswith("did not hold")
    assert lines[2].endswith("held")
    assert "&lt;activations&gt;" in claims._repr_html_()
    assert not Claims().rows  # a new table is empty


def test_figures_of_ranks_on_the_cpu_do_not_bear_the_name_of_a_gpu(monkeypatch):
    monkeypatch.setattr("helpers.claims.claims.pick_device", lambda: torch.device("cuda"))
    monkeypatch.setattr("helpers.claims.claims.device_name", lambda device: f"a {device.type}")
    fastest, ranks = Claims(), Claims(device=torch.device("cpu"))
    for claims in (fastest, ranks):
        claims.figure("seconds", "a step", 1.0, "s")
        claims.not_measured("C15", "2x the speed", "product: no FP8 units here")
    assert [row.device for row in fastest.rows + ranks.rows] == ["a cuda"] * 2 + ["a cpu"] * 2


def test_a_claim_that_cannot_be_measured_is_not_hidden_and_has_no_verdict():
    claims = Claims()
    claims.not_measured("C15", "2x the speed", "product: no FP8 units here")
    assert not claims.rows[0].held
    line = str(claims).splitlines()[1]
    assert line.endswith(" not measured here")
    assert "did not hold" not in line
    assert "product: no FP8 units here" in claims._repr_html_()


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("Adam in mixed precision: 16 bytes a parameter", "Adam in mixed precision: 16 bytes per parameter"),
        ("4-bit Adam: state of 1 B a parameter", "4-bit Adam: state of 1 B per parameter"),
        ("every 2nd or 3rd: for 10 to 15 %", "every 2nd or 3rd: for 10 to 15%"),
        ("weighing by rows repairs it", "weighting by rows repairs it"),
        ("DDP: traffic of a GPU stays below twice that of 2 GPUs",) * 2,
    ],
)
def test_an_older_receipt_is_found_under_the_words_of_today(old, now):
    row = Measurement("C2", old, "a model", 16.0, "bytes", 15.5, 16.5, "old machine")
    receipt = Receipt("old machine", "cpu", {"a_lab": {"status": "done", "rows": [row]}})
    assert [said.said for _, said in receipt.rows()] == [now]
    assert receipt.find(replace(row, said=now)).measured == 16.0
    assert old in receipt.text()  # the file keeps what the run wrote, and its digest


def test_of_two_figures_the_newer_one_counts_and_another_unit_is_another_figure():
    row = Measurement("P7", "the mean of means is wrong", "60 and 4 rows", 1.11, "relative", 0.1, 9.0, "old machine")
    steps = {
        "labs/before": {"status": "done", "date": "2026-01-02", "rows": [row]},
        "labs/now": {"status": "done", "date": "2026-03-01", "rows": [replace(row, measured=1.81)]},
    }
    receipt = Receipt("old machine", "cpu", steps)
    assert receipt.find(row).measured == 1.81
    assert receipt.find(replace(row, unit="times")) is None


def test_of_two_labs_that_measured_the_same_the_later_one_counts():
    older = Measurement("T11", "a claim", "two ranks", 1.1, "x the law", 0, 2, "old machine")
    steps = {"new": {"date": "2026-11-26", "rows": [replace(older, measured=1.8)]}}
    steps["old"] = {"date": "2026-11-23", "rows": [older]}
    assert Receipt("old machine", "cpu", steps).find(older).figure == "1.8x the formula"


def test_printed_lines_are_no_wider_than_a_cell_and_a_narrow_table_keeps_other_machines(monkeypatch):
    claims = Claims()
    claims.record("C2", "a claim in so many words that they fill a third of a line", "a model", 16, "bytes", 15, 17)
    old = Receipt("a machine with a very long name, as drivers give them", "cpu", {"lab": {"rows": claims.rows}})
    monkeypatch.setattr("helpers.claims.claims.receipts_elsewhere", lambda: [old])
    assert max(map(len, str(claims).splitlines())) <= 118
    assert "very long name" not in str(claims)
    assert "very long name" in claims._repr_html_()
    monkeypatch.setattr("helpers.claims.claims.receipts_elsewhere", lambda: [replace(old, device="b")])
    assert str(claims).splitlines()[0].endswith("on b")


def test_a_planned_figure_that_differs_from_a_receipts_is_marked(monkeypatch):
    claims = Claims()
    claims.record("C5", "temporaries add 20%", "planned: a model", 19.3, "%", 20, 30)
    claims.record("C5", "temporaries add 20%", "planned: another", 21.0, "%", 20, 30)
    claims.record("C5", "temporaries add 20%", "a model, measured", 19.3, "%", 20, 30)
    theirs = [replace(row, measured=figure) for row, figure in zip(claims.rows, (29.8, 21.0, 29.8), strict=True)]
    monkeypatch.setattr(
        "helpers.claims.claims.receipts_elsewhere", lambda: [Receipt("b", "cuda", {"lab": {"rows": theirs}})]
    )
    assert [row[-1] for row in claims._table()[1:]] == ["29.8% (older planner)", "21%", "29.8%"]
