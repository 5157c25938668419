"""Remedies: the search over micro-batches and combinations, on made-up sizes, and on real ones."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

from helpers.planner import Recipe, plan
from helpers.planner.catalog.gpus import Gpu
from helpers.planner.config import RecipeError
from helpers.planner.remedies import SURELY, Remedy, RemedySearch, candidates

import pytest

ROOM = 1000  # bytes of a small world, in which a weight takes one
GPU = Gpu("small", ROOM, context=0)
BASE = Recipe("llama-2-7b", micro_batch_size=12, gradient_accumulation_steps=2)


def nbytes(recipe, sizes):
    """A recipe's bytes, by what each part takes."""
    layers = 0.2 if recipe.checkpointing == "every" else 1.0
    state = {"adamw": 1.0, "adamw-8bit": 0.25, "adamw-8bit-paged": 0.0}[recipe.optimizer]
    state = 0 if recipe.offload != "none" else state * (0.01 if recipe.lora_rank else 1)
    weights = 0.25 if recipe.quantize != "none" else 1.0
    gradients = 0.0 if recipe.step_in_backward else 0.01 if recipe.lora_rank else 1.0
    tokens = recipe.micro_batch_size * recipe.seq / 512
    parts = {
        "parameters": weights,
        "gradients": gradients,
        "optimizer state": state,
        "activations": layers * tokens,
        "temporaries": 1.0 if recipe.optimizer_impl == "foreach" else 0.0,
    }
    return {name: int(share * sizes.get(name, 0)) for name, share in parts.items()}


def floor(parts):
    """What no micro-batch changes."""
    return sum(parts[name] for name in ("parameters", "gradients", "optimizer state"))


def search(monkeypatch, recipe=BASE, batch_norm=False, in_update=False, **sizes):
    """A search that adds sizes up instead of running steps."""
    seen = []

    def estimated(self, changes, changed):
        seen.append(changed)
        parts = nbytes(changed, sizes)
        peak = sum(parts.values())
        if peak >= before:
            return None
        fits = peak <= SURELY * ROOM
        return Remedy(changes, changed, peak, (peak, peak), fits, False, None, 0.0, floor(parts), in_update)

    held = nbytes(recipe, sizes)
    before = sum(held.values())
    base = SimpleNamespace(
        recipe=recipe,
        at_peak=held,
        peak_at="optimizer step: aten.mul" if in_update else "backward: aten.mm",
        peak_allocated_bytes=before,
        floor_bytes=floor(held),
        forecasts={},
        flops=1,
    )
    monkeypatch.setattr(RemedySearch, "_estimated", estimated)
    result = RemedySearch(base, [GPU], None, batch_norm)
    result.seen = seen
    return result


@pytest.mark.parametrize("each", [1, 40, 75, 77, 78, 100, 154, 155, 200, 309, 464, 900])
def test_the_largest_micro_batch_is_found(monkeypatch, each):
    """Of the sizes that divide the 24 sequences of a step."""
    looking = search(monkeypatch, activations=each)
    found = looking.largest_micro_batch(())
    fitting = [size for size in (1, 2, 3, 4, 6, 8) if size * each <= SURELY * ROOM]
    assert found.recipe.micro_batch_size == max(fitting)
    assert found.recipe.gradient_accumulation_steps == 24 // max(fitting)
    assert len(looking.seen) <= 4  # not one after the other


def test_a_micro_batch_of_one_may_not_be_enough(monkeypatch):
    found = search(monkeypatch, activations=1000).largest_micro_batch(())
    assert (found.recipe.micro_batch_size, found.fits) == (1, False)
    alone = replace(BASE, micro_batch_size=1)
    assert search(monkeypatch, alone, activations=2000).largest_micro_batch(()) is None


def test_only_models_with_batch_norm_are_warned_of_it(monkeypatch):
    for batch_norm in (False, True):
        change = search(monkeypatch, batch_norm=batch_norm, activations=100).largest_micro_batch(()).to_json()["change"]
        assert change.startswith("--micro-batch-size 8 --gradient-accumulation-steps 3: same gradient")
        assert ("BatchNorm" in change) == batch_norm


def test_what_suffices_alone_needs_no_combination(monkeypatch):
    found = search(monkeypatch, activations=100).remedies()
    assert [len(remedy.changes) for remedy in found if remedy.fits] == [1, 1, 1]
    options = [remedy.changes[0].option.split()[0] for remedy in found if remedy.fits]
    assert options == ["--micro-batch-size", "--activation-checkpointing", "--seq"]


def test_changes_that_cannot_suffice_are_not_tried(monkeypatch):
    """Of 4,400 bytes, 3,600 are activations: nothing that is done to the optimizer's state leaves room."""
    looking = search(monkeypatch, activations=300, **{"optimizer state": 500, "parameters": 300})
    looking.remedies()
    alone = [recipe for recipe in looking.seen if recipe.checkpointing == "none" and recipe.micro_batch_size == 12]
    assert {recipe.optimizer for recipe in alone} == {"adamw"}


def test_no_micro_batch_is_tried_where_the_weights_alone_are_too_large(monkeypatch):
    looking = search(monkeypatch, parameters=1100, activations=50)
    assert looking.largest_micro_batch(()) is None
    assert not looking.seen


def test_what_lowers_the_passes_waits_while_the_peak_is_in_the_update(monkeypatch):
    """With the peak in the passes, recomputation comes first; in the update, it could not help."""
    sizes = {"parameters": 400, "optimizer state": 500, "activations": 1, "temporaries": 800}
    for in_update in (False, True):
        looking = search(monkeypatch, in_update=in_update, **sizes)
        looking.remedies()
        assert any(recipe.checkpointing == "every" for recipe in looking.seen) != in_update


def test_what_lowers_the_passes_waits_while_weights_and_state_alone_are_too_large(monkeypatch):
    looking = search(monkeypatch, activations=300, **{"optimizer state": 900, "parameters": 300})
    looking.remedies()
    assert not any(recipe.checkpointing == "every" and recipe.optimizer == "adamw" for recipe in looking.seen)


def test_changes_are_combined_where_none_suffices(monkeypatch):
    """Weights 400, gradients 500, state 800: it takes the update in the backward pass and 8-bit moments."""
    sizes = {"parameters": 400, "gradients": 500, "optimizer state": 800, "activations": 10, "temporaries": 100}
    recipe = replace(BASE, micro_batch_size=1, gradient_accumulation_steps=1)
    found = search(monkeypatch, recipe, **sizes).remedies()
    best = next(remedy for remedy in found if remedy.fits and not remedy.recipe.lora_rank)
    assert best.recipe.step_in_backward
    assert best.recipe.optimizer.startswith("adamw-8bit")
    for fewer in range(len(best.changes)):  # none of them is needless
        for some in itertools.combinations(best.changes, fewer):
            fields = {name: value for change in some for name, value in change.fields.items()}
            try:
                changed = replace(recipe, **fields)
            except RecipeError:
                continue
            assert sum(nbytes(changed, sizes).values()) > SURELY * ROOM, [change.option for change in some]


def test_a_change_that_a_large_micro_batch_hides_is_found(monkeypatch):
    """8-bit moments save 330 of 164,780 at a micro-batch of 8,192, and they are what is missing at 1."""
    sizes = {"parameters": 500, "optimizer state": 440, "activations": 100}
    recipe = replace(BASE, micro_batch_size=8192, checkpointing="every", loss="fused", gradient_accumulation_steps=1)
    best = search(monkeypatch, recipe, **sizes).remedies()[0]
    assert best.fits
    assert best.recipe.optimizer.startswith("adamw-8bit")
    assert (best.recipe.seq, best.recipe.lora_rank) == (recipe.seq, 0)


def test_adapters_come_where_the_whole_model_has_no_room(monkeypatch):
    sizes = {"parameters": 1500, "gradients": 1500, "optimizer state": 3000, "activations": 50}
    found = search(monkeypatch, **sizes).remedies()
    best = found[0]
    assert best.fits
    assert (best.recipe.lora_rank, best.recipe.quantize) == (16, "nf4-dq")
    assert not any(remedy.fits for remedy in found[1:])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "same numbers, no gradient clipping"),
        ({"optimizer": "adamw-8bit"}, "no gradient clipping; 8-bit moments"),
        (
            {"optimizer": "adamw-8bit-paged"},
            "no gradient clipping; 8-bit moments, which move to the host if the GPU is full",
        ),
        ({"precision": "bf16"}, "no gradient clipping; 16-bit weights, too"),
        ({"checkpointing": "every"}, "same numbers, no gradient clipping; same gradient"),
    ],
)
def test_only_changes_that_all_keep_the_numbers_are_called_the_same(changed, said):
    recipe = Recipe("gpt2", precision="fp32")
    eight = replace(recipe, optimizer="adamw-8bit", optimizer_impl="foreach")
    known = {next(iter(change.fields.items())): change for each in (eight, recipe) for change in candidates(each)}
    changes = tuple(known[field] for field in ({"step_in_backward": True} | changed).items())
    remedy = Remedy(changes, recipe, 1, (1, 1), True, False, None, 0.0, 0, False)
    assert remedy.to_json()["change"].endswith(f": {said}")


def test_nothing_helps_where_nothing_can(monkeypatch):
    assert not any(remedy.fits for remedy in search(monkeypatch, parameters=10**6).remedies())


def test_every_candidate_changes_the_recipe():
    for recipe in (
        BASE,
        Recipe("gpt2", precision="fp32", attention="eager", lora_rank=4),
        Recipe("gpt2", parallel={"shard": 2, "zero": "none"}),
    ):
        for change in candidates(recipe):
            try:
                assert replace(recipe, **change.fields) != recipe
            except RecipeError:
                continue  # it does not go with the rest


@pytest.mark.parametrize("bf16", [True, False])
def test_bf16_is_proposed_where_it_is_not_emulated(monkeypatch, bf16):
    gpu = replace(GPU, capability=(8, 0) if bf16 else (7, 0))
    looking = search(monkeypatch, replace(BASE, precision="fp32"), activations=300)
    looking = RemedySearch(looking._base, [gpu], None, False)
    tried = []
    monkeypatch.setattr(looking, "tried", lambda changes: tried.extend(changes))
    looking.remedies()
    named = {change.option for change in tried if change.option.startswith("--precision")}
    assert named == ({"--precision bf16-amp", "--precision bf16"} if bf16 else {"--precision fp16-amp"})


SIZES = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 4}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 512} | SIZES))
    return str(path)


@pytest.mark.slow
def test_remedies_of_a_real_recipe_are_what_the_planner_says_of_them(model):
    recipe = Recipe(model, micro_batch_size=24, seq=512, precision="fp32")
    whole = plan(recipe)
    budget = 0.5 * whole.peak_allocated_bytes / 2**30 + 0.5  # with the context
    answer = plan(recipe, budget=budget)
    assert answer.fits.popitem()[1] is False
    fitting = [remedy for remedy in answer.remedies if remedy["fits"]]
    assert fitting
    assert fitting[0]["change"].startswith("--micro-batch-size")
    assert "BatchNorm" not in str(answer)
    for remedy in fitting[:3]:
        again = plan(Recipe(**remedy["recipe"]), budget=budget)
        assert again.peak_allocated_bytes == pytest.approx(remedy["peak_allocated_bytes"], rel=0.01)
        assert again.grades.popitem()[1] == ("tight" if remedy["tight"] else "fits")
    recomputed = next(remedy for remedy in answer.remedies if remedy["change"].startswith("--activation-checkpointing"))
    assert 0.1 < recomputed["slower"] < 0.4
    assert "FLOPs" in str(answer)


@pytest.mark.slow
def test_a_large_vocabulary_calls_for_a_fused_loss(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 200_000} | SIZES))
    recipe = Recipe(str(path), seq=4096)
    budget = 0.6 * plan(recipe).peak_allocated_bytes / 2**30 + 0.5  # with the context
    remedies = plan(recipe, budget=budget).remedies
    fused = next(remedy for remedy in remedies if remedy["change"].startswith("--loss fused"))
    assert fused["fits"]
    again = plan(Recipe(**fused["recipe"]), budget=budget)
    assert again.peak_allocated_bytes == pytest.approx(fused["peak_allocated_bytes"], rel=0.01)
