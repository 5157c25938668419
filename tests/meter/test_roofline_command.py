"""python -m helpers roofline: measured, printed, kept; and what the doctor says of it."""

from dataclasses import replace

from helpers import doctor, roofline_cli
from helpers.__main__ import main
from helpers.core.device import pick_device
from helpers.meter.roofline import Link, Roofline, kept_roofline
from helpers.meter.roofline.kept import machine_name
from helpers.ranks.failure import RankError

import pytest
import torch

MEASURED = Roofline(
    machine_name(pick_device()),
    pick_device().type,
    {"float32": [(64, 64, 64, 123e9)], "bfloat16 nt": [(64, 64, 64, 7e9)]},
    ((1e3, 1e9), (1e9, 2e10)),
    launch=1e-6,
    date="2030-12-31",
)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Let the command find `MEASURED`, and keep it in a folder of this test; the function returned changes it."""

    def finds(**changes):
        monkeypatch.setattr(roofline_cli, "measure_roofline", lambda device: replace(MEASURED, **changes))

    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    monkeypatch.setattr(roofline_cli, "measure_link", lambda: Link(3e-5, 2e9))
    finds()
    return finds


def words(capsys):
    """Return what was printed, without the lines that a narrow terminal makes of it."""
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_it_is_measured_printed_and_kept(measured, tmp_path, capsys):
    assert main(["roofline"]) == 0
    printed = words(capsys)
    for figure in ("123 GFLOP/s", "20 GB/s", "30 µs + bytes / (2 GB/s)", "Saved in"):
        assert figure in printed
    assert "busy" not in printed
    assert (tmp_path / "roofline.json").exists()
    assert kept_roofline(pick_device()).link == Link(3e-5, 2e9)


def test_a_busy_machine_is_named(measured, capsys):
    measured(spread=0.8)
    assert main(["roofline"]) == 0
    assert "The machine was busy: the runs of one measurement differ by 80%." in words(capsys)


def test_who_wants_nothing_kept_is_told(measured, monkeypatch, capsys):
    monkeypatch.setenv("TAS_PROGRESS", "off")
    assert main(["roofline"]) == 0
    assert "Not saved" in words(capsys)


def test_without_a_process_group_the_rest_is_kept(measured, monkeypatch, capsys):
    def unreachable():
        raise RankError("rank 1 did not answer\nmore of it")

    monkeypatch.setattr(roofline_cli, "measure_link", unreachable)
    assert main(["roofline"]) == 0
    assert capsys.readouterr().err.endswith("The process group was not measured: rank 1 did not answer\n")
    assert kept_roofline(pick_device()).link is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device that is missing elsewhere")
def test_a_device_that_is_not_there_is_one_line(measured, tmp_path, capsys):
    assert main(["roofline", "--device", "cuda"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no device cuda" in line
    assert not (tmp_path / "roofline.json").exists()


def test_the_doctor_shows_it_or_says_how_to_measure_it(measured, capsys):
    assert doctor._roofline(pick_device()) == "not measured yet: python -m helpers roofline"
    main(["roofline"])
    assert doctor._roofline(pick_device()) == "float32 123 GFLOP/s, bfloat16 7 GFLOP/s; measured on 2030-12-31"
