"""A table is text where there is no page, and HTML where there is one."""

from helpers import show_table, text_table
from helpers.core.table import _Table

ROWS = [("category", "bytes", "made by"), ("a & b", "1.5 MiB", "aten.add"), ("c", "", "aten.mul")]


def test_first_column_left_others_right():
    assert text_table(ROWS).splitlines() == [
        "category    bytes   made by",
        "a & b     1.5 MiB  aten.add",
        "c                  aten.mul",
    ]


def test_a_script_prints_text(capsys):
    show_table(ROWS)
    assert capsys.readouterr().out == text_table(ROWS) + "\n"


def test_html_escapes_and_aligns_figures_to_the_right():
    page = _Table(ROWS)._repr_html_()
    assert "a &amp; b" in page
    assert '<td style="text-align:right">1.5 MiB</td>' in page
    assert '<td style="text-align:left">aten.mul</td>' in page
    assert page.count("<tr>") == 3
