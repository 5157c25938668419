"""A slow block counts its seconds in one line, and leaves nothing behind; a log gets a line now and then."""

import io
import re
import threading
import time

from helpers.core import sign_of_life as module
from helpers.core.sign_of_life import lines_in_a_log, sign_of_life
from helpers.planner import cli as plan_cli
from helpers.planner.search import cli as search_cli

import pytest


class Terminal(io.StringIO):
    def isatty(self):
        return True


def open_terminal(monkeypatch):
    """Put a terminal in place of stderr. (A fixture cannot: pytest sets stderr again when the test begins.)"""
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    return terminal


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "_FIRST", 0.02)
    monkeypatch.setattr(module, "_EVERY", 0.02)


def wait_for(terminal, times):
    """Wait until the line has been written so many times."""
    end = time.monotonic() + 30
    while terminal.getvalue().count("\r") < times and time.monotonic() < end:
        time.sleep(0.005)


def left(text):
    """What stands in the line after `text`."""
    line = ""
    for part in text.split("\r"):
        line = part + line[len(part) :]
    return line.strip()


def test_the_first_sign_comes_within_two_seconds_and_counts_by_the_second():
    assert module._FIRST < 2
    assert module._EVERY <= 1


def test_a_slow_block_says_what_runs_and_for_how_long(monkeypatch, quick):
    terminal = open_terminal(monkeypatch)
    with sign_of_life("training"):
        wait_for(terminal, 3)
        shown = left(terminal.getvalue())
    assert re.fullmatch(r"training … running for \d+ s", shown)
    assert "\n" not in terminal.getvalue()
    assert left(terminal.getvalue()) == ""


def test_the_seconds_go_up(monkeypatch, quick):
    terminal = open_terminal(monkeypatch)
    clock = iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    with sign_of_life("training"):
        for _ in range(1000):
            if terminal.getvalue().count("running") >= 3:
                break
            time.sleep(0.01)
    assert re.findall(r"running for (\d+) s", terminal.getvalue())[:3] == ["1", "2", "3"]


def test_a_quick_block_shows_nothing(monkeypatch):
    terminal = open_terminal(monkeypatch)
    with sign_of_life("training"):
        pass
    assert terminal.getvalue() == ""


def test_an_error_ends_the_line_too(monkeypatch, quick):
    terminal = open_terminal(monkeypatch)
    with pytest.raises(ValueError, match="no"), sign_of_life("training"):
        wait_for(terminal, 1)
        raise ValueError("no")
    assert left(terminal.getvalue()) == ""
    assert not [thread for thread in threading.enumerate() if thread.name == "sign of life"]


def test_a_pipe_gets_nothing(capsys, quick):
    with sign_of_life("training"):
        time.sleep(0.1)
    assert capsys.readouterr() == ("", "")


def test_a_log_gets_a_line_every_so_often_with_the_stage(monkeypatch):
    assert module._EVERY_LINE == 30
    monkeypatch.setattr(module, "_EVERY_LINE", 0.02)
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    stages = iter(["reading", *["step 1"] * 1000])
    with lines_in_a_log(lambda: next(stages)):
        end = time.monotonic() + 30
        while log.getvalue().count("\n") < 3 and time.monotonic() < end:
            time.sleep(0.005)
    lines = log.getvalue().splitlines()
    assert re.fullmatch(r"running for \d+ s: reading", lines[0])
    assert re.fullmatch(r"running for \d+ s: step 1", lines[2])
    assert not [thread for thread in threading.enumerate() if thread.name == "sign of life"]


def test_a_terminal_and_a_notebook_get_no_lines(monkeypatch):
    monkeypatch.setattr(module, "_EVERY_LINE", 0.01)
    terminal = open_terminal(monkeypatch)
    with lines_in_a_log(lambda: "reading"):
        time.sleep(0.1)
    assert terminal.getvalue() == ""
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    monkeypatch.setattr(module, "in_notebook", lambda: True)
    with lines_in_a_log(lambda: "reading"):
        time.sleep(0.1)
    assert log.getvalue() == ""


@pytest.mark.parametrize("bar", [lambda: plan_cli._bar("gpt2"), search_cli._bar], ids=["plan", "layout"])
def test_plan_and_layout_say_what_they_do_where_no_terminal_shows_a_bar(bar, monkeypatch):
    monkeypatch.setattr(module, "_EVERY_LINE", 0.02)
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    with bar():
        end = time.monotonic() + 30
        while "\n" not in log.getvalue() and time.monotonic() < end:
            time.sleep(0.005)
    assert re.match(r"running for \d+ s: reading (gpt2|the catalog, 0%)\n", log.getvalue())
