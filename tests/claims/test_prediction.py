"""Predictions beside what was measured."""

from helpers import Prediction

import pytest


@pytest.mark.parametrize(
    ("guess", "says"),
    [
        (None, "not guessed"),
        (10.5, "within 10%"),
        (10, "You said 10 MiB: exactly right."),
        (20, "2.00x too high"),
        (4, "2.50x too low"),
        (0, "You said 0 MiB: off by 10."),
    ],
)
def test_prediction(capsys, guess, says):
    Prediction("Peak", guess, "MiB").reveal(10.0)
    out = capsys.readouterr().out
    assert "Peak: measured 10 MiB" in out
    assert says in out


@pytest.mark.parametrize(("guess", "says"), [(-1, "10.00x too close to zero"), (-20, "2.00x too far below zero")])
def test_prediction_of_a_negative_number(capsys, guess, says):
    Prediction("SGD against AdamW", guess, "points").reveal(-10.0)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("guess", "says"), [(0.5, "off by 0.1 points"), (0, "off by 0.6 points"), (-0.3, "off by 0.9 points")]
)
def test_prediction_of_a_difference_counts_how_far_off(capsys, guess, says):
    Prediction("Accuracy, BF16 minus FP32", guess, "points", difference=True).reveal(0.6)
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("guess", "measured", "says"),
    [
        (0, 0.0, "exactly right"),
        (0, 2.899e-07, "right, up to rounding"),
        (27.3, 27.2727, "exactly right"),
        (43, 43.2, "off by 0.2 points."),
        (56, 55.8049, "off by 0.2 points."),
        (0.4, 0.438, "off by 0.038 points"),
    ],
)
def test_a_hit_is_called_one(capsys, guess, measured, says):
    Prediction("Waiting", guess, "%", difference=True).reveal(measured)
    assert says in capsys.readouterr().out


def test_a_factor_of_a_hundred_comes_with_the_distance(capsys):
    Prediction("Gap", 0.2, "copies").reveal(0.0001572)
    assert "You said 0.2 copies: off by 0.2, a factor of 1,272." in capsys.readouterr().out


def test_large_numbers_are_written_out(capsys):
    Prediction("Bytes", 16384, "bytes").reveal(65150.7)
    out = capsys.readouterr().out
    assert "measured 65,150 bytes" in out
    assert "You said 16,384 bytes" in out


def test_a_figure_that_was_not_measured_is_called_something_else(capsys):
    Prediction("Idle", 27.0, "%", difference=True).reveal(27.3, "simulated")
    assert "Idle: simulated 27.3%" in capsys.readouterr().out


@pytest.mark.parametrize("guess", ["19 MiB", float("nan"), float("inf"), True, [3]])
def test_what_is_not_a_number_is_refused_before_anything_is_revealed(guess):
    with pytest.raises(ValueError, match=r"Write a number alone \(in MiB\)"):
        Prediction("Peak", guess, "MiB")
