"""The server of the page: one question at a time, the newest of each tab, and for this machine alone."""

import argparse
import json
import threading
import time
import urllib.error
import urllib.request

from helpers.page import ask, cli
from helpers.page.server import Page
from helpers.planner import RecipeError

import pytest


@pytest.fixture
def page():
    server = Page(0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def post(page, question, **headers):
    headers = {"Content-Type": "application/json"} | headers
    request = urllib.request.Request(page.address, json.dumps(question).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [json.loads(line) for line in answer]


def question(number=1, **settings):
    return {"tab": "a", "number": number, "kind": "one", "settings": settings}


def test_the_page_and_its_controls(page):
    with urllib.request.urlopen(page.address) as answer:
        text = answer.read().decode()
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "http" not in text.lower().replace("http-equiv", "")  # it loads nothing from elsewhere
    with urllib.request.urlopen(f"{page.address}/controls") as answer:
        assert set(json.load(answer)["controls"]) == {"one", "many"}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{page.address}/../pyproject.toml")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://example.org"}, 403),  # another site's page
        ({"Host": "example.org"}, 403),  # a name that was bound to this machine
        ({"Content-Type": "text/plain"}, 400),  # a form of another site needs no leave of the browser
    ],
)
def test_nobody_else_asks(page, headers, status):
    with pytest.raises(urllib.error.HTTPError, match=str(status)):
        post(page, question(), **headers)


def test_an_answer_is_kept_and_an_error_is_not(page, monkeypatch):
    asked = []

    def plan(question, emit):
        asked.append(question.settings)
        if question.settings["seq"] == 1:
            raise RecipeError("too short")
        if question.settings["seq"] == 2:
            raise KeyError("odd")
        emit({"stage": "a"})
        emit({"answer": {}, "final": True})

    monkeypatch.setattr(ask, "plan", plan)
    assert [list(event) for event in post(page, question(seq=64))] == [
        ["command", "stage"],
        ["stage"],
        ["answer", "final"],
    ]
    assert [list(event) for event in post(page, question(seq=64))] == [["command", "stage"], ["answer", "final"]]
    assert len(asked) == 1
    for _ in range(2):
        assert post(page, question(seq=1))[-1] == {"error": "too short"}
    assert "cannot be planned (KeyError" in post(page, question(seq=2))[-1]["error"]
    assert len(asked) == 4


def test_a_newer_question_of_the_tab_ends_the_older_one(page, monkeypatch):
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def plan(question, emit):
        seen.append(question.settings["seq"])
        if question.settings["seq"] == 64:
            begun.set()
            assert go_on.wait(20)
        emit({"stage": "next"})
        emit({"answer": {}, "final": True})

    monkeypatch.setattr(ask, "plan", plan)
    old, new = [], []
    first = threading.Thread(target=lambda: old.extend(post(page, question(1, seq=64))))
    first.start()
    assert begun.wait(20)
    second = threading.Thread(target=lambda: new.extend(post(page, question(2, seq=128))))
    second.start()
    while page.newest["a"] != 2:
        time.sleep(0.01)
    go_on.set()
    first.join(20)
    second.join(20)
    assert seen == [64, 128]
    assert not any("answer" in event for event in old)
    assert new[-1] == {"answer": {}, "final": True}


def test_ports(page):
    for port, words in (
        (80, "--port is 80"),
        (page.server_address[1], "is not free.*--port N, or with make planner PLANNER_PORT=N"),
    ):
        with pytest.raises(RecipeError, match=words):
            cli.run(argparse.Namespace(port=port, no_browser=True))
