"""Receipts: files that only a run writes, the table made of them, and the run itself."""

import json
import math
import re
import time
from importlib import import_module
from pathlib import Path

from helpers import Claims
from helpers.claims.hardware import needs
from helpers.claims.measurement import Measurement
from helpers.claims.receipt import FOLDER, Receipt, ReceiptError, measurement, plain, receipts
from helpers.course.build.front_page import DOCS, card, pages
from helpers.course.build.source import sources
from helpers.course.receipts import ReceiptsError, cells, claim_results, claims_table, not_measured, run_receipts
from helpers.course.receipts import collect as running
from helpers.course.receipts.quoted_claims import QUOTED_CLAIMS
from helpers.course.receipts.steps import Skip, Step, steps

import psutil
import pytest
import torch

from ..sampling import sample

MEASUREMENTS = [step.name for step in steps() if not step.lab]


def row(measured=1.0, claim="C7", said="2x less memory", subject="a model", low=0.0, high=2.0):
    return Measurement(claim, said, subject, measured, "x", low, high, "a GPU")


def receipt(*rows, device="a GPU"):
    return Receipt(device, "cuda", {"labs/memory": {"status": "done", "rows": list(rows)}})


# -- the file


@pytest.mark.parametrize("measured", [1.5, None, math.inf, -math.inf])
def test_a_row_comes_back_from_json_as_it_was(measured):
    kept = row(measured, low=-math.inf)
    text = json.dumps(plain(kept), allow_nan=False)  # plain JSON, readable by other languages
    assert measurement(json.loads(text), "a GPU") == kept


def test_a_receipt_comes_back_as_it_was(tmp_path):
    (tmp_path / "a.json").write_text(receipt(row(), row(None)).text())
    assert Receipt.read(tmp_path / "a.json") == receipt(row(), row(None))


@pytest.mark.parametrize(
    "edit", [('"measured": 1.0', '"measured": 2.0'), ('"a GPU"', '"a better GPU"'), ('"done"', '"failed"')]
)
def test_a_figure_changed_by_hand_is_found_out(tmp_path, edit):
    text = receipt(row()).text()
    assert edit[0] in text
    (tmp_path / "a.json").write_text(text.replace(*edit))
    with pytest.raises(ReceiptError, match="changed by hand"):
        Receipt.read(tmp_path / "a.json")
    assert receipts(tmp_path) == []  # a lab goes on without it


@pytest.mark.parametrize("junk", ["", "{", "[]", "{}", '{"digest": 1, "steps": [1], "device": "", "kind": ""}'])
def test_what_is_no_receipt_is_refused_in_one_line(tmp_path, junk):
    (tmp_path / "a.json").write_text(junk)
    with pytest.raises(ReceiptError, match=r"a\.json is not a receipt"):
        Receipt.read(tmp_path / "a.json")


def test_the_files_name_is_the_devices():
    assert receipt(device="NVIDIA H100 80GB HBM3").path == Path("nvidia-h100-80gb-hbm3.json")


# -- what is committed


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_receipts_are_as_the_run_wrote_them(path):
    kept = Receipt.read(path)
    assert kept.path == Path(path.name)
    assert set(kept.steps) <= {step.name for step in steps()}, "a step is gone: make receipts ARGS=--fresh"
    assert [name for name, step in kept.steps.items() if step["status"] == "failed"] == []


def test_every_step_was_run_on_some_cpu():
    """A machine that is gone keeps the receipts of what it ran; what came later another one has run.

    A GPU is lent by the minute. What it has not run stays on the page's list of what has not been measured.
    """
    wanted = {step.name for step in steps() if not step.exercise}
    run = {name for kept in receipts() if kept.kind == "cpu" for name in kept.steps}
    assert wanted <= run, "a step is missing: make receipts"


@pytest.mark.parametrize("claim", QUOTED_CLAIMS)
def test_every_claim_is_measured_on_a_cpu_or_names_what_it_needs(claim):
    rows = [row for kept in receipts() if kept.kind == "cpu" for _, row in kept.rows() if row.claim == claim]
    assert any(row.measured is not None or needs(row) for row in rows)


@pytest.mark.parametrize("wanted", [*QUOTED_CLAIMS, *(f"X{n}" for n in range(1, 8))])
def test_every_claim_and_exercise_has_a_lab(wanted):
    cards = [card(source)["Syllabus"] for source in sources()]
    assert any(wanted in re.findall(r"[CX]\d+", text) for text in cards)


def test_the_page_of_claims_is_that_of_the_receipts():
    page = DOCS / "claims.md"
    text = pages()[page]
    assert page.read_text(encoding="utf-8") == text, "run: python -m helpers build"
    assert all(f"## {claim} · " in text for claim in QUOTED_CLAIMS)


# -- the table


def test_the_table_says_for_what_a_claim_held():
    half = receipt(row(subject="CNN"), row(3.0, subject="GPT"), row(1.0, claim="C8"), row(5.0, claim="C9"))
    sections = {text.partition(" ")[0]: text for text in claims_table([half]).removeprefix("## ").split("\n\n## ")}
    assert "**Held in some cases.**" in sections["C7"]
    assert "| What was tested | On what | a GPU |" in sections["C7"]
    assert "| 2x less memory | CNN | ✓ 1x |" in sections["C7"]
    assert "| 2x less memory | GPT | ✗ 3x |" in sections["C7"]
    assert "**Held.**" in sections["C8"]
    assert "**Did not hold.**" in sections["C9"]
    assert sections["C1"].endswith("**Not measured.**")


def test_a_changed_or_missing_figure_changes_the_table():
    whole = claims_table([receipt(row(), row(claim="C8"))])
    assert claims_table([receipt(row(1.1), row(claim="C8"))]) != whole
    assert claims_table([receipt(row())]) != whole


def test_what_could_not_be_measured_is_no_failure():
    (fp8,) = (t for t in claims_table([receipt(row(None, claim="C15"))]).split("## ") if t.startswith("C15 ·"))
    assert "**Not measured.**" in fp8
    assert "✗" not in fp8


def test_a_bar_in_a_subject_does_not_break_the_table():
    lines = [line for line in claims_table([receipt(row(subject="a | b"))]).splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_a_speed_has_a_verdict_on_the_hardware_that_the_claim_is_about_alone():
    fast, small = row(0.1, said="2x faster", low=1.8), row(2.0, said="2x less memory", low=1.8)
    cpu = Receipt("a CPU", "cpu", {"labs/memory": {"status": "done", "rows": [fast, small]}})
    (c7,) = [each for each in claim_results([cpu]) if each.claim == "C7"]
    assert c7.verdict == "held so far"  # the memory; the speed is not measured
    assert [cells(c7, each)[2] for each in c7.measurements] == ["· 0.1x", "✓ 2x"]
    assert [(said, needed) for _, said, needed in not_measured([c7])] == [
        ("2x faster", "a GPU with 16-bit matrix units")
    ]
    text = claims_table([cpu])
    assert "| C7 | 2x faster | a GPU with 16-bit matrix units |" in text.partition("## C1 ·")[0]
    (both,) = [each for each in claim_results([cpu, receipt(fast, small)]) if each.claim == "C7"]
    assert both.devices == ["a CPU", "a GPU"]
    assert [cells(both, each)[2:] for each in both.measurements] == [["· 0.1x", "✗ 0.1x"], ["✓ 2x", "✓ 2x"]]
    assert not_measured([both]) == []  # a run on a GPU fills the list
    assert both.verdict == "held in some cases"


def test_what_is_planned_or_counted_needs_no_such_hardware():
    planned = row(1.4, claim="C15", said="2x the product is 1.8x the step or less", subject="7B, H100, planned")
    assert needs(planned) == ""
    assert needs(row(said="every 2nd: for 10 to 15 %", claim="C9", subject="GPT, arithmetic")) == ""
    assert needs(row(said="2x the speed", claim="C15")) == "a GPU with FP8 units"


def test_a_lab_gives_no_verdict_on_a_speed_that_this_machine_cannot_judge(monkeypatch):
    for kind, said in (("cpu", "no verdict here"), ("cuda", "did not hold")):
        claims = Claims(device=torch.device(kind))
        monkeypatch.setattr("helpers.claims.claims.device_name", lambda device: "it")
        claims.record("C7", "2x faster", "a model", 0.5, "x", 1.8, 2.2)
        assert said in str(claims)


def test_labs_show_the_figures_of_other_devices(monkeypatch):
    other = receipt(row(1.9), device="a big GPU")
    monkeypatch.setattr("helpers.claims.claims.receipts_elsewhere", lambda: [other])
    claims = Claims()
    claims.record("C7", "2x less memory", "a model", 1.2, "x", 1.8, 2.2)
    claims.record("C7", "2x faster", "a model", 0.5, "x", 1.8, 2.2)
    header, first, second = str(claims).splitlines()
    assert header.endswith("on a big GPU")
    assert first.endswith("1.9x")
    assert second.endswith("-")
    assert "on a big GPU" in claims._repr_html_()
    unknown = Claims()
    unknown.record("C8", "another", "a model", 1.0, "x", 0, 1)
    assert "big GPU" not in str(unknown)  # no empty column


# -- the run


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Return a function that makes labs the only steps: name -> source."""
    folder = tmp_path / "solutions"
    folder.mkdir()

    def make(**labs):
        for name, text in labs.items():
            (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(running, "steps", lambda: [Step(path, lab=True) for path in sorted(folder.iterdir())])

    return make


CLAIMS = "from helpers import Claims\nclaims = Claims()\nclaims.record('C1', 'said', 'it', {}, 'x', 0, 2)\n"


@pytest.mark.slow
def test_a_failing_step_costs_no_other_and_keeps_what_it_measured(lab, tmp_path, capsys):
    lab(a=CLAIMS.format(1) + "1 / 0\n", b=CLAIMS.format(2), c="import os\nos._exit(3)\n")
    assert run_receipts(folder=tmp_path / "out") == 2
    kept = Receipt.read(next((tmp_path / "out").iterdir()))
    assert [step["status"] for step in kept.steps.values()] == ["failed", "done", "failed"]
    assert [(name, r.measured) for name, r in kept.rows()] == [("labs/a", 1.0), ("labs/b", 2.0)]
    assert kept.steps["labs/a"]["reason"] == "ZeroDivisionError: division by zero"
    assert kept.steps["labs/c"]["reason"] == "it ended with code 3 and wrote nothing"
    assert torch.__version__.startswith(kept.steps["labs/b"]["versions"]["torch"].split("+")[0])
    said = capsys.readouterr().out
    assert "Traceback" in said  # the end of what a failing step has printed
    assert "division by zero" in said


@pytest.mark.slow
def test_only_what_changed_is_run_again(lab, tmp_path, capsys):
    lab(a=CLAIMS.format(1), b=CLAIMS.format(2))
    run_receipts(folder=tmp_path / "out")
    lab(b=CLAIMS.format(3))
    capsys.readouterr()
    run_receipts(folder=tmp_path / "out")
    said = capsys.readouterr().out
    assert re.search(r"a: measured on \d{4}-\d\d-\d\d, unchanged", said)
    assert "b ..." in said
    kept = Receipt.read(next((tmp_path / "out").iterdir()))
    assert [r.measured for _, r in kept.rows()] == [1.0, 3.0]


@pytest.mark.slow
def test_a_step_that_fails_now_keeps_its_earlier_figures(lab, tmp_path, capsys):
    lab(a=CLAIMS.format(1))
    run_receipts(folder=tmp_path / "out")
    lab(a="1 / 0\n")
    assert run_receipts(folder=tmp_path / "out") == 1
    assert "the earlier figures stay" in capsys.readouterr().out
    assert [r.measured for _, r in Receipt.read(next((tmp_path / "out").iterdir())).rows()] == [1.0]


@pytest.mark.slow
def test_a_hanging_step_is_ended_with_all_that_it_started(lab, tmp_path, monkeypatch):
    marker = tmp_path / "pid"
    lab(
        a="import subprocess, sys, pathlib, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(child.pid))\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(running, "_LIMIT", 25)
    assert run_receipts(folder=tmp_path / "out") == 1
    child = int(marker.read_text())
    for _ in range(50):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child of a hanging step lives on")


@pytest.mark.slow
def test_a_receipt_changed_by_hand_is_begun_anew(lab, tmp_path, capsys):
    lab(a=CLAIMS.format(1))
    run_receipts(folder=tmp_path / "out")
    path = next((tmp_path / "out").iterdir())
    path.write_text(path.read_text().replace('"measured": 1.0', '"measured": 7.0'))
    run_receipts(folder=tmp_path / "out")
    assert "changed by hand" in capsys.readouterr().out
    assert [r.measured for _, r in Receipt.read(path).rows()] == [1.0]


@pytest.mark.slow
def test_a_lab_as_a_step_is_a_plain_script(lab, tmp_path):
    lab(
        a="import pickle\nfrom helpers import Claims, run_ranks\nclaims = Claims()\n"
        "class Local: pass\n"
        "assert pickle.loads(pickle.dumps(Local)) is Local and __name__ == '__main__'\n"
        "claims.record('C1', 'said', 'it', run_ranks(lambda: 5, 1, show=False).results[0], 'x', 0, 9)\n"
    )
    assert run_receipts(folder=tmp_path / "out") == 0
    assert [r.measured for _, r in Receipt.read(next((tmp_path / "out").iterdir())).rows()] == [5.0]


@pytest.mark.parametrize("name", ["fp", "fp8", "labs/fp8", "19"])
def test_a_lab_is_named_by_its_topic_or_its_number(monkeypatch, tmp_path, name):
    ran = []
    result = {"status": "done", "reason": "", "seconds": 1.0, "rows": []}
    monkeypatch.setattr(running, "_run", lambda step, environment, show: (ran.append(step.name), result)[1])
    assert run_receipts(names=(name,), folder=tmp_path) == 0
    assert "labs/fp8" in ran
    assert "labs/lora" not in ran


def test_a_whole_name_is_that_step_alone(monkeypatch, tmp_path):
    ran = []
    result = {"status": "done", "reason": "", "seconds": 1.0, "rows": []}
    monkeypatch.setattr(running, "_run", lambda step, environment, show: (ran.append(step.name), result)[1])
    run_receipts(names=("mixed_precision",), folder=tmp_path)
    assert ran == ["mixed_precision"]  # and not the lab of that name


def test_bad_input_is_refused(monkeypatch):
    with pytest.raises(ReceiptsError, match="No such step"):
        run_receipts(names=("zz",))
    if not torch.cuda.is_available():
        with pytest.raises(ReceiptsError, match="sees no cuda device here"):
            run_receipts("cuda")
    monkeypatch.setattr(running, "steps", list)
    with pytest.raises(ReceiptsError, match="in a checkout"):
        run_receipts()


# -- the measurements


def measured(name, device):
    """Return the rows that a measurement makes on `device`."""
    claims = Claims()
    try:
        import_module(f"helpers.course.receipts.measurements.{name}").measure(claims, torch.device(device))
    except Skip as skip:
        pytest.skip(str(skip))
    assert claims.rows
    return claims.rows


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(MEASUREMENTS, one_in=4))  # the longest take a minute
def test_each_measurement_runs_on_a_cpu(name):
    rows = measured(name, "cpu")
    assert all(math.isfinite(r.measured) for r in rows)
    if name.startswith("planner_honesty"):  # with CUDA's kernel the ViT's attention keeps less
        assert all(r.held for r in rows if "vit" not in r.subject)
    if name == "planner_honesty":
        assert len(rows) > 20
