"""A deep model's step from its shallow copies: the same events, bytes, work and seconds as when all of it runs."""

import json

from helpers.planner import Recipe
from helpers.planner.catalog import spec_of
from helpers.planner.catalog.gpus import GPUS
from helpers.planner.costs import forecasts
from helpers.planner.replay import replay
from helpers.planner.simulate import deepen, simulate

import pytest

from tests.sampling import sample_with_quick

SIZES = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 7, "num_attention_heads": 4}
CASES = [
    {},
    {"checkpointing": "every", "gradient_accumulation_steps": 3},
    {"checkpointing": "every-2"},
    {"precision": "bf16-amp", "attention": "eager"},
    {"step_in_backward": True, "optimizer": "adamw-8bit"},
    {"compile": True, "optimizer_impl": "fused"},
    {"optimizer": "adafactor", "optimizer_impl": "for-loop"},
    {"optimizer": "sgd-momentum", "set_to_none": False},
    {"lora_rank": 4, "quantize": "nf4-dq"},
    {"lora_rank": 4, "precision": "bf16-amp", "parallel": {"shard": 4, "zero": "none"}},
    {"offload": "optimizer"},
    {"offload": "all"},
    {"parallel": {"shard": 2, "zero": "none"}},
    {"parallel": {"shard": 2, "zero": "zero3"}},
]
NUMBERS = ("flops", "recomputed_flops", "sent", "host_bytes", "parameters", "trained")
NUMBERS += ("parameter_bytes", "trained_bytes", "state_bytes", "batch_norm")


def recipe_of(folder, sizes=(), **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "vocab_size": 512} | SIZES | dict(sizes)))
    return Recipe(str(path), **({"micro_batch_size": 2, "seq": 64} | changes))


def events(simulation):
    """What happens to memory, in order: the event in which it was taken, its bytes, whose it is, and what took it.

    What is freed at once, such as autocast's cache, is freed in an order that changes from run to run.
    """
    blocks = simulation.blocks
    moments = [(b.start, 0, b) for b in blocks] + [(b.end, 1, b) for b in blocks if b.end is not None]
    moments.sort(key=lambda moment: moment[:2])
    taken, said = {}, []
    for _, ends, b in moments:
        taken.setdefault(id(b), len(taken))
        said.append((len(taken), ends, taken[id(b)], b.nbytes, b.tenant, *b.op[1:]))
    return sorted(said)


def work(simulation):
    return sorted(
        (each.work.name, each.phase, each.recomputed, each.work.flops, each.work.bytes, each.work.shape, each.times)
        for each in simulation.works
    )


@pytest.fixture
def ran(monkeypatch):
    """How many blocks were run, one number a run."""
    blocks = []

    def spied(recipe, tell=lambda stage: None, spec=None):
        blocks.append((spec or spec_of(recipe)).layers)
        return simulate(recipe, tell, spec=spec)

    monkeypatch.setattr(deepen, "simulate", spied)
    return blocks


@pytest.mark.parametrize("changes", sample_with_quick(CASES, one_in=2, quick_one_in=5), ids=str)
def test_the_deep_step_is_that_of_the_whole_model(changes, tmp_path, ran):
    recipe = recipe_of(tmp_path, **changes)
    deep, whole = deepen.simulate_deep(recipe), simulate(recipe)
    assert max(ran) < 7
    assert events(deep) == events(whole)
    assert {name: getattr(deep, name) for name in NUMBERS} == {name: getattr(whole, name) for name in NUMBERS}
    assert work(deep) == work(whole)
    ours, theirs = (forecasts(each, 0, [GPUS["h100-80gb"]]) for each in (deep, whole))
    assert ours == theirs


OTHERS = {
    "gpt2": {"n_embd": 128, "n_layer": 7, "n_head": 4},
    "bert": {},
    "vit": {},
    "gemma2": {"head_dim": 32, "num_hidden_layers": 12},
}


@pytest.mark.parametrize("model_type", sample_with_quick(list(OTHERS), one_in=2, quick_one_in=4))
def test_other_models_grow_alike(model_type, tmp_path, ran):
    """Gemma 2's blocks are of two kinds, in turns."""
    recipe = recipe_of(tmp_path, {"model_type": model_type, **OTHERS[model_type]})
    deep, whole = deepen.simulate_deep(recipe), simulate(recipe)
    assert max(ran) < spec_of(recipe).layers
    assert events(deep) == events(whole)
    assert work(deep) == work(whole)


@pytest.mark.parametrize(
    "changes",
    [{"checkpointing": "sqrt"}, {"checkpointing": "every-3"}, {"parallel": {"shard": 2, "zero": "zero2"}}],
    ids=str,
)
def test_what_has_no_pattern_of_equal_blocks_is_run_whole(changes, tmp_path, ran):
    """Roots have no pattern at all, seven blocks are too few for threes, and parts of ZeRO end anywhere."""
    recipe = recipe_of(tmp_path, seq=16, micro_batch_size=1, **changes)
    assert deepen.simulate_deep(recipe).parameters == simulate(recipe).parameters
    assert ran == [7]


def test_blocks_that_differ_are_no_pattern(tmp_path):
    """Of the layers of Qwen 2 the last ones may look back over a window only."""
    sizes = {"model_type": "qwen2", "num_hidden_layers": 8, "use_sliding_window": True, "sliding_window": 8}
    for first, found in ((0, (2, 1)), (6, (0, 0))):
        recipe = recipe_of(tmp_path, sizes | {"max_window_layers": first})
        assert deepen.depths(recipe, spec_of(recipe)) == found


def test_a_copy_that_grows_otherwise_gives_no_rule(tmp_path):
    """The first one has a longer sequence: nothing can be inserted that makes the second one of it."""
    recipe = recipe_of(tmp_path)
    spec = spec_of(recipe)
    few, more = (
        simulate(recipe_of(tmp_path, seq=32), spec=spec.with_layers(3)),
        simulate(recipe, spec=spec.with_layers(4)),
    )
    assert deepen.deepened(few, more, 3) is None
    again = deepen.deepened(simulate(recipe, spec=spec.with_layers(3)), more, 4)
    assert replay(again.blocks, False) == replay(simulate(recipe).blocks, False)


def test_models_say_how_many_equal_blocks_they_have(tmp_path):
    assert spec_of(recipe_of(tmp_path)).layers == 7
    assert spec_of(recipe_of(tmp_path)).with_layers(2).layers == 2
    layers = {name: spec_of(Recipe(name)).layers for name in ("vit-b-16", "small-cnn", "resnet-50", "gpt2")}
    assert layers == {"vit-b-16": 12, "small-cnn": 0, "resnet-50": 0, "gpt2": 12}
    assert spec_of(Recipe("vit-b-16")).with_layers(3).layers == 3
