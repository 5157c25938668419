"""The receipts' measurements on a GPU, with small models and one run where they take many: each goes through."""

import math
from types import SimpleNamespace

from helpers.claims.claims import Claims
from helpers.core.models import SmallCNN, SmallGPT
from helpers.course.receipts.measurements import (
    _honesty,
    _subjects,
    capstone_ladder,
    compiled,
    data_parallel,
    float8_products,
    host_copies,
    meter_cost,
    meter_honesty,
    mixed_precision,
    planner_compiled,
    planner_honesty,
    planner_honesty_8bit,
    planner_honesty_llama,
    planner_honesty_vision,
    recomputation,
    seven_billion,
    seven_billion_nf4,
)
from helpers.course.receipts.steps import Skip
from helpers.planner import Recipe
from helpers.planner.measure import MeasuredRecipe

import pytest
import torch

CUDA = torch.device("cuda")
SMALL = Recipe("small-gpt", precision="fp32", seq=64)
HONESTY = [planner_honesty, planner_honesty_8bit, planner_honesty_llama, planner_honesty_vision]
one_gpu = pytest.mark.gpus(1)


def small_gpt(device):
    def batch(where):
        ids = torch.randint(256, (2, 33), device=where)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return _subjects.ModelSpec("a small GPT", lambda: SmallGPT(256, 32, 2, 32, 2), batch)


def small_cnn(device):
    def batch(where):
        return torch.randn(8, 1, 16, 16, device=where), torch.randint(10, (8,), device=where)

    return _subjects.ModelSpec("a small CNN", lambda: SmallCNN(8), batch)


def called_once(before, after, runs):
    before()
    after()
    return SimpleNamespace(speedup=1.5)


@pytest.fixture
def measured(monkeypatch):
    """Return a function that runs a measurement on small subjects and returns its rows."""
    small = {"gpt": small_gpt, "cnn": small_cnn, "compare": called_once, "lora_7b": lambda: SMALL}

    def run(module):
        for name, subject in small.items():
            if hasattr(module, name) and (module, name) != (seven_billion_nf4, "lora_7b"):
                monkeypatch.setattr(module, name, subject)
        claims = Claims()
        module.measure(claims, CUDA)
        return claims.rows

    return run


def test_subjects_are_large_on_a_gpu():
    assert "12 layers of 768" in _subjects.gpt(CUDA).words
    assert "128 channels" in _subjects.cnn(CUDA).words
    assert sum(len(module._recipes(CUDA)) for module in HONESTY) >= 20


@pytest.mark.parametrize("module", [meter_cost, mixed_precision, recomputation])
def test_a_measurement_of_small_subjects_goes_through(module, measured):
    assert measured(module)


def test_the_meters_peak_is_the_allocators(measured):
    rows = measured(meter_honesty)
    assert len(rows) >= 16
    # In models as small as these, one block of 512 bytes is 0.14 %.
    assert [row.measured for row in rows] == pytest.approx([1.0] * len(rows), abs=0.002)


def test_a_compiled_step_has_a_peak_of_its_own(measured, monkeypatch):
    for module in (compiled, planner_compiled):
        monkeypatch.setattr(module, "why_no_compiler", lambda: None)
    monkeypatch.setattr(torch, "compile", lambda model: model)
    assert len(measured(compiled)) == 3
    assert len(planner_compiled._recipes(CUDA)) > 1
    monkeypatch.setattr(planner_compiled, "_recipes", lambda device: [SMALL])
    monkeypatch.setattr(planner_compiled, "measure_recipe", lambda *a: MeasuredRecipe(10**6, 10**7, 1.0))
    assert len(measured(planner_compiled)) == 1


def test_copies_and_products_in_fp8_go_through(measured, monkeypatch):
    assert len(measured(host_copies)) == 6
    monkeypatch.setattr(float8_products, "_SIZES", (64, 128))
    if torch.cuda.get_device_capability() >= (8, 9):
        assert len(measured(float8_products)) == 4
    else:
        with pytest.raises(Skip, match="FP8 units"):
            measured(float8_products)


def test_a_plan_is_held_against_real_steps_unless_it_does_not_fit(monkeypatch):
    claims = Claims()
    _honesty.hold(claims, [SMALL, Recipe("small-cnn", precision="fp16-amp")], CUDA)
    assert [row.measured is None for row in claims.rows] == [False] * 4
    monkeypatch.setattr(_honesty, "free_bytes", lambda device: 0)
    _honesty.hold(claims, [SMALL], CUDA)
    assert claims.rows[-1].measured is None


def test_what_should_have_fitted_and_does_not_counts(monkeypatch):
    def out_of_memory(recipe, device):
        raise torch.OutOfMemoryError

    claims = Claims()
    monkeypatch.setattr(_honesty, "measure_recipe", out_of_memory)
    _honesty.hold(claims, [SMALL], CUDA)
    assert [(row.measured, row.held) for row in claims.rows] == [(math.inf, False)]


def test_free_bytes_are_the_drivers_and_the_caches():
    before = _subjects.free_bytes(CUDA)
    tensor = torch.empty(2**24, device=CUDA)
    during = _subjects.free_bytes(CUDA)
    del tensor
    assert during == pytest.approx(before - 2**26, abs=2**21)
    assert _subjects.free_bytes(CUDA) == pytest.approx(before, abs=2**21)


def test_seven_billion_parameters_are_skipped_where_they_do_not_fit(measured, monkeypatch):
    monkeypatch.setattr(seven_billion, "_SHAPES", ((1, 64),))
    room = torch.cuda.mem_get_info(CUDA)[1]
    monkeypatch.setattr(seven_billion, "_ROOM", room)
    assert len(measured(seven_billion)) == 5
    monkeypatch.setattr(seven_billion, "free_bytes", lambda device: 0)
    assert [row.measured for row in measured(seven_billion)] == [None]
    monkeypatch.setattr(seven_billion, "_ROOM", room + 1)
    with pytest.raises(Skip, match="GiB or more"):
        measured(seven_billion)


def test_a_step_in_nf4_is_measured(measured, monkeypatch):
    embedding = torch.nn.Embedding(32000, 8).to(CUDA)

    def model(input_ids, labels):
        return SimpleNamespace(loss=embedding(input_ids).sum())

    model.parameters = embedding.parameters
    monkeypatch.setattr(seven_billion_nf4, "_model", lambda device: model)
    monkeypatch.setattr(seven_billion_nf4, "plan", lambda recipe: SimpleNamespace(peak_allocated_bytes=10**6))
    assert len(measured(seven_billion_nf4)) == 3


def test_the_ladder_is_climbed_where_its_first_rung_fits(measured, monkeypatch):
    assert capstone_ladder._model(CUDA) == "vit-b-16"
    monkeypatch.setattr(capstone_ladder, "_model", lambda device: "small-vit")
    monkeypatch.setattr(capstone_ladder, "free_bytes", lambda device: 2**40)
    monkeypatch.setattr(capstone_ladder, "measure_recipe", lambda *a: MeasuredRecipe(10**7, 10**8, 1.0))
    assert len(measured(capstone_ladder)) == 3
    monkeypatch.setattr(capstone_ladder, "free_bytes", lambda device: 0)
    with pytest.raises(Skip, match="ViT-B"):
        measured(capstone_ladder)


@one_gpu
def test_data_parallel_training_wants_two_gpus(measured):
    with pytest.raises(Skip, match="two GPUs"):
        measured(data_parallel)
