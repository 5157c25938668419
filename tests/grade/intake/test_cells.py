"""From the bytes of a file to its cells: formats, encodings, damage and size."""

import json
import time

from helpers.course.build.notebooks import make_notebook
from helpers.course.grade.intake import cells

import nbformat
import pytest

from .class_folder import (
    ANSWERS,
    EXERCISES,
    NAME,
    X1,
    X2,
    assert_problem,
    assert_whole,
    first,
    notebook,
    put,
    read,
    text,
)


@pytest.mark.parametrize("minor", range(6))
def test_all_minor_versions_of_nbformat_4(tmp_path, minor):
    raw = notebook()
    raw["nbformat_minor"] = minor
    for cell in raw["cells"] if minor < 5 else ():
        del cell["id"]
    assert_whole(read(tmp_path, raw))


def test_the_old_format_is_unreadable_and_called_old(tmp_path):
    raw = json.loads(nbformat.writes(nbformat.convert(make_notebook(X1, solved=True), 3), version=3))
    assert "worksheets" in raw
    assert_problem(read(tmp_path, raw), "unreadable", NAME, "old format (nbformat 3)")
    assert_problem(read(tmp_path, {"nbformat": 2, "cells": []}), "unreadable", "old format (nbformat 2)")


def colab(raw, keep=False):
    raw["nbformat_minor"] = 0
    raw["metadata"] |= {"colab": {"provenance": [], "toc_visible": True}, "accelerator": "GPU"}
    for cell in raw["cells"]:
        cell["metadata"] = {"id": cell.pop("id"), "colab": {"base_uri": "x"}, **(cell["metadata"] if keep else {})}
    return raw


def test_colab_and_vscode(tmp_path):
    assert_whole(read(tmp_path, colab(notebook(), keep=True)))
    assert_whole(read(tmp_path, colab(notebook())))  # nbgrader's metadata is gone: Colab's ids say which cell is which
    raw = notebook()
    for cell in raw["cells"]:
        cell["metadata"] = {"vscode": {"languageId": "python"}}
    assert_whole(read(tmp_path, raw))
    raw["metadata"] = {"language_info": {"name": "python", "version": "3.12"}, "vscode": {"interpreter": {"hash": "1"}}}
    assert_whole(read(tmp_path, raw))


@pytest.mark.parametrize("source", EXERCISES, ids=lambda source: source.exercise)
def test_without_any_names_cells_are_told_by_what_they_define(tmp_path, source):
    raw = notebook(source)
    raw["nbformat_minor"] = 4
    for cell in raw["cells"]:
        del cell["id"]
        cell["metadata"] = {"trusted": True}
    put(tmp_path / "ada" / "kernel.ipynb", json.dumps(raw))
    assert_whole(first(tmp_path, source), ["no cell has this name"] * len(ANSWERS[source.exercise]))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-16-be"])
def test_encodings(tmp_path, encoding):
    raw = notebook()
    raw["cells"][0]["source"] = "李雷 é 🙂"
    assert_whole(read(tmp_path, json.dumps(raw, ensure_ascii=False).encode(encoding)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b" \n " * 5000, "is empty"),
        (b"[]", "JSON of another kind"),
        (b"null", "JSON of another kind"),
        (b'{"cells": 3}', "no list of cells"),
        (b"{}", "no list of cells"),
        (text().encode()[:9000], "breaks off"),
        (text().encode()[:-2], "breaks off"),
        (b'{"cells": [', "breaks off"),
        (b"{'cells': []}", "not JSON"),
        (b"\xff\xd8\xff\xe0 junk", "not UTF-8 text"),
        (bytes(range(256)) * 100, "not a notebook"),
        (b"\0" * 10_000, "not a notebook"),
        (b"PK\3\4 junk", "is a zip archive"),
        (b"<!DOCTYPE html>", "is a web page"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"cells": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"cells": ' + b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"cells": [{"cell_type": "code"}]}', "has none of the answer cells: scaler, step, compare"),
        (b'{"cells": [{"cell_type": "markdown", "metadata": {}, "source": "hi"}]}', "has none of the answer cells"),
        (b'{"cells": [' + b'"x",' * 2_100_000 + b"{}]}", "more than 8 MiB besides its outputs"),
        (b'{"cells": [' + b"{}," * 2_000 + b"{}]}", "more than 2,000 cells"),
        (b'"' + b'\\"' * 2_000_000, "not a notebook"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_what_is_no_notebook_is_unreadable(tmp_path, data, words):
    began = time.process_time()
    assert_problem(read(tmp_path, data), "unreadable", NAME, words)
    assert time.process_time() - began < 10
    assert_problem(first(tmp_path, X2), "missing")


def test_any_half_of_a_notebook_is_unreadable_or_what_is_left(tmp_path):
    whole = text().encode()
    for length in range(0, len(whole) - 1, 997):
        assert_problem(read(tmp_path, whole[:length]), "unreadable", NAME)


def test_numbers_that_json_does_not_have(tmp_path):
    raw = text().replace('"nbformat_minor": 5', '"nbformat_minor": NaN, "a": Infinity, "b": -Infinity, "c": 1e999')
    raw = raw.replace('"execution_count": null', f'"execution_count": {"9" * 10_000}')
    assert "NaN" in raw
    assert "9" * 10_000 in raw
    assert_whole(read(tmp_path, raw))


@pytest.mark.slow
def test_a_hundred_megabytes_of_output_are_passed_over(tmp_path):
    import tracemalloc

    raw = notebook()
    code = [cell for cell in raw["cells"] if cell["cell_type"] == "code"]
    code[0]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "@"}]
    code[1]["outputs"] = [{"output_type": "display_data", "data": {"application/json": [[{"a": '"]}\\'}]] * 10_000}}]
    raw["metadata"]["widgets"] = {"state": {"x": "y" * 10_000}}
    line = "step 1: " + '\\"loss\\" [1.0] {é}' * 100 + '\\n","'
    put(tmp_path / "ada" / NAME, json.dumps(raw).replace('"@"', f'["{line * 60_000}"]'))
    assert (tmp_path / "ada" / NAME).stat().st_size > 100e6
    tracemalloc.start()
    hand_in = first(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_whole(hand_in)
    assert peak < 260e6


def test_a_notebook_above_the_limit_is_unreadable(tmp_path):
    path = put(tmp_path / "ada" / NAME, text())
    with path.open("ab") as file:
        file.truncate(cells.LARGEST + 1)  # sparse: no such space is taken
    assert_problem(first(tmp_path), "unreadable", "larger than 256 MiB")


def test_too_many_brackets_are_unreadable(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "_MOST_TOKENS", 100)
    assert_problem(read(tmp_path, notebook()), "unreadable", "more than 100 strings and brackets")
