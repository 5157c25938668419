"""Routes and weeks name labs that exist, in an order in which each lab's prerequisites come first."""

import re

from helpers.course.build.card import card, minutes
from helpers.course.build.codes import PITFALLS, TECHNIQUES
from helpers.course.build.routes import ROUTES, WEEKS
from helpers.course.build.source import sources

import pytest

LABS = {source.topic: source for source in sources()}


def needed(topic):
    """The labs that a card asks for; after "helps" or in parentheses come those that it does not."""
    text = re.split(r";", card(LABS[topic])["Before this"])[0]
    return set(re.findall(r"\[\[#?(\w+)\]\]", text))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.want)
def test_a_route_goes_through_labs_that_exist(route):
    assert set(route.labs) <= set(LABS)
    assert list(route.labs) == sorted(route.labs, key=list(LABS).index)


def test_ten_weeks_hold_each_lab_once_and_prerequisites_first():
    seen = []
    for _, names in WEEKS:
        seen += names
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(LABS)
    graded = {topic for topic, source in LABS.items() if source.graded}
    assert graded <= set(seen)
    for place, topic in enumerate(seen):
        assert needed(topic) & set(seen) <= set(seen[:place]), topic


@pytest.mark.parametrize("topic", LABS)
def test_every_card_says_minutes(topic):
    least, most = minutes(LABS[topic])
    assert 10 <= least <= most <= 300


def test_every_code_on_a_card_is_explained_and_every_code_has_a_lab():
    on_cards = {code for source in LABS.values() for code in re.findall(r"[TP]\d+", card(source)["Syllabus"])}
    assert on_cards == {*TECHNIQUES, *PITFALLS}
