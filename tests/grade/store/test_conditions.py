"""What tells one run from another."""

import re

from helpers.course.grade.store.conditions import course_version


def test_the_course_version_tells_sources_apart(tmp_path):
    for folder in ("solutions", "helpers"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_bytes(b"x = 1\n")
    before = course_version(tmp_path)
    course_version.cache_clear()
    (tmp_path / "solutions" / "a.py").write_bytes(b"x = 1\r\n")
    assert course_version(tmp_path) == before
    course_version.cache_clear()
    (tmp_path / "solutions" / "a.py").write_bytes(b"x = 2\n")
    assert course_version(tmp_path) != before
    assert re.fullmatch(r"[\d.]+\+[0-9a-f]{8}", course_version())
