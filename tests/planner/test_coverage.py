"""The intervals of a layout's seconds keep their word on published runs of sources that they do not know."""

import statistics

from helpers.planner.catalog.layout_rates import layout_rates

import pytest

from tests.planner import coverage
from tests.planner.conformal import covered
from tests.planner.published import TABLE_PAGE, shown


@pytest.mark.parametrize(("kind", "field"), coverage.KINDS.items())
def test_the_intervals_are_those_of_the_errors(kind, field):
    assert getattr(layout_rates(), field) == pytest.approx(coverage.intervals()[field], rel=1e-3)


def test_the_table_is_up_to_date():
    assert shown(TABLE_PAGE, coverage.MARKS).strip() == coverage.table().strip()


def test_nine_of_ten_runs_of_a_source_left_out_are_inside():
    errors = coverage.errors_of("dense")
    assert len(errors) >= 15
    assert coverage.promised(len(errors) - 1) == coverage.WANTED
    assert statistics.fmean(covered(errors, coverage.WANTED).values()) >= 0.88  # of 0.9, by as many sources


def test_few_sources_promise_no_more_than_they_can():
    assert coverage.promised(3) == 0.75
    assert coverage.promised(9) == pytest.approx(0.9)
    assert coverage.promised(100) == 0.9


def test_mixtures_of_experts_have_an_interval_of_their_own():
    rates = layout_rates()
    assert rates.interval_of(0) == rates.interval
    assert rates.interval_of(8) == rates.interval_experts
    assert rates.interval_experts[1] / rates.interval_experts[0] > rates.interval[1] / rates.interval[0]
