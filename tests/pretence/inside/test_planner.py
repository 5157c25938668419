"""The planner on a GPU: real steps beside a plan, and the scripts that it writes."""

import os
import subprocess
import sys
from dataclasses import replace

from helpers.__main__ import main
from helpers.meter.roofline import keep_roofline
from helpers.meter.roofline.kept import machine_name
from helpers.planner import Recipe, plan
from helpers.planner.catalog import find_gpu
from helpers.planner.catalog.rooflines import roofline_of
from helpers.planner.catalog.this_machine import this_machine
from helpers.planner.measure import measure_recipe
from helpers.planner.script import training_script

import pytest
import torch


def test_two_steps_are_measured_on_the_gpu_if_no_device_is_given():
    recipe = Recipe("small-gpt", precision="fp32", seq=64)
    on_gpu = measure_recipe(recipe)
    assert on_gpu.reserved_bytes >= on_gpu.peak_bytes > 0
    assert measure_recipe(recipe, torch.device("cpu")).reserved_bytes is None


def test_a_plan_is_printed_beside_its_measurement(capsys):
    assert main(["plan", "--model", "small-cnn", "--precision", "fp32", "--measure"]) == 0
    assert "predicted" in capsys.readouterr().out


def test_a_step_inside_the_backward_pass_lowers_the_peak_planned_and_measured():
    inside, after = (Recipe("small-gpt", precision="fp32", seq=64, step_in_backward=choice) for choice in (True, False))
    assert measure_recipe(inside).peak_bytes < measure_recipe(after).peak_bytes
    assert plan(inside).peak_allocated_bytes < plan(after).peak_allocated_bytes


@pytest.mark.parametrize("style", ["pytorch", "trainer"])
def test_a_script_trains_on_the_gpu(style, tmp_path):
    recipe = Recipe("llama-3.2-1b", lora_rank=8, gradient_accumulation_steps=2, precision="bf16-amp")
    script = tmp_path / "train.py"
    script.write_text(training_script(recipe, style))
    done = subprocess.run(
        [sys.executable, str(script), "--tiny"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "GiB" in done.stdout if style == "pytorch" else "loss" in done.stdout, done.stdout


def test_this_machine_is_its_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("TAS_PROGRESS", str(tmp_path))
    keep_roofline(replace(roofline_of(find_gpu("t4-16gb")), machine=machine_name(torch.device("cuda"))))
    gpu = this_machine()
    assert gpu.total == torch.cuda.get_device_properties(0).total_memory
    assert gpu.capability == torch.cuda.get_device_capability()


def test_the_roofline_of_a_device_that_is_not_there_is_refused(capsys):
    assert main(["roofline", "--device", "mps"]) == 2
    assert capsys.readouterr().err == "This machine has no device mps; it has cuda.\n"
