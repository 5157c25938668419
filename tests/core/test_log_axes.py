"""Logarithmic axes: plain numbers where they fit, enough of them, and powers where a scale is long."""

from helpers.core.log_axes import FEWEST, plain, plain_numbers

import pytest
from matplotlib.figure import Figure


def numbers(x, y, base):
    figure = Figure()
    axes = figure.add_subplot()
    axes.loglog(x, y, base=base)
    plain_numbers(figure)
    figure.canvas.draw()
    result = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
        result.append([label.get_text() for at, label in ticks if low <= at <= high])
    return result


def test_powers_of_two_are_plain_numbers():
    across, up = numbers((64, 128, 256, 512, 1024), (2.6, 6, 17, 60, 100), 2)
    assert across == ["64", "128", "256", "512", "1,024"]
    assert up == ["4", "8", "16", "32", "64"]


def test_less_than_a_decade_has_numbers_enough():
    across, up = numbers((64, 1024), (0.06, 0.4), 10)
    assert len(across) >= FEWEST
    assert up == ["0.1", "0.2"] or len(up) >= FEWEST


def test_many_decades_stay_powers():
    across, up = numbers((1, 1e8), (1, 900), 10)
    assert all("10^" in label for label in across)
    assert not any("10^" in label for label in up)


def test_ticks_that_were_set_by_hand_stay():
    figure = Figure()
    axes = figure.add_subplot(xscale="log")
    axes.plot([1, 2, 3], [1, 2, 3])
    axes.set_xticks([1, 3], ["one", "three"])
    plain_numbers(figure)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["one", "three"]


@pytest.mark.parametrize(("value", "words"), [(16384.0, "16,384"), (0.05, "0.05"), (1.0, "1"), (2.5, "2.5")])
def test_a_number_is_written_as_people_write_it(value, words):
    assert plain(value) == words
