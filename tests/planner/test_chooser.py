"""The recipe chooser: its table is whole and is the planner's; answers are ranked and quick."""

import json
from types import SimpleNamespace

from helpers import choose, plan_deep, plan_many
from helpers.planner import Recipe, RecipeError, deep
from helpers.planner.chooser import LENGTHS, MODELS, TABLE, WAYS, _recipes

import pytest


def test_the_table_holds_every_case():
    rows = json.loads(TABLE.read_text())
    assert {(r["model"], r["seq"], r["way"]) for r in rows} == set(_recipes())
    assert len(rows) == len(MODELS) * len(LENGTHS) * len(WAYS)


@pytest.mark.parametrize("gpu", ["rtx-3060-12gb", "rtx-4090-24gb", "h200-141gb"])
@pytest.mark.parametrize("model", MODELS)
def test_what_fits_comes_first_and_fastest_first(gpu, model):
    choices = choose(gpu, model, 512, 16)
    fits = [c.fits for c in choices]
    assert fits == sorted(fits, reverse=True)
    fastest = min(c.seconds for c in choices)
    steps = [round(c.seconds / fastest, 2) for c in choices if c.fits]  # what differs by less counts as equal
    assert steps == sorted(steps)
    if gpu == "h200-141gb":
        assert steps[0] < steps[-1]  # and there is something to rank
    sizes = [c.reserved_bytes for c in choices if not c.fits]
    assert sizes == sorted(sizes)
    assert all(c.fits == (c.reserved_bytes <= c.room_bytes) for c in choices)
    assert all(c.recipe.gradient_accumulation_steps == 16 and c.recipe.micro_batch_size == 1 for c in choices)


def test_nothing_is_simulated_and_time_grows_with_the_batch(monkeypatch):
    monkeypatch.setattr("torch._subclasses.FakeTensorMode.__init__", None)  # a simulation begins with it
    few, many = ({c.name: c for c in choose("h100-80gb", "llama-2-7b", 2048, batch)} for batch in (4, 64))
    for name, c in few.items():
        assert many[name].peak_bytes == c.peak_bytes
        assert c.seconds < many[name].seconds <= 16 * c.seconds * (1 + 1e-9)


def test_the_optimizer_comes_once_an_update_however_many_sequences():
    """With one short sequence an update is bound by moving weights and state; with many, by arithmetic."""
    full = "full, BF16 autocast, checkpointing"
    one, two, many = (
        next(c for c in choose("h200-141gb", "llama-2-7b", 512, batch) if c.name == full).seconds
        for batch in (1, 2, 64)
    )
    assert two < 1.9 * one  # traffic of weights doubles, that of gradients and state does not
    assert many < 0.95 * 64 * one


def test_bf16_on_a_card_without_it_is_said_and_slower():
    t4 = {c.name: c for c in choose("t4-16gb", "llama-2-7b", 512, 16)}
    assert t4["QLoRA r=16, checkpointing"].emulated
    assert not t4["QLoRA r=16, FP16 autocast, checkpointing"].emulated
    assert t4["QLoRA r=16, checkpointing"].seconds > 4 * t4["QLoRA r=16, FP16 autocast, checkpointing"].seconds
    assert not any(c.emulated for c in choose("rtx-4090-24gb", "llama-2-7b", 512, 16))


def test_the_answers_that_the_lab_gives():
    """What stands behind `Answers` in the lab's section on the chooser."""

    def fitting(gpu, tokens):
        return [c.name for c in choose(gpu, "llama-2-7b", tokens, 16) if c.fits]

    cards = ("rtx-3060-12gb", "t4-16gb", "rtx-4090-24gb", "a100-40gb", "h100-80gb")
    first = next(gpu for gpu in cards if any(name.startswith("full, ") for name in fitting(gpu, 512)))
    assert first == "a100-40gb"
    assert [n for n in fitting(first, 512) if n.startswith("full, ")] == ["full, BF16 weights, SGD, checkpointing"]
    assert "full, BF16 weights" in fitting("h100-80gb", 512)
    assert "full, BF16 weights, checkpointing" not in fitting(first, 512)
    assert set(fitting("rtx-4090-24gb", 512)) - set(fitting("rtx-4090-24gb", 2048)) == {"LoRA r=16"}
    assert fitting("t4-16gb", 512)[0] == "QLoRA r=16, FP16 autocast, checkpointing"


def test_what_the_table_does_not_hold_is_said():
    with pytest.raises(LookupError):
        choose("h100-80gb", "llama-2-7b", 700, 4)
    with pytest.raises(RecipeError):
        choose("abacus", "llama-2-7b", 512, 4)


@pytest.mark.slow
def test_the_table_is_what_the_planner_says():
    (key, recipe), *_ = (
        (k, r) for k, r in _recipes().items() if k == ("llama-3.2-1b", 512, "LoRA r=16, checkpointing")
    )
    row = next(r for r in json.loads(TABLE.read_text()) if (r["model"], r["seq"], r["way"]) == key)
    assert plan_deep([recipe])[0].allocated_bytes == pytest.approx(row["plan"]["allocated_bytes"], rel=0.01)


@pytest.mark.slow
def test_two_shallow_plans_make_a_deep_one():
    recipe = Recipe("llama-3.2-1b", lora_rank=16, checkpointing="every")
    (line,), (whole,) = plan_deep([recipe]), plan_many([recipe])
    assert line.allocated_bytes == pytest.approx(whole.peak_allocated_bytes, rel=0.03)


def _plan(peaks, reserved=1.1):
    return SimpleNamespace(
        peaks=peaks,
        reserved_bytes=(0, int(reserved * max(p for p, _ in peaks.values()))),
        peak_allocated_bytes=max(p for p, _ in peaks.values()),
        flops=1,
        micro_batch_traffic_bytes=1,
        update_traffic_bytes=1,
    )


def test_each_phase_has_a_line_of_its_own():
    """Backward is on top in both copies; with 32 layers the optimizer is, which grows faster."""
    few = _plan({"backward": (100, "a"), "optimizer step": (40, "b")})
    more = _plan({"backward": (106, "a"), "optimizer step": (70, "b")})
    line = deep._line(Recipe("llama-2-7b"), 32, (3, 6), few, more)
    assert (line.phase, line.allocated_bytes) == ("optimizer step", 330)


def test_a_peak_that_moves_makes_no_line(monkeypatch):
    few = _plan({"backward": (100, "a")})
    more = _plan({"backward": (106, "another operation")})
    assert deep._line(Recipe("llama-2-7b"), 32, (3, 6), few, more) is None
    monkeypatch.setattr(deep, "plan_many", lambda recipes, **_: [few, more] * (len(recipes) // 2))
    with pytest.raises(RecipeError, match="plan it as it is"):
        plan_deep([Recipe("llama-2-7b")])


def test_a_model_without_layers_is_refused():
    with pytest.raises(RecipeError):
        plan_deep([Recipe("vit-l-16")])
