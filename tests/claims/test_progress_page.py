"""The page of what a learner has predicted and solved."""

import json

from helpers import Prediction
from helpers.__main__ import main
from helpers.claims.progress import Guess, remember_checks
from helpers.claims.progress_page import how_far

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "labs/01_where_memory_goes.ipynb")
    return tmp_path


def page(folder, capsys):
    capsys.readouterr()
    assert main(["progress"]) == 0
    path = folder / "progress.html"
    assert capsys.readouterr().out.strip() == str(path)
    return path.read_text(encoding="utf-8")


def test_the_page_shows_guesses_and_checks(folder, capsys):
    Prediction("How many <bytes>?", 10, "MiB").reveal(20)
    Prediction("And then?", 1.05, "MiB").reveal(1.0)
    remember_checks("memory.bytes", [("counts_all", True, 2, 2), ("counts_once", False, 0, 1)])
    text = page(folder, capsys)
    assert "2 predictions,\n1 of them within 10%" in text
    assert "1 of 2 checks passed" in text
    assert "How many &lt;bytes&gt;?" in text
    assert "0.5 times the answer" in text
    assert "memory.bytes.counts_once" in text
    assert "http" not in text  # it loads nothing


def test_the_first_guess_counts_because_later_ones_know_the_answer(folder, capsys):
    for guess in (10, 20):
        Prediction("How many?", guess, "MiB").reveal(20)
    (lab,) = json.loads((folder / "progress.json").read_text()).values()
    assert lab["guesses"]["How many?"]["guess"] == 10
    assert "0.5 times the answer" in page(folder, capsys)


def test_without_a_guess_nothing_is_saved(folder, capsys):
    Prediction("How many?", None, "MiB").reveal(20)
    assert "Nothing is saved yet" in page(folder, capsys)


def test_a_file_of_an_earlier_version_is_read(folder, capsys):
    old = {"02_number_formats": {"claims": [], "checks": {"a.b": [True, 1, 1]}}}
    (folder / "progress.json").write_text(json.dumps(old))
    assert "1 of 1 checks passed" in page(folder, capsys)


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        (Guess(11.0, 10.0, "s"), "within 10%"),
        (Guess(10.0, 10.0, "s"), "exactly right"),
        (Guess(0.0, 2.9e-7, "times", True), "exactly right"),
        (Guess(30.0, 10.0, "s"), "3 times the answer"),
        (Guess(5.0, 0.0, "s"), "off by 5 s"),
        (Guess(-5.0, 10.0, "s"), "off by 15 s"),
        (Guess(5.0, 10.0, "points", True), "off by 5 points"),
        (Guess(5.0, 10.0, "% of FP32's", True), "off by 5 points"),
        (Guess(2.0, 4.0, "of 4", True), "off by 2"),
    ],
)
def test_how_far_off(guess, words):
    assert how_far(guess) == words
