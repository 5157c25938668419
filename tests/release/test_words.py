"""The words of pages and commands: American, the field's, and none that a spell checker knows to be wrong."""

import argparse
import re
import subprocess
import sys

from helpers.__main__ import COMMANDS, _module
from helpers.core.files import ROOT

import pytest

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "solutions" / "README.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "labs.md"),  # the labs' own words
    *sorted((ROOT / "helpers").rglob("*.html")),
]
# What is not written -> what is, or how to say it.
OUT = {
    r"hand-ins?": "submission",
    r"colours?|coloured|greys?|centre|licence": "American spelling",
    r"neighbours?|favour\w*|behaviours?|modell\w+|labelled|cancelled|learnt|misspelt": "American spelling",
    r"(?:initial|normal|minim|maxim|optim|synchron|material|organ|recogn)is(?:e|ed|es|ing|ation)": "American spelling",
    r"how many percent": "what percentage",
    r"diary": "log",
    r"visitors?": "chunk",
    r"bears no name": "carries no tag",
    r"as many times too \w+": "too large by a factor of",
    r"law of": "formula for",
}
NAMES = r"`[^`]*`|\]\([^)]*\)|<[^>]*>|\{[{%].*?[}%]\}|\{[^}]*\}"  # code, addresses, and what a template fills in


def prose(text: str) -> str:
    """Return a page without code, whose names are their own matter."""
    text = re.sub(r"```.*?```|<style>.*?</style>|<script>.*?</script>|<!--.*?-->", " ", text, flags=re.DOTALL)
    return re.sub(NAMES, " ", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_uses_the_words_of_the_field(page):
    assert wrong(prose(page.read_text(encoding="utf-8"))) == []


def wrong(text: str) -> list[str]:
    """Return what is not written in `text`, with what is."""
    found = ((re.search(rf"\b(?:{out})\b", text, flags=re.IGNORECASE), better) for out, better in OUT.items())
    return [f"{hit[0]}: {better}" for hit, better in found if hit]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_uses_the_words_of_the_field(command):
    parser = argparse.ArgumentParser(prog=command)
    _module(command).add_arguments(parser)
    words = " ".join([COMMANDS[command].help, *(action.help or "" for action in parser._actions)])
    assert wrong(words) == []


def test_the_list_finds_what_it_is_for():
    assert wrong("Each hand-in has a colour.") == ["hand-in: submission", "colour: American spelling"]
    assert wrong("Synchronised, normalised, optimised") == ["Synchronised: American spelling"]
    assert wrong("It is otherwise precise, a promise; advise him.") == []


@pytest.mark.skipif(
    subprocess.run([sys.executable, "-m", "codespell_lib", "--version"], capture_output=True).returncode != 0,
    reason="needs codespell: pip install codespell",
)
def test_a_spell_checker_finds_no_mistake():
    paths = [ROOT / "helpers", ROOT / "tests", *PAGES, *sorted((ROOT / "solutions").glob("*.py"))]
    known = "dout,te,caf,regraded,regrading,shepard,submisions,aranges,notin,modell,ot"
    skipped = "*.json,*.jsonl,*.ipynb,*.svg,reference"
    run = subprocess.run(
        [sys.executable, "-m", "codespell_lib", "-L", known, "-S", skipped, *map(str, paths)],
        capture_output=True,
        text=True,
    )
    assert run.stdout == ""
