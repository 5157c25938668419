"""The layout explorer without a browser: its answers, and what it says where there are no widgets."""

from helpers import layout_explorer
from helpers.planner import RecipeError
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.search import kept
from helpers.planner.search.question import Question
from helpers.planner.search.space import layouts
from helpers.widgets.layout_explorer import Explorer
from helpers.widgets.layout_settings import CHOICES, Settings

import pytest

SMALL = {"model": "gpt2", "gpus": 8, "tokens": 2**16, "seq": 1024, "recompute": "full"}


def test_the_choices_are_those_of_the_settings():
    assert set(CHOICES) == set(Settings.__dataclass_fields__)


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
    return Explorer(Settings(**SMALL))


def test_every_control_is_a_list_that_a_keyboard_can_move(explorer):
    kinds = {type(control).__name__ for control in explorer.controls.values()}
    assert kinds == {"Dropdown"}
    assert dict(explorer.controls["tokens"].options)["65,536"] == 2**16


def test_a_move_changes_the_pictures_the_table_and_the_link(explorer):
    before = explorer.said.value, explorer.memory.value, explorer.timeline.value
    assert explorer.table.value.count("<tr") == 2
    explorer.controls["recompute"].value = "none"
    after = explorer.said.value, explorer.memory.value, explorer.timeline.value
    assert all(a != b for a, b in zip(after, before, strict=True))
    assert explorer.table.value.count("<tr") == 3
    assert explorer.table.value.index("recompute full") > explorer.table.value.index("batch 1 x 16<")  # slower
    explorer.controls["tensor"].value = 16
    assert "must divide the 8 GPUs" in explorer.said.value
    assert explorer.timeline.value == explorer.memory.value == ""  # no figure of other settings
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
