"""What counts as a line of code, and what the table says."""

from collections import Counter

from .lines import code_lines, files_now, lines_by_folder, table

TEXT = '''"""A docstring
of two lines."""

import os  # counts


def f():
    """Not counted."""
    # nor is this
    text = """a text
    of two lines"""
    return (
        text
    )
'''


def test_docstrings_comments_and_blank_lines_do_not_count():
    assert code_lines(TEXT) == 7


def test_the_table_has_each_folder_and_the_difference():
    now = lines_by_folder({"helpers/core/a.py": TEXT, "helpers/core/deep/b.py": "x = 1\n", "conftest.py": "y = 2\n"})
    assert now == {"helpers/core": 8, "": 1}
    text = table(Counter({"helpers/core": 8, "tests": 2}), Counter({"helpers/core": 5, "gone": 4}))
    assert [line.split() for line in text.splitlines()] == [
        ["gone", "0", "-4"],
        ["helpers/core", "8", "+3"],
        ["tests", "2", "+2"],
        ["all", "10", "+1"],
    ]
    assert "+" not in table(Counter({"tests": 2}), Counter())


def test_generated_files_are_left_out():
    files = files_now()
    assert "helpers/exercises/base.py" in files
    assert not any(path.startswith("helpers/exercises/reference/") for path in files)
