"""Bytes in words."""

from helpers import GiB, MiB, human_bytes

import pytest


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3.5 * MiB, "3.50 MiB"), (-2 * GiB, "-2.00 GiB")],
)
def test_human_bytes(n, text):
    assert human_bytes(n) == text
