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
