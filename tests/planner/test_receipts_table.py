"""The table of the planner's own measurements."""

from . import receipts_table
from .published import TABLE_PAGE, shown


def test_the_page_has_the_table_of_the_receipts():
    assert shown(TABLE_PAGE, receipts_table.MARKS) == receipts_table.table()
