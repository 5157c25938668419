"""The forecast of recurrent layers against the layers that others measured."""

import json
import math
import runpy
import statistics
from pathlib import Path

from helpers.meter.work import Work
from helpers.planner.catalog.gpus import find_gpu
from helpers.planner.catalog.rooflines import roofline_of
from helpers.virtual_gpu import virtual_gpu
from helpers.virtual_gpu.recurrent_work import recurrent_seconds, recurrent_work

import pytest
import torch
from torch import nn

from . import against_gpu

V100 = json.loads(Path(__file__).with_name("v100_recurrent.json").read_text(encoding="utf-8"))
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def ratio(row):
    """Return measured / forecast seconds of a layer's passes; of its inputs, nothing is multiplied."""
    row = dict(zip(V100["columns"], row, strict=True))
    batch, times, width = row["batch"], row["times"], row["hidden"]
    turn = batch, GATES[row["kind"]] * width, width
    flops = 2 * times * math.prod(turn)
    shape = batch * times, turn[1], width
    passes = (recurrent_work(Work("", "matmul", n * flops, 0, row["dtype"], shape), times, turn) for n in (1, 2))
    roofline = roofline_of(find_gpu("v100-16gb"))
    forecast = sum(recurrent_seconds(work, roofline).total() for work in passes)
    return (row["forward"] + row["inputs"] + row["weights"]) / 1e3 / forecast


def test_the_forecast_of_layers_is_near_what_deepbench_measured():
    ratios = [ratio(row) for row in V100["rows"] if row[4] > 1]
    assert len(ratios) > 100
    assert 0.9 < statistics.median(ratios) < 1.1
    assert min(ratios) > 0.55
    assert max(ratios) < 1.5


@pytest.mark.slow
def test_the_forecast_of_a_language_model_holds_what_an_h100_took():
    (row,) = (row for row in against_gpu.measured()["rows"] if row.get("script") == "lstm.py")
    with virtual_gpu("h100-80gb") as run:
        runpy.run_path(str(against_gpu.HERE / "programs" / "lstm.py"))
    assert run.forecast.low < row["seconds"] < run.forecast.high


def seconds(times, batch, precision=None):
    before = torch.backends.cudnn.rnn.fp32_precision
    torch.backends.cudnn.rnn.fp32_precision = precision or before
    try:
        with virtual_gpu("h100-80gb") as run:
            layer = nn.LSTM(1024, 1024).cuda()
            optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
            for _ in range(2):
                layer(torch.zeros(times, batch, 1024, device="cuda"))[0].sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.backends.cudnn.rnn.fp32_precision = before
    return run.forecast.seconds


def test_each_time_waits_for_the_time_before():
    assert seconds(512, 8) > 4 * seconds(32, 128)


def test_layers_take_tf32_unless_the_program_forbids_it():
    assert seconds(16, 4096, "ieee") > 2 * seconds(16, 4096)
