"""Tokens of a micro-batch: a straight line through two plans, and where it meets the size of a GPU."""

from types import SimpleNamespace

from helpers import GiB, Recipe, TokensLine, find_gpu

import pytest


def _line(precision="bf16"):
    plans = [
        SimpleNamespace(
            recipe=Recipe("llama-2-7b", seq=seq, precision=precision),
            peak_allocated_bytes=8 * GiB + seq * 2**20,
            reserved_bytes=(0, 9 * GiB + seq * 2**20),
        )
        for seq in (1024, 4096)
    ]
    return TokensLine(*plans)


def test_the_line_goes_through_both_plans_and_beyond():
    line = _line()
    assert [line.at(tokens) for tokens in (0, 1024, 4096, 8192)] == [8 * GiB, 9 * GiB, 12 * GiB, 16 * GiB]
    assert line.at(1024, reserved=True) == 10 * GiB


def test_as_many_tokens_fit_as_the_line_says():
    room = find_gpu("rtx-4090-24gb").total
    sure, most = _line().fit("rtx-4090-24gb")
    assert (room - 9 * GiB) / 2**20 - 1 < sure <= (room - 9 * GiB) / 2**20
    assert (0.9 * room - 8 * GiB) / 2**20 - 1 < most <= (0.9 * room - 8 * GiB) / 2**20


@pytest.mark.parametrize(("precision", "gpu", "computes"), [("bf16", "t4-16gb", False), ("fp16-amp", "t4-16gb", True)])
def test_a_gpu_without_bf16_does_not_compute_in_it(precision, gpu, computes):
    assert _line(precision).computes_on(gpu) == computes


def test_the_figure_marks_both_lines_at_the_tokens():
    (axes,) = _line().figure("rtx-4090-24gb", 2048, "a title").axes
    marks = [line.get_ydata() for line in axes.lines if line.get_marker() in ("o", "s")]
    assert [list(ys) for ys in marks] == [[10.0], [11.0]]
