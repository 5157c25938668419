"""Routes and weeks name labs that exist, in an order in which each lab's prerequisites come first."""

import re

from helpers.course.build.card import card, minutes
from helpers.course.build.codes import PITFALLS, TECHNIQUES
from helpers.course.build.lab_map import needed
from helpers.course.build.routes import ROUTES, WEEKS
from helpers.course.build.source import sources

import pytest

LABS = {source.topic: source for source in sources()}


TOPIC = {source.name: source.topic for source in LABS.values()}
NEEDED = {TOPIC[name]: {TOPIC[each] for each in names} for name, names in needed(list(LABS.values())).items()}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.want)
def test_a_route_goes_through_labs_that_exist(route):
    assert set(route.labs) <= set(LABS)
    assert list(route.labs) == sorted(route.labs, key=list(LABS).index)


@pytest.mark.parametrize("names", [*(route.labs for route in ROUTES), tuple(LABS)], ids=lambda names: f"{len(names)}")
def test_whoever_follows_a_route_has_done_what_each_card_asks_for(names):
    """The routes, and the whole course from 00 to 21."""
    for place, topic in enumerate(names):
        assert NEEDED[topic] <= set(names[:place]), topic


def test_ten_weeks_hold_each_lab_once_and_prerequisites_first():
    seen = []
    for _, names in WEEKS:
        seen += names
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(LABS)
    graded = {topic for topic, source in LABS.items() if source.graded}
    assert graded <= set(seen)
    for place, topic in enumerate(seen):
        assert NEEDED[topic] <= set(seen[:place]), topic


@pytest.mark.parametrize("topic", LABS)
def test_every_card_says_minutes(topic):
    least, most = minutes(LABS[topic])
    assert 10 <= least <= most <= 300


def test_every_code_on_a_card_is_explained_and_every_code_has_a_lab():
    on_cards = {code for source in LABS.values() for code in re.findall(r"[TP]\d+", card(source)["Syllabus"])}
    assert on_cards == {*TECHNIQUES, *PITFALLS}
