"""Tables made from profiles."""

from helpers import category_table

from .profiles import small_and_large


def test_category_table_compares_last_with_first():
    profiles = small_and_large()
    rows = category_table(profiles)
    assert rows[0] == ("", *profiles, "last/first")
    ratio = profiles["large"].peak_bytes / profiles["small"].peak_bytes
    assert (rows[-1][0], rows[-1][-1]) == ("PEAK", f"{ratio:.2f}")
    assert any((row[0], row[-1]) == ("parameters", "1.00") for row in rows)
