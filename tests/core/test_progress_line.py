"""One line for somebody who waits, and nothing for a file."""

import io

from helpers.core.progress_line import progress_line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def seen(text):
    """What stands in the line of a terminal after `text`."""
    line, place = [], 0
    for character in text:
        if character == "\r":
            place = 0
            continue
        line[place : place + 1] = [character]
        place += 1
    return "".join(line).rstrip()


def test_each_text_takes_the_place_of_the_last(monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    for text in ("building the model", "step 1", "step 2"):
        progress_line(text)
        assert seen(terminal.getvalue()) == text
    progress_line("")
    assert seen(terminal.getvalue()) == ""
    assert terminal.getvalue().endswith("\r")


def test_a_text_longer_than_the_terminal_is_cut(monkeypatch):
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    progress_line("x" * 50)
    assert seen(terminal.getvalue()) == "x" * 19
    progress_line("")


def test_a_pipe_gets_nothing(capsys):
    progress_line("building the model")
    progress_line("")
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_it_only_where_it_is_open(monkeypatch, capsys):
    monkeypatch.setattr("helpers.core.progress_line.in_notebook", lambda: True)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    progress_line("step 1")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/01.ipynb")
    progress_line("step 1")
    progress_line("")
    out, err = capsys.readouterr()
    assert ("step 1" in out, seen(out), err) == (True, "", "")
