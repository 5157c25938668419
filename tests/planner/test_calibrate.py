"""Forecast seconds against published ones, and the rates behind them against their data."""

import statistics
from dataclasses import replace

from helpers.planner.catalog import GPUS
from helpers.planner.catalog.rooflines import fitted_rates

import pytest

from tests.planner import calibrate
from tests.planner.published import shown


def test_every_measured_gpu_has_a_rate_for_the_dtypes_that_it_has():
    rates = calibrate.product_rates()
    unmeasured = {name for name in GPUS if name not in rates}
    assert unmeasured == {name for name, gpu in GPUS.items() if gpu.like}
    for name, mine in rates.items():
        known = set(GPUS[name].peaks) | {"bfloat16"}
        of_amd = {"float32"} if GPUS[name].vendor == "amd" else set()  # nobody has published it
        assert known - of_amd == set(mine), name


def test_the_kept_rates_of_operations_are_those_of_the_data():
    kept = fitted_rates()
    for gpu, rates in calibrate.product_rates().items():
        assert kept.products[gpu] == pytest.approx(rates, rel=1e-3), "run: python -m tests.planner.calibrate"
    assert kept.bandwidth == pytest.approx(calibrate.bandwidth(), rel=1e-3)
    assert kept.latency == pytest.approx(calibrate.latency(), rel=1e-3)


def test_chips_of_one_kind_are_about_as_good():
    """H100 and H200 have the same units; so have the two A100."""
    rates = calibrate.product_rates()
    for one, other in (("h100-80gb", "h200-141gb"), ("a100-40gb", "a100-80gb")):
        assert rates[one]["bfloat16"] == pytest.approx(rates[other]["bfloat16"], rel=0.1)


def test_every_row_says_where_it_is_from():
    for kind, published in calibrate.speeds().items():
        for row in published if kind != "about" else []:
            assert (row.get("source", "") + row.get("url", "")).partition("https://")[2], row


def test_the_lowest_point_is_found():
    assert calibrate._lowest(lambda x: (x - 0.87) ** 2) == pytest.approx(0.87, abs=2e-3)


@pytest.fixture(scope="module")
def held():
    return calibrate.scores()


@pytest.mark.slow
def test_seconds_agree_with_published_ones(held):
    clean = [score for score in held if not score.row.suspect]
    errors = [abs(score.error) for score in clean]
    assert len(clean) >= 3
    assert statistics.median(errors) <= 0.10
    assert max(errors) <= 0.30
    assert statistics.median(errors) < statistics.median(abs(score.baseline_error) for score in clean)
    # A suspicious row is forecast to take longer than its source says, since its matmuls alone would take as long.
    assert max(abs(score.error) for score in held) <= 0.35 < max(abs(score.baseline_error) for score in held)


@pytest.mark.slow
def test_suspicious_rows_are_faster_than_their_products_can_be(held):
    for row in (score.row for score in held if score.row.suspect):
        largest = calibrate.speeds()["largest"]
        best = 1e12 * max(r["tflops"].get("bfloat16", 0) for r in largest if r["gpu"] == row.gpu.name)
        assert calibrate.model_flops(row) / best > 0.95 * row.seconds


@pytest.mark.slow
def test_no_row_is_forecast_from_its_own_source():
    """Were it twice as slow, it would be forecast the same."""
    row = calibrate.rows()[0]
    others = [other for other in calibrate.rows() if other.source != row.source]
    rates = calibrate.fitted(others)
    slower = replace(row, seconds=2 * row.seconds)
    assert calibrate.predicted(slower, rates) == calibrate.predicted(row, rates)
    assert calibrate.fitted([*others, slower]).step < rates.step


@pytest.mark.slow
def test_the_docs_and_the_rates_are_the_fit(held):
    assert shown(calibrate.TABLE_PAGE, calibrate.MARKS) == calibrate.table(held), (
        "run: python -m tests.planner.calibrate"
    )
    assert fitted_rates().step == pytest.approx(calibrate.fitted(calibrate.rows()).step, abs=0.005)
