"""The table of the planner's own measurements."""

from . import receipts_table


def test_the_page_has_the_table_of_the_receipts():
    assert receipts_table.PAGE.read_text(encoding="utf-8") == receipts_table.page()
