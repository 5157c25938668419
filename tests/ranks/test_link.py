"""Messages between two ranks of this machine, and the line through them."""

from helpers.ranks import link
from helpers.ranks.link import measure_link

import pytest


@pytest.mark.slow
def test_the_link_between_two_ranks_is_measured(monkeypatch):
    monkeypatch.setattr(link, "MESSAGES", (1024, 2**16, 2**20))
    measured = measure_link()
    assert measured.latency > 0
    assert measured.bandwidth > 0
    assert measured.seconds(2**20) > measured.seconds(1024)
