"""The device of this machine: which, its name, its memory, and what it lacks."""

import importlib.util

import helpers.course.receipts.collect as collect
import helpers.doctor as doctor
from helpers.claims import hardware
from helpers.claims.measurement import Measurement
from helpers.core.compiler import why_no_compiler
from helpers.core.device import (
    device_name,
    numbers_beyond_cache,
    pick_device,
    rank_device,
    sixteen_bit_dtype,
    supports,
    synchronize,
)
from helpers.core.precision import fp32_computed_as, fp32_precision, has_tf32
from helpers.course.gpu_lane import environment
from helpers.formats.autocast_rules import autocast_rule
from helpers.ranks.deepspeed_config import deepspeed_config

import pytest
import torch

CUDA = torch.device("cuda")


def test_the_gpu_is_picked_and_named():
    assert pick_device() == CUDA
    assert device_name(CUDA) == torch.cuda.get_device_properties(CUDA).name
    assert rank_device() == torch.device("cuda", 0)
    synchronize(CUDA)


def test_formats_are_those_that_the_hardware_computes():
    major = torch.cuda.get_device_capability()[0]
    assert supports(torch.float16, CUDA)
    assert supports(torch.bfloat16, CUDA) == has_tf32(CUDA) == (major >= 8)  # a T4 emulates BF16
    assert sixteen_bit_dtype(CUDA) == (torch.bfloat16 if major >= 8 else torch.float16)
    assert 4 * numbers_beyond_cache(CUDA) >= 8 * torch.cuda.get_device_properties(CUDA).L2_cache_size


def test_fp32_products_are_set_and_put_back():
    before = fp32_precision()
    with fp32_computed_as("tf32"):
        assert set(fp32_precision().values()) == {"TF32"}
    with fp32_computed_as("ieee"):
        assert set(fp32_precision().values()) == {"FP32"}
    assert fp32_precision() == before


def test_autocast_is_asked_of_the_gpu():
    assert autocast_rule(lambda a, b: a @ b, "cuda", torch.float16) == "16 bits"
    assert autocast_rule(lambda a, b: a.exp(), "cuda", torch.float16) == "FP32"


def test_the_lane_reports_every_gpu(capsys):
    environment.main(CUDA)
    assert capsys.readouterr().out.count("total_memory") == torch.cuda.device_count()


def test_without_triton_nothing_is_compiled(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    assert why_no_compiler() == "Triton is not installed"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "gcc" in why_no_compiler()


def test_the_doctor_reads_the_gpus_memory(capsys):
    free, total = doctor.device_memory(CUDA)
    assert 0 < free <= total == torch.cuda.get_device_properties(CUDA).total_memory
    doctor.examine()
    report = capsys.readouterr().out
    assert torch.cuda.get_device_name() in report
    assert "every byte of the allocator" in report
    assert ("GPUs" in report) == (torch.cuda.device_count() > 1)


def test_receipts_of_the_cpu_hide_the_gpu_and_those_of_another_device_are_refused():
    assert collect._environment("cpu")["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in collect._environment("cuda").keys() - collect.os.environ.keys()
    with pytest.raises(collect.ReceiptsError, match="no mps device"):
        collect._environment("mps")


def test_a_claim_about_speed_gets_its_verdict():
    faster = Measurement("C7", "faster", "a CNN", 2.0, "times", 1.5, 3.0, device_name(CUDA))
    assert hardware.needs(faster)
    assert hardware.verdict(faster, CUDA.type) == faster.verdict


def test_what_deepspeed_keeps_in_host_memory_is_pinned():
    config = deepspeed_config(2, micro_batch=4, offload="optimizer")
    assert config["zero_optimization"]["offload_optimizer"]["pin_memory"] is True
