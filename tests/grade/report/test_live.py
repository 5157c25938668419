"""How far a run is, on a terminal and elsewhere."""

from io import StringIO

from helpers.course.grade.report.live import Live

from rich.console import Console

from ..results import result


def test_a_bar_on_a_terminal_and_lines_elsewhere():
    for terminal in (True, False):
        text = StringIO()
        with Live(Console(file=text, force_terminal=terminal, width=100), done=1, total=2) as live:
            live.begin("[red]ada", "x1")
            if terminal:
                live._bar.refresh()
            live.end(result("[red]ada"))
        assert "[red]ada x1" in text.getvalue()
        assert ("2/2" in text.getvalue()) == terminal or text.getvalue() == "[2/2] [red]ada x1: 10 of 10, graded\n"


def test_lines_say_how_long_it_will_take(monkeypatch):
    clock = iter((100.0, 130.0, 160.0))
    monkeypatch.setattr("helpers.course.grade.report.live.time.perf_counter", lambda: next(clock))
    text = StringIO()
    with Live(Console(file=text), done=2, total=9) as live:
        live.begin("ada", "x1")  # what came before, such as the reference's runs, does not count
        live.end(result("ada"))  # one in 30 s, six are left
        live.end(result("ben"))
    assert [line.rpartition("; ")[2] for line in text.getvalue().splitlines()] == ["about 3 min left"] * 2
