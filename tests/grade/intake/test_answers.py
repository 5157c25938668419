"""From the cells of a notebook to answers: missing, moved, split, repeated and odd cells."""

import json

from helpers.course.grade.intake.hand_in import grading_notebook

import nbformat
import pytest

from .class_folder import ANSWERS, assert_problem, assert_whole, cell_of, notebook, read


def test_odd_cells_cost_nothing(tmp_path):
    raw = notebook()
    raw["cells"][0]["metadata"] = None
    raw["cells"] += [{}, 3, None, {"cell_type": "code"}, {"cell_type": "code", "metadata": {"nbgrader": None}}]
    raw["cells"] += [{"cell_type": [], "id": {}, "metadata": {"nbgrader": {"grade_id": ["step"]}, "id": 3}}]
    assert_whole(read(tmp_path, raw))


def test_missing_and_reordered_cells(tmp_path):
    raw = notebook()
    raw["cells"] = [cell for cell in reversed(raw["cells"]) if cell["id"] not in ("scaler", "setup", "step_check")]
    hand_in = read(tmp_path, raw)
    assert list(hand_in.answers) == ["step", "compare"]
    assert hand_in.flags == ["scaler: the answer cell is missing."]
    assert "scaler" not in [cell.id for cell in grading_notebook(hand_in, 1).cells]


def test_an_answer_in_another_cell_is_pointed_at(tmp_path):
    raw = notebook(solved=False)
    mine = cell_of(notebook(), "step")
    raw["cells"].append({**mine, "id": "abc", "metadata": {}})
    hand_in = read(tmp_path, raw)
    assert hand_in.flags == [
        f"step: not answered in its own cell, but cell {len(raw['cells'])} defines train_step; not graded."
    ]


def test_an_answer_that_was_split_counts_whole(tmp_path):
    raw = notebook()
    cell = cell_of(raw, "scaler")
    lines = "".join(cell["source"]).split("\n")
    cell["source"] = "\n".join(lines[:20])
    raw["cells"].insert(raw["cells"].index(cell) + 1, {**cell, "id": "again", "source": "\n".join(lines[20:])})
    assert_whole(read(tmp_path, raw))


def test_an_answer_that_stands_twice_is_flagged_and_the_last_counts(tmp_path):
    raw = notebook()
    cell = cell_of(raw, "step")
    raw["cells"].append({**cell, "source": ["# later\n", *cell["source"]]})
    hand_in = read(tmp_path, raw)
    both = f"{ANSWERS['x1']['step']}\n# later\n{ANSWERS['x1']['step']}"
    assert hand_in.answers == {**ANSWERS["x1"], "step": both}
    assert hand_in.flags == ["step: appears in 2 cells; all were taken, in order, so the last one counts."]


def test_an_untouched_copy_of_an_answer_cell_does_not_count(tmp_path):
    raw = notebook()
    raw["cells"].append(cell_of(notebook(solved=False), "step"))
    assert_whole(read(tmp_path, raw))


@pytest.mark.parametrize("kind", ["markdown", "raw", "", 3, None])
def test_an_answer_cell_that_is_no_code_is_flagged(tmp_path, kind):
    raw = notebook()
    cell_of(raw, "step")["cell_type"] = kind
    hand_in = read(tmp_path, raw)
    assert list(hand_in.answers) == ["scaler", "compare"]
    assert len(hand_in.flags) == 1
    assert "not code; not graded" in hand_in.flags[0]
    for name in ("scaler", "compare"):
        cell_of(raw, name)["cell_type"] = kind
    assert_problem(read(tmp_path, raw), "unreadable", "none of the answer cells", "not code")


@pytest.mark.parametrize(
    ("source", "taken", "words"),
    [
        ("x = 1\ny = 2", "x = 1\ny = 2", None),
        (["x = 1\n", "y = 2"], "x = 1\ny = 2", None),
        (["x = 1\n", 3, None, "y = 2"], "x = 1\ny = 2", "lines that are not text"),
        (3, "", "holds no text"),
        (None, "", "holds no text"),
        ({"a": "x"}, "", "holds no text"),
        ("#" * 300_000, "", "longer than"),
        ("x = '\0'", "x = '\ufffd'", "not text; they were replaced"),
        ("x = '\ud800'", "x = '\ufffd'", "not text; they were replaced"),
        ("x = '🙂'", "x = '🙂'", None),
    ],
)
def test_sources_of_all_kinds(tmp_path, source, taken, words):
    raw = notebook()
    cell_of(raw, "step")["source"] = source
    hand_in = read(tmp_path, raw)
    assert hand_in.problem is None
    assert hand_in.answers == {**ANSWERS["x1"], "step": taken}
    assert bool(hand_in.flags) == bool(words)
    assert not words or words in hand_in.flags[0]
    written = nbformat.writes(grading_notebook(hand_in, 1)).encode()
    first, *lines = cell_of(json.loads(written), "step")["source"]
    assert first == "# cell: step\n"
    assert lines == taken.splitlines(keepends=True)
