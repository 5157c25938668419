"""The layout explorer without a browser: its address, its answers, and what it says where there are no widgets."""

import argparse
from urllib.parse import urlsplit

from helpers import layout_explorer
from helpers.planner import RecipeError
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.search import kept
from helpers.planner.search.question import Question
from helpers.planner.search.space import layouts
from helpers.widgets import planner_page
from helpers.widgets.layout_explorer import Explorer
from helpers.widgets.layout_settings import CHOICES, Settings, read_query

import pytest

SMALL = {"model": "gpt2", "gpus": 8, "tokens": 2**16, "seq": 1024, "recompute": "full"}


def test_an_address_holds_all_settings():
    for name, choices in CHOICES.items():
        for value in (choices[0], choices[-1]):
            settings = Settings(**{name: value})
            assert read_query(settings.query()) == (settings, "")
            assert read_query(urlsplit("http://127.0.0.1:8866/" + settings.query()).query) == (settings, "")
    assert set(CHOICES) == set(Settings.__dataclass_fields__)


@pytest.mark.parametrize("query", ["?tensor=3", "?tensor=two", "?model=gpt-5", "?tensor=", "?virtual_stages=-1"])
def test_what_an_address_cannot_say_is_left_out_and_said(query):
    settings, wrong = read_query(query + "&gpus=128", Settings())
    assert settings == Settings(gpus=128)
    name, value = query.lstrip("?").split("=")
    assert f"{name} is {value!r}, which cannot be" in wrong


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"gpus": 8, "tensor": 16}, "must divide the 8 GPUs"),
        ({"replicate": 64}, "replicate 64 does not divide"),
        ({"tokens": 2**14}, "cannot take the 2 sequences"),
        ({"expert": 2}, "dense"),
        ({"schedule": "1f1b", "virtual_stages": 2}, "virtual_stages"),
    ],
)
def test_settings_without_a_layout_say_why(changes, word):
    with pytest.raises(RecipeError, match=word):
        Settings(**changes).layout()


def test_every_layout_that_a_search_finds_has_settings():
    asked = Settings(gpus=16, tokens=2**18)
    question = Question(arch_of(asked.model), CLUSTERS[asked.cluster], asked.gpus, asked.tokens, asked.seq)
    every = list(layouts(question))
    told = 0
    for layout in every[:: len(every) // 200]:
        settings = asked.of(layout)
        if layout.virtual_stages in CHOICES["virtual_stages"]:
            assert settings.layout() == layout
            told += 1
    assert told > 100


def test_a_script_prints_the_answer(capsys):
    layout_explorer(**SMALL)
    said = capsys.readouterr().out
    assert "FSDP 4, TP 2, batch 1 x 16, recompute full" in said
    assert "[figure] Bars of memory: each rank holds" in said
    assert "[figure] Timeline of one rank" in said
    with pytest.raises(RecipeError, match="tensor is 3"):
        layout_explorer(tensor=3)


@pytest.fixture
def explorer():
    return Explorer(Settings(**SMALL), True, "")


def test_a_move_changes_the_pictures_the_table_and_the_link(explorer):
    before = explorer.said.value, explorer.memory.value, explorer.timeline.value, explorer.link.value
    assert explorer.table.value.count("<tr") == 2
    explorer.controls["recompute"].value = "none"
    after = explorer.said.value, explorer.memory.value, explorer.timeline.value, explorer.link.value
    assert all(a != b for a, b in zip(after, before, strict=True))
    assert explorer.table.value.count("<tr") == 3
    assert explorer.table.value.index("recompute full") > explorer.table.value.index("batch 1 x 16<")  # slower
    explorer.controls["tensor"].value = 16
    assert "must divide the 8 GPUs" in explorer.said.value
    assert explorer.timeline.value == after[2]
    explorer.controls["tensor"].value = 2
    assert explorer.said.value == after[0]


def test_a_search_enters_the_best_into_the_table(explorer, monkeypatch):
    found = next(iter(explorer.seen.values()))
    asked = []

    def answer(question, processes, tell):
        asked.append(question)
        tell("planning", 1, 2)
        other = Settings(**SMALL | {"tensor": 1}).layout()
        return kept.Answer([kept.Found(**vars(found) | {"layout": other})], [], 1000, 7, 0)

    monkeypatch.setattr(kept, "answer", answer)
    explorer.search.click()
    assert (asked[0].gpus, asked[0].tokens, asked[0].seq) == (8, 2**16, 1024)
    assert explorer.table.value.count("<tr") == 3
    assert "FSDP 8, batch 1 x 8, recompute full" in explorer.table.value
    assert "1,000 layouts, 7 of them planned" in explorer.doing.value
    assert not explorer.search.disabled


def test_the_page_is_served_to_this_machine_alone(tmp_path):
    args = argparse.Namespace(port=8866, no_browser=True)
    command = planner_page.command(tmp_path / "planner.ipynb", args)
    assert "--Voila.ip=127.0.0.1" in command
    assert "--no-browser" in command
    with pytest.raises(RecipeError, match="--port is 80"):
        planner_page.run(argparse.Namespace(port=80, no_browser=True))
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.from_dict(planner_page.notebook()))
