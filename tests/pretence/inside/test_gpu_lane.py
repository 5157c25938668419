"""The GPU lane where there is a GPU: its first step, and a call without `--device`."""

import sys

from helpers.__main__ import main
from helpers.course.gpu_lane import LaneStep, cli, environment, lane
from helpers.course.gpu_lane.steps import lane_steps
from helpers.course.receipts import cli as receipts_cli

import torch


def test_the_first_step_tells_of_the_gpus(capsys, monkeypatch):
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert environment.main(torch.device("cuda")) == 0
    said = capsys.readouterr().out
    assert "torch.float16: computes" in said
    assert f"total_memory={torch.cuda.get_device_properties(0).total_memory}" in said.replace("'", "")
    assert said.splitlines()[-1].endswith("is ready")


def test_tests_that_need_a_gpu_are_steps_of_the_lane():
    assert {"environment", "tests/meter/test_on_cuda", "labs/sharding"} <= {step.name for step in lane_steps("cuda")}


def test_receipts_take_the_gpu_if_no_device_is_given(monkeypatch):
    asked = []
    monkeypatch.setattr(receipts_cli, "run_receipts", lambda *args: asked.append(args) or True)
    assert main(["receipts", "host_copies"]) == 1
    assert asked == [(None, False, ("host_copies",), False)]


def test_what_is_missing_is_said(capsys, monkeypatch):
    monkeypatch.setattr(environment, "missing_packages", lambda: ["peft"])
    assert environment.main(torch.device("cuda")) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "missing: peft; see make gpu-wheels"


def test_the_gpu_is_what_steps_run_on(monkeypatch, tmp_path):
    seen = {}

    def run(command, variables, limit, output):
        seen.update(variables)
        return 0

    monkeypatch.setattr(lane, "run_limited", run)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(cli, "lane_steps", lambda device, again: [LaneStep(device, (sys.executable,))])
    assert main(["gpu", "--out", str(tmp_path)]) == 0
    assert seen["CUDA_VISIBLE_DEVICES"] == "0"
    assert '"cuda": {' in (tmp_path / "state.json").read_text()
