"""Tables made from profiles."""

from helpers import category_table

from .profiles import small_and_large


def test_category_table_compares_last_with_first():
    profiles = small_and_large()
    lines = category_table(profiles).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[-1].startswith("PEAK")
    ratio = profiles["large"].peak_bytes / profiles["small"].peak_bytes
    assert lines[-1].endswith(f"{ratio:.2f}")
    assert any(line.startswith("parameters") and line.endswith("1.00") for line in lines)
